"""PyTorch's optimizers, by their functions: `torch.optim.adam.adam` and its kin.

Their classes are wrapped for PyTorch's compiler; the first that is made loads it, which takes longer than to load
PyTorch. What is computed is the same, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from hetfl_core.methods.base import WITH_MOMENTUM, Optimizer, Stage
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import has_prefix


@dataclass(frozen=True)
class Update:
    """A function of PyTorch's that takes one step.

    Parameters
    ----------
    function : callable
        The function.
    moments : tuple of str
        Its lists of tensors that begin with zeros, shaped as the parameters.
    options : dict of str to object
        The defaults of the class in `torch.optim`.
    counts : bool
        Whether it counts steps.
    fused : tuple of str
        Devices for which it has a fused kernel.
    kernel : callable, optional
        What the function comes to for that kernel and tensors of one type, with a fifth of the Python.
    """

    function: Callable[..., None]
    moments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True
    fused: tuple[str, ...] = ("cpu", "cuda")
    kernel: Callable[..., None] | None = None


def _adam(kernel: Callable[..., None], ps: Any, gs: Any, *, state_steps: Any, fused: bool, **rest: Any) -> None:
    torch._foreach_add_(state_steps, 1)
    kernel(ps, gs, state_steps=state_steps, **rest)


def _sgd(ps: Any, gs: Any, *, momentum_buffer_list: Any, momentum: float, fused: bool, **rest: Any) -> None:
    buffers = momentum_buffer_list if momentum else []
    torch._fused_sgd_(ps, gs, buffers, momentum=momentum, is_first_step=False, **rest)


_ADAM = {"max_exp_avg_sqs": [], "amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "maximize": False}
_SGD = {"dampening": 0.0, "nesterov": False, "maximize": False}
_RMSPROP = {"grad_avgs": [], "alpha": 0.99, "eps": 1e-8, "centered": False}

UPDATES: dict[Optimizer, Update] = {
    "adam": Update(adam, ("exp_avgs", "exp_avg_sqs"), _ADAM, kernel=partial(_adam, torch._fused_adam_)),
    "adamw": Update(adamw, ("exp_avgs", "exp_avg_sqs"), _ADAM, kernel=partial(_adam, torch._fused_adamw_)),
    "sgd": Update(sgd, (), _SGD, counts=False, kernel=_sgd),
    "rmsprop": Update(rmsprop, ("square_avgs",), _RMSPROP, fused=()),
    "adagrad": Update(adagrad, ("state_sums",), {"lr_decay": 0.0, "eps": 1e-10, "maximize": False}, fused=("cpu",)),
}


class Descent:
    """A fresh optimizer for named parameters, which are grouped by weight decay.

    Parameters
    ----------
    stage : Stage
        Its `optimizer`, `lr`, `momentum`, `weight_decay` and `clip`.
    params : dict of str to Tensor
        What is trained.
    stacked : bool
        Whether they have a client axis; PyTorch's fused kernels are then used, where there are any.
    """

    def __init__(self, stage: Stage, params: Tensors, stacked: bool) -> None:
        rule, self.clip, self.stacked = UPDATES[stage.optimizer], stage.clip, stacked
        self.update, self.options = rule.function, {**rule.options, "lr": stage.lr}
        device = next(iter(params.values())).device
        fused = stacked and device.type in rule.fused
        if rule.fused:
            self.options["fused"] = fused
        if fused and rule.kernel is not None and len({p.dtype for p in params.values()}) == 1:
            self.update = rule.kernel
        moments = rule.moments
        if stage.optimizer in WITH_MOMENTUM:
            self.options["momentum"] = stage.momentum
            moments = (*moments, "momentum_buffer_list") if stage.momentum else moments
        self.params = dict(params)
        groups: dict[float, list[int]] = {}
        for place, name in enumerate(params):
            groups.setdefault(decay(stage, name), []).append(place)
        self.groups: list[tuple[list[int], dict[str, Any]]] = []
        leaves = list(params.values())
        for wd, places in groups.items():
            states = {key: [torch.zeros_like(leaves[i]) for i in places] for key in moments}
            if stage.optimizer in WITH_MOMENTUM and not stage.momentum:
                states["momentum_buffer_list"] = [None for _ in places]  # type: ignore[misc]
            if rule.counts:
                where = device if fused else torch.device("cpu")
                states["state_steps"] = [torch.zeros((), dtype=torch.float32, device=where) for _ in places]
            self.groups.append((places, {**states, "weight_decay": wd}))

    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters, in place; `grads` is in their order, and clipped in place."""
        if self.clip is not None:
            clip_each(grads if self.stacked else [g.unsqueeze(0) for g in grads], self.clip)
        leaves = list(self.params.values())
        with torch.no_grad():
            for places, states in self.groups:
                self.update([leaves[i] for i in places], [grads[i] for i in places], **states, **self.options)

    def state(self) -> dict[str, Tensor]:
        """What it remembers, by ``<what>/<parameter>``, as the classes in `torch.optim` call it."""
        names = list(self.params)
        return {
            f"{key.removeprefix('state_').removesuffix('_list').removesuffix('s')}/{names[i]}": value
            for places, states in self.groups
            for key, values in states.items()
            if isinstance(values, list)
            for i, value in zip(places, values, strict=True)
            if value is not None
        }

    def restore(self, state: Tensors) -> None:
        """Go on with what another remembered; counts of steps are in single precision, as PyTorch has them."""
        own = self.state()
        for name, value in state.items():
            own[name].copy_(value)

    def narrow(self, k: int) -> Params:
        """Go on with the first k clients of the stack, and give their parameters: momentum must not move the others."""
        self.params = {name: p[:k] for name, p in self.params.items()}
        for _, states in self.groups:
            for key, values in states.items():
                if isinstance(values, list) and key != "state_steps":
                    states[key] = [v if v is None else v[:k] for v in values]
        return self.params


def filled(params: Tensors, grads: Sequence[Tensor | None]) -> list[Tensor]:
    """Gradients as an optimizer wants them: laid out in memory as the parameters are (fused kernels do not look).

    They are zero where the loss does not use a parameter, so that weight decay and momentum act on it all the same.
    Each has memory of its own, as clipping writes there: that of a + b would be one tensor for both.
    """
    found: list[Tensor] = []
    for p, g in zip(params.values(), grads, strict=True):
        if g is None:
            g = torch.zeros_like(p)
        own = g.stride() == p.stride() and all(g.data_ptr() != other.data_ptr() for other in found)
        found.append(g if own else torch.empty_like(p).copy_(g))
    return found


def decay(stage: Stage, name: str) -> float:
    """Weight decay that a stage gives one parameter."""
    if not isinstance(stage.weight_decay, Mapping):
        return stage.weight_decay
    matches = [p for p in stage.weight_decay if has_prefix(name, p)]
    return stage.weight_decay[max(matches, key=len)] if matches else 0.0


def clip_each(grads: Sequence[Tensor], limit: float) -> None:
    """Scale each client's gradient, over all its leaves together, to norm at most `limit`, in place.

    Norms are summed in float64, and what is scaled is scaled by some roundings less than limit / norm, so that the
    norm of what comes out is never above the limit.
    """
    norms = torch.stack([_squared_norm(g) for g in grads]).sum(0).sqrt()
    slack = 1 - 64 * max(torch.finfo(g.dtype).eps for g in grads)
    factor = torch.where(norms <= slack * limit, 1.0, slack * limit / norms.clamp(min=slack * limit))  # NaN stays
    for g in grads:
        g.mul_(factor.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1)))


def _squared_norm(g: Tensor) -> Tensor:
    """Squared norm of each client's leaf, in float64: shape (K, …) → (K,).

    Norms of its rows are taken in float32, which takes a tenth of the time and errs by some roundings of a row. (Where
    entries exceed some 1e18 the norm is infinite, and what is clipped by it zero.)
    """
    if g.dtype is torch.float32 and g.dim() > 2 and g.shape[-1] <= 4096:
        return torch.linalg.vector_norm(g, dim=-1).flatten(1).double().square().sum(1)
    return torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64).square()
