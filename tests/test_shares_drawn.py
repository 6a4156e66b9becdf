"""The map of personalised methods: what is shared and when it is trained, as the methods themselves behave."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest

from hetfl_book.figures import shares
from hetfl_core import Federation, datasets, methods
from hetfl_core.methods import Method
from hetfl_core.networks import MLP, Model


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def small() -> Federation:
    return datasets.heart.hospitals(made=True).of_common_columns()


MODEL = {"model": Model(MLP((), 4, last="relu")), "local_steps": 2}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (methods.Local, {"phi": ("own", "1*"), "beta": ("own", "1*")}),
        (methods.FedAvg, {"phi": ("same", "1"), "beta": ("same", "1")}),
        (methods.LGFedAvg, {"phi": ("own", "1*"), "beta": ("same", "1")}),
        (methods.FedPer, {"phi": ("same", "1"), "beta": ("own", "1*")}),
        (methods.FedRep, {"phi": ("same", "2"), "beta": ("own", "1*")}),
        (methods.FedBABU, {"phi": ("same", "1*"), "beta": ("same", "*")}),
        (methods.FedPAC, {"phi": ("same", "2"), "beta": ("made", "1*"), "means": ("same", "")}),
        (methods.Ditto, {"phi": ("same", "2"), "beta": ("same", "2"), "own": ("own", "1*")}),
        (methods.PFedHN, {"phi": ("made", "1"), "beta": ("made", "1")}),
        (methods.FedProto, {"phi": ("own", "1*"), "beta": ("own", "1*"), "means": ("same", "")}),
    ],
)
def test_boxes_are_what_the_papers_say(
    method: type[Method], expected: dict[str, tuple[str, str]], small: Federation
) -> None:
    assert shares.boxes(method(**MODEL), small) == expected  # type: ignore[arg-type]


def test_the_map_has_a_box_for_each_part_and_names_every_method() -> None:
    own, same = shares.Box("own", "1*"), shares.Box("same", "1")
    ax = shares.chart({"one": {"A": {"phi": own}}, "two": {"B": {"phi": same, "beta": own}, "C": {}}})
    assert len(ax.patches) == 3 + len(shares.WORDS)
    told = [text.get_text() for text in ax.texts]
    assert {"one", "two", "A", "B", "C", *shares.COLUMNS.values(), *shares.WORDS.values()} <= {*told}
    height = {text.get_text(): text.get_position()[1] for text in ax.texts}
    rows = ["one", "A", "two", "B", "C"]
    assert sorted(rows, key=lambda row: -height[row]) == rows, "a family's words stand above its methods"
    assert sorted(text for text in told if text[:1].isdigit()) == ["1", "1*", "1*"]


def test_there_must_be_methods() -> None:
    with pytest.raises(TypeError, match="families must be"):
        shares.chart(["FedPer"])  # type: ignore[arg-type]
