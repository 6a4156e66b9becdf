"""CSV files: read as tables whose columns have names of their own, or refused with the reason."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.clients import INDEX, warn
from hetfl_core.errors import WrongValue

PACKED = {".gz", ".bz2", ".zip", ".xz", ".zst", ".tar"}
"""Ends of names of files that pandas unpacks."""


def read_table(file: Path, where: str, **options: Any) -> pd.DataFrame:
    """The table of a CSV file, of which each column has a name of its own.

    Parameters
    ----------
    file : pathlib.Path
    where : str
        What the file is called in errors.
    **options
        Of `pandas.read_csv`.

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    ValueError
        Naming the file, for what is no table, is not in the encoding, has no row, or names two columns alike.
    """
    encoding = options.get("encoding", "UTF-8")
    _check_text(file, where, encoding)
    try:
        alone = {key: value for key, value in options.items() if key in ("sep", "delimiter", "encoding", "skiprows")}
        head = pd.read_csv(file, header=None, nrows=1, dtype=str, keep_default_na=False, **alone).iloc[0].tolist()
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of fields that belong to no column
            table = pd.read_csv(file, **{"index_col": False, **options})
    except (UnicodeDecodeError, LookupError) as error:
        why = getattr(error, "reason", error)
        raise WrongValue(f"{where}: the file is not in {encoding} ({why}); save it in that encoding") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise WrongValue(f"{where}: the file is no table: {' '.join(str(error).split())}") from error
    except pd.errors.ParserWarning as error:
        meant = _other_separator(head)
        raise WrongValue(f"{where}: rows have more fields than the first line has names of columns{meant}") from error
    _warn_of_short_rows(file, where, len(table.columns), options)
    if not table.empty and len(again := np.flatnonzero((table.astype(str) == table.columns).all(axis=1))):
        raise WrongValue(f"{where}: row {again[0] + 1} repeats the names of columns: leave it out")
    if table.empty:
        raise WrongValue(f"{where}: expected at least one row of numbers below the names of columns, got none")
    twice = [column for column in head if head.count(column) > 1 and column]
    if twice and not {"names", "header"} & options.keys():
        raise WrongValue(f"{where}: columns must have different names, got {twice[0]!r} twice")
    return _with_points(table, options)


def _with_points(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """Numbers in columns of texts with a decimal point: pandas leaves them as they are where a mark is among them."""
    decimal, thousands = options.get("decimal", "."), options.get("thousands")
    if (decimal == "." and not thousands) or not isinstance(decimal, str):
        return table
    between = f"(?:{re.escape(thousands)}\\d{{3}})*" if thousands else ""
    number = re.compile(rf"\s*[-+]?\d+{between}(?:{re.escape(decimal)}\d*)?(?:[eE][-+]?\d+)?\s*")

    def with_point(value: Any) -> Any:
        if not isinstance(value, str) or not number.fullmatch(value):
            return value
        return value.replace(thousands or "", "").replace(decimal, ".") if thousands else value.replace(decimal, ".")

    texts = [column for column in table.columns if not pd.api.types.is_numeric_dtype(table[column].dtype)]
    return table.assign(**{column: table[column].map(with_point) for column in texts}) if texts else table


def _check_text(file: Path, where: str, encoding: str) -> None:
    """Refuse what is no text, or in an encoding that shows, with what to do."""
    if file.suffix in PACKED:
        return
    begin, wide = file.read_bytes(), encoding.lower().startswith(("utf-16", "utf_16", "utf16", "utf-32"))
    if begin.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise WrongValue(f"{where}: the file is no text, but an Excel file or an archive: save the table as CSV")
    if begin.startswith((b"\xff\xfe", b"\xfe\xff")) and not wide:
        raise WrongValue(f"{where}: the file is not in {encoding}, but in UTF-16: encoding='utf-16' reads it")
    if b"\0" in begin and not wide:
        raise WrongValue(f"{where}: the file is no text, as line {begin[: begin.index(0)].count(10) + 1} holds a NUL")


def _warn_of_short_rows(file: Path, where: str, width: int, options: Mapping[str, Any]) -> None:
    """Warn of lines that end early: what they lack counts as missing."""
    sep = options.get("sep", options.get("delimiter", ","))
    unlike = file.suffix in PACKED or options.keys() - {"sep", "delimiter", "encoding", "decimal", "thousands"}
    if not isinstance(sep, str) or len(sep) != 1 or unlike:
        return
    short: list[int] = []
    with open(file, encoding=options.get("encoding", "utf-8-sig"), newline="") as lines, suppress(csv.Error):
        reader = csv.reader(lines, delimiter=sep)
        short += [reader.line_num for fields in reader if fields and len(fields) < width]
    if short:
        warn(
            f"{where}: {len(short)} rows have fewer fields than the first line has names, the first in line {short[0]}:"
            " their last columns count as missing"
        )


def sites(
    files: Any, client: str | None, needed: Mapping[str, Any] | None = None, **options: Any
) -> tuple[pd.DataFrame, str]:
    """One table of all files, and the column that says whose a row is; see `Federation.from_csv`.

    Parameters
    ----------
    files : path, sequence of path, or dict of str to path
    client : str or None
    needed : dict of str to str, optional
        Columns that each file must have, by what asks for them.
    **options
        Of `pandas.read_csv`.

    Returns
    -------
    frame : pandas.DataFrame
    client : str
    """
    if isinstance(files, Mapping):
        named = {str(who): checks.path(f"files[{who!r}]", file) for who, file in files.items()}
    elif isinstance(files, list | tuple):
        paths = [checks.path("files", file) for file in files]
        named = {file.stem: file for file in paths}
        if len(named) < len(paths):
            raise WrongValue(f"files must have different names, got {checks.shown([*map(str, paths)])}")
    else:
        named = {"": checks.path("files", files)}
    alone = [*named] == [""]
    if not named or alone == (client is None):
        raise WrongValue(
            "client must name the column that says whose a row is, where there is one file, and is not given where "
            f"there is a file per client, got client={client!r} and {len(named)} file{'s' * (len(named) != 1)}"
        )
    tables = {
        who: read_site(file, f"client {who!r}, {file.name}" if who else file.name, options)
        for who, file in named.items()
    }
    for who, table in tables.items():
        for argument, column in (needed or {}).items():
            if column not in table.columns and len(tables) > 1:
                raise WrongValue(
                    f"client {who!r}, {named[who].name}: {argument} must be one of the columns "
                    f"{checks.shown([*table.columns])}, got {column!r}"
                )
    _check_alike(tables)
    frame = pd.concat([*tables.values()], ignore_index=True, sort=False)
    if client is not None:
        return frame, client
    column = "client"
    while column in frame.columns:
        column += "_"
    whose = [who for who, table in tables.items() for _ in range(len(table))]
    return pd.concat([frame, pd.Series(whose, name=column, dtype=object)], axis=1), column


def read_site(file: Path, where: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a file, without the index that it may have been written with.

    Parameters
    ----------
    file : pathlib.Path
    where : str
        What the file is called in errors.
    options : dict
        Of `pandas.read_csv`.

    Returns
    -------
    pandas.DataFrame
    """
    if not file.is_file():
        raise FileNotFoundError(f"{where}: there is no file {file}")
    table = read_table(file, where, **options)
    table.columns = pd.Index([str(column).strip() for column in table.columns])
    if meant := _other_separator(list(table.columns)):
        raise WrongValue(f"{where}: the file has one column {checks.shown(table.columns[0])}{meant}")
    for column in [column for column in table.columns if INDEX.fullmatch(column)]:
        values = table[column]
        if pd.api.types.is_integer_dtype(values) and (values.diff().dropna() == 1).all():
            warn(
                f"{where}: column {column!r} counts the rows, as the index of a table does that was written with it: "
                "it is no feature, and is left out"
            )
            table = table.drop(columns=column)
    return table


def _other_separator(names: list[str]) -> str:
    """A question where the first line of a file is one name, in which another separator stands."""
    sep = next((sep for sep in ";\t|" if len(names) == 1 and sep in names[0]), None)
    return f": is sep={sep!r} meant?" if sep else ""


def _check_alike(tables: Mapping[str, pd.DataFrame]) -> None:
    """Warn of columns whose names differ in capitals and blanks only: they would count as two."""
    seen: dict[str, tuple[str, str]] = {}
    for who, table in tables.items():
        for column in table.columns:
            first, written = seen.setdefault("".join(column.lower().split()), (who, column))
            if written != column:
                warn(
                    f"columns {written!r} of {first!r} and {column!r} of {who!r} are two, as they are written in two "
                    "ways: if they are one, rename one of them"
                )
