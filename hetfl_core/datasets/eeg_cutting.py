"""A person's recording, run by run: checked, repaired, filtered and cut into trials, by MNE [1]_.

What is wrong with a recording is either repaired by a rule, with an `EEGWarning` that names person, run, channel and
trials, or refused with a `DataError` that says what to do:

======================================  ========================================================================
``EEG C3-REF``, ``Fc5.``, ``CZ``, T3    read as C3, FC5, Cz, T7; two channels of one electrode are refused
a name outside 10–05                    left out; refused where it was asked for
a channel asked for is missing          refused; the message lists those that are there
a channel that one run lacks,           left out of all runs; where it was asked for, a missing one is refused, and
or that its recorder marked as bad      a bad one is used
channels in another order               brought into that of the first run
NaN or infinite samples                 the trials that they touch are left out; the filter works on what lies
                                        between such gaps. A channel that has little else in a run counts as flat
a flat channel (sd below `FLAT`)        left out where it is flat in more than half of the trials (refused if it was
                                        asked for by name); else the trials where it is flat are left out
signals outside `QUIET` … `LOUD`        refused: the unit is not the volt
a run `APART` times as loud as others   told
a channel `SINGLE` times as loud as     told: of another unit, or loose
the others of its run
a channel that stays at its largest or  told: the amplifier was saturated
smallest value for `CLIPPED` of a run
two channels with one signal            told
rank-deficient covariances              Ledoit–Wolf shrinkage makes them invertible, with a warning; refused where
                                        they are still singular
an average reference in some runs only  refused
projectors that were not applied        not applied, and told
runs at different sampling rates        refused, unless `resample` names the one rate that all are brought to
a mark with blanks around it            is the mark without them
the same mark again within `REPEAT`     counts once
trials that overlap                     left out, both of them; refused where most do
a run without any of the marks          passed over; where no run has one, refused with the marks that are there
fewer than `MIN_TRIALS` usable trials   refused; a federation of `TABLE_S1` leaves the subject out, with a warning
======================================  ========================================================================

References
----------
.. [1] A. Gramfort et al. MEG and EEG data analysis with MNE-Python. Frontiers in Neuroscience 7:267, 2013.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core.datasets.eeg_runs import RecordedRun, choose_channels, trimmed
from hetfl_core.datasets.recordings import CLASSES
from hetfl_core.datasets.registry import DataError

FLAT = 1e-3
"""Standard deviation in the band, µV, below which a channel is flat: a thousandth of what an amplifier resolves."""

QUIET, LOUD = 0.03, 500.0
"""Standard deviations in the band, µV, between which a run is EEG; what is a thousand times as much or as little, as
another unit would have it, is not."""

SINGLE = 50.0
"""Ratio of a channel's standard deviation and the median of all from which on it is told."""

CLIPPED = 1e-3
"""Share of a channel's samples that stay at its largest or smallest value from which on it is told."""

APART = 10.0
"""Ratio of two runs' standard deviations from which on it is told."""

REPEAT = 0.1
"""Time, s, within which a mark that comes again is the same one: no cue is as fast, and a bouncing trigger is."""

MIN_TRIALS = 8
"""Usable trials below which a subject is refused."""


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
    classes : tuple of str
        Name of each label.
    test : ndarray of bool, shape (n,), optional
        Which trials are the test set, where that is settled.
    """

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    session: NDArray[np.str_]
    channels: tuple[str, ...]
    rate: float
    name: str
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = CLASSES
    test: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.y)


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


def places(indices: Sequence[int], limit: int = 10) -> str:
    """Trials in words, such as ``"trials 3, 8, 9"``: counted from 0 in the order of recording."""
    more = " …" if len(indices) > limit else ""
    return f"trial{'s' * (len(indices) > 1)} {', '.join(map(str, indices[:limit]))}{more}"


# --- cutting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cutting:
    """How runs are cut.

    Parameters
    ----------
    marks : dict of str to str
        Class of each mark (as `trimmed` has it).
    classes : sequence of str
        Names whose places are the labels.
    interval : tuple of float
        Begin and end of a trial after its mark, s.
    band : tuple of float
        Hz.
    channels : tuple of str
        Electrodes asked for; with none, all.
    resample : float, optional
        Hz.
    factor : float
        From the recording's unit to µV.
    sources : tuple of str
        Of a run's marks, which are looked through first.
    """

    marks: Mapping[str, str]
    classes: Sequence[str]
    interval: tuple[float, float]
    band: tuple[float, float]
    channels: tuple[str, ...] = ()
    resample: float | None = None
    factor: float = 1e6
    sources: tuple[str, str] = ("written", "pulse")

    def marks_of(self, run: RecordedRun) -> list[tuple[int, str]]:
        """Sample and class of the marks of a run, in their order, from the first source that has some."""
        for source in self.sources:
            if found := [(s, label) for s, text in run.marks[source] if (label := self.label(text))]:
                return sorted(found, key=lambda mark: mark[0])
        return []

    def label(self, text: str) -> str | None:
        """Class of a mark, which BrainVision calls ``"Stimulus/S 1"``, and its user perhaps ``"S 1"``."""
        return self.marks.get(text) or self.marks.get(text.partition("/")[2] or text)


@dataclass
class Pieces:
    """What was cut of a run, and what happened to each of its marks.

    Parameters
    ----------
    x : ndarray, shape (n, q, samples)
        µV.
    y : list of int
        Labels.
    fate : list of str
        For each mark, why there is no trial of it; ``""`` where there is one.
    broken : list of str
        Electrodes with gaps.
    rate : float
        Hz.
    clipped : ndarray, shape (q,)
        Share of the samples of each channel that stay at an end of its range.
    """

    x: NDArray[np.float64]
    y: list[int]
    fate: list[str]
    rate: float
    broken: list[str]
    clipped: NDArray[np.float64]

    @property
    def loudness(self) -> float:
        """Median over trials and channels, but for flat ones, of the standard deviation, µV; NaN for none."""
        sd = self.x.std(axis=2) if len(self.x) else np.zeros(0)
        return float(np.median(sd[sd >= FLAT])) if (sd >= FLAT).any() else float("nan")

    def odd(self, channels: Sequence[str]) -> list[str]:
        """What is odd of single channels: far louder than the others, or the very signal of another one."""
        if not len(self.x):
            return []
        sd = np.median(self.x.std(axis=2), axis=0)
        found = [
            f"{channels[i]} is {sd[i] / np.median(sd):.3g} times as loud as the other channels: another unit, or loose?"
            for i in np.flatnonzero((sd > SINGLE * np.median(sd)) & (np.median(sd) >= FLAT)).tolist()
        ]
        found += [
            f"{channels[i]} stays at its largest or smallest value for {100 * self.clipped[i]:.2g} % of the samples: "
            "was the amplifier saturated?"
            for i in np.flatnonzero(self.clipped > CLIPPED).tolist()
        ]
        seen: dict[bytes, str] = {}
        for i in np.flatnonzero(sd >= FLAT).tolist():
            first = seen.setdefault(hashlib.sha256(self.x[:, i].tobytes()).digest(), channels[i])
            if first != channels[i]:
                found.append(f"{first} and {channels[i]} are one signal: leave one of them out, or read them again")
        return found

    @property
    def averaged(self) -> bool:
        """Whether the channels of all trials sum to zero."""
        return bool(len(self.x) and self.x.shape[1] > 1 and self.x.mean(axis=1).var() < 1e-5 * self.x.var())


def cut(
    name: str, runs: Sequence[RecordedRun], how: Cutting, n_sessions: int | None = None, named: bool = False
) -> Trials:
    """The trials of one person, by the rules of this module.

    Parameters
    ----------
    name : str
        The person.
    runs : sequence of RecordedRun
        At least one.
    how : Cutting
    n_sessions : int, optional
        Sessions that there should be; by default those of the runs.
    named : bool
        Whether a user named the channels, so that none may be left out.

    Returns
    -------
    Trials

    Raises
    ------
    DataError
        If the recording has a fault that no rule repairs.
    UnusableSubject
        If fewer than `MIN_TRIALS` trials are left.

    Warns
    -----
    EEGWarning
        For each fault that was repaired.
    """
    channels, notes = choose_channels(name, runs, how.channels)
    marks = {run.label: _single(how.marks_of(run), run.raw.info["sfreq"]) for run in runs}
    if not any(marks.values()):
        told = "; ".join(f"{run.label}: {run.told_marks()}" for run in runs[:3])
        wanted = ", ".join(dict.fromkeys(how.marks.values()))
        raise UnusableSubject(f"{name}: no trial of {wanted} in {len(runs)} runs; the marks there are {told}")
    _check_rates(runs, how, len(channels))
    cuts = {run.label: _pieces(run, marks[run.label], channels, how) for run in runs if marks[run.label]}
    notes += [f"{run.label}: {note}" for run in runs for note in run.notes]
    notes += _told_marks(runs, marks, how) + _left_out(name, cuts, how) + _judged(name, cuts)
    notes += [f"{run}: {what}" for run, pieces in cuts.items() for what in pieces.odd(channels)]
    notes += [note for run in runs for note in _projectors(run)]
    full = [(run, cuts[run.label]) for run in runs if run.label in cuts and len(cuts[run.label].x)]
    if not full:
        raise UnusableSubject(f"{name}: 0 usable trials ({'; '.join(notes)})")
    found = Trials(
        x=np.concatenate([pieces.x for _, pieces in full]),
        y=np.array([label for _, pieces in full for label in pieces.y], dtype=np.int64),
        session=np.array([run.session for run, pieces in full for _ in pieces.y], dtype=np.str_),
        channels=channels,
        rate=full[0][1].rate,
        name=name,
        notes=tuple(notes),
        classes=tuple(how.classes),
    )
    found = _sessions_told(_without_flat(found, named), n_sessions or len({run.session for run in runs}))
    if len(found) < MIN_TRIALS:
        why = f" ({'; '.join(found.notes)})" if found.notes else ""
        raise UnusableSubject(f"{found.name}: {len(found)} usable trials, expected at least {MIN_TRIALS}{why}")
    warn_of(found.name, found.notes, stacklevel=4)
    return found


# --- marks ----------------------------------------------------------------------------------------------------------


def _single(marks: Sequence[tuple[int, str]], rate: float) -> list[tuple[int, str]]:
    """The marks without those that come again within `REPEAT`."""
    last: dict[str, int] = {}
    single = []
    for sample, label in marks:
        if sample - last.get(label, -np.inf) > REPEAT * rate:
            single.append((sample, label))
        last[label] = sample
    return single


def _overlaps(marks: Sequence[tuple[int, str]], rate: float, how: Cutting) -> list[str]:
    """For each mark, with which other trial its own overlaps, in words; else ``""``."""
    length, fate = (how.interval[1] - how.interval[0]) * rate, [""] * len(marks)
    for i, (one, other) in enumerate(pairwise(marks)):
        if other[0] - one[0] < length - 0.5:
            same = f"{one[1]} and {other[1]} at one moment"
            fate[i] = fate[i + 1] = same if one[0] == other[0] else "another trial begins before its end"
    return fate


def _told_marks(runs: Sequence[RecordedRun], marks: Mapping[str, Sequence[tuple[int, str]]], how: Cutting) -> list[str]:
    """Notes about runs and classes without a mark, and about marks that have blanks around them, or repeat."""
    notes = []
    for run in runs:
        if not marks[run.label]:
            notes.append(f"{run.label} passed over, as it has no mark of a class; its marks: {run.told_marks()}")
        if padded := {
            repr(str(d)) for d in run.raw.annotations.description if d != d.strip() and how.label(trimmed(d))
        }:
            notes.append(f"{run.label}: {', '.join(sorted(padded))} read without the blanks around it")
        if more := len(how.marks_of(run)) - len(marks[run.label]):
            notes.append(f"{run.label}: {more} marks repeat the one before within {REPEAT:g} s, and count once")
    seen = {label for each in marks.values() for _, label in each}
    if absent := [label for label in dict.fromkeys(how.marks.values()) if label not in seen]:
        notes.append(f"no mark of {', '.join(absent)}; the marks there are {runs[0].told_marks()}")
    return notes


def _left_out(name: str, cuts: Mapping[str, Pieces], how: Cutting) -> list[str]:
    """Notes about marks of which there is no trial, by reason."""
    fates = [(run, why) for run, pieces in cuts.items() for why in pieces.fate]
    overlap = [(run, why) for run, why in fates if why.startswith("another") or why.endswith("moment")]
    if 2 * len(overlap) > len(fates):
        raise DataError(
            f"{name}: {len(overlap)} of {len(fates)} trials overlap, first in {': '.join(overlap[0])}; interval="
            f"{how.interval} must be shorter than the time between marks, and no class a mark that stands beside others"
        )
    broken = dict.fromkeys(place for pieces in cuts.values() for place in pieces.broken)
    words = {"gap": f"NaN or infinite samples in {', '.join(broken)}"}
    notes = []
    for why in dict.fromkeys(why for _, why in fates if why):
        some = [i for i, (_, each) in enumerate(fates) if each == why]
        where = ", ".join(dict.fromkeys(run for run, each in fates if each == why))
        notes.append(f"{len(some)} of {len(fates)} trials left out ({places(some)}): {words.get(why, why)} in {where}")
    return notes


# --- signals --------------------------------------------------------------------------------------------------------


def _check_rates(runs: Sequence[RecordedRun], how: Cutting, q: int) -> None:
    """Refuse runs at several rates, or at one that is too low for the band, or for covariances of q channels."""
    rates = [float(how.resample or run.raw.info["sfreq"]) for run in runs]
    for run, rate in zip(runs, rates, strict=True):
        if rate != rates[0]:
            raise DataError(
                f"{run.where}: {rate:.10g} Hz where the runs before have {rates[0]:.10g} Hz; "
                "resample=… brings all to one rate"
            )
        if (samples := int((how.interval[1] - how.interval[0]) * rate) + 1) <= q:
            raise DataError(
                f"{run.where}: interval={tuple(how.interval)} holds {samples} samples at {rate:g} Hz, expected more "
                f"than the {q} channels"
            )
        if how.band[1] >= min(rate, run.raw.info["sfreq"]) / 2:
            raise DataError(
                f"{run.where}: band={tuple(how.band)} must end below half the sampling rate, "
                f"{min(rate, run.raw.info['sfreq']) / 2:g} Hz"
            )


def _pieces(run: RecordedRun, marks: Sequence[tuple[int, str]], channels: Sequence[str], how: Cutting) -> Pieces:
    """A run's trials, filtered."""
    import mne

    raw = run.loaded()
    own, fate = [run.channels[place] for place in channels], _overlaps(marks, raw.info["sfreq"], how)
    raw.reorder_channels(own)
    raw.info["bads"] = []
    broken = _mark_gaps(raw, run.where, dict(zip(own, channels, strict=True)))
    clipped = np.array([_clipped(raw[name][0][0]) for name in own])
    seconds = np.array([sample for sample, _ in marks]) / raw.info["sfreq"]
    if how.resample and raw.info["sfreq"] != how.resample:
        raw.resample(how.resample, verbose="error")
    low, high = how.band
    raw.filter(low, high, method="iir", picks="data", verbose="error")
    if not (kept := [i for i, why in enumerate(fate) if not why]):
        return Pieces(np.zeros((0, len(channels), 0)), [], fate, float(raw.info["sfreq"]), broken, clipped)
    events = np.zeros((len(kept), 3), dtype=int)
    events[:, 0] = np.round(seconds[kept] * raw.info["sfreq"]).astype(int) + raw.first_samp
    events[:, 2] = [1 + list(how.classes).index(marks[i][1]) for i in kept]
    begin, end = how.interval
    epochs = mne.Epochs(raw, events, None, begin, end, proj=False, baseline=None, preload=True, verbose="error")
    for i, why in zip(kept, epochs.drop_log, strict=True):
        bad = any(reason.upper().startswith("BAD") for reason in why)
        fate[i] = ("gap" if broken else "marked as bad") if bad else "cut short" if why else ""
    x = epochs.get_data(copy=False) * how.factor if len(epochs) else np.zeros((0, len(channels), 0))
    return Pieces(x, (epochs.events[:, 2] - 1).tolist(), fate, float(raw.info["sfreq"]), broken, clipped)


def _mark_gaps(raw: Any, where: str, places: Mapping[str, str]) -> list[str]:
    """Annotate what is not finite as MNE's filter and epochs expect it, and bridge it by straight lines; say where."""
    import mne

    gap, broken = np.zeros(raw.n_times, dtype=bool), []
    for name in raw.ch_names:
        bad = ~np.isfinite(raw[name][0][0])
        if bad.mean() > 0.5:
            raw.apply_function(lambda x: np.zeros(len(x)), picks=[name], verbose="error")  # dealt with as flat
        elif bad.any():
            gap |= bad
            broken.append(places[name])
            raw.apply_function(_bridge, picks=[name], verbose="error")
    if gap.all():
        raise UnusableSubject(f"{where}: at no moment are all of {', '.join(broken)} finite")
    edges = np.flatnonzero(np.diff(np.r_[False, gap, False])).reshape(-1, 2) / raw.info["sfreq"]
    if len(edges):
        origin = raw.info["meas_date"]
        onset = edges[:, 0] + (raw.first_time if origin else 0.0)
        marks = mne.Annotations(onset, edges[:, 1] - edges[:, 0], "BAD_ACQ_SKIP", orig_time=origin)
        raw.set_annotations(raw.annotations + marks)
    return broken


def _clipped(signal: NDArray[np.float64]) -> float:
    """Share of the samples that stay at the largest or smallest of all; 0 for a flat line."""
    at_end = (signal == signal.max()) | (signal == signal.min())
    return float((at_end[1:] & at_end[:-1]).mean()) if signal.std() else 0.0


def _bridge(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """The signal with what is not finite replaced by straight lines."""
    good = np.isfinite(signal)
    return np.interp(np.arange(len(signal)), np.flatnonzero(good), signal[good])


def _judged(name: str, cuts: Mapping[str, Pieces]) -> list[str]:
    """Refuse another unit, and another reference in some runs; notes about runs that are far louder than others."""
    loud = {run: pieces.loudness for run, pieces in cuts.items() if np.isfinite(pieces.loudness)}
    for run, sd in loud.items():
        if not QUIET <= sd <= LOUD:
            raise DataError(
                f"{name}, {run}: a standard deviation of {sd:.3g} µV in the band, expected {QUIET:g} to {LOUD:g}; is "
                "the unit of the recording right? Else hand over an mne.io.Raw after raw.apply_function(lambda x: …)"
            )
    averaged = {run: pieces.averaged for run, pieces in cuts.items() if len(pieces.x)}
    if len(set(averaged.values())) > 1:
        yes, no = (next(run for run, each in averaged.items() if each == kind) for kind in (True, False))
        raise DataError(
            f"{name}, {yes}: the channels sum to zero (an average reference), but not in {no}; bring all runs to one "
            "reference by raw.set_eeg_reference, or name fewer channels"
        )
    least, most = (pick(loud, key=lambda run: loud[run], default="") for pick in (min, max))
    if most and (ratio := loud[most] / loud[least]) > APART:
        return [f"{most} is {ratio:.3g} times as loud as {least}: are gain, unit and reference the same?"]
    return []


def _projectors(run: RecordedRun) -> list[str]:
    """A note about projectors that the recording carries and that were not applied."""
    waiting = [proj["desc"] for proj in run.raw.info["projs"] if not proj["active"]]
    what = f"projectors not applied ({', '.join(waiting)}); if they should be, hand over raw.apply_proj()"
    return [f"{run.label}: {what}"] if waiting else []


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


def _sessions_told(found: Trials, whole: int) -> Trials:
    """Trials with a note where a session has none: a split by session then tests on another one."""
    left = list(dict.fromkeys(found.session.tolist()))
    if not left or len(left) >= whole:
        return found
    then = f"a split by session tests on session {left[-1]!r}" if len(left) > 1 else "there is no split by session"
    note = f"usable trials in {len(left)} of {whole} sessions only; {then}"
    return replace(found, notes=(*found.notes, note))
