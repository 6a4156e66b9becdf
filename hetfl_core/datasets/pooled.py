"""Image data sets for personal models: all images pooled, dealt in equal sizes, each client's split 70/30.

These are the federations of FedCR [1]_ (Section 6 and Appendix A.1.1). A client is tested on images of the distribution
that it is trained on; no image is held twice. Since training and test images are pooled, accuracies are not to be set
beside those of the natural splits.

References
----------
.. [1] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
   conditional mutual information regularization. ICML 2023.
"""

from __future__ import annotations

import io
import lzma
import re
import string
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_core import checks
from hetfl_core.datasets.images import FASHION_CLASSES, load_idx, read_image, unpack_idx
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.federation import Client, Federation, FederationWarning
from hetfl_core.partition import (
    Indices,
    Parts,
    assign_classes,
    check_alpha,
    check_clients,
    check_k,
    check_per_client,
    check_variant,
    consecutive_classes,
    dirichlet_per_client,
    share_evenly,
    split_each,
)
from hetfl_core.rng import SERVER, numpy_stream

SPLITS = ("non-iid_1", "non-iid_2")
"""How images are dealt, by FedCR's names: a few classes a client, or Dirichlet proportions."""

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Pictures(NamedTuple):
    """A pooled data set, images of the original training set first.

    Attributes
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

    def inputs(self, which: Indices) -> Tensor:
        """These images as network inputs, shape (n, channels, height, width), float32."""
        x = torch.from_numpy(self.x[which].astype(np.float32)) / 255
        mean, sd = (torch.from_numpy(part)[:, None, None] for part in (self.mean, self.sd))
        return (x - mean) / sd


@dataclass(frozen=True)
class Family:
    """What is known of a data set before its files are read.

    Attributes
    ----------
    name : str
        As in the catalogue.
    load : callable
        Reads the `Pictures`.
    n_images, n_classes, pixels : int
        Images in all, classes, and numbers in an image.
    source, licence : str
    """

    name: str
    load: Callable[[], Pictures]
    n_images: int
    n_classes: int
    pixels: int
    source: str
    licence: str

    def part(self, n: int) -> str:
        """What a source says, at its end, where only n of the images are at hand; nothing where all are."""
        return "" if n == self.n_images else f"; a part, {n} of {self.n_images} images"


@dataclass(frozen=True)
class Dealing:
    """The arguments of `fashion_mnist` and of the other federations here."""

    n_clients: int
    classes_per_client: int
    seed: int
    split: str
    alpha: float
    variant: str
    per_client: int | None
    test_fraction: float


# --- the files --------------------------------------------------------------------------------------------------------


def load_fashion_mnist() -> Pictures:
    """Fashion-MNIST: 70 000 images of shape (1, 28, 28), scaled to −1 … 1."""
    return _pictures("fashion_mnist", FASHION_CLASSES)


def load_mnist() -> Pictures:
    """MNIST: 70 000 images of shape (1, 28, 28), scaled to −1 … 1."""
    return _pictures("mnist", tuple("0123456789"))


def _pictures(family: str, class_names: tuple[str, ...]) -> Pictures:
    """Those of `load_idx`, training images first, scaled to −1 … 1."""
    train, test = load_halves(family, class_names)
    return train._replace(x=np.concatenate([train.x, test.x]), y=np.concatenate([train.y, test.y]))


def load_halves(family: str, class_names: tuple[str, ...]) -> tuple[Pictures, Pictures]:
    """The original training and test images of `load_idx`, scaled to −1 … 1."""
    pool = load_idx(family)
    half = np.full(1, 0.5, dtype=np.float32)
    return (
        Pictures(pool.x_train[:, None], pool.y_train, half, half, class_names),
        Pictures(pool.x_test[:, None], pool.y_test, half, half, class_names),
    )


def load_cifar10() -> Pictures:
    """CIFAR-10: 60 000 images of shape (3, 32, 32) where the archive is there, else the part that is.

    Scaled with the means and standard deviations of the channels that FedCR's published code has.
    """
    train, test = load_cifar10_halves()
    return train._replace(x=np.concatenate([train.x, test.x]), y=np.concatenate([train.y, test.y]))


def load_cifar10_halves() -> tuple[Pictures, Pictures]:
    """The original training and test images of `load_cifar10`, or those of them that are there."""
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
    train, test = (Pictures(*_records(half, 1, 10), mean, sd, CIFAR10_CLASSES) for half in raw)
    return train, test


def load_cifar100() -> Pictures:
    """CIFAR-100: 60 000 images of shape (3, 32, 32) with their fine labels, scaled as `load_cifar10` does."""
    folder, path = "cifar-100-binary", fetch("cifar100/archive")
    raw = _members(path, [f"{folder}/{name}" for name in ("train.bin", "test.bin", "fine_label_names.txt")])
    names = tuple(raw.pop(f"{folder}/fine_label_names.txt").decode("ascii", "replace").split())
    if len(names) != 100:
        raise DataError(f"{path}: expected the names of 100 classes in fine_label_names.txt, got {len(names)}")
    mean, sd = np.array([0.5071, 0.4867, 0.4408], np.float32), np.array([0.2675, 0.2565, 0.2761], np.float32)
    return Pictures(*_records(raw, 2, 100), mean, sd, names)


def load_emnist_letters() -> Pictures:
    """EMNIST's letters A to J, capital and small: 56 000 images of shape (1, 28, 28), standardised.

    Mean and standard deviation are those of the original training images of these letters. The files hold each image
    with rows and columns exchanged; here it stands upright.
    """
    found = [_letters(part, 10) for part in ("train", "test")]
    x, y = (np.concatenate(both) for both in zip(*found, strict=True))
    grey = found[0][0] / 255.0
    mean, sd = np.array([grey.mean()], np.float32), np.array([grey.std()], np.float32)
    return Pictures(x[:, None], y, mean, sd, tuple("ABCDEFGHIJ"))


def load_letter_halves() -> tuple[Pictures, Pictures]:
    """EMNIST's 26 letters, 124 800 training and 20 800 test images, upright, scaled to −1 … 1."""
    half = np.full(1, 0.5, dtype=np.float32)
    train, test = (_letters(part, 26) for part in ("train", "test"))
    names = tuple(string.ascii_uppercase)
    return Pictures(train[0][:, None], train[1], half, half, names), Pictures(
        test[0][:, None], test[1], half, half, names
    )


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


EUROSAT_CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)


def load_eurosat_halves(resize: int = 64) -> tuple[Pictures, Pictures]:
    """EuroSAT's 27 000 images of shape (3, resize, resize), scaled to −1 … 1: 80 % to train on and 20 % to test.

    The data set comes undivided. A fifth of each class, drawn once and for all, are the test images. An archive that
    holds a part of the images will do, if it has some of every class.
    """
    path = fetch("eurosat/archive")
    try:
        with zipfile.ZipFile(path) as archive:
            names, y = _eurosat_names(path, archive.namelist())
            checks.memory(3 * resize**2 * len(y), resize=resize)
            x = np.empty((len(y), 3, resize, resize), np.uint8)
            for i, name in enumerate(names):
                with archive.open(name) as file:
                    content = io.BytesIO(file.read())
                x[i] = read_image(content, f"{path}: {name}", "RGB", resize, pixels=64).transpose(2, 0, 1)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be unpacked: {error}") from error
    rng = numpy_stream(0, SERVER, 0, "eurosat:split")
    each = [rng.permutation(np.flatnonzero(y == c)) for c in range(len(EUROSAT_CLASSES))]
    tested = np.zeros(len(y), dtype=bool)
    tested[np.concatenate([mine[: round(0.2 * len(mine))] for mine in each])] = True
    half = np.full(3, 0.5, np.float32)
    train, test = (Pictures(x[part], y[part], half, half, EUROSAT_CLASSES) for part in (~tested, tested))
    return train, test


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


def load_eurosat() -> Pictures:
    """EuroSAT's images of `load_eurosat_halves`, training images first."""
    train, test = load_eurosat_halves()
    return train._replace(x=np.concatenate([train.x, test.x]), y=np.concatenate([train.y, test.y]))


def _members(path: Path, names: list[str]) -> dict[str, bytes]:
    """Files of a tar archive, by name, in the order asked for."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.name in names and (file := archive.extractfile(member)) is not None:
                    found[member.name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be unpacked: {error}") from error
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{path}: expected an archive that holds {', '.join(names)}, lacks {', '.join(missing)}")
    return {name: found[name] for name in names}


def _unpack_xz(path: Path) -> bytes:
    """What the file holds; the last two are kept, for unpacking takes seconds and an experiment deals them often."""
    return _unpacked(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=2)
def _unpacked(path: Path, changed: int) -> bytes:
    try:
        return lzma.decompress(path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be unpacked: {error}") from error


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


# --- the federations --------------------------------------------------------------------------------------------------

FASHION = Family(
    "pooled.fashion_mnist",
    load_fashion_mnist,
    70_000,
    10,
    28 * 28,
    "Fashion-MNIST (Xiao et al., 2017), training and test images pooled",
    "MIT",
)
MNIST = Family(
    "pooled.mnist",
    load_mnist,
    70_000,
    10,
    28 * 28,
    "MNIST (LeCun, Cortes, Burges, 1998), training and test images pooled",
    "CC BY-SA 3.0",
)
CIFAR10 = Family(
    "pooled.cifar10",
    load_cifar10,
    60_000,
    10,
    3 * 32 * 32,
    "CIFAR-10 (Krizhevsky, 2009), training and test images pooled",
    "none stated; research use",
)
CIFAR100 = Family(
    "pooled.cifar100",
    load_cifar100,
    60_000,
    100,
    3 * 32 * 32,
    "CIFAR-100 (Krizhevsky, 2009), training and test images pooled",
    "none stated; research use",
)
LETTERS = Family(
    "pooled.emnist_letters",
    load_emnist_letters,
    56_000,
    10,
    28 * 28,
    "EMNIST (Cohen et al., 2017), letters A to J, training and test images pooled",
    "public domain (NIST SD 19)",
)
EUROSAT = Family(
    "blocks.eurosat",
    load_eurosat,
    27_000,
    10,
    3 * 64 * 64,
    "EuroSAT, RGB (Helber et al., 2019), a fifth of each class held out",
    "MIT; the images are of Copernicus Sentinel-2",
)


def fashion_mnist(
    n_clients: int = 100,
    classes_per_client: int = 5,
    seed: int = 0,
    *,
    split: str = "non-iid_1",
    alpha: float = 0.5,
    variant: str = "text",
    per_client: int | None = None,
    test_fraction: float = 0.3,
) -> Federation:
    """FedCR's Fashion-MNIST: all 70 000 images pooled and dealt to clients of equal size.

    Parameters
    ----------
    n_clients : int
        Number of clients b.
    classes_per_client : int
        Classes that each client holds; not used by *non-iid_2*.
    seed : int
        Seed of the dealing and of the split into training and test sets.
    split : {"non-iid_1", "non-iid_2"}
        ``"non-iid_1"``: each client holds some classes, the same number of images of each. ``"non-iid_2"``: each client
        has class proportions of its own, ~ Dir(α), see `hetfl_core.partition.dirichlet_per_client`; its images are then
        mixed and cut once, as the published code does, so that a few test images are of classes of which the client has
        no training image (``info["untrained_test_images"]`` counts them; nothing warns of them here).
    alpha : float
        Concentration of *non-iid_2*, not used by *non-iid_1*.
    variant : {"text", "code"}
        Of *non-iid_1*. ``"text"``: classes at random, each held by equally many clients; every class of a client is
        split in the same proportion. ``"code"``: as the published code has it, client i holds the classes i, i + 1, …
        (modulo C), so that only C different sets of classes exist, and its images are mixed and cut once. *non-iid_2*
        is the same in both.
    per_client : int, optional
        Images of a client, training and test together; by default all images are dealt.
    test_fraction : float
        Share of a client's images that becomes its test set, in (0, 1).

    Returns
    -------
    Federation
        10 classes, clients ``client-000`` … with inputs of shape (1, 28, 28) in −1 … 1, scaled as in the published
        code: (x / 255 − 0.5) / 0.5. By default each has 490 training and 210 test images, of *non-iid_1* 98 and 42 of
        each of its classes.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        If an argument does not allow a dealing in equal sizes.

    Notes
    -----
    The published code rounds 700 · 0.7 down after a rounding error, to 489; the paper and this function have 490.
    """
    return _federation(
        FASHION,
        Dealing(n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction),
    )


def mnist(
    n_clients: int = 100,
    classes_per_client: int = 5,
    seed: int = 0,
    *,
    split: str = "non-iid_1",
    alpha: float = 0.5,
    variant: str = "text",
    per_client: int | None = 630,
    test_fraction: float = 0.3,
) -> Federation:
    """MNIST, of FedCR's Figure 2: its 70 000 images pooled, most of them dealt to clients of equal size.

    Parameters
    ----------
    n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction
        As for `fashion_mnist`; `per_client` is 630, the most that 100 clients of five classes can have, as the
        smallest class has 6 313 images.

    Returns
    -------
    Federation
        10 classes, clients ``client-000`` … with inputs of shape (1, 28, 28) in −1 … 1, by default with 441 training
        and 189 test images.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        If an argument does not allow a dealing in equal sizes.
    """
    return _federation(
        MNIST,
        Dealing(n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction),
    )


def cifar10(
    n_clients: int = 100,
    classes_per_client: int = 5,
    seed: int = 0,
    *,
    split: str = "non-iid_1",
    alpha: float = 0.5,
    variant: str = "text",
    per_client: int | None = None,
    test_fraction: float = 0.3,
) -> Federation:
    """FedCR's CIFAR-10: all 60 000 images pooled and dealt to clients of equal size.

    Where the folder of data files holds no official archive but the part of the images that is accepted in its place
    (8 981 training and 9 966 test images), that part is dealt; `per_client` must then be given, and ``info["source"]``
    says so. With 100 clients of 5 classes it may be up to 180.

    Parameters
    ----------
    n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction
        As for `fashion_mnist`.

    Returns
    -------
    Federation
        10 classes, inputs of shape (3, 32, 32), scaled as in the published code: (x / 255 − mean) / sd with
        (0.491, 0.482, 0.447) and (0.247, 0.243, 0.262). That code also crops and flips training images at random, which
        the text does not say and a data set cannot do. By default 420 training and 180 test images a client.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        If an argument does not allow a dealing in equal sizes.
    """
    return _federation(
        CIFAR10,
        Dealing(n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction),
    )


def cifar100(
    n_clients: int = 100,
    classes_per_client: int = 15,
    seed: int = 0,
    *,
    split: str = "non-iid_1",
    alpha: float = 0.3,
    variant: str = "text",
    per_client: int | None = None,
    test_fraction: float = 0.3,
) -> Federation:
    """FedCR's CIFAR-100: all 60 000 images pooled and dealt to clients of equal size.

    Parameters
    ----------
    n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction
        As for `fashion_mnist`.

    Returns
    -------
    Federation
        100 classes, inputs of shape (3, 32, 32), scaled as in the published code: (x / 255 − mean) / sd with
        (0.5071, 0.4867, 0.4408) and (0.2675, 0.2565, 0.2761). By default 420 training and 180 test images a client.

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded.
    ValueError
        If an argument does not allow a dealing in equal sizes.
    """
    return _federation(
        CIFAR100,
        Dealing(n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction),
    )


def emnist_letters(
    n_clients: int = 100,
    classes_per_client: int = 5,
    seed: int = 0,
    *,
    split: str = "non-iid_1",
    alpha: float = 0.5,
    variant: str = "text",
    per_client: int | None = None,
    test_fraction: float = 0.3,
) -> Federation:
    """FedCR's EMNIST-L: 56 000 images of the letters A to J, pooled and dealt to clients of equal size.

    Parameters
    ----------
    n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction
        As for `fashion_mnist`.

    Returns
    -------
    Federation
        10 classes, inputs of shape (1, 28, 28), standardised, as in the published code, with the mean and the standard
        deviation of the original training images. By default 392 training and 168 test images a client.

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded.
    ValueError
        If an argument does not allow a dealing in equal sizes.
    """
    return _federation(
        LETTERS,
        Dealing(n_clients, classes_per_client, seed, split, alpha, variant, per_client, test_fraction),
    )


def _federation(family: Family, asked: Dealing) -> Federation:
    """The federation of a data set that is dealt so; the arguments are checked before a file is read."""
    _check(family, asked)
    pictures = family.load()
    part = family.part(len(pictures.y))
    if part and asked.per_client is None:
        raise ValueError(
            f"per_client must be given, since the files at hand hold {len(pictures.y)} of the {family.n_images} images "
            f"of {family.name}, got None: `hetfl data status` tells where the official file belongs"
        )
    dealt = list(zip(*_dealt(family, asked, pictures.y), strict=True))
    unused = {"alpha": None} if asked.split == "non-iid_1" else {"classes_per_client": None, "variant": None}
    info = {
        "settings": {**asdict(asked), **unused},
        "source": family.source + part,
        "licence": family.licence,
        "class_names": list(pictures.class_names),
        "simulated": False,
        "untrained_test_images": sum(
            int((~np.isin(pictures.y[test], pictures.y[train])).sum()) for train, test in dealt
        ),
    }
    clients = [
        Client(pictures.inputs(train), pictures.y[train], pictures.inputs(test), pictures.y[test], f"client-{i:03d}")
        for i, (train, test) in enumerate(dealt)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)  # what it would warn of is counted above
        return Federation(clients, family.n_classes, family.name, info)


def _check(family: Family, asked: Dealing) -> None:
    """Refuse what can be refused without the images."""
    checks.whole("n_clients", asked.n_clients, 1, family.n_images)
    check_k("classes_per_client", asked.classes_per_client, family.n_classes)
    checks.seed(asked.seed)
    checks.choice("split", asked.split, SPLITS)
    check_alpha("alpha", asked.alpha)
    check_variant(asked.variant)
    checks.fraction("test_fraction", asked.test_fraction, "(0, 1)")
    if asked.split == "non-iid_1":
        _check_holders(family, asked)
    if asked.per_client is not None:
        check_per_client("per_client", asked.per_client, asked.classes_per_client if asked.split == "non-iid_1" else 1)
        if asked.n_clients * asked.per_client > family.n_images:
            raise ValueError(
                f"per_client must be at most {family.n_images // asked.n_clients} for n_clients={asked.n_clients}, as "
                f"there are {family.n_images} images, got {asked.per_client}"
            )
    n_dealt = family.n_images if asked.per_client is None else asked.n_clients * asked.per_client
    checks.memory(
        family.pixels * (family.n_images + 4 * n_dealt), n_clients=asked.n_clients, per_client=asked.per_client
    )


def _check_holders(family: Family, asked: Dealing) -> None:
    """Refuse numbers with which the classes cannot have equally many holders."""
    follow = asked.variant == "code" and asked.classes_per_client < family.n_classes
    if asked.n_clients * (1 if follow else asked.classes_per_client) % family.n_classes:
        counted = (
            "n_clients (as the classes of a client follow each other)" if follow else "n_clients × classes_per_client"
        )
        raise ValueError(
            f"{counted} must be a multiple of {family.n_classes}, the number of classes, so that each has equally many "
            f"holders, got n_clients={asked.n_clients} and classes_per_client={asked.classes_per_client}"
        )


def _dealt(family: Family, asked: Dealing, y: Indices) -> tuple[Parts, Parts]:
    """Training and test indices of each client."""

    def draw(purpose: str) -> np.random.Generator:
        return numpy_stream(asked.seed, SERVER, 0, f"{family.name}:{purpose}")

    if asked.split == "non-iid_2":
        parts = dirichlet_per_client(y, asked.n_clients, asked.alpha, draw("dirichlet"), per_client=asked.per_client)
        return split_each(y, parts, asked.test_fraction, draw("split"), stratified=False)
    numbers = (asked.n_clients, family.n_classes, asked.classes_per_client)
    follow = asked.variant == "code"
    check_clients(asked.n_clients, asked.classes_per_client, len(y))
    table = consecutive_classes(*numbers) if follow else assign_classes(*numbers, draw("classes"))
    parts = share_evenly(y, table, draw("share"), per_client=asked.per_client)
    return split_each(y, parts, asked.test_fraction, draw("split"), stratified=not follow)
