"""Figures that move: one picture a step, one shown, nothing from elsewhere. What a browser does: `test_browser`."""

import base64
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest

from hetfl_book.figures.moving import LARGEST, moving
from hetfl_book.figures.panels import SHARPER
from hetfl_core import plots


def bars(k, size=(2, 1)):
    fig, ax = plt.subplots(figsize=size)
    ax.bar([0, 1], [k, 3])
    return fig


def test_one_picture_a_step_and_the_first_one_is_shown():
    before = len(plt.get_fignums())
    made = moving(bars, ["0", "5", "a < b"], "round", "Two bars.", dpi=50)
    assert len(plt.get_fignums()) == before, "figures are closed, so that the notebook does not show them too"
    step = r'<div class="step" data-label="([^"]*)"([^>]*)><div style="[^"]*">'
    pattern = step + r'<img src="data:image/png;base64,([^"]+)" alt="([^"]*)"'
    steps = re.findall(pattern, made.html())
    assert [[base64.b64decode(s[2])] for s in steps] == made.frames
    assert len({s[2] for s in steps}) == 3
    assert [s[0] for s in steps] == ["0", "5", "a &lt; b"]
    assert steps[1][3] == "Two bars. Here: round 5."
    assert [s[1] for s in steps] == ["", " hidden", " hidden"]
    assert 'min="0" max="2" value="0"' in made.html()
    assert made.html().count(' onload="') == 1, "it plays when it is seen"
    assert not re.search(r"https?:|<script|<link", made.html()), "it works without a network"


def test_pictures_are_of_one_size_whatever_is_written_on_them():
    def titled(k):
        fig = bars(k)
        fig.axes[0].set_title("a long title" * k)
        return fig

    with plots.style():
        made = moving(titled, range(3), "round", "Two bars.", dpi=50)
    sizes = {plt.imread(io.BytesIO(picture)).shape[:2] for step in made.frames for picture in step}
    assert sizes == {(50 * SHARPER, 100 * SHARPER)}
    assert made.widths == [100]


def test_it_may_stand_at_another_step():
    made = moving(bars, ["0", "5", "9"], "round", "Two bars.", dpi=50, shown=1)
    assert re.findall(r'data-label="(\d)"([^>]*)>', made.html()) == [("0", " hidden"), ("5", ""), ("9", " hidden")]
    assert 'min="0" max="2" value="1"' in made.html()
    assert ' onload="' not in made.html(), "it is no film, and does not move by itself"
    assert re.findall(r"<output[^>]*>([^<]*)<", made.html()) == ["5"]
    assert base64.b64decode(made._repr_mimebundle_()["image/png"]) == made.frames[1][-1]
    assert moving(bars, ["0", "5", "9"], "round", "Two bars.", dpi=50, shown=-2).shown == 1


def test_paper_gets_the_last_picture_and_a_terminal_the_words():
    made = moving(bars, range(2), "round", "Two bars.")
    bundle = made._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]) == made.frames[-1][-1]
    assert bundle["text/plain"] == "Two bars."
    assert bundle["text/html"] == made.html()


def test_several_figures_a_step_stand_side_by_side():
    made = moving(lambda k: [bars(k), bars(2 * k, (3, 1))], range(3), "round", "Bars.", dpi=50)
    assert made.widths == [100, 150]
    assert [len(step) for step in made.frames] == [2, 2, 2]
    assert made.html().count("<img") == 6
    assert made.html().count('class="step"') == 3
    assert "Bars. Here: round 1. Picture 2 of 2." in made.html()
    assert "flex:1 1 min(100%,300px,150px);min-width:0;max-width:min(100%,150px)" in made.html()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ["1"]}, "labels must be of at least two steps, got 1"),
        (
            {"draw": lambda k: bars(k, (2, 1 + k))},
            r"draw must make figures of one size at all steps, got \[\(2.0, 1.0\)\] and",
        ),
        ({"draw": lambda k: None}, r"draw\(k\) must be "),
        ({"alt": ""}, "alt"),
        ({"dpi": 1}, "dpi must be"),
        ({"shown": 2}, "shown must be"),
    ],
)
def test_what_is_refused(change, message):
    valid = {"draw": bars, "labels": range(2), "name": "round", "alt": "Two bars."}
    with pytest.raises((ValueError, TypeError), match=message):
        moving(**{**valid, **change})
    plt.close("all")


@pytest.mark.nightly
def test_a_figure_too_heavy_for_a_phone_is_refused():
    noise = np.random.default_rng(0).random((700, 700, 3))

    def heavy(k):
        fig = plt.figure(figsize=(7, 7))
        fig.figimage(noise)
        return fig

    with pytest.raises(ValueError, match=rf"draw makes 3 pictures of .* MB in all, more than {LARGEST / 1e6:.1f} MB"):
        moving(heavy, range(3), "round", "Noise.", dpi=100)
