"""`FLIC.published` against a run of the published code, and what it is made of (``tests/published/flic.json``)."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from hetfl_core import Client, Federation, adapt, simulate, simulate_seeds
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Spec
from hetfl_core.methods import FLIC, HetFedRep
from hetfl_core.methods.alignment import MMD
from hetfl_core.methods.anchor_terms import class_mmd_sampled, class_wasserstein_sampled
from hetfl_core.methods.schemes import L2GDScheme
from hetfl_core.networks import CNN, MLP, Model

FILE = json.loads((Path(__file__).parent / "published" / "flic.json").read_text())
RUNS = FILE["runs"] | {f"BCI, {name}": run for name, run in FILE["bci"]["runs"].items()}
NAMES = {
    "phi": {"layer_input": "phi.0", "layer_hidden1": "phi.1", "layer_out": "phi.2"},
    "head": {"layer_input": "alpha", "layer_out": "beta"},
}


def double(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def ours(state, part):
    """Tensors of a state_dict under our names; PyTorch's linear layers have the transposed weights."""
    split = {name: name.split(".") for name in state}
    return {
        f"{NAMES[part][layer]}.{kind}": double(state[name]).mT.contiguous() if kind == "weight" else double(state[name])
        for name, (layer, kind) in split.items()
    }


def federation(name=""):
    bci = name.startswith("BCI")
    clients = []
    for i, samples in enumerate(FILE["bci"]["data"] if bci else FILE["data"]):
        x, y = double(samples["x"]), torch.tensor(samples["y"])
        clients.append(Client(x, y, x, y, f"client {i}"))
    return Federation(clients, 5 if bci else 3)


@dataclass(frozen=True)
class Begun(FLIC):
    """FLIC that begins where a run of the published code did."""

    run: str = ""

    def init_server(self, specs, rng):
        first = RUNS[self.run]["first"]
        known = ours(first["net"], "head") | {"anchor.mean": double(first["mu"])}
        return {name: known[name] for name in super().init_server(specs, rng)}

    def init_client(self, spec, rng):
        first = RUNS[self.run]["first"]
        known = ours(first["phi"][int(spec.name[-1])], "phi") | ours(first["net"], "head")
        return {name: known.get(name, p) for name, p in super().init_client(spec, rng).items()}


def published(name, **changes):
    """The settings of the file's runs. Where an anchor has no variance, what is drawn of it is its mean."""
    changes = {"pretrain_epochs": 3, "alignment_weight": 0.01, "anchor_weight": 0.02} | changes
    if name == "HetFedRep":
        changes |= {"pretrain_epochs": 0, "alignment_weight": 0.0, "anchor_weight": 0.0}
    if "MMD" in name:
        changes = {"pretrain_alignment": MMD.published()} | changes
    activation = "leaky_relu" if name.startswith("BCI") else "relu"  # of its dropout nothing is left in the runs
    model = Model(MLP(hidden=(6, 6), out=4, activation=activation), alpha=None if name == "FLIC-Class" else 5)
    own = {"model": model, "local_epochs": 6, "representation_epochs": 3, "finetune_epochs": 10, "run": name}
    own |= {"pretrain_batch": 100, "anchor_variance": 1e-40, "representation_from": 1}
    return Begun.published(**(own | changes))


def gaps(name, **changes):
    """For each part, how far a run of ours ends from the published code's, and how far that went from its beginning."""
    federated = federation(name)
    found = simulate(federated, published(name, **changes), rounds=2, participation=1.0, dtype=torch.float64)
    first, last = RUNS[name]["first"], RUNS[name]["last"]
    far: dict[str, float] = {}
    went: dict[str, float] = {}
    for i, params in enumerate(found.params):
        begun = ours(first["phi"][i], "phi") | ours(first["net"], "head") | {"anchor.mean": double(first["mu"])}
        ended = ours(last["phi"][i], "phi") | ours({**last["head"][i], **last["shared"]}, "head")
        for tensor, p in (ended | {"anchor.mean": double(last["mu"])}).items():
            part = tensor.split(".")[0]
            far[part] = max(far.get(part, 0.0), float((params[tensor] - p).abs().max()))
            went[part] = max(went.get(part, 0.0), float((begun[tensor] - p).abs().max()))
    return far, went


def agrees(name, **changes):
    """Whether all but the anchors end where the published code's do, to the file's digits or what the anchors move.

    The anchors' gradient is taken before a step there after it, and their optimizer starts anew with the epochs on α.
    What they are off by moves φ a little in the next round.
    """
    far, went = gaps(name, **changes)
    assert min(went["phi"], went["anchor"]) > 0.02
    limits = {"phi": 1e-3, "beta": 1e-4, "alpha": 1e-5, "anchor": 0.025}
    return all(far[part] < limits[part] * went[part] for part in far)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_where_that_of_the_published_code_does(name):
    """Three clients, two rounds, of which the first leaves α alone, and the last training."""
    assert agrees(name)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("FLIC-HL", {"representation_from": 0}),
        ("FLIC-HL", {"representation_within": False}),
        ("FLIC-HL", {"head_decay": 0.0}),
        ("FLIC-HL", {"shared_decay": 0.0}),
        ("FLIC-HL", {"anchor_step": "each"}),
        ("FLIC-HL", {"anchor_step": "once"}),
        ("FLIC-HL", {"realign": False}),
        ("FLIC-HL", {"anchor_weight": 0.0}),
        ("FLIC-Class", {"head_decay": 0.0}),
        ("FLIC-Class", {"anchor_step": "each"}),
        ("FLIC-Class", {"finetune_epochs": 9}),
        ("HetFedRep", {"realign": False}),
        ("BCI, FLIC-HL", {"model": Model(MLP(hidden=(6, 6), out=4), alpha=5)}),
        ("BCI, FLIC-HL", {"anchor_classes": "held", "anchor_step": "once"}),
        ("BCI, FLIC-HL, MMD", {"pretrain_alignment": None}),
        ("BCI, FLIC-HL, MMD", {"alignment": MMD.published()}),
    ],
)
def test_each_switch_of_the_published_code_is_needed_for_that(name, change):
    assert not agrees(name, **change)


# --- what it is made of ---------------------------------------------------------------------------------------------


def sine(*shape):
    """What the file's networks and inputs are filled with."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) + 1).sin().reshape(shape) / 5


def filled(shapes):
    """Weights in PyTorch's order of axes, then laid out as ours are."""
    return {name: sine(*reversed(shape)).mT if len(shape) == 2 else sine(*shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("called", "phi"),
    [("MLP_preproc", MLP(hidden=(6, 6), out=4)), ("MLP_preproc_drop", MLP((6, 6), 4, "leaky_relu", dropout=0.5))],
)
def test_embeddings_are_the_published_codes(called, phi):
    shapes = {"phi.0.weight": (3, 6), "phi.0.bias": (6,), "phi.1.weight": (6, 6), "phi.1.bias": (6,)}
    params = filled(shapes | {"phi.2.weight": (6, 4), "phi.2.bias": (4,)})
    z = Model(phi).embed(params, sine(4, 3) * 10)
    torch.testing.assert_close(z, double(FILE["networks"][called]), rtol=0, atol=2e-9)
    assert [kind[1] for kind in FILE["dropout"][called]] == [phi.dropout] * bool(phi.dropout)


def test_the_head_is_the_published_codes():
    shapes = {"alpha.weight": (4, 5), "alpha.bias": (5,), "beta.weight": (5, 3), "beta.bias": (3,)}
    logits = Model(MLP(out=4), alpha=5).head(filled(shapes), sine(4, 4))
    torch.testing.assert_close(logits, double(FILE["networks"]["MLP_tensor_simple"]), rtol=0, atol=2e-9)


def test_the_network_of_digits_is_the_published_codes_and_drops_whole_channels_there():
    spec = Spec("usps", (1, 16, 16), 4, 2, (2, 2), 1)
    model = Model(CNN(out=4, dropout=0.5))
    shapes = {name: tuple(p.shape) for name, p in model.init(spec, torch.Generator(), ("phi",)).items()}
    z = model.embed(filled(shapes), sine(2, 1, 16, 16))
    torch.testing.assert_close(z, double(FILE["networks"]["DigitsPreProc"]), rtol=0, atol=2e-9)
    assert FILE["dropout"]["DigitsPreProc"] == [["Dropout2d", 0.5]]
    assert [draw.shape[1:] for draw in model.draws().values()] == [(1, 1)], "one number a channel"


def test_the_sampled_distance_is_the_published_codes_but_for_its_constants():
    z, samples = sine(5, 4) * 5, sine(2, 5, 4)[1] * 5 + 0.5
    y = torch.zeros(5, dtype=torch.int64)
    ours = class_wasserstein_sampled(z, samples, y, torch.ones(5, dtype=torch.float64), 1)
    assert float(ours) == pytest.approx(FILE["distances"]["calculate_2_wasserstein_dist"], abs=0.01)


def test_the_discrepancy_is_the_published_codes():
    z, samples = sine(5, 4) * 5, sine(2, 5, 4)[1] * 5 + 0.5
    y, weight = torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.float64)
    ours = class_mmd_sampled(z, samples, y, weight, 1, MMD.published().gammas)
    assert float(ours) == pytest.approx(FILE["distances"]["calculate_mmd"], rel=1e-12)


def test_only_bci_has_dropout_among_the_published_embeddings_of_vectors():
    """Which is why `FLIC.published` has the text's network unless told otherwise."""
    assert FLIC.published().model == FLIC().model
    dropping = {name for name, network in FILE["embeddings"].items() if network == "MLP_preproc_drop"}
    assert dropping == {name for name in FILE["embeddings"] if "bci" in name}


# --- the start, and the exchange after the last training ------------------------------------------------------------


def begun(method):
    return Simulator(federation(), method, dtype=torch.float64).initial().client_states


@pytest.mark.parametrize("method", [FLIC(), FLIC(model=Model()), HetFedRep(), FLIC(scheme=L2GDScheme())])
def test_clients_can_begin_with_one_head_behind_embeddings_of_their_own(method):
    own, same = begun(method), begun(replace(method, init="heads"))
    heads = [name for name in own[0] if "beta" in name]
    assert heads
    for name in heads:
        assert torch.equal(same[0][name], same[1][name])
        assert not torch.equal(own[0][name], own[1][name])
    for a, b in zip(own, same, strict=True):
        assert all(torch.equal(p, b[name]) for name, p in a.items() if name.startswith("phi"))


@pytest.mark.parametrize("init", ["own", "common", "heads"])
def test_which_classes_a_client_holds_is_its_own_wherever_it_begins(init):
    clients = [
        Client(torch.ones(2, 3), torch.tensor([c, 2]), torch.ones(2, 3), torch.tensor([c, 2]), f"client {c}")
        for c in (0, 1)
    ]
    states = Simulator(Federation(clients, 3), FLIC(init=init)).initial().client_states
    assert [state["classes"].tolist() for state in states] == [[1, 0, 1], [0, 1, 1]]


def test_the_last_exchange_counts_and_averages_what_all_clients_send():
    code = FLIC.published(model=Model(MLP(hidden=(), out=4), alpha=5), pretrain_epochs=1, local_epochs=2)
    options = {"rounds": 1, "participation": 1 / 3, "dtype": torch.float64}
    closing = simulate(federation(), code, **options)
    before = simulate(federation(), replace(code, anchor_step="each"), **options)
    message = sum(p.numel() * p.element_size() for p in closing.server.values())
    assert closing.final["bytes_up"] == before.final["bytes_up"] + 3 * message
    assert closing.final["bytes_down"] == before.final["bytes_down"] + 3 * message, "all align once more"
    torch.testing.assert_close(closing.server["alpha.weight"], before.server["alpha.weight"])  # α waits for round 21
    assert not torch.equal(closing.server["anchor.mean"], before.server["anchor.mean"])


def test_runs_side_by_side_close_as_one_by_one():
    code = FLIC.published(model=Model(MLP(hidden=(), out=4)), pretrain_epochs=1, local_epochs=2)
    options = {"rounds": 1, "participation": 1.0, "dtype": torch.float64}
    together = simulate_seeds(federation(), code, seeds=[0, 1], **options)
    alone = simulate(federation(), code, seed=1, **options)
    torch.testing.assert_close(together[1].server, alone.server)
    torch.testing.assert_close(together[1].params, alone.params)


def test_new_clients_join_a_published_run_without_moving_its_anchors():
    code = FLIC.published(model=Model(MLP(hidden=(), out=4)), pretrain_epochs=1, local_epochs=2)
    run = simulate(federation(), code, rounds=1, participation=1.0, dtype=torch.float64)
    (first, *_) = federation()
    joined = adapt(run, replace(first, name="new"), rounds=1)
    assert torch.equal(joined.server["anchor.mean"], run.server["anchor.mean"])
    assert joined.final["bytes_up"] == 0
