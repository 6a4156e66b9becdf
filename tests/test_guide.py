"""The decision guide and the benchmark's figures: what they say follows from the numbers they are given."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from hetfl_book.headtohead import figures, guide, portraits
from hetfl_book.headtohead.entries import ALONE, entries
from hetfl_book.headtohead.federations import FEDERATIONS, SIZES
from hetfl_core import Client, Federation


def client(name, counts, columns):
    y = np.repeat(np.arange(len(counts)), counts)
    x = pd.DataFrame(np.arange(len(y) * len(columns)).reshape(len(y), -1) % 7 * 1.0, columns=columns)
    return Client(x, y, x, y, name)


def federation(*clients):
    return Federation([client(f"site {i}", *one) for i, one in enumerate(clients)], 2)


def test_what_the_questions_ask_of_a_federation():
    data = federation(([30, 10], ["age", "chol"]), ([10, 30], ["age", "ca"]))
    traits = guide.Traits.of(data)
    assert (traits.same, traits.common, traits.rows) == (False, True, 20.0)
    assert traits.apart == pytest.approx(0.25)  # 3/4 against 1/2 of all
    assert guide.leaf(traits) == "some inputs common to all, many rows"
    same = guide.Traits.of(federation(([9, 1], ["age"]), ([9, 1], ["age"])))
    assert (same.same, same.common, same.rows, same.apart) == (True, True, 5.0, 0.0)
    assert (
        guide.leaf(guide.Traits.of(federation(([4, 4], ["a"]), ([4, 4], ["b"])))) == "nothing common to all, few rows"
    )


def test_inputs_without_names_are_the_same_where_their_shapes_are_and_blocks_by_those_that_are_held():
    plain = [
        Client(np.ones((4, n)), [0, 1, 0, 1], np.ones((2, n)), [0, 1], f"{n} {i}") for i, n in enumerate((2, 2, 3))
    ]
    assert guide.Traits.of(Federation(plain[:2], 2)).same
    assert not guide.Traits.of(Federation(plain, 2)).same
    assert not guide.Traits.of(Federation(plain, 2)).common
    x = [{"a": torch.ones(4, 2), "b": torch.ones(4, 0)}, {"a": torch.ones(4, 0), "b": torch.ones(4, 2)}]
    apart = Federation([Client(one, [0, 1, 0, 1], one, [0, 1, 0, 1], str(i)) for i, one in enumerate(x)], 2)
    assert not guide.Traits.of(apart).common


def test_a_regression_has_no_classes_to_ask_about():
    x = np.ones((4, 2))
    with pytest.raises(ValueError, match="for classification, got a regression"):
        guide.Traits.of(Federation([Client(x, [0.5] * 4, x, [0.5] * 4, "one")], task="regression"))


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("rows", [guide.FEW - 1, guide.FEW])
@pytest.mark.parametrize("apart", [0.0, guide.APART])
def test_every_federation_is_at_one_leaf(same, common, rows, apart):
    traits = guide.Traits(same, common or same, rows, apart)
    assert sum(holds(traits) for holds in guide.LEAVES.values()) == 1


def leaves_of(at):
    return [at] if isinstance(at, str) else [leaf for to in at[1].values() for leaf in leaves_of(to)]


def test_the_questions_lead_to_every_leaf_once():
    assert sorted(leaves_of(guide.QUESTIONS)) == sorted(guide.LEAVES)


GAINS = pd.DataFrame(
    {"heart, all": [0, 1, 4], "heart, tenth": [0, 3, 5], "liver, all": [0, 2, -9], "eeg, all": [0, -1, np.nan]},
    index=["training alone", "late fusion", "FLIC"],
    dtype=float,
)
AT = dict.fromkeys(GAINS, "some inputs common to all, few rows") | {"eeg, all": "nothing common to all, few rows"}


def test_a_leaf_advises_the_method_with_the_highest_mean_that_ran_everywhere_at_it():
    found = guide.guide(GAINS, AT)
    assert list(found) == ["some inputs common to all, few rows", "nothing common to all, few rows"]
    assert found["some inputs common to all, few rows"] == guide.Advice("late fusion", 2.0, 1.0, 3.0, tuple(GAINS)[:3])
    assert found["nothing common to all, few rows"].method == "training alone"  # FLIC did not run, late fusion lost
    with pytest.raises(ValueError, match="none"):
        guide.advise(GAINS.loc[["FLIC"]])


def test_what_a_method_of_ones_choice_gains_at_a_leaf():
    found = guide.at_leaves(GAINS, AT, {"some inputs common to all, few rows": "training alone"})
    assert found == {"some inputs common to all, few rows": guide.Advice("training alone", 0, 0, 0, tuple(GAINS)[:3])}


def test_the_guide_is_judged_by_federations_that_it_has_not_seen():
    found = guide.left_out(GAINS, AT, {case: case.split(",")[0] for case in GAINS})
    assert found.loc["heart, all"].tolist() == ["late fusion", 1.0, "FLIC", 3.0, True]  # liver alone speaks for it
    assert found.loc["liver, all"].tolist() == ["FLIC", -9.0, "late fusion", 11.0, True]  # both sizes of heart are out
    far = found.loc["eeg, all"]
    assert (far["advice"], far["regret"], far["near"]) == ("late fusion", 1.0, False)  # FLIC is not on offer there


def test_a_leaderboard_shows_its_first_view_without_scripts_and_holds_the_rest():
    rows = pd.DataFrame(
        {"method": ["A", "B", "B"], "size": ["all", "all", "a tenth"], "gain": [2.0, np.nan, 1.0]},
    )
    page = figures.leaderboard(rows, {"gain": "{:+.1f}".format}, {"size": "rows"})
    assert page.markup.count("<tr data-size") == 3
    assert page.markup.count(" hidden>") == 1
    assert '<td data-key="2.0">+2.0</td>' in page.markup
    assert '<td data-key=""></td>' in page.markup
    assert "http" not in page.markup
    assert page.markup == figures.leaderboard(rows, {"gain": "{:+.1f}".format}, {"size": "rows"}).markup
    assert "A" in page.words
    assert "1.0" not in page.words
    beside = figures.leaderboard(rows, {"gain": "{:+.1f}".format}, {"size": "rows"}, beside=["A"])
    assert '<tr data-size="all" class="beside"><td></td><td data-key="A">' in beside.markup
    assert '<tr data-size="all"><td>1</td><td data-key="B">' in beside.markup


def test_a_list_offers_what_changes_the_table():
    kinds = ("every kind", "real", "tables")
    rows = pd.DataFrame(
        {
            "method": ["A", "B", "A"] * 3,
            "size": ["all", "all", "tenth"] * 3,
            "kind": np.repeat(kinds, 3),
            "gain": [2.0, 1.0, 4.0] * 2 + [3.0, 0.0, 4.0],
        }
    )
    columns, picks = {"gain": str}, {"size": "rows", "kind": "kind"}
    page = figures.leaderboard(rows, columns, picks)
    assert re.findall("<option>([^<]+)<", page.markup) == ["all", "tenth", "every kind", "tables"]
    alike = figures.leaderboard(rows[:6], columns, picks)
    assert re.findall('<select name="([^"]*)"', alike.markup) == ["size"]
    assert alike.markup.count("<tr data-") == 3


def test_cells_of_the_heat_map_carry_their_number_its_sign_and_whether_it_is_sure():
    gains = pd.DataFrame({"heart & co": [12.0, -3.0, np.nan]}, index=["A", "B", "C"])
    page = figures.heat(gains, gains > 10, {"heart & co": "#runs-heart"})
    assert '<b><a href="#runs-heart">+12.0</a></b>' in page.markup
    assert ">−3.0<" in page.markup
    assert "<td>–</td>" in page.markup
    assert '<a href="#runs-heart">heart &amp; co</a>' in page.markup


def test_groups_are_the_longest_runs_that_cannot_be_told_apart():
    differ = {("A", "C"), ("A", "D"), ("B", "D")}
    assert figures.groups("ABCD", lambda a, b: (a, b) in differ) == [["A", "B"], ["B", "C"], ["C", "D"]]
    assert figures.groups("ABCD", lambda a, b: (a, b) == ("A", "D")) == [["A", "B", "C"], ["B", "C", "D"]]
    assert figures.groups("AB", lambda a, b: True) == []


def test_ranks_stand_from_the_best_down_with_a_bar_for_each_group():
    ax = figures.ranks(pd.Series({"A": 2.5, "B": 1.5, "C": 2.0}), [["B", "C"], ["A"]])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["B", "C", "A"]
    bars = [line for line in ax.lines if line.get_linewidth() == 3]
    assert [sorted(bar.get_ydata()) for bar in bars] == [[-1.25, 0.25]]
    plt.close(ax.figure)


def test_paretos_line_leaves_out_what_costs_more_and_brings_no_more():
    assert figures.frontier([10, 1, 5, 5, 20], [3, 1, 2, 0, 3]) == [1, 2, 0]
    rows = pd.DataFrame({"bytes": [0, 100, 200], "gain": [0.0, 2.0, 1.0]}, index=["alone", "A", "B"])
    ax = figures.against_bytes(rows)
    assert [text.get_text() for text in ax.texts] == ["alone", "A"]
    plt.close(ax.figure)


def test_sites_stand_from_the_fewest_rows_down_with_their_intervals():
    rows = pd.DataFrame({"federation": ["heart", "liver", "heart"], "site": ["A", "B", "C"], "rows": [40, 9, 12]})
    ax = figures.of_sites(rows.assign(gain=[1.0, 2.0, 6.0], low=[0.0, 0.0, 5.0], high=[2.0, 4.0, 7.0]))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["B, 9", "C, 12", "A, 40"]
    heart, liver = ax.containers
    assert liver.lines[0].get_xydata().tolist() == [[2, 0]]
    assert heart.lines[0].get_xydata().tolist() == [[6, -1], [1, -2]]
    assert sorted(path.vertices[:, 0].tolist() for path in heart.lines[2][0].get_paths()) == [[0, 2], [5, 7]]
    plt.close(ax.figure)


def test_the_guide_as_a_tree_says_of_each_leaf_what_follows_and_where_it_stands():
    questions = ("Same columns?", {"yes": "same", "no": ("Few rows?", {"yes": "few", "no": "many"})})
    advice = {"same": guide.Advice("FedAvg", 2.0, -1.0, 5.0, ("a", "b")), "few": guide.Advice("HyFEM", 1, 1, 1, ("c",))}
    links = {"same": "#same", "few": "#few"}
    page = figures.tree(advice, questions, links)
    assert 'points over a network alone, in <a href="#same">2 cases</a>' in page.markup
    assert "<br>try <strong>FedAvg</strong>, +2.0 (−1.0 to +5.0)" in page.markup
    assert "not run yet: begin with training alone, and compare" in page.markup
    assert page.markup.count("<ul>") == 2
    known = {"same": {"images: chapter 6": "personalised.ipynb"}, "many": {"EEG: chapter 11": "eeg-federation.ipynb"}}
    told = figures.tree(advice, questions, links, elsewhere=known).markup
    assert '(−1.0 to +5.0)<br><a href="personalised.ipynb">images: chapter 6</a></p>' in told
    assert 'and compare<br><a href="eeg-federation.ipynb">EEG: chapter 11</a></p>' in told
    other = dict.fromkeys(advice, guide.Advice("nobody", 0.5, -0.5, 1.5, ("a",)))
    both = figures.tree(advice, questions, links, first="a tree", choice=", any", beside={"by AUC": other})
    assert both.markup.count("points over a tree, in <a") == 2
    assert both.markup.count("</a><br>begin with <strong>a tree</strong>, any<br>then try <strong>") == 2
    assert both.markup.count("<br>by AUC: <strong>nobody</strong>, +0.5 (−0.5 to +1.5)") == 2


def test_a_leaf_says_where_no_method_has_a_mean_above_what_it_begins_with():
    below = {"same": guide.Advice("FedPAC", -1.1, -7.0, 3.0, ("a",))}
    questions, beside = ("Same?", {"yes": "same", "no": "few"}), {"AUC": below}
    page = figures.tree(below, questions, {"same": "#same"}, "staying alone", beside=beside)
    none = "no method that exchanges something has a mean above it, the nearest is"
    told = "<strong>FedPAC</strong>, −1.1 (−7.0 to +3.0)"
    assert f"<br>begin with <strong>staying alone</strong><br>{none} {told}<br>AUC: {told}</p>" in page.markup
    assert "not run yet: begin with staying alone, and compare" in page.markup


def table(rows):
    names = ["federation", "size", "method", "way", "gain"]
    return pd.DataFrame(rows, columns=names)


def test_cases_are_methods_by_federations_and_sizes_without_what_lies_in_one_place():
    rows = [
        ("liver", "all", "FedAvg", "together", 2.0),
        ("liver", "all", "in one place", "one place", 5.0),
        ("heart", "tenth", "FedAvg", "together", np.nan),
        ("heart", "tenth", "network alone", "alone", 0.0),
    ]
    found = guide.cases(table(rows))
    assert list(found) == ["liver, all", "heart, tenth"]
    assert list(found.index) == ["FedAvg", "network alone"]
    assert found.loc["FedAvg", "liver, all"] == 2.0
    assert np.isnan(found.loc["FedAvg", "heart, tenth"])
    assert list(guide.cases(table(rows), ways=("together",)).index) == ["FedAvg"]


def test_a_need_leaves_the_methods_that_answer_to_it_and_the_cases_where_one_ran():
    gains = pd.DataFrame(
        {"heart, all": [3.0, 1.0, 2.0, 0.5], "digits, all": [np.nan, np.nan, 9.0, 0.0]},
        index=["FedAvg", "FedAvg, own last step", "FLIC-Class", "a method of somebody's own"],
    )
    one_model = guide.limited(gains, guide.LIMITS["One shared model, with a last step of each site's own at most"])
    assert one_model == guide.Advice("FedAvg", 3.0, 3.0, 3.0, ("heart, all",))
    own = guide.limited(gains, guide.LIMITS["Every site may have another kind of network"])
    assert own == guide.Advice("FLIC-Class", 5.5, 2.0, 9.0, ("heart, all", "digits, all"))
    common = guide.LIMITS["Only what all sites measure is used"]
    assert guide.limited(gains.drop(index=["FedAvg", "FedAvg, own last step"]), common) is None
    assert not any(holds(entries()[ALONE]) for holds in guide.LIMITS.values())
    page = figures.needs({"one model": one_model, "nothing": None}, {"by sharing": pd.Series({"FedAvg": 1.5})})
    assert "<td>FedAvg</td><td>+3.0 (+3.0 to +3.0 in 1)</td><td>+1.5</td>" in page.markup
    assert "<td>nothing</td><td>–</td><td>–</td><td>–</td>" in page.markup
    assert ">points over a network alone</th>" in page.markup
    assert ">points over a tree</th>" in figures.needs({"nothing": None}, {}, "a tree").markup


def test_the_judged_guide_shows_what_was_best_there():
    found = guide.left_out(GAINS, AT, {case: case.split(",")[0] for case in GAINS})
    page = figures.judged(found, "training alone")
    assert '<th scope="col">points over training alone</th>' in page.markup
    assert "<td>liver, all</td><td>FLIC</td><td>−9.0</td><td>late fusion, +2.0</td>" in page.markup


def test_what_is_from_sharing_starts_where_the_recipe_ends():
    ax = figures.sharing(pd.DataFrame({"gain": [5.0, 2.0], "sharing": [4.0, 0.0]}, index=["FedAvg", "FLIC-Class"]))
    recipe, sharing = (np.array([[p[0] for p in path.vertices] for path in c.get_paths()]) for c in ax.collections)
    assert recipe.tolist() == [[0, 1], [0, 2]]
    assert sharing.tolist() == [[1, 5], [2, 2]]
    plt.close(ax.figure)


def test_what_sharing_loses_has_a_colour_of_its_own_and_a_bar_is_drawn():
    rows = pd.DataFrame({"gain": [5.0, 2.0], "sharing": [4.0, -3.0]}, index=["FedAvg", "FedRep"])
    ax = figures.sharing(rows, bar=("logistic regression", 7.0))
    recipe, won, lost = (np.array([[p[0] for p in path.vertices] for path in c.get_paths()]) for c in ax.collections)
    assert (recipe.tolist(), won.tolist(), lost.tolist()) == ([[0, 1], [0, 5]], [[1, 5]], [[5, 2]])
    assert ax.lines[-1].get_xdata() == [7, 7]
    assert "logistic regression" in [text.get_text() for text in ax.get_legend().get_texts()]
    plt.close(ax.figure)


def test_the_kept_portraits_are_of_all_federations():
    kept = portraits.portraits()
    assert list(zip(kept["federation"], kept["size"], strict=True)) == [(f, s) for f in FEDERATIONS for s in SIZES]
    assert set(portraits.leaves().values()) <= set(guide.LEAVES)


def test_a_portrait_is_kept_in_its_place_among_the_others(tmp_path):
    kept = portraits.portraits()
    kept[kept["federation"] != "solids"].to_csv(tmp_path / portraits.FILE, index=False)
    pd.testing.assert_frame_equal(pd.read_csv(portraits.keep(["solids"], tmp_path)), kept)


@pytest.mark.parametrize("name", ["heart", "liver", "solids", "linear-mapping"])
def test_portraits_are_what_the_data_look_like(name):
    if not FEDERATIONS[name].available:
        pytest.skip("its files are not here")
    made = portraits.made((name,), ("tenth",)).round(4)
    kept = portraits.portraits()
    kept = kept[(kept["federation"] == name) & (kept["size"] == "tenth")]
    pd.testing.assert_frame_equal(made, kept.reset_index(drop=True), check_dtype=False)
