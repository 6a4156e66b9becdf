"""Liver disease in two clinics with overlapping blood panels [1]_ [2]_.

Patients of Andhra Pradesh, India, and of Hannover, Germany: 8 columns that both have, 2 and 4 that one has.

References
----------
.. [1] B. V. Ramana, N. B. Venkateswarlu. ILPD (Indian Liver Patient Dataset). UCI Machine Learning Repository, 2012.
   doi:10.24432/C5D02C.
.. [2] R. Lichtinghagen, F. Klawonn, G. Hoffmann. HCV data. UCI Machine Learning Repository, 2020.
   doi:10.24432/C5D612.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from hetfl_core.datasets.clinical import Size, Study, recorded_table
from hetfl_core.federation import Federation
from hetfl_core.preparation import Gaps

__all__ = ["clinics", "liver_patients"]

NAMES = MappingProxyType(
    {
        "age": "age",
        "sex": "sex (1: male)",
        "log bilirubin": "bilirubin, µmol/l",
        "log ALP": "alkaline phosphatase",
        "log ALT": "alanine transaminase",
        "log AST": "aspartate transaminase",
        "protein": "protein, g/l",
        "albumin": "albumin, g/l",
        "log direct bilirubin": "direct bilirubin, µmol/l",
        "albumin/globulin": "albumin/globulin",
        "log CHE": "cholinesterase",
        "cholesterol": "cholesterol",
        "log creatinine": "creatinine",
        "log GGT": "γ-glutamyl transferase",
    }
)
"""The columns in their order, and what they hold in few words; "log" is the logarithm to the base 10."""

INDIA = ("age", "sex", "bilirubin", "direct bilirubin", "ALP", "ALT", "AST", "protein", "albumin", "albumin/globulin")
HANNOVER = ("age", "sex", "albumin", "ALP", "ALT", "AST", "bilirubin", "CHE", "cholesterol", "creatinine", "GGT")
"""The columns of each file, but for the last ones."""

UMOL_PER_MG, PER_DL = 17.1, 10.0
"""Bilirubin (585 g/mol): a mg/dl in µmol/l; and a g/dl in g/l."""


def liver_patients(made: bool = False, seed: int = 0) -> pd.DataFrame:
    """All patients and controls, a row each.

    Parameters
    ----------
    made : bool
        Whether they are made up, with the same columns, gaps and rates. Within a clinic, and among its healthy and its
        ill, the columns of a made one have nothing to do with each other.
    seed : int
        Of the made ones; without effect on the real ones.

    Returns
    -------
    pandas.DataFrame, 1 178 rows
        The columns of ``NAMES``, float64, with NaN where nothing was measured; ``"clinic"``; and ``"ill"``, 0 or 1.
        Bilirubin, protein and albumin are in the units of Hannover, all else as it is written.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged; made patients need none.
    """
    return STUDY.patients(made, seed)


def clinics(
    test_size: float = 0.4,
    absent: float = 0.5,
    gaps: Gaps = "median",
    made: bool = False,
    seed: int = 0,
    size: Size = "all",
) -> Federation:
    """Two clinics with different columns; liver disease or not.

    Parameters
    ----------
    test_size : float
        Share of each clinic's patients that is its test set, in [0, 1).
    absent : float
        A column of which a clinic lacks more than this share of its values is one that it does not have.
    gaps : {"median", "indicator", "most_frequent"}
        What stands where a number is missing; see `hetfl_core.Preparation`, which is fitted on training rows.
    made : bool
        Made patients, as in `liver_patients`: for programs, not for statements about livers.
    seed : int
        Of the split, and of made patients.
    size : {"all", "tenth"}
        Whether a clinic has all its training patients, or a tenth of each class, but at least 4 where there are as
        many; see `hetfl_core.datasets.fewer.tenth`. The test patients are the same.

    Returns
    -------
    Federation
        Clients ``"Andhra Pradesh"`` with 10 features and ``"Hannover"`` with 12, named by column.

    Raises
    ------
    DataError
        As `liver_patients`.
    """
    return STUDY.federation(test_size, absent, gaps, made, seed, size)


@functools.cache
def _recorded() -> pd.DataFrame:
    both = pd.concat([_india(), _hannover()], ignore_index=True)
    for column in NAMES:
        if column.startswith("log "):
            both[column] = np.log10(both[column.removeprefix("log ")])
    return both[[*NAMES, "clinic", "ill"]]


def _india() -> pd.DataFrame:
    table = recorded_table("liver/ilpd", [*INDIA, "label"], ["sex"], header=0).drop_duplicates(ignore_index=True)
    table[["bilirubin", "direct bilirubin"]] *= UMOL_PER_MG
    table[["protein", "albumin"]] *= PER_DL
    sex = table["sex"].map({"Female": 0.0, "Male": 1.0})
    return table.assign(sex=sex, clinic="Andhra Pradesh", ill=(table["label"] == 1).astype(int))


def _hannover() -> pd.DataFrame:
    table = recorded_table("liver/hcv", [*HANNOVER, "protein", "category"], ["sex", "category"], header=0)
    table = table[~table["category"].str.startswith("0s")]  # suspect donors are neither
    sex = table["sex"].map({"f": 0.0, "m": 1.0})
    return table.assign(sex=sex, clinic="Hannover", ill=(~table["category"].str.startswith("0=")).astype(int))


STUDY = Study(
    "liver.clinics",
    client="clinic",
    target="ill",
    columns=tuple(NAMES),
    classes=("no liver disease", "liver disease"),
    source="UCI ILPD (B. V. Ramana, N. B. Venkateswarlu, 2012); UCI HCV data (R. Lichtinghagen, F. Klawonn, "
    "G. Hoffmann, 2020)",
    read=_recorded,
    rates=Path(__file__).with_name("liver_rates.json"),
    decimals={column: 3 for column in NAMES if column.startswith("log")}
    | {"albumin/globulin": 2, "cholesterol": 2, "protein": 1, "albumin": 1},
)
