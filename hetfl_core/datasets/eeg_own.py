"""Recordings of one's own: files or MNE's objects of several people, each with a cap of their own, to a federation.

`trials_of` reads what `mne.io.read_raw` reads, among it EDF, BDF, GDF, BrainVision (``.vhdr``) and FIF; the rules for
what is wrong with a recording stand in `hetfl_core.datasets.eeg_cutting`. `federation_of` makes a client of each
person.

The test trials are settled where the trials are cut, before anything is fitted: the reference point of the tangent
space is the mean of the training trials alone.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hetfl_core import checks
from hetfl_core.datasets.eeg_cutting import Cutting, Trials, UnusableSubject, cut, warn_of
from hetfl_core.datasets.eeg_runs import RecordedRun, choose_channels, electrode, trimmed
from hetfl_core.datasets.eeg_vectors import SubjectCovariances, covariances, split_trials, subject_client, unlike
from hetfl_core.datasets.recordings import need
from hetfl_core.datasets.registry import DataError
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.federation import Client, Federation


def trials_of(
    recordings: Mapping[str, Any],
    classes: Mapping[Any, str] | Sequence[str],
    channels: Sequence[str] | Literal["common"] | None = None,
    interval: tuple[float, float] = (0.0, 4.0),
    band: tuple[float, float] = (8.0, 30.0),
    resample: float | None = None,
    split: Literal["session", "random"] = "session",
    seed: int = 0,
) -> dict[str, Trials]:
    """The trials of several people, from recordings of one's own.

    Parameters
    ----------
    recordings : dict of str to (sequence of) path or mne.io.BaseRaw
        Each person's recordings by the person's name, in the order in which they were made. Each is a session. MNE's
        objects are not changed.
    classes : dict of str to str, or sequence of str
        What each mark stands for, such as ``{"T1": "left_hand", "T2": "right_hand"}``; several marks may stand for one
        class. A mark is the text of an annotation or, in a recording that has none of these, the number of a pulse in
        a trigger channel. Where marks are called as their classes, a sequence of them will do. Labels are the places of
        the classes in the order given here. All other marks are passed over.
    channels : sequence of str, or "common", optional
        Electrodes for everybody, in this order; or those that all people have; by default each person's own.
    interval : tuple of float
        Begin and end of a trial after its mark, s.
    band : tuple of float
        Lower and upper edge of the band-pass, Hz: a Butterworth filter run forwards and backwards.
    resample : float, optional
        Rate that all runs are brought to, Hz; by default each person keeps theirs.
    split : {"session", "random"}
        Whether a person's last session is the test set. Where there is one session, and with ``"random"``, a random
        quarter of the trials of each class is.
    seed : int
        Of the random quarter.

    Returns
    -------
    dict of str to Trials
        By person. ``x`` has shape (n, q, samples), µV, with the q electrodes of the person's cap; ``test`` says which
        trials are the test set, and ``notes`` what was wrong with a recording.

    Raises
    ------
    DataError
        If a recording cannot be read, or has a fault that no rule repairs; the message names person, run and channel,
        and says what to do.
    UnusableSubject
        If a person has fewer than 8 usable trials, or training trials of one class only.
    ValueError, TypeError
        For arguments with which nothing can be read.

    Warns
    -----
    EEGWarning
        For each fault that was repaired, a class that is missing from the training or the test trials, and a person
        with one session only.
    """
    marks = _marks(classes)
    begin, end = _interval(interval)
    checks.frequency_band("band", band)
    if not band[0]:
        raise WrongValue(f"band must begin above 0 Hz, got {checks.shown(band)}")
    if resample is not None:
        checks.number("resample", resample, above=0)
    checks.choice("split", split, ("session", "random"))
    checks.seed(seed)
    common = isinstance(channels, str) and channels == "common"
    wanted = () if channels is None or common else _places(channels)
    people = {name: _in_time(_runs(name, given)) for name, given in _people(recordings).items()}
    left_out: dict[str, list[str]] = {}
    if common:
        wanted, left_out = _common(people)
    labels = tuple(dict.fromkeys(marks.values()))
    how = Cutting(marks, labels, (begin, end), (float(band[0]), float(band[1])), wanted, resample)
    found = {}
    for name, runs in people.items():
        found[name] = cut(name, runs, how, named=channels is not None)
    _refuse_twice(found)
    for name, trials in found.items():
        found[name] = _settled(trials, seed, split, left_out.get(name, []))
    return found


def federation_of(
    people: Mapping[str, Trials | SubjectCovariances],
    features: Literal["tangent", "vectorised"] = "tangent",
    reference: Literal["train", "all"] = "train",
    estimator: str = "lwf",
    name: str = "recordings",
) -> Federation:
    """People as clients, each with the width q(q+1)/2 of its own cap of q electrodes.

    Parameters
    ----------
    people : dict of str to Trials or SubjectCovariances
        As `trials_of` returns them, or their `covariances`; all with the same classes.
    features : {"tangent", "vectorised"}
        Coordinates in the tangent space at the person's mean covariance, or the covariance's upper triangle, µV².
    reference : {"train", "all"}
        Which trials that mean is over. ``"all"`` leaks test trials into the features, and is there to measure by how
        much.
    estimator : str
        Of the covariances, of `pyriemann.estimation.Covariances`.
    name : str
        Of the federation.

    Returns
    -------
    Federation
        A client for each person, inputs float32. Features are called by their electrodes, ``"C3–Cz"``, so that methods
        which average what is learned of each feature refuse caps of other electrodes. ``info["subjects"]`` has each
        person's electrodes, ``info["notes"]`` what was wrong with a recording.

    Raises
    ------
    DataError, UnusableSubject
        If covariances are singular, or the training trials of a person are of one class only.
    ValueError, TypeError
        If there is nobody, or people have other classes.
    """
    if not checks.mapping("people", people):
        raise WrongValue("people must hold the trials of at least one person, got {}")
    for who, of in people.items():
        checks.instance(f"people[{who!r}]", of, Trials, SubjectCovariances)
    first = next(iter(people.values()))
    for who, of in people.items():
        if of.classes != first.classes:
            raise WrongValue(f"people must have the same classes: {first.name} has {first.classes}, {who} {of.classes}")
    checks.nonempty_strs(estimator=estimator, name=name)
    of_each = {
        who: replace(of if isinstance(of, SubjectCovariances) else covariances(of, estimator), name=who)
        for who, of in people.items()
    }
    clients = [_client(of, features, reference) for of in of_each.values()]
    info = {
        "settings": {"features": features, "reference": reference, "estimator": estimator},
        "subjects": {
            who: {"electrodes": len(of.channels), "channels": list(of.channels)} for who, of in of_each.items()
        },
        "notes": {who: list(of.notes) for who, of in of_each.items() if of.notes},
        "class_names": [label.replace("_", " ") for label in first.classes],
        "simulated": False,
    }
    return Federation(clients, len(first.classes), name, info)


def _client(of: SubjectCovariances, features: Any, reference: Any) -> Client:
    made = subject_client(of, features, reference)
    names = ["–".join(sorted(pair)) for pair in combinations_with_replacement(of.channels, 2)]  # the upper triangle
    return Client(made.x_train, made.y_train, made.x_test, made.y_test, made.name, names)


# --- arguments ------------------------------------------------------------------------------------------------------


def _marks(classes: Any) -> dict[str, str]:
    """Class of each mark, as `trimmed` has it."""
    if isinstance(classes, str):
        raise WrongType(f"classes must be a mapping of marks to classes, or a sequence, got {classes!r}")
    pairs = classes.items() if isinstance(classes, Mapping) else [(c, c) for c in checks.sequence("classes", classes)]
    marks: dict[str, str] = {}
    for mark, label in pairs:
        checks.nonempty_str(f"classes[{mark!r}]", label)
        checks.nonempty_str("a mark in classes", trimmed(mark))
        if marks.setdefault(trimmed(mark), label) != label:
            raise WrongValue(f"classes: mark {trimmed(mark)!r} stands for {marks[trimmed(mark)]} and for {label}")
    if len(set(marks.values())) < 2:
        raise WrongValue(f"classes must name at least two classes, got {checks.shown(classes)}")
    return marks


def _interval(interval: Any) -> tuple[float, float]:
    with suppress(ValueError, TypeError):
        begin, end = checks.floats("interval", interval, 1).tolist()
        if begin < end:
            return begin, end
    raise WrongValue(
        f"interval must be begin and end of a trial after its mark, s, the begin first, got {checks.shown(interval)}"
    )


def _places(channels: Any) -> tuple[str, ...]:
    if isinstance(channels, str):
        raise WrongValue(f"channels must be 'common' or a sequence of electrodes, got {channels!r}")
    places = tuple(electrode(name) or name for name in checks.names("channels", channels))
    if not places or len(set(places)) < len(places):
        raise WrongValue(f"channels must name at least one electrode, and each once, got {checks.shown(channels)}")
    return places


def _people(recordings: Any) -> dict[str, list[Any]]:
    """Each person's recordings as a list."""
    if not checks.mapping("recordings", recordings):
        raise WrongValue("recordings must hold those of at least one person, got {}")
    found = {}
    for name, given in recordings.items():
        checks.nonempty_str("a person's name in recordings", name)
        single = isinstance(given, str | Path) or hasattr(given, "annotations")
        if not single and (isinstance(given, Mapping | bytes) or not isinstance(given, Iterable)):
            raise WrongType(f"recordings[{name!r}] must be a path, an mne.io.Raw or a sequence of them, got {given!r}")
        found[name] = [given] if single else list(given)
        if not found[name]:
            raise WrongValue(f"recordings[{name!r}] must hold at least one recording, got none")
    return found


# --- reading --------------------------------------------------------------------------------------------------------


def _runs(name: str, given: Sequence[Any]) -> list[RecordedRun]:
    need("mne")
    import mne

    runs = []
    for i, each in enumerate(given, 1):
        if isinstance(each, mne.io.BaseRaw):
            runs.append(RecordedRun(name, f"run {i}", str(i), each))
        elif isinstance(each, str | Path):
            path = Path(each).expanduser()
            label = f"run {i} ({path.name})"
            runs.append(RecordedRun(name, label, str(i), *_read(path, f"{name}, {label}")))
        else:
            raise WrongType(
                f"recordings[{name!r}] must hold paths or objects of mne.io.BaseRaw, got {checks.shown(each)}"
            )
    return runs


def _read(path: Path, where: str) -> tuple[Any, tuple[str, ...]]:
    """What MNE makes of a file, whose signals are read when they are needed, and what it warns of."""
    import mne

    if not path.exists():
        raise DataError(f"{where}: there is no file {path}")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            raw = mne.io.read_raw(path, preload=False, verbose="warning")
        except Exception as error:  # each reader raises its own kinds for a file that is not what it should be
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            raise DataError(
                f"{where}: the file cannot be read ({why}). Name the .edf, .bdf, .gdf or .fif, of BrainVision the "
                ".vhdr, or read it yourself and hand over the mne.io.Raw"
            ) from error
    texts = [" ".join(str(each.message).split()) for each in told if issubclass(each.category, RuntimeWarning)]
    return raw, tuple(text for text in dict.fromkeys(texts) if "naming conventions" not in text)


def _in_time(runs: list[RecordedRun]) -> list[RecordedRun]:
    """The runs, with a note where one was recorded before the one that stands before it."""
    for i, (one, other) in enumerate(pairwise(runs), 1):
        dates = [run.raw.info["meas_date"] for run in (one, other)]
        if all(dates) and dates[1] < dates[0]:
            note = f"recorded on {dates[1]:%Y-%m-%d}, before {one.label}; the last one that is named is the test set"
            runs[i] = replace(other, notes=(*other.notes, note))
    return runs


def _common(people: Mapping[str, Sequence[RecordedRun]]) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Electrodes that all people have, in the order of the first; and why a person lacks some that a run has."""
    own = {name: choose_channels(name, runs, ()) for name, runs in people.items()}
    first, *others = (places for places, _ in own.values())
    if shared := tuple(place for place in first if all(place in other for other in others)):
        return shared, {name: notes for name, (_, notes) in own.items()}
    told = "; ".join(f"{name} has {', '.join(places)}" for name, (places, _) in own.items())
    raise DataError(f"channels='common': no electrode is everybody's: {told}")


def _refuse_twice(found: Mapping[str, Trials]) -> None:
    """Refuse a recording that is there twice: it would be learnt and tested on."""
    seen: dict[str, str] = {}
    for name, trials in found.items():
        for session in dict.fromkeys(trials.session.tolist()):
            signals = hashlib.sha256(trials.x[trials.session == session].tobytes()).hexdigest()
            where = f"{name}, run {session}"
            if signals in seen:
                raise DataError(f"{where}: the same signals as {seen[signals]}; name each recording once")
            seen[signals] = where


def _settled(trials: Trials, seed: int, by: Any, notes: Sequence[str]) -> Trials:
    """Trials with their test set; what there is to say of it is told."""
    train, test = split_trials(trials.y, trials.session, trials.name, seed, by)
    if len(set(trials.y[train].tolist())) < 2:
        only = ", ".join(trials.classes[label] for label in sorted(set(trials.y[train].tolist())))
        why = f" ({'; '.join(trials.notes)})" if trials.notes else ""
        raise UnusableSubject(
            f"{trials.name}: {len(train)} training trials, all of {only or 'no class'}, expected two classes{why}; "
            'split="random" deals the trials of all sessions'
        )
    is_test = np.zeros(len(trials), dtype=bool)
    is_test[test] = True
    trials = replace(trials, test=is_test)
    one = "one session: a random quarter of its trials is the test set, which is easier than another day"
    notes = [*notes, *[one] * (by == "session" and len(set(trials.session.tolist())) == 1), *unlike(trials)]
    warn_of(trials.name, notes, stacklevel=4)
    return replace(trials, notes=(*trials.notes, *notes))
