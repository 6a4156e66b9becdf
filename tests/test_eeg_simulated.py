import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import signal
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hetfl_core.datasets import eeg_head, eeg_simulated
from hetfl_core.datasets.eeg_head import AREAS, SOURCES, Physiology, ground_truth, leadfield
from hetfl_core.datasets.eeg_simulated import coloured, subject_raw
from hetfl_core.datasets.recordings import CLASSES, TABLE_S1, Recordings
from hetfl_core.datasets.registry import DataError

pytest.importorskip("mne")
pytest.importorskip("moabb")
pytest.importorskip("pyriemann")

CHANNELS = "Fpz Fz C3 Cz C4 T7 T8 Pz O1 Oz O2"
LAB = Recordings("Lab", "", 3, tuple(CHANNELS.split()), 250.0, CLASSES, 30, 1, (2.0, 6.0))
"""A recording of our own: every class, and electrodes over every source."""

USUAL = Physiology()
CLEAR = Physiology(erd=(0.6, 0.6), ipsilateral=(0.0, 0.0), surround=(0.0, 0.0), elsewhere=1.0, lapse=0.0)
"""Everybody has a clear ERD, in one place only, in every trial."""


def paradigm(recordings, **options):
    from moabb.paradigms import MotorImagery

    classes = list(recordings.classes)
    return MotorImagery(**{"n_classes": len(classes), "events": classes, "fmin": 8, "fmax": 30} | options)


def trials(recordings, subject, settings=USUAL, seed=0, **options):
    """Epochs (µV), labels and sessions of a subject, by MOABB."""
    dataset = eeg_simulated.twin(recordings, seed, settings)
    x, y, about = paradigm(recordings, **options).get_data(dataset, [subject])
    return x, y, about["session"].to_numpy()


def power(x):
    """Mean square over time, (n, q)."""
    return np.square(x - x.mean(axis=-1, keepdims=True)).mean(axis=-1)


def test_desynchronisation_comes_after_the_cue_and_goes_after_the_imagery():
    """From 0 to 1 within `rise` seconds of cue + latency and back within as many of the end, half way in the middle."""
    cue, end = LAB.interval
    course = eeg_simulated._course(0.2, LAB, 0.4)
    expected = {0: 0, cue + 0.2: 0, cue + 0.4: 0.5, cue + 0.6: 1, end: 1, end + 0.2: 0.5, end + 0.396: 0}
    for time, value in expected.items():
        assert course[round(time * LAB.rate)] == pytest.approx(value, abs=1e-3)


# --- the head ------------------------------------------------------------------------------------------------------


def test_a_head_twice_as_large_sees_a_quarter_of_the_potential():
    # The potential of a dipole solves Poisson's equation with a source p·∇δ: under x → c x it scales with 1/c².
    truth = ground_truth(LAB, 1)
    where, way = truth.person.positions, truth.person.orientations
    radius = truth.person.radius
    small = leadfield(LAB.channels, radius, where, way)
    large = leadfield(LAB.channels, 2 * radius, 2 * where, way)
    np.testing.assert_allclose(large, small / 4, atol=1e-4 * np.abs(small).max())


def test_sources_lie_as_deep_as_told_and_the_feet_deeper():
    settings = Physiology(depth=15.0, depth_feet=25.0)
    lengths = np.linalg.norm(eeg_head._nominal_positions(90.0, settings), axis=1)
    expected = [90 - 25 if source == "feet" else 90 - 15 for source in SOURCES]
    np.testing.assert_allclose(lengths, expected, rtol=1e-6)


@pytest.mark.parametrize(("drawn", "expected"), [(-9.0, 6.0), (0.5, 11.0), (9.0, 14.0)])
def test_nobody_is_farther_from_the_mean_than_two_standard_deviations(drawn, expected):
    rng = SimpleNamespace(standard_normal=lambda: drawn)
    assert eeg_head.Spread(10.0, 2.0).draw(rng) == expected


def test_potentials_add_up_and_do_not_depend_on_the_other_electrodes():
    truth = ground_truth(LAB, 1)
    where, way, radius = truth.person.positions[:3], truth.person.orientations[:3], truth.person.radius
    gains = leadfield(("C3", "O2", "C3"), radius, where, way)
    np.testing.assert_allclose(gains, leadfield(LAB.channels, radius, where, way)[[2, 10, 2]], rtol=1e-5)
    # A dipole of a tilted direction is the sum of its parts along the axes.
    parts = leadfield(("C3",), radius, np.repeat(where[:1], 3, axis=0), np.eye(3))
    np.testing.assert_allclose(parts @ way[0], gains[0, :1], rtol=1e-4)


def test_gains_are_microvolts_per_nanoampere_metre():
    """A dipole p at r below an electrode, in an endless medium of 0.33 S/m: p / (4π σ r²); the skull changes that."""
    radius, depth = 90.0, 20.0
    up = np.array([[0.0, 0.0, 1.0]])
    (gain,) = leadfield(("Cz",), radius, (radius - depth) * up, up)[:, 0]
    endless = 1e-9 / (4 * np.pi * 0.33 * (depth * 1e-3) ** 2) * 1e6
    assert 1 / 3 < gain / endless < 3


def test_the_first_world_is_drawn_unless_told():
    for draw in (eeg_head.person, lambda *which: ground_truth(*which).person):
        usual, first, other = (draw(LAB, 1, *seed).positions for seed in ((), (0,), (1,)))
        assert np.array_equal(usual, first)
        assert not np.array_equal(usual, other)


@pytest.mark.parametrize(
    ("source", "electrode"),
    [("hand C3", "C3"), ("hand C4", "C4"), ("feet", "Cz"), ("tongue left", "T7"), ("tongue right", "T8")],
)
def test_a_source_is_seen_best_by_the_electrode_above_it(source, electrode):
    for subject in (1, 2, 3):
        topography = np.abs(ground_truth(LAB, subject).topographies[:, SOURCES.index(source)])
        assert LAB.channels[topography.argmax()] == electrode


def test_blinks_are_frontal_and_alpha_is_occipital():
    truth = ground_truth(LAB, 1)
    seen = dict(zip(LAB.channels, truth.topographies[:, 7:].sum(axis=1)))
    assert seen["Fpz"] > 1.5 * seen["Fz"] > 2 * abs(seen["Cz"])
    assert seen["Fpz"] == pytest.approx(USUAL.blink, rel=0.5)
    alpha = dict(zip(LAB.channels, np.abs(truth.topographies[:, 5:7]).sum(axis=1)))
    assert min(alpha["O1"], alpha["O2"]) > 3 * alpha["Cz"]


def test_the_erd_sits_where_the_homunculus_says():
    table = {
        label: dict(zip(AREAS, row)) for label, row in zip(LAB.classes, ground_truth(LAB, 1).person.erd, strict=True)
    }
    assert set(table["rest"].values()) == {0.0}
    assert table["right_hand"]["hand C3"] == table["left_hand"]["hand C4"] > table["left_hand"]["hand C3"] >= 0
    assert max(table["feet"], key=table["feet"].get) == "feet"
    assert table["tongue"]["tongue left"] == table["tongue"]["tongue right"] > abs(table["tongue"]["feet"])


# --- signals -------------------------------------------------------------------------------------------------------


def test_coloured_noise_has_the_asked_spectrum():
    n, rate = 60_000, 250.0
    frequencies = np.fft.rfftfreq(n, 1 / rate)
    density = np.array([np.exp(-0.5 * ((frequencies - 20) / 4) ** 2), 3.0 / (1 + frequencies)])
    x = coloured(np.random.default_rng(0), density, n, rate)
    assert x.dtype == np.float32
    assert x.shape == (2, n)
    np.testing.assert_allclose(x.var(axis=1), density.sum(axis=1) * rate / n, rtol=0.05)
    found, welch = signal.welch(x, rate, nperseg=1000)
    inner = (found > 10) & (found < 30)
    expected = np.array([np.interp(found[inner], frequencies, d) for d in density])
    np.testing.assert_allclose(welch[:, inner], expected, rtol=0.35)
    assert abs(np.corrcoef(x)[0, 1]) < 0.02


def test_the_covariance_is_that_of_the_sources_and_the_background():
    # At rest Σ = B + Σ_k t_k t_kᵀ, with (β/μ)² more power of the motor areas than of μ alone.
    settings = Physiology(trial=0.0, session=0.0, gain=0.0, blink=0.0, mains=0.0, sensor=0.0)
    recordings = replace(LAB, classes=("rest",), n_trials=48)
    truth = ground_truth(recordings, 1, 0, settings)
    x = subject_raw(recordings, 1, 0, settings)["0"]["0"].get_data(picks="eeg") * 1e6
    spectrum, frequencies = np.fft.rfft(x), np.fft.rfftfreq(x.shape[1], 1 / 250)
    inner = spectrum[:, (frequencies >= 0.5) & (frequencies <= 100)]
    found = 2 * (inner @ inner.conj().T).real / x.shape[1] ** 2
    seen = truth.topographies[:, :7] * np.r_[np.full(5, np.hypot(1, settings.beta / settings.mu)), 1, 1]
    expected = truth.background + seen @ seen.T
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)


@cache
def at_rest():
    """Spectrum of a person at rest, µV²/Hz, by channel."""
    recordings = replace(LAB, classes=("rest",), n_trials=40)
    raw = subject_raw(recordings, 1)["0"]["0"]
    frequencies, density = signal.welch(raw.get_data(picks="eeg") * 1e6, 250.0, nperseg=1000)
    return frequencies, dict(zip(recordings.channels, density))


def mean_density(channel, low, high):
    frequencies, density = at_rest()
    return density[channel][(frequencies >= low) & (frequencies <= high)].mean()


@pytest.mark.parametrize(("hand", "column"), [("C3", 0), ("C4", 1)])
def test_mu_is_a_peak_above_the_hands_at_rest(hand, column):
    someone = ground_truth(replace(LAB, classes=("rest",), n_trials=40), 1).person
    frequencies, density = at_rest()
    inner = (frequencies > 6) & (frequencies < 15)
    assert frequencies[inner][density[hand][inner].argmax()] == pytest.approx(someone.mu_peak, abs=1.0)
    assert density[hand][inner].max() > 2 * max(mean_density(hand, 5, 7), mean_density(hand, 14, 16))


def test_the_background_falls_as_one_over_f():
    someone = ground_truth(replace(LAB, classes=("rest",), n_trials=40), 1).person
    frequencies, density = at_rest()
    free = ((frequencies >= 2) & (frequencies <= 5)) | ((frequencies >= 32) & (frequencies <= 46))
    slope = np.polyfit(np.log(frequencies[free]), np.log(density["Pz"][free]), 1)[0]
    assert slope == pytest.approx(-someone.slope, abs=0.25)


def test_there_is_a_line_of_the_mains():
    for channel in LAB.channels:
        assert mean_density(channel, 49.7, 50.3) > 4 * mean_density(channel, 52, 58)


# --- what the trials show ------------------------------------------------------------------------------------------


@cache
def change_of_power():
    """Power in the band during imagery as a part of that before the cue: {class: {channel: ratio}}."""
    x, y, _ = trials(LAB, 1, CLEAR, tmin=-2.0, tmax=4.0)
    before, during = power(x[..., :500]), power(x[..., 750:])
    ratio = {label: during[y == label].mean(axis=0) / before[y == label].mean(axis=0) for label in CLASSES}
    return {label: dict(zip(LAB.channels, values)) for label, values in ratio.items()}


@pytest.mark.parametrize(
    ("label", "electrode", "other"),
    [("right_hand", "C3", "C4"), ("left_hand", "C4", "C3"), ("feet", "Cz", "C3"), ("tongue", "T7", "Cz")],
)
def test_power_falls_at_the_right_electrode(label, electrode, other):
    ratio = change_of_power()[label]
    assert ratio[electrode] < 0.75
    assert ratio[electrode] < ratio[other] - 0.15
    assert 0.75 < change_of_power()["rest"][electrode] < 1.3


@pytest.mark.parametrize(("fmin", "fmax"), [(8, 12), (16, 26)])
def test_power_falls_in_mu_and_in_beta(fmin, fmax):
    recordings = replace(LAB, classes=("left_hand", "right_hand"), n_trials=96)
    x, y, _ = trials(recordings, 2, CLEAR, tmin=1.0, tmax=4.0, fmin=fmin, fmax=fmax)
    c3, c4 = (np.log(power(x))[:, LAB.channels.index(c)] for c in ("C3", "C4"))
    right, left = (c3 - c4)[y == "right_hand"], (c3 - c4)[y == "left_hand"]
    assert right.mean() < left.mean() - 4 * np.sqrt(right.var() / len(right) + left.var() / len(left))


def test_the_background_lies_at_the_depth_of_the_cortex():
    one = eeg_head.person(TABLE_S1["AlexMI"], 1)
    np.testing.assert_allclose(np.linalg.norm(one.others, axis=1), one.radius - Physiology().depth)


def test_a_run_ends_two_seconds_after_its_last_trial():
    """And a little later, where that makes its Fourier transform faster."""
    recordings = TABLE_S1["AlexMI"]
    plan = eeg_simulated._plan(np.random.default_rng(0), np.zeros(9, np.int64), recordings, Physiology())
    assert plan.starts[0] == 2 * recordings.rate
    after = plan.n / recordings.rate - plan.starts[-1] / recordings.rate - recordings.interval[1]
    assert 2.0 <= round(after, 2) < 3.0


@cache
def nine_persons():
    """Covariances of the trials of nine persons with three electrodes, labels, and which are of the first session."""
    from pyriemann.estimation import covariances

    recordings = replace(TABLE_S1["BNCI2014-004"], n_trials=80, n_sessions=2)
    people = [trials(recordings, subject) for subject in range(1, 10)]
    return [(covariances(x, "lwf"), y, session == "0") for x, y, session in people]


def accuracy(covariance, y, train):
    """Of tangent space and logistic regression, with the last session as test."""
    from pyriemann.tangentspace import TangentSpace

    model = make_pipeline(TangentSpace(), StandardScaler(), LogisticRegression())
    return model.fit(covariance[train], y[train]).score(covariance[~train], y[~train])


@pytest.mark.nightly
def test_a_riemannian_classifier_does_as_well_as_on_real_persons():
    # The nine real persons of BNCI2014-004 have 0.54 to 0.93, mean 0.72, with the same electrodes and classifier.
    scores = [accuracy(*someone) for someone in nine_persons()]
    assert 0.62 < np.mean(scores) < 0.82
    assert min(scores) < 0.65
    assert 0.75 < max(scores) < 0.98


def test_permuted_labels_leave_chance():
    # Nine times 80 test trials: a standard error of 0.019.
    rng = np.random.default_rng(0)
    scores = [accuracy(covariance, rng.permutation(y), train) for covariance, y, train in nine_persons()]
    assert np.mean(scores) == pytest.approx(0.5, abs=0.05)


# --- recordings ----------------------------------------------------------------------------------------------------


def test_54_subjects_with_the_widths_of_table_s1():
    datasets = [eeg_simulated.twin(name) for name in TABLE_S1]
    assert sum(len(d.subject_list) for d in datasets) == 54
    assert [d.recordings.n_features for d in datasets] == [136, 253, 120, 6, 1830, 105]
    for name, dataset in zip(TABLE_S1, datasets):
        assert dataset.code == f"Simulated-{name}-seed0"
        assert tuple(dataset.event_id) == TABLE_S1[name].classes
        assert dataset.n_sessions == TABLE_S1[name].n_sessions


@pytest.mark.parametrize("name", ["AlexMI", "Zhou2016"])
def test_a_recording_has_its_channels_rate_and_trials(name):
    recordings = TABLE_S1[name]
    raws = subject_raw(recordings, 2)
    assert list(raws) == [str(s) for s in range(recordings.n_sessions)]
    seen = Counter()
    for runs in raws.values():
        for raw in runs.values():
            assert raw.ch_names == [*recordings.channels, "STI"]
            assert raw.info["sfreq"] == recordings.rate
            assert raw.get_montage() is not None
            seen.update(raw.get_data(picks="stim")[0].astype(int))
    del seen[0]
    assert seen == {1 + CLASSES.index(label): recordings.n_trials for label in recordings.classes}


def test_moabb_takes_it_as_it_takes_a_real_one():
    recordings = TABLE_S1["Zhou2016"]
    x, y, session = trials(recordings, 1)
    assert x.shape == (480, 14, 1251)
    assert Counter(y) == {label: 160 for label in recordings.classes}
    assert Counter(session) == {"0": 162, "1": 159, "2": 159}
    assert 2 < np.sqrt(power(x).mean()) < 20  # µV
    assert np.linalg.eigvalsh(np.cov(x[0])).min() > 1e-3


def test_a_wide_recording_fits_the_paradigm_too():
    x, y, _ = trials(replace(TABLE_S1["Weibo2014"], n_trials=6), 10)
    assert x.shape == (24, 60, 801)
    assert len(set(y)) == 4


def first_samples(seed=0, subject=1, recordings=LAB):
    return subject_raw(replace(recordings, n_trials=2), subject, seed)["0"]["0"].get_data()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    first = first_samples()
    ground_truth.cache_clear()
    assert first.tobytes() == first_samples().tobytes()
    other_name = replace(LAB, name="Other")
    for other in (first_samples(seed=1), first_samples(subject=2), first_samples(recordings=other_name)):
        n = min(first.shape[1], other.shape[1])
        assert abs(np.corrcoef(first[0, :n], other[0, :n])[0, 1]) < 0.2


def test_a_subject_does_not_depend_on_which_others_are_made():
    few = replace(TABLE_S1["BNCI2014-004"], n_trials=10)
    together = eeg_simulated.twin(few).get_data([1, 2, 3])
    for session, runs in subject_raw(few, 3).items():
        np.testing.assert_array_equal(runs["0"].get_data(), together[3][session]["0"].get_data())


def test_electrodes_drift_between_sessions():
    def change(gain):  # of the electrodes' levels, as logarithms, where only their own noise is heard
        quiet = Physiology(background=1e-6, mu=1e-6, beta=1e-6, alpha=1e-6, blink=1e-6, mains=1e-6, gain=gain)
        raws = subject_raw(replace(LAB, n_sessions=2), 1, settings=quiet)
        levels = [np.log(runs["0"].get_data(picks="eeg").std(axis=1)) for runs in raws.values()]
        return np.abs(levels[0] - levels[1]).max()

    assert change(0.3) > 0.1
    assert change(0.0) < 0.03


def test_the_code_tells_settings_apart():
    codes = {
        eeg_simulated.twin("AlexMI").code,
        eeg_simulated.twin("AlexMI", seed=1).code,
        eeg_simulated.twin("AlexMI", settings=Physiology(mu=1.0)).code,
        eeg_simulated.twin(replace(TABLE_S1["AlexMI"], n_trials=10)).code,
    }
    assert len(codes) == 4


def test_moabb_has_nothing_to_say_about_the_names(caplog):
    eeg_simulated.twin(replace(TABLE_S1["Zhou2016"], n_subjects=2))
    assert "abbreviation" not in caplog.text


def test_what_is_asked_wrongly_is_named():
    with pytest.raises(ValueError, match=r"Lab: expected a subject in 1…3, got 4"):
        subject_raw(LAB, 4)
    with pytest.raises(ValueError, match=r"Lab: expected at least one trial per class in each of 2 sessions, got 1"):
        subject_raw(replace(LAB, n_trials=1, n_sessions=2), 1)
    with pytest.raises(DataError, match=r"EEG7, EEG9.*10–05"):
        subject_raw(replace(LAB, channels=("C3", "EEG7", "EEG9")), 1)
    with pytest.raises(ValueError, match=r"Lab: expected classes among .*got \['hands'\]"):
        subject_raw(replace(LAB, classes=("hands", "rest")), 1)


@pytest.mark.nightly
def test_importing_needs_neither_mne_nor_moabb():
    code = (
        "import sys, hetfl_core.datasets.eeg_simulated as e; from hetfl_core.datasets.recordings import TABLE_S1;"
        "e.Physiology(); assert not {'mne', 'moabb', 'pyriemann'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("subject", [0, LAB.n_subjects + 1])
def test_a_subject_that_is_not_there(subject):
    with pytest.raises(ValueError, match=f"Lab: expected a subject in 1…{LAB.n_subjects}, got {subject}"):
        eeg_head.person(LAB, subject)
    assert eeg_head.person(LAB, LAB.n_subjects)
