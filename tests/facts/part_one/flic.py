"""What the chapter on FLIC says, and how each number comes about."""

import math
from typing import Any

from facts import Fact, Paired, half, is_open, pair, runs, stored
from facts.part_one.which_method import trial
from hetfl_book import grids, ledger
from hetfl_book.headtohead import ranking
from hetfl_book.ledger import results
from hetfl_core.methods import FLIC
from hetfl_core.statistics import holm

REAL, REAL_30, REAL_10 = "flic/bci-common40", "eeg/curve-common40-n30", "eeg/curve-common40-n10"
CAPS, CAPS_30, CAPS_10 = "eeg/simulated-54", "eeg/curve-simulated54-n30", "eeg/curve-simulated54-n10"
WRITERS, NOISY, LINEAR, LATE = "flic/femnist-50", "flic/toy-noisy", "flic/toy-linear", "flic/new-clients-bci"
TEXT, CODE = "flic/digits-b100-c3", "flic/digits-dealt-b100-c3"
FROZEN = pair("flic/exchange-bci", "FLIC-HL", "FLIC-HL, nothing exchanged")
MOVED = runs("flic/exchange-bci", "FLIC-HL", "alpha_moved").mean()

anchors = {e: pair(e, "FLIC-HL", "HetFedRep") for e in (REAL, CAPS, CAPS_30, CAPS_10)}
alone = {e: pair(e, "FLIC-HL", "Local") for e in (REAL, REAL_30, CAPS, CAPS_30, WRITERS, TEXT, CODE, NOISY, LINEAR)}
class_alone = {e: pair(e, "FLIC-Class", "Local") for e in (REAL, REAL_30, WRITERS, TEXT, CODE, NOISY, LINEAR)}
short = {place: pair(f"flic/dropout-k10-{place}", "FLIC-Class", "Local") for place in ("noisy", "linear")}
still = results.difference(runs("flic/exchange-bci", "FLIC-HL, nothing exchanged"), runs(REAL, "HetFedRep"))
"""FLIC-HL with α and anchors as drawn, less the shared layer without anchors: the same people, seeds and rounds."""

untaught = pair("flic/ablation-bci", "FLIC-HL, no pre-training", "HetFedRep")
mdm = [pair(e, "MDM", "FLIC-HL") for e in (CAPS_10, REAL_10)]
newcomers = pair(LATE, "FLIC-HL", "Local")
late = Paired.of((runs(LATE, "FLIC-HL") - runs(LATE, "FLIC-HL", "accuracy_took_part")).to_dict())

electrodes = [
    person["electrodes"]
    for person in next(r for r in stored() if r.experiment == CAPS).federation["info"]["subjects"].values()
]
paper = ledger.paper_table("flic", 3).query("experiment == 'flic/bci-54'").set_index("method")["value"]
text = FLIC()
bound = 50 * text.lr * math.sqrt(64)
between = text.anchor_scale * math.sqrt(2 * 64)
"""Of the means of two anchors in 64 dimensions: the root of the mean squared distance."""

records = ranking.finals()
hearts = ranking.cells([r for r in records if "heart-all" in r.experiment]).set_index("method")
kept, shared, fused, zeros = (hearts.loc[m] for m in ("FLIC-Class", "FLIC-HL", "late fusion", "FedAvg, zeros"))
left = {
    m: trial(m, "own step", score="at_own_share")["heart", "all"]
    - trial("network alone", "finals", score="at_own_share")["heart", "all"]
    for m in ("FedAvg, zeros", "late fusion")
}
"""What they gain where every hospital has its threshold at its own share of the ill, in points."""

each = ranking.clients([r for r in records if "heart-all" in r.experiment and r.method == "FLIC-Class"])
elsewhere = ranking.cells([r for r in records if r.experiment.split("/")[1].startswith(("heart-tenth", "liver"))])
elsewhere = elsewhere[elsewhere["method"] == "FLIC-Class"]

grid = grids.stored("anchors")
scores = {name: grid.array(name).mean(-1) for name in grids.HOSPITALS}
middle = len(scores["Cleveland"]) // 2


def spread(found: Any) -> float:
    """Points between the best and the worst place of the anchor, but for the one that both share."""
    others = found[[[(i, j) != (middle, middle) for j in range(len(found))] for i in range(len(found))]]
    return float(others.max() - others.min())


def memorised(experiment: str, method: str) -> float:
    """How much more accurate a method is on training samples than on test samples, in points."""
    return float((runs(experiment, method, "train_accuracy") - runs(experiment, method)).mean())


def sure() -> dict[tuple[str, str], float]:
    """The differences of the figure that are left after Holm's correction for all of them, by method and experiment."""
    found = {(m, e): x for m, some in (("HL", alone), ("Class", class_alone)) for e, x in some.items()}
    assert len(found) == 16
    corrected = holm([x.p for x in found.values()])
    return {place: x.mean for (place, x), p in zip(found.items(), corrected, strict=True) if p < 0.05}


def same_in_each_split() -> bool:
    own, control = (each[each["control"] == c].set_index(["seed", "client"])["value"] for c in (False, True))
    return bool((own - control).abs().max() == 0) and each["seed"].nunique() == 10


FACTS: list[Fact] = [
    # the lead, and the anchor that is dragged
    ("even simulated EEG caps with 3 and with 60 electrodes", min(electrodes) == 3, max(electrodes) == 60),
    ("With few trials on such caps FLIC was more than three points ahead of the same layer without anchors", anchors[CAPS_10].mean > 3, anchors[CAPS_10].low > 0, anchors[CAPS_30].mean > 3, anchors[CAPS_30].low > 0),
    ("In our runs we could not show that it pays to take part", max(sure().values()) < 0),
    ("Some lie near the wrong star", lambda page: 0.5 < right_of(page, "Cleveland") < 1 and 0.5 < right_of(page, "Budapest") < 1),
    ("each hospital has put its ill patients near the same star", lambda page: min(right_of(page, n) for n in page["titles"]) > 0.75),
    ("the accuracy varies by less than six points, except where both anchors are the same point", all(spread(s) < 6 for s in scores.values()), all(s[middle, middle] == 50 for s in scores.values())),
    ("balanced accuracy on average over five runs", len(grid.seeds) == 5),
    ("The paper sets both weights to {}", text.alignment_weight, text.alignment_weight == text.anchor_weight),
    # what it achieves
    ("Take 54 people in six laboratories, whose caps have from 3 to 60 electrodes", len(electrodes) == 54, set(electrodes) == {3, 14, 15, 16, 22, 60}),
    ("With ten and thirty trials per person FLIC-HL is {:.1f} and {:.1f} points ahead of the same layer without anchors", anchors[CAPS_10].mean, anchors[CAPS_30].mean),
    ("On 40 real people, of whom we take the electrodes that all of them have, it is {:.1f} ahead", anchors[REAL].mean, anchors[REAL].low > 0),
    ("Without it, FLIC-HL falls {:.1f} ± {:.1f} points behind that layer on the real people", -untaught.mean, half(untaught), untaught.high < 0),
    ("is {:.1f} points ahead of FLIC-HL on the caps and {:.1f} on the real people", *(x.mean for x in mdm), *(x.low > 0 for x in mdm)),
    ("With all trials of the simulated caps we see no difference", is_open(anchors[CAPS])),
    ("could not find a loss against having taken part ({:.1f} ± {:.1f} points)", late.mean, half(late), is_open(late)),
    ("newcomers who trained alone were as good on average ({:.1f} ± {:.1f})", abs(newcomers.mean), half(newcomers)),
    # what it does not
    ("The largest gain is FLIC-Class's on the digits of 50 writers, {:.1f} ± {:.1f} points", class_alone[WRITERS].mean, half(class_alone[WRITERS]), class_alone[WRITERS].low > 0, class_alone[WRITERS].mean == max(x.mean for x in (*alone.values(), *class_alone.values()))),
    ("for the sixteen differences only losses remain", max(sure().values()) < 0, set(sure()) == {(m, e) for m in ("HL", "Class") for e in (TEXT, NOISY, LINEAR)}),
    ("On the two made problems of the paper they are three points and more", *(3 < -x[e].mean < 4 and x[e].high < 0 for x in (alone, class_alone) for e in (NOISY, LINEAR))),
    ("memorise the few samples more than those trained alone do", *(memorised(e, "FLIC-HL") > memorised(e, "Local") for e in (NOISY, LINEAR))),
    ("FLIC-Class is no longer shown to be behind there", all(x.high > 0 for x in short.values())),
    ("FLIC-HL loses {:.1f} points and FLIC-Class {:.1f} if they are split as the paper says, and we see no difference if", -alone[TEXT].mean, -class_alone[TEXT].mean, is_open(alone[CODE]), is_open(class_alone[CODE])),
    ("for example {:.1f} points over training alone", paper["FLIC-HL"] - paper["Local"]),
    ("FLIC-Class adds {:.1f} points to a network alone, give or take {:.1f}, and a logistic regression alone adds {:.1f}", kept["gain"], (kept["high"] - kept["low"]) / 2, hearts.loc["logistic regression alone", "gain"]),
    ("it adds just the same, in every one of ten splits", same_in_each_split()),
    ("with a tenth of the rows, and in two clinics with different blood panels", len(elsewhere) == 3, bool((elsewhere["gain_sharing"] == 0).all())),
    ("but we see no gain from it", shared["low_sharing"] < 0, shared["gain_sharing"] < 0),
    ("gains {:.1f} points from the exchange, though its interval includes zero", fused["gain_sharing"], fused["low_sharing"] < 0 < fused["high_sharing"]),
    ("on the hospitals their means are higher than FLIC's, but most of their lead over training alone is", min(fused["score"], zeros["score"]) > max(kept["score"], shared["score"]), *(left[m] < hearts.loc[m, "gain"] / 2 for m in left)),
    ("there the networks memorised, but on EEG FLIC-HL lost by dropout and by no pre-training", *(memorised(e, "FLIC-HL") > 10 for e in (NOISY, LINEAR)), *(pair("flic/ablation-bci", f"FLIC-HL, {how}", "FLIC-HL").high < 0 for how in ("with dropout", "no pre-training"))),
    ("at most the learning rate, {}.", text.lr, round(bound, 9) == 0.4),
    ("two anchors, drawn with a standard deviation of ten, lie more than a hundred apart", text.anchor_scale == 10, between > 100),
    ("It is {:.0f} %. Then", 100 * MOVED),
    ("Accuracy changed by {:.1f} points, give or take {:.1f}", abs(FROZEN.mean), half(FROZEN)),
    ("it may be worth up to {:.1f} points", FROZEN.high, is_open(FROZEN)),
    ("With nothing exchanged FLIC-HL is still {:.1f} ± {:.1f} points ahead of the layer without anchors (the interval just excludes zero)", still.mean, half(still), 0 < still.low < 0.1, abs(still.mean - anchors[REAL].mean) < 0.1),
    ("there we saw no gain that is sure", is_open(alone[REAL]), alone[CAPS].mean < 0),
    # captions and their texts
    ("FLIC-HL is about three points ahead with ten and with thirty trials a person, not clearly with all trials, and two points on real people", anchors[CAPS_30].mean < 4, anchors[REAL].mean < 2.5, is_open(anchors[CAPS])),
    ("FLIC-HL is ahead with 30 trials and caps of 3 to 60 electrodes, behind with all trials, and behind with 30 trials on real people", alone[CAPS].high < 0),
    ("FLIC-Class is ahead on the writers' digits. Both are far behind on the two made problems and further on digits split as in the paper, and undecided elsewhere", *map(is_open, (alone[REAL], alone[WRITERS], alone[CODE], class_alone[REAL], class_alone[REAL_30], class_alone[CODE])), *(x[TEXT].mean < min(x[NOISY].mean, x[LINEAR].mean) for x in (alone, class_alone))),
    ("FLIC-Class adds one point to a network alone, FLIC-HL loses less than one and late fusion adds five, all with intervals that include zero", *(row["low"] < 0 < row["high"] for row in (kept, shared, fused)), -1 < shared["gain"] < 0, round(fused["gain"]) == 5),
    ("With nothing exchanged FLIC-Class has exactly the same accuracy, and FLIC-HL two points more", round(shared["gain_sharing"]) == -2),
    # the box and the last words
    ("EEG and the made problems have five seeds, the writers and the split digits three, and the hospitals ten splits", {x.n for e, x in alone.items() if e not in (WRITERS, TEXT, CODE)} == {5}, {alone[e].n for e in (WRITERS, TEXT, CODE)} == {3}, kept["seeds"] == 10),
    ("its pre-training of a hundred epochs", text.pretrain_epochs == 100),
    ("On the hospitals FLIC-Class loses nothing when nobody talks to anybody", kept["gain_sharing"] == 0),
]  # fmt: skip


def right_of(page: dict[str, Any], hospital: str) -> float:
    """The share of a hospital's patients that lie nearer to their own anchor, in the film's last picture."""
    own, start = page["film"][100]
    z = page["notebook"].embedded(page["fed"], page["flat"][100], own, start.server)[hospital]
    said = page["anchors"].nearest(z, start.server["anchor.mean"])
    return float((said == page["y"][hospital]).mean())


GIVEN = ()
