"""FedGen: its generator against PyTorch's modules, its losses by hand, its limits; and the server's optimizer."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F
from small import assert_same_tensors, equal_histories, largest_difference, ragged
from torch import nn

from hetfl_core import Client, Federation, adapt, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import Batch, FedGen, LGFedAvg
from hetfl_core.methods.base import Stage
from hetfl_core.methods.server import descend, without_state
from hetfl_core.networks import MLP, Model
from hetfl_core.rng import SERVER, stream

FED = ragged()
NETWORK = Model(MLP((6,), 4))
SMALL = FedGen(NETWORK, local_epochs=2, batch_size=8, n_generated=5, noise_dim=3, hidden=7, generator_steps=4)
OPTIONS = {"rounds": 3, "device": "cpu", "progress": False, "dtype": torch.float64}


# --- the server's optimizer -------------------------------------------------------------------------------------------

MAKERS = {
    "adam": (torch.optim.Adam, {"weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "plain": (torch.optim.SGD, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
}


def stage(name, *train, steps=1):
    return Stage(train, steps=steps, lr=0.1, optimizer=name.replace("plain", "sgd"), **MAKERS[name][1])


def bowl(tensors, step):
    return (tensors["a"] - step).square().sum() + (tensors["b"] * tensors["c"]).square().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAKERS)
def test_a_servers_steps_in_parts_are_those_of_one_optimizer(name, dtype):
    """Four steps at once, or one a round with the state read back from tensors, as the engine casts them."""
    rng = torch.Generator().manual_seed(0)
    server = {n: torch.randn(3, generator=rng).to(dtype) for n in "abc"}
    before = {n: p.clone() for n, p in server.items()}
    leaves = {n: server[n].clone().requires_grad_() for n in "ab"}
    made, options = MAKERS[name]
    plain = made(list(leaves.values()), lr=0.1, **options)
    for step in range(4):
        plain.zero_grad()
        bowl({**server, **leaves}, step).backward()
        plain.step()
    parts = server
    for step in range(4):
        parts = descend(parts, lambda tensors, _, step=step: bowl(tensors, step), stage(name, "a", "b"))
        parts = {n: p.to(dtype) if p.is_floating_point() else p for n, p in parts.items()}
    for n, p in leaves.items():
        assert torch.equal(parts[n], p.detach())
    assert_same_tensors(server, before)
    assert torch.equal(parts["c"], server["c"])
    assert set(without_state(parts)) == {"a", "b", "c"}


@pytest.mark.parametrize("clip", [0.5, 1e3])
def test_the_gradient_is_clipped_as_pytorch_does(clip):
    server = {n: torch.full((3,), 2.0) for n in "abc"}
    leaves = {n: server[n].clone().requires_grad_() for n in "ab"}
    plain = torch.optim.SGD(list(leaves.values()), lr=0.1)
    bowl({**server, **leaves}, 0).backward()
    torch.nn.utils.clip_grad_norm_(list(leaves.values()), clip)
    plain.step()
    found = descend(server, bowl, stage("plain", "a", "b"), clip=clip)
    assert all(torch.equal(found[n], p) for n, p in leaves.items())


def test_names_that_the_server_lacks_are_refused():
    with pytest.raises(ValueError, match="train must name tensors of the server, but it has no 'z'"):
        descend({"a": torch.ones(2)}, bowl, stage("adam", "a", "z"))


# --- the generator ----------------------------------------------------------------------------------------------------


def module_of(server, method, C):
    """The same generator of PyTorch's modules."""
    net = nn.Sequential(nn.Linear(method.noise_dim + C, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 4)).double()
    for layer, name in ((net[0], "generator.0"), (net[3], "generator.1")):
        layer.weight.data, layer.bias.data = server[f"{name}.weight"].T.clone(), server[f"{name}.bias"].clone()
    return net


def test_the_generator_is_pytorchs_in_training_and_in_use():
    server = {n: p.double() for n, p in SMALL.init_server(FED.specs(), torch.Generator().manual_seed(0)).items()}
    net = module_of(server, SMALL, 5)
    y, noise = torch.tensor([0, 3, 3, 1]), torch.rand(4, 3, dtype=torch.float64)
    inputs = torch.cat([noise, F.one_hot(y, 5).double()], 1)
    trained, running = SMALL.generate(server, y, noise, training=True)
    assert torch.allclose(trained, net(inputs), atol=1e-12)
    assert torch.allclose(running["generator.norm.mean"], net[1].running_mean, atol=1e-12)
    assert torch.allclose(running["generator.norm.variance"], net[1].running_var, atol=1e-12)
    used, none = SMALL.generate({**server, **running}, y, noise)
    assert none == {}
    assert torch.allclose(used, net.eval()(inputs), atol=1e-12)
    _, of_two = SMALL.generate({**server, **running}, y[:2], noise[:2], training=True)
    net.train()(inputs[:2])
    assert torch.allclose(of_two["generator.norm.variance"], net[1].running_var, atol=1e-12)


def test_the_server_teaches_it_as_written():
    """Two rounds of four steps by modules and one Adam, whose rate is set anew each round; labels by class counts."""
    specs = FED.specs()
    method = replace(SMALL, generator_decay=0.5, diversity_weight=0.3)
    server = {n: p.double() for n, p in method.init_server(specs, torch.Generator().manual_seed(0)).items()}
    net = module_of(server, method, 5)
    adam = torch.optim.Adam(net.parameters(), lr=method.generator_lr, weight_decay=method.generator_weight_decay)
    rng = torch.Generator().manual_seed(3)
    counts = torch.tensor([s.class_counts for s in specs]).double()
    known = [k for k in range(5) if counts[:, k].max() > 1]
    for t in range(2):
        heads = [
            {"beta.weight": torch.randn(4, 5, generator=rng).double(), "beta.bias": torch.zeros(5).double()}
            for _ in specs
        ]
        draws = torch.rand(4, 32, 4, generator=stream(0, SERVER, t, "aggregate"), dtype=torch.float32).double()
        adam.param_groups[0]["lr"] = method.generator_lr * 0.5**t
        for step in range(4):
            y = torch.tensor([known[int(u * len(known))] for u in draws[step, :, 0]])
            epsilon = draws[step, :, 1:]
            z = net(torch.cat([epsilon, F.one_hot(y, 5).double()], 1))
            loss = torch.zeros((), dtype=torch.float64)
            for i, head in enumerate(heads):
                each = F.cross_entropy(z @ head["beta.weight"] + head["beta.bias"], y, reduction="none")
                loss = loss + (each * (counts[i] / counts.sum(0))[y]).mean()
            spread = torch.stack([((a - b) ** 2).mean() for a in epsilon for b in epsilon])
            apart = torch.stack([(a - b).abs().mean() for a in z for b in z])
            adam.zero_grad()
            (loss + 0.3 * (-(spread * apart).mean()).exp()).backward()
            adam.step()
        server = method.aggregate(server, heads, [1.0] * len(heads), specs, stream(0, SERVER, t, "aggregate"))
        assert torch.allclose(server["generator.0.weight"], net[0].weight.T, atol=1e-10)
        assert torch.allclose(server["generator.norm.weight"], net[1].weight, atol=1e-10)
        assert torch.allclose(server["generator.norm.variance"], net[1].running_var, atol=1e-10)
        assert torch.allclose(server["beta.weight"], torch.stack([h["beta.weight"] for h in heads]).mean(0), atol=1e-12)
        assert int(server["round"]) == t + 1


def test_labels_that_nobody_has_twice_are_not_generated():
    x = torch.randn(4, 3)
    fed = Federation([Client(x, torch.tensor([0, 0, 1, 1]), x, torch.zeros(4).long(), "a")], 3)
    seen = []

    class Watched(FedGen):
        @staticmethod
        def generate(params, y, noise, training=False):
            seen.extend(y.tolist() if training else [])
            return FedGen.generate(params, y, noise, training)

    method = Watched(**{f.name: getattr(SMALL, f.name) for f in fields(SMALL)})
    server = method.init_server(fed.specs(), torch.Generator())
    head = {"beta.weight": torch.zeros(4, 3), "beta.bias": torch.zeros(3)}
    method.aggregate(server, [head], [1.0], fed.specs(), torch.Generator())
    assert set(seen) == {0, 1}


# --- the client -------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_client_by_hand():
    method, spec = SMALL, FED.specs()[0]
    rng = torch.Generator().manual_seed(1)
    server = {n: p.double() for n, p in method.init_server(FED.specs(), rng).items()} | {
        "round": torch.tensor([2.0]).double()
    }
    received = method.download(server, spec)
    params = {n: p.double() for n, p in method.start(method.init_client(spec, rng), received).items()}
    x, y = torch.randn(6, *spec.shapes).double(), torch.tensor([0, 1, 2, 3, 4, 0])
    weight = torch.tensor([1.0, 1, 1, 1, 0, 0]).double()
    noise = {"own": torch.rand(6, 3).double(), "others": torch.rand(5, 3).double()}
    noise["labels"] = torch.tensor([0.0, 0.21, 0.5, 0.99, 0.61]).double()
    loss = method.loss(params, received, Batch(x, y, weight), noise)
    net = module_of(server, method, 5).eval()
    head = lambda z: z @ params["beta.weight"] + params["beta.bias"]  # noqa: E731
    logits = head(NETWORK.embed(params, x[:4]))
    task = F.cross_entropy(logits, y[:4])
    labels = torch.tensor([0, 1, 2, 4, 3])
    generated = net(torch.cat([noise["others"], F.one_hot(labels, 5).double()], 1))
    own = net(torch.cat([noise["own"][:4], F.one_hot(y[:4], 5).double()], 1))
    first = 10 * 0.98**2 * 5 / 8 * F.cross_entropy(head(generated), labels)
    second = 10 * 0.98**2 * F.kl_div(logits.log_softmax(1), head(own).softmax(1), reduction="batchmean")
    assert torch.allclose(loss.total, task + first + second, atol=1e-12)


def test_in_the_first_round_a_client_is_not_taught():
    switched_off = replace(SMALL, generated_weight=0, agreement_weight=0)
    first, plain = (simulate(FED, m, **{**OPTIONS, "rounds": 1}) for m in (SMALL, switched_off))
    for a, b in zip(first.client_states, plain.client_states, strict=True):
        assert a.keys() == b.keys()
    assert first.history["ce"].iloc[1] == pytest.approx(plain.history["ce"].iloc[1], abs=1e-12)


def test_switched_off_it_is_lg_fedavg():
    options = {"model": NETWORK, "local_epochs": 2, "batch_size": 8}
    off = simulate(FED, FedGen(generated_weight=0, agreement_weight=0, generator_steps=0, **options), **OPTIONS)
    plain = simulate(FED, LGFedAvg(**options), **OPTIONS)
    for a, b in zip(off.params, plain.params, strict=True):
        assert_same_tensors(a, b)


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_stacked_is_looped_in_any_order_and_resumes(participation, tmp_path):
    options = {**OPTIONS, "participation": participation}
    stacked, loop = (simulate(FED, SMALL, engine=engine, **options) for engine in ("stacked", "loop"))
    turned = simulate(Federation(FED.clients[::-1], FED.n_classes), SMALL, engine="stacked", **options)
    assert largest_difference(stacked, loop) < 1e-9
    assert largest_difference(stacked, turned) < 1e-12
    simulate(FED, SMALL, engine="stacked", checkpoint=tmp_path, **{**options, "rounds": 1})
    resumed = simulate(FED, SMALL, engine="stacked", checkpoint=tmp_path, **options)
    assert equal_histories(stacked.history, resumed.history)
    assert_same_tensors(stacked.server, resumed.server)


def test_the_state_of_the_servers_optimizer_is_not_sent():
    simulator = Simulator(FED, SMALL, device="cpu")
    state, outcomes = simulator.round(simulator.initial(), range(6))
    assert [n for n in state.server if n.startswith("optimizer.")]
    sent = SMALL.download(state.server, simulator.specs[0])
    assert not [n for n in sent if n.startswith("optimizer.")]
    assert set(outcomes[0].upload) == {"beta.weight", "beta.bias"}


def test_a_client_that_comes_later_is_taught_too():
    run = simulate(FED, SMALL, **OPTIONS)
    x = torch.randn(9, 4)
    late = Client(x, torch.arange(9) % 3, x, torch.arange(9) % 3, "late")
    joined = adapt(run, late, progress=False, device="cpu")
    assert_same_tensors(joined.server, run.server)
    assert joined.history["agreement"].iloc[-1] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generated_weight": -1.0}, "generated_weight must be at least 0"),
        ({"n_generated": 0}, "n_generated must be at least 1"),
        ({"term_decay": 0.0}, "term_decay must be greater than 0"),
        ({"generator_steps": -1}, "generator_steps must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FedGen(**changes)
