"""Gradient steps of a server, by PyTorch's optimizers, whose state lives among the server's tensors.

A server that trains something of its own, such as a generator, needs what its optimizer remembers in the next round,
and after an interruption. `descend` keeps it under ``optimizer.<what>/<parameter>``: a name that `without_state` leaves
out of what is sent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hetfl_core.errors import WrongValue
from hetfl_core.methods.base import Stage, pick
from hetfl_core.methods.descent import Descent, filled
from hetfl_core.networks import Params

PREFIX = "optimizer."
"""What the names of an optimizer's state begin with."""


def without_state(server: Params) -> Params:
    """The server's tensors without those that only its optimizer needs."""
    return {name: p for name, p in server.items() if not name.startswith(PREFIX)}


def descend(
    server: Params, objective: Callable[[Params, int], Tensor], stage: Stage, *, clip: float | None = None
) -> Params:
    """Take gradient steps on some of the server's tensors.

    Parameters
    ----------
    server : dict of str to Tensor
        With the optimizer's state, once it has one.
    objective : callable
        ``objective(tensors, step)``, the loss, given all of the server's tensors, without the optimizer's.
    stage : Stage
        What is moved, by which optimizer, and how many steps.
    clip : float, optional
        Largest norm of the gradient.

    Returns
    -------
    dict of str to Tensor
        All tensors, and the optimizer's state. What came in is not written to.

    Raises
    ------
    ValueError
        If the stage trains what the server does not hold.
    """
    held = without_state(server)
    if missing := [prefix for prefix in stage.train if not pick(held, (prefix,))]:
        raise WrongValue(f"train must name tensors of the server, but it has no {missing[0]!r}")
    leaves = {name: p.detach().clone() for name, p in pick(held, stage.train).items()}
    stepper = Descent(stage, leaves, stacked=False)
    stepper.restore({name.removeprefix(PREFIX): p for name, p in server.items() if name.startswith(PREFIX)})
    with torch.enable_grad():
        for p in leaves.values():
            p.requires_grad_()
        for step in range(stage.steps or 0):
            loss = objective({**held, **leaves}, step)
            grads = filled(leaves, torch.autograd.grad(loss, list(leaves.values()), allow_unused=True))
            if clip is not None:
                for p, g in zip(leaves.values(), grads, strict=True):
                    p.grad = g
                torch.nn.utils.clip_grad_norm_(list(leaves.values()), clip)
            stepper.step(grads)
    moved = {name: p.detach() for name, p in leaves.items()}
    return {**server, **moved, **{f"{PREFIX}{name}": p for name, p in stepper.state().items()}}
