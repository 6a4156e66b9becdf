"""Gradient steps of a server, by PyTorch's optimizers, whose state lives among the server's tensors.

A server that trains something of its own, such as a generator, needs what its optimizer remembers in the next round,
and after an interruption. `descend` keeps it under ``optimizer.<what>/<parameter>``: a name that `without_state` leaves
out of what is sent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hetfl_core.networks import Params, Tensors

PREFIX = "optimizer."
"""What the names of an optimizer's state begin with."""


def without_state(server: Params) -> Params:
    """The server's tensors without those that only its optimizer needs."""
    return {name: p for name, p in server.items() if not name.startswith(PREFIX)}


def descend(
    server: Params,
    trained: tuple[str, ...],
    objective: Callable[[Params, int], Tensor],
    steps: int,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    *,
    clip: float | None = None,
) -> Params:
    """Take gradient steps on some of the server's tensors.

    Parameters
    ----------
    server : dict of str to Tensor
        With the optimizer's state, once it has one.
    trained : tuple of str
        Names of the tensors that are moved; none other is.
    objective : callable
        ``objective(tensors, step)``, the loss, given all of the server's tensors, without the optimizer's.
    steps : int
        How many; 0 changes nothing.
    optimizer : callable
        Makes an optimizer of these tensors, such as ``lambda p: torch.optim.Adam(p, lr=1e-3)``.
    clip : float, optional
        Largest norm of the gradient.

    Returns
    -------
    dict of str to Tensor
        All tensors, and the optimizer's state. What came in is not written to.

    Raises
    ------
    ValueError
        If `trained` names something that the server does not hold.
    """
    if missing := sorted(set(trained) - server.keys()):
        raise ValueError(f"trained must be tensors of the server, but it has no {missing[0]!r}")
    leaves = {name: server[name].detach().clone() for name in trained}
    with torch.enable_grad():
        for p in leaves.values():
            p.requires_grad_()
        stepper = optimizer(list(leaves.values()))
        for name, p in leaves.items():
            stepper.state[p] = _state_of(server, name)
        fixed = {name: p for name, p in without_state(server).items() if name not in leaves}
        for step in range(steps):
            stepper.zero_grad()
            objective({**fixed, **leaves}, step).backward()  # type: ignore[no-untyped-call]
            for p in leaves.values():  # what a step does not use has a gradient of zero, and its momentum goes on
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(list(leaves.values()), clip)
            stepper.step()
    new = {**server, **{name: p.detach() for name, p in leaves.items()}}
    for name, p in leaves.items():
        for key, value in stepper.state[p].items():
            new[f"{PREFIX}{key}/{name}"] = value.detach() if isinstance(value, Tensor) else p.new_tensor(value)
    return new


def _state_of(server: Tensors, name: str) -> dict[str, Tensor]:
    """What the optimizer remembers of one parameter. Counts of steps are in single precision, as PyTorch has them."""
    found = {}
    for stored, value in server.items():
        key, _, parameter = stored.removeprefix(PREFIX).partition("/")
        if stored.startswith(PREFIX) and parameter == name:
            found[key] = value.detach().clone().to(torch.float32) if key == "step" else value.detach().clone()
    return found
