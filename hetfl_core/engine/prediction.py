"""What models say of samples: of a stack of clients at once or, as an oracle, client by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hetfl_core.engine.stacks import Split
from hetfl_core.engine.training import stack_clients, stack_received
from hetfl_core.federation import Spec
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params
from hetfl_core.rng import stream

PREDICTED_NUMBERS = 2**26
"""Most numbers of noise, padding counted, with which a stack predicts at once (256 MiB in float32)."""


def prediction_noise(
    method: Method, spec: Spec, n: int, seed: int, round: int, split: str, dtype: torch.dtype
) -> Params:
    r"""Random numbers with which a client predicts the n samples of a split (`Method.prediction_noise` declares them).

    Their shapes are (n, \*shape), or shape where there is one draw for all. They come from the client's stream of the
    round, sample by sample, so that they depend neither on the engine nor on how many are predicted at once.
    """
    draws = method.of(spec).prediction_noise(spec)
    rng = stream(seed, spec.name, round, f"predict/{split}") if draws else torch.Generator()
    return {name: draw.sample((n,) if draw.per == "sample" else (), rng, dtype) for name, draw in draws.items()}


def lift(
    call: Callable[..., Tensor],
    clients: Sequence[Params],
    received: Sequence[Params],
    x: Any,
    noise: Sequence[Params] = (),
) -> Tensor:
    """Apply ``call(params, received, x, noise)`` to a stack of clients, no gradient: (K, n, …) → (K, n, …)."""
    shared, dims = stack_received(received)
    drawn = (stack_clients(noise),) if any(noise) else ()
    lifted = torch.func.vmap(call, in_dims=(0, dims if dims else None, 0, *[0 for _ in drawn]))
    with torch.no_grad():
        return lifted(stack_clients(clients), shared, x, *drawn)


def predict_each(
    call: Callable[..., Tensor],
    clients: Sequence[Params],
    received: Sequence[Params],
    specs: Sequence[Spec],
    data: Split,
    noise: Sequence[Params] = (),
) -> list[Tensor]:
    """Apply ``call`` to clients one after the other, in true shapes: the oracle of `lift`."""
    out = []
    with torch.no_grad():
        for i, spec in enumerate(specs):
            drawn = (noise[i],) if any(noise) else ()
            out.append(call(clients[i], received[i], data.client(i, spec.shapes)[0], *drawn))
    return out
