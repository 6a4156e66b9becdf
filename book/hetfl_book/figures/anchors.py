"""Clouds and their anchors: the pictures of the chapter on FLIC.

What if an anchor stood elsewhere? ``python -m hetfl_book.grids anchors`` aligns two hospitals' maps for many places of
one anchor and stores where they bring test patients; `draw` is the figure in which to drag it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hetfl_book.figures.steered import WIDTH, Mark, Steered
from hetfl_core import checks
from hetfl_core.engine.checkpoint import State
from hetfl_core.engine.evaluation import balanced_accuracy
from hetfl_core.engine.simulator import Simulator
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.methods import FLIC
from hetfl_core.methods.base import Method, Params
from hetfl_core.networks import MLP, Model
from hetfl_core.plots import COLOURS, MARKERS

HEALTHY = (0.0, 0.0)
"""Where the anchor of the healthy stands."""

PLACES = (-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0)
"""Where that of the ill can stand, to the right and upwards."""

MAP = FLIC(model=Model(MLP((16,), 2)), lr=0.004, pretrain_epochs=100, pretrain_batch=32)
"""The maps: into the plane, and aligned to the anchors by pre-training alone."""

SHOWN = 15
"""Test patients of each class of a hospital that are drawn, the first ones."""

PAPER = {"fc": "white", "ec": "none", "pad": 0.5}
"""Behind words that lie on a picture."""

# --- pictures that stand ----------------------------------------------------------------------------------------------


def around(z: Any, labels: Any, anchors: Any, limits: tuple[float, float, float, float], title: str) -> Figure:
    """One client's samples in the plane, and the anchors as stars.

    Parameters
    ----------
    z : array_like, shape (n, 2)
        Embedded samples.
    labels : array_like of int, shape (n,)
        0 for the healthy, 1 for the ill.
    anchors : array_like, shape (2, 2)
        Their means v_c.
    limits : tuple of four floats
        Left, right, bottom and top.
    title : str

    Returns
    -------
    Figure
    """
    points, y, stars = checks.floats("z", z, 2), checks.array("labels", labels), checks.floats("anchors", anchors, 2)
    fig, ax = plt.subplots(figsize=(3.4, 3.7))
    for c, word in enumerate(("healthy", "ill")):
        ax.plot(*points[y == c].T, MARKERS[c], ms=6, color=COLOURS[c], mec="white", alpha=0.7)
        ax.plot(*stars[c], "*", ms=22, color=COLOURS[c], mec="black")
        aside = (-26 + 52 * c, 26)
        ax.annotate(word, stars[c], aside, textcoords="offset points", ha="center", fontsize=13, bbox=PAPER)
    left, right, bottom, top = limits
    ax.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")
    ax.set_title(title, fontsize=13)
    return fig


def terms() -> Figure:
    """The three terms of FLIC's objective (Eq. (3)) for one hospital, drawn with made points."""
    dots = np.random.default_rng(0).normal(size=(2, 25, 2))
    clouds = [(np.array([[0.7, 0], [0, 0.7]]), (0, 0)), (np.array([[0.7, 0.4], [0.1, 0.3]]), (2.1, -0.6))]
    fig, ax = plt.subplots(figsize=(4.6, 3.9))
    for c, (star, word) in enumerate((((0, 0), "healthy"), ((5, 2), "ill"))):
        shape, centre = clouds[c]
        ax.plot(*(dots[c] @ shape + centre).T, MARKERS[c], ms=7, color=COLOURS[c], mec="white")
        ax.add_patch(plt.Circle(star, 2, fill=False, ls="--", color=COLOURS[c]))
        ax.plot(*(dots[1 - c, :6] + star).T, "x", ms=8, mew=2.5, color=COLOURS[c])
        ax.plot(*star, "*", ms=20, color=COLOURS[c], mec="black", zorder=3)
        ax.text(star[0] - (1 - c), star[1] + 2.1, f"anchor: {word}", ha="center", bbox=PAPER)
    ax.annotate("", (4.6, 1.6), (2.4, -0.4), arrowprops={"lw": 3, "arrowstyle": "->"})
    ax.plot([2.0, 1.1], [-2.5, 3.0], ":", lw=2.5, color="black", zorder=0)
    told: dict[str, Any] = {"weight": "bold", "bbox": PAPER}
    ax.text(2.1, -2.7, "(a) the head: this border", **told)
    ax.text(3.7, 0.2, "(b) come here,\nand get as wide", va="top", **told)
    ax.text(1.1, 3.2, "(c) which side is a ×?", ha="center", va="bottom", **told)
    ax.set(xlim=(-2.6, 7.4), ylim=(-3.2, 4.6), aspect="equal")
    ax.axis("off")
    return fig


# --- an anchor that stands elsewhere ----------------------------------------------------------------------------------


def aligned(federation: Federation, method: Method, seed: int = 0, anchors: Any = None) -> tuple[list[Params], State]:
    """What the clients have after a method's pre-training, before any round.

    Parameters
    ----------
    federation, method, seed
    anchors : array_like, shape (C, k), optional
        Means v_c of the anchors, in the place of those that are drawn.

    Returns
    -------
    kept : list of dict of str to Tensor
        Each client's own parameters, in the order of the federation.
    state : State
        From before the pre-training: the server's tensors, and the clients' parameters as they were drawn.

    Raises
    ------
    ValueError
        If there is not one anchor of k numbers for each class.
    """
    simulator = Simulator(federation, method, seed=seed)
    state = simulator.initial()
    if anchors is not None:
        drawn = state.server["anchor.mean"]
        put = torch.tensor(checks.floats("anchors", anchors, 2), dtype=drawn.dtype)
        if put.shape != drawn.shape:
            raise WrongValue(f"anchors must have the shape {tuple(drawn.shape)}, got {tuple(put.shape)}")
        state = replace(state, server={**state.server, "anchor.mean": put})
    outcomes = simulator.train(state, range(len(federation)), 0, "start")
    return [outcomes[i].client_state for i in range(len(federation))], state


def embedded(
    federation: Federation, method: Method, kept: list[Params], server: Params, split: str = "train"
) -> dict[str, np.ndarray]:
    """The embedded samples φ_i(x) of every client, by name, shape (n_i, k).

    Parameters
    ----------
    federation, method
    kept : list of dict of str to Tensor
        The clients' parameters, as from `aligned`.
    server : dict of str to Tensor
    split : {"train", "test"}
    """
    checks.choice("split", split, ("train", "test"))
    if len(kept) != len(federation):
        raise WrongValue(f"kept must be of each of {len(federation)} clients, got {len(kept)}")
    dtype = next((t.dtype for own in kept for t in own.values() if t.is_floating_point()), torch.float32)
    with torch.no_grad():
        return {
            client.name: method.embed({**own, **server}, server, getattr(client, f"x_{split}").to(dtype)).numpy()
            for client, own in zip(federation, kept, strict=True)
        }


def places(federation: Federation, anchors: Any, seed: int = 0, method: FLIC = MAP) -> dict[str, NDArray[np.float64]]:
    """Where each client's map brings its test samples, after it was aligned to anchors at given places.

    Parameters
    ----------
    federation : Federation
    anchors : array_like, shape (C, k)
        Means v_c of the anchors, one for each class; k is the dimension of the method's embedding.
    seed : int
        Of first weights and batches.
    method : FLIC
        Which pre-trains.

    Returns
    -------
    dict of str to array, shape (n_test, k)
        By the names of the clients.

    Raises
    ------
    ValueError
        If there is not one anchor of k numbers for each class.
    """
    kept, state = aligned(federation, method, seed, anchors)
    found = embedded(federation, method, kept, state.server, "test")
    return {name: z.astype(np.float64) for name, z in found.items()}


def nearest(z: Any, anchors: Any) -> NDArray[np.int64]:
    """The class of the nearest anchor, of each of n places; of two as near, the first.

    Parameters
    ----------
    z : array_like, shape (n, k)
    anchors : array_like, shape (C, k)

    Returns
    -------
    array of int, shape (n,)
    """
    away = checks.floats("z", z, 2)[:, None] - checks.floats("anchors", anchors, 2)
    return np.asarray(np.square(away).sum(-1).argmin(1))


def balanced(predicted: Any, labels: Any) -> float:
    """Balanced accuracy in per cent: the mean, over classes, of how many of their members are called so."""
    said, y = checks.array("predicted", predicted), checks.array("labels", labels)
    return float(100 * balanced_accuracy(y, said))


def draw(clouds: Sequence[Sequence[dict[str, Any]]], scores: dict[str, Any], stops: Sequence[float]) -> Steered:
    """Two hospitals' patients in the plane, for each place of the anchor of the ill, which can be dragged.

    Parameters
    ----------
    clouds : nested lists
        ``clouds[i][j][hospital]``: places of healthy and of ill patients, two lists of pairs, where the anchor of the
        ill stands at ``(stops[i], stops[j])``.
    scores : dict of str to array, shape (stops, stops)
        By hospital, balanced accuracy in per cent.
    stops : sequence of float
        Places of the anchor, evenly spaced.

    Returns
    -------
    Steered

    Raises
    ------
    ValueError
        If there are not two hospitals.
    """
    if len(scores) != 2:
        raise WrongValue(f"scores must be of two hospitals, got {list(scores)}")
    side, gap, top = 172.0, WIDTH - 2 * 172.0, 44.0
    edge = 1.4 * max(stops)
    unit = side / (2 * edge)
    at = list(product(range(len(stops)), repeat=2))
    marks: list[Mark] = []
    said = [""] * len(at)
    for h, (name, found) in enumerate(scores.items()):
        left = h * (side + gap)
        x, y = (lambda v, o=left: round(o + (v + edge) * unit, 1)), (lambda v: round(top + (edge - v) * unit, 1))
        numbers = [f"{found[i][j]:.0f} % right" for i, j in at]
        marks += [
            Mark("text", {"x": left, "y": 16, "font-weight": 600, "fill": "#222", "text": name}),
            Mark("text", {"x": left, "y": 34, "fill": "#222"}, {"text": numbers}),
            Mark("rect", {"x": left, "y": top, "width": side, "height": side, "fill": "#f6f6f6"}),
        ]
        for c in range(2):
            line = {"stroke": COLOURS[c], "stroke-width": 5, "stroke-linecap": "round", "fill": "none", "opacity": 0.7}
            paths = [_dots(clouds[i][j][name][c], x, y, left, side, top) for i, j in at]
            marks.append(Mark("path", line, {"d": paths}))
        ring = {"r": round(2 * unit, 1), "fill": "none", "stroke-width": 1.5, "stroke-dasharray": "3 3"}
        moving = {"cx": [x(stops[i]) for i, _ in at], "cy": [y(stops[j]) for _, j in at]}
        word, beside = {"fill": "#222", "text-anchor": "middle", "pointer-events": "none"}, round(3.5 * unit, 1)
        still = {"cx": x(HEALTHY[0]), "cy": y(HEALTHY[1])}
        marks += [
            Mark("circle", ring | still | {"stroke": COLOURS[0]}),
            Mark("circle", {**still, "r": 5, "fill": COLOURS[0], "stroke": "#000"}),
            Mark("circle", ring | {"stroke": COLOURS[1]}, moving),
            Mark("circle", {"r": 7, "fill": COLOURS[1], "stroke": "#000"}, moving),
            Mark("text", {**word, "x": still["cx"], "y": still["cy"] + beside, "text": "healthy"}),
            Mark(
                "text",
                {**word, "text": "ill"},
                {"x": moving["cx"], "y": [round(v - 2.3 * unit, 1) for v in moving["cy"]]},
            ),
            Mark("circle", {"r": 24, "fill": "transparent", **_handle(x, y, stops)}, moving),
        ]
        said = [f"{before}{name}: {number}. " for before, number in zip(said, numbers, strict=True)]
    sliders = {"anchor of the ill, from left to right": stops, "anchor of the ill, from below to above": stops}
    alt = "Test patients of two hospitals around the anchors of the healthy and of the ill."
    middle = len(stops) // 2
    return Steered(sliders, marks, round(top + side + 4), alt, [s.strip() for s in said], [len(stops) - 1, middle])


def _dots(places: Sequence[Sequence[float]], x: Any, y: Any, left: float, side: float, top: float) -> str:
    """A path of dots, those beyond the frame at its edge."""
    within = [(min(max(x(a), left + 3), left + side - 3), min(max(y(b), top + 3), top + side - 3)) for a, b in places]
    return "".join(f"M{a:.0f} {b:.0f}h0" for a, b in within)


def _handle(x: Any, y: Any, stops: Sequence[float]) -> dict[str, str]:
    """What makes a mark one to drag: it puts both sliders to the stop that is nearest to the pointer."""
    step = x(stops[1]) - x(stops[0])
    drag = (
        "if(!event.buttons)return;const s=this.ownerSVGElement.getBoundingClientRect(),"
        f"u={WIDTH}/s.width,r=this.closest('figure').querySelectorAll('input');"
        f"r[0].value=Math.round(((event.clientX-s.left)*u-{x(stops[0])})/{step:.2f});"
        f"r[1].value=Math.round(({y(stops[0])}-(event.clientY-s.top)*u)/{step:.2f});"
        "r[0].dispatchEvent(new Event('input'))"
    )
    hold = "this.setPointerCapture(event.pointerId)"
    return {"style": "cursor:grab;touch-action:none", "onpointerdown": hold, "onpointermove": drag}
