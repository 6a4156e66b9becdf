"""Operations of PyTorch as they are done: counted, or recorded and played back.

A `Tape` sees each operation below autograd and `vmap`, so what it recorded is played back without either.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

CANNOT = {torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape}
"""Marks of operations that are not the same each time: they draw, or the shapes of what they give depend on values."""

MASKS = (torch.bool, torch.uint8)
"""Types of tensors that say which rows to take, not where they are."""

FILLED = {
    *("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"),
    *("ones", "zeros", "full", "eye", "scalar_tensor"),
}
"""Operations that look at no value of a tensor."""

COPIES = {torch.ops.aten.mul.Scalar, torch.ops.aten.pow.Tensor_Scalar}
"""Operations that give their first argument where the second is 1."""

SMALL = 2**16
"""Most numbers of a tensor that a record keeps instead of making it anew at each step."""

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
        written = {memory(args[0]) for func, args, _, _ in self.operations if mutates(func)}
        code = _Code(inputs, outputs, written)
        for func, args, kwargs, result in self.operations:
            code.add(func, args, kwargs, result)
        return code.compiled(outputs)


class _Code:
    """Python for the operations of a tape, line by line."""

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], written: set[int]) -> None:
        self.parameters = [f"x{i}" for i in range(len(inputs))]
        self.names = {id(t): name for t, name in zip(inputs, self.parameters, strict=True)}
        self.held: dict[str, Any] = {}  # functions, constants and settings
        self.lines: list[tuple[list[str], str, set[str], bool]] = []  # what it makes, how, from what, and if it writes
        self.there, self.made = {memory(t) for t in inputs}, set[int]()
        self.written, self.returned = written, {memory(t) for t in outputs}
        self.sources: dict[int, int] = {}  # of memory that is left out, the memory in whose place it was
        self.fixed: set[int] = set()  # what is the same each time

    def hold(self, value: Any) -> str:
        """A name for what is there before the first line."""
        name = f"c{len(self.held)}"
        self.held[name] = value
        return name

    def text(self, value: Any, used: set[str]) -> str:
        """An argument, as the source has it; the names of tensors are added to `used`."""
        if isinstance(value, Tensor):
            if id(value) not in self.names:  # it was there before
                self.there.add(memory(value))
                self.names[id(value)] = self.hold(value)
            used.add(self.names[id(value)])
            return self.names[id(value)]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.text(v, used) for v in value)}]"
        return repr(value) if isinstance(value, (int, str, type(None))) else self.hold(value)

    def add(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Write an operation down, unless what it gives is there already."""
        found = list(result) if isinstance(result, (list, tuple)) else [result]
        used, writes = set[str](), mutates(func)
        operands = [self.text(v, used) for v in args] + [f"{k}={self.text(v, used)}" for k, v in kwargs.items()]
        known = not writes and any(id(t) in self.names for t in found if t is not None)
        if known or depends_on_values(func, args, found) or (writes and memory(args[0]) not in self.made):
            raise Unrecordable(f"{func} cannot be recorded: it draws, or what it gives is not new or depends on values")
        self.made |= {memory(t) for t in found if t is not None} - self.there
        if hasattr(func, "_schema") and not writes and (is_same(result, args) or self.is_copy(func, args, result)):
            self.names[id(result)] = operands[0]
            self.fixed |= {id(result)} if id(args[0]) in self.fixed else set()
        elif not writes and self.is_fixed(func, args, result):
            self.fixed.add(id(result))
            self.there.add(memory(result))
            self.made.discard(memory(result))
            self.names[id(result)] = self.hold(result)
        else:
            new = ["_" if t is None else self.names.setdefault(id(t), f"v{len(self.names)}") for t in found]
            makes = ", ".join(new) + "," * isinstance(result, (list, tuple))
            function = self.hold(getattr(func, "_op", func))  # without the Python around it
            self.lines.append((new, f"{makes} = {function}({', '.join(operands)})", used, writes))

    def is_copy(self, func: Any, args: Sequence[Any], result: Any) -> bool:
        """Whether an operation gave its first argument times 1, or to the power of 1: the argument itself will do."""
        if func not in COPIES or args[1] != 1 or result.dtype is not args[0].dtype:
            return False
        own, source = memory(result), self.sources.get(memory(args[0]), memory(args[0]))
        if result.stride() != args[0].stride() or not self.written.isdisjoint({own, source}):
            return False
        if own in self.returned:  # then it must be new each time, and no other output's
            if source not in self.made or source in self.returned:
                return False
            self.returned.add(source)
        self.sources[own] = source
        return True

    def is_fixed(self, func: Any, args: Sequence[Any], result: Any) -> bool:
        """Whether an operation gives one small tensor that depends on shapes alone, and is only read."""
        if not isinstance(result, Tensor) or result.numel() > SMALL or memory(result) in self.written | self.returned:
            return False
        before = [id(t) for t in args if isinstance(t, Tensor)]
        filled = str(getattr(func, "overloadpacket", "")).removeprefix("aten.") in FILLED
        return filled or (bool(before) and self.fixed.issuperset(before) and hasattr(func, "_schema"))

    def compiled(self, outputs: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
        """The function, without the lines that nobody needs; what is needed no more is let go of."""
        live: set[str] = set()
        source = [f"    return {self.text(outputs, live)}"]
        for new, line, used, writes in reversed(self.lines):
            if writes or live.intersection(new):
                done = sorted(name for name in used.union(new) - live if name[0] == "v")
                source.append(f"    {line}" + (f"; del {', '.join(done)}" if done else ""))
                live = live.difference(new) | used
        code = "\n".join([f"def play({', '.join(self.parameters)}):", *reversed(source)])
        exec(compile(code, "<a recorded step>", "exec"), self.held)
        return self.held["play"]


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
