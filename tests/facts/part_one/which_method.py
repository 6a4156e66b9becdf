"""What the page on the head to head says."""

import pandas as pd
from scipy import stats

from facts import Fact
from hetfl_book.headtohead import across, guide, portraits, ranking, tried
from hetfl_book.headtohead.entries import MOST, RATES, entries, settings_in
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_core.statistics import holm

FOUND = ranking.finals()
TABLE = ranking.cells(FOUND)
GAINS, SHARING = guide.cases(TABLE), guide.cases(TABLE, "gain_sharing")
MEAN, BY_SHARING = GAINS.mean(axis=1), SHARING.mean(axis=1)
STAYING = ranking.best_alone()
"""The best way to stay alone by federation and size, from which the guide counts."""

POINTS = guide.cases(TABLE, "gain_alone", ["together"])
"""Over the best way to stay alone, of the methods that exchange something."""

LEAVES = portraits.leaves()
ADVICE = guide.guide(POINTS, LEAVES)
RUN = list(dict.fromkeys(TABLE["federation"]))
ZEROS, LOGISTIC, NETWORK = "FedAvg, zeros", "logistic regression alone", "network alone"
OWN = [name for name, line in entries().items() if line.exchanges and line.view == "own"]
"""Methods that leave each site a network of its own."""

SENT = TABLE.groupby("method")["sent"].mean()
JUDGED = guide.left_out(POINTS, LEAVES, {case: case.split(",")[0] for case in POINTS})
LINES = TABLE[(TABLE["way"] != "one place") & ~TABLE["method"].str.endswith("own last step")]
VALUES = {size: across.scores(LINES, size) for size in ("all", "tenth")}
EACH = ranking.client_gains(FOUND).query("counts").sort_index()


def of(method: str, where: str) -> pd.DataFrame:
    """A method's clients in a case such as "heart, all"."""
    name, size = where.split(", ")
    return EACH.loc[(name, size, method)]


TOGETHER = [name for name, line in entries().items() if line.exchanges]
CELLS = {measure: ranking.cells(FOUND, measure) for measure in ("auc", "accuracy")}
GAINS_OF = {measure: guide.cases(table) for measure, table in CELLS.items()}
TRIED = tried.tried()


def rate(where: str, method: str) -> float:
    """The learning rate that was chosen."""
    return float(CHOSEN[(*where.split(", "), method)]["lr"])


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

EXCHANGES = TABLE[TABLE["method"].isin(TOGETHER)]
"""Rows whose method was also run with nothing exchanged."""

SHARED = ("FedAvg", ZEROS, "late fusion", "LASER-VFL")
BEST = "FedAvg-FT, zeros"
TENTHS = [case for case in GAINS if case.endswith("tenth")]
ALL_ROWS = [case for case in GAINS if case.endswith("all")]


def sure(rows: pd.DataFrame, what: str) -> pd.DataFrame:
    """What excludes zero after Holm's correction for all of these rows."""
    return rows[[p <= 0.05 for p in holm(rows[f"p{what}"].fillna(1).tolist())]]


OVER = ranking.client_gains(FOUND, base=STAYING).query("counts and method == @BEST").reset_index()
"""What each site gains by the federated method with the highest mean over the best way to stay alone."""

SITES = OVER.pivot(index=["federation", "client"], columns="size", values="gain")
LEAD = JUDGED["gain"]
"""By how much the guide's candidate is ahead of the best way to stay alone where it had not seen the federation."""

NEEDED = {need: guide.limited(POINTS, holds) for need, holds in guide.LIMITS.items()}
CHOSEN = ranking.choices().set_index(["federation", "size", "method"])["chosen"]
RECIPE = GAINS - SHARING
ALL = ranking.board({"": TABLE[TABLE["way"] != "one place"]}).query("size == 'all' and kind == @ranking.EVERY")
PLACED = ALL.set_index("method")
POOLED = {
    measure: table.query("method == 'in one place, zeros'")["gain_alone"].mean()
    for measure, table in {"balanced": TABLE, **CELLS}.items()
}
LIKE = portraits.portraits().set_index(["federation", "size"])


def own_share(method: str, what: str = "finals") -> pd.Series:
    """Means over seeds where each site puts its threshold at its own share of the classes."""
    return trial(method, what, score="at_own_share")


MOVED = {method: (own_share(method) - trial(method, "finals")).mean() for method in (NETWORK, LOGISTIC)}
"""What a moved threshold gives to those that learn alone."""

AHEAD = [(own_share(LOGISTIC) - own_share(method, "own step")).mean() for method in SHARED]
FREE = TRIED[TRIED["tried"] == "anchors free to move"].groupby(["what", "federation"])["balanced_accuracy"].mean()

NONE_AHEAD = [(sure(rows, "_alone")["gain_alone"] < 0).all() for rows in MET.values()]
"""Whether, in each measure, all that is shown against the best way to stay alone is that it is ahead."""

WORSE = sure(MET["balanced"], "_alone")


def needed(rows: pd.DataFrame) -> pd.Series:
    """Gains over staying alone that Holm's correction would let pass beside what is shown: medians by case."""
    degrees = rows["seeds"] - 1
    wider = stats.t.isf(0.025 / (len(rows) - len(WORSE)), degrees) / stats.t.isf(0.025, degrees)
    half = wider * (rows["high_alone"] - rows["low_alone"]) / 2
    return half.groupby(rows["federation"] + ", " + rows["size"]).median().sort_values()


NEEDS = needed(MET["balanced"])
FEW_ROWS, MANY_ROWS = (f"some inputs common to all, {rows} rows" for rows in ("few", "many"))
ORDER = guide.cases(CELLS["auc"], "gain_alone").mean(axis=1)
BEST_ALONE = -guide.cases(TABLE, "gain_alone").loc[NETWORK].mean()
"""Mean gain of the best way to stay alone over a network alone."""

FACTS: list[Fact] = [
    # the lead
    ("on three federations of tables", RUN == ["heart", "liver", "thyroid"], all(FEDERATIONS[name].kind == "tables" for name in RUN)),
    ("no way of learning together is shown to beat the best way to stay alone", len(MET) == 3, *NONE_AHEAD, all(rows["p_alone"].notna().all() for rows in MET.values())),
    ("names the method that came nearest to it", {*ADVICE} == {MANY_ROWS, FEW_ROWS}, *(one.mean < 0 for one in ADVICE.values())),
    ("It is boosting on the thyroid tables, a network in the clinics with all rows, and elsewhere logistic regression", {case for case, way in STAYING.items() if way == "boosting alone"} == {("thyroid", "all"), ("thyroid", "tenth")}, [case for case, way in STAYING.items() if way == NETWORK] == [("liver", "all")], [*STAYING.values()].count(LOGISTIC) == 3),
    ("No method that exchanges something is shown to be better than it in any of three measures", *NONE_AHEAD),
    ("all {} differences of a measure", len(MET["balanced"]), len({len(rows) for rows in MET.values()}) == 1),
    ("In balanced accuracy a typical gain had to reach {:.0f} points in one case, and {:.0f} to {:.0f} in the other five, to be shown", *NEEDS.iloc[[0, 1, -1]], len(NEEDS) == 6),
    ("each tuned among at most twelve settings", MOST == 12, all(settings_in(line.grid) <= MOST for line in entries().values())),
    ("these are twelve penalties, and all sites take the same one", settings_in(entries()[LOGISTIC].grid) == 12, *({*CHOSEN[(*case.split(", "), LOGISTIC)]} == {"logisticregression__C"} for case in GAINS), "standardscaler" in entries()[LOGISTIC].method.estimator.named_steps),
    ("In balanced accuracy {} of them show a method to be worse, {} on the thyroid tables", len(WORSE), (WORSE["federation"] == "thyroid").sum(), (WORSE["gain_alone"] < 0).all()),
    ("The case of {:.0f} points is the hospitals with all their rows", NEEDS.iloc[0], NEEDS.index[0] == "heart, all"),
    ("13 or 10, and all share 8 | {}", LIKE["train"]["heart", "all"]),
    ("10 and 12, and both share 8 | {}", LIKE["train"]["liver", "all"]),
    ("21 or 22, the laboratory 5, and all share 2 | {}", LIKE["train"]["thyroid", "all"]),
    ("so four of the six leaves have no runs yet", len(guide.LEAVES) - len(ADVICE) == 4, len(GAINS.columns) == 6),
    ("no method has a mean above it over all cases", ORDER.max() < 0, len(ORDER) == 38),
    ("In all of them the answers are *no* and then *yes*", all(leaf.startswith("some inputs common") for leaf in ADVICE)),
    ("With three fifths for training, the median of the eight counts is {:.1f} rows", LIKE["rows"]["heart", "all"], abs(LIKE["train"]["heart", "all"] / (LIKE["train"] + LIKE["test"])["heart", "all"] - 0.6) < 0.01, LIKE["clients"]["heart", "all"] * LIKE["classes"]["heart", "all"] == 8),
    ("The leaf for few rows names FedPAC, which sends class means", ADVICE[FEW_ROWS].method == "FedPAC"),
    ("FedPAC cannot run on sums", bool(entries()["FedPAC"].method.needs_uploads), not entries()[BEST].method.needs_uploads),
    ("FedAvg with zeros that each site fine-tunes (−{:.1f} points on average instead of −{:.1f})", -POINTS.loc[BEST, TENTHS].mean(), -POINTS.loc["FedPAC", TENTHS].mean()),
    ("The leaf for many rows names this method too, although it loses {:.1f} points on the thyroid", -POINTS.loc[BEST, "thyroid, all"], ADVICE[MANY_ROWS].method == BEST),
    ("None of the three reaches the best way to stay alone", len(NEEDED) == 3, all(one.mean < 0 for one in NEEDED.values())),
    ("fine-tunes has a higher mean, but it answers none of these needs", all(one.mean < POINTS.loc[BEST].mean() and one.method != BEST for one in NEEDED.values())),
    # the list
    ("Of its {} rows {} are methods that exchange something, seven are", len(ALL), len(TOGETHER), ALL["method"].str.endswith("own last step").sum() == 7, len(ALL) - len(TOGETHER) - 7 == 3),
    ("boosting has the highest mean, which it owes to the thyroid, and by rank it is thirteenth", PLACED["gain"].idxmax() == "boosting alone", PLACED["rank"].rank()["boosting alone"] == 13, GAINS.loc["boosting alone", ["heart, all", "liver, all"]].max() < 2),
    ("it lies, with zeros, {:.1f} points below the best way to stay alone in AUC, and level with it in balanced accuracy", -POOLED["auc"], abs(POOLED["balanced"]) < 0.05),
    ("so we end at the leaf for many rows", LEAVES["heart, all"] == "some inputs common to all, many rows"),
    # the control
    ("No dot lies beyond the dashed line", max(MEAN[m] for m in TOGETHER) < BEST_ALONE),
    ("On average over our six cases, late fusion gains about three points", 2.5 < BY_SHARING["late fusion"] < 3.5, GAINS.shape[1] == 6),
    ("FedAvg gains five points and more that way in the hospitals and in the clinics when all rows are there", SHARING.loc["FedAvg", ["heart, all", "liver, all"]].min() > 5),
    ("it loses more than ten on the thyroid tables", SHARING.loc["FedAvg", "thyroid, all"] < -10, SHARING.loc["FedAvg", "thyroid, tenth"] < -6),
    ("for all {} comparisons of this kind not one of these differences is certain", len(EXCHANGES), sure(EXCHANGES, "_sharing").empty),
    ("Why does it gain six points over one", abs(RECIPE.loc[ZEROS].mean() - 6) < 0.5),
    ("with a tenth of the rows the network alone took the smallest learning rate everywhere", all(rate(case, NETWORK) == min(RATES) for case in TENTHS)),
    ("its learning rate is fifty times larger. With it a site that shares nothing gains {:.0f} points", RECIPE.loc[ZEROS, "thyroid, tenth"], abs(rate("thyroid, tenth", ZEROS) / rate("thyroid, tenth", NETWORK) - 50) < 5),
    ("What ten of them exchange brings at most a quarter of a point on average", len(OWN) == 11, [n for n in OWN if BY_SHARING[n] > 0.25] == ["Fed-CMA"]),
    ("takes {:.1f} points from FedCR with own embeddings and {:.1f} from FLIC-HL", -BY_SHARING["FedCR, own embeddings"], -BY_SHARING["FLIC-HL"], sum(BY_SHARING[n] < -1 for n in OWN) == 2),
    ("gains three points by it, but its recipe costs nine, so it ends six behind", abs(BY_SHARING["Fed-CMA"] - 3) < 0.5, abs(RECIPE.loc["Fed-CMA"].mean() + 9) < 0.5, abs(MEAN["Fed-CMA"] + 6) < 0.5),
    ("when we let them move freely, the exchange still brought nothing", (FREE["finals"] - FREE["apart"]).abs().max() < 0.003),
    ("FLIC-Class, for example, gains two points over training alone", 1.5 < MEAN["FLIC-Class"] < 2.5, SHARING.loc["FLIC-Class"].abs().max() < 0.1),
    # where
    ("agree that FedAvg with zeros and late fusion are among the best", all({ZEROS, "late fusion"} <= {*GAINS[case].nlargest(4).index} for case in FIRST)),
    ("FedAvg with zeros lies {:.0f} points below a network alone there", -GAINS.loc[ZEROS, "thyroid, all"]),
    ("lies {:.0f} points above it", GAINS.loc["boosting alone", "thyroid, all"]),
    # ranks
    ("between 31 methods on only three federations", all(v.shape == (3, 31) for v in VALUES.values())),
    # cost
    ("Only FedAvg with zeros and fine-tuning lies above both, by less than a point over boosting, and it sends", [m for m in MEAN.index if MEAN[m] > MEAN["boosting alone"]] == [BEST], MEAN["boosting alone"] > MEAN[LOGISTIC], 0 < MEAN[BEST] - MEAN["boosting alone"] < 1, SENT[BEST] > SENT["FedAvg"]),
    ("The best way to stay alone sends nothing, and its mean is {:.1f} points higher", BEST_ALONE - MEAN[BEST]),
    # who gains
    ("gains more than with all of them four times, and less four times", (SITES["tenth"] > SITES["all"]).sum() == 4, SITES.shape == (8, 2), POINTS.mean(axis=1).idxmax() == BEST),
    ("All intervals include zero", ((OVER["low"] > 0) | (OVER["high"] < 0)).sum() == 0, len(OVER) == 16),
    # the advice
    ("within one point of the best method in one of the six cases", (JUDGED["regret"] <= 1).sum() == 1, len(JUDGED) == 6),
    ("ahead of staying alone twice, by {:.1f} and {:.1f} points, and behind it four times, by 1 to 31 points", *LEAD[LEAD > 0].sort_values(), (LEAD < 0).sum() == 4, LEAD.min().round() == -31, LEAD[LEAD < 0].max().round() == -1),
    ("On the thyroid tables no method is ahead of it", POINTS[[case for case in POINTS if case.startswith("thyroid")]].max(axis=None) < 0),
    ("On average neither reached it", POINTS.loc[BEST, ALL_ROWS].mean() < 0, POINTS.loc[BEST, TENTHS].mean() < 0, *(one.mean < 0 for one in ADVICE.values())),
    # what was tried
    ("it stands, in balanced accuracy", NEW.min() > 3),
    ("no gain in AUC is sure, and in accuracy it loses in all four cases", (CELLS["auc"].query("method == @ZEROS and federation != 'thyroid'")["low"] < 0).all(), (GAINS_OF["accuracy"].loc[ZEROS, FIRST] < 0).all(), len(FIRST) == 4),
    ("{:.1f} points are left on average over the cases, instead of {:.1f}", SHARES.mean(), GAINS.loc[ZEROS, FIRST].mean()),
    ("and is tenth on average over all six cases", (MEAN[ZEROS] < MEAN).sum() == 9),
    ("intervals for eleven methods in six cases", len(OWN) == 11),
    ("{} of the {} exclude zero, and both say that the exchange does harm", len(HARM), len(OWN_ROWS), (HARM["gain_sharing"] < 0).all()),
    ("most leave room for two points either way", ((OWN_ROWS["high_sharing"] - OWN_ROWS["low_sharing"]) / 2).median() > 2),
    ("it stands, still {:.1f}", 0.0, exchanged("FLIC-Class", "weight 1").abs().max() < 0.05),
    ("by more than five points in all cases", exchanged("FedHeNN", "weight 10").max() < -5),
    ("on average ahead of all four, by {:.1f} to {:.1f} points", min(AHEAD), max(AHEAD), len(AHEAD) == 4),
    ("this gives the network alone {:.1f} points, and logistic regression {:.1f}", MOVED[NETWORK], MOVED[LOGISTIC]),
    ("{} federated methods in six cases", len(TOGETHER)),
    ("ahead in {} of {} in balanced accuracy", behind(TABLE), 6 * len(TOGETHER)),
    ("to {} of {} in AUC and {} in accuracy", behind(CELLS["auc"]), 6 * len(TOGETHER), behind(CELLS["accuracy"])),
    # the box
    ("logistic regression is {:.1f} points of balanced accuracy ahead of it", GAINS.loc[LOGISTIC, "liver, all"], STAYING["liver", "all"] == NETWORK),
    ("only three of the sixteen federations that the benchmark plans", len(RUN) == 3, len(FEDERATIONS) == 16),
    ("most methods beat a small network alone on average", (GAINS[[c for c in GAINS if c.endswith("tenth")]].mean(axis=1) > 0).mean() > 0.7, GAINS.loc[LOGISTIC, [c for c in GAINS if c.endswith("tenth")]].mean() > 0),
]  # fmt: skip

GIVEN = (
    "two clinics with 30 and 40 of 100 patients ill",
    "A method gains three points over training alone. The same method with nothing exchanged gains four",
    "gains 4, 1 and −2 points, and method B gains 1, 2 and 2",
    "about 1.7 for B",
    "the means are −0.5 and 2",
    "the regret is 3 points",
    "the median is 22.5",
    "0 % means first on every federation and 100 % means last",
    "suppose that a method gains two points over training alone. If a federation of one gains two points as well",
    "three of four patients are ill",
)
"""Made-up examples."""
