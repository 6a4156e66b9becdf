"""From latent class means back to inputs, by a linear decoder that is fitted on samples of the attacker's own.

Features of a network can be inverted by gradient descent ([1]_) or by a decoder that learns to ([2]_); for means of few
samples of a small network a linear one will do.

References
----------
.. [1] A. Mahendran, A. Vedaldi. Understanding deep image representations by inverting them. CVPR 2015.
.. [2] A. Dosovitskiy, T. Brox. Inverting visual representations with convolutional networks. CVPR 2016.
"""

from __future__ import annotations

import numpy as np

from hetfl_book.attacks.scores import Array
from hetfl_core import checks
from hetfl_core.errors import WrongValue

RIDGE = 1e-2
"""Of the decoder, over the mean variance of a feature."""


def decoder(z: Array, x: Array, ridge: float = RIDGE) -> Array:
    """The linear map of features less their mean to inputs less theirs, of least squares ([2]_, with one layer).

    Parameters
    ----------
    z : ndarray, shape (n, k)
    x : ndarray, shape (n, d)
    ridge : float

    Returns
    -------
    ndarray, shape (k, d)
    """
    z, x = checks.floats("z", z, 2), checks.floats("x", x, 2)
    if len(z) != len(x):
        raise WrongValue(f"z and x must have as many rows, got {len(z)} and {len(x)}")
    ridge = checks.number("ridge", ridge, 1e-12, 1e12)
    z = z - z.mean(0)
    S = z.T @ z
    scale = ridge * max(np.trace(S) / len(S), 1e-12)
    return np.linalg.solve(S + scale * np.eye(len(S)), z.T @ (x - x.mean(0)))


def decode(means: Array, population: Array, inputs: Array, W: Array) -> Array:
    """A client's class means as inputs: those of others, and what the client's features differ by, decoded.

    Parameters
    ----------
    means, population : ndarray, shape (C, k)
        Latent class means: the client's, and those of the attacker's samples in the same embedding.
    inputs : ndarray, shape (C, d)
        Class means of the attacker's inputs.
    W : ndarray, shape (k, d)
        A `decoder`.
    """
    return inputs + (means - population) @ W


def agreement(guess: Array, truth: Array, floor: Array) -> tuple[float, float]:
    """How well rows are hit, beside the floor as a guess: mean cosine of the differences from it, and relative error.

    Parameters
    ----------
    guess, truth, floor : ndarray, shape (n, d)
        The floor is what the attacker knows without the message.

    Returns
    -------
    cosine : float
        Of guess − floor and truth − floor; 0 by chance, 1 where the direction is right.
    error : float
        Mean of ‖guess − truth‖² over that of ‖floor − truth‖²; 1 for the floor itself, 0 where the guess is right.
    """
    g, t = guess - floor, truth - floor
    size = np.linalg.norm(g, axis=1) * np.linalg.norm(t, axis=1)
    cosine = np.where(size > 1e-12, (g * t).sum(1) / np.maximum(size, 1e-12), 0.0).mean()
    return float(cosine), float(np.square(guess - truth).sum() / max(np.square(t).sum(), 1e-12))
