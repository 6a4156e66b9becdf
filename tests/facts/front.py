"""What the front page says, besides its tables."""

import re

from facts import BOOK, CODE, Fact, flic, hyfem, over, pair, stored
from facts.fedcma import MNIST, WRITERS, lines
from facts.part_one import deployment, fedcma, which_method
from facts.tour import exchanged, in_order, more
from hetfl_book import ledger

ZEROS = which_method.ZEROS
near = flic.near(flic.from_table_3())
cells = {name: hyfem.reached(hyfem.PARTS, name).mean() for name in hyfem.CELLS}

best = [name for name, reached in cells.items() if abs(reached - max(cells.values())) < 0.005]
"""Settings of HyFEM in which its server is right most often."""

SIX = (*MNIST, WRITERS, "fedcma/cifar10-reduced-10")
led = ledger.corrected(ledger.as_table({e: pair(e, "Fed-CMA", "Local") for e in SIX}))
"""Fed-CMA over training alone, corrected for the number of settings, as the page has it."""

TOLD = set(ledger.numbers()["experiment"])
"""Experiments whose numbers the page's second table counts."""

PAPERS = ("flic", "fedcr", "fedcma", "hyfem")
NO_PATIENTS = {"blocks", "digits", "eeg_blocks", "fedgen", "femnist", "flic_bci", "pfedhn", "pooled", "solids", "toy"}
"""What the papers' settings are made of: images, recordings and made-up points."""

FACTS: list[Fact] = [
    ("Fed-CMA was better on handwriting and on one split of MNIST, which", [e for e in SIX if led.loc[e, "finding"] and led.loc[e, "mean"] > 0] == ["fedcma/mnist-alpha-0.05", WRITERS]),
    ("does not survive a correction for the eight methods of its page", not any("Local" in lines(experiment) for experiment in MNIST)),
    ("averaging the last layer alone reaches most of its gain", fedcma.head_alone.mean > 2 / 3 * fedcma.alone.mean),
    ("A small change to a network that trains alone (chapter 8) gains more", over(MNIST, "Local, sigmoid", "Fed-CMA").low > 0, fedcma.sigmoid.low > 0),
    ("with it in both Fed-CMA is behind", fedcma.both.high < 0),
    ("The table below counts the text's split", flic.TEXT in TOLD, flic.CODE not in TOLD),
    ("one win is on CIFAR-10 in single colours", pair("hyfem/colours-cifar10", "HyFEM", "FedAvg, zeros", hyfem.SERVER).low > 0),
    ("On tables of patients no way of learning together is shown to beat the best way to stay alone", *which_method.NONE_AHEAD, *in_order),
    ("in 21 settings that follow these papers, some of them smaller, none of which is a table of patients", {r.federation["name"].split(".")[0] for r in stored() if r.experiment.split("/")[0] in PAPERS} <= NO_PATIENTS),
    ("FedAvg with a zero in each missing column gains five points", 4.5 < more[ZEROS].mean < 5.5, more[ZEROS].low > 0),
    ("Most of that is a better threshold", which_method.SHARES["heart", "all"] < more[ZEROS].mean / 2),
    ("hospitals fare the same when nothing is exchanged", abs(exchanged["FLIC-Class"].mean) < 0.05),
    ("In the best runs of HyFEM's server matching changed nothing", len({name.split(",")[0] for name in best}) == len({name.split(",")[0] for name in cells}) > 1),
    ("The published code's rule cost it {:.0f} points where clients start apart and nothing pulls them together", -hyfem.by_the_published_rule("mu 0, own starts, reset").mean),
    ("split USPS among the clients as its code does, and four of our five numbers agree", near[flic.CODE] == 4, len(flic.from_table_3()[flic.CODE]) == 5),
    ("Split it as its text says, and none does", near[flic.TEXT] == 0),
    ("which classes a client holds", deployment.talking["presence_direct"].min() > 0.85),
]  # fmt: skip


def said() -> str:
    """The page without its code, formulas and what the build fills in, links as their words."""
    text = re.sub(r"\{\{[^}]*\}\}", " ", (BOOK / "index.md").read_text("utf8"))
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(CODE.sub(" ", text).split())
