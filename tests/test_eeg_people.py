"""Eight people with three kinds of caps: made recordings of the same form, and the real ones."""

import json

import numpy as np
import pytest
from pyriemann.estimation import Covariances
from pyriemann.tangentspace import TangentSpace
from scipy.io import savemat
from scipy.signal import butter, sosfiltfilt

from hetfl_core.datasets import DataError, eeg_people, eegmmidb
from hetfl_core.datasets.eeg_cutting import Trials
from hetfl_core.datasets.eeg_people import COMMON, PEOPLE, eight_people

RATE, ALONE = 250.0, 30


def save(path, n=40, channels=("C3", "Cp3", "C4", "Cp4", "Cz", "Cpz"), volts=True, **other):
    """A made person: noise of some µV, with the hand in the power of C3."""
    labels = np.tile([1, 2], n // 2)
    x = 5.0 * np.random.default_rng(len(channels)).normal(size=(len(channels), 500, n))
    x[0, :, labels == 2] *= 2
    about = {"srate": RATE, "channels": np.array(channels, object), "class": np.array(["left", "right"], object)}
    savemat(path, {"EEGDATA": x * (1e-6 if volts else 1), "LABELS": labels.astype(np.uint8), "Info": about, **other})
    return x.transpose(2, 0, 1), labels - 1


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Files of seven made people, D and E without CPz, B in µV; and an eighth with eight electrodes in three runs."""
    for name in PEOPLE:
        save(tmp_path / name, channels=(*COMMON, "Cpz") if name not in "DE" else COMMON, volts=name != "B")

    def alone(task, imagined, channels, band):
        channels = tuple(channels or ("Fz", "Pz", *COMMON, "Oz"))
        x = np.random.default_rng(0).normal(size=(ALONE, len(channels), 400))
        session = np.repeat(["0", "1", "2"], ALONE // 3)
        return Trials(x, np.tile([0, 1], ALONE // 2), session, channels, RATE, "EEGMMIDB-1", classes=eegmmidb.CLASSES)

    monkeypatch.setattr(eeg_people, "fetch", lambda key: tmp_path / key.split("/")[1])
    monkeypatch.setattr(eeg_people.eegmmidb, "trials", alone)
    eeg_people._everybody.cache_clear()
    yield tmp_path
    eeg_people._everybody.cache_clear()


def test_each_person_has_the_features_of_its_own_cap(made):
    fed = eight_people()
    widths = {"D": 15, "E": 15, "EEGMMIDB-1": 36}
    assert {c.name: c.shapes for c in fed} == {name: (widths.get(name, 21),) for name in (*PEOPLE, "EEGMMIDB-1")}
    assert [(c.n_train, c.n_test) for c in fed] == [(30, 10)] * 7 + [(20, 10)]
    assert fed["A"].y_test.bincount().tolist() == [5, 5]
    assert fed["A"].features[:3] == ("C3–C3", "C3–CP3", "C3–C4")
    assert fed.info["class_names"] == ["left hand", "right hand"]
    json.dumps(dict(fed.info))
    assert {c.shapes for c in eight_people("common")} == {(15,)}
    assert fed.fingerprint() == eight_people().fingerprint() != eight_people(seed=1).fingerprint()


@pytest.mark.parametrize("size", ["all", "tenth"])
def test_features_by_hand(made, size):
    """Scipy's filter, pyRiemann's covariances, a reference point of the training trials that are left."""
    client = eight_people(size=size)["A"]
    x, y = save(made / "again", channels=(*COMMON, "Cpz"))
    sos = butter(4, (8, 30), "bandpass", fs=RATE, output="sos")
    found = Covariances("lwf").transform(sosfiltfilt(sos, x))
    test = eight_people()["A"].y_test.numpy()
    assert client.y_test.tolist() == test.tolist()
    settled = eeg_people._split(eeg_people._everybody(False, (8.0, 30.0))[0], 0, "all")
    everything = eeg_people._split(eeg_people._everybody(False, (8.0, 30.0))[0], 0, size)
    rows = [int(np.flatnonzero((settled.x == trial).all((1, 2)))[0]) for trial in everything.x]
    space = TangentSpace().fit(found[rows][~everything.test])
    np.testing.assert_allclose(client.x_train, space.transform(found[rows][~everything.test]), atol=0.05)
    np.testing.assert_allclose(client.x_test, space.transform(found[rows][everything.test]), atol=0.05)
    assert client.y_train.tolist() == y[rows][~everything.test].tolist()


def test_a_tenth_has_four_trials_of_each_hand_and_the_same_test_trials(made):
    whole, few = eight_people(seed=3), eight_people(seed=3, size="tenth")
    assert {tuple(c.y_train.bincount().tolist()) for c in few} == {(4, 4)}
    assert [c.y_test.tolist() for c in few] == [c.y_test.tolist() for c in whole]
    with pytest.raises(ValueError, match="size must be"):
        eight_people(size="half")


def test_a_unit_of_volts_is_told_by_the_signals(made):
    """B is written in µV, A in V: vectorised, both are µV²."""
    fed = eight_people(features="vectorised")
    assert 0.5 < fed["A"].x_train.mean() / fed["B"].x_train.mean() < 2


def test_a_file_of_another_form_is_refused(made):
    save(made / "C", EEGDATA=np.zeros((3, 4, 5)))
    with pytest.raises(DataError, match=r"C: expected EEGDATA, LABELS 1 and 2, and Info: signals of shape \(3, 4, 5\)"):
        eight_people()


@pytest.mark.realdata("eeg.eight_people")
def test_the_real_people_are_those_of_the_card():
    eeg_people._everybody.cache_clear()
    fed = eight_people()
    assert [(c.name, *c.shapes, c.n_train, c.n_test) for c in fed] == [
        *[("A", 21, 98, 32), ("B", 21, 122, 40), ("C", 21, 68, 22), ("D", 15, 60, 20), ("E", 15, 36, 12)],
        *[("F", 21, 60, 20), ("H", 21, 112, 38), ("EEGMMIDB-1", 2080, 30, 15)],
    ]
    assert fed.info["subjects"]["D"]["channels"] == ["C3", "CP3", "C4", "CP4", "Cz"]
    volts = [np.median(of.x.std(axis=2)) for of in eeg_people._everybody(False, (8.0, 30.0))]
    assert all(2 < each < 25 for each in volts), "µV"
    assert {c.shapes for c in eight_people("common")} == {(15,)}
