"""Gaussians that are multiplied, as FedCR does: bells on a line, ellipses in the plane, and what its term costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from hetfl_core import checks
from hetfl_core.plots import COLOURS

AROUND = np.linspace(0, 2 * np.pi, 60)


def bells(clouds: Mapping[str, tuple[float, float]], xlabel: str) -> Axes:
    """Densities on a line, and that of their product, each with its name above it.

    Parameters
    ----------
    clouds : dict of str to (float, float)
        Means and deviations, by name.
    xlabel : str

    Returns
    -------
    Axes
    """
    means, deviations = checks.floats("clouds", [*checks.mapping("clouds", clouds).values()], 2).T
    precision = (deviations**-2.0).sum()
    together = {"product": ((means / deviations**2).sum() / precision, precision**-0.5)}
    ax = plt.subplots(figsize=(4.6, 3.0))[1]
    x = np.linspace(min(means - 3 * deviations), max(means + 3 * deviations), 300)
    for i, (name, (mean, deviation)) in enumerate({**clouds, **together}.items()):
        colour = COLOURS[1] if name in together else "grey"
        density = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / deviation / np.sqrt(2 * np.pi)
        ax.fill_between(x, density, color=colour, alpha=0.35 if name in together else 0.12, lw=0)
        ax.plot(x, density, color=colour, lw=2.5 if name in together else 1.5, ls=("--", "-.", ":", "-")[min(i, 3)])
        ax.annotate(name, (mean, density.max()), (0, 5), textcoords="offset points", ha="center", color=colour)
    ax.set(xlabel=xlabel, yticks=[], ylim=(0, 0.46 * precision**0.5))
    ax.spines["left"].set_visible(False)
    ax.grid(False)
    return ax


def cost(distances: Iterable[float], deviation: float) -> Axes:
    """What FedCR's term costs against the deviation of a cloud; a dot marks the least.

    Parameters
    ----------
    distances : iterable of float
        From the joint mean, a curve each.
    deviation : float
        Of the joint cloud.

    Returns
    -------
    Axes
    """
    v = checks.number("deviation", deviation, above=0) ** 2
    ax = plt.subplots(figsize=(4.6, 3.4))[1]
    for i, away in enumerate(distances):
        least = np.sqrt(v + away**2)
        width = least * np.geomspace(0.15, 20, 300)
        term = 0.5 * ((away**2 + v) / width**2 - np.log(v / width**2) - 1)
        look: Any = {"color": COLOURS[i % len(COLOURS)]}
        ax.plot(width, term, **look)
        ax.plot(least, 0.5 * np.log(least**2 / v), "o", ms=9, **look)
        at = width[np.abs(term - 20)[:150].argmin()], 20
        ax.annotate(f"{away:g}", at, (0, 3), textcoords="offset points", ha="center", **look)
    ax.annotate("away", at, (10, 3), textcoords="offset points", **look)
    ax.set(xscale="log", xlabel="width σ of a patient's cloud", ylabel="what the term costs", ylim=(0, 20))
    ax.set_xticks([0.1, 0.5, 1, 2, 10], ["0.1", "0.5", "1", "2", "10"])
    ax.minorticks_off()
    return ax


def plane(
    found: Sequence[tuple[Tensor, Tensor]],
    stars: Tensor,
    labels: Sequence[Tensor],
    names: Sequence[str],
    title: str,
    reach: float,
) -> Figure:
    """Clients' mean cloud of each class: an ellipse as wide as its deviations; a star is the joint mean of a class.

    Parameters
    ----------
    found : sequence of (Tensor, Tensor), shapes (n_i, 2)
        By client, means and deviations of its samples.
    stars : Tensor, shape (C, 2)
    labels : sequence of Tensor, shape (n_i,)
    names : sequence of str
        What stands in an ellipse, by client.
    title : str
    reach : float
        Of both axes, from zero.

    Returns
    -------
    Figure
    """
    fig, ax = plt.subplots(figsize=(3.5, 3.8))
    for (means, deviations), y, name in zip(found, labels, names, strict=True):
        for c in y.unique().tolist():
            (a, b), (wide, high) = means[y == c].mean(0).tolist(), deviations[y == c].mean(0).tolist()
            ellipse = a + wide * np.cos(AROUND), b + high * np.sin(AROUND)
            ax.fill(*ellipse, color=COLOURS[c], alpha=0.15, lw=0)
            ax.plot(*ellipse, color=COLOURS[c], lw=1.5)
            ax.text(a, b, name, color=COLOURS[c], ha="center", va="center", fontsize=12, weight="bold")
    for c, star in enumerate(stars.tolist()):
        ax.plot(*star, "*", ms=15, color=COLOURS[c], mec="black")
    ticks = np.arange(-int(reach), reach, 2)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=ticks, yticks=ticks, aspect="equal", title=title)
    ax.set(xlabel="feature 1", ylabel="feature 2")
    return fig
