"""What a person asks of a run that is over: labels for new rows, a score, a figure, a report."""

from __future__ import annotations

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss

from hetfl_core import Federation, simulate
from hetfl_core.engine.run import Run
from hetfl_core.methods import FedAvg, Local
from hetfl_core.networks import MLP, Model

SMALL = FedAvg(Model(MLP((4,), 4)), local_epochs=1)


def table(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = pd.DataFrame(rng.normal(size=(2 * n, 3)), columns=["a", "b", "c"])
    found["ill"] = np.where(found["a"] + rng.normal(size=2 * n) > 0, "yes", "no")
    return found.assign(site=np.repeat(["Porto", "Rome"], n))


@cache
def federation() -> Federation:
    return Federation.from_frame(table(), client="site", target="ill", seed=0)


@cache
def ran() -> Run:
    return simulate(federation(), SMALL, rounds=2, metric=["auc"], progress=False)


def test_labels_of_new_rows_are_those_of_the_trained_models() -> None:
    rows, run = table().head(7)[["c", "a", "b"]], ran()
    said = run.predict(rows, "Rome")
    assert set(said) <= {"yes", "no"}
    pd.testing.assert_series_equal(said, run.trained().predict(rows, "Rome"))
    shares = run.predict_proba(rows, "Rome")
    assert shares.idxmax(axis=1).tolist() == said.tolist()
    with pytest.raises(ValueError, match=r"client must be one of \['Porto', 'Rome'\], got None"):
        run.predict(rows)


@pytest.mark.parametrize("split", ["train", "test"])
def test_who_asks_for_the_clients_own_samples_is_sent_there(split: str) -> None:
    with pytest.raises(ValueError, match=rf"rows must be a table or an array, got '{split}'.*run\.outputs\('test'\)"):
        ran().predict(split)
    assert {name: z.shape[1] for name, z in ran().outputs("test").items()} == {"Porto": 2, "Rome": 2}


def test_a_score_is_the_mean_over_clients() -> None:
    run = ran()
    right = [accuracy_score(y, run.outputs("test")[name].argmax(1)) for name, y in run.labels("test").items()]
    assert run.score() == pytest.approx(np.mean(right))
    assert run.score("roc_auc") == run.final["auc"]
    losses = [log_loss(y, run.probabilities("test")[name]) for name, y in run.labels("test").items()]
    assert "log_loss" not in run.final
    assert run.score("log loss") == pytest.approx(np.mean(losses), rel=1e-6)
    with pytest.raises(ValueError, match=r"metric must be one of .* got 'acuracy' \(did you mean 'accuracy'\?\)"):
        run.score("acuracy")


def test_a_figure_has_the_rounds_that_were_measured() -> None:
    axes = ran().plot("roc_auc")
    (line,) = axes.lines
    assert line.get_xydata().tolist() == ran().history[["round", "auc"]].to_numpy().tolist()
    _, mine = plt.subplots()
    assert ran().plot(ax=mine) is mine
    with pytest.raises(ValueError, match=r"metric must be one of .*'accuracy'.* got 'brier'"):
        ran().plot("brier")
    plt.close("all")


def test_a_report_has_each_client_and_the_worst() -> None:
    run = ran()
    lines = {line.split("  ")[0]: line.split() for line in run.report().splitlines()}
    assert lines["Rome"][-1] == f"{run.per_client['auc'][1]:.3f}"
    assert lines["mean over clients"][-1] == f"{run.final['auc']:.3f}"
    assert lines["worst client"][-2:] == [f"{run.final[name]:.3f}" for name in ("accuracy_worst", "auc_worst")]
    assert f"sent up {run.final['bytes_up']:,.0f} bytes".replace(",", " ") in run.report()


def test_a_regression_and_an_estimator_are_reported_too() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    numbers = Federation.from_arrays({"a": (x, x[:, 0] * 3)}, task="regression")
    run = simulate(numbers, Local(Model(MLP((4,), 4)), local_epochs=1), rounds=1, progress=False)
    assert run.score() == run.final["mse"]
    assert run.score("r2") == pytest.approx(run.per_client["r2"][0])
    assert "mse" in run.report()
    alone = simulate(federation(), LogisticRegression())
    assert repr(alone).startswith("Run(LogisticRegression on 'federation': accuracy ")
    assert "sent up 0 bytes" in alone.report()
