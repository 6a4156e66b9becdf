import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from sklearn import metrics
from sklearn.calibration import _sigmoid_calibration, calibration_curve
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from small import equal_histories, ragged

from hetfl_book import calibration
from hetfl_core import Federation, adapt, compare, records, scorer, simulate, tune
from hetfl_core.baselines import LDA, LR, SVM, Pooled
from hetfl_core.deployment import RunSettings
from hetfl_core.engine import measures
from hetfl_core.engine.last_step import FLATTEST, after, fit
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import FedAvg, HetFedRep, Local
from hetfl_core.networks import MLP, Model

RNG = np.random.default_rng(3)
NAMED = [*measures.MEASURES["classification"]]
SMALL = Model(MLP(hidden=(6,), out=4))
QUICK = {"rounds": 2, "device": "cpu", "progress": False}
METHOD = FedAvg(SMALL, local_epochs=2, lr=0.05)


def drawn(n, classes, sure=1.0):
    """Labels and probabilities that have to do with them."""
    y = RNG.integers(0, classes, n)
    logits = torch.from_numpy(RNG.normal(size=(n, classes)) + sure * np.eye(classes)[y])
    return y, logits.softmax(1).numpy()


def hospitals(shares=(0.5, 0.9, 0.15), n=60, seed=0, task="classification"):
    """Clients of which as many samples are of class 1 as `shares` says."""
    rng, arrays = np.random.default_rng(seed), {}
    for i, share in enumerate(shares):
        y = (np.arange(n) < share * n).astype(int)
        x = rng.normal(size=(n, 4)) + 0.7 * y[:, None]
        arrays[f"hospital {i}"] = (x, y if task == "classification" else y + rng.normal(size=n))
    return Federation.from_arrays(arrays, test_size=0.5, seed=seed, task=task)


def weighed_loss(y, p):
    """Five for somebody ill who is sent home."""
    return np.mean(np.where(y == 1, 5 * (1 - p[:, 1]), p[:, 1]))


WEIGHED = scorer(weighed_loss, greater_is_better=False)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_values_are_scikit_learns(classes):
    y, p = drawn(80, classes)
    said, one = p.argmax(1), {"labels": range(classes)}
    found = {name: score.function(y, p) for name, score in measures.MEASURES["classification"].items()}
    area = metrics.roc_auc_score(y, p[:, 1] if classes == 2 else p, multi_class="ovr", **one)
    assert found == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(y, said),
            "balanced_accuracy": metrics.balanced_accuracy_score(y, said),
            "auc": area,
            "f1": metrics.f1_score(y, said, average="macro"),
            "log_loss": metrics.log_loss(y, p, **one),
            "brier": sum(metrics.brier_score_loss(y == c, p[:, c]) for c in range(classes)) / (1 + (classes == 2)),
            "calibration_error": calibration.expected_calibration_error(p, y),
        }
    )


def test_the_calibration_error_is_the_gap_of_scikit_learns_curve():
    y, p = drawn(500, 4)
    right, sure = p.argmax(1) == y, p.max(1)
    share, mean = calibration_curve(right, sure, n_bins=15)
    sizes = np.bincount(np.minimum((sure * 15).astype(int), 14))
    assert measures.calibration_error(y, p) == pytest.approx(np.average(abs(share - mean), weights=sizes[sizes > 0]))


def test_measures_of_numbers_are_scikit_learns():
    y = RNG.normal(size=40)
    p = y + RNG.normal(size=40)
    found = {name: score.function(y, p) for name, score in measures.MEASURES["regression"].items()}
    mse = metrics.mean_squared_error(y, p)
    assert found == pytest.approx(
        {"mse": mse, "rmse": math.sqrt(mse), "mae": metrics.mean_absolute_error(y, p), "r2": metrics.r2_score(y, p)}
    )


def test_of_classes_that_samples_lack_no_area_and_no_f1_is_formed():
    """One class against the rest, over those that are there: the mean of the two-class areas, by hand."""
    y, p = drawn(60, 4)
    some = y != 3
    y, p = y[some], p[some]
    assert measures.auc(y, p) == pytest.approx(np.mean([metrics.roc_auc_score(y == c, p[:, c]) for c in range(3)]))
    recall = [np.mean(p.argmax(1)[y == c] == c) for c in range(3)]
    precision = [np.mean(y[p.argmax(1) == c] == c) for c in range(3)]
    by_hand = np.mean([2 * r * q / (r + q) for r, q in zip(recall, precision, strict=True)])
    assert measures.f1(y, p) == pytest.approx(by_hand)
    assert math.isnan(measures.auc(np.zeros(5, int), p[:5]))
    assert measures.log_loss(np.zeros(5, int), p[:5]) == pytest.approx(-np.log(p[:5, 0]).mean())


def test_the_worst_is_at_the_right_end():
    """Of the named measures: a perfect model's figure is no worse than any other's."""
    for task, given in measures.MEASURES.items():
        y, p = drawn(50, 2)
        perfect = np.eye(2)[y] if task == "classification" else y.astype(float)
        other = p if task == "classification" else y + RNG.normal(size=50)
        for name, score in given.items():
            gap = score.function(y, perfect) - score.function(y, other)
            assert gap > 0 if score.greater_is_better else gap < 0, name


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_that_is_asked_is_the_same_run_with_more_figures():
    """And what it measures is what can be formed of the probabilities that it tells."""
    fed = hospitals()
    plain, run = simulate(fed, METHOD, **QUICK), simulate(fed, METHOD, metric=[*NAMED, WEIGHED], **QUICK)
    assert equal_histories(plain.history, run.history[plain.history.columns])
    mine = {name: value for name, value in run.final.items() if name in plain.final}
    assert {**mine, "seconds": 0} == {**plain.final, "seconds": 0}
    assert run.per_client[plain.per_client.columns].equals(plain.per_client)
    assert "measure" not in plain.settings
    assert run.settings["measure"] == sorted([*NAMED, "weighed_loss"])
    told, labels = run.probabilities(), run.labels()
    for name, worst in {"auc": min, "log_loss": max, "weighed_loss": max, "f1": min, "brier": max}.items():
        function = getattr(measures, name, weighed_loss)
        each = [function(labels[c.name], told[c.name]) for c in fed]
        assert run.per_client[name].to_list() == pytest.approx(each)
        assert run.final[name] == pytest.approx(np.mean(each))
        assert run.final[f"{name}_sd"] == pytest.approx(np.std(each, ddof=1))
        assert run.final[f"{name}_worst"] == pytest.approx(worst(each))
    assert run.final["accuracy_sd"] == pytest.approx(run.per_client["accuracy"].std())
    assert run.final["balanced_accuracy_worst"] == run.per_client["balanced_accuracy"].min()
    pd.testing.assert_frame_equal(
        run.scores(*NAMED, WEIGHED)[NAMED], run.per_client[NAMED], check_exact=False, rtol=1e-6
    )
    assert run.scores("auc", split="train")["n"].to_list() == [c.n_train for c in fed]


def test_a_run_that_is_not_asked_forms_no_probabilities(monkeypatch):
    monkeypatch.setattr("hetfl_core.engine.measures.told", lambda *a, **k: pytest.fail("it was formed"))
    simulate(hospitals(), METHOD, metric=("own", "server", "held"), **QUICK)


def test_the_history_has_a_measure_where_it_is_due_and_of_validation_samples():
    fed = hospitals()
    run = simulate(fed, METHOD, metric=("auc", "own", weighed_loss), validation=fed, evaluate_every=2, **QUICK)
    assert run.history["auc"].isna().to_list() == [False, True, False]
    assert run.history["validation_auc"].equals(run.history["auc"])
    assert run.history["weighed_loss"].equals(run.history["validation_weighed_loss"])
    assert run.final["validation_auc"] == run.final["auc"]
    whole = simulate(fed, replace(METHOD), metric=("auc", "own", weighed_loss), **QUICK)
    assert whole.history["auc"].iloc[-1] == run.history["auc"].iloc[-1]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_both_engines_and_a_run_that_goes_on_measure_the_same(engine, tmp_path):
    fed = ragged()
    options = {"metric": ("auc", "log_loss"), "dtype": torch.float64, "last_step": "own", "progress": False}
    method = HetFedRep(Model(MLP(hidden=(6,), out=4), alpha=3), local_epochs=1)
    whole = simulate(fed, method, rounds=2, engine="loop", device="cpu", **options)
    for rounds in (1, 2):
        run = simulate(fed, method, rounds=rounds, engine=engine, device="cpu", checkpoint=tmp_path, **options)
    for name in ("auc", "log_loss"):
        np.testing.assert_allclose(run.history[name], whole.history[name], rtol=1e-8)
        assert run.final[name] == pytest.approx(whole.final[name], rel=1e-6)


def test_a_client_without_a_figure_is_named_and_left_out():
    fed = hospitals(shares=(0.5, 1.0, 0.2))
    with pytest.warns(
        FederationWarning, match=r"auc is not defined on client 'hospital 1' \(.* one class\): NaN"
    ) as said:
        run = simulate(fed, METHOD, metric=("auc", "log_loss"), **QUICK)
    assert said[0].filename == __file__
    assert run.per_client["auc"].isna().to_list() == [False, True, False]
    assert run.per_client["log_loss"].notna().all()
    assert run.final["auc"] == pytest.approx(run.per_client["auc"].mean())
    record = records.RunRecord.of(run, "run/x", "own")
    assert record.per_client["auc"][1] is None
    assert record.metrics["auc_worst"] == run.final["auc_worst"]


def test_nobody_has_a_figure():
    with pytest.warns(FederationWarning, match="auc is not defined on clients"):
        run = simulate(hospitals(shares=(1.0, 0.0)), METHOD, metric=("auc",), **QUICK)
    assert all(math.isnan(run.final[name]) for name in ("auc", "auc_sd", "auc_worst"))
    assert run.history["auc"].isna().all()


def test_of_a_run_that_diverged_there_is_no_figure():
    with pytest.warns(RuntimeWarning, match="diverged"):
        run = simulate(
            hospitals(), replace(METHOD, lr=1e30, optimizer="sgd"), metric=("auc",), last_step="own", **QUICK
        )
    assert math.isnan(run.final["auc"])
    assert math.isnan(run.final["auc_worst"])


def bare(y, p):
    return "good"


def auc(y, p):
    return 1.0


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (["best"], ValueError, "metric must be one of 'own', .*'auc', .* got 'best'"),
        (["rmse"], ValueError, "metric must be one of .* got 'rmse'"),
        (["neg_log_loss"], ValueError, r"metric must be one of .* got 'neg_log_loss' \(did you mean 'log_loss'\?\)"),
        ([metrics.log_loss], ValueError, "must not be called 'log_loss', which a run has already: take 'log_loss', by"),
        ("auc", TypeError, "metric must be a sequence, got 'auc'"),
        ([lambda y, p: 1.0], ValueError, "metric: a function of your own needs a name, by def"),
        ([partial(weighed_loss)], ValueError, "needs a name"),
        ([auc], ValueError, "must not be called 'auc'"),
        ([bare], TypeError, "metric 'bare' must give a number, got 'good'"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked, error, message):
    with pytest.raises(error, match=message):
        simulate(hospitals(), METHOD, metric=asked, **QUICK)


# --- a measure of one's own ------------------------------------------------------------------------------------------


def far(y, p):
    """A mean squared distance, of which nobody who reads its name knows that less is better."""
    return np.square(p[:, 1] - y).mean()


def near_loss(y, p):
    """More of it is better, whatever its name ends in."""
    return -far(y, p)


def test_a_measure_of_ones_own_says_its_direction_and_its_name_does_not():
    fed, grid = hospitals(), {"C": [1e-4, 1.0]}
    best = tune(fed, LogisticRegression(), grid, metric="brier", progress=False).setting
    assert best == {"C": 1.0}
    for function, greater in ((far, False), (near_loss, True)):
        told = scorer(function, greater_is_better=greater)
        assert tune(fed, LogisticRegression(), grid, metric=told, progress=False).setting == best
        wrong = scorer(function, greater_is_better=not greater)
        assert tune(fed, LogisticRegression(), grid, metric=wrong, progress=False).setting != best
        run = simulate(fed, METHOD, metric=[told], **QUICK)
        each = run.per_client[function.__name__]
        assert run.final[f"{function.__name__}_worst"] == (each.min() if greater else each.max())


def test_a_bare_function_is_refused_where_something_is_chosen_by_it_alone():
    fed = hospitals()
    for function in (far, near_loss):
        with pytest.raises(ValueError, match=rf"{function.__name__} does not say whether more .*scorer\(.*=False\)"):
            tune(fed, LogisticRegression(), {"C": [0.1, 1.0]}, metric=function, progress=False)
    run = simulate(fed, METHOD, metric=[far], **QUICK)
    assert "far" in run.final
    assert "far_sd" in run.final
    assert "far_worst" not in run.final
    pair = {"a": LR(), "b": LDA()}
    bare, told = (
        compare(fed, pair, seeds=3, metric=f, progress=False) for f in (far, scorer(far, greater_is_better=True))
    )
    pd.testing.assert_frame_equal(bare, told)
    with pytest.raises(ValueError, match="metric: far does not say whether more of it is better"):
        compare(fed, pair, seeds=3, metric=[far, "far_worst"], progress=False)
    both = compare(fed, pair, seeds=3, metric=[scorer(far, greater_is_better=False), "far_worst"], progress=False)
    assert (both.loc["far_worst", "mean"] >= both.loc["far", "mean"]).all()


def test_scikit_learns_own_functions_are_told_by_their_names_what_is_better():
    fed = hospitals(task="regression")
    functions = [metrics.median_absolute_error, metrics.explained_variance_score]
    run = simulate(fed, Local(SMALL, local_epochs=1), metric=functions, **QUICK)
    for function, worst in zip(functions, (np.max, np.min), strict=True):
        name = function.__name__
        assert run.final[f"{name}_worst"] == worst(run.per_client[name])
    tune(fed, Ridge(), {"alpha": [0.1, 1.0]}, metric=functions[0], progress=False)


def broken(y, p):
    return y[len(y)]


@pytest.mark.parametrize("call", ["simulate", "compare", "tune", "scores", "baselines"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (metrics.roc_auc_score, r"roc_auc_score\(y, p\) was given labels y, .*y should be a 1d.*: take 'auc', by its"),
        (broken, r"broken\(y, p\) was given labels y, shape \(\d+,\), and class .* p, shape \(\d+, 2\).* IndexError"),
    ],
)
def test_a_function_that_raises_is_named_with_the_client_and_what_it_was_given(call, function, message):
    fed, told = hospitals(), scorer(function, greater_is_better=True)
    calls = {
        "simulate": lambda: simulate(fed, METHOD, metric=[function], **QUICK),
        "compare": lambda: compare(fed, {"a": LR(), "b": LDA()}, seeds=3, metric=function, progress=False),
        "tune": lambda: tune(fed, LogisticRegression(), {"C": [1.0]}, metric=told, progress=False),
        "scores": lambda: simulate(fed, METHOD, **QUICK).scores(function),
        "baselines": lambda: simulate(fed, LR(), metric=[function]),
    }
    with pytest.raises(ValueError, match=rf"client 'hospital 0': {message}"):
        calls[call]()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (metrics.make_scorer(metrics.roc_auc_score), "scores an estimator on its inputs.* hand over 'auc', which is"),
        (metrics.get_scorer("neg_log_loss"), "scores an estimator .* hand over 'log_loss', which is that measure"),
        (metrics.make_scorer(far, greater_is_better=False), r"hand over a function f\(y, p\) in hetfl_core.scorer"),
    ],
)
def test_scorers_of_scikit_learn_are_told_from_measures(made, message):
    fed = hospitals()
    for call in (
        lambda: compare(fed, {"a": LR(), "b": LDA()}, seeds=3, metric=made, progress=False),
        lambda: tune(fed, LogisticRegression(), {"C": [1.0]}, metric=made, progress=False),
        lambda: simulate(fed, METHOD, metric=[made], **QUICK),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("function", "greater", "error", "message"),
    [
        ("auc", True, TypeError, "function must be a function"),
        (lambda y, p: 1.0, True, ValueError, "function: a function of your own needs a name"),
        (far, None, ValueError, "greater_is_better must be True or False, got None"),
        (far, "False", ValueError, "greater_is_better must be True or False, got 'False'"),
    ],
)
def test_a_scorer_that_says_nothing_is_refused(function, greater, error, message):
    with pytest.raises(error, match=message):
        scorer(function, greater_is_better=greater)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("roc_auc_score", "auc"),
        ("neg_log_loss", "log_loss"),
        ("balanced_accuracy_score", "balanced_accuracy"),
        ("f1_score", "f1"),
        ("brier_score_loss", "brier"),
        ("ece", "calibration_error"),
        ("auroc", "auc"),
    ],
)
def test_a_measure_by_the_name_that_it_has_elsewhere_is_hinted_at(theirs, ours):
    fed, hint = hospitals(), rf"\(did you mean '{ours}'\?\)"
    with pytest.raises(ValueError, match=rf"metric must be one of .* got '{theirs}' {hint}"):
        compare(fed, {"a": LR(), "b": LDA()}, seeds=3, metric=theirs, progress=False)
    with pytest.raises(ValueError, match=hint):
        simulate(fed, METHOD, metric=[theirs], **QUICK)
    with pytest.raises(ValueError, match=hint):
        tune(fed, LogisticRegression(), {"C": [1.0]}, metric=theirs, progress=False)
    with pytest.raises(ValueError, match=hint):
        RunSettings(2, metric=(theirs,))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("roc_auc", "auc"), ("roc_auc_ovr", "auc"), ("AUC", "auc"), ("f1_macro", "f1"), ("log loss", "log_loss")],
)
def test_names_of_scikit_learns_scorers_are_understood_at_every_door(theirs, ours):
    fed = hospitals()
    assert ours in simulate(fed, METHOD, metric=[theirs], **QUICK).final
    methods, grid = {"a": LR(), "b": LDA()}, {"C": [1.0, 0.1]}
    tables = [compare(fed, methods, seeds=3, metric=name, progress=False) for name in (theirs, ours)]
    pd.testing.assert_frame_equal(*tables)
    chosen = [tune(fed, LogisticRegression(), grid, metric=name, progress=False).table for name in (theirs, ours)]
    pd.testing.assert_frame_equal(*chosen)
    assert RunSettings(2, metric=(theirs,)).metric == (ours,)


def test_a_loss_term_must_not_be_called_as_what_is_asked_for():
    def ce(y, p):
        return 0.0

    with pytest.raises(ValueError, match="a loss term is called 'ce'"):
        simulate(hospitals(), METHOD, metric=[ce], **QUICK)


def test_scores_are_those_of_a_model():
    run = simulate(hospitals(), METHOD, **QUICK)
    with pytest.raises(ValueError, match=r"metric must be one that a model has, of .*, got 'own'"):
        run.scores("own")
    numbers = simulate(hospitals(task="regression"), Local(SMALL, local_epochs=1), metric=("rmse", "mae"), **QUICK)
    assert numbers.final["rmse"] == pytest.approx(np.sqrt(numbers.per_client["mse"]).mean())
    assert numbers.final["rmse_worst"] == pytest.approx(np.sqrt(numbers.per_client["mse"]).max())
    assert numbers.scores("mae")["mae"].to_list() == pytest.approx(numbers.per_client["mae"].to_list())


# --- baselines and comparisons ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [LR(), LDA()])
def test_of_a_baseline_measures_are_formed_of_its_probabilities(baseline):
    fed = hospitals()
    plain, run = simulate(fed, baseline), simulate(fed, baseline, metric=("auc", "log_loss"))
    assert {name: run.final[name] for name in plain.final if name != "seconds"} == {
        name: value for name, value in plain.final.items() if name != "seconds"
    }
    for i, client in enumerate(fed):
        x, new = client.x_train.numpy().astype(float), client.x_test.numpy().astype(float)
        p = baseline.make().fit(x, client.y_train.numpy()).predict_proba(new)
        y = client.y_test.numpy()
        assert run.per_client["auc"][i] == pytest.approx(metrics.roc_auc_score(y, p[:, 1]), abs=1e-6)
        assert run.per_client["log_loss"][i] == pytest.approx(metrics.log_loss(y, p), rel=1e-4)
    assert run.history["auc"].to_list() == [run.final["auc"]]


def test_a_baseline_that_tells_no_probabilities_says_so():
    assert "auc" not in simulate(hospitals(), SVM()).final
    with pytest.raises(ValueError, match="SVM tells no class probabilities, of which auc is formed"):
        simulate(hospitals(), SVM(), metric=("auc",))


def test_a_comparison_asks_for_what_it_compares():
    fed = hospitals()
    methods = {"shared": METHOD, "logistic": LR(), "alone": Local(SMALL, local_epochs=2)}
    table = compare(fed, methods, seeds=3, metric=["accuracy", "auc", "auc_worst", WEIGHED], **QUICK)
    assert table.index.names == ["metric", "method"]
    assert table.index.get_level_values(0).unique().to_list() == ["accuracy", "auc", "auc_worst", "weighed_loss"]
    runs = [simulate(fed, METHOD, seed=seed, metric=("auc", weighed_loss), **QUICK) for seed in range(3)]
    for name in ("auc", "auc_worst", "weighed_loss"):
        assert table.loc[(name, "shared"), "mean"] == pytest.approx(np.mean([run.final[name] for run in runs]))
    p = table["p"].dropna()
    assert len(p) == 8
    assert table["p_holm"].dropna().min() == pytest.approx(min(1, 8 * p.min())), "one family: all that is shown"
    single = compare(fed, methods, seeds=3, metric="accuracy", **QUICK)
    pd.testing.assert_frame_equal(single.drop(columns="p_holm"), table.loc["accuracy"].drop(columns="p_holm"))


# --- a last step of one's own -----------------------------------------------------------------------------------------


def test_of_two_classes_it_is_platts_as_scikit_learn_has_it():
    y = (RNG.random(70) < 0.8).astype(int)
    logit = RNG.normal(size=70) + 1.5 * y - 2
    outputs = torch.from_numpy(np.stack([np.zeros(70), logit], 1))
    a, b = _sigmoid_calibration(logit, y)
    (found,) = after([outputs], [fit(outputs, torch.from_numpy(y))])
    np.testing.assert_allclose(found.softmax(1)[:, 1].numpy(), expit(-(a * logit + b)), atol=1e-5)


def test_of_more_classes_its_gradient_is_zero():
    """Where slope and offsets are best, the mean targets are the mean probabilities: the first-order condition."""
    y = torch.from_numpy(RNG.integers(0, 3, 90))
    outputs = torch.from_numpy(RNG.normal(size=(90, 3)) + 2 * np.eye(3)[y] + [1, 0, -1])
    step = fit(outputs, y)
    n = torch.bincount(y)
    targets = ((torch.eye(3) * n[:, None] + 1) / (n[:, None] + 3)).double()[y]
    gap = after([outputs], [step])[0].softmax(1) - targets
    assert float(gap.mean(0).abs().max()) < 1e-6
    assert abs(float((gap * outputs).sum() / 90)) < 1e-6
    assert float(step["slope"]) > FLATTEST
    assert float(step["offset"][0]) == 0


def test_slope_and_offsets_stay_finite_and_keep_the_order():
    """All answers right, none right, a class without samples, one sample, outputs that are all the same."""
    right = torch.tensor([0, 1, 0, 1])
    logits = torch.tensor([[2.0, -2, 0], [-2, 2, 0], [1, -1, 0], [-1, 1, 0]])
    for outputs, y in [
        (logits, right),
        (logits, 1 - right),
        (logits, torch.zeros(4, dtype=torch.int64)),
        (logits[:1], right[:1]),
        (torch.zeros(4, 3), right),
    ]:
        step = fit(outputs, y)
        assert all(bool(p.isfinite().all()) for p in step.values())
        assert float(step["slope"]) >= FLATTEST
    assert float(fit(logits, 1 - right)["slope"]) == FLATTEST
    broken = fit(logits * math.nan, right)
    assert float(broken["slope"]) == 1
    assert not broken["offset"].any()


def test_of_a_regression_it_is_the_line_of_least_squares():
    z = RNG.normal(size=30)
    y = 3 + 2 * z + RNG.normal(size=30)
    step, line = fit(torch.from_numpy(z)[:, None], torch.from_numpy(y)), LinearRegression().fit(z[:, None], y)
    assert float(step["slope"]) == pytest.approx(line.coef_[0])
    assert float(step["offset"]) == pytest.approx(line.intercept_)
    assert float(fit(torch.from_numpy(z)[:, None], torch.from_numpy(-y))["slope"]) == FLATTEST
    flat = fit(torch.ones(4, 1), torch.tensor([0.0, 2, 4, 6]))
    assert after([torch.ones(2, 1)], [flat])[0].flatten().tolist() == [3, 3]


def test_a_run_with_an_own_last_step():
    """The rounds, their bytes and the parameters are the same; the order of samples too, so that AUC stays."""
    fed = hospitals()
    plain = simulate(fed, METHOD, metric=("auc", "log_loss"), **QUICK)
    run = simulate(fed, METHOD, metric=("auc", "log_loss"), last_step="own", validation=fed, **QUICK)
    shared = [c for c in plain.history if c != "seconds"]
    assert run.history[shared].equals(plain.history[shared])
    assert run.final["bytes_up"] == plain.final["bytes_up"]
    assert all(torch.equal(p, run.params[0][name]) for name, p in plain.params[0].items())
    assert (plain.settings.get("last_step"), run.settings["last_step"]) == (None, "own")
    assert run.per_client["auc"].to_list() == pytest.approx(plain.per_client["auc"].to_list())
    assert run.per_client["log_loss"].to_list() != plain.per_client["log_loss"].to_list()
    train = [run.scores("log_loss", split="train"), plain.scores("log_loss", split="train")]
    assert (train[0]["log_loss"] < train[1]["log_loss"]).all(), "it was fitted to these"
    for name in ("accuracy", "log_loss"):
        assert run.final[f"validation_{name}"] == pytest.approx(run.final[name])
    said = {name: p.argmax(1) for name, p in run.probabilities().items()}
    assert run.per_client["accuracy"].to_list() == [np.mean(said[name] == y) for name, y in run.labels().items()]
    assert run.scores("log_loss")["log_loss"].to_list() == pytest.approx(run.per_client["log_loss"].to_list())
    assert plain.steps == []
    with pytest.raises(ValueError, match="last_step must be one of 'shared', 'own', got 'mine'"):
        simulate(fed, METHOD, last_step="mine", **QUICK)


def test_a_threshold_that_is_wrong_at_a_client_is_put_right():
    """A shared model of clients in which 90 % and 10 % are of one class names neither majority; the step does."""
    fed = hospitals(shares=(0.95, 0.05, 0.95, 0.05), n=80)
    flat = FedAvg(Model(MLP(hidden=(), out=2)), local_epochs=5, lr=0.01)
    means = [simulate(fed, flat, last_step=step, **QUICK).final["accuracy"] for step in ("shared", "own")]
    assert means[1] > means[0] + 0.1


def test_new_clients_have_a_last_step_where_the_run_had():
    fed = hospitals(shares=(0.5, 0.9, 0.15, 0.8))
    old, new = fed.subset(["hospital 0", "hospital 1", "hospital 2"]), fed.subset(["hospital 3"])
    run = simulate(old, HetFedRep(Model(MLP(hidden=(6,), out=4), alpha=3), local_epochs=1), last_step="own", **QUICK)
    found = adapt(run, new, progress=False, device="cpu")
    assert len(found.steps) == 1
    assert found.settings["last_step"] == "own"


def test_pooled_trials_tell_probabilities_of_the_classes_that_a_client_has():
    pytest.importorskip("pyriemann")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)) / 4, np.arange(40) % 3
    fed = Federation.from_arrays({"a": (x, y), "b": (x[y < 2] + 0.1, y[y < 2])}, test_size=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = simulate(fed, Pooled(), metric=("log_loss", "accuracy", "auc"))
    assert run.final["accuracy"] == run.per_client["accuracy"].mean()
    assert run.per_client[["log_loss", "auc"]].notna().all(axis=None)
