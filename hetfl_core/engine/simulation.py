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
import torch
from tqdm.auto import tqdm

from hetfl_core import checks, keywords
from hetfl_core.engine import checkpoint as checkpoints
from hetfl_core.engine import evaluation
from hetfl_core.engine.checkpoint import State
from hetfl_core.engine.evaluation import Measure, Metrics, Samples
from hetfl_core.engine.last_step import LastStep, after, fit
from hetfl_core.engine.layout import Engine
from hetfl_core.engine.measures import MEASURES, Asked, check_measure, spread
from hetfl_core.engine.options import RunOptions, Seeded, check_runs, check_schedule, cpu_threads, warn_of_threads
from hetfl_core.engine.pool import Pool
from hetfl_core.engine.run import Run, columns
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.trainer import exchange, keeping, share_stacks, train
from hetfl_core.engine.training import Outcome, Outcomes
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params
from hetfl_core.networks.identity import described


@keywords.hinting()
def simulate(
    federation: Federation,
    method: Method,
    *,
    rounds: int = 50,
    participation: float = 1.0,
    seed: int = 0,
    engine: Engine = "auto",
    device: str | torch.device = "auto",
    dtype: torch.dtype = torch.float32,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    evaluate_every: int | Sequence[int] = 1,
    measure: Sequence[Asked] = (),
    last_step: LastStep = "shared",
    validation: Federation | None = None,
    stack_size: int | None = None,
    workers: int | None = None,
    threads: int = 1,
    on_round: Callable[[dict[str, Any]], Any] | None = None,
    secrets: Mapping[str, bytes] | None = None,
) -> Run:
    """Run a method on a federation.

    Parameters
    ----------
    federation : Federation
    method : Method
    rounds : int
        Communication rounds T.
    participation : float
        Participation rate r in (0, 1]: ⌊r·b⌋ clients take part in a round, drawn without replacement. By default all;
        the papers' experiments say 0.1.
    seed : int
        Keys every random number of the run. The same seed gives bit-identical histories on the same machine.
    engine : {"auto", "stacked", "loop"}
        Train clients as batched tensor programs, or one after the other in the slow, obvious way (the oracle).
        ``"auto"`` takes what is faster for each kind of client, by `hetfl_core.engine.layout.choose`: stacks of small
        networks, smaller stacks of wide ones, and the loop for most convolutions on a CPU.
    device : str or torch.device
        ``"auto"``: CUDA where there is one. Random numbers are drawn on the CPU in any case.
    dtype : torch.dtype
        Floating-point type of data and parameters.
    checkpoint : path, optional
        Folder in which the state is written after every round, atomically. A run that was killed and is started
        again with the same arguments goes on from there and ends with the same results, bit for bit. More `rounds`
        than before go on as well.
    progress : bool
        Show a progress bar.
    evaluate_every : int or sequence of int
        Rounds between evaluations, or the rounds to evaluate: ``(1, 2, 4, 8)``. The first and the last always are.
    measure : sequence of str or callable
        What else each evaluation looks at, as columns of the history. Of the clients' test samples (and, with
        `validation`, of those, as ``validation_auc`` …): ``"balanced_accuracy"``, ``"auc"``, ``"f1"``, ``"log_loss"``,
        ``"brier"`` and ``"calibration_error"``, or ``"rmse"``, ``"mae"`` and ``"r2"`` for a regression, as
        `hetfl_core.engine.measures` defines them; and functions of your own, ``f(y, p)``, of labels, shape (n,), and
        class probabilities, shape (n, C), or of targets and predicted numbers. Such a column is the mean over clients;
        `Run.final` also has their standard deviation, ``auc_sd``, and the worst client's, ``auc_worst``: the smallest,
        or the largest where less is better. Of a function of your own that is to be said, by
        ``hetfl_core.scorer(f, greater_is_better=False)``; a bare one has no worst client. A client where a measure is
        not defined, as ``"auc"`` with samples of one class, has NaN and is left out; a FederationWarning names it.
        Beside these:

        - ``own_accuracy``: the mean over the participants of their models as they leave local training, before
          the server averages anything. It costs one forward pass of the participants' test samples.
        - ``server_accuracy``: that of the server's own model, where the method has one, on the federation's own
          test data, or else on the clients' (one forward pass of all).
        - ``held_accuracy`` and ``own_held_accuracy``: as ``accuracy`` and ``own_accuracy``, on test samples of the
          classes that a client has training samples of.
    last_step : {"shared", "own"}
        With ``"own"`` each client fits slope and offsets of its model's logits (of a regression, its numbers) to its
        own training samples when all training is over, and never sends them (`hetfl_core.engine.last_step`): a shared
        model does not know in which shares a client has the classes. What `Run.final` and `Run.per_client` say, and
        what the run predicts, is after this step; the history is before it, as it is before the last local training.
    validation : Federation, optional
        The same clients with other test samples, their validation samples: each evaluation also measures those, as
        ``validation_accuracy`` in the history and in `Run.final` (``validation_mse`` for a regression). Training does
        not see them; they are for choosing a round, or a setting, without looking at the test samples.
    stack_size : int, optional
        Largest number of clients in one stack; bounds memory. By default 1024, or as many as ``engine="auto"`` finds
        worth it. Results depend on it to rounding only, which training lets grow: see the notes.
    workers : int, optional
        Processes that train and evaluate stacks, or clients of the loop, side by side on a CPU, each on a core. By
        default this one at first, and a process a core (over `threads`) as soon as the run has taken two seconds, or
        twenty where processes cannot be forks of this one; always one where this process is itself one of several. The
        result does not depend on it, not by a bit. What a method prints there is seen, what it remembers is not.
    threads : int
        Threads within one operation on the CPU. More than one only for large images, on cores that nobody else uses.
        Elsewhere the tensors are small, and threads that wait for each other make a run slower, on a busy machine fifty
        times. Where a step of the largest stack of a round is less than 10⁹ floating-point operations, a
        RuntimeWarning says so. `workers` use several cores for any network. PyTorch's own setting is put back at the
        end. At most 64, or as many as the machine has cores.
    on_round : callable, optional
        Called with the newest row of the history after each round, when its checkpoint is written; what was not
        measured in that round is not in the row. If it returns True, the run ends early, with its last local training
        and evaluation as after any other last round: ``settings["rounds"]`` of the `Run` is the number of rounds made,
        ``settings["rounds_asked"]`` that of the argument. Started again with the same `checkpoint` it goes on. What
        `on_round` raises ends the call without a `Run`.
    secrets : dict of str to bytes, optional
        By clients' names, what keys the noise that protects their uploads, 32 bytes each; by default that is keyed by
        the seed, as all else is. In a deployment every client draws a secret that nobody else gets to know: with these
        secrets a simulation has its numbers. This noise depends on the very bits of what it covers, so that another
        engine, which rounds in another way, has other noise.

    Returns
    -------
    Run
        Histories, figures and models; see there.

    Raises
    ------
    ValueError
        For T < 1, a participation that selects no client, a federation that the method cannot run on, or a
        `validation` whose clients are not those of the federation.
    hetfl_core.engine.checkpoint.CheckpointError
        If the checkpoint is damaged, belongs to another setting, or cannot be written.
    RuntimeError
        If a process of the run is killed, with the clients that it worked on.

    Notes
    -----
    *Divergence.* Where a model's outputs for some sample are NaN or infinite, its client has no figure: NaN stands in
    the history, in `Run.final` (of means over clients, too) and in `Run.per_client`, ``final["diverged"]`` counts such
    clients, and one RuntimeWarning says on which client and in which round it began.

    *Evaluation.* After each round every client is evaluated with what it keeps and a fresh download, whether it took
    part or not. `Run.final` is measured after a last local training of all clients (role ``"final"``), from a fresh
    download, as FLIC reports accuracy; for a method that `closes`, after one more exchange, too.

    *Rounding.* The same arguments give the same bits on the same kind of machine. Another `stack_size`, engine, number
    of threads or device only takes sums in another order; but training amplifies rounding. In float32 and over a few
    rounds parameters were seen to differ by 2e-5, by some 1e-3 where pre-training is long, and in FLIC's published
    variant by 2e-3. In float64 they differed by 1e-11, and by 1e-5 under FLIC's anchor term where classes are nearly
    flat, as those of clients with few features are. Over many rounds a few predictions may differ.

    *Memory.* What a loss asks to remember lives for one round of one client. A sample that was not seen in it holds
    zeros; a sample that was seen more than once holds its last value.

    *Bytes.* Messages are counted at their true shapes, a broadcast once per receiver. The downloads of the start stage
    count in round 0, those of clients that train while at rest in that round, those of the final training in
    ``final``. Evaluation's downloads do not count. A survey (see `Method.surveyed`) counts its answers as sent up and
    its questions as sent down; what the question and the download of the same round have in common counts once.
    """
    (run,) = _simulate(
        [(seed, federation, validation)],
        method,
        on_round if not callable(on_round) else lambda seed, row: on_round(row),
        rounds=rounds,
        participation=participation,
        engine=engine,
        device=device,
        dtype=dtype,
        checkpoint=checkpoint,
        progress=progress,
        evaluate_every=evaluate_every,
        measure=measure,
        last_step=last_step,
        stack_size=stack_size,
        workers=workers,
        threads=threads,
        secrets=secrets,
    )
    return run


@keywords.hinting(*RunOptions.names("validation", "on_round"))
def simulate_seeds(
    federation: Federation | Callable[[int], Federation],
    method: Method,
    *,
    seeds: int | Sequence[int] = 5,
    on_round: Callable[[int, dict[str, Any]], Any] | None = None,
    **options: Any,
) -> dict[int, Run]:
    """Runs that differ in their seeds only, side by side: their clients share stacks as the clients of one run do.

    It pays where few clients take part in a round: ten of each of five runs are one stack of fifty. The memory is that
    of all runs at once, and a run that fails ends all of them.

    Parameters
    ----------
    federation : Federation, or callable
        The data, or ``federation(seed)``, which makes those of a seed.
    method : Method
    seeds : int or sequence of int
        Number of seeds, from 0 on, or the seeds themselves.
    on_round : callable, optional
        Called with the seed and the newest row of its history when all runs have ended a round and their common
        checkpoint is written. If it returns True for one of them, all end after this round, as in `simulate`.
    **options
        ``rounds``, ``participation``, ``engine``, ``device``, ``dtype``, ``checkpoint``, ``progress``,
        ``evaluate_every``, ``measure``, ``last_step``, ``stack_size``, ``workers`` and ``threads``, as for `simulate`.
        One folder ``checkpoint`` is for all of these seeds: it does not go on with other ones, nor with runs that
        `simulate` left.

    Returns
    -------
    dict of int to Run
        Each the same as `simulate` gives with that seed, to rounding: a stack is padded to its widest client, of
        whatever run. ``Run.settings["together"]`` names the seeds. The seconds are a run's share of those that passed.

    Raises
    ------
    ValueError, hetfl_core.engine.checkpoint.CheckpointError
        As for `simulate`, and where the seeds have different tasks or numbers of classes.

    Notes
    -----
    The same seeds give the same bits, in whatever order, also when they were interrupted and go on.
    """
    numbers = sorted(checks.seeds(seeds))
    data = [(seed, federation(seed) if callable(federation) else federation, None) for seed in numbers]
    return dict(zip(numbers, _simulate(data, method, on_round, **options), strict=True))


def _simulate(
    data: Sequence[Seeded],
    method: Method,
    on_round: Callable[[int, dict[str, Any]], Any] | None,
    *,
    rounds: int = 50,
    participation: float = 1.0,
    dtype: torch.dtype = torch.float32,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    evaluate_every: int | Sequence[int] = 1,
    measure: Sequence[Asked] = (),
    last_step: LastStep = "shared",
    threads: int = 1,
    secrets: Mapping[str, bytes] | None = None,
    **options: Any,
) -> list[Run]:
    """Simulate the runs of all seeds in step."""
    told: dict[str, Any] = {"rounds": rounds, "participation": participation, "dtype": dtype, "checkpoint": checkpoint}
    told |= {"progress": progress, "evaluate_every": evaluate_every, "measure": measure, "last_step": last_step}
    check_runs(data, method, RunOptions(**told, **options, threads=threads, on_round=on_round, secrets=secrets))
    participation, schedule = float(participation), check_schedule(evaluate_every, rounds)
    beside, scores = check_measure(measure, data[0][1].task)
    functions = {name: described(s.function) for name, s in scores.items() if name not in MEASURES[data[0][1].task]}
    options |= {"dtype": dtype, "threads": threads, "secrets": secrets}
    simulators, settings = [], list[dict[str, Any]]()
    for seed, federation, validation in data:
        simulator = Simulator(federation, method, seed=int(seed), **options)
        simulator.beside, simulator.scores = beside, scores
        if validation is not None:
            simulator.validation = Simulator(validation, method, seed=simulator.seed, **{**options, "secrets": None})
            simulator.validation.scores = scores
        simulators.append(simulator)
        settings.append(
            {
                "method": method_settings(simulator),
                "participation": participation,
                "seed": simulator.seed,
                "engine": simulator.engine,
                "dtype": str(dtype),
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
    own = {"last_step": last_step} if last_step != "shared" else {}
    each = [{**mine, **own, "rounds": rounds, "threads": int(threads)} for mine in settings]
    metrics = simulators[0].metrics
    bar = tqdm(initial=done, total=rounds, disable=not progress, desc=method.name, unit="round")
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
        on_round: Callable[[int, dict[str, Any]], Any] | None,
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
