"""What the modules on theory have in common: the table at the head of each, as data."""

from __future__ import annotations

import pandas as pd

RULE = "=" * 30
"""How wide the first column of such a table is."""


def table_of(text: str | None) -> pd.DataFrame:
    """The table of statements of a module's docstring: columns ``statement``, ``holds`` and ``words``."""
    rows: list[list[str]] = []
    for line in (text or "").split(f"\n{RULE}")[2].splitlines()[1:]:
        statement, holds, words = line[:30].strip(), line[30:36].strip(), line[36:].strip()
        if statement or holds:
            rows.append([statement, holds, words])
        else:
            rows[-1][2] += f" {words}"
    return pd.DataFrame(rows, columns=["statement", "holds", "words"])
