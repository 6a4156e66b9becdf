"""The sources of the book: notebooks without outputs, references, table of contents, exercises."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import nbformat
import pandas as pd
import pytest
import yaml
from docutils import nodes
from test_part_one import TAUGHT

from hetfl_book import experiments, ledger
from hetfl_book.ledger import results
from hetfl_book.theory import flic as theory
from hetfl_book.theory import flic_bound
from hetfl_core import datasets, rng
from hetfl_core.methods import FLIC

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
MADE = ("_build", "dist", "generated", ".ipynb_checkpoints")
NOTEBOOKS = sorted(p for p in BOOK.rglob("*.ipynb") if not set(MADE) & set(p.parts))
CHAPTERS = [p for p in NOTEBOOKS if p.parent == BOOK]
CARRY = [p for p in NOTEBOOKS if p.parent != BOOK or p.stem not in TAUGHT]
"""Those with an install cell in their source; to the others the build adds one."""

INSTALL = '''\
# In Colab this installs the library; if it is installed already, nothing happens.
import importlib.util

# `make address` writes the public address of the repository here:
REPOSITORY = ""
if importlib.util.find_spec("hetfl_book") is None:
    if not REPOSITORY:
        raise ModuleNotFoundError(
            "no hetfl_book: run `pip install . ./book` in a clone, restart the kernel"
        )
    %pip install --quiet "hetfl-core @ git+{REPOSITORY}" "hetfl-book @ git+{REPOSITORY}#subdirectory=book"'''
"""The cell that makes a chapter run on Colab; `make address` renews the address in it."""


def name(path: Path) -> str:
    return path.relative_to(BOOK).as_posix()


def pages() -> list[Path]:
    """Every page that has a source: prose and notebooks, but not the masters of the assignments."""
    prose = [p for p in BOOK.rglob("*.md") if not set(MADE) & set(p.parts)]
    return sorted(p for p in [*prose, *NOTEBOOKS] if not re.match(r"assignments/.*/", name(p)))


def text(path: Path) -> str:
    """The Markdown of a page."""
    if path.suffix == ".md":
        return path.read_text("utf8")
    cells = read(path).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@cache
def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def wrong(paths: Iterable[Path], look: Callable[[nbformat.NotebookNode], Iterable[Any]]) -> dict[str, list[Any]]:
    """What a look at each notebook finds, of those in which it finds something."""
    found = {name(path): list(look(read(path))) for path in paths}
    return {page: faults for page, faults in found.items() if faults}


OLDER = [path for path in CHAPTERS if path in CARRY]
"""Chapters that do not follow `test_part_one`."""


# --- notebooks --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error::nbformat.warnings.MissingIDFieldWarning")
def test_notebooks_are_valid_and_carry_nothing_that_was_run() -> None:
    def look(notebook: nbformat.NotebookNode) -> Iterator[str]:
        nbformat.validate(notebook)
        yield from ["widgets"] if "widgets" in notebook.metadata else []
        for cell in notebook.cells:
            if cell.get("outputs"):
                yield f"clear the outputs of: {cell.source[:80]}"
            if cell.get("execution_count") is not None:
                yield f"clear the execution count of: {cell.source[:80]}"
            if cell.get("attachments"):
                yield f"put attached pictures into _static: {cell.source[:80]}"

    read.cache_clear()  # what is read anew may warn
    assert wrong(NOTEBOOKS, look) == {}


def test_notebooks_read_no_file_beside_them() -> None:
    """In Colab, or after the page's download button, there is none: what is shipped, `data_path` finds."""
    relative = r"""(?:open|Path|read_\w+|imread|loadtxt|genfromtxt|np\.load)\(\s*r?f?["'](?!https?://|/)[^"'\n]*["']"""

    def look(notebook: nbformat.NotebookNode) -> list[str]:
        code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        return [found for found in re.findall(relative, code) if "utf" not in found]

    assert wrong(NOTEBOOKS, look) == {}


def test_notebooks_open_with_a_python_kernel_anywhere() -> None:
    assert wrong(NOTEBOOKS, lambda notebook: {notebook.metadata.kernelspec.name} - {"python3"}) == {}


def test_notebooks_start_with_their_one_title() -> None:
    def look(notebook: nbformat.NotebookNode) -> Iterator[str]:
        prose = [c.source for c in notebook.cells if c.cell_type == "markdown"]
        first = next(c for c in notebook.cells if c.cell_type != "raw")
        if first.cell_type != "markdown" or not re.match(r"# \S", first.source):
            yield f"does not start with its title: {first.source[:80]}"
        titles = [line for source in prose for line in outside_code(source) if line[:2] == "# "]
        yield from [] if len(titles) == 1 else titles

    assert wrong(NOTEBOOKS, look) == {}


def outside_code(source: str) -> Iterator[str]:
    fence = ""
    for line in source.splitlines():
        mark = re.match(r"\s*(`{3,}|:{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1] == fence:
            fence = ""
        elif not fence:
            yield line


def test_first_code_cell_of_a_chapter_installs_the_core() -> None:
    def look(notebook: nbformat.NotebookNode) -> Iterator[str]:
        first = next(c for c in notebook.cells if c.cell_type == "code")
        source = re.sub(r'(?<=REPOSITORY = ")[^"]*', "", first.source)
        yield from [] if source.startswith(INSTALL) else [f"the first code cell must start with:\n{INSTALL}"]

    assert wrong(OLDER, look) == {}


FOLDED = {"hide-input", "remove-input", "hide-cell", "remove-cell"}


def test_chapters_fit_into_a_lesson() -> None:
    """45 minutes, 4 400 words, those with results among them, and no code cell that is seen is longer than a screen."""

    def look(notebook: nbformat.NotebookNode) -> Iterator[str]:
        prose = [c.source for c in notebook.cells if c.cell_type == "markdown"]
        [minutes] = re.findall(r"\*\*What it takes\.\*\*[^*]*?(\d+) minutes", prose[0])
        words = sum(len(source.split()) for source in prose)
        if int(minutes) > 45 or words > 4400:
            yield f"{minutes} minutes, {words} words"
        for cell in notebook.cells:
            seen = cell.cell_type == "code" and not FOLDED & set(cell.metadata.get("tags", []))
            if seen and len(cell.source.splitlines()) > 30:
                yield f"fold or split the cell {cell.id}"

    assert wrong(OLDER, look) == {}


def test_exercises_have_hidden_solutions() -> None:
    def look(notebook: nbformat.NotebookNode) -> Iterator[str]:
        source = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
        exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: (\S+)", source)
        solutions = re.findall(r"\{solution(?:-start)?\} (\S+)[^\n]*\n((?::.*\n)*)", source)
        if not exercises:
            yield "a chapter has exercises"
        if len(exercises) != source.count("{exercise"):
            yield "every exercise carries a :label: on its first line"
        if {label for label, _ in solutions} != set(exercises):
            yield f"exercises {sorted(exercises)}, and solutions {sorted(label for label, _ in solutions)}"
        for label, options in solutions:
            if "dropdown" not in options:
                yield f"the solution of {label} is not hidden: give it ':class: dropdown'"

    assert wrong(CHAPTERS, look) == {}


# --- references -------------------------------------------------------------------------------------------------


def bibliography() -> list[str]:
    return re.findall(r"^@\w+\{([^,\s]+),", (BOOK / "references.bib").read_text("utf8"), re.MULTILINE)


def citations() -> dict[str, set[str]]:
    """Key of each citation, with the pages on which it occurs."""
    found: dict[str, set[str]] = {}
    for page in pages():
        for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text(page)):
            for key in keys.split(","):
                found.setdefault(key.strip(), set()).add(name(page))
    return found


def test_every_citation_is_in_the_bibliography() -> None:
    unknown = {key: where for key, where in citations().items() if key not in bibliography()}
    assert not unknown


def test_every_entry_of_the_bibliography_is_cited() -> None:
    entries = bibliography()
    assert len(entries) == len(set(entries)), "an entry stands twice"
    assert not set(entries) - set(citations())


def test_there_is_one_bibliography() -> None:
    assert [name(p) for p in pages() if "```{bibliography}" in text(p)] == ["bibliography.md"]


# --- table of contents, and what pages refer to -----------------------------------------------------------------


def contents() -> list[str]:
    """Files of the table of contents, without suffix."""

    def walk(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (node[key] for key in ("root", "file") if key in node)
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    return list(walk(yaml.safe_load((BOOK / "_toc.yml").read_text("utf8"))))


def test_contents_list_every_page_once() -> None:
    listed = [re.sub(r"\.(md|ipynb)$", "", file) for file in contents()]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name(p.with_suffix("")) for p in pages()}


def test_pictures_have_alt_text() -> None:
    for page in pages():
        source = text(page)
        assert not re.findall(r"!\[\s*\]\(", source), name(page)
        for options in re.findall(r"\{(?:image|figure)\}[^\n]*\n((?::.*\n)*)", source):
            assert re.search(r"^:alt: \S", options, re.MULTILINE), f"{name(page)}: no alt text: {options}"


def test_mathjax_is_vendored_with_its_licence_and_nothing_more() -> None:
    folder = BOOK / "_static" / "mathjax"
    assert (folder / "LICENSE").read_text().lstrip().startswith("Apache License")
    assert sorted(p.name for p in (BOOK / "_static").rglob("*.js")) == ["book.js", "tex-chtml.js"], (
        "each goes to all pages"
    )
    assert len(list((folder / "output/chtml/fonts/woff-v2").glob("*.woff"))) == 23


# --- notation ---------------------------------------------------------------------------------------------------


def test_names_of_the_notation_page_are_those_of_the_code() -> None:
    page = (BOOK / "notation.md").read_text("utf8")
    federation = datasets.digits.bundled()
    spec, method = federation.specs()[0], FLIC(covariance="learned")
    server = method.init_server(federation.specs(), rng.stream(0, rng.SERVER, 0, "init"))
    kept = method.init_client(spec, rng.stream(0, spec.name, 0, "init"))
    objects = {"federation": federation, "client": federation[0], "spec": spec, "model": method.model, "method": method}
    for thing, attribute in re.findall(r"`(federation|client|spec|model|method)\.(\w+)", page):
        assert hasattr(objects[thing], attribute), f"{thing}.{attribute}"
    for parameter in re.findall(r"`((?:anchor|phi|alpha|beta)\.\w+(?:\.\w+)?)", page):
        assert parameter in {**server, **kept}, parameter
    linear = {"LinearFederation": theory.linear_federation(2, k=3, d=1, n=4), "Bound": flic_bound.Bound}
    for thing, attribute in re.findall(r"`(LinearFederation|Bound)\.(\w+)", page):
        assert hasattr(linear[thing], attribute) or attribute in linear[thing].__annotations__, f"{thing}.{attribute}"
    for setting in re.findall(r"`(lambda\d|anchor_samples|local_epochs)`", page):
        assert hasattr(method, setting), setting


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def test_letters_that_mean_several_things_are_warned_of() -> None:
    listed = section((BOOK / "notation.md").read_text("utf8"), "Letters with several meanings")
    for letter in ("$W$", "$T$", r"$\kappa$", "$M$", "$z$", r"$\omega$", "$R$"):
        assert re.search(rf"^\| {re.escape(letter)} \|", listed, re.MULTILINE), letter


def test_glossary_has_one_line_for_each_term_and_only_terms_of_the_book() -> None:
    listed = section((BOOK / "notation.md").read_text("utf8"), "Glossary")
    entries = re.findall(r"^(\S.*)\n  (\S.*)\n(?=\n|```)", listed, re.MULTILINE)
    terms = [term for term, _ in entries]
    assert len(terms) > 30
    assert terms == sorted(terms, key=str.casefold), "in alphabetical order"
    assert len(entries) == len(re.findall(r"^  \S", listed, re.MULTILINE)), "one line for each"
    chapters = "\n".join(text(path) for path in CHAPTERS).casefold()
    for term in terms:
        for word in term.casefold().split(", "):
            assert word.rsplit(" ", 1)[0] in chapters, f"no chapter speaks of {term!r}"


# --- the book's own extension -----------------------------------------------------------------------------------


@pytest.fixture
def extension() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hetfl_site", BOOK / "_ext" / "hetfl_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_are_forgotten_when_their_inputs_change_and_only_then(
    extension: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HETFL_KEEP_RESULTS", raising=False)
    app, config = SimpleNamespace(), SimpleNamespace(nb_execution_cache_path=str(tmp_path / "cache"))
    monkeypatch.setattr(extension, "inputs_digest", lambda: "one")
    extension.forget_stale_results(app, config)
    result = tmp_path / "cache" / "result"
    result.touch()
    extension.forget_stale_results(app, config)
    assert result.exists()
    monkeypatch.setattr(extension, "inputs_digest", lambda: "two")
    monkeypatch.setenv("HETFL_KEEP_RESULTS", "1")
    extension.forget_stale_results(app, config)
    assert result.exists()
    monkeypatch.delenv("HETFL_KEEP_RESULTS")
    extension.forget_stale_results(app, config)
    assert not result.exists()


def test_digest_of_the_inputs_sees_the_core_and_the_data(
    extension: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hetfl_core").mkdir()
    (tmp_path / "constraints.txt").touch()
    monkeypatch.setattr(extension, "ROOT", tmp_path)
    monkeypatch.setattr(extension, "data_at_hand", lambda: "none")
    digests = {extension.inputs_digest()}
    (tmp_path / "hetfl_core" / "a.py").write_text("1")
    digests.add(extension.inputs_digest())
    monkeypatch.setattr(extension, "data_at_hand", lambda: "some")
    digests.add(extension.inputs_digest())
    assert len(digests) == 3


# --- the repository's address -----------------------------------------------------------------------------------

PROJECT = """[project]
name = "a"
"""
SOMEWHERE = "https://github.com/owner/name"


@pytest.fixture
def copy(extension: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with no address and no remote, and with every file that repeats the address."""
    for path, _ in extension.repeated():
        place = tmp_path / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path.read_text("utf8"), "utf8")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    if subprocess.run(["git", "init", "-q", str(tmp_path)], check=False).returncode:
        pytest.skip("git is not installed")
    monkeypatch.setattr(extension, "ROOT", tmp_path)
    return tmp_path


def put(copy: Path, setting: str = "", remote: str = "") -> None:
    """Set the address of the project, and the remote of its checkout."""
    (copy / "pyproject.toml").write_text(PROJECT + (f'[project.urls]\nRepository = "{setting}"\n' if setting else ""))
    if remote:
        subprocess.run(["git", "-C", str(copy), "config", "remote.origin.url", remote], check=True)


def test_the_address_is_the_setting_else_a_public_remote_else_none(extension: ModuleType, copy: Path) -> None:
    assert extension.repository() == ""
    put(copy, remote="git@github.com:other/name.git")
    assert extension.repository() == "https://github.com/other/name"
    put(copy, setting="https://example.org/a/b/")
    assert extension.repository() == "https://example.org/a/b"
    for wrong in ("example.org/a/b", "http://localhost/a", "/srv/git/a", "https://example.org"):
        put(copy, setting=wrong)
        with pytest.raises(ValueError, match=re.escape(f"must look like https://host/owner/name, got '{wrong}'")):
            extension.repository()
    put(copy)
    (copy / ".git").rename(copy / "elsewhere")
    assert extension.repository() == "", "a copy without its git folder has no remote"


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/owner/name.git", SOMEWHERE),
        ("https://github.com/owner/name/", SOMEWHERE),
        ("http://github.com/owner/name", SOMEWHERE),
        ("https://somebody:secret@github.com/owner/name.git", SOMEWHERE),
        ("git@github.com:owner/name.git", SOMEWHERE),
        ("ssh://git@github.com/owner/name", SOMEWHERE),
        ("https://gitlab.com/group/part/name.git", "https://gitlab.com/group/part/name"),
        ("", ""),
        ("/srv/git/name.git", ""),
        ("file:///srv/git/github.com/owner/name", ""),
        ("../github.com/owner/name", ""),
        ("git@build.internal:owner/name.git", ""),
        ("https://127.0.0.1:3000/owner/name", ""),
        ("https://github.com.internal/owner/name", ""),
        ("https://github.com/owner", ""),
    ],
)
def test_which_remotes_are_public(extension: ModuleType, remote: str, address: str) -> None:
    assert extension.public(remote) == address


def addresses(root: Path) -> dict[str, list[str]]:
    """The addresses of the repository in the files that repeat it."""
    found = {
        "README.md": r"git clone ([^\s`]+)",
        "CITATION.cff": r'^repository-code: "(.*)"$',
        "book/**/*.ipynb": r'(?:"REPOSITORY = \\"|git\+)(https:[^"\\#]*)',
    }
    paths = {p: pattern for glob, pattern in found.items() for p in root.glob(glob) if not set(MADE) & set(p.parts)}
    return {p.name: re.findall(pattern, p.read_text("utf8"), re.MULTILINE) for p, pattern in paths.items()}


def test_address_is_written_wherever_it_is_repeated_and_taken_out_again(extension: ModuleType, copy: Path) -> None:
    extension.write_address()
    before = {path: path.read_text("utf8") for path, _ in extension.repeated()}
    assert len(before) == len(NOTEBOOKS) + 2
    assert {address for found in addresses(copy).values() for address in found} == set()
    for address in (SOMEWHERE, "https://example.org/a/b"):
        put(copy, setting=address)
        extension.write_address()
        found = addresses(copy)
        carry = {path.name for path in CARRY} | {"README.md", "CITATION.cff"}
        assert all(set(here) == {address} if page in carry else not here for page, here in found.items()), found
        assert all(len(found[f"assignment{n}.ipynb"]) == 3 for n in range(1, 7)), (
            "the install cell, and the two packages that otter installs"
        )
        assert yaml.safe_load((copy / "CITATION.cff").read_text("utf8"))["repository-code"] == address
        for path, _ in extension.repeated():
            if path.suffix == ".ipynb":
                nbformat.validate(nbformat.read(path, as_version=4))
    put(copy)
    extension.write_address()
    assert {path: path.read_text("utf8") for path, _ in extension.repeated()} == before


def test_tracked_files_know_one_address_or_none(extension: ModuleType) -> None:
    """The one that is set; where none is set, that of the remote, if `make address` took it from there."""
    found = {address for here in addresses(ROOT).values() for address in here}
    assert found <= {extension.setting() or extension.repository()}, "run 'make address'"
    placeholder = "/".join(["hetfl", "hetfl-book"])
    named = [path for path, _ in extension.repeated() if placeholder in path.read_text("utf8")]
    named += [path for path in [*pages(), ROOT / "pyproject.toml"] if placeholder in path.read_text("utf8")]
    assert not named or placeholder in extension.repository(), f"an address that nobody has set: {named}"


def test_without_an_address_an_assignment_asks_no_index_for_the_core(extension: ModuleType, copy: Path) -> None:
    extension.write_address()
    for path in copy.glob("book/assignments/*/*.ipynb"):
        config = nbformat.read(path, as_version=4).cells[0].source
        assert "matplotlib" in config
        assert "hetfl" not in config


def run_cell(source: str, **found: bool) -> list[str]:
    """What an install cell asks pip to install where only these packages are found."""
    from IPython.core.interactiveshell import InteractiveShell

    shell, asked = InteractiveShell(), []
    shell.register_magic_function(asked.append, magic_name="pip")
    shell.user_ns["importlib"] = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: found.get(name) or None))
    result = shell.run_cell(source.replace("import importlib.util\n", ""))
    result.raise_error()
    return asked


def test_install_cells_say_what_to_do_or_install_from_the_address() -> None:
    """Each that there is: chapters have the same one, notebooks of assignments another."""
    cells = {next(c.source for c in read(path).cells if c.source.count("REPOSITORY = ")) for path in CARRY}
    end = '#subdirectory=book"'
    for kind in sorted({cell.partition(end)[0] + end for cell in cells}):
        cell = re.sub(r'(?<=REPOSITORY = ")[^"]*', "", kind)
        assert run_cell(cell, hetfl_core=True, hetfl_book=True, otter=True) == []
        with pytest.raises(ModuleNotFoundError, match=r"run `pip install \. \./book` in a clone"):
            run_cell(cell, otter=True)
        filled = cell.replace('REPOSITORY = ""', f'REPOSITORY = "{SOMEWHERE}"')
        (asked,) = run_cell(filled, otter=True)
        assert asked.endswith(f'"hetfl-core @ git+{SOMEWHERE}" "hetfl-book @ git+{SOMEWHERE}#subdirectory=book"')


CONF = """
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("hetfl_site", {extension!r})
book = importlib.util.module_from_spec(spec)
spec.loader.exec_module(book)
book.repository = lambda: {address!r}
sys.path.insert(0, {folder!r})
extensions = ["myst_nb", "hetfl_copies"]
sys.modules["hetfl_site"] = book
html_theme = "sphinx_book_theme"
html_theme_options = {{"launch_buttons": {{"binderhub_url": "https://mybinder.org", "colab_url": "https://colab.research.google.com"}}}}
nb_execution_mode = "off"
exclude_patterns = ["_build"]

def setup(app):
    app.connect("config-inited", book.set_address)
    app.connect("source-read", book.fill_in)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("address", ["", SOMEWHERE, "https://gitlab.com/group/name", "https://example.org/a/b"])
def test_no_button_leads_nowhere(tmp_path: Path, address: str) -> None:
    """A book of two pages: every address outside that it links to begins with the one that is known."""
    folder = BOOK / "_ext"
    conf = CONF.format(extension=str(folder / "hetfl_site.py"), folder=str(folder), address=address)
    (tmp_path / "conf.py").write_text(conf, "utf8")
    alone = re.sub(r"\{ref\}`([^<`]*)<[^`]*>`", r"\1", (BOOK / "how-to-run.md").read_text("utf8"))
    alone = re.sub(r"\[([^\]]*)\]\([\w-]+\.(?:ipynb|md)[^)]*\)", r"\1", alone)
    (tmp_path / "index.md").write_text(alone + TOC, "utf8")
    chapter = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A chapter")])
    chapter.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(chapter, tmp_path / "chapter.ipynb")
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", str(tmp_path), str(tmp_path / "_build")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {name: (tmp_path / "_build" / f"{name}.html").read_text("utf8") for name in ("chapter", "index")}
    buttons = set(re.findall(r'<a href="(http[^"]*)"', pages["chapter"].partition("<article")[0]))
    launch = {
        "https://colab.research.google.com/github/owner/name/blob/notebooks/chapter.ipynb",
        "https://mybinder.org/v2/gh/owner/name/main?urlpath=tree/book/chapter.ipynb",
    }
    on_github = address == SOMEWHERE
    assert buttons & launch == (launch if on_github else set())
    known = address.startswith(("https://github.com", "https://gitlab.com"))
    assert all(known and link.startswith(address) for link in buttons - launch), buttons
    assert bool(buttons) == known
    text = re.sub(r"<[^>]+>", "", pages["index"])
    assert ("The rocket on top" in text) == on_github
    assert ("no buttons that open a chapter elsewhere" in text) == (not on_github)
    assert (f"git clone {address}" in text) == bool(address)
    assert ("In a clone of this repository:" in text) == (not address)
    assert (f'href="{address}/issues"' in pages["index"]) == bool(address)
    copy = nbformat.read(tmp_path / "_build" / "_sources" / "chapter.ipynb", as_version=4)
    nbformat.validate(copy)
    assert [cell.cell_type for cell in copy.cells] == ["markdown", "code"]
    assert copy.cells[1].source == INSTALL.replace('REPOSITORY = ""', f'REPOSITORY = "{address}"')
    assert ("report it where you got this book" in text) == (not address)


def test_copies_have_an_install_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BOOK / "_ext")
    added = importlib.import_module("hetfl_copies")
    assert added.INSTALL == INSTALL
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A page")])
    text = added.with_install(nbformat.writes(page), SOMEWHERE)
    assert added.with_install(text, "") == text
    for path in CARRY:
        assert added.with_install(path.read_text("utf8"), "") == path.read_text("utf8")


def test_copies_are_pushed_alone_onto_their_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BOOK / "_ext")
    added = importlib.import_module("hetfl_copies")
    root, remote = tmp_path / "clone", tmp_path / "remote"
    if subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=False).returncode:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), "remote", "add", "origin", str(remote)], check=True)
    (root / "kept.txt").write_text("mine")
    subprocess.run(["git", "-C", str(root), "add", "kept.txt"], check=True)
    with pytest.raises(FileNotFoundError, match="run 'make book' first"):
        added.publish(root / "html", root)
    for file in ("a.ipynb", "in/b.ipynb", "c.md"):
        (root / "html" / "_sources" / file).parent.mkdir(parents=True, exist_ok=True)
        (root / "html" / "_sources" / file).write_text("{}")
    for _ in range(2):
        added.publish(root / "html", root)
    ask = ["git", "-C", str(remote)]
    assert subprocess.check_output([*ask, "ls-tree", "-r", "--name-only", added.COPIES], text=True).split() == [
        "a.ipynb",
        "in/b.ipynb",
    ]
    assert subprocess.check_output([*ask, "rev-list", "--count", added.COPIES], text=True).strip() == "1"
    staged = subprocess.check_output(["git", "-C", str(root), "diff", "--cached", "--name-only"], text=True)
    assert staged.split() == ["kept.txt"], "what the clone was about to commit is as it was"


TOC = """
```{toctree}
chapter
```
"""


@pytest.mark.nightly
def test_the_ledger_in_a_table(extension: ModuleType) -> None:
    """Counted anew from the ledger's own lines, of papers: a claim of one's own has no row there."""
    said = extension.tally_table().split("\n")
    numbers, claims = ledger.numbers(known=experiments.known()), ledger.claims(known=experiments.known())
    claims = claims[(claims["part_of"] == "") & claims["paper"].isin(ledger.SOURCES)]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in said}
    for paper, mine in numbers.groupby("paper"):
        ran = mine["verdict"].isin(["agrees", "higher", "lower"]).sum()
        assert rows[ledger.SOURCES.get(paper, paper)][0].startswith(f"{ran or 'none'} of {len(mine)}")
    for paper, mine in claims.groupby("paper"):
        judged = mine["p"].notna().sum()
        assert rows[ledger.SOURCES.get(paper, paper)][1].startswith(f"{judged or 'none'} of {len(mine)}")


def test_the_front_page_answers_for_each_paper(extension: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted anew from the records: paired differences whose interval excludes zero, also after Holm's correction."""
    said = extension.answers()
    stored = ledger.load(scale="paper")
    for row, (chapter, _, (method, rival, metric), _, settings) in zip(said, extension.ANSWERS, strict=True):
        assert f"]({chapter}.ipynb)" in row["method"]
        assert {f"{chapter}/{name}" for name in settings} <= set(experiments.EXPERIMENTS)
        pairs = [results.pair(stored, f"{chapter}/{name}", method, rival, metric) for name in settings]
        left = sorted((pair for pair in pairs if pair is not None), key=lambda pair: pair.p)
        n, more, less = len(left), 0, 0
        while left and left[0].p * len(left) <= 0.05:  # Holm: step down until one is not small enough
            mean = left.pop(0).mean
            more, less = more + (mean > 0), less + (mean < 0)
        assert [row[name] for name in ("settings", "better", "worse", "cannot tell")] == [n, more, less, len(left)]
    page, (first, *_) = (BOOK / "index.md").read_text("utf8"), extension.answers_table().split("\n")
    assert "{{ answers }}" in page
    assert first.startswith("| method | in its place | settings | better ")
    counts = {name: sum(row[name] for row in said) for name in ("settings", "better", "worse", "cannot tell")}
    assert f"in {counts['settings']} settings that follow these papers, " in page
    assert f"It was better {counts['better']} times and worse {counts['worse']} times, and " in page
    assert f"{counts['cannot tell']} times we cannot tell" in page
    monkeypatch.setattr("hetfl_book.ledger.load", lambda **_: [])
    assert [row["settings"] for row in extension.answers()] == [0] * 4


def test_the_front_page_says_which_edition_it_is(extension: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "repository", lambda: "https://github.com/somebody/book")
    said = extension.edition()
    cited = yaml.safe_load((BOOK.parent / "CITATION.cff").read_text("utf8"))
    names = [author["name"] for author in cited["authors"]]
    assert said.split(" · ")[:3] == [f"Version {cited['version']}", *names, f"{cited['license']} licence"]
    assert said.endswith("[repository](https://github.com/somebody/book)")
    monkeypatch.setattr(extension, "repository", lambda: "")
    assert extension.edition() == said.rpartition(" · ")[0]
    assert "{{ edition }}" in (BOOK / "index.md").read_text("utf8")


def test_pages_say_how_long_a_chapter_takes(
    extension: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The front page has every chapter, with the minutes that the chapter says itself."""
    page = (BOOK / "index.md").read_text("utf8")
    assert set(re.findall(r"{{ minutes ([\w-]+) }}", page)) == {path.stem for path in CHAPTERS}
    theorem = (BOOK / "flic-theory.ipynb").read_text("utf8")
    assert f"**What it takes.** {extension.minutes('flic-theory')} minutes" in theorem
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "quick.ipynb").write_text("**What it takes.** Courage.", "utf8")
    monkeypatch.setattr(extension, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"quick.ipynb: expected minutes in its metadata, or \*\*What it takes"):
        extension.minutes("quick")
    page = nbformat.v4.new_notebook(metadata={"minutes": 17, "kernelspec": {"name": "a", "display_name": "b"}})
    nbformat.write(page, tmp_path / "book" / "quick.ipynb")
    assert extension.minutes("quick") == "17"


def test_status_says_what_the_copy_was_made_with(extension: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    files = pd.DataFrame({"key": ["a/1", "a/2", "b/c/1", "b/c/2", "d/1"], "ok": [True, True, True, False, False]})
    monkeypatch.setattr("hetfl_core.datasets.registry.status", lambda: files)
    made = {
        "commit": "0123456789abcdef",
        "dirty": True,
        "versions": {"python": "3.12.1"},
        "hardware": {"cpu": "A CPU", "cores": 4, "gpu": None},
        "numerics": {"isa": "avx2"},
    }
    monkeypatch.setattr("hetfl_core.records.environment", lambda: made)
    rows = dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", extension.made_table(), re.MULTILINE))
    assert rows["commit"] == "`0123456789ab`, with changes that are not committed"
    assert rows["versions"].startswith("python 3.12.1, matplotlib ")
    assert rows["machine"].startswith("A CPU, 4 cores, no GPU, ")
    assert rows["data at hand"] == "a"
    assert rows["data at hand in part"] == "b/c (1 of 2 files)"
    assert rows["data not at hand"] == "d"
    assert extension.version("no-such-package") == "not installed"
    assert "{{ made }}" in (BOOK / "status.md").read_text("utf8")


# --- finished pages ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The extension that finishes pages."""
    spec = importlib.util.spec_from_file_location("hetfl_pages", BOOK / "_ext" / "hetfl_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_caption_is_the_first_sentence_of_the_alt_text(made: ModuleType) -> None:
    assert made.first_sentence("Accuracy at vs. 3.5 rounds, in per cent. More.") == (
        "Accuracy at vs. 3.5 rounds, in per cent."
    )
    assert made.first_sentence("Two panels. On the left, accuracy. More.") == "Two panels. On the left, accuracy."


def test_a_chapter_says_its_minutes_below_its_title(made: ModuleType, tmp_path: Path) -> None:
    def below(title: nodes.title, **metadata: object) -> list[str]:
        nbformat.write(nbformat.v4.new_notebook(metadata=metadata), tmp_path / "page.ipynb")
        page = nodes.document(None, None, "", nodes.section("", title, nodes.paragraph("", "Words.")))
        env = SimpleNamespace(docname="page", doc2path=lambda name: tmp_path / f"{name}.ipynb")
        made.say_minutes(SimpleNamespace(env=env), page)
        return [child.astext() for child in page[0].children]

    assert below(nodes.title("", "A title"), minutes=31) == ["A title", "About 31 minutes", "Words."]
    assert below(nodes.title("", "A title")) == ["A title", "Words."]


def test_a_caption_is_the_cells_own(made: ModuleType) -> None:
    picture = nodes.container("", nodes.image(alt="What there is. More."), nb_element="mime_bundle")
    cell = nodes.container("", nodes.container("", picture), nb_element="cell_code", cell_metadata={})
    assert made.caption_of(picture) == ""
    cell["cell_metadata"] = {"caption": "What to see."}
    assert made.caption_of(picture) == "What to see."
    assert made.caption_of(nodes.container()) == ""


def test_figures_say_what_to_see() -> None:
    """A caption does not repeat the alt text, and holds what a caption can show: no mathematics, no code."""
    for path in sorted(BOOK.glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf8"))["cells"]:
            alt = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt")
            caption = cell["metadata"].get("caption", "")
            where = f"{path.name}, cell {cell['id']}: {caption!r}"
            assert not alt or (20 < len(caption) < 200 and not alt.startswith(caption)), where
            assert not re.search(r"[$`{}]", caption), where


SCRIPT = 'var p={"x":[10,20,["ex"],"f1","M1"],y:[5,5,[],"f2","M2"]};!function(c){}(function(){d("fas",p)})'


def test_icons_are_drawn_by_any_of_their_names_and_never_missing(made: ModuleType) -> None:
    known = made.icons(SCRIPT)
    page = made.finished('<i class="a fa-solid fa-ex fa-lg" data-mode="dark" title="t"></i>', Path("a.html"), known)
    assert page == (
        '<svg class="a fa-solid fa-ex fa-lg svg-inline--fa" data-mode="dark" aria-hidden="true"'
        ' viewBox="0 0 10 20"><path fill="currentColor" d="M1"></path></svg>'
    )
    with pytest.raises(made.PageError, match="no icon called 'z'"):
        made.finished('<i class="fas fa-z"></i>', Path("a.html"), known)


def test_links_that_a_cell_prints_lead_to_pages(made: ModuleType, tmp_path: Path) -> None:
    """To a page that is there; notebooks that are no pages, such as one to download, keep their address."""
    (tmp_path / "there.html").touch()
    (tmp_path / "in").mkdir()
    for link, expected in {
        "there.ipynb": "there.html",
        "there.ipynb#place": "there.html#place",
        "_sources/there.ipynb": "_sources/there.ipynb",
        "https://a.example/there.ipynb": "https://a.example/there.ipynb",
        "gone.ipynb": "gone.ipynb",
    }.items():
        page = f'<article><a class="x" href="{link}">x</a></article>'
        assert made.finished(page, tmp_path / "a.html", {}) == page.replace(link, expected)
    page = '<a href="../there.ipynb">x</a>'
    assert made.finished(page, tmp_path / "in" / "a.html", {}) == page.replace("ipynb", "html")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("FedCR -0.06 [-0.59, +0.46]", "FedCR −0.06 [−0.59, +0.46]"),
        ("<td>-1.76</td><td>-.5 … (-2)</td>", "<td>−1.76</td><td>−.5 … (−2)</td>"),
        ('<img alt="from -1 to 1" src="a -1.png" style="margin:-1px" />', None),
        ("1-2, 2026-11-25, 1e-3, non-iid_1, (a)-1, --3, -x", None),
        ("<pre>-1 <b>-2</b></pre><code>-1</code><script>x = -1</script><svg>-1</svg>", None),
        ('<dt class="sig py">f(<span>x=-1</span>, y = -2)</dt>', None),
        (r'<span class="math">\(x < -1\)</span> \[ -1 \] -1', r'<span class="math">\(x < -1\)</span> \[ -1 \] −1'),
    ],
)
def test_numbers_below_zero_have_a_minus_sign(made: ModuleType, before: str, after: str | None) -> None:
    """In text, tables and what pictures are said to show; code, mathematics, ranges and names are left alone."""
    after = (after or before).replace("from -1", "from −1")
    assert made.finished(f"-1<article>{before}</article>-1", Path("a.html"), {}) == f"-1<article>{after}</article>-1"


def test_pictures_have_their_room_and_come_late(made: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "p.svg").write_text('<svg viewBox="0 0 100 400"></svg>', "utf8")
    page = '<article><img src="p.svg" style="width: 300px; height: 1200px;" /><img src="p.svg" /></article>'
    assert made.finished(page, tmp_path / "a.html", {}) == (
        '<article><img src="p.svg" width="300" height="1200" style="max-width: min(100%, 200px)" />'
        '<img src="p.svg" width="100" height="400" loading="lazy" decoding="async" /></article>'
    )
    assert made.finished(made.finished(page, tmp_path / "a.html", {}), tmp_path / "a.html", {}) == made.finished(
        page, tmp_path / "a.html", {}
    )
