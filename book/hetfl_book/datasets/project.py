"""Every client's inputs brought into one space, each by a t-SNE of its own: FLIC's baseline without alignment.

A method for equal input spaces, such as FedRep, can then run on any federation. As each client is projected without
labels and without the others, nothing makes the axes of two clients mean the same; that is the point (S3.7 of [1]_).

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
.. [2] L. van der Maaten, G. Hinton. Visualizing data using t-SNE. JMLR 9, 2008.
.. [3] L. van der Maaten. Learning a parametric embedding by preserving local structure. AISTATS, 2009.
.. [4] R. Jacobs. Increased rates of convergence through learning rate adaptation. Neural Networks 1, 1988.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.rng import stream

FITTED_ON = "training and test inputs together"
"""What t-SNE has seen of a client: it places points and cannot place new ones afterwards."""


def to_common_space(
    federation: Federation, dim: int = 64, seed: int = 0, *, perplexity: float = 20.0, iterations: int = 500
) -> Federation:
    """Project the inputs of each client into R^dim by `tsne`, without labels and other clients (S3.7 of [1]_).

    Parameters
    ----------
    federation : Federation
        Inputs may have any shape, and another one on each client; they are flattened.
    dim : int
        Dimension of the common space; 64 in the paper.
    seed : int
        Seed of the random start; each client has a stream of its own.
    perplexity : float
        Effective number of neighbours; at most a third of the client's samples is used.
    iterations : int
        Steps of t-SNE.

    Returns
    -------
    Federation
        The same clients and labels, inputs of shape (dim,), float32. ``info["projection"]`` says how they were made,
        and ``info["leak"]`` that **test inputs had a part in it**: t-SNE has no map for new samples, so that each
        client's training and test inputs are projected together, as in the published code. (That code calls
        scikit-learn's, which in 64 dimensions does not go along the gradient of its objective: see `kl_gradient`.)

    Raises
    ------
    ValueError
        If `dim` or `iterations` is not positive, inputs are named blocks, or a client has fewer than 4 samples.
    """
    checks.instance("federation", federation, Federation)
    checks.ints(1, dim=dim, iterations=iterations)
    checks.seed(seed)
    checks.number("perplexity", perplexity, above=0)
    checks.memory(8 * dim * max(client.n_train + client.n_test for client in federation), dim=dim)
    if few := [c.name for c in federation if c.n_train + c.n_test < 4]:
        raise WrongValue(f"client {few[0]!r}: t-SNE needs at least 4 samples")
    projection = {"how": "tsne", "dim": dim, "seed": seed, "fitted_on": FITTED_ON}
    projection |= {"variant": "text", "perplexity": perplexity, "iterations": iterations}
    clients = []
    for client in federation:
        x = np.concatenate([_flat(client.x_train, client.name), _flat(client.x_test, client.name)])
        placed = _place(x, dim, perplexity, iterations, stream(seed, client.name, 0, "project:tsne"))
        train, test = placed[: client.n_train], placed[client.n_train :]
        clients.append(replace(client, x_train=train, x_test=test))
    info = {**federation.info, "projection": projection, "leak": True}
    return replace(federation, clients=tuple(clients), name=f"{federation.name}+tsne", info=info)


def _flat(x: Tensor | dict[str, Tensor], name: str) -> NDArray[np.float64]:
    if isinstance(x, dict):
        raise WrongValue(f"client {name!r}: x_train must be one tensor to be projected, got the blocks {list(x)}")
    return x.reshape(len(x), -1).numpy().astype(np.float64)


def _place(x: NDArray[np.float64], dim: int, perplexity: float, iterations: int, generator: torch.Generator) -> Tensor:
    start = 1e-4 * torch.randn(len(x), dim, generator=generator, dtype=torch.float32)
    return tsne(torch.from_numpy(x), start, min(perplexity, (len(x) - 1) / 3), iterations)


# --- t-SNE --------------------------------------------------------------------------------------------------------


def tsne(x: Tensor, start: Tensor, perplexity: float = 20.0, iterations: int = 500) -> Tensor:
    """Exact t-SNE into any number of dimensions ([2]_).

    Gradient descent on KL(P ‖ Q): for 250 steps P is exaggerated 12 times and the momentum is 0.5, afterwards it is
    0.8; the step is n / 48, with a gain for each coordinate ([4]_). These are the usual settings, those of scikit-learn
    among others but for its step of at least 50, which is unstable for as few points as clients have.

    Parameters
    ----------
    x : Tensor, shape (n, d)
    start : Tensor, shape (n, dim)
        Where the points begin.
    perplexity : float
        Effective number of neighbours, below n.
    iterations : int

    Returns
    -------
    Tensor, shape (n, dim)
        Of the type of `start`.
    """
    p = affinities(x, perplexity).to(start.dtype)
    y, update, gains = start, torch.zeros_like(start), torch.ones_like(start)
    for step in range(iterations):
        exaggeration, momentum = (12.0, 0.5) if step < 250 else (1.0, 0.8)
        slope = kl_gradient(exaggeration * p, y)
        gains = torch.where(update * slope < 0, gains + 0.2, gains * 0.8).clamp(min=0.01)
        update = momentum * update - len(x) / 48 * gains * slope
        y = y + update
    return y


def affinities(x: Tensor, perplexity: float) -> Tensor:
    """Joint probabilities P of t-SNE, Eqs. (1) and following of [2]_, shape (n, n), float64.

    With q(j, i) ∝ exp(−β_i ‖x_i − x_j‖²) summing to 1 over j, where β_i is such that 2 to the entropy of q(·, i), in
    bits, is the perplexity, P = (q(j, i) + q(i, j)) / 2n.
    """
    d = torch.cdist(x.double(), x.double()).square()
    other = ~torch.eye(len(d), dtype=torch.bool)
    d = d - d.where(other, torch.inf).min(1, keepdim=True).values  # leaves p as it is and keeps exp from vanishing
    low, high = (torch.full((len(d), 1), value, dtype=torch.float32).double() for value in (1e-20, 1e20))
    for _ in range(100):
        beta = (low * high).sqrt()
        weight = torch.exp(-beta * d).where(other, 0)
        total = weight.sum(1, keepdim=True)
        entropy = total.log() + beta * (weight * d).sum(1, keepdim=True) / total
        flat = entropy > np.log(perplexity)
        low, high = torch.where(flat, beta, low), torch.where(flat, high, beta)
    conditional = weight / total
    return (conditional + conditional.T) / (2 * len(d))


def kl_gradient(p: Tensor, y: Tensor) -> Tensor:
    r"""Gradient of KL(P ‖ Q) by the points y, with Q of Student's t in ν = max(dim − 1, 1) degrees of freedom ([3]_).

    .. math:: \frac{2(ν+1)}{ν} \sum_j (p_{ij} - q_{ij}) \Big(1 + \frac{‖y_i - y_j‖²}{ν}\Big)^{-1} (y_i - y_j)

    Scikit-learn (1.9 still) has the exponent −(ν + 1)/2 in place of −1. In two dimensions that is the same; in 64 it is
    −32, and the descent ends at a larger KL than that of all points in one place.

    Parameters
    ----------
    p : Tensor, shape (n, n)
        Joint probabilities, zero on the diagonal.
    y : Tensor, shape (n, dim)

    Returns
    -------
    Tensor, shape (n, dim)
    """
    freedom = max(y.shape[1] - 1, 1)
    squares = y.square().sum(1)
    base = (squares[:, None] + squares - 2 * y @ y.T).clamp(min=0) / freedom + 1
    kernel = base.pow(-(freedom + 1) / 2).fill_diagonal_(0)
    pull = (p - kernel / kernel.sum()) / base
    return 2 * (freedom + 1) / freedom * (pull.sum(1, keepdim=True) * y - pull @ y)
