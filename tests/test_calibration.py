"""Reliability, its error, and temperatures: by hand, and where the truth is known."""

import numpy as np
import pytest
from sklearn.metrics import log_loss as reference

from hetfl_book.calibration import (
    COLDEST,
    HOTTEST,
    at_temperature,
    expected_calibration_error,
    fitted_temperature,
    log_loss,
    reliability,
)


def said_and_true(n=40_000, classes=4, temperature=1.0, seed=0):
    """Probabilities that are the truth at temperature 1, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.ones(classes), n)
    labels = (rng.random((n, 1)) > true.cumsum(1)).sum(1).clip(max=classes - 1)
    return at_temperature(true, temperature), labels


def test_calibration_error_by_hand():
    """Two bins: ten answers at 0.9 of which 6 are right (gap 0.3), ten at 0.6 of which 6 are right (gap 0)."""
    probabilities = np.array([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    labels = np.array(([0] * 6 + [1] * 4) * 2)
    assert expected_calibration_error(probabilities, labels, bins=10) == pytest.approx(0.15)
    assert expected_calibration_error(np.array([[1.0, 0.0]]), np.array([0])) == 0


def test_bins_of_confidence_are_of_equal_width_and_the_last_has_certainty_as_well():
    """Ten right answers at 0.95 and a wrong one at 1 share a bin; ten right ones at 0.85 have the bin below."""
    probabilities = np.array([[0.95, 0.05]] * 10 + [[1.0, 0.0]] + [[0.85, 0.15]] * 10)
    labels = np.array([0] * 10 + [1] + [0] * 10)
    expected = (abs(10 - 10.5) + abs(10 - 8.5)) / 21
    assert expected_calibration_error(probabilities, labels, bins=10) == pytest.approx(expected)


def test_calibration_has_fifteen_bins_unless_told():
    """0.87 and 0.93 lie together in [13/15, 14/15), and apart for 14 and 16 bins: there the gaps would not cancel."""
    probabilities = np.array([[0.87, 0.13]] * 100 + [[0.93, 0.07]] * 100)
    labels = np.array([0] * 93 + [1] * 7 + [0] * 87 + [1] * 13)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0, abs=1e-12)


def test_reliability_by_hand():
    probabilities = np.array([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    table = reliability(probabilities, np.array(([0] * 6 + [1] * 4) * 2), bins=4)
    assert table["samples"].tolist() == [10, 10]
    assert table[["low", "high"]].to_numpy().tolist() == [[0.5, 0.75], [0.75, 1.0]]
    np.testing.assert_allclose(table[["confidence", "accuracy"]], [[0.6, 0.6], [0.9, 0.6]])


def test_the_truth_is_calibrated_and_a_boast_is_not():
    """A calibrated model's error is that of its bins' accuracies, √(p (1 − p) / n) and less than 0.02 here."""
    assert expected_calibration_error(*said_and_true()) < 0.02
    assert expected_calibration_error(*said_and_true(temperature=0.5)) > 0.1


def test_log_loss_against_scikit_learn():
    said, labels = said_and_true(200)
    assert log_loss(said, labels) == pytest.approx(reference(labels, said))
    assert log_loss(np.array([[1.0, 0.0]]), np.array([1])) == np.inf
    assert str(log_loss(np.array([[1.0, 0.0]]), np.array([0]))) == "0.0"


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_temperature_is_found_again(temperature):
    """What was cooled by T is best when it is heated by 1/T: there the log loss is that of the truth."""
    said, labels = said_and_true(temperature=temperature)
    found = fitted_temperature(said, labels)
    assert found == pytest.approx(1 / temperature, rel=0.03)
    for other in (0.9 * found, 1.1 * found):
        assert log_loss(at_temperature(said, other), labels) > log_loss(at_temperature(said, found), labels)


def test_no_temperature_changes_an_answer_and_certainty_stays():
    said, _ = said_and_true(100)
    for T in (0.1, 7.0):
        np.testing.assert_array_equal(at_temperature(said, T).argmax(1), said.argmax(1))
        np.testing.assert_allclose(at_temperature(said, T).sum(1), 1)
    np.testing.assert_allclose(at_temperature(said, 1.0), said)
    np.testing.assert_array_equal(at_temperature(np.array([[0.0, 1.0]]), 9.0), [[0.0, 1.0]])
    hot = at_temperature(np.array([[0.8, 0.2]]), 2.0)
    np.testing.assert_allclose(hot[0, 0] / hot[0, 1], 2.0)  # √4


def test_ends_of_the_temperatures():
    """All right: the colder, the better. Sure of what never happens: the hotter, the better, and no infinite loss."""
    said, right = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([0, 1])
    assert fitted_temperature(said, right) == pytest.approx(COLDEST)
    assert fitted_temperature(said, 1 - right) == pytest.approx(HOTTEST)
    assert fitted_temperature(np.array([[1.0, 0.0]] * 3), np.array([1, 1, 1])) == pytest.approx(HOTTEST)


@pytest.mark.parametrize("bad", [np.eye(2, dtype=int), np.zeros((0, 2))])
def test_probabilities_that_are_whole_numbers_or_of_no_sample_are_refused(bad):
    with pytest.raises(ValueError, match=r"probabilities must be real numbers of shape \(n, C\)"):
        expected_calibration_error(bad, np.zeros(len(bad), int))


@pytest.mark.parametrize("bad", [[0, 2], [-1, 1], [0]])
def test_labels_that_are_no_classes_are_refused(bad):
    with pytest.raises(ValueError, match=r"labels must be 2 classes in 0…1"):
        expected_calibration_error(np.full((2, 2), 0.5), np.array(bad))
