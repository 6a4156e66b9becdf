import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from small import ragged

from hetfl_core import Federation, Preparation, baselines, compare, comparing, simulate
from hetfl_core.baselines import LDA, LR
from hetfl_core.datasets import heart, toy
from hetfl_core.engine.apart import simulate_apart
from hetfl_core.engine.run import figures
from hetfl_core.estimators import InOnePlace
from hetfl_core.federation import FederationWarning
from hetfl_core.frames import rows_digest
from hetfl_core.learners import as_learner
from hetfl_core.methods import FedAvg, HetFedRep, LateFusion, Local
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.statistics import holm

SMALL = Model(MLP(hidden=(8,), out=6), alpha=5)
METHODS = {
    "shared": HetFedRep(SMALL, local_epochs=1),
    "more": Local(SMALL, local_epochs=3),
    "alone": Local(SMALL, local_epochs=1),
}
QUICK = {"rounds": 2, "device": "cpu", "progress": False}


def test_a_comparison_is_that_of_the_runs_seed_by_seed():
    """Against the same runs one by one, and scipy's paired t-test."""
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
    np.testing.assert_allclose(table["p_holm"][:2], holm(table["p"][:2]))


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


def majority(n=100, zeros=90):
    """Two clients on which every run of a round or two names the majority: all accuracies tie."""
    x = np.random.default_rng(0).normal(size=(n, 4))
    y = (np.arange(n) >= zeros).astype(int)
    return Federation.from_arrays(dict.fromkeys("ab", (x, y)))


def test_seeds_whose_results_tie_are_runs_of_their_own():
    """Each had other weights; leaving out where methods agree would push their difference away from zero."""
    table = compare(majority(), {"a": FedAvg(local_epochs=1), "b": Local(local_epochs=1)}, seeds=3, **QUICK)
    assert table["seeds"].to_list() == [3, 3]
    assert table["mean"].to_list() == [90.0, 90.0]
    assert table.loc["a", ["difference", "low", "high"]].to_list() == [0, 0, 0]
    assert table.loc["a", "p"] == 1


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_difference_is_that_of_the_means_and_the_test_scipys_also_with_ties(rounds):
    fed = ragged(3, widths=(4, 4), sizes=(12, 20))
    few = Federation([replace(c, x_test=c.x_test[:2], y_test=c.y_test[:2]) for c in fed], 5, "few test samples")
    table = compare(few, METHODS, seeds=8, **{**QUICK, "rounds": rounds})
    values = {
        m: [100 * simulate(few, METHODS[m], seed=s, **{**QUICK, "rounds": rounds}).final["accuracy"] for s in range(8)]
        for m in METHODS
    }
    assert len({tuple(pair) for pair in zip(values["shared"], values["alone"], strict=True)}) < 8, "some tie"
    for name in ("shared", "more"):
        row = table.loc[name]
        assert row["seeds"] == 8
        assert row["difference"] == pytest.approx(table.loc[name, "mean"] - table.loc["alone", "mean"])
        if np.ptp(np.subtract(values[name], values["alone"])) > 1e-9:
            test = stats.ttest_rel(values[name], values["alone"])
            assert row["p"] == pytest.approx(test.pvalue)
            assert row[["low", "high"]].to_list() == pytest.approx(list(test.confidence_interval(0.95)))


def test_splits_of_the_same_rows_get_the_interval_that_allows_for_it():
    """Drawn anew from a table, splits overlap: the interval is Nadeau and Bengio's. Rows drawn anew have Student's."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "who": ["A", "B", "C"] * 30, "sex": ["m", "f"] * 45})
    frame["y"] = (frame["a"] + rng.normal(size=90) > 0).map({True: "ill", False: "well"})

    def split(seed, rows=frame):
        prepare = Preparation()
        return Federation.from_frame(rows, client="who", target="y", test_size=0.4, seed=seed, prepare=prepare)

    def other(seed):
        return split(seed, frame.assign(a=np.random.default_rng(seed).normal(size=90)))

    methods = {"LDA": LDA(), "LR": LR()}
    for data, ratio in ((split, 0.4 / 0.6), (other, 0.0), (split(0), 0.0)):
        table = compare(data, methods, seeds=4, n_jobs=1, **QUICK)
        assert table.attrs["ratio"] == pytest.approx(ratio)
        if callable(data):
            runs = [simulate(data(seed), one, seed=seed) for one in methods.values() for seed in range(4)]
            gaps = 100 * np.diff(np.reshape([run.final["accuracy"] for run in runs], (2, 4)), axis=0)[0]
            half = stats.t.ppf(0.975, 3) * np.sqrt((1 / 4 + ratio) * gaps.var(ddof=1))
            mean, low, high = table.loc["LDA", ["difference", "low", "high"]]
            assert (mean, low, high) == pytest.approx((-gaps.mean(), -gaps.mean() - half, -gaps.mean() + half))
    few = compare(lambda s: heart.hospitals(size="tenth", seed=s, made=True), methods, seeds=3, n_jobs=1, **QUICK)
    assert few.attrs["ratio"] == 0, "made patients are drawn by the seed"


def test_the_digest_of_rows_is_that_of_their_values():
    """Blocks of memory, kinds of arrays and the split do not matter; one other value, label or owner does."""
    x, y = np.arange(12.0).reshape(6, 2), np.array(["u", "v"] * 3)
    same = [(x, y), (np.asfortranarray(x), y.astype(object)), (torch.from_numpy(x), y)]
    assert len({rows_digest({"A": pair}) for pair in same}) == 1
    other = [{"A": (x + np.eye(6, 2), y)}, {"A": (x, y[::-1])}, {"B": (x, y)}]
    assert len({rows_digest(each) for each in [{"A": (x, y)}, *other]}) == 4
    table = pd.DataFrame({"a": ["p", None] * 3, "b": range(6)})
    assert rows_digest({"A": (table, y)}) == rows_digest({"A": (table.copy(), y)})
    assert rows_digest({"A": (table, y)}) != rows_digest({"A": (table.fillna("p"), y)})


def test_what_is_said_of_the_data_of_several_seeds_is_said_once():
    def data(seed):
        warnings.warn("all seeds alike", FederationWarning, stacklevel=1)
        warnings.warn(f"seed {seed}", FederationWarning, stacklevel=1)
        return ragged(seed=seed, widths=(4, 4), sizes=(30, 40))

    with pytest.warns(FederationWarning) as told:
        compare(data, {"LDA": LDA(), "LR": LR()}, seeds=3, n_jobs=1, **QUICK)
    texts = [str(each.message) for each in told]
    assert sorted(text for text in texts if "seed" in text) == ["all seeds alike", "seed 0", "seed 1", "seed 2"]


def test_what_draws_no_random_number_counts_once_for_the_same_data():
    data = ragged(widths=(4, 4), sizes=(30, 40))
    table = compare(data, {"LDA": LDA(), "LR": LR(), "alone": METHODS["alone"]}, seeds=3, base="LR", **QUICK)
    assert table["seeds"].to_dict() == {"LDA": 1, "LR": 1, "alone": 3}
    assert table.loc["LDA", ["low", "high"]].to_list() == [-np.inf, np.inf]
    assert np.isnan(table.loc["LDA", "p"])
    drawn = compare(
        lambda s: ragged(seed=s, widths=(4, 4), sizes=(30, 40)), {"LDA": LDA(), "LR": LR()}, seeds=3, **QUICK
    )
    assert drawn["seeds"].to_list() == [3, 3]


def test_runs_that_are_stopped_early_are_compared():
    def patient(row):
        return row["accuracy"] > 0.2

    methods = {"a, λ=1": METHODS["shared"], "b/c": METHODS["alone"]}
    table = compare(ragged(), methods, seeds=3, on_round=patient, **{**QUICK, "rounds": 9})
    assert table["seeds"].to_list() == [3, 3], "names are the user's"


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("recall", r"metric must be one of 'accuracy', .*'server_accuracy', .* got 'recall'"),
        ("mse", "metric must be one of .* got 'mse'"),
        ("auroc", r"metric must be one of .* got 'auroc' \(did you mean 'auc'\?\)"),
    ],
)
def test_a_metric_that_no_run_has_is_refused_before_the_first_run(metric, message, monkeypatch):
    monkeypatch.setattr("hetfl_core.comparing.runs_of", lambda *a, **k: pytest.fail("it was run"))
    with pytest.raises(ValueError, match=message):
        compare(ragged(), METHODS, seeds=3, metric=metric, **QUICK)


def test_what_one_method_cannot_run_on_is_refused_before_another_is_run(monkeypatch):
    monkeypatch.setattr("hetfl_core.comparing.runs_of", lambda *a, **k: pytest.fail("it was run"))
    with pytest.raises(ValueError, match=r"FedAvg averages 'phi\.0\.weight', which must have the same shape"):
        compare(ragged(), {"first": Local(), "second": FedAvg()}, seeds=3, **QUICK)
    with pytest.raises(TypeError, match=r"'second'\] must be an object, such as FedAvg\(\), got the class"):
        compare(majority(), {"first": Local(), "second": FedAvg}, seeds=3, **QUICK)
    untested = Federation([replace(c, x_test=c.x_test[:0], y_test=c.y_test[:0]) for c in majority()], 2)
    with pytest.raises(ValueError, match="has no test samples, so that there is nothing to compare by"):
        compare(untested, METHODS, seeds=3, **QUICK)


def test_a_metric_that_a_method_lacks_names_the_method():
    with pytest.raises(ValueError, match=r"metric must be one that 'alone' has, of .* got 'server_accuracy'"):
        compare(majority(), {"a": FedAvg(local_epochs=1), "alone": Local()}, seeds=3, metric="server_accuracy", **QUICK)


def test_all_that_runs_measure_can_be_compared():
    for fed in (majority(), toy.linear_regression(3)):
        final = simulate(fed, HetFedRep(local_epochs=1), validation=fed, **QUICK).final
        assert set(final) <= set(figures(fed.task))


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ({"alone": Local()}, {}, "methods must map at least two names to methods"),
        (METHODS, {"seeds": 2}, "seeds must be a whole number of at least 3, got 2"),
        (METHODS, {"seeds": (1, 1, 2, 3)}, r"seeds must be at least 3, each another one, got \(1, 1, 2, 3\)"),
        (METHODS, {"seeds": [1, 2]}, "seeds must be at least 3, each another one"),
        (METHODS, {"seeds": True}, "seeds must be a whole number of at least 3, got True"),
        (METHODS, {"seeds": [True, 2, 3]}, "seeds must be a whole number of at least 0, got True"),
        ({"a": (Local(), "zeros", "own"), "b": LDA()}, {}, r"methods\['a'\] must be .* a pair .* last_step='own'"),
        (METHODS, {"metric": 3}, "metric must be a text that is not empty, got 3"),
        (METHODS, {"base": ["alone"]}, r"base must be one of .* got \['alone'\]"),
        (METHODS, {"base": "Local"}, r"base must be one of .*'alone', got 'Local'"),
        (METHODS, {"metric": "recall"}, r"metric must be one of 'accuracy', .* got 'recall'"),
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


def test_with_a_checkpoint_each_run_has_a_folder_of_its_own(tmp_path):
    methods = {"a/b": METHODS["alone"], "shared": METHODS["shared"]}
    options = {"seeds": 3, "checkpoint": tmp_path, **QUICK}
    first = compare(ragged(), methods, **options)
    folders = [f"{name}-seed{seed}" for name in ("a%2Fb", "shared") for seed in range(3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == folders
    assert compare(ragged(), methods, **options).equals(first)


# --- views ----------------------------------------------------------------------------------------------------------


@cache
def hospitals(seed=0):
    """Three sites of which one lacks a column and another has one of its own."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(90, 4)), columns=list("pqrs")).assign(site=np.repeat([*"ABC"], 30))
    frame["y"] = (frame["p"] + frame["q"] > 0).astype(int)
    frame.loc[frame["site"] != "A", "s"] = np.nan
    frame.loc[frame["site"] == "C", "r"] = np.nan
    return Federation.from_frame(frame, client="site", target="y", test_size=0.4, seed=seed, prepare=Preparation())


NET = Model(MLP((4,), 3))
IN_BLOCKS = Model(Blocks.alike(["common", "r", "s"], MLP((4,), 3), 4))


def test_each_method_has_the_view_that_it_needs_of_the_same_rows():
    """The differences are those of runs by hand on these views, seed by seed."""
    methods = {
        "common": (FedAvg(NET, local_epochs=1), "common"),
        "zeros": (FedAvg(NET, local_epochs=1), "zeros"),
        "blocks": (LateFusion(IN_BLOCKS, local_epochs=1), "blocks"),
        "alone": Local(NET, local_epochs=1),
    }
    views = {
        "common": Federation.of_common_columns,
        "zeros": Federation.filled,
        "blocks": Federation.in_blocks,
        "alone": lambda fed: fed,
    }
    table = compare(hospitals, methods, seeds=3, **QUICK)
    for name, view in views.items():
        method = methods[name] if name == "alone" else methods[name][0]
        runs = [simulate(view(hospitals(s)), method, seed=s, **QUICK) for s in range(3)]
        assert table.loc[name, "mean"] == pytest.approx(100 * np.mean([run.final["accuracy"] for run in runs]))
    seen = comparing._seen(hospitals(), {"a": "own", "b": "common", "c": "common", "d": {"one": ["r"]}})
    assert seen["b"] is seen["c"]
    assert seen["d"]["C"].shapes == {"common": (2,), "one": (0,), "s": (0,)}
    for fed in seen.values():
        assert all(torch.equal(fed[c.name].y_test, c.y_test) for c in hospitals())


def test_a_view_on_which_a_method_cannot_work_is_refused_with_those_on_which_it_can():
    alone = Local(NET)
    with pytest.raises(ValueError, match=r"FedAvg averages .* It can work on the view 'common' or 'zeros'\."):
        compare(hospitals, {"all": FedAvg(NET), "alone": alone}, seeds=3, **QUICK)
    with pytest.raises(ValueError, match=r"It can work on the view 'blocks'\."):
        compare(hospitals, {"late": (LateFusion(IN_BLOCKS), "common"), "alone": alone}, seeds=3, **QUICK)
    with pytest.raises(ValueError, match="view must be one of 'own', 'common', 'zeros', 'blocks', got 'zeroes'"):
        compare(hospitals, {"all": (FedAvg(NET), "zeroes"), "alone": alone}, seeds=3, **QUICK)
    with pytest.raises(TypeError, match="view: what it returns must be a Federation, got 3"):
        compare(hospitals, {"all": (FedAvg(NET), lambda fed: 3), "alone": alone}, seeds=3, **QUICK)


def test_runs_apart_have_the_view_that_they_are_given():
    """What is common to all is found before clients are taken apart."""
    runs = simulate_apart(hospitals, (FedAvg(NET, local_epochs=1), "common"), seeds=[0], **QUICK)[0]
    own = simulate(hospitals(0).of_common_columns().subset(["A"]), FedAvg(NET, local_epochs=1), seed=0, **QUICK)
    assert runs["A"].final["accuracy"] == own.final["accuracy"]
    with pytest.raises(ValueError, match="method must be a method or a pair"):
        simulate_apart(hospitals, (FedAvg(NET), "common", "own"), seeds=[0])


def crossed(seed: int, n: int = 120) -> Federation:
    """Two clients whose class is the sign of a product, which a tree finds and a line does not."""
    rng = np.random.default_rng([7, seed])
    sites = {}
    for name in "ab":
        x = rng.normal(size=(n, 3))
        sites[name] = (x, (x[:, 0] * x[:, 1] > 0).astype(int))
    return Federation.from_arrays(sites, seed=seed)


def test_learning_together_is_compared_with_the_best_way_to_stay_alone():
    """By hand: each way on rows cut from the training rows, the best one taken, and its figure on the test rows."""
    methods = {
        "regression": LogisticRegression(),
        "trees": GradientBoostingClassifier(n_estimators=20),
        "one lr": FedAvg(Model(MLP((4,), 4)), local_epochs=1),
        "another": FedAvg(Model(MLP((4,), 4)), local_epochs=1, lr=0.05),
        "pooled": InOnePlace(LogisticRegression()),
    }
    table = compare(crossed, methods, seeds=3, base="best alone", **QUICK)
    assert [*table.index] == [*methods, "best alone", "best together"]
    gaps = []
    chosen = table.attrs["chosen"]
    for seed in range(3):
        fed, cut = crossed(seed), comparing.held_out(crossed(seed), comparing.CUT, seed)
        figure, before = {}, {}
        for name, method in methods.items():
            if isinstance(method, FedAvg):
                some = [simulate(one, method, seed=seed, **QUICK).final["accuracy"] for one in (fed, cut)]
            else:
                some = [simulate(one, method, seed=seed).final["accuracy"] for one in (fed, cut)]
            figure[name], before[name] = some
        assert chosen["best alone"][seed] == max(["regression", "trees"], key=before.__getitem__)
        assert chosen["best together"][seed] == max(["one lr", "another"], key=before.__getitem__)
        gaps.append(100 * (figure[chosen["best together"][seed]] - figure[chosen["best alone"][seed]]))
    assert set(chosen["best alone"].values()) == {"trees"}
    assert table.loc["best together", "difference"] == pytest.approx(np.mean(gaps))
    assert table.loc["best together", "p_holm"] == table.loc["best together", "p"]
    assert table.loc["trees", "difference"] == 0
    assert table.loc["best alone", ["difference", "p"]].isna().all()
    assert table.loc["regression", "difference"] < -20


def test_the_best_way_is_chosen_by_the_metric_and_its_direction():
    """By log loss and by accuracy at once; what takes the base's name, or has no direction, is refused."""
    methods = {"mild": LogisticRegression(), "wild": LogisticRegression(C=1e6), "shared": FedAvg(SMALL)}
    metrics = ["log_loss", "accuracy"]
    table = compare(crossed, methods, seeds=3, base="best alone", metric=metrics, **QUICK)
    assert {*table.attrs["chosen"]} == {*metrics}
    for metric, sign in (("log_loss", -1), ("accuracy", 1)):
        for seed, name in table.attrs["chosen"][metric]["best alone"].items():
            cut = comparing.held_out(crossed(seed), comparing.CUT, seed)
            figures = {
                one: sign * simulate(cut, methods[one], metric=["log_loss"]).final[metric] for one in ("mild", "wild")
            }
            assert name == max(figures, key=figures.__getitem__)
    assert [*table.attrs["chosen"]["accuracy"]["best together"].values()] == ["shared"] * 3, "there is no other"
    with pytest.raises(ValueError, match="takes at least one method in which nothing leaves a client"):
        compare(crossed, {"a": FedAvg(), "b": HetFedRep()}, base="best alone", **QUICK)
    with pytest.raises(ValueError, match="metric: with base='best alone' it must be one to choose by"):
        compare(crossed, methods, base="best alone", metric="bytes_up", **QUICK)
    with pytest.raises(ValueError, match="a row 'best together' is made"):
        compare(crossed, {"a": Local(), "best together": FedAvg()}, base="best alone", **QUICK)
    named = compare(crossed, {"best alone": Local(SMALL), "b": FedAvg(SMALL)}, seeds=3, base="best alone", **QUICK)
    assert [*named.index] == ["best alone", "b"], "a method may have the name"


def test_what_stays_alone():
    alone = (Local(), LogisticRegression(), LDA(), LR())
    assert all(as_learner(one).way == "alone" for one in alone)
    for other in (FedAvg(), HetFedRep(), baselines.Pooled(), InOnePlace(LogisticRegression())):
        assert as_learner(other).way != "alone"
