"""The sources of the book: notebooks without outputs, references, table of contents, exercises."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
MADE = ("_build", "dist", "generated", ".ipynb_checkpoints")
NOTEBOOKS = sorted(p for p in BOOK.rglob("*.ipynb") if not set(MADE) & set(p.parts))
CHAPTERS = [p for p in NOTEBOOKS if p.parent == BOOK]
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]

INSTALL = f"""\
try:
    import hetfl_core
except ImportError:  # on Colab
    %pip install -q "hetfl-core[eeg] @ git+{ADDRESS}"
    import hetfl_core"""
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
