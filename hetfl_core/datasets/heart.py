"""Heart disease in four hospitals, which did not record the same things [1]_.

920 patients of Cleveland, Budapest, Zurich (with Basel) and Long Beach, 13 columns, and whether the patient was ill.
The columns differ: nobody but Cleveland has `ca`, Zurich has no cholesterol, and gaps are everywhere.

References
----------
.. [1] A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano. Heart Disease. UCI Machine Learning Repository, 1988.
   doi:10.24432/C52P4X.
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

__all__ = ["CATEGORIES", "NAMES", "hospitals", "patients"]

FILES = {"Cleveland": "cleveland", "Budapest": "hungarian", "Zurich": "switzerland", "Long Beach": "va"}

NAMES = MappingProxyType(
    {
        "age": "age",
        "sex": "sex",
        "cp": "chest pain",
        "trestbps": "blood pressure",
        "chol": "cholesterol",
        "fbs": "fasting sugar",
        "restecg": "resting ECG",
        "thalach": "top heart rate",
        "exang": "pain in exercise",
        "oldpeak": "ST depression",
        "slope": "ST slope",
        "ca": "vessels seen",
        "thal": "thallium scan",
    }
)
"""The columns in their order, and what they hold in two words."""

CATEGORIES = MappingProxyType({"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)})
"""The columns that hold codes, and their levels."""

NEVER_ZERO = ("trestbps", "chol")
"""Columns in which 0 stands for what was not measured: nobody lives with it."""


def patients(made: bool = False, seed: int = 0) -> pd.DataFrame:
    """All patients, a row each, as the hospitals wrote them down.

    Parameters
    ----------
    made : bool
        Whether the patients are made up, with the same columns, gaps and rates. Within a hospital, and among its
        healthy and its ill, the columns of a made patient have nothing to do with each other.
    seed : int
        Of the made ones; without effect on the real ones.

    Returns
    -------
    pandas.DataFrame, 920 rows
        The columns of `NAMES`, float64, with NaN where nothing was recorded (also for a blood pressure or cholesterol
        of 0); ``"hospital"``; and ``"ill"``, 0 or 1.

    Raises
    ------
    DataError
        If a file is missing and cannot be downloaded, or is damaged; made patients need none.
    """
    return STUDY.patients(made, seed)


def hospitals(
    test_size: float = 0.4,
    absent: float = 0.5,
    gaps: Gaps = "median",
    made: bool = False,
    seed: int = 0,
    size: Size = "all",
) -> Federation:
    """Four hospitals with different columns; healthy or ill.

    A hospital has a column if enough of its patients have a value there: with the default Cleveland has all 13,
    Budapest and Long Beach 10, Zurich 10 others. `Federation.in_blocks`, `filled` and `of_common_columns` are other
    views.

    Parameters
    ----------
    test_size : float
        Share of each hospital's patients that is its test set, in [0, 1).
    absent : float
        A column of which a hospital lacks more than this share of its values is one that it does not have.
    gaps : {"median", "indicator", "most_frequent"}
        What stands where a number is missing; see `hetfl_core.Preparation`, which is fitted on training rows.
    made : bool
        Made patients, as in `patients`: for programs, not for statements about hearts.
    seed : int
        Of the split, and of made patients.
    size : {"all", "tenth"}
        Whether a hospital has all its training patients, or a tenth of each class, but at least 4 where there are as
        many; see `hetfl_core.datasets.fewer.tenth`. The test patients are the same.

    Returns
    -------
    Federation
        Clients ``"Cleveland"``, ``"Budapest"``, ``"Zurich"`` and ``"Long Beach"``; features such as ``"age"`` and
        ``"cp=4"``, named by column.

    Raises
    ------
    DataError
        As `patients`.
    """
    return STUDY.federation(test_size, absent, gaps, made, seed, size)


@functools.cache
def _recorded() -> pd.DataFrame:
    parts = []
    for hospital, file in FILES.items():
        part = recorded_table(f"heart/{file}", [*NAMES, "num"])
        parts.append(part[[*NAMES]].assign(hospital=hospital, ill=(part["num"] > 0).astype(int)))
    table = pd.concat(parts, ignore_index=True)
    table[[*NEVER_ZERO]] = table[[*NEVER_ZERO]].replace(0, np.nan)
    return table


STUDY = Study(
    "heart.hospitals",
    client="hospital",
    target="ill",
    columns=tuple(NAMES),
    classes=("healthy", "ill"),
    source="UCI Heart Disease (A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, 1988)",
    read=_recorded,
    rates=Path(__file__).with_name("heart_rates.json"),
    decimals={"oldpeak": 1},
    categories=CATEGORIES,
)
