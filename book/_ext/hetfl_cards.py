"""Method cards and the benchmark's data card, filled in when a page is read.

``{{ card FLIC }}`` stands for the card of a class, ``{{ cards }}`` for all methods at a glance, ``{{ federations }}`` and
``{{ sources }}`` for the data card. Pages are read again when records, sentences or code of the benchmark have changed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hetfl_book.headtohead import cards, datacard

DATA = Path(__file__).resolve().parents[2] / "data"
INPUTS = [cards.SENTENCES.parent, DATA, DATA / "results" / "headtohead", DATA / "results" / "privacy"]

API = "api/generated/hetfl_core.methods"
"""The reference of the methods, which says where their cards are."""

SENT = "What each method needs, sends, costs and brought stands on its [card](../../method-cards.md)."

FILLED = re.compile(r"\{\{ (?:card (\w+)|(cards|federations|sources)) \}\}")


def fill_in(app: Any, docname: str, source: list[str]) -> None:
    """Replace the placeholders of a page, and send readers of the methods' reference to the cards."""
    if docname == API:
        source[0] = source[0].replace("\n\n", f"\n\n{SENT}\n\n", 1)
    if FILLED.search(source[0]):
        for path in (path for folder in INPUTS for path in sorted(folder.glob("*.*"))):
            app.env.note_dependency(str(path))
        source[0] = FILLED.sub(filled, source[0])


def filled(match: re.Match[str]) -> str:
    """What stands in the place of one placeholder."""
    if match[1]:
        return cards.card(match[1])
    return {"cards": cards.overview, "federations": datacard.table, "sources": datacard.sources}[match[2]]()


def setup(app: Any) -> dict[str, bool]:
    """Connect it."""
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
