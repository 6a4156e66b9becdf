"""Figures that a reader steers, and the grids of results behind them; at the end in a browser."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hetfl_book import grids
from hetfl_book.figures.steered import LARGEST, Mark, Steered, results

SLIDERS = {"rate": [0.5, 1.0], "steps": [1, 2, 3]}
FOUND = {"one": np.arange(12.0).reshape(2, 3, 2), "a < b": np.full((2, 3, 1), 50.0)}


def made(**change: Any) -> Steered:
    given: dict[str, Any] = {"sliders": SLIDERS, "found": FOUND, "axis": "accuracy (%)", "limits": (0, 100)}
    return results(**{**given, "alt": "Two lines with a dot.", "start": (1, 0), **change})


def test_the_drawing_is_one_svg_that_says_what_it_shows() -> None:
    root = ElementTree.fromstring(made().svg())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"one", "a < b", "accuracy (%)", "0", "100"} <= set(texts)
    assert root.get("aria-label") == "Two lines with a dot. one 6.5, a < b 50.0.", "the mean of 6 and 7 at (1.0, 1)"
    circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    left, right = 14, 346
    assert float(circles[0].get("cx", "")) == pytest.approx(left + 0.065 * (right - left), abs=0.06)
    assert float(circles[1].get("cx", "")) == (left + right) / 2


def test_each_moving_mark_has_a_value_for_each_combination_the_last_slider_running_fastest() -> None:
    figure = made()
    page = figure.html()
    grid = json.loads(html.unescape(re.findall(r'data-grid="([^"]*)"', page)[0]))
    assert grid["stops"] == [["0.5", "1"], ["1", "2", "3"]]
    assert page.count('class="steers"') == len(grid["moves"]) == 1 + 2 * 3
    means = [move["text"] for move in grid["moves"] if "text" in move]
    assert means[0] == ["0.5", "2.5", "4.5", "6.5", "8.5", "10.5"]
    assert page.count("<input") == page.count("<output") == 2
    assert 'value="1"' in page.split("<input")[1]
    assert 'value="0"' in page.split("<input")[2]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page), "nothing comes from elsewhere"


def test_notebooks_get_html_paper_a_drawing_and_the_rest_words() -> None:
    figure = made()
    bundle = figure._repr_mimebundle_()
    assert bundle == {"text/html": figure.html(), "image/svg+xml": figure.svg(), "text/plain": "Two lines with a dot."}


def test_any_drawing_can_be_steered() -> None:
    cloud = Mark("path", {"stroke": "#000"}, {"d": ["M1 1h0", "M2 2h0"]})
    figure = Steered({"anchor": ["left", "right"]}, [cloud], 100, "A cloud.", ["left", "right"], [1])
    assert 'd="M2 2h0"' in figure.svg()
    assert "viewBox" in figure.svg()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliders": {"rate": [1]}, "found": {}, "start": None}, "at least two stops"),
        ({"sliders": {}, "found": {}, "start": None}, "at least two stops"),
        ({"start": (0, 3)}, r"start must be a place among the stops of each slider, \[2, 3\] of them, got \[0, 3\]"),
        ({"start": (0,)}, "start must be"),
        ({"limits": (1, 1)}, "limits must be two numbers that rise"),
        ({"limits": (0, 5)}, r"values in 0 … 5, got shape \(2, 3, 2\) and 0 … 11"),
        ({"found": {"one": np.zeros((3, 2, 1))}}, "must have the shape"),
        ({"found": {"one": np.full((2, 3, 1), np.nan)}}, "finite"),
        ({"alt": ""}, "alt"),
        ({"found": {"one": np.random.default_rng(0).random((2, 3, 9000))}}, f"more than {LARGEST}"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        made(**change)


def test_a_mark_without_a_value_for_each_combination_is_refused() -> None:
    with pytest.raises(ValueError, match="cx must have a value for each of 2 combinations, got 1"):
        Steered({"a": [1, 2]}, [Mark("circle", {}, {"cx": [1]})], 10, "A dot.", ["", ""])


# --- grids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", grids.MAKERS)
def test_a_stored_grid_is_whole_and_says_where_it_comes_from(name: str) -> None:
    grid = grids.stored(name)
    for series in grid.results:
        assert np.isfinite(grid.array(series)).all()
    assert grid.about["command"] == f"python -m hetfl_book.grids {name}"
    assert {"seconds", "versions", "hardware", "numerics", "commit"} <= set(grid.about)
    assert grid.about["dirty"] is False


def test_the_grid_of_fedavg_is_what_its_command_makes() -> None:
    stored, again = grids.stored("fedavg"), grids.fedavg((0.3,), (1,), (5,), seeds=(0, 1))
    assert list(again.results) == list(stored.results)
    for series in stored.results:
        assert again.at(series, 0.3, 1, 5) == pytest.approx(stored.at(series, 0.3, 1, 5)[:2], abs=2), series
    assert stored.sliders == {"α of the split": [*grids.ALPHAS], "local epochs": [1, 3, 9]} | {
        "clients in a round, of ten": [2, 5, 10]
    }


@pytest.mark.nightly
def test_the_grid_of_promises_is_what_its_command_makes() -> None:
    stored, again = grids.stored("privacy"), grids.privacy((256.0,), seeds=(0,))
    for sees in grids.SEEN:
        for promise in ("none", 256.0):
            for series in stored.results:
                assert np.isclose(again.at(series, sees, promise)[0], stored.at(series, sees, promise)[0], atol=0.3), (
                    series
                )
    assert stored.sliders["promised ε"] == ["none", *grids.EPSILONS], "from no promise to the strongest"


def test_a_place_that_is_not_in_the_grid_is_named() -> None:
    grid = grids.Grid({"α": [1.0, 2.0]}, {"FedAvg": [[50.0], [60.0]], "short": [[1.0]]}, [0], {})
    assert grid.at("FedAvg", 2.0).tolist() == [60.0]
    for wrong, message in (
        (("FedAvg", 3.0), r"α must be one of \[1.0, 2.0\], got 3.0"),
        (("FedAvg",), "stops must be one for each of"),
        (("FedRep", 1.0), "series must be"),
        (("short", 1.0), "of sliders and seeds, got"),
    ):
        with pytest.raises(ValueError, match=message):
            grid.at(*wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name must be"):
        grids.make("nothing")


def test_classes_are_shared_out_more_evenly_the_larger_alpha() -> None:
    shares = {}
    for alpha in (0.05, 10.0):
        counts = np.array([spec.class_counts for spec in grids.uneven_digits(0, alpha).specs()])
        assert counts.shape == (10, 10)
        shares[alpha] = (counts.max(1) / counts.sum(1)).mean()
    assert shares[0.05] > 0.5 > 0.25 > shares[10.0]


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_sliders_move_the_marks_and_say_where_they_stand(on_phone: Any) -> None:
    page = on_phone(made().html())
    means = page.locator("text.steers")
    assert means.all_text_contents() == ["6.5", "50.0"]
    page.locator("input").nth(1).press("ArrowRight")
    assert means.all_text_contents() == ["8.5", "50.0"]
    assert page.locator("output").all_inner_texts() == ["1", "2"]
    assert page.locator("svg").get_attribute("aria-label") == "Two lines with a dot. one 8.5, a < b 50.0."
    assert page.locator("input").nth(1).bounding_box()["height"] >= 44  # type: ignore[index]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    smallest = "Math.min(...[...document.querySelectorAll('text')].map(t => t.getBoundingClientRect().height))"
    assert page.evaluate(smallest) >= 12
