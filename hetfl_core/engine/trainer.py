"""Local training and rounds: sample, survey, download, train, upload, aggregate, for one run or several side by side.

Runs of one method that differ in their seeds go on in step: what they train at the same time shares stacks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch

from hetfl_core.engine import layout, sides, stacks, training
from hetfl_core.engine.checkpoint import State
from hetfl_core.engine.evaluation import METRICS
from hetfl_core.engine.layout import Engine, Layout
from hetfl_core.engine.options import RunOptions, check_secrets, choose_device, with_networks
from hetfl_core.engine.pool import HERE
from hetfl_core.engine.sides import ServerSide
from hetfl_core.engine.stacks import Cohort, Split, bucket, make_cohorts, stack_split
from hetfl_core.engine.steps import Records
from hetfl_core.engine.training import LocalJob, Outcome, Outcomes
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation, Spec, map_blocks
from hetfl_core.methods.base import Method, Role, Stage
from hetfl_core.networks import Params
from hetfl_core.networks.layers import one_of_each
from hetfl_core.networks.module import try_out
from hetfl_core.settings import Hinting


class Trainer(Hinting):
    """A federation, a method and an engine: what clients and server hold, local training, rounds.

    Parameters
    ----------
    federation, method, seed, engine, device, dtype, stack_size, workers, threads, secrets
        As for `simulate`; processes are only begun in the block of a `hetfl_core.engine.pool.Pool`.
    """

    pool = HERE
    """Who does what clients do."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        *,
        seed: int = 0,
        engine: Engine = "auto",
        device: str | torch.device = "auto",
        dtype: torch.dtype = torch.float32,
        stack_size: int | None = None,
        workers: int | None = None,
        threads: int = 1,
        secrets: Mapping[str, bytes] | None = None,
    ) -> None:
        RunOptions(engine=engine, device=device, dtype=dtype, stack_size=stack_size, workers=workers, threads=threads)
        self.federation = federation.to(dtype)
        self.seed, self.engine = seed, engine
        self.device, self.dtype = choose_device(device), dtype
        self.metrics = METRICS[federation.task]
        self.specs = self.federation.specs()
        self.secrets = {} if secrets is None else secrets
        check_secrets(self.secrets, [spec.name for spec in self.specs])
        self.method = method = with_networks(method, self.specs)
        self.server = ServerSide(method, self.specs, seed, self.device, dtype)
        self.workers, self.threads = workers, threads
        self.most = stack_size
        self.records = Records()
        self.architectures = self._architectures()
        self.precomputed = self._precompute()
        self.group(_kinds(self.architectures, self.federation))

    def group(self, kinds: Sequence[Hashable]) -> None:
        """Let clients of one kind share stacks."""
        self.kinds = kinds
        self.cohorts = make_cohorts(self.federation, kinds, self.device)
        self.rows = {member: (cohort, row) for cohort in self.cohorts for row, member in enumerate(cohort.members)}
        costs = layout.CPU if self.device.type == "cpu" else layout.GPU
        self.layouts = self._layouts(costs, self.most)

    def _architectures(self) -> list[Hashable]:
        """What each client must have in common with another to share its stack."""
        widths: dict[int, str] = {}
        for spec in one_of_each(self.method.model, self.specs):
            phi = self.method.model.of(spec).phi
            widths.setdefault(phi.out, spec.name)
            try:
                stacks.architecture(self.method, spec)
                try_out(phi, spec.shapes)
            except (ValueError, RuntimeError, TypeError) as error:
                what = f"{self.method.name}'s model cannot take inputs of shape {spec.shapes}"
                raise WrongValue(f"client {spec.name!r}: {what}: {error}") from error
        if len(widths) > 1:
            found = " but ".join(f"k={k} on {name!r}" for k, name in widths.items())
            raise WrongValue(f"networks must have one latent dimension in common, got {found}")
        self.method.check(self.specs)
        wider, known = [stacks.widened(self.method, spec) for spec in self.specs], dict[Hashable, Any]()
        servers = [sides.first_of_server(self.method, specs, self.seed) for specs in (self.specs, wider)]
        return [stacks.architecture(self.method, spec, servers, known) for spec in self.specs]

    def _layouts(self, costs: layout.Costs, most: int | None) -> list[Layout]:
        """How each cohort is trained: as asked for, or in the faster way."""
        found, server = [], self.server.initial()
        for cohort in self.cohorts:
            work = self.work(cohort, server)
            if self.engine == "auto":
                way = layout.choose(work, len(cohort.members), costs, self.dtype.itemsize)
                size = way.size if most is None else min(way.size, most)
            else:
                way = Layout(self.engine, 1)
                size = 1 if self.engine == "loop" else most or layout.MOST
            blocks = most is None and way.engine == "stacked" and layout.divisible(work, costs, self.dtype.itemsize)
            found.append(replace(way, size=size, even=self._even(cohort) if blocks else None))
        return found

    def operations(self, participation: float = 1.0) -> float:
        """Floating-point operations of one step of the largest stack that such a share of the clients makes.

        Parameters
        ----------
        participation : float
            In (0, 1].

        Returns
        -------
        float
            0 where it is not known of any stack, as of a model that predicts nothing before it was trained.
        """
        server, found = self.server.initial(), []
        for cohort, way in zip(self.cohorts, self.layouts, strict=True):
            together = max(layout.cut(math.ceil(participation * len(cohort.members)), way))
            found.append(together * self.work(cohort, server).operations)
        return max(found)

    def _stages(self, spec: Spec) -> list[Stage]:
        """What a client trains before, in and after the rounds."""
        return [stage for role in get_args(Role) for stage in self.method.of(spec).stages(0, role)]

    def _even(self, cohort: Cohort) -> Hashable:
        """What clients of a cohort have in common, of which nothing is padded in whatever stack; None where some is."""
        specs = [self.specs[m] for m in cohort.members]
        each = {(str(s.shapes), *(min(stage.batch_size, s.n_train) for stage in self._stages(s))) for s in specs}
        return next(iter(each)) if len(each) == 1 and not self.method.padded else None

    def _noise(self, spec: Spec) -> int:
        """Most numbers of noise that a client draws at once, before, in or after the rounds."""
        method, stages = self.method.of(spec), self._stages(spec)
        each = [(method.noise(spec, stage), min(stage.batch_size, spec.n_train)) for stage in stages]
        return max((training.noise_at_once(*one)[1] for one in each), default=0)

    def work(self, cohort: Cohort, server: Params) -> layout.Work:
        """What a step of the member of a cohort that has the widest inputs computes, with the server as it begins."""
        specs = [self.specs[m] for m in cohort.members]
        width = {m: sum(math.prod(shape) for shape in _shapes(self.specs[m])) for m in cohort.members}
        index = max(cohort.members, key=lambda m: (width[m], self.specs[m].name))
        spec = self.specs[index]
        client_state = self.working_state(
            index, self._cast(sides.first_of_client(self.method, spec, self.seed, self.server.common()))
        )
        received = self.method.download(server, spec)
        rows = min(self.method.batch_size, max(1, *(spec.n_train for spec in specs)))
        x = map_blocks(lambda shape: torch.zeros(rows, *shape, dtype=self.dtype, device=self.device), spec.shapes)
        try:
            method = self.method.of(spec)
            work = layout.work(method.predict, method.start(client_state, received), received, x)
        except Exception:  # a model that predicts nothing before it was trained, or nothing from zeros
            work = layout.Work(
                0.0,
                sum(p.numel() for p in (client_state | received).values()),
            )
        return replace(work, noise=self._noise(replace(spec, n_train=max(spec.n_train for spec in specs))))

    # --- state ---

    def _cast(self, params: Params) -> Params:
        return sides.cast(params, self.device, self.dtype)

    def initial(self) -> State:
        """Server and clients before anything was trained.

        Returns
        -------
        State
        """
        common = self.server.common()
        client_states = [self._cast(sides.first_of_client(self.method, spec, self.seed, common)) for spec in self.specs]
        return State(0, self.server.initial(), client_states)

    def _precompute(self) -> list[Params]:
        """What each client makes of its samples once, under names that nothing else of it has."""
        made: list[Params] = []
        server: Params | None = None
        for client, spec in zip(self.federation, self.specs, strict=True):
            found = sides.precompute(self.method, client, spec, self.seed, self.dtype)
            if found:
                server = self.server.initial() if server is None else server
                sides.check_precomputed(self.method, spec, found, self.method.of(spec).download(server, spec))
            made.append(self._cast(found))
        return made

    def working_state(self, index: int, client_state: Params) -> Params:
        """What a method sees that a client holds: what it keeps, and what it made of its samples."""
        return {**client_state, **self.precomputed[index]}

    # --- training ---

    def train(self, state: State, chosen: Sequence[int], round: int, role: Role) -> dict[int, Outcome]:
        """Local training of chosen clients of this run; the state does not change.

        Parameters
        ----------
        state : State
        chosen : sequence of int
            Indices of the clients.
        round : int
            Complete rounds so far; keys the random numbers.
        role : {"start", "round", "rest", "final"}
            What they train for; see `Method.stages`.

        Returns
        -------
        dict of int to Outcome
            By the clients' indices; empty where the role trains nothing.
        """
        return train([self], [state], [chosen], round, role)[0]

    def survey(self, state: State, chosen: Sequence[int]) -> tuple[State, dict[int, Outcome]]:
        """The first exchange of a round, where the method asks for one; clients are left as they are.

        Parameters
        ----------
        state : State
        chosen : sequence of int
            Indices of the round's participants.

        Returns
        -------
        State
            With what the server made of the answers.
        dict
            Message and answer of each surveyed client, by its index.
        """
        asked = self.server.asked(chosen, state.done)
        if not asked:
            return state, {}
        server, rng = self.server.ask(state.server, state.done)
        with torch.no_grad():
            outcomes = {c: self._answer(c, state.client_states[c], self.server.download(server, c)) for c in asked}
        server = self.server.digest(server, {c: outcome.upload for c, outcome in outcomes.items()}, rng)
        return replace(state, server=server), outcomes

    def _answer(self, index: int, client_state: Params, received: Params) -> Outcome:
        spec, (cohort, row) = self.specs[index], self.rows[index]
        data = sides.batch(*cohort.train.client(row, spec.shapes))
        upload, params = sides.answer(self.method, spec, self.working_state(index, client_state), received, data)
        return Outcome(upload, client_state, received, {}, params)

    def round(self, state: State, chosen: Sequence[int]) -> tuple[State, list[Outcome]]:
        """One communication round: survey, local training, aggregation, and what clients at rest do.

        Parameters
        ----------
        state : State
        chosen : sequence of int
            Indices of the participants, such as `participants` gives.

        Returns
        -------
        State
        list of Outcome
            Of the participants; then of clients that trained while at rest; then of those that answered a survey.
        """
        [(state, participants, others)] = exchange([self], [state], [chosen])
        return state, [*participants.values(), *others]

    def left(self, index: int, outcome: Outcome) -> Outcome:
        """An outcome without what the client was sent, or made of its samples, which stays as it is."""
        kept = {name: p for name, p in outcome.client_state.items() if name not in self.precomputed[index]}
        return replace(outcome, client_state=kept, received={})

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not what this one has recorded, nor those who work for it."""
        return {name: value for name, value in vars(self).items() if name != "pool"} | {"records": Records()}


# --- several runs side by side ----------------------------------------------------------------------------------------


def share_stacks(runs: Sequence[Trainer]) -> None:
    """Have runs of one method go on side by side: their clients are grouped as if they were one run's."""
    clients = [client for run in runs for client in run.federation]
    kinds = _kinds([key for run in runs for key in run.architectures], clients)
    for run in runs:
        mine, kinds = kinds[: len(run.specs)], kinds[len(run.specs) :]
        run.group(mine)


def exchange(
    runs: Sequence[Trainer], states: Sequence[State], chosen: Sequence[Sequence[int]]
) -> list[tuple[State, dict[int, Outcome], list[Outcome]]]:
    """One communication round of each run: survey, local training, aggregation, and what clients at rest do.

    Returns
    -------
    list of tuple
        For each run its state; the outcomes of its participants, by their indices; and the other outcomes whose bytes
        count: of clients that trained while at rest, then of those that answered a survey.
    """
    surveys = [run.survey(state, some) for run, state, some in zip(runs, states, chosen, strict=True)]
    asked, t = [state for state, _ in surveys], states[0].done
    outcomes = train(runs, asked, chosen, t, "round")
    at_rest = [sorted(set(range(len(run.specs))) - set(some)) for run, some in zip(runs, chosen, strict=True)]
    resting = train(runs, asked, at_rest, t, "rest")
    return [_closed(*each) for each in zip(runs, surveys, outcomes, resting, strict=True)]


def _closed(
    run: Trainer, survey: tuple[State, dict[int, Outcome]], outcomes: dict[int, Outcome], resting: dict[int, Outcome]
) -> tuple[State, dict[int, Outcome], list[Outcome]]:
    """The end of a run's round: the server takes what came, clients keep what they trained."""
    state, surveyed = survey
    server = run.server.aggregate(state.server, {c: o.upload for c, o in outcomes.items()}, state.done)
    trained = {**outcomes, **resting}
    sent = {c: outcome.received for c, outcome in trained.items()}
    answered = [replace(o, received=unless_sent(o.received, sent.get(c, {}))) for c, o in surveyed.items()]
    after = replace(keeping(state, trained), done=state.done + 1, server=server)
    return after, outcomes, [*resting.values(), *answered]


def train(
    runs: Sequence[Trainer], states: Sequence[State], chosen: Sequence[Sequence[int]], round: int, role: Role
) -> list[dict[int, Outcome]]:
    """Local training of the chosen clients of runs of one method on one device; no state changes.

    Clients of different runs share a stack where those of one run would.

    Returns
    -------
    list of dict
        For each run, the outcome of each chosen client by its index; empty where the role trains nothing.
    """
    outcomes: list[dict[int, Outcome]] = [{} for _ in runs]
    if role != "round" and not runs[0].method.stages(round, role):
        return outcomes
    pieces, tasks, names = _stacks(runs, chosen), [], []
    for way, members in pieces:
        each = [(runs[number], states[number], index) for number, index in members]
        sent = [run.server.download(state.server, index) for run, state, index in each]
        kept = [state.client_states[index] for _, state, index in each]
        tasks.append((way.engine, [(run, index) for run, _, index in each], kept, sent, round, role))
        names.append([run.specs[index].name for run, _, index in each])
    for (_, members), task, some in zip(pieces, tasks, runs[0].pool.map(local, tasks, names), strict=True):
        for (number, index), received, outcome in zip(members, task[3], some, strict=True):
            outcomes[number][index] = replace(outcome, received=received)
    return outcomes


def local(
    engine: str,
    members: Sequence[tuple[Trainer, int]],
    kept: Sequence[Params],
    received: Sequence[Params],
    round: int,
    role: Role,
) -> list[Outcome]:
    """Local training of clients that share a stack, given what they keep and were sent; outcomes have no `received`."""
    specs = [run.specs[index] for run, index in members]
    first, _ = members[0]
    job = LocalJob(
        first.method.of(specs[0]),
        specs,
        [run.working_state(index, mine) for (run, index), mine in zip(members, kept, strict=True)],
        received,
        _samples([run.rows[index] for run, index in members], specs),
        [run.seed for run, _ in members],
        round,
        role,
        first.records,
        [run.secrets.get(spec.name) for (run, _), spec in zip(members, specs, strict=True)],
    )
    with torch.inference_mode(False), torch.enable_grad():  # whatever holds where `simulate` is called
        outcomes = training.ENGINES[engine](job)
    return [run.left(index, outcome) for (run, index), outcome in zip(members, outcomes, strict=True)]


def _stacks(runs: Sequence[Trainer], chosen: Sequence[Sequence[int]]) -> list[tuple[Layout, list[tuple[int, int]]]]:
    """The stacks in which clients are trained, or clients for the loop, each client as (run, index)."""
    groups: dict[Hashable, list[tuple[Layout, int, int]]] = {}
    for number, (run, some) in enumerate(zip(runs, chosen, strict=True)):
        for cohort, way in zip(run.cohorts, run.layouts, strict=True):
            group = groups.setdefault((run.kinds[cohort.members[0]], way.engine), [])
            group += [(way, number, index) for index in set(some).intersection(cohort.members)]

    def order(one: tuple[Layout, int, int]) -> tuple[int, str, int]:
        _, number, index = one
        spec = runs[number].specs[index]
        return -spec.n_train, spec.name, number

    pieces = []
    for group in filter(None, groups.values()):
        group.sort(key=order)
        for size in layout.cut(len(group), _common([way for way, _, _ in group])):
            piece, group = group[:size], group[size:]
            pieces.append((piece[0][0], [(number, index) for _, number, index in piece]))
    return pieces


def _common(ways: Sequence[Layout]) -> Layout:
    """The layout of clients of one kind, of several runs: the smallest stacks, cut only where none is padded."""
    smallest = min(ways, key=lambda way: way.size)
    return smallest if len({way.even for way in ways}) == 1 else replace(smallest, even=None)


def _samples(rows: Sequence[tuple[Cohort, int]], specs: Sequence[Spec]) -> Split:
    """The training samples of a stack, whose clients are rows of cohorts."""
    if len({id(cohort) for cohort, _ in rows}) == 1:
        return rows[0][0].train.take([row for _, row in rows], [spec.shapes for spec in specs])
    each = [cohort.train.client(row, spec.shapes) for (cohort, row), spec in zip(rows, specs, strict=True)]
    return stack_split([x for x, _ in each], [y for _, y in each])


def keeping(state: State, outcomes: Outcomes) -> State:
    """The state after local training: clients that trained keep what came out of it."""
    client_states = [outcomes[c].client_state if c in outcomes else k for c, k in enumerate(state.client_states)]
    return replace(state, client_states=client_states)


def unless_sent(message: Params, sent: Params) -> Params:
    """The part of a message that another one to the same client does not hold: nobody sends a tensor twice."""
    return {name: t for name, t in message.items() if name not in sent or not torch.equal(t, sent[name])}


def _kinds(architectures: Sequence[Hashable], clients: Iterable[Client]) -> list[Hashable]:
    """For each client what it has in common with its stack: architecture and, where padding costs much, width."""
    clients = list(clients)
    widths = [tuple(math.prod(shape) for shape in _shapes(client)) for client in clients]
    samples = [client.n_train + client.n_test for client in clients]
    buckets: dict[int, int] = {}
    for key in dict.fromkeys(architectures):
        indices = [i for i, k in enumerate(architectures) if k == key]
        found = bucket([widths[i] for i in indices], [samples[i] for i in indices])
        buckets |= dict(zip(indices, found, strict=True))
    return [(key, buckets[i]) for i, key in enumerate(architectures)]


def _shapes(spec: Spec | Client) -> list[tuple[int, ...]]:
    return list(spec.shapes.values()) if isinstance(spec.shapes, dict) else [spec.shapes]
