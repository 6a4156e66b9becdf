"""Simulated motor-imagery EEG, seen through the electrodes of the six recordings of FLIC's Table S1.

The persons and their heads are those of `hetfl_core.datasets.eeg_head`. Around the rhythms that weaken while they
imagine a movement is what makes a recording one: occipital alpha, 1/f background of many dipoles, sensor noise, the
mains and blinks. Sessions differ in gains and in the strength of the day's rhythms. Nobody's data depend on who else is
made: each has a stream of its own.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core.datasets.eeg_head import (
    AREAS,
    MICRO,
    N_ALPHA,
    N_RHYTHMS,
    USUAL,
    Array,
    Person,
    Physiology,
    Truth,
    channel_info,
    ground_truth,
    mne_module,
)
from hetfl_core.datasets.recordings import CLASSES, TABLE_S1, Recordings, need
from hetfl_core.rng import numpy_stream

__all__ = ["subject_raw"]


Array32 = NDArray[np.float32]
Raws = dict[str, dict[str, Any]]

_LOW, _HIGH = 0.5, 100.0


# --- signals -------------------------------------------------------------------------------------------------------


def coloured(rng: np.random.Generator, density: Array, n: int, rate: float) -> Array32:
    """Stationary Gaussian signals of given power spectra.

    Parameters
    ----------
    rng : numpy.random.Generator
    density : array, shape (k, n // 2 + 1)
        One-sided power densities at the frequencies of ``numpy.fft.rfftfreq(n, 1 / rate)``, µV²/Hz.
    n : int
        Number of samples.
    rate : float
        Hz.

    Returns
    -------
    array, shape (k, n), float32
        µV; independent rows. They are periodic: the end of a row leads smoothly into its begin.
    """
    import scipy.fft

    # A bin of z ~ N(0, 1) + i N(0, 1) with weight a adds 4 a²/n² to the variance, and shall add density × rate / n.
    weights = np.sqrt(density * (rate * n / 4)).astype(np.float32)
    spectrum = rng.standard_normal((*density.shape, 2), dtype=np.float32).view(np.complex64)[..., 0]
    spectrum *= weights
    return scipy.fft.irfft(spectrum, n, axis=-1, overwrite_x=True)


def _bump(frequencies: Array, peak: float, width: float) -> Array:
    """A Gaussian density around a peak, of total power 1."""
    return np.exp(-0.5 * ((frequencies - peak) / width) ** 2) / (width * math.sqrt(2 * math.pi))


def _falling(frequencies: Array, slope: float) -> Array:
    """1/f^slope above 1 Hz and flat below, of power 1 between 0.5 and 100 Hz, and nothing at 0 Hz."""
    density = np.maximum(frequencies, 1.0) ** -slope
    counted = (frequencies >= _LOW) & (frequencies <= _HIGH)
    density[0] = 0.0
    return density / (density[counted].sum() * frequencies[1])


def _rhythm_density(frequencies: Array, someone: Person, settings: Physiology) -> Array:
    """Densities of the motor and alpha sources, shape (7, n_frequencies), in units of μ's and alpha's power."""
    beta = (settings.beta / settings.mu) ** 2 * _bump(frequencies, someone.beta_peak, settings.beta_width)
    motor = _bump(frequencies, someone.mu_peak, settings.mu_width) + beta
    alpha = _bump(frequencies, someone.alpha_peak, settings.mu_width)
    return np.array([motor] * len(AREAS) + [alpha] * N_ALPHA)


@dataclass(frozen=True, eq=False)
class _Day:
    """A session: gains of the electrodes (q,), factors of the rhythms (7,), mains at the electrodes (q,), µV."""

    gain: Array
    rhythms: Array
    mains: Array


@dataclass(frozen=True, eq=False)
class _Plan:
    """Trials of a run: their first samples, indices of their classes, and the number of samples of the run."""

    starts: NDArray[np.int64]
    labels: NDArray[np.int64]
    n: int


def _plan(rng: np.random.Generator, labels: NDArray[np.int64], recordings: Recordings, settings: Physiology) -> _Plan:
    """Shuffle the trials of a run and put pauses between them; the first and the last have 2 s to the ends."""
    from scipy.fft import next_fast_len

    length = recordings.interval[1] + rng.uniform(*settings.pause, len(labels))
    starts = 2.0 + np.r_[0.0, np.cumsum(length)[:-1]]
    n = next_fast_len(round((starts[-1] + recordings.interval[1] + 2.0) * recordings.rate), real=True)
    return _Plan(np.round(starts * recordings.rate).astype(np.int64), rng.permutation(labels), n)


def _envelopes(
    rng: np.random.Generator, plan: _Plan, someone: Person, recordings: Recordings, settings: Physiology
) -> Array32:
    """Amplitude of each motor and alpha source at each sample of a run, shape (7, n), around 1."""
    common, own = rng.standard_normal(len(plan.labels)), rng.standard_normal((N_RHYTHMS, len(plan.labels)))
    swings = settings.trial * (common + own) / math.sqrt(2)  # half of the variance is common to all
    time = np.arange(plan.n)
    envelopes = np.exp(np.array([np.interp(time, plan.starts, swing) for swing in swings], dtype=np.float32))
    envelopes[: len(AREAS)] *= 1 - _losses(rng, plan, someone, recordings, settings)
    return envelopes


def _losses(
    rng: np.random.Generator, plan: _Plan, someone: Person, recordings: Recordings, settings: Physiology
) -> Array32:
    """Part of the amplitude that each motor area has lost at each sample, shape (5, n)."""
    awake = rng.random(len(plan.labels)) >= settings.lapse
    shape = _course(someone.latency, recordings, settings.rise)
    losses = np.zeros((len(AREAS), plan.n), dtype=np.float32)
    for start, label in zip(plan.starts[awake], plan.labels[awake]):
        part = losses[:, start : start + len(shape)]
        part += np.outer(someone.erd[label], shape[: part.shape[1]])
    return losses


def _course(latency: float, recordings: Recordings, rise: float) -> Array:
    """ERD after the start of a trial: 0, a smooth onset after the cue, 1, and a smooth end after the imagery."""
    cue, end = recordings.interval
    time = np.arange(0, end + rise, 1 / recordings.rate)
    return _step(time - cue - latency, rise) - _step(time - end, rise)


def _step(time: Array, rise: float) -> Array:
    return 0.5 - 0.5 * np.cos(math.pi * np.clip(time / rise, 0, 1))


def _blinks(rng: np.random.Generator, n: int, rate: float, settings: Physiology) -> Array32:
    """Heights of blinks, 1 at the peak, shape (n,)."""
    pulse = np.hanning(round(settings.blink_length * rate)).astype(np.float32)
    signal = np.zeros(n, dtype=np.float32)
    for start in rng.integers(0, n - len(pulse), rng.poisson(settings.blink_rate * n / rate / 60)):
        signal[start : start + len(pulse)] += pulse * np.float32(rng.uniform(0.6, 1.4))
    return signal


def _mains(rng: np.random.Generator, n: int, rate: float, frequency: float) -> Array32:
    """A sinusoid of root mean square 1, shape (n,)."""
    phase = rng.uniform(0, 2 * math.pi)
    return (math.sqrt(2) * np.sin(2 * math.pi * frequency / rate * np.arange(n) + phase)).astype(np.float32)


# --- recordings ----------------------------------------------------------------------------------------------------


def subject_raw(recordings: Recordings, subject: int, seed: int = 0, settings: Physiology = USUAL) -> Raws:
    """Simulate one subject's recording.

    Parameters
    ----------
    recordings : Recordings
        Electrodes, rate, classes, sessions and trials: a value of `TABLE_S1`, or one of your own.
    subject : int
        Number from 1.
    seed : int
        Of the whole simulation. The subject is a function of it, of the recording's name and of its own number.
    settings : Physiology
        Constants of the simulation.

    Returns
    -------
    dict
        Session → run → `mne.io.RawArray`, both named ``"0"``, ``"1"``, …. Channels: the recording's electrodes, V, and
        ``"STI"``, which at the first sample of a trial is 1 + the place of its class in `CLASSES`.

    Raises
    ------
    DataError
        If an electrode is not in the 10–05 system, or MNE is not installed.
    ValueError
        If there is no such subject or class.
    """
    truth = ground_truth(recordings, subject, seed, settings)
    return {str(s): _session(recordings, truth, s, seed, settings) for s in range(recordings.n_sessions)}


def _session(recordings: Recordings, truth: Truth, session: int, seed: int, settings: Physiology) -> dict[str, Any]:
    """Simulate the runs of one session."""
    name, n_channels = truth.person.name, len(recordings.channels)
    rng = numpy_stream(seed, name, session, "session")
    day = _Day(
        gain=np.exp(settings.gain * rng.standard_normal(n_channels)),
        rhythms=np.exp(settings.session * rng.standard_normal(N_RHYTHMS)),
        mains=settings.mains * np.exp(0.3 * rng.standard_normal(n_channels)),
    )
    return {
        str(run): _run(recordings, truth, day, labels, numpy_stream(seed, name, session, f"run:{run}"), settings)
        for run, labels in enumerate(_labels(recordings, session, settings.trials_per_run))
    }


def _labels(recordings: Recordings, session: int, trials_per_run: int) -> list[NDArray[np.int64]]:
    """Classes of the trials of each run of a session; dealt in turn, so that each run holds all of them."""
    n = recordings.n_trials // recordings.n_sessions + (session < recordings.n_trials % recordings.n_sessions)
    labels = np.tile(np.arange(len(recordings.classes)), n)
    return np.array_split(labels, math.ceil(len(labels) / trials_per_run))


def _run(
    recordings: Recordings,
    truth: Truth,
    day: _Day,
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    settings: Physiology,
) -> Any:
    """Simulate one run as MNE sees it: the electrodes (V) and the trigger."""
    plan = _plan(rng, labels, recordings, settings)
    data = np.zeros((len(recordings.channels) + 1, plan.n))
    np.multiply(_microvolts(rng, plan, recordings, truth, day, settings), MICRO, out=data[:-1])
    data[-1, plan.starts] = [1 + CLASSES.index(recordings.classes[label]) for label in plan.labels]
    types = ["eeg"] * len(recordings.channels) + ["stim"]
    info = channel_info([*recordings.channels, "STI"], recordings.rate, types)
    info["line_freq"] = settings.mains_frequency
    return mne_module().io.RawArray(data, info, verbose="error")


def _microvolts(
    rng: np.random.Generator, plan: _Plan, recordings: Recordings, truth: Truth, day: _Day, settings: Physiology
) -> Array32:
    """Signals of the electrodes, µV, shape (q, n): every source times its topography, in one product."""
    frequencies = np.arange(plan.n // 2 + 1) * (recordings.rate / plan.n)
    someone, rate = truth.person, recordings.rate
    power, axes = np.linalg.eigh(truth.background)
    # In the axes of the background its components and the sensors' noise are independent: one draw serves both.
    noise = np.outer(power.clip(0), _falling(frequencies, someone.slope)) + settings.sensor**2
    rhythms = coloured(rng, _rhythm_density(frequencies, someone, settings), plan.n, rate)
    rhythms *= _envelopes(rng, plan, someone, recordings, settings)
    blinks = _blinks(rng, plan.n, rate, settings)
    mains = _mains(rng, plan.n, rate, settings.mains_frequency)
    topographies = truth.topographies[:, :N_RHYTHMS] * day.rhythms
    eyes = truth.topographies[:, N_RHYTHMS:].sum(axis=1)
    mixing = np.column_stack((axes, topographies, eyes, day.mains)) * day.gain[:, None]
    signals = np.vstack((coloured(rng, noise, plan.n, rate), rhythms, blinks, mains))
    return mixing.astype(np.float32) @ signals


# --- MOABB ---------------------------------------------------------------------------------------------------------


def twin(name: str | Recordings, seed: int = 0, settings: Physiology = USUAL) -> Any:
    """A simulated twin of a motor-imagery recording as a data set of MOABB.

    It has the twin's electrodes, rate, classes, sessions, subjects and trials, and MOABB's paradigms and evaluations
    take it as they take the twin. Nothing is stored: a subject is simulated whenever it is asked for.

    Parameters
    ----------
    name : str or Recordings
        A key of `TABLE_S1`, or a recording of your own.
    seed : int
    settings : Physiology

    Returns
    -------
    moabb.datasets.base.BaseDataset
        Its code is ``"Simulated-<name>-seed<seed>"``, with a digest of `settings` where they are not the usual ones,
        so that MOABB's cache keeps them apart. It also has the attribute `recordings`.

    Raises
    ------
    DataError
        If MOABB or MNE is not installed.
    """
    need("moabb")
    from moabb.datasets.base import BaseDataset

    recordings = name if isinstance(name, Recordings) else TABLE_S1[name]

    class Twin(BaseDataset):
        """Recordings that are simulated."""

        def _get_single_subject_data(self, subject: int) -> Raws:
            return subject_raw(recordings, subject, seed, settings)

        def data_path(self, subject: int, *args: Any, **kwargs: Any) -> list[str]:
            """No files."""
            return []

    code = _code(recordings, seed, settings)
    Twin.__name__ = Twin.__qualname__ = code.replace("-", "_")  # as MOABB asks
    made = Twin(
        list(range(1, recordings.n_subjects + 1)),
        recordings.n_sessions,
        {label: 1 + CLASSES.index(label) for label in recordings.classes},
        code,
        list(recordings.interval),
        "imagery",
    )
    made.recordings = recordings
    return made


def _code(recordings: Recordings, seed: int, settings: Physiology) -> str:
    """Name of a simulated data set, a function of all that its data depend on."""
    usual = settings == USUAL and TABLE_S1.get(recordings.name) == recordings
    digest = hashlib.sha256(repr((recordings, settings)).encode()).hexdigest()[:8]
    return f"Simulated-{recordings.name}-seed{seed}{'' if usual else '-' + digest}"
