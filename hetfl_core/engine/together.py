"""How many runs of one method are best trained together, by `hetfl_core.simulate_seeds`.

A step of a small stack costs what PyTorch's dispatch costs, whatever its size; clients of several runs in one stack
share that. Five runs together took, on one core, this part of the time of the same five one after the other:

====================================== ========================= =====
inputs – hidden layer, batch, clients   operations a step, all    part
====================================== ========================= =====
15–16, 100, 4                           9 · 10⁵                   0.47
30–64, 10, 10                           1.5 · 10⁶                 0.50
30–64, 100, 4                           6 · 10⁶                   0.49
784–64, 10, 4                           1.2 · 10⁷                 0.66
100–64, 100, 4                          1.7 · 10⁷                 0.56
30–64, 100, 20                          2.9 · 10⁷                 0.83
784–64, 10, 10                          3.0 · 10⁷                 0.94
784–64, 100, 4                          1.2 · 10⁸                 0.76
====================================== ========================= =====

What is decided here rests on constants, the method and the data of one run alone: who shares a stack decides how sums
are rounded, so it may depend neither on the number of cores nor on a clock.
"""

from __future__ import annotations

from typing import Any

from hetfl_core.engine.sides import check_participation
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Federation, blocks
from hetfl_core.methods.base import Method

OPERATIONS = 2e7
"""Operations of a step of all clients of one run, up to which several runs are trained together."""

NUMBERS = 2**26
"""Numbers (256 MiB in float32) that runs together may hold: samples, weights with what trains them, and noise."""

MOST = 10
"""Most runs together: ten have nearly all of the gain, and what is left is shared among cores."""

SHAPING = ("engine", "device", "dtype", "stack_size")
"""Options of a run that say how its clients are laid out."""


def together(federation: Federation, method: Method, participation: float = 1.0, **options: Any) -> int:
    """How many runs of a method, on data like these, are best trained together; 1 where it is each alone.

    Parameters
    ----------
    federation : Federation
        The data of one of them.
    method : Method
    participation : float
        As for `hetfl_core.simulate`, like the `options`, of which those count that lay clients out.

    Returns
    -------
    int
        At most `MOST`; by the size of a step (`OPERATIONS`), by memory (`NUMBERS`), and so that all clients fit into
        one stack. Clients that are trained one by one gain nothing.
    """
    check_participation(participation, len(federation))
    numbers = 3 * sum(t.numel() for client in federation for x in (client.x_train, client.x_test) for t in blocks(x))
    if 2 * numbers > NUMBERS:
        return 1
    run = Simulator(federation, method, **{name: options[name] for name in SHAPING if name in options})
    most, server = MOST, run.server.initial()
    for cohort, way in zip(run.cohorts, run.layouts, strict=True):
        work, clients = run.work(cohort, server), len(cohort.members)
        if way.engine == "loop" or participation * clients * work.operations > OPERATIONS:
            return 1
        numbers += clients * (4 * work.numbers + work.noise)
        most = min(most, way.size // clients)
    return max(1, min(most, NUMBERS // numbers))
