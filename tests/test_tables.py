"""Tables to federations: gaps, words and scales as a client's own training rows say, and no others."""

import gzip
import io
import json
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from hetfl_core import Client, Federation, Preparation, load_trained, simulate
from hetfl_core.deployment import client_from_file
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import FedAvg, LateFusion, Local
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.preparation import restored
from hetfl_core.views import view_of

WORDS = ["mild", "grave", "none"]


def table(n=60, seed=0):
    """Two sites; B lacks `sugar`, and both have gaps."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "site": np.repeat(["A", "B"], n // 2),
            "age": rng.integers(30, 80, n).astype(float),
            "sugar": rng.normal(6, 2, n),
            "pain": rng.choice(WORDS, n),
            "code": rng.choice([3, 6, 7], n).astype(float),
            "ill": np.arange(n) % 2,
            "fold": np.where(np.arange(n) % 5 == 0, "test", "train"),
        }
    )
    frame.loc[frame.site == "B", "sugar"] = np.nan
    frame.loc[[3, 10, 40], "age"] = np.nan
    frame.loc[[5, 45], "code"] = np.nan
    frame.loc[[7, 41], "pain"] = None
    return frame


def federation(frame=None, prepare=None, **options):
    frame = table() if frame is None else frame
    prepare = Preparation(categories=["code"]) if prepare is None else prepare
    given = {"client": "site", "target": "ill", "split": "fold", **options}
    return Federation.from_frame(frame, prepare=prepare, **given)


def rows(frame, site, fold="train"):
    return frame[(frame.site == site) & (frame.fold == fold)]


def test_inputs_are_those_of_scikit_learns_parts_fitted_on_the_training_rows():
    frame, fed = table(), federation()
    for site, numbers in (("A", ["age", "sugar"]), ("B", ["age"])):
        by_hand = make_column_transformer(
            (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["pain"]),
            (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["code"]),
            sparse_threshold=0,
        )
        known = frame.assign(pain=frame.pain.astype(object).where(frame.pain.notna(), np.nan))
        np.testing.assert_array_equal(fed[site].x_train, by_hand.fit_transform(rows(known, site)).astype(float))
        np.testing.assert_array_equal(fed[site].x_test, by_hand.transform(rows(known, site, "test")).astype(float))
        words = ["pain=grave", "pain=mild", "pain=none", "code=3", "code=6", "code=7"]
        assert fed[site].features == (*numbers, *words)
    assert fed.info["features"]["B"] == list(fed["B"].features)
    assert fed.info["present"]["B"]["sugar"] == 0
    assert fed.info["present"]["A"]["age"] == 28 / 30
    json.dumps(fed.info)


def test_a_column_in_numbers():
    """Of age in site A: the median in the place of a gap, then mean 0 and deviation 1; worked with NumPy."""
    own = rows(table(), "A")["age"].to_numpy()
    filled = np.where(np.isnan(own), np.nanmedian(own), own)
    expected = (filled - filled.mean()) / filled.std()
    np.testing.assert_allclose(federation()["A"].x_train[:, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gaps", ["median", "most_frequent", "indicator"])
@pytest.mark.parametrize("levels", ["all", "own"])
def test_nothing_of_a_test_row_is_in_the_preparation(gaps, levels):
    """Whatever stands in test rows, of this client or another: training inputs and all that was fitted stay."""
    prepare = Preparation(gaps=gaps, levels=levels, categories=["code"])
    frame, other = table(), table()
    test = other.fold == "test"
    other.loc[test, ["age", "sugar"]] = [1e6, -1e6]
    other.loc[test & (other.site == "B"), "sugar"] = np.nan
    other.loc[test, "code"], other.loc[test, "pain"] = 99.0, "unheard of"
    other.loc[test, "ill"] = 1 - other.loc[test, "ill"]
    before = federation(frame, prepare)
    with pytest.warns(FederationWarning, match="levels that its preparation does not know"):
        after = federation(other, prepare)
    for one, two in zip(before, after, strict=True):
        assert torch.equal(one.x_train, two.x_train)
        assert one.features == two.features
        assert one.prepare.state() == two.prepare.state()
        assert not torch.equal(one.x_test, two.x_test)
        unknown = [i for i, name in enumerate(two.features) if "=" in name]
        assert not two.x_test[:, unknown].any(), "a level that training lacks is none of those known"


def test_each_client_has_its_own_fit():
    changed = table()
    changed.loc[changed.site == "B", "age"] *= 3
    before, after = federation(), federation(changed)
    assert torch.equal(before["A"].x_train, after["A"].x_train)
    assert before["B"].prepare.state() != after["B"].prepare.state()


def test_later_rows_are_prepared_alike_in_any_order_of_columns():
    frame, fed = table(), federation()
    for site in "AB":
        later = rows(frame, site, "test")
        assert torch.equal(fed[site].rows(later), fed[site].x_test)
        assert torch.equal(fed[site].rows(later[later.columns[::-1]].assign(more=1)), fed[site].x_test)
        assert fed[site].rows(later[:0]).shape == (0, len(fed[site].features))
    with pytest.raises(
        ValueError, match=r"client 'A': the table must have the columns .* lacks \['age'\]; where a value"
    ):
        fed["A"].rows(frame.drop(columns="age"))
    with pytest.raises(ValueError, match="client 'A': column 'age' must hold numbers, got 'old'"):
        fed["A"].rows(frame.assign(age="old"))
    with pytest.warns(FederationWarning, match=r"client 'A': column 'pain' has levels that .* \['worse'\]"):
        assert not fed["A"].rows(frame.assign(pain="worse"))[:, 2:5].any()
    with pytest.raises(TypeError, match="frame must be a DataFrame"):
        fed["A"].rows([[1.0]])
    with pytest.raises(ValueError, match="client 'c': features must have names, by which rows of a table are found"):
        Client([[1.0]], [0], [[1.0]], [0], "c").rows(frame)


@pytest.mark.parametrize("gaps", ["median", "refuse"])
def test_columns_that_a_view_does_not_use_need_not_be_there(gaps):
    frame = table().dropna(subset=["age", "pain", "code"])
    common = federation(frame, Preparation(gaps=gaps, categories=["code"])).of_common_columns()
    later = rows(frame, "A", "test").drop(columns="sugar")
    assert torch.equal(common["A"].rows(later), common["A"].x_test)
    with pytest.raises(ValueError, match=r"client 'A': the table must have the columns .* lacks \['pain'\]"):
        common["A"].rows(later.drop(columns="pain"))


def test_rows_without_a_preparation_are_found_by_name():
    frame = table()[["site", "age", "ill", "code"]].dropna()
    fed = Federation.from_frame(frame, client="site", target="ill", test_size=0)
    assert torch.equal(fed["A"].rows(frame[frame.site == "A"][["code", "age"]]), fed["A"].x_train)
    with pytest.raises(ValueError, match="client 'A': column 'age' must hold numbers, without gaps, in all 60 rows"):
        fed["A"].rows(table().assign(age=np.nan, code=1.0))
    with pytest.raises(ValueError, match=r"client 'A': the table must have the columns .* lacks \['code'\]"):
        fed["A"].rows(frame.drop(columns="code"))


@pytest.mark.parametrize("gaps", ["median", "most_frequent", "indicator"])
@pytest.mark.parametrize("scale", [True, False])
def test_what_was_fitted_goes_through_json_and_pickle_bit_for_bit(gaps, scale):
    prepare = Preparation(gaps=gaps, scale=scale, categories={"code": [3, 6, 7]}, missing={"age": [42]})
    frame, fed = table(), federation(prepare=prepare)
    for client in fed:
        again = restored(json.loads(json.dumps(client.prepare.state())))
        expected = client.prepare.transform(frame)
        pd.testing.assert_frame_equal(again.transform(frame), expected, check_exact=True)
        pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(client.prepare)).transform(frame), expected)
        assert again.state() == client.prepare.state()


def test_an_indicator_says_where_something_was_missing():
    frame, fed = table(), federation(prepare=Preparation(gaps="indicator", categories=["code"]))
    names = [name for name in fed["A"].features if name.endswith(" missing")]
    assert names == ["age missing", "sugar missing", "pain missing", "code missing"]
    index = [fed["A"].features.index(name) for name in names]
    expected = rows(frame, "A")[["age", "sugar", "pain", "code"]].isna().to_numpy(float)
    np.testing.assert_array_equal(fed["A"].x_train[:, index], expected)
    assert expected.any()
    width = len(index)
    assert torch.equal(fed["A"].x_train[:, :-width], federation()["A"].x_train), "filled in as with the median"


def test_gaps_are_refused_where_that_is_asked_for():
    prepare = Preparation(gaps="refuse", categories=["code"])
    with pytest.raises(
        ValueError, match="client 'A': column 'age' lacks 2, 'pain' lacks 1, 'code' lacks 1 of 30 values"
    ):
        federation(prepare=prepare)
    whole = table().dropna(subset=["age", "pain", "code"])
    fed = federation(whole, prepare)
    with pytest.raises(ValueError, match="client 'A': column 'age' lacks 1 of 1 values"):
        fed["A"].rows(whole[:1].assign(age=np.nan))


def test_a_column_that_is_mostly_missing_is_absent():
    frame = table()
    own = frame.index[frame.site == "A"]
    frame.loc[own[:18], "sugar"] = np.nan  # 60 %
    assert "sugar" in federation(frame)["A"].features
    frame.loc[own[18], "sugar"] = np.nan
    assert "sugar" not in federation(frame)["A"].features
    assert "sugar" in federation(frame, Preparation(absent=0.7))["A"].features
    assert not any("sugar" in c.features for c in federation(frame, Preparation(absent=0.5)))
    frame["age"] = frame["sugar"] = frame["pain"] = frame["code"] = np.nan
    with pytest.raises(ValueError, match="client 'A': every feature is missing"):
        federation(frame, Preparation())


def test_a_column_without_a_value_in_the_training_rows_is_absent():
    frame = table()
    frame.loc[(frame.site == "A") & (frame.fold == "train"), "sugar"] = np.nan
    fed = federation(frame, Preparation(absent=1.0))
    assert "sugar" not in fed["A"].features


def test_marks_stand_for_what_is_missing():
    frame = table()
    marked = frame.astype({"age": object, "pain": object})
    marked["age"] = [" ? " if np.isnan(v) else f"{v:g}" for v in frame["age"]]
    marked["pain"] = ["" if pd.isna(v) else f" {v}" for v in frame["pain"]]
    marked["code"] = frame["code"].fillna(-9)
    fed = federation(marked, Preparation(categories=["code"], missing={"code": [-9]}))
    assert fed.fingerprint() == federation(frame).fingerprint()
    assert fed.info["present"] == federation(frame).info["present"]
    words = table().assign(age="?", sugar="unknown")
    with pytest.raises(ValueError, match="client 'A': every feature is missing"):
        federation(words[["site", "ill", "fold", "age", "sugar"]], Preparation(missing=["unknown"]))


def test_levels_of_all_sites_or_of_one():
    frame = table()
    frame.loc[(frame.site == "B") & (frame.pain == "none"), "pain"] = "mild"
    one, each = federation(frame, Preparation()), federation(frame, Preparation(levels="own"))
    assert "pain=none" in one["B"].features
    assert not one["B"].x_train[:, one["B"].features.index("pain=none")].any()
    assert "pain=none" in each["A"].features
    assert "pain=none" not in each["B"].features


def test_levels_that_are_given_are_the_levels_in_their_order():
    fed = federation(prepare=Preparation(categories={"code": [7, 6.0, "3", 1], "pain": ["none", "grave", "mild"]}))
    assert fed["B"].features[1:] == ("pain=none", "pain=grave", "pain=mild", "code=7", "code=6", "code=3", "code=1")
    with pytest.raises(ValueError, match=r"column 'code' must have levels among \['6', '7'\], .* got \['3'\]"):
        federation(prepare=Preparation(categories={"code": [6, 7]}))


def test_whole_numbers_are_one_level_however_they_are_written():
    frame = table()
    frame["code"] = [str(int(v)) if i % 2 else v for i, v in enumerate(frame["code"].fillna(6))]
    fed = federation(frame, Preparation(categories=["code"]))
    assert [name for name in fed["A"].features if "code" in name] == ["code=3", "code=6", "code=7"]
    frame["code"] = np.resize(["01", "1", "x"], len(frame))
    made = federation(frame, Preparation(categories=["code"]))
    assert [name for name in made["A"].features if "code" in name] == ["code=01", "code=1", "code=x"]


@pytest.mark.parametrize(
    ("change", "prepare", "message"),
    [
        (
            {"age": pd.Timestamp("2020-01-01")},
            {},
            "column 'age' holds dates or times: make numbers of them",
        ),
        ({"age": np.inf}, {}, "client 'A': column 'age' must hold finite numbers up to .* got 30 that are beyond"),
        ({"age": 1e200}, {}, "client 'A': column 'age' must hold finite numbers up to 1e.150, got 30 that are beyond"),
        ({"age": pd.Timedelta("1D")}, {}, "column 'age' holds dates or times"),
        ({"age": 1j}, {}, "column 'age' must hold real numbers, got dtype complex128"),
        ({"age": pd.Series([[1, 2]] * 60)}, {}, r"column 'age' must hold a number or a text in each row, got \[1, 2\]"),
        ({"age": ["1,5", "20,0"] * 30}, {}, r"column 'age' holds numbers that are written such as '1,5': .*decimal"),
        (
            {"age": ["1,5", "?", "20,0", "7"] * 15},
            {},
            r"client 'A': column 'age' holds numbers that are written .* '1,5'",
        ),
        ({"age": ["1,234", "99"] * 30}, {}, r"client 'A': column 'age' holds numbers .* '1,234': .*thousands"),
        ({"age": ["1 234", "12\u202f345.5"] * 30}, {}, r"client 'A': column 'age' holds numbers .* '1 234'"),
        (
            {"age": ["old"] * 30 + [1.0] * 30},
            {},
            r"column 'age' must hold numbers or words, got .* 30 rows, \['old'\].* \(there are words on 'A' alone\)",
        ),
        ({"age": ["old"] + [1.0] * 59}, {}, r"column 'age' must hold numbers or words, got .* in 1 rows, \['old'\]"),
        (
            {"age": [f"Mr {i}" for i in range(60)]},
            {},
            "client 'A': column 'age' has 30 different texts in 30 rows, as names",
        ),
        (
            {"age": [f"{i}.5 years" for i in range(60)]},
            {},
            r"client 'A': column 'age' has numbers with a unit, such as '0.5 years': write the numbers alone, or name",
        ),
        ({}, {"categories": ["colour"]}, r"categories must name columns of \['age', .*\], got 'colour'"),
        ({}, {"missing": {"colour": [0]}}, r"missing must name columns of .* got 'colour'"),
        ({}, {"categories": {"code": [1, 1.0]}}, r"categories\['code'\] must be different levels, got \('1', '1'\)"),
        ({}, {"categories": {"code": []}}, r"categories\['code'\] must be different levels"),
        ({}, {"categories": "code"}, "categories must be a sequence, got 'code'"),
        ({}, {"missing": {"code": 3}}, r"missing\['code'\] must be a sequence, got 3"),
        ({}, {"gaps": "mean"}, "gaps must be one of .*'median', 'most_frequent', 'indicator', 'refuse'.* got 'mean'"),
        ({}, {"absent": 1.5}, r"absent must be in \[0, 1\], got 1.5"),
        ({"pain=mild": 1.0}, {}, "client 'A': columns must have names that stay different"),
    ],
)
def test_what_cannot_be_prepared_is_refused_by_name(change, prepare, message):
    with pytest.raises((ValueError, TypeError), match=message):
        federation(table().assign(**change), Preparation(**prepare))


def test_numbers_in_another_writing_are_told_where_nothing_prepares_them():
    frame = pd.DataFrame({"site": "A", "age": ["1,5", "?", "2", "3,25"] * 5, "ill": [0, 1] * 10})
    with pytest.raises(ValueError, match=r"client 'A': column 'age' holds numbers .* '1,5': .*decimal=\",\""):
        Federation.from_frame(frame, client="site", target="ill")


# --- rows that are hardly meant -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sugar": [6.0, 240.0]}, r"client 'A': column 'sugar' has values far from .*, 240 where they are 6\.\d+ ± \d"),
        (
            dict.fromkeys(["age", "sugar", "pain", "code"], np.nan),
            "client 'A': 2 of 2 rows have no value in any column",
        ),
    ],
)
def test_patients_who_are_blank_or_in_another_unit_are_told(change, message, tmp_path):
    fed = federation()
    run = simulate(fed, Local(Model(MLP((4,), 3))), rounds=1, progress=False)
    model, rows = load_trained(run.save(tmp_path)), table()[:2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(rows, "A")
    for use in (lambda x: model.predict(x, "A"), model.client("A").predict_proba, fed["A"].rows):
        with pytest.warns(FederationWarning, match=message) as told:
            use(rows.assign(**change))
        assert told[0].filename == __file__, "where the user called"


def test_a_column_in_another_unit_is_told_where_no_single_value_is_far():
    """In mmol/l where it was mg/dl: 5 standard deviations, each time."""
    frame, fed = table(), federation(table().assign(sugar=table()["sugar"] * 10 + 100))
    with pytest.warns(FederationWarning, match="column 'sugar' has values far from those"):
        fed["A"].rows(frame[:8])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed["A"].rows(frame[:1])


def test_a_column_that_numbers_the_rows_is_told():
    for number in (np.arange(60), np.arange(60)[::-1] * 1.0, np.cumsum(np.arange(1, 61))):
        with pytest.warns(FederationWarning, match="column 'number' holds another whole number in each row"):
            federation(table().assign(number=number))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation(table().assign(number=np.random.default_rng(0).integers(0, 10**6, 60)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": np.where(np.arange(60) % 5, table()["age"], -999.0)}, r"'age' is -999 in 12 rows, far .* \[-999\]\}"),
        ({"site": ["ber", "BER"] * 30}, "column 'site': 'ber' and 'BER' are two clients"),
        ({"site": ["1", "1.0"] * 30}, "column 'site': '1' and '1.0' are two clients"),
        ({"ill": np.arange(60)}, r"there are 60 classes in 60 samples, .*task=\"regression\""),
    ],
)
def test_what_is_rarely_meant_is_told(change, message):
    with pytest.warns(FederationWarning, match=message):
        federation(table().assign(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ill": np.where(np.arange(60) == 3, np.inf, 1)}, "client 'A': labels must be whole numbers or text, got inf"),
        ({"ill": pd.Timestamp("2020-01-01")}, "client 'A': labels must be .* of type datetime"),
        ({"pain": b"mild"}, "client 'A': column 'pain' must hold a number or a text in each row, got b'mild'"),
        ({"age": pd.Series([10**400] * 60, dtype=object)}, "client 'A': column 'age' must hold finite numbers"),
    ],
)
def test_what_no_file_can_keep_is_refused_before_anything_is_trained(change, message):
    with pytest.raises(ValueError, match=message):
        federation(table().assign(**change))


BYTES = table().to_csv(index=False).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            BYTES.decode().encode("utf-16"),
            "all.csv: the file is not in UTF-8, but in UTF-16: encoding='utf-16' reads it",
        ),
        (BYTES.replace(b"mild", b"mi\0ld", 1), r"all.csv: the file is no text, as line \d+ holds a NUL"),
        (b"PK\x03\x04" + BYTES, "all.csv: the file is no text, but an Excel file or an archive"),
        (BYTES + BYTES, "all.csv: row 61 repeats the names of columns"),
        (None, "all.csv: there is no file"),
    ],
)
def test_files_that_are_no_text_or_two_tables_are_refused(content, message, tmp_path):
    file = tmp_path / "all.csv"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Federation.from_csv(file, client="site", target="ill", prepare=Preparation())


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        ("bom.csv", lambda t: b"\xef\xbb\xbf" + t.encode(), {}),
        ("wide.csv", lambda t: t.encode("utf-16"), {"encoding": "utf-16"}),
        ("crlf.csv", lambda t: t.replace("\n", "\r\n").encode(), {}),
        ("quoted.csv", lambda t: t.replace("mild", '"mild"').replace("\n", "\n\n").encode(), {}),
        ("packed.csv.gz", lambda t: gzip.compress(t.encode()), {}),
        ("german.csv", lambda t: t.replace(",", ";").replace(".", ",").encode("latin-1"), {"sep": ";", "decimal": ","}),
    ],
)
def test_files_of_other_writers_say_the_same(name, write, options, tmp_path):
    (tmp_path / name).write_bytes(write(table().to_csv(index=False)))
    given = {"client": "site", "target": "ill", "split": "fold", "prepare": Preparation(categories=["code"])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = Federation.from_csv(tmp_path / name, **given, **options)
    assert made.fingerprint() == federation().fingerprint()


def test_levels_that_differ_in_capitals_only_are_told():
    with pytest.warns(FederationWarning, match="column 'sex': 'M' and 'm' are two levels"):
        federation(table().assign(sex=["m", "f", "M"] * 20))


def test_rare_levels_are_put_together_where_that_is_asked_for(tmp_path):
    """Counted at each site; no name of a rare one is in what is kept, and one that comes later is among them."""
    frame = table()
    frame.loc[[1, 2, 31], "pain"] = ["Marfan", "Fabry", "Fabry"]
    fed = federation(frame, Preparation(categories={"code": [3, 6, 7]}, rare=2))
    names = [f"pain={level}" for level in ("grave", "mild", "none", "other")]
    for client in fed:
        assert [f for f in client.features if "pain" in f] == names
    place = fed["A"].features.index("pain=other")
    assert fed["A"].x_train[:, place].sum() == 2
    run = simulate(fed, Local(Model(MLP((4,), 3))), rounds=1, progress=False)
    written = (run.save(tmp_path) / "model.json").read_text()
    assert "Marfan" not in written
    assert "Fabry" not in written
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = load_trained(tmp_path).client("A").prepare.transform(frame[:1].assign(pain="unheard of"))
    assert rows[names].to_numpy().tolist() == [[0, 0, 0, 1]]
    assert "pain=Fabry" in federation(frame)["A"].features


def test_columns_that_are_no_features_are_left_out():
    frame = table().assign(number=np.arange(60))
    assert federation(frame, ignore=["number"]).fingerprint() == federation().fingerprint()
    assert federation(frame, ignore=["number"]).info["settings"]["ignore"] == ["number"]
    with pytest.raises(ValueError, match=r"ignore must be one of the columns .* got 'nummer'"):
        federation(frame, ignore=["nummer"])


def test_columns_that_hold_the_answer_are_a_warning():
    frame = table(100)
    with pytest.warns(FederationWarning, match="each value of column 'stage' stands for one value of 'ill'"):
        federation(frame.assign(stage=frame["ill"] * np.resize([1, 2], 100)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation(frame.assign(stage=np.where(np.arange(100) < 90, frame["ill"], 1)))
        federation(frame.assign(stage=3.0))
        Federation.from_frame(frame[["site", "age", "code"]].dropna(), client="site", target="age", task="regression")


def test_names_that_read_alike_are_told():
    frame = table()
    with pytest.raises(ValueError, match="column 'site' must have one name per client, got names that read alike"):
        federation(frame.assign(site=np.resize(["A", "A ", "B"], 60)))
    with pytest.warns(FederationWarning, match="labels 'Yes' and 'yes' are two classes"):
        federation(frame.assign(ill=np.resize(["yes", "no", "Yes"], 60)))


def test_columns_need_one_name_each_which_may_be_a_number():
    frame = table().rename(columns={"age": 7})
    assert federation(frame, Preparation(categories=["code"]))["B"].features[0] == "7"
    for wrong in (frame[:0], pd.concat({"a": frame}, axis=1)):
        with pytest.raises(ValueError, match="frame must have at least one row, and one name per column"):
            federation(wrong)


# --- a pipeline of one's own ----------------------------------------------------------------------------------------


NUMBERS = table()[["site", "age", "sugar", "ill", "fold"]]


def test_a_pipeline_of_scikit_learn_is_taken_as_it_is():
    own = make_pipeline(SimpleImputer(), StandardScaler())
    fed = federation(NUMBERS, own)
    expected = make_pipeline(SimpleImputer(), StandardScaler()).fit(rows(NUMBERS, "A")[["age", "sugar"]])
    np.testing.assert_array_equal(fed["A"].x_test, expected.transform(rows(NUMBERS, "A", "test")[["age", "sugar"]]))
    assert [c.features for c in fed] == [("age", "sugar"), ("age",)]
    assert torch.equal(fed["B"].rows(rows(NUMBERS, "B", "test")), fed["B"].x_test)
    assert not hasattr(own[0], "statistics_"), "it is copied, not fitted itself"
    assert "SimpleImputer" in fed.info["settings"]["prepare"]
    state = json.loads(json.dumps(fed["A"].prepare.state()))
    again = restored(state)
    assert (again.features, again.origin, again.client) == (("age", "sugar"), ("age", "sugar"), "A")
    test = rows(NUMBERS, "A", "test")
    pd.testing.assert_frame_equal(again.transform(test), fed["A"].prepare.transform(test))


def test_a_pipeline_that_names_no_features_and_one_that_makes_others():
    fill = SimpleImputer()
    nameless = federation(NUMBERS, make_pipeline(fill, FunctionTransformer(np.sqrt)))
    assert nameless["A"].features is None
    assert torch.equal(nameless["A"].rows(rows(NUMBERS, "A", "test")), nameless["A"].x_test)
    parts = federation(NUMBERS[NUMBERS.site == "A"], make_pipeline(fill, PCA(1)))
    assert parts["A"].features == ("pca0",)
    assert parts["A"].x_train.shape == (24, 1)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        ("median", "prepare must be a Preparation, or a transformer of scikit-learn such as .* got 'median'"),
        (Preparation, "prepare must be a Preparation, or a transformer"),
        (LogisticRegression(), "prepare must be a Preparation, .* got LogisticRegression"),
        (PCA(9), "client 'A': prepare cannot be fitted on its training rows: .*NaN"),
    ],
)
def test_what_is_no_preparation_is_refused(prepare, message):
    with pytest.raises((ValueError, TypeError), match=message):
        federation(NUMBERS, prepare)


def test_a_prepared_federation_is_trained_as_any_other():
    run = simulate(federation(), Local(local_epochs=1), rounds=1, progress=False)
    assert np.isfinite(run.final["accuracy"])


# --- files ----------------------------------------------------------------------------------------------------------


def written(folder, frame=None, **options):
    frame = table() if frame is None else frame
    files = {}
    for site, own in frame.groupby("site"):
        files[site] = folder / f"{site}.csv"
        columns = ["ill", *own.columns.drop(["site", "ill"])[:: 1 if site == "A" else -1]]
        own[columns].to_csv(files[site], index=False, **options)
    return files


def from_csv(files, **options):
    prepare = Preparation(categories=["code"])
    return Federation.from_csv(files, **{"target": "ill", "split": "fold", "prepare": prepare} | options)


def test_a_file_per_site_or_one_with_a_column_that_names_the_site(tmp_path):
    expected = federation()
    files = written(tmp_path)
    table().to_csv(tmp_path / "all.csv", index=False)
    for fed in (
        from_csv(files),
        from_csv([str(file) for file in files.values()]),
        from_csv(tmp_path / "all.csv", client="site"),
    ):
        assert [c.name for c in fed] == ["A", "B"]
        assert [c.features for c in fed] == [c.features for c in expected], "columns by name, in any order"
        for one, other in zip(fed, expected, strict=True):
            torch.testing.assert_close(one.x_train, other.x_train, rtol=0, atol=1e-12)
            torch.testing.assert_close(one.x_test, other.x_test, rtol=0, atol=1e-12)


def test_options_of_pandas_reach_the_reader(tmp_path):
    files = written(tmp_path, sep=";", encoding="utf-16")
    assert len(from_csv(files, sep=";", encoding="utf-16")) == 2
    bare = tmp_path / "bare.data"
    table()[["age", "code", "ill", "site"]].to_csv(bare, index=False, header=False, na_rep="?")
    fed = Federation.from_csv(
        bare, target="y", client="who", names=["a", "c", "y", "who"], prepare=Preparation(), test_size=0.5
    )
    assert fed["A"].features == ("a", "c")


def test_the_index_of_a_table_is_left_out_and_said(tmp_path):
    table().to_csv(tmp_path / "all.csv")
    with pytest.warns(FederationWarning, match=r"all.csv: column 'Unnamed: 0' counts the rows") as told:
        fed = from_csv(tmp_path / "all.csv", client="site")
    assert fed["A"].features == federation()["A"].features
    assert len(told) == 1
    table().rename(columns={"age": "Unnamed: 0"}).to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(ValueError, match="column 'Unnamed: 0' has no name of its own"):
        from_csv(tmp_path / "all.csv", client="site")


def test_names_that_differ_in_capitals_only_are_told(tmp_path):
    files = written(tmp_path)
    files["B"].write_text(files["B"].read_text().replace("age", "Age "))
    with pytest.warns(FederationWarning, match="columns 'age' of 'A' and 'Age' of 'B' are two, as they are written"):
        from_csv(files)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "client 'A', A.csv: the file is no table: No columns to parse"),
        ("age,ill\n", "client 'A', A.csv: expected at least one row"),
        ("age;ill\n1;0\n", "client 'A', A.csv: the file has one column 'age;ill': is sep=';' meant"),
        ("age,age,ill\n1,2,0\n", "client 'A', A.csv: columns must have different names, got 'age' twice"),
        ("age,ill\n1,0,5\n", "client 'A', A.csv: rows have more fields"),
        ("âge,ill\n1,0\n".encode("latin-1"), "client 'A', A.csv: the file is not in UTF-8"),
    ],
)
def test_files_that_are_no_tables_are_refused_by_name(tmp_path, text, message):
    files = written(tmp_path)
    files["A"].write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        from_csv(files)


def test_lines_that_end_early_and_files_without_a_needed_column_are_told(tmp_path):
    (tmp_path / "A.csv").write_text("a,b,y\n1,2,0\n3,4,1\n5\n")
    (tmp_path / "B.csv").write_text("a,b,x\n1,2,0\n3,4,1\n")
    files = [tmp_path / "A.csv", tmp_path / "B.csv"]
    with (
        pytest.warns(FederationWarning, match=r"client 'A', A.csv: 1 rows have fewer fields .* first in line 4"),
        pytest.raises(ValueError, match=r"client 'B', B.csv: target must be one of the columns .*'x'\], got 'y'"),
    ):
        Federation.from_csv(files, target="y")


def test_files_and_the_column_of_clients_go_together(tmp_path):
    files = written(tmp_path)
    message = "client must name the column .* got client={} and {} file"
    with pytest.raises(ValueError, match=message.format("'site'", 2)):
        from_csv(files, client="site")
    with pytest.raises(ValueError, match=message.format(None, 1)):
        from_csv(files["A"])
    with pytest.raises(ValueError, match=message.format(None, 0)):
        from_csv({})
    with pytest.raises(ValueError, match="files must have different names"):
        from_csv([files["A"], files["A"]])
    with pytest.raises(FileNotFoundError, match=r"client 'C', C.csv: there is no file"):
        from_csv({**files, "C": tmp_path / "C.csv"})
    for wrong in (3, {"A": 3}, io.StringIO("a")):
        with pytest.raises(TypeError, match=r"files.* must be a path"):
            from_csv(wrong)


# --- splits ---------------------------------------------------------------------------------------------------------


def patients(n=40, each=5, noise=0.05, seed=0):
    """Rows of a patient are nearly alike, and their label is random: nothing can be learned but who it is."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(n), each)
    x = rng.normal(size=(n, 4))[who] + noise * rng.normal(size=(len(who), 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    return frame.assign(
        site=np.where(who % 2, "A", "B"), patient=who, y=rng.integers(0, 2, n)[who], day=np.arange(len(who))
    )


def of_patients(frame=None, **options):
    frame = patients() if frame is None else frame
    return Federation.from_frame(frame, **{"client": "site", "target": "y", "test_size": 0.25} | options)


def held(fed, frame, column):
    """The values of a column in the training and in the test rows of each client, found by the rows' first feature."""
    values = dict(zip(frame["a"], frame[column], strict=True))
    return [[{values[v] for v in x[:, 0].tolist()} for x in (c.x_train, c.x_test)] for c in fed]


def test_all_rows_of_a_group_stay_together():
    frame = patients()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed = of_patients(frame, group="patient", ignore=["day"])
    for train, test in held(fed, frame, "patient"):
        assert not train & test
        assert len(train) == 15
        assert len(test) == 5
    assert fed["A"].features == tuple("abcd")
    assert fed.info["settings"]["group"] == "patient"
    other = of_patients(frame, group="patient", ignore=["day"], seed=1)
    assert held(other, frame, "patient") != held(fed, frame, "patient")
    alone = of_patients(frame[frame.site == "A"], group="patient", ignore=["day"])
    assert torch.equal(alone["A"].x_test, fed["A"].x_test), "a client's split depends on nobody else"
    one = of_patients(frame.assign(patient=1), group="patient", ignore=["day"])
    assert [c.n_test for c in one] == [0, 0], "one patient is for training"


def test_the_latest_rows_are_the_test_set():
    frame = patients()
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(frame["day"], "D")
    for days in (frame["day"], dates, dates.astype(str)):
        dated = frame.assign(day=days)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FederationWarning)
            fed = of_patients(dated.sample(frac=1, random_state=0), time="day", ignore=["patient"])
        for train, test in held(fed, frame, "day"):
            assert max(train) < min(test)
            assert len(test) == 25
    tied = of_patients(frame.assign(day=frame["day"] // 50), time="day", ignore=["patient"])
    assert [sorted(map(len, pair)) for pair in held(tied, frame.assign(day=frame["day"] // 50), "day")] == [[1, 3]] * 2


def test_a_column_says_which_rows_are_for_testing():
    frame = patients().assign(fold=np.where(np.arange(200) % 4, " Train", "test"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)
        fed = of_patients(frame, split="fold", ignore=["day", "patient"])
    assert [pair for pair in held(fed, frame, "fold")] == [[{" Train"}, {"test"}]] * 2


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"group": "patient", "time": "day"}, "group and time say different things"),
        ({}, {"group": "name"}, "group must be one of the columns .* got 'name'"),
        ({}, {"group": "y"}, "target and group must be two columns, got 'y' for both"),
        (
            {"fold": "valid"},
            {"split": "fold"},
            r"column 'fold', which split= names, must say train or test, got \['valid",
        ),
        ({"fold": "test"}, {"split": "fold"}, "client 'B': column 'fold', .* must leave at least one row for training"),
        (
            {"day": None},
            {"time": "day"},
            "client 'B': column 'day', which time= names, must have no gaps, got 100 in 100",
        ),
        (
            {"day": "soon"},
            {"time": "day"},
            "client 'B': column 'day', which time= names, must hold numbers, or dates such as",
        ),
    ],
)
def test_splits_that_cannot_be_meant_are_refused(change, options, message):
    with pytest.raises(ValueError, match=message):
        of_patients(patients().assign(**change), **options)


def test_rows_that_are_alike_are_a_warning():
    frame = patients()
    with pytest.warns(FederationWarning, match=r"may be of one patient \(\d+ of 25 on 'B', \d+ of 25 on 'A'\)") as told:
        of_patients(frame, ignore=["day", "patient"])
    assert told[0].filename == __file__
    with pytest.warns(FederationWarning, match="may be of one patient"):
        of_patients(frame, ignore=["day", "patient"], prepare=Preparation())


@pytest.mark.parametrize("columns", [["a"], list("abcd"), ["p", "q"], ["p", "q", "a", "b"]])
def test_rows_that_agree_by_chance_are_no_warning(columns):
    """One column of numbers, four of them, and words of which many rows have the same."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(400, 4)), columns=list("abcd"))
    frame = frame.assign(p=rng.integers(0, 3, 400), q=rng.choice(["no", "yes"], 400))[columns]
    frame = frame.assign(site=np.resize(["A", "B"], 400), y=rng.integers(0, 2, 400))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_patients(frame, prepare=Preparation())


# --- sites of their own ---------------------------------------------------------------------------------------------

AGREED = Preparation(categories={"pain": WORDS, "code": [3, 6, 7]})


def at_sites(folder, prepare=AGREED, frame=None):
    files = written(folder, (table() if frame is None else frame).rename(columns={"fold": "split"}))
    return {site: client_from_file(file, site, label="ill", prepare=prepare) for site, file in files.items()}


def test_a_site_alone_makes_the_inputs_that_the_federation_makes(tmp_path):
    """Bit for bit, of files whose columns come in different orders; common columns are then in one order, too."""
    sites, expected = at_sites(tmp_path), from_csv(written(tmp_path), prepare=AGREED)
    fed = Federation(list(sites.values()), 2)
    for client in fed:
        order = [expected[client.name].features.index(name) for name in client.features]
        assert sorted(order) == list(range(len(expected[client.name].features)))
        assert torch.equal(client.x_train, expected[client.name].x_train[:, order])
        assert torch.equal(client.x_test, expected[client.name].x_test[:, order])
        assert torch.equal(client.y_test, expected[client.name].y_test)
    common = [Federation(list(of.of_common_columns()), 2).fingerprint() for of in (fed, expected)]
    assert common[0] == common[1]


def test_levels_that_sites_have_not_agreed_on_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"client 'A', A.csv: column 'pain' is a category, whose levels a site alone"):
        at_sites(tmp_path, Preparation())
    assert "pain=mild" in at_sites(tmp_path, Preparation(levels="own"))["A"].features
    pipeline = make_pipeline(SimpleImputer(), StandardScaler())
    assert at_sites(tmp_path, pipeline, NUMBERS)["A"].features == ("age", "sugar")
    with pytest.raises(ValueError, match=r"client 'A', A.csv: column 'age' must hold finite numbers"):
        at_sites(tmp_path, AGREED, table().assign(age=1e300))
    np.savez(tmp_path / "A.npz", x=np.eye(2), y=[0, 1])
    with pytest.raises(ValueError, match=r"client 'A', A.npz: prepare makes inputs of tables"):
        client_from_file(tmp_path / "A.npz", "A", prepare=AGREED)


# --- a model that was saved -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["own", "common", "zeros", "blocks"])
def test_a_saved_model_prepares_later_rows_as_the_run_did(view, tmp_path):
    """From a table to a folder, and from later rows of each site to the very probabilities of the run."""
    small, seen = MLP((4,), 3), view_of(federation(), view)
    blocks = Model(Blocks.alike(seen[0].x_train, small)) if view == "blocks" else None
    method = LateFusion(blocks) if blocks else Local(Model(small)) if view == "own" else FedAvg(Model(small))
    run = simulate(seen, method, rounds=1, progress=False)
    run.save(tmp_path)
    model, frame = load_trained(tmp_path), table()
    for site, expected in run.probabilities("test").items():
        later = rows(frame, site, "test").drop(columns=["site", "ill", "fold"])
        found = model.predict_proba(later[later.columns[::-1]], client=site)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"client 'A': the table must have the columns .* lacks \['age'\]"):
        model.predict(frame.drop(columns="age"), client="A")


@pytest.mark.parametrize("mark", ["?", " ? ", ""])
def test_a_mark_for_a_missing_label_is_no_class(mark):
    frame = pd.DataFrame({"age": range(40), "site": ["a", "b"] * 20, "ill": ["no", "no", "yes", "yes"] * 10})
    frame.loc[3, "ill"] = mark
    with pytest.raises(ValueError, match="client 'b': y must have no gaps, got 1 missing label"):
        Federation.from_frame(frame, client="site", target="ill", prepare=Preparation())


def test_what_a_spreadsheet_leaves_behind_is_told(tmp_path):
    """Decimal commas between semicolons, and empty rows at the end."""
    frame = pd.DataFrame({"a": np.arange(40) + 0.5, "ill": [0, 1] * 20, "site": ["A", "A", "B", "B"] * 10})
    file, told = tmp_path / "x.csv", {"client": "site", "target": "ill"}
    frame.to_csv(file, index=False, sep=";", decimal=",")
    with pytest.raises(ValueError, match=r"than the first line has names of columns: is sep=';' meant\?"):
        Federation.from_csv(file, **told)
    assert len(Federation.from_csv(file, **told, sep=";", decimal=",")) == 2
    file.write_text(frame.to_csv(index=False) + ",,\n,,\n")
    with pytest.raises(ValueError, match=r"got 2 rows without a client, the first of them row 41 \(they are empty"):
        Federation.from_csv(file, **told)
    file.write_text(frame.to_csv(index=False) + "20,1,\n")
    with pytest.raises(ValueError, match=r"got 1 rows without a client, the first of them row 41$"):
        Federation.from_csv(file, **told)


def test_of_one_class_no_column_is_another_form():
    frame = pd.DataFrame(
        {"a": 37 * np.arange(80) % 80 + 0.5, "w": ["x", "y"] * 40, "ill": 0, "site": ["A", "A", "B", "B"] * 20}
    )
    with pytest.warns(FederationWarning) as told:
        Federation.from_frame(frame, client="site", target="ill", prepare=Preparation())
    assert [str(w.message) for w in told] == [
        "all training samples are of one class (0): there is nothing to be told apart"
    ]
