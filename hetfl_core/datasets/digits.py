"""Handwritten digits of different sizes: MNIST with USPS, and scikit-learn's bundled 8 × 8 digits."""

from __future__ import annotations

import bz2
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.datasets.image_files import Halves, client_of, load_mnist, symmetric
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.partition import Indices, Partition, assign_classes, check_clients, check_k, gathered, share, streams

DIGITS = tuple("0123456789")
FLIC_DIGITS = Partition(100, classes_per_client=3)


def load_usps() -> Halves:
    """USPS: 7 291 training and 2 007 test images of 16 × 16, grey levels as torchvision makes them.

    Two variants of these images go round. The LIBSVM text files, which torchvision, FLIC's code and this function read,
    hold the images smoothed by a Gaussian of 0.75 pixels.

    Returns
    -------
    train, test : Images
        Of shape (1, 16, 16), scaled to −1 … 1.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged.
    """
    paths = [fetch(f"usps/{part}") for part in ("train", "test")]
    train, test = (symmetric(*_usps(path, path.stat().st_mtime_ns), DIGITS) for path in paths)
    return train, test


@functools.lru_cache(maxsize=2)
def _usps(path: Path, changed: int) -> tuple[NDArray[np.uint8], Indices]:
    """What a file holds that was last changed then: a process reads it once, as that takes seconds."""
    x, y = _read_usps(path)
    x.flags.writeable = y.flags.writeable = False
    return x, y


def _read_usps(path: Path) -> tuple[NDArray[np.uint8], Indices]:
    """Read LIBSVM text: each line a label (digit + 1) and 256 pairs ``index:value``."""
    try:
        words = bz2.decompress(path.read_bytes()).replace(b":", b" ").split()
        table = np.array(words, dtype=np.float64).reshape(-1, 1 + 2 * 256)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: expected bzip2-packed lines of a label and 256 pairs: {error}") from error
    if not (table[:, 1::2] == np.arange(1, 257)).all():
        raise DataError(f"{path}: expected the indices 1…256 on each line")
    x, y = table[:, 2::2], table[:, 0].astype(np.int64) - 1
    if not len(y) or y.min() < 0 or y.max() > 9 or np.abs(x).max() > 1 + 1e-6:
        raise DataError(f"{path}: expected digits 0…9 with values in −1…1")
    grey = ((x.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)
    return grey.reshape(-1, 16, 16), y


def mnist_usps(
    partition: Partition = FLIC_DIGITS,
    seed: int = 0,
    *,
    resize: int | None = None,
    **fields: Any,
) -> Federation:
    """FLIC's digits: a client holds MNIST (28 × 28) or USPS (16 × 16) (S3.1.2 of [1]_); half of each, as in its code.

    The natural training and test splits are kept, and dealt with the same classes for the same client.

    Parameters
    ----------
    partition : Partition
        How each data set is dealt to half of the clients, of which there must be an even number. The paper has 100 and
        200 clients of 3 and 5 classes. As the published code does (``variant="code"``), each data set is cut into
        shards for b clients of which only the first b/2 are used; USPS, and for b = 200 MNIST's test set, are drawn
        *with replacement*. USPS clients then overlap: with b = 100 and 3 classes each holds about 3 700 images, 1 650
        of them different, which is most of what there is of its classes, where the text leaves it about 145.
    seed : int
        Seed of the dealing.
    resize : int, optional
        Bring all images to resize × resize, as for Table 4's *Digits-Resize*, where the published code has 28.
    **fields
        Fields of the partition to change, such as ``n_clients=20``.

    Returns
    -------
    Federation
        10 classes; clients ``mnist-000`` … of shape (1, 28, 28) and ``usps-000`` … of shape (1, 16, 16), values in
        −1 … 1.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        If `n_clients` is odd or the arguments do not allow a dealing.

    References
    ----------
    .. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
    """
    partition = gathered(partition, fields, Partition)
    if partition.n_clients % 2:
        raise WrongValue(f"n_clients must be even, as half hold MNIST and half USPS, got {partition.n_clients}")
    half = replace(partition, n_clients=partition.n_clients // 2)
    half.check(7_291, 10)
    checks.seed(seed)
    if resize is not None:
        checks.integer("resize", resize, 1)
        checks.memory(4 * 10_000 * resize**2, resize=resize)
    clients: list[Client] = []
    for domain, halves in (("mnist", load_mnist()), ("usps", load_usps())):
        dealer = partition if partition.variant == "code" else half
        dealt = dealer.deal(halves[0].y, streams(seed, domain), halves[1].y)
        for i, (train, test) in enumerate(list(zip(*dealt, strict=True))[: half.n_clients]):
            clients.append(client_of(halves, train, test, f"{domain}-{i:03d}", resize))
    settings = partition.settings("classes_per_client", "variant") | {"seed": seed, "resize": resize}
    return Federation(clients, 10, "digits.mnist_usps", _info(settings, "MNIST and USPS, natural splits"))


def _info(settings: dict[str, Any], source: str) -> dict[str, Any]:
    return {"settings": settings, "source": source, "class_names": list(DIGITS), "simulated": False}


def bundled(
    n_clients: int = 10, classes_per_client: int = 3, seed: int = 0, *, test_fraction: float = 0.25
) -> Federation:
    """Scikit-learn's 8 × 8 digits in two resolutions: a federation of real images that needs no download.

    The first half of the clients (the larger one, where the number is odd) see all 64 pixels; the others see the same
    kind of images as the means of 2 × 2 blocks, 16 values. No image is held twice.

    Parameters
    ----------
    n_clients : int
        Number of clients b.
    classes_per_client : int
        Classes that each client holds, 1 … 10.
    seed : int
        Seed of the split and of the dealing.
    test_fraction : float
        Share of each class that becomes test set, in (0, 1).

    Returns
    -------
    Federation
        10 classes; clients ``fine-000`` … with vectors of 64, ``coarse-000`` … with vectors of 16; values in −1 … 1.

    Raises
    ------
    ValueError
        If the arguments do not allow a dealing.
    """
    from sklearn.model_selection import train_test_split

    checks.integer("n_clients", n_clients, 1)
    check_k("classes_per_client", classes_per_client, 10)
    checks.seed(seed)
    test_fraction = checks.fraction("test_fraction", test_fraction, "(0, 1)")
    if not 10 <= round(1797 * test_fraction) <= 1787:
        raise WrongValue(f"test_fraction must leave an image of each class on either side, got {test_fraction}")

    stream = streams(seed, "bundled")
    x, y = bundled_images()
    train, test = train_test_split(
        np.arange(len(y)), test_size=test_fraction, stratify=y, random_state=int(stream("split").integers(2**31))
    )
    check_clients(n_clients, classes_per_client, len(train))
    halves = [n for n in (n_clients - n_clients // 2, n_clients // 2) if n or not n_clients]
    rng = stream("classes")
    table = np.concatenate([assign_classes(n, 10, classes_per_client, rng) for n in halves])
    parts = zip(share(y[train], table, stream("train")), share(y[test], table, stream("test"), at_least=0))
    clients = []
    for i, (mine, tested) in enumerate(parts):
        fine = i < halves[0]
        view = _flat if fine else block_means
        name = f"fine-{i:03d}" if fine else f"coarse-{i - halves[0]:03d}"
        own, held_out = train[mine], test[tested]
        clients.append(Client(view(x[own]), y[own], view(x[held_out]), y[held_out], name))
    settings = {"n_clients": n_clients, "classes_per_client": classes_per_client, "seed": seed}
    source = "UCI optical recognition of handwritten digits (Alpaydin & Kaynak, 1998), as bundled with scikit-learn"
    return Federation(clients, 10, "digits.bundled", _info({**settings, "test_fraction": test_fraction}, source))


@functools.cache
def bundled_images() -> tuple[NDArray[np.float64], Indices]:
    """All 1 797 images of scikit-learn's digits, with values in −1 … 1; read once, as their text takes a while.

    Returns
    -------
    x : ndarray, shape (1797, 64)
    y : ndarray of int, shape (1797,)
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16 - 0.5) / 0.5, y.astype(np.int64)


def _flat(x: NDArray[np.float64]) -> NDArray[np.float32]:
    return x.astype(np.float32)


def block_means(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """Means of the 2 × 2 blocks of 8 × 8 images.

    Parameters
    ----------
    x : ndarray, shape (n, 64)

    Returns
    -------
    ndarray of float32, shape (n, 16)
    """
    return x.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16).astype(np.float32)
