import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, mean_squared_error, r2_score

from hetfl_core.engine.evaluation import METRICS, n_bytes, per_client, summarise

RNG = np.random.default_rng(0)
LABELS = [RNG.integers(0, 3, n) for n in (5, 50, 1, 0)]
GUESSES = [RNG.integers(0, 3, len(y)) for y in LABELS]


def test_against_scikit_learn():
    some = [i for i, y in enumerate(LABELS) if len(y)]
    plain, balanced = per_client(GUESSES, LABELS).values()
    for i in some:
        assert plain[i] == pytest.approx(accuracy_score(LABELS[i], GUESSES[i]))
        recall = [np.mean(GUESSES[i][LABELS[i] == c] == c) for c in np.unique(LABELS[i])]
        assert balanced[i] == pytest.approx(np.mean(recall))
    assert balanced[1] == pytest.approx(balanced_accuracy_score(LABELS[1], GUESSES[1]))
    assert np.isnan(plain[3])
    figures = summarise(GUESSES, LABELS)
    assert figures["accuracy"] == pytest.approx(plain[some].mean())
    pooled = accuracy_score(np.concatenate(LABELS), np.concatenate(GUESSES))
    assert figures["accuracy_weighted"] == pytest.approx(pooled)
    assert figures["accuracy_worst"] == plain[some].min()
    assert summarise([np.zeros(0)], [np.zeros(0)]) == {}


def test_regression_against_scikit_learn():
    """Also a client with one sample, whose targets do not vary, and one with none."""
    targets = [RNG.normal(size=n) for n in (5, 50, 1, 0)]
    guesses = [y + 0.3 * RNG.normal(size=len(y)) for y in targets]
    mse, r2 = per_client(guesses, targets, "regression").values()
    for i in (0, 1):
        assert mse[i] == pytest.approx(mean_squared_error(targets[i], guesses[i]))
        assert r2[i] == pytest.approx(r2_score(targets[i], guesses[i]))
    assert np.isnan(r2[2:]).all()
    assert np.isnan(mse[3])
    figures = summarise(guesses, targets, "regression")
    assert list(figures) == ["mse", "mse_weighted", "mse_worst", "r2", "r2_weighted", "r2_worst"]
    assert figures["mse"] == pytest.approx(mse[:3].mean())
    assert figures["mse_weighted"] == pytest.approx(
        mean_squared_error(np.concatenate(targets), np.concatenate(guesses))
    )
    assert figures["mse_worst"] == mse[:3].max()
    assert figures["r2"] == pytest.approx(r2[:2].mean())
    assert figures["r2_weighted"] == pytest.approx((5 * r2[0] + 50 * r2[1]) / 55)
    assert figures["r2_worst"] == r2[:2].min()
    assert summarise([np.zeros(0)], [np.zeros(0)], "regression") == {}
    assert np.isnan(summarise([np.zeros(2)], [np.ones(2)], "regression")["r2"])


def test_bytes_are_true_sizes():
    assert n_bytes([{"a": torch.zeros(3, 2)}, {"a": torch.zeros(2, dtype=torch.float64)}, {}]) == 24 + 16


def test_outputs_become_predictions_along_their_last_axis():
    outputs = torch.tensor([[[0.0, 2.0, 1.0], [5.0, 4.0, 3.0]]])
    assert METRICS["classification"].decide(outputs).tolist() == [[1, 0]]
    assert METRICS["regression"].decide(outputs[..., :1]).tolist() == [[0.0, 5.0]]
    assert METRICS["classification"].text(0.5) == "accuracy 50.0 %"
    assert METRICS["regression"].text(0.25) == "mean squared error 0.25"
