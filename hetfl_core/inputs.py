"""What a client's samples are: one tensor, or named blocks of tensors with as many rows each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Inputs = Tensor | dict[str, Tensor]
r"""Inputs of a client: one tensor of shape (n, \*shape), or named blocks of such tensors with the same n."""


def map_blocks(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Apply a function to a tensor, or to each block of a dict of tensors.

    Parameters
    ----------
    function : callable
        Given `x`, or one block of it, and the same of each of the others.
    x : Tensor, or dict of str to Tensor
    *others
        Further arguments; dicts with the blocks of `x` where that is a dict.

    Returns
    -------
    object, or dict of str to object
        What the function returns, by block where `x` has named ones.
    """
    if isinstance(x, Mapping):
        return {name: function(x[name], *(other[name] for other in others)) for name in x}
    return function(x, *others)


def blocks(x: Inputs) -> list[Tensor]:
    """The blocks of an input, a list of one tensor where there are no named ones.

    Parameters
    ----------
    x : Tensor, or dict of str to Tensor

    Returns
    -------
    list of Tensor
        In the order of the dict; the tensors themselves, not copies.
    """
    return list(x.values()) if isinstance(x, Mapping) else [x]


def as_params(name: str, x: Inputs) -> dict[str, Tensor]:
    """An input as named tensors: under `name`, or its blocks each under ``"<name>.<block>"``.

    Messages and clients hold tensors so.

    Parameters
    ----------
    name : str
    x : Tensor, or dict of str to Tensor

    Returns
    -------
    dict of str to Tensor
    """
    return {f"{name}.{block}": t for block, t in x.items()} if isinstance(x, Mapping) else {name: x}


def from_params(name: str, params: Mapping[str, Tensor]) -> Inputs:
    """The input that `as_params` put among other tensors under this name.

    Parameters
    ----------
    name : str
    params : dict of str to Tensor

    Returns
    -------
    Tensor, or dict of str to Tensor
        With blocks, those that are there; an empty dict where the name is unknown.
    """
    if name in params:
        return params[name]
    return {key.removeprefix(f"{name}."): t for key, t in params.items() if key.startswith(f"{name}.")}


def by_block(of: Any) -> dict[str, Any]:
    """A dict by block of what belongs to each; of plain inputs that of one block without a name."""
    return dict(of) if isinstance(of, Mapping) else {"": of}


def data_digest(who: str, data: Mapping[str, Inputs]) -> str:
    """Hex digest of the names, shapes and bytes of the arrays that one holds.

    Parameters
    ----------
    who : str
    data : dict of str to Tensor, or to dict of str to Tensor
        The arrays by name, with blocks or without.
    """
    h = hashlib.blake2b(who.encode(), digest_size=16)
    for part, value in data.items():
        for name, x in by_block(value).items():
            named = (part, name) if isinstance(value, Mapping) else (part,)
            h.update(str((*named, tuple(x.shape), str(x.dtype))).encode())
            h.update(x.detach().cpu().contiguous().numpy().tobytes())
    return h.hexdigest()


def shape_text(shapes: Any) -> str:
    """A shape, or those of named blocks, as errors and tables show it."""
    if isinstance(shapes, Mapping):
        return ", ".join(f"{name}: {shape_text(shape)}" for name, shape in shapes.items())
    return "×".join(map(str, shapes))
