"""What statistics of FLIC's anchor term can be trusted: the limit law of the estimated W2 distance, and its bias.

Theorem S2 of [1]_, after [2]_, and what a batch of few rows adds on average. Everything is float64.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. Transactions on Machine Learning Research, 2024.
.. [2] T. Rippl, A. Munk, A. Sturm. Limit laws of the empirical Wasserstein distance: Gaussian distributions. Journal
   of Multivariate Analysis, 151, 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hetfl_book.theory.flic import LARGEST, _normal, check_finite
from hetfl_core import checks
from hetfl_core.distances import bures_wasserstein, expected_root_trace, psd_root
from hetfl_core.errors import WrongValue
from hetfl_core.rng import SERVER, stream


def optimal_map(S1: Tensor, S2: Tensor) -> Tensor:
    r"""Matrix of the optimal map from N(0, S1) to N(0, S2), :math:`S_1^{-1/2}(S_1^{1/2} S_2 S_1^{1/2})^{1/2}
    S_1^{-1/2}`.

    Parameters
    ----------
    S1, S2 : Tensor, shape (k, k)
        Covariances, S1 regular.
    """
    for name, S in (("S1", S1), ("S2", S2)):
        check_finite(name, S, (len(S1), len(S1)) if isinstance(S1, Tensor) and S1.dim() == 2 else (None, None))
    checks.same_dtype(S1=S1, S2=S2)
    root = psd_root(S1)
    inverse = psd_root(S1, inverse=True)
    return inverse @ psd_root(root @ S2 @ root) @ inverse


def limit_variance(m: Tensor, S: Tensor, v: Tensor, anchor: Tensor) -> float:
    r"""Variance s of the limit of :math:`\sqrt n (W_2^2(\mu, \hat\nu) - W_2^2(\mu, \nu))`, by the delta method.

    .. math:: s = 4 (m-v)^\top \Sigma (m-v) + 2 \operatorname{tr} \Sigma^2 + 2 \operatorname{tr}(\Sigma \Sigma_c)
        - 4 \operatorname{tr}(T \Sigma^2)

    with T the map from ν = N(m, Σ) to μ = N(v, Σ_c). (Theorem S2 of [1]_, after [2]_, prints something else:
    `limit_variance_printed`.) As W2² has the gradients 2(m − v) and G = I − T, it is
    :math:`4 (m-v)^\top \Sigma (m-v) + 2 \operatorname{tr}(G \Sigma G \Sigma)`, a square: zero where μ = ν.

    Parameters
    ----------
    m, v : Tensor, shape (k,)
        Means of the class and of its anchor.
    S, anchor : Tensor, shape (k, k)
        Σ and Σ_c, regular.

    Returns
    -------
    float
    """
    _check_gaussians(m, S, v, anchor)
    T = optimal_map(S, anchor)
    spread = 2 * (S @ S).trace() + 2 * (S @ anchor).trace() - 4 * (T @ S @ S).trace()
    return float(4 * (m - v) @ S @ (m - v) + spread)


def limit_variance_printed(m: Tensor, S: Tensor, v: Tensor, anchor: Tensor, eigenpairs_of: str = "class") -> float:
    r"""The variance as Theorem S2 of [1]_ prints it, which is not that of the limit (and can be negative).

    .. math:: 4 (m-v)^\top \Sigma (m-v) + 2 \operatorname{tr}(\Sigma \Sigma_c)
        - 4 \sum_j \kappa_j^{1/2} r_j^\top \Sigma_c^{-1/2} \Sigma\, \Sigma_c^{1/2} r_j

    Parameters
    ----------
    m, S, v, anchor
        As for `limit_variance`.
    eigenpairs_of : {"class", "product"}
        :math:`(\kappa_j, r_j)` are the eigenpairs of Σ, as printed, or of :math:`\Sigma_c^{1/2} \Sigma
        \Sigma_c^{1/2}`, with which only :math:`2 \operatorname{tr} \Sigma^2` is missing.
    """
    _check_gaussians(m, S, v, anchor)
    checks.choice("eigenpairs_of", eigenpairs_of, ("class", "product"))
    root, inverse = psd_root(anchor), psd_root(anchor, inverse=True)
    kappa, r = torch.linalg.eigh(S if eigenpairs_of == "class" else root @ S @ root)
    terms = torch.einsum("pj,pq,qj->j", r, inverse @ S @ root, r)
    spread = 2 * (S @ anchor).trace() - 4 * (kappa.sqrt() * terms).sum()
    return float(4 * (m - v) @ S @ (m - v) + spread)


def simulate_w2(
    m: Tensor, S: Tensor, v: Tensor, anchor: Tensor, n: int = 2000, repeats: int = 4000, seed: int = 0
) -> Tensor:
    r"""Draws of :math:`\sqrt n (W_2^2(\mu, \hat\nu) - W_2^2(\mu, \nu))`, with ν̂ from the moments of n samples of ν.

    Parameters
    ----------
    m, S, v, anchor
        As for `limit_variance`.
    n : int
        Samples in each data set.
    repeats : int
        Data sets.
    seed : int

    Returns
    -------
    Tensor, shape (repeats,)
    """
    _check_gaussians(m, S, v, anchor)
    checks.ints(2, n=n)
    checks.ints(1, repeats=repeats)
    checks.memory(8 * max(n * len(m), repeats), n=n, repeats=repeats)
    rng, factor, found = stream(seed, SERVER, 0, "theorem S2"), torch.linalg.cholesky(S), []
    for some in torch.arange(repeats).split(max(2_000_000 // (n * len(m)), 1)):
        x = m + _normal(rng, len(some), n, len(m)) @ factor.mT
        centred = x - x.mean(1, keepdim=True)
        found.append(bures_wasserstein(v, anchor, x.mean(1), centred.mT @ centred / (n - 1)))
    return n**0.5 * (torch.cat(found) - bures_wasserstein(v, anchor, m, S))


def variance_with_error(draws: Tensor) -> tuple[float, float]:
    """Variance of independent draws and its standard error, from their fourth moment; for draws of any distribution.

    Parameters
    ----------
    draws : Tensor, shape (R,)
    """
    checks.tensors(draws=draws)
    if draws.dim() != 1 or len(draws) < 2 or not bool((draws.abs() < LARGEST).all()):
        raise WrongValue(f"draws must be two finite numbers or more, of shape (R,), got shape {tuple(draws.shape)}")
    centred, variance = draws - draws.mean(), draws.var()
    fourth = centred.pow(4).mean()
    return float(variance), float(((fourth - variance**2) / len(draws)).sqrt())


def expected_w2(n: int, k: int, scale: float = 1.0) -> float:
    r"""Mean of :math:`W_2^2(\mu, \hat\nu)` for an anchor N(v, I_k) and a class N(v, a² I_k) of which n rows are seen.

    .. math:: \mathbb{E}\, W_2^2 = \frac{a^2 k}{n} + k + a^2 k - 2 a\, R(n, k) , \qquad R(n, k) = \mathbb{E}
        \operatorname{tr} S^{1/2}

    for n ≥ 2, with :math:`\hat\nu` the Gaussian of the rows' mean and covariance (denominator n − 1) and R of
    `hetfl_core.distances.expected_root_trace`. The distance itself is :math:`k (1 - a)^2`; what is left is bias. Where
    the two agree it is :math:`(k + \tfrac14 k (k+1)) / n` to first order for n ≫ k, and
    :math:`2k - 2\sqrt{k (n - 1)} + k/n` for n ≪ k.

    Parameters
    ----------
    n : int
        Rows, at least 2.
    k : int
    scale : float
        a, not negative.

    Returns
    -------
    float
    """
    if n < 2 or scale < 0:
        raise WrongValue(f"expected n >= 2 and scale >= 0, got n={n} and scale={scale}")
    return scale**2 * k / n + k + scale**2 * k - 2 * scale * expected_root_trace(n, k)


def batch_bias(n: int, k: int, scale: float = 1.0) -> float:
    """What n rows add on average to the true distance k (1 − a)²; arguments as for `expected_w2`."""
    return expected_w2(n, k, scale) - k * (1 - scale) ** 2


def shrunk_scale(n: int, k: int) -> float:
    """The a for which `expected_w2` is smallest, R(n, k) / (k (1 + 1/n)): below 1, the anchor's scale, by the bias."""
    if n < 2:
        raise WrongValue(f"expected n >= 2, got {n}")
    return expected_root_trace(n, k) / (k * (1 + 1 / n))


def _check_gaussians(m: Tensor, S: Tensor, v: Tensor, anchor: Tensor) -> None:
    check_finite("m", m, (None,))
    k = len(m)
    check_finite("v", v, (k,), like="m")
    checks.tensors(S=S, anchor=anchor)
    checks.same_dtype(m=m, S=S, v=v, anchor=anchor)
    for name, covariance in (("S", S), ("anchor", anchor)):
        check_finite(name, covariance, (k, k), like="m")
        if int(torch.linalg.cholesky_ex(covariance).info) != 0:
            raise WrongValue(f"{name} must be positive definite")
