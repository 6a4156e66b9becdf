"""What the chapter on deployment says."""

from functools import cache

import pandas as pd

from facts import Fact, stored
from hetfl_book.attacks import scores
from hetfl_book.papers import privacy

OPEN, GUARDED, PEOPLE = (f"privacy/{name}" for name in ("digits", "defences", "bci"))
CLASSES, SUMS = "presence_direct", "presence_direct_summed"


@cache
def means(experiment: str) -> pd.DataFrame:
    """Of all metrics over seeds, a row for each method."""
    rows = [{"method": r.method, **r.metrics} for r in stored() if r.experiment == experiment]
    return pd.DataFrame(rows).groupby("method").mean()


def row(name: str, defence: str, asked: str) -> Fact:
    found = [means(GUARDED).loc[f"{method}{defence}"] for method in ("FedAvg", "FLIC-Class")]
    values = [x for m in found for x in (100 * m["accuracy"], m[asked])]
    return (f"| {name} | {{:.1f}} | {{:.2f}} | {{:.1f}} | {{:.2f}} |", *values)


many, people = means(OPEN), means(PEOPLE)
talking = many.drop("Local")
guarded = means(GUARDED)["accuracy"]
alone = many.loc["Local", "accuracy"]
seeds = {r.seed for r in stored() if r.experiment in (OPEN, GUARDED, PEOPLE)}
by_means = {name: many.loc[name, "means"] for name in ("FedPAC", "FedCR")}

FACTS: list[Fact] = [
    ("Almost all methods show it which classes a client holds", talking[CLASSES].min() > 0.85, talking[CLASSES].notna().mean() > 0.7),
    ("most let it recognise a client by its messages", (talking["link"] > 0.85).mean() > 0.9),
    ("can be told from class means only", talking["loss"].max() < 0.65, min(by_means.values()) > 0.65),
    ("{:.2f} is guessing ({:.2f} in the last column) and {:.2f} is certainty", 0.5, talking["link_chance"].mean(), 1),
    ("above nine tenths after a single round", lambda page: page["by_hand"] > 0.9),
    ("recognise a member with an AUC of {:.2f}", scores.power_of_means(13, 5)),
    ("For the 113 healthy patients of Budapest it would be {:.2f}", scores.power_of_means(13, 113)),
    ("works with an AUC of {:.2f} and {:.2f}", by_means["FedPAC"], by_means["FedCR"]),
    ("Training alone reaches {:.1f} %", 100 * alone),
    row("single messages", "", CLASSES),
    row("sums", "", SUMS),
    row("sums, ε = 256", ", eps 256 of sums", SUMS),
    row("sums, ε = 16", ", eps 16 of sums", SUMS),
    ("FedAvg is still better than training alone", guarded["FedAvg, eps 256 of sums"] > alone),
    ("nothing is left of FedAvg", guarded["FedAvg, eps 16 of sums"] < 0.3),
    ("FLIC seems immune", abs(guarded["FLIC-Class"] - guarded["FLIC-Class, eps 16 of sums"]) < 0.01, guarded["FLIC-Class"] < alone),
    ("in practically all cases", people.loc["FedAvg", "link"] > 0.99),
    ("by that of FLIC in {:.0f} of 100, where guessing gives {:.0f}", 100 * people.loc["FLIC-Class", "link"], 100 * people["link_chance"].mean()),
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
