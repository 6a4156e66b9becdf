r"""MNIST and EMNIST as FedGen's published code deals them ([1]_), the splits of Fed-CMA's Table 2 ([2]_).

Both the dealing and the test sets matter for the level of what is measured, and neither is what one would guess:

* at most n · ratio / b training images of a class are dealt, all clients together (with half of MNIST's images and 20
  clients 1 500 of some 6 000), so that "50 %" is a quarter, 15 000 images;
* a client with so many images is left out of the classes that come after;
* the script seeds its generators with 42, so that there is *one* split for each α, on which all runs are made; here
  each seed has a split of its own, and ``dealing="published"`` is that one (`published_dirichlet`);
* a client is tested on **equally many images of each class of which it has one training image or more** (a b-th part of
  that class's test images), so that classes of which it has hardly seen anything count as much as those that it knows;
* the code's accuracy is the share of all test images that is right, all clients together (``accuracy_weighted``).

References
----------
.. [1] https://github.com/zhuangdizhu/FedGen, commit dd5807c, generate_niid_dirichlet.py of data/Mnist and of
   data/EMnist, and FLAlgorithms/servers/serverbase.py, line 226, for the accuracy.
.. [2] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from hetfl_core import checks
from hetfl_core.datasets import image_files
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.partition import Indices, Parts, joined
from hetfl_core.rng import SERVER, numpy_stream

TRIES = 100_000
"""Dealings that are drawn until every client has enough."""

Dealing = Literal["by seed", "published"]


def capped_dirichlet(
    labels: Indices, n_clients: int, alpha: float, rng: np.random.Generator, *, ratio: float = 0.5, min_size: int = 10
) -> Parts:
    """Deal part of the samples, class by class in random order, with proportions ~ Dir(α) and a cap.

    The cap is that of a class, of all clients together, and the number of samples at which a client takes no more part:
    n · `ratio` / b. Everything is drawn anew until each client has `min_size`.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
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
        If no dealing was found in which each client has `min_size`.
    """
    classes, counts = np.unique(labels, return_counts=True)
    cap = ratio * len(labels) / n_clients
    dealt = np.minimum(cap, np.floor(ratio * counts)).astype(np.int64)
    if dealt.sum() < n_clients * min_size:
        raise WrongValue(
            f"min_size={min_size} for n_clients={n_clients} needs {n_clients * min_size} samples, but with "
            f"ratio={ratio:g} {dealt.sum()} of {len(labels)} labels are dealt: at most {int(cap)} of a class"
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
                return _pick(labels, classes, taken, rng)
    raise WrongValue(_too_few(alpha, n_clients, min_size))


def published_dirichlet(
    labels: Indices, n_clients: int, alpha: float, *, ratio: float = 0.5, min_size: int = 10
) -> Parts:
    """The split that the published script writes, sample by sample: as `capped_dirichlet`, by its own generators.

    Two of them, Python's and NumPy's old one, begin at 42; nothing else is drawn from them. Where all that α gives goes
    to clients that have enough, the script divides by zero, and the last client has the whole class.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Class of each sample, 0 … C − 1, in the order of the file.
    n_clients, alpha, ratio, min_size
        As for `capped_dirichlet`.

    Returns
    -------
    list of n_clients arrays of int
        Sorted indices into `labels`.

    Raises
    ------
    ValueError
        If no dealing was found in which each client has `min_size`.
    """
    order, rng = list(range(int(labels.max()) + 1)), np.random.RandomState(42)
    random.Random(42).shuffle(order)
    members = [np.flatnonzero(labels == c) for c in range(len(order))]
    cap = ratio * len(labels) / n_clients
    for _ in range(TRIES):
        pieces: list[list[Indices]] = [[] for _ in range(n_clients)]
        sizes = np.zeros(n_clients, np.int64)
        for c in order:
            mine = np.arange(len(members[c]))
            rng.shuffle(mine)
            if ratio < 1:
                mine = mine[: int(min(cap, int(ratio * len(mine))))]
            proportions = rng.dirichlet(np.repeat(alpha, n_clients)) * (sizes < cap)
            ends = np.zeros(n_clients - 1, np.int64)
            if proportions.sum() > 0:
                ends = (np.cumsum(proportions / proportions.sum()) * len(mine)).astype(np.int64)[:-1]
            for i, piece in enumerate(np.split(members[c][mine], ends)):
                pieces[i].append(piece)
                sizes[i] += len(piece)
        if sizes.min() >= min_size:
            return [joined(piece) for piece in pieces]
    raise WrongValue(_too_few(alpha, n_clients, min_size))


def _too_few(alpha: float, n_clients: int, min_size: int) -> str:
    return (
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
    return [joined(piece) for piece in pieces]


def equal_tests(
    labels: Indices, parts: Sequence[Indices], others: Indices, rng: np.random.Generator | None = None
) -> Parts:
    """Test samples: of each class that a client holds, a b-th part of all there are, whatever it holds of it.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Labels that `parts` index.
    parts : list of arrays of int
        The clients' training samples.
    others : ndarray of int, shape (m,)
        Labels of the test samples.
    rng : numpy.random.Generator, optional
        Shuffles them; without one they are dealt in the order of the file, as in the published script.

    Returns
    -------
    list of arrays of int
        Sorted indices into `others`, each in one part at most.
    """
    rest = {c: np.flatnonzero(others == c) for c in np.unique(others)}
    rest = {c: mine if rng is None else rng.permutation(mine) for c, mine in rest.items()}
    each = {c: len(mine) // len(parts) for c, mine in rest.items()}
    out = []
    for part in parts:
        pieces = []
        for c in np.intersect1d(labels[part], list(rest)):
            piece, rest[c] = np.split(rest[c], [each[c]])
            pieces.append(piece)
        out.append(joined(pieces))
    return out


def mnist(
    n_clients: int = 20, alpha: float = 0.1, seed: int = 0, *, ratio: float = 0.5, dealing: Dealing = "by seed"
) -> Federation:
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
    dealing : {"by seed", "published"}
        A split for each seed, or the one that the published script writes, whatever the seed.

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
    checks.choice("dealing", dealing, get_args(Dealing))
    family = replace(image_files.MNIST, name="fedgen.mnist")
    return _federation(family, 10, n_clients, alpha, seed, ratio, dealing)


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
    family = replace(image_files.LETTERS, name="fedgen.emnist", load=image_files.load_emnist, source=source)
    return _federation(family, 260, n_clients, alpha, seed, ratio)


def _federation(
    family: image_files.Family,
    min_size: int,
    n_clients: int,
    alpha: float,
    seed: int,
    ratio: float,
    dealing: Dealing = "by seed",
) -> Federation:
    checks.seed(seed)
    checks.integer("n_clients", n_clients, 1, 1000)
    checks.number("alpha", alpha, most=1e100, above=0)
    checks.fraction("ratio", ratio)
    halves = training, testing = family.load()
    if dealing == "published":
        parts = published_dirichlet(training.y, n_clients, alpha, ratio=ratio, min_size=min_size)
        tests = equal_tests(training.y, parts, testing.y)
    else:
        rng = numpy_stream(seed, SERVER, 0, family.name)
        parts = capped_dirichlet(training.y, n_clients, alpha, rng, ratio=ratio, min_size=min_size)
        tests = equal_tests(training.y, parts, testing.y, rng)
    clients = image_files.clients_of(halves, (parts, tests), len(str(n_clients - 1)))
    settings: dict[str, Any] = {"n_clients": n_clients, "alpha": alpha, "seed": seed, "ratio": ratio}
    settings |= {} if dealing == "by seed" else {"dealing": dealing}
    info = family.info(settings, training.class_names, ", dealt as FedGen's published code does")
    return Federation(clients, len(training.class_names), family.name, info)
