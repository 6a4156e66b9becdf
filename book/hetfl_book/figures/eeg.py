"""Figures of the EEG chapters: heads, traces, covariance matrices, the cone of 2 × 2 covariances.

Like `hetfl_core.plots` in style. Heads are drawn by MNE, which is imported only when one is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d import Axes3D
from numpy.typing import ArrayLike, NDArray

from hetfl_book.figures.intervals import line_style
from hetfl_book.figures.transport import near
from hetfl_core import checks
from hetfl_core.datasets.recordings import standard_montage
from hetfl_core.errors import WrongValue
from hetfl_core.plots import COLOURS, FARTHEST, MARKERS, _axes

Array = NDArray[np.float64]


def head(channels: Sequence[str], rate: float = 160.0) -> Any:
    """Electrodes in their places of the 10–05 system.

    Parameters
    ----------
    channels : sequence of str
        Names such as ``"C3"``.
    rate : float
        Samples a second, Hz.

    Returns
    -------
    mne.Info

    Raises
    ------
    ValueError
        Naming the electrodes that the 10–05 system does not have.
    """
    channels = checks.names("channels", channels)
    if not channels or len(set(channels)) < len(channels):
        raise WrongValue(f"channels must be different names, one at least, got {checks.shown(channels)}")
    rate = checks.number("rate", rate, above=0)
    import mne

    montage = standard_montage()
    unknown = [name for name in channels if name not in montage.ch_names]
    if unknown:
        raise WrongValue(f"channels: expected names of the 10–05 system, got {unknown}")
    info = mne.create_info(list(channels), rate, "eeg")
    with mne.utils.use_log_level("ERROR"):
        return info.set_montage(montage)


def _grid(argument: str, count: int, columns: int, side: float) -> tuple[Figure, list[Axes]]:
    """A figure as wide as a phone's, and its first `count` axes, which are as many as what is drawn."""
    checks.integer("columns", columns, 1, 12)
    if not count:
        raise WrongValue(f"{argument} must have one entry at least, got none")
    rows = -(-count // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(6.4, side * rows), squeeze=False)
    for ax in axes.flat[count:]:
        ax.remove()
    return fig, list(axes.flat[:count])


def traces(
    data: ArrayLike,
    times: ArrayLike,
    names: Sequence[str],
    step: float,
    marks: Mapping[float, str] | None = None,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Channels below each other, as on the screen of a recording.

    Parameters
    ----------
    data : array, shape (q, samples)
        µV.
    times : array, shape (samples,)
        s.
    names : sequence of str, length q
        From top to bottom.
    step : float
        Distance between two channels, µV; a bar shows it.
    marks : dict of float to str, optional
        What happened when, s.
    """
    names, data, times = checks.names("names", names), near("data", data, 2), near("times", times, 1)
    step = checks.number("step", step, above=0, most=FARTHEST)
    for when in checks.mapping("marks", {} if marks is None else marks):
        checks.number("marks", when)
    if data.shape != (len(names), len(times)):
        raise WrongValue(f"data: expected shape {(len(names), len(times))} from names and times, got {data.shape}")
    ax = _axes(ax, figsize=(6.4, 0.55 * len(names) + 1.6))
    place = -step * np.arange(len(names))
    for row, y in zip(data, place, strict=True):
        ax.plot(times, row + y, color="black", lw=0.8)
    for when, what in (marks or {}).items():
        ax.axvline(when, color=COLOURS[1], lw=1.5)
        ax.text(when, step, f" {what}", color=COLOURS[1], fontsize=11, va="bottom")
    end = times[-1] + 0.015 * (times[-1] - times[0])
    ax.plot([end, end], place[-1] + np.array([0, step]), color=COLOURS[0], lw=4, clip_on=False)
    ax.text(end, place[-1] + step / 2, f"  {step:g} µV", color=COLOURS[0], va="center")
    ax.set_yticks(place, list(names))
    ax.set(xlabel="time (s)", xlim=(times[0], end), ylim=(place[-1] - step, 1.9 * step))
    ax.set_title(title, pad=10)
    ax.grid(axis="y", visible=False)
    return ax


def topographies(values: Mapping[str, ArrayLike], info: Any, limit: float, label: str, columns: int = 2) -> Figure:
    """MNE's maps of one number per electrode, side by side on one scale.

    Parameters
    ----------
    values : dict of str to array, shape (q,)
        By title.
    info : mne.Info
        Of the q electrodes, e.g. `head`.
    limit : float
        The scale goes from −limit to limit.
    label : str
        What the colours mean, with the unit.
    """
    import mne

    checks.instance("info", info, mne.Info)
    limit = checks.number("limit", limit, above=0)
    checks.instance("label", label, str)
    found = {title: checks.floats("values", each, 1) for title, each in checks.mapping("values", values).items()}
    for title, each in found.items():
        if len(each) != len(info.ch_names):
            raise WrongValue(f"values must be {len(info.ch_names)}, as electrodes, got {len(each)} of {title!r}")
    fig, axes = _grid("values", len(found), columns, 3.3)
    for ax, (title, each) in zip(axes, found.items(), strict=True):
        look: dict[str, Any] = {"cmap": "PuOr", "vlim": (-limit, limit), "show": False, "contours": 4}
        image, _ = mne.viz.plot_topomap(each, info, axes=ax, **look)
        ax.set_title(title, loc="center")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=30, label=label, extend="both")
    return fig


TICKS = ("Fpz", "Fz", "Cz", "Pz", "Oz")
"""Electrodes that are named beside a matrix of more than six."""


def matrices(
    given: Mapping[str, ArrayLike], channels: Sequence[str], label: str, columns: int = 2, limit: float | None = None
) -> Figure:
    """Symmetric matrices as pictures on one scale that is symmetric about zero.

    Parameters
    ----------
    given : dict of str to array, shape (q, q)
        By title.
    channels : sequence of str, length q
        Names of rows and columns; of more than six only `TICKS` are written.
    label : str
        What the colours mean, with the unit.
    limit : float, optional
        End of the scale; by default the largest entry.
    """
    found = {title: checks.floats("given", each, 2) for title, each in checks.mapping("given", given).items()}
    channels = checks.names("channels", channels)
    checks.instance("label", label, str)
    for title, each in found.items():
        if each.shape != (len(channels),) * 2:
            raise WrongValue(
                f"given: expected matrices of as many rows as channels, {len(channels)}, got {each.shape} of {title!r}"
            )
    fig, axes = _grid("given", len(found), columns, 4.3)
    limit = max(float(np.abs(each).max()) for each in found.values()) if limit is None else limit
    limit = checks.number("limit", limit, 0)
    shown = [i for i, name in enumerate(channels) if name in TICKS or len(channels) <= 6]
    for ax, (title, each) in zip(axes, found.items(), strict=True):
        image = ax.imshow(each, cmap="PuOr", vmin=-limit, vmax=limit)
        ax.set_xticks(shown, [channels[i] for i in shown], rotation=90)
        ax.set_yticks(shown, [channels[i] for i in shown])
        ax.grid(False)
        ax.set_title(title, loc="center")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=30, label=label)
    return fig


# --- the cone -------------------------------------------------------------------------------------------------------


def upright(S: ArrayLike) -> Array:
    r"""Places of 2 × 2 symmetric matrices in the space in which the positive definite ones are an upright cone.

    With :math:`v = (S_{11} - S_{22})/\sqrt2`, :math:`w = \sqrt2\, S_{12}` and :math:`u = (S_{11} + S_{22})/\sqrt2`,
    :math:`u^2 - v^2 - w^2 = 2 \det S` and :math:`u^2 + v^2 + w^2 = \lVert S \rVert_F^2`.

    Parameters
    ----------
    S : array, shape (..., 2, 2)

    Returns
    -------
    array, shape (..., 3)
        (v, w, u), u pointing up.
    """
    S = checks.floats("S", S)
    if S.shape[-2:] != (2, 2):
        raise WrongValue(f"S must be matrices of shape (..., 2, 2), got shape {S.shape}")
    a, b, c = S[..., 0, 0], S[..., 0, 1], S[..., 1, 1]
    return np.stack([(a - c) / np.sqrt(2), np.sqrt(2) * b, (a + c) / np.sqrt(2)], -1)


def cone(top: float, ax: Any = None, bowl: bool = False, title: str = "") -> Any:
    """The cone of 2 × 2 covariance matrices, up to u = `top`; with `bowl`, those of determinant 1 inside.

    Parameters
    ----------
    top : float
    ax : Axes3D, optional
    bowl : bool

    Returns
    -------
    Axes3D
        Of places as `upright` has them.
    """
    top = checks.number("top", top, above=0, most=FARTHEST)
    checks.flag("bowl", bowl)
    ax = plt.figure(figsize=(6.4, 6.2)).add_subplot(projection="3d") if ax is None else ax
    checks.instance("ax", ax, Axes3D)
    angle, height = np.meshgrid(np.linspace(0, 2 * np.pi, 73), np.linspace(0, top, 2))
    surface(ax, height, angle, height, COLOURS[5], 0.16)
    ax.plot(top * np.cos(angle[0]), top * np.sin(angle[0]), top, color=COLOURS[5], lw=1.5)
    if bowl:
        angle, u = np.meshgrid(np.linspace(0, 2 * np.pi, 73), np.sqrt(2) * np.cosh(np.linspace(0, 2, 12)))
        u = np.minimum(u, top)
        surface(ax, np.sqrt(u**2 - 2), angle, u, COLOURS[4], 0.18)
    ax.set(xlabel="$v = (S_{11}-S_{22})/\\sqrt{2}$", ylabel="$w = \\sqrt{2}\\,S_{12}$", title=title)
    ax.set_zlabel("$u = (S_{11}+S_{22})/\\sqrt{2}$")
    ax.set_box_aspect((1, 1, 0.8))
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
    ax.view_init(elev=14, azim=-72)
    return ax


def surface(ax: Any, radius: Array, angle: Array, height: Array, colour: str, alpha: float) -> None:
    """A surface of revolution around the vertical axis."""
    look: dict[str, Any] = {"color": colour, "alpha": alpha, "linewidth": 0, "shade": False}
    ax.plot_surface(radius * np.cos(angle), radius * np.sin(angle), height, **look)


def along(ax: Any, path: ArrayLike, label: str, colour: str, style: str = "-") -> None:
    """A path of 2 × 2 matrices, shape (n, 2, 2), in the cone."""
    path = checks.floats("path", path, 3)
    if path.shape[1:] != (2, 2):
        raise WrongValue(f"path must be matrices of shape (n, 2, 2), got shape {path.shape}")
    if not is_color_like(colour):
        raise WrongValue(f"colour must be one of Matplotlib's, got {checks.shown(colour)}")
    checks.choice("style", style, ("-", "--", ":", "-."))
    ax.plot(*upright(path).T, style, color=colour, lw=3, label=label)


def points(ax: Any, S: ArrayLike, label: str, i: int, size: float = 26) -> None:
    """2 × 2 matrices, shape (n, 2, 2), as dots in the cone, in the i-th colour and marker of the house."""
    checks.integer("i", i, 0, len(COLOURS) - 1)
    size = checks.number("size", size, above=0)
    S = checks.floats("S", S, 3)
    look: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i], "s": size, "label": label, "depthshade": False}
    ax.scatter(*upright(S).T, **look)


# --- learning curves ------------------------------------------------------------------------------------------------

MOST_BANDS = 5
"""Lines of a figure of learning curves up to which intervals are drawn as bands; more would hide each other."""


def learning_curves(
    rows: Any, methods: Sequence[str], dashed: Sequence[str] = (), ax: Axes | None = None, title: str = ""
) -> Axes:
    """Accuracy against the number of training trials, a line per method; with few lines, its interval over clients.

    Parameters
    ----------
    rows : DataFrame
        From `hetfl_book.ledger.comparison.means` with ``by=["n"]``: columns ``n`` (a number, or ``"all"``), ``method``,
        ``mean``, ``low``, ``high``, in %.
    methods : sequence of str
        Those to draw, as far as there are rows.
    dashed : sequence of str
        Those of them with a dashed line.
    """
    checks.frame("rows", rows, "n", "method", "mean", "low", "high")
    methods, dashed = checks.names("methods", methods), checks.names("dashed", dashed)
    ax = _axes(ax, figsize=(6.4, 5.0))
    places = sorted(set(rows["n"]), key=lambda n: np.inf if n == "all" else float(n))
    drawn = [method for method in methods if method in set(rows["method"])]
    for i, method in enumerate(drawn):
        mine = rows[rows["method"] == method]
        x = np.array([places.index(n) for n in mine["n"]])
        order = np.argsort(x)
        mean, low, high = (mine[name].to_numpy(float)[order] for name in ("mean", "low", "high"))
        ax.plot(x[order], mean, "--" if method in dashed else "-", **line_style(i), label=method)
        if len(drawn) <= MOST_BANDS:
            ax.fill_between(x[order], low, high, color=line_style(i)["color"], alpha=0.08, lw=0)
    ax.set_xticks(range(len(places)), [str(n) for n in places])
    ax.set(xlabel="training trials of a client (at most)", ylabel="test accuracy (%)", title=title)
    ax.legend(fontsize=10, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return ax
