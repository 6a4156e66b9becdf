"""The anchor term of FLIC: how far the classes of a batch are from their anchors.

`class_wasserstein` is called at every training step and is written for speed (the tests have its slow, obvious twin).
The others stand in its place: against samples of the anchors (`class_wasserstein_sampled`), without the
bias of small batches (`class_wasserstein_debiased`), by another distance (`class_mmd`, `class_mmd_sampled`), or
between mixtures (`class_mixture_wasserstein`).

All are written for one client and work under `torch.func.vmap`; gradients are finite everywhere, also where the
mathematics has none (the docstring says which value is taken there). Padded rows, those of weight 0, change neither
value nor gradient. Nothing is checked here: the engine sees to shapes and labels once, not at every step.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. Transactions on Machine Learning Research, 2024.
.. [2] A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schölkopf, A. Smola. A kernel two-sample test. Journal of Machine
   Learning Research, 13, 2012.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from hetfl_core.distances import expected_root_trace, first_derivative, squared_distances, transport_plan
from hetfl_core.tape import whole

BLOCK_ROWS = 64
"""From this many rows per client on, a CPU decomposes class by class: small matrices cost less than one large one."""

FLAT = torch.finfo(torch.float32).eps ** 2
"""A direction in which a cloud has no more than this share, times its rows, of its largest variance counts as flat.

The eigenvalues of a Gram matrix in float64 are known to 2⁻⁵² of the largest, so that directions nearer to that are
turned by rounding alone: with a threshold there, runs in float64 came to differ by 0.06 in their logits, instead of
1e-5, by the order of their sums. In float32 the rounding of z has the last word (`_polar`) and is never below this.
"""


def class_wasserstein(
    z: Tensor,
    y: Tensor,
    weight: Tensor,
    means: Tensor,
    cholesky: Tensor | None = None,
    variance: float = 1.0,
) -> Tensor:
    r"""Sum over the classes of a batch of the squared W2 distance between class and anchor, Eq. (3) of [1]_.

    .. math:: \sum_{c \in y} \| v_c - m_c \|^2 + \mathfrak{B}^2(L_c L_c^\top, S_c)

    with :math:`m_c` and :math:`S_c` the empirical mean and covariance (denominator :math:`\max(n_c - 1, 1)`) of the
    rows of class c. It is written for one client; lift it over a stack with `torch.func.vmap`, with ``in_dims=None``
    for what all clients share.

    The Bures part needs the nuclear norm of :math:`A_c L_c`, with :math:`A_c` the centred rows of the class over
    :math:`\sqrt{\max(n_c - 1, 1)}`. The classes share out the rows. So the Gram matrix of all rows, zero where two
    rows differ in class, has the squared singular values of all classes at once. Its eigenvectors give the polar
    factor P of each :math:`A_c L_c`, which is the gradient of the nuclear norm. That decomposition is done in float64
    and is not differentiated through, so the centred rows' inevitable zero singular value does no harm.

    Parameters
    ----------
    z : Tensor, shape (n, k)
        Embedded batch of one client.
    y : Tensor of int, shape (n,)
        Labels in 0 … C−1, also of padded rows (any).
    weight : Tensor, shape (n,)
        1 for a true row, 0 for a padded one. Not differentiated.
    means : Tensor, shape (C, k)
        Anchor means :math:`v_c`.
    cholesky : Tensor, shape (C, k, k), optional
        Factors :math:`L_c` of the anchor covariances (lower triangular in [1]_; any square factor will do).
    variance : float, default 1
        Without `cholesky`, every anchor has covariance ``variance * I``.

    Returns
    -------
    Tensor, shape ()
        0 for a batch of padded rows only.

    Notes
    -----
    Padded rows change neither value nor gradient; classes that are absent contribute nothing. Where the nuclear norm
    has no derivative (one row, equal rows, rows in a subspace) P is the polar factor of least norm, zero on the null
    directions: a class of one row feels only the pull of its anchor's mean. A direction counts as null when its
    squared singular value is below ``n 2⁻⁴⁶ λ_max`` (`FLAT`), or below what the rounding of z can make up.
    NaN in z makes this client's value and gradient NaN and leaves the other clients of the stack alone.
    There are first derivatives only; asking for a second one is an error.
    """
    if cholesky is None:
        return _IsotropicTerm.apply(z, y, weight, means, variance**0.5)[0]
    member, counts = _membership(y, weight, means.shape[0], z.dtype)
    mean, centred = _centred_rows(z, member, counts)
    by_class = (member.unsqueeze(-1) * centred.unsqueeze(-2)).flatten(-2)
    size = cholesky.square().sum((-2, -1))
    noise = _size(z, weight) * size.detach().amax()
    nuclear = _NuclearNorm.apply(by_class @ cholesky.flatten(0, 1), y, weight, noise)[0]
    location = ((means - mean).square().sum(-1) + size) @ counts.clamp(max=1)
    return location + centred.square().sum() - 2 * nuclear


def class_wasserstein_sampled(z: Tensor, samples: Tensor, y: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    r"""Sum over the classes of a batch of the squared W2 distance between class and samples of its anchor.

    Both enter as empirical Gaussians. This is the anchor term of the code published with [1]_: a class with
    :math:`n_c` rows is compared with :math:`n_c` fresh samples of its anchor. With the centred rows :math:`A_c` of the
    class and :math:`B_c` of its samples, the Bures part is
    :math:`\|A_c\|_F^2 + \|B_c\|_F^2 - 2 \|A_c B_c^\top\|_*`.

    Parameters
    ----------
    z, samples : Tensor, shape (n, k)
        Embedded rows of one client; row i of `samples` is drawn from the anchor of class ``y[i]``.
    y, weight : Tensor, shape (n,)
        As for `class_wasserstein`.
    n_classes : int
        C.

    Returns
    -------
    Tensor, shape ()
    """
    member, counts = _membership(y, weight, n_classes, z.dtype)
    mean, centred = _centred_rows(z, member, counts)
    anchor_mean, anchor_centred = _centred_rows(samples, member, counts)
    cross = (centred @ anchor_centred.mT) * (member @ member.mT)
    nuclear = _NuclearNorm.apply(cross, y, weight, _size(z, weight) * _size(samples, weight))[0]
    location = (mean - anchor_mean).square().sum()
    return location + centred.square().sum() + anchor_centred.square().sum() - 2 * nuclear


def class_wasserstein_debiased(z: Tensor, y: Tensor, weight: Tensor, means: Tensor, variance: float = 1.0) -> Tensor:
    r"""Sum over the classes as `class_wasserstein`, less what the small number of rows adds to it on average.

    With :math:`n_c` rows the mean :math:`m_c` is off by :math:`\operatorname{tr} S_c / n_c` in square, and the roots
    of the eigenvalues of :math:`S_c` are too small together: for rows of a round cloud N(m, a² I) by the factor
    :math:`R(n_c, k) / k` with R of `hetfl_core.distances.expected_root_trace`. Both are put right:

    .. math:: \sum_{c \in y} \| v_c - m_c \|^2 - \tfrac{1}{n_c} \operatorname{tr} S_c + k s^2
        + \operatorname{tr} S_c - 2 s\, \tfrac{k}{R(n_c, k)} \operatorname{tr} S_c^{1/2}

    has the mean :math:`\sum_c \|v_c - m\|^2 + k (s - a)^2`, whatever a, and is smallest for a = s. For clouds that are
    not round the first correction still holds and the second goes too far. A single row tells nothing about a spread:
    its term stays :math:`\|v_c - z\|^2 + k s^2`.

    Parameters
    ----------
    z, y, weight, means, variance
        As for `class_wasserstein`; :math:`s^2` is `variance`.

    Returns
    -------
    Tensor, shape ()
        May be negative.
    """
    n, k = z.shape[-2:]
    member, counts = _membership(y, weight, means.shape[0], z.dtype)
    mean, centred = _centred_rows(z, member, counts)
    factors = [1.0, 1.0, *(k / expected_root_trace(rows, k) for rows in range(2, n + 1))]
    stretch = z.new_tensor(factors)[counts.long()]
    noise = _size(z, weight) * stretch.square().amax()
    nuclear = _NuclearNorm.apply((member @ stretch).unsqueeze(-1) * centred, y, weight, noise)[0]
    location = ((means - mean).square().sum(-1) + k * variance) @ counts.clamp(max=1)
    less_one = 1 - member @ (1 / counts.clamp(min=1))
    return location + (less_one.unsqueeze(-1) * centred.square()).sum() - 2 * variance**0.5 * nuclear


def _membership(y: Tensor, weight: Tensor, n_classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Which row is of which class (n, C), padded rows of none, and the rows of each class (C,)."""
    member = torch.eye(n_classes, dtype=dtype, device=y.device)[y] * weight.to(dtype).unsqueeze(-1)
    return member, member.sum(-2)


def _centred_rows(z: Tensor, member: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Class means (C, k), and rows (n, k) less their class's mean, over the root of its degrees of freedom."""
    mean = member.mT @ z / counts.clamp(min=1).unsqueeze(-1)
    scale = member @ (counts - 1).clamp(min=1).rsqrt()
    return mean, (z - member @ mean) * scale.unsqueeze(-1)


def _size(z: Tensor, weight: Tensor) -> Tensor:
    """Squared Frobenius norm of the true rows, not differentiated."""
    return (z.detach() * weight.unsqueeze(-1)).square().sum((-2, -1))


@whole
def _polar(m: Tensor, y: Tensor, weight: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the nuclear norms of the classes' rows of each client, and the polar factors.

    Parameters
    ----------
    m : Tensor, shape (b, n, k)
        Centred rows; padded rows are zero.
    y, weight : Tensor, shape (b, n)
        Labels, and 1 or 0 for true and padded rows.
    noise : Tensor, shape (b,)
        Squared size of the numbers that m was computed from, in whose rounding m may drown.

    Returns
    -------
    nuclear : Tensor of float64, shape (b,)
    polar : Tensor, shape (b, n, k)
    """
    floor = (m.shape[-2] * torch.finfo(m.dtype).eps ** 2) * noise.double()
    if m.shape[-2] >= BLOCK_ROWS and m.device.type == "cpu":
        return _polar_by_class(m, y, weight, floor)
    rows = m.double()
    gram = (rows @ rows.mT).mul_(y.unsqueeze(-1) == y.unsqueeze(-2))
    nuclear, inverse = _inverse_root(gram, floor)
    return nuclear, inverse.to(m.dtype) @ m


def _polar_by_class(m: Tensor, y: Tensor, weight: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Nuclear norms and polar factors as `_polar` gives them, by a small decomposition of each class of a client."""
    b, n, k = m.shape
    outside = b * (int(y.max()) + 1)
    client = torch.arange(b, device=m.device).unsqueeze(-1)
    label = torch.where(weight > 0, client * (outside // b) + y, outside).flatten()
    order = label.argsort(stable=True)
    labels, counts = label[order].unique_consecutive(return_counts=True)
    start, owner = counts.cumsum(0) - counts, labels // (outside // b)
    size = torch.where((counts > 1) & (labels < outside), (counts + 7) // 8 * 8, 0)
    nuclear, flat, polar = floor.new_zeros(b), m.reshape(b * n, k), m.new_zeros(b * n, k)
    for width in size.unique().tolist():
        if width:
            some = (size == width).nonzero().squeeze(-1)
            slot = torch.arange(width, device=m.device)
            taken = slot < counts[some].unsqueeze(-1)
            rows = order[torch.where(taken, start[some].unsqueeze(-1) + slot, 0)]
            norm, factor = _polar_of_blocks(torch.where(taken.unsqueeze(-1), flat[rows], 0), floor[owner[some]])
            nuclear.index_add_(0, owner[some], norm)
            polar[rows[taken]] = factor[taken]
    return nuclear, polar.view(b, n, k)


def _polar_of_blocks(blocks: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Nuclear norms (g,) and polar factors (g, r, k) of matrices (g, r, k), by the Gram matrix of the smaller side."""
    rows = blocks.double()
    if rows.shape[-2] <= rows.shape[-1]:
        norm, inverse = _inverse_root(rows @ rows.mT, floor)
        return norm, inverse.to(blocks.dtype) @ blocks
    norm, inverse = _inverse_root(rows.mT @ rows, floor)
    return norm, blocks @ inverse.to(blocks.dtype)


def _inverse_root(gram: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Trace of the square root, and pseudo-inverse square root, of positive semi-definite matrices (…, n, n)."""
    eigenvalues, vectors = torch.linalg.eigh(gram.nan_to_num_(0.0, 0.0, 0.0))
    cut = (gram.shape[-1] * FLAT) * eigenvalues[..., -1]
    null = eigenvalues <= torch.maximum(cut, floor).unsqueeze(-1)
    inverse = eigenvalues.rsqrt().masked_fill_(null, 0.0)
    nuclear = (eigenvalues * inverse).sum(-1)
    return nuclear, (vectors * inverse.unsqueeze(-2)) @ vectors.mT


def _lift(info: Any, in_dims: tuple[int | None, ...], values: tuple[Any, ...], axes: tuple[int, ...]) -> list[Tensor]:
    """Arguments with the axis of `vmap` in front of their other batch axes; what lacks it is expanded.

    `axes` counts the axes of each argument that are not batch axes.
    """
    depth = max(v.dim() - (d is not None) - a for v, d, a in zip(values, in_dims, axes))
    lifted = []
    for v, d, a in zip(values, in_dims, axes):
        v = v.unsqueeze(0).expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)
        missing = depth - (v.dim() - 1 - a)
        lifted.append(v.reshape(v.shape[0], *[1] * missing, *v.shape[1:]) if missing else v)
    return lifted


class _IsotropicTerm(torch.autograd.Function):
    """`class_wasserstein` with covariance ``deviation**2 I``: value and gradient in one pass over a whole stack.

    The gradients are outputs that are not themselves differentiable: that is how a function that is used under
    `torch.func` hands intermediate results to its backward pass.
    """

    @staticmethod
    def forward(z: Tensor, y: Tensor, weight: Tensor, means: Tensor, deviation: float) -> tuple[Tensor, Tensor, Tensor]:
        batch, (n, k) = z.shape[:-2], z.shape[-2:]
        anchors = means[y] if means.dim() == 2 else _of_label(means, y)
        flat = z.reshape(-1, n, k), y.reshape(-1, n), weight.reshape(-1, n).to(z.dtype), anchors.reshape(-1, n, k)
        value, slope, pull = _isotropic(*flat, deviation)
        return value.reshape(batch), slope.reshape(z.shape), pull.reshape(z.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, slope, pull = output
        ctx.mark_non_differentiable(slope, pull)
        ctx.set_materialize_grads(False)  # no zeros for the outputs that have no gradient
        ctx.save_for_backward(slope, pull, *inputs[:2], inputs[3])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if upstream is None:
            return (None,) * 5
        slope, pull, z, y, means = ctx.saved_tensors
        up = upstream.unsqueeze(-1).unsqueeze(-1)
        of_z, _, _, of_means, _ = ctx.needs_input_grad
        to_z = first_derivative(slope * up, z, means) if of_z else None
        to_means = first_derivative(_to_anchors(pull * up, y, means.shape), z, means) if of_means else None
        return to_z, None, None, to_means, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        z, y, weight, means = _lift(info, in_dims[:4], inputs[:4], (2, 1, 1, 2))
        shared = in_dims[3] is None  # anchors that all clients share are not replicated
        return _IsotropicTerm.apply(z, y, weight, inputs[3] if shared else means, inputs[4]), (0, 0, 0)


def _isotropic(
    z: Tensor, y: Tensor, weight: Tensor, anchors: Tensor, deviation: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Value (b,), its gradient for z (b, n, k), and minus each row's share of the gradient for its anchor's mean."""
    peers = (y.unsqueeze(-1) == y.unsqueeze(-2)) * (weight.unsqueeze(-1) * weight.unsqueeze(-2))
    size = peers.sum(-1).clamp_(min=1)
    share = weight / size
    scale = ((size - 1).clamp_(min=1).rsqrt_() * weight).unsqueeze(-1)
    mean = (peers / size.unsqueeze(-1)) @ z
    centred = (z - mean).mul_(scale)
    noise = torch.linalg.vector_norm(z * weight.unsqueeze(-1), dim=(-2, -1)).square_()
    nuclear, polar = _polar(centred, y, weight, noise)
    away = mean.sub_(anchors)
    location = (away.square().sum(-1) * share).sum(-1)
    spread = torch.linalg.vector_norm(centred, dim=(-2, -1)).square_() - 2 * deviation * nuclear.to(z.dtype)
    value = location + share.sum(-1) * (z.shape[-1] * deviation**2) + spread
    pull = away.mul_(2 * share.unsqueeze(-1))
    return value, torch.addcmul(pull, centred.sub_(polar, alpha=deviation), 2 * scale), pull


def _of_label(means: Tensor, y: Tensor) -> Tensor:
    """Row y of means, for each batch element: (…, C, k), (…, n) to (…, n, k)."""
    means = means.expand(*y.shape[:-1], *means.shape[-2:])
    return means.gather(-2, y.long().unsqueeze(-1).expand(*y.shape, means.shape[-1]))


def _to_anchors(pull: Tensor, y: Tensor, shape: torch.Size) -> Tensor:
    """Sum over the rows of each class, (…, n, k) to (…, C, k), and over the clients that share the anchors."""
    member = torch.eye(shape[-2], dtype=pull.dtype, device=pull.device)[y]
    total = -(member.mT @ pull)
    for axis in range(total.dim() - len(shape)):
        total = total.sum(axis, keepdim=True)
    total = total.reshape(total.shape[total.dim() - len(shape) :])
    shared = [axis for axis, length in enumerate(shape) if length == 1 and total.shape[axis] != 1]
    return total.sum(shared, keepdim=True) if shared else total


class _NuclearNorm(torch.autograd.Function):
    """Sum of the nuclear norms of the classes' rows; its gradient is their polar factor."""

    @staticmethod
    def forward(m: Tensor, y: Tensor, weight: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        batch, (n, k) = m.shape[:-2], m.shape[-2:]
        nuclear, polar = _polar(m.reshape(-1, n, k), y.reshape(-1, n), weight.reshape(-1, n), noise.reshape(-1))
        return nuclear.to(m.dtype).reshape(batch), polar.reshape(m.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], inputs[0])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if upstream is None:
            return (None,) * 4
        polar, m = ctx.saved_tensors
        return first_derivative(polar * upstream.unsqueeze(-1).unsqueeze(-1), m), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _NuclearNorm.apply(*_lift(info, in_dims, inputs, (2, 1, 1, 0))), (0, 0)


for _function in (_IsotropicTerm, _NuclearNorm):
    # torch asks for the signature of `forward` at each call; a remembered one saves 0.2-0.5 ms of each training step.
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[union-attr]


def class_mmd(
    z: Tensor,
    y: Tensor,
    weight: Tensor,
    means: Tensor,
    variance: float = 1.0,
    bandwidth: float | None = None,
) -> Tensor:
    r"""Sum over the classes of a batch of the squared MMD between its rows and its anchor :math:`N(v_c, s^2 I)`.

    The anchor enters by closed forms. With the kernel :math:`\exp(-\|a-b\|^2 / 2h^2)` and two independent draws
    :math:`Z, Z' \sim N(v, s^2 I)` in :math:`\mathbb{R}^k`,

    .. math::
        \mathbb{E}\,\kappa(z, Z) = \left(\tfrac{h^2}{h^2 + s^2}\right)^{k/2} e^{-\|z - v\|^2 / 2(h^2 + s^2)}, \qquad
        \mathbb{E}\,\kappa(Z, Z') = \left(\tfrac{h^2}{h^2 + 2 s^2}\right)^{k/2}.

    Parameters
    ----------
    z, y, weight, means, variance
        As for `class_wasserstein`; :math:`s^2` is `variance`.
    bandwidth : float, optional
        h. By default, for each class, the root mean squared distance between a row and a sample of the anchor (not
        differentiated), so that the gradient does not vanish while the two are far apart.

    Returns
    -------
    Tensor, shape ()
        The rows' own part is biased (each row is compared with itself too), as in Eq. (5) of [2]_, and never negative.

    See Also
    --------
    hetfl_core.distances.mmd : the same between two samples.
    """
    member, counts = _membership(y, weight, means.shape[0], z.dtype)
    k, share = means.shape[-1], member @ (1 / counts.clamp(min=1))
    away = (z - means[y]).square().sum(-1)
    if bandwidth is None:
        h2 = member.mT @ (share * away.detach()) + k * variance
    else:
        h2 = torch.full_like(counts, bandwidth**2)
    of_row = member @ h2 + (1 - weight)
    squared = squared_distances(z * weight.unsqueeze(-1))
    kernel = torch.exp(-squared / (2 * of_row.unsqueeze(-1))) * (member @ member.mT)
    cross = _shrink(of_row, variance, k) * torch.exp(-away / (2 * (of_row + variance)))
    anchor = _shrink(h2, 2 * variance, k) @ counts.clamp(max=1)
    return share @ kernel @ share - 2 * share @ cross + anchor


def class_mmd_sampled(
    z: Tensor, samples: Tensor, y: Tensor, weight: Tensor, n_classes: int, gammas: tuple[float, ...]
) -> Tensor:
    r"""Sum over the classes of a batch of the squared MMD between its rows and samples of its anchor.

    The kernel is a sum of Gaussians, :math:`\kappa(a, b) = \sum_\gamma e^{-\gamma \|a - b\|^2}`, so that the widest
    pulls where the others are flat. With [1]_ such a term was published.

    Parameters
    ----------
    z, samples, y, weight, n_classes
        As for `class_wasserstein_sampled`.
    gammas : tuple of float
        The γ of the kernels, in inverse squares of the latent space's unit.

    Returns
    -------
    Tensor, shape ()
        Each row is compared with itself too, and each sample, as in Eq. (5) of [2]_: never negative, and at most
        2 · len(gammas) a class.
    """
    n = z.shape[-2]
    member, counts = _membership(y, weight, n_classes, z.dtype)
    share = member @ (1 / counts.clamp(min=1))
    squared = squared_distances(torch.cat([z, samples], -2) * weight.repeat(2).unsqueeze(-1))
    kernel = torch.stack([torch.exp(-gamma * squared) for gamma in gammas]).sum(0)
    same = member @ member.mT
    own, cross, anchor = kernel[:n, :n], kernel[:n, n:], kernel[n:, n:]
    return share @ ((own + anchor - 2 * cross) * same) @ share


def _shrink(h2: Tensor, variance: float, k: int) -> Tensor:
    """Factor by which a Gaussian kernel's mean shrinks, (h² / (h² + variance))^{k/2}."""
    return torch.exp(-k / 2 * torch.log1p(variance / h2))


LLOYD = 5
"""Steps of k-means for the clusters of `class_mixture_wasserstein`."""


def class_mixture_wasserstein(z: Tensor, y: Tensor, weight: Tensor, means: Tensor, variance: float = 1.0) -> Tensor:
    r"""Sum over the classes of a batch of the squared MW2 distance between class and anchor.

    The anchor of class c is the mixture of the P Gaussians :math:`N(v_{cp}, s^2 I)` with equal weights. The rows of
    the class are summarised as a mixture too: P clusters, of k-means (farthest-point start, `LLOYD`
    steps), each with its share of the rows, its mean and its covariance (denominator
    :math:`\max(n - 1, 1)`).

    Parameters
    ----------
    z, y, weight, variance
        As for `class_wasserstein`.
    means : Tensor, shape (C, P, k)
        Means of the components, P ≤ 3.

    Returns
    -------
    Tensor, shape ()
        With P = 1 it is `class_wasserstein`.

    Notes
    -----
    Clusters and transport plan are not differentiated: where they are unique, the gradient is that of the distance.
    As all components of an anchor have one covariance, the Bures part does not depend on the plan, so that one nuclear
    norm over all clusters of all classes will do.
    """
    C, P, k = means.shape
    cluster = _clusters(z.detach(), y, weight, C, P)
    group = y * P + cluster
    member, counts = _membership(group, weight, C * P, z.dtype)
    mean, centred = _centred_rows(z, member, counts)
    in_class = counts.reshape(C, P).sum(-1, keepdim=True)
    present = in_class.squeeze(-1).clamp(max=1)
    share = torch.where(in_class > 0, counts.reshape(C, P) / in_class.clamp(min=1), 1 / P)
    cost = (means.unsqueeze(-2) - mean.reshape(C, 1, P, k)).square().sum(-1)
    plan = transport_plan(cost, torch.full_like(share, 1 / P), share)
    location = (plan * cost).sum((-2, -1)) @ present
    part = (member @ share.flatten()).unsqueeze(-1)
    nuclear = _NuclearNorm.apply(part * centred, group, weight, _size(z, weight))[0]
    spread = (part * centred.square()).sum() + k * variance * present.sum() - 2 * variance**0.5 * nuclear
    return location + spread


def _clusters(z: Tensor, y: Tensor, weight: Tensor, n_classes: int, clusters: int) -> Tensor:
    """Which of the clusters of its class each row of (n, k) is in, by k-means within the classes; shape (n,)."""
    member, counts = _membership(y, weight, n_classes, z.dtype)
    centre = (member.mT @ z / counts.clamp(min=1).unsqueeze(-1)).unsqueeze(-2)  # (C, 1, k)
    centres: list[Tensor] = []
    for _ in range(clusters):  # the row that is farthest from the centres so far, at first from the class's mean
        gap = _gaps(z, torch.cat(centres, -2) if centres else centre, y).amin(-1)
        farthest = torch.where(member > 0, gap.unsqueeze(-1), -1).argmax(-2)
        centres.append(z[farthest].unsqueeze(-2))
    found = torch.cat(centres, -2)
    for _ in range(LLOYD):
        chosen = torch.eye(clusters, dtype=z.dtype, device=z.device)[_gaps(z, found, y).argmin(-1)]
        weights = member.mT.unsqueeze(-2) * chosen.mT  # (C, P, n)
        size = weights.sum(-1, keepdim=True)
        found = torch.where(size > 0, weights @ z / size.clamp(min=1), found)
    return _gaps(z, found, y).argmin(-1)


def _gaps(z: Tensor, centres: Tensor, y: Tensor) -> Tensor:
    """Squared distances of rows (n, k) to the centres (C, P, k) of their own classes, shape (n, P)."""
    return (z.unsqueeze(-2) - centres[y]).square().sum(-1)
