"""What distances and averages are made of: roots of covariances, and checks of numbers within tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.errors import RunError, WrongValue


class _Final(torch.autograd.Function):
    """A gradient that must not be differentiated again for the tensors it was computed from."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, *origins: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RunError("Bures and anchor terms have first derivatives only, but a second one was asked for")


def first_derivative(gradient: Tensor, *origins: Tensor) -> Tensor:
    """A gradient, guarded where a graph of it is kept (``create_graph=True``, `torch.func.grad`)."""
    return _Final.apply(gradient, *origins) if torch.is_grad_enabled() else gradient


def psd_root(S: Tensor, inverse: bool = False) -> Tensor:
    """Symmetric square root of a positive semi-definite matrix, or the pseudo-inverse of the root.

    Eigenvalues that are no more than rounding count as 0. Nothing is checked here.

    Parameters
    ----------
    S : Tensor, shape (..., k, k)
        Symmetric positive semi-definite.
    inverse : bool
        Whether the pseudo-inverse of the root is wanted.

    Returns
    -------
    Tensor, shape (..., k, k)
    """
    eigenvalues, vectors = torch.linalg.eigh(S)
    cut = S.shape[-1] * torch.finfo(S.dtype).eps * eigenvalues[..., -1:]
    kept = (eigenvalues > cut) & (eigenvalues > 0)
    root = torch.where(kept, eigenvalues, 1).sqrt()
    root = torch.where(kept, 1 / root if inverse else root, 0)
    return (vectors * root.unsqueeze(-2)) @ vectors.mT


def require(condition: Tensor, message: str) -> None:
    """Raise a ValueError unless a condition holds everywhere; under `vmap`, where that cannot be seen, pass."""
    try:
        holds = bool(condition.all())
    except RuntimeError:
        return
    if not holds:
        raise WrongValue(message)


def check_finite(name: str, t: Tensor) -> None:
    """Refuse numbers that are not finite."""
    require(t.isfinite(), f"{name} must be finite, got NaN or infinite values in shape {tuple(t.shape)}")


def check_shapes(**named: tuple[Tensor, str]) -> None:
    """Refuse what is no tensor of finite numbers, and last axes that are not as said; those before must broadcast.

    Parameters
    ----------
    **named : (Tensor, str)
        Each with a letter an axis, such as ``"nk"``; a letter has one length throughout.
    """
    checks.tensors(**{name: t for name, (t, _) in named.items()})
    lengths: dict[str, tuple[int, str]] = {}
    for name, (t, axes) in named.items():
        last = t.shape[max(t.dim() - len(axes), 0) :]
        known = {axis: lengths.setdefault(axis, (n, name)) for axis, n in zip(axes, last, strict=False)}
        if (
            len(last) < len(axes)
            or not t.numel()
            or any(n != known[axis][0] for axis, n in zip(axes, last, strict=True))
        ):
            given = "".join(f", {axis} = {n} as in {by}" for axis, (n, by) in known.items() if by != name)
            raise WrongValue(f"{name} must have shape (..., {', '.join(axes)}){given}, got {tuple(t.shape)}")
    checks.broadcastable(**{name: t.shape[: t.dim() - len(axes)] for name, (t, axes) in named.items()})
    for name, (t, _) in named.items():
        check_finite(name, t)


def check_covariance(name: str, S: Tensor, definite: bool = False) -> None:
    """Refuse square matrices that are not symmetric and positive semi-definite (or definite)."""
    S = S.detach()
    slack = torch.finfo(S.dtype).eps ** 0.5 * S.abs().amax((-2, -1), keepdim=True)
    require((S - S.mT).abs() <= slack, f"{name} must be symmetric")
    if definite:
        require(torch.linalg.cholesky_ex((S + S.mT) / 2).info == 0, f"{name} must be positive definite")
    else:
        lowest = torch.linalg.eigvalsh((S + S.mT) / 2)[..., 0]
        require(lowest >= -slack[..., 0, 0], f"{name} must be positive semi-definite, it has a negative eigenvalue")
