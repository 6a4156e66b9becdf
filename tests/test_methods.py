"""Every method's round, small enough to be worked by hand.

Adam's first step is lr·sign(gradient) (to its ε = 1e-8), so that after a round of one step every parameter has moved
by ± lr or not at all, and the server's mean follows by arithmetic. The network is the smallest there is: φ one
number in, one number out; two classes. Client a holds class 0 only, client b class 1 only; a has three samples, b
one, all with x = 1.
"""

from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch

from hetfl_core import Client, Federation, methods, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Spec
from hetfl_core.methods import CATALOGUE, FLIC, FedAvg, FedAvgFT, FedHeNN, FedProx, FedRep, HetFedRep, Local, Method
from hetfl_core.methods.base import Batch, Stage, pick, weighted_mean
from hetfl_core.methods.descent import decay
from hetfl_core.methods.schemes import L2GDScheme
from hetfl_core.networks import CNN, MLP, Model
from hetfl_core.networks.layers import has_prefix

LR = 0.01
TINY = Model(MLP(hidden=(), out=1))
ONE = {"model": TINY, "local_epochs": 1, "batch_size": 10, "lr": LR}


def two_clients():
    a = Client(np.ones((3, 1)), [0, 0, 0], np.ones((1, 1)), [0], "a")
    b = Client(np.ones((1, 1)), [1], np.ones((1, 1)), [1], "b")
    return Federation([a, b], 2)


def one_round(method, both=(0, 1)):
    simulator = Simulator(two_clients(), method, dtype=torch.float64, device="cpu")
    start = simulator.initial()
    after, _ = simulator.round(start, list(both))
    return start, after


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


def test_local_moves_each_head_towards_its_own_class():
    """d CE/d bias = p − onehot(y): on a (−, +), on b (+, −), and a step goes against it."""
    start, after = one_round(Local(**ONE))
    close(after.client_states[0]["beta.bias"] - start.client_states[0]["beta.bias"], [LR, -LR])
    close(after.client_states[1]["beta.bias"] - start.client_states[1]["beta.bias"], [-LR, LR])
    assert after.server == {}


def test_fedavg_averages_by_samples():
    """Weights 3/4 and 1/4: the bias moves by ¾·(lr, −lr) + ¼·(−lr, lr) = ½·(lr, −lr)."""
    start, after = one_round(FedAvg(**ONE))
    close(after.server["beta.bias"] - start.server["beta.bias"], [LR / 2, -LR / 2])
    assert after.client_states == [{}, {}]


def test_fedavg_with_equal_weights():
    """½·(lr, −lr) + ½·(−lr, lr) = 0."""
    start, after = one_round(FedAvg(**ONE, weighting="uniform"))
    close(after.server["beta.bias"] - start.server["beta.bias"], [0, 0])


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_sgd_with_momentum_clip_and_decay_by_round(decay):
    """Two steps on one sample, worked with NumPy: v ← m·v + clip(g) + λ·b, b ← b − η_t·v, η_t = η·decay^t."""
    settings = {"optimizer": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 0.1, "clip": 0.05, "lr_decay": decay}
    method = Local(model=TINY, batch_size=10, local_steps=2, **settings)
    simulator = Simulator(two_clients(), method, dtype=torch.float64, device="cpu")
    state = simulator.initial()
    for t in (0, 3):
        outcome = simulator.train(state, [1], t, "round")[1]
        params = {name: p.numpy() for name, p in state.client_states[1].items()}
        move = {name: 0.0 for name in params}
        for _ in range(2):
            gradient = gradient_of_client_b(params)
            size = np.sqrt(sum((g**2).sum() for g in gradient.values()))
            for name, p in params.items():
                move[name] = 0.9 * move[name] + gradient[name] * min(1, 0.05 / size) + 0.1 * p
            params = {name: p - 0.2 * decay**t * move[name] for name, p in params.items()}
        for name, p in params.items():
            close(outcome.client_state[name], p)


def gradient_of_client_b(params):
    """Of the cross-entropy of its one sample, x = 1 of class 1, through two linear layers."""
    z = params["phi.0.weight"] @ np.ones(1) + params["phi.0.bias"]
    logits = z @ params["beta.weight"] + params["beta.bias"]
    p = np.exp(logits - logits.max())
    error = p / p.sum() - np.array([0.0, 1.0])
    back = params["beta.weight"] @ error
    return {
        "phi.0.weight": back[None, :], "phi.0.bias": back, "beta.weight": z[:, None] * error, "beta.bias": error,
    }  # fmt: skip


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_trains_with_its_own_optimizer(name):
    """Each stage of each role, so that none falls back to Adam; alignment may have a batch of its own."""
    settings = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.5, "clip": 2.0, "lr_decay": 0.5}
    method = replace(CATALOGUE[name], local_steps=7, **settings)
    for role in ("start", "round", "rest", "final"):
        for stage in method.stages(2, role):
            assert (stage.optimizer, stage.momentum, stage.clip, stage.lr) == ("sgd", 0.5, 2.0, 0.1 * 0.25)
    assert any(stage.steps == 7 for stage in method.stages(2, "round"))


def test_weight_decay_is_for_weights_and_not_for_anchors():
    decays = [stage.weight_decay for stage in FLIC(weight_decay=0.1, head_decay=0.2).stages(1, "round")]
    trained = {"phi": 0.1, "beta": 0.1, "alpha": 0.1, "beta.weight": 0.1 + 0.2}
    assert decays == [trained, 0.0, trained]


def test_fedavg_of_one_participant_is_its_model():
    start, after = one_round(FedAvg(**ONE), both=[1])
    close(after.server["beta.bias"] - start.server["beta.bias"], [-LR, LR])


def test_fine_tuning_moves_each_client_from_the_average():
    simulator = Simulator(two_clients(), FedAvgFT(**ONE, finetune_epochs=1), dtype=torch.float64, device="cpu")
    start = simulator.initial()
    outcomes = simulator.train(start, [0, 1], 1, "final")
    kept = [simulator.method.start({}, o.received) for o in (outcomes[0], outcomes[1])]
    assert all(torch.equal(k["beta.bias"], start.server["beta.bias"]) for k in kept), "the server's copy must stay"
    close(outcomes[0].params["beta.bias"] - start.server["beta.bias"], [LR, -LR])
    close(outcomes[1].params["beta.bias"] - start.server["beta.bias"], [-LR, LR])


def test_fine_tuning_is_what_the_final_figures_see():
    """FedAvg-FT keeps nothing between rounds: its tuned copy must still be the one that is evaluated and embedded."""
    options = {"rounds": 1, "participation": 1.0, "progress": False, "device": "cpu"}
    plain = simulate(two_clients(), FedAvg(**ONE), **options)
    tuned = simulate(two_clients(), FedAvgFT(**{**ONE, "lr": 1.0}, finetune_epochs=20), **options)
    assert tuned.final["accuracy"] == 1.0, "each client has one class only"
    assert plain.final["accuracy"] == 0.5
    assert (tuned.outputs("test")["a"].argmax(1), tuned.outputs("test")["b"].argmax(1)) == (0, 1)


def test_fedprox_pays_for_the_way_from_the_servers_model():
    """Two steps of SGD: the first is FedAvg's, as no way was gone; the second is less by η μ (w₁ − w₀)."""
    sgd = {"model": TINY, "batch_size": 10, "lr": 0.2, "optimizer": "sgd"}
    ends = []
    for method in (
        FedAvg(**sgd, local_steps=1),
        FedAvg(**sgd, local_steps=2),
        FedProx(**sgd, local_steps=2, term_weight=0.7),
    ):
        start, after = one_round(method, both=[1])
        ends.append(after.server)
    for name, first in ends[0].items():
        close(ends[2][name], ends[1][name] - 0.2 * 0.7 * (first - start.server[name]))
    assert any((ends[2][name] - ends[1][name]).abs().max() > 1e-3 for name in ends[0])


def test_fedprox_without_a_price_is_fedavg():
    (_, plain), (_, free) = (one_round(method) for method in (FedAvg(**ONE), FedProx(**ONE, term_weight=0.0)))
    for name, p in plain.server.items():
        assert torch.equal(free.server[name], p)
    with pytest.raises(ValueError, match="term_weight must be at least 0, got -1"):
        FedProx(term_weight=-1)


def representation_step(beta, label):
    """Sign of −dCE/dz for z = φ(x), the way a step moves φ's bias: towards the right class's weight."""
    w = beta["beta.weight"][0]
    return float(torch.sign(w[label] - w[1 - label]))


def test_fedrep_trains_the_head_then_the_representation():
    """dCE/dz = Σ_c (p_c − 1[c=y]) w_c = p_other (w_other − w_y), at the head as it is after its own step."""
    start, after = one_round(FedRep(**ONE))
    close(after.client_states[0]["beta.bias"] - start.client_states[0]["beta.bias"], [LR, -LR])
    moves = [LR * representation_step(after.client_states[i], label) for i, label in ((0, 0), (1, 1))]
    close(after.server["phi.0.bias"] - start.server["phi.0.bias"], [0.75 * moves[0] + 0.25 * moves[1]])


def test_hetfedrep_keeps_the_embedding_at_home():
    start, after = one_round(HetFedRep(**{**ONE, "model": Model(MLP(hidden=(), out=1), alpha=1)}))
    assert set(after.server) == {"alpha.weight", "alpha.bias"}
    assert set(after.client_states[0]) == {"phi.0.weight", "phi.0.bias", "beta.weight", "beta.bias"}
    for i, label in ((0, 0), (1, 1)):  # φ's bias reaches the logits through α's weight (and LeakyReLU's positive slope)
        way = representation_step(start.client_states[i], label) * float(torch.sign(start.server["alpha.weight"]))
        close(after.client_states[i]["phi.0.bias"] - start.client_states[i]["phi.0.bias"], [LR * way])
    moves = [LR * representation_step(after.client_states[i], label) for i, label in ((0, 0), (1, 1))]
    close(after.server["alpha.bias"] - start.server["alpha.bias"], [0.75 * moves[0] + 0.25 * moves[1]])


def flic(**changes):
    return FLIC(**{**ONE, "anchor_weight": 0.0, "pretrain_epochs": 1, "pretrain_batch": 10, **changes})


def test_flic_pretraining_pulls_the_embedding_to_the_anchor():
    """All samples of a client are equal, so W2² = (v_c − z)² + Σ_c: its gradient in φ's bias is 2 (z − v_c)."""
    simulator = Simulator(two_clients(), flic(), dtype=torch.float64, device="cpu")
    start = simulator.initial()
    outcomes = simulator.train(start, [0, 1], 0, "start")
    anchors = start.server["anchor.mean"][:, 0]
    for i in (0, 1):
        z = start.client_states[i]["phi.0.weight"][0, 0] + start.client_states[i]["phi.0.bias"][0]
        expected = LR * torch.sign(anchors[i] - z)
        close(outcomes[i].client_state["phi.0.bias"] - start.client_states[i]["phi.0.bias"], [float(expected)])
        assert torch.equal(outcomes[i].client_state["beta.weight"], start.client_states[i]["beta.weight"]), (
            "only φ is pre-trained"
        )
        gap = float((anchors[i] - z) ** 2 + 1)
        assert outcomes[i].terms["w2"] == pytest.approx(gap)


def test_flic_moves_only_the_anchors_of_classes_at_hand_and_averages_them():
    """a moves v_0 towards its embedding, b moves v_1; the mean by samples leaves ¾ of a's step and ¼ of b's."""
    start, after = one_round(flic())
    moved = after.server["anchor.mean"][:, 0] - start.server["anchor.mean"][:, 0]
    z = [after.client_states[i]["phi.0.weight"][0, 0] + after.client_states[i]["phi.0.bias"][0] for i in (0, 1)]
    way = [float(torch.sign(z[i] - start.server["anchor.mean"][i, 0])) for i in (0, 1)]
    close(moved, [0.75 * LR * way[0], 0.25 * LR * way[1]])


def test_flic_without_alignment_is_hetfedrep():
    """λ1 = λ2 = 0 and no pre-training: α, φ and β follow HetFedRep (FLIC, Section 6: "a special case of FLIC")."""
    model = Model(MLP(hidden=(4,), out=3), alpha=5)
    setting = {"model": model, "local_epochs": 2, "batch_size": 2, "lr": LR}
    plain = FLIC(**setting, alignment_weight=0.0, anchor_weight=0.0, pretrain_epochs=0, local_anchors=False)

    ends = []
    for method in (plain, HetFedRep(**setting)):
        simulator = Simulator(two_clients(), method, dtype=torch.float64, device="cpu")
        state = simulator.initial()
        for _ in range(3):
            state, _ = simulator.round(state, [0, 1])
        ends.append(state)
    for name in ("alpha.weight", "alpha.bias"):
        close(ends[0].server[name], ends[1].server[name])
    for i in (0, 1):
        for name in ends[1].client_states[i]:
            close(ends[0].client_states[i][name], ends[1].client_states[i][name])


def test_flic_runs_without_pretraining():
    assert flic(pretrain_epochs=0).stages(0, "start") == []
    result = simulate(two_clients(), flic(pretrain_epochs=0), rounds=1, participation=1.0, progress=False, device="cpu")
    assert result.history["bytes_down"].iloc[0] == 0, "nothing is sent before the first round"


def test_frozen_anchors_never_move():
    start, after = one_round(flic(local_anchors=False))
    assert torch.equal(start.server["anchor.mean"], after.server["anchor.mean"])


def test_learned_covariances_start_at_the_asked_variance_and_move():
    start, after = one_round(flic(covariance="learned", anchor_variance=4.0))
    assert torch.equal(start.server["anchor.cholesky"], torch.full((2, 1, 1), 2.0, dtype=torch.float64))
    # Both clients' samples are equal points: the empirical covariance is 0 and the factor must shrink.
    close(after.server["anchor.cholesky"].flatten(), [2 - 0.75 * LR, 2 - 0.25 * LR])


def test_published_variant_sets_every_switch():
    code = FLIC.published()
    text = FLIC()
    for switch in (
        "anchor_step", "anchor_classes", "alignment", "representation_from", "representation_within", "realign",
        "head_decay", "shared_decay", "weighting", "anchor_variance", "anchor_samples", "init",
    ):  # fmt: skip
        assert getattr(code, switch) != getattr(text, switch), switch
    assert code.anchor_variance == pytest.approx(np.e)
    assert FLIC.published(head_decay=0.0).head_decay == 0.0
    assert FLIC.published(batch_size=7).anchor_samples == 7, "as many samples of an anchor as rows of a batch"


def test_published_stages_differ_as_documented():
    code, text = FLIC.published(), FLIC()
    names = lambda method, t, role: [  # noqa: E731
        (s.train, s.epochs or -s.steps, (s.loss or method.loss).__name__) for s in method.stages(t, role)
    ]
    assert names(text, 0, "start") == [(("phi",), 100, "alignment_loss")]
    assert names(text, 0, "round") == [
        (("phi", "beta"), 10, "loss"), (("anchor",), -1, "anchor_objective"), (("alpha",), 1, "loss")
    ]  # fmt: skip
    assert names(text, 3, "rest") == []
    assert names(text, 50, "final") == [(("phi", "beta"), 10, "loss")]
    every = lambda epochs: (("phi", "beta", "anchor"), epochs, "published_loss")  # noqa: E731
    again = (("phi",), 1, "alignment_loss")
    assert names(code, 0, "round") == [every(10)], "no re-alignment yet, α frozen until round index 21"
    assert names(code, 21, "round") == [again, every(9), (("alpha", "anchor"), 1, "published_loss")]
    assert names(code, 3, "rest") == [again]
    assert names(code, 50, "final") == [again, every(10)]
    assert names(replace(code, model=Model()), 21, "round") == [again, every(10)], "FLIC-Class has no epoch on α"
    short = replace(code, anchor_step="each")
    assert names(short, 21, "round") == [again, every(9), (("alpha",), 1, "loss")]
    assert names(short, 50, "final") == [again, (("phi", "beta"), 10, "loss"), again]


@pytest.mark.parametrize("step", ["each", "always"])
def test_published_loss_gives_each_parameter_its_own_gradient(step):
    """φ and β feel F_i with the anchors fixed; the anchors feel the code's objective with φ and β fixed.

    Where they are fixed at differs: at the client's copy, or, as in the code, at what the server sent.
    """
    method = FLIC.published(
        model=Model(MLP(hidden=(4,), out=3)), alignment_weight=0.3, anchor_weight=0.0, anchor_step=step
    )
    spec = Spec("a", (2,), 6, 2, (3, 3), 1)
    rng = torch.Generator().manual_seed(0)
    server, kept = method.init_server([spec], rng), method.init_client(spec, rng)
    params = {n: p.clone().requires_grad_(n != "classes") for n, p in {**kept, **server}.items()}
    batch = Batch(torch.randn(6, 2, generator=rng), torch.tensor([0, 1] * 3), torch.ones(6))
    noise = {"anchor.samples": torch.randn(6, 3, generator=rng), "anchor.xi": torch.zeros(1, 2, 3)}
    leaves = [n for n in params if n != "classes"]
    server = {"anchor.mean": server["anchor.mean"] + 1}  # what was sent, from which the client's copy has moved
    fixed = server if step == "always" else {n: params[n].detach() for n in server}
    total = method.published_loss(params, server, batch, noise).total
    both = dict(zip(leaves, torch.autograd.grad(total, [params[n] for n in leaves]), strict=True))
    local = torch.autograd.grad(
        method._objective(params, fixed, batch, noise).total,
        [params[n] for n in kept if n != "classes"],
    )
    for name, g in zip([n for n in kept if n != "classes"], local, strict=True):
        torch.testing.assert_close(both[name], g)
    z = method.model.embed(params, batch.x).detach()
    head = method.model.head({n: p.detach() for n, p in params.items()}, params["anchor.mean"])
    objective = torch.nn.functional.cross_entropy(head, torch.arange(2)) + method._alignment(z, batch, params, noise)
    torch.testing.assert_close(both["anchor.mean"], torch.autograd.grad(objective, params["anchor.mean"])[0])


def test_anchors_of_classes_that_a_batch_lacks_count_in_the_text_and_not_in_the_code():
    text = FLIC(model=Model(MLP(hidden=(), out=2)), alignment_weight=0.0, anchor_weight=1.0)
    spec = Spec("a", (2,), 6, 3, (2, 2, 2), 1)
    rng = torch.Generator().manual_seed(0)
    params = {**text.init_client(spec, rng), **text.init_server([spec], rng)}
    batch = Batch(torch.randn(3, 2, generator=rng), torch.tensor([0, 2, 1]), torch.tensor([1.0, 1.0, 0.0]))
    noise = {"anchor.xi": torch.zeros(1, 3, 2)}
    of_class = torch.nn.functional.cross_entropy(
        text.model.head(params, params["anchor.mean"]), torch.arange(3), reduction="none"
    )
    held = text.loss(params, params, batch, noise).terms["anchor"]
    mine = replace(text, anchor_classes="batch").loss(params, params, batch, noise).terms["anchor"]
    torch.testing.assert_close(held, of_class.sum())
    torch.testing.assert_close(mine, of_class[0] + of_class[2])  # the third row is padding


def test_decay_of_the_shared_layer_spares_biases_and_the_classifier():
    method = FLIC(shared_decay=0.1, head_decay=0.2, weight_decay=0.01)
    local, _, common = method.stages(0, "round")
    asked = {
        "phi.0.weight": 0.01, "beta.weight": 0.21, "beta.bias": 0.01, "alpha.weight": 0.11, "alpha.bias": 0.01
    }  # fmt: skip
    for stage in (local, common):
        assert {name: decay(stage, name) for name in asked} == pytest.approx(asked)
    mixed = replace(method, scheme=L2GDScheme(), weight_decay=0.0).stages(0, "round")
    assert decay(mixed[0], "own.beta.weight") == 0.2
    assert {decay(mixed[-1], f"common.{part}.weight") for part in ("alpha", "beta")} == {0.1}
    assert decay(mixed[-1], "common.beta.bias") == 0.0


# --- the contract ---------------------------------------------------------------------------------------------------


def test_catalogue_names_are_the_literatures():
    flic = {"FLIC-Class", "FLIC-HL", "FLIC-FedAvgFT", "FLIC-L2GD"}
    assert set(CATALOGUE) >= flic | {"Local", "FedAvg", "FedAvg-FT", "FedRep", "HetFedRep"}
    assert all(method.name == name for name, method in CATALOGUE.items())


def test_every_public_method_is_exported():
    for method in CATALOGUE.values():
        if type(method).__module__.startswith("hetfl_core"):
            assert getattr(methods, type(method).__name__) is type(method)
            assert type(method).__name__ in methods.__all__, "`from hetfl_core.methods import *` must bring it"


@pytest.mark.parametrize("name", CATALOGUE)
def test_hooks_do_not_write_into_what_they_get(name):
    method = CATALOGUE[name]
    spec = Spec("a", (3,), 4, 2, (2, 2), 1)
    server = method.init_server([spec], torch.Generator().manual_seed(0))
    kept = method.init_client(spec, torch.Generator().manual_seed(1))
    before = {n: p.clone() for n, p in {**kept, **server}.items()}
    received = method.download(server, spec)
    data = Batch(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), torch.ones(4))
    params = method.start({**kept, **method.precompute(spec, data, torch.Generator().manual_seed(2))}, received)
    draws = {name: draw for stage in method.stages(0, "round") for name, draw in method.noise(spec, stage).items()}
    size = {"sample": (4,), "step": ()}
    noise = {name: draw.sample(size[draw.per], torch.Generator(), torch.float32) for name, draw in draws.items()}
    memory = {}
    for stage in method.stages(0, "round"):  # what losses remember is what `upload` is given
        memory |= (stage.loss or method.loss)(params, received, data, noise).remember
    method.protect(method.upload(params, received, data, memory), received, torch.Generator().manual_seed(2))
    method.keep(params, kept)
    assert all(torch.equal(before[n], p) for n, p in {**kept, **server}.items())
    assert set(method.keep(params, kept)) == set(kept)


def test_prefixes_are_parts_and_not_beginnings_of_words():
    assert has_prefix("phi.0.weight", "phi")
    assert not has_prefix("phi2.weight", "phi")
    assert list(pick({"alpha.weight": torch.zeros(1), "alphabet": torch.zeros(1)}, ["alpha"])) == ["alpha.weight"]


def test_weighted_mean_of_what_was_sent():
    mean = weighted_mean([{"a": torch.tensor([1.0]), "b": torch.tensor([5.0])}, {"a": torch.tensor([3.0])}], [1, 3])
    assert mean["a"].tolist() == [2.5]
    assert mean["b"].tolist() == [5.0]
    with pytest.raises(ValueError, match=r"cannot average 'a': clients sent tensors of shapes \[\(1,\), \(2,\)\]"):
        weighted_mean([{"a": torch.zeros(1)}, {"a": torch.zeros(2)}], [1, 1])


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        (Local, {"local_epochs": 2.5}, "local_epochs must be a whole number, got 2.5"),
        (Local, {"local_epochs": True}, "local_epochs must be a whole number, got True"),
        (Local, {"batch_size": "10"}, "batch_size must be a whole number, got '10'"),
        (Local, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (Local, {"lr": -1.0}, "lr must be at least 0, got -1.0"),
        (Local, {"lr": float("nan")}, "lr must be a finite number, got nan"),
        (Local, {"lr": float("inf")}, "lr must be a finite number, got inf"),
        (Local, {"lr_decay": 0.0}, "lr_decay must be greater than 0, got 0.0"),
        (Local, {"local_steps": 0}, "local_steps must be at least 1, got 0"),
        (Local, {"clip": 0.0}, "clip must be greater than 0, got 0.0"),
        (Local, {"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
        (Local, {"momentum": 0.9}, "momentum is for sgd and rmsprop, got 0.9 with adam"),
        (
            Local,
            {"optimizer": "lbfgs"},
            "optimizer must be one of ('adam', 'adamw', 'sgd', 'rmsprop', 'adagrad'), got 'lbfgs'",
        ),
        (
            FLIC,
            {"representation_within": True, "local_steps": 3},
            "representation_within counts epochs: local_steps must be None, got 3",
        ),
        (FedAvgFT, {"finetune_epochs": 0}, "finetune_epochs must be at least 1, got 0"),
        (FedRep, {"representation_epochs": 0}, "representation_epochs must be at least 1, got 0"),
        (HetFedRep, {"representation_epochs": 1.5}, "representation_epochs must be a whole number, got 1.5"),
        (FedHeNN, {"n_rad": 3.5}, "n_rad must be a whole number, got 3.5"),
        (FedHeNN, {"term_weight": float("nan")}, "term_weight must be a finite number, got nan"),
        (FLIC, {"representation_epochs": 0}, "representation_epochs must be at least 1, got 0"),
        (FLIC, {"pretrain_batch": 0}, "pretrain_batch must be at least 1, got 0"),
        (FLIC, {"realign": 3}, "realign must be True or False, got 3"),
        (FLIC, {"scheme": None}, "scheme must be a Scheme, got None"),
        (FLIC, {"alignment": "mmd"}, "alignment must be an Alignment, got 'mmd'"),
        (FLIC, {"covariance": "full"}, "covariance must be one of ('fixed', 'learned'), got 'full'"),
        (Local, {"weighting": "equal"}, "weighting must be one of ('samples', 'uniform'), got 'equal'"),
        (Local, {"model": "mlp"}, "model must be a Model, got 'mlp'"),
        (MLP, {"activation": "x"}, "activation must be one of ('relu', 'leaky_relu', 'sigmoid', 'tanh'), got 'x'"),
        (MLP, {"hidden": (8, 0)}, "hidden must be at least 1, got 0"),
        (CNN, {"channels": (3,)}, "channels must be a tuple of a whole number, a whole number, got (3,)"),
        (Model, {"phi": "mlp"}, "phi must be a Network, got 'mlp'"),
        (Model, {"alpha": 0}, "alpha must be at least 1, got 0"),
    ],
)
def test_a_setting_is_refused_when_the_method_is_made(method, setting, message):
    with pytest.raises(ValueError) as error:
        method(**setting)
    assert str(error.value) == message


ARRAYS = [
    np.array([]),
    np.array(3),
    np.array([1.0, 2.0]),
    np.array(["uniform", "samples"]),
    np.array([None, True]),
    np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    torch.tensor(3),
    torch.ones(2),
    pd.Series([1.0, 2.0]),
    pd.DataFrame({"a": [1]}),
    [np.arange(2), np.arange(2)],
    {"phi": np.ones(2)},
]


SETTINGS = [*CATALOGUE.values(), MLP(), CNN(), Model(), Stage(("phi",), epochs=1)]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: getattr(s, "name", type(s).__name__))
def test_an_array_is_no_setting(settings):
    """Nor equal to a word, a number or None: comparing it with one has no truth value."""
    for field in fields(settings):
        for array in ARRAYS:
            with pytest.raises(ValueError, match=f"^{field.name} must be "):
                replace(settings, **{field.name: array})


def test_settings_that_every_method_has_unless_told():
    method = Local()
    assert (method.local_epochs, method.batch_size, method.lr, method.weighting) == (10, 100, 1e-3, "samples")


def test_numbers_of_numpy_and_zeros_with_a_meaning_are_settings():
    assert Local(local_epochs=np.int64(2), lr=np.float32(0.5)).local_epochs == 2
    assert Local(lr=0).lr == 0
    zeros = dict.fromkeys(
        ("alignment_weight", "anchor_weight", "pretrain_epochs", "anchor_scale", "representation_from"), 0
    )
    assert FLIC(**zeros).pretrain_epochs == 0


def test_types_of_settings_are_read_from_classes_and_from_their_names():
    """A method's module may have ``from __future__ import annotations``, which turns types into text, or not."""
    Mine = make_dataclass("Mine", [("mu", float, 0.1), ("steps", "int", 3)], bases=(Local,), frozen=True)
    assert (Mine().mu, Mine().steps) == (0.1, 3)
    with pytest.raises(ValueError, match="mu must be a finite number, got 'big'"):
        Mine(mu="big")
    with pytest.raises(ValueError, match="steps must be a whole number, got None"):
        Mine(steps=None)


def test_settings_are_checked_where_a_subclass_has_checks_of_its_own():
    """Even where these forget to call their parent's."""

    @dataclass(frozen=True)
    class Careless(Local):
        kind: Literal["a", "b"] = "a"
        depth: "int | None" = None

        def __post_init__(self):
            if self.kind == "b" and self.depth is None:
                raise ValueError("own check")

    try:
        with pytest.raises(ValueError, match="own check"):
            Careless(kind="b")
        for bad, message in (
            ({"local_epochs": 0}, "local_epochs must be at least 1"),
            ({"lr": "fast"}, "lr must be a finite number"),
            ({"kind": "c"}, r"kind must be one of \('a', 'b'\), got 'c'"),
            ({"depth": 1.5}, "depth must be a whole number or None, got 1.5"),
        ):
            with pytest.raises(ValueError, match=message):
                Careless(**bad)
    finally:
        del Careless


def test_the_summary_leaves_out_the_source_with_all_its_brackets():
    class Said(FedAvg):
        """Averages what is sent ([1]_, Eq. (7)), and `more` ([2]_)."""

    assert Said().summary == "Averages what is sent, and more."
    assert not [name for name, method in CATALOGUE.items() if "[" in method.summary or not method.summary.endswith(".")]
    assert CATALOGUE["FedPAC, own bodies"].summary.endswith("its own mixture of heads. Here aggregated='features'.")
    assert len({method.summary for method in CATALOGUE.values()}) == len(CATALOGUE), "variants are told apart"


def test_base_class_says_what_is_missing():
    class Silent(Method):
        pass

    try:
        with pytest.raises(NotImplementedError, match=r"Silent must define stages\(round, role\)"):
            Silent().stages(0, "round")
    finally:
        del Silent


def test_a_mean_of_the_uploads_is_enough_but_for_an_exact_barycentre():
    assert FedAvg().needs_uploads is None
    assert FLIC().needs_uploads is None
    assert "no sum of anchors" in FLIC(barycentre="exact").needs_uploads
