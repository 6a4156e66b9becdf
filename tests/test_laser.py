"""LASER-VFL's fusion: its loss against all subsets of the blocks, and what it answers with those that are there."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from small import assert_same_tensors, ragged
from test_blocks import FED, OPTIONS, holding

from hetfl_core import Federation, simulate
from hetfl_core.methods import Batch, FedAvg, LaserVFL
from hetfl_core.networks import MLP, Blocks, Model

PHI = Blocks.alike("abc", MLP((), 4), 6)
SETTING = {"model": Model(PHI), "local_epochs": 1, "batch_size": 7, "lr": 0.05}
WHOLE = Federation([holding("z", "abc")], 3)


def begun() -> tuple[LaserVFL, dict, Batch]:
    """A client with all three blocks, its first parameters, and its training samples."""
    method = LaserVFL(**SETTING)
    server = method.init_server(WHOLE.specs(), torch.Generator().manual_seed(1))
    data = WHOLE.to(torch.float64)["z"]
    batch = Batch(data.x_train, data.y_train, torch.ones(len(data.y_train), dtype=torch.float64))
    return method, {name: p.double() for name, p in server.items()}, batch


def loss_of(params, batch, blocks) -> torch.Tensor:
    """Cross-entropy of the head on the mean of these blocks' features, written out."""
    z = [batch.x[b] @ params[f"phi.{b}.0.weight"] + params[f"phi.{b}.0.bias"] for b in blocks]
    outputs = sum(z) / len(z) @ params["beta.weight"] + params["beta.bias"]
    return torch.nn.functional.cross_entropy(outputs, batch.y)


def test_over_all_draws_the_loss_is_the_mean_over_all_subsets():
    method, params, batch = begun()
    orders = [torch.tensor(order, dtype=torch.float64) for order in itertools.permutations(range(3))]
    drawn = [{"subsets": torch.stack([order] * 3)} for order in orders]
    mean = torch.stack([method.loss(params, params, batch, noise).total for noise in drawn]).mean()
    subsets = [some for k in (1, 2, 3) for some in itertools.combinations("abc", k)]
    assert len(subsets) == 7
    torch.testing.assert_close(mean, torch.stack([loss_of(params, batch, some) for some in subsets]).mean())


def test_a_step_takes_one_subset_of_each_size_weighted_by_how_many_there_are():
    method, params, batch = begun()
    draws = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.8, 0.3], [0.0, 0.0, 0.0]], dtype=torch.float64)
    found = method.loss(params, params, batch, {"subsets": draws})
    expected = 3 / 7 * loss_of(params, batch, "b") + 3 / 7 * loss_of(params, batch, "ac")
    expected = expected + 1 / 7 * loss_of(params, batch, "abc")
    torch.testing.assert_close(found.total, expected)
    torch.testing.assert_close(found.terms["ce"], loss_of(params, batch, "abc"))
    assert method.noise(WHOLE.specs()[0], method.stages(1, "round")[0])["subsets"].shape == (3, 3)


def test_without_subsets_it_is_trained_on_all_blocks_at_once():
    method, params, batch = begun()
    whole = replace(method, subsets=False)
    assert "subsets" not in whole.noise(WHOLE.specs()[0], whole.stages(1, "round")[0])
    torch.testing.assert_close(whole.loss(params, params, batch, {}).total, loss_of(params, batch, "abc"))


def test_clients_and_server_answer_with_the_blocks_that_are_there():
    result = simulate(FED, LaserVFL(**SETTING), **OPTIONS)
    method = LaserVFL(**SETTING)
    x = {b: t.double() for b, t in FED["z"].x_test.items()}
    for some in ("a", "bc", "abc"):
        held = {b: t if b in some else t[:, :0] for b, t in x.items()}
        p = result.server
        z = [x[b] @ p[f"phi.{b}.0.weight"] + p[f"phi.{b}.0.bias"] for b in some]
        expected = sum(z) / len(z) @ p["beta.weight"] + p["beta.bias"]
        torch.testing.assert_close(method.predict_server(p, held), expected)
    parts = {name.split(".")[1] for name in result.params[1] if name.startswith("phi.")}
    assert parts == {"b", "c"}, "what client v holds"
    assert method.of(FED.specs()[1]).embed(result.params[1], {}, FED.to(torch.float64)["v"].x_test).shape == (9, 4)
    assert 0 <= result.final["server_accuracy"] <= 1


def test_what_is_averaged_is_what_holders_sent():
    """One round of one step with rate 0: everything stays, whoever holds what."""
    method = LaserVFL(**SETTING | {"lr": 0.0})
    result = simulate(FED, method, **OPTIONS)
    first = method.init_server(FED.specs(), torch.Generator().manual_seed(0))
    assert result.server.keys() == first.keys()
    for params in result.params:
        assert_same_tensors(params, {name: result.server[name] for name in params})


def test_with_one_tensor_it_is_fedavg():
    fed = ragged(3, widths=(4, 4, 4))
    options = {**OPTIONS, "participation": 1.0}
    plain = {**SETTING, "model": Model(MLP((5,), 3))}
    runs = [simulate(fed, method(**plain), **options) for method in (LaserVFL, FedAvg)]
    assert_same_tensors(runs[0].server, runs[1].server)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model(Blocks({"a": MLP((), 4), "b": MLP((), 3), "c": MLP((), 4)})), "extractors must be alike in out, got"),
        (Model(PHI, gaussian=3), "LASER-VFL has one head over the mean of all blocks"),
    ],
)
def test_what_has_no_mean_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        simulate(FED, LaserVFL(**SETTING | {"model": model}), **OPTIONS)
