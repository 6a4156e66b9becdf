"""The ledger: the papers' numbers are copied rightly, and one rule judges ours."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hetfl_book.experiments import known
from hetfl_book.ledger import (
    SOURCES,
    Paired,
    RunRecord,
    Tally,
    claim_p,
    claim_verdict,
    claims,
    combined_error,
    numbers,
    paired,
    paper_table,
    paper_values,
    show,
    tally,
    tolerance,
    value,
    verdict,
)
from hetfl_book.ledger.judging import KINDS, UNAVAILABLE, UNBUILT
from hetfl_core.files import data_path
from hetfl_core.rng import numpy_stream

BCI = "flic/bci-common40"


def run(method="FLIC-HL", seed=0, accuracy=0.72, experiment=BCI, scale="paper", **changes) -> RunRecord:
    values = {
        "settings": {"rounds": 50, "seed": seed, "engine": "stacked"},
        "federation": {"name": "bci", "fingerprint": f"f{seed}", "n_clients": 40, "info": {}},
        "metrics": {"accuracy": accuracy, "accuracy_weighted": accuracy / 2},
        "commit": "0123456789abcdef",
        "dirty": False,
        "created": "2026-01-01T00:00:00Z",
    }
    return RunRecord(experiment=experiment, scale=scale, method=method, seed=seed, **{**values, **changes})


def runs(method, accuracies, **changes):
    return [run(method, seed, a, **changes) for seed, a in enumerate(accuracies)]


def row(records, method="FLIC-HL", **options):
    table = numbers(records, known=known(), **options)
    return table[(table.experiment == BCI) & (table.method == method)].iloc[0]


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "error", "expected"),
    [
        (0.0, 0.0, "agrees"),
        (1.0, 0.0, "agrees"),  # exactly one point still agrees …
        (-1.0, 0.0, "agrees"),
        (1.01, 0.0, "higher"),  # … a hundredth more does not
        (-1.01, 0.0, "lower"),
        (1.0, 0.4, "agrees"),  # 2 · 0.4 < 1: the point counts
        (1.01, 0.5, "higher"),  # 2 · 0.5 = 1
        (1.6, 0.8, "agrees"),  # 2 · 0.8 = 1.6
        (1.61, 0.8, "higher"),
        (-1.61, 0.8, "lower"),
        (100 * 0.7013 - 69.13, 0.0, "agrees"),  # 1.0000000000000142 in binary
    ],
)
def test_verdict_at_its_boundaries(difference, error, expected):
    assert verdict(difference, error) == expected


def test_combined_error_by_hand():
    """sqrt(0.6² / 3 + 1.2² / 3) = sqrt(0.12 + 0.48) = sqrt(0.6)."""
    assert combined_error((0.6, 2)) == pytest.approx(0.6 / math.sqrt(2))
    assert combined_error((0.6, 3), (1.2, 3)) == pytest.approx(math.sqrt(0.6))
    assert combined_error((0.6, 3), (math.nan, 1)) == pytest.approx(math.sqrt(0.12))
    assert combined_error((0.6, math.nan), (1.2, 3)) == pytest.approx(math.sqrt(0.48))
    assert combined_error((math.nan, 3), (5.0, 1)) == 0
    assert (tolerance(0.5), tolerance(0.75)) == (1.0, 1.5)


def test_percent_and_fractions():
    record = run(accuracy=0.7212, metrics={"accuracy": 0.7212, "balanced_accuracy": 0.5, "seconds": 3.0})
    assert value(record, "accuracy") == pytest.approx(72.12)
    assert value(record, "balanced_accuracy") == 50
    assert value(record, "seconds") == 3.0
    assert math.isnan(value(record, "absent"))


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_ledger_row_by_hand():
    """FLIC-HL is 72.12 ± 0.6 over 3 in the paper; ours 0.70, 0.71, 0.72: 71 ± 1, difference −1.12.

    Standard error sqrt(0.36/3 + 1/3) = 0.6733, tolerance 1.3466: agrees, though more than a point away.
    """
    got = row(runs("FLIC-HL", [0.70, 0.71, 0.72]))
    assert (got.published, got.published_sd, got.published_runs) == (72.12, 0.6, 3)
    assert got.ours == pytest.approx(71)
    assert got.ours_sd == pytest.approx(1)
    assert got.difference == pytest.approx(-1.12)
    assert got.tolerance == pytest.approx(2 * math.sqrt(0.36 / 3 + 1 / 3))
    assert (got.verdict, got.scale, got.ours_runs, got.command) == ("agrees", "paper", 3, "")
    assert got.seeds == [0, 1, 2]
    assert got.records[1] == f"{BCI}/paper/FLIC-HL-seed1.json"
    assert got.commits == ["0123456789"]


@pytest.mark.parametrize(("accuracies", "expected"), [([0.75, 0.751, 0.752], "higher"), ([0.65] * 3, "lower")])
def test_what_does_not_agree(accuracies, expected):
    assert row(runs("FLIC-HL", accuracies)).verdict == expected


def test_no_verdict_of_fewer_than_three_seeds():
    got = row([run(accuracy=0.72)])
    assert got.verdict == "open (1 seed)"
    assert math.isnan(got.ours_sd)
    assert row(runs("FLIC-HL", [0.90, 0.91])).verdict == "open (2 seeds)"
    assert row(runs("FLIC-HL", [0.90, 0.91, 0.92])).verdict == "higher"


def test_nothing_yet():
    got = row([])
    assert got.verdict == "pending"
    assert got.command == "hetfl reproduce flic/bci-common40 --scale paper"
    assert math.isnan(got.ours)
    table = numbers([], known=known())
    assert set(table[table.experiment == "flic/bci-54"].verdict) == {"data not available here"}
    assert set(table[table.experiment == "flic/bci-54"].command) == {"hetfl reproduce flic/bci-54 --scale paper"}
    assert set(table[table.experiment == "flic/femnist-150"].command) == {""}  # no such experiment


def test_book_scale_is_shown_but_not_compared():
    got = row(runs("FLIC-HL", [0.60, 0.62], scale="book"))
    assert got.verdict == "pending"
    assert math.isnan(got.difference)
    assert "book scale, not compared: 61.00 (2 runs)" in got.note


def test_stand_in_data_are_never_set_against_a_paper():
    made_up = {"name": "x", "fingerprint": "f", "info": {"stand_in": True}}
    got = row(runs("FLIC-HL", [0.7, 0.7], federation=made_up))
    assert got.verdict == "pending"
    assert "stand-in" in got.note
    both = [*runs("FLIC-HL", [0.1], federation=made_up), run(seed=5, accuracy=0.72)]
    assert row(both).seeds == [5]
    table = claims(
        runs("FLIC-HL", [0.9, 0.9], federation=made_up) + runs("Local", [0.1, 0.2], federation=made_up), known=known()
    )
    drawn = {"name": "x", "fingerprint": "f", "info": {"simulated": True}}
    assert row(runs("FLIC-HL", [0.7, 0.7], federation=drawn)).verdict != "pending", "a paper's own toy is no stand-in"
    pair = table[(table.experiment == BCI) & (table.better == "FLIC-HL") & (table.worse == "Local")]
    assert set(pair.verdict) == {"pending"}


def test_every_command_that_is_offered_can_run():
    """A method or a setting that is not built yet is said to be so, with no command."""
    from hetfl_book.experiments import EXPERIMENTS

    table = numbers([], known=known())
    for r in table[table.command != ""].itertuples():
        assert r.method in EXPERIMENTS[r.experiment].methods
        assert r.experiment in r.command
    other = table[table.verdict == "no experiment yet"]
    assert not any(
        r.method in EXPERIMENTS[r.experiment].methods for r in other.itertuples() if r.experiment in EXPERIMENTS
    )
    assert (other.command == "").all()


def test_available_data_make_a_verdict_even_where_the_table_says_no():
    table = numbers(runs("FLIC-HL", [0.7627] * 3, experiment="flic/bci-54"))
    got = table[(table.experiment == "flic/bci-54") & (table.method == "FLIC-HL")].iloc[0]
    assert got.verdict == "agrees"


def test_accuracy_of_the_published_code():
    got = row(runs("FLIC-HL", [0.72, 0.72]), accuracy="accuracy_weighted")
    assert (got.metric, got.ours) == ("accuracy_weighted", pytest.approx(36))


def test_missing_metric():
    assert row([run(metrics={"loss": 1.0})]).verdict == "metric missing"


def test_newest_record_of_a_seed_counts():
    old, new = run(accuracy=0.1, created="2026-01-01T00:00:00Z"), run(accuracy=0.72, created="2026-01-02T00:00:00Z")
    for order in ([old, new], [new, old]):
        assert row(order).ours == pytest.approx(72)


def test_a_hyper_parameter_that_older_records_lack_is_no_difference():
    """New fields of a method come with a default that leaves it as it was; old records stay comparable."""
    old, new = {"method": {"lr": 0.1}}, {"method": {"lr": 0.1, "scheme": "FedRep"}}
    assert row([run(seed=0, settings=old), run(seed=1, settings=new), run(seed=2, settings=new)]).verdict == "agrees"
    new["method"]["lr"] = 0.2
    assert row([run(seed=0, settings=old), run(seed=1, settings=new)]).verdict == "settings differ"


def test_two_newer_records_that_disagree_are_seen_beside_an_older_one():
    old, one, two = ({"method": {"lr": 0.1, **more}} for more in ({}, {"k": 1}, {"k": 2}))
    assert row([run(seed=s, settings=x) for s, x in enumerate((old, one, two))]).verdict == "settings differ"


def test_runs_on_data_made_in_different_ways_are_not_averaged():
    text, code = ({**run().federation, "info": {"settings": {"variant": v, "seed": s}}} for s, v in enumerate("tc"))
    again = {**text, "info": {"settings": {"variant": "t", "seed": 1}}}
    alike = [run(seed=s, federation=f) for s, f in enumerate((text, again, text))]
    assert row(alike).verdict == "agrees"
    assert row([run(seed=0, federation=text), run(seed=1, federation=code)]).verdict == "settings differ"


def test_both_sides_of_a_claim_were_run_alike():
    name = "flic-bci-common40-flic-hl-over-local"
    longer, shorter = ({"rounds": rounds, "participation": 0.1} for rounds in (50, 1))
    ours = runs("FLIC-HL", [0.9, 0.91, 0.9], settings=longer)
    for settings, expected in ((longer, "holds"), (shorter, "settings differ")):
        table = claims([*ours, *runs("Local", [0.70, 0.705, 0.71], settings=settings)]).set_index("id")
        assert table.loc[name, "verdict"] == expected


def test_runs_of_different_settings_are_not_averaged():
    assert row([run(seed=0), run(seed=1, settings={"rounds": 5})]).verdict == "settings differ"
    other_machine = run(seed=1, settings={"rounds": 50, "seed": 1, "engine": "loop", "device": "cuda"})
    assert row([run(seed=0), other_machine, run(seed=2)]).verdict == "agrees"
    table = claims([run(seed=0), run(seed=1, settings={"rounds": 5}), *runs("Local", [0.1, 0.2])], known=known())
    assert table.set_index("id").loc["flic-bci-common40-flic-hl-over-local", "verdict"] == "settings differ"


# --- claims -----------------------------------------------------------------------------------------------------------


def test_paired_interval_is_scipys():
    rng = np.random.default_rng(0)
    a, b = 0.7 + 0.02 * rng.normal(size=7), 0.69 + 0.02 * rng.normal(size=7)
    got = paired(runs("FLIC-HL", a) + runs("Local", b), BCI, "FLIC-HL", "Local")
    expected = stats.ttest_rel(100 * a, 100 * b).confidence_interval(0.95)
    assert (got.low, got.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert got.mean == pytest.approx(100 * (a - b).mean())
    assert got.n == 7


def test_paired_takes_common_seeds_only():
    records = [run("FLIC-HL", 0, 0.9), run("FLIC-HL", 1, 0.72), run("Local", 1, 0.71), run("Local", 2, 0.1)]
    got = paired(records, BCI, "FLIC-HL", "Local")
    assert got.seeds == (1,)
    assert got.mean == pytest.approx(1)
    assert (got.low, got.high) == (-math.inf, math.inf)
    assert claim_verdict(got) == "open"
    with pytest.raises(ValueError, match=r"no seed has 'accuracy' of both.*'Local' has seeds \[1, 2\]"):
        paired(records, BCI, "FLIC-Class", "Local")


def test_paired_refuses_data_of_another_size_and_marks_other_fingerprints():
    local = run("Local", 0, 0.7)
    other = {**local.federation, "n_clients": 39}
    with pytest.raises(ValueError, match=r"FLIC-HL-seed0.*Local-seed0.*\(39, 40\)"):
        paired([run("FLIC-HL", 0, federation=other), local], BCI, "FLIC-HL", "Local")
    rounded = run("FLIC-HL", 0, federation={**local.federation, "fingerprint": "other"})
    assert not paired([rounded, local], BCI, "FLIC-HL", "Local").same_data
    assert paired([run("FLIC-HL", 0), local], BCI, "FLIC-HL", "Local").same_data


@pytest.mark.parametrize("old", [True, False], ids=["by class", "as it says"])
def test_a_seed_that_changes_nothing_is_no_observation(old):
    """Two methods without randomness on the same data: five seeds are one difference five times."""
    fed = {"federation": run().federation}

    def fixed(name, values, **changes):
        said = {"method": {"class": name}} if old else {"method": {"class": "Mine"}, "deterministic": True}
        return runs(name, values, settings={"rounds": 0, "participation": 1.0, **said}, **changes)

    same = [*fixed("LDA", [0.72] * 5, **fed), *fixed("LR", [0.70] * 5, **fed)]
    got = paired(same, BCI, "LDA", "LR")
    assert (got.seeds, got.mean) == ((0,), pytest.approx(2))
    assert claim_verdict(got) == "open"
    other = [*fixed("LDA", [0.72] * 2), *fixed("LR", [0.70] * 2)]
    assert paired(other, BCI, "LDA", "LR").n == 2, "equal results on other data are an observation"
    random = [*fixed("LDA", [0.72] * 3, **fed), *runs("FLIC-HL", [0.70, 0.71, 0.70], **fed)]
    assert paired(random, BCI, "LDA", "FLIC-HL").seeds == (0, 1, 2), "it drew, and what it drew tied"


@pytest.mark.parametrize("settings", [{"rounds": 0, "method": {"class": "Chosen"}}, {"method": {"class": "LDA"}}, {}])
def test_results_that_tie_are_observations_where_it_is_not_known_that_nothing_was_drawn(settings):
    fed = {"federation": run().federation, "settings": {"participation": 1.0, **settings}}
    assert paired([*runs("A", [0.7] * 4, **fed), *runs("B", [0.7] * 4, **fed)], BCI, "A", "B").n == 4
    said = {**fed, "settings": {"rounds": 0, "method": {"class": "LDA"}, "deterministic": False}}
    assert paired([*runs("A", [0.7] * 4, **said), *runs("B", [0.7] * 4, **said)], BCI, "A", "B").n == 4


@pytest.mark.parametrize("seed", range(20))
def test_a_paired_difference_is_that_of_scipys_related_samples_also_where_results_tie(seed):
    """Accuracies on ten samples tie nearly always, as do differences; on one federation nothing else differs."""
    rng = numpy_stream(seed, "tests", 0, "ties")
    n = int(rng.integers(3, 9))
    a, b = (rng.integers(7, 10, n) / 10 for _ in "ab")
    fed = {"federation": run().federation}
    got = paired([*runs("A", a, **fed), *runs("B", b, **fed)], BCI, "A", "B")
    assert got.seeds == tuple(range(n))
    assert got.mean == pytest.approx(100 * (a.mean() - b.mean()))
    if np.ptp(a - b) > 1e-9:
        expected = stats.ttest_rel(100 * a, 100 * b)
        assert got.p == pytest.approx(expected.pvalue)
        assert (got.low, got.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_paired_refuses_a_stand_in_beside_real_data():
    toy = {**run().federation, "info": {"stand_in": True}}
    with pytest.raises(ValueError, match="stand_in"):
        paired([run("FLIC-HL", 0), run("Local", 0, federation=toy)], BCI, "FLIC-HL", "Local")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Paired(1, 0.01, 2, (0, 1, 2)), "holds"),
        (Paired(1, 0.0, 2, (0, 1, 2)), "open"),  # touches zero
        (Paired(-1, -2, -0.01, (0, 1, 2)), "reverses"),
        (Paired(-1, -2, 0.0, (0, 1, 2)), "open"),
        (Paired(1, 0.5, 2, (0,)), "open"),  # one seed
        (Paired(1, 0.5, 2, (0, 1)), "open"),  # nor do two say anything
    ],
)
def test_claim_verdict_at_its_boundaries(result, expected):
    assert claim_verdict(result) == expected


def test_claims_on_made_records():
    """Differences in points: to Local 2, 2.2, 1.8 (holds); to FedRep 3, −3, 0 (open); to HetFedRep −5, −5.2, −4.8."""
    base = np.array([0.70, 0.71, 0.72])
    records = [
        *runs("FLIC-HL", base),
        *runs("Local", base - [0.020, 0.022, 0.018]),
        *runs("FedRep", base - [0.03, -0.03, 0.0]),
        *runs("HetFedRep", base - [-0.050, -0.052, -0.048]),
        *runs("FedHeNN", [0.5]),
    ]
    table = claims(records, known=known()).set_index("id")
    over = {
        name: table.loc[f"flic-bci-common40-flic-hl-over-{name}"]
        for name in ("local", "fedrep", "hetfedrep", "fedhenn")
    }
    assert {name: r.verdict for name, r in over.items()} == {
        "local": "holds",
        "fedrep": "open",
        "hetfedrep": "reverses",
        "fedhenn": "open",
    }
    assert over["local"].difference == pytest.approx(2)
    half = 4.302653 * 0.2 / math.sqrt(3)  # t quantile of 2 degrees of freedom, sd 0.2, three pairs
    assert (over["local"].low, over["local"].high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert over["fedhenn"].seeds == [0]
    assert len(over["local"].records) == 6
    assert table.loc["flic-bci-common40-flic-class-over-local", "verdict"] == "pending"
    assert table.loc["flic-bci-common40-flic-class-over-local", "command"].startswith(
        "hetfl reproduce flic/bci-common40"
    )
    assert table.loc["flic-bci-54-flic-hl-over-local", "verdict"] == "data not available here"
    assert set(table[table.experiment == ""].verdict) == {"no experiment yet"}


def test_about_is_a_test_of_equivalence():
    """Against SciPy: both one-sided tests at 2.5 % reject exactly when the 95 % interval lies within the margin."""
    rng = np.random.default_rng(0)
    verdicts = Counter()
    for shift, spread in itertools.product((0.0, 0.8, 3.0), (0.1, 0.5, 1.5)):
        x = shift + spread * rng.standard_normal(4)
        result = Paired.of(dict(enumerate(x)))
        low, high = (stats.ttest_1samp(x, b, alternative=a).pvalue for b, a in ((-1, "greater"), (1, "less")))
        beyond = min(stats.ttest_1samp(x, b, alternative=a).pvalue for b, a in ((-1, "less"), (1, "greater")))
        expected = "holds" if max(low, high) < 0.025 else "fails" if beyond < 0.025 else "open"
        assert claim_verdict(result, -1, 1) == expected
        assert claim_p(result, -1, 1) == pytest.approx(min(1, 2 * min(max(low, high), beyond)))
        assert (claim_p(result, -1, 1) < 0.05) == (expected != "open")
        verdicts[expected] += 1
    assert set(verdicts) == {"holds", "fails", "open"}


def test_the_p_value_of_a_plain_claim_is_the_two_sided_one():
    x = np.array([1.0, 2.0, 1.5, 0.3])
    for sign in (1, -1):
        assert claim_p(Paired.of(dict(enumerate(sign * x)))) == pytest.approx(stats.ttest_1samp(x, 0).pvalue)
    assert math.isnan(claim_p(Paired.of({0: 1.0, 1: 1.1}))), "two seeds have no p-value"
    assert claim_p(Paired.of({0: 1.0, 1: 1.0, 2: 1.0})) == 0


NOISY, LINEAR = "flic/toy-noisy", "flic/toy-linear"
LEAD = "flic-toy-linear-flic-hl-over-local-shrinks"


def by_id(records) -> pd.DataFrame:
    return claims(records, known=known()).set_index("id")


@pytest.mark.parametrize(
    ("ahead", "comparable", "three"),
    [
        ((0.001, 0.002, 0.0), "holds", "fails"),
        ((0.029, 0.031, 0.030), "fails", "holds"),
        ((0.0, 0.06, 0.03), "open", "open"),
    ],
)
def test_comparable_and_magnitudes(ahead, comparable, three):
    base = np.array([0.70, 0.71, 0.72])
    mine = runs("FLIC-HL", base + ahead, experiment=NOISY)
    table = by_id([*mine, *runs("HetFedRep", base, experiment=NOISY), *runs("FedHeNN", base, experiment=NOISY)])
    assert table.loc["flic-toy-noisy-flic-hl-like-hetfedrep", "verdict"] == comparable
    assert table.loc["flic-toy-noisy-flic-hl-over-fedhenn-by-3", "verdict"] == three


def leads(at_50, at_500):
    """Runs of FLIC-HL and Local that differ by so many points, with 50 clients and with 500."""
    for b, gaps in ((50, at_50), (500, at_500)):
        data = {**run().federation, "n_clients": b}
        for method, values in (("FLIC-HL", 0.6 + np.array(gaps) / 100), ("Local", [0.6] * len(gaps))):
            yield from runs(method, values, experiment=f"{LINEAR}-b{b}", federation=data)


@pytest.mark.parametrize(
    ("at_50", "at_500", "verdict", "note"),
    [
        ((4, 4.1, 3.9), (1, 1.2, 0.9), "holds", "FLIC-HL less Local in flic/toy-linear-b50: +4.00"),
        ((4, 4.1, 3.9), (6, 6.3, 6.2), "reverses", "+4.00"),
        ((4, 4.1, 3.9), (4, 4.2, 3.7), "open", "+4.00"),
        ((-4, -4.1, -3.9), (-6, -6.2, -6.1), "reverses", "no sure lead"),  # the gap closes, but it is no lead
        ((2, -2, 0), (-6, -6.2, -6.1), "open", "no sure lead"),
        ((4, 4.1), (1, 1.2), "open", "no sure lead"),  # two seeds
    ],
)
def test_a_lead_that_shrinks(at_50, at_500, verdict, note):
    got = by_id(leads(at_50, at_500)).loc[LEAD]
    assert got.verdict == verdict
    assert note in got.note
    assert got.difference == pytest.approx(np.mean(at_50) - np.mean(at_500))
    assert len(got.records) == 4 * len(at_50)


def test_a_lead_is_not_judged_without_both_ends():
    got = by_id([r for r in leads((4, 4.1, 3.9), (1, 1.2, 0.9)) if r.experiment.endswith("b50")]).loc[LEAD]
    assert got.verdict == "pending"
    assert "flic/toy-linear-b500" in got.command


def timed(method, seconds, **changes):
    metrics = [{"accuracy": 0.5 + 0.01 * i, "seconds": float(s)} for i, s in enumerate(seconds)]
    return [run(method, i, experiment=NOISY, metrics=m, **changes) for i, m in enumerate(metrics)]


def test_how_many_times_as_long():
    """Ratios 2, 2.1, 1.9: the interval of their logarithms, and its bounds 1.5 and 2.5."""
    name = "flic-toy-noisy-flic-hl-costs-twice-local"
    got = by_id([*timed("FLIC-HL", [20, 42, 19]), *timed("Local", [10, 20, 10])]).loc[name]
    logs = np.log([2, 2.1, 1.9])
    limits = stats.ttest_1samp(logs, 0).confidence_interval()
    assert got.difference == pytest.approx(math.exp(logs.mean()))
    assert (got.low, got.high) == pytest.approx((math.exp(limits.low), math.exp(limits.high)))
    assert got.verdict == "holds"
    assert "×2.00 [×1.76, ×2.26] (3 seeds)" in str(
        show(claims([*timed("FLIC-HL", [20, 42, 19]), *timed("Local", [10, 20, 10])]))
    )
    assert by_id([*timed("FLIC-HL", [60, 122, 61]), *timed("Local", [10, 20, 10])]).loc[name, "verdict"] == "fails"
    other = timed("Local", [10, 20, 10], hardware={"cpu": "another"})
    assert by_id([*timed("FLIC-HL", [20, 42, 19]), *other]).loc[name, "verdict"] == "pending", "not the same machine"
    busy = {"hardware": {"cpu": "x", "busy": True}}
    other = [*timed("FLIC-HL", [20, 42, 19], **busy), *timed("Local", [10, 20, 10], **busy)]
    assert by_id(other).loc[name, "verdict"] == "pending", "other work took its part of the time"


def test_a_claim_about_a_table_is_judged_on_its_mean():
    """Leads of 1 and 3 points that wander from seed to seed, each open by itself, are 2 in every seed together."""
    name = "fedcma-mnist-table-fed-cma-over-local"
    leads = {
        "0.02": [0.01, 0.0, 0.02],
        "0.03": [0.03, 0.04, 0.02],
        "0.05": [0.01, 0.0, 0.021],
        "0.1": [0.03, 0.04, 0.02],
    }
    some = [
        r
        for alpha, each in leads.items()
        for method, values in (("Fed-CMA", [0.7 + x for x in each]), ("Local", [0.7] * 3))
        for r in runs(method, values, experiment=f"fedcma/mnist-alpha-{alpha}")
    ]
    table = by_id(some)
    assert table.loc["fedcma-mnist-dirichlet-0.02-fed-cma-over-local", "verdict"] == "open"
    got = table.loc[name]
    assert (got.verdict, got.difference) == ("holds", pytest.approx(2, abs=0.01))
    lacking = by_id([r for r in some if r.experiment != "fedcma/mnist-alpha-0.03"])
    assert lacking.loc[name, "verdict"] == "pending"
    assert "fedcma/mnist-alpha-0.03" in lacking.loc[name, "command"]


def test_bytes_are_the_same_on_every_machine():
    name = "fedcma-cifar10-10-clients-pfedhn-traffic"
    here = runs("Fed-CMA", [0.8] * 3, experiment="fedcma/cifar10-reduced-10", metrics={"bytes_up": 1e6})
    there = {"experiment": "fedcma/cifar10-reduced-10-pfedhn", "hardware": {"cpu": "another"}}
    for sent, expected in ((70e6, "holds"), (5e6, "fails"), (500e6, "fails")):
        got = by_id([*here, *runs("pFedHN", [0.8] * 3, metrics={"bytes_up": sent}, **there)]).loc[name]
        assert (got.verdict, got.difference) == (expected, pytest.approx(sent / 1e6))
        assert got.note == ""


def test_one_method_in_two_experiments():
    name = "flic-participation-linear-falls"
    few = runs("FLIC-Class", [0.60, 0.61, 0.62], experiment=LINEAR, settings={"participation": 0.1})
    every = {"experiment": "flic/participation-linear-r1.0", "settings": {"participation": 1.0}}
    assert by_id([*few, *runs("FLIC-Class", [0.55, 0.561, 0.568], **every)]).loc[name, "verdict"] == "holds"
    assert by_id([*few, *runs("FLIC-Class", [0.65, 0.661, 0.668], **every)]).loc[name, "verdict"] == "reverses"


def test_best_accuracy_is_of_the_history():
    history = {"round": [1, 2], "accuracy": [0.7, 0.6]}
    few = [replace(r, history=history) for r in runs("FLIC-Class", [0.5] * 3, experiment=LINEAR)]
    every = [replace(r, experiment="flic/participation-linear-r1.0") for r in few]
    got = by_id([*few, *every]).loc["flic-participation-linear-best-stable"]
    assert (got.verdict, got.difference) == ("holds", 0)


def test_a_claim_about_runs_of_unequal_data_says_so():
    """Two fingerprints of one seed: the same sizes, so that the pair stands, but perhaps other numbers."""
    mine, local = runs("FLIC-HL", [0.70, 0.71, 0.72]), runs("Local", [0.60, 0.61, 0.63])
    moved = [replace(r, federation={**r.federation, "fingerprint": "other"}) for r in local[:1]]
    name = "flic-bci-common40-flic-hl-over-local"
    assert by_id([*mine, *local]).loc[name, "note"] == ""
    assert by_id([*mine, *moved, *local[1:]]).loc[name, "note"] == "the fingerprints of the data differ"


# --- what stands beside a verdict, and the counts ---------------------------------------------------------------------


def three(method, accuracy, weighted=None, **changes):
    made = runs(method, accuracy + np.array([0.0, 0.001, -0.001]), **changes)
    both = [{**r.metrics, "accuracy_weighted": weighted or r.metrics["accuracy"]} for r in made]
    return [replace(r, metrics=m) for r, m in zip(made, both, strict=True)]


def test_a_baseline_that_is_off_is_marked():
    """BCI-common prints 71.24 for Local: 71.2 agrees, 60 does not."""
    for local, off in ((0.712, ""), (0.60, "baseline off: Local 60.00 here, 71.24 printed")):
        records = [*three("FLIC-HL", 0.75), *three("Local", local), *three("FedRep", 0.715)]
        table = by_id(records)
        assert table.loc["flic-bci-common40-flic-hl-over-local", "baseline"] == off
        assert table.loc["flic-bci-common40-flic-hl-over-fedrep", "baseline"] == "", "FedRep's own number agrees"
        assert table["checkable"].sum() == 2, "both baselines have printed numbers, and no other claim has runs"
        assert row(records).baseline == off
        assert row(records, "Local").baseline == ""
        assert row(records, "FLIC-Class").baseline == "", "nothing is judged there"
        judged = claims(records)
        assert ("holds (baseline off)" in str(show(judged))) == bool(off)
        assert (tally(numbers(records), judged).baseline_off == 1) == bool(off)


def test_claims_are_judged_by_the_runs_of_another_experiment():
    """The baseline too: off in the one, as printed in the other; a claim about two experiments takes both."""
    wrong = [*three("FLIC-HL", 0.55), *three("Local", 0.60)]
    right = [replace(r, experiment="flic/elsewhere") for r in [*three("FLIC-HL", 0.75), *three("Local", 0.712)]]
    name = "flic-bci-common40-flic-hl-over-local"
    for instead, expected in (
        ({}, (BCI, "reverses", "baseline off: Local 60.00 here, 71.24 printed")),
        ({BCI: "flic/elsewhere"}, ("flic/elsewhere", "holds", "")),
    ):
        got = claims([*wrong, *right], known=known(), instead=instead).set_index("id").loc[name]
        assert (got.experiment, got.verdict, got.baseline) == expected
    assert len(claims([], instead={BCI: "flic/elsewhere"})) == len(claims([]))
    moved, kept = (claims([], instead=each) for each in ({BCI: "x"}, {}))
    assert ((moved.against == "x") == (kept.against == BCI)).all()


def test_both_definitions_of_accuracy_are_judged():
    """Local 71.24 ± 0.6 is met by the mean over clients only, FLIC-HL 72.12 ± 0.6 by the weighted mean only."""
    records = [*three("FLIC-HL", 0.60, 0.72), *three("Local", 0.712, 0.60)]
    assert (row(records).verdict, row(records).verdict_weighted) == ("lower", "agrees")
    assert (row(records, "Local").verdict, row(records, "Local").verdict_weighted) == ("agrees", "lower")
    got = by_id(records).loc["flic-bci-common40-flic-hl-over-local"]
    assert (got.verdict, got.verdict_weighted) == ("reverses", "holds")
    assert "lower (weighted by samples: agrees)" in str(show(numbers(records)))
    assert "reverses (weighted by samples: holds)" in str(show(claims(records)))


def test_claims_after_holm_are_corrected_over_what_they_compare():
    """FLIC-HL on BCI-common is set against four methods; what the paper says elsewhere changes nothing."""
    base = np.array([0.70, 0.71, 0.72])
    records = [
        *runs("FLIC-HL", base),
        *runs("Local", base - [0.0300, 0.0301, 0.0299]),
        *runs("FedRep", base - [0.020, 0.023, 0.017]),
        *runs("FedHeNN", base - [0.020, 0.026, 0.014]),
    ]
    table = by_id(records)
    judged = table[table.p.notna()]
    name = "flic-bci-common40-flic-hl-over-"
    assert judged.verdict.to_dict() == {f"{name}{k}": "holds" for k in ("local", "fedhenn", "fedrep")}
    p = judged.p.rename(lambda k: k.removeprefix(name))
    assert p["fedrep"] == pytest.approx(stats.ttest_1samp([2, 2.3, 1.7], 0).pvalue)
    assert p["fedrep"] < 0.05 / 3
    assert 0.05 > p["fedhenn"] > 0.05 / 2, "third of four: of the three that have runs it would be the last"
    after = judged.verdict_holm.rename(lambda k: k.removeprefix(name)).to_dict()
    assert after == {"local": "holds", "fedrep": "holds", "fedhenn": "open"}
    more = by_id([*records, *three("FLIC-Class", 0.6), *runs("FLIC-HL", [0.9, 0.2, 0.4], experiment=NOISY)])
    assert (more.loc[judged.index, "verdict_holm"] == judged.verdict_holm).all()


def test_a_claim_about_a_table_is_judged_on_the_table_and_counted_once():
    """Four settings, none of which shows anything, and their mean, which does (the noise of the seeds cancels)."""
    wave = np.array([0.02, -0.02, 0.02, -0.02])
    gains = {a: 0.01 + sign * wave for a, sign in (("0.02", 1), ("0.03", -1), ("0.05", 1), ("0.1", -1))}
    gains["0.1"] = gains["0.1"] + [0.001, 0, 0, 0]
    records = []
    for alpha, gain in gains.items():
        place = {"experiment": f"fedcma/mnist-alpha-{alpha}"}
        records += [*runs("Fed-CMA", 0.8 + gain, **place), *runs("Local", np.full(4, 0.8), **place)]
    table = by_id(records)
    told = table[table.p.notna() & (table.kind == "better")]
    whole = "fedcma-mnist-table-fed-cma-over-local"
    assert told.loc[whole, ["verdict", "verdict_holm", "part_of"]].tolist() == ["holds", "holds", ""]
    assert told.loc[whole, "difference"] == pytest.approx(1 + 0.1 / 16)
    settings = told.drop(index=whole)
    assert len(settings) == 4
    assert (settings.verdict == "open").all()
    assert (settings.part_of == whole).all()
    assert (table.part_of != "").sum() == 4, "not those against methods without runs"
    assert set(by_id([r for r in records if "0.1" not in r.experiment]).part_of) == {""}, "a setting has no runs"
    counted = tally(numbers(records), claims(records))
    assert counted.claims == len(table) - 4
    assert counted.by_rule["holds"] == 1
    assert tally(numbers([]), claims([])).claims == len(table)


def test_a_claim_may_set_one_metric_against_another():
    """That clients are less accurate than their server: two measures of the same runs."""
    place = "hyfem/colours-cifar10"
    made = [
        run("HyFEM", s, experiment=place, metrics={"accuracy": 0.3, "server_accuracy": 0.4 + 0.01 * s})
        for s in range(3)
    ]
    got = by_id(made).loc["hyfem-cifar-10-server-over-clients"]
    assert (got.difference, got.verdict) == (pytest.approx(11), "holds")


def test_tally_counts_what_it_says():
    """Three lines of BCI-common: agrees, lower, and one seed. Of the claims about them one holds, one has one seed."""
    records = [*three("FLIC-HL", 0.7212), *three("Local", 0.60), run("FedRep", 0, 0.7)]
    got = tally(numbers(records, known=known()), claims(records, known=known()))
    assert isinstance(got, Tally)
    assert got.judged == {"agrees": 1, "higher": 0, "lower": 1}
    assert got.by_rule == {"holds": 1, "open": 0, "reverses": 0, "fails": 0}
    assert got.corrected == got.by_rule
    assert (got.too_few, got.checkable, got.baseline_off) == (1, 1, 1)
    assert got.numbers == len(numbers([]))
    assert got.claims == len(claims([]))


def test_every_printed_accuracy_is_counted_once():
    """400 are printed, 116 of them again: Table 10 of FedCR, one V of four in its Table 3, FLIC's first version."""
    printed = paper_values().query("metric == 'accuracy'")
    again = printed[printed["repeats"] != ""]
    assert (len(printed), again.groupby(["paper", "table"]).size().to_dict()) == (
        400, {("fedcr", "10"): 80, ("fedcr", "3"): 4, ("flic-v1", "3"): 32}
    )  # fmt: skip
    table = numbers([], known=known())
    assert len(table) == len(printed) - len(again) == 284
    once = printed[printed["repeats"] == ""]
    assert not once.duplicated(["paper", "table", "setting", "method"]).any()
    assert set(table["verdict"]) <= {"pending", UNAVAILABLE, UNBUILT}


def test_the_first_screen_of_the_ledger_counts_what_is_printed(monkeypatch):
    """As the page says it, with all that it shows."""
    said = []
    monkeypatch.setattr("hetfl_book.notebook.say", lambda *lines: said.extend(lines))
    page = json.loads((Path(__file__).parents[1] / "book" / "ledger.ipynb").read_text("utf8"))["cells"]
    code = "".join(next(cell["source"] for cell in page if cell["cell_type"] == "code"))
    exec(code.replace("%pip", "pass #"), {"__name__": "page"})
    assert said[0].startswith("- **Numbers.** The papers print 400 accuracies, 116 of them a second time. Of the 284 ")
    plt.close("all")


def test_what_is_printed_again_is_the_same_number():
    """But for six: a slip between Tables 2 and 10 of FedCR, and five of FLIC that its second version changed."""
    printed = paper_values().query("metric == 'accuracy'")
    first = {(f"{r.paper} {r.table}", r.setting, r.method): r.value for r in printed.itertuples()}
    other = []
    for r in printed[printed["repeats"] != ""].itertuples():
        setting = r.setting.split(", ")[0] if (r.paper, r.table) == ("fedcr", "3") else r.setting
        if first[r.repeats, setting, r.method] != r.value:
            other.append((r.paper, r.setting, r.method))
            assert "prints" in r.note or (r.paper, r.method) == ("fedcr", "FedAvg"), "the note says so"
    assert len(other) == 6
    assert [o for o in other if o[0] == "fedcr"] == [("fedcr", "CIFAR10 non-iid_2", "FedAvg")]


def test_what_can_be_run_does_not_count_what_has_no_data_here():
    """Counted anew from the experiments and the papers' tables, whatever has been run."""
    methods = known()
    printed = paper_values().query("metric == 'accuracy' and repeats == ''")
    built = [r.method in methods.get(r.experiment, ()) for r in printed.itertuples()]
    had = printed[np.array(built) & (printed.available != "no")]
    for records in ([], runs("FLIC-HL", [0.70, 0.71, 0.72])):
        assert tally(numbers(records, known=methods), claims(records)).runnable == len(had) < len(printed)


# --- for the eye ------------------------------------------------------------------------------------------------------


def test_show_of_the_ledger():
    weighted = {"accuracy": 0.7, "accuracy_weighted": 0.72}
    made = [
        replace(r, metrics=weighted | {"accuracy": r.metrics["accuracy"]}) for r in runs("FLIC-HL", [0.70, 0.71, 0.72])
    ]
    text = str(show(numbers([*made, run("Local")])))
    line = next(li for li in text.splitlines() if "BCI-common" in li and "FLIC-HL" in li)
    cells = [c.strip() for c in line.strip("|").split("|")]
    assert cells[:4] == ["FLIC (TMLR 2024), Table 4", "BCI-common (b=40)", "FLIC-HL", "72.12 ± 0.6"]
    assert cells[4:7] == ["71.00 ± 1.00 (3 seeds, paper scale)", "-1.12", "agrees"]
    assert cells[7] == "flic/bci-common40/paper, seeds 0, 1, 2, commit 0123456789"
    assert "(1 seed, paper scale)" in text
    assert len({len(li) for li in text.splitlines()}) == 1, "columns are aligned"


def test_show_as_html_is_whole_and_escaped():
    page = show(pd.DataFrame({"a<b": ["long " * 40, "x & y"], "c": ["1 ± 2", "p|q"]}))
    found = page._repr_html_()
    assert "long " * 40 in found
    assert '<th scope="col">a&lt;b</th>' in found
    assert "x &amp; y" in found
    assert "1&nbsp;±&nbsp;2" in found, "on one line"
    assert "p\\|q" in page._repr_markdown_()


def test_show_of_claims():
    base = np.array([0.70, 0.71, 0.72])
    text = str(show(claims(runs("FLIC-HL", base) + runs("Local", base - [0.020, 0.022, 0.018]))))
    line = next(li for li in text.splitlines() if "FLIC-HL is more accurate than Local on BCI-common" in li)
    assert "+2.00 [+1.50, +2.50] (3 seeds)" in line
    assert "| holds" in line


# --- the papers' numbers ----------------------------------------------------------------------------------------------

VALUES = paper_values()


def test_every_value_is_a_number_with_its_place():
    assert np.isfinite(VALUES.value).all()
    assert VALUES.available.isin(["yes", "partly", "no"]).all()
    assert VALUES.paper.isin(list(SOURCES)).all()
    assert (VALUES.loc[VALUES.available != "yes", "note"] != "").all(), "what is missing needs its reason"
    assert not VALUES.duplicated(["paper", "table", "setting", "method", "metric", "value"]).any()
    percent = VALUES[VALUES.unit == "%"]
    assert percent.value.between(10, 100).all()
    assert percent.sd.dropna().between(0, 5.01).all()
    assert (percent.metric == "accuracy").all()
    assert (percent.method != "").all()
    assert (VALUES.loc[VALUES.experiment != "", "unit"] == "%").all()


def test_files_are_named_after_what_they_hold():
    for path in data_path("paper").glob("*-table*.csv"):
        frame = pd.read_csv(path, dtype=str)
        assert set(frame.paper + "-table" + frame.table) == {path.stem}
        assert list(frame.columns) in (list(VALUES.columns), [c for c in VALUES.columns if c != "repeats"])
    assert len(paper_table("flic", 4)) == 9 * 6
    with pytest.raises(KeyError, match="flic, table 4"):
        paper_table("flic", 5)


@pytest.mark.parametrize(
    ("paper", "table", "setting", "method", "expected", "sd"),
    [
        ("flic", "3", "Digits (b=100, 3 classes/client)", "Local", 97.49, 0.4),
        ("flic", "3", "Digits (b=100, 5 classes/client)", "HetFedRep", 54.87, 5.0),
        ("flic", "3", "Digits (b=200, 5 classes/client)", "FLIC-Class", 91.11, 0.6),
        ("flic", "3", "TextCaps (b=200, 3 classes/client)", "FLIC-HL", 78.49, 0.7),
        ("flic", "3", "BCI (b=54)", "FedHeNN", 70.84, 1.0),
        ("flic", "3", "BCI (b=40)", "FLIC-HL", 75.82, 0.3),
        ("flic", "4", "Digits-Resize (b=200, 5 classes)", "FedRep", 94.57, 0.9),
        ("flic", "4", "TextCaps-Clip (b=100, 3 classes)", "Local", 94.38, 0.2),
        ("flic", "4", "BCI-common (b=40)", "Local", 71.24, 0.6),
        ("flic", "4", "BCI-common (b=40)", "FedHeNN", 70.63, 0.4),
        ("flic", "4", "BCI-common (b=40)", "HetFedRep", 72.09, 0.1),
        ("flic", "4", "BCI-common (b=40)", "FedRep", 71.50, 0.3),
        ("flic", "4", "BCI-common (b=40)", "FLIC-Class", 72.17, 0.3),
        ("flic", "4", "BCI-common (b=40)", "FLIC-HL", 72.12, 0.6),
        ("flic", "S2", "FEMNIST digits (50 clients)", "FLIC-HL", 82.37, 0.6),
        ("flic", "S2", "FEMNIST digits (150 clients)", "FedRep", 74.55, 1.3),
        ("flic-v1", "3", "Digits (b=200, 5 classes/client)", "Local", 86.50, math.nan),
        ("fedcr", "2", "CIFAR10 non-iid_2", "FedAvg", 76.34, math.nan),
        ("fedcr", "10", "CIFAR10 non-iid_2", "FedAvg", 76.26, 0.53),
        ("fedcr", "10", "CIFAR100 non-iid_1", "FedCR", 62.96, 0.93),
        ("fedcr", "3", "CIFAR100 non-iid_1, 2 Gaussian dimensions", "FedCR", 21.65, math.nan),
        ("fedcr", "9", "CIFAR100 non-iid_1, 15 classes/client, no shared model", "FedPer", 39.5, math.nan),
        ("fedcma", "2", "MNIST (Dirichlet α=0.03)", "Fed-CMA", 64.03, 0.26),
        ("fedcma", "2", "FEMNIST (by writer)", "Fed-CMA", 64.50, 1.2),
        ("fedcma", "3", "CIFAR10 (100 clients)", "pFedHN-PC", 80.81, math.nan),
    ],
)
def test_numbers_read_by_eye(paper, table, setting, method, expected, sd):
    found = paper_table(paper, table).query("setting == @setting and method == @method")
    assert found.value.tolist() == [expected]
    assert found.sd.tolist() == pytest.approx([sd], nan_ok=True)


def test_facts_read_by_eye():
    s1 = paper_table("flic", "S1").pivot(index="setting", columns="metric", values="value")
    assert s1.loc["Weibo2014"].to_dict() == {
        "channels": 60, "classes": 7, "features": 1830, "subjects": 10, "trials per class": 80,
    }  # fmt: skip
    assert s1.subjects.sum() == 54, "the 54 clients of Table 3"
    assert (s1.features == s1.channels * (s1.channels + 1) / 2).all(), "upper triangle of a covariance matrix"
    split = paper_table("fedcr", 4).pivot(index="setting", columns="metric", values="value")
    both = split["samples of the original training set"] + split["samples of the original test set"]
    assert (both == split["samples in all"]).all()
    hyfem = paper_table("hyfem", 3).query("metric == 'feature block held'")
    assert hyfem.groupby("setting").value.agg(list).tolist() == [[1, 2, 3]] * 2 + [[1, 3, 4]] * 2 + [[1, 3]] * 2


def test_flic_names_its_experiments():
    tables = VALUES[(VALUES.paper == "flic") & (VALUES.unit == "%")]
    assert (tables.experiment.str.match(r"flic/[a-z0-9-]+$")).all()
    assert tables.groupby("setting").experiment.nunique().eq(1).all()
    assert tables.groupby("experiment").setting.nunique().eq(1).all()
    availability = tables.groupby("experiment").available.first()
    assert availability["flic/bci-common40"] == "yes"
    assert availability["flic/digits-b100-c3"] == "yes"
    assert availability["flic/femnist-50"] == "partly"
    assert set(availability[availability.index.str.contains("textcaps|bci-54|bci-40|femnist-150")]) == {"no"}


def test_claims_can_be_followed():
    table = pd.read_csv(data_path("paper", "claims.csv"), dtype=str, keep_default_na=False)
    assert table.id.is_unique
    columns = ["kind", "experiment", "against", "metric", "better", "worse", "value", "margin", "where"]
    assert list(table.columns) == ["paper", "id", "claim", *columns]
    assert ((table.better != table.worse) | (table.against != "") | table.metric.str.contains("; ")).all()
    assert (table.experiment != table.against)[table.experiment != ""].all()
    assert set(table.kind) == set(KINDS)
    sized = table.kind.isin(["about", "times"])
    assert ((table.value != "") == sized).all()
    assert ((table.margin != "") == sized).all()
    assert (table.against != "")[table.kind == "shrinks"].all()
    assert set(table[table.kind == "times"].metric) == {"seconds", "bytes_up"}
    assert table["where"].str.contains("Section").all()
    assert {"FLIC-HL", "FLIC-Class"} <= set(table[table.experiment == BCI].better)
    assert {"Local", "FedRep", "HetFedRep", "FedHeNN"} == set(table[table.experiment == BCI].worse)
    assert {"flic/toy-noisy", "flic/toy-linear"} <= set(table.experiment)


def test_claims_follow_their_tables_or_say_that_they_do_not():
    means = VALUES[VALUES.unit == "%"].drop_duplicates(["paper", "experiment", "method"])
    means = means[means.experiment != ""].set_index(["experiment", "method"]).value
    table = pd.read_csv(data_path("paper", "claims.csv"), dtype=str, keep_default_na=False)
    printed = table[table["where"].str.contains("Table") & table.experiment.isin(means.index.get_level_values(0))]
    assert len(printed) > 80
    for c in printed.to_dict("records"):
        difference = means[c["experiment"], c["better"]] - means[c["against"] or c["experiment"], c["worse"]]
        if c["kind"] == "about":
            near = abs(difference - float(c["value"])) <= float(c["margin"])
            assert near != (f"itself has a difference of {difference:.2f}" in c["where"]), c["id"]
            continue
        said = "other way round" in c["where"]
        assert (difference > 0) != said or difference == 0, c["id"]


def test_taxonomy_is_complete():
    table = pd.read_csv(data_path("paper", "taxonomy.csv"), dtype=str, keep_default_na=False)
    marks = table[(table.table == "1") & table.paper.isin(["flic", "fedcma"])]
    assert marks.value.isin(["yes", "no", "unclear"]).all()
    wide = marks.pivot(index=["paper", "work"], columns="property", values="value")
    assert (len(wide.loc["flic"]), len(wide.loc["fedcma"])) == (13, 9)
    assert (wide.loc[("flic", "FLIC")].dropna() == "yes").all(), "only FLIC has all four"
    assert not (marks.value == "unclear").any()
    read = marks[marks["note"].str.startswith("row empty")]
    assert set(read["work"]) == {"Lin et al., 2020", "Yao et al., 2021"}


# --- beside the papers' text, where it can be had ---------------------------------------------------------------------

TEXTS = {
    "flic": "flic-tmlr-2024.txt",
    "flic-v1": "flic-arxiv-v1.txt",
    "fedcr": "fedcr-icml-2023.txt",
    "fedcma": "fed-cma.txt",
    "hyfem": "hyfem-tmlr-2024.txt",
}
PAPERS = Path(os.environ.get("HETFL_PAPERS", data_path("paper").parents[2] / "shared" / "papers"))
needs_papers = pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers' text is not here (HETFL_PAPERS)")


@cache
def text(paper: str) -> str:
    """The paper's text without marks of bold type, braces and blanks within a line; tabs separate cells."""
    raw = (PAPERS / TEXTS[paper]).read_text(encoding="utf-8").replace("\\pm", "±")
    raw = re.sub(r" (?=\d\d\.\d)", "\t", raw) if paper == "flic-v1" else raw
    return re.sub(r"\\bf|\\textbf|</?b>|[{}$ ]", "", raw)


def printed() -> pd.DataFrame:
    files = sorted(data_path("paper").glob("*-table*.csv"))
    return pd.concat([pd.read_csv(f, dtype=str, keep_default_na=False) for f in files])


@needs_papers
@pytest.mark.parametrize("paper", ["flic", "fedcr"])
def test_every_mean_and_deviation_of_the_text_is_here_as_often(paper):
    ours = printed().query("paper == @paper and sd != ''")
    theirs = re.findall(r"(\d\d\.\d+)±(\d\.\d+)", text(paper))
    assert Counter(zip(ours.value, ours.sd, strict=True)) == Counter(theirs)


@needs_papers
def test_every_row_is_in_its_text():
    for r in printed().to_dict("records"):
        v, found = r["value"], text(r["paper"])
        forms = [v, f"{v}V" if r["unit"] == "V" else v]
        forms += [f"{int(v) / 1000:g}k"] if v.isdigit() and int(v) >= 1000 else []
        number = "|".join(rf"(?<![\d.]){re.escape(f)}(?![\d]|\.\d)" for f in forms)
        assert re.search(number, found), r


def block(paper: str, first_words: str) -> list[list[list[str]]]:
    """Numbers of one line of a table: for each cell after the first, those that stand in it."""
    line = next(li for li in text(paper).splitlines() if li.startswith(first_words) and "±" in li)
    return [re.findall(r"(\d\d\.\d+)±", cell) for cell in line.split("\t")[1:]]


@needs_papers
@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("3", "Digits(b"),
        ("3", "TextCaps(b"),
        ("3", "BCI(b"),
        ("4", "Digits-Resize"),
        ("4", "TextCaps-Clip"),
        ("4", "BCI-common"),
    ],
)
def test_flic_cells_stand_in_their_column_and_order(table, name):
    """Each cell of the text holds one method's numbers, setting by setting."""
    rows = printed().query("paper == 'flic' and table == @table")
    rows = rows[rows.setting.str.replace(" ", "").str.startswith(name)]
    mine = [group.value.tolist() for _, group in rows.groupby("method", sort=False)]
    assert mine == block("flic", name)


LABELS = [
    ("flic", "S2"),
    ("flic", "S1"),
    ("fedcr", "2"),
    ("fedcr", "10"),
    ("fedcr", "3"),
    ("fedcr", "9"),
    ("fedcma", "3"),
    ("fedcma", "2"),
    ("flic-v1", "3"),
]


@needs_papers
@pytest.mark.parametrize(("paper", "table"), LABELS)
def test_cells_stand_in_one_line_of_the_text(paper, table):
    """The numbers of one printed row (of one method, or one setting) are cells of one line, in order."""
    rows = printed().query("paper == @paper and table == @table")
    if (paper, table) == ("fedcr", "3"):
        key = rows.setting.str.extract(r"(\d+) Gaussian")[0]
    else:
        key = rows.method if table in ("S2", "2", "10") and paper != "fedcma" else rows.setting
    lines = [[re.split(r"[±(]", cell)[0] for cell in li.split("\t") if cell != "-"] for li in text(paper).splitlines()]
    for name, group in rows.groupby(key, sort=False):
        cells = group.value.tolist()
        assert any(_within(cells, li) for li in lines), name


def _within(cells: list[str], line: list[str]) -> bool:
    return any(line[i : i + len(cells)] == cells for i in range(len(line)))


def test_every_number_of_the_papers_has_a_row_number_of_its_own():
    assert paper_values().index.is_unique


def test_runs_of_several_seeds_side_by_side_count_as_those_alone():
    settings = {"rounds": 50, "engine": "auto"}
    groups = [{**settings, "together": [0, 1]}] * 2 + [{**settings, "together": [2, 3]}] * 2 + [settings]
    found = [run(seed=s, accuracy=0.72, settings={**g, "seed": s}) for s, g in enumerate(groups)]
    assert row(found).verdict == "agrees"
    assert row(found).ours_runs == 5


def test_seconds_of_runs_that_shared_a_machine_are_not_those_of_runs_alone():
    from hetfl_book.ledger.judging import _on_different_machines

    alone = [run(seed=s, hardware={"cpu": "x"}) for s in range(3)]
    shared = [run("Local", s, hardware={"cpu": "x"}, settings={"together": [0, 1, 2]}) for s in range(3)]
    assert _on_different_machines(alone, shared) == {0, 1, 2}
    assert _on_different_machines(shared, shared) == set()
