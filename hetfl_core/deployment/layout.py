"""How uploads are laid out as vectors, so that weighted means can be read off a sum that hides single ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hetfl_core.networks import Params

LEVELS = 2**22
"""Values to which an entry is rounded, at random to one of its two neighbours."""

MASKED = 8
"""Bytes of a masked entry on the wire."""


@dataclass(frozen=True)
class Layout:
    """Where each tensor stands in the vector: all of one, then the next, and behind them a weight for each.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        Of all tensors that some client sends.
    share : float
        The client's weight among the participants, in (0, 1].
    limit : float
        Entries of the vector must lie within ± this.
    """

    shapes: Mapping[str, tuple[int, ...]]
    share: float
    limit: float = 8.0

    @property
    def length(self) -> int:
        """Entries of the vector."""
        return sum(math.prod(shape) for shape in self.shapes.values()) + len(self.shapes)

    def vector(self, upload: Params) -> np.ndarray:
        """An upload times the client's share; zeros for what it does not send, shape (length,).

        Raises
        ------
        ValueError
            For tensors of other names or shapes, and numbers that are not finite or beyond the limit, which the server
            could not tell.
        """
        if more := sorted(upload.keys() - self.shapes.keys()):
            raise ValueError(f"its upload has {more[0]!r}, which the server does not expect")
        parts, weights = [], []
        for name, shape in self.shapes.items():
            sent = upload.get(name)
            if sent is not None and tuple(sent.shape) != tuple(shape):
                raise ValueError(f"its {name!r} must have shape {tuple(shape)}, got {tuple(sent.shape)}")
            if sent is not None and not bool(sent.isfinite().all()):
                raise ValueError(f"its {name!r} holds numbers that are NaN or infinite")
            flat = np.zeros(math.prod(shape)) if sent is None else sent.double().cpu().numpy().ravel()
            if (most := float(np.abs(flat).max(initial=0.0)) * self.share) > self.limit:
                raise ValueError(
                    f"its {name!r} times its share reaches {most:.3g}, beyond the clipping range of ± {self.limit:g}: "
                    "set a larger 'clipping-range'"
                )
            parts.append(self.share * flat)
            weights.append(0.0 if sent is None else self.share)
        return np.concatenate([*parts, np.array(weights)])

    def means(self, total: np.ndarray, like: Mapping[str, torch.dtype]) -> Params:
        """The weighted means over those that sent a tensor, from the sum of the vectors, shape (length,)."""
        means, begin, first = {}, 0, self.length - len(self.shapes)
        for place, (name, shape) in enumerate(self.shapes.items()):
            end = begin + math.prod(shape)
            weight = float(total[first + place])
            if weight > self.share * 1e-3:
                means[name] = torch.as_tensor(total[begin:end] / weight).reshape(tuple(shape)).to(like[name])
            begin = end
        return means

    def packed(self) -> str:
        """As text."""
        return json.dumps(
            {"shapes": {n: list(s) for n, s in self.shapes.items()}, "share": self.share, "limit": self.limit}
        )

    @classmethod
    def unpacked(cls, text: str) -> Layout:
        """What `packed` made."""
        told = json.loads(text)
        return cls(
            {name: tuple(shape) for name, shape in told["shapes"].items()}, float(told["share"]), float(told["limit"])
        )


def step(clipping_range: float) -> float:
    """The largest error of one client's entry by rounding."""
    return 2 * clipping_range / LEVELS
