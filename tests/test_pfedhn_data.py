"""CIFAR-10 as pFedHN's code deals it: shares, holders, the same mixture in every part, and the published rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hetfl_book.datasets import pfedhn
from hetfl_core.datasets import image_files
from hetfl_core.rng import numpy_stream


def rng(seed=0):
    return numpy_stream(seed, "tests", 0, "pfedhn")


@pytest.mark.parametrize(("b", "k"), [(10, 2), (50, 2), (5, 4), (30, 3), (10, 10)])
@pytest.mark.parametrize("variant", ["text", "code"])
def test_classes_have_equally_many_holders_and_shares_lie_where_they_should(b, k, variant):
    classes, shares = pfedhn.uneven_shares(b, 10, k, rng(), variant=variant)
    holders = b * k // 10
    assert all(len(set(row)) == k for row in classes.tolist())
    assert np.bincount(classes.ravel()).tolist() == [holders] * 10
    drawn = holders + (variant == "code")
    assert (shares * drawn).min() > 0.4 / 0.6
    assert (shares * drawn).max() < 0.6 / 0.4
    total = np.bincount(classes.ravel(), weights=shares.ravel())
    if variant == "text":
        np.testing.assert_allclose(total, 1)
    else:  # one of `drawn` shares is nobody's
        assert (total < 1).all()
        assert abs((1 - total).mean() - 1 / drawn) < 0.1 / drawn


def published_table(b, seed):
    """The published dealing, written anew from its rules with lists: two classes a client of ten."""
    draw = np.random.default_rng(seed)
    left = [2 * b // 10 + 1] * 10
    shares = [list(w / w.sum()) for w in draw.uniform(0.4, 0.6, (10, left[0]))]
    held = []
    for _ in range(b):
        mine = []
        for _ in range(2):
            c = int(draw.choice([c for c in range(10) if left[c] == max(left)]))
            left[c] -= 1
            mine.append((c, shares[c].pop()))
        held.append(mine)
    return held


@pytest.mark.parametrize("b", [10, 50, 100])
def test_shares_are_spread_as_in_the_published_dealing(b):
    """Two writings of the same rules: mean and spread of the shares over 40 dealings."""
    ours = np.concatenate([pfedhn.uneven_shares(b, 10, 2, rng(s), variant="code")[1].ravel() for s in range(40)])
    theirs = np.array([p for s in range(40) for row in published_table(b, s) for _, p in row])
    assert len(ours) == len(theirs)
    error = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    assert abs(ours.mean() - theirs.mean()) < 4 * error
    assert ours.std() == pytest.approx(theirs.std(), rel=0.1)
    assert all(len({c for c, _ in row}) == 2 for row in published_table(b, 0)), "no client has a class twice"


def test_cut_by_hand():
    labels = np.array([0] * 10 + [1] * 7)
    assignment, shares = np.array([[0, 1], [1, 0]]), np.array([[0.55, 0.5], [0.29, 0.45]])
    parts = pfedhn.cut(labels, assignment, shares, rng())
    counts = [np.bincount(labels[part], minlength=2).tolist() for part in parts]
    assert counts == [[5, 3], [4, 2]], "⌊5.5⌋, ⌊3.5⌋; ⌊4.5⌋, ⌊2.03⌋"
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all((np.diff(part) > 0).all() for part in parts)


def test_numbers_with_which_classes_have_unequal_holders_are_refused():
    with pytest.raises(ValueError, match=r"n_clients × k must be a multiple of n_classes=10.* n_clients=7 and k=2"):
        pfedhn.uneven_shares(7, 10, 2, rng())


@pytest.fixture
def twin(monkeypatch):
    """1 000 training and 500 test images whose pixels spell their number."""

    def numbered(n, start):
        x = np.zeros((n, 3, 32, 32), np.uint8)
        x[:, 0, 0, 0], x[:, 0, 0, 1] = (start + np.arange(n)) // 256, (start + np.arange(n)) % 256
        return image_files.Images(
            x, np.arange(n) % 10, np.zeros(3, np.float32), np.ones(3, np.float32), tuple("0123456789")
        )

    load = lambda: (numbered(1000, 0), numbered(500, 1000))  # noqa: E731
    monkeypatch.setattr(image_files, "CIFAR10", replace(image_files.CIFAR10, load=load))


def numbers_of(x):
    """Which image each is; undoes the scaling of the first channel."""
    grey = (x[:, 0, 0, :2].double() * float(pfedhn.SD[0]) + float(pfedhn.MEAN[0])) * 255
    return grey.round().long().numpy() @ np.array([256, 1])


@pytest.mark.parametrize("variant", ["text", "code"])
def test_a_made_federation_keeps_apart_what_it_must(twin, variant):
    tested, validated = (pfedhn.cifar10(10, 3, variant=variant, tested_on=part) for part in pfedhn.TESTED_ON)
    train, test, validation = (
        [numbers_of(getattr(client, f"x_{part}")) for client in federation]
        for federation, part in ((tested, "train"), (tested, "test"), (validated, "test"))
    )
    assert [numbers_of(client.x_train).tolist() for client in validated] == [each.tolist() for each in train]
    together = np.concatenate([*train, *test, *validation])
    assert len(np.unique(together)) == len(together)
    assert max(np.concatenate([*train, *validation])) < 1000 <= min(np.concatenate(test))
    for client, twin_of_it in zip(tested, validated, strict=True):
        held = sorted(client.y_train.unique().tolist())
        assert len(held) == 2
        assert sorted(client.y_test.unique().tolist()) == held == sorted(twin_of_it.y_test.unique().tolist())
        mixture = [(each.y_train == held[0]).double().mean() for each in (client, twin_of_it)]
        assert mixture[0] == mixture[1]
        assert (client.y_test == held[0]).double().mean() == pytest.approx(float(mixture[0]), abs=0.06)
    dealt = sum(len(each) for each in train)
    assert dealt > 780 if variant == "text" else 480 < dealt < 590, "of 800, all or two thirds"
    assert "a part, 1500 of 60000 images" in tested.info["source"]


def test_a_part_that_is_not_known_is_refused(twin):
    with pytest.raises(ValueError, match=r"tested_on must be"):
        pfedhn.cifar10(tested_on="train")
    with pytest.raises(ValueError, match="classes_per_client must be at most the number of classes, 10, got 11"):
        pfedhn.cifar10(classes_per_client=11)
