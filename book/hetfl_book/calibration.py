r"""Whether a model that says "90 % sure" is right nine times in ten: reliability, its error, and one temperature.

References
----------
.. [1] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.errors import WrongValue

COLDEST, HOTTEST = 0.02, 50.0
"""Temperatures that are looked at. Where every answer is right no temperature is too low."""


def reliability(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> pd.DataFrame:
    """Confidence beside accuracy, in bins of confidence of equal width ([1]_, Section 2).

    Parameters
    ----------
    probabilities : ndarray, shape (n, C)
        Predicted class probabilities.
    labels : ndarray of int, shape (n,)
        0 … C−1.
    bins : int
        At least 1.

    Returns
    -------
    DataFrame
        A row for each bin that is not empty: ``low`` and ``high``, its ends (the last one holds certainty too),
        ``samples``, their mean ``confidence`` and their ``accuracy``, both in [0, 1].

    Raises
    ------
    ValueError
        For rows that are no probabilities (not negative, of sum 1 to 1e-3), labels that are no classes, or no sample.
    """
    checks.integer("bins", bins, 1, 1_000_000)
    p, y = _pair(probabilities, labels)
    confidence, right = p.max(1), p.argmax(1) == y
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = [
        (b / bins, (b + 1) / bins, int((which == b).sum()), confidence[which == b].mean(), right[which == b].mean())
        for b in np.unique(which)
    ]
    return pd.DataFrame(rows, columns=["low", "high", "samples", "confidence", "accuracy"])


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over the bins of `reliability`, weighted by their size ([1]_, Eq. 3).

    Parameters
    ----------
    probabilities, labels, bins
        As for `reliability`.

    Returns
    -------
    float
        In [0, 1]. A model that is calibrated has more than 0 where samples are few: a bin's accuracy is itself random.
    """
    table = reliability(probabilities, labels, bins)
    gaps = (table["accuracy"] - table["confidence"]).abs()
    return float((gaps * table["samples"]).sum() / table["samples"].sum())


def log_loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean of −ln p(y | x) in nats; infinite where something of probability 0 happened. Arguments as for `reliability`.

    A proper score: it is least, on average, for the true probabilities, where the calibration error also vanishes for
    a model that says the same of everybody.
    """
    p, y = _pair(probabilities, labels)
    with np.errstate(divide="ignore"):
        return float(-np.log(p[np.arange(len(y)), y]).mean()) + 0.0


def at_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    r"""The softmax of logits over a temperature: :math:`p^{1/T}`, normalised, shape (n, C) → (n, C).

    Hotter is less sure, and no answer changes. T = 1 leaves them as they are; all T leave certainty as it is.
    """
    T = checks.number("temperature", temperature, 1e-300)
    with np.errstate(divide="ignore"):
        logits = np.log(_probabilities(probabilities).astype(np.float64)) / T
    scaled = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(scaled / scaled.sum(1, keepdims=True))


def fitted_temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of the least `log_loss` ([1]_, Section 4.2), for samples that were not trained on.

    The loss is convex in 1/T. `COLDEST` where all answers are right: then there is no least one.

    Parameters
    ----------
    probabilities, labels
        As for `reliability`.

    Returns
    -------
    float
        In [`COLDEST`, `HOTTEST`], above 1 for a model that is too sure of itself.
    """
    from scipy.optimize import minimize_scalar  # here, for importing it takes a third of a second

    p, y = _pair(probabilities, labels)
    logits = np.log(np.maximum(p.astype(np.float64), np.finfo(float).tiny))  # the impossible has a price, not ∞

    def loss(t: float) -> float:
        scaled = logits / math.exp(t)
        top = scaled.max(1)
        return float((top + np.log(np.exp(scaled - top[:, None]).sum(1)) - scaled[np.arange(len(y)), y]).mean())

    ends = (math.log(COLDEST), math.log(HOTTEST))
    found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6})
    return math.exp(min((*ends, float(found.x)), key=loss))


def _pair(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, y = _probabilities(probabilities), checks.array("labels", labels)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise WrongValue(f"labels must be whole numbers of shape (n,), got shape {y.shape} and dtype {y.dtype}")
    if len(y) != len(p) or y.min() < 0 or y.max() >= p.shape[1]:
        raise WrongValue(
            f"labels must be {len(p)} classes in 0…{p.shape[1] - 1}, one for each row of "
            f"probabilities, got {len(y)} from {y.min(initial=0)} to {y.max(initial=0)}"
        )
    return p, y


def _probabilities(rows: np.ndarray) -> np.ndarray:
    array = checks.array("probabilities", rows)
    if array.ndim != 2 or not array.size or array.dtype.kind != "f":
        raise WrongValue(
            "probabilities must be real numbers of shape (n, C), n and C at least 1, "
            f"got shape {array.shape} and dtype {array.dtype}"
        )
    if bad := int(np.isnan(array).any(1).sum()):
        raise WrongValue(f"probabilities must be numbers, got NaN in {bad} of {len(array)} rows: training diverged")
    if not ((array >= 0).all() and (np.abs(array.sum(1, dtype=np.float64) - 1) <= 1e-3).all()):
        raise WrongValue("probabilities must be at least 0 and sum to 1 in each row, got others")
    return array
