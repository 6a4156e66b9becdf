"""Image data sets in their natural split: training and test images are dealt apart, in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetfl_core import checks
from hetfl_core.datasets import image_files
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.partition import Partition, gathered, streams

FIVE_CLASSES = Partition(100, classes_per_client=5)


def fashion_mnist(
    partition: Partition = FIVE_CLASSES,
    seed: int = 0,
    *,
    sizes: Sequence[int] = (28,),
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
        raise WrongValue(f"sizes must be image sizes in pixels, at least one, got {checks.shown(sizes)}")
    for size in sizes:
        checks.integer("sizes", size, 1)
    partition, family = gathered(partition, fields, Partition), image_files.FASHION
    partition.check(60_000, family.n_classes)
    checks.seed(seed)
    checks.memory(4 * 10_000 * max(sizes) ** 2 / len(sizes), sizes=sizes)
    halves = train, test = family.load()
    dealt = zip(*partition.deal(train.y, streams(seed, "fashion_mnist"), test.y), strict=True)
    clients = [
        image_files.client_of(halves, mine, tested, f"client-{i:03d}", sizes[i % len(sizes)])
        for i, (mine, tested) in enumerate(dealt)
    ]
    settings = partition.settings("classes_per_client", "alpha") | {"seed": seed, "sizes": list(sizes)}
    info = family.info(settings, train.class_names, ", natural split")
    return Federation(clients, family.n_classes, "images.fashion_mnist", info)
