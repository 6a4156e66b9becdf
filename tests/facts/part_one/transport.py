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


def ill_are_between(page: dict[str, Any]) -> bool:
    budapest = [(name, "Budapest") for name in ("healthy", "ill")]
    few = [("ill", place) for place in ("Zurich", "Long Beach")]
    return all(abs(of(page, each, budapest[0]) - of(page, each, budapest[1])) < 1 for each in few)


def most_are_ill(page: dict[str, Any]) -> bool:
    return all(page["fed"][place].y_train.double().mean() > 0.7 for place in ("Zurich", "Long Beach"))


def five_of_cleveland(page: dict[str, Any]) -> bool:
    """Whether five of its healthy patients are, in the mean of fifty draws, about as far from all of them as Zurich's."""
    everybody = page["fed"]["Cleveland"]
    x = everybody.x_train[everybody.y_train == 0].double().numpy()
    draw, found = np.random.default_rng(0), []
    for _ in range(50):
        five = x[draw.choice(len(x), 5, replace=False)]
        found.append(page["w2"](five.mean(0), np.cov(five.T, bias=True), x.mean(0), np.cov(x.T, bias=True)))
    far = of(page, ("healthy", "Zurich"), ("healthy", "Cleveland"))
    return 0.7 < float(np.mean(found)) / far < 1.3


def zurichs_healthy_are_far(page: dict[str, Any]) -> bool:
    few = ("healthy", "Zurich")
    others = [(name, place) for name in ("healthy", "ill") for place in LARGE]
    among = max(of(page, ("healthy", a), ("healthy", b)) for a in LARGE for b in LARGE)
    return min(of(page, few, other) for other in others) > among


LINE = np.array([0, 2, 5]), np.array([9, 1, 2])
by_moments = (LINE[0].mean() - LINE[1].mean()) ** 2 + (LINE[0].std() - LINE[1].std()) ** 2
conditions: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    ("the ill of two hospitals are closer to each other than to the healthy patients of their own", same_diagnosis_is_closer),
    ("Their ill are about as close to Budapest's healthy as to Budapest's ill", ill_are_between),
    ("Most of their patients are ill", most_are_ill),
    ("the healthy of Zurich seem far from everybody", zurichs_healthy_are_far),
    ("drawn at random, are about as far from all healthy patients of Cleveland", five_of_cleveland),
]  # fmt: skip

FACTS: list[Fact] = [
    *conditions,
    ("mostly because they are only five", lambda page: page["fed"]["Zurich"].y_train.numpy().tolist().count(0) == 5),
    ("with five patients, as in Zurich", lambda page: page["fed"]["Zurich"].y_train.numpy().tolist().count(0) == 5),
    ("which is wider than the barycentre", (1 + 9) / 2 > ((1 + 3) / 2) ** 2),
    ("which is about {:.2f}", by_moments, by_moments < ((np.sort(LINE[0]) - np.sort(LINE[1])) ** 2).mean()),
]

GIVEN: tuple[str, ...] = ()
