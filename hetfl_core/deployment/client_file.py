"""A client's data from one file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from hetfl_core import checks, keywords
from hetfl_core.clients import altered
from hetfl_core.deployment import agreement
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client
from hetfl_core.frames import at_site, split_rows
from hetfl_core.preparation import Preparation
from hetfl_core.rng import numpy_stream
from hetfl_core.splits import SplitBy
from hetfl_core.tables import read_site

HELD_OUT = 0.2
"""Share of the samples that are test samples, where a file does not say which."""


class TableError(WrongValue):
    """A table that cannot be prepared: the message may show what stands in a row, so the server is told its kind."""


@keywords.hinting(*keywords.named(pd.read_csv)[1:])
def client_from_file(
    path: str | Path,
    name: str,
    *,
    label: str = "label",
    seed: int = 0,
    classes: Sequence[Any] | None = None,
    prepare: Any = None,
    view: Any = "own",
    agreed: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
    group: str | None = None,
    **options: Any,
) -> Client:
    """Read a client from a CSV or NPZ file.

    Parameters
    ----------
    path : path
        A ``.csv`` file, in UTF-8: one row a sample, numbers in all columns, each with a name; a column ``split`` may
        say ``train`` or ``test``. Or an ``.npz`` file with the arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``,
        or with ``x`` and ``y``, and, if its columns have names, with these as ``features``.
    name : str
        Of the client.
    label : str
        Column of a CSV file that holds the labels 0 … C−1, or the targets of a regression.
    seed : int
        Where nothing says which samples are for testing, a fifth is drawn, of each class alike.
    classes : sequence, optional
        What the labels are in the file, such as words, in the order 0 … C−1 that all clients have agreed on.
    prepare : Preparation, or transformer of scikit-learn, optional
        What makes inputs of a CSV file with gaps and words, as for `Federation.from_csv`, of which the client comes out
        the same, its test samples too.
    view : "own", "common", "zeros", "blocks", or dict of str to sequence of str
        What the client's table is to look like among those of all sites, for methods that need it: as it is, its
        columns that all sites have, with zeros for those that it lacks, or in blocks of columns that the same sites
        have, or of these columns.
    agreed : dict, optional
        What a deployment's sites have agreed on, ``config.get("agreed")`` in ``federation/data.py``: which columns each
        has, and the levels of categories. Without it these are given (``Preparation(categories={…})``) or the site's
        own (``levels="own"``).
    ignore : sequence of str
        Columns that are no features.
    group : str, optional
        Column that is no feature, but tells patients apart: all rows of one go into one set. For prepared files. Nobody
        can look whether a patient is known at another site too, and is for training there.
    **options
        Of `pandas.read_csv`, such as ``sep=";"``.

    Returns
    -------
    Client
        Features have the names of their columns, whose order in the file does not matter; unless `prepare` says
        otherwise, they are standardised by the mean and the deviation of the training samples.

    Raises
    ------
    ValueError
        Naming client, file and column: for another ending, what cannot be read, a column or an array that is missing
        or has no name, columns that hold no numbers, labels that are words and no `classes`, or none of these.
    FileNotFoundError
        Where there is no such file.
    """
    file = checks.path("path", path)
    checks.nonempty_strs(name=name, label=label)
    checks.seed(seed)
    where = f"client {name!r}, {file.name}"
    if not file.is_file():
        raise FileNotFoundError(f"client {name!r}: there is no file {file}")
    if file.suffix not in (".csv", ".npz"):
        raise WrongValue(f"client {name!r}: expected a .csv or .npz file, got {file.name!r}")
    of_tables = {"ignore": ignore, "label": label != "label", **{name: True for name in options}}
    if file.suffix != ".csv" and any(of_tables.values()):
        told = next(name for name, given in of_tables.items() if given)
        raise WrongValue(f"{where}: {told} is of tables, .csv, and says nothing of arrays")
    if agreed is not None:
        checks.mapping("agreed", agreed)
    if prepare is None:
        if group is not None or view != "own":
            raise WrongValue(f"{where}: view and group are for tables that are prepared (prepare=Preparation())")
        csv = file.suffix == ".csv"
        found = _from_table(file, where, label, ignore, options) if csv else _from_arrays(file, where)
        return _standardised(found, _numbers(found[1], where, label, classes), name, where, seed)
    if file.suffix != ".csv":
        raise WrongValue(f"{where}: prepare makes inputs of tables, .csv, not of arrays")
    table, test = _parts(file, where, label, ignore, options)
    y = _numbers(table.pop(label).to_numpy(), where, label, classes)
    rule = None if test is None else SplitBy("split", "split", pd.Series(np.where(test, "test", "train")))
    if group is not None:
        if group not in table or rule:
            what = "is not among its columns" if group not in table else "says how rows are split, and so does split"
            raise WrongValue(f"{where}: group {group!r} {what}")
        rule = SplitBy("group", group, table.pop(group))
    if view != "own" and (agreed is None or not isinstance(prepare, Preparation) or prepare.levels != "all"):
        raise WrongValue(
            f"{where}: a view needs a Preparation(levels='all') and what all sites have agreed on "
            '(agreed=config.get("agreed"))'
        )
    try:  # to make the client that `Federation.from_csv` makes of this table
        whole = bool((y == np.round(y)).all())
        places, _ = split_rows(name, y, HELD_OUT, seed, "classification" if whole else "regression", rule)
        client = at_site(name, table, y, places, prepare, agreed)
        if group is not None and rule is not None:
            client = altered(client, groups=rule.groups()[places[0]])
        return client if view == "own" or not agreed else agreement.seen(client, view, agreed)
    except ValueError as error:
        raise TableError(f"{where}: {str(error).removeprefix(f'client {name!r}: ')}") from error


Read = tuple[np.ndarray, np.ndarray, np.ndarray | None, list[str] | None]


def _standardised(found: Read, y: np.ndarray, name: str, where: str, seed: int) -> Client:
    """The client of inputs that are numbers, by mean and standard deviation of its training samples."""
    x, _, test, features = found
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise WrongValue(f"{where}: expected inputs of shape (n, ...) and n labels, got shapes {x.shape} and {y.shape}")
    test = _drawn(y, name, seed) if test is None else test
    if test.all():
        raise WrongValue(f"{where}: expected at least one sample for training, got none")
    mean, deviation = x[~test].mean(0), x[~test].std(0)
    x = (x - mean) / np.where(deviation > 0, deviation, 1.0)
    return Client(x[~test], y[~test], x[test], y[test], name, features)


def _parts(
    file: Path, where: str, label: str, ignore: Sequence[str], options: Mapping[str, Any]
) -> tuple[pd.DataFrame, np.ndarray | None]:
    """The table of labels and features, and which rows are for testing, where a column says so."""
    table = read_site(file, where, options)
    for argument, column in [("label", label), *(("ignore", column) for column in checks.names("ignore", ignore))]:
        if column not in table:
            what = "no column" if argument == "label" else "nothing to ignore,"
            raise WrongValue(f"{where}: the file has {what} {column!r}, only {checks.shown(list(table))}")
    table = table.drop(columns=list(ignore))
    if not {*table.columns} - {label, "split"}:
        raise WrongValue(f"{where}: expected columns of features beside {label!r}, got none")
    if table[label].isna().any():
        raise WrongValue(f"{where}: column {label!r} has gaps; leave out these rows")
    if "split" not in table:
        return table, None
    if table["split"].isna().any():
        raise WrongValue(f"{where}: column 'split' has gaps; fill them, or leave out the rows")
    if unknown := sorted({str(word) for word in table["split"]} - {"train", "test"}):
        raise WrongValue(f"{where}: column 'split' must say train or test, got {unknown[0]!r}")
    return table.drop(columns="split"), (table["split"] == "test").to_numpy()


def _from_table(file: Path, where: str, label: str, ignore: Sequence[str], options: Mapping[str, Any]) -> Read:
    table, test = _parts(file, where, label, ignore, options)
    features = table.drop(columns=label)
    if words := [c for c in features if not pd.api.types.is_numeric_dtype(features[c])]:
        raise WrongValue(
            f"{where}: column {words[0]!r} holds no numbers; encode it (prepare=Preparation(…)), or leave it out"
        )
    if empty := [c for c in features if features[c].isna().any()]:
        raise WrongValue(f"{where}: column {empty[0]!r} has gaps; fill them (prepare=…), or leave out the rows")
    return features.to_numpy(np.float64), table[label].to_numpy(), test, list(features)


def _from_arrays(file: Path, where: str) -> Read:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in arrays.files}
    except (ValueError, OSError, EOFError, AttributeError, BadZipFile) as error:
        raise WrongValue(f"{where}: the file holds no arrays of numbers: {error}") from error
    features = [str(column) for column in found["features"].tolist()] if "features" in found else None
    parts, test = ("x_train", "y_train", "x_test", "y_test"), None
    if set(parts) <= set(found):
        x_train, y_train, x_test, y_test = (found[part] for part in parts)
        test = np.repeat([False, True], [len(y_train), len(y_test)])
        if (len(x_train), len(x_test)) != (len(y_train), len(y_test)) or x_train.shape[1:] != x_test.shape[1:]:
            shapes = ", ".join(f"{part} {found[part].shape}" for part in parts)
            raise WrongValue(f"{where}: expected a label for each row, and rows of one shape, got {shapes}")
        found |= {"x": np.concatenate([x_train, x_test]), "y": np.concatenate([y_train, y_test])}
    if not {"x", "y"} <= set(found):
        raise WrongValue(f"{where}: expected arrays x and y, or {', '.join(parts)}, got {sorted(found)}")
    return found["x"].astype(np.float64), found["y"], test, features


def _numbers(y: np.ndarray, where: str, label: str, classes: Sequence[Any] | None) -> np.ndarray:
    """Labels of a file as they are, or as places among the classes."""
    if classes is None:
        if y.dtype.kind not in "biuf":
            raise WrongValue(
                f"{where}: labels (column {label!r}) must be whole numbers 0 … C−1, or targets, got words or a "
                "mixture; say what they are in the order that all clients have agreed on, client_from_file(…, "
                "classes=['no', 'yes'])"
            )
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise WrongValue(f"{where}: labels (column {label!r}) must be finite numbers")
        return y
    index = {c: i for i, c in enumerate(checks.sequence("classes", classes))}
    if len(index) < len(list(classes)):
        raise WrongValue(f"{where}: classes must be different, got {checks.shown(classes)}")
    if unknown := sum(value not in index for value in y.tolist()):
        raise WrongValue(
            f"{where}: labels (column {label!r}) must be among classes={checks.shown(list(index))}, got {unknown} of "
            f"{len(y)} that are not"
        )
    return np.array([index[value] for value in y.tolist()], int)


def _drawn(y: np.ndarray, name: str, seed: int) -> np.ndarray:
    """The samples that are for testing: a share of each class, at most all but one."""
    rng, test = numpy_stream(seed, name, 0, "held out"), np.zeros(len(y), bool)
    whole = y.dtype.kind in "biu" or bool((y == np.round(y)).all())
    for value in np.unique(y) if whole else [None]:
        mine = np.flatnonzero(y == value) if whole else np.arange(len(y))
        test[rng.permutation(mine)[: min(round(HELD_OUT * len(mine)), len(mine) - 1)]] = True
    return test
