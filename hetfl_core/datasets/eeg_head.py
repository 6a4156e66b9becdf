"""Simulated persons: the sources of motor-imagery EEG in a head, and what electrodes see of them.

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
nothing changes. Persons differ in head, peaks, strength, depth and latency of the ERD. What they do in a recording is
in `hetfl_core.datasets.eeg_simulated`.

References
----------
.. [1] P. Berg, M. Scherg. A fast method for forward computation of multiple-shell spherical head models.
   Electroencephalogr. Clin. Neurophysiol. 90(1), 1994.
.. [2] A. Gramfort et al. MEG and EEG data analysis with MNE-Python. Front. Neurosci. 7:267, 2013.
.. [3] G. Pfurtscheller, F. H. Lopes da Silva. Event-related EEG/MEG synchronization and desynchronization: basic
   principles. Clin. Neurophysiol. 110(11), 1999.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core.datasets.recordings import CLASSES, Recordings, need, standard_montage
from hetfl_core.datasets.registry import DataError
from hetfl_core.errors import WrongValue
from hetfl_core.rng import numpy_stream

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Spread:
    """A normal distribution, cut at two standard deviations so that nobody is a monster."""

    mean: float
    sd: float

    def draw(self, rng: np.random.Generator) -> float:
        """Draw one number from the distribution."""
        return self.mean + self.sd * float(np.clip(rng.standard_normal(), -2, 2))


@dataclass(frozen=True)
class Physiology:
    """All constants of the simulation, the same for the six data sets.

    Amplitudes are root mean squares at the electrode above the source, for a source in its nominal place in a head of
    mean radius; what is seen in a person depends on the person's head. "Log spread" is the standard deviation of the
    natural logarithm of an amplitude.

    Parameters
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


USUAL = Physiology()


_MOTOR = {"hand C3": "C3", "hand C4": "C4", "feet": "Cz", "tongue left": "T7h", "tongue right": "T8h"}
_ALPHA = {"alpha left": "O1", "alpha right": "O2"}
_EYES = {"eye left": (-0.32, 0.87, -0.37), "eye right": (0.32, 0.87, -0.37)}
"""Directions of the eyes, which are no electrodes."""
_UNDER = {**_MOTOR, **_ALPHA, **{eye: eye for eye in _EYES}}
"""The place of the scalp above each dipole."""
N_ALPHA = len(_ALPHA)
N_RHYTHMS = len(_MOTOR) + N_ALPHA

SOURCES = tuple(_UNDER)
"""Names of the dipoles that matter, in the order of every array about them: motor areas first."""

AREAS = tuple(_MOTOR)
"""Names of the motor areas."""

_ACTIVE = {"left_hand": {"hand C4"}, "right_hand": {"hand C3"}, "feet": {"feet"}, "tongue": {*AREAS[3:]}, "rest": set()}
_IPSILATERAL = {"left_hand": "hand C3", "right_hand": "hand C4"}

_TEN_TWENTY = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8 O1 O2"
_REFERENCE = ("M1", "M2")
_NANO, MICRO, _MILLI = 1e-9, 1e-6, 1e-3


# --- the person ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Person:
    """A simulated subject, with all that makes it different from the next.

    Parameters
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


def person(recordings: Recordings, subject: int, seed: int = 0, settings: Physiology = USUAL) -> Person:
    """Draw a simulated subject.

    Parameters
    ----------
    recordings : Recordings
    subject : int
        Number from 1.
    seed : int
    settings : Physiology

    Returns
    -------
    Person

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
    within = np.minimum(1.0, 0.87 * radius / np.linalg.norm(positions, axis=1, keepdims=True))
    others = _anywhere(rng, settings.n_background) * (radius - settings.depth)
    return Person(
        name=name,
        radius=radius,
        mu_peak=settings.mu_peak.draw(rng),
        beta_peak=settings.beta_peak.draw(rng),
        alpha_peak=settings.alpha_peak.draw(rng),
        strength=np.exp(settings.strength * rng.standard_normal(N_RHYTHMS)),
        erd=_erd(rng, recordings.classes, settings),
        latency=settings.latency.draw(rng),
        background=math.exp(settings.background_spread * rng.standard_normal()),
        slope=settings.slope.draw(rng),
        positions=positions * within,
        orientations=_tilted(rng, _outwards(positions), settings.tilt),
        others=others,
        other_orientations=_tilted(rng, _unit(others), 45.0),
    )


def _check(recordings: Recordings, subject: int) -> None:
    name, n, sessions = recordings.name, recordings.n_trials, recordings.n_sessions
    if not 1 <= subject <= recordings.n_subjects:
        raise WrongValue(f"{name}: expected a subject in 1…{recordings.n_subjects}, got {subject}")
    if unknown := set(recordings.classes) - set(CLASSES):
        raise WrongValue(f"{name}: expected classes among {', '.join(CLASSES)}, got {sorted(unknown)}")
    if n < sessions:
        raise WrongValue(f"{name}: expected at least one trial per class in each of {sessions} sessions, got {n}")


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
    depths = [settings.depth_feet if source == "feet" else settings.depth for source in SOURCES]
    return _directions([*_UNDER.values()]) * (radius - np.array(depths))[:, None]


def _anywhere(rng: np.random.Generator, n: int) -> Array:
    """Unit vectors spread evenly over the part of the sphere that holds a brain."""
    height, angle = rng.uniform(-0.4, 1.0, n), rng.uniform(0, 2 * math.pi, n)
    ring = np.sqrt(1 - height**2)
    return np.column_stack((ring * np.cos(angle), ring * np.sin(angle), height))


def _outwards(positions: Array) -> Array:
    """Unit vectors away from the centre for `SOURCES`; at the eyes half way up, as the current of a blink runs."""
    vectors = _unit(positions)
    vectors[N_RHYTHMS:, 2] += 0.5
    return _unit(vectors)


def _tilted(rng: np.random.Generator, directions: Array, degrees: float) -> Array:
    """Unit vectors an angle away from those given, or about that."""
    return _unit(directions + math.tan(math.radians(degrees)) * rng.standard_normal(directions.shape) / math.sqrt(2))


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# --- the head ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Truth:
    """The sources behind one simulated subject's recording, and what the electrodes see of them.

    Parameters
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
def ground_truth(recordings: Recordings, subject: int, seed: int = 0, settings: Physiology = USUAL) -> Truth:
    """The sources of a subject, and what the electrodes see of them.

    Parameters
    ----------
    recordings, subject, seed, settings
        As for `person`.

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
    amplitude = np.r_[someone.strength * _amplitudes(settings)[:N_RHYTHMS], _amplitudes(settings)[N_RHYTHMS:]]
    gains = leadfield(recordings.channels, someone.radius, someone.positions, someone.orientations)
    return Truth(
        person=someone,
        info=channel_info(recordings.channels, recordings.rate),
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
    seen_at = ["Fpz" if source in _EYES else place for source, place in _UNDER.items()]
    gains = leadfield(seen_at, settings.radius.mean, positions, _outwards(positions))
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
    mne = mne_module()
    names = list(dict.fromkeys((*channels, *_REFERENCE)))
    places = dict(zip(names, _directions(names) * radius * _MILLI))
    info = mne.create_info(names, 250.0, "eeg", verbose="error")
    info.set_montage(mne.channels.make_dig_montage(places, coord_frame="head"), verbose="error")
    sphere = mne.make_sphere_model((0.0, 0.0, 0.0), radius * _MILLI, verbose="error")
    ones = np.ones(len(positions))
    dipoles = mne.Dipole(0 * ones, positions * _MILLI, ones, orientations, ones, verbose="error")
    forward, _ = mne.make_forward_dipole(dipoles, sphere, info, verbose="error")
    parts = forward if isinstance(forward, list) else [forward]  # one for each dipole
    gains = np.hstack([part["sol"]["data"] for part in parts]).astype(np.float64) * (_NANO / MICRO)
    return gains[[names.index(c) for c in channels]] - gains[[names.index(r) for r in _REFERENCE]].mean(axis=0)


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
    info = channel_info(standard_montage().ch_names, 250.0)
    _, centre, _ = mne_module().bem.fit_sphere_to_headshape(info, dig_kinds=("eeg",), units="m", verbose="error")
    places = {channel["ch_name"]: _unit(channel["loc"][:3] - centre) for channel in info["chs"]}
    return places | {name: _unit(np.array(direction)) for name, direction in _EYES.items()}


def channel_info(names: Sequence[str], rate: float, types: Any = "eeg") -> Any:
    """MNE's description of channels in the template montage.

    Parameters
    ----------
    names : sequence of str
    rate : float
        Samples a second, Hz.
    types : str or sequence of str

    Returns
    -------
    mne.Info
    """
    info = mne_module().create_info(list(names), rate, types, verbose="error")
    info.set_montage(standard_montage(), verbose="error")
    return info


def mne_module() -> Any:
    """The library MNE.

    Returns
    -------
    module

    Raises
    ------
    DataError
        Where it is not installed.
    """
    need("mne")
    import mne

    return mne
