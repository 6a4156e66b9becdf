"""The API reference: one page a module, written from the docstrings; what a room offers stands on the room's page.

Only rooms that offer something stand in the book's contents: every page repeats those, at a cost that grows with their
square. The pages of the other modules are found from the API page, by links and by the search.

``{{ modules package }}``, ``{{ rooms package }}`` and ``{{ behind package }}`` stand for tables of a package's modules.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from numpydoc import docscrape_sphinx, numpydoc
from sphinx.pycode import ModuleAnalyzer

PACKAGES_OF_THE_REFERENCE = ("hetfl_core", "hetfl_book")


def modules(package: str) -> list[ModuleType]:
    """All public modules of a package, in alphabetical order."""
    top = importlib.import_module(package)
    names = [m.name for m in pkgutil.walk_packages(top.__path__, f"{package}.")]
    public = [n for n in names if not any(part.startswith("_") for part in n.split("."))]
    return [top, *map(importlib.import_module, sorted(public))]


def summary(thing: Any) -> str:
    """First paragraph of a docstring on one line, fit for a cell of a Markdown table."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.sub(r"\s*(\((\w+ of )?\[\d+\]_\)|(\w+ of )?\[\d+\]_)", "", text).replace("|", "\\|").replace("``", "`")


def constants(module: ModuleType) -> list[str]:
    """Names of the documented public constants of a module, in the order of its text."""
    comments = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
    return [name for scope, name in comments if not scope and not name.startswith("_")]


def members(module: ModuleType) -> list[tuple[str, str]]:
    """Directive and name of each documented public thing that a module itself defines, in the order of its text."""
    own = [(n, x) for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
    public = [(n, x) for n, x in own if not n.startswith("_") and inspect.getdoc(x)]
    classes = [("autoclass", n) for n, x in public if inspect.isclass(x)]
    functions = [("autofunction", n) for n, x in public if inspect.isfunction(inspect.unwrap(x))]
    return [*classes, *functions, *(("autodata", n) for n in constants(module))]


def offers(module: ModuleType) -> list[str]:
    """What a room of the core offers: its ``__all__``, or else what the catalogue of data sets has of it."""
    if not module.__name__.startswith("hetfl_core"):
        return []
    catalogue = importlib.import_module("hetfl_core.datasets").CATALOGUE.values()
    made = [make.__name__ for make in catalogue if make.__module__ == module.__name__]
    return [name for name in vars(module).get("__all__", made) if not inspect.ismodule(getattr(module, name))]


@cache
def homes() -> dict[tuple[str, str], str]:
    """For each name that rooms offer, and the module that defines it, the room on whose page it stands.

    That is the module itself if it offers the name, else the first room that does.
    """
    known = modules("hetfl_core")
    defined = {module.__name__: {name for _, name in members(module)} for module in known}
    found: dict[tuple[str, str], str] = {}
    for room in known:
        for name in offers(room):
            thing = getattr(room, name)
            [home] = [m for m in known if name in defined[m.__name__] and vars(m)[name] is thing]
            if room is home or (home.__name__, name) not in found:
                found[home.__name__, name] = room.__name__
    return found


def place(module: ModuleType) -> str:
    """Name of a module's page."""
    return f"api/generated/{'' if offers(module) else 'behind/'}{module.__name__}"


UP = "Behind the rooms of the [API reference](../../../api.md)."

OPTIONS = {"autoclass": ["   :members:"], "autodata": ["   :no-value:"]}


def short(module: ModuleType) -> str:
    """Name of a module without that of the core; those of the book's package keep it."""
    return module.__name__.removeprefix("hetfl_core.")


def table_of(current: str, found: list[tuple[str, str, str]]) -> list[str]:
    """Source of a table of classes and functions, each given by its module, directive and name."""
    things = [f"{module}.{name}" for module, directive, name in found if directive != "autodata"]
    table = [f"   ~{thing.removeprefix(f'{current}.')}" for thing in things]
    head = [f".. currentmodule:: {current}", "", ".. autosummary::", "   :nosignatures:", ""]
    return [*head, *table, ""] if table else []


def in_full(found: list[tuple[str, str, str]]) -> list[str]:
    """Source of the full description of each."""
    return [
        line
        for module, directive, name in found
        for line in (f".. currentmodule:: {module}", "", f".. {directive}:: {name}", *OPTIONS.get(directive, []), "")
    ]


def module_page(module: ModuleType) -> str:
    """Source of the page of one module: what it offers, as a table and then in full; and what stands behind that."""
    places = homes()
    offered = [
        (home.__name__, directive, name)
        for home in (modules("hetfl_core") if offers(module) else [])
        for directive, name in members(home)
        if places.get((home.__name__, name)) == module.__name__
    ]
    table = [*offered]
    for name in offers(module):  # what stands in full on another room's page
        elsewhere = [(home, n) for home, n in places if n == name and vars(sys.modules[home])[n] is getattr(module, n)]
        table += [(home, "", n) for home, n in elsewhere if places[home, n] != module.__name__]
    name = module.__name__
    rest = [(name, directive, n) for directive, n in members(module) if (name, n) not in places]
    lines = [f".. automodule:: {name}", "", *table_of(name, table), *in_full(offered)]
    page = [f"# {short(module)}", "", "```{eval-rst}", *lines, "```", ""]
    if rest and table:
        page += ["## Behind the room", "", "What it is made of, and free to move.", ""]
        page += ["```{eval-rst}", *table_of(name, rest), *in_full(rest), "```", ""]
    elif rest:
        page[-2:-2] = [*table_of(name, rest), *in_full(rest)]
    if not offers(module):
        page = ["---", "orphan: true", "---", "", *page[:2], UP, *page[1:]]
    return "\n".join(page)


def module_table(package: str, rooms: bool | None = None) -> str:
    """Source of a table of a package's modules, each linked to its page: all, those that offer names, or the others."""
    chosen = [m for m in modules(package) if rooms is None or rooms == bool(offers(m))]
    rows = [f"| [`{short(m)}`]({place(m)}.md) | {summary(m)} |" for m in chosen]
    return "\n".join(["| module | what it is for |", "|---|---|", *rows])


def write_api(app: Any, config: Any) -> None:
    """Write the pages of the modules; pages that would not change are left alone, those of lost modules removed."""
    root = Path(app.srcdir)
    found = [module for package in PACKAGES_OF_THE_REFERENCE for module in modules(package)]
    pages = {root / f"{place(module)}.md": module_page(module) for module in found}
    for path in root.glob("api/generated/**/*.md"):
        if path not in pages:
            path.unlink()
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf8") != text:
            path.write_text(text, "utf8")


def keep_behind(app: Any, config: Any) -> None:
    """Have the pages that are not in the contents read, too: `only_build_toc_files` excludes them."""
    config.exclude_patterns = [p for p in config.exclude_patterns if not p.startswith("api/generated/behind/")]


def share_references(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Let all docstrings of a module cite the references that stand in the module's own docstring.

    numpydoc makes the numbers of each docstring unique by a prefix. Numbers that a docstring does not itself resolve
    get the prefix of its module here. It runs before numpydoc.
    """
    text = "\n".join(lines)
    if what == "module":
        text = re.sub(r"^(\S.*)\n-{3,}$", r".. rubric:: \1\n", text, flags=re.MULTILINE)
    else:
        own = set(re.findall(r"^\s*\.\. \[(\w+)\]", text, flags=re.MULTILINE))
        prefix = "R" + hashlib.sha256(module_of(name).encode()).hexdigest()[: numpydoc.HASH_LEN]
        text = re.sub(r"\[(\d+)\]_", lambda m: m[0] if m[1] in own else f"[{prefix}-{m[1]}]_", text)
    lines[:] = text.split("\n")


def module_of(name: str) -> str:
    """Module in which a dotted name is defined."""
    while name and name not in sys.modules:
        name = name.rpartition(".")[0]
    return name


UNIQUE = re.compile(r"(\[?)R[0-9a-f]{12}-(\w+)(\]?)")
"""A label that numpydoc made unique: R, twelve digits of a hash, the number."""


def plain_numbers(app: Any, doctree: nodes.document) -> None:
    """Show [1] where numpydoc and `share_references` needed a label that is unique in the book."""
    for text in list(doctree.findall(nodes.Text)):
        if match := UNIQUE.fullmatch(text):
            text.parent.replace(text, nodes.Text("".join(match.groups())))


TABLES = {"modules": None, "rooms": True, "behind": False}
"""Placeholders of `module_table`, and which modules each takes."""


def fill_in(app: Any, docname: str, source: list[str]) -> None:
    """Put tables of modules in the place of their placeholders."""
    pattern = rf"\{{\{{ ({'|'.join(TABLES)}) (\w+) \}}\}}"
    source[0] = re.sub(pattern, lambda found: module_table(found[2], TABLES[found[1]]), source[0])


# --- what would take minutes --------------------------------------------------------------------------------------


def compile_once() -> None:
    """Let numpydoc compile its template once: it makes an environment for every docstring, and none knows the others'."""
    make, made = docscrape_sphinx.SandboxedEnvironment, {}

    def shared(loader: Any) -> Any:
        if type(loader) not in made:
            made[type(loader)] = make(loader=loader)
        return made[type(loader)]

    docscrape_sphinx.SandboxedEnvironment = shared


def one_document(app: Any, doctree: nodes.document) -> None:
    """Make a page's nodes its own.

    MyST reads ``eval-rst`` into a document beside the page's, whose settings hold Sphinx's whole environment: each page
    of the reference would be stored with a copy of that, two megabytes to write once and to read three times.
    """
    for node in doctree.findall():
        node.document = doctree


def setup(app: Any) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them."""
    compile_once()
    app.connect("config-inited", write_api)
    app.connect("config-inited", keep_behind, priority=950)  # after sphinx_external_toc has excluded them
    app.connect("autodoc-process-docstring", share_references, priority=100)
    app.connect("doctree-read", plain_numbers, priority=900)
    app.connect("doctree-read", one_document, priority=900)
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
