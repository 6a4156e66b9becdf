"""Settings are chosen on validation rows of the training rows, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hetfl_core import Federation, simulate, tune
from hetfl_core.baselines import LDA
from hetfl_core.datasets import heart
from hetfl_core.estimators import InOnePlace, PerSite
from hetfl_core.learners import Federated
from hetfl_core.methods import FedAvg, HyFEM, Local
from hetfl_core.networks import MLP, Model
from hetfl_core.tuning import SEEDS, held_out

FED = heart.hospitals(made=True)
QUICK = {"rounds": 1, "device": "cpu", "progress": False, "n_jobs": 1}
SMALL = FedAvg(Model(MLP((8,), 6)), local_epochs=1)


def spoiled(federation: Federation) -> Federation:
    """The same training rows, and test rows of noise with labels turned around."""
    rng = np.random.default_rng(0)

    def of(client):
        noise = torch.from_numpy(rng.normal(size=tuple(client.x_test.shape))).to(client.x_test)
        return replace(client, x_test=noise, y_test=1 - client.y_test)

    return Federation([of(c) for c in federation], federation.n_classes, federation.name, federation.info)


@pytest.mark.parametrize(
    ("entry", "grid"),
    [
        ((SMALL, "common"), {"lr": [0.001, 0.1], "last_step": ["shared", "own"]}),
        (LogisticRegression(max_iter=1000), {"C": [0.01, 1.0]}),
    ],
)
def test_other_test_rows_change_nothing(entry, grid) -> None:
    found, other = (tune(fed, entry, grid, **QUICK) for fed in (FED, spoiled(FED)))
    assert found.table.equals(other.table)
    assert found.setting == other.setting


def test_validation_rows_are_training_rows_cut_off_in_the_proportion_of_the_classes() -> None:
    cut = held_out(FED, 0.3, 7)
    for client, whole in zip(cut, FED, strict=True):
        together = torch.cat([client.x_train, client.x_test])
        assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, whole.x_train.tolist()))
        assert len(client.y_test) == np.ceil(0.3 * whole.n_train)
        shares = [float(y.double().mean()) for y in (client.y_train, client.y_test)]
        assert shares[0] == pytest.approx(shares[1], abs=1 / len(client.y_test))
    assert (cut.name, cut.info["held_out"]) == ("heart.hospitals, validation", 0.3)
    assert held_out(FED, 0.3, 7).fingerprint() == cut.fingerprint() != held_out(FED, 0.3, 8).fingerprint()
    few = Federation.from_arrays({"a": (np.eye(4), [0, 0, 0, 1])}, test_size=0)
    assert held_out(few, 0.3, 0)[0].y_train.tolist().count(1) == 1, "a class of one row stays"


def test_the_table_has_the_measures_of_the_runs_and_the_smallest_log_loss_is_chosen() -> None:
    grid = {"C": [1e-4, 0.1, 1e4]}
    found = tune(FED, LogisticRegression(max_iter=1000), grid, metric="log loss", **QUICK)
    each = [
        [
            simulate(held_out(FED, 0.3, s), PerSite(LogisticRegression(C=C, max_iter=1000)), metric=["log_loss"])
            for s in SEEDS
        ]
        for C in grid["C"]
    ]
    expected = [np.mean([run.final["log_loss"] for run in runs]) for runs in each]
    np.testing.assert_allclose(found.table["log_loss"], expected)
    assert found.table["chosen"].to_list() == [False, True, False]
    assert (found.setting, found.chosen.C, found.edges) == ({"C": 0.1}, 0.1, {})
    better = tune(FED, LogisticRegression(max_iter=1000), grid, metric="AUC", **QUICK)
    assert better.table.loc[better.table["chosen"], "auc"].item() == better.table["auc"].max(), (
        "of an AUC more is better"
    )


def test_a_choice_at_the_edge_of_the_grid_is_said() -> None:
    grid = [{"C": [1e-6, 1e-5]}, {"C": [1e-4]}]
    assert tune(FED, LogisticRegression(), grid, **QUICK).edges == {"C": "largest"}
    assert tune(FED, LogisticRegression(), {"C": [1.0]}, **QUICK).edges == {}, "one value is no grid"


def test_runs_are_those_of_simulate_on_the_view_with_their_rounds() -> None:
    grid = {"lr": [0.01], "rounds": [1, 2], "view": ["common", "zeros"]}
    found = tune(FED, SMALL, grid, seeds=[5], **{**QUICK, "rounds": 9})
    cut = held_out(FED, 0.3, 5)
    for row in found.table.to_dict("records"):
        fed = cut.of_common_columns() if row["view"] == "common" else cut.filled()
        options = {"rounds": row["rounds"], "seed": 5, "device": "cpu", "progress": False, "metric": ["log_loss"]}
        run = simulate(fed, replace(SMALL, lr=0.01), **options)
        assert row["log_loss"] == pytest.approx(run.final["log_loss"])
    method, view = found.chosen
    assert (method.lr, view) == (0.01, found.setting["view"])


def test_every_entry_of_a_comparison_can_be_tuned() -> None:
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    assert tune(FED, pipe, {"logisticregression__C": [0.1, 1.0]}, **QUICK).chosen[-1].C in (0.1, 1.0)
    method, view = tune(FED, (HyFEM(local_epochs=1), "blocks"), {"passes": [0]}, **QUICK).chosen
    assert (method.passes, view) == (0, "blocks")
    pooled, view = tune(FED, (InOnePlace(LogisticRegression()), "common"), {"C": [0.3]}, **QUICK).chosen
    assert (pooled.estimator.C, view, type(pooled)) == (0.3, "common", InOnePlace)
    assert tune(FED, LDA(), {"view": ["own", "common"]}, metric="accuracy", **QUICK).table["accuracy"].notna().all()
    x = np.random.default_rng(0).normal(size=(40, 2))
    numbers = Federation.from_arrays({"a": (x, x[:, 0] * 3)}, task="regression")
    assert tune(numbers, Ridge(), {"alpha": [1e-3, 1e3]}, **QUICK).setting == {"alpha": 1e-3}


def test_the_table_does_not_depend_on_the_processes() -> None:
    grid = {"C": [0.1, 1.0]}
    one, two = (tune(FED, LogisticRegression(), grid, **{**QUICK, "n_jobs": n}) for n in (1, 2))
    assert one.table.equals(two.table)


def test_seeds_trained_together_choose_as_those_trained_alone(monkeypatch) -> None:
    grid, made = {"lr": [0.01, 0.1], "rounds": [1, 2]}, []
    side_by_side = Federated.run_seeds
    monkeypatch.setattr(
        Federated, "run_seeds", lambda self, data, *a: (made.append([*data]), side_by_side(self, data, *a))[1]
    )
    found = tune(FED, (SMALL, "common"), grid, seeds=[4, 9], **QUICK)
    assert made == [[4, 9]] * 4
    monkeypatch.setattr(Federated, "at_once", lambda *_: 1)
    alone = tune(FED, (SMALL, "common"), grid, seeds=[4, 9], **QUICK)
    assert len(made) == 4
    assert alone.setting == found.setting
    pd.testing.assert_frame_equal(alone.table, found.table, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.*diverged:RuntimeWarning")
def test_what_diverges_is_never_chosen() -> None:
    wild = Local(Model(MLP((), 2)), optimizer="sgd", local_epochs=3)
    found = tune(FED, wild, {"lr": [1e30, 1e-3]}, **QUICK)
    assert found.setting == {"lr": 1e-3}
    assert found.table["log_loss"].isna().to_list() == [True, False]
    with pytest.raises(ValueError, match="no setting has a finite log_loss on the validation rows"):
        tune(FED, wild, {"lr": [1e30]}, **QUICK)


@pytest.mark.parametrize(
    ("method", "grid", "message"),
    [
        (SMALL, {}, "grid must map at least one setting to its values"),
        (SMALL, {"lr": []}, r"grid\['lr'\] must have at least one value"),
        (SMALL, {"C": [1.0]}, r"grid: setting \{'C': 1\.0\}: no setting is called 'C'; there is"),
        (SMALL, {"lr": [-1.0]}, r"grid: setting \{'lr': -1\.0\}: lr must be at least 0"),
        (LogisticRegression(), {"c": [1.0]}, "no setting is called 'c'; there is C, "),
        (LogisticRegression(), {"rounds": [1]}, "no setting is called 'rounds'"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_the_setting(method, grid, message) -> None:
    with pytest.raises(ValueError, match=message):
        tune(FED, method, grid, **QUICK)


def test_measures_of_a_whole_run_and_shares_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="metric must be one of clients' own rows, such as 'log_loss', got 'server'"):
        tune(FED, SMALL, {"lr": [0.1]}, metric="server", **QUICK)
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\), got 1"):
        tune(FED, SMALL, {"lr": [0.1]}, share=1, **QUICK)
