r"""MNIST and EMNIST as FedGen's published code deals them ([1]_), the splits of Fed-CMA's Table 2 ([2]_).

Both the dealing and the test sets matter for the level of what is measured, and neither is what one would guess:

* at most n · ratio / b training images of a class are dealt, all clients together (with half of MNIST's images and 20
  clients 1 500 of some 6 000), so that "50 %" is a quarter, 15 000 images;
* a client with so many images is left out of the classes that come after;
* a client is tested on **equally many images of each class of which it has one training image or more** (a b-th part of
  that class's test images), so that classes of which it has hardly seen anything count as much as those that it knows.

References
----------
.. [1] https://github.com/zhuangdizhu/FedGen, generate_niid_dirichlet.py of data/Mnist and of data/EMnist.
.. [2] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from hetfl_core import checks
from hetfl_core.datasets import pictures
from hetfl_core.federation import Federation
from hetfl_core.partition import Indices, Parts, check_alpha, check_generator, check_labels, check_parts
from hetfl_core.rng import SERVER, numpy_stream

TRIES = 100_000
"""Dealings that are drawn until every client has enough."""


def capped_dirichlet(
    labels: ArrayLike, n_clients: int, alpha: float, rng: np.random.Generator, *, ratio: float = 0.5, min_size: int = 10
) -> Parts:
    """Deal part of the samples, class by class in random order, with proportions ~ Dir(α) and a cap.

    The cap is that of a class, of all clients together, and the number of samples at which a client takes no more part:
    n · `ratio` / b. Everything is drawn anew until each client has `min_size`.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each sample.
    n_clients : int
        Number of clients b.
    alpha : float
        Concentration α > 0.
    rng : numpy.random.Generator
    ratio : float
        Share of the samples from which the cap is reckoned, and largest share of a class that is dealt, in (0, 1].
    min_size : int
        Fewest samples of a client.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`; a sample goes to one client or to none.

    Raises
    ------
    ValueError
        If an argument is out of its range, or no dealing was found in which each client has `min_size`.
    """
    y = check_labels(labels)
    check_generator(rng)
    checks.integer("n_clients", n_clients, 1)
    checks.integer("min_size", min_size, 0)
    check_alpha("alpha", alpha)
    checks.fraction("ratio", ratio)
    classes, counts = np.unique(y, return_counts=True)
    cap = ratio * len(y) / n_clients
    dealt = np.minimum(cap, np.floor(ratio * counts)).astype(np.int64)
    if dealt.sum() < n_clients * min_size:
        raise ValueError(
            f"min_size={min_size} for n_clients={n_clients} needs {n_clients * min_size} samples, but with "
            f"ratio={ratio:g} {dealt.sum()} of {len(y)} labels are dealt: at most {int(cap)} of a class"
        )
    for _ in range(TRIES):
        order = rng.permutation(len(classes))
        taken = np.zeros((n_clients, len(classes)), np.int64)
        for c in order:
            proportions = rng.dirichlet(np.full(n_clients, float(alpha))) * (taken.sum(1) < cap)
            if not proportions.sum() > 0:
                break  # all that α gave went to clients that have enough
            ends = (np.cumsum(proportions / proportions.sum()) * dealt[c]).astype(np.int64)
            ends[-1] = dealt[c]
            taken[:, c] = np.diff(ends, prepend=0)
        else:
            if taken.sum(1).min() >= min_size:
                return _pick(y, classes, taken, rng)
    raise ValueError(
        f"alpha={alpha} leaves some of {n_clients} clients with fewer than min_size={min_size} samples in each of "
        f"{TRIES} dealings; expected a larger alpha, fewer clients or a smaller min_size"
    )


def _pick(y: Indices, classes: Indices, taken: Indices, rng: np.random.Generator) -> Parts:
    """Random samples of each class, so many for each client."""
    pieces: list[list[Indices]] = [[] for _ in taken]
    for c, sizes in zip(classes, taken.T, strict=True):
        mine = rng.permutation(np.flatnonzero(y == c))
        for i, piece in enumerate(np.split(mine[: sizes.sum()], np.cumsum(sizes)[:-1])):
            pieces[i].append(piece)
    return [np.sort(np.concatenate(piece)) for piece in pieces]


def equal_tests(labels: ArrayLike, parts: Sequence[Indices], others: ArrayLike, rng: np.random.Generator) -> Parts:
    """Test samples: of each class that a client holds, a b-th part of all there are, whatever it holds of it.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Labels that `parts` index.
    parts : list of arrays of int
        The clients' training samples.
    others : array_like of int, shape (m,)
        Labels of the test samples.
    rng : numpy.random.Generator

    Returns
    -------
    list of arrays of int
        Sorted indices into `others`, each in one part at most.
    """
    y, z = check_labels(labels), check_labels(others, "others")
    check_generator(rng)
    parts = check_parts(parts, len(y))
    shuffled = {c: rng.permutation(np.flatnonzero(z == c)) for c in np.unique(z)}
    begin = dict.fromkeys(shuffled, 0)
    out = []
    for part in parts:
        mine: list[Indices] = [np.zeros(0, np.int64)]
        for c in np.intersect1d(np.unique(y[part]), list(shuffled)):
            n = len(shuffled[c]) // len(parts)
            mine.append(shuffled[c][begin[c] : begin[c] + n])
            begin[c] += n
        out.append(np.sort(np.concatenate(mine)))
    return out


def mnist(n_clients: int = 20, alpha: float = 0.1, seed: int = 0, *, ratio: float = 0.5) -> Federation:
    """MNIST dealt with Dirichlet proportions and caps, tested on equally many images of each class held.

    Parameters
    ----------
    n_clients : int
        Number of clients b.
    alpha : float
        Concentration: 0.02, 0.03, 0.05 and 0.1 are those of Fed-CMA's Table 2.
    seed : int
        Seed of the dealing.
    ratio : float
        Share of the training images from which the caps are reckoned; in the published commands 0.5.

    Returns
    -------
    Federation
        10 classes, clients ``client-00`` … with inputs of shape (1, 28, 28), (x / 255 − 0.5) / 0.5, together at most
        15 000 training images of the original training set, and test images of the original test set.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        For arguments out of their range.
    """
    return _federation(replace(pictures.MNIST, name="fedgen.mnist"), 10, n_clients, alpha, seed, ratio)


def emnist(n_clients: int = 20, alpha: float = 0.1, seed: int = 0, *, ratio: float = 0.1) -> Federation:
    """EMNIST's letters dealt with Dirichlet proportions and caps, tested on equally many images of each class held.

    In the published code a client needs ten images for each of the 26 letters, 260 in all, to be accepted.

    Parameters
    ----------
    n_clients, alpha, seed
        As for `mnist`.
    ratio : float
        Share of the training images from which the caps are reckoned; in the published commands 0.1.

    Returns
    -------
    Federation
        26 classes, clients ``client-00`` … with inputs of shape (1, 28, 28), (x / 255 − 0.5) / 0.5, together at most
        12 480 training images of the original training set, and test images of the original test set. Letters stand
        upright, which the published code's do not.

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded.
    ValueError
        For arguments out of their range, or if no dealing was found in which each client has enough.
    """
    source = "EMNIST (Cohen et al., 2017), letters"
    family = replace(pictures.LETTERS, name="fedgen.emnist", load=pictures.load_emnist, source=source)
    return _federation(family, 260, n_clients, alpha, seed, ratio)


def _federation(
    family: pictures.Family, min_size: int, n_clients: int, alpha: float, seed: int, ratio: float
) -> Federation:
    checks.seed(seed)
    checks.integer("n_clients", n_clients, 1, 1000)
    check_alpha("alpha", alpha)
    checks.fraction("ratio", ratio)
    halves = training, testing = family.load()
    rng = numpy_stream(seed, SERVER, 0, family.name)
    parts = capped_dirichlet(training.y, n_clients, alpha, rng, ratio=ratio, min_size=min_size)
    tests = equal_tests(training.y, parts, testing.y, rng)
    digits = len(str(n_clients - 1))
    clients = [
        pictures.client_of(halves, train, test, f"client-{i:0{digits}d}")
        for i, (train, test) in enumerate(zip(parts, tests, strict=True))
    ]
    names = list(training.class_names)
    info = {
        "settings": {"n_clients": n_clients, "alpha": alpha, "seed": seed, "ratio": ratio},
        "source": f"{family.source}, dealt as FedGen's published code does",
        "licence": family.licence,
        "class_names": names,
        "simulated": False,
    }
    return Federation(clients, len(names), family.name, info)
