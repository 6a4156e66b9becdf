"""Simulated motor-imagery EEG, seen through the electrodes of the six recordings of FLIC's Table S1.

A head is a sphere of four shells [1]_, in MNE's implementation [2]_; nothing is downloaded. In it sit current dipoles
whose rhythms weaken while the person imagines a movement (event-related desynchronisation, ERD [3]_):

========== ==================================== =================================================
source     under                                weakens when the person imagines
========== ==================================== =================================================
hand C3    C3                                   the right hand; the left hand to a lesser degree
hand C4    C4                                   the left hand; the right hand to a lesser degree
feet       Cz, deeper                           the feet
tongue     T7h and T8h, the sides of the head   the tongue, on both sides
========== ==================================== =================================================

Areas that take no part lose a little too in some persons and grow stronger in others (surround ERS [3]_); at rest
nothing changes. Around that is what makes a recording one: occipital alpha, 1/f background of many dipoles, sensor
noise, the mains and blinks. Persons differ in head, peaks, strength, depth and latency of the ERD; sessions differ in
gains and in the strength of the day's rhythms. Nobody's data depend on who else is made: each has a stream of its own.

References
----------
.. [1] P. Berg, M. Scherg. A fast method for forward computation of multiple-shell spherical head models.
   Electroencephalogr. Clin. Neurophysiol. 90(1), 1994.
.. [2] A. Gramfort et al. MEG and EEG data analysis with MNE-Python. Front. Neurosci. 7:267, 2013.
.. [3] G. Pfurtscheller, F. H. Lopes da Silva. Event-related EEG/MEG synchronization and desynchronization: basic
   principles. Clin. Neurophysiol. 110(11), 1999.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetfl_core.datasets.recordings import CLASSES, TABLE_S1, Recordings, standard_montage
from hetfl_core.datasets.registry import DataError
from hetfl_core.rng import numpy_stream

Array = NDArray[np.floating[Any]]
Array32 = NDArray[np.float32]
Raws = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Spread:
    """A normal distribution, cut at two standard deviations so that nobody is a monster."""

    mean: float
    sd: float

    def draw(self, rng: np.random.Generator) -> float:
        """One number."""
        return self.mean + self.sd * float(np.clip(rng.standard_normal(), -2, 2))


@dataclass(frozen=True)
class Physiology:
    """All constants of the simulation, the same for the six data sets.

    Amplitudes are root mean squares at the electrode above the source, for a source in its nominal place in a head of
    mean radius; what is seen in a person depends on the person's head. "Log spread" is the standard deviation of the
    natural logarithm of an amplitude.

    Attributes
    ----------
    radius : Spread
        Outer radius of the head, mm.
    depth, depth_feet : float
        Depth of the sources below the scalp, mm; the feet's area lies in the fissure between the hemispheres.
    jitter : float
        Standard deviation of a source's place along each axis, mm.
    tilt : float
        Standard deviation of a dipole's direction from the usual one, radial for all but the eyes, degrees.
    mu, beta, alpha : float
        Amplitude of the two rhythms of each motor area, and of each of two occipital sources, µV.
    mu_peak, beta_peak, alpha_peak : Spread
        Peak frequencies, Hz.
    mu_width, beta_width : float
        Standard deviation of a rhythm's Gaussian spectrum, Hz; alpha has that of mu.
    strength : float
        Log spread of a rhythm's amplitude over persons and areas.
    erd : tuple of float
        Range of the depth of the hands' ERD: the part of the *amplitude* that is lost. Persons are spread evenly.
    ipsilateral : tuple of float
        Range of the ERD of the hand's own side as a part of that of the other side.
    elsewhere : float
        Depth of the ERD of the feet's and the tongue's areas as a part of that of the hands'.
    surround : tuple of float
        Range of what areas that take no part lose, as a part of their own ERD; where it is negative they gain.
    latency : Spread
        Begin of the ERD after the cue, s.
    rise : float
        Duration of its onset, and of its end after the imagery, s.
    lapse : float
        Part of the trials in which the person does nothing.
    trial : float
        Log spread of a rhythm's amplitude over the trials of a person; half of its variance is shared by all sources.
    session : float
        Log spread of a rhythm's amplitude over the sessions of a person.
    gain : float
        Log spread of an electrode's gain over the sessions of a person.
    background : float
        1/f activity, 0.5 to 100 Hz, averaged over the electrodes of the 10–20 system, µV.
    background_spread : float
        Its log spread over persons.
    slope : Spread
        Exponent s of its power spectrum 1/f^s above 1 Hz; flat below.
    n_background : int
        Number of dipoles that make it.
    sensor : float
        Noise of each electrode, µV/√Hz.
    mains, mains_frequency : float
        Line noise, µV and Hz; its log spread over electrodes and sessions is 0.3.
    blink : float
        Height of a blink at Fpz, µV.
    blink_rate : float
        Blinks a minute.
    blink_length : float
        Duration of a blink, s.
    pause : tuple of float
        Range of the pause between two trials, s.
    trials_per_run : int
        Largest number of trials of one run.
    """

    radius: Spread = Spread(90.0, 3.5)
    depth: float = 18.0
    depth_feet: float = 24.0
    jitter: float = 5.0
    tilt: float = 15.0
    mu: float = 6.5
    beta: float = 2.5
    alpha: float = 7.0
    mu_peak: Spread = Spread(10.5, 0.7)
    beta_peak: Spread = Spread(21.0, 1.5)
    alpha_peak: Spread = Spread(10.0, 0.6)
    mu_width: float = 1.0
    beta_width: float = 2.0
    strength: float = 0.3
    erd: tuple[float, float] = (0.08, 0.8)
    ipsilateral: tuple[float, float] = (0.0, 0.6)
    elsewhere: float = 0.8
    surround: tuple[float, float] = (-0.2, 0.4)
    latency: Spread = Spread(0.5, 0.1)
    rise: float = 0.4
    lapse: float = 0.05
    trial: float = 0.18
    session: float = 0.12
    gain: float = 0.05
    background: float = 10.0
    background_spread: float = 0.15
    slope: Spread = Spread(1.0, 0.15)
    n_background: int = 150
    sensor: float = 0.1
    mains: float = 4.0
    mains_frequency: float = 50.0
    blink: float = 120.0
    blink_rate: float = 12.0
    blink_length: float = 0.3
    pause: tuple[float, float] = (1.2, 1.8)
    trials_per_run: int = 48


class _Source(NamedTuple):
    """A dipole's name, the place of the scalp above it, and the electrode at which its amplitude is given."""

    name: str
    under: str
    seen_at: str


_MOTOR = (
    _Source("hand C3", "C3", "C3"),
    _Source("hand C4", "C4", "C4"),
    _Source("feet", "Cz", "Cz"),
    _Source("tongue left", "T7h", "T7h"),
    _Source("tongue right", "T8h", "T8h"),
)
_ALPHA = (_Source("alpha left", "O1", "O1"), _Source("alpha right", "O2", "O2"))
_EYES = (_Source("eye left", "eye left", "Fpz"), _Source("eye right", "eye right", "Fpz"))
_SOURCES = _MOTOR + _ALPHA + _EYES
_RHYTHMS = len(_MOTOR) + len(_ALPHA)

SOURCES = tuple(source.name for source in _SOURCES)
"""Names of the dipoles that matter, in the order of every array about them: motor areas first."""

AREAS = tuple(source.name for source in _MOTOR)
"""Names of the motor areas."""

_ACTIVE = {"left_hand": {"hand C4"}, "right_hand": {"hand C3"}, "feet": {"feet"}, "tongue": {*AREAS[3:]}, "rest": set()}
_IPSILATERAL = {"left_hand": "hand C3", "right_hand": "hand C4"}

_TEN_TWENTY = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8 O1 O2"
_REFERENCE = ("M1", "M2")
_EYE_DIRECTIONS = {"eye left": (-0.32, 0.87, -0.37), "eye right": (0.32, 0.87, -0.37)}
_LOW, _HIGH = 0.5, 100.0
_NANO, _MICRO, _MILLI = 1e-9, 1e-6, 1e-3


# --- the person ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Person:
    """What makes one simulated subject different from the next.

    Attributes
    ----------
    name : str
        Data set and number, ``"AlexMI-1"``.
    radius : float
        Of the head, mm.
    mu_peak, beta_peak, alpha_peak : float
        Hz.
    strength : array, shape (7,)
        Factor of the amplitude of each motor and alpha source.
    erd : array, shape (n_classes, 5)
        Part of the amplitude that each of `AREAS` loses for each of the recording's classes; negative: gains.
    latency : float
        s.
    background : float
        Factor of the background.
    slope : float
        Exponent of the background's spectrum.
    positions, orientations : array, shape (9, 3)
        Of `SOURCES`: mm from the centre of the head, and unit vectors.
    others, other_orientations : array, shape (n_background, 3)
        The same for the dipoles of the background.
    """

    name: str
    radius: float
    mu_peak: float
    beta_peak: float
    alpha_peak: float
    strength: Array
    erd: Array
    latency: float
    background: float
    slope: float
    positions: Array
    orientations: Array
    others: Array
    other_orientations: Array


def person(recordings: Recordings, subject: int, seed: int = 0, settings: Physiology = Physiology()) -> Person:
    """Draw a subject.

    Parameters
    ----------
    recordings : Recordings
    subject : int
        Number from 1.
    seed : int
    settings : Physiology

    Raises
    ------
    ValueError
        If there is no such subject or class.
    """
    _check(recordings, subject)
    name = f"{recordings.name}-{subject}"
    rng = numpy_stream(seed, name, 0, "person")
    radius = settings.radius.draw(rng)
    positions = _nominal_positions(radius, settings) + settings.jitter * rng.standard_normal((len(SOURCES), 3))
    others = _anywhere(rng, settings.n_background) * (radius - settings.depth)
    return Person(
        name=name,
        radius=radius,
        mu_peak=settings.mu_peak.draw(rng),
        beta_peak=settings.beta_peak.draw(rng),
        alpha_peak=settings.alpha_peak.draw(rng),
        strength=np.exp(settings.strength * rng.standard_normal(_RHYTHMS)),
        erd=_erd(rng, recordings.classes, settings),
        latency=settings.latency.draw(rng),
        background=math.exp(settings.background_spread * rng.standard_normal()),
        slope=settings.slope.draw(rng),
        positions=_inside(positions, 0.87 * radius),
        orientations=_tilted(rng, _outwards(positions), settings.tilt),
        others=others,
        other_orientations=_tilted(rng, _unit(others), 45.0),
    )


def _check(recordings: Recordings, subject: int) -> None:
    name, n, sessions = recordings.name, recordings.n_trials, recordings.n_sessions
    if not 1 <= subject <= recordings.n_subjects:
        raise ValueError(f"{name}: expected a subject in 1…{recordings.n_subjects}, got {subject}")
    if unknown := set(recordings.classes) - set(CLASSES):
        raise ValueError(f"{name}: expected classes among {', '.join(CLASSES)}, got {sorted(unknown)}")
    if n < sessions:
        raise ValueError(f"{name}: expected at least one trial per class in each of {sessions} sessions, got {n}")


def _erd(rng: np.random.Generator, classes: Sequence[str], settings: Physiology) -> Array:
    """Part of the amplitude lost by class and area, shape (n_classes, 5)."""
    hand, ipsilateral, surround = (
        rng.uniform(*bounds) for bounds in (settings.erd, settings.ipsilateral, settings.surround)
    )
    depth = hand * np.where(np.char.startswith(AREAS, "hand"), 1.0, settings.elsewhere)
    table = np.zeros((len(classes), len(AREAS)))
    for row, label in zip(table, classes):
        active = [area in _ACTIVE[label] for area in AREAS]
        if any(active):
            row[:] = depth * np.where(active, 1.0, surround)
        if label in _IPSILATERAL:
            row[AREAS.index(_IPSILATERAL[label])] = ipsilateral * hand
    return table


def _nominal_positions(radius: float, settings: Physiology) -> Array:
    """Places of `SOURCES` in a head of that radius, mm, shape (9, 3)."""
    depths = [settings.depth_feet if source.name == "feet" else settings.depth for source in _SOURCES]
    return _directions([source.under for source in _SOURCES]) * (radius - np.array(depths))[:, None]


def _inside(positions: Array, limit: float) -> Array:
    """Positions pulled towards the centre where they are farther from it than `limit`."""
    length = np.linalg.norm(positions, axis=1, keepdims=True)
    return positions * np.minimum(1.0, limit / length)


def _anywhere(rng: np.random.Generator, n: int) -> Array:
    """Unit vectors spread evenly over the part of the sphere that holds a brain."""
    height, angle = rng.uniform(-0.4, 1.0, n), rng.uniform(0, 2 * math.pi, n)
    ring = np.sqrt(1 - height**2)
    return np.column_stack((ring * np.cos(angle), ring * np.sin(angle), height))


def _outwards(positions: Array) -> Array:
    """Unit vectors away from the centre for `SOURCES`; at the eyes half way up, as the current of a blink runs."""
    vectors = _unit(positions)
    vectors[_RHYTHMS:, 2] += 0.5
    return _unit(vectors)


def _tilted(rng: np.random.Generator, directions: Array, degrees: float) -> Array:
    """Unit vectors an angle away from those given, or about that."""
    return _unit(directions + math.tan(math.radians(degrees)) * rng.standard_normal(directions.shape) / math.sqrt(2))


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# --- the head ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Truth:
    """What was put into one subject's recording.

    Attributes
    ----------
    person : Person
    info : mne.Info
        The recording's channels, in the template montage: give it to `mne.viz.plot_topomap`.
    electrodes : array, shape (q, 3)
        Where they sit on the person's head, mm from its centre.
    topographies : array, shape (q, 9)
        Potential of each of `SOURCES` against the mean of the mastoids, µV: the root mean square of μ for a motor area
        and of alpha for an occipital source, the height of a blink for an eye.
    background : array, shape (q, q)
        Covariance of the 1/f background, µV².
    """

    person: Person
    info: Any
    electrodes: Array
    topographies: Array
    background: Array


@lru_cache(maxsize=64)
def ground_truth(recordings: Recordings, subject: int, seed: int = 0, settings: Physiology = Physiology()) -> Truth:
    """The sources of a subject and what the electrodes see of them (arguments as for `subject_raw`).

    Returns
    -------
    Truth
        Shared between calls: do not write into its arrays.

    Raises
    ------
    DataError
        If an electrode is not in the 10–05 system, or MNE is not installed.
    ValueError
        If there is no such subject or class.
    """
    someone = person(recordings, subject, seed, settings)
    amplitude = np.r_[someone.strength * _amplitudes(settings)[:_RHYTHMS], _amplitudes(settings)[_RHYTHMS:]]
    gains = leadfield(recordings.channels, someone.radius, someone.positions, someone.orientations)
    return Truth(
        person=someone,
        info=_info(recordings),
        electrodes=_directions(recordings.channels) * someone.radius,
        topographies=gains / _nominal_gains(settings) * amplitude,
        background=_background(recordings.channels, someone, settings.background),
    )


def _amplitudes(settings: Physiology) -> Array:
    """Amplitude of each of `SOURCES`, µV; the two eyes share a blink."""
    return np.repeat([settings.mu, settings.alpha, settings.blink / 2], [len(_MOTOR), len(_ALPHA), len(_EYES)])


def _background(channels: Sequence[str], someone: Person, amplitude: float) -> Array:
    """Covariance of the background over the channels, µV²."""
    gains = leadfield((*channels, *_TEN_TWENTY.split()), someone.radius, someone.others, someone.other_orientations)
    own, usual = gains[: len(channels)], gains[len(channels) :]
    return own @ own.T * (amplitude * someone.background) ** 2 / np.square(usual).sum(axis=1).mean()


@cache
def _nominal_gains(settings: Physiology) -> Array:
    """Potential of a unit of each source at the electrode where its amplitude is given, in the mean head."""
    positions = _nominal_positions(settings.radius.mean, settings)
    gains = leadfield([s.seen_at for s in _SOURCES], settings.radius.mean, positions, _outwards(positions))
    return np.diag(gains).copy()


def leadfield(channels: Sequence[str], radius: float, positions: Array, orientations: Array) -> Array:
    """Potentials of dipoles in a spherical head, against the mean of the two mastoids.

    Parameters
    ----------
    channels : sequence of str, length q
        Electrodes of the 10–05 system; repeats are allowed.
    radius : float
        Of the head, mm. The shells of brain, liquor, skull and scalp end at 0.90, 0.92, 0.97 and 1 of it.
    positions : array, shape (k, 3)
        mm from the centre; x to the right ear, y to the nose, z up.
    orientations : array, shape (k, 3)
        Unit vectors.

    Returns
    -------
    array, shape (q, k)
        µV for each nAm.
    """
    mne = _mne()
    names = list(dict.fromkeys((*channels, *_REFERENCE)))
    places = dict(zip(names, _directions(names) * radius * _MILLI))
    info = mne.create_info(names, 250.0, "eeg", verbose="error")
    info.set_montage(mne.channels.make_dig_montage(places, coord_frame="head"), verbose="error")
    sphere = mne.make_sphere_model((0.0, 0.0, 0.0), radius * _MILLI, verbose="error")
    ones = np.ones(len(positions))
    dipoles = mne.Dipole(0 * ones, positions * _MILLI, ones, orientations, ones, verbose="error")
    forward, _ = mne.make_forward_dipole(dipoles, sphere, info, verbose="error")
    return _referenced(_columns(forward), [names.index(c) for c in channels], [names.index(r) for r in _REFERENCE])


def _columns(forward: Any) -> Array:
    """Gain matrix of one forward solution, or of one for each dipole, in µV/nAm."""
    parts = forward if isinstance(forward, list) else [forward]
    return np.hstack([part["sol"]["data"] for part in parts]).astype(np.float64) * (_NANO / _MICRO)


def _referenced(gains: Array, channels: list[int], reference: list[int]) -> Array:
    return gains[channels] - gains[reference].mean(axis=0)


def _directions(names: Sequence[str]) -> Array:
    """Unit vectors from the centre of the head to places on the scalp, shape (n, 3).

    Raises
    ------
    DataError
        Naming those that the 10–05 system does not have.
    """
    known = _scalp()
    if unknown := [name for name in names if name not in known]:
        raise DataError(f"no place on the scalp is known for {', '.join(unknown)}; expected names of the 10–05 system")
    return np.array([known[name] for name in names])


@cache
def _scalp() -> Mapping[str, Array]:
    """Direction of every electrode of the 10–05 system, and of the eyes, from the centre of the best sphere."""
    mne = _mne()
    montage = standard_montage()
    info = mne.create_info(montage.ch_names, 250.0, "eeg", verbose="error")
    info.set_montage(montage, verbose="error")
    _, centre, _ = mne.bem.fit_sphere_to_headshape(info, dig_kinds=("eeg",), units="m", verbose="error")
    places = {channel["ch_name"]: _unit(channel["loc"][:3] - centre) for channel in info["chs"]}
    return places | {name: _unit(np.array(direction)) for name, direction in _EYE_DIRECTIONS.items()}


def _info(recordings: Recordings) -> Any:
    """Channels of a recording in the template montage."""
    mne = _mne()
    info = mne.create_info(list(recordings.channels), recordings.rate, "eeg", verbose="error")
    info.set_montage(standard_montage(), verbose="error")
    return info


def _mne() -> Any:
    """The library MNE.

    Raises
    ------
    DataError
        If it is not installed.
    """
    try:
        import mne
    except ImportError as error:
        raise DataError("simulated EEG needs MNE: install the extra 'eeg', pip install 'hetfl-core[eeg]'") from error
    return mne


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
    return np.array([motor] * len(_MOTOR) + [alpha] * len(_ALPHA))


@dataclass(frozen=True, eq=False)
class _Day:
    """A session: gains of the electrodes (q,), factors of the rhythms (7,), mains at the electrodes (q,), µV."""

    gain: Array
    rhythms: Array
    mains: Array


def _day(rng: np.random.Generator, n_channels: int, settings: Physiology) -> _Day:
    return _Day(
        gain=np.exp(settings.gain * rng.standard_normal(n_channels)),
        rhythms=np.exp(settings.session * rng.standard_normal(_RHYTHMS)),
        mains=settings.mains * np.exp(0.3 * rng.standard_normal(n_channels)),
    )


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
    swings = _swings(rng, len(plan.labels), settings.trial)
    time = np.arange(plan.n)
    envelopes = np.exp(np.array([np.interp(time, plan.starts, swing) for swing in swings], dtype=np.float32))
    envelopes[: len(_MOTOR)] *= 1 - _losses(rng, plan, someone, recordings, settings)
    return envelopes


def _swings(rng: np.random.Generator, n_trials: int, spread: float) -> Array:
    """Logarithms of the rhythms' amplitudes, shape (7, n_trials): half of the variance is common to all."""
    common, own = rng.standard_normal(n_trials), rng.standard_normal((_RHYTHMS, n_trials))
    return spread * (common + own) / math.sqrt(2)


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


def subject_raw(recordings: Recordings, subject: int, seed: int = 0, settings: Physiology = Physiology()) -> Raws:
    """What one simulated subject's recording holds.

    Parameters
    ----------
    recordings : Recordings
        Electrodes, rate, classes, sessions and trials: a value of `TABLE_S1`, or one of your own.
    subject : int
        Number from 1.
    seed : int
        Of the whole simulation. The subject is a function of it, of the recording's name and of its own number.
    settings : Physiology

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
    """The runs of one session."""
    name = truth.person.name
    day = _day(numpy_stream(seed, name, session, "session"), len(recordings.channels), settings)
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
    """One run as MNE sees it."""
    plan = _plan(rng, labels, recordings, settings)
    data = np.zeros((len(recordings.channels) + 1, plan.n))
    np.multiply(_microvolts(rng, plan, recordings, truth, day, settings), _MICRO, out=data[:-1])
    data[-1, plan.starts] = [1 + CLASSES.index(recordings.classes[label]) for label in plan.labels]
    return _raw(data, recordings, settings.mains_frequency)


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
    topographies = truth.topographies[:, :_RHYTHMS] * day.rhythms
    eyes = truth.topographies[:, _RHYTHMS:].sum(axis=1)
    mixing = np.column_stack((axes, topographies, eyes, day.mains)) * day.gain[:, None]
    signals = np.vstack((coloured(rng, noise, plan.n, rate), rhythms, blinks, mains))
    return mixing.astype(np.float32) @ signals


def _raw(data: Array, recordings: Recordings, mains: float) -> Any:
    """An MNE recording of the electrodes (V) and the trigger."""
    mne = _mne()
    types = ["eeg"] * len(recordings.channels) + ["stim"]
    info = mne.create_info([*recordings.channels, "STI"], recordings.rate, types, verbose="error")
    info.set_montage(standard_montage(), verbose="error")
    info["line_freq"] = mains
    return mne.io.RawArray(data, info, verbose="error")


# --- MOABB ---------------------------------------------------------------------------------------------------------


def simulated(
    name: str | Recordings,
    seed: int = 0,
    settings: Physiology = Physiology(),
    subjects: Sequence[int] | None = None,
) -> Any:
    """A simulated twin of a motor-imagery recording as a data set of MOABB.

    It has the twin's electrodes, rate, classes, sessions, subjects and trials, and MOABB's paradigms and evaluations
    take it as they take the twin. Nothing is stored: a subject is simulated whenever it is asked for.

    Parameters
    ----------
    name : str or Recordings
        A key of `TABLE_S1`, or a recording of your own.
    seed : int
    settings : Physiology
    subjects : sequence of int, optional
        Those to be listed; all by default. The numbers, and the data behind them, stay the same.

    Returns
    -------
    moabb.datasets.base.BaseDataset
        Its code is ``"Simulated-<name>-seed<seed>"``, with a digest of `settings` where they are not the usual ones,
        so that MOABB's cache keeps them apart. It also has the attributes `recordings`, `seed` and `settings`.

    Raises
    ------
    DataError
        If MOABB or MNE is not installed.
    KeyError
        If there is no recording of that name.
    """
    recordings = name if isinstance(name, Recordings) else _known(name)
    return _twin_class(_code(recordings, seed, settings))(recordings, seed, settings, subjects)


def _known(name: str) -> Recordings:
    if name not in TABLE_S1:
        raise KeyError(f"no recording is called {name!r}; expected one of {', '.join(TABLE_S1)}")
    return TABLE_S1[name]


def _code(recordings: Recordings, seed: int, settings: Physiology) -> str:
    """Name of a simulated data set, a function of all that its data depend on."""
    usual = settings == Physiology() and TABLE_S1.get(recordings.name) == recordings
    digest = "" if usual else f"-{_digest(repr((recordings, settings)))}"
    return f"Simulated-{recordings.name}-seed{seed}{digest}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@cache
def _twin_class(code: str) -> type:
    """A data set class of MOABB; made here so that importing this module does not import MOABB."""
    try:
        from moabb.datasets.base import BaseDataset
    except ImportError as error:
        raise DataError("simulated EEG needs MOABB: install the extra 'eeg', pip install 'hetfl-core[eeg]'") from error

    class Simulated(BaseDataset):
        """Simulated EEG in the place of a recording."""

        def __init__(
            self, recordings: Recordings, seed: int, settings: Physiology, subjects: Sequence[int] | None
        ) -> None:
            self.recordings, self.seed, self.settings = recordings, seed, settings
            super().__init__(
                subjects=list(range(1, recordings.n_subjects + 1)),
                sessions_per_subject=recordings.n_sessions,
                events={label: 1 + CLASSES.index(label) for label in recordings.classes},
                code=code,
                interval=list(recordings.interval),
                paradigm="imagery",
                selected_subjects=subjects,
            )

        def _get_single_subject_data(self, subject: int) -> Raws:
            return subject_raw(self.recordings, subject, self.seed, self.settings)

        def data_path(self, subject: int, *args: Any, **kwargs: Any) -> list[str]:
            """No files."""
            return []

    # MOABB asks that a class be named like its code.
    Simulated.__name__ = Simulated.__qualname__ = code.replace("-", "_")
    return Simulated
