"""What the papers say: every number of their tables, as it is in ``data/paper/``."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from hetfl_core import checks
from hetfl_core.errors import UnknownName
from hetfl_core.files import data_path

SOURCES = {
    "flic": "FLIC (TMLR 2024)",
    "flic-v1": "FLIC (arXiv v1)",
    "fedcr": "FedCR (ICML 2023)",
    "fedcma": "Fed-CMA (2022)",
    "hyfem": "HyFEM (TMLR 2024)",
}
"""The `paper` column of ``data/paper/*.csv``, in words."""


def paper_values() -> pd.DataFrame:
    """Every number of the papers' tables, one row each.

    Returns
    -------
    DataFrame
        Columns ``paper, table, setting, method, metric, unit, value, sd, runs, experiment, available, note, repeats``;
        see ``data/paper/README.md``. Missing text is "", a missing number NaN.
    """
    files = sorted(data_path("paper").glob("*-table*.csv"))
    return pd.concat([_paper_file(f) for f in files], ignore_index=True)


def printed_once(values: pd.DataFrame) -> pd.DataFrame:
    """The rows of `paper_values` that are no second print of another one, in the same order.

    Parameters
    ----------
    values : DataFrame
        With the column ``repeats``, which names where a number stands that is printed again: "" where it is not.

    Returns
    -------
    DataFrame
    """
    checks.frame("values", values, "repeats")
    return values[values["repeats"] == ""]


def paper_table(paper: str, table: str | int) -> pd.DataFrame:
    """The numbers of one table of one paper, e.g. ``paper_table("flic", 4)`` (columns as `paper_values`).

    Raises
    ------
    KeyError
        If there is no such table; the message lists those that there are.
    """
    path = data_path("paper") / f"{paper}-table{table}.csv"
    if not path.is_file():
        known = sorted(f.stem.replace("-table", ", table ") for f in path.parent.glob("*-table*.csv"))
        raise UnknownName(f"no numbers of {paper!r}, table {table!r}; there are: {'; '.join(known)}")
    return _paper_file(path)


def _paper_file(path: Path) -> pd.DataFrame:
    return _read(path, path.stat().st_mtime_ns).copy()


@cache
def _read(path: Path, changed: int) -> pd.DataFrame:
    """A file as it was last changed then; the ledger asks for all of them again and again."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    if "repeats" not in frame:
        frame["repeats"] = ""
    for column in ("value", "sd", "runs"):
        frame[column] = frame[column].replace("", "nan").astype(float)
    return frame
