"""What scikit-learn's functions ask of an estimator that is none of its own classes; fitted estimators as bytes."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.errors import WrongType, WrongValue

Kind = Literal["classifier", "regressor"]

C = TypeVar("C")


def tags(kind: Kind) -> Any:
    """Tags of a classifier or regressor of rows, as scikit-learn 1.6 and later reads them (``__sklearn_tags__``).

    Earlier versions read the attribute ``_estimator_type`` alone.

    Parameters
    ----------
    kind : {"classifier", "regressor"}

    Returns
    -------
    sklearn.utils.Tags
    """
    from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

    classifier = ClassifierTags() if kind == "classifier" else None
    regressor = RegressorTags() if kind == "regressor" else None
    return Tags(kind, TargetTags(required=True), classifier_tags=classifier, regressor_tags=regressor)


def notable(cls: type[C]) -> type[C]:
    """A frozen dataclass on whose objects scikit-learn may note things, under names with an underscore in front.

    Its meta-estimators do so while they fit (``_parent_callback_ctx`` of version 1.9). Settings stay frozen.

    Parameters
    ----------
    cls : type

    Returns
    -------
    type
        The same class.
    """
    set_frozen, delete_frozen = cls.__setattr__, cls.__delattr__

    def __setattr__(self: Any, name: str, value: Any) -> None:
        (object.__setattr__ if name.startswith("_") else set_frozen)(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        (object.__delattr__ if name.startswith("_") else delete_frozen)(self, name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__  # type: ignore[assignment,method-assign]
    return cls


def column_names(rows: Any) -> NDArray[Any] | None:
    """Names of the columns of a table, as scikit-learn keeps them (``feature_names_in_``); None where they have none.

    Parameters
    ----------
    rows : DataFrame or array_like

    Returns
    -------
    ndarray of object, shape (d,), or None
    """
    if not isinstance(rows, pd.DataFrame) or not all(isinstance(name, str) for name in rows.columns):
        return None
    return np.array(rows.columns, dtype=object)


def score(kind: Kind, y: Any, predicted: Any, sample_weight: Any = None) -> float:
    """Accuracy of a classifier, or R² of a regressor, as ``score`` of scikit-learn's estimators.

    Parameters
    ----------
    kind : {"classifier", "regressor"}
    y, predicted : array_like, shape (n,)
    sample_weight : array_like, shape (n,), optional

    Returns
    -------
    float
    """
    from sklearn.metrics import accuracy_score, r2_score

    checks.choice("kind", kind, ("classifier", "regressor"))
    measure = accuracy_score if kind == "classifier" else r2_score
    return float(measure(y, predicted, sample_weight=sample_weight))


# --- fitted estimators as bytes, without pickle ---------------------------------------------------------------------

OURS = (
    "hetfl_core.baselines",
    "hetfl_core.distances.tangent",
    "hetfl_core.engine.predictor",
    "hetfl_core.estimators",
    "hetfl_core.reporting.ways",
    "pyriemann",
    "sklearn",
)
"""Modules and packages whose classes may come out of a file; what else there is has to be named by whoever reads it."""

DANGEROUS = (
    "sklearn.conftest",
    "sklearn.datasets",
    "sklearn.externals",
    "sklearn.utils._testing",
    "pyriemann.datasets",
)
"""Modules of these packages that do more than to fit and predict."""

COMPUTING = ("sklearn.feature_selection", "sklearn.metrics")
"""Packages whose functions compute something of arrays, and may come out of a file, too."""

PLAIN = frozenset(
    {
        "hetfl_core.baselines.MDM.prepare",
        "numpy.dtype",
        "numpy.mean",
        "numpy.median",
        "scipy._lib.array_api_compat.numpy._aliases.asarray",
        "scipy.interpolate._bsplines.BSpline",
        "sklearn.cluster._kmeans._kmeans_single_elkan",
        "sklearn.cluster._kmeans._kmeans_single_lloyd",
    }
)
"""Functions, and what is of NumPy and SciPy, that estimators of these packages hold."""


def packed(thing: Any, what: str) -> bytes:
    """Estimators, and containers and dataclasses that hold them, as the bytes of a file of skops: data, and no code.

    Parameters
    ----------
    thing : object
    what : str
        What errors call it.

    Returns
    -------
    bytes

    Raises
    ------
    TypeError
        For what cannot be written or, like a lambda, could not be read again.
    """
    from skops import io

    try:
        content: bytes = io.dumps(thing, compression=zipfile.ZIP_DEFLATED)
        io.loads(content, trusted=io.get_untrusted_types(data=content))  # of things that are here, in this process
    except Exception as error:  # of somebody else's class, which may raise anything
        told = " ".join(str(error).split())
        raise WrongType(
            f"{what} cannot be written without pickle ({type(error).__name__}: {told}): what it consists of must be "
            "classes and functions that a module defines by name, and no lambda"
        ) from error
    return content


def types_in(thing: Any, what: str = "prepare") -> list[str]:
    """Full names of the classes and functions in an estimator that are neither of this library nor of scikit-learn.

    Raises
    ------
    TypeError
        As `packed` does.
    """
    from skops import io

    return [name for name in io.get_untrusted_types(data=packed(thing, what)) if not _is_ours(name)]


ROWS = ("support_vectors_", "_fit_X", "X_train_", "X_fit_")
"""Attributes of fitted estimators, such as support vector machines and nearest neighbours, that are training rows."""


def holds_rows(model: Any) -> bool:
    """Whether a fitted estimator, or a step or member of it, consists of rows that it was trained with.

    Parameters
    ----------
    model : estimator
    """
    if any(hasattr(model, name) for name in ROWS):
        return True
    held = [getattr(model, name, None) for name in ("estimator_", "best_estimator_", "final_estimator_")]
    members = getattr(model, "estimators_", None)
    held += [*np.ravel(np.asarray(members, dtype=object))] if members is not None else []
    held += [step for _, step in getattr(model, "steps", ())]
    return any(holds_rows(part) for part in held if part is not None and not isinstance(part, str))


def unpacked(content: bytes, by: str, trusted: Sequence[str] = ()) -> Any:
    """What `packed` has written. Classes of others are made, and functions called, only if their names are given.

    Parameters
    ----------
    content : bytes
    by : str
        Where it stands, for errors.
    trusted : sequence of str
        Full names of classes and functions of others, such as ``"mymodule.MyTransformer"``.

    Returns
    -------
    object

    Raises
    ------
    ValueError
        Naming what is not trusted, and for content that is damaged.
    """
    from skops import io

    try:
        asked = io.get_untrusted_types(data=content)
    except Exception as error:  # whatever is wrong with a file
        raise WrongValue(f"{by} is damaged, or was not written by Run.save: {error}") from error
    if unknown := [name for name in asked if name not in trusted and not _is_ours(name)]:
        raise WrongValue(
            f"{by} has what is neither of this library nor of scikit-learn: {checks.shown(unknown)}. Reading it runs "
            f"that code: if you trust it, and it can be imported here, load_trained(folder, trusted={unknown!r})"
        )
    try:
        return io.loads(content, trusted=asked)
    except Exception as error:
        raise WrongValue(f"{by} cannot be read here: {type(error).__name__}: {error}") from error


def _is_ours(name: str) -> bool:
    """Whether a name is of what this library and scikit-learn consist of: their classes, and few functions."""
    module, _, called = name.rpartition(".")
    if name in PLAIN:
        return True
    if not _inside(module, OURS) or _inside(module, DANGEROUS):
        return False
    try:
        thing = getattr(importlib.import_module(module), called)
        return isinstance(thing, type) or (callable(thing) and _inside(module, COMPUTING))
    except (ImportError, AttributeError):
        return False


def _inside(module: str, packages: Sequence[str]) -> bool:
    """Whether a module is one of these, or lies in one of these packages."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)
