"""What the pages on FLIC say, and how each number comes about."""

from dataclasses import fields

import pandas as pd

from facts import Fact, claims, is_open, pair, runs, sized, stored, verdicts
from hetfl_book import ledger
from hetfl_book.experiments import EXPERIMENTS
from hetfl_book.ledger import results
from hetfl_book.papers.flic import PUBLISHED_MLP
from hetfl_book.theory import flic_distances as theory
from hetfl_core.methods import FLIC
from hetfl_core.networks import Model
from hetfl_core.statistics import Paired

TEXT, CODE = "flic/digits-b100-c3", "flic/digits-dealt-b100-c3"
NOISY, LINEAR, BCI, WRITERS = "flic/toy-noisy", "flic/toy-linear", "flic/bci-common40", "flic/femnist-50"
ABLATIONS = {"BCI": "flic/ablation-bci", "noisy": "flic/ablation-noisy", "linear": "flic/ablation-linear"}


def many(*found: Paired) -> bool:
    """Whether the fewest seeds are three and the most five."""
    return (min(x.n for x in found), max(x.n for x in found)) == (3, 5)


def method() -> list[Fact]:
    alone = [pair(e, "FLIC-HL", "Local") for e in (NOISY, LINEAR, TEXT, BCI, WRITERS, CODE)]
    losses = [-x.mean for x in alone if x.high < 0]
    anchors = pair(WRITERS, "FLIC-Class", "Local")
    noisy, linear, bci = (
        pair(ABLATIONS[place], "FLIC-HL, with dropout", "Local, with dropout") for place in ("noisy", "linear", "BCI")
    )
    return [
        ("in none of six settings", sum(x.low > 0 for x in alone) == 0, len(alone) == 6),
        ("In three it is less accurate, by {:.1f} to {:.1f} points,", min(losses), max(losses), len(losses) == 3),
        ("and in three we cannot tell", sum(map(is_open, alone)) == 3),
        ("{:.1f} points ahead of training alone on noisy features ({:.1f} to {:.1f})", *sized(noisy), noisy.low > 0),
        ("on linear mapping ({:.1f} points, {:.1f} to {:.1f})", *sized(linear), is_open(linear)),
        ("on EEG ({:.1f} points, {:.1f} to {:.1f})", *sized(bci), is_open(bci)),
        ("Paired over three to five seeds", many(*alone, noisy, linear, bci)),
        ("{:.1f} points ahead of training alone on FEMNIST ({:.1f} to {:.1f})", *sized(anchors), anchors.low > 0),
    ]  # fmt: skip


def better(**instead: str) -> pd.DataFrame:
    """The claims that one method is more accurate than another in one setting."""
    found = claims(**instead)
    return found[(found["paper"] == "flic") & (found["kind"] == "better") & (found["against"] == "")]


def effects(place: str) -> pd.DataFrame:
    """Every switch of an ablation, corrected over all of them, as the page has it."""
    switches = EXPERIMENTS[ABLATIONS[place]].methods
    base = switches["FLIC-HL"]
    one = [
        name
        for name, m in switches.items()
        if isinstance(m, FLIC) and sum(getattr(m, f.name) != getattr(base, f.name) for f in fields(FLIC)) == 1
    ]
    found = ledger.effects(stored(), ABLATIONS[place], "FLIC-HL")
    found = ledger.corrected(found.loc[[name for name in one if name in found.index]])
    return found.rename(index=lambda name: name.removeprefix("FLIC-HL, "))


AWAY = {"no alignment in rounds", "no anchor term", "no pre-training", "anchors frozen"}


def survives(place: str) -> dict[str, float]:
    """The steps towards the published code that survive the correction; dropout is one on BCI alone."""
    found = effects(place)
    kept = found[found["finding"]].drop(index=AWAY, errors="ignore")["mean"]
    return (kept if place == "BCI" else kept.drop("with dropout", errors="ignore")).to_dict()


def steps() -> tuple[bool, float, float, float]:
    """Whether just three steps survive, and what each of them changes."""
    left = {place: survives(place) for place in ABLATIONS}
    names = {place: list(found) for place, found in left.items()}
    just = names == {"BCI": ["with dropout"], "noisy": ["realigned"], "linear": ["M-1 and 1 epochs"]}
    return just, *(next(iter(found.values())) for found in left.values())


def holds() -> list[Fact]:
    text, code = better(), better(digits_b100_c3="digits-dealt-b100-c3")
    judged, again = text[text["p"].notna()], code[code["p"].notna()]
    v, w, h, wh = verdicts(text), verdicts(code), verdicts(text, "verdict_holm"), verdicts(code, "verdict_holm")
    lost, kept = (judged[judged["verdict"] == one] for one in ("reverses", "holds"))
    of_digits = lost.loc[lost["experiment"] == TEXT, "id"]
    d = verdicts(again[again["id"].isin(of_digits)])
    decided = judged[judged["verdict"] != "open"]
    off = decided[decided["baseline"] != ""]
    names = {TEXT: "Digits", BCI: "BCI-common", WRITERS: "FEMNIST"}
    where = off.groupby("worse")["experiment"].agg(lambda e: sorted({names[x] for x in e})).to_dict()
    largest = {place: effects(place)["mean"].abs().idxmax() for place in ABLATIONS}
    just, dropout, realigned, within = steps()
    moved = {place: effects(place)["mean"][name] for place, name in largest.items()}
    return [
        ("More claims are reversed than hold, but that turns", v["reverses"] > v["holds"], w["reverses"] < w["holds"]),
        ("Of the {} claims that one method is more accurate than another, {} can be judged", len(text), len(judged)),
        ("Taken singly, {} hold, {} are open and {} are reversed", v["holds"], v["open"], v["reverses"]),
        ("authors' code, {} hold, {} are open and {} are reversed", w["holds"], w["open"], w["reverses"]),
        ("{} hold, {} are open and {} are reversed with the text's", h["holds"], h["open"], h["reverses"]),
        ("and {} hold, {} are open and {} are reversed with the code's", wh["holds"], wh["open"], wh["reverses"]),
        ("is {:.1f} points where a claim is reversed and", lost["difference"].median()),
        ("{:.1f} points where one holds", kept["difference"].median()),
        ("The reversed claims are about Digits, linear mapping and noisy features", set(lost["experiment"]) == {TEXT, NOISY, LINEAR}),
        ("of the seven on Digits {} holds, {} are open and {} is reversed", d["holds"], d["open"], d["reverses"], len(of_digits) == 7),
        ("over three to five seeds", set(judged["seeds"].map(len)) <= {3, 4, 5}, judged["seeds"].map(len).min() == 3),
        ("Of the {} claims that are decided, {} compare", len(decided), int(decided["checkable"].sum())),
        ("In {} of these {} our number is another", len(off), int(decided["checkable"].sum())),
        ("has the largest effect, {:.1f} points. On both toys dropout has it, {:.1f} points on noisy features and {:.1f} on linear mapping", *moved.values(),
         largest == {"BCI": "no pre-training", "noisy": "with dropout", "linear": "with dropout"}),
        ("three survive: dropout costs {:.1f} points on BCI, re-aligning in every round costs {:.1f} on noisy features, and an epoch for α within the local ones gains {:.1f} on", -dropout, -realigned, within, just),
        ("Of the {} that can be judged, {} hold, {} are open and {} are reversed after", len(judged), h["holds"], h["open"], h["reverses"]),
        ("The other {} wait", len(text) - len(judged)),
        ("In {} of the decided claims our number for the rival is not the paper's", len(off)),
        ("This concerns Local and HetFedRep on Digits and FEMNIST, FedHeNN on Digits, HetFedRep on BCI-common, and FedRep on BCI-common and FEMNIST",
         where == {"FedHeNN": ["Digits"], "FedRep": ["BCI-common", "FEMNIST"], "HetFedRep": ["BCI-common", "Digits", "FEMNIST"], "Local": ["Digits", "FEMNIST"]}),
    ]  # fmt: skip


def tables() -> list[Fact]:
    places = {"noisy": NOISY, "linear": LINEAR, "digits": TEXT, "bci": BCI, "femnist": WRITERS}
    rivals = ("Local", "FedHeNN", "HetFedRep", "FedRep")
    found = {
        (place, rival): pair(e, "FLIC-HL", rival)
        for place, e in places.items()
        for rival in rivals
        if len(runs(e, rival))
    }
    ahead, behind = (
        {k: x.mean for k, x in found.items() if side(x)} for side in (lambda x: x.low > 0, lambda x: x.high < 0)
    )
    lost = {p: sorted(-m for (place, _), m in behind.items() if place == p) for p in ("noisy", "linear", "digits")}
    three = {(p, r) for p in lost for r in ("Local", "FedHeNN", "HetFedRep")}
    total = ledger.tally(ledger.numbers([]), claims()[claims()["paper"] == "flic"])
    h = total.corrected
    return [
        ("is ahead in {} of {} comparisons, behind in {} of them, and {} are open", len(ahead), len(found), len(behind), sum(map(is_open, found.values()))),
        ("ahead of FedRep by {:.1f} points and of HetFedRep by {:.1f} on BCI-common", ahead["bci", "FedRep"], ahead["bci", "HetFedRep"]),
        ("and of FedRep by {:.1f} points on FEMNIST", ahead["femnist", "FedRep"], len(ahead) == 3),
        ("on noisy features (by {:.1f} to {:.1f} points)", lost["noisy"][0], lost["noisy"][-1], set(behind) == three),
        ("on linear mapping (by {:.1f} to {:.1f} points)", lost["linear"][0], lost["linear"][-1]),
        ("and on Digits (by {:.1f} to {:.1f} points)", lost["digits"][0], lost["digits"][-1]),
        ("all three differences on Digits are open", all(is_open(pair(CODE, "FLIC-HL", r)) for r in rivals[:3])),
        ("over three to five seeds, and taken singly", many(*found.values())),
        ("Of all {} claims of the paper {} can be judged", total.claims, sum(total.by_rule.values())),
        ("{} hold, {} are open, {} are reversed and {} fail (", h["holds"], h["open"], h["reverses"], h["fails"]),
    ]  # fmt: skip


def from_table_3() -> dict[str, dict[str, float]]:
    """Points between our number and the printed one of each method, with digits dealt as in the text and in the code."""
    printed = ledger.paper_table("flic", 3).query(f"experiment == '{TEXT}'").set_index("method")["value"]
    return {e: {m: runs(e, m).mean() - printed[m] for m in printed.index} for e in (TEXT, CODE)}


def near(gaps: dict[str, dict[str, float]]) -> dict[str, int]:
    """How many of `from_table_3` lie within one point."""
    return {e: sum(abs(gap) <= 1 for gap in each.values()) for e, each in gaps.items()}


def code() -> list[Fact]:
    text, published = FLIC(), FLIC.published(model=Model(PUBLISHED_MLP, alpha=100))
    different = [f.name for f in fields(FLIC) if getattr(text, f.name) != getattr(published, f.name)]
    ours = from_table_3()
    close, printed = near(ours), ours[TEXT]
    just, dropout, realigned, within = steps()
    as_code, samples = f"{BCI}-published", "accuracy_weighted"
    on_bci = ledger.paper_table("flic", 4).query(f"experiment == '{BCI}'").set_index("method")["value"]
    both = [m for m in on_bci.index if len(runs(as_code, m))]
    by_code, by_text = (
        sum(abs(runs(e, m, of).mean() - on_bci[m]) <= 1 for m in both)
        for e, of in ((as_code, samples), (BCI, "accuracy"))
    )
    lead = pair(as_code, "FLIC-HL", "Local", samples)
    over_text = results.difference(runs(as_code, "FLIC-HL", samples), runs(BCI, "Local", samples))
    by_mmd = pair(as_code, "FLIC-HL, MMD", "FLIC-HL", samples)
    assert over_text is not None
    return [
        ("all {} methods of the table that we ran come within one point", len(both), by_code == len(both)),
        ("as a mean over clients, {} of the {} do", by_text, len(both)),
        ("FLIC-HL then leads Local by {:.1f} points ({:.1f} to {:.1f})", *sized(lead), lead.low > 0),
        ("we see no lead ({:.1f} points, {:.1f} to {:.1f})", *sized(over_text), is_open(over_text)),
        ("costs FLIC-HL {:.1f} points ({:.1f} to {:.1f})", -by_mmd.mean, -by_mmd.high, -by_mmd.low, by_mmd.high < 0),
        ("differ in {} settings of the method", len(different)),
        ("three of the {} are shown to move accuracy", len(different), just),
        ("Dropout costs {:.1f} points on BCI", -dropout),
        ("gains {:.1f} points on linear mapping", within),
        ("costs {:.1f} points on noisy features", -realigned),
        ("Dealt as in the text, {} of its {} methods come within one point", close[TEXT], len(printed)),
        ("Dealt as in the code, {} of {} do, and HetFedRep is {:.1f} points", close[CODE], len(printed), ours[CODE]["HetFedRep"]),
    ]  # fmt: skip


def variants() -> list[Fact]:
    six = ["FLIC-FedAvgFT", "FLIC-L2GD", "FLIC-HL, sampled W2", "FLIC-HL, MMD", "FLIC-HL, mixture W2", "FLIC-HL, learned covariance"]  # fmt: skip
    found = ledger.corrected(ledger.effects(stored(), "flic/alternatives-bci", "FLIC-HL").loc[six])
    apart = found[(found["low"] > 0) | (found["high"] < 0)]["mean"].to_dict()
    waits = not any(r.experiment in ("flic/alternatives-noisy", "flic/alternatives-linear") for r in stored())
    return [
        ("none of the six can be told from FLIC-HL as it is", not found["finding"].any()),
        ("none changes accuracy by more than {:.1f} points", found["mean"].abs().max()),
        ("excludes zero ({:.1f} points more)", apart["FLIC-L2GD"], set(apart) == {"FLIC-L2GD", "FLIC-HL, mixture W2"}),
        ("mixtures of Gaussians ({:.1f} points less)", -apart["FLIC-HL, mixture W2"]),
        ("over five seeds", set(found["seeds"].map(len)) == {5}),
        ("on noisy features and linear mapping are still to be run", waits),
    ]


def distances() -> list[Fact]:
    bias, best = (lambda n: theory.batch_bias(n, 64)), (lambda n: theory.shrunk_scale(n, 64))
    return [
        ("three rows of the class give {:.0f} on average, a hundred {:.0f} and a thousand {:.1f}", *map(bias, (3, 100, 1000))),
        ("from three rows has {:.2f} times the anchor's spread, and that from a hundred {:.2f} times", best(3), best(100)),
        ("rises from {:.2f} to almost 1", best(2)),
        ("falls from about 140", round(bias(2), -1) == 140),
    ]  # fmt: skip


PAGES = {
    "flic-results": method,
    "flic-numerics": list,
    "flic-disagrees": holds,
    "flic-experiments": tables,
    "flic-code": code,
    "flic-variants": variants,
    "flic-distances": distances,
    "flic-theory": list,
}

GIVEN = {"flic-variants": ["Intervals of 95 %"]}
"""The level of intervals."""


def facts(page: str) -> list[Fact]:
    """The facts of a page."""
    return PAGES[page]()
