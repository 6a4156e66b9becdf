"""Image data sets in the idx format of MNIST, and what all image federations share: scaling, sizes, dealing."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hetfl_core import checks
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.federation import Client, Federation
from hetfl_core.partition import (
    Indices,
    Parts,
    assign_classes,
    check_alpha,
    check_clients,
    check_k,
    dirichlet,
    published_shards,
    share,
    share_alike,
)
from hetfl_core.rng import SERVER, numpy_stream

FASHION_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


class Pool(NamedTuple):
    """A data set before it is dealt, in its natural split.

    Attributes
    ----------
    x_train, x_test : ndarray of uint8, shape (n, height, width)
        Grey levels, 0 = background.
    y_train, y_test : ndarray of int64, shape (n,)
        Labels.
    """

    x_train: NDArray[np.uint8]
    y_train: Indices
    x_test: NDArray[np.uint8]
    y_test: Indices


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes, the format of MNIST (big-endian sizes, then the values).

    Raises
    ------
    DataError
        If the file is no gzip, or its header or length is not that of such a file.
    """
    try:
        packed = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return unpack_idx(packed, str(path))


def read_image(file: Path | BinaryIO, where: str, mode: str, side: int, pixels: int | None = None) -> NDArray[np.uint8]:
    """A square picture, JPEG or PNG, as grey levels or colours 0 … 255 of so many pixels.

    Parameters
    ----------
    file : path or binary file
    where : str
        What an error calls it.
    mode : {"L", "RGB"}
        Grey levels, the weighted sum of colours that ITU-R 601 defines, or the colours.
    side : int
        Pixels of a side of the result; where there are more in the file, each is the mean of those that it covers.
    pixels : int, optional
        Pixels of a side that the file must have.

    Returns
    -------
    ndarray of uint8, shape (side, side) or (side, side, 3)

    Raises
    ------
    DataError
        If the file is missing, no picture, truncated, not square or not of that size.
    """
    from PIL import Image  # on demand: most data sets do without; it comes with matplotlib

    try:
        with Image.open(file) as image:
            found = image.convert(mode)
    except (OSError, EOFError, ValueError, SyntaxError, zlib.error, Image.DecompressionBombError) as error:
        raise DataError(f"{where} cannot be read as an image: {error}") from error
    wide, high = found.size
    if wide != high or pixels not in (None, wide):
        wanted = "a square image" if pixels is None else f"an image of {pixels} × {pixels} pixels"
        raise DataError(f"{where}: expected {wanted}, got {wide} × {high}")
    return np.asarray(found if wide == side else found.resize((side, side), Image.Resampling.BOX))


def unpack_idx(packed: bytes, where: str) -> NDArray[np.uint8]:
    """The array in the bytes of such a file; `where` names it in errors (see `read_idx`)."""
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where} cannot be unpacked: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{where}: expected an idx file of unsigned bytes (header 00 00 08), got {raw[:3].hex(' ')}")
    head = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:head], dtype=">u4").astype(int).tolist())
    if len(raw) != head + math.prod(shape):
        raise DataError(f"{where}: expected {head + math.prod(shape)} bytes for shape {shape}, got {len(raw)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(shape)


def load_idx(family: str) -> Pool:
    """The pool of ``"mnist"`` or ``"fashion_mnist"``: 60 000 and 10 000 images of 28 × 28."""
    read = {name: read_idx(fetch(f"{family}/{name}")) for name in _IDX_FILES}
    for part in ("train", "test"):
        images, labels = read[f"{part}-images"], read[f"{part}-labels"]
        if len(images) != len(labels):
            raise DataError(f"{family}: {part} has {len(images)} images but {len(labels)} labels")
    train, test = read["train-labels"].astype(np.int64), read["test-labels"].astype(np.int64)
    return Pool(read["train-images"], train, read["test-images"], test)


_IDX_FILES = ("train-images", "train-labels", "test-images", "test-labels")


def scale(images: NDArray[np.uint8], size: int | None = None) -> Tensor:
    """Grey levels as network inputs: (x / 255 − 0.5) / 0.5, in −1 … 1.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, height, width)
    size : int, optional
        Resize to size × size by bilinear interpolation with anti-aliasing.

    Returns
    -------
    Tensor of float32, shape (n, 1, height, width)
    """
    x = torch.from_numpy(np.array(images, dtype=np.float32)).unsqueeze(1) / 255
    if size is not None and len(x) and tuple(x.shape[2:]) != (size, size):
        x = F.interpolate(x, size=(size, size), mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
    if size is not None and not len(x):
        x = x.new_zeros((0, 1, size, size))
    return (x - 0.5) / 0.5


def client_of(pool: Pool, train: Indices, test: Indices, name: str, size: int | None = None) -> Client:
    """The client that holds these samples of a pool."""
    return Client(
        scale(pool.x_train[train], size), pool.y_train[train], scale(pool.x_test[test], size), pool.y_test[test], name
    )


def deal(
    pool: Pool, n_clients: int, k: int, variant: str, draw: Callable[[str], np.random.Generator]
) -> list[tuple[Indices, Indices]]:
    """Training and test indices of clients that each hold k classes.

    ``"text"``: both splits are shared out whole, without overlap. ``"code"``: as FLIC's published code cuts shards,
    see `hetfl_core.partition.published_shards`. `draw` gives the generator of a purpose.
    """
    n_classes = int(pool.y_train.max()) + 1
    if variant == "text":
        check_clients(n_clients, k, len(pool.y_train))
    table = assign_classes(n_clients, n_classes, k, draw("classes"), allow_repeats=variant == "code")
    if variant == "code":
        parts = [published_shards(y, table, draw(p)) for y, p in ((pool.y_train, "train"), (pool.y_test, "test"))]
    else:
        parts = [share(pool.y_train, table, draw("train")), share(pool.y_test, table, draw("test"), at_least=0)]
    return list(zip(*parts))


def limit(part: Indices, labels: Indices, most: int | None, rng: np.random.Generator) -> Indices:
    """At most that many random samples of a client (`max_train`), about equally many of each of its classes."""
    if most is not None:
        checks.whole("max_train", most, 1)
    if most is None or len(part) <= most:
        return part
    mixed = rng.permutation(part)
    rank = np.empty(len(mixed), dtype=np.int64)
    for c in np.unique(labels[mixed]):
        mine = labels[mixed] == c
        rank[mine] = np.arange(mine.sum())
    return np.sort(mixed[np.argsort(rank, kind="stable")[:most]])


def fashion_mnist(
    n_clients: int = 100,
    classes_per_client: int = 5,
    seed: int = 0,
    *,
    alpha: float | None = None,
    sizes: Sequence[int] = (28,),
    max_train: int | None = None,
) -> Federation:
    """Fashion-MNIST dealt to clients, optionally in several resolutions.

    Parameters
    ----------
    n_clients : int
        Number of clients b.
    classes_per_client : int
        Classes that each client holds; not used where `alpha` is given.
    seed : int
        Seed of the dealing.
    alpha : float, optional
        Deal with Dirichlet(α) class proportions instead; the test samples follow each client's proportions.
    sizes : sequence of int
        Image sizes in pixels: client i sees images of ``sizes[i % len(sizes)]`` squared. The default gives all
        clients the same input space, ``(28, 14)`` gives every other client a quarter of the pixels.
    max_train : int, optional
        Keep at most that many training samples per client.

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
        checks.whole("sizes", size, 1)
    checks.whole("n_clients", n_clients, 1)
    if alpha is None:
        check_k("classes_per_client", classes_per_client, 10)
    else:
        check_alpha("alpha", alpha)
    checks.seed(seed)
    if max_train is not None:
        checks.whole("max_train", max_train, 1)
    checks.memory(4 * 10_000 * max(sizes) ** 2 / len(sizes), sizes=sizes)
    pool = load_idx("fashion_mnist")

    def draw(purpose: str) -> np.random.Generator:
        return numpy_stream(seed, SERVER, 0, f"fashion_mnist:{purpose}")

    if alpha is None:
        dealt = deal(pool, n_clients, classes_per_client, "text", draw)
    else:
        dealt = _deal_dirichlet(pool, n_clients, alpha, draw)
    rng = draw("limit")
    clients = [
        client_of(pool, limit(train, pool.y_train, max_train, rng), test, f"client-{i:03d}", sizes[i % len(sizes)])
        for i, (train, test) in enumerate(dealt)
    ]
    settings = {
        "n_clients": n_clients,
        "classes_per_client": classes_per_client if alpha is None else None,
        "seed": seed,
        "alpha": alpha,
        "sizes": list(sizes),
        "max_train": max_train,
    }
    info = {
        "settings": settings,
        "source": "Fashion-MNIST (Xiao et al., 2017), natural split",
        "licence": "MIT",
        "class_names": list(FASHION_CLASSES),
        "simulated": False,
    }
    return Federation(clients, 10, "images.fashion_mnist", info)


def _deal_dirichlet(
    pool: Pool, n_clients: int, alpha: float, draw: Callable[[str], np.random.Generator]
) -> list[tuple[Indices, Indices]]:
    train: Parts = dirichlet(pool.y_train, n_clients, alpha, draw("train"))
    return list(zip(train, share_alike(pool.y_train, train, pool.y_test, draw("test"))))
