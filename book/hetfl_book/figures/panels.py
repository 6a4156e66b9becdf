"""Pictures that are to be compared: side by side on a desk, one below the other on a phone, each large enough to read.

One wide figure with several axes shrinks to the width of a phone, letters and all; pictures of their own do not.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from hetfl_core import checks
from hetfl_core.errors import WrongValue

SHARPER = 2
"""Dots of the files for each pixel on the page: screens of phones and good desks have so many."""

ROW = "display:flex;flex-wrap:wrap;align-items:flex-start;gap:4px"
"""Style of what holds pictures that stand side by side where there is room."""

PICTURE = "flex:1 1 min(100%,300px,{width}px);min-width:0;max-width:min(100%,{width}px)"
"""Style of a picture in a `ROW`: it shrinks to 300 pixels to stand beside the next one, and is never enlarged."""


class Panels:
    """Pictures that stand side by side where there is room.

    Attributes
    ----------
    pictures : list of bytes
        PNG files, from left to right.
    alts : list of str
        What each shows, for those who do not see it.
    widths : list of int
        Of the pictures on the page, in pixels; on a narrow screen each takes what there is.
    """

    def __init__(self, pictures: list[bytes], alts: list[str], widths: list[int]) -> None:
        self.pictures, self.alts, self.widths = pictures, alts, widths

    def html(self) -> str:
        """The pictures for a browser, in one piece that needs nothing from elsewhere."""
        drawn = "".join(map(tag, self.pictures, self.alts, self.widths))
        return f'<figure class="panels" style="margin:0;padding:0;{ROW}">{drawn}</figure>'

    def paper(self) -> bytes:
        """All pictures in one, from left to right, as a PNG file: for paper."""
        drawn = [plt.imread(io.BytesIO(picture))[..., :3] for picture in self.pictures]
        height = max(len(one) for one in drawn)
        padded = [np.pad(one, ((0, height - len(one)), (0, 0), (0, 0)), constant_values=1) for one in drawn]
        file = io.BytesIO()
        plt.imsave(file, np.concatenate(padded, axis=1), format="png")
        return file.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """HTML for browsers, one picture for paper, words for the rest."""
        still = base64.b64encode(self.paper()).decode()
        return {"text/html": self.html(), "image/png": still, "text/plain": "\n".join(self.alts)}


def tag(picture: bytes, alt: str, width: int, more: str = "") -> str:
    """A PNG file as it stands in a page, in a `ROW`; `more` are further attributes."""
    source, style = base64.b64encode(picture).decode(), PICTURE.format(width=width)
    return f'<img src="data:image/png;base64,{source}" alt="{html.escape(alt)}" style="{style}"{more}>'


def side_by_side(figures: Sequence[Figure], alts: Sequence[str], dpi: int = 80) -> Panels:
    """Figures as panels; they are closed, so that a notebook does not show them a second time.

    Parameters
    ----------
    figures : sequence of Figure
        From left to right. A page of this book has room for 688 pixels on a desk: two of 4.2 inches at 80 dots.
    alts : sequence of str
        What is to be seen in each.
    dpi : int
        Pixels on the page for each inch. The files have `SHARPER` times as many dots.

    Returns
    -------
    Panels
        Which a notebook displays.

    Raises
    ------
    ValueError
        If there is no figure, or not one text for each.
    """
    drawn = checks.sequence("figures", figures)
    for figure in drawn:
        checks.instance("figures", figure, Figure)
    told = checks.names("alts", alts)
    if not drawn or len(told) != len(drawn):
        raise WrongValue(f"alts must say of each of {len(drawn)} figures what is to be seen, got {len(told)}")
    checks.integer("dpi", dpi, 20, 400)
    widths = [round(float(figure.get_size_inches()[0]) * dpi) for figure in drawn]
    return Panels([png(figure, SHARPER * dpi) for figure in drawn], told, widths)


def png(figure: Figure, dpi: int) -> bytes:
    """A figure as a PNG file of exactly its own size, so that nothing jumps from step to step; it is closed.

    A palette takes a third of the bytes of full colour, which pays for dots fine enough for a phone.

    Parameters
    ----------
    figure : Figure
    dpi : int
        Dots an inch.
    """
    checks.instance("figure", figure, Figure)
    drawn, file = io.BytesIO(), io.BytesIO()
    with plt.rc_context({"savefig.bbox": None}):  # the house style crops
        figure.savefig(drawn, format="png", dpi=dpi, transparent=False)
    plt.close(figure)
    with Image.open(drawn) as picture:
        few = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        few.save(file, format="png", optimize=True)
    return file.getvalue()
