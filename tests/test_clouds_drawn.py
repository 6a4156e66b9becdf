"""The pictures of FedCR's chapter: bells with their product, the cost of its term, clients' clouds in the plane."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from hetfl_book.figures import clouds
from hetfl_core.methods.stochastic import gaussian_gap


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    plt.close("all")


def test_the_product_is_that_of_the_densities() -> None:
    ax = clouds.bells({"A": (-1.0, 1.0), "B": (2.0, 0.5)}, "a feature")
    x, drawn = ax.lines[-1].get_data()
    product = np.prod([line.get_ydata() for line in ax.lines[:2]], axis=0)
    np.testing.assert_allclose(drawn, product / np.trapezoid(product, x), atol=1e-3)
    assert [text.get_text() for text in ax.texts] == ["A", "B", "product"]
    assert ax.get_ylim()[1] > max(max(line.get_ydata()) for line in ax.lines)


def test_bells_must_have_a_mean_and_a_deviation() -> None:
    with pytest.raises(ValueError, match="clouds must be"):
        clouds.bells({}, "a feature")


def test_the_term_costs_least_where_the_dot_is() -> None:
    curve, dot, *_ = clouds.cost((2.0, 0.5), 0.05).lines
    width, term = (np.asarray(each) for each in curve.get_data())
    others = torch.as_tensor(width**2).reshape(-1, 1)
    joint, away = torch.full((1, 1), 0.05**2), torch.full((1, 1), 2.0)
    np.testing.assert_allclose(term, gaussian_gap(torch.zeros(1, 1), joint, away, others), rtol=1e-5)
    ((x,), (y,)) = dot.get_data()
    assert x == pytest.approx(np.hypot(2, 0.05))
    assert y == pytest.approx(term.min(), rel=1e-3)
    assert y <= term.min() + 1e-12
    with pytest.raises(ValueError, match="deviation must be"):
        clouds.cost((1.0,), 0.0)


def test_a_cloud_is_as_wide_as_its_deviations_and_stars_are_where_they_are() -> None:
    means, deviations = torch.tensor([[0.0, -1.0], [1.0, -1.0]]), torch.tensor([[0.1, 2.0], [0.3, 2.0]])
    stars = torch.tensor([[0.0, 0.0], [1.5, 1.0]])
    fig = clouds.plane([(means, deviations)], stars, [torch.tensor([1, 1])], ["C"], "a title", 3.0)
    ellipse, *drawn = fig.axes[0].lines
    x, y = (np.asarray(each) for each in ellipse.get_data())
    np.testing.assert_allclose([x.min(), x.max(), y.min(), y.max()], [0.3, 0.7, -3, 1], atol=5e-3)
    assert [tuple(np.ravel(star.get_data())) for star in drawn] == [(0, 0), (1.5, 1)]
    assert ellipse.get_color() == drawn[1].get_color() != drawn[0].get_color()
    assert [text.get_text() for text in fig.axes[0].texts] == ["C"]
    assert fig.axes[0].get_xlim() == fig.axes[0].get_ylim() == (-3, 3)
