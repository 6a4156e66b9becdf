"""Dealing by classes: which classes each client holds, and its share of the samples of each.

Arguments have been checked where they entered, as by `hetfl_core.partition.Partition`.
"""

from __future__ import annotations

import numpy as np

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.partition._checks import Indices, Parts, joined


def assign_classes(
    n_clients: int,
    n_classes: int,
    k: int,
    rng: np.random.Generator,
    *,
    allow_repeats: bool = False,
) -> Indices:
    """Deal k classes to each client, so that all classes occur nearly equally often.

    Each class id is repeated ⌊bk/C⌋ or ⌈bk/C⌉ times, the list is shuffled and cut into rows of k. A row with
    a class twice is mended by swapping the second copy with an entry of a random row that lacks that class; each such
    swap lowers the number of repeats, so that it ends. The published code of FLIC leaves the repeats in
    (``allow_repeats=True``): with b = 100, C = 20 and k = 3 some 10 to 14 % of its clients hold fewer than 3 classes.

    Parameters
    ----------
    n_clients, n_classes, k : int
        Number of clients b, of classes C, and of classes per client.
    rng : numpy.random.Generator
    allow_repeats : bool
        Whether a row may hold a class twice.

    Returns
    -------
    ndarray of int, shape (n_clients, k)
        Classes 0 … C−1.
    """
    checks.memory(32 * n_clients * k, n_clients=n_clients, k=k)
    table = rng.permutation(_balanced_deck(n_clients * k, n_classes, rng)).reshape(n_clients, k)
    return table if allow_repeats else _mend_repeats(table, rng)


def consecutive_classes(n_clients: int, n_classes: int, k: int) -> Indices:
    """The k classes of each client where they follow each other: i, i + 1, …, i + k − 1 (modulo C) for client i.

    So the published code of FedCR [1]_ deals, whose text has them at random (`assign_classes`). There are then no more
    than C different sets of classes: of 100 clients with 10 classes, ten each hold the same.

    Parameters
    ----------
    n_clients, n_classes, k : int
        Number of clients b, of classes C, and of classes per client.

    Returns
    -------
    ndarray of int, shape (n_clients, k)
        Classes 0 … C−1. All have equally many holders where b is a multiple of C, or k = C.

    References
    ----------
    .. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
       conditional mutual information regularization. ICML 2023.
    """
    return (np.arange(n_clients, dtype=np.int64)[:, None] + np.arange(k)) % n_classes


def _balanced_deck(size: int, n_classes: int, rng: np.random.Generator) -> Indices:
    """`size` class ids, each ⌊size/C⌋ times and a random choice of them once more."""
    extra = rng.permutation(n_classes)[: size % n_classes]
    return np.concatenate([np.repeat(np.arange(n_classes), size // n_classes), extra]).astype(np.int64)


def _mend_repeats(table: Indices, rng: np.random.Generator) -> Indices:
    """Swap entries between rows, in place, until no row holds a class twice.

    Such a swap exists as long as no class occurs more often than there are rows: some row then lacks the class c that
    row i holds twice, and it has an entry that row i lacks or that it itself holds twice, which may go to row i. A row
    that gives an entry away gets one that it lacked, so that rows mended before stay so.
    """
    for i in range(len(table)):
        while (index := _first_repeat(table[i])) is not None:
            lacking = np.flatnonzero(~(table == table[i, index]).any(axis=1))
            j = int(rng.choice(lacking))
            values, counts = np.unique(table[j], return_counts=True)
            spare = [v for v, n in zip(values, counts) if n > 1 or v not in table[i]]
            other = int(np.flatnonzero(table[j] == rng.choice(spare))[0])
            table[i, index], table[j, other] = table[j, other], table[i, index]
    return table


def _first_repeat(row: Indices) -> int | None:
    """Place of the first entry that has occurred before, or None."""
    repeats = np.setdiff1d(np.arange(len(row)), np.unique(row, return_index=True)[1])
    return int(repeats[0]) if len(repeats) else None


def share(labels: Indices, assignment: Indices, rng: np.random.Generator, *, at_least: int = 1) -> Parts:
    """Share the samples of each class equally between the clients that hold it, after a random permutation.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Class of each sample.
    assignment : ndarray of int, shape (n_clients, k)
        Classes of each client, from `assign_classes`; who holds a class twice gets two shares of it.
    rng : numpy.random.Generator
    at_least : int
        Fewest samples that a share may have; 0 allows a client to get none of a class, as small test sets may need.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`; no index occurs twice. Samples of classes that nobody holds are left out.

    Raises
    ------
    ValueError
        Naming the class that has fewer samples than its holders need.
    """
    pieces: list[list[Indices]] = [[] for _ in assignment]
    for c in np.unique(assignment):
        holders, mine = np.nonzero(assignment == c)[0], np.flatnonzero(labels == c)
        _check_enough(c, len(mine), at_least * len(holders))
        shares = np.array_split(rng.permutation(mine), len(holders))
        for client, piece in zip(rng.permutation(holders), shares):
            pieces[client].append(piece)
    return [joined(p) for p in pieces]


def share_evenly(
    labels: Indices, assignment: Indices, rng: np.random.Generator, *, per_client: int | None = None
) -> Parts:
    """Give every client the same number of samples, and of each of its classes the same number.

    This is FedCR's *non-iid_1* [1]_: of Fashion-MNIST's 70 000 pooled images each of 100 clients with 5 of the 10
    classes gets 700, 140 of a class.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Class of each sample.
    assignment : ndarray of int, shape (n_clients, k)
        Different classes for each client, from `assign_classes` or `consecutive_classes`, such that every class of
        `labels` has equally many holders.
    rng : numpy.random.Generator
    per_client : int, optional
        Samples of a client, a multiple of k. By default all samples are dealt, which needs equally many of each class.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`, equally many for each client; no index occurs twice.

    Raises
    ------
    ValueError
        If the samples of a class cannot be shared evenly (`per_client` not given) or do not suffice (given); the
        message names the class.

    References
    ----------
    .. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
       conditional mutual information regularization. ICML 2023, Appendix A.1.1.
    """
    classes, counts = np.unique(labels, return_counts=True)
    n_holders = assignment.size // len(classes)
    each = _even_share(classes, counts, n_holders, assignment.shape[1], per_client)
    of_class = {c: rng.permutation(np.flatnonzero(labels == c))[: each * n_holders] for c in classes}
    dealt = {c: iter(mine.reshape(-1, each)) for c, mine in of_class.items()}
    return [joined([next(dealt[c]) for c in row]) for row in assignment]


def _even_share(classes: Indices, counts: Indices, n_holders: int, k: int, per_client: int | None) -> int:
    """Samples that a client gets of each of its k classes."""
    few, many = int(counts.argmin()), int(counts.argmax())
    most = int(counts[few]) // n_holders
    _check_enough(classes[few], counts[few], n_holders)
    if per_client is None:
        if counts[few] != counts[many] or counts[few] % n_holders:
            raise WrongValue(
                "labels: to deal all samples evenly (per_client=None), every class needs the same number, a multiple "
                f"of its {n_holders} holders, got {counts[few]} of class {classes[few]} and {counts[many]} of class "
                f"{classes[many]}: give per_client, a multiple of {k} of at most {k * most}"
            )
        return most
    if per_client > k * most:
        raise WrongValue(
            f"per_client must be at most {k * most}, as class {classes[few]} has {counts[few]} samples for {n_holders} "
            f"clients that hold it, got {per_client}"
        )
    return per_client // k


FEW, DRAWS = 100, 50
"""Of `published_shards`: samples per client below which shards are drawn with replacement, and how many of a class."""


def published_shards(
    labels: Indices, assignment: Indices, rng: np.random.Generator, *, repeat_below: int = FEW
) -> Parts:
    """Deal shards as FLIC's published code does, overlaps included.

    The samples of a class are cut, in the order in which they come, into as many shards as the assignment names the
    class. A client gets one random shard for each class that it was dealt. Where there are fewer than `FEW` samples
    per client, a shard is not taken away when it is dealt, so that clients overlap; where there are fewer than
    `repeat_below`, each client makes `DRAWS` draws per class, so that it also holds the same sample several times.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
    assignment : ndarray of int, shape (n_clients, k)
        From ``assign_classes(..., allow_repeats=True)``.
    rng : numpy.random.Generator
    repeat_below : int
        Samples per client (n / n_clients), at most `FEW`: shards that are taken away would run out. The code has 100
        for images, 10 for the toys.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`, with repeated ones where shards were drawn with replacement.

    Raises
    ------
    ValueError
        Naming the class that has fewer samples than shards.
    """
    each = len(labels) // len(assignment)
    times = DRAWS if each < repeat_below else 1
    checks.memory(8 * times * assignment.size, n_clients=len(assignment))
    shards = {int(c): _shards(labels, int(c), int((assignment == c).sum())) for c in np.unique(assignment)}

    def draw(c: int) -> Indices:
        index = int(rng.integers(len(shards[c])))
        return shards[c][index] if each < FEW else shards[c].pop(index)

    return [joined([draw(c) for c in np.tile(row, times).tolist()]) for row in assignment]


def _shards(y: Indices, c: int, n_shards: int) -> list[Indices]:
    mine = np.flatnonzero(y == c)
    _check_enough(c, len(mine), n_shards)
    return [np.asarray(s) for s in np.array_split(mine, n_shards)]


def _check_enough(c: int, n: int, shares: int) -> None:
    """Refuse a class that has fewer samples than there are shares of it."""
    if n < shares:
        raise WrongValue(
            f"labels: class {c} has {n} samples for the clients that hold it, expected at least one for each of "
            f"{shares} shares: use fewer clients (n_clients) or classes per client"
        )
