"""Fitted estimators that are kept: of every baseline and of scikit-learn, from a folder, without pickle or trust."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest, mutual_info_classif
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from hetfl_core import Client, Federation, Preparation, Trained, adapt, load_trained, scikit, simulate
from hetfl_core.baselines import LDA, LR, MDM, SVM, Chosen, Pooled
from hetfl_core.estimators import InOnePlace, PerSite
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import Local
from hetfl_core.networks import MLP, Model
from hetfl_core.reporting.ways import Boosting, Logistic

QUICK: dict[str, Any] = {"rounds": 1, "device": "cpu", "progress": False}


def patients(n: int = 90, seed: int = 0) -> pd.DataFrame:
    """Three classes at three sites, of which C has two classes only, and a column with gaps."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    frame = pd.DataFrame(
        {"age": rng.normal(50, 5, n) + 5 * y, "sugar": rng.normal(5, 1, n) - y, "bmi": rng.normal(size=n)}
    )
    frame["site"] = np.resize(["A", "B", "C"], n)
    frame["state"] = np.array(["ill", "so-so", "well"])[y]
    frame.loc[rng.random(n) < 0.1, "sugar"] = np.nan
    return frame.drop(frame.index[(frame["site"] == "C") & (frame["state"] == "well")])


TABLE, NEW = patients(), patients(seed=1)
FED = Federation.from_frame(TABLE, client="site", target="state", prepare=Preparation())
ESTIMATORS = {
    "logistic": PerSite(LogisticRegression()),
    "pipeline": PerSite(make_pipeline(StandardScaler(), LogisticRegression())),
    "search": PerSite(GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=3)),
    "boosting": PerSite(GradientBoostingClassifier(n_estimators=5)),
    "histogram": PerSite(HistGradientBoostingClassifier(max_iter=3)),
    "forest": PerSite(RandomForestClassifier(5)),
    "no probabilities": PerSite(LinearSVC()),
    "in one place": InOnePlace(LogisticRegression()),
    "report's logistic": Logistic(),
    "report's boosting": Boosting(),
    "LDA": LDA(),
    "LR": LR(),
    "SVM": SVM(),
}


def kept(run: Any, folder: Any, **options: Any) -> Trained:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "SVM consists of training rows")
        return load_trained(run.save(folder), **options)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_says_the_same_in_the_run_after_it_and_from_the_folder(name, tmp_path):
    run = simulate(FED, ESTIMATORS[name], seed=3)
    model, again = run.trained(), kept(run, tmp_path)
    assert (type(again), again.clients, again.classes) == (type(model), ["A", "B", "C"], ["ill", "so-so", "well"])
    assert repr(again) == repr(model) == f"Trained({run.method.name} on 'federation': ['A', 'B', 'C'])"
    for client, row in zip(run.federation, run.per_client.itertuples(), strict=True):
        table = pd.DataFrame(client.x_test.numpy(), columns=list(client.features))
        bare = [m.client(client.name) for m in (model, again)]
        for one in bare:
            object.__setattr__(one, "prepare", None)  # the rows are prepared
            said = one.predict(table[table.columns[::-1]]).to_numpy()
            assert np.mean(said == np.array(model.classes)[client.y_test]) == row.accuracy
        if run.models[client.name].shares is None or run.models[client.name].ranked:
            with pytest.raises(ValueError, match=f"client '{client.name}': .* tells no class probabilities"):
                bare[1].predict_proba(table)
            continue
        p, wanted = bare[1].predict_proba(table), np.zeros((client.n_test, 3))
        answers = run.models[client.name]
        wanted[:, answers.classes] = answers.shares(run.method.arrays(client, "test")[0])
        np.testing.assert_array_equal(p, wanted)
        np.testing.assert_array_equal(bare[0].predict_proba(table), wanted)
    rows = NEW[NEW["site"] == "C"].drop(columns="state")
    pd.testing.assert_series_equal(again.predict(rows, "C"), model.predict(rows, "C"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["estimators.skops", "model.json"]


def test_a_class_that_a_client_lacks_has_no_probability(tmp_path):
    model = kept(simulate(FED, PerSite(LogisticRegression())), tmp_path)
    assert (model.predict_proba(NEW, "C")["well"] == 0).all()
    assert (model.predict_proba(NEW, "A")["well"] > 0).all()


def trials(name: str, seed: int) -> Client:
    """Tangent vectors of covariances whose spread tells the classes apart, away from zero."""
    rng, y = np.random.default_rng(seed), np.arange(40) % 2
    x = rng.normal(size=(40, 6)) * 0.3 + np.outer(y, [1, 0, 0, 0.5, 0, 0]) + rng.normal(size=6)
    return Client(x[:30], y[:30], x[30:], y[30:], name)


@pytest.mark.parametrize("baseline", [MDM(), Pooled(), Pooled(LR()), Chosen((LDA(), MDM()))], ids=lambda b: b.name)
def test_brain_signals_are_moved_as_in_training(baseline, tmp_path):
    pytest.importorskip("pyriemann")
    run = simulate(Federation([trials("a", 0), trials("b", 1)]), baseline)
    model = kept(run, tmp_path)
    assert model.method == baseline
    for client, accuracy in zip(run.federation, run.per_client["accuracy"], strict=True):
        x = client.x_test.numpy()
        assert (model.predict(x, client.name) == client.y_test.numpy()).mean() == accuracy > 0.6
        np.testing.assert_array_equal(
            model.client(client.name).predict_proba(x), run.models[client.name].shares(x.astype(np.float64))
        )


def test_a_single_class_and_a_regression(tmp_path):
    y = np.arange(20.0)
    fed = Federation.from_arrays({"a": (y[:, None] * 2, y), "b": (y[:, None], y)}, task="regression")
    run = simulate(fed, PerSite(Ridge(1e-9)))
    model = kept(run, tmp_path / "line")
    np.testing.assert_allclose(model.predict([[8.0], [9.0]], "a"), [4, 4.5])
    assert model.client("b").score([[8.0], [9.0]], [8, 9]) == pytest.approx(1)
    with pytest.raises(ValueError, match="a regression has no class probabilities"):
        model.predict_proba([[8.0]], "a")
    only = Federation.from_arrays({"a": (y[:, None], np.ones(20, int)), "b": (y[:, None], np.arange(20) % 2)})
    for baseline in (LDA(), PerSite(LogisticRegression())):
        model = kept(simulate(only, baseline), tmp_path / "one class")
        assert model.predict_proba([[3.0]], "a").to_numpy().tolist() == [[0, 1]]


def test_one_estimator_for_all_is_written_once(tmp_path):
    many = Federation([trials(str(i), i) for i in range(8)])
    for name, place in (("own", PerSite), ("shared", InOnePlace)):
        simulate(many, place(RandomForestClassifier(20, max_depth=3))).save(tmp_path / name)
    own, shared = ((tmp_path / name / "estimators.skops").stat().st_size for name in ("own", "shared"))
    assert own > 4 * shared


def test_training_rows_in_a_folder_are_told(tmp_path):
    for baseline in (SVM(), PerSite(make_pipeline(StandardScaler(), KNeighborsClassifier()))):
        run = simulate(FED, baseline)
        with pytest.warns(FederationWarning, match=r"consists of training rows, of \['A', 'B', 'C'\], and the folder"):
            run.save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(FED, PerSite(RandomForestClassifier(3))).save(tmp_path)


def test_what_estimators_cannot_do(tmp_path):
    run = simulate(FED, LDA())
    folder = run.save(tmp_path)
    for model in (run.trained(), load_trained(folder)):
        with pytest.raises(ValueError, match=r"LDA leaves no model at a server; predict for one of \['A', 'B', 'C'\]"):
            _ = model.server
        with pytest.raises(ValueError, match=r"LDA trains no network of which new clients could learn a part: fit it"):
            adapt(model, FED, progress=False)
    with pytest.raises(ValueError, match="holds fitted estimators, for which no method is needed"):
        load_trained(folder, method=Local())


def test_a_folder_holds_what_was_saved_last(tmp_path):
    simulate(FED, Local(Model(MLP((4,), 3))), **QUICK).save(tmp_path)
    simulate(FED, LDA()).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["estimators.skops", "model.json"]
    assert load_trained(tmp_path).method == LDA()
    simulate(FED, Local(Model(MLP((4,), 3))), **QUICK).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "tensors.safetensors"]
    assert load_trained(tmp_path).method.name == "Local"


def test_a_file_of_estimators_that_was_changed_is_refused(tmp_path):
    folder = simulate(FED, LDA()).save(tmp_path)
    content = bytearray((folder / "estimators.skops").read_bytes())
    for at in np.random.default_rng(0).integers(0, len(content), 10):
        content[at] ^= 1
        (folder / "estimators.skops").write_bytes(content)
        with pytest.raises(ValueError, match=r"estimators.skops is not the file that model.json was written with"):
            load_trained(folder)
        content[at] ^= 1
    (folder / "estimators.skops").unlink()
    with pytest.raises(FileNotFoundError, match=r"estimators.skops; a folder that Run.save wrote"):
        load_trained(folder)


# --- code of others --------------------------------------------------------------------------------------------------


class Mean(TransformerMixin, BaseEstimator):
    """A transformer of one's own: the mean of all columns, filled with zeros."""

    def fit(self, x, y=None):
        self.n_features_in_ = x.shape[1]
        return self

    def transform(self, x):
        return np.nan_to_num(np.asarray(x)).mean(1, keepdims=True)


class First(ClassifierMixin, BaseEstimator):
    """A classifier of one's own."""

    def fit(self, x, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, x):
        return np.full(len(x), self.classes_[0])


def test_code_of_others_runs_only_if_it_is_named(tmp_path):
    folder = simulate(FED, PerSite(First())).save(tmp_path)
    name = f"{First.__module__}.First"
    with pytest.raises(ValueError, match=rf"estimators.skops has what is neither .*{name}.*trusted=\['{name}'\]\)"):
        load_trained(folder)
    with pytest.raises(ValueError, match="has what is neither of this library nor of scikit-learn"):
        load_trained(folder, trusted=["somebody.Else"])
    assert set(load_trained(folder, trusted=[name]).predict(NEW, "A")) == {"ill"}
    with pytest.raises(TypeError, match="trusted must be"):
        load_trained(folder, trusted=name)


@pytest.mark.filterwarnings("ignore")
def test_whatever_scikit_learn_fits_is_kept():
    """What compositions of it hold, and what lies deep within its trees, searches, kernels and networks."""
    rng = np.random.default_rng(0)
    x, y = np.abs(rng.normal(size=(40, 4))), np.arange(40) % 2
    lr, columns = LogisticRegression(), [("scaled", StandardScaler(), [0, 1]), ("bins", KBinsDiscretizer(), [2])]
    for estimator in (
        *(GridSearchCV(lr, {"C": [0.1, 1]}, scoring=name, cv=2) for name in ("roc_auc", "neg_log_loss", "f1")),
        VotingClassifier([("a", lr), ("b", GaussianNB())], voting="soft"),
        StackingClassifier([("a", lr), ("b", DecisionTreeClassifier())], cv=2),
        BaggingClassifier(lr, 2),
        AdaBoostClassifier(n_estimators=2),
        CalibratedClassifierCV(lr, cv=2),
        GaussianProcessClassifier(1.0 * RBF()),
        MLPClassifier((3,), max_iter=2),
        make_pipeline(ColumnTransformer(columns), SelectKBest(mutual_info_classif, k=2), lr),
        make_pipeline(FunctionTransformer(np.log1p), KNNImputer(), lr),
    ):
        fitted = estimator.fit(x, y)
        again = scikit.unpacked(scikit.packed(fitted, "it"), "the file")
        np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))


@pytest.mark.parametrize("harmful", [os.system, os.path.exists, np.testing.assert_equal, json.loads, simulate])
def test_functions_are_never_taken_unasked(harmful):
    content = scikit.packed(FunctionTransformer(harmful), "it")
    with pytest.raises(ValueError, match="x has what is neither of this library nor of scikit-learn"):
        scikit.unpacked(content, "x")


def test_classes_of_scikit_learn_alone_are_taken_unasked():
    assert scikit._is_ours("sklearn.linear_model._logistic.LogisticRegression")
    assert scikit._is_ours("hetfl_core.baselines.LDA")
    for name in ("sklearn.datasets.fetch_openml", "sklearn.utils._testing.MinimalClassifier", "sklearn.base.clone"):
        assert not scikit._is_ours(name)
    for name in ("hetfl_core.__main__.app", "hetfl_core.cli.Choice", "sklearn.datasets._base.Bunch"):
        assert not scikit._is_ours(name)
    for name in (
        "sklearn.nowhere.Thing",
        "sklearn_evil.Thing",
        "sklearn.externals._arff.ArffDecoder",
        "numpy.ndarray",
        "builtins.eval",
        "Thing",
    ):
        assert not scikit._is_ours(name)


# --- prepare= of one's own -------------------------------------------------------------------------------------------

NUMBERS = TABLE[["age", "sugar", "bmi", "site", "state"]]


@pytest.mark.parametrize("federated", [True, False])
def test_a_pipeline_as_prepare_is_saved(federated, tmp_path):
    fed = Federation.from_frame(
        NUMBERS, client="site", target="state", prepare=make_pipeline(SimpleImputer(), StandardScaler())
    )
    run = simulate(fed, Local(Model(MLP((4,), 3))), **QUICK) if federated else simulate(fed, LDA())
    model, again = run.trained(), kept(run, tmp_path)
    for site in "ABC":
        np.testing.assert_array_equal(again.predict_proba(NEW, site), model.predict_proba(NEW, site))
        assert again.client(site).feature_names_in_.tolist() == ["age", "sugar", "bmi"]


def test_a_transformer_of_ones_own_has_to_be_trusted(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed = Federation.from_frame(NUMBERS, client="site", target="state", prepare=Mean())
    folder = simulate(fed, Local(Model(MLP((4,), 3))), **QUICK).save(tmp_path)
    with pytest.raises(ValueError, match=r"model.json, written by .* has what is neither .*\.Mean'\]\)"):
        load_trained(folder)
    assert len(load_trained(folder, trusted=[f"{Mean.__module__}.Mean"]).predict(NEW, "A")) == len(NEW)


def test_before_training_it_is_said_that_a_lambda_cannot_be_saved(tmp_path):
    own = make_pipeline(SimpleImputer(), FunctionTransformer(lambda x: x**2))
    with pytest.warns(FederationWarning, match="prepare cannot be written without pickle .* take a Preparation"):
        fed = Federation.from_frame(NUMBERS, client="site", target="state", prepare=own)
    run = simulate(fed, Local(Model(MLP((4,), 3))), **QUICK)
    assert len(run.trained().predict(NEW, "A")) == len(NEW)
    with pytest.raises(TypeError, match=r"client 'A': its transformer \(prepare\) cannot be written without pickle"):
        run.save(tmp_path)


def test_what_a_notebook_defines_is_told(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Mean", Mean, raising=False)
    monkeypatch.setattr(Mean, "__module__", "__main__")
    with pytest.warns(FederationWarning, match=r"prepare has \['__main__.Mean'\], defined in this program or notebook"):
        Federation.from_frame(NUMBERS, client="site", target="state", prepare=Mean())
