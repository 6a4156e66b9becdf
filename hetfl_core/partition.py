"""Dealing a pooled data set to clients.

Every function returns one sorted array of indices per client, draws only from the generator it is given, and (unless it
says that it draws with replacement) uses each sample at most once. Training and test sets are dealt apart, with the
same classes for the same client, so that no test sample can reach a training set; pooled samples are dealt once, in
equal sizes, and each client's are then split (`split_each`).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetfl_core import checks

Indices = NDArray[np.int64]
Parts = list[Indices]


def classes_per_client(
    labels: ArrayLike,
    n_clients: int,
    k: int,
    rng: np.random.Generator,
    balanced: bool = True,
    *,
    allow_repeats: bool = False,
) -> Parts:
    """Deal samples so that each client holds k of the classes.

    The samples of a class are permuted and shared equally (to within one) by the clients that hold it. To deal a test
    set with the same classes, make the assignment once and share twice::

        assignment = assign_classes(n_clients, n_classes, k, rng)
        train, test = share(y_train, assignment, rng), share(y_test, assignment, rng)

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each sample. The classes are the different values that occur.
    n_clients : int
        Number of clients b.
    k : int
        Classes per client.
    rng : numpy.random.Generator
    balanced : bool
        Whether each class is held by about equally many clients; see `assign_classes`.
    allow_repeats : bool
        Whether a client may be dealt a class twice; see `assign_classes`.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`; no index occurs twice.

    Raises
    ------
    ValueError
        If k exceeds the number of classes, or a class has fewer samples than clients that hold it.
    """
    y = check_labels(labels)
    classes = np.unique(y)
    check_k("k", k, len(classes), allow_repeats)
    check_clients(checks.whole("n_clients", n_clients, 1), k, len(y))
    positions = assign_classes(n_clients, len(classes), k, rng, balanced=balanced, allow_repeats=allow_repeats)
    return share(y, classes[positions], rng)


def assign_classes(
    n_clients: int,
    n_classes: int,
    k: int,
    rng: np.random.Generator,
    *,
    balanced: bool = True,
    allow_repeats: bool = False,
) -> Indices:
    """Which k classes each client holds.

    Balanced: each class id is repeated ⌊bk/C⌋ or ⌈bk/C⌉ times, the list is shuffled and cut into rows of k. A row with
    a class twice is mended by swapping the second copy with an entry of a random row that lacks that class; each such
    swap lowers the number of repeats, so that it ends. The published code of FLIC leaves the repeats in
    (``allow_repeats=True``): with b = 100, C = 20 and k = 3 some 10 to 14 % of its clients hold fewer than 3 classes.

    Parameters
    ----------
    n_clients, n_classes, k : int
        Number of clients b, of classes C, and of classes per client.
    rng : numpy.random.Generator
    balanced : bool
        If false, each client draws its classes on its own, so that a class may have many holders or none.
    allow_repeats : bool
        Whether a row may hold a class twice.

    Returns
    -------
    ndarray of int, shape (n_clients, k)
        Classes 0 … C−1.

    Raises
    ------
    ValueError
        If an argument is not positive, or k > C while repeats are not allowed.
    """
    checks.wholes(1, n_clients=n_clients, n_classes=n_classes)
    checks.flag("balanced", balanced)
    checks.flag("allow_repeats", allow_repeats)
    check_k("k", k, n_classes, allow_repeats)
    check_generator(rng)
    checks.memory(32 * n_clients * k, n_clients=n_clients, k=k)
    checks.memory(8 * n_classes, n_classes=n_classes)
    if not balanced:
        draws = [rng.choice(n_classes, k, replace=allow_repeats) for _ in range(n_clients)]
        return np.array(draws, dtype=np.int64)
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

    Raises
    ------
    ValueError
        If an argument is not positive, or k > C.

    References
    ----------
    .. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
       conditional mutual information regularization. ICML 2023.
    """
    checks.wholes(1, n_clients=n_clients, n_classes=n_classes)
    check_k("k", k, n_classes)
    checks.memory(16 * n_clients * k, n_clients=n_clients, k=k)
    checks.memory(8 * n_classes, n_classes=n_classes)
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
        while (place := _first_repeat(table[i])) is not None:
            lacking = np.flatnonzero(~(table == table[i, place]).any(axis=1))
            j = int(rng.choice(lacking))
            values, counts = np.unique(table[j], return_counts=True)
            spare = [v for v, n in zip(values, counts) if n > 1 or v not in table[i]]
            other = int(np.flatnonzero(table[j] == rng.choice(spare))[0])
            table[i, place], table[j, other] = table[j, other], table[i, place]
    return table


def _first_repeat(row: Indices) -> int | None:
    """Place of the first entry that has occurred before, or None."""
    seen: set[int] = set()
    for place, value in enumerate(row.tolist()):
        if value in seen:
            return place
        seen.add(value)
    return None


def share(labels: ArrayLike, assignment: ArrayLike, rng: np.random.Generator, *, at_least: int = 1) -> Parts:
    """Share the samples of each class equally between the clients that hold it, after a random permutation.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each sample.
    assignment : array_like of int, shape (n_clients, k)
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
    y, table = check_labels(labels), check_assignment(assignment)
    checks.whole("at_least", at_least, 0)
    check_generator(rng)
    pieces: list[list[Indices]] = [[] for _ in table]
    for c in np.unique(table):
        holders, mine = np.nonzero(table == c)[0], np.flatnonzero(y == c)
        if len(mine) < at_least * len(holders):
            raise ValueError(
                f"labels: class {c} has {len(mine)} samples for {len(holders)} clients that hold it, "
                f"expected at least {at_least * len(holders)} (at_least={at_least}): use fewer clients "
                "(n_clients) or classes per client"
            )
        shares = np.array_split(rng.permutation(mine), len(holders))
        for client, piece in zip(rng.permutation(holders), shares):
            pieces[client].append(piece)
    return [_sorted(p) for p in pieces]


def share_evenly(
    labels: ArrayLike, assignment: ArrayLike, rng: np.random.Generator, *, per_client: int | None = None
) -> Parts:
    """Give every client the same number of samples, and of each of its classes the same number.

    This is FedCR's *non-iid_1* [1]_: of Fashion-MNIST's 70 000 pooled images each of 100 clients with 5 of the 10
    classes gets 700, 140 of a class.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each sample.
    assignment : array_like of int, shape (n_clients, k)
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
        If a client holds a class twice, classes differ in their number of holders, or the samples of a class cannot be
        shared evenly (`per_client` not given) or do not suffice (given); the message names the class.

    References
    ----------
    .. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
       conditional mutual information regularization. ICML 2023, Appendix A.1.1.
    """
    y, table = check_labels(labels), check_assignment(assignment)
    check_generator(rng)
    classes, n_holders = _equal_holders(y, table)
    each = _even_share(y, classes, n_holders, table.shape[1], per_client)
    pieces: list[list[Indices]] = [[] for _ in table]
    for c in classes:
        dealt = rng.permutation(np.flatnonzero(y == c))[: each * n_holders]
        for client, piece in zip(np.nonzero(table == c)[0], np.split(dealt, n_holders)):
            pieces[client].append(piece)
    return [_sorted(p) for p in pieces]


def _equal_holders(y: Indices, table: Indices) -> tuple[Indices, int]:
    """All classes, and how many clients hold each of them."""
    for client, row in enumerate(table):
        if (place := _first_repeat(row)) is not None:
            raise ValueError(
                f"assignment must name different classes for each client, got class {row[place]} twice for client "
                f"{client}"
            )
    classes, holders = np.unique(np.concatenate([np.unique(y), table.ravel()]), return_counts=True)
    holders = holders - np.isin(classes, y)
    few, many = int(holders.argmin()), int(holders.argmax())
    if holders[few] != holders[many]:
        raise ValueError(
            f"assignment must give each of the {len(classes)} classes of labels equally many holders, got "
            f"{holders[few]} for class {classes[few]} and {holders[many]} for class {classes[many]}: choose clients × "
            "classes per client (where a client's classes follow each other, clients alone) as a multiple of the "
            "number of classes"
        )
    return classes, int(holders[few])


def _even_share(y: Indices, classes: Indices, n_holders: int, k: int, per_client: int | None) -> int:
    """Samples that a client gets of each of its k classes."""
    counts = np.array([(y == c).sum() for c in classes])
    few, many = int(counts.argmin()), int(counts.argmax())
    most = int(counts[few]) // n_holders
    if most < 1:
        raise ValueError(
            f"labels: class {classes[few]} has {counts[few]} samples for {n_holders} clients that hold it, expected at "
            f"least {n_holders}: use fewer clients or classes per client"
        )
    if per_client is None:
        if counts[few] != counts[many] or counts[few] % n_holders:
            raise ValueError(
                "labels: to deal all samples evenly (per_client=None), every class needs the same number, a multiple "
                f"of its {n_holders} holders, got {counts[few]} of class {classes[few]} and {counts[many]} of class "
                f"{classes[many]}: give per_client, a multiple of {k} of at most {k * most}"
            )
        return most
    check_per_client("per_client", per_client, k)
    if per_client > k * most:
        raise ValueError(
            f"per_client must be at most {k * most}, as class {classes[few]} has {counts[few]} samples for {n_holders} "
            f"clients that hold it, got {per_client}"
        )
    return per_client // k


def published_shards(
    labels: ArrayLike,
    assignment: ArrayLike,
    rng: np.random.Generator,
    *,
    replace_below: int = 100,
    repeat_below: int = 100,
    repeats: int = 50,
) -> Parts:
    """Deal shards as FLIC's published code does, overlaps included.

    The samples of a class are cut, in the order in which they come, into as many shards as the assignment names the
    class. A client gets one random shard for each class that it was dealt. Where there are fewer than `replace_below`
    samples per client, a shard is not taken away when it is dealt, so that clients overlap; where there are fewer than
    `repeat_below`, each client draws `repeats` shards per class, so that it also holds the same sample several times.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
    assignment : array_like of int, shape (n_clients, k)
        From ``assign_classes(..., allow_repeats=True)``.
    rng : numpy.random.Generator
    replace_below, repeat_below : int
        Samples per client (n / n_clients). The code has 100 and 100 for images, 100 and 10 for the toys.
    repeats : int
        Draws a class where samples are few.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`, with repeated ones where shards were drawn with replacement.

    Raises
    ------
    ValueError
        Naming the class that has fewer samples than shards; or where a client would draw several shards of a class and
        keep them, for there is only one for each.
    """
    y, table = check_labels(labels), check_assignment(assignment)
    checks.wholes(0, replace_below=replace_below, repeat_below=repeat_below)
    checks.whole("repeats", repeats, 1)
    checks.memory(8 * repeats * table.size, repeats=repeats)
    check_generator(rng)
    each = len(y) // len(table)
    times = repeats if each < repeat_below else 1
    if times > 1 and each >= replace_below:
        raise ValueError(
            f"replace_below must be more than {each}, the samples per client, where each draws {repeats} shards per "
            f"class (repeat_below={repeat_below}), got {replace_below}: shards that are taken away run out"
        )
    shards = {int(c): _shards(y, int(c), int((table == c).sum())) for c in np.unique(table)}

    def draw(c: int) -> Indices:
        place = int(rng.integers(len(shards[c])))
        return shards[c][place] if each < replace_below else shards[c].pop(place)

    return [_sorted([draw(c) for c in np.tile(row, times).tolist()]) for row in table]


def _shards(y: Indices, c: int, n_shards: int) -> list[Indices]:
    mine = np.flatnonzero(y == c)
    if len(mine) < n_shards:
        raise ValueError(
            f"labels: class {c} has {len(mine)} samples, expected at least one for each of {n_shards} shards"
        )
    return [np.asarray(s) for s in np.array_split(mine, n_shards)]


def dirichlet(labels: ArrayLike, n_clients: int, alpha: float, rng: np.random.Generator, min_size: int = 1) -> Parts:
    """Deal all samples with class proportions drawn from a Dirichlet distribution.

    For each class c, proportions p_c ~ Dir(α, …, α) over the b clients are drawn and the permuted samples of the class
    are cut accordingly. A client left with fewer than `min_size` samples is then given random samples of the clients
    that have most, one at a time: with a small α some clients would otherwise have none.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each sample.
    n_clients : int
        Number of clients b.
    alpha : float
        Concentration α > 0: small values give clients of few classes, large ones nearly equal clients.
    rng : numpy.random.Generator
    min_size : int
        Fewest samples per client.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`: together every sample, each once. `share_alike` deals a test set likewise.

    Raises
    ------
    ValueError
        If α is not a positive finite number or there are fewer than ``n_clients * min_size`` samples.
    """
    y = check_labels(labels)
    checks.whole("n_clients", n_clients, 1)
    checks.whole("min_size", min_size, 0)
    check_generator(rng)
    check_alpha("alpha", alpha)
    if len(y) < n_clients * max(min_size, 1):
        raise ValueError(
            f"labels: n_clients={n_clients} with at least {max(min_size, 1)} samples each (min_size={min_size}) need "
            f"{n_clients * max(min_size, 1)} samples, got {len(y)}"
        )
    pieces: list[list[Indices]] = [[] for _ in range(n_clients)]
    for c in np.unique(y):
        mine = rng.permutation(np.flatnonzero(y == c))
        _cut(mine, rng.dirichlet(np.full(n_clients, float(alpha))), pieces, rng)
    return _top_up([_sorted(p) for p in pieces], max(min_size, 1), rng)


def dirichlet_per_client(
    labels: ArrayLike, n_clients: int, alpha: float, rng: np.random.Generator, *, per_client: int | None = None
) -> Parts:
    """Deal clients of equal size, each with class proportions of its own, drawn from a Dirichlet distribution.

    This is FedCR's *non-iid_2* ([1]_; as FedDyn has it). Each client i has a prior q_i ~ Dir(α, …, α) over the C
    classes. Again and again a random client that is not full yet draws a class from its prior, and then a random sample
    of that class, which is not put back. A class that has run out is skipped: the others' probabilities are scaled up.
    (Where they are all 0 to rounding, the client draws by what is left.) So clients that are full late stray from their
    priors where all samples are dealt. In `dirichlet`, it is the *classes* that have priors over the clients, and
    clients differ in size.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each sample.
    n_clients : int
        Number of clients b.
    alpha : float
        Concentration α > 0: small values give clients of few classes, large ones equal clients.
    rng : numpy.random.Generator
    per_client : int, optional
        Samples of a client. By default all samples are dealt, and b must divide their number.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`, equally many for each client; no index occurs twice.

    Raises
    ------
    ValueError
        If α is not a positive finite number, or the samples cannot be dealt in equal sizes, or do not suffice.

    References
    ----------
    .. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
       conditional mutual information regularization. ICML 2023, Appendix A.1.1.
    """
    y = check_labels(labels)
    checks.whole("n_clients", n_clients, 1)
    check_generator(rng)
    check_alpha("alpha", alpha)
    size = _equal_size(len(y), n_clients, per_client)
    classes = np.unique(y)
    checks.memory(16 * n_clients * len(classes), n_clients=n_clients)
    priors = rng.dirichlet(np.full(len(classes), float(alpha)), n_clients)
    piles = [rng.permutation(np.flatnonzero(y == c)).tolist() for c in classes]
    left = np.array([len(pile) for pile in piles])
    parts: list[list[int]] = [[] for _ in range(n_clients)]
    waiting = list(range(n_clients))
    ends: dict[int, list[float]] = {}  # of clients, until a class runs out
    while waiting:
        place = int(rng.integers(len(waiting)))
        client = waiting[place]
        if client not in ends:
            ends[client] = _cumulated(np.where(left > 0, priors[client], 0.0))
        c = bisect.bisect_right(ends[client] or _cumulated(left.astype(np.float64)), rng.random())
        parts[client].append(piles[c].pop())
        left[c] -= 1
        if not left[c]:
            ends.clear()
        if len(parts[client]) == size:
            del waiting[place]
    return [np.array(sorted(part), dtype=np.int64) for part in parts]


def _cumulated(weights: NDArray[np.float64]) -> list[float]:
    """Ends of the intervals of [0, 1) in which each class is drawn; none where the weights are 0 to rounding."""
    total = weights.sum()
    if total < np.finfo(np.float64).tiny:
        return []
    ends = (weights / total).cumsum()
    return [float(end) for end in ends / ends[-1]]


def _equal_size(n: int, n_clients: int, per_client: int | None) -> int:
    """Samples of each client, all of them or as many as were asked for."""
    if per_client is not None:
        checks.whole("per_client", per_client, 1)
    if n < n_clients:
        raise ValueError(f"labels: n_clients={n_clients} clients need at least as many samples, got {n}")
    if per_client is None and n % n_clients:
        raise ValueError(
            f"labels: {n} samples cannot be dealt in equal sizes to n_clients={n_clients} clients: give per_client, at "
            f"most {n // n_clients}"
        )
    if per_client is not None and per_client > n // n_clients:
        raise ValueError(
            f"per_client must be at most {n // n_clients}, as there are {n} labels for n_clients={n_clients}, got "
            f"{per_client}"
        )
    return n // n_clients if per_client is None else per_client


def split_each(
    labels: ArrayLike,
    parts: Sequence[Indices],
    test_fraction: float,
    rng: np.random.Generator,
    *,
    stratified: bool = True,
) -> tuple[Parts, Parts]:
    """Cut the samples of each client into a training and a test set, which so have the same distribution.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each sample.
    parts : sequence of arrays of int
        A dealing of pooled samples.
    test_fraction : float
        Share of a client's samples that becomes its test set, in (0, 1), rounded to whole samples.
    rng : numpy.random.Generator
    stratified : bool
        Whether each class of a client is cut in that proportion, to the nearest sample (largest remainders, ties at
        random). If false, all its samples are mixed and cut once, as FedCR's published code does: a class of few
        samples may then lie in one of the two sets alone.

    Returns
    -------
    train, test : list of arrays of int
        Sorted indices into `labels`.

    Raises
    ------
    ValueError
        If a client would have no training or no test sample, or holds a sample several times.
    """
    y = check_labels(labels)
    parts = check_parts(parts, len(y))
    test_fraction = checks.fraction("test_fraction", test_fraction, "(0, 1)")
    check_generator(rng)
    checks.flag("stratified", stratified)
    train, test = [], []
    for i, part in enumerate(parts):
        if len(np.unique(part)) < len(part):
            raise ValueError(f"parts[{i}] must hold each index once, or a sample would be on both sides, got repeats")
        n_test = round(test_fraction * len(part))
        if not 0 < n_test < len(part):
            raise ValueError(
                f"test_fraction must leave samples on either side, got {test_fraction} for {len(part)} samples in "
                f"parts[{i}]"
            )
        held_out = _stratified(y, part, n_test, rng) if stratified else rng.permutation(part)[:n_test]
        test.append(np.sort(held_out))
        train.append(np.setdiff1d(part, held_out))
    return train, test


def _stratified(y: Indices, part: Indices, n_test: int, rng: np.random.Generator) -> Indices:
    """`n_test` random samples, of each class its share."""
    classes, counts = np.unique(y[part], return_counts=True)
    sizes = _rounded(counts * n_test / len(part), n_test, rng)
    return np.concatenate([rng.permutation(part[y[part] == c])[:size] for c, size in zip(classes, sizes)])


def share_alike(labels: ArrayLike, parts: Sequence[Indices], others: ArrayLike, rng: np.random.Generator) -> Parts:
    """Deal other samples, such as a test set, with the class proportions of a dealing that exists.

    The samples of a class go to the clients in proportion to the samples of that class that they already hold, so
    that nobody is tested on a class that it was not trained on.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Labels that `parts` index.
    parts : sequence of arrays of int
        The dealing to imitate.
    others : array_like of int, shape (m,)
        Labels of the samples to deal.
    rng : numpy.random.Generator

    Returns
    -------
    list of arrays of int
        Sorted indices into `others`; samples of classes that nobody holds are left out. A part may be empty.
    """
    y, z = check_labels(labels), check_labels(others, "others")
    check_generator(rng)
    parts = check_parts(parts, len(y))
    pieces: list[list[Indices]] = [[] for _ in parts]
    for c in np.unique(z):
        weights = np.array([(y[p] == c).sum() for p in parts], dtype=float)
        if weights.any():
            _cut(rng.permutation(np.flatnonzero(z == c)), weights / weights.sum(), pieces, rng)
    return [_sorted(p) for p in pieces]


def _cut(
    mine: Indices, proportions: NDArray[np.float64], pieces: list[list[Indices]], rng: np.random.Generator
) -> None:
    """Append to each client's pieces its proportion of `mine`, rounded by largest remainders, ties at random."""
    sizes = _rounded(len(mine) * proportions, len(mine), rng)
    for client, piece in enumerate(np.split(mine, np.cumsum(sizes)[:-1])):
        pieces[client].append(piece)


def _rounded(exact: NDArray[np.float64], total: int, rng: np.random.Generator) -> Indices:
    """Whole numbers of that sum: the rounded-down ones, and one more by largest remainders, ties at random."""
    sizes = np.floor(exact).astype(np.int64)
    remainder = np.where(exact > 0, exact - sizes, -1.0)
    order = np.lexsort((rng.random(len(sizes)), -remainder))
    sizes[order[: total - int(sizes.sum())]] += 1
    return sizes


def _top_up(parts: Parts, min_size: int, rng: np.random.Generator) -> Parts:
    """Move random samples from the largest parts to those that have fewer than `min_size`."""
    sizes = np.array([len(p) for p in parts])
    for i in np.flatnonzero(sizes < min_size):
        while sizes[i] < min_size:
            j = int(sizes.argmax())
            place = int(rng.integers(sizes[j]))
            parts[i] = np.sort(np.append(parts[i], parts[j][place]))
            parts[j] = np.delete(parts[j], place)
            sizes[i], sizes[j] = sizes[i] + 1, sizes[j] - 1
    return parts


def subsample(parts: Sequence[Indices], rng: np.random.Generator, *, variant: str = "text") -> Parts:
    """Make clients unequal by keeping a random share of the samples of each (FLIC, S3.1.1 [1]_).

    ``"text"`` keeps a percentage drawn uniformly from 5 to 100, all samples of the client alike and each at most once.
    ``"code"`` is what the published code does: with probability ½ the percentage is min(U + 5, 100) with U uniform in
    0 … 100, else uniform in 15 … 35; the samples are drawn **with replacement**.

    Parameters
    ----------
    parts : sequence of arrays of int
        Indices of each client.
    rng : numpy.random.Generator
    variant : {"text", "code"}

    Returns
    -------
    list of arrays of int
        Sorted, at least one index per client. Classes are not protected: a small client may lose one.

    References
    ----------
    .. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
    """
    check_variant(variant)
    check_generator(rng)
    parts = check_parts(parts)
    if empty := [i for i, part in enumerate(parts) if not len(part)]:
        raise ValueError(f"parts must hold at least one index each, got none in part {empty[0]}")
    percentage = _text_percentage if variant == "text" else _code_percentage
    kept = []
    for part in parts:
        size = max(1, int(len(part) * percentage(rng) / 100))
        kept.append(np.sort(rng.choice(part, size, replace=variant == "code")))
    return kept


def _text_percentage(rng: np.random.Generator) -> float:
    return float(rng.uniform(5, 100))


def _code_percentage(rng: np.random.Generator) -> float:
    if rng.random() > 0.5:
        return min(float(rng.uniform(0, 100)) + 5, 100.0)
    return float(rng.uniform(15, 35))


def check_variant(variant: str) -> None:
    """Refuse a variant other than ``"text"`` (as the paper says) and ``"code"`` (as the published code does)."""
    if not isinstance(variant, str) or variant not in ("text", "code"):
        raise ValueError(f'variant must be "text" (the paper) or "code" (its published code), got {variant!r}')


def by_group(groups: ArrayLike) -> dict[Any, Indices]:
    """Indices of the samples of each group (writer, subject, …), in the order of the groups' names."""
    names = checks.array("groups", groups)
    if names.ndim != 1 or names.dtype == object:
        raise ValueError(
            f"groups must be names or numbers, of shape (n,), got shape {names.shape} and dtype {names.dtype}"
        )
    return {name.item(): np.flatnonzero(names == name) for name in np.unique(names)}


def _sorted(pieces: list[Indices]) -> Indices:
    return np.sort(np.concatenate([np.zeros(0, np.int64), *pieces]))


def check_labels(labels: ArrayLike, name: str = "labels") -> Indices:
    """Whole numbers of shape (n,)."""
    y = _whole_array(name, labels)
    if y.ndim != 1:
        raise ValueError(f"{name} must have shape (n,), got {y.shape}")
    return y


def check_assignment(assignment: ArrayLike) -> Indices:
    """The classes of each client, shape (n_clients, k)."""
    table = _whole_array("assignment", assignment)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"assignment must have shape (n_clients, k), both at least 1, got {table.shape}")
    return table


def check_parts(parts: Sequence[Indices], n: int | None = None) -> Parts:
    """Indices of each client, into n samples."""
    parts = checks.several("parts", parts)
    found = [check_labels(part, f"parts[{i}]") if len(np.shape(part)) != 1 or len(part) else np.zeros(0, np.int64)
             for i, part in enumerate(parts)]  # fmt: skip
    for i, part in enumerate(found):
        if len(part) and (part.min() < 0 or (n is not None and part.max() >= n)):
            most = "" if n is None else f"…{n - 1}"
            raise ValueError(
                f"parts[{i}] must hold indices 0{most}, places in labels, got {part.min()} to {part.max()}"
            )
    return found


def _whole_array(name: str, values: ArrayLike) -> Indices:
    array = checks.array(name, values)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be whole numbers, got dtype {array.dtype}")
    return array.astype(np.int64)


def check_k(name: str, k: int, n_classes: int, allow_repeats: bool = False) -> None:
    """Refuse a number of classes per client that is none, or more than there are classes."""
    checks.whole(name, k, 1)
    if k > n_classes and not allow_repeats:
        raise ValueError(
            f"{name} must be at most the number of classes, {n_classes}, got {k}: a client cannot hold more"
        )


def check_clients(n_clients: int, k: int, n_samples: int) -> None:
    """Refuse, before anything is dealt, more clients than could each have a sample of each of its k classes."""
    if n_clients * k > n_samples:
        raise ValueError(
            f"n_clients must be at most {n_samples // k}, so that each has at least one of {n_samples} training "
            f"samples of each of its classes ({k} a client), got {n_clients}"
        )


def check_per_client(name: str, per_client: int, k: int) -> None:
    """Refuse a number of samples that a client's k classes cannot share evenly."""
    checks.whole(name, per_client, 1)
    if per_client % k:
        raise ValueError(f"{name} must be a multiple of {k}, the classes of a client, got {per_client}")


def check_alpha(name: str, alpha: float) -> None:
    """Refuse a concentration of a Dirichlet distribution that is none, or whose sums overflow."""
    try:
        checks.number(name, alpha, most=1e100, above=0)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a positive finite number, got {checks.shown(alpha)}" + " (at most 1e100)"
        ) from error


def check_generator(rng: object) -> None:
    """Refuse what is not NumPy's."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")
