"""Zero-padding of tensors to a common shape, and its inverse."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hetfl_core.errors import WrongValue


def pad(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Zero-pad a tensor at the end of each axis.

    Parameters
    ----------
    tensor : Tensor
    shape : sequence of int
        As many axes as the tensor has, none of them shorter.

    Returns
    -------
    Tensor
        The tensor itself where it has this shape already.

    Raises
    ------
    ValueError
        Where the tensor does not fit into the shape.
    """
    if tuple(tensor.shape) == tuple(shape):
        return tensor
    if tensor.dim() != len(shape) or any(have > want for have, want in zip(tensor.shape, shape, strict=True)):
        raise WrongValue(f"cannot pad a tensor of shape {tuple(tensor.shape)} to {tuple(shape)}")
    out = tensor.new_zeros(tuple(shape))
    out[tuple(slice(size) for size in tensor.shape)] = tensor
    return out


def crop(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The leading part of a tensor, the inverse of `pad`.

    Parameters
    ----------
    tensor : Tensor
    shape : sequence of int

    Returns
    -------
    Tensor
        A view.
    """
    return tensor[tuple(slice(size) for size in shape)]


def pad_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors of one rank on a new leading axis, zero-padding each to the largest size of every axis.

    Parameters
    ----------
    tensors : sequence of Tensor
        At least one.

    Returns
    -------
    Tensor
    """
    first = tensors[0]
    if all(t.shape == first.shape for t in tensors):
        return torch.stack(list(tensors))
    shape = [max(sizes) for sizes in zip(*(t.shape for t in tensors), strict=True)]
    out = first.new_zeros((len(tensors), *shape))
    for row, tensor in zip(out, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return out
