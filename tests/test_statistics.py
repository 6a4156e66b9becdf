"""What the seeds say about a difference: intervals, corrections that keep their level, and what is refused."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hetfl_book import ledger
from hetfl_core.records import RunRecord
from hetfl_core.statistics import (
    MIN_SEEDS,
    NoPairsError,
    Paired,
    contrast,
    corrected,
    holm,
    interval,
    protocols_differ,
    welch,
)

ROOT = Path(__file__).resolve().parents[1]
TABLES, SWITCHES = 20_000, 14
"""Simulated ablations, and the comparisons of each."""

ERROR = 3 * math.sqrt(0.05 * 0.95 / TABLES)
"""Three standard errors of a share of 5 %."""

EQUAL = np.ones(SWITCHES)
UNEQUAL = np.geomspace(0.03, 1, SWITCHES)


def ablations(spreads, n, shared, shifts=0.0, seed=0):
    """Differences of variants to one base, shape (tables, n seeds, variants), with the standard deviations `spreads`.

    The base's own noise, `shared` times the smallest spread, is in all differences of a seed.
    """
    rng = np.random.default_rng(seed)
    base = shared * spreads.min()
    own = np.sqrt(spreads**2 - base**2) * rng.standard_normal((TABLES, n, len(spreads)))
    return own - base * rng.standard_normal((TABLES, n, 1)) + shifts


def own_p(d):
    """Two-sided p-values of Student's t, each comparison by its own spread, shape (tables, variants)."""
    return stats.ttest_1samp(d, 0, axis=1).pvalue


def pooled_p(d):
    """The same with one spread for all comparisons of a table, which is what a common spread would allow."""
    n, m = d.shape[1:]
    t = d.mean(1) * math.sqrt(n) / np.sqrt(d.var(1, ddof=1).mean(1, keepdims=True))
    return 2 * stats.t.sf(np.abs(t), m * (n - 1))


def any_finding(p, among=slice(None)):
    """Share of tables with at least one finding, or one `among` some comparisons."""
    return (holm(p) <= 0.05)[:, among].any(1).mean()


@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.parametrize("shared", [0.0, math.sqrt(0.5)], ids=["unrelated", "one base"])
@pytest.mark.parametrize("spreads", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_family_wise_error_is_kept_with_any_spreads(spreads, shared, n):
    """No switch does anything: the share of tables with a finding is at most 5 %, up to the simulation's own error."""
    got = any_finding(own_p(ablations(spreads, n, shared)))
    assert got <= 0.05 + ERROR
    assert got > 0.02, "it does not keep its level by never finding anything"


def test_family_wise_error_is_kept_where_some_switches_do_something():
    """Holm steps down past the true findings, and must not slip on the rest."""
    true = np.where(np.arange(SWITCHES) < 7, 100.0, 0.0)
    for spreads in (EQUAL, UNEQUAL):
        p = own_p(ablations(spreads, 4, math.sqrt(0.5), true))
        assert any_finding(p, slice(7, None)) <= 0.05 + ERROR
        assert (holm(p)[:, :7] <= 0.05).mean() > 0.99


def test_a_common_spread_keeps_its_level_only_where_spreads_are_equal():
    """Why there is none in the core."""
    assert any_finding(pooled_p(ablations(EQUAL, 3, 0.0))) <= 0.05 + ERROR
    assert any_finding(pooled_p(ablations(UNEQUAL, 3, 0.0))) > 0.2


def test_signs_cannot_decide_with_few_seeds():
    """The other reason for Student's t: the smallest p-value of a sign-flip test of n seeds is 2 · 2⁻ⁿ."""
    for n, smallest in ((3, 0.25), (5, 0.0625)):
        got = stats.permutation_test((np.full(n, 1.0) + 0.01 * np.arange(n),), np.mean, permutation_type="samples")
        assert got.pvalue == pytest.approx(smallest)


def test_corrected_is_holm_over_the_table():
    """0.001 · 4, 0.01 · 3, 0.04 · 2: the comparison that has too few seeds for a p-value was tried, too."""
    found = pd.DataFrame({"p": [0.001, 0.04, math.nan, 0.01]}, index=["a", "b", "c", "d"])
    got = corrected(found)
    assert got["p_holm"].tolist() == pytest.approx([0.004, 0.08, math.nan, 0.03], nan_ok=True)
    assert got["finding"].tolist() == [True, False, False, True]
    assert corrected(found, alpha=0.01)["finding"].tolist() == [True, False, False, False]
    assert corrected(found[:0]).empty


def test_corrected_within_families_is_that_of_each():
    """Two statements in one table, the second of three comparisons, one of them without runs; and no row at all."""
    p = [0.02, 0.03, 0.02, 0.04, math.nan]
    found = pd.DataFrame({"p": p, "of": ["a", "b", "b", "a", "b"], "by": [1, 1, 1, 1, 1]}, index=list("vwxyz"))
    got = corrected(found, within=("of", "by"))
    assert got["p_holm"].tolist() == pytest.approx([0.04, 0.06, 0.06, 0.04, math.nan], nan_ok=True)
    assert got["finding"].tolist() == [True, False, False, True, False]
    assert got.index.tolist() == list("vwxyz")
    for _, family in found.groupby("of"):
        np.testing.assert_array_equal(got.loc[family.index, "p_holm"], corrected(family)["p_holm"])
    assert corrected(found[:0], within=["of"]).empty
    with pytest.raises(KeyError, match="nowhere"):
        corrected(found, within=["nowhere"])


def test_nothing_else_corrects():
    """One function for ledger, pages and comparisons: nobody else adjusts p-values or levels."""
    sources = {path: path.read_text("utf8") for room in ("hetfl_core", "book") for path in (ROOT / room).rglob("*.py")}
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        cells = json.loads(path.read_text("utf8"))["cells"]
        sources[path] = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    by_hand = re.compile(r"\bholm\(|multipletests|false_discovery_control|[Bb]onferroni|sidak")
    found = {path.relative_to(ROOT).as_posix(): by_hand.findall(text) for path, text in sources.items()}
    assert {name: hits for name, hits in found.items() if hits} == {
        "hetfl_core/statistics/differences.py": ["holm(", "holm("],  # itself, and `corrected`
        "hetfl_core/reporting/judging.py": ["holm("] * 3,  # the same: of ways together, of ways alone, of ways at sites
        "book/hetfl_book/headtohead/across.py": ["holm("],  # the same: of methods over federations
    }
    users = {path.name for path, text in sources.items() if re.search(r"\bcorrected\(", text)}
    assert {
        "judging.py",
        "comparison.py",
        "comparing.py",
        "hetfl_site.py",
        "fedcr-results.ipynb",
        "fedcma-results.ipynb",
    } <= users


def test_holm_of_many_families_is_that_of_each():
    p = np.random.default_rng(0).uniform(size=(2, 5, 6)) ** 3
    p[0, 1, 2] = p[1, 4] = math.nan
    expected = [[holm(family) for family in some] for some in p]
    np.testing.assert_array_equal(holm(p), expected)
    assert np.isnan(holm(p)[1, 4]).all()
    assert holm(p)[0, 1, 0] == min(1.0, max(holm(p)[0, 1, 0], p[0, 1, 0]))


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_interval_is_scipys(level):
    x = [1.0, 2.5, 0.3, 4.0]
    expected = stats.ttest_1samp(x, 0).confidence_interval(level)
    assert interval(x, level) == pytest.approx((np.mean(x), expected.low, expected.high))


def test_interval_of_splits_of_the_same_rows_is_nadeau_and_bengios():
    """With x test rows for each training row the variance of the mean is (1/J + x) S²; with none it is as usual."""
    x, ratio = [1.0, 2.5, 0.3, 4.0], 0.5
    half = stats.t.ppf(0.975, 3) * math.sqrt((1 / 4 + ratio) * np.var(x, ddof=1))
    assert interval(x, ratio=ratio) == pytest.approx((np.mean(x), np.mean(x) - half, np.mean(x) + half))
    pair = Paired.of(dict(enumerate(x)), ratio=ratio)
    t = np.mean(x) / math.sqrt((1 / 4 + ratio) * np.var(x, ddof=1))
    assert (pair.low, pair.high, pair.p) == pytest.approx((np.mean(x) - half, np.mean(x) + half, 2 * stats.t.sf(t, 3)))
    assert Paired.of(dict(enumerate(x)), ratio=0).p == pytest.approx(stats.ttest_1samp(x, 0).pvalue)
    with pytest.raises(ValueError, match="ratio must not be negative, got -1"):
        interval(x, ratio=-1)


def test_interval_of_little():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert interval([2.0]) == (2.0, -math.inf, math.inf)
        assert np.isnan(interval([])).all()
        assert interval([0.5] * 4) == (0.5, 0.5, 0.5)


def test_a_difference_of_two_seeds_says_nothing():
    assert MIN_SEEDS == 3
    two, three = Paired.of({0: 1.0, 1: 1.01}), Paired.of({0: 1.0, 1: 1.01, 2: 0.99})
    assert (two.low, two.high, str(two)) == (-math.inf, math.inf, "+1.00 (2 seeds)")
    assert math.isnan(two.p)
    assert math.isnan(two.above(0))
    assert ledger.claim_verdict(two) == "open"
    assert three.p == pytest.approx(stats.ttest_1samp([1.0, 1.01, 0.99], 0).pvalue)
    assert (three.above(0.9), three.below(0.9)) == pytest.approx(
        [stats.ttest_1samp([1.0, 1.01, 0.99], 0.9, alternative=a).pvalue for a in ("greater", "less")]
    )
    assert str(three) == "+1.00 [+0.98, +1.02] (3 seeds)"
    assert str(Paired.of({4: 1.0})) == "+1.00 (1 seed)"
    with pytest.raises(ValueError, match="at least one seed"):
        Paired.of({})


def test_welch_is_scipys_of_the_summaries():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 3), rng.normal(1, 3, 5)
    test = stats.ttest_ind(a, b, equal_var=False)
    expected = (a.mean() - b.mean(), *test.confidence_interval(0.95), test.pvalue)
    assert welch((a.mean(), a.std(ddof=1), 3), (b.mean(), b.std(ddof=1), 5)) == pytest.approx(expected)


@pytest.mark.parametrize("side", [(70.0, math.nan, 3), (70.0, 0.5, math.nan), (70.0, 0.5, 2)])
def test_welch_says_nothing_without_spread_or_runs(side):
    for a, b in ((side, (71.0, 0.4, 3)), ((71.0, 0.4, 3), side)):
        difference, *rest = welch(a, b)
        assert difference == a[0] - b[0]
        assert np.isnan(rest).all()


# --- what is refused --------------------------------------------------------------------------------------------------

BCI = "flic/bci-common40"
SETTINGS = {"rounds": 10, "participation": 0.1, "dtype": "torch.float32"}


def made(method, accuracies, experiment=BCI, **settings):
    return [
        RunRecord(
            experiment, "paper", method, seed, SETTINGS | settings, {"fingerprint": f"draw {seed}", "info": {}},
            {"accuracy": accuracy}, created="2026-01-01T00:00:00Z",
        )
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [("rounds", 1), ("participation", 1.0), ("dtype", "torch.float64")])
def test_runs_that_were_not_made_alike_are_refused(name, value):
    """Ten rounds against one gave an interval."""
    mine, other = made("FLIC-HL", [0.7, 0.71, 0.72]), made("Local", [0.6, 0.61, 0.62], **{name: value})
    message = rf"{name} is {SETTINGS[name]!r} in .*FLIC-HL-seed0\.json.*, but {value!r} in .*Local-seed0\.json"
    for compare in (
        lambda: ledger.paired([*mine, *other], BCI, "FLIC-HL", "Local"),
        lambda: ledger.effects([*mine, *other], BCI, "Local"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            compare()
        assert not isinstance(error.value, NoPairsError)
    assert ledger.paired([*mine, *made("Local", [0.6, 0.61, 0.62])], BCI, "FLIC-HL", "Local").n == 3


def test_a_seed_that_was_run_otherwise_is_refused_too():
    mine = [*made("FLIC-HL", [0.7, 0.71]), made("FLIC-HL", [0, 0, 0.72], rounds=9)[-1]]
    with pytest.raises(ValueError, match=r"rounds is 10 in .*, but 9 in flic/bci-common40/paper/FLIC-HL-seed2\.json"):
        ledger.paired([*mine, *made("Local", [0.6] * 3)], BCI, "FLIC-HL", "Local")


def test_a_setting_that_one_side_does_not_have_is_no_difference():
    """A classifier that is trained alone has no rounds, or none at all."""
    for settings in ({}, {"rounds": 0, "participation": 1.0}):
        lda = [RunRecord(**{**vars(r), "settings": settings}) for r in made("LDA", [0.6, 0.61, 0.63])]
        assert ledger.paired([*made("FLIC-HL", [0.7, 0.71, 0.72]), *lda], BCI, "FLIC-HL", "LDA").n == 3


def test_experiments_may_differ_from_one_another():
    few = made("FLIC-Class", [0.7, 0.72, 0.71])
    every = made("FLIC-Class", [0.6, 0.61, 0.62], experiment="flic/all", participation=1.0)
    got = contrast([*few, *every], [(1, BCI, "FLIC-Class"), (-1, "flic/all", "FLIC-Class")])
    assert got.mean == pytest.approx(10)
    with pytest.raises(NoPairsError, match=r"flic/bci-common40 and flic/none .*'Local' has seeds \[\]"):
        contrast(few, [(1, BCI, "FLIC-Class"), (-1, "flic/none", "Local")])


def test_all_stored_comparisons_are_of_runs_made_alike():
    """Nothing that the book shows is refused."""
    stored = ledger.load(scale="paper")
    assert stored
    assert protocols_differ(stored) == {}


def test_holm_of_a_single_number_has_no_axis():
    with pytest.raises(ValueError, match="along one axis at least"):
        holm(np.array(0.5))


def test_welch_needs_a_spread_and_enough_seeds_on_either_side():
    assert all(map(math.isnan, welch((0.7, 0.02, 5), (0.6, 0.02, MIN_SEEDS - 1))[1:]))
    assert all(map(math.isnan, welch((0.7, math.nan, 5), (0.6, 0.02, 5))[1:]))
    assert all(map(math.isnan, welch((0.7, 0.0, 5), (0.6, 0.0, 5))[1:]))
    assert welch((0.7, 0.02, 5), (0.6, 0.02, 5))[3] < 0.01


def test_one_seed_has_no_spread_and_says_nothing_of_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(Paired.of({3: 1.0}).sd)


def test_what_has_too_few_seeds_counts_in_the_family_as_the_least_sure():
    found = corrected(pd.DataFrame({"p": [0.012, math.nan, 0.7, 0.024]}))
    assert found["p_holm"].tolist() == pytest.approx([0.048, math.nan, 1.0, 0.072], nan_ok=True)
