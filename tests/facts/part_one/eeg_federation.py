"""What the chapter on a federation of many caps says, and how each number comes about."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd
import torch

from facts import Fact, half, unclear
from hetfl_book import report
from hetfl_book.ledger import comparison
from hetfl_book.papers import eeg
from hetfl_core.datasets.recordings import TABLE_S1

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


NO_LABEL = "LDA of the others without a label"


@cache
def without_labels() -> pd.DataFrame:
    """The LDA of the others without a label of the newcomer, less every other answer, corrected for all of them."""
    rows = late()
    mine = (rows["method"] == "Pooled LDA") & (rows["n"] == "0")
    others = rows[~mine].assign(method=rows["method"] + " " + rows["n"])
    every = pd.concat([rows[mine].assign(method=NO_LABEL), others])
    found = [comparison.paired_differences(every, NO_LABEL, m, by=[]) for m in others["method"].unique()]
    return comparison.with_verdicts(pd.concat(found)).set_index("b")


def ahead_of_lda(n: str) -> Any:
    """That LDA less LDA alone with n labels."""
    return without_labels().loc[f"LDA {n}"]


def best_alone(source: str) -> str:
    return str(comparison.best(stored(source).query("n == 'all'"), ALONE)["method"].iloc[0])


def of_the_real(condition: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A condition on what the page computed, where it has the eight people."""
    return lambda page: page["real"] is None or condition(page)


def fewer_helped_most(page: Any) -> bool:
    """Whether the median of an LDA alone gains more by fewer electrodes than by either way to share."""
    middle = pd.DataFrame(page["right"]).median()
    own, fewer = middle["alone, own cap"], middle["alone, common electrodes"]
    maps, pooled = middle["own maps, one head"], middle["common electrodes, re-centred, one LDA"]
    return bool(fewer - own > max(maps - own, pooled - fewer))


def logarithm_does_as_well(page: Any) -> bool:
    """Whether the others' LDA of entries of the covariances' logarithms is level with that of tangent vectors."""

    def logarithms(x: torch.Tensor) -> torch.Tensor:
        q = math.isqrt(2 * x.shape[1])
        rows, columns = torch.triu_indices(q, q)
        matrices = x.new_zeros(len(x), q, q)
        matrices[:, rows, columns] = matrices[:, columns, rows] = x
        values, vectors = torch.linalg.eigh(matrices)
        return (vectors * values.log()[:, None] @ vectors.mT)[:, rows, columns]

    seen = [
        replace(client, x_train=logarithms(client.x_train), x_test=logarithms(client.x_test))
        for client in page["plain"].to(torch.float64)
    ]
    change = pd.Series(page["taught_by"](seen, others=True)) - pd.Series(page["advice"]["the others' LDA, re-centred"])
    _, low, high = comparison.interval(change.to_numpy())
    return bool(abs(change.mean()) < 1 and low < 0 < high)


def median(row: str, real: float) -> Callable[[Any], float]:
    """Of a row of the eight people, where the page has them."""
    return lambda page: float(pd.Series(page["right"][row]).median()) if page["real"] else real


def guessing() -> float:
    """How many trials of the simulated people a guess names correctly, in per cent."""
    people = TABLE_S1.values()
    return 100 * sum(of.n_subjects / len(of.classes) for of in people) / sum(of.n_subjects for of in people)


def no_other_ahead() -> bool:
    """Whether no federation of usual length on the 40 people is ahead of MDM."""
    return not any(minus(m, "MDM", n=n).low > 0 for n in ("10", "20", "30", "60", "120", "all") for m in eeg.FEDERATED)


@cache
def corrected(source: str, opponent: str, n: str = "all") -> pd.DataFrame:
    """All methods less one, after Holm's correction."""
    rows = stored(source)
    rows = rows[rows["n"] == n]
    others = [m for m in rows["method"].unique() if m != opponent]
    found = [comparison.paired_differences(rows, m, opponent, by=["n"]) for m in others]
    return comparison.with_verdicts(pd.concat(found)).set_index("a")


def only_over_lda() -> bool:
    """Whether a correction leaves the lead of the pooled LDA over LDA alone, and neither verdict against MDM."""
    over_lda, over_mdm = (corrected(FORTY, m, "10")["verdict_holm"] for m in ("LDA", "MDM"))
    return bool(over_lda["Pooled LDA"] == "Pooled LDA" and (over_mdm[["Pooled LDA", "FLIC-HL"]] == "open").all())


def share_of_trials(data_set: str) -> float:
    """Of the training trials of the 40 people."""
    rows = stored(FORTY).query("n == 'all' and method == 'LDA' and seed == 0")
    return float(rows.query("data_set == @data_set")["n_train"].sum() / rows["n_train"].sum())


flic, behind = minus("FLIC-HL", "LR"), minus("FLIC-HL", "MDM", CAPS)
itself = [minus("FLIC-HL", "Local", source) for source in (FORTY, CAPS)]
pooled = minus("Pooled LDA", "MDM", CAPS)
ten = {m: minus("FLIC-HL", m, CAPS, "10") for m in ("Local", "MDM")}
chosen = minus("FLIC-HL", "Best by cross-validation")
real_ten = {m: minus(m, "MDM", n="10") for m in ("FLIC-HL", "Pooled LDA")}
over_lda = {source: minus("Pooled LDA", "LDA", source, "10") for source in (FORTY, CAPS)}
on_caps = minus("Pooled LDA", "LDA", CAPS)
on_forty = minus("Pooled LDA", "LR")
longer = minus("FedRep, 100 epochs", "MDM", n="30")
anchors = minus("FLIC-Class, 100 epochs", "FLIC-Class", n="30")
of_this_kind = [minus(f"{m}, 100 epochs", "MDM", n=n) for m in ("Local", "FLIC-Class", "FedRep") for n in ("10", "30")]

FACTS: list[Fact] = [
    ("a small classifier built from people who imagined the same movements is right on {:.1f} % of a newcomer's trials, where guessing", level("Pooled LDA", "0", late())),
    ("Of the network FLIC we cannot tell, because on 40 real people it is {:.1f} points below logistic regression, give or take {:.1f}", -flic.mean, half(flic), unclear(flic)),
    # eight people
    ("Seven were recorded at RIKEN with 5 or 6 electrodes, one elsewhere with 64", of_the_real(lambda page: sorted({c.shapes[0] for c in page["own"]}) == [15, 21, 2080])),
    ("each person sends {} numbers, whatever", lambda page: sum(w.numel() for w in page["after"].server.values()) if page["real"] else 18),
    ("Each person has only 12 to 40 test trials", of_the_real(lambda page: {12, 40} == {min(c.n_test for c in page["own"]), max(c.n_test for c in page["own"])})),
    ("a single dot near 80 % may be off by {:.0f} to {:.0f} points", *(196 * (0.8 * 0.2 / trials) ** 0.5 for trials in (40, 12))),
    ("LDA there had the highest median of our eight people", of_the_real(lambda page: pd.DataFrame(page["right"]).median().idxmax() == "alone, common electrodes")),
    ("LDA alone has a median of {:.1f} % and one LDA for all {:.1f} %, so here the others' trials are no gain", median("alone, common electrodes", 85.4), median("common electrodes, re-centred, one LDA", 72.5)),
    ("With the own cap LDA has {:.1f} % and own maps with one head {:.1f} %", median("alone, own cap", 75.9), median("own maps, one head", 80.9)),
    ("So leaving electrodes out helped more than anything that was shared", of_the_real(fewer_helped_most)),
    ("Every row reaches from about 70 per cent or less to 85 and more", of_the_real(lambda page: all(r.min() < 71 and r.max() > 85 for _, r in pd.DataFrame(page["right"]).items()))),
    ("fitted to 30 trials", of_the_real(lambda page: min(c.n_train for c in page["own"]) == 30)),
    # the others' advice
    ("With plain covariances the others' classifier is a coin toss for nearly everybody", of_the_real(lambda page: sum(45 < x < 55 for x in page["advice"]["the others' LDA, plain covariances"].values()) >= 7)),
    ("With tangent vectors it is right on about two trials in three", of_the_real(lambda page: 63 < pd.Series(page["advice"]["the others' LDA, re-centred"]).mean() < 71)),
    ("The logarithm alone, without anybody's own average, does as well on these eight", of_the_real(logarithm_does_as_well)),
    ("one person was better off with plain covariances", of_the_real(lambda page: sum(page["advice"]["the others' LDA, plain covariances"][c] > x for c, x in page["advice"]["the others' LDA, re-centred"].items()) == 1)),
    ("With plain covariances most people stand at one half, as by a coin. Re-centred, most stand clearly above that", of_the_real(lambda page: sum(x > 57 for x in page["advice"]["the others' LDA, re-centred"].values()) >= 6)),
    ("nobody beats an LDA of their own with the others' advice", of_the_real(lambda page: all(x <= page["advice"]["own LDA, re-centred"][c] for c, x in page["advice"]["the others' LDA, re-centred"].items()))),
    ("With an LDA of their own everybody stands at least as far right", of_the_real(lambda page: all(x <= page["advice"]["own LDA, re-centred"][c] for c, x in page["advice"]["the others' LDA, re-centred"].items()))),
    # forty people, and the simulated ones
    ("That is logistic regression for the 40 and MDM for the simulated people", best_alone(FORTY) == "LR", best_alone(CAPS) == "MDM"),
    ("FLIC is {:.1f} points below logistic regression, give or take {:.1f}, so it may be slightly better or clearly worse", -flic.mean, half(flic), flic.high > 1, flic.low < -3),
    ("On simulated EEG it is {:.1f} points below MDM, which our simulation favours", -behind.mean, behind.high < 0),
    ("FLIC is {:.1f} points ahead of the same network alone on the real people and {:.1f} behind on the simulated ones, and after a correction neither can be told from nothing", itself[0].mean, -itself[1].mean, unclear(*itself)),
    ("They imagine two to four movements, and guessing is right on {:.1f} %", guessing(), {len(of.classes) for of in TABLE_S1.values()} == {2, 3, 4}),
    ("is {:.1f} ± {:.1f} points below MDM and {:.1f} ± {:.1f} above LDA alone", -pooled.mean, half(pooled), on_caps.mean, half(on_caps), on_caps.low > 0),
    ("of whom eight imagined other movements than the rest", [n for n, of in TABLE_S1.items() if of.n_subjects == 8 and of.classes[:2] == ("right_hand", "feet")] == ["AlexMI"]),
    ("In one laboratory, with more than half of the trials", share_of_trials("BNCI2014-004") > 0.55),
    ("it is {:.1f} ± {:.1f} points below logistic regression, so with many trials we cannot tell whether it helps", -on_forty.mean, half(on_forty), unclear(on_forty)),
    ("rose from guessing to {:.1f} ± {:.1f} points *above* MDM", longer.mean, half(longer), longer.low > 0, abs(level("FedRep", "30") - 50) < 2),
    ("No other federation on these people was shown to be ahead of MDM", no_other_ahead(), not any(one.low > 0 for one in of_this_kind if one.a != longer.a or one.mean != longer.mean)),
    ("after a correction for the six comparisons of this kind FedRep's lead is not shown either", len(of_this_kind) == 6, 6 * longer.p > 0.05),
    ("FLIC's anchors alone did not gain from more epochs ({:.1f} ± {:.1f})", anchors.mean, half(anchors), unclear(anchors)),
    ("In both groups one LDA on re-centred trials lies at zero", abs(pooled.mean) < 0.5, abs(on_forty.mean) < 0.5),
    ("On 40 real people the other three lie below zero by one to three points, and only own maps with one layer exclude zero", minus("HetFedRep", "LR").high < 0, unclear(flic, minus("Local", "LR")), all(0.9 < -minus(m, "LR").mean < 3.5 for m in ("FLIC-HL", "HetFedRep", "Local"))),
    ("On simulated people the other three lie more than five points below zero and exclude it", all(minus(m, "MDM", CAPS).mean < -5 and minus(m, "MDM", CAPS).high < 0 for m in ("FLIC-HL", "HetFedRep", "Local"))),
    ("FLIC sends {} numbers in a round", 5 * 64 + 64 * 100 + 100),
    # few trials
    ("the re-centred LDA of all is {:.1f} ± {:.1f} points ahead of LDA alone on the real people and {:.1f} ± {:.1f} ahead of MDM, while FLIC is {:.1f} ± {:.1f} behind MDM", over_lda[FORTY].mean, half(over_lda[FORTY]), real_ten["Pooled LDA"].mean, half(real_ten["Pooled LDA"]), -real_ten["FLIC-HL"].mean, half(real_ten["FLIC-HL"])),
    ("After a correction only the lead over LDA alone is left", only_over_lda()),
    ("FLIC is {:.1f} ± {:.1f} points ahead of the same network alone, but {:.1f} ± {:.1f} behind MDM", ten["Local"].mean, half(ten["Local"]), -ten["MDM"].mean, half(ten["MDM"]), ten["Local"].low > 0, ten["MDM"].high < 0),
    ("with ten trials each it is ahead of LDA alone, though not clearly of MDM", all(one.low > 0 for one in over_lda.values()), only_over_lda(), unclear(minus("Pooled LDA", "MDM", CAPS, "10"))),
    # newcomers
    ("the others' LDA is right on {:.1f} % of a newcomer's test trials. On the same trials LDA alone reaches {:.1f} % with ten labels", level("Pooled LDA", "0", late()), level("LDA", "10", late())),
    ("The difference of {:.1f} points, give or take {:.1f}, stands after a correction", ahead_of_lda("10")["mean"], half(ahead_of_lda("10")), ahead_of_lda("10")["verdict_holm"] == NO_LABEL),
    ("LDA alone is {:.1f} ± {:.1f} points behind with twenty labels and {:.1f} ± {:.1f} with eighty", ahead_of_lda("20")["mean"], half(ahead_of_lda("20")), ahead_of_lda("80")["mean"], half(ahead_of_lda("80")), unclear(ahead_of_lda("20"))),
    ("experience is worth more than ten labelled trials, and our best guess is about eighty", ahead_of_lda("10").low > 0, ahead_of_lda("40")["mean"] > 2, abs(ahead_of_lda("80")["mean"]) < 0.5),
    ("The others' curve dips at ten labels", level("Pooled LDA", "10", late()) < level("Pooled LDA", "0", late()) - 1),
    ("starts at {:.0f} per cent without any labelled trial and hardly changes. LDA alone rises from {:.0f} per cent with ten trials to {:.0f} with all. FLIC rises from {:.0f} to {:.0f}", level("Pooled LDA", "0", late()), level("LDA", "10", late()), level("LDA", "all", late()), level("FLIC-HL", "10", late()), level("FLIC-HL", "all", late())),
    ("no federation was shown to be better", all(not minus(m, "LR", n=n).low > 0 for m in eeg.FEDERATED for n in ("60", "120", "all"))),
    ("about as good as the same network alone, and {:.1f} points behind MDM", -behind.mean, unclear(*itself), behind.high < 0),
    # exercises, the box, last words
    ("FLIC is below logistic regression by {:.1f} points, give or take {:.1f}. What do we know", -flic.mean, half(flic)),
    ("If each person picks by cross-validation instead, we still see no difference from FLIC", unclear(chosen)),
    ("Intervals are over people, each the mean of five seeds, and newcomers have one run each", flic.n_seeds == 5, behind.n_seeds == 5, late().groupby(["method", "client"])["seed"].nunique().max() == 1),
    ("After Holm's correction nothing on the 40 people with all trials is left, and on the simulated ones FLIC is still behind MDM", bool((corrected(FORTY, best_alone(FORTY))["verdict_holm"] == "open").all()), corrected(CAPS, best_alone(CAPS)).loc["FLIC-HL", "verdict_holm"] == "MDM"),
    ("On 40 real people with common electrodes we cannot tell, and on simulated caps it does not", unclear(flic), behind.high < 0),
]  # fmt: skip

GIVEN = ("so guessing is right on 50 % of the trials",)
