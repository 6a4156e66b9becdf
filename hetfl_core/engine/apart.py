"""Runs in which nothing is exchanged, as a control to those in which something is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetfl_core import checks, keywords
from hetfl_core.engine.options import RunOptions
from hetfl_core.engine.run import Run
from hetfl_core.engine.simulation import run_all
from hetfl_core.federation import Federation
from hetfl_core.methods.base import Method
from hetfl_core.views import method_and_view, view_of


@keywords.hinting(*RunOptions.names("validation", "checkpoint", "on_round"))
def simulate_apart(
    federation: Federation | Callable[[int], Federation],
    method: Method | tuple[Method, Any],
    *,
    seeds: int | Sequence[int] = 5,
    **options: Any,
) -> dict[int, dict[str, Run]]:
    """Runs in which nothing is exchanged: every client is a federation of its own, with the same method and seed.

    What a method gains over training alone and keeps here does not come from sharing, but from its local recipe: its
    start, its pre-training, its terms towards what is then the client's own. Clients share stacks as in one run.

    Parameters
    ----------
    federation, seeds
        As for `simulate_seeds`.
    method : Method, or (Method, view)
        A view says how the method is to see the data, as in `hetfl_core.compare`.
    **options
        As for `simulate_seeds`, but ``checkpoint`` and ``on_round``. Everybody takes part in every round.

    Returns
    -------
    dict of int to dict of str to Run
        By seed and client. The bytes of such a run are those that its federation of one would have sent.

    Raises
    ------
    ValueError
        As for `simulate_seeds`.
    """
    numbers = sorted(checks.seeds(seeds))
    plain, view = method_and_view("method", method)
    seen = {seed: federation(seed) if callable(federation) else federation for seed in numbers}
    made = {seed: view_of(fed, view) for seed, fed in seen.items()}
    data = [(seed, fed.subset([client.name]), None) for seed, fed in made.items() for client in fed]
    runs = iter(run_all(data, plain, RunOptions(**options)))
    return {seed: {client.name: next(runs) for client in fed} for seed, fed in made.items()}
