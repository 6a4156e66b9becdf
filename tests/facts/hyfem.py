"""What the pages on HyFEM say, and how each number comes about."""

from functools import cache
from itertools import product

import pandas as pd

from facts import Fact, holding, is_open, sized, stored
from hetfl_book import ledger
from hetfl_book.ledger import results
from hetfl_book.papers import hyfem
from hetfl_book.theory import hyfem as theory
from hetfl_core.statistics import Paired

MAIN, PARTS = "hyfem/quadrants", "hyfem/quadrants-ablation"
PUBLISHED, ORDER = "hyfem/quadrants-published", "hyfem/quadrants-order"
SERVER = "server_accuracy"
CELLS = [", ".join(cell) for cell in product(hyfem.MATCHING, [f"mu {mu:g}" for mu in hyfem.MUS], hyfem.STARTS, hyfem.ROUNDS)]  # fmt: skip


@cache
def reached(experiment: str, method: str, column: str = SERVER) -> pd.Series:
    """By seed, in per cent, after the last round."""
    return results.at_round(stored(), experiment, method, column)


def minus(experiment: str, other: str, column: str = SERVER, method: str = "HyFEM") -> Paired:
    """HyFEM less another method."""
    found = results.difference(reached(experiment, method, column), reached(experiment, other, column))
    assert found is not None
    return found


def matching(kind: str) -> Paired:
    """What matching changes where clients start apart, with the reset and no pull."""
    return minus(PARTS, "no matching, mu 0, own starts, reset", method=f"{kind}, mu 0, own starts, reset")


def by_the_published_rule(rest: str) -> Paired:
    """What the published code's rule changes, where all else is as in `rest`."""
    rule = reached(PUBLISHED, f"published, {rest}")
    found = results.difference(rule, reached(PARTS, f"no matching, {rest}"))
    assert found is not None
    return found


def chapter() -> list[Fact]:
    kinds = list(hyfem.MATCHING)[1:]
    as_printed = [f"mu {mu:g}, common start, reset" for mu in hyfem.MUS]
    changes = pd.concat(
        [
            reached(PARTS, f"{kind}, {rest}") - reached(PARTS, f"no matching, {rest}")
            for kind in kinds
            for rest in as_printed
        ]
    )
    served = [name for name in hyfem.FAMILIES if name != "Local"]
    gaps = ledger.corrected(results.apart({name: reached(MAIN, name) for name in served}, "HyFEM"))
    fusion, zeros, common, prox, whole = (
        minus(MAIN, name)
        for name in ("late fusion", "FedAvg, zeros", "FedAvg, common blocks", "FedProx, common blocks", "centralised")
    )
    held, all_classes = minus(MAIN, "Local", "own_held_accuracy"), minus(MAIN, "Local", "accuracy")
    eeg = minus("hyfem/eeg", "Local", "accuracy")
    longer = {name: minus(f"{MAIN}-128", name) for name in ("late fusion", "FedAvg, zeros")}
    views = [minus("hyfem/4-views", name) for name in ("FedAvg, zeros", "late fusion")]
    brain = [minus("hyfem/eeg", name) for name in ("FedAvg, zeros", "late fusion")]
    best = max(reached(PARTS, cell).mean() for cell in CELLS if cell.startswith("no matching"))
    loose = [reached(PARTS, f"{kind}, mu 0, own starts, go on").mean() for kind in ("no matching", "exact")]
    apart, together, pulled = "mu 0, own starts, reset", "mu 0, common start, reset", "mu 0.1, own starts, reset"
    costs = by_the_published_rule(apart)
    same = [f"mu {mu:g}, common start, {begin}" for mu in hyfem.MUS if mu for begin in hyfem.ROUNDS]
    turns = [f"mu {mu:g}, {start}, reset" for mu in hyfem.MUS for start in hyfem.STARTS]
    turned = [(reached(ORDER, f"random, {rest}") - reached(PARTS, f"distance, {rest}")).mean() for rest in turns]
    moved = [
        reached(ORDER, f"random, {rest}") - reached(PARTS, f"no matching, {rest}") for rest in same if "reset" in rest
    ]
    clients = [
        reached(*run, "accuracy").mean()
        for run in ((PARTS, f"no matching, {apart}"), (PUBLISHED, f"published, {apart}"))
    ]
    loosened = [
        reached(PARTS, "no matching, mu 0, own starts, go on"),
        reached(PUBLISHED, "published, mu 0, own starts, go on"),
    ]
    chosen = hyfem.GRID["HyFEM"][hyfem.CHOSEN["HyFEM"]]
    off = chosen.extractor_weight == chosen.classifier_weight == 0 and chosen.reset  # type: ignore[attr-defined]
    return [
        ("in any of our {} runs there", len(changes), bool((changes == 0).all())),
        ("It costs the server {:.1f} points ({:.1f} to {:.1f})", -costs.mean, -costs.high, -costs.low, costs.high < 0),
        ("With a common start or a pull we see no effect of it", is_open(by_the_published_rule(together)), *(is_open(by_the_published_rule(f"mu {mu:g}, {start}, reset")) for mu in hyfem.MUS if mu for start in hyfem.STARTS)),
        ("it leaves the server at {:.0f}, {:.0f} and {:.0f} % in our three seeds, where it has {:.0f}, {:.0f} and {:.0f} % without matching", *reached(PUBLISHED, f"published, {apart}"), *reached(PARTS, f"no matching, {apart}")),
        ("as downloaded fall from {:.0f} to {:.0f} %", *clients),
        ("With a pull of 0.1 the rule changes the server by {:.1f} points ({:.1f} to {:.1f}), and with", *sized(by_the_published_rule(pulled)), is_open(by_the_published_rule(pulled))),
        ("a common start and no pull by {:.1f} points ({:.1f} to {:.1f})", *sized(by_the_published_rule(together)), is_open(by_the_published_rule(together))),
        ("without a pull it takes the server from {:.0f} to {:.0f} %, much as the exact cost does", *(series.mean() for series in loosened), abs(loosened[1].mean() - loose[1]) < 5),
        ("differs from all at once by less than a point on average wherever there is a reset", max(map(abs, turned)) < 1),
        ("moves a single run by up to a point", 0.5 < max(abs(series).max() for series in moved) < 1),
        ("the rule and the order give the same digits", *((reached(PUBLISHED, f"published, {rest}") == reached(ORDER, f"random, {rest}")).all() for rest in same)),
        ("Tuning turned HyFEM's penalty off", off),
        ("It is right on {:.1f} % of samples with all blocks", reached(MAIN, "HyFEM").mean()),
        ("That is {:.1f} points more than late fusion ({:.1f} to {:.1f})", *sized(fusion), fusion.low > 0),
        ("and {:.1f} points more than zeros for missing blocks ({:.1f} to {:.1f})", *sized(zeros), zeros.low > 0),
        ("minus FedAvg on the common blocks is {:.1f} points ({:.1f} to {:.1f})", *sized(common), is_open(common)),
        ("is {:.1f} points less accurate than training alone.", -held.mean),
        ("Their loss after local steps is {:.1f} to {:.1f} points, their lead as downloaded {:.1f} to {:.1f} points", -held.high, -held.low, all_classes.low, all_classes.high, held.high < 0),
        ("it is {:.1f} points more accurate.", all_classes.mean, all_classes.low > 0),
        ("late fusion is still {:.1f} points behind ({:.1f} to {:.1f}), and", *sized(longer["late fusion"]), longer["late fusion"].low > 0),
        ("have drawn level (HyFEM minus zeros {:.1f} points, {:.1f} to {:.1f})", *sized(longer["FedAvg, zeros"]), is_open(longer["FedAvg, zeros"])),
        ("HyFEM's server reaches {:.1f} and {:.1f} %, and zeros {:.1f} and {:.1f} %", *(reached(f"{MAIN}-{n}", m).mean() for m in ("HyFEM", "FedAvg, zeros") for n in (64, 128))),
        ("three seeds each, the same settings", {len(reached(f"{MAIN}-{n}", "HyFEM")) for n in (64, 128)} == {3}),
        ("The {} runs are with", len(changes)),
        ("not shown to differ from FedAvg on the common blocks", is_open(common)),
        ("Five seeds; 95 % intervals", {len(reached(MAIN, name, "accuracy")) for name in hyfem.FAMILIES} == {5}),
        ("the lead over late fusion is left, and that over zeros is not", gaps.loc["late fusion", "finding"], not gaps.loc["FedAvg, zeros", "finding"]),
        ("by {:.1f} points with the cost *distance* ({:.1f} to {:.1f})", *sized(matching("distance"))),
        ("by {:.1f} points with *exact* ({:.1f} to {:.1f})", *sized(matching("exact"))),
        ("and by {:.1f} points with *PFNM* ({:.1f} to {:.1f})", *sized(matching("PFNM")), len(kinds) == 3),
        ("takes the server from {:.0f} to {:.0f} %, but the best setting without any matching has {:.0f} %", *loose, best),
        ("({:.1f} points, {:.1f} to {:.1f}).", *sized(eeg), is_open(eeg)),
        ("HyFEM is {:.1f} points more accurate than FedProx on the common blocks ({:.1f} to {:.1f})", *sized(prox), prox.low > 0),
        ("and {:.1f} points less accurate than training in one place ({:.1f} to {:.1f})", -whole.mean, -whole.high, -whole.low, whole.high < 0),
        ("it is not shown to differ from zeros ({:.1f} points, {:.1f} to {:.1f})", *sized(views[0]), is_open(views[0])),
        ("and {:.1f} points behind late fusion ({:.1f} to {:.1f})", -views[1].mean, -views[1].high, -views[1].low, views[1].high < 0),
        ("from zeros either ({:.1f} points, {:.1f} to {:.1f})", *sized(brain[0]), is_open(brain[0])),
        ("and {:.1f} points ahead of late fusion ({:.1f} to {:.1f})", *sized(brain[1]), brain[1].low > 0),
        ("On Fashion-MNIST it is after 32 rounds a little better than zeros for missing blocks and than late fusion", 0 < zeros.low < 1, 0 < fusion.low < 1),
        ("on the solids from four sides late fusion is far better", views[1].high < -5),
    ]  # fmt: skip


def statements() -> list[Fact]:
    table = theory.statements().set_index("statement").drop(index="… by the exact cost, in turn")
    return [
        ("Of {} statements {} hold as printed, {} hold under a condition that is not printed, and {} do not hold", len(table), *holding(table)),
        ("its matching step can go the wrong way", table.loc["Algorithm 2 lowers (11)", "holds"] == "no"),
        ("holds as printed from two local steps on, although one step of its printed proof does not follow", table.loc["Theorem 2, of iteration (22)", "holds"] == "if", table.loc["… (35) follows from (34)", "holds"] == "no"),
    ]  # fmt: skip


PAGES = {"hyfem-results": chapter, "hyfem-theory": statements}

GIVEN: dict[str, list[str]] = {}


def facts(page: str) -> list[Fact]:
    """The facts of a page."""
    return PAGES[page]()
