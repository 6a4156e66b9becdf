"""The map of personalised methods: what clients share, and what is trained in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from hetfl_core import checks
from hetfl_core.engine import Simulator
from hetfl_core.federation import Federation
from hetfl_core.methods import Method
from hetfl_core.plots import COLOURS

COLUMNS = {"phi": "body", "beta": "head", "own": "second\nmodel", "means": "class\nmeans"}
"""What the map tells apart, by the first part of a tensor's name."""

MEANS = ("mean", "centroid", "joint")
"""Under what names methods send what they know of a class's features."""

LOOKS: Mapping[str, Mapping[str, Any]] = {
    "same": {"fc": (COLOURS[1], 0.45)},
    "made": {"fc": "white", "hatch": "///"},
    "own": {"fc": "white"},
}
WORDS = {"same": "same for all", "made": "made for each", "own": "its own"}


class Box(NamedTuple):
    """One part of a method's model.

    Parameters
    ----------
    kind : {"same", "made", "own"}
        Whether the server sends it to all clients alike, to each another one, or not at all.
    order : str
        Which steps of a round train it, and a star where the client trains it once more at the end: ``"1*"``.
    """

    kind: Literal["same", "made", "own"]
    order: str


def boxes(method: Method, federation: Federation) -> dict[str, Box]:
    """What a method does with each part, seen from what its server sends after a round, and from its stages.

    Parameters
    ----------
    method : Method
    federation : Federation
        Small, since a round is run on it.

    Returns
    -------
    dict of str to Box
        By a key of `COLUMNS`, those that the method has.
    """
    simulator = Simulator(federation, method, device="cpu")
    state, _ = simulator.round(simulator.initial(), range(len(federation)))
    sent = [{name.removeprefix("head/"): t for name, t in one.items()} for one in simulator.downloads(state)]
    steps, final = (method.stages(1, role) for role in ("round", "final"))
    found = {}
    for part in COLUMNS:
        names = [name for name in sent[0] if name.startswith(MEANS if part == "means" else f"{part}.")]
        trained = [str(i + 1) for i, stage in enumerate(steps) if part in stage.train]
        if names or trained:
            alike = all(one[name].equal(sent[0][name]) for one in sent for name in names)
            star = "*" * any(part in stage.train for stage in final)
            found[part] = Box("same" if names and alike else "made" if names else "own", ", ".join(trained) + star)
    return found


def chart(families: Mapping[str, Mapping[str, Mapping[str, Box]]]) -> Axes:
    """The map: a row for each method, with its boxes, under the words of its family.

    Parameters
    ----------
    families : dict of str to dict of str to dict of str to Box
        From the top, by what the family does and by method; boxes as from `boxes`.

    Returns
    -------
    Axes
    """
    every = {words: checks.mapping("families", one) for words, one in checks.mapping("families", families).items()}
    lines = sum(1 + len(family) for family in every.values())
    ax = plt.subplots(figsize=(4.8, 0.9 + 0.27 * lines))[1]
    y = 0.0
    for words, family in every.items():
        ax.text(-2.85, -y, words, va="center", weight="bold")
        y += 1
        for name, found in family.items():
            ax.text(-2.85, -y, name, va="center")
            for part, box in found.items():
                _draw(ax, [*COLUMNS].index(part), -y, box)
            y += 1
    for x, words in enumerate(COLUMNS.values()):
        ax.text(x, 0.6, words, ha="center", va="bottom", weight="bold", linespacing=0.95)
    for left, kind in zip((-2.8, -0.35, 2.1), WORDS, strict=True):
        ax.add_patch(plt.Rectangle((left, -y - 0.45), 0.4, 0.6, ec="black", lw=1, **LOOKS[kind]))
        ax.text(left + 0.5, -y - 0.15, WORDS[kind], va="center")
    ax.set(xlim=(-2.9, 3.5), ylim=(-y - 0.6, 2.2))
    ax.axis("off")
    return ax


def _draw(ax: Axes, x: float, y: float, box: Box) -> None:
    ax.add_patch(plt.Rectangle((x - 0.42, y - 0.41), 0.84, 0.82, ec="black", lw=1, **LOOKS[box.kind]))
    behind = {"fc": "white", "ec": "none", "pad": 1} if box.kind == "made" and box.order else None
    ax.text(x, y - 0.04, box.order, ha="center", va="center", bbox=behind)
