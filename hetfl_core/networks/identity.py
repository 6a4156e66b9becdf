"""What an object is, in words that a later process understands too: its class, what it holds, and its source code.

Methods and most networks are dataclasses, of which `hetfl_core.settings.plain` writes down the fields. What is said
here of everything else, modules of PyTorch among it, never tells where an object lies in memory.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import linecache
import marshal
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy"}
"""Packages whose source does not count."""

VALUES = (type(None), bool, int, float, complex, str, bytes, Tensor, np.ndarray, np.generic, torch.dtype, torch.device)
OF_ANY_MODULE, HANDLE = frozenset(vars(nn.Module())), torch.utils.hooks.RemovableHandle


def short_digest(text: str) -> str:
    """Twelve characters that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


# --- what it holds ----------------------------------------------------------------------------------------------------


def described(x: Any, within: tuple[int, ...] = ()) -> Any:
    """An object in plain Python: its ``repr`` where it has one of its own, else its class and what it holds.

    Of tensors and modules there are digests. `within` has the ``id`` of each object around it, for what holds itself.
    """
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, Tensor | np.ndarray):
        array = x.detach().cpu().flatten().view(torch.uint8).numpy() if isinstance(x, Tensor) else x
        return {"shape": list(x.shape), "digest": short_digest(f"{x.dtype} {array.tobytes().hex()}")}
    if isinstance(x, type):
        return x.__qualname__
    if id(x) in within:
        return "…"
    if isinstance(x, nn.Module):
        return module_described(x, within=within)
    holds = isinstance(x, Mapping | list | tuple)
    if not holds and not ADDRESS.search(text := repr(x)):
        return text
    inside = {ADDRESS.sub("", str(name)): described(each, (*within, id(x))) for name, each in _contents(x).items()}
    if holds:
        return inside if isinstance(x, Mapping) else list(inside.values())
    if isinstance(x, FunctionType):
        inside["code"] = short_digest(f"{source(x) or marshal.dumps(x.__code__).hex()} {x.__code__.co_code.hex()}")
    named = {"function": x.__qualname__} if hasattr(x, "__qualname__") else {"class": type(x).__qualname__}
    return {**named, **inside}


def module_described(net: nn.Module, values: bool = False, within: tuple[int, ...] = ()) -> dict[str, str]:
    """A module of PyTorch: its class, its layers as it prints them, and a digest of all that it is made of.

    That is each layer's class with its source, its attributes and hooks, the shapes of what is trained, what is tied to
    what, and the values of buffers and of frozen parameters; with `values` also those of what is trained.
    """
    inside = functools.partial(described, within=(*within, id(net)))
    layers: list[Any] = []
    for name, layer in net.named_modules():
        makers = [maker for maker in type(layer).__mro__ if not _known(maker)]
        functions = [each for maker in makers for each in vars(maker).values() if isinstance(each, FunctionType)]
        layers.append([name, type(layer).__qualname__, [*map(source, makers), *map(inside, functions)]])
        layers.append(inside(_contents(layer)))
    first: dict[int, str] = {}
    for name, p in [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]:
        form = None if is_lazy(p) else inside(p) if values or not p.requires_grad else list(p.shape)
        layers.append([name, first.setdefault(id(p), name), form])
    return {
        "class": type(net).__qualname__,
        "layers": textwrap.shorten(ADDRESS.sub("", repr(net)), 300, placeholder=" …"),
        "digest": short_digest(json.dumps(layers, sort_keys=True)),
    }


def _contents(x: Any) -> Mapping[Any, Any]:
    """What belongs to an object: its items, or its attributes, or what a function refers to around it.

    Of a layer these are its hooks, and neither tensors nor other layers nor what is the same for any. A hook's handle
    has a number, which counts all hooks that the process has made so far.
    """
    if isinstance(x, Mapping):
        return x
    if isinstance(x, list | tuple | set | frozenset):
        return dict(enumerate(x))
    if isinstance(x, functools.partial):
        return {"func": x.func, "args": x.args, **x.keywords}
    if isinstance(x, MethodType):
        return {"self": x.__self__, "func": x.__func__}
    if isinstance(x, FunctionType):
        cells = {n: c.cell_contents for n, c in zip(x.__code__.co_freevars, x.__closure__ or ()) if c != CellType()}
        return {"defaults": x.__defaults__, **cells}
    own = {n: v for n, v in getattr(x, "__dict__", {}).items() if n not in OF_ANY_MODULE and not isinstance(v, HANDLE)}
    if isinstance(x, nn.Module):
        return {**own, "hooks": [*x._forward_pre_hooks.values(), *x._forward_hooks.values()]}
    return {field.name: getattr(x, field.name) for field in fields(x)} if is_dataclass(x) else own


# --- its source -------------------------------------------------------------------------------------------------------


def _makers(x: Any, known: tuple[str, ...], seen: dict[int, Any]) -> Iterator[Any]:
    """The classes and functions, but for known ones, that an object and all that belongs to it are made by.

    What was `seen` stays in memory, so that no other object gets its ``id``.
    """
    if isinstance(x, VALUES) or id(x) in seen or (isinstance(x, type | FunctionType) and _known(x, known)):
        return
    seen[id(x)] = x
    cls = x if isinstance(x, type) else type(x)
    yield from (maker for maker in ((x,) if isinstance(x, FunctionType) else cls.__mro__) if not _known(maker, known))
    inside = [] if isinstance(x, type) else list(_contents(x).values())
    if isinstance(x, nn.Module):
        inside += x.children()
    if isinstance(x, FunctionType):  # and what it calls by name
        named = [x.__globals__.get(name) for name in x.__code__.co_names]
        inside += [each for each in named if isinstance(each, FunctionType | type)]
    for each in inside:
        yield from _makers(each, known, seen)


def written(x: Any, known: tuple[str, ...] = ()) -> dict[Any, str | None]:
    """The source of the classes and functions that make an object; None for one where it cannot be had.

    Those of Python, PyTorch and NumPy do not count, nor those of modules whose names begin with one in `known`.
    """
    return {maker: source(maker) for maker in _makers(x, known, {})}


def _known(maker: Any, known: tuple[str, ...] = ()) -> bool:
    module = str(maker.__module__)
    return module.split(".")[0] in LIBRARIES or module.startswith(known or "\0")


@functools.cache
def source(maker: Any) -> str | None:
    """The source of a class or function without comments, docstrings and layout; None where there is none.

    Of a class that was typed into a notebook it is that of its functions, which is all that Python knows of it.
    """
    try:
        if getattr(maker, "__name__", "") == "<lambda>":
            return _lambda(maker)
        return bare_source(textwrap.dedent(inspect.getsource(maker)))
    except (OSError, TypeError, SyntaxError):
        own = vars(maker).values() if isinstance(maker, type) else ()
        return "\n".join(filter(None, (source(f) for f in own if isinstance(f, FunctionType)))) or None


def _lambda(function: FunctionType) -> str | None:
    """The lambdas that begin on a line, of which `function` is one."""
    code = function.__code__
    tree = ast.parse("".join(linecache.getlines(code.co_filename, function.__globals__)))
    found = [ast.dump(n) for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
    return "\n".join(found) or None


def bare_source(source: str) -> str:
    """Python source without comments, docstrings and layout: its syntax tree as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not _is_text(line)]
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
