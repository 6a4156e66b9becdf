"""The six motor-imagery recordings of FLIC's Table S1 [1]_: who wore which electrodes, and what they imagined.

All that the rest of the library needs to know of them stands in `TABLE_S1`. A test holds it against what MOABB [2]_
says of its own data sets.

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024. Table S1.
.. [2] V. Jayaram, A. Barachant. MOABB: trustworthy algorithm benchmarking for BCIs. J. Neural Eng. 15(6), 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hetfl_core.datasets.registry import DataError

__all__ = ["CLASSES", "COMMON_CHANNELS", "TABLE_S1"]


CLASSES = ("left_hand", "right_hand", "feet", "tongue", "rest")
"""What can be imagined, in the order of FLIC's labels 0 … 4; the names are MOABB's."""

COMMON_CHANNELS = ("C3", "Cz", "C4")
"""The electrodes that all but BNCI2014-002, whose channels have no published names, share."""


@dataclass(frozen=True)
class Recordings:
    """One data set: a laboratory, its electrodes and its subjects.

    Attributes
    ----------
    name : str
        Name in MOABB's documentation, e.g. ``"BNCI2014-001"``.
    moabb : str
        Name of the class in `moabb.datasets`.
    n_subjects : int
    channels : tuple of str
        The EEG electrodes, in the 10–05 system.
    rate : float
        Samples a second, Hz.
    classes : tuple of str
        Those of `CLASSES` that were asked for, in that order.
    n_trials : int
        Trials of one subject and class, over all sessions.
    n_sessions : int
    interval : tuple of float
        Begin and end of the imagery after the start of a trial, s.
    """

    name: str
    moabb: str
    n_subjects: int
    channels: tuple[str, ...]
    rate: float
    classes: tuple[str, ...]
    n_trials: int
    n_sessions: int
    interval: tuple[float, float]

    @property
    def n_features(self) -> int:
        """Width q(q+1)/2 of a covariance of q channels as a vector."""
        q = len(self.channels)
        return q * (q + 1) // 2


_CAPS = {
    "AlexMI": "Fpz F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8",
    "BNCI2014-001": "Fz FC3 FC1 FCz FC2 FC4 C5 C3 C1 Cz C2 C4 C6 CP3 CP1 CPz CP2 CP4 P1 Pz P2 POz",
    "BNCI2014-002": "FC3 FC1 FCz FC2 FC4 C3 C1 Cz C2 C4 CP3 CP1 CPz CP2 CP4",
    "BNCI2014-004": " ".join(COMMON_CHANNELS),
    "Weibo2014": "Fp1 Fpz Fp2 AF3 AF4 F7 F5 F3 F1 Fz F2 F4 F6 F8 FT7 FC5 FC3 FC1 FCz FC2 FC4 FC6 FT8 T7 C5 C3 C1 Cz C2 "
    "C4 C6 T8 TP7 CP5 CP3 CP1 CPz CP2 CP4 CP6 TP8 P7 P5 P3 P1 Pz P2 P4 P6 P8 PO7 PO5 PO3 POz PO4 PO6 PO8 O1 Oz O2",
    "Zhou2016": "Fp1 Fp2 FC3 FCz FC4 C3 Cz C4 CP3 CPz CP4 O1 Oz O2",
}


def _row(name: str, n_subjects: int, rate: float, classes: str, *numbers: Any) -> Recordings:
    moabb, channels = name.replace("-", "_"), tuple(_CAPS[name].split())
    return Recordings(name, moabb, n_subjects, channels, rate, tuple(classes.split()), *numbers)


_ALL = (
    _row("AlexMI", 8, 512.0, "right_hand feet rest", 20, 1, (0.0, 3.0)),
    _row("BNCI2014-001", 9, 250.0, "left_hand right_hand feet tongue", 144, 2, (2.0, 6.0)),
    _row("BNCI2014-002", 14, 512.0, "right_hand feet", 80, 1, (3.0, 8.0)),
    _row("BNCI2014-004", 9, 250.0, "left_hand right_hand", 360, 5, (3.0, 7.5)),
    _row("Weibo2014", 10, 200.0, "left_hand right_hand feet rest", 80, 1, (3.0, 7.0)),
    _row("Zhou2016", 4, 250.0, "left_hand right_hand feet", 160, 3, (0.0, 5.0)),
)

TABLE_S1: dict[str, Recordings] = {recordings.name: recordings for recordings in _ALL}
"""The six data sets by name, in the paper's order."""


def need(*packages: str) -> dict[str, str]:
    """Versions of the packages of the extra ``eeg``.

    Raises
    ------
    DataError
        If one is not installed.
    """
    try:
        return {package: version(package) for package in packages}
    except PackageNotFoundError as error:
        raise DataError(f"EEG needs the package {error.name}: pip install 'hetfl-core[eeg]'") from error


@cache
def standard_montage() -> Any:
    """MNE's montage of the 10–05 system, under its name of today or, in older versions, of before."""
    import mne

    try:
        return mne.channels.make_standard_montage("colin27_1005")
    except ValueError:
        return mne.channels.make_standard_montage("standard_1005")
