"""Operations of PyTorch as they are done: counted, or recorded and played back.

A `Tape` sees each operation below autograd and `vmap`, so what it recorded is played back without either.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

CANNOT = {torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape}
"""Marks of operations that are not the same each time: they draw, or the shapes of what they give depend on values."""

MASKS = (torch.bool, torch.uint8)
"""Types of tensors that say which rows to take, not where they are."""

_HERE = threading.local()


class Unrecordable(RuntimeError):
    """What is computed may depend on the values of tensors in a way that a record cannot repeat."""


class Tape(TorchDispatchMode):
    """Keeps each operation that is done in its context.

    Attributes
    ----------
    operations : list of tuple
        Of each: the function, its arguments, its keyword arguments, what it gave.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []
        self.whole = False  # within a function that is one operation

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to hide from PyTorch's compiler is to import it, which takes longer than to import PyTorch

    def __enter__(self) -> Tape:
        _HERE.tape = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        _HERE.tape = None
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if self.whole:
            return func(*args, **(kwargs or {}))
        return self.do(func, args, kwargs or {})

    def do(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do an operation and keep it."""
        result = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, result))
        return result

    def flops(self) -> dict[str, int]:
        """Floating-point operations of the products and convolutions among the operations, by their names."""
        counts: dict[str, int] = {}
        for func, args, kwargs, result in self.operations:
            name = getattr(func, "overloadpacket", None)
            if name in flop_registry:
                counts[str(name)] = counts.get(str(name), 0) + flop_registry[name](*args, **kwargs, out_val=result)
        return counts

    def script(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
        """The operations as a function of tensors like the inputs, which gives what the outputs are.

        Raises
        ------
        Unrecordable
            Where one of them gives a number, draws, or gives tensors whose shapes depend on values.
        """
        graph, constants = fx.Graph(), dict[str, Tensor]()
        nodes: dict[int, fx.Node] = {id(t): graph.placeholder(f"x{i}") for i, t in enumerate(inputs)}

        there, made = {memory(t) for t in inputs}, set[int]()

        def node(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return [node(v) for v in value] if isinstance(value, (list, tuple)) else value
            if id(value) not in nodes:  # it was there before
                constants[f"c{len(constants)}"] = value
                there.add(memory(value))
                nodes[id(value)] = graph.get_attr(f"c{len(constants) - 1}")
            return nodes[id(value)]

        for func, args, kwargs, result in self.operations:
            several = isinstance(result, (list, tuple))
            found = list(result) if several else [result]
            operands, options = tuple(node(args)), {name: node(value) for name, value in kwargs.items()}
            known = not mutates(func) and any(id(t) in nodes for t in found if t is not None)
            if known or depends_on_values(func, args, found) or (mutates(func) and memory(args[0]) not in made):
                raise Unrecordable(
                    f"{func} cannot be recorded: it draws, or what it gives is not new or depends on values"
                )
            made |= {memory(t) for t in found if t is not None} - there
            if hasattr(func, "_schema") and not mutates(func) and is_same(result, args):
                nodes[id(result)] = operands[0]
                continue
            called = graph.call_function(func, operands, options)
            for i, tensor in enumerate(found):
                if id(tensor) not in nodes:  # else it was written into
                    nodes[id(tensor)] = graph.call_function(operator.getitem, (called, i)) if several else called
        graph.output([node(t) for t in outputs])
        graph.eliminate_dead_code(lambda one: one.op in {"placeholder", "output"} or mutates(one.target))
        return fx.GraphModule(constants, graph).forward


def depends_on_values(func: Any, args: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether an operation draws, gives something other than tensors, or tensors whose shapes depend on values."""
    tags = set(getattr(func, "tags", ()))
    if func is torch.ops.aten.index.Tensor and not any(i is not None and i.dtype in MASKS for i in args[1]):
        tags.discard(torch.Tag.dynamic_output_shape)
    return not CANNOT.isdisjoint(tags) or not all(t is None or isinstance(t, Tensor) for t in found)


def memory(t: Tensor) -> int:
    """Where the memory of a tensor, or of what it is a view of, begins."""
    return t.untyped_storage().data_ptr()


def mutates(func: Any) -> bool:
    """Whether an operation writes into its arguments."""
    return hasattr(func, "_schema") and bool(func._schema.is_mutable)


def is_same(result: Any, args: Sequence[Any]) -> bool:
    """Whether an operation gave its first argument again: the same memory, seen in the same way."""
    if not (args and isinstance(result, Tensor) and isinstance(args[0], Tensor)):
        return False
    seen = [(t.data_ptr(), t.dtype, t.shape, t.stride(), t.is_conj(), t.is_neg()) for t in (result, args[0])]
    return seen[0] == seen[1]


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function of tensors recorded as one operation, whatever it does with their values.

    It draws nothing, writes into nothing, and gives new tensors.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        tape = getattr(_HERE, "tape", None)
        if tape is None or tape.whole:
            return function(*args)
        tape.whole = True
        try:
            return tape.do(function, args, {})
        finally:
            tape.whole = False

    return call
