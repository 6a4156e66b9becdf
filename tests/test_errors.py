"""Errors that are meant for people: one base, and Python's own kinds as before."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import pickle
from pathlib import Path

import pytest

from hetfl_core import Federation, errors, simulate
from hetfl_core.datasets import toy
from hetfl_core.errors import HetflError
from hetfl_core.methods import Local

ROOT = Path(__file__).resolve().parents[1]
OURS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", [kind for kind in OURS if kind is not HetflError])
def test_each_is_also_one_of_pythons_own_and_keeps_its_words(kind: type[HetflError]) -> None:
    assert issubclass(kind, HetflError)
    assert [base for base in kind.__bases__ if base.__module__ == "builtins"]
    error = kind("no client 'x'; there are ['y']")
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(same), str(same)) == (kind, "no client 'x'; there are ['y']")


def test_who_caught_pythons_own_still_does() -> None:
    federation = toy.four_gaussians()
    with pytest.raises(ValueError, match="rounds must be a whole number") as caught:
        simulate(federation, Local(), rounds=-1)
    assert isinstance(caught.value, HetflError)
    with pytest.raises(KeyError, match=r"^no client 'nobody'; there are"):
        federation["nobody"]
    with pytest.raises(HetflError, match="at least one client"):
        Federation([])


NOT_FOR_PEOPLE = {"NotImplementedError", "AttributeError", "IndexError", "KeyboardInterrupt"}
"""Raised where Python asks for these, or for who writes a method."""


def raised_by_name(source: str) -> set[str]:
    """Python's own kinds of error that a module raises by their names, but for those of the system."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            name = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            kind = getattr(builtins, name.id, None) if isinstance(name, ast.Name) else None
            if isinstance(kind, type) and not issubclass(kind, OSError):
                found.add(kind.__name__)
    return found


def test_the_packages_raise_errors_of_their_own() -> None:
    """So that the command line knows a message from a fault. Which one: `hetfl_core.errors`."""
    paths = [*(ROOT / "hetfl_core").rglob("*.py"), *(ROOT / "book" / "hetfl_book").rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix(): raised_by_name(path.read_text("utf8")) for path in paths}
    del found["book/hetfl_book/peers/fedjax_side.py"]  # which runs where this library is not
    assert {path: kinds - NOT_FOR_PEOPLE for path, kinds in found.items() if kinds - NOT_FOR_PEOPLE} == {}
    assert raised_by_name("raise ValueError('no')\nraise error\nraise OSError(1)\nraise KeyError") == {
        "ValueError",
        "KeyError",
    }
