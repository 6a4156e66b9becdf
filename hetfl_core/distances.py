"""Distances between distributions and representations, and averages of Gaussians.

Three rooms: the anchor term of FLIC, which is called at every training step and is written for speed
(`class_wasserstein`); distances that a reader may call on anything (`bures_wasserstein`, `gaussian_kl`, `mmd`,
`cka`, `principal_angle`), which check what they are given; and averages that a server takes
(`gaussian_barycentre`, `average_anchors`, `product_of_experts`).

Every function takes and returns torch tensors, accepts leading batch axes unless it says otherwise, works under
`torch.func.vmap`, and gives finite first derivatives, also where the mathematics has none (the docstring says which
value is taken there). Under `vmap` the checks that would have to look at numbers are skipped; shapes are always checked.

References
----------
.. [1] M. Gelbrich. On a formula for the L2 Wasserstein metric between measures on Euclidean and Hilbert spaces.
   Mathematische Nachrichten, 147, 1990.
.. [2] R. Bhatia, T. Jain, Y. Lim. On the Bures-Wasserstein distance between positive definite matrices.
   Expositiones Mathematicae, 37, 2019.
.. [3] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. Transactions on Machine Learning Research, 2024.
.. [4] P. C. Álvarez-Esteban, E. del Barrio, J. A. Cuesta-Albertos, C. Matrán. A fixed-point approach to barycenters
   in Wasserstein space. Journal of Mathematical Analysis and Applications, 441, 2016.
.. [5] A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schölkopf, A. Smola. A kernel two-sample test. Journal of Machine
   Learning Research, 13, 2012.
.. [6] S. Kornblith, M. Norouzi, H. Lee, G. Hinton. Similarity of neural network representations revisited. ICML, 2019.
.. [7] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting shared representations for personalized federated
   learning. ICML, 2021.
.. [8] G. E. Hinton. Training products of experts by minimizing contrastive divergence. Neural Computation, 14, 2002.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor

BLOCK_ROWS = 64
"""From this many rows a client on, the CPU decomposes class by class: several small matrices cost less than a large one."""


# ---------------------------------------------------------------------------------------------------------------------
# The anchor term
# ---------------------------------------------------------------------------------------------------------------------


def class_wasserstein(
    z: Tensor,
    y: Tensor,
    weight: Tensor,
    means: Tensor,
    cholesky: Tensor | None = None,
    variance: float = 1.0,
) -> Tensor:
    """Sum over the classes of a batch of the squared W2 distance between class and anchor, Eq. (3) of [3]_.

    .. math:: \\sum_{c \\in y} \\| v_c - m_c \\|^2 + \\mathfrak{B}^2(L_c L_c^\\top, S_c)

    with :math:`m_c` and :math:`S_c` the empirical mean and covariance (denominator :math:`\\max(n_c - 1, 1)`) of the
    rows of class c. It is written for one client; lift it over a stack with `torch.func.vmap`, with ``in_dims=None``
    for what all clients share.

    The Bures part needs the nuclear norm of :math:`A_c L_c`, with :math:`A_c` the centred rows of the class over
    :math:`\\sqrt{\\max(n_c - 1, 1)}`. As the classes share out the rows, the Gram matrix of all rows, zero where two
    rows differ in class, holds the squared singular values of all classes at once; its eigenvectors give the polar
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
        Factors :math:`L_c` of the anchor covariances (lower triangular in [3]_; any square factor will do).
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
    squared singular value is below ``n eps λ_max`` (eps of float64), or below what rounding of z in its own precision can make up.
    NaN in z makes this client's value and gradient NaN and leaves the other clients of the stack alone.
    First derivatives only: differentiating twice is an error, or silently misses terms under nested `torch.func.grad`.
    """
    if cholesky is None:
        return _IsotropicTerm.apply(z, y, weight, means, variance**0.5)[0]
    return _factored_term(z, y, weight, means, cholesky)


def _factored_term(z: Tensor, y: Tensor, weight: Tensor, means: Tensor, cholesky: Tensor) -> Tensor:
    """`class_wasserstein` with covariances: plain operations around the nuclear norm."""
    member = torch.eye(means.shape[0], dtype=z.dtype, device=z.device)[y] * weight.unsqueeze(-1)
    counts = member.sum(0)
    present = counts.clamp(max=1)
    mean = member.mT @ z / counts.clamp(min=1).unsqueeze(-1)
    centred = (z * weight.unsqueeze(-1) - member @ mean) * (member @ (counts - 1).clamp(min=1).rsqrt()).unsqueeze(-1)
    by_class = (member.unsqueeze(-1) * centred.unsqueeze(-2)).flatten(-2)
    size = cholesky.square().sum((-2, -1))
    noise = (z.detach() * weight.unsqueeze(-1)).square().sum() * size.detach().amax()
    nuclear = _NuclearNorm.apply(by_class @ cholesky.flatten(0, 1), y, weight, noise)[0]
    location = ((means - mean).square().sum(-1) + size) @ present
    return location + centred.square().sum() - 2 * nuclear


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
    """As `_polar`, one small decomposition for each class of each client, those of about one size together."""
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
            norm, factor = _polar_of_blocks(flat[rows] * taken.unsqueeze(-1), floor[owner[some]])
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
    cut = (gram.shape[-1] * torch.finfo(gram.dtype).eps) * eigenvalues[..., -1]
    null = eigenvalues <= torch.maximum(cut, floor).unsqueeze(-1)
    inverse = eigenvalues.rsqrt().masked_fill_(null, 0.0)
    nuclear = (eigenvalues * inverse).sum(-1)
    return nuclear, (vectors * inverse.unsqueeze(-2)) @ vectors.mT


def _lift(info: Any, in_dims: tuple[int | None, ...], values: tuple[Any, ...], trailing: tuple[int, ...]) -> list[Tensor]:
    """Arguments of a batched function with the axis of `vmap` in front of their other batch axes.

    `trailing` counts the axes of each that are not batch axes. What is not lifted is expanded, except the last
    argument, which may be shared by all clients.
    """
    lifted = []
    depth = max(v.dim() - (d is not None) - t for v, d, t in zip(values, in_dims, trailing))
    for v, d, t in zip(values, in_dims, trailing):
        if d is None and v is values[-1]:
            lifted.append(v)
            continue
        v = v.unsqueeze(0).expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)
        missing = depth - (v.dim() - 1 - t)
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
        outputs = _isotropic(
            z.reshape(-1, n, k),
            y.reshape(-1, n),
            weight.reshape(-1, n).to(z.dtype),
            anchors.reshape(-1, n, k),
            deviation,
        )
        value, slope, pull = outputs
        return value.reshape(batch), slope.reshape(z.shape), pull.reshape(z.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, slope, pull = output
        ctx.mark_non_differentiable(slope, pull)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(slope, pull, inputs[1])
        ctx.shape = inputs[3].shape

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        slope, pull, y = ctx.saved_tensors
        up = upstream.unsqueeze(-1).unsqueeze(-1)
        to_means = _to_anchors(pull * up, y, ctx.shape) if ctx.needs_input_grad[3] else None
        return slope * up if ctx.needs_input_grad[0] else None, None, None, to_means, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        lifted = _lift(info, in_dims[:4], inputs[:4], (2, 1, 1, 2))
        return _IsotropicTerm.apply(*lifted, inputs[4]), (0, 0, 0)


def _isotropic(z: Tensor, y: Tensor, weight: Tensor, anchors: Tensor, deviation: float) -> tuple[Tensor, Tensor, Tensor]:
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
    return means.gather(-2, y.unsqueeze(-1).expand(*y.shape, means.shape[-1]))


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
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: None) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * upstream.unsqueeze(-1).unsqueeze(-1), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        m, y, weight, noise = inputs
        lifted = _lift(info, (*in_dims, None), (m, y, weight, noise, m.new_zeros(())), (2, 1, 1, 0, 0))
        return _NuclearNorm.apply(*lifted[:4]), (0, 0)


for _function in (_IsotropicTerm, _NuclearNorm):
    # torch asks for the signature of `forward` at each call; a remembered one saves 0.2-0.5 ms of each training step.
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[attr-defined]
