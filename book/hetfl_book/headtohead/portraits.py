"""What each federation looks like, kept in a file, so that a page can tell without the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetfl_book.headtohead.federations import FEDERATIONS, SIZES, Size, data_of
from hetfl_book.headtohead.guide import Traits, leaf
from hetfl_core.federation import Federation
from hetfl_core.files import data_path
from hetfl_core.inputs import by_block

FILE = "headtohead.csv"
"""In the folder ``data``."""


def portrait(data: Federation) -> dict[str, Any]:
    """Sizes and traits of a federation.

    Parameters
    ----------
    data : Federation

    Returns
    -------
    dict
        ``clients``, ``classes``; ``least_inputs`` and ``most_inputs`` numbers of a client; ``train`` and ``test`` rows
        of all; ``least_train``, those of the smallest client; and the fields of `Traits`.
    """
    widths = [sum(int(np.prod(shape)) for shape in by_block(client.shapes).values()) for client in data]
    rows = [client.n_train for client in data]
    return {
        "clients": len(data),
        "classes": data.n_classes,
        "least_inputs": min(widths),
        "most_inputs": max(widths),
        "train": sum(rows),
        "test": sum(client.n_test for client in data),
        "least_train": min(rows),
        **asdict(Traits.of(data)),
    }


def made(names: Sequence[str], sizes: Sequence[Size] = SIZES) -> pd.DataFrame:
    """The portraits of federations as seed 0 makes them.

    Parameters
    ----------
    names, sizes : sequence of str

    Returns
    -------
    DataFrame
        Columns ``federation``, ``size``, and those of `portrait`.

    Raises
    ------
    hetfl_core.datasets.DataError
        If files are missing.
    """
    return pd.DataFrame(
        [{"federation": name, "size": size, **portrait(data_of(name, 0, size))} for name in names for size in sizes]
    )


def keep(names: Sequence[str] | None = None, folder: Path | None = None) -> Path:
    """Make portraits and keep them in the file, where the others stay as they are; the file's path.

    Parameters
    ----------
    names : sequence of str, optional
        By default all federations whose data are at hand.
    folder : Path, optional
        By default ``data``.

    Raises
    ------
    hetfl_core.datasets.DataError
        If files of one that is named are missing.
    """
    path = (folder or data_path()) / FILE
    new = made([n for n, s in FEDERATIONS.items() if s.available] if names is None else names).round(4)
    kept = pd.read_csv(path) if path.exists() else new.iloc[:0]
    table = pd.concat([kept[~kept["federation"].isin(new["federation"])], new])
    order = list(FEDERATIONS)
    table.sort_values("federation", key=lambda f: f.map(order.index), kind="stable").to_csv(path, index=False)
    return path


def portraits() -> pd.DataFrame:
    """Those of the file, a row for each federation and size."""
    return pd.read_csv(data_path(FILE))


def traits() -> dict[str, Traits]:
    """The traits of each case, by federation and size, as in ``"heart, all"``."""
    names = list(Traits.__dataclass_fields__)
    return {
        f"{row['federation']}, {row['size']}": Traits(*(row[n] for n in names)) for _, row in portraits().iterrows()
    }


def leaves() -> dict[str, str]:
    """The leaf of the guide that each case is at."""
    return {case: leaf(one) for case, one in traits().items()}
