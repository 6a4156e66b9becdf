"""Objects seen from twelve sides, and pictures with what was written to them: the multi-view data of HyFEM [1]_.

Each view, or kind of features, is a block; which blocks and classes a client holds is an assignment of
`hetfl_core.datasets.blocks`.

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
.. [2] H. Su, S. Maji, E. Kalogerakis, E. Learned-Miller. Multi-view convolutional neural networks for 3D shape
   recognition. ICCV 2015.
.. [3] N. Bai, P. Nourian, R. Luo, A. Pereira Roders. Heri-Graphs: a dataset creation framework for multi-modal machine
   learning on graphs of heritage values and attributes with social media. ISPRS Int. J. Geo-Inf. 11(9), 2022.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_core import checks
from hetfl_core.datasets.blocks import BlockPartition, at_most, federate
from hetfl_core.datasets.image_files import read_image
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.partition import Indices, gathered
from hetfl_core.rng import SERVER, numpy_stream

# --- ModelNet40 -----------------------------------------------------------------------------------------------------

_NAMES = """
airplane bathtub bed bench bookshelf bottle bowl car chair cone cup curtain desk door dresser flower_pot glass_box
guitar keyboard lamp laptop mantel monitor night_stand person piano plant radio range_hood sink sofa stairs stool table
tent toilet tv_stand vase wardrobe xbox
"""
MODELNET_CLASSES = tuple(_NAMES.split())
"""The 40 classes in the order of their labels, that of the alphabet, as in the code published with [1]_."""

N_VIEWS = 12
"""Pictures of an object, from all sides, 30° apart."""

NAMES = re.compile(r"(?P<object>.+?)(?:\.obj)?(?:[._]shaded_v|_)(?P<view>\d{3})")
"""How files are called: airplane_0001_001.png, or airplane_0001.obj.shaded_v001.png."""


MODELNET40_2 = BlockPartition("modelnet40:2")


def modelnet40(
    partition: BlockPartition = MODELNET40_2,
    seed: int = 0,
    *,
    views: int = N_VIEWS,
    resize: int = 32,
    **fields: Any,
) -> Federation:
    """ModelNet40 as pictures of each object from twelve sides, of which clients hold some, for some classes.

    The pictures are those that the authors of MVCNN [2]_ publish, placed by hand (``hetfl data status`` names the
    folder) as ``<class>/<train or test>/<object>_001.png`` … ``_012.png`` or ``<object>.obj.shaded_v001.png`` …; their
    split is kept. Reading takes some milliseconds a picture: minutes for all, seconds with few objects of a class.

    Parameters
    ----------
    partition : BlockPartition
        What each client holds; blocks are numbered in the order of the views, classes in that of `MODELNET_CLASSES`.
        The default needs all twelve views. Of [1]_'s objects it is only said that they are 40 000. With
        ``tested_on="validation"`` no test picture is read.
    seed : int
        Of the choice of objects and of the dealing.
    views : {1, 2, 3, 4, 6, 12}
        With 4, as in ModelNet40:1 of [1]_, every third view is a block, and so on. Which four [1]_ took is not known.
    resize : int
        Pixels of a side of the pictures, 1 … 224; they are published with 224, of which each pixel here has the mean.
    **fields
        Fields of the partition to change, such as ``overlap=0.5``.

    Returns
    -------
    Federation
        40 classes; clients ``client-0`` …, whose inputs are blocks ``view 01`` … of shape (1, resize, resize), grey
        levels in −1 (black) … 1; a block that a client lacks is empty. Every client is tested on all test objects by
        its own blocks; the test data of the federation itself have all blocks.

    Raises
    ------
    DataError
        If the folder is missing, a class or a view is missing or is not known, or a picture cannot be read.
    ValueError
        If an argument is out of range, or the pictures would not fit into memory.
    """
    checks.integer("views", views, 1, N_VIEWS)
    if N_VIEWS % views:
        raise WrongValue(f"views must divide {N_VIEWS}, got {views}")
    checks.integer("resize", resize, 1, 224)
    partition = gathered(partition, fields, BlockPartition)
    partition.holdings(views, len(MODELNET_CLASSES))
    checks.seed(seed)
    root = fetch("modelnet40/views")
    chosen = range(0, N_VIEWS, N_VIEWS // views)
    rng = numpy_stream(seed, SERVER, 0, "modelnet40:objects")
    halves = []
    for part, most in (("train", partition.per_class), ("test", partition.test_per_class)):
        read = part == "train" or partition.tested_on == "test"
        paths, y = _objects(root, part) if read else ([], np.zeros(0, np.int64))
        kept = at_most(y, most, rng)
        halves.append(([paths[i] for i in kept], y[kept]))
    n_pictures = views * sum(len(y) for _, y in halves)
    # twice in single precision: here, and with the clients, who hold about as much in all
    checks.memory((1 + 2 * 4) * resize**2 * n_pictures, views=views, resize=resize, per_class=partition.per_class)
    (x, y), (x_test, y_test) = ((_views(paths, chosen, resize), y) for paths, y in halves)
    info = {
        "settings": {**_sizes(partition), "views": views, "resize": resize},
        "source": f"ModelNet40 (Wu et al., 2015), {views} of 12 rendered views (Su et al., 2015), placed by hand",
        "licence": "of the models their authors'; for academic research",
        "class_names": list(MODELNET_CLASSES),
        "simulated": False,
        "objects": [len(y), len(y_test)],
    }
    rest = replace(partition, per_class=None, test_per_class=None)
    n_classes, name = len(MODELNET_CLASSES), "multiview.modelnet40"
    return federate(x, y, x_test, y_test, rest, seed, n_classes=n_classes, name=name, info=info)


def _sizes(partition: BlockPartition) -> dict[str, Any]:
    return {"per_class": partition.per_class, "test_per_class": partition.test_per_class}


def _objects(root: Path, part: str) -> tuple[list[list[Path]], Indices]:
    """The twelve pictures of each object of a part, in the order of views, and the objects' classes."""
    folders = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if unknown := sorted(folders - set(MODELNET_CLASSES)):
        raise DataError(
            f"{root / unknown[0]}: expected one folder for each of ModelNet40's classes, {MODELNET_CLASSES[0]} … "
            f"{MODELNET_CLASSES[-1]}, got {unknown[0]!r}; if the classes lie in it, move them up"
        )
    if lacking := [name for name in MODELNET_CLASSES if name not in folders]:
        raise DataError(
            f"{root}: expected folders of ModelNet40's 40 classes, lacks {checks.shown(lacking)}; they come from "
            "MVCNN's pictures, see `hetfl data status`"
        )
    found: list[list[Path]] = []
    labels = []
    for c, name in enumerate(MODELNET_CLASSES):
        objects = _by_object(root / name / part)
        found += objects
        labels += [c] * len(objects)
    return found, np.array(labels, dtype=np.int64)


def _by_object(folder: Path) -> list[list[Path]]:
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: expected pictures of a class in its folders train and test")
    objects: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
            continue
        match = NAMES.fullmatch(path.stem)
        if not match or not 1 <= int(match["view"]) <= N_VIEWS:
            raise DataError(
                f"{path}: expected a picture called <object>_001 … _{N_VIEWS:03d} or <object>.obj.shaded_v001 … "
                f"_v{N_VIEWS:03d}, got {path.name}"
            )
        views = objects.setdefault(match["object"], {})
        if (other := views.setdefault(int(match["view"]), path)) != path:
            raise DataError(f"{path}: expected one picture of each view, got {other.name} as well")
    for name, views in objects.items():
        if lacking := [i for i in range(1, N_VIEWS + 1) if i not in views]:
            raise DataError(f"{folder}: expected {N_VIEWS} views of {name}, lacks view {checks.shown(lacking)[1:-1]}")
    if not objects:
        raise DataError(f"{folder}: expected pictures of at least one object, got none")
    return [[views[i] for i in range(1, N_VIEWS + 1)] for views in objects.values()]


def _views(objects: Sequence[Sequence[Path]], chosen: Sequence[int], side: int) -> dict[str, Tensor]:
    """Views of objects as blocks of shape (n, 1, side, side), float32 in −1 … 1; one after the other is made so."""
    found = {}
    for view in chosen:
        grey = np.empty((len(objects), 1, side, side), np.uint8)
        for i, paths in enumerate(objects):
            grey[i, 0] = read_image(paths[view], str(paths[view]), "L", side)
        found[f"view {view + 1:02d}"] = torch.from_numpy(grey).to(torch.float32).div_(127.5).sub_(1)
    return found


# --- HeriGraph ------------------------------------------------------------------------------------------------------

CITIES = ("Amsterdam", "Suzhou", "Venice", "Venice-XL")
"""The parts of HeriGraph; the last is all that was found in Venice, where the first three have 5 000 posts at most."""

_HERITAGE = (
    "architectural elements, form, gastronomy, interior, landscape scenery and natural features, monuments, people, "
    "product, urban scenery"
)
HERITAGE_CLASSES = tuple(_HERITAGE.split(", "))
"""What a picture shows, in the order of [3]_'s ``category_id``."""


class _Table(NamedTuple):
    """A file of features: its name, columns in all, the column that names the picture, and where the blocks stand.

    The first column, without a name, counts the rows.
    """

    file: str
    width: int
    key: str
    blocks: Mapping[str, slice]


_VISUAL = _Table(
    "Visual_Features",
    985,
    "ID",
    {"hidden": slice(3, 515), "scenes": slice(518, 883), "attributes": slice(883, 985)},
)
_TEXTUAL = _Table("Textual_Features", 777, "index", {"text": slice(6, 774)})


SIX_PAIRS = BlockPartition("herigraph")


def herigraph(
    partition: BlockPartition = SIX_PAIRS,
    seed: int = 0,
    *,
    cities: Sequence[str] = CITIES,
    without_text: str = "zeros",
    **fields: Any,
) -> Federation:
    """HeriGraph [3]_: pictures of three cities as feature vectors, with the features of what was written to them.

    A sample is a picture on Flickr whose class two classifiers agree on (``labelled`` in the files): 41 621 in all
    four parts, as many as [1]_ has. [3]_ gives no split that [1]_ could have used; here a fifth of each class, the same
    whatever the seed, are the test samples. A picture that is in two parts is in the same half in both.

    Parameters
    ----------
    partition : BlockPartition
        What each client holds; blocks are 0 text, 1 hidden, 2 scenes, 3 attributes, and classes are in the order of
        `HERITAGE_CLASSES`. With ``tested_on="validation"``, too, a picture that is in two parts is in the same half
        in both.
    seed : int
        Of the choice of samples and of the dealing.
    cities : sequence of str
        Some of `CITIES`. Venice-XL has nine tenths of the samples, in files of two gigabytes.
    without_text : {"zeros", "drop"}
        Four tenths of the samples have no text. Their text block is zero, the mean of the others, or they are left out.
    **fields
        Fields of the partition to change, such as ``overlap=0.5``.

    Returns
    -------
    Federation
        9 classes; clients ``client-0`` …, whose inputs are blocks ``text`` (768, BERT), ``hidden`` (512, the last
        hidden layer of a ResNet-18 for scenes), ``scenes`` (365) and ``attributes`` (102, both probabilities), float32,
        each feature with mean 0 and standard deviation 1 in the training samples that have it; a block that a client
        lacks is empty. Every client is tested on all test samples by its own blocks.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, has another number of columns, or lacks a labelled picture.
    ValueError
        If an argument is out of range, or the features would not fit into memory.

    Notes
    -----
    The classes are predictions of two classifiers that read ``hidden``, so that who holds it can reach 100 %. [1]_ says
    "one text feature block and three different image feature blocks" without naming them. [3]_ has four kinds of
    features of a picture, of which the one left out is three numbers on faces.
    """
    partition = gathered(partition, fields, BlockPartition)
    checks.seed(seed)
    blocks = [*_TEXTUAL.blocks, *_VISUAL.blocks]
    partition.holdings(len(blocks), len(HERITAGE_CLASSES))
    parts = checks.sequence("cities", cities)
    for city in parts:
        checks.choice("cities", city, CITIES)
    if not parts or len(set(parts)) < len(parts):
        raise WrongValue(f"cities must be different ones, at least one, got {checks.shown(cities)}")
    checks.choice("without_text", without_text, ("zeros", "drop"))
    known = [_labels(city) for city in parts]
    n = sum(len(ids) for ids, _ in known)
    checks.memory(3 * 4 * 1747 * n, cities=tuple(parts))
    read = [_features(city, ids) for city, (ids, _) in zip(parts, known, strict=True)]
    x = {block: np.concatenate([one[block] for one in read]) for block in blocks}
    del read
    ids, y = (np.concatenate(both) for both in zip(*known, strict=True))
    with_text = ~np.isnan(x["text"]).any(axis=1)
    tested = _held_out(ids, y, numpy_stream(0, SERVER, 0, "herigraph:split"))
    rng = numpy_stream(seed, SERVER, 0, "herigraph:samples")
    halves = []
    for part, most in ((~tested, partition.per_class), (tested, partition.test_per_class)):
        rows = np.flatnonzero(part & (with_text | (without_text == "zeros")))
        halves.append(rows[at_most(y[rows], most, rng)])
    first, last = halves
    if partition.tested_on == "validation":  # here and not by `federate`, which does not know what is one picture
        chosen = _held_out(ids[first], y[first], numpy_stream(seed, SERVER, 0, "herigraph:validation"))
        first, last = first[~chosen], first[chosen]
    x_train: dict[str, Tensor] = {}
    x_test: dict[str, Tensor] = {}
    for block in blocks:
        of = first[with_text[first]] if block == "text" else first
        mean, sd = (np.asarray(f(x[block][of], axis=0, dtype=np.float64), np.float32) for f in (np.mean, np.std))
        for half, rows in ((x_train, first), (x_test, last)):
            scaled = (x[block][rows] - mean) / np.where(sd > 0, sd, np.float32(1))
            half[block] = torch.from_numpy(np.nan_to_num(scaled, copy=False, nan=0.0))
        del x[block]
    info = {
        "settings": {
            **_sizes(partition),
            "cities": list(parts),
            "without_text": without_text,
            "tested_on": partition.tested_on,
        },
        "source": "HeriGraph (Bai et al., 2022): " + ", ".join(parts),
        "licence": "CC BY 4.0",
        "class_names": list(HERITAGE_CLASSES),
        "simulated": False,
        "samples_at_hand": len(y),
        "in_two_parts": len(ids) - len(np.unique(ids)),
        "without_text": int((~with_text[np.concatenate([first, last])]).sum()),
        "unlike_the_paper": "which three blocks of pictures, who holds what, and the split are ours",
    }
    rest = replace(partition, per_class=None, test_per_class=None, tested_on="test")
    n_classes, name = len(HERITAGE_CLASSES), "multiview.herigraph"
    return federate(x_train, y[first], x_test, y[last], rest, seed, n_classes=n_classes, name=name, info=info)


def _held_out(ids: Indices, y: Indices, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which samples nobody trains on: a fifth of the pictures of each class, wherever they stand."""
    pictures, index = np.unique(ids, return_index=True)
    chosen = at_most(y[index], None, rng, share=0.2)
    return np.isin(ids, pictures[chosen])


def _labels(city: str) -> tuple[Indices, Indices]:
    """Pictures of a city whose class is known, by their number on Flickr, and the classes."""
    path = fetch(f"herigraph/{city}/Attribute_Labels")
    _columns(path, 20, "ID")
    kinds = {"ID": np.int64, "category": str, "category_id": np.int64, "labelled": bool}
    try:
        table = pd.read_csv(path, sep="\t", usecols=list(kinds), dtype=kinds)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected columns {', '.join(kinds)}: {error}") from error
    table = table[table["labelled"]]
    for key, name, number in table[["ID", "category", "category_id"]].itertuples(index=False):
        if not 0 <= number < len(HERITAGE_CLASSES) or HERITAGE_CLASSES[number] != name:
            raise DataError(f"{path}: expected a class of HeriGraph for picture {key}, got {number}, {name!r}")
    ids = table["ID"].to_numpy()
    if not len(ids) or len(np.unique(ids)) < len(ids):
        raise DataError(f"{path}: expected labelled pictures, each once, got {len(ids)}, {len(np.unique(ids))} unlike")
    return ids, table["category_id"].to_numpy()


def _columns(path: Path, width: int, key: str) -> list[str]:
    """The names of the columns of a table, once their number is right."""
    try:
        names = list(pd.read_csv(path, sep="\t", nrows=0).columns)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error
    if len(names) != width or key not in names:
        raise DataError(f"{path}: expected {width} columns, one of them {key!r}, got {len(names)} columns")
    return names


def _features(city: str, ids: Indices) -> dict[str, NDArray[np.float32]]:
    """Blocks of these pictures, each of shape (n, width); text is NaN where there is none."""
    found: dict[str, NDArray[np.float32]] = {}
    rows = pd.Index(ids)
    for table in (_TEXTUAL, _VISUAL):
        path = fetch(f"herigraph/{city}/{table.file}")
        names = _columns(path, table.width, table.key)
        columns = {block: names[where] for block, where in table.blocks.items()}
        kinds: dict[str, Any] = {name: np.float32 for some in columns.values() for name in some}
        kinds[table.key] = np.int64
        arrays = {block: np.full((len(ids), len(some)), np.nan, np.float32) for block, some in columns.items()}
        seen = np.zeros(len(ids), dtype=bool)
        try:
            # piece by piece: in double precision and with the pictures that have no class, it is ten times as much
            for piece in pd.read_csv(path, sep="\t", usecols=list(kinds), dtype=kinds, chunksize=2000):
                index = rows.get_indexer(piece[table.key])
                here = index >= 0
                seen[index[here]] = True
                for block, some in columns.items():
                    arrays[block][index[here]] = piece[some].to_numpy()[here]
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: expected numbers in the columns {', '.join(columns)}: {error}") from error
        if not seen.all():
            raise DataError(f"{path}: expected a row for each labelled picture, lacks {ids[~seen][0]}")
        found |= arrays
    for block in _VISUAL.blocks:
        if not (right := np.isfinite(found[block]).all(axis=1)).all():
            raise DataError(f"{path}: expected finite {block} of every picture, not so of {ids[~right][0]}")
    if np.isinf(found["text"]).any():
        raise DataError(f"herigraph/{city}: expected finite features of texts")
    return found
