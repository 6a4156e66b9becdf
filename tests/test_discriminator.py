"""Telling clients by their features, on clients of which it is known what can be told."""

from __future__ import annotations

import numpy as np
import pytest

from hetfl_book.discriminator import recognise_clients
from hetfl_core.rng import numpy_stream

KINDS = ("linear", "forest")
MEANS = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]])


def error(found):
    """Standard error of the accuracy, as that of n independent samples."""
    return np.sqrt(found.accuracy * (1 - found.accuracy) / found.n)


def drawn(shares, shift=0.0, n=600, seed=0):
    """Clients with class proportions of their own, class c ~ N(its mean + the client's shift, I)."""
    rng = numpy_stream(seed, "tests", 0, "discriminator")
    features, labels = {}, {}
    for i, proportions in enumerate(shares):
        y = rng.choice(4, n, p=proportions)
        features[f"client-{i}"] = MEANS[y] + rng.normal(size=(n, 2)) + shift * i
        labels[f"client-{i}"] = y
    return features, labels


EVEN = [[0.25] * 4] * 3
SKEWED = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]]
DISJOINT = [[0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("balanced", [False, True])
def test_identical_clients_are_not_told_apart(kind, balanced):
    found = recognise_clients(*drawn(EVEN), kind=kind, balanced=balanced)
    assert abs(found.accuracy - 1 / 3) < 4 * error(found)
    assert abs(found.label_only - 1 / 3) < 4 * error(found)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_are_skewed_tell_the_client_though_features_are_aligned(kind):
    """The trap: far above chance, and yet no more than the label tells. Balanced, nothing is left."""
    found = recognise_clients(*drawn(SKEWED), kind=kind)
    assert found.accuracy > found.chance + 6 * error(found)
    assert found.accuracy < found.label_only + 3 * error(found)
    assert abs(found.label_only - (0.7 + 0.7 + 0.8) / 3) < 4 * error(found)
    fair = recognise_clients(*drawn(SKEWED), kind=kind, balanced=True)
    assert abs(fair.accuracy - 1 / 3) < 4 * error(fair)
    assert abs(fair.label_only - 1 / 3) < 4 * error(fair)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_whose_features_differ_within_classes_are_told_beyond_the_label(kind):
    found = recognise_clients(*drawn(SKEWED, shift=5.0), kind=kind, balanced=True)
    assert found.accuracy > 0.9


def test_disjoint_classes_tell_everything_and_leave_nothing_to_measure():
    found = recognise_clients(*drawn(DISJOINT))
    assert found.label_only == 1
    assert found.accuracy > 0.9
    with pytest.raises(ValueError, match=r"after balancing: do two clients hold a class in common\?"):
        recognise_clients(*drawn(DISJOINT), balanced=True)


def test_a_forest_sees_what_a_plane_does_not():
    """One client inside a ring that is the other: the same means."""
    rng = numpy_stream(0, "tests", 0, "ring")
    angle = rng.uniform(0, 2 * np.pi, 500)
    ring = np.c_[np.cos(angle), np.sin(angle)] * 3 + rng.normal(size=(500, 2)) / 5
    features = {"in": rng.normal(size=(500, 2)) / 2, "out": ring}
    labels = {name: np.zeros(500, int) for name in features}
    plane, forest = (recognise_clients(features, labels, kind=kind) for kind in KINDS)
    assert plane.accuracy < 0.65
    assert forest.accuracy > 0.95


def test_balancing_takes_equally_many_of_each_client_of_a_class():
    rng = numpy_stream(0, "tests", 0, "counts")
    y = {"a": np.repeat([0, 1, 2], [50, 10, 7]), "b": np.repeat([0, 1], [20, 40])}
    features = {name: rng.normal(size=(len(each), 1)) for name, each in y.items()}
    found = recognise_clients(features, y, balanced=True, held_out=0.5)
    assert found.n == 2 * 10 + 2 * 5, "half of 20 and of 10 of each, and none of class 2"


def test_neither_order_nor_names_matter_but_the_seed_does():
    features, labels = drawn(SKEWED, shift=0.5)
    turned = dict(reversed(features.items()))
    assert recognise_clients(features, labels) == recognise_clients(turned, labels)
    runs = {recognise_clients(features, labels, seed=seed).accuracy for seed in range(4)}
    assert len(runs) > 1


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ({"a": np.ones((3, 1))}, {"a": np.zeros(3, int)}, "at least two clients, got 1"),
        ({"a": np.ones((3, 1)), "b": np.ones((3, 1))}, {"a": np.zeros(3, int)}, "only one of them has 'b'"),
        (
            {"a": np.ones((3, 1)), "b": np.ones((3, 2))},
            {"a": np.zeros(3, int), "b": np.zeros(3, int)},
            r"features\['b'\] must have 1 columns as those before, got 2",
        ),
        (
            {"a": np.ones((3, 1)), "b": np.ones((3, 1))},
            {"a": np.zeros(3, int), "b": np.zeros(2, int)},
            r"labels\['b'\] must be whole numbers, one for each of 3 rows",
        ),
    ],
)
def test_what_does_not_fit_is_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        recognise_clients(features, labels)
