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
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from hetfl_core import checks
from hetfl_core.engine.evaluation import Measure, accuracy, balanced_accuracy, mse, r2
from hetfl_core.federation import FederationWarning, Kind

Function = Callable[[np.ndarray, np.ndarray], float]
"""From a client's labels, shape (n,), and class probabilities, shape (n, C), or from its targets and the predicted
numbers, both of shape (n,), to a number."""

Named = Literal[
    "accuracy", "balanced_accuracy", "auc", "f1", "log_loss", "brier", "calibration_error", "mse", "rmse", "mae", "r2"
]  # fmt: skip
"""Measures that have a name here."""

Asked = Measure | Named | Function
"""What ``measure`` of a run may list."""

LOWER = ("_loss", "_error", "_deviance")
"""Ends of the names of functions of which less is better, as scikit-learn names its own."""


@dataclass(frozen=True)
class Score:
    """A measure of one client's samples.

    Parameters
    ----------
    function : callable
    greater_is_better : bool
        Which end the worst client is at.
    undefined : str
        Where it is NaN, for the warning that says so.
    """

    function: Function
    greater_is_better: bool
    undefined: str = "the function gave NaN there"


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


def check_measure(asked: Sequence[Any], task: Kind) -> tuple[list[Measure], dict[str, Score]]:
    """What `simulate` is to look at beside the usual, in one order and each once, and the measures by name.

    Parameters
    ----------
    asked : sequence of str or callable
    task : {"classification", "regression"}

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
    for each in (given := checks.sequence("measure", asked)):
        if callable(each):
            scores |= _own(each)
        elif checks.choice("measure", each, (*get_args(Measure), *MEASURES[task])) in MEASURES[task]:
            scores[each] = MEASURES[task][each]
    return [name for name in get_args(Measure) if name in given], scores


def _own(function: Any) -> dict[str, Score]:
    """A user's own function under its name, which says by its end whether less is better."""
    name = str(getattr(function, "__name__", ""))
    if not name.isidentifier():
        raise ValueError(f"measure: a function of your own needs a name, by def, got {checks.shown(function)}")
    if name in TAKEN:
        raise ValueError(f"measure: a function of your own must not be called {name!r}, which a run has already")
    return {name: Score(function, not name.endswith(LOWER))}


def told(outputs: Sequence[Tensor], task: Kind) -> list[np.ndarray]:
    """What measures are given of each client: class probabilities, shapes (n_i, C), or numbers, shapes (n_i,)."""
    each = [z.double() for z in outputs]
    return [(z.softmax(-1) if task == "classification" else z[:, 0]).numpy() for z in each]


def scored(
    scores: Mapping[str, Score], told: Sequence[np.ndarray], labels: Sequence[np.ndarray], names: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """The measures of each client.

    Parameters
    ----------
    scores : dict of str to Score
    told : sequence of ndarray
        What measures are given (`told`).
    labels : sequence of ndarray, shapes (n_i,)
    names : sequence of str
        Of the clients, where a warning is to name those on which a measure is not defined.

    Returns
    -------
    dict of str to ndarray, shapes (n_clients,)
        NaN for a client without samples, with an output that is not finite, or where a measure is not defined.
    """
    found = {name: np.full(len(labels), np.nan) for name in scores}
    known = [len(y) > 0 and bool(np.isfinite(p).all()) for p, y in zip(told, labels, strict=True)]
    for client in [i for i, sound in enumerate(known) if sound]:
        for name, score in scores.items():
            found[name][client] = _number(name, score.function(labels[client], told[client]))
    gaps = [_undefined(name, score, names, np.array(known) & np.isnan(found[name])) for name, score in scores.items()]
    if said := "; ".join(filter(None, gaps)):
        warnings.warn(
            f"{said}: NaN there, and left out of means over clients",
            FederationWarning,
            stacklevel=1 + checks.own_calls(),
        )
    return found


def _undefined(name: str, score: Score, names: Sequence[str], gaps: np.ndarray) -> str:
    who = [client for client, gap in zip(names, gaps) if gap]
    return f"{name} is not defined on {checks.clients(who)} ({score.undefined})" if who else ""


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(
            f"measure {name!r} must give a number, got {checks.shown(value)} of type {type(value).__name__}"
        )
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
        ``<name>``, ``<name>_sd`` and ``<name>_worst``.
    """
    summary = {}
    for name, values in each.items():
        found = values[lost | ~np.isnan(values)]
        worst = (np.min if scores[name].greater_is_better else np.max)(found) if len(found) else math.nan
        summary[name] = float(found.mean()) if len(found) else math.nan
        summary[f"{name}_sd"] = float(found.std(ddof=1)) if len(found) > 1 else math.nan
        summary[f"{name}_worst"] = float(worst)
    return summary
