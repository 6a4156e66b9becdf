"""Figures of runs, in one house style: one idea each, large enough for a phone, readable without colour.

Every function draws into an axes (a new one by default) and returns it, so that a notebook can go on from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hetfl_core import checks
from hetfl_core.errors import UnknownName, WrongValue
from hetfl_core.federation import Federation
from hetfl_core.views import columns_of_each

__all__ = [
    "COLOURS",
    "MARKERS",
    "availability",
    "clients_and_classes",
    "curves",
    "differences",
    "latent",
    "project",
    "style",
    "use_style",
]


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's colours, told apart with every common form of colour blindness."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
"""One for each client, beside its colour; the last one is that of anchors."""

STYLE: Any = [Path(__file__).with_name("plots.mplstyle"), {"axes.prop_cycle": plt.cycler(color=COLOURS)}]


def use_style() -> None:
    """Make the house style the default of this session (a notebook's first cell)."""
    plt.style.use(STYLE)


def style() -> AbstractContextManager[None]:
    """The house style for the length of a ``with`` block.

    Returns
    -------
    context manager
    """
    return plt.style.context(STYLE)


def _axes(ax: Axes | None, **figure: Any) -> Axes:
    """The axes given, or new ones in a figure with these options."""
    if ax is None:
        return plt.subplots(**figure)[1]
    checks.instance("ax", ax, Axes)
    return ax


def _arrays(name: str, value: Any, axes: int, least: int = 1) -> dict[Any, np.ndarray]:
    """Finite numbers of so many axes, by name."""
    return {key: checks.floats(name, each, axes, least=least) for key, each in checks.mapping(name, value).items()}


def curves(
    runs: Mapping[str, Any],
    column: str = "accuracy",
    ax: Axes | None = None,
    title: str = "Accuracy of the clients' models",
) -> Axes:
    """A column of the history against rounds, one line per method; with several seeds the mean and a band of ± 1 sd.

    Parameters
    ----------
    runs : dict of str to Run or DataFrame, or a list of those
        Runs or their histories (`Run.history`, `RunRecord.frame()`), one per seed.
    column : str
        Accuracies are drawn in per cent, anything else as it is.
    ax : Axes, optional
    title : str

    Returns
    -------
    Axes

    Raises
    ------
    KeyError
        Naming the run, where its history lacks the column.
    """
    checks.nonempty_str("column", column)
    ax = _axes(ax)
    percent = column.endswith("accuracy")
    for i, (name, given) in enumerate(checks.mapping("runs", runs).items()):
        several = [given] if isinstance(given, pd.DataFrame) or hasattr(given, "history") else given
        frames = [getattr(each, "history", each) for each in checks.sequence("runs", several)]
        for frame in frames:
            checks.frame("runs", frame, "round")
        if any(column not in frame for frame in frames):
            raise UnknownName(f"the history of {name!r} has no column {column!r}; it has {list(frames[0])}")
        table = pd.concat([f.set_index("round")[column].astype(float) for f in frames], axis=1).dropna()
        values = table.to_numpy() * (100 if percent else 1)
        colour, marker, every = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], max(len(table) // 8, 1)
        ax.plot(table.index, values.mean(1), color=colour, marker=marker, markevery=every, label=name)
        if values.shape[1] > 1:
            sd = values.std(1, ddof=1)
            ax.fill_between(table.index, values.mean(1) - sd, values.mean(1) + sd, color=colour, alpha=0.15, lw=0)
    what = {"accuracy": "test accuracy (%)", "train_accuracy": "training accuracy (%)"}.get(column, column)
    ax.set(xlabel="communication round", ylabel=what, title=title)
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

    Raises
    ------
    ValueError
        For fewer than two points or coordinates, and points that are not finite or too far out (`FARTHEST`).
    """
    points = checks.floats("points", points, 2)
    checks.choice("how", how, ("t-SNE", "MDS", "PCA"))
    checks.integer("seed", seed, 0, 2**32 - 1)
    if min(points.shape) < 2:
        raise WrongValue(f"points must be two at least, with two coordinates or more, got shape {points.shape}")
    if np.abs(points).max() > FARTHEST:
        raise WrongValue(f"points must lie within ±{FARTHEST:g}, got {np.abs(points).max():g}")
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
            raise WrongValue(f"labels must have one for each of the {len(z)} points in {name} of client {client!r}")
        if z.shape[1] < 2:
            raise WrongValue(f"{name} must have two coordinates or more, got shape {z.shape} of client {client!r}")
    if not points:
        raise WrongValue(f"{name} must hold the points of one client at least, got none")
    found = np.unique(np.concatenate([labels[client] for client in points])).tolist()
    classes = found if classes is None else checks.sequence("classes", classes)
    return points, labels, [checks.integer("classes", c, 0) for c in classes]


def _of_classes(anchors: Any, classes: Sequence[int]) -> np.ndarray:
    """Anchors, of which those of these classes are drawn; the others may be NaN."""
    anchors = checks.floats("anchors", anchors, 2, gaps=True)
    if max(classes, default=-1) >= len(anchors) or anchors.shape[1] < 2 or not np.isfinite(anchors[classes]).all():
        raise WrongValue(f"anchors must be finite points, one for each of the classes {classes}, got {anchors.shape}")
    return anchors


def availability(
    federation: Federation, names: Mapping[str, str] | None = None, ax: Axes | None = None, title: str = ""
) -> Axes:
    """Who has which columns: a row per column, a cell per client with the share of its rows that have a value.

    Columns that most clients have come first. A share in brackets is that of a column which counts as absent there.

    Parameters
    ----------
    federation : Federation
        Of tables, or of named features.
    names : dict of str to str, optional
        What columns are called, beside their names.
    ax : Axes, optional
        By default new ones, as large as the table.
    title : str

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Where features have no names.
    """
    checks.instance("federation", federation, Federation)
    told = checks.mapping("names", {} if names is None else names)
    held = columns_of_each(federation)
    present = federation.info.get("present") or {who: dict.fromkeys(own, 1.0) for who, own in held.items()}
    table = 100 * pd.DataFrame(present).fillna(0.0)[[client.name for client in federation]]
    table = table.loc[table.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    n, m = table.shape
    ax = _axes(ax, figsize=(1.8 + 1.1 * m, 0.8 + 0.34 * n))
    texts = [[f"{x:.0f}" if c in held[who] else f"({x:.0f})" for who, x in row.items()] for c, row in table.iterrows()]
    shaded(ax, (table / 100).rename({c: f"{words} ({c})" for c, words in told.items() if words != c}), texts)
    ax.set(title=title, xlabel="share of rows with a value (%)")
    return ax


def shaded(ax: Axes, shades: pd.DataFrame, texts: Sequence[Sequence[str]]) -> None:
    """A table whose cells are the darker the nearer to 1, each with its text; columns are named above."""
    ax.imshow(shades, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
    for (i, j), shade in np.ndenumerate(shades):
        if texts[i][j]:
            colour = "white" if shade > 0.85 else "black"
            ax.text(j, i, texts[i][j], ha="center", va="center", color=colour, fontsize=11)
    ax.set_xticks(range(shades.shape[1]), list(map(str, shades.columns)))
    ax.set_yticks(range(len(shades)), list(map(str, shades.index)))
    ax.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def clients_and_classes(
    flat: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    anchors: np.ndarray | None = None,
    classes: Sequence[int] | None = None,
    class_names: Mapping[int, str] | None = None,
    ax: Axes | None = None,
    title: str = "",
    legend: bool = True,
) -> Axes:
    """Points of several clients in the plane: the colour says the class, the marker the client, a star the anchor.

    Parameters
    ----------
    flat : dict of str to ndarray, shape (n_i, 2)
        Points by client.
    labels : dict of str to ndarray of int, shape (n_i,)
        Class of each point.
    anchors : ndarray, shape (C, 2), optional
        Anchor means in the same plane.
    classes : sequence of int, optional
        Classes to draw; by default all that occur.
    class_names : dict of int to str, optional
        For the legend; by default ``class 0`` and so on.
    ax : Axes, optional
        By default new ones.
    title : str
    legend : bool
        Whether to draw one, beside the axes.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        For points without labels or with fewer than two coordinates, and for a class drawn whose anchor is missing.
    """
    flat, labels, classes = _labelled("flat", flat, labels, classes)
    if anchors is not None:
        anchors = _of_classes(anchors, classes)
    checks.flag("legend", legend)
    names = checks.mapping("class_names", {} if class_names is None else class_names)
    ax = _axes(ax)
    colour = {c: COLOURS[i % len(COLOURS)] for i, c in enumerate(classes)}
    for (client, xy), marker in zip(flat.items(), itertools.cycle(MARKERS), strict=False):
        for c in classes:
            x, y = xy[labels[client] == c, :2].T
            ax.scatter(x, y, s=18, marker=marker, color=colour[c], alpha=0.65, lw=0)
    if anchors is not None:
        for c in classes:
            star: Any = {"marker": "*", "color": colour[c], "edgecolor": "black", "linewidth": 1.2, "zorder": 5}
            ax.scatter(anchors[c, 0], anchors[c, 1], s=260, **star)
    ax.set(xticks=[], yticks=[], title=title)
    ax.grid(False)
    if legend:
        shown: list[dict[str, Any]] = [
            {"color": colour[c], "marker": "o", "label": names.get(c, f"class {c}")} for c in classes
        ]
        if len(flat) <= len(MARKERS):
            shown += [{"color": "grey", "marker": m, "label": client} for client, m in zip(flat, MARKERS, strict=False)]
        if anchors is not None:
            shown += [{"color": "white", "marker": "*", "markeredgecolor": "black", "ms": 13, "label": "anchor mean"}]
        handles = [Line2D([], [], ls="", **look) for look in shown]
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=10)
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
        Class of each point.
    anchors : ndarray, shape (C, k), optional
        Anchor means. Only those of `classes` take part in the projection.
    how, seed, options
        As for `project`.
    ax : Axes, optional
        By default new ones.
    **drawing
        As for `clients_and_classes`.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        As `project` and `clients_and_classes` do.
    """
    points, labels, classes = _labelled("points", points, labels, drawing.get("classes"))
    if anchors is not None:
        anchors = _of_classes(anchors, classes)
    checks.mapping("options", {} if options is None else options)
    drawn = {client: np.isin(labels[client], classes) for client in points}
    parts = [z[drawn[client]] for client, z in points.items()]
    flat = project(
        np.concatenate(parts if anchors is None else [*parts, anchors[classes]]), how, seed, **(options or {})
    )
    *by_client, stars = np.split(flat, np.cumsum([len(part) for part in parts]))
    spots = None
    if anchors is not None:
        spots = np.full((len(anchors), 2), np.nan)
        spots[classes] = stars
    found = dict(zip(points, by_client, strict=True))
    kept = {client: labels[client][rows] for client, rows in drawn.items()}
    return clients_and_classes(found, kept, spots, ax=ax, **{**drawing, "classes": classes})


def differences(
    rows: pd.DataFrame, ax: Axes | None = None, title: str = "", xlabel: str = "difference (points)"
) -> Axes:
    """Paired differences with their 95 % intervals, one line each, and zero marked.

    Parameters
    ----------
    rows : DataFrame
        Indexed by what is compared; columns ``mean``, ``low``, ``high``. An interval that excludes zero is filled.
    ax : Axes, optional
        By default new ones.
    title, xlabel : str

    Returns
    -------
    Axes

    Raises
    ------
    KeyError
        For a table that lacks one of the columns.
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
