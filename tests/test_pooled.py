"""Pooled image data sets: sizes, classes and splits as FedCR has them, and the files they are read from."""

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from hetfl_book.datasets import fedgen, pfedhn
from hetfl_core.datasets import CATALOGUE, DataError, image_files, pooled

EVERY = {
    "pooled.fashion_mnist": "FASHION",
    "pooled.mnist": "MNIST",
    "pooled.cifar10": "CIFAR10",
    "pooled.cifar100": "CIFAR100",
    "pooled.emnist_letters": "LETTERS",
}
"""The data sets, and where the module keeps what it knows of each."""


def counts(federation, part):
    labels = [getattr(c, f"y_{part}") for c in federation]
    return np.array([torch.bincount(y, minlength=federation.n_classes).tolist() for y in labels])


def numbered(n, n_classes, channels=1, size=2):
    """Images whose pixels spell their number in base 256, so that a test can tell every one from the others."""
    x = np.zeros((n, channels, size, size), dtype=np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(n) // 256, np.arange(n) % 256
    y = np.arange(n) % n_classes
    return image_files.Images(
        x, y, np.zeros(channels, np.float32), np.ones(channels, np.float32), tuple(map(str, range(n_classes)))
    )


def serve_pictures(monkeypatch, name, made, n_images):
    """Made pictures, two thirds of them for training, in the place of a data set of so many."""
    n = 2 * len(made.y) // 3
    halves = made.rows(np.arange(n)), made.rows(np.arange(n, len(made.y)))
    monkeypatch.setattr(image_files, name, replace(getattr(image_files, name), load=lambda: halves, n_images=n_images))


def numbers_of(x):
    return (255 * x[:, 0, 0, :2].double()).round().long() @ torch.tensor([256, 1])


@pytest.fixture
def small(monkeypatch):
    """1 400 made images in the place of Fashion-MNIST's: 20 clients of 5 of the 10 classes get 70 each, 14 a class."""
    made = numbered(1400, 10)
    serve_pictures(monkeypatch, "FASHION", made, 1400)
    return made


# --- the dealing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"variant": "code"}, {"split": "non-iid_2"}, {"per_client": 50}, {"split": "non-iid_2", "per_client": 50}],
)
def test_no_image_is_dealt_twice_and_all_are_dealt_unless_told(small, options):
    federation = pooled.fashion_mnist(n_clients=20, **options)
    each = options.get("per_client", 70)
    assert {(c.n_train, c.n_test) for c in federation} == {(round(0.7 * each), round(0.3 * each))}
    seen = torch.cat([numbers_of(x) for c in federation for x in (c.x_train, c.x_test)])
    labels = torch.cat([y for c in federation for y in (c.y_train, c.y_test)])
    assert len(seen.unique()) == len(seen) == 20 * each
    assert (labels == seen % 10).all(), "each image keeps its label"
    assert [c.name for c in federation] == [f"client-{i:03d}" for i in range(20)]


def test_a_clients_classes_are_split_alike(small):
    federation = pooled.fashion_mnist(n_clients=20, test_fraction=0.5)
    train, test = counts(federation, "train"), counts(federation, "test")
    assert (np.sort(train, axis=1) == [0] * 5 + [7] * 5).all()
    assert (train == test).all()
    assert ((train > 0).sum(axis=0) == 10).all(), "each class has equally many holders"
    assert federation.info["untrained_test_images"] == 0


def test_the_published_code_has_consecutive_classes_and_mixes_before_it_cuts(small):
    federation = pooled.fashion_mnist(n_clients=20, variant="code")
    train, test = counts(federation, "train"), counts(federation, "test")
    for i, row in enumerate(train + test):
        assert np.flatnonzero(row).tolist() == sorted((i + j) % 10 for j in range(5))
        assert set(row.tolist()) == {0, 14}
    assert len(np.unique(test[test > 0])) > 2, "not stratified"
    text = counts(pooled.fashion_mnist(n_clients=20), "train")
    assert len({tuple(row > 0) for row in text}) > 10
    assert len({tuple(row > 0) for row in train}) == 10


def test_dirichlet_clients_are_cut_at_random_and_what_is_untrained_is_counted(small, recwarn):
    federation = pooled.fashion_mnist(n_clients=20, split="non-iid_2", alpha=0.2)
    train, test = counts(federation, "train"), counts(federation, "test")
    assert ((train + test).sum(axis=0) == 140).all(), "every class is used up"
    assert federation.info["untrained_test_images"] == test[train == 0].sum() > 0
    assert not recwarn.list
    same = pooled.fashion_mnist(n_clients=20, classes_per_client=3, split="non-iid_2", alpha=0.2, variant="code")
    assert same.fingerprint() == federation.fingerprint()
    assert same.info == federation.info, "what non-iid_2 does not use is not told"
    assert federation.info["settings"] == {
        "n_clients": 20,
        "classes_per_client": None,
        "seed": 0,
        "split": "non-iid_2",
        "alpha": 0.2,
        "variant": None,
        "per_client": None,
        "test_fraction": 0.3,
    }


@pytest.mark.parametrize("options", [{}, {"variant": "code"}, {"split": "non-iid_2"}])
def test_the_seed_decides(small, options):
    a, b, c = (pooled.fashion_mnist(n_clients=20, seed=s, **options).fingerprint() for s in (0, 0, 1))
    assert a == b != c


def test_alpha_counts(small):
    wide, narrow = (pooled.fashion_mnist(n_clients=20, split="non-iid_2", alpha=a) for a in (100.0, 0.1))
    assert (counts(wide, "train") > 0).sum() > 1.5 * (counts(narrow, "train") > 0).sum()


def test_a_part_of_the_images_needs_a_number_per_client(monkeypatch):
    made = numbered(300, 10)
    serve_pictures(monkeypatch, "FASHION", made, 400)
    with pytest.raises(
        ValueError, match=r"per_client must be given, since the files at hand hold 300 of the 400 images"
    ):
        pooled.fashion_mnist(n_clients=10)
    federation = pooled.fashion_mnist(n_clients=10, per_client=30)
    assert federation.info["source"].endswith("; a part, 300 of 400 images")
    assert sum(c.n_train + c.n_test for c in federation) == 300
    with pytest.raises(ValueError, match=r"per_client must be at most 30 for n_clients=10, as .* got 40"):
        pooled.fashion_mnist(n_clients=10, per_client=40)


@pytest.mark.parametrize("make", [CATALOGUE[name] for name in EVERY])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n_clients": 0}, "n_clients must be at least 1, got 0"),
        ({"n_clients": 10**6}, "n_clients must be .* got 1000000"),
        ({"classes_per_client": 101}, "classes_per_client must be at most the number of classes, .* got 101"),
        (
            {"n_clients": 7, "classes_per_client": 3},
            "n_clients × classes_per_client must be a multiple of .* n_clients=7",
        ),
        (
            {"n_clients": 50, "classes_per_client": 1, "variant": "code", "split": "even"},
            "split must be one of .* 'even'",
        ),
        ({"n_clients": 12, "variant": "code"}, r"n_clients \(as the classes .* follow .*multiple of .* n_clients=12"),
        ({"seed": -1}, "seed must be"),
        ({"alpha": 0}, "alpha must be positive .* got 0"),
        ({"variant": "paper"}, "variant must be .*'paper'"),
        ({"per_client": 16}, "per_client must be a multiple of .*, .* got 16"),
        ({"per_client": 3000}, "per_client must be at most .* for n_clients=100, .* got 3000"),
        ({"test_fraction": 1.0}, r"test_fraction must be in \(0, 1\), got 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_file_is_read(monkeypatch, make, bad, message):
    monkeypatch.setattr(image_files, "fetch", lambda key: pytest.fail(f"reads {key}"))
    with pytest.raises(ValueError, match=message):
        make(**bad)


def test_memory_is_that_of_all_images_read_and_of_those_dealt(memory_asked, small):
    pooled.fashion_mnist(n_clients=20, per_client=50)
    assert memory_asked[0] == 28 * 28 * (1400 + 4 * 1000), "bytes as read, float32 as dealt"


# --- the files ----------------------------------------------------------------------------------------------------


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def records(labels, seed, extra=()):
    """CIFAR's records of random images, with these label bytes, and the images."""
    x = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    heads = np.stack([*extra, np.asarray(labels)], axis=1).astype(np.uint8)
    return np.concatenate([heads, x.reshape(len(x), -1)], axis=1).tobytes(), x


def serve(monkeypatch, paths):
    monkeypatch.setattr(image_files, "fetch", paths.__getitem__)


def test_the_archive_of_cifar_10(monkeypatch, tmp_path):
    made = [records([i % 10, 9 - i], seed=i) for i in range(6)]
    names = [f"cifar-10-batches-bin/{n}.bin" for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
    shuffled = dict(sorted(zip(names, [raw for raw, _ in made]), reverse=True)) | {"cifar-10-batches-bin/readme": b"x"}
    path = tar(tmp_path / "cifar-10-binary.tar.gz", shuffled)
    stand_in = tmp_path / "train.bin.xz"
    for paths in ((path, path), (stand_in, path), (path, stand_in)):  # an archive counts for both
        serve(monkeypatch, dict(zip(("cifar10/train", "cifar10/test"), paths)))
        found = image_files.as_one(image_files.load_cifar10())
        assert found.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
        np.testing.assert_array_equal(found.x, np.concatenate([x for _, x in made]))
    inputs = found.inputs(np.array([11, 0]))
    assert inputs.dtype == torch.float32
    by_hand = (made[5][1][1, 2, 3, 4] / 255 - 0.447) / 0.262  # the blue channel of FedCR's code
    assert inputs[0, 2, 3, 4].item() == pytest.approx(by_hand, rel=1e-5)
    assert inputs[1, 0, 0, 0].item() == pytest.approx((made[0][1][0, 0, 0, 0] / 255 - 0.491) / 0.247, rel=1e-5)


def test_a_part_of_cifar_10(monkeypatch, tmp_path):
    paths, made = {}, {}
    for seed, part in enumerate(("train", "test")):
        raw, made[part] = records([3, 1, 4], seed)
        paths[f"cifar10/{part}"] = tmp_path / f"{part}.bin.xz"
        paths[f"cifar10/{part}"].write_bytes(lzma.compress(raw))
    serve(monkeypatch, paths)
    found = image_files.as_one(image_files.load_cifar10())
    assert found.y.tolist() == [3, 1, 4, 3, 1, 4]
    np.testing.assert_array_equal(found.x, np.concatenate([made["train"], made["test"]]))
    paths["cifar10/test"].write_bytes(b"no xz")
    with pytest.raises(DataError, match=r"test.bin.xz cannot be unpacked"):
        image_files.load_cifar10()


def cifar100(tmp_path, n_names=100, labels=(99, 7), cut=0):
    coarse = [np.full(len(labels), 5)]
    (train, x), (test, z) = records(labels, 0, coarse), records([42], 1, [np.array([6])])
    names = "".join(f"name_{i}\n" for i in range(n_names)).encode()
    members = {"train.bin": train[: len(train) - cut], "test.bin": test, "fine_label_names.txt": names}
    path = tar(tmp_path / "cifar100.tar.gz", {f"cifar-100-binary/{name}": raw for name, raw in members.items()})
    return path, np.concatenate([x, z])


def test_cifar_100_has_fine_labels(monkeypatch, tmp_path):
    path, x = cifar100(tmp_path)
    serve(monkeypatch, {"cifar100/archive": path})
    found = image_files.as_one(image_files.load_cifar100())
    assert found.y.tolist() == [99, 7, 42]
    np.testing.assert_array_equal(found.x, x)
    assert found.class_names[99] == "name_99"
    assert found.mean.tolist() == pytest.approx([0.5071, 0.4867, 0.4408])
    assert found.sd.tolist() == pytest.approx([0.2675, 0.2565, 0.2761])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_names": 99}, "expected the names of 100 classes in fine_label_names.txt, got 99"),
        ({"labels": (100,)}, "expected labels 0…99, got 100"),
        ({"cut": 1}, "train.bin: expected records of 3074 bytes, got 6147 bytes"),
        ({"cut": 6148}, "train.bin: expected records of 3074 bytes, got 0 bytes"),
    ],
)
def test_bad_archives_are_refused(monkeypatch, tmp_path, options, message):
    serve(monkeypatch, {"cifar100/archive": cifar100(tmp_path, **options)[0]})
    with pytest.raises(DataError, match=message):
        image_files.load_cifar100()


def test_an_archive_that_is_none_or_lacks_a_file(monkeypatch, tmp_path):
    serve(monkeypatch, {"cifar100/archive": tar(tmp_path / "a.tar.gz", {"cifar-100-binary/test.bin": b"x"})})
    with pytest.raises(DataError, match=r"lacks cifar-100-binary/train.bin, cifar-100-binary/fine_label_names.txt"):
        image_files.load_cifar100()
    (tmp_path / "a.tar.gz").write_bytes(b"none")
    with pytest.raises(DataError, match=r"a.tar.gz cannot be unpacked"):
        image_files.load_cifar100()


def letters(path, labels=((1, 10, 11, 26), (2, 3)), leave_out=""):
    rng, made = np.random.default_rng(0), []
    with zipfile.ZipFile(path, "w") as archive:
        for part, y in zip(("train", "test"), labels):
            x = rng.integers(0, 256, (len(y), 28, 28)).astype(np.uint8)
            made.append(x)
            for kind, array in (("images-idx3", x), ("labels-idx1", np.array(y))):
                name = f"gzip/emnist-letters-{part}-{kind}-ubyte.gz"
                if name != leave_out:
                    archive.writestr(name, idx(array))
    return made


def test_emnist_has_ten_upright_letters(monkeypatch, tmp_path):
    path = tmp_path / "gzip.zip"
    train, test = letters(path)
    serve(monkeypatch, {"emnist/archive": path})
    found = image_files.as_one(image_files.LETTERS.load())
    assert found.y.tolist() == [0, 9, 1, 2]
    assert found.x.shape == (4, 1, 28, 28)
    np.testing.assert_array_equal(found.x[1, 0], train[1].T)
    np.testing.assert_array_equal(found.x[2, 0], test[0].T)
    both = found.inputs(np.arange(2)).double()  # all training images of these letters
    assert (both.mean().item(), both.std(correction=0).item()) == pytest.approx((0, 1), abs=1e-6)
    assert found.class_names == tuple("ABCDEFGHIJ")


def test_emnist_dealt_as_fedgen_does(monkeypatch, tmp_path):
    """A twin of the archive: 26 letters, 60 and 4 images of each, a letter's grey levels near its number."""
    path, parts = tmp_path / "gzip.zip", {"train": 60, "test": 4}
    rng, made = np.random.default_rng(0), {}
    with zipfile.ZipFile(path, "w") as archive:
        for part, each in parts.items():
            y = np.repeat(np.arange(1, 27), each)
            made[part] = (9 * y[:, None, None] + rng.integers(0, 9, (len(y), 28, 28))).astype(np.uint8)
            for kind, array in (("images-idx3", made[part]), ("labels-idx1", y)):
                archive.writestr(f"gzip/emnist-letters-{part}-{kind}-ubyte.gz", idx(array))
    serve(monkeypatch, {"emnist/archive": path})
    train, test = image_files.load_emnist()
    np.testing.assert_array_equal(train.x[70, 0], made["train"][70].T)
    assert (train.y[70], test.y[5], train.class_names[25]) == (1, 1, "Z")
    fed = fedgen.emnist(4, 0.5, seed=1, ratio=1.0)
    assert (fed.name, fed.n_classes, len(fed)) == ("fedgen.emnist", 26, 4)
    assert min(c.n_train for c in fed) >= 260
    assert sum(c.n_train for c in fed) == 26 * 60
    for client in fed:
        assert sorted(client.y_test.tolist()) == sorted(client.y_train.unique().tolist()), "a quarter of four"
        letter = (127.5 * (client.x_train.flatten(1).mean(1) + 1) / 9).floor().long() - 1
        assert torch.equal(letter, client.y_train)
    assert fed.fingerprint() == fedgen.emnist(4, 0.5, seed=1, ratio=1.0).fingerprint()
    with pytest.raises(ValueError, match="min_size=260 for n_clients=7 needs 1820 samples"):
        fedgen.emnist(7, 0.5, ratio=1.0)


def test_bad_files_of_emnist_are_refused(monkeypatch, tmp_path):
    path = tmp_path / "gzip.zip"
    serve(monkeypatch, {"emnist/archive": path})
    letters(path, leave_out="gzip/emnist-letters-test-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match=r"expected a zip archive that holds gzip/emnist-letters-test-labels"):
        image_files.LETTERS.load()
    letters(path, labels=((0, 1), (1,)))
    with pytest.raises(DataError, match=r"expected images and labels 1…26 of train"):
        image_files.LETTERS.load()
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"expected a zip archive"):
        image_files.LETTERS.load()


# --- all of them, with made images of the right number --------------------------------------------------------------


@pytest.mark.parametrize(("name", "where"), EVERY.items())
def test_defaults_give_the_sizes_of_the_paper(monkeypatch, name, where):
    """FedCR, Table 4: 490 and 210, 420 and 180, 392 and 168 images a client; 5 of 10 classes, or 15 of 100.

    MNIST is not in that table: as many as its smallest class allows.
    """
    family = getattr(image_files, where)
    made = numbered(family.n_images, family.n_classes, channels=family.pixels // 784 // 3 * 2 + 1, size=2)
    serve_pictures(monkeypatch, where, made, family.n_images)
    federation = CATALOGUE[name]()
    train, test = {70_000: (490, 210), 60_000: (420, 180), 56_000: (392, 168)}[family.n_images]
    if name == "pooled.mnist":
        train, test = 441, 189
    assert {(c.n_train, c.n_test) for c in federation} == {(train, test)}
    assert len(federation) == 100
    k = 15 if family.n_classes == 100 else 5
    both = counts(federation, "train") + counts(federation, "test")
    assert (np.sort(both, axis=1) == [0] * (family.n_classes - k) + [(train + test) // k] * k).all()
    assert (counts(federation, "test") - 0.3 * both).__abs__().max() < 1
    assert federation.name == name
    assert not federation.info["simulated"]
    assert {"settings", "source", "licence", "class_names"} <= set(federation.info)
    json.dumps(dict(federation.info))  # goes into records
    dirichlet = CATALOGUE[name](split="non-iid_2")
    assert {(c.n_train, c.n_test) for c in dirichlet} == {(train, test)}
    assert dirichlet.info["settings"]["alpha"] == (0.3 if family.n_classes == 100 else 0.5)


# --- the real files -----------------------------------------------------------------------------------------------


@pytest.mark.realdata("pooled.fashion_mnist")
def test_real_fashion_mnist_in_both_splits():
    found = image_files.as_one(image_files.load_fashion_mnist())
    assert found.x.shape == (70_000, 1, 28, 28)
    assert np.bincount(found.y).tolist() == [7000] * 10
    federation = pooled.fashion_mnist()
    assert {(c.n_train, c.n_test) for c in federation} == {(490, 210)}
    train, test = counts(federation, "train"), counts(federation, "test")
    assert (np.sort(train, axis=1) == [0] * 5 + [98] * 5).all()
    assert (np.sort(test, axis=1) == [0] * 5 + [42] * 5).all()
    everything = torch.cat([x for c in federation for x in (c.x_train, c.x_test)])
    assert (everything.min().item(), everything.max().item()) == (-1, 1)
    assert (everything.double().mean().item() + 1) / 2 == pytest.approx(found.x.mean() / 255, abs=1e-6)
    dirichlet = pooled.fashion_mnist(split="non-iid_2")
    shares = (counts(dirichlet, "train") + counts(dirichlet, "test")) / 700
    assert np.sort(shares, axis=1)[:, -4:].sum(axis=1).mean() == pytest.approx(0.83, abs=0.03)  # "about 80 %"
    assert ((shares * 700).sum(axis=0).round() == 7000).all()


@pytest.mark.realdata("pooled.cifar10")
def test_real_cifar_10_or_its_part():
    found = image_files.as_one(image_files.load_cifar10())
    assert len(found.y) in (18_947, 60_000)
    for i, (mean, sd) in enumerate(zip(found.mean, found.sd, strict=True)):
        often, grey = np.bincount(found.x[:, i].ravel(), minlength=256), np.arange(256) / 255
        middle = np.average(grey, weights=often)
        assert middle == pytest.approx(mean, abs=0.005)
        assert np.average((grey - middle) ** 2, weights=often) ** 0.5 == pytest.approx(sd, abs=0.002)
    federation = pooled.cifar10(n_clients=20, per_client=900)
    assert {(c.n_train, c.n_test) for c in federation} == {(630, 270)}
    assert ("a part, 18947 of 60000" in federation.info["source"]) == (len(found.y) == 18_947)


@pytest.mark.realdata("pfedhn.cifar10")
def test_real_cifar_10_dealt_as_for_pfedhn():
    fed = pfedhn.cifar10(10, 1, variant="code")
    assert len(fed) == 10
    assert fed[0].x_train.shape[1:] == (3, 32, 32)
    for client in fed:
        assert len(client.y_train.unique()) == 2
        assert abs(float(client.x_train.mean())) < 0.6, "scaled channels are centred, up to the classes at hand"
