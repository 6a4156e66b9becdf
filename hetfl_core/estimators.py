"""Estimators of scikit-learn as baselines: each client fits one, or one is fitted where all rows lie in one place.

Any object with ``fit`` and ``predict`` will do, a pipeline or a search over a grid too: a classifier where there are
classes, a regressor where the target is a number. It sees what the federated methods see, the inputs of a client in
the view that is asked for, as a table where the columns have names. What is fitted is a copy, a fresh one for each
client and seed; each of its ``random_state`` is drawn from the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.baselines import Alone, Fit, always
from hetfl_core.engine.predictor import Answers, naming
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.federation import Client, Federation, Spec, blocks
from hetfl_core.inputs import by_block
from hetfl_core.rng import SERVER, numpy_stream

__all__ = ["InOnePlace", "PerSite"]


@dataclass(frozen=True)
class PerSite(Alone):
    """An estimator that each client fits to its own training rows; nothing leaves it.

    Parameters
    ----------
    estimator : estimator of scikit-learn
        Such as ``LogisticRegression()``, ``GradientBoostingClassifier()`` or a pipeline.
    """

    estimator: Any

    def __post_init__(self) -> None:
        if not is_estimator(self.estimator):
            raise WrongType(
                "estimator must have fit and predict, such as LogisticRegression(), got "
                f"{checks.shown(self.estimator)}{lacking(self.estimator)}"
            )

    @property
    def name(self) -> str:
        """The estimator's class."""
        return type(self.estimator).__name__

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse a regressor where there are classes, and a classifier where the target is a number."""
        kind, task = _kind(self.estimator), specs[0].task
        if kind is not None and kind != task:
            wanted = "classifier" if task == "classification" else "regressor"
            raise WrongValue(f"the federation is a {task}: expected a {wanted}, got {self.name}")

    @property
    def parameters(self) -> list[str]:
        """Names of the estimator's parameters, those of a pipeline's steps too (``"svc__C"``)."""
        told = getattr(self.estimator, "get_params", None)
        return sorted(told()) if callable(told) else []

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same with a copy of the estimator that has other parameters."""
        from sklearn.base import clone

        return replace(self, estimator=clone(self.estimator, safe=False).set_params(**settings))

    def unwrapped(self) -> Any:
        """The estimator."""
        return self.estimator

    def arrays(self, client: Client, split: str) -> tuple[Any, NDArray[Any]]:
        """Rows as a table, float64, where features have names, else as an array, shape (n, d); and labels.

        Images are flattened, and blocks stand side by side.
        """
        parts = [part.flatten(1).numpy() for part in blocks(getattr(client, f"x_{split}"))]
        x = np.concatenate(parts, 1).astype(np.float64)
        names = [name for own in by_block(client.features).values() for name in own or ()]
        table = pd.DataFrame(x, columns=names) if names and len(names) == x.shape[1] else x
        return table, getattr(client, f"y_{split}").numpy()

    def learn(self, x: Any, y: NDArray[Any], where: str = "", seed: int = 0) -> Answers:
        """What answers once it is fitted to rows, shape (n, d), and labels or numbers, shape (n,), of a client.

        Of a single class there is nothing to learn: it is what is always predicted.
        """
        if y.dtype.kind != "f" and len(np.unique(y)) == 1:
            return Answers(always(y))
        model = _copy(self.estimator, where, seed)
        with naming(where, self.name, f"fitted to {len(y)} rows"):
            model.fit(x, y)
        columns = tuple(x.columns) if isinstance(x, pd.DataFrame) else None
        return Answers(model, columns=columns, ranks=y.dtype.kind != "f", name=self.name, where=where)

    def answered(self, federation: Federation, models: Mapping[str, Answers]) -> str:
        """A digest of what is said of all test rows: what draws no random number says the same for every seed."""
        digest = hashlib.sha256(federation.fingerprint().encode())
        for client in federation:
            x, model = self.arrays(client, "test")[0], models[client.name]
            if len(x):
                digest.update(np.ascontiguousarray((model.shares or model.labels)(x)).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class InOnePlace(PerSite):
    """An estimator that is fitted to the training rows of all clients together: a ceiling that no federation has.

    Clients must have the same features, as they have in the views ``"common"`` and ``"zeros"``. Rows are pooled as each
    client has prepared them. Each client is answered with the probabilities of all classes. Nobody asks whether rows of
    two clients mean the same: where each client's rows are taken from its own average, such as EEG's tangent vectors,
    they do so among clients with the same classes alone (see `hetfl_core.baselines.Pooled`).

    Parameters
    ----------
    estimator : estimator of scikit-learn
    """

    @property
    def name(self) -> str:
        """What is pooled."""
        return f"{super().name} in one place"

    @property
    def way(self) -> Literal["one place"]:  # type: ignore[override]
        """All rows lie in one place."""
        return "one place"

    def unwrapped(self) -> Self:
        """Itself, for an estimator alone would be fitted by each client."""
        return self

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse clients with different features."""
        super().check(specs)
        first, *others = specs
        for other in others:
            if (other.shapes, other.features) != (first.shapes, first.features):
                raise WrongValue(
                    f"{self.name} wants the same features on all clients, but {first.name!r} and {other.name!r} have "
                    'others: take the view "common" or "zeros"'
                )

    def fit_all(self, federation: Federation, seed: int) -> Fit:
        """The same answers for all clients, and the bytes of their rows, which are sent up; what predicts stays."""
        each = [self.arrays(client, "train") for client in federation]
        x = pd.concat([x for x, _ in each]) if isinstance(each[0][0], pd.DataFrame) else np.vstack([x for x, _ in each])
        model = self.learn(x, np.concatenate([y for _, y in each]), "", seed)
        sent = sum(t.nbytes for client in federation for t in (*blocks(client.x_train), client.y_train))
        return {client.name: model for client in federation}, (int(sent), 0)


def is_estimator(x: Any) -> bool:
    """Whether this is an estimator as scikit-learn has them, made and not a class."""
    return not isinstance(x, type) and all(callable(getattr(x, name, None)) for name in ("fit", "predict"))


def lacking(x: Any) -> str:
    """Why something is no estimator, where that can be told: for want of brackets, or of an estimator within."""
    if isinstance(x, type):
        return " (without brackets)"
    inner = [name for name in ("estimator", "base_estimator", "estimators", "steps") if getattr(x, name, 0) is None]
    if not inner:
        return ""
    return f", whose {inner[0]} is None: say which it is to work with, such as {inner[0]}=LogisticRegression()"


def _kind(estimator: Any) -> Literal["classification", "regression"] | None:
    """What an estimator is for, as far as it says."""
    from sklearn.base import is_classifier, is_regressor

    try:
        return "classification" if is_classifier(estimator) else "regression" if is_regressor(estimator) else None
    except (AttributeError, TypeError):  # one that knows nothing of scikit-learn's tags
        return None


def _copy(estimator: Any, where: str, seed: int) -> Any:
    """A copy that is not fitted, with every ``random_state`` in it drawn from the seed and the client."""
    from sklearn.base import clone

    copy = clone(estimator, safe=False)
    if not callable(getattr(copy, "get_params", None)):
        return copy
    keys = sorted(key for key in copy.get_params() if key == "random_state" or key.endswith("__random_state"))
    drawn = {key: int(numpy_stream(seed, where or SERVER, 0, f"estimator:{key}").integers(2**32)) for key in keys}
    return copy.set_params(**drawn) if drawn else copy
