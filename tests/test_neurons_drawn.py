"""The film of HyFEM's chapter: neurons in the plane, and the rows that they are matched with."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest

from hetfl_book.figures import neurons


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    plt.close("all")


def length(passes: int, order: str) -> float:
    """Of all lines between neurons and their rows."""
    [ax] = neurons.matched(passes, order, "a title").axes  # type: ignore[arg-type]
    joined = [line.get_xydata() for line in ax.lines if len(line.get_xdata()) == 2]
    assert len(joined) == 18
    assert ax.get_title() == "a title"
    return float(sum(np.linalg.norm(one[0] - one[1]) for one in joined))


def test_clients_have_the_same_neurons_in_other_orders() -> None:
    first, *others = (client.rows.numpy() for client in neurons.shuffled(clients=4, neurons=5, seed=3))
    for rows in others:
        away = np.linalg.norm(first[:, None] - rows, axis=2)
        assert sorted(away.argmin(1)) == [0, 1, 2, 3, 4], "each neuron has its counterpart"
        assert away.min(1).max() < 0.8
    assert any(not np.allclose(rows, first, atol=1) for rows in others)


def test_one_after_the_other_brings_neurons_together_and_all_at_once_does_not() -> None:
    start = length(0, "sequential")
    assert start == length(0, "parallel")
    assert length(2, "sequential") < 0.3 * start
    assert length(5, "parallel") > 2 * length(5, "sequential")


def test_there_must_be_neurons() -> None:
    with pytest.raises(ValueError, match="neurons must be"):
        neurons.shuffled(neurons=0)
