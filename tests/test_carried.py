"""Optimisers that go on from round to round, on the client that they belong to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference, ragged

from hetfl_core import Federation, adapt, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FLIC, FedAvg, FedRep, LGFedAvg, Local
from hetfl_core.methods.base import task_loss
from hetfl_core.networks import MLP, Model

NETWORK = Model(MLP((6,), 4))
FED = ragged()
OPTIONS = {"rounds": 3, "device": "cpu", "progress": False, "dtype": torch.float64}
KINDS = {
    "adam": {},
    "adamw": {"weight_decay": 0.1},
    "momentum": {"optimiser": "sgd", "momentum": 0.9, "lr": 0.05},
    "plain": {"optimiser": "sgd", "lr": 0.05},
    "rmsprop": {"optimiser": "rmsprop", "momentum": 0.5},
    "adagrad": {"optimiser": "adagrad", "lr": 0.05},
}


def settings(kind, **changes):
    named = {"adamw": {"optimiser": "adamw"}}.get(kind, {})
    return {"model": NETWORK, "batch_size": 6, "optimiser_state": "kept", **KINDS[kind], **named, **changes}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [{"local_steps": 4}, {"local_epochs": 2}], ids=["steps", "epochs"])
def test_stacked_is_looped(kind, length):
    """Of equally many steps clients share stacks; of epochs they take as many as they have samples for."""
    method = LGFedAvg(**settings(kind, **length))
    options = {**OPTIONS, "participation": 0.7}
    runs = [simulate(FED, method, engine=engine, **options) for engine in ("stacked", "loop")]
    assert runs[0].kept[0].keys() == runs[1].kept[0].keys()
    assert largest_difference(*runs) < 1e-9
    turned = simulate(Federation(FED.clients[::-1], FED.n_classes), method, engine="stacked", **options)
    assert largest_difference(runs[0], turned) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_local_training_in_rounds_is_one_run_of_pytorchs_optimiser(kind):
    """One batch of all samples: two steps in each of three rounds and at the end are eight of one optimiser."""
    client = FED[2]
    fed = Federation([client], FED.n_classes)
    method = Local(**settings(kind, local_steps=2, batch_size=1000))
    simulator = Simulator(fed, method, device="cpu", dtype=torch.float64)
    params = {n: p.clone().requires_grad_() for n, p in simulator.initial().kept[0].items()}
    classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    classes |= {"adagrad": torch.optim.Adagrad, "momentum": torch.optim.SGD, "plain": torch.optim.SGD}
    options = {k: v for k, v in KINDS[kind].items() if k in ("momentum", "weight_decay")}
    optimiser = classes[kind](params.values(), lr=method.lr, **options)
    x, y = client.x_train.double(), client.y_train
    for _ in range(8):
        optimiser.zero_grad()
        task_loss(NETWORK.head(params, NETWORK.embed(params, x)), y, torch.ones(len(y)).double()).backward()
        optimiser.step()
    for engine in ("stacked", "loop"):
        run = simulate(fed, method, engine=engine, **OPTIONS)
        for name, p in params.items():
            assert torch.allclose(run.params[0][name], p, atol=1e-10), name


@pytest.mark.parametrize("kind", ["adam", "momentum"])
def test_it_is_kept_on_the_client_written_to_checkpoints_and_never_sent(kind, tmp_path):
    method = FedAvg(**settings(kind, local_steps=3))
    fed = ragged(widths=(4, 4))
    whole = simulate(fed, method, **OPTIONS)
    simulate(fed, method, checkpoint=tmp_path, **{**OPTIONS, "rounds": 1})
    resumed = simulate(fed, method, checkpoint=tmp_path, **OPTIONS)
    assert equal_histories(whole.history, resumed.history)
    for a, b in zip(whole.kept, resumed.kept, strict=True):
        assert_same_tensors(a, b)
    assert {name.split("/")[0] for name in whole.kept[0]} == (
        {"optimiser.0.step", "optimiser.0.exp_avg", "optimiser.0.exp_avg_sq"}
        if kind == "adam"
        else {"optimiser.0.momentum_buffer"}
    )
    fresh = simulate(fed, replace(method, optimiser_state="fresh"), **OPTIONS)
    assert fresh.history["bytes_up"].tolist() == whole.history["bytes_up"].tolist()
    assert fresh.history["bytes_down"].tolist() == whole.history["bytes_down"].tolist()
    assert not fresh.kept[0]
    assert fresh.final["accuracy"] != whole.final["accuracy"] or not torch.equal(
        fresh.server["beta.bias"], whole.server["beta.bias"]
    )
    assert not [name for params in whole.params for name in params if name.startswith("optimiser.")]


def test_stages_have_optimisers_of_their_own_and_pre_training_begins_fresh():
    rep = simulate(ragged(widths=(4, 4)), FedRep(**settings("adam", local_steps=2)), **OPTIONS)
    stages = {name.split(".")[1] for name in rep.kept[0] if name.startswith("optimiser.")}
    assert stages == {"0", "1"}
    own = {**settings("adam", local_steps=2), "model": replace(NETWORK, alpha=3)}
    method = FLIC(**own, pretrain_epochs=2)
    simulator = Simulator(FED, method, device="cpu")
    outcome = simulator.train(simulator.initial(), [0], 0, "start")[0]
    assert not [name for name in outcome.kept if name.startswith("optimiser.")]


def test_seeds_side_by_side_and_new_clients():
    from hetfl_core import simulate_seeds

    method = Local(**settings("adam", local_steps=3))
    runs = simulate_seeds(FED, method, seeds=2, **OPTIONS)
    for seed, run in runs.items():
        alone = simulate(FED, method, seed=seed, **OPTIONS)
        assert largest_difference(run, alone) < 1e-9
    old, new = Federation(FED.clients[:4], FED.n_classes), FED.clients[4:]
    joined = adapt(simulate(old, method, **OPTIONS), new, rounds=3, progress=False, device="cpu")
    assert float(joined.kept[0]["optimiser.0.step/beta.bias"]) == 9
