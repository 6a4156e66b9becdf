"""FedCR, FedGen and pFedHN against runs of their published codes (``tests/published``, which says how each was run)."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from hetfl_core import Client, Federation
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Spec
from hetfl_core.methods import Batch, FedCR, FedGen, PFedHN
from hetfl_core.networks import MLP, LeNet, Model


def read(name):
    return json.loads((Path(__file__).parent / "published" / f"{name}.json").read_text())


def double(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def sine(*shape):
    """What first weights and fixed draws are in the files: a sine of their place."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) + 1).sin().reshape(shape)


def ours(state, names):
    """Tensors of a state_dict under our names; PyTorch's linear layers have the transposed weights."""
    found = {}
    for name, numbers in state.items():
        layer, kind = name.rsplit(".", 1)
        if layer in names:
            p = double(numbers)
            found[f"{names[layer]}.{kind}"] = p.mT.contiguous() if p.ndim == 2 else p
    return found


def federation(data, n_classes):
    clients = []
    for i, samples in enumerate(data):
        x, y = double(samples["x"]), torch.tensor(samples["y"])
        clients.append(Client(x, y, x, y, f"client {i}"))
    return Federation(clients, n_classes)


# --- FedCR ------------------------------------------------------------------------------------------------------------

CR = read("fedcr")
CR_NAMES = {"fc1": "phi.0", "fc2": "phi.1", "fc3": "gaussian", "fc4": "beta"}
CR_SHAPES = {"phi.0": (5, 6), "phi.1": (4, 5), "gaussian": (6, 4), "beta": (10, 3)}


@dataclass(frozen=True)
class Begun(FedCR):
    """FedCR with the first weights, and in training the draws, of the published code's runs."""

    @staticmethod
    def first():
        weights = {f"{name}.weight": sine(*shape).mT for name, shape in CR_SHAPES.items()}
        return weights | {f"{name}.bias": sine(shape[0]) / 5 for name, shape in CR_SHAPES.items()}

    def init_server(self, specs, rng):
        server = super().init_server(specs, rng)
        return {name: self.first().get(name, p) for name, p in server.items()}

    def init_client(self, spec, rng):
        return {name: self.first()[name] for name in super().init_client(spec, rng)}

    def loss(self, params, received, batch, noise):
        if "epsilon" in noise:
            n, S, V = noise["epsilon"].shape
            noise = {"epsilon": sine(S, V).expand(n, S, V)}
        return super().loss(params, received, batch, noise)


CR_METHOD = Begun(
    Model(MLP((5,), 4, last="relu"), gaussian=3),
    term_weight=0.05,
    samples=1,
    scale="none",
    likelihood="mean",
    local_epochs=3,
    finetune_epochs=4,
    batch_size=48,
    optimizer="sgd",
    lr=0.2,
    clip=10.0,
)


def cr_gaps(method, known, participants, last=False):
    """How far each tensor ends from where the published code's did, the server's and those of the last training."""
    simulator = Simulator(federation(CR["data"], 10), method, dtype=torch.float64, engine="loop")
    state = simulator.initial()
    for indices in participants:
        state, _ = simulator.round(state, indices)
    theirs = ours(known["server"], CR_NAMES)
    theirs |= {"joint.mean": double(known["mean"]), "joint.variance": double(known["deviation"]).square()}
    found = {name: float((p - theirs[name]).abs().max()) for name, p in state.server.items()}
    if last:
        for i, outcome in simulator.train(state, range(3), len(participants), "final").items():
            head = ours(known["clients"][i], CR_NAMES)
            found |= {f"{name} of {i}": float((p - head[name]).abs().max()) for name, p in outcome.params.items()}
    return found


@pytest.fixture
def softplus_alone(monkeypatch):
    """Deviations as in the code, without the 1e-4 that keep ours from 0."""
    monkeypatch.setattr("hetfl_core.networks.model.SMALLEST_DEVIATION", 0.0)


def test_fedcrs_rounds_are_those_of_the_published_code(softplus_alone):
    """Two of three clients a round, classes that one of them lacks, then all; and the heads trained at the end."""
    gaps = cr_gaps(CR_METHOD, CR["rounds"], CR["about"]["participants"], last=True)
    assert len(gaps) == 8 + 3 * 8
    assert max(gaps.values()) < 1e-8, gaps


def test_a_step_of_fedcr_with_draws_is_that_of_the_published_code(softplus_alone):
    method = replace(CR_METHOD, local_epochs=1, samples=2, scale="deviation")
    assert max(cr_gaps(method, CR["step with draws"], [[2]]).values()) < 1e-8


@pytest.mark.parametrize(
    "change",
    [
        {"term_weight": 0.0},
        {"target": "mean"},
        {"prior": "each"},
        {"joint": "mixture"},
        {"features": "fresh"},
        {"clip": None},
        {"weighting": "samples"},
        {"local_epochs": 2},
    ],
)
def test_with_another_setting_fedcr_ends_elsewhere(change, softplus_alone):
    gaps = cr_gaps(replace(CR_METHOD, **change), CR["rounds"], CR["about"]["participants"])
    assert not all(gap < 1e-4 for gap in gaps.values())


@pytest.mark.parametrize("change", [{"likelihood": "mixture"}, {"scale": "variance"}])
def test_draws_enter_as_in_the_published_code(change, softplus_alone):
    method = replace(CR_METHOD, local_epochs=1, samples=2, scale="deviation")
    assert max(cr_gaps(replace(method, **change), CR["step with draws"], [[2]]).values()) > 1e-4


# --- FedGen -----------------------------------------------------------------------------------------------------------

GEN = read("fedgen")
NET_NAMES = {"layers.1": "phi.0", "layers.2": "beta"}
GENERATOR_NAMES = {"fc_layers.0": "generator.0", "fc_layers.1": "generator.norm", "representation_layer": "generator.1"}
RUNNING = {
    "generator.norm.running_mean": "generator.norm.mean",
    "generator.norm.running_var": "generator.norm.variance",
}
GENERATED = FedGen(
    Model(MLP((), 4)),
    batch_size=6,
    n_generated=4,
    noise_dim=2,
    hidden=5,
    generator_steps=2,
    generator_batch=6,
    teachers="batch",
)


class Fractions:
    """The numbers that the code drew: fractional parts of multiples of the golden section, one after the other."""

    def __init__(self):
        self.taken = 0

    def __call__(self, *shape):
        k = torch.arange(self.taken + 1, self.taken + math.prod(shape) + 1)
        self.taken += len(k)
        return (k.double() * ((5**0.5 - 1) / 2) % 1).reshape(shape)


def generator_of(state):
    return {RUNNING.get(name, name): p for name, p in ours(state, GENERATOR_NAMES).items()}


def gen_first():
    """First weights of network and generator, and the round."""
    layers = {"phi.0": (4, 6), "beta": (3, 4), "generator.0": (5, 5), "generator.1": (4, 5)}
    first = {f"{name}.weight": sine(*shape).mT.contiguous() for name, shape in layers.items()}
    first |= {f"{name}.bias": sine(shape[0]) for name, shape in layers.items()}
    ones, zeros = torch.ones(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    first |= {f"generator.norm.{kind}": ones for kind in ("weight", "variance")}
    return first | {f"generator.norm.{kind}": zeros for kind in ("bias", "mean")} | {"round": zeros[:1]}


@pytest.mark.parametrize("case", GEN["client"], ids=lambda case: f"round {case['round']}")
def test_a_clients_steps_in_fedgen_are_those_of_the_published_code(case):
    """Two steps of SGD, without generated features in round 0 and with them in round 3."""
    first, draw = gen_first(), Fractions()
    received = {**first, "round": double([case["round"]])}
    x, y = double(GEN["data"][0]["x"]), torch.tensor(GEN["data"][0]["y"])
    params = {name: p for name, p in first.items() if name.startswith(("phi", "beta"))}
    for step in range(2):
        noise = {"own": draw(6, 2), "labels": draw(4), "others": draw(4, 2)}
        if case["round"]:
            assert (noise["labels"] * 3).long().tolist() == case["labels"][step]
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        GENERATED.loss(leaves, received, Batch(x, y, torch.ones(6, dtype=torch.float64)), noise).total.backward()
        params = {name: (p - 0.1 * p.grad).detach() for name, p in leaves.items()}
    for name, p in ours(case["net"], NET_NAMES).items():
        torch.testing.assert_close(params[name], p, rtol=0, atol=1e-10)


def gen_rounds(monkeypatch, **changes):
    """The server after each of two rounds, on two heads as they were drawn."""
    method, draw = replace(GENERATED, **changes), Fractions()
    specs = [
        Spec(f"client {i}", (6,), len(d["y"]), 3, tuple(d["y"].count(c) for c in range(3)), 2)
        for i, d in enumerate(GEN["data"])
    ]
    head = {name: p for name, p in gen_first().items() if name.startswith("beta")}
    uploads = [head, {name: -0.7 * p for name, p in head.items()}]
    server = {name: p for name, p in gen_first().items() if not name.startswith("phi")}

    def rand(steps, batch, numbers, **_):
        return torch.stack([torch.cat([draw(batch, 1), draw(batch, numbers - 1)], 1) for _ in range(steps)])

    monkeypatch.setattr(torch, "rand", rand)
    found = []
    for _ in GEN["server"]:
        server = method.aggregate(server, uploads, [spec.n_train for spec in specs], specs, torch.Generator())
        found.append(server)
    return found


def test_the_generator_learns_as_in_the_published_code(monkeypatch):
    """Two rounds of Adam, whose state and falling rate go on, and running statistics; heads are then averaged."""
    found = gen_rounds(monkeypatch)
    for server, known in zip(found, GEN["server"], strict=True):
        for name, p in generator_of(known["generator"]).items():
            torch.testing.assert_close(server[name], p, rtol=0, atol=1e-10)
    for name, p in ours(GEN["averaged"], NET_NAMES).items():
        torch.testing.assert_close(found[-1][name], p, rtol=0, atol=1e-12)
    generated, _ = FedGen.generate(found[-1], torch.tensor([0, 2, 1]), Fractions()(3, 2))
    torch.testing.assert_close(generated, double(GEN["generated"]), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "change",
    [{"teachers": "label"}, {"diversity_weight": 0.0}, {"generator_decay": 1.0}, {"generator_weight_decay": 0.0}],
)
def test_with_another_setting_the_generator_learns_otherwise(change, monkeypatch):
    server = gen_rounds(monkeypatch, **change)[-1]
    known = generator_of(GEN["server"][-1]["generator"])
    assert max(float((server[name] - p).abs().max()) for name, p in known.items()) > 1e-7


# --- pFedHN -----------------------------------------------------------------------------------------------------------

HN = read("pfedhn")
LAYERS = {"c1": "phi.0", "c2": "phi.1", "l1": "phi.2", "l2": "phi.3", "l3": "beta"}
SCALES = {"embeddings": 1.0, "mlp": 0.5}


def as_published(server):
    """The server's tensors by the code's names, in its order of axes."""
    found = {"embeddings.weight": torch.stack([p for n, p in server.items() if n.startswith("embedding/")])}
    for i in range(3):
        found |= {f"mlp.{2 * i}.weight": server[f"hyper.{i}.weight"].mT, f"mlp.{2 * i}.bias": server[f"hyper.{i}.bias"]}
    for theirs, layer in LAYERS.items():
        for word, kind in (("weights", "weight"), ("bias", "bias")):
            if f"make/{layer}.{kind}/weight" in server:
                slope, start = (server[f"make/{layer}.{kind}/{part}"] for part in ("weight", "bias"))
                found[f"{theirs}_{word}.weight"] = slope.permute(*range(slope.ndim)[::-1]).flatten(0, -2)
                found[f"{theirs}_{word}.bias"] = start.mT.flatten() if start.ndim == 2 else start
    return found


def summed(p):
    """What the file says of a tensor: the whole of a small one, else two sums."""
    return torch.stack([p.sum(), (p * sine(*p.shape)).sum()]) if p.numel() > 60 else p


@dataclass(frozen=True)
class HNBegun(PFedHN):
    """pFedHN that begins with the code's first numbers: of each tensor a sine of its place."""

    def init_server(self, specs, rng):
        server = super().init_server(specs, rng)
        places = {}
        for name, p in as_published(server).items():
            places[name] = sine(*p.shape) * SCALES.get(name.split(".")[0], 0.1)
        return as_ours(places, server)

    def init_client(self, spec, rng):
        """The head of pFedHN-PC."""
        return {
            name: sine(*p.mT.shape).mT * 0.1 if p.ndim == 2 else sine(*p.shape) * 0.1
            for name, p in super().init_client(spec, rng).items()
        }


def as_ours(published, like):
    """The inverse of `as_published`, in the shapes of these tensors."""
    found = {name: published["embeddings.weight"][i] for i, name in enumerate(like) if name.startswith("embedding/")}
    for i in range(3):
        found[f"hyper.{i}.weight"] = published[f"mlp.{2 * i}.weight"].mT
        found[f"hyper.{i}.bias"] = published[f"mlp.{2 * i}.bias"]
    for theirs, layer in LAYERS.items():
        for word, kind in (("weights", "weight"), ("bias", "bias")):
            name = f"make/{layer}.{kind}"
            if f"{name}/weight" in like:
                slope, start = (like[f"{name}/{part}"] for part in ("weight", "bias"))
                turned = published[f"{theirs}_{word}.weight"].reshape(slope.shape[::-1])
                found[f"{name}/weight"] = turned.permute(*range(turned.ndim)[::-1])
                found[f"{name}/bias"] = published[f"{theirs}_{word}.bias"].reshape(start.shape[::-1])
                if start.ndim == 2:
                    found[f"{name}/bias"] = found[f"{name}/bias"].mT
    return {name: found[name].contiguous() for name in like}


HN_METHOD = HNBegun(
    Model(LeNet(channels=(2, 4), hidden=(120,), out=84)),
    hidden=3,
    hidden_layers=2,
    server_lr=0.05,
    optimizer="sgd",
    lr=0.05,
    momentum=0.9,
    weight_decay=5e-5,
    clip=50.0,
    batch_size=64,
    local_steps=5,
)


def hn_images(i):
    labels = torch.tensor(HN["about"]["labels"][i])
    x = sine(len(labels), 3, 32, 32).roll(i) + 0.2 * labels.reshape(-1, 1, 1, 1)
    return Client(x, labels, x, labels, f"client {i}")


def hn_gaps(run, **changes):
    """How far the two sums of each tensor end from those of the code; and the state after the last step."""
    method = replace(HN_METHOD, **changes)
    simulator = Simulator(Federation([hn_images(i) for i in range(4)], 10), method, dtype=torch.float64, engine="loop")
    state = simulator.initial()
    first = as_published(state.server)
    for i in run["order"]:
        state, _ = simulator.round(state, [i])
    gaps = {}
    for name, p in as_published(state.server).items():
        known = double(run["hyper"][name])
        assert not torch.equal(p, first[name])
        gaps[name] = float((summed(p) - known).abs().max())
    return gaps, state


def test_pfedhns_steps_are_those_of_the_published_code():
    """Four steps, one client twice and one never: momentum and weight decay move embeddings that rest, too."""
    gaps, _ = hn_gaps(HN["pFedHN"])
    assert len(gaps) == 1 + 6 + 20
    assert max(gaps.values()) < 1e-8, gaps


def test_pfedhn_pcs_steps_are_those_of_the_published_code_while_each_client_takes_part_once():
    run = HN["pFedHN-PC"]
    gaps, state = hn_gaps(run, personal="head")
    assert len(gaps) == 1 + 6 + 16
    assert max(gaps.values()) < 1e-8, gaps
    for i in run["order"]:
        (weight, bias) = run["heads"][i].values()
        head = state.client_states[i]
        assert float((summed(head["beta.weight"].mT) - double(weight)).abs().max()) < 1e-8
        assert float((head["beta.bias"] - double(bias)).abs().max()) < 1e-8


@pytest.mark.parametrize(
    "change",
    [
        {"server_momentum": 0.0},
        {"server_weight_decay": 0.0},
        {"momentum": 0.0},
        {"weight_decay": 0.0},
        {"local_steps": 4},
    ],
)
def test_with_another_setting_pfedhn_ends_elsewhere(change):
    assert max(hn_gaps(HN["pFedHN"], **change)[0].values()) > 1e-6
