"""The pictures of FLIC's chapter: clouds around anchors, and an anchor that is dragged."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from hetfl_book import grids
from hetfl_book.figures import anchors
from hetfl_core import datasets

STOPS = (-4.0, 0.0, 4.0)


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def drawn() -> Any:
    cloud = [[[0.0, 0.0], [1.0, 1.0]], [[100.0, -100.0]]]
    clouds = [[{"A": cloud, "B": cloud} for _ in STOPS] for _ in STOPS]
    scores = {"A": np.arange(9.0).reshape(3, 3), "B": np.full((3, 3), 50.0)}
    return anchors.draw(clouds, scores, STOPS)


# --- maps to given places ---------------------------------------------------------------------------------------------


def test_maps_bring_each_class_to_its_anchor_wherever_that_stands() -> None:
    federation = datasets.heart.hospitals(made=True).subset(["Cleveland", "Budapest"])
    for far in ((6.0, 0.0), (0.0, -6.0)):
        put = [(0.0, 0.0), far]
        z = anchors.places(federation, put, method=replace(anchors.MAP, pretrain_epochs=12))
        for client in federation:
            labels = client.y_test.numpy()
            assert z[client.name].shape == (client.n_test, 2)
            assert anchors.balanced(anchors.nearest(z[client.name], put), labels) > 75


def test_anchors_must_be_one_for_each_class() -> None:
    federation = datasets.heart.hospitals(made=True)
    with pytest.raises(ValueError, match=r"anchors must have the shape \(2, 2\), got \(1, 2\)"):
        anchors.places(federation, [(0.0, 0.0)])


def test_nearest_takes_the_first_of_two_that_are_as_near() -> None:
    put = [(0.0, 0.0), (2.0, 0.0)]
    assert anchors.nearest([(0.4, 3.0), (1.0, 0.0), (1.1, -5.0)], put).tolist() == [0, 0, 1]
    assert not anchors.nearest(np.ones((4, 2)), [(1.0, 1.0), (1.0, 1.0)]).any()


def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels, said = rng.integers(2, size=50), rng.integers(2, size=50)
    assert anchors.balanced(said, labels) == pytest.approx(100 * balanced_accuracy_score(labels, said))


# --- the grid ---------------------------------------------------------------------------------------------------------


def test_a_grid_has_every_place_and_half_are_right_where_both_anchors_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "MAP", replace(anchors.MAP, pretrain_epochs=20))
    monkeypatch.setattr(anchors, "SHOWN", 3)
    grid = grids.anchors(stops=(0.0, 6.0), seeds=(3, 4), made=True)
    for name in grids.HOSPITALS:
        found = grid.array(name)
        assert found.shape == (2, 2, 2)
        assert found[0, 0].tolist() == [50, 50]
        assert found[1].min() > 60
        cloud = grid.drawn[1][0][name]
        assert np.shape(cloud) == (2, 3, 2)
        assert np.mean(cloud[1], 0)[0] > np.mean(cloud[0], 0)[0], "the ill are to the right, as their anchor is"


def test_the_stored_grid_is_that_of_the_figure() -> None:
    grid = grids.stored("anchors")
    assert list(grid.sliders.values()) == [[*anchors.PLACES]] * 2
    middle = anchors.PLACES.index(0.0)
    for name in grids.HOSPITALS:
        found = grid.array(name)
        assert (found[middle, middle] == 50).all()
        assert np.delete(found.mean(-1).ravel(), middle * len(found) + middle).min() > 70
    federation = datasets.heart.hospitals(made=True)
    assert set(grid.results) == set(grids.HOSPITALS) <= {client.name for client in federation}


@pytest.mark.realdata("heart.hospitals")
def test_a_stored_place_comes_out_again() -> None:
    federation = datasets.heart.hospitals(seed=0).subset(list(grids.HOSPITALS))
    put = [anchors.HEALTHY, (anchors.PLACES[-1], anchors.PLACES[0])]
    grid, z = grids.stored("anchors"), anchors.places(federation, put)
    for client in federation:
        right = anchors.balanced(anchors.nearest(z[client.name], put), client.y_test.numpy())
        assert right == pytest.approx(grid.array(client.name)[-1, 0, 0], abs=3), "but for rounding on another machine"


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_the_drawing_moves_one_anchor_and_keeps_the_other() -> None:
    figure = drawn()
    assert figure.start == [2, 1], "to the right of the healthy"
    assert figure.said[0] == "A: 0 % right. B: 50 % right."
    circles = [mark for mark in figure.marks if mark.tag == "circle"]
    still, moving = ([m for m in circles if bool(m.moving) == moves] for moves in (False, True))
    assert len(still) == 4
    assert len(moving) == 6
    x, y = moving[0].moving["cx"], moving[0].moving["cy"]
    at = list(product(STOPS, STOPS))
    assert np.allclose(np.diff([x[at.index((s, 0.0))] for s in STOPS]), x[-1] - x[at.index((0.0, 0.0))], atol=0.2)
    assert x[at.index((0.0, 0.0))] == still[0].fixed["cx"]
    assert y[at.index((0.0, 4.0))] < still[0].fixed["cy"], "up is up"
    assert unescape(figure.html()).count("onpointermove") == 2


def test_places_beyond_the_frame_stand_at_its_edge() -> None:
    paths = [mark.moving["d"][0] for mark in drawn().marks if mark.tag == "path"]
    assert paths[1] == "M169 213h0"


def test_there_are_two_hospitals() -> None:
    with pytest.raises(ValueError, match=r"two hospitals, got \['A'\]"):
        anchors.draw([], {"A": np.zeros((3, 3))}, STOPS)


def test_a_cloud_has_a_star_for_each_class_and_all_of_its_patients() -> None:
    z, labels = np.arange(10.0).reshape(5, 2), np.array([0, 1, 0, 1, 1])
    [ax] = anchors.around(z, labels, [(0, 0), (5, 5)], (-1, 9, -2, 10), "A, 3 columns").axes
    assert [len(line.get_xdata()) for line in ax.lines] == [2, 1, 3, 1]
    assert ax.get_title() == "A, 3 columns"
    assert (*ax.get_xlim(), *ax.get_ylim()) == (-1, 9, -2, 10)


def test_the_three_terms_are_named_in_the_drawing() -> None:
    [ax] = anchors.terms().axes
    words = " ".join(text.get_text() for text in ax.texts)
    assert all(f"({n})" in words for n in "abc")


@pytest.mark.browser
def test_an_anchor_is_dragged_and_the_sliders_follow(on_phone: Any) -> None:
    page = on_phone(drawn().html())
    assert page.locator("output").all_inner_texts() == ["4", "0"]
    for handle in page.locator("circle[onpointermove]").all():
        box, step = handle.bounding_box(), 4 / 1.4 / 4 * 172 / 2 * page.locator("svg").bounding_box()["width"] / 360
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 2 * step, y - step, steps=4)
        page.mouse.up()
        assert page.locator("output").all_inner_texts() == ["-4", "4"]
        page.mouse.move(x - 2 * step, y - step)
        page.mouse.down()
        page.mouse.move(x, y, steps=4)
        page.mouse.up()
        assert page.locator("output").all_inner_texts() == ["4", "0"]
    shown = page.locator("text").all_text_contents()
    assert [text for text in shown if text.endswith("right")] == ["7 % right", "50 % right"]


def test_the_grid_is_small() -> None:
    path = Path(grids.__file__).parents[2] / "data" / "grids" / "anchors.json"
    assert path.stat().st_size < 60_000
    assert json.loads(path.read_text("utf8"))["about"]["command"] == "python -m hetfl_book.grids anchors"
