"""One run of a recording of one's own or another's, as it was recorded: what its channels and marks mean.

The rules stand in `hetfl_core.datasets.eeg_cutting`, which cuts runs into trials.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from hetfl_core.datasets.recordings import standard_montage
from hetfl_core.datasets.registry import DataError

# --- names ----------------------------------------------------------------------------------------------------------

_OLD = {"t3": "T7", "t4": "T8", "t5": "P7", "t6": "P8"}
_REFERENCE = re.compile(r"(?<=\w)[-_: ]+(ref\w*|le|ar|avg|car|[am][12]|a1\+?a2|m1\+?m2)$", re.IGNORECASE)


@cache
def _electrodes() -> dict[str, str]:
    """Electrodes of the 10–05 system by their names in small letters; four have an old name, too."""
    return {name.lower(): name for name in standard_montage().ch_names} | _OLD


def electrode(name: str) -> str | None:
    """The electrode of the 10–05 system that a channel's name means: C3 for ``"EEG C3-REF"``, ``"c3.."`` or ``"C3"``.

    Parameters
    ----------
    name : str

    Returns
    -------
    str or None
        None for a name that means none, as that of a difference of two electrodes, ``"C3-P3"``.
    """
    bare = re.sub(r"^eeg[-_: .]*", "", name.strip().rstrip(". "), flags=re.IGNORECASE)
    return _electrodes().get(_REFERENCE.sub("", bare).lower())


def trimmed(mark: object) -> str:
    """A mark without blanks around it, and with single ones within.

    Parameters
    ----------
    mark : object
        A text, or the number of a pulse.

    Returns
    -------
    str
    """
    return " ".join(str(mark).replace("\0", " ").split())


# --- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedRun:
    """One run, as it was recorded.

    Parameters
    ----------
    person : str
    label : str
        Which it is, e.g. ``"run 2 (anna-2.edf)"``.
    session : str
    raw : mne.io.BaseRaw
        It is not changed, and its signals need not have been read.
    notes : tuple of str
        What its reader found odd.
    """

    person: str
    label: str
    session: str
    raw: Any
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Whose and which it is, for messages."""
        return f"{self.person}, {self.label}"

    def loaded(self) -> Any:
        """A copy whose signals have been read."""
        try:
            return self.raw.copy().load_data(verbose="error")
        except Exception as error:  # each reader raises its own kinds where a file is damaged, or a part of it is gone
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{self.where}: the signals cannot be read ({why})") from error

    @cached_property
    def channels(self) -> dict[str, str]:
        """What the recording calls its EEG channels, by electrode; by its own name where it is none."""
        import mne

        there = [self.raw.ch_names[i] for i in mne.pick_types(self.raw.info, eeg=True, exclude=[])]
        if not there:
            kinds = ", ".join(f"{kind} ({n})" for kind, n in Counter(self.raw.get_channel_types()).items())
            raise DataError(f"{self.where}: no EEG channel among {kinds}; raw.set_channel_types says which are EEG")
        found: dict[str, str] = {}
        for name in there:
            place = electrode(name) or name
            if place in found:
                raise DataError(
                    f"{self.where}: channels {found[place]} and {name} are both {place}; drop or rename one of them"
                )
            found[place] = name
        return found

    @cached_property
    def bads(self) -> set[str]:
        """Electrodes that the recording marks as bad."""
        return {place for place, name in self.channels.items() if name in self.raw.info["bads"]}

    @cached_property
    def usable(self) -> list[str]:
        """Electrodes of the 10–05 system that are not marked as bad."""
        return [place for place in self.channels if electrode(place) and place not in self.bads]

    @cached_property
    def marks(self) -> dict[str, list[tuple[int, str]]]:
        """Sample, from the beginning, and text of each mark: ``"written"`` as annotation or sent as ``"pulse"``."""
        import mne

        raw, names = self.raw, {trimmed(d) for d in self.raw.annotations.description}
        numbers = {name: i for i, name in enumerate(sorted(names), 1) if not re.match("bad|edge", name, re.IGNORECASE)}
        written, sent = np.zeros((0, 3), dtype=int), np.zeros((0, 3), dtype=int)
        if numbers:
            written, _ = mne.events_from_annotations(raw, lambda text: numbers.get(trimmed(text)), verbose="error")
        if len(mne.pick_types(raw.info, stim=True)):
            # the bits above tell the amplifier's state
            sent = mne.find_events(raw, shortest_event=0, mask=0xFFFF, mask_type="and", verbose="error")
        texts = {number: name for name, number in numbers.items()}
        return {
            "written": [(int(s - raw.first_samp), texts[code]) for s, _, code in written],
            "pulse": [(int(s - raw.first_samp), str(code)) for s, _, code in sent],
        }

    def told_marks(self) -> str:
        """The marks in words, with their numbers."""
        counts = Counter(text for source in self.marks.values() for _, text in source)
        return ", ".join(f"{text!r} ({n})" for text, n in counts.most_common(12)) or "none"


# --- channels -------------------------------------------------------------------------------------------------------


def choose_channels(name: str, runs: Sequence[RecordedRun], wanted: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The electrodes of all runs of a person, and what there is to say of those that are left out.

    Parameters
    ----------
    name : str
    runs : sequence of RecordedRun
    wanted : sequence of str
        Electrodes asked for; with none, all that are usable in each run.

    Returns
    -------
    channels : tuple of str
    notes : list of str

    Raises
    ------
    DataError
        If one that was asked for is missing, or no run has any in common.
    """
    if wanted:
        for run in runs:
            _check_wanted(run, wanted)
        bad = {place: [run.label for run in runs if place in run.bads] for place in wanted}
        told = [
            f"{place} is marked as bad in {', '.join(some)}, and used as asked" for place, some in bad.items() if some
        ]
        return tuple(wanted), told
    channels = tuple(place for place in runs[0].usable if all(place in run.usable for run in runs))
    faults: dict[str, list[str]] = {}
    for place in dict.fromkeys(place for run in runs for place in run.channels):
        if place not in channels:
            faults.setdefault(_fault(runs, place), []).append(place)
    notes = [f"{', '.join(some)} left out: {why}" for why, some in faults.items()]
    if not channels:
        raise DataError(f"{name}: no channel is left ({'; '.join(notes)}); rename channels by raw.rename_channels")
    return channels, notes


def _fault(runs: Sequence[RecordedRun], place: str) -> str:
    if not electrode(place):
        return "in no place of the 10–05 system"
    lacking = [run.label for run in runs if place not in run.channels]
    bad = [run.label for run in runs if place in run.bads]
    return f"not in {', '.join(lacking)}" if lacking else f"marked as bad in {', '.join(bad)}"


def _check_wanted(run: RecordedRun, wanted: Sequence[str]) -> None:
    """Refuse electrodes that a run lacks, or that are none."""
    if missing := [place for place in wanted if place not in run.channels]:
        near = difflib.get_close_matches(missing[0], run.channels, 1)
        offer = f" (did you mean {near[0]}?)" if near else ""
        there = ", ".join(run.channels)
        raise DataError(f"{run.where}: no channel {', '.join(missing)}{offer}; there are {there}")
    if unknown := [place for place in wanted if not electrode(place)]:
        raise DataError(
            f"{run.where}: {', '.join(unknown)} in no place of the 10–05 system; rename the channels, or name those "
            "that are electrodes"
        )
