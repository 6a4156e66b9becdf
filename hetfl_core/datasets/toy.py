"""FLIC's toy federations: Gaussian classes that each client sees in a space of its own (S3.1.1 of [1]_).

`linear_regression` is ours: the same idea with a real target, for FLIC's anchors for regression (Section 3 of [1]_).
`four_gaussians` is after Fed-CMA's synthetic set (Section 6 of [2]_): one plane for all, other classes and few samples.

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
.. [2] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.federation import Client, Federation
from hetfl_core.partition import Indices, Partition, Parts, gathered
from hetfl_core.rng import SERVER, numpy_stream

Features = NDArray[np.float64]
NOISIEST = 1e30
"""Largest standard deviation of a toy: squares of its samples still fit into float32."""

Change = Callable[[Features, np.random.Generator], Features]
"""What a client makes of samples of the common space, (n, dim) to (n, d_i)."""


FLIC_TOYS = Partition(100, classes_per_client=3)


def noisy_features(
    partition: Partition = FLIC_TOYS,
    seed: int = 0,
    *,
    added: tuple[int, int] = (1, 10),
    sigma: float = 0.8,
    **options: Any,
) -> Federation:
    """Gaussian classes in 5 dimensions, to which each client appends 1 … 10 columns of pure noise.

    Figure 3's federation, 20 clients that all hold 3 well separated classes, is
    ``noisy_features(n_clients=20, n_classes=3, sigma=3.0)``.

    Parameters
    ----------
    partition, seed, sigma, **options
        As for `gaussian_classes`.
    added : tuple of int
        Fewest and most appended columns of N(0, 1); each client draws a number uniformly, both ends included.

    Returns
    -------
    Federation
        Clients ``client-000`` … with inputs of shape (dim + added columns,).
    """
    low, high = checks.int_range("added", added, 0)

    def view(rng: np.random.Generator) -> Change:
        width = int(rng.integers(low, high + 1))
        return lambda x, noise: np.hstack([x, noise.standard_normal((len(x), width))])

    widths = {"added": (low, high)}
    return gaussian_classes(view, partition, seed, name="toy.noisy_features", sigma=sigma, widths=widths, **options)


def linear_mapping(
    partition: Partition = FLIC_TOYS,
    seed: int = 0,
    *,
    dim: int = 5,
    sigma: float = 0.5,
    widths: tuple[int, int] | None = None,
    n_test_per_class: int | None = None,
    **options: Any,
) -> Federation:
    """Gaussian classes in 5 dimensions, which each client sees through a random linear map x ↦ xL.

    L has shape (dim, q), independent N(0, 1) entries, unscaled; q is uniform.

    Parameters
    ----------
    partition, seed, dim, sigma, **options
        As for `gaussian_classes`.
    widths : tuple of int, optional
        Smallest and largest q, both included. Default (3, 100); (3, 99) for the code's variant.
    n_test_per_class : int, optional
        Default 1000; 2000 for the code's variant.

    Returns
    -------
    Federation
        Clients ``client-000`` … with inputs of shape (q,).
    """
    text = options.get("variant", getattr(partition, "variant", "text")) == "text"
    low, high = checks.int_range("widths", ((3, 100) if text else (3, 99)) if widths is None else widths, 1)
    options["n_test_per_class"] = (1000 if text else 2000) if n_test_per_class is None else n_test_per_class

    def view(rng: np.random.Generator) -> Change:
        mapping = rng.standard_normal((dim, int(rng.integers(low, high + 1))))
        return lambda x, noise: x @ mapping

    options |= {"dim": dim, "sigma": sigma, "widths": {"widths": (low, high)}}
    return gaussian_classes(view, partition, seed, name="toy.linear_mapping", **options)


def linear_regression(
    n_clients: int = 20,
    seed: int = 0,
    *,
    dim: int = 5,
    widths: tuple[int, int] = (5, 30),
    noise: float = 0.1,
    n_train: tuple[int, int] = (20, 100),
    n_test: int = 100,
) -> Federation:
    r"""A common Gaussian latent that decides a target in [0, 1], and that each client sees through a map of its own.

    The latent is z ~ N(0, I). One direction w, a unit vector, decides for all clients:

    .. math:: y = \Phi\left( \frac{w^\top z + \sigma \varepsilon}{\sqrt{1 + \sigma^2}} \right),
        \qquad \varepsilon \sim \mathcal{N}(0, 1), \qquad x = z L_i,

    with Φ the normal distribution function, so that y is uniform on [0, 1] and the anchor means ya + (1 − y)b of FLIC
    lie evenly on the segment from b to a. L_i has independent N(0, 1) entries, as in `linear_mapping`. A client with
    q < dim has lost information; for the others, the best possible mean squared error is that of the noise alone.

    Parameters
    ----------
    n_clients : int
        Number of clients b.
    seed : int
        Seed of everything.
    dim : int
        Dimension of z.
    widths : tuple of int
        Smallest and largest number q of features; each client draws one uniformly, both ends included.
    noise : float
        Standard deviation σ of the noise, in units of that of wᵀz.
    n_train : tuple of int
        Smallest and largest training set, likewise.
    n_test : int
        Test samples of each client.

    Returns
    -------
    Federation
        A regression with clients ``client-000`` … and inputs of shape (q,); ``info["settings"]`` holds every argument.

    Raises
    ------
    ValueError
        If a range is not one, or a number too small.
    """
    from scipy.special import ndtr

    ranges = {"widths": checks.int_range("widths", widths, 1), "n_train": checks.int_range("n_train", n_train, 1)}
    checks.ints(1, n_clients=n_clients, dim=dim)
    checks.integer("n_test", n_test, 0)
    checks.number("noise", noise, 0, NOISIEST)
    checks.seed(seed)
    rows, mean_width = n_clients * (sum(ranges["n_train"]) / 2 + n_test), sum(ranges["widths"]) / 2
    sizes = {"n_clients": n_clients, "dim": dim, "widths": widths, "n_train": n_train, "n_test": n_test}
    checks.memory(max(4 * rows * mean_width, 8 * dim * mean_width, 8 * dim * rows / n_clients), **sizes)
    name = "toy.linear_regression"
    direction = numpy_stream(seed, SERVER, 0, f"{name}:direction").standard_normal(dim)
    direction /= np.linalg.norm(direction)

    def client(name_: str) -> Client:
        rng = numpy_stream(seed, name_, 0, f"{name}:samples")
        width, n = (int(rng.integers(low, high + 1)) for low, high in ranges.values())
        mapping = rng.standard_normal((dim, width))
        z = rng.standard_normal((n + n_test, dim))
        score = (z @ direction + noise * rng.standard_normal(len(z))) / np.sqrt(1 + float(noise) ** 2)
        x, y = (z @ mapping).astype(np.float32), ndtr(score).astype(np.float32)
        return Client(x[:n], y[:n], x[n:], y[n:], name_)

    settings: dict[str, Any] = {"n_clients": n_clients, "seed": seed, "dim": dim, "noise": noise, "n_test": n_test}
    settings |= {argument: list(given) for argument, given in ranges.items()}
    info = {"settings": settings, "source": "drawn: a shared Gaussian latent, our own design", "simulated": True}
    return Federation([client(f"client-{i:03d}") for i in range(n_clients)], None, name, info, "regression")


def four_gaussians(
    seed: int = 0, *, many: int = 100, few: int = 3, distance: float = 2.0, sigma: float = 1.0, n_test: int = 100
) -> Federation:
    """Four classes in the plane and four clients, one of which has a few samples of each and nothing else.

    Class c is N(m_c, σ²I), the m_c at the corners of a square. The first three clients have many samples of two
    neighbouring classes, c and c + 1, and a few of the next; the fourth has a few of all. The paper tells that there
    are four Gaussians and four clients, "workers with scarce data" among them, and no numbers: these are ours.

    Parameters
    ----------
    seed : int
        Seed of the samples.
    many, few : int
        Training samples of a class that a client has many, or a few, of.
    distance : float
        Of the means from both axes.
    sigma : float
        Standard deviation σ of a class in each direction.
    n_test : int
        Test samples of each class that a client holds.

    Returns
    -------
    Federation
        4 classes, clients ``client-0`` … ``client-3`` with inputs of shape (2,).

    Raises
    ------
    ValueError
        If a number is too small, or too large for memory.
    """
    checks.seed(seed)
    checks.ints(1, many=many, few=few)
    checks.integer("n_test", n_test, 0)
    checks.number("distance", distance, 0, NOISIEST)
    checks.number("sigma", sigma, 0, NOISIEST)
    checks.memory(8 * 2 * (many * 2 + few + n_test * 4), many=many, few=few, n_test=n_test)
    means = distance * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    name = "toy.four_gaussians"

    def client(i: int) -> Client:
        counts = [few] * 4 if i == 3 else [{0: many, 1: many, 2: few, 3: 0}[(c - i) % 4] for c in range(4)]
        rng, sets = numpy_stream(seed, f"client-{i}", 0, f"{name}:samples"), []
        for sizes in (counts, [n_test * bool(n) for n in counts]):
            y = np.repeat(np.arange(4), sizes)
            sets.append(((means[y] + sigma * rng.standard_normal((len(y), 2))).astype(np.float32), y))
        return Client(*sets[0], *sets[1], f"client-{i}")

    settings = {"seed": seed, "many": many, "few": few, "distance": distance, "sigma": sigma, "n_test": n_test}
    info = {"settings": settings, "source": "drawn: four Gaussians after Fed-CMA, Section 6", "simulated": True}
    return Federation([client(i) for i in range(4)], 4, name, info)


def gaussian_classes(
    view: Callable[[np.random.Generator], Change],
    partition: Partition = FLIC_TOYS,
    seed: int = 0,
    *,
    n_classes: int = 20,
    dim: int = 5,
    sigma: float = 1.0,
    n_train_per_class: int = 2000,
    n_test_per_class: int = 1000,
    subsample: bool = True,
    name: str = "toy.gaussian_classes",
    widths: Mapping[str, tuple[int, int]] | None = None,
    **fields: Any,
) -> Federation:
    """Gaussian classes, dealt to clients that each see them in their own way.

    Class c is N(m_c, I) with m_c ~ N(0, σ²I). The pooled samples of a class are shared equally by the clients that
    hold it; the training samples of each client are then thinned.

    Parameters
    ----------
    view : callable
        Given a client's generator, returns the client's change of features ``(x, rng) -> x'``. The same change is
        applied to training and test samples, each with fresh noise.
    partition : Partition
        How samples are dealt. The default is FLIC's; ``variant="code"`` is as its published code, where training
        samples are also thinned *with replacement* (`thinned`).
    seed : int
        Seed of everything.
    n_classes : int
        Number of classes C.
    dim : int
        Dimension of the common space.
    sigma : float
        Standard deviation of the class means.
    n_train_per_class, n_test_per_class : int
        Pooled samples of each class.
    subsample : bool
        Whether to thin the training sets.
    name : str
        Name of the federation; it also keys the random numbers.
    widths : dict of str to tuple of int, optional
        Ranges of what clients have in the place of `dim`, or besides, under the names by which they are recorded.
    **fields
        Fields of the partition to change, such as ``n_clients=20``.

    Returns
    -------
    Federation
        ``info["settings"]`` holds every argument.

    Raises
    ------
    ValueError
        If the arguments do not allow a dealing: more classes per client than there are, too few samples per class, …
    """
    partition = gathered(partition, fields, Partition)
    checks.number("sigma", sigma, 0, NOISIEST)
    checks.flag("subsample", subsample)
    checks.seed(seed)
    sizes = {"n_clients": partition.n_clients, "n_classes": n_classes, "dim": dim}
    sizes["n_train_per_class"] = n_train_per_class
    checks.ints(1, **sizes)
    sizes["n_test_per_class"] = checks.integer("n_test_per_class", n_test_per_class, 0)
    rows = n_classes * (n_train_per_class + n_test_per_class)
    checks.memory(max(2 * 8 * rows * dim, 8 * partition.n_clients * n_classes), **sizes)
    for argument, (low, high) in (widths or {}).items():
        checks.memory(max(8 * dim * high, rows * (low + high)), **{argument: (low, high)}, **sizes)
    partition.check(n_classes * n_train_per_class, n_classes)

    def draw(purpose: str, client: str = SERVER) -> np.random.Generator:
        return numpy_stream(seed, client, 0, f"{name}:{purpose}")

    def dealing(purpose: str) -> np.random.Generator:
        return draw(f"{purpose} shares" if purpose in ("train", "test") else purpose)

    means = sigma * draw("means").standard_normal((n_classes, dim))
    pools = []
    for part, n in (("train", n_train_per_class), ("test", n_test_per_class)):
        y = np.repeat(np.arange(n_classes), n)
        pools.append((means[y] + draw(f"{part} samples").standard_normal((len(y), dim)), y))
    train, test = partition.deal(pools[0][1], dealing, pools[1][1], repeat_below=10)
    if subsample:
        train = thinned(train, draw("subsample"), partition.variant)
    clients = []
    for i, parts in enumerate(zip(train, test, strict=True)):
        rng = draw("view", client := f"client-{i:03d}")
        change = view(rng)
        seen = [(change(x[mine], rng).astype(np.float32), y[mine]) for (x, y), mine in zip(pools, parts, strict=True)]
        clients.append(Client(*seen[0], *seen[1], client))
    recorded = {
        **partition.settings("classes_per_client", "variant"),
        **{"seed": seed, "sigma": sigma, "subsample": subsample},
        **sizes,
        **{name: list(ends) for name, ends in (widths or {}).items()},
    }
    info = {"settings": recorded, "source": "drawn: Gaussian classes after FLIC, S3.1.1", "simulated": True}
    return Federation(clients, n_classes, name, info)


def thinned(parts: Sequence[Indices], rng: np.random.Generator, variant: str = "text") -> Parts:
    """Make clients unequal by keeping a random share of the samples of each (FLIC, S3.1.1 [1]_).

    ``"text"`` keeps a percentage drawn uniformly from 5 to 100, all samples of the client alike and each at most once.
    ``"code"`` is what the published code does: with probability ½ the percentage is min(U + 5, 100) with U uniform in
    0 … 100, else uniform in 15 … 35; the samples are drawn **with replacement**.

    Parameters
    ----------
    parts : sequence of arrays of int
        Indices of each client, at least one.
    rng : numpy.random.Generator
    variant : {"text", "code"}

    Returns
    -------
    list of arrays of int
        Sorted, at least one index per client. Classes are not protected: a small client may lose one.
    """
    kept = []
    for part in parts:
        if variant == "text":
            percentage = rng.uniform(5, 100)
        else:
            percentage = min(rng.uniform(0, 100) + 5, 100.0) if rng.random() > 0.5 else rng.uniform(15, 35)
        size = max(1, int(len(part) * percentage / 100))
        kept.append(np.sort(rng.choice(part, size, replace=variant == "code")))
    return kept
