"""``hetfl compare`` and ``hetfl train``: the runs, what is concluded from them, the page, and the models."""

from __future__ import annotations

import html.parser
import itertools
import math
import pickle
import re
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from hetfl_core import Federation, Preparation, cli, cli_tables, comparing, load_trained, report, simulate
from hetfl_core.clients import FederationWarning
from hetfl_core.datasets import heart
from hetfl_core.deployment import agreement
from hetfl_core.engine.apart import simulate_apart
from hetfl_core.errors import HetflError
from hetfl_core.learners import Federated
from hetfl_core.reporting import judging, page, training, trials
from hetfl_core.reporting.trials import Tables, Trials
from hetfl_core.reporting.ways import WAYS, Boosting, Logistic, Way, ways_of
from hetfl_core.statistics import interval

NAMES = ["North", "South"]
READ = {"target": "ill", "prepare": Preparation()}


def table(n: int = 90, seed: int = 0, sites: list[str] | None = None) -> pd.DataFrame:
    """Rows of two sites; the second has no `b`. Numbers have digits by which a row would be known again."""
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"a": 1000 + rng.normal(size=n), "b": 2000 + rng.normal(size=n)})
    found["word"] = rng.choice(["red", "blue"], n)
    found["ill"] = np.where(found["a"] + 0.5 * rng.normal(size=n) > 1000, "yes", "no")
    found["site"] = np.resize(sites or NAMES, n)
    found.loc[found["site"] == (sites or NAMES)[1], "b"] = np.nan
    return found


def tables(folder: Path, frame: pd.DataFrame | None = None, **options) -> Tables:
    path = folder / "all.csv"
    (table() if frame is None else frame).to_csv(path, index=False)
    told = {"client": "site", "target": "ill", "prepare": Preparation(), **options}
    return Tables((str(path),), told)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Trials:
    return trials.run_all(tables(tmp_path_factory.mktemp("ran")), seeds=3, rounds=2, n_jobs=1, progress=False)


# --- intervals --------------------------------------------------------------------------------------------------------


def test_splits_that_overlap_make_the_interval_longer():
    """By hand: gaps 1, 2, 3 have mean 2 and variance 1; Student's t with two degrees of freedom, 0.975: 4.3027."""
    gain = judging.resampled([1.0, 2.0, 3.0], 0.5)
    half = 4.302653 * math.sqrt(1 / 3 + 0.5)
    assert gain[:3] == pytest.approx((2, 2 - half, 2 + half), rel=1e-6)
    plain = judging.resampled([1.0, 2.0, 3.0], 0.0)
    assert plain[:3] == pytest.approx(interval([1.0, 2.0, 3.0]))
    assert plain.p == pytest.approx(stats.ttest_1samp([1.0, 2.0, 3.0], 0).pvalue)
    assert judging.resampled([2.0, 2.0, 2.0], 0.5) == (2, 2, 2, 0)
    assert judging.resampled([0.0, 0.0, 0.0], 0.5) == (0, 0, 0, 1)
    for bad in ([1.0, 2.0], [1.0, 2.0, math.nan]):
        assert all(map(math.isnan, judging.resampled(bad, 0.5)))


# --- what is concluded ------------------------------------------------------------------------------------------------


@cache
def federation_of(names: tuple[str, ...], times: int = 1) -> Federation:
    frame = pd.concat([table(max(90, 20 * len(names)), sites=[*names])] * times, ignore_index=True)
    return Federation.from_frame(frame, client="site", target="ill", prepare=Preparation())


def made(gaps, rarest=20, fixed=False, measure="auc", noise=0.001, names=NAMES, inner=None) -> Trials:
    """Runs of which a way differs from the base by so much at each site, with a little noise over ten splits.

    On rows cut from the training rows it differs by `inner`, by default by as much.
    """
    rng, ways = np.random.default_rng(0), ["logistic", *gaps]
    rows: dict[bool, list[dict]] = {False: [], True: []}
    for seed, site, of_choice in itertools.product(range(10), names, rows):
        base, differ = 0.7 + 0.01 * rng.normal(), (inner or gaps) if of_choice else gaps
        for key in ways:
            gap = differ[key][site] + noise * rng.normal() if key in gaps else 0.0
            figures = dict.fromkeys(("auc", "balanced_accuracy", "accuracy", measure), base + gap)
            rows[of_choice].append({"client": site, "n_train": 70, "n_test": 30, "way": key, "seed": seed, **figures})
    counts = rarest if isinstance(rarest, dict) else dict.fromkeys(names, rarest)
    sent = dict.fromkeys(ways, (dict.fromkeys(names, 1234), 2468))
    settings = {"splits": 10, "rounds": 2, "test_size": 0.3, "metric": measure}
    tables = [pd.DataFrame(some) for some in rows.values()]
    return Trials(
        federation_of(tuple(names)), [WAYS[key] for key in ways], {}, *tables, sent, counts, [], fixed, settings
    )


def both(gap: float) -> dict[str, float]:
    return dict.fromkeys(NAMES, gap)


CASES = {
    "together": (made({"common": both(0.02), "fusion": both(0.05), "hyfem": both(-0.01)}), "together", "fusion"),
    "other": (made({"boosting": both(0.05), "fusion": both(0.02)}), "other", "boosting"),
    "as good alone": (made({"boosting": both(0.15), "fusion": both(0.155)}, noise=0.02), "other", "boosting"),
    "better than all": (
        made({"boosting": both(0.05), "network": both(0.04), "common": both(0.09)}),
        "together",
        "common",
    ),
    "worse": (made({"fusion": both(-0.05)}), "alone", "fusion"),
    "chance": (made({"fusion": both(0.005)}, noise=0.05), "alone", "fusion"),
    "hurt": (made({"fusion": {"North": 0.09, "South": -0.02}}), "together", "fusion"),
    "small": (made({"fusion": both(0.05)}, rarest=9), "small", "fusion"),
    "once": (made({"fusion": both(0.05)}, fixed=True), "once", "fusion"),
    "lost": (made({"fusion": both(math.nan)}), "alone", None),
    "one lost": (made({"common": both(math.nan), "fusion": both(0.05)}), "together", "fusion"),
    "few": (made({"fusion": {"North": -0.02, "South": 0.5}}, {"North": 10, "South": 9}), "alone", "fusion"),
    "loss": (made({"fusion": both(-0.05)}, measure="log_loss"), "together", "fusion"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case):
    runs, verdict, best = CASES[case]
    found = judging.judge(runs)
    assert (found.verdict, found.best and found.best.key) == (verdict, best)
    assert found.counted == [name for name in NAMES if runs.rarest[name] >= 10]
    assert found.hurt == ([("South", pytest.approx(2, abs=0.1))] if case == "hurt" else [])
    if case == "hurt":
        assert found.shown == [("fusion", "North")]
        assert found.worst["fusion"] == ("South", pytest.approx(-2, abs=0.1))
        assert found.overall["fusion"].mean == pytest.approx(3.5, abs=0.1)
    if case == "together":
        assert sorted(found.shown) == [("fusion", name) for name in NAMES], "not the way that gains less"
    if case == "few":
        assert found.overall["fusion"].mean == pytest.approx(-2, abs=0.1), "South does not count"
        assert found.few == {"South": 9}
    if case == "loss":
        assert found.overall["fusion"].mean == pytest.approx(0.05, abs=0.001), "less is better, and nothing is per cent"


MANY = [f"S{i:02d}" for i in range(40)]


def test_many_small_sites_are_judged_by_their_average():
    """None has ten test rows of a class: nothing is said of a single one, but much of all forty."""
    rng = np.random.default_rng(1)
    gaps = {"fusion": {site: 0.05 + 0.02 * rng.normal() for site in MANY}, "common": dict.fromkeys(MANY, 0.0)}
    gaps["fusion"]["S07"] = -0.3
    runs = made(gaps, rarest=2, names=MANY)
    found = judging.judge(runs)
    assert (found.verdict, found.many, found.counted, found.few) == ("together", True, MANY, {})
    assert found.overall["fusion"].mean == pytest.approx(100 * np.mean([*gaps["fusion"].values()]), abs=0.05)
    table = runs.figures.pivot_table(index="client", columns="way", values="auc")
    test = stats.ttest_1samp(100 * (table["fusion"] - table["logistic"]), 0)
    assert found.overall["fusion"].p == pytest.approx(test.pvalue), "sites are the sample"
    assert found.overall["fusion"][1:3] == pytest.approx(tuple(test.confidence_interval()))
    assert found.sites["fusion"]["S03"].low < found.sites["fusion"]["S03"].mean, "splits are, at a single one"
    assert (found.shown, found.hurt) == ([], []), "of S07 nothing can be said"
    shown = Page(page.render(runs, found, READ, ["all.csv"], [])).text
    assert "None of the 40 sites has 10 test rows of each of its classes." in shown
    assert "averaged over 40 sites" in shown
    assert "Worst site" not in shown
    told = page.lines(runs, found)
    assert "about the average of 40 sites" in told[-3]
    assert not any("S07" in line for line in told)
    none = judging.judge(made({"fusion": dict.fromkeys(MANY, 0.0)}, rarest=2, names=MANY, noise=0.05))
    assert (none.verdict, none.many) == ("alone", True)
    nine = {"fusion": dict.fromkeys(MANY[:9], 0.05)}
    assert judging.judge(made(nine, rarest=2, names=MANY[:9])).verdict == "small", "too few sites"
    one = judging.judge(made(gaps, {name: 2 + 8 * (name == "S00") for name in MANY}, names=MANY))
    assert (one.counted, one.many, len(one.few)) == (["S00"], False, 39), "who can be judged by itself goes before"
    shown = Page(page.render(runs, one, READ, ["all.csv"], [])).text
    assert "39 of 40 sites have fewer than 10 test rows of their rarest class" in shown.replace("  ", " ")
    assert shown.count("too few to judge by, so") == 1, "one line, not one for each"


def test_a_site_without_a_figure_does_not_keep_the_others_from_an_average():
    runs = made({"fusion": dict.fromkeys(MANY, 0.05)}, rarest=2, names=MANY)
    runs.figures.loc[(runs.figures["client"] == "S05"), "auc"] = np.nan
    found = judging.judge(runs)
    assert (found.verdict, len(found.counted), [*found.few]) == ("together", 39, ["S05"])
    assert found.overall["fusion"].mean == pytest.approx(5, abs=0.1)


def test_warnings_of_one_kind_are_one_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(40):
            warnings.warn(f"client 'S{i}': {i} rows are alike", FederationWarning, stacklevel=1)
        warnings.warn("another thing", FederationWarning, stacklevel=1)
    assert [*trials.by_kind(caught)] == ["client 'S0': 0 rows are alike (and 39 more of this kind)", "another thing"]
    assert [*trials.by_kind(caught[:3])] == [f"client 'S{i}': {i} rows are alike" for i in range(3)]


def test_test_rows_take_no_part_in_the_choice():
    """On the test rows late fusion is the luckiest of three; the training rows choose another, which gains nothing."""
    lucky = {"common": both(0.0), "fusion": both(0.05), "hyfem": both(0.0)}
    before = {"common": both(0.03), "fusion": both(0.0), "hyfem": both(0.0)}
    found = judging.judge(made(lucky, inner=before, noise=0.01))
    assert found.overall["fusion"].shown
    assert (found.verdict, found.best.key, found.chosen["common"]) == ("alone", "common", 10)
    assert found.gain == found.overall["common"]


def test_the_best_way_to_stay_alone_is_chosen_split_by_split():
    """By hand: trees in the first split, the regression in the second; there it is even, and the first counts."""
    runs = made({"boosting": both(0.0), "fusion": both(0.0)})
    runs.inner = runs.inner.assign(auc=0.5)
    runs.inner.loc[(runs.inner["seed"] < 4) & (runs.inner["way"] == "boosting"), "auc"] = 0.6
    assert judging.picks(runs, ["logistic", "boosting"], NAMES, 1.0) == {
        **dict.fromkeys(range(4), "boosting"),
        **dict.fromkeys(range(4, 10), "logistic"),
    }
    assert [*judging.picks(runs, ["logistic", "boosting"], NAMES, -1.0).values()] == ["logistic"] * 10
    assert judging.picks(runs, ["fusion"], NAMES, 1.0) == dict.fromkeys(range(10), "fusion")
    assert judging.picks(runs, [], NAMES, 1.0) == {}
    found = judging.judge(runs)
    assert found.chosen == {"boosting": 4, "logistic": 6, "fusion": 10}
    table = runs.figures.pivot(index=["seed", "client"], columns="way", values="auc") * 100
    alone = table["logistic"].where(table.index.get_level_values("seed") >= 4, table["boosting"])
    assert found.gain.mean == pytest.approx((table["fusion"] - alone).mean())
    assert found.level == pytest.approx(alone.mean())
    runs.inner.loc[runs.inner["client"] == "South", "auc"] = np.nan
    assert judging.picks(runs, ["logistic", "boosting"], NAMES, 1.0)[0] == "boosting", "by the sites that have figures"
    runs.inner["auc"] = np.nan
    assert {*judging.picks(runs, ["logistic", "boosting"], NAMES, 1.0).values()} == {"logistic"}


# --- the page ---------------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """What a page asks for, what it shows, and whether its tags are closed."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize("case", CASES)
def test_a_page_for_each_verdict(case):
    runs, verdict, _ = CASES[case]
    found = judging.judge(runs)
    shown = Page(page.render(runs, found, READ, ["all.csv"], ["--target", "ill", "--client", "site"]))
    first = {"together": "Learn together", "other": "Stay alone, and use", "alone": "Stay alone"}
    first |= dict.fromkeys(("small", "once"), "Stay alone for now")
    assert f"What is predicted: ill . {first[verdict]}" in shown.text
    assert " nan" not in shown.text.lower()
    assert ("Zurich" in shown.text, "South has only 9 test rows" in shown.text) == (False, case == "few")
    assert ("That site should stay alone." in shown.text) == (case == "hurt")
    assert ("at North, the only site that counts" in shown.text) == (case == "few")
    method = found.best.key if verdict in ("together", "other") else "logistic"
    assert f"hetfl train all.csv --target ill --client site --method {method} --save model" in shown.text
    assert ("A site can also run both by itself" in shown.text) == (verdict != "together")
    assert page.lines(runs, found)[-1].startswith(first[verdict][:10])


def test_no_gain_is_held_possible_that_is_more_than_perfect():
    """Alone the AUC is 70 of 100; an interval that is wider than what is left says no more than that."""
    runs = made({"fusion": both(0.005)}, noise=1.0)
    found = judging.judge(runs)
    assert found.gain.high > 30
    left = 100 - found.level
    assert left == pytest.approx(30, abs=1)
    shown = Page(page.render(runs, found, READ, ["all.csv"], [])).text
    assert f"it may be up to {left:.1f} points, and at a single site more" in shown


def test_a_page_needs_nothing_else_and_tells_no_row(ran, tmp_path):
    made = page.render(ran, judging.judge(ran), READ, ["all.csv"], [])
    assert not {"script", "link", "img", "iframe"} & {*Page(made).tags}
    assert not re.search(r"https?:|url\(|@import", made)
    frame = table()
    for value in [*frame["a"], *frame["b"].dropna()]:
        assert f"{value:.2f}" not in made
    assert "red" not in re.findall(r"\w+", made), "nor a word of a table"
    for place in (str(Path.home()), str(tmp_path.parent), "/tmp/", str(Path(page.__file__).parents[2])):
        assert place not in made


def test_names_are_told_as_they_are(tmp_path):
    names = ["<script>alert(1)</script>", "Ham & Eggs; rm -rf"]
    source = tables(tmp_path, table(sites=names).rename(columns={"a": "<b>a"}), target="ill")
    runs = trials.run_all(source, ["common"], seeds=3, rounds=1, n_jobs=1, progress=False)
    made = page.render(runs, judging.judge(runs), READ, ["a b.csv"], [])
    shown = Page(made)
    assert "script" not in shown.tags
    assert "<script>alert(1)</script>" in shown.text, "as a name"
    assert "'Ham & Eggs; rm -rf.pub'" in shown.text, "quoted for the shell"
    assert "hetfl train 'a b.csv'" in shown.text


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0"), (-0.04, "0.0"), (1.26, "+1.3"), (-12.3, "−12.3"), (math.nan, "–")]
)
def test_differences_have_a_sign(value, text):
    assert page.signed(value) == text


@pytest.mark.parametrize(("key", "rounds", "told"), [("fusion", 2, 2), ("fusion", 6, None), ("boosting", 2, None)])
def test_networks_with_too_few_rounds_for_the_rows(key, rounds, told):
    """8 steps of 32 rows in 2 rounds are 512 rows: each of 252 is seen twice, and 15 times in 14.8 rounds."""
    first = federation_of(tuple(NAMES), 7)
    assert [client.n_train for client in first] == [252, 252]
    runs = made({key: both(0.05)})
    runs = replace(runs, first=first, settings=runs.settings | {"rounds": rounds})
    wanted = ("North", told, 15) if told else None
    assert page.hurried(runs) == wanted
    found = judging.judge(runs)
    assert ("--rounds 15" in " ".join(page.lines(runs, found))) == bool(wanted)
    assert ("--rounds 15" in page.render(runs, found, READ, ["all.csv"], [])) == bool(wanted)


def test_sizes_are_read():
    assert [page.size(n) for n in (0, 999, 45_360, 1_250_000)] == ["0 B", "999 B", "45 kB", "1.2 MB"]


def test_columns_in_the_order_of_those_who_have_them(ran):
    rows = page.columns_held(ran.first)
    assert [row["name"] for row in rows] == ["a", "word", "b"]
    assert rows[2] == {"name": "b", "cells": [(100, True), (0, False)], "sites": 1}


def run_as_a_file(source: str) -> dict:
    made: dict = {}
    exec(compile(source, "a file", "exec"), made)
    return made


@pytest.mark.parametrize("key", ["common", "zeros", "fusion", "hyfem", "FedRep"])
def test_the_files_of_a_deployment_are_right(ran, tmp_path, key):
    """They train the method that was compared, on the inputs that it had."""
    way = ways_of([key], ran.first)[0][-1]
    seen, wanted, _ = way.made_for(ran.first)
    [method] = run_as_a_file(way.source(ran.first))["METHODS"].values()
    assert method == wanted
    frame = table().replace({"word": {"red": "-"}}).assign(note="x")
    prepare = Preparation(missing=["-", "none"], categories=["word"])
    options = {"client": "site", "target": "ill", "prepare": prepare, "ignore": ["note"], "sep": ";"}
    load = run_as_a_file(page.reading(options, ["no", "yes"], way.view))["load"]
    for name, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / f"{name}.csv", index=False, sep=";")
    told = {name: {"data": str(tmp_path / f"{name}.csv"), "name": name} for name in NAMES}
    words = [{"name": name, **agreement.described(load({**told[name], "agreed": {}}))} for name in NAMES]
    agreed = agreement.agreed(words)
    fed = Federation([load({**told[name], "agreed": agreed}) for name in NAMES], 2)
    method.check(fed.specs())
    assert [c.n_train for c in fed] == [36, 36], "a fifth is for testing"
    assert type(fed[0].x_train) is type(seen[0].x_train)


# --- the runs ---------------------------------------------------------------------------------------------------------


def test_every_way_has_the_same_rows(ran):
    assert [way.key for way in ran.ways] == [*WAYS]
    assert ran.figures.shape[0] == 7 * 3 * 2
    sizes = ran.figures.groupby("client")[["n_train", "n_test"]].nunique()
    assert (sizes == 1).all(axis=None)
    assert ran.rarest == {name: min(ran.rarest.values()) for name in NAMES} or min(ran.rarest.values()) >= 5
    assert not ran.fixed


def test_the_base_is_what_a_baseline_run_says(ran, tmp_path):
    fed = tables(tmp_path).federation(1, 0.3)
    alone = simulate(fed, Logistic(), metric=["auc"]).per_client["auc"]
    mine = ran.figures.query("way == 'logistic' and seed == 1")["auc"]
    assert mine.tolist() == alone.tolist()


def test_what_leaves_a_site_is_counted(ran):
    """Common columns: a, word=blue, word=red; 3 → 16 → 8 → 2, float32, in two rounds. b's extractor is North's."""
    sizes = {key: each for key, (each, _) in ran.sent.items()}
    assert all(sizes[key] == dict.fromkeys(NAMES, 0) for key in ("logistic", "boosting", "network"))
    common = (3 * 16 + 16) + (16 * 8 + 8) + (8 * 2 + 2)
    assert sizes["common"] == dict.fromkeys(NAMES, 4 * 2 * common)
    own = (1 * 16 + 16) + (16 * 8 + 8) + (8 * 2 + 2)
    assert sizes["fusion"] == {"North": 4 * 2 * (common + own), "South": 4 * 2 * common}
    for each, total in ran.sent.values():
        assert each is None or sum(each.values()) == total


def test_a_method_by_its_name_on_the_view_that_it_can_take(ran):
    found, lost = ways_of(["FedRep", "hyfem", "fedavg"], ran.first)
    assert [(way.key, way.view) for way in found] == [
        ("logistic", "own"),
        ("FedRep alone", "zeros"),
        ("FedRep", "zeros"),
        ("hyfem", "blocks"),
        ("FedAvg alone", "zeros"),
        ("FedAvg", "zeros"),
    ]
    assert lost == {}
    found, lost = ways_of(["LASER-VFL", "late fusion"], ran.first)
    assert [(way.key, way.view) for way in found] == [
        ("logistic", "own"),
        ("LASER-VFL alone", "zeros"),
        ("LASER-VFL", "zeros"),
        ("late fusion alone", "zeros"),
        ("late fusion", "zeros"),
    ]
    assert lost == {}, "by the network that it has"
    with pytest.raises(ValueError, match="no method is called 'fusoin'; did you mean fusion"):
        ways_of(["fusoin"], ran.first)


@pytest.mark.nightly
def test_a_method_has_to_beat_itself_with_nothing_exchanged(tmp_path):
    """Its network and its training may be all that it gains by: each site is then as good with them alone."""
    runs = trials.run_all(tables(tmp_path), ["FedAvg", "Local"], seeds=3, rounds=1, n_jobs=1, progress=False)
    assert [(way.key, way.alone) for way in runs.ways] == [
        *((key, True) for key in ("logistic", "boosting", "network", "FedAvg alone")),
        ("FedAvg", False),
        ("Local", True),
    ]
    assert runs.sent["FedAvg alone"] == (dict.fromkeys(NAMES, 0), 0)
    way = runs.ways[3]
    for seed in range(3):
        seen, method, _ = way.made_for(tables(tmp_path).federation(seed, 0.3))
        (sites,) = simulate_apart(seen, method, seeds=[seed], rounds=1, metric=["auc"], progress=False).values()
        mine = runs.figures.query("way == 'FedAvg alone' and seed == @seed").set_index("client")["auc"]
        assert mine.to_dict() == pytest.approx({who: one.per_client["auc"].item() for who, one in sites.items()})
    assert {*runs.inner["way"]} == {"logistic", "boosting", "network", "FedAvg alone", "Local"}
    found = judging.judge(runs)
    assert sum(found.chosen.values()) == 6
    found = replace(found, verdict="other", best=way)
    found.over_base[way.key] = judging.Gain(3.0, 1.0, 5.0, 0.01)
    shown = Page(page.render(runs, found, READ, ["all.csv"], [])).text
    assert "Stay alone, and use FedAvg, nothing exchanged." in shown
    assert "hetfl train all.csv --method logistic --save model" in shown
    assert "each site trains from its own file alone, by --method FedAvg" in shown


def test_sites_without_a_common_column_leave_a_way_out():
    frame = table()[["a", "b", "ill", "site"]]
    frame.loc[frame["site"] == "North", "a"] = np.nan
    fed = Federation.from_frame(frame, client="site", target="ill", prepare=Preparation())
    found, lost = ways_of(None, fed)
    assert "common" not in [way.key for way in found]
    assert "no column that all clients have" in lost["Together: common columns"]
    with pytest.raises(ValueError, match="methods: common cannot be compared: there is no column"):
        ways_of(["common"], fed)


def test_equal_columns_leave_out_what_is_the_same():
    """Three names for one network would count three times in Holm's correction."""
    frame = table().fillna({"b": 2000.0})
    fed = Federation.from_frame(frame, client="site", target="ill", prepare=Preparation())
    found, lost = ways_of(None, fed)
    assert [way.key for way in found] == ["logistic", "boosting", "network", "common", "hyfem"]
    assert {*lost} == {WAYS["zeros"].label, WAYS["fusion"].label}
    assert [way.key for way in ways_of(["zeros", "common", "fusion"], fed)[0]][1:] == ["zeros", "common", "fusion"]
    (seen, method, _), *rest = (WAYS[key].made_for(fed) for key in ("common", "zeros", "fusion"))
    first = simulate(seen, method, rounds=1, progress=False)
    for other, same, _ in rest:
        again = simulate(other, same, rounds=1, progress=False)
        assert again.per_client["accuracy"].tolist() == first.per_client["accuracy"].tolist()


@pytest.mark.nightly
def test_the_latest_rows_as_test_rows_show_nothing(tmp_path):
    frame = table().assign(day=range(90))
    runs = trials.run_all(tables(tmp_path, frame, time="day"), ["common"], seeds=3, rounds=1, n_jobs=1, progress=False)
    found = judging.judge(runs)
    assert runs.fixed
    assert found.verdict in ("once", "small")
    assert math.isnan(found.overall["common"].low)


def test_what_was_noticed_is_told(tmp_path):
    frame = table().assign(sure=lambda f: f["ill"])
    with pytest.warns(FederationWarning, match="another form of the answer"):
        runs = trials.run_all(tables(tmp_path, frame), ["common"], seeds=3, rounds=1, n_jobs=1, progress=False)
    assert "another form of the answer" in Page(page.render(runs, judging.judge(runs), READ, [], [])).text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 2}, "seeds must"),
        ({"rounds": 0}, "rounds must"),
        ({"test_size": 1.0}, "test_size must"),
        ({"metric": "area"}, "metric must"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        trials.run_all(tables(tmp_path), **options)


def test_sites_must_be_two_and_told_apart(tmp_path):
    with pytest.raises(ValueError, match="two sites at least, got only 'North'"):
        tables(tmp_path, table().query("site == 'North'")).federation(0, 0.3)
    with pytest.raises(ValueError, match="--client COLUMN names the column"):
        tables(tmp_path, client=None).federation(0, 0.3)


def test_runs_can_be_made_in_another_process(tmp_path):
    study, key = trials._Study(tables(tmp_path), WAYS, ("auc", "accuracy"), 1, 0.3), trials.Key("common")
    (there,) = pickle.loads(pickle.dumps(study))([1], [1], key).values()
    assert there.figures.equals(study([1], [1], key)[1].figures)


@pytest.mark.nightly
def test_splits_are_trained_together_and_the_figures_are_those_of_single_runs(ran, tmp_path, monkeypatch):
    """A stack of several splits has the runs of each, to rounding; zeros are trained as common columns are."""
    ways = ["network", "common", "fusion", "hyfem"]
    assert {len(seeds) for _, seeds, _ in comparing.groups([0, 1, 2], {"common": 10})} == {3}
    monkeypatch.setattr(Federated, "at_once", lambda *_: 1)
    monkeypatch.setattr(Federated, "run_seeds", lambda *_: pytest.fail("they were trained together"))
    alone = trials.run_all(tables(tmp_path), ways, seeds=3, rounds=2, n_jobs=1, progress=False)
    key = ["way", "seed", "client"]
    together = ran.figures[ran.figures["way"].isin(alone.sent)]
    one, other = (figures.sort_values(key, ignore_index=True) for figures in (alone.figures, together))
    pd.testing.assert_frame_equal(one, other, rtol=1e-6)
    assert {*alone.sent} == {"logistic", "boosting", *ways}
    assert alone.sent.items() <= ran.sent.items()


# --- models -----------------------------------------------------------------------------------------------------------


def test_a_saved_regression_says_what_scikit_learn_says(tmp_path):
    source = tables(tmp_path)
    training.trained(source, "logistic").save(tmp_path / "model")
    model, fed = load_trained(tmp_path / "model"), source.federation(0, 0.0)
    rows = table(seed=1)
    for client in fed:
        x, y = client.x_train.double().numpy(), client.y_train.numpy()
        known = Logistic().fitted(x, y)
        wanted = known.predict_proba(client.rows(rows).double().numpy())
        assert model.predict_proba(rows, client.name).to_numpy() == pytest.approx(wanted, abs=1e-5)
        assert isinstance(known, LogisticRegression)
    assert model.classes == ["no", "yes"]


def test_three_classes_and_a_site_that_knows_one(tmp_path):
    frame = table().assign(ill=lambda f: pd.cut(f["a"], [0, 999.5, 1000.5, 2000], labels=["low", "mid", "high"]))
    frame["ill"] = frame["ill"].astype(str).where(frame["site"] == "North", "mid")
    model = training.trained(tables(tmp_path, frame), "logistic")
    assert model.predict_proba(frame, "North").sum(axis=1).to_numpy() == pytest.approx(1)
    assert (model.predict(frame, "North") == frame["ill"])[frame["site"] == "North"].mean() > 0.9
    assert {*model.predict(frame, "South")} == {"mid"}


def test_a_site_that_stays_alone_trains_on_its_own_file(tmp_path):
    source = tables(tmp_path, table().query("site == 'South'").drop(columns="site"), client=None)
    model = training.trained(source, "logistic")
    assert [spec.name for spec in model.specs] == ["all"]
    assert (model.predict(table(seed=1)) == table(seed=1)["ill"]).mean() > 0.6


def test_models_of_other_ways(tmp_path):
    source = tables(tmp_path)
    model = training.trained(source, "fusion", rounds=1)
    assert model.method.name == "late fusion"
    assert model.predict(table(seed=1), "South").isin(["yes", "no"]).all()
    training.trained(source, "boosting").save(tmp_path / "trees")
    trees = load_trained(tmp_path / "trees")
    client = source.federation(0, 0.0)["South"]
    x, y = client.x_train.double().numpy(), client.y_train.numpy()
    wanted = Boosting().fitted(x, y, "South", 0).predict_proba(client.rows(table(seed=1)).double().numpy())
    assert trees.predict_proba(table(seed=1), "South").to_numpy() == pytest.approx(wanted)


@pytest.mark.nightly
def test_the_report_from_python_says_what_the_command_says(tmp_path):
    frame, told = table(), {"seeds": 3, "rounds": 1, "n_jobs": 1, "progress": False}
    found = report(frame, "site", "ill", **told)
    runs = trials.run_all(tables(tmp_path, frame), **told)
    assert repr(found).splitlines() == page.lines(runs, judging.judge(runs))
    assert repr(found).endswith(found.advice)
    by_site = {name: own.drop(columns="site").dropna(axis=1, how="all") for name, own in frame.groupby("site")}
    assert repr(report(by_site, target="ill", **told)) == repr(found)
    shown = Page(found.save(tmp_path / "report.html").read_text("utf8")).text
    assert "write each site’s rows to one that is called as the site is" in shown
    assert "hetfl train North.csv South.csv --target ill" in shown
    for wrong, message in (
        (lambda: report(frame, "site"), "target must be"),
        (lambda: report(frame, target="ill"), "client must be"),
        (lambda: report(by_site, "site", "ill"), "client is for one table"),
        (lambda: report({"a": frame}, target="ill"), "has a column 'site'"),
        (lambda: report({"a": frame.to_numpy()}, target="ill"), r"data\['a'\] must be a DataFrame"),
    ):
        with pytest.raises(HetflError, match=message):
            wrong()


# --- the commands -----------------------------------------------------------------------------------------------------


def call(monkeypatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["hetfl", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code, end.value.code


def from_csv_to_a_prediction(monkeypatch, capsys, patients: pd.DataFrame, *more: str) -> str:
    """The three commands; what `compare` prints."""
    files = [f"{name}.csv" for name in patients["hospital"].unique()]
    for name, rows in patients.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(f"{name}.csv", index=False)
    tables = [*files, "--target", "ill", "--categories", "cp,restecg,slope,thal"]
    call(monkeypatch, "compare", *tables, "--report", "report.html", *("--methods", "common", "--seeds", "3"), *more)
    printed = capsys.readouterr().out
    call(monkeypatch, "train", *tables, "--save", "model")
    patients.query("hospital == 'Zurich'").head(2).drop(columns=["ill", "hospital"]).to_csv("new.csv", index=False)
    capsys.readouterr()
    call(monkeypatch, "predict", "model", "new.csv", "--client", "Zurich")
    assert re.fullmatch(r" *predicted +p 0 +p 1\n(\d +[01]( +[0-9.e-]+){2}\n){2}", capsys.readouterr().out)
    shown = Page(Path("report.html").read_text("utf8")).text
    assert "4 sites, 920 rows" in shown
    assert "Zurich has only 2 test rows of its rarest class" in shown
    assert str(Path.cwd()) not in shown
    return printed


@pytest.mark.nightly
def test_three_commands_on_made_patients(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    printed = from_csv_to_a_prediction(monkeypatch, capsys, heart.patients(made=True), "--rounds", "2")
    assert printed.splitlines()[1].startswith("Alone: logistic regression ")
    assert printed.splitlines()[-1] == "report: report.html"


def test_columns_that_split_rows_are_no_features_of_what_is_trained(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    table(120).assign(day=range(120)).to_csv("all.csv", index=False)
    words = ["all.csv", "--target", "ill", "--client", "site", "--ignore", "word"]
    told = ["--methods", "common", "--seeds", "3", "--rounds", "1", "--report", "report.html"]
    call(monkeypatch, "compare", *words, "--time", "day", *told)
    shown = Page(Path("report.html").read_text("utf8")).text
    assert "hetfl train all.csv --target ill --client site --ignore word --ignore day --method logistic" in shown
    assert "ignore=['word', 'day']," in shown


@pytest.mark.nightly
@pytest.mark.realdata("heart.hospitals")
def test_three_commands_on_the_four_hospitals(monkeypatch, capsys, tmp_path):
    patients = heart.patients()
    monkeypatch.chdir(tmp_path)
    printed = from_csv_to_a_prediction(monkeypatch, capsys, patients)
    assert "Stay alone, and use logistic regression: nothing else is shown to be better." in printed
    assert "Cleveland -" in printed, "which loses most by the common columns"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], []),
        (["999", "none"], [999.0, "none"]),
        (["chol=0", "chol=-9.5", "bp=0"], {"chol": [0.0, -9.5], "bp": [0.0]}),
        (["a=b=0"], {"a=b": [0.0]}),
        (["999, -9", "none"], [999.0, -9.0, "none"]),
        (["chol=0,999"], {"chol": [0.0, 999.0]}),
    ],
)
def test_marks_of_gaps(given, found):
    assert cli_tables._marks(given, ".") == found


def test_a_mark_may_have_a_decimal_comma():
    assert cli_tables._marks(["-9,5", "1,2,3"], ",") == ["-9,5", 1.0, 2.0, 3.0]
    assert cli_tables._marks(["-9,5"], ".") == [-9.0, 5.0]


def test_a_page_says_how_patients_were_kept_together_and_who_can_look(tmp_path):
    frame = table().assign(patient=lambda f: np.arange(len(f)))
    for group, said in (("patient", "All rows with the same “patient” were for"), (None, "No column says which rows")):
        source = tables(tmp_path, frame if group else frame.drop(columns="patient"), group=group)
        runs = trials.run_all(source, ["common"], seeds=3, rounds=1, n_jobs=1, progress=False)
        shown = Page(page.render(runs, judging.judge(runs), READ, [], [])).text
        assert said in shown
        assert "Between real sites nobody can look whether a patient is known at two of them." in shown


def test_marks_of_both_kinds_are_refused():
    with pytest.raises(ValueError, match="missing must be values, or all of the form column=value"):
        cli_tables._marks(["chol=0", "999"], ".")


def test_options_as_they_are_typed():
    given = {"target": "ill", "client": None, "ignore": ["a", "b"], "gaps": ("median", "median"), "sep": (";", ",")}
    told = cli_tables._arguments(given)
    assert told == ["--target", "ill", "--ignore", "a", "--ignore", "b", "--sep", ";"]


def test_ways_are_told_apart():
    assert [way.key for way in WAYS.values() if way.alone] == ["logistic", "boosting", "network"]
    assert not Way("FLIC-HL", "Together: FLIC-HL", "").alone
