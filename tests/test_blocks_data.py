"""Federations of blocks: who holds which cell, how samples are dealt, how images are cut, and the real ones."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from hetfl_book.experiments import EXPERIMENTS
from hetfl_book.ledger.published import paper_table
from hetfl_core.datasets import DataError, blocks, image_files
from hetfl_core.datasets.blocks import ASSIGNMENTS, QUADRANTS, BlockPartition, Holding, holders
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


def test_of_modelnet40_1_and_of_table_3_no_classes_are_published():
    """Only how many each client holds, so that no assignment bears their names."""
    few = paper_table("hyfem", 2).query("setting == 'ModelNet40:1'").set_index("metric")["value"].astype(int)
    assert few[["clients M", "most feature blocks per client d_m", "classes per client"]].tolist() == [4, 3, 20]
    table = paper_table("hyfem", 3)
    assert set(table["metric"]) == {"feature block held", "classes"}
    assert set(table[table["metric"] == "classes"]["value"]) == {25}
    ours = {"9 clients", "12 views", "4 views"}
    assert set(ASSIGNMENTS) - ours == {"table 4", "modelnet40:2", "herigraph"}


def test_herigraphs_assignment_has_the_papers_numbers_and_no_cell_without_holder():
    """Appendix C.3: six clients, two of four blocks and six of nine classes each."""
    assignment = ASSIGNMENTS["herigraph"]
    assert [one.blocks for one in assignment] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert {len(one.classes) for one in assignment} == {6}
    count = holders(assignment, 4, 9)
    assert count.sum(axis=0).tolist() == [8] * 9, "each class is on four clients"
    assert 1 <= count.min() <= count.max() <= 3


def test_nine_clients_have_the_papers_numbers():
    """Table 2's of CIFAR-10 and EuroSAT: 9 clients, 6 to 8 of 12 blocks, 5 of 10 classes; nothing is on all of them."""
    printed = paper_table("hyfem", 2).query("setting == 'Cifar-10'").set_index("metric")["value"].astype(int)
    assignment = ASSIGNMENTS["9 clients"]
    sizes = [len(one.blocks) for one in assignment]
    assert len(assignment) == printed["clients M"]
    assert min(sizes) == printed["least feature blocks per client d_m"]
    assert max(sizes) == printed["most feature blocks per client d_m"]
    assert {len(one.classes) for one in assignment} == {printed["classes per client"]}
    assert not set.intersection(*(set(one.blocks) for one in assignment))
    assert not set.intersection(*(set(one.classes) for one in assignment))
    assert (holders(assignment, 12, 10) > 0).all()


def test_centralised_is_one_client_with_everything():
    assert blocks.checked_holdings("centralised", 2, 3) == (Holding((0, 1), (0, 1, 2)),)


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
        blocks.checked_holdings(assignment, 2, 3)


# --- dealing --------------------------------------------------------------------------------------------------------


def test_every_holder_of_a_class_has_all_of_it_unless_told():
    parts = BlockPartition(THREE).deal(LABELS, THREE, rng())
    for part, one in zip(parts, THREE, strict=True):
        assert part.tolist() == np.flatnonzero(np.isin(LABELS, one.classes)).tolist()


@pytest.mark.parametrize(("overlap", "common"), [(0.0, 0), (0.4, 40), (1.0, 100)])
def test_holders_share_a_part_and_divide_the_rest(overlap, common):
    parts = [set(part.tolist()) for part in BlockPartition(THREE, overlap=overlap).deal(LABELS, THREE, rng())]
    of_class_1 = [{i for i in part if LABELS[i] == 1} for part in parts]
    assert len(set.intersection(*of_class_1)) == common
    assert set.union(*of_class_1) == set(range(100, 200)), "nothing is lost"
    assert sorted(len(mine) - common for mine in of_class_1) == sorted(map(len, np.array_split(range(100 - common), 3)))
    assert {i for i in parts[0] if LABELS[i] == 0} == set(range(100)), "a class with one holder"
    assert not any(LABELS[i] == 3 for part in parts for i in part), "a class that nobody holds"


def test_missing_samples_are_nobodys():
    parts = BlockPartition(THREE, missing=0.25).deal(LABELS, THREE, rng())
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

    def made(n: int, channels: int = 1, side: int = 28):
        y = np.tile(np.arange(10), n)
        x = (np.arange(y.size * channels * side * side) % 251).astype(np.uint8).reshape(-1, channels, side, side)
        return image_files.symmetric(x, y, tuple("abcdefghij"))

    for name, shape in (("FASHION", (1, 28)), ("MNIST", (1, 28)), ("CIFAR10", (3, 32))):
        load = lambda shape=shape: (made(40, *shape), made(10, *shape))  # noqa: E731
        monkeypatch.setattr(image_files, name, replace(getattr(image_files, name), load=load))
    monkeypatch.setattr(image_files, "load_eurosat", lambda side: (made(40, 3, side), made(10, 3, side)))


@pytest.mark.parametrize(("name", "clients"), [("quadrants-eurosat", 6), ("colours-eurosat", 9)])
def test_experiments_on_eurosat_run_once_the_file_is_there(small_images, name, clients):
    experiment = replace(EXPERIMENTS[f"hyfem/{name}"].at("book"), rounds=1, evaluate_every=1)
    for method, n in (("HyFEM", clients), ("centralised", 1)):
        found = experiment.run(method, 0, progress=False, device="cpu")
        assert len(found.federation) == n
        assert 0 <= found.final["server_accuracy"] <= 1


@pytest.mark.parametrize("make", [blocks.fashion_mnist, blocks.mnist, blocks.cifar10, blocks.eurosat])
def test_a_federation_of_quadrants(small_images, make):
    fed = make(seed=3)
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
    assert fed.of_common_blocks().full_shapes.keys() == {"top left", "bottom left"}


def test_the_same_sample_is_cut_alike_for_all(small_images):
    """Clients 0 and 2 hold the same classes: their common blocks are of the same images, in the same order."""
    fed = blocks.fashion_mnist()
    for name in ("top left", "bottom left"):
        assert torch.equal(fed[0].x_train[name], fed[2].x_train[name])
    train, _ = image_files.FASHION.load()
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
    fed = blocks.fashion_mnist(seed=1, tested_on="validation", assignment="centralised")
    assert np.bincount(fed.y_test).tolist() == [8] * 10
    assert np.bincount(fed[0].y_train).tolist() == [32] * 10
    train, _ = image_files.FASHION.load()
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
    a, b, c = (blocks.mnist(seed=seed, overlap=0.0) for seed in (0, 0, 1))
    assert a.fingerprint() == b.fingerprint() != c.fingerprint()
    assert blocks.mnist(seed=0).fingerprint() == blocks.mnist(seed=1).fingerprint(), "who has all has the same"
    judged = [blocks.mnist(seed=seed, tested_on="validation").fingerprint() for seed in (0, 1)]
    assert judged[0] != judged[1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"overlap": 1.5}, r"overlap must .* \[0, 1\], got 1.5"),
        ({"missing": 1.0}, r"missing must .* \[0, 1\), got 1.0"),
        ({"per_class": 0}, "per_class must be at least 1, got 0"),
        ({"assignment": "table 3"}, "assignment must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_arguments_are_refused_before_files_are_read(bad, message):
    with pytest.raises(ValueError, match=message):
        blocks.fashion_mnist(**bad)


# --- EuroSAT's archive ----------------------------------------------------------------------------------------------


def jpeg(colour, side=64):
    content = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(content, "JPEG", quality=100, subsampling=0)
    return content.getvalue()


def shade(c, i):
    return (20 * c, 10 * i, 100)


@pytest.fixture
def eurosat(tmp_path, monkeypatch):
    """Writes an archive with ten images of each class, each of one colour that tells its class and number."""
    path = tmp_path / "EuroSAT.zip"
    monkeypatch.setattr(image_files, "fetch", {"eurosat/archive": path}.__getitem__)

    def write(changes=None, folder="2750"):
        names = {
            f"{folder}/{k}/{k}_{i}.jpg": (c, i) for c, k in enumerate(image_files.EUROSAT_CLASSES) for i in range(1, 11)
        }
        files = {name: jpeg(shade(c, i)) for name, (c, i) in names.items()}
        files |= dict.fromkeys((f"{folder}/.DS_Store", f"{folder}/Forest/._Forest_1.jpg", f"{folder}/README.md"), b"x")
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (files | (changes or {})).items():
                if content is not None:
                    archive.writestr(name, content)
        return path

    return write


@pytest.mark.parametrize("folder", ["2750", "EuroSAT_RGB"])
def test_eurosat_keeps_two_images_of_ten_for_tests(eurosat, folder):
    eurosat(folder=folder)
    train, test = image_files.load_eurosat()
    assert (train.x.shape, test.x.shape) == ((80, 3, 64, 64), (20, 3, 64, 64))
    assert np.bincount(test.y).tolist() == [2] * 10
    seen = []
    for half in (train, test):
        for image, c in zip(half.x, half.y, strict=True):
            red, green, blue = image.mean(axis=(1, 2))
            assert abs(red - 20 * c) < 3
            assert abs(blue - 100) < 3
            seen.append((int(c), round(green / 10)))
    assert sorted(seen) == [(c, i) for c in range(10) for i in range(1, 11)], "each image once"
    again = image_files.load_eurosat()
    assert (again[1].x == test.x).all()
    assert image_files.as_one(image_files.load_eurosat()).y.tolist() == [*train.y, *test.y]


def test_eurosats_seed_deals_but_does_not_split(eurosat):
    eurosat()
    feds = [blocks.eurosat(seed=seed, overlap=0.0, resize=16, per_class=5) for seed in (0, 1)]
    for name in QUADRANTS:
        assert torch.equal(feds[0].x_test[name], feds[1].x_test[name])
        assert feds[0].x_test[name].shape == (20, 3, 8, 8)
    assert feds[0].fingerprint() != feds[1].fingerprint()
    assert feds[0].info["source"].endswith("; a part, 100 of 27000 images")
    assert feds[0].info["settings"]["resize"] == 16
    assert feds[0].info["class_names"][9] == "SeaLake"
    red = feds[0].x_test["top left"][:, 0].mean(dim=(1, 2))
    assert torch.allclose(red, 20 * feds[0].y_test / 127.5 - 1, atol=0.03), "−1 … 1"
    twelve = blocks.eurosat(cut="quadrants and colours", assignment="centralised")
    assert twelve.x_test["bottom right, blue"].shape == (20, 1, 32, 32)


def test_a_smaller_image_has_the_means_of_the_pixels(eurosat):
    """A chequered image, whose fields of two pixels are alternately 0 and 200, is 100 everywhere at a quarter of it."""
    fields = np.kron(np.indices((32, 32)).sum(0) % 2, np.ones((2, 2)))[..., None] * [200, 200, 200]
    content = io.BytesIO()
    Image.fromarray(fields.astype(np.uint8)).save(content, "PNG")
    eurosat({"2750/Forest/Forest_1.jpg": content.getvalue()})
    both = [half.x[half.y == 1] for half in image_files.load_eurosat(16)]
    found = [image for image in np.concatenate(both) if abs(float(image[2].mean()) - 100) < 1 and image[0].mean() > 90]
    assert len(found) == 1
    assert set(found[0].ravel().tolist()) <= {99, 100, 101}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"2750/Town/Town_1.jpg": jpeg("red")},
            r"EuroSAT.zip: expected images .*EuroSAT's classes, got 2750/Town/Town_1",
        ),
        ({"2750/River/Forest_3.jpg": jpeg("red")}, "expected images .* got 2750/River/Forest_3.jpg"),
        ({"loose.jpg": jpeg("red")}, "expected images .* got loose.jpg"),
        ({"2750/River/River_3.jpg": b"no image"}, "EuroSAT.zip: 2750/River/River_3.jpg cannot be read as an image"),
        (
            {"2750/River/River_3.jpg": jpeg("red")[:-200]},
            "2750/River/River_3.jpg cannot be read as an image: .*(?i:truncated)",
        ),
        ({"2750/River/River_3.jpg": jpeg("red", 32)}, "River_3.jpg: expected an image of 64 × 64 pixels, got 32 × 32"),
        ({f"2750/River/River_{i}.jpg": None for i in range(1, 11)}, "EuroSAT's ten classes, lacks River"),
    ],
)
def test_archives_that_are_not_eurosats(eurosat, changes, message):
    eurosat(changes)
    with pytest.raises(DataError, match=message):
        image_files.load_eurosat()


def test_a_damaged_archive(eurosat):
    path = eurosat()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"EuroSAT\.zip cannot be unpacked"):
        image_files.load_eurosat()


def test_eurosats_memory_is_that_of_images_read_and_of_those_dealt(eurosat, memory_asked):
    eurosat()
    blocks.eurosat(resize=8, per_class=3, test_per_class=1)
    assert memory_asked[:2] == [3 * 64 * (27_000 + 4 * 40), 3 * 64 * 100]
    blocks.eurosat(resize=8)
    assert memory_asked[3] == pytest.approx(3 * 64 * 27_000 * 5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"resize": 7}, "resize must be even, .* got 7"),
        ({"resize": 128}, "resize must be .* 2…64, got 128"),
        ({"cut": "halves"}, "cut must be one of"),
        ({"per_class": 0}, "per_class must be"),
    ],
)
def test_eurosats_bad_arguments_are_refused_before_a_file_is_read(monkeypatch, bad, message):
    monkeypatch.setattr(image_files, "fetch", lambda key: pytest.fail(f"reads {key}"))
    with pytest.raises(ValueError, match=message):
        blocks.eurosat(**bad)


@pytest.mark.realdata("blocks.eurosat")
def test_the_real_eurosat():
    train, test = image_files.load_eurosat(8)
    assert np.bincount(np.concatenate([train.y, test.y])).tolist() == [
        *(3000, 3000, 3000, 2500, 2500),
        *(2000, 2500, 3000, 2500, 3000),
    ]
    assert len(test.y) == 5400


@pytest.mark.realdata("blocks.fashion_mnist")
def test_the_real_fashion_mnist():
    fed = blocks.fashion_mnist(per_class=600)
    assert {c.n_train for c in fed} == {3000}
    assert {c.n_test for c in fed} == {10000}
    assert -1 <= float(fed.x_test["top left"].min()) < float(fed.x_test["top left"].max()) <= 1


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_samples_to_hold_any_out(n):
    x, y = {"flat": torch.zeros(3 * n, 1)}, np.repeat(np.arange(3), n)
    says = rf"tested_on='validation' holds out a share of 0.2 of each class, .* got {3 * n} training samples"
    with pytest.raises(ValueError, match=says):
        blocks.federate(x, y, x, y, assignment="centralised", n_classes=3, tested_on="validation")


def test_too_few_images_to_hold_any_out(monkeypatch):
    two = image_files.symmetric(np.zeros((20, 28, 28), np.uint8), np.arange(20) % 10, tuple("abcdefghij"))
    monkeypatch.setattr(image_files, "MNIST", replace(image_files.MNIST, load=lambda: (two, two)))
    with pytest.raises(ValueError, match="got 20 training samples of 10 classes, too few for one"):
        blocks.mnist(tested_on="validation")


def test_data_at_hand_are_dealt_as_the_pictures_are():
    """Blocks of whatever shape; the same stream deals them as it deals the catalogue's."""
    y, y_test = np.repeat(np.arange(3), 10), np.arange(6) % 3
    x = {"wide": torch.arange(90.0).reshape(30, 3), "flat": torch.arange(30.0)[:, None]}
    x_test = {"wide": torch.zeros(6, 3), "flat": torch.ones(6, 1)}
    table = [((0,), (0, 1)), ((0, 1), (1, 2))]
    dealing = BlockPartition(table, overlap=0.4, missing=0.2)
    made = blocks.federate(x, y, x_test, y_test, dealing, seed=3, name="mine")
    parts = dealing.deal(y, dealing.holdings(2, 3), numpy_stream(3, SERVER, 0, "blocks"))
    for client, part in zip(made, parts, strict=True):
        np.testing.assert_array_equal(client.x_train["wide"][:, 0], 3.0 * part)
        np.testing.assert_array_equal(client.y_train, y[part])
        assert len(client.y_test) == 6
    assert made["client-0"].x_train["flat"].shape[1:] == (0,)
    assert made.name == "mine"
    assert made.info["holders"] == [[1, 2, 1], [0, 1, 1]]
    assert made.info["unused_cells"] == 1 / 6
    assert made.n_classes == 3
    more = {"simulated": True, "settings": {"views": 3}}
    held_out = blocks.federate(x, y, x_test, y_test, assignment="centralised", tested_on="validation", info=more)
    assert held_out.info["settings"]["views"] == 3
    assert held_out.info["settings"]["assignment"] == "centralised"
    (one,) = held_out
    assert (one.n_train, len(one.y_test)) == (24, 6)
    assert held_out.info["simulated"]
    seen = torch.cat([one.x_train["flat"], one.x_test["flat"]]).flatten()
    assert sorted(seen.tolist()) == list(range(30)), "each sample trains or judges"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": {"b": torch.zeros(2, 1)}}, "x_test must have the blocks of x, .'a'., got .'b'."),
        ({"x": {"a": torch.zeros(3, 1)}}, r"x\['a'\] must have a row for each of 2 labels in y, got shape \(3, 1\)"),
        ({"n_classes": 1}, "labels in y must lie in 0…0, got 0 to 1"),
        ({"assignment": [((1,), (0,))]}, "blocks of assignment.0. must lie in 0…0"),
    ],
)
def test_data_that_do_not_fit_are_refused(changes, message):
    two = {"a": torch.zeros(2, 1)}
    call = {"x": two, "y": [0, 1], "x_test": two, "y_test": [0, 1], "assignment": [((0,), (0, 1))]} | changes
    with pytest.raises(ValueError, match=message):
        blocks.federate(**call)
