"""Rooms of the core: imports point downwards only, there is no circle, and no room grows too large."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import hetfl_core

PACKAGE = Path(hetfl_core.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

LEVELS = [
    {"checks", "files", "numerics", "settings"},
    {"rng", "padding"},
    {"clients"},
    {"frames"},
    {"federation"},
    {"networks", "distances", "matching", "partition"},
    {"methods", "datasets", "theory"},
    {"engine"},
    {"ledger", "figures", "deployment", "attacks"},
    {"baselines", "benchmark"},
    {"papers", "comparing"},
    {"experiments"},
    {"verification"},
    {"notebook", "cli"},
]
"""The rooms from the ground up: what stands in one line may import what stands in lines before it, and its own room."""

FACE = {"hetfl_core"}
"""The package itself re-exports what users import; nobody inside may import names from it but submodules."""


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path) for path in FILES}


def imported(path: Path) -> set[str]:
    """The modules of the core that a file imports, at its top or within a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            members = {f"{node.module}.{name.name}" for name in node.names}
            found |= members & MODULES
            found |= {node.module} if members - MODULES else set()
    return found & MODULES


def room(name: str) -> str:
    return name.split(".")[1]


def test_imports_point_downwards_only() -> None:
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    inside = [path for path in FILES if path != PACKAGE / "__init__.py"]
    assert {room(module(path)) for path in inside} == set(level), "each module has its place in LEVELS"
    upwards = [
        f"{module(path)} imports {other}"
        for path in inside
        for other in sorted(imported(path))
        if other in FACE or (room(other) != room(module(path)) and level[room(other)] >= level[room(module(path))])
    ]
    assert upwards == []


def test_no_circle_of_imports() -> None:
    """A room's own ``__init__`` stands for what it re-exports, so files of the room do not import it."""
    graph = {module(path): imported(path) for path in FILES}
    assert list(TopologicalSorter(graph).static_order())


def test_the_top_of_the_core_stays_small() -> None:
    top = [p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    assert len([name for name in top if name.endswith(".py")]) <= 20


def test_no_file_is_too_long() -> None:
    lengths = {module(path): len(path.read_text("utf8").splitlines()) for path in FILES}
    assert {name: n for name, n in lengths.items() if n > 850} == {}
