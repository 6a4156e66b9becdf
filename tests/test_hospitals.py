"""The study of the four hospitals: its protocol, its records, and what the page of tasks says of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chosen import best
from scipy import stats

from hetfl_book import ledger
from hetfl_book.experiments import EXPERIMENTS, outdated
from hetfl_book.papers import hospitals
from hetfl_core.datasets import heart
from hetfl_core.estimators import PerSite
from hetfl_core.methods import Method
from hetfl_core.records import RunRecord

PAGE = (Path(__file__).parents[1] / "book" / "tasks.md").read_text("utf8")
ALONE = "logistic regression alone"


def records(name: str = "compared") -> list[RunRecord]:
    return ledger.load(experiment=f"heart/{name}", scale="paper")


def test_every_method_has_twelve_settings_and_all_networks_the_same_steps() -> None:
    assert {len(settings) for settings in hospitals.GRID.values()} == {12}
    for name, settings in hospitals.GRID.items():
        assert len({repr(one) for one in settings.values()}) == 12, name
        for one in settings.values():
            if isinstance(one, Method):
                stage = one.stages(3, "round")[0]  # FLIC has one on its anchors behind it
                assert (stage.steps, stage.batch_size, stage.optimizer) == (8, 32, "adam"), name
            else:
                assert isinstance(one, PerSite)
    assert not {*hospitals.SEEDS} & {*hospitals.SEEDS_OF_THE_CHOICE}
    assert {len(experiment.methods) for name, experiment in EXPERIMENTS.items() if name == "heart/tuning"} == {168}


@pytest.mark.realdata("heart.hospitals")
def test_a_choice_never_sees_a_test_row() -> None:
    for seed in hospitals.SEEDS_OF_THE_CHOICE:
        cut, whole = hospitals.validated(seed), EXPERIMENTS["heart/compared"].federation(seed)
        for client, other in zip(cut, whole, strict=True):
            used = sorted(map(tuple, np.concatenate([client.x_train, client.x_test]).tolist()))
            assert used == sorted(map(tuple, other.x_train.tolist()))


def test_what_was_chosen_has_the_smallest_log_loss_of_the_records() -> None:
    found: dict[str, list[float]] = {}
    for record in records("tuning"):
        loss = record.metrics["log_loss"]
        found.setdefault(record.method, []).append(math.inf if loss is None else loss)
    assert {len(losses) for losses in found.values()} == {len(hospitals.SEEDS_OF_THE_CHOICE)}
    assert best(found, hospitals.GRID, min) == hospitals.CHOSEN
    first = {setting: [1.0] for setting in hospitals.GRID["HyFEM"]}
    assert best(first, hospitals.GRID, min) == {"HyFEM": next(iter(first))}, (
        "of equal ones the first; only where all were tried"
    )


def test_the_comparison_has_ten_splits_of_what_was_chosen() -> None:
    found = records()
    methods = EXPERIMENTS["heart/compared"].methods
    assert {(r.method, r.seed) for r in found} == {(name, seed) for name in methods for seed in range(10)}
    assert not any(outdated(record) or record.dirty for record in [*found, *records("tuning")])
    assert {name: hospitals.GRID[name][setting] for name, setting in hospitals.CHOSEN.items()} == methods
    assert max(r.created for r in records("tuning")) < min(r.created for r in found), "chosen before"


def made(values: dict[str, list[float]]) -> list[RunRecord]:
    """Records with these accuracies in all hospitals but Zurich, where all are wrong."""
    clients = [*hospitals.JUDGED, "Zurich"]
    some, measures = records()[0], ("accuracy", "balanced_accuracy", "auc", "log_loss")
    return [
        replace(
            some,
            method=method,
            seed=seed,
            per_client={"client": clients} | {m: [v, v, v, 0.0] for m in measures},
        )
        for method, each in values.items()
        for seed, v in enumerate(each)
    ]


def test_intervals_know_that_splits_overlap() -> None:
    """By hand: t · sd · √(1/n + 0.4/0.6), against scipy's interval, which takes splits for independent."""
    a, b = [0.8, 0.82, 0.9, 0.75], [0.7, 0.8, 0.81, 0.77]
    found = hospitals.gains(made({"a": a, ALONE: b})).loc[("a", "auc")]
    gaps = 100 * np.subtract(a, b)
    naive = np.diff(stats.ttest_1samp(gaps, 0).confidence_interval(0.95))[0] / 2
    assert found["mean"] == pytest.approx(gaps.mean())
    assert found["half"] == pytest.approx(naive * math.sqrt((1 / 4 + 2 / 3) * 4))


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_table_of_the_page_is_that_of_the_records() -> None:
    means = hospitals.scores(records()).groupby("method").mean()
    for name in hospitals.CHOSEN:
        a, b, auc, loss = means.loc[name, ["accuracy", "balanced_accuracy", "auc", "log_loss"]]
        assert f"| {name} | {a:.1f} | {b:.1f} | {auc:.1f} | {loss:.2f} |" in PAGE


def test_the_sentences_of_the_page_are_those_of_the_records() -> None:
    means, gains = hospitals.scores(records()).groupby("method").mean(), hospitals.gains(records(), ALONE)
    assert means["accuracy"].idxmax() == means["log_loss"].idxmin() == ALONE
    auc, laser = gains.xs("auc", level="measure"), gains.loc["LASER-VFL"]
    assert (auc["mean"].abs() < auc["half"]).all()
    assert laser.loc["balanced_accuracy", "mean"] > laser.loc["balanced_accuracy", "half"]
    assert laser.loc["accuracy", "mean"] < -laser.loc["accuracy", "half"]
    up, down = (tuple(laser.loc[name].abs()) for name in ("balanced_accuracy", "accuracy"))
    for sentence in (
        f"no method has a higher AUC by more than {auc['mean'].max():.1f} points",
        "LASER-VFL gains {:.1f} ± {:.1f} points of balanced accuracy over it".format(*up),
        "and loses {:.1f} ± {:.1f} points of accuracy".format(*down),
    ):
        assert sentence in PAGE
    shown = gains["mean"].abs() > gains["half"]
    better = {name for name in means.index.drop(ALONE) if shown[name, "balanced_accuracy"]}
    assert {name for name in better if gains.loc[(name, "balanced_accuracy"), "mean"] > 0} == {"LASER-VFL"}
    assert hospitals.GRID["late fusion"][hospitals.CHOSEN["late fusion"]].lr == max(hospitals.RATES)


@pytest.mark.realdata("heart.hospitals")
def test_where_budapest_lacks_the_slope_nothing_is_depressed() -> None:
    """The first exercise of the chapter on the hospitals says so of nearly all."""
    patients = heart.patients()
    lacking = patients[(patients["hospital"] == "Budapest") & patients["slope"].isna()]
    assert (lacking["oldpeak"] == 0).mean() > 0.95
