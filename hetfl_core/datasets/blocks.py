"""Images cut into named blocks, which clients hold some of, for some classes: the federations of HyFEM.

A *holding* is what one client has: blocks and classes. An assignment is a holding for each client. Block × class makes
a table of cells; a cell may have many holders, or none, and then nobody ever trains on it.

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hetfl_core import checks
from hetfl_core.datasets import image_files
from hetfl_core.errors import WrongValue
from hetfl_core.federation import MOST_CLASSES, Client, Federation, FederationWarning
from hetfl_core.partition import Indices, Parts, checked_labels, gathered, joined
from hetfl_core.rng import SERVER, numpy_stream
from hetfl_core.settings import Checked, Count, Limit, Share

__all__ = [
    "ASSIGNMENTS",
    "QUADRANTS",
    "BlockPartition",
    "Holding",
    "cifar10",
    "eurosat",
    "fashion_mnist",
    "federate",
    "holders",
    "mnist",
]


QUADRANTS = ("top left", "top right", "bottom left", "bottom right")
"""The blocks that an image is cut into, by name."""

COLOURS = ("red", "green", "blue")


class Holding(NamedTuple):
    """Blocks and classes of which a client has samples.

    Parameters
    ----------
    blocks, classes : tuple of int
        Numbers from 0 on.
    """

    blocks: tuple[int, ...]
    classes: tuple[int, ...]


def _assignment(text: str) -> tuple[Holding, ...]:
    """An assignment from a text that has a line for each client, with its blocks and its classes."""
    lines = [line.split(":") for line in text.strip().splitlines()]
    return tuple(Holding(*(tuple(map(int, numbers.split())) for numbers in line)) for line in lines)


ASSIGNMENTS: Mapping[str, tuple[Holding, ...]] = {
    name: _assignment(text)
    for name, text in tomllib.loads(Path(__file__).with_name("assignments.toml").read_text("utf-8")).items()
}
"""Assignments by name.

``"table 4"`` is that of [1]_ for CIFAR-10 and EuroSAT in quadrants (Appendix C.1): six clients, the first and the third
block on all of them. ``"modelnet40:2"`` is that of 12 views and 40 classes in its Table 2, as the published code has
it: 8 clients with 6 views and 15 classes each; 58 of the 480 cells, 12.08 %, have no holder. Of ``"herigraph"``
Appendix C.3 gives the numbers, 6 clients with 2 of 4 blocks and 6 of 9 classes; that they are the six pairs of blocks,
and who lacks which three classes, is ours. So are the cells of ``"9 clients"``, CIFAR-10 and EuroSAT in quadrants of
one colour: its Table 2 says that clients have 6 to 8 of 12 blocks and 5 of 10 classes, and Section 4 that nothing
is on all of them. Of its ModelNet40:1 and of Table 3 no classes are published, only how many.

The others are ours, for the twelve classes of `hetfl_book.datasets.solids`. ``"12 views"`` has the same views as
``"modelnet40:2"`` and 5 classes for each client; 17 of the 144 cells, 11.8 %, have no holder. ``"4 views"`` is four
clients with three of four views and half of the classes; as in Table 3 of [1]_ the first and the third view are on all
of them, and some cells of the others, here 4 of 48, have no holder.
"""


def holders(assignment: Sequence[Holding], n_blocks: int, n_classes: int) -> Indices:
    """How many clients hold each block of each class, as Figures 11 and 12 of [1]_ show.

    Parameters
    ----------
    assignment : sequence of (blocks, classes)
        What each client holds, or a name in `ASSIGNMENTS`.
    n_blocks, n_classes : int
        Of the data.

    Returns
    -------
    ndarray of int, shape (n_blocks, n_classes)

    Raises
    ------
    ValueError
        Naming the client: for holdings without blocks or classes, with one twice, or with numbers that there are not.
    """
    checks.ints(1, n_blocks=n_blocks, n_classes=n_classes)
    checks.memory(8 * n_blocks * n_classes, n_blocks=n_blocks, n_classes=n_classes)
    table = np.zeros((n_blocks, n_classes), dtype=np.int64)
    for blocks, classes in checked_holdings(assignment, n_blocks, n_classes):
        table[np.ix_(blocks, classes)] += 1
    return table


def checked_holdings(assignment: str | Sequence[Any], n_blocks: int, n_classes: int) -> tuple[Holding, ...]:
    """The holding of each client, once they are seen to be possible.

    An assignment may be a name in `ASSIGNMENTS`, or ``"centralised"``: one client that holds everything.

    Parameters
    ----------
    assignment : str or sequence of (blocks, classes)
    n_blocks, n_classes : int
        Of the data.

    Returns
    -------
    tuple of Holding
        One for each client, its numbers in increasing order.

    Raises
    ------
    ValueError
        Naming the client: for holdings without blocks or classes, with one twice, or with numbers that there are not.
    """
    if isinstance(assignment, str):
        everything = (Holding(tuple(range(n_blocks)), tuple(range(n_classes))),)
        checks.choice("assignment", assignment, (*ASSIGNMENTS, "centralised"))
        assignment = ASSIGNMENTS.get(assignment, everything)
    found = []
    for i, given in enumerate(checks.sequence("assignment", assignment)):
        pair = checks.sequence(f"assignment[{i}]", given)
        if len(pair) != 2:
            raise WrongValue(f"assignment[{i}] must be a pair (blocks, classes), got {checks.shown(given)}")
        parts = []
        for what, some, n in (("blocks", pair[0], n_blocks), ("classes", pair[1], n_classes)):
            name = f"{what} of assignment[{i}]"
            numbers = checked_labels(checks.sequence(name, some), name)
            if not len(numbers) or len(np.unique(numbers)) < len(numbers):
                raise WrongValue(f"{name} must be different ones, got {numbers.tolist()}")
            if numbers.min() < 0 or numbers.max() >= n:
                raise WrongValue(f"{name} must lie in 0…{n - 1}, got {numbers.tolist()}")
            parts.append(tuple(sorted(numbers.tolist())))
        found.append(Holding(*parts))
    if not found:
        raise WrongValue("assignment must hold at least one client, got none")
    return tuple(found)


@dataclass(frozen=True)
class BlockPartition(Checked):
    """Which blocks of which classes clients hold, and which samples of them.

    Parameters
    ----------
    assignment : str or sequence of (blocks, classes)
        What each client holds: a name in `ASSIGNMENTS`, ``"centralised"`` for one client that holds everything, or
        numbers of blocks, in the order that the data set gives them, and of classes.
    overlap : float
        Share of the samples of a class, in [0, 1], that all its holders have; the others are dealt out evenly, one
        holder each. At 1, as in [1]_, every holder of a class has all of it.
    missing : float
        Share of the samples of a class, in [0, 1), that nobody has.
    per_class, test_per_class : int, optional
        Most samples of a class, drawn at random; by default all.
    tested_on : {"test", "validation"}
        With ``"validation"`` a fifth of the training samples of each class, drawn at random, are the test samples, and
        nobody trains on them: for choosing settings without having seen a test sample.

    Raises
    ------
    ValueError
        Naming the field that is out of its range.
    """

    assignment: Any = "table 4"
    overlap: Share = 1.0
    missing: Annotated[float, Limit("in [0, 1)", lambda x: 0 <= x < 1)] = 0.0
    per_class: Count | None = None
    test_per_class: Count | None = None
    tested_on: Literal["test", "validation"] = "test"

    def holdings(self, n_blocks: int, n_classes: int) -> tuple[Holding, ...]:
        """The blocks and classes that each client holds, of data with so many.

        Parameters
        ----------
        n_blocks, n_classes : int
            Of the data.

        Returns
        -------
        tuple of Holding
            One for each client.
        """
        return checked_holdings(self.assignment, n_blocks, n_classes)

    def settings(self, holdings: Sequence[Holding]) -> dict[str, Any]:
        """The fields as a record has them; an assignment that has no name in numbers."""
        named = isinstance(self.assignment, str)
        return vars(self) | {"assignment": self.assignment if named else [list(map(list, one)) for one in holdings]}

    def deal(self, labels: ArrayLike, holdings: Sequence[Holding], rng: np.random.Generator) -> Parts:
        """The samples of each client: of each of its classes those that all holders share, and a part of the others.

        Parameters
        ----------
        labels : array_like of int, shape (n,)
            Class of each sample.
        holdings : sequence of Holding
            What each client holds, as `holdings` returns it.
        rng : numpy.random.Generator

        Returns
        -------
        list of arrays of int
            For each client sorted indices into `labels`.

        Raises
        ------
        TypeError
            For labels that are not whole numbers, and another generator.
        ValueError
            For labels that are no vector.
        """
        y = checked_labels(labels)
        checks.instance("rng", rng, np.random.Generator, such_as="numpy.random.default_rng(0)")
        table = checked_holdings(holdings, MOST_CLASSES, MOST_CLASSES)
        pieces: list[list[Indices]] = [[] for _ in table]
        for c in np.unique(y):
            mine = rng.permutation(np.flatnonzero(y == c))
            mine = mine[round(self.missing * len(mine)) :]
            who = [i for i, one in enumerate(table) if c in one.classes]
            common = round(self.overlap * len(mine))
            for i, part in zip(who, np.array_split(mine[common:], max(len(who), 1)), strict=False):
                pieces[i] += [mine[:common], part]
        return [joined(each) for each in pieces]


def quadrants(x: Tensor) -> dict[str, Tensor]:
    """Images cut in four: shape (n, channels, 2 h, 2 w) to four of (n, channels, h, w), named by place.

    Parameters
    ----------
    x : Tensor, shape (n, channels, 2 h, 2 w)

    Returns
    -------
    dict of str to Tensor
        By the names in `QUADRANTS`.

    Raises
    ------
    TypeError
        For what is no tensor.
    ValueError
        For another shape, sides that are not even, and NaN.
    """
    checks.instance("x", x, Tensor)
    if x.isnan().any():
        raise WrongValue(f"x must not hold NaN, got {int(x.isnan().sum())} of {x.numel()}")
    if x.dim() != 4 or x.shape[2] % 2 or x.shape[3] % 2:
        raise WrongValue(
            f"x must be images of shape (n, channels, height, width) with even sides, got {tuple(x.shape)}"
        )
    h, w = x.shape[2] // 2, x.shape[3] // 2
    corners = [(0, 0), (0, w), (h, 0), (h, w)]
    return {name: x[:, :, i : i + h, j : j + w] for name, (i, j) in zip(QUADRANTS, corners, strict=True)}


def coloured_quadrants(x: Tensor) -> dict[str, Tensor]:
    """Quadrants of each of three channels, twelve blocks of shape (n, 1, h, w).

    Those of CIFAR-10 and EuroSAT in Table 2 are cut so.

    Parameters
    ----------
    x : Tensor, shape (n, 3, 2 h, 2 w)

    Returns
    -------
    dict of str to Tensor
        Named by place and colour, such as ``"top left, red"``.

    Raises
    ------
    TypeError
        For what is no tensor.
    ValueError
        For images of another shape, and NaN.
    """
    checks.instance("x", x, Tensor)
    if x.dim() != 4 or x.shape[1] != 3:
        raise WrongValue(f"x must be images of shape (n, 3, height, width), got {tuple(x.shape)}")
    parts = quadrants(x)
    return {f"{name}, {colour}": part[:, c : c + 1] for c, colour in enumerate(COLOURS) for name, part in parts.items()}


CUTS: Mapping[str, Callable[[Tensor], dict[str, Tensor]]] = {
    "quadrants": quadrants,
    "quadrants and colours": coloured_quadrants,
}


TABLE_4 = BlockPartition()


def fashion_mnist(partition: BlockPartition = TABLE_4, seed: int = 0, **fields: Any) -> Federation:
    """Fashion-MNIST in quadrants, of which clients hold some, for some classes.

    Parameters
    ----------
    partition : BlockPartition
        What each client holds; blocks are numbered in the order of `QUADRANTS`. There are 6 000 and 1 000 images of a
        class.
    seed : int
        Of the dealing. With all images, `overlap` 1 and `missing` 0 nothing is left to draw for the test: every seed
        then gives the same data.
    **fields
        Fields of the partition to change, such as ``overlap=0.5``.

    Returns
    -------
    Federation
        Clients ``client-0`` …, whose inputs are blocks of shape (1, 14, 14) in −1 … 1; a block that a client lacks is
        empty. Every client is tested on all test images, of all classes, by its own blocks; the test data of the
        federation itself have all blocks.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    ValueError
        If an argument is out of range.
    """
    return _federation(image_files.FASHION, gathered(partition, fields, BlockPartition), seed)


def mnist(partition: BlockPartition = TABLE_4, seed: int = 0, **fields: Any) -> Federation:
    """MNIST in quadrants, of which clients hold some, for some classes.

    Parameters
    ----------
    partition, seed, **fields
        As for `fashion_mnist`. There are 5 421 to 6 742 training images of a class.

    Returns
    -------
    Federation
        As of `fashion_mnist`.

    Raises
    ------
    DataError, ValueError
        As by `fashion_mnist`.
    """
    return _federation(image_files.MNIST, gathered(partition, fields, BlockPartition), seed)


def cifar10(partition: BlockPartition = TABLE_4, seed: int = 0, *, cut: str = "quadrants", **fields: Any) -> Federation:
    """CIFAR-10 in quadrants of shape (3, 16, 16), or in twelve of one colour; where only a part is there, that part.

    Parameters
    ----------
    partition, seed, **fields
        As for `fashion_mnist`.
    cut : {"quadrants", "quadrants and colours"}
        Four blocks, as in Appendix C.1 of [1]_, or twelve, as in its Section 4.

    Returns
    -------
    Federation
        As of `fashion_mnist`, with blocks of shape (3, 16, 16) or (1, 16, 16).

    Raises
    ------
    DataError, ValueError
        As by `fashion_mnist`.
    """
    checks.choice("cut", cut, tuple(CUTS))
    return _federation(image_files.CIFAR10, gathered(partition, fields, BlockPartition), seed, cut)


def eurosat(
    partition: BlockPartition = TABLE_4, seed: int = 0, *, cut: str = "quadrants", resize: int = 64, **fields: Any
) -> Federation:
    """EuroSAT's satellite images in quadrants of shape (3, 32, 32), or in twelve of one colour.

    The data set has no split of its own, and [1]_ gives none: a fifth of each class, the same whatever the seed, are
    the test images (`hetfl_core.datasets.image_files.load_eurosat`), 5 400 of 27 000.

    Parameters
    ----------
    partition, seed, **fields
        As for `fashion_mnist`.
    cut : {"quadrants", "quadrants and colours"}
        Four blocks, as in Appendix C.1 of [1]_, or twelve, as in its Section 4.
    resize : int
        Side of an image in pixels before it is cut, even, at most 64: a smaller one has the means of the pixels.

    Returns
    -------
    Federation
        As of `fashion_mnist`, with blocks of shape (3, resize/2, resize/2) or (1, resize/2, resize/2) in −1 … 1.

    Raises
    ------
    DataError, ValueError
        As by `fashion_mnist`; also for a `resize` that is odd.
    """
    checks.choice("cut", cut, tuple(CUTS))
    if checks.integer("resize", resize, 2, 64) % 2:
        raise WrongValue(f"resize must be even, so that an image has quadrants, got {resize}")
    partition, family = gathered(partition, fields, BlockPartition), image_files.EUROSAT

    def load() -> image_files.Halves:
        n, most = family.n_images, (partition.per_class, partition.test_per_class)
        dealt = sum(min(share * n, 10 * (some or n)) for share, some in zip((0.8, 0.2), most, strict=True))
        checks.memory(3 * resize**2 * (n + 4 * dealt), resize=resize, per_class=partition.per_class)
        return image_files.load_eurosat(resize)

    return _federation(replace(family, load=load), partition, seed, cut, resize=resize)


def _federation(
    family: image_files.Family, partition: BlockPartition, seed: int, cut: str = "quadrants", **settings: Any
) -> Federation:
    """The federation of a data set that is cut and dealt so; the arguments are checked before a file is read."""
    checks.seed(seed)
    table = partition.holdings(4 if cut == "quadrants" else 12, family.n_classes)
    train, test = family.load()
    rng = numpy_stream(seed, SERVER, 0, "blocks")
    chosen, tested = _drawn(train.y, test.y, partition, rng)
    settings = {"seed": seed, **partition.settings(table), "cut": cut, **settings}
    info = family.info(settings, train.class_names, family.part(len(train.y) + len(test.y)))
    judged = train if partition.tested_on == "validation" else test
    data = CUTS[cut](train.inputs(chosen)), train.y[chosen], CUTS[cut](judged.inputs(tested)), judged.y[tested]
    return _dealt(f"blocks.{family.name}", *data, family.n_classes, partition, table, rng, info)


def federate(
    x: Mapping[str, Tensor],
    y: ArrayLike,
    x_test: Mapping[str, Tensor],
    y_test: ArrayLike,
    partition: BlockPartition = TABLE_4,
    seed: int = 0,
    *,
    n_classes: int | None = None,
    name: str = "blocks",
    info: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Federation:
    """A federation of clients that hold some blocks, for some classes, of data that are there as a whole.

    Parameters
    ----------
    x, x_test : dict of str to Tensor
        Training and test samples of each block, each of shape (n, …), under the same names.
    y, y_test : array_like of int, shapes (n,)
        Their labels.
    partition : BlockPartition
        What each client holds; blocks are numbered in the order of `x`.
    seed : int
        Of the dealing.
    n_classes : int, optional
        By default one more than the largest label.
    name, info
        Of the federation; `info` is added to what is known of the dealing, and its ``"settings"`` to those.
    **fields
        Fields of the partition to change, such as ``assignment="centralised"``.

    Returns
    -------
    Federation
        Clients ``client-0`` …; a block that a client lacks is empty. Every client is tested on all test samples, of
        all classes, by its own blocks; the test data of the federation itself have all blocks.

    Raises
    ------
    ValueError
        If an argument is out of range, or blocks, samples and labels do not fit.
    TypeError
        For blocks that are no tensors, labels that are not whole numbers, and fields that the partition does not have.
    """
    partition = gathered(partition, fields, BlockPartition)
    checks.seed(seed)
    checks.nonempty_strs(name=name)
    more = dict(checks.mapping("info", {} if info is None else info))
    own_settings = checks.mapping("info['settings']", more.pop("settings", {}))
    labels, labels_test = checked_labels(y, "y"), checked_labels(y_test, "y_test")
    n = n_classes if n_classes is not None else 1 + int(max(labels.max(initial=0), labels_test.max(initial=0)))
    checks.integer("n_classes", n, 1)
    for argument, some, its, found in (("x", x, "y", labels), ("x_test", x_test, "y_test", labels_test)):
        for block, t in checks.mapping(argument, some).items():
            checks.instance(f"{argument}[{block!r}]", t, Tensor)
            if not t.dim() or len(t) != len(found):
                raise WrongValue(
                    f"{argument}[{block!r}] must have a row for each of {len(found)} labels in {its}, "
                    f"got shape {tuple(t.shape)}"
                )
        if len(found) and (found.min() < 0 or found.max() >= n):
            raise WrongValue(f"labels in {its} must lie in 0…{n - 1}, got {found.min()} to {found.max()}")
    if list(x) != list(x_test) or not x:
        raise WrongValue(f"x_test must have the blocks of x, {list(x)}, got {list(x_test)}")
    table = partition.holdings(len(x), n)
    rng = numpy_stream(seed, SERVER, 0, "blocks")
    chosen, tested = _drawn(labels, labels_test, partition, rng)
    if partition.tested_on == "validation":
        x_test, labels_test = x, labels
    data = _rows(x, chosen), labels[chosen], _rows(x_test, tested), labels_test[tested]
    told = {name: value for name, value in partition.settings(table).items() if value is not None}
    known = {"settings": {"seed": seed, **told, **own_settings}, **more}
    return _dealt(name, *data, n, partition, table, rng, known)


def _rows(x: Mapping[str, Tensor], which: Indices) -> Mapping[str, Tensor]:
    """Some samples of each block; the blocks themselves where these are all."""
    n = len(next(iter(x.values())))
    return x if len(which) == n else {block: t[torch.from_numpy(which)] for block, t in x.items()}


def _dealt(
    name: str,
    x: Mapping[str, Tensor],
    y: Indices,
    x_test: Mapping[str, Tensor],
    y_test: Indices,
    n_classes: int,
    partition: BlockPartition,
    table: Sequence[Holding],
    rng: np.random.Generator,
    info: Mapping[str, Any],
) -> Federation:
    """Clients that hold what the table says of samples with all blocks."""

    def held(x: Mapping[str, Tensor], numbers: Sequence[int]) -> dict[str, Tensor]:
        lacking = {block: t[(slice(None), *[slice(0)] * (t.dim() - 1))] for block, t in x.items()}
        return lacking | {block: t for i, (block, t) in enumerate(x.items()) if i in numbers}

    clients = []
    for i, (one, part) in enumerate(zip(table, partition.deal(y, table, rng), strict=True)):
        own = {block: t[torch.from_numpy(part)] for block, t in held(x, one.blocks).items()}
        clients.append(Client(own, y[part], held(x_test, one.blocks), y_test, f"client-{i}"))
    count = holders(table, len(x), n_classes)
    known = {**info, "blocks": list(x), "holders": count.tolist(), "unused_cells": float((count == 0).mean())}
    with warnings.catch_warnings():
        # clients are tested on classes that they lack, as they should
        warnings.simplefilter("ignore", FederationWarning)
        return Federation(clients, n_classes, name, known, x_test=x_test, y_test=y_test)


HELD_OUT = 0.2
"""Share of the training images of each class on which settings are judged."""


def at_most(y: Indices, n: int | None, rng: np.random.Generator, share: float = 1.0) -> Indices:
    """Indices of a share of the samples of each class, at most n, drawn at random, sorted."""
    if n is None and share == 1:
        return np.arange(len(y))
    each = [rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)]
    return joined([mine[: round(share * len(mine))][:n] for mine in each])


def _drawn(y: Indices, y_test: Indices, partition: BlockPartition, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Indices of the samples to train on and to test on, for validation both of them among the training samples."""
    first, last = np.arange(len(y)), np.arange(len(y_test))
    if partition.tested_on == "validation":
        last, y_test = at_most(y, None, rng, share=HELD_OUT), y
        if not len(last):
            raise WrongValue(
                f"tested_on='validation' holds out a share of {HELD_OUT} of each class, to the nearest sample, got "
                f"{len(y)} training samples of {len(np.unique(y))} classes, too few for one"
            )
        first = np.setdiff1d(first, last)
    chosen = first[at_most(y[first], partition.per_class, rng)]
    return chosen, last[at_most(y_test[last], partition.test_per_class, rng)]
