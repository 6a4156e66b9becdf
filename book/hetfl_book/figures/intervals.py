"""Figures of results: differences with their intervals, sweeps, curves over trials, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from hetfl_core import checks
from hetfl_core.errors import UnknownName, WrongValue
from hetfl_core.plots import COLOURS, MARKERS, _axes, differences


def line_style(i: int) -> dict[str, Any]:
    """The colour and the marker of the i-th line."""
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def sweep(
    rows: pd.DataFrame,
    x: str,
    y: str = "accuracy",
    by: str = "method",
    ax: Axes | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "accuracy (%)",
) -> Axes:
    """A metric against a setting, one line per method: means with ± 1 sd over seeds.

    Parameters
    ----------
    rows : DataFrame
        One row a run, as `hetfl_core.records.tidy` gives them.
    x, y, by : str
        Columns: the setting, the metric, and what gets a line of its own.

    Returns
    -------
    Axes
    """
    checks.nonempty_strs(x=x, y=y, by=by)
    checks.instance("xlabel", xlabel, str)
    checks.frame("rows", rows)
    for argument, column in (("x", x), ("y", y), ("by", by)):
        if column not in rows:
            raise UnknownName(f"{argument}: the rows have no column {column!r}; they have {list(rows)}")
    ax = _axes(ax)
    for i, (name, mine) in enumerate(rows.groupby(by, sort=False)):
        found = mine.groupby(x)[y].agg(["mean", "std"]).fillna({"std": 0}).dropna()
        ax.errorbar(found.index, found["mean"], yerr=found["std"], label=str(name), capsize=3, **line_style(i))
    ax.set(xlabel=xlabel or x, ylabel=ylabel, title=title)
    if len(rows):
        ax.legend(fontsize=10)
    return ax


def forest(rows: pd.DataFrame, ax: Axes | None = None, title: str = "", xlabel: str = "difference (points)") -> Axes:
    """`differences` for many lines of unequal certainty.

    Few seeds can make one interval so long that it hides the rest: such intervals leave the frame.

    Parameters
    ----------
    rows, ax, title, xlabel
        As for `differences`.
    """
    ax = differences(rows, ax, title, xlabel)
    ax.tick_params(axis="y", labelsize=11)
    lengths = (rows["high"] - rows["mean"]).astype(float).replace(np.inf, np.nan)
    reach = np.nanmax([2.0, 1.5 * float(rows["mean"].abs().max()), float(lengths.median())])
    limits = rows[["low", "high"]].astype(float).replace([np.inf, -np.inf], np.nan)
    if (limits.abs() > reach).any(axis=None):
        ax.set_xlim(-1.05 * reach, 1.05 * reach)
    return ax


def forests(
    found: Mapping[str, pd.DataFrame],
    ax: Axes | None = None,
    title: str = "",
    xlabel: str = "difference (points)",
    groups: Sequence[int] = (),
) -> Axes:
    """The same comparisons on several data sets, in one frame: a line each, and in it a dot for every data set.

    Parameters
    ----------
    found : dict of str to DataFrame
        By data set, as `forest` takes them; lines are matched by their names, and stand in the order in which these
        occur. A dot is filled where its interval excludes zero, and has no bar where there are too few seeds for one.
    groups : sequence of int
        Sizes of the groups from the top, each but the last closed by a grey line; by default all is one group.
    ax, title, xlabel
        As for `forest`. An interval that is much longer than nearly all others leaves the frame.
    """
    tables = checks.mapping("found", found)
    for rows in tables.values():
        checks.frame("found", rows, "mean", "low", "high")
    names = list(dict.fromkeys(name for rows in tables.values() for name in rows.index))
    sizes = [checks.integer("groups", size, 0) for size in checks.sequence("groups", groups)]
    if sum(sizes) > len(names):
        raise WrongValue(f"groups must be sizes that add up to at most {len(names)}, got {sizes}")
    ax = _axes(ax, figsize=(6.8, 1.4 + 0.36 * len(names)))
    steps = 0.3 * np.linspace(1, -1, len(tables)) if len(tables) > 1 else [0.0]
    ends = np.abs(np.concatenate([[0.0], *(rows[["low", "high"]].to_numpy(float).ravel() for rows in tables.values())]))
    reach = max(2.0, 1.05 * float(np.quantile(ends[np.isfinite(ends)], 0.95)))
    for i, (rows, step) in enumerate(zip(tables.values(), steps, strict=True)):
        for name, row in rows.iterrows():
            at, sure = step - names.index(name), row["low"] > 0 or row["high"] < 0
            if np.isfinite(row["low"]):
                ax.plot([row["low"], row["high"]], [at, at], color=COLOURS[i], lw=1.5)
            ax.plot(row["mean"], at, markerfacecolor=COLOURS[i] if sure else "white", **line_style(i))
        reach = max([reach, *(1.5 * rows["mean"].astype(float).abs())])
    for above in np.cumsum(sizes)[:-1]:
        ax.axhline(0.5 - above, color="grey", lw=1)
    ax.axvline(0, color="black", lw=1)
    ax.set_yticks(-np.arange(len(names)), [str(name) for name in names])
    ax.tick_params(axis="y", labelsize=11)
    ax.set(title=title, xlabel=xlabel, xlim=(-reach, reach), ylim=(0.6 - len(names), 0.6))
    marks = [Line2D([], [], ls="", label=name, **line_style(i)) for i, name in enumerate(tables)]
    below = ax.transAxes + ScaledTranslation(0, -0.5, ax.figure.dpi_scale_trans)  # half an inch: under the axis' label
    ax.legend(
        handles=marks, fontsize=10, ncols=len(marks), loc="upper center", bbox_to_anchor=(0.4, 0), bbox_transform=below
    )
    return ax


def gaps(
    rows: pd.DataFrame,
    ax: Axes | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "difference (points)",
    spread: float = 0.0,
) -> Axes:
    """Paired differences along a setting, a line per method, with 95 % intervals and zero marked.

    Parameters
    ----------
    rows : DataFrame
        As from `hetfl_book.ledger.results.gaps`. A point of too few seeds has no interval and is drawn hollow.
    ax, title, xlabel, ylabel
    spread : float
        How far methods stand apart from each other along the axis, so that intervals do not cover each other.
    """
    checks.frame("rows", rows, "x", "method", "mean", "low", "high")
    checks.number("spread", spread, 0)
    ax = _axes(ax)
    methods = list(dict.fromkeys(rows["method"]))
    for i, (method, of) in enumerate(rows.groupby("method", sort=False)):
        x = of["x"].to_numpy(dtype=float) + spread * (i - (len(methods) - 1) / 2)
        mean = of["mean"].to_numpy(dtype=float)
        arms = np.array([mean - of["low"], of["high"] - mean], dtype=float)
        arms[~np.isfinite(arms)] = 0.0
        ax.errorbar(x, mean, arms, capsize=3, label=method, **line_style(i + 1))
        few = ~np.isfinite(of["low"].to_numpy(dtype=float))
        ax.plot(x[few], mean[few], ls="", markerfacecolor="white", zorder=3, **line_style(i + 1))
    ax.axhline(0, color="black", lw=1)
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
    if methods:
        ax.legend(fontsize=10, ncols=min(len(methods), 4), loc="upper center", bbox_to_anchor=(0.5, -0.17))
    return ax


VERDICTS = {
    "yes": ("holds as printed", 0, "o"),
    "if": ("holds under a condition", 1, "s"),
    "no": ("does not hold", 3, "X"),
    "open": ("not refuted here", 4, "D"),
}
"""Of `verdicts`: each verdict's words, its colour in `COLOURS`, its marker."""


def verdicts(table: pd.DataFrame, ax: Axes | None = None, title: str = "", columns: int = 3) -> Axes:
    """Which statements of a paper hold: a mark for each, in the paper's order, down one column after the other.

    Parameters
    ----------
    table : DataFrame
        As from ``statements()`` of the modules in `hetfl_book.theory`: columns ``statement`` and ``holds``, the latter
        one of "yes", "if" (under a condition that is not printed), "no" and "open" (neither derived nor refuted).
    columns : int
        In how many columns they stand.
    """
    checks.frame("table", table, "statement", "holds")
    columns = checks.integer("columns", columns, 1)
    wrong = sorted(set(map(str, table["holds"])) - set(VERDICTS))
    if wrong:
        raise WrongValue(f"table must have one of {', '.join(VERDICTS)} in the column holds, got {', '.join(wrong)}")
    deep = max(-(-len(table) // columns), 1)
    ax = _axes(ax, figsize=(8.4, 0.7 + 0.26 * deep))
    for i, (statement, holds) in enumerate(zip(table["statement"], table["holds"], strict=True)):
        column, down = divmod(i, deep)
        _, colour, marker = VERDICTS[holds]
        ax.plot(column, -down, marker, color=COLOURS[colour], ms=8, clip_on=False)
        ax.text(column + 0.05, -down, str(statement), va="center", fontsize=10)
    marks = [
        Line2D([], [], ls="", marker=m, color=COLOURS[c], ms=8, label=f"{words} ({(table['holds'] == key).sum()})")
        for key, (words, c, m) in VERDICTS.items()
        if (table["holds"] == key).any()
    ]
    ax.set(xlim=(-0.05, columns), ylim=(0.6 - deep, 0.6), title=title, xticks=[], yticks=[])
    ax.axis("off")
    across = 2 if len(marks) > 3 else 3  # four side by side would be wider than the statements
    ax.legend(handles=marks, fontsize=10, ncols=across, loc="upper center", bbox_to_anchor=(0.5, 0), frameon=False)
    return ax
