"""A client's model in the hands of scikit-learn: scorers, displays, importance, calibration; what would train it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.inspection import DecisionBoundaryDisplay, PartialDependenceDisplay, permutation_importance
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    DetCurveDisplay,
    PrecisionRecallDisplay,
    RocCurveDisplay,
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    get_scorer,
    log_loss,
    make_scorer,
    r2_score,
    roc_auc_score,
)
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from hetfl_core import Federation, Preparation, Trained, simulate
from hetfl_core.baselines import LDA, LR, MDM, SVM, Chosen
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import FedAvg, Local
from hetfl_core.networks import MLP, Model
from hetfl_core.settings import plain

mpl.use("Agg")

SMALL = Model(MLP((5,), 4))
QUICK: dict[str, Any] = {"rounds": 2, "device": "cpu", "progress": False}


def patients(classes: list[Any], n: int = 120, seed: int = 0) -> pd.DataFrame:
    """Age says what somebody has, weight says nothing; and there is a column of words."""
    rng = np.random.default_rng(seed)
    y = rng.integers(len(classes), size=n)
    frame = pd.DataFrame({"weight": rng.normal(80, 10, n), "age": rng.normal(50, 5, n) + 12 * y})
    frame["sex"] = rng.choice(["f", "m"], n)
    return frame.assign(site=np.resize(["A", "B"], n), state=[classes[c] for c in y])


def trained(classes: list[Any]) -> Trained:
    frame = patients(classes)
    fed = Federation.from_frame(frame, client="site", target="state", prepare=Preparation(), seed=0)
    return simulate(fed, FedAvg(SMALL, local_epochs=20, lr=0.02, batch_size=20), **QUICK).trained()


TWO, THREE = trained(["ill", "well"]), trained([3, 7, 11])
NEW = patients(["ill", "well"], seed=1)
X, Y = NEW[["sex", "age", "weight"]], NEW["state"]
NEW_3 = patients([3, 7, 11], seed=1)


def test_it_is_a_fitted_classifier() -> None:
    predictor = TWO.client("A")
    check_is_fitted(predictor)
    check_is_fitted(predictor, "classes_")
    assert is_classifier(predictor)
    assert not is_regressor(predictor)
    assert predictor.classes_.tolist() == ["ill", "well"]
    assert predictor.feature_names_in_.tolist() == ["weight", "age", "sex"]
    assert predictor.n_features_in_ == 3
    assert THREE.client("B").classes_.dtype == int
    assert repr(predictor) == "Predictor(client 'A': classifier)"
    shares = predictor.predict_proba(X)
    assert isinstance(shares, np.ndarray)
    pd.testing.assert_frame_equal(predictor.probabilities(X), TWO.predict_proba(X, "A"))
    np.testing.assert_array_equal(predictor.probabilities(X), shares)
    assert predictor.probabilities(X).columns.to_list() == ["ill", "well"]


def test_score_and_scorers() -> None:
    predictor = TWO.client("A")
    said, p = predictor.predict(X), predictor.probabilities(X)
    right = (said == Y).mean()
    assert 0.8 < right < 1, "a test that would notice another order"
    assert predictor.score(X, Y) == right
    weight = np.arange(len(Y))
    assert predictor.score(X, Y, weight) == accuracy_score(Y, said, sample_weight=weight) != right
    assert get_scorer("accuracy")(predictor, X, Y) == right
    assert get_scorer("roc_auc")(predictor, X, Y) == roc_auc_score(Y, p["well"])
    assert get_scorer("neg_log_loss")(predictor, X, Y) == pytest.approx(-log_loss(Y, p))
    assert make_scorer(balanced_accuracy_score)(predictor, X, Y) == balanced_accuracy_score(Y, said)
    score = make_scorer(brier_score_loss, greater_is_better=False, response_method="predict_proba", pos_label="ill")
    assert score(predictor, X, Y) == pytest.approx(-((p["ill"] - (Y == "ill")) ** 2).mean())
    three = THREE.client("B")
    rows, y = NEW_3[X.columns], NEW_3["state"]
    assert get_scorer("roc_auc_ovr")(three, rows, y) == roc_auc_score(y, three.predict_proba(rows), multi_class="ovr")
    with pytest.raises(ValueError, match=r"client 'A': the table must have the columns .*, lacks \['age'\]"):
        get_scorer("roc_auc")(predictor, X.drop(columns="age"), Y)


def test_which_columns_matter() -> None:
    predictor = TWO.client("A")
    found = permutation_importance(predictor, X, Y, scoring="roc_auc", n_repeats=3, random_state=0)
    assert X.columns[found.importances_mean.argmax()] == "age"
    assert found.importances_mean[1] > 0.2 > abs(found.importances_mean[2])
    display = PartialDependenceDisplay.from_estimator(predictor, X, ["age", "weight"], grid_resolution=7)
    age, weight = display.pd_results
    expected = [predictor.predict_proba(X.assign(age=at))[:, 1].mean() for at in age["grid_values"][0]]
    np.testing.assert_allclose(age["average"][0], expected)
    assert abs(np.diff(age["average"][0]).sum()) > 0.5 > abs(np.diff(weight["average"][0]).sum())


def test_displays() -> None:
    predictor = TWO.client("A")
    p = predictor.probabilities(X)
    assert RocCurveDisplay.from_estimator(predictor, X, Y).roc_auc == pytest.approx(roc_auc_score(Y, p["well"]))
    flipped = RocCurveDisplay.from_estimator(predictor, X, Y, pos_label="ill")
    assert flipped.roc_auc == pytest.approx(roc_auc_score(Y == "ill", p["ill"]))
    shown = ConfusionMatrixDisplay.from_estimator(predictor, X, Y)
    np.testing.assert_array_equal(shown.confusion_matrix, confusion_matrix(Y, predictor.predict(X)))
    assert shown.display_labels.tolist() == ["ill", "well"]
    display = CalibrationDisplay.from_estimator(predictor, X, Y, n_bins=3)
    np.testing.assert_array_equal(display.y_prob, p["well"])
    for curve in (PrecisionRecallDisplay, DetCurveDisplay):
        assert curve.from_estimator(predictor, X, Y).ax_ is not None
    rows = NEW[["weight", "age"]].assign(sex="f").sample(5, random_state=0)
    fed = Federation.from_frame(patients(["ill", "well"]).drop(columns="sex"), client="site", target="state")
    flat = simulate(fed, Local(SMALL, local_epochs=1), **QUICK).trained().client("A")
    grid = DecisionBoundaryDisplay.from_estimator(flat, rows[["weight", "age"]], response_method="predict_proba")
    assert grid.response.shape == (100, 100)


def test_calibration() -> None:
    """Of a frozen predictor Platt's two numbers are fitted to rows that it was not trained with."""
    frozen = pytest.importorskip("sklearn.frozen", reason="FrozenEstimator came with scikit-learn 1.6")
    predictor = TWO.client("A")
    half = X.index < 60
    better = CalibratedClassifierCV(frozen.FrozenEstimator(predictor)).fit(X[half], Y[half])
    calibrated, raw = better.predict_proba(X[~half]), predictor.predict_proba(X[~half])
    assert better.classes_.tolist() == ["ill", "well"]
    assert abs(np.corrcoef(calibrated[:, 1], raw[:, 1])[0, 1]) > 0.9
    assert not np.allclose(calibrated, raw)
    scores = cross_val_score(frozen.FrozenEstimator(predictor), X, Y, cv=3)
    assert scores.mean() == pytest.approx(predictor.score(X, Y))
    assert "Predictor(client 'A'" in repr(frozen.FrozenEstimator(predictor))


@pytest.mark.parametrize(
    "train",
    [
        lambda p: p.fit(X, Y),
        clone,
        lambda p: cross_val_score(p, X, Y),
        lambda p: GridSearchCV(p, {}).fit(X, Y),
        lambda p: CalibratedClassifierCV(p).fit(X, Y),
    ],
)
def test_what_would_train_it_says_what_to_use(train) -> None:
    with pytest.raises(TypeError, match=r"client 'A': this model is trained already.*FrozenEstimator\(predictor\)"):
        train(TWO.client("A"))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copies_say_the_same(copied) -> None:
    for predictor in (TWO.client("A"), THREE.client("B")):
        np.testing.assert_array_equal(copied(predictor).predict_proba(X), predictor.predict_proba(X))
    pd.testing.assert_frame_equal(copied(TWO).predict_proba(X, "B"), TWO.predict_proba(X, "B"))


def test_of_a_regression() -> None:
    frame = patients(["ill", "well"]).assign(days=lambda t: t["age"] / 10)
    fed = Federation.from_frame(
        frame[["age", "weight", "site", "days"]], client="site", target="days", task="regression"
    )
    predictor = simulate(fed, Local(SMALL, local_epochs=5), **QUICK).trained().client("A")
    rows, y = NEW[["weight", "age"]], NEW["age"] / 10
    assert is_regressor(predictor)
    assert not is_classifier(predictor)
    assert not hasattr(predictor, "classes_")
    assert predictor.feature_names_in_.tolist() == ["age", "weight"]
    assert predictor.score(rows, y) == get_scorer("r2")(predictor, rows, y) == r2_score(y, predictor.predict(rows))
    assert permutation_importance(predictor, rows, y, n_repeats=2).importances.shape == (2, 2)
    with pytest.raises(ValueError, match="client 'A': a regression has no class probabilities"):
        predictor.predict_proba(rows)


def test_names_and_numbers_of_what_is_taken() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(20) % 2
    vectors = Federation.from_arrays({"A": (rng.normal(size=(20, 3)), y)})
    images = Federation.from_arrays({"A": (rng.normal(size=(20, 1, 4, 4)), y)})
    flat, square = (
        simulate(fed, Local(SMALL, local_epochs=1), **QUICK).trained().client() for fed in (vectors, images)
    )
    assert flat.n_features_in_ == 3
    assert not hasattr(flat, "feature_names_in_")
    assert not hasattr(square, "n_features_in_")
    assert flat.score(vectors[0].x_test.numpy(), vectors[0].y_test.numpy()) in (0, 0.25, 0.5, 0.75, 1)
    blocks = simulate(
        Federation.from_frame(patients(["ill", "well"]).drop(columns="sex"), client="site", target="state").in_blocks(),
        Local(),
        **QUICK,
    )
    assert [*blocks.trained().client("A").feature_names_in_] == ["weight", "age"]


def test_one_class_is_a_class() -> None:
    with pytest.warns(FederationWarning, match="all training samples are of one class"):
        fed = Federation.from_arrays({"A": (np.random.default_rng(0).normal(size=(10, 2)), np.zeros(10, int))})
    predictor = simulate(fed, Local(SMALL, local_epochs=1), **QUICK).trained().client()
    assert predictor.predict(np.zeros((2, 2))).to_list() == [0, 0]


# --- baselines as estimators ----------------------------------------------------------------------------------------

VECTORS = np.random.default_rng(0).normal(size=(60, 6)) * 0.3
KINDS = np.array(["left", "right", "rest"])[np.arange(60) % 3]
VECTORS += (KINDS == "left")[:, None] * [0.6, 0, 0, 0, 0, 0] + (KINDS == "rest")[:, None] * [0, 0, 0, 0.6, 0, 0]
CLASSICAL = [LDA(), LR(), SVM(), MDM(), Chosen((LDA(), SVM()))]


@pytest.fixture(params=CLASSICAL, ids=lambda one: one.name)
def classical(request):
    if isinstance(request.param, MDM):
        pytest.importorskip("pyriemann")
    return clone(request.param)


def test_a_baseline_is_a_step_of_a_pipeline(classical) -> None:
    pipe = make_pipeline(FunctionTransformer(), classical)
    scores = cross_val_score(pipe, VECTORS, KINDS, cv=3)
    by_hand = []
    for train, test in StratifiedKFold(3).split(VECTORS, KINDS):
        codes = np.unique(KINDS, return_inverse=True)[1]
        by_hand.append((classical.learn(VECTORS[train], codes[train])(VECTORS[test]) == codes[test]).mean())
    np.testing.assert_array_equal(scores, by_hand)
    assert scores.mean() > 0.45
    assert clone(pipe)[-1] == classical
    assert "answers_" not in vars(pipe[-1])


def test_a_baseline_has_what_estimators_have(classical) -> None:
    bare = plain(classical)
    with pytest.raises(NotFittedError, match=f"This {type(classical).__name__} instance is not fitted yet"):
        classical.predict(VECTORS)
    assert classical.fit(VECTORS, KINDS) is classical
    assert classical.classes_.tolist() == ["left", "rest", "right"]
    assert classical.n_features_in_ == 6
    assert not hasattr(classical, "feature_names_in_")
    assert is_classifier(classical)
    assert classical.score(VECTORS, KINDS) == np.mean(classical.predict(VECTORS) == KINDS) > 0.6
    assert plain(classical) == bare, "what is fitted is no setting"
    assert classical == clone(classical)
    assert hash(classical) == hash(clone(classical))
    check_is_fitted(classical)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(classical))
    again = pickle.loads(pickle.dumps(classical))
    np.testing.assert_array_equal(again.predict(VECTORS), classical.predict(VECTORS))
    with pytest.raises(ValueError, match=r"X has 5 features, but .* is expecting 6 features as input"):
        classical.predict(VECTORS[:, :5])
    table = pd.DataFrame(VECTORS, columns=list("abcdef"))
    assert classical.fit(table, KINDS).feature_names_in_.tolist() == [*"abcdef"]
    with pytest.raises(ValueError, match=r"X must have the columns \['a', .*, got \['f',"):
        classical.predict(table[table.columns[::-1]])


def test_probabilities_and_decisions_are_those_of_what_is_fitted() -> None:
    y = KINDS == "left"
    direct = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(VECTORS, y)
    lda, svm = LDA().fit(VECTORS, y), SVM().fit(VECTORS, y)
    np.testing.assert_array_equal(lda.predict_proba(VECTORS), direct.predict_proba(VECTORS))
    np.testing.assert_array_equal(lda.decision_function(VECTORS), direct.decision_function(VECTORS))
    assert get_scorer("roc_auc")(lda, VECTORS, y) == roc_auc_score(y, direct.predict_proba(VECTORS)[:, 1])
    assert not hasattr(svm, "predict_proba")
    decisions = svm.make().fit(VECTORS, y).decision_function(VECTORS)
    assert get_scorer("roc_auc")(svm, VECTORS, y) == roc_auc_score(y, decisions)
    assert LDA().fit(VECTORS, np.ones(60)).predict(VECTORS).tolist() == [1] * 60


def test_settings_of_a_baseline_are_set_as_scikit_learn_sets_them() -> None:
    search = GridSearchCV(Chosen((LDA(), LR())), {"folds": [2, 3]}, cv=3).fit(VECTORS, KINDS)
    assert search.best_estimator_.folds in (2, 3)
    chosen = Chosen((LDA(),))
    assert chosen.get_params() == {"among": (LDA(),), "folds": 5}
    assert chosen.set_params(folds=4) is chosen
    assert chosen.folds == 4
    with pytest.raises(ValueError, match="folds must be at least 2, got 1"):
        chosen.set_params(folds=1)
    assert chosen.folds == 4
    with pytest.raises(TypeError, match="fold"):
        chosen.set_params(fold=3)
    assert LDA().set_params() == LDA()


def test_a_fitted_baseline_runs_as_one_that_is_not() -> None:
    fed = Federation.from_arrays({"A": (VECTORS, np.arange(60) % 3)})
    fresh, fitted = simulate(fed, LDA()), simulate(fed, LDA().fit(VECTORS, KINDS))
    assert fitted.settings == fresh.settings
    pd.testing.assert_frame_equal(fitted.per_client, fresh.per_client)


def test_mdm_takes_tangent_vectors() -> None:
    pytest.importorskip("pyriemann")
    with pytest.raises(ValueError, match=r"MDM cannot be fitted to 60 vectors: tangent vectors must have q\(q\+1\)/2"):
        MDM().fit(VECTORS[:, :5], KINDS)
