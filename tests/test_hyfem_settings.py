"""The settings of HyFEM's comparison: how methods are tuned, on which images, and what each of them is given."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import pandas as pd
import pytest
from chosen import best
from test_blocks_data import small_images  # noqa: F401  (a fixture)

from hetfl_book import ledger
from hetfl_book.datasets import solids
from hetfl_book.experiments import EXPERIMENTS
from hetfl_book.ledger import results
from hetfl_book.papers import hyfem
from hetfl_core.datasets import blocks
from hetfl_core.statistics import Paired

GRID = EXPERIMENTS["hyfem/quadrants-grid"]

NOT_MATCHED = {"cost": "distance", "order": "parallel", "growth": None, "max_width": 4096}


ALIGNED = EXPERIMENTS["hyfem/quadrants-grid-aligned"]


def test_every_method_is_tuned_with_the_same_budget():
    assert {len(settings) for settings in hyfem.GRID.values()} == {15}
    assert [*GRID.methods, *ALIGNED.methods] == [setting for settings in hyfem.GRID.values() for setting in settings]
    for name, settings in hyfem.GRID.items():
        method = (hyfem.FAMILIES | hyfem.ALIGNED)[name][0]
        assert len({str(method) for method in settings.values()}) == 15, name
        scale = 100 if name == "FLIC" else 1
        assert {round(scale * method.lr, 9) for method in settings.values()} == set(hyfem.RATES)
        assert {type(method) for method in settings.values()} == {type(method)}


def test_every_method_takes_as_many_steps_by_the_published_codes_optimizer():
    """FLIC with Adam, and a second step of α and of its anchors."""
    for name, (method, _) in (hyfem.FAMILIES | hyfem.ALIGNED).items():
        stage = method.stages(2, "round")[0]
        optimizer = ("adam", 0.0) if name == "FLIC" else ("sgd", 0.5)
        assert (stage.optimizer, stage.momentum, stage.batch_size, stage.steps) == (*optimizer, 32, 32), name
        assert stage.lr == pytest.approx(method.lr * 0.95**2)
        assert method.weighting == "uniform"


def test_the_ablation_changes_what_it_names_and_nothing_else():
    text = hyfem.HyFEM(hyfem.MODEL, **hyfem.COMMON)
    every = hyfem.ablated({0.0: text, 0.5: text})
    assert len(every) == 4 * 2 * 2 * 2
    assert every["distance, mu 0.5, common start, reset"] == text
    one = every["PFNM, mu 0, own starts, go on"]
    assert (one.cost, one.client_init, one.reset) == ("pfnm", "own", False)
    assert [f.name for f in fields(text) if getattr(one, f.name) != getattr(text, f.name)] == [
        "cost", "order", "growth", "max_width", "client_init", "reset",
    ]  # fmt: skip
    assert len({str(method) for name, method in every.items() if "mu 0," in name}) == 16


def by_mu():
    """HyFEM's settings of the grid, apart for each regulariser."""
    grid = hyfem.GRID["HyFEM"].items()
    return {mu: {name: m for name, m in grid if m.classifier_weight == m.extractor_weight == mu} for mu in hyfem.MUS}


def test_settings_of_each_regulariser_stand_apart():
    apart = by_mu()
    assert {mu: len(settings) for mu, settings in apart.items()} == {0.0: 5, 0.1: 5, 0.5: 5}
    assert all(f"mu_classifier {mu:g}" in name for mu, settings in apart.items() for name in settings)


def test_hyfems_other_settings_are_the_texts():
    method = hyfem.FAMILIES["HyFEM"][0]
    assert (method.cost, method.order) == ("distance", "parallel")
    assert (method.client_init, method.reset, method.penalty, method.growth) == ("server", True, "square", None)
    pulls = [(m.extractor_weight, m.classifier_weight) for m in hyfem.GRID["HyFEM"].values()]
    assert set(pulls) == {(0.0, 0.0), (0.1, 0.1), (0.5, 0.5)}


def test_what_each_method_is_given(small_images):  # noqa: F811
    """The blocks that all hold, zeros for what is missing, or everything in one place; four fifths to train on."""
    names = {name: next(iter(settings)) for name, settings in hyfem.GRID.items()}
    for name in ("FedAvg, common blocks", "FedProx, common blocks"):
        assert list(GRID.data(names[name], 0)[0].shapes) == ["top left", "bottom left"]
    filled = GRID.data(names["FedAvg, zeros"], 0)
    assert all(0 not in shape for client in filled for shape in client.shapes.values())
    alone = GRID.data(names["centralised"], 0)
    assert (len(alone), alone[0].n_train, len(alone.y_test)) == (1, 320, 80)
    assert [client.n_train for client in GRID.data(names["HyFEM"], 0)] == [160] * 6


def test_a_grid_on_other_data_is_judged_on_samples_that_nobody_trains_on(monkeypatch):
    """All methods of a seed have one dealing; test samples are in no grid, be it in the place of validation samples."""
    monkeypatch.setattr(solids, "views", partial(solids.views, per_class=10, test_per_class=5, size=4))
    (setting,) = (one for one in hyfem.SETTINGS if one.name == "4-views")
    tested = rows(setting.make(seed=0))
    experiment = EXPERIMENTS["hyfem/4-views-grid"]
    made = {name: experiment.data(next(iter(grid)), 0) for name, grid in hyfem.grid_of(setting).items()}
    assert set(made) == {*hyfem.FAMILIES, *hyfem.ALIGNED}
    judged = rows(made["centralised"])
    for name, fed in made.items():
        assert fed.info["settings"]["tested_on"] == "validation", name
        assert rows(fed) == judged, name
        trained = {row for client in fed for row in rows(client, "x_train")}
        assert trained <= rows(made["centralised"][0], "x_train"), name
        assert not trained & judged, name
        assert not (trained | judged) & tested, name
    for one in hyfem.SETTINGS:
        make = EXPERIMENTS[f"hyfem/{one.name}-grid"].federation.make
        assert make.keywords["tested_on"] == "validation"


def rows(holder, half="x_test"):
    """Samples by what is seen in the view that everybody has."""
    return {image.numpy().tobytes() for image in getattr(holder, half)["view 0"]}


def test_the_chosen_settings_are_the_best_of_the_records():
    found: dict[str, list[float]] = {}
    for name in ("hyfem/quadrants-grid", "hyfem/quadrants-grid-aligned"):
        for record in ledger.load(experiment=name, scale="paper"):
            found.setdefault(record.method, []).append(ledger.value(record, "accuracy"))
    assert best(found, hyfem.GRID) == hyfem.CHOSEN
    apart = {str(mu): settings for mu, settings in by_mu().items()}
    mine = {setting: found[setting] for settings in apart.values() for setting in settings}
    assert best(mine, apart) == {str(mu): setting for mu, setting in hyfem.CHOSEN_BY_MU.items()}


def test_the_comparison_gives_each_method_its_blocks(small_images):  # noqa: F811
    compared = EXPERIMENTS["hyfem/quadrants"]
    assert list(compared.methods) == list(hyfem.CHOSEN)
    assert list(compared.data("FedProx, common blocks", 0)[0].shapes) == ["top left", "bottom left"]
    assert len(compared.data("centralised", 0)) == 1
    assert [client.n_train for client in compared.data("HyFEM", 0)] == [200] * 6


@pytest.mark.parametrize("setting", hyfem.SETTINGS, ids=lambda setting: setting.name)
def test_on_other_data_methods_are_tuned_alike_and_chosen_by_the_records_of_seed_0(setting):
    grid = hyfem.grid_of(setting)
    assert {len(settings) for settings in grid.values()} == {3 * len(hyfem.FEWER_RATES)}
    records = ledger.load(experiment=f"hyfem/{setting.name}-grid", scale="paper")
    whole = best({r.method: [ledger.value(r, "accuracy")] for r in records if r.seed == 0}, grid)
    assert (whole if whole.keys() == grid.keys() else {}) == hyfem.CHOSEN_ON.get(setting.name, {})


def test_a_setting_that_diverged_on_a_seed_is_never_chosen():
    found = {"first": [float("nan"), 0.9], "second": [0.1, 0.2], "third": [0.3, 0.2]}
    assert best(found, {"a method": found}) == {"a method": "third"}


def test_what_cannot_run_on_other_data_is_left_out():
    """Of twelve views and of colours no block is on all; nobody could train in one place on the laboratories' caps."""
    left_out = {one.name: set(hyfem.FAMILIES) - set(one.families) for one in hyfem.SETTINGS}
    assert left_out == {"4-views": set(), "eeg": {"centralised"}}
    assert set({one.name: one.families for one in hyfem.SETTINGS}["4-views"]) > set(hyfem.ALIGNED)
    for name, assignment in (("views", "12 views"), ("colours-cifar10", "9 clients")):
        assert not set.intersection(*(set(one.blocks) for one in blocks.ASSIGNMENTS[assignment]))
        assert list(EXPERIMENTS[f"hyfem/{name}"].methods) == [
            f for f in hyfem.FAMILIES if f not in hyfem.WITHOUT_COMMON
        ]


def test_settings_that_are_taken_over_are_those_of_the_other_data():
    here, there = EXPERIMENTS["hyfem/views"].methods, EXPERIMENTS["hyfem/4-views"].methods
    for name, method in here.items():
        assert replace(method, model=there[name].model) == there[name]
    for name, method in EXPERIMENTS["hyfem/colours-cifar10"].methods.items():
        assert replace(method, model=hyfem.MODEL) == EXPERIMENTS["hyfem/quadrants"].methods[name]


def test_what_the_page_on_theory_says_of_the_reset_is_in_the_records():
    """Of the server, all ways to match and both starts together: far better, somewhat better, no different."""
    stored = [r for r in ledger.load() if r.scale == "paper"]

    def gain(mu: str) -> Paired | None:
        ways = {
            way: pd.concat(
                {
                    f"{match}, {start}": results.by_seed(
                        stored, "hyfem/quadrants-ablation", f"{match}, mu {mu}, {start}, {way}", "server_accuracy"
                    )
                    for match in hyfem.MATCHING
                    for start in hyfem.STARTS
                }
            )
            .groupby(level=1)
            .mean()
            for way in hyfem.ROUNDS
        }
        return results.difference(ways["reset"], ways["go on"])

    without, weak, papers = gain("0"), gain("0.1"), gain("0.5")
    assert without.low > 20
    assert 0 < weak.low < weak.high < 10
    assert papers.low < 0 < papers.high


def test_the_published_codes_matching_is_crossed_alike():
    crossed = EXPERIMENTS["hyfem/quadrants-published"].methods
    assert len(crossed) == len(hyfem.MUS) * 2 * 2
    for name, method in crossed.items():
        same = EXPERIMENTS["hyfem/quadrants-ablation"].methods[name.replace("published", "no matching")]
        assert replace(method, **hyfem.MATCHING["no matching"], **NOT_MATCHED) == same
        assert method.cost == hyfem.HyFEM.published().cost


@pytest.mark.parametrize("rounds", hyfem.LONGER)
def test_longer_comparisons_end_with_the_same_rate(rounds):
    short, longer = EXPERIMENTS["hyfem/quadrants"], EXPERIMENTS[f"hyfem/quadrants-{rounds}"]
    assert (longer.rounds, list(longer.methods), list(longer.prepare)) == (
        rounds,
        list(short.methods),
        list(short.prepare),
    )
    for name, method in longer.methods.items():
        same = short.methods[name]
        assert method.lr * method.lr_decay**rounds == pytest.approx(same.lr * same.lr_decay**32)
        assert replace(method, lr_decay=same.lr_decay) == same
