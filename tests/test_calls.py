"""Calls that a user of scikit-learn writes who has read the README and no more.

Each does what its words say, or is refused in words of the library's own: none is swallowed, and none ends in an error
of NumPy, PyTorch or pandas, or of a class that nobody has heard of.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from hetfl_core import Federation, networks, simulate
from hetfl_core.errors import HetflError
from hetfl_core.methods import FedAvg

IMPORTS = """
import copy, pickle

import hetfl_core
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay, RocCurveDisplay, accuracy_score, get_scorer, roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hetfl_core import Client, Preparation, adapt, baselines, compare, datasets, load_trained, methods, report, scorer
from hetfl_core import simulate_seeds, tune
from hetfl_core.estimators import InOnePlace
from hetfl_core.methods import FLIC, FedCR, HyFEM, Local
"""
"""What a session begins with."""

RNG = np.random.default_rng(0)


def tables() -> pd.DataFrame:
    """Three sites, one of which lacks a column; words, truth values and gaps in others."""
    n = 90
    made = pd.DataFrame(RNG.normal(size=(n, 3)), columns=["age", "pressure", "sugar"])
    made["site"] = np.repeat(["Porto", "Rome", "Lyon"], 30)
    made["ill"] = np.where(made["age"] + RNG.normal(size=n) > 0, "yes", "no")
    return made.assign(sugar=made["sugar"].where(made["site"] != "Lyon"))


DF = tables()
WORDY = DF.assign(sex=np.where(RNG.random(len(DF)) < 0.5, "f", "m"), smoker=RNG.random(len(DF)) < 0.5)
X, Y = RNG.normal(size=(60, 3)), np.arange(60) % 2


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the calls may name: those of this file, two federations, a run on each, and a folder."""
    fed = Federation.from_frame(DF, "site", "ill")
    common = fed.of_common_columns()
    small = FedAvg(networks.Model(networks.MLP((4,), 4)), local_epochs=1)
    run = simulate(common, small, rounds=2, progress=False)
    rome, session = DF[DF["site"] == "Rome"], dict[str, Any]()
    exec(IMPORTS, session)
    return {
        **globals(),
        **session,
        "fed": fed,
        "common": common,
        "small": small,
        "run": run,
        "one": run.trained().client("Rome"),
        "whole": rome,
        "rome": rome[["age", "pressure"]],
        "ill": rome["ill"],
        "folder": tmp_path_factory.mktemp("calls"),
        "quick": {"rounds": 2, "progress": False},
        "quicker": {"seeds": 3, "rounds": 2, "progress": False},
    }


WORK = """
Federation.from_frame(DF, "site", "ill")
Federation.from_frame(DF, client="site", target="ill", test_size=0.3, seed=1)
Federation.from_frame(WORDY, "site", "ill", prepare=Preparation())
Federation.from_frame(pd.get_dummies(WORDY, columns=["sex"]), "site", "ill")
Federation.from_frame(DF.drop(columns="sugar"), "site", "ill", prepare=make_pipeline(StandardScaler()))
Federation.from_arrays({"a": (X, Y), "b": (X[:, :2], Y)})
Federation([Client(X, Y, X, Y, "a"), Client(X, Y, X, Y, "b")])
len(fed), [client.name for client in fed], fed["Porto"], fed[0], fed[:2]
fed.of_common_columns(), fed.filled(), fed.in_blocks()
simulate(fed, FLIC(), **quick)
simulate(fed.filled(), FedAvg(), **quick)
simulate((fed), (FedAvg(), "common"), **quick)
simulate(fed, LogisticRegression())
simulate(fed, make_pipeline(StandardScaler(), LogisticRegression()))
simulate(fed, RandomForestClassifier(n_estimators=5), seed=3)
simulate(fed, baselines.LDA())
simulate(common, InOnePlace(LogisticRegression()))
simulate(fed, LogisticRegression(), metric="roc_auc").final["auc"]
simulate(common, small, metric="auc", **quick).final["auc"]
simulate(common, small, metric=["roc_auc", "log loss"], **quick).final["log_loss"]
simulate(common, FedAvg(networks.Model(networks.Linear())), **quick)
simulate(common, FedAvg(drop_last=True), **quick)
simulate_seeds(common, small, seeds=2, **quick)
simulate_seeds(common, LogisticRegression(), seeds=2)
compare(common, [small, Local()], **quicker)
compare(fed, {"flic": FLIC(), "alone": LogisticRegression()}, metric="roc_auc", **quicker)
compare(fed, {"flic": FLIC(), "shared": (FedAvg(), "common"), "alone": baselines.LDA()}, **quicker)
compare(fed, {"a": LogisticRegression(), "b": RandomForestClassifier(5)}, seeds=3, metric=["auc", "f1_macro"])
compare(fed, {"flic": FLIC(), "alone": Local()}, base="best alone", **quicker)
tune(fed, LogisticRegression(), {"C": [0.1, 1.0]}, metric="roc_auc", progress=False).chosen
tune(fed, make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [0.1, 1]}, progress=False)
tune(common, small, {"lr": [0.01, 0.1], "rounds": [1, 2]}, progress=False).table
report(DF, "site", "ill", seeds=3, rounds=1, progress=False).advice
report({name: own.drop(columns="site") for name, own in DF.groupby("site")}, target="ill", seeds=3, rounds=1).html
run.predict(rome, "Rome")
run.predict_proba(rome, client="Rome")
run.score(), run.score("roc_auc"), run.score("balanced_accuracy")
run.plot()
print(run.report())
run.history, run.final, run.per_client
run.save(folder / "model"), load_trained(folder / "model").client("Rome").predict(rome)
simulate(fed, LogisticRegression()).save(folder / "lr"), load_trained(folder / "lr").predict(whole, "Rome")
simulate(fed, RandomForestClassifier(5)).save(folder / "rf"), load_trained(folder / "rf").predict(DF, "Lyon")
simulate(fed, baselines.LDA()).save(folder / "lda"), load_trained(folder / "lda").predict_proba(whole, "Porto")
one.predict(rome), one.predict_proba(rome), one.score(rome, ill), one.classes_
one.predict(rome[["pressure", "age"]])
accuracy_score(ill, one.predict(rome))
roc_auc_score(ill, one.predict_proba(rome)[:, 1])
get_scorer("roc_auc")(one, rome, ill)
permutation_importance(one, rome, ill, n_repeats=2, random_state=0)
partial_dependence(one, rome, ["age"], grid_resolution=3)
RocCurveDisplay.from_estimator(one, rome, ill)
ConfusionMatrixDisplay.from_estimator(one, rome, ill)
CalibrationDisplay.from_estimator(one, rome, ill, n_bins=2)
CalibratedClassifierCV(FrozenEstimator(one), cv=2).fit(rome, ill).predict_proba(rome)
pickle.loads(pickle.dumps(one)).predict(rome)
copy.deepcopy(run.trained()).predict(rome, "Rome")
cross_val_score(baselines.LDA(), X, Y, cv=3)
make_pipeline(StandardScaler(), baselines.LDA()).fit(X, Y).predict(X)
adapt(run, Client(rome, (ill == "yes").astype(int), rome, (ill == "yes").astype(int), "Bern"), progress=False)
datasets.digits.bundled()
scorer(lambda_, greater_is_better=False)
"""
"""Calls that work, one a line."""

REFUSED = {
    'Federation.from_frame(DF, "site", "ill", random_state=1)': "did you mean 'seed'",
    'Federation.from_frame(DF, "hospital", "ill")': "hospital",
    'Federation.from_frame(DF, "site", "illness")': "illness.*did you mean 'ill'|illness",
    'Federation.from_frame(DF.set_index("site"), "site", "ill")': "client must be one of the columns",
    'Federation.from_frame(WORDY, "site", "ill")': "sex.*prepare|prepare.*sex",
    'Federation.from_frame(DF, "site", "ill", test_size=1.5)': "test_size",
    'Federation.from_arrays({"a": (X[:, 0], Y)})': "'a'",
    'Federation.from_arrays({"a": (X, Y[:10])})': "'a'",
    'Federation.from_csv("there-is-no-such.csv", client="site", target="ill")': "there-is-no-such.csv",
    'fed["Portto"]': "no client 'Portto'.*'Porto'",
    "simulate(fed, FLIC)": "FLIC\\(\\)",
    'simulate(fed, "FLIC")': "method must be a method such as FLIC",
    "simulate(fed, LogisticRegression)": "without brackets|LogisticRegression\\(\\)",
    "simulate(fed, StandardScaler())": "an estimator of scikit-learn",
    "simulate(FLIC(), fed)": "method must be",
    "simulate(X, FLIC())": "federation must be a Federation",
    "simulate(common, small, n_rounds=2)": "did you mean 'rounds'",
    "simulate(common, small, epochs=2)": "did you mean 'rounds'",
    "simulate(common, small, random_state=0)": "did you mean 'seed'",
    'simulate(common, small, scoring="roc_auc")': "did you mean 'metric'",
    'simulate(common, small, metric="auroc")': "did you mean 'auc'",
    "simulate(common, small, n_jobs=2)": "did you mean 'workers'",
    "simulate(common, small, rounds=0)": "rounds",
    "simulate(fed, FedAvg(), **quick)": "same shape",
    "FedAvg(learning_rate=0.1)": "did you mean 'lr'",
    "FedAvg(lr=-1)": "lr",
    "compare(common, [small])": "at least two",
    "compare(common, [small, small])": "several are called 'FedAvg'",
    "compare(common, [small, Local()], cv=5)": "did you mean 'seeds'",
    'compare(common, [small, Local()], scoring="roc_auc")': "did you mean 'metric'",
    "compare(common, [small, Local()], seeds=2)": "at least 3|three",
    'compare(common, [small, Local()], base="Locall")': "did you mean 'Local'",
    'compare(common, [small, Local()], metric="neg_log_loss")': "did you mean 'log_loss'",
    'tune(fed, LogisticRegression(), {"c": [1.0]})': "no setting is called 'c'",
    "tune(fed, LogisticRegression(), param_grid={})": "did you mean 'grid'",
    'tune(fed, LogisticRegression(), {"C": [1.0]}, metric=lambda_)': "greater_is_better",
    'run.predict("test")': "run.outputs\\('test'\\)",
    "run.predict(rome)": "client must be one of",
    'run.predict(rome, "Milan")': "client must be one of",
    'run.predict(rome.drop(columns="age"), "Rome")': "age",
    'run.predict(rome.to_numpy(), "Rome")': "must be a table",
    'run.score("acc")': "did you mean 'accuracy'",
    'run.plot("auc")': "metric must be one of",
    "one.fit(rome, ill)": "fit",
    "cross_val_score(one, rome, ill, cv=2)": "fit",
    'load_trained(folder / "nothing")': "there is no",
    'report(DF, "site")': "target",
    'report(DF, "site", "ill", metric="recall", seeds=3)': "metric must be one of",
    "hetfl_core.LogisticRegression": "has no attribute",
}
"""Calls that are refused, and part of what is said."""


def lambda_(y: np.ndarray, p: np.ndarray) -> float:
    """A measure of one's own that does not say its direction."""
    return float((y == p.argmax(1)).mean())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", WORK.strip().splitlines())
def test_a_call_works(call: str, names: dict[str, Any]) -> None:
    assert eval(call, dict(names)) is not None or call.startswith("print")
    plt.close("all")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "said"), REFUSED.items(), ids=list(REFUSED))
def test_a_call_is_refused_in_words(call: str, said: str, names: dict[str, Any]) -> None:
    with pytest.raises((HetflError, OSError, AttributeError), match=f"(?s){said}"):
        eval(call, dict(names))


def test_ninety_calls_are_tried() -> None:
    assert len(WORK.strip().splitlines()) + len(REFUSED) >= 90
