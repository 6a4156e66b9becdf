"""Averages of Gaussians, which a server takes.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. Transactions on Machine Learning Research, 2024.
.. [2] P. C. Álvarez-Esteban, E. del Barrio, J. A. Cuesta-Albertos, C. Matrán. A fixed-point approach to barycenters
   in Wasserstein space. Journal of Mathematical Analysis and Applications, 441, 2016.
.. [3] G. E. Hinton. Training products of experts by minimizing contrastive divergence. Neural Computation, 14, 2002.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.distances.parts import check_covariance, check_finite, psd_root, require
from hetfl_core.errors import WrongType, WrongValue


@torch.no_grad()
def gaussian_barycentre(
    means: Tensor,
    covariances: Tensor,
    weights: Tensor | None = None,
    tolerance: float = 1e-9,
    max_iterations: int = 200,
) -> tuple[Tensor, Tensor]:
    r"""Wasserstein barycentre of Gaussians by the fixed point of Theorem 4.2 in [2]_.

    .. math:: S \leftarrow S^{-1/2} \left( \sum_i w_i (S^{1/2} S_i S^{1/2})^{1/2} \right)^2 S^{-1/2}

    Parameters
    ----------
    means : Tensor, shape (N, ..., k)
        Means of the N Gaussians, which may be whole stacks.
    covariances : Tensor, shape (N, ..., k, k)
        Symmetric positive semi-definite. Theory wants one of the N regular; where all are singular, the iteration
        runs in the span of their sum.
    weights : Tensor, shape (N,), optional
        Not negative; scaled to sum 1. Equal by default.
    tolerance : float, default 1e-9
        Stop when no covariance changes by more than this fraction of its Frobenius norm; in float32, when the change
        is down to rounding (1e-5).
    max_iterations : int, default 200
        Stop, with a warning, after so many steps.

    Returns
    -------
    mean : Tensor, shape (..., k)
    covariance : Tensor, shape (..., k, k)

    Raises
    ------
    ValueError
        If shapes do not match, a number is not finite, a covariance is not symmetric and positive semi-definite, or a
        weight is negative or all are 0.

    Warns
    -----
    RuntimeWarning
        If the last change is still larger than `tolerance`.

    Notes
    -----
    Not differentiated, and not for `vmap`: stack what should be averaged at once in the middle axes.
    """
    checks.tensors(means=means, covariances=covariances)
    checks.number("tolerance", tolerance, 0)
    checks.integer("max_iterations", max_iterations, 1)
    if means.dim() < 2 or covariances.shape != (*means.shape, means.shape[-1]):
        raise WrongValue(
            "means and covariances must have shapes (N, ..., k) and (N, ..., k, k), "
            f"got {tuple(means.shape)} and {tuple(covariances.shape)}"
        )
    check_finite("means", means)
    check_finite("covariances", covariances)
    check_covariance("covariances", covariances)
    w = _normalised(weights, means)
    stack = covariances.double()
    S = torch.tensordot(w.double(), stack, 1)
    goal = max(tolerance, 100 * torch.finfo(means.dtype).eps)
    change = float("inf")
    for _ in range(max_iterations):
        S, last = _barycentre_step(S, stack, w.double()), S
        size = torch.linalg.matrix_norm(last).clamp(min=torch.finfo(S.dtype).tiny)
        change = float((torch.linalg.matrix_norm(S - last) / size).max())
        if change <= goal:
            break
    else:
        warnings.warn(
            f"the barycentre's covariance still changed by {change:.1e} of its norm in the last of {max_iterations} "
            f"iterations, expected at most {goal:.1e}: raise max_iterations or tolerance",
            RuntimeWarning,
            stacklevel=2,
        )
    return torch.tensordot(w, means, 1), S.to(covariances.dtype)


def _barycentre_step(S: Tensor, covariances: Tensor, weights: Tensor) -> Tensor:
    root, inverse = psd_root(S), psd_root(S, inverse=True)
    middle = torch.tensordot(weights, psd_root(root @ covariances @ root), 1)
    step = inverse @ middle @ middle @ inverse
    return (step + step.mT) / 2


def average_anchors(
    means: Tensor, cholesky: Tensor | None = None, weights: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    r"""Weighted average of the clients' anchors, Algorithm S2, lines 28–29 of [1]_.

    Means and Cholesky factors are averaged entry by entry; the covariance is :math:`L_c L_c^\top` of the averaged
    factor. For means that is the Wasserstein barycentre; for covariances where the factors are diagonal, but not in
    general (`gaussian_barycentre` is the exact one).

    Parameters
    ----------
    means : Tensor, shape (N, C, k)
        One row per client.
    cholesky : Tensor, shape (N, C, k, k), optional
        None where the covariance is not learned.
    weights : Tensor, shape (N,), optional
        Not negative; scaled to sum 1. Equal by default.

    Returns
    -------
    means : Tensor, shape (C, k)
    cholesky : Tensor, shape (C, k, k), or None

    Raises
    ------
    ValueError
        If shapes do not match, a number is not finite, or a weight is negative or all are 0.
    """
    checks.tensors(means=means, **({} if cholesky is None else {"cholesky": cholesky}))
    w = _normalised(weights, means)
    check_finite("means", means)
    if cholesky is None:
        return torch.tensordot(w, means, 1), None
    if cholesky.shape != (*means.shape, means.shape[-1]):
        raise WrongValue(
            f"cholesky must have shape {(*means.shape, means.shape[-1])} to go with means, got {tuple(cholesky.shape)}"
        )
    check_finite("cholesky", cholesky)
    return torch.tensordot(w, means, 1), torch.tensordot(w.to(cholesky.dtype), cholesky, 1)


def product_of_experts(
    means: Tensor, variances: Tensor, weights: Tensor | None = None, prior: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Product of diagonal Gaussians, :math:`\prod_i N(m_i, v_i)^{w_i}`, itself a Gaussian once normalised [3]_.

    Precisions add up: :math:`1/v = \sum_i w_i / v_i` and :math:`m = v \sum_i w_i m_i / v_i`. The order of the experts
    does not matter.

    Parameters
    ----------
    means, variances : Tensor, shape (N, ..., k)
        Experts along the first axis; variances positive, infinite for an expert without an opinion.
    weights : Tensor, shape (N,), optional
        Exponents :math:`w_i \geq 0`, used as they are; 1 by default. 0 leaves an expert out.
    prior : bool, default False
        Multiply with N(0, I), once.

    Returns
    -------
    mean, variance : Tensor, shape (..., k)
        Where nobody has an opinion and there is no prior: mean 0, variance infinite.

    Raises
    ------
    ValueError
        If shapes do not match, a mean is not finite, a variance is not positive, or a weight is negative.
    """
    checks.tensors(means=means, variances=variances)
    checks.flag("prior", prior)
    if means.shape != variances.shape or means.dim() < 2 or not len(means):
        raise WrongValue(
            "means and variances must have one shape (N, ..., k), "
            f"got {tuple(means.shape)} and {tuple(variances.shape)}"
        )
    check_finite("means", means)
    require(variances > 0, "variances must be positive")
    precision = 1 / variances
    if weights is not None:
        precision = precision * _weights(weights, means).reshape(-1, *[1] * (means.dim() - 1))
    total = precision.sum(0) + float(prior)
    known = total > 0
    variance = torch.where(known, 1 / torch.where(known, total, 1), float("inf"))
    return (precision * means).sum(0) / torch.where(known, total, 1), variance


def _weights(weights: Tensor, like: Tensor) -> Tensor:
    """Weights of the N members along the first axis of `like`, finite and not negative."""
    try:
        weights = torch.as_tensor(weights, dtype=like.dtype, device=like.device)
    except (ValueError, TypeError, RuntimeError) as error:
        raise WrongType(f"weights must be numbers, got {checks.shown(weights)}") from error
    if weights.shape != like.shape[:1]:
        raise WrongValue(f"weights must have shape ({len(like)},), one a member, got {tuple(weights.shape)}")
    require((weights >= 0) & weights.isfinite(), "weights must be finite and not negative")
    return weights


def _normalised(weights: Tensor | None, like: Tensor) -> Tensor:
    """Weights as `_weights` checks them, of sum 1; equal ones where none are given."""
    if not like.dim() or not len(like):
        raise WrongValue(f"an average needs at least one member, got shape {tuple(like.shape)}")
    if weights is None:
        return like.new_full((len(like),), 1 / len(like))
    weights = _weights(weights, like)
    require(weights.sum() > 0, "weights must not all be 0")
    return weights / weights.sum()
