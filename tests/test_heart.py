"""Four hospitals: the real tables, where they are at hand, and the made ones."""

import json

import numpy as np
import pandas as pd
import pytest

from hetfl_core.datasets import CATALOGUE, DataError, clinical, heart, registry

MADE = heart.patients(made=True)


def counted(frame):
    """Rows and gaps of each hospital, healthy and ill, by column."""
    return frame[[*heart.NAMES]].isna().groupby([frame["hospital"], frame["ill"]]).agg(["size", "sum"])


def test_made_patients_have_the_columns_gaps_and_rates_of_the_file():
    """Counted anew, with what the file says of the real ones."""
    told = json.loads(heart.STUDY.rates.read_text("utf8"))
    assert len(MADE) == 920
    assert list(MADE) == [*heart.NAMES, "hospital", "ill"]
    assert MADE["hospital"].unique().tolist() == list(told)
    for (hospital, ill), rows in MADE.groupby(["hospital", "ill"]):
        own = told[hospital][str(ill)]
        assert len(rows) == own["patients"]
        for column in heart.NAMES:
            assert rows[column].notna().sum() == own[column]["n"]
            if "counts" in own[column]:
                found = rows[column].value_counts()
                assert {f"{level:g}": n for level, n in found.items()} == own[column]["counts"]
            elif own[column]["n"] > 30:
                off = abs(rows[column].mean() - own[column]["mean"])
                assert off < 5 * own[column]["sd"] / np.sqrt(own[column]["n"])


def test_made_patients_are_drawn_by_the_seed_and_labelled_as_made():
    assert heart.patients(made=True).equals(MADE)
    assert not heart.patients(made=True, seed=1).equals(MADE)
    fed = heart.hospitals(made=True)
    assert fed.info["simulated"] is fed.info["stand_in"] is True
    assert fed.info["source"].startswith("made patients")
    json.dumps(fed.info)
    assert fed.name == "heart.hospitals" in CATALOGUE


def test_each_hospital_has_its_own_columns_and_there_are_three_more_views():
    """13 inputs of common columns, and three blocks that some hospitals have."""
    fed = heart.hospitals(made=True)
    assert [(c.name, c.shapes) for c in fed] == [
        ("Cleveland", (22,)),
        ("Budapest", (15,)),
        ("Zurich", (19,)),
        ("Long Beach", (15,)),
    ]
    assert [c.n_train for c in fed] == [181, 176, 73, 120]
    blocks = fed.in_blocks("by availability")
    assert [blocks[name].shapes for name in ("Cleveland", "Zurich", "Long Beach")] == [
        {"common": (13,), "chol+fbs": (2,), "ca": (1,), "slope+thal": (6,)},
        {"common": (13,), "chol+fbs": (0,), "ca": (0,), "slope+thal": (6,)},
        {"common": (13,), "chol+fbs": (2,), "ca": (0,), "slope+thal": (0,)},
    ]
    assert {c.shapes for c in fed.of_common_columns()} == {(13,)}
    assert {c.shapes for c in fed.filled()} == {(22,)}
    later = MADE[MADE["hospital"] == "Zurich"].iloc[[0]]
    assert blocks["Zurich"].rows(later)["slope+thal"].shape == (1, 6)


def test_long_beach_has_a_slope_where_fewer_values_are_asked_for():
    assert "slope=1" in heart.hospitals(made=True, absent=0.6)["Long Beach"].features


def test_without_files_the_made_patients_are_offered(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    heart._recorded.cache_clear()

    def no_network(key):
        return registry.verify(key)

    monkeypatch.setattr(clinical, "fetch", no_network)
    with pytest.raises(DataError, match=r"heart/cleveland: .* is missing.* Made patients need no files: made=True\."):
        heart.patients()
    assert len(heart.patients(made=True)) == 920


def test_a_file_that_is_no_table_of_numbers_is_refused(tmp_path, monkeypatch):
    heart._recorded.cache_clear()
    (tmp_path / "file").write_text("1,2,three\n")
    monkeypatch.setattr(clinical, "fetch", lambda key: tmp_path / "file")
    with pytest.raises(DataError, match="heart/cleveland: expected 14 columns of numbers"):
        heart.patients()
    heart._recorded.cache_clear()


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="made must be True or False, got 'yes'"):
        heart.patients(made="yes")
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0, got -1"):
        heart.hospitals(made=True, seed=-1)
    with pytest.raises(ValueError, match="gaps must be"):
        heart.hospitals(made=True, gaps="mean")


# --- the real files -------------------------------------------------------------------------------------------------


@pytest.mark.realdata("heart.hospitals")
def test_the_real_tables_are_those_of_the_card():
    frame = heart.patients()
    assert frame.groupby("hospital", sort=False).size().to_dict() == {
        "Cleveland": 303,
        "Budapest": 294,
        "Zurich": 123,
        "Long Beach": 200,
    }
    assert (100 * frame.groupby("hospital", sort=False)["ill"].mean()).round().tolist() == [46, 36, 93, 74]
    present = 100 * frame[["chol", "fbs", "slope", "ca", "thal"]].notna().groupby(frame["hospital"], sort=False).mean()
    assert present.round().astype(int).to_numpy().tolist() == [
        [100, 100, 100, 99, 99],
        [92, 97, 35, 1, 10],
        [0, 39, 86, 4, 58],
        [72, 96, 49, 1, 17],
    ]
    assert (frame[["chol", "trestbps"]].min() > 0).all()
    for column, levels in heart.CATEGORIES.items():
        assert set(frame[column].dropna()) == set(levels)


@pytest.mark.realdata("heart.hospitals")
def test_the_rates_of_made_patients_are_those_of_the_real_ones():
    pd.testing.assert_frame_equal(counted(heart.patients()), counted(MADE))


@pytest.mark.realdata("heart.hospitals")
def test_real_and_made_hospitals_look_alike():
    real, made = heart.hospitals(), heart.hospitals(made=True)
    assert [(c.name, c.features, c.n_train, c.n_test) for c in real] == [
        (c.name, c.features, c.n_train, c.n_test) for c in made
    ]
    assert (real.info["simulated"], real.info["stand_in"]) == (False, False)
    assert real.info["present"] == made.info["present"]
    frame = heart.patients()
    frame["age"] = 0
    assert heart.patients()["age"].min() > 0, "a table that was changed is the caller's own"
