"""Thyroid function as six laboratories and referral sources measured it, which did not order the same assays [1]_ [2]_.

Records of the Garvan Institute, Sydney, by the source that sent the patient, and of a second laboratory with assays of
its own: normal, hyperthyroid or hypothyroid.

References
----------
.. [1] J. R. Quinlan, P. J. Compton, K. A. Horn, L. Lazarus. Inductive knowledge acquisition: a case study. Proc. 2nd
   Australian Conf. on Applications of Expert Systems, 1986. Archive: UCI Thyroid Disease, doi:10.24432/C5D010.
.. [2] D. Coomans, I. Broeckaert, M. Jonckheer, D. L. Massart. Comparison of multivariate discriminant techniques for
   clinical data: application to the thyroid functional state. Meth. Inform. Med. 22, 1983. Archive: as [1]_.
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

__all__ = ["laboratories", "thyroid_patients"]

SOURCES = ("other", "SVI", "SVHC", "STMW", "SVHD")
"""Where the Garvan's patients were sent from, the largest first; WEST, with three of them, is left out."""

SECOND = "second laboratory"

FLAGS = (
    "on thyroxine",
    "query on thyroxine",
    "on antithyroid medication",
    "sick",
    "pregnant",
    "thyroid surgery",
    "I131 treatment",
    "query hypothyroid",
    "query hyperthyroid",
    "lithium",
    "goitre",
    "tumor",
    "hypopituitary",
    "psych",
)
"""What a request says of a patient, yes (1) or no (0); "query" is what it asks."""

ASSAYS = ("TSH", "T3", "TT4", "T4U", "FTI", "TBG")
"""What the Garvan Institute measured."""

NAMES = MappingProxyType(
    {
        "age": "age",
        "sex": "sex (1: male)",
        **{flag: flag for flag in FLAGS},
        "log TSH": "thyrotropin",
        "log T3": "triiodothyronine",
        "log TT4": "thyroxine",
        "log T4U": "thyroxine uptake",
        "log FTI": "free thyroxine index",
        "log TBG": "binding globulin",
        "T3 resin uptake": "T3 resin uptake, second laboratory",
        "log T3, second": "triiodothyronine, second laboratory",
        "TSH rise": "rise of TSH after TRH",
    }
)
"""The columns in their order, and what they hold in few words; "log" is the logarithm to the base 10."""

NMOL_PER_UG = 12.87
"""Thyroxine (777 g/mol): a µg/dl in nmol/l."""

OLDEST = 120
"""Years; an age above is an error."""


def thyroid_patients(made: bool = False, seed: int = 0) -> pd.DataFrame:
    """All records that say normal, hyperthyroid or hypothyroid, a row each.

    Parameters
    ----------
    made : bool
        Whether they are made up, with the same columns, gaps and rates. Within a source, and among its normal, hyper
        and hypo, the columns of a made one have nothing to do with each other.
    seed : int
        Of the made ones; without effect on the real ones.

    Returns
    -------
    pandas.DataFrame, 7 871 rows
        The columns of ``NAMES``, float64, with NaN where nothing was measured, and for an age above 120; ``"source"``;
        and ``"state"``: 0 normal, 1 hyperthyroid, 2 hypothyroid. Units are those of the archive, thyroxine nmol/l.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged; made patients need none.
    """
    return STUDY.patients(made, seed)


def laboratories(
    test_size: float = 0.4,
    absent: float = 0.95,
    gaps: Gaps = "median",
    made: bool = False,
    seed: int = 0,
    size: Size = "all",
) -> Federation:
    """Five referral sources and a second laboratory with other columns; normal, hyperthyroid or hypothyroid.

    A client has a column if enough of its patients have a value there: with the default ``"other"`` has 22, the
    remaining sources 21, without TBG, and the second laboratory 5, of which it shares TSH and thyroxine.

    Parameters
    ----------
    test_size : float
        Share of each client's patients that is its test set, in [0, 1).
    absent : float
        A column of which a client lacks more than this share of its values is one that it does not have.
    gaps : {"median", "indicator", "most_frequent"}
        What stands where a number is missing; see `hetfl_core.Preparation`, which is fitted on training rows.
    made : bool
        Made patients, as in `thyroid_patients`: for programs, not for statements about thyroids.
    seed : int
        Of the split, and of made patients.
    size : {"all", "tenth"}
        Whether a client has all its training patients, or a tenth of each class, but at least 4 where there are as
        many; see `hetfl_core.datasets.fewer.tenth`. The test patients are the same.

    Returns
    -------
    Federation
        Clients ``"other"``, ``"SVI"``, ``"SVHC"``, ``"STMW"``, ``"SVHD"`` and ``"second laboratory"``; features are
        named by column.

    Raises
    ------
    DataError
        As `thyroid_patients`.
    """
    return STUDY.federation(test_size, absent, gaps, made, seed, size)


@functools.cache
def _recorded() -> pd.DataFrame:
    both = pd.concat([_garvan(), _second()], ignore_index=True)
    return both[[*NAMES, "source", "state"]]


def _garvan() -> pd.DataFrame:
    measured = [column for assay in ASSAYS for column in (f"{assay} measured", assay)]
    words = ["sex", *FLAGS, *measured[::2], "source", "diagnosis"]
    table = recorded_table("thyroid/garvan", ["age", "sex", *FLAGS, *measured, "source", "diagnosis"], words)
    table["state"] = table["diagnosis"].map(state_of)
    table = table[table["state"].notna() & table["source"].isin(SOURCES)].astype({"state": int})
    table["age"] = table["age"].where(table["age"] <= OLDEST)
    table["sex"] = table["sex"].map({"F": 0.0, "M": 1.0})
    table[[*FLAGS]] = (table[[*FLAGS]] == "t").astype(float)
    for assay in ASSAYS:
        table[f"log {assay}"] = np.log10(table[assay])
    return table.sort_values("source", key=lambda sources: sources.map(SOURCES.index), kind="stable")


def state_of(diagnosis: str) -> int | None:
    """The class of a diagnosis of the archive: letters, and the number of the record in brackets.

    Parameters
    ----------
    diagnosis : str
        Such as ``"GK[840803046]"``. Of ``"C|I"``, "consistent with C, but more likely I", the likelier counts; of
        several letters the first, to which others are added.

    Returns
    -------
    int or None
        0 for nothing to remark, 1 for A … D (hyperthyroid), 2 for E … H (hypothyroid); None for other remarks.
    """
    first = diagnosis.split("[")[0].split("|")[-1][0]
    return {"-": 0, **dict.fromkeys("ABCD", 1), **dict.fromkeys("EFGH", 2)}.get(first)


def _second() -> pd.DataFrame:
    table = recorded_table("thyroid/second", ["class", "T3 resin uptake", "TT4", "T3", "TSH", "TSH rise"])
    logs = {"log TT4": table["TT4"] * NMOL_PER_UG, "log T3, second": table["T3"], "log TSH": table["TSH"]}
    for column, values in logs.items():
        table[column] = np.log10(values)
    return table.assign(source=SECOND, state=table["class"].astype(int) - 1)


STUDY = Study(
    "thyroid.laboratories",
    client="source",
    target="state",
    columns=tuple(NAMES),
    classes=("normal", "hyperthyroid", "hypothyroid"),
    source="UCI Thyroid Disease (R. Quinlan, 1987; D. Coomans, S. Aeberhard, 1992)",
    read=_recorded,
    rates=Path(__file__).with_name("thyroid_rates.json"),
    decimals={column: 3 for column in NAMES if column.startswith("log")} | {"TSH rise": 1},
)
