"""Which rows of a client are for training and which are for testing: drawn, by group, by time, or as a column says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hetfl_core import checks, columns
from hetfl_core.clients import Kind, warn
from hetfl_core.errors import WrongValue

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
        where = self.checked(who)
        test = {"group": self._by_group, "split": self._as_told, "time": self._by_time}[self.kind](where, share, rng)
        if test.all():
            raise WrongValue(f"{where} must leave at least one row for training, got {len(test)} test rows")
        return np.flatnonzero(~test), np.flatnonzero(test)

    def checked(self, who: str) -> str:
        """What errors call the column at a client, which must have no gaps there."""
        where = f"client {who!r}: column {self.column!r}, which {self.kind}= names,"
        if lost := int(self.values.isna().sum()):
            raise WrongValue(f"{where} must have no gaps, got {lost} in {len(self.values)} rows")
        return where

    def groups(self) -> np.ndarray:
        """What the group of each row is called (`columns.group_name`), as texts."""
        return np.array([columns.group_name(value) for value in self.values], dtype=object)

    def _by_group(self, where: str, share: float, rng: np.random.Generator) -> np.ndarray:
        """Whole groups: as many as `share` asks for, but one stays for training."""
        from sklearn.model_selection import GroupShuffleSplit

        groups = pd.factorize(self.groups())[0]
        n = groups.max() + 1
        test = np.zeros(len(groups), bool)
        if share and n > 1:
            drawn = GroupShuffleSplit(1, test_size=min(share, (n - 1) / n), random_state=int(rng.integers(2**32)))
            test[next(drawn.split(groups, groups=groups))[1]] = True
        return test

    def _as_told(self, where: str, share: float, rng: np.random.Generator) -> np.ndarray:
        words = self.values.astype(str).str.strip().str.lower()
        if unknown := sorted({*words} - {"train", "test"}):
            raise WrongValue(f"{where} must say train or test, got {checks.shown(unknown)}")
        return (words == "test").to_numpy()

    def _by_time(self, where: str, share: float, rng: np.random.Generator) -> np.ndarray:
        """The latest rows; those of one time stay together, in the training set if the border runs through them."""
        times = columns.numbers(columns.plain(self.values, where))
        if isinstance(times.dtype, pd.PeriodDtype):
            times = times.dt.to_timestamp()
        elif times.dtype.kind == "m":
            times = times.astype("int64")
        if not pd.api.types.is_numeric_dtype(times.dtype):
            try:
                times = pd.to_datetime(times, format=None if times.dtype.kind == "M" else "ISO8601")
            except (ValueError, TypeError) as error:
                told = " ".join(str(error).split())
                raise WrongValue(f"{where} must hold numbers, or dates such as 2020-01-31: {told}") from error
        n_train = len(times) - int(np.ceil(share * len(times)))
        last = times.sort_values(kind="stable").iloc[max(n_train, 1) - 1]
        return (times > last).to_numpy() if share else np.zeros(len(times), bool)


def over_clients(
    groups: Mapping[str, np.ndarray], share: float, streams: Mapping[str, np.random.Generator]
) -> dict[str, TrainTest]:
    """Training and test rows of the clients that hold groups of one another: a group is for testing at all or at none.

    One client after the other, the one with the fewest groups first, draws groups until it has its share of them for
    testing, among those for which there is still room at all clients that hold them. So each has its share, if there
    are groups enough that are not decided by others, never more, and one stays for training. Groups are known by what
    they are called: where each client numbers its own patients from 1, patients of one number are drawn together, which
    does no harm.

    Parameters
    ----------
    groups : dict of str to ndarray of object, shape (n,)
        Of each client, what the group of each row is called.
    share : float
        Of test groups.
    streams : dict of str to numpy.random.Generator
        Of each client.

    Returns
    -------
    dict of str to (ndarray of int, ndarray of int)
        Of those clients only, of which some group is another's as well.
    """
    own = {who: list(dict.fromkeys(names)) for who, names in groups.items()}
    holders: dict[str, list[str]] = {}
    for who, names in own.items():
        for name in names:
            holders.setdefault(name, []).append(who)
    together = [who for who, names in own.items() if any(len(holders[name]) > 1 for name in names)]
    room = {who: min(math.ceil(share * len(own[who])), len(own[who]) - 1) for who in together}
    taken: Counter[str] = Counter()
    test: set[str] = set()
    for who in sorted(together, key=lambda who: (len(own[who]), who)):
        for place in streams[who].permutation(len(own[who])):
            name = own[who][place]
            if name not in test and all(taken[holder] < room[holder] for holder in holders[name]):
                test.add(name)
                taken.update(holders[name])
    if lost := [who for who in together if room[who] and not taken[who]]:
        warn(
            f"{checks.clients(lost)}: no group is left for testing, as each is at another client as well that has its "
            "share of test groups: there are no test rows"
        )
    held = {who: np.array([name in test for name in groups[who]], bool) for who in together}
    return {who: (np.flatnonzero(~rows), np.flatnonzero(rows)) for who, rows in held.items()}


def by_groups(
    groups: Mapping[str, np.ndarray], share: float, streams: Mapping[str, np.random.Generator]
) -> dict[str, TrainTest]:
    """Training and test rows of clients by whole groups: drawn by each client, or `over_clients` where it shares some.

    Parameters
    ----------
    groups, share, streams
        As for `over_clients`.

    Returns
    -------
    dict of str to (ndarray of int, ndarray of int)
        Of every client.
    """
    found = over_clients(groups, share, streams)
    for who in groups.keys() - found.keys():
        rule = SplitBy("group", "group", pd.Series(groups[who]))
        found[who] = rule.rows(who, share, streams[who])
    return found


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


def alike_elsewhere(
    tables: Mapping[str, pd.DataFrame], sets: Mapping[str, TrainTest]
) -> dict[str, tuple[int, list[str]]]:
    """Test rows of each client that agree with training rows of another, where chance would let hardly any do so.

    As `alike`, in the columns that both have, in standard deviations of the client whose test rows they are.

    Parameters
    ----------
    tables : dict of str to pandas.DataFrame
    sets : dict of str to (ndarray of int, ndarray of int)
        Training and test rows of each.

    Returns
    -------
    dict of str to (int, list of str)
        How many there are, and at which clients the training rows are; without clients that have at most one such row
        in twenty.
    """
    from scipy.spatial import KDTree

    found: dict[str, tuple[int, list[str]]] = {}
    coded = _coded_alike(tables)
    for who, table in coded.items():
        test = sets[who][1]
        others: dict[tuple[str, ...], list[str]] = {}
        for other, its in coded.items():
            if other != who and len(test) and len(sets[other][0]):
                others.setdefault(tuple(column for column in table if column in its), []).append(other)
        units = {column: _deviation(values) for column, (values, of_words) in table.items() if not of_words}
        rows: set[int] = set()
        at: set[str] = set()
        for common, names in others.items():
            if not common:
                continue
            units_here = np.array([units.get(column, 1.0) for column in common])
            mine = np.column_stack([table[column][0][test] for column in common]) / units_here
            parts = [np.column_stack([coded[name][column][0] for column in common])[sets[name][0]] for name in names]
            theirs = np.concatenate(parts) / units_here
            mine, theirs = (np.nan_to_num(part, nan=1e9) for part in (mine, theirs))
            distance, place = KDTree(theirs).query(mine, p=np.inf, distance_upper_bound=ALIKE)
            near = np.flatnonzero(distance < ALIKE)
            if not len(near):
                continue
            by_chance = len(theirs) * math.prod(map(_agreement_of_two, mine.T, theirs.T))
            if len(near) > 10 * len(test) * by_chance:
                whose = np.repeat(names, [len(part) for part in parts])
                rows |= {*near.tolist()}
                at |= {*whose[place[near]].tolist()}
        if len(rows) > 1 and len(rows) > len(test) / 20:
            found[who] = len(rows), [name for name in tables if name in at]
    return found


def _coded_alike(tables: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, tuple[np.ndarray, bool]]]:
    """Of each client and column the values, NaN where they are missing, and whether they are words.

    Words are numbered alike at all clients; a column that holds words at one of them holds words at all.
    """
    found: dict[str, dict[str, tuple[np.ndarray, bool]]] = {who: {} for who in tables}
    for column in dict.fromkeys(column for table in tables.values() for column in table.columns):
        held = {who: table[column] for who, table in tables.items() if column in table.columns}
        of_words = not all(pd.api.types.is_numeric_dtype(values.dtype) for values in held.values())
        if of_words:
            codes = pd.factorize(pd.concat([values.astype(object) for values in held.values()]))[0].astype(float)
            parts = np.split(codes, np.cumsum([len(values) for values in held.values()])[:-1])
        else:
            parts = [values.to_numpy(float) for values in held.values()]
        for who, part in zip(held, parts, strict=True):
            found[who][column] = part, of_words
    return found


def _deviation(numbers: np.ndarray) -> float:
    """Standard deviation of what is there, or 1 where that is nothing or one value only."""
    return float(np.nanstd(numbers) if np.isfinite(numbers).any() else 0.0) or 1.0


def _agreement_of_two(mine: np.ndarray, theirs: np.ndarray) -> float:
    """Share of pairs of rows, one of each, that agree in a column."""
    ordered = np.sort(theirs)
    near = np.searchsorted(ordered, mine + ALIKE) - np.searchsorted(ordered, mine - ALIKE, "right")
    return float(near.sum() / (len(mine) * len(theirs)))


def _codes(values: pd.Series) -> np.ndarray:
    """Numbers in standard deviations, and places of words; a gap is far from everything, but for another gap."""
    if not pd.api.types.is_numeric_dtype(values.dtype):
        return pd.factorize(values)[0].astype(float)
    numbers = values.to_numpy(float)
    sd = np.nanstd(numbers) if np.isfinite(numbers).any() else 0.0
    return np.nan_to_num(numbers / (sd or 1.0), nan=1e9)


def _agreement(values: np.ndarray) -> float:
    """Share of pairs of rows that agree in a column."""
    ordered = np.sort(values)
    near = np.searchsorted(ordered, ordered + ALIKE) - np.searchsorted(ordered, ordered - ALIKE, "right")
    return float(near.sum() / len(ordered) ** 2)
