import numpy as np
import pytest
from small import ragged

from hetfl_book import ledger
from hetfl_core import compare, simulate
from hetfl_core.baselines import LDA
from hetfl_core.methods import HetFedRep, Local
from hetfl_core.networks import MLP, Model

SMALL = Model(MLP(hidden=(8,), out=6), alpha=5)
METHODS = {
    "shared": HetFedRep(SMALL, local_epochs=1),
    "more": Local(SMALL, local_epochs=3),
    "alone": Local(SMALL, local_epochs=1),
}
QUICK = {"rounds": 2, "device": "cpu", "progress": False}


def test_a_comparison_is_that_of_the_runs_seed_by_seed():
    """Against the same runs one by one, and scipy's paired t-test."""
    from scipy import stats

    fed = ragged()
    table = compare(fed, METHODS, seeds=4, **QUICK)
    assert list(table.index) == list(METHODS)
    single = {
        name: [100 * simulate(fed, m, seed=seed, **QUICK).final["accuracy"] for seed in range(4)]
        for name, m in METHODS.items()
    }
    for name, values in single.items():
        assert table.loc[name, "mean"] == pytest.approx(np.mean(values))
        assert table.loc[name, "sd"] == pytest.approx(np.std(values, ddof=1))
        assert table.loc[name, "seeds"] == 4
    for name in ("shared", "more"):
        gap = np.subtract(single[name], single["alone"])
        test = stats.ttest_1samp(gap, 0)
        row = table.loc[name]
        assert row["difference"] == pytest.approx(gap.mean())
        assert row["p"] == pytest.approx(test.pvalue)
        np.testing.assert_allclose(row[["low", "high"]].astype(float), test.confidence_interval(0.95))
    assert table.loc["alone", ["difference", "low", "high", "p", "p_holm"]].isna().all()
    np.testing.assert_allclose(table["p_holm"][:2], ledger.holm(table["p"][:2]))


def test_base_metric_data_by_seed_and_a_baseline():
    drawn = []

    def data(seed):
        drawn.append(seed)
        return ragged(seed=seed, widths=(4, 4), sizes=(30, 40))

    methods = {"alone": METHODS["alone"], "LDA": LDA()}
    table = compare(data, methods, seeds=(5, 6, 8), base="alone", metric="balanced_accuracy", **QUICK)
    assert drawn == [5, 6, 8]
    assert np.isnan(table.loc["alone", "difference"])
    assert table.loc["LDA", "low"] < table.loc["LDA", "difference"] < table.loc["LDA", "high"]


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ({"alone": Local()}, {}, "methods must map at least two names to methods"),
        (METHODS, {"seeds": 2}, "seeds must be at least three different ones, got 2"),
        (METHODS, {"seeds": (1, 1, 2)}, "seeds must be at least three different ones"),
        (METHODS, {"base": "Local"}, r"base must be one of the methods \[.*'alone'\], got 'Local'"),
        (METHODS, {"metric": "f1"}, r"metric must be one of \['accuracy', .* got 'f1'"),
    ],
)
def test_what_cannot_be_compared_is_refused(methods, options, message):
    with pytest.raises(ValueError, match=message):
        compare(ragged(), methods, **{**QUICK, "seeds": 3} | options)


def test_compare_stays_a_function_when_its_module_is_imported():
    import hetfl_core.comparing

    assert hetfl_core.compare is compare is hetfl_core.comparing.compare
    with pytest.raises(AttributeError, match="has no attribute 'compares'"):
        hetfl_core.compares  # noqa: B018
