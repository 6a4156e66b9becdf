"""Clients' neurons as points in the plane, and the rows of the server that they are matched with (HyFEM)."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from hetfl_core import checks
from hetfl_core.matching import Neurons, Order, Rule, match
from hetfl_core.plots import COLOURS, MARKERS


def shuffled(clients: int = 3, neurons: int = 6, seed: int = 0) -> list[Neurons]:
    """The same neurons of two weights with a little noise, at each client in an order of its own.

    Parameters
    ----------
    clients, neurons : int
    seed : int

    Returns
    -------
    list of Neurons
        Float64; each client has all weights.
    """
    checks.integer("clients", clients, 1)
    checks.integer("neurons", neurons, 1)
    rng = torch.Generator().manual_seed(checks.seed(seed))
    base = torch.randn(neurons, 2, generator=rng, dtype=torch.float64)
    found = []
    for _ in range(clients):
        mine = base[torch.randperm(neurons, generator=rng)]
        noise = torch.randn(neurons, 2, generator=rng, dtype=torch.float64)
        found.append(Neurons(mine + 0.12 * noise, torch.ones(2, dtype=torch.float64)))
    return found


def matched(passes: int, order: Order, title: str) -> Figure:
    """The neurons of `shuffled`, each joined with its row of the server, after some passes of matching.

    Parameters
    ----------
    passes : int
    order : {"parallel", "sequential", "random"}
        As for `hetfl_core.matching.Rule`.
    title : str

    Returns
    -------
    Figure
    """
    found = match(shuffled(), passes=passes, rule=Rule("distance", order))
    server = found.rows()
    fig, ax = plt.subplots(figsize=(3.4, 3.7))
    for m, (one, places) in enumerate(zip(found.neurons, found.indices, strict=True)):
        for own, row in zip(one.rows, server[places], strict=True):
            ax.plot([own[0], row[0]], [own[1], row[1]], color=COLOURS[m], lw=1)
        ax.plot(*one.rows.T, MARKERS[m], ms=8, color=COLOURS[m])
    ax.plot(*server.T, "kx", ms=9, mew=2)
    ax.set(xticks=[], yticks=[], xlim=(-2.4, 2.2), ylim=(-2, 1.8))
    ax.set_title(title, fontsize=13)
    return fig
