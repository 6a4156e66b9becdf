"""What pages say is what the records say: those of Part I as a whole, the papers' pages where they sum up."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re

import pytest
from facts import BOOK, RESULT, Page, cells, failures, headline, headline_cells, printed_numbers, ran, whole
from test_part_one import WRITTEN

PAPERS = ("flic", "fedcr", "fedcma", "hyfem")
PAGES = sorted(path.stem for path in BOOK.glob("*.ipynb") if path.stem.startswith(PAPERS) and path.stem not in WRITTEN)
"""Of the papers; those of Part I stand in `WRITTEN`."""

MOST_SECONDS = 40
"""Of CPU time for all cells of a page of Part I: twice what is asked for, since clocks differ."""

TRUE = "Of 7 runs 5 are better. It gains 1.6 points (0.8 to 2.4), and with 32 clients −0.3. The paper prints 76.28."
FACTS = [
    ("Of {} runs {} are better", 7, 5),
    ("gains {:.1f} points ({:.1f} to {:.1f}),", 1.64, 0.84, 2.41, True),
    ("with 32 clients {:.1f}.", -0.31),
]


def test_a_true_text_has_no_failure() -> None:
    assert failures(TRUE, FACTS, printed={"76.28"}) == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("1.6 points", "1.7 points", "would be true:  … gains 1.6 points (0.8 to 2.4), …"),
        ("−0.3", "0.3", "with 32 clients −0.3."),
        ("76.28", "76.29", "NO FACT FOR 76.29"),
        ("prints 76.28.", "prints 76.28. That is 3 % off.", "NO FACT FOR 3"),
        ("prints 76.28.", "prints 76.28. That is 4 of 5.", "NO FACT FOR 4"),
        ("prints 76.28.", "prints 76.28. Of these 13 hold.", "NO FACT FOR 13"),
    ],
)
def test_a_false_one_is_told_what_would_be_true(before: str, after: str, message: str) -> None:
    found = "\n".join(failures(TRUE.replace(before, after), FACTS, printed={"76.28"}))
    assert message in found
    assert ("stands there" in found) == ("would be" in found) or "NO FACT" in found


def test_a_condition_that_fails_is_told_too() -> None:
    [found] = failures("It is ahead.", [("It is ahead", False)])
    assert found.startswith("NO LONGER TRUE")
    assert failures("It is ahead of 5.", [("It is ahead", True)], given=["ahead of 6"]) == [
        "GIVEN, BUT NOT THERE: ahead of 6"
    ]


@pytest.mark.parametrize("page", PAGES)
def test_no_headline_is_put_together_by_code(page: str) -> None:
    code = "\n".join(cell["source"] for cell in headline_cells(page) if cell["cell_type"] == "code")
    assert not re.search(r"\b(?:say|Markdown)\(", code), "a person writes it, and tests/facts says why it is true"


@pytest.mark.parametrize("page", PAGES)
def test_headlines_say_what_the_records_say(page: str) -> None:
    of_paper = importlib.import_module(f"facts.{page.partition('-')[0]}")
    wrong = failures(headline(page), of_paper.facts(page), of_paper.GIVEN.get(page, ()), printed_numbers())
    assert not wrong, "\n".join([f"book/{page}.ipynb", *wrong])


@pytest.mark.parametrize("page", ["hyfem-results", "fedcr-results"])
def test_sections_below_say_what_the_records_say(page: str) -> None:
    """The sentences that have facts; others are not looked for."""
    facts = importlib.import_module(f"facts.{page.partition('-')[0]}").BELOW[page]()
    wrong = [told for told in failures(whole(page), facts) if not told.startswith("NO FACT")]
    assert not wrong, "\n".join([f"book/{page}.ipynb", *wrong])


def test_every_page_has_facts() -> None:
    assert all(cells(page) for page in PAGES)
    for paper in PAPERS:
        of_paper = importlib.import_module(f"facts.{paper}")
        assert set(of_paper.PAGES) == {page for page in PAGES if page.partition("-")[0] == paper}


# --- pages of Part I --------------------------------------------------------------------------------------------------


def of_page(page: str):
    return importlib.import_module(f"facts.part_one.{page.replace('-', '_')}")


@pytest.mark.nightly
@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_of_part_one_says_what_the_records_and_its_own_cells_say(page: str) -> None:
    """One test a page, so that its cells run once, and only where a fact asks for what they computed."""
    its = of_page(page)
    live = any(callable(value) for fact in its.FACTS for value in fact[1:])
    found = ran(page) if live else None
    wrong = failures(whole(page), its.FACTS, its.GIVEN, printed_numbers(), found)
    assert not wrong, "\n".join([f"book/{page}.ipynb", *wrong])
    if found is not None:
        assert found["seconds"] <= MOST_SECONDS, f"the page's cells take {found['seconds']:.0f} s of CPU"


def test_facts_of_part_one_belong_to_its_chapters() -> None:
    learn, _ = (BOOK / "_toc.yml").read_text("utf8").split("caption: Do the papers hold?")
    assert WRITTEN
    assert set(WRITTEN) <= set(re.findall(r"- file: (\S+)", learn))


def test_a_fact_may_be_a_function_of_what_the_page_computed() -> None:
    facts = [("falls to {:.1f}", lambda page: page["x"]), ("and is small", lambda page: page["x"] < 1)]
    assert failures("It falls to 0.5 and is small.", facts, page={"x": 0.52}) == []
    assert len(failures("It falls to 0.5 and is small.", facts, page={"x": 1.4})) == 2


def test_a_page_is_read_whole_and_run_once(tmp_path, monkeypatch) -> None:
    source = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# T\n\n## One\n\nHere $x = 3.5$ is 7 %."},
        {"cell_type": "code", "id": "b", "metadata": {"caption": "Of 8 %."}, "source": "y = 2\nz = y + 1"},
    ]
    (tmp_path / "page.ipynb").write_text(json.dumps({"cells": source}), "utf8")
    monkeypatch.setattr("facts.BOOK", tmp_path)
    ran.cache_clear()
    assert [hit[0] for hit in RESULT.finditer(whole("page"))] == ["7", "8"]
    assert ran("page")["z"] == 3
    assert ran("page") is ran("page")
    ran.cache_clear()


def test_what_the_build_kept_is_taken_unless_code_or_page_are_newer(tmp_path, monkeypatch) -> None:
    """Variable by variable; one that was not kept has the cells run."""
    monkeypatch.setattr("facts.BOOK", tmp_path)
    page, file = tmp_path / "page.ipynb", tmp_path / "_build" / "variables" / "page.pkl"
    file.parent.mkdir(parents=True)
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": "y = 2\nz = y + 1"}
    page.write_text(json.dumps({"cells": [cell]}), "utf8")
    file.write_bytes(pickle.dumps({"y": pickle.dumps(7)}))
    found = Page("page")
    assert found["y"] == 7
    assert (found["z"], found["y"]) == (3, 2), "all of one run"
    file.write_bytes(pickle.dumps({"y": b"of another version"}))
    assert Page("page")["y"] == 2
    file.write_bytes(pickle.dumps({"y": pickle.dumps(7)}))
    (tmp_path / "hetfl_book").mkdir()
    code = tmp_path / "hetfl_book" / "new.py"
    code.touch()
    for newer in (page, code):
        for path in (page, code, file):
            os.utime(path, (10, 20 if path == newer else 10))
        assert Page("page")["y"] == 2, newer
