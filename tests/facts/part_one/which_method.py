"""What the page on the head to head says."""

import pandas as pd

from facts import Fact
from hetfl_book.headtohead import across, guide, portraits, ranking, tried
from hetfl_book.headtohead.entries import entries
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_core.statistics import holm

FOUND = ranking.finals()
TABLE = ranking.cells(FOUND)
GAINS, SHARING = guide.cases(TABLE), guide.cases(TABLE, "gain_sharing")
MEAN, BY_SHARING = GAINS.mean(axis=1), SHARING.mean(axis=1)
LEAVES = portraits.leaves()
ADVICE = guide.guide(GAINS, LEAVES)
RUN = list(dict.fromkeys(TABLE["federation"]))
ZEROS, LOGISTIC, NETWORK = "FedAvg, zeros", "logistic regression alone", "network alone"
OWN = [name for name, line in entries().items() if line.exchanges and line.view == "own"]
"""Methods that leave each site a network of its own."""

SENT = TABLE.groupby("method")["sent"].mean()
JUDGED = guide.left_out(GAINS, LEAVES, {case: case.split(",")[0] for case in GAINS})
LINES = TABLE[(TABLE["way"] != "one place") & ~TABLE["method"].str.endswith("own last step")]
VALUES = {size: across.scores(LINES, size) for size in ("all", "tenth")}
EACH = ranking.client_gains(FOUND).query("counts").sort_index()


def of(method: str, where: str) -> pd.DataFrame:
    """A method's clients in a case such as "heart, all"."""
    name, size = where.split(", ")
    return EACH.loc[(name, size, method)]


def last_step(method: str) -> pd.Series:
    """What an own last step takes away from a method, in each case."""
    return GAINS.loc[method] - GAINS.loc[f"{method}, own last step"]


hospitals = of(ZEROS, "heart, all")
TOGETHER = [name for name, line in entries().items() if line.exchanges]
CELLS = {measure: ranking.cells(FOUND, measure) for measure in ("auc", "accuracy")}
GAINS_OF = {measure: guide.cases(table) for measure, table in CELLS.items()}
ORDER = CELLS["auc"][CELLS["auc"]["way"] != "one place"].query("gain > 0")
TRIED = tried.tried()


def trial(method: str, what: str, trial: str = "recorded settings", score: str = "balanced_accuracy") -> pd.Series:
    """Means over seeds of what was tried, in per cent, by federation and size."""
    rows = TRIED[(TRIED["tried"] == trial) & (TRIED["method"] == method) & (TRIED["what"] == what)]
    found = 100 * rows.groupby(["federation", "size"])[score].mean()
    assert len(found) == len(GAINS.columns)
    return found


def behind(table: pd.DataFrame) -> int:
    """Of the federated methods those that logistic regression alone is ahead of, over all cases."""
    return int((table[table["method"].isin(TOGETHER)]["gain_logistic"] < 0).sum())


def exchanged(method: str, name: str) -> pd.Series:
    """What the exchange brings in a trial."""
    return trial(method, "finals", name) - trial(method, "apart", name)


NEW = trial(ZEROS, "finals", "new seeds") - trial(NETWORK, "finals", "new seeds")
SHARES = trial(ZEROS, "own step", score="at_own_share") - trial(NETWORK, "finals", score="at_own_share")
OWN_ROWS = TABLE[TABLE["method"].isin(OWN)]
TABLES = [name for name in RUN if FEDERATIONS[name].kind == "tables"]
SOME = [leaf for leaf in ADVICE if leaf.startswith("some inputs common")]
TENTH = GAINS["liver, tenth"]

FACTS: list[Fact] = [
    # the lead
    ("more than twenty methods", sum(line.exchanges for line in entries().values()) > 20),
    (
        "In balanced accuracy the plainest idea gains most, which is FedAvg with a zero",
        len(SOME) == 2,
        all(ADVICE[leaf].method == ZEROS for leaf in SOME),
    ),
    ("nobody is shown to gain anything", (holm(ORDER["p"].fillna(1).tolist()) > 0.05).all()),
    (
        "in the mean no method is ahead of logistic regression that each site fits alone",
        GAINS_OF["auc"].mean(axis=1).dropna().idxmax() == LOGISTIC,
    ),
    ("We have run only tables so far", TABLES == RUN, list(ADVICE) == SOME),
    ("so we end at the leaf for many rows", LEAVES["heart, all"] == "some inputs common to all, many rows"),
    # the control
    (
        "FedAvg, FedProx and late fusion gain four points and more over their own recipe",
        *(BY_SHARING[name] > 4 for name in ("FedAvg", ZEROS, "FedProx", "late fusion")),
    ),
    ("most of it is a better threshold", SHARES.mean() < MEAN[ZEROS] / 4),
    ("gains more than half a point by what it exchanges", all(min(BY_SHARING[n], MEAN[n]) < 0.5 for n in OWN)),
    (
        "FLIC-Class gains two points over training alone",
        1.5 < MEAN["FLIC-Class"] < 2.5,
        SHARING.loc["FLIC-Class"].abs().max() < 0.1,
    ),
    # where
    (
        "The four hospitals (*heart*) and the two clinics (*liver*) agree on who leads",
        RUN == ["heart", "liver"],
        all({ZEROS, "late fusion"} <= {*GAINS[case].nlargest(4).index} for case in GAINS),
    ),
    ("gains more than ten points in the clinics", TENTH[ZEROS] > 10),
    ("about four in the hospitals", 3.5 < GAINS.loc[ZEROS, "heart, tenth"] < 4.5),
    ("It gains ten points there without any federation", 9.5 < TENTH[LOGISTIC] < 10.5),
    ("a poor choice for {} patients", round(of(ZEROS, "liver, tenth")["n_train"].mean())),
    # ranks
    (
        "With so few federations hardly anything can be told apart",
        all(across.critical_difference(v.shape[1], len(v)) > 20 for v in VALUES.values()),
    ),
    ("Friedman's test does say", all(across.friedman(v).p < 0.05 for v in VALUES.values())),
    # cost
    (
        "no method that sends much less beats logistic regression",
        MEAN[[m for m in MEAN.index if SENT[m] < SENT["FedAvg"] / 2]].idxmax() == LOGISTIC,
    ),
    ("such as HyFEM", SENT["HyFEM"] > 2 * SENT[ZEROS], MEAN["HyFEM"] < MEAN[ZEROS]),
    # who gains
    (
        "of both classes the smallest, Long Beach, gains most",
        hospitals["gain"].idxmax() == hospitals["n_train"].idxmin(),
    ),
    (
        "Cleveland has the most patients and loses a few points",
        hospitals["n_train"].idxmax() == "Cleveland",
        -5 < hospitals.loc["Cleveland", "gain"] < -2,
    ),
    # the advice
    (
        "In half of the cases the advice lies within one point of the best method there",
        (JUDGED["regret"] <= 1).mean() == 0.5,
        JUDGED.loc[JUDGED["regret"] > 1, "regret"].between(2, 3).all(),
    ),
    ("In none of them did we advise a method that loses", JUDGED["gain"].min() > 0),
    # what was tried
    ("it stands, in balanced accuracy", NEW.min() > 3),
    (
        "no gain in AUC is sure, and in accuracy it loses in all four cases",
        (CELLS["auc"].query("method == @ZEROS")["low"] < 0).all(),
        (GAINS_OF["accuracy"].loc[ZEROS] < 0).all(),
        GAINS.shape[1] == 4,
    ),
    ("{:.1f} points are left in the mean of the cases, instead of {:.1f}", SHARES.mean(), MEAN[ZEROS]),
    ("intervals for eleven methods in four cases", len(OWN) == 11),
    (
        "none of the {} excludes zero, but most leave room for two points either way",
        len(OWN_ROWS),
        ((OWN_ROWS["low_sharing"] <= 0) & (OWN_ROWS["high_sharing"] >= 0)).all(),
        ((OWN_ROWS["high_sharing"] - OWN_ROWS["low_sharing"]) / 2).median() > 2,
    ),
    ("it stands, still {:.1f}", 0.0, exchanged("FLIC-Class", "weight 1").abs().max() < 0.05),
    ("by more than five points in all cases", exchanged("FedHeNN", "weight 10").max() < -5),
    ("its exchange helps in all cases", SHARING.loc["Fed-CMA"].min() > 0, MEAN["Fed-CMA"] < 0),
    ("{} federated methods in four cases", len(TOGETHER)),
    ("ahead in {} of {} in balanced accuracy", behind(TABLE), 4 * len(TOGETHER)),
    ("ahead in {} of {} in AUC, and in all", behind(CELLS["auc"]), 4 * len(TOGETHER)),
    ("and in all of them in accuracy", behind(CELLS["accuracy"]) == 4 * len(TOGETHER)),
    # the box
    ("only two of the sixteen federations", len(RUN) == 2, len(FEDERATIONS) == 16),
    (
        "between one and nine points of their gain are gone",
        min(last_step(m).min() for m in ("FedAvg", ZEROS, "late fusion", "LASER-VFL")) > 1,
        8 < max(last_step(m).max() for m in ("FedAvg", ZEROS, "late fusion", "LASER-VFL")) < 9,
    ),
]

GIVEN = (
    "two clinics with 30 and 40 of 100 patients ill",
    "gains five points over training alone and five over",
    "A method gains three points over training alone. The same method with nothing exchanged gains four",
    "gains 4, 1 and −2 points, and method B gains 1, 2 and 2",
    "about 1.7 for B",
    "the means are −0.5 and 2",
    "the regret is 3 points",
    "Their median is 37.5",
    "0 % means first on every federation and 100 % means last",
    "suppose that a method gains two points over training alone. If a federation of one gains two points as well",
    "all five points come from sharing",
    "three of four patients are ill",
)
"""Made-up examples."""
