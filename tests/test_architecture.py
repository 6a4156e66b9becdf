"""The house: two packages, rooms whose imports point downwards only, no circle, and no room that grows too large."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from hetfl_core.engine.checkpoint import ROOMS

ROOT = Path(__file__).resolve().parents[1]

CORE = [
    {"_version", "errors"},
    {"keywords"},
    {"checks", "files", "numerics", "settings", "tape"},
    {"rng", "padding", "cli_options", "parallel", "columns", "scikit"},
    {"inputs"},
    {"clients"},
    {"preparation", "splits", "tables", "views"},
    {"frames"},
    {"federation"},
    {"networks", "distances", "matching", "partition"},
    {"methods", "datasets"},
    {"engine", "records"},
    {"statistics", "plots", "deployment"},
    {"baselines", "benchmark"},
    {"estimators"},
    {"learners"},
    {"comparing", "plugins"},
    {"tuning", "reporting"},
    {"cli_tables"},
    {"cli"},
    {"__main__"},
]
"""The rooms of `hetfl_core` from the ground up: what stands in one line may import what stands in lines before it, and
its own room."""

BOOK = [
    {"theory", "datasets", "figures", "calibration", "discriminator", "peers", "waiting"},
    {"ledger", "attacks"},
    {"papers", "headtohead"},
    {"experiments", "grids"},
    {"verification"},
    {"collecting"},
    {"notebook", "plugin", "report"},
]
"""Those of `hetfl_book`, which stands on `hetfl_core`."""

LEVELS = {"hetfl_core": CORE, "hetfl_book": BOOK}
FOLDERS = {name: Path(str(find_spec(name).origin)).parent for name in LEVELS}  # type: ignore[union-attr]
FILES = {name: sorted(folder.rglob("*.py")) for name, folder in FOLDERS.items()}
MOST_LINES = 800
"""Of a file, docstrings and blank lines included: longer ones are two things."""

packages = pytest.mark.parametrize("package", LEVELS)


def module(path: Path) -> str:
    [folder] = [folder for folder in FOLDERS.values() if path.is_relative_to(folder)]
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path) for files in FILES.values() for path in files}


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules of both packages that a file imports, at its top or within a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            members = {f"{node.module}.{name.name}" for name in node.names}
            found |= members & MODULES
            found |= {node.module} if members - MODULES else set()
    return frozenset(found & MODULES)


def room(name: str) -> str:
    return name.split(".")[1]


def code_lines(text: str) -> int:
    """Lines with code on them: docstrings, comments and blank lines do not count."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                docstrings |= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in blank]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - docstrings)


def test_lines_of_code_are_counted_without_docstrings_comments_and_blanks() -> None:
    text = '"""Module.\n\nMore."""\n\n# a comment\nx = """a\nb"""\n\n\n'
    text += 'def f():\n    """Says."""\n    return (  # why\n        1\n    )\n'
    assert code_lines(text) == 6, "x over two lines, def, and return over three"


@packages
def test_imports_point_downwards_only(package: str) -> None:
    level = {name: i for i, names in enumerate(LEVELS[package]) for name in names}
    inside = [path for path in FILES[package] if path != FOLDERS[package] / "__init__.py"]
    assert {room(module(path)) for path in inside} == set(level), "each module has its place in its package's list"
    own = {path: {m for m in imported(path) if m.split(".")[0] == package} for path in inside}
    upwards = [
        f"{module(path)} imports {other}"
        for path, others in own.items()
        for other in sorted(others)
        if other == package or (room(other) != room(module(path)) and level[room(other)] >= level[room(module(path))])
    ]
    assert upwards == []


def test_the_core_never_imports_the_book() -> None:
    """Neither at a file's top nor within a function; what the book adds comes through `hetfl_core.plugins`."""
    known = {path: [m for m in imported(path) if m.startswith("hetfl_book")] for path in FILES["hetfl_core"]}
    assert {module(path): names for path, names in known.items() if names} == {}


def test_what_a_run_is_made_by_imports_nothing_else_that_computes() -> None:
    """Checks, names, settings, files and instructions decide whether there are numbers; tables and views, which data;
    and `parallel`, where."""
    other = {"checks", "errors", "keywords", "settings", "files", "numerics", "parallel", "scikit"}
    other |= {"columns", "frames", "preparation", "scikit", "tables", "views"}
    inside = [path for path in FILES["hetfl_core"] if module(path) != "hetfl_core" and room(module(path)) in ROOMS]
    found = {room(name) for path in inside for name in imported(path)}
    assert "methods" in found
    assert found - other <= set(ROOMS)


@packages
def test_contributing_says_what_is_in_each_room(package: str) -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text("utf8").split(f"| room of `{package}` |")[1].split("\n\n")[0]
    rows = [re.findall(r"`([a-z_]+)/?`", line.split("|")[1]) for line in table.splitlines()[2:]]
    rooms = set().union(*LEVELS[package]) - {"__main__"}
    assert sorted(name for row in rows for name in row) == sorted(rooms)


def test_no_circle_of_imports() -> None:
    """A room's own ``__init__`` stands for what it re-exports, so files of the room do not import it."""
    graph = {module(path): imported(path) for files in FILES.values() for path in files}
    assert list(TopologicalSorter(graph).static_order())


@packages
def test_no_file_is_two_things(package: str) -> None:
    """Lines of code are printed whole (``pytest -rP``), so that a change can be seen in numbers; they have no limit."""
    texts = {module(path): path.read_text("utf8") for path in FILES[package]}
    print(f"{package}: {len(texts)} files, {sum(map(code_lines, texts.values()))} lines of code")
    lengths = {name: len(text.splitlines()) for name, text in texts.items()}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}
