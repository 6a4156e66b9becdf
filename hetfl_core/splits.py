"""Which rows of a client are for training and which are for testing: drawn, by group, by time, or as a column says."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.clients import Kind

TrainTest = tuple[np.ndarray, np.ndarray]
"""Indices of the training and of the test rows."""

ALIKE = 0.1
"""Standard deviations; rows of one patient that differ by less in every column are alike."""


class SplitBy(NamedTuple):
    """What splits a client's rows, where it is not drawn row by row.

    Parameters
    ----------
    kind : {"group", "split", "time"}
    column : str
        Of the table, for errors.
    values : pandas.Series
        What stands in that column, of each row of the client.
    """

    kind: Literal["group", "split", "time"]
    column: str
    values: pd.Series

    def rows(self, who: str, share: float, rng: np.random.Generator) -> TrainTest:
        """Training and test rows of a client.

        Parameters
        ----------
        who : str
            The client, for errors.
        share : float
            Of test rows, or of test groups.
        rng : numpy.random.Generator
            For groups.

        Returns
        -------
        train, test : ndarray of int

        Raises
        ------
        ValueError
            Naming the client and the column, for gaps in it, for words other than train and test, and where no row is
            left for training.
        """
        where = f"client {who!r}: column {self.column!r}, which {self.kind}= names,"
        if lost := int(self.values.isna().sum()):
            raise ValueError(f"{where} must have no gaps, got {lost} in {len(self.values)} rows")
        test = {"group": self._by_group, "split": self._as_told, "time": self._by_time}[self.kind](where, share, rng)
        if test.all():
            raise ValueError(f"{where} must leave at least one row for training, got {len(test)} test rows")
        return np.flatnonzero(~test), np.flatnonzero(test)

    def _by_group(self, where: str, share: float, rng: np.random.Generator) -> np.ndarray:
        """Whole groups: as many as `share` asks for, but one stays for training."""
        from sklearn.model_selection import GroupShuffleSplit

        groups = pd.factorize(self.values)[0]
        n = groups.max() + 1
        test = np.zeros(len(groups), bool)
        if share and n > 1:
            drawn = GroupShuffleSplit(1, test_size=min(share, (n - 1) / n), random_state=int(rng.integers(2**32)))
            test[next(drawn.split(groups, groups=groups))[1]] = True
        return test

    def _as_told(self, where: str, share: float, rng: np.random.Generator) -> np.ndarray:
        words = self.values.astype(str).str.strip().str.lower()
        if unknown := sorted({*words} - {"train", "test"}):
            raise ValueError(f"{where} must say train or test, got {checks.shown(unknown)}")
        return (words == "test").to_numpy()

    def _by_time(self, where: str, share: float, rng: np.random.Generator) -> np.ndarray:
        """The latest rows; those of one time stay together, in the training set if the border runs through them."""
        times = self.values
        if not pd.api.types.is_numeric_dtype(times):
            try:
                times = pd.to_datetime(times, format=None if times.dtype.kind == "M" else "ISO8601")
            except (ValueError, TypeError) as error:
                told = " ".join(str(error).split())
                raise ValueError(f"{where} must hold numbers, or dates such as 2020-01-31: {told}") from error
        n_train = len(times) - int(np.ceil(share * len(times)))
        last = times.sort_values(kind="stable").iloc[max(n_train, 1) - 1]
        return (times > last).to_numpy() if share else np.zeros(len(times), bool)


def in_proportion(classes: np.ndarray, share: float, rng: np.random.Generator, task: Kind) -> TrainTest | None:
    """Scikit-learn's split, stratified where there are classes; None where a class has too few samples for it.

    Parameters
    ----------
    classes : ndarray of int, shape (n,)
        Class of each row.
    share : float
        Of test samples.
    rng : numpy.random.Generator
    task : {"classification", "regression"}

    Returns
    -------
    train, test : ndarray of int
    """
    from sklearn.model_selection import train_test_split

    everything = np.arange(len(classes))
    if share == 0:
        return everything, everything[:0]
    state = int(rng.integers(2**32))
    strata = classes if task == "classification" else None
    try:
        return train_test_split(everything, test_size=share, random_state=state, stratify=strata)  # type: ignore[return-value]
    except ValueError:
        return None


def but_one_of_each(classes: np.ndarray, share: float, rng: np.random.Generator) -> TrainTest:
    """A split that leaves a sample of each class for training; in proportion, but for classes of one sample, if it can.

    Else the test set is drawn from what is left when one sample of each class is set aside.

    Parameters
    ----------
    classes : ndarray of int, shape (n,)
    share : float
    rng : numpy.random.Generator

    Returns
    -------
    train, test : ndarray of int
    """
    alone = np.bincount(classes)[classes] == 1
    single, others = np.flatnonzero(alone), np.flatnonzero(~alone)
    if len(single) and (found := in_proportion(classes[others], share, rng, "classification")):
        return np.concatenate([single, others[found[0]]]), others[found[1]]
    order = rng.permutation(len(classes))
    first = np.unique(classes[order], return_index=True)[1]
    rest = np.delete(order, first)
    n_test = min(int(np.ceil(share * len(classes))), len(rest))
    return np.concatenate([order[first], rest[n_test:]]), rest[:n_test]


def alike(table: pd.DataFrame, train: np.ndarray, test: np.ndarray) -> int:
    """Test rows that agree with some training row, where chance would let hardly any do so.

    Two rows agree when each number differs by less than `ALIKE` standard deviations, and words and gaps are the same.
    Chance is what columns that have nothing to do with each other would give, whose values are those of the table.

    Parameters
    ----------
    table : pandas.DataFrame
        Numbers, and words of type object.
    train, test : ndarray of int

    Returns
    -------
    int
        0 where at most one test row in twenty agrees, or ten times as many as by chance.
    """
    from sklearn.neighbors import NearestNeighbors

    if not len(train) or not len(test):
        return 0
    rows = np.column_stack([_codes(table[column]) for column in table.columns])
    by_chance = len(train) * math.prod(_agreement(rows[train, j]) for j in range(rows.shape[1]))
    nearest = NearestNeighbors(n_neighbors=1, metric="chebyshev").fit(rows[train]).kneighbors(rows[test])[0][:, 0]
    n = int((nearest < ALIKE).sum())
    return n if n > 1 and n > len(test) / 20 and n > 10 * len(test) * by_chance else 0


def _codes(values: pd.Series) -> np.ndarray:
    """Numbers in standard deviations, and places of words; a gap is far from everything, but for another gap."""
    if not pd.api.types.is_numeric_dtype(values):
        return pd.factorize(values)[0].astype(float)
    numbers = values.to_numpy(float)
    sd = np.nanstd(numbers) if np.isfinite(numbers).any() else 0.0
    return np.nan_to_num(numbers / (sd or 1.0), nan=1e9)


def _agreement(values: np.ndarray) -> float:
    """Share of pairs of rows that agree in a column."""
    ordered = np.sort(values)
    near = np.searchsorted(ordered, ordered + ALIKE) - np.searchsorted(ordered, ordered - ALIKE, "right")
    return float(near.sum() / len(ordered) ** 2)
