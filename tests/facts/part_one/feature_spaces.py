"""What the page on feature spaces says: mostly of what its own cells find."""

from collections.abc import Mapping
from typing import Any

from facts import Fact
from facts.part_one.hospitals import ALONE, gain
from hetfl_core.datasets import heart

Page = Mapping[str, Any]


def scattered(row: str) -> Any:
    """Whether some lent classifiers are excellent and others reversed."""

    def holds(page: Page) -> bool:
        aucs = page["found"][row].values()
        return min(aucs) < 30 and max(aucs) > 80

    return holds


def reliable(page: Page) -> bool:
    return min(page["found"]["aligned by FLIC"].values()) > 80


def hardly_better(page: Page) -> bool:
    """Whether Budapest's own head, on its aligned features, is at most three points ahead of the lent one, on average."""
    aligned = [page["aligned"](seed) for seed in page["SEEDS"][:3]]
    gaps = [page["lent"](*z, lender="Budapest") - page["lent"](*z) for z in aligned]
    return sum(gaps) / len(gaps) < 3


def inputs(page: Page) -> bool:
    shapes = {client.name: client.shapes[0] for client in page["hospitals"]}
    return (shapes["Cleveland"], shapes["Zurich"]) == (22, 19)


def worse(page: Page) -> bool:
    z = page["aligned"](0)
    return page["lent"](*z, user="Long Beach") < page["lent"](*z)


FACTS: list[Fact] = [
    ("find that it may be excellent or completely wrong", scattered("features trained alone")),
    ("eight columns in common", len([c for c in heart.NAMES if c not in ("chol", "fbs", "slope", "ca", "thal")]) == 8),
    ("Cleveland has 22 inputs, for example, and Zurich 19", inputs),
    ("some near 10 and some near 90", scattered("features trained alone"), scattered("with a shared layer (HetFedRep)")),
    ("When the features were trained alone, chance decides", scattered("features trained alone")),
    ("A shared layer does not help", scattered("with a shared layer (HetFedRep)")),
    ("the lent classifier is good in every run", reliable),
    ("all lie together at the right", reliable),
    ("Budapest's own head would hardly do better", hardly_better),
    ("Why are these worse?", worse),
    ("In chapter 1 FLIC was no better than a logistic regression alone", all(gain("FLIC-Class", h).low <= 0 for h in ("Cleveland", "Budapest", "Long Beach")), ALONE.startswith("logistic")),
]  # fmt: skip

GIVEN = ["has an AUC of 10 %"]
