"""Pages of Part I: of few cells, with one pattern, and honest about the minutes that they take.

``python tests/test_part_one.py`` writes the minutes into the pages of `WRITTEN`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

BOOK = Path(__file__).resolve().parents[1] / "book"

FACTS = Path(__file__).parent / "facts" / "part_one"

WRITTEN = tuple(sorted(path.stem.replace("_", "-") for path in FACTS.glob("[!_]*.py")))
"""Pages of Part I that are written in its pattern: each has a file of facts."""

TAUGHT = {*WRITTEN, "tour"}
"""These, and the page that goes through all of them: the build gives them an install cell."""

MOST_CELL, MOST_PAGE, MOST_IMPORTS = 25, 150, 8
"""Lines of code that are not blank, of a cell, of a page and of its imports, hidden ones too, after the formatter."""

MOST_MINUTES = 35
WORDS_A_MINUTE = 110
SECONDS = {"equation": 45, "line": 5, "figure": 40}
"""Of a displayed equation, of a line of code that is seen, and of a figure."""

UNSEEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
BARE = {"remove-input", "remove-cell"}
"""Tags of cells of which not even a grey bar is seen."""

Page = nbformat.NotebookNode


def page(name: str) -> Page:
    return nbformat.read(BOOK / f"{name}.ipynb", as_version=4)


def code(page: Page) -> list[Any]:
    return [cell for cell in page.cells if cell.cell_type == "code"]


def markdown(page: Page) -> str:
    return "\n\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")


def tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def lines(source: str) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())


def alt(cell: Any) -> str:
    return str(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", ""))


EQUATION = re.compile(r"\$\$.*?\$\$", re.DOTALL)
PICTURE = re.compile(r"\{(?:figure|image)\}")
NO_WORDS = re.compile(
    r"```.*?```|\$[^$\n]+\$|`[^`\n]+`|\]\([^)]*\)|^:+\{[^}]*\}|^:[a-z-]+:[^\n]*|^\([\w-]+\)=$|\{[a-z:]+\}|[|#*_]",
    re.DOTALL | re.MULTILINE,
)
"""Code, formulas in a line, links' targets, the names and options of directives, marks of Markdown."""


def words(page: Page) -> int:
    """Words that are read: lesson, boxes, exercises with their solutions, captions; not those of code and formulas."""
    told = [EQUATION.sub(" ", markdown(page)), *(cell.metadata.get("caption", "") for cell in code(page))]
    return len(re.findall(r"[^\W\d_][\w'’-]*", NO_WORDS.sub(" ", "\n\n".join(told))))


def minutes(page: Page) -> int:
    """What a page takes, rounded to the nearest minute."""
    return round(spent(page))


def spent(page: Page) -> float:
    """What a page takes by the rule, in minutes."""
    text = markdown(page)
    figures = sum("caption" in cell.metadata for cell in code(page)) + len(PICTURE.findall(text))
    seen = sum(lines(cell.source) for cell in code(page) if not tags(cell) & UNSEEN)
    seconds = len(EQUATION.findall(text)) * SECONDS["equation"] + seen * SECONDS["line"] + figures * SECONDS["figure"]
    return words(page) / WORDS_A_MINUTE + seconds / 60


def faults(page: Page) -> list[str]:
    """What is against the rules of Part I, one message each."""
    cells, text, found = code(page), markdown(page), []
    for cell in cells:
        if lines(cell.source) > MOST_CELL:
            found.append(f"cell {cell.id} has {lines(cell.source)} lines, more than {MOST_CELL}")
        if made := re.search(r"\b(?:say|Markdown)\(", cell.source):
            found.append(f"cell {cell.id} puts prose together: {made[0]}…)")
        if bool(cell.metadata.get("caption")) != bool(alt(cell)):
            found.append(f"cell {cell.id} needs both a caption and an alternative text, or neither")
    if (n := sum(lines(cell.source) for cell in cells)) > MOST_PAGE:
        found.append(f"{n} lines of code, more than {MOST_PAGE}")
    return found + of_imports(cells) + of_the_opening(page) + of_the_ends(text) + of_the_minutes(page)


def of_imports(cells: list[Any]) -> list[str]:
    trees = {cell.id: ast.parse(cell.source).body for cell in cells}
    importing = [i for i, tree in trees.items() if any(isinstance(s, ast.Import | ast.ImportFrom) for s in tree)]
    if not cells or importing != [cells[0].id]:
        return [f"imports belong into the first cell of code and into no other, got {importing}"]
    if lines(cells[0].source) > MOST_IMPORTS or not all(
        isinstance(s, ast.Import | ast.ImportFrom) for s in trees[cells[0].id]
    ):
        return [f"cell {cells[0].id} must hold imports alone, in at most {MOST_IMPORTS} lines"]
    return []


def of_the_opening(page: Page) -> list[str]:
    """A picture before the first section, and no grey bar above it."""
    for cell in page.cells:
        if cell.cell_type == "markdown":
            before, section, _ = f"\n{cell.source}".partition("\n## ")
            if PICTURE.search(before):
                return []
            if section:
                break
        elif not tags(cell) & BARE:
            return [f"cell {cell.id} stands above or is the first picture, and needs the tag remove-input"]
        elif cell.metadata.get("caption"):
            return []
    return ["there is no picture before the first section"]


def of_the_ends(text: str) -> list[str]:
    found = []
    if re.search(r"^`{3,}\{", text, re.MULTILINE):
        found.append("directives are fenced by colons, so that their words are read")
    if not 3 <= len(re.findall(r"\{exercise(?:-start)?\}", text)) <= 5:
        found.append("there must be three to five exercises")
    if text.count("How sure are we?") != 1:
        found.append("there must be one box 'How sure are we?'")
    if not re.search(r"\{(?:admonition|tip)\} Two minutes", text):
        found.append("there must be a check of two minutes, {admonition} Two minutes: …")
    for heading, mark, n in (("Quiz", r"\d\. ", 5), ("Three things to take away", "- ", 3)):
        body = re.split(r"^## ", (f"{text}\n## ".partition(f"\n## {heading}\n")[2]), flags=re.MULTILINE)[0]
        if len(re.findall(rf"^{mark}", body, re.MULTILINE)) != n:
            found.append(f"the section '{heading}' must have {n} items")
    return found


def of_the_minutes(page: Page) -> list[str]:
    told, counted = page.metadata.get("minutes"), minutes(page)
    found = [] if told == counted else [f"metadata must have minutes {counted}, got {told}: run this file to write it"]
    return found + ([f"it takes {counted} minutes, more than {MOST_MINUTES}"] if counted > MOST_MINUTES else [])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_keeps_the_rules(name: str) -> None:
    found = faults(page(name))
    assert not found, "\n".join([f"book/{name}.ipynb", *found])


# --- the rules themselves ---------------------------------------------------------------------------------------------

EXERCISE = ":::{exercise}\n:label: ex-a\nWhy?\n:::\n\n:::{solution} ex-a\n:class: dropdown\nSo.\n:::\n\n"
ENDS = (
    "## The idea\n\n:::{admonition} Two minutes: why?\nSay it.\n:::\n\n## Exercises\n\n"
    + 3 * EXERCISE
    + "## Quiz\n\n"
    + "".join(f"{i}. A question?\n" for i in range(1, 6))
    + "\n:::{admonition} How sure are we?\nFairly.\n:::\n\n"
    + "## Three things to take away\n\n- one\n- two\n- three\n\nNext."
)


def made(**changes: Any) -> Page:
    """A small page without a fault, with some cells' sources, tags or captions changed."""
    cells = {
        "title": nbformat.v4.new_markdown_cell("# Title", id="title"),
        "imports": nbformat.v4.new_code_cell("import torch", id="imports", metadata={"tags": ["remove-input"]}),
        "picture": nbformat.v4.new_code_cell("torch.zeros(1)", id="picture", metadata={"tags": ["remove-input"]}),
        "lesson": nbformat.v4.new_markdown_cell(ENDS, id="lesson"),
        "code": nbformat.v4.new_code_cell("x = 1\n\ny = 2", id="code"),
    }
    cells["picture"].metadata |= {"caption": "What to see.", "mystnb": {"image": {"alt": "What there is."}}}
    for name, change in changes.items():
        cells[name].update(nbformat.from_dict(change))
    found = nbformat.v4.new_notebook(cells=[*cells.values()])
    found.metadata["minutes"] = minutes(found)
    return found


def test_a_page_without_a_fault_has_none() -> None:
    assert faults(made()) == []


MANY = "\n".join(f"x{i} = {i}" for i in range(30))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"code": {"source": MANY}}, "cell code has 30 lines, more than 25"),
        ({"code": {"source": "say('So it is')"}}, "cell code puts prose together: say("),
        ({"code": {"source": "import numpy"}}, "imports belong into the first cell"),
        ({"imports": {"source": "import torch\n\nx = 1"}}, "must hold imports alone"),
        ({"imports": {"source": "import torch\n" * 9}}, "in at most 8 lines"),
        ({"imports": {"metadata": {}}}, "needs the tag remove-input"),
        ({"picture": {"metadata": {"tags": ["remove-input"]}}}, "no picture before the first section"),
        ({"code": {"metadata": {"caption": "What?"}}}, "cell code needs both a caption"),
        ({"lesson": {"source": ENDS.replace("- three", "")}}, "'Three things to take away' must have 3 items"),
        ({"lesson": {"source": ENDS.replace("5. A", "A")}}, "'Quiz' must have 5 items"),
        ({"lesson": {"source": ENDS.replace(EXERCISE, "", 1)}}, "three to five exercises"),
        ({"lesson": {"source": ENDS.replace(":::", "```")}}, "fenced by colons"),
        ({"lesson": {"source": ENDS.replace("How sure", "How")}}, "one box 'How sure are we?'"),
        ({"lesson": {"source": ENDS.replace("Two minutes", "Think")}}, "a check of two minutes"),
        ({"lesson": {"source": ENDS + " word" * 4000}}, "more than 35"),
    ],
)
def test_a_fault_is_told(changes: dict[str, Any], fault: str) -> None:
    assert fault in "\n".join(faults(made(**changes)))


def test_a_page_says_the_minutes_that_the_rule_gives() -> None:
    page = made()
    page.metadata["minutes"] += 1
    assert "run this file" in faults(page)[0]


def test_a_page_of_six_long_cells_is_too_long() -> None:
    page = made()
    page.cells += [nbformat.v4.new_code_cell("\n".join(MANY.splitlines()[:25])) for _ in range(6)]
    assert any("lines of code, more than 150" in fault for fault in faults(page))


def test_minutes_are_those_of_words_equations_lines_and_figures() -> None:
    lesson = " ".join(["word"] * 220) + 2 * "\n\n$$\nx = 1\n$$\n\n" + "```python\nnot read\n```\n\n{cite:p}`a` $z$"
    lesson += "\n\n:::{tip} two words\n:class: not-read\nthree more words\n:::"
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(lesson)])
    page.cells += [nbformat.v4.new_code_cell("x = 1\n\n" * 12), nbformat.v4.new_code_cell("y = 1\n" * 20)]
    page.cells[-1].metadata |= {"tags": ["hide-input"], "caption": ""}
    assert words(page) == 225
    assert minutes(page) == round(225 / 110 + 2 * 0.75 + 12 * 5 / 60 + 40 / 60)


if __name__ == "__main__":
    for name in WRITTEN:
        found = page(name)
        found.metadata["minutes"] = minutes(found)
        nbformat.write(found, BOOK / f"{name}.ipynb")
        print(f"book/{name}.ipynb: {words(found)} words, {found.metadata['minutes']} minutes")
