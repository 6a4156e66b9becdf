"""How good the clients' models are, and what it cost in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor


def accuracy_per_client(predicted: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> np.ndarray:
    """Share of right answers on each client; NaN for a client without samples.

    Parameters
    ----------
    predicted, labels : sequences of int arrays, shapes (n_i,)

    Returns
    -------
    ndarray, shape (n_clients,)
    """
    return np.array([np.mean(p == y) if len(y) else np.nan for p, y in zip(predicted, labels, strict=True)])


def balanced_accuracy_per_client(predicted: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> np.ndarray:
    """Mean recall over the classes that the client's samples have (arguments and result as `accuracy_per_client`)."""

    def one(p: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean([np.mean(p[y == c] == c) for c in np.unique(y)])) if len(y) else np.nan

    return np.array([one(p, y) for p, y in zip(predicted, labels, strict=True)])


def summarise(predicted: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[str, float]:
    """The figures that runs report, as fractions in [0, 1]. Clients without samples are left out.

    Returns
    -------
    dict
        ``accuracy``: mean over clients, as FLIC's text reports it; ``accuracy_weighted``: weighted by the number of
        samples, as its published code does; ``accuracy_worst``: the worst client; ``balanced_accuracy``: mean over
        clients of the mean recall.
    """
    sizes = np.array([len(y) for y in labels])
    if not sizes.any():
        return {}
    some = sizes > 0
    each = accuracy_per_client(predicted, labels)[some]
    return {
        "accuracy": float(each.mean()),
        "accuracy_weighted": float(np.average(each, weights=sizes[some])),
        "accuracy_worst": float(each.min()),
        "balanced_accuracy": float(balanced_accuracy_per_client(predicted, labels)[some].mean()),
    }


def n_bytes(messages: Iterable[Mapping[str, Tensor]]) -> int:
    """Bytes of messages at their true shapes; a broadcast counts once a receiver."""
    return sum(t.numel() * t.element_size() for message in messages for t in message.values())


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over equal-width bins of confidence, weighted by their size.

    Parameters
    ----------
    probabilities : ndarray, shape (n, C)
        Predicted class probabilities.
    labels : ndarray of int, shape (n,)
    bins : int

    References
    ----------
    .. [1] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017, Eq. (3).
    """
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        abs(right[which == b].mean() - confidence[which == b].mean()) * (which == b).mean() for b in np.unique(which)
    ]
    return float(np.sum(gaps))
