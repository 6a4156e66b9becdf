"""FEMNIST, one writer per client, from LEAF ([2]_): the digits, as FLIC took them (S3.9 of [1]_), or all characters.

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
.. [2] S. Caldas et al. LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018.
"""

from __future__ import annotations

import gzip
import json
import string
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.datasets.registry import DataError, fetch, needs
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.partition import Indices
from hetfl_core.rng import SERVER, numpy_stream

N_PIXELS, N_LABELS = 28 * 28, 62
DIGITS = [str(d) for d in range(10)]
CHARACTERS = [*DIGITS, *string.ascii_uppercase, *string.ascii_lowercase]
"""Classes in the order of their labels."""


class Writer(NamedTuple):
    """Images and labels of one writer, in LEAF's split of 90 % and 10 %.

    Parameters
    ----------
    name : str
        As in LEAF, e.g. ``"f1695_12"``.
    x_train, x_test : ndarray of uint8, shape (n, 784)
        Grey levels, 255 = paper, 0 = ink: the other way round than MNIST.
    y_train, y_test : ndarray of int64, shape (n,)
        Places in `CHARACTERS`.
    """

    name: str
    x_train: NDArray[np.uint8]
    y_train: Indices
    x_test: NDArray[np.uint8]
    y_test: Indices


def digits(n_clients: int = 50, seed: int = 0, *, variant: str = "text", scaling: str | None = None) -> Federation:
    """Handwritten digits of so many writers, one per client: FLIC's *FEMNIST* (Table S2 of [1]_).

    Of the shards published with FLIC, 20 of 36 could be had with their training part: 105 writers with digits in both
    splits. The paper's 50 writers are not known, and its 150 cannot be had.

    Parameters
    ----------
    n_clients : int
        Number of writers, 1 … 105.
    seed : int
        Seed of the choice of writers.
    variant : {"text", "code"}
        ``"text"``: a random choice of writers, pixels in −1 … 1 as for the other images here (the text gives neither).
        ``"code"``: the first writers, whatever the seed, pixels in 0 … 0.1. The published code takes them in the order
        in which the file system happens to list the shards; here they are listed by number.
    scaling : {"symmetric", "tenth"}, optional
        Change only the pixels: 2x − 1 or x / 10, where x is 1 for paper and 0 for ink. By default that of the variant.

    Returns
    -------
    Federation
        10 classes; clients named as the writers, with inputs of shape (784,), float32. Most have about 100 training
        and 11 test digits, a few hardly any.

    Raises
    ------
    DataError
        If a shard is missing and cannot be downloaded, or is not as expected; it is named.
    ValueError
        If there are not so many writers, or an option is unknown.

    Warns
    -----
    FederationWarning
        Where a writer's test set holds a digit that its training set lacks.
    """
    checks.choice("variant", variant, ("text", "code"))
    scaling = {"text": "symmetric", "code": "tenth"}[variant] if scaling is None else scaling
    checks.choice("scaling", scaling, tuple(_SCALINGS))
    settings = {"n_clients": n_clients, "seed": seed, "variant": variant, "scaling": scaling}
    who, first = "the paper has 50 and 150 and does not say which", variant == "code"
    return _federation("femnist.digits", DIGITS, settings, ", digits only", who, scaling, first)


def characters(n_clients: int = 110, seed: int = 0) -> Federation:
    """Digits and letters of so many writers, one per client: the *FEMNIST* of Fed-CMA's Table 2, as far as it is there.

    Fed-CMA has 923 writers, "around 25 %" of LEAF's; of those published with FLIC, 110 have a training part.

    Parameters
    ----------
    n_clients : int
        Number of writers, 1 … 110.
    seed : int
        Seed of the choice of writers.

    Returns
    -------
    Federation
        62 classes (`CHARACTERS`); clients named as the writers, with inputs of shape (784,), float32, 2x − 1 of pixels
        that are 1 for paper and 0 for ink.

    Raises
    ------
    DataError
        If a shard is missing and cannot be downloaded, or is not as expected; it is named.
    ValueError
        If there are not so many writers.

    Warns
    -----
    FederationWarning
        Where a writer's test set holds a character that its training set lacks.
    """
    settings = {"n_clients": n_clients, "seed": seed}
    return _federation("femnist.characters", CHARACTERS, settings, "", "Fed-CMA has 923", "symmetric")


def _federation(
    name: str, classes: list[str], settings: dict[str, Any], part: str, who: str, scaling: str, first: bool = False
) -> Federation:
    """A federation of some writers, a random choice or the first; arguments are checked before a file is read."""
    n, seed = checks.integer("n_clients", settings["n_clients"], 1), checks.seed(settings["seed"])
    writers = load_writers(name)
    if n > len(writers):
        raise WrongValue(f"n_clients must lie in 1…{len(writers)}, the number of writers at hand, got {n}")
    rng = numpy_stream(seed, SERVER, 0, "femnist:writers")
    chosen = range(n) if first else sorted(rng.choice(len(writers), n, replace=False).tolist())
    info = {
        "settings": settings,
        "source": f"LEAF's FEMNIST as published with arakotom/flic@4646796, 20 of 36 shards{part}",
        "licence": "public domain (NIST SD 19); LEAF's code BSD-2-Clause",
        "class_names": classes,
        "simulated": False,
        "writers_at_hand": len(writers),
        "unlike_the_paper": f"{n} of the {len(writers)} writers at hand; {who}",
    }
    return Federation([_client(writers[i], scaling) for i in chosen], len(classes), name, info)


_SCALINGS = {"symmetric": (2.0, -1.0), "tenth": (0.1, 0.0)}
"""Factor and shift of pixels in 0 … 1."""


def _client(writer: Writer, scaling: str) -> Client:
    factor, shift = _SCALINGS[scaling]
    scale = lambda x: (factor * (x / 255.0) + shift).astype(np.float32)  # noqa: E731
    return Client(scale(writer.x_train), writer.y_train, scale(writer.x_test), writer.y_test, writer.name)


def load_writers(dataset: str = "femnist.digits") -> tuple[Writer, ...]:
    """All writers at hand with at least one image in both splits, in the order of the shards' numbers.

    Reading takes some seconds the first time; a process reads the shards once.

    Parameters
    ----------
    dataset : {"femnist.digits", "femnist.characters"}
        Only their digits, or all.

    Returns
    -------
    tuple of Writer

    Raises
    ------
    DataError
        If a shard is missing and cannot be downloaded, or is not as expected.
    """
    checks.choice("dataset", dataset, ("femnist.digits", "femnist.characters"))
    keys = needs(dataset)
    paths = {part: [fetch(key) for key in keys if f"/{part}/" in key] for part in ("train", "test")}
    classes = len(DIGITS) if dataset == "femnist.digits" else N_LABELS
    found = []
    for writer in _load(tuple(paths["train"]), tuple(paths["test"])):
        train, test = writer.y_train < classes, writer.y_test < classes
        if train.any() and test.any():
            parts = writer.x_train[train], writer.y_train[train], writer.x_test[test], writer.y_test[test]
            found.append(Writer(writer.name, *parts))
    return tuple(found)


@lru_cache(maxsize=1)
def _load(train_paths: tuple[Path, ...], test_paths: tuple[Path, ...]) -> tuple[Writer, ...]:
    """All writers that both splits have, with all they wrote."""
    train, test = (
        {name: samples for path in paths for name, samples in read_shard(path).items()}
        for paths in (train_paths, test_paths)
    )
    return tuple(Writer(name, *train[name], *test[name]) for name in train if name in test)


def read_shard(path: Path) -> dict[str, tuple[NDArray[np.uint8], Indices]]:
    """Read a shard in LEAF's format: JSON, gzipped or not, of all 62 classes of a few writers.

    ``users`` lists the writers, ``num_samples`` how many images each has, and ``user_data`` has for each ``x``, lists
    of 784 multiples of 1/255, and ``y``, labels: 0 … 9 digits, 10 … 35 capital and 36 … 61 small letters.

    Parameters
    ----------
    path : path

    Returns
    -------
    dict of str to (ndarray of uint8, shape (n, 784), ndarray of int64, shape (n,))
        Images and labels of each writer.

    Raises
    ------
    DataError
        If the file cannot be read or is no such shard, naming it and, where it is the writer's data, the writer.
    """
    try:
        raw = Path(path).read_bytes()
        content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path} cannot be read as a FEMNIST shard: {error}") from error
    try:
        users, data = zip(content["users"], content["num_samples"], strict=True), content["user_data"]
        return {user: _samples(data[user], n, f"{path}: writer {user!r}") for user, n in users}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected users, num_samples and user_data as LEAF writes them: {error!r}") from error


def _samples(data: Any, n: int, where: str) -> tuple[NDArray[np.uint8], Indices]:
    x, y = np.array(data["x"], dtype=np.float64).reshape(len(data["x"]), -1), np.array(data["y"], dtype=np.int64)
    if x.shape != (n, N_PIXELS) or y.shape != (n,):
        raise DataError(
            f"{where}: expected {n} images of {N_PIXELS} pixels and {n} labels, got {x.shape} and {y.shape}"
        )
    grey = np.round(255 * x)
    if not (np.abs(255 * x - grey) < 1e-3).all() or grey.min() < 0 or grey.max() > 255:
        raise DataError(f"{where}: expected pixels that are multiples of 1/255 in 0…1")
    if y.min() < 0 or y.max() >= N_LABELS:
        raise DataError(f"{where}: expected labels 0…{N_LABELS - 1}, got {y.min()} to {y.max()}")
    return grey.astype(np.uint8), y
