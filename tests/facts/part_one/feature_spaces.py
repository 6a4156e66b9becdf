"""What the page on feature spaces says: mostly of what its own cells find."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from facts import Fact
from facts.part_one import which_method
from facts.part_one.hospitals import ALONE, gain
from hetfl_core import methods, networks, simulate
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
    """Whether Budapest's own classifier, on its aligned features, is at most three points ahead, on average."""
    own, lent = (
        np.mean(list(page["found"][row].values()))
        for row in ("aligned, and Budapest's own classifier", "aligned by FLIC")
    )
    return bool(own - lent < 3)


def in_between(page: Page) -> bool:
    return any(30 < auc < 70 for row in list(page["found"])[:2] for auc in page["found"][row].values())


def scattered_behind(page: Page) -> bool:
    """Whether lent classifiers are excellent or reversed behind the shared layer, too, after thirty rounds."""
    model = networks.Model(networks.MLP((16,), 2), alpha=8)
    method = methods.HetFedRep(model, lr=page["LR"])
    found = []
    for seed in (0, 1):
        run = simulate(page["hospitals"], method, rounds=30, participation=1.0, seed=seed, progress=False)
        told = [{name: behind(run.server, z) for name, z in run.embed(part).items()} for part in ("train", "test")]  # type: ignore[arg-type]
        found.append(page["lent"](*told))
    return min(found) < 30 and max(found) > 80


def behind(alpha: Mapping[str, Tensor], z: np.ndarray) -> np.ndarray:
    """Features that the shared layer makes of those before it."""
    linear = torch.as_tensor(z) @ alpha["alpha.weight"] + alpha["alpha.bias"]
    return torch.nn.functional.leaky_relu(linear).numpy()


def epochs() -> bool:
    plain, shared = (networks.Model(networks.MLP((16,), 2), alpha=a) for a in (None, 8))
    return methods.Local(plain).local_epochs == methods.HetFedRep(shared).local_epochs == 10


def inputs(page: Page) -> bool:
    shapes = {client.name: client.shapes[0] for client in page["hospitals"]}
    columns = {c.name: len({f.split("=")[0] for f in c.features}) for c in page["hospitals"]}
    told = [(shapes[name], columns[name]) for name in ("Cleveland", "Zurich")]
    return told == [(22, 13), (19, 10)]


def worse(page: Page) -> bool:
    z = page["aligned"](0)
    return page["lent"](*z, user="Long Beach") < page["lent"](*z)


FACTS: list[Fact] = [
    ("find that it may be anything between excellent and completely wrong", scattered("features trained alone"), in_between),
    ("eight columns in common", len([c for c in heart.NAMES if c not in ("chol", "fbs", "slope", "ca", "thal")]) == 8),
    ("Cleveland's thirteen columns are 22 inputs, because a column with categories takes one input per category", inputs),
    ("Zurich's ten columns make 19", inputs),
    ("some near 10 and some near 90", scattered("features trained alone"), scattered("with a shared layer (HetFedRep)")),
    ("When the features were trained alone, chance decides", scattered("features trained alone")),
    ("Training with a shared layer did not align the features before it, drawn here", scattered("with a shared layer (HetFedRep)")),
    ("Training with a shared layer did not align the features before it, and in two runs not those behind it", scattered("with a shared layer (HetFedRep)"), scattered_behind),
    ("Between these two hospitals the lent classifier is good in every run after the alignment", reliable),
    ("Here a lent classifier is reliable only after an alignment", reliable, scattered("features trained alone"), scattered("with a shared layer (HetFedRep)")),
    ("all lie together at the right", reliable),
    ("and it can be anything in between", in_between),
    ("a classifier of Budapest's own on the same features hardly does better on average", hardly_better),
    ("and so do those of Budapest's own classifier", lambda page: min(page["found"]["aligned, and Budapest's own classifier"].values()) > 80),
    ("*Alone* means ten epochs, the shared layer five rounds of ten, and the alignment twenty epochs", epochs()),
    ("after thirty rounds, and one classifier was excellent, the other reversed", scattered_behind),
    ("Why are these worse?", worse),
    ("no way of learning together is shown to beat it", *which_method.NONE_AHEAD),
    ("In chapter 1 FLIC was not shown to be better than a logistic regression alone", all(gain("FLIC-Class", h).low <= 0 for h in ("Cleveland", "Budapest", "Long Beach")), ALONE.startswith("logistic")),
]  # fmt: skip

GIVEN = ["has an AUC of 10 %"]
