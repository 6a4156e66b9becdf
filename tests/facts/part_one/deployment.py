"""What the chapter on deployment says."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from facts import Fact, stored
from hetfl_book import grids
from hetfl_book.attacks import scores
from hetfl_book.papers import privacy

OPEN, GUARDED, PEOPLE = (f"privacy/{name}" for name in ("digits", "defences", "bci"))
CLASSES, LEARNED = "presence_direct", "presence_learned"
PROMISES = grids.stored("privacy")


@cache
def means(experiment: str) -> pd.DataFrame:
    """Of all metrics over seeds, a row for each method."""
    rows = [{"method": r.method, **r.metrics} for r in stored() if r.experiment == experiment]
    return pd.DataFrame(rows).groupby("method").mean()


def at(series: str, sees: str, promise: float | str = "none") -> float:
    return float(PROMISES.at(series, sees, promise).mean())


def gained(page: Any) -> dict[int, float]:
    """By how much the decoded mean of each class that is drawn is nearer to the true one than the average is."""
    off = {
        name: {c: np.linalg.norm(page[name][c] - page["mine"][c]) for c in page["most"]}
        for name in ("average", "decoded")
    }
    return {c: float(off["average"][c] - off["decoded"][c]) for c in page["most"]}


many, people = means(OPEN), means(PEOPLE)
talking = many.drop("Local")
guarded = means(GUARDED)["accuracy"]
alone = many.loc["Local", "accuracy"]
TEN = ("FedAvg", "FedRep", "FedBABU", "FedPAC", "FedCR", "Fed-CMA", "FLIC-Class", "FedHeNN", "HyFEM", "late fusion")
more_than_sums = [name for name in TEN if privacy.everyone()[name].needs_uploads]
seeds = {r.seed for r in stored() if r.experiment in (OPEN, GUARDED, PEOPLE)}
by_means = {name: many.loc[name, "means"] for name in ("FedPAC", "FedCR")}

FACTS: list[Fact] = [
    ("attack {} methods and variants, of which the figure shows ten", len(talking), len(TEN) == 10),
    ("Almost all show it which classes a client holds", talking[CLASSES].min() > 0.85, talking[CLASSES].notna().mean() > 0.7),
    ("most let it recognise a client by its messages", (talking["link"] > 0.85).mean() > 0.9),
    ("our attacks could tell clearly from the class means of FedPAC and FedCR only", talking["loss"].max() < 0.65, min(by_means.values()) > 0.65, many.drop([*by_means])["means"].max() < 0.55),
    ("where {:.2f} is guessing. Last column: share of clients recognised, guessing {:.2f}", 0.5, talking["link_chance"].mean()),
    ("is the hardest to read", many.loc[[*TEN], LEARNED].idxmin() == many.loc[[*TEN], "link"].idxmin() == "FedHeNN"),
    ("its clients are recognised more than twice as often as by guessing", 2 < many.loc["FedHeNN", "link"] / many.loc["FedHeNN", "link_chance"] < 2.6),
    ("About five clients take part in both rounds", 4.5 < 1 / talking["link_chance"].mean() < 5.5),
    ("an anchor moves only where the client holds the class, and a class mean of Fed-CMA is zero where it does not", many.loc[["FLIC-Class", "Fed-CMA"], CLASSES].min() > 0.995),
    ("above nine tenths after a single round", lambda page: page["by_hand"] > 0.9),
    ("The biases of 6, 7 and 9 rise, with four images or more", lambda page: [c for c in range(10) if page["moves"][c] > 0] == [6, 7, 9], lambda page: page["counts"][[6, 7, 9]].min() == 4),
    ("That of 0, with three, falls less", lambda page: page["counts"][0] == 3, lambda page: page["moves"][4:6].max() < 1.4 * page["moves"][0] < 0),
    ("Those of 4 and 5, with one each, fall like those of classes that it lacks", lambda page: list(page["counts"][[4, 5]]) == [1, 1], lambda page: page["moves"][[4, 5]].max() < -0.9 * abs(page["moves"][page["counts"] == 0]).min()),
    ("over classes with 21, 4 and 10 images, and all others fall", lambda page: list(page["counts"][[6, 7, 9]]) == [21, 4, 10]),
    ("which decoding makes smaller in each column. The 0 gains most", lambda page: min(gained(page).values()) > 0, lambda page: max(gained(page), key=gained(page).get) == 0),
    ("recognise a member with an AUC of {:.2f}", scores.power_of_means(13, 5)),
    ("For the 113 healthy patients of Budapest it would be {:.2f}", scores.power_of_means(13, 113)),
    ("works with an AUC of {:.2f} and {:.2f}", by_means["FedPAC"], by_means["FedCR"]),
    ("The attacker falls from {:.1f} to {:.1f} %", *(at("the attacker", sees) for sees in ("single messages", "sums"))),
    ("Sums alone take away a quarter of the attacker's lead, and no accuracy", 0.22 < 1 - (at("the attacker", "sums") - 50) / (at("the attacker", "single messages") - 50) < 0.28, at("FedAvg", "sums") == at("FedAvg", "single messages")),
    ("Five of the ten methods cannot use sums in our library", len(more_than_sums) == 5),
    ("FedPAC and HyFEM cannot use it, and in our library FedCR, Fed-CMA and FedHeNN cannot yet", set(more_than_sums) == {"FedPAC", "FedCR", "Fed-CMA", "FedHeNN", "HyFEM"}),
    ("With sums and , which promises next to nothing, the attacker has {:.1f} % and FedAvg is still better than training alone", at("the attacker", "sums", 256.0), at("FedAvg", "sums", 256.0) > at("each client alone", "sums")),
    ("With FedAvg falls to {:.1f} %", at("FedAvg", "sums", 16.0)),
    ("it lifts FedAvg from {:.1f} to {:.1f} %, above training alone", at("FedAvg", "single messages", 1024.0), at("FedAvg, then tuned at home", "single messages", 1024.0), at("FedAvg, then tuned at home", "single messages", 1024.0) > at("each client alone", "single messages")),
    ("a client ends below one that never joined", all(at("FedAvg, then tuned at home", sees, 64.0) < at("each client alone", sees) - 3 for sees in ("sums", "single messages"))),
    ("is right on {:.1f} % of the images without noise and on {:.1f} % with of sums", 100 * guarded["FLIC-Class"], 100 * guarded["FLIC-Class, eps 16 of sums"]),
    ("since training alone reaches {:.1f} %", 100 * alone, guarded["FLIC-Class"] < alone),
    ("a helper learns less ({:.2f} instead of {:.2f}). FedBABU does not help ({:.2f})", many.loc["FedRep", LEARNED], many.loc["FedAvg", LEARNED], many.loc["FedBABU", LEARNED], many.loc["FedRep", LEARNED] < many.loc["FedAvg", LEARNED] - 0.1, many.loc[["FedRep", "FedBABU"], CLASSES].isna().all()),
    ("except for a remainder of", privacy.DELTA == PROMISES.about["delta"] == 1e-5),
    ("This counts all messages of the busiest client in {} rounds", PROMISES.about["rounds"], PROMISES.about["rounds"] == privacy.ROUNDS),
    ("finds the right one in {:.0f} of 100 cases", 100 * people["link_chance"].mean()),
    ("About three people", 2.5 < 1 / people["link_chance"].mean() < 3.5),
    ("Four of the six methods, such as FedAvg, give a person away in practically all cases, FLIC in {:.0f} of 100 and FedHeNN in {:.0f}", 100 * people.loc["FLIC-Class", "link"], 100 * people.loc["FedHeNN", "link"], people["link"].count() == 6, people["link"].drop(["FLIC-Class", "FedHeNN"]).min() > 0.99),
    ("no attack told a person's training trials from other trials", people[["loss", "means"]].max().max() < 0.56),
    ("Each number of the figure with sliders is a mean of five seeds, every other one from records of three", PROMISES.array("FedAvg").shape[-1] == 5, len(seeds) == 3),
    ("training alone stands at {:.1f} % there and at {:.1f} % elsewhere", at("each client alone", "sums"), 100 * alone),
    ("All {} methods and variants", len(talking)),
    ("destroyed FedAvg already among twenty", guarded["FedAvg, eps 16 of sums"] < alone / 2, privacy.CLIENTS == 20),
    ("Noise for among twenty clients destroyed FedAvg, and put every method we tried that shares a part of a network below training alone", all(guarded[f"{m}, eps 16{sees}"] < alone for m in ("FedAvg", "FedRep", "Fed-CMA", "FedCR") for sees in ("", " of sums"))),
    ("forty images to each of twenty clients", privacy.CLIENTS == 20),
]  # fmt: skip

GIVEN = (
    "gives the server an AUC of at most 0.6",
    "is about 0.253, so",
    "may be at most 0.064",
    "move by 0.04, 0.04 and eight times by −0.01",
    "comes out between 0.45 and 0.58",
)
