"""The ledger for the eye: tables that are HTML in a notebook and aligned text elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hetfl_book.ledger.published import SOURCES
from hetfl_core import checks
from hetfl_core.errors import WrongType
from hetfl_core.statistics import MIN_SEEDS, Paired

NUMBER_VERDICTS = ("agrees", "higher", "lower")
"""Verdicts of numbers of which there are runs enough."""

SETTLED = ("holds", "open", "reverses", "fails")
"""Verdicts of claims about which there are runs."""


def counted(n: int, noun: str) -> str:
    """A number and what it counts: "1 seed", "3 seeds"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def plus_minus(mean: float, sd: float, digits: int = 2, sd_form: str = "") -> str:
    """Mean ± standard deviation, or the mean alone where there is no deviation; both with as many digits by default."""
    said = f"{mean:.{digits}f}"
    return f"{said} ± {sd:{sd_form or f'.{digits}f'}}" if math.isfinite(sd) else said


def few(seeds: int) -> str:
    """The number of seeds, to be written after a mean, where they are too few to conclude from."""
    return f" ({counted(seeds, 'seed')})" if seeds < MIN_SEEDS else ""


@dataclass(frozen=True)
class Shown:
    """A table to look at: HTML in a notebook, aligned text elsewhere (which is also Markdown).

    Attributes
    ----------
    table : DataFrame of str
    """

    table: pd.DataFrame

    def __str__(self) -> str:
        cells = [list(self.table.columns), *self.table.to_numpy().tolist()]
        cells = [[str(c).replace("|", "\\|") for c in row] for row in cells]
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
        return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(str(c))}</th>' for c in self.table.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(str(c))}</td>" for c in row) + "</tr>"
            for row in self.table.to_numpy().tolist()
        )
        return (
            '<div style="overflow-x:auto"><table class="dataframe">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _cell(text: str) -> str:
    """Text as HTML, with a mean and its ± kept on one line."""
    return html.escape(text, quote=False).replace(" ± ", "&nbsp;±&nbsp;")


def show(table: pd.DataFrame) -> Shown:
    """A ledger or a table of claims as a reader wants to see it; any other table as it is.

    Examples
    --------
    >>> show(numbers([]).query("experiment == 'flic/bci-common40'"))  # doctest: +SKIP
    """
    checks.frame("table", table)
    if {"published", "ours"} <= set(table.columns):
        view = [_number_view(row) for row in table.to_dict("records")]
        return Shown(pd.DataFrame(view, columns=NUMBER_VIEW))
    if {"claim", "verdict"} <= set(table.columns):
        return Shown(pd.DataFrame([_claim_view(row) for row in table.to_dict("records")], columns=CLAIM_VIEW))
    return Shown(table)


NUMBER_VIEW = ["Source", "Setting", "Method", "Paper", "Ours", "Difference", "Verdict", "Behind it"]
CLAIM_VIEW = ["Source", "Claim", "Result [95 % interval]", "Verdict", "After Holm", "Behind it"]


def _number_view(row: Mapping[str, Any]) -> list[str]:
    seen = row["ours_runs"] > 0 and math.isfinite(row["ours"])
    seeds = f" ({counted(row['ours_runs'], 'seed')}, {row['scale']} scale)"
    return [
        f"{SOURCES.get(row['paper'], row['paper'])}, Table {row['table']}",
        row["setting"],
        row["method"],
        plus_minus(row["published"], row["published_sd"], sd_form="g"),
        plus_minus(row["ours"], row["ours_sd"]) + seeds if seen else "–",
        f"{row['difference']:+.2f}" if seen else "–",
        in_full(row),
        _behind(row),
    ]


def _claim_view(row: Mapping[str, Any]) -> list[str]:
    source = f"{SOURCES.get(row['paper'], row['paper'])}, {row['where']}"
    judged = math.isfinite(row["p"])
    return [source, row["claim"], outcome(row), in_full(row), row["verdict_holm"] if judged else "–", _behind(row)]


def outcome(row: Mapping[str, Any]) -> str:
    """What came out of a claim: a difference in points, or a ratio, with its interval and number of seeds."""
    _check_row(row, "difference", "low", "high", "seeds", "kind")
    if not math.isfinite(row["difference"]):
        return "–"
    found = str(Paired(row["difference"], row["low"], row["high"], tuple(row["seeds"])))
    return found.replace("+", "×") if row["kind"] == "times" else found


def in_full(row: Mapping[str, Any]) -> str:
    """A verdict with what a reader should know beside it.

    That the baseline is off, and the verdict by the other definition of accuracy where that is another one.
    """
    _check_row(row, "verdict", "verdict_weighted", "baseline")
    verdict, weighted = row["verdict"], row["verdict_weighted"]
    off = "baseline off" if row["baseline"] and not verdict.startswith("open") else ""
    other = (
        f"weighted by samples: {weighted}" if weighted != verdict and weighted in (*NUMBER_VERDICTS, *SETTLED) else ""
    )
    more = "; ".join(filter(None, (off, other)))
    return f"{verdict} ({more})" if more else str(verdict)


def _check_row(row: Any, *columns: str) -> None:
    if not isinstance(row, Mapping | pd.Series) or any(column not in row for column in columns):
        raise WrongType(f"row must be one of a table with the columns {list(columns)}, got {checks.shown(row)}")


def _behind(row: Mapping[str, Any]) -> str:
    """Where to find the records behind a number, or how to make them."""
    found = ""
    if row["records"]:
        folder = str(row["records"][0]).rsplit("/", 1)[0]
        found = f"{folder}, seeds {', '.join(map(str, row['seeds']))}, commit {', '.join(row['commits'])}"
    return "; ".join(part for part in (found, row["command"], row["baseline"], row["note"]) if part)
