"""Measures that a run is asked for beside its usual figures: of class probabilities, of numbers, or a user's own.

A run that is not asked computes none of them.

References
----------
.. [1] D. J. Hand, R. J. Till. A simple generalisation of the area under the ROC curve for multiple class
   classification problems. Machine Learning 45, 2001.
.. [2] G. W. Brier. Verification of forecasts expressed in terms of probability. Monthly Weather Review 78(1), 1950.
.. [3] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from hetfl_core import checks, keywords
from hetfl_core.engine.evaluation import Measure, accuracy, balanced_accuracy, mse, r2
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.federation import FederationWarning, Kind

Function = Callable[[np.ndarray, np.ndarray], float]
"""From a client's labels, shape (n,), and class probabilities, shape (n, C), or from its targets and the predicted
numbers, both of shape (n,), to a number."""

Named = Literal[
    "accuracy", "balanced_accuracy", "auc", "f1", "log_loss", "brier", "calibration_error", "mse", "rmse", "mae", "r2"
]  # fmt: skip
"""Measures that have a name here."""

LOWER = ("_loss", "_error", "_deviance")
"""Ends of the names of scikit-learn's own functions of which less is better; of all its others more is."""


@dataclass(frozen=True)
class Score:
    """A measure of one client's samples.

    Parameters
    ----------
    function : callable
    greater_is_better : bool, optional
        Which end the worst client is at; None where nobody has said it.
    undefined : str
        Where it is NaN, for the warning that says so.
    """

    function: Function
    greater_is_better: bool | None = None
    undefined: str = "the function gave NaN there"


Asked = Measure | Named | Function | Score
"""Entries of ``metric`` of a run."""


def scorer(function: Function, *, greater_is_better: bool) -> Score:
    """A measure of your own that says whether more of it is better, as whatever chooses by it has to know.

    Parameters
    ----------
    function : callable
        ``f(y, p)``, of a client's labels, shape (n,), and class probabilities, shape (n, C), or of its targets and the
        predicted numbers, both of shape (n,); it gives a number. Its name is that of the measure.
    greater_is_better : bool
        True where more is better, False where less is, as of an error.

    Returns
    -------
    Score
        As ``metric`` of `hetfl_core.simulate`, `hetfl_core.tune` and `hetfl_core.compare` takes it.

    Raises
    ------
    ValueError, TypeError
        For what is no function with a name of its own, and where `greater_is_better` is neither True nor False.

    Examples
    --------
    >>> def missed(y, p):
    ...     return float(((y == 1) & (p[:, 1] < 0.5)).sum())
    >>> scorer(missed, greater_is_better=False).greater_is_better
    False
    """
    if not callable(function):
        raise WrongType(f"function must be a function f(y, p), got {checks.shown(function)}")
    _own(function, "function")
    return Score(function, checks.flag("greater_is_better", greater_is_better))


# --- of class probabilities -----------------------------------------------------------------------------------------


def auc(y: np.ndarray, p: np.ndarray) -> float:
    """Area under the ROC curve, one class against the rest: the mean over the classes that the samples have ([1]_).

    Of two classes it is that of the second, which is that of the first, too.

    Parameters
    ----------
    y : ndarray of int, shape (n,)
    p : ndarray, shape (n, C)
        Class probabilities.

    Returns
    -------
    float
        NaN where all samples are of one class.
    """
    from sklearn.metrics import roc_auc_score

    held = np.unique(y)
    if len(held) < 2:
        return math.nan
    return float(np.mean([roc_auc_score(y == c, p[:, c]) for c in (held if p.shape[1] > 2 else [1])]))


def f1(y: np.ndarray, p: np.ndarray) -> float:
    """Harmonic mean of precision and recall of a class: the mean over the classes that the samples have (macro).

    Arguments as for `auc`. So no class need be called the positive one.
    """
    from sklearn.metrics import f1_score

    return float(f1_score(y, p.argmax(1), labels=np.unique(y), average="macro", zero_division=0))


def log_loss(y: np.ndarray, p: np.ndarray) -> float:
    """Mean of −ln p(y | x) in nats; probabilities of 0 count as the smallest that differ from 1 (scikit-learn's).

    Arguments as for `auc`; NaN where the federation has one class.
    """
    from sklearn import metrics

    return float(metrics.log_loss(y, p, labels=range(p.shape[1]))) if p.shape[1] > 1 else math.nan


def brier(y: np.ndarray, p: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the truth ([2]_), as scikit-learn scales it.

    Arguments as for `auc`. Of two classes it is the mean of (p(1 | x) − y)², in [0, 1]; of more, the sum over classes,
    in [0, 2].
    """
    squares = np.square(p - np.eye(p.shape[1])[y]).sum(1).mean()
    return float(squares / 2 if p.shape[1] == 2 else squares)


def calibration_error(y: np.ndarray, p: np.ndarray, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over bins of equal width, weighted by their samples ([3]_, Eq. 3).

    Arguments as for `auc`. It is above 0 for a calibrated model, too, where samples are few.
    """
    confidence, right = p.max(1), p.argmax(1) == y
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(which, right - confidence)).sum() / len(y))


# --- of numbers -----------------------------------------------------------------------------------------------------


def rmse(y: np.ndarray, predicted: np.ndarray) -> float:
    """Root of the mean squared error, in units of the target; both of shape (n,)."""
    from sklearn.metrics import root_mean_squared_error

    return float(root_mean_squared_error(y, predicted))


def mae(y: np.ndarray, predicted: np.ndarray) -> float:
    """Mean absolute error, in units of the target; both of shape (n,)."""
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(y, predicted))


ONE_CLASS = "their samples are of one class"
MEASURES: dict[Kind, dict[str, Score]] = {
    "classification": {
        "accuracy": Score(lambda y, p: accuracy(y, p.argmax(1)), True),
        "balanced_accuracy": Score(lambda y, p: balanced_accuracy(y, p.argmax(1)), True),
        "auc": Score(auc, True, ONE_CLASS),
        "f1": Score(f1, True),
        "log_loss": Score(log_loss, False, "there is one class"),
        "brier": Score(brier, False),
        "calibration_error": Score(calibration_error, False),
    },
    "regression": {
        "mse": Score(mse, False),
        "rmse": Score(rmse, False),
        "mae": Score(mae, False),
        "r2": Score(r2, True, "their targets do not vary"),
    },
}
"""The named measures of each kind of task."""

TAKEN = {*get_args(Measure), *get_args(Named), "client", "diverged", "n_test", "n_train", "round", "seconds"}
"""What no function of a user's own may be called, beside ``bytes_up`` and the like, which no function is called."""


# --- of all clients -------------------------------------------------------------------------------------------------


def is_own(asked: Any) -> bool:
    """Whether somebody's own measure is asked for, and not one by its name."""
    return isinstance(asked, Score) or callable(asked)


SCIKIT_LEARN: Mapping[str, Named] = MappingProxyType({"roc_auc": "auc", "roc_auc_ovr": "auc", "f1_macro": "f1"})
"""Names of scikit-learn's scorers that are other words for a measure here.

None that begins with ``neg_``: what is asked for by such a name is the negative of a loss, and losses are losses here.
"""


def named(asked: Any) -> Any:
    """Name of a measure as it is written here: ``"roc_auc"`` is ``"auc"``, ``"log loss"`` is ``"log_loss"``.

    Parameters
    ----------
    asked : object
        Anything but a text is handed back as it is.
    """
    if not isinstance(asked, str):
        return asked
    plain = "_".join(asked.lower().replace("-", " ").split())
    return SCIKIT_LEARN.get(plain, plain if plain in TAKEN else asked)


def check_measure(asked: Sequence[Any], task: Kind, argument: str = "metric") -> tuple[list[Measure], dict[str, Score]]:
    """What `simulate` is to look at beside the usual, in one order and each once, and the measures by name.

    Parameters
    ----------
    asked : sequence of str, callable or Score
    task : {"classification", "regression"}
    argument : str
        What it was given as, for errors.

    Returns
    -------
    list of {"own", "server", "held", "own_held"}
    dict of str to Score

    Raises
    ------
    ValueError
        For a name that is none, a measure of another kind of task, and a function without a name of its own.
    """
    scores: dict[str, Score] = {}
    for each in (given := list(map(named, checks.sequence(argument, asked)))):
        if is_own(each):
            scores |= _own(each, argument)
        elif checks.choice(argument, each, (*get_args(Measure), *MEASURES[task])) in MEASURES[task]:
            scores[each] = MEASURES[task][each]
    return [name for name in get_args(Measure) if name in given], scores


def _own(asked: Any, argument: str) -> dict[str, Score]:
    """A user's own function under its name; scikit-learn's own say by their names whether less is better."""
    score = asked if isinstance(asked, Score) else Score(asked)
    function = score.function
    if hasattr(function, "_score_func"):  # what make_scorer and get_scorer give
        raise WrongValue(
            f"{argument}: {checks.shown(function)} scores an estimator on its inputs, but a measure is formed of "
            f"labels y, shape (n,), and class probabilities p, shape (n, C): hand over {_by_name(function._score_func)}"
            "a function f(y, p) in hetfl_core.scorer(f, greater_is_better=…)"
        )
    name = str(getattr(function, "__name__", ""))
    if not name.isidentifier():
        raise WrongValue(f"{argument}: a function of your own needs a name, by def, got {checks.shown(function)}")
    if name in TAKEN:
        raise WrongValue(
            f"{argument}: a function of your own must not be called {name!r}, which a run has already{_ours(function)}"
        )
    if score.greater_is_better is None and _is_sklearns(function):
        score = replace(score, greater_is_better=not name.endswith(LOWER))
    return {name: score}


def _is_sklearns(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("sklearn.metrics.")


def _by_name(function: Any) -> str:
    """The name of the measure here that a function of scikit-learn stands for, as part of a sentence."""
    known = [*MEASURES["classification"], *MEASURES["regression"]]
    near = keywords.nearest(getattr(function, "__name__", ""), known) if _is_sklearns(function) else None
    return "" if near is None else f"{near!r}, which is that measure here, or "


def _ours(function: Any) -> str:
    """What ends an error for a function of scikit-learn that has a name here."""
    found = _by_name(function)
    return f": take {found.split(',')[0]}, by its name" if found else ""


def direction(name: str, score: Score, argument: str = "metric") -> bool:
    """Whether more of a measure is better; refused where nobody has said it.

    Parameters
    ----------
    name : str
    score : Score
    argument : str
        What it was given as, for the error.
    """
    if score.greater_is_better is None:
        raise WrongValue(
            f"{argument}: {name} does not say whether more of it is better, so that nothing can be chosen by it: "
            f"hand over hetfl_core.scorer({name}, greater_is_better=False) where less is, and greater_is_better=True "
            "where more is"
        )
    return score.greater_is_better


def told(outputs: Sequence[Tensor], task: Kind) -> list[np.ndarray]:
    """What measures are given of each client: class probabilities, shapes (n_i, C), or numbers, shapes (n_i,)."""
    each = [z.double() for z in outputs]
    return [(z.softmax(-1) if task == "classification" else z[:, 0]).numpy() for z in each]


def scored(
    scores: Mapping[str, Score],
    told: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    names: Sequence[str],
    say: bool = True,
) -> dict[str, np.ndarray]:
    """The measures of each client.

    Parameters
    ----------
    scores : dict of str to Score
    told : sequence of ndarray
        What measures are given (`told`).
    labels : sequence of ndarray, shapes (n_i,)
    names : sequence of str
        Of the clients.
    say : bool
        Warn of those on which a measure is not defined.

    Returns
    -------
    dict of str to ndarray, shapes (n_clients,)
        NaN for a client without samples, with an output that is not finite, or where a measure is not defined.

    Raises
    ------
    ValueError, TypeError
        For a function that raises something, naming it, the client, and what it was given; and one that gives no
        number.
    """
    found = {name: np.full(len(labels), np.nan) for name in scores}
    known = [len(y) > 0 and bool(np.isfinite(p).all()) for p, y in zip(told, labels, strict=True)]
    for client in [i for i, sound in enumerate(known) if sound]:
        for name, score in scores.items():
            found[name][client] = _formed(name, score, labels[client], told[client], names[client])
    gaps = [_undefined(name, score, names, np.array(known) & np.isnan(found[name])) for name, score in scores.items()]
    if say and (said := "; ".join(filter(None, gaps))):
        warnings.warn(
            f"{said}: NaN there, and left out of means over clients",
            FederationWarning,
            stacklevel=1 + checks.own_calls(),
        )
    return found


def _formed(name: str, score: Score, y: np.ndarray, p: np.ndarray, client: str) -> float:
    """A measure of one client, whose function may raise anything."""
    try:
        value = score.function(y, p)
    except Exception as error:
        what = "labels y" if p.ndim == 2 else "targets y", "class probabilities p" if p.ndim == 2 else "numbers p"
        given = f"{what[0]}, shape {y.shape}, and {what[1]}, shape {p.shape}"
        told = " ".join(str(error).split())
        raise WrongValue(
            f"client {client!r}: {name}(y, p) was given {given}, and raised {type(error).__name__}: {told}"
            f"{_ours(score.function)}"
        ) from error
    return _number(name, value)


def _undefined(name: str, score: Score, names: Sequence[str], gaps: np.ndarray) -> str:
    who = [client for client, gap in zip(names, gaps) if gap]
    return f"{name} is not defined on {checks.clients(who)} ({score.undefined})" if who else ""


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise WrongType(f"metric {name!r} must give a number, got {checks.shown(value)} of type {type(value).__name__}")
    return float(value)


def spread(each: Mapping[str, np.ndarray], scores: Mapping[str, Score], lost: np.ndarray) -> dict[str, float]:
    """Mean over clients, standard deviation over them (of samples, n − 1), and the worst client's, of each measure.

    Parameters
    ----------
    each : dict of str to ndarray, shapes (n_clients,)
        As `scored` has them.
    scores : dict of str to Score
    lost : ndarray of bool, shape (n_clients,)
        Whose training diverged: with one of them, all are NaN. Other clients that have no figure are left out.

    Returns
    -------
    dict of str to float
        ``<name>``, ``<name>_sd`` and, where it is known whether more is better, ``<name>_worst``.
    """
    summary = {}
    for name, values in each.items():
        found = values[lost | ~np.isnan(values)]
        summary[name] = float(found.mean()) if len(found) else math.nan
        summary[f"{name}_sd"] = float(found.std(ddof=1)) if len(found) > 1 else math.nan
        if (greater := scores[name].greater_is_better) is not None:
            summary[f"{name}_worst"] = float((np.min if greater else np.max)(found)) if len(found) else math.nan
    return summary
