"""Tangent vectors of covariances: the matrices that they stand for, and a new reference point for them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.errors import NotInstalled, WrongValue

Vectors = Callable[[NDArray[Any]], NDArray[Any]]
"""From vectors, shape (n, d), to others of as many rows."""


def pyriemann(part: str, who: str) -> ModuleType:
    """A module of pyRiemann, which is heavy and optional."""
    try:
        return importlib.import_module(f"pyriemann.{part}")
    except ImportError as error:
        raise NotInstalled(f"{who} needs pyRiemann: pip install 'hetfl-core[eeg]'") from error


def exponential(x: NDArray[Any]) -> NDArray[Any]:
    r"""Exponential map at the identity, of tangent vectors in the form that pyRiemann gives them.

    Such a vector is the upper triangle of a symmetric matrix S, row by row, off the diagonal times :math:`\sqrt 2`.

    Parameters
    ----------
    x : ndarray, shape (n, q(q+1)/2)

    Returns
    -------
    ndarray, shape (n, q, q)
        The matrices exp(S), symmetric positive definite.

    Raises
    ------
    ValueError
        For another number of columns, and for numbers that are not finite.
    """
    x = checks.floats("x", x, 2, least=0)
    q = (math.isqrt(8 * x.shape[1] + 1) - 1) // 2
    if q * (q + 1) // 2 != x.shape[1]:
        raise WrongValue(f"tangent vectors must have q(q+1)/2 numbers (1, 3, 6, 10 …), got {x.shape[1]}")
    rows, cols = np.triu_indices(q)
    matrices = np.zeros((len(x), q, q))
    matrices[:, rows, cols] = matrices[:, cols, rows] = x / np.where(rows == cols, 1, math.sqrt(2))
    values, vectors = np.linalg.eigh(matrices)
    return (vectors * np.exp(values)[:, None]) @ vectors.swapaxes(1, 2)


def recentring(x: NDArray[Any], where: str = "") -> Vectors:
    r"""What moves tangent vectors to a new reference point: the Riemannian mean of some of them.

    `exponential` makes of the vectors matrices R^{-1/2} C R^{-1/2}, and these have a tangent space of their own at
    their mean. Where R is the mean of the same trials it changes nothing; else the result is that of fitting the
    tangent space to these trials' covariances, up to a rotation that is close to the identity if R is close to the
    mean. Any number of trials has a mean; that of few is a rough one, and one trial is its own mean, with vector 0.

    Parameters
    ----------
    x : ndarray, shape (n, q(q+1)/2)
        The vectors whose mean is wanted.
    where : str
        Name of the client.

    Returns
    -------
    callable
        From vectors at the old reference point, shape (m, q(q+1)/2), to those at the new, float64.

    Raises
    ------
    ValueError
        For what cannot be tangent vectors, naming the client: another width, or matrices that are singular to double
        precision, as of the entries of covariances in µV².
    ImportError
        Where pyRiemann is not installed.
    """
    space = pyriemann("tangentspace", "Pooled").TangentSpace()
    space.fit(_matrices(x, where))
    return Recentring(space, where)


@dataclass(frozen=True, eq=False)
class Recentring:
    """What `recentring` returns: vectors at the old reference point become vectors at the new.

    Parameters
    ----------
    space : pyriemann.tangentspace.TangentSpace
        Fitted, with the new reference point.
    where : str
        Name of the client.
    """

    space: Any
    where: str = ""

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Vectors at the new reference point, shape (n, q(q+1)/2)."""
        return np.asarray(self.space.transform(_matrices(x, self.where)))


def _matrices(x: NDArray[Any], where: str) -> NDArray[Any]:
    """`exponential` of vectors that give matrices which can be inverted."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            matrices = exponential(x)
    except (ValueError, np.linalg.LinAlgError) as error:
        raise WrongValue(f"client {where!r}: its vectors cannot be re-centred: {error}") from error
    if not (np.isfinite(matrices).all() and (np.linalg.cond(matrices) < 1 / np.finfo(np.float64).eps).all()):
        largest = float(np.abs(x).max())
        raise WrongValue(
            f"client {where!r}: expected tangent vectors, to re-centre them, got entries up to {largest:.3g}"
        )
    return matrices
