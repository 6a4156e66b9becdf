"""How fast it could be: FedAvg's step in eleven calls, and the products of any training without what lies between."""

from __future__ import annotations

import time
import timeit
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def by_hand(x: Tensor, y: Tensor, rows: Tensor, start: Mapping[str, Tensor], lr: float) -> dict[str, Tensor]:
    """SGD of K clients on the mean cross-entropy of batches, its gradient written out.

    Parameters
    ----------
    x : Tensor, shape (N, d)
        The samples of all clients.
    y : Tensor of int, shape (N,)
    rows : Tensor of int, shape (steps, K, batch)
        The batch of each client at each step.
    start : dict of str to Tensor
        ``w1`` (d, h), ``b1`` (h,), ``w2`` (h, C) and ``b2`` (C,), with which all clients begin.
    lr : float

    Returns
    -------
    dict of str to Tensor
        The same with a leading client axis.
    """
    _, k, batch = rows.shape
    w1, b1, w2, b2 = (start[name].repeat(k, *[1] * start[name].dim()) for name in ("w1", "b1", "w2", "b2"))
    hot = torch.eye(w2.shape[2], dtype=x.dtype)[y[rows]] / batch
    for at, target in zip(rows, hot, strict=True):
        here = x.index_select(0, at.flatten()).view(k, batch, -1)
        h = torch.baddbmm(b1.unsqueeze(1), here, w1).relu_()
        do = torch.softmax(torch.baddbmm(b2.unsqueeze(1), h, w2), -1).div_(batch).sub_(target)
        dh = torch.bmm(do, w2.mT).mul_(h > 0)
        w2.baddbmm_(h.mT, do, alpha=-lr)
        b2.sub_(do.sum(1), alpha=lr)
        w1.baddbmm_(here.mT, dh, alpha=-lr)
        b1.sub_(dh.sum(1), alpha=lr)
    return {"w1": w1, "b1": b1, "w2": w2, "b2": b2}


DECOMPOSITIONS = ("linalg_eigh", "_linalg_eigh", "linalg_qr", "linalg_cholesky_ex", "_linalg_svd")


@dataclass(frozen=True)
class Shape:
    """A tensor's size and layout; two operations on equal ones take the same time."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> Tensor:
        """A tensor like it, of numbers that a decomposition takes."""
        length = 1 + sum(stride * (size - 1) for size, stride in zip(self.size, self.stride, strict=True) if size)
        held = torch.full((length,), 0.01, dtype=torch.float64).to(self.dtype)
        made = held.as_strided(self.size, self.stride)
        if made.dim() > 1 and made.shape[-1] == made.shape[-2] and 0 not in self.stride:
            made.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return made


class Products(TorchDispatchMode):
    """Counts the products, convolutions and decompositions that are computed in its context, by their shapes.

    Attributes
    ----------
    counts : Counter
        Of keys (operation, arguments), with tensors as `Shape`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Hashable] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = getattr(func, "overloadpacket", None)
        if packet in flop_registry or str(packet).split(".")[-1] in DECOMPOSITIONS:
            self.counts[func, _frozen(args)] += 1
        return func(*args, **(kwargs or {}))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return Shape(tuple(value.shape), value.stride(), value.dtype)
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _made(value: Any) -> Any:
    if isinstance(value, Shape):
        return value.made()
    return [_made(v) for v in value] if isinstance(value, tuple) else value


def cost(counts: Mapping[Any, int], seconds: Callable[[Callable[[], Any]], float]) -> dict[str, float]:
    """What products take by themselves, each timed on tensors of its shapes.

    Parameters
    ----------
    counts : mapping
        As `Products` counts.
    seconds : callable
        How a call is timed.

    Returns
    -------
    dict
        ``seconds``; ``flops`` of the products and convolutions; ``bytes`` that all read and write.
    """
    total = {"seconds": 0.0, "flops": 0.0, "bytes": 0.0}
    for (func, frozen), count in counts.items():
        args = _made(frozen)
        result = func(*args)
        if func.overloadpacket in flop_registry:
            total["flops"] += count * flop_registry[func.overloadpacket](*args, out_val=result)
        tensors = [t for t in (*args, *(result if isinstance(result, tuple) else [result])) if isinstance(t, Tensor)]
        total["bytes"] += count * sum(t.numel() * t.element_size() for t in tensors)
        total["seconds"] += count * seconds(lambda func=func, args=args: func(*args))  # type: ignore[misc]
    return total


def least(call: Callable[[], Any], calls: int = 5, times: int = 5) -> float:
    """Least CPU seconds of a call, of so many groups of calls."""
    return min(timeit.repeat(call, timer=time.process_time, number=calls, repeat=times)) / calls
