"""One model for new rows, a network or an estimator, which scikit-learn's functions take as a fitted estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_core import checks, scikit
from hetfl_core.clients import by_block, numbers_by_name, shape_text
from hetfl_core.engine.last_step import after
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.federation import Spec, blocks
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params


class Answering(Protocol):
    """What a `Predictor` asks: the trained network of a client or of the server, or a fitted estimator."""

    def outputs(self, x: Any) -> Tensor:
        """What is computed of inputs as tensors: logits, shape (n, C), or numbers, shape (n, 1)."""

    def predicted(self, x: Any) -> NDArray[Any]:
        """Numbers of classes, or the numbers of a regression, shape (n,)."""

    def probabilities(self, x: Any) -> NDArray[Any]:
        """Class probabilities, shape (n, C)."""


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A trained network.

    Parameters
    ----------
    spec : Spec
        Of what it was trained for.
    method : Method
        With the network of this client.
    params, received : dict of str to Tensor
        The client's parameters, and what it was sent; the server's tensors, and nothing.
    steps : list of dict of str to Tensor
        The client's last step, where there is one.
    of_server : bool
        Whether it is the server's own.
    """

    spec: Spec
    method: Method
    params: Params
    received: Params
    steps: Sequence[Params] = ()
    of_server: bool = False

    def outputs(self, x: Any) -> Tensor:
        """Logits, shape (n, C), or numbers, shape (n, 1); None of a server that has no model."""
        with torch.no_grad():
            if self.of_server:
                return self.method.predict_server(self.params, x)  # type: ignore[return-value]
            return after([self.method.predict(self.params, self.received, x)], [*self.steps])[0]

    def predicted(self, x: Any) -> NDArray[Any]:
        """Numbers of classes, or the numbers of a regression, shape (n,)."""
        outputs = self._finite(x)
        answers = outputs[:, 0].double() if self.spec.task == "regression" else outputs.argmax(1)
        return np.asarray(answers.numpy())

    def probabilities(self, x: Any) -> NDArray[Any]:
        """Class probabilities, shape (n, C)."""
        return np.asarray(self._finite(x).double().softmax(1).numpy())

    def _finite(self, x: Any) -> Tensor:
        outputs = self.outputs(x).cpu()
        if bad := int((~outputs.isfinite()).any(1).sum()):
            raise WrongValue(f"the model says NaN or infinity of {bad} rows; did its training diverge?")
        return outputs


@dataclass(frozen=True, eq=False)
class Answers:
    """A fitted classifier or regressor, and what it says of rows: called with them, it gives labels or numbers.

    Parameters
    ----------
    model : estimator
        Fitted.
    before : tuple of callable
        What is done to rows, one after the other, before the model takes them.
    columns : tuple of str, optional
        Of the table that it takes; without, it takes an array, shape (n, d).
    by_shares : bool
        Whether its labels are those of the largest probability, and not what it predicts itself.
    ranks : bool
        Whether decision values stand for probabilities that it does not tell: they put samples in order.
    name, where : str
        What errors call the model, and the client that it is of; without a name they are left as they come.
    """

    model: Any
    before: tuple[Callable[[Any], Any], ...] = ()
    columns: tuple[str, ...] | None = None
    by_shares: bool = False
    ranks: bool = False
    name: str = ""
    where: str = ""

    @property
    def classes(self) -> NDArray[Any]:
        """Numbers of the classes that it knows; none of a regressor."""
        return np.asarray(getattr(self.model, "classes_", np.empty(0)))

    @property
    def ranked(self) -> bool:
        """Whether `shares` only put samples in order, and are no probabilities."""
        return self.ranks and not hasattr(self.model, "predict_proba")

    @property
    def shares(self) -> Callable[[Any], NDArray[Any]] | None:
        """What tells the probabilities of its classes, shape (n, number of classes); None where nothing does."""
        if hasattr(self.model, "predict_proba"):
            return self._probabilities
        return self._order if self.ranks and hasattr(self.model, "decision_function") else None

    def labels(self, rows: Any) -> NDArray[Any]:
        """Labels, or numbers, shape (n,)."""
        if self.by_shares:
            return np.asarray(self.classes[self._probabilities(rows).argmax(1)])
        return self.asked("predict", rows)

    def __call__(self, rows: Any) -> NDArray[Any]:
        """Labels, or numbers, shape (n,)."""
        return self.labels(rows)

    def _probabilities(self, rows: Any) -> NDArray[Any]:
        return self.asked("predict_proba", rows)

    def _order(self, rows: Any) -> NDArray[Any]:
        """The softmax of decision values, which keeps their order and is no probability."""
        from scipy.special import softmax

        z = np.asarray(self.asked("decision_function", rows), dtype=np.float64)
        return np.asarray(softmax(z if z.ndim == 2 else np.stack([np.zeros(len(z)), z], 1), axis=1))

    def asked(self, hook: str, rows: Any) -> NDArray[Any]:
        """What a method of the model returns for rows, once they are as it takes them.

        Parameters
        ----------
        hook : str
            Such as ``"predict"``.
        rows : ndarray or DataFrame, shape (n, d)
        """
        for step in self.before:
            rows = step(rows)
        if not self.name:
            return np.asarray(getattr(self.model, hook)(rows))
        with naming(self.where, self.name, f"asked about {len(rows)} rows"):
            return np.asarray(getattr(self.model, hook)(rows))


@contextmanager
def naming(where: str, name: str, what: str) -> Iterator[None]:
    """Name the client and the estimator in whatever goes wrong: it is not ours, and may raise anything.

    Parameters
    ----------
    where : str
        The client; empty where all rows lie in one place.
    name : str
        Of the estimator.
    what : str
        What cannot be done, such as ``"fitted to 5 rows"``.

    Raises
    ------
    ValueError
    """
    try:
        yield
    except Exception as error:
        told = " ".join(str(error).split())
        who = f"client {where!r}: " if where else "all rows in one place: "
        raise WrongValue(f"{who}{name} cannot be {what}: {type(error).__name__}: {told}") from error


@dataclass(frozen=True, eq=False)
class TrainedEstimator:
    """A fitted estimator that is asked in tensors, and answers for all classes of a federation.

    Parameters
    ----------
    spec : Spec
        Of the client for which it answers.
    answers : Answers
    name : str
        Of the baseline.
    """

    spec: Spec
    answers: Answers
    name: str

    def outputs(self, x: Any) -> Tensor:
        """Class probabilities, shape (n, C), or 1 for the class that is predicted; numbers, shape (n, 1)."""
        if self.spec.task == "regression":
            return torch.from_numpy(self.predicted(x).astype(np.float64))[:, None]
        if self.answers.shares is None:
            return torch.eye(self.spec.n_classes, dtype=torch.float64)[torch.from_numpy(self.predicted(x))]
        return torch.from_numpy(self._shares(x))

    def predicted(self, x: Any) -> NDArray[Any]:
        """Numbers of classes, or the numbers of a regression, shape (n,)."""
        return self.answers.labels(self._rows(x))

    def probabilities(self, x: Any) -> NDArray[Any]:
        """Class probabilities, shape (n, C); 0 for classes of which the model has seen no row."""
        if self.answers.shares is None or self.answers.ranked:
            raise WrongValue(f"{self.name} tells no class probabilities; use predict")
        return self._shares(x)

    def _shares(self, x: Any) -> NDArray[Any]:
        rows, tell = self._rows(x), self.answers.shares
        assert tell is not None
        found = np.zeros((len(rows), self.spec.n_classes))
        found[:, self.answers.classes] = tell(rows)
        return found

    def _rows(self, x: Any) -> Any:
        """Rows as the estimator takes them: float64, blocks side by side, as a table where it was fitted to one."""
        parts = [part.flatten(1).cpu().numpy() for part in blocks(x)]
        array = np.concatenate(parts, 1).astype(np.float64)
        return array if self.answers.columns is None else pd.DataFrame(array, columns=[*self.answers.columns])


@dataclass(frozen=True, eq=False)
class Predictor:
    """One model, of a client or of the server, with the names of what it takes and says.

    It is a fitted estimator to scikit-learn: its scorers and displays, `permutation_importance`, `partial_dependence`
    and ``CalibratedClassifierCV(FrozenEstimator(predictor))`` take it, with the table as ``X`` and the classes, by what
    they are called, as ``y``. What would train it anew (`clone`, and so ``cross_val_score``) is refused.

    Parameters
    ----------
    who : str
        What errors call it.
    spec : Spec
    model : Answering
    classes : list
        What the classes are called, in the order of their numbers.
    dtype : torch.dtype
    prepare : object, optional
        Makes inputs of rows of a table, by its ``transform``.

    Attributes
    ----------
    classes_ : ndarray, shape (C,)
        What the classes are called; a regression has none.
    n_features_in_ : int
        Columns that it takes, where inputs are rows of a table or vectors.
    feature_names_in_ : ndarray of str, shape (d,)
        Their names, where they have names.
    """

    who: str
    spec: Spec
    model: Answering = field(repr=False)
    classes: list[Any]
    dtype: torch.dtype
    prepare: Any = None

    def outputs(self, x: Any) -> Tensor:
        """Logits, shape (n, C), or numbers, shape (n, 1), for inputs as tensors; of an estimator probabilities."""
        return self.model.outputs(x)

    def predict(self, rows: Any) -> pd.Series:
        """What the model predicts for new rows.

        Parameters
        ----------
        rows : DataFrame, or array_like, or dict of str to such
            A table with the columns that the model was trained with, in any order; others do not matter. Where features
            have no names, arrays of the shape of the training inputs; with named blocks a dict, or one table with the
            columns of all blocks. No array stands for a table, for it does not say which of its columns is which, and
            a federation may have brought them into another order than a client has them in.

        Returns
        -------
        Series, shape (n,)
            What the class is called, or the number of a regression; with the index of the table. Of a method that
            predicts at random, by its mean features.

        Raises
        ------
        ValueError
            Naming whose model it is, and the column: for one that is missing, holds no numbers or has gaps, where no
            preparation takes care of these; for arrays of another shape, or where features have names; for a model that
            diverged.
        """
        predicted, index = self._asked(self.model.predicted, rows)
        called = [self.classes[c] for c in predicted.tolist()] if self.spec.task == "classification" else predicted
        return pd.Series(called, index, name="predicted")

    def predict_proba(self, rows: Any) -> NDArray[Any]:
        """Class probabilities for new rows, in the order of `classes_`; see `probabilities` for a table with names.

        Parameters
        ----------
        rows
            As for `predict`.

        Returns
        -------
        ndarray, shape (n, C)

        Raises
        ------
        ValueError
            As for `predict`; also for a regression, and for an estimator that tells no probabilities.
        """
        return self._shares(rows)[0]

    def probabilities(self, rows: Any) -> pd.DataFrame:
        """Class probabilities for new rows as a table; the argument and what is raised as for `predict_proba`.

        Returns
        -------
        DataFrame, shape (n, C)
            A column per class, by what it is called, with the index of the table.
        """
        shares, index = self._shares(rows)
        return pd.DataFrame(shares, index, self.classes)

    def score(self, rows: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy for new rows, or R² of a regression.

        Parameters
        ----------
        rows
            As for `predict`.
        y : array_like, shape (n,)
            What the classes are called, or numbers.
        sample_weight : array_like, shape (n,), optional

        Returns
        -------
        float
        """
        return scikit.score(self._estimator_type, y, self.predict(rows), sample_weight)

    # --- what scikit-learn asks of a fitted estimator ---

    def fit(self, X: Any = None, y: Any = None, **options: Any) -> NoReturn:
        """Refuse to be fitted: the model is trained, and more training is a federation's matter.

        Raises
        ------
        TypeError
            Saying what to use.
        """
        raise WrongType(self._is_fitted())

    def __sklearn_clone__(self) -> NoReturn:
        raise WrongType(self._is_fitted())

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        return scikit.tags(self._estimator_type)

    @property
    def _estimator_type(self) -> scikit.Kind:
        return "regressor" if self.spec.task == "regression" else "classifier"

    @property
    def classes_(self) -> NDArray[Any]:
        """What the classes are called, shape (C,)."""
        if self.spec.task == "regression":
            raise AttributeError("a regression has no classes_")
        return np.array(self.classes)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns that are taken, shape (d,)."""
        names = getattr(self.prepare, "columns", None)
        if self.prepare is None:
            blocks = [*by_block(self.spec.features).values()]
            names = None if None in blocks else [name for own in blocks for name in own or ()]
        if names is None:
            raise AttributeError(f"{self.who}: features have no names")
        return np.array(names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """Number of columns that are taken."""
        if hasattr(self, "feature_names_in_"):
            return len(self.feature_names_in_)
        if isinstance(self.spec.shapes, Mapping) or len(self.spec.shapes) != 1:
            raise AttributeError(f"{self.who}: inputs are no rows of columns")
        return int(self.spec.shapes[0])

    def _is_fitted(self) -> str:
        return (
            f"{self.who}: this model is trained already, and neither fit nor clone (which cross_val_score and searches "
            "call) can train a fresh one: that takes its federation. Where scikit-learn wants an estimator, "
            "FrozenEstimator(predictor) stands for this one as it is; predictor.score(rows, y) tests it on rows that "
            "it was not trained with; hetfl_core.compare trains and tests over several splits"
        )

    def __repr__(self) -> str:
        return f"Predictor({self.who}: {self._estimator_type})"

    # --- rows ---

    def _shares(self, rows: Any) -> tuple[NDArray[Any], Any]:
        if self.spec.task == "regression":
            raise WrongValue(f"{self.who}: a regression has no class probabilities; use predict")
        return self._asked(self.model.probabilities, rows)

    def _asked(self, ask: Callable[[Any], NDArray[Any]], rows: Any) -> tuple[NDArray[Any], Any]:
        """What the model answers of some rows, and their index."""
        x, index = self._inputs(rows)
        try:
            return ask(x), index
        except ValueError as error:
            if str(error).startswith(f"{self.who}: "):
                raise
            raise WrongValue(f"{self.who}: {error}") from error

    def _inputs(self, rows: Any) -> tuple[Any, Any]:
        """Some rows as tensors, as the model takes them, and their index."""
        if self.prepare is not None:
            checks.instance("rows", rows, pd.DataFrame)
            known = [name for own in by_block(self.spec.features).values() for name in own or ()]
            rows = self.prepare.transform(rows, known or None)
            rows = rows.reindex(columns=known, fill_value=0.0) if known else rows  # 0 as in a federation that is filled
        names, shapes, x = by_block(self.spec.features), by_block(self.spec.shapes), {}
        alone = not isinstance(self.spec.shapes, Mapping)
        for block, shape in shapes.items():
            given = rows if alone or isinstance(rows, pd.DataFrame) else self._block(rows, block)
            if given is None or (not alone and given is rows and 0 in shape):
                continue  # a block that the client lacks
            x[block] = self._input(given, names[block], shape, f" in block {block!r}" if block else "")
        n = {len(part) for part in x.values()}
        if len(n) != 1 or 0 in n:
            raise WrongValue(f"{self.who}: rows must be at least one, as many in each block, got {sorted(n)}")
        (n_rows,) = n
        x = {b: x[b] if b in x else torch.zeros(n_rows, *shape, dtype=self.dtype) for b, shape in shapes.items()}
        return x[""] if alone else x, rows.index if isinstance(rows, pd.DataFrame) else None

    def _block(self, rows: Any, block: str) -> Any:
        """The rows of one block; None where the client lacks it and so do the rows."""
        given = checks.mapping("rows", rows)
        if block not in given and 0 not in by_block(self.spec.shapes)[block]:
            raise WrongValue(f"{self.who}: rows must have the blocks {list(self.spec.shapes)}, got {list(given)}")
        return given.get(block)

    def _input(self, rows: Any, names: Sequence[str] | None, shape: tuple[int, ...], where: str) -> Tensor:
        """Rows as a tensor, their columns in the order of the features."""
        if names is not None:
            if not isinstance(rows, pd.DataFrame):
                raise WrongValue(
                    f"{self.who}: rows{where} must be a table (pandas.DataFrame) with the columns "
                    f"{checks.shown([*names])}, in any order, got {checks.shown(rows)} of type {type(rows).__name__}, "
                    "which does not say which of its columns is which: pd.DataFrame(rows, columns=[…]) names them"
                )
            rows = numbers_by_name(rows, names, self.who + where)
        array = checks.array("rows", rows.cpu() if isinstance(rows, Tensor) else rows)
        if array.dtype.kind not in "biuf" or array.shape[1:] != tuple(shape) or not np.isfinite(array).all():
            raise WrongValue(
                f"{self.who}: rows{where} must be finite numbers of shape (n, {shape_text(shape)}), got shape "
                f"{array.shape} and dtype {array.dtype}"
            )
        return torch.from_numpy(array.astype(np.float64)).to(self.dtype)
