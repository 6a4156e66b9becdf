"""`hetfl bench`: how fast is this machine? Ratios and parts of a step, measured in one run.

Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch

from hetfl_core.datasets.blocks import ASSIGNMENTS, QUADRANTS
from hetfl_core.datasets.recordings import CLASSES, TABLE_S1
from hetfl_core.deployment import simulation as flower
from hetfl_core.engine.checkpoint import State
from hetfl_core.engine.layout import CPU, MOST, Costs, Layout, work
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator, Training, train
from hetfl_core.engine.stacks import make_cohorts
from hetfl_core.engine.training import (
    Batches,
    LocalJob,
    Stack,
    StackedNoise,
    StackedStage,
    fill_gradients,
    make_optimiser,
    stack_received,
)
from hetfl_core.federation import Client, Federation, Spec
from hetfl_core.matching import Cost, Neurons, Rule, match
from hetfl_core.methods import anchor_terms as terms
from hetfl_core.methods.base import Batch, Method, Role, Stage
from hetfl_core.methods.fedavg import Local
from hetfl_core.methods.fedcma import FedCMA
from hetfl_core.methods.fedcr import FedCR
from hetfl_core.methods.fedrep import HetFedRep
from hetfl_core.methods.flic import FLIC
from hetfl_core.networks import CNN, MLP, Blocks, Draw, Model, Network, Params
from hetfl_core.rng import numpy_stream

EPOCHS = 5
"""Epochs of pre-training that are timed; the paper's are 100. Setting up a stack is part of them."""

SIZES = (10, 100, 1_000, 10_000)
PARTICIPATION = 0.1


def toy(n_clients: int, seed: int = 0, n_classes: int = 20, sizes: Sequence[int] | None = None) -> Federation:
    """The noisy-features toy, each client with 20…300 samples whatever the number of clients.

    The published toy shares a fixed pool, so that more clients would mean less data each and no fair time per client.
    `sizes` gives them other numbers.
    """
    rng = numpy_stream(seed, "bench", 0, "toy")
    means = 0.8 * rng.standard_normal((n_classes, 5))
    clients = []
    for i in range(n_clients):
        n, extra = int(rng.integers(20, 301)), int(rng.integers(1, 11))
        n = n if sizes is None else sizes[i]
        y = rng.permutation(np.arange(n) % 3)
        y = rng.choice(n_classes, 3, replace=False)[y]
        x = np.concatenate([rng.standard_normal((n, 5)) + means[y], rng.standard_normal((n, extra))], 1)
        clients.append(Client(x, y, x[:10], y[:10], f"client-{i:05d}"))
    return Federation(clients, n_classes, "bench")


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


def measure(n_clients: int, engine: str, role: str, batch_size: int) -> dict[str, Any]:
    """Time one round, or some epochs of pre-training of all clients, and the process's peak memory.

    Returns
    -------
    dict
        ``seconds``, ``clients`` that trained, ``microseconds`` per client and step, ``peak_mb``.
    """
    torch.set_num_threads(1)  # as `simulate` does
    method = FLIC(pretrain_epochs=EPOCHS, pretrain_batch=batch_size, batch_size=batch_size)
    simulator = Simulator(toy(n_clients), method, engine=engine, device="cpu", workers=1)  # type: ignore[arg-type]
    state = simulator.initial()
    names = [spec.name for spec in simulator.specs]
    chosen = list(range(n_clients)) if role == "start" else participants(names, PARTICIPATION, 0, 0)
    warm = chosen[: 1 if engine == "loop" else None]
    simulator.train(state, warm, 0, role)  # type: ignore[arg-type]
    seconds = _seconds(lambda: simulator.train(state, chosen, 0, role))  # type: ignore[arg-type]
    steps = sum(_steps(method, simulator.specs[c].n_train, role) for c in chosen)
    return {
        "seconds": seconds,
        "clients": len(chosen),
        "microseconds": 1e6 * seconds / steps,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _steps(method: FLIC, n: int, role: str) -> int:
    """Steps of a client with n samples: `EPOCHS` before the rounds; in one local epochs, those on α, one on anchors."""
    epochs = EPOCHS if role == "start" else method.local_epochs + method.representation_epochs
    return epochs * -(-n // method.batch_size) + (role != "start")


@dataclass(frozen=True)
class Part:
    """What one part of a step takes, and the least that arithmetic and memory traffic allow (ms, per step).

    Attributes
    ----------
    ms : float
        Measured.
    flops, bytes, normals : float
        Operations, bytes moved between memory and processor, and normal random numbers that the part needs.
    """

    ms: float
    flops: float = 0.0
    bytes: float = 0.0
    normals: float = 0.0

    def floor(self, roofs: Mapping[str, float]) -> float:
        """Milliseconds at the measured `roofs`; arithmetic and memory traffic overlap at best."""
        busy = max(self.flops / roofs["flops"], self.bytes / roofs["bytes"])
        return 1e3 * (busy + self.normals / roofs["normals"])


def roofs(n_clients: int, batch_size: int, k: int = 64) -> dict[str, float]:
    """What this machine reaches a second, on one thread, with tensors of the shapes of a step.

    ``flops`` in batched products, ``bytes`` read and written in a copy of one layer's weights, ``normals`` drawn.
    """
    torch.set_num_threads(1)
    rows = torch.randn(n_clients, batch_size, k, dtype=torch.float32)
    weights = torch.randn(n_clients, k, k, dtype=torch.float32)
    target, block, rng = weights.clone(), torch.empty(64, 20, k, dtype=torch.float32), torch.Generator()
    return {
        "flops": 2 * rows.numel() * k / _seconds(lambda: rows @ weights),
        "bytes": 2 * 4 * weights.numel() / _seconds(lambda: target.copy_(weights)),
        "normals": block.numel() / _seconds(lambda: block.normal_(generator=rng)),
    }


def _step_job(simulator: Simulator, role: Role) -> LocalJob:
    """One round of all clients of a federation with one cohort, most samples first."""
    state: State = simulator.initial()
    specs = simulator.specs
    order = sorted(range(len(specs)), key=lambda c: (-specs[c].n_train, specs[c].name))
    some = [specs[c] for c in order]
    data = simulator.cohorts[0].train.take(order, [spec.shapes for spec in some])
    received = [simulator.method.download(state.server, spec) for spec in some]
    kept, seeds = [simulator.held(c, state.kept[c]) for c in order], [simulator.seed] * len(order)
    return LocalJob(simulator.method, some, kept, received, data, seeds, 0, role)


def parts(n_clients: int, batch_size: int, role: Role) -> dict[str, Part]:
    """One stacked step part by part: of the alignment pre-training (``"start"``), or of a round's local epochs.

    ``batching`` gathers the samples, ``noise`` draws what the anchor samples need, ``embedding`` is φ forward and
    backward, ``class moments`` and ``Bures term`` are what the alignment adds to it, ``heads`` is what classifying rows
    and anchors adds, ``optimiser`` is Adam.
    """
    torch.set_num_threads(1)
    method = FLIC(pretrain_batch=batch_size, batch_size=batch_size)
    job = _step_job(Simulator(toy(n_clients), method, device="cpu"), role)
    stage = method.stages(0, role)[0]
    stack = Stack.of([method.start(kept, received) for kept, received in zip(job.kept, job.received, strict=True)])
    received, dims = stack_received(job.received)
    run = StackedStage(job, 0, stage, stack, received, dims)
    batches = Batches(job, 0, stage)
    noise = StackedNoise(job, 0, stage, batches, run.dtype)
    rows = batches.rows[0]
    batch, draws = run.batch(rows, batches.dump), noise.at(0, n_clients)
    optimiser = make_optimiser(stage, run.trained, fused=True)

    def backward(loss: Callable[..., Any]) -> float:
        def call() -> None:
            for p in run.trained.values():
                p.grad = None
            total = torch.func.vmap(
                lambda params, frozen, b, noise: loss({**frozen, **params}, received, b, noise),
            )(run.trained, run.frozen, batch, draws)
            total.sum().backward()

        return 1e3 * _seconds(call)

    embedding = backward(lambda p, r, b, e: method.embed(p, r, b.x).square().sum())
    aligned = backward(lambda p, r, b, e: method.alignment_loss(p, r, b, e).total)
    whole = aligned if role == "start" else backward(lambda p, r, b, e: method.loss(p, r, b, e).total)
    bures = 1e3 * _bures_seconds(job, run, batch, received)
    fill_gradients(run.trained)
    step = 1e3 * _seconds(optimiser.step)
    block = 1e3 * _seconds(lambda: noise.at(0, n_clients)) / noise.steps if draws else 0.0
    gather = 1e3 * _seconds(lambda: run.batch(rows, batches.dump))
    return _with_needs(
        {
            "batching": gather,
            "noise": block,
            "embedding": embedding,
            "class moments": max(aligned - embedding - bures, 0.0),
            "Bures term": bures,
            "heads": max(whole - aligned, 0.0),
            "optimiser": step,
        },
        run,
        batch,
        draws,
    )


def _bures_seconds(job: LocalJob, run: StackedStage, batch: Batch, received: Params) -> float:
    """Seconds of the nuclear norms and polar factors of one step."""
    with torch.no_grad():
        z = torch.func.vmap(lambda p, f, x: job.method.embed({**f, **p}, received, x))(run.trained, run.frozen, batch.x)
        member, counts = torch.func.vmap(lambda y, w: terms._membership(y, w, 20, z.dtype))(batch.y, batch.weight)
        centred = torch.func.vmap(terms._centred_rows)(z, member, counts)[1]
        noise = terms._size(z, batch.weight)
        return _seconds(lambda: terms._polar(centred, batch.y, batch.weight, noise))


def _with_needs(ms: Mapping[str, float], run: StackedStage, batch: Batch, draws: Params) -> dict[str, Part]:
    """Operations and bytes of each part, counted from shapes."""
    K, n = batch.y.shape
    weights = [p for name, p in run.trained.items() if name.startswith("phi") and name.endswith("weight")]
    phi, first = sum(p[0].numel() for p in weights), weights[0][0].numel()
    k = weights[-1].shape[-1]
    trained = 4 * K * sum(p[0].numel() for p in run.trained.values())
    heads = sum(p[0].numel() for name, p in (run.trained | run.frozen).items() if name.startswith(("alpha", "beta")))
    anchors = sum(t[0].numel() for t in draws.values()) // k
    sizes = [c for y, w in zip(batch.y, batch.weight, strict=True) for c in y[w > 0].unique(return_counts=True)[1]]
    counts = torch.stack(sizes).double() - 1
    needs = {
        "batching": {"bytes": 8 * batch.x.numel()},
        "noise": {"normals": K * anchors * k},
        "embedding": {"flops": K * 2 * n * (3 * phi - first), "bytes": 3 * 4 * K * phi},
        "class moments": {"bytes": 6 * 4 * K * n * k},
        "Bures term": {"flops": float((4 * k * counts**2 + 10 * counts**3).sum())},
        "heads": {"flops": K * 6 * (n + anchors) * heads * bool(anchors), "bytes": 12 * K * heads * bool(anchors)},
        "optimiser": {"bytes": 7 * trained},
    }
    return {name: Part(time, **needs[name]) for name, time in ms.items()}


def tail(n_clients: int = 100, few: int = 10, batch_size: int = 10) -> dict[str, float]:
    """Milliseconds a step of all clients, of the few that have batches left when the others are done, of few alone.

    Clients without a batch left cost nothing where the second and the third are equal.
    """
    torch.set_num_threads(1)
    method = FLIC(pretrain_epochs=EPOCHS, pretrain_batch=batch_size)

    def seconds(sizes: Sequence[int]) -> float:
        simulator = Simulator(toy(len(sizes), sizes=sizes), method, device="cpu", workers=1)
        state = simulator.initial()
        return _seconds(lambda: simulator.train(state, range(len(sizes)), 0, "start"), least=0.0)

    short, long = 2 * batch_size, 20 * batch_size
    steps = EPOCHS * 18
    every = seconds([short] * n_clients)
    return {
        "all": 1e3 * (seconds([long] * n_clients) - every) / steps,
        "few left": 1e3 * (seconds([long] * few + [short] * (n_clients - few)) - every) / steps,
        "few alone": 1e3 * (seconds([long] * few) - seconds([short] * few)) / steps,
    }


# --- seeds side by side -----------------------------------------------------------------------------------------------


def seeds_together(n_seeds: int = 5, n_clients: int = 100, batch_size: int = 100) -> dict[str, float]:
    """Microseconds per client and step of one round of several runs, alone and in common stacks."""
    torch.set_num_threads(1)
    method = FLIC(batch_size=batch_size)
    asked, steps = [], 0
    for seed in range(n_seeds):
        simulator = Simulator(toy(n_clients, seed), method, seed=seed, device="cpu", workers=1)
        chosen = participants([spec.name for spec in simulator.specs], PARTICIPATION, seed, 0)
        asked.append(Training(simulator, simulator.initial(), chosen, 0, "round"))
        steps += sum(_steps(method, simulator.specs[c].n_train, "round") for c in chosen)
    alone, all_ = _seconds(lambda: [train([one]) for one in asked]), _seconds(lambda: train(asked))
    return {"alone": 1e6 * alone / steps, "together": 1e6 * all_ / steps}


def _describe_seeds() -> Iterator[str]:
    """What `hetfl reproduce --together` saves in the rounds."""
    found = seeds_together()
    yield "\nFive seeds of 100 clients, 10 of each in a round, batch 100: µs per client and step"
    ratio = found["alone"] / found["together"]
    yield f"alone {found['alone']:.0f}, in common stacks {found['together']:.0f}: {ratio:.2f} times faster"


# --- clients of unequal widths --------------------------------------------------------------------------------------


def sensors(widths: Sequence[int] | None = None, share: float = 1.0) -> Federation:
    """Random numbers in the shapes of the 54 subjects of FLIC's Table S1: 6 … 1 830 features, 60 … 720 trials.

    The last session is the test set, or a quarter of the trials where there is one session.

    Parameters
    ----------
    widths : sequence of int, length 54, optional
        Other numbers of features.
    share : float
        Share of the trials of each class.
    """
    subjects = [recordings for recordings in TABLE_S1.values() for _ in range(recordings.n_subjects)]
    rng = numpy_stream(0, "bench", 0, "sensors")
    clients = []
    for i, recordings in enumerate(subjects):
        width = recordings.n_features if widths is None else widths[i]
        n = math.ceil(share * recordings.n_trials) * len(recordings.classes)
        n_test = n // (recordings.n_sessions if recordings.n_sessions > 1 else 4)
        x, y = rng.standard_normal((n, width), np.float32), np.arange(n) % len(recordings.classes)
        name = f"{recordings.name}-{i:02d}"
        clients.append(Client(x[n_test:], y[n_test:], x[:n_test], y[:n_test], name))
    return Federation(clients, len(CLASSES), "bench")


@dataclass(frozen=True)
class Padding:
    """What a way to stack clients of unequal widths costs.

    Attributes
    ----------
    stacks : int
    samples, parameters : float
        Numbers held, over those of the clients' true shapes.
    seconds : float
        CPU seconds of the rounds that were timed.
    """

    stacks: int
    samples: float
    parameters: float
    seconds: float


def paddings(method: Method, rounds: Sequence[Sequence[int]], share: float = 1.0) -> dict[str, Padding]:
    """Local training of the `sensors` in rounds with these participants, in three ways.

    ``one stack`` is padded to the widest client; ``buckets`` is what `Simulator` does; ``no padding`` has clients of
    equal widths in one stack, with the same trials, the same steps, and the same sum of widths over clients and
    steps: the time that the true widths ask for.
    """
    torch.set_num_threads(1)
    true = sensors(share=share)
    steps = np.array([-(-c.n_train // method.batch_size) for c in true])
    steps *= np.bincount(np.concatenate(rounds), minlength=len(true))
    even = round(float(np.average([c.shapes[0] for c in true], weights=steps)))
    found = {}
    for name, federation in (
        ("one stack", true),
        ("buckets", true),
        ("no padding", sensors([even] * len(true), share)),
    ):
        simulator = Simulator(federation, method, device="cpu", workers=1)
        if name == "one stack":
            simulator.cohorts = make_cohorts(simulator.federation, [0] * len(true))
            simulator.layouts = [Layout("stacked", MOST)]
        found[name] = _padding(simulator, rounds)
    return found


def _padding(simulator: Simulator, rounds: Sequence[Sequence[int]]) -> Padding:
    state = simulator.initial()
    params = simulator.working(state)
    stacks = [Stack.of([params[m] for m in cohort.members]).params.values() for cohort in simulator.cohorts]
    held = sum(p.numel() for stack in stacks for p in stack)
    samples = sum(split.x.numel() for cohort in simulator.cohorts for split in (cohort.train, cohort.test))

    def train() -> None:
        for number, chosen in enumerate(rounds):
            simulator.train(state, chosen, number, "round")

    return Padding(
        len(simulator.cohorts),
        samples / sum(c.x_train.numel() + c.x_test.numel() for c in simulator.federation),
        held / sum(p.numel() for own in params for p in own.values()),
        _seconds(train),
    )


def _describe_paddings() -> Iterator[str]:
    """Memory and time of the EEG subjects' widths against what their true widths ask for."""
    names = [c.name for c in sensors()]
    few = [participants(names, PARTICIPATION, 0, number) for number in range(5)]
    yield "\nClients of unequal widths: 54, in the shapes of FLIC's EEG subjects (8 with 136 features, 9 with 253,"
    yield "14 with 120, 9 with 6, 10 with 1830, 4 with 105). Samples, parameters: numbers held over those of the true"
    yield "widths. Ratio: to the time without padding, of 54 clients as wide as these on average (over steps)."
    for method, title, rounds in (
        (Local(local_epochs=2), "a round of all", [range(len(names))]),
        (FLIC(local_epochs=2), "a round of all", [range(len(names))]),
        (FLIC(local_epochs=2), "five rounds of 10 %", few),
    ):
        found = paddings(method, rounds)
        yield f"\n{method.name}, {title}, {method.local_epochs} local epochs, batch {method.batch_size}"
        yield _line("", "stacks", "samples", "parameters", "s", "ratio")
        for name, way in found.items():
            ratio = way.seconds / found["no padding"].seconds
            held = [f"{way.samples:.2f}", f"{way.parameters:.2f}"]
            yield _line(name, str(way.stacks), *held, f"{way.seconds:.3f}", f"{ratio:.2f}")


# --- stacks, the loop, and what is chosen -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Clients of one kind, for `engines`.

    Attributes
    ----------
    shape : tuple of int
        Of a sample.
    phi : Network
    batch_size, clients : int
    """

    shape: tuple[int, ...]
    phi: Network
    batch_size: int
    clients: int


CASES = {
    "MLP 64-64, batch 10": Case((15,), MLP(), 10, 20),
    "MLP 64-64, batch 100": Case((15,), MLP(), 100, 20),
    "MLP 256-256, batch 48": Case((784,), MLP((256, 256)), 48, 20),
    "MLP 1024, batch 48": Case((784,), MLP((1024,), 1024), 48, 10),
    "CNN 28 × 28, batch 100": Case((1, 28, 28), CNN(), 100, 3),
    "CNN 16 × 16, batch 10": Case((1, 16, 16), CNN(), 10, 20),
    "CNN 3 × 32 × 32, batch 48": Case((3, 32, 32), CNN(), 48, 3),
}
"""From FLIC's toys to FedCR's wide networks and colour images."""


def alike(case: Case, steps: int = 2) -> Federation:
    """Clients with random numbers in the shape of the case and two batches each, ten of them for testing."""
    rng = numpy_stream(0, "bench", 0, "alike")
    clients = []
    for i in range(case.clients):
        x = rng.standard_normal((steps * case.batch_size, *case.shape), np.float32)
        y = np.arange(len(x)) % 10
        clients.append(Client(x, y, x[:10], y[:10], f"client-{i:03d}"))
    return Federation(clients, 10, "bench")


def engines(case: Case, method: Method | None = None, steps: int = 2) -> tuple[dict[str, float], Layout]:
    """Milliseconds per client and step of the loop, stacks of one, one stack, and what is chosen; and which that is.

    Local training with Adam, two steps, unless another method is given, which must take so many `steps` a round.
    """
    torch.set_num_threads(1)
    federation = alike(case)
    method = method or Local(Model(case.phi), local_epochs=1, batch_size=case.batch_size)
    ways: dict[str, dict[str, Any]] = {
        "loop": {"engine": "loop"},
        "one by one": {"engine": "stacked", "stack_size": 1},
        "one stack": {"engine": "stacked"},
        "chosen": {},
    }
    found = {}
    for name, options in ways.items():
        simulator = Simulator(federation, method, device="cpu", workers=1, **options)
        state, everyone = simulator.initial(), range(case.clients)
        seconds = _seconds(partial(simulator.train, state, everyone, 0, "round"), least=0.3)
        found[name] = 1e3 * seconds / (steps * case.clients)
    return found, simulator.layouts[0]


ALIGNED = {
    "MLP 64-64, batch 10": Case((15,), MLP(), 10, 0),
    "MLP 128-32, batch 32 (MNIST)": Case((784,), MLP((128,), 32), 32, 0),
}
"""Networks on which Fed-CMA's rounds are measured, of any number of clients."""


def aligned(name: str, n_clients: int) -> dict[str, float]:
    """`engines` of Fed-CMA: two local steps with its pulls, by a name of `ALIGNED` and so many clients."""
    case = replace(ALIGNED[name], clients=n_clients)
    common: dict[str, Any] = {"optimiser": "sgd", "lr": 0.01, "batch_size": case.batch_size, "local_steps": 2}
    return engines(case, FedCMA(Model(case.phi), server_step=1.0, **common))[0]


WIDE = Case((784,), MLP((1024,), 1024, last="relu"), 48, 3)
"""FedCR's network for vectors; behind it lie 512 random features, drawn 18 times a sample."""


def random_features() -> dict[str, float]:
    """`engines` of FedCR on `WIDE`, trained as its paper does: plain SGD, gradients clipped at norm 10."""
    common: dict[str, Any] = {"optimiser": "sgd", "clip": 10.0, "lr": 0.05, "batch_size": WIDE.batch_size}
    return engines(WIDE, FedCR(Model(WIDE.phi, gaussian=512), samples=18, local_epochs=8, **common), steps=16)[0]


def _describe_random() -> Iterator[str]:
    """FedCR's step at the paper's widths."""
    yield "\nFedCR with an MLP of 1024, V = 512 and S = 18, batch 48: milliseconds per client and step."
    yield _line("loop", "one by one", "one stack", "chosen")
    yield _line(*(f"{ms:.1f}" for ms in random_features().values()))


def _describe_aligned(sizes: Iterable[int] = (20, 100)) -> Iterator[str]:
    """Fed-CMA's rounds, stacked and looped."""
    yield "\nFed-CMA, milliseconds per client and step of a round, and how many times faster than the loop."
    yield f"{'':<32}" + _line("clients", "loop", "one stack", "ratio", "chosen")
    for name, n in itertools.product(ALIGNED, sizes):
        found = aligned(name, n)
        ratio = f"{found['loop'] / found['one stack']:.1f}×"
        cells = [f"{found['loop']:.3f}", f"{found['one stack']:.3f}", ratio, f"{found['chosen']:.3f}"]
        yield f"{name:<32}" + _line(str(n), *cells)


def matchings(n_clients: int = 8, neurons: int = 512, dim: int = 3073) -> dict[str, float]:
    """Seconds that HyFEM's server takes for one pass of matching, by its cost: each client once, D coordinates."""
    rng, held = torch.Generator().manual_seed(0), torch.ones(dim, dtype=torch.float32)
    each = [Neurons(torch.randn(neurons, dim, generator=rng, dtype=torch.float32), held) for _ in range(n_clients)]

    def seconds(cost: Cost) -> float:
        return _seconds(lambda: match(each, passes=1, rule=Rule(cost, "sequential")), least=0.0, most=1)

    return {cost: seconds(cost) for cost in get_args(Cost)}


def quarters(dim: int = 196) -> Federation:
    """Six clients with the blocks of HyFEM's Table 4, of `dim` random numbers each, and as many samples as classes."""
    rng = numpy_stream(0, "bench", 0, "quarters")
    clients = []
    for i, one in enumerate(ASSIGNMENTS["table 4"]):
        held = [QUADRANTS[b] for b in one.blocks]
        y = np.repeat(one.classes, 64)
        x = {b: rng.normal(size=(len(y), dim if b in held else 0)).astype(np.float32) for b in QUADRANTS}
        clients.append(Client(x, y, {b: t[:5] for b, t in x.items()}, y[:5], f"client-{i}"))
    return Federation(clients, 10, "bench")


def block_steps(federation: Federation, steps: int = 32) -> tuple[float, int]:
    """Milliseconds that a local step of all clients of such a federation takes, and the number of their stacks."""
    model = Model(Blocks.alike(QUADRANTS, MLP((64,), 32, last="relu"), 128))
    method = Local(model, optimiser="sgd", momentum=0.5, batch_size=32, local_steps=steps)
    simulator = Simulator(federation, method, engine="stacked", device="cpu", workers=1)
    begun = simulator.initial()
    seconds = _seconds(lambda: simulator.train(begun, range(len(federation)), 0, "round"))
    return 1e3 * seconds / steps, len(simulator.cohorts)


def _describe_blocks() -> Iterator[str]:
    """What clients of different blocks cost, which do not share a stack; and what the server's matching does."""
    yield "\nNamed blocks: a local step of six clients with quadrants of 14 × 14, batch 32"
    lacking = quarters()
    for what, federation in (("three sets of blocks", lacking), ("zeros for missing ones", lacking.filled())):
        ms, stacks = block_steps(federation)
        yield _line(what, f"{stacks} stack{'s' * (stacks > 1)}", f"{ms:.2f} ms", width=22)
    yield "HyFEM's matching, one pass of 8 clients with 512 neurons in D = 3 073 coordinates, seconds"
    yield ", ".join(f"{cost} {seconds:.2f}" for cost, seconds in matchings().items())


BESIDE = {
    "MLP 64, batch 32, 6 clients": Case((10,), MLP((64,)), 32, 6),
    "MLP 256, batch 100, 20": Case((10,), MLP((256,)), 100, 20),
    "MLP 256-256, batch 100, 20": Case((10,), MLP((256, 256)), 100, 20),
    "MLP 512-512, batch 100, 20": Case((10,), MLP((512, 512)), 100, 20),
}
"""What is trained as two stacks, for `beside_each_other`."""


def beside_each_other(case: Case) -> tuple[float, float, float, bool]:
    """Two stacks: operations of a step of one; milliseconds of ten steps of both, in a row and a core each (wall).

    Last, whether the engine would give each a core.
    """
    torch.set_num_threads(1)
    federation, each = alike(case, steps=10), case.clients // 2
    method = Local(Model(case.phi), local_epochs=1, batch_size=case.batch_size)
    found = []
    for workers in (1, 2):
        simulator = Simulator(federation, method, device="cpu", stack_size=each, workers=workers)
        both = partial(simulator.train, simulator.initial(), range(case.clients), 0, "round")
        both()
        found.append(1e3 * min(timed(both).wall for _ in range(4)))
    done = simulator.work(simulator.cohorts[0], simulator.initial().server)
    return each * done.operations, found[0], found[1], simulator.layouts[0].parallel


def _describe_cores() -> Iterator[str]:
    """From which size on two stacks are trained faster side by side."""
    yield "\nTwo stacks, ten steps: in a row, or a core each? Milliseconds, and what is chosen."
    yield f"{'':<28}" + _line("Mflop/step", "in a row", "side by side", "gain", "chosen")
    for name, case in BESIDE.items():
        operations, row, side, parallel = beside_each_other(case)
        cells = [f"{operations / 1e6:.3g}", f"{row:.1f}", f"{side:.1f}", f"{row / side:.2f}×"]
        yield f"{name:<28}" + _line(*cells, "side by side" if parallel else "in a row")


def costs() -> Costs:
    """The constants by which an engine is chosen, as they are on this machine (not those of memory and of threads)."""
    tiny = Case((4,), MLP((4,), 4), 2, 1)
    pair = Case((1, 28, 28), CNN(), 10, 2)
    overhead, convolutions = engines(tiny)[0], engines(pair)[0]
    network = CNN()
    done = work(
        lambda params, _, x: network(params, x),
        network.init(pair.shape, torch.Generator()),
        {},
        torch.zeros(pair.batch_size, *pair.shape, dtype=torch.float32),
    )
    loop = convolutions["loop"] - overhead["loop"]
    stack = convolutions["one stack"] - overhead["one by one"] / 2
    return Costs(
        loop=overhead["loop"] / 1e3,
        stacked=overhead["one by one"] / 1e3,
        grouped=stack / loop,
        rate=1e3 * done.convolutions / loop,
    )


def _describe_engines() -> Iterator[str]:
    """What each way of training a kind of client costs, and the constants of the choice."""
    yield "\nStacks or the loop? Milliseconds per client and step, local training with Adam, and what is chosen."
    yield f"{'':<28}" + _line("loop", "one by one", "one stack", "chosen") + "  which is"
    for name, case in CASES.items():
        found, way = engines(case)
        which = "the loop" if way.engine == "loop" else f"stacks of {min(way.size, case.clients)}"
        yield f"{name:<28}" + _line(*(f"{ms:.3f}" for ms in found.values())) + f"  {which}"
    here = costs()
    yield "\nThe constants of that choice (`hetfl_core.engine.layout.Costs`), and as they are here:"
    units = {"loop": (1e3, "ms"), "stacked": (1e3, "ms"), "grouped": (1, "times"), "rate": (1e-9, "GFLOP/s")}
    for name, (scale, unit) in units.items():
        yield f"{name:>10} {scale * getattr(CPU, name):8.2f} {scale * getattr(here, name):8.2f} {unit}"


@dataclass(frozen=True)
class Noisy(Local):
    """Local training with as much noise as FedCR declares: 18 draws of 512 numbers per sample."""

    def noise(self, spec: Spec, stage: Stage) -> dict[str, Draw]:
        """The declared noise; it is drawn, and has no effect."""
        return {"xi": Draw((18, 512), per="sample")}


def noise_memory(n_clients: int) -> dict[str, Any]:
    """Peak memory of one round of clients in one stack that draw noise of FedCR's size."""
    torch.set_num_threads(1)
    federation = alike(Case((10,), MLP(), 48, n_clients), steps=11)
    method = Noisy(Model(MLP()), local_epochs=1, batch_size=48)
    simulator = Simulator(federation, method, device="cpu", engine="stacked")
    begin = time.process_time()
    simulator.train(simulator.initial(), range(n_clients), 0, "round")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.process_time() - begin, "peak_mb": peak}


def evaluation(n_clients: int = 100, n_test: int = 200) -> dict[str, float]:
    """CPU seconds of evaluating wide clients, and of one forward pass of each."""
    torch.set_num_threads(1)
    case = Case((784,), MLP((1024,), 1024), n_test, n_clients)
    simulator = Simulator(alike(case, steps=1), Local(Model(case.phi)), device="cpu", workers=1)
    state = simulator.initial()
    params = simulator.working(state)

    def forward() -> None:
        with torch.no_grad():
            for client, own in zip(simulator.federation, params, strict=True):
                simulator.method.predict(own, {}, client.x_train)

    return {
        "evaluation": _seconds(lambda: simulator.predicted(state, "train", params)),
        "forward pass": _seconds(forward),
    }


def _describe_size() -> Iterator[str]:
    """Memory of large noise, and time of evaluation."""
    n = 100
    noise = _apart(kind="noise", n_clients=n)
    yield f"\nNoise of FedCR's size (18 × 512 numbers per sample, batch 48, 11 steps), {n} clients in one stack:"
    yield f"peak memory {noise['peak_mb']:.0f} MB, {noise['seconds']:.1f} s"
    found = evaluation()
    yield "\nEvaluation of 100 clients of 200 samples, an MLP 1024 wide: "
    ratio = found["evaluation"] / found["forward pass"]
    yield f"{found['evaluation']:.2f} s, {ratio:.2f} times one forward pass of each"


# --- ours beside another command --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seconds:
    """What something took: `wall` seconds, and `cpu` seconds over all its threads and processes."""

    wall: float
    cpu: float


def timed(call: Callable[[], Any]) -> Seconds:
    """What a call takes, in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def command(line: str) -> Seconds:
    """What a command of the shell takes, with all that it starts.

    Raises
    ------
    RuntimeError
        If it fails, with the end of what it said.
    """
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(line, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - wall
    if done.returncode:
        raise RuntimeError(f"the command {line!r} ended with {done.returncode}: {done.stderr[-2000:].strip()}")
    return Seconds(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def beside(ours: Seconds, theirs: Seconds | None = None) -> Iterator[str]:
    """Ours, and the other command's, in CPU and wall seconds."""
    yield _line("", "CPU s", "wall s")
    yield _line("ours", f"{ours.cpu:.1f}", f"{ours.wall:.1f}")
    if theirs is not None:
        yield _line("theirs", f"{theirs.cpu:.1f}", f"{theirs.wall:.1f}")
        yield _line("ratio", f"{theirs.cpu / ours.cpu:.1f}", f"{theirs.wall / ours.wall:.1f}")


# --- the report -------------------------------------------------------------------------------------------------------


def _apart(**arguments: Any) -> dict[str, Any]:
    """Run one measurement in a fresh process and return what it printed."""
    command = [sys.executable, "-m", "hetfl_core.benchmark", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    if done.returncode:
        raise RuntimeError(f"measurement {arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _line(*cells: str, width: int = 10) -> str:
    return " ".join(f"{cell:>{width}}" for cell in cells)


def report(sizes: tuple[int, ...] = SIZES, loop_up_to: int = 100) -> Iterator[str]:
    """Measure and describe, line by line.

    Raises
    ------
    ValueError
        For a number of clients of which none takes part in a round.
    """
    least = math.ceil(1 / PARTICIPATION)
    if small := [n for n in sizes if n < least]:
        raise ValueError(f"sizes must be at least {least}, so that a client takes part in a round, got {small[0]}")
    yield f"PyTorch {torch.__version__}, 1 thread (as `simulate` uses by default) of {os.cpu_count()} cores"
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
    yield from _describe_parts()
    yield from _describe_tail()
    yield from _describe_seeds()
    yield from _describe_paddings()
    yield from _describe_engines()
    yield from _describe_cores()
    yield from _describe_aligned([n for n in (20, 100) if n <= max(sizes)])
    yield from _describe_random()
    yield from _describe_blocks()
    yield from _describe_size()
    yield "\nFlower's simulation beside the engine: what a message to a client costs"
    yield from flower.describe(toy(100, sizes=[20] * 100), HetFedRep(local_epochs=1))


def _describe_parts() -> Iterator[str]:
    """Where a step goes, at the batch sizes of pre-training and of a round."""
    yield "\nWhere a stacked step goes. The floor is what the arithmetic and the memory traffic of a part would take at"
    yield "the rates that a product, a copy and a draw of the same shapes reach here; ratio: how far from it we are."
    yield "Class moments and Bures term are the anchor term."
    for batch_size, n, role in ((10, 100, "start"), (100, 100, "start"), (100, 10, "round"), (100, 100, "round")):
        reached = roofs(n, batch_size)
        found = parts(n, batch_size, role)  # type: ignore[arg-type]
        total = sum(part.ms for part in found.values())
        least = sum(part.floor(reached) for part in found.values())
        title = "Alignment pre-training" if role == "start" else "Local epochs of a round"
        yield f"\n{title}, {n} clients, batch {batch_size}"
        yield (
            f"({reached['flops'] / 1e9:.0f} GFLOP/s, {reached['bytes'] / 1e9:.0f} GB/s, "
            f"{reached['normals'] / 1e6:.0f} million normals/s)"
        )
        yield _line("part", "ms", "share", "floor ms", "ratio", "µs/client", width=13)
        for name, part in [*found.items(), ("step", Part(total))]:
            floor = least if name == "step" else part.floor(reached)
            cells = [f"{part.ms:.3f}", f"{100 * part.ms / total:.0f} %", f"{floor:.3f}"]
            yield _line(name, *cells, f"{part.ms / floor:.1f}" if floor else "", f"{1e3 * part.ms / n:.1f}", width=13)


def _describe_tail(n_clients: int = 100, few: int = 10) -> Iterator[str]:
    """What steps cost when most clients have no batch left."""
    times = tail(n_clients, few)
    yield "\nSteps when most clients have no batch left, alignment pre-training, batch 10"
    for name, clients in (("all", n_clients), ("few left", few), ("few alone", few)):
        ms, each = times[name], 1e3 * times[name] / clients
        yield _line(name, f"{clients} clients", f"{ms:.2f} ms", f"{each:.0f} µs/client", width=13)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(noise_memory(asked["n_clients"]) if asked.pop("kind", "") == "noise" else measure(**asked)))
