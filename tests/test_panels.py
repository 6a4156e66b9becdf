"""Pictures side by side: one file each, words for each, and one picture for paper."""

import base64
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest

from hetfl_book.figures.panels import SHARPER, png, side_by_side


def block(colour, size=(2, 1)):
    fig = plt.figure(figsize=size, facecolor=colour)
    return fig


def test_each_figure_is_a_picture_of_its_own_with_its_words():
    before = len(plt.get_fignums())
    made = side_by_side([block("red"), block("blue", (3, 2))], ["A red field.", "A < B."], dpi=50)
    assert len(plt.get_fignums()) == before, "figures are closed, so that the notebook does not show them too"
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]*)" style="([^"]*)"', made.html())
    assert [alt for _, alt, _ in found] == ["A red field.", "A &lt; B."]
    pictures = [plt.imread(io.BytesIO(base64.b64decode(data))) for data, _, _ in found]
    assert [p.shape[:2] for p in pictures] == [(50 * SHARPER, 100 * SHARPER), (100 * SHARPER, 150 * SHARPER)]
    assert ["max-width:min(100%,100px)" in style for _, _, style in found] == [True, False]
    assert all("max-width:min(100%," in style for _, _, style in found), "no wider than a phone"
    assert not re.search(r"https?:|<script|<link", made.html()), "it works without a network"


def test_paper_gets_all_of_them_in_one_picture():
    made = side_by_side([block("red"), block("blue", (3, 2))], ["Red.", "Blue."], dpi=50)
    bundle = made._repr_mimebundle_()
    whole = plt.imread(io.BytesIO(base64.b64decode(bundle["image/png"])))[..., :3]
    assert whole.shape[:2] == (100 * SHARPER, 250 * SHARPER)
    np.testing.assert_allclose(whole[10, 10], [1, 0, 0], atol=0.01)
    np.testing.assert_allclose(whole[10, 240 * SHARPER], [0, 0, 1], atol=0.01)
    np.testing.assert_allclose(whole[-1, 10], [1, 1, 1], atol=0.01, err_msg="what the lower one lacks is white")
    assert bundle["text/plain"] == "Red.\nBlue."
    assert bundle["text/html"] == made.html()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"figures": []}, "alts must say of each of 0 figures"),
        ({"alts": ["one"]}, "alts must say of each of 2 figures what is to be seen, got 1"),
        ({"alts": ["one", ""]}, "alts"),
        ({"figures": [None, None]}, "figures must be "),
        ({"dpi": 1}, "dpi must be"),
    ],
)
def test_what_is_refused(change, message):
    valid = {"figures": [block("red"), block("blue")], "alts": ["Red.", "Blue."], "dpi": 50}
    with pytest.raises((ValueError, TypeError), match=message):
        side_by_side(**{**valid, **change})
    plt.close("all")


def test_a_file_has_the_size_that_its_figure_has():
    picture = plt.imread(io.BytesIO(png(block("red", (3, 1)), 40)))
    assert picture.shape[:2] == (40, 120)
    with pytest.raises(TypeError, match="figure must be"):
        png(None, 40)
