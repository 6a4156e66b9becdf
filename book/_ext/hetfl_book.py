"""What the book asks of Sphinx beyond `_config.yml`.

- The repository's public address stands once, in ``pyproject.toml``; buttons and pages get it from there.
- Notebooks compute with the instructions that records are made with, on whatever CPU.
- Results in the cache are forgotten when the core, its records, the instructions or the data at hand have changed.
- The API reference has one page a module, written from the docstrings.

Run as a script (``make address``), it writes the address where files outside the book must repeat it.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from numpydoc import numpydoc
from sphinx.pycode import ModuleAnalyzer

from hetfl_core import numerics

ROOT = Path(__file__).resolve().parents[2]
BRANCH = "main"


def repository() -> str:
    """The public address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    return project["urls"]["Repository"].rstrip("/")


# --- the address ------------------------------------------------------------------------------------------------


def set_address(app: Any, config: Any) -> None:
    """Point the launch, source and issue buttons at the repository."""
    config.html_theme_options |= {
        "repository_url": repository(),
        "repository_branch": BRANCH,
        "path_to_docs": "book",
        "use_repository_button": True,
        "use_issues_button": True,
    }


def fill_in(app: Any, docname: str, source: list[str]) -> None:
    """Replace the book's own placeholders in a page, in code blocks too."""
    if app.env.doc2path(docname).endswith(".md"):
        source[0] = source[0].replace("{{ repository }}", repository())
        if "{{ modules }}" in source[0]:
            source[0] = source[0].replace("{{ modules }}", module_table())


PLACES = {
    "README.md": r"(?<=git clone )https://\S+",
    "CITATION.cff": r'(?<=^repository-code: ")[^"]+',
    "book/**/*.ipynb": r'(?<=git\+)https://[^"\\@]+',
}
"""Where the address is repeated because nothing could fill it in there, and how it is recognised."""


def write_address() -> None:
    """Write the address into `PLACES`."""
    for pattern, address in PLACES.items():
        for path in sorted(ROOT.glob(pattern)):
            if "_build" in path.parts:
                continue
            before = path.read_text("utf8")
            after = re.sub(address, repository(), before, flags=re.MULTILINE)
            if after != before:
                path.write_text(after, "utf8")
                print(f"{path.relative_to(ROOT)}: now {repository()}")


# --- scripts ----------------------------------------------------------------------------------------------------


def drop_scripts(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave out what the theme adds for live cells in the page, which the book does not have, and what comes twice."""
    scripts: dict[str, Any] = {}
    for script in context["script_files"]:
        key = str(getattr(script, "filename", None) or getattr(script, "attributes", {}).get("body") or script)
        if "thebe" not in key.lower():
            scripts.setdefault(key.rsplit("_static/")[-1], script)
    context["script_files"] = list(scripts.values())


# --- the cache of executed notebooks ----------------------------------------------------------------------------


def inputs_digest() -> str:
    """Digest of all that a chapter's numbers depend on but its own text: core, records, versions, instructions, data."""
    digest = hashlib.sha256((data_at_hand() + repr(numerics.hold(environment=os.environ))).encode())
    files = [*ROOT.glob("hetfl_core/**/*.py"), *ROOT.glob("data/**/*.*"), ROOT / "constraints.txt"]
    for path in sorted(p for p in files if p.is_file()):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def data_at_hand() -> str:
    """Which of the files of the registry are there, with the right hash."""
    registry = importlib.import_module("hetfl_core.datasets.registry")
    return registry.status()[["key", "ok"]].to_csv()


def forget_stale_results(app: Any, config: Any) -> None:
    """Empty the cache where its results come from other code or data than the present.

    With HETFL_KEEP_RESULTS=1 they stay, for those who edit prose while the core is being worked on.
    """
    if os.environ.get("HETFL_KEEP_RESULTS"):
        return
    cache = Path(config.nb_execution_cache_path or Path(app.outdir).parent / ".jupyter_cache")
    stamp, digest = cache / "hetfl-inputs.sha256", inputs_digest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        stamp.write_text(digest)


# --- the API reference ------------------------------------------------------------------------------------------


def modules() -> list[ModuleType]:
    """All public modules of the core, in alphabetical order."""
    core = importlib.import_module("hetfl_core")
    names = [m.name for m in pkgutil.walk_packages(core.__path__, "hetfl_core.")]
    public = [n for n in names if not any(part.startswith("_") for part in n.split("."))]
    return [core, *map(importlib.import_module, sorted(public))]


def summary(thing: Any) -> str:
    """First paragraph of a docstring on one line, fit for a cell of a Markdown table."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.sub(r"\s*(\w+ of )?\[\d+\]_", "", text).replace("|", "\\|").replace("``", "`")


def constants(module: ModuleType) -> list[str]:
    """Names of the documented public constants of a module, in the order of its text."""
    comments = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
    return [name for scope, name in comments if not scope and not name.startswith("_")]


def members(module: ModuleType) -> list[tuple[str, str]]:
    """Directive and name of each documented public thing that a module itself defines, in the order of its text."""
    own = [(n, x) for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
    public = [(n, x) for n, x in own if not n.startswith("_") and inspect.getdoc(x)]
    classes = [("autoclass", n) for n, x in public if inspect.isclass(x)]
    functions = [("autofunction", n) for n, x in public if inspect.isfunction(x)]
    return [*classes, *functions, *(("autodata", n) for n in constants(module))]


OPTIONS = {"autoclass": ["   :members:"], "autodata": ["   :no-value:"]}


def short(module: ModuleType) -> str:
    """Name of a module without that of the package."""
    return module.__name__.removeprefix("hetfl_core.")


def module_page(module: ModuleType) -> str:
    """Source of the page of one module: a table of what it holds, then each in full."""
    name, found = module.__name__, members(module)
    table = [f"   {member}" for directive, member in found if directive != "autodata"]
    lines = [f".. automodule:: {name}", "", f".. currentmodule:: {name}", ""]
    lines += [".. autosummary::", "   :nosignatures:", "", *table, ""] if table else []
    for directive, member in found:
        lines += [f".. {directive}:: {member}", *OPTIONS.get(directive, []), ""]
    return "\n".join([f"# {short(module)}", "", "```{eval-rst}", *lines, "```", ""])


def module_table() -> str:
    """Source of a table of the modules, each linked to its page."""
    rows = [f"| [`{short(m)}`](api/generated/{m.__name__}.md) | {summary(m)} |" for m in modules()]
    return "\n".join(["| module | what it is for |", "|---|---|", *rows])


def write_api(app: Any, config: Any) -> None:
    """Write the pages of the modules; pages that would not change are left alone, those of lost modules removed."""
    folder = Path(app.srcdir) / "api" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"{m.__name__}.md": module_page(m) for m in modules()}
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text("utf8") != text:
            path.write_text(text, "utf8")


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


UNIQUE = re.compile(r"(\[?)R[0-9a-f]{12}-(\w+)(\]?)")
"""A label that numpydoc made unique: R, twelve digits of a hash, the number."""


def plain_numbers(app: Any, doctree: nodes.document) -> None:
    """Show [1] where numpydoc and `share_references` needed a label that is unique in the book."""
    for text in list(doctree.findall(nodes.Text)):
        if match := UNIQUE.fullmatch(text):
            text.parent.replace(text, nodes.Text("".join(match.groups())))


def words_for_marks(app: Any, doctree: nodes.document, docname: str) -> None:
    """Say "done" on the status page, where not every reader's fonts have the tick."""
    for text in list(doctree.findall(nodes.Text)) if docname == "status" else []:
        if text.strip() in MARKS:
            text.parent.replace(text, nodes.Text(MARKS[text.strip()]))


MARKS = {"✅": "done", "❌": "failed"}


def module_of(name: str) -> str:
    """Module in which a dotted name is defined."""
    while name and name not in sys.modules:
        name = name.rpartition(".")[0]
    return name


def setup(app: Any) -> dict[str, bool]:
    """Hold the kernels, which inherit this process's environment, to the portable instructions; connect the rest."""
    numerics.hold(environment=os.environ)
    app.connect("config-inited", set_address)
    app.connect("config-inited", forget_stale_results)
    app.connect("config-inited", write_api)
    app.connect("autodoc-process-docstring", share_references, priority=100)
    app.connect("doctree-read", plain_numbers, priority=900)
    app.connect("doctree-resolved", words_for_marks, priority=900)
    app.connect("source-read", fill_in)
    app.connect("html-page-context", drop_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_address()
