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
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.federation import Federation
from hetfl_core.preparation import Preparation
from hetfl_core.rng import numpy_stream

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

RATES = Path(__file__).with_name("heart_rates.json")
"""What `made` draws from: of each hospital, the healthy and the ill, counts of gaps and levels, means and spreads."""


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
    checks.flag("made", made)
    checks.seed(seed)
    return _made(seed) if made else _recorded().copy()


def hospitals(
    test_size: float = 0.4, absent: float = 0.5, gaps: str = "median", made: bool = False, seed: int = 0
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
    prepare = Preparation(gaps=gaps, categories=CATEGORIES, absent=absent)  # type: ignore[arg-type]
    table = patients(made, seed)
    fed = Federation.from_frame(
        table, client="hospital", target="ill", test_size=test_size, seed=seed, name="heart.hospitals", prepare=prepare
    )
    settings = {"test_size": float(test_size), "absent": float(absent), "gaps": gaps, "made": bool(made), "seed": seed}
    source = "UCI Heart Disease (A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, 1988)"
    fed.info.update(
        settings=settings,
        source="made patients, by the rates of " + source if made else source,
        licence="CC BY 4.0",
        class_names=["healthy", "ill"],
        simulated=bool(made),
        stand_in=bool(made),
    )
    return fed


@functools.cache
def _recorded() -> pd.DataFrame:
    parts = []
    for hospital, file in FILES.items():
        try:
            part = pd.read_csv(_fetched(file), names=[*NAMES, "num"], na_values="?")
            part = part.astype(float)
        except ValueError as error:  # a file with the right hash is read; tests bring their own
            raise DataError(f"heart/{file}: expected 14 columns of numbers and '?': {error}") from error
        parts.append(part[[*NAMES]].assign(hospital=hospital, ill=(part["num"] > 0).astype(int)))
    table = pd.concat(parts, ignore_index=True)
    table[[*NEVER_ZERO]] = table[[*NEVER_ZERO]].replace(0, np.nan)
    return table


def _fetched(file: str) -> Path:
    try:
        return fetch(f"heart/{file}")
    except DataError as error:
        raise DataError(f"{error} Made patients need no files: made=True.") from error


def rates(table: pd.DataFrame) -> dict[str, Any]:
    """What `heart_rates.json` holds of the real patients.

    Parameters
    ----------
    table : pandas.DataFrame
        As `patients` returns it.

    Returns
    -------
    dict
        By hospital, ``"0"`` or ``"1"`` (ill), and column: ``n`` values recorded; and their ``mean``, ``sd``, ``least``
        and ``most``, or, of columns of few values, ``counts`` of each.
    """
    found: dict[str, Any] = {}
    for (hospital, ill), rows in table.groupby(["hospital", "ill"], sort=False):
        own = found.setdefault(hospital, {}).setdefault(str(ill), {"patients": len(rows)})
        for column in NAMES:
            values = rows[column].dropna()
            told: dict[str, Any] = {"n": len(values)}
            if table[column].nunique() <= 5:
                told["counts"] = {f"{level:g}": int(n) for level, n in values.value_counts().sort_index().items()}
            elif len(values):
                four = (values.mean(), values.std(ddof=0), values.min(), values.max())
                told |= dict(zip(("mean", "sd", "least", "most"), (round(float(v), 3) for v in four), strict=True))
            own[column] = told
    return found


def _made(seed: int) -> pd.DataFrame:
    parts = []
    for hospital, classes in json.loads(RATES.read_text("utf8")).items():
        for ill, columns in sorted(classes.items()):
            rng = numpy_stream(seed, hospital, 0, f"made patients:{ill}")
            n = columns["patients"]
            made = {column: rng.permutation(_values(columns[column], column, n, rng)) for column in NAMES}
            parts.append(pd.DataFrame(made).assign(hospital=hospital, ill=int(ill)))
    table = pd.concat(parts, ignore_index=True)
    order = numpy_stream(seed, "all", 0, "order of made patients").permutation(len(table))
    return table.iloc[order].sort_values(
        "hospital", key=lambda h: h.map([*FILES].index), kind="stable", ignore_index=True
    )


def _values(told: dict[str, Any], column: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """As many values as were recorded, exactly as often where they are counted, and NaN for the gaps."""
    if "counts" in told:
        values = np.repeat([float(level) for level in told["counts"]], [*told["counts"].values()])
    elif told["n"]:
        drawn = rng.normal(told["mean"], told["sd"], told["n"])
        values = np.round(np.clip(drawn, told["least"], told["most"]), 1 if column == "oldpeak" else 0)
    else:
        values = np.empty(0)
    return np.concatenate([values, np.full(n - len(values), np.nan)])
