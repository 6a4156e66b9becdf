import contextlib
import functools
import io
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_squared_error, r2_score
from small import assert_same_tensors, equal_histories, largest_difference, ragged

from hetfl_core import simulate, simulate_seeds
from hetfl_core.datasets import toy
from hetfl_core.engine import checkpoint, evaluation, prediction, simulation, trainer
from hetfl_core.engine.checkpoint import CheckpointError
from hetfl_core.engine.newcomers import adapt
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator, _similar
from hetfl_core.federation import Client, Federation, FederationWarning
from hetfl_core.methods import FLIC, FedAvg, FedAvgFT, FedHeNN, FedRep, HetFedRep, Local
from hetfl_core.networks import CNN, MLP, Draw, Model

SMALL = Model(MLP(hidden=(8,), out=6), alpha=5)
QUICK = FLIC(model=SMALL, local_epochs=1, batch_size=8, pretrain_epochs=1)


def run(fed=None, method=QUICK, **options):
    options = {"rounds": 4, "participation": 0.5, "device": "cpu", "progress": False} | options
    return simulate(fed if fed is not None else ragged(), method, **options)


uninterrupted = functools.cache(run)
"""A run that nothing stopped, which tests compare with others and leave as it is."""


@pytest.fixture(scope="module")
def one_round(tmp_path_factory):
    run(rounds=1, checkpoint=(folder := tmp_path_factory.mktemp("one round")))
    return folder


@pytest.fixture
def begun(one_round, tmp_path):
    """A folder with the checkpoint of a run after one round."""
    return shutil.copytree(one_round, tmp_path / "begun")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number of at least 1, got 2.5"),
        ({"participation": 0.0}, r"participation must lie in \(0, 1\], got 0.0"),
        ({"participation": 1.1}, r"participation must lie in \(0, 1\], got 1.1"),
        ({"participation": 0.1}, r"participation=0.1 of 6 clients selects no client; it must be at least 0.1667"),
        ({"engine": "fast"}, r"engine must be one of 'auto', 'stacked', 'loop', got 'fast'"),
        ({"evaluate_every": 0}, "evaluate_every must be a whole number of at least 1, got 0"),
        (
            {"evaluate_every": []},
            r"evaluate_every must name a round in 1…4, or the number of rounds between .* got \[\]",
        ),
        ({"evaluate_every": [7]}, r"evaluate_every must name a round in 1…4, .* got \[7\]"),
        ({"evaluate_every": (1, 0)}, "evaluate_every must be a whole number of at least 1, got 0"),
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ({"stack_size": 0}, "stack_size must be a whole number of at least 1, got 0"),
        ({"threads": 10**6}, "threads must be at most"),
        ({"progress": "no"}, "progress must be True or False, got 'no'"),
        ({"on_round": 3}, "on_round must be callable, got 3"),
        ({"seed": 1.7}, "seed must be a whole number of at least 0, got 1.7"),
        ({"seed": "3"}, "seed must be a whole number of at least 0, got '3'"),
        ({"participation": "0.5"}, r"participation must lie in \(0, 1\], got '0.5'"),
        ({"dtype": "float64"}, "dtype must be a floating-point type such as torch.float64, got 'float64'"),
        ({"device": "foo"}, "device must be 'auto', 'cpu', 'cuda' .* got 'foo'"),
    ],
)
def test_bad_arguments(bad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run(**bad)


def test_by_default_every_client_takes_part():
    """A tenth of them, as the papers have it, is nobody where there are fewer than ten."""
    result = simulate(ragged(n_clients=3), Local(model=SMALL, local_epochs=1), rounds=1, progress=False)
    assert result.settings["participation"] == 1.0


def mixed():
    """Two clients with vectors and one with images."""
    image = Client(torch.rand(6, 1, 16, 16), [0, 1, 2, 0, 1, 2], torch.rand(2, 1, 16, 16), [0, 1], "image")
    return Federation([*ragged(n_clients=2), image], 5)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_each_client_gets_the_network_of_its_own_inputs(engine):
    """``phi="auto"``: images a CNN, vectors an MLP, in one federation, as if each were named."""
    fed, quick = mixed(), FLIC(Model(phi="auto", alpha=5), local_epochs=1, pretrain_epochs=1)
    together = run(fed, quick, rounds=1, participation=1.0, engine=engine)
    assert together.settings["method"]["model"]["phi"] == {"class": "Auto", "out": 64}
    shapes = [params["phi.0.weight"].shape for params in together.params]
    assert shapes[2] == (25, 32), "kernels of 5 × 5"
    assert [shape[1] for shape in shapes[:2]] == [64, 64]
    assert [z.shape[1] for z in together.embed().values()] == [64] * 3


@pytest.mark.parametrize(("images", "network"), [(False, MLP()), (True, CNN())])
def test_the_usual_network_is_the_one_of_the_same_name(images, network):
    fed = ragged(n_clients=2, images=images)
    auto, named = (run(fed, Local(model, local_epochs=1), rounds=1) for model in (Model(), Model(network)))
    assert largest_difference(auto, named) == 0
    assert auto.settings == named.settings, "a record names the network that was used"


def test_inputs_without_a_usual_network_name_the_client_and_the_remedy():
    odd = Client(torch.zeros(4, 3, 7), [0, 1, 0, 1], torch.zeros(1, 3, 7), [0], "odd")
    with pytest.raises(ValueError, match=r"client 'odd': .* phi='auto' .* got \(3, 7\) .* Model\(phi=MLP\(\)\)"):
        run(Federation([odd]), Local(), participation=1.0)
    run(Federation([odd]), Local(Model(phi=MLP()), local_epochs=1), rounds=1, participation=1.0)


def test_labels_go_with_the_embedding():
    result = run(method=Local(model=SMALL, local_epochs=1), rounds=1)
    for split in ("train", "test"):
        embedded, labels = result.embed(split), result.labels(split)
        assert list(embedded) == list(labels)
        for client in result.federation:
            assert len(embedded[client.name]) == len(labels[client.name])
            np.testing.assert_array_equal(labels[client.name], getattr(client, f"y_{split}"))


def test_one_client_may_be_all_that_takes_part():
    """1/6 of 6 is 1; and so is 0.29 of 100 twenty-nine, though 0.29 · 100 < 29 in floating point."""
    assert run(rounds=1, participation=1 / 6).history["bytes_up"].iloc[1] > 0
    names = [f"client-{i}" for i in range(100)]
    assert len(participants(names, 0.29, 0, 0)) == 29


@pytest.mark.parametrize(
    "bad", [{"local_epochs": 0}, {"batch_size": 0}, {"alignment_weight": -1.0}, {"anchor_variance": 0.0}]
)
def test_bad_settings_of_a_method(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FLIC(**bad)


def test_clients_that_are_evaluated_together_have_similar_numbers_of_samples():
    """So padded rows at most double the work of an evaluation."""
    n = [5, 40, 0, 21, 19, 20, 100, 0]
    assert _similar(n, 10) == [[6], [1, 3, 5], [4], [0], [2, 7]]
    assert _similar(n, 2) == [[6], [1, 3], [5, 4], [0], [2, 7]]


def test_predictions_come_back_in_the_order_of_the_federation():
    """Against the same predictions client by client, with numbers of samples that differ by more than half."""
    fed = ragged(sizes=(7, 80))
    simulator = Simulator(fed, QUICK, device="cpu", dtype=torch.float64)
    state = simulator.initial()
    for split in ("train", "test"):
        together = simulator.predicted(state, split)
        for client, params, received, labels in zip(
            simulator.federation, simulator.working(state), simulator.downloads(state), together, strict=True
        ):
            alone = QUICK.predict(params, received, getattr(client, f"x_{split}")).argmax(1)
            np.testing.assert_array_equal(labels, alone.numpy())


def test_a_federation_is_needed():
    with pytest.raises(TypeError, match=r"federation must be a Federation, got \[\] of type list$"):
        simulate([], Local())
    with pytest.raises(TypeError, match=r"method must be an object, such as Local\(\), got the class Local"):
        simulate(ragged(), Local)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_run_that_diverged_says_so(engine):
    """NaN has an argmax too, the first class: an accuracy that looks like any other."""
    options = {"rounds": 1, "participation": 0.5, "engine": engine, "device": "cpu", "progress": False}
    with pytest.warns(RuntimeWarning, match="seed 0: training diverged in round 0 on clients 'client-") as told:
        result = simulate(ragged(), replace(QUICK, lr=1e30), **options)
    assert [warning.filename for warning in told] == [__file__], "where `simulate` is called"
    assert repr(result) == "Run(FLIC-HL on 'ragged', 1 rounds: diverged)"
    assert result.history[["train_accuracy", "accuracy"]].isna().all(axis=None)
    assert np.isnan([value for name, value in result.final.items() if "accuracy" in name]).all()
    assert result.per_client[["accuracy", "balanced_accuracy"]].isna().all(axis=None)
    assert result.final["diverged"] == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_said():
    with pytest.raises(ValueError, match=r"device must be .* can compute here, got 'cuda': .*(CUDA|NVIDIA)"):
        run(device="cuda")


def test_feature_shapes_that_cannot_be_averaged_name_the_clients():
    with pytest.raises(
        ValueError, match=r"FedAvg averages 'phi.0.weight', .*\(\d, 64\) on 'client-0' but \(\d, 64\) on"
    ):
        run(method=FedAvg())


def test_inputs_that_no_cohort_can_take_name_the_client():
    fed = ragged(widths=(4, 4))
    wide = Client(torch.zeros(4, 1, 8, 6), [0, 1, 0, 1], torch.zeros(1, 1, 8, 6), [0], "oblong")
    small = Client(torch.zeros(4, 1, 8, 8), [0, 1, 0, 1], torch.zeros(1, 1, 8, 8), [0], "tiny")
    convolution = Local(model=Model(CNN()))
    with pytest.raises(
        ValueError, match=r"client 'oblong': Local's model cannot take inputs of shape \(1, 8, 6\): .*square"
    ):
        run(Federation([wide]), convolution, participation=1.0)
    with pytest.raises(ValueError, match=r"client 'tiny': .* images of side 8 are too small"):
        run(Federation([small]), convolution, participation=1.0)
    with pytest.raises(ValueError, match=r"client 'client-0': .* a CNN needs square images"):
        run(fed, convolution, participation=1.0)


def test_history_has_what_it_promises():
    result = uninterrupted(rounds=4)
    history = result.history
    assert history["round"].tolist() == [0, 1, 2, 3, 4]
    assert {"ce", "w2", "anchor", "train_accuracy", "accuracy", "bytes_up", "bytes_down", "seconds"} <= set(history)
    assert history["accuracy"].between(0, 1).all()
    assert (history["seconds"] > 0).all()
    assert len(result.per_client) == 6
    assert result.final["accuracy"] == pytest.approx(result.per_client["accuracy"].mean())
    weights = result.per_client["n_test"]
    assert result.final["accuracy_weighted"] == pytest.approx(
        (result.per_client["accuracy"] * weights).sum() / weights.sum()
    )


def test_bytes_are_those_of_true_shapes():
    """α: (6·5 + 5), anchors: 5 classes × 6, float32; three participants per round; pre-training and end: all six."""
    result = uninterrupted(rounds=2)
    message = 4 * (6 * 5 + 5 + 5 * 6)
    assert result.history["bytes_up"].tolist() == [0, 3 * message, 3 * message]
    assert result.history["bytes_down"].tolist() == [6 * message, 3 * message, 3 * message]
    assert result.final["bytes_up"] == 6 * message
    assert result.final["bytes_down"] == 18 * message


def test_nothing_but_the_upload_leaves_a_client():
    """What the server holds after a round is a function of the uploads alone: φ and β never reach it."""
    result = run(method=HetFedRep(model=SMALL, local_epochs=1))
    assert set(result.server) == {"alpha.weight", "alpha.bias"}
    assert run(method=Local(model=SMALL, local_epochs=1)).server == {}


def test_clients_at_rest_are_not_touched():
    fed = ragged()
    result = simulate(
        fed, Local(model=SMALL, local_epochs=1), rounds=1, participation=0.2, progress=False, device="cpu"
    )
    simulator = Simulator(fed, Local(model=SMALL, local_epochs=1), device="cpu")
    start = simulator.initial()
    chosen = participants([c.name for c in fed], 0.2, 0, 0)
    after, _ = simulator.round(start, chosen)
    for i in range(len(fed)):
        same = all(torch.equal(start.client_states[i][n], after.client_states[i][n]) for n in start.client_states[i])
        assert same == (i not in chosen)
    assert result.settings["rounds"] == 1


def with_other_test_samples(fed: Federation, first: int = 1) -> Federation:
    """The same clients, tested on samples that stand for validation samples: training samples, from the second on."""
    clients = [replace(c, x_test=c.x_train[first:], y_test=c.y_train[first:]) for c in fed]
    return Federation(clients, fed.n_classes, "validation")


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_validation_samples_are_measured_beside_the_test_samples_and_change_nothing(engine):
    fed, other = ragged(), with_other_test_samples(ragged())
    how = {"method": HetFedRep(model=SMALL, local_epochs=2, lr=0.05), "engine": engine}
    plain, beside, alone = run(**how), run(validation=other, evaluate_every=2, **how), run(other, **how)
    for evaluated in (0, 2, 4):
        assert beside.history["accuracy"][evaluated] == plain.history["accuracy"][evaluated]
        assert beside.history["validation_accuracy"][evaluated] == alone.history["accuracy"][evaluated]
    assert beside.history["validation_accuracy"].isna().tolist() == [False, True, False, True, False]
    assert alone.history["accuracy"].nunique() > 1
    assert {k: v for k, v in beside.final.items() if k not in ("seconds", "validation_accuracy")} == {
        k: v for k, v in plain.final.items() if k != "seconds"
    }
    assert beside.final["validation_accuracy"] == alone.final["accuracy"]
    assert beside.settings["validation"] == "validation"
    assert "validation_accuracy" not in plain.history
    new = adapt(beside, [replace(client, name=f"new {client.name}") for client in fed], progress=False)
    assert "validation" not in new.settings
    assert "validation_accuracy" not in new.final


def test_validation_is_the_same_clients():
    fed, other = ragged(), with_other_test_samples(ragged())
    with pytest.raises(TypeError, match="validation must be"):
        run(validation=[*other])
    with pytest.raises(ValueError, match=r"validation must have the clients of 'ragged'.* in the same order"):
        run(validation=Federation([*other][::-1], fed.n_classes))
    first = replace(other[0], x_train=other[0].x_train + 1e-6)
    with pytest.raises(ValueError, match=f"leave training samples as they are, but those of '{first.name}' differ"):
        run(validation=Federation([first, *[*other][1:]], fed.n_classes))


def test_a_checkpoint_knows_its_validation_samples(tmp_path):
    other = with_other_test_samples(ragged())
    whole = run(validation=other)
    run(rounds=2, validation=other, checkpoint=tmp_path)
    assert equal_histories(run(validation=other, checkpoint=tmp_path).history, whole.history)
    for unlike in (None, with_other_test_samples(ragged(), 2)):
        with pytest.raises(CheckpointError, match="validation"):
            run(validation=unlike, checkpoint=tmp_path)


def test_evaluate_every_leaves_gaps_but_not_at_the_ends():
    accuracy = run(evaluate_every=3).history["accuracy"]
    assert accuracy.isna().tolist() == [False, True, True, False, False]


def test_rounds_to_evaluate_may_be_named(tmp_path):
    """The start and the end besides; the rest of the history, and what is resumed, are as with any other schedule."""
    result = run(evaluate_every=(2, 1, 2, 99))
    assert result.history["accuracy"].isna().tolist() == [False, False, False, True, False]
    assert result.settings["evaluate_every"] == [1, 2, 99]
    every = uninterrupted(rounds=4).history["accuracy"]
    assert result.history["accuracy"].dropna().tolist() == every[[0, 1, 2, 4]].tolist()
    run(evaluate_every=(1, 2, 99), checkpoint=tmp_path)
    assert equal_histories(run(evaluate_every=(1, 2, 99), checkpoint=tmp_path).history, result.history)


# --- random predictions, and what else is measured --------------------------------------------------------------------


@dataclass(frozen=True)
class Shaken(FedAvg):
    """Predicts from latent points that are shaken by noise of its own, and by one draw for all samples."""

    def prediction_noise(self, spec):
        return {"each": Draw((3, 6), per="sample"), "all": Draw((6,), "uniform")}

    def predict(self, params, received, x, noise=None):
        z = self.model.embed(params, x)
        if noise is None:
            return self.model.head(params, z)
        shaken = z.unsqueeze(1) + noise["each"] + noise["all"]
        return self.model.head(params, shaken.flatten(0, 1)).unflatten(0, shaken.shape[:2]).mean(1)


SHAKEN = Shaken(model=Model(MLP(hidden=(8,), out=6)), local_epochs=1, batch_size=8)
EQUAL = ragged(widths=(4, 4))


@pytest.mark.parametrize("options", [{"engine": "loop"}, {"stack_size": 1}, {"stack_size": 4, "workers": 3}])
def test_random_predictions_depend_on_neither_engine_nor_stacks(options, monkeypatch):
    common = {"dtype": torch.float64, "metric": ["own", "server"]}
    one = run(EQUAL, SHAKEN, engine="stacked", **common)
    monkeypatch.setattr(prediction, "PREDICTED_NUMBERS", 18 * 50)  # so that few are predicted at once
    other = run(EQUAL, SHAKEN, **common, **options)
    for name, logits in one.outputs().items():
        np.testing.assert_allclose(logits, other.outputs()[name], rtol=0, atol=1e-9)
    columns = ["accuracy", "own_accuracy", "server_accuracy"]
    np.testing.assert_allclose(one.history[columns], other.history[columns])


def test_few_samples_are_predicted_at_once_where_each_wants_much_noise(monkeypatch):
    simulator = Simulator(EQUAL, SHAKEN, device="cpu", engine="stacked")
    monkeypatch.setattr(prediction, "PREDICTED_NUMBERS", 18 * 20)
    rows = simulator._pieces(simulator.cohorts[0], simulator.layouts[0], "test", range(len(simulator.specs)))
    n = simulator.cohorts[0].test.n.tolist()
    assert sorted(row for piece in rows for row in piece) == list(range(6))
    assert all(len(piece) == 1 or len(piece) * max(n[row] for row in piece) <= 20 for piece in rows)
    assert len(rows) > 1


def test_predictions_of_a_run_are_those_that_were_measured():
    """A sample's noise is that of its client, round and split: the same when asked again, another in another split."""
    result = run(EQUAL, SHAKEN)
    assert result.final["accuracy"] == result.history["accuracy"].iloc[-1] != 0
    for row in result.per_client.itertuples():
        right = result.outputs()[row.client].argmax(1) == result.labels("test")[row.client]
        assert right.mean() == pytest.approx(row.accuracy)
    assert all(np.array_equal(a, b) for a, b in zip(result.outputs().values(), result.outputs().values(), strict=True))
    silent = {c.name: SHAKEN.predict(p, {}, c.x_test) for c, p in zip(result.federation, result.params, strict=True)}
    assert all(np.abs(result.outputs()[name] - silent[name].numpy()).max() > 1e-3 for name in silent)
    parts = [prediction.prediction_noise(SHAKEN, EQUAL.specs()[0], 9, 0, 4, split, torch.float32)
             for split in ("train", "test")]  # fmt: skip
    assert parts[0]["each"].shape == (9, 3, 6)
    assert parts[0]["all"].shape == (6,)
    assert (parts[0]["all"] >= 0).all()
    assert not torch.equal(parts[0]["each"], parts[1]["each"])


def test_another_round_and_another_client_have_other_noise():
    one, two = EQUAL.specs()[:2]
    first, *others = [
        prediction.prediction_noise(SHAKEN, spec, 5, seed, round, "test", torch.float32)["each"]
        for spec, seed, round in [(one, 0, 0), (two, 0, 0), (one, 1, 0), (one, 0, 1)]
    ]
    assert not any(torch.equal(first, other) for other in others)


def test_own_models_are_measured_before_the_server_averages():
    """By hand: what comes out of local training, on the participants' own test samples."""
    method = FedAvg(model=SMALL, local_epochs=3, lr=0.02, batch_size=8)
    result, fed = run(EQUAL, method, rounds=2, evaluate_every=1, metric=("own",)), EQUAL.to(torch.float32)
    simulator = Simulator(EQUAL, method, device="cpu")
    state = simulator.initial()
    for t in range(2):
        chosen = participants([c.name for c in EQUAL], 0.5, 0, t)
        outcomes = simulator.train(state, chosen, t, "round")
        right = [
            (method.predict(outcomes[c].params, {}, fed[c].x_test).argmax(1) == fed[c].y_test).float().mean()
            for c in chosen
        ]
        assert result.history["own_accuracy"].iloc[t + 1] == pytest.approx(float(np.mean(right)))
        state, _ = simulator.round(state, chosen)
    assert np.isnan(result.history["own_accuracy"].iloc[0])
    assert result.settings["measure"] == ["own"]


def test_the_servers_model_is_measured_in_each_evaluated_round():
    """FedAvg's is every client's model; Local's server has none; what is not asked for costs no column."""
    history = run(EQUAL, FedAvg(model=SMALL), evaluate_every=2, metric=["server"]).history
    assert history["server_accuracy"].isna().tolist() == [True, True, False, True, False]
    after = history.iloc[[2, 4]]
    np.testing.assert_allclose(after["server_accuracy"], after["accuracy"])
    assert run(EQUAL, Local(model=SMALL), metric=["server"]).history["server_accuracy"].isna().all()
    assert not {"own_accuracy", "server_accuracy"} & set(run(EQUAL, Local(model=SMALL)).history)


def test_measuring_more_changes_nothing_else(tmp_path):
    plain = run(EQUAL, FedAvg(model=SMALL))
    more = run(EQUAL, FedAvg(model=SMALL), metric=["server", "own", "own"], checkpoint=tmp_path)
    assert equal_histories(plain.history, more.history[list(plain.history)])
    assert more.settings["measure"] == ["own", "server"]
    with pytest.raises(CheckpointError, match="measure"):
        run(EQUAL, FedAvg(model=SMALL), checkpoint=tmp_path)


def site(labels: str, name: str, seed: int = 0) -> Federation:
    """A table of two columns, where the first one decides the label."""
    y = np.array(list(labels) * (40 // len(labels)))
    x = np.random.default_rng(seed).normal(size=(len(y), 2)) + 3 * (y == "b")[:, None]
    return Federation.from_arrays({name: (x, y)})


def test_labels_of_newcomers_are_those_of_the_run_whatever_their_numbers():
    """Alone in a table, "b" has the number 0 there; in the run it has the number 1."""
    run = simulate(site("ab", "old"), FedRep(model=SMALL, lr=0.01), rounds=5, participation=1.0, progress=False)
    with pytest.warns(FederationWarning, match="one class"):
        new = site("b", "new")
    joined = adapt(run, new, progress=False)
    assert joined.labels("test")["new"].tolist() == [1] * len(new[0].y_test)
    with pytest.raises(ValueError, match=r"clients have the labels \['c'\], but the run knows \['a', 'b'\]"):
        adapt(run, site("bc", "new"), progress=False)


def test_a_newcomer_of_a_run_that_measured_more():
    result = run(method=replace(QUICK, model=SMALL), metric=["own"])
    old = ragged(seed=7)[0]
    new = adapt(result, Client(old.x_train, old.y_train, old.x_test, old.y_test, "new"), progress=False)
    assert "measure" not in new.settings
    assert "own_accuracy" not in new.history


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (["best"], "metric must be one of .*, got 'best'"),
        ("best", "metric must be one of .*, got 'best'"),
        (3, "metric must be a sequence, got 3"),
    ],
)
def test_what_cannot_be_measured_is_refused(bad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run(metric=bad)


def test_probabilities_are_the_softmax_of_what_is_predicted():
    result = uninterrupted(rounds=4)
    for name, p in result.probabilities("train").items():
        np.testing.assert_allclose(p.sum(1), 1)
        logits = result.outputs("train")[name].astype(float)
        np.testing.assert_allclose(np.log(p) - np.log(p[:, :1]), logits - logits[:, :1], atol=1e-6)
    with pytest.raises(ValueError, match=r"probabilities are those of classes, but .* is a regression"):
        run(REAL, Local(model=SMALL), rounds=1).probabilities()


def test_threads_are_put_back():
    seen = []
    before = torch.get_num_threads()
    run(rounds=1, threads=before + 1, on_round=lambda row: seen.append(torch.get_num_threads()))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_embeddings_and_predictions_come_client_by_client():
    fed, result = ragged(), uninterrupted(rounds=4)
    assert {n: z.shape for n, z in result.embed("train").items()} == {c.name: (c.n_train, 6) for c in fed}
    logits = result.outputs("test")
    right = [(logits[c.name].argmax(1) == c.y_test.numpy()).mean() for c in fed]
    assert sum(right) / len(right) == pytest.approx(result.final["accuracy"])


def test_a_client_without_test_samples_is_left_out_of_the_mean():
    fed = ragged()
    clients = [*fed.clients, Client(fed[0].x_train, fed[0].y_train, fed[0].x_train[:0], fed[0].y_train[:0], "no-test")]
    result = run(Federation(clients, fed.n_classes))
    assert result.per_client["accuracy"].isna().sum() == 1
    assert result.final["accuracy"] == pytest.approx(result.per_client["accuracy"].mean())


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_an_evaluation_asks_for_one_download_a_client(engine):
    asked = []

    @dataclass(frozen=True)
    class Counting(HetFedRep):
        def download(self, server, spec):
            asked.append(spec.name)
            return super().download(server, spec)

    simulator = Simulator(ragged(), Counting(model=SMALL), device="cpu", engine=engine)
    state = simulator.initial()
    asked.clear()
    simulator.predicted(state, "test")
    assert sorted(asked) == [f"client-{i}" for i in range(6)]


# --- regression -----------------------------------------------------------------------------------------------------

REAL = toy.linear_regression(6, widths=(3, 8), n_train=(10, 30), n_test=9)


@pytest.mark.parametrize("method", [Local(model=SMALL), HetFedRep(model=SMALL), FedHeNN(model=SMALL)])
def test_regression_stacked_equals_loop_and_is_measured_in_squares(method):
    method = replace(method, local_epochs=2, batch_size=8)
    both = [run(REAL, method, engine=engine, dtype=torch.float64) for engine in ("stacked", "loop")]
    assert largest_difference(*both) < 1e-9
    result = both[0]
    assert {"se", "mse", "train_mse"} <= set(result.history)
    assert not [column for column in result.history if "accuracy" in column or column == "ce"]
    assert list(result.per_client)[3:] == ["mse", "r2"]
    outputs = result.outputs("test")
    for client, row in zip(result.federation, result.per_client.itertuples(), strict=True):
        assert outputs[client.name].shape == (9, 1)
        truth, guess = client.y_test.numpy(), outputs[client.name][:, 0]
        assert row.mse == pytest.approx(mean_squared_error(truth, guess))
        assert row.r2 == pytest.approx(r2_score(truth, guess))
    assert result.final["mse"] == pytest.approx(result.per_client["mse"].mean())
    assert result.final["train_mse"] > 0
    assert "mean squared error" in repr(result)


def test_the_first_loss_of_a_regression_is_the_mean_squared_error_by_hand():
    """One epoch in one batch with a step of length 0: the loss is that of the initial model on all samples."""
    method = Local(model=SMALL, local_epochs=1, lr=0.0)
    result = run(REAL, method, rounds=1, participation=1.0, dtype=torch.float64)
    outputs = result.outputs("train")
    each = [np.mean((outputs[c.name][:, 0] - c.y_train.numpy()) ** 2) for c in result.federation]
    assert result.history["se"].iloc[1] == pytest.approx(np.mean(each))
    assert result.history["train_mse"].iloc[1] == pytest.approx(np.mean(each))


def test_a_server_model_of_a_regression_is_evaluated():
    fed = toy.linear_regression(4, widths=(5, 5), n_train=(20, 20), n_test=9)
    result = run(fed, FedAvg(model=SMALL, local_epochs=1))
    assert result.final["server_mse"] == pytest.approx(result.final["mse"]), "FedAvg has one model for all"


def test_a_regression_is_learned():
    """Half the variance of a uniform target, 1/12, is a low bar for a linear latent seen without loss."""
    fed = toy.linear_regression(3, widths=(5, 8), n_train=(100, 100))
    result = run(fed, Local(local_epochs=20, batch_size=10), rounds=3, participation=1.0)
    assert result.final["mse"] < 1 / 24
    assert result.final["r2"] > 0.5


def test_a_regression_resumes(tmp_path):
    run(REAL, HetFedRep(model=SMALL, local_epochs=1), rounds=2, checkpoint=tmp_path)
    resumed = run(REAL, HetFedRep(model=SMALL, local_epochs=1), checkpoint=tmp_path)
    assert equal_histories(resumed.history, run(REAL, HetFedRep(model=SMALL, local_epochs=1)).history)


# --- surveys --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Polls(Local):
    """Asks for the mean of the head's bias, and sends the mean answer, which the loss is pulled to."""

    surveyed: ClassVar = "participants"

    def init_server(self, specs, rng):
        return {"question": torch.zeros(3), "mean": torch.zeros(1)}

    def ask(self, server, specs, rng):
        assert [s.name for s in specs] == sorted(s.name for s in specs)
        return {"question": torch.randn(3, generator=rng)}

    def survey(self, params, received, data):
        assert list(received) == ["question"]
        return {"answer": params["beta.bias"].mean().reshape(1) * received["question"]}

    def digest(self, server, answers, weights, specs, rng):
        total = sum(w * a["answer"] for w, a in zip(weights, answers, strict=True)) / sum(weights)
        return {**server, "mean": total.sum().reshape(1)}

    def start(self, client_state, received):
        return dict(client_state)

    def loss(self, params, received, batch, noise):
        task = super().loss(params, received, batch, noise)
        return task._replace(total=task.total + (params["beta.bias"].mean() - received["mean"].sum()).square())


@dataclass(frozen=True)
class PollsAll(Polls):
    surveyed: ClassVar = "all"


POLLS = {"model": Model(MLP(hidden=(8,), out=6)), "local_epochs": 1, "batch_size": 8}


@pytest.mark.parametrize("method", [Polls(**POLLS), PollsAll(**POLLS)])
def test_a_survey_is_the_same_stacked_and_looped_and_in_any_order(method):
    fed = ragged()
    turned = Federation(fed.clients[::-1], fed.n_classes)
    stacked, loop, back = (
        run(f, method, engine=e, dtype=torch.float64) for f, e in ((fed, "stacked"), (fed, "loop"), (turned, "stacked"))
    )
    assert largest_difference(stacked, loop) < 1e-9
    assert torch.equal(stacked.server["question"], back.server["question"])
    assert largest_difference(stacked, back) < 1e-12


def test_a_survey_sees_the_models_before_training_and_training_sees_its_result():
    fed, method = ragged(), Polls(**POLLS)
    simulator = Simulator(fed, method, device="cpu", dtype=torch.float64)
    start = simulator.initial()
    after, outcomes = simulator.round(start, [1, 4])
    biases = [float(start.client_states[c]["beta.bias"].mean()) for c in (1, 4)]
    mean = np.average(biases, weights=[fed[c].n_train for c in (1, 4)]) * float(after.server["question"].sum())
    assert float(after.server["mean"]) == pytest.approx(mean)
    assert len(outcomes) == 4, "two participants, and their two answers"
    for trained, asked in ((outcomes[0], outcomes[2]), (outcomes[1], outcomes[3])):
        assert torch.equal(trained.received["mean"], after.server["mean"])
        assert list(asked.upload) == ["answer"]
    assert_same_tensors(start.server, simulator.initial().server)


def test_bytes_of_a_survey():
    """Of 4 bytes: question 3, answer 3, mean 1. A participant gets the question once, not again with the mean."""
    for method, asked in ((Polls(**POLLS), 3), (PollsAll(**POLLS), 6)):
        result = run(method=method, rounds=2)
        assert result.history["bytes_up"].tolist() == [0, 12 * asked, 12 * asked]
        assert result.history["bytes_down"].tolist() == [0, *[12 * asked + 4 * 3] * 2]
        assert result.final["bytes_down"] == 2 * (12 * asked + 4 * 3) + 6 * 16, "the last training downloads all again"


def test_a_method_without_a_survey_is_not_asked():
    simulator = Simulator(ragged(), QUICK, device="cpu")
    state = simulator.initial()
    assert simulator.survey(state, [0]) == (state, {})


def test_a_survey_resumes_bit_for_bit(tmp_path):
    run(method=PollsAll(**POLLS), rounds=2, checkpoint=tmp_path)
    resumed, whole = run(method=PollsAll(**POLLS), checkpoint=tmp_path), run(method=PollsAll(**POLLS))
    assert equal_histories(resumed.history, whole.history)
    assert largest_difference(resumed, whole) == 0


# --- new clients ----------------------------------------------------------------------------------------------------


def joiners(fed, names):
    """The federation without some clients, and those clients."""
    return fed.subset([c.name for c in fed if c.name not in names]), fed.subset(names)


@pytest.mark.parametrize("method", [QUICK, HetFedRep(model=SMALL, local_epochs=1), FedHeNN(**POLLS), Local(**POLLS)])
def test_new_clients_learn_local_parts_alone(method):
    old, new = joiners(ragged(), ["client-1", "client-4"])
    base = run(old, method, dtype=torch.float64)
    before = {name: p.clone() for name, p in base.server.items()}
    stacked, loop = (adapt(base, new, rounds=3, engine=e, progress=False) for e in ("stacked", "loop"))
    assert_same_tensors(stacked.server, before)
    assert_same_tensors(base.server, before)
    assert largest_difference(stacked, loop) < 1e-9
    assert [c.name for c in stacked.federation] == ["client-1", "client-4"]
    assert stacked.history["round"].tolist() == [0, 1, 2, 3]
    assert stacked.final["accuracy"] == stacked.history["accuracy"].iloc[-1]
    start = Simulator(new, method, device="cpu", dtype=torch.float64).initial()
    for params, kept, first in zip(stacked.params, stacked.client_states, start.client_states, strict=True):
        assert all(torch.equal(params[name], p) for name, p in kept.items())
        shared = [name for name in params if name not in kept and not name.startswith("anchor")]
        assert all(torch.equal(params[name], before[name]) for name in shared)
        assert not torch.equal(kept["phi.0.weight"], first["phi.0.weight"])


def test_a_new_client_downloads_once_and_sends_nothing():
    """α: 6·5 + 5, anchors: 5 classes × 6, float32."""
    old, new = joiners(ragged(), ["client-1", "client-4"])
    result = adapt(run(old), new, rounds=2, progress=False)
    assert result.history["bytes_down"].tolist() == [2 * 4 * (6 * 5 + 5 + 5 * 6), 0, 0]
    assert result.history["bytes_up"].tolist() == [0, 0, 0]
    assert result.final["bytes_down"] == result.history["bytes_down"].sum()


def test_passes_of_new_clients_count_on_from_the_rounds_of_the_run(monkeypatch):
    """So that each draws random numbers of its own; what is not said is as the run had it."""
    asked, train = [], trainer.train

    def watched(runs, states, chosen, round, role):
        asked.extend((list(some), round, role) for some in chosen)
        return train(runs, states, chosen, round, role)

    old, new = joiners(ragged(), ["client-1", "client-4"])
    base = run(old, rounds=3, seed=5)
    for module in (trainer, simulation):
        monkeypatch.setattr(module, "train", watched)
    result = adapt(base, new, rounds=2, progress=False)
    assert asked == [([0, 1], 0, "start"), ([0, 1], 3, "final"), ([0, 1], 4, "final")]
    told = {"seed": 5, "rounds": 2, "participation": 1.0, "evaluate_every": 1, "engine": "auto", "joined_after": 3}
    assert result.settings == base.settings | told
    assert adapt(base, new, seed=0, progress=False).settings["seed"] == 0
    assert len(adapt(base, new, progress=False).history) == 2  # pre-training and one pass
    assert result.history[["train_accuracy", "accuracy"]].notna().all(axis=None)
    assert result.final["seconds"] == pytest.approx(result.history["seconds"].sum())
    assert (result.history["seconds"] > 0).all()


def test_new_clients_do_not_depend_on_each_other():
    old, new = joiners(ragged(), ["client-1", "client-4"])
    base = run(old, dtype=torch.float64)
    both, one = adapt(base, new, rounds=2, progress=False), adapt(base, new[1], rounds=2, progress=False)
    for name, p in one.client_states[0].items():
        assert (both.client_states[1][name] - p).abs().max() < 1e-12


@pytest.mark.parametrize("method", [replace(QUICK, pretrain_epochs=0), HetFedRep(model=SMALL, local_epochs=1)])
def test_a_new_client_with_one_pass_is_a_client_that_no_round_selected(method):
    """It starts from its own stream, and the server knows nothing of it: both see the same numbers.

    But for pre-training, which aligns a new client with the anchors as they are now, not as they were at first.
    """
    fed, options = ragged(), {"rounds": 3, "participation": 0.2, "dtype": torch.float64}
    names = [c.name for c in fed]
    selected = {names[i] for t in range(3) for i in participants(names, 0.2, 0, t)}
    never = next(name for name in names if name not in selected)
    old, new = joiners(fed, [never])
    whole, joined = run(fed, method, **options), adapt(run(old, method, **options), new, progress=False)
    there = whole.params[names.index(never)]
    assert there.keys() == joined.params[0].keys()
    assert max(float((there[name] - p).abs().max()) for name, p in joined.params[0].items() if p.numel()) < 1e-12
    assert joined.settings["joined_after"] == 3


def test_a_new_client_is_well_above_chance():
    """Three well separated classes, Figure 3's toy: chance is 1/3."""
    fed = toy.noisy_features(
        n_clients=7, classes_per_client=3, n_classes=3, sigma=3.0, n_train_per_class=400, n_test_per_class=200
    )
    old, new = joiners(fed, ["client-003"])
    method = FLIC(pretrain_epochs=5, local_epochs=5)
    result = adapt(run(old, method, rounds=3), new, rounds=3, progress=False)
    assert result.final["accuracy"] > 0.8


def test_new_clients_may_have_real_targets():
    old, new = joiners(REAL, ["client-001"])
    result = adapt(run(old, HetFedRep(model=SMALL, local_epochs=1)), new, progress=False)
    assert result.federation.task == "regression"
    assert result.final["mse"] > 0


def test_who_cannot_join():
    fed = ragged(widths=(4, 4))
    old, new = joiners(fed, ["client-1"])
    base = run(old, method=FedRep(local_epochs=1))
    with pytest.raises(ValueError, match="clients must be new to the run, but 'client-0' took part in it"):
        adapt(base, old, progress=False)
    with pytest.raises(ValueError, match="rounds must be a whole number of at least 1, got 0"):
        adapt(base, new, rounds=0, progress=False)
    wide = Client(torch.zeros(3, 9), [0, 1, 2], torch.zeros(1, 9), [0], "wide")
    with pytest.raises(ValueError, match=r"FedRep averages 'phi.0.weight', .* but \(9, 64\) on 'wide'"):
        adapt(base, wide, progress=False)
    odd = Client(torch.zeros(2, 4), [0, 7], torch.zeros(1, 4), [0], "odd")
    with pytest.raises(ValueError, match="client 'odd': y_train must lie in 0…4"):
        adapt(base, odd, progress=False)
    tuned = run(old, FedAvgFT(local_epochs=1, finetune_epochs=1))
    with pytest.raises(ValueError, match=r"learns only local parts, but FedAvg-FT trains 'phi.0.weight'"):
        adapt(tuned, new, progress=False)


def test_whoever_joins_what_a_run_left_stays():
    class Meddling(FedAvg):
        def join(self, server, specs, rng):
            return {name: p + 1 for name, p in server.items()}

    old, new = joiners(ragged(widths=(4, 4)), ["client-1"])
    base = run(old, Meddling(local_epochs=1))
    with pytest.raises(ValueError, match=r"join may add tensors of new clients, but it changed '\S+', which"):
        adapt(base, new, progress=False)


def test_clients_may_join_a_run_that_diverged():
    """What is not a number is not equal to itself; it has stayed as it was all the same."""
    old, new = joiners(ragged(widths=(4, 4)), ["client-1"])
    with pytest.warns(RuntimeWarning, match="training diverged"):
        lost = run(old, FedAvg(local_epochs=1, optimizer="sgd", lr=1e30))
    assert any(p.isnan().any() for p in lost.server.values())
    with pytest.warns(RuntimeWarning, match="training diverged in round 0 on client 'client-1': "):
        adapt(lost, new, progress=False)


def test_a_new_client_of_fedavg_uses_the_servers_model():
    old, new = joiners(ragged(widths=(4, 4)), ["client-1"])
    result = adapt(run(old, FedAvg(local_epochs=1)), new, progress=False)
    assert_same_tensors(result.params[0], result.server)
    assert result.final["accuracy"] == pytest.approx(result.final["server_accuracy"])


# --- told of every round, and stopped ---------------------------------------------------------------------------------


def same_runs(a, b):
    """Whether two runs are the same bit for bit, but for the seconds."""
    assert equal_histories(a.history, b.history)
    assert {**a.final, "seconds": 0} == {**b.final, "seconds": 0}
    assert a.per_client.equals(b.per_client)
    for one, other in zip(
        [a.server, *a.client_states, *a.params], [b.server, *b.client_states, *b.params], strict=True
    ):
        assert_same_tensors(one, other)
    return True


@pytest.mark.parametrize(
    "method", [QUICK, FedAvgFT(model=SMALL, local_epochs=1, finetune_epochs=2)], ids=["FLIC", "FT"]
)
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_is_stopped_is_a_whole_run_of_so_many_rounds(method, every, tmp_path):
    """Its last round is evaluated, as that of any run, also where that was not due."""
    options = {"evaluate_every": every, "metric": ("own", "held"), "participation": 1.0}
    fed, told = ragged(widths=(4, 4)), []

    def stop(row):
        told.append(row["round"])
        return row["round"] == 2

    stopped = run(fed, method, rounds=5, on_round=stop, checkpoint=tmp_path, **options)
    assert told == [1, 2]
    assert same_runs(stopped, run(fed, method, rounds=2, **options))
    assert (stopped.settings["rounds"], stopped.settings["rounds_asked"]) == (2, 5)
    assert "2 rounds" in repr(stopped)
    assert not stopped.history.iloc[-1].isna().any()
    on = run(fed, method, rounds=5, checkpoint=tmp_path, **options)
    whole = run(fed, method, rounds=5, **options)
    assert same_runs(on, whole)
    assert on.settings == whole.settings
    assert "rounds_asked" not in on.settings


def test_a_stopped_run_is_left_in_its_checkpoint(tmp_path):
    first = run(rounds=5, evaluate_every=4, checkpoint=tmp_path, on_round=lambda row: np.bool_(row["round"] > 1))
    assert same_runs(run(rounds=2, evaluate_every=4, checkpoint=tmp_path), first)
    assert predicts_the_same(first, run(rounds=2, evaluate_every=4))


def predicts_the_same(a, b):
    return all(np.array_equal(p, q) for p, q in zip(a.outputs().values(), b.outputs().values(), strict=True))


@pytest.mark.parametrize("answer", [None, False, 0, 1, "stop", [None, None], np.False_, {"round": 1}])
def test_only_true_stops_a_run(answer):
    assert len(run(rounds=2, on_round=lambda row: answer).history) == 3


@pytest.mark.parametrize("error", [StopIteration("enough"), RuntimeError("enough"), KeyboardInterrupt("enough")])
def test_what_on_round_raises_comes_back_as_it_is(error):
    def stop(row):
        raise error

    with pytest.raises(type(error), match=r"^enough$") as raised:
        run(on_round=stop)
    assert raised.value is error


@pytest.mark.parametrize("options", [{}, {"evaluate_every": 2}, {"fed": ragged().subset(["client-1"])}])
def test_what_on_round_is_told_holds_numbers_only_and_is_its_own(options):
    """Loggers take no None; and what they do with the row does not change the run."""
    rows = []

    def log(row):
        rows.append(dict(row))
        row.clear()

    result = run(**{"participation": 1.0, "metric": ("own", "server"), **options}, on_round=log)
    assert all(type(value) in (int, float) for row in rows for value in row.values())
    every = options.get("evaluate_every", 1)
    assert ["accuracy" in row for row in rows] == [n % every == 0 for n in range(1, 5)]
    assert "server_accuracy" not in rows[-1], "FLIC has no model of the server's own"
    assert result.history["round"].to_list() == [0, 1, 2, 3, 4]
    assert result.history["accuracy"][2] == rows[1]["accuracy"]


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [simulate, simulate_seeds])
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_trained(call, tmp_path, monkeypatch):
    """Root may write anywhere, so what is in the way is a file, a device, and a link to nowhere."""
    monkeypatch.setattr(Simulator, "initial", lambda self: pytest.fail("it was trained"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "x")
    for name, blocks in (("file", "file"), ("file/a/b", "file"), ("link", "link")):
        with pytest.raises(
            CheckpointError, match=rf"checkpoint \S+{name} cannot be written to: \S+{blocks} is no folder"
        ):
            call(ragged(), QUICK, checkpoint=tmp_path / name, progress=False)
    with pytest.raises(CheckpointError, match="checkpoint /dev/null cannot be written to: /dev/null is no folder"):
        call(ragged(), QUICK, checkpoint="/dev/null", progress=False)
    with pytest.raises(TypeError, match="checkpoint must be a path, got ''"):
        call(ragged(), QUICK, checkpoint="", progress=False)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(CheckpointError, match="cannot be written to: Permission denied; choose another folder"):
        run(checkpoint=tmp_path)


def test_a_run_that_is_done_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    whole = run(checkpoint=tmp_path)
    monkeypatch.setattr(checkpoint, "check_writable", lambda folder: pytest.fail("nothing is to be written"))
    assert same_runs(run(checkpoint=tmp_path), whole)


def slowly(folder, told):
    """Twelve rounds that take their time, each told of."""

    def slow(row):
        told.send(row["round"])
        time.sleep(0.1)

    run(rounds=12, checkpoint=folder, on_round=slow)


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    folder = tmp_path / "run"
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    told, telling = context.Pipe(duplex=False)
    process = context.Process(target=slowly, args=(folder, telling))
    process.start()
    telling.close()
    last = 0
    with contextlib.suppress(EOFError):
        while True:
            last = told.recv()
            if last == 5:
                time.sleep(0.02)
                process.kill()
    process.join()
    rounds = []
    resumed = run(rounds=12, checkpoint=folder, on_round=lambda row: rounds.append(row["round"]))
    whole = uninterrupted(rounds=12)
    assert 5 <= last < 10
    assert rounds[0] in (last + 1, last + 2), "it must go on from the last complete round"
    assert equal_histories(resumed.history, whole.history)
    assert_same_tensors(resumed.server, whole.server)
    for a, b in zip(resumed.client_states, whole.client_states, strict=True):
        assert_same_tensors(a, b)
    assert {k: v for k, v in resumed.final.items() if k != "seconds"} == {
        k: v for k, v in whole.final.items() if k != "seconds"
    }


def test_the_bar_of_a_resumed_run_counts_the_rounds_of_this_one(tmp_path, monkeypatch):
    """Rounds of before are where the bar begins: counted as done just now they would make what is left look short."""
    bars = []

    class Bar(simulation.tqdm):
        def __init__(self, *args, **options):
            super().__init__(*args, file=io.StringIO(), **options)
            bars.append(self)

    monkeypatch.setattr(simulation, "tqdm", Bar)
    run(rounds=5, checkpoint=tmp_path, progress=True)
    run(rounds=8, checkpoint=tmp_path, progress=True)
    assert [(bar.initial, bar.n, bar.total) for bar in bars] == [(0, 5, 5), (5, 8, 8)]


def test_the_bar_says_what_goes_on_after_the_last_round(monkeypatch):
    """All clients train once more when the bar is full; then it shows the run's result, not that of the last round."""
    told = []

    class Bar(simulation.tqdm):
        def set_postfix_str(self, s="", refresh=True):
            told.append((self.n, s))

    monkeypatch.setattr(simulation, "tqdm", Bar)
    result = run(rounds=2, progress=True)
    assert told.pop(0) == (0, "before the first round")
    assert [n for n, _ in told] == [1, 2, 2, 2]
    assert "last training of all clients" in told[2][1]
    text = evaluation.METRICS["classification"].text
    assert told[3][1] == f"test {text(result.final['accuracy'])}"
    alone = [replace(client, x_test=client.x_test[:0], y_test=client.y_test[:0]) for client in result.federation]
    simulate(replace(result.federation, clients=alone), Local(), rounds=1, progress=True)
    assert told[5:] == [(1, ""), (1, told[2][1]), (1, "")], "without test samples there is no result to show"


@dataclass(frozen=True)
class Learning(Local):
    """A server that learns: a network of odd sizes, whose gradient steps follow the clients' heads."""

    def init_server(self, specs, rng):
        return {
            f"net.{i}": torch.randn(*shape, generator=rng) / 3 for i, shape in enumerate([(1, 3), (3, 37), (37, 11)])
        }

    def download(self, server, spec):
        return {}

    def upload(self, params, received, data, memory):
        return {"beta.bias": params["beta.bias"]}

    def aggregate(self, server, uploads, weights, specs, rng):
        target = torch.cat([upload["beta.bias"] for upload in uploads])
        net = {name: p.clone().requires_grad_() for name, p in server.items()}
        optimizer = torch.optim.Adam(net.values(), lr=0.05)
        with torch.enable_grad():
            for _ in range(5):
                optimizer.zero_grad()
                made = torch.tanh(net["net.0"] @ net["net.1"]) @ net["net.2"]
                (made.mean() - target).square().sum().backward()
                optimizer.step()
        return {name: p.detach() for name, p in net.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_server_that_learns_resumes_bit_for_bit(tmp_path, dtype):
    """Products of tensors that lie elsewhere in memory than others can differ in their last bit."""
    method = Learning(SMALL, local_epochs=1)
    options = {"rounds": 6, "participation": 0.7, "device": "cpu", "progress": False, "dtype": dtype}
    whole = simulate(ragged(), method, **options)
    for stop in (1, 3, 5):
        simulate(ragged(), method, checkpoint=tmp_path / str(stop), **{**options, "rounds": stop})
        resumed = simulate(ragged(), method, checkpoint=tmp_path / str(stop), **options)
        assert_same_tensors(resumed.server, whole.server)
        assert equal_histories(resumed.history, whole.history)


def test_tensors_of_a_checkpoint_lie_where_fresh_ones_would(tmp_path):
    state = checkpoint.State(1, {f"a{i}": torch.ones(i) for i in range(1, 9)}, [{"b": torch.ones(3)}], [])
    mark = checkpoint.Identity({}, None)
    checkpoint.write_state(tmp_path, mark, state, ["x"])
    found = checkpoint.read_state(tmp_path, mark, ["x"])
    assert [p.data_ptr() % 64 for params in (found.server, *found.client_states) for p in params.values()] == [0] * 9


def test_a_finished_run_goes_on_with_more_rounds(tmp_path):
    run(rounds=2, checkpoint=tmp_path)
    longer = run(rounds=4, checkpoint=tmp_path)
    assert equal_histories(longer.history, uninterrupted(rounds=4).history)
    with pytest.raises(CheckpointError, match="holds 4 complete rounds, more than rounds=3"):
        run(rounds=3, checkpoint=tmp_path)


@pytest.mark.parametrize("change", [{"seed": 1}, {"participation": 1.0}, {"method": Local()}, {"fed": ragged(seed=1)}])
def test_a_checkpoint_of_another_setting_is_refused(begun, change):
    before = (begun / checkpoint.FILE).read_bytes()
    with pytest.raises(CheckpointError, match="belongs to a run with other settings or data"):
        run(rounds=1, checkpoint=begun, **change)
    assert (begun / checkpoint.FILE).read_bytes() == before


def test_a_refused_checkpoint_says_what_differs_and_nothing_else(begun):
    with pytest.raises(CheckpointError) as refused:
        run(method=replace(QUICK, lr=0.1, model=replace(SMALL, alpha=7)), rounds=1, checkpoint=begun)
    changes = [line.strip() for line in str(refused.value).splitlines() if "→" in line][1:]
    assert changes == ["method.model.alpha: 5 → 7", "method.lr: 0.001 → 0.1"]


def test_wording_is_no_other_code_and_a_changed_constant_is():
    source = (
        'class A:\n    """Doc."""\n\n    x = 1  # one\n    """More."""\n\n'
        '    def f(self):\n        "say"\n        return 2\n'
    )
    worded = "class A:\n    x = 1\n    def f(self):\n        return (2)\n"
    assert checkpoint.bare_source(source) == checkpoint.bare_source(worded)
    assert checkpoint.bare_source(source) != checkpoint.bare_source(worded.replace("2", "3"))


def test_code_is_that_of_the_engine_and_of_a_method_from_elsewhere(monkeypatch):
    files = [path.name for room in checkpoint.ROOMS for path in checkpoint._files(room)]
    assert {"simulation.py", "flic.py", "layers.py", "rng.py"} <= set(files)
    assert not {"plots.py", "records.py", "cli.py", "settings.py"} & set(files)
    assert checkpoint.code_version(QUICK) == checkpoint.code_version(Local()) == checkpoint.code_version()

    @dataclass(frozen=True)
    class Mine(Local):
        def weight(self, spec):
            return 1.0

    assert checkpoint.code_version(Mine()) != checkpoint.code_version()


def test_a_checkpoint_of_another_version_of_the_library_warns(begun, monkeypatch):
    with monkeypatch.context() as other:
        other.setattr(checkpoint, "code_version", lambda method: "another")
        with pytest.warns(RuntimeWarning, match=r"state.safetensors was written by another version of hetfl_core"):
            resumed = run(rounds=2, checkpoint=begun)
    assert equal_histories(resumed.history, uninterrupted(rounds=2).history)


def test_a_checkpoint_of_other_instructions_warns_and_one_of_the_same_does_not(begun, monkeypatch):
    with warnings.catch_warnings(action="error"):
        run(rounds=2, checkpoint=begun)
    monkeypatch.setattr(checkpoint.numerics, "in_effect", lambda: {"isa": "another"})
    with pytest.warns(RuntimeWarning, match="instructions, this process computes with another: the run will"):
        run(rounds=3, checkpoint=begun)


def test_states_of_several_runs_come_apart_as_they_were_joined():
    """Eleven runs, as a name that begins with 1 is not one of 10; each of other clients, tensors and rows."""
    sizes = [i % 3 for i in range(11)]
    runs = [
        checkpoint.State(
            4, {"w": torch.tensor(i)}, [{"own": torch.tensor([i, c])} for c in range(n)], [{"loss": i}] * n
        )
        for i, n in enumerate(sizes)
    ]
    parts = checkpoint.split_states(checkpoint.join_states(runs), sizes)
    assert parts == runs
    assert checkpoint.join_states(runs[:1]) is runs[0]
    assert checkpoint.split_states(runs[2], [2]) == [runs[2]]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff" * 8 + b[8:]])
def test_a_damaged_checkpoint_is_refused(begun, damage):
    file = begun / checkpoint.FILE
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"state.safetensors is damaged .* remove it to start the run anew"):
        run(rounds=1, checkpoint=begun)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 0.999])
def test_a_flipped_bit_in_a_checkpoint_is_seen(begun, place):
    """In the header or in a tensor: what is read is what was written, or nothing."""
    file = begun / checkpoint.FILE
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 4
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state.safetensors is damaged|has format"):
        run(rounds=1, checkpoint=begun)


def test_a_run_resumes_with_its_clients_in_another_order(tmp_path):
    fed = ragged()
    turned = Federation(list(fed)[::-1], fed.n_classes, fed.name)
    run(rounds=2, checkpoint=tmp_path)
    resumed, whole = run(turned, rounds=4, checkpoint=tmp_path), uninterrupted(rounds=4)
    assert equal_histories(resumed.history, whole.history)
    assert largest_difference(resumed, whole) == 0


def test_equal_settings_of_another_type_resume(tmp_path):
    first = run(rounds=1, seed=0, participation=1.0, checkpoint=tmp_path)
    again = run(rounds=1, seed=np.int64(0), participation=1, checkpoint=tmp_path)
    assert first.history.equals(again.history), "seconds too: nothing was run again"


def test_a_full_disk_leaves_the_last_checkpoint(begun, monkeypatch):
    before = (begun / checkpoint.FILE).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; what was there before is untouched"):
        run(rounds=2, checkpoint=begun)
    monkeypatch.undo()
    assert [p.name for p in begun.iterdir()] == [checkpoint.FILE]
    assert (begun / checkpoint.FILE).read_bytes() == before
    assert equal_histories(run(rounds=2, checkpoint=begun).history, uninterrupted(rounds=2).history)


def test_a_file_that_the_system_refuses_to_let_grow(begun):
    """A real refusal in the middle of a write, as on a full disk: no file may be longer than a few bytes."""
    resource = pytest.importorskip("resource", reason="limits of a process are Unix's")
    before, limits = (begun / checkpoint.FILE).read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with pytest.raises(CheckpointError, match="File too large; what was there before is untouched"):
            run(rounds=2, checkpoint=begun)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in begun.iterdir()] == [checkpoint.FILE]
    assert (begun / checkpoint.FILE).read_bytes() == before


def test_a_checkpoint_holds_no_pickle(begun):
    content = (begun / checkpoint.FILE).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"]["done"] == "1"
    assert all(set(v) == {"dtype", "shape", "data_offsets"} for k, v in header.items() if k != "__metadata__")


MARK = checkpoint.Identity({"seed": 0})


def test_one_tensor_under_two_names_can_be_written(tmp_path):
    v = torch.rand(3)
    checkpoint.write_state(tmp_path, MARK, checkpoint.State(0, {"now": v, "before": v}, []), [])
    back = checkpoint.read_state(tmp_path, MARK, [])
    assert back is not None
    assert_same_tensors(back.server, {"now": v, "before": v})


def test_state_survives_the_round_trip(tmp_path):
    kept, names = [{"a": torch.rand(2), "b": torch.rand(3, 1)}, {"b": torch.rand(3, 1), "a": torch.rand(5)}, {}], "abc"
    state = checkpoint.State(3, {"v": torch.rand(2, 2)}, kept, [{"round": 0, "ce": None}])
    checkpoint.write_state(tmp_path, MARK, state, names)
    back = checkpoint.read_state(tmp_path, MARK, names)
    assert back is not None
    assert (back.done, back.rows) == (3, state.rows)
    assert_same_tensors(back.server, state.server)
    for a, b in zip(back.client_states, kept, strict=True):
        assert list(a) == list(b)
        assert_same_tensors(a, b)
    assert checkpoint.read_state(tmp_path / "nothing", MARK, names) is None


def test_a_round_takes_the_time_that_it_takes():
    begin = time.perf_counter()
    run = simulate(ragged(2), Local(Model(MLP((4,), 3))), rounds=2, device="cpu", progress=False)
    assert (run.history["seconds"] >= 0).all()
    assert run.history["seconds"].sum() <= run.final["seconds"]
    assert run.final["seconds"] <= time.perf_counter() - begin


def test_the_history_ends_with_what_every_history_has():
    run = simulate(ragged(2), Local(Model(MLP((4,), 3))), rounds=1, device="cpu", progress=False)
    assert list(run.history)[-5:] == ["train_accuracy", "accuracy", "bytes_up", "bytes_down", "seconds"]
    assert next(iter(run.history)) == "round"
