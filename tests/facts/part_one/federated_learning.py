"""What the chapter on federated averaging says."""

from functools import cache

import numpy as np

from facts import Fact, is_open, pair
from hetfl_book import grids, ledger
from hetfl_core.statistics import Paired

FEDAVG = grids.stored("fedavg")
COMMON, TUNED, ALONE = (FEDAVG.array(name).mean(-1) for name in ("FedAvg", "FedAvg, fine-tuned", "alone"))
LEAST, MOST = 0, len(grids.ALPHAS) - 1
HEART, TENTH = (f"headtohead/heart-{size}" for size in ("all", "tenth"))
EEG = "eeg/curve-common40-n{}"


@cache
def heart() -> list[ledger.RunRecord]:
    return ledger.load(scale="own")


def level(experiment: str, method: str, metric: str) -> float:
    values = [100 * r.metrics[metric] for r in heart() if (r.experiment, r.method) == (experiment, method)]
    assert len(values) == 10
    return float(np.mean(values))


def row(name: str, method: str) -> Fact:
    values = [level(size, method, metric) for size in (HEART, TENTH) for metric in ("accuracy", "auc")]
    return (f"| {name} | {{:.1f}} | {{:.1f}} | {{:.1f}} | {{:.1f}} |", *values)


def pooling(trials: int) -> Paired:
    return pair(EEG.format(trials), "Pooled LR", "LR")


def patients(size: str) -> list[int]:
    return next(r for r in heart() if r.experiment == size).per_client["n_train"]


few, many = pooling(10), pooling(120)
lonely = [level(TENTH, name, "auc") for name in ("FedAvg", "network alone")]
numbers = sum(a * b + b for a, b in ((64, 32), (32, 16), (16, 10)))

FACTS: list[Fact] = [
    ("clients with little data gain a great deal from this, that clients with much data gain little", lambda p: p["gain"][0] > 20, lambda p: np.abs(p["gain"][2:]).max() < 5),
    ("The two clients with few images gain most, and the two with many gain little", lambda p: p["gain"][:2].min() > 8, lambda p: np.abs(p["gain"][2:]).max() < 5),
    ("Here that is {} numbers, or about 11 kB in single precision", numbers, round(4 * numbers / 1000) == 11),
    ("together about 89 kB", round(8 * 4 * numbers / 1000) == 89),
    ("above training alone in all nine settings", (COMMON[MOST] > ALONE[MOST]).all(), COMMON[MOST].size == 9),
    ("it is below in all nine", (COMMON[LEAST] < ALONE[LEAST]).all()),
    ("Training alone gets *better* as clients differ more", (np.diff(ALONE.mean((1, 2))) < 0).all()),
    ("never more than half a point below training alone, and up to {:.1f} points above it", (TUNED - ALONE)[:, 2].max(), (TUNED - ALONE)[:, 2].min() > -0.5),
    ("With one epoch it cannot catch up", (TUNED - ALONE)[:2, 0].max() < -10),
    ("In all thirty comparisons of a slider position with the next one, FedAvg ends higher with more epochs", np.diff(COMMON, axis=1).min() > 0, np.diff(COMMON, axis=1).size == 30),
    ("FedAvg has {:.1f} % with all clients in each round, and {:.1f} % with two", COMMON[1, 1, 2], COMMON[1, 1, 0]),
    row("network alone", "network alone"),
    row("FedAvg", "FedAvg"),
    row("FedAvg, own last step", "FedAvg, own last step"),
    row("logistic regression alone", "logistic regression alone"),
    ("only a tenth of its training patients, about fifteen", 12 < np.mean(patients(TENTH)) < 18),
    ("by {:.1f} points of AUC", lonely[0] - lonely[1]),
    ("is as good as anything here", level(HEART, "logistic regression alone", "auc") > level(HEART, "FedAvg", "auc"), level(TENTH, "logistic regression alone", "auc") > lonely[0]),
    ("gain {:.1f} points over one for each person when everybody has ten trials", few.mean, few.low > 0),
    ("would lose {:.1f} points when everybody has 120", -many.mean, many.high < 0, not is_open(many)),
    ("Five draws of the trials", {few.n, many.n} == {5}),
    ("about eight times as much", round(1347 / 4 / 40) == 8),
]  # fmt: skip

GIVEN: tuple[str, ...] = ()
