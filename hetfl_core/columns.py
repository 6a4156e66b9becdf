"""Columns of tables as plain numbers and words, whatever type of pandas holds them: one rule for every door.

Truth values are the numbers 0 and 1 where numbers are wanted. Sparse values are made dense, decimals and fractions are
floats, and what pandas calls NA is NaN. Complex numbers are refused by name.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core.errors import WrongType, WrongValue

AS_THEY_ARE = (pd.CategoricalDtype, pd.PeriodDtype, pd.IntervalDtype)
"""Types of pandas that are neither numbers nor texts."""

WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?")
NUMBER = re.compile(r"[-+\u2212]?(\d+([.]\d*)?|[.]\d+)([eE][-+]?\d+)?")
PADDED = re.compile(r"[-+\u2212]?0\d")
COMMA = re.compile(r"[-+\u2212]?\d+,(\d{1,2}|\d{4,})")
"""A number with a decimal comma; three digits behind it may be thousands as well."""


def plain(values: pd.Series, where: str) -> pd.Series:
    """A column in a type of NumPy's, or of words, with NaN where it has gaps; truth values stay what they are.

    Parameters
    ----------
    values : pandas.Series
    where : str
        What the column is called in errors.

    Returns
    -------
    pandas.Series
        Dates, times, periods, intervals and categories as they come.

    Raises
    ------
    ValueError
        For complex numbers.
    """
    dtype: Any = values.dtype
    if isinstance(dtype, pd.SparseDtype):
        return plain(values.sparse.to_dense(), where)
    if dtype.kind == "c":
        raise WrongValue(_no_complex(where, f"dtype {dtype}"))
    if isinstance(dtype, AS_THEY_ARE) or dtype.kind in "mM" or (isinstance(dtype, np.dtype) and dtype.kind in "biuf"):
        return values
    if dtype.kind in "biuf":
        gaps = bool(values.isna().any())
        if dtype.kind == "b" and gaps:
            return values.astype(object).where(values.notna(), np.nan)
        kind = bool if dtype.kind == "b" else float if gaps else dtype.numpy_dtype
        made = values.to_numpy(kind, na_value=np.nan) if gaps else values.to_numpy(kind)
        return pd.Series(made, values.index, name=values.name)
    entries = values.astype(object)
    kinds = {type(value) for value in entries}
    if any(issubclass(kind, complex | np.complexfloating) for kind in kinds):
        raise WrongValue(_no_complex(where, "complex ones among them"))
    if not any(issubclass(kind, Decimal | Fraction | type(pd.NA)) for kind in kinds):
        return values
    made = [_plain_entry(value, where) for value in entries]
    return pd.Series(made, values.index, dtype=object, name=values.name)


def _no_complex(where: str, found: str) -> str:
    return f"{where} must hold real numbers, got {found}: make two columns of it, such as real and imaginary part"


def _plain_entry(value: Any, where: str) -> Any:
    if value is pd.NA:
        return np.nan
    try:
        return float(value) if isinstance(value, Decimal | Fraction) else value
    except (OverflowError, ValueError) as error:
        raise WrongValue(f"{where} must hold finite numbers: {error}") from error


def numbers(values: pd.Series) -> pd.Series:
    """A plain column as numbers where it holds nothing but numbers and truth values; another as it is.

    Parameters
    ----------
    values : pandas.Series
        As `plain` makes it.

    Returns
    -------
    pandas.Series
        Truth values as 0 and 1 (int64); entries of an object column as float64, NaN where they are missing.
    """
    if values.dtype == bool:
        return values.astype("int64")
    if values.dtype != object or not all(isinstance(value, Real | np.bool_) or value is None for value in values):
        return values
    try:
        return values.astype(float)
    except OverflowError:
        return values


def table(frame: pd.DataFrame, where: str = "") -> pd.DataFrame:
    """A table with each column as `numbers` and `plain` make it.

    Parameters
    ----------
    frame : pandas.DataFrame
    where : str
        Before the name of the column in errors, such as ``"client 'A': "``.

    Returns
    -------
    pandas.DataFrame
        The very same where all columns are plain already.
    """
    made = [numbers(plain(values, f"{where}column {column!r}")) for column, values in frame.items()]
    if all(new is old for new, (_, old) in zip(made, frame.items(), strict=True)):
        return frame
    made = [values.reset_index(drop=True) for values in made]
    found = pd.concat(made, axis=1, keys=range(len(made)))
    return found.set_axis(frame.columns, axis=1).set_axis(frame.index)


def of_numbers(values: pd.Series, where: str) -> pd.Series:
    """A column as `numbers` and `plain` make it, with a `TypeError` for complex numbers, as arrays have it."""
    try:
        return numbers(plain(values, where))
    except ValueError as error:
        raise WrongType(str(error)) from error


def only_numbers(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """As `table`, where every column must hold numbers.

    Raises
    ------
    TypeError
        Naming the column.
    """
    try:
        made = table(frame, where)
    except ValueError as error:
        raise WrongType(str(error)) from error
    for column, values in made.items():
        if not pd.api.types.is_numeric_dtype(values.dtype):
            what = "dates or times" if is_of_time(values) else f"dtype {values.dtype}"
            raise WrongType(
                f"{where}column {column!r} must hold numbers, got {what}; encode categories as whole numbers, and "
                "leave out what is missing"
            )
    return made


def is_of_time(values: pd.Series) -> bool:
    """Whether a column holds dates, times, periods, or spans of time."""
    if values.dtype.kind in "mM" or isinstance(values.dtype, pd.PeriodDtype):
        return True
    kinds = ("date", "datetime", "time", "timedelta", "datetime64", "timedelta64")
    return pd.api.types.infer_dtype(values, skipna=True) in (*kinds, "period")


# --- single entries -------------------------------------------------------------------------------------------------


def word(value: Any) -> str:
    """A level as a text; whole numbers alike, however they are written: 3, 3.0, "3.0"."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    found = WHOLE.fullmatch(text)
    return found[1] if found else text


def group_name(value: Any) -> str:
    """What a group is called, however it is written: 7, 7.0, "7", " 007 " are one, and so are "P-1" and "p-1 ".

    To take two groups for one makes a split a little less balanced; to take one for two tests what was learnt.
    """
    text = "".join(unicodedata.normalize("NFKC", word(value)).casefold().split())
    return text.lstrip("0") or "0" if text.isdecimal() else text


def number_of(value: Any, codes: bool = False) -> float | None:
    """The number that an entry is or says, also with a decimal comma; None where it is none, as a truth value.

    Among `codes`, a text that begins with zeros, such as "07", is another one than "7", and no number.
    """
    if isinstance(value, str):
        text = value.strip()
        if codes and PADDED.match(text):
            return None
        if COMMA.fullmatch(text):
            text = text.replace(",", ".")
        return float(text.replace("\u2212", "-")) if NUMBER.fullmatch(text) else None
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def truth_of(value: Any) -> bool | None:
    """The truth value that an entry is, or says in English; None where it is none."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    text = value.strip().lower() if isinstance(value, str) else ""
    return {"true": True, "false": False}.get(text)


def marked(values: pd.Series, marks: Any, codes: bool = False) -> pd.Series:
    """Which entries of a plain column are one of these marks: numbers as numbers, truth values and texts as such.

    The mark 0 is the number 0, also where it is written as "0", " 0.0 " or "0,0", but not False.

    Parameters
    ----------
    values : pandas.Series
    marks : sequence
    codes : bool
        Whether the column holds categories, as for `number_of`.

    Returns
    -------
    pandas.Series of bool
    """
    known = [number for mark in marks if (number := number_of(mark, codes)) is not None]
    if values.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            wanted = np.array(known).astype(values.dtype if values.dtype.kind == "f" else float)
        return pd.Series(np.isin(values.to_numpy(), wanted), values.index)
    truths = {truth for mark in marks if (truth := truth_of(mark)) is not None}
    texts = {mark.strip() for mark in marks if isinstance(mark, str)}
    of_numbers = {*known}

    def is_mark(value: Any) -> bool:
        if isinstance(value, str) and value.strip() in texts:
            return True
        if (truth := truth_of(value)) is not None:
            return truth in truths
        return bool(of_numbers) and number_of(value, codes) in of_numbers

    return pd.Series([is_mark(value) for value in values.astype(object)], values.index, dtype=bool)
