import functools
import importlib.metadata
import json
import os
import warnings

import mne
import moabb.datasets
import numpy as np
import pytest
import scipy.linalg
from moabb.datasets.base import BaseDataset
from moabb.datasets.fake import FakeDataset
from moabb.paradigms import MotorImagery
from pyriemann.tangentspace import TangentSpace
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression

from hetfl_core import Federation
from hetfl_core.clients import FederationWarning
from hetfl_core.datasets import DataError, eeg, eeg_trials, eeg_vectors, eegmmidb
from hetfl_core.datasets.eeg import EEGWarning, UnusableSubject
from hetfl_core.datasets.eeg_cutting import Trials
from hetfl_core.datasets.recordings import CLASSES, COMMON_CHANNELS, TABLE_S1

RATE, EVERY, HANDS = 128.0, 4, ("left_hand", "right_hand")
CAP = ("C3", "Cz", "C4", "Pz")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Nothing is read from, or written to, the caches of whoever runs the tests."""
    monkeypatch.setenv("HETFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MNE_DATA", raising=False)
    monkeypatch.setattr(mne, "get_config", lambda key=None, *a, **k: os.environ.get(key))


def run(n=12, channels=CAP, rate=RATE, seed=0, classes=HANDS, spoil=None, date=None, stim=True):
    """A made run: n trials of 3 s, one each 4 s, in turn of each class, in pink noise of about 10 µV."""
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.normal(size=(len(channels), int((n + 1) * EVERY * rate))), axis=1)
    x = 1e-5 * (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    onsets = np.arange(n) * EVERY + 1
    raw = mne.io.RawArray(
        x, mne.create_info(list(channels), rate, "eeg"), first_samp=1000 if date else 0, verbose=False
    )
    if date:
        raw.set_meas_date(date)
    names = [classes[i % len(classes)] for i in range(n)]
    shift = raw.first_time if date else 0.0
    marks = mne.Annotations(onsets + shift, [3.0] * n, names, orig_time=raw.info["meas_date"])
    raw.set_annotations(marks)
    if spoil:
        spoil(raw)
    if stim:
        pulses = np.zeros((1, raw.n_times))
        pulses[0, (onsets * rate).astype(int)] = [1 + CLASSES.index(name) for name in names]
        info = mne.create_info(["STI"], rate, "stim")
        raw.add_channels(
            [mne.io.RawArray(pulses, info, first_samp=raw.first_samp, verbose=False)], force_update_info=True
        )
    return raw


def made(*runs, events=HANDS):
    """A data set of MOABB with one subject and the given runs, each a session."""

    class Made(BaseDataset):
        def __init__(self):
            numbers = {name: 1 + CLASSES.index(name) for name in events}
            super().__init__([1], len(runs), numbers, "Made", [0, 3], "imagery")

        def _get_single_subject_data(self, subject):
            return {str(i): {"0": raw.copy()} for i, raw in enumerate(runs)}

        def data_path(self, *args, **kwargs):
            raise AssertionError("there are no files")

    return Made()


def microvolts(raw, seconds, names, value):
    """Overwrite what the named channels say in an interval of seconds, in µV."""
    begin, end = (int(s * raw.info["sfreq"]) for s in seconds)
    for name in names:
        raw._data[raw.ch_names.index(name), begin:end] = value * 1e-6


@pytest.fixture(scope="module")
def alex():
    """Subject 1 of the simulated AlexMI."""
    return eeg.trials(eeg.dataset("AlexMI"), 1)


@pytest.fixture(scope="module")
def alex_covariances(alex):
    return eeg.covariances(alex)


# --- whole runs and files that are no good ---------------------------------------------------------------------------


def silent(raw):
    """NaN from end to end."""
    raw._data[:] = np.nan


@pytest.mark.parametrize("order", [(silent, None), (None, silent)])
def test_a_run_without_any_trial_is_passed_over_and_told(order):
    runs = [run(seed=i, spoil=spoil) for i, spoil in enumerate(order)]
    with pytest.warns(EEGWarning) as told:
        found = eeg.trials(made(*runs), 1)
    assert len(found) == 12
    texts = " ".join(str(each.message) for each in told)
    assert "12 of 24 trials left out" in texts
    assert "usable trials in 1 of 2 sessions only" in texts


def test_a_subject_without_any_trial_is_unusable():
    def by_turns(raw):  # each trial at another electrode, so that none counts as flat
        for i in range(12):
            microvolts(raw, (1 + i * EVERY, 3 + i * EVERY), [CAP[i % 4]], np.nan)

    with pytest.raises(UnusableSubject, match=r"Made-1: 0 usable trials \(12 of 12 .* in C3, Cz, C4, Pz"):
        eeg.trials(made(run(spoil=by_turns)), 1)
    with pytest.raises(DataError, match=r"Made-1: C3, Cz, C4, Pz flat .* or not finite"):
        eeg.trials(made(run(spoil=silent)), 1)


@pytest.mark.parametrize("error", [ValueError("Unknown mat file type"), OSError("truncated file")])
def test_a_file_that_cannot_be_read_is_not_an_empty_recording(error):
    data = made(run())

    def broken(subject):
        raise error

    data._get_single_subject_data = broken
    with pytest.raises(DataError, match=f"Made-1: the recording cannot be read .*{error}") as raised:
        eeg.trials(data, 1)
    assert not isinstance(raised.value, UnusableSubject)


@pytest.mark.parametrize("band", [(30, 8), (0, 30), (8, 8)])
def test_a_band_is_a_band(band):
    with pytest.raises(ValueError, match="band must be"):
        eeg.trials(made(run()), 1, band=band)


@pytest.mark.parametrize("argument", ["datasets", "classes"])
def test_an_empty_choice_is_an_error(argument):
    with pytest.raises(ValueError, match=f"{argument} must name at least one"):
        eeg.federation(**{argument: []})


# --- trials ---------------------------------------------------------------------------------------------------------


def test_trials_are_those_of_moabbs_own_paradigm(alex):
    data = eeg.dataset("AlexMI")
    paradigm = MotorImagery(events=list(data.recordings.classes), n_classes=3, fmin=8, fmax=30)
    x, names, about = paradigm.get_data(data, [1])
    assert alex.x.shape == (60, 16, 3 * 512 + 1)
    np.testing.assert_allclose(alex.x, x, atol=1e-9)  # both in µV
    assert [CLASSES[label] for label in alex.y] == list(names)
    assert alex.session.tolist() == about.session.tolist()
    assert (alex.channels, alex.rate, alex.name) == (TABLE_S1["AlexMI"].channels, 512.0, "AlexMI-1")
    assert alex.notes == ()


def test_channels_and_classes_can_be_chosen():
    data = made(run(classes=("left_hand", "feet", "rest")), events=("left_hand", "feet", "rest"))
    some = eeg.trials(data, 1, channels=["C4", "C3"], classes=("feet", "rest", "tongue"))
    whole = eeg.trials(data, 1)
    assert some.channels == ("C4", "C3")
    assert set(some.y) == {2, 4}
    np.testing.assert_array_equal(some.x, whole.x[whole.y > 0][:, [2, 0]])
    renamed = eeg.trials(data, 1, labels=("rest", "feet", "left_hand"))
    np.testing.assert_array_equal(renamed.y, np.array([2, 1, 0])[np.searchsorted([0, 2, 4], whole.y)])


def test_moabbs_fake_data_set_and_marks_by_annotation_or_pulse():
    fake = FakeDataset(list(HANDS), n_sessions=2, n_runs=1, n_subjects=2, n_events=10, duration=60, seed=1)
    found = eeg.trials(fake, 2)
    assert len(found) == 20
    assert set(found.session) == {"0", "1"}
    pulses, marks = eeg.trials(made(run()), 1), eeg.trials(made(run(stim=False)), 1)
    np.testing.assert_array_equal(pulses.x, marks.x)
    np.testing.assert_array_equal(pulses.y, marks.y)


def test_two_data_sets_of_ones_own_may_be_called_alike():
    """Nobody named their subjects; who names them is taken at their word."""
    trials = [eeg.trials(made(run(seed=i), run(seed=i + 2)), 1) for i in (0, 1)]
    with pytest.warns(FederationWarning, match=r"trials\(…, name='anna'\)"):
        fed = Federation([eeg_vectors.subject_client(of) for of in trials])
    assert [c.name for c in fed] == ["Made-1 (1)", "Made-1 (2)"]
    with pytest.raises(ValueError, match="must be unique, got 'Made-1' twice"):
        Federation([eeg_vectors.subject_client(of) for of in (trials[0], trials[0])])
    named = [eeg.trials(made(run(seed=i), run(seed=i + 2)), 1, name="anna") for i in (0, 1)]
    with pytest.raises(ValueError, match="must be unique, got 'anna' twice"):
        Federation([eeg_vectors.subject_client(of) for of in named])


def test_what_is_not_there_is_named():
    data = made(run())
    with pytest.raises(DataError, match=r"Made: no subject 7; there are 1"):
        eeg.trials(data, 7)
    with pytest.raises(DataError, match=r"Made: none of the classes tongue; it has left_hand, right_hand"):
        eeg.trials(data, 1, classes=("tongue",))
    with pytest.raises(ValueError, match=r"datasets must be one of 'AlexMI', .* got 'Alex'"):
        eeg.dataset("Alex")
    with pytest.raises(ValueError, match=r"source must be one of 'simulated', 'moabb', got 'real'"):
        eeg.dataset("AlexMI", "real")


def test_a_package_that_is_not_installed(monkeypatch):
    def version(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr("hetfl_core.datasets.recordings.version", version)
    eeg._fingerprint.cache_clear()
    for call in (
        lambda: eeg.federation(progress=False),
        eegmmidb.raw,
        eegmmidb.trials,
        lambda: eeg.trials_of({"anna": "anna.edf"}, HANDS),
        lambda: eeg.trials(made(run()), 1),
    ):
        with pytest.raises(DataError, match=r"EEG needs the package m\w+: pip install 'hetfl-core\[eeg\]'"):
            call()


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_missing_channel_is_refused():
    with pytest.raises(DataError, match=r"Made-1, run 1: no channel Oz, Fz; there are C3, Cz, C4, Pz"):
        eeg.trials(made(run()), 1, channels=["C3", "Oz", "Fz"])


def test_an_unknown_electrode_is_left_out_or_refused():
    odd = run(channels=("C3", "EEG 7", "C4", "A99"))
    with pytest.warns(EEGWarning, match=r"Made-1: EEG 7, A99 left out: in no place of the 10–05 system"):
        assert eeg.trials(made(odd), 1).channels == ("C3", "C4")
    with pytest.raises(DataError, match=r"Made-1, run 1: A99 in no place of the 10–05 system"):
        eeg.trials(made(odd), 1, channels=["C3", "A99"])
    assert eeg.trials(made(odd), 1, channels=["C3", "C4"]).channels == ("C3", "C4")  # those that are electrodes


def test_a_channel_that_is_always_flat_is_left_out():
    dead = run(spoil=lambda raw: microvolts(raw, (0, 60), ["Cz"], 4000.0))
    with pytest.warns(EEGWarning, match=r"Made-1: Cz left out: flat, or not finite, in more than half of the trials"):
        found = eeg.trials(made(dead), 1)
    assert found.channels == ("C3", "C4", "Pz")
    np.testing.assert_allclose(found.x, eeg.trials(made(run()), 1).x[:, [0, 2, 3]])
    with pytest.raises(DataError, match=r"Made-1: Cz flat .*; name other channels"):
        eeg.trials(made(dead), 1, channels=["C3", "Cz"])
    volts = run(spoil=lambda raw: raw.apply_function(lambda x: 1e-6 * x))
    with pytest.raises(DataError, match=r"C3, Cz, C4, Pz flat .* is the unit of the recording right\?"):
        eeg.trials(made(volts), 1)


def test_a_channel_of_nan_counts_as_flat():
    dead = run(spoil=lambda raw: microvolts(raw, (0, 60), ["Cz"], np.nan))
    with pytest.warns(EEGWarning, match=r"Made-1: Cz left out: flat, or not finite, in more than half of the trials"):
        found = eeg.trials(made(dead), 1)
    np.testing.assert_allclose(found.x, eeg.trials(made(run()), 1).x[:, [0, 2, 3]])
    # in one run of three, it costs that run's trials
    with (
        pytest.warns(EEGWarning, match=r"Made-1: 12 of 36 trials left out \(trials 12, .* …\): flat Cz"),
        pytest.warns(EEGWarning, match="Made-1: usable trials in 2 of 3 sessions only"),
    ):
        assert len(eeg.trials(made(run(), dead, run()), 1)) == 24


def test_trials_in_which_a_channel_is_flat_are_left_out():
    # trial 3 lasts from 13 s to 16 s, trial 4 from 17 s to 20 s; the electrode comes off seconds before
    off = run(spoil=lambda raw: microvolts(raw, (9.5, 22), ["Pz"], 0.0))
    with pytest.warns(EEGWarning, match=r"Made-1: 2 of 12 trials left out \(trials 3, 4\): flat Pz"):
        found = eeg.trials(made(off), 1)
    assert found.x.shape[:2] == (10, 4)
    assert found.y.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("date", [None, 1_000_000_000.0], ids=["no date", "with a date"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_trials_with_nan_are_left_out_and_the_others_do_not_change(value, date):
    # a gap within trial 2 (9 … 12 s) in one channel, and one that begins in trial 5 (21 … 24 s) in another
    def spoil(raw):
        microvolts(raw, (10.0, 10.5), ["C3"], value)
        microvolts(raw, (23.9, 24.5), ["Pz"], value)

    with pytest.warns(EEGWarning, match=r"Made-1: 2 of 12 trials left out \(trials 2, 5\): NaN .* in C3, Pz"):
        found = eeg.trials(made(run(spoil=spoil, date=date)), 1)
    whole = eeg.trials(made(run(date=date)), 1)
    kept = np.delete(np.arange(12), [2, 5])
    np.testing.assert_array_equal(found.y, whole.y[kept])
    assert np.isfinite(found.x).all()
    far = [i for i, trial in enumerate(kept) if trial not in (1, 3, 4, 6)]
    np.testing.assert_allclose(
        found.x[far], whole.x[kept][far], atol=1e-3
    )  # the gap does not spread through the filter


def test_two_faults_are_told_one_after_the_other():
    def spoil(raw):
        microvolts(raw, (1.5, 2.0), ["C3"], np.nan)
        microvolts(raw, (9.5, 22), ["Pz"], 0.0)

    with pytest.warns(EEGWarning) as caught:
        found = eeg.trials(made(run(spoil=spoil)), 1)
    first, second = (str(w.message) for w in caught)
    assert first.startswith("Made-1: 1 of 12 trials left out (trial 0)")
    assert second.startswith("Made-1: 2 of 11 remaining trials left out (trials 2, 3): flat Pz")
    assert found.notes == tuple(message.removeprefix("Made-1: ") for message in (first, second))


def test_too_few_usable_trials_are_refused():
    with pytest.raises(UnusableSubject, match=r"Made-1: 6 usable trials, expected at least 8"):
        eeg.trials(made(run(n=6)), 1)
    gap = run(spoil=lambda raw: microvolts(raw, (0, 25.9), ["C3"], np.nan))
    with pytest.raises(UnusableSubject, match=r"Made-1: 5 usable .*7 of 12 trials left out \(trials 0, 1, .*6\): NaN"):
        eeg.trials(made(gap), 1)

    def in_turn(raw):
        for i, name in enumerate(CAP):
            microvolts(raw, (13 * i, 13 * (i + 1)), [name], np.nan)

    with pytest.raises(UnusableSubject, match=r"Made-1, run 1: at no moment are all of C3, Cz, C4, Pz finite"):
        eeg.trials(made(run(spoil=in_turn)), 1)
    with pytest.raises(UnusableSubject, match=r"Made-1: no trial of feet in 1 runs"):
        eeg.trials(made(run(), events=(*HANDS, "feet")), 1, classes=("feet",))


def test_a_trial_that_the_recording_cuts_short_is_left_out():
    short = run(stim=False)
    short.crop(0, 46.0)  # the last trial lasts from 45 s to 48 s
    with pytest.warns(EEGWarning, match=r"1 of 12 trials left out \(trial 11\): cut short"):
        assert len(eeg.trials(made(short), 1)) == 11


def test_different_sampling_rates_are_refused_or_brought_to_one():
    data = made(run(), run(rate=256.0, seed=1))
    with pytest.raises(DataError, match=r"Made-1, run 2: 256 Hz where the runs before have 128 Hz; resample=…"):
        eeg.trials(data, 1)
    found = eeg.trials(data, 1, resample=128.0)
    assert (found.x.shape, found.rate) == ((24, 4, 385), 128.0)
    assert found.y.tolist() == [0, 1] * 12
    np.testing.assert_array_equal(found.x[:12], eeg.trials(made(run()), 1).x)  # already at that rate
    fine = eeg.trials(made(run(rate=256.0, seed=1)), 1).x[..., ::2]  # in the band, nothing is lost by half the rate
    assert (found.x[12:] - fine).std() < 0.05 * fine.std()


def test_average_reference_is_repaired_by_shrinkage_and_refused_without():
    found = eeg.trials(made(run(spoil=lambda raw: raw.set_eeg_reference("average", verbose=False))), 1)
    assert np.abs(found.x.sum(axis=1)).max() < 1e-6, "the channels sum to zero"
    with pytest.warns(EEGWarning, match=r"Made-1: signals of rank 3 in 4 channels .*shrinkage makes them invertible"):
        matrices = eeg.covariances(found).matrices
    assert np.linalg.eigvalsh(matrices).min() > 0
    with pytest.raises(
        DataError, match=r"Made-1: covariances of trials 0, 1, .* not positive definite .*rank 3.*'scm'"
    ):
        eeg.covariances(found, estimator="scm")


def test_a_full_rank_recording_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error", EEGWarning)
        eeg.covariances(eeg.trials(made(run()), 1))


def test_one_class_is_refused():
    with pytest.warns(EEGWarning, match=r"no mark of right_hand; the marks there are 'left_hand' \(12\)"):
        found = eeg.trials(made(run(classes=("left_hand",))), 1)
    with pytest.raises(UnusableSubject, match=r"Made-1: 9 training trials, .*2 classes among them, got labels \[0\]"):
        eeg.subject_client(found)
    # two classes, but one of them in the last session only
    late = made(run(classes=("left_hand",)), run())
    with pytest.raises(UnusableSubject, match="labels"):
        eeg.subject_client(eeg.trials(late, 1))


# --- covariances and features ---------------------------------------------------------------------------------------


def test_covariances_are_ledoit_and_wolfs(alex, alex_covariances):
    for i in (0, 17, 59):
        expected, _ = ledoit_wolf(alex.x[i].T)  # scikit-learn's
        np.testing.assert_allclose(alex_covariances.matrices[i], expected, rtol=1e-10)
    np.testing.assert_array_equal(eeg.covariances(alex).matrices, alex_covariances.matrices)


def test_tangent_vectors_by_the_formula(alex_covariances):
    # C ↦ upper(log(M^{-1/2} C M^{-1/2})), off-diagonal entries times √2
    train, test = alex_covariances.matrices[:40], alex_covariances.matrices[40:]
    mean = TangentSpace().fit(train).reference_
    x_train, x_test = eeg.features(train, test)
    assert x_train.shape == (40, 136)
    root = np.linalg.inv(scipy.linalg.sqrtm(mean))
    log = scipy.linalg.logm(root @ test[3] @ root)
    rows, columns = np.triu_indices(16)
    expected = log[rows, columns] * np.where(rows == columns, 1, np.sqrt(2))
    np.testing.assert_allclose(np.sort(x_test[3]), np.sort(expected), atol=1e-8)
    # the Riemannian mean is where the training vectors sum to zero; their length is the distance from it
    assert np.abs(x_train.mean(axis=0)).max() < 1e-6
    distance = np.sqrt((np.log(scipy.linalg.eigvalsh(test[3], mean)) ** 2).sum())
    assert np.linalg.norm(x_test[3]) == pytest.approx(distance, rel=1e-9)


def test_tangent_vectors_do_not_depend_on_how_the_electrodes_are_mixed(alex_covariances):
    # affine invariance: C ↦ ACAᵀ turns the tangent space, so inner products stay
    mixing = np.random.default_rng(0).normal(size=(16, 16))
    c = alex_covariances.matrices
    before = eeg.features(c[:40], c[40:])[1]
    c = mixing @ c @ mixing.T
    after = eeg.features(c[:40], c[40:])[1]
    np.testing.assert_allclose(before @ before.T, after @ after.T, atol=1e-4)


def test_the_training_reference_cannot_see_the_test_trials(alex_covariances):
    train, test = alex_covariances.matrices[:40], alex_covariances.matrices[40:]
    other = test[::-1] * 7.0
    for reference, same in (("train", True), ("all", False)):
        vectors = [eeg.features(train, t, "tangent", reference)[0] for t in (test, other)]
        assert np.array_equal(*vectors) == same


def test_changing_test_trials_leaves_the_training_set_of_a_client(alex_covariances):
    before = eeg.subject_client(alex_covariances)
    _, test = eeg.split(alex_covariances.y, alex_covariances.session, alex_covariances.name)
    alex_covariances.matrices[test] *= 3.0
    try:
        after, leaky = (eeg.subject_client(alex_covariances, reference=r) for r in ("train", "all"))
    finally:
        alex_covariances.matrices[test] /= 3.0
    assert (before.x_train == after.x_train).all()
    assert (before.x_test != after.x_test).any()
    assert (before.x_train != leaky.x_train).any()


def test_vectorised_is_the_upper_triangle(alex_covariances):
    c = alex_covariances.matrices
    x_train, x_test = eeg.features(c[:40], c[40:], "vectorised")
    assert x_test.shape == (20, 136)
    np.testing.assert_array_equal(x_train[5, :17], [*c[5, 0, :], c[5, 1, 1]])
    with pytest.raises(ValueError, match="features must be one of 'tangent', 'vectorised', got 'log'"):
        eeg.features(c, c, "log")
    with pytest.raises(ValueError, match="reference must be one of 'train', 'all', got 'test'"):
        eeg.features(c, c, "tangent", "test")


def test_the_last_session_is_the_test_set():
    session = np.array(["0", "0", "1", "1", "1", "2", "2"])
    train, test = eeg.split(np.arange(7) % 2, session, "A-1")
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3, 4], [5, 6])
    at_random = eeg.split(np.arange(8) % 2, np.array(["0"] * 7 + ["1"]), "A-1", by="random")[1]
    assert np.bincount(at_random % 2).tolist() == [1, 1], "a quarter of each class, whatever the session"


def test_one_session_is_split_by_class_and_seed():
    y = np.repeat([1, 2], [20, 40])
    session = np.array(["0"] * 60)
    train, test = eeg.split(y, session, "A-1", seed=0)
    assert sorted([*train, *test]) == list(range(60))
    assert np.bincount(y[test]).tolist() == [0, 5, 10]
    assert eeg.split(y, session, "A-1", seed=0)[1].tolist() == test.tolist()
    for other in (eeg.split(y, session, "A-1", seed=1)[1], eeg.split(y, session, "A-2", seed=0)[1]):
        assert other.tolist() != test.tolist()


# --- federations ----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Recordings of four samples a trial instead of simulated ones; returns the subjects that were read."""
    read = []

    def trials(data, subject, channels=None, band=(8.0, 30.0), classes=CLASSES):
        recordings = data.recordings
        read.append(f"{recordings.name}-{subject}")
        names = tuple(channels or recordings.channels)
        present = [c for c in classes if c in recordings.classes]
        rng = np.random.default_rng(subject)
        n = 2 * len(present) * recordings.n_sessions
        y = np.array([CLASSES.index(present[i % len(present)]) for i in range(n)])
        session = np.repeat([str(s) for s in range(recordings.n_sessions)], n // recordings.n_sessions)
        x = rng.normal(size=(n, len(names), 4))
        return Trials(x, y, session, names, 1.0, read[-1], ("trial 9 left out: hiccups",) * (subject == 2))

    monkeypatch.setattr(eeg, "trials", trials)
    monkeypatch.setattr(eeg, "dataset", lambda name, *a: type("Twin", (), {"recordings": TABLE_S1[name]}))
    return read


@pytest.mark.filterwarnings("ignore::hetfl_core.datasets.eeg.EEGWarning")
def test_54_clients_with_the_widths_of_table_s1(quick):
    federation = eeg.simulated(features="vectorised", progress=False)
    assert len(federation) == 54
    widths = {c.name: c.shapes[0] for c in federation}
    assert set(widths.values()) == {6, 105, 120, 136, 253, 1830}
    for name, recordings in TABLE_S1.items():
        own = [widths[f"{name}-{s}"] for s in range(1, recordings.n_subjects + 1)]
        assert own == [recordings.n_features] * recordings.n_subjects
        labels = federation[f"{name}-1"].y_train.unique().tolist()
        assert [CLASSES[i] for i in labels] == list(recordings.classes)
    assert (federation.name, federation.n_classes) == ("eeg.simulated", 5)
    assert federation.info["simulated"]
    assert federation.info["stand_in"]
    wide = {"data_set": "Weibo2014", "subject": 10, "electrodes": 60, "channels": list(TABLE_S1["Weibo2014"].channels)}
    assert federation.info["subjects"]["Weibo2014-10"] == wide
    assert federation.info["class_names"] == ["left hand", "right hand", "feet", "tongue", "rest"]
    assert sum("hiccups" in " ".join(notes) for notes in federation.info["notes"].values()) == 6, "each second subject"
    json.dumps(dict(federation.info))


@pytest.mark.filterwarnings("ignore::hetfl_core.datasets.eeg.EEGWarning")
def test_40_clients_with_their_own_or_the_common_electrodes(quick):
    own = eeg.federation(b=40, features="vectorised", progress=False)
    common = eeg.federation("common", features="vectorised", progress=False)
    assert [c.name for c in own] == [c.name for c in common]
    assert len(common) == 40
    assert not [c.name for c in common if "BNCI2014-002" in c.name]
    assert {c.shapes for c in common} == {(6,)}
    # the two classes of each client that the published file of common electrodes has
    assert common["AlexMI-1"].y_train.unique().tolist() == [1, 2]
    assert {tuple(c.y_train.unique().tolist()) for c in common if "AlexMI" not in c.name} == {(0, 1)}
    every = eeg.federation("common", classes_per_client=5, datasets="AlexMI", features="vectorised", progress=False)
    assert every["AlexMI-1"].y_train.unique().tolist() == [1, 2, 4]
    assert eeg.subject_covariances("Zhou2016", 1, channels=COMMON_CHANNELS).channels == COMMON_CHANNELS


@pytest.mark.filterwarnings("ignore::hetfl_core.datasets.eeg.EEGWarning")
def test_subjects_with_one_class_are_left_out_and_listed(quick):
    with pytest.warns(EEGWarning, match=r"left out: AlexMI-1: two classes are needed; .*AlexMI has right_hand"):
        federation = eeg.federation(
            datasets=["AlexMI", "Zhou2016"], classes=HANDS, subjects=2, features="vectorised", progress=False
        )
    assert [c.name for c in federation] == ["Zhou2016-1", "Zhou2016-2"]
    assert set(federation.info["left_out"]) == {"AlexMI-1", "AlexMI-2"}
    with pytest.raises(DataError, match=r"no usable subject: AlexMI-1: two classes are needed"):
        eeg.federation(datasets="AlexMI", classes="feet", subjects=1, progress=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "own"}, r"kind must be one of 'specific', 'common', got 'own'"),
        ({"b": 50}, r"b must be 54 or 40.* got b=50 with kind='specific'"),
        ({"kind": "common", "b": 54}, r"40 for kind='common', got b=54"),
        ({"datasets": "AlexMI,Alex"}, r"datasets must be one of 'AlexMI', .*got 'Alex'"),
        ({"kind": "common", "datasets": "BNCI2014-002"}, r"datasets must be one of .*got 'BNCI2014-002'"),
        ({"classes": ["nose"]}, r"classes must be one of 'left_hand', .*got 'nose'"),
        ({"source": "real"}, r"source must be one of 'simulated', 'moabb', got 'real'"),
        ({"features": "log", "datasets": "AlexMI"}, r"features must be one of 'tangent', 'vectorised', got 'log'"),
        ({"split": "half", "datasets": "AlexMI"}, r"split must be one of 'session', 'random', got 'half'"),
    ],
)
def test_bad_arguments(quick, arguments, message):
    with pytest.raises(ValueError, match=message):
        eeg.federation(progress=False, **arguments)


# --- the cache ------------------------------------------------------------------------------------------------------

SMALL = {"datasets": "AlexMI,BNCI2014-004", "subjects": 2, "features": "vectorised", "progress": False}


@pytest.mark.filterwarnings("ignore::hetfl_core.datasets.eeg.EEGWarning")
def test_features_are_computed_once(quick):
    first = eeg.federation(**SMALL)
    assert quick == ["AlexMI-1", "AlexMI-2", "BNCI2014-004-1", "BNCI2014-004-2"]
    with pytest.warns(EEGWarning, match="AlexMI-2: trial 9 left out: hiccups"):  # said again
        again = eeg.federation(**SMALL)
    assert len(quick) == 4
    assert again.fingerprint() == first.fingerprint()
    assert again.info == first.info
    eeg.federation(**SMALL | {"reference": "all"})
    assert len(quick) == 4, "other features of the same covariances"
    for change in ({"seed": 1}, {"band": (8, 12)}, {"classes_per_client": 2, "datasets": "AlexMI"}):
        n = len(quick)
        eeg.federation(**SMALL | change)
        assert len(quick) > n, change


@pytest.mark.filterwarnings("ignore::hetfl_core.datasets.eeg.EEGWarning")
def test_other_settings_of_the_vectors_are_not_served_from_the_cache(quick):
    tangent = SMALL | {"features": "tangent"}
    first = eeg.federation(**tangent).fingerprint()
    for change in ({"features": "vectorised"}, {"reference": "all"}, {"split": "random"}, {"estimator": "oas"}):
        assert eeg.federation(**tangent | change).fingerprint() != first, change
    assert eeg.federation(**tangent).fingerprint() == first


@pytest.mark.filterwarnings("ignore::hetfl_core.datasets.eeg.EEGWarning")
@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nonsense", "half", "flip", "swapped"])
def test_a_damaged_cache_file_is_computed_anew(quick, damage):
    first = eeg.federation(**SMALL)
    files = sorted(eeg.cache_home().glob("*.npz"))
    contents = [path.read_bytes() for path in files]
    for i, (path, content) in enumerate(zip(files, contents)):
        middle = len(content) // 2
        kinds = {"half": content[:middle], "flip": content[:200] + bytes([content[200] ^ 255]) + content[201:]}
        kinds["swapped"] = contents[i - 1]
        path.write_bytes(damage if isinstance(damage, bytes) else kinds[damage])
    again = eeg.federation(**SMALL)
    assert len(quick) == 8
    assert again.fingerprint() == first.fingerprint()
    eeg.federation(**SMALL)
    assert len(quick) == 8, "the files were written again"


def test_a_cache_that_cannot_be_written(quick, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HETFL_CACHE", str(tmp_path / "file"))
    with pytest.warns(EEGWarning, match="features are computed anew each time"):
        assert len(eeg.federation(**SMALL | {"subjects": 1})) == 2


def test_features_of_other_instructions_are_not_taken_from_the_cache(monkeypatch):
    """They differ in their last bits: one machine's cache gave records that no other could repeat."""
    pytest.importorskip("mne")
    real = eeg.numerics.in_effect()
    found = []
    for isa in ("avx2", "avx512"):
        monkeypatch.setattr(eeg.numerics, "in_effect", lambda isa=isa: real | {"numpy": isa})
        eeg._fingerprint.cache_clear()
        found.append(eeg._fingerprint("simulated"))
    eeg._fingerprint.cache_clear()
    assert found[0] != found[1]


def test_the_simulators_code_is_part_of_what_is_cached(monkeypatch):
    files = []
    real = eeg.Path.read_bytes
    monkeypatch.setattr(eeg.Path, "read_bytes", lambda self: files.append(self.name) or real(self))
    for source in ("simulated", "moabb"):
        eeg._fingerprint.__wrapped__(source)
    always = ["eeg.py", "eeg_cutting.py", "eeg_runs.py", "eeg_trials.py", "eeg_vectors.py", "recordings.py", "rng.py"]
    always.append("recordings.toml")
    assert files == [*always, "eeg_head.py", "eeg_simulated.py", *always]


# --- the whole way --------------------------------------------------------------------------------------------------


def test_the_simulated_federation_whole():
    federation = eeg.federation(datasets="AlexMI,BNCI2014-004", subjects=1, progress=False)
    table = federation.describe()
    assert table["shape"].tolist() == ["136", "6"]
    assert table.n_train.tolist() == [45, 576]
    assert table.n_test.tolist() == [15, 144]
    of = eeg.subject_covariances("AlexMI", 1)  # from the cache: what the federation was made of
    assert of.matrices.shape == (60, 16, 16)
    client = eeg.subject_client(of)
    assert (client.x_train == federation["AlexMI-1"].x_train).all()


def test_the_moabb_path_on_what_poses_as_a_recording(monkeypatch):
    twin = eeg.dataset("AlexMI")
    asked = []
    monkeypatch.setattr(moabb.datasets.AlexMI, "data_path", lambda self, subject: asked.append(subject))
    monkeypatch.setattr(
        moabb.datasets.AlexMI, "_get_single_subject_data", lambda self, subject: renumbered(twin, self, subject)
    )
    monkeypatch.setenv("HETFL_DATA", str(eeg.cache_home().parent / "data"))
    federation = eeg.recorded(datasets="AlexMI", subjects=1, progress=False)
    assert asked == [1]
    assert federation.name == "eeg.moabb"
    assert not federation.info["simulated"]
    assert not federation.info["stand_in"]
    expected = eeg.federation(datasets="AlexMI", subjects=1, progress=False)
    assert federation.fingerprint() == expected.fingerprint()
    assert "MOABB_DOWNLOAD_PROVIDER" not in os.environ


def renumbered(twin, real, subject):
    """A simulated subject with the event numbers of the real data set."""
    data = twin._get_single_subject_data(subject)
    numbers = {twin.event_id[name]: real.event_id[name] for name in real.event_id}
    for runs in data.values():
        for raw in runs.values():
            for stim in mne.pick_types(raw.info, stim=True):
                raw._data[stim] = [numbers.get(int(v), 0) for v in raw._data[stim]]
    return data


@pytest.mark.parametrize("name", TABLE_S1)
def test_recordings_out_of_reach(name, monkeypatch, tmp_path):
    def refuse(self, subject):
        assert os.environ["MNE_DATA"] == str(tmp_path / "moabb")
        (tmp_path / "moabb" / "MNE-data" / name).mkdir(parents=True)
        raise ConnectionError("no route to host")

    monkeypatch.setenv("HETFL_DATA", str(tmp_path))
    monkeypatch.setattr(getattr(moabb.datasets, TABLE_S1[name].moabb), "data_path", refuse)
    with pytest.raises(DataError) as caught:
        eeg.recorded(datasets=name, subjects=1, progress=False)
    message = str(caught.value)
    for word in (
        name,
        str(tmp_path / "moabb"),
        "no route to host",
        "http",
        f"import {TABLE_S1[name].moabb}",
        "HETFL_DATA",
    ):
        assert word in message
    assert "MNE_DATA" not in os.environ


def test_recordings_are_looked_for_where_mne_keeps_them(monkeypatch, tmp_path):
    monkeypatch.setenv("HETFL_DATA", str(tmp_path / "data"))
    assert eeg_trials.recordings_home() == tmp_path / "data" / "moabb"
    monkeypatch.setenv("MNE_DATA", str(tmp_path / "mne"))
    assert eeg_trials.recordings_home() == tmp_path / "mne"


# --- the real data sets' metadata against Table S1, without a download ----------------------------------------------

KNOWN = {
    # not electrodes of the 10–05 system; MOABB itself hands CB1 and CB2 over as "misc"
    ("Weibo2014", "sensors"): {"CB1", "CB2", "HEO", "VEO"},
    ("BNCI2014-001", "sensors"): {"EOG1", "EOG2", "EOG3"},
    ("BNCI2014-004", "sensors"): {"EOG1", "EOG2", "EOG3"},
    # imagery of two limbs at once, which FLIC does not use
    ("Weibo2014", "events"): {"hands", "left_hand_right_foot", "right_hand_left_foot"},
}


@pytest.mark.parametrize("name", TABLE_S1)
def test_table_s1_against_moabb(name):
    table = TABLE_S1[name]
    data = getattr(moabb.datasets, table.moabb)()
    about = data.METADATA
    sensors = about.acquisition.sensors
    assert set(table.channels) <= set(sensors)
    assert set(sensors) - set(table.channels) == KNOWN.get((name, "sensors"), set())
    assert about.acquisition.channel_types["eeg"] == len(table.channels)
    assert about.acquisition.sampling_rate == table.rate
    assert len(data.subject_list) == table.n_subjects
    assert data.n_sessions == table.n_sessions
    assert tuple(data.interval) == table.interval
    assert set(data.event_id) - set(table.classes) == KNOWN.get((name, "events"), set())
    assert [c for c in CLASSES if c in data.event_id] == list(table.classes)
    assert eeg_trials.recordings_of(data) is table


def test_subjects_of_bnci2014_002_in_moabb():
    # the article has 13 participants, the published files are of 14, and MOABB reads 14
    assert "13 participants" in moabb.datasets.BNCI2014_002.__doc__
    assert moabb.datasets.BNCI2014_002().subject_list == list(range(1, 15))


def test_trials_of_table_s1_against_moabb():
    structure = {name: getattr(moabb.datasets, t.moabb).METADATA.data_structure for name, t in TABLE_S1.items()}
    for name in ("AlexMI", "BNCI2014-002"):
        assert set(structure[name].n_trials_per_class.values()) == {TABLE_S1[name].n_trials}
    per_session = structure["BNCI2014-001"].n_trials["training"]
    assert 2 * per_session == 4 * TABLE_S1["BNCI2014-001"].n_trials
    sessions = structure["BNCI2014-004"].n_trials
    assert 2 * sessions["screening"] + 3 * sessions["feedback"] == 2 * TABLE_S1["BNCI2014-004"].n_trials
    assert structure["Weibo2014"].n_trials == 7 * TABLE_S1["Weibo2014"].n_trials
    # Zhou2016: 25 trials of a class a run, two runs, three sessions make 150; the table of MOABB, and Table S1, say 160
    assert 6 * structure["Zhou2016"].n_trials_per_class["feet"] == 150
    assert TABLE_S1["Zhou2016"].n_trials == 160


# --- the real recording ---------------------------------------------------------------------------------------------

real = pytest.mark.realdata("eeg.eegmmidb")


def leave_one_run_out(found, reference="train", y=None):
    """Share of trials that a logistic regression on tangent vectors of the other two runs has right."""
    y = found.y if y is None else y
    matrices, right = eeg.covariances(found).matrices, 0
    for session in np.unique(found.session):
        train, test = found.session != session, found.session == session
        x_train, x_test = eeg.features(matrices[train], matrices[test], "tangent", reference)
        right += (LogisticRegression(max_iter=1000).fit(x_train, y[train]).predict(x_test) == y[test]).sum()
    return right / len(y)


@real
def test_the_recording_and_its_marks():
    raw = eegmmidb.raw([4, 8])
    assert raw.info["sfreq"] == 160.0
    assert len(raw.ch_names) == 64
    assert {"Fp1", "FCz", "Cz", "Iz", "T9"} <= set(raw.ch_names)
    assert raw.get_montage() is not None
    marks = list(raw.annotations.description)
    assert marks.count("T0") == 30
    assert marks.count("T1") + marks.count("T2") == 30


@real
def test_trials_of_the_recording_by_mne_alone():
    found = eegmmidb.trials("fists_feet")
    assert found.x.shape == (45, 64, 4 * 160 + 1)
    assert found.session.tolist() == ["0run6"] * 15 + ["1run10"] * 15 + ["2run14"] * 15
    raw = eegmmidb.raw(10).filter(8, 30, method="iir", verbose=False)
    events, _ = mne.events_from_annotations(raw, {"T1": 2, "T2": 3}, verbose=False)
    epochs = mne.Epochs(raw, events, tmin=0, tmax=4, baseline=None, preload=True, verbose=False)
    np.testing.assert_allclose(found.x[15:30], 1e6 * epochs.get_data(copy=False), atol=1e-9)
    np.testing.assert_array_equal(found.y[15:30], events[:, 2])
    assert [eegmmidb.CLASSES[i] for i in (2, 3)] == ["hands", "feet"]


@real
def test_the_real_recording_can_be_told_apart_and_chance_cannot():
    feet, hands = eegmmidb.trials("fists_feet"), eegmmidb.trials("hands", channels=CAP[:3])
    assert set(hands.y) == {0, 1}
    assert leave_one_run_out(feet) > 0.8
    assert leave_one_run_out(hands) > 0.62, "more than chance, 5 % level of 45 trials"
    rng = np.random.default_rng(0)
    shuffled = [leave_one_run_out(hands, y=rng.permutation(hands.y)) for _ in range(8)]
    assert 0.35 < np.mean(shuffled) < 0.65


@real
def test_rest_is_a_class_too():
    found = eegmmidb.trials("hands", channels=CAP[:3], rest=True)
    assert np.bincount(found.y).tolist() == [23, 22, 0, 0, 45]


@real
def test_the_federation_of_one_person():
    federation = eegmmidb.one_person()
    assert federation.name == "eeg.eegmmidb"
    assert len(federation) == 8
    assert not federation.info["simulated"]
    assert federation.info["one_person"]
    assert {c.shapes[0] for c in federation} == {6, 105, 120, 136, 253}
    assert {(c.n_train, c.n_test) for c in federation} == {(30, 15)}
    assert {tuple(c.y_train.unique().tolist()) for c in federation} == {(0, 1), (2, 3)}
    json.dumps(dict(federation.info))
    # two views of a task are tested on the same run, and no view has learnt from it
    first, second = (federation[f"imagined-hands-{cap}"] for cap in ("BNCI2014-004", "AlexMI"))
    assert (first.y_test == second.y_test).all()
    assert (first.y_train == second.y_train).all()


@real
def test_the_federation_of_one_person_depends_on_the_seed_only_if_split_at_random(monkeypatch):
    monkeypatch.setattr(eegmmidb, "CLIENTS", eegmmidb.CLIENTS[:1])
    monkeypatch.setattr(eegmmidb, "trials", functools.cache(eegmmidb.trials))
    assert eegmmidb.one_person(seed=1).fingerprint() == eegmmidb.one_person().fingerprint()
    seeds = [eegmmidb.one_person(split="random", seed=seed).fingerprint() for seed in (0, 1)]
    assert seeds[0] != seeds[1]


def test_a_covariance_is_singular_beside_its_largest_eigenvalue():
    found = np.stack([np.diag([1e-4, 1.0, 1e7]), np.diag([1e-6, 1.0, 1e7])])
    eeg_vectors._check_positive(found[:1], "anna", 3, "scm")
    with pytest.raises(DataError, match="anna: covariances of trial 1 are not positive definite"):
        eeg_vectors._check_positive(found, "anna", 3, "scm")
