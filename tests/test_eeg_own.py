"""Recordings of one's own: files and MNE's objects in, a federation out; each fault repaired and told, or refused."""

from __future__ import annotations

import datetime
import struct
import warnings
from dataclasses import replace

import mne
import numpy as np
import pytest
import scipy.signal
from moabb.datasets.base import BaseDataset
from pyriemann.geometry.mean import mean_riemann
from pyriemann.geometry.tangentspace import log_map_riemann, upper
from sklearn.covariance import ledoit_wolf

from hetfl_core import Federation, simulate
from hetfl_core.datasets import DataError, eeg
from hetfl_core.datasets.eeg import EEGWarning, UnusableSubject
from hetfl_core.datasets.eeg_runs import electrode
from hetfl_core.datasets.registry import fetch
from hetfl_core.methods import FedAvg

CAP = ("FC3", "FC4", "C3", "Cz", "C4", "CP3", "CP4", "Pz")
OTHER = ("Cz", "C3", "Oz")
HANDS = ("left_hand", "right_hand")
TS = {"T1": "left_hand", "T2": "right_hand"}
RATE, EVERY = 100.0, 6


def recording(seed=0, channels=CAP, rate=RATE, n=12, marks=HANDS):
    """Pink noise of 10 µV with n cues in turn, 6 s apart."""
    rng = np.random.default_rng(seed)
    length = int((EVERY * n + 8) * rate)
    frequency = np.fft.rfftfreq(length, 1 / rate)
    white = rng.normal(size=(2, len(channels), len(frequency)))
    x = np.fft.irfft((white[0] + 1j * white[1]) / np.sqrt(np.maximum(frequency, 0.5)), length)
    raw = mne.io.RawArray(x * 1e-5 / x.std(), mne.create_info(list(channels), rate, "eeg"), verbose=False)
    return marked(raw, 3 + EVERY * np.arange(n), [marks[i % len(marks)] for i in range(n)])


def marked(raw, onsets, texts):
    return raw.set_annotations(mne.Annotations(onsets, 0.1, texts))


def remarked(raw, names):
    a = raw.annotations
    return marked(raw, a.onset, [names.get(text, text) for text in a.description])


def pulses(raw, codes, state=0):
    """The same marks as pulses of 20 ms in a trigger channel, over an amplifier's state in the upper bits."""
    sent = np.full((1, raw.n_times), float(state))
    for a in raw.annotations:
        begin = round(a["onset"] * raw.info["sfreq"])
        sent[0, begin : begin + 2] += codes[a["description"]]
    info = mne.create_info(["Status"], raw.info["sfreq"], "stim")
    return raw.set_annotations(None).add_channels([mne.io.RawArray(sent, info, verbose=False)], force_update_info=True)


def own(runs, channels=None, **settings):
    return eeg.trials_of({"anna": runs}, HANDS, channels, **settings)["anna"]


def moabb(runs, channels=None, **settings):
    """The same runs as sessions of a data set of MOABB."""

    class Made(BaseDataset):
        def __init__(self):
            events = {name: i + 1 for i, name in enumerate(HANDS)}
            super().__init__([1], len(runs), events, "Made", [0, 4], "imagery")

        def _get_single_subject_data(self, subject):
            return {str(i): {"0": raw.copy()} for i, raw in enumerate(runs)}

        def data_path(self, *args, **kwargs):
            return []

    return eeg.trials(Made(), 1, channels, name="anna", **settings)


both_doors = pytest.mark.parametrize("door", [own, moabb])


def silently(door, *arguments, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error", EEGWarning)
        return door(*arguments, **settings)


@pytest.fixture
def two():
    return [recording(0), recording(1)]


# --- both doors -----------------------------------------------------------------------------------------------------


def test_both_doors_cut_the_same_trials(two):
    one, other = silently(own, two), silently(moabb, two)
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    assert one.channels == other.channels == CAP
    assert one.x.shape == (24, 8, 401)
    assert one.test.tolist() == [False] * 12 + [True] * 12
    assert other.test is None


@both_doors
def test_channels_in_another_order_are_brought_into_one(door, two):
    expected = door(two).x
    two[1].reorder_channels(CAP[::-1])
    np.testing.assert_array_equal(silently(door, two).x, expected)
    np.testing.assert_array_equal(silently(door, two, ["Pz", "C3"]).x, expected[:, [7, 2]])


@both_doors
def test_a_channel_that_a_run_lacks_is_left_out_of_all(door, two):
    expected = door(two).x[:, :-1]
    two[1].drop_channels(["Pz"])
    with pytest.warns(EEGWarning, match=r"^anna: Pz left out: not in run 2$"):
        found = door(two)
    assert found.channels == CAP[:-1]
    np.testing.assert_array_equal(found.x, expected)
    with pytest.raises(DataError, match=r"anna, run 2: no channel Pz; there are FC3, .*, CP4"):
        door(two, ["C3", "Pz"])


@both_doors
def test_bad_channels_are_left_out_or_used_as_asked_and_told(door, two):
    expected = door(two).x
    two[1].info["bads"] = ["C3"]
    with pytest.warns(EEGWarning, match=r"^anna: C3 left out: marked as bad in run 2$"):
        assert "C3" not in door(two).channels
    with pytest.warns(EEGWarning, match=r"^anna: C3 is marked as bad in run 2, and used as asked$"):
        np.testing.assert_array_equal(door(two, ["C3", "Cz"]).x, expected[:, [2, 3]])
    assert two[1].info["bads"] == ["C3"], "what was handed over stays as it was"


@both_doors
@pytest.mark.parametrize(("factor", "said"), [(1e6, "4.7.e.06"), (1e3, "4.7.e.03"), (1e-3, "0.0047")])
def test_another_unit_is_refused_and_the_run_named(door, two, factor, said):
    two[1].apply_function(lambda x: x * factor)
    with pytest.raises(DataError, match=rf"anna, run 2: a standard deviation of {said}.* is the unit .* right\?"):
        door(two)


@both_doors
def test_a_loud_run_is_told(door, two):
    two[1].apply_function(lambda x: x * 20)
    with pytest.warns(EEGWarning, match=r"anna: run 2 is (19|20)\S* times as loud as run 1: are gain, unit"):
        door(two)


@both_doors
def test_marks_with_blanks_around_them_count(door, two):
    expected = door(two)
    padded = [remarked(raw, {"left_hand": " left_hand "}) for raw in two]
    with pytest.warns(EEGWarning, match=r"anna: run 1: ' left_hand ' read without the blanks around it"):
        found = door(padded)
    np.testing.assert_array_equal(found.y, expected.y)


@both_doors
def test_marks_of_other_names_are_listed(door, two):
    runs = [remarked(raw, dict(zip(HANDS, TS))) for raw in two]
    with pytest.raises(UnusableSubject, match=r"no trial of left_hand, right_hand in 2 runs; .*: 'T1' \(6\), 'T2'"):
        door(runs)


@both_doors
def test_two_classes_at_one_moment_are_both_left_out(door, two):
    for raw in two:
        a = raw.annotations
        twice = [i for i, text in enumerate(a.description) if text == "left_hand"][:2]
        marked(raw, [*a.onset, *a.onset[twice]], [*a.description, "right_hand", "right_hand"])
    with pytest.warns(EEGWarning, match=r"8 of 28 trials left out .*: left_hand and right_hand at one moment"):
        found = door(two)
    assert np.bincount(found.y).tolist() == [8, 12]


@both_doors
def test_marks_that_repeat_count_once(door, two):
    expected = door(two)
    for raw in two:
        a = raw.annotations
        marked(raw, [*a.onset, *(a.onset + 0.04), *(a.onset + 0.08)], [*a.description] * 3)
    with pytest.warns(EEGWarning, match=r"anna: run 2: 24 marks repeat the one before within 0.1 s, and count once"):
        found = door(two)
    np.testing.assert_array_equal(found.x, expected.x)


@both_doors
def test_trials_that_overlap_are_left_out_or_refused(door, two):
    a = two[0].annotations
    marked(two[0], [*a.onset, a.onset[5] + 2], [*a.description, "left_hand"])
    with pytest.warns(EEGWarning, match=r"2 of 25 trials left out \(trials 5, 6\): another trial .* end in run 1$"):
        assert len(door(two)) == 23
    close = [marked(raw, 3 + 2.0 * np.arange(36), list(HANDS) * 18) for raw in (recording(0), recording(1))]
    with pytest.raises(
        DataError,
        match=r"anna: 72 of 72 trials overlap, first in run 1: another .* must be shorter",
    ):
        door(close)


@both_doors
def test_a_band_above_half_the_rate_is_no_fault_of_the_file(door):
    slow = [recording(s, rate=50.0) for s in (0, 1)]
    with pytest.raises(DataError, match=r"anna, run 1: band=\(8.0, 30.0\) must end below half the .* 25 Hz"):
        door(slow)
    assert len(door(slow, band=(8.0, 20.0))) == 24


@both_doors
def test_names_are_read_as_electrodes(door, two):
    expected = door(two).x
    two[0].rename_channels(lambda name: f"EEG {name.upper()}-REF")
    two[1].rename_channels(lambda name: f"{name.capitalize()}.")
    found = silently(door, two)
    assert found.channels == CAP
    np.testing.assert_array_equal(found.x, expected)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *[
            (name, "C3")
            for name in ("C3", "c3", "C3..", "EEG C3", "EEG C3-REF", "EEG C3-LE", "C3-A2", "C3-A1A2", "C3_m1")
        ],
        *[("CZ", "Cz"), ("FP1", "Fp1"), ("Fc5.", "FC5"), ("T3", "T7"), ("EEG T6-Ref", "P8"), ("A1", "A1")],
        *[(name, None) for name in ("C3-P3", "EEG Fp1-CPz", "EOG", "EEG 7", "C3-0", "Status", "", "REF")],
    ],
)
def test_which_electrode_a_name_means(name, place):
    assert electrode(name) == place


@both_doors
def test_two_channels_of_one_electrode_are_refused(door, two):
    two[1].rename_channels({"C3": "C3-A1", "Cz": "C3-A2"})
    with pytest.raises(DataError, match=r"anna, run 2: channels C3-A1 and C3-A2 are both C3; drop or rename"):
        door(two)


@both_doors
def test_what_is_no_electrode_is_left_out(door, two):
    for raw in two:
        raw.rename_channels({"Pz": "EOG", "FC3": "C3-P3"})
    with pytest.warns(EEGWarning, match=r"anna: C3-P3, EOG left out: in no place of the 10–05 system"):
        assert door(two).channels == CAP[1:-1]
    for raw in two:
        raw.rename_channels(lambda name: f"E{name}", verbose=False)
    with pytest.raises(DataError, match=r"anna: no channel is left \(EC3-P3, .*\); rename channels by raw.rename_"):
        door(two)
    with pytest.raises(DataError, match=r"anna, run 1: no EEG channel among misc \(8\); raw.set_channel_types"):
        door([raw.set_channel_types(dict.fromkeys(raw.ch_names, "misc"), verbose="error") for raw in two])


@both_doors
def test_an_average_reference_in_one_run_is_refused_and_in_all_repaired(door, two):
    two[0].set_eeg_reference("average", verbose=False)
    with pytest.raises(DataError, match=r"anna, run 1: the channels sum to zero .*, but not in run 2; bring all runs"):
        door(two)
    two[1].set_eeg_reference("average", verbose=False)
    found = silently(door, two)
    with pytest.warns(EEGWarning, match=r"anna: signals of rank 7 in 8 channels"):
        eeg.covariances(found)


def test_an_average_reference_is_noticed_in_files_too(two, tmp_path):
    """In 16 bits the sum of the channels is rounding noise and no zero: singular covariances would pass for regular."""
    for i, raw in enumerate(two):
        raw.set_eeg_reference("average", verbose=False).export(tmp_path / f"{i}.edf", verbose=False)
    found = silently(own, [tmp_path / "0.edf", tmp_path / "1.edf"])
    values = np.linalg.eigvalsh(np.einsum("nqt,nrt->qr", found.x, found.x))
    assert values[0] > 1e-11 * values[-1]
    with pytest.warns(EEGWarning, match=r"anna: signals of rank 7 in 8 channels .*shrinkage makes them invertible"):
        eeg.covariances(found)
    with pytest.raises(DataError, match=r"anna: covariances of trials .* not positive definite .*rank 7.*'scm'"):
        eeg.covariances(found, "scm")


@both_doors
def test_projectors_are_not_applied_and_told(door, two):
    expected = door(two).x
    two[1].set_eeg_reference("average", projection=True, verbose=False)
    with pytest.warns(EEGWarning, match=r"anna: run 2: projectors not applied \(Average EEG reference\); .*apply_proj"):
        np.testing.assert_array_equal(door(two).x, expected)


@both_doors
def test_a_run_without_marks_is_passed_over(door, two):
    empty = remarked(recording(2), {name: "rest" for name in HANDS})
    with pytest.warns(EEGWarning, match=r"anna: run 3 passed over, as it has no mark .*; its marks: 'rest' \(12\)"):
        assert len(door([*two, empty])) == 24


def test_a_subject_of_moabb_can_be_named(two):
    """Two own data sets of one class are two people."""
    clients = [eeg.subject_client(replace(moabb(two), name=name)) for name in ("anna", "ben")]
    assert [client.name for client in Federation(clients, 2)] == ["anna", "ben"]
    assert moabb(two).name == "anna"


# --- classes and parts ----------------------------------------------------------------------------------------------


def test_classes_are_numbered_as_given(two):
    people = {"anna": [remarked(raw, dict(zip(HANDS, TS))) for raw in two]}
    found = eeg.trials_of(people, {"T2": "right", "T1": "left"})["anna"]
    assert found.classes == ("right", "left")
    assert found.y.tolist() == [1, 0] * 12
    merged = eeg.trials_of(people | {"ben": recording(5)}, {"T2": "r", "right_hand": "r", "T1": "l", "left_hand": "l"})
    assert merged["ben"].y.tolist() == merged["anna"].y[:12].tolist()
    federation = eeg.federation_of(merged)
    assert (federation.n_classes, federation.info["class_names"]) == (2, ["r", "l"])


@pytest.mark.parametrize("state", [0, 0x60000])
def test_pulses_of_a_trigger_channel_are_marks(two, state):
    expected = own(two)
    sent = [pulses(raw.copy(), {"left_hand": 1, "right_hand": 2}, state) for raw in two]
    for keys in ({1: "left_hand", 2: "right_hand"}, {"1": "left_hand", "2": "right_hand"}):
        found = eeg.trials_of({"anna": sent}, keys)["anna"]
        np.testing.assert_array_equal(found.x, expected.x)
        np.testing.assert_array_equal(found.y, expected.y)
    with pytest.raises(UnusableSubject, match=r"marks there are run 1: '1' \(6\), '2' \(6\)"):
        eeg.trials_of({"anna": sent}, {3: "left_hand", 4: "right_hand"})


def test_a_class_that_is_missing_from_a_part(two):
    left, both = recording(5, marks=("left_hand",)), two[0]
    with pytest.raises(UnusableSubject, match=r'anna: 12 training trials, all of left_hand, .*split="random" deals'):
        own([left, both])
    with pytest.warns(EEGWarning, match=r"^anna: no test trials of right_hand, only training trials$"):
        found = own([both, left])
    assert found.notes[-1].startswith("no test trials")
    with pytest.warns(EEGWarning, match="no test trials of right_hand"):
        eeg.subject_client(moabb([both, left]))
    assert set(own([left, both], split="random").y) == {0, 1}
    with pytest.warns(EEGWarning, match=r"no mark of feet; the marks there are 'left_hand' \(6\), 'right_hand' \(6\)"):
        eeg.trials_of({"anna": two}, [*HANDS, "feet"])
    late = remarked(recording(2), {"left_hand": "feet"})
    with pytest.warns(EEGWarning, match=r"^anna: no training trials of feet, only test trials$"):
        eeg.trials_of({"anna": [*two, late]}, [*HANDS, "feet"])


def test_one_session_is_split_at_random_and_told():
    with pytest.warns(EEGWarning, match=r"^anna: one session: a random quarter of its trials is the test set"):
        found = own(recording(n=16))
    assert np.bincount(found.y[found.test]).tolist() == [2, 2]
    again = silently(own, recording(n=16), split="random")
    np.testing.assert_array_equal(found.test, again.test)
    other = own(recording(n=16), split="random", seed=1)
    assert other.test.sum() == 4
    assert (other.test != found.test).any()


def test_a_recording_that_is_there_twice_is_refused(two):
    with pytest.raises(DataError, match=r"anna, run 2: the same signals as anna, run 1; name each recording once"):
        own([two[0], two[0].copy()])
    with pytest.raises(DataError, match=r"ben, run 1: the same signals as anna, run 2"):
        eeg.trials_of({"anna": two, "ben": [two[1], recording(3)]}, HANDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[1].__imul__(1e3), r"run 2: FC4 is \S+ times as loud as the other channels"),
        (lambda x: np.clip(x[1], -1e-5, 1e-5, out=x[1]), r"run 2: FC4 stays at its largest .* saturated\?"),
        (lambda x: x.__setitem__(1, x[0]), "run 2: FC3 and FC4 are one signal"),
    ],
)
def test_a_channel_that_is_unlike_the_others_is_told(two, change, message):
    """Of another unit in one session, or recorded twice."""
    change(two[1]._data)
    with pytest.warns(EEGWarning, match=message):
        own(two)


def test_rates_that_nearly_agree_are_told_in_full(two):
    with pytest.raises(DataError, match=r"run 2: 100\.0001 Hz where the runs before have 100 Hz; resample"):
        own([two[0], recording(1, rate=100.0001)])


def test_what_is_handed_over_stays_as_it_was(two):
    two[0].rename_channels({"C3": "EEG C3-REF"})
    two[0]._data[0, 1000:1010] = np.nan
    before = two[0].copy()
    with pytest.warns(EEGWarning, match="NaN or infinite samples in FC3"):
        own(two, resample=80.0)
    np.testing.assert_array_equal(two[0].get_data(), before.get_data())
    assert two[0].ch_names == before.ch_names
    assert list(two[0].annotations.description) == list(before.annotations.description)


# --- files ----------------------------------------------------------------------------------------------------------


def gdf(path, raw, codes):
    """A minimal GDF 1.25 file by its specification: float64 in µV, one record, an event table of codes."""
    x, q, n = raw.get_data() * 1e6, len(raw.ch_names), raw.n_times
    at = [round(a["onset"] * raw.info["sfreq"]) + 1 for a in raw.annotations]
    types = [codes[a["description"]] for a in raw.annotations]
    text = lambda words, width: b"".join(word.encode().ljust(width) for word in words)  # noqa: E731
    head = b"GDF 1.25" + text(["X X", "made"], 80) + b"2020010112000000" + struct.pack("<q", 256 * (q + 1)) + bytes(44)
    head += struct.pack("<q2II", 1, round(n / raw.info["sfreq"]), 1, q)
    head += text(raw.ch_names, 16) + bytes(80 * q) + text(["uV"] * q, 8)
    head += struct.pack(f"<{2 * q}d{2 * q}q", *[-1e3] * q, *[1e3] * q, *[-1000] * q, *[1000] * q)
    head += text(["HP:0 LP:0"] * q, 80) + struct.pack(f"<{2 * q}i", *[n] * q, *[17] * q) + bytes(32 * q)
    rate = round(raw.info["sfreq"]).to_bytes(3, "little")
    table = b"\x01" + rate + struct.pack(f"<I{len(at)}I{len(at)}H", len(at), *at, *types)
    path.write_bytes(head + x.astype("<f8").tobytes() + table)


@pytest.mark.parametrize("kind", ["edf", "bdf", "vhdr", "fif", "gdf"])
def test_files(two, tmp_path, kind):
    expected, paths = own(two), []
    for i, raw in enumerate(two):
        paths.append(tmp_path / (f"{i}_raw.fif" if kind == "fif" else f"{i}.{kind}"))
        if kind == "fif":
            raw.save(paths[i], fmt="double", verbose=False)
        elif kind == "gdf":
            gdf(paths[i], raw, {"left_hand": 769, "right_hand": 770})
        else:
            mne.export.export_raw(paths[i], raw, verbose=False)
    names = {769: "left_hand", 770: "right_hand"} if kind == "gdf" else HANDS
    found = eeg.trials_of({"anna": [str(paths[0]), paths[1]]}, names)["anna"]
    assert found.channels == CAP
    np.testing.assert_array_equal(found.y, expected.y)
    np.testing.assert_array_equal(found.test, expected.test)
    np.testing.assert_allclose(found.x, expected.x, atol=0.1)  # BrainVision is written in steps of 0.1 µV


def test_files_that_cannot_be_read(two, tmp_path):
    mne.export.export_raw(tmp_path / "whole.edf", two[0], verbose=False)
    content = (tmp_path / "whole.edf").read_bytes()
    (tmp_path / "cut.edf").write_bytes(content[: int(0.8 * len(content))])
    (tmp_path / "no.edf").write_bytes(b"0" * 300)
    (tmp_path / "notes.txt").write_text("left, right")
    with pytest.raises(DataError, match=r"anna, run 1 \(gone.edf\): there is no file .*gone.edf"):
        own(tmp_path / "gone.edf")
    for name in ("no.edf", "notes.txt"):
        with pytest.raises(DataError, match=rf"anna, run 1 \({name}\): the file cannot be read .* Name the .edf, .bdf"):
            own(tmp_path / name)
    with pytest.warns(EEGWarning, match=r"anna: run 1 \(cut.edf\): Number of records .* does not match the file size"):
        assert len(own(tmp_path / "cut.edf", split="random")) < 12


def test_files_that_lack_a_part(two, tmp_path):
    mne.export.export_raw(tmp_path / "a.vhdr", two[0], verbose="error")
    header = mne.io.read_raw(tmp_path / "a.vhdr", verbose="error")
    with pytest.raises(DataError, match=r"anna, run 1 \(a.eeg\): the file cannot be read .* of BrainVision the .vhdr"):
        own(tmp_path / "a.eeg")
    (tmp_path / "a.eeg").unlink()
    with pytest.raises(DataError, match=r"anna, run 1 \(a.vhdr\): the file cannot be read \(FileNotFoundError"):
        own(tmp_path / "a.vhdr")
    with pytest.raises(DataError, match=r"anna, run 1: the signals cannot be read \(FileNotFoundError"):
        own(header)


def test_the_order_of_recordings_is_that_of_their_names_and_another_one_of_dates_is_told(two):
    for raw, year in zip(two, (2021, 2020), strict=True):
        marks = raw.annotations
        raw.set_meas_date(datetime.datetime(year, 1, 1, tzinfo=datetime.UTC))
        raw.set_annotations(mne.Annotations(marks.onset, 0.1, marks.description))
    with pytest.warns(EEGWarning, match=r"anna: run 2: recorded on 2020-01-01, before run 1; the last one .* test set"):
        found = own(two)
    assert found.test.tolist() == [False] * 12 + [True] * 12


def test_marks_count_from_where_a_recording_was_cropped(two):
    whole = own(two)
    some = own([two[0].copy().crop(10), two[1]])
    np.testing.assert_array_equal(some.y[-12:], whole.y[-12:])
    assert some.y[:10].tolist() == whole.y[2:12].tolist()
    np.testing.assert_allclose(some.x[2:10], whole.x[4:12], atol=1e-3)  # far from where the filter begins anew


def test_trials_marked_as_bad_and_those_cut_short_are_left_out(two):
    two[0].set_annotations(two[0].annotations + mne.Annotations([10], [12], ["BAD_muscle"]))
    with pytest.warns(EEGWarning, match=r"anna: 3 of 24 trials left out \(trials 1, 2, 3\): marked as bad in run 1$"):
        assert len(own(two)) == 21
    with pytest.warns(EEGWarning, match=r"anna: 1 of 24 trials left out \(trial 12\): cut short"):
        own([recording(0), recording(1).crop(2)], interval=(-2, 2))
    with pytest.raises(DataError, match=r"anna, run 1: interval=\(0.0, 0.05\) holds 6 samples .* the 8 channels"):
        own(two, interval=(0, 0.05))


def test_few_trials_of_many_classes_have_no_test_set():
    with pytest.warns(EEGWarning, match="no test trials of a, b, c, d, only training trials"):
        found = eeg.trials_of({"anna": recording(n=8, marks="abcd")}, ["a", "b", "c", "d"])["anna"]
    assert not found.test.any()


# --- people ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def people(two):
    return {"anna": two, "ben": [recording(2, OTHER, 128.0), recording(3, OTHER[::-1], 128.0)]}


def test_people_with_other_caps_are_a_federation(people):
    found = eeg.trials_of(people, HANDS)
    assert {name: (of.channels, of.rate) for name, of in found.items()} == {"anna": (CAP, 100), "ben": (OTHER, 128)}
    federation = eeg.federation_of(found)
    table = federation.describe()
    assert table["shape"].tolist() == ["36", "6"]
    assert (table.n_train.tolist(), table.n_test.tolist()) == ([12, 12], [12, 12])
    assert federation["ben"].features == ("Cz–Cz", "C3–Cz", "Cz–Oz", "C3–C3", "C3–Oz", "Oz–Oz")
    assert federation.info["subjects"]["ben"] == {"electrodes": 3, "channels": list(OTHER)}
    again = eeg.federation_of({name: eeg.covariances(of) for name, of in found.items()})
    assert again.fingerprint() == federation.fingerprint()
    upper_triangle = eeg.federation_of(found, "vectorised")["ben"]
    expected = eeg.covariances(found["ben"]).matrices[0][np.triu_indices(3)]
    np.testing.assert_allclose(upper_triangle.x_train[0], expected, rtol=1e-6)


def test_common_channels_are_one_space_and_other_caps_of_one_size_are_not(people):
    found = eeg.trials_of(people, HANDS, "common")
    assert found["anna"].channels == found["ben"].channels == ("C3", "Cz")
    simulate(eeg.federation_of(found), FedAvg(local_epochs=1), rounds=1, progress=False)
    people["ben"][0].info["bads"] = ["C3"]
    with pytest.warns(EEGWarning, match=r"^ben: C3 left out: marked as bad in run 1$"):
        assert eeg.trials_of(people, HANDS, "common")["anna"].channels == ("Cz",)
    people["ben"] = [recording(2, ("F3", "Fz", "F4")), recording(3, ("F3", "Fz", "F4"))]
    with pytest.raises(DataError, match=r"'common': no electrode is everybody's: anna has FC3, .*; ben has F3"):
        eeg.trials_of(people, HANDS, "common")
    people["anna"] = [raw.copy().pick(["C3", "Cz", "C4"]) for raw in people["anna"]]
    with pytest.raises(ValueError, match="features"):
        simulate(eeg.federation_of(eeg.trials_of(people, HANDS)), FedAvg(local_epochs=1), rounds=1, progress=False)


def test_no_test_trial_is_in_what_is_trained_on(people):
    """The last session seven times as loud, and of other signals: training vectors do not change in a single bit."""
    before = eeg.federation_of(eeg.trials_of(people, HANDS))
    people["anna"][1] = recording(7).apply_function(lambda x: 7 * x)
    after = eeg.federation_of(eeg.trials_of(people, HANDS))
    leaky = eeg.federation_of(eeg.trials_of(people, HANDS), reference="all")
    assert (before["anna"].x_train == after["anna"].x_train).all()
    assert (before["anna"].x_test != after["anna"].x_test).any()
    assert (before["anna"].x_train != leaky["anna"].x_train).any()
    for name in ("x_train", "x_test"):
        assert (getattr(before["ben"], name) == getattr(after["ben"], name)).all(), "people do not see each other"


def by_hand(raws, names, cues, interval=(0.0, 4.0), band=(8.0, 30.0)):
    """Features of trials by SciPy's filter, scikit-learn's Ledoit–Wolf and pyRiemann's geometry; the last run tests."""
    matrices, labels, runs = [], [], []
    for i, raw in enumerate(raws):
        rate = raw.info["sfreq"]
        sos = scipy.signal.butter(4, band, "bandpass", fs=rate, output="sos")
        x = scipy.signal.sosfiltfilt(sos, 1e6 * raw.get_data(names), axis=1)
        for a in raw.annotations:
            if a["description"] in cues:
                begin = round((a["onset"] + interval[0]) * rate)
                part = x[:, begin : begin + round((interval[1] - interval[0]) * rate) + 1]
                matrices.append(ledoit_wolf(part.T)[0])
                labels.append(cues.index(a["description"]))
                runs.append(i)
    matrices, labels, train = np.array(matrices), np.array(labels), np.array(runs) < len(raws) - 1
    mean = mean_riemann(matrices[train], tol=1e-12)
    root = np.linalg.inv(scipy.linalg.sqrtm(mean))
    vectors = upper(log_map_riemann(root @ matrices @ root, np.eye(len(names))))
    return vectors[train], labels[train], vectors[~train], labels[~train]


def compare(client, expected):
    for name, value in zip(("x_train", "y_train", "x_test", "y_test"), expected, strict=True):
        np.testing.assert_allclose(getattr(client, name), value, atol=2e-5, err_msg=name)


def test_features_by_scipy_and_pyriemann(people):
    federation = eeg.federation_of(eeg.trials_of(people, HANDS, interval=(0.5, 3.0)))
    for name, cap in (("anna", CAP), ("ben", OTHER)):
        compare(federation[name], by_hand(people[name], cap, HANDS, (0.5, 3.0)))


@pytest.mark.realdata("eeg.eegmmidb")
def test_two_real_recordings_with_other_caps(tmp_path):
    """Anna's file has 8 electrodes called ``EEG C3-REF``, Ben's 14 at another rate; what is real is one person."""
    caps = {
        "anna": CAP,
        "ben": tuple(["F3", "Fz", "F4", "FC1", "FC2", "C5", "C3", "C1", "C2", "C4", "C6", "P3", "Pz", "P4"]),
    }
    given, read = {}, {}
    for name, runs, rate in (("anna", (4, 8, 12), 160.0), ("ben", (3, 7, 11), 128.0)):
        given[name], read[name] = [tmp_path / f"{name}-{run}.edf" for run in runs], []
        for path, run in zip(given[name], runs, strict=True):
            raw = mne.io.read_raw_edf(fetch(f"eegmmidb/S001/{run:02d}"), preload=True, verbose=False)
            mne.datasets.eegbci.standardize(raw)
            raw.pick(list(caps[name])).resample(rate, verbose=False)
            raw.rename_channels((lambda c: f"EEG {c.upper()}-REF") if name == "anna" else (lambda c: c))
            mne.export.export_raw(path, raw, verbose=False)
            read[name].append(mne.io.read_raw_edf(path, preload=True, verbose=False))
    found = eeg.trials_of(given, TS)
    assert {name: (len(of), of.channels, int(of.test.sum())) for name, of in found.items()} == {
        name: (45, cap, 15) for name, cap in caps.items()
    }
    federation = eeg.federation_of(found)
    for name in caps:
        compare(federation[name], by_hand(read[name], read[name][0].ch_names[: len(caps[name])], tuple(TS)))


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recordings": {}}, "recordings must hold those of at least one person"),
        ({"recordings": {"anna": []}}, r"recordings\['anna'\] must hold at least one recording"),
        (
            {"recordings": {"anna": 3}},
            r"recordings\['anna'\] must be a path, an mne.io.Raw or a sequence of them",
        ),
        ({"recordings": {"anna": [3]}}, r"recordings\['anna'\] must hold paths or objects of mne.io.BaseRaw, got 3"),
        ({"recordings": {"": "x.edf"}}, "a person's name in recordings must be a text"),
        ({"recordings": ["x.edf"]}, "recordings must be a mapping"),
        ({"classes": {"T1": "left"}}, "classes must name at least two classes"),
        ({"classes": "T1"}, "classes must be a mapping of marks to classes, or a sequence, got 'T1'"),
        ({"classes": {"T1": 1, "T2": 2}}, r"classes\['T1'\] must be a text"),
        ({"classes": {"T1": "left", "T1 ": "right"}}, "classes: mark 'T1' stands for left and for right"),
        ({"channels": "C3"}, "channels must be 'common' or a sequence of electrodes, got 'C3'"),
        ({"channels": []}, "channels must name at least one electrode, and each once"),
        ({"channels": ["C3", "EEG C3-REF"]}, "channels must name at least one electrode, and each once"),
        ({"interval": (4, 0)}, "interval must be begin and end of a trial after its mark"),
        ({"classes": {"": "left", "T2": "right"}}, "a mark in classes must be a text that is not empty"),
        ({"interval": None}, "interval must be begin and end of a trial after its mark"),
        ({"interval": (0, np.nan)}, "interval must be begin and end of a trial after its mark"),
        ({"interval": (0, 2, 4)}, "interval must be begin and end of a trial after its mark"),
        ({"band": (30, 8)}, "band must be two frequencies in Hz"),
        ({"band": (0, 30)}, "band must begin above 0 Hz"),
        ({"resample": 0}, "resample must be positive"),
        ({"split": "run"}, "split must be one of 'session', 'random'"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        eeg.trials_of(**{"recordings": {"anna": "gone.edf"}, "classes": HANDS} | arguments)


def test_bad_people(two):
    found = {"anna": own(two)}
    with pytest.raises(ValueError, match="people must hold the trials of at least one person"):
        eeg.federation_of({})
    with pytest.raises(TypeError, match=r"people\['ben'\] must be a Trials or SubjectCovariances, got 3"):
        eeg.federation_of(found | {"ben": 3})
    with pytest.raises(ValueError, match=r"same classes: anna has \('left_hand', 'right_hand'\), ben \('a', 'b'\)"):
        eeg.federation_of(found | {"ben": replace(found["anna"], classes=("a", "b"))})
    with pytest.raises(ValueError, match="features must be one of"):
        eeg.federation_of(found, "log")
    assert [client.name for client in eeg.federation_of({"somebody": found["anna"]})] == ["somebody"]
