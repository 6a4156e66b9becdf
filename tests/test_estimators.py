"""Estimators of scikit-learn beside federated methods: fitted per site, paired by seed, measured like the rest."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import LinearSVC

from hetfl_core import Federation, baselines, compare, simulate, tune
from hetfl_core.datasets import heart
from hetfl_core.estimators import InOnePlace, PerSite
from hetfl_core.methods import Local
from hetfl_core.networks import MLP, Model

QUICK = {"rounds": 1, "device": "cpu", "progress": False, "n_jobs": 1}
ALONE = Local(Model(MLP((4,), 4)), local_epochs=1)


def made(seed: int = 0) -> Federation:
    return heart.hospitals(made=True, seed=seed)


def rows(client, split="train"):
    return getattr(client, f"x_{split}").numpy().astype(float), getattr(client, f"y_{split}").numpy()


def test_each_site_has_the_estimator_that_scikit_learn_would_fit_there() -> None:
    fed, model = made(), LogisticRegression(C=0.1, max_iter=1000)
    run = simulate(fed, PerSite(model), metric=["auc", "log_loss"])
    for client, found in zip(fed, run.per_client.to_dict("records"), strict=True):
        mine = LogisticRegression(C=0.1, max_iter=1000).fit(*rows(client))
        x, y = rows(client, "test")
        p = mine.predict_proba(x)
        assert found["accuracy"] == pytest.approx(mine.score(x, y))
        assert found["auc"] == pytest.approx(roc_auc_score(y, p[:, 1]))
        assert found["log_loss"] == pytest.approx(log_loss(y, p))
    assert not hasattr(model, "coef_"), "a copy was fitted"
    assert run.settings["method"]["estimator"]["C"] == 0.1
    assert (run.final["bytes_up"], run.final["bytes_down"]) == (0, 0)


def test_estimators_are_compared_with_methods_on_the_view_that_each_is_to_have() -> None:
    logistic = LogisticRegression(max_iter=1000)
    methods = {
        "own": logistic,
        "common": (logistic, "common"),
        "blocks": (logistic, "blocks"),
        "pooled": (InOnePlace(logistic), "common"),
        "Local": ALONE,
    }
    table = compare(made, methods, seeds=3, metric=["accuracy", "auc"], base="own", **QUICK)
    each = [simulate(made(s).of_common_columns(), PerSite(logistic)).final["accuracy"] for s in range(3)]
    assert table.loc[("accuracy", "common"), "mean"] == pytest.approx(100 * np.mean(each))
    assert table.loc[("auc", "blocks"), "difference"] == pytest.approx(0, abs=1e-3), "the same columns in another order"
    assert table["seeds"].eq(3).all()


def test_all_rows_in_one_place_are_one_fit() -> None:
    fed = made().of_common_columns()
    run = simulate(fed, InOnePlace(LogisticRegression(max_iter=1000)))
    x, y = (np.concatenate(part) for part in zip(*map(rows, fed), strict=True))
    model = LogisticRegression(max_iter=1000).fit(x, y)
    assert run.per_client["accuracy"].to_list() == pytest.approx([model.score(*rows(c, "test")) for c in fed])
    assert run.final["bytes_up"] == sum(4 * c.x_train.numel() + c.y_train.nbytes for c in fed)
    with pytest.raises(ValueError, match="wants the same features on all clients, but 'Cleveland' and 'Budapest'"):
        compare(made(), {"pooled": InOnePlace(LogisticRegression()), "Local": ALONE}, seeds=3, **QUICK)


def test_random_numbers_come_from_the_seed_and_from_the_client() -> None:
    fed = made()
    forest = RandomForestClassifier(5, random_state=0)
    runs = [simulate(fed, PerSite(forest), seed=seed, metric=["auc"]) for seed in (1, 1, 2)]
    assert runs[0].per_client.equals(runs[1].per_client)
    assert not runs[0].per_client["auc"].equals(runs[2].per_client["auc"])
    one = Federation.from_arrays(dict.fromkeys("ab", rows(fed[0])), test_size=0)
    states = [PerSite(forest).learn(*rows(c), c.name).shares(rows(c)[0]) for c in one]
    assert not np.array_equal(*states), "two sites with the same rows have forests of their own"


def test_what_draws_no_random_number_counts_once_for_the_same_data() -> None:
    methods = {"forest": RandomForestClassifier(5), "svc": LinearSVC(), "lr": LogisticRegression(max_iter=1000)}
    table = compare(made(), methods, seeds=3, **QUICK)
    assert table["seeds"].to_dict() == {"forest": 3, "svc": 1, "lr": 1}


def test_decision_values_put_rows_in_order_and_are_no_probabilities() -> None:
    fed = made()
    run = simulate(fed, PerSite(LinearSVC()), metric=["auc"])
    model = LinearSVC().fit(*rows(fed[0]))
    x, y = rows(fed[0], "test")
    assert run.per_client["auc"][0] == pytest.approx(roc_auc_score(y, model.decision_function(x)), abs=1e-6)
    with pytest.raises(ValueError, match="LinearSVC tells no class probabilities, of which log_loss is formed"):
        simulate(fed, PerSite(LinearSVC()), metric=["auc", "log_loss"])


def test_a_pipeline_finds_columns_by_their_names() -> None:
    fed = made()
    by_name = make_pipeline(
        make_column_transformer((StandardScaler(), ["age", "thalach"])), LogisticRegression(max_iter=1000)
    )
    run = simulate(fed, PerSite(by_name))
    client = fed[0]
    table, y = pd.DataFrame(rows(client)[0], columns=client.features), client.y_train.numpy()
    few = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(table[["age", "thalach"]], y)
    tested = pd.DataFrame(rows(client, "test")[0], columns=client.features)[["age", "thalach"]]
    assert run.per_client["accuracy"][0] == pytest.approx(few.score(tested, client.y_test.numpy()))


def test_numbers_are_told_by_regressors() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    fed = Federation.from_arrays({"a": (x, x @ [1.0, 2.0, 3.0] + rng.normal(size=60))}, task="regression")
    table = compare(fed, {"ridge": Ridge(), "line": LinearRegression()}, seeds=3, metric=["mse", "mae"], **QUICK)
    line = LinearRegression().fit(*rows(fed[0]))
    x, y = rows(fed[0], "test")
    assert table.loc[("mse", "line"), "mean"] == pytest.approx(mean_squared_error(y, line.predict(x)))
    with pytest.raises(ValueError, match="is a regression: expected a regressor, got LogisticRegression"):
        compare(fed, {"a": LogisticRegression(), "b": Ridge()}, seeds=3, **QUICK)


class Broken(ClassifierMixin, BaseEstimator):
    """Fits, or does not."""

    def __init__(self, fits: bool = False) -> None:
        self.fits = fits

    def fit(self, x, y):
        if not self.fits:
            raise KeyError("nothing to fit")
        self.classes_ = np.unique(y)
        return self

    def predict(self, x):
        raise RuntimeError("asked too much")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (PerSite(Broken()), "client 'Cleveland': Broken cannot be fitted to 242 rows: KeyError: 'nothing to fit'"),
        (PerSite(Broken(True)), "client 'Cleveland': Broken cannot be asked about 61 rows: RuntimeError: asked too"),
        (PerSite(LinearRegression()), "is a classification: expected a classifier, got LinearRegression"),
    ],
)
def test_errors_name_the_client_and_the_estimator(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(heart.hospitals(made=True, test_size=0.2), given)


def test_a_site_with_one_class_names_it_always() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    arrays = {"one": (x, np.ones(20, int)), "two": (x, np.arange(20) % 2)}
    run = simulate(Federation.from_arrays(arrays), PerSite(LogisticRegression()), metric=["log_loss"])
    assert run.per_client["accuracy"][0] == 1
    with pytest.raises(TypeError, match=r"estimator must have fit and predict, .* \(without brackets\)"):
        PerSite(LogisticRegression)


def test_an_estimator_that_lacks_another_one_is_told_so() -> None:
    """Its ``fit`` is that of the estimator within, so that it seems to have none."""
    fed = Federation.from_arrays({"a": (np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2)})
    for call in (
        lambda one: PerSite(one),
        lambda one: compare(fed, {"lacking": one, "base": baselines.LDA()}, seeds=3, progress=False),
        lambda one: tune(fed, one, {"threshold": [0.7, 0.8]}, progress=False),
    ):
        with pytest.raises(
            TypeError, match="whose estimator is None: say which it is to work with, such as estimator="
        ):
            call(SelfTrainingClassifier())
    with pytest.raises(TypeError, match=r"must be a method .*, an estimator .* got StandardScaler\(\)$"):
        compare(fed, {"no estimator": StandardScaler(), "base": baselines.LDA()}, seeds=3, progress=False)
