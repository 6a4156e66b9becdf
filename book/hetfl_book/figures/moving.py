"""Figures that move: a picture for each step and a slider, in one piece of HTML without anything from elsewhere."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from hetfl_book.figures.panels import ROW, SHARPER, png, tag
from hetfl_core import checks
from hetfl_core.errors import WrongValue

LARGEST = 1_500_000
"""Bytes of HTML that one figure may have; a page has to be read on a phone, too."""

SHOW = (
    "const f=this.closest('figure'),s=f.querySelectorAll('.step');"
    "s.forEach((one,i)=>{one.hidden=i!=this.value});"
    "f.querySelector('output').textContent=s[this.value].dataset.label"
)
PLAY = (
    "const f=this.closest('figure'),r=f.querySelector('input'),b=f.querySelector('button'),"
    "stop=()=>{clearInterval(f.clock);f.clock=0;b.textContent='play'},"
    "go=k=>{r.value=k;r.dispatchEvent(new Event('input'))};"
    "if(f.clock){stop()}else{b.textContent='pause';if(r.value==r.max)go(0);"
    "f.clock=setInterval(()=>{go(+r.value+1);if(r.value==r.max)stop()},700)}"
)
SEEN = (
    "const f=this.closest('figure');this.onload=null;"
    "if(!matchMedia('(prefers-reduced-motion: reduce)').matches)"
    "new IntersectionObserver((e,o)=>{if(e.some(x=>x.isIntersecting)){o.disconnect();"
    "if(!f.clock)f.querySelector('button').click()}},{threshold:.6}).observe(f)"
)
"""Of the first picture, when it is there: play once when most of the figure is in view, but for who wants no motion."""


HOLD = "const b=this.closest('figure').querySelector('button');if(this.closest('figure').clock)b.click()"
"""Of the slider: a hand on it ends the film."""

CONTROL = "display:flex;flex-wrap:wrap;align-items:center;gap:4px 12px"
SLIDER = "flex:1 1 240px;min-width:0;height:44px;margin:0"
BUTTON = "min-width:5em;min-height:44px"
"""As large as a thumb."""


class Moving:
    """Pictures of one thing at several steps: a slider in a browser, one of them on paper.

    Attributes
    ----------
    frames : list of list of bytes
        PNG files, one or more a step: they stand side by side where there is room, else one above the other.
    labels : list of str
        What stands beside the slider at each step.
    name : str
        What the slider changes, such as ``"round"``.
    alt : str
        What is to be seen, for those who do not see it.
    widths : list of int
        Of the pictures of a step on the page, in pixels; on a narrow screen they take what there is.
    shown : int, default 0
        The step at which it stands at first. At the first one it is a film: it plays once when it comes into view, and
        paper gets the last step.
    """

    def __init__(
        self, frames: list[list[bytes]], labels: list[str], name: str, alt: str, widths: list[int], shown: int = 0
    ) -> None:
        self.frames, self.labels, self.name, self.alt, self.widths = frames, labels, name, alt, widths
        self.shown = shown % len(frames)

    def html(self) -> str:
        """The figure for a browser; it works offline, and without scripts shows the step at which it stands."""
        last = len(self.frames) - 1
        steps = [
            f'<div class="step" data-label="{html.escape(label)}"{"" if i == self.shown else " hidden"}>'
            + f'<div style="{ROW}">'
            + "".join(self._picture(frame, label, index, not i) for index, frame in enumerate(frames))
            + "</div></div>"
            for i, (frames, label) in enumerate(zip(self.frames, self.labels, strict=True))
        ]
        name = html.escape(self.name)
        control = (
            f'<span>{name}</span><input type="range" min="0" max="{last}" value="{self.shown}" step="1" '
            f'aria-label="{name}" oninput="{html.escape(SHOW)}" onpointerdown="{html.escape(HOLD)}" style="{SLIDER}">'
            f'<output style="min-width:3em">{html.escape(self.labels[self.shown])}</output>'
            f'<button type="button" onclick="{html.escape(PLAY)}" style="{BUTTON}">play</button>'
        )
        return (
            f'<figure class="moving" style="margin:0">{"".join(steps)}<div style="{CONTROL}">{control}</div></figure>'
        )

    def _picture(self, frame: bytes, label: str, index: int, first: bool) -> str:
        part = f" Picture {index + 1} of {len(self.widths)}." if len(self.widths) > 1 else ""
        film = f' onload="{html.escape(SEEN)}"' if first and not index and not self.shown else ""
        return tag(frame, f"{self.alt} Here: {self.name} {label}.{part}", self.widths[index], film)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """HTML for browsers, one picture for paper (the last of its step), words for the rest."""
        still = base64.b64encode(self.frames[self.shown or -1][-1]).decode()
        return {"text/html": self.html(), "image/png": still, "text/plain": self.alt}


def moving(
    draw: Callable[[int], Figure | Sequence[Figure]],
    labels: Sequence[Any],
    name: str,
    alt: str,
    dpi: int = 80,
    shown: int = 0,
) -> Moving:
    """A figure with a slider.

    Parameters
    ----------
    draw : callable
        ``draw(k)`` makes the figure of step k, or several that stand side by side on a desk and one above the other on
        a phone. Those of all steps must have the same sizes and, to be comparable, the same axes.
    labels : sequence
        What is shown beside the slider at each step, such as the numbers of the rounds; at least two.
    name : str
        What the slider changes.
    alt : str
        What is to be seen.
    dpi : int
        Pixels of the page an inch; the pictures have `FINER` times as many dots.
    shown : int, default 0
        The step at which the figure stands at first; negative ones count from the end. Where that is the first one, the
        figure plays once when it comes into view, and paper gets the last step.

    Returns
    -------
    Moving
        Which a notebook displays.

    Raises
    ------
    ValueError
        If there are fewer than two steps, their figures are not of the same sizes, or weigh more than `LARGEST`.
    """
    checks.nonempty_str("name", name)
    checks.nonempty_str("alt", alt)
    checks.integer("dpi", dpi, 20, 400)
    told = [str(label) for label in checks.sequence("labels", labels)]
    if len(told) < 2:
        raise WrongValue(f"labels must be of at least two steps, got {len(told)}")
    checks.integer("shown", shown, -len(told), len(told) - 1)
    frames, sizes = [], []
    for k in range(len(told)):
        drawn = draw(k)
        figures = [drawn] if isinstance(drawn, Figure) else checks.sequence("draw(k)", drawn)
        for figure in figures:
            checks.instance("draw(k)", figure, Figure)
        sizes.append([tuple(figure.get_size_inches().tolist()) for figure in figures])
        frames.append([png(figure, SHARPER * dpi) for figure in figures])
        if sizes[k] != sizes[0]:
            raise WrongValue(f"draw must make figures of one size at all steps, got {sizes[0]} and {sizes[k]} inches")
    made = Moving(frames, told, name, alt, [round(size[0] * dpi) for size in sizes[0]], shown)
    if (size := len(made.html())) > LARGEST:
        raise WrongValue(
            f"draw makes {len(told)} pictures of {size / 1e6:.1f} MB in all, more than {LARGEST / 1e6:.1f} MB: fewer "
            "steps, a smaller figure or a smaller dpi"
        )
    return made
