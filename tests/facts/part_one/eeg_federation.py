"""What the chapter on a federation of many caps says, and how each number comes about."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd

from facts import Fact, half, unclear
from hetfl_book import report
from hetfl_book.ledger import comparison
from hetfl_book.papers import eeg

FORTY, CAPS = "common40", "simulated54"
ALONE = ("LDA", "LR", "SVM", "MDM")


@cache
def stored(source: str) -> pd.DataFrame:
    """The stored results of a federation's people, for each number of trials."""
    rows = comparison.curve(eeg.curve(source))
    return rows.assign(n=rows["n"].astype(str))


@cache
def late() -> pd.DataFrame:
    """Those of newcomers."""
    rows = comparison.table(report.records("eeg/newcomers-common40"))
    return rows.assign(n=rows["n"].astype(str))


def minus(a: str, b: str, source: str = FORTY, n: str = "all") -> Any:
    """A less b over people."""
    rows = stored(source)
    return next(comparison.paired_differences(rows[rows["n"] == n], a, b, by=["n"]).itertuples())


def level(method: str, n: str, rows: pd.DataFrame | None = None) -> float:
    """Mean over people."""
    found = comparison.means(stored(FORTY) if rows is None else rows, ["n"]).set_index(["method", "n"])
    return float(found.loc[(method, n), "mean"])


def without_labels(n: str) -> Any:
    """The LDA of the others without a label of the newcomer, less LDA alone with n trials."""
    rows = late()
    others = rows[(rows["method"] == "Pooled LDA") & (rows["n"] == "0")]
    mine = rows[(rows["method"] == "LDA") & (rows["n"] == n)]
    return next(comparison.paired_differences(pd.concat([others, mine]), "Pooled LDA", "LDA", by=[]).itertuples())


def best_alone(source: str) -> str:
    return str(comparison.best(stored(source).query("n == 'all'"), ALONE)["method"].iloc[0])


def of_the_real(condition: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A condition on what the page computed, where it has the eight people."""
    return lambda page: page["real"] is None or condition(page)


def spread(page: Any) -> bool:
    """Whether people of a row lie further apart than the means of rows."""
    rows = pd.DataFrame(page["right"])
    return bool((rows.max() - rows.min()).min() > 20) and bool(rows.mean().max() - rows.mean().min() < 8)


def corrected(source: str) -> pd.DataFrame:
    """All methods less the best alone, after Holm's correction."""
    rows, best = stored(source).query("n == 'all'"), best_alone(source)
    others = [m for m in rows["method"].unique() if m != best]
    found = [comparison.paired_differences(rows, m, best, by=["n"]) for m in others]
    return comparison.with_verdicts(pd.concat(found)).set_index("a")


flic, behind = minus("FLIC-HL", "LR"), minus("FLIC-HL", "MDM", CAPS)
itself = [minus("FLIC-HL", "Local", source) for source in (FORTY, CAPS)]
pooled = minus("Pooled LDA", "MDM", CAPS)
ten = {m: minus("FLIC-HL", m, CAPS, "10") for m in ("Local", "LR", "MDM")}
chosen = minus("FLIC-HL", "Best by cross-validation")
longer = minus("FedRep, 100 epochs", "MDM", n="30")

FACTS: list[Fact] = [
    ("For 40 real people we have features at three common electrodes, and we cannot tell", unclear(flic)),
    ("{:.1f} points below logistic regression, give or take {:.1f}. Other people's trials help most", -flic.mean, half(flic)),
    ("A classifier built from them is right on {:.1f} % of a newcomer's trials before", level("Pooled LDA", "0", late())),
    # eight people
    ("Seven were recorded at RIKEN with 5 or 6 electrodes, one elsewhere with 64", of_the_real(lambda page: sorted({c.shapes[0] for c in page["own"]}) == [15, 21, 2080])),
    ("each person sends {} numbers, whatever", lambda page: sum(w.numel() for w in page["after"].server.values()) if page["real"] else 18),
    ("Each person has only 12 to 40 test trials", of_the_real(lambda page: {12, 40} == {min(c.n_test for c in page["own"]), max(c.n_test for c in page["own"])})),
    ("Each row is spread over more than 20 points, while the means of the rows differ by less than eight", of_the_real(spread)),
    ("Every row reaches from about 70 per cent or less to 85 and more", of_the_real(lambda page: all(r.min() < 71 and r.max() > 85 for _, r in pd.DataFrame(page["right"]).items()))),
    ("But all four work, and none stands out", of_the_real(lambda page: pd.DataFrame(page["right"]).mean().min() > 65)),
    ("fitted to 30 trials", of_the_real(lambda page: min(c.n_train for c in page["own"]) == 30)),
    # the others' advice
    ("With plain covariances the others' classifier is a coin toss for nearly everybody", of_the_real(lambda page: sum(45 < x < 55 for x in page["advice"]["plain covariances"].values()) >= 7)),
    ("Re-centred, it is right on about two trials in three", of_the_real(lambda page: 63 < pd.Series(page["advice"]["re-centred"]).mean() < 71)),
    ("One person was better off with plain covariances", of_the_real(lambda page: sum(page["advice"]["plain covariances"][c] > x for c, x in page["advice"]["re-centred"].items()) == 1)),
    ("With plain covariances most people stand at one half, as by a coin. Re-centred, most stand clearly above that", of_the_real(lambda page: sum(x > 57 for x in page["advice"]["re-centred"].values()) >= 6)),
    # forty people, and the simulated ones
    ("That is logistic regression for the 40 and MDM for the simulated people", best_alone(FORTY) == "LR", best_alone(CAPS) == "MDM"),
    ("FLIC is {:.1f} points below logistic regression, give or take {:.1f}, so it may be slightly better or clearly worse", -flic.mean, half(flic), flic.high > 1, flic.low < -3),
    ("On simulated EEG it is clearly worse, by {:.1f} points", -behind.mean, behind.high < 0),
    ("FLIC is {:.1f} points ahead of the same network alone on the real people and {:.1f} behind on the simulated ones, and after a correction neither can be told from nothing", itself[0].mean, -itself[1].mean, unclear(*itself)),
    ("is {:.1f} points from MDM, although LDA alone is {:.1f} behind", abs(pooled.mean), -minus("LDA", "MDM", CAPS).mean, unclear(pooled), minus("LDA", "MDM", CAPS).high < 0),
    ("On 40 real people all four lie below zero by one to three points, and only own maps with one layer exclude zero", minus("HetFedRep", "LR").high < 0, unclear(flic, minus("Local", "LR"), minus("Pooled LDA", "LR")), all(0.9 < -minus(m, "LR").mean < 3.5 for m in ("FLIC-HL", "HetFedRep", "Local", "Pooled LDA"))),
    ("On simulated people three lie more than five points below zero and exclude it, and one LDA on re-centred trials lies at zero", all(minus(m, "MDM", CAPS).mean < -5 and minus(m, "MDM", CAPS).high < 0 for m in ("FLIC-HL", "HetFedRep", "Local")), abs(pooled.mean) < 0.5),
    ("FLIC sends {} numbers in a round", 5 * 64 + 64 * 100 + 100),
    # few trials
    ("MDM alone is right on {:.1f} % of the real people's trials, FLIC on {:.1f} % and the re-centred LDA of all on {:.1f} %", *(level(m, "10") for m in ("MDM", "FLIC-HL", "Pooled LDA"))),
    ("FLIC is behind MDM there, before any correction, and the last two cannot be told apart", minus("FLIC-HL", "MDM", n="10").high < 0, unclear(minus("FLIC-HL", "Pooled LDA", n="10"))),
    ("by {:.1f} points, and of logistic regression by {:.1f}, but MDM is still {:.1f} points better", ten["Local"].mean, ten["LR"].mean, -ten["MDM"].mean, ten["Local"].low > 0, ten["LR"].low > 0, ten["MDM"].high < 0),
    # newcomers
    ("the others' LDA is right on {:.1f} % of a newcomer's trials. LDA alone reaches {:.1f} % with ten trials and {:.1f} % with forty", level("Pooled LDA", "0", late()), level("LDA", "10", late()), level("LDA", "40", late())),
    ("the difference of {:.1f} points, give or take {:.1f}, is just too uncertain to call", without_labels("10").mean, half(without_labels("10")), -1 < without_labels("10").low < 0),
    ("On the same trials LDA alone has overtaken the others with twenty labels", level("LDA", "10", late()) < level("Pooled LDA", "10", late()), level("LDA", "20", late()) > level("Pooled LDA", "20", late())),
    ("With all trials the newcomer has overtaken the others' advice", level("LDA", "all", late()) > level("Pooled LDA", "0", late())),
    ("starts at {:.0f} per cent without any labelled trial and hardly changes. LDA alone rises from {:.0f} per cent with ten trials to {:.0f} with all. FLIC rises from {:.0f} to {:.0f}", level("Pooled LDA", "0", late()), level("LDA", "10", late()), level("LDA", "all", late()), level("FLIC-HL", "10", late()), level("FLIC-HL", "all", late())),
    ("no federation was better", all(not minus(m, "LR", n=n).low > 0 for m in eeg.FEDERATED for n in ("60", "120", "all"))),
    ("about as good as the same network alone", unclear(*itself)),
    # exercises, the box, last words
    ("FLIC is below logistic regression by {:.1f} points, give or take {:.1f}. What do we know", -flic.mean, half(flic)),
    ("If each person picks by cross-validation instead, we still see no difference from FLIC", unclear(chosen)),
    ("Intervals are over people, each the mean of five seeds, and newcomers have one run each", flic.n_seeds == 5, behind.n_seeds == 5, late().groupby(["method", "client"])["seed"].nunique().max() == 1),
    ("After Holm's correction nothing on the 40 people is left, and on the simulated ones FLIC is still behind MDM", bool((corrected(FORTY)["verdict_holm"] == "open").all()), corrected(CAPS).loc["FLIC-HL", "verdict_holm"] == "MDM"),
    ("gets ahead of MDM with 30 trials, by {:.1f} points", longer.mean, longer.low > 0),
    ("On 40 real people with common electrodes we cannot tell, and on simulated caps it does not", unclear(flic), behind.high < 0),
]  # fmt: skip

GIVEN: tuple[str, ...] = ()
