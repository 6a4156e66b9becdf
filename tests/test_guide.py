"""The decision guide and the benchmark's figures: what they say follows from the numbers they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from hetfl_book.headtohead import figures, guide
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
    assert (traits.same, traits.shared, traits.rows) == (False, True, 20.0)
    assert traits.apart == pytest.approx(0.25)  # 3/4 against 1/2 of all
    assert guide.leaf(traits) == "some inputs shared, many rows"
    same = guide.Traits.of(federation(([9, 1], ["age"]), ([9, 1], ["age"])))
    assert (same.same, same.shared, same.rows, same.apart) == (True, True, 5.0, 0.0)
    assert guide.leaf(guide.Traits.of(federation(([4, 4], ["a"]), ([4, 4], ["b"])))) == "nothing shared, few rows"


def test_inputs_without_names_are_the_same_where_their_shapes_are_and_blocks_by_those_that_are_held():
    plain = [
        Client(np.ones((4, n)), [0, 1, 0, 1], np.ones((2, n)), [0, 1], f"{n} {i}") for i, n in enumerate((2, 2, 3))
    ]
    assert guide.Traits.of(Federation(plain[:2], 2)).same
    assert not guide.Traits.of(Federation(plain, 2)).same
    assert guide.Traits.of(Federation(plain, 2)).shared  # the first two have the same
    x = [{"a": torch.ones(4, 2), "b": torch.ones(4, 0)}, {"a": torch.ones(4, 0), "b": torch.ones(4, 2)}]
    apart = Federation([Client(one, [0, 1, 0, 1], one, [0, 1, 0, 1], str(i)) for i, one in enumerate(x)], 2)
    assert not guide.Traits.of(apart).shared


def test_a_regression_has_no_classes_to_ask_about():
    x = np.ones((4, 2))
    with pytest.raises(ValueError, match="for classification, got a regression"):
        guide.Traits.of(Federation([Client(x, [0.5] * 4, x, [0.5] * 4, "one")], task="regression"))


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rows", [guide.FEW - 1, guide.FEW])
@pytest.mark.parametrize("apart", [0.0, guide.APART])
def test_every_federation_is_at_one_leaf(same, shared, rows, apart):
    traits = guide.Traits(same, shared or same, rows, apart)
    assert sum(holds(traits) for holds in guide.LEAVES.values()) == 1


GAINS = pd.DataFrame(
    {"heart, all": [0, 1, 4], "heart, tenth": [0, 3, 5], "liver, all": [0, 2, -9], "eeg, all": [0, -1, np.nan]},
    index=["training alone", "late fusion", "FLIC"],
    dtype=float,
)
AT = dict.fromkeys(GAINS, "some inputs shared, few rows") | {"eeg, all": "nothing shared, few rows"}


def test_a_leaf_advises_the_method_with_the_highest_mean_that_ran_everywhere_at_it():
    found = guide.guide(GAINS, AT)
    assert list(found) == ["some inputs shared, few rows", "nothing shared, few rows"]
    assert found["some inputs shared, few rows"] == guide.Advice("late fusion", 2.0, 1.0, 3.0, tuple(GAINS)[:3])
    assert found["nothing shared, few rows"].method == "training alone"  # FLIC did not run, late fusion lost
    with pytest.raises(ValueError, match="none"):
        guide.advise(GAINS.loc[["FLIC"]])


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


def test_cells_of_the_heat_map_carry_their_number_its_sign_and_whether_it_is_sure():
    gains = pd.DataFrame({"heart & co": [12.0, -3.0, np.nan]}, index=["A", "B", "C"])
    page = figures.heat(gains, gains > 10, {"heart & co": "#runs-heart"})
    assert "<b>+12.0</b>" in page.markup
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


def test_gains_against_rows_have_the_median_of_each_octave():
    rows = pd.DataFrame({"method": "A", "rows": [4, 5, 7, 8, 9], "gain": [1.0, 2.0, 6.0, 0.0, 0.0]})
    ax = figures.against_rows(rows)
    middle = ax.lines[1]
    assert (list(middle.get_xdata()), list(middle.get_ydata())) == ([5], [2.0])  # 8 and 9 are too few
    plt.close(ax.figure)


def test_the_guide_as_a_tree_says_of_each_leaf_what_follows_and_where_it_stands():
    questions = {"Same columns?": [("yes", "same"), ("no", "Few rows?")], "Few rows?": [("yes", "few"), ("no", "many")]}
    advice = {"same": guide.Advice("FedAvg", 2.0, -1.0, 5.0, ("a", "b")), "few": guide.Advice("HyFEM", 1, 1, 1, ("c",))}
    page = figures.tree(advice, questions, {"same": "#same", "few": "#few"})
    assert (
        '<strong>FedAvg</strong><br>+2.0 points over training alone (−1.0 to +5.0 in <a href="#same">2 cases</a>)'
        in page.markup
    )
    assert "no federation of the benchmark is like this" in page.markup
    assert page.markup.count("<ul>") == 2
