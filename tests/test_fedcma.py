"""Fed-CMA: a round by hand, its limits, and what its switches change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference, ragged

from hetfl_core import Client, Federation, adapt, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.stacks import architecture
from hetfl_core.methods import Batch, FedCMA, Local
from hetfl_core.networks import MLP, Model
from hetfl_core.rng import stream

FED = ragged()
NETWORK = Model(MLP((6,), 4, last="sigmoid"))
OPTIONS = {"rounds": 3, "device": "cpu", "progress": False, "dtype": torch.float64}
SGD = {"optimizer": "sgd", "lr": 0.05, "local_steps": 1, "batch_size": 1000}


def by_hand(fed, method, rounds):
    """Eqs. (5) to (7) in NumPy for φ(x) = x W + c, logits z V + d, one full-batch step a round; plain loops.

    The first weights and the fixed samples are the engine's, as drawn from its streams; nothing else is. All clients
    take one more step in the end.
    """
    eta, lam1, lam2, K = method.lr, method.head_weight, method.mean_weight, fed.n_classes
    counts = np.array([[(c.y_train == k).sum() for k in range(K)] for c in fed])
    p, pk = counts.sum(1) / counts.sum(), counts / np.maximum(counts.sum(0), 1)
    clients = []
    for spec, client in zip(fed.specs(), fed, strict=True):
        w = {n: t.double().numpy() for n, t in method.init_client(spec, stream(0, spec.name, 0, "init")).items()}
        few = method.precompute(spec, everything(client), stream(0, spec.name, 0, "private"))
        rows = [few["fixed.x"][of_class > 0].numpy() for of_class in few["fixed.of"]]
        clients.append((w, client.x_train.double().numpy(), client.y_train.numpy(), rows))

    def messages():
        for w, _, _, rows in clients:
            z = [few @ w["phi.0.weight"] + w["phi.0.bias"] for few in rows]
            means = [of_class.mean(0) if len(of_class) else np.zeros(2) for of_class in z]
            yield {"mean": np.array(means), **{n: w[n].copy() for n in ("beta.weight", "beta.bias")}}

    def weighted(sent):
        mean = sum(pk[i][:, None] * m["mean"] for i, m in enumerate(sent))
        return {"mean": mean} | {n: sum(p[i] * m[n] for i, m in enumerate(sent)) for n in ("beta.weight", "beta.bias")}

    def local_step(i, server):
        w, x, y, rows = clients[i]
        z = x @ w["phi.0.weight"] + w["phi.0.bias"]
        q = np.exp(z @ w["beta.weight"] + w["beta.bias"])
        wrong = (q / q.sum(1, keepdims=True) - np.eye(K)[y]) / len(y)
        back = wrong @ w["beta.weight"].T
        grads = {"beta.weight": z.T @ wrong, "beta.bias": wrong.sum(0), "phi.0.weight": x.T @ back}
        grads["phi.0.bias"] = back.sum(0)
        for n in ("beta.weight", "beta.bias"):
            grads[n] = grads[n] + lam1 * p[i] * (w[n] - server[n])
        for k, few in enumerate(rows):
            for row in few:
                away = row @ w["phi.0.weight"] + w["phi.0.bias"] - server["mean"][k]
                grads["phi.0.weight"] += lam2 * pk[i, k] / len(few) * np.outer(row, away)
                grads["phi.0.bias"] += lam2 * pk[i, k] / len(few) * away
        for n in grads:
            w[n] -= eta * grads[n]

    server = weighted(list(messages()))
    for _ in range(rounds):
        before = list(messages())
        for i in range(len(clients)):
            local_step(i, server)
        target = weighted(before if method.uploads == "before" else list(messages()))
        step = {n: (lam2 if n == "mean" else lam1) * eta for n in server}
        server = {n: (1 - step[n]) * server[n] + step[n] * target[n] for n in server}
    for i in range(len(clients)):
        local_step(i, server)
    return [w for w, *_ in clients], server


def everything(client):
    """All training samples of a client, as its hooks get them."""
    return Batch(client.x_train.double(), client.y_train, torch.ones(client.n_train, dtype=torch.float64))


@pytest.mark.parametrize("uploads", ["after", "before"])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_three_rounds_by_hand(uploads, engine):
    """Three clients of other widths and sizes, one of which lacks classes that others hold."""
    fed = ragged(3, n_classes=4, widths=(2, 5), sizes=(5, 12))
    method = FedCMA(Model(MLP((), 2)), head_weight=2.0, mean_weight=1.5, samples_per_class=2, uploads=uploads, **SGD)
    run = simulate(fed, method, engine=engine, **OPTIONS)
    clients, server = by_hand(fed, method, 3)
    for kept, w in zip(run.client_states, clients, strict=True):
        for name, p in kept.items():
            assert np.abs(p.numpy() - w[name]).max() < 1e-12, name
    held = np.array([spec.class_counts for spec in fed.specs()]).sum(0) > 0
    for name, expected in server.items():
        error = np.abs(run.server[name].numpy() - expected)
        assert (error[held] if name == "mean" else error).max() < 1e-12, name


@pytest.mark.parametrize("uploads", ["after", "before"])
def test_without_its_two_terms_it_is_local(uploads):
    settings = {"model": NETWORK, "local_epochs": 2, "batch_size": 8}
    run = simulate(FED, FedCMA(head_weight=0, mean_weight=0, server_step=0.5, uploads=uploads, **settings), **OPTIONS)
    local = simulate(FED, Local(**settings), **OPTIONS)
    for a, b in zip(run.params, local.params, strict=True):
        assert_same_tensors({name: a[name] for name in b}, b)
    assert run.final["accuracy"] == local.final["accuracy"]


@pytest.mark.parametrize(
    "method", [FedCMA(NETWORK), FedCMA(NETWORK, uploads="before", alignment="marginal", server_init="zeros")]
)
def test_stacked_is_looped_and_in_any_order_and_resumes(method, tmp_path):
    method, options = replace(method, local_epochs=2, batch_size=8), {**OPTIONS, "participation": 0.6}
    stacked, loop = (simulate(FED, method, engine=engine, **options) for engine in ("stacked", "loop"))
    turned = simulate(Federation(FED.clients[::-1], FED.n_classes), method, engine="stacked", **options)
    assert largest_difference(stacked, loop) < 1e-9
    assert largest_difference(stacked, turned) < 1e-12
    simulate(FED, method, engine="stacked", checkpoint=tmp_path, **{**options, "rounds": 1})
    resumed = simulate(FED, method, engine="stacked", checkpoint=tmp_path, **options)
    assert equal_histories(stacked.history, resumed.history)
    assert_same_tensors(stacked.server, resumed.server)


def test_the_objective_is_equation_5_and_its_server_step_descends_it():
    """(7) is a step of size η on Φ in (v̄, e), of gradients λ1 (v̄ − Σ p_i v_i) and λ2 Σ_i p_i^k (e^k − e_i^k)."""
    fed = ragged(3, n_classes=4)
    method = FedCMA(NETWORK, head_weight=0.7, mean_weight=1.3, samples_per_class=3, uploads="before", **SGD)
    simulator = Simulator(fed, method, device="cpu", dtype=torch.float64)
    state, _ = simulator.survey(simulator.initial(), range(3))
    variables = {name: state.server[name].clone().requires_grad_() for name in ("beta.weight", "beta.bias", "mean")}
    total = torch.zeros(())
    for spec, client, params in zip(simulator.specs, fed, simulator.working(state), strict=True):
        received = {**method.download(state.server, spec), **variables}
        total = total + method.loss(params, received, everything(client), {}).total
    total.backward()
    after, _ = simulator.round(state, range(3))
    held = torch.tensor([spec.class_counts for spec in simulator.specs]).sum(0) > 0
    for name, p in variables.items():
        move = (after.server[name] - state.server[name]) + method.lr * p.grad
        assert (move[held] if name == "mean" else move).abs().max() < 1e-12


def test_the_fixed_minibatch_is_of_each_class_and_at_most_so_many():
    fed = ragged(4, n_classes=5, sizes=(7, 40))
    method = FedCMA(NETWORK, samples_per_class=4)
    simulator = Simulator(fed, method, device="cpu", dtype=torch.float64)
    for client, few in zip(fed, simulator.precomputed, strict=True):
        assert torch.equal(few["fixed.of"].sum(0), torch.ones(len(few["fixed.x"])).double()), "no row is wasted"
        for k in range(5):
            own = client.x_train[client.y_train == k].double()
            chosen = few["fixed.x"][few["fixed.of"][k] > 0]
            assert len(chosen) == min(len(own), 4)
            assert len(torch.unique(chosen, dim=0)) == len(chosen), "drawn without replacement"
            assert all((row == own).all(1).any() for row in chosen)


@pytest.mark.parametrize("alignment", ["conditional", "marginal"])
def test_rows_of_no_class_weigh_nothing(alignment):
    """What a stack pads its narrower clients with."""
    method = FedCMA(NETWORK, alignment=alignment)
    received = {"shares": torch.rand(6), "mean": torch.randn(5, 4), "beta.bias": torch.zeros(5)}
    if alignment == "marginal":
        received |= {"shares": torch.rand(2), "mean": torch.randn(1, 4)}
    few = {"fixed.x": torch.randn(7, 3), "fixed.of": torch.eye(5)[torch.tensor([0, 0, 0, 2, 4, 4, 4])].T}
    wide = {"fixed.x": torch.cat([few["fixed.x"], torch.full((2, 3), 9.0)])}
    wide["fixed.of"] = torch.cat([few["fixed.of"], torch.zeros(5, 2)], 1)
    own = {**NETWORK.init(FED.specs()[0], torch.Generator(), NETWORK.parts), "phi.0.weight": torch.randn(3, 6)}
    batch = Batch(torch.randn(8, 3), torch.arange(8) % 5, torch.ones(8))
    both = [method.loss(own | fixed, received, batch, {}).total for fixed in (few, wide)]
    assert torch.allclose(*both)
    sent = [method.upload(own | fixed, received, batch, {})["mean"] for fixed in (few, wide)]
    assert torch.allclose(*sent)
    if alignment == "conditional":
        assert not sent[0][[1, 3]].any(), "classes without a sample"


def test_clients_with_more_and_fewer_fixed_samples_train_in_one_stack():
    specs = ragged(6, n_classes=5, sizes=(7, 40)).specs()
    method = FedCMA(NETWORK)
    rows = {sum(min(10, n) for n in spec.class_counts) for spec in specs}
    assert len(rows) > 2
    assert len({architecture(method, spec) for spec in specs}) == 1
    assert architecture(method, specs[0]) != architecture(FedCMA(Model(MLP((7,), 4))), specs[0])


def test_the_server_begins_with_what_clients_begin_with():
    fed = ragged(4)
    simulator = Simulator(fed, FedCMA(NETWORK), device="cpu", dtype=torch.float64)
    state, answers = simulator.survey(simulator.initial(), [0])
    assert len(answers) == 4, "all, whoever takes part"
    n = np.array([client.n_train for client in fed])
    heads = np.stack([kept["beta.bias"].numpy() for kept in simulator.initial().client_states])
    assert np.allclose(state.server["beta.bias"].numpy(), n @ heads / n.sum(), atol=1e-12)
    later, none = simulator.survey(replace(state, done=1), [0])
    assert not none
    assert_same_tensors(later.server, state.server)
    zeros = Simulator(fed, FedCMA(NETWORK, server_init="zeros"), device="cpu")
    assert zeros.survey(zeros.initial(), [0])[1] == {}


def test_classes_that_nobody_of_a_round_holds_keep_their_mean():
    fed = ragged(5, n_classes=5)
    simulator = Simulator(fed, FedCMA(NETWORK, server_step=1.0), device="cpu", dtype=torch.float64)
    state, _ = simulator.survey(simulator.initial(), range(5))
    after, _ = simulator.round(replace(state, done=1), [2])
    holds = torch.tensor(simulator.specs[2].class_counts) > 0
    assert torch.equal(after.server["mean"][~holds], state.server["mean"][~holds])
    few, params = simulator.precomputed[2], after.client_states[2]
    z = NETWORK.embed(params, few["fixed.x"])
    means = torch.stack([z[of > 0].mean(0) for of in few["fixed.of"]])
    assert torch.allclose(after.server["mean"][holds], means[holds], atol=1e-12), "with a step of 1 those of the one"
    assert torch.allclose(after.server["beta.bias"], params["beta.bias"], atol=1e-12)


def test_it_says_which_messages_cannot_be_had_as_a_sum():
    assert "each client's class counts" in FedCMA(NETWORK).needs_uploads
    assert "before the first round" in FedCMA(NETWORK, alignment="marginal").needs_uploads


def test_marginal_alignment_does_not_look_at_classes():
    """Labels may be dealt anew among the fixed samples; where each class has as many, only the one mean counts."""
    method = FedCMA(NETWORK, alignment="marginal")
    received = {"shares": torch.tensor([0.3, 0.3]), "mean": torch.randn(1, 4), "beta.bias": torch.zeros(5)}
    few = {"fixed.x": torch.randn(5 * 10, 3), "fixed.of": torch.eye(5).repeat_interleave(10, 1)}
    params = {**NETWORK.init(FED.specs()[0], torch.Generator(), NETWORK.parts), **few}
    params["phi.0.weight"] = torch.randn(3, 6)
    x, y = torch.randn(8, 3), torch.arange(8) % 5
    batch = Batch(x, y, torch.ones(8))
    turned = {**params, "fixed.x": few["fixed.x"][torch.randperm(50)]}
    both = [method.loss(p, received, batch, {}).terms["means"] for p in (params, turned)]
    assert torch.allclose(*both)
    shares = torch.cat([torch.tensor([0.3]), torch.full((5,), 0.2)])
    received = {**received, "shares": shares, "mean": torch.randn(5, 4)}
    both = [FedCMA(NETWORK).loss(p, received, batch, {}).terms["means"] for p in (params, turned)]
    assert not torch.allclose(*both)


def test_bytes_are_heads_means_and_shares():
    """Up: (d_e + 1) K for the head, d_e K for the means. Down: those, K shares, and the client's own."""
    run = simulate(FED, FedCMA(NETWORK, local_epochs=1), **OPTIONS)
    b, K, d_e = len(FED), FED.n_classes, 4
    up, down = (2 * d_e + 1) * K, (2 * d_e + 1) * K + K + 1
    rows = run.history[["bytes_up", "bytes_down"]].to_numpy() / (8 * b)
    assert rows[2].tolist() == [up, down]
    assert rows[1, 0] == 2 * up, "the survey's answers too"


def test_clients_of_other_networks_and_a_late_one():
    run = simulate(FED, FedCMA(NETWORK, local_epochs=1), **OPTIONS)
    x = torch.randn(20, 9)
    late = Client(x, torch.arange(20) % 3, x, torch.arange(20) % 3, "late")
    joined = adapt(run, late, rounds=2, progress=False, device="cpu")
    assert_same_tensors({name: joined.server[name] for name in run.server}, run.server)
    assert joined.history["means"].iloc[-1] > 0


def test_a_late_clients_shares_count_it_in():
    """Members hold 4 samples of class 0 and 2 of class 1; who comes late has 30 of class 1: 30/32 of them, not 15."""

    def holding(name, *numbers):
        y = torch.tensor([k for k, n in enumerate(numbers) for _ in range(n)])
        return Client(torch.ones(len(y), 3), y, torch.ones(1, 3), y[:1], name)

    fed = Federation([holding("a", 2, 1), holding("b", 2, 1)], 2)
    method = FedCMA(Model(MLP((4,), 3)), local_epochs=1, lr=0.01)
    run = simulate(fed, method, rounds=2, progress=False, device="cpu")
    late = holding("late", 0, 30)
    specs = Federation([late], 2).specs()
    joined = method.join(run.server, specs, stream(0, "tests", 0, "join"))
    assert method.download(joined, specs[0])["shares"].tolist() == pytest.approx([30 / 36, 0.0, 30 / 32])
    assert joined.keys() - {"joined"} == run.server.keys()
    (params,) = adapt(run, late, rounds=50, progress=False).params
    assert all(p.isfinite().all() for p in params.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_weight": -1.0}, "head_weight must be at least 0"),
        ({"samples_per_class": 0}, "samples_per_class must be at least 1"),
        ({"server_step": 0.0}, r"server_step must be in \(0, 1\]"),
        ({"server_step": 1.5}, r"server_step must be in \(0, 1\]"),
        ({"mean_weight": 200.0, "lr": 0.01}, r"mean_weight · lr must be at most 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FedCMA(**changes)


def test_regressions_are_refused():
    x = torch.randn(6, 3)
    fed = Federation([Client(x, x[:, 0], x, x[:, 0], "a")], task="regression")
    with pytest.raises(ValueError, match="Fed-CMA needs class labels"):
        simulate(fed, FedCMA(), **OPTIONS)
