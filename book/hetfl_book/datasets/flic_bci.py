"""The covariance features of 40 motor-imagery subjects published with FLIC, and the safe reading of that file."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.federation import ARRAYS, Client, Federation

CLASSES = ("left hand", "right hand", "feet", "tongue", "rest")
"""Labels 0 … 4 of the published classifier; the 40 common-electrode clients hold the first three only."""

DATASETS = {
    "Alexandre Motor Imagery": "AlexMI",
    "001-2014": "BNCI2014-001",
    "004-2014": "BNCI2014-004",
    "Weibo 2014": "Weibo2014",
    "Zhou 2016": "Zhou2016",
}
"""Names of the data sets in the file, and those that MOABB uses today."""

N_CLIENTS, N_FEATURES = 40, 6


def common40(n_classes: int = 5) -> Federation:
    """The real covariance features of 40 subjects, one per client: FLIC's *BCI-common* (Table 4 of [1]_).

    Each trial of imagined movement, filtered to 8 … 30 Hz, is the covariance of the three electrodes that all five
    recordings share, mapped to the tangent space of its mean: 6 numbers. All clients have the same number of features,
    but each subject's tangent space has its own reference point, *fitted on training and test trials together*. The
    last session of a subject is its test set, or a random quarter of its trials where there is one session.

    Parameters
    ----------
    n_classes : int
        Number of classes of the classifier. The published one has 5 outputs (`CLASSES`), though the labels of these
        clients are 0, 1 and 2 only, two of them on each client.

    Returns
    -------
    Federation
        Clients ``AlexMI-1`` … ``Zhou2016-4`` with inputs of shape (6,), float32; 8 600 training and 3 611 test trials.
        ``info["subjects"]`` gives each client's data set and subject.

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded, or is not as expected.
    ValueError
        If `n_classes` is less than 3.

    References
    ----------
    .. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
    """
    checks.integer("n_classes", n_classes, 3, 1_000_000)  # the labels are 0, 1 and 2
    path = fetch("flic/bci_common40")
    with np.load(path, allow_pickle=False) as file:
        clients, subjects = read_clients(dict(file), path)
    info = {
        "settings": {"n_classes": n_classes},
        "source": "arakotom/flic@4646796, data/bci_users40_5c_common.npz",
        "licence": "MIT; the recordings keep their own terms",
        "class_names": list(CLASSES[:n_classes]) + [f"unused {c}" for c in range(len(CLASSES), n_classes)],
        "subjects": subjects,
        "simulated": False,
    }
    return Federation(clients, n_classes, "flic_bci.common40", info)


def read_clients(arrays: Mapping[str, NDArray[Any]], path: Path) -> tuple[list[Client], dict[str, Any]]:
    """Clients and their data sets and subjects out of the plain file's arrays."""
    try:
        names = [DATASETS.get(str(d), str(d)) for d in arrays["dataset"]]
        subjects = [int(s) for s in arrays["subject"]]
        parts = [[arrays[f"{part}_{i:02d}"] for part in ARRAYS] for i in range(len(names))]
    except KeyError as error:
        raise DataError(f"{path}: expected an array {error} and did not find it") from error
    clients = [
        Client(a.astype(np.float32), b, c.astype(np.float32), d, f"{name}-{subject}")
        for (a, b, c, d), name, subject in zip(parts, names, subjects)
    ]
    known = {c.name: {"data_set": n, "subject": s} for c, n, s in zip(clients, names, subjects)}
    return clients, known


# --- the published pickle -----------------------------------------------------------------------------------------

_CORE = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *((module, name) for module in _ARRAY_MODULES for name in ("_reconstruct", "scalar")),
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
    *(("builtins", name) for name in ("set", "frozenset", "bytearray", "complex")),
}


class PlainUnpickler(pickle.Unpickler):
    """An unpickler that admits plain containers and NumPy arrays and nothing else.

    A pickle may name any importable function and have it called, which is why one must never be opened unasked. Here
    each name is looked up in a short list; NumPy 1 and 2 call the same functions by different module names.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The named object, if it is on the list.

        Raises
        ------
        pickle.UnpicklingError
            If it is not.
        """
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(
                f"refused to load {module}.{name}: only plain containers and arrays are admitted"
            )
        here = module.replace("numpy._core", "numpy.core").replace("numpy.core", _CORE)
        return super().find_class(here, name)


def load_pickled_npz(path: Path) -> dict[str, Any]:
    """Read an .npz of pickled objects with `PlainUnpickler`.

    Raises
    ------
    DataError
        If the file is no such .npz, or a pickle in it names anything but plain containers and arrays.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {Path(name).stem: _read_member(archive.open(name)) for name in archive.namelist()}
    except (zipfile.BadZipFile, pickle.UnpicklingError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _read_member(file: IO[bytes]) -> Any:
    """One .npy member: an ordinary array, or the object that a 0-dimensional array of objects wraps."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if not dtype.hasobject:
        flat = np.frombuffer(file.read(), dtype=dtype)
        return flat.reshape(shape, order="F" if fortran else "C")
    value = PlainUnpickler(file).load()
    return value.item() if isinstance(value, np.ndarray) and value.shape == () else value


def convert(original: Path, target: Path) -> None:
    """Turn the published pickle into a plain .npz.

    The original holds ``user``, a dict from client number to ``[x_train, y_train, x_test, y_test]``, and
    ``meta_info``, a dict from client number to ``{"code": data set, "subject": number}``. The plain file holds
    ``x_train_KK`` and its siblings for KK = 00 … 39, ``dataset`` and ``subject``.

    Parameters
    ----------
    original : pathlib.Path
        The published file. **Its sha256 must have been checked**: `hetfl_core.datasets.registry` does.
    target : pathlib.Path
        File to write; left untouched if anything is wrong.

    Raises
    ------
    DataError
        Saying what was expected and what was found.
    """
    content = load_pickled_npz(original)
    missing = {"user", "meta_info"} - set(content)
    if missing:
        raise DataError(f"{original}: expected user and meta_info, got {sorted(content)}")
    users, meta = (_in_order(content[name], name, original) for name in ("user", "meta_info"))
    arrays: dict[str, NDArray[Any]] = {}
    for i, user in enumerate(users):
        arrays |= {f"{part}_{i:02d}": a for part, a in zip(ARRAYS, _user_arrays(user, i, original))}
    try:
        arrays["dataset"] = np.array([str(m["code"]) for m in meta])
        arrays["subject"] = np.array([int(m["subject"]) for m in meta], dtype=np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{original}: expected meta_info to give code and subject of each client: {error!r}") from error
    with open(target, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _in_order(table: Any, name: str, path: Path) -> list[Any]:
    """The 40 values of a dict keyed 0 … 39, or of a sequence."""
    if isinstance(table, Mapping):
        if sorted(table, key=repr) != sorted(range(N_CLIENTS), key=repr):
            raise DataError(f"{path}: expected {name} for clients 0…{N_CLIENTS - 1}, got {len(table)} keys")
        return [table[i] for i in range(N_CLIENTS)]
    if not isinstance(table, Sequence | np.ndarray) or len(table) != N_CLIENTS:
        raise DataError(f"{path}: expected {name} of {N_CLIENTS} clients, got {type(table).__name__}")
    return list(table)


def _user_arrays(user: Any, i: int, path: Path) -> list[NDArray[Any]]:
    """Features and labels of one client, checked: float64 (n, 6) and int64 (n,), for training and test."""
    if not isinstance(user, Sequence | np.ndarray) or len(user) != 4:
        raise DataError(f"{path}: client {i}: expected [x_train, y_train, x_test, y_test], got {type(user).__name__}")
    x_train, y_train, x_test, y_test = (np.asarray(a) for a in user)
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.ndim != 2 or x.shape[1] != N_FEATURES or y.shape != x.shape[:1] or not len(y):
            raise DataError(
                f"{path}: client {i}: expected features (n, {N_FEATURES}) and labels (n,), got {x.shape} and {y.shape}"
            )
        if not np.isin(y, range(len(CLASSES))).all() or not np.isfinite(x.astype(float)).all():
            raise DataError(f"{path}: client {i}: expected labels 0…{len(CLASSES) - 1} and finite features")
    return [a.astype(t) for a, t in zip((x_train, y_train, x_test, y_test), (np.float64, np.int64) * 2)]
