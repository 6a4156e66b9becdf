"""MNIST as FedGen's code deals it: caps, equal test counts, and what the published code would have dealt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hetfl_book.datasets import fedgen
from hetfl_core.files import data_path
from hetfl_core.rng import numpy_stream

Y = np.arange(4000) % 10


def rng(seed=0):
    return numpy_stream(seed, "tests", 0, "fedgen")


def counts(parts, y=Y):
    return np.array([np.bincount(y[part], minlength=10) for part in parts])


@pytest.mark.parametrize("alpha", [0.05, 0.3, 5.0])
def test_each_class_is_dealt_up_to_the_cap_and_no_sample_twice(alpha):
    parts = fedgen.capped_dirichlet(Y, 8, alpha, rng(), ratio=0.5, min_size=5)
    table = counts(parts)
    assert table.sum(0).tolist() == [200] * 10, "half of 400; the cap, 0.5 · 4000 / 8 = 250, is larger"
    assert np.unique(np.concatenate(parts)).size == 2000
    assert table.sum(1).min() >= 5
    few = counts(fedgen.capped_dirichlet(Y, 20, alpha, rng(), ratio=0.5, min_size=1))
    assert few.sum(0).tolist() == [100] * 10, "0.5 · 4000 / 20"


def test_a_client_that_has_enough_takes_no_more_part():
    """The last client alone may get the sample or two that rounding leaves over, as in the published code."""
    for seed in range(20):
        table = counts(fedgen.capped_dirichlet(Y, 5, 0.2, rng(seed), ratio=0.5, min_size=1))
        cap = 0.5 * len(Y) / 5
        over = np.flatnonzero(table.sum(1) >= cap)
        for i in over:
            # without its largest class it had not reached the cap, up to what rounding leaves
            assert table[i].sum() - table[i].max() < cap + 10


def test_more_than_alpha_gives_is_refused_and_so_are_too_many():
    with pytest.raises(
        ValueError, match=r"min_size=300 for n_clients=8 needs 2400 samples, but with ratio=0.5 2000 of"
    ):
        fedgen.capped_dirichlet(Y, 8, 1.0, rng(), min_size=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedgen, "TRIES", 20)
        with pytest.raises(ValueError, match=r"alpha=0\.001 leaves some of 20 clients .* each of 20 dealings"):
            fedgen.capped_dirichlet(Y, 20, 0.001, rng())


def test_tests_are_equal_whatever_a_client_holds_of_a_class():
    parts = [np.array([0, 10, 20, 1]), np.array([11, 2]), np.array([2, 12, 22])]
    others = np.repeat(np.arange(10), 30)
    tests = fedgen.equal_tests(Y, parts, others, rng())
    assert counts(tests, others)[:, :3].tolist() == [[10, 10, 0], [0, 10, 10], [0, 0, 10]]
    assert counts(tests, others)[:, 3:].sum() == 0
    together = np.concatenate(tests)
    assert len(np.unique(together)) == len(together)


def published_levels(y, n_users, alpha, ratio, seed):
    """The published dealing's class counts, written anew from its rules with loops and lists."""
    draw = np.random.default_rng(seed)
    classes = list(range(10))
    draw.shuffle(classes)
    most = ratio * len(y) / n_users
    while True:
        sizes, held = [0] * n_users, [dict() for _ in range(n_users)]
        for c in classes:
            n = int(min(most, int(ratio * int((y == c).sum()))))
            shares = draw.dirichlet([alpha] * n_users)
            shares = np.array([p if size < most else 0 for p, size in zip(shares.tolist(), sizes, strict=True)])
            if shares.sum() == 0:
                break
            ends = (np.cumsum(shares / shares.sum()) * n).astype(int)[:-1]
            for user, piece in enumerate(np.diff(ends, prepend=0, append=n).tolist()):
                if piece:
                    held[user][c] = piece
                sizes[user] += piece
        else:
            if min(sizes) >= 10:
                return held


@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_clients_hold_as_many_classes_as_in_the_published_dealing(alpha):
    """Two writings of the same rules: mean number of classes held over 60 dealings, within 4 standard errors."""
    y = np.arange(20_000) % 10
    ours = [(counts(fedgen.capped_dirichlet(y, 20, alpha, rng(s)), y) > 0).sum(1).mean() for s in range(60)]
    theirs = [np.mean([len(h) for h in published_levels(y, 20, alpha, 0.5, s)]) for s in range(60)]
    error = np.sqrt(np.var(ours, ddof=1) / 60 + np.var(theirs, ddof=1) / 60)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error
    assert error < 0.1


CODE = json.loads((Path(__file__).parent / "published" / "fedgen_split.json").read_text("utf8"))
"""What the published script dealt, outside this repository; its source is named there."""


@pytest.mark.parametrize("case", CODE["cases"], ids=lambda case: f"alpha-{case['alpha']:g}")
def test_the_published_split_is_that_of_the_published_script(case):
    """Counts of each client and class, and the sums of the samples' indices."""
    y = np.repeat(np.arange(10), CODE["sizes"])
    parts = fedgen.published_dirichlet(y, 20, case["alpha"])
    assert counts(parts, y).tolist() == case["counts"]
    assert [int(part.sum()) for part in parts] == case["sums"]


def test_the_card_says_how_many_classes_the_published_splits_have():
    means = [np.mean([sum(n > 0 for n in row) for row in case["counts"]]) for case in CODE["cases"]]
    card = (data_path("cards") / "fedgen.mnist.md").read_text("utf8")
    assert "{:.2f}, {:.2f}, {:.2f} and {:.2f}\nclasses".format(*means) in card


def test_the_published_split_needs_enough_samples_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedgen, "TRIES", 2)
        with pytest.raises(ValueError, match=r"alpha=0\.001 leaves some of 20 clients .* each of 2 dealings"):
            fedgen.published_dirichlet(Y, 20, 0.001)


@pytest.mark.realdata("fedgen.mnist")
def test_real_mnist_by_the_published_split():
    splits = [fedgen.mnist(alpha=0.1, seed=seed, dealing="published") for seed in (0, 1)]
    assert splits[0].fingerprint() == splits[1].fingerprint() != fedgen.mnist(alpha=0.1).fingerprint()
    (case,) = [case for case in CODE["cases"] if case["alpha"] == 0.1]
    assert [np.bincount(client.y_train, minlength=10).tolist() for client in splits[0]] == case["counts"]
    assert splits[0].info["settings"]["dealing"] == "published"
    with pytest.raises(ValueError, match="dealing must be one of"):
        fedgen.mnist(dealing="anew")


@pytest.mark.realdata("fedgen.mnist")
def test_real_mnist():
    fed = fedgen.mnist(alpha=0.05, seed=1)
    specs = fed.specs()
    a_twentieth = [49, 56, 51, 50, 49, 44, 47, 51, 48, 50]  # of 980, 1135, … test images
    assert len(fed) == 20
    assert sum(spec.n_train for spec in specs) == 15_000
    assert min(spec.n_train for spec in specs) >= 10
    for client, spec in zip(fed, specs, strict=True):
        assert sorted(client.y_test.unique().tolist()) == list(spec.classes)
        assert len(client.y_test) == sum(a_twentieth[c] for c in spec.classes)
    assert fed[0].x_train.min() == -1
    assert fed[0].x_train.max() == 1
    again, other = (fedgen.mnist(alpha=0.05, seed=seed) for seed in (1, 2))
    assert fed.fingerprint() == again.fingerprint() != other.fingerprint()
