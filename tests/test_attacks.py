"""Attacks find what is planted, and nothing where nothing is; defences do what their ε promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from small import ragged

from hetfl_book.attacks import defences, inversion, labels, linking, membership
from hetfl_book.attacks.defences import Guard, guarded
from hetfl_book.attacks.scores import auc, bootstrap_interval, caught, power_of_means
from hetfl_book.attacks.survey import survey
from hetfl_book.attacks.watching import Message, averaged, listen, unmix
from hetfl_book.papers import privacy as settings
from hetfl_core import Client, Federation, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.trainer import keeping
from hetfl_core.methods import CATALOGUE, FLIC, FedAvg, FedCMA, FedHeNN, PFedHN
from hetfl_core.networks import MLP, Model
from hetfl_core.rng import numpy_stream

RNG = numpy_stream(0, "tests", 0, "attacks")
TINY = Model(MLP((6,), 4))
ONE = {"model": TINY, "local_epochs": 1, "batch_size": 10, "weighting": "uniform"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def message(client, round=0, received=None, **sent):
    made = {name.replace("_", "."): torch.as_tensor(p, dtype=torch.float64) for name, p in sent.items()}
    return Message(round, client, made, received or {n: torch.zeros_like(p) for n, p in made.items()})


def alike_spaces(n_clients=6, **options):
    return ragged(n_clients, widths=(4, 4), **options)


def watched(method, federation, rounds=2, **options):
    heard, seen = listen(method)
    return simulate(federation, heard, rounds=rounds, progress=False, device="cpu", **options), seen


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [1, 8])
def test_auc_is_scikit_learns(digits):
    """With one digit there are many ties."""
    a, b = np.round(RNG.normal(0.5, size=40), digits), np.round(RNG.normal(size=70), digits)
    truth = np.r_[np.ones(40), np.zeros(70)]
    assert auc(a, b) == pytest.approx(roc_auc_score(truth, np.r_[a, b]))
    assert auc(a, a) == 0.5
    with pytest.raises(ValueError, match="positive"):
        auc([], b)


def test_caught_counts_what_is_above_the_quantile_and_shares_ties():
    b = np.arange(100.0)
    assert caught([94.5, 95.5, 93.5, 3.0], b, 0.05) == 0.5  # five of a hundred, 95 … 99, may be above
    assert caught(np.zeros(10), np.zeros(20), 0.05) == pytest.approx(0.05)
    same = RNG.normal(size=1000)
    assert caught(same, same, 0.05) == pytest.approx(0.05, abs=0.002)


def test_the_bootstrap_interval_is_the_normal_one_of_many_values():
    values = RNG.normal(3.0, size=400)
    low, high = bootstrap_interval([*values, math.nan])
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.02)
    assert high == pytest.approx(values.mean() + half, abs=0.02)


@pytest.mark.parametrize(("dimension", "n"), [(64, 5), (64, 40), (200, 10)])
def test_homers_test_has_its_known_power(dimension, n):
    """Means of n Gaussian samples: members against strangers, over many draws, and the identity for covariance."""
    inside, outside = [], []
    p = np.zeros((1, dimension))
    for _ in range(300):
        z = RNG.normal(size=(n, dimension))
        m, y = z.mean(0, keepdims=True), np.zeros(n, int)
        inside.append(membership.mean_scores(z, y, m, p))
        outside.append(membership.mean_scores(RNG.normal(size=(n, dimension)), y, m, p, np.eye(dimension)))
    assert auc(np.concatenate(inside), np.concatenate(outside)) == pytest.approx(power_of_means(dimension, n), abs=0.02)


# --- what the server sees ---------------------------------------------------------------------------------------------


def test_listening_changes_nothing_and_hears_every_upload():
    method, federation = FLIC(TINY, pretrain_epochs=1, local_epochs=1), ragged(4)
    run, seen = watched(method, federation, participation=0.5)
    plain = simulate(federation, method, rounds=2, participation=0.5, progress=False, device="cpu")
    assert all(torch.equal(p, plain.server[name]) for name, p in run.server.items())
    simulator = Simulator(federation, method, device="cpu")
    state = simulator.initial()
    state = keeping(state, simulator.train(state, range(4), 0, "start"))
    first = [m for m in seen.messages if m.round == 0]
    chosen = [i for i, c in enumerate(federation) if c.name in {m.client for m in first}]
    outcomes = {federation[i].name: o for i, o in simulator.train(state, chosen, 0, "round").items()}
    assert len(first) == len(outcomes) == 2
    for m in first:
        o = outcomes[m.client]
        assert m.sent.keys() == o.upload.keys()
        assert all(torch.equal(p, o.upload[name]) for name, p in m.sent.items())
        assert all(torch.equal(p, o.received[name]) for name, p in m.received.items())


def test_answers_to_a_survey_are_heard_too():
    _, seen = watched(FedHeNN(TINY, local_epochs=1, n_rad=5), ragged())
    assert {m.kind for m in seen.messages} == {"upload", "answer"}
    assert {m.kind for m in seen.uploads} == {"answer"}


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (FedAvg(**ONE), set()),
        (FedAvg(**{**ONE, "weighting": "samples"}), {"n_train"}),
        (FedCMA(**ONE), {"n_train", "class_counts"}),
        (FLIC(**ONE, pretrain_epochs=0), set()),
    ],
)
def test_what_the_server_is_told_besides(method, told):
    assert watched(method, alike_spaces(), rounds=1)[1].told == told


def test_of_pfedhn_the_model_is_read_off_its_difference():
    _, seen = watched(PFedHN(**ONE), alike_spaces(), rounds=1)
    m = seen.messages[0]
    assert all(float(move.abs().max()) < 0.5 for move in m.moves.values())
    assert all(float((p - m.received[n]).abs().max()) > 0 for n, p in m.sent.items())


def test_a_mean_keeps_the_sum_and_no_more():
    some = [message(f"c{i}", a_weight=[[float(i)], [1.0]]) for i in range(4)]
    found = averaged(some)
    assert {m.client for m in found} == {"c0", "c1", "c2", "c3"}
    assert all(torch.equal(m.sent["a.weight"], torch.tensor([[1.5], [1.0]], dtype=torch.float64)) for m in found)


def test_sums_over_changing_participants_are_unmixed():
    """Values that do not change, 40 rounds of 4 of 8: solved but for the common part, which the ridge sets."""
    X = RNG.normal(size=(8, 5))
    X -= X.mean(0)
    took_part = np.stack([np.isin(np.arange(8), RNG.choice(8, 4, replace=False)) for _ in range(40)])
    found = unmix(took_part.astype(float) @ X, took_part, 1e-6)
    np.testing.assert_allclose(found, X, atol=1e-4)
    assert not unmix(RNG.normal(size=(40, 5)), np.ones((40, 8), bool)).any()


# --- labels and names -------------------------------------------------------------------------------------------------


def test_classes_are_read_off_anchors_means_experts_counts_and_heads():
    held = [True, False, True]
    rows = np.where(np.array(held)[:, None], RNG.normal(size=(3, 4)) + 2, 0.0)
    still = torch.ones(3, 4, dtype=torch.float64)
    for m in (
        Message(0, "a", {"anchor.mean": still + torch.tensor(rows)}, {"anchor.mean": still}),
        Message(0, "a", {"mean": torch.tensor(rows)}, {"mean": still}),
        message("a", joint_precision=np.abs(rows), joint_natural=rows),
        message("a", centroid_count=[5.0, 0.0, 1.0], centroid_mean=rows),
        message("a", beta_bias=[0.1, -0.3, 0.2], beta_weight=RNG.normal(size=(4, 3))),
    ):
        scores = labels.direct_scores(m, 3)
        assert min(scores[0], scores[2]) > scores[1], m
    assert labels.direct_scores(message("a", phi_0_weight=RNG.normal(size=(3, 4))), 3) is None


def test_the_precision_of_experts_counts_samples():
    """Sums of n precisions in [1, 2]: shares are found to within their spread."""
    counts = np.array([10, 0, 30])
    precision = np.stack([RNG.uniform(1, 2, size=(n, 200)).sum(0) for n in counts])
    found = labels.sample_shares(message("a", joint_precision=precision), 3)
    np.testing.assert_allclose(found, counts / 40, atol=0.02)


def shares_of(n=20, classes=5, seed=0):
    counts = numpy_stream(seed, "tests", 0, "shares").multinomial(20, [1 / classes] * classes, size=n)
    counts[np.arange(n), np.arange(n) % classes] = 0
    return {f"c{i}": row.tolist() for i, row in enumerate(counts)}


def test_shares_are_learned_from_others_where_moves_tell_them():
    counts = shares_of()
    mix = RNG.normal(size=(5, 60))
    some = [
        message(name, t, beta_weight=np.array(row) @ mix + 0.1 * RNG.normal(size=60))
        for t in range(3)
        for name, row in counts.items()
    ]
    of = labels.move_vectors(some)
    truth = {name: np.array(row) / 20 for name, row in counts.items()}
    for half in labels.halves(of, truth):
        assert len(half) == 10
        assert labels.presence(half, counts) > 0.9
        assert labels.distance(half, counts) < 0.12
    accuracy, chance = linking.link(some)
    assert accuracy == 1.0
    assert chance == pytest.approx(1 / 20)
    assert linking.alike(of, counts) > 0.7


def test_nothing_is_learned_where_nothing_is_said():
    """Without features exactly chance, not worse: guesses from others' means would be, if halves were mixed."""
    counts = shares_of()
    truth = {name: np.array(row) / 20 for name, row in counts.items()}
    silent = dict.fromkeys(counts, np.zeros(0))
    assert {labels.presence(half, counts) for half in labels.halves(silent, truth)} == {0.5}
    found = []
    for _ in range(30):
        noise = [message(name, t, a=RNG.normal(size=8)) for t in (0, 1) for name in counts]
        halves = labels.halves(labels.move_vectors(noise), truth, repeats=1)
        found.append([*(labels.presence(h, counts) for h in halves), linking.link(noise)[0]])
    mean, error = np.mean(found, 0), np.std(found, 0) / math.sqrt(30)
    assert (np.abs(mean - [0.5, 0.5, 0.05]) < 4 * error).all(), (mean, error)


def test_identical_clients_cannot_be_linked_or_compared():
    some = [message(f"c{i}", t, a=[1.0, float(t)]) for t in range(4) for i in range(5)]
    accuracy, chance = linking.link(some)
    assert accuracy == pytest.approx(chance) == pytest.approx(0.2)
    assert linking.alike(labels.move_vectors(some), shares_of(5)) == 0.0


def test_neurons_are_put_where_they_were_matched():
    m = message("a", phi_joint_b_weight=[[1.0, 2.0]], beta_weight=[[1.0], [2.0]])
    m = replace(m, sent={"phi.joint.b.weight": m.sent["phi.joint.b.weight"], "beta.weight": m.sent["beta.weight"]})
    found = linking.in_place(m, torch.tensor([2, 0])).sent
    assert found["phi.joint.b.weight"].tolist() == [[2.0, 0.0, 1.0]]
    assert found["beta.weight"].tolist() == [[2.0], [0.0], [1.0]]


# --- samples ----------------------------------------------------------------------------------------------------------


def noise_labels(n=25, d=40, seed=0):
    """Random labels, which can only be learned by heart, in more dimensions than samples."""
    rng = numpy_stream(seed, "tests", 0, "noise")
    sets = [(rng.normal(size=(n, d)).astype(np.float32), rng.integers(3, size=n)) for _ in range(8)]
    return Federation([Client(*sets[2 * i], *sets[2 * i + 1], f"c{i}") for i in range(4)], 3)


def member_auc(run, seen, calibrated=True):
    found = []
    for c in list(run.federation)[:3]:
        mine = [m for m in seen.messages if m.client == c.name]
        inside, outside = (
            membership.loss_scores(lambda p, x: run.method.predict(p, {}, x), run.params[3], mine, x, y, calibrated)
            for x, y in ((c.x_train, c.y_train), (c.x_test, c.y_test))
        )
        found.append(auc(inside, outside))
    return float(np.mean(found))


def test_labels_learned_by_heart_give_members_away_and_no_training_does_not():
    method = FedAvg(Model(MLP((16,), 8)), local_epochs=60, batch_size=25, lr=1e-2, weighting="uniform")
    trained = watched(method, noise_labels(), rounds=1)
    assert member_auc(*trained) > 0.85
    assert member_auc(*trained, calibrated=False) > 0.95
    assert member_auc(*watched(replace(method, lr=0.0), noise_labels(), rounds=1)) == 0.5


def test_a_linear_embedding_is_decoded():
    """x on 4 of 10 directions, z of 6 numbers: x is a linear function of z, and means are mapped back."""
    basis, A = RNG.normal(size=(4, 10)), RNG.normal(size=(10, 6))
    x = RNG.normal(size=(300, 4)) @ basis
    W = inversion.decoder(x @ A, x, 1e-9)
    truth, floor = RNG.normal(size=(3, 4)) @ basis, np.zeros((3, 10))
    guess = inversion.decode(truth @ A, floor @ A, floor, W)
    np.testing.assert_allclose(guess, truth, atol=1e-5)
    cosine, error = inversion.agreement(guess, truth, floor)
    assert cosine == pytest.approx(1)
    assert error == pytest.approx(0, abs=1e-9)
    assert inversion.agreement(floor, truth, floor) == (0.0, 1.0)
    unrelated = np.mean([inversion.agreement(RNG.normal(size=(3, 10)), truth, floor)[0] for _ in range(300)])
    assert abs(unrelated) < 0.05


def test_means_are_read_from_each_methods_message():
    rows = RNG.normal(size=(3, 4))
    assert np.allclose(membership.class_means(message("a", mean=rows))[0], rows)
    precision = np.array([[2.0], [0.0], [4.0]]) * np.ones((3, 4))
    found, moves = membership.class_means(message("a", joint_natural=precision * rows, joint_precision=precision))
    assert np.allclose(found[[0, 2]], rows[[0, 2]])
    assert not found[1].any()
    assert not moves
    assert membership.class_means(message("a", anchor_mean=rows))[1]
    assert membership.class_means(message("a", phi_weight=rows)) is None


def test_the_survey_of_local_is_chance_and_of_fedavg_is_not():
    federation = settings.digits_and_colluder(0)
    options = {"rounds": 2, "participation": 0.5, "seed": 0, "evaluate_every": 2}
    plain = settings.everyone()
    run = settings.attacked(federation, plain["Local"], progress=False, device="cpu", **options)
    assert run.final["presence_learned"] == 0.5
    assert run.final["loss"] == run.final["loss_low"] == run.final["loss_high"] == 0.5
    assert run.final["alike"] == 0.0
    assert not {"link", "presence_direct", "means", "cosine"} & run.final.keys()
    run = settings.attacked(federation, plain["FedAvg"], progress=False, device="cpu", **options)
    assert run.final["presence_direct"] > 0.8
    assert run.final["link"] > 3 * run.final["link_chance"]
    with pytest.raises(ValueError, match="colluder"):
        survey(run, listen(plain["FedAvg"])[1], "nobody")


# --- defences ---------------------------------------------------------------------------------------------------------


def test_a_guard_is_one_gaussian_mechanism():
    """Divided by their R, any two uploads are 2√G apart at most, and the noise of each entry is that times z."""
    guard = Guard({"beta": 3.0, "beta.bias": 0.1, "": 2.0}, 0.0)
    received = {"beta.weight": torch.ones(4, 3), "phi.0.weight": torch.zeros(5, 4)}
    g = generator()
    sent = [
        {
            "beta.weight": 1 + scale * torch.randn(4, 3, generator=g),
            "beta.bias": scale * torch.randn(3, generator=g),
            "phi.0.weight": scale * torch.randn(5, 4, generator=g),
        }
        for scale in (100.0, 1e-3, 50.0)
    ]
    out = [guard.protect(one, received, generator()) for one in sent]
    assert torch.equal(out[1]["beta.weight"], sent[1]["beta.weight"])
    for a in out:
        for b in out:
            gap = sum(float((a[n] - b[n]).square().sum()) / guard.clip[guard.group(n)] ** 2 for n in a)
            assert math.sqrt(gap) <= 2 * math.sqrt(3) + 1e-6
    one = {"beta.weight": torch.ones(200, 200), "beta.bias": torch.zeros(40_000), "phi.0.weight": torch.zeros(40_000)}
    noisy = replace(guard, noise_multiplier=0.7).protect(one, {}, generator())
    for name, p in noisy.items():
        limit = guard.clip[guard.group(name)]
        assert float((p - p.mean()).std()) == pytest.approx(0.7 * 2 * math.sqrt(3) * limit, rel=0.02)
    shared = replace(guard, noise_multiplier=0.7, shared=9).protect(one, {}, generator())
    assert float(shared["phi.0.weight"].std()) == pytest.approx(float(noisy["phi.0.weight"].std()) / 3, rel=0.02)


def test_what_no_group_fits_is_not_sent_and_floors_hold():
    with pytest.raises(ValueError, match="fits none of"):
        Guard({"beta": 1.0}).protect({"phi.weight": torch.zeros(2)}, {}, generator())
    found = Guard({"": 1.0}, 5.0, at_least={"joint.precision": 0.0}).protect(
        {"joint.precision": torch.ones(100), "joint.natural": torch.ones(100)}, {}, generator()
    )
    assert float(found["joint.precision"].min()) == 0
    assert float(found["joint.natural"].min()) < 0


def gaussian_delta(z, eps):
    """δ of a Gaussian mechanism with sensitivity 1 and noise z, in closed form (Balle and Wang, 2018)."""
    return norm.cdf(1 / (2 * z) - eps * z) - math.exp(eps) * norm.cdf(-1 / (2 * z) - eps * z)


@pytest.mark.parametrize("eps", [1.0, 4.0, 16.0])
def test_the_noise_of_the_experiments_buys_its_epsilon(eps):
    """T releases are one whose z is smaller by √T."""
    z = settings.NOISE[eps]
    by_hand = brentq(lambda e: gaussian_delta(z / math.sqrt(22), e) - settings.DELTA, 1e-3, 100)
    assert by_hand == pytest.approx(eps, rel=2e-3)
    assert by_hand <= eps
    assert Guard({"": 1.0}, z).epsilon(settings.DELTA, 22) == pytest.approx(by_hand, rel=1e-4)


def test_no_client_takes_part_more_often_than_was_counted():
    names = [client.name for client in settings.digits_and_colluder(0)]
    most = [defences.releases(names, settings.PARTICIPATION, s, settings.ROUNDS) for s in range(3)]
    assert max(most) == 22
    assert settings.NOISE[256.0] == pytest.approx(0.2495, abs=1e-3)


def test_a_guarded_method_runs_and_its_uploads_are_within_the_limit():
    method = guarded(FedAvg(**ONE), Guard({"": 0.05}))
    run, seen = watched(method, alike_spaces())
    for m in seen.messages:
        assert math.sqrt(sum(float(p.square().sum()) for p in m.moves.values())) <= 0.05 + 1e-6
    assert run.settings["method"]["guard"]["clip"] == {"": 0.05}
    assert guarded(FedAvg(**ONE), Guard()) == guarded(FedAvg(**ONE), Guard())
    assert max(m.round for m in seen.messages) == 1


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (FedAvg(TINY), "weighting='uniform'"),
        (FedCMA(**ONE), "survey"),
        (FedHeNN(**ONE), "survey"),
        (PFedHN(**ONE), "pFedHN"),
        (FLIC(**ONE, privacy=defences.Privacy(1.0)), "noise of its own"),
    ],
)
def test_methods_of_which_epsilon_would_not_tell_all_are_refused(method, why):
    with pytest.raises(ValueError, match=why):
        guarded(method, Guard())


def test_a_new_method_enters_no_published_experiment(monkeypatch):
    before = settings.everyone()
    monkeypatch.setitem(CATALOGUE, "FedNew", FedAvg())
    assert settings.everyone() == before
    assert len(before) == 29


def test_clients_of_the_experiments_have_as_many_samples_as_the_text_says():
    sizes = [(c.n_train, c.n_test) for c in settings.digits_and_colluder(3)]
    assert sizes == [(40, 30)] * 20 + [(250, 50)]
    whole = torch.cat([x for c in settings.digits_and_colluder(3) for x in (c.x_train, c.x_test)])
    assert len(whole) == 1700
    by_quarters = settings.quarters(3)
    assert {sum(bool(b.numel()) for b in c.x_train.values()) for c in by_quarters} == {2, 4}
