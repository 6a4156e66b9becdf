"""A federation's clients from a table, or from arrays: labels counted, samples split into training and test sets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from hetfl_core import checks
from hetfl_core.clients import Client, FederationWarning, Kind
from hetfl_core.rng import numpy_stream


class Part(NamedTuple):
    r"""Inputs and labels of one client, before they are split.

    Parameters
    ----------
    x : ndarray, shape (n, \*shape)
    y : ndarray, shape (n,)
    features : list of str, optional
        Names of the columns of `x`.
    order : tuple, optional
        All labels in their order, where they are ordered categories.
    """

    x: np.ndarray
    y: np.ndarray
    features: list[str] | None = None
    order: tuple[Any, ...] | None = None


def arrays_of_table(frame: pd.DataFrame, client: str, target: str) -> dict[str, tuple[pd.DataFrame, pd.Series]]:
    """Inputs and labels of each client of a table, with the features that it has; see `Federation.from_frame`.

    Parameters
    ----------
    frame : pandas.DataFrame
    client, target : str
        Columns.

    Returns
    -------
    dict of str to (DataFrame, Series)
        In the order in which the clients come in the table.
    """
    _check_columns(frame, client, target)
    groups = ((str(name), rows) for name, rows in frame.groupby(client, sort=False, observed=True))
    return {who: (_features(who, rows.drop(columns=[client, target])), rows[target]) for who, rows in groups}


def split_arrays(arrays: Any, share: Any, seed: int, task: Kind) -> tuple[list[Client], list[Any]]:
    """The clients with training and test sets, and the classes in their order; see `Federation.from_arrays`.

    Parameters
    ----------
    arrays : dict of str to (array_like, array_like)
    share : float
        Of test samples, in [0, 1).
    seed : int
    task : {"classification", "regression"}

    Returns
    -------
    clients : list of Client
    classes : list
        Empty for a regression.
    """
    if not isinstance(arrays, Mapping) or not arrays:
        raise ValueError(f"arrays must map at least one client's name to its (x, y), got {checks.shown(arrays)}")
    if not isinstance(share, int | float | np.number) or not 0 <= share < 1:
        raise ValueError(f"test_size must be a share of the samples in [0, 1), got {share!r}")
    parts = {who: _part(who, pair) for who, pair in arrays.items()}
    classes, coded = _coded(parts, task)
    clients, few = [], []
    for who, part in parts.items():
        y, rng = coded[who], numpy_stream(seed, who, 0, "split")
        groups = y if task == "classification" else np.zeros(len(y), int)
        indices = _in_proportion(groups, float(share), rng, task)
        if indices is None:
            few.append(who)
            indices = _but_one_of_each(groups, float(share), rng)
        train, test = map(np.sort, indices)
        clients.append(Client(part.x[train], y[train], part.x[test], y[test], who, part.features))
    if few:
        warnings.warn(
            f"too few samples to be split in proportion with test_size={float(share):g} on "
            f"{', '.join(map(repr, few))}: there, a sample of each class stays in the training set",
            FederationWarning,
            stacklevel=4,
        )
    return clients, classes


# --- the table ------------------------------------------------------------------------------------------------------


def _check_columns(frame: pd.DataFrame, client: str, target: str) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame must be a pandas.DataFrame, got {type(frame).__name__}")
    if client == target:
        raise ValueError(f"client and target must be two columns, got {client!r} for both")
    for argument, column in (("client", client), ("target", target)):
        if column not in frame.columns:
            raise ValueError(f"{argument} must be one of the columns {[*map(str, frame.columns)]}, got {column!r}")
    if not frame.columns.is_unique:
        raise ValueError(
            f"frame must have columns of different names, got {[*frame.columns[frame.columns.duplicated()]]} twice"
        )
    if lost := int(frame[client].isna().sum()):
        raise ValueError(f"column {client!r} must say whose every row is, got {lost} rows without a client")
    names = frame[client].unique()
    if len({str(name) for name in names}) < len(names):
        raise ValueError(
            f"column {client!r} must have one name per client, got names that read alike: {sorted(map(repr, names))}"
        )


def _features(who: str, columns: pd.DataFrame) -> pd.DataFrame:
    """The features that a client has: the columns that are not wholly empty in its rows."""
    own = columns.dropna(axis=1, how="all")
    if own.columns.empty:
        raise ValueError(f"client {who!r}: every feature is missing, expected at least one column with values")
    for column, values in own.items():
        if not pd.api.types.is_numeric_dtype(values):
            raise ValueError(
                f"client {who!r}: column {column!r} must hold numbers, got dtype {values.dtype}; encode categories "
                "first, for instance by pandas.get_dummies"
            )
        if lost := int(values.isna().sum()):
            raise ValueError(
                f"client {who!r}: column {column!r} lacks {lost} of {len(values)} values; fill them in, or leave out "
                "the rows (a column that a client does not have at all may be empty)"
            )
    return own.astype(float)


def _order(labels: Any) -> tuple[Any, ...] | None:
    """All values of ordered categories in their order; None where labels are no such categories."""
    kind = getattr(labels, "dtype", None)
    return tuple(kind.categories) if isinstance(kind, pd.CategoricalDtype) and kind.ordered else None


# --- arrays and labels ----------------------------------------------------------------------------------------------


def _part(who: str, pair: Any) -> Part:
    """A client's inputs and labels, as many of one as of the other."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"client {who!r}: arrays must have a pair (x, y), got {type(pair).__name__}")
    x, y = (
        checks.array(f"client {who!r}: {name}", value.detach().cpu() if isinstance(value, Tensor) else value)
        for name, value in zip("xy", pair, strict=True)
    )
    if x.ndim < 2:
        raise ValueError(f"client {who!r}: x must have shape (n, ...) with at least 2 axes, got {x.shape}")
    if y.ndim != 1 or len(x) != len(y):
        raise ValueError(f"client {who!r}: y must have shape ({len(x)},), a label per row of x, got {y.shape}")
    if lost := int(pd.isna(y).sum()):
        raise ValueError(f"client {who!r}: y must have no gaps, got {lost} missing labels")
    features = [str(column) for column in pair[0].columns] if isinstance(pair[0], pd.DataFrame) else None
    return Part(x, y, features, _order(pair[1]))


def _coded(parts: Mapping[str, Part], task: Kind) -> tuple[list[Any], dict[str, np.ndarray]]:
    """The classes in their order, and each client's labels as indices into it; targets of a regression stay."""
    if task == "regression":
        return [], {who: part.y for who, part in parts.items()}
    for who, part in parts.items():
        y = part.y
        if y.dtype.kind == "f" and not np.array_equal(y, np.round(y)):
            raise ValueError(
                f"client {who!r}: labels must be whole numbers or text, got {y[y != np.round(y)][0]:g}; real targets "
                'need task="regression"'
            )
    classes = _classes(parts)
    index = {label: c for c, label in enumerate(classes)}
    return classes, {who: np.array([index[label] for label in part.y.tolist()], int) for who, part in parts.items()}


def _classes(parts: Mapping[str, Part]) -> list[Any]:
    """All labels that occur, in their order."""
    held: set[Any] = set().union(*(part.y.tolist() for part in parts.values()))
    order, *others = {part.order: who for who, part in parts.items()}.items()
    if others:
        raise ValueError(
            f"labels must be ordered categories of one order on all clients, or on none: client {order[1]!r} has "
            f"{checks.shown(order[0])}, client {others[0][1]!r} {checks.shown(others[0][0])}"
        )
    if order[0] is not None:
        return [label for label in order[0] if label in held]
    try:
        return sorted(held)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in held})
        raise ValueError(f"labels must be of one type over all clients, got {', '.join(kinds)}") from error


# --- training and test sets -----------------------------------------------------------------------------------------

Places = tuple[np.ndarray, np.ndarray]
"""Of training and test samples."""


def _in_proportion(groups: np.ndarray, share: float, rng: np.random.Generator, task: Kind) -> Places | None:
    """Scikit-learn's split, stratified where there are classes; None where a class has too few samples for it."""
    from sklearn.model_selection import train_test_split

    everything = np.arange(len(groups))
    if share == 0:
        return everything, everything[:0]
    state = int(rng.integers(2**32))
    strata = groups if task == "classification" else None
    try:
        return train_test_split(everything, test_size=share, random_state=state, stratify=strata)  # type: ignore[return-value]
    except ValueError:
        return None


def _but_one_of_each(groups: np.ndarray, share: float, rng: np.random.Generator) -> Places:
    """A split that leaves a sample of each class for training; in proportion, but for classes of one sample, if it can.

    Else the test set is drawn from what is left when one sample of each class is set aside.
    """
    alone = np.bincount(groups)[groups] == 1
    single, others = np.flatnonzero(alone), np.flatnonzero(~alone)
    if len(single) and (found := _in_proportion(groups[others], share, rng, "classification")):
        return np.concatenate([single, others[found[0]]]), others[found[1]]
    order = rng.permutation(len(groups))
    first = np.unique(groups[order], return_index=True)[1]
    rest = np.delete(order, first)
    n_test = min(int(np.ceil(share * len(groups))), len(rest))
    return np.concatenate([order[first], rest[n_test:]]), rest[:n_test]
