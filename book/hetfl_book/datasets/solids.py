"""Made solids, seen from cameras all around: a stand-in for the 12 views of ModelNet40 in HyFEM [1]_.

Twelve shapes in six pairs of look-alikes: of most pairs some cameras show what differs, and others do not. What is the
paper's, and what ours, is on the data card ``solids.views``.

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from hetfl_book.datasets.rendering import (
    MOST_PIXELS,
    Ball,
    Images,
    Numbers,
    Piece,
    azimuths,
    cuboid,
    frames,
    rows,
    seen,
    upright,
)
from hetfl_core import checks
from hetfl_core.datasets import blocks
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.partition import Indices, gathered
from hetfl_core.rng import SERVER, numpy_stream

Pieces = list[Piece | Ball]

N_SIZES = 5
"""Numbers in 0 … 1 that say how large a solid is, in which proportions, and (the last one) how bright."""
DULLEST = 0.5
"""Brightness of the least bright solid."""
TURN, TILT = np.pi / 6, np.pi / 24
"""Largest random turn about the vertical axis and largest random tilt, to either side, in radians."""


def _plate_on_legs(u: Numbers) -> tuple[Pieces, Numbers, Numbers, Numbers]:
    """A plate on four legs, its half widths, and how high its upper side is."""
    x, y = 0.45 + 0.2 * u[:, 0], 0.45 + 0.2 * u[:, 1]
    high, leg = 0.05 + 0.25 * u[:, 2], 0.18
    pieces: Pieces = [cuboid((-x, x), (-y, y), (high - 0.18, high))]
    for i in ((-x, leg - x), (x - leg, x)):
        pieces += [cuboid(i, j, (-0.65, high)) for j in ((-y, leg - y), (y - leg, y))]
    return pieces, x, y, high


def _half_sides(u: Numbers) -> Numbers:
    return 0.4 + 0.25 * u[:, :3]


def _box(u: Numbers) -> Pieces:
    """A closed box."""
    x, y, z = _half_sides(u).T
    return [cuboid((-x, x), (-y, y), (-z, z))]


def _niche(u: Numbers) -> Pieces:
    """A box that is open in front."""
    x, y, z = _half_sides(u).T
    wall = 0.08 + 0.06 * u[:, 3]
    sides: Pieces = [cuboid((-x, x), end, (-z, z)) for end in ((-y, wall - y), (y - wall, y))]
    sides += [cuboid((-x, x), (-y, y), end) for end in ((-z, wall - z), (z - wall, z))]
    return [*sides, cuboid((-x, wall - x), (-y, y), (-z, z))]


def _cylinder(u: Numbers) -> Pieces:
    """An upright cylinder."""
    radius = 0.35 + 0.2 * u[:, 0]
    return [upright(radius, radius, 0.4 + 0.25 * u[:, 1])]


def _jug(u: Numbers) -> Pieces:
    """An upright cylinder with a handle in front."""
    r, half = 0.35 + 0.2 * u[:, 0], 0.4 + 0.25 * u[:, 1]
    reach, high, y = r + 0.25 + 0.1 * u[:, 2], half * 0.65, (-0.07, 0.07)
    bars: Pieces = [cuboid((0.0, reach), y, ends) for ends in ((high - 0.14, high), (-high, 0.14 - high))]
    return [*_cylinder(u), *bars, cuboid((reach - 0.14, reach), y, (-high, high))]


def _cone(u: Numbers) -> Pieces:
    """A cone."""
    return [upright(0.5 + 0.25 * u[:, 0], 0.0, 0.45 + 0.25 * u[:, 1])]


def _pyramid(u: Numbers) -> Pieces:
    """A pyramid on a square."""
    return [upright(0.4 + 0.2 * u[:, 0], 0.0, 0.45 + 0.25 * u[:, 1], sides=4)]


def _table(u: Numbers) -> Pieces:
    """A plate on four legs."""
    return _plate_on_legs(u)[0]


def _chair(u: Numbers) -> Pieces:
    """A plate on four legs with a back."""
    pieces, x, y, high = _plate_on_legs(u)
    return [*pieces, cuboid((-x, 0.15 - x), (-y, y), (high, high + 0.15 + 0.25 * u[:, 3]))]


def _steps(u: Numbers) -> Pieces:
    """Four steps that rise to the back."""
    x, y, z = _half_sides(u).T
    return [cuboid((-x, x - x * i / 2), (-y, y), (-z, -z + z * (i + 1) / 2)) for i in range(4)]


def _ramp(u: Numbers) -> Pieces:
    """A ramp that rises to a landing as deep as a step."""
    x, y, z = _half_sides(u).T
    level = cuboid((-x, x), (-y, y), (-z, z))
    length = np.sqrt((2 * z) ** 2 + (1.5 * x) ** 2)
    slope, offset = rows(2 * z / length, 0.0, 1.5 * x / length), rows(x * z / 2 / length)
    return [Piece(np.concatenate([level.normals, slope[:, None]], 1), np.concatenate([level.offsets, offset], 1))]


def _egg(u: Numbers) -> Pieces:
    """An ellipsoid that lies and points to the front."""
    across = 0.35 + 0.15 * u[:, 1]
    return [Ball(rows(0.0 * across, 0.0, 0.0), rows(across + 0.15 + 0.25 * u[:, 0], across, across))]


def _capsule(u: Numbers) -> Pieces:
    """A cylinder with two round ends that lies and points to the front."""
    across, along = 0.35 + 0.15 * u[:, 1], 0.15 + 0.25 * u[:, 0]
    ends: Pieces = [Ball(rows(sign * along, 0.0, 0.0), rows(across, across, across)) for sign in (-1, 1)]
    standing = upright(across, across, along)
    return [Piece(standing.normals[..., [2, 0, 1]], standing.offsets), *ends]


SHAPES: Mapping[str, Callable[[Numbers], Pieces]] = {
    "box": _box,
    "niche": _niche,
    "cylinder": _cylinder,
    "jug": _jug,
    "cone": _cone,
    "pyramid": _pyramid,
    "table": _table,
    "chair": _chair,
    "steps": _steps,
    "ramp": _ramp,
    "egg": _egg,
    "capsule": _capsule,
}
"""The shapes by name; the first and the second are look-alikes, the third and the fourth, and so on."""


def render(
    shape: str, sizes: ArrayLike, turn: ArrayLike, azimuth: ArrayLike, *, tilt: ArrayLike | None = None, size: int = 16
) -> Images:
    """Solids of one shape as cameras see them that stand 30° above the horizon and look at the origin.

    Parameters
    ----------
    shape : str
        A name in `SHAPES`.
    sizes : array_like, shape (n, 5)
        Numbers in 0 … 1 that say what each solid's size, its proportions and (the last one) its brightness are.
    turn : array_like, shape (n,)
        By how much each solid is turned about the vertical axis, counter-clockwise from above, in radians.
    azimuth : array_like, shape (m,)
        Where cameras stand about that axis, in radians; at 0 is one in front of solids that are not turned.
    tilt : array_like, shape (n,), optional
        By how much each solid is tilted about its own y axis before it is turned, in radians; by default by nothing.
    size : int
        Side of the images in pixels.

    Returns
    -------
    ndarray of float32, shape (n, m, size, size)
        From −1, the background, to 1.

    Raises
    ------
    ValueError
        For a shape that there is not, or for arrays that do not fit or hold what is out of range.
    """
    make = SHAPES[checks.choice("shape", shape, tuple(SHAPES))]
    u, where = checks.floats("sizes", sizes, 2), checks.floats("azimuth", azimuth, 1)
    if u.shape[1] != N_SIZES or u.min() < 0 or u.max() > 1:
        raise WrongValue(f"sizes must be numbers in 0…1 of shape (n, {N_SIZES}), got {checks.shown(sizes)}")
    turns, tilts = checks.floats("turn", turn, 1), checks.floats("tilt", np.zeros(len(u)) if tilt is None else tilt, 1)
    for name, angles in (("turn", turns), ("tilt", tilts)):
        if len(angles) != len(u):
            raise WrongValue(f"{name} must have an angle for each of {len(u)} solids, got {len(angles)}")
    checks.integer("size", size, 4, MOST_PIXELS)
    checks.memory(4 * len(u) * len(where) * size**2, sizes=u.shape, azimuth=where.shape, size=size)
    bright = DULLEST + (1 - DULLEST) * u[:, -1]
    images = np.empty((len(u), len(where), size, size), np.float32)
    step = max(1, 2**17 // (len(where) * size**2))  # so many solids at a time that the processor's cache holds them
    for i in range(0, len(u), step):
        some = slice(i, i + step)
        images[some] = seen(make(u[some]), frames(turns[some, None] - where, tilts[some]), bright[some], size)
    return images


TWELVE_VIEWS = blocks.BlockPartition("12 views", per_class=200, test_per_class=50)


def views(
    partition: blocks.BlockPartition = TWELVE_VIEWS,
    seed: int = 0,
    *,
    size: int = 16,
    n_views: int = 12,
    noise: float = 0.3,
    **fields: Any,
) -> Federation:
    """Made solids of twelve shapes, of which each client has some views, for some shapes.

    Sizes, proportions and brightness are uniform within the bounds of each shape, turns and tilts within `TURN` and
    `TILT` to either side, and every pixel has normal noise, cut to −1 … 1.

    Parameters
    ----------
    partition : BlockPartition
        What each client holds; blocks are numbered views, classes are in the order of `SHAPES`. ``"4 views"`` needs
        ``n_views=4``. So many solids of each shape as `per_class` and `test_per_class` say are made.
    seed : int
        Of the solids, of the noise and of the dealing.
    size : int
        Side of the images in pixels.
    n_views : int
        Cameras, evenly about the vertical axis: the blocks ``view 0`` … .
    noise : float
        Standard deviation of the noise of a pixel, where the background is −1 and the brightest possible is 1.
    **fields
        Fields of the partition to change, such as ``per_class=20``.

    Returns
    -------
    Federation
        Clients ``client-0`` …, whose blocks have shape (1, size, size), in −1 … 1; a view that a client lacks is empty.
        Every client is tested on all test solids by its own views; the federation's own test data have all views.

    Raises
    ------
    ValueError
        If an argument is out of range, or needs more memory than there is.
    """
    partition = gathered(partition, fields, blocks.BlockPartition)
    checks.seed(seed)
    per_class = checks.integer("per_class", partition.per_class, 1)
    test_per_class = checks.integer("test_per_class", partition.test_per_class, 1)
    checks.integer("size", size, 4, MOST_PIXELS)
    checks.number("noise", noise, 0, 10)
    n_views = len(azimuths(n_views))
    sizes = {"per_class": per_class, "test_per_class": test_per_class, "size": size, "n_views": n_views}
    # all views of all solids, what clients hold of them, and room to draw
    checks.memory(3 * 4 * len(SHAPES) * (per_class + test_per_class) * n_views * size**2, **sizes)
    partition.holdings(n_views, len(SHAPES))  # before anything is drawn

    def part(name: str, n: int) -> tuple[dict[str, torch.Tensor], Indices]:
        images = _drawn(seed, name, n, size, n_views, float(noise))
        x = {f"view {k}": torch.tensor(images[:, k, None], dtype=torch.float32) for k in range(n_views)}
        return x, np.repeat(np.arange(len(SHAPES)), n)

    info = {
        "settings": {**sizes, "noise": float(noise)},
        "source": "drawn: solids seen from all around, our own design in the place of ModelNet40's views",
        "class_names": list(SHAPES),
        "simulated": True,
    }
    rest = replace(partition, per_class=None, test_per_class=None)
    data = *part("train", per_class), *part("test", test_per_class)
    return blocks.federate(*data, rest, seed, n_classes=len(SHAPES), name="solids.views", info=info)


@lru_cache(maxsize=4)
def _drawn(seed: int, part: str, n: int, size: int, n_views: int, noise: float) -> Images:
    """So many solids of each shape, one shape after the other: (12 n, n_views, size, size), not to be written to.

    The first solids are the same however many there are.
    """
    found = []
    for shape in SHAPES:
        solids, pixels = (
            numpy_stream(seed, SERVER, 0, f"solids.views:{part}:{shape}:{what}") for what in ("solids", "noise")
        )
        u = solids.random((n, N_SIZES + 2))
        turn, tilt = (limit * (2 * column - 1) for limit, column in zip((TURN, TILT), u.T[-2:], strict=True))
        images = render(shape, u[:, :N_SIZES], turn, azimuths(n_views), tilt=tilt, size=size)
        images += np.float32(noise) * pixels.standard_normal(images.shape, dtype=np.float32)
        found.append(np.clip(images, -1, 1, out=images))
    together = np.concatenate(found)
    together.flags.writeable = False
    return together
