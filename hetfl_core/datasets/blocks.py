"""Images cut into named blocks, which clients hold some of, for some classes: the federations of HyFEM.

A *holding* is what one client has: blocks and classes. An assignment is a holding for each client. Block × class makes
a table of cells; a cell may have many holders, or none, and then nobody ever trains on it.

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hetfl_core import checks
from hetfl_core.datasets import pooled
from hetfl_core.federation import MOST_CLASSES, Client, Federation, FederationWarning
from hetfl_core.partition import Indices, Parts, check_generator, check_labels
from hetfl_core.rng import SERVER, numpy_stream

QUADRANTS = ("top left", "top right", "bottom left", "bottom right")
COLOURS = ("red", "green", "blue")


class Holding(NamedTuple):
    """What a client has.

    Attributes
    ----------
    blocks, classes : tuple of int
        Numbers from 0 on.
    """

    blocks: tuple[int, ...]
    classes: tuple[int, ...]


def _each(blocks: Sequence[Sequence[int]], classes: Sequence[Sequence[int]]) -> tuple[Holding, ...]:
    return tuple(Holding(tuple(b), tuple(c)) for b, c in zip(blocks, classes, strict=True))


LOW, HIGH = tuple(range(5)), tuple(range(5, 10))
HALF_OF_TWELVE = (
    (0, 1, 2, 3, 4, 5),
    (3, 4, 5, 6, 7, 8),
    (6, 7, 8, 9, 10, 11),
    (0, 1, 2, 9, 10, 11),
    (0, 1, 2, 6, 7, 8),
    (3, 4, 5, 9, 10, 11),
    (0, 2, 4, 6, 8, 10),
    (1, 3, 5, 7, 9, 11),
)
"""Six views for each of eight clients, as the published code of [1]_ has them."""

ASSIGNMENTS: Mapping[str, tuple[Holding, ...]] = {
    "table 4": _each(
        [(0, 1, 2), (0, 1, 2), (0, 2, 3), (0, 2, 3), (0, 2), (0, 2)],
        [LOW, HIGH, LOW, HIGH, LOW, HIGH],
    ),
    "modelnet40:2": _each(
        HALF_OF_TWELVE,
        [
            (1, 2, 3, 4, 11, 15, 18, 21, 24, 26, 27, 30, 31, 37, 38),
            (0, 5, 12, 13, 17, 20, 21, 24, 25, 28, 29, 31, 33, 34, 35),
            (0, 3, 6, 10, 11, 15, 18, 22, 25, 26, 29, 30, 31, 32, 34),
            (6, 7, 8, 13, 14, 19, 20, 23, 25, 28, 29, 30, 31, 35, 36),
            (2, 7, 9, 11, 17, 18, 19, 22, 27, 28, 32, 33, 36, 38, 39),
            (1, 4, 8, 10, 13, 14, 15, 16, 18, 19, 23, 29, 31, 36, 38),
            (1, 4, 6, 7, 8, 9, 11, 17, 18, 20, 21, 24, 29, 33, 36),
            (2, 6, 7, 8, 9, 13, 14, 23, 25, 29, 30, 31, 34, 35, 39),
        ],
    ),
    "12 views": _each(
        HALF_OF_TWELVE,
        [
            (1, 5, 7, 10, 11),
            (1, 4, 7, 8, 9),
            (0, 3, 4, 6, 8),
            (1, 2, 5, 6, 8),
            (2, 3, 4, 6, 7),
            (0, 5, 9, 10, 11),
            (3, 4, 5, 8, 11),
            (0, 1, 2, 9, 10),
        ],
    ),
    "4 views": _each(
        [(0, 1, 2), (0, 1, 2), (0, 2, 3), (0, 2, 3)],
        [range(6), range(4, 10), range(6, 12), (0, 1, 2, 3, 10, 11)],
    ),
    "9 clients": _each(
        [
            (0, 1, 2, 3, 4, 5),
            (4, 5, 6, 7, 8, 9, 10),
            (0, 1, 2, 3, 8, 9, 10, 11),
            (2, 3, 4, 5, 6, 7),
            (0, 6, 7, 8, 9, 10, 11),
            (0, 1, 2, 3, 4, 5, 10, 11),
            (4, 5, 6, 7, 8, 9),
            (0, 1, 2, 8, 9, 10, 11),
            (2, 3, 4, 5, 6, 7, 8, 9),
        ],
        [
            LOW,
            HIGH,
            (0, 2, 4, 6, 8),
            (1, 3, 5, 7, 9),
            (0, 1, 2, 7, 8),
            (3, 4, 5, 6, 9),
            (1, 2, 5, 6, 9),
            (0, 3, 4, 7, 8),
            (0, 1, 4, 6, 8),
        ],
    ),
    "herigraph": _each(
        list(combinations(range(4), 2)),
        [tuple(c for c in range(9) if c // 3 != i % 3) for i in range(6)],
    ),
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
    n_blocks, n_classes : int

    Returns
    -------
    ndarray of int, shape (n_blocks, n_classes)
    """
    checks.wholes(1, n_blocks=n_blocks, n_classes=n_classes)
    checks.memory(8 * n_blocks * n_classes, n_blocks=n_blocks, n_classes=n_classes)
    table = np.zeros((n_blocks, n_classes), dtype=np.int64)
    for blocks, classes in check_assignment(assignment, n_blocks, n_classes):
        table[np.ix_(blocks, classes)] += 1
    return table


def check_assignment(assignment: str | Sequence[Any], n_blocks: int, n_classes: int) -> tuple[Holding, ...]:
    """The holding of each client, once they are seen to be possible.

    An assignment may be a name in `ASSIGNMENTS`, or ``"centralised"``: one client that holds everything.

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
    for i, pair in enumerate(_pairs(assignment)):
        parts = []
        for what, some, n in (("blocks", pair[0], n_blocks), ("classes", pair[1], n_classes)):
            numbers = check_labels(checks.several(f"{what} of assignment[{i}]", some), f"{what} of assignment[{i}]")
            if not len(numbers) or len(np.unique(numbers)) < len(numbers):
                raise ValueError(f"{what} of assignment[{i}] must be different ones, got {numbers.tolist()}")
            if numbers.min() < 0 or numbers.max() >= n:
                raise ValueError(f"{what} of assignment[{i}] must lie in 0…{n - 1}, got {numbers.tolist()}")
            parts.append(tuple(sorted(numbers.tolist())))
        found.append(Holding(*parts))
    if not found:
        raise ValueError("assignment must hold at least one client, got none")
    return tuple(found)


def _pairs(assignment: Sequence[Any]) -> list[list[Any]]:
    pairs = [checks.several(f"assignment[{i}]", x) for i, x in enumerate(checks.several("assignment", assignment))]
    for i, pair in enumerate(pairs):
        if len(pair) != 2:
            raise ValueError(f"assignment[{i}] must be a pair (blocks, classes), got {checks.shown(assignment[i])}")
    return pairs


def deal(
    labels: ArrayLike,
    assignment: Sequence[Holding],
    rng: np.random.Generator,
    *,
    overlap: float = 1.0,
    missing: float = 0.0,
) -> Parts:
    """The samples of each client: of each of its classes those that all holders share, and a part of the others.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
    assignment : sequence of (blocks, classes)
        Which classes each client has; blocks do not matter here.
    rng : numpy.random.Generator
    overlap : float
        Share of the samples of a class, in [0, 1], that all its holders have; the others are dealt out evenly, one
        holder each. At 1, as in [1]_, every holder of a class has all of it.
    missing : float
        Share of the samples of a class, in [0, 1), that nobody has.

    Returns
    -------
    list of arrays of int
        Sorted indices into `labels`.
    """
    y = check_labels(labels)
    check_generator(rng)
    checks.fraction("overlap", overlap, "[0, 1]")
    checks.fraction("missing", missing, "[0, 1)")
    table = check_assignment([((0,), classes) for _, classes in _pairs(assignment)], 1, MOST_CLASSES)
    pieces: list[list[Indices]] = [[] for _ in table]
    for c in np.unique(y):
        mine = rng.permutation(np.flatnonzero(y == c))
        mine = mine[round(missing * len(mine)) :]
        who = [i for i, one in enumerate(table) if c in one.classes]
        common = round(overlap * len(mine))
        for i, part in zip(who, np.array_split(mine[common:], max(len(who), 1)), strict=False):
            pieces[i] += [mine[:common], part]
    return [np.sort(np.concatenate([np.zeros(0, np.int64), *each])) for each in pieces]


def quadrants(x: Tensor) -> dict[str, Tensor]:
    """Images cut in four: shape (n, channels, 2 h, 2 w) to four of (n, channels, h, w), named by place.

    Raises
    ------
    ValueError
        For images whose sides are not even.
    """
    checks.instance("x", x, Tensor)
    if x.isnan().any():
        raise ValueError(f"x must not hold NaN, got {int(x.isnan().sum())} of {x.numel()}")
    if x.dim() != 4 or x.shape[2] % 2 or x.shape[3] % 2:
        raise ValueError(
            f"x must be images of shape (n, channels, height, width) with even sides, got {tuple(x.shape)}"
        )
    h, w = x.shape[2] // 2, x.shape[3] // 2
    corners = [(0, 0), (0, w), (h, 0), (h, w)]
    return {name: x[:, :, i : i + h, j : j + w] for name, (i, j) in zip(QUADRANTS, corners, strict=True)}


def coloured_quadrants(x: Tensor) -> dict[str, Tensor]:
    """Quadrants of each of three channels, twelve blocks of shape (n, 1, h, w): Table 2's of CIFAR-10 and EuroSAT."""
    checks.instance("x", x, Tensor)
    if x.dim() != 4 or x.shape[1] != 3:
        raise ValueError(f"x must be images of shape (n, 3, height, width), got {tuple(x.shape)}")
    parts = quadrants(x)
    return {f"{name}, {colour}": part[:, c : c + 1] for c, colour in enumerate(COLOURS) for name, part in parts.items()}


CUTS: Mapping[str, Callable[[Tensor], dict[str, Tensor]]] = {
    "quadrants": quadrants,
    "quadrants and colours": coloured_quadrants,
}


def fashion_mnist(
    seed: int = 0,
    *,
    assignment: str | Sequence[Any] = "table 4",
    overlap: float = 1.0,
    missing: float = 0.0,
    per_class: int | None = None,
    test_per_class: int | None = None,
    tested_on: str = "test",
) -> Federation:
    """Fashion-MNIST in quadrants, of which clients hold some, for some classes.

    Parameters
    ----------
    seed : int
        Of the dealing. With all images, `overlap` 1 and `missing` 0 nothing is left to draw for the test: every seed
        then gives the same data.
    assignment : str or sequence of (blocks, classes)
        What each client holds: a name in `ASSIGNMENTS`, or numbers of blocks, in the order of `QUADRANTS`, and of
        classes. ``"centralised"``: one client that holds all blocks of all classes.
    overlap, missing : float
        As for `deal`.
    per_class, test_per_class : int, optional
        Most images of a class, drawn at random; by default all, 6 000 and 1 000.
    tested_on : {"test", "validation"}
        With ``"validation"`` a fifth of the training images of each class, drawn at random, are the test images, and
        nobody trains on them: for choosing settings without having seen a test image.

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
    halves = lambda: pooled.load_halves("fashion_mnist", pooled.FASHION_CLASSES)  # noqa: E731
    asked = Asked(seed, assignment, overlap, missing, per_class, test_per_class, tested_on)
    return _federation("blocks.fashion_mnist", pooled.FASHION, halves, "quadrants", asked)


def mnist(
    seed: int = 0,
    *,
    assignment: str | Sequence[Any] = "table 4",
    overlap: float = 1.0,
    missing: float = 0.0,
    per_class: int | None = None,
    test_per_class: int | None = None,
    tested_on: str = "test",
) -> Federation:
    """MNIST in quadrants; arguments, result and errors as for `fashion_mnist`."""
    halves = lambda: pooled.load_halves("mnist", tuple("0123456789"))  # noqa: E731
    asked = Asked(seed, assignment, overlap, missing, per_class, test_per_class, tested_on)
    return _federation("blocks.mnist", pooled.MNIST, halves, "quadrants", asked)


def cifar10(
    seed: int = 0,
    *,
    assignment: str | Sequence[Any] = "table 4",
    overlap: float = 1.0,
    missing: float = 0.0,
    per_class: int | None = None,
    test_per_class: int | None = None,
    tested_on: str = "test",
    cut: str = "quadrants",
) -> Federation:
    """CIFAR-10 in quadrants of shape (3, 16, 16), or in twelve of one colour; where only a part is there, that part.

    Parameters
    ----------
    cut : {"quadrants", "quadrants and colours"}
        Four blocks, as in Appendix C.1 of [1]_, or twelve, as in its Section 4.
    seed, assignment, overlap, missing, per_class, test_per_class, tested_on
        As for `fashion_mnist`, whose result and errors are alike.
    """
    checks.choice("cut", cut, tuple(CUTS))
    asked = Asked(seed, assignment, overlap, missing, per_class, test_per_class, tested_on)
    return _federation("blocks.cifar10", pooled.CIFAR10, pooled.load_cifar10_halves, cut, asked)


def eurosat(
    seed: int = 0,
    *,
    assignment: str | Sequence[Any] = "table 4",
    overlap: float = 1.0,
    missing: float = 0.0,
    per_class: int | None = None,
    test_per_class: int | None = None,
    tested_on: str = "test",
    cut: str = "quadrants",
    resize: int = 64,
) -> Federation:
    """EuroSAT's satellite images in quadrants of shape (3, 32, 32), or in twelve of one colour.

    The data set has no split of its own, and [1]_ gives none: a fifth of each class, the same whatever the seed, are
    the test images (`hetfl_core.datasets.pooled.load_eurosat_halves`), 5 400 of 27 000.

    Parameters
    ----------
    cut : {"quadrants", "quadrants and colours"}
        Four blocks, as in Appendix C.1 of [1]_, or twelve, as in its Section 4.
    resize : int
        Side of an image in pixels before it is cut, even, at most 64: a smaller one has the means of the pixels.
    seed, assignment, overlap, missing, per_class, test_per_class, tested_on
        As for `fashion_mnist`, whose result and errors are alike; values are in −1 … 1.
    """
    checks.choice("cut", cut, tuple(CUTS))
    if checks.whole("resize", resize, 2, 64) % 2:
        raise ValueError(f"resize must be even, so that an image has quadrants, got {resize}")
    asked = Asked(seed, assignment, overlap, missing, per_class, test_per_class, tested_on)

    def halves() -> tuple[pooled.Pictures, pooled.Pictures]:
        n = pooled.EUROSAT.n_images
        dealt = sum(min(share * n, 10 * (most or n)) for share, most in ((0.8, per_class), (0.2, test_per_class)))
        checks.memory(3 * resize**2 * (n + 4 * dealt), resize=resize, per_class=per_class)
        return pooled.load_eurosat_halves(resize)

    return _federation("blocks.eurosat", pooled.EUROSAT, halves, cut, asked, resize=resize)


class Asked(NamedTuple):
    """The arguments that all federations of blocks in the catalogue have; see `fashion_mnist`."""

    seed: int
    assignment: str | Sequence[Any]
    overlap: float
    missing: float
    per_class: int | None
    test_per_class: int | None
    tested_on: str

    def checked(self, n_blocks: int, n_classes: int) -> tuple[Holding, ...]:
        """The holding of each client, once all arguments are seen to be possible.

        Raises
        ------
        ValueError, TypeError
            Naming the argument.
        """
        checks.seed(self.seed)
        table = check_assignment(self.assignment, n_blocks, n_classes)
        checks.fraction("overlap", self.overlap, "[0, 1]")
        checks.fraction("missing", self.missing, "[0, 1)")
        for argument in ("per_class", "test_per_class"):
            if getattr(self, argument) is not None:
                checks.whole(argument, getattr(self, argument), 1)
        checks.choice("tested_on", self.tested_on, ("test", "validation"))
        return table


def _federation(
    name: str,
    family: pooled.Family,
    halves: Callable[[], tuple[pooled.Pictures, pooled.Pictures]],
    cut: str,
    asked: Asked,
    **settings: Any,
) -> Federation:
    """The federation of a data set that is cut and dealt so; the arguments are checked before a file is read."""
    table = asked.checked(4 if cut == "quadrants" else 12, family.n_classes)
    train, test = halves()
    n_images = len(train.y) + len(test.y)
    rng = numpy_stream(asked.seed, SERVER, 0, "blocks")
    if asked.tested_on == "validation":
        train, test = (train._replace(x=train.x[rows], y=train.y[rows]) for rows in _cut_off(train.y, rng))
    chosen, tested = (at_most(part.y, n, rng) for part, n in ((train, asked.per_class), (test, asked.test_per_class)))
    whole, x_test = (CUTS[cut](half.inputs(which)) for half, which in ((train, chosen), (test, tested)))
    info = {
        "settings": {**asked._asdict(), "assignment": _written(asked.assignment, table), "cut": cut, **settings},
        "source": family.source.partition(", training")[0] + family.part(n_images),
        "licence": family.licence,
        "class_names": list(train.class_names),
        "simulated": False,
    }
    data = _Data(whole, train.y[chosen], x_test, test.y[tested], family.n_classes)
    return _dealt(name, data, table, rng, asked.overlap, asked.missing, info)


def federate(
    x: Mapping[str, Tensor],
    y: ArrayLike,
    x_test: Mapping[str, Tensor],
    y_test: ArrayLike,
    assignment: str | Sequence[Any],
    *,
    seed: int = 0,
    overlap: float = 1.0,
    missing: float = 0.0,
    tested_on: str = "test",
    n_classes: int | None = None,
    name: str = "blocks",
    info: Mapping[str, Any] | None = None,
) -> Federation:
    """A federation of clients that hold some blocks, for some classes, of data that are there as a whole.

    Parameters
    ----------
    x, x_test : dict of str to Tensor
        Training and test samples of each block, each of shape (n, …), under the same names.
    y, y_test : array_like of int, shapes (n,)
    assignment : str or sequence of (blocks, classes)
        What each client holds: a name in `ASSIGNMENTS`, ``"centralised"`` for one client that holds everything, or
        numbers of blocks, in the order of `x`, and of classes.
    seed : int
        Of the dealing.
    overlap, missing : float
        As for `deal`.
    tested_on : {"test", "validation"}
        With ``"validation"`` a fifth of the training samples of each class, drawn at random, are the test samples, and
        nobody trains on them.
    n_classes : int, optional
        By default one more than the largest label.
    name, info
        Of the federation; `info` is added to what is known of the dealing, and its ``"settings"`` to those.

    Returns
    -------
    Federation
        Clients ``client-0`` …; a block that a client lacks is empty. Every client is tested on all test samples, of
        all classes, by its own blocks; the test data of the federation itself have all blocks.

    Raises
    ------
    ValueError
        If an argument is out of range, or blocks, samples and labels do not fit.
    """
    checks.texts(name=name)
    more = dict(checks.mapping("info", {} if info is None else info))
    own_settings = checks.mapping("info['settings']", more.pop("settings", {}))
    labels, labels_test = check_labels(y, "y"), check_labels(y_test, "y_test")
    n = n_classes if n_classes is not None else 1 + int(max(labels.max(initial=0), labels_test.max(initial=0)))
    checks.whole("n_classes", n, 1)
    for argument, some, its, found in (("x", x, "y", labels), ("x_test", x_test, "y_test", labels_test)):
        for block, t in checks.mapping(argument, some).items():
            checks.instance(f"{argument}[{block!r}]", t, Tensor)
            if not t.dim() or len(t) != len(found):
                raise ValueError(
                    f"{argument}[{block!r}] must have a row for each of {len(found)} labels in {its}, "
                    f"got shape {tuple(t.shape)}"
                )
        if len(found) and (found.min() < 0 or found.max() >= n):
            raise ValueError(f"labels in {its} must lie in 0…{n - 1}, got {found.min()} to {found.max()}")
    if list(x) != list(x_test) or not x:
        raise ValueError(f"x_test must have the blocks of x, {list(x)}, got {list(x_test)}")
    table = Asked(seed, assignment, overlap, missing, None, None, tested_on).checked(len(x), n)
    rng = numpy_stream(seed, SERVER, 0, "blocks")
    if tested_on == "validation":
        first, last = _cut_off(labels, rng)
        x, x_test = ({block: t[torch.from_numpy(rows)] for block, t in x.items()} for rows in (first, last))
        labels, labels_test = labels[first], labels[last]
    settings = {"seed": seed, "overlap": overlap, "missing": missing, "tested_on": tested_on}
    known = {"settings": {**settings, "assignment": _written(assignment, table), **own_settings}, **more}
    return _dealt(name, _Data(x, labels, x_test, labels_test, n), table, rng, overlap, missing, known)


class _Data(NamedTuple):
    """Samples with all blocks."""

    x: Mapping[str, Tensor]
    y: Indices
    x_test: Mapping[str, Tensor]
    y_test: Indices
    n_classes: int


def _written(assignment: str | Sequence[Any], table: Sequence[Holding]) -> Any:
    return assignment if isinstance(assignment, str) else [list(map(list, one)) for one in table]


def _dealt(
    name: str,
    data: _Data,
    table: Sequence[Holding],
    rng: np.random.Generator,
    overlap: float,
    missing: float,
    info: Mapping[str, Any],
) -> Federation:
    """Clients that hold what the table says."""
    parts = deal(data.y, table, rng, overlap=overlap, missing=missing)
    names = list(data.x)

    def of(x: Mapping[str, Tensor], held: Sequence[int], rows: Indices | None) -> dict[str, Tensor]:
        found = {}
        for i, block in enumerate(names):
            t = x[block] if i in held else x[block][(slice(None), *[slice(0)] * (x[block].dim() - 1))]
            found[block] = t if rows is None else t[torch.from_numpy(rows)]
        return found

    clients = [
        Client(
            of(data.x, one.blocks, part), data.y[part], of(data.x_test, one.blocks, None), data.y_test, f"client-{i}"
        )
        for i, (one, part) in enumerate(zip(table, parts, strict=True))
    ]
    count = holders(table, len(names), data.n_classes)
    known = {**info, "blocks": names, "holders": count.tolist(), "unused_cells": float((count == 0).mean())}
    with warnings.catch_warnings():
        # clients are tested on classes that they lack, as they should
        warnings.simplefilter("ignore", FederationWarning)
        return Federation(clients, data.n_classes, name, known, x_test=data.x_test, y_test=data.y_test)


HELD_OUT = 0.2
"""Share of the training images of each class on which settings are judged."""


def at_most(y: Indices, n: int | None, rng: np.random.Generator, share: float = 1.0) -> Indices:
    """Places of a share of the samples of each class, at most n, drawn at random, sorted."""
    if n is None and share == 1:
        return np.arange(len(y))
    each = [rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *(mine[: round(share * len(mine))][:n] for mine in each)]))


def _cut_off(y: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Places of the training samples that are trained on, and of those for validation."""
    last = at_most(y, None, rng, share=HELD_OUT)
    if not len(last):
        raise ValueError(
            f"tested_on='validation' holds out a share of {HELD_OUT} of each class, to the nearest sample, got "
            f"{len(y)} training samples of {len(np.unique(y))} classes, too few for one"
        )
    return np.setdiff1d(np.arange(len(y)), last), last


def shares(federation: Federation) -> NDArray[np.float64]:
    """What share of all classes each client holds: what it can at best reach on test samples of all of them.

    Returns
    -------
    ndarray, shape (n_clients,)
    """
    checks.instance("federation", federation, Federation)
    return np.array([len(spec.classes) / federation.n_classes for spec in federation.specs()])
