"""Rounds of a federation: sample, survey, download, train, upload, aggregate; and what clients predict."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.engine import checkpoint as checkpoints
from hetfl_core.engine import evaluation, layout, sides, training
from hetfl_core.engine.evaluation import METRICS, Measure, Samples
from hetfl_core.engine.layout import Engine, Layout
from hetfl_core.engine.sides import ServerSide
from hetfl_core.engine.stacks import Cohort, Split, bucket, make_cohorts, stack_split
from hetfl_core.engine.training import LocalJob, Outcome
from hetfl_core.federation import Client, Federation, Spec, blocks, map_blocks
from hetfl_core.methods.base import Method, Role, one_of_each
from hetfl_core.networks import Params


def choose_device(device: str | torch.device) -> torch.device:
    """``"auto"`` is CUDA where there is one, else the CPU; any other is tried, and refused where it cannot compute."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen, dtype=torch.float32).item()
    except (RuntimeError, AssertionError, TypeError) as error:  # AssertionError: PyTorch was built without CUDA
        raise ValueError(
            "device must be 'auto', 'cpu', 'cuda' (or 'cuda:1' …) or another on which PyTorch can compute here, "
            f"got {str(device)!r}: {textwrap.shorten(str(error), 120)}"
        ) from error
    return chosen


class Simulator:
    """A federation, a method and an engine, ready to run round by round. `simulate` is the usual way in.

    Parameters
    ----------
    federation, method, seed, engine, device, dtype, stack_size, workers, threads
        As for `simulate`.
    """

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
    ) -> None:
        checks.choice("engine", engine, get_args(Engine))
        if stack_size is not None:
            checks.whole("stack_size", stack_size, 1)
        if workers is not None:
            checks.whole("workers", workers, 1)
            if workers > checks.MOST_THREADS:
                raise ValueError(f"workers must be at most {checks.MOST_THREADS}, got {workers}")
        self.federation = federation.to(dtype)
        self.method, self.seed, self.engine = method, seed, engine
        self.device, self.dtype = choose_device(device), dtype
        self.metrics = METRICS[federation.task]
        self.specs = self.federation.specs()
        self.server = ServerSide(method, self.specs, seed, self.device, dtype)
        self.asked, self.threads = workers, threads
        self.sharing, self.most = 1, stack_size
        self.validation: Simulator | None = None  # the same clients with their validation samples for test samples
        self.architectures = self._architectures()
        self.private = self._private()
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
            widths.setdefault(self.method.model.of(spec).phi.out, spec.name)
            try:
                training.architecture(self.method, spec)
            except (ValueError, RuntimeError, TypeError) as error:
                what = f"{self.method.name}'s model cannot take inputs of shape {spec.shapes}"
                raise ValueError(f"client {spec.name!r}: {what}: {error}") from error
        if len(widths) > 1:
            found = " but ".join(f"k={k} on {name!r}" for k, name in widths.items())
            raise ValueError(f"networks must have one latent dimension in common, got {found}")
        self.method.check(self.specs)
        true, wider = (
            sides.first_of_server(self.method, specs, self.seed)
            for specs in (self.specs, [training.widened(self.method, spec) for spec in self.specs])
        )
        known: dict[Hashable, Any] = {}
        return [training.architecture(self.method, spec, true, wider, known) for spec in self.specs]

    def workers(self, ways: Iterable[Layout]) -> int:
        """Pieces of work that are done side by side: as asked for, or one a core where one of them is worth it."""
        if self.device.type != "cpu":
            return 1
        if self.asked is not None:
            return self.asked
        return max(1, layout.usable_cores() // self.threads) if any(way.parallel for way in ways) else 1

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
            found.append(replace(way, size=size, parallel=layout.pays(work, min(size, len(cohort.members)), costs)))
        return found

    def _noise(self, spec: Spec) -> int:
        """Most numbers of noise that a client draws at once, before, in or after the rounds."""
        method = self.method.of(spec)
        stages = [stage for role in get_args(Role) for stage in method.stages(0, role)]
        each = [(method.noise(spec, stage), min(stage.batch_size, spec.n_train)) for stage in stages]
        return max((training.noise_at_once(*one)[1] for one in each), default=0)

    def work(self, cohort: Cohort, server: Params) -> layout.Work:
        """What a step of the member of a cohort that has the widest inputs computes, with the server as it begins."""
        specs = [self.specs[m] for m in cohort.members]
        width = {m: sum(math.prod(shape) for shape in _shapes(self.specs[m])) for m in cohort.members}
        place = max(cohort.members, key=lambda m: (width[m], self.specs[m].name))
        spec = self.specs[place]
        kept = self.held(place, self._cast(sides.first_of_client(self.method, spec, self.seed, self.server.common())))
        received = self.method.download(server, spec)
        rows = min(self.method.batch_size, max(1, *(spec.n_train for spec in specs)))
        x = map_blocks(lambda shape: torch.zeros(rows, *shape, dtype=self.dtype, device=self.device), spec.shapes)
        try:
            method = self.method.of(spec)
            work = layout.work(method.predict, method.start(kept, received), received, x)
        except Exception:  # a model that predicts nothing before it was trained, or nothing from zeros
            work = layout.Work(0.0, sum(p.numel() for p in (kept | received).values()), operations=math.inf)
        return replace(work, noise=self._noise(replace(spec, n_train=max(spec.n_train for spec in specs))))

    # --- state ---

    def _cast(self, params: Params) -> Params:
        return sides.cast(params, self.device, self.dtype)

    def initial(self) -> checkpoints.State:
        """Server and clients before anything was trained."""
        common = self.server.common()
        kept = [self._cast(sides.first_of_client(self.method, spec, self.seed, common)) for spec in self.specs]
        return checkpoints.State(0, self.server.initial(), kept)

    def _private(self) -> list[Params]:
        """What each client makes of its samples once, under names that nothing else of it has."""
        made: list[Params] = []
        server: Params | None = None
        for client, spec in zip(self.federation, self.specs, strict=True):
            found = sides.private(self.method, client, spec, self.seed, self.dtype)
            if found:
                server = self.server.initial() if server is None else server
                sides.check_private(self.method, spec, found, self.method.of(spec).download(server, spec))
            made.append(self._cast(found))
        return made

    def held(self, place: int, kept: Params) -> Params:
        """What a method sees that a client holds: what it keeps, and what it made of its samples; not optimisers."""
        return sides.held(kept, self.private[place])

    # --- training ---

    def train(self, state: checkpoints.State, chosen: Sequence[int], round: int, role: Role) -> dict[int, Outcome]:
        """Local training of the chosen clients; nothing of `state` changes.

        Returns
        -------
        dict
            Outcome of each chosen client, by its place; empty if this role trains nothing.
        """
        return train([Training(self, state, chosen, round, role)])[0]

    def survey(self, state: checkpoints.State, chosen: Sequence[int]) -> tuple[checkpoints.State, dict[int, Outcome]]:
        """The first exchange of a round, where the method asks for one; clients are left as they are.

        Returns
        -------
        State
            With what the server made of the answers.
        dict
            Message and answer of each surveyed client, by its place.
        """
        asked = self.server.asked(chosen, state.done)
        if not asked:
            return state, {}
        server, rng = self.server.ask(state.server, state.done)
        with torch.no_grad():
            outcomes = {c: self._answer(c, state.kept[c], self.server.download(server, c)) for c in asked}
        server = self.server.digest(server, {c: outcome.upload for c, outcome in outcomes.items()}, rng)
        return replace(state, server=server), outcomes

    def _answer(self, place: int, kept: Params, received: Params) -> Outcome:
        spec, (cohort, row) = self.specs[place], self.rows[place]
        data = sides.batch(*cohort.train.client(row, spec.shapes))
        upload, params = sides.answer(self.method, spec, self.held(place, kept), received, data)
        return Outcome(upload, kept, received, {}, params)

    def round(self, state: checkpoints.State, chosen: Sequence[int]) -> tuple[checkpoints.State, list[Outcome]]:
        """One communication round: survey, local training, aggregation, and what clients at rest do.

        Returns
        -------
        State
        list of Outcome
            Of the participants; then of clients that trained while at rest; then of those that answered a survey.
        """
        (exchange,) = together([self.round_in_steps(state, chosen)])
        return exchange.state, exchange.messages

    def round_in_steps(self, state: checkpoints.State, chosen: Sequence[int]) -> Steps[Exchange]:
        """As `round`, but local training is asked for."""
        state, surveyed = self.survey(state, chosen)
        t = state.done
        outcomes = yield Training(self, state, chosen, t, "round")
        at_rest = sorted(set(range(len(self.specs))) - set(chosen))
        resting = yield Training(self, state, at_rest, t, "rest")
        server = self.server.aggregate(state.server, {c: o.upload for c, o in outcomes.items()}, t)
        trained = {**outcomes, **resting}
        state = keeping(state, trained)
        sent = {c: outcome.received for c, outcome in trained.items()}
        answered = [replace(o, received=unless_sent(o.received, sent.get(c, {}))) for c, o in surveyed.items()]
        return Exchange(replace(state, done=t + 1, server=server), outcomes, [*resting.values(), *answered])

    # --- evaluation ---

    def downloads(self, state: checkpoints.State) -> list[Params]:
        """What the server would send to every client."""
        return [self.method.download(state.server, spec) for spec in self.specs]

    def working(self, state: checkpoints.State, received: Sequence[Params] | None = None) -> list[Params]:
        """Parameters of every client: what it keeps and a fresh download (`downloads`, unless given)."""
        received = self.downloads(state) if received is None else received
        each = enumerate(zip(self.specs, state.kept, received, strict=True))
        return [self.method.of(spec).start(self.held(place, kept), sent) for place, (spec, kept, sent) in each]

    def predicted(
        self, state: checkpoints.State, split: Literal["train", "test"], params: Sequence[Params] | None = None
    ) -> list[np.ndarray]:
        """Predictions for every client's samples, in the order of the federation (by `working` unless given)."""
        return self._numpy({place: answer for place, _, answer in self.outputs(state, split, params)})

    def predicted_and_diverged(
        self, state: checkpoints.State, split: Literal["train", "test"], params: Sequence[Params]
    ) -> tuple[list[np.ndarray], list[str]]:
        """As `predicted`, and the sorted names of the clients for which some output is NaN or infinite."""
        answers: dict[int, Tensor] = {}
        diverged = []
        for place, output, answer in self.outputs(state, split, params):
            answers[place] = answer
            if not output.isfinite().all():
                diverged.append(self.specs[place].name)
        return self._numpy(answers), sorted(diverged)

    def _numpy(self, answers: Mapping[int, Tensor]) -> list[np.ndarray]:
        return [answers[place].cpu().numpy() for place in range(len(self.specs))]

    def outputs(
        self,
        state: checkpoints.State,
        split: Literal["train", "test"],
        params: Sequence[Params] | None = None,
        some: Mapping[int, Outcome] | None = None,
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each client its place, the model's outputs, shape (n_i, C), and what is decided by them, shape (n_i,).

        With `some`, for those clients alone, by what they have after local training and what they had been sent.
        """
        received: Sequence[Params] | Mapping[int, Params]
        working: Sequence[Params] | Mapping[int, Params]
        if some is None:
            received = self.downloads(state)
            working = self.working(state, received) if params is None else params
        else:
            received = {place: outcome.received for place, outcome in some.items()}
            working = {place: outcome.params for place, outcome in some.items()}

        def predict(piece: tuple[Cohort, Layout, list[int]]) -> list[tuple[int, Tensor, Tensor]]:
            cohort, way, rows = piece
            members = [cohort.members[row] for row in rows]
            specs = [self.specs[m] for m in members]
            data = getattr(cohort, split).take(rows, [spec.shapes for spec in specs])
            method = self.method.of(specs[0])
            clients, sent = [working[m] for m in members], [received[m] for m in members]
            noise = [
                self.prediction_noise(spec, n, state.done, split)
                for spec, n in zip(specs, data.n.tolist(), strict=True)
            ]
            if way.engine == "loop":
                outputs = training.predict_each(method.predict, clients, sent, specs, data, noise)
                answers = [self.metrics.decide(each) for each in outputs]
            else:
                stacked = training.lift(method.predict, clients, sent, data.rectangle(), noise)
                outputs, answers = list(stacked), list(self.metrics.decide(stacked))
            found = zip(members, outputs, answers, data.n.tolist(), strict=True)
            return [(member, output[:n], answer[:n]) for member, output, answer, n in found]

        pieces = [
            (cohort, way, rows)
            for cohort, way in zip(self.cohorts, self.layouts, strict=True)
            for rows in self._pieces(cohort, way, split, some)
        ]
        for found in layout.side_by_side(predict, pieces, self.workers(way for _, way, _ in pieces)):
            yield from found

    def _pieces(self, cohort: Cohort, way: Layout, split: str, some: Mapping[int, Outcome] | None) -> list[list[int]]:
        """Rows of a cohort that are predicted at once: all, or those of some places."""
        rows = [row for row, member in enumerate(cohort.members) if some is None or member in some]
        n = getattr(cohort, split).n.tolist()
        found = _similar([n[row] for row in rows], way.size, self._rows(cohort, way))
        return [[rows[place] for place in places] for places in found]

    def also(
        self,
        names: Sequence[Measure],
        before: checkpoints.State,
        after: checkpoints.State,
        participants: Mapping[int, Outcome],
        predicted: Samples,
    ) -> dict[Measure, float | None]:
        """What else a history follows: of the states around a round, its participants, and what all then predict."""
        found: dict[Measure, float | None] = {}
        if {"own", "own_held"} & set(names):
            found |= self.own_scores(before, participants)
        if "server" in names:
            found["server"] = self.server_score(after)
        if "held" in names:
            found["held"] = self.figure(*self.of_held_classes(predicted))
        return {name: found[name] for name in names}

    def on_held_classes(self, predicted: Samples) -> dict[str, float]:
        """Figures on test samples of the classes that clients hold, and the share that these are; none if it is all."""
        each = self.held_per_client(predicted)
        if not each:
            return {}
        figures = {name: values[~np.isnan(values)] for name, values in each.items()}
        return {name: float(values.mean()) if len(values) else math.nan for name, values in figures.items()}

    def held_per_client(self, predicted: Samples) -> dict[str, np.ndarray]:
        """As `on_held_classes`, client by client; NaN for a client without such samples."""
        main = self.metrics.main
        some, labels = self.of_held_classes(predicted)
        sizes = [np.array([len(y) for y in each]) for each in (labels, self.labels("test"))]
        if (sizes[0] == sizes[1]).all():
            return {}
        share = sizes[0] / np.where(sizes[1] > 0, sizes[1], np.nan)
        return {f"{main}_held": self.metrics.per_client[main](some, labels), f"{main}_limit": share}

    def own_scores(self, state: checkpoints.State, participants: Mapping[int, Outcome]) -> dict[Measure, float]:
        """Mean over participants of the main figure of their own models, as they left local training, on test data.

        On all of it, and on that of the classes that they hold.
        """
        answers = {place: answer.cpu().numpy() for place, _, answer in self.outputs(state, "test", some=participants)}
        places = sorted(answers)
        found = [answers[place] for place in places]
        return {
            "own": self.figure(found, [self.federation[place].y_test.numpy() for place in places]),
            "own_held": self.figure(*self.of_held_classes(found, places)),
        }

    def of_held_classes(self, predicted: Samples, places: Sequence[int] | None = None) -> tuple[Samples, Samples]:
        """Predictions for test samples, and labels, without those of classes that a client has no training sample of.

        Of the clients in these places, or of all; of a regression all samples.
        """
        some = range(len(self.specs)) if places is None else places
        labels = [self.federation[place].y_test.numpy() for place in some]
        if self.federation.task == "regression":
            return predicted, labels
        known = [np.isin(y, self.specs[place].classes) for place, y in zip(some, labels, strict=True)]
        both = [(p[mine], y[mine]) for p, y, mine in zip(predicted, labels, known, strict=True)]
        return [p for p, _ in both], [y for _, y in both]

    def figure(self, predicted: Samples, labels: Samples) -> float:
        """Mean over clients of the main figure; NaN where there are no samples."""
        return evaluation.summarise(predicted, labels, self.federation.task).get(self.metrics.main, math.nan)

    def server_score(self, state: checkpoints.State) -> float | None:
        """The main figure of the server's own model; None where it has none, NaN where there are no test samples.

        On the federation's own test data, or, where it has none, the mean over clients on theirs.
        """
        found, truth = [], []
        for spec, x, y in self._for_server():
            answers = self._decided(state, spec, x)
            if answers is None:
                return None
            found.append(answers)
            truth.append(y.numpy())
        return self.figure(found, truth)

    def _for_server(self) -> list[tuple[Spec, Any, Tensor]]:
        """What the server's model is measured on: of whom, inputs, labels."""
        own = self.federation
        if own.x_test is not None:
            return [(own.server_spec(), own.x_test, own.y_test)]
        return [(spec, c.x_test, c.y_test) for spec, c in zip(self.specs, self.federation, strict=True)]

    def _decided(self, state: checkpoints.State, spec: Spec, x: Any) -> np.ndarray | None:
        """What the server's own model predicts for these test samples; None where there is no such model."""
        x = map_blocks(lambda t: t.to(self.device), x)
        noise = self.prediction_noise(spec, len(blocks(x)[0]), state.done, "test")
        with torch.no_grad():
            outputs = self.method.of(spec).predict_server(state.server, x, *([noise] if noise else []))
        return None if outputs is None else self.metrics.decide(outputs).cpu().numpy()

    def _rows(self, cohort: Cohort, way: Layout) -> int | None:
        """Most samples that a stack predicts at once: with noise, as many as it can be held for."""
        spec = self.specs[cohort.members[0]]
        draws = self.method.of(spec).prediction_noise(spec).values()
        each = sum(math.prod(draw.shape) for draw in draws if draw.per == "sample")
        most = max(1, training.PREDICTED_NUMBERS // each) if each else None
        return min((rows for rows in (way.rows, most) if rows is not None), default=None)

    def prediction_noise(self, spec: Spec, n: int, round: int, split: str) -> Params:
        """The random numbers with which a client predicts the n samples of a split after so many rounds."""
        drawn = training.prediction_noise(self.method, spec, n, self.seed, round, split, self.dtype)
        return {name: numbers.to(self.device) for name, numbers in drawn.items()}

    def labels(self, split: str) -> list[np.ndarray]:
        """True labels, or targets, of every client."""
        return [getattr(client, f"y_{split}").numpy() for client in self.federation]

    def summarise(self, predicted: Sequence[np.ndarray], split: str) -> dict[str, float]:
        """The figures of these predictions (see `hetfl_core.engine.evaluation.summarise`)."""
        return evaluation.summarise(predicted, self.labels(split), self.federation.task)

    def score(
        self, state: checkpoints.State, split: Literal["train", "test"], params: Sequence[Params] | None = None
    ) -> float:
        """Mean over clients of the main figure: accuracy, or mean squared error; NaN where there are no samples."""
        return self.summarise(self.predicted(state, split, params), split).get(self.metrics.main, math.nan)


@dataclass(frozen=True)
class Exchange:
    """What a communication round leaves.

    Attributes
    ----------
    state : State
    participants : dict of int to Outcome
        By place.
    others : list of Outcome
        Of clients that trained while at rest; then of those that answered a survey.
    """

    state: checkpoints.State
    participants: Mapping[int, Outcome]
    others: Sequence[Outcome]

    @property
    def messages(self) -> list[Outcome]:
        """All outcomes, whose bytes count."""
        return [*self.participants.values(), *self.others]


# --- several runs side by side ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """Local training that a run asks for: of these clients, from this state, in this round and role."""

    simulator: Simulator
    state: checkpoints.State
    chosen: Sequence[int]
    round: int
    role: Role


T = TypeVar("T")
Steps = Generator[Training, dict[int, Outcome], T]
"""A computation that asks for local training, is sent each client's outcome by its place, and returns a `T`."""


def together(runs: Sequence[Steps[T]]) -> list[T]:
    """Let computations go on side by side: what they ask for at the same time is trained in the same stacks."""
    asked: dict[int, Training] = {}
    results: dict[int, T] = {}

    def go_on(number: int, answer: dict[int, Outcome] | None) -> None:
        try:
            asked[number] = runs[number].send(answer)  # type: ignore[arg-type]
        except StopIteration as end:
            results[number] = end.value

    for number in range(len(runs)):
        go_on(number, None)
    while asked:
        waiting, asked = asked, {}
        for number, answer in zip(waiting, train(list(waiting.values())), strict=True):
            go_on(number, answer)
    return [results[number] for number in range(len(runs))]


def share(simulators: Sequence[Simulator]) -> None:
    """Have runs of one method go on side by side: their clients are grouped as if they were one run's."""
    clients = [client for simulator in simulators for client in simulator.federation]
    kinds = _kinds([key for simulator in simulators for key in simulator.architectures], clients)
    for simulator in simulators:
        simulator.sharing = len(simulators)
        mine, kinds = kinds[: len(simulator.specs)], kinds[len(simulator.specs) :]
        simulator.group(mine)


def train(asked: Sequence[Training]) -> list[dict[int, Outcome]]:
    """Local training for several runs of one method on one device; no state changes.

    Clients of different runs share a stack where those of one run would: if the round, the role and their kind are the
    same.

    Returns
    -------
    list of dict
        For each run, the outcome of each chosen client by its place; empty where the role trains nothing.
    """
    groups: dict[Hashable, list[_Place]] = {}
    for number, one in enumerate(asked):
        if one.role != "round" and not one.simulator.method.stages(one.round, one.role):
            continue
        for cohort, way in zip(one.simulator.cohorts, one.simulator.layouts, strict=True):
            kind = one.simulator.kinds[cohort.members[0]]
            for row in training.members_of(cohort, one.chosen):
                place = _Place(one, number, cohort, way, row)
                groups.setdefault((one.round, one.role, kind, way.engine, place.taken), []).append(place)
    pieces: list[list[_Place]] = []
    for places in groups.values():
        places.sort(key=lambda place: (-place.spec.n_train, place.spec.name, place.number))
        size = min((place.way.size for place in places), default=1)
        pieces += [places[begin : begin + size] for begin in range(0, len(places), size)]
    outcomes: list[dict[int, Outcome]] = [{} for _ in asked]
    workers = asked[0].simulator.workers(piece[0].way for piece in pieces)
    for piece, some in zip(pieces, layout.side_by_side(_train, pieces, workers), strict=True):
        for place, outcome in zip(piece, some, strict=True):
            outcomes[place.number][place.member] = outcome
    return outcomes


@dataclass(frozen=True)
class _Place:
    """A client of a run that is to be trained: the row of a cohort."""

    asked: Training
    number: int
    cohort: Cohort
    way: Layout
    row: int

    @property
    def member(self) -> int:
        return self.cohort.members[self.row]

    @property
    def spec(self) -> Spec:
        return self.asked.simulator.specs[self.member]

    @property
    def held(self) -> Params:
        return self.asked.simulator.held(self.member, self.asked.state.kept[self.member])

    @property
    def carried(self) -> Params:
        return training.carried(self.asked.state.kept[self.member])

    @property
    def taken(self) -> Hashable:
        """Where optimisers go on, what clients of a stack have in common: what is remembered, after how many steps."""
        return tuple((name, float(p) if ".step/" in name else None) for name, p in sorted(self.carried.items()))

    def kept_of(self, outcome: Outcome) -> Outcome:
        """Without what the client made of its samples, which is not kept from round to round but stays as it is."""
        private = self.asked.simulator.private[self.member]
        if not private:
            return outcome
        return replace(outcome, kept={name: p for name, p in outcome.kept.items() if name not in private})

    @property
    def received(self) -> Params:
        return self.asked.simulator.method.download(self.asked.state.server, self.spec)


def _train(piece: Sequence[_Place]) -> list[Outcome]:
    """Local training of one stack."""
    first, specs = piece[0].asked, [place.spec for place in piece]
    job = LocalJob(
        first.simulator.method.of(specs[0]),
        specs,
        [place.held for place in piece],
        [place.received for place in piece],
        _samples(piece, specs),
        [place.asked.simulator.seed for place in piece],
        first.round,
        first.role,
        [place.carried for place in piece],
    )
    with torch.inference_mode(False), torch.enable_grad():  # whatever holds where `simulate` is called
        outcomes = training.ENGINES[piece[0].way.engine](job)
    return [place.kept_of(outcome) for place, outcome in zip(piece, outcomes, strict=True)]


def _samples(piece: Sequence[_Place], specs: Sequence[Spec]) -> Split:
    """The training samples of a stack."""
    if len({id(place.cohort) for place in piece}) == 1:
        return piece[0].cohort.train.take([place.row for place in piece], [spec.shapes for spec in specs])
    each = [place.cohort.train.client(place.row, spec.shapes) for place, spec in zip(piece, specs, strict=True)]
    return stack_split([x for x, _ in each], [y for _, y in each])


def unless_sent(message: Params, sent: Params) -> Params:
    """What of a message another one to the same client does not hold as well: nobody sends that twice."""
    return {name: t for name, t in message.items() if name not in sent or not torch.equal(t, sent[name])}


def _similar(n: Sequence[int], most: int, rows: int | None = None) -> list[list[int]]:
    """Places of `most` clients at most, none with under half the samples of another: padding no more than doubles.

    With `rows`, no group but one of a single client has more samples in all, padding counted.
    """
    groups: list[list[int]] = []
    for place in sorted(range(len(n)), key=lambda i: -n[i]):
        full = bool(groups) and rows is not None and (len(groups[-1]) + 1) * n[groups[-1][0]] > rows
        if not groups or full or len(groups[-1]) == most or 2 * n[place] < n[groups[-1][0]]:
            groups.append([])
        groups[-1].append(place)
    return groups


def _kinds(architectures: Sequence[Hashable], clients: Iterable[Client]) -> list[Hashable]:
    """What clients of a stack have in common: the architecture and, where padding would cost much, the width."""
    clients = list(clients)
    widths = [tuple(math.prod(shape) for shape in _shapes(client)) for client in clients]
    samples = [client.n_train + client.n_test for client in clients]
    buckets: dict[int, int] = {}
    for key in dict.fromkeys(architectures):
        places = [i for i, k in enumerate(architectures) if k == key]
        found = bucket([widths[i] for i in places], [samples[i] for i in places])
        buckets |= dict(zip(places, found, strict=True))
    return [(key, buckets[i]) for i, key in enumerate(architectures)]


def _shapes(spec: Spec | Client) -> list[tuple[int, ...]]:
    return list(spec.shapes.values()) if isinstance(spec.shapes, dict) else [spec.shapes]


def keeping(state: checkpoints.State, outcomes: Mapping[int, Outcome]) -> checkpoints.State:
    """The state after local training: clients that trained keep what came out of it."""
    kept = [outcomes[c].kept if c in outcomes else k for c, k in enumerate(state.kept)]
    return replace(state, kept=kept)
