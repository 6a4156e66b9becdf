"""Figures that a reader steers: sliders over a grid of stored results, and one SVG that a few lines of script move.

Nothing is computed in the browser and nothing comes from elsewhere. A drawing is a list of `Mark`: an element of SVG,
some of whose attributes have a value for each combination of the sliders' stops. `results` draws results on a scale;
another drawing (clouds around an anchor, say) is another list of marks for `Steered`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.plots import COLOURS

WIDTH = 360
"""Units of a drawing from left to right: about as many pixels as a phone has for it, so that 13 units can be read."""

LARGEST = 400_000
"""Bytes of HTML that one figure may have."""

STEER = (
    "const f=this.closest('figure'),d=JSON.parse(f.dataset.grid),o=f.querySelectorAll('output');let k=0;"
    "f.querySelectorAll('input').forEach((r,i)=>{const s=d.stops[i];k=k*s.length+ +r.value;"
    "o[i].textContent=s[r.value];r.setAttribute('aria-valuetext',s[r.value])});"
    "f.querySelectorAll('.steers').forEach((e,i)=>{for(const[a,v]of Object.entries(d.moves[i]))"
    "if(a=='text')e.textContent=v[k];else e.setAttribute(a,v[k])})"
)
SLIDER = "display:block;width:100%;height:44px;margin:0;cursor:pointer"
"""Tall enough for a thumb."""


Sliders = Mapping[str, Sequence[Any]]
"""The stops of each slider, by its name."""


@dataclass(frozen=True)
class Mark:
    """An element of the drawing.

    Attributes
    ----------
    tag : str
        Such as ``"circle"``.
    fixed : dict of str to str or number
        Attributes that stay; ``"text"`` is what stands in the element.
    moving : dict of str to sequence
        Attributes, or ``"text"``, with a value for each combination of stops: the last slider's run fastest.
    """

    tag: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    moving: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def svg(self, k: int, inside: str = "") -> str:
        """The element at combination k, with what else stands inside it."""
        told = {**self.fixed, **{name: values[k] for name, values in self.moving.items()}}
        text = html.escape(str(told.pop("text", ""))) + inside
        told |= {"class": "steers"} if self.moving else {}
        return f"<{self.tag}{attributes(told)}>{text}</{self.tag}>"


def attributes(told: Mapping[str, Any]) -> str:
    """Attributes as they stand in a tag."""
    return "".join(f' {name}="{html.escape(str(value))}"' for name, value in told.items())


def stops_of(sliders: Sliders) -> dict[str, list[str]]:
    """The stops of each slider, as they are written beside it."""
    found = {name: checks.sequence("sliders", stops) for name, stops in checks.mapping("sliders", sliders).items()}
    if min(map(len, found.values()), default=0) < 2:
        raise WrongValue(f"sliders must be one or more of at least two stops, got {checks.shown(sliders)}")
    return {name: [f"{s:g}" if isinstance(s, float) else str(s) for s in stops] for name, stops in found.items()}


class Steered:
    """Sliders and a drawing that follows them.

    Attributes
    ----------
    sliders : dict of str to list of str
        The stops of each slider, as they are written beside it.
    marks : list of Mark
    height : int
        Of the drawing, whose width is `WIDTH`.
    alt : str
        What is to be seen, for those who do not see it.
    said : list of str
        What the drawing says at each combination, for them.
    start : list of int
        Where each slider stands at first, and on paper.

    Raises
    ------
    ValueError
        If there is no slider, one has fewer than two stops, a mark has not a value for each combination, `start` is no
        stop of each slider, or the whole is larger than `LARGEST`.
    """

    def __init__(
        self, sliders: Sliders, marks: Sequence[Mark], height: int, alt: str, said: Sequence[str], start: Any = None
    ) -> None:
        self.sliders = stops_of(sliders)
        sizes = [len(stops) for stops in self.sliders.values()]
        checks.nonempty_str("alt", alt)
        places = checks.sequence("start", [0] * len(sizes) if start is None else start)
        self.start = [checks.integer("start", i) for i in places]
        if len(self.start) != len(sizes) or not all(0 <= i < n for i, n in zip(self.start, sizes, strict=True)):
            raise WrongValue(f"start must be a place among the stops of each slider, {sizes} of them, got {self.start}")
        for name, values in [("said", said), *(pair for mark in marks for pair in mark.moving.items())]:
            if len(values) != prod(sizes):
                raise WrongValue(f"{name} must have a value for each of {prod(sizes)} combinations, got {len(values)}")
        self.marks, self.height, self.alt, self.said = list(marks), height, alt, list(said)
        if (size := len(self.html())) > LARGEST:
            raise WrongValue(f"the figure has {size} bytes, more than {LARGEST}: fewer stops, or rounder numbers")

    def svg(self) -> str:
        """The drawing where the sliders stand at first."""
        k = int(np.ravel_multi_index(self.start, [len(stops) for stops in self.sliders.values()]))
        box = {"viewBox": f"0 0 {WIDTH} {self.height}", "role": "img", "font-family": "sans-serif", "font-size": 13}
        whole = Mark("svg", {"xmlns": "http://www.w3.org/2000/svg", **box}, {"aria-label": self._labels()})
        return whole.svg(k, "".join(mark.svg(k) for mark in self.marks))

    def _labels(self) -> list[str]:
        return [f"{self.alt} {said}" for said in self.said]

    def html(self) -> str:
        """The figure for a browser; without scripts it shows where the sliders stand at first."""
        moves = [{"aria-label": self._labels()}, *(dict(mark.moving) for mark in self.marks if mark.moving)]
        grid = {"stops": list(self.sliders.values()), "moves": moves}
        data = html.escape(json.dumps(grid, ensure_ascii=False, separators=(",", ":")))
        controls = ""
        for (name, stops), at in zip(self.sliders.items(), self.start, strict=True):
            ends = {"type": "range", "min": 0, "max": len(stops) - 1, "step": 1, "value": at, "oninput": STEER}
            slider = attributes({**ends, "aria-label": name, "aria-valuetext": stops[at], "style": SLIDER})
            shown = f'{html.escape(name)}: <output style="font-weight:600">{html.escape(stops[at])}</output>'
            controls += f'<label style="display:block;margin-top:.3rem">{shown}<input{slider}></label>'
        look = "margin:0 auto;max-width:480px;text-align:left;padding:8px;border-radius:6px;background:#fff;color:#222"
        return f'<figure class="steered" style="{look}" data-grid="{data}">{self.svg()}{controls}</figure>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """HTML for browsers, the drawing for paper, words for the rest."""
        return {"text/html": self.html(), "image/svg+xml": self.svg(), "text/plain": self.alt}


def results(
    sliders: Sliders, found: Mapping[str, ArrayLike], axis: str, limits: Sequence[float], alt: str, start: Any = None
) -> Steered:
    """Results of several methods on one scale: each run as a small dot, their mean as a large one with its number.

    Parameters
    ----------
    sliders : dict of str to sequence
        The stops of each slider.
    found : dict of str to array, shape (stops of the first slider, …, runs)
        By the name that stands above a method's line.
    axis : str
        What the scale measures, with its unit.
    limits : tuple of two floats
        Ends of the scale, in which all results lie.
    alt : str
        What is to be seen.
    start : sequence of int, optional
        The stop of each slider at first; the first one unless told.

    Returns
    -------
    Steered

    Raises
    ------
    ValueError
        If an array has another shape than the sliders, or holds a number beyond the limits.
    """
    ends = checks.floats("limits", limits, 1).tolist()
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise WrongValue(f"limits must be two numbers that rise, got {checks.shown(limits)}")
    checks.nonempty_str("axis", axis)
    (low, high), sizes = ends, tuple(map(len, stops_of(sliders).values()))
    left, right, row = 14, WIDTH - 14, 54
    height = row * len(checks.mapping("found", found)) + 50

    def place(value: Any) -> Any:
        return np.round(left + (np.asarray(value) - low) / (high - low) * (right - left), 1)

    marks = []
    for at in np.linspace(low, high, 6):
        line = {"x1": place(at), "x2": place(at), "y1": 8, "y2": height - 42, "stroke": "#ddd"}
        number = {"x": place(at), "y": height - 26, "text-anchor": "middle", "fill": "#444", "text": f"{at:g}"}
        marks += [Mark("line", line), Mark("text", number)]
    marks.append(Mark("text", {"x": WIDTH / 2, "y": height - 7, "text-anchor": "middle", "fill": "#222", "text": axis}))
    said = [[] for _ in range(prod(sizes))]  # type: list[list[str]]
    for i, (name, values) in enumerate(found.items()):
        each = checks.floats(f"found[{name!r}]", values)
        if each.shape[:-1] != sizes or each.min() < low or each.max() > high:
            raise WrongValue(
                f"found[{name!r}] must have the shape {(*sizes, 'runs')} and values in {low:g} … {high:g}, got shape "
                f"{each.shape} and {each.min():g} … {each.max():g}"
            )
        rows, colour, y = each.reshape(prod(sizes), -1), COLOURS[i], row * i + 40
        means = [f"{mean:.1f}" for mean in rows.mean(1)]
        dots = ["".join(f"M{x:g} {y}h0" for x in place(runs)) for runs in rows]
        small = {"stroke": colour, "stroke-width": 6, "stroke-linecap": "round", "opacity": 0.35, "fill": "none"}
        large = {"cy": y, "r": 8, "fill": colour, "stroke": "#fff", "stroke-width": 1.5}
        marks += [
            Mark("text", {"x": left, "y": y - 16, "fill": "#222", "text": name}),
            Mark("text", {"x": right, "y": y - 16, "text-anchor": "end", "font-weight": 600}, {"text": means}),
            Mark("line", {"x1": left, "x2": right, "y1": y, "y2": y, "stroke": "#bbb"}),
            Mark("path", small, {"d": dots}),
            Mark("circle", large, {"cx": [f"{x:g}" for x in place(rows.mean(1))]}),
        ]
        for k, mean in enumerate(means):
            said[k].append(f"{name} {mean}")
    return Steered(sliders, marks, height, alt, [", ".join(words) + "." for words in said], start)
