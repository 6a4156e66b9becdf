"""A client's data from one file of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.federation import Client
from hetfl_core.rng import numpy_stream

HELD_OUT = 0.2
"""Share of the samples that are test samples, where a file does not say which."""


def client_from_file(path: str | Path, name: str, *, label: str = "label", seed: int = 0) -> Client:
    """Read a client from a CSV or NPZ file.

    Parameters
    ----------
    path : path
        A ``.csv`` file: one row a sample, numbers in all columns; a column ``split`` may say ``train`` or ``test``. Or
        an ``.npz`` file with the arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``, or with ``x`` and ``y``.
    name : str
        Of the client.
    label : str
        Column of a CSV file that holds the labels 0 … C−1, or the targets of a regression.
    seed : int
        Where nothing says which samples are for testing, a fifth is drawn, of each class alike.

    Returns
    -------
    Client
        Features are standardised by the mean and the deviation of the training samples.

    Raises
    ------
    ValueError
        For another ending, a column or an array that is missing, and columns that hold no numbers.
    FileNotFoundError
        Where there is no such file.
    """
    file = checks.path("path", path)
    checks.texts(name=name, label=label)
    checks.seed(seed)
    if not file.exists():
        raise FileNotFoundError(f"client {name!r}: there is no file {file}")
    if file.suffix == ".csv":
        x, y, test = _from_table(pd.read_csv(file), name, label)
    elif file.suffix == ".npz":
        x, y, test = _from_arrays(file, name)
    else:
        raise ValueError(f"client {name!r}: expected a .csv or .npz file, got {file.name!r}")
    if test is None:
        test = _drawn(y, name, seed)
    mean, deviation = x[~test].mean(0), x[~test].std(0)
    x = (x - mean) / np.where(deviation > 0, deviation, 1.0)
    return Client(x[~test], y[~test], x[test], y[test], name)


def _from_table(table: pd.DataFrame, name: str, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    if label not in table:
        raise ValueError(f"client {name!r}: the file has no column {label!r}, only {checks.shown(list(table))}")
    features = table.drop(columns=[c for c in (label, "split") if c in table])
    if words := [c for c in features if not pd.api.types.is_numeric_dtype(features[c])]:
        raise ValueError(f"client {name!r}: column {words[0]!r} holds no numbers; encode it, or leave it out")
    if empty := [c for c in table if table[c].isna().any()]:
        raise ValueError(f"client {name!r}: column {empty[0]!r} has gaps; fill them, or leave out the rows")
    test = None
    if "split" in table:
        if unknown := sorted(set(table["split"]) - {"train", "test"}):
            raise ValueError(f"client {name!r}: column 'split' must say train or test, got {unknown[0]!r}")
        test = (table["split"] == "test").to_numpy()
    return features.to_numpy(np.float64), table[label].to_numpy(), test


def _from_arrays(file: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    with np.load(file, allow_pickle=False) as arrays:
        found = {key: arrays[key] for key in arrays.files}
    parts = ("x_train", "y_train", "x_test", "y_test")
    if set(parts) <= set(found):
        x_train, y_train, x_test, y_test = (found[part] for part in parts)
        test = np.repeat([False, True], [len(y_train), len(y_test)])
        x = np.concatenate([x_train, x_test]).astype(np.float64)
        return x, np.concatenate([y_train, y_test]), test
    if {"x", "y"} <= set(found):
        return found["x"].astype(np.float64), found["y"], None
    raise ValueError(f"client {name!r}: expected arrays x and y, or {', '.join(parts)}, got {sorted(found)}")


def _drawn(y: np.ndarray, name: str, seed: int) -> np.ndarray:
    """Which samples are for testing: a share of each class, at most all but one."""
    rng, test = numpy_stream(seed, name, 0, "held out"), np.zeros(len(y), bool)
    whole = y.dtype.kind in "biu" or bool((y == np.round(y)).all())
    for value in np.unique(y) if whole else [None]:
        mine = np.flatnonzero(y == value) if whole else np.arange(len(y))
        test[rng.permutation(mine)[: min(round(HELD_OUT * len(mine)), len(mine) - 1)]] = True
    return test
