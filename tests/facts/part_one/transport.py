"""What the chapter on optimal transport says."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from facts import Fact, cells

Apart = dict[tuple[tuple[str, str], tuple[str, str]], float]
LARGE = ("Cleveland", "Budapest", "Long Beach")
BUDAPEST = {name: (name, "Budapest") for name in ("healthy", "ill")}


def of(page: dict[str, Any], a: tuple[str, str], b: tuple[str, str]) -> float:
    apart: Apart = page["apart"]
    return apart[a, b]


def same_diagnosis_is_closer(page: dict[str, Any]) -> bool:
    """Whether the ill of the two largest hospitals are at less than half of the distance to their own healthy."""
    own = [of(page, ("ill", place), ("healthy", place)) for place in LARGE[:2]]
    return of(page, ("ill", "Cleveland"), BUDAPEST["ill"]) < min(own) / 2


def of_long_beach(page: dict[str, Any], other: tuple[str, str]) -> float:
    return of(page, ("ill", "Long Beach"), other)


def of_zurich(page: dict[str, Any], name: str) -> float:
    return of(page, ("ill", "Zurich"), BUDAPEST[name])


def healthy(page: dict[str, Any], place: str) -> np.ndarray[Any, Any]:
    client = page["fed"][place]
    found: np.ndarray[Any, Any] = client.x_train[client.y_train == 0].double().numpy()
    return found


def counts(page: dict[str, Any]) -> bool:
    """Whether the healthy of Long Beach and the rest of Cleveland's are as many as the page says."""
    few, many = (len(healthy(page, place)) for place in ("Long Beach", "Cleveland"))
    return (few, many, many - few) == (31, 98, 67)


def by_chance(page: dict[str, Any]) -> float:
    """How far apart two groups of Cleveland's healthy are, split at random, on average over 50 splits."""
    draw, x = np.random.default_rng(0), healthy(page, "Cleveland")
    halves = [np.split(draw.permutation(x), [31]) for _ in range(50)]
    moments = [[m for part in two for m in (part.mean(0), np.cov(part.T, bias=True))] for two in halves]
    return float(np.mean([page["w2"](*four) for four in moments]))


def most_are_ill(page: dict[str, Any]) -> bool:
    return bool(page["fed"]["Zurich"].y_train.double().mean() > 0.7)


def comes_with_five(page: dict[str, Any]) -> bool:
    """Whether five of Cleveland's healthy are, on average, nearly as far from all of them as Zurich's."""
    far = of(page, ("healthy", "Zurich"), ("healthy", "Cleveland"))
    return 0.7 < float(np.mean(page["far"])) / far < 1


def sections(*numbers: int) -> list[str]:
    """Headings of the page's sections by their numbers."""
    found = re.findall(r"^## (.*)$", "\n".join(cell["source"] for cell in cells("transport")), re.MULTILINE)
    return [found[n - 1] for n in numbers]


def zurichs_healthy_are_far(page: dict[str, Any]) -> bool:
    few = ("healthy", "Zurich")
    others = [(name, place) for name in ("healthy", "ill") for place in LARGE]
    among = max(of(page, ("healthy", a), ("healthy", b)) for a in LARGE for b in LARGE)
    return min(of(page, few, other) for other in others) > among


def crossing_pays() -> bool:
    """Whether two segments of the plane that cross can be the cheaper pairing of their ends."""
    (a, b), (c, d) = np.array([[0, 0], [10, 0]]), np.array([[10.77, 0.64], [10.94, 1.62]])

    def side(p: Any, q: Any, r: Any) -> float:
        return float(np.sign((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])))

    cross = side(a, c, b) != side(a, c, d) and side(b, d, a) != side(b, d, c)
    return cross and ((a - c) ** 2 + (b - d) ** 2).sum() < ((a - d) ** 2 + (b - c) ** 2).sum()


LINE = np.array([0, 2, 5]), np.array([9, 1, 2])
by_moments = (LINE[0].mean() - LINE[1].mean()) ** 2 + (LINE[0].std() - LINE[1].std()) ** 2
conditions: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    ("the ill of one hospital are much closer to the ill of the other than to the healthy of their own", same_diagnosis_is_closer),
    ("most of its patients are ill", most_are_ill),
    ("the healthy of Zurich seem far from everybody", zurichs_healthy_are_far),
    ("are nearly as far, on average over 50 draws. So most of that distance may come with five patients", comes_with_five),
]  # fmt: skip

FACTS: list[Fact] = [
    *conditions,
    (
        "nearer to Budapest's ill, at {:.1f}, than to its own healthy, at {:.1f}",
        lambda page: of_long_beach(page, BUDAPEST["ill"]),
        lambda page: of_long_beach(page, ("healthy", "Long Beach")),
    ),
    (
        "when we split Cleveland's 98 healthy patients at random into 31 and 67, the two groups are already about {:.0f} apart",
        by_chance,
        counts,
    ),
    (
        "as close to Budapest's healthy, at {:.1f}, as to Budapest's ill, at {:.1f}",
        lambda page: of_zurich(page, "healthy"),
        lambda page: of_zurich(page, "ill"),
    ),
    (
        "read 4.1, 4.7 and the table of 4.8",
        sections(1, 7, 8) == ["What we ask of a distance", "What can go wrong", "When to use it"],
    ),
    ("Is that because they are only five?", lambda page: page["fed"]["Zurich"].y_train.numpy().tolist().count(0) == 5),
    ("with five patients, as in Zurich", lambda page: page["fed"]["Zurich"].y_train.numpy().tolist().count(0) == 5),
    ("which is wider than the barycentre", (1 + 9) / 2 > ((1 + 3) / 2) ** 2),
    ("though in the plane it can", crossing_pays()),
    ("which is about {:.2f}", by_moments, by_moments < ((np.sort(LINE[0]) - np.sort(LINE[1])) ** 2).mean()),
]

GIVEN: tuple[str, ...] = ()
