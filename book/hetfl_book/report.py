"""What pages of results have in common: sizes out of stored records, and a few figures in one style.

Functions that compute read records and return `hetfl_core.statistics.Paired`, functions that draw take such results.
A figure is `WIDTH` inches wide, so that its letters can be read where a phone has 390 pixels, and everything in it is
named where it stands: rows above their lines, curves at their ends, in words and not by ids.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetfl_book import ledger
from hetfl_book.discriminator import recognise_clients
from hetfl_book.figures.scenes import regions
from hetfl_book.headtohead import ranking
from hetfl_book.headtohead.entries import ALONE
from hetfl_book.headtohead.figures import signed
from hetfl_book.ledger import results
from hetfl_book.ledger.tables import counted
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.plots import COLOURS, MARKERS, shaded
from hetfl_core.records import RunRecord
from hetfl_core.reporting.judging import Gain
from hetfl_core.statistics import Paired

WIDTH = 4.6
"""Inches of a figure: its letters are 13 pixels high on a phone and 18 at a desk."""

BLUE, ORANGE = COLOURS[:2]

PAPER = {"fc": "white", "ec": "none", "pad": 0.5}
"""Behind words that a line may cross."""


Where = str | Iterable[str]
"""An experiment, or several of one table."""


# --- sizes out of records ---------------------------------------------------------------------------------------------


@functools.cache
def records(experiment: str) -> tuple[RunRecord, ...]:
    """The stored runs of an experiment at the paper's scale; none where there are none."""
    return tuple(ledger.load(experiment=experiment, scale="paper"))


def runs_of(where: Where, method: str, metric: str = "accuracy") -> pd.DataFrame:
    """A method's values, in per cent where they are accuracies: a row per seed, a column per experiment."""
    names = _several(where)
    return pd.concat([results.by_seed(records(e), e, method, metric) for e in names], axis=1, keys=names)


def _several(where: Where) -> list[str]:
    found = [where] if isinstance(where, str) else checks.names("where", where)
    if not found:
        raise WrongValue("where must name an experiment at least, got none")
    return found


def pooled(where: Where, a: str, b: str, other: Where | None = None, metric: str = "accuracy") -> Paired:
    """Points by which a is ahead of b over a whole table: each seed's mean, and the 95 % interval over seeds.

    A claim about a table is judged on the table, for four rows of five seeds that each fail may be one effect. Seeds
    are what was repeated, so that the interval is one of seeds: of five here, not of twenty.

    Parameters
    ----------
    where : str or iterable of str
        The experiments: one, or the rows of a table.
    a, b : str
        Methods.
    other : str or iterable of str, optional
        Where b was run, on the same data, one for each of `where`; by default there.
    metric : str

    Returns
    -------
    Paired

    Raises
    ------
    hetfl_core.statistics.NoPairsError
        If an experiment has no seed of both.
    ValueError
        If a pair was run on other data, or by another protocol.
    """
    here = _several(where)
    there = here if other is None else _several(other)
    if len(there) != len(here):
        raise WrongValue(f"other must name an experiment for each of {len(here)}, got {len(there)}")
    every = [r for e in dict.fromkeys([*here, *there]) for r in records(e)]
    singly = []
    for e, o in zip(here, there, strict=True):
        if e == o:
            singly.append(ledger.paired(every, e, a, b, metric))  # refuses pairs whose data or protocol differ
        elif a not in results.across(every, e, o, b, metric).index:
            raise WrongValue(f"other: no seed has both {a!r} of {e!r} and {b!r} of {o!r}")
    if len(singly) == 1:
        return singly[0]
    found = results.difference(*(results.pooled(every, w, m, metric) for w, m in ((here, a), (there, b))))
    if found is None:
        raise WrongValue(f"where: no seed has {a!r} and {b!r} in all of {here}")
    return found


def said(gap: Any, digits: int = 1) -> str:
    """A difference as figures and tables say it, ``"+1.6 ± 0.8"``; of too few seeds it has no interval.

    Parameters
    ----------
    gap : Paired
        Or anything else that has ``mean``, ``low`` and ``high``.
    digits : int
    """
    text = signed(gap.mean, checks.integer("digits", digits, 0, 17))
    if np.isfinite(gap.high - gap.low):
        return f"{text} ± {(gap.high - gap.low) / 2:.{digits}f}"
    return f"{text} ({counted(gap.n, 'seed')})"


MINUS = {"training alone": "", "logistic regression alone": "_logistic", "nothing exchanged": "_sharing"}
"""What a method of the head to head is compared with, and how `hetfl_book.headtohead.ranking.cells` names that."""


@functools.cache
def head_to_head(
    federation: str, size: str = "all", measure: str = ranking.MEASURE, method: str | None = None
) -> pd.DataFrame:
    """What each method reached on a federation of the head to head, a row per method.

    Parameters
    ----------
    federation, size, measure : str
        As for `hetfl_book.headtohead.ranking.cells`, which says what the columns are.
    method : str, optional
        By default all; else this one and what it is compared with.
    """
    where = f"headtohead/{federation}-{size}"
    best = ranking.best_alone().get((federation, size), ranking.LOGISTIC)
    asked = [None] if method is None else dict.fromkeys([method, ALONE, ranking.LOGISTIC, best])
    every = [(name, one) for name in (where, f"{where}-apart") for one in asked]
    stored = [record for name, one in every for record in ledger.load(experiment=name, method=one)]
    return ranking.cells(stored, measure).set_index("method")


def gained(
    federation: str, method: str, over: str = "training alone", size: str = "all", measure: str = ranking.MEASURE
) -> Gain:
    """Points that a method gains on a federation of the head to head, with the interval for splits that overlap.

    Parameters
    ----------
    federation, method : str
    over : {"training alone", "logistic regression alone", "nothing exchanged"}
        The last is the method itself where every client is a federation of its own.
    size, measure : str

    Returns
    -------
    Gain
        With ``mean``, ``low`` and ``high``, as `forest` takes it.
    """
    checks.choice("over", over, tuple(MINUS))
    table = head_to_head(federation, size, measure, method)
    checks.choice("method", method, tuple(table.index))
    return Gain(*(float(table.loc[method, f"{part}{MINUS[over]}"]) for part in ("gain", "low", "high", "p")))


# --- figures of differences -------------------------------------------------------------------------------------------


def forest(groups: Mapping[str, Mapping[str, Any]], xlabel: str) -> Axes:
    """Differences with their 95 % intervals, one a row, named and told above its line; a full dot excludes zero.

    Parameters
    ----------
    groups : dict of str to dict of str to Paired
        From the top; the name of a group is its heading, and may be empty.
    xlabel : str

    Returns
    -------
    Axes
    """
    rows: list[tuple[str, Any]] = []
    for heading, group in checks.mapping("groups", groups).items():
        rows += [(heading, None)] * bool(heading) + [*checks.mapping("groups", group).items()]
    if not rows:
        raise WrongValue("groups must hold one difference at least, got none")
    ax = plt.subplots(figsize=(WIDTH, 0.8 + 0.47 * len(rows)))[1]
    across = ax.get_yaxis_transform()
    for at, (name, gap) in enumerate(rows):
        ax.text(0, 0.18 - at, name, transform=across, va="bottom", weight="normal" if gap else "bold", bbox=PAPER)
        if gap is None:
            continue
        ax.text(1, 0.18 - at, said(gap), transform=across, ha="right", va="bottom", bbox=PAPER)
        ends = [gap.low, gap.high] if np.isfinite(gap.low) else [gap.mean] * 2
        clear = gap.low > 0 or gap.high < 0
        ax.plot([0, 0], [-at - 0.4, -at + 0.15], color="black", lw=1, zorder=0)
        ax.plot(ends, [-at, -at], color=BLUE, lw=2.5, solid_capstyle="butt")
        ax.plot(gap.mean, -at, "o", ms=9, color=BLUE, mfc=BLUE if clear else "white", mew=2)
    ax.set(xlabel=xlabel, ylim=(0.5 - len(rows), 0.8))
    return _without_rows(ax)


def _without_rows(ax: Axes) -> Axes:
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(False, axis="y")
    return ax


def dots(values: Mapping[str, Mapping[str, float]], xlabel: str) -> Axes:
    """A dot for every client, a row for every method or federation; a bar marks the median.

    Parameters
    ----------
    values : dict of str to dict of str to float
        By row, from the top, the value of each client.
    xlabel : str

    Returns
    -------
    Axes
    """
    rows = checks.mapping("values", values)
    ax = plt.subplots(figsize=(WIDTH, 0.9 + 0.75 * len(rows)))[1]
    for at, (name, clients) in enumerate(rows.items()):
        ax.text(0, 0.24 - at, name, transform=ax.get_yaxis_transform(), va="bottom", bbox=PAPER)
        for x in checks.mapping("values", clients).values():
            ax.plot(x, -at, "o", ms=8, color=BLUE, mfc="none", mew=1.5, clip_on=False)
        ax.plot([np.median([*clients.values()])] * 2, [-at - 0.18, -at + 0.18], color="black", lw=2)
    if ax.get_xlim()[0] < 0 < ax.get_xlim()[1]:
        ax.axvline(0, color="black", lw=1, zorder=0)
    ax.set(xlabel=xlabel, ylim=(0.5 - len(rows), 0.75))
    return _without_rows(ax)


def labelled(ax: Axes, x: Any, y: Any, name: str, at: int, look: str, over: tuple[float, float], color: str) -> None:
    """A curve that carries its name, in its colour, `over` (points to the right and up) from its point number `at`."""
    ax.plot(x, y, look, color=color)
    ax.annotate(name, (x[at], y[at]), over, textcoords="offset points", va="center", color=color, bbox=PAPER)


# --- figures of who has what ------------------------------------------------------------------------------------------


def grid(
    table: pd.DataFrame,
    xlabel: str = "",
    digits: int = 0,
    limits: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
) -> Axes:
    """A heat map with its numbers: rows and columns are named by the table, cells are the darker the larger.

    Parameters
    ----------
    table : DataFrame of float
        At most six columns can be read on a phone. NaN is an empty cell.
    xlabel : str
        What the numbers are.
    digits : int
    limits : tuple of float, or of sequences of float, optional
        The values that are white and darkest, of all columns or of each; by default the least and the largest.

    Returns
    -------
    Axes
    """
    checks.frame("table", table)
    values = table.astype(float)
    low, high = (np.nanmin(values), np.nanmax(values)) if limits is None else map(np.asarray, limits)
    shades = (values - low) / np.where(high > low, high - low, 1)
    ax = plt.subplots(figsize=(WIDTH, 1.0 + 0.36 * len(table)))[1]
    texts = [[f"{x:.{digits}f}".replace("-", "−") if np.isfinite(x) else "" for x in row] for row in values.to_numpy()]
    shaded(ax, shades, texts)
    ax.set_xlabel(xlabel)
    return ax


def travels(parts: Mapping[str, Sequence[str]], leave: Sequence[str], server: str) -> Figure:
    """Who keeps what: a row per client, a box per part of it, and what leaves the client in colour.

    Parameters
    ----------
    parts : dict of str to sequence of str
        By the name of the part (a column), what stands in each client's box; "" is no box.
    leave : sequence of str
        The parts that leave the client, the last columns.
    server : str
        What the server does with them.

    Returns
    -------
    Figure
    """
    columns, last = checks.mapping("parts", parts), checks.names("leave", leave)
    if not columns or len({len(boxes) for boxes in columns.values()}) != 1:
        raise WrongValue("parts must have boxes of equally many clients in each column")
    if last != [*columns][len(columns) - len(last) :]:
        raise WrongValue(f"leave must name the last of the columns {[*columns]}, got {last}")
    n, first = len(next(iter(columns.values()))), len(columns) - len(last)
    fig, ax = plt.subplots(figsize=(WIDTH, 0.9 + 0.62 * n))
    for j, (part, boxes) in enumerate(columns.items()):
        colour = ORANGE if part in last else "grey"
        ax.text(j, 0.75, part, ha="center", weight="bold", color=colour if part in last else "black")
        for i, text in enumerate(boxes):
            if text:
                ax.add_patch(plt.Rectangle((j - 0.46, -i - 0.36), 0.92, 0.72, fc=colour, alpha=0.25, ec="none"))
                ax.text(j, -i, text, ha="center", va="center", fontsize=11)
    if last:
        ax.plot([first - 0.5] * 2, [0.6, 0.5 - n], color="black", lw=1, ls=":")
        ax.text((first + len(columns) - 1) / 2, 0.1 - n, server, ha="center", va="top", color=ORANGE)
    ax.text((first - 1) / 2, 0.1 - n, "stays with the hospital", ha="center", va="top")
    ax.set(xlim=(-0.6, len(columns) - 0.4), ylim=(-n - 0.5, 1.15))
    ax.axis("off")
    return fig


# --- figures of features ----------------------------------------------------------------------------------------------


def bounds(runs: Iterable[Any], room: float = 0.5) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the training features of all clients of some runs, in two dimensions."""
    z = np.concatenate([z for run in runs for z in run.embed("train").values()])
    (left, bottom), (right, top) = z.min(0) - room, z.max(0) + room
    return float(left), float(right), float(bottom), float(top)


def spaces(run: Any, limits: tuple[float, float, float, float], title: str) -> Figure:
    """The feature space of each client in two dimensions, what its head says there, and the server's class means.

    Parameters
    ----------
    run : Run
        Of clients with a linear head on two features.
    limits : tuple of float
        As from `bounds`.
    title : str

    Returns
    -------
    Figure
    """
    z, n = run.embed("train"), len(run.federation)
    fig, axes = plt.subplots(-(-n // 2), 2, figsize=(4.2, 0.9 + 2 * -(-n // 2)), squeeze=False)
    for i, (ax, client) in enumerate(zip(axes.flat, run.federation, strict=False)):
        weight, bias = (run.params[i][f"beta.{part}"].numpy() for part in ("weight", "bias"))
        says = lambda z, w=weight, b=bias: (z @ w + b).argmax(1)  # noqa: E731
        regions(z[client.name], client.y_train.numpy(), says, limits, ax, f"hospital {i + 1}", 60)
        ax.set(xticks=[], yticks=[])
        for c, star in enumerate(run.server["mean"].numpy() if "mean" in run.server else ()):
            ax.plot(*star, "*", ms=15, color=COLOURS[c], mec="black")
    look: Any = {"ls": "", "mec": "black", "mew": 0.4}
    marks = [plt.Line2D([], [], marker=MARKERS[c], color=COLOURS[c], **look) for c in range(run.federation.n_classes)]
    words = [f"diagnosis {c + 1}" for c in range(len(marks))]
    fig.legend(marks, words, loc="outside lower center", ncols=2, fontsize=11)
    fig.suptitle(title, fontsize=13)
    return fig


def apart(features: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> float:
    """How far clients' means of one class lie apart, as a share of the distance between the means of two classes.

    0 where each class has its mean at the same place everywhere; scaling the features changes nothing.

    Parameters
    ----------
    features : dict of str to ndarray, shape (n_i, k)
        By client.
    labels : dict of str to ndarray of int, shape (n_i,)
    """
    classes = np.unique(np.concatenate([*labels.values()]))
    means = [[z[labels[c] == k].mean(0) for c, z in features.items() if (labels[c] == k).any()] for k in classes]
    same = np.mean([_between(each) for each in means if len(each) > 1])
    return float(same / _between([np.mean(each, axis=0) for each in means]))


def _between(points: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2)]))


def alignment(runs: Iterable[Any]) -> dict[str, float]:
    """Means over runs of `apart`, and of how often (%) discriminators name the client, next to two yardsticks.

    Returns
    -------
    dict of str to float
        ``apart``; ``linear`` and ``forest``, the discriminators; ``chance``, and what the ``label alone`` tells.
    """
    rows = []
    for run in runs:
        z = run.embed("train")
        y = {client.name: client.y_train.numpy() for client in run.federation}
        linear, trees = (recognise_clients(z, y, kind=kind) for kind in ("linear", "forest"))  # type: ignore[arg-type]
        rates = {"linear": linear.accuracy, "forest": trees.accuracy}
        rates |= {"chance": linear.chance, "label alone": linear.label_only}
        rows.append({"apart": apart(z, y)} | {name: 100 * rate for name, rate in rates.items()})
    return {str(name): float(mean) for name, mean in pd.DataFrame(rows).mean().items()}


def floors(found: Mapping[str, Mapping[str, float]], xlabel: str) -> Axes:
    """What discriminators name, beside chance and what the label alone tells.

    Parameters
    ----------
    found : dict of str to dict of str to float
        As from `alignment`, by method.
    xlabel : str

    Returns
    -------
    Axes
    """
    rows = checks.mapping("found", found)
    ax = plt.subplots(figsize=(WIDTH, 1.5 + 0.8 * len(rows)))[1]
    for at, (name, rates) in enumerate(rows.items()):
        ax.text(0, 0.3 - at, name, transform=ax.get_yaxis_transform(), weight="bold")
        for i, kind in enumerate(("linear", "forest")):
            ax.plot(rates[kind], -at, MARKERS[i], ms=10, color=COLOURS[i], clip_on=False)
            words, where = f"{kind} {rates[kind]:.0f}", (rates[kind], -at)
            over = (0, 12 if i else -20)
            ax.annotate(words, where, over, textcoords="offset points", ha="center", bbox=PAPER)
    for name in ("chance", "label alone"):
        x = float(np.mean([rates[name] for rates in rows.values()]))
        ax.axvline(x, color="grey", ls="--", lw=1.5, zorder=0)
        ax.annotate(f"{name} {x:.0f}", (x, 0.75), ha="center", va="bottom", color="dimgrey")
    ax.set(xlabel=xlabel, xlim=(0, 100), ylim=(0.3 - len(rows), 0.75))
    ax.grid(False)
    return _without_rows(ax)
