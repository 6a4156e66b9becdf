"""Made solids: what cameras see of them, which are alike, and the federation of their views."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

from hetfl_book.datasets import rendering, solids
from hetfl_book.datasets.rendering import Ball, Piece, azimuths, cuboid, frames, seen, upright
from hetfl_book.ledger.published import paper_table
from hetfl_core.datasets import blocks
from hetfl_core.datasets.blocks import ASSIGNMENTS, holders
from hetfl_core.plugins import data_sets

AROUND = azimuths(12)
STEP = 2 * np.pi / 12
MIDDLE = np.full((1, solids.N_SIZES), 0.5)
PAIRS = list(zip([*solids.SHAPES][::2], [*solids.SHAPES][1::2], strict=True))
FEW = {"per_class": 3, "test_per_class": 2, "size": 8}


def differs(a: str, b: str, **angles: list[float]) -> np.ndarray:
    """By how much the images differ that each camera has of two shapes of medium size, summed over pixels."""
    one, other = (solids.render(shape, MIDDLE, angles.get("turn", [0.0]), AROUND) for shape in (a, b))
    return np.abs(one - other).sum((0, 2, 3))


# --- cameras and rays -----------------------------------------------------------------------------------------------


def test_a_sphere_looks_the_same_from_everywhere():
    sphere = Ball(np.zeros((2, 3)), np.full((2, 3), 0.6))
    looks = frames(np.array([[0.0, 1.0, 2.5], [0.3, -2.0, 3.0]]), np.array([0.2, -0.1]))
    images = seen([sphere], looks, np.ones(2), 16)
    np.testing.assert_allclose(images, np.broadcast_to(images[0, 0], images.shape), atol=1e-5)
    covered = (images > -1).mean() * (2 * rendering.HALF_FRAME) ** 2
    assert covered == pytest.approx(np.pi * 0.6**2, rel=0.15), "a disc, its rim counted whole"
    row, column = np.unravel_index(images[0, 0].argmax(), (16, 16))
    assert row < 8, "light comes from above"
    assert column < 8, "and from the left"
    assert images.max() == pytest.approx(1, abs=0.05)


def test_a_sphere_of_planes_is_the_sphere():
    """2 000 planes that touch a ball enclose it, so that both ways to meet a ray must see the same."""
    points = np.random.default_rng(0).standard_normal((2000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    centre, radius = np.array([0.2, -0.1, 0.15]), 0.6
    cut = Piece(points[None], radius + points[None] @ centre)
    ball = Ball(centre[None], np.full((1, 3), radius))
    looks = frames(np.array([[0.7, 3.0]]), np.array([0.1]))
    planes, closed = (seen([piece], looks, np.ones(1), 24) for piece in (cut, ball))
    assert np.abs(planes - closed).mean() < 0.01


def test_an_ellipsoid_is_met_where_it_is():
    """Against rays that are followed in small steps."""
    ball = Ball(np.array([[0.1, 0.2, -0.1]]), np.array([[0.8, 0.3, 0.5]]))
    look = frames(np.array([[0.9]]), np.array([0.2]))
    right, up = np.array([[-0.3, 0.0, 0.25]]), np.array([[0.3], [0.0], [-0.2]])
    near, _ = rendering._ball(ball, look, right, up)
    way = np.linspace(2, -2, 40_001)
    for i in range(3):
        for j in range(3):
            ray = np.stack([np.full_like(way, right[0, j]), np.full_like(way, up[i, 0]), way], 1) @ look[0, 0]
            inside = (((ray - ball.centre) / ball.radii) ** 2).sum(1) <= 1
            found = way[inside.argmax()] if inside.any() else -np.inf
            assert near[0, 0, i, j] == pytest.approx(found, abs=2e-4)


def test_the_cuboid_s_faces():
    """From the front and 30° above: the front face is 2 z cos 30° high, the upper one 2 x sin 30°, both 2 y wide."""
    x, y, z = np.array([0.5]), np.array([0.4]), np.array([0.6])
    image = seen([cuboid((-x, x), (-y, y), (-z, z))], frames(np.zeros((1, 1)), np.zeros(1)), np.ones(1), 128)[0, 0]
    pixel = 2 * rendering.HALF_FRAME / 128
    middle = image[:, 64]
    levels = [level for level in np.unique(middle.round(5)) if (middle.round(5) == level).sum() > 5]
    assert len(levels) == 3
    assert levels[0] == -1
    for normal, height in (([0, -0.5, 3**0.5 / 2], z[0] * 3**0.5), ([0, 3**0.5 / 2, 0.5], x[0])):
        level = -0.6 + 1.6 * float(np.dot(normal, rendering.LIGHT))
        assert (np.abs(middle - level) < 1e-4).sum() * pixel == pytest.approx(height, abs=2 * pixel)
    assert (image[64] > -1).sum() * pixel == pytest.approx(2 * y[0], abs=2 * pixel)


@pytest.mark.parametrize("sides", [4, 24])
def test_what_is_upright_has_its_radii(sides):
    piece = upright(np.array([0.6]), np.array([0.2]), np.array([0.5]), sides)
    np.testing.assert_allclose(np.linalg.norm(piece.normals, axis=-1), 1)
    for height, radius in ((-0.5, 0.6), (0.5, 0.2)):
        within, beyond = (
            (piece.normals[0] @ [scale * radius, 0, 0.999 * height] <= piece.offsets[0]).all() for scale in (0.99, 1.02)
        )
        assert within
        assert not beyond


@pytest.mark.parametrize("shape", solids.SHAPES)
def test_a_turn_by_a_camera_s_step_moves_the_views_on_by_one(shape):
    sizes = np.random.default_rng(1).random((2, solids.N_SIZES))
    before, after = (
        solids.render(shape, sizes, np.array([0.2, -0.4]) + turn, AROUND, tilt=[0.1, -0.1]) for turn in (0, STEP)
    )
    assert np.isclose(np.roll(before, 1, axis=1), after, atol=1e-4).mean() > 0.999
    assert after.dtype == np.float32
    assert after.min() == -1
    assert after.max() <= 1


@pytest.mark.parametrize("shape", solids.SHAPES)
def test_no_solid_is_larger_than_the_frame(shape):
    """The largest and the smallest of each size, however they are turned: the rim of every image is empty."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(0, 2, (40, solids.N_SIZES)).astype(float)
    images = solids.render(shape, sizes, rng.uniform(-4, 4, 40), [0.0, 1.0], tilt=np.linspace(-1, 1, 40) * solids.TILT)
    for rim in (images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1]):
        assert (rim == -1).mean() > 0.98
    assert (images > -1).mean((2, 3)).min() > 0.05, "and none is a speck"


def test_brightness_and_size_are_the_callers():
    dull, bright = (solids.render("egg", [[0.5] * 4 + [b]], [0.0], [0.0])[0, 0] for b in (0, 1))
    np.testing.assert_allclose(dull + 1, solids.DULLEST * (bright + 1), atol=1e-6)
    coarse, fine = (solids.render("jug", MIDDLE, [0.3], [0.0], size=size)[0, 0] for size in (16, 64))
    blocks_of_4 = fine.reshape(16, 4, 16, 4).mean((1, 3))
    assert np.abs(coarse - blocks_of_4).mean() < 0.03


# --- look-alikes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_look_alikes_differ_from_some_side(one, other):
    assert differs(one, other).max() > 5


@pytest.mark.parametrize(
    ("one", "other", "shown", "hidden"),
    [("box", "niche", (0, 1, 11), range(3, 10)), ("cylinder", "jug", (2, 3, 9, 10), (6,))],
)
def test_what_differs_may_be_on_the_far_side(one, other, shown, hidden):
    away = differs(one, other)
    assert away[list(shown)].min() > 2 * away[list(hidden)].max()


def test_steps_and_a_ramp_are_one_from_behind():
    away = differs("steps", "ramp")
    assert away[6] < 1e-3
    assert away[[0, 3, 9]].min() > 5


# --- the federation -------------------------------------------------------------------------------------------------


def test_the_assignment_of_12_views_is_like_the_paper_s():
    ours, theirs = ASSIGNMENTS["12 views"], ASSIGNMENTS["modelnet40:2"]
    assert [one.blocks for one in ours] == [one.blocks for one in theirs]
    count = holders(ours, 12, 12)
    assert int((count == 0).sum()) == 17, "11.8 %, the paper has 12.08 %"
    assert {len(one.classes) for one in ours} == {5}
    assert set().union(*(one.classes for one in ours)) == set(range(12))


def test_the_assignment_of_4_views_is_like_table_3():
    ours = ASSIGNMENTS["4 views"]
    table = paper_table("hyfem", 3)
    held = table[table["metric"] == "feature block held"].groupby("setting")["value"].agg(lambda v: set(v.astype(int)))
    printed = {tuple(sorted(b - 1 for b in blocks)) for blocks in held if len(blocks) == 3}
    assert {one.blocks for one in ours} == printed
    assert {len(one.classes) for one in ours} == {6}
    count = holders(ours, 4, 12)
    assert int((count == 0).sum()) == 4
    assert count[[0, 2]].min() > 0


def test_the_federation():
    fed = solids.views(seed=3, **FEW)
    assert fed.name == "solids.views" in data_sets()
    assert (len(fed), fed.n_classes) == (8, 12)
    for client, one in zip(fed, ASSIGNMENTS["12 views"], strict=True):
        assert [f"view {b}" for b in one.blocks] == [name for name, shape in client.shapes.items() if 0 not in shape]
        assert sorted(set(client.y_train.tolist())) == list(one.classes)
        assert (client.n_train, client.n_test) == (15, 24)
        assert client.shapes[f"view {one.blocks[0]}"] == (1, 8, 8)
    assert fed.info["simulated"] is True
    assert fed.info["class_names"] == list(solids.SHAPES)
    assert fed.info["unused_cells"] == 17 / 144
    settings = {"seed": 3, "assignment": "12 views", "n_views": 12, "noise": 0.3, "overlap": 1.0, "missing": 0.0}
    assert fed.info["settings"] == settings | FEW | {"tested_on": "test"}
    json.dumps(dict(fed.info))
    all_values = torch.cat([fed.x_test[f"view {k}"] for k in range(12)])
    assert all_values.dtype == torch.float32
    assert -1 == all_values.min() < all_values.max() <= 1
    few = solids.views(seed=3, n_views=4, assignment="4 views", **FEW)
    assert len(few) == 4
    assert few.of_common_blocks().full_shapes.keys() == {"view 0", "view 2"}


def test_the_same_seed_means_the_same_bits():
    a = solids.views(seed=1, **FEW)
    a.x_test["view 0"].zero_()  # what is kept of the drawing must not feel it
    b = solids.views(seed=1, **FEW)
    solids._drawn.cache_clear()
    c, d = solids.views(seed=1, **FEW), solids.views(seed=2, **FEW)
    assert b.fingerprint() == c.fingerprint() != d.fingerprint()


def test_training_and_test_solids_differ_and_do_not_depend_on_how_many_there_are():
    few, more = (
        solids.views(assignment="centralised", per_class=n, test_per_class=n, size=8, noise=0.0) for n in (4, 6)
    )
    known = {image.numpy().tobytes() for image in few[0].x_train["view 0"]}
    assert len(known) == 48
    assert not known & {image.numpy().tobytes() for image in few.x_test["view 0"]}
    first = more[0].x_train["view 5"].reshape(12, 6, 1, 8, 8)[:, :4]
    assert torch.equal(first.reshape(48, 1, 8, 8), few[0].x_train["view 5"])


def test_noise_is_added_to_what_cameras_see():
    call = {"assignment": "centralised", "per_class": 10, "test_per_class": 1, "n_views": 2}
    clean, noisy = (solids.views(noise=noise, **call)[0].x_train["view 1"] for noise in (0.0, 0.1))
    inside = (clean > -0.6) & (clean < 0.6)
    assert float((noisy - clean)[inside].std()) == pytest.approx(0.1, rel=0.05)
    assert float((noisy[clean == -1] > -1).float().mean()) == pytest.approx(0.5, abs=0.01), "half is cut off"


def test_settings_are_judged_on_training_solids():
    one = solids.views(tested_on="validation", assignment="centralised", per_class=5, test_per_class=1, size=8)
    assert np.bincount(one.y_test).tolist() == [1] * 12
    assert np.bincount(one[0].y_train).tolist() == [4] * 12


def test_twelve_views_tell_more_than_one():
    """A linear classifier on 40 solids of each shape."""
    fed = solids.views(assignment="centralised", per_class=40, test_per_class=20)

    def accuracy(*views: int) -> float:
        x, x_test = (np.hstack([part[f"view {k}"].flatten(1) for k in views]) for part in (fed[0].x_train, fed.x_test))
        return float(RidgeClassifier(100.0).fit(x, fed[0].y_train).score(x_test, fed.y_test))

    single = [accuracy(k) for k in range(12)]
    assert accuracy(*range(12)) > max(0.8, max(single) + 0.1)
    assert 0.45 < min(single) < np.mean(single) < 0.75
    assert accuracy(*ASSIGNMENTS["12 views"][0].blocks) > max(single[:6]) + 0.05


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"per_class": 0}, "per_class must be at least 1, got 0"),
        ({"size": 3}, "size must be a whole number in 4…256, got 3"),
        ({"n_views": 0}, "n_views must be a whole number in 1…360, got 0"),
        ({"n_views": 4}, r"blocks of assignment\[0\] must lie in 0…3"),
        ({"assignment": "5 views"}, "assignment must be one of .*'centralised', got '5 views'"),
        ({"noise": -0.1}, "noise must not be negative, got -0.1"),
        ({"tested_on": "both"}, "tested_on must be one of"),
        ({"test_per_class": 10**9}, "test_per_class=1000000000.* GiB"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_drawn(bad, message, monkeypatch):
    monkeypatch.setattr(solids, "_drawn", None)
    with pytest.raises(ValueError, match=message):
        solids.views(**bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"shape": "torus"}, "shape must be one of 'box', .* got 'torus'"),
        ({"sizes": [[0.5] * 4]}, r"sizes must be numbers in 0…1 of shape \(n, 5\)"),
        ({"sizes": [[1.5] * 5]}, r"sizes must be numbers in 0…1 of shape \(n, 5\)"),
        ({"turn": [0.0, 1.0]}, "turn must have an angle for each of 1 solids, got 2"),
        ({"tilt": [0.0, 1.0]}, "tilt must have an angle for each of 1 solids, got 2"),
        ({"azimuth": [np.nan]}, "azimuth must be finite numbers"),
        ({"size": 10**6}, "size must be a whole number in 4…256"),
    ],
)
def test_what_cannot_be_rendered_is_refused(bad, message):
    call = {"shape": "box", "sizes": MIDDLE, "turn": [0.0], "azimuth": [0.0]} | bad
    with pytest.raises(ValueError, match=message):
        solids.render(**call)


def test_dealing_adds_to_the_settings_of_its_caller():
    """As `views` needs it, and nobody's settings are lost."""
    x = {"a": torch.zeros(2, 1, dtype=torch.float32)}
    made = blocks.federate(
        x, [0, 1], x, [0, 1], assignment="centralised", info={"settings": {"mine": 1}, "source": "here"}
    )
    assert made.info["settings"]["mine"] == 1
    assert made.info["settings"]["assignment"] == "centralised"
    assert made.info["source"] == "here"
