from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from hetfl_book.figures import intervals, scenes
from hetfl_core import plots

mpl.use("Agg")


def history(seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"round": range(6), "accuracy": rng.random(6), "ce": rng.random(6) + 0.1})


@pytest.fixture(autouse=True)
def _in_style():
    with plots.style():
        yield
        plots.plt.close("all")


def test_curves_show_the_mean_in_per_cent():
    frames = [history(0), history(1)]
    ax = plots.curves({"FLIC": frames, "Local": history(2)})
    expected = 50 * (frames[0]["accuracy"] + frames[1]["accuracy"])
    np.testing.assert_allclose(ax.lines[0].get_ydata(), expected)
    assert ax.get_ylabel() == "test accuracy (%)"
    assert ax.get_xlabel() == "communication round"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["FLIC", "Local"]
    assert len(ax.collections) == 1, "a band for the method with two seeds only"
    assert ax.lines[0].get_marker() != ax.lines[1].get_marker(), "told apart without colour"
    of_a_run = plots.curves({"Local": SimpleNamespace(history=history(2))}).lines[0]
    np.testing.assert_array_equal(of_a_run.get_ydata(), ax.lines[1].get_ydata())


def test_curves_name_what_is_missing():
    with pytest.raises(KeyError, match="the history of 'FLIC' has no column 'w2'; it has"):
        plots.curves({"FLIC": history(0)}, "w2")


@pytest.mark.parametrize("how", ["t-SNE", "MDS", "PCA"])
def test_latent_projects_clients_and_anchors_together(how):
    rng = np.random.default_rng(0)
    labels = {"a": np.repeat([0, 1], 10), "b": np.repeat([1, 2], 8)}
    anchors = 20 * np.eye(3, 6)
    points = {name: anchors[y] + rng.normal(size=(len(y), 6)) for name, y in labels.items()}
    ax = plots.latent(points, labels, anchors, how)
    stars = [c for c in ax.collections if len(c.get_offsets()) == 1]
    dots = [c for c in ax.collections if len(c.get_offsets()) > 1]
    assert len(stars) == 3
    assert sum(len(c.get_offsets()) for c in dots) == 36
    assert len({c.get_paths()[0].vertices.tobytes() for c in dots}) == 2, "a marker per client"


def test_a_client_may_have_no_points():
    flat = {"a": np.ones((2, 2)), "b": np.zeros((0, 2))}
    ax = plots.clients_and_classes(flat, {"a": np.array([0, 1]), "b": np.array([], dtype=int)})
    assert sum(len(c.get_offsets()) for c in ax.collections) == 2


def test_one_class_can_be_drawn_alone():
    labels = {"a": np.repeat([0, 1], 10)}
    ax = plots.latent({"a": np.random.default_rng(0).normal(size=(20, 4))}, labels, how="PCA", classes=[1])
    assert sum(len(c.get_offsets()) for c in ax.collections) == 10


def test_unknown_projection():
    with pytest.raises(ValueError, match="how must be"):
        plots.project(np.zeros((5, 3)), "UMAP")


def test_regions_are_those_of_the_classifier_with_a_line_between_them():
    x, y = np.array([[-0.5, 0.0], [0.5, 0.2], [0.6, -0.7]]), np.array([0, 2, 2])
    ax = scenes.regions(x, y, lambda p: 2 * (p[:, 0] > 0.25).astype(int), (-1, 1, -2, 2), steps=81)
    filled = [c for c in ax.collections if c.get_alpha() == 0.22]
    assert [to_hex(c.get_facecolor()[0]).upper() for c in filled] == [plots.COLOURS[0], plots.COLOURS[2]]
    boundary = np.concatenate(
        [path.vertices for c in ax.collections for path in c.get_paths() if c.get_alpha() is None]
    )
    inside = boundary[abs(boundary[:, 1]) < 1.9]
    assert (abs(inside[:, 0] - 0.25) <= 2 / 80 + 1e-9).any()
    assert (ax.get_xlim(), ax.get_ylim()) == ((-1, 1), (-2, 2))
    assert [len(c.get_offsets()) for c in ax.collections if isinstance(c, PathCollection)] == [1, 2]
    whole = scenes.regions(np.zeros((0, 2)), np.zeros(0), lambda p: np.ones(len(p), int), (0, 1, 0, 1))
    assert [to_hex(c.get_facecolor()[0]).upper() for c in whole.collections if c.get_alpha()] == [plots.COLOURS[1]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": np.zeros((3, 3))}, r"points and labels must have shapes \(n, 2\) and \(n,\), got \(3, 3\)"),
        ({"limits": (1, 0, 0, 1)}, "limits must be .left, right, bottom, top., increasing"),
        ({"classify": lambda p: np.zeros(3, int)}, "classify must give a class for each of 14400 points"),
        ({"classify": lambda p: np.zeros(len(p))}, "classify must give a class for each"),
    ],
)
def test_regions_of_what_does_not_fit(change, said):
    given = {"points": np.zeros((3, 2)), "labels": np.zeros(3, int), "limits": (0, 1, 0, 1)}
    with pytest.raises(ValueError, match=said):
        scenes.regions(**{**given, "classify": lambda p: np.zeros(len(p), int), **change})


def test_the_style_does_not_leak():
    before = mpl.rcParams["axes.titlelocation"]
    with plots.style():
        pass
    assert mpl.rcParams["axes.titlelocation"] == before


def test_a_sweep_shows_means_and_deviations_of_each_method():
    rows = pd.DataFrame(
        {"clients": [50, 50, 100, 50], "method": ["A", "A", "A", "B"], "seed": [0, 1, 0, 0], "accuracy": [1, 3, 5, 7.0]}
    )
    ax = intervals.sweep(rows, "clients", xlabel="number of clients")
    (line, _, (bars,)) = ax.containers[0].lines
    np.testing.assert_allclose(line.get_xydata(), [[50, 2], [100, 5]])
    low, high = bars.get_segments()[0][:, 1]
    np.testing.assert_allclose([low, high], [2 - 2**0.5, 2 + 2**0.5])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["A", "B"]
    assert ax.get_xlabel() == "number of clients"


def test_a_sweep_leaves_out_what_is_missing():
    rows = pd.DataFrame({"clients": [50, 100], "method": ["A", "A"], "accuracy": [np.nan, 70.0]})
    assert intervals.sweep(rows, "clients").containers[0].lines[0].get_xydata().tolist() == [[100, 70]]


def test_differences_fill_what_excludes_zero():
    rows = pd.DataFrame({"mean": [1.0, -1.0], "low": [0.5, -2.0], "high": [1.5, 0.1]}, index=["sure", "open"])
    ax = plots.differences(rows)
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [dot.get_markerfacecolor() for dot in dots] == [plots.COLOURS[0], "white"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["sure", "open"]


def test_forests_put_the_same_comparison_of_every_data_set_in_one_line():
    columns = ["mean", "low", "high"]
    here = pd.DataFrame([[1.0, 0.5, 1.5], [-1.0, -2.0, 0.1]], columns=columns, index=["a", "b"])
    there = pd.DataFrame([[-4.0, -5.0, -3.0], [0.2, -np.inf, np.inf]], columns=columns, index=["b", "c"])
    ax = intervals.forests({"here": here, "there": there}, groups=[1, 2])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "c"]
    dots = {(float(d.get_xdata()[0]), d.get_marker()): d for d in ax.lines if d.get_marker() in plots.MARKERS}
    assert {key: d.get_markerfacecolor() for key, d in dots.items()} == {
        (1.0, "o"): plots.COLOURS[0], (-1.0, "o"): "white", (-4.0, "s"): plots.COLOURS[1], (0.2, "s"): "white",
    }  # fmt: skip
    rows = {key: round(float(d.get_ydata()[0])) for key, d in dots.items()}
    assert rows == {(1.0, "o"): 0, (-1.0, "o"): -1, (-4.0, "s"): -1, (0.2, "s"): -2}
    bars = [tuple(map(float, d.get_xdata())) for d in ax.lines if d.get_linestyle() == "-" and len(d.get_xdata()) == 2]
    assert {(0.5, 1.5), (-2.0, 0.1), (-5.0, -3.0)} <= set(bars)
    assert all(np.isfinite(bar).all() for bar in bars), "an interval that is infinite is not drawn"
    assert ax.get_xlim() == (-6.0, 6.0), "one and a half times the largest mean"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["here", "there"]
    with pytest.raises(ValueError, match="groups must be sizes that add up to at most 3, got"):
        intervals.forests({"here": here, "there": there}, groups=[4])


def test_verdicts_stand_in_the_papers_order_each_with_its_mark():
    table = pd.DataFrame({"statement": ["a", "b", "c", "d"], "holds": ["yes", "no", "if", "no"]})
    ax = intervals.verdicts(table, columns=2)
    places = {t.get_text(): tuple(t.get_position()) for t in ax.texts}
    assert places == {"a": (0.05, 0), "b": (0.05, -1), "c": (1.05, 0), "d": (1.05, -1)}, "down the first column first"
    marks = [(float(line.get_xdata()[0]), float(line.get_ydata()[0]), line.get_marker()) for line in ax.lines]
    assert marks == [(0, 0, "o"), (0, -1, "X"), (1, 0, "s"), (1, -1, "X")]
    words = [t.get_text() for t in ax.get_legend().get_texts()]
    assert words == ["holds as printed (1)", "holds under a condition (1)", "does not hold (2)"]
    drawn = intervals.verdicts(table.assign(holds=["yes", "open", "if", "no"])).get_legend()
    assert [t.get_text() for t in drawn.get_texts()][-1] == "not refuted here (1)"
    with pytest.raises(ValueError, match="one of yes, if, no, open in the column holds, got perhaps"):
        intervals.verdicts(table.assign(holds="perhaps"))
