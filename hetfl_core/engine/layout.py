"""How clients are laid out in training: in stacks of what size, or one after the other.

Stacking saves what a step costs whatever its size (Python, dispatch), and loses where operations on a stack are
slower than those on single clients: convolutions on a CPU, and stacks whose numbers do not fit in the caches.
`choose` weighs the two by the `Costs` of a step. These are constants, measured once and not anew on each machine: who
shares a stack decides in what order sums are taken, and a result must not depend on the machine, or on its cores:
`cut` makes stacks that cores can share wherever there are clients enough, also where there is one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hetfl_core.tape import Tape

Engine = Literal["auto", "stacked", "loop"]

ROWS = 4096
"""Most images that a stack predicts at once: their maps take far more memory than they do."""

MOST = 1024
"""Most clients in one stack, unless asked for otherwise."""

BLOCK = 16
"""Clients in a stack that is cut from a larger one. 16 numbers of whatever clients fill a kernel's vectors and begin
where memory is aligned: what it does with the end of a tensor it does with the same numbers as in the whole stack."""


@dataclass(frozen=True)
class Costs:
    """What a training step costs beside its arithmetic.

    Parameters
    ----------
    loop, stacked : float
        Seconds of a step of one client, or of one stack, beside its arithmetic.
    grouped : float
        What the convolutions of a stack, which are grouped ones, take over those of single clients.
    rate : float
        Operations a second of the convolutions of single clients.
    state : float
        Bytes of parameters, gradients and Adam's two moments up to which larger stacks are not slower.
    noise : float
        Bytes of noise that a stack may hold, unless a single client's are more.
    weights : float
        Bytes of a client's working copy above which stacks of `BLOCK` clients, which fit in the caches, are no slower
        than larger ones.
    operations : float
        Operations of a step of one client above which a step of `BLOCK` clients takes much longer than what it costs
        beside its arithmetic.
    """

    loop: float = 0.6e-3
    stacked: float = 1.1e-3
    grouped: float = 1.6
    rate: float = 60e9
    state: float = 2.0**27
    noise: float = 2.0**31
    weights: float = 2e5
    operations: float = 1e7


LONG = 1e9
"""Floating-point operations of a step of a stack above which threads within an operation may pay: some 17 ms of one
core. Below, a step is a hundred short operations, and its threads mostly wait for each other at the end of each."""

CPU = Costs()
GPU = Costs(stacked=0.5e-3, grouped=1.0, state=2.0**34, weights=math.inf, operations=math.inf)
"""On a GPU a stack is one launch an operation: it always pays."""


@dataclass(frozen=True)
class Layout:
    """How the clients of a cohort are trained.

    Parameters
    ----------
    engine : {"stacked", "loop"}
    size : int
        Most clients in one stack, if there are as many. With the loop, how many clients one piece of work has.
    rows : int or None
        Most samples, padding counted, that a stack predicts at once.
    even : hashable
        What clients have in common of which larger stacks are cut: that nothing in them is padded. None, where larger
        stacks are faster, or some are padded.
    """

    engine: Literal["stacked", "loop"]
    size: int
    rows: int | None = None
    even: Hashable = None


@dataclass(frozen=True)
class Work:
    """What one step of one client's training computes.

    Parameters
    ----------
    convolutions : float
        Floating-point operations in convolutions, forward and backward.
    numbers : int
        Numbers in its working copy.
    noise : int
        Random numbers that are drawn at once.
    operations : float
        Floating-point operations in all products, those of convolutions among them.
    """

    convolutions: float
    numbers: int
    noise: int = 0
    operations: float = 0.0


def work(call: Callable[..., Tensor], params: dict[str, Tensor], received: dict[str, Tensor], x: Any) -> Work:
    """Count what a step on the inputs `x` computes, from one prediction ``call(params, received, x)``.

    The backward pass takes twice the operations of the forward pass.
    """
    with torch.no_grad(), Tape() as tape:
        call(params, received, x)
    counts = tape.flops()
    forward = sum(flops for operation, flops in counts.items() if "conv" in operation)
    numbers = sum(p.numel() for p in params.values())
    return Work(3.0 * forward, numbers, operations=3.0 * sum(counts.values()))


def choose(work: Work, clients: int, costs: Costs, itemsize: int = 4) -> Layout:
    """The faster of stacks and the loop for so many clients.

    Without convolutions it is a stack in any case, also of one: so a client comes out with the same bits whether others
    are there or not, as far as they need no wider padding.

    Parameters
    ----------
    work : Work
        Of the client with the widest inputs.
    clients : int
        In the cohort.
    costs : Costs
    itemsize : int
        Bytes of a number.
    """
    held, drawn = 4 * itemsize * max(work.numbers, 1), itemsize * max(work.noise, 1)
    size = max(1, min(MOST, int(costs.state // held), int(costs.noise // drawn)))
    together = min(size, clients)
    slower = (costs.grouped - 1) * work.convolutions / costs.rate if together > 1 else 0.0
    if work.convolutions and costs.stacked / together + slower >= costs.loop:
        return Layout("loop", 1)
    return Layout("stacked", size, ROWS if work.convolutions else None)


def divisible(work: Work, costs: Costs, itemsize: int = 4) -> bool:
    """Whether stacks of clients whose steps compute this are no slower in blocks; arguments as for `choose`."""
    large = itemsize * work.numbers > costs.weights or work.operations > costs.operations
    return large and not work.convolutions


def cut(clients: int, way: Layout) -> list[int]:
    """Sizes of the stacks of so many clients of one kind: as few as may be, or blocks that cores can share.

    Small stacks stay whole: what a step costs whatever its size would be paid twice.
    """
    sizes: list[int] = []
    for begin in range(0, clients, way.size):
        whole = min(way.size, clients - begin)
        blocks = max(0, whole // BLOCK - 1) if way.even is not None else 0
        sizes += [BLOCK] * blocks + [whole - BLOCK * blocks]
    return sizes
