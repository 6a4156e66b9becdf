import bz2
import gzip
import inspect
import json
import struct
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits

from hetfl_book.datasets import flic_bci
from hetfl_core.datasets import DataError, digits, image_files, images, toy
from hetfl_core.federation import FederationWarning
from hetfl_core.plugins import data_sets


@pytest.fixture(autouse=True)
def _no_federation_warnings():
    """A test class that the training set lacks is a fault of a loader, unless a test says otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FederationWarning)
        yield


def classes_held(federation):
    return [set(c.y_train.tolist()) for c in federation]


# --- made twins of the files --------------------------------------------------------------------------------------


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def made_images(n, size, seed):
    """Random images whose first pixel is 10 × label, so that a test can tell them apart, and their labels."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % 10)
    x = rng.integers(0, 256, (n, size, size)).astype(np.uint8)
    x[:, 0, 0] = 10 * y
    return x, y


@pytest.fixture(scope="module")
def contents():
    """Small files in the formats of the real ones, by key of the registry."""
    files = {}
    for family in ("mnist", "fashion_mnist"):
        for part, n in (("train", 400), ("test", 100)):
            x, y = made_images(n, 28, seed=n)
            files[f"{family}/{part}-images"], files[f"{family}/{part}-labels"] = idx(x), idx(y)
    return {**files, "usps/train": usps_text(300), "usps/test": usps_text(80)}


@pytest.fixture
def twins(contents, tmp_path, monkeypatch):
    """The paths of these files; the loaders get them instead of the real ones."""
    paths = {key: tmp_path / (key.replace("/", "-") + ".gz") for key in contents}
    for key, path in paths.items():
        path.write_bytes(contents[key])
    for module in (image_files, digits):
        monkeypatch.setattr(module, "fetch", paths.__getitem__)
    return paths


def usps_text(n):
    x, y = made_images(n, 16, seed=n)
    rows = (x.reshape(n, 256) / 127.5 - 1).round(6)
    lines = [f"{c + 1} " + " ".join(f"{i}:{v:.6f}" for i, v in enumerate(r, 1)) for r, c in zip(rows, y)]
    return bz2.compress("\n".join(lines).encode())


# --- toys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [toy.noisy_features, toy.linear_mapping])
@pytest.mark.parametrize("variant", ["text", "code"])
def test_toys_have_the_published_make_up(make, variant):
    federation = make(variant=variant)
    assert len(federation) == 100
    assert federation.n_classes == 20
    assert federation[7].name == "client-007"
    sizes = [c.n_train for c in federation]
    assert min(sizes) >= 20  # 5 % of 3 × 133
    assert max(sizes) <= 402
    held = [len(h) for h in classes_held(federation)]
    if variant == "text":
        assert set(held) == {3}
        assert sum(sizes) == pytest.approx(100 * 400 * 0.525, rel=0.12)  # 5…100 % of 400 samples
    else:
        assert 5 <= sum(h < 3 for h in held) <= 25  # a class dealt twice
        assert sum(sizes) == pytest.approx(16_000, rel=0.1)  # as the paper says of its own
    tested = 2000 if variant == "code" and make is toy.linear_mapping else 1000
    assert sum(c.n_test for c in federation) == 20 * tested


def test_defaults_are_those_of_the_paper():
    """FLIC, S3.1.1: 100 clients, 3 of 20 classes each, in 5 dimensions; 2000 training and 1000 test samples a class."""
    common = {"n_clients": 100, "classes_per_client": 3, "seed": 0, "variant": "text", "n_classes": 20, "dim": 5}
    common |= {"n_train_per_class": 2000, "n_test_per_class": 1000, "subsample": True}

    def settings(federation):
        return federation.info["settings"]

    plain = toy.gaussian_classes(lambda rng: lambda x, noise: x)
    assert settings(plain) == common | {"sigma": 1.0}
    assert {c.shapes for c in plain} == {(5,)}
    assert settings(toy.noisy_features()) == common | {"sigma": 0.8, "added": [1, 10]}
    assert settings(toy.linear_mapping()) == common | {"sigma": 0.5, "widths": [3, 100]}
    code = {"variant": "code", "sigma": 0.5, "widths": [3, 99], "n_test_per_class": 2000}
    assert settings(toy.linear_mapping(variant="code")) == common | code
    ours = {"n_clients": 20, "seed": 0, "dim": 5, "noise": 0.1, "n_test": 100, "widths": [5, 30], "n_train": [20, 100]}
    assert settings(toy.linear_regression()) == ours
    assert plain.info["simulated"]
    assert toy.linear_regression().info["simulated"]


def test_smallest_settings_are_allowed():
    """Classes that coincide; one sample for each holder of a class; test sets too small for everybody."""
    alike = toy.noisy_features(n_clients=1, classes_per_client=20, sigma=0.0, added=(0, 0), subsample=False)[0]
    assert alike.x_train.double().mean(0).abs().max() < 4.5 / 40_000**0.5
    scarce = toy.linear_mapping(widths=(1, 1), n_train_per_class=15, n_test_per_class=5, subsample=False)
    assert {c.n_train for c in scarce} == {3}  # 100 × 3 places, 15 of each class
    assert {c.shapes for c in scarce} == {(1,)}
    assert sum(c.n_test for c in scarce) == 100
    one = toy.linear_regression(1, dim=1, widths=(1, 1), noise=0.0, n_train=(50, 50), n_test=0)[0]
    assert (one.n_train, one.n_test) == (50, 0)
    scores = stats.norm.ppf(one.y_train.double().numpy())
    assert abs(np.corrcoef(scores, one.x_train.double().numpy()[:, 0])[0, 1]) == pytest.approx(1)


def test_code_variant_draws_fifty_shards_below_ten_samples_per_client():
    """20 clients and 20 classes: as many samples per client as per class, in 3 shards of 3 or 4."""
    few, enough = (
        toy.noisy_features(
            n_clients=20,
            classes_per_client=3,
            variant="code",
            n_train_per_class=n,
            n_test_per_class=10,
            subsample=False,
        )
        for n in (9, 10)
    )
    assert {c.n_train for c in few} == {3 * 50 * 3}
    assert {c.n_train for c in enough} <= set(range(9, 13))


def test_noisy_features_appends_pure_noise():
    federation = toy.noisy_features(n_clients=40, classes_per_client=3, seed=1)
    added = [c.shapes[0] - 5 for c in federation]
    assert set(added) <= set(range(1, 11))
    assert len(set(added)) >= 8
    noise = np.concatenate([c.x_train[:, 5:].numpy().ravel() for c in federation])
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    tested = np.concatenate([c.x_test[:, 5:].numpy().ravel() for c in federation])
    assert stats.kstest(tested, "norm").pvalue > 1e-3


def test_classes_are_gaussians_with_identity_covariance_and_the_same_means_everywhere():
    federation = toy.noisy_features(n_clients=10, classes_per_client=4, seed=2, n_classes=4, subsample=False)
    x = np.concatenate([c.x_train[:, :5].numpy() for c in federation])
    y = np.concatenate([c.y_train.numpy() for c in federation])
    for c in range(4):
        mine = x[y == c]
        assert len(mine) == 2000
        np.testing.assert_allclose(np.cov(mine.T), np.eye(5), atol=0.12)
        for client in federation:
            own = client.x_train[client.y_train == c, :5].numpy()
            assert np.abs(own.mean(0) - mine.mean(0)).max() < 4.5 / np.sqrt(len(own))


@pytest.mark.parametrize(("make", "sigma"), [(toy.noisy_features, 0.8), (toy.linear_mapping, 0.5)])
def test_class_means_have_the_papers_spread(make, sigma):
    # dim large and no change of features: the variance of the class means is σ²
    given = {"added": (0, 0)} if make is toy.noisy_features else {"widths": (400, 400)}
    federation = make(
        n_clients=1, classes_per_client=20, dim=50, n_train_per_class=400, n_test_per_class=1, subsample=False, **given
    )
    x, y = federation[0].x_train.numpy(), federation[0].y_train.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(20)])
    between = (means - means.mean(0)).var(ddof=20)  # noise of the means: 1/400, times dim for the mapping
    scale = 1 if make is toy.noisy_features else 50
    assert between == pytest.approx(scale * (sigma**2 + 1 / 400), rel=0.25)


def test_linear_mapping_is_linear_with_the_same_map_for_train_and_test():
    federation = toy.linear_mapping(n_clients=30, classes_per_client=3, seed=3)
    widths = [c.shapes[0] for c in federation]
    assert min(widths) >= 3
    assert max(widths) <= 100
    for client in federation:
        if client.shapes[0] > 5:
            assert np.linalg.matrix_rank(client.x_train.numpy(), tol=1e-3) == 5
            both = torch.cat([client.x_train, client.x_test]).numpy()
            assert np.linalg.matrix_rank(both, tol=1e-3) == 5


def test_width_ranges_include_both_ends():
    widths = {c.shapes[0] for c in toy.linear_mapping(n_clients=60, classes_per_client=1, widths=(3, 5))}
    assert widths == {3, 4, 5}
    code = {
        c.shapes[0]
        for c in toy.linear_mapping(n_clients=400, classes_per_client=1, variant="code", n_test_per_class=100)
    }
    assert max(code) <= 99


def test_figure_3_federation():
    federation = toy.noisy_features(n_clients=20, classes_per_client=3, n_classes=3, sigma=3.0)
    assert len(federation) == 20
    assert classes_held(federation) == [{0, 1, 2}] * 20
    assert {c.shapes[0] for c in federation} <= set(range(6, 16))
    assert federation.info["settings"]["sigma"] == 3.0


def test_training_and_test_samples_differ():
    federation = toy.noisy_features(
        n_clients=20, classes_per_client=3, n_train_per_class=100, n_test_per_class=100, subsample=False
    )
    rows = np.concatenate([x[:, :5].numpy() for c in federation for x in (c.x_train, c.x_test)])
    assert len(np.unique(rows, axis=0)) == len(rows) == 4000  # text: each sample once


def test_code_variant_repeats_samples():
    client = toy.linear_mapping(n_clients=10, classes_per_client=3, variant="code")[0]
    assert len(np.unique(client.x_train.numpy(), axis=0)) < client.n_train


@pytest.mark.parametrize("make", [toy.noisy_features, toy.linear_mapping])
def test_toys_depend_on_the_seed_alone(make):
    small = {"n_train_per_class": 60, "n_test_per_class": 30, "subsample": False}
    a, b, c = (make(n_clients=10, seed=s, **small).fingerprint() for s in (0, 0, 1))
    np.random.seed(5)
    torch.manual_seed(5)
    assert a == b == make(n_clients=10, seed=0, **small).fingerprint()
    assert a != c


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: toy.noisy_features(n_clients=5, classes_per_client=21),
            "classes_per_client must be at most the number of classes, 20, got 21",
        ),
        (lambda: toy.noisy_features(n_clients=5, classes_per_client=3, variant="both"), "variant must be"),
        (lambda: toy.noisy_features(n_clients=5, classes_per_client=3, added=(4, 2)), "added must be"),
        (lambda: toy.linear_mapping(n_clients=5, classes_per_client=3, widths=(0, 2)), "widths must be"),
        (
            lambda: toy.linear_mapping(n_clients=5, classes_per_client=3, sigma=-1.0),
            "sigma must not be negative, got -1.0",
        ),
        (
            lambda: toy.noisy_features(n_clients=100, classes_per_client=3, n_train_per_class=5),
            "n_clients must be at most 33, .* got 100",
        ),
        (lambda: digits.bundled(n_clients=99_999), "n_clients must be at most 449, .* got 99999"),
        (lambda: digits.bundled(10, 11), "classes_per_client must be at most"),
        (lambda: digits.bundled(0), "n_clients must be"),
        (lambda: digits.bundled(test_fraction=1.0), r"test_fraction must lie in \(0, 1\), got 1.0"),
        (lambda: digits.bundled(n_clients=10**7), "n_clients must be at most 449, so that each has .* got 10000000"),
        (lambda: digits.mnist_usps(n_clients=7), "n_clients must be even.* got 7"),
        (lambda: digits.mnist_usps(resize=0), "resize must be a whole number of at least 1"),
        (lambda: images.fashion_mnist(sizes=()), "sizes must be"),
        (lambda: images.fashion_mnist(sizes=(1, 10**7)), r"sizes=\(1, 10000000\) would need .* GiB of memory"),
        (lambda: images.fashion_mnist(sizes=28), "sizes must be image sizes in pixels, .* got 28"),
        (lambda: images.fashion_mnist(sizes="28"), "sizes must be image sizes in pixels, .* got '28'"),
        (lambda: flic_bci.common40(n_classes=2), "n_classes must be a whole number in 3…"),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- digits -------------------------------------------------------------------------------------------------------


def test_bundled_digits_in_two_resolutions():
    federation = digits.bundled()
    assert [c.name for c in federation] == [f"fine-{i:03d}" for i in range(5)] + [f"coarse-{i:03d}" for i in range(5)]
    assert [c.shapes for c in federation] == [(64,)] * 5 + [(16,)] * 5
    assert all(len(h) == 3 for h in classes_held(federation))
    for half in (federation.clients[:5], federation.clients[5:]):
        assert set().union(*(set(c.y_train.tolist()) for c in half)) == set(range(10))
    assert sum(c.n_train + c.n_test for c in federation) == 1797
    assert sum(c.n_test for c in federation) == pytest.approx(1797 / 4, abs=1)


def test_bundled_digits_are_each_held_once_and_averaged_rightly():
    x, y = load_digits(return_X_y=True)
    fine = [tuple(r) for r in (x / 16 * 2 - 1).astype(np.float32)]
    coarse = [tuple(r.reshape(8, 8).reshape(4, 2, 4, 2).mean((1, 3)).ravel()) for r in (x / 16 * 2 - 1)]
    coarse = [tuple(np.float32(r)) for r in coarse]
    where = {}
    for i, (a, b) in enumerate(zip(fine, coarse)):
        where.setdefault(a, []).append(i)
        where.setdefault(b, []).append(i)
    held = []
    for client in digits.bundled(seed=4):
        for rows, labels in ((client.x_train, client.y_train), (client.x_test, client.y_test)):
            for row, label in zip(rows.tolist(), labels.tolist()):
                (place,) = where[tuple(np.float32(row))]
                assert y[place] == label
                held.append(place)
    assert sorted(held) == list(range(1797))


def test_the_seed_decides_what_is_tested():
    """One client holds everything, so that nothing but the split can differ."""
    one, same, other = ({tuple(r) for r in digits.bundled(1, 10, s)[0].x_test.tolist()} for s in (0, 0, 1))
    assert one == same != other


def test_an_odd_number_of_clients_and_a_single_one():
    assert [c.shapes[0] for c in digits.bundled(5)] == [64, 64, 64, 16, 16]
    assert [c.name for c in digits.bundled(1, 10)] == ["fine-000"]


def test_mnist_usps_text(twins):
    federation = digits.mnist_usps(n_clients=10, classes_per_client=3)
    assert federation.n_classes == 10
    assert [c.shapes for c in federation] == [(1, 28, 28)] * 5 + [(1, 16, 16)] * 5
    assert [c.name for c in federation][4:6] == ["mnist-004", "usps-000"]
    assert all(len(h) == 3 for h in classes_held(federation))
    for domain, n_train, n_test in (("mnist", 400, 100), ("usps", 300, 80)):
        mine = [c for c in federation if c.name.startswith(domain)]
        assert sum(c.n_train for c in mine) == n_train  # 15 places for 10 classes: every class is held
        assert sum(c.n_test for c in mine) == n_test
        rows = torch.cat([x.flatten(1) for c in mine for x in (c.x_train, c.x_test)])
        assert len(torch.unique(rows, dim=0)) == n_train + n_test
    for client in federation:
        assert client.x_train.abs().max() <= 1
        grey = (client.x_train[:, 0, 0, 0] / 2 + 0.5) * 255
        assert (grey / 10).round().tolist() == client.y_train.tolist()  # images kept their labels


def test_mnist_usps_code_variant_overlaps_where_samples_are_few(twins):
    federation = digits.mnist_usps(
        n_clients=10, classes_per_client=2, variant="code"
    )  # twins: 40 and 30 samples per client, fewer than 100
    assert len(federation) == 10
    usps = [c for c in federation if c.name.startswith("usps")]
    for client in usps:
        assert client.n_train == 2 * 50 * 15  # 50 draws a class of shards of 30 / 2
        assert len(torch.unique(client.x_train.flatten(1), dim=0)) <= 60


@pytest.mark.parametrize("size", [28, 16])
def test_resized_digits_have_one_size(twins, size):
    plain, resized = (
        digits.mnist_usps(n_clients=4, classes_per_client=5),
        digits.mnist_usps(n_clients=4, classes_per_client=5, resize=size),
    )
    assert {c.shapes for c in resized} == {(1, size, size)}
    assert all(x.abs().max() <= 1 for c in resized for x in (c.x_train, c.x_test))
    for a, b in zip(plain, resized):
        torch.testing.assert_close(a.y_train, b.y_train)
        if a.shapes == (1, size, size):
            torch.testing.assert_close(a.x_train, b.x_train)
        else:
            torch.testing.assert_close(a.x_train.mean((1, 2, 3)), b.x_train.mean((1, 2, 3)), atol=0.05, rtol=0)


def test_seeds_deal_differently_and_repeatably(twins):
    a, b, c = (digits.mnist_usps(n_clients=6, classes_per_client=3, seed=s).fingerprint() for s in (0, 0, 1))
    assert a == b != c


# --- damaged files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "cannot be unpacked"),
        (idx(np.zeros((5, 28, 28)))[:-12], "cannot be unpacked"),
        (gzip.compress(b"\0\0\x0d\x03abcd", mtime=0), "expected an idx file"),
        (gzip.compress(gzip.decompress(idx(np.zeros((5, 28, 28))))[:-1], mtime=0), "expected 3936 bytes .* got 3935"),
        (gzip.compress(b"", mtime=0), "expected an idx file"),
    ],
)
def test_bad_idx_files_are_refused(tmp_path, content, message):
    path = tmp_path / "bad.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        image_files.read_idx(path)


def test_images_without_labels_are_refused(twins):
    twins["mnist/train-labels"].write_bytes(idx(np.zeros(399)))
    with pytest.raises(DataError, match="mnist: train has 400 images but 399 labels"):
        digits.mnist_usps(n_clients=4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not bzip2", "expected bzip2-packed lines"),
        (bz2.compress(b"1 1:0.5 2:0.5"), "expected bzip2-packed lines"),
        (bz2.compress(("1 " + " ".join(f"{i}:0" for i in range(256))).encode()), "expected the indices"),
        (bz2.compress(("1 " + " ".join(f"{i}:7" for i in range(1, 257))).encode()), "expected digits 0…9 with values"),
        (bz2.compress(("0 " + " ".join(f"{i}:0" for i in range(1, 257))).encode()), "expected digits 0…9 with values"),
    ],
)
def test_bad_usps_files_are_refused(twins, content, message):
    twins["usps/train"].write_bytes(content)
    with pytest.raises(DataError, match=message):
        digits.load_usps()


# --- Fashion-MNIST ------------------------------------------------------------------------------------------------


def test_fashion_mnist(twins):
    federation = images.fashion_mnist(n_clients=10, classes_per_client=5)
    assert all(len(h) == 5 for h in classes_held(federation))
    assert sum(c.n_train for c in federation) == 400
    assert {c.shapes for c in federation} == {(1, 28, 28)}


def test_fashion_mnist_dirichlet_and_two_sizes(twins):
    federation = images.fashion_mnist(
        n_clients=8, alpha=0.2, sizes=(28, 14)
    )  # a test class without training would warn
    assert [c.shapes for c in federation] == [(1, 28, 28), (1, 14, 14)] * 4
    assert sum(c.n_train for c in federation) == 400
    assert min(c.n_train for c in federation) >= 1


# --- FLIC's BCI features ------------------------------------------------------------------------------------------


def test_common40_from_a_made_file(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {"dataset": np.array(["Alexandre Motor Imagery", "001-2014"]), "subject": np.array([1, 9])}
    for i in range(2):
        arrays |= {f"x_train_{i:02d}": rng.normal(size=(8, 6)), f"y_train_{i:02d}": np.arange(8) % 2 + i}
        arrays |= {f"x_test_{i:02d}": rng.normal(size=(4, 6)), f"y_test_{i:02d}": np.arange(4) % 2 + i}
    np.savez(tmp_path / "a.npz", **arrays)
    monkeypatch.setattr(flic_bci, "fetch", lambda key: tmp_path / "a.npz")
    federation = flic_bci.common40()
    assert [c.name for c in federation] == ["AlexMI-1", "BNCI2014-001-9"]
    assert federation.n_classes == 5
    assert federation.info["subjects"]["BNCI2014-001-9"] == {"data_set": "BNCI2014-001", "subject": 9}
    torch.testing.assert_close(federation[1].x_test, torch.tensor(arrays["x_test_01"], dtype=torch.float32))
    assert federation[1].y_train.tolist() == arrays["y_train_01"].tolist()
    assert flic_bci.common40(n_classes=3).info["class_names"] == ["left hand", "right hand", "feet"]
    del arrays["y_test_01"]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match="expected an array 'y_test_01'"):
        flic_bci.common40()


# --- the toy regression ---------------------------------------------------------------------------------------------


def test_targets_of_the_toy_regression_are_uniform_and_one_rule_decides_for_all():
    """Φ of a standard normal is uniform (probability integral transform); and Φ⁻¹(y) is wᵀz up to the noise, so that a
    linear fit on each client explains all but σ² / (1 + σ²) of its variance."""
    federation = toy.linear_regression(8, seed=3, noise=0.3, n_train=(500, 600), n_test=500)
    assert federation.task == "regression"
    y = np.concatenate([c.y_train.numpy() for c in federation])
    assert stats.kstest(y, "uniform").pvalue > 0.01
    for c in federation:
        x, score = c.x_train.double().numpy(), stats.norm.ppf(c.y_train.double().numpy())
        fit = np.linalg.lstsq(x, score, rcond=None)[0]
        rest = stats.norm.ppf(c.y_test.double().numpy()) - c.x_test.double().numpy() @ fit
        assert np.var(rest) == pytest.approx(0.09 / 1.09, rel=0.25)


def test_no_client_of_the_toy_regression_shares_a_map():
    federation = toy.linear_regression(30, widths=(4, 9), n_train=(20, 40), n_test=7)
    assert {c.shapes[0] for c in federation} == set(range(4, 10))
    assert {c.n_test for c in federation} == {7}
    sizes = {c.n_train for c in federation}
    assert min(sizes) >= 20
    assert max(sizes) <= 40
    assert len(sizes) > 10
    # Inputs have the covariance LᵀL, of rank dim, and another on each client of one width.
    one, two = [c for c in toy.linear_regression(2, widths=(9, 9), n_train=(5000, 5000))]
    gram = [np.cov(c.x_train.numpy().T) for c in (one, two)]
    assert [np.linalg.matrix_rank(g, tol=1e-3) for g in gram] == [5, 5]
    assert np.abs(gram[0] - gram[1]).max() > 1


def test_the_toy_regression_depends_on_the_seed_alone_and_not_on_the_number_of_clients():
    a, b, c = toy.linear_regression(3, 1), toy.linear_regression(5, 1), toy.linear_regression(3, 2)
    assert a.fingerprint() == b.subset([client.name for client in a]).fingerprint()
    assert a.fingerprint() != c.fingerprint()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"widths": (0, 2)}, "widths must be"),
        ({"n_train": (9, 2)}, "n_train must be"),
        ({"n_clients": 0}, "n_clients must be a whole number of at least 1, got 0"),
        ({"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        ({"noise": -1.0}, "noise must not be negative, got -1.0"),
    ],
)
def test_bad_arguments_of_the_toy_regression(bad, message):
    with pytest.raises(ValueError, match=message):
        toy.linear_regression(**bad)


# --- the catalogue ------------------------------------------------------------------------------------------------


def test_catalogue_names_are_those_of_the_federations(twins):
    two, three = ({"n_clients": 4, "classes_per_client": k} for k in (2, 3))
    small = {"toy.noisy_features": two, "toy.linear_mapping": two, "toy.linear_regression": {"n_clients": 4}}
    small |= {
        "toy.four_gaussians": {},
        **{key: {"made": True} for key in ("heart.hospitals", "liver.clinics", "thyroid.laboratories")},
        "solids.views": {"per_class": 2, "test_per_class": 1},
    }
    for name, make in data_sets().items():
        elsewhere = name.startswith(
            ("blocks.", "eeg.", "eeg_blocks.", "multiview.", "pooled.", "fedgen.", "pfedhn.")
        ) or name in (
            "flic_bci.common40",
            "femnist.digits",
            "femnist.characters",
            "text.textcaps",
        )
        if not elsewhere:  # those have tests of their own
            dealt = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(make).parameters.values())  # a Partition
            federation = make(seed=3, **small.get(name, three if dealt else {}))
            assert federation.name == name
            json.dumps(dict(federation.info))  # goes into records
            assert {"settings", "source", "simulated"} <= set(federation.info)


# --- the real files: what MANIFEST.md says of them ----------------------------------------------------------------


@pytest.mark.realdata("flic_bci.common40")
def test_real_common40():
    federation = flic_bci.common40()
    table = federation.describe()
    assert len(table) == 40
    assert (table.n_train.sum(), table.n_test.sum()) == (8600, 3611)
    assert set(table["shape"]) == {"6"}
    expected = [("AlexMI", 8, {30}, {10}), ("BNCI2014-001", 9, {144}, {144})]
    expected += [("BNCI2014-004", 9, set(range(520, 601)), {160}), ("Weibo2014", 10, set(range(105, 121)), {35, 40})]
    expected += [("Zhou2016", 4, set(range(190, 220)), {100})]
    start = 0
    for name, subjects, n_train, n_test in expected:
        rows = table.iloc[start : start + subjects]
        assert rows.client.tolist() == [f"{name}-{s}" for s in range(1, subjects + 1)]
        assert set(rows.n_train) <= n_train
        assert set(rows.n_test) <= n_test
        assert set(rows.classes) == ({"1 2"} if name == "AlexMI" else {"0 1"})
        start += subjects
    everything = torch.cat([x for c in federation for x in (c.x_train, c.x_test)])
    assert -1.75 < everything.min() < -1.65
    assert 4.15 < everything.max() < 4.25
    json.dumps(dict(federation.info))


@pytest.mark.realdata("flic_bci.common40")
def test_real_common40_was_centred_on_training_and_test_together():
    # the leak of the reference point: not the training trials of a subject, but all its trials together, have mean 0
    for client in flic_bci.common40():
        both = torch.cat([client.x_train, client.x_test]).double()
        assert both.mean(0).abs().max() < 1e-6
        assert client.x_train.double().mean(0).abs().max() > 1e-4


@pytest.mark.realdata("digits.mnist_usps")
def test_real_mnist_and_usps():
    mnist, usps = image_files.load_mnist(), digits.load_usps()
    assert [half.x.shape for half in mnist] == [(60_000, 1, 28, 28), (10_000, 1, 28, 28)]
    assert [half.x.shape for half in usps] == [(7291, 1, 16, 16), (2007, 1, 16, 16)]
    assert mnist[0].x.mean() / 255 == pytest.approx(0.1307, abs=1e-4)  # published mean of the grey levels
    assert np.bincount(usps[0].y).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]


@pytest.mark.realdata("digits.mnist_usps")
@pytest.mark.parametrize(("n_clients", "k"), [(100, 3), (200, 5)])
def test_real_digits_as_in_the_paper(n_clients, k):
    federation = digits.mnist_usps(n_clients=n_clients, classes_per_client=k)
    assert all(len(h) == k for h in classes_held(federation))
    assert sum(c.n_test for c in federation) == 12_007
    assert min(c.n_test for c in federation) >= 15


@pytest.mark.realdata("images.fashion_mnist")
def test_real_fashion_mnist():
    train, test = image_files.load_fashion_mnist()
    assert np.bincount(train.y).tolist() == [6000] * 10
    assert np.bincount(test.y).tolist() == [1000] * 10
    assert train.x.mean() / 255 == pytest.approx(0.2860, abs=1e-4)  # published mean of the grey levels


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # 80 rows of inputs 4 wide on average, in float32; one client's mapping or samples, in float64
        ({"n_clients": 4, "dim": 3, "widths": (2, 6), "n_train": (10, 20), "n_test": 5}, 4 * 80 * 4),
        ({"n_clients": 4, "dim": 90, "widths": (2, 6), "n_train": (1, 1), "n_test": 1}, 8 * 90 * 4),
        ({"n_clients": 4, "dim": 90, "widths": (1, 1), "n_train": (10, 20), "n_test": 5}, 8 * 90 * 20),
    ],
)
def test_memory_of_a_regression_is_the_largest_of_its_arrays(memory_asked, sizes, expected):
    toy.linear_regression(**sizes)
    assert memory_asked == [expected]


def test_memory_of_a_toy_is_that_of_its_pools_or_of_its_table_and_then_of_its_clients(memory_asked):
    common = {"n_clients": 3, "classes_per_client": 2, "n_classes": 4, "n_train_per_class": 12, "n_test_per_class": 6}
    toy.noisy_features(**common, dim=2, added=(1, 3))
    assert memory_asked[:2] == [2 * 8 * 72 * 2, 72 * (1 + 3)], "twice 72 rows of 2 numbers; widths of noise"
    memory_asked.clear()
    toy.linear_mapping(**common, dim=90, widths=(1, 3))
    assert memory_asked[:2] == [2 * 8 * 72 * 90, 8 * 90 * 3], "a mapping of 90 × 3"
    memory_asked.clear()
    with pytest.raises(ValueError, match="n_clients must be at most"):
        toy.noisy_features(**common | {"n_clients": 9999}, dim=2)
    assert memory_asked[0] == 8 * 9999 * 4, "who holds which class"


@pytest.mark.parametrize(("labels", "good"), [([1, 2, 3], True), ([0, 9, 9], True), ([0, 10, 9], False)])
def test_usps_holds_digits_but_need_not_hold_all(tmp_path, labels, good):
    lines = [f"{c + 1} " + " ".join(f"{i}:0.0" for i in range(1, 257)) for c in labels]
    (tmp_path / "usps.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    if good:
        assert digits._read_usps(tmp_path / "usps.bz2")[1].tolist() == labels
    else:
        with pytest.raises(DataError, match="expected digits 0…9"):
            digits._read_usps(tmp_path / "usps.bz2")


# --- four Gaussians ---------------------------------------------------------------------------------------------------


def test_four_gaussians_are_dealt_as_the_card_says():
    fed = toy.four_gaussians(3)
    counts = [spec.class_counts for spec in fed.specs()]
    assert counts == [(100, 100, 3, 0), (0, 100, 100, 3), (3, 0, 100, 100), (3, 3, 3, 3)]
    assert [np.bincount(c.y_test, minlength=4).tolist() for c in fed] == [
        [100 * bool(n) for n in row] for row in counts
    ]
    large = toy.four_gaussians(3, many=20_000, n_test=0)
    x, y = large[0].x_train.numpy(), large[0].y_train.numpy()
    assert np.abs(x[y == 1].mean(0) - [-2, 2]).max() < 0.05
    assert np.abs(np.cov(x[y == 1].T) - np.eye(2)).max() < 0.05
    assert toy.four_gaussians(3).fingerprint() == fed.fingerprint() != toy.four_gaussians(4).fingerprint()


def test_the_best_of_four_gaussians_is_the_cards_number():
    """A sign in each direction: Φ(2)² of all samples."""
    test = toy.four_gaussians(0, n_test=20_000)[3]
    corner = np.array([0, 1, 3, 2])[(test.x_test[:, 0] < 0).int() + 2 * (test.x_test[:, 1] < 0).int()]
    assert abs((corner == test.y_test.numpy()).mean() - 0.9772498680518208**2) < 0.003


@pytest.mark.parametrize("bad", [{"many": 0}, {"few": 0}, {"n_test": -1}, {"sigma": -1.0}, {"distance": float("nan")}])
def test_four_gaussians_refuse_what_makes_no_sense(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        toy.four_gaussians(**bad)
