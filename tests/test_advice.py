"""What `hetfl compare` advises where it is known whether learning together pays (`advice.py` makes the federations)."""

from pathlib import Path

import advice
import pandas as pd
import pytest

FILE = Path(__file__).resolve().parents[1] / "data" / "advice.csv"
TABLE = pd.read_csv(FILE)
NOTHING = [make.__name__ for make in advice.NOTHING]


def test_every_fresh_federation_is_there_once() -> None:
    cases = [(name, seed) for name in NOTHING for seed in advice.FRESH]
    cases += [("gaining", seed) for seed in advice.GAINING_FRESH]
    assert sorted(zip(TABLE["kind"], TABLE["seed"], strict=True)) == sorted(cases)
    assert len(cases) == 80


def test_where_there_is_nothing_to_gain_it_seldom_says_together() -> None:
    rows = TABLE[TABLE["kind"].isin(NOTHING)]
    assert (rows["verdict"] == "together").sum() <= 3
    assert rows["truth"].max() < 1, "as far as fresh rows can tell"


def test_where_there_is_much_to_gain_it_mostly_says_together() -> None:
    rows = TABLE[TABLE["kind"] == "gaining"]
    assert rows["truth"].min() >= 5
    assert (rows["verdict"] == "together").sum() >= 20


@pytest.mark.nightly
def test_the_file_is_what_comes_out() -> None:
    """One made anew, of a kind in which trees alone are as good as any way of learning together."""
    row = TABLE.set_index(["kind", "seed"]).loc["interaction", 1000]
    found = advice.advised(advice.interaction(1000))
    assert found.verdict == row["verdict"] == "other"
    assert found.best.key == "boosting"
    assert found.gain.mean == pytest.approx(row["gain"], abs=1)


def test_the_page_says_what_is_in_the_file() -> None:
    page = (FILE.parents[1] / "book" / "tasks.md").read_text("utf8")
    together = TABLE["verdict"] == "together"
    for sentence, holds in {
        "In 50 there is nothing to gain": TABLE["kind"].isin(NOTHING).sum() == 50,
        "In none of these did the command say to learn together.": not together[TABLE["kind"] != "gaining"].any(),
        "gain at least five points of AUC": TABLE.query("kind == 'gaining'")["truth"].min() >= 5,
        "and there it always said so.": together[TABLE["kind"] == "gaining"].all(),
        "In the other 30, twelve to sixteen sites": {len(advice.gaining(s)) for s in advice.GAINING_FRESH}
        <= {*range(12, 17)},
    }.items():
        assert sentence in page
        assert holds, sentence


def test_seeds_make_the_same_federation_and_other_seeds_another() -> None:
    for make in (*advice.NOTHING, advice.gaining):
        one, same, other = make(3), make(3), make(4)
        assert all(one[who].equals(same[who]) for who in one)
        assert not one["A"].equals(other["A"])
    assert all(30 <= len(table) <= 60 for table in advice.gaining(0).values())
