"""Figures of optimal transport: that what is drawn is what the coupling, the map or the covariance says."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from scipy.stats import chi2

from hetfl_book.figures import transport
from hetfl_core import plots

mpl.use("Agg")

X, Y = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[4.0, 0.0], [4.0, 3.0], [5.0, 1.0]])
PLAN = np.array([[0.5, 0.0, 0.0], [0.0, 0.25, 0.25]])


@pytest.fixture(autouse=True)
def _in_style():
    with plots.style():
        yield
        plots.plt.close("all")


def dots(ax):
    """The filled dots of a figure: places, areas and opacities."""
    clouds = [c for c in ax.collections if isinstance(c, PathCollection) and len(c.get_facecolors())]
    return [(np.asarray(c.get_offsets()), c.get_sizes(), c.get_alpha()) for c in clouds]


def test_an_ellipse_is_where_the_mahalanobis_distance_is_its_radius():
    mean, S = np.array([1.0, -2.0]), np.array([[2.0, 0.7], [0.7, 0.5]])
    curve = transport.ellipse(mean, S, radius=1.5)
    gaps = curve - mean
    np.testing.assert_allclose(np.einsum("ni,ij,nj->n", gaps, np.linalg.inv(S), gaps), 1.5**2)
    np.testing.assert_allclose(curve[0], curve[-1])
    x, y = gaps.T
    area = abs((x[:-1] * y[1:] - x[1:] * y[:-1]).sum()) / 2
    assert area == pytest.approx(np.pi * 1.5**2 * np.linalg.det(S) ** 0.5, rel=1e-3), "once around, not twice"
    assert chi2.cdf(2.0**2, 2) == pytest.approx(0.86, abs=0.005), "what its docstring says of a radius of 2"


def test_the_ellipse_of_a_flat_gaussian_is_a_segment():
    flat = np.outer([3.0, 4.0], [3.0, 4.0])
    curve = transport.ellipse([0.0, 0.0], flat, radius=1.0)
    np.testing.assert_allclose(curve @ [4.0, -3.0], 0, atol=1e-7)
    assert np.linalg.norm(curve, axis=1).max() == pytest.approx(5.0)


@pytest.mark.parametrize("t", [0.0, 0.25, 1.0])
def test_what_is_carried_is_a_share_of_its_way_and_weighs_what_it_weighed(t):
    ((places, areas, _),) = dots(transport.carried(X, Y, 2 * PLAN, t))
    ways = {(0, 0): 0.5, (1, 1): 0.25, (1, 2): 0.25}
    np.testing.assert_allclose(places, [(1 - t) * X[i] + t * Y[j] for i, j in ways])
    np.testing.assert_allclose(areas, transport.AREA * 2 * np.array(list(ways.values())))


def test_a_mixture_fades_and_does_not_move():
    (first, second) = dots(transport.blended(X, Y, 0.25))
    np.testing.assert_allclose(first[0], X)
    np.testing.assert_allclose(second[0], Y)
    assert (first[2], second[2]) == (0.75, 0.25)


def test_lines_join_whom_the_coupling_joins_as_wide_as_what_they_carry():
    ax = transport.arrows(X, Y, PLAN)
    lines = [line for line in ax.lines if line.get_marker() == "None"]
    np.testing.assert_allclose([line.get_xydata() for line in lines], [[X[0], Y[0]], [X[1], Y[1]], [X[1], Y[2]]])
    widths = [line.get_linewidth() for line in lines]
    np.testing.assert_allclose(np.array(widths) / widths[0], [1, 0.5, 0.5])
    assert [text.get_text() for text in ax.texts] == ["$x_{1}$", "$x_{2}$", "$y_{1}$", "$y_{2}$", "$y_{3}$"]


def test_a_table_writes_what_is_carried():
    ax = transport.table(PLAN, title="π", written="{:.2f}")
    written = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in ax.texts}
    assert written == {(0, 0): "0.50", (1, 1): "0.25", (1, 2): "0.25"}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["$x_{1}$", "$x_{2}$"]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("from", "to")


def test_partners_are_joined():
    ax = transport.pairing([1.0, 0.0], [3.0, 5.0])
    joined = [line.get_xydata().tolist() for line in ax.lines[:2]]
    assert joined == [[[1, 1], [3, 0]], [[0, 1], [5, 0]]]


def test_stairs_are_quantile_functions_where_partners_are_paired_by_rank():
    x, y = np.array([3.0, 1.0, 2.0]), np.array([9.0, 4.0, 6.0])
    ax = transport.stairs(x, y)
    stairs = [patch.get_data() for patch in ax.patches]
    for values, drawn in zip((x, y), stairs, strict=True):
        np.testing.assert_allclose(drawn.values, np.quantile(values, [1 / 6, 3 / 6, 5 / 6], method="inverted_cdf"))
        np.testing.assert_allclose(drawn.edges, [0, 1 / 3, 2 / 3, 1])
    crossed = transport.stairs(x, y[[1, 0, 2]])
    np.testing.assert_allclose(crossed.patches[1].get_data().values, [9.0, 6.0, 4.0])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: transport.ellipse([0, 0], np.eye(3)),
            r"must have shapes \(2,\) and \(2, 2\), got \(2,\) and \(3, 3\)",
        ),
        (lambda: transport.ellipse([0, 0], [[1, 0], [1, 1]]), "covariance must be symmetric"),
        (lambda: transport.ellipse([0, 0], [[1, 2], [2, 1]]), "covariance must be positive semi-definite"),
        (lambda: transport.carried(X, Y, PLAN.T, 0.5), r"plan must have a row a point of x .*, \(2, 3\), got \(3, 2\)"),
        (lambda: transport.carried(X, Y, -PLAN, 0.5), "plan must be weights, not negative and not all 0"),
        (lambda: transport.carried(X, Y, 0 * PLAN, 0.5), "plan must be weights, not negative and not all 0"),
        (lambda: transport.carried(X, Y, PLAN, 1.5), r"t must lie in \[0, 1\], got 1.5"),
        (lambda: transport.blended(np.ones((2, 3)), Y, 0.5), r"x must be points in the plane, shape \(n, 2\)"),
        (lambda: transport.blended(X, Y * 1e200, 0.5), r"y must lie within ±1e\+100"),
        (lambda: transport.table(PLAN, written="{:d}"), "written must be a format of one number"),
        (lambda: transport.pairing([1.0], [1.0, 2.0]), "x and y must be equally many, got 1 and 2"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_on_the_way_between_gaussians_transport_stretches_and_the_entrywise_mean_swells(t):
    rise, fall = np.diag([9.0, 1.0]), np.diag([1.0, 9.0])
    ax = transport.between([0, 0], rise, [6, 2], fall, np.diag([1 / 3, 3.0]), t)
    by_name = {line.get_label(): np.asarray(line.get_xydata()) for line in ax.lines}
    middle = (6 * t, 2 * t)
    deviations = (1 - t) * np.array([3.0, 1.0]) + t * np.array([1.0, 3.0])
    np.testing.assert_allclose(by_name["transport"], transport.ellipse(middle, np.diag(deviations**2)))
    np.testing.assert_allclose(by_name["entry by entry"], transport.ellipse(middle, (1 - t) * rise + t * fall))
    assert len(ax.lines) == 4
