"""The front page is true, and so is the one that goes through the book in 45 minutes; with its sections it takes them.

``python tests/test_tour.py`` writes the minutes into the page.
"""

from __future__ import annotations

import copy
import re
from importlib import import_module

import nbformat
import test_part_one as rules
from facts import failures, printed_numbers, whole

PAGE = "tour"
MOST = 45
LINK = re.compile(r"\]\(([\w-]+)\.ipynb(?:#([\w-]+))?\)")


def anchor(heading: str) -> str:
    """What Sphinx makes of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def sections(name: str) -> dict[str, nbformat.NotebookNode]:
    """The sections of a page as pages of their own, by their anchors; "" is what stands before the first."""
    found: dict[str, nbformat.NotebookNode] = {"": nbformat.v4.new_notebook()}
    current = ""
    for cell in rules.page(name).cells:
        parts = re.split(r"^## (.*)$", cell.source, flags=re.MULTILINE) if cell.cell_type == "markdown" else [None]
        for i, part in enumerate(parts):
            if i % 2:
                current = anchor(part)
                found[current] = nbformat.v4.new_notebook()
            else:
                piece = copy.deepcopy(cell)
                piece.source = cell.source if part is None else part
                found[current].cells.append(piece)
    return found


def read_on() -> list[tuple[str, str]]:
    """Page and section that the reader is asked to read, one after the other."""
    lines = re.findall(r"^\*\*Read on\.\*\*.*$", rules.markdown(rules.page(PAGE)), re.MULTILINE)
    return [(page, section) for line in lines for page, section in LINK.findall(line)]


def test_every_section_that_is_named_is_there() -> None:
    assert len({page for page, _ in read_on()}) == 5
    for page, section in read_on():
        assert section in sections(page), f"{page}.ipynb has no section {section!r}, only {list(sections(page))}"


def together() -> int:
    """Minutes of the page and of all sections that it names."""
    pieces = [rules.page(PAGE), *(sections(page)[name] for page, name in read_on())]
    return round(sum(map(rules.spent, pieces)))


def test_page_and_sections_take_45_minutes() -> None:
    told = rules.page(PAGE).metadata["minutes"]
    assert told == together(), f"metadata must have minutes {together()}, got {told}: run this file to write it"
    assert MOST - 10 <= told <= MOST


def test_cells_are_short_and_its_code_is_whole() -> None:
    page = rules.page(PAGE)
    for cell in rules.code(page):
        assert rules.lines(cell.source) <= rules.MOST_CELL, cell.id
    assert rules.of_imports(rules.code(page)) == []
    assert rules.of_the_opening(page) == []


def test_what_it_says_is_true() -> None:
    wrong = failures(whole(PAGE), import_module("facts.tour").FACTS, (), printed_numbers())
    assert not wrong, "\n".join([f"book/{PAGE}.ipynb", *wrong])


def test_what_the_front_page_says_is_true() -> None:
    """Numbers of its tables and settings are counted again in test_book.py."""
    front = import_module("facts.front")
    wrong = [w for w in failures(front.said(), front.FACTS, ()) if not w.startswith("NO FACT")]
    assert not wrong, "\n".join(["book/index.md", *wrong])


if __name__ == "__main__":
    notebook = rules.page(PAGE)
    notebook.metadata["minutes"] = together()
    nbformat.write(notebook, rules.BOOK / f"{PAGE}.ipynb")
