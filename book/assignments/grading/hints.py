"""What a student is told, in words of the checks and of the notebook as it was handed in.

What a hand-in says while it runs, the text of an error or a name that it makes up, could be that of a file which it has read. So
none of it is passed on: of an error its kind, where it is one of Python's or of a known library, and its place; of a value that a
check quotes a few numbers.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
import warnings
from functools import cache
from typing import Any

from grading import files, wire

LIBRARIES = ("numpy", "torch", "scipy", "sklearn", "pandas", "matplotlib", "json", "hetfl_core", "hetfl_book")
"""Packages whose kinds of errors are called by their names, besides Python's own."""

MAX_NUMBERS, MAX_DIGITS, MAX_QUOTED = 12, 6, 60
"""Numbers that a hint quotes, significant digits of each, and characters of a quoted line."""

MAX_TEXT = 1500
"""Characters of a message beyond which nothing is quoted in it."""

WORDS = {
    "nan",
    "inf",
    "None",
    "True",
    "False",
    "tensor",
    "array",
    "dtype",
    "torch",
    "float64",
    "float32",
    "size",
    "Size",
}
PUNCTUATION = set("()[]{},:=' \n\"+-…")
TOKEN = re.compile(r"[A-Za-z_]\w*|[-+]?\d[\d.]*(?:e[-+]?\d+)?|.", re.DOTALL)


# --- errors of a hand-in ----------------------------------------------------------------------------------------


def kind_of(classes: Any) -> tuple[type[BaseException], bool]:
    """The nearest known kind of an error among its classes, and whether it is the error's own."""
    for place, (module, name) in enumerate(classes):
        if module == "builtins" or str(module).split(".")[0] in LIBRARIES:
            kind = getattr(builtins if module == "builtins" else sys.modules.get(str(module)), str(name), None)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                return kind, place == 0
    return Exception, False


def named(classes: Any) -> str:
    """How an error is called."""
    kind, own = kind_of(classes)
    return kind.__name__ if own else f"an error of the hand-in's own ({kind.__name__})"


def place_of(cell: Any, line: Any, cells: dict[int, str]) -> str:
    """Where an error comes from, with the line as it was handed in."""
    if cell not in cells:
        return ""
    lines = cells[cell].splitlines()
    if not isinstance(line, int) or not 0 < line <= len(lines):
        return name_of_cell(cell, cells)
    text = quoted(lines[line - 1])
    return f"{name_of_cell(cell, cells)}, line {line}" + (f" ({text})" if text and line > 1 else "")


def name_of_cell(cell: int, cells: dict[int, str]) -> str:
    """Number of a cell, and its first line."""
    first = next(filter(str.strip, cells[cell].splitlines()), "")
    return f"code cell {cell} ({quoted(first)})"


def quoted(line: str) -> str:
    """A line of a notebook, not too much of it."""
    text = files.printable(line.strip())
    short = text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"
    return f"`{short}`" if short else ""


def of_error(told: Any, cells: dict[int, str]) -> tuple[Exception, str]:
    """An error of a hand-in as one that a check can catch, and what a student is told of it.

    Raises
    ------
    ProtocolError
        If it was not told as `grading.handin` tells errors.
    """
    try:
        classes, cell, line, _ = told
        kind, _ = kind_of(classes)
        place = place_of(cell, line, cells)
        hint = f"{named(classes)}{' in ' if place else ''}{place}"
    except (TypeError, ValueError) as error:
        raise wire.ProtocolError("expected an error, got something else") from error
    base = kind if issubclass(kind, Exception) and kind not in (StopIteration, StopAsyncIteration) else Exception
    made = type(kind.__name__, (base,), {"__str__": lambda self: "of the hand-in"})
    return made.__new__(made), hint


def of_cell(told: Any, number: int, cells: dict[int, str]) -> str:
    """What a student is told of an error that ended a cell."""
    _, hint = of_error(told, cells)
    if kind_of(told[0])[0] is SyntaxError:
        return f"{name_of_cell(number, cells)}: SyntaxError{syntax_error(cells[number])}"
    here = f" in {name_of_cell(number, cells)}"
    return f"{name_of_cell(number, cells)}: {hint.replace(here, '', 1).replace(', line', ' in line', 1)}"


def syntax_error(source: str) -> str:
    """What Python has against the text of a cell."""
    from IPython.core.inputtransformer2 import TransformerManager

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(TransformerManager().transform_cell(source), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            return f": {error.msg}, line {error.lineno}"
        except Exception:
            pass
    return ""


# --- checks that failed -----------------------------------------------------------------------------------------


def of_failure(error: Exception, question: str, source: str) -> str:
    """What a student is told of an error that ended a check: the check's own words, if it has any."""
    lines = [line for name, line in _places(error) if name == f"{question}.py"]
    if type(error) is AssertionError and lines:
        return own_words(str(error), lines[-1], source)
    return f"{type(error).__name__}: the check cannot go on with what your notebook gave it"


def _places(error: Exception) -> list[tuple[str, int]]:
    """Files and lines through which an error came, the innermost last."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


def own_words(text: str, line: int, source: str) -> str:
    """The message of an assertion, as the check has it, with what it quotes cut to numbers and to words of the check."""
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Assert) and node.msg is not None and node.lineno <= line <= (node.end_lineno or 0):
            parts = _parts(node.msg)
            if len(text) > MAX_TEXT:
                return "".join("…" if part is None else part for part in parts)
            match = re.fullmatch("".join("(.*?)" if p is None else f"({re.escape(p)})" for p in parts), text, re.DOTALL)
            if match:
                pairs = zip(parts, match.groups())
                return " ".join("".join(t if p is not None else numbers_of(t, source) for p, t in pairs).split())
    return "wrong"


def _parts(message: ast.expr) -> list[str | None]:
    """The pieces of a message: text that is written in it, and None for what is put in."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return [message.value]
    if isinstance(message, ast.JoinedStr):
        return [part.value if isinstance(part, ast.Constant) else None for part in message.values]
    if isinstance(message, ast.BinOp) and isinstance(message.op, ast.Add):
        return _parts(message.left) + _parts(message.right)
    return [None]


def numbers_of(text: str, source: str) -> str:
    """What a message quotes, cut to a few numbers and to words that the check has itself; an ellipsis for anything else."""
    if text in _constants(source):
        return text
    kept, numbers = [], 0
    for token in TOKEN.findall(text[:2000]):
        if token[0].isdigit() or token[1:2].isdigit():
            numbers += 1
            if numbers > MAX_NUMBERS:
                return "".join(kept) + "…"
            kept.append(_short(token))
        elif token in WORDS | PUNCTUATION or token == "." or token in _words(source):
            kept.append(token)
        else:
            return "…"
    return "".join(kept)[:400]


def _short(number: str) -> str:
    """A number with a few digits."""
    try:
        return number if len(number) <= MAX_DIGITS + 2 else f"{float(number):.{MAX_DIGITS}g}"
    except ValueError:
        return "…"


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def _words(source: str) -> frozenset[str]:
    """Names in a check, and the words of its texts."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", source)) - frozenset(keyword.kwlist)


@cache
def _constants(source: str) -> frozenset[str]:
    """Texts in a check."""
    nodes = ast.walk(_parsed(source))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
