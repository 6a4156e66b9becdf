"""A whole run: pre-training, rounds and their checkpoints, evaluation."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from hetfl_core import checks
from hetfl_core.engine import checkpoint as checkpoints
from hetfl_core.engine import evaluation
from hetfl_core.engine.checkpoint import State
from hetfl_core.engine.evaluation import Measure, Metrics, Samples
from hetfl_core.engine.last_step import after, fit
from hetfl_core.engine.learner import OnRound
from hetfl_core.engine.measures import MEASURES, check_measure, spread
from hetfl_core.engine.options import RunOptions, Seeded, check_runs, check_schedule, cpu_threads, warn_of_threads
from hetfl_core.engine.pool import Pool
from hetfl_core.engine.run import Run, columns
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.trainer import exchange, keeping, share_stacks, train
from hetfl_core.engine.training import Outcome, Outcomes
from hetfl_core.errors import WrongValue
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params
from hetfl_core.networks.identity import described


def run_all(data: Sequence[Seeded], method: Method, options: RunOptions, on_round: OnRound | None = None) -> list[Run]:
    """Runs of one method in step, whose clients share stacks; what `hetfl_core.simulate` calls.

    Parameters
    ----------
    data : sequence of (int, Federation, Federation or None)
        Of each run its seed, its data, and those with its validation samples.
    method : Method
    options : RunOptions
        For all runs; its own `validation` and `on_round` are not looked at.
    on_round : callable, optional
        Called with the seed and the newest row of its history when all runs have ended a round.

    Returns
    -------
    list of Run
        In the order of the data.

    Raises
    ------
    ValueError, CheckpointError, RuntimeError
        As `hetfl_core.simulate` does.
    """
    check_runs(data, method, options)
    participation, rounds = float(options.participation), options.rounds
    schedule = check_schedule(options.evaluate_every, rounds)
    task, checkpoint, threads = data[0][1].task, options.checkpoint, options.threads
    beside, scores = check_measure(options.metric, task)
    functions = {name: described(s.function) for name, s in scores.items() if name not in MEASURES[task]}
    told = ("engine", "device", "dtype", "stack_size", "workers", "threads", "secrets")
    shaping: dict[str, Any] = {name: getattr(options, name) for name in told}
    simulators, settings = [], list[dict[str, Any]]()
    for seed, federation, validation in data:
        simulator = Simulator(federation, method, seed=int(seed), **shaping)
        simulator.beside, simulator.scores = beside, scores
        if validation is not None:
            simulator.validation = Simulator(validation, method, seed=simulator.seed, **{**shaping, "secrets": None})
            simulator.validation.scores = scores
        simulators.append(simulator)
        settings.append(
            {
                "method": method_settings(simulator),
                "participation": participation,
                "seed": simulator.seed,
                "engine": simulator.engine,
                "dtype": str(options.dtype),
                "evaluate_every": schedule,
                **({"measure": [*beside, *sorted(scores)]} if beside or scores else {}),
                **({"functions": functions} if functions else {}),
                **({"secrets": _known(simulator.secrets)} if simulator.secrets else {}),
                **({"validation": validation.name} if validation is not None else {}),
            }
        )
    if len(simulators) > 1:
        share_stacks(simulators)
        for mine in settings:
            mine["together"] = [simulator.seed for simulator in simulators]
    if threads > 1:
        operations = len(simulators) * simulators[0].operations(participation)  # at most: runs share stacks
        warn_of_threads(threads, operations, simulators[0].device)
    journal = _Journal(simulators, settings[0], checkpoint, on_round)
    states = journal.read()
    done = states[0].done if states else 0  # rounds of before must not count as fast ones
    if done > rounds:
        raise checkpoints.CheckpointError(f"{checkpoint} holds {done} complete rounds, more than rounds={rounds}")
    if journal.folder is not None and (done < rounds or not states):
        checkpoints.check_writable(journal.folder)  # before hours of training are lost
    own = {"last_step": options.last_step} if options.last_step != "shared" else {}
    each = [{**mine, **own, "rounds": rounds, "threads": int(threads)} for mine in settings]
    metrics = simulators[0].metrics
    bar = tqdm(initial=done, total=rounds, disable=not options.progress, desc=method.name, unit="round")
    everybody = [*simulators, *(s.validation for s in simulators if s.validation is not None)]
    with cpu_threads(threads), Pool(everybody, simulators[0].workers, threads), bar:
        if not states:
            bar.set_postfix_str("before the first round")  # some methods train long before it
            states = _start(simulators, [simulator.initial() for simulator in simulators])
            journal.write(states)
        stopped, also = False, list[Also | None]([None] * len(simulators))
        while states[0].done < rounds and not stopped:
            states, also = _advance(simulators, states, each[0])
            stopped = journal.write(states)
            bar.update()
            bar.set_postfix_str(_postfix(states[0].rows[-1].get(metrics.main), metrics))
        bar.set_postfix_str("the last training of all clients")  # the bar is full, but this takes as long as rounds
        if states[0].done < rounds:
            each = [{**mine, "rounds": states[0].done, "rounds_asked": rounds} for mine in each]
        for simulator, state, others in zip(simulators, states, also, strict=True):
            if state.rows[-1][f"train_{metrics.main}"] is None:  # the last round always is evaluated
                state.rows[-1] |= _figures(simulator, state, others, {})
        runs = _finish(simulators, states, each)
        bar.set_postfix_str(_postfix(runs[0].final.get(metrics.main), metrics))
    return runs


class _Journal:
    """The checkpoint of runs that go on in step: one file, written when they have ended a round."""

    def __init__(
        self,
        simulators: Sequence[Simulator],
        settings: dict[str, Any],
        folder: str | Path | None,
        on_round: OnRound | None,
    ) -> None:
        self.simulators, self.on_round = simulators, on_round
        self.folder = None if folder is None else Path(folder)
        several = len(simulators) > 1
        self.names = [f"{s.seed}/{spec.name}" if several else spec.name for s in simulators for spec in s.specs]
        if self.folder is not None:
            data = [simulator.federation.fingerprint() for simulator in simulators]
            seen = [s.validation.federation.fingerprint() for s in simulators if s.validation is not None]
            whole = {**settings, "data": data if several else data[0], **({"validation": seen} if seen else {})}
            self.mark = checkpoints.Identity(whole, simulators[0].method)

    def read(self) -> list[State]:
        """The state of each run that was left; none where there is no checkpoint."""
        if self.folder is None:
            return []
        found = checkpoints.read_state(self.folder, self.mark, self.names, self.simulators[0].device)
        return [] if found is None else checkpoints.split_states(found, [len(s.specs) for s in self.simulators])

    def write(self, states: Sequence[State]) -> bool:
        """Write the states after a round, and report what its rows measure: whether the user wants to stop.

        Only True says so, for callbacks return all sorts of things.
        """
        if self.folder is not None:
            checkpoints.write_state(self.folder, self.mark, checkpoints.join_states(states), self.names)
        answers = []
        if self.on_round is not None and states[0].done:
            for simulator, state in zip(self.simulators, states, strict=True):
                row = {name: value for name, value in state.rows[-1].items() if value is not None}
                answers.append(self.on_round(simulator.seed, row))
        return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)


def _known(secrets: Mapping[str, bytes]) -> dict[str, str]:
    """By what secrets are recognised, which tells nothing of them."""
    return {name: hashlib.sha256(secret).hexdigest()[:16] for name, secret in sorted(secrets.items())}


def method_settings(simulator: Simulator) -> dict[str, Any]:
    """The method as a record holds it, with the network named that ``phi="auto"`` stands for."""
    method = simulator.method
    named = replace(method, model=method.model.resolved(spec.shapes for spec in simulator.specs))
    return checkpoints.method_settings(named, simulator.specs)


def _postfix(value: float | None, metrics: Metrics) -> str:
    return "" if value is None or math.isnan(value) else f"test {metrics.text(value)}"


Also = Callable[[Samples], Mapping[str, float | None]]
"""What else an evaluation finds, given the test predictions."""


def _row(
    simulator: Simulator, state: State, outcomes: Outcomes, evaluate: bool, also: Also | None = None
) -> dict[str, Any]:
    """A row of the history: means of loss terms, and figures, which are None where they are not due."""
    main = simulator.metrics.main
    names = _asked(simulator)
    reserved = [*columns(main), *names, f"validation_{main}", *(f"{name}_{main}" for name in get_args(Measure))]
    terms = dict.fromkeys(name for o in outcomes.values() for name in o.terms)
    if taken := sorted(terms.keys() & set(reserved)):
        raise WrongValue(f"a loss term is called {taken[0]!r}, which is a column of every history; rename it")
    means = {name: float(np.mean([o.terms[name] for o in outcomes.values() if name in o.terms])) for name in terms}
    row = {"round": state.done, **means, **dict.fromkeys(names)}
    if evaluate:
        return row | _figures(simulator, state, also, outcomes)
    _watch(simulator, state, outcomes, [])
    return row


def _asked(simulator: Simulator) -> list[str]:
    """Figures that each evaluation has: of the splits, and what is asked for, of validation samples too."""
    main = simulator.metrics.main
    tested = [main, *(name for name in simulator.scores if name != main)]
    seen = [f"validation_{name}" for name in tested] if simulator.validation is not None else []
    return [f"train_{main}", *tested, *seen]


def _validation(
    simulator: Simulator, state: State, params: Sequence[Params] | None = None, steps: Sequence[Params] = ()
) -> dict[str, float]:
    """Figures of the validation samples, where there are such."""
    if (seen := simulator.validation) is None:
        return {}
    return {f"validation_{name}": value for name, value in _means(seen, *seen.measured(state, params, steps)).items()}


def _means(simulator: Simulator, predicted: Samples, each: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Means over clients of what evaluations look at: the measures that are asked for, and the main figure."""
    means = spread(each, simulator.scores, evaluation.diverged(predicted))
    main = simulator.figure(predicted, simulator.labels("test"))
    return {**{name: means[name] for name in simulator.scores}, simulator.metrics.main: main}


def _figures(simulator: Simulator, state: State, also: Also | None, outcomes: Outcomes) -> dict[str, float | None]:
    """How good the models of a state are; NaN where there are no samples, or where training diverged."""
    test, each = simulator.measured(state)
    train = simulator.predicted(state, "train")
    _watch(simulator, state, outcomes, simulator.diverged([train, test]))
    trained = {f"train_{simulator.metrics.main}": simulator.figure(train, simulator.labels("train"))}
    found = {**trained, **_means(simulator, test, each), **_validation(simulator, state)}
    return {**found, **(also(test) if also else {})}


def _start(simulators: Sequence[Simulator], states: Sequence[State]) -> list[State]:
    """The start stage (pre-training) of all clients, from their initial tensors: the states of round 0."""
    begin, started = time.perf_counter(), []
    each = train(simulators, states, [range(len(s.specs)) for s in simulators], 0, "start")
    for simulator, before, outcomes in zip(simulators, states, each, strict=True):
        state = keeping(before, outcomes)
        row = _row(simulator, state, outcomes, True)
        sent = evaluation.n_bytes(o.received for o in outcomes.values())
        started.append(replace(state, rows=[{**row, "bytes_up": 0, "bytes_down": sent}]))
    return _timed(started, begin)


def _timed(states: list[State], begin: float) -> list[State]:
    """The states with the seconds in their newest rows: of those that have passed, each run's share."""
    for state in states:
        state.rows[-1]["seconds"] = (time.perf_counter() - begin) / len(states)
    return states


def _advance(
    simulators: Sequence[Simulator], states: Sequence[State], settings: dict[str, Any]
) -> tuple[list[State], list[Also | None]]:
    """One round of each run, and its row of the history; and what that measures beside the usual, should it be due."""
    begin, ended, measures = time.perf_counter(), [], list[Also | None]()
    chosen = [
        participants([spec.name for spec in s.specs], settings["participation"], s.seed, states[0].done)
        for s in simulators
    ]
    done, every = states[0].done + 1, settings["evaluate_every"]
    due = done == settings["rounds"] or (done in every if isinstance(every, list) else done % every == 0)
    exchanged = exchange(simulators, states, chosen)
    for simulator, before, (state, outcomes, others) in zip(simulators, states, exchanged, strict=True):
        also = partial(simulator.also, simulator.beside, before, state, outcomes)
        row = _row(simulator, state, outcomes, due, also)
        measures.append(also)
        messages = [*outcomes.values(), *others]
        row["bytes_up"] = evaluation.n_bytes(o.upload for o in messages)
        row["bytes_down"] = evaluation.n_bytes(o.received for o in messages)
        ended.append(replace(state, rows=[*before.rows, row]))
    return _timed(ended, begin), measures


def _finish(simulators: Sequence[Simulator], states: Sequence[State], settings: Sequence[dict[str, Any]]) -> list[Run]:
    """The last local training of all clients, and the figures after it."""
    begin, runs = time.perf_counter(), []
    everyone = [range(len(s.specs)) for s in simulators]
    each = train(simulators, states, everyone, states[0].done, "final")
    ends = [keeping(state, outcomes) for state, outcomes in zip(states, each, strict=True)]
    after: list[dict[int, Outcome]] = [{} for _ in simulators]
    if simulators[0].method.closes:
        ends = [_closing(*some) for some in zip(simulators, ends, each, strict=True)]
        after = train(simulators, ends, everyone, ends[0].done, "rest")
        ends = [keeping(state, outcomes) for state, outcomes in zip(ends, after, strict=True)]
    for simulator, last, trained, rested, mine in zip(simulators, ends, each, after, settings, strict=True):
        outcomes = {**trained, **rested}
        params = [outcomes[c].params if c in outcomes else p for c, p in enumerate(simulator.working(last))]
        run = _report(simulator, last, params, mine)
        messages = [*trained.values(), *rested.values()]
        run.final["bytes_up"] += evaluation.n_bytes(o.upload for o in messages)
        run.final["bytes_down"] += evaluation.n_bytes(o.received for o in messages)
        runs.append(run)
    for run in runs:
        run.final["seconds"] += (time.perf_counter() - begin) / len(runs)
    return runs


def _closing(simulator: Simulator, state: State, outcomes: Outcomes) -> State:
    """A state after all clients' uploads of the last local training."""
    server = simulator.server.aggregate(state.server, {c: o.upload for c, o in outcomes.items()}, state.done)
    return replace(state, server=server, done=state.done + 1)


def _report(simulator: Simulator, state: State, params: list[Params], settings: dict[str, Any]) -> Run:
    """The run that a state in which clients have these parameters makes, its totals those of the state's history."""
    steps: list[Params] = []
    told = simulator.outputs(state, "train", params)
    if settings.get("last_step") == "own":
        steps = [fit(z, client.y_train) for z, client in zip(told, simulator.federation, strict=True)]
    train = simulator.decided(after(told, steps))
    test, scored = simulator.measured(state, params, steps, say=True)
    labels, lost = simulator.labels("test"), simulator.diverged([train, test])
    _watch(simulator, state, {}, lost, "in the last local training")
    server = simulator.server_score(state)
    main = simulator.metrics.main
    lead = columns(main)[1:]
    figures = [*_asked(simulator), *(f"{name}_{main}" for name in simulator.beside)]
    history = pd.DataFrame(state.rows).astype(dict.fromkeys(figures, float))
    history = history[[c for c in history if c not in lead] + lead]
    final = evaluation.summarise(test, labels, simulator.federation.task)
    final |= spread(scored, simulator.scores, evaluation.diverged(test))
    final[f"train_{main}"] = simulator.figure(train, simulator.labels("train"))
    if server is not None:
        final[f"server_{main}"] = server
    final |= _validation(simulator, state, params, steps)
    final |= simulator.on_held_classes(test)
    final |= {"diverged": len(lost)} if lost else {}
    final["bytes_up"], final["bytes_down"] = int(history["bytes_up"].sum()), int(history["bytes_down"].sum())
    final["seconds"] = float(history["seconds"].sum())
    per_client = pd.DataFrame(
        {
            "client": [spec.name for spec in simulator.specs],
            "n_train": [spec.n_train for spec in simulator.specs],
            "n_test": [len(y) for y in labels],
            **evaluation.per_client(test, labels, simulator.federation.task),
            **simulator.held_per_client(test),
            **scored,
        }
    )
    return Run(
        simulator.federation,
        simulator.method,
        settings,
        history,
        final,
        per_client,
        state.server,
        state.client_states,
        params,
        simulator.device,
        steps,
    )


def _watch(simulator: Simulator, state: State, outcomes: Outcomes, lost: Sequence[int], when: str = "") -> None:
    """Warn, once a run, that training diverged: of clients whose loss or, after an evaluation, predictions say so.

    A mean spreads what is not a number to everybody within one round. So those are named whose models were broken when
    they left local training, though they had received numbers.
    """
    if simulator.warned:
        return
    doubtful = {c: o for c, o in outcomes.items() if lost or not all(map(math.isfinite, o.terms.values()))}
    broken = simulator.broken(state, doubtful)
    if not (broken or lost):
        return
    simulator.warned = True
    sound = [c for c in broken if all(bool(p.isfinite().all()) for p in outcomes[c].received.values())]
    first = sound or broken or lost
    names = [simulator.specs[c].name for c in sorted(first)]
    known = [row["round"] for row in state.rows if math.isnan(row[f"train_{simulator.metrics.main}"] or 0)]
    when = when if when and not known else f"in round {min(known, default=state.done)}"
    warnings.warn(
        f"{simulator.method.name}, seed {simulator.seed}: training diverged {when} on "
        f"{checks.clients(names)}: what the model says is NaN or infinite there, so that figures of such clients, and "
        "means over them, are NaN; a smaller learning rate (lr) or clipped gradients (clip) may help",
        RuntimeWarning,
        stacklevel=1 + checks.own_calls(),
    )
