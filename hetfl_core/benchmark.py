"""`hetfl bench`: how fast is this machine? Ratios and parts of a step, measured in one run.

Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hetfl_core.checkpoint import State
from hetfl_core.federation import Client, Federation
from hetfl_core.methods.base import Batch, Stage
from hetfl_core.methods.flic import FLIC
from hetfl_core.rng import numpy_stream
from hetfl_core.simulation import Simulator, participants
from hetfl_core.training import Stack, make_optimiser

EPOCHS = 5
"""Epochs of pre-training that are timed; the paper's are 100. Setting up a stack is part of them."""

SIZES = (10, 100, 1_000, 10_000)
PARTICIPATION = 0.1


def toy(n_clients: int, seed: int = 0, n_classes: int = 20) -> Federation:
    """The noisy-features toy, each client with 20…300 samples whatever the number of clients.

    The published toy shares a fixed pool, so that more clients would mean less data each and no fair time a client.
    """
    rng = numpy_stream(seed, "bench", 0, "toy")
    means = 0.8 * rng.standard_normal((n_classes, 5))
    clients = []
    for i in range(n_clients):
        n, extra = int(rng.integers(20, 301)), int(rng.integers(1, 11))
        y = rng.permutation(np.arange(n) % 3)
        y = rng.choice(n_classes, 3, replace=False)[y]
        x = np.concatenate([rng.standard_normal((n, 5)) + means[y], rng.standard_normal((n, extra))], 1)
        clients.append(Client(x, y, x[:10], y[:10], f"client-{i:05d}"))
    return Federation(clients, n_classes, "bench")


def _seconds(call: Callable[[], Any], least: float = 0.5, most: int = 20) -> float:
    """Median seconds of a call, over as many calls as fit into `least` seconds; two at least, unless one is long."""
    times: list[float] = []
    while not times or (len(times) < 2 and times[0] < 5) or (sum(times) < least and len(times) < most):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def measure(n_clients: int, engine: str, role: str, batch_size: int) -> dict[str, Any]:
    """Time one round, or some epochs of pre-training of all clients, and the process's peak memory.

    Returns
    -------
    dict
        ``seconds``, ``clients`` that trained, ``microseconds`` a client and step, ``peak_mb``.
    """
    torch.set_num_threads(1)  # as `simulate` does
    method = FLIC(pretrain_epochs=EPOCHS, pretrain_batch=batch_size, batch_size=batch_size)
    simulator = Simulator(toy(n_clients), method, engine=engine, device="cpu")  # type: ignore[arg-type]
    state = simulator.initial()
    names = [spec.id for spec in simulator.specs]
    chosen = list(range(n_clients)) if role == "start" else participants(names, PARTICIPATION, 0, 0)
    warm = chosen[: 1 if engine == "loop" else None]
    simulator.train(state, warm, 0, role)  # type: ignore[arg-type]
    seconds = _seconds(lambda: simulator.train(state, chosen, 0, role))  # type: ignore[arg-type]
    epochs = EPOCHS if role == "start" else method.local_epochs + method.representation_epochs
    steps = sum(epochs * -(-simulator.specs[c].n // batch_size) + (role != "start") for c in chosen)
    return {
        "seconds": seconds,
        "clients": len(chosen),
        "microseconds": 1e6 * seconds / steps,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def parts(n_clients: int, batch_size: int, repeats: int = 30) -> dict[str, float]:
    """Milliseconds of one stacked step of the alignment pre-training, part by part.

    ``batching`` gathers the samples, ``embedding`` is φ forward and backward, ``anchor term`` is what the alignment
    (class means, covariances and the Bures term) adds to it, ``optimiser`` is Adam.
    """
    torch.set_num_threads(1)
    method = FLIC(pretrain_batch=batch_size)
    simulator = Simulator(toy(n_clients), method, device="cpu")
    state: State = simulator.initial()
    received = method.download(state.server, simulator.specs[0])
    stack = Stack.of([method.start(kept, received) for kept in state.kept])
    data = simulator.cohorts[0].train
    K, height = data.y.shape
    rows = (torch.rand(K, batch_size) * data.n[:, None]).long()
    flat = (rows + height * torch.arange(K)[:, None]).flatten()
    phi = {name: p.requires_grad_() for name, p in stack.params.items() if name.startswith("phi")}
    stage = Stage(("phi",), epochs=1)
    optimiser = make_optimiser(stage, phi, fused=True)

    def gather() -> Batch:
        x = data.x.flatten(0, 1).index_select(0, flat).unflatten(0, (K, -1))
        y = data.y.flatten().index_select(0, flat).unflatten(0, (K, -1))
        return Batch(x, y, torch.ones(rows.shape))

    batch = gather()

    def backward(one: Callable[..., torch.Tensor]) -> None:
        optimiser.zero_grad()
        torch.func.vmap(one)(phi, batch).sum().backward()

    times = {
        "batching": _seconds(gather, most=repeats),
        "embedding": _seconds(
            lambda: backward(lambda p, b: method.embed(p, received, b.x).square().sum()), most=repeats
        ),
        "all": _seconds(lambda: backward(lambda p, b: method.alignment_loss(p, received, b, {}).total), most=repeats),
        "optimiser": _seconds(optimiser.step, most=repeats),
    }
    times["anchor term"] = max(times.pop("all") - times["embedding"], 0.0)
    return {name: 1e3 * t for name, t in times.items()}


def _apart(**arguments: Any) -> dict[str, Any]:
    """Run one measurement in a fresh process and return what it printed."""
    command = [sys.executable, "-m", "hetfl_core.benchmark", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    if done.returncode:
        raise RuntimeError(f"measurement {arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _line(*cells: str) -> str:
    return " ".join(f"{cell:>10}" for cell in cells)


def report(sizes: tuple[int, ...] = SIZES, loop_up_to: int = 100) -> Iterator[str]:
    """Measure and describe, line by line."""
    yield f"PyTorch {torch.__version__}, 1 thread (as `simulate` uses by default) of {os.cpu_count()} cores"
    yield "FLIC-HL on the noisy-features toy; clients have 20-300 samples, inputs 6-15 wide, k = 64, 20 classes."
    yield "Rounds: 10 % of the clients, 10 local epochs and 1 for α. The loop is measured up to "
    yield f"{loop_up_to} clients. µs: microseconds a client and optimisation step."
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
    for batch_size, n in ((10, 100), (100, 10)):
        yield f"\nWhere a stacked alignment step goes, {n} clients, batch {batch_size}"
        times = parts(n, batch_size)
        for name, ms in times.items():
            yield f"{name:>14} {ms:>8.2f} ms {100 * ms / sum(times.values()):>5.0f} %"


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
