"""The six motor-imagery recordings of FLIC's Table S1 [1]_: who wore which electrodes, and what they imagined.

All that the rest of the library needs to know of them stands in `TABLE_S1`. A test holds it against what MOABB [2]_
says of its own data sets.

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024. Table S1.
.. [2] V. Jayaram, A. Barachant. MOABB: trustworthy algorithm benchmarking for BCIs. J. Neural Eng. 15(6), 2018.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hetfl_core.datasets.registry import DataError

__all__ = ["CLASSES", "COMMON_CHANNELS", "TABLE_S1"]


CLASSES = ("left_hand", "right_hand", "feet", "tongue", "rest")
"""What can be imagined, in the order of FLIC's labels 0 … 4; the names are MOABB's."""

COMMON_CHANNELS = ("C3", "Cz", "C4")
"""The electrodes that all but BNCI2014-002, whose channels have no published names, share by name.

In BNCI2014-004 they are bipolar, the difference of two electrodes near the place; elsewhere they have one reference.
"""


@dataclass(frozen=True)
class Recordings:
    """A data set of recordings: a laboratory, its electrodes and its subjects.

    Parameters
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


def _row(name: str, table: dict[str, Any]) -> Recordings:
    texts = {part: tuple(table[part].split()) for part in ("channels", "classes")}
    return Recordings(name, name.replace("-", "_"), **{**table, **texts, "interval": tuple(table["interval"])})


_TABLES = tomllib.loads(Path(__file__).with_name("recordings.toml").read_text("utf-8"))
TABLE_S1: dict[str, Recordings] = {name: _row(name, table) for name, table in _TABLES.items()}
"""The six data sets by name, in the paper's order."""


def need(*packages: str) -> dict[str, str]:
    """Versions of the packages of the extra ``eeg``.

    Parameters
    ----------
    *packages : str

    Returns
    -------
    dict of str to str
        Version of each.

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
    """MNE's montage of the 10–05 system, under its name of today or, in older versions, of before.

    Returns
    -------
    mne.channels.DigMontage
    """
    import mne

    try:
        return mne.channels.make_standard_montage("colin27_1005")
    except ValueError:
        return mne.channels.make_standard_montage("standard_1005")
