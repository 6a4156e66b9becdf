"""Image data sets for personal models: all images pooled, dealt in equal sizes, each client's split 70/30.

These are the federations of FedCR [1]_ (Section 6 and Appendix A.1.1). A client is tested on images of the distribution
that it is trained on; no image is held twice. Since training and test images are pooled, accuracies are not to be set
beside those of the natural splits.

All functions take the partition, by default FedCR's *non-iid_1*; the seed of the dealing and of the split into training
and test sets; and, as ``**fields``, single fields of the partition to change, such as ``split="non-iid_2"``. All raise
`DataError` if files are missing and cannot be downloaded, and `ValueError` if a field does not allow the dealing.

References
----------
.. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
   conditional mutual information regularization. ICML 2023.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from hetfl_core import checks
from hetfl_core.datasets import image_files
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation, FederationWarning
from hetfl_core.partition import Partition, gathered, streams

FEDCR = Partition(100, "non-iid_1", classes_per_client=5, alpha=0.5, test_fraction=0.3)
"""100 clients with 5 classes each, or, where the split is ``"non-iid_2"``, with proportions ~ Dir(0.5)."""
FEDCR_MNIST, FEDCR_CIFAR100 = replace(FEDCR, per_client=630), replace(FEDCR, classes_per_client=15, alpha=0.3)


def fashion_mnist(partition: Partition = FEDCR, seed: int = 0, **fields: Any) -> Federation:
    """FedCR's Fashion-MNIST: all 70 000 images pooled and dealt to clients of equal size.

    Parameters
    ----------
    partition : Partition
        How the images are dealt, by default FedCR's *non-iid_1*.
    seed : int
        Of the dealing, and of the split into training and test sets.
    **fields
        Fields of the partition to change, such as ``split="non-iid_2"``.

    Returns
    -------
    Federation
        10 classes, clients ``client-000`` … with inputs of shape (1, 28, 28) in −1 … 1, scaled as in the published
        code: (x / 255 − 0.5) / 0.5. By default each has 490 training and 210 test images, of *non-iid_1* 98 and 42 of
        each of its classes. ``info["untrained_test_images"]`` counts test images of classes of which their client has
        no training image; nothing warns of them here.

    Raises
    ------
    DataError
        If files are missing and cannot be downloaded.
    ValueError
        If a field does not allow the dealing.

    Notes
    -----
    The published code rounds 700 · 0.7 down after a rounding error, to 489; the paper and this function have 490.
    """
    return _federation(image_files.FASHION, partition, seed, fields)


def mnist(partition: Partition = FEDCR_MNIST, seed: int = 0, **fields: Any) -> Federation:
    """MNIST, of FedCR's Figure 2: its 70 000 images pooled, most of them dealt to clients of equal size.

    Parameters
    ----------
    partition : Partition
        How the images are dealt, by default FedCR's *non-iid_1*. A client then has 630 images, the most that
        100 clients of five classes can have, as the smallest class has 6 313 images.
    seed : int
        Of the dealing, and of the split into training and test sets.
    **fields
        Fields of the partition to change, such as ``split="non-iid_2"``.

    Returns
    -------
    Federation
        10 classes, clients ``client-000`` … with inputs of shape (1, 28, 28) in −1 … 1, by default with 441 training
        and 189 test images.

    Raises
    ------
    DataError
        If files are missing and cannot be downloaded.
    ValueError
        If a field does not allow the dealing.
    """
    return _federation(image_files.MNIST, partition, seed, fields)


def cifar10(partition: Partition = FEDCR, seed: int = 0, **fields: Any) -> Federation:
    """FedCR's CIFAR-10: all 60 000 images pooled and dealt to clients of equal size.

    Where the folder of data files holds no official archive but the part of the images that is accepted in its place
    (8 981 training and 9 966 test images), that part is dealt; `per_client` must then be given, and ``info["source"]``
    says so. With 100 clients of 5 classes it may be up to 180.

    Parameters
    ----------
    partition : Partition
        How the images are dealt, by default FedCR's *non-iid_1*.
    seed : int
        Of the dealing, and of the split into training and test sets.
    **fields
        Fields of the partition to change, such as ``split="non-iid_2"``.

    Returns
    -------
    Federation
        10 classes, inputs of shape (3, 32, 32), scaled as in the published code: (x / 255 − mean) / sd with
        (0.491, 0.482, 0.447) and (0.247, 0.243, 0.262). That code also crops and flips training images at random, which
        the text does not say and a data set cannot do. By default 420 training and 180 test images a client.

    Raises
    ------
    DataError
        If files are missing and cannot be downloaded.
    ValueError
        If a field does not allow the dealing.
    """
    return _federation(image_files.CIFAR10, partition, seed, fields)


def cifar100(partition: Partition = FEDCR_CIFAR100, seed: int = 0, **fields: Any) -> Federation:
    """FedCR's CIFAR-100: all 60 000 images pooled and dealt to clients of equal size.

    Parameters
    ----------
    partition : Partition
        How the images are dealt, by default FedCR's *non-iid_1*, with 15 classes a client; *non-iid_2* has
        Dir(0.3).
    seed : int
        Of the dealing, and of the split into training and test sets.
    **fields
        Fields of the partition to change, such as ``split="non-iid_2"``.

    Returns
    -------
    Federation
        100 classes, inputs of shape (3, 32, 32), scaled as in the published code: (x / 255 − mean) / sd with
        (0.5071, 0.4867, 0.4408) and (0.2675, 0.2565, 0.2761). By default 420 training and 180 test images a client.

    Raises
    ------
    DataError
        If files are missing and cannot be downloaded.
    ValueError
        If a field does not allow the dealing.
    """
    return _federation(image_files.CIFAR100, partition, seed, fields)


def emnist_letters(partition: Partition = FEDCR, seed: int = 0, **fields: Any) -> Federation:
    """FedCR's EMNIST-L: 56 000 images of the letters A to J, pooled and dealt to clients of equal size.

    Parameters
    ----------
    partition : Partition
        How the images are dealt, by default FedCR's *non-iid_1*.
    seed : int
        Of the dealing, and of the split into training and test sets.
    **fields
        Fields of the partition to change, such as ``split="non-iid_2"``.

    Returns
    -------
    Federation
        10 classes, inputs of shape (1, 28, 28), standardised, as in the published code, with the mean and the standard
        deviation of the original training images. By default 392 training and 168 test images a client.

    Raises
    ------
    DataError
        If files are missing and cannot be downloaded.
    ValueError
        If a field does not allow the dealing.
    """
    return _federation(image_files.LETTERS, partition, seed, fields)


def _federation(family: image_files.Family, partition: Partition, seed: int, fields: dict[str, Any]) -> Federation:
    """The federation of a data set that is dealt so; the arguments are checked before a file is read."""
    partition, name = gathered(partition, fields, Partition), f"pooled.{family.name}"
    partition.check(family.n_images, family.n_classes, pooled=True)
    checks.seed(seed)
    sizes = {"n_clients": partition.n_clients, "per_client": partition.per_client}
    n_dealt = family.n_images if partition.per_client is None else partition.n_clients * partition.per_client
    checks.memory(family.pixels * (family.n_images + 4 * n_dealt), **sizes)
    pool = image_files.as_one(family.load())
    part = family.part(len(pool.y))
    if part and partition.scheme.startswith("non-iid") and partition.per_client is None:
        raise WrongValue(
            f"per_client must be given, since the files at hand hold {len(pool.y)} of the {family.n_images} images "
            f"of {name}, got None: `hetfl data status` tells where the official file belongs"
        )
    dealt = partition.deal(pool.y, streams(seed, name))
    told = partition.settings("classes_per_client", "split", "alpha", "variant", "per_client", "test_fraction")
    info = family.info({**told, "seed": seed}, pool.class_names, f", training and test images pooled{part}")
    info["untrained_test_images"] = sum(
        int((~np.isin(pool.y[test], pool.y[train])).sum()) for train, test in zip(*dealt, strict=True)
    )
    clients = image_files.clients_of((pool, pool), dealt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)  # what it would warn of is counted above
        return Federation(clients, family.n_classes, name, info)
