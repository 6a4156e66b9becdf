"""Pictures of solids that are unions of convex pieces: where a ray meets such a piece has a closed form.

Lengths are in the unit of the solids, angles in radians. The z axis points up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks

Numbers = NDArray[np.float64]
Images = NDArray[np.float32]

ELEVATION = np.pi / 6
"""How high above the horizon all cameras stand."""
HALF_FRAME = 1.1
"""Half the side of what a camera sees."""
LIGHT = np.array([-0.5, 0.5, 0.7]) / np.linalg.norm([-0.5, 0.5, 0.7])
"""Where light comes from, as the camera sees it: from the left, from above and from behind the camera."""
BACKGROUND, DARKEST = -1.0, -0.6
"""Pixels beside the solid, and those of a bright solid where no light falls; 1 is where it falls straight."""
ROUND = 24
"""Sides of what is round about an axis."""
MOST_PIXELS = 256
"""Largest side of an image."""
MOST_VIEWS = 360
FAR = np.float32(np.inf)


class Piece(NamedTuple):
    """Of each of n solids the points p with normals · p ≤ offsets.

    Attributes
    ----------
    normals : ndarray, shape (n, k, 3)
        Unit vectors that point outwards.
    offsets : ndarray, shape (n, k)
    """

    normals: Numbers
    offsets: Numbers


class Ball(NamedTuple):
    """Of each of n solids an ellipsoid, its axes along x, y and z.

    Attributes
    ----------
    centre, radii : ndarray, shape (n, 3)
    """

    centre: Numbers
    radii: Numbers


def rows(*columns: Any) -> Numbers:
    """Columns, each a number or an array of n, side by side."""
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64)


def cuboid(x: tuple[Any, Any], y: tuple[Any, Any], z: tuple[Any, Any]) -> Piece:
    """What lies between two ends on each axis."""
    offsets = rows(*(-end[0] for end in (x, y, z)), *(end[1] for end in (x, y, z)))
    return Piece(np.broadcast_to(np.concatenate([-np.eye(3), np.eye(3)]), (*offsets.shape, 3)), offsets)


def upright(base: Any, top: Any, half: Any, sides: int = ROUND) -> Piece:
    """What a regular polygon fills that rises from −half to half, with these inner radii there."""
    base, top, half = np.broadcast_arrays(base, top, half)
    slope = (base - top) / (2 * half)
    length = np.sqrt(1 + slope**2)
    walls = [rows(np.cos(a) / length, np.sin(a) / length, slope / length) for a in azimuths(sides)]
    ends = [np.broadcast_to([0.0, 0.0, sign], walls[0].shape) for sign in (-1, 1)]
    return Piece(np.stack([*walls, *ends], axis=-2), rows(*[(base + top) / 2 / length] * sides, half, half))


def azimuths(n_views: int) -> Numbers:
    """Where so many cameras stand about the vertical axis: evenly, counter-clockwise from above, the first at +x.

    Returns
    -------
    ndarray, shape (n_views,)
        In radians.
    """
    return 2 * np.pi * np.arange(checks.integer("n_views", n_views, 1, MOST_VIEWS)) / n_views


def frames(turns: Numbers, tilts: Numbers) -> Numbers:
    """What takes points of a solid to (right, up, towards the camera).

    Parameters
    ----------
    turns : ndarray, shape (n, m)
        Of n solids about the vertical axis, as each of m cameras sees them.
    tilts : ndarray, shape (n,)
        About the solid's y axis, before that.

    Returns
    -------
    ndarray, shape (n, m, 3, 3)
    """
    c, s, tilt_c, tilt_s, zero, one = np.broadcast_arrays(
        np.cos(turns), np.sin(turns), np.cos(tilts)[:, None], np.sin(tilts)[:, None], 0.0, 1.0
    )
    turned = np.array([[c, -s, zero], [s, c, zero], [zero, zero, one]])
    tilted = np.array([[tilt_c, zero, tilt_s], [zero, one, zero], [-tilt_s, zero, tilt_c]])
    low, high = np.cos(ELEVATION), np.sin(ELEVATION)
    camera = np.array([[0.0, 1.0, 0.0], [-high, 0.0, low], [low, 0.0, high]])
    return np.einsum("ij,jknm,klnm->nmil", camera, turned, tilted)


def seen(pieces: Sequence[Piece | Ball], frames: Numbers, bright: Numbers, size: int) -> Images:
    """Unions of pieces as cameras see them along parallel rays; a pixel is the mean of four.

    Parameters
    ----------
    pieces : sequence of Piece or Ball, each of n solids
    frames : ndarray, shape (n, m, 3, 3)
        Of m cameras.
    bright : ndarray, shape (n,)
        Brightnesses in 0 … 1.
    size : int
        Side of the images in pixels.

    Returns
    -------
    ndarray of float32, shape (n, m, size, size)
        In −1 … 1.
    """
    middle = HALF_FRAME * ((np.arange(2 * size) + 0.5) / size - 1)
    right, up = middle[None, :], -middle[:, None]
    nearest = np.full((*frames.shape[:2], 2 * size, 2 * size), -FAR)
    light = np.zeros_like(nearest)
    for piece in pieces:
        near, lit = _ball(piece, frames, right, up) if isinstance(piece, Ball) else _piece(piece, frames, right, up)
        in_front = near > nearest
        np.copyto(nearest, near, where=in_front)
        np.copyto(light, lit, where=in_front)
    scale = bright[:, None, None, None].astype(np.float32)
    values = np.where(nearest > -FAR, scale * (DARKEST - BACKGROUND + (1 - DARKEST) * light), np.float32(0))
    return BACKGROUND + values.reshape(*frames.shape[:2], size, 2, size, 2).mean((3, 5))


def _piece(piece: Piece, frames: Numbers, right: Numbers, up: Numbers) -> tuple[Images, Images]:
    """How near to the camera rays meet a piece (−inf where they miss it), and how much light falls there.

    A plane with normal (a, b, c) is met at (offset − a · right − b · up) / c. Rays enter by it if c > 0, or else leave.
    """
    normals = np.einsum("nmij,nkj->knmi", frames, piece.normals)
    falls = np.maximum(normals @ LIGHT, 0).astype(np.float32)
    enter = np.full((*frames.shape[:2], up.size, right.size), FAR)
    leave, light = -enter, np.zeros_like(enter)
    for normal, offset, lit in zip(normals, piece.offsets.T, falls, strict=True):
        a, b, c = (normal[..., i, None, None] for i in range(3))
        c = np.where(np.abs(c) < 1e-9, 1e-9, c)
        across = ((offset[:, None, None, None] - a * right) / c).astype(np.float32)
        along = (-b * up / c).astype(np.float32)
        near = np.where(c > 0, across, FAR) + along
        closer = near < enter
        np.copyto(enter, near, where=closer)
        np.copyto(light, lit[..., None, None], where=closer)
        np.maximum(leave, np.where(c > 0, -FAR, across) + along, out=leave)
    return np.where(enter >= leave, enter, -FAR), light


def _ball(ball: Ball, frames: Numbers, right: Numbers, up: Numbers) -> tuple[Images, Images]:
    """As `_piece`: along the solid's own axes, in units of the radii, the ball is round and rays are straight still."""
    radii = ball.radii[:, None, None, None, :].astype(np.float32)
    centre = (ball.centre / ball.radii)[:, None, None, None, :]
    x, y, way = np.moveaxis(frames / ball.radii[:, None, None, :], 2, 0)[:, :, :, None, None, :]
    start = (x * right[..., None] + y * up[..., None] - centre).astype(np.float32)
    way = way.astype(np.float32)
    square, along = (way**2).sum(-1), (start * way).sum(-1)
    root = along**2 - square * ((start**2).sum(-1) - 1)
    near = (np.sqrt(np.maximum(root, 0)) - along) / square
    normal = (start + near[..., None] * way) / radii
    towards = np.einsum("nmij,i->nmj", frames, LIGHT)[:, :, None, None, :].astype(np.float32)
    light = np.maximum((normal * towards).sum(-1), 0) / np.sqrt((normal**2).sum(-1))
    return np.where(root >= 0, near, -FAR), light
