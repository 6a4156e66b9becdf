"""Checks of what is dealt, and to whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetfl_core import checks
from hetfl_core.errors import WrongType, WrongValue

Indices = NDArray[np.int64]
Parts = list[Indices]


def joined(pieces: Sequence[Indices]) -> Indices:
    """Pieces of a client's samples as one sorted array."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *pieces]))


def checked_labels(labels: ArrayLike, name: str = "labels") -> Indices:
    """Labels as whole numbers of shape (n,); anything else is refused."""
    y = checks.array(name, labels)
    if not np.issubdtype(y.dtype, np.integer):
        raise WrongType(f"{name} must be whole numbers, got dtype {y.dtype}")
    if y.ndim != 1:
        raise WrongValue(f"{name} must have shape (n,), got {y.shape}")
    return y.astype(np.int64)


def check_k(name: str, k: int, n_classes: int, allow_repeats: bool = False) -> None:
    """Refuse a number of classes per client that is none, or more than there are classes."""
    checks.integer(name, k, 1)
    if k > n_classes and not allow_repeats:
        raise WrongValue(
            f"{name} must be at most the number of classes, {n_classes}, got {k}: a client cannot hold more"
        )


def check_clients(n_clients: int, k: int, n_samples: int) -> None:
    """Refuse, before anything is dealt, more clients than could each have a sample of each of its k classes."""
    if n_clients * k > n_samples:
        raise WrongValue(
            f"n_clients must be at most {n_samples // k}, so that each has at least one of {n_samples} training "
            f"samples of each of its classes ({k} a client), got {n_clients}"
        )
