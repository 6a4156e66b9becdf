import gzip
import json
import warnings

import numpy as np
import pytest
import torch

from hetfl_core.datasets import DataError, femnist, registry
from hetfl_core.federation import FederationWarning


def leaf(writers):
    """A shard in LEAF's format: name → (grey levels (n, 784), labels)."""
    return {
        "users": list(writers),
        "num_samples": [len(y) for _, y in writers.values()],
        "user_data": {name: {"x": (x / 255).tolist(), "y": list(map(int, y))} for name, (x, y) in writers.items()},
    }


def made(labels, seed):
    return np.random.default_rng(seed).integers(0, 256, (len(labels), 784)), np.array(labels)


WRITERS = {
    # name: (shard, training labels, test labels)
    "f0001_10": ("0", [0, 1, 2, 40, 3], [1, 2, 61]),
    "f0002_20": ("0", [7, 7, 10, 8], [7, 8]),
    "f0003_30": ("0", [35, 36], [3]),  # no digit to train on
    "f0004_40": ("9", [4, 5, 6], [50]),  # no digit to test on
    "f0005_50": ("9", [9, 9], [9]),
}


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Four made shards, of which 9 is not packed, in the place of the real ones."""
    paths = {}
    for part, column in (("train", 1), ("test", 2)):
        for shard in ("0", "9"):
            key = f"flic/femnist/{part}/{shard}"
            mine = {n: made(w[column], i + 10 * column) for i, (n, w) in enumerate(WRITERS.items()) if w[0] == shard}
            content = json.dumps(leaf(mine)).encode()
            paths[key] = tmp_path / f"{part}-{shard}.json"
            paths[key].write_bytes(content if shard == "9" else gzip.compress(content))
    monkeypatch.setattr(femnist, "fetch", paths.__getitem__)
    monkeypatch.setattr(femnist, "needs", lambda dataset: list(paths))
    return paths


def test_writers_with_digits_in_both_splits_become_clients(shards):
    federation = femnist.digits(3, variant="code")
    assert [c.name for c in federation] == ["f0001_10", "f0002_20", "f0005_50"]
    assert [c.y_train.tolist() for c in federation] == [[0, 1, 2, 3], [7, 7, 8], [9, 9]]
    assert [c.y_test.tolist() for c in federation] == [[1, 2], [7, 8], [9]]
    assert federation.n_classes == 10
    assert federation.info["writers_at_hand"] == 3
    assert federation.info["simulated"] is False
    json.dumps(dict(federation.info))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda x: 2 * x - 1),
        ({"variant": "code"}, lambda x: x / 10),
        ({"scaling": "tenth"}, lambda x: x / 10),
        ({"variant": "code", "scaling": "symmetric"}, lambda x: 2 * x - 1),
    ],
)
def test_pixels_are_those_of_the_digits_scaled(shards, options, expected):
    client = femnist.digits(3, **options)["f0001_10"]
    x, y = made(WRITERS["f0001_10"][1], 10)
    assert client.x_train.dtype == torch.float32
    torch.testing.assert_close(client.x_train, torch.tensor(expected(x[y < 10] / 255), dtype=torch.float32))


def test_the_text_draws_writers_by_seed_and_the_code_takes_the_first(shards):
    chosen = {tuple(c.name for c in femnist.digits(2, seed)) for seed in range(20)}
    assert len(chosen) == 3  # all pairs of three writers
    assert all(list(names) == sorted(names) for names in chosen)  # in the order of the shards
    first = {tuple(c.name for c in femnist.digits(2, seed, variant="code")) for seed in range(20)}
    assert first == {("f0001_10", "f0002_20")}
    assert femnist.digits(2, 5).fingerprint() == femnist.digits(2, 5).fingerprint()


def test_more_writers_than_there_are(shards):
    with pytest.raises(ValueError, match="n_clients must lie in 1…3, the number of writers at hand, got 4"):
        femnist.digits(4)


@pytest.mark.parametrize("make", [femnist.digits, femnist.characters])
def test_no_writers_are_refused_before_any_file_is_read(make, monkeypatch):
    monkeypatch.setattr(femnist, "load_writers", lambda *a: pytest.fail("files were read"))
    with pytest.raises(ValueError, match="n_clients must be a whole number of at least 1, got 0"):
        make(0)


def test_unknown_options_are_refused(shards):
    with pytest.raises(ValueError, match="scaling must be one of 'symmetric', 'tenth', got 'unit'"):
        femnist.digits(2, scaling="unit")
    with pytest.raises(ValueError, match="variant"):
        femnist.digits(2, variant="paper")


def test_a_digit_that_is_only_tested_is_warned_of(shards):
    writers = {"f0001_10": made([1, 2], 0)}
    shards["flic/femnist/train/0"].write_bytes(json.dumps(leaf(writers)).encode())
    shards["flic/femnist/test/0"].write_bytes(json.dumps(leaf({"f0001_10": made([3], 0)})).encode())
    femnist._load.cache_clear()
    with pytest.warns(FederationWarning, match=r"f0001_10.*\[3\]"):
        femnist.digits(1, variant="code")


# --- damaged files ------------------------------------------------------------------------------------------------

GOOD = leaf({"f0001_10": made([1, 2], 0)})


def changed(**changes):
    return json.dumps({**GOOD, **changes}).encode()


def data(x, y):
    return {"user_data": {"f0001_10": {"x": x, "y": y}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a FEMNIST shard"),
        (json.dumps(GOOD).encode()[:-40], "cannot be read as a FEMNIST shard"),
        (gzip.compress(json.dumps(GOOD).encode(), mtime=0)[:-12], "cannot be read as a FEMNIST shard"),
        (b"[1, 2]", "expected users, num_samples and user_data"),
        (changed(users=["f0009_90"]), "expected users, num_samples and user_data.*f0009_90"),
        (changed(users=["f0001_10", "f0002_20"]), "expected users, num_samples and user_data"),
        (changed(num_samples=[3]), r"writer 'f0001_10': expected 3 images of 784 pixels and 3 labels, got \(2, 784\)"),
        (changed(**data([[0.0] * 783] * 2, [1, 2])), r"expected 2 images of 784 pixels .* got \(2, 783\)"),
        (changed(**data([[0.0] * 784] * 2, [1])), r"and 2 labels, got \(2, 784\) and \(1,\)"),
        (changed(**data([[0.0] * 784, [0.5] * 784], [1, 2])), "multiples of 1/255"),
        (changed(**data([[0.0] * 784, [2.0] * 784], [1, 2])), "multiples of 1/255 in 0…1"),
        (changed(**data([[0.0] * 784] * 2, [1, 62])), "expected labels 0…61, got 1 to 62"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path, content, message):
    path = tmp_path / "shard.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        femnist.read_shard(path)
    assert str(path) in str(caught.value)


def test_a_missing_shard_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    monkeypatch.setattr(registry, "_try", lambda *args: "no network")
    with pytest.raises(DataError, match=r"flic/femnist/train/0: could not be downloaded.*HETFL_DATA"):
        femnist.digits()


@pytest.mark.filterwarnings("ignore::hetfl_core.federation.FederationWarning")
def test_all_characters_of_a_writer_become_a_client(shards):
    """Also of those who wrote no digit; classes are 62, whoever is chosen."""
    federation = femnist.characters(5)
    assert {c.name: c.y_train.tolist() for c in federation} == {name: of[1] for name, of in WRITERS.items()}
    assert {c.name: c.y_test.tolist() for c in federation} == {name: of[2] for name, of in WRITERS.items()}
    assert federation.n_classes == 62
    assert [federation.info["class_names"][c] for c in (9, 10, 35, 36, 61)] == ["9", "A", "Z", "a", "z"]
    x, _ = femnist.read_shard(shards["flic/femnist/train/9"])["f0004_40"]
    np.testing.assert_allclose(federation["f0004_40"].x_train.numpy(), 2 * (x / 255) - 1, atol=1e-6)
    few = [c.name for c in femnist.characters(2, seed=3)]
    assert few == [c.name for c in femnist.characters(2, seed=3)]
    assert len({tuple(c.name for c in femnist.characters(2, seed=s)) for s in range(6)}) > 1
    with pytest.raises(ValueError, match="n_clients must lie in 1…5, the number of writers at hand, got 6"):
        femnist.characters(6)
    with pytest.raises(ValueError, match="dataset must be"):
        femnist.load_writers("femnist.letters")


# --- the real files: what is known of them ------------------------------------------------------------------------


@pytest.mark.realdata("femnist.digits")
def test_real_counts(monkeypatch):
    read, shards = femnist.read_shard, {}
    monkeypatch.setattr(femnist, "read_shard", lambda path: shards.setdefault(path, read(path)))
    femnist._load.cache_clear()
    writers = femnist.load_writers()
    labels = [y for path, shard in shards.items() if "_train_" in path.name for _, y in shard.values()]
    assert len(labels) == 110
    assert sum(len(y) for y in labels) == 14_697
    assert sum(int((y < 10).sum()) for y in labels) == 10_113
    assert len(writers) == 105
    assert sum(len(w.y_train) for w in writers) == 10_112  # one writer with one digit has none to test on
    assert sum(len(w.y_test) for w in writers) == 1_147
    assert np.median([len(w.y_train) for w in writers]) == 104
    x = np.concatenate([w.x_train for w in writers])
    assert (x.min(), x.max()) == (0, 255)
    assert np.median(x) == 255  # bright paper


@pytest.mark.realdata("femnist.digits")
def test_real_digits_look_like_digits():
    # nearest class mean, trained on some writers and tested on the others
    writers = femnist.load_writers()
    x, y = (np.concatenate([w[i] for w in writers[:80]]) for i in (1, 2))
    means = np.stack([x[y == c].mean(0) for c in range(10)])
    x, y = (np.concatenate([w[i] for w in writers[80:]]) for i in (1, 2))
    guess = ((x[:, None] - means) ** 2).sum(2).argmin(1)
    assert (guess == y).mean() > 0.6


@pytest.mark.realdata("femnist.digits")
def test_real_seeds_choose_different_writers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)
        a, b = (femnist.digits(50, seed) for seed in (0, 1))
        everyone = femnist.digits(105)
    assert 10 < len({c.name for c in a} & {c.name for c in b}) < 40  # 24 expected
    assert [c.name for c in everyone] == [w.name for w in femnist.load_writers()]
    assert {c.shapes for c in everyone} == {(784,)}


@pytest.mark.parametrize("grey", [-1, 256])
def test_a_grey_level_outside_a_byte_is_refused(grey):
    x = np.zeros((2, 784))
    x[1, 3] = grey / 255
    with pytest.raises(DataError, match="here: expected pixels that are multiples of 1/255"):
        femnist._samples({"x": x.tolist(), "y": [1, 2]}, 2, "here")
    x[1, 3] = 1
    assert femnist._samples({"x": x.tolist(), "y": [1, 2]}, 2, "here")[0].max() == 255


@pytest.mark.realdata("femnist.characters")
def test_real_characters_are_those_of_the_card():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)
        federation = femnist.characters()
    specs = federation.specs()
    assert (len(federation), sum(s.n_train for s in specs), sum(len(c.y_test) for c in federation)) == (
        110,
        14697,
        1695,
    )
    assert np.median([s.n_train for s in specs]) == 149
    assert np.median([len(s.classes) for s in specs]) == 50
    assert sum(bool(set(c.y_test.tolist()) - set(s.classes)) for c, s in zip(federation, specs, strict=True)) == 106
