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
OF_ANY_MODULE = frozenset(vars(nn.Module()))


def digest(text: str) -> str:
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
        return {"shape": list(x.shape), "digest": digest(f"{x.dtype} {array.tobytes().hex()}")}
    if id(x) in within:
        return "…"
    inside = functools.partial(described, within=(*within, id(x)))
    if isinstance(x, nn.Module):
        return module_described(x, within=within)
    if isinstance(x, Mapping):
        return {ADDRESS.sub("", str(key)): inside(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [inside(value) for value in x]
    if isinstance(x, type) or not ADDRESS.search(text := repr(x)):
        return x.__qualname__ if isinstance(x, type) else text
    name, unnamed = getattr(x, "__qualname__", None), [inside(value) for value in _unnamed(x)]
    known = {"function": name, "code": _code(x, (*within, id(x)))} if name else {"class": type(x).__qualname__}
    return {**known, **({"holds": unnamed} if unnamed else {}), **inside(_attributes(x))}


def module_described(net: nn.Module, values: bool = False, within: tuple[int, ...] = ()) -> dict[str, str]:
    """A module of PyTorch: its class, its layers as it prints them, and a digest of all that it is made of.

    That is each layer's class with its source, its attributes and hooks, the shapes of what is trained, what is tied to
    what, and the values of buffers and of frozen parameters; with `values` also those of what is trained.
    """
    inside = functools.partial(described, within=(*within, id(net)))
    layers: list[Any] = [
        [
            name,
            type(layer).__qualname__,
            _code(type(layer), (*within, id(net))),
            inside(_attributes(layer)),
            inside(_unnamed(layer)),
        ]
        for name, layer in net.named_modules()
    ]
    first: dict[int, str] = {}
    for name, p in [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]:
        form = None if is_lazy(p) else inside(p) if values or not p.requires_grad else list(p.shape)
        layers.append([name, first.setdefault(id(p), name), form])
    return {
        "class": type(net).__qualname__,
        "layers": textwrap.shorten(ADDRESS.sub("", repr(net)), 300, placeholder=" …"),
        "digest": digest(json.dumps(layers, sort_keys=True)),
    }


def _attributes(x: Any) -> dict[str, Any]:
    """What an object holds by name; of a layer, what is neither a tensor or another layer nor the same for any."""
    if is_dataclass(x) and not isinstance(x, type):
        return {field.name: getattr(x, field.name) for field in fields(x)}
    if isinstance(x, type | FunctionType | MethodType):
        return {}
    return {name: value for name, value in getattr(x, "__dict__", {}).items() if name not in OF_ANY_MODULE}


def _unnamed(x: Any) -> list[Any]:
    """What belongs to an object without being one of its attributes: defaults, arguments, items, hooks."""
    if isinstance(x, FunctionType):
        cells = [cell.cell_contents for cell in x.__closure__ or () if cell != CellType()]
        return [*(x.__defaults__ or ()), *cells]
    if isinstance(x, MethodType):
        return [x.__self__]
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    if isinstance(x, nn.Module):
        return [*x._forward_pre_hooks.values(), *x._forward_hooks.values()]
    if isinstance(x, Mapping):
        return list(x.values())
    return list(x) if isinstance(x, list | tuple | set | frozenset) else []


# --- its source -------------------------------------------------------------------------------------------------------


def _parts(x: Any, known: tuple[str, ...], seen: set[int]) -> Iterator[Any]:
    """An object and all that belongs to it, each once, but for numbers, texts, arrays and what is known."""
    maker = x if isinstance(x, type | FunctionType) else None
    if isinstance(x, VALUES) or id(x) in seen or (maker and _known(maker, known)):
        return
    seen.add(id(x))
    yield x
    inside = [*_unnamed(x), *_attributes(x).values()]
    if isinstance(x, nn.Module):
        inside += x.children()
    if isinstance(x, MethodType):
        inside.append(x.__func__)
    if isinstance(x, FunctionType):  # and what it calls by name
        named = [x.__globals__.get(name) for name in x.__code__.co_names]
        inside += [each for each in named if isinstance(each, FunctionType | type)]
    for each in inside:
        yield from _parts(each, known, seen)


def written(x: Any, known: tuple[str, ...] = ()) -> dict[Any, str | None]:
    """The source of the classes and functions that make an object; None for one where it cannot be had.

    Those of Python, PyTorch and NumPy do not count, nor those of modules whose names begin with one in `known`.
    """
    found: dict[Any, str | None] = {}
    for part in _parts(x, known, set()):
        cls = part if isinstance(part, type) else type(part)
        makers = (part,) if isinstance(part, FunctionType) else cls.__mro__
        found |= {maker: source(maker) for maker in makers if not _known(maker, known)}
    return found


def _known(maker: Any, known: tuple[str, ...]) -> bool:
    module = str(maker.__module__)
    return module.split(".")[0] in LIBRARIES or module.startswith(known or "\0")


def _code(maker: Any, within: tuple[int, ...] = ()) -> str:
    """A digest of what a class or function runs outside of libraries, and of what it refers to around it."""
    makers = [each for each in getattr(maker, "__mro__", (maker,)) if not _known(each, ())]
    found: list[Any] = []
    for each in makers:
        members = vars(each).values() if isinstance(each, type) else [getattr(each, "__func__", each)]
        functions = [f for f in members if isinstance(f, FunctionType)]
        found.append(source(each) or [marshal.dumps(f.__code__).hex() for f in functions])
        found += [[f.__code__.co_code.hex(), described(_unnamed(f), within)] for f in functions]
    return digest(json.dumps(found))


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
