"""From trials of imagined movement to a federation: one subject, one client, with the width of its own cap.

Trials (`hetfl_core.datasets.eeg_trials`) become vectors (`hetfl_core.datasets.eeg_vectors`). The last session of a
subject is its test set, or a random quarter of its trials where there is one session, as in FLIC [1]_, Section S3.2.
Recordings of one's own come in by `trials_of` and go on by `federation_of` (`hetfl_core.datasets.eeg_own`).

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from hetfl_core import checks, numerics
from hetfl_core.datasets.eeg_cutting import EEGWarning, UnusableSubject, warn_of
from hetfl_core.datasets.eeg_own import federation_of, trials_of
from hetfl_core.datasets.eeg_trials import SOURCES, dataset, trials
from hetfl_core.datasets.eeg_vectors import (
    SubjectCovariances,
    covariances,
    features,
    split,
    subject_client,
    unlike,
)
from hetfl_core.datasets.recordings import CLASSES, COMMON_CHANNELS, TABLE_S1, Recordings, need
from hetfl_core.datasets.registry import DataError
from hetfl_core.errors import WrongValue
from hetfl_core.federation import ARRAYS, Client, Federation
from hetfl_core.files import write_atomically

__all__ = [
    "covariances",
    "features",
    "federation",
    "federation_of",
    "recorded",
    "simulated",
    "split",
    "subject_covariances",
    "trials_of",
]


MEMBERS = {("specific", 54): tuple(TABLE_S1)}
MEMBERS["specific", 40] = MEMBERS["common", 40] = tuple(name for name in TABLE_S1 if name != "BNCI2014-002")
"""Names of the recordings in each published federation, by its features and its number of clients."""


# --- the cache ------------------------------------------------------------------------------------------------------


def cache_home() -> Path:
    """Folder of computed features: ``eeg`` in the environment variable HETFL_CACHE, or in the user's cache folder."""
    import pooch

    return Path(os.environ.get("HETFL_CACHE") or pooch.os_cache("hetfl")).expanduser() / "eeg"


def _cached(settings: Mapping[str, Any], make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The arrays that `make` computes, read from disk if they were computed before with the same settings.

    Either way what their ``notes`` say is told.
    """
    text = json.dumps(settings, sort_keys=True)
    path = cache_home() / f"{settings['subject']}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.npz"
    found: dict[str, NDArray[Any]] = {}
    # missing; or damaged: zip, zlib and npy readers each raise their own kinds
    with suppress(Exception), np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    if str(found.pop("settings", "")) != text:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EEGWarning)  # all in the notes
            found = make()
        file = io.BytesIO()
        np.savez(file, settings=np.array(text), **found)  # type: ignore[arg-type]
        try:
            write_atomically(path, file.getvalue())
        except OSError as error:
            warnings.warn(f"features are computed anew each time: {error.strerror}", EEGWarning, stacklevel=3)
    warn_of(settings["subject"], found["notes"].tolist(), stacklevel=4)
    return found


@cache
def _fingerprint(source: str) -> dict[str, str]:
    """Facts besides settings that computed features depend on: code, the simulation, libraries and instructions."""
    rooms = ("eeg", "eeg_cutting", "eeg_runs", "eeg_trials", "eeg_vectors", "recordings", "../rng")
    files = [*(f"{room}.py" for room in rooms), "recordings.toml"]
    files += ["eeg_head.py", "eeg_simulated.py"] if source == "simulated" else []
    code = b"".join((Path(__file__).parent / name).read_bytes() for name in files)
    packages = need("mne", "moabb", "pyriemann", "numpy", "scipy", "scikit-learn")
    used = {name: value for name, value in numerics.in_effect().items() if name in ("numpy", "blas")}
    return {"code": hashlib.sha256(code).hexdigest(), **packages, "instructions": json.dumps(used)}


def _settings(
    name: str | Recordings,
    subject: int,
    *,
    source: str,
    channels: Sequence[str] | None,
    seed: int,
    simulator: Any,
    **reading: Any,
) -> dict[str, Any]:
    """All that the covariances of a subject depend on, as plain values."""
    checks.choice("source", source, SOURCES)
    return {
        "subject": f"{name.name if isinstance(name, Recordings) else name}-{subject}",
        **({"recordings": repr(name)} if isinstance(name, Recordings) else {}),
        "source": source,
        "simulation": [seed, repr(simulator)] if source == "simulated" else None,
        "channels": list(channels) if channels else None,
        **reading,
        **_fingerprint(source),
    }


def subject_covariances(
    name: str | Recordings,
    subject: int,
    source: str = "simulated",
    channels: Sequence[str] | None = None,
    classes: Sequence[str] = CLASSES,
    band: tuple[float, float] = (8.0, 30.0),
    estimator: str = "lwf",
    seed: int = 0,
    simulator: Any = None,
) -> SubjectCovariances:
    """Covariance matrices of one subject of `TABLE_S1`, or of a simulated laboratory of your own, cached on disk.

    Parameters
    ----------
    name : str or Recordings
        Data set, e.g. ``"AlexMI"``.
    subject : int
        Counted from 1.
    source, seed, simulator
        As in `dataset`.
    channels, classes, band
        As in `trials`.
    estimator : str
        As in `covariances`.

    Returns
    -------
    SubjectCovariances
        A matrix of shape (q, q), µV², for each trial; named ``"AlexMI-1"``.

    Raises
    ------
    DataError
        As `trials` and `covariances` do.
    """

    def compute() -> dict[str, NDArray[Any]]:
        of = covariances(trials(dataset(name, source, seed, simulator), subject, channels, band, classes), estimator)
        texts = {"channels": np.array(of.channels), "notes": np.array(of.notes, dtype=np.str_)}
        return {"matrices": of.matrices, "y": of.y, "session": of.session, **texts}

    reading = {"classes": classes, "band": [float(edge) for edge in band], "estimator": estimator}
    key = _settings(name, subject, source=source, channels=channels, seed=seed, simulator=simulator, **reading)
    arrays = _cached({"what": "covariances", **key}, compute)
    there, notes = (tuple(map(str, arrays[part])) for part in ("channels", "notes"))
    return SubjectCovariances(arrays["matrices"], arrays["y"], arrays["session"], there, key["subject"], notes)


def check_vectors(features: str, reference: str, split: str, band: tuple[float, float], seed: int) -> None:
    """Refuse arguments with which no client's vectors could be made, before anything is read."""
    checks.choice("features", features, ("tangent", "vectorised"))
    checks.choice("reference", reference, ("train", "all"))
    checks.choice("split", split, ("session", "random"))
    checks.frequency_band("band", band)
    checks.seed(seed)


# --- federations ----------------------------------------------------------------------------------------------------


def federation(
    kind: Literal["specific", "common"] = "specific",
    b: int | None = None,
    source: Literal["simulated", "moabb"] = "simulated",
    datasets: Sequence[str] | str | None = None,
    subjects: int | None = None,
    classes: Sequence[str] | str | None = None,
    classes_per_client: int | None = None,
    features: Literal["tangent", "vectorised"] = "tangent",
    reference: Literal["train", "all"] = "train",
    split: Literal["session", "random"] = "session",
    band: tuple[float, float] = (8.0, 30.0),
    estimator: str = "lwf",
    seed: int = 0,
    n_classes: int = len(CLASSES),
    simulator: Any = None,
    progress: bool = True,
) -> Federation:
    """Subjects of several laboratories as clients, each with the width q(q+1)/2 of its cap of q electrodes.

    Covariances and features are cached on disk, in `cache_home`, by all that they depend on.

    Parameters
    ----------
    kind : {"specific", "common"}
        All electrodes of each data set (widths 6 … 1 830), or `COMMON_CHANNELS` (6), FLIC's *BCI-common*.
    b : {54, 40}, optional
        Number of clients of the published federation: all six data sets, or all but BNCI2014-002. By default 54 for
        ``"specific"``; ``"common"`` has 40, as the channels of BNCI2014-002 have no published names.
    source : {"simulated", "moabb"}
    datasets : sequence of str, optional
        Only these of them (or one text with commas).
    subjects : int, optional
        Only the first so many subjects of each data set.
    classes : sequence of str, optional
        Only these of `CLASSES` (or one text with commas).
    classes_per_client : int, optional
        Only the first so many, in the order of `CLASSES`, of the classes that a data set has. By default all, but two
        for ``"common"``, as published.
    features, reference, split
        As in `subject_client`.
    band, estimator
        As in `subject_covariances`.
    seed : int
        Seed of the random splits, and of the simulation.
    n_classes : int
        Outputs of the classifier.
    simulator : Physiology, optional
        Settings of the simulation (`hetfl_core.datasets.eeg_simulated`).
    progress : bool
        Whether to show a progress bar over subjects.

    Returns
    -------
    Federation
        Clients ``AlexMI-1`` … ``Zhou2016-4``, inputs float32. ``info["subjects"]`` gives each client's data set,
        subject and number of electrodes; ``info["notes"]`` what was repaired, ``info["left_out"]`` who is missing, and
        why.

    Raises
    ------
    DataError
        If recordings cannot be had, or have a fault that no rule repairs, or no subject is usable.
    ValueError
        If an argument is not one of those listed.

    Warns
    -----
    EEGWarning
        For each repaired fault and each subject left out.
    """
    names = _members(kind, b, datasets)
    checks.choice("source", source, tuple(_ORIGIN))
    for argument, value in (("subjects", subjects), ("classes_per_client", classes_per_client)):
        if value is not None:
            checks.integer(argument, value, 1)
    check_vectors(features, reference, split, band, seed)
    checks.integer("n_classes", n_classes, 1, 1_000_000)
    checks.flag("progress", progress)
    checks.nonempty_str("estimator", estimator)
    allowed = _listed(classes, CLASSES, "classes")
    most = {"specific": len(CLASSES), "common": 2}[kind] if classes_per_client is None else classes_per_client
    vectors = {"features": features, "reference": reference, "split": split, "seed": seed}
    common = COMMON_CHANNELS if kind == "common" else None
    reading = {"source": source, "channels": common, "band": band, "estimator": estimator, "seed": seed}
    found: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    who = [(name, s + 1) for name in names for s in range(TABLE_S1[name].n_subjects)[:subjects]]
    for name, subject in tqdm(who, desc=f"EEG, {source}", unit="subject", disable=not progress):
        some = tuple([c for c in TABLE_S1[name].classes if c in allowed][:most])
        try:
            arrays = _subject_arrays(name, subject, {**reading, "simulator": simulator, "classes": some}, vectors)
            found[f"{name}-{subject}"] = {"data_set": name, "subject": subject, **arrays}
        except UnusableSubject as error:
            left_out[f"{name}-{subject}"] = str(error)
            warnings.warn(f"left out: {error}", EEGWarning, stacklevel=2)
    if not found:
        raise DataError(f"no usable subject: {'; '.join(left_out.values())}")
    settings = {
        **{"kind": kind, "datasets": list(names), "subjects": subjects, "classes": list(allowed)},
        **{"classes_per_client": most, "n_classes": n_classes, "band": list(band), "estimator": estimator, **vectors},
        **({"simulator": repr(simulator)} if simulator else {}),
    }
    about = {
        client: {**{part: of[part] for part in ("data_set", "subject")}, "electrodes": len(of["channels"])}
        | {"channels": of["channels"].tolist()}
        for client, of in found.items()
    }
    made = source == "simulated"
    info = {
        **{"settings": settings, **_ORIGIN[source], "simulated": made, "stand_in": made},
        **{"subjects": about, "left_out": left_out},
        "notes": {client: of["notes"].tolist() for client, of in found.items() if len(of["notes"])},
        "class_names": [name.replace("_", " ") for name in CLASSES[:n_classes]]
        + [f"unused {c}" for c in range(len(CLASSES), n_classes)],
    }
    clients = [Client(name=client, **{part: of[part] for part in ARRAYS}) for client, of in found.items()]
    return Federation(clients, n_classes, "eeg.simulated" if made else "eeg.moabb", info)


_ORIGIN = {
    "simulated": {
        "source": "hetfl_core.datasets.eeg_simulated: simulated twins of the recordings of FLIC's Table S1",
        "licence": "that of this project; nobody was recorded",
    },
    "moabb": {
        "source": "the recordings of FLIC's Table S1, through MOABB",
        "licence": "the recordings keep their own terms; see MOABB's page of each",
    },
}


def simulated(kind: Literal["specific", "common"] = "specific", **settings: Any) -> Federation:
    """Simulated EEG of 54 subjects with the caps of six laboratories, 6 … 1 830 features (as `federation`).

    Parameters
    ----------
    kind, **settings
        As for `federation`, but for its `source`.

    Returns
    -------
    Federation
        As of `federation`.

    Raises
    ------
    DataError, ValueError
        As by `federation`.
    """
    return federation(kind, source="simulated", **settings)


def recorded(kind: Literal["specific", "common"] = "specific", **settings: Any) -> Federation:
    """The six motor-imagery recordings of FLIC's Table S1 through MOABB (some GB), by `federation`.

    Parameters
    ----------
    kind, **settings
        As for `federation`, but for its `source`.

    Returns
    -------
    Federation
        As of `federation`.

    Raises
    ------
    DataError, ValueError
        As by `federation`.
    """
    return federation(kind, source="moabb", **settings)


def _members(kind: str, b: int | None, datasets: Sequence[str] | str | None) -> tuple[str, ...]:
    checks.choice("kind", kind, ("specific", "common"))
    b = {"specific": 54, "common": 40}[kind] if b is None else checks.integer("b", b)
    if (kind, b) not in MEMBERS:
        raise WrongValue(f"b must be 54 or 40, and 40 for kind='common', got b={b!r} with kind={kind!r}")
    return _listed(datasets, MEMBERS[kind, b], "datasets")


def _listed(given: Sequence[str] | str | None, known: Sequence[str], argument: str) -> tuple[str, ...]:
    """The known names that are given, in the order of `known`; all by default."""
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",")]
    names = list(known) if given is None else checks.sequence(argument, given)
    if not names:
        raise WrongValue(f"{argument} must name at least one of {', '.join(known)}, got none")
    for name in names:
        checks.choice(argument, name, known)
    return tuple(name for name in known if name in names)


def _subject_arrays(
    name: str, subject: int, reading: Mapping[str, Any], vectors: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Features and labels of one subject, from the cache or computed; says what was repaired."""
    if len(reading["classes"]) < 2:
        has = ", ".join(reading["classes"]) or "none"
        raise UnusableSubject(f"{name}-{subject}: two classes are needed; of those asked for, {name} has {has}")

    def compute() -> dict[str, NDArray[Any]]:
        of = subject_covariances(name, subject, **reading)
        client = subject_client(of, **vectors)
        arrays = {part: getattr(client, part).numpy() for part in ARRAYS}
        notes = [*of.notes, *unlike(of, vectors["seed"], vectors["split"])]
        return {**arrays, "channels": np.array(of.channels), "notes": np.array(notes, dtype=np.str_)}

    plain = {**reading, "classes": list(reading["classes"]), "band": [float(edge) for edge in reading["band"]]}
    return _cached({"what": "features", **_settings(name, subject, **plain), "vectors": dict(vectors)}, compute)
