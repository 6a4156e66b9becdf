"""What the papers' pages say on their first screens, in captions and at their ends is what the records say."""

from __future__ import annotations

import importlib
import re

import pytest
from facts import BOOK, cells, failures, headline, headline_cells

from hetfl_book.ledger import paper_values

PAPERS = ("flic", "fedcr", "fedcma", "hyfem")
PAGES = sorted(path.stem for path in BOOK.glob("*.ipynb") if path.stem.startswith(PAPERS))

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
    table = paper_values()
    printed = {text for column in ("value", "sd") for text in table[column].dropna().map("{:.2f}".format)}
    wrong = failures(headline(page), of_paper.facts(page), of_paper.GIVEN.get(page, ()), printed)
    assert not wrong, "\n".join([f"book/{page}.ipynb", *wrong])


def test_every_page_has_facts() -> None:
    assert all(cells(page) for page in PAGES)
    for paper in PAPERS:
        of_paper = importlib.import_module(f"facts.{paper}")
        assert set(of_paper.PAGES) == {page for page in PAGES if page.partition("-")[0] == paper}
