"""A whole run: pre-training, rounds and their checkpoints, evaluation; and what a new client learns afterwards."""

from __future__ import annotations

import itertools
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from hetfl_core import checks
from hetfl_core.clients import in_one_order
from hetfl_core.engine import checkpoint as checkpoints
from hetfl_core.engine import evaluation
from hetfl_core.engine.evaluation import METRICS, Measure, Metrics, Samples
from hetfl_core.engine.layout import Engine
from hetfl_core.engine.sides import check_participation, participants
from hetfl_core.engine.simulator import Simulator, Steps, Training, keeping, share, together
from hetfl_core.engine.training import Outcome, prediction_noise
from hetfl_core.federation import Client, Federation, blocks, map_blocks
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params


@dataclass(eq=False)
class Run:
    """What `simulate` returns.

    Attributes
    ----------
    history : pandas.DataFrame
        One row per round (0 is the state after pre-training): ``round``, the mean of each loss term over steps and
        participants, ``train_accuracy`` and ``test_accuracy`` (means over clients; ``train_mse`` and ``test_mse`` for
        a regression), ``bytes_up``, ``bytes_down``, ``seconds``.
    final : dict of str to float
        Test metrics after the last local training of all clients (see `hetfl_core.engine.evaluation.summarise`),
        ``train_accuracy``, ``server_accuracy`` where the server has a model of its own (``…_mse`` for a regression),
        ``validation_accuracy`` where there are validation samples,
        where test sets hold classes that training sets lack ``accuracy_held``, on the classes held, and
        ``accuracy_limit``, the share of test samples of these classes, which is what a client can at best reach if it
        never names another; and total ``bytes_up``, ``bytes_down``, ``seconds``.
    per_client : pandas.DataFrame
        Test accuracy and balanced accuracy (mean squared error and R² for a regression) and sample counts of each
        client at the end.
    server, kept
        Tensors of the server, and of each client (in the order of the federation), at the end.
    params
        Each client's whole model after its last local training.
    """

    federation: Federation
    method: Method
    settings: dict[str, Any]
    history: pd.DataFrame
    final: dict[str, float]
    per_client: pd.DataFrame
    server: Params
    kept: list[Params]
    params: list[Params]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def _apply(self, hook: Literal["embed", "predict"], split: str, noisy: bool = False) -> dict[str, np.ndarray]:
        checks.choice("split", split, ("train", "test"))
        out = {}
        for client, spec, params in zip(self.federation, self.federation.specs(), self.params, strict=True):
            method, received = self.method.of(spec), self.method.download(self.server, spec)
            x = map_blocks(lambda t: t.to(self.device), getattr(client, f"x_{split}"))
            noise: list[Params] = []
            if noisy and method.prediction_noise(spec):
                seed, done = self.settings["seed"], self.settings["rounds"]
                n, dtype = len(getattr(client, f"y_{split}")), blocks(x)[0].dtype
                drawn = prediction_noise(method, spec, n, seed, done, split, dtype)
                noise = [{name: numbers.to(self.device) for name, numbers in drawn.items()}]
            with torch.no_grad():
                out[client.name] = getattr(method, hook)(params, received, x, *noise).cpu().numpy()
        return out

    def embed(self, split: Literal["train", "test"] = "train") -> dict[str, np.ndarray]:
        """Latent features φ_i(x) of each client's samples, by client name; shapes (n_i, k)."""
        return self._apply("embed", split)

    def predict(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Outputs for each client's samples, by client name: logits, (n_i, C), or predicted numbers, (n_i, 1).

        A method that predicts at random gives what `final` was measured on.
        """
        return self._apply("predict", split, noisy=True)

    def probabilities(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Class probabilities, the softmax of `predict`, by client name; shapes (n_i, C), for calibration.

        Raises
        ------
        ValueError
            For a regression.
        """
        if self.federation.task != "classification":
            raise ValueError(f"probabilities are those of classes, but {self.federation.name!r} is a regression")
        logits = {name: torch.as_tensor(outputs) for name, outputs in self.predict(split).items()}
        return {name: outputs.double().softmax(-1).numpy() for name, outputs in logits.items()}

    def labels(self, split: Literal["train", "test"] = "train") -> dict[str, np.ndarray]:
        """Labels of each client's samples, or targets of a regression, by client name; shapes (n_i,), as `embed`."""
        return {client.name: getattr(client, f"y_{split}").numpy().copy() for client in self.federation}

    def __repr__(self) -> str:
        metrics = METRICS[self.federation.task]
        result = metrics.text(self.final[metrics.main]) if metrics.main in self.final else "no test data"
        return f"Run({self.method.name} on {self.federation.name!r}, {self.settings['rounds']} rounds: {result})"


def measured(name: Measure, main: str) -> str:
    """Column of such a figure."""
    return f"{name}_test_{main}"


def columns(main: str) -> list[str]:
    """Columns that every history has, where `main` is the figure that it follows; no loss term may be called so."""
    return ["round", f"train_{main}", f"test_{main}", "bytes_up", "bytes_down", "seconds"]


def _mean_terms(outcomes: Sequence[Outcome], reserved: Sequence[str]) -> dict[str, float]:
    names = dict.fromkeys(name for o in outcomes for name in o.terms)
    if taken := sorted(names.keys() & set(reserved)):
        raise ValueError(f"a loss term is called {taken[0]!r}, which is a column of every history; rename it")
    return {name: float(np.mean([o.terms[name] for o in outcomes if name in o.terms])) for name in names}


def _check_options(
    seed: int, threads: int, progress: bool, on_round: object = None, checkpoint: object = None, **numbers: int
) -> None:
    """What `simulate` and `adapt` are told of how to run; `numbers` are whole ones of at least 1."""
    checks.wholes(1, **numbers)
    checks.seed(seed)
    check_threads(threads)
    checks.flag("progress", progress)
    if on_round is not None and not callable(on_round):
        raise TypeError(f"on_round must be callable, got {checks.shown(on_round)}")
    if checkpoint is not None:
        checks.instance("checkpoint", checkpoint, str, PathLike)


def _check_measure(measure: Sequence[Measure]) -> list[Measure]:
    """What is to be measured beside the usual, each once and in one order."""
    for name in (asked := checks.several("measure", measure)):
        checks.choice("measure", name, get_args(Measure))
    return [name for name in get_args(Measure) if name in asked]


def _check_schedule(evaluate_every: int | Sequence[int]) -> int | list[int]:
    """Rounds between evaluations, or the rounds that are evaluated, sorted."""
    if isinstance(evaluate_every, list | tuple | range):
        return sorted({checks.whole("evaluate_every", n, 1) for n in evaluate_every})
    return checks.whole("evaluate_every", evaluate_every, 1)


def check_threads(number: int) -> None:
    """Refuse a number of threads that cannot be meant: PyTorch takes any, and a million end the process."""
    checks.whole("threads", number, 1)
    if number > checks.MOST_THREADS:
        raise ValueError(f"threads must be at most {checks.MOST_THREADS}, got {number}")


def _check_arguments(federation: Federation, method: Method, participation: float, dtype: torch.dtype) -> None:
    checks.instance("federation", federation, Federation)
    checks.instance("method", method, Method, such_as="FLIC()")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type such as torch.float64, got {dtype!r}")
    check_participation(participation, len(federation))


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
    measure: Sequence[Measure] = (),
    validation: Federation | None = None,
    stack_size: int | None = None,
    workers: int | None = None,
    threads: int = 1,
    on_round: Callable[[dict[str, Any]], None] | None = None,
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
    measure : sequence of {"own", "server", "held", "own_held"}
        What else each evaluation looks at, as columns of the history: ``own_test_accuracy``, the mean over the
        participants of their models as they leave local training, before the server averages anything (one forward
        pass of the participants' test samples); ``server_test_accuracy``, that of the server's own model on the
        federation's own test data, or else on the clients' (one forward pass of all), where the method has one;
        ``held_test_accuracy`` and ``own_held_test_accuracy``, as ``test_accuracy`` and ``own_test_accuracy``, on
        test samples of the classes that a client has training samples of.
    validation : Federation, optional
        The same clients with other test samples, their validation samples: each evaluation also measures those, as
        ``validation_accuracy`` in the history and in `Run.final` (``validation_mse`` for a regression). Training does
        not see them; they are for choosing a round, or a setting, without looking at the test samples.
    stack_size : int, optional
        Largest number of clients in one stack; bounds memory. By default 1024, or as many as ``engine="auto"`` finds
        worth it. Results depend on it to rounding only, which training lets grow: see the notes.
    workers : int, optional
        Stacks, or clients of the loop, that are trained side by side on a CPU, each on a core; by default as many as
        there are cores, or one where steps are so small that it is faster. The result does not depend on it, not by a
        bit.
    threads : int
        Threads within one operation on the CPU. The tensors are small: on a machine that is busy with anything else,
        threads that wait for each other cost far more than they bring. More may pay with thousands of clients on an
        idle machine. PyTorch's own setting is put back at the end. At most 64, or as many as the machine has cores.
    on_round : callable, optional
        Called with the newest row of the history after each round, when its checkpoint is written. It may raise to
        stop the run.

    Returns
    -------
    Run

    Raises
    ------
    ValueError
        For T < 1, a participation that selects no client, a federation that the method cannot run on, or a
        `validation` whose clients are not those of the federation.
    hetfl_core.engine.checkpoint.CheckpointError
        If the checkpoint is damaged, belongs to another setting, or cannot be written.

    Notes
    -----
    *Evaluation.* After each round every client is evaluated with what it keeps and a fresh download, whether it took
    part or not. `Run.final` is measured after a last local training of all clients (role ``"final"``), from a fresh
    download, as FLIC reports accuracy.

    *Rounding.* The same arguments give the same bits on the same kind of machine. Another `stack_size`, engine, number
    of threads or device only takes sums in another order; but training amplifies rounding. In float32 and over a few
    rounds parameters were seen to differ by 2e-5, by some 1e-3 where pre-training is long and in FLIC's published
    variant by 2e-3; in float64 by 1e-11, and by 1e-5 under FLIC's anchor term where classes are nearly flat, as those
    of clients with few features are. Over many rounds a few predictions may differ.

    *Memory.* What a loss asks to remember lives for one round of one client. A sample that was not seen in it holds
    zeros; a sample that was seen more than once holds its last value.

    *Bytes.* Messages are counted at their true shapes, a broadcast once per receiver. The downloads of the start stage
    count in round 0, those of clients that train while at rest in that round, those of the final training in
    ``final``. Evaluation's downloads do not count. A survey (see `Method.surveyed`) counts its answers as sent up and
    its questions as sent down; what the question and the download of the same round have in common counts once.
    """
    (run,) = _simulate(
        [(seed, federation)],
        method,
        rounds=rounds,
        participation=participation,
        engine=engine,
        device=device,
        dtype=dtype,
        checkpoint=checkpoint,
        progress=progress,
        evaluate_every=evaluate_every,
        measure=measure,
        validation=validation,
        stack_size=stack_size,
        workers=workers,
        threads=threads,
        on_round=on_round if not callable(on_round) else lambda seed, row: on_round(row),
    )
    return run


def simulate_seeds(
    federation: Federation | Callable[[int], Federation],
    method: Method,
    *,
    seeds: int | Sequence[int] = 5,
    rounds: int = 50,
    participation: float = 1.0,
    engine: Engine = "auto",
    device: str | torch.device = "auto",
    dtype: torch.dtype = torch.float32,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    evaluate_every: int | Sequence[int] = 1,
    measure: Sequence[Measure] = (),
    stack_size: int | None = None,
    workers: int | None = None,
    threads: int = 1,
    on_round: Callable[[int, dict[str, Any]], None] | None = None,
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
    checkpoint : path, optional
        As for `simulate`, but one folder for all of these seeds: it does not go on with other ones, nor with runs that
        `simulate` left.
    on_round : callable, optional
        Called with the seed and the newest row of its history when all runs have ended a round and their common
        checkpoint is written. It may raise to stop them all.
    rounds, participation, engine, device, dtype, progress, evaluate_every, measure, stack_size, workers, threads
        As for `simulate`.

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
    numbers = sorted({checks.seed(seed, "seeds") for seed in _several_seeds(seeds)})
    data = [(seed, federation(seed) if callable(federation) else federation) for seed in numbers]
    runs = _simulate(
        data,
        method,
        rounds=rounds,
        participation=participation,
        engine=engine,
        device=device,
        dtype=dtype,
        checkpoint=checkpoint,
        progress=progress,
        evaluate_every=evaluate_every,
        measure=measure,
        stack_size=stack_size,
        workers=workers,
        threads=threads,
        on_round=on_round,
    )
    return dict(zip(numbers, runs, strict=True))


def _several_seeds(seeds: int | Sequence[int]) -> list[int]:
    """The seeds one by one, of their number or of themselves."""
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        return list(range(checks.whole("seeds", seeds, 1)))
    if not len(found := checks.several("seeds", seeds)):
        raise ValueError("seeds must be at least one, got none")
    return found


def _simulate(
    data: Sequence[tuple[int, Federation]],
    method: Method,
    *,
    rounds: int,
    participation: float,
    dtype: torch.dtype,
    checkpoint: str | Path | None,
    progress: bool,
    evaluate_every: int | Sequence[int],
    measure: Sequence[Measure],
    workers: int | None,
    threads: int,
    on_round: Callable[[int, dict[str, Any]], None] | None,
    validation: Federation | None = None,
    **options: Any,
) -> list[Run]:
    """The run of each seed."""
    for seed, federation in data:
        _check_options(seed, threads, progress, on_round, checkpoint, rounds=rounds)
        _check_arguments(federation, method, participation, dtype)
    participation, schedule = float(participation), _check_schedule(evaluate_every)
    also = _check_measure(measure)
    options |= {"dtype": dtype, "workers": workers, "threads": threads}
    simulators = [Simulator(federation, method, seed=int(seed), **options) for seed, federation in data]
    if validation is not None:
        _check_validation(validation, data[0][1])
        simulators[0].validation = Simulator(validation, method, seed=simulators[0].seed, **options)
    settings: list[dict[str, Any]] = [
        {
            "method": method_settings(simulator),
            "participation": participation,
            "seed": simulator.seed,
            "engine": simulator.engine,
            "dtype": str(dtype),
            "evaluate_every": schedule,
            **({"measure": also} if also else {}),
            **({"validation": validation.name} if validation is not None else {}),
        }
        for simulator in simulators
    ]
    if len(simulators) > 1:
        _check_alike(simulators)
        share(simulators)
        for mine in settings:
            mine["together"] = [simulator.seed for simulator in simulators]
    journal = _Journal(simulators, method, settings, checkpoint, on_round)
    states = journal.read()
    for state in states:
        if state is not None and state.done > rounds:
            raise checkpoints.CheckpointError(
                f"{checkpoint} holds {state.done} complete rounds, more than rounds={rounds}"
            )
    last = {"rounds": rounds, "threads": int(threads)}
    done = states[0].done if states[0] is not None else 0  # rounds of before must not count as fast ones
    bar = tqdm(initial=done, total=rounds, disable=not progress, desc=method.name, unit="round")
    with cpu_threads(threads), bar:
        return together(
            [
                _run(simulator, number, state, journal, {**mine, **last}, bar if number == 0 else None)
                for number, (simulator, state, mine) in enumerate(zip(simulators, states, settings, strict=True))
            ]
        )


def _check_validation(validation: Federation, federation: Federation) -> None:
    """Refuse validation samples of other clients, or of clients with other training samples."""
    checks.instance("validation", validation, Federation)
    names, expected = [client.name for client in validation], [client.name for client in federation]
    if names != expected or validation.task != federation.task:
        raise ValueError(
            f"validation must have the clients of {federation.name!r}, {checks.shown(expected)}, in the same order and "
            f"for the same task, got {checks.shown(names)}"
        )
    for mine, other in zip(validation, federation, strict=True):
        samples = [[*blocks(client.x_train), client.y_train] for client in (mine, other)]
        alike = mine.features == other.features and len(samples[0]) == len(samples[1])
        if not alike or not all(map(torch.equal, *samples)):
            raise ValueError(f"validation must leave training samples as they are, but those of {mine.name!r} differ")


def _check_alike(simulators: Sequence[Simulator]) -> None:
    """Refuse runs that differ in more than their seeds and data."""
    for name in ("task", "n_classes"):
        found = {simulator.seed: getattr(simulator.federation, name) for simulator in simulators}
        if len(set(found.values())) > 1:
            raise ValueError(f"federation must have the same {name} for every seed, got {found}")


def _run(
    simulator: Simulator,
    number: int,
    state: checkpoints.State | None,
    journal: _Journal,
    settings: dict[str, Any],
    bar: Any,
) -> Steps[Run]:
    """One run, from its beginning or the state in which it was left."""
    if state is None:
        state = yield from _start(simulator)
        journal.write(number, state)
    names, rounds = [spec.name for spec in simulator.specs], settings["rounds"]
    while state.done < rounds:
        chosen = participants(names, settings["participation"], simulator.seed, state.done)
        state = yield from _advance(simulator, state, chosen, settings, rounds)
        journal.write(number, state)
        if bar is not None:
            bar.update()
            bar.set_postfix_str(_postfix(state.rows[-1].get(f"test_{simulator.metrics.main}"), simulator.metrics))
    if bar is not None:  # the bar is full, but with many clients this takes as long as several rounds
        bar.set_postfix_str("the last training of all clients")
    run = yield from _finish(simulator, state, settings)
    if bar is not None:
        bar.set_postfix_str(_postfix(run.final.get(simulator.metrics.main), simulator.metrics))
    return run


class _Journal:
    """The checkpoint of runs that go on side by side: one file, written when all of them have ended a round."""

    def __init__(
        self,
        simulators: Sequence[Simulator],
        method: Method,
        settings: Sequence[dict[str, Any]],
        folder: str | Path | None,
        on_round: Callable[[int, dict[str, Any]], None] | None,
    ) -> None:
        self.simulators, self.on_round = simulators, on_round
        self.states: list[checkpoints.State | None] = [None] * len(simulators)
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            data = [simulator.federation.fingerprint() for simulator in simulators]
            one = len(data) == 1
            seen = [s.validation.federation.fingerprint() for s in simulators if s.validation is not None]
            whole = {**settings[0], "data": data[0] if one else data, **({"validation": seen} if seen else {})}
            self.mark = checkpoints.Identity(whole, method)
        self.names = [[spec.name for spec in simulator.specs] for simulator in simulators]

    def read(self) -> Sequence[checkpoints.State | None]:
        """The state of each run that was left, or None."""
        if self.folder is None:
            return self.states
        device = self.simulators[0].device
        if len(self.names) == 1:
            return [checkpoints.read(self.folder, self.mark, self.names[0], device)]
        found = checkpoints.read(self.folder, self.mark, self._all(), device)
        return self.states if found is None else _split_state(found, [len(names) for names in self.names])

    def write(self, number: int, state: checkpoints.State) -> None:
        """Take the state of a run after a round; when it is the last to end it, write all and report their rows."""
        self.states[number] = state
        if {known.done if known is not None else -1 for known in self.states} != {state.done}:
            return
        states = [known for known in self.states if known is not None]
        if self.folder is not None:
            names, whole = (self.names[0], state) if len(states) == 1 else (self._all(), _join_states(states))
            checkpoints.write(self.folder, self.mark, whole, names)
        if state.done and self.on_round is not None:
            for simulator, known in zip(self.simulators, states, strict=True):
                self.on_round(simulator.seed, known.rows[-1])

    def _all(self) -> list[str]:
        """The clients of all runs, each by its seed and name."""
        return [f"{s.seed}/{name}" for s, names in zip(self.simulators, self.names, strict=True) for name in names]


def _join_states(states: Sequence[checkpoints.State]) -> checkpoints.State:
    """One state of several runs after the same round."""
    server = {f"{i}/{name}": p for i, state in enumerate(states) for name, p in state.server.items()}
    rows = [{"run": i, "row": row} for i, state in enumerate(states) for row in state.rows]
    return checkpoints.State(states[0].done, server, [kept for state in states for kept in state.kept], rows)


def _split_state(whole: checkpoints.State, clients: Sequence[int]) -> list[checkpoints.State]:
    """The states that `_join_states` joined, of runs with so many clients."""
    ends = list(itertools.accumulate(clients))
    states = []
    for i, (end, n) in enumerate(zip(ends, clients, strict=True)):
        server = {name.removeprefix(f"{i}/"): p for name, p in whole.server.items() if name.startswith(f"{i}/")}
        rows = [told["row"] for told in whole.rows if told["run"] == i]
        states.append(checkpoints.State(whole.done, server, whole.kept[end - n : end], rows))
    return states


def method_settings(simulator: Simulator) -> dict[str, Any]:
    """The method as a record holds it, the network named that ``phi="auto"`` stands for."""
    method = simulator.method
    named = replace(method, model=method.model.resolved(spec.shapes for spec in simulator.specs))
    return checkpoints.method_settings(named, simulator.specs)


@contextmanager
def cpu_threads(number: int) -> Iterator[None]:
    """Let PyTorch use so many threads within one operation on the CPU, for the length of a ``with`` block."""
    check_threads(number)
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _postfix(value: float | None, metrics: Metrics) -> str:
    return "" if value is None else f"test {metrics.text(value)}"


def _row(
    simulator: Simulator,
    state: checkpoints.State,
    outcomes: Sequence[Outcome],
    evaluate: bool,
    also: Callable[[Samples], Mapping[Measure, float | None]] | None = None,
) -> dict[str, Any]:
    """A row of the history: means of loss terms and figures; what `also` finds, given the test predictions, too."""
    main = simulator.metrics.main
    reserved = [*columns(main), f"validation_{main}", *(measured(name, main) for name in get_args(Measure))]
    found: dict[str, float | None] = {f"train_{main}": None, f"test_{main}": None}
    if simulator.validation is not None:
        found[f"validation_{main}"] = simulator.validation.score(state, "test") if evaluate else None
    if evaluate:
        for split in ("train", "test"):
            predicted = simulator.predicted(state, split)  # type: ignore[arg-type]
            found[f"{split}_{main}"] = simulator.figure(predicted, simulator.labels(split))
        found |= {measured(name, main): value for name, value in (also(predicted) if also else {}).items()}
    figures = {name: None if value is None or math.isnan(value) else value for name, value in found.items()}
    return {"round": state.done, **_mean_terms(outcomes, reserved), **figures}


def _since(begin: float, simulator: Simulator) -> float:
    """Seconds that have passed, or the share of a run that goes on beside others."""
    return (time.perf_counter() - begin) / simulator.sharing


def _start(simulator: Simulator, server: Params | None = None) -> Steps[checkpoints.State]:
    """Initial tensors, then the start stage (pre-training) of all clients: the state of round 0.

    The server is a fresh one unless given.
    """
    begin = time.perf_counter()
    state = simulator.initial()
    state = state if server is None else replace(state, server=server)
    outcomes = yield Training(simulator, state, range(len(simulator.specs)), 0, "start")
    state = keeping(state, outcomes)
    row = _row(simulator, state, list(outcomes.values()), True)
    row |= {"bytes_up": 0, "bytes_down": evaluation.n_bytes(o.received for o in outcomes.values())}
    state.rows = [{**row, "seconds": _since(begin, simulator)}]
    return state


def _advance(
    simulator: Simulator, state: checkpoints.State, chosen: Sequence[int], settings: dict[str, Any], rounds: int
) -> Steps[checkpoints.State]:
    """One round and its row of the history."""
    begin = time.perf_counter()
    exchange = yield from simulator.round_in_steps(state, chosen)
    new, messages = exchange.state, exchange.messages
    every = settings["evaluate_every"]
    due = new.done == rounds or (new.done in every if isinstance(every, list) else new.done % every == 0)
    also = partial(simulator.also, settings.get("measure", ()), state, new, exchange.participants)
    row = _row(simulator, new, list(exchange.participants.values()), due, also)
    row |= {
        "bytes_up": evaluation.n_bytes(o.upload for o in messages),
        "bytes_down": evaluation.n_bytes(o.received for o in messages),
    }
    new.rows = [*state.rows, {**row, "seconds": _since(begin, simulator)}]
    return new


def _finish(simulator: Simulator, state: checkpoints.State, settings: dict[str, Any]) -> Steps[Run]:
    """The last local training of all clients, and the figures after it."""
    begin = time.perf_counter()
    outcomes = yield Training(simulator, state, range(len(simulator.specs)), state.done, "final")
    last = keeping(state, outcomes)
    params = [outcomes[c].params if c in outcomes else p for c, p in enumerate(simulator.working(last))]
    run = _report(simulator, last, params, settings)
    run.final["bytes_down"] += evaluation.n_bytes(o.received for o in outcomes.values())
    run.final["seconds"] += _since(begin, simulator)
    return run


def _report(simulator: Simulator, state: checkpoints.State, params: list[Params], settings: dict[str, Any]) -> Run:
    """The figures of a state in which clients have these parameters; totals are those of its history."""
    predicted, diverged = simulator.predicted_and_diverged(state, "test", params)
    labels = simulator.labels("test")
    if diverged:
        _warn_of_divergence(simulator, diverged)
    server = simulator.server_score(state)
    main = simulator.metrics.main
    lead = columns(main)[1:]
    figures = [f"train_{main}", f"test_{main}", *(measured(name, main) for name in settings.get("measure", ()))]
    if simulator.validation is not None:
        figures.append(f"validation_{main}")
    history = pd.DataFrame(state.rows).astype(dict.fromkeys(figures, float))
    history = history[[c for c in history if c not in lead] + lead]
    final = simulator.summarise(predicted, "test")
    final[f"train_{main}"] = simulator.score(state, "train", params)
    if server is not None:
        final[f"server_{main}"] = server
    if simulator.validation is not None:
        final[f"validation_{main}"] = simulator.validation.score(state, "test", params)
    final |= simulator.on_held_classes(predicted)
    final["bytes_up"], final["bytes_down"] = int(history["bytes_up"].sum()), int(history["bytes_down"].sum())
    final["seconds"] = float(history["seconds"].sum())
    per_client = pd.DataFrame(
        {
            "client": [spec.name for spec in simulator.specs],
            "n_train": [spec.n_train for spec in simulator.specs],
            "n_test": [len(y) for y in labels],
            **{name: measure(predicted, labels) for name, measure in simulator.metrics.per_client.items()},
            **simulator.held_per_client(predicted),
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
        state.kept,
        params,
        simulator.device,
    )


def _warn_of_divergence(simulator: Simulator, lost: Sequence[str]) -> None:
    some = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
    which = f"{simulator.method.name}, seed {simulator.seed}" if simulator.sharing > 1 else simulator.method.name
    warnings.warn(
        f"{which}: the outputs of {len(lost)} of {len(simulator.specs)} clients ({some}) are NaN or "
        "infinite: training diverged, and what is counted as their result means nothing; a smaller learning rate may "
        "help",
        RuntimeWarning,
        stacklevel=1 + _own_calls(),
    )


def _own_calls() -> int:
    """Calls of this package on top of the one from outside, to which a warning should point."""
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("hetfl_core"):
        frame, depth = frame.f_back, depth + 1
    return depth


# --- new clients ----------------------------------------------------------------------------------------------------


def adapt(
    run: Run,
    clients: Client | Iterable[Client],
    *,
    rounds: int = 1,
    seed: int | None = None,
    engine: Engine = "auto",
    device: str | torch.device = "auto",
    progress: bool = True,
    stack_size: int | None = None,
    workers: int | None = None,
    threads: int = 1,
) -> Run:
    """Let clients that had no part in a run learn their local parts, with the shared ones as the run left them.

    FLIC's *inference on new clients* (S1.4 of the paper): a new client receives (α, anchors) once and learns only
    (φ, β). It starts as a participant did (role ``"start"``: pre-training, though to the anchors as they are now), and
    then goes through the last local training (role ``"final"``) `rounds` times. It sends nothing, and the server's
    tensors do not change by a bit; a server that holds something of each client may add what it holds of the new ones
    (`Method.join`).

    Parameters
    ----------
    run : Run
    clients : Client, or iterable of Client (a Federation is one)
        With names that the run's clients do not have.
    rounds : int
        Passes through the last local training. A participant had as many as the rounds that selected it (r·T on
        average), and one more at the end.
    seed : int, optional
        By default the run's.
    engine, device, progress, stack_size, workers, threads
        As for `simulate`.

    Returns
    -------
    Run
        Of the new clients alone. `Run.history` has a row a pass (0 is the state after pre-training); ``bytes_down``
        is one download per client.

    Raises
    ------
    ValueError
        For a name that the run knows, clients that the method or the run's classes do not fit, and methods whose last
        local training moves what a client does not keep: FedAvg-FT fine-tunes a copy of the shared model, so that no
        part of it stays as it is. (FedAvg itself has nothing to learn; its new clients use the server's model.)
    """
    checks.instance("run", run, Run)
    seed = run.settings["seed"] if seed is None else seed
    _check_options(seed, threads, progress, rounds=rounds)
    options = {"seed": seed, "engine": engine, "device": device, "stack_size": stack_size}
    simulator = _newcomers(run, clients, workers=workers, threads=threads, **options)
    everyone, done = range(len(simulator.specs)), run.settings["rounds"]
    with cpu_threads(threads), tqdm(total=rounds, disable=not progress, desc="new clients", unit="pass") as bar:
        server = simulator.server.join(run.server, simulator.specs, done)
        _check_stays_local(simulator, replace(simulator.initial(), server=server), done)
        (state,) = together([_start(simulator, server)])
        state.rows[0]["bytes_down"] = evaluation.n_bytes(simulator.downloads(state))
        for number in range(rounds):
            begin = time.perf_counter()
            outcomes = simulator.train(state, everyone, done + number, "final")
            state = replace(keeping(state, outcomes), done=number + 1)
            row = _row(simulator, state, list(outcomes.values()), True) | {"bytes_up": 0, "bytes_down": 0}
            state.rows = [*state.rows, {**row, "seconds": time.perf_counter() - begin}]
            bar.update()
            bar.set_postfix_str(_postfix(row.get(f"test_{simulator.metrics.main}"), simulator.metrics))
        settings = {"seed": seed, "engine": engine, "participation": 1.0, "evaluate_every": 1, "rounds": rounds}
        settings = {**run.settings, **settings, "joined_after": done}
        for name in ("together", "measure", "validation"):
            settings.pop(name, None)
        return _report(simulator, state, simulator.working(state), settings)


def _newcomers(run: Run, clients: Client | Iterable[Client], **options: Any) -> Simulator:
    """A simulator of the new clients alone, once they are seen to fit the run."""
    new = [clients] if isinstance(clients, Client) else checks.several("clients", clients)
    for client in new:
        checks.instance("clients", client, Client)
    known = {client.name for client in run.federation}
    if both := sorted(known & {client.name for client in new}):
        raise ValueError(f"clients must be new to the run, but {both[0]!r} took part in it")
    of = run.federation
    new = in_one_order(new, [client.features for client in of])
    federation = Federation(new, of.n_classes, f"{of.name}, new clients", of.info, of.task)
    simulator = Simulator(federation, run.method, dtype=blocks(of[0].x_train)[0].dtype, **options)
    run.method.check([*of.specs(), *simulator.specs])
    return simulator


def _check_stays_local(simulator: Simulator, state: checkpoints.State, round: int) -> None:
    """Refuse a method that would train more than what its clients keep, before the first round or after the last."""
    method = simulator.method
    stages = [*method.stages(0, "start"), *method.stages(round, "final")]
    for kept, params in zip(state.kept, simulator.working(state), strict=True):
        for name in params:
            if name not in kept and any(stage.trains(name) for stage in stages):
                raise ValueError(
                    f"a new client learns only local parts, but {method.name} trains {name!r}, which its clients do "
                    "not keep; expected a method whose last local training leaves shared parts alone, such as Local, "
                    "FedRep, HetFedRep or FLIC"
                )
