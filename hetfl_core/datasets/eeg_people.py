"""Eight real people with three kinds of caps who imagined moving the left or the right hand [1]_ [2]_.

Seven were recorded in one laboratory with 5 or 6 electrodes, one elsewhere with 64 (`hetfl_core.datasets.eegmmidb`).

References
----------
.. [1] Data sets of motor imagery EEG. Laboratory for Advanced Brain Signal Processing (A. Cichocki), BSI, RIKEN, with
   Shanghai Jiao Tong University, 2010.
.. [2] G. Schalk, D. J. McFarland, T. Hinterberger, N. Birbaumer, J. R. Wolpaw. BCI2000: a general-purpose
   brain–computer interface (BCI) system. IEEE Trans. Biomed. Eng. 51(6), 2004.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal

import numpy as np

from hetfl_core import checks
from hetfl_core.datasets import eegmmidb
from hetfl_core.datasets.clinical import Size
from hetfl_core.datasets.eeg_cutting import QUIET, Trials
from hetfl_core.datasets.eeg_own import federation_of
from hetfl_core.datasets.eeg_runs import electrode
from hetfl_core.datasets.eeg_vectors import split_trials
from hetfl_core.datasets.fewer import tenth
from hetfl_core.datasets.recordings import need
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation

__all__ = ["eight_people"]

PEOPLE = ("A", "B", "C", "D", "E", "F", "H")
"""The people of the one laboratory, as it calls them."""

CLASSES = ("left_hand", "right_hand")

COMMON = ("C3", "CP3", "C4", "CP4", "Cz")
"""The electrodes that all eight have."""


def eight_people(
    channels: Literal["own", "common"] = "own",
    features: Literal["tangent", "vectorised"] = "tangent",
    band: tuple[float, float] = (8.0, 30.0),
    seed: int = 0,
    size: Size = "all",
) -> Federation:
    """Eight people as clients, each with the features of its own cap; left or right hand, imagined.

    Parameters
    ----------
    channels : {"own", "common"}
        Each person's electrodes, 5, 6 or 64, or the five that all have, before covariances are made of them. (Columns
        of one name of different caps, as `Federation.of_common_columns` takes them, are places in different spaces.)
    features : {"tangent", "vectorised"}
        As of `hetfl_core.datasets.eeg.federation_of`. The reference point is that of the training trials.
    band : tuple of float
        Lower and upper edge of the band-pass, Hz.
    seed : int
        Of the test set, a random quarter of the trials of each class; of EEGMMIDB-1 it is the last run.
    size : {"all", "tenth"}
        Whether a person has all training trials, or a tenth of each class, but at least 4; the test trials are the
        same, and the reference point is that of the trials that are left.

    Returns
    -------
    Federation
        Clients ``"A"`` … ``"F"``, ``"H"`` with 15 or 21 features and ``"EEGMMIDB-1"`` with 2 080, or all with 15.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged.

    Warns
    -----
    EEGWarning
        For what is repaired in a recording.
    """
    checks.choice("channels", channels, ("own", "common"))
    checks.choice("features", features, ("tangent", "vectorised"))
    checks.frequency_band("band", band)
    checks.seed(seed)
    checks.choice("size", size, ("all", "tenth"))
    everybody = _everybody(channels == "common", (float(band[0]), float(band[1])))
    fed = federation_of({of.name: _split(of, seed, size) for of in everybody}, features, name="eeg.eight_people")
    fed.info["settings"].update(channels=channels, band=list(band), seed=seed, size=size)
    fed.info.update(
        source="RIKEN, Laboratory for Advanced Brain Signal Processing, and PhysioNet EEGMMIDB 1.0.0, subject 1",
        licence="no explicit one for RIKEN's, whose laboratory is to be named; ODC-By 1.0 for EEGMMIDB",
    )
    return fed


@functools.cache
def _everybody(common: bool, band: tuple[float, float]) -> tuple[Trials, ...]:
    alone = replace(eegmmidb.trials("hands", True, COMMON if common else None, band), classes=CLASSES)
    people = [_person(name, band) for name in PEOPLE]
    if common:
        people = [replace(of, x=of.x[:, [of.channels.index(c) for c in COMMON]], channels=COMMON) for of in people]
    return (*people, alone)


def _person(name: str, band: tuple[float, float]) -> Trials:
    """The trials of one person of RIKEN, each filtered by itself, as they were cut."""
    need("mne")
    import mne
    from scipy.io import loadmat

    path = fetch(f"cichocki_mi/{name}")
    try:
        file = loadmat(path, squeeze_me=True, struct_as_record=False)
        signals, labels, about = (file[part] for part in ("EEGDATA", "LABELS", "Info"))
        places = tuple(electrode(str(channel)) or str(channel) for channel in about.channels)
        x = np.ascontiguousarray(signals.transpose(2, 0, 1), float)
        y, rate = labels.astype(np.int64) - 1, float(about.srate)
        if len(x) != len(y) or x.shape[1] != len(places) or set(y) - {0, 1} or not np.isfinite(x).all():
            raise WrongValue(f"signals of shape {signals.shape} and {len(y)} labels {sorted(set(labels.tolist()))}")
    except (KeyError, ValueError, AttributeError, TypeError) as error:  # tests bring their own files
        raise DataError(f"{path}: expected EEGDATA, LABELS 1 and 2, and Info: {error}") from error
    if np.median(x.std(axis=2)) < QUIET:  # volts
        x = x * 1e6
    x = mne.filter.filter_data(x, rate, *band, method="iir", verbose="error")
    return Trials(x, y, np.full(len(y), "0"), places, rate, name, classes=CLASSES)


def _split(of: Trials, seed: int, size: Size) -> Trials:
    """The trials with their test set settled, and those that are left for training."""
    train, test = split_trials(of.y, of.session, of.name, seed)
    if size == "tenth":
        train = train[tenth(of.y[train], of.name, seed)]
    kept = np.sort(np.concatenate([train, test]))
    return replace(of, x=of.x[kept], y=of.y[kept], session=of.session[kept], test=np.isin(kept, test))
