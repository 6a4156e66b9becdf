"""Who wins, client by client, worked by hand on made records."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hetfl_book.ledger import comparison
from hetfl_book.ledger.comparison import against, best, means, paired_differences, table
from hetfl_core.records import RunRecord, write

CLIENTS = ["A-1", "A-2", "B-1", "B-2", "B-3"]


def record(method, seed, accuracies, experiment="tests/curve", created="2026-01-01T00:00:00Z", **per_client):
    columns = {"client": CLIENTS, "n_train": [10] * 5, "accuracy": accuracies, **per_client}
    return RunRecord(
        experiment, "paper", method, seed, {}, {"info": {}}, {"accuracy": float(np.mean(accuracies))},
        per_client=columns, created=created,
    )  # fmt: skip


RECORDS = [
    record("FLIC-HL", 0, [0.9, 0.7, 0.8, 0.6, 0.7]),
    record("FLIC-HL", 1, [0.8, 0.6, 0.9, 0.6, 0.6]),
    record("Local", 0, [0.7, 0.5, 0.9, 0.6, 0.5]),
    record("Local", 1, [0.8, 0.6, 0.8, 0.7, 0.6]),
    record("LDA", 0, [0.6, 0.7, 0.9, 0.9, 0.8]),
    record("LDA", 1, [0.6, 0.7, 0.9, 0.9, 0.9]),
]


def test_a_row_a_client_method_and_seed():
    rows = table(RECORDS)
    assert len(rows) == 30
    first = rows[(rows["method"] == "Local") & (rows["seed"] == 0) & (rows["client"] == "B-1")].iloc[0]
    assert (first["data_set"], first["accuracy"], first["n_train"]) == ("B", 90.0, 10)


def test_data_sets_are_those_of_the_record_where_it_says():
    made = record("Local", 0, [0.5] * 5)
    made.federation["info"] = {"subjects": {name: {"data_set": "Both"} for name in CLIENTS}}
    assert set(table([made])["data_set"]) == {"Both"}


def test_the_newer_of_two_records_counts_and_those_without_clients_do_not():
    newer = record("Local", 0, [0.1] * 5, created="2026-02-01T00:00:00Z")
    rows = table([newer, *RECORDS, RunRecord("a", "own", "b", 0, {}, {}, {})])
    assert rows[(rows["method"] == "Local") & (rows["seed"] == 0)]["accuracy"].tolist() == [10.0] * 5
    assert set(rows["method"]) == {"FLIC-HL", "Local", "LDA"}
    with pytest.raises(KeyError, match="has no metric 'recall' of its clients"):
        table(RECORDS, "recall")


def test_points_of_a_curve():
    rows = table({10: RECORDS[:2], "all": RECORDS[2:4]})
    assert rows.groupby("n", sort=False).size().to_dict() == {10: 10, "all": 10}
    inside = table([record("Local", 0, [0.5] * 5, n=[0, 0, 10, 10, "all"])])
    assert inside["n"].tolist() == [0, 0, 10, 10, "all"]


def test_means_are_over_clients_of_the_means_over_seeds():
    found = means(table(RECORDS)).set_index(["data_set", "method"])
    of_clients = np.array([75.0, 55.0])  # Local on A: (70 + 80)/2 and (50 + 60)/2
    row = found.loc["A", "Local"]
    half = stats.t.ppf(0.975, 1) * of_clients.std(ddof=1) / math.sqrt(2)
    assert row["mean"] == pytest.approx(65)
    assert (row["low"], row["high"]) == pytest.approx((65 - half, 65 + half))
    assert (row["n_clients"], row["n_seeds"], row["n_train"]) == (2, 2, 10)
    assert means(table(RECORDS), by=()).set_index("method").loc["LDA", "mean"] == pytest.approx(79)


def test_differences_are_paired_over_clients_and_over_seeds():
    """Against SciPy's paired t-interval. FLIC-HL less Local on B: seed 0: −10, 0, 20; seed 1: 10, −10, 0."""
    rows = table(RECORDS)
    row = paired_differences(rows, "FLIC-HL", "Local").set_index("data_set").loc["B"]
    over_clients = stats.ttest_1samp([0, -5, 10], 0).confidence_interval()
    assert row["mean"] == pytest.approx(5 / 3)
    assert (row["low"], row["high"]) == pytest.approx(tuple(over_clients))
    assert row["p"] == pytest.approx(stats.ttest_1samp([0, -5, 10], 0).pvalue)
    assert (row["seeds_low"], row["seeds_high"]) == (-math.inf, math.inf), "two seeds say nothing of others"
    third = [record(name, 2, [0.7] * 4 + [x]) for name, x in (("FLIC-HL", 0.8), ("Local", 0.7))]
    more = paired_differences(table([*RECORDS, *third]), "FLIC-HL", "Local").set_index("data_set").loc["B"]
    over_seeds = stats.ttest_1samp([10 / 3, 0, 10 / 3], 0).confidence_interval()
    assert (more["seeds_low"], more["seeds_high"]) == pytest.approx(tuple(over_seeds))
    assert (row["n_clients"], row["n_seeds"], row["verdict"]) == (3, 2, "open")
    back = paired_differences(rows, "Local", "FLIC-HL").set_index("data_set").loc["B"]
    assert (back["low"], back["high"]) == pytest.approx((-row["high"], -row["low"]))


def test_verdicts_name_the_winner():
    clear = [record("a", 0, [0.9, 0.8, 0.7, 0.8, 0.9]), record("b", 0, [0.8, 0.7, 0.61, 0.69, 0.8])]
    (row,) = paired_differences(table(clear), "a", "b", by=()).to_dict("records")
    assert row["verdict"] == "a"
    assert row["seeds_low"] == -math.inf, "one seed says nothing of others"
    assert paired_differences(table(clear), "b", "a", by=())["verdict"].tolist() == ["a"]


def test_two_clients_are_too_few_for_a_verdict():
    (row,) = (
        paired_differences(table(RECORDS), "FLIC-HL", "Local", by=["data_set"])
        .query("data_set == 'A'")
        .to_dict("records")
    )
    assert (row["n_clients"], row["verdict"], row["low"], row["high"]) == (2, "open", -math.inf, math.inf)
    assert math.isnan(row["p"])


def test_verdicts_after_correction_are_those_of_holm_over_the_table():
    """p = 0.01, 0.03, 0.04 and one that is not known: Holm wants 0.0125, 0.0167, … and stops at the second."""
    found = pd.DataFrame({"p": [0.01, 0.03, 0.04, math.nan], "verdict": ["a", "b", "a", "open"]})
    assert comparison.with_verdicts(found)["verdict_holm"].tolist() == ["a", "open", "open", "open"]
    assert comparison.with_verdicts(found[:2])["verdict_holm"].tolist() == ["a", "b"]


def test_only_pairs_count():
    """The seed that only one of the methods has is left out."""
    rows = table([*RECORDS, record("FLIC-HL", 2, [0.0] * 5)])
    assert (
        paired_differences(rows, "FLIC-HL", "Local")["mean"].tolist()
        == paired_differences(table(RECORDS), "FLIC-HL", "Local")["mean"].tolist()
    )
    assert len(paired_differences(rows, "FLIC-HL", "nobody")) == 0
    with pytest.raises(ValueError, match="twice: add what differs to `by`"):
        paired_differences(table({10: RECORDS, 20: RECORDS}), "FLIC-HL", "Local")


def test_pairs_by_numbers_and_all_come_without_a_warning():
    rows = table([record(m, 0, [a] * 5, n=[0, 10, 10, "all", "all"]) for m, a in (("a", 0.9), ("b", 0.8))])
    rows = rows[(rows["method"] == "a") | (rows["client"] != "B-3")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = paired_differences(rows, "a", "b", by=["n"]).set_index("n")
    assert found["n_clients"].to_dict() == {0: 1, 10: 2, "all": 1}
    assert found["mean"].tolist() == pytest.approx([10, 10, 10])


def test_the_best_is_that_of_the_highest_mean():
    assert best(table(RECORDS), ["Local", "LDA"])["method"].tolist() == ["LDA"]
    assert list(best(table(RECORDS), ["Local", "LDA"])) == list(means(table(RECORDS), ())), "no column more"


def test_against_the_best_of_each_data_set_and_of_all():
    found = against(table(RECORDS), ["FLIC-HL"], ["Local", "LDA"]).set_index("data_set")
    assert found["b"].to_dict() == {"A": "Local", "B": "LDA", comparison.ALL: "LDA"}
    assert found.loc["A", "mean"] == pytest.approx(10)
    assert found.loc["B", "mean"] == pytest.approx(70 - 265 / 3)
    assert found.loc[comparison.ALL, "n_clients"] == 5
    plain = against(table({10: RECORDS, 20: RECORDS}), ["FLIC-HL", "LDA"], ["Local"], by=["n"])
    assert plain[["n", "a"]].values.tolist() == [[10, "FLIC-HL"], [10, "LDA"], [20, "FLIC-HL"], [20, "LDA"]]
    assert len(against(table([]), ["a"], ["b"])) == 0


def test_curves_are_read_from_stored_records(tmp_path):
    for made in RECORDS:
        write(made, tmp_path)
    rows = comparison.curve({10: "tests/curve", 20: "tests/none"}, folder=tmp_path)
    pd.testing.assert_frame_equal(
        rows.sort_values(["method", "seed", "client"], ignore_index=True),
        table({10: RECORDS}).sort_values(["method", "seed", "client"], ignore_index=True),
    )


def test_an_interval_that_holds_zero_leaves_the_winner_open():
    given = [(0.1, 0.2), (-0.2, -0.1), (-0.1, 0.2), (-0.1, 0.0), (0.0, 0.1)]
    assert [comparison._winner(low, high, "a", "b") for low, high in given] == ["a", "b", "open", "open", "open"]


def test_a_column_that_is_not_there_is_named():
    rows = table([record("A", 0, [0.5, 0.6, 0.7, 0.8, 0.9])])
    with pytest.raises(KeyError, match="by: the table has no column 'nowhere'"):
        means(rows, ["nowhere"])
    with pytest.raises(KeyError, match="metric: the table has no column 'nothing'"):
        means(rows, ["data_set"], "nothing")
