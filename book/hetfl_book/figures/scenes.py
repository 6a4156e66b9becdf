"""Figures that one chapter each draws several times: regions of a plane, convergence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.plots import COLOURS, MARKERS, _arrays, _axes


def regions(
    points: ArrayLike,
    labels: ArrayLike,
    classify: Callable[[np.ndarray], np.ndarray],
    limits: tuple[float, float, float, float],
    ax: Axes | None = None,
    title: str = "",
    steps: int = 120,
) -> Axes:
    """Samples in the plane, on the regions in which a classifier names each class.

    Parameters
    ----------
    points : array_like, shape (n, 2)
        Samples; n may be 0.
    labels : array_like of int, shape (n,)
        Their classes: colour and marker.
    classify : callable
        ``classify(points)``, of points of shape (m, 2), gives the class of each, shape (m,).
    limits : tuple of four floats
        Left, right, bottom and top of what is drawn.
    ax, title
    steps : int
        Points of the grid in each direction.

    Raises
    ------
    ValueError
        If shapes do not fit, limits enclose nothing, or `classify` gives something else than a class for each point.
    """
    xy = checks.floats("points", points, 2, least=0)
    y = checks.array("labels", labels)
    if xy.shape[1] != 2 or y.shape != (len(xy),) or not (np.issubdtype(y.dtype, np.integer) or not len(y)):
        raise WrongValue(f"points and labels must have shapes (n, 2) and (n,), got {xy.shape} and {y.shape}")
    left, right, bottom, top = bounds if len(bounds := checks.floats("limits", limits, 1).tolist()) == 4 else [0] * 4
    if not (left < right and bottom < top):
        raise WrongValue(f"limits must be (left, right, bottom, top), increasing in pairs, got {checks.shown(limits)}")
    checks.integer("steps", steps, 2, 2000)
    if not callable(classify):
        raise WrongValue(f"classify must be a function of points, got {checks.shown(classify)}")
    across, along = np.meshgrid(np.linspace(left, right, steps), np.linspace(bottom, top, steps))
    found = np.asarray(classify(np.stack([across.ravel(), along.ravel()], axis=1)))
    if found.shape != (steps**2,) or not np.issubdtype(found.dtype, np.integer) or found.min() < 0:
        raise WrongValue(f"classify must give a class for each of {steps**2} points, got {checks.shown(found)}")
    ax = _axes(ax)
    seen = found.reshape(steps, steps)
    for c in np.unique(found):
        colour = COLOURS[c % len(COLOURS)]
        ax.contourf(across, along, seen == c, levels=[0.5, 1.5], colors=[colour], alpha=0.22)
        if len(np.unique(found)) > 1:
            ax.contour(across, along, seen == c, levels=[0.5], colors="black", linewidths=0.6)
    for c in np.unique(y):
        look: Any = {"color": COLOURS[c % len(COLOURS)], "marker": MARKERS[c % len(MARKERS)], "edgecolor": "black"}
        ax.scatter(xy[y == c, 0], xy[y == c, 1], s=26, linewidth=0.4, **look)
    ax.set(xlim=(left, right), ylim=(bottom, top), title=title)
    ax.grid(False)
    return ax


def convergence(
    curves: Mapping[str, Any],
    bounds: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
    title: str = "",
    ylabel: str = "dist (sine of the largest principal angle)",
    floor: float = 1e-16,
) -> Axes:
    """Numbers that should fall along a straight line on a log axis, one per round, and what a theorem promises of them.

    Parameters
    ----------
    curves : dict of str to array, shape (rounds + 1,)
        Drawn with markers; markers of successive curves are shifted, so that equal curves are both seen.
    bounds : dict of str to array, optional
        Drawn dashed and dotted, without markers.
    floor : float
        The axis ends here at the latest; smaller values, which are rounding, are cut off.
    """
    curves, bounds = _arrays("curves", curves, 1), _arrays("bounds", {} if bounds is None else bounds, 1)
    floor = checks.number("floor", floor, above=0)
    ax = _axes(ax)
    for i, (name, values) in enumerate(curves.items()):
        step = max(len(values) // 9, 1)
        marks = (i * step // max(len(curves), 1), step)
        ax.plot(values, color=COLOURS[i], marker=MARKERS[i], markevery=marks, label=name)
    for style_, (name, values) in zip(("--", ":", "-."), bounds.items()):
        ax.plot(values, style_, color="black", label=name)
    ax.set(yscale="log", xlabel="communication round", ylabel=ylabel, title=title)
    ax.set_ylim(bottom=max(ax.get_ylim()[0], floor))
    ax.legend(fontsize=10)
    return ax
