"""The settings of FedCR's tables and of our own comparison: partition, networks, and how learning rates were chosen."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import ragged

from hetfl_book import calibration, ledger
from hetfl_book.experiments import EXPERIMENTS
from hetfl_book.papers import fedcr
from hetfl_core import Client, Federation, simulate
from hetfl_core.engine.training import n_steps
from hetfl_core.federation import Spec
from hetfl_core.methods import FedAvgFT, FedCR
from hetfl_core.networks import MLP, Model

IMAGE = Spec("a", (1, 28, 28), 490, 10, (49,) * 10, 100)


def test_networks_have_the_published_codes_numbers_of_parameters():
    """Of its network for Fashion-MNIST, counted from its layers: 1 258 798 without random features, 2 303 278 with."""
    methods = fedcr.methods(fedcr.PAPER_PHI, fedcr.PAPER_V)
    for name, expected in [("FedPer", 1_258_798), ("FedCR", 2_303_278)]:
        model = methods[name].model
        params = model.init(IMAGE, torch.Generator(), model.parts)
        assert sum(p.numel() for p in params.values()) == expected


def test_every_method_takes_ten_epochs_a_round_of_plain_sgd():
    """Ditto for each of its two models. 490 images in batches of 48 are 11 steps an epoch."""
    for name, method in fedcr.methods(fedcr.OWN_PHI, fedcr.OWN_V, lr=0.1).items():
        stages = method.stages(3, "round")
        assert sum(stage.epochs for stage in stages) == (20 if name == "Ditto" else 10), name
        assert {(s.optimizer, s.momentum, s.clip, s.lr, s.batch_size) for s in stages} == {("sgd", 0.0, 10.0, 0.1, 48)}
        assert method.weighting == "uniform"
        assert sum(n_steps(stage, 490) for stage in stages) == (220 if name == "Ditto" else 110)


def test_the_papers_setting():
    for split in fedcr.SPLITS:
        setting = EXPERIMENTS[f"fedcr/fmnist-{split}"]
        assert (setting.rounds, setting.participation, setting.seeds) == (250, 0.1, 3)
        assert len(setting.methods) == 14
        cr = setting.methods["FedCR"]
        assert (cr.term_weight, cr.samples, cr.test_samples, cr.model.gaussian) == (5e-4, 18, 18, 512)


@pytest.mark.parametrize("split", fedcr.SPLITS)
def test_without_the_term_nothing_else_changes(split):
    """At the paper's setting: FedCR with β = 0, and FedPer with FedCR's layers, on the same clients for as long."""
    whole, part = EXPERIMENTS[f"fedcr/fmnist-{split}"], EXPERIMENTS[f"fedcr/fmnist-{split}-ablation"]
    assert part.methods == {
        "FedCR, beta 0": replace(whole.methods["FedCR"], term_weight=0.0),
        "FedPer with a Gaussian layer": replace(whole.methods["FedPer"], model=whole.methods["FedCR"].model),
    }
    same = ("rounds", "participation", "evaluate_every", "seeds", "dataset")
    assert [getattr(part, name) for name in same] == [getattr(whole, name) for name in same]


@pytest.mark.realdata("pooled.fashion_mnist")
@pytest.mark.parametrize("split", fedcr.SPLITS)
def test_the_papers_clients(split):
    """A hundred, of 490 and 210 images; on non-iid_1 of five classes each."""
    federation = EXPERIMENTS[f"fedcr/fmnist-{split}"].federation(0)
    assert [(c.n_train, c.n_test, c.shapes) for c in federation] == [(490, 210, (1, 28, 28))] * 100
    classes = {len(np.unique(c.y_train)) for c in federation}
    assert classes == {5} if split == "non-iid_1" else max(classes) > 5


def test_the_texts_network_has_1024_inputs_behind_its_convolutions():
    """Where the paper prints 1 600: 28 is 24, 12, 8 and 4 wide after kernels of 5 and pools of 2."""
    model = Model(fedcr.TEXT_PHI)
    params = model.init(IMAGE, torch.Generator(), model.parts)
    widths = [tuple(p.shape) for name, p in params.items() if name.endswith("weight")]
    assert 64 in widths[0]
    assert (1024, 1024) in widths
    assert EXPERIMENTS["fedcr/fmnist-non-iid_1-text"].methods["FedCR"].model.phi == fedcr.TEXT_PHI


@pytest.mark.realdata("pooled.fashion_mnist")
@pytest.mark.parametrize("split", fedcr.SPLITS)
def test_learning_rates_never_see_a_test_image(split):
    """Validation and training images are the client's training images, each once; test images are none of them."""
    true = fedcr.own(split)(3)
    seen = EXPERIMENTS[f"fedcr/own-{split}-grid"].federation(3)
    assert [(c.n_train, len(c.y_test)) for c in true] == [(490, 210)] * 20
    assert [(c.n_train, len(c.y_test)) for c in seen] == [(392, 98)] * 20
    for client, other in zip(true, seen, strict=True):
        test = {image.tobytes() for image in client.x_test.numpy()}
        whole = sorted(image.tobytes() for image in client.x_train.numpy())
        parts = [image.tobytes() for x in (other.x_train, other.x_test) for image in x.numpy()]
        assert sorted(parts) == whole
        assert sum(image in test for image in parts) <= sum(image in test for image in whole), "doubles of the data set"


@pytest.mark.realdata("pooled.cifar10")
@pytest.mark.parametrize("split", fedcr.SPLITS)
def test_the_reduced_setting_of_cifar(split):
    """Clients of the paper's size, and a frame that is as black as the darkest pixel of the images."""
    setting = EXPERIMENTS[f"fedcr/cifar10-reduced-{split}"]
    federation = setting.federation(0)
    assert [(c.n_train, len(c.y_test)) for c in federation] == [(420, 180)] * 20
    if split == "non-iid_1":
        assert all(np.bincount(c.y_train, minlength=10).tolist().count(84) == 5 for c in federation)
    darkest = torch.stack([c.x_train.amin((0, 2, 3)) for c in federation]).amin(0)
    torch.testing.assert_close(torch.tensor(fedcr.CIFAR_PHI.fill), darkest, rtol=0, atol=1e-4)


def test_calibration_is_measured_on_test_images_and_fitted_on_held_out_ones():
    """By hand: train without the held-out images, fit the temperature on those of all, score the test images."""
    fed = ragged(n_clients=3, sizes=(30, 40), widths=(4, 4))
    method = FedCR(Model(MLP((6,), 5), gaussian=3), local_epochs=2, samples=2, test_samples=4, lr=0.05)
    options = {"rounds": 2, "participation": 1.0, "device": "cpu", "progress": False}
    found = fedcr.calibrated(fed, method, seed=3, **options)
    apart = fedcr.held_out(fed, 3)
    rest = [Client(a.x_train, a.y_train, c.x_test, c.y_test, c.name) for a, c in zip(apart, fed, strict=True)]
    run = simulate(Federation(rest, fed.n_classes), method, seed=3, **options)
    assert run.final["accuracy"] == found.final["accuracy"]
    unseen = replace(run, federation=apart.to(torch.float32)).probabilities()
    guessed, known = np.concatenate([unseen[c.name] for c in apart]), np.concatenate([c.y_test.numpy() for c in apart])
    said = np.concatenate([run.probabilities()[c.name] for c in fed])
    true = np.concatenate([c.y_test.numpy() for c in fed])
    heat = calibration.fitted_temperature(guessed, known)
    assert found.final["temperature"] == heat
    assert found.final["log_loss"] == pytest.approx(calibration.log_loss(said, true))
    assert found.final["log_loss_scaled"] == pytest.approx(
        calibration.log_loss(calibration.at_temperature(said, heat), true)
    )
    assert found.final["ece"] == pytest.approx(calibration.expected_calibration_error(said, true))


def test_averaged_heads_are_those_of_all_clients_behind_the_common_body():
    """By hand: every client's tuned head, their mean, and what the one model then names on each client's test data."""
    fed = ragged(n_clients=3, sizes=(30, 40), widths=(4, 4))
    method = FedAvgFT(Model(MLP((6,), 5)), tuned="head", local_epochs=2, lr=0.05)
    options = {"seed": 3, "rounds": 2, "participation": 1.0, "device": "cpu", "progress": False}
    whole, found = simulate(fed, method, **options), fedcr.heads_averaged(fed, method, **options)
    head = {n: sum(p[n] for p in whole.params) / 3 for n in ("beta.weight", "beta.bias")}
    assert (whole.params[0]["beta.bias"] - whole.params[1]["beta.bias"]).abs().max() > 1e-3
    right = []
    for client in fed:
        logits = torch.as_tensor(whole.embed("test")[client.name]) @ head["beta.weight"] + head["beta.bias"]
        right.append(float((logits.argmax(-1) == client.y_test).double().mean()))
    assert found.final["accuracy"] == pytest.approx(np.mean(right))
    assert found.per_client["accuracy"].tolist() == pytest.approx(right)
    assert found.final["accuracy"] != whole.final["accuracy"]
    assert found.final["bytes_up"] == whole.final["bytes_up"]


@pytest.mark.parametrize("name", fedcr.SPACES)
def test_where_feature_spaces_differ_all_train_as_flic_does(name):
    """On its federations, with its embedding, for as many epochs at its rate."""
    whole, mine = EXPERIMENTS[name], EXPERIMENTS[name.replace("flic/", "fedcr/spaces-")]
    assert mine.federation is whole.federation
    assert (mine.rounds, mine.participation) == (whole.rounds, whole.participation)
    model = whole.methods["FLIC-Class"]
    for called, method in mine.methods.items():
        assert method.model.phi == model.model.phi
        settings = ("local_epochs", "batch_size", "lr", "optimizer")
        assert [getattr(method, s) for s in settings] == [getattr(model, s) for s in settings]
        assert called.removesuffix(", common start") == method.name
        assert called.endswith("common start") == (method.init == "common")
        assert "phi" not in method.shared


def test_held_out_images_are_drawn_by_seed_and_client():
    fed = ragged(sizes=(20, 30))
    first, again, other = (fedcr.held_out(fed, seed) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    for client, whole in zip(first, fed, strict=True):
        assert len(client.y_test) == round(0.2 * whole.n_train)
        assert client.n_train + len(client.y_test) == whole.n_train
        both = np.concatenate([client.x_train.numpy(), client.x_test.numpy()])
        assert sorted(map(tuple, both)) == sorted(map(tuple, whole.x_train.numpy()))


def test_the_best_rate_has_the_highest_mean_and_of_equal_ones_the_larger_wins():
    tried = {"A, x, lr 0.1": [80, 90], "A, x, lr 0.5": [99, 60], "B, lr 0.1": [70.0], "B, lr 0.01": [70.0]}
    assert fedcr.best_rates(tried) == {"A, x": 0.1, "B": 0.1}


@pytest.mark.parametrize("tried", [{"A": [1.0]}, {"A, lr x": [1.0]}, {"A, lr 0.1": []}, {"A, lr 0.1": [math.nan]}])
def test_accuracies_that_choose_no_rate_are_refused(tried):
    with pytest.raises(ValueError, match="accuracies"):
        fedcr.best_rates(tried)


@pytest.mark.parametrize("split", fedcr.CHOSEN)
def test_chosen_rates_are_the_best_of_the_grids_records(split):
    grid = EXPERIMENTS[f"fedcr/own-{split}-grid"]
    records = ledger.load(experiment=f"fedcr/own-{split}-grid", scale="paper")
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(record.method, []).append(ledger.value(record, "accuracy"))
    assert set(found) == set(grid.methods)
    assert {len(values) for values in found.values()} == {grid.seeds}
    assert fedcr.best_rates(found) == fedcr.CHOSEN[split]
    compared = EXPERIMENTS[f"fedcr/own-{split}"].methods
    assert {name: method.lr for name, method in compared.items()} == fedcr.CHOSEN[split]


@pytest.mark.parametrize("split", fedcr.CHOSEN)
def test_every_ablation_changes_something_and_keeps_the_rate(split):
    whole = EXPERIMENTS[f"fedcr/own-{split}"].methods
    for name, method in EXPERIMENTS[f"fedcr/own-{split}-ablation"].methods.items():
        base = whole[next(known for known in sorted(whole, key=len, reverse=True) if name.startswith(known))]
        assert method != base, name
        assert type(method) is type(base)
        assert method.lr == base.lr


@pytest.mark.parametrize("split", fedcr.SPLITS)
def test_the_first_rounds_are_those_of_the_whole_run(split):
    """Figure 3's two experiments are one run: bit for bit on one kind of machine, for nothing depends on its end."""
    whole, early = EXPERIMENTS[f"fedcr/own-{split}"], EXPERIMENTS[f"fedcr/own-{split}-early"]
    assert (early.methods, early.metric, early.participation) == (whole.methods, whole.metric, whole.participation)
    records = {e: ledger.load(scale="paper", experiment=f"fedcr/own-{split}{e}") for e in ("", "-early")}
    long = {(r.method, r.seed): r for r in records[""]}
    compared = 0
    for r in records["-early"]:
        there = long[r.method, r.seed]
        if there.numerics.get("isa") != r.numerics.get("isa"):
            continue
        rows = [each.frame().set_index("round").loc[early.rounds] for each in (r, there)]
        figures = ["accuracy", "train_accuracy", "own_accuracy"]
        assert rows[0][figures].tolist() == rows[1][figures].tolist(), (r.method, r.seed)
        compared += 1
    assert compared
