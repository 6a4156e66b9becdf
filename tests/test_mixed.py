"""Clients of different architectures in one federation: a method trains on them, or says which two it cannot mix."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference, ragged

from hetfl_core import Client, adapt, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import CATALOGUE, FedAvg, FedPer, LGFedAvg, Local
from hetfl_core.methods.base import Method
from hetfl_core.networks import MLP, Model, PerClient

FED = ragged(6, widths=(4, 4))
NAMES = [client.name for client in FED]
SHALLOW, DEEP, OTHER = MLP((), 5), MLP((7, 6), 5), MLP((7, 6), 5, activation="tanh")
MIXED = PerClient.in_turn(NAMES, [SHALLOW, DEEP, OTHER])
OPTIONS = {"rounds": 2, "participation": 0.7, "device": "cpu", "progress": False, "dtype": torch.float64}


def mixed(name: str, **changes) -> Method:
    method = CATALOGUE[name]
    brief = {"pretrain_epochs": 1, "local_epochs": 1, "batch_size": 6, "generator_steps": 3}
    brief = {setting: value for setting, value in brief.items() if getattr(method, setting, 0)}
    return replace(method, model=replace(method.model, phi=MIXED), **brief, **changes)


def shares_phi(method: Method) -> bool:
    return "phi" in method.shared


@pytest.mark.parametrize("name", [name for name, method in CATALOGUE.items() if not shares_phi(method)])
def test_every_method_that_keeps_embeddings_local_trains_on_a_mixed_federation(name):
    """Stacked = loop, and each client has the network that was dealt to it."""
    runs = {engine: simulate(FED, mixed(name), engine=engine, **OPTIONS) for engine in ("stacked", "loop")}
    assert largest_difference(runs["stacked"], runs["loop"]) < 1e-9
    layers = [{n.split(".")[-2] for n in p if "phi" in n and n.endswith("weight")} for p in runs["loop"].params]
    assert layers == [{"0"}, {"0", "1", "2"}, {"0", "1", "2"}] * 2
    method = runs["loop"].method
    assert runs["loop"].embed("test")["client-0"].shape == (len(FED[0].y_test), method.model.latent)


@pytest.mark.parametrize("name", [name for name, method in CATALOGUE.items() if shares_phi(method)])
def test_every_method_that_averages_embeddings_names_the_two_clients_and_the_part(name):
    with pytest.raises(
        ValueError, match=r"averages 'phi\.1\.bias', which all clients must have: 'client-1' has it and "
    ):
        simulate(FED, mixed(name), **OPTIONS)
    same_shapes = PerClient({"client-2": OTHER}, otherwise=DEEP)
    method = replace(mixed(name), model=replace(mixed(name).model, phi=same_shapes))
    with pytest.raises(ValueError, match=r"averages φ, .* MLP\(.*relu.* on 'client-0' but MLP\(.*tanh.* on 'client-2'"):
        simulate(FED, method, **OPTIONS)


def test_layers_of_different_networks_are_not_averaged_either():
    with pytest.raises(ValueError, match=r"LG-FedAvg averages φ, which must be one network on all clients"):
        simulate(FED, LGFedAvg(Model(PerClient({"client-2": OTHER}, otherwise=DEEP)), layers=("phi.1",)), **OPTIONS)


def test_a_federation_of_one_network_by_clients_is_that_of_the_network():
    """Bit for bit, for a method that averages it and one that does not."""
    one = PerClient(dict.fromkeys(NAMES, DEEP))
    for kind in (FedAvg, LGFedAvg):
        found, plain = (simulate(FED, kind(Model(phi), local_epochs=1), **OPTIONS) for phi in (one, DEEP))
        assert equal_histories(found.history, plain.history)
        for a, b in zip(found.params, plain.params, strict=True):
            assert_same_tensors(a, b)


def test_a_client_does_not_depend_on_the_architectures_of_others():
    """With Local each client learns what it learns where all have its network, dropout and all."""
    wet = MLP((7, 6), 5, dropout=0.5)
    together = PerClient.in_turn(NAMES, [SHALLOW, DEEP, wet])
    result = simulate(FED, Local(Model(together), local_epochs=2), **OPTIONS)
    for i, phi in enumerate((SHALLOW, DEEP, wet)):
        alone = simulate(FED, Local(Model(phi), local_epochs=2), **OPTIONS)
        for j in (i, i + 3):
            for name, p in alone.params[j].items():
                torch.testing.assert_close(result.params[j][name], p, rtol=0, atol=1e-12)


def test_networks_of_equal_shapes_share_no_stack():
    simulator = Simulator(FED, Local(Model(MIXED)), device="cpu")
    assert [sorted(cohort.members) for cohort in simulator.cohorts] == [[0, 3], [1, 4], [2, 5]]


def test_a_mixed_run_resumes_bit_for_bit_and_does_not_depend_on_the_order_of_clients(tmp_path):
    method = mixed("LG-FedAvg")
    whole = simulate(FED, method, **{**OPTIONS, "rounds": 3})
    simulate(FED, method, checkpoint=tmp_path, **{**OPTIONS, "rounds": 1})
    resumed = simulate(FED, method, checkpoint=tmp_path, **{**OPTIONS, "rounds": 3})
    assert equal_histories(resumed.history, whole.history)
    turned = simulate(FED.subset(NAMES[::-1]), method, **{**OPTIONS, "rounds": 3})
    for a, b in zip(turned.params[::-1], whole.params, strict=True):
        assert_same_tensors(a, b)


def test_who_joins_later_needs_a_network():
    new = [Client(FED[0].x_train, FED[0].y_train, FED[0].x_test, FED[0].y_test, "late")]
    run = simulate(FED, mixed("LG-FedAvg"), **OPTIONS)
    with pytest.raises(
        ValueError, match=r"networks must have one for client 'late', or `otherwise` one for all others"
    ):
        adapt(run, new, progress=False)
    open_to_all = replace(MIXED, otherwise=SHALLOW)
    run = simulate(FED, replace(mixed("LG-FedAvg"), model=Model(open_to_all)), **OPTIONS)
    assert "phi.1.weight" not in adapt(run, new, rounds=1, progress=False).params[0]


@dataclass(frozen=True)
class Telling(FedPer):
    """Says of each client which network its hooks see."""

    shared = ()

    def upload(self, params, received, data, memory):
        return {"depth": torch.tensor([float(len(self.model.phi.hidden))])}

    def aggregate(self, server, uploads, weights, specs, rng):
        assert [float(u["depth"]) for u in uploads] == [len(self.model.of(s).phi.hidden) for s in specs]
        return server


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_hooks_see_the_network_of_their_client(engine):
    method = Telling(Model(MIXED), local_epochs=1)
    simulate(FED, method, engine=engine, **{**OPTIONS, "participation": 1.0})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerClient({}), r"networks must hold a network for at least one client, got \{\}"),
        (lambda: PerClient({"a": MLP((), 3), "b": MLP((), 4)}), r"one latent dimension in common, got out=\[3, 4\]"),
        (lambda: PerClient({"a": MLP((), 3)}, otherwise=MLP((), 4)), r"got out=\[3, 4\]"),
        (lambda: PerClient({"a": "mlp"}), "networks must be"),
        (lambda: PerClient({"a": MIXED}), r"networks must be embeddings such as MLP\(\)"),
        (lambda: PerClient.in_turn(["a"], []), "networks must be at least one, got none"),
        (lambda: MIXED.init((4,), torch.Generator()), "PerClient has no parameters of its own"),
        (lambda: MIXED.draws(), "PerClient draws nothing itself"),
        (lambda: MIXED({}, torch.zeros(1, 4)), "PerClient computes nothing itself"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
