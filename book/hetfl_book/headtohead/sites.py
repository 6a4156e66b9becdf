"""The benchmark site by site: what each client reaches with a method, and what that adds to another one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pandas as pd

from hetfl_book.headtohead import ranking
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_book.headtohead.running import APART
from hetfl_core import checks, records
from hetfl_core.reporting.judging import Gain, resampled
from hetfl_core.reporting.page import signed

NOTHING = "nothing exchanged"
"""A base of `gain`: the control of the method itself."""


@cache
def _reached(federation: str, measure: str, size: str, apart: bool) -> pd.DataFrame:
    checks.choice("federation", federation, tuple(FEDERATIONS))
    found = ranking.clients(records.load(experiment=f"headtohead/{federation}-{size}{APART * apart}"), measure)
    order = list(dict.fromkeys(found["client"]))
    return found.pivot(index=["method", "client"], columns="seed", values="value").reindex(order, level="client")


def reached(federation: str, measure: str = ranking.MEASURE, size: str = "all", apart: bool = False) -> pd.DataFrame:
    """What every client reached with every method.

    Parameters
    ----------
    federation : str
        One of the benchmark.
    measure : str
        A column of `Run.per_client`.
    size : {"all", "tenth"}
        Of the training sets.
    apart : bool
        Whether of the control, in which nothing is exchanged.

    Returns
    -------
    DataFrame
        A row for each ``method`` and ``client``, clients in the order of the federation; a column per seed. In per
        cent, or the unit of the measure.
    """
    return _reached(federation, measure, size, apart).copy()


def gain(
    federation: str, method: str, base: str, client: str, measure: str = ranking.MEASURE, size: str = "all"
) -> Gain:
    """What a client gains by a method over another one, with an interval that knows of overlapping splits.

    Parameters
    ----------
    federation, method : str
    base : str
        A method, or "nothing exchanged": the same method with every client a federation of its own.
    client : str
    measure, size : str
        As of `reached`.

    Returns
    -------
    Gain
        In points, or the unit of the measure, as the difference stands.
    """
    apart = base == NOTHING
    mine = reached(federation, measure, size).loc[method, client]
    other = reached(federation, measure, size, apart).loc[method if apart else base, client]
    return resampled((mine - other).tolist(), FEDERATIONS[federation].ratio)


def beside(
    federation: str, methods: Mapping[str, str], base: str, measure: str = ranking.MEASURE, size: str = "all"
) -> pd.DataFrame:
    """A table for a page: the mean of one method in its first row, and what others add to it, ± half an interval.

    Parameters
    ----------
    federation : str
    methods : dict of str to str
        By the name that a row is to have, a method of the benchmark.
    base : str
        The method of the first row.
    measure, size : str
        As of `reached`, of a measure in per cent.

    Returns
    -------
    DataFrame
        Of texts such as "+0.9 ± 3.6", a column per client.
    """
    means = reached(federation, measure, size).loc[base].mean(axis=1)
    rows = {base: {client: f"{mean:.1f}" for client, mean in means.items()}}
    for name, method in methods.items():
        gains = {client: gain(federation, method, base, client, measure, size) for client in means.index}
        rows[name] = {client: said(each) for client, each in gains.items()}
    return pd.DataFrame(rows).T


def said(found: Gain) -> str:
    """A gain as tables say it, "+0.9 ± 3.6"."""
    return f"{signed(found.mean)} ±\u00a0{found.high - found.mean:.1f}"
