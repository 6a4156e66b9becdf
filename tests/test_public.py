"""What the core offers: its rooms' `__all__`, listed in `public.txt`, each on a page of the reference."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from docutils import nodes
from matplotlib.axes import Axes
from numpydoc import docscrape_sphinx

import hetfl_book
import hetfl_core
from hetfl_core import datasets, methods

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("public.txt")
MODULES = ["hetfl_core", *(m.name for m in pkgutil.walk_packages(hetfl_core.__path__, "hetfl_core."))]


def offers(module: ModuleType) -> list[str]:
    """A module offers what its `__all__` names; without one, it offers what the catalogue of data sets has of it."""
    made = [f.__name__ for f in datasets.CATALOGUE.values() if f.__module__ == module.__name__]
    return list(vars(module).get("__all__", made))


@cache
def public() -> dict[str, Any]:
    """All that the core offers, by dotted name; a room within a room is no name of its own."""
    rooms = map(importlib.import_module, (m for m in MODULES if not m.endswith("__main__")))
    named = {f"{room.__name__}.{name}": getattr(room, name) for room in rooms for name in offers(room)}
    return {name: thing for name, thing in named.items() if not inspect.ismodule(thing)}


def counted_only(thing: Any) -> bool:
    """Methods, data sets and figures: one more is no change of what the core is, and needs no line in the list."""
    if inspect.isclass(thing):
        return thing in {type(method) for method in methods.CATALOGUE.values()}
    if not inspect.isfunction(thing):
        return False
    drawn = thing.__module__ == "hetfl_core.plots" and thing.__annotations__.get("return") in ("Axes", Axes)
    return drawn or thing in datasets.CATALOGUE.values()


def listed() -> list[str]:
    return sorted(name for name, thing in public().items() if not counted_only(thing))


def test_the_list_is_what_the_rooms_offer() -> None:
    """A change of it is a change for users: it wants a line in CHANGELOG.md."""
    assert LIST.read_text("utf8").split() == listed(), "if that was meant: python tests/test_public.py renews the list"


def test_families_are_counted_and_not_listed() -> None:
    for name in ("methods.FLIC", "datasets.toy.noisy_features", "plots.curves"):
        assert f"hetfl_core.{name}" in public()
        assert f"hetfl_core.{name}" not in listed()
    assert "hetfl_core.methods.Method" in listed()


# --- the reference ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "book" / "_ext")
        yield importlib.import_module("hetfl_reference")


def test_each_has_a_docstring_and_stands_in_full_on_one_page(reference: ModuleType) -> None:
    """On a room's page; a constant has the text below it for a docstring, which `hetfl_reference.members` asks for."""
    pages = {m.__name__: reference.module_page(m) for m in reference.modules("hetfl_core")}
    for name in public():
        room, _, own = name.rpartition(".")
        places = [m for m, page in pages.items() if re.search(rf"^\.\. auto(class|function|data):: {own}$", page, re.M)]
        thing = public()[name]
        places = [
            m for m in places if own in reference.offers(sys.modules[m]) and getattr(sys.modules[m], own) is thing
        ]
        assert len(places) == 1, f"{name} needs a docstring, and one page: it has {places}"
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert re.search(rf"^   ~(\S+\.)?{own}$", pages[room], re.M), f"{name} is missing in its room's table"


def test_what_stands_behind_is_marked(reference: ModuleType) -> None:
    page = reference.module_page(sys.modules["hetfl_core.methods.privacy"])
    before, behind = page.split("## Behind the room") if "## Behind" in page else (page, "")
    assert ".. autofunction:: epsilon" in before
    assert ".. autofunction:: epsilon" not in behind
    front, _, rest = reference.module_page(sys.modules["hetfl_core.baselines"]).partition("## Behind the room")
    assert ".. autoclass:: LDA" in front
    assert ".. autofunction:: poolable" in rest
    rooms, others = (reference.module_table("hetfl_core", rooms) for rooms in (True, False))
    assert "`methods`" in rooms
    assert "`methods.base`" in others
    assert "`methods.base`" not in rooms


def test_every_module_has_a_page_with_all_that_is_public(reference: ModuleType) -> None:
    pages = {
        m.__name__: reference.module_page(m)
        for package in reference.PACKAGES_OF_THE_REFERENCE
        for m in reference.modules(package)
    }
    assert ".. autoclass:: FLIC" in pages["hetfl_core.methods"], "what a room offers stands on its page"
    assert "FLIC" not in re.findall(r"auto\w+:: (\w+)", pages["hetfl_core.methods.flic"])
    assert ".. autofunction:: stream" in pages["hetfl_core.rng"]
    assert ".. autodata:: SERVER" in pages["hetfl_core.rng"]
    assert ".. autofunction:: numbers" in pages["hetfl_book.ledger.judging"], "the book's modules hold what they define"


def test_numpydoc_compiles_its_template_once(reference: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docscrape_sphinx, "SandboxedEnvironment", docscrape_sphinx.SandboxedEnvironment)
    one, other, config = {}, {}, {"use_plots": False}
    before = docscrape_sphinx.get_doc_object(reference.summary, config=dict(config))
    reference.compile_once()
    for used in (one, other):
        assert str(docscrape_sphinx.get_doc_object(reference.summary, config=used)) == str(before)
    assert one["template"] is other["template"]


def test_a_page_is_stored_without_the_document_that_a_part_of_it_was_read_into(reference: ModuleType) -> None:
    page, beside = nodes.document(None, None), nodes.document(None, None)
    page += nodes.section("", nodes.paragraph("", "Words."))
    for node in page[0].findall():
        node.document = beside
    reference.one_document(None, page)
    assert {id(node.document) for node in page.findall()} == {id(page)}


# --- pages use no others ----------------------------------------------------------------------------------------


def pages() -> dict[str, list[str]]:
    """The Python of the book's notebooks, of its assignments and of its texts, as pieces to be parsed."""
    found = {}
    for path in [*ROOT.glob("book/*.ipynb"), *ROOT.glob("book/assignments/*.ipynb"), *ROOT.glob("book/*/*/*.ipynb")]:
        if "_build" not in path.parts:
            cells = json.loads(path.read_text("utf8"))["cells"]
            found[path.name] = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for path in [ROOT / "README.md", *ROOT.glob("book/*.md")]:
        found[path.name] = re.findall(r"```python\n(.*?)```", path.read_text("utf8"), re.DOTALL)
    magic = re.compile(r"^( *)[%!].*", re.M)
    return {name: [magic.sub(r"\1pass", piece) for piece in pieces] for name, pieces in found.items()}


def used(pieces: list[str]) -> set[str]:
    """Dotted names of the core's that a page imports, or reaches through a module that it imports."""
    nodes = [node for piece in pieces for node in ast.walk(ast.parse(piece))]
    known: dict[str, str] = {}
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            known |= {
                a.asname or "hetfl_core": a.name if a.asname else "hetfl_core" for a in node.names if core(a.name)
            }
        elif isinstance(node, ast.ImportFrom) and core(node.module or ""):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in MODULES:
                    known[alias.asname or alias.name] = full
                else:
                    found.add(full)
    for node in nodes:
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in known:
            full = known[node.id]
            while parts and full in MODULES:
                full += f".{parts.pop()}"
            found |= {full} - {*MODULES}
    return found


def core(module: str) -> bool:
    return module.split(".")[0] == "hetfl_core"


def test_uses_are_found() -> None:
    page = [
        "from hetfl_core import datasets, simulate\nimport hetfl_core.rng",
        "x = datasets.toy.made(1).y\nhetfl_core.rng.key",
    ]
    assert used(page) == {"hetfl_core.simulate", "hetfl_core.datasets.toy.made", "hetfl_core.rng.key"}
    assert used(["from hetfl_core.engine import layout as l\nl.Costs"]) == {"hetfl_core.engine.layout.Costs"}


def test_pages_use_public_names_only() -> None:
    found = {name: sorted(used(pieces) - {*public()}) for name, pieces in pages().items()}
    assert len(found) > 30
    assert {name: uses for name, uses in found.items() if uses} == {}


# --- a name means one thing -------------------------------------------------------------------------------------


def is_data_set(thing: Any) -> bool:
    return inspect.isfunction(thing) and thing in datasets.CATALOGUE.values()


def test_a_public_name_means_one_thing() -> None:
    """Data sets are called by family and name, as on the command line (`blocks.mnist`, `pooled.mnist`)."""
    things = defaultdict(set)
    for name, thing in public().items():
        if not is_data_set(thing) and not name.endswith(".CATALOGUE"):
            things[name.rpartition(".")[2]].add(id(thing))
    assert {name for name, found in things.items() if len(found) > 1} == set()


def definitions(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Name and module of each function and class that a package's modules define at their top, but for private ones."""
    folder = Path(str(package.__file__)).parent
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text("utf8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path.relative_to(folder.parent).as_posix()


def test_nothing_else_is_called_like_a_public_function_or_class() -> None:
    """Neither behind the rooms nor in the book's package, so that a search finds the thing and no other."""
    where = defaultdict(set)
    for name, path in [*definitions(hetfl_core), *definitions(hetfl_book)]:
        where[name].add(path)
    twice = {name for name, paths in where.items() if len(paths) > 1}
    print(f"{len(twice)} names of functions and classes stand in two modules or more")
    shown = [(name.rpartition(".")[2], thing) for name, thing in public().items() if not is_data_set(thing)]
    ours = {name for name, thing in shown if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert {name: where[name] for name in ours & twice} == HOOKS


HOOKS = {"data_sets": {"hetfl_core/plugins.py", "hetfl_book/plugin.py"}}
"""One meaning in two modules: what a plugin offers under this name."""


if __name__ == "__main__":
    LIST.write_text("\n".join(listed()) + "\n", "utf8")
