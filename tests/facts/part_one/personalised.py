"""What the chapter on personalised methods says."""

from facts import half, is_open, over, pair, runs, stored
from hetfl_book import report
from hetfl_book.headtohead import ranking, sites
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_book.papers import fedcr
from hetfl_core import records
from hetfl_core.methods import FedAvgFT
from hetfl_core.reporting.judging import resampled
from hetfl_core.statistics import holm

SPLITS = [f"fedcr/own-{split}" for split in fedcr.SPLITS]
TUNED, BEACH = "FedAvg-FT", "Long Beach"
OTHERS = (
    "FedCR",
    "FedPer",
    "FedPAC",
    "FedAvg-FT, all",
    "FedRep",
    "LG-FedAvg",
    "Local",
    "Ditto",
    "FedBABU, all",
    "FedAvg",
)
MAP = ("LG-FedAvg", "FedPer", "FedRep", "FedBABU", "FedPAC", TUNED, "Ditto", "pFedHN", "FedProto")
"""Of the map, those that exchange something."""

behind = {name: over(SPLITS, name, TUNED) for name in OTHERS}
at_size = {(s, m): pair(f"fedcr/fmnist-{s}", m, TUNED) for s in fedcr.SPLITS for m in ("FedPAC", "FedCR")}
exchange = {name: report.gained("heart", name, "nothing exchanged", "tenth", "auc") for name in MAP}
alone = {name: report.gained("heart", name) for name in (*MAP, "FedAvg")}
few = {name: report.gained("heart", name, size="tenth", measure="auc") for name in (TUNED, "logistic regression alone")}


def first(split: str) -> bool:
    """Whether tuned FedAvg has the highest mean of all that were run on a split."""
    return all(runs(split, TUNED).mean() > runs(split, name).mean() for name in (*OTHERS, "FedSR-FT", "FedCR, own bodies", "FedBABU"))  # fmt: skip


def untuned(name: str) -> bool:
    """Whether the grids of a method had one weight of its term."""
    grids = [
        r for r in stored() if r.experiment in {f"{split}-grid" for split in SPLITS} and r.method.startswith(f"{name},")
    ]
    return bool(grids) and len({r.settings["method"]["term_weight"] for r in grids}) == 1


def beach(method: str, measure: str) -> float:
    """What a method reaches in Long Beach with all patients, mean of the splits."""
    return float(sites.reached("heart", measure).loc[(method, BEACH)].mean())


def classes(method: str) -> tuple[float, float]:
    """The shares (%) of Long Beach's ill who are found and of its healthy who are recognised, p of them being ill.

    Solves accuracy = p · ill + (1 − p) · healthy and balanced accuracy = (ill + healthy) / 2.
    """
    [p] = {1 - n / m for n, m in zip(*(tested[c] for c in ("rarest", "n_test")), strict=True)}
    assert p == 0.75
    balanced = beach(method, "balanced_accuracy")
    ill = (beach(method, "accuracy") - 2 * (1 - p) * balanced) / (2 * p - 1)
    return ill, 2 * balanced - ill


def lead(a: str, b: str):
    """A less B with a tenth of the patients, in points of AUC."""
    table = ranking.clients(records.load(experiment="headtohead/heart-tenth"), "auc")
    means = table[table["counts"]].groupby(["method", "seed"])["value"].mean().unstack("seed")
    return resampled((means.loc[a] - means.loc[b]).tolist(), FEDERATIONS["heart"].ratio)


some = ranking.clients(records.load(experiment="headtohead/heart-tenth", method="FedAvg"))
hearts = ranking.clients(records.load(experiment="headtohead/heart-all"))
tested = hearts.query("client == @BEACH")
of_both = [r for r in stored() if r.experiment in SPLITS]
sent = report.head_to_head("heart")["bytes_up"] / (4 * 4 * 30)  # four bytes a number, four hospitals, thirty rounds

FACTS = [
    ("was beaten by no other in our small comparison on the images of twenty clients", all(gap.mean < 0 for gap in behind.values())),
    ("a personal head brought back what a network does alone", classes("FedPer")[1] < classes("FedAvg")[1] / 4, classes("network alone")[0] > 95),
    # images
    ("FedAvg with a tuned head has the highest mean.", *map(first, SPLITS)),
    ("FedCR is {:.1f} points behind, which we cannot tell from chance", -behind["FedCR"].mean, is_open(behind["FedCR"])),
    ("FedPer {:.1f} and FedRep {:.1f}.", -behind["FedPer"].mean, -behind["FedRep"].mean),
    ("Training alone loses {:.1f} points. Plain FedAvg is last with {:.1f}", -behind["Local"].mean, -behind["FedAvg"].mean, min(behind, key=lambda n: behind[n].mean) == "FedAvg"),
    ("Tuning the head alone is {:.1f} points better than tuning all layers", -behind["FedAvg-FT, all"].mean, behind["FedAvg-FT, all"].high < 0),
    ("by {:.1f} to {:.1f} points", min(g.mean for g in at_size.values()), max(g.mean for g in at_size.values()), all(g.n == 2 for g in at_size.values())),
    ("twenty clients {} training images each", *{n for r in of_both for n in r.per_client["n_train"]}, {len(r.per_client["n_train"]) for r in of_both} == {20}),
    ("chooses among the same six learning rates", len(fedcr.GRID) == 6),
    ("runs on five random splits", all(gap.n == 5 for gap in behind.values())),
    # Long Beach
    ("three of four patients are ill", classes("FedAvg")[0] > 0),
    ("A network alone finds {:.0f} % of the ill and recognises {:.0f} % of the healthy", *classes("network alone")),
    ("and recognises {:.0f} %. If we give it a personal head, as FedPer does, the bet is back with {:.0f} %", classes("FedAvg")[1], classes("FedPer")[1]),
    ("With all layers tuned at the end we recognise {:.0f} %, and with Ditto, which stays near the common model, {:.0f} %", classes(TUNED)[1], classes("Ditto")[1]),
    ("the last column hardly moves", max(beach(m, "auc") for m in ("FedAvg", "FedPer", TUNED, "Ditto")) - beach("network alone", "auc") < 2),
    ("FedAvg, all layers tuned, is right on {:.1f} % of Long Beach's patients and plain FedAvg on {:.1f} %", beach(TUNED, "accuracy"), beach("FedAvg", "accuracy")),
    ("it is {:.1f} against {:.1f} %", beach(TUNED, "balanced_accuracy"), beach("FedAvg", "balanced_accuracy")),
    ("gains {:.1f} ± {:.1f} points of balanced accuracy over training alone", alone["FedAvg"].mean, half(alone["FedAvg"]), alone["FedAvg"].low > 0),
    ("For none of the nine personalised methods that exchange something can we show a gain", len(MAP) == 9, all(alone[m].low < 0 for m in MAP)),
    ("In AUC none of their means is more than one point away from training alone", all(abs(report.gained("heart", m, measure="auc").mean) < 1 for m in MAP)),
    ("FedAvg has all layers tuned at the end", FedAvgFT().tuned == "all"),
    # a tenth of the patients
    ("a tenth of its patients, about fifteen", round(some["n_train"].mean()) == 15),
    ("Before any correction for the eight rows, the exchange is worth {:.1f} ± {:.1f} points to FedAvg with all layers tuned, {:.1f} ± {:.1f} to FedBABU and {:.1f} ± {:.1f} to FedPAC", *(f(exchange[m]) for m in (TUNED, "FedBABU", "FedPAC") for f in (lambda g: g.mean, half)), all(exchange[m].low > 0 for m in (TUNED, "FedBABU", "FedPAC"))),
    ("After it, none of these gains is left", min(holm([exchange[m].p for m in MAP if m != "FedProto"])) > 0.05, len(MAP) == 9),
    ("pFedHN keeps none either and shows no gain ({:.1f} ± {:.1f}), and only LG-FedAvg ({:.1f} ± {:.1f}) and Ditto ({:.1f} ± {:.1f}) have narrow intervals", *(f(exchange[m]) for m in ("pFedHN", "LG-FedAvg", "Ditto") for f in (lambda g: g.mean, half)), exchange["pFedHN"].low < 0, all((half(exchange[m]) < 2) == (m in ("LG-FedAvg", "Ditto")) for m in MAP if m != "FedProto")),
    ("They may gain as much or lose as much", all(exchange[m].low < -5.5 and exchange[m].high > 7 for m in ("FedPer", "FedRep"))),
    ("direct lead of {:.1f} points over FedPer could be chance (± {:.1f})", lead("FedBABU", "FedPer").mean, half(lead("FedBABU", "FedPer")), lead("FedBABU", "FedPer").low < 0),
    ("FedAvg with all layers tuned is {:.1f} ± {:.1f} points of AUC ahead of a network alone. A logistic regression alone is {:.1f} ± {:.1f} ahead of that network, so a bit behind FedAvg", *(f(few[m]) for m in (TUNED, "logistic regression alone") for f in (lambda g: g.mean, half)), lead(TUNED, "logistic regression alone").mean > 0),
    ("We cannot tell any of the three apart", all(g.low < 0 < g.high for g in few.values()), lead(TUNED, "logistic regression alone").low < 0 < lead(TUNED, "logistic regression alone").high),
    # captions and their texts
    ("No dot lies to the right of zero, and a full one excludes it", all(g.mean < 0 for g in behind.values())),
    ("Ditto's λ was not tuned, so its row says little", untuned("Ditto")),
    ("FedCR lies just left of zero and includes it", is_open(behind["FedCR"]), all(g.high < 0 for m, g in behind.items() if m != "FedCR"), [g.mean for g in behind.values()] == sorted((g.mean for g in behind.values()), reverse=True)),
    ("falls from 99 to 76 percent, the share of the healthy that are recognised rises from 7 to 59 percent, and the AUC stays between 71 and 73", [round(x) for x in (*classes("network alone"), *classes("FedAvg"), beach("network alone", "auc"), beach("FedAvg", "auc"))] == [99, 7, 76, 59, 71, 73]),
    ("gain five to seven points from the exchange and exclude zero, pFedHN gains six and includes it", exchange["pFedHN"].low < 0),
    ("FedPer and FedRep lie near zero with wide intervals, LG-FedAvg and Ditto with narrow ones", all(abs(exchange[m].mean) < 1 and (half(exchange[m]) < 2) == (m in ("LG-FedAvg", "Ditto")) for m in ("FedPer", "FedRep", "LG-FedAvg", "Ditto"))),
    # exercises and the box
    ("FedAvg sends all {:.0f}, FedPer {:.0f} and LG-FedAvg {:.0f}", sent["FedAvg"], sent["FedPer"], sent["LG-FedAvg"], 13 * 64 + 64 + 64 * 32 + 32 == 2976 == sent["FedPer"]),
    ("Ten splits of the same patients", set(hearts["seed"]) == set(range(10))),
    ("Zurich tests on three healthy patients", set(hearts.query("client == 'Zurich'")["rarest"]) == {3}),
    ("as 20 of its 80 test patients are healthy in every split", set(tested["rarest"]) == {20}, set(tested["n_test"]) == {80}),
    ("{} rounds, and learning rates chosen on one split", *{max(r.history["round"]) for r in of_both}, len({r.seed for r in stored() if r.experiment == f"{SPLITS[0]}-grid"}) == 1),
    ("barely differs from training alone", abs(over(SPLITS, "Ditto", "Local").mean) < 0.2),
]  # fmt: skip

GIVEN = ()
