"""Data sets of images as their files hold them: what is read, scaled, and known of each before it is read."""

from __future__ import annotations

import gzip
import io
import lzma
import math
import re
import string
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hetfl_core import checks
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.federation import Client
from hetfl_core.partition import Indices, Parts, joined
from hetfl_core.rng import SERVER, numpy_stream

_FASHION = "T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
_EUROSAT = "AnnualCrop Forest HerbaceousVegetation Highway Industrial Pasture PermanentCrop Residential River SeaLake"
FASHION_CLASSES, EUROSAT_CLASSES = tuple(_FASHION.split(", ")), tuple(_EUROSAT.split())
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Images(NamedTuple):
    """Images before they are dealt: the training set of a data set, its test set, or both.

    Parameters
    ----------
    x : ndarray of uint8, shape (n, channels, height, width)
    y : ndarray of int64, shape (n,)
    mean, sd : ndarray of float32, shape (channels,)
        What pixels, as numbers in 0 … 1, are scaled with: (x / 255 − mean) / sd.
    class_names : tuple of str
    """

    x: NDArray[np.uint8]
    y: Indices
    mean: NDArray[np.float32]
    sd: NDArray[np.float32]
    class_names: tuple[str, ...]

    def inputs(self, which: Indices, size: int | None = None) -> Tensor:
        """Some of the images as network inputs, float32.

        Parameters
        ----------
        which : ndarray of int, shape (m,)
            Their indices.
        size : int, optional
            Bring them to size × size pixels by bilinear interpolation with anti-aliasing.

        Returns
        -------
        Tensor, shape (m, channels, height, width)
        """
        x = torch.from_numpy(self.x[which].astype(np.float32)) / 255
        if size is not None and not len(x):
            x = x.new_zeros((0, x.shape[1], size, size))
        elif size is not None and tuple(x.shape[2:]) != (size, size):
            x = F.interpolate(x, size=(size, size), mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
        mean, sd = (torch.from_numpy(part)[:, None, None] for part in (self.mean, self.sd))
        return (x - mean) / sd

    def rows(self, which: Indices) -> Images:
        """Some of the images, by their indices."""
        return self._replace(x=self.x[which], y=self.y[which])


Halves = tuple[Images, Images]
"""The training and the test set."""


def as_one(halves: Halves) -> Images:
    """The training and the test set as one, training images first.

    Parameters
    ----------
    halves : tuple of Images

    Returns
    -------
    Images
    """
    train, test = halves
    return train._replace(x=np.concatenate([train.x, test.x]), y=np.concatenate([train.y, test.y]))


def client_of(halves: Halves, train: Indices, test: Indices, name: str, size: int | None = None) -> Client:
    """A client that holds these training and test images.

    Parameters
    ----------
    halves : tuple of Images
        The training and the test set.
    train, test : ndarray of int
        Indices into them.
    name : str
    size : int, optional
        Side of the images in pixels; by default as they are.

    Returns
    -------
    Client
    """
    a, b = halves
    return Client(a.inputs(train, size), a.y[train], b.inputs(test, size), b.y[test], name)


def clients_of(halves: Halves, dealt: tuple[Parts, Parts], digits: int = 3) -> list[Client]:
    """A client for each part that was dealt, ``client-000`` and so on.

    Parameters
    ----------
    halves : tuple of Images
        The training and the test set.
    dealt : tuple of list of ndarray of int
        Indices into them, of each client.
    digits : int
        Of the numbers in the clients' names.

    Returns
    -------
    list of Client
    """
    parts = zip(*dealt, strict=True)
    return [client_of(halves, train, test, f"client-{i:0{digits}d}") for i, (train, test) in enumerate(parts)]


def symmetric(x: NDArray[np.uint8], y: Indices, class_names: tuple[str, ...]) -> Images:
    """Images that are scaled to −1 … 1.

    Parameters
    ----------
    x : ndarray of uint8, shape (n, height, width) or (n, channels, height, width)
    y : ndarray of int64, shape (n,)
    class_names : tuple of str

    Returns
    -------
    Images
    """
    x = x[:, None] if x.ndim == 3 else x
    half = np.full(x.shape[1], 0.5, np.float32)
    return Images(x, y, half, half, class_names)


@dataclass(frozen=True)
class Family:
    """Facts about a data set that are known before its files are read.

    Parameters
    ----------
    name : str
        As in the data set's own publication.
    load : callable
        Reads training and test images.
    n_images, n_classes, pixels : int
        Images in all, classes, and numbers in a image.
    source, licence : str
    """

    name: str
    load: Callable[[], Halves]
    n_images: int
    n_classes: int
    pixels: int
    source: str
    licence: str

    def part(self, n: int) -> str:
        """The end of a source where only n of the images are at hand; nothing where all are."""
        return "" if n == self.n_images else f"; a part, {n} of {self.n_images} images"

    def info(self, settings: Mapping[str, Any], class_names: Sequence[str], how: str = "") -> dict[str, Any]:
        """The information of a federation of this data set; `how` it was dealt ends its source."""
        return {
            "settings": settings,
            "source": self.source + how,
            "licence": self.licence,
            "class_names": list(class_names),
            "simulated": False,
        }


_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)


@contextmanager
def _unpacking(where: str | Path) -> Iterator[None]:
    """Name the file in the error of whatever unpacks it."""
    try:
        yield
    except _DAMAGED as error:
        raise DataError(f"{where} cannot be unpacked: {error}") from error


# --- MNIST's format -------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes, the format of MNIST (big-endian sizes, then the values).

    Parameters
    ----------
    path : pathlib.Path

    Returns
    -------
    ndarray of uint8
        Of the shape that the file says.

    Raises
    ------
    DataError
        If the file is no gzip, or its header or length is not that of such a file.
    """
    try:
        return unpack_idx(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def unpack_idx(packed: bytes, where: str) -> NDArray[np.uint8]:
    """The array in the bytes of a gzipped idx file (`read_idx`); `where` names it in errors.

    Raises
    ------
    DataError
        As `read_idx` does.
    """
    with _unpacking(where):
        raw = gzip.decompress(packed)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{where}: expected an idx file of unsigned bytes (header 00 00 08), got {raw[:3].hex(' ')}")
    head = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:head], dtype=">u4").astype(int).tolist())
    if len(raw) != head + math.prod(shape):
        raise DataError(f"{where}: expected {head + math.prod(shape)} bytes for shape {shape}, got {len(raw)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(shape)


def load_mnist() -> Halves:
    """MNIST: 60 000 and 10 000 images of shape (1, 28, 28), scaled to −1 … 1.

    Returns
    -------
    train, test : Images
    """
    return _load_idx("mnist", tuple("0123456789"))


def load_fashion_mnist() -> Halves:
    """Fashion-MNIST: 60 000 and 10 000 images of shape (1, 28, 28), scaled to −1 … 1.

    Returns
    -------
    train, test : Images
    """
    return _load_idx("fashion_mnist", FASHION_CLASSES)


def _load_idx(family: str, class_names: tuple[str, ...]) -> Halves:
    def half(part: str) -> Images:
        x, y = (read_idx(fetch(f"{family}/{part}-{what}")) for what in ("images", "labels"))
        if len(x) != len(y):
            raise DataError(f"{family}: {part} has {len(x)} images but {len(y)} labels")
        return symmetric(x, y.astype(np.int64), class_names)

    return half("train"), half("test")


# --- EMNIST -----------------------------------------------------------------------------------------------------------


def load_emnist(n_letters: int = 26) -> Halves:
    """EMNIST's first letters, capital and small, of shape (1, 28, 28), scaled to −1 … 1.

    The files hold each image with rows and columns exchanged; here it stands upright.

    Parameters
    ----------
    n_letters : int
        All 26 have 124 800 and 20 800 images.

    Returns
    -------
    train, test : Images

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded, or is damaged.
    """
    names = tuple(string.ascii_uppercase[:n_letters])
    train, test = (symmetric(*_letters(part, n_letters), names) for part in ("train", "test"))
    return train, test


def _load_ten_letters() -> Halves:
    """EMNIST's letters A to J, standardised as FedCR does: by mean and sd of these training images."""
    halves = load_emnist(10)
    grey = halves[0].x / 255.0
    mean, sd = np.array([grey.mean()], np.float32), np.array([grey.std()], np.float32)
    train, test = (half._replace(mean=mean, sd=sd) for half in halves)
    return train, test


def _letters(part: str, n: int) -> tuple[NDArray[np.uint8], Indices]:
    """Images, shape (n, 28, 28), and labels 0 … n − 1 of the first letters."""
    path = fetch("emnist/archive")
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"gzip/emnist-letters-{part}-{kind}-ubyte.gz"
        try:
            with zipfile.ZipFile(path) as archive:
                packed = archive.read(name)
        except (OSError, KeyError, zlib.error, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: expected a zip archive that holds {name}: {error}") from error
        arrays.append(unpack_idx(packed, f"{path}: {name}"))
    images, labels = arrays[0], arrays[1].astype(np.int64) - 1
    if len(images) != len(labels) or images.ndim != 3 or not len(labels) or labels.min() < 0:
        raise DataError(f"{path}: expected images and labels 1…26 of {part}, got {images.shape} and {labels.shape}")
    chosen = labels < n
    return images[chosen].transpose(0, 2, 1), labels[chosen]


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def load_cifar10() -> Halves:
    """CIFAR-10: 50 000 and 10 000 images of shape (3, 32, 32) where the archive is there, else the part that is.

    Scaled with the means and standard deviations of the channels that FedCR's published code has.

    Returns
    -------
    train, test : Images

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged.
    """
    keys = ("cifar10/train", "cifar10/test")
    for key in keys:
        fetch(key)  # may bring the archive, which then counts for both
    paths = [fetch(key) for key in keys]
    if any(path.suffix == ".gz" for path in paths):
        folder = "cifar-10-batches-bin"
        names = [f"{folder}/data_batch_{i}.bin" for i in range(1, 6)], [f"{folder}/test_batch.bin"]
        found = _members(paths[0] if paths[0].suffix == ".gz" else paths[1], [*names[0], *names[1]])
        raw = [{name: found[name] for name in half} for half in names]
    else:
        raw = [{str(path): _unpack_xz(path)} for path in paths]
    mean, sd = np.array([0.491, 0.482, 0.447], np.float32), np.array([0.247, 0.243, 0.262], np.float32)
    train, test = (Images(*_records(half, 1, 10), mean, sd, CIFAR10_CLASSES) for half in raw)
    return train, test


def load_cifar100() -> Halves:
    """CIFAR-100: 50 000 and 10 000 images of shape (3, 32, 32) with their fine labels.

    Scaled with the means and standard deviations of the channels that FedCR's published code has.

    Returns
    -------
    train, test : Images

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded, or is damaged.
    """
    folder, path = "cifar-100-binary", fetch("cifar100/archive")
    raw = _members(path, [f"{folder}/{name}" for name in ("train.bin", "test.bin", "fine_label_names.txt")])
    names = tuple(raw.pop(f"{folder}/fine_label_names.txt").decode("ascii", "replace").split())
    if len(names) != 100:
        raise DataError(f"{path}: expected the names of 100 classes in fine_label_names.txt, got {len(names)}")
    mean, sd = np.array([0.5071, 0.4867, 0.4408], np.float32), np.array([0.2675, 0.2565, 0.2761], np.float32)
    train, test = (Images(*_records({name: raw[name]}, 2, 100), mean, sd, names) for name in raw)
    return train, test


def _members(path: Path, names: list[str]) -> dict[str, bytes]:
    """Files of a tar archive, by name, in the order asked for."""
    found: dict[str, bytes] = {}
    with _unpacking(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if member.name in names and (file := archive.extractfile(member)) is not None:
                found[member.name] = file.read()
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{path}: expected an archive that holds {', '.join(names)}, lacks {', '.join(missing)}")
    return {name: found[name] for name in names}


def _unpack_xz(path: Path) -> bytes:
    """The content of an xz file.

    That of the last two is kept, for unpacking takes seconds and an experiment deals them often.
    """
    return _unpacked(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=2)
def _unpacked(path: Path, changed: int) -> bytes:
    with _unpacking(path):
        return lzma.decompress(path.read_bytes())


def _records(raw: dict[str, bytes], n_labels: int, n_classes: int) -> tuple[NDArray[np.uint8], Indices]:
    """Images and labels of CIFAR's records: label bytes, of which the last counts, and the planes R, G and B."""
    width = n_labels + 3 * 32 * 32
    for name, content in raw.items():
        if not content or len(content) % width:
            raise DataError(f"{name}: expected records of {width} bytes, got {len(content)} bytes")
    table = np.concatenate([np.frombuffer(content, np.uint8).reshape(-1, width) for content in raw.values()])
    y = table[:, n_labels - 1].astype(np.int64)
    if y.max() >= n_classes:
        raise DataError(f"{next(iter(raw))}: expected labels 0…{n_classes - 1}, got {y.max()}")
    return table[:, n_labels:].reshape(-1, 3, 32, 32), y


# --- EuroSAT ----------------------------------------------------------------------------------------------------------


def load_eurosat(resize: int = 64) -> Halves:
    """EuroSAT's 27 000 images of shape (3, resize, resize), scaled to −1 … 1: 80 % to train on and 20 % to test.

    The data set comes undivided. A fifth of each class, drawn once and for all, are the test images. An archive that
    holds a part of the images will do, if it has some of every class.

    Parameters
    ----------
    resize : int
        Side of an image in pixels.

    Returns
    -------
    train, test : Images

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded, or is damaged.
    """
    path = fetch("eurosat/archive")
    with _unpacking(path), zipfile.ZipFile(path) as archive:
        names, y = _eurosat_names(path, archive.namelist())
        checks.memory(3 * resize**2 * len(y), resize=resize)
        x = np.empty((len(y), 3, resize, resize), np.uint8)
        for i, name in enumerate(names):
            content = io.BytesIO(archive.read(name))
            x[i] = read_image(content, f"{path}: {name}", "RGB", resize, pixels=64).transpose(2, 0, 1)
    whole, rng = symmetric(x, y, EUROSAT_CLASSES), numpy_stream(0, SERVER, 0, "eurosat:split")
    each = [rng.permutation(np.flatnonzero(y == c)) for c in range(len(EUROSAT_CLASSES))]
    tested = joined([mine[: round(0.2 * len(mine))] for mine in each])
    return whole.rows(np.setdiff1d(np.arange(len(y)), tested)), whole.rows(tested)


def _eurosat_names(path: Path, members: list[str]) -> tuple[list[str], Indices]:
    """The images of an archive, <class>/<class>_<number>.jpg in whatever folder, by class and number."""
    found = []
    for name in members:
        *_, folder, file = ("", *name.split("/"))
        if file.startswith(".") or not file.endswith(".jpg"):
            continue
        number = re.fullmatch(rf"{re.escape(folder)}_(\d+)\.jpg", file)
        if folder not in EUROSAT_CLASSES or not number:
            raise DataError(f"{path}: expected images <class>/<class>_<number>.jpg of EuroSAT's classes, got {name}")
        found.append((EUROSAT_CLASSES.index(folder), int(number[1]), name))
    found.sort()
    y = np.array([c for c, _, _ in found], dtype=np.int64)
    if lacking := [name for c, name in enumerate(EUROSAT_CLASSES) if c not in y]:
        raise DataError(f"{path}: expected images of EuroSAT's ten classes, lacks {', '.join(lacking)}")
    return [name for _, _, name in found], y


# --- photographs ------------------------------------------------------------------------------------------------------


def read_image(file: Path | BinaryIO, where: str, mode: str, side: int, pixels: int | None = None) -> NDArray[np.uint8]:
    """A square image, JPEG or PNG, as grey levels or colours 0 … 255 of so many pixels.

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
        If the file is missing, no image, truncated, not square or not of that size.
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


# --- what is known of them --------------------------------------------------------------------------------------------

FASHION = Family("fashion_mnist", load_fashion_mnist, 70_000, 10, 28 * 28, "Fashion-MNIST (Xiao et al., 2017)", "MIT")
MNIST = Family("mnist", load_mnist, 70_000, 10, 28 * 28, "MNIST (LeCun, Cortes, Burges, 1998)", "CC BY-SA 3.0")
CIFAR10 = Family(
    "cifar10", load_cifar10, 60_000, 10, 3 * 32 * 32, "CIFAR-10 (Krizhevsky, 2009)", "none stated; research use"
)
CIFAR100 = Family(
    "cifar100", load_cifar100, 60_000, 100, 3 * 32 * 32, "CIFAR-100 (Krizhevsky, 2009)", "none stated; research use"
)
LETTERS = Family(
    "emnist_letters",
    _load_ten_letters,
    56_000,
    10,
    28 * 28,
    "EMNIST (Cohen et al., 2017), letters A to J",
    "public domain (NIST SD 19)",
)
EUROSAT = Family(
    "eurosat",
    load_eurosat,
    27_000,
    10,
    3 * 64 * 64,
    "EuroSAT, RGB (Helber et al., 2019), a fifth of each class held out",
    "MIT; the images are of Copernicus Sentinel-2",
)
