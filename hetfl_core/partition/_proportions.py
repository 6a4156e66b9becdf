"""Dealing by proportions of classes: drawn from a Dirichlet distribution, or those of a dealing that exists.

Arguments have been checked where they entered, as by `hetfl_core.partition.Partition`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.partition._checks import Indices, Parts, joined


def dirichlet(labels: Indices, n_clients: int, alpha: float, rng: np.random.Generator, min_size: int = 1) -> Parts:
    """Deal all samples with class proportions drawn from a Dirichlet distribution.

    For each class c, proportions p_c ~ Dir(α, …, α) over the b clients are drawn and the permuted samples of the class
    are cut accordingly. A client left with fewer than `min_size` samples is then given random samples of the clients
    that have most, one at a time: with a small α some clients would otherwise have none.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
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
        If there are fewer than ``n_clients * min_size`` samples.
    """
    fewest = max(min_size, 1)
    if len(labels) < n_clients * fewest:
        raise WrongValue(
            f"labels: n_clients={n_clients} with at least {fewest} samples each (min_size={min_size}) need "
            f"{n_clients * fewest} samples, got {len(labels)}"
        )
    pieces: list[list[Indices]] = [[] for _ in range(n_clients)]
    for c in np.unique(labels):
        mine = rng.permutation(np.flatnonzero(labels == c))
        _cut(mine, rng.dirichlet(np.full(n_clients, float(alpha))), pieces, rng)
    return _top_up([joined(p) for p in pieces], fewest, rng)


def dirichlet_per_client(
    labels: Indices, n_clients: int, alpha: float, rng: np.random.Generator, *, per_client: int | None = None
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
    labels : ndarray of int, shape (n,)
        Class of each sample.
    n_clients : int
        Number of clients b.
    alpha : float
        Concentration α > 0: small values give clients of few classes, large ones equal clients.
    rng : numpy.random.Generator
    per_client : int, optional
        Samples of a client, at most n / b. By default all samples are dealt, and b must divide their number.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`, equally many for each client; no index occurs twice.

    Raises
    ------
    ValueError
        If the samples cannot be dealt in equal sizes.

    References
    ----------
    .. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
       conditional mutual information regularization. ICML 2023, Appendix A.1.1.
    """
    most = len(labels) // n_clients
    if per_client is None and len(labels) % n_clients:
        raise WrongValue(
            f"labels: {len(labels)} samples cannot be dealt in equal sizes to n_clients={n_clients} clients: give "
            f"per_client, at most {most}"
        )
    classes, size = np.unique(labels), per_client or most
    checks.memory(16 * n_clients * len(classes), n_clients=n_clients)
    priors = rng.dirichlet(np.full(len(classes), float(alpha)), n_clients)
    piles = [rng.permutation(np.flatnonzero(labels == c)).tolist() for c in classes]
    left = np.array([len(pile) for pile in piles])
    parts: list[list[int]] = [[] for _ in range(n_clients)]
    waiting = list(range(n_clients))
    ends: dict[int, list[float]] = {}  # of clients, until a class runs out
    while waiting:
        index = int(rng.integers(len(waiting)))
        client = waiting[index]
        if client not in ends:
            ends[client] = _cumulated(np.where(left > 0, priors[client], 0.0))
        c = bisect.bisect_right(ends[client] or _cumulated(left.astype(np.float64)), rng.random())
        parts[client].append(piles[c].pop())
        left[c] -= 1
        if not left[c]:
            ends.clear()
        if len(parts[client]) == size:
            del waiting[index]
    return [np.array(sorted(part), dtype=np.int64) for part in parts]


def _cumulated(weights: NDArray[np.float64]) -> list[float]:
    """Ends of the intervals of [0, 1) in which each class is drawn; none where the weights are 0 to rounding."""
    total = weights.sum()
    if total < np.finfo(np.float64).tiny:
        return []
    ends = (weights / total).cumsum()
    return [float(end) for end in ends / ends[-1]]


def split_each(
    labels: Indices,
    parts: Sequence[Indices],
    test_fraction: float,
    rng: np.random.Generator,
    *,
    stratified: bool = True,
) -> tuple[Parts, Parts]:
    """Cut the samples of each client into a training and a test set, which so have the same distribution.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
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
    train, test = [], []
    for i, part in enumerate(parts):
        if len(np.unique(part)) < len(part):
            raise WrongValue(f"parts[{i}] must hold each index once, or a sample would be on both sides, got repeats")
        n_test = round(test_fraction * len(part))
        if not 0 < n_test < len(part):
            raise WrongValue(
                f"test_fraction must leave samples on either side, got {test_fraction} for {len(part)} samples in "
                f"parts[{i}]"
            )
        held_out = _stratified(labels, part, n_test, rng) if stratified else rng.permutation(part)[:n_test]
        test.append(np.sort(held_out))
        train.append(np.setdiff1d(part, held_out))
    return train, test


def _stratified(y: Indices, part: Indices, n_test: int, rng: np.random.Generator) -> Indices:
    """`n_test` random samples, of each class its share."""
    classes, counts = np.unique(y[part], return_counts=True)
    sizes = _rounded(counts * n_test / len(part), n_test, rng)
    return np.concatenate([rng.permutation(part[y[part] == c])[:size] for c, size in zip(classes, sizes)])


def share_alike(labels: Indices, parts: Sequence[Indices], others: Indices, rng: np.random.Generator) -> Parts:
    """Deal other samples, such as a test set, with the class proportions of a dealing that exists.

    The samples of a class go to the clients in proportion to the samples of that class that they already hold, so
    that nobody is tested on a class that it was not trained on.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Labels that `parts` index.
    parts : sequence of arrays of int
        The dealing to imitate.
    others : ndarray of int, shape (m,)
        Labels of the samples to deal.
    rng : numpy.random.Generator

    Returns
    -------
    list of arrays of int
        Sorted indices into `others`; samples of classes that nobody holds are left out. A part may be empty.
    """
    pieces: list[list[Indices]] = [[] for _ in parts]
    for c in np.unique(others):
        weights = np.array([(labels[p] == c).sum() for p in parts], dtype=float)
        if weights.any():
            _cut(rng.permutation(np.flatnonzero(others == c)), weights / weights.sum(), pieces, rng)
    return [joined(p) for p in pieces]


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
            index = int(rng.integers(sizes[j]))
            parts[i] = np.sort(np.append(parts[i], parts[j][index]))
            parts[j] = np.delete(parts[j], index)
            sizes[i], sizes[j] = sizes[i] + 1, sizes[j] - 1
    return parts
