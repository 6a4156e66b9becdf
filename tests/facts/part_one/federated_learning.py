"""What the chapter on federated averaging says."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from facts import Fact, half, is_open, unclear
from facts.part_one import eeg_federation as eeg
from hetfl_book import grids, ledger, report
from hetfl_book.headtohead import ranking
from hetfl_core import datasets
from hetfl_core.reporting.judging import Gain

FEDAVG = grids.stored("fedavg")
COMMON, TUNED, ALONE = (FEDAVG.array(name).mean(-1) for name in ("FedAvg", "FedAvg, fine-tuned", "alone"))
LEAST, MOST = 0, len(grids.ALPHAS) - 1
HEART, TENTH = (f"headtohead/heart-{size}" for size in ("all", "tenth"))


@cache
def heart() -> list[ledger.RunRecord]:
    return ledger.load(scale="own")


def level(experiment: str, method: str, metric: str) -> float:
    """Mean over ten splits and the three hospitals whose rarest class has test patients enough."""
    found = [r for r in heart() if (r.experiment, r.method) == (experiment, method)]
    table = ranking.clients(found, metric).query("counts")
    assert len(table) == 30
    assert set(table["client"]) == {"Cleveland", "Budapest", "Long Beach"}
    return float(table["value"].mean())


def over_network(size: str, metric: str, method: str = "FedAvg") -> Gain:
    """What a method adds to a network alone, on average over these hospitals."""
    return report.gained("heart", method, "training alone", size, metric)


def ends(steps: int) -> Callable[[Mapping[str, Any]], float]:
    """The first parameter that the server of the two bowls ends with."""
    return lambda page: float(page["federated"](steps, 400)[0][-1][0])


COLUMNS = [(size, metric) for size in ("all", "tenth") for metric in ("accuracy", "auc")]


def row(name: str, words: str) -> Fact:
    found = [over_network(*column, name) for column in COLUMNS]
    cells = " | ".join(["{:+.1f} ± {:.1f}"] * len(found))
    return (f"| {words} | {cells} |", *(x for gain in found for x in (gain.mean, half(gain))), *map(is_open, found))


def rarest(hospital: str) -> set[int]:
    """Test patients of the rarer class, over the splits."""
    found = ranking.clients([r for r in heart() if r.experiment == HEART])
    return set(found.loc[found["client"] == hospital, "rarest"])


def patients(size: str) -> list[int]:
    return next(r for r in heart() if r.experiment == size).per_client["n_train"]


def share(hospital: str) -> float:
    """Of the ill among a hospital's patients."""
    rates = json.loads(datasets.heart.STUDY.rates.read_text("utf8"))[hospital]
    return float(rates["1"]["patients"] / (rates["0"]["patients"] + rates["1"]["patients"]))


few, many = (eeg.minus("Pooled LR", "LR", n=n) for n in ("10", "120"))
best = eeg.minus("Pooled LR", "MDM", n="10")
order = over_network("tenth", "auc")
LOGISTIC = "logistic regression alone"
ROWS = ("network alone", "FedAvg", "FedAvg, own last step", LOGISTIC)
ACCURACY = {size: {name: level(size, name, "accuracy") for name in ROWS} for size in (HEART, TENTH)}
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
    ("With one epoch it cannot catch up where clients differ much", (TUNED - ALONE)[:2, 0].max() < -10),
    ("In all thirty comparisons of a slider position with the next one, FedAvg ends higher with more epochs", np.diff(COMMON, axis=1).min() > 0, np.diff(COMMON, axis=1).size == 30),
    ("FedAvg has {:.1f} % with all clients in each round, and {:.1f} % with two", COMMON[1, 1, 2], COMMON[1, 1, 0]),
    ("All four train, but the means leave out Zurich, where three healthy patients decide", rarest("Zurich") == {3}),
    ("| network alone | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", *(level(f"headtohead/heart-{size}", ROWS[0], metric) for size, metric in COLUMNS)),
    *(row(name, name.replace("own last step", "last step of its own")) for name in ROWS[1:]),
    ("but every interval includes zero", all(is_open(over_network(*column, name)) for column in COLUMNS for name in ROWS[1:])),
    ("only a tenth of its training patients, about fifteen", 12 < np.mean(patients(TENTH)) < 18),
    ("With few patients FedAvg's AUC is higher on average, and with many it is about equal", order.mean > 3, is_open(order), abs(over_network("all", "auc").mean) < 0.2),
    ("Its accuracy is lower", all(told["FedAvg"] < told["network alone"] - 2 for told in ACCURACY.values())),
    ("fewer than half of the patients are ill in Cleveland and Budapest and three of four in Long Beach", *(share("Cleveland") < 0.5, share("Budapest") < 0.5, round(share("Long Beach"), 1) == 0.7)),
    ("where classes differed much, one model was below training alone", (COMMON[LEAST] < ALONE[LEAST]).all()),
    *((words, all(told[ROWS[2]] > (told["FedAvg"] + told["network alone"]) / 2 for told in ACCURACY.values())) for words in ("repairs more than half of this on average", "two numbers repaired more than half of FedAvg's loss")),
    *((words, all(max(told, key=lambda name: told[name]) == LOGISTIC for told in ACCURACY.values())) for words in ("a logistic regression alone has the best mean accuracy", "on the hospitals that regression had the best mean accuracy")),
    ("we cannot show that anything has a better AUC", not any(report.gained("heart", name, LOGISTIC, size, "auc").low > 0 for name in ROWS[:3] for size in ("all", "tenth"))),
    ("gains {:.1f} ± {:.1f} points when everybody has ten trials. When everybody has 120 it loses {:.1f} ± {:.1f}, which could be chance for other people", few.mean, half(few), -many.mean, half(many), few.low > 0, unclear(many)),
    ("it adds {:.1f} ± {:.1f}, before any correction", best.mean, half(best), best.low > 0, max(eeg.ALONE, key=lambda m: eeg.level(m, "10")) == "MDM"),
    ("about eight times as much", round(1347 / 4 / 40) == 8),
    ("The table above counts as much each way", lambda page: round(page["run"].history["bytes_up"].iloc[-1] / 1000) == 89),
    ("the first parameter is {:.2f}, and with 5 and 20 steps it is {:.2f} and {:.2f}", *map(ends, (2, 5, 20))),
    ("near the minimum, {:.2f}, towards the mean of the two bottoms, {:.2f}", lambda page: float(page["best"][0]), lambda page: float(page["m"].mean(0)[0])),
]  # fmt: skip

GIVEN: tuple[str, ...] = ()
