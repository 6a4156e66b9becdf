"""The hot loop: the stages of one round, for a stack of clients or, as an oracle, client by client.

Both engines see the same batches and the same noise, because both come from the client's own stream: `plan` lays out
all batches of a stage before it starts, `Noise` hands out declared random numbers step by step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hetfl_core.engine.sides import batch
from hetfl_core.engine.stacks import Split
from hetfl_core.engine.steps import Program, Records, Step
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec, blocks, map_blocks
from hetfl_core.methods.base import Batch, Method, Role, Stage
from hetfl_core.methods.descent import Descent, filled
from hetfl_core.networks import Draw, Params, Tensors
from hetfl_core.networks.layers import RUNNING, missing
from hetfl_core.padding import crop, pad_stack
from hetfl_core.rng import Stream, secret_stream, stream

NOISE_STEPS = 64
"""Most steps for which noise is drawn at once; part of what a seed means, as is `NOISE_NUMBERS`."""

NOISE_NUMBERS = 2**22
"""Most random numbers of one client that are drawn at once (16 MiB in float32), unless a single step needs more."""

# --- what is the same for both engines ------------------------------------------------------------------------------


def n_steps(stage: Stage, n: int) -> int:
    """Optimisation steps that a client with n samples takes in a stage.

    Parameters
    ----------
    stage : Stage
    n : int
        Training samples.

    Returns
    -------
    int
        The stage's `steps`, or its `epochs` times the batches of an epoch.
    """
    if stage.steps is not None:
        return stage.steps
    assert stage.epochs is not None
    return stage.epochs * batches_of_epoch(stage, n)


def batches_of_epoch(stage: Stage, n: int) -> int:
    """Batches that n samples give: the last one may be short, or is left out (`Stage.drop_last`), unless it is all.

    Parameters
    ----------
    stage : Stage
    n : int
        Training samples, at least 1.

    Returns
    -------
    int
    """
    return max(1, n // stage.batch_size) if stage.drop_last else -(-n // stage.batch_size)


def plan(stage: Stage, n: int, rng: torch.Generator) -> Tensor:
    """The batches of one client: for each step the rows of its training samples, −1 where a batch is short.

    Each epoch is a fresh random order of the samples, cut into batches; what is left over at its end is a short batch,
    or no batch (`Stage.drop_last`).

    Parameters
    ----------
    stage : Stage
    n : int
        Training samples, at least 1.
    rng : torch.Generator
        On the CPU.

    Returns
    -------
    Tensor of int32, shape (steps, min(batch_size, n))
    """
    size, steps = min(stage.batch_size, n), n_steps(stage, n)
    per_epoch = batches_of_epoch(stage, n)
    epochs = -(-steps // per_epoch)
    order = torch.rand(epochs, n, generator=rng, dtype=torch.float32).argsort(1).to(torch.int32)
    rows = order.new_full((epochs, per_epoch * size), -1)
    kept = min(n, per_epoch * size)
    rows[:, :kept] = order[:, :kept]
    return rows.reshape(-1, size)[:steps]


def noise_at_once(draws: Mapping[str, Draw], rows: int) -> tuple[int, int]:
    """Steps of which a client's noise is drawn at once for batches of so many rows, and how many numbers those are.

    They are `NOISE_STEPS`, halved until they are no more than `NOISE_NUMBERS` numbers.
    """
    each = sum(math.prod(draw.shape) * (rows if draw.per == "sample" else 1) for draw in draws.values())
    steps = NOISE_STEPS
    while steps > 1 and steps * each > NOISE_NUMBERS:
        steps //= 2
    return steps, steps * each


class Noise:
    """The declared random numbers of one client and stage, drawn for several steps at a time.

    Parameters
    ----------
    draws : dict of str to Draw
        What is declared.
    rows : int
        Rows of a batch.
    rng : torch.Generator
        On the CPU.
    dtype : torch.dtype

    Attributes
    ----------
    steps : int
        Steps that are drawn at once; see `noise_at_once`.
    """

    def __init__(self, draws: Mapping[str, Draw], rows: int, rng: torch.Generator, dtype: torch.dtype) -> None:
        self.draws, self.rows, self.rng, self.dtype = draws, rows, rng, dtype
        self.steps, _ = noise_at_once(draws, rows)
        self.drawn: Params = {}

    def of(self, step: int, count: int) -> Params:
        r"""The numbers of `count` steps from `step` on, each of shape (count, [rows,] \*shape).

        Steps are asked for in order, and both are multiples and divisors of `steps`, which is a power of two.

        Parameters
        ----------
        step : int
            The first one.
        count : int
            How many.

        Returns
        -------
        dict of str to Tensor
            By the names of the draws.
        """
        begin = step % self.steps
        if begin == 0:
            size = {"step": (self.steps,), "sample": (self.steps, self.rows)}
            self.drawn = {name: draw.sample(size[draw.per], self.rng, self.dtype) for name, draw in self.draws.items()}
        found = {name: numbers[begin : begin + count] for name, numbers in self.drawn.items()}
        if begin + count == self.steps:
            self.drawn = {}
        return found


def check_prefixes(method: Method, stage: Stage, params: Params) -> None:
    """Refuse a stage that names what is not there, but for parts that not every model has: most likely misspelt."""
    if missing(stage.train, params) or (stage.train and not any(stage.trains(name) for name in params)):
        parts = sorted({name.split(".")[0] for name in params})
        raise WrongValue(
            f"{method.name}: a stage trains {stage.train}, but the working copy has only the parts {parts}"
        )


def check_memory(method: Method, stage: Stage, remember: Tensors) -> None:
    """Refuse to leave samples out where the loss remembers something of each: some would never have been seen."""
    if remember and stage.drop_last:
        raise WrongValue(
            f"{method.name} remembers {sorted(remember)} of every sample, and drop_last would leave some out: take "
            "drop_last=False"
        )


# --- one round of a few clients -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What one client brings out of a round.

    Parameters
    ----------
    upload, client_state : dict of str to Tensor
        What it sends (in role ``"round"``, and ``"final"`` where the method `closes`), and what it keeps for the next
        round.
    received : dict of str to Tensor
        What it was sent.
    terms : dict of str to float
        Means of the loss terms over its steps.
    params : dict of str to Tensor
        Its whole working copy at the end.
    """

    upload: Params
    client_state: Params
    received: Params
    terms: dict[str, float]
    params: Params


Outcomes = Mapping[int, Outcome]
"""Outcomes of some clients, by their indices."""


@dataclass(frozen=True)
class LocalJob:
    """One round of training for clients that share a stack, of one run or of several.

    Parameters
    ----------
    method : Method
    specs : sequence of Spec
        One per client.
    client_states, received : sequence of dict of str to Tensor
        What each client keeps and got, in true shapes.
    data : Split
        Their training samples.
    seeds : sequence of int
        That of each client's run.
    round, role
        Key the random numbers, with the seed and the client's name.
    records : Records
        Of the run's steps, for stages that come again.
    secrets : sequence of bytes or None
        Of the clients, for the noise of `Method.protect`; where there is none, or it is None, that too is keyed by
        seed, name and round.
    """

    method: Method
    specs: Sequence[Spec]
    client_states: Sequence[Params]
    received: Sequence[Params]
    data: Split
    seeds: Sequence[int]
    round: int
    role: Role
    records: Records = field(default_factory=Records)
    secrets: Sequence[bytes | None] = ()

    def rng(self, client: int, stage: int, purpose: str) -> torch.Generator:
        """The stream of one client for one purpose of one stage."""
        return stream(self.seeds[client], self.specs[client].name, self.round, f"{self.role}/{stage}/{purpose}")

    def protection(self, client: int, upload: Params) -> Stream:
        """What the noise over one client's upload is drawn with."""
        place = (self.seeds[client], self.specs[client].name, self.round, "protect")
        secret = self.secrets[client] if self.secrets else None
        return stream(*place) if secret is None else secret_stream(secret, *place, upload, self.received[client])

    def samples(self, client: int) -> Batch:
        """All training samples of one client, in true shapes."""
        return batch(*self.data.client(client, self.specs[client].shapes))


def train_loop(job: LocalJob) -> list[Outcome]:
    """The slow, obvious engine: one client after the other, in true shapes, without `vmap`."""
    return [_train_one(job, client) for client in range(len(job.specs))]


def _train_one(job: LocalJob, i: int) -> Outcome:
    method = job.method
    params = {name: p.clone() for name, p in method.start(job.client_states[i], job.received[i]).items()}
    memory: Params = {}
    terms: dict[str, float] = {}
    for number, stage in enumerate(method.stages(job.round, job.role)):
        check_prefixes(method, stage, params)
        if any(stage.trains(name) for name in params):
            terms |= _loop_stage(job, i, number, stage, params, memory)
        params = {name: p.detach() for name, p in params.items()}
    return _outcome(job, i, params, memory, terms)


def _outcome(job: LocalJob, i: int, params: Params, memory: Tensors, terms: dict[str, float]) -> Outcome:
    """What the i-th client brings out: an upload, protected as the method wants, where the server waits for one."""
    upload: Params = {}
    with torch.no_grad():
        if job.role == "round" or (job.role == "final" and job.method.closes):
            upload = job.method.upload(params, job.received[i], job.samples(i), memory)
            try:
                upload = job.method.protect(upload, job.received[i], job.protection(i, upload))
            except ValueError as error:
                raise WrongValue(f"client {job.specs[i].name!r}: {error}") from error
        return Outcome(upload, job.method.keep(params, job.client_states[i]), job.received[i], terms, params)


def _loop_stage(job: LocalJob, i: int, number: int, stage: Stage, params: Params, memory: Params) -> dict[str, float]:
    """One stage of one client; updates `params` and `memory` in place and returns the mean loss terms."""
    loss, data = stage.loss or job.method.loss, job.samples(i)
    trained = {name: p.requires_grad_() for name, p in params.items() if stage.trains(name)}
    batches = plan(stage, job.specs[i].n_train, job.rng(i, number, "batches")).to(data.y.device)
    draws = job.method.noise(job.specs[i], stage)
    noise = Noise(draws, batches.shape[1], job.rng(i, number, "noise"), data.weight.dtype)
    descent = Descent(stage, trained, stacked=False)
    sums: dict[str, float] = {}
    follows = any(name.endswith(RUNNING) for name in params)
    for step, rows in enumerate(batches):
        if step % noise.steps == 0:
            block = {name: t.to(data.y.device) for name, t in noise.of(step, noise.steps).items()}
        here = {name: t[step % noise.steps] for name, t in block.items()}
        true, batch = rows >= 0, _pick_rows(data, rows)
        here |= {name: batch.weight for name, draw in draws.items() if draw.kind == "rows"}
        result = loss(params, job.received[i], batch, here)
        check_memory(job.method, stage, result.remember)
        with torch.no_grad():
            followed = job.method.follow(params, job.received[i], batch, here) if follows else {}
        for name, values in result.remember.items():  # before the step, which moves what is a view of a parameter
            if name not in memory:
                memory[name] = values.new_zeros((len(data.y), *values.shape[1:]))
            memory[name][rows[true].long()] = values.detach()[true]
        grads = torch.autograd.grad(result.total, list(trained.values()), allow_unused=True)
        descent.step(filled(trained, grads))
        params.update(followed)
        for name, value in result.terms.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return {name: value / len(batches) for name, value in sums.items()}


def _pick_rows(data: Batch, rows: Tensor) -> Batch:
    """The named rows of a client's samples; −1 gives a row of zeros with weight 0."""
    true, at = rows >= 0, rows.clamp(min=0).long()
    x = map_blocks(lambda t: t[at] * true.to(t.dtype).reshape(-1, *[1] * (t.dim() - 1)), data.x)
    return Batch(x, data.y[at] * true, true.to(data.weight.dtype))


# --- the stacked engine ---------------------------------------------------------------------------------------------


def _same_names(hook: str, clients: Sequence[Params]) -> list[str]:
    """The names that every client of a stack has."""
    for client in clients:
        if client.keys() != clients[0].keys():
            odd = sorted(client.keys() ^ clients[0].keys())
            raise WrongValue(f"{hook} gives clients of one stack different names: {odd[:5]} only on some of them")
    return list(clients[0])


def stack_clients(clients: Sequence[Params]) -> Params:
    """The tensors of K clients with a leading client axis, padded."""
    return {name: pad_stack([c[name] for c in clients]) for name in _same_names("start", clients)}


def stack_received(received: Sequence[Params]) -> tuple[Params, dict[str, int | None]]:
    """Stack what was received, with `vmap`'s in_dims: a tensor that is one object for all is not replicated."""
    stacked: Params = {}
    dims: dict[str, int | None] = {}
    for name in _same_names("download", received):
        first = received[0][name]
        same = all(r[name] is first for r in received)
        stacked[name], dims[name] = (first, None) if same else (pad_stack([r[name] for r in received]), 0)
    return stacked, dims


GATHERED = 64
"""Steps whose labels are gathered at once."""


class Batches:
    """The batches of a stage for a stack of clients that is sorted by number of steps, most first.

    Attributes
    ----------
    rows : Tensor of int32, shape (steps, K, size)
        Rows of the stack's samples; `padding_row` where a batch is short or a client has no batch left.
    sizes : list of int
        True batch size of each client; `size` is the largest.
    active : list of int
        For each step, how many clients have a batch left: the first so many of the stack.
    """

    def __init__(self, job: LocalJob, number: int, stage: Stage, dtype: torch.dtype) -> None:
        plans = [plan(stage, spec.n_train, job.rng(i, number, "batches")) for i, spec in enumerate(job.specs)]
        self.padding_row = job.data.padding_row
        self.sizes = [p.shape[1] for p in plans]
        self.size = max(self.sizes)
        steps = np.array([len(p) for p in plans])
        table = torch.full((steps.max(), len(plans), self.size), -1, dtype=torch.int32)
        for i, (p, begin) in enumerate(zip(plans, job.data.begins.tolist(), strict=True)):
            table[: len(p), i, : p.shape[1]] = torch.where(p < 0, p, p + begin)
        self.rows = table.masked_fill_(table < 0, self.padding_row).to(job.data.y.device)
        self.active = np.searchsorted(-steps, -np.arange(steps.max())).tolist()
        self.x, self.y = blocks(job.data.x), job.data.y
        self.dtype = dtype
        self.block: list[tuple[Tensor, ...]] = []
        self.cut = 0  # for how many clients the block is

    def at(self, step: int, k: int) -> tuple[list[Tensor], Tensor]:
        """A batch of each of the first k clients (blocks of inputs, labels, weights), and its k · size rows."""
        number = step % GATHERED
        if not number or k != self.cut:
            rows = self.rows[step - number : step - number + GATHERED, :k]
            y = self.y.index_select(0, rows.flatten()).view(rows.shape)
            self.block = [t.unbind() for t in (rows.flatten(1), y, (rows != self.padding_row).to(self.dtype))]
            self.cut = k
        at, y, weight = (t[number] for t in self.block)
        return [*(t.index_select(0, at).view(k, self.size, *t.shape[1:]) for t in self.x), y, weight], at


class StackedNoise:
    """The declared noise of a stack: drawn by each client for itself, padded as widely as the whole stack needs."""

    def __init__(self, job: LocalJob, number: int, stage: Stage, batches: Batches, dtype: torch.dtype) -> None:
        self.device = job.data.y.device
        self.sources = [
            Noise(job.method.noise(spec, stage), size, job.rng(i, number, "noise"), dtype)
            for i, (spec, size) in enumerate(zip(job.specs, batches.sizes, strict=True))
        ]
        self.steps, self.dtype = min(source.steps for source in self.sources), dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, draw in self.sources[0].draws.items():
            widest = [max(sizes) for sizes in zip(*(s.draws[name].shape for s in self.sources), strict=True)]
            self.shapes[name] = (*([batches.size] if draw.per == "sample" else []), *widest)
        self.block: Params = {}

    def at(self, step: int, k: int) -> Params:
        r"""The noise of the first k clients at a step, each of shape (k, [rows,] \*shape); steps must be in order."""
        if step % self.steps == 0:
            self.block = {}  # before the next one is made
            block = {n: torch.zeros(self.steps, k, *shape, dtype=self.dtype) for n, shape in self.shapes.items()}
            for i, source in enumerate(self.sources[:k]):  # one after the other: no client's numbers are held twice
                for name, numbers in source.of(step, self.steps).items():
                    crop(block[name][:, i], numbers.shape).copy_(numbers)
            self.block = {name: t.to(self.device) for name, t in block.items()}
        return {name: t[step % self.steps, :k] for name, t in self.block.items()}


class StackedStage:
    """One stage of training for a stack of K clients."""

    def __init__(
        self, job: LocalJob, number: int, stage: Stage, params: Params, received: Params, dims: Mapping[str, int | None]
    ) -> None:
        self.job, self.stage, self.dims = job, stage, dims
        self.trained = {name: p for name, p in params.items() if stage.trains(name)}
        self.frozen = {name: p for name, p in params.items() if name not in self.trained}
        self.received, self.k = received, len(job.specs)
        self.given = [*self.trained.values(), *self.frozen.values(), *received.values()]
        dtype = next(t.dtype for t in (*params.values(), *received.values()) if t.is_floating_point())
        self.batches = Batches(job, number, stage, dtype)
        self.noise = StackedNoise(job, number, stage, self.batches, dtype)
        self.descent = Descent(stage, self.trained, stacked=True)
        self.rows = [name for name, draw in job.method.noise(job.specs[0], stage).items() if draw.kind == "rows"]
        groups = self.trained, self.frozen, received, {**self.noise.shapes, **dict.fromkeys(self.rows)}
        follow = job.method.follow if any(name.endswith(RUNNING) for name in params) else None
        self.computed = job.records.step(Step(stage.loss or job.method.loss, follow, dims, groups, job.data.x))
        self.program: Program | None = None
        self.compared = False  # whether a record has been compared with a live step in this stage
        self.sums: Params = {}

    def step(self, step: int, memory: Params) -> None:
        """Take one step with the clients that have a batch left, and update the stack and `memory`, without waiting."""
        if self.batches.active[step] < self.k:
            self._narrow(self.batches.active[step])
        batch, at = self.batches.at(step, self.k)
        noise = {**self.noise.at(step, self.k), **dict.fromkeys(self.rows, batch[-1])}
        inputs = [*self.given, *noise.values(), *batch]
        if self.program is None:
            self.program = self.job.records.program(self.computed, inputs)
        record = self.program.record
        if record is not None and self.compared:
            values = record(*inputs)
        else:
            self.compared |= record is not None
            values = self.computed(*inputs)
            self.program.learn(inputs, values)
        grads, rest = values[: len(self.trained)], iter(values[len(self.trained) :])
        terms, remember, followed = (dict(zip(names, rest)) for names in self.program.found)
        check_memory(self.job.method, self.stage, remember)
        for name, seen in remember.items():  # before the step, as in the loop
            kept = memory.setdefault(name, seen.new_zeros((len(self.job.data.y), *seen.shape[2:])))
            kept[at.long()] = seen.flatten(0, 1)
        self.descent.step(grads)
        for name, value in followed.items():
            self.frozen[name].copy_(value)
        for name, value in terms.items():
            if name not in self.sums:
                self.sums[name] = value.new_zeros(len(self.job.specs))
            self.sums[name][: self.k].add_(value)

    def means(self) -> list[dict[str, float]]:
        """Each client's mean loss terms over the steps that it took."""
        totals = {name: total.tolist() for name, total in self.sums.items()}  # the one time that a GPU is waited for
        return [
            {name: total[i] / n_steps(self.stage, spec.n_train) for name, total in totals.items()}
            for i, spec in enumerate(self.job.specs)
        ]

    def _narrow(self, k: int) -> None:
        """Go on with the first k clients: the others have no batch left, and momentum must not move them."""
        self.k, self.program = k, None
        self.trained = self.descent.narrow(k)
        self.frozen = {name: p[:k] for name, p in self.frozen.items()}
        self.received = {name: p if self.dims[name] is None else p[:k] for name, p in self.received.items()}
        self.given = [*self.trained.values(), *self.frozen.values(), *self.received.values()]


def train_stacked(job: LocalJob) -> list[Outcome]:
    """All clients of the job as one batched tensor program; they must be sorted by samples, most first."""
    method = job.method
    starts = [method.start(k, r) for k, r in zip(job.client_states, job.received, strict=True)]
    params, shapes = stack_clients(starts), [{name: p.shape for name, p in start.items()} for start in starts]
    del starts  # they are in the stack
    received, dims = stack_received(job.received)
    memory: Params = {}
    terms: list[dict[str, float]] = [{} for _ in job.specs]
    for number, stage in enumerate(method.stages(job.round, job.role)):
        check_prefixes(method, stage, params)
        if any(stage.trains(name) for name in params):
            training = StackedStage(job, number, stage, params, received, dims)
            with torch.no_grad():  # a live step asks for gradients where it needs them
                for step in range(len(training.batches.active)):
                    training.step(step, memory)
            terms = [old | new for old, new in zip(terms, training.means(), strict=True)]
        params = {name: p.detach() for name, p in params.items()}
    outcomes = []
    for i, (end, spec) in enumerate(zip(job.data.n.cumsum(0).tolist(), job.specs, strict=True)):
        seen = {name: values[end - spec.n_train : end] for name, values in memory.items()}
        own = {name: crop(params[name][i], shape).clone() for name, shape in shapes[i].items()}
        outcomes.append(_outcome(job, i, own, seen, terms[i]))
    return outcomes


ENGINES = {"stacked": train_stacked, "loop": train_loop}
