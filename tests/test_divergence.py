"""A model whose outputs are not numbers has no accuracy, and no mean is formed over it in silence."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from hetfl_book import ledger
from hetfl_book.calibration import reliability
from hetfl_book.ledger import results
from hetfl_core import Client, Federation, adapt, compare, simulate
from hetfl_core.engine.evaluation import METRICS, decided, per_client, summarise
from hetfl_core.methods import FedAvg, FedCR, Local
from hetfl_core.networks import MLP, Model
from hetfl_core.statistics import NoPairsError

SMALL = Model(MLP(hidden=(6,), out=4), alpha=4)
QUICK = {"rounds": 3, "device": "cpu", "progress": False}
SGD = {"model": SMALL, "optimizer": "sgd", "lr": 0.1, "local_epochs": 1}


def federation(task="classification", *, bad=("b",), n_test=10, **options):
    """Three clients; inputs of the `bad` ones are so large that a step of SGD leaves float32."""
    clients = []
    for i, name in enumerate("abc"):
        rng = np.random.default_rng(i)
        x, y = rng.normal(size=(40, 4)) * (1e20 if name in bad else 1), np.arange(40) % 3
        y = y.astype(float) + rng.normal(size=40) if task == "regression" else y
        clients.append(Client(x[n_test:], y[n_test:], x[:n_test], y[:n_test], name))
    return Federation(clients, 0 if task == "regression" else 3, "three", task=task, **options)


def diverges(fed, method, **options):
    with pytest.warns(RuntimeWarning, match="training diverged") as told:
        run = simulate(fed, method, **{**QUICK, **options})
    assert len(told) == 1, "it is said once"
    return run, str(told[0].message)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_means_over_clients_are_nan_and_the_others_keep_their_figures(task, engine):
    main = METRICS[task].main
    run, said = diverges(federation(task), Local(**SGD), engine=engine)
    each = run.per_client.set_index("client")[main]
    assert each.isna().to_dict() == {"a": False, "b": True, "c": False}
    for name in (main, f"{main}_weighted", f"{main}_worst", f"train_{main}"):
        assert math.isnan(run.final[name]), name
    assert run.final["diverged"] == 1
    assert run.history[main][1:].isna().all()
    assert run.history[f"train_{main}"][1:].isna().all()
    assert math.isfinite(run.history[main][0])
    assert "in round 1 on client 'b': " in said
    assert "(lr)" in said
    assert "(clip)" in said
    sound = simulate(federation(task, bad=()), Local(**SGD), engine=engine, **QUICK)
    assert each.drop("b").to_list() == sound.per_client.set_index("client")[main].drop("b").to_list()
    assert "diverged" not in sound.final


@pytest.mark.parametrize(("every", "epochs"), [(1, 1), (1, 3), (3, 3)])
def test_the_client_is_named_that_spoilt_the_mean(every, epochs):
    """After a round of averaging nobody has numbers; evaluated late or not, by parameters that are huge or NaN."""
    method = FedAvg(**SGD | {"local_epochs": epochs})
    run, said = diverges(federation(), method, evaluate_every=every, metric=("own", "server"))
    assert "FedAvg, seed 0: training diverged in round 1 on client 'b': " in said
    assert run.per_client["accuracy"].isna().all()
    assert math.isnan(run.final["server_accuracy"])
    assert run.final["diverged"] == 3
    assert run.history.filter(like="accuracy").iloc[-1].isna().all()


def test_the_server_and_held_classes_and_validation_have_no_figure_either():
    fed = federation(bad=("c",))
    lacks = [replace(c, y_train=torch.where(c.y_train == 2, 0, c.y_train)) if c.name == "c" else c for c in fed]
    own = fed[0]
    with warnings.catch_warnings(action="ignore"):
        fed = Federation(lacks, 3, "lacks", x_test=own.x_test, y_test=own.y_test)
        run = simulate(fed, FedAvg(**SGD), validation=fed, metric=("held", "server"), **QUICK)
    names = ("held_accuracy", "server_accuracy", "validation_accuracy")
    assert np.isnan([run.final[name] for name in names]).all()
    assert math.isfinite(run.final["attainable_accuracy"])
    assert run.per_client["held_accuracy"].isna().all()
    alone = simulate(fed, Local(**SGD, clip=1e-9), **QUICK)
    assert math.isfinite(alone.final["held_accuracy"]), "the same, had it not diverged"


def test_a_held_mean_does_not_leave_out_who_diverged():
    fed = federation()
    lacks = [replace(c, y_train=torch.where(c.y_train == 2, 0, c.y_train)) if c.name == "a" else c for c in fed]
    with warnings.catch_warnings(action="ignore"):
        run = simulate(Federation(lacks, 3, "lacks"), Local(**SGD), **QUICK)
    assert run.per_client["held_accuracy"].isna().to_list() == [False, True, False]
    assert math.isnan(run.final["held_accuracy"])


def test_a_method_that_predicts_at_random_and_a_federation_without_test_samples():
    run, _ = diverges(federation(n_test=0), Local(**SGD))
    assert math.isnan(run.final["train_accuracy"])
    assert run.final["diverged"] == 1
    assert repr(run).endswith(": diverged)")
    run, said = diverges(federation(), FedCR(**SGD | {"model": Model(MLP(hidden=(6,), out=4), gaussian=4)}))
    assert math.isnan(run.final["accuracy"])
    assert "in round 1" in said


def test_who_joins_a_run_that_diverged_has_no_figure():
    run, _ = diverges(federation(), FedAvg(**SGD))
    new = replace(federation(bad=())[0], name="new")
    with pytest.warns(RuntimeWarning, match="diverged in round 0 on client 'new': ") as told:
        joined = adapt(run, new, progress=False)
    assert len(told) == 1
    assert math.isnan(joined.final["accuracy"])


def test_a_resumed_run_names_the_round_in_which_it_began(tmp_path):
    before, _ = diverges(federation(), FedAvg(**SGD), rounds=2, checkpoint=tmp_path)
    run, said = diverges(federation(), FedAvg(**SGD), rounds=4, checkpoint=tmp_path)
    assert "diverged in round 1 on clients 'a', 'b', 'c': " in said
    assert run.history["accuracy"][:3].equals(before.history["accuracy"])


def test_its_record_holds_none_loads_and_is_no_number(tmp_path):
    run, _ = diverges(federation(), Local(**SGD))
    path = ledger.write(ledger.RunRecord.of(run, "t/lost", "paper", method="Local"), tmp_path)
    record = ledger.read(path)
    assert [record.metrics[name] for name in ("accuracy", "accuracy_worst", "balanced_accuracy")] == [None] * 3
    assert record.metrics["diverged"] == 1
    assert record.history["accuracy"][1:] == [None] * 3
    assert record.per_client["accuracy"][1] is None
    assert math.isnan(ledger.value(record, "accuracy"))
    assert results.diverged([record], "t/lost", "Local") == [0]
    with pytest.raises(NoPairsError, match="no seed has 'accuracy'"):
        ledger.paired([record, replace(record, method="B")], "t/lost", "Local", "B")


def test_a_comparison_counts_the_runs_that_diverged_and_forms_no_mean_over_them():
    """Of three seeds one diverges: the mean of the others would flatter."""
    methods = {"A": Local(**SGD), "B": Local(**SGD | {"local_epochs": 2}), "base": Local(**SGD | {"lr": 0.01})}
    with pytest.warns(RuntimeWarning, match="training diverged"):
        table = compare(
            lambda s: federation(bad=("b",) if s == 1 else ()),
            {"A": methods["A"], "C": FedAvg(**SGD)},
            seeds=3,
            **QUICK,
        )
    assert table["diverged"].to_list() == [1, 1]
    assert table.drop(columns=["seeds", "diverged"]).isna().all(axis=None)
    sound = compare(federation(bad=()), methods, seeds=3, **QUICK)
    assert sound["diverged"].to_list() == [0, 0, 0]
    lost = {"lost": Local(**SGD | {"lr": 1e30}), **methods}
    with pytest.warns(RuntimeWarning, match="training diverged"):
        table = compare(federation(bad=()), lost, seeds=3, **QUICK)
    assert table["diverged"].to_dict() == {"lost": 3, "A": 0, "B": 0, "base": 0}
    assert table.loc["lost"].drop(["seeds", "diverged"]).isna().all()
    assert table.loc["lost", ["seeds"]].item() == 3
    columns = ["mean", "sd", "difference", "low", "high", "p", "seeds"]
    assert table.loc[list(methods), columns].equals(sound[columns])
    assert table.loc["A", "p_holm"] >= sound.loc["A", "p_holm"], "it is a try all the same"


def test_scores_that_are_not_finite_decide_nothing():
    scores = torch.tensor([[[0.0, 2.0], [math.nan, 1.0], [3.0, math.inf]], [[1.0, 0.0]] * 3])
    np.testing.assert_array_equal(decided(scores).numpy(), [[1, np.nan, np.nan], [0, 0, 0]])
    assert decided(scores[1]).dtype == torch.int64
    predicted, labels = (
        [np.array([1.0, np.nan]), np.array([0, 1]), np.array([])],
        [np.array([1, 1])] * 2 + [np.array([])],
    )
    np.testing.assert_array_equal(per_client(predicted, labels)["accuracy"], [np.nan, 0.5, np.nan])
    assert np.isnan(list(summarise(predicted, labels).values())).all()
    assert summarise(predicted[1:], labels[1:])["accuracy"] == 0.5, "who has no samples is left out"
    known = np.array([0.0, 1.0])
    assert np.isnan(per_client([np.array([np.inf, 1.0])], [known], "regression")["r2"])


def test_probabilities_of_a_run_that_diverged_are_nan_and_calibration_says_so():
    run, _ = diverges(federation(), Local(**SGD))
    p, y = run.probabilities(), run.labels("test")
    assert {name: bool(np.isnan(each).any()) for name, each in p.items()} == {"a": False, "b": True, "c": False}
    with pytest.raises(ValueError, match=r"probabilities must be numbers, got NaN in 10 of 10 rows: training diverged"):
        reliability(p["b"], y["b"])
