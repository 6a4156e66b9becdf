"""How clients are laid out in training: in stacks of what size, or one after the other; and how cores share the work.

Stacking saves what a step costs whatever its size (Python, dispatch), and loses where operations on a stack are
slower than those on single clients: convolutions on a CPU, and stacks whose numbers do not fit in the caches.
`choose` weighs the two by the `Costs` of a step. These are constants, measured once and not anew on each machine: who
shares a stack decides in what order sums are taken, and a result must not depend on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from hetfl_core.tape import Tape

Engine = Literal["auto", "stacked", "loop"]

ROWS = 4096
"""Most images that a stack predicts at once: their maps take far more memory than they do."""

MOST = 1024
"""Most clients in one stack, unless asked for otherwise."""

T = TypeVar("T")
R = TypeVar("R")


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
    threads : float
        Operations of a step of a stack, or of one client of the loop, from which on several of them are computed
        faster side by side than one after the other: Python lets only one thread prepare operations at a time.
    """

    loop: float = 0.6e-3
    stacked: float = 1.1e-3
    grouped: float = 1.6
    rate: float = 60e9
    state: float = 2.0**27
    noise: float = 2.0**31
    threads: float = 1e8


CPU = Costs()
GPU = Costs(stacked=0.5e-3, grouped=1.0, state=2.0**34)
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
    parallel : bool
        Whether a piece of this work is worth a core of its own.
    """

    engine: Literal["stacked", "loop"]
    size: int
    rows: int | None = None
    parallel: bool = False


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


def pays(work: Work, together: int, costs: Costs) -> bool:
    """Whether steps of so many clients each are computed faster side by side than one after the other."""
    return together * work.operations >= costs.threads


def on_threads(call: Callable[[T], R], pieces: Sequence[T], workers: int) -> Iterator[R]:
    """``call(piece)`` for each piece of work, in their order, on so many threads.

    PyTorch's operations let go of Python's lock, so that threads share the cores and the memory; each operation runs
    on one of them. What a piece computes does not depend on how many there are. When one fails, or the whole is
    interrupted, those that have not begun are left and the others stop at their next `go_on`.
    """
    if workers == 1 or len(pieces) < 2:
        yield from map(call, pieces)
        return
    stop = threading.Event()

    def watched(piece: T) -> R:
        _THREAD.stop = stop
        return call(piece)

    with ThreadPoolExecutor(min(workers, len(pieces)), "hetfl") as pool:
        try:
            yield from pool.map(watched, pieces)
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_THREAD = threading.local()


class Stopped(Exception):
    """Another piece of the work failed, or all of it was interrupted."""


def go_on() -> None:
    """Let a piece of work end between two steps when it is not needed any more.

    Raises
    ------
    Stopped
        Where the piece of work to which this thread belongs is not needed any more.
    """
    stop = getattr(_THREAD, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped
