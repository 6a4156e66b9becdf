"""FedPer, LG-FedAvg, FedBABU, Ditto, FedPAC, FedSR and FedCR: rounds by hand, and the limits in which they meet."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from small import assert_same_tensors, equal_histories, largest_difference, ragged
from torch.distributions import Independent, Normal, kl_divergence

from hetfl_core import Client, Federation, simulate
from hetfl_core.datasets import toy
from hetfl_core.engine.newcomers import adapt
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Spec
from hetfl_core.methods import (
    CATALOGUE,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedBABU,
    FedCR,
    FedPAC,
    FedPer,
    FedRep,
    FedSR,
    LGFedAvg,
    Local,
)
from hetfl_core.methods.base import Batch
from hetfl_core.methods.fedpac import head_weights, simplex_minimum
from hetfl_core.methods.stochastic import Stochastic, gaussian_gap, mean_log_probability
from hetfl_core.networks import MLP, LeNet, Model

PHI = MLP(hidden=(7,), out=5, last="relu")
PLAIN, RANDOM = Model(PHI), Model(PHI, gaussian=3)
SHORT = {"local_epochs": 2, "batch_size": 6}
DESCENT = {"optimizer": "sgd", "lr": 0.1}
NEW = [
    "FedPer",
    "LG-FedAvg",
    "FedBABU",
    "Ditto",
    "Ditto, own embeddings",
    "FedPAC",
    "FedPAC, own bodies",
    "FedSR",
    "FedCR",
    "FedCR, own embeddings",
    "FedCR, own bodies",
]
NO_NEWCOMERS = ["FedAvg-FT", "FedBABU", "FedSR", "FLIC-FedAvgFT"]
EQUAL = ragged(widths=(4, 4))


def small(name, **changes):
    method = CATALOGUE[name]
    few = {"samples": 3} if hasattr(method, "samples") else {}
    return replace(method, model=replace(method.model, phi=PHI), **{**SHORT, **few, **changes})


def run(method, fed=EQUAL, **options):
    settings = {"rounds": 3, "participation": 0.5, "dtype": torch.float64, "device": "cpu", "progress": False}
    return simulate(fed, method, **settings | options)


def start_and_round(method, fed=EQUAL, chosen=None, t=0):
    simulator = Simulator(fed, method, dtype=torch.float64, device="cpu")
    start = replace(simulator.initial(), done=t)
    chosen = list(range(len(fed))) if chosen is None else chosen
    return simulator, start, simulator.train(start, chosen, t, "round")


def moved(outcome, start):
    """Names of the parameters that local training changed."""
    return {name.split(".")[0] for name, p in outcome.params.items() if not torch.equal(p, start[name])}


# --- first weights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FedPer", "LG-FedAvg", "Ditto", "FedPAC", "FedCR, own bodies", "FLIC-Class"])
def test_the_init_is_ones_own_or_common(name):
    """Common ones wherever shapes agree: of inputs of different widths all but the first layer's."""
    for fed, ragged_layers in ((EQUAL, set()), (ragged(), {"phi.0.weight", "own.phi.0.weight"})):
        for first in ("own", "common"):
            method = small(name, init=first)
            if fed is not EQUAL and name in ("FedPer", "FedPAC", "Ditto"):
                continue  # needs one feature space
            kept = Simulator(fed, method, device="cpu", seed=1).initial().client_states
            weights = {n for n in kept[0] if "weight" in n and n not in ragged_layers}
            assert weights
            for each in kept[1:]:
                assert {n: torch.equal(each[n], kept[0][n]) for n in weights} == dict.fromkeys(
                    weights, first == "common"
                )
    other = Simulator(EQUAL, small(name, init="common"), device="cpu", seed=2).initial().client_states
    alike = Simulator(EQUAL, small(name, init="common"), device="cpu", seed=1).initial().client_states
    assert not all(torch.equal(other[0][n], alike[0][n]) for n in alike[0])


def test_a_common_start_does_not_depend_on_the_order_of_clients():
    method = small("LG-FedAvg", init="common")
    turned = Federation([ragged()[i] for i in (2, 0, 1)], ragged().n_classes, "turned")
    here, there = (Simulator(f, method, device="cpu").initial().client_states for f in (ragged(), turned))
    for i, j in enumerate((2, 0, 1)):
        assert_same_tensors(there[i], here[j])


# --- whole runs by hand -----------------------------------------------------------------------------------------------

LINEAR = MLP(hidden=(), out=2)
"""φ(x) = x·W + b, so that the gradients of a model with a linear head are four lines."""

ALL, BODY_ONLY, HEAD_ONLY = ("phi", "beta"), ("phi",), ("beta",)


def gradients(params, x, y):
    """Of the mean cross-entropy of softmax((x·W + b)·H + h), by the chain rule."""
    z = x @ params["phi.0.weight"] + params["phi.0.bias"]
    logits = z @ params["beta.weight"] + params["beta.bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - np.eye(logits.shape[1])[y]) / len(y)
    back = error @ params["beta.weight"].T
    found = {"beta.weight": z.T @ error, "beta.bias": error.sum(0), "phi.0.weight": x.T @ back}
    return found | {"phi.0.bias": back.sum(0)}


def stepped(params, client, parts, lr):
    """One step of gradient descent on all samples of a client, of the parameters of these parts."""
    found = gradients(params, np.asarray(client.x_train, float), np.asarray(client.y_train))
    return {n: p - lr * found[n] if n.startswith(parts) else p for n, p in params.items()}


def mean_of(clients, parts, weights):
    """The weighted mean of the parameters of these parts."""
    names = [n for n in clients[0] if n.startswith(parts)]
    return {n: sum(w * each[n] for w, each in zip(weights, clients, strict=True)) for n in names}


def assert_same_run(result, clients, server):
    for found, expected in ((result.server, server), *zip(result.params, clients, strict=True)):
        assert found.keys() == expected.keys()
        for name, p in expected.items():
            np.testing.assert_allclose(found[name], p, rtol=0, atol=1e-12, err_msg=name)


def begun(method):
    """Three clients, a simulator of theirs and the state in which their run begins."""
    fed = ragged(n_clients=3, widths=(4, 4))
    simulator = Simulator(fed, method, dtype=torch.float64, device="cpu")
    return fed, simulator, simulator.initial()


def by_hand(fed, starts, server, shared, steps, tuned, rounds, lr):
    """Rounds of all clients with means by samples, and the last training: what each has, and the server."""
    samples = np.array([client.n_train for client in fed])
    clients, server = [dict(each) for each in starts], dict(server)
    for _ in range(rounds):
        clients = [each | server for each in clients]
        for parts in steps:
            clients = [stepped(each, client, parts, lr) for each, client in zip(clients, fed, strict=True)]
        server |= mean_of(clients, shared, samples / samples.sum())
    clients = [each | server for each in clients]
    for parts in tuned:
        clients = [stepped(each, client, parts, lr) for each, client in zip(clients, fed, strict=True)]
    return clients, server


@pytest.mark.parametrize(
    ("method", "shared", "steps", "tuned"),
    [
        (Local, (), [ALL], [ALL]),
        (FedAvg, ALL, [ALL], []),
        (partial(FedAvgFT, tuned="head", finetune_epochs=2), ALL, [ALL], [HEAD_ONLY, HEAD_ONLY]),
        (partial(FedAvgFT, tuned="all", finetune_epochs=2), ALL, [ALL], [ALL, ALL]),
        (FedPer, BODY_ONLY, [ALL], [HEAD_ONLY]),
        (FedRep, BODY_ONLY, [HEAD_ONLY, BODY_ONLY], [HEAD_ONLY]),
        (LGFedAvg, HEAD_ONLY, [ALL], [BODY_ONLY]),
        (FedBABU, BODY_ONLY, [BODY_ONLY], [ALL]),
        (partial(FedBABU, tuned="head"), BODY_ONLY, [BODY_ONLY], [HEAD_ONLY]),
    ],
)
def test_a_run_by_hand(method, shared, steps, tuned):
    """Three rounds and the last training of clients with unequal numbers of samples, in NumPy."""
    made = method(Model(LINEAR), local_epochs=1, batch_size=100, **DESCENT)
    fed, simulator, start = begun(made)
    assert len({client.n_train for client in fed}) == 3
    starts = [{n: p.numpy() for n, p in each.items()} for each in simulator.working(start)]
    clients, server = by_hand(
        fed, starts, {n: p.numpy() for n, p in start.server.items()}, shared, steps, tuned, rounds=3, lr=0.1
    )
    result = run(made, fed, participation=1.0)
    assert_same_run(result, clients, server)


def test_a_run_of_ditto_by_hand():
    """v pays (λ/2)‖v − w‖² for leaving the w that was received; after the last round it trains once more."""
    made = Ditto(Model(LINEAR), term_weight=0.5, local_epochs=1, batch_size=100, finetune_epochs=1, **DESCENT)
    fed, _, start = begun(made)
    server = {n: p.numpy() for n, p in start.server.items()}
    own = [{n.removeprefix("own."): p.numpy() for n, p in kept.items()} for kept in start.client_states]
    samples = np.array([client.n_train for client in fed])

    def drawn(v, client):
        return {n: p - 0.1 * 0.5 * (v[n] - server[n]) for n, p in stepped(v, client, ALL, 0.1).items()}

    for _ in range(3):
        own = [drawn(v, client) for v, client in zip(own, fed, strict=True)]
        sent = [stepped(server, client, ALL, 0.1) for client in fed]
        server = mean_of(sent, ALL, samples / samples.sum())
    own = [drawn(v, client) for v, client in zip(own, fed, strict=True)]
    result = run(made, fed, participation=1.0)
    for found, v in zip(result.params, own, strict=True):
        for name, p in v.items():
            np.testing.assert_allclose(found[f"own.{name}"], p, rtol=0, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(result.server[name], server[name], rtol=0, atol=1e-12, err_msg=name)


def moved_down(params, parts, loss, lr=0.1):
    """One step of gradient descent on a loss, of the parameters of these parts."""
    leaves = {n: p.clone().requires_grad_(n.startswith(parts)) for n, p in params.items()}
    loss(leaves).backward()
    return {n: (p - lr * p.grad if p.grad is not None else p).detach() for n, p in leaves.items()}


def random_feature(params, x):
    """q(z | x) of a linear body and the Gaussian layer behind it."""
    both = (x @ params["phi.0.weight"] + params["phi.0.bias"]) @ params["gaussian.weight"] + params["gaussian.bias"]
    mean, raw = both.chunk(2, 1)
    return Normal(mean, torch.nn.functional.softplus(raw) + 1e-4)


def task(params, feature, y):
    """Cross-entropy of the head at the mean feature."""
    return torch.nn.functional.cross_entropy(feature.mean @ params["beta.weight"] + params["beta.bias"], y)


def random_run(method):
    """Clients, their first parameters and the server of a run of three rounds by the engine, and that run."""
    made = method(Model(LINEAR, gaussian=3), scale="none", local_epochs=1, batch_size=100, finetune_epochs=1, **DESCENT)
    fed, simulator, start = begun(made)
    data = [(torch.as_tensor(c.x_train, dtype=torch.float64), torch.as_tensor(c.y_train)) for c in fed]
    return data, simulator.working(start), start, run(made, fed, participation=1.0)


def test_a_run_of_fedcr_by_hand():
    """Algorithm 2 at Σ = 0 in the draws: three rounds, each with the joint features of the one before."""
    data, clients, _, result = random_run(partial(FedCR, term_weight=0.2))
    joint = Normal(torch.zeros(5, 3, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64))
    held = torch.tensor([any((y == c).any() for _, y in data) for c in range(5)])
    for _ in range(3):
        natural, precision = torch.zeros(5, 3, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64)
        for i, (x, y) in enumerate(data):

            def loss(params, x=x, y=y, joint=joint):
                feature = random_feature(params, x)
                wanted = Normal(joint.mean[y], joint.stddev[y])
                return task(params, feature, y) + 0.2 * kl_divergence(wanted, feature).sum(1).mean()

            passed = random_feature(clients[i], x)  # the features as they passed: those before the only step
            for row, c in enumerate(y.tolist()):
                precision[c] += 1 / passed.variance[row]
                natural[c] += passed.mean[row] / passed.variance[row]
            clients[i] = moved_down(clients[i], ("phi", "gaussian", "beta"), loss)
        body = mean_of(clients, ("phi", "gaussian"), [1 / 3] * 3)
        clients = [each | body for each in clients]
        variance = torch.where(held[:, None], 1 / precision, joint.variance)
        joint = Normal(torch.where(held[:, None], natural / precision, joint.mean), variance.sqrt())
    for i, (x, y) in enumerate(data):
        clients[i] = moved_down(
            clients[i], ("beta",), lambda params, x=x, y=y: task(params, random_feature(params, x), y)
        )
    assert_same_run(result, clients, {**body, "joint.mean": joint.mean, "joint.variance": joint.variance})


def test_a_run_of_fedsr_by_hand():
    """At Σ = 0 in the draws; the references of the classes are trained too, and stay at home."""
    data, clients, start, result = random_run(partial(FedSR, norm_weight=0.3, cmi_weight=0.7))
    clients = [each | kept for each, kept in zip(clients, start.client_states, strict=True)]
    samples = torch.tensor([float(len(y)) for _, y in data], dtype=torch.float64)

    def loss(params, x, y):
        feature = random_feature(params, x)
        deviation = torch.nn.functional.softplus(params["reference.raw"]) + 1e-4
        gap = kl_divergence(feature, Normal(params["reference.mean"][y], deviation[y])).sum(1).mean()
        return task(params, feature, y) + 0.3 * feature.mean.square().sum(1).mean() + 0.7 * gap

    for _ in range(3):
        for i, (x, y) in enumerate(data):
            clients[i] = moved_down(
                clients[i], ("phi", "gaussian", "beta", "reference"), lambda params, x=x, y=y: loss(params, x, y)
            )
        server = mean_of(clients, ("phi", "gaussian", "beta"), samples / samples.sum())
        clients = [each | server for each in clients]
    for i, (x, y) in enumerate(data):
        clients[i] = moved_down(clients[i], ("beta",), lambda params, x=x, y=y: loss(params, x, y))
    assert_same_run(result, clients, server)


# --- what is shared, and what is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "trained", "sent", "kept", "tuned"),
    [
        (FedPer(PLAIN, **SHORT), {"phi", "beta"}, {"phi"}, {"beta"}, {"beta"}),
        (LGFedAvg(PLAIN, **SHORT), {"phi", "beta"}, {"beta"}, {"phi"}, {"phi"}),
        (FedBABU(PLAIN, **SHORT), {"phi"}, {"phi"}, set(), {"phi", "beta"}),
        (FedBABU(PLAIN, tuned="head", **SHORT), {"phi"}, {"phi"}, set(), {"beta"}),
        (LGFedAvg(PLAIN, layers=("phi.1",), **SHORT), {"phi", "beta"}, {"phi", "beta"}, {"phi"}, {"phi"}),
        (FedBABU(PLAIN, tuned="body", **SHORT), {"phi"}, {"phi"}, set(), {"phi"}),
        (FedAvgFT(PLAIN, tuned="head", **SHORT), {"phi", "beta"}, {"phi", "beta"}, set(), {"beta"}),
        (FedPer(RANDOM, **SHORT), {"phi", "gaussian", "beta"}, {"phi", "gaussian"}, {"beta"}, {"beta"}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_parts_that_are_trained_sent_kept_and_tuned(method, trained, sent, kept, tuned):
    simulator, start, outcomes = start_and_round(method)
    before = simulator.working(start)
    for i, outcome in outcomes.items():
        assert moved(outcome, before[i]) == trained
        assert {name.split(".")[0] for name in outcome.upload} == sent
        assert {name.split(".")[0] for name in outcome.client_state} == kept
    last = simulator.train(start, [0], 3, "final")[0]
    assert moved(last, before[0]) == tuned


def test_fedbabus_head_is_one_and_stays():
    """Of all clients, in all rounds; only bodies come back, so that 5 · 5 + 5 numbers of the head are not paid for."""
    result = run(FedBABU(PLAIN, **SHORT))
    first = Simulator(EQUAL, FedBABU(PLAIN, **SHORT), dtype=torch.float64, device="cpu").initial().server
    assert_same_tensors(*[{n: p for n, p in s.items() if "beta" in n} for s in (first, result.server)])
    assert not torch.equal(first["phi.0.weight"], result.server["phi.0.weight"])
    row = result.history.iloc[1]
    assert row["bytes_down"] - row["bytes_up"] == 3 * (5 * 5 + 5) * 8


def test_lg_fedavg_takes_clients_of_any_width_and_shares_named_layers():
    run(LGFedAvg(PLAIN, **SHORT), ragged())
    deeper = LGFedAvg(PLAIN, layers=("phi.1",), **SHORT)
    _, _, outcomes = start_and_round(deeper)
    assert set(outcomes[0].upload) == {"phi.1.weight", "phi.1.bias", "beta.weight", "beta.bias"}
    assert set(outcomes[0].client_state) == {"phi.0.weight", "phi.0.bias"}
    with pytest.raises(ValueError, match=r"averages 'phi.0.weight', which must have the same shape .* on 'client-2'"):
        run(LGFedAvg(PLAIN, layers=("phi.0",)), ragged())
    with pytest.raises(ValueError, match=r"layers must be prefixes of parameters such as \['beta.bias'.*got 'phi.7'"):
        run(LGFedAvg(PLAIN, layers=("phi.7",)))


def test_lg_fedavg_as_fedcrs_code_shares_most_of_its_network():
    """Its network for Fashion-MNIST: 4 and 12 channels, two layers of 1 024; 84 % of all numbers are sent."""
    method = LGFedAvg(Model(LeNet(channels=(4, 12), hidden=(1024,), out=1024)), layers=("phi.3",))
    spec = Spec("a", (1, 28, 28), 490, 10, (49,) * 10, 100)
    sent, own = method.init_server([spec], torch.Generator()), method.init_client(spec, torch.Generator())
    sizes = [sum(p.numel() for p in params.values()) for params in (sent, own)]
    assert sum(sizes) == 1_258_798
    assert sizes[0] / sum(sizes) == pytest.approx(0.84, abs=0.005)


@pytest.mark.parametrize("name", NEW)
def test_a_killed_run_goes_on_bit_for_bit_and_the_order_of_clients_does_not_matter(name, tmp_path):
    whole = run(small(name))

    class Killed(Exception):
        pass

    def kill(row):
        if row["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        run(small(name), checkpoint=tmp_path, on_round=kill)
    again = run(small(name), checkpoint=tmp_path)
    assert equal_histories(whole.history, again.history)
    assert_same_tensors(whole.server, again.server)
    for a, b in zip(whole.params, again.params, strict=True):
        assert_same_tensors(a, b)
    backwards = Federation(list(reversed(EQUAL.clients)), EQUAL.n_classes, EQUAL.name)
    assert largest_difference(whole, run(small(name), backwards)) < 1e-12


@pytest.mark.parametrize("name", CATALOGUE)
def test_nothing_that_is_sent_grows_with_the_samples(name):
    """Not what a member sends, nor a newcomer: with ten times the samples every message has the same shapes.

    What clients answer before training (a survey) is counted in the bytes of the round.
    """
    brief = {"local_epochs": 1, "batch_size": 100, "pretrain_epochs": 1, "finetune_epochs": 1, "generator_steps": 3}
    brief["samples"] = 2
    method = small(name) if name in NEW else CATALOGUE[name]
    method = replace(method, **{setting: value for setting, value in brief.items() if getattr(method, setting, 0)})
    few, many = (
        toy.noisy_features(
            n_clients=3,
            classes_per_client=2,
            n_classes=3,
            n_train_per_class=n,
            n_test_per_class=4,
            added=(2, 2),
            subsample=False,
        )
        for n in (20, 200)
    )
    shapes = []
    for fed in (few, many):
        simulator = Simulator(fed, method, device="cpu")
        state = simulator.initial()
        _, outcomes = simulator.round(state, [0, 1, 2])
        shapes.append(sorted(str({n: tuple(p.shape) for n, p in o.upload.items()}) for o in outcomes))
        assert all(n not in shapes[-1][0] for n in ("200", "400"))
    assert shapes[0] == shapes[1]
    joined, larger = (run(method, fed, rounds=1, participation=1.0) for fed in (few, many))
    assert joined.final["bytes_up"] == larger.final["bytes_up"]
    if name in NO_NEWCOMERS:
        with pytest.raises(ValueError, match=f"a new client learns only local parts, but {method.name} trains"):
            adapt(joined, replaced(few[0]), progress=False)
    else:
        assert (adapt(joined, replaced(few[0]), progress=False).history["bytes_up"] == 0).all()


def replaced(client):
    return Client(client.x_train, client.y_train, client.x_test, client.y_test, "new")


# --- Ditto ------------------------------------------------------------------------------------------------------------


def test_ditto_without_its_penalty_is_local_training_beside_fedavg():
    """λ = 0: v_i is what Local learns, bit for bit, and w what FedAvg learns (in one batch an epoch, to rounding)."""
    settings = {"batch_size": 100, "local_epochs": 3, **DESCENT}
    ditto, local = run(Ditto(PLAIN, term_weight=0.0, **settings)), run(Local(PLAIN, **settings))
    for own, kept in zip(ditto.params, local.params, strict=True):
        assert_same_tensors({n.removeprefix("own."): p for n, p in own.items() if n.startswith("own.")}, kept)
    together = run(FedAvg(PLAIN, **settings))
    for name, p in together.server.items():
        torch.testing.assert_close(ditto.server[name], p, rtol=0, atol=1e-12)
    assert ditto.final["server_accuracy"] == together.final["accuracy"]
    assert ditto.final["accuracy"] == local.final["accuracy"]


def test_ditto_with_a_heavy_penalty_starts_each_step_at_the_server():
    """With η λ = 1 a step of gradient descent on f(v) + (λ/2)‖v − w‖² ends at w − η ∇f(v): by arithmetic."""
    eta = 1e-3
    method = Ditto(PLAIN, term_weight=1 / eta, optimizer="sgd", lr=eta, batch_size=100, local_epochs=1)
    simulator, start, outcomes = start_and_round(method)
    for i, outcome in outcomes.items():
        own = {n.removeprefix("own."): p.clone().requires_grad_() for n, p in start.client_states[i].items()}
        data = simulator.federation[i]
        loss = torch.nn.functional.cross_entropy(PLAIN.head(own, PLAIN.embed(own, data.x_train)), data.y_train)
        gradient = torch.autograd.grad(loss, list(own.values()))
        for (name, _), g in zip(own.items(), gradient, strict=True):
            expected = start.server[name] - eta * g
            torch.testing.assert_close(outcome.client_state[f"own.{name}"], expected, rtol=0, atol=1e-12)


def test_ditto_pulls_the_harder_the_larger_lambda():
    gaps = []
    for lam in (0.0, 1.0, 10.0):
        result = run(Ditto(PLAIN, term_weight=lam, lr=0.02, optimizer="sgd", **SHORT), rounds=6)
        gaps.append(
            np.mean([float((p["own.phi.0.weight"] - result.server["phi.0.weight"]).norm()) for p in result.params])
        )
    assert gaps[0] > gaps[1] > gaps[2]


def test_ditto_with_embeddings_of_ones_own_runs_on_inputs_of_any_width():
    """What is averaged is the head alone; λ draws v's head to it, and v's embedding is as free as w's."""
    method = Ditto(PLAIN, term_weight=1.0, embeddings="own", **SHORT, **DESCENT)
    simulator, start, outcomes = start_and_round(method, ragged())
    for i, outcome in outcomes.items():
        assert set(outcome.upload) == {"beta.weight", "beta.bias"}
        assert {name.split(".")[0] for name in outcome.client_state} == {"own", "phi"}
        assert not torch.equal(outcome.client_state["phi.0.weight"], start.client_states[i]["phi.0.weight"])
    own = {name.removeprefix("own."): p for name, p in start.client_states[0].items() if name.startswith("own.")}
    data = simulator.federation[0]
    batch = Batch(data.x_train, data.y_train, torch.ones(len(data.y_train), dtype=torch.float64))
    found = method.personal_loss({f"own.{name}": p for name, p in own.items()}, start.server, batch, {})
    drift = sum(float((own[name] - p).square().sum()) for name, p in start.server.items())
    torch.testing.assert_close(found.total - found.terms["own ce"], torch.tensor(drift / 2, dtype=torch.float64))
    result = run(method, ragged())
    assert "server_accuracy" not in result.final
    with pytest.raises(ValueError, match=r"Ditto averages 'phi.0.weight', which must have the same shape"):
        run(Ditto(PLAIN), ragged())


# --- FedPAC -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3])
def test_weights_of_heads_against_brute_force(n):
    """Every point of a grid on the simplex is no better, for random positive semi-definite P."""
    steps = 400 if n == 2 else 60
    grid = np.array([c for c in itertools.product(range(steps + 1), repeat=n) if sum(c) == steps]) / steps
    for seed in range(20):
        rng = np.random.default_rng(seed)
        factor = rng.standard_normal((n, rng.integers(1, 4)))
        P = factor @ factor.T + np.diag(rng.random(n) * rng.integers(0, 2))
        alpha = simplex_minimum(P)
        assert alpha.min() >= 0
        assert alpha.sum() == pytest.approx(1)
        best = np.einsum("gi,ij,gj->g", grid, P, grid).min()
        assert alpha @ P @ alpha <= best + 1e-9
        assert alpha @ P @ alpha >= best - 3 * np.abs(P).max() / steps


def test_weights_of_heads_in_closed_form():
    """Of equal means only the variances count: α ∝ 1 / v. A client unlike all others keeps its own head."""
    v = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(simplex_minimum(np.diag(v)), (1 / v) / (1 / v).sum(), atol=1e-6)
    h = [torch.zeros(2, 3), torch.zeros(2, 3), torch.full((2, 3), 9.0)]
    uploads = [{"h": each, "v": torch.tensor([0.1])} for each in h]
    expected = [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]
    np.testing.assert_allclose(head_weights(uploads), expected, atol=1e-3)
    lost = [{"h": torch.full((2, 3), torch.nan), "v": torch.tensor([0.1])}, *uploads[:2]]
    np.testing.assert_allclose(head_weights(lost), [[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]], atol=1e-9)
    np.testing.assert_allclose(simplex_minimum(np.zeros((2, 2))), [0.5, 0.5])


@pytest.mark.parametrize("small", [1e-2, 1e-6, 1e-9])
def test_weights_of_heads_are_exact_where_variances_are_small(small):
    """Two clients, P = diag(v, v + Δ²): α_1 = (v + Δ²) / (2v + Δ²); and no worse than the vertices among many."""
    np.testing.assert_allclose(simplex_minimum(np.diag([small, small + 1])), [(small + 1) / (2 * small + 1),
                               small / (2 * small + 1)], rtol=1e-3)  # fmt: skip
    rng = np.random.default_rng(1)
    h = rng.standard_normal((8, 5))
    for i in range(8):
        P = small * np.diag(rng.random(8) + 0.5) + (h[i] - h) @ (h[i] - h).T
        alpha = simplex_minimum(P)
        slope = P @ alpha
        assert alpha @ slope <= np.diag(P).min() * (1 + 1e-9)
        assert slope.min() >= alpha @ slope * (1 - 1e-4), "no direction goes down (Karush, Kuhn and Tucker)"


def three_points():
    """Two clients of one feature; client b has class 1 alone."""
    a = Client(np.array([[1.0], [3.0], [2.0]]), [0, 0, 1], np.ones((1, 1)), [0], "a")
    b = Client(np.array([[5.0]]), [1], np.ones((1, 1)), [1], "b")
    return Federation([a, b], 3)


LINE = Model(MLP(hidden=(), out=1))


def test_what_a_client_sends_for_fedpac_by_hand():
    """Features w x + b of x = 1, 3 | 2 on client a; those of the received body for h and v, of the trained for c."""
    method = FedPAC(LINE, lr=0.0, batch_size=10, local_epochs=1)
    _, start, outcomes = start_and_round(method, three_points())
    w, b = (float(start.server[f"phi.0.{kind}"]) for kind in ("weight", "bias"))
    f = w * np.array([1.0, 3.0, 2.0]) + b
    sent = outcomes[0].upload
    np.testing.assert_allclose(sent["centroid.mean"][:, 0], [f[:2].mean(), f[2], 0])
    np.testing.assert_allclose(sent["centroid.count"], [2, 1, 0])
    h = np.array([2 / 3 * f[:2].mean(), f[2] / 3, 0])
    np.testing.assert_allclose(sent["h"][:, 0], h)
    np.testing.assert_allclose(sent["v"], [((f**2).mean() - (h**2).sum()) / 3])


def test_features_for_h_are_those_of_the_received_body():
    method = FedPAC(LINE, lr=0.3, optimizer="sgd", batch_size=10, local_epochs=3)
    simulator, start, outcomes = start_and_round(method, three_points())
    x = simulator.federation[0].x_train
    body = {name: start.server[name] for name in ("phi.0.weight", "phi.0.bias")}
    before, after = LINE.phi(body, x), LINE.phi(outcomes[0].params, x)
    assert (before - after).abs().max() > 1e-3
    torch.testing.assert_close(outcomes[0].upload["h"][0], before[:2].sum(0) / 3)
    torch.testing.assert_close(outcomes[0].upload["centroid.mean"][0], after[:2].mean(0))


def test_the_servers_centroids_count_samples_and_keep_unseen_classes():
    method = FedPAC(LINE, lr=0.0, batch_size=10, combine_heads=False)
    simulator = Simulator(three_points(), method, dtype=torch.float64, device="cpu")
    start = simulator.initial()
    start = replace(start, server={**start.server, "centroid.mean": torch.tensor([[7.0], [8.0], [9.0]]).double()})
    after, _ = simulator.round(start, [0, 1])
    w, b = (float(start.server[f"phi.0.{kind}"]) for kind in ("weight", "bias"))
    np.testing.assert_allclose(after.server["centroid.mean"][:, 0], [w * 2 + b, w * 3.5 + b, 9.0])
    assert after.server["centroid.known"].tolist() == [1, 1, 0]
    only_b, _ = simulator.round(start, [1])
    assert only_b.server["centroid.known"].tolist() == [0, 1, 0]


def test_fedpacs_penalty_by_hand():
    """Mean over batch and dimensions of the squared distance, over classes that have a centroid; or FedCR's norm."""
    model = Model(MLP(hidden=(), out=2))
    method = FedPAC(model, term_weight=1.0)
    params = model.init(Spec("a", (2,), 3, 3, (1, 1, 1), 1), torch.Generator().manual_seed(0), model.parts)
    params |= {"phi.0.weight": torch.eye(2), "phi.0.bias": torch.zeros(2)}
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [9.0, 9.0], [4.0, 4.0]])
    batch = Batch(x, torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 1, 1, 0]))
    received = {
        "centroid.mean": torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]),
        "centroid.known": torch.tensor([1.0, 1, 0]),
    }
    gap = method.loss(params, received, batch, {}).terms["gap"]
    assert float(gap) == pytest.approx(((0 + 4) / 2 + (9 + 16) / 2) / 3)
    published = replace(method, penalty="norm").loss(params, received, batch, {})
    assert float(published.terms["gap"]) == pytest.approx(np.sqrt(4 + 25) / 3)
    unknown = replace(method, alignment_from=0).loss(params, received, batch, {}).terms["gap"]
    assert float(unknown) == pytest.approx(((0 + 4) / 2 + (9 + 16) / 2 + (16 + 16) / 2) / 3)
    plain = replace(method, term_weight=0.0).loss(params, received, batch, {})
    assert float(published.total - plain.total) == pytest.approx(np.sqrt(29) / 3)


def test_fedpac_trains_the_head_and_then_the_body():
    method = FedPAC(PLAIN, head_epochs=2, head_lr=0.5, lr=0.1, lr_decay=0.5, local_epochs=4)
    head, body = method.stages(2, "round")
    assert (head.train, head.epochs, head.lr) == (("beta",), 2, 0.5 / 4)
    assert (body.train, body.epochs, body.lr) == (("phi",), 4, 0.1 / 4)
    assert body.loss == method.loss
    first = method.stages(0, "round")[1]
    assert first.loss != method.loss, "no centroid is known in round 0"
    early = replace(method, alignment_from=0)
    assert early.stages(0, "round")[1].loss == early.loss


def test_head_and_body_may_be_trained_together():
    """One stage over both; with own bodies and without a penalty it is what a client does that trains alone."""
    together = FedPAC(PLAIN, aggregated="features", combine_heads=False, head_epochs=0, term_weight=0.0, local_epochs=2)
    (stage,) = together.stages(1, "round")
    assert (set(stage.train), stage.epochs, stage.loss) == ({"phi", "beta"}, 2, together.loss)
    assert together.stages(0, "round")[0].loss != together.loss, "no centroid is known in round 0"
    for mine, alone in zip(run(together).client_states, run(Local(PLAIN, local_epochs=2)).client_states, strict=True):
        assert_same_tensors(mine, alone)


def test_a_combined_head_reaches_its_client_and_no_other():
    """After a round of a and b the server holds Σ α β for both, and a client that took no part has its own head."""
    fed = EQUAL
    simulator, start, outcomes = start_and_round(small("FedPAC"), fed, [0, 1])
    after, _ = simulator.round(start, [0, 1])
    alpha = head_weights([outcomes[i].upload for i in (0, 1)])
    working = simulator.working(after)
    for i in (0, 1):
        expected = sum(a * outcomes[j].upload["beta.bias"] for j, a in enumerate(alpha[i]))
        torch.testing.assert_close(working[i]["beta.bias"], expected)
    assert torch.equal(working[2]["beta.bias"], start.client_states[2]["beta.bias"])


def test_scalar_centroids_are_the_published_fault():
    _, _, outcomes = start_and_round(small("FedPAC", centroids="scalar"))
    _, _, right = start_and_round(small("FedPAC"))
    for i, outcome in outcomes.items():
        mean = right[i].upload["centroid.mean"].mean(-1, keepdim=True)
        torch.testing.assert_close(outcome.upload["centroid.mean"], mean.expand(-1, 5))


def test_a_newcomer_of_fedpac_learns_a_head():
    result = run(small("FedPAC", lr=0.05), participation=1.0)
    passes = [adapt(result, replaced(EQUAL[0]), rounds=n, progress=False) for n in (1, 4)]
    for new in passes:
        assert torch.equal(new.params[0]["phi.0.weight"], result.server["phi.0.weight"])
    assert passes[1].history["ce"].iloc[-1] < passes[0].history["ce"].iloc[-1], "passes must build on one another"
    assert torch.equal(passes[1].params[0]["beta.bias"], passes[1].client_states[0]["beta.bias"])


def test_clients_with_slashes_in_their_names_get_their_own_heads():
    named = [
        Client(c.x_train, c.y_train, c.x_test, c.y_test, n)
        for c, n in zip(EQUAL, ["a", "a/b", "own", "none", "head", "/"], strict=True)
    ]
    fed = Federation(named, EQUAL.n_classes)
    simulator, start, _ = start_and_round(small("FedPAC"), fed)
    after, _ = simulator.round(start, list(range(6)))
    for spec in simulator.specs:
        got = simulator.method.download(after.server, spec)
        assert torch.equal(got["head/beta.bias"], after.server[f"own/{spec.name}/beta.bias"])
        assert set(got) == set(simulator.method.download(start.server, spec))


# --- random features --------------------------------------------------------------------------------------------------


def test_the_divergence_is_torchs():
    """Eq. (21) of FedCR against torch.distributions."""
    m, s, a, b = (torch.rand(6, 4, generator=torch.Generator().manual_seed(i)) + 0.2 for i in range(4))
    expected = kl_divergence(Independent(Normal(m, s), 1), Independent(Normal(a, b), 1))
    torch.testing.assert_close(gaussian_gap(m, s**2, a, b**2), expected)


@pytest.mark.parametrize("method", [FedCR, FedSR])
def test_a_model_without_random_features_is_refused_when_the_method_is_made(method):
    message = rf"{method.__name__} needs random features: expected a model with a Gaussian layer, such as .*, got Model"
    with pytest.raises(ValueError, match=message):
        method(model=Model(PHI))


def test_fedpac_without_bodies_runs_on_inputs_of_any_width():
    """Centroids, heads and what weighs them are sent; h and v come from the trained body, as none was received."""
    method = FedPAC(PLAIN, aggregated="features", term_weight=0.5, **SHORT, **DESCENT)
    simulator, start, outcomes = start_and_round(method, ragged())
    for i, outcome in outcomes.items():
        names = {"beta.weight", "beta.bias", "centroid.mean", "centroid.count", "h", "v"}
        assert set(outcome.upload) == names
        data = simulator.federation[i]
        z = PLAIN.embed(outcome.params, data.x_train)
        shares = torch.stack([(data.y_train == c).double() for c in range(simulator.federation.n_classes)]) / len(z)
        torch.testing.assert_close(outcome.upload["h"], shares @ z)
        assert moved(outcome, start.client_states[i]) == {"phi", "beta"}
    last = simulator.train(simulator.round(start, [0, 1, 2])[0], [0], 3, "final")[0]
    assert {"ce", "gap"} == set(last.terms)
    run(method, ragged())
    with pytest.raises(ValueError, match=r"FedPAC averages 'phi.0.weight', which must have the same shape"):
        run(FedPAC(PLAIN), ragged())


@pytest.mark.parametrize("method", [FedCR(RANDOM), FedSR(RANDOM), FedPAC(PLAIN)])
def test_regressions_are_refused_by_name(method):
    fed = toy.linear_regression(3, widths=(5, 5), n_train=(9, 9))
    with pytest.raises(ValueError, match=f"{method.name} .*class.* client 'client-.*' has targets"):
        run(method, fed)


ONE_MODEL = ("FedAvg", "FedProx", "HyFEM", "late fusion", "LASER-VFL", "pFedHN")
"""Methods that train nothing after the last round."""


LAST = [name for name, method in CATALOGUE.items() if method.stages(3, "final")]
"""Methods that do; of a new one, its own stages say so."""


def test_who_trains_after_the_last_round():
    assert not set(LAST) & set(ONE_MODEL)
    assert len(LAST) >= 24


@pytest.mark.parametrize("name", LAST)
def test_the_last_training_has_a_length_of_its_own(name):
    """Alignment epochs apart, all of it; unless told, that of a round (of FedAvg-FT: 10 epochs)."""
    assert any(s.epochs == 7 for s in replace(CATALOGUE[name], finetune_epochs=7).stages(3, "final"))
    assert not any(s.epochs == 7 for s in replace(CATALOGUE[name], finetune_epochs=7).stages(3, "round"))
    with pytest.raises(ValueError, match="finetune_epochs must be at least 1, got 0"):
        replace(CATALOGUE[name], finetune_epochs=0)


def tiny(model, raw=-60.0):
    """Parameters with which softplus is zero in float32."""
    spec = Spec("a", (4,), 9, 3, (3, 3, 3), 1)
    params = model.init(spec, torch.Generator().manual_seed(0), model.parts)
    params["gaussian.bias"][model.gaussian :] = raw
    return {name: p.requires_grad_() for name, p in params.items()}


@pytest.mark.parametrize("beta", [0.0, 0.01])
def test_tiny_deviations_leave_gradients_finite(beta):
    params = tiny(RANDOM)
    batch = Batch(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), torch.ones(6))
    received = {"joint.mean": torch.zeros(3, 3), "joint.variance": torch.full((3, 3), 50.0)}
    found = FedCR(RANDOM, term_weight=beta, samples=1).loss(params, received, batch, {"epsilon": torch.randn(6, 1, 3)})
    found.total.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in params.values())
    assert all(values.isfinite().all() for values in found.remember.values())
    assert (found.total == found.terms["ce"]) == (beta == 0)


def test_what_diverged_on_one_client_stays_out_of_the_joint_features():
    server = {"joint.mean": torch.zeros(2, 2), "joint.variance": torch.ones(2, 2)}
    good = {"joint.natural": torch.full((2, 2), 3.0), "joint.precision": torch.full((2, 2), 2.0)}
    lost = {name: values.clone() for name, values in good.items()}
    lost["joint.precision"][0, 1] = torch.inf
    new = OWN.aggregate(server, [good, lost], [1.0, 1.0], [], torch.Generator())
    torch.testing.assert_close(new["joint.variance"], torch.tensor([[1 / 3, 1 / 3], [1 / 5, 1 / 5]]))
    alone = OWN.aggregate(server, [lost], [1.0], [], torch.Generator())
    torch.testing.assert_close(alone["joint.variance"], torch.tensor([[1.0, 1.0], [1 / 3, 1 / 3]]))


@pytest.mark.parametrize("name", ["FedCR, own bodies", "FedCR, own embeddings", "LG-FedAvg"])
def test_a_newcomer_trains_all_that_stays_with_it(name):
    changes = {"layers": ("phi.1",)} if name == "LG-FedAvg" else {}
    result = run(small(name, **changes))
    new = [adapt(result, replaced(EQUAL[0]), rounds=n, progress=False).params[0] for n in (1, 3)]
    assert not torch.equal(new[0]["phi.0.weight"], new[1]["phi.0.weight"])
    for part in result.server:
        if part in new[0]:
            assert torch.equal(new[0][part], result.server[part]), "what is shared stays as it is"


def logits_and_batch():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64)
    return logits, Batch(torch.zeros(5, 2), torch.tensor([0, 1, 2, 2, 0]), torch.tensor([1.0, 1, 1, 1, 0]).double())


def test_two_losses_of_several_draws():
    """−log of the mean probability, as Eq. (7) has it, is never more than the mean of −log (Jensen)."""
    logits, batch = logits_and_batch()
    p = logits.softmax(-1)[torch.arange(4), :, batch.y[:4]]
    of = {kind: FedCR(RANDOM, likelihood=kind).likelihood_loss(logits, batch) for kind in ("mixture", "mean")}
    torch.testing.assert_close(of["mixture"], -p.mean(1).log().mean())
    torch.testing.assert_close(of["mean"], -p.log().mean())
    assert of["mixture"] < of["mean"]
    one = {kind: FedCR(RANDOM, likelihood=kind).likelihood_loss(logits[:, :1], batch) for kind in ("mixture", "mean")}
    torch.testing.assert_close(one["mixture"], one["mean"])


@pytest.mark.parametrize("scale", ["deviation", "variance", "none"])
@pytest.mark.parametrize("averaged", ["probabilities", "logits"])
def test_a_prediction_by_its_draws(scale, averaged):
    method = FedCR(RANDOM, test_samples=6, scale=scale, averaged=averaged)
    spec = Spec("a", (4,), 9, 3, (3, 3, 3), 1)
    params = RANDOM.init(spec, torch.Generator().manual_seed(0), RANDOM.parts)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    draws = method.prediction_noise(spec)
    assert bool(draws) == (scale != "none")
    noise = {n: d.sample((7,), torch.Generator().manual_seed(2), torch.float32) for n, d in draws.items()}
    mean, deviation = RANDOM.posterior(params, x)
    factor = {"deviation": deviation, "variance": deviation**2, "none": 0 * deviation}[scale]
    epsilon = noise.get("epsilon", torch.zeros(7, 6, 3))
    each = torch.stack([RANDOM.head(params, mean + factor * epsilon[:, s]) for s in range(6)])
    expected = each.softmax(-1).mean(0) if averaged == "probabilities" else each.mean(0).softmax(-1)
    torch.testing.assert_close(method.predict(params, {}, x, noise).softmax(-1), expected)
    silent = method.predict(params, {}, x)
    torch.testing.assert_close(silent.softmax(-1), RANDOM.head(params, mean).softmax(-1))
    assert replace(method, test_samples=0).prediction_noise(spec) == {}


def test_the_mean_of_probabilities_survives_extreme_logits():
    logits = torch.tensor([[[0.0, -800.0], [-800.0, 0.0]]])
    torch.testing.assert_close(mean_log_probability(logits).exp(), torch.tensor([[0.5, 0.5]]))


def test_what_others_are_made_of_is_no_method():
    assert Stochastic.variants() == []
    assert not any(type(method) is Stochastic for method in CATALOGUE.values())


def test_fedsrs_loss_by_torchs_distributions():
    method = FedSR(RANDOM, samples=2, norm_weight=0.3, cmi_weight=0.7)
    spec = Spec("a", (4,), 9, 3, (3, 3, 3), 1)
    own = method.init_client(spec, torch.Generator())
    assert torch.nn.functional.softplus(own["reference.raw"]).sub(1 - 1e-4).abs().max() < 1e-6
    assert not own["reference.mean"].any()
    generator = torch.Generator().manual_seed(4)
    params = RANDOM.init(spec, generator, RANDOM.parts)
    params |= {
        "reference.mean": torch.randn(3, 3, generator=generator),
        "reference.raw": torch.randn(3, 3, generator=generator),
    }
    x, y = torch.randn(6, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    noise = {"epsilon": torch.randn(6, 2, 3, generator=generator)}
    weight = torch.tensor([1.0, 1, 1, 1, 1, 0])
    found = method.loss(params, {}, Batch(x, y, weight), noise)
    mean, deviation = RANDOM.posterior(params, x)
    q = Independent(Normal(mean, deviation), 1)
    reference = Normal(params["reference.mean"][y], torch.nn.functional.softplus(params["reference.raw"])[y] + 1e-4)
    z = mean.unsqueeze(1) + deviation.unsqueeze(1) * noise["epsilon"]
    torch.testing.assert_close(found.terms["cmi"], kl_divergence(q, Independent(reference, 1))[:5].mean())
    torch.testing.assert_close(found.terms["l2"], z.square().sum(-1)[:5].mean())
    torch.testing.assert_close(found.total, found.terms["ce"] + 0.3 * found.terms["l2"] + 0.7 * found.terms["cmi"])
    plain = replace(method, norm="plain").loss(params, {}, Batch(x, y, weight), noise)
    torch.testing.assert_close(plain.terms["l2"], z.norm(dim=-1)[:5].mean())


def test_fedsr_that_shares_nothing_is_local():
    result = run(small("FedSR", federated=False))
    assert not result.server
    assert (result.history[["bytes_up", "bytes_down"]] == 0).all(axis=None)
    shared = run(small("FedSR"))
    assert not any("reference" in name for name in shared.server), "the reference of a class stays at home"
    assert shared.history["bytes_up"].iloc[1] > 0


# --- FedCR ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["mean", "mixture"])
def test_fedcr_without_term_and_noise_is_fedper_with_the_same_layers(likelihood):
    settings = {**SHORT, **DESCENT, "weighting": "uniform"}
    cr = run(FedCR(RANDOM, term_weight=0.0, scale="none", likelihood=likelihood, **settings))
    per = run(FedPer(RANDOM, **settings))
    for name, p in per.server.items():
        torch.testing.assert_close(cr.server[name], p, rtol=0, atol=1e-12)
    for a, b in zip(cr.params, per.params, strict=True):
        torch.testing.assert_close(a["beta.weight"], b["beta.weight"], rtol=0, atol=1e-12)
    assert cr.final["accuracy"] == per.final["accuracy"]


def test_fedcr_sends_features_as_they_passed_last_or_of_one_more_pass():
    """Of one step on all samples the last pass is at the first body, the fresh one at the trained one."""
    settings = {**SHORT, **DESCENT, "local_epochs": 1, "batch_size": 1000, "scale": "none"}
    sent = {}
    for features in ("last", "fresh"):
        method = FedCR(RANDOM, features=features, **settings)
        simulator = Simulator(EQUAL, method, dtype=torch.float64, device="cpu")
        begun = simulator.initial()
        outcome = simulator.train(begun, [0], 0, "round")[0]
        at = simulator.working(begun)[0] if features == "last" else outcome.params
        mean, deviation = RANDOM.posterior(at, EQUAL[0].x_train.double())
        precision = deviation.square().reciprocal()
        for c in range(EQUAL.n_classes):
            mine = EQUAL[0].y_train == c
            torch.testing.assert_close(outcome.upload["joint.precision"][c], precision[mine].sum(0))
            torch.testing.assert_close(outcome.upload["joint.natural"][c], (precision * mean)[mine].sum(0))
        sent[features] = outcome.upload["joint.natural"]
    assert (sent["last"] - sent["fresh"]).abs().max() > 1e-6


def density(x, means, variances):
    return np.prod([stats.norm(m, np.sqrt(v)).pdf(x) for m, v in zip(means, variances, strict=True)], axis=0)


def test_a_product_of_experts_is_the_normalised_product_of_densities():
    """Eq. (8) and (9) against numerical integration: two clients' experts and the prior, one dimension."""
    means, variances = [0.5, 1.2, -0.3], [0.4, 0.9, 0.2]
    x = np.linspace(-8, 8, 20001)
    product = density(x, [*means, 0.0], [*variances, 1.0])
    product /= integrate.trapezoid(product, x)
    mean = integrate.trapezoid(x * product, x)
    variance = integrate.trapezoid((x - mean) ** 2 * product, x)
    method = FedCR(RANDOM)
    precision = 1 / torch.tensor(variances, dtype=torch.float64)
    natural = precision * torch.tensor(means, dtype=torch.float64)
    found = method._product(natural.reshape(3, 1, 1), precision.reshape(3, 1, 1))
    assert [float(each) for each in found] == pytest.approx([mean, variance], rel=1e-6)
    each = replace(method, prior="each")._product(natural.reshape(3, 1, 1), precision.reshape(3, 1, 1))
    assert float(each[1]) == pytest.approx(1 / (3 + float(precision.sum())))


def joint_after(method, received=None):
    """A round of two clients whose messages are given: class 0 on both, class 1 on the second, class 2 on none."""
    server = received or {"joint.mean": torch.full((3, 1), 7.0), "joint.variance": torch.full((3, 1), 5.0)}
    natural = torch.tensor([[[2.0], [0.0], [0.0]], [[6.0], [4.0], [0.0]]])
    precision = torch.tensor([[[1.0], [0.0], [0.0]], [[2.0], [8.0], [0.0]]])
    uploads = [{"joint.natural": n, "joint.precision": p} for n, p in zip(natural, precision, strict=True)]
    return method.aggregate(server, uploads, [1.0, 1.0], [], torch.Generator())


OWN = FedCR(RANDOM, aggregated="features")


@pytest.mark.parametrize(
    ("method", "mean", "variance"),
    [
        (OWN, [(2 + 6) / (1 + 3), 4 / 9, 7], [1 / 4, 1 / 9, 5]),
        (replace(OWN, prior="each"), [(2 + 6) / (2 + 3), 4 / 10, 7], [1 / 5, 1 / 10, 5]),
        (replace(OWN, joint="mixture"), [(2 + 3) / 2, 0.5, 7], [(1 + 0.5) / 2 + 0.25, 1 / 8, 5]),
        (replace(OWN, joint_step=0.0), [7, 7, 7], [5, 5, 5]),
        (replace(OWN, joint_step=0.5), [4.5, (7 + 4 / 9) / 2, 7], [2.625, (5 + 1 / 9) / 2, 5]),
    ],
)  # fmt: skip
def test_a_round_of_the_server_by_hand(method, mean, variance):
    """Λ: 1 + (1 + 2) and 1 + 8; class 2, which nobody has, keeps what it had."""
    new = joint_after(method)
    np.testing.assert_allclose(new["joint.mean"][:, 0], mean, rtol=1e-6)
    np.testing.assert_allclose(new["joint.variance"][:, 0], variance, rtol=1e-6)


def test_what_a_client_multiplies_are_the_features_as_they_passed():
    """In one batch and epoch these are the features of the model it received, before its step; by class."""
    simulator, start, outcomes = start_and_round(
        FedCR(RANDOM, batch_size=100, local_epochs=1, lr=0.3, **{"optimizer": "sgd"})
    )
    for i, outcome in outcomes.items():
        client = simulator.federation[i]
        mean, deviation = RANDOM.posterior(simulator.working(start)[i], client.x_train)
        for c in range(5):
            rows = client.y_train == c
            precision = (1 / deviation[rows] ** 2).sum(0)
            natural = (mean[rows] / deviation[rows] ** 2).sum(0)
            torch.testing.assert_close(outcome.upload["joint.precision"][c], precision)
            torch.testing.assert_close(outcome.upload["joint.natural"][c], natural)


def test_fedcrs_loss_by_torchs_distributions():
    """Eq. (7): the divergence of the joint features from each sample's, in this order, times β."""
    spec = Spec("a", (4,), 9, 3, (3, 3, 3), 1)
    generator = torch.Generator().manual_seed(5)
    params = RANDOM.init(spec, generator, RANDOM.parts)
    x, y = torch.randn(5, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1])
    weight = torch.tensor([1.0, 1, 1, 1, 0])
    noise = {"epsilon": torch.randn(5, 18, 3, generator=generator)}
    received = {
        "joint.mean": torch.randn(3, 3, generator=generator),
        "joint.variance": torch.rand(3, 3, generator=generator) + 0.1,
    }
    mean, deviation = RANDOM.posterior(params, x)
    for target, m, v in [
        ("both", received["joint.mean"], received["joint.variance"]),
        ("mean", received["joint.mean"], torch.ones(3, 3)),
        ("variance", torch.zeros(3, 3), received["joint.variance"]),
    ]:
        found = FedCR(RANDOM, term_weight=0.2, target=target).loss(params, received, Batch(x, y, weight), noise)
        joint = Independent(Normal(m[y], v[y].sqrt()), 1)
        expected = kl_divergence(joint, Independent(Normal(mean, deviation), 1))[:4].mean()
        torch.testing.assert_close(found.terms["kl"], expected)
        torch.testing.assert_close(found.total, found.terms["ce"] + 0.2 * found.terms["kl"])


def test_fedcr_without_aggregation_takes_any_clients():
    """Section 4.4: other widths, own bodies; only features leave, 2 C V numbers."""
    result = run(small("FedCR, own bodies"), ragged())
    assert set(result.server) == {"joint.mean", "joint.variance"}
    assert result.history["bytes_up"].iloc[1] == 3 * 2 * 5 * 64 * 8
    layer = run(small("FedCR, own embeddings"), ragged())
    assert set(layer.server) == {"joint.mean", "joint.variance", "gaussian.weight", "gaussian.bias"}
    with pytest.raises(ValueError, match=r"averages 'phi.0.weight'"):
        run(small("FedCR"), ragged())


def test_joint_features_are_no_parameters():
    result = run(small("FedCR"))
    assert not any("joint" in name for params in result.params for name in params)
    assert (result.server["joint.variance"] < 1).any()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"term_weight": -1.0}, "term_weight must be at least 0, got -1.0"),
        ({"joint_step": 1.5}, r"joint_step must be in \[0, 1\], got 1.5"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"test_samples": -1}, "test_samples must be at least 0, got -1"),
        ({"scale": "sigma"}, "scale must be one of"),
    ],
)
def test_settings_that_fedcr_refuses(setting, message):
    with pytest.raises(ValueError, match=message):
        FedCR(RANDOM, **setting)


def test_settings_that_others_refuse():
    for make, message in [
        (lambda: Ditto(term_weight=-1.0), "term_weight must be at least 0"),
        (lambda: FedPAC(head_epochs=-1), "head_epochs must be at least 0"),
        (lambda: FedPAC(head_epochs=0, head_lr=0.1), "head_lr must be None where head_epochs is 0, got 0.1"),
        (lambda: FedPAC(head_lr=-1.0), "head_lr must be at least 0"),
        (lambda: FedPAC(term_weight=-0.5), "term_weight must be at least 0"),
        (lambda: FedSR(cmi_weight=-0.5), "cmi_weight must be at least 0"),
        (lambda: FedBABU(tuned="none"), "tuned must be one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
