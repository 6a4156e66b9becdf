"""What the chapter on deployment says."""

from functools import cache

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


many, people = means(OPEN), means(PEOPLE)
talking = many.drop("Local")
guarded = means(GUARDED)["accuracy"]
alone = many.loc["Local", "accuracy"]
seeds = {r.seed for r in stored() if r.experiment in (OPEN, GUARDED, PEOPLE)}
by_means = {name: many.loc[name, "means"] for name in ("FedPAC", "FedCR")}

FACTS: list[Fact] = [
    ("Almost all methods show it which classes a client holds", talking[CLASSES].min() > 0.85, talking[CLASSES].notna().mean() > 0.7),
    ("most let it recognise a client by its messages", (talking["link"] > 0.85).mean() > 0.9),
    ("could tell from class means only", talking["loss"].max() < 0.65, min(by_means.values()) > 0.65),
    ("{:.2f} is guessing, {:.2f} in the last column", 0.5, talking["link_chance"].mean()),
    ("About five clients take part in both rounds", 4.5 < 1 / talking["link_chance"].mean() < 5.5),
    ("above nine tenths after a single round", lambda page: page["by_hand"] > 0.9),
    ("recognise a member with an AUC of {:.2f}", scores.power_of_means(13, 5)),
    ("For the 113 healthy patients of Budapest it would be {:.2f}", scores.power_of_means(13, 113)),
    ("works with an AUC of {:.2f} and {:.2f}", by_means["FedPAC"], by_means["FedCR"]),
    ("lower the attacker from {:.1f} to {:.1f} %", *(at("the attacker", sees) for sees in ("single messages", "sums"))),
    ("With sums and , which is worth little on paper, the attacker has {:.1f} % and FedAvg is still better than training alone", at("the attacker", "sums", 256.0), at("FedAvg", "sums", 256.0) > at("each client alone", "sums")),
    ("nothing is left of FedAvg", at("FedAvg", "sums", 16.0) < 30),
    ("for instance at , ends below one that never joined", all(at("FedAvg, then tuned at home", sees, 64.0) < at("each client alone", sees) - 3 for sees in ("sums", "single messages"))),
    ("as accurate with noise as without, and a little below training alone", all(abs(guarded["FLIC-Class"] - guarded[f"FLIC-Class, eps {e} of sums"]) < 0.01 for e in (256, 16)), 0 < alone - guarded["FLIC-Class"] < 0.02),
    ("of FedRep a helper learns less", many.loc["FedRep", LEARNED] < many.loc["FedAvg", LEARNED] - 0.1, many.loc["FedPer", LEARNED] < many.loc["FedAvg", LEARNED] - 0.1),
    ("finds the right one in {:.0f} of 100 cases", 100 * people["link_chance"].mean()),
    ("About three people", 2.5 < 1 / people["link_chance"].mean() < 3.5),
    ("in practically all cases, and FLIC's in {:.0f} of 100", 100 * people.loc["FLIC-Class", "link"], people.loc["FedAvg", "link"] > 0.99),
    ("no attack told a person's training trials from other trials", people[["loss", "means"]].max().max() < 0.56),
    ("a mean of three seeds", len(seeds) == 3),
    ("All {} methods", len(talking)),
    ("forty images to each of twenty clients", privacy.CLIENTS == 20),
]  # fmt: skip

GIVEN = (
    "is worth an AUC of at most 0.6",
    "is about 0.253, so",
    "may be at most 0.064",
    "move by 0.04, 0.04 and eight times by −0.01",
    "comes out between 0.45 and 0.58",
)
