"""What the chapter on EEG shows: one recorded head and eight people, simulated where their files cannot be had."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd

from hetfl_core.datasets import eeg, eeg_people, eeg_simulated, eegmmidb
from hetfl_core.datasets.eeg_head import Physiology
from hetfl_core.datasets.recordings import CLASSES, COMMON_CHANNELS, Recordings
from hetfl_core.datasets.registry import DataError

_NAMES = """
FC5 FC3 FC1 FCz FC2 FC4 FC6 C5 C3 C1 Cz C2 C4 C6 CP5 CP3 CP1 CPz CP2 CP4 CP6 Fp1 Fpz Fp2 AF7 AF3 AFz AF4 AF8
F7 F5 F3 F1 Fz F2 F4 F6 F8 FT7 FT8 T7 T8 T9 T10 TP7 TP8 P7 P5 P3 P1 Pz P2 P4 P6 P8 PO7 PO3 POz PO4 PO8 O1 Oz O2 Iz
"""
CHANNELS = tuple(_NAMES.split())
"""The 64 electrodes of EEGMMIDB, in the order of its files."""

TWIN = Recordings("EEGMMIDB", "PhysionetMI", 1, CHANNELS, 160.0, ("right_hand", "feet"), 22, 1, (2.0, 6.0))
BOTH_HANDS = Physiology(erd=(0.5, 0.5), ipsilateral=(1.0, 1.0), mains_frequency=60.0)
"""Somebody in whom both hands' areas lose half of their amplitude, whichever hand is imagined."""


def recording() -> tuple[Any, str]:
    """Six minutes of subject 1 of EEGMMIDB, runs 6, 10 and 14, or of a simulated person with the same electrodes.

    Returns
    -------
    mne.io.Raw
        Unfiltered, V, with annotations ``"hands"`` and ``"feet"`` where the person begins to imagine moving both.
    str
        ``"real recording"`` or ``"simulated recording"``.
    """
    try:
        raw = eegmmidb.raw((6, 10, 14))
    except DataError:
        return simulated(), "simulated recording"
    raw.annotations.rename({"T0": "rest", "T1": "hands", "T2": "feet"})
    return raw, "real recording"


def simulated() -> Any:
    """The simulated person's recording, an `mne.io.Raw` as of `recording`."""
    import mne

    runs = eeg_simulated.subject_raw(TWIN, 1, settings=BOTH_HANDS)["0"]
    raw = mne.concatenate_raws(list(runs.values()), verbose="error")
    names = {1 + CLASSES.index(label): name for label, name in zip(TWIN.classes, ("hands", "feet"), strict=True)}
    marks = mne.annotations_from_events(mne.find_events(raw, verbose="error"), TWIN.rate, names, verbose="error")
    cues = mne.Annotations(marks.onset + TWIN.interval[0], 0, marks.description)
    return raw.pick("eeg").set_annotations(cues)


def people() -> tuple[pd.DataFrame, str]:
    """Training trials of eight people at C3 and C4, seen as they are and from each person's own mean.

    Returns
    -------
    DataFrame
        A row per trial: ``"person"``; ``"C3"`` and ``"C4"``, log of the power in µV²; ``"own C3"`` and ``"own C4"``,
        diagonal entries of the tangent vector of all electrodes that the eight have in common.
    str
        ``"real people"`` or ``"simulated people"``.
    """
    kinds: tuple[Literal["vectorised", "tangent"], ...] = ("vectorised", "tangent")
    common: tuple[str, ...] = eeg_people.COMMON
    who = "real people"
    try:
        powers, tangents = (eeg_people.eight_people("common", kind) for kind in kinds)
    except DataError:
        powers, tangents = (eeg.simulated("common", datasets="AlexMI", features=k, progress=False) for k in kinds)
        common, who = COMMON_CHANNELS, "simulated people"
    rows, columns = np.triu_indices(len(common))
    diagonal = np.flatnonzero(rows == columns)
    at = [int(diagonal[common.index(name)]) for name in ("C3", "C4")]
    parts = []
    for power, tangent in zip(powers.clients, tangents.clients, strict=True):
        values = np.hstack([np.log(power.x_train.numpy()[:, at]), tangent.x_train.numpy()[:, at]])
        part = pd.DataFrame(values, columns=["C3", "C4", "own C3", "own C4"])
        parts.append(part.assign(person=power.name))
    return pd.concat(parts, ignore_index=True), who
