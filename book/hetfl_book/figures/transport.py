"""Figures of optimal transport: clouds on their way, couplings as lines and as a table, sorting, ellipses.

Like `hetfl_core.plots` in style. They draw a coupling that they are given, and find none.

References
----------
.. [1] R. J. McCann. A convexity principle for interacting gases. Advances in Mathematics, 128, 1997.
.. [2] G. Peyré, M. Cuturi. Computational optimal transport. Foundations and Trends in Machine Learning, 11, 2019.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.plots import COLOURS, FARTHEST, MARKERS, _axes

Array = NDArray[np.float64]

AREA = 34.0
"""Of a point of mean weight, in square points."""


def near(name: str, value: ArrayLike, axes: int) -> Array:
    """Numbers that can be squared."""
    found = checks.floats(name, value, axes)
    if np.abs(found).max() > FARTHEST:
        raise WrongValue(f"{name} must lie within ±{FARTHEST:g}, got {np.abs(found).max():g}")
    return found


def _cloud(name: str, value: ArrayLike) -> Array:
    points = near(name, value, 2)
    if points.shape[1] != 2:
        raise WrongValue(f"{name} must be points in the plane, shape (n, 2), got shape {points.shape}")
    return points


def _plan(plan: ArrayLike, n: int | None = None, m: int | None = None) -> Array:
    """A coupling of n and m points, scaled to sum 1."""
    found = near("plan", plan, 2)
    if (found < 0).any() or not found.sum() > 1e-100:
        raise WrongValue("plan must be weights, not negative and not all 0")
    if n is not None and found.shape != (n, m):
        raise WrongValue(f"plan must have a row a point of x and a column a point of y, {(n, m)}, got {found.shape}")
    return found / found.sum()


def ellipse(mean: ArrayLike, covariance: ArrayLike, radius: float = 2.0, steps: int = 181) -> Array:
    """The curve on which a Gaussian in the plane is so many standard deviations from its mean.

    Parameters
    ----------
    mean : array, shape (2,)
    covariance : array, shape (2, 2)
        Symmetric positive semi-definite.
    radius : float
        In standard deviations; within 2 of them lie 86 % of the samples.
    steps : int
        Points on the curve, of which the first is the last.

    Returns
    -------
    array, shape (steps, 2)
    """
    m, S = near("mean", mean, 1), near("covariance", covariance, 2)
    if m.shape != (2,) or S.shape != (2, 2):
        raise WrongValue(f"mean and covariance must have shapes (2,) and (2, 2), got {m.shape} and {S.shape}")
    radius = checks.number("radius", radius, 0, FARTHEST)
    checks.integer("steps", steps, 3, 100_000)
    slack = 1e-8 * np.abs(S).max()
    if abs(S[0, 1] - S[1, 0]) > slack:
        raise WrongValue("covariance must be symmetric")
    variances, axes = np.linalg.eigh((S + S.T) / 2)
    if variances[0] < -slack:
        raise WrongValue("covariance must be positive semi-definite, it has a negative eigenvalue")
    angle = np.linspace(0, 2 * np.pi, steps)
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    return m + radius * circle * np.sqrt(variances.clip(0)) @ axes.T


def carried(
    x: ArrayLike, y: ArrayLike, plan: ArrayLike, t: float, ax: Axes | None = None, title: str = "carried"
) -> Axes:
    """Two clouds, and one between them: what a coupling carries, a share t of its way ([1]_; [2]_, Section 7.1).

    Parameters
    ----------
    x, y : array, shape (n, 2) and (m, 2)
        Where everything comes from, and where it goes.
    plan : array, shape (n, m)
        How much goes from which to which; the area of a dot is what it carries.
    t : float
        In [0, 1].
    """
    x, y = _cloud("x", x), _cloud("y", y)
    plan = _plan(plan, len(x), len(y))
    t = checks.fraction("t", t, "[0, 1]")
    ax = _ghosts(x, y, ax)
    i, j = np.nonzero(plan)
    way = (1 - t) * x[i] + t * y[j]
    ax.scatter(way[:, 0], way[:, 1], s=AREA * len(x) * plan[i, j], color=COLOURS[2], marker="o", lw=0, zorder=3)
    ax.set_title(title)
    return ax


def blended(x: ArrayLike, y: ArrayLike, t: float, ax: Axes | None = None, title: str = "blended") -> Axes:
    """Two clouds, and their mixture: as t rises, the first fades out and the second in.

    Parameters
    ----------
    x, y : array, shape (n, 2) and (m, 2)
    t : float
        In [0, 1].
    """
    x, y = _cloud("x", x), _cloud("y", y)
    t = checks.fraction("t", t, "[0, 1]")
    ax = _ghosts(x, y, ax)
    for points, share in ((x, 1 - t), (y, t)):
        ax.scatter(points[:, 0], points[:, 1], s=AREA, color=COLOURS[2], alpha=share, marker="o", lw=0, zorder=3)
    ax.set_title(title)
    return ax


def _ghosts(x: Array, y: Array, ax: Axes | None) -> Axes:
    """Where two clouds are, faintly."""
    ax = _axes(ax)
    for i, points in enumerate((x, y)):
        look: dict[str, Any] = {"edgecolors": COLOURS[i], "marker": MARKERS[i], "alpha": 0.6}
        ax.scatter(points[:, 0], points[:, 1], s=AREA / 2, facecolors="none", lw=0.8, **look)
    ax.set_aspect("equal")
    return ax


def between(
    m1: ArrayLike,
    S1: ArrayLike,
    m2: ArrayLike,
    S2: ArrayLike,
    matrix: ArrayLike,
    t: float,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Two Gaussians in the plane, and two on the way between them: transport's, and the entry-by-entry mean ([1]_).

    Parameters
    ----------
    m1, S1, m2, S2 : array, shapes (2,) and (2, 2)
        Means and covariances of the two.
    matrix : array, shape (2, 2)
        Of the map that carries the first to the second, each from its own mean.
    t : float
        Share of the way, in [0, 1]. Transport's covariance there is M S M with M = (1 − t) I + t T.
    """
    t = checks.fraction("t", t, "[0, 1]")
    told = {"m1": (m1, (2,)), "S1": (S1, (2, 2)), "m2": (m2, (2,)), "S2": (S2, (2, 2)), "matrix": (matrix, (2, 2))}
    given = {name: near(name, value, len(shape)) for name, (value, shape) in told.items()}
    for name, (_, shape) in told.items():
        if given[name].shape != shape:
            raise WrongValue(f"{name} must have shape {shape}, got {given[name].shape}")
    first, covariance, second, other, T = given.values()
    part, ends = (1 - t) * np.eye(2) + t * T, ((first, covariance), (second, other))
    ax = _axes(ax)
    for i, (m, S) in enumerate(ends):
        ax.plot(*ellipse(m, S).T, color=COLOURS[i], lw=1)
    ways = {"transport": part @ covariance @ part.T, "entry by entry": (1 - t) * covariance + t * other}
    for (name, S), line, colour in zip(ways.items(), ("-", "--"), (COLOURS[2], "black"), strict=True):
        ax.plot(*ellipse((1 - t) * first + t * second, S).T, ls=line, color=colour, lw=2, label=name)
    ax.set(aspect="equal", title=title)
    ax.legend(loc="upper left", fontsize=12)
    return ax


def arrows(x: ArrayLike, y: ArrayLike, plan: ArrayLike, ax: Axes | None = None, title: str = "") -> Axes:
    """A coupling as lines from the points of x to those of y, as wide as what they carry.

    Parameters
    ----------
    x, y : array, shape (n, 2) and (m, 2)
        Numbered from 1 on.
    plan : array, shape (n, m)
    """
    x, y = _cloud("x", x), _cloud("y", y)
    plan = _plan(plan, len(x), len(y))
    ax = _axes(ax)
    for i, j in zip(*np.nonzero(plan), strict=True):
        width = 6 * plan[i, j] * max(plan.shape)
        ax.plot(*np.stack([x[i], y[j]]).T, color=COLOURS[2], lw=width, solid_capstyle="round")
    for k, (name, points) in enumerate((("x", x), ("y", y))):
        ax.plot(*points.T, MARKERS[k], color=COLOURS[k], ms=19, zorder=3)
        for number, place in enumerate(points, 1):
            said = f"${name}_{{{number}}}$"
            ax.text(place[0], place[1], said, color="white", ha="center", va="center", fontsize=11, zorder=4)
    ax.set_aspect("equal")
    ax.set_title(title)
    return ax


def table(plan: ArrayLike, ax: Axes | None = None, title: str = "", written: str = "{:.2f}") -> Axes:
    """A coupling as a matrix, each weight written into its cell.

    Parameters
    ----------
    plan : array, shape (n, m)
        Drawn as it is; its sum need not be 1.
    written : str
        How a weight is written, as for `str.format`.
    """
    _plan(plan)
    checks.nonempty_str("written", written)
    weights = near("plan", plan, 2)
    ax = _axes(ax)
    ax.imshow(weights, cmap="Greens", vmin=0, vmax=1.6 * max(weights.sum(0).max(), weights.sum(1).max()))
    for (i, j), w in np.ndenumerate(weights):
        if w > 0:
            try:
                said = written.format(w)
            except (ValueError, LookupError) as error:
                raise WrongValue(f"written must be a format of one number, got {written!r}: {error}") from None
            ax.text(j, i, said, ha="center", va="center", fontsize=13)
    n, m = weights.shape
    ax.set_xticks(range(m), [f"$y_{{{j + 1}}}$" for j in range(m)])
    ax.set_yticks(range(n), [f"$x_{{{i + 1}}}$" for i in range(n)])
    ax.set(xlabel="to", ylabel="from", title=title)
    ax.grid(False)
    return ax


def _pairs(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Two lists of numbers, of which the i-th of one is the partner of the i-th of the other."""
    first, second = near("x", x, 1), near("y", y, 1)
    if first.shape != second.shape:
        raise WrongValue(f"x and y must be equally many, got {first.size} and {second.size}")
    return first, second


def pairing(x: ArrayLike, y: ArrayLike, ax: Axes | None = None, title: str = "") -> Axes:
    """Points on a line, each joined to its partner on a second line below.

    Parameters
    ----------
    x, y : array, shape (n,)
        The partner of ``x[i]`` is ``y[i]``.
    """
    x, y = _pairs(x, y)
    ax = _axes(ax)
    ax.plot(np.stack([x, y]), [1, 0], color=COLOURS[2], lw=2)
    for i, (values, height) in enumerate(((x, 1), (y, 0))):
        ax.plot(values, np.full(len(values), height), MARKERS[i], color=COLOURS[i], ms=9, zorder=3)
    ax.set(yticks=[1, 0], yticklabels=["x", "y"], ylim=(-0.3, 1.3), xlabel="place on the line", title=title)
    ax.grid(False)
    return ax


def stairs(x: ArrayLike, y: ArrayLike, ax: Axes | None = None, title: str = "") -> Axes:
    """The values of x in ascending order, which is their quantile function, and those of their partners.

    Parameters
    ----------
    x, y : array, shape (n,)
        The partner of ``x[i]`` is ``y[i]``. If they are paired by rank, y climbs, too: it is y's quantile function.
    """
    x, y = _pairs(x, y)
    ax = _axes(ax)
    order, edges = np.argsort(x, kind="stable"), np.linspace(0, 1, len(x) + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    ax.vlines(middle, x[order], y[order], color=COLOURS[2], lw=2)
    for i, (name, values) in enumerate((("x", x[order]), ("y", y[order]))):
        ax.stairs(values, edges, baseline=None, color=COLOURS[i], lw=2)
        ax.plot(middle, values, MARKERS[i], color=COLOURS[i], ms=8, label=name)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set(xlim=(0, 1), xlabel="share of the points", ylabel="place on the line", title=title)
    ax.legend(loc="upper left", fontsize=10)
    return ax
