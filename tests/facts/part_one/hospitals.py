"""What the page on the four hospitals says, and how each number comes about."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from facts import Fact, half
from hetfl_book import ledger
from hetfl_book.headtohead import sites
from hetfl_book.headtohead.entries import entries, settings_in
from hetfl_core import Federation, Preparation
from hetfl_core.datasets import heart
from hetfl_core.estimators import PerSite
from hetfl_core.reporting.judging import Gain

ALONE, NETWORK = "logistic regression alone", "network alone"
BLOCKS = ("late fusion", "LASER-VFL", "HyFEM")
WAYS = ("FedAvg", "FedAvg, zeros", *BLOCKS, "FLIC-Class")
MOVED = ("FedAvg", "FedAvg, zeros", "late fusion", "LASER-VFL")
"""For which the arrow of the figure is long."""

HOSPITALS = ("Cleveland", "Budapest", "Zurich", "Long Beach")
FUSION = "late fusion, own last step"


def level(method: str, hospital: str, measure: str = "auc", **options: bool | str) -> float:
    """Mean over the splits."""
    return float(sites.reached("heart", measure, **options).loc[method, hospital].mean())  # type: ignore[arg-type]


def gain(method: str, hospital: str, measure: str = "auc", base: str = ALONE, size: str = "all") -> Gain:
    return sites.gain("heart", method, base, hospital, measure, size)


def won(method: str, base: str, hospital: str, apart: bool = False) -> int:
    """Splits of ten in which a method is ahead in AUC."""
    mine = sites.reached("heart", "auc").loc[method, hospital]
    return int((mine > sites.reached("heart", "auc", apart=apart).loc[base, hospital]).sum())


def open_(found: Gain) -> bool:
    return found.low <= 0 <= found.high


def numbers_sent(method: str) -> int:
    """Of a hospital in a round."""
    records = ledger.load(experiment="headtohead/heart-all")
    one = next(r for r in records if r.method == method)
    return round(float(one.metrics["bytes_up"] or 0) / 4 / len(HOSPITALS) / int(one.settings["rounds"]))


def page() -> list[Fact]:
    rates = json.loads(heart.STUDY.rates.read_text("utf8"))
    patients = {h: [rates[h][c]["patients"] for c in "01"] for h in HOSPITALS}
    held = {
        c: [h for h in HOSPITALS if sum(rates[h][k][c]["n"] for k in "01") >= sum(patients[h]) / 2] for c in heart.NAMES
    }
    missing = {h: sum(patients[h]) - sum(rates[h][k]["chol"]["n"] for k in "01") for h in HOSPITALS}
    common = [c for c in held if len(held[c]) == 4]
    inputs = sum(len(heart.CATEGORIES.get(c, [0])) for c in common)
    every = [gain(method, hospital) for method, hospital in product(WAYS, HOSPITALS)]
    gains = {at: found.mean for at, found in zip(product(WAYS, HOSPITALS), every, strict=True)}
    best = gain("LASER-VFL", "Long Beach")
    exchange = gain("late fusion", "Long Beach", base=sites.NOTHING)
    moved = {h: {w: gain(w, h, base=sites.NOTHING) for w in WAYS} for h in HOSPITALS}
    arrows = {h: sum(abs(g.mean) for g in found.values()) for h, found in moved.items()}
    jump = {w: g.mean for w, g in moved["Long Beach"].items()}
    few = [gain(w, "Long Beach", size="tenth") for w in MOVED]
    own = [gain(FUSION, h, "accuracy") for h in HOSPITALS]
    lost = {(w, h): gain(w, h, "accuracy").mean for w in ("FedAvg", "late fusion") for h in HOSPITALS}
    found, kept = (
        gain("FedAvg", "Long Beach", "balanced_accuracy"),
        gain("FedAvg, own last step", "Long Beach", "balanced_accuracy"),
    )
    tried = [settings_in(e.grid) for e in entries().values()]
    wide = math.sqrt((1 / 10 + 0.4 / 0.6) * 10)
    aucs = {h: level(ALONE, h) for h in HOSPITALS}
    return [
        ("These answers rest on {} patients", sum(map(sum, patients.values()))),
        ("In Long Beach learning together looks best. Four of six ways of doing it are far worse there, on average, if the hospitals exchange nothing", max(gains, key=lambda at: gains[at])[1] == "Long Beach", sum(gap > 5 for gap in jump.values()) == 4, len(jump) == 6),
        ("a careful model that Long Beach fits alone does about as well as the best of these ways", max(gain(w, "Long Beach").mean for w in WAYS) < 2),
        ("we cannot show that learning together ranks anybody's patients better", not any(g.low > 0 for g in every)),
        ("You have {} patients, but only eight of them are healthy", sum(patients["Zurich"]), patients["Zurich"][0] == 8),
        ("A colleague in Cleveland has {} patients, about half of them healthy", sum(patients["Cleveland"]), 0.45 < patients["Cleveland"][0] / sum(patients["Cleveland"]) < 0.55),
        ("eight of the thirteen columns are common to all", len(common) == 8, len(held) == 13),
        ("They come mostly from Zurich, where nearly everybody is ill", missing["Zurich"] > sum(missing.values()) / 2, patients["Zurich"][1] > 0.9 * sum(patients["Zurich"])),
        ("zeros will be hard to beat in balanced accuracy, mostly because of a better threshold", *zeros()),
        ("Then Cleveland throws away five columns", len(held) - len(common) == 5, all("Cleveland" in held[c] for c in held)),
        ("are missing in Zurich", "Zurich" not in held["chol"] + held["fbs"], rates["Zurich"]["1"]["chol"]["n"] == 0),
        ("exist in Cleveland and Zurich, and only Cleveland has", held["slope"] == held["thal"] == ["Cleveland", "Zurich"], held["ca"] == ["Cleveland"]),
        ("By accuracy Zurich is the best of the four, with {:.1f} %", level(ALONE, "Zurich", "accuracy"), level(ALONE, "Zurich", "accuracy") == max(level(ALONE, h, "accuracy") for h in HOSPITALS)),
        ("a doctor who calls everybody ill is just as good there", abs(level(ALONE, "Zurich", "accuracy") - 100 * 47 / 50) < 0.1),
        ("accuracy and balanced accuracy near 80 percent and AUC near 90", all(abs(level(ALONE, h, m) - x) < 4.5 for h in HOSPITALS[:2] for m, x in (("accuracy", 80), ("balanced_accuracy", 80), ("auc", 90)))),
        ("a balanced accuracy close to one half", abs(level(ALONE, "Zurich", "balanced_accuracy") - 50) < 3),
        ("a balanced accuracy below 60 and an AUC near 70", level(ALONE, "Long Beach", "balanced_accuracy") < 60, abs(aucs["Long Beach"] - 70) < 3),
        ("Cleveland and Budapest know a great deal", min(aucs["Cleveland"], aucs["Budapest"]) > max(aucs["Zurich"], aucs["Long Beach"]) + 10),
        ("it is {} numbers a round", numbers_sent("FedAvg")),
        ("chose among up to twelve settings on validation rows", max(tried) == 12),
        ("was then tested on ten splits", sites.reached("heart").shape[1] == 10),
        ("Every interval in the table includes zero", all(map(open_, every))),
        ("LASER-VFL comes out {:.1f} points ahead, but give or take {:.1f}", best.mean, half(best)),
        ("On the common columns it is {:.1f} points worse, give or take {:.1f}, and worse in nine of ten splits", -gain("FedAvg", "Cleveland").mean, half(gain("FedAvg", "Cleveland")), won("FedAvg", ALONE, "Cleveland") == 1),
        ("and on average cost Cleveland less than half a point, give or take two or three", all(abs(gain(w, "Cleveland").mean) < 0.5 and round(half(gain(w, "Cleveland"))) in (2, 3) for w in BLOCKS)),
        ("such as late fusion, cost it less than half a point on average", all(abs(gain(w, "Cleveland").mean) < 0.5 for w in BLOCKS)),
        ("Only three of its test patients are healthy", ledger.load(experiment="headtohead/heart-all")[0].per_client["rarest"][2] == 3),
        ("so its intervals are wider than anything we could hope to gain", min(half(gain(w, "Zurich")) for w in WAYS) > 20),
        ("late fusion and LASER-VFL the arrow is long and ends near a dashed line", min(jump[w] for w in MOVED) > 7, all(abs(gain(w, "Long Beach").mean) < 2 for w in MOVED)),
        ("For HyFEM it is short, and for FLIC both dots lie in the same place", 2 < jump["HyFEM"] < 4, abs(jump["FLIC-Class"]) < 0.05),
        ("On average the exchange does a lot in Long Beach for four of the six methods", sum(g.mean > 5 for g in moved["Long Beach"].values()) == 4),
        ("With late fusion it adds {:.1f} ± {:.1f} points, and it adds something in all ten splits", exchange.mean, half(exchange), won("late fusion", "late fusion", "Long Beach", apart=True) == 10),
        ("But the other five intervals include zero", [w for w, g in moved["Long Beach"].items() if not open_(g)] == ["late fusion"]),
        ("we show Long Beach because the arrows are longest there", max(arrows, key=lambda h: arrows[h]) == "Long Beach"),
        ("One interval of six that just excludes zero", len(jump) == 6, 0 < exchange.low < 1),
        ("After a correction for their number it finds no effect of the exchange that is certain", no_certain_exchange()),
        ("A network whose settings we chose for training alone comes close, with {:.1f} %", level(NETWORK, "Long Beach"), abs(aucs["Long Beach"] - level(NETWORK, "Long Beach")) < 2),
        ("It shares only its two anchors here", numbers_sent("FLIC-Class") == 2 * 32),
        ("Now the shared models *lose* everywhere on average, above all in Zurich", max(lost.values()) < 0, all(lost[w, "Zurich"] == min(lost[w, h] for h in HOSPITALS) for w in ("FedAvg", "late fusion"))),
        ("The last rows repair most of this, but nothing in Cleveland, where about half of the patients are ill anyway", *repaired()),
        ("With late fusion no hospital then loses more than two points on average, and all four intervals include zero", min(g.mean for g in own) > -2, all(map(open_, own))),
        ("The AUC stays as it was", all(abs(gain(FUSION, h, base="late fusion").mean) < 0.05 for h in HOSPITALS)),
        ("its balanced accuracy is {:.1f} ± {:.1f} points higher than alone", found.mean, half(found)),
        ("With a last step of its own only {:.1f} ± {:.1f} points are left", kept.mean, half(kept)),
        ("it is the one hospital whose interval excludes zero", [h for h in HOSPITALS if not open_(gain("FedAvg", h, "balanced_accuracy"))] == ["Long Beach"]),
        ("Long Beach falls to an AUC of {:.1f} %", level(ALONE, "Long Beach", size="tenth")),
        ("it is four to six points better, although the intervals reach far below zero", min(g.mean for g in few) > 4, max(g.mean for g in few) < 6, all(g.low < -5 for g in few)),
        ("Cleveland now loses less than one point on the common columns", -1 < gain("FedAvg", "Cleveland", size="tenth").mean < 0),
        ("The eight common columns become {} inputs", inputs),
        ("layers of 64 and 32 units and two outputs", numbers_sent("FedAvg") == 14 * 64 + 65 * 32 + 33 * 2),
        ("together {}. Two anchors with 32 coordinates are {} numbers, about a fiftieth", 3042, 64, abs(3042 / 64 - 50) < 5),
        ("beats \"local training\" by eleven points in Long Beach", 10.5 < exchange.mean < 11.5),
        ("are almost three times as wide as the usual ones", 2.6 < wide < 3),
        ("finds no method that beats the logistic regression in AUC either", second_study()),
        ("is right for more than nine patients in ten", level(ALONE, "Zurich", "accuracy") > 90),
        ("we cannot show that anything ranks the patients better", not any(g.low > 0 for g in every)),
        ("that is a tuned logistic regression", isinstance(entries()[ALONE].method, PerSite)),
    ]  # fmt: skip


def repaired() -> tuple[bool, bool]:
    """Whether a last step of its own lifts accuracy in every hospital but Cleveland, most where most was lost."""
    lost = {(w, h): -gain(w, h, "accuracy").mean for w in ("FedAvg", "late fusion") for h in HOSPITALS}
    left = {(w, h): -gain(f"{w}, own last step", h, "accuracy").mean for w, h in lost}
    elsewhere = [at for at in lost if at[1] != "Cleveland"]
    most = sum(left[at] for at in elsewhere) < sum(lost[at] for at in elsewhere) / 4
    return most and all(left[at] < lost[at] for at in elsewhere), all(
        left[at] > lost[at] - 0.2 for at in lost if at[1] == "Cleveland"
    )


def falls(risks: Sequence[float]) -> bool:
    return risks[0] > risks[1] > risks[2]


def three_blocks(page: Mapping[str, Any]) -> bool:
    """Of the first exercise: what joins the common columns, and what remains."""
    few = replace(page["prepare"], absent=0.7)
    fed = Federation.from_frame(page["patients"], client="hospital", target="ill", prepare=few).in_blocks()
    inside = {f.split("=")[0] for f in fed[0].features["common"]}
    return {"slope", "fbs"} <= inside and [*fed[0].shapes][1:] == ["chol", "ca", "thal"]


def slope_by_default(page: Mapping[str, Any]) -> bool:
    plain = replace(page["prepare"], absent=Preparation().absent)
    fed = Federation.from_frame(page["patients"], client="hospital", target="ill", prepare=plain)
    return "slope=1" in (fed["Long Beach"].features or ())


def live() -> list[Fact]:
    """Of real and of made-up patients."""

    def kept(page: Mapping[str, Any]) -> bool:
        return falls(page["risk_by_cholesterol"](page["patients"].fillna({"chol": 0})))

    def out(page: Mapping[str, Any]) -> bool:
        return falls(page["risk_by_cholesterol"](page["patients"].dropna(subset=["chol"]))[::-1])

    def few(page: Mapping[str, Any]) -> bool:
        test = {client.name: client.y_test for client in page["fed"]}
        return len(test["Long Beach"]) == 40 and 1 <= int((test["Zurich"] == 0).sum()) <= 2

    return [
        ("Long Beach has 40 test patients here, and in Zurich the AUC hangs on one or two healthy ones", few),
        ("With the zeros kept, cholesterol seems to protect us", kept),
        ("Once we remove the zeros, the risk rises with cholesterol", out),
        ("three blocks of one column remain", three_blocks),
        ("so there are four blocks", lambda page: len(page["fed"].in_blocks()[0].shapes) == 4),
        ("The default is {:.1f}, with which Long Beach has", Preparation().absent, slope_by_default),
    ]


def zeros() -> tuple[bool, bool]:
    """Whether zeros are among the first in balanced accuracy here, and most of it is a threshold: as chapter 12 says."""
    from facts.part_one import which_method as chosen

    here = [case for case in chosen.GAINS if case.startswith("heart")]
    leads = all(chosen.ZEROS in chosen.GAINS[case].nlargest(4).index for case in here)
    return leads, chosen.SHARES["heart"].mean() < chosen.GAINS.loc[chosen.ZEROS, here].mean() / 2


def no_certain_exchange() -> bool:
    """Whether no method's exchange is shown to add balanced accuracy, as chapter 12 says."""
    from facts.part_one import which_method as chosen

    return bool(chosen.sure(chosen.MET["balanced"], "_sharing").empty)


def second_study() -> bool:
    """Whether no gain in AUC is shown in ``heart/compared``."""
    from hetfl_book.papers import hospitals

    gains = hospitals.gains(ledger.load(experiment="heart/compared", scale="paper")).xs("auc", level="measure")
    return bool((gains["mean"] <= gains["half"]).all())


FACTS = [*page(), *live()]

GIVEN = ["CC BY 4.0", "as soon as 30 % of its patients"]
