"""The settings of Fed-CMA's tables: how methods are tuned, and on which images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chosen import best

from hetfl_book import ledger
from hetfl_book.discriminator import recognise_clients
from hetfl_book.experiments import EXPERIMENTS
from hetfl_book.ledger import results
from hetfl_book.papers import fedcma
from hetfl_core import Client, Federation, simulate
from hetfl_core.methods import FedCMA, PFedHN
from hetfl_core.networks import MLP, Model
from hetfl_core.statistics import Paired, as_table

ROOT = Path(__file__).parents[1]


def test_every_method_is_tuned_with_the_same_budget():
    assert {len(settings) for settings in fedcma.GRID.values()} == {16}
    grid = EXPERIMENTS["fedcma/mnist-grid"]
    assert list(grid.methods) == [setting for settings in fedcma.GRID.values() for setting in settings]
    assert len(grid.methods) == 16 * len(fedcma.FAMILIES)
    for name, settings in fedcma.GRID.items():
        assert len(set(settings.values())) == 16, name
        assert {method.lr for method in settings.values()} == set(fedcma.RATES)
        assert {type(method) for method in settings.values()} == {type(fedcma.FAMILIES[name][0])}


def test_every_method_takes_twenty_steps_a_round_of_plain_sgd():
    for name, (method, _) in fedcma.FAMILIES.items():
        stages = method.stages(3, "round")
        assert {(s.optimizer, s.momentum, s.batch_size) for s in stages} == {("sgd", 0.0, 32)}, name
        assert [s.steps for s in stages] == [20], name


def test_no_class_loses_its_last_training_sample():
    y = torch.tensor([0] * 20 + [1] * 3 + [2] * 2 + [3])
    lonely = torch.tensor([0, 1, 2])
    x = torch.arange(26.0).unsqueeze(1)
    fed = Federation([Client(x, y, x, y, "a"), Client(x[:3], lonely, x[:3], lonely, "b")], 4)
    cut = fedcma.held_out(fed, 0)
    assert torch.bincount(cut[0].y_test).tolist() == [4, 1]
    assert torch.bincount(cut[0].y_train).tolist() == [16, 2, 2, 1]
    assert (len(cut[1].y_test), len(cut[1].y_train)) == (1, 2), "one that no class can spare, as there is no other"
    together = torch.cat([cut[0].x_train, cut[0].x_test]).flatten().sort()[0]
    assert torch.equal(together, x.flatten())
    assert fedcma.held_out(fed, 0).fingerprint() == cut.fingerprint() != fedcma.held_out(fed, 1).fingerprint()


@pytest.mark.realdata("fedgen.mnist")
def test_settings_never_see_a_test_image():
    from hetfl_book.datasets import fedgen

    true = fedgen.mnist(alpha=fedcma.TUNED_AT, seed=1)
    seen = EXPERIMENTS["fedcma/mnist-grid"].federation(1)
    tested = {image.tobytes() for client in true for image in client.x_test.numpy()}
    for client, other in zip(true, seen, strict=True):
        own = {image.tobytes() for image in client.x_train.numpy()}
        used = {image.tobytes() for part in (other.x_train, other.x_test) for image in part.numpy()}
        assert used == own
        assert not used & tested


def test_the_best_setting_is_that_of_the_highest_mean_and_of_equal_ones_the_first():
    settings = list(fedcma.GRID["Fed-CMA"])
    flat = {setting: [0.5, 0.5] for setting in settings}
    assert best(flat, fedcma.GRID) == {"Fed-CMA": settings[0]}
    better = {**flat, settings[7]: [0.4, 0.7], settings[9]: [0.9, 0.1]}
    assert best(better, fedcma.GRID) == {"Fed-CMA": settings[7]}
    assert best({settings[0]: [0.9]}, fedcma.GRID) == {}, "not before all were tried"


def test_chosen_settings_are_those_of_the_records():
    found: dict[str, list[float]] = {}
    for record in ledger.load(experiment="fedcma/mnist-grid", scale="paper"):
        found.setdefault(record.method, []).append(ledger.value(record, "balanced_accuracy"))
    assert best(found, fedcma.GRID) == fedcma.CHOSEN


def test_the_last_layer_is_linear_or_sigmoid_as_the_name_says():
    for name, (method, _) in fedcma.FAMILIES.items():
        assert method.model.phi.last == ("sigmoid" if name.endswith("sigmoid") else None)
        if isinstance(method, FedCMA):
            assert (method.alignment == "marginal") == name.endswith("marginal")


# --- what follows from the chosen settings ----------------------------------------------------------------------------

FIRST = {name: next(iter(settings.values())) for name, settings in fedcma.GRID.items()}
ROWS = fedcma._rows(FIRST)


def pictures(n_clients: int = 20) -> Federation:
    """As small as twenty clients of MNIST's shape can be: four images of two classes each."""
    g = torch.Generator().manual_seed(0)
    clients = []
    for i in range(n_clients):
        x, y = torch.randn(4, 1, 28, 28, generator=g), torch.tensor([0, 1, 0, 1])
        clients.append(Client(x, y, x[:2], y[:2], f"client-{i:02d}"))
    return Federation(clients, 10)


def test_all_rows_have_the_chosen_settings():
    assert {f"fedcma/{data}-alpha-{alpha:g}" for data in ("mnist", "emnist") for alpha in fedcma.ALPHAS} < set(ROWS)
    for alpha in fedcma.ALPHAS:
        assert ROWS[f"fedcma/mnist-alpha-{alpha:g}"].methods == FIRST
    letters = ROWS["fedcma/emnist-alpha-0.02"]
    assert (letters.dataset, list(letters.methods)) == ("fedgen.emnist", ["Local", "FedAvg", "FedGen", "Fed-CMA"])
    assert {e.seeds for e in ROWS.values()} == {5}


def test_three_architectures_are_dealt_in_turn_and_train_together():
    fed = pictures()
    for name, method in ROWS["fedcma/mnist-mixed"].methods.items():
        phi = method.model.phi
        assert [phi.of(c.name) for c in fed] == [fedcma.MIXED[i % 3] for i in range(20)], name
        method.check(fed.specs())
    run = simulate(
        fed, ROWS["fedcma/mnist-mixed"].methods["Fed-CMA"], rounds=1, participation=1.0, progress=False, device="cpu"
    )
    assert run.server["mean"].shape == (10, 32)
    assert len({tuple(sorted(params)) for params in run.params}) == 3
    with pytest.raises(ValueError, match="method must have a linear latent layer"):
        fedcma.mixed(FIRST["Fed-CMA, sigmoid"])


def test_on_flics_federations_they_train_as_flic_does():
    for name in fedcma.SPACES:
        theirs = EXPERIMENTS[name]
        ours, grid = (EXPERIMENTS[name.replace("flic/", "fedcma/spaces-") + part] for part in ("", "-grid"))
        assert ours.methods == grid.methods == fedcma.across_spaces(name)
        assert (ours.rounds, ours.participation, ours.dataset) == (theirs.rounds, theirs.participation, theirs.dataset)
        local = theirs.methods["Local"]
        for method in ours.methods.values():
            assert method.model == local.model
            assert [method.stages(1, "round")[-1].lr, method.batch_size] == [
                local.stages(1, "round")[-1].lr,
                local.batch_size,
            ]
        names = list(ours.methods)
        assert [sum(n.startswith(family) for n in names) for family in ("Fed-CMA, ", "mean sharing, ")] == [4, 4]


def test_the_settings_for_writers_are_those_of_their_own_grid():
    grid = EXPERIMENTS["fedcma/femnist-grid"]
    assert {len(settings) for settings in fedcma.GRID_BY_WRITERS.values()} == {20}
    assert list(grid.methods) == [name for settings in fedcma.GRID_BY_WRITERS.values() for name in settings]
    assert grid.participation == 0.5
    found: dict[str, list[float]] = {}
    for record in ledger.load(experiment="fedcma/femnist-grid", scale="paper"):
        found.setdefault(record.method, []).append(ledger.value(record, "balanced_accuracy"))
    whole = best(found, fedcma.GRID_BY_WRITERS)
    assert (whole if whole.keys() == set(fedcma.WRITERS) else {}) == fedcma.CHOSEN_BY_WRITERS


def test_table_3_has_the_published_codes_network_and_steps():
    """121 182 weights by hand: 3·16·25 + 16, 16·32·25 + 32, 800·120 + 120, 120·84 + 84, 84·10 + 10."""
    by_hand = 1216 + 12832 + 96120 + 10164 + 850
    init = fedcma.PHOTOS.phi.init((3, 32, 32), torch.Generator().manual_seed(0))
    assert sum(p.numel() for p in init.values()) == by_hand - 850
    for n, fewer, part in [(10, 10, "-reduced"), (10, 1, ""), (50, 1, ""), (100, 1, "")]:
        all_, one = (EXPERIMENTS[f"fedcma/cifar10{part}-{n}{ending}"] for ending in ("", "-pfedhn"))
        assert (one.rounds, all_.rounds * n) == (5000 // fewer, 5000 // fewer)
        assert (round(one.participation * n), all_.participation) == (1, 1.0)
        assert [list(e.methods) for e in (all_, one)] == [
            ["Local", "FedAvg", "mean sharing", "Fed-CMA"],
            ["pFedHN", "pFedHN-PC"],
        ]
        for method in [*all_.methods.values(), *one.methods.values()]:
            stages = method.stages(2, "round")
            assert sum(stage.steps for stage in stages) == 50
            assert {(s.optimizer, s.lr, s.momentum, s.weight_decay, s.clip, s.batch_size) for s in stages} == {
                ("sgd", 5e-3, 0.9, 5e-5, 50.0, 64)
            }
    assert [one.methods[name].server_lr for name in ("pFedHN", "pFedHN-PC")] == [0.01, 0.05]


def test_the_best_step_is_chosen_on_validation_images_and_read_on_test_images(monkeypatch, tmp_path):
    """Test accuracy is what the same run has on test images where its validation accuracy is highest."""
    g = torch.Generator().manual_seed(1)

    def made(tested_on="test", **settings):
        clients = []
        for i, name in enumerate(("client-0", "client-1")):
            x, y = torch.randn(60, 5, generator=g.manual_seed(i)), torch.arange(60) % 2
            x[:, 0] += 2 * y
            test = slice(20, 40) if tested_on == "test" else slice(40, 60)
            clients.append(Client(x[:20], y[:20], x[test], y[test], name))
        return Federation(clients, 2, info={"settings": {"tested_on": tested_on}})

    monkeypatch.setattr(fedcma.pfedhn, "cifar10", made)
    method = PFedHN(Model(MLP((4,), 3)), local_steps=10, optimizer="sgd", lr=0.1, server_lr=0.3)
    options = {"rounds": 40, "participation": 0.5, "evaluate_every": 4, "progress": False, "device": "cpu", "seed": 2}
    found = fedcma.with_best_step(made(), method, checkpoint=tmp_path, **options)
    guide, run = (simulate(made(part), method, **options) for part in ("validation", "test"))
    first_best = []
    for history in (guide.history, run.history):
        seen = history[history["round"] > 0].dropna(subset=["accuracy"])
        first_best.append(max(zip(seen["accuracy"], -seen["round"], strict=True))[1] * -1)
    assert first_best[0] != first_best[1], "else the test could not tell one from the other"
    assert found.final["best_step"] == first_best[0]
    at_it = run.history.set_index("round").loc[first_best[0], "accuracy"]
    assert found.final["accuracy_best_step"] == at_it != run.history["accuracy"].max()
    assert found.final["accuracy"] == run.final["accuracy"]
    again = fedcma.with_best_step(made(), method, checkpoint=tmp_path, **options)
    assert again.final["accuracy_best_step"] == at_it, "a run that goes on from its checkpoint chooses the same step"
    with pytest.raises(ValueError, match=r"federation must be one of datasets\.pfedhn\.cifar10, got 'federation'"):
        fedcma.with_best_step(Federation([*made()], 2), method, **options)
    told = recognise_clients(run.embed("test"), run.labels("test"), balanced=True, seed=2)
    assert found.final["discriminator_accuracy_linear_balanced"] == told.accuracy
    assert found.final["discriminator_accuracy_chance_balanced"] == told.chance


def test_in_the_plane_only_the_pulls_differ():
    methods = EXPERIMENTS["fedcma/four-gaussians"].methods
    pulls = [
        (m.head_weight, m.mean_weight)
        for m in methods.values()
        if isinstance(m, FedCMA) and m.alignment == "conditional"
    ]
    assert pulls == list(fedcma.PULLED)
    assert {(m.lr, m.batch_size, m.local_steps, m.model) for m in methods.values()} == {(0.1, 32, 5, fedcma.PLANE)}


def test_the_published_splits_experiments_change_what_they_say():
    chosen = EXPERIMENTS["fedcma/mnist-alpha-0.05"].methods
    for alpha in fedcma.ALPHAS:
        assert EXPERIMENTS[f"fedcma/mnist-published-alpha-{alpha:g}"].methods == chosen
        as_in_code = EXPERIMENTS[f"fedcma/mnist-code-alpha-{alpha:g}"].methods
        assert list(as_in_code) == [*chosen, "FedGen, teachers by batch"]
        together = as_in_code["FedGen, teachers by batch"]
        assert together == replace(as_in_code["FedGen"], teachers="batch")
        for name, method in ((name, as_in_code[name]) for name in chosen):
            assert (method.init, method.stages(2, "round")[0].lr) == (
                "common",
                pytest.approx(chosen[name].lr * 0.99**2),
            )


def test_without_means_fed_cma_differs_in_rate_and_pull_alone():
    taken = fedcma.GRID["Fed-CMA"][fedcma.CHOSEN["Fed-CMA"]]
    methods = fedcma.without_means()
    assert [(m.lr, m.mean_weight) for m in methods.values()] == [
        (0.1, 0.0), (0.03, 0.0), (0.03, 0.01), (0.03, 0.1), (0.03, 1.0),
    ]  # fmt: skip
    assert {replace(m, lr=taken.lr, mean_weight=taken.mean_weight) for m in methods.values()} == {taken}


# --- what the chapter says in words ---------------------------------------------------------------------------------


def page(name: str) -> str:
    """The text of a chapter's cells."""
    cells = json.loads((ROOT / "book" / f"{name}.ipynb").read_text("utf8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def over_the_table(a: str, b: str) -> Paired:
    stored = ledger.load(scale="paper")
    rows = [f"fedcma/mnist-alpha-{alpha:g}" for alpha in fedcma.ALPHAS]
    found = results.difference(*(results.pooled(stored, rows, name) for name in (a, b)))
    assert found is not None
    return found


def test_the_chapter_tells_the_table_as_a_whole():
    text, printed = page("fedcma-results"), ledger.paper_table("fedcma", 2)
    printed = printed[printed["setting"].str.startswith("MNIST")].pivot(
        index="setting", columns="method", values="value"
    )
    paper = (printed["Fed-CMA"] - printed["Local"]).mean()
    local, head, generator = (over_the_table("Fed-CMA", name) for name in ("Local", "FedAvg", "FedGen"))
    for sentence in (
        f"gains {local.mean:.1f} points over training alone (95 % interval {local.low:.1f} to {local.high:.1f}; "
        f"the paper's mean is {paper:.1f})",
        f"Fed-CMA is {head.mean:.1f} points above that (−{-head.low:.1f} to {head.high:.1f}), and "
        f"{generator.mean:.1f} above FedGen (−{-generator.low:.1f} to {generator.high:.1f})",
    ):
        assert sentence in text
    firm = ledger.corrected(as_table({"Local": local, "FedAvg": head, "FedGen": generator}))["finding"]
    assert firm.to_dict() == {"Local": True, "FedAvg": False, "FedGen": False}
    stored = ledger.load(experiment="fedcma/femnist", scale="paper")
    pairs = {name: results.pair(stored, "fedcma/femnist", "Fed-CMA", name) for name in ("Local", "FedAvg")}
    local, head = pairs.values()
    assert (
        f"{local.mean:.1f} points over training alone ({local.low:.1f} to {local.high:.1f}), and {head.mean:.1f} over "
        f"sharing the last layer ({head.low:.1f} to {head.high:.1f})" in text
    )
    assert ledger.corrected(as_table(pairs))["finding"].all(), "over the two rivals of the paper's row"
    behind = over_the_table("Local, sigmoid", "Fed-CMA, sigmoid")
    assert f"is {behind.mean:.1f} points behind training alone with one ({behind.low:.1f} to {behind.high:.1f})" in text


def test_no_single_split_shows_what_the_table_does():
    for alpha in fedcma.ALPHAS:
        name = f"fedcma/mnist-alpha-{alpha:g}"
        found = ledger.corrected(ledger.effects(ledger.load(experiment=name, scale="paper"), name, "Fed-CMA"))
        assert not found.loc["Local", "finding"]


def test_a_pull_between_means_costs_much_at_one_rate_only():
    found = {r.method: r.metrics["balanced_accuracy"] for r in ledger.load(experiment="fedcma/mnist-grid")}

    def lost(lr: float, pull: float) -> float:
        weak, strong = (found[f"Fed-CMA, lr {lr:g}, lam1 1, lam2 {p:g}"] for p in (0.01, pull))
        return 100 * (weak - strong)

    assert f"costs {lost(0.1, 0.1):.1f} points" in page("fedcma-results")
    assert lost(0.1, 1.0) > 30
    assert max(lost(0.03, 0.1), lost(0.01, 0.1)) < 0.5


def test_traffic_and_alignment_on_photos_are_as_the_chapter_says():
    stored = ledger.load(scale="paper")
    here, there = "fedcma/cifar10-reduced-10", "fedcma/cifar10-reduced-10-pfedhn"

    def mean(experiment: str, name: str, metric: str = "accuracy") -> float:
        return float(results.by_seed(stored, experiment, name, metric).mean())

    for name in ("pFedHN", "pFedHN-PC"):
        assert round(mean(there, name, "bytes_up") / mean(here, "Fed-CMA", "bytes_up")) == 70
        assert abs(mean(there, name) - mean(here, "Fed-CMA")) < 3
    named = "discriminator_accuracy_linear_balanced"
    assert mean(here, "Fed-CMA", named) > 99
    assert mean(here, "Local", named) > 99.9
    assert "sends 70 times what a client of Fed-CMA sends" in page("fedcma-results")
