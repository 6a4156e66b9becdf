"""Tables of patients of several sites: what their data sets share, made patients and a tenth of the rows among it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.datasets.fewer import tenth
from hetfl_core.datasets.registry import DataError, fetch
from hetfl_core.federation import Federation
from hetfl_core.frames import rows_digest, split_rows
from hetfl_core.preparation import Gaps, Preparation
from hetfl_core.rng import numpy_stream

Size = Literal["all", "tenth"]


@dataclass(frozen=True)
class Study:
    """A table with a row per patient, and a column that says at which site.

    Parameters
    ----------
    name : str
        In the catalogue.
    client, target : str
        Columns: the site, and the class as a whole number.
    columns : sequence of str
        All others.
    classes : tuple of str
        Name of each class.
    source : str
    read : callable
        ``read()`` gives the recorded table.
    rates : pathlib.Path
        A JSON file of what made patients are drawn from: by site, class as a text, and column, ``n`` values recorded;
        and their ``mean``, ``sd``, ``least`` and ``most``, or, of columns of few values, ``counts`` of each.
    decimals : mapping of str to int
        Of made numbers; others are whole.
    categories : mapping of str to sequence
        Columns that hold codes, and their levels.
    """

    name: str
    client: str
    target: str
    columns: Sequence[str]
    classes: tuple[str, ...]
    source: str
    read: Callable[[], pd.DataFrame]
    rates: Path
    decimals: Mapping[str, int] = field(default_factory=dict)
    categories: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def patients(self, made: bool, seed: int) -> pd.DataFrame:
        """All patients, a row each; made ones have the same columns, gaps and rates, within each site and class.

        Parameters
        ----------
        made : bool
        seed : int
            Of made patients.

        Returns
        -------
        pandas.DataFrame
        """
        checks.flag("made", made)
        checks.seed(seed)
        return self._made(seed) if made else self.read().copy()

    def federation(self, test_size: float, absent: float, gaps: Gaps, made: bool, seed: int, size: Size) -> Federation:
        """The sites as clients.

        Parameters
        ----------
        test_size : float
        absent, gaps
            As of `Preparation`.
        made : bool
        seed : int
        size : {"all", "tenth"}
            Whether a client has all its training rows, or those of `fewer.tenth`. The test rows are the same, and so
            is the choice of columns that a client has; gaps and scales are fitted on the rows that are left.

        Returns
        -------
        Federation
        """
        prepare = Preparation(gaps=gaps, categories=self.categories, absent=absent)
        checks.choice("size", size, ("all", "tenth"))
        told: dict[str, Any] = {"absent": float(absent), "gaps": gaps}
        table, by = self.patients(made, seed), None
        rows = rows_digest({self.name: (table[[*self.columns]], table[self.target])})
        if size == "tenth":
            told |= {"size": size}
            table, by = self._tenth(table, absent, test_size, seed), "rows for"
            prepare = replace(prepare, absent=1.0)
        fed = Federation.from_frame(
            table,
            client=self.client,
            target=self.target,
            test_size=test_size,
            seed=seed,
            name=self.name,
            prepare=prepare,
            split=by,
        )
        fed.info.update(
            settings={"test_size": float(test_size), **told, "made": bool(made), "seed": seed},
            rows=rows,
            source="made patients, by the rates of " + self.source if made else self.source,
            licence="CC BY 4.0",
            class_names=[*self.classes],
            simulated=bool(made),
            stand_in=bool(made),
        )
        return fed

    def _tenth(self, table: pd.DataFrame, absent: float, test_size: float, seed: int) -> pd.DataFrame:
        """The test rows that `Federation.from_frame` would draw, and a tenth of its training rows."""
        parts = []
        for who, rows in table.groupby(self.client, sort=False):
            labels = rows[self.target].to_numpy()
            (train, test), _ = split_rows(str(who), labels, test_size, seed, "classification")
            train = train[tenth(labels[train], str(who), seed)]
            lost = rows[[*self.columns]].isna().mean()
            part = rows.assign(**dict.fromkeys(lost[lost > absent].index, np.nan))
            part["rows for"] = np.where(np.isin(np.arange(len(rows)), train), "train", "test")
            parts.append(part.iloc[np.sort(np.concatenate([train, test]))])
        return pd.concat(parts, ignore_index=True)

    def _made(self, seed: int) -> pd.DataFrame:
        parts, rates = [], json.loads(self.rates.read_text("utf8"))
        for site, classes in rates.items():
            for label, columns in sorted(classes.items()):
                rng = numpy_stream(seed, site, 0, f"made patients:{label}")
                n = columns["patients"]
                made = {
                    column: rng.permutation(self._values(columns[column], column, n, rng)) for column in self.columns
                }
                parts.append(pd.DataFrame(made).assign(**{self.client: site, self.target: int(label)}))
        table = pd.concat(parts, ignore_index=True)
        order = numpy_stream(seed, "all", 0, "order of made patients").permutation(len(table))
        return table.iloc[order].sort_values(
            self.client, key=lambda sites: sites.map([*rates].index), kind="stable", ignore_index=True
        )

    def _values(self, told: dict[str, Any], column: str, n: int, rng: np.random.Generator) -> np.ndarray:
        """As many values as were recorded, exactly as often where they are counted, and NaN for the gaps."""
        values = np.empty(0)
        if told.get("counts"):
            values = np.repeat([float(level) for level in told["counts"]], [*told["counts"].values()])
        elif told["n"]:
            drawn = rng.normal(told["mean"], told["sd"], told["n"])
            values = np.round(np.clip(drawn, told["least"], told["most"]), self.decimals.get(column, 0))
        return np.concatenate([values, np.full(n - len(values), np.nan)])


def recorded_table(key: str, columns: Sequence[str], words: Sequence[str] = (), **options: Any) -> pd.DataFrame:
    """A file of the registry as a table of numbers, float64, with NaN for "?" and the other marks of pandas.

    Parameters
    ----------
    key : str
    columns : sequence of str
        All of the file, in their order.
    words : sequence of str
        Those that hold words.
    **options
        Of `pandas.read_csv`.

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    DataError
        If the file is missing and cannot be downloaded, or is damaged.
    """
    try:
        path = fetch(key)
    except DataError as error:
        raise DataError(f"{error} Made patients need no files: made=True.") from error
    kinds = {column: str if column in words else float for column in columns}
    try:
        return pd.read_csv(path, names=[*columns], na_values="?", dtype=kinds, **options)
    except ValueError as error:  # a file with the right hash is read; tests bring their own
        but = f" ({', '.join(words)}: words)" * bool(words)
        raise DataError(f"{key}: expected {len(columns)} columns of numbers and '?'{but}: {error}") from error
