"""Flower's own simulation (Ray): the same apps, each client's work in one of many processes, on one host or several."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hetfl_core import checks
from hetfl_core.deployment import wire
from hetfl_core.deployment.apps import Methods, client_app, serve
from hetfl_core.deployment.coordinator import DeploymentError, Result
from hetfl_core.engine.simulation import simulate
from hetfl_core.federation import Client, Federation
from hetfl_core.methods.base import Method


def by_partition(federation: Federation) -> Callable[[dict[str, Any]], Client]:
    """A loader for `client_app` that hands out a federation's clients by Flower's ``partition-id``."""
    checks.instance("federation", federation, Federation)
    clients = list(federation)
    return lambda config: clients[int(config["partition-id"])]


def simulate_on_ray(
    federation: Federation, methods: Methods, config: Mapping[str, Any] | None = None, *, cpus: float = 1.0
) -> dict[str, Result]:
    """Run methods on a federation by Flower's simulation, which starts a pool of Ray's processes.

    `hetfl_core.simulate` gives the same numbers far sooner on one machine. This is for a cluster of Ray that is there
    already, with many CPU hosts and clients whose work takes long.

    Parameters
    ----------
    federation : Federation
    methods : Method, or dict of str to Method
    config : dict, optional
        As a run config of `server_app`; classes, clients and task are the federation's.
    cpus : float
        Cores that one client's work takes.

    Returns
    -------
    dict of str to Result

    Raises
    ------
    ImportError
        Where Ray is not installed.
    DeploymentError
        Where the run did not come to its end; its log says why.
    """
    wire.flower()
    checks.number("cpus", cpus, above=0)
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ImportError("Ray is not installed: pip install 'hetfl-core[ray]'") from error
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    own = {"classes": federation.n_classes, "clients": len(federation), "task": federation.task}
    results: dict[str, Result] = {}
    server = ServerApp()

    @server.main()
    def main(grid: Any, context: Any) -> None:
        results.update(serve(grid, {**(config or {}), **own}, methods))

    backend: Any = {"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}, "init_args": {"include_dashboard": False}}
    run_simulation(server, client_app(methods, by_partition(federation)), len(federation), backend_config=backend)
    if not results:
        raise DeploymentError("Flower's simulation ended before the run did; its log says why")
    return results


def three_ways(federation: Federation, method: Method, rounds: int = 2) -> dict[str, float]:
    """Seconds of the same rounds by the stacked engine, by the loop, and by Flower's simulation without its start.

    Returns
    -------
    dict of str to float
        ``stacked``, ``loop``, and ``flower``, which is missing where Ray is not installed: the seconds of the rounds
        themselves, as each history has them.
    """
    found = {}
    common: dict[str, Any] = {"rounds": rounds, "device": "cpu", "progress": False, "evaluate_every": rounds}
    for engine in ("stacked", "loop"):
        simulate(federation, method, engine=engine, **{**common, "rounds": 1})  # what is imported late is imported
        run = simulate(federation, method, engine=engine, **common)
        found[engine] = float(run.history["seconds"].iloc[1:].sum())
    try:
        (result,) = simulate_on_ray(federation, method, {"rounds": rounds, "evaluate-every": rounds}).values()
    except ImportError:
        return found
    return {**found, "flower": float(result.history["seconds"].iloc[1:].sum())}


def describe(federation: Federation, method: Method, rounds: int = 2) -> Iterator[str]:
    """Lines for `hetfl bench`."""
    begin = time.perf_counter()
    seconds = three_ways(federation, method, rounds)
    n = torch.get_num_threads()
    yield f"{rounds} rounds of {method.name}, {len(federation)} clients that all take part, {n} thread(s)"
    for name, label in (("stacked", "our engine"), ("loop", "our loop"), ("flower", "Flower's simulation on Ray")):
        if name in seconds:
            yield f"  {label:<28}{seconds[name]:>9.3f} s{seconds[name] / seconds['stacked']:>9.1f} ×"
    if "flower" not in seconds:
        yield "  Flower's simulation needs Ray: pip install 'hetfl-core[ray]'"
    yield f"  (with Ray's start and the evaluation {time.perf_counter() - begin:.0f} s in all)"
