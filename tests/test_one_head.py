"""What the chapter on EEG shows: a recorded head and eight people where their files are, simulated ones elsewhere."""

import numpy as np
import pytest

from hetfl_book.datasets import one_head
from hetfl_core.datasets import DataError

ELECTRODES = ["C3", "C4"]


@pytest.fixture
def without_files(monkeypatch):
    def missing(*_args, **_settings):
        raise DataError("no files")

    monkeypatch.setattr(one_head.eegmmidb, "raw", missing)
    monkeypatch.setattr(one_head.eeg_people, "eight_people", missing)


def tried(raw):
    """Onsets of the cues for hands and for feet, s."""
    return {what: [m["onset"] for m in raw.annotations if m["description"] == what] for what in ("hands", "feet")}


def test_a_simulated_person_takes_the_place_of_a_missing_one(without_files):
    raw, whose = one_head.recording()
    assert whose == "simulated recording"
    assert tuple(raw.ch_names) == one_head.CHANNELS
    assert raw.info["sfreq"] == 160
    cues = tried(raw)
    assert {what: len(times) for what, times in cues.items()} == {"hands": 22, "feet": 22}
    assert np.allclose(raw.get_data(), one_head.simulated().get_data()), "the same whenever it is asked for"


def test_both_hands_fade_in_the_simulated_person(without_files):
    raw = one_head.recording()[0].filter(8, 13, verbose="error").pick(ELECTRODES)
    x, times = raw.get_data() ** 2, tried(raw)

    def power(what, start, end):
        spans = [slice(*(int(160 * (onset + t)) for t in (start, end))) for onset in times[what]]
        return np.mean([x[:, span].mean(1) for span in spans], axis=0)

    hands, feet = (power(what, 1, 3.5) / power(what, -1.5, -0.2) for what in ("hands", "feet"))
    assert (hands < 0.7).all(), "each loses half of the amplitude of its own rhythm"
    assert (hands < feet).all()


def test_people_lie_apart_and_each_around_its_own_mean(without_files):
    rows, who = one_head.people()
    assert who == "simulated people"
    by = rows.groupby("person")
    assert by.size().tolist() == [30] * 8
    assert np.allclose(by.mean()[["own C3", "own C4"]], 0, atol=1e-3)
    assert (by.mean()[ELECTRODES].std() > by.std()[ELECTRODES].median()).all()


@pytest.mark.realdata("eeg.eegmmidb")
def test_the_recorded_person_has_the_electrodes_in_their_order():
    raw, whose = one_head.recording()
    assert whose == "real recording"
    assert tuple(raw.ch_names) == one_head.CHANNELS
    assert {what: len(times) for what, times in tried(raw).items()} == {"hands": 21, "feet": 24}


@pytest.mark.realdata("eeg.eight_people")
def test_log_powers_are_those_of_the_covariances():
    rows, who = one_head.people()
    assert who == "real people"
    fed = one_head.eeg_people.eight_people("common", "vectorised")
    mine = rows[rows["person"] == "B"]
    q = one_head.eeg_people.COMMON.index("C4")
    entry = q * 5 - q * (q - 1) // 2  # of the upper triangle, row by row
    np.testing.assert_allclose(np.exp(mine["C4"]), fed["B"].x_train[:, entry].numpy(), rtol=1e-5)
    assert set(rows["person"]) == {client.name for client in fed}
