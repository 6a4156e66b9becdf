"""Tables of patients of several sites: made ones, a tenth of the training rows, and the real thyroids and livers."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hetfl_core import simulate
from hetfl_core.datasets import DataError, clinical, heart, liver, registry, thyroid, toy
from hetfl_core.datasets.fewer import tenth, tenth_of
from hetfl_core.methods import FedAvg

PATIENTS = {heart: heart.patients, liver: liver.liver_patients, thyroid: thyroid.thyroid_patients}
MAKERS = {heart: heart.hospitals, liver: liver.clinics, thyroid: thyroid.laboratories}
names = pytest.mark.parametrize("data", MAKERS, ids=lambda data: data.__name__.split(".")[-1])

pytestmark = pytest.mark.filterwarnings("ignore:too few samples")


def clear():
    for data in MAKERS:
        data._recorded.cache_clear()


def contents(client):
    return client.x_test.numpy(), client.y_test.numpy()


# --- made patients --------------------------------------------------------------------------------------------------


@names
def test_made_patients_have_the_columns_gaps_and_rates_of_the_file(data):
    """Counted anew, with what the file says of the real ones."""
    made, study = PATIENTS[data](made=True), data.STUDY
    told = json.loads(study.rates.read_text("utf8"))
    assert list(made) == [*data.NAMES, study.client, study.target]
    assert made[study.client].unique().tolist() == list(told)
    assert len(made) == sum(own["patients"] for site in told.values() for own in site.values())
    for (site, label), rows in made.groupby([study.client, study.target]):
        own = told[site][str(label)]
        assert len(rows) == own["patients"]
        for column in data.NAMES:
            values = rows[column].dropna()
            assert len(values) == own[column]["n"]
            if "counts" in own[column]:
                found = values.value_counts()
                assert {f"{level:g}": n for level, n in found.items()} == own[column]["counts"]
            elif len(values):
                assert own[column]["least"] - 0.5 <= values.min() <= values.max() <= own[column]["most"] + 0.5
                if len(values) > 100:
                    assert (
                        abs(values.mean() - own[column]["mean"]) < 6 * own[column]["sd"] / np.sqrt(len(values)) + 0.01
                    )
    again, other = PATIENTS[data](made=True), PATIENTS[data](made=True, seed=1)
    pd.testing.assert_frame_equal(made, again)
    assert not made.equals(other)


@names
def test_federations_say_what_they_are_and_refuse_what_they_do_not_know(data):
    fed = MAKERS[data](made=True, seed=2, size="tenth")
    assert fed.info["simulated"] is fed.info["stand_in"] is True
    assert fed.info["settings"]["size"] == "tenth"
    assert fed.info["class_names"] == [*data.STUDY.classes]
    json.dumps(dict(fed.info))
    assert "size" not in MAKERS[data](made=True).info["settings"], "as before there were sizes"
    with pytest.raises(ValueError, match="size must be"):
        MAKERS[data](made=True, size="half")


@names
def test_without_files_made_patients_are_offered(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    monkeypatch.setattr(clinical, "fetch", registry.verify)
    clear()
    with pytest.raises(DataError, match=r"is missing.* Made patients need no files: made=True\."):
        PATIENTS[data]()


def test_a_file_of_another_kind_is_refused_and_the_words_are_named(tmp_path, monkeypatch):
    clear()
    (tmp_path / "file").write_text("first,line\nsome,text\n")
    monkeypatch.setattr(clinical, "fetch", lambda key: tmp_path / "file")
    with pytest.raises(DataError, match=r"liver/ilpd: expected 11 columns of numbers and '\?' \(sex: words\)"):
        liver.liver_patients()


# --- a tenth of the training rows -----------------------------------------------------------------------------------


def test_a_tenth_is_of_each_class_but_at_least_four_where_there_are_as_many():
    labels = np.repeat([0, 1, 2, 3], [103, 25, 3, 41])
    kept = tenth(labels, "a", 0)
    assert np.bincount(labels[kept]).tolist() == [10, 4, 3, 4]
    assert (np.diff(kept) > 0).all()
    assert kept.tolist() == tenth(labels, "a", 0).tolist() != tenth(labels, "b", 0).tolist()
    assert kept.tolist() != tenth(labels, "a", 1).tolist()


def test_any_federation_can_be_cut_to_a_tenth_and_keeps_its_test_sets():
    fed = toy.four_gaussians(0)
    fed = replace(fed, x_test=fed[0].x_test, y_test=fed[0].y_test)
    few = tenth_of(fed, 3)
    assert few.x_test.equal(fed.x_test), "of the federation's own"
    for client, less in zip(fed, few, strict=True):
        whole = np.bincount(client.y_train, minlength=4)
        assert np.bincount(less.y_train, minlength=4).tolist() == [min(n, max(4, round(n / 10))) for n in whole]
        rows = {tuple(row) for row in client.x_train.tolist()}
        assert {tuple(row) for row in less.x_train.tolist()} <= rows
        assert less.x_test.equal(client.x_test)
    assert few.info["size"] == "tenth"
    with pytest.raises(ValueError, match=r"federation must be for classification, got 'toy\.linear_regression'"):
        tenth_of(toy.linear_regression(3), 0)


@names
def test_a_tenth_has_the_test_patients_and_the_columns_of_the_whole(data, monkeypatch):
    """Looked at before anything is scaled."""
    taken = []
    kept = clinical.Federation.from_frame.__func__

    def watch(cls, frame, **told):
        taken.append((frame, told))
        return kept(cls, frame, **told)

    monkeypatch.setattr(clinical.Federation, "from_frame", classmethod(watch))
    whole, few = (MAKERS[data](made=True, seed=4, size=size) for size in ("all", "tenth"))
    (frame, _), (less, told) = taken
    assert told["split"] == "rows for"
    assert len(less) < len(frame)
    study = data.STUDY
    for client, own in zip(whole, few, strict=True):
        assert own.y_test.tolist() == client.y_test.tolist()
        n = np.bincount(client.y_train, minlength=len(study.classes))
        assert np.bincount(own.y_train, minlength=len(study.classes)).tolist() == [
            min(k, max(4, round(k / 10))) for k in n
        ]
        assert set(own.prepare.columns) <= set(client.prepare.columns)
        rows = less[(less[study.client] == client.name) & (less["rows for"] == "test")]
        again = client.prepare.transform(rows.drop(columns="rows for"), new=False).to_numpy(np.float32)
        np.testing.assert_allclose(again, client.x_test.numpy(), err_msg="the same test patients")


def test_gaps_and_scales_are_fitted_on_the_tenth():
    """The inputs of the training rows that are left have mean 0 and deviation 1."""
    for client in liver.clinics(made=True, size="tenth"):
        x = client.x_train.numpy()
        np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(x.std(0), 1, atol=1e-5)


# --- what the sites share -------------------------------------------------------------------------------------------


def test_the_laboratories_share_two_assays_and_the_clinics_eight_columns():
    fed = thyroid.laboratories(made=True)
    assert {c.name: c.shapes for c in fed} == {
        **{"other": (22,), "SVI": (21,), "SVHC": (21,), "STMW": (21,), "SVHD": (21,)},
        "second laboratory": (5,),
    }
    assert {tuple(c.features) for c in fed.of_common_columns()} == {("log TSH", "log TT4")}
    assert "log TBG" in fed["other"].features
    assert "log TBG" not in fed["SVI"].features
    assert "log TBG" in thyroid.laboratories(made=True, absent=1.0)["SVI"].features
    both = liver.clinics(made=True)
    assert [(c.name, c.shapes) for c in both] == [("Andhra Pradesh", (10,)), ("Hannover", (12,))]
    assert {c.features for c in both.of_common_columns()} == {
        ("age", "sex", "log bilirubin", "log ALP", "log ALT", "log AST", "protein", "albumin")
    }


def test_a_made_table_can_be_learned_from():
    run = simulate(liver.clinics(made=True, size="tenth").of_common_columns(), FedAvg(), rounds=2, seed=0)
    assert np.isfinite(run.final["accuracy"])


@pytest.mark.parametrize(
    ("diagnosis", "state"),
    [
        *[("-[840801013]", 0), ("A[1]", 1), ("AK[1]", 1), ("D[1]", 1), ("E[1]", 2), ("GKJ[1]", 2), ("H[1]", 2)],
        *[("C|I[1]", None), ("H|K[1]", None), ("D|R[1]", None), ("K[1]", None), ("MI[1]", None), ("S[1]", None)],
    ],
)
def test_a_diagnosis_is_read_as_the_archive_says(diagnosis, state):
    assert thyroid.state_of(diagnosis) == state


def test_files_are_read_as_the_archives_say(tmp_path, monkeypatch):
    """Two lines of each, by hand: an impossible age, other remarks, a source of three, suspect donors, units."""
    flags = ",".join("t" if flag == "sick" else "f" for flag in thyroid.FLAGS)
    done, not_done = "t,100,t,1,t,100,t,1,t,100", "f,?"
    (tmp_path / "garvan").write_text(
        f"455,M,{flags},{done},{not_done},SVI,-[1]\n"
        f"40,?,{flags},{done},t,10,other,F[2]\n"
        f"40,F,{flags},{done},{not_done},WEST,-[3]\n"
        f"40,F,{flags},{done},{not_done},SVI,C|I[4]\n"
    )
    (tmp_path / "second").write_text("3,107,10,10,0.1,-0.5\n")
    (tmp_path / "ilpd").write_text(
        "a line of names\n" + 2 * "65,Female,1,0.1,100,10,1000,6.8,3.3,,1\n" + "62,Male,1,1,1,1,1,7,3,1,2\n"
    )
    (tmp_path / "hcv").write_text(
        "names\n32,m,38.5,NA,1,1,10,1,3,1,1,69,0=Blood Donor\n32,f,1,1,1,1,1,1,1,1,1,1,0s=suspect Blood Donor\n"
        "32,f,38.5,100,1,1,10,1,3,1,1,69,3=Cirrhosis\n"
    )
    monkeypatch.setattr(clinical, "fetch", lambda key: tmp_path / key.split("/")[1])
    clear()
    table = thyroid.thyroid_patients()
    assert table["source"].tolist() == ["other", "SVI", "second laboratory"]
    assert table["state"].tolist() == [2, 0, 2]
    assert table["age"].fillna(-1).tolist() == [40, -1, -1]
    assert table["sex"].fillna(-1).tolist() == [-1, 1, -1]
    assert table["sick"].fillna(-1).tolist() == [1, 1, -1]
    assert table["log TSH"].tolist() == [2, 2, -1]
    assert table["log TBG"].fillna(-1).tolist() == [1, -1, -1]
    np.testing.assert_allclose(table["log TT4"], [2, 2, np.log10(128.7)])
    assert table.loc[2, ["T3 resin uptake", "log T3, second", "TSH rise"]].tolist() == [107, 1, -0.5]
    table = liver.liver_patients()
    assert table[["clinic", "ill"]].to_numpy().tolist() == [
        *[["Andhra Pradesh", 1], ["Andhra Pradesh", 0], ["Hannover", 0], ["Hannover", 1]]
    ]
    assert table["sex"].tolist() == [0, 1, 1, 0]
    np.testing.assert_allclose(table["log bilirubin"], [np.log10(17.1), np.log10(17.1), 1, 1])
    np.testing.assert_allclose(table["protein"], [68, 70, 69, 69])
    np.testing.assert_allclose(table["albumin"], [33, 30, 38.5, 38.5])
    assert table["log ALP"].fillna(-1).tolist() == [2, 0, -1, 2]
    assert table["log AST"].tolist() == [3, 0, 0, 0]
    assert table["albumin/globulin"].fillna(-1).tolist() == [-1, 1, -1, -1]
    clear()


# --- the real files -------------------------------------------------------------------------------------------------


@pytest.mark.realdata("thyroid.laboratories")
def test_the_real_thyroids_are_those_of_the_card():
    clear()
    table = thyroid.thyroid_patients()
    counts = table.groupby(["source", "state"], sort=False).size().unstack()[[0, 1, 2]]
    assert counts.T.to_dict("list") == {
        **{"other": [4084, 182, 417], "SVI": [1673, 34, 197], "SVHC": [838, 2, 28], "STMW": [122, 8, 11]},
        **{"SVHD": [52, 2, 6], "second laboratory": [150, 35, 30]},
    }
    assert table["age"].isna().sum() == 4 + 215
    assert table["age"].max() == 97
    share = (100 * table[["log TSH", "log T3", "log TBG"]].notna()).groupby(table["source"], sort=False).mean()
    assert share.round(1).to_numpy().tolist() == [
        *[[85.7, 63.4, 5.2], [98.3, 82.6, 0.7], [98.5, 86.5, 0.0], [97.2, 74.5, 0.0], [100.0, 86.7, 0.0]],
        [100.0, 0.0, 0.0],
    ]
    normal = table[table["state"] == 0].groupby("source", sort=False)[["log TSH", "log TT4"]].median()
    assert (10**normal).round(1).iloc[[0, 5]].to_numpy().tolist() == [[1.2, 104.0], [1.3, 117.8]]


@pytest.mark.realdata("liver.clinics")
def test_the_real_livers_are_those_of_the_card():
    clear()
    table = liver.liver_patients()
    counts = table.groupby(["clinic", "ill"], sort=False).size().unstack()[[0, 1]]
    assert counts.T.to_dict("list") == {"Andhra Pradesh": [164, 406], "Hannover": [533, 75]}
    assert table.groupby("clinic")["albumin/globulin"].count().tolist() == [566, 0]
    both = table.groupby("clinic")[["log bilirubin", "protein", "albumin"]].median()
    assert both.assign(**{"log bilirubin": 10 ** both["log bilirubin"]}).round(1).to_numpy().tolist() == [
        [17.1, 66.0, 31.0],
        [7.3, 72.2, 42.0],
    ]


def rates_of(study, table):
    """What the file of rates holds of the recorded patients: `clinical.Study` says what."""
    found = {}
    for (site, label), rows in table.groupby([study.client, study.target], sort=False):
        own = found.setdefault(site, {}).setdefault(str(label), {"patients": len(rows)})
        for column in study.columns:
            values = rows[column].dropna()
            own[column] = told = {"n": len(values)}
            if table[column].nunique() <= 5:
                told["counts"] = {f"{level:g}": n for level, n in values.value_counts().sort_index().items()}
            elif len(values):
                four = (values.mean(), values.std(ddof=0), values.min(), values.max())
                told |= dict(zip(("mean", "sd", "least", "most"), (round(float(v), 3) for v in four), strict=True))
    return found


@names
def test_the_rates_of_made_patients_are_those_of_the_real_ones(data):
    if not registry.available(data.STUDY.name):
        pytest.skip(f"needs the files of {data.STUDY.name}")
    clear()
    assert rates_of(data.STUDY, PATIENTS[data]()) == json.loads(data.STUDY.rates.read_text("utf8"))
    real, made = MAKERS[data](), MAKERS[data](made=True)
    assert [(c.name, c.features, c.n_train, c.n_test) for c in real] == [
        (c.name, c.features, c.n_train, c.n_test) for c in made
    ]
    assert real.info["simulated"] is real.info["stand_in"] is False
    frame = PATIENTS[data]()
    frame["age"] = 0
    assert PATIENTS[data]()["age"].min() > 0, "a table that was changed is the caller's own"
