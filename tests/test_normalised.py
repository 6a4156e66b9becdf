"""Batch normalisation: PyTorch's own, batch by batch, padded or not; and where running statistics go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference
from torch import nn

from hetfl_core import Client, Federation, adapt, simulate
from hetfl_core.engine.training import plan
from hetfl_core.methods import FedAvg, FedCMA, FedGen, FedRep, LGFedAvg, Local
from hetfl_core.networks import Augmented, Model, NormalisedCNN, PerClient
from hetfl_core.rng import numpy_stream, stream

PHI = NormalisedCNN(channels=(3, 4), out=5)
NETWORK = Model(PHI)
OPTIONS = {"rounds": 2, "device": "cpu", "progress": False, "dtype": torch.float64}
SGD = {"optimizer": "sgd", "lr": 0.1, "batch_size": 4}


def pictures(sizes=(10, 7, 13, 5), side=8):
    rng = numpy_stream(0, "tests", 0, "pictures")
    clients = []
    for i, n in enumerate(sizes):
        x = rng.normal(size=(n, 1, side, side)) * (1 + i) + i
        clients.append(Client(x, rng.integers(3, size=n), x[:4], rng.integers(3, size=4), f"client-{i}"))
    return Federation(clients, 3)


FED = pictures()


def module_of(params):
    """The same network of PyTorch's modules, for images of one channel and side 8, with its head."""
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, 2, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 3),
    ).double()  # fmt: skip
    for i, place in enumerate((0, 3)):
        net[place].weight.data = params[f"phi.{i}.weight"].T.reshape(net[place].weight.shape).clone()
        net[place].bias.data = params[f"phi.{i}.bias"].clone()
    net[7].weight.data, net[7].bias.data = params["phi.2.weight"].T.clone(), params["phi.2.bias"].clone()
    net[8].weight.data, net[8].bias.data = params["beta.weight"].T.clone(), params["beta.bias"].clone()
    return net


def test_it_has_the_published_networks_numbers():
    """6 · 9 + 6, 16 · 6 · 9 + 16, two numbers a channel of each normalisation, 784 · 32 + 32."""
    params = NormalisedCNN().init((1, 28, 28), torch.Generator())
    trained = {name: p for name, p in params.items() if not name.endswith(("mean", "variance"))}
    assert params["phi.2.weight"].shape == (784, 32)
    assert sum(p.numel() for p in trained.values()) == 60 + 880 + 12 + 32 + 784 * 32 + 32


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_training_is_pytorchs_with_short_batches_and_all(engine):
    """Ten samples in batches of four: the last has two, and in a stack is filled up with rows that must not count."""
    run = simulate(FED, Local(NETWORK, local_epochs=2, weight_decay=0.1, **SGD), engine=engine, **OPTIONS)
    client, spec = FED[0], FED.specs()[0]
    method = Local(NETWORK, local_epochs=2, **SGD)
    first = {n: p.double() for n, p in method.init_client(spec, stream(0, spec.name, 0, "init")).items()}
    net = module_of(first).train()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
    for t, role in ((0, "round"), (1, "round"), (2, "final")):
        for rows in plan(method.stages(t, role)[0], 10, stream(0, spec.name, t, f"{role}/0/batches")):
            true = rows[rows >= 0].long()
            sgd.zero_grad()
            nn.functional.cross_entropy(net(client.x_train[true].double()), client.y_train[true]).backward()
            sgd.step()
    ours = run.params[0]
    for i, place in enumerate((1, 4)):
        assert torch.allclose(ours[f"phi.{i}.norm.mean"], net[place].running_mean, atol=1e-10)
        assert torch.allclose(ours[f"phi.{i}.norm.variance"], net[place].running_var, atol=1e-10)
        assert torch.allclose(ours[f"phi.{i}.norm.weight"], net[place].weight, atol=1e-10)
    logits = net.eval()(client.x_test.double()).detach().numpy()
    assert abs(run.outputs()["client-0"] - logits).max() < 1e-9


METHODS = {
    "FedAvg": FedAvg(NETWORK, local_epochs=1, **SGD),
    "LG-FedAvg": LGFedAvg(NETWORK, local_epochs=1, **SGD),
    "FedRep": FedRep(NETWORK, local_epochs=1, **SGD),
    "Fed-CMA": FedCMA(NETWORK, local_epochs=1, **SGD),
    "FedGen": FedGen(NETWORK, local_epochs=1, n_generated=4, generator_steps=2, **SGD),
    "augmented": FedAvg(Model(Augmented(PHI, padding=1)), local_steps=3, **SGD),
    "by client": LGFedAvg(Model(PerClient({"client-1": replace(PHI, channels=(2,))}, PHI)), local_epochs=1, **SGD),
    "Adam": FedAvg(NETWORK, local_steps=2, batch_size=4),
}


@pytest.mark.parametrize("name", METHODS)
def test_stacked_is_looped_and_resumes(name, tmp_path):
    options = {**OPTIONS, "rounds": 3, "participation": 0.75}
    stacked, loop = (simulate(FED, METHODS[name], engine=engine, **options) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    simulate(FED, METHODS[name], engine="stacked", checkpoint=tmp_path, **{**options, "rounds": 1})
    resumed = simulate(FED, METHODS[name], engine="stacked", checkpoint=tmp_path, **options)
    assert equal_histories(stacked.history, resumed.history)
    assert_same_tensors(stacked.server, resumed.server)


def test_running_statistics_go_where_their_layer_goes():
    shared = simulate(FED, METHODS["FedAvg"], **{**OPTIONS, "rounds": 1})
    each = [run["phi.0.norm.mean"] for run in shared.params]
    assert all(torch.equal(one, each[0]) for one in each), "FedAvg averages them"
    assert not torch.equal(shared.server["phi.0.norm.mean"], torch.zeros(3).double())
    own = simulate(FED, METHODS["LG-FedAvg"], **OPTIONS)
    assert not torch.equal(own.client_states[0]["phi.0.norm.mean"], own.client_states[1]["phi.0.norm.mean"])
    assert "phi.0.norm.mean" not in own.server


def test_use_does_not_depend_on_who_is_in_the_batch():
    run = simulate(FED, METHODS["LG-FedAvg"], **OPTIONS)
    method, params = run.method, run.params[2]
    x = FED[2].x_test.double()
    whole = method.embed(params, {}, x)
    assert torch.allclose(torch.cat([method.embed(params, {}, x[i : i + 1]) for i in range(len(x))]), whole, atol=1e-12)


def test_a_client_that_comes_later_has_statistics_of_its_own():
    run = simulate(pictures((10, 7)), METHODS["LG-FedAvg"], **OPTIONS)
    late = Client(FED[2].x_train, FED[2].y_train, FED[2].x_test, FED[2].y_test, "late")
    joined = adapt(run, late, rounds=2, progress=False, device="cpu")
    assert not torch.equal(joined.params[0]["phi.0.norm.mean"], torch.zeros(3).double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": ()}, r"channels must be one or more, got \(\)"),
        ({"kernel": 4}, "kernel must be an odd number of at least 1, got 4"),
        ({"momentum": 0.0}, r"momentum must be in \(0, 1\], got 0\.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        NormalisedCNN(**changes)


def test_inputs_that_are_no_images_are_refused():
    with pytest.raises(ValueError, match=r"expected images of shape \(channels, height, width\), got \(5,\)"):
        PHI.init((5,), torch.Generator())
