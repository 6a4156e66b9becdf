"""What a new client learns after a run, and what it must not move."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from tqdm.auto import tqdm

from hetfl_core import checks, keywords
from hetfl_core.engine import evaluation
from hetfl_core.engine.checkpoint import State
from hetfl_core.engine.layout import Engine
from hetfl_core.engine.options import RunOptions, cpu_threads, warn_of_threads
from hetfl_core.engine.pool import Pool
from hetfl_core.engine.run import Run
from hetfl_core.engine.simulation import _postfix, _report, _row, _start
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.trained import Trained
from hetfl_core.engine.trainer import keeping
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation, in_one_order
from hetfl_core.methods.base import Method


@keywords.hinting()
def adapt(
    run: Run | Trained,
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
    run : Run or Trained
        As `simulate` left it, or its models as `hetfl_core.load_trained` gives them; not changed.
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
        For a name that the run knows, for labels that it does not know (`Federation.from_frame` keeps what they are
        called), and for clients that the method or the run's classes do not fit. Also for methods
        whose last local training moves what a client does not keep. FedAvg-FT fine-tunes a copy of the shared model, so
        that no part of it stays as it is. (FedAvg itself has nothing to learn; its new clients use the server's model.)
    """
    checks.instance("run", run, Run, Trained)
    known = run if isinstance(run, Trained) else run.trained()
    seed = run.settings["seed"] if seed is None else seed
    checks.seed(seed)
    options: dict[str, Any] = {"engine": engine, "device": device, "stack_size": stack_size, "workers": workers}
    RunOptions(rounds=rounds, progress=progress, threads=threads, **options)
    simulator = _newcomers(known, clients, seed=seed, threads=threads, **options)
    if threads > 1:
        warn_of_threads(threads, simulator.operations(), simulator.device)
    everyone, done = range(len(simulator.specs)), run.settings["rounds"]
    bar = tqdm(total=rounds, disable=not progress, desc="new clients", unit="pass")
    with cpu_threads(threads), Pool([simulator], workers, threads), bar:
        sent = {name: p.to(simulator.device) for name, p in known.server_tensors.items()}
        server = simulator.server.join(sent, simulator.specs, done)
        begun = replace(simulator.initial(), server=server)
        _check_stays_local(simulator, begun, done)
        [state] = _start([simulator], [begun])
        state.rows[0]["bytes_down"] = evaluation.n_bytes(simulator.downloads(state))
        for number in range(rounds):
            begin = time.perf_counter()
            outcomes = simulator.train(state, everyone, done + number, "final")
            state = replace(keeping(state, outcomes), done=number + 1)
            row = _row(simulator, state, outcomes, True) | {"bytes_up": 0, "bytes_down": 0}
            state.rows = [*state.rows, {**row, "seconds": time.perf_counter() - begin}]
            bar.update()
            bar.set_postfix_str(_postfix(row.get(simulator.metrics.main), simulator.metrics))
        settings = {"seed": seed, "engine": engine, "participation": 1.0, "evaluate_every": 1, "rounds": rounds}
        settings = {**run.settings, **settings, "joined_after": done}
        for name in ("together", "measure", "functions", "validation"):
            settings.pop(name, None)
        return _report(simulator, state, simulator.working(state), settings)


def _newcomers(run: Trained, clients: Client | Iterable[Client], **options: Any) -> Simulator:
    """A simulator of the new clients alone, once they are seen to fit the run."""
    if not isinstance(run.method, Method):
        raise WrongValue(
            f"{run.method.name} trains no network of which new clients could learn a part: fit it to their own rows, "
            "by hetfl_core.simulate(federation, …)"
        )
    new = [clients] if isinstance(clients, Client) else checks.sequence("clients", clients)
    for client in new:
        checks.instance("clients", client, Client)
    if isinstance(clients, Federation):
        new = _in_known_classes(clients, run.info.get("classes"))
    if both := sorted({*run.clients} & {client.name for client in new}):
        raise WrongValue(f"clients must be new to the run, but {both[0]!r} took part in it")
    new = in_one_order(new, [spec.features for spec in run.specs])
    first = run.specs[0]
    federation = Federation(new, first.n_classes, f"{run.name}, new clients", run.info, first.task)
    simulator = Simulator(federation, run.method.joining(), dtype=run.dtype, **options)
    run.method.check([*run.specs, *simulator.specs])
    return simulator


def _in_known_classes(new: Federation, classes: list[Any] | None) -> list[Client]:
    """New clients whose labels stand for the run's classes, where both federations know what theirs are called.

    `Federation.from_frame` numbers the labels that it finds: where it finds others, a number stands for another one.
    """
    own = new.info.get("classes")
    if own == classes or own is None or classes is None:
        return list(new)
    if unknown := [label for label in own if label not in classes]:
        raise WrongValue(f"clients have the labels {checks.shown(unknown)}, but the run knows {checks.shown(classes)}")
    index = torch.tensor([classes.index(label) for label in own], dtype=torch.int64)
    return [replace(c, y_train=index[c.y_train], y_test=index[c.y_test]) for c in new]


def _check_stays_local(simulator: Simulator, state: State, round: int) -> None:
    """Refuse a method that would train more than what its clients keep, before the first round or after the last."""
    method = simulator.method
    stages = [*method.stages(0, "start"), *method.stages(round, "final")]
    for client_state, params in zip(state.client_states, simulator.working(state), strict=True):
        for name in params:
            if name not in client_state and any(stage.trains(name) for stage in stages):
                raise WrongValue(
                    f"a new client learns only local parts, but {method.name} trains {name!r}, which its clients do "
                    "not keep; expected a method whose last local training leaves shared parts alone, such as Local, "
                    "FedRep, HetFedRep or FLIC"
                )
