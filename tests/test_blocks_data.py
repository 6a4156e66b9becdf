"""Federations of blocks: who holds which cell, how samples are dealt, how images are cut, and the real ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hetfl_core.datasets import blocks, pooled
from hetfl_core.datasets.blocks import ASSIGNMENTS, QUADRANTS, Holding, deal, holders
from hetfl_core.ledger.published import paper_table
from hetfl_core.rng import SERVER, numpy_stream

LABELS = np.repeat(np.arange(4), 100)
THREE = (Holding((0,), (0, 1)), Holding((1,), (1, 2)), Holding((0, 1), (1,)))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# --- assignments ----------------------------------------------------------------------------------------------------


def test_table_4_is_the_papers():
    """Number by number as printed, where blocks and classes count from 1."""
    table = paper_table("hyfem", 4)
    for i, one in enumerate(ASSIGNMENTS["table 4"], 1):
        rows = table[table["setting"].str.endswith(f"client {i}")]
        printed = {name: sorted(group["value"].astype(int)) for name, group in rows.groupby("metric")}
        assert printed["feature block held"] == [b + 1 for b in one.blocks]
        assert one.classes == tuple(range(printed["first class"][0] - 1, printed["last class"][0]))
    count = holders(ASSIGNMENTS["table 4"], 4, 10)
    assert count.tolist() == [[3] * 10, [1] * 10, [3] * 10, [1] * 10]
    assert (count > 0).all(), "Appendix C.1: all data is used by at least one client"


def test_modelnet40_2_leaves_58_of_480_cells_unused():
    """12.08 %, as Section 4 says; eight clients, six of twelve views and 15 of 40 classes each, as Table 2 says."""
    assignment = ASSIGNMENTS["modelnet40:2"]
    count = holders(assignment, 12, 40)
    assert int((count == 0).sum()) == 58
    assert round(100 * float((count == 0).mean()), 2) == 12.08
    printed = paper_table("hyfem", 2).query("setting == 'ModelNet40:2'").set_index("metric")["value"].astype(int)
    assert (len(assignment), *count.shape) == tuple(printed[["clients M", "feature blocks d_0", "classes"]])
    assert {len(one.blocks) for one in assignment} == {printed["most feature blocks per client d_m"]}
    assert {len(one.classes) for one in assignment} == {printed["classes per client"]}


def test_holders_by_loops():
    count = holders(THREE, 2, 3)
    expected = [[sum(b in one.blocks and c in one.classes for one in THREE) for c in range(3)] for b in range(2)]
    assert count.tolist() == expected == [[1, 2, 0], [0, 2, 1]]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([], "assignment must hold at least one client, got none"),
        ("table 5", r"assignment must be .*'table 4'.* got 'table 5'"),
        ([((0,), (0,), (1,))], r"assignment\[0\] must be a pair \(blocks, classes\)"),
        ([((0,), (0,)), ((), (0,))], r"blocks of assignment\[1\] must be"),
        ([((0, 0), (0,))], r"blocks of assignment\[0\] must be different ones, got \[0, 0\]"),
        ([((0,), (0, 3))], r"classes of assignment\[0\] must lie in 0…2, got \[0, 3\]"),
        ([((2,), (0,))], r"blocks of assignment\[0\] must lie in 0…1, got \[2\]"),
        ([((0.5,), (0,))], "whole numbers, got dtype float64"),
    ],
)
def test_impossible_assignments(assignment, message):
    with pytest.raises((ValueError, TypeError), match=message):
        blocks.check_assignment(assignment, 2, 3)


# --- dealing --------------------------------------------------------------------------------------------------------


def test_every_holder_of_a_class_has_all_of_it_unless_told():
    parts = deal(LABELS, THREE, rng())
    for part, one in zip(parts, THREE, strict=True):
        assert part.tolist() == np.flatnonzero(np.isin(LABELS, one.classes)).tolist()


@pytest.mark.parametrize(("overlap", "common"), [(0.0, 0), (0.4, 40), (1.0, 100)])
def test_holders_share_a_part_and_divide_the_rest(overlap, common):
    parts = [set(part.tolist()) for part in deal(LABELS, THREE, rng(), overlap=overlap)]
    of_class_1 = [{i for i in part if LABELS[i] == 1} for part in parts]
    assert len(set.intersection(*of_class_1)) == common
    assert set.union(*of_class_1) == set(range(100, 200)), "nothing is lost"
    assert sorted(len(mine) - common for mine in of_class_1) == sorted(map(len, np.array_split(range(100 - common), 3)))
    assert {i for i in parts[0] if LABELS[i] == 0} == set(range(100)), "a class with one holder"
    assert not any(LABELS[i] == 3 for part in parts for i in part), "a class that nobody holds"


def test_missing_samples_are_nobodys():
    parts = deal(LABELS, THREE, rng(), missing=0.25)
    held = set().union(*(part.tolist() for part in parts))
    assert [sum(LABELS[i] == c for i in held) for c in range(4)] == [75, 75, 75, 0]
    assert set(parts[2].tolist()) <= set(parts[0].tolist()), "the same are missing on all"


# --- cutting --------------------------------------------------------------------------------------------------------


def test_quadrants_are_an_image_when_put_together():
    x = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).reshape(2, 3, 4, 6)
    cut = blocks.quadrants(x)
    assert list(cut) == list(QUADRANTS)
    upper, lower = (torch.cat([cut[f"{row} left"], cut[f"{row} right"]], 3) for row in ("top", "bottom"))
    assert torch.equal(torch.cat([upper, lower], 2), x)
    coloured = blocks.coloured_quadrants(x)
    assert len(coloured) == 12
    for c, colour in enumerate(("red", "green", "blue")):
        assert torch.equal(coloured[f"bottom left, {colour}"][:, 0], x[:, c, 2:, :3])


@pytest.mark.parametrize("shape", [(2, 1, 5, 4), (2, 1, 4, 5), (2, 4, 4)])
def test_images_that_have_no_quadrants(shape):
    with pytest.raises(ValueError, match=r"x must be images of shape .* with even sides"):
        blocks.quadrants(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"x must be images of shape \(n, 3, height, width\)"):
        blocks.coloured_quadrants(torch.zeros(2, 1, 4, 4))


# --- federations ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_images(monkeypatch):
    """40 training and 10 test images of each of ten classes, 28 × 28, in which every pixel is known."""

    def pictures(n: int, channels: int = 1, side: int = 28):
        y = np.tile(np.arange(10), n)
        x = (np.arange(y.size * channels * side * side) % 251).astype(np.uint8).reshape(-1, channels, side, side)
        half = np.full(channels, 0.5, np.float32)
        return pooled.Pictures(x, y, half, half, tuple("abcdefghij"))

    monkeypatch.setattr(pooled, "load_halves", lambda family, names: (pictures(40), pictures(10)))
    monkeypatch.setattr(pooled, "load_cifar10_halves", lambda: (pictures(40, 3, 32), pictures(10, 3, 32)))


@pytest.mark.parametrize("make", [blocks.fashion_mnist, blocks.mnist, blocks.cifar10])
def test_a_federation_of_quadrants(small_images, make):
    fed = make(3)
    assert fed.name == f"blocks.{make.__name__}"
    side = fed.x_test["top left"].shape[-1]
    assert len(fed) == 6
    for client, one in zip(fed, ASSIGNMENTS["table 4"], strict=True):
        held = [name for name in QUADRANTS if 0 not in client.shapes[name]]
        assert held == [QUADRANTS[b] for b in one.blocks]
        assert sorted(set(client.y_train.tolist())) == list(one.classes)
        assert (client.n_train, client.n_test) == (200, 100)
        assert torch.equal(client.x_test[held[0]], fed.x_test[held[0]])
    assert all(fed.x_test[name].shape == (100, fed.x_test[name].shape[1], side, side) for name in QUADRANTS)
    assert fed.info["unused_cells"] == 0
    assert np.array(fed.info["holders"]).shape == (4, 10)
    json.dumps(dict(fed.info))
    assert blocks.shares(fed).tolist() == [0.5] * 6
    assert fed.of_common_blocks().full_shapes.keys() == {"top left", "bottom left"}


def test_the_same_sample_is_cut_alike_for_all(small_images):
    """Clients 0 and 2 hold the same classes: their common blocks are of the same images, in the same order."""
    fed = blocks.fashion_mnist()
    for name in ("top left", "bottom left"):
        assert torch.equal(fed[0].x_train[name], fed[2].x_train[name])
    train, _ = pooled.load_halves("", ())
    whole = train.inputs(np.flatnonzero(train.y < 5))
    assert torch.equal(fed[0].x_train["top right"], whole[:, :, :14, 14:])


def test_one_client_with_everything_and_fewer_images(small_images):
    fed = blocks.mnist(assignment="centralised", per_class=7, test_per_class=2)
    assert len(fed) == 1
    assert (fed[0].n_train, fed[0].n_test, len(fed.y_test)) == (70, 20, 20)
    assert all(0 not in shape for shape in fed[0].shapes.values())
    assert np.bincount(fed[0].y_train).tolist() == [7] * 10


def test_settings_are_judged_on_training_images(small_images):
    """A fifth of each class, which nobody trains on; none of the true test images."""
    fed = blocks.fashion_mnist(1, tested_on="validation", assignment="centralised")
    assert np.bincount(fed.y_test).tolist() == [8] * 10
    assert np.bincount(fed[0].y_train).tolist() == [32] * 10
    train, _ = pooled.load_halves("", ())
    known = {image.tobytes() for image in train.inputs(np.arange(400))[:, :, :14, :14].contiguous().numpy()}
    parts = [{image.tobytes() for image in x["top left"].contiguous().numpy()} for x in (fed[0].x_train, fed.x_test)]
    assert set.union(*parts) <= known
    with pytest.raises(ValueError, match="tested_on must be"):
        blocks.mnist(tested_on="both")


def test_twelve_blocks_of_cifar10(small_images):
    fed = blocks.cifar10(cut="quadrants and colours", assignment=[(range(12), (0, 1)), ((0, 11), (1,))], overlap=0.5)
    assert [len([s for s in c.shapes.values() if 0 not in s]) for c in fed] == [12, 2]
    assert fed.x_test["top left, red"].shape == (100, 1, 16, 16)
    assert fed.info["unused_cells"] == pytest.approx(0.8)
    assert fed[1].n_train == 20 + 10


def test_the_dealing_depends_on_the_seed(small_images):
    a, b, c = (blocks.mnist(seed, overlap=0.0) for seed in (0, 0, 1))
    assert a.fingerprint() == b.fingerprint() != c.fingerprint()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"overlap": 1.5}, r"overlap must .* \[0, 1\], got 1.5"),
        ({"missing": 1.0}, r"missing must .* \[0, 1\), got 1.0"),
        ({"per_class": 0}, "per_class must be .* at least 1, got 0"),
        ({"assignment": "table 3"}, "assignment must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_arguments_are_refused_before_files_are_read(bad, message):
    with pytest.raises(ValueError, match=message):
        blocks.fashion_mnist(**bad)


@pytest.mark.realdata("blocks.fashion_mnist")
def test_the_real_fashion_mnist():
    fed = blocks.fashion_mnist(per_class=600)
    assert {c.n_train for c in fed} == {3000}
    assert {c.n_test for c in fed} == {10000}
    assert -1 <= float(fed.x_test["top left"].min()) < float(fed.x_test["top left"].max()) <= 1


def test_data_at_hand_are_dealt_as_the_pictures_are():
    """Blocks of whatever shape; the same stream deals them as it deals the catalogue's."""
    y, y_test = np.repeat(np.arange(3), 10), np.arange(6) % 3
    x = {"wide": torch.arange(90.0).reshape(30, 3), "flat": torch.arange(30.0)[:, None]}
    x_test = {"wide": torch.zeros(6, 3), "flat": torch.ones(6, 1)}
    table = [((0,), (0, 1)), ((0, 1), (1, 2))]
    made = blocks.federate(x, y, x_test, y_test, table, seed=3, overlap=0.4, missing=0.2, name="mine")
    parts = blocks.deal(y, table, numpy_stream(3, SERVER, 0, "blocks"), overlap=0.4, missing=0.2)
    for client, part in zip(made, parts, strict=True):
        np.testing.assert_array_equal(client.x_train["wide"][:, 0], 3.0 * part)
        np.testing.assert_array_equal(client.y_train, y[part])
        assert len(client.y_test) == 6
    assert made["client-0"].x_train["flat"].shape[1:] == (0,)
    assert made.name == "mine"
    assert made.info["holders"] == [[1, 2, 1], [0, 1, 1]]
    assert made.info["unused_cells"] == 1 / 6
    assert made.n_classes == 3
    held_out = blocks.federate(x, y, x_test, y_test, "centralised", tested_on="validation", info={"simulated": True})
    (one,) = held_out
    assert (one.n_train, len(one.y_test)) == (24, 6)
    assert held_out.info["simulated"]
    seen = torch.cat([one.x_train["flat"], one.x_test["flat"]]).flatten()
    assert sorted(seen.tolist()) == list(range(30)), "each sample trains or judges"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": {"b": torch.zeros(2, 1)}}, "x_test must have the blocks of x, .'a'., got .'b'."),
        ({"x": {"a": torch.zeros(3, 1)}}, r"x\['a'\] must have a row for each of 2 labels, got shape \(3, 1\)"),
        ({"n_classes": 1}, "labels of x must lie in 0…0, got 0 to 1"),
        ({"assignment": [((1,), (0,))]}, "blocks of assignment.0. must lie in 0…0"),
    ],
)
def test_data_that_do_not_fit_are_refused(changes, message):
    two = {"a": torch.zeros(2, 1)}
    call = {"x": two, "y": [0, 1], "x_test": two, "y_test": [0, 1], "assignment": [((0,), (0, 1))]} | changes
    with pytest.raises(ValueError, match=message):
        blocks.federate(**call)
