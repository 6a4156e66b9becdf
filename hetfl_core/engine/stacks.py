"""Clients side by side: which of them share a stack, and the padded tensors in which a stack keeps their samples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_core.federation import Federation, Inputs, Spec, map_blocks
from hetfl_core.methods.base import Batch, Method, pick
from hetfl_core.networks import Params
from hetfl_core.padding import crop


@dataclass(frozen=True)
class Split:
    r"""The training or test samples of a stack of K clients, one client's after the other's.

    Sample shapes are padded to the widest; numbers of samples are not padded to the largest.

    Parameters
    ----------
    x : Tensor, shape (N + 1, \*shape), or dict of str to such
        Inputs, N = Σ n_i. The last row, the *padding row*, is zero: padding for every client.
    y : Tensor of int (floating-point for a regression), shape (N + 1,)
        Labels; 0 in the padding row.
    n : Tensor of int, shape (K,)
        Numbers of samples.
    """

    x: Any
    y: Tensor
    n: Tensor

    @property
    def begins(self) -> Tensor:
        """The row where each client's samples begin, shape (K,)."""
        return self.n.cumsum(0) - self.n

    @property
    def padding_row(self) -> int:
        """The index of the padding row."""
        return len(self.y) - 1

    def client(self, i: int, shapes: Any) -> tuple[Any, Tensor]:
        """Inputs and labels of the i-th client, whose true sample shapes are given (views)."""
        begin = int(self.begins[i])
        end = begin + int(self.n[i])
        return map_blocks(lambda t, shape: crop(t[begin:end], (end - begin, *shape)), self.x, shapes), self.y[begin:end]

    def take(self, rows: Sequence[int], shapes: Sequence[Any]) -> Split:
        """Samples of some clients of the stack, given by their indices, padded no wider than these need.

        `shapes` are the true sample shapes of those clients. Where it is all of them, in the order of the stack,
        nothing is copied.
        """
        widest = map_blocks(lambda t, *true: tuple(max(sizes) for sizes in zip(*true, strict=True)), self.x, *shapes)
        if list(rows) == list(range(len(self.n))) and widest == map_blocks(lambda t: tuple(t.shape[1:]), self.x):
            return self
        n = self.n[list(rows)]
        shift = self.begins[list(rows)] - (n.cumsum(0) - n)
        at = torch.cat(
            [
                shift.repeat_interleave(n) + torch.arange(int(n.sum())),
                torch.tensor([self.padding_row], dtype=torch.int64),
            ]
        )
        at = at.to(self.y.device)

        def select(t: Tensor, shape: tuple[int, ...]) -> Tensor:
            return crop(t, (len(t), *shape)).index_select(0, at)

        return Split(map_blocks(select, self.x, widest), self.y.index_select(0, at), n)

    def rectangle(self) -> Any:
        r"""The inputs with a client axis, padded with rows of zeros: shape (K, max(n_i, 1), \*shape)."""
        index = torch.arange(max(int(self.n.max()), 1))
        at = torch.where(index < self.n[:, None], self.begins[:, None] + index, self.padding_row).to(self.y.device)
        return map_blocks(lambda t: t.index_select(0, at.flatten()).unflatten(0, at.shape), self.x)


def stack_split(xs: Sequence[Inputs], ys: Sequence[Tensor]) -> Split:
    """Pad the samples of several clients to one shape and lay them one after the other."""
    n = torch.tensor([len(y) for y in ys], dtype=torch.int64)

    def join(*arrays: Tensor) -> Tensor:
        shape = [max(sizes) for sizes in zip(*(a.shape[1:] for a in arrays), strict=True)]
        out = arrays[0].new_zeros((int(n.sum()) + 1, *shape))
        for rows, array in zip(out[:-1].split(n.tolist()), arrays, strict=True):
            rows[tuple(slice(size) for size in array.shape)] = array
        return out

    return Split(map_blocks(join, xs[0], *xs[1:]), join(*ys), n)


@dataclass(frozen=True)
class Cohort:
    """Clients that are trained as one stack.

    Parameters
    ----------
    members : tuple of int
        Indices of the clients in the federation.
    train, test : Split
        Their samples, padded to one shape.
    """

    members: tuple[int, ...]
    train: Split
    test: Split


def make_cohorts(federation: Federation, keys: Sequence[Hashable], device: torch.device | str = "cpu") -> list[Cohort]:
    """Gather clients with equal keys into cohorts.

    Parameters
    ----------
    federation : Federation
    keys : sequence of hashable, one per client
        Clients with equal keys share a stack; their inputs must have the same number of axes.
    device : torch.device or str
        Where the stacks are to live.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    cohorts = []
    for indices in groups.values():
        clients = [federation.clients[p] for p in indices]
        splits = [
            stack_split([getattr(c, f"x_{part}") for c in clients], [getattr(c, f"y_{part}") for c in clients])
            for part in ("train", "test")
        ]
        moved = [Split(map_blocks(lambda t: t.to(device), s.x), s.y.to(device), s.n) for s in splits]
        cohorts.append(Cohort(tuple(indices), *moved))
    return cohorts


STACK = 10_000
"""What one more stack costs a step, in columns of the first layer, of one client each."""

COLUMN = 256
"""Numbers that a column brings beside the samples: 64 weights, each with its gradient and Adam's two moments."""

SMALL = 2**23
"""Numbers (32 MiB in float32) below which memory is no reason to split a stack."""


def bucket(
    widths: Sequence[tuple[int, ...]], samples: Sequence[int], most: float = 2.0, small: int = SMALL
) -> list[int]:
    """Split clients of different input widths into stacks so that padding does not cost more than it saves.

    *Time.* A stack of K clients costs a step `STACK` + K · (its widest input): what one more stack costs whatever its
    size, and what is moved. The cheapest split of the sorted widths into runs is found by dynamic programming; as it
    may not cost more than the split by powers of 2, padding more than doubles the columns of clients only where a
    stack would cost more than that.

    *Memory.* Samples and parameters, (n_i + `COLUMN`) · width, padded, are at most `most` times the true ones, or
    `small`. Where the cheapest split takes more, the price of a stack is halved until it does not.

    Parameters
    ----------
    widths : sequence of tuple of int, length K
        Numbers of features of each client, one for each block of its inputs.
    samples : sequence of int, length K
        Numbers of samples of each client.
    most : float
        Padded numbers over true ones, at least 1.
    small : int
        Padded numbers that are always allowed.

    Returns
    -------
    list of int, length K
        The stack of each client; stacks are numbered by increasing width. It does not depend on the order of clients.
    """
    kinds = sorted(set(widths), key=lambda w: (sum(w), w))
    index = {w: i for i, w in enumerate(kinds)}
    sizes, kind = np.array(kinds), np.array([index[w] for w in widths])
    count = np.bincount(kind)
    held = np.bincount(kind, np.asarray(samples) + COLUMN)
    overhead, allowed = float(STACK), max(most * float(held @ sizes.sum(1)), small)
    while True:
        runs = _cheapest_runs(sizes, count, overhead)
        if sum(held[run].sum() * sizes[run].max(0).sum() for run in runs) <= allowed:
            return np.repeat(np.arange(len(runs)), [run.stop - run.start for run in runs])[kind].tolist()
        overhead /= 2


def _cheapest_runs(sizes: NDArray[np.int64], count: NDArray[np.int64], overhead: float) -> list[slice]:
    """The split of sorted kinds of clients into runs that costs least; a run costs `overhead` + clients · width."""
    total = np.concatenate([[0], np.cumsum(count)])
    best, begins = np.zeros(len(sizes) + 1), np.zeros(len(sizes) + 1, int)
    for end in range(1, len(sizes) + 1):
        widest = np.maximum.accumulate(sizes[:end][::-1])[::-1].sum(1)
        costs = best[:end] + overhead + (total[end] - total[:end]) * widest
        begins[end] = np.argmin(costs)
        best[end] = costs[begins[end]]
    runs, end = [], len(sizes)
    while end:
        runs.append(slice(int(begins[end]), end))
        end = int(begins[end])
    return runs[::-1]


def widened(method: Method, spec: Spec) -> Spec:
    """A client as it were with inputs one wider, where its network lets them be padded (`Network`).

    Inputs with several axes (images) are left alone.
    """
    if not padded(method, spec):
        return spec
    return replace(spec, shapes=map_blocks(lambda s: (s[0] + 1,) if len(s) == 1 and s[0] else s, spec.shapes))


def padded(method: Method, spec: Spec) -> bool:
    """Whether the inputs of a client may be padded with zeros."""
    return bool(getattr(method.model.of(spec).phi, "padded", False))


def precomputed_pattern(method: Method, spec: Spec) -> Params:
    """What `Method.precompute` makes of samples that are all zero, for its shapes. The samples take no memory."""
    if spec.task == "regression":
        y = torch.zeros(spec.n_train, dtype=torch.float32)
    else:
        y = torch.arange(spec.n_classes).repeat_interleave(torch.tensor(spec.class_counts, dtype=torch.long))
    x = map_blocks(lambda shape: torch.zeros((), dtype=torch.float32).expand(spec.n_train, *shape), spec.shapes)
    return method.precompute(spec, Batch(x, y, torch.ones(spec.n_train, dtype=torch.float32)), torch.Generator())


def architecture(
    method: Method,
    spec: Spec,
    servers: Sequence[Params | None] = (None, None),
    known: dict[Hashable, Any] | None = None,
) -> Hashable:
    """What two clients must have in common to share a stack: network and shapes, but for axes that may be padded.

    These grow with the input, or, in what a method says may be padded (`Method.padded`), with the samples. Which they
    are is found by asking the method for a client whose inputs are one wider (the second of the `servers` is that of a
    federation of such clients), and for one without samples. Inputs with several axes (images) are never padded; a
    block that is empty on one client is empty on all clients of its stack. With `servers`, what is downloaded counts
    too. `known` spares asking twice about clients with equal shapes.
    """

    def shapes(of: Spec, server: Params | None) -> dict[str, tuple[int, ...]]:
        client_state = {**method.of(of).init_client(of, torch.Generator()), **precomputed_pattern(method.of(of), of)}
        found = {f"kept {name}": tuple(p.shape) for name, p in client_state.items()}
        received = {} if server is None else method.download(server, of)
        return found | {f"received {name}": tuple(p.shape) for name, p in received.items()}

    known = {} if known is None else known
    true = shapes(spec, servers[0])
    network = str(method.model.of(spec).phi)
    same = str((spec.shapes, true, network))
    if same not in known:
        known[same] = shapes(widened(method, spec), servers[1])
    wider = known[same]
    empty: dict[str, Sequence[int]] = {}
    if method.padded:
        nobody = replace(spec, n_train=0, class_counts=(0,) * len(spec.class_counts))
        found = pick(precomputed_pattern(method.of(spec), nobody), method.padded)
        empty = {f"kept {name}": p.shape for name, p in found.items()}

    def axes(name: str) -> tuple[int | str, ...]:
        sizes = zip(true[name], wider[name], empty.get(name, true[name]), strict=True)
        return tuple("input" if a != b else "samples" if a != c else a for a, b, c in sizes)

    leaves = tuple((name, axes(name)) for name in sorted(true))
    pads = padded(method, spec)
    inputs = map_blocks(lambda s: "vector" if pads and len(s) == 1 and s[0] else s, spec.shapes)
    return leaves, str(inputs), network
