"""What the pages on FedCR say, and how each number comes about."""

import pandas as pd

from facts import Fact, holding, is_open, pair, runs, sized, stored
from hetfl_book import ledger
from hetfl_book.ledger import results
from hetfl_book.papers import fedcr
from hetfl_book.theory import fedcr as theory
from hetfl_core.statistics import Paired

ONE, TWO = (f"fedcr/own-{split}" for split in fedcr.SPLITS)
FULL = [f"fedcr/fmnist-{split}" for split in fedcr.SPLITS]
WITHOUT, NOTHING = "FedCR, beta 0", "FedCR, towards N(0, 1)"


def rivals(own: str) -> pd.DataFrame:
    """Every other method less FedCR, corrected for all of a split."""
    mine = [r for r in stored() if r.experiment == own]
    return ledger.corrected(ledger.effects(mine, own, "FedCR").drop(index="FedCR, own bodies", errors="ignore"))


def less(own: str, changed: str) -> Paired:
    """FedCR less FedCR with one thing changed, of the ablation."""
    found = results.difference(runs(own, "FedCR"), runs(f"{own}-ablation", changed))
    assert found is not None
    return found


def level(found: pd.DataFrame) -> set[str]:
    """What cannot be told apart from FedCR."""
    return set(found.index[~found["finding"]])


def ahead(found: pd.DataFrame) -> tuple[int, int, bool]:
    """How many of how many methods FedCR is ahead of, and whether it is behind none."""
    sure = found[found["finding"]]["mean"]
    return int((sure < 0).sum()), len(found), bool((sure < 0).all())


def chapter() -> list[Fact]:
    one, two = rivals(ONE), rivals(TWO)
    first = [pair(own, "FedCR", "FedAvg-FT") for own in (ONE, TWO)]
    term = [less(own, WITHOUT) for own in (ONE, TWO)]
    pull = [less(own, NOTHING) for own in (ONE, TWO)]
    helps = ledger.corrected(ledger.as_table(dict(zip((ONE, TWO), term, strict=True))))
    full = {base: [pair(e, "FedCR", base).mean for e in FULL] for base in ("FedAvg-FT", "FedPAC")}
    seeds = {pair(e, "FedCR", base).n for e in FULL for base in full}
    table = ledger.paper_table("fedcr", 2).pivot(index="setting", columns="method", values="value")
    apart = (table["FedBABU"] - table["FedPer"]).abs()
    lead = table["FedCR"] - table.drop(columns="FedCR").max(axis=1)
    wide = ["CIFAR100 non-iid_1", "FMNIST non-iid_2"]
    near = table.index.drop(wide)
    c, d = (runs(own, "FedCR") for own in (ONE, TWO))
    return [
        ("FedCR is not shown to lead", not one["finding"].all(), not two["finding"].all()),
        ("(FedAvg-FT) has the highest mean on both splits", one["mean"].idxmax() == two["mean"].idxmax() == "FedAvg-FT", one["mean"].max() > 0, two["mean"].max() > 0),
        ("FedCR's term helps on non-iid_2 only", helps["finding"].tolist() == [False, True], term[1].mean > 0),
        ("which knows nothing of other clients, does as well there to within {} points", 0.1, less(TWO, NOTHING).low > -0.1, less(TWO, NOTHING).high < 0.1),
        ("FedCR is {:.1f} points behind FedAvg-FT ({:.1f} behind to {:.1f} ahead)", -first[0].mean, -first[0].low, first[0].high, is_open(first[0])),
        ("its term adds {:.1f} points ({:.1f} to {:.1f}). FedCR is ahead of {} of {} methods, behind none", *sized(term[0]), *ahead(one)),
        ("FedCR is {:.1f} points behind FedAvg-FT ({:.1f} to {:.1f} behind)", -first[1].mean, -first[1].low, -first[1].high, first[1].high < 0),
        ("its term adds {:.1f} points ({:.1f} to {:.1f}). FedCR is ahead of {} of {} methods, behind none", *sized(term[1]), *ahead(two)),
        ("FedCR is {:.1f} and {:.1f} points ahead of FedAvg-FT on the two splits", *full["FedAvg-FT"]),
        ("(paper: {:.2f} and {:.2f})", *(table.loc[f"FMNIST {s}", "FedCR"] - table.loc[f"FMNIST {s}", "FedAvg-FT"] for s in fedcr.SPLITS)),
        ("and {:.1f} and {:.1f} points behind FedPAC", *(-x for x in full["FedPAC"])),
        ("with only two seeds", seeds == {2}),
        ("Five seeds; 95 % intervals", set(one["seeds"].map(len)) | set(two["seeds"].map(len)) | {x.n for x in term} == {5}),
        ("On non-iid_1 FedCR reaches {:.1f} ± {:.1f} %, and FedAvg-FT and FedPer cannot be told", c.mean(), c.std(), level(one) == {"FedAvg-FT", "FedPer"}),
        ("On non-iid_2 it reaches {:.1f} ± {:.1f} %, and neither FedAvg-FT, whichever of its layers are tuned, nor FedPAC nor FedSR-FT", d.mean(), d.std(),
         level(two) == {"FedAvg-FT", "FedAvg-FT, all", "FedPAC", "FedSR-FT"}),
        ("is {:.1f} points on non-iid_1 ({:.1f} to {:.1f}) and {:.1f} points on non-iid_2 ({:.1f} to {:.1f}), so the two differ by less than half a point", *sized(pull[0]), *sized(pull[1]), all(-0.5 < x.low < x.high < 0.5 for x in pull)),
        ("FedCR first in {} of {} columns of its table", int((lead > 0).sum()), len(lead)),
        ("In six columns of Table 2 the two rows agree within {:.1f} points", apart[near].max(), len(near) == 6),
        ("they differ by {:.1f} points (CIFAR-100, non-iid_1) and by {:.1f} points (Fashion-MNIST", *apart[wide]),
        ("is {:.1f} and {:.1f} points in just these columns, and lies between {:.1f} and {:.1f} points elsewhere", *lead[wide], lead[near].min(), lead[near].max()),
        ("differs by more than FedCR leads with", bool((apart[wide] > lead[wide]).all()), apart.max() > lead.max()),
    ]  # fmt: skip


def parts() -> list[Fact]:
    """What the section on the parts says of features of one more pass, turned to the changed less the whole."""
    fresh = [less(own, "FedCR, fresh features") for own in (ONE, TWO)]
    sizes = [(-x.mean, -x.high, -x.low) for x in fresh]
    return [
        ("change accuracy by {:.1f} points on non-iid_1 ({:.1f} to {:.1f}) and by {:.1f} points on non-iid_2 ({:.1f} to {:.1f}), so we see no difference", *sizes[0], *sizes[1], *map(is_open, fresh), {x.n for x in fresh} == {5}),
    ]  # fmt: skip


TYPED = ["Eq. (9)", "z = ε Σ + μ", "6.2: 4 and 7 bits", "A.2.1: 2 794 852 parameters", "A.2.1: 51 200 numbers"]
OURS = ["… for an encoder q(z | x_i)", "… as target of (7)", "… informs about Section 6"]


def statements() -> list[Fact]:
    table = theory.statements().set_index("statement")
    typed, ours = table.loc[TYPED], table.loc[OURS]
    argument = table.drop(index=[*TYPED, *OURS])
    return [
        ("Of the {} statements of the paper's argument {} hold as printed, {} hold under a condition that the statement does not print, and {} do not hold", len(argument), *holding(argument)),
        ("five formulas as typed and counts, four of which are wrong", holding(typed) == (1, 0, 4)),
        ("three questions of our own about the argument, which are all answered with no", holding(ours) == (0, 0, 3)),
        ("a function of the library for {} of the {},", int(table["words"].str.contains("`").sum()), len(table)),
        ("All {} corrections and conditions are ours", int((table["holds"] != "yes").sum())),
    ]  # fmt: skip


PAGES = {"fedcr-results": chapter, "fedcr-theory": statements}

BELOW = {"fedcr-results": parts}
"""What stands below a page's first section, by page."""

GIVEN: dict[str, list[str]] = {}


def facts(page: str) -> list[Fact]:
    """The facts of a page."""
    return PAGES[page]()
