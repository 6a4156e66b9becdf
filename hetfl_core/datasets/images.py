"""Image data sets in their natural split: training and test images are dealt apart, in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.datasets import pictures
from hetfl_core.federation import Federation
from hetfl_core.partition import Indices, Partition, gathered
from hetfl_core.rng import SERVER, numpy_stream

FIVE_CLASSES = Partition(100, classes_per_client=5)


def at_most_per_client(part: Indices, labels: Indices, most: int | None, rng: np.random.Generator) -> Indices:
    """At most that many random samples of a client (`max_train`), about equally many of each of its classes."""
    if most is None or len(part) <= most:
        return part
    mixed = pd.Series(rng.permutation(part))
    rank = mixed.groupby(labels[mixed]).cumcount()
    return np.sort(mixed.to_numpy()[np.argsort(rank.to_numpy(), kind="stable")[:most]])


def fashion_mnist(
    partition: Partition = FIVE_CLASSES,
    seed: int = 0,
    *,
    sizes: Sequence[int] = (28,),
    max_train: int | None = None,
    **fields: Any,
) -> Federation:
    """Fashion-MNIST dealt to clients, optionally in several resolutions.

    Parameters
    ----------
    partition : Partition
        How images are dealt.
    seed : int
        Seed of the dealing.
    sizes : sequence of int
        Image sizes in pixels: client i sees images of ``sizes[i % len(sizes)]`` squared. The default gives all
        clients the same input space, ``(28, 14)`` gives every other client a quarter of the pixels.
    max_train : int, optional
        Keep at most that many training samples per client.
    **fields
        Fields of the partition to change, such as ``n_clients=20``.

    Returns
    -------
    Federation
        10 classes, inputs of shape (1, size, size) in −1 … 1, named ``client-000`` ….

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        If an argument does not allow a dealing.
    """
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
        raise ValueError(f"sizes must be image sizes in pixels, at least one, got {checks.shown(sizes)}")
    for size in sizes:
        checks.integer("sizes", size, 1)
    partition, family = gathered(partition, fields, Partition), pictures.FASHION
    partition.check(60_000, family.n_classes)
    checks.seed(seed)
    if max_train is not None:
        checks.integer("max_train", max_train, 1)
    checks.memory(4 * 10_000 * max(sizes) ** 2 / len(sizes), sizes=sizes)

    def draw(purpose: str) -> np.random.Generator:
        return numpy_stream(seed, SERVER, 0, f"fashion_mnist:{purpose}")

    halves = train, test = family.load()
    rng = draw("limit")
    clients = []
    for i, (mine, tested) in enumerate(zip(*partition.deal(train.y, draw, test.y), strict=True)):
        kept = at_most_per_client(mine, train.y, max_train, rng)
        clients.append(pictures.client_of(halves, kept, tested, f"client-{i:03d}", sizes[i % len(sizes)]))
    settings = {"seed": seed, "sizes": list(sizes), "max_train": max_train}
    info = {
        "settings": {**partition.settings("classes_per_client", "alpha"), **settings},
        "source": f"{family.source}, natural split",
        "licence": family.licence,
        "class_names": list(train.class_names),
        "simulated": False,
    }
    return Federation(clients, family.n_classes, "images.fashion_mnist", info)
