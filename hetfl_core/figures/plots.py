"""The book's figures, in one house style: one idea each, large enough for a phone, readable without colour.

Every function draws into an axes (a new one by default) and returns it, so that a notebook can go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike

from hetfl_core import checks

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's colours, told apart with every common form of colour blindness."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

STYLE: Any = {
    "figure.figsize": (6.2, 4.0),
    "figure.dpi": 110,
    "savefig.bbox": "tight",
    "figure.constrained_layout.use": True,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "svg.hashsalt": "hetfl",
}


def use_style() -> None:
    """Make the house style the default of this session (a notebook's first cell)."""
    plt.rcParams.update(STYLE)


@contextmanager
def style() -> Iterator[None]:
    """The house style for the length of a ``with`` block."""
    with plt.rc_context(STYLE):
        yield


def _axes(ax: Axes | None, **figure: Any) -> Axes:
    """The axes given, or new ones in a figure with these options."""
    if ax is None:
        return plt.subplots(**figure)[1]
    checks.instance("ax", ax, Axes)
    return ax


def _arrays(name: str, value: Any, axes: int, least: int = 1) -> dict[Any, np.ndarray]:
    """Finite numbers of so many axes, by name."""
    return {key: checks.reals(name, each, axes, least=least) for key, each in checks.mapping(name, value).items()}


def _every(n: int) -> int:
    return max(n // 8, 1)


def curves(
    runs: Mapping[str, pd.DataFrame | Sequence[pd.DataFrame]],
    column: str = "test_accuracy",
    ax: Axes | None = None,
    title: str = "Accuracy of the clients' models",
) -> Axes:
    """A column of the history against rounds, one line per method; with several seeds the mean and a band of ± 1 sd.

    Parameters
    ----------
    runs : dict of str to DataFrame or list of DataFrame
        Histories (`Run.history`, `RunRecord.frame()`), one per seed.
    column : str
        Accuracies are drawn in per cent, anything else as it is.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes
    """
    checks.words("column", column)
    ax = _axes(ax)
    percent = column.endswith("accuracy")
    for i, (name, given) in enumerate(checks.mapping("runs", runs).items()):
        frames = [given] if isinstance(given, pd.DataFrame) else checks.several("runs", given)
        for frame in frames:
            checks.frame("runs", frame, "round")
        if any(column not in frame for frame in frames):
            raise KeyError(f"the history of {name!r} has no column {column!r}; it has {list(frames[0])}")
        table = pd.concat([f.set_index("round")[column].astype(float) for f in frames], axis=1).dropna()
        values = table.to_numpy() * (100 if percent else 1)
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        ax.plot(table.index, values.mean(1), color=colour, marker=marker, markevery=_every(len(table)), label=name)
        if values.shape[1] > 1:
            sd = values.std(1, ddof=1)
            ax.fill_between(table.index, values.mean(1) - sd, values.mean(1) + sd, color=colour, alpha=0.15, lw=0)
    ax.set_xlabel("communication round")
    ax.set_ylabel({"test_accuracy": "test accuracy (%)", "train_accuracy": "training accuracy (%)"}.get(column, column))
    ax.set_title(title)
    ax.legend()
    return ax


def losses(
    history: pd.DataFrame, terms: Sequence[str], ax: Axes | None = None, title: str = "Terms of the loss"
) -> Axes:
    """Terms of the loss against rounds, on a log axis.

    Parameters
    ----------
    history : DataFrame
        `Run.history`.
    terms : sequence of str
        Columns to draw, e.g. ``["ce", "w2"]``.
    """
    terms = checks.several("terms", terms)
    for term in terms:
        checks.words("terms", term)
    checks.frame("history", history, "round", *terms)
    ax = _axes(ax)
    for i, term in enumerate(terms):
        drawn = history[["round", term]].dropna()
        ax.plot(
            drawn["round"], drawn[term], color=COLOURS[i], marker=MARKERS[i], markevery=_every(len(drawn)), label=term
        )
    ax.set(yscale="log", xlabel="communication round", ylabel="mean over steps and participants", title=title)
    ax.legend()
    return ax


FARTHEST = 1e100
"""Beyond it the square of a distance is no number."""


def project(
    points: np.ndarray, how: Literal["t-SNE", "MDS", "PCA"] = "t-SNE", seed: int = 0, **options: Any
) -> np.ndarray:
    """Two-dimensional picture of points by scikit-learn's t-SNE, metric MDS or PCA.

    Parameters
    ----------
    points : ndarray, shape (n, d)
    how : {"t-SNE", "MDS", "PCA"}
    seed : int
        Of the projection's own random start.
    **options
        For the scikit-learn class, e.g. ``perplexity=30``.

    Returns
    -------
    ndarray, shape (n, 2)
    """
    points = checks.reals("points", points, 2)
    checks.choice("how", how, ("t-SNE", "MDS", "PCA"))
    checks.whole("seed", seed, 0, 2**32 - 1)
    if min(points.shape) < 2:
        raise ValueError(f"points must be two at least, with two coordinates or more, got shape {points.shape}")
    if np.abs(points).max() > FARTHEST:
        raise ValueError(f"points must lie within ±{FARTHEST:g}, got {np.abs(points).max():g}")
    from sklearn.decomposition import PCA
    from sklearn.manifold import MDS, TSNE

    if how == "t-SNE":
        options = {"init": "random", "perplexity": min(30, (len(points) - 1) / 3)} | options
        return TSNE(2, random_state=seed, **options).fit_transform(points)
    if how == "MDS":
        random = {"init": "random"} if "init" in signature(MDS).parameters else {}  # older ones know no other start
        options = {"n_init": 1, "normalized_stress": "auto"} | random | options
        return MDS(2, random_state=seed, **options).fit_transform(points)
    return PCA(2, random_state=seed, **options).fit_transform(points)


def _labelled(
    name: str, points: Any, labels: Any, classes: Any
) -> tuple[dict[Any, np.ndarray], dict[Any, np.ndarray], list[int]]:
    """Points and labels by client, and the classes to draw (all that occur, by default)."""
    points, labels = _arrays(name, points, 2, 0), {k: v.astype(int) for k, v in _arrays("labels", labels, 1, 0).items()}
    for client, z in points.items():
        if client not in labels or len(labels[client]) != len(z):
            raise ValueError(f"labels must have one for each of the {len(z)} points in {name} of client {client!r}")
        if z.shape[1] < 2:
            raise ValueError(f"{name} must have two coordinates or more, got shape {z.shape} of client {client!r}")
    if not points:
        raise ValueError(f"{name} must hold the points of one client at least, got none")
    found = np.unique(np.concatenate([labels[client] for client in points])).tolist()
    classes = found if classes is None else checks.several("classes", classes)
    return points, labels, [checks.whole("classes", c, 0) for c in classes]


def _of_classes(anchors: Any, classes: Sequence[int]) -> np.ndarray:
    """Anchors, of which those of these classes are drawn; the others may be NaN."""
    anchors = checks.reals("anchors", anchors, 2, gaps=True)
    if max(classes, default=-1) >= len(anchors) or anchors.shape[1] < 2 or not np.isfinite(anchors[classes]).all():
        raise ValueError(f"anchors must be finite points, one for each of the classes {classes}, got {anchors.shape}")
    return anchors


def clients_and_classes(
    flat: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    anchors: np.ndarray | None = None,
    classes: Sequence[int] | None = None,
    class_names: Mapping[int, str] | None = None,
    ax: Axes | None = None,
    title: str = "",
    legend: bool = True,
    size: float = 18,
) -> Axes:
    """Points of several clients in the plane: the colour says the class, the marker the client, a star the anchor.

    Parameters
    ----------
    flat : dict of str to ndarray, shape (n_i, 2)
        Points by client.
    labels : dict of str to ndarray of int, shape (n_i,)
    anchors : ndarray, shape (C, 2), optional
        Anchor means in the same plane.
    classes : sequence of int, optional
        Classes to draw; by default all that occur.
    class_names : dict of int to str, optional
    ax, title, legend
    size : float
        Area of a marker, points².
    """
    flat, labels, classes = _labelled("flat", flat, labels, classes)
    if anchors is not None:
        anchors = _of_classes(anchors, classes)
    checks.flag("legend", legend)
    checks.number("size", size, above=0)
    names = checks.mapping("class_names", {} if class_names is None else class_names)
    ax = _axes(ax)
    colour = {c: COLOURS[i % len(COLOURS)] for i, c in enumerate(classes)}
    for i, (client, xy) in enumerate(flat.items()):
        for c in classes:
            rows = np.asarray(labels[client]) == c
            look: Any = {"marker": MARKERS[i % len(MARKERS)], "color": colour[c], "alpha": 0.65, "lw": 0}
            ax.scatter(xy[rows, 0], xy[rows, 1], s=size, **look)
    if anchors is not None:
        for c in classes:
            look = {"marker": "*", "color": colour[c], "edgecolor": "black", "linewidth": 1.2, "zorder": 5}
            ax.scatter(anchors[c, 0], anchors[c, 1], s=260, **look)
    ax.set(xticks=[], yticks=[], title=title)
    ax.grid(False)
    if legend:
        shown = [Line2D([], [], color=colour[c], marker="o", ls="", label=names.get(c, f"class {c}")) for c in classes]
        if len(flat) <= len(MARKERS):
            shown += [
                Line2D([], [], color="grey", marker=MARKERS[i], ls="", label=client) for i, client in enumerate(flat)
            ]
        if anchors is not None:
            shown.append(
                Line2D([], [], color="white", marker="*", markeredgecolor="black", ms=13, ls="", label="anchor mean")
            )
        ax.legend(handles=shown, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=10)
    return ax


def latent(
    points: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    anchors: np.ndarray | None = None,
    how: Literal["t-SNE", "MDS", "PCA"] = "t-SNE",
    seed: int = 0,
    ax: Axes | None = None,
    options: Mapping[str, Any] | None = None,
    **drawing: Any,
) -> Axes:
    """Embedded samples of several clients and the anchors, projected **together** to the plane and drawn.

    Parameters
    ----------
    points : dict of str to ndarray, shape (n_i, k)
        Latent features by client, e.g. `Run.embed()`.
    labels : dict of str to ndarray of int, shape (n_i,)
    anchors : ndarray, shape (C, k), optional
        Anchor means. Only those of `classes` take part in the projection.
    how, seed, options
        As for `project`.
    **drawing
        As for `clients_and_classes`.
    """
    points, labels, classes = _labelled("points", points, labels, drawing.get("classes"))
    if anchors is not None:
        anchors = _of_classes(anchors, classes)
    checks.mapping("options", {} if options is None else options)
    keep = {client: np.isin(np.asarray(labels[client]), classes) for client in points}
    parts = [np.asarray(z)[keep[client]] for client, z in points.items()]
    stars = np.asarray(anchors)[classes] if anchors is not None else np.zeros((0, parts[0].shape[1]))
    flat = project(np.concatenate([*parts, stars]), how, seed, **(options or {}))
    ends = np.cumsum([len(p) for p in parts])
    by_client = dict(zip(points, np.split(flat[: ends[-1]], ends[:-1]), strict=True))
    kept = {client: np.asarray(labels[client])[keep[client]] for client in points}
    spots = None
    if anchors is not None:
        spots = np.full((len(anchors), 2), np.nan)
        spots[classes] = flat[ends[-1] :]
    return clients_and_classes(by_client, kept, spots, ax=ax, **{**drawing, "classes": classes})


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
    xy = checks.reals("points", points, 2, least=0)
    y = checks.array("labels", labels)
    if xy.shape[1] != 2 or y.shape != (len(xy),) or not (np.issubdtype(y.dtype, np.integer) or not len(y)):
        raise ValueError(f"points and labels must have shapes (n, 2) and (n,), got {xy.shape} and {y.shape}")
    left, right, bottom, top = bounds if len(bounds := checks.reals("limits", limits, 1).tolist()) == 4 else [0] * 4
    if not (left < right and bottom < top):
        raise ValueError(f"limits must be (left, right, bottom, top), increasing in pairs, got {checks.shown(limits)}")
    checks.whole("steps", steps, 2, 2000)
    if not callable(classify):
        raise ValueError(f"classify must be a function of points, got {checks.shown(classify)}")
    across, along = np.meshgrid(np.linspace(left, right, steps), np.linspace(bottom, top, steps))
    found = np.asarray(classify(np.stack([across.ravel(), along.ravel()], axis=1)))
    if found.shape != (steps**2,) or not np.issubdtype(found.dtype, np.integer) or found.min() < 0:
        raise ValueError(f"classify must give a class for each of {steps**2} points, got {checks.shown(found)}")
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


def compare(rows: pd.DataFrame, ax: Axes | None = None, title: str = "", unit: str = "accuracy (%)") -> Axes:
    """Paper and ours side by side: dots with ± 1 sd, one line per method.

    Parameters
    ----------
    rows : DataFrame
        Columns ``method``, ``published``, ``published_sd``, ``ours``, ``ours_sd``, as `hetfl_core.ledger.numbers` gives
        them; NaN is left out.
    """
    checks.frame("rows", rows, "method", "published", "published_sd", "ours", "ours_sd")
    ax = _axes(ax)
    place = np.arange(len(rows))[::-1]
    for i, (name, label) in enumerate((("published", "paper"), ("ours", "ours"))):
        ax.errorbar(
            rows[name], place + 0.12 - 0.24 * i, xerr=rows[f"{name}_sd"].fillna(0), fmt=MARKERS[i], color=COLOURS[i],
            capsize=3, label=f"{label} (mean ± sd)",
        )  # fmt: skip
    ax.set_yticks(place, rows["method"].tolist())
    ax.set(xlabel=unit, title=title)
    ax.legend(loc="best")
    return ax


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
        One row a run, as `hetfl_core.ledger.records.tidy` gives them.
    x, y, by : str
        Columns: the setting, the metric, and what gets a line of its own.

    Returns
    -------
    Axes
    """
    checks.texts(x=x, y=y, by=by)
    checks.instance("xlabel", xlabel, str)
    checks.frame("rows", rows)
    for argument, column in (("x", x), ("y", y), ("by", by)):
        if column not in rows:
            raise KeyError(f"{argument}: the rows have no column {column!r}; they have {list(rows)}")
    ax = _axes(ax)
    for i, (name, mine) in enumerate(rows.groupby(by, sort=False)):
        found = mine.groupby(x)[y].agg(["mean", "std"]).fillna({"std": 0}).dropna()
        ax.errorbar(
            found.index, found["mean"], yerr=found["std"], label=str(name), capsize=3,
            color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
        )  # fmt: skip
    ax.set(xlabel=xlabel or x, ylabel=ylabel, title=title)
    if len(rows):
        ax.legend(fontsize=10)
    return ax


def learning_curves(
    rows: pd.DataFrame,
    ax: Axes | None = None,
    title: str = "",
    intervals: Sequence[str] = (),
    ylabel: str = "accuracy (%)",
) -> Axes:
    """Accuracy against the number of training trials, one line per method.

    The axis is logarithmic; where a client has no trial, it is linear up to the smallest other number.

    Parameters
    ----------
    rows : DataFrame
        As from ``hetfl_core.ledger.comparison.means(rows, by=["n"])``: one row per method and number of trials.
    ax : Axes, optional
    title : str
    intervals : sequence of str
        Methods whose 95 % intervals over clients are shaded. Clients differ from each other far more than methods do,
        so that overlapping bands say nothing of a difference: that is what paired `differences` are for.
    ylabel : str

    Returns
    -------
    Axes
    """
    checks.frame("rows", rows, "method", "n_train", "mean", "low", "high")
    intervals = checks.several("intervals", intervals)
    for method in intervals:
        checks.words("intervals", method)
    ax = _axes(ax)
    for i, (name, mine) in enumerate(rows.groupby("method", sort=False)):
        mine = mine.sort_values("n_train")
        colour, line = COLOURS[i % len(COLOURS)], ("-", "--")[i // len(COLOURS) % 2]
        ax.plot(mine["n_train"], mine["mean"], line, color=colour, marker=MARKERS[i % len(MARKERS)], label=str(name))
        if name in intervals:
            ax.fill_between(mine["n_train"], mine["low"], mine["high"], color=colour, alpha=0.15, lw=0)
    ticks = sorted({round(n) for n in rows["n_train"]})
    some = [n for n in ticks if n > 0]
    if some and 0 in ticks:
        ax.set_xscale("symlog", linthresh=some[0])
    elif some:
        ax.set_xscale("log")
    ax.set(xlabel="training trials of a client (mean)", ylabel=ylabel, title=title)
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.minorticks_off()
    ax.legend(fontsize=9)
    return ax


def differences(
    rows: pd.DataFrame, ax: Axes | None = None, title: str = "", xlabel: str = "difference (points)"
) -> Axes:
    """Paired differences with their 95 % intervals, one line each, and zero marked.

    Parameters
    ----------
    rows : DataFrame
        Indexed by what is compared; columns ``mean``, ``low``, ``high``. An interval that excludes zero is filled.
    """
    checks.frame("rows", rows, "mean", "low", "high")
    ax = _axes(ax)
    place = np.arange(len(rows))[::-1]
    for at, (_, row) in zip(place, rows.iterrows(), strict=True):
        sure = row["low"] > 0 or row["high"] < 0
        limits = [row["low"], row["high"]] if np.isfinite(row["low"]) else [row["mean"]] * 2
        ax.plot(limits, [at, at], color=COLOURS[0], lw=2)
        ax.plot(row["mean"], at, "o", color=COLOURS[0], markerfacecolor=COLOURS[0] if sure else "white")
    ax.axvline(0, color="black", lw=1)
    ax.set_yticks(place, [str(name) for name in rows.index])
    ax.set(xlabel=xlabel, title=title)
    return ax


def forest(
    rows: pd.DataFrame,
    ax: Axes | None = None,
    title: str = "",
    xlabel: str = "difference (points)",
    groups: Sequence[int] = (),
) -> Axes:
    """`differences` for many lines of unequal certainty, in groups.

    Few seeds can make one interval so long that it hides the rest: such intervals leave the frame.

    Parameters
    ----------
    rows, ax, title, xlabel
        As for `differences`.
    groups : sequence of int
        Sizes of the groups from the top, each but the last closed by a grey line; by default all is one group.
    """
    groups = [checks.whole("groups", size, 0) for size in checks.several("groups", groups)]
    ax = differences(rows, ax, title, xlabel)
    if sum(groups) > len(rows):
        raise ValueError(f"groups must be sizes that add up to at most {len(rows)}, got {groups}")
    for above in np.cumsum(groups)[:-1]:
        ax.axhline(len(rows) - above - 0.5, color="grey", lw=1)
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
    ax, title, xlabel, groups
        As for `forest`. An interval that is much longer than nearly all others leaves the frame.
    """
    tables = checks.mapping("found", found)
    for rows in tables.values():
        checks.frame("found", rows, "mean", "low", "high")
    groups = [checks.whole("groups", size, 0) for size in checks.several("groups", groups)]
    names = list(dict.fromkeys(name for rows in tables.values() for name in rows.index))
    if sum(groups) > len(names):
        raise ValueError(f"groups must be sizes that add up to at most {len(names)}, got {groups}")
    ax = _axes(ax, figsize=(6.8, 1.4 + 0.36 * len(names)))
    steps = 0.3 * np.linspace(1, -1, len(tables)) if len(tables) > 1 else [0.0]
    ends = np.abs(np.concatenate([[0.0], *(rows[["low", "high"]].to_numpy(float).ravel() for rows in tables.values())]))
    reach = max(2.0, 1.05 * float(np.quantile(ends[np.isfinite(ends)], 0.95)))
    for i, (rows, step) in enumerate(zip(tables.values(), steps, strict=True)):
        look: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i]}
        for name, row in rows.iterrows():
            at, sure = step - names.index(name), row["low"] > 0 or row["high"] < 0
            if np.isfinite(row["low"]):
                ax.plot([row["low"], row["high"]], [at, at], color=COLOURS[i], lw=1.5)
            ax.plot(row["mean"], at, markerfacecolor=COLOURS[i] if sure else "white", **look)
        reach = max([reach, *(1.5 * rows["mean"].astype(float).abs())])
    for above in np.cumsum(groups)[:-1]:
        ax.axhline(0.5 - above, color="grey", lw=1)
    ax.axvline(0, color="black", lw=1)
    ax.set_yticks(-np.arange(len(names)), [str(name) for name in names])
    ax.tick_params(axis="y", labelsize=11)
    ax.set(title=title, xlabel=xlabel, xlim=(-reach, reach), ylim=(0.6 - len(names), 0.6))
    marks = [Line2D([], [], ls="", marker=MARKERS[i], color=COLOURS[i], label=name) for i, name in enumerate(tables)]
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
        As from `hetfl_core.ledger.results.gaps`. A point of too few seeds has no interval and is drawn hollow.
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
        look: dict[str, Any] = {"color": COLOURS[i + 1], "marker": MARKERS[i + 1]}
        ax.errorbar(x, mean, arms, capsize=3, label=method, **look)
        few = ~np.isfinite(of["low"].to_numpy(dtype=float))
        ax.plot(x[few], mean[few], ls="", markerfacecolor="white", zorder=3, **look)
    ax.axhline(0, color="black", lw=1)
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
    if methods:
        ax.legend(fontsize=10, ncols=min(len(methods), 4), loc="upper center", bbox_to_anchor=(0.5, -0.17))
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


def against_gaussians(
    draws: Any, variances: Mapping[str, float], ax: Axes | None = None, title: str = "", xlabel: str = ""
) -> Axes:
    """Histogram of draws, and the density of N(0, s) for each variance s that somebody claims.

    Parameters
    ----------
    draws : array, shape (R,)
    variances : dict of str to float
        Those that are not positive are left out.
    """
    draws = checks.reals("draws", draws, 1)
    for s in checks.mapping("variances", variances).values():
        checks.number("variances", s)
    ax = _axes(ax)
    ax.hist(draws, bins=50, density=True, color="lightgrey", edgecolor="white", label="simulated")
    grid = np.linspace(draws.min(), draws.max(), 400)
    for i, (name, s) in enumerate(variances.items()):
        if s > 0:
            density = np.exp(-(grid**2) / (2 * s)) / np.sqrt(2 * np.pi * s)
            ax.plot(grid, density, color=COLOURS[i], marker=MARKERS[i], markevery=40, label=name)
    ax.set(xlabel=xlabel, ylabel="density", title=title)
    ax.legend(fontsize=10)
    return ax


def holders(
    table: Any,
    blocks: Sequence[str],
    classes: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """How many clients hold each block of each class, written into its cell; a cell without holders stands out.

    Parameters
    ----------
    table : array_like of int, shape (n_blocks, n_classes)
        As from `hetfl_core.datasets.blocks.holders`.
    blocks : sequence of str
        Names of the rows.
    classes : sequence of str, optional
        Names of the columns; numbers from 0 on by default.
    """
    count = checks.array("table", table)
    if count.ndim != 2 or not count.size or count.shape[0] != len(blocks):
        raise ValueError(f"table must have a row for each of {len(blocks)} blocks, got shape {count.shape}")
    names = [str(c) for c in range(count.shape[1])] if classes is None else list(classes)
    if len(names) != count.shape[1]:
        raise ValueError(f"classes must name {count.shape[1]} columns, got {len(names)}")
    ax = _axes(ax, figsize=(1.6 + 0.34 * count.shape[1], 0.8 + 0.32 * count.shape[0]))
    most = max(int(count.max()), 1)
    ax.imshow(count, cmap="Blues", vmin=0, vmax=1.6 * most, aspect="auto")
    for (i, j), n in np.ndenumerate(count):
        if n:
            ax.text(j, i, f"{n}", ha="center", va="center", fontsize=8, color="black")
        else:
            cell = ((j - 0.5, i - 0.5), 1, 1)
            ax.add_patch(Rectangle(*cell, facecolor="black"))
            ax.text(j, i, "0", ha="center", va="center", fontsize=8, color="white")
    size = 12 if len(names) <= 20 else 8
    ax.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0, fontsize=size)
    ax.set_yticks(range(len(blocks)), list(blocks))
    ax.set(xlabel="class", ylabel="block", title=title)
    ax.grid(False)
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
        As from ``statements()`` of the modules in `hetfl_core.theory`: columns ``statement`` and ``holds``, the latter
        one of "yes", "if" (under a condition that is not printed), "no" and "open" (neither derived nor refuted).
    columns : int
        In how many columns they stand.
    """
    checks.frame("table", table, "statement", "holds")
    columns = checks.whole("columns", columns, 1)
    wrong = sorted(set(map(str, table["holds"])) - set(VERDICTS))
    if wrong:
        raise ValueError(f"table must have one of {', '.join(VERDICTS)} in the column holds, got {', '.join(wrong)}")
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
