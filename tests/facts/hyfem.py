"""What the pages on HyFEM say, and how each number comes about."""

from functools import cache
from itertools import product

import pandas as pd
from chosen import best

from facts import Fact, holding, is_open, runs, sized, stored
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


TUNED = {setting.name: setting for setting in hyfem.SETTINGS}
SEEDS = [0, 1, 2]
"""Of the grids on other data."""


def on_validation(data: str, setting: str, column: str = SERVER) -> pd.Series:
    """By seed, in per cent, of a setting of a grid; NaN where the run diverged."""
    return reached(f"hyfem/{data}-grid", setting, column).reindex(SEEDS)


@cache
def for_the_server(data: str, method: str) -> pd.Series:
    """What a method's server reaches on each seed at the setting that the other seeds choose for it."""
    tried = pd.DataFrame({s: on_validation(data, s) for s in hyfem.grid_of(TUNED[data])[method]})
    others = {seed: tried.drop(seed).mean(skipna=False).idxmax() for seed in SEEDS}
    return pd.Series({seed: tried.loc[seed, setting] for seed, setting in others.items()})


def judged(data: str, other: str) -> Paired:
    """HyFEM less another method, each at the settings that the other seeds choose for its server."""
    return gained(for_the_server(data, "HyFEM"), for_the_server(data, other))


@cache
def by_three_seeds(data: str) -> dict[str, str]:
    """The setting of each method that is best for the clients, by the mean of three seeds."""
    grid = hyfem.grid_of(TUNED[data])
    found = {s: list(runs(f"hyfem/{data}-grid", s).reindex(SEEDS)) for some in grid.values() for s in some}
    return best(found, grid)


def changed(data: str) -> int:
    """How many methods three seeds would give another setting than the first."""
    return sum(hyfem.CHOSEN_ON[data][method] != setting for method, setting in by_three_seeds(data).items())


def of_hyfem(data: str, rate: str, pull: str, column: str = SERVER) -> pd.Series:
    """HyFEM at one setting of a grid, as from `on_validation`."""
    return on_validation(data, f"HyFEM, lr {rate}, mu_extractors {pull}, mu_classifier {pull}", column)


def gained(a: pd.Series, b: pd.Series) -> Paired:
    """One less the other, paired by seed."""
    found = results.difference(a, b)
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
        ("On EEG three seeds are too few to tell ({:.1f} points, {:.1f} to {:.1f})", *sized(judged("eeg", "late fusion")), is_open(judged("eeg", "late fusion")), judged("eeg", "late fusion").high > 8.1),
        ("HyFEM's deficit on the solids stays, {:.1f} points behind late fusion ({:.1f} to {:.1f})", *behind(judged("4-views", "late fusion")), judged("4-views", "late fusion").high < 0),
        ("On Fashion-MNIST it is after 32 rounds a little better than zeros for missing blocks and than late fusion", 0 < zeros.low < 1, 0 < fusion.low < 1),
        ("on the solids from four sides late fusion is far better", views[1].high < -5),
    ]  # fmt: skip


def behind(found: Paired) -> tuple[float, float, float]:
    """A difference and its interval, turned round."""
    return -found.mean, -found.high, -found.low


def grids() -> list[Fact]:
    """What the section on other data says of how settings were chosen."""
    compared = gained(*(on_validation("eeg", hyfem.CHOSEN_ON["eeg"][method]) for method in ("HyFEM", "late fusion")))
    three = "HyFEM, lr 0.3, mu_extractors 0.1, mu_classifier 0.1"
    clients = [
        gained(of_hyfem(data, "0.3", "0.1", "accuracy"), of_hyfem(data, *taken, "accuracy"))
        for data, taken in (("4-views", ("0.1", "0")), ("eeg", ("1", "0.5")))
    ]
    better = {
        "4-views": (of_hyfem("4-views", "0.3", "0"), of_hyfem("4-views", "0.1", "0")),
        "eeg": (of_hyfem("eeg", "0.03", "0.1"), of_hyfem("eeg", "1", "0.5")),
    }
    first = [a[0] - b[0] for a, b in better.values()]
    server = [gained(a, b) for a, b in better.values()]
    fusion, zeros = ([judged(data, other) for data in TUNED] for other in ("late fusion", "FedAvg, zeros"))
    return [
        ("for {} of the {} methods on four views and for {} of the {} on EEG", *(x for data in TUNED for x in (changed(data), len(by_three_seeds(data))))),
        ("would take the rate 0.3 with a pull of 0.1. Its", *(by_three_seeds(data)["HyFEM"] == three != hyfem.CHOSEN_ON[data]["HyFEM"] for data in TUNED)),
        ("not shown to gain by that on validation samples, {:.1f} points on four views ({:.1f} to {:.1f}) and {:.1f} on EEG ({:.1f} to {:.1f})", *sized(clients[0]), *sized(clients[1]), *map(is_open, clients), {x.n for x in clients} == {3}),
        ("was {:.1f} points better for the server on four views than the 0.1 that was chosen", first[0]),
        ("Over three seeds that is {:.1f} points ({:.1f} to {:.1f})", *sized(server[0]), is_open(server[0])),
        ("was {:.1f} points better than what was chosen, and", first[1]),
        ("over three seeds it is no better ({:.1f} points, {:.1f} to {:.1f})", *sized(server[1]), is_open(server[1])),
        ("HyFEM is then {:.1f} points behind late fusion ({:.1f} to {:.1f})", *behind(fusion[0]), fusion[0].high < 0),
        ("not shown to differ from zeros ({:.1f} points, {:.1f} to {:.1f}). On EEG it is not", *sized(zeros[0]), is_open(zeros[0])),
        ("{:.1f} points against late fusion ({:.1f} to {:.1f}) and {:.1f} against zeros ({:.1f} to {:.1f})", *sized(fusion[1]), *sized(zeros[1]), is_open(fusion[1]), is_open(zeros[1])),
        ("it is {:.1f} points on the same samples ({:.1f} to {:.1f}), an interval in which zero and eight points both lie", *sized(compared), compared.low < 0 < 8 < compared.high),
    ]  # fmt: skip


def statements() -> list[Fact]:
    table = theory.statements().set_index("statement").drop(index="… by the exact cost, in turn")
    return [
        ("Of {} statements {} hold as printed, {} hold under a condition that is not printed, and {} do not hold", len(table), *holding(table)),
        ("its matching step can go the wrong way", table.loc["Algorithm 2 lowers (11)", "holds"] == "no"),
        ("holds as printed from two local steps on, although one step of its printed proof does not follow", table.loc["Theorem 2, of iteration (22)", "holds"] == "if", table.loc["… (35) follows from (34)", "holds"] == "no"),
    ]  # fmt: skip


PAGES = {"hyfem-results": chapter, "hyfem-theory": statements}

BELOW = {"hyfem-results": grids}
"""What stands below a page's first section, by page."""

GIVEN: dict[str, list[str]] = {}


def facts(page: str) -> list[Fact]:
    """The facts of a page."""
    return PAGES[page]()
