"""Recordings of imagined movement, checked, repaired and cut into trials.

A recording goes through MOABB's paradigm `MotorImagery` [1]_: band-pass, epochs. The recordings are the six of
`TABLE_S1`: the real ones (``source="moabb"``), or their simulated twins, which need no download. What is wrong with a
recording is either repaired by a rule, with an `EEGWarning` that names subject, channel and trials, or refused with a
`DataError`:

======================================  ========================================================================
a channel asked for is missing          refused; the message lists those that are there
an electrode name outside 10–05         refused
NaN or infinite samples                 the trials that they touch are left out; the filter works on what lies
                                        between such gaps. A channel that has little else in a run counts as flat
a flat channel (sd below `FLAT`)        left out where it is flat in more than half of the trials (refused if it was
                                        asked for by name); else the trials where it is flat are left out
rank-deficient covariances              Ledoit–Wolf shrinkage makes them invertible, with a warning; refused where
                                        they are still singular
runs at different sampling rates        refused, unless `resample` names the one rate that all are brought to
fewer than `MIN_TRIALS` usable trials   refused; a federation leaves the subject out, with a warning
trials of one class only                refused; a federation leaves the subject out, with a warning
======================================  ========================================================================

Subjects may differ in sampling rate: a covariance does not have one.

References
----------
.. [1] V. Jayaram, A. Barachant. MOABB: trustworthy algorithm benchmarking for BCIs. J. Neural Eng. 15(6), 2018.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.datasets.recordings import CLASSES, TABLE_S1, Recordings, need, standard_montage
from hetfl_core.datasets.registry import DataError, data_home

FLAT = 1e-3
"""Standard deviation in the band, µV, below which a channel is flat: a thousandth of what an amplifier resolves."""

MIN_TRIALS = 8
"""Usable trials below which a subject is refused."""

SOURCES = ("simulated", "moabb")


class EEGWarning(UserWarning):
    """A recording with a fault that was repaired; the message says which, where and how."""


class UnusableSubject(DataError):
    """A subject with too few usable trials, or with one class only."""


@dataclass(frozen=True, eq=False)
class Trials:
    """The trials of one subject, filtered and cut.

    Parameters
    ----------
    x : ndarray, shape (n, q, samples)
        Band-passed signals, µV.
    y : ndarray of int, shape (n,)
        Labels, by default the places of the classes in `CLASSES`.
    session : ndarray of str, shape (n,)
        Session of each trial, in the order of recording.
    channels : tuple of str
        The q electrodes.
    rate : float
        Samples a second, Hz.
    name : str
        Data set and subject, e.g. ``"AlexMI-1"``.
    notes : tuple of str
        What was wrong with the recording, and what was done about it.
    """

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    session: NDArray[np.str_]
    channels: tuple[str, ...]
    rate: float
    name: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)


# --- recordings -----------------------------------------------------------------------------------------------------


def dataset(name: str | Recordings, source: str = "simulated", seed: int = 0, simulator: Any = None) -> Any:
    """A data set of `TABLE_S1`, or a simulated one of your own, as a MOABB `BaseDataset`.

    Parameters
    ----------
    name : str or Recordings
        E.g. ``"BNCI2014-001"``; a recording of your own can only be simulated.
    source : {"simulated", "moabb"}
        The simulated twin, or the real recordings, which MOABB downloads when they are first read.
    seed : int
        Seed of the simulation.
    simulator : Physiology, optional
        Settings of the simulation (`hetfl_core.datasets.eeg_simulated`).

    Returns
    -------
    moabb.datasets.base.BaseDataset

    Raises
    ------
    ValueError
        If there is no such data set or source.
    """
    own = isinstance(name, Recordings)
    if not own:
        checks.choice("datasets", name, tuple(TABLE_S1))
    checks.choice("source", source, SOURCES[:1] if own else SOURCES)
    if isinstance(name, str) and source == "moabb":
        import moabb.datasets

        return getattr(moabb.datasets, TABLE_S1[name].moabb)()
    from hetfl_core.datasets import eeg_simulated

    return eeg_simulated.twin(name, seed, simulator or eeg_simulated.Physiology())


def recordings_of(data: Any) -> Recordings | None:
    """The row of `TABLE_S1` that a MOABB data set belongs to, or None.

    It is the one that the data set carries, or that of its class.
    """
    classes = {recordings.moabb: recordings for recordings in TABLE_S1.values()}
    return getattr(data, "recordings", None) or classes.get(type(data).__name__)


def recordings_home() -> Path:
    """Folder where MOABB keeps recordings.

    It is what MNE knows as ``MNE_DATA`` (environment variable or MNE's configuration), so that recordings that are
    already on this computer are found. Else it is ``moabb`` in `hetfl_core.datasets.registry.data_home`, that is, in
    HETFL_DATA.

    Returns
    -------
    pathlib.Path
    """
    import mne

    given = mne.get_config("MNE_DATA")
    return Path(given).expanduser() if given else data_home() / "moabb"


@contextmanager
def _moabb_settings() -> Iterator[None]:
    """Recordings in `recordings_home`, from their official addresses unless the user has chosen otherwise."""
    given = {"MNE_DATA": str(recordings_home()), "MOABB_DOWNLOAD_PROVIDER": "upstream"}
    added = {name: value for name, value in given.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def download(data: Any, subject: int) -> None:
    """Have MOABB fetch one subject's files, showing its progress; those that are there are used as they are.

    Parameters
    ----------
    data : moabb.datasets.base.BaseDataset
        Where it is not one of MOABB's real data sets, there is nothing to fetch.
    subject : int

    Raises
    ------
    DataError
        If they cannot be had; the message names data set, folder, address and what to do.
    """
    if getattr(data, "METADATA", None) is None:
        return
    with _moabb_settings():
        try:
            recordings_home().mkdir(parents=True, exist_ok=True)
            data.data_path(subject)
        except Exception as error:  # each data set has its own downloader, with its own kinds of errors
            _remove_empty_folders(data_home() / "moabb")
            raise DataError(_no_recordings(data, subject, error)) from error


def _remove_empty_folders(home: Path) -> None:
    for folder in [*sorted((p for p in home.rglob("*") if p.is_dir()), reverse=True), home]:
        with suppress(OSError):  # one that holds something stays
            folder.rmdir()


def _no_recordings(data: Any, subject: int, error: Exception) -> str:
    name, address = type(data).__name__, data.METADATA.documentation.data_url or f"https://doi.org/{data.doi}"
    return (
        f"{_short_name(data)}: the recording of subject {subject} is not in {recordings_home()} and could not be "
        f"downloaded ({type(error).__name__}: {error}). With a network, run `python -c "
        f"'from moabb.datasets import {name}; {name}().data_path({subject})'` or see {address}; the folder is set by "
        'MNE_DATA, or else HETFL_DATA. source="simulated" needs no recordings.'
    )


def _short_name(data: Any) -> str:
    recordings = recordings_of(data)
    return recordings.name if recordings else str(data.code)


# --- trials ---------------------------------------------------------------------------------------------------------


def trials(
    data: Any,
    subject: int,
    channels: Sequence[str] | None = None,
    band: tuple[float, float] = (8.0, 30.0),
    classes: Sequence[str] = CLASSES,
    labels: Sequence[str] = CLASSES,
    resample: float | None = None,
) -> Trials:
    """The trials of one subject, through MOABB's `MotorImagery` paradigm.

    The recording is checked, and repaired by the rules in this module's docstring, between MOABB's reading and MOABB's
    filter (a Butterworth filter run forwards and backwards). A trial is the data set's own interval of imagery.

    Parameters
    ----------
    data : moabb.datasets.base.BaseDataset
        Real, simulated or made up.
    subject : int
    channels : sequence of str, optional
        Electrodes, in this order; by default those of `TABLE_S1`, or all EEG channels of another data set.
    band : tuple of float
        Lower and upper edge of the band-pass, Hz.
    classes : sequence of str
        What may have been imagined; those that the data set lacks are passed over.
    labels : sequence of str
        Names whose places are the labels.
    resample : float, optional
        Rate that all runs are brought to, Hz; by default they keep their own, which must be one.

    Returns
    -------
    Trials

    Raises
    ------
    DataError
        If the recording cannot be had, or has a fault that no rule repairs.
    UnusableSubject
        If fewer than `MIN_TRIALS` trials are left.

    Warns
    -----
    EEGWarning
        For each fault that was repaired.
    """
    name, events = _short_name(data), [c for c in classes if c in data.event_id]
    if not events:
        raise DataError(f"{name}: none of the classes {', '.join(classes)}; it has {', '.join(data.event_id)}")
    need("mne", "moabb")
    from moabb.paradigms import MotorImagery

    if not 0 < band[0] < band[1]:
        raise ValueError(f"band must be (lower, upper) in Hz with 0 < lower < upper, got {tuple(band)}")
    recordings = recordings_of(data)
    wanted = tuple(channels or (recordings.channels if recordings else ()))
    inspection = _Inspection(f"{name}-{subject}", wanted, events, resample)
    paradigm = MotorImagery(
        events=events, n_classes=len(events), fmin=band[0], fmax=band[1], channels=list(wanted) or None
    )
    if subject not in data.subject_list:
        raise DataError(f"{name}: no subject {subject}; there are {', '.join(map(str, data.subject_list))}")
    download(data, subject)
    epochs, imagined, about = _run_paradigm(paradigm, data, subject, inspection)
    found = Trials(
        x=epochs.get_data(copy=False) * data.unit_factor,
        y=np.array([list(labels).index(c) for c in imagined], dtype=np.int64),
        session=np.array(about["session"], dtype=np.str_),
        channels=tuple(epochs.ch_names),
        rate=float(epochs.info["sfreq"]),
        name=inspection.name,
        notes=inspection.notes(),
    )
    found = _sessions_told(_without_flat(found, named=channels is not None), data.n_sessions)
    if len(found) < MIN_TRIALS:
        why = f" ({'; '.join(found.notes)})" if found.notes else ""
        raise UnusableSubject(f"{found.name}: {len(found)} usable trials, expected at least {MIN_TRIALS}{why}")
    warn_of(found.name, found.notes)
    return found


def _sessions_told(found: Trials, whole: int) -> Trials:
    """Trials with a note where a session has none: a split by session then tests on another one."""
    left = list(dict.fromkeys(found.session.tolist()))
    if not left or len(left) >= whole:
        return found
    note = f"usable trials in {len(left)} of {whole} sessions only; a split by session tests on session {left[-1]!r}"
    return replace(found, notes=(*found.notes, note))


def _run_paradigm(paradigm: Any, data: Any, subject: int, inspection: _Inspection) -> Any:
    """MOABB's epochs, names of their classes and table of sessions, the inspection put in before its filter."""
    import mne
    from moabb.datasets.bids_interface import StepType
    from moabb.datasets.preprocessing import FixedPipeline
    from sklearn.preprocessing import FunctionTransformer

    (pipeline,) = paradigm.make_process_pipelines(data, return_epochs=True)
    annotate, *others = pipeline.steps
    inspect, count = FunctionTransformer(inspection), FunctionTransformer(inspection.count)
    steps = [annotate, (StepType.RAW, inspect), *others, (StepType.EPOCHS, count)]
    with _moabb_settings(), mne.utils.use_log_level("error"):
        try:
            return paradigm.get_data(data, [subject], return_epochs=True, process_pipelines=[FixedPipeline(steps)])
        except DataError:
            raise
        except Exception as error:  # whatever the reader of a data set raises for a file that is not what it should be
            raise inspection.explain(error) from error


def warn_of(name: str, notes: Sequence[str], stacklevel: int = 3) -> None:
    """Say what was wrong with a subject's recording and what was done about it, one `EEGWarning` a note.

    Parameters
    ----------
    name : str
        The subject.
    notes : sequence of str
    stacklevel : int
        As of `warnings.warn`.
    """
    for note in notes:
        warnings.warn(f"{name}: {note}", EEGWarning, stacklevel=stacklevel)


# --- bad input ------------------------------------------------------------------------------------------------------


@dataclass
class _Inspection:
    """Checks of each run as MOABB hands it over: `name` is the subject, `channels` those wanted (none: all EEG)."""

    name: str
    channels: tuple[str, ...]
    events: Sequence[str]
    resample: float | None = None
    rate: float | None = None
    n_runs: int = 0
    n_events: int = 0
    broken: dict[str, None] = field(default_factory=dict)
    drop_log: list[Sequence[str]] = field(default_factory=list)

    def __call__(self, raw: Any) -> Any:
        self.n_runs += 1
        where = f"{self.name}, run {self.n_runs}"
        picks = self._pick(raw, where)
        self.n_events += int(np.isin(raw.annotations.description, list(self.events)).sum())
        raw.load_data(verbose=False)
        self._mark_gaps(raw, picks, where)
        return self._at_one_rate(raw, where)

    def _pick(self, raw: Any, where: str) -> list[str]:
        """Names of the wanted channels, all of them there and all of them electrodes."""
        import mne

        there = [raw.ch_names[i] for i in mne.pick_types(raw.info, eeg=True, exclude=[])]
        wanted = list(self.channels) or there
        if missing := [name for name in wanted if name not in there]:
            raise DataError(f"{where}: no channel {', '.join(missing)}; there are {', '.join(there) or 'none'}")
        if unknown := [name for name in wanted if name not in _electrodes()]:
            raise DataError(
                f"{where}: {', '.join(unknown)} in no place of the 10–05 system; rename the channels, or name those "
                "that are electrodes"
            )
        return wanted

    def _mark_gaps(self, raw: Any, picks: Sequence[str], where: str) -> None:
        """Annotate what is not finite as MNE's filter and MOABB's epochs expect it, and bridge it by straight lines."""
        import mne

        gap = np.zeros(raw.n_times, dtype=bool)
        for name in picks:
            bad = ~np.isfinite(raw[name][0][0])
            if bad.mean() > 0.5:
                raw.apply_function(_silence, picks=[name], verbose=False)  # what is flat is dealt with later
            elif bad.any():
                gap |= bad
                self.broken[name] = None
                raw.apply_function(_bridge, picks=[name], verbose=False)
        if gap.all():
            raise UnusableSubject(f"{where}: at no moment are all of {', '.join(self.broken)} finite")
        edges = np.flatnonzero(np.diff(np.r_[False, gap, False])).reshape(-1, 2) / raw.info["sfreq"]
        if len(edges):
            origin = raw.info["meas_date"]
            onset = edges[:, 0] + (raw.first_time if origin else 0.0)
            marks = mne.Annotations(onset, edges[:, 1] - edges[:, 0], "BAD_ACQ_SKIP", orig_time=origin)
            raw.set_annotations(raw.annotations + marks)

    def _at_one_rate(self, raw: Any, where: str) -> Any:
        import mne

        rate = raw.info["sfreq"]
        if self.resample is None:
            if self.rate is not None and rate != self.rate:
                raise DataError(
                    f"{where}: {rate:g} Hz where the runs before have {self.rate:g} Hz; "
                    "resample=… brings all to one rate"
                )
            self.rate = rate
            return raw
        if rate != self.resample:  # the events are kept as annotations: pulses of one sample would be lost
            raw.drop_channels([raw.ch_names[i] for i in mne.pick_types(raw.info, stim=True)])
            raw.resample(self.resample, verbose=False)
        return raw

    def count(self, epochs: Any) -> Any:
        """The epochs of a run, or None, which MOABB passes over, where none is left."""
        self.drop_log += epochs.drop_log
        return epochs if len(epochs) else None

    def explain(self, error: Exception) -> DataError:
        """Say what went wrong while MOABB read and cut the recording."""
        if self.drop_log and all(self.drop_log):
            return UnusableSubject(f"{self.name}: 0 usable trials ({'; '.join(self.notes())})")
        if self.n_runs and not self.n_events:
            return UnusableSubject(f"{self.name}: no trial of {', '.join(self.events)} in {self.n_runs} runs")
        return DataError(f"{self.name}: the recording cannot be read ({type(error).__name__}: {error})")

    def notes(self) -> tuple[str, ...]:
        """Notes about the trials that MOABB left out."""
        drop_log = self.drop_log
        gaps = [i for i, why in enumerate(drop_log) if any(w.upper().startswith("BAD") for w in why)]
        other = [i for i, why in enumerate(drop_log) if why and i not in gaps]
        cause = f"NaN or infinite samples in {', '.join(self.broken)}" if self.broken else "marked as bad"
        kinds = {kind for i in other for kind in drop_log[i]}
        reason = "cut short" if kinds <= {"TOO_SHORT", "NO_DATA"} else ", ".join(sorted(kinds))
        return tuple(
            f"{len(some)} of {len(drop_log)} trials left out ({places(some)}): {why}"
            for some, why in ((gaps, cause), (other, reason))
            if some
        )


@cache
def _electrodes() -> frozenset[str]:
    return frozenset(standard_montage().ch_names)


def _bridge(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """The signal with what is not finite replaced by straight lines."""
    good = np.isfinite(signal)
    return np.interp(np.arange(len(signal)), np.flatnonzero(good), signal[good])


def _silence(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """A flat line."""
    return np.zeros(len(signal))


def places(indices: Sequence[int], limit: int = 10) -> str:
    """Trials in words, such as ``"trials 3, 8, 9"``: counted from 0 in the order of recording."""
    more = " …" if len(indices) > limit else ""
    return f"trial{'s' * (len(indices) > 1)} {', '.join(map(str, indices[:limit]))}{more}"


def _without_flat(found: Trials, named: bool) -> Trials:
    """Trials without channels that are flat in most of them, then without trials in which a channel is flat."""
    flat = found.x.std(axis=2) < FLAT
    dead = flat.mean(axis=0) > 0.5 if len(found) else np.zeros(len(found.channels), dtype=bool)
    names = [name for name, gone in zip(found.channels, dead, strict=True) if gone]
    if dead.all() or (named and names):
        raise DataError(
            f"{found.name}: {', '.join(names)} flat (below {FLAT:g} µV), or not finite, in more than half of the "
            "trials; " + ("is the unit of the recording right?" if dead.all() else "name other channels")
        )
    bad = flat[:, ~dead].any(axis=1)
    notes = [f"{', '.join(names)} left out: flat, or not finite, in more than half of the trials"] * bool(names)
    if bad.any():
        culprits = [c for c, f in zip(found.channels, (flat & ~dead).any(axis=0), strict=True) if f]
        where, of = places(np.flatnonzero(bad).tolist()), "remaining trials" if found.notes else "trials"
        notes.append(f"{int(bad.sum())} of {len(found)} {of} left out ({where}): flat {', '.join(culprits)}")
    return replace(
        found,
        x=found.x[~bad][:, ~dead],
        y=found.y[~bad],
        session=found.session[~bad],
        channels=tuple(c for c in found.channels if c not in names),
        notes=(*found.notes, *notes),
    )
