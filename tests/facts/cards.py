"""What the method cards say of the four hospitals, and by what it is true. Records of other federations change nothing.

A sentence that says who is ahead, or that something is shown, is a fact here: its words, and conditions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from facts import Fact
from hetfl_book.headtohead import cards
from hetfl_book.headtohead.entries import entries

SIZES = ("all", "tenth")
LR = "logistic regression alone"


@cache
def hospitals() -> pd.DataFrame:
    """Rows of the four hospitals, by method and size."""
    table = cards._cells()
    return table[table["federation"] == "heart"].set_index(["method", "size"])


def row(method: str, size: str = "all") -> Any:
    return hospitals().loc[(method, size)]


def ahead(method: str, size: str, what: str = "gain") -> bool:
    """Whether it is shown: the interval lies above zero."""
    return bool(row(method, size)["low" + what.removeprefix("gain")] > 0)


def behind(method: str, size: str, what: str = "gain") -> bool:
    return bool(row(method, size)["high" + what.removeprefix("gain")] < 0)


def shown(method: str, size: str, what: str = "gain") -> bool:
    return ahead(method, size, what) or behind(method, size, what)


def above(method: str, what: str = "gain") -> bool:
    """Whether the mean is above zero in both sizes."""
    return all(row(method, size)[what] > 0 for size in SIZES)


def below(method: str, what: str = "gain") -> bool:
    return all(row(method, size)[what] < 0 for size in SIZES)


def within(method: str, points: float) -> bool:
    """Whether sharing changes the mean by less than that, in both sizes."""
    return all(abs(row(method, size)["gain_sharing"]) < points for size in SIZES)


def never(method: str, what: str = "gain") -> bool:
    """Whether a lead is shown in neither size."""
    return not any(ahead(method, size, what) for size in SIZES)


def federated() -> list[str]:
    return [name for name, entry in entries().items() if entry.exchanges]


def leaders(size: str, what: str = "gain") -> set[str]:
    """Lines that are shown to be ahead."""
    return {name for name in federated() if ahead(name, size, what)}


def value(method: str, column: str, size: str = "all") -> float:
    return float(row(method, size)[column])


def lost_by_own_step(method: str) -> float:
    """Share of the gain that goes."""
    return 1 - value(f"{method}, own last step", "gain") / value(method, "gain")


def learned(method: str) -> float:
    return cards.leaks(method)["presence_learned"]


@cache
def facts() -> dict[str, list[Fact]]:
    """By card."""
    both = ("FedAvg", "FedAvg, zeros")
    tuned = ("FedAvg-FT", "FedAvg-FT, zeros")
    staying = [name for name, entry in entries().items() if entry.way == "alone" and (name, "all") in hospitals().index]
    others = [learned(name) for name in federated() if cards.leaks(name) and name != "FedHeNN"]
    return {
        "Local": [
            ("logistic regression has a higher mean than the small network in both sizes, although neither lead is shown", above(LR), never(LR)),
            ("Only two lines of these cards are shown to be ahead of it there, FedAvg with zeros and LASER-VFL, both with all rows",
             leaders("all", "gain_logistic") == {"FedAvg, zeros", "LASER-VFL"}, not leaders("tenth", "gain_logistic"),
             not any(ahead(name, size, "gain_logistic") for name in staying for size in SIZES if name != LR)),
            ("With a tenth of the hospitals' rows, fine-tuned FedAvg with zeros and LASER-VFL are shown to be ahead of the network alone",
             leaders("tenth") == {"FedAvg-FT, zeros", "LASER-VFL"}),
        ],
        "FedAvg": [
            ("On the hospitals with all rows, both forms are shown to be ahead of training alone, and ahead of themselves with nothing exchanged",
             all(ahead(name, "all", what) for name in both for what in ("gain", "gain_sharing"))),
            ("Cleveland loses with all rows", all(row(name).worst_client == "Cleveland" and row(name).worst < 0 for name in both)),
            ("more than half of the gain goes when each hospital fits the last step to its own patients", all(lost_by_own_step(name) > 0.5 for name in both)),
        ],
        "FedAvgFT": [
            ("With a tenth of the hospitals' rows, the form with zeros is shown to be ahead of training alone", ahead("FedAvg-FT, zeros", "tenth")),
            ("With all rows, the same recipe with nothing exchanged does as well on the hospitals, to within half a point in both forms",
             all(abs(row(name).gain_sharing) < 0.5 and not shown(name, "all", "gain_sharing") for name in tuned)),
        ],
        "FedProx": [
            ("With a tenth of the hospitals' rows it is shown to be ahead of itself with nothing exchanged", ahead("FedProx", "tenth", "gain_sharing")),
            ("It is not shown to be ahead of training alone on the hospitals, and plain FedAvg has the higher mean in both sizes",
             never("FedProx"), all(value("FedAvg", "gain", size) > value("FedProx", "gain", size) for size in SIZES)),
        ],
        "FedSR": [
            ("With a tenth of the hospitals' rows it is shown to be ahead of itself with nothing exchanged", ahead("FedSR", "tenth", "gain_sharing")),
            ("It is not shown to be ahead of training alone on the hospitals in either size", never("FedSR")),
            ("It sends more than FedAvg there and takes longer", all(value("FedSR", cost) > value("FedAvg", cost) for cost in ("bytes_up", "seconds"))),
        ],
        "FedPer": [
            ("On the hospitals it is shown to be behind training alone with all rows, and no gain from sharing is shown in either size",
             behind("FedPer", "all"), never("FedPer", "gain_sharing")),
        ],
        "FedRep": [
            ("On the hospitals its mean is below that of training alone in both sizes, and below that of itself with nothing exchanged. Neither is shown",
             below("FedRep"), below("FedRep", "gain_sharing"), not any(shown("FedRep", size, what) for size in SIZES for what in ("gain", "gain_sharing"))),
        ],
        "FedBABU": [
            ("With a tenth of the hospitals' rows it is shown to be ahead of itself with nothing exchanged", ahead("FedBABU", "tenth", "gain_sharing")),
            ("It is not shown to be ahead of training alone on the hospitals, and with all rows its mean is below", never("FedBABU"), row("FedBABU").gain < 0),
        ],
        "Ditto": [
            ("With all of the hospitals' rows it is shown to be ahead of itself with nothing exchanged", ahead("Ditto", "all", "gain_sharing")),
            ("Neither form is shown to be ahead of training alone on the hospitals", never("Ditto"), never("Ditto, own embeddings")),
            ("sharing them changes the mean there by less than half a point in both sizes", within("Ditto, own embeddings", 0.5)),
        ],
        "FedPAC": [
            ("With a tenth of the hospitals' rows no other method gains more in the mean by sharing, although the gain is not shown",
             max(federated(), key=lambda name: value(name, "gain_sharing", "tenth")) == "FedPAC", not shown("FedPAC", "tenth", "gain_sharing")),
            ("On the hospitals, with own bodies, its mean is below that of training alone in both sizes, and below that of itself with nothing exchanged",
             below("FedPAC, own bodies"), below("FedPAC, own bodies", "gain_sharing")),
        ],
        "FedCR": [
            ("On the hospitals both forms have a mean below that of training alone in both sizes", below("FedCR"), below("FedCR, own embeddings")),
            ("more than three times as long as FedAvg's", all(value("FedCR", "seconds", size) > 3 * value("FedAvg", "seconds", size) for size in SIZES)),
        ],
        "PFedHN": [
            ("pFedHN has a higher mean than training alone in both sizes, but this is not shown", above("pFedHN"), never("pFedHN")),
            ("On the hospitals it is shown to be behind training alone with all rows", behind("pFedHN-PC", "all")),
        ],
        "LGFedAvg": [
            ("On the hospitals sharing the head changes the mean by less than a point in both sizes, and nothing is shown",
             within("LG-FedAvg", 1), not any(shown("LG-FedAvg", size, what) for size in SIZES for what in ("gain", "gain_sharing"))),
        ],
        "HetFedRep": [
            ("On the hospitals sharing it changes the mean by less than half a point in both sizes", within("HetFedRep", 0.5)),
        ],
        "FedProto": [
            ("On the hospitals sharing the means changes its mean by less than half a point in both sizes, and it is not ahead of training alone",
             within("FedProto", 0.5), below("FedProto")),
        ],
        "FedHeNN": [
            ("It also tells the server less about a client's classes than most other methods do",
             "presence_direct" not in cards.leaks("FedHeNN"), learned("FedHeNN") < pd.Series(others).median()),
            ("On the hospitals sharing changes the mean by less than a point in both sizes, although a client sends more than with FedAvg",
             within("FedHeNN", 1), value("FedHeNN", "bytes_up") > value("FedAvg", "bytes_up")),
        ],
        "FedCMA": [
            ("On the hospitals its mean is above that of itself with nothing exchanged in both sizes, but this is not shown",
             above("Fed-CMA", "gain_sharing"), never("Fed-CMA", "gain_sharing")),
            ("On the hospitals its mean is below that of training alone in both sizes", below("Fed-CMA")),
        ],
        "FedGen": [
            ("its mean is above that of training alone by less than a point in both sizes", above("FedGen"), all(row("FedGen", size).gain < 1 for size in SIZES)),
            ("On the hospitals sharing brings nothing that is shown, and no other method makes clients receive more",
             never("FedGen", "gain_sharing"), max(federated(), key=lambda name: value(name, "bytes_down")) == "FedGen"),
        ],
        "FLIC": [
            ("On the hospitals FLIC-Class has a higher mean than training alone in both sizes, but this is not shown", above("FLIC-Class"), never("FLIC-Class")),
            ("FLIC-Class gains the same on the hospitals when nothing is exchanged", within("FLIC-Class", 0.05)),
            ("FLIC-HL has a lower mean there than training alone in both sizes", below("FLIC-HL")),
        ],
        "LateFusion": [
            ("On the hospitals its mean is above that of training alone and that of itself with nothing exchanged in both sizes, but none of this is shown",
             *(test("late fusion", what) for test in (above, never) for what in ("gain", "gain_sharing"))),
            ("On the hospitals an own last step takes part of the gain away",
             all(0 < value("late fusion, own last step", "gain", size) < value("late fusion", "gain", size) for size in SIZES)),
        ],
        "LaserVFL": [
            ("It is the only method that is shown to be ahead of training alone on the hospitals in both sizes, and no hospital loses a point",
             leaders("all") & leaders("tenth") == {"LASER-VFL"}, all(row("LASER-VFL", size).worst > -1 for size in SIZES)),
            ("With a tenth of the hospitals' rows its gain from sharing is not shown", not shown("LASER-VFL", "tenth", "gain_sharing")),
            ("With an own last step it is shown to be ahead of training alone there with all rows only",
             ahead("LASER-VFL, own last step", "all"), not shown("LASER-VFL, own last step", "tenth")),
        ],
        "HyFEM": [
            ("On the hospitals its mean is above that of training alone in both sizes, but this is not shown", above("HyFEM"), never("HyFEM")),
            ("On the hospitals late fusion and LASER-VFL have higher means in both sizes and send less",
             all(value(name, "gain", size) > value("HyFEM", "gain", size) for name in ("late fusion", "LASER-VFL") for size in SIZES),
             all(value(name, "bytes_up") < value("HyFEM", "bytes_up") for name in ("late fusion", "LASER-VFL"))),
        ],
    }  # fmt: skip
