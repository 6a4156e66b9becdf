"""Columns of every type at every door, and marks of missing values at every door: one rule, and no foreign error."""

import datetime
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from hetfl_core import Client, Federation, Preparation, load_trained, simulate
from hetfl_core.columns import group_name, marked, number_of
from hetfl_core.deployment import client_from_file
from hetfl_core.methods import Local

N = 24
RNG = np.random.default_rng(0)
BASE = RNG.normal(size=N)
TRUTHS = np.arange(N) % 3 == 0
DAYS = pd.date_range("2020-01-01", periods=N)
GAPPY = [None if i == 5 else i % 7 for i in range(N)]

TAKEN = {
    "bool": TRUTHS,
    "boolean": pd.array(TRUTHS, "boolean"),
    "dummies": pd.get_dummies(pd.Series(np.where(TRUTHS, "a", "b")))["a"].to_numpy(),
    "bool objects": np.array(TRUTHS.tolist(), object),
    "sparse": pd.arrays.SparseArray(TRUTHS * 2.5),
    "sparse bool": pd.arrays.SparseArray(TRUTHS),
    "Int64": pd.array([i % 7 for i in range(N)], "Int64"),
    "Float64": pd.array(BASE, "Float64"),
    "uint8": np.arange(N, dtype=np.uint8) % 7,
    "Decimal": np.array([Decimal(i % 7) / 4 for i in range(N)], object),
    "Fraction": np.array([Fraction(i % 7, 4) for i in range(N)], object),
    "int and float objects": np.array([i % 7 if i % 2 else i / 4 for i in range(N)], object),
}
"""Columns that are numbers, in types that hold them."""

GAPS = {
    "boolean with NA": pd.array([None if i == 5 else bool(i % 2) for i in range(N)], "boolean"),
    "bool objects with None": np.array([None if i == 5 else bool(i % 2) for i in range(N)], object),
    "Int64 with NA": pd.array(GAPPY, "Int64"),
    "Float64 with NA": pd.array(GAPPY, "Float64"),
    "sparse with NaN": pd.arrays.SparseArray([np.nan if g is None else float(g) for g in GAPPY]),
    "Decimal with None": np.array([None if g is None else Decimal(g) for g in GAPPY], object),
    "Decimal with pd.NA": np.array([pd.NA if g is None else Decimal(g) for g in GAPPY], object),
}
"""The same with a gap."""

COMPLEX = {
    "complex": BASE + 1j,
    "complex objects": np.array([1.0] * (N - 1) + [1j], object),
    "sparse complex": pd.arrays.SparseArray(TRUTHS * 1j),
}

TIMES = {
    "datetime": DAYS,
    "datetime with zone": DAYS.tz_localize("UTC"),
    "timedelta": DAYS - DAYS[0],
    "period": DAYS.to_period("D"),
    "dates": np.array([day.date() for day in DAYS], object),
    "timestamps and gaps": np.array([*DAYS[:-1], None], object),
    "times of day": np.array([datetime.time(i % 24) for i in range(N)], object),
}

OTHERS = {
    "category": pd.Categorical(np.where(TRUTHS, "a", "b")),
    "category of numbers": pd.Categorical(np.arange(N) % 3),
    "interval": pd.cut(BASE, 3),
    "words": np.where(TRUTHS, "a", "b"),
    "string": pd.array(np.where(TRUTHS, "a", "b"), "string"),
    "mixed": np.array([1, "a"] * (N // 2), object),
    "words and dates": np.array(["a", DAYS[0]] * (N // 2), object),
    "lists": np.array([[1], [2]] * (N // 2) + [None], object)[:N],
    "infinite": np.where(TRUTHS, np.inf, 1.0),
    "huge": np.array([10**400, *range(N - 1)], object),
    "bytes": np.array([b"a", b"b"] * (N // 2), object),
}
"""What is no column of numbers."""

WORDS = ("category", "category of numbers", "interval", "words", "string", "words and dates")
"""Of these, what `Preparation` takes as it is."""


def frame_of(values):
    made = pd.DataFrame({"a": BASE, "z": values})
    return made.assign(site=np.resize(["A", "B"], N), y=np.resize([0, 0, 1], N))


def by_frame(values):
    return Federation.from_frame(frame_of(values), client="site", target="y")


def by_preparation(values):
    return Federation.from_frame(
        frame_of(values), client="site", target="y", prepare=Preparation(scale=False, absent=1.0)
    )


def by_arrays(values):
    made = frame_of(values)
    return Federation.from_arrays({who: (rows[["a", "z"]], rows["y"]) for who, rows in made.groupby("site")})


def by_client(values):
    made = frame_of(values)
    parts = [rows for _, rows in made.groupby("site")]
    clients = [
        Client(rows[["a", "z"]], rows["y"], rows[["a", "z"]][:4], rows["y"][:4], name)
        for name, rows in zip("AB", parts, strict=True)
    ]
    return Federation(clients)


DOORS = {"from_frame": by_frame, "prepared": by_preparation, "from_arrays": by_arrays, "Client": by_client}


def numbers_of(fed):
    return sorted(torch.cat([x[:, 1] for c in fed for x in (c.x_train, c.x_test)][: 2 * len(fed)]).tolist())


@pytest.mark.filterwarnings("ignore::hetfl_core.federation.FederationWarning")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", TAKEN)
def test_numbers_are_taken_whatever_type_holds_them(door, kind):
    fed = DOORS[door](TAKEN[kind])
    expected = [float(v) for v in TAKEN[kind]]
    expected += [float(v) for c in "AB" for v in frame_of(TAKEN[kind]).query("site == @c")["z"][:4]] * (
        door == "Client"
    )
    assert [c.features for c in fed] == [("a", "z")] * 2
    assert all(c.x_train.is_floating_point() for c in fed)
    np.testing.assert_allclose(numbers_of(fed), sorted(expected), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::hetfl_core.federation.FederationWarning")
@pytest.mark.parametrize("kind", GAPS)
def test_gaps_are_gaps_whatever_type_holds_them(kind):
    assert not torch.cat([c.x_train for c in by_preparation(GAPS[kind])]).isnan().any()
    with pytest.raises(ValueError, match="client 'B': column 'z' lacks 1 of 12 values"):
        by_frame(GAPS[kind])
    for door in (by_arrays, by_client):
        with pytest.raises(ValueError, match=r"client 'B': x_.* must be finite, got 1 values that are NaN"):
            door(GAPS[kind])


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", COMPLEX)
def test_complex_numbers_are_refused_by_client_and_column(door, kind):
    with pytest.raises(
        (ValueError, TypeError), match=r"client '[AB]': .*column 'z' must hold real numbers, got"
    ) as told:
        DOORS[door](COMPLEX[kind])
    assert "real and imaginary part" in str(told.value)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", TIMES)
def test_dates_and_times_are_refused_by_client_and_column(door, kind):
    with pytest.raises((ValueError, TypeError), match=r"client '[AB]': .*column 'z' .*dates or times"):
        DOORS[door](TIMES[kind])


@pytest.mark.filterwarnings("ignore::hetfl_core.federation.FederationWarning")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", OTHERS)
def test_other_columns_are_words_or_refused_by_client_and_column(door, kind):
    where = r"(client '[AB]'.*(column 'z'|x_train must be finite)|column 'z'.*there are words on 'B' alone)"
    if door == "prepared" and kind in WORDS:
        assert all("z" in c.prepare.columns for c in DOORS[door](OTHERS[kind]))
        return
    with pytest.raises((ValueError, TypeError), match=where):
        DOORS[door](OTHERS[kind])


@pytest.mark.parametrize(
    "make", [scipy.sparse.csr_matrix, scipy.sparse.coo_array, lambda x: torch.tensor(x).to_sparse()]
)
def test_sparse_arrays_are_made_dense(make):
    x, y = np.where(RNG.random((12, 3)) < 0.5, RNG.normal(size=(12, 3)), 0.0), np.arange(12) % 2
    fed = Federation.from_arrays({"A": (make(x), y)})
    assert fed.fingerprint() == Federation.from_arrays({"A": (x, y)}).fingerprint()
    assert torch.equal(Client(make(x), y, make(x), y, "A").x_train, torch.tensor(x))
    model = simulate(fed, Local(), rounds=1, progress=False).trained().client("A")
    if not isinstance(make(x), torch.Tensor):
        assert model.predict(make(x)).equals(model.predict(x))


@pytest.mark.filterwarnings("ignore::hetfl_core.federation.FederationWarning")
@pytest.mark.parametrize("kind", ["bool", "boolean", "sparse bool", "Int64", "Decimal", "bool objects"])
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("door", ["from_frame", "from_arrays", "Client"])
def test_targets_are_taken_whatever_type_holds_them(kind, task, door):
    values = pd.Series(TAKEN[kind])
    values = values if task == "regression" or kind != "Decimal" else (values * 4)
    frame = pd.DataFrame({"a": BASE, "site": "A", "y": values})
    if door == "from_frame":
        fed = Federation.from_frame(frame, client="site", target="y", task=task)
    elif door == "from_arrays":
        fed = Federation.from_arrays({"A": (frame[["a"]], frame["y"])}, task=task)
    else:
        fed = Federation([Client(frame[["a"]], frame["y"], frame[["a"]], frame["y"], "A")], task=task)
    found = set(fed["A"].y_train.tolist())
    assert found <= {float(v) for v in values}
    assert len(found) > 1


def test_complex_targets_are_refused_by_client():
    frame = pd.DataFrame({"a": BASE, "site": "A", "y": BASE + 1j})
    for task in ("classification", "regression"):
        with pytest.raises((ValueError, TypeError), match="client 'A': y must hold real numbers"):
            Federation.from_frame(frame, client="site", target="y", task=task)
        with pytest.raises(TypeError, match="client 'A': y_train must hold real numbers"):
            Federation([Client(frame[["a"]], frame["y"], frame[["a"]], frame["y"], "A")], task=task)


def test_truth_values_beside_marks_are_numbers_too(tmp_path):
    """Another file of the same table has a "?", so that pandas reads words."""
    frame = frame_of(TRUTHS)
    frame.assign(z=frame["z"].astype(object).where(frame.index != 5, "?")).to_csv(tmp_path / "t.csv", index=False)
    fed = Federation.from_csv(tmp_path / "t.csv", client="site", target="y", prepare=Preparation(scale=False))
    assert fed["A"].features == ("a", "z")
    assert {*fed["A"].x_train[:, 1].tolist()} == {0.0, 1.0}
    later = pd.DataFrame({"a": ["1.5", "2"], "z": ["True", "?"]})
    assert fed["A"].rows(later)[0].tolist() == [1.5, 1.0]


def test_truth_values_that_are_named_categories_stay_levels():
    fed = Federation.from_frame(frame_of(TRUTHS), client="site", target="y", prepare=Preparation(categories=["z"]))
    assert fed["A"].features == ("a", "z=False", "z=True")


def test_rows_of_unprepared_clients_may_have_any_type_of_numbers():
    fed = by_frame(TRUTHS)
    for values in (TRUTHS, pd.array(TRUTHS, "boolean"), pd.arrays.SparseArray(TRUTHS), np.array([*TRUTHS], object)):
        assert torch.equal(fed["A"].rows(frame_of(values))[:, 1], torch.tensor(TRUTHS).to(fed["A"].x_train))
    with pytest.raises(ValueError, match="client 'A': column 'z' must hold real numbers"):
        fed["A"].rows(frame_of(BASE + 1j))


def test_a_site_in_the_index_is_told():
    frame = frame_of(BASE).set_index("site")
    with pytest.raises(
        ValueError, match=r"client must be one of the columns .* got 'site'; it is in the index: .*reset_index"
    ):
        Federation.from_frame(frame, client="site", target="y")
    assert len(Federation.from_frame(frame.reset_index(), client="site", target="y")) == 2


# --- marks ----------------------------------------------------------------------------------------------------------

MARKS = [0, 0.0, "0", " 0.0 ", "0,0", "-0", "0e0", np.int64(0), np.float32(0)]


@pytest.mark.parametrize("beside", [None, "?"])
@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("written", [0, 0.0, "0", " 0.0 "])
def test_a_number_is_a_mark_however_it_is_written(beside, mark, written):
    cells = np.array([f"{200 + i}" if isinstance(written, str) else 200 + i for i in range(N)], object)
    cells[:3] = written
    if beside:
        cells[3] = beside
    series = pd.Series(cells) if isinstance(written, str) or beside else pd.Series(cells).astype(float)
    for missing in ([mark, "."], {"z": [mark, "."]}):
        fed = Federation.from_frame(
            frame_of(series), client="site", target="y", prepare=Preparation(missing=missing, scale=False)
        )
        assert min(numbers_of(fed)) >= 200


@pytest.mark.parametrize(
    ("values", "marks", "codes", "expected"),
    [
        ([True, False], [0, 1], False, [False, False]),
        ([True, False], [False], False, [False, True]),
        (["True", "false", "?"], [False, "?"], False, [False, True, True]),
        (["9", "09", 9, "x"], [9], False, [True, True, True, False]),
        (["9", "09", 9, "x"], [9], True, [True, False, True, False]),
        (["9", "09", 9, "x"], ["09"], True, [False, True, False, False]),
        (["9,000", "9,0", "9.0"], [9], False, [False, True, True]),
        (["-9", "−9", "- 9"], [-9], False, [True, True, False]),
        ([0.1, 0.2], [0.1, None, np.nan], False, [True, False]),
        ([1, None, "a"], [None], False, [False, False, False]),
    ],
)
def test_marks_one_by_one(values, marks, codes, expected):
    assert marked(pd.Series(values), marks, codes).tolist() == expected


def test_marks_of_narrow_floats_and_of_category_columns():
    assert marked(pd.Series([0.1, 0.2], dtype="float32"), [0.1]).tolist() == [True, False]
    assert marked(pd.Series([1, 2], dtype="Int64").astype("category"), [2]).tolist() == [False, True]
    frame = frame_of(np.resize(["1", "2", "9"], N))
    for mark in (9, "9", 9.0, "9.0"):
        made = Preparation(missing=[mark], categories=["z"])
        assert Federation.from_frame(frame, client="site", target="y", prepare=made)["A"].features[1:] == ("z=1", "z=2")


def test_marks_of_columns_whose_names_are_numbers():
    frame = frame_of(np.where(TRUTHS, -9, 5.0 + BASE)).rename(columns={"z": 3, "a": 4})
    made = Preparation(missing={3: [-9]}, scale=False)
    fed = Federation.from_frame(frame, client="site", target="y", prepare=made)
    assert min(numbers_of(fed)) > 0


@pytest.mark.parametrize("mark", [[0], {"a": 1}, pd.Timestamp("2020-01-01"), 1j])
def test_what_is_no_mark_is_refused(mark):
    with pytest.raises(TypeError, match=r"missing\['z'\] must be numbers and texts, got"):
        Preparation(missing={"z": [mark]})


def test_a_saved_model_and_a_site_of_its_own_know_the_marks(tmp_path):
    """The same patient is predicted alike, whatever else is in the column of the file."""
    frame = frame_of(np.where(TRUTHS, 999, 100 + BASE))
    made = Preparation(missing={"z": [999, "."]}, levels="own")
    fed = Federation.from_frame(frame, client="site", target="y", prepare=made)
    simulate(fed, Local(), rounds=1, progress=False).save(tmp_path / "model")
    model = load_trained(tmp_path / "model").client("A")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = model.probabilities(pd.DataFrame({"a": [0.5], "z": [999]}))
        beside = model.probabilities(pd.DataFrame({"a": ["0.5", "0.5", "0.5"], "z": ["999", "?", "999.0"]}))
    assert beside.drop_duplicates().equals(alone)
    cells = frame.query("site == 'A'").drop(columns="site").astype({"z": object})
    cells.iloc[0, 1] = "?"
    cells.to_csv(tmp_path / "A.csv", index=False)
    site = client_from_file(tmp_path / "A.csv", "A", label="y", prepare=Preparation(missing=[999], scale=False))
    assert site.x_train[:, 1].max() < 200


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        ({"sep": ";", "decimal": ","}, ["1,5", "-9,0", "?", "2,25"]),
        ({"sep": ";", "decimal": ",", "thousands": "."}, ["1,5", "-9,00", ".", "1.002,25"]),
    ],
)
def test_a_decimal_comma_holds_beside_marks_too(options, cells, tmp_path):
    """pandas reads a column with "?" as words, in which the comma stays."""
    frame = frame_of(np.resize(cells, N)).drop(columns="a").assign(a=1)
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";")
    fed = Federation.from_csv(
        tmp_path / "t.csv", client="site", target="y", prepare=Preparation(missing=[-9, "."], scale=False), **options
    )
    assert {*torch.cat([c.x_train[:, c.features.index("z")] for c in fed]).tolist()} <= {
        1.5,
        2.25,
        1002.25,
        1.875,
        501.875,
    }


def test_numbers_and_names_of_groups():
    assert [number_of(v) for v in ("7", "7.50", "1e3", "x", "", "1_000", True, None, "1,5", "1,234")] == [
        7, 7.5, 1000, None, None, None, None, None, 1.5, None,
    ]  # fmt: skip
    assert {group_name(v) for v in (7, 7.0, "7", " 007 ", "7.0", np.int8(7))} == {"7"}
    assert group_name("P-001") == group_name("p-001 ") != group_name("P-01")
    assert group_name("0") == group_name(0.0) == "0"
