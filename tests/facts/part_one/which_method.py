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


TOGETHER = [name for name, line in entries().items() if line.exchanges]
CELLS = {measure: ranking.cells(FOUND, measure) for measure in ("auc", "accuracy")}
GAINS_OF = {measure: guide.cases(table) for measure, table in CELLS.items()}
TRIED = tried.tried()


def trial(method: str, what: str, trial: str = "recorded settings", score: str = "balanced_accuracy") -> pd.Series:
    """Means over seeds of what was tried, in per cent, by federation and size."""
    rows = TRIED[(TRIED["tried"] == trial) & (TRIED["method"] == method) & (TRIED["what"] == what)]
    found = 100 * rows.groupby(["federation", "size"])[score].mean()
    assert len(found) == 4, "two federations, two sizes"
    return found


def behind(table: pd.DataFrame) -> int:
    """Of the federated methods those that logistic regression alone is ahead of, over all cases."""
    return int((table[table["method"].isin(TOGETHER)]["gain_logistic"] < 0).sum())


def exchanged(method: str, name: str) -> pd.Series:
    """What the exchange brings in a trial."""
    return trial(method, "finals", name) - trial(method, "apart", name)


NEW = trial(ZEROS, "finals", "new seeds") - trial(NETWORK, "finals", "new seeds")
SHARES = trial(ZEROS, "own step", score="at_own_share") - trial(NETWORK, "finals", score="at_own_share")
FIRST = [case for case in GAINS if case.startswith(("heart", "liver"))]
"""The cases of the two federations that were run first, which the sceptic had."""

OWN_ROWS = TABLE[TABLE["method"].isin(OWN)]
HARM = OWN_ROWS[(OWN_ROWS["low_sharing"] > 0) | (OWN_ROWS["high_sharing"] < 0)]
MET = {
    measure: table[table["method"].str.removesuffix(", own last step").isin(TOGETHER)]
    for measure, table in {"balanced": TABLE, **CELLS}.items()
}
"""Rows of methods that exchange something, with and without an own last step."""

SHARED = ("FedAvg", ZEROS, "late fusion", "LASER-VFL")
BEST = ("FedAvg-FT, zeros", "boosting alone", LOGISTIC)
THYROID = ("thyroid, all", "thyroid, tenth")


def sure(rows: pd.DataFrame, what: str) -> pd.DataFrame:
    """What excludes zero after Holm's correction for all of these rows."""
    return rows[[p <= 0.05 for p in holm(rows[f"p{what}"].fillna(1).tolist())]]


def extreme(where: str, first: str) -> bool:
    """Whether the site with fewest rows has the largest (or smallest) gain with all three of `BEST`."""
    sites = [of(method, where) for method in BEST]
    return all(getattr(rows["gain"], first)() == rows["n_train"].idxmin() for rows in sites)


NONE_AHEAD = [(sure(rows, "_logistic")["gain_logistic"] < 0).all() for rows in MET.values()]
"""Whether, in each measure, all that is shown against logistic regression is that it is ahead."""

LOST = (JUDGED["gain"] < 0).sum()
"""In how many cases the guide's advice loses against a network alone where it had not seen the federation."""

FACTS: list[Fact] = [
    # the lead
    ("on three federations of tables", RUN == ["heart", "liver", "thyroid"], all(FEDERATIONS[name].kind == "tables" for name in RUN)),
    ("no way of learning together is shown to beat a plain logistic regression", len(MET) == 3, *NONE_AHEAD),
    ("none of them is shown to be better than logistic regression alone in any of three measures", *NONE_AHEAD),
    ("that regression has the highest mean", GAINS_OF["auc"].mean(axis=1).idxmax() == LOGISTIC),
    ("We have run only tables so far", list(ADVICE) == [leaf for leaf in ADVICE if leaf.startswith("some inputs common")]),
    ("so we end at the leaf for many rows", LEAVES["heart, all"] == "some inputs common to all, many rows"),
    # the control
    ("In the mean of our six cases, late fusion gains about three points", 2.5 < BY_SHARING["late fusion"] < 3.5, GAINS.shape[1] == 6),
    ("FedAvg gains five points and more that way in the hospitals and in the clinics when all rows are there", SHARING.loc["FedAvg", ["heart, all", "liver, all"]].min() > 5),
    ("it loses more than ten on the thyroid tables", SHARING.loc["FedAvg", "thyroid, all"] < -10, SHARING.loc["FedAvg", "thyroid, tenth"] < -6),
    ("not one of these differences is certain", sure(MET["balanced"], "_sharing").empty),
    ("gains more than half a point by what it exchanges", all(min(BY_SHARING[n], MEAN[n]) < 0.5 for n in OWN)),
    ("FLIC-Class gains two points over training alone", 1.5 < MEAN["FLIC-Class"] < 2.5, SHARING.loc["FLIC-Class"].abs().max() < 0.1),
    # where
    ("agree that FedAvg with zeros and late fusion belong to the best", all({ZEROS, "late fusion"} <= {*GAINS[case].nlargest(4).index} for case in FIRST)),
    ("FedAvg with zeros lies {:.0f} points below a network alone there", -GAINS.loc[ZEROS, "thyroid, all"]),
    ("lies {:.0f} points above it", GAINS.loc["boosting alone", "thyroid, all"]),
    ("which gains twenty points by it", abs(last_step("late fusion")["thyroid, all"] + 20) < 1, GAINS.loc[f"{ZEROS}, own last step", "thyroid, all"] < -5),
    ("With a tenth of the rows it gains ten points in the clinics and twenty on the thyroid", abs(GAINS.loc[LOGISTIC, "liver, tenth"] - 10) < 0.5, abs(GAINS.loc[LOGISTIC, "thyroid, tenth"] - 20) < 0.5),
    ("Of the eight rows with the highest mean over all six cases only two lose nowhere", [m for m in MEAN.nlargest(8).index if GAINS.loc[m].min() > 0] == ["FedAvg-FT, zeros", LOGISTIC]),
    # ranks
    ("The bar joins everybody", all(across.critical_difference(v.shape[1], len(v)) > 20 for v in VALUES.values())),
    # cost
    ("Only one method lies above both in balanced accuracy", [m for m in MEAN.index if MEAN[m] > MEAN["boosting alone"]] == ["FedAvg-FT, zeros"], MEAN["boosting alone"] > MEAN[LOGISTIC]),
    ("by less than a point, and it sends as much", 0 < MEAN["FedAvg-FT, zeros"] - MEAN["boosting alone"] < 1, SENT["FedAvg-FT, zeros"] > SENT["FedAvg"]),
    ("such as HyFEM", SENT["HyFEM"] > 2 * SENT[ZEROS], MEAN["HyFEM"] < MEAN[LOGISTIC]),
    # who gains
    ("Long Beach, gains most with all three methods", extreme("heart, all", "idxmax"), of(LOGISTIC, "heart, all")["n_train"].idxmin() == "Long Beach"),
    ("the second laboratory, gains least with all three", *(extreme(case, "idxmin") for case in THYROID), of(LOGISTIC, THYROID[0])["n_train"].idxmin() == "second laboratory", set(BEST) == {*MEAN.nlargest(3).index}),
    # the advice
    ("Only in one of the six cases does it lie within one point of the best", (JUDGED["regret"] <= 1).sum() == 1, len(JUDGED) == 6),
    ("it lost against the network alone in two of six cases", LOST == 2),
    ("in two it loses against a network alone, once by {:.0f} points", -JUDGED["gain"].min(), LOST == 2),
    ("Logistic regression, its first step, gains in all six", GAINS.loc[LOGISTIC].min() > 0),
    # what was tried
    ("it stands, in balanced accuracy", NEW.min() > 3),
    ("no gain in AUC is sure, and in accuracy it loses in all four cases", (CELLS["auc"].query("method == @ZEROS and federation != 'thyroid'")["low"] < 0).all(), (GAINS_OF["accuracy"].loc[ZEROS, FIRST] < 0).all(), len(FIRST) == 4),
    ("{:.1f} points are left in the mean of the cases, instead of {:.1f}", SHARES.mean(), GAINS.loc[ZEROS, FIRST].mean()),
    ("and is tenth in the mean of all six cases", (MEAN[ZEROS] < MEAN).sum() == 9),
    ("intervals for eleven methods in six cases", len(OWN) == 11),
    ("{} of the {} exclude zero, and both say that the exchange does harm", len(HARM), len(OWN_ROWS), (HARM["gain_sharing"] < 0).all()),
    ("most leave room for two points either way", ((OWN_ROWS["high_sharing"] - OWN_ROWS["low_sharing"]) / 2).median() > 2),
    ("it stands, still {:.1f}", 0.0, exchanged("FLIC-Class", "weight 1").abs().max() < 0.05),
    ("by more than five points in all cases", exchanged("FedHeNN", "weight 10").max() < -5),
    ("the mean effect of its exchange is positive in all cases", SHARING.loc["Fed-CMA"].min() > 0, MEAN["Fed-CMA"] < 0),
    ("{} federated methods in six cases", len(TOGETHER)),
    ("ahead in {} of {} in balanced accuracy", behind(TABLE), 6 * len(TOGETHER)),
    ("to {} of {} in AUC and {} in accuracy", behind(CELLS["auc"]), 6 * len(TOGETHER), behind(CELLS["accuracy"])),
    # the box
    ("only three of the sixteen federations", len(RUN) == 3, len(FEDERATIONS) == 16),
    ("most methods beat a small network alone in the mean, even some that share nothing", (GAINS[[c for c in GAINS if c.endswith("tenth")]].mean(axis=1) > 0).mean() > 0.7, GAINS.loc[LOGISTIC, [c for c in GAINS if c.endswith("tenth")]].mean() > 0),
    ("between one and nine points of it are gone", min(last_step(m)[FIRST].min() for m in SHARED) > 1, 8 < max(last_step(m)[FIRST].max() for m in SHARED) < 9),
]  # fmt: skip

GIVEN = (
    "two clinics with 30 and 40 of 100 patients ill",
    "gains five points over training alone and five over",
    "A method gains three points over training alone. The same method with nothing exchanged gains four",
    "gains 4, 1 and −2 points, and method B gains 1, 2 and 2",
    "about 1.7 for B",
    "the means are −0.5 and 2",
    "the regret is 3 points",
    "the median is 22.5",
    "0 % means first on every federation and 100 % means last",
    "suppose that a method gains two points over training alone. If a federation of one gains two points as well",
    "all five points come from sharing",
    "three of four patients are ill",
)
"""Made-up examples."""
