"""`hetfl bench`: how fast is this machine? The loop against stacks of growing numbers of clients, in one run.

Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from hetfl_core.engine.layout import Engine
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.methods.base import Role
from hetfl_core.methods.flic import FLIC
from hetfl_core.numerics import usable_cores
from hetfl_core.rng import numpy_stream

EPOCHS = 5
"""Epochs of pre-training that are timed; the paper's are 100. Setting up a stack is part of them."""

SIZES = (10, 100, 1_000, 10_000)
PARTICIPATION = 0.1


def toy(n_clients: int) -> Federation:
    """The noisy-features toy, each client with 20…300 samples whatever the number of clients.

    The published toy shares a fixed pool, so that more clients would mean less data each and no fair time per client.

    Parameters
    ----------
    n_clients : int

    Returns
    -------
    Federation
        20 classes, 3 of them on each client; inputs of 6 to 15 features.
    """
    rng = numpy_stream(0, "bench", 0, "toy")
    means = 0.8 * rng.standard_normal((20, 5))
    clients = []
    for i in range(n_clients):
        n, extra = int(rng.integers(20, 301)), int(rng.integers(1, 11))
        y = rng.choice(20, 3, replace=False)[rng.permutation(np.arange(n) % 3)]
        x = np.concatenate([rng.standard_normal((n, 5)) + means[y], rng.standard_normal((n, extra))], 1)
        clients.append(Client(x, y, x[:10], y[:10], f"client-{i:05d}"))
    return Federation(clients, 20, "bench")


def _seconds(call: Callable[[], Any], least: float = 0.5, most: int = 20) -> float:
    """Least CPU seconds of a call, over as many calls as fit into `least` seconds; two at least, unless one is long.

    CPU time on one thread is wall time on an idle machine, and the minimum is what other programs disturb least.
    """
    times: list[float] = []
    while not times or (len(times) < 2 and times[0] < 5) or (sum(times) < least and len(times) < most):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def measure(n_clients: int, engine: Engine, role: Role, batch_size: int) -> dict[str, float]:
    """Time one round, or some epochs of pre-training of all clients, and the process's peak memory.

    Parameters
    ----------
    n_clients : int
    engine : {"auto", "stacked", "loop"}
    role : {"start", "round"}
        Pre-training of all clients, or a round of some.
    batch_size : int

    Returns
    -------
    dict
        ``seconds``, ``clients`` that trained, ``microseconds`` per client and step, ``peak_mb`` (NaN on Windows).
    """
    torch.set_num_threads(1)  # as `simulate` does
    method = FLIC(pretrain_epochs=EPOCHS, pretrain_batch=batch_size, batch_size=batch_size)
    simulator = Simulator(toy(n_clients), method, engine=engine, device="cpu", workers=1)
    state, names = simulator.initial(), [spec.name for spec in simulator.specs]
    chosen = list(range(n_clients)) if role == "start" else participants(names, PARTICIPATION, 0, 0)
    simulator.train(state, chosen[: 1 if engine == "loop" else None], 0, role)
    seconds = _seconds(lambda: simulator.train(state, chosen, 0, role))
    epochs, anchors = (EPOCHS, 0) if role == "start" else (method.local_epochs + method.representation_epochs, 1)
    steps = sum(epochs * -(-simulator.specs[c].n_train // batch_size) + anchors for c in chosen)
    return {
        "seconds": seconds,
        "clients": len(chosen),
        "microseconds": 1e6 * seconds / steps,
        "peak_mb": peak_megabytes(),
    }


def peak_megabytes() -> float:
    """Most memory that this process ever held."""
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _apart(**arguments: Any) -> dict[str, float]:
    """Call `measure` in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, **arguments).result()


def _line(*cells: str) -> str:
    return " ".join(f"{cell:>10}" for cell in cells)


def report(sizes: tuple[int, ...] = SIZES, loop_up_to: int = 100) -> Iterator[str]:
    """Measure how fast this machine is, and describe it line by line.

    Parameters
    ----------
    sizes : tuple of int
        Numbers of clients.
    loop_up_to : int
        Largest federation for which the loop is timed.

    Yields
    ------
    str
        A line of the report.

    Raises
    ------
    ValueError
        For a number of clients of which none takes part in a round.
    """
    least = math.ceil(1 / PARTICIPATION)
    if small := [n for n in sizes if n < least]:
        raise WrongValue(f"sizes must be at least {least}, so that a client takes part in a round, got {small[0]}")
    yield f"PyTorch {torch.__version__}, 1 thread (as `simulate` uses by default) of {usable_cores()} cores"
    yield "FLIC-HL on the noisy-features toy; clients have 20-300 samples, inputs 6-15 wide, k = 64, 20 classes."
    yield "Rounds: 10 % of the clients, 10 local epochs and 1 for α. The loop is measured up to "
    yield f"{loop_up_to} clients. µs: microseconds per client and optimisation step."
    for role, title in (("start", f"{EPOCHS} epochs of alignment pre-training, all clients"), ("round", "One round")):
        for batch_size in (10, 100):
            yield f"\n{title}, batch {batch_size}"
            yield _line("clients", "loop s", "stacked s", "ratio", "loop µs", "stacked µs", "peak MB")
            for n in sizes:
                fast = _apart(n_clients=n, engine="stacked", role=role, batch_size=batch_size)
                loop = ["", "", ""]
                if n <= loop_up_to:
                    slow = _apart(n_clients=n, engine="loop", role=role, batch_size=batch_size)
                    ratio = slow["seconds"] / fast["seconds"]
                    loop = [f"{slow['seconds']:.3f}", f"{ratio:.1f}×", f"{slow['microseconds']:.0f}"]
                stacked = [f"{fast['seconds']:.3f}", f"{fast['microseconds']:.0f}", f"{fast['peak_mb']:.0f}"]
                yield _line(str(n), loop[0], stacked[0], loop[1], loop[2], *stacked[1:])
