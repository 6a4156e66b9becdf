"""Distances between distributions and representations, and averages of Gaussians.

Distances that a reader may call on anything (`bures_wasserstein`, `gaussian_kl`, `mmd`, `cka`, `principal_angle`),
and averages that a server takes (`gaussian_barycentre`, `average_anchors`, `product_of_experts`); all check what they
are given. What FLIC calls at every training step is in `hetfl_core.methods.anchor_terms`.

Every function takes and returns torch tensors, accepts leading batch axes unless it says otherwise, works under
`torch.func.vmap`, and gives finite first derivatives, also where the mathematics has none (the docstring says which
value is taken there). Under `vmap` the checks that would have to look at numbers are skipped; shapes
are always checked.

References
----------
.. [1] M. Gelbrich. On a formula for the L2 Wasserstein metric between measures on Euclidean and Hilbert spaces.
   Mathematische Nachrichten, 147, 1990.
.. [2] R. Bhatia, T. Jain, Y. Lim. On the Bures-Wasserstein distance between positive definite matrices.
   Expositiones Mathematicae, 37, 2019.
.. [3] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. Transactions on Machine Learning Research, 2024.
.. [4] A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schölkopf, A. Smola. A kernel two-sample test. Journal of Machine
   Learning Research, 13, 2012.
.. [5] S. Kornblith, M. Norouzi, H. Lee, G. Hinton. Similarity of neural network representations revisited. ICML, 2019.
.. [6] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting shared representations for personalized federated
   learning. ICML, 2021.
.. [7] Z. D. Bai, J. W. Silverstein. CLT for linear spectral statistics of large-dimensional sample covariance
   matrices. Annals of Probability, 32, 2004.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.distances.averages import average_anchors, gaussian_barycentre, product_of_experts
from hetfl_core.distances.parts import check_covariance, check_shapes, first_derivative, psd_root, require
from hetfl_core.errors import WrongValue

__all__ = [
    "average_anchors",
    "bures_wasserstein",
    "cka",
    "gaussian_barycentre",
    "gaussian_kl",
    "mmd",
    "principal_angle",
    "product_of_experts",
    "psd_root",
    "transport_plan",
]


def bures_wasserstein(m1: Tensor, S1: Tensor, m2: Tensor, S2: Tensor) -> Tensor:
    r"""Squared W2 distance between Gaussians, :math:`\|m_1 - m_2\|^2 + \mathfrak{B}^2(S_1, S_2)` [1]_.

    Parameters
    ----------
    m1, m2 : Tensor, shape (..., k)
        Means.
    S1, S2 : Tensor, shape (..., k, k)
        Covariances, symmetric positive semi-definite. Leading axes of all four broadcast.

    Returns
    -------
    Tensor, shape (...)

    Raises
    ------
    ValueError
        If shapes do not match or a covariance is not finite, symmetric and positive semi-definite.

    See Also
    --------
    bures : what is said there of singular covariances holds here too.
    """
    check_shapes(m1=(m1, "k"), S1=(S1, "kk"), m2=(m2, "k"), S2=(S2, "kk"))
    return (m1 - m2).square().sum(-1) + bures(S1, S2)


def bures(S1: Tensor, S2: Tensor) -> Tensor:
    r"""Squared Bures distance between covariances, Eq. (1) of [2]_.

    .. math:: \mathfrak{B}^2(S_1, S_2) = \mathrm{tr}\, S_1 + \mathrm{tr}\, S_2
        - 2\, \mathrm{tr}\, (S_1^{1/2} S_2 S_1^{1/2})^{1/2}

    Parameters
    ----------
    S1, S2 : Tensor, shape (..., k, k)
        Symmetric positive semi-definite; leading axes broadcast.

    Returns
    -------
    Tensor, shape (...)
        Never negative.

    Raises
    ------
    ValueError
        If shapes do not match or a matrix is not finite, symmetric and positive semi-definite.

    Notes
    -----
    The gradient for S1 is :math:`I - T`, with T the matrix of the optimal map from N(0, S1) to N(0, S2); it is 0 where
    the two are equal and regular. For a singular S1 the distance has no derivative: inverse roots are then replaced by
    pseudo-inverses, so that T is the least map between the supports, and the gradient is finite. The work is
    done in float64. There are first derivatives only; asking for a second one is an error.
    """
    check_shapes(S1=(S1, "kk"), S2=(S2, "kk"))
    check_covariance("S1", S1)
    check_covariance("S2", S2)
    S1, S2 = torch.broadcast_tensors(S1, S2)
    return _Bures.apply((S1 + S1.mT) / 2, (S2 + S2.mT) / 2)[0]


@functools.lru_cache(maxsize=4096)
def expected_root_trace(n: int, k: int) -> float:
    r"""Mean of :math:`\operatorname{tr} S^{1/2}` over empirical covariances S of n samples of N(0, I_k).

    Empirical covariances look narrower than the distribution they come from: with the true covariance I the mean would
    be k. It is what makes the W2 distance between a Gaussian and an empirical one biased upwards. With
    :math:`m = n - 1` and :math:`D(\vartheta) = \sqrt{m + k - 2 \sqrt{mk} \cos\vartheta}`,

    .. math:: \mathbb{E} \operatorname{tr} S^{1/2} \approx \frac{2 k \sqrt m}{\pi} \int_0^\pi
        \frac{\sin^2 \vartheta}{D(\vartheta)} d\vartheta + \frac{1}{\sqrt m} \Bigl( \frac{\sqrt{\max(m, k)}}{2}
        - \frac{1}{2\pi} \int_0^\pi D(\vartheta)\, d\vartheta \Bigr) ,

    the Marchenko–Pastur law and its correction of first order ([7]_, for real Gaussian samples). For k ≥ 20
    it is right to 0.6 %, at k = 64 to 0.3 %; for k < 3 and n < 4 up to 12 % off.

    Parameters
    ----------
    n : int
        Samples; S has the denominator max(n − 1, 1).
    k : int
        Dimensions.

    Returns
    -------
    float
        0 for n = 1, where S is zero.

    Raises
    ------
    ValueError
        If n or k is less than 1.
    """
    if n < 1 or k < 1:
        raise WrongValue(f"n and k must be at least 1, got n={n} and k={k}")
    if n == 1:
        return 0.0
    m = n - 1
    nodes, weights = np.polynomial.legendre.leggauss(200)
    angle, weights = (nodes + 1) * np.pi / 2, weights * np.pi / 2
    D = np.sqrt(m + k - 2 * (m * k) ** 0.5 * np.cos(angle))
    law = 2 * k * m**0.5 / np.pi * np.sum(weights * np.sin(angle) ** 2 / D)
    correction = (max(m, k) ** 0.5 / 2 - np.sum(weights * D) / (2 * np.pi)) / m**0.5
    return float(law + correction)


class _Bures(torch.autograd.Function):
    """`bures` of symmetric matrices, with its two gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(S1: Tensor, S2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        R1, R2 = psd_root(S1.double()), psd_root(S2.double())
        U, s, Vh = torch.linalg.svd(R2 @ R1)
        kept = s > s.shape[-1] * torch.finfo(s.dtype).eps * s[..., :1]
        inverse = torch.where(kept, 1 / torch.where(kept, s, 1), 0)
        map1 = R2 @ (U * inverse.unsqueeze(-2)) @ U.mT @ R2
        map2 = R1 @ (Vh.mT * inverse.unsqueeze(-2)) @ Vh @ R1
        identity = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
        value = _trace(S1.double()) + _trace(S2.double()) - 2 * s.sum(-1)
        return value.clamp(min=0).to(S1.dtype), (identity - map1).to(S1.dtype), (identity - map2).to(S2.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:], *inputs)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        slope1, slope2, S1, S2 = ctx.saved_tensors
        up = upstream.unsqueeze(-1).unsqueeze(-1)
        return first_derivative(slope1 * up, S1, S2), first_derivative(slope2 * up, S1, S2)


def gaussian_kl(m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor) -> Tensor:
    r"""Kullback–Leibler divergence KL(N(m1, v1) ‖ N(m2, v2)) in nats.

    .. math:: \tfrac12 \left( \mathrm{tr}(S_2^{-1} S_1) + (m_2 - m_1)^\top S_2^{-1} (m_2 - m_1) - k
        + \ln \det S_2 - \ln \det S_1 \right)

    Parameters
    ----------
    m1, m2 : Tensor, shape (..., k)
        Means.
    v1, v2 : Tensor, shape (..., k) or (..., k, k)
        Variances, where they have as many axes as their mean; full covariances, where they have one more. Positive
        (definite): a singular Gaussian has no density.

    Returns
    -------
    Tensor, shape (...)

    Raises
    ------
    ValueError
        If shapes do not match, one is diagonal and the other full, or a covariance is not positive definite.
    """
    checks.tensors(m1=m1, v1=v1, m2=m2, v2=v2)
    full = [v.dim() - m.dim() for m, v in ((m1, v1), (m2, v2))]
    if full not in ([0, 0], [1, 1]):
        shapes = [tuple(t.shape) for t in (m1, v1, m2, v2)]
        raise WrongValue(
            "v1 and v2 must both be variances of shape (..., k) or both be covariances of shape (..., k, k), "
            f"got shapes {shapes} for m1, v1, m2, v2"
        )
    axes = "kk" if full[0] else "k"
    check_shapes(m1=(m1, "k"), v1=(v1, axes), m2=(m2, "k"), v2=(v2, axes))
    checks.same_dtype(m1=m1, v1=v1, m2=m2, v2=v2)
    if not full[0]:
        for name, v in (("v1", v1), ("v2", v2)):
            require((v > 0) & v.isfinite(), f"{name} must be positive and finite (variances)")
        return 0.5 * ((v1 + (m2 - m1).square()) / v2 - 1 + v2.log() - v1.log()).sum(-1)
    check_covariance("v1", v1, definite=True)
    check_covariance("v2", v2, definite=True)
    L1, L2 = (torch.linalg.cholesky_ex((S + S.mT) / 2).L for S in (v1, v2))
    spread = torch.linalg.solve_triangular(L2, L1, upper=False).square().sum((-2, -1))
    gap = torch.linalg.solve_triangular(L2, (m2 - m1).unsqueeze(-1), upper=False).square().sum((-2, -1))
    return 0.5 * (spread + gap - m1.shape[-1]) + _log_diagonal(L2) - _log_diagonal(L1)


def mmd(x: Tensor, y: Tensor, bandwidth: float | Tensor | None = None, unbiased: bool = False) -> Tensor:
    r"""Squared maximum mean discrepancy with the kernel :math:`\exp(-\|a-b\|^2 / 2h^2)`, Eq. (3) and (5) of [4]_.

    Parameters
    ----------
    x, y : Tensor, shape (..., n, k) and (..., m, k)
        Two samples.
    bandwidth : float or Tensor of shape (...), optional
        h > 0, in the units of x. By default the median distance between different points of the pooled sample (not
        differentiated; 1 where it is 0).
    unbiased : bool, default False
        Leave out each point's kernel with itself (needs n, m ≥ 2). The unbiased value may be negative; the biased one
        may not.

    Returns
    -------
    Tensor, shape (...)

    Raises
    ------
    ValueError
        If shapes do not match, a number is not finite or too large to be squared, the bandwidth is not positive, or
        there are too few rows for `unbiased`.
    TypeError
        For what is no tensor of floating-point numbers.
    """
    checks.flag("unbiased", unbiased)
    check_shapes(x=(x, "nk"), y=(y, "mk"))
    checks.same_dtype(x=x, y=y)
    if unbiased and min(x.shape[-2], y.shape[-2]) < 2:
        raise WrongValue(f"x and y must have n, m >= 2 rows, got shapes {tuple(x.shape)} and {tuple(y.shape)}")
    if x.shape[:-2] != y.shape[:-2]:
        raise WrongValue(f"x and y must have the same leading axes, got shapes {tuple(x.shape)} and {tuple(y.shape)}")
    most = torch.finfo(x.dtype).max ** 0.45
    for name, t in (("x", x), ("y", y)):
        require(t.abs() <= most, f"{name} must be at most {most:.1g} in size, or its squares exceed {t.dtype}")
    if isinstance(bandwidth, Tensor):
        checks.tensors(bandwidth=bandwidth)
        checks.broadcastable(x=x.shape[:-2], bandwidth=bandwidth.shape)
        require((bandwidth > 0) & bandwidth.isfinite(), f"bandwidth must be positive, got {bandwidth}")
    elif bandwidth is not None:
        checks.number("bandwidth", bandwidth, above=0)  # and its square a number that can be divided by
        checks.number("bandwidth", bandwidth, torch.finfo(x.dtype).tiny ** 0.5, most)
    squared = squared_distances(torch.cat((x, y), -2))
    h = (
        _median_distance(squared.detach())
        if bandwidth is None
        else torch.as_tensor(bandwidth, dtype=x.dtype, device=x.device)
    )
    kernel = torch.exp(squared / (-2 * h.square()).unsqueeze(-1).unsqueeze(-1))
    n = x.shape[-2]
    within = _mean_kernel(kernel[..., :n, :n], unbiased) + _mean_kernel(kernel[..., n:, n:], unbiased)
    return within - 2 * kernel[..., :n, n:].mean((-2, -1))


def squared_distances(x: Tensor) -> Tensor:
    """Squared distances between all rows of (…, n, k), shape (…, n, n), without a tensor of n² k numbers."""
    x = x - x.mean(-2, keepdim=True)
    norms = x.square().sum(-1)
    return (norms.unsqueeze(-1) + norms.unsqueeze(-2) - 2 * x @ x.mT).clamp(min=0)


def _median_distance(squared: Tensor) -> Tensor:
    """Median of the off-diagonal distances of a matrix of squared distances, 1 where it is 0."""
    i, j = torch.triu_indices(squared.shape[-1], squared.shape[-1], 1, device=squared.device)
    median = squared[..., i, j].median(-1).values.sqrt()
    return torch.where(median > 0, median, 1)


def _mean_kernel(kernel: Tensor, unbiased: bool) -> Tensor:
    n = kernel.shape[-1]
    total = kernel.sum((-2, -1))
    return (total - _trace(kernel)) / (n * (n - 1)) if unbiased else total / n**2


LARGEST_PLAN = 3
"""Most members on a side of `transport_plan`: the vertices it looks at are 81 for 3 × 3, and 4096 for 4 × 4."""


def transport_plan(cost: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r"""A cheapest plan of a small transport problem, exactly: :math:`\arg\min_w \langle w, \text{cost}\rangle`.

    A linear programme has its optimum at a vertex; the problem is so small that all of them are looked at, which needs
    no step whose number depends on the data and so works under `vmap`.

    Parameters
    ----------
    cost : Tensor, shape (..., P, Q)
        P, Q ≤ `LARGEST_PLAN`.
    a, b : Tensor, shape (..., P) and (..., Q)
        What leaves each source and reaches each target, the plan's row and column sums: not negative, and of one sum,
        whatever it is. Where the two sums differ by rounding, columns are scaled to the sum of `a`.

    Returns
    -------
    Tensor, shape (..., P, Q)
        Not differentiated: for the optimal value ``(plan * cost).sum()`` the plan is the gradient for the cost. Where
        several plans are optimal, one of them.

    Raises
    ------
    ValueError
        If shapes do not match or exceed `LARGEST_PLAN`, a cost is not finite, weights are negative, not finite or all
        0, or the sums of `a` and `b` differ by more than a part of 1e-4.
    """
    check_shapes(cost=(cost, "PQ"), a=(a, "P"), b=(b, "Q"))
    P, Q = cost.shape[-2:]
    if max(P, Q) > LARGEST_PLAN:
        raise WrongValue(f"cost must have shape (..., P, Q) with P, Q <= {LARGEST_PLAN}, got {tuple(cost.shape)}")
    for name, t in (("a", a), ("b", b)):
        require(t >= 0, f"{name} must not be negative (weights)")
        require(t.sum(-1) > 0, f"{name} must not be 0 everywhere (weights)")
        require(t.sum(-1).isfinite(), f"{name} must have a finite sum (weights)")
    require((a.sum(-1) - b.sum(-1)).abs() <= 1e-4 * a.sum(-1), "a and b must have the same sum")
    a, b = a.detach(), b.detach()
    total, other = (t.sum(-1, keepdim=True).clamp(min=torch.finfo(t.dtype).tiny).double() for t in (a, b))
    a, b = a.double() / total, b.double() / other
    batch = torch.broadcast_shapes(cost.shape[:-2], a.shape[:-1], b.shape[:-1])
    sums = torch.cat((a.expand(*batch, P), b.expand(*batch, Q)), -1)
    plans = (_vertices(P, Q).to(cost.device) @ sums.unsqueeze(-2).unsqueeze(-1)).squeeze(-1)  # (..., V, P Q)
    price = (plans @ cost.detach().double().expand(*batch, P, Q).flatten(-2).unsqueeze(-1)).squeeze(-1)
    best = torch.where((plans > -1e-9).all(-1), price, float("inf")).argmin(-1)
    best = best.unsqueeze(-1).unsqueeze(-1).expand(*batch, 1, P * Q)
    plan = plans.gather(-2, best).squeeze(-2).clamp(min=0).unflatten(-1, (P, Q))
    return (plan * total.unsqueeze(-1)).to(cost.dtype)


@functools.cache
def _vertices(P: int, Q: int) -> Tensor:
    """Matrices that make of (a, b) the basic solutions of a P × Q transport problem, shape (V, P Q, P + Q).

    A basis is a spanning tree of the bipartite graph of sources and targets: P + Q − 1 cells that determine the rest.
    """
    sources = torch.eye(P, dtype=torch.float64).repeat_interleave(Q, 1)
    targets = torch.eye(Q, dtype=torch.float64).repeat(1, P)
    cells = torch.cat((sources, targets)).mT  # (P Q, P + Q)
    bases = torch.tensor(list(itertools.combinations(range(P * Q), P + Q - 1)), dtype=torch.int64)
    columns = cells[bases].mT
    trees = torch.linalg.matrix_rank(columns) == P + Q - 1
    maps = torch.zeros(int(trees.sum()), P * Q, P + Q, dtype=torch.float64)
    return maps.scatter_(1, bases[trees].unsqueeze(-1).expand(-1, -1, P + Q), torch.linalg.pinv(columns[trees]))


def cka(x: Tensor, y: Tensor) -> Tensor:
    r"""Linear centred kernel alignment of two representations of the same samples, Eq. (4) of [5]_.

    .. math:: \|X^\top Y\|_F^2 \,/\, (\|X^\top X\|_F \, \|Y^\top Y\|_F)

    with the columns of X and Y centred. It does not change under rotation and scaling of either.

    Parameters
    ----------
    x, y : Tensor, shape (..., n, k) and (..., n, l)
        Row i of both belongs to the same sample.

    Returns
    -------
    Tensor, shape (...)
        In [0, 1]; 0, with zero gradient, where a representation is constant: where centring leaves of it no more than
        rounding.

    Raises
    ------
    ValueError
        If shapes do not match, or a number is not finite.
    """
    check_shapes(x=(x, "nk"), y=(y, "nl"))
    checks.same_dtype(x=x, y=y)
    rounding = 32 * torch.finfo(x.dtype).eps
    least = [rounding**2 * t.detach().square().sum((-2, -1)) for t in (x, y)]
    x, y = (t - t.mean(-2, keepdim=True) for t in (x, y))
    sizes = [t.detach().square().sum((-2, -1)) for t in (x, y)]
    varies = (sizes[0] > least[0]) & (sizes[1] > least[1])
    scale = (x.mT @ x).square().sum((-2, -1)) * (y.mT @ y).square().sum((-2, -1))
    return torch.where(varies, (x.mT @ y).square().sum((-2, -1)) / torch.where(varies, scale, 1).sqrt(), 0)


def principal_angle(A: Tensor, B: Tensor) -> Tensor:
    r"""Distance between subspaces, :math:`\|\hat A_\perp^\top \hat B\|_2`, the sine of the largest angle ([3]_, [6]_).

    Parameters
    ----------
    A, B : Tensor, shape (..., d, r)
        Matrices of full column rank, r ≤ d; their columns span the subspaces and need not be orthonormal.

    Returns
    -------
    Tensor, shape (...)
        In [0, 1]; 0 for equal subspaces. Accurate near 0, where an arc cosine would not be.

    Raises
    ------
    ValueError
        If shapes do not match, or the columns of a matrix are linearly dependent.
    """
    check_shapes(A=(A, "dr"), B=(B, "dr"))
    checks.same_dtype(A=A, B=B)
    if A.shape[-1] > A.shape[-2]:
        raise WrongValue(f"A and B must both have shape (..., d, r), r <= d, got {tuple(A.shape)} and {tuple(B.shape)}")
    bases = []
    for name, M in (("A", A), ("B", B)):
        Q, R = torch.linalg.qr(M)
        sizes = torch.linalg.svdvals(R.detach())
        tolerance = M.shape[-2] * torch.finfo(M.dtype).eps
        require(sizes[..., -1] > tolerance * sizes[..., 0], f"{name} must have linearly independent columns")
        bases.append(Q)
    Qa, Qb = bases
    return torch.linalg.matrix_norm(Qb - Qa @ (Qa.mT @ Qb), ord=2)


def _trace(S: Tensor) -> Tensor:
    return S.diagonal(dim1=-2, dim2=-1).sum(-1)


def _log_diagonal(L: Tensor) -> Tensor:
    return L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
