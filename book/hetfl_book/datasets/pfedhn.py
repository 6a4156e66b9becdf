r"""CIFAR-10 as pFedHN's published code deals it ([1]_), the split of Fed-CMA's Table 3 ([2]_).

Each client has two classes, and of each of them a share that is its own:

* a class gets one weight ~ U(0.4, 0.6) for each client that is to hold it, and the weights of a class, divided by their
  sum, are the shares;
* clients take their classes one after the other, always one of those that have most shares left;
* training, validation and test images are cut by **the same** shares, so that a client is tested on the mixture that it
  is trained on.

The published code draws one weight more for each class than it has holders, before it divides by their sum, and so
leaves a share of every class to nobody: with 10 clients, two holders a class, a third of all images, with 100 clients a
twentieth. That is ``variant="code"``; the paper's formula divides by the holders' sum.

References
----------
.. [1] https://github.com/AvivSham/pFedHN, experiments/dataset.py; A. Shamsian, A. Navon, E. Fetaya, G. Chechik.
   Personalized federated learning using hypernetworks. ICML 2021.
.. [2] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.datasets import image_files
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.partition import Indices, Parts, check_k, joined
from hetfl_core.rng import SERVER, numpy_stream

VALIDATION = 0.2
"""Share of the training images that are set apart: 10 000 of 50 000 in the published code."""

LOW, HIGH = 0.4, 0.6
"""Bounds of the weights."""

MEAN, SD = np.array([0.4914, 0.4822, 0.4465], np.float32), np.array([0.2023, 0.1994, 0.2010], np.float32)
"""What the published code scales the channels with."""

TESTED_ON = ("test", "validation")


def uneven_shares(
    n_clients: int, n_classes: int, k: int, rng: np.random.Generator, *, variant: str = "text"
) -> tuple[Indices, NDArray[np.float64]]:
    """Which classes each client holds, and which share of each.

    Parameters
    ----------
    n_clients, n_classes : int
        Clients b, and classes, such that ``n_clients * k`` is a multiple of `n_classes`.
    k : int
        Classes of a client.
    rng : numpy.random.Generator
    variant : {"text", "code"}
        Whether the shares of a class add up to 1, or one that nobody gets is left over.

    Returns
    -------
    classes : ndarray of int64, shape (n_clients, k)
        A client's own classes differ.
    shares : ndarray of float64, shape (n_clients, k)
        Of the class that stands at the same place.

    Raises
    ------
    ValueError
        If the classes cannot have equally many holders.
    """
    if n_clients * k % n_classes:
        raise WrongValue(
            f"n_clients × k must be a multiple of n_classes={n_classes}, so that each class has equally many holders, "
            f"got n_clients={n_clients} and k={k}"
        )
    holders = n_clients * k // n_classes
    weights = rng.uniform(LOW, HIGH, (n_classes, holders + (variant == "code")))
    of_class = weights / weights.sum(1, keepdims=True)
    taken = np.zeros(n_classes, np.int64)
    classes = np.zeros((n_clients, k), np.int64)
    shares = np.zeros((n_clients, k))
    for i in range(n_clients):
        for j in range(k):
            free = np.setdiff1d(np.arange(n_classes), classes[i, :j])
            c = rng.choice(free[taken[free] == taken[free].min()])
            classes[i, j], shares[i, j] = c, of_class[c, taken[c]]
            taken[c] += 1
    return classes, shares


def cut(labels: Indices, assignment: Indices, shares: NDArray[np.float64], rng: np.random.Generator) -> Parts:
    """Random samples for each client: of a class with n samples, ⌊share · n⌋.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Class of each sample.
    assignment, shares : ndarray, shape (b, k)
        The classes and shares that `uneven_shares` returns; the shares of a class add up to at most 1.
    rng : numpy.random.Generator

    Returns
    -------
    list of b arrays of int
        Sorted indices into `labels`; a sample goes to one client or to none.
    """
    pieces: list[list[Indices]] = [[] for _ in assignment]
    for c in np.unique(assignment):
        rows, indices = np.nonzero(assignment == c)
        mine = rng.permutation(np.flatnonzero(labels == c))
        sizes = (shares[rows, indices] * len(mine)).astype(np.int64)
        for row, piece in zip(rows, np.split(mine, np.cumsum(sizes)), strict=False):
            pieces[row].append(piece)
    return [joined(piece) for piece in pieces]


def cifar10(
    n_clients: int = 10,
    seed: int = 0,
    *,
    classes_per_client: int = 2,
    variant: str = "text",
    tested_on: str = "test",
) -> Federation:
    """CIFAR-10 dealt two classes a client in uneven shares, tested on images in the same mixture.

    Where the folder of data files holds no official archive but the part of the images that is accepted in its place
    (8 981 training and 9 966 test images), that part is dealt, and ``info["source"]`` says so.

    Parameters
    ----------
    n_clients : int
        Number of clients b: 10, 50 and 100 are those of Fed-CMA's Table 3.
    seed : int
        Seed of the dealing.
    classes_per_client : int
        Classes of a client.
    variant : {"text", "code"}
        Shares as in the paper, or as in its published code, which leaves a part of each class to nobody.
    tested_on : {"test", "validation"}
        Whether the clients' test samples are from the original test set, or the fifth of the training images that is
        set apart, cut by the same shares. The training samples are the same.

    Returns
    -------
    Federation
        10 classes, clients ``client-0`` … with inputs of shape (3, 32, 32), scaled as in the published code.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        For arguments out of their range.
    """
    checks.integer("n_clients", n_clients, 1, 1000)
    checks.seed(seed)
    check_k("classes_per_client", classes_per_client, 10)
    checks.choice("variant", variant, ("text", "code"))
    checks.choice("tested_on", tested_on, TESTED_ON)
    checks.memory(5 * image_files.CIFAR10.pixels * image_files.CIFAR10.n_images, n_clients=n_clients)
    rng = numpy_stream(seed, SERVER, 0, "pfedhn.cifar10")
    classes, shares = uneven_shares(n_clients, 10, classes_per_client, rng, variant=variant)
    training, testing = (half._replace(mean=MEAN, sd=SD) for half in image_files.CIFAR10.load())
    order = rng.permutation(len(training.y))
    n_validation = round(VALIDATION * len(order))
    apart, kept = np.sort(order[:n_validation]), np.sort(order[n_validation:])
    train = [kept[part] for part in cut(training.y[kept], classes, shares, rng)]
    validation = [apart[part] for part in cut(training.y[apart], classes, shares, rng)]
    test = cut(testing.y, classes, shares, rng)
    halves, others = ((training, testing), test) if tested_on == "test" else ((training, training), validation)
    part = image_files.CIFAR10.part(len(training.y) + len(testing.y))
    clients = image_files.clients_of(halves, (train, others), len(str(n_clients - 1)))
    settings = {"n_clients": n_clients, "seed": seed, "classes_per_client": classes_per_client}
    told = {**settings, "variant": variant, "tested_on": tested_on}
    info = image_files.CIFAR10.info(told, training.class_names, f", dealt as for pFedHN{part}")
    return Federation(clients, 10, "pfedhn.cifar10", info)
