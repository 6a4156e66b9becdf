"""Metrics of the EEG chapter: what is drawn is what was given, in the right place and unit."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from hetfl_book.figures import eeg as eeg_plots
from hetfl_core import plots
from hetfl_core.datasets.recordings import TABLE_S1

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _in_style():
    with plots.style():
        yield
        plots.plt.close("all")


def random_covariances(n=20):
    factors = np.random.default_rng(0).normal(size=(n, 2, 5))
    return factors @ factors.transpose(0, 2, 1)


# --- the cone -------------------------------------------------------------------------------------------------------


def test_height_and_radius_in_the_cone_are_determinant_and_norm():
    S = random_covariances()
    v, w, u = eeg_plots.upright(S).T
    np.testing.assert_allclose(u**2 - v**2 - w**2, 2 * np.linalg.det(S))
    np.testing.assert_allclose(u**2 + v**2 + w**2, np.linalg.norm(S, axis=(1, 2)) ** 2)


def test_covariances_lie_inside_the_cone_and_other_symmetric_matrices_outside():
    v, w, u = eeg_plots.upright(random_covariances()).T
    assert (np.hypot(v, w) < u).all()
    v, w, u = eeg_plots.upright([[1.0, 2.0], [2.0, 1.0]])
    assert np.hypot(v, w) > u


def test_cone_draws_a_path_where_its_matrices_are():
    ax = eeg_plots.cone(4.0, bowl=True)
    path = [np.diag([4.0, 0.25]), np.eye(2), np.diag([0.25, 4.0])]
    eeg_plots.along(ax, path, "geodesic", plots.COLOURS[0])
    drawn = np.array(ax.lines[-1].get_data_3d()).T
    np.testing.assert_allclose(drawn, eeg_plots.upright(path))
    np.testing.assert_allclose(drawn[1], [0, 0, np.sqrt(2)], err_msg="the identity lies on the axis")
    eeg_plots.points(ax, path, "ends", 2)
    assert ax.collections[-1].get_label() == "ends"
    assert [axis() for axis in (ax.get_xlabel, ax.get_ylabel, ax.get_zlabel)].count("") == 0


# --- signals and matrices -------------------------------------------------------------------------------------------


def test_traces_stand_below_each_other_in_the_given_order():
    times, data = np.linspace(0, 1, 50), np.zeros((3, 50))
    ax = eeg_plots.traces(data, times, ["Fz", "Cz", "Pz"], 100.0, {0.5: "left hand"})
    labels = {label.get_text(): y for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    assert labels == {"Fz": 0, "Cz": -100, "Pz": -200}
    assert {text.get_text().strip() for text in ax.texts} == {"left hand", "100 µV"}
    assert ax.get_xlabel() == "time (s)"


def test_traces_refuse_data_of_another_shape():
    with pytest.raises(ValueError, match=r"data: expected shape \(2, 50\) from names and times, got \(3, 50\)"):
        eeg_plots.traces(np.zeros((3, 50)), np.arange(50), ["Fz", "Cz"], 100.0)


def test_matrices_share_one_scale_that_is_symmetric_about_zero():
    given = {"a": np.diag([1.0, -3.0]), "b": np.eye(2)}
    fig = eeg_plots.matrices(given, ["C3", "C4"], "covariance (µV²)")
    images = [ax.images[0] for ax in fig.axes if ax.images]
    assert [image.get_clim() for image in images] == [(-3, 3), (-3, 3)]
    np.testing.assert_array_equal(images[0].get_array(), given["a"])
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == ["C3", "C4"]


def test_matrices_name_the_one_that_does_not_fit():
    with pytest.raises(ValueError, match=r"given: expected matrices .* channels, 2, got \(3, 3\) of 'feet'"):
        eeg_plots.matrices({"feet": np.eye(3)}, ["C3", "C4"], "")


# --- heads ----------------------------------------------------------------------------------------------------------


def test_head_names_electrodes_that_do_not_exist():
    pytest.importorskip("mne")
    with pytest.raises(ValueError, match=r"channels: expected names of the 10–05 system, got \['XY'\]"):
        eeg_plots.head(["C3", "XY"])


def test_topographies_share_one_scale_with_its_unit():
    pytest.importorskip("mne")
    info = eeg_plots.head(TABLE_S1["Zhou2016"].channels)
    maps = {name: np.linspace(-1, scale, 14) for name, scale in (("left hand", 5.0), ("feet", 50.0))}
    fig = eeg_plots.topographies(maps, info, 60.0, "change of power (%)")
    images = [image for ax in fig.axes for image in ax.images]
    assert [image.get_clim() for image in images] == [(-60, 60), (-60, 60)]
    assert "change of power (%)" in [ax.get_xlabel() for ax in fig.axes]
    assert [ax.get_title() for ax in fig.axes[:2]] == ["left hand", "feet"]


# --- clients and trials ---------------------------------------------------------------------------------------------


def test_learning_curves_are_ordered_by_trials_with_all_at_the_end():
    rows = pd.DataFrame(
        {
            "n": ["all", 10, 20, 10],
            "method": ["FLIC-HL", "FLIC-HL", "FLIC-HL", "LDA"],
            "mean": [80.0, 60.0, 70.0, 65.0],
            "low": [79.0, 59.0, 69.0, 64.0],
            "high": [81.0, 61.0, 71.0, 66.0],
        }
    )
    ax = eeg_plots.learning_curves(rows, ["LDA", "FLIC-HL", "absent"], dashed=["LDA"])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["10", "20", "all"]
    alone, federated = ax.lines
    np.testing.assert_array_equal(federated.get_ydata(), [60, 70, 80])
    np.testing.assert_array_equal(alone.get_xdata(), [0])
    assert (alone.get_linestyle(), federated.get_linestyle()) == ("--", "-")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["LDA", "FLIC-HL"]
    assert len(ax.collections) == 2, "a band each"


def test_learning_curves_of_many_methods_have_no_bands():
    names = [f"method {i}" for i in range(eeg_plots.MOST_BANDS + 1)]
    rows = pd.DataFrame({"n": 10, "method": names, "mean": 60.0, "low": 50.0, "high": 70.0})
    ax = eeg_plots.learning_curves(rows, names)
    assert len(ax.lines) == len(names)
    assert not ax.collections
