"""What results pages have in common, on examples small enough to work out by hand."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from hetfl_book import ledger, report
from hetfl_core import Client, Federation, plots
from hetfl_core.statistics import NoPairsError, Paired

ROWS = [f"fedcma/mnist-alpha-{a}" for a in ("0.02", "0.03", "0.05", "0.1")]
CLEAR, OPEN = Paired(1, 0.5, 1.5, (0, 1, 2)), Paired(-1, -3, 1, (0, 1, 2))
FEW = Paired.of({0: 1.0, 1: 2.0})
PHONE = 350
"""Pixels of a picture where a phone has 390."""


@pytest.fixture(autouse=True)
def closed():
    with plots.style():
        yield
    plt.close("all")


def words(ax):
    return [text.get_text() for text in ax.texts]


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_pooled_is_the_mean_of_a_table_and_its_interval_that_of_seeds():
    gap = report.pooled(ROWS, "Fed-CMA", "Local")
    by_hand = (report.runs_of(ROWS, "Fed-CMA") - report.runs_of(ROWS, "Local")).to_numpy()
    assert by_hand.shape == (5, 4)
    half = stats.t.ppf(0.975, 4) * by_hand.mean(1).std(ddof=1) / np.sqrt(5)
    assert gap.n == 5
    assert gap.mean == pytest.approx(by_hand.mean())
    assert (gap.low, gap.high) == pytest.approx((gap.mean - half, gap.mean + half))
    assert report.said(gap) == "+1.6 ± 0.8"  # what a referee computed by another program


def test_of_one_experiment_it_is_the_ledgers():
    assert report.pooled(ROWS[0], "Fed-CMA", "Local") == ledger.paired(
        list(report.records(ROWS[0])), ROWS[0], "Fed-CMA", "Local"
    )


def test_the_other_may_have_been_run_elsewhere_on_the_same_data_only():
    here, there = "fedcma/spaces-bci-common40", "flic/bci-common40"
    method = next(r.method for r in report.records(here) if r.method.startswith("Fed-CMA"))
    gap = report.pooled(here, method, "Local", there)
    by_hand = report.runs_of(here, method)[here] - report.runs_of(there, "Local")[there]
    assert gap.mean == pytest.approx(by_hand.dropna().mean())
    with pytest.raises(ValueError, match="data"):
        report.pooled(ROWS[0], "Fed-CMA", "Local", there)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: report.pooled([], "a", "b"), "where must name an experiment at least, got none"),
        (
            lambda: report.pooled(ROWS, "Fed-CMA", "Local", ROWS[0]),
            "other must name an experiment for each of 4, got 1",
        ),
        (lambda: report.pooled(ROWS[0], "Fed-CMA", "Nobody", ROWS[1]), "other: no seed has both 'Fed-CMA'"),
        (lambda: report.forest({}, "points"), "groups must hold one difference at least"),
        (lambda: report.travels({"a": ["x"], "b": []}, (), ""), "boxes of equally many clients"),
        (lambda: report.travels({"a": ["x"], "b": ["x"]}, ("a",), ""), r"leave must name the last of .*\['a'\]"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_methods_that_were_not_run_are_refused():
    with pytest.raises(NoPairsError):
        report.pooled(ROWS, "Fed-CMA", "Nobody")


def test_differences_are_told_with_a_real_minus_and_few_seeds_as_such():
    assert report.said(OPEN) == "−1.0 ± 2.0"
    assert report.said(FEW) == "+1.5 (2 seeds)"
    assert report.said(CLEAR, digits=2) == "+1.00 ± 0.50"


def test_a_method_of_the_head_to_head_has_its_gain_over_the_best_way_to_stay_alone():
    best = report.head_to_head("thyroid", "tenth", method="Fed-CMA").loc["Fed-CMA"]  # where that is boosting
    every = report.head_to_head("thyroid", "tenth").loc["Fed-CMA"]
    assert best["gain_alone"] == every["gain_alone"] < 0


def test_gains_of_the_head_to_head_are_those_of_its_records():
    """Balanced accuracy of each run's clients that have ten test rows of each class, minus that of the other's."""

    def mean(experiment, method, seed):
        [run] = [r for r in ledger.load(experiment=experiment, method=method) if r.seed == seed]
        each = pd.DataFrame(run.per_client)
        return 100 * each.loc[each["rarest"] >= 10, "balanced_accuracy"].mean()

    here = "headtohead/heart-tenth"
    for over, (experiment, method) in {
        "training alone": (here, "network alone"),
        "logistic regression alone": (here, "logistic regression alone"),
        "nothing exchanged": (f"{here}-apart", "Fed-CMA"),
    }.items():
        gaps = [mean(here, "Fed-CMA", seed) - mean(experiment, method, seed) for seed in range(10)]
        found = report.gained("heart", "Fed-CMA", over, "tenth")
        assert found.mean == pytest.approx(np.mean(gaps))
        assert found.low < found.mean < found.high
    with pytest.raises(ValueError, match="over must be"):
        report.gained("heart", "Fed-CMA", "luck")
    with pytest.raises(ValueError, match="method must be"):
        report.gained("heart", "Nobody")


# --- figures ----------------------------------------------------------------------------------------------------------


def test_a_forest_fills_what_excludes_zero_and_tells_each_difference():
    ax = report.forest({"minus Local": {"clear": CLEAR, "open": OPEN}, "": {"few": FEW}}, "points")
    told = ["minus Local", "clear", "+1.0 ± 0.5", "open", "−1.0 ± 2.0", "few", "+1.5 (2 seeds)"]
    assert words(ax) == told
    dots = [line.get_markerfacecolor() for line in ax.lines if line.get_marker() == "o"]
    assert dots == [report.BLUE, "white", "white"]


def test_every_client_has_its_dot_and_each_row_its_median():
    ax = report.dots({"FLIC": {"a": 1.0, "b": -2.0, "c": 4.0}, "HyFEM": {"a": 0.0}}, "points")
    assert [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"] == [1, -2, 4, 0]
    medians = [line.get_xdata()[0] for line in ax.lines if line.get_color() == "black" and line.get_linewidth() == 2]
    assert medians == [1.0, 0.0]
    assert words(ax) == ["FLIC", "HyFEM"]


def test_a_curve_carries_its_name():
    ax = plt.subplots()[1]
    report.labelled(ax, [1, 2], [3, 4], "method", -1, "-", (6, 0), "red")
    assert ax.texts[0].get_text() == "method"
    assert ax.texts[0].xy == (2, 4)


def test_a_grid_says_its_numbers_and_leaves_gaps_empty():
    table = pd.DataFrame({"first": [0.0, -2.0], "second": [np.nan, 10.0]}, index=["a", "b"])
    ax = report.grid(table, "points")
    assert words(ax) == ["0", "−2", "10"]
    assert [text.get_color() for text in ax.texts] == ["black", "black", "white"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]


def test_each_column_of_a_grid_may_have_its_own_limits():
    table = pd.DataFrame({"first": [0.5, 1.0], "second": [0.5, 0.2]})
    ax = report.grid(table, digits=1, limits=([0.5, 0.2], 1))
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 0.375], [1, 0]])
    assert [text.get_color() for text in ax.texts] == ["black", "black", "white", "black"]


def test_what_leaves_is_in_colour():
    fig = report.travels({"data": ["13 columns", "x-rays"], "head": ["last layer", ""]}, ("head",), "averaged")
    boxes = [tuple(patch.get_facecolor()[:3]) for patch in fig.axes[0].patches]
    assert len(boxes) == 3
    assert len(set(boxes)) == 2
    assert {"averaged", "stays with the hospital"} <= set(words(fig.axes[0]))


def run_of_two() -> SimpleNamespace:
    """Two clients with two classes each, whose features are their inputs."""
    x = np.array([[0.0, 1], [0, -1], [4, 1], [4, -1]] * 5, dtype=np.float32)
    y = np.array([0, 0, 1, 1] * 5)
    clients = [Client(x + step, y, x[:4] + step, y[:4], name) for name, step in (("a", 0), ("b", np.array([1, 0])))]
    federation = Federation(clients)
    head = {"beta.weight": torch.tensor([[-1.0, 1.0], [0.0, 0.0]]), "beta.bias": torch.tensor([2.0, -2.0])}
    return SimpleNamespace(
        federation=federation,
        params=[head, head],
        server={"mean": torch.tensor([[0.0, 0.0], [4.0, 0.0]])},
        embed=lambda split: {client.name: getattr(client, f"x_{split}").numpy() for client in federation},
    )


def test_apart_is_zero_for_equal_means_and_does_not_see_scale():
    run = run_of_two()
    z, labels = run.embed("train"), {c.name: c.y_train.numpy() for c in run.federation}
    assert report.apart({"a": z["a"], "b": z["a"] * np.array([1, 3])}, labels) == 0
    assert report.apart(z, labels) == pytest.approx(1 / 4), "a step of 1, classes 4 apart"
    assert report.apart({k: 10 * v for k, v in z.items()}, labels) == pytest.approx(1 / 4)


def test_alignment_is_measured_next_to_its_floors():
    found = report.alignment([run_of_two()])
    assert found["apart"] == pytest.approx(1 / 4)
    assert (found["chance"], found["label alone"]) == (50, 50), "both clients hold both classes alike"
    assert found["forest"] == 100, "a step of one gives each away"
    ax = report.floors({"alone": found}, "named (%)")
    assert {"alone", "forest 100", "chance 50", "label alone 50"} <= set(words(ax))


def test_feature_spaces_are_drawn_with_the_servers_means():
    run = run_of_two()
    assert report.bounds([run], room=1) == (-1, 6, -2, 2)
    fig = report.spaces(run, report.bounds([run]), "Fed-CMA")
    assert [ax.get_title(loc="left") for ax in fig.axes[:2]] == ["hospital 1", "hospital 2"]
    stars = [line for line in fig.axes[0].lines if line.get_marker() == "*"]
    assert [star.get_color() for star in stars] == list(plots.COLOURS[:2])


FIGURES = {
    "forest": lambda: report.forest({"group": {"row": CLEAR}}, "points"),
    "dots": lambda: report.dots({"row": {"a": 1.0}}, "points"),
    "grid": lambda: report.grid(pd.DataFrame({"a": [1.0, 2.0]}), "points"),
    "travels": lambda: report.travels({"a": ["x"], "b": ["y"]}, ("b",), "averaged").axes[0],
    "floors": lambda: report.floors(
        {"a": {"linear": 50.0, "forest": 60.0, "chance": 33.0, "label alone": 65.0}}, "named (%)"
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_letters_can_be_read_on_a_phone(name):
    """Nine pixels at least, in a figure that is as wide as the house says."""
    figure = FIGURES[name]().figure
    assert figure.get_size_inches()[0] == report.WIDTH
    texts = [t for t in figure.findobj(plt.Text) if t.get_text().strip() and t.get_visible()]
    assert texts
    for text in texts:
        assert text.get_fontsize() / 72 / report.WIDTH * PHONE >= 9, text.get_text()
