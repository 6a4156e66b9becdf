"""pFedHN: its step by PyTorch's autograd, one local step as a gradient, and the limit in which it is FedAvg."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference, ragged
from torch import nn

from hetfl_core import Client, Federation, adapt, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FedAvg, PFedHN
from hetfl_core.methods.base import task_loss
from hetfl_core.networks import MLP, Model

NETWORK = Model(MLP((6,), 4))
FED = ragged(widths=(4, 4))
OPTIONS = {"rounds": 3, "device": "cpu", "progress": False, "dtype": torch.float64}
BRIEF = {"optimizer": "sgd", "lr": 0.1, "local_steps": 3, "batch_size": 8}
SMALL = PFedHN(NETWORK, hidden=5, hidden_layers=1, embedding=2, **BRIEF)
PC = replace(SMALL, personal="head")


def module_of(server, names):
    """The hyper-network of PyTorch's modules: a trunk, and a linear layer for each tensor."""
    trunk = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 5)).double()
    for layer, name in ((trunk[0], "hyper.0"), (trunk[2], "hyper.1")):
        layer.weight.data, layer.bias.data = server[f"{name}.weight"].T.clone(), server[f"{name}.bias"].clone()
    ends = nn.ModuleList()
    for name in names:
        weight, bias = server[f"make/{name}/weight"], server[f"make/{name}/bias"]
        ends.append(nn.Linear(5, bias.numel()).double())
        ends[-1].weight.data, ends[-1].bias.data = weight.flatten(1).T.clone(), bias.flatten().clone()
    return trunk, ends


def test_two_steps_of_the_server_are_those_of_pytorchs_modules():
    """One client each, drawn before; momentum and weight decay move the other's embedding, too."""
    specs = FED.specs()[:2]
    method = replace(SMALL, server_clip=0.05, server_weight_decay=0.1)
    server = {n: p.double() for n, p in method.init_server(specs, torch.Generator().manual_seed(0)).items()}
    shapes = {n: p.shape for n, p in method.made(server, specs[0].name).items()}
    trunk, ends = module_of(server, shapes)
    table = nn.Embedding.from_pretrained(torch.stack([server[f"embedding/{s.name}"] for s in specs]), freeze=False)
    params = [*table.parameters(), *trunk.parameters(), *ends.parameters()]
    sgd = torch.optim.SGD(params, 1e-2, 0.9, weight_decay=0.1)
    rng = torch.Generator().manual_seed(1)
    for step in (0, 1):
        moved = {n: torch.randn(shape, generator=rng, dtype=torch.float64) for n, shape in shapes.items()}
        z = trunk(table(torch.tensor(step)))
        made = [end(z).reshape(shape) for end, shape in zip(ends, shapes.values(), strict=True)]
        grads = torch.autograd.grad(made, params, grad_outputs=list(moved.values()))
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        torch.nn.utils.clip_grad_norm_(params, 0.05)
        sgd.step()
        server = method.aggregate(server, [moved], [3.0], [specs[step]], torch.Generator())
    for i, spec in enumerate(specs):
        assert torch.allclose(server[f"embedding/{spec.name}"], table.weight[i], atol=1e-12)
    assert torch.allclose(server["hyper.0.weight"], trunk[0].weight.T, atol=1e-12)
    for name, end in zip(shapes, ends, strict=True):
        assert torch.allclose(server[f"make/{name}/weight"].flatten(1), end.weight.T, atol=1e-12), name


def test_after_one_local_step_the_servers_is_the_gradient_of_the_clients_loss():
    client = FED[1]
    fed = Federation([client], FED.n_classes)
    method = replace(SMALL, local_steps=1, batch_size=1000, server_momentum=0.0, server_weight_decay=0.0)
    simulator = Simulator(fed, method, device="cpu", dtype=torch.float64)
    start = simulator.initial()
    leaves = {n: p.clone().requires_grad_() for n, p in start.server.items()}
    params = method.made(leaves, client.name)
    logits = NETWORK.head(params, NETWORK.embed(params, client.x_train.double()))
    task_loss(logits, client.y_train, torch.ones(client.n_train).double()).backward()
    after, _ = simulator.round(start, [0])
    for name, p in leaves.items():
        expected = p.detach() - method.server_lr * method.lr * p.grad
        assert torch.allclose(after.server[name], expected, atol=1e-12), name


def test_of_constants_it_is_fedavg():
    """Where all outputs are biases, a step of length 1 replaces them by the weighted mean of what clients trained."""
    method = replace(SMALL, server_lr=1.0, server_momentum=0.0, server_weight_decay=0.0, server_clip=1e9)
    plain = FedAvg(NETWORK, **BRIEF)
    one, two = (Simulator(FED, m, device="cpu", dtype=torch.float64) for m in (method, plain))
    state, other = one.initial(), two.initial()
    biases = {f"make/{name}/bias": p for name, p in other.server.items()}
    state.server = {**{name: torch.zeros_like(p) for name, p in state.server.items()}, **biases}
    state, _ = one.round(state, range(6))
    other, _ = two.round(other, range(6))
    for name, p in other.server.items():
        assert torch.allclose(state.server[f"make/{name}/bias"], p, atol=1e-12), name


@pytest.mark.parametrize("method", [SMALL, PC])
@pytest.mark.parametrize("participation", [1.0, 1 / 6])
def test_stacked_is_looped_in_any_order_and_resumes(method, participation, tmp_path):
    options = {**OPTIONS, "participation": participation}
    stacked, loop = (simulate(FED, method, engine=engine, **options) for engine in ("stacked", "loop"))
    turned = simulate(Federation(FED.clients[::-1], FED.n_classes), method, engine="stacked", **options)
    assert largest_difference(stacked, loop) < 1e-9
    assert largest_difference(stacked, turned) < 1e-12
    simulate(FED, method, engine="stacked", checkpoint=tmp_path, **{**options, "rounds": 1})
    resumed = simulate(FED, method, engine="stacked", checkpoint=tmp_path, **options)
    assert equal_histories(stacked.history, resumed.history)
    assert_same_tensors(stacked.server, resumed.server)


def test_bytes_are_the_weights_and_not_the_hyper_network():
    run = simulate(FED, SMALL, **OPTIONS)
    numbers = 4 * 6 + 6 + 6 * 4 + 4 + 4 * 5 + 5
    assert run.history[["bytes_up", "bytes_down"]].iloc[1].tolist() == [6 * 8 * numbers] * 2
    body = simulate(FED, PC, **OPTIONS)
    assert body.history["bytes_up"].iloc[1] == 6 * 8 * (numbers - 25)
    assert set(body.client_states[0]) == {"beta.weight", "beta.bias"}


def test_a_client_that_comes_later_begins_with_the_mean_embedding():
    run = simulate(FED, PC, **OPTIONS)
    x = torch.randn(9, 4)
    joined = adapt(run, Client(x, torch.arange(9) % 3, x, torch.arange(9) % 3, "late"), progress=False, device="cpu")
    embeddings = torch.stack([run.server[f"embedding/{client.name}"] for client in FED])
    assert torch.allclose(joined.server["embedding/late"], embeddings.mean(0), atol=1e-12)
    assert_same_tensors({n: p for n, p in joined.server.items() if n in run.server}, run.server)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding": 0}, "embedding must be at least 1, got 0"),
        ({"hidden": 0}, "hidden must be at least 1"),
        ({"server_lr": -1.0}, "server_lr must be at least 0"),
        ({"server_clip": 0.0}, "server_clip must be greater than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PFedHN(**changes)


def test_clients_whose_shapes_differ_are_refused():
    with pytest.raises(ValueError, match=r"pFedHN averages 'phi\.0\.weight'|pFedHN makes"):
        simulate(ragged(), SMALL, **OPTIONS)
