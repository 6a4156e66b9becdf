"""What a results page asks of records: by seed, in pairs, along a setting; and how it is drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hetfl_book import ledger
from hetfl_book.figures import intervals
from hetfl_book.ledger import results
from hetfl_core.records import RunRecord

DATA = {"fingerprint": "f", "n_clients": 2, "n_classes": 2, "n_train": 8, "n_test": 8, "info": {}}


def run(experiment, method, seed, accuracy, created="2026-01-01T00:00:00Z"):
    metrics = {"accuracy": accuracy, "seconds": 1.0 + seed}
    return RunRecord(experiment, "paper", method, seed, {}, DATA, metrics, created=created)


RUNS = [
    *(run("t/b50", "A", s, a) for s, a in enumerate([0.70, 0.72, 0.77])),
    *(run("t/b50", "B", s, a) for s, a in enumerate([0.69, 0.70, 0.72])),
    *(run("t/b99", "A", s, a) for s, a in enumerate([0.60, 0.61])),
    run("t/b99", "B", 1, 0.63),
    run("t/b99", "C", 7, 0.5),
]


def test_a_table_is_pooled_over_the_seeds_that_all_its_rows_have():
    found = results.pooled(RUNS, ["t/b50", "t/b99"], "A")
    assert found.index.tolist() == [0, 1], "the third seed has one row only"
    np.testing.assert_allclose(found, [(70 + 60) / 2, (72 + 61) / 2])
    one = results.difference(found, results.pooled(RUNS, ["t/b50", "t/b99"], "B"))
    assert one.mean == pytest.approx((72 + 61 - 70 - 63) / 2)
    assert results.pooled(RUNS, ["t/b50", "t/none"], "A").empty


def test_values_by_seed_are_in_per_cent_and_the_newest_counts():
    old = run("t/b50", "A", 1, 0.1, created="2025-01-01T00:00:00Z")
    lacking = run("t/b50", "A", 9, None)
    found = results.by_seed([old, lacking, *RUNS], "t/b50", "A")
    assert found.index.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found, [70, 72, 77])
    np.testing.assert_allclose(results.by_seed(RUNS, "t/b50", "A", "seconds"), [1, 2, 3])
    assert results.by_seed(RUNS, "t/b50", "nobody").empty


def test_mean_and_spread_in_words():
    assert results.mean_sd(pd.Series([70.0, 72.0, 77.0]), 1) == "73.0 ± 3.6"
    assert results.mean_sd(pd.Series([70.0, 74.0]), 1) == "72.0 ± 2.8 (2 seeds)", "too few to conclude from"
    assert results.mean_sd(pd.Series([70.0])) == "70.00 (1 seed)"
    assert results.mean_sd(pd.Series([], dtype=float)) == "–"


def test_differences_in_words_and_the_other_way_round():
    row = {"mean": 1.234, "low": -0.5, "high": 3.0, "seeds": (0, 1, 2)}
    assert results.words(row) == results.words(pd.Series(row)) == "+1.23 [-0.50, +3.00]"
    assert results.words(results.turned(row)) == "-1.23 [-3.00, +0.50]"
    assert results.turned(results.turned(row)) == row
    assert results.words({**row, "low": -math.inf, "high": math.inf, "seeds": (4,)}) == "+1.23 (1 seed)"


def test_seeds_that_diverged_are_named():
    """By the last value of the task's loss: None in a record stands for what is not a number."""
    losses = {0: [1.0, 0.5], 1: [1.0, None], 2: [None, 0.5], 3: [1.0, math.nan]}
    records = [replace(run("t/x", "A", s, 0.5), history={"round": [0, 1], "ce": each}) for s, each in losses.items()]
    assert results.diverged(records, "t/x", "A") == [1, 3]
    said = replace(run("t/x", "A", 4, 0.5), metrics={"accuracy": None, "diverged": 2})
    assert results.diverged([*records, said], "t/x", "A") == [1, 3, 4], "newer records say so, and have no accuracy"
    mended = replace(run("t/x", "A", 1, 0.5, "2027-01-01T00:00:00Z"), history={"ce": [0.1]})
    assert results.diverged([*records, mended], "t/x", "A") == [3]
    assert results.diverged(records, "t/x", "B") == results.diverged(RUNS, "t/b50", "A") == []


def test_a_pair_is_that_of_the_ledger_or_none():
    assert results.pair(RUNS, "t/b50", "A", "B") == ledger.paired(RUNS, "t/b50", "A", "B")
    assert results.pair(RUNS, "t/b99", "C", "B") is None, "no seed has both"
    assert results.pair(RUNS, "t/elsewhere", "A", "B") is None


def test_what_histories_say_after_a_round():
    history = {"round": [0, 1, 2], "accuracy": [0.1, None, 0.3], "server_accuracy": [None, 0.2, 0.4]}
    records = [replace(run("t/h", "A", s, 0.9), history=history) for s in (0, 1)]
    assert results.at_round(records, "t/h", "A").to_dict() == {0: 30.0, 1: 30.0}
    assert results.at_round(records, "t/h", "A", "server_accuracy", 1).to_dict() == {0: 20.0, 1: 20.0}
    assert results.at_round(records, "t/h", "A", "accuracy", 1).empty, "not evaluated"
    assert results.at_round(records, "t/h", "A", "accuracy", 9).empty
    assert results.at_round(RUNS, "t/b50", "A").empty, "no history"


def test_values_apart_are_the_ledgers_effects():
    values = {m: results.by_seed(RUNS, "t/b50", m) for m in "AB"} | {"C": pd.Series({8: 1.0})}
    pd.testing.assert_frame_equal(results.apart(values, "B"), ledger.effects(RUNS, "t/b50", "B"))
    assert ledger.corrected(results.apart(values, "B"))["finding"].tolist() == [False]


def test_gaps_along_a_setting_by_hand():
    """At 50: differences 1, 2, 5 points. At 99 one seed has both: −2, without an interval. C meets B nowhere."""
    found = results.gaps(RUNS, {50: "t/b50", 99: "t/b99"}, ["A", "C"], "B")
    assert found[["x", "method", "n"]].to_numpy().tolist() == [[50, "A", 3], [99, "A", 1]]
    np.testing.assert_allclose(found["mean"], [8 / 3, -2])
    low, high = stats.t.interval(0.95, 2, 8 / 3, stats.sem([1, 2, 5]))
    np.testing.assert_allclose(found.loc[0, ["low", "high"]].astype(float), [low, high])
    assert found.loc[1, ["low", "high"]].tolist() == [-math.inf, math.inf]


def test_methods_of_one_experiment_against_a_method_of_another():
    """At 99 less B at 50: A −9 and −9 points for two seeds, too few for an interval; B −7 for one; C with none."""
    found = results.across(RUNS, "t/b99", "t/b50", "B")
    assert found.index.tolist() == ["A", "B"]
    np.testing.assert_allclose(found["mean"], [-9, -7])
    assert found["seeds"].tolist() == [(0, 1), (1,)]
    assert found["low"].tolist() == [-math.inf] * 2
    same = results.across(RUNS, "t/b50", "t/b50", "B").drop(index="B")
    pd.testing.assert_frame_equal(same, ledger.effects(RUNS, "t/b50", "B"), check_index_type=False)
    other = replace(run("t/b99", "A", 2, 0.5), federation={**DATA, "n_train": 9})
    with pytest.raises(ValueError, match=r"cannot be paired: their data differ in .*n_train"):
        results.across([*RUNS, other], "t/b99", "t/b50", "B")
    assert results.across(RUNS, "t/none", "t/b50", "B").empty


def test_two_metrics_of_the_same_runs():
    """Seconds are 1 + seed and accuracies 70, 72, 77: differences 69, 70, 74."""
    accuracy, seconds = (results.by_seed(RUNS, "t/b50", "A", metric) for metric in ("accuracy", "seconds"))
    found = results.difference(accuracy, seconds)
    assert found is not None
    low, high = stats.t.interval(0.95, 2, 71, stats.sem([69, 70, 74]))
    assert (found.mean, found.low, found.high, found.n) == (
        pytest.approx(71),
        pytest.approx(low),
        pytest.approx(high),
        3,
    )
    two = results.difference(accuracy[:2], seconds)
    assert two is not None
    assert (two.mean, two.low, two.high) == (pytest.approx(69.5), -math.inf, math.inf), "too few for an interval"
    assert results.difference(accuracy[:1], seconds[1:]) is None


# --- drawn ------------------------------------------------------------------------------------------------------------


def rows(mean, half):
    mean, half = np.array(mean), np.array(half)
    names = [f"r{i}" for i in range(len(mean))]
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half}, index=names)


def test_a_forest_lets_one_long_interval_leave_the_frame():
    ax = intervals.forest(rows([1.0, -1.0, 0.5], [0.5, 0.5, 40.0]))
    assert ax.get_xlim()[1] < 5
    plt.close(ax.figure)
    ax = intervals.forest(rows([1.0, -1.0], [0.5, 0.5]))
    assert ax.get_xlim()[0] <= -1.5, "short intervals are seen whole"
    plt.close(ax.figure)


def test_gaps_are_drawn_hollow_without_an_interval():
    ax = intervals.gaps(results.gaps(RUNS, {50: "t/b50", 99: "t/b99"}, ["A"], "B"), xlabel="clients", spread=4)
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xydata().tolist() for line in hollow] == [[[99.0, pytest.approx(-2.0)]]]
    assert np.isfinite(ax.get_ylim()).all()
    plt.close(ax.figure)
