"""The sources of the book: notebooks without outputs, references, table of contents, exercises."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pytest
import yaml

from hetfl_core import datasets, rng
from hetfl_core.methods import FLIC
from hetfl_core.theory import flic as theory

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
MADE = ("_build", "dist", "generated", ".ipynb_checkpoints")
NOTEBOOKS = sorted(p for p in BOOK.rglob("*.ipynb") if not set(MADE) & set(p.parts))
CHAPTERS = [p for p in NOTEBOOKS if p.parent == BOOK]
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]

INSTALL = f'''\
# In Colab this installs the library; where it is installed already, nothing happens.
import importlib.util

if importlib.util.find_spec("hetfl_core") is None:
    %pip install --quiet "hetfl-core @ git+{ADDRESS}"'''
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
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.fixture(params=NOTEBOOKS, ids=name)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


@pytest.fixture(params=CHAPTERS, ids=name)
def chapter(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


# --- notebooks --------------------------------------------------------------------------------------------------


def test_notebook_is_valid_and_carries_nothing_that_was_run(notebook: nbformat.NotebookNode) -> None:
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        assert not cell.get("outputs"), f"clear the outputs of: {cell.source[:80]}"
        assert cell.get("execution_count") is None, f"clear the execution count of: {cell.source[:80]}"
        assert not cell.get("attachments"), f"put attached pictures into _static: {cell.source[:80]}"


def test_notebook_opens_with_a_python_kernel_anywhere(notebook: nbformat.NotebookNode) -> None:
    assert notebook.metadata.kernelspec.name == "python3"


def test_notebook_starts_with_its_title(notebook: nbformat.NotebookNode) -> None:
    cells = [c for c in notebook.cells if c.cell_type != "raw"]
    assert cells[0].cell_type == "markdown"
    assert re.match(r"# \S", cells[0].source)
    titles = [line for c in cells if c.cell_type == "markdown" for line in outside_code(c.source) if line[:2] == "# "]
    assert len(titles) == 1, titles


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


def test_first_code_cell_of_a_chapter_installs_the_core(chapter: nbformat.NotebookNode) -> None:
    first = next(c for c in chapter.cells if c.cell_type == "code")
    assert first.source.startswith(INSTALL), f"the first code cell must start with:\n{INSTALL}"


def test_exercises_have_hidden_solutions(chapter: nbformat.NotebookNode) -> None:
    source = "\n".join(c.source for c in chapter.cells if c.cell_type == "markdown")
    exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: (\S+)", source)
    solutions = re.findall(r"\{solution(?:-start)?\} (\S+)[^\n]*\n((?::.*\n)*)", source)
    assert exercises, "a chapter has exercises"
    assert len(exercises) == source.count("{exercise"), "every exercise carries a :label: on its first line"
    assert {label for label, _ in solutions} == set(exercises)
    for label, options in solutions:
        assert "dropdown" in options, f"the solution of {label} is not hidden: give it ':class: dropdown'"


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


@pytest.mark.parametrize("page", pages(), ids=name)
def test_pictures_have_alt_text(page: Path) -> None:
    source = text(page)
    assert not re.findall(r"!\[\s*\]\(", source)
    for options in re.findall(r"\{(?:image|figure)\}[^\n]*\n((?::.*\n)*)", source):
        assert re.search(r"^:alt: \S", options, re.MULTILINE), f"no alt text: {options}"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_pages_write_no_address_of_the_repository(page: Path) -> None:
    assert ADDRESS not in text(page), "write {{ repository }} on prose pages; notebooks need it in the first cell only"


def test_mathjax_is_vendored_with_its_licence_and_nothing_more() -> None:
    folder = BOOK / "_static" / "mathjax"
    assert (folder / "LICENSE").read_text().lstrip().startswith("Apache License")
    assert [p.name for p in (BOOK / "_static").rglob("*.js")] == ["tex-chtml.js"]
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
    linear = {"LinearFederation": theory.linear_federation(2, k=3, d=1, n=4), "Bound": theory.Bound}
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
    spec = importlib.util.spec_from_file_location("hetfl_book", BOOK / "_ext" / "hetfl_book.py")
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


def test_address_is_written_wherever_it_is_repeated(
    extension: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, cell = "https://example.org/a/b", nbformat.v4.new_code_cell(INSTALL)
    (tmp_path / "book").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "book" / "a.ipynb")
    for document in ("README.md", "CITATION.cff"):
        (tmp_path / document).write_text((ROOT / document).read_text("utf8"), "utf8")
    monkeypatch.setattr(extension, "ROOT", tmp_path)
    monkeypatch.setattr(extension, "repository", lambda: new)
    extension.write_address()
    for document in ("README.md", "CITATION.cff", "book/a.ipynb"):
        written = (tmp_path / document).read_text("utf8")
        assert new in written
        assert ADDRESS not in written
    assert nbformat.read(tmp_path / "book" / "a.ipynb", as_version=4).cells[0].source == INSTALL.replace(ADDRESS, new)


def test_every_module_has_a_page_with_all_that_is_public(extension: ModuleType) -> None:
    pages = {m.__name__: extension.module_page(m) for m in extension.modules()}
    assert "hetfl_core.methods.flic" in pages
    assert ".. autoclass:: FLIC" in pages["hetfl_core.methods.flic"]
    assert ".. autofunction:: stream" in pages["hetfl_core.rng"]
    assert ".. autodata:: SERVER" in pages["hetfl_core.rng"]
    assert "FLIC" not in pages["hetfl_core.methods"], "what a package imports stands on the page of its own module"
