"""The server of a deployed federation: rounds in which any client may be late, come back, or answer nonsense.

Nothing here knows what carries the messages. A `Coordinator` yields tasks by client and is sent what came back, as
a generator; `share_messages` lets several methods share messages.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch

from hetfl_core import checks
from hetfl_core.clients import in_one_order
from hetfl_core.deployment.site import Memory, Reply, RunSettings, Site, Task, TaskKind, named, spec_of
from hetfl_core.deployment.sums import MASKED, SumLayout
from hetfl_core.engine import checkpoint as checkpoints
from hetfl_core.engine import sides
from hetfl_core.engine.evaluation import METRICS, averages, n_bytes
from hetfl_core.engine.measures import spread
from hetfl_core.engine.options import with_networks
from hetfl_core.engine.run import of_splits
from hetfl_core.engine.trainer import unless_sent
from hetfl_core.errors import RunError, WrongValue
from hetfl_core.federation import Client, Spec, map_blocks
from hetfl_core.files import write_atomically
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params
from hetfl_core.rng import SECRET_BYTES, stream

T = TypeVar("T")
Requests = dict[str, Task]
Replies = dict[str, Reply]
Steps = Generator[Requests, Replies, T]
"""A computation that yields tasks by the names of clients, is sent the replies that came, and returns a `T`."""

SUM = "<sum>"
"""Name under which the sum of uploads comes back, with secure aggregation."""

UNBOUND = ("rounds", "evaluate_every", "metric")
"""Settings that may change when a run goes on."""

FEW = 8
"""Samples of a class, at most, of the made client that shows what an upload looks like."""


class DeploymentError(RunError):
    """A run that cannot go on; what its last checkpoint holds is complete."""


@dataclass
class Roster:
    """The clients that are known to take part, by name.

    Parameters
    ----------
    told : dict of str to dict
        What each client said of itself (see `hetfl_core.deployment.site.told`), in the order in which they came.
    """

    told: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, told: Mapping[str, Any], settings: RunSettings) -> str | None:
        """Take a client in; of one that is known already, see that it is the same.

        Returns
        -------
        str or None
            Its name, if it is new.

        Raises
        ------
        ValueError
            Where it describes itself wrongly, or otherwise than before.
        """
        name = spec_of(told, settings, 1).name
        before = self.told.get(name)
        if before is not None:
            if differing := [key for key in before if before[key] != told.get(key)]:
                key = differing[0]
                raise WrongValue(
                    f"client {name!r} now says that its {key} is {told.get(key)!r}, but it was {before[key]!r} when "
                    "it joined: its data changed, or two clients use one name"
                )
            return None
        self.told[name] = dict(told)
        return name

    def specs(self, settings: RunSettings) -> list[Spec]:
        """The spec of each client that is known, in the order in which they came.

        Returns
        -------
        list of Spec
        """
        return [spec_of(one, settings, len(self.told)) for one in self.told.values()]


@dataclass
class Result:
    """What a deployed run leaves at the server.

    Parameters
    ----------
    history : pandas.DataFrame
        As of `hetfl_core.Run`: one row per round, with ``took_part``, how many uploads the server used.
    final : dict of str to float
        Test metrics after the last local training, and total bytes and seconds.
    per_client : pandas.DataFrame
        Of each client, as it reported it.
    server : dict of str to Tensor
        The server's tensors at the end.
    """

    history: pd.DataFrame
    final: dict[str, float]
    per_client: pd.DataFrame
    server: Params


def foreseen(method: Method, spec: Spec, received: Params, common: Params, settings: RunSettings) -> Params:
    """A made upload as this client's must look: names, shapes and types count, numbers do not.

    A client of the same shapes and classes is made, with few random samples of each class, and goes through a round.

    Returns
    -------
    dict of str to Tensor
    """
    counts = [min(n, FEW) for n in spec.class_counts]
    y = (
        torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))
        if sum(counts)
        else torch.linspace(0, 1, FEW, dtype=settings.dtype)
    )
    rng = stream(settings.seed, spec.name, 0, "foreseen")

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(len(y), *shape, generator=rng, dtype=settings.dtype)

    x = map_blocks(drawn, spec.shapes)
    few = Client(x, y, map_blocks(lambda t: t[:0], x), y[:0], spec.name)
    site = Site(few, method, settings, spec.n_clients, secret=bytes(SECRET_BYTES))  # nobody's: numbers do not count
    client_state = site.first(common)
    return site.work(Task("round", 0, received), Memory((0, 0), client_state, client_state))[0].sent


def why_refused(sent: Params, pattern: Params | None) -> str | None:
    """Say what is wrong with an upload; None if nothing is.

    Parameters
    ----------
    sent : dict of str to Tensor
    pattern : dict of str to Tensor, optional
        As `foreseen`; without, only numbers that are not finite are refused.

    Returns
    -------
    str or None
    """
    expected = sent if pattern is None else pattern
    if sent.keys() != expected.keys():
        lacks, more = sorted(expected.keys() - sent.keys()), sorted(sent.keys() - expected.keys())
        return f"another method's message: it lacks {checks.shown(lacks)} and has {checks.shown(more)}"
    for name, p in sent.items():
        if p.shape != expected[name].shape:
            return f"{name!r} must have shape {tuple(expected[name].shape)}, got {tuple(p.shape)}"
        if p.dtype != expected[name].dtype:
            return f"{name!r} must be of {expected[name].dtype}, got {p.dtype}"
        if p.is_floating_point() and not bool(p.isfinite().all()):
            return f"{name!r} holds {int((~p.isfinite()).sum())} numbers that are NaN or infinite"
    return None


class Coordinator:
    """The server's side of one run of one method, over messages.

    Parameters
    ----------
    name : str
        Of the run, for what is said about it.
    method : Method
    settings : RunSettings
    roster : Roster
        Its clients of now; those that it gets later join at the beginning of a round.
    folder : Path, optional
        Where the state is written after every round. A run that is started again with the same arguments goes on.
    say : callable
        Told, in words, of everything that does not go as planned.

    Raises
    ------
    ValueError
        For a federation that the method cannot run on.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        settings: RunSettings,
        roster: Roster,
        folder: Path | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.name, self.settings, self.roster = name, settings, roster
        self.folder, self._say = folder, say
        self.specs = in_one_order(roster.specs(settings))
        self.method = method = with_networks(method, self.specs)
        method.check(self.specs)
        if method.closes:
            raise WrongValue(
                f"{method.name} ends with an exchange, which a deployment does not have; run what its joining() gives"
            )
        if settings.secure and (why := method.needs_uploads) is not None:
            raise WrongValue(f"{method.name} cannot run with secure aggregation: {why}")
        sides.check_participation(settings.participation, len(self.specs))
        self.refused: set[str] = set()
        self.patterns: dict[int, Params | None] = {}
        self.common = self.side.common()
        self.total: Reply | None = None
        """With secure aggregation the last sum of uploads."""
        self.server: Params = {}
        """The server's tensors as the last uploads left them."""
        self.row: dict[str, Any] = {}
        """The last round's row of the history, as far as it is known."""

    @property
    def side(self) -> sides.ServerSide:
        """The server's part of the training, for the clients that there are now."""
        settings = self.settings
        return sides.ServerSide(self.method, self.specs, settings.seed, torch.device("cpu"), settings.dtype)

    def say(self, what: str) -> None:
        """Tell of something that did not go as planned."""
        self._say(f"{self.name}: {what}")

    # --- what goes out and comes back ---

    def ask(self, tasks: Mapping[int, Task]) -> Steps[dict[int, Reply]]:
        """Send tasks, and take the replies without an error, by index.

        Who did not answer, or could not, is named.
        """
        if not tasks:
            return {}
        replies = yield {self.specs[index].name: task for index, task in tasks.items()}
        self.total = replies.get(SUM)
        good: dict[int, Reply] = {}
        for index, task in tasks.items():
            name, what = self.specs[index].name, f"round {task.round}, {task.kind}"
            reply = replies.get(name)
            if reply is None:
                self.say(f"{what}: no answer from client {name!r}; the round goes on without it")
            elif reply.error is not None:
                self.say(f"{what}: client {name!r} {reply.error}; the round goes on without it")
            else:
                good[index] = reply
        return good

    def usable(
        self, replies: Mapping[int, Reply], what: str, tasks: Mapping[int, Task] | None = None
    ) -> dict[int, Reply]:
        """Replies whose tensors can be used, given the `tasks` as uploads to these.

        Others are named, and left out.
        """
        good = {}
        for index, reply in replies.items():
            why = why_refused(reply.sent, None if tasks is None else self._pattern(index, tasks[index].received))
            if why is None:
                good[index] = reply
            else:
                self.say(f"{what} of client {self.specs[index].name!r} is refused: {why}")
        return good

    def _pattern(self, index: int, received: Params) -> Params | None:
        if index not in self.patterns:
            try:
                self.patterns[index] = foreseen(self.method, self.specs[index], received, self.common, self.settings)
            except Exception as error:  # whatever a method does with samples that mean nothing
                self.say(f"what {self.specs[index].name!r} will send cannot be foreseen ({error})")
                self.patterns[index] = None
        return self.patterns[index]

    def _tasks(self, kind: TaskKind, round: int, server: Params, indices: Iterable[int]) -> dict[int, Task]:
        """A task of one kind for some clients, each with its download."""
        side, common = self.side, self.common if kind == "start" else {}
        known = {c: (self.specs[c].n_clients, self.specs[c].features) for c in indices}
        return {c: Task(kind, round, side.download(server, c), common, *own) for c, own in known.items()}

    # --- the run ---

    def steps(self) -> Steps[Result]:
        """The exchanges of the run, from where its folder has it; the generator returns a `Result`.

        Yields
        ------
        dict of str to Task
            By the names of clients. It is sent the replies that came.
        """
        state = self._resumed()
        if state is None:
            state = yield from self._start()
        while state.done < self.settings.rounds:
            state = yield from self._newcomers(state)
            state = yield from self._round(state)
        return (yield from self._finish(state))

    def _start(self) -> Steps[checkpoints.State]:
        begin = time.perf_counter()
        state = checkpoints.State(0, self.side.initial(), [])
        self.server = state.server
        everyone = range(len(self.specs))
        tasks = self._tasks("start", 0, state.server, everyone)
        replies = yield from self.ask(tasks)
        if len(replies) < len(self.specs):
            missing = sorted(self.specs[c].name for c in set(everyone) - set(replies))
            raise DeploymentError(f"{self.name}: {', '.join(missing)} could not begin; the reason stands above")
        row = {"round": 0, **self._means(replies), "bytes_up": 0, "bytes_down": 0}
        if self.method.stages(0, "start"):
            row["bytes_down"] = n_bytes(task.received for task in tasks.values())
        state.rows = [{**row, "took_part": len(replies), "seconds": time.perf_counter() - begin}]
        self._save(state)
        return state

    def _newcomers(self, state: checkpoints.State) -> Steps[checkpoints.State]:
        """Take in who has come since the last round, if the method can."""
        known = {spec.name for spec in self.specs} | self.refused
        new = [spec for spec in self.roster.specs(self.settings) if spec.name not in known]
        for spec in in_one_order(new, [spec.features for spec in self.specs]):
            try:
                self.method.check([*self.specs, spec])
                server = self.side.join(state.server, [spec], state.done)
            except ValueError as error:
                self.refused.add(spec.name)
                self.say(f"client {spec.name!r} cannot join: {error}")
                continue
            self.specs.append(spec)
            if (yield from self.ask(self._tasks("start", 0, server, [len(self.specs) - 1]))):
                state = replace(state, server=server)
                self.say(f"client {spec.name!r} joins after {state.done} rounds")
            else:
                self.specs.pop()
                self.refused.add(spec.name)
        return state

    def _round(self, state: checkpoints.State) -> Steps[checkpoints.State]:
        begin, t = time.perf_counter(), state.done
        names = [spec.name for spec in self.specs]
        chosen = sides.participants(names, self.settings.participation, self.settings.seed, t)
        server, survey_up = state.server, 0
        questions: dict[int, Task] = {}
        if asked := self.side.asked(chosen, t):
            server, rng = self.side.ask(server, t)
            questions = self._tasks("survey", t, server, asked)
            good = self.usable((yield from self.ask(questions)), f"round {t}, survey: the answer")
            survey_up = n_bytes(r.sent for r in good.values())
            server = self.side.digest(server, {c: r.sent for c, r in good.items()}, rng)
        tasks = self._tasks("round", t, server, chosen)
        if self.method.stages(t, "rest"):
            tasks |= self._tasks("rest", t, server, sorted(set(range(len(names))) - set(chosen)))
        if self.settings.secure:
            tasks |= self._for_sums({c: tasks[c] for c in chosen})
        replies = yield from self.ask(tasks)
        mine = {c: r for c, r in replies.items() if c in set(chosen)}
        if not self.settings.secure:
            mine = self.usable(mine, f"round {t}: the upload", tasks)
        if not mine or (self.settings.secure and self.total is None):
            raise DeploymentError(
                f"{self.name}: no usable upload came in round {t}; start the run again to go on from there"
            )
        if self.settings.secure:
            server, bytes_up = self._after_sum(server, tasks[min(mine)], mine, t)
        else:
            server = self.side.aggregate(server, {c: r.sent for c, r in mine.items()}, t)
            bytes_up = n_bytes(r.sent for r in mine.values())
        sent = {c: task.received for c, task in tasks.items()}
        asked_for = n_bytes(unless_sent(q.received, sent.get(c, {})) for c, q in questions.items())
        state = checkpoints.State(t + 1, server, [], state.rows)
        self.server = server
        self.row = row = {
            "round": t + 1,
            **self._means(mine),
            "bytes_up": bytes_up + survey_up,
            "bytes_down": n_bytes(sent.values()) + asked_for,
        }
        if state.done % self.settings.evaluate_every == 0 and state.done < self.settings.rounds:
            everyone = self._tasks("evaluate", state.done, server, range(len(names)))
            row |= self._figures((yield from self.ask(everyone)))
        row |= {"took_part": len(mine), "seconds": time.perf_counter() - begin}
        state.rows = [*state.rows, row]
        self._save(state)
        return state

    # --- secure aggregation ---

    def _for_sums(self, tasks: Mapping[int, Task]) -> dict[int, Task]:
        """Tasks that have the place in the sum of each tensor that some participant sends."""
        shapes: dict[str, tuple[int, ...]] = {}
        for index, task in tasks.items():
            pattern = self._pattern(index, task.received)
            if pattern is None:
                raise DeploymentError(
                    f"{self.name}: secure aggregation must know what {self.specs[index].name!r} will send"
                )
            for name, p in pattern.items():
                if shapes.setdefault(name, tuple(p.shape)) != tuple(p.shape):
                    raise WrongValue(
                        f"{self.name}: clients send {name!r} in shapes {shapes[name]} and {tuple(p.shape)}"
                    )
        weights = {index: self.method.weight(self.specs[index]) for index in tasks}
        total, limit = sum(weights.values()), self.settings.clipping_range
        return {c: replace(task, layout=SumLayout(shapes, weights[c] / total, limit)) for c, task in tasks.items()}

    def _after_sum(self, server: Params, task: Task, mine: Mapping[int, Reply], round: int) -> tuple[Params, int]:
        """The server's tensors after the mean of the uploads, which is all that it is given; and the bytes sent up.

        Each client sends the masked vector, and the factor that Flower puts before it.
        """
        layout = task.layout
        assert layout is not None
        assert self.total is not None
        like = {name: p.dtype for pattern in self.patterns.values() for name, p in (pattern or {}).items()}
        mean = layout.means(self.total.sent["vector"].double().numpy(), like)
        return self.side.aggregate(server, {min(mine): mean}, round), len(mine) * MASKED * (layout.length + 1)

    def _finish(self, state: checkpoints.State) -> Steps[Result]:
        """Run the last local training of all clients, evaluated before and after."""
        begin, T = time.perf_counter(), state.done
        tasks = self._tasks("final", T, state.server, range(len(self.specs)))
        replies = yield from self.ask(tasks)
        state.rows[-1] |= self._figures(replies)
        self._save(state)
        history = pd.DataFrame(state.rows)
        per_client = self._per_client(replies)
        final = self._summary(per_client.iloc[[i for i, c in enumerate(self.side.order) if c in replies]])
        final["bytes_up"], final["bytes_down"] = int(history["bytes_up"].sum()), int(history["bytes_down"].sum())
        if self.method.stages(T, "final"):
            final["bytes_down"] += n_bytes(task.received for task in tasks.values())
        final["seconds"] = float(history["seconds"].sum()) + time.perf_counter() - begin
        return Result(history, final, per_client, state.server)

    # --- figures ---

    def _means(self, replies: Mapping[int, Reply]) -> dict[str, float]:
        """Means over replies of loss terms and, where they were measured, of figures."""
        terms = [replies[index].terms for index in self.side.by_name(replies)]
        names = dict.fromkeys(name for each in terms for name in each)
        means = {name: float(np.mean([each[name] for each in terms if name in each])) for name in names}
        return means | self._figures(replies)

    def _figures(self, replies: Mapping[int, Reply]) -> dict[str, float]:
        """Means over clients of what they measured, but for what belongs to the end."""
        found: dict[str, float] = {}
        for split, name in of_splits(METRICS[self.settings.task].main).items():
            known = [c for c in self.side.by_name(replies) if self.roster.told[self.specs[c].name][f"n_{split}"]]
            each = [replies[c].figures[name] for c in known if name in replies[c].figures]
            found |= {name: float(np.mean(each))} if each else {}
        if scores := self.settings.scores:
            known = [c for c in self.side.by_name(replies) if next(iter(scores)) in replies[c].figures]
            lost = np.isnan([replies[c].figures[METRICS[self.settings.task].main] for c in known])
            tested = np.array([self.roster.told[self.specs[c].name]["n_test"] > 0 for c in known])
            each_of = {name: np.array([replies[c].figures[name] for c in known]) for name in scores}
            found |= {name: spread(each_of, scores, lost & tested)[name] for name in scores} if known else {}
        return found

    def _per_client(self, replies: Mapping[int, Reply]) -> pd.DataFrame:
        metrics = METRICS[self.settings.task]
        asked = [*metrics.per_client, *self.settings.scores]
        names = {name: f"final_{name}" for name in asked} | {"train": f"final_train_{metrics.main}"}
        rows = []
        for index in self.side.order:
            spec, reply = self.specs[index], replies.get(index, Reply())
            row = {"client": spec.name, "n_train": spec.n_train, "n_test": self.roster.told[spec.name]["n_test"]}
            rows.append(row | {name: reply.figures.get(told, math.nan) for name, told in names.items()})
        return pd.DataFrame(rows)

    def _summary(self, per_client: pd.DataFrame) -> dict[str, float]:
        """The final metrics, as `hetfl_core.engine.evaluation.summarise` has them, of what clients reported."""
        main = METRICS[self.settings.task].main
        each = {name: per_client[name].to_numpy() for name in METRICS[self.settings.task].per_client}
        final = averages(each, per_client["n_test"].to_numpy(), np.isnan(each[main]), self.settings.task)
        scores = self.settings.scores
        lost = (np.isnan(each[main])) & (per_client["n_test"].to_numpy() > 0)
        final |= spread({name: per_client[name].to_numpy() for name in scores}, scores, lost)
        return final | {f"train_{main}": float(per_client["train"].mean(skipna=False))}

    # --- checkpoints ---

    def _identity(self) -> checkpoints.Identity:
        settings = {"run": self.name, "method": checkpoints.method_settings(self.method, self.specs)}
        fixed = {key: value for key, value in vars(self.settings).items() if key not in UNBOUND}
        settings |= {key: str(value).removeprefix("torch.") for key, value in fixed.items()}
        return checkpoints.Identity(settings, self.method)

    def _save(self, state: checkpoints.State) -> None:
        if self.folder is None:
            return
        names = [spec.name for spec in self.specs]
        told = [
            {**self.roster.told[spec.name], "n_clients": spec.n_clients, "order": spec.features} for spec in self.specs
        ]
        write_atomically(self.folder / "clients.json", json.dumps(told, indent=1).encode())
        checkpoints.write_state(self.folder, self._identity(), replace(state, client_states=[{} for _ in names]), names)

    def _resumed(self) -> checkpoints.State | None:
        """The state that the run's folder holds, its clients in the order in which they joined."""
        if self.folder is None or not (self.folder / checkpoints.FILE).exists():
            return None
        told: Sequence[dict[str, Any]] = json.loads((self.folder / "clients.json").read_text("utf8"))
        settings = self.settings
        for one in told:
            self.roster.add({key: one[key] for key in one if key not in ("n_clients", "order")}, settings)
        specs = [spec_of(one, settings, one["n_clients"]) for one in told]
        orders = [named(one.get("order")) or spec.features for one, spec in zip(told, specs, strict=True)]
        self.specs = [spec.of_features(order) for spec, order in zip(specs, orders, strict=True)]
        self.common = self.side.common()
        state = checkpoints.read_state(self.folder, self._identity(), [spec.name for spec in self.specs])
        if state is not None:
            self.say(f"goes on after {state.done} of {settings.rounds} rounds")
        return state


def share_messages(
    runs: Mapping[str, Steps[T]], exchange: Callable[[dict[str, dict[str, Task]]], dict[str, dict[str, Reply]]]
) -> dict[str, T]:
    """Let several runs share messages: what they ask of a client at the same time goes out as one.

    Parameters
    ----------
    runs : dict of str to generator
        As `Coordinator.steps`.
    exchange : callable
        Given, by the names of clients, the tasks of each run; returns replies likewise. Clients may be missing.

    Returns
    -------
    dict of str
        What each run returned.
    """
    waiting: dict[str, Requests] = {}
    results: dict[str, T] = {}

    def go_on(name: str, replies: Replies | None) -> None:
        try:
            waiting[name] = runs[name].send(replies)  # type: ignore[arg-type]
        except StopIteration as end:
            results[name] = end.value

    for name in runs:
        go_on(name, None)
    while waiting:
        asked, waiting = waiting, {}
        tasks: dict[str, dict[str, Task]] = {}
        for run, requests in asked.items():
            for client, task in requests.items():
                tasks.setdefault(client, {})[run] = task
        replies = exchange(tasks)
        for run, requests in asked.items():
            go_on(run, {c: replies[c][run] for c in [*requests, SUM] if run in replies.get(c, {})})
    return results
