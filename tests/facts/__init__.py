"""Sentences with results on the book's pages: people write them, and these lists say how each number comes about.

A fact is a quotation with gaps, and what fills them: numbers out of records, conditions that make the words true, and,
for what a page computes live, functions of its variables after its cells have run. `failures` looks for exactly these
words, prints the sentence that would be true where another one stands, and each result that no fact covers. Formulas,
code and links are not looked at. Of the papers' pages it reads the *headline parts*: what stands above the first
section, what a page ends with, and every caption and alternative text. Pages of Part I (`part_one`) it reads whole.
"""

from __future__ import annotations

import difflib
import json
import pickle
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd

from hetfl_book import experiments, ledger
from hetfl_book.ledger import results
from hetfl_core.records import RunRecord
from hetfl_core.statistics import Paired

BOOK = Path(__file__).resolve().parents[2] / "book"

SECTION = re.compile(r"^## (.*)$", re.MULTILINE)

ENDS = ("What to take away", "What holds, then?")
"""Headings of the sections that a page ends with."""

RESULT = re.compile(
    r"(?<![A-Za-z\d.])[+−-]?\d+\.\d+"
    r"|[+−-]?\d+(?= (?:percentage )?points?\b| ?%(?! intervals?))"
    r"|\d+(?= of (?:the |our |its |these )?\d)"
    r"|\d+(?=(?: claims?| statements?)? (?:holds?|fails?|agrees?|(?:is|are) (?:open|reversed|undecided)|do not hold)\b)"
)
"""Numbers that need a fact: with a decimal point, in per cent or points, "3 of 7", and counts of verdicts."""

CODE = re.compile(
    r"```.*?```|:::+\{.*?\n|`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$|\{[a-z:]+\}|\]\([^)]*\)|<[\w-]+>", re.DOTALL
)

Fact = tuple[Any, ...]


def cells(page: str) -> list[dict[str, Any]]:
    """The cells of a page of the book, each with its source as one text."""
    found = json.loads((BOOK / f"{page}.ipynb").read_text("utf8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found]


def headline_cells(page: str) -> list[dict[str, Any]]:
    """The cells above a page's first section and of its last words, with what belongs to these of their source."""
    inside, found = True, []
    for cell in cells(page):
        before, *sections = SECTION.split(cell["source"]) if cell["cell_type"] == "markdown" else [cell["source"]]
        kept = before if inside else ""
        for heading, body in zip(sections[::2], sections[1::2], strict=True):
            inside = heading in ENDS
            kept += body if inside else ""
        found += [{**cell, "source": kept}] if kept else []
    return found


def headline(page: str) -> str:
    """The headline parts of a page, in one line, without formulas and code."""
    return _told(headline_cells(page), cells(page))


def whole(page: str) -> str:
    """All that a page says, in one line, without formulas and code."""
    return _told(cells(page), cells(page))


def _told(prose: Iterable[Mapping[str, Any]], figures: Iterable[Mapping[str, Any]]) -> str:
    told = [cell["source"] for cell in prose if cell["cell_type"] == "markdown"]
    for meta in (cell["metadata"] for cell in figures):
        told += [meta.get("caption", ""), meta.get("mystnb", {}).get("image", {}).get("alt", "")]
    return " ".join(CODE.sub(" ", "\n\n".join(told)).split())


class Page(dict[str, Any]):
    """A page's variables after its cells have run, with the CPU seconds that this took as ``"seconds"``.

    `make book` has run them, and keeps what can be kept; for the rest, and where the book is older than the code, they
    run here.
    """

    def __init__(self, page: str) -> None:
        self.page, self.kept = page, _kept(page)

    def __missing__(self, name: str) -> Any:
        try:
            self[name] = pickle.loads(self.kept[name])
        except Exception:  # not kept, or by other versions of what it is made of
            self.kept = {}
            self.update(_run(self.page))
        return self[name]


ran = cache(Page)


def _kept(page: str) -> dict[str, bytes]:
    """What `make book` kept of a page's variables, unless page, code or data have changed since.

    Hidden files are no data: a lock beside the records is touched by whoever writes one.
    """
    file, made_of = BOOK / "_build" / "variables" / f"{page}.pkl", [BOOK / f"{page}.ipynb"]
    for folder, names in (("hetfl_book", "*.py"), ("../hetfl_core", "*.py"), ("../data", "[!.]*.*")):
        made_of += (BOOK / folder).rglob(names)
    if not file.exists() or any(path.stat().st_mtime > file.stat().st_mtime for path in made_of):
        return {}
    with suppress(Exception):
        return dict(pickle.loads(file.read_bytes()))
    return {}


def _run(page: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "page"}
    backend, start = matplotlib.get_backend(), time.process_time()
    matplotlib.use("Agg")
    with plt.rc_context():
        for cell in cells(page):
            if cell["cell_type"] == "code":
                exec(compile(cell["source"], f"{page}.ipynb, cell {cell['id']}", "exec"), found)
        plt.close("all")
    matplotlib.use(backend)
    return found | {"seconds": time.process_time() - start}


def filled(quotation: str, values: Sequence[Any]) -> tuple[str, bool]:
    """A quotation with its gaps filled, minus signs as they are printed, and whether its conditions hold."""
    conditions = [bool(x) for x in values if str(x) in ("True", "False")]
    numbers = [x for x in values if str(x) not in ("True", "False")]
    return re.sub(r"(?<![\w.])-(?=\d)", "−", quotation.format(*numbers)), all(conditions)


def nearest(words: str, text: str) -> str:
    """The sentence of a text that is most like some words."""

    def likeness(sentence: str) -> int:
        blocks = difflib.SequenceMatcher(None, sentence, words, autojunk=False).get_matching_blocks()
        return sum(block.size for block in blocks if block.size > 3)

    return max(re.split(r"(?<=[.!?|])\s+", text), key=likeness)


def failures(
    text: str,
    facts: Iterable[Fact],
    given: Collection[str] = (),
    printed: Collection[str] = (),
    page: Mapping[str, Any] | None = None,
) -> list[str]:
    """What is wrong with a text, one message each.

    Parameters
    ----------
    text : str
        As from `headline` or `whole`.
    facts : iterable of (quotation, value, …)
        Values fill the gaps in turn; what is true or false is a condition instead. A function is called with `page`.
    given : collection of str
        Words with numbers that are no results: settings, made-up examples.
    printed : collection of str
        The papers' own numbers, as they are printed.
    page : dict of str to object, optional
        A page's variables, as from `ran`.
    """
    found, left = [], text
    for quotation, *some in facts:
        values = [value(page) if callable(value) else value for value in some]
        words, true = filled(quotation, values)
        if not true:
            found.append(f"NO LONGER TRUE\n    stands there:   {nearest(words, text)}\n    by the fact:    {words}")
        elif words not in text:
            there = nearest(words, text)
            found.append(f"OUT OF DATE\n    stands there:   {there}\n    would be true:  … {words} …")
            left = left.replace(there, " … ")
        left = left.replace(words, " … ")
    for words in given:
        if words not in text:
            found.append(f"GIVEN, BUT NOT THERE: {words}")
        left = left.replace(words, " … ")
    for hit in RESULT.finditer(left):
        if hit[0].lstrip("+−-") not in printed:
            around = left[max(0, hit.start() - 70) : hit.end() + 50]
            found.append(f"NO FACT FOR {hit[0]}\n    stands there: … {around} …")
    return found


# --- what facts are made of -------------------------------------------------------------------------------------------


@cache
def stored() -> list[RunRecord]:
    """All records at the paper's scale."""
    return ledger.load(scale="paper")


@cache
def runs(experiment: str, method: str, metric: str = "accuracy") -> pd.Series:
    """A method's values by seed."""
    return results.by_seed(stored(), experiment, method, metric)


def pair(experiment: str, a: str, b: str, metric: str = "accuracy") -> Paired:
    """A less B, paired by seed."""
    return ledger.paired(stored(), experiment, a, b, metric)


def over(experiments: Iterable[str], a: str, b: str) -> Paired:
    """A less B over the settings of a table, by seed."""
    found = results.difference(*(results.pooled(stored(), experiments, method) for method in (a, b)))
    assert found is not None
    return found


def sized(found: Paired) -> tuple[float, float, float]:
    """A difference and its interval, for three gaps."""
    return found.mean, found.low, found.high


def half(found: Any) -> float:
    """Half the width of an interval, from `low` to `high`."""
    return float(found.high - found.low) / 2


def unclear(*found: Any) -> bool:
    """Whether each interval has zero inside, and not at an end."""
    return all(one.low < 0 < one.high for one in found)


def is_open(found: Paired) -> bool:
    """Whether the interval has zero inside."""
    return found.low <= 0 <= found.high


@cache
def printed_numbers() -> frozenset[str]:
    """Every number that a table of a paper prints, with two digits as the pages have them."""
    table = ledger.paper_values()
    return frozenset(text for column in ("value", "sd") for text in table[column].dropna().map("{:.2f}".format))


@cache
def claims(**instead: str) -> pd.DataFrame:
    """The ledger's claims, once each; `instead` has experiments to judge them by, "_" for "-" and "/"."""
    found = experiments.claims(instead={f"flic/{a}".replace("_", "-"): f"flic/{b}" for a, b in instead.items()})
    return found[found["part_of"] == ""]


def verdicts(some: pd.DataFrame, column: str = "verdict") -> dict[str, int]:
    """How many of the claims that can be judged hold, are open, are reversed, fail."""
    return (
        some.loc[some["p"].notna(), column]
        .value_counts()
        .reindex(["holds", "open", "reverses", "fails"], fill_value=0)
        .to_dict()
    )


def holding(some: pd.DataFrame) -> tuple[int, int, int]:
    """How many statements hold, hold under a condition, and do not, of a `statements` table."""
    counts = some["holds"].value_counts()
    return tuple(int(counts.get(word, 0)) for word in ("yes", "if", "no"))  # type: ignore[return-value]
