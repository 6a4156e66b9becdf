"""What a step of a stack computes, live at first and then from a record of its operations.

A live step of a small network takes about a millisecond, nearly all of it PyTorch's dispatch: `vmap`, autograd and the
Python of the method. What it computes is the same sequence of operations each time, as long as the shapes are the same.
So once a step has come often, its operations are recorded (`hetfl_core.tape`) and played back from then on.

A record is used only after it has given the very bits of the live step three times, on different batches; the first
step of each further stage is live and compared, too. What cannot be recorded, or once differed, goes on live. So
results do not depend on when, or whether, a step is recorded, where a loss depends on its arguments and on settings
that stay as they are within a stage.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor

from hetfl_core.federation import map_blocks
from hetfl_core.methods.base import Batch
from hetfl_core.methods.descent import filled
from hetfl_core.networks import Params
from hetfl_core.tape import Tape

T = TypeVar("T")

OFTEN = 16
"""Steps of one shape after which it is recorded: recording takes as long as a hundred steps or two."""

TRIALS = 3
"""Steps at which a record must give the bits of the live step before it is believed, the recorded one among them."""

MOST_RECORDS = 128
"""Shapes of which something is remembered; the one that was used longest ago is forgotten first."""


class Step:
    """Gradients, loss terms and whatever else one step of a stack computes, from flat inputs to flat outputs.

    Parameters
    ----------
    loss, follow : callable
        The objective and, where running statistics follow the batches, `Method.follow`.
    dims : dict of str to (int or None)
        `vmap`'s axis of each received tensor.
    groups : sequence of collections of str
        What is trained, what is frozen, what was received, and the noise of a step: only their names count.
    like : dict or None
        The blocks of the inputs, by name; None for inputs in one piece.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        follow: Callable[..., Any] | None,
        dims: Mapping[str, int | None],
        groups: Sequence[Collection[str]],
        like: Any,
    ) -> None:
        self.names, self.blocks = [tuple(group) for group in groups], like
        in_dims = (0, dict(dims) or None, 0, 0)
        self.loss = torch.func.vmap(loss, in_dims)
        self.follow = None if follow is None else torch.func.vmap(follow, in_dims)
        blocks = tuple(like) if isinstance(like, Mapping) else None
        self.key = meaning(loss), meaning(follow), tuple(dims.items()), tuple(self.names), blocks
        self.found: list[tuple[str, ...]] = []
        self.unrecordable = False

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The gradients, then the values whose names `found` gives: loss terms, what is remembered, what follows."""
        rest = iter(inputs)
        trained, frozen, received, noise = ({name: next(rest) for name in group} for group in self.names)
        batch = Batch(map_blocks(lambda _: next(rest), self.blocks), next(rest), next(rest))
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in trained.items()}
            result = self.loss({**frozen, **leaves}, received, batch, noise)
            # clients' parameters are separate, so the sum of their losses has separate gradients
            grads = torch.autograd.grad(result.total.sum(), list(leaves.values()), allow_unused=True)
        followed: Params = {}
        if self.follow is not None:
            with torch.no_grad():
                followed = self.follow({**frozen, **trained}, received, batch, noise)
        named = [result.terms, result.remember, followed]
        self.found = [tuple(some) for some in named]
        return [*filled(trained, grads), *(value.detach() for some in named for value in some.values())]


class Program:
    """A `Step` for inputs of certain shapes.

    Attributes
    ----------
    found : list of tuple of str
        What the values of the last live step are called that are no gradients.
    """

    def __init__(self, step: Step) -> None:
        self.step, self.seen, self.agreed = step, 0, 0
        self.found: list[tuple[str, ...]] = []
        self.replay: Callable[..., list[Tensor]] | None = None

    @property
    def record(self) -> Callable[..., list[Tensor]] | None:
        """What plays the step back, where that may be used."""
        return self.replay if self.agreed >= TRIALS and not self.step.unrecordable else None

    def learn(self, inputs: Sequence[Tensor], live: list[Tensor]) -> None:
        """See what a live step gave; once it has come often, record it, and whether the record gives the same bits."""
        self.found = self.step.found
        self.seen += 1
        if self.seen <= OFTEN or self.step.unrecordable:
            return
        try:
            if self.replay is None:
                mine = [t.detach() for t in inputs]  # one object each: two that are one now need not be one next time
                with Tape() as tape:
                    found = self.step(*mine)
                self.replay = tape.script(mine, found)
            same = all(map(_equal, self.replay(*inputs), live))
        except Exception:  # what a method does that cannot be recorded is no fault
            same = False
        self.agreed += same
        self.step.unrecordable |= not same


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape and numbers; NaN is as good as NaN."""
    return a.shape == b.shape and a.dtype is b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


class Records:
    """The steps of one run, so that a stage goes on with what an earlier one recorded."""

    def __init__(self) -> None:
        self.steps: OrderedDict[Hashable, Step] = OrderedDict()
        self.programs: OrderedDict[Hashable, Program] = OrderedDict()

    def step(self, step: Step) -> Step:
        """The step of before that computes the same under the same names; this one, where there was none."""
        return _known(self.steps, step.key, lambda: step)

    def program(self, step: Step, inputs: Sequence[Tensor]) -> Program:
        """A step for inputs of the shapes of these."""
        key = (step, *((t.shape, t.stride(), t.dtype) for t in inputs))
        return _known(self.programs, key, lambda: Program(step))


def _known(table: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """What the table has under a key, made where it has nothing; of too many, the one unused for longest goes."""
    found = table.pop(key, None)
    table[key] = found = make() if found is None else found
    if len(table) > MOST_RECORDS:
        table.popitem(last=False)
    return found


@dataclass(frozen=True, eq=False)
class _Itself:
    """A key for what is like nothing but itself."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def meaning(hook: Any) -> Hashable:
    """A key for what a hook computes: equal for methods of equal settings, and for closures over equal values."""
    if isinstance(hook, MethodType):
        return hook.__func__, _value(hook.__self__)
    if isinstance(hook, FunctionType):
        cells = [_contents(cell) for cell in hook.__closure__ or ()]
        return hook.__code__, _value((*cells, *(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).items()))
    return _value(hook)


def _contents(cell: CellType) -> Any:
    """What a closure holds; the cell itself where it is empty still."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _value(thing: Any) -> Hashable:
    """A key for a setting: by its value where that is all there is to it, else it is like nothing but itself."""
    if isinstance(thing, tuple):
        return type(thing), tuple(map(_value, thing))
    if is_dataclass(thing) and not isinstance(thing, type):
        held = {f.name: getattr(thing, f.name) for f in fields(thing)} | getattr(thing, "__dict__", {})
        return type(thing), tuple((name, _value(value)) for name, value in held.items())
    return (type(thing), thing) if isinstance(thing, (str, int, float, type(None))) else _Itself(thing)
