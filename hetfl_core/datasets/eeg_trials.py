"""Recordings of imagined movement through MOABB [1]_, cut by the rules of `hetfl_core.datasets.eeg_cutting`.

The recordings are the six of `TABLE_S1`: the real ones (``source="moabb"``), or their simulated twins, which need no
download. Subjects may differ in sampling rate: a covariance does not have one.

References
----------
.. [1] V. Jayaram, A. Barachant. MOABB: trustworthy algorithm benchmarking for BCIs. J. Neural Eng. 15(6), 2018.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetfl_core import checks
from hetfl_core.clients import MadeName
from hetfl_core.datasets.eeg_cutting import Cutting, Trials, cut
from hetfl_core.datasets.eeg_runs import RecordedRun
from hetfl_core.datasets.recordings import CLASSES, TABLE_S1, Recordings, need
from hetfl_core.datasets.registry import DataError, data_home
from hetfl_core.errors import WrongValue

SOURCES = ("simulated", "moabb")


# --- recordings -----------------------------------------------------------------------------------------------------


def dataset(name: str | Recordings, source: str = "simulated", seed: int = 0, simulator: Any = None) -> Any:
    """A data set of `TABLE_S1`, or a simulated one of your own, as a MOABB `BaseDataset`.

    Parameters
    ----------
    name : str or Recordings
        E.g. ``"BNCI2014-001"``; a laboratory of your own can only be simulated. Files of your own come in by
        `hetfl_core.datasets.eeg.trials_of`.
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
            raise DataError(_no_recordings(data, subject, error)) from error


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
    name: str | None = None,
) -> Trials:
    """The trials of one subject of a data set of MOABB: what its paradigm `MotorImagery` gives, where nothing is wrong.

    The filter is MNE's Butterworth filter, run forwards and backwards. A trial is the data set's own interval of
    imagery.

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
    name : str, optional
        Of the subject; by default the data set's and the number, ``"AlexMI-1"``. Name people of two data sets of your
        own that are called alike; else a federation numbers them.

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
    short, events = _short_name(data), [c for c in classes if c in data.event_id]
    if not events:
        raise DataError(f"{short}: none of the classes {', '.join(classes)}; it has {', '.join(data.event_id)}")
    need("mne", "moabb")
    if not 0 < band[0] < band[1]:
        raise WrongValue(f"band must be (lower, upper) in Hz with 0 < lower < upper, got {tuple(band)}")
    if subject not in data.subject_list:
        raise DataError(f"{short}: no subject {subject}; there are {', '.join(map(str, data.subject_list))}")
    recordings = recordings_of(data)
    how = Cutting(
        marks={event: event for event in events} | {str(data.event_id[event]): event for event in events},
        classes=labels,
        interval=tuple(data.interval),
        band=band,
        channels=tuple(channels or (recordings.channels if recordings else ())),
        resample=resample,
        factor=data.unit_factor,
        sources=("pulse", "written"),
    )
    name = name or MadeName(f"{short}-{subject}")
    return cut(name, _runs(data, subject, name), how, data.n_sessions, named=channels is not None)


def _runs(data: Any, subject: int, name: str) -> list[RecordedRun]:
    """The runs of one subject, as MOABB reads them."""
    import mne
    from moabb.datasets.bids_interface import StepType
    from moabb.datasets.preprocessing import FixedPipeline
    from sklearn.preprocessing import FunctionTransformer

    download(data, subject)
    untouched = FixedPipeline([(StepType.RAW, FunctionTransformer())])
    with _moabb_settings(), mne.utils.use_log_level("error"):
        try:
            read = data.get_data([subject], process_pipeline=untouched)[subject]
        except Exception as error:  # whatever the reader of a data set raises for a file that is not what it should be
            raise DataError(f"{name}: the recording cannot be read ({type(error).__name__}: {error})") from error
    found = [(session, raw) for session, runs in read.items() for raw in runs.values()]
    return [RecordedRun(name, f"run {i}", session, raw) for i, (session, raw) in enumerate(found, 1)]
