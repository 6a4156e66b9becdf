"""Networks of a user's own: modules of PyTorch, and classes with the methods of a Network."""

from __future__ import annotations

import doctest
import math
import runpy
import subprocess
import sys
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import assert_same_tensors, largest_difference, ragged
from torch import nn

from hetfl_core import Client, Federation, simulate
from hetfl_core.engine import checkpoint
from hetfl_core.engine.checkpoint import CheckpointError
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import CATALOGUE, FLIC, FedAvg, Local
from hetfl_core.networks import MLP, Augmented, Blocks, Model, Module, Network, PerClient, layers
from hetfl_core.networks.identity import bare_source, described, source, written
from hetfl_core.rng import stream

EQUAL, RAGGED = ragged(4, widths=(4, 4)), ragged(5, widths=(4, 6))
OPTIONS = {"rounds": 2, "device": "cpu", "progress": False, "dtype": torch.float64}


def shaped(*shape: int, whole: bool = False) -> Federation:
    rng = np.random.default_rng(0)
    clients = []
    for i, n in enumerate((9, 14, 20)):
        x = rng.integers(0, 5, (n, *shape)) if whole else rng.normal(size=(n, *shape))
        y = np.arange(n) % 3
        clients.append(Client(x, y, x[:6], y[:6], f"client-{i}"))
    return Federation(clients, 3)


def both(fed: Federation, phi: object, method: type = FedAvg, **options: object):
    made = method(Model(phi), local_epochs=2, batch_size=6, **options)
    return [simulate(fed, made, engine=engine, **OPTIONS) for engine in ("stacked", "loop")]


class Tied(nn.Module):
    """Two layers with one weight, one dropout at two places, a buffer, and a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.3)
        self.b.weight = self.a.weight
        self.register_buffer("scale", torch.arange(4.0))
        self.shift = torch.ones(4)

    def forward(self, x):
        return self.drop(self.b(self.drop(F.gelu(self.a(x))))) * self.scale + self.shift


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(5, 3), nn.Linear(12, 6)

    def forward(self, x):
        return self.last(self.words(x.long()).flatten(1))


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attends = nn.MultiheadAttention(4, 2, batch_first=True, dropout=dropout)

    def forward(self, x):
        return self.attends(x, x, x, need_weights=False)[0].mean(1)


def half_frozen() -> nn.Module:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
    net[0].requires_grad_(False)
    return net


IMAGES = shaped(3, 8, 8)
CONV = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(2), nn.Flatten()
)
KINDS = {
    "Linear, ReLU": (EQUAL, nn.Sequential(nn.Linear(4, 8), nn.ReLU())),
    "in place": (EQUAL, nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True))),
    "LayerNorm, GELU": (EQUAL, nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))),
    "Dropout": (EQUAL, nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.PReLU(), nn.Linear(8, 3))),
    "dropout alone": (EQUAL, nn.Dropout(0.5)),
    "Conv2d, GroupNorm, Dropout2d": (IMAGES, CONV),
    "Conv1d": (EQUAL, nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.MaxPool1d(2), nn.Flatten())),
    "tied weights": (EQUAL, Tied()),
    "Embedding": (shaped(4, whole=True), Words()),
    "attention": (shaped(5, 4), Attention()),
    "frozen": (EQUAL, half_frozen()),
    "no parameters": (EQUAL, nn.Flatten()),
    "double": (EQUAL, nn.Sequential(nn.Linear(4, 8), nn.Sigmoid()).double()),
    "weight_norm": (EQUAL, Module(lambda shape: nn.utils.parametrizations.weight_norm(nn.Linear(shape[0], 8)))),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_module_is_trained_alike_stacked_and_looped(name):
    fed, phi = KINDS[name]
    runs = both(fed, phi)
    assert largest_difference(*runs) < 1e-9
    assert set(runs[0].embed("test")) == {client.name for client in fed}


@pytest.mark.parametrize("method", [Local, FLIC])
def test_clients_of_other_widths_have_modules_of_their_own_width(method):
    """Made by a function of the shape, or by lazy layers; clients share a stack where their inputs have one shape."""
    brief = {"pretrain_epochs": 1} if method is FLIC else {}
    for phi in (
        Module(lambda shape: nn.Sequential(nn.LayerNorm(shape[0]), nn.Linear(shape[0], 5))),
        nn.Sequential(nn.LazyLinear(5), nn.ReLU()),
    ):
        runs = both(RAGGED, phi, method, **brief)
        assert largest_difference(*runs) < 1e-9
        simulator = Simulator(RAGGED, Local(Model(phi)), device="cpu")
        widths = [{RAGGED[m].shapes for m in cohort.members} for cohort in simulator.cohorts]
        assert sorted(widths, key=str) == [{(4,)}, {(5,)}]


OWN_NETWORKS = {
    "module": nn.Sequential(nn.Linear(4, 6), nn.GELU()),
    "function": Module(lambda shape: nn.Sequential(nn.Linear(shape[0], 6), nn.GELU())),
}


@pytest.mark.parametrize("kind", OWN_NETWORKS)
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_takes_a_module(name, kind):
    """Also one whose width is known of a client's inputs alone, as that of a function or of lazy layers."""
    method = CATALOGUE[name]
    brief = {"pretrain_epochs": 1} if getattr(method, "pretrain_epochs", 0) else {}
    made = replace(method, model=replace(method.model, phi=OWN_NETWORKS[kind]), local_epochs=1, **brief)
    run = simulate(EQUAL, made, rounds=1, device="cpu", progress=False, workers=1)
    assert math.isfinite(run.final["accuracy"])


def test_one_round_of_fedavg_is_that_of_plain_pytorch():
    """Two full-batch steps of SGD on each client from the server's weights, then the mean weighted by samples."""
    phi = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 5))
    method = FedAvg(Model(phi), local_epochs=2, batch_size=1000, optimizer="sgd", lr=0.1, momentum=0.9)
    first = Simulator(EQUAL, method, device="cpu", dtype=torch.float64).initial().server
    run = simulate(EQUAL, method, **{**OPTIONS, "rounds": 1})
    uploads = []

    def theirs(name: str) -> str:
        return name.replace("phi", "0", 1).replace("beta", "1", 1)

    for client in EQUAL.to(torch.float64):
        net = nn.Sequential(deepcopy(phi), nn.Linear(5, EQUAL.n_classes)).double()
        net.load_state_dict({theirs(n): p.T if n == "beta.weight" else p for n, p in first.items()})
        sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            sgd.zero_grad()
            F.cross_entropy(net(client.x_train), client.y_train).backward()
            sgd.step()
        uploads.append(net.state_dict())
    n = [client.n_train for client in EQUAL]
    for name, p in run.server.items():
        mean = sum(w * upload[theirs(name)] for w, upload in zip(n, uploads, strict=True)) / sum(n)
        torch.testing.assert_close(p, mean.T if name == "beta.weight" else mean, rtol=0, atol=1e-9)
        assert float((p - first[name]).abs().max()) > 1e-4


# --- what parameters begin with ---------------------------------------------------------------------------------------


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))


@pytest.mark.parametrize("make", [net, lambda: Module(lambda shape: net())])
def test_first_weights_come_from_the_seed_and_nothing_else(make):
    """Neither from PyTorch's generator, which is left as it was, nor from what anybody sets by default."""
    first = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Model(make())
        before = torch.get_rng_state()
        first.append(Simulator(EQUAL, FedAvg(model), device="cpu").initial().server)
        assert torch.equal(torch.get_rng_state(), before)
    assert_same_tensors(*first)
    torch.set_default_dtype(torch.float64)
    try:
        again = Simulator(EQUAL, FedAvg(Model(make())), device="cpu").initial().server
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_tensors(first[0], again)
    other = Simulator(EQUAL, FedAvg(Model(make())), seed=1, device="cpu").initial().server
    assert not torch.equal(other["phi.0.weight"], first[0]["phi.0.weight"])
    bound = 1 / math.sqrt(4)  # of a layer of four inputs, as PyTorch's own begin
    assert 0.9 * bound < float(first[0]["phi.0.weight"].abs().max()) <= bound


def test_a_trained_module_may_begin_with_its_own_weights_and_is_copied():
    trained = net().double()
    torch.nn.init.constant_(trained[0].bias, 0.1)  # which float32 does not have
    run = Simulator(EQUAL, FedAvg(Model(Module(trained, start="own"))), device="cpu", dtype=torch.float64)
    first, expected = run.initial().server, {n: p.detach().clone() for n, p in trained.named_parameters()}
    with torch.no_grad():
        trained[0].weight.zero_()
    for name, p in expected.items():
        assert torch.equal(first[f"phi.{name}"], p)


def test_frozen_parameters_stay_as_they_are_and_never_leave():
    frozen = half_frozen()
    run, _ = both(EQUAL, frozen)
    assert sorted(n for n in run.server if n.startswith("phi")) == ["phi.2.bias", "phi.2.weight"]
    z = run.embed("test")["client-0"]
    x = EQUAL.to(torch.float64)[0].x_test
    hidden = torch.tanh(frozen.double()[0](x)).detach()
    expected = hidden @ run.params[0]["phi.2.weight"].T + run.params[0]["phi.2.bias"]
    np.testing.assert_allclose(z, expected.numpy(), atol=1e-12)


def test_dropout_is_on_in_training_alone_and_drawn_anew_at_each_place():
    dropped, whole = (nn.Sequential(nn.Linear(4, 8), nn.Dropout(p), nn.Linear(8, 5)) for p in (0.5, 0.0))
    a, b = both(EQUAL, dropped), both(EQUAL, whole)
    assert largest_difference(a[0], b[0]) > 1e-4
    for run in a:
        for first, second in zip(run.outputs().values(), run.outputs().values(), strict=True):
            np.testing.assert_array_equal(first, second)
        x, p = EQUAL.to(torch.float64)[0].x_test, run.params[0]
        z = (x @ p["phi.0.weight"].T + p["phi.0.bias"]) @ p["phi.2.weight"].T + p["phi.2.bias"]
        np.testing.assert_allclose(run.embed("test")["client-0"], z.numpy(), atol=1e-12)
    drawn = Module(Tied()).of((4,)).draws()
    assert {name: draw.shape for name, draw in drawn.items()} == {"phi.drop.mask0": (4,), "phi.drop.mask1": (4,)}
    assert {draw.keep for draw in drawn.values()} == {0.7}
    images = Module(CONV).of((3, 8, 8)).draws()["phi.3.mask0"]
    assert (images.shape, images.kind, images.per) == ((4, 1, 1), "keep", "sample")
    for axes, layer in enumerate((nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), 1):
        channels = nn.Sequential(nn.Unflatten(1, (3, *[2] * axes)), layer(0.25), nn.Flatten())
        assert Module(channels).of((3 * 2**axes,)).draws()["phi.1.mask0"].shape == (3, *[1] * axes)


# --- what is refused --------------------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)


class Branches(Own):
    def forward(self, x):
        z = self.layer(x)
        return z if z.sum() > 0 else -z


class InWords(Own):
    def forward(self, x):
        return {"z": self.layer(x)}


class DropsItself(Own):
    def forward(self, x):
        return F.dropout(self.layer(x), training=self.training)


class Noisy(Own):
    def forward(self, x):
        return self.layer(x) + torch.randn(6)


class Centres(Own):
    def forward(self, x):
        return self.layer(x - x.mean(0))


class Squeezes(Own):
    def forward(self, x):
        return self.layer(x).squeeze()


class Counts(Own):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return self.layer(x)


class TwoFaced(Own):
    def forward(self, x):
        return self.layer(x) if self.training else 2 * self.layer(x)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        return x @ self.weight


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.ParameterDict({"mean": nn.Parameter(torch.zeros(4))})

    def forward(self, x):
        return x - self.norm["mean"]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0][:, -1]


WRONG = {
    "BatchNorm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), EQUAL,
                  "network Sequential: layer '1', BatchNorm1d, .*running statistics.*nn.GroupNorm.*NormalisedCNN"),
    "InstanceNorm": (lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True)),
                     EQUAL, "layer '1', InstanceNorm1d, .*running statistics"),
    "LSTM": (Recurrent, shaped(5, 4), "network Recurrent: layer 'cells', LSTM, cannot be computed for a stack"),
    "RReLU": (lambda: nn.Sequential(nn.Linear(4, 8), nn.RReLU()), EQUAL, "layer '1', RReLU, draws random numbers"),
    "drops all": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(1.0)), EQUAL, "layer '1', Dropout, drops all"),
    "branches": (Branches, EQUAL, "'client-0': network Branches cannot be computed for a stack .*torch.where"),
    "a dict": (InWords, EQUAL, r"'client-0': network InWords must give one tensor .* \(n, k\), got a dict"),
    "maps": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), IMAGES, r"got torch.float32 of shape \(3, 4, 6, 6\).*Flatten"),
    "F.dropout": (DropsItself, EQUAL, "network DropsItself draws random numbers itself: use nn.Dropout"),
    "attention's dropout": (lambda: Attention(0.1), shaped(5, 4), "draws random numbers itself, in layer 'attends'"),
    "noise": (Noisy, EQUAL, "network Noisy draws random numbers itself"),
    "means of batches": (Centres, EQUAL, "network Centres computes another output for a sample when others are in its"),
    "squeeze": (Squeezes, EQUAL, r"a batch may have one sample \(no squeeze\(\)\)"),
    "counts": (Counts, EQUAL, "network Counts changes its buffer 'seen' while it computes"),
    "two faces": (TwoFaced, EQUAL, "network TwoFaced computes something else in training than in use"),
    "drawn by nobody": (Bare, EQUAL, "parameter 'weight' that no layer's reset_parameters draws.*start=\"own\""),
    "running": (Norm, EQUAL, "a parameter 'norm.mean', as running statistics are called"),
    "another width": (lambda: nn.Linear(4, 8), RAGGED, r"'client-.': network Linear cannot take .* shape \(5,\)"),
    "indices": (lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten()), shaped(4, whole=True), r"x\.long\(\)"),
    "numpy's numbers": (lambda: Module(lambda shape: drawn_by_numpy()), EQUAL, "other random numbers than PyTorch's"),
    "not a module": (lambda: Module(lambda shape: 3), EQUAL, "must make a torch.nn.Module, got 3"),
    "not made": (lambda: Module(nn.Linear), EQUAL, r"network Linear cannot be made for shape \(4,\): .*out_features"),
    "script": (lambda: torch.jit.script(nn.Linear(4, 8)), EQUAL, "is compiled"),
    "two latent widths": (lambda: PerClient({"client-0": nn.Linear(4, 8)}, otherwise=MLP((), 5)), EQUAL,
                          "one latent dimension in common, got k=8 on 'client-0' but k=5 on 'client-1'"),
}  # fmt: skip


def drawn_by_numpy() -> nn.Module:
    made = nn.Linear(4, 3)
    made.weight = nn.Parameter(torch.as_tensor(np.random.rand(3, 4), dtype=torch.float32))
    return made


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_lifted_is_refused_by_name_before_anything_is_trained(name, engine):
    make, fed, message = WRONG[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        Simulator(fed, Local(Model(make())), engine=engine, device="cpu")


def test_what_is_no_module_is_refused_when_it_is_given():
    with pytest.raises(TypeError, match=r"network must be a torch\.nn\.Module, or a function that makes one .*, got 3"):
        Module(3)
    with pytest.raises(ValueError, match="start must be one of 'drawn', 'own', got 'trained'"):
        Module(nn.Linear(4, 8), start="trained")
    with pytest.raises(ValueError, match=r"cannot be copied.*parametrizations"), pytest.warns(FutureWarning):
        Module(nn.utils.weight_norm(nn.Linear(4, 8)))
    with pytest.raises(AttributeError, match=r"depends on the inputs: ask Model\.of\(spec\)"):
        Model(nn.Linear(4, 8)).latent  # noqa: B018
    for other in (3, nn.Linear):
        with pytest.raises(ValueError, match="phi must be a Network"):
            Model(other)


# --- wherever a network goes ------------------------------------------------------------------------------------------


def test_a_module_goes_wherever_a_network_does():
    assert isinstance(Module(nn.Linear(4, 8)), Network)
    by_client = PerClient({"client-0": nn.Linear(4, 5), "client-1": nn.Linear(4, 5)}, otherwise=MLP((), 5))
    assert isinstance(by_client, Network)
    runs = both(EQUAL, by_client, Local)
    assert largest_difference(*runs) < 1e-9
    cohorts = Simulator(EQUAL, Local(Model(by_client)), device="cpu").cohorts
    assert [cohort.members for cohort in cohorts] == [(0, 1), (2, 3)], "equal modules share a stack"
    assert largest_difference(*both(IMAGES, Augmented(CONV, padding=1))) < 1e-9
    rng = np.random.default_rng(0)
    clients = [
        Client(x := {"a": rng.normal(size=(9, 3)), "b": rng.normal(size=(9, width))}, y := np.arange(9) % 3, x, y, name)
        for name, width in (("one", 4), ("two", 4), ("three", 5))
    ]
    phi = Blocks({"a": nn.Linear(3, 4), "b": lambda shape: nn.Linear(*shape, 4)}, out=6)
    assert largest_difference(*both(Federation(clients, 3), phi, Local)) < 1e-9


def test_stacks_side_by_side_do_not_disturb_each_other():
    """Threads share a module only in turns."""
    method = Local(Model(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 5))), local_epochs=5)
    one, many = (simulate(EQUAL, method, stack_size=1, workers=w, **OPTIONS) for w in (1, 4))
    for a, b in zip(one.params, many.params, strict=True):
        assert_same_tensors(a, b)


def test_a_class_that_was_written_anew_is_another_network():
    """As in a notebook, where a cell is changed and run again: what the first one computed is not used again."""

    def written(factor):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 5)

            def forward(self, x):
                return factor * self.layer(x)

        return Module(Scaled())

    a, b = written(1), written(2)
    params, x = a.init((4,), stream(0, "x", 0, "test")), torch.ones(3, 4)
    torch.testing.assert_close(b(params, x), 2 * a(params, x))


# --- networks that are no modules -------------------------------------------------------------------------------------


def test_the_docstring_of_a_network_shows_one_that_runs():
    found = doctest.DocTestFinder().find(layers.Network, "Network", globs={})
    results = [doctest.DocTestRunner().run(each) for each in found]
    assert (sum(r.failed for r in results), sum(r.attempted for r in results)) == (0, 5)


@dataclass(frozen=True)
class Standardised:
    """A network that pads badly: zeros would count in its mean over the inputs."""

    out: int = 4

    def init(self, shape, rng, part="phi"):
        return {f"{part}.weight": layers.linear_init(rng, shape[0], shape[0], self.out)}

    def draws(self, part="phi"):
        return {}

    def __call__(self, params, x, noise=None, part="phi"):
        return (x - x.mean(1, keepdim=True)) @ params[f"{part}.weight"]


@dataclass(frozen=True)
class Padded(Standardised):
    padded = True

    def __call__(self, params, x, noise=None, part="phi"):
        return x @ params[f"{part}.weight"]


class Lifting(Standardised):
    """What somebody may write who brings a module by hand: its dropout stays on, its statistics are forgotten."""

    def __init__(self, layer, out=4):
        object.__setattr__(self, "net", nn.Sequential(nn.Linear(4, 4), layer))
        object.__setattr__(self, "out", out)

    def init(self, shape, rng, part="phi"):
        return {f"{part}.{n}": layers.linear_init(rng, 4, *p.shape) for n, p in self.net.named_parameters()}

    def __call__(self, params, x, noise=None, part="phi"):
        mine = {n.removeprefix(f"{part}."): p for n, p in params.items() if n.startswith(f"{part}.")}
        return torch.func.functional_call(self.net, mine, (x,))


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(
    ("phi", "message"),
    [
        (Lifting(nn.Dropout(0.5)), "network Lifting draws random numbers itself when it is used; .* networks.Module"),
        (Lifting(nn.BatchNorm1d(4)), "network Lifting cannot take inputs .* more than 1 value per channel"),
        (Lifting(nn.Softmax(0)), "network Lifting computes another output for a sample when others are in its batch"),
        (Lifting(nn.ReLU(), out=5), "network Lifting says out=5, but computes 4 numbers for a sample"),
    ],
)
def test_a_network_of_ones_own_is_tried_as_modules_are(phi, message, engine):
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=f"client 'client-0': .*{message}"):
        Simulator(EQUAL, Local(Model(phi)), engine=engine, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert largest_difference(*both(EQUAL, Lifting(nn.ReLU()))) < 1e-9


def test_inputs_of_a_network_of_ones_own_are_padded_where_it_says_so():
    fed = ragged(6, widths=(2, 9))
    assert largest_difference(*both(fed, Standardised(), Local)) < 1e-9
    assert len(Simulator(fed, Local(Model(Standardised())), device="cpu").cohorts) == len({c.shapes for c in fed})
    assert len(Simulator(fed, Local(Model(Padded())), device="cpu").cohorts) == 1
    assert largest_difference(*both(fed, Padded(), Local)) < 1e-9


# --- what a later process knows ---------------------------------------------------------------------------------------

PROGRAM = """
import math, sys, torch, warnings
from functools import partial
from torch import nn
from hetfl_core import simulate
from hetfl_core.engine.checkpoint import CheckpointError
from hetfl_core.methods import Local
from hetfl_core.networks import Model, Module
sys.path.insert(0, {tests!r})
from small import ragged

class Linear:
    def __init__(self, width): self.out, self.act = width, torch.relu
    def init(self, shape, rng, part="phi"):
        return {{f"{{part}}.w": torch.randn(math.prod(shape), self.out, generator=rng) * 0.1}}
    def draws(self, part="phi"): return {{}}
    def __call__(self, params, x, noise=None, part="phi"): return self.act(x.flatten(1) @ params[f"{{part}}.w"])

class Net(nn.Module):
    def __init__(self, width, act=lambda z: z.relu()):
        super().__init__()
        self.layer, self.act = nn.Linear(4, width), act
    def forward(self, x): return self.act(self.layer(x)){factor}

def make(width, shape): return nn.Sequential(nn.Linear(shape[0], width))

W = {width}
warnings.simplefilter("error")
for kind, phi in {{
    "class": Linear(W), "Sequential": nn.Sequential(nn.Linear(4, W), nn.ReLU()), "Module": Net(8),
    "function": Module(lambda shape: make(W, shape)), "partial": Module(partial(make, W)), "lazy": nn.LazyLinear(W),
}}.items():
    method = Local(Model(phi), local_epochs=1)
    try:
        run = simulate(ragged(2, widths=(4, 4)), method, rounds={rounds}, checkpoint=kind, device="cpu", progress=False)
        print(kind, run.settings["method"]["model"]["phi"])
    except CheckpointError as error:
        print(kind, "refused", "other settings" in str(error))
"""


def written_down(folder: Path, rounds: int, width: int = 8, factor: str = "") -> Path:
    """The program's file; a program is always the same file."""
    (file := folder / "program.py").write_text(
        PROGRAM.format(tests=str(Path(__file__).parent), rounds=rounds, width=width, factor=factor)
    )
    return file


def said(lines: str) -> dict[str, str]:
    """What a program says of each kind of network that it goes on with."""
    return dict(line.split(" ", 1) for line in lines.splitlines())


@pytest.mark.nightly
def test_runs_go_on_in_another_process_and_not_with_another_network(tmp_path, monkeypatch, capsys):
    """The first and the last run in this process, for a process costs seconds to start; each as its main program."""

    def here(**options):
        with warnings.catch_warnings():
            runpy.run_path(str(written_down(tmp_path, **options)), run_name="__main__")
        return said(capsys.readouterr().out)

    monkeypatch.chdir(tmp_path)
    first = here(rounds=1)
    assert not any("0x" in what or "refused" in what for what in first.values())
    other = subprocess.run(
        [sys.executable, written_down(tmp_path, rounds=2, factor="  # as it is")], capture_output=True, text=True
    )
    assert other.returncode == 0, other.stderr
    assert said(other.stdout) == first
    refused = here(rounds=3, width=9, factor=" * 2")
    assert refused == dict.fromkeys(first, "refused True")


def test_a_network_without_source_is_refused_with_a_checkpoint_before_it_is_trained(tmp_path):
    names: dict = {"__name__": "typed"}
    exec(
        "from torch import nn\n"
        "class Typed(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.layer = nn.Linear(4, 5)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n"
        "make = lambda shape: nn.Linear(4, 5)\n",
        names,
    )
    for phi, what in ((names["Typed"](), "Typed"), (Module(names["make"]), "<lambda>")):
        method = Local(Model(phi), local_epochs=1)
        with pytest.raises(CheckpointError, match=f"'{what}', which Local uses, has no source .* define it in a file"):
            simulate(EQUAL, method, checkpoint=tmp_path, on_round=lambda row: pytest.fail("trained"), **OPTIONS)
        assert not list(tmp_path.iterdir())
        assert "0x" not in str(simulate(EQUAL, method, **OPTIONS).settings)


def test_settings_of_the_librarys_own_networks_are_as_they_were():
    found = checkpoint.method_settings(Local(Model(MLP((6,), 4), alpha=4)), EQUAL.specs())
    assert found["model"] == {
        "class": "Model", "phi": {"class": "MLP", "hidden": [6], "out": 4, "activation": "relu", "dropout": 0.0,
                                  "last": None}, "alpha": 4, "gaussian": None,
    }  # fmt: skip


def test_what_a_module_holds_counts_and_what_is_trained_does_not():
    def known(net, **options):
        return Module(net, **options).described([(4,)])

    def changed(net, change):
        change(net)
        return net

    torch.manual_seed(0)
    assert known(net()) == known(net())
    assert known(net(), start="own") != known(net(), start="own")
    assert known(nn.LazyLinear(8)) == known(nn.LazyLinear(8)), "however many hooks there were before"
    assert known(half_frozen()) == known(half_frozen())
    different = [
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5, bias=False)),
        changed(net(), lambda n: n[0].requires_grad_(False)),
        changed(net(), lambda n: n.register_buffer("scale", torch.ones(2))),
        changed(net(), lambda n: n.register_buffer("scale", torch.zeros(2))),
        changed(net(), lambda n: n.register_forward_hook(lambda net, x, y: 2 * y)),
        changed(net(), lambda n: setattr(n, "factor", 3)),
    ]
    assert len({str(known(n)) for n in [net(), *different]}) == 8
    untied = Tied()
    untied.b.weight = nn.Parameter(untied.a.weight.detach().clone())
    assert known(Tied()) != known(untied)


def test_what_holds_itself_is_described_and_lambdas_have_a_source():
    holder: list = [1, lambda x: x + 1]
    holder.append(holder)
    assert described(holder)[0] == 1
    assert described(holder)[2] == "…"
    assert source(holder[1]) != source(lambda x: x + 2)
    assert replace(Local(Model(net())), lr=0.1).model == Local(Model(net())).model


class Holder:
    def __init__(self, **kept):
        vars(self).update(kept)

    def call(self, x):
        return doubled(x)


def doubled(x):
    """Twice as much."""
    return 2 * x


def test_an_object_is_described_by_its_kind_and_by_what_it_holds():
    def scaled(x, by=2):
        return factor * by * x

    factor = 3
    assert described([1, "a", None, range(3), Holder]) == [1, "a", None, "range(0, 3)", "Holder"]
    same, other = (torch.arange(3.0) + i for i in (0, 1))
    tensor, array = described(same), described(same.numpy())
    assert tensor["shape"] == array["shape"] == [3]
    assert len(tensor["digest"]) == 12
    assert tensor == described(same.clone()) != described(other)
    assert array == described(same.numpy().copy()) != described(other.numpy())
    assert tensor != described(same.double())
    function = described(scaled)
    code = function.pop("code")
    name = "test_an_object_is_described_by_its_kind_and_by_what_it_holds.<locals>.scaled"
    assert function == {"function": name, "defaults": [2], "factor": 3}
    assert code != described(doubled)["code"]
    function["code"] = code
    assert described(partial(scaled, 1, by=5)) == {"class": "partial", "func": function, "args": [1], "by": 5}
    holder = Holder(a=1, t=same, more={"net": nn.Flatten()})
    inside = {"a": 1, "t": tensor, "more": {"net": described(nn.Flatten())}}
    assert described(holder) == {"class": "Holder", **inside}
    method = described(holder.call)
    assert (method["function"], method["self"]) == ("Holder.call", {"class": "Holder", **inside})


def test_the_source_of_an_object_is_that_of_all_that_is_written_here():
    """Its class, what it holds, and what a function calls by name; not what libraries, or known modules, bring."""
    holder = Holder(f=lambda x: x, net=nn.Sequential(half_frozen(), Tied()), more=[partial(doubled), Holder.call])
    assert written(holder).keys() == {Holder, holder.f, Tied, doubled, Holder.call}
    assert written(Holder(n=1).call).keys() == {Holder, Holder.call, doubled}
    assert written(holder, (__name__,)) == {}
    assert written([nn.Linear(2, 2), np.zeros(2), math.sqrt, 3]) == {}
    assert source(doubled) == bare_source("def doubled(x):\n    return 2 * x  # bare\n")
