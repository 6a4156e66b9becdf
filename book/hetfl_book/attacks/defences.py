r"""What a client can do: clip each part of its upload, and add Gaussian noise; for any method, at a stated ε.

*Mechanism.* The tensors of an upload are put in groups g by the beginning of their names. What a group moved from what
was received (from zero, where nothing of that name and shape was) is clipped to Euclidean norm :math:`R_g` and each
entry gets noise :math:`N(0, s_g^2)`, :math:`s_g = 2 R_g \sqrt G z` with G groups. Divided by the :math:`R_g`, all of it
together is one Gaussian mechanism of sensitivity :math:`2 \sqrt G` and noise multiplier z, so
`hetfl_core.methods.privacy.epsilon` has its ε.

*What is protected:* a client's whole upload. Neighbours are any two data sets of that client (`privacy` says more).
*What is not:* what the server is told besides (`watching.Seen.told`): Fed-CMA's counts of classes, sample-weighted
means; how long training takes; which blocks a client has; and in a deployment each client's accuracy and loss terms.
Here the noise follows from the seed, which the attacker is not given; deployed clients draw it with secrets of theirs.

*Sums.* Where the server sees nothing but the sum of m uploads (secure aggregation, [1]_), clients can share the noise:
each adds :math:`s_g / \sqrt m`, and the sum has noise multiplier z with respect to any one of them, as long as all m do
add theirs ([2]_; there with rounding to a finite field, which is left out here).

References
----------
.. [1] K. Bonawitz et al. Practical secure aggregation for privacy-preserving machine learning. CCS 2017.
.. [2] P. Kairouz, Z. Liu, T. Steinke. The distributed discrete Gaussian mechanism for federated learning with secure
   aggregation. ICML 2021.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.engine.sides import participants
from hetfl_core.errors import WrongValue
from hetfl_core.methods import FLIC, Method, PFedHN
from hetfl_core.methods.privacy import Privacy, epsilon
from hetfl_core.networks import Params
from hetfl_core.networks.layers import has_prefix
from hetfl_core.rng import Stream
from hetfl_core.settings import Checked


@dataclass(frozen=True)
class Guard(Checked):
    """Clip and noise of every upload.

    Attributes
    ----------
    clip : dict of str to float
        R_g, the largest norm of the move of each group, by the beginning of its tensors' names (``"beta"``, or
        ``"joint.precision"``); the longest that fits counts, ``""`` fits all.
    noise_multiplier : float
        z; 0 for clipping alone, which promises nothing.
    shared : int
        m, clients whose uploads are summed before the server sees them, which share the noise; 1 for none.
    at_least : dict of str to float
        Floors of what is sent, after the noise, by beginnings of names: a precision is not negative. What is done to
        noisy numbers costs no privacy.
    """

    clip: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    noise_multiplier: float = 0.0
    shared: int = 1
    at_least: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clip:
            raise WrongValue("clip must have a group, such as {'': 1.0}, got {}")
        for name, limit in self.clip.items():
            checks.number(f"clip[{name!r}]", limit, above=0)
        checks.number("noise_multiplier", self.noise_multiplier, 0)
        checks.integer("shared", self.shared, 1)

    def group(self, name: str) -> str:
        """The group of a tensor.

        Raises
        ------
        ValueError
            Where no group fits: it would leave unprotected.
        """
        fitting = [prefix for prefix in self.clip if not prefix or has_prefix(name, prefix)]
        if not fitting:
            raise WrongValue(
                f"clip must have a group for every tensor that is sent; {name!r} fits none of {list(self.clip)}"
            )
        return max(fitting, key=len)

    def deviation(self, group: str) -> float:
        """Standard deviation of the noise that a client adds to each entry of a group."""
        whole = 2 * self.clip[group] * math.sqrt(len(self.clip)) * self.noise_multiplier
        return whole / math.sqrt(self.shared)

    def protect(self, sent: Params, received: Mapping[str, Tensor], rng: Stream) -> Params:
        """Each group's move clipped and noised, by `Privacy`.

        Parameters
        ----------
        sent, received : dict of str to Tensor
            The upload; and what was received.
        rng : torch.Generator or hetfl_core.rng.SecretStream
            The client's own: what `Method.protect` is given.
        """
        out: Params = {}
        names: dict[str, list[str]] = {}
        for name in sent:
            names.setdefault(self.group(name), []).append(name)
        for group in self.clip:
            base = {name: _base(sent[name], received.get(name)) for name in names.get(group, ())}
            privacy = Privacy(self.clip[group], self.deviation(group) / (2 * self.clip[group]))
            out |= privacy.protect({name: sent[name] for name in base}, base, rng)
        for prefix, floor in self.at_least.items():
            out |= {name: p.clamp(min=floor) for name, p in out.items() if has_prefix(name, prefix)}
        return {name: out[name] for name in sent}

    def epsilon(self, delta: float, releases: int) -> float:
        """ε of a client that sends so many uploads: to the server, or, with `shared`, to who sees full sums alone."""
        return epsilon(self.noise_multiplier, delta, releases)


def _base(p: Tensor, received: Tensor | None) -> Tensor:
    return received if received is not None and received.shape == p.shape else torch.zeros_like(p)


def guarded(method: Method, guard: Guard) -> Method:
    """The method with every upload clipped and noised as `guard` says.

    Parameters
    ----------
    method : Method
        With equal weights, as the number of samples would otherwise leave the client too; without a survey, whose
        answers nothing protects (Fed-CMA: ``server_init="zeros"``).
    guard : Guard

    Returns
    -------
    Method
        A dataclass with the method's fields and ``guard``.

    Raises
    ------
    ValueError
        For a method of which ε would not tell all.
    """
    checks.instance("method", method, Method)
    checks.instance("guard", guard, Guard)
    own = {f.name: getattr(method, f.name) for f in fields(method)}
    family: Any = _family(type(method))  # type: ignore[arg-type]
    return family(**own, guard=guard)


@functools.cache
def _family(family: type[Method]) -> type[Method]:
    @dataclass(frozen=True)
    class Guarded(family):  # type: ignore[valid-type, misc]
        """With its uploads clipped and noised."""

        guard: Guard = field(default_factory=Guard)

        @classmethod
        def variants(cls) -> list[Method]:
            """None: it is made when it is asked for, and stands in no catalogue."""
            return []

        def __post_init__(self) -> None:
            if self.weighting != "uniform":
                raise WrongValue(
                    f"method must have weighting='uniform': {self.weighting!r} tells how many samples there are"
                )
            if self.surveys(0) or self.surveys(1):
                raise WrongValue(
                    f"method must ask nothing before a round: answers to {self.name}'s survey are not protected"
                )
            if isinstance(self, FLIC) and self.privacy is not None:
                raise WrongValue("method must not have noise of its own, got FLIC with privacy")
            if isinstance(self, PFedHN):
                raise WrongValue("method must send models or features; pFedHN's differences have no guard yet")

        def protect(self, upload: Params, received: Params, rng: Stream) -> Params:
            """Clip and noise."""
            return self.guard.protect(super().protect(upload, received, rng), received, rng)

    Guarded.__name__ = Guarded.__qualname__ = f"Guarded{family.__name__}"
    return Guarded


def releases(names: Sequence[str], participation: float, seed: int, rounds: int) -> int:
    """The most rounds that any client takes part in: the schedule is drawn by the seed alone, so it is no secret."""
    each = [i for t in range(rounds) for i in participants(names, participation, seed, t)]
    return max((each.count(i) for i in set(each)), default=0)
