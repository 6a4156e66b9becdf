"""Ranks and tests across federations.

References
----------
.. [1] J. Demšar. Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd


def scores(table: pd.DataFrame, size: str) -> pd.DataFrame:
    """Federations × methods: mean scores of the methods that have a line on every one of them.

    Parameters
    ----------
    table : DataFrame
        As `cells` gives it.
    size : {"all", "tenth"}

    Returns
    -------
    DataFrame
        NaN where a method diverged.
    """
    some = table[table["size"] == size]
    everywhere = some.groupby("method")["federation"].nunique() == some["federation"].nunique()
    some = some[some["method"].map(everywhere).astype(bool)]
    return some.pivot(index="federation", columns="method", values="score")


def ranks(values: pd.DataFrame) -> pd.DataFrame:
    """Ranks on each federation, 1 for the best, means of equal ones; who has no figure is last.

    Parameters
    ----------
    values : DataFrame, federations × methods
    """
    return values.rank(axis=1, ascending=False, na_option="bottom")


def friedman(values: pd.DataFrame) -> float:
    """p-value for mean ranks of methods that do not differ at all ([1]_, Section 3.2.2).

    Parameters
    ----------
    values : DataFrame, federations × methods

    Raises
    ------
    ValueError
        For fewer than three methods or two federations.
    """
    from scipy import stats

    n, k = values.shape
    if k < 3 or n < 2:
        raise ValueError(f"Friedman's test wants three methods on two federations at least, got {k} on {n}")
    return float(stats.friedmanchisquare(*ranks(values).to_numpy().T).pvalue)


def critical_difference(n_methods: int, n_federations: int, alpha: float = 0.05) -> float:
    """Difference of two mean ranks from which on Nemenyi's test calls them different ([1]_, Section 3.2.2).

    It is q √(k (k + 1) / 6N), with q the quantile of the studentised range over √2.

    Parameters
    ----------
    n_methods, n_federations : int
        k, N.
    alpha : float
    """
    from scipy import stats

    q = float(stats.studentized_range.ppf(1 - alpha, n_methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(n_methods * (n_methods + 1) / (6 * n_federations))
