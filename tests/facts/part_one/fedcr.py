"""What the chapter on FedCR says."""

import numpy as np

from facts import Fact, half, is_open, pair, runs
from facts.fedcr import FULL, NOTHING, ONE, TWO, WITHOUT, less
from hetfl_book import report
from hetfl_book.headtohead import ranking
from hetfl_core import records

BOTH, PARTS = [ONE, TWO], [f"{own}-ablation" for own in (ONE, TWO)]
OWN, COMMON = "FedCR, own embeddings", "FedCR"


def changed(how: str):
    """FedCR minus itself with something changed, over both kinds of split."""
    return report.pooled(BOTH, "FedCR", how, PARTS)


def ahead(method: str):
    return report.pooled(BOTH, "FedCR", method)


def heart(method: str, over: str = "training alone", size: str = "all"):
    return report.gained("heart", method, over, size)


def edge(method: str, size: str = "all") -> str:
    """At which edge of what was offered the weight of the term lies."""
    [told] = records.load(experiment=f"headtohead/heart-{size}-tuning", method=method)
    return told.settings["edges"].get("term_weight", "")


term, fixed, mixture, quiet = map(changed, (WITHOUT, NOTHING, "FedCR, mixture of the experts", "FedCR, no noise"))
alone, fedper, tuned = map(ahead, ("Local", "FedPer", "FedAvg-FT"))
uneven = pair(TWO, "FedCR", "FedAvg-FT")
PROMISES = [f"{own}-calibration" for own in BOTH]
promised = [report.runs_of(PROMISES, m, "ece_scaled").mean().tolist() for m in ("FedCR", "FedAvg-FT")]
"""By method, the expected calibration error on both kinds of split, once a temperature has been fitted."""
eeg = report.pooled("fedcr/spaces-bci-common40", OWN, "Local", "flic/bci-common40")
own, tenth, common = heart(OWN), heart(OWN, size="tenth"), heart(COMMON)
plain = heart(OWN, "logistic regression alone")
exchanged = [heart(m, "nothing exchanged") for m in (OWN, COMMON)]
zeros = heart("FedAvg, zeros")
clouds_only = [pair(e, "FedCR, own bodies", "Local") for e in ("fedcr/own-classes-2", ONE, "fedcr/own-classes-10")]
full = [pair(e, "FedCR", "FedAvg-FT") for e in FULL]
zurich = ranking.clients(records.load(experiment="headtohead/heart-all")).query("client == 'Zurich'")


def both(page, condition) -> bool:
    """Of what was measured without the term and with it: the columns of the page's table, as they are named there."""
    names = ("width", "away", "same", "other", "inside")
    found = (dict(zip(names, page["found"][f"{word} the term"], strict=True)) for word in ("without", "with"))
    return bool(condition(*found))


def shrunk(page):
    """What the term leaves of each distance between diagnoses: by run, and by what is compared."""
    without, with_ = (
        np.array([page["at_the_end"](run) for run in page["film"][f"{word} the term"]]) for word in ("without", "with")
    )
    return (with_ / without)[:, 2:]


FACTS: list[Fact] = [
    ("this extra term adds {:.1f} points of accuracy, give or take {:.1f}. Taken separately, only the split with uneven shares shows it clearly", term.mean, half(term), term.low > 0, is_open(less(ONE, WITHOUT)), less(TWO, WITHOUT).low > 0),
    ("A target that knows nothing of other clients adds about two thirds of this, and we cannot show that the rest is real", 0.6 < 1 - fixed.mean / term.mean < 0.75, is_open(fixed)),
    ("On our four hospitals we see no gain", all(map(is_open, (own, tenth, common))), own.mean < 0, tenth.mean < 0, common.mean < 0),
    ('Cleveland says "about {}, but I am unsure"', -1.6, lambda page: page["made_up"]["Cleveland"][0] == -1.6),
    ('Zurich says "{}, and I am sure"', 2.4, lambda page: page["made_up"]["Zurich"] == (2.4, 0.5)),
    ("may report that its ill lie near {}", -1.6),
    # the film
    ("The dots stand at widths {}, 1 and 2", 0.5),
    ("Without the term a patient's cloud is clearly narrower than its distance from the common mean", lambda page: both(page, lambda without, with_: without["width"] < 0.75 * without["away"])),
    ("With the term it is about as wide as it is far away", lambda page: both(page, lambda without, with_: 0.75 < with_["width"] / with_["away"] < 1.25)),
    ("clouds of the *same* diagnosis lie about as far apart as their clouds of *different* diagnoses", lambda page: both(page, lambda *each: all(0.8 < one["same"] / one["other"] < 1.3 for one in each))),
    ("Yet the clouds have not become wider. Their means lie at about half the distance, so they moved", lambda page: both(page, lambda without, with_: 0.8 < with_["width"] / without["width"] < 1 and 0.4 < with_["away"] / without["away"] < 0.7)),
    ("These distances, and that between well and ill *inside* a hospital, have all shrunk by about a third", lambda page: both(page, lambda without, with_: all(0.55 < with_[name] / without[name] < 0.78 for name in ("same", "other", "inside")))),
    ("and by more than a quarter in each of the three runs", lambda page: shrunk(page).shape == (3, 3) and bool((shrunk(page) < 0.75).all())),
    ("Three runs with two features", lambda page: len(page["film"]["with the term"]) == 3),
    # the hospitals, and EEG
    ("FedCR is {:.1f} points of balanced accuracy below training alone, give or take {:.1f}, and {:.1f} ± {:.1f} below a logistic regression alone", -own.mean, half(own), -plain.mean, half(plain), is_open(own), is_open(plain)),
    ("the result is {:.1f} points better", -exchanged[0].mean, all(map(is_open, exchanged))),
    ("With the common columns alone it is {:.1f} points below, give or take {:.1f}", -common.mean, half(common), is_open(common)),
    ("is {:.1f} ± {:.1f} points above training alone", zeros.mean, half(zeros), zeros.low > 0),
    ("All intervals include zero", all(map(is_open, (own, tenth, common, eeg, *exchanged)))),
    ("Over FedCR with nothing exchanged stand own and common columns. All include zero", all(map(is_open, exchanged))),
    # the parts, on images
    ("FedCR is {:.1f} ± {:.1f} points better than training alone", alone.mean, half(alone), alone.low > 0),
    ("FedPer, which shares the body too, has {:.1f} of these {:.1f} points", alone.mean - fedper.mean, alone.mean, fedper.low > 0),
    ("The term adds {:.1f} points, give or take {:.1f}", term.mean, half(term)),
    ("yet the product is only {:.1f} ± {:.1f} points ahead of it, an interval that just includes zero", fixed.mean, half(fixed), -0.01 < fixed.low < 0),
    ("but on images we saw no difference", is_open(mixture)),
    ("A mixture instead of the product, or no noise at all, makes no difference that we can see", is_open(mixture), is_open(quiet)),
    ("FedAvg with a tuned head is {:.1f} ± {:.1f} points ahead of FedCR, which we cannot tell from chance", -tuned.mean, half(tuned), is_open(tuned), tuned.mean < 0),
    ("miss such promises by {:.1f} and {:.1f} points on average", *(100 * sum(level) / 2 for level in promised)),
    ("We see no difference", is_open(report.pooled(PROMISES, "FedCR", "FedAvg-FT", metric="ece_scaled"))),
    ("we see no gain over training alone, whether a client has two, five or ten classes", all(map(is_open, clouds_only))),
    ("FedCR minus itself without the term and minus FedPer exclude zero and lie above it", term.low > 0, fedper.low > 0),
    ("Minus a pull to a fixed cloud, a mixture and no noise lie near zero", max(abs(x.mean) for x in (fixed, mixture, quiet)) < 0.15),
    ("Minus fine-tuned FedAvg includes zero and lies below it", is_open(tuned), tuned.mean < 0),
    # the box
    ("Ten splits of the same patients", report.head_to_head("heart")["seeds"][OWN] == 10),
    ("Zurich tests on too few healthy patients", not zurich["counts"].any()),
    ("Tuning took the largest weight of the term that we offered", all(edge(m, s) == "largest" for m in (OWN, COMMON) for s in ("all", "tenth"))),
    ("EEG has three seeds", eeg.n == 3),
    ("Five seeds, intervals", term.n == len(runs(ONE, "FedCR")) == 5),
    ("By itself the term is clearly above zero only on uneven shares, where FedAvg with a tuned head is {:.1f} points ahead of FedCR, give or take {:.1f}", -uneven.mean, half(uneven), is_open(less(ONE, WITHOUT)), less(TWO, WITHOUT).low > 0),
    ("FedCR is {:.1f} and {:.1f} points ahead of FedAvg with a tuned head", *(x.mean for x in full), {x.n for x in full} == {2}),
    ("ran on five splits of each kind", term.n == 5),
]  # fmt: skip

GIVEN = ("we draw 18 points", "A network that says 80 %", "a common mean of width 0.05", "with 0, 0.02 and 1")
