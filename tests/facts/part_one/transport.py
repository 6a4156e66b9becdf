"""What the chapter on optimal transport says."""

from collections.abc import Callable
from typing import Any

import numpy as np

from facts import Fact

Apart = dict[tuple[tuple[str, str], tuple[str, str]], float]
LARGE = ("Cleveland", "Budapest", "Long Beach")


def of(page: dict[str, Any], a: tuple[str, str], b: tuple[str, str]) -> float:
    apart: Apart = page["apart"]
    return apart[a, b]


def same_diagnosis_is_closer(page: dict[str, Any]) -> bool:
    ill = [("ill", place) for place in LARGE]
    other = max(of(page, a, b) for a in ill for b in ill)
    return other < min(of(page, ("ill", place), ("healthy", place)) for place in LARGE)


def zurichs_ill_are_between(page: dict[str, Any]) -> bool:
    zurich, budapest = ("ill", "Zurich"), [(name, "Budapest") for name in ("healthy", "ill")]
    return abs(of(page, zurich, budapest[0]) - of(page, zurich, budapest[1])) < 0.5


def zurichs_healthy_are_far(page: dict[str, Any]) -> bool:
    few = ("healthy", "Zurich")
    others = [(name, place) for name in ("healthy", "ill") for place in LARGE]
    among = max(of(page, ("healthy", a), ("healthy", b)) for a in LARGE for b in LARGE)
    return min(of(page, few, other) for other in others) > among


LINE = np.array([0, 2, 5]), np.array([9, 1, 2])
by_moments = (LINE[0].mean() - LINE[1].mean()) ** 2 + (LINE[0].std() - LINE[1].std()) ** 2
conditions: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    ("the ill of two hospitals are closer to each other than to the healthy patients of their own", same_diagnosis_is_closer),
    ("Its ill are about as close to Budapest's healthy as to Budapest's ill", zurichs_ill_are_between),
    ("its few healthy patients seem far from everybody", zurichs_healthy_are_far),
]  # fmt: skip

FACTS: list[Fact] = [
    *conditions,
    ("with five patients, as in Zurich", lambda page: page["fed"]["Zurich"].y_train.numpy().tolist().count(0) == 5),
    ("which is about {:.2f}", by_moments, by_moments < ((np.sort(LINE[0]) - np.sort(LINE[1])) ** 2).mean()),
]

GIVEN: tuple[str, ...] = ()
