r"""Ranks and tests across federations.

References
----------
.. [1] J. Demšar. Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006.
.. [2] A. Benavoli, G. Corani, J. Demšar, M. Zaffalon. Time for a change: a tutorial for comparing multiple classifiers
   through Bayesian analysis. JMLR 18(77), 2017.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from hetfl_book.headtohead.entries import ALONE
from hetfl_core.errors import WrongValue
from hetfl_core.rng import SERVER, numpy_stream
from hetfl_core.statistics import holm

ROPE = 1.0
"""Points within which two methods are practically the same."""


def scores(table: pd.DataFrame, size: str, real: bool = False) -> pd.DataFrame:
    """Federations × methods: mean scores of the methods that have a line on every one of them.

    Parameters
    ----------
    table : DataFrame
        As `cells` gives it.
    size : {"all", "tenth"}
    real : bool
        Only the real ones.

    Returns
    -------
    DataFrame
        NaN where a method diverged.
    """
    some = table[(table["size"] == size) & (table["real"] | (not real))]
    everywhere = some.groupby("method")["federation"].nunique() == some["federation"].nunique()
    some = some[some["method"].map(everywhere).astype(bool)]
    return some.pivot(index="federation", columns="method", values="score")


def ranks(values: pd.DataFrame, *, less: bool = False) -> pd.DataFrame:
    """Ranks on each federation, 1 for the best, means of equal ones; who has no figure is last.

    Parameters
    ----------
    values : DataFrame, federations × methods
    less : bool
        Whether less is better.
    """
    return values.rank(axis=1, ascending=less, na_option="bottom")


def friedman(values: pd.DataFrame) -> float:
    """The p-value of Friedman's test, whether the mean ranks of methods differ at all ([1]_, Section 3.2.2).

    Parameters
    ----------
    values : DataFrame
        Two federations at least × three methods at least (`scores`).
    """
    from scipy import stats

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


@dataclass(frozen=True)
class Beliefs:
    """Probabilities that a method is worse than another one, practically the same, and better."""

    worse: float
    same: float
    better: float


def signed_rank(gaps: ArrayLike, rope: float = ROPE, prior: float = 0.5, draws: int = 50_000) -> Beliefs:
    r"""The Bayesian signed-rank test ([2]_, Section 4.2).

    Weights w of the differences z and of one made-up difference z₀ = 0 are Dirichlet(s, 1, …, 1). The share of pairs
    whose mean lies to the right of the region is

    .. math:: \theta_r = \sum_{i,j} w_i w_j\, 1[z_i + z_j > 2r],

    and likewise to the left and within. Each probability is that its share is the largest of the three.

    Parameters
    ----------
    gaps : array_like, shape (N,)
        One difference a federation.
    rope : float
        Half the width r of the region of practical equivalence.
    prior : float
        Weight s of the made-up difference.
    draws : int
        Of w.

    Raises
    ------
    ValueError
        For no difference, or one that is not finite.
    """
    z = np.asarray(gaps, dtype=float)
    if not len(z) or not np.isfinite(z).all():
        raise WrongValue(f"gaps must be finite numbers, at least one, got {z.tolist()}")
    z = np.concatenate([[0.0], z])
    means = (z[:, None] + z) / 2
    w = numpy_stream(0, SERVER, 0, "signed-rank test").dirichlet([prior, *np.ones(len(z) - 1)], draws)
    left, right = (np.einsum("ni,ij,nj->n", w, side.astype(float), w) for side in (means < -rope, means > rope))
    most = np.stack([left, 1 - left - right, right]).argmax(0)
    worse, same, better = np.bincount(most, minlength=3) / draws
    return Beliefs(float(worse), float(same), float(better))


def against(values: pd.DataFrame, base: str = ALONE) -> pd.DataFrame:
    """Each method against one of them over federations: Wilcoxon's signed-rank test, and the Bayesian one.

    Parameters
    ----------
    values : DataFrame, federations × methods
        More is better.
    base : str

    Returns
    -------
    DataFrame
        By method, the largest median first: ``median`` of the differences, ``wins`` of the method, ``p`` and, by Holm's
        rule, ``p_holm``; ``worse``, ``same`` and ``better``, the `Beliefs`. A method without a figure somewhere has
        none here, and stands last.
    """
    from scipy import stats

    rows = {}
    for method in values.columns.drop(base):
        gaps = (values[method] - values[base]).to_numpy()
        rows[method] = {"median": float(np.median(gaps)), "wins": int((gaps > 0).sum()), "p": math.nan}
        if np.isfinite(gaps).all():
            rows[method]["p"] = float(stats.wilcoxon(gaps).pvalue) if np.any(gaps) else 1.0
            rows[method] |= asdict(signed_rank(gaps))
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["median", "wins", "p", "worse", "same", "better"])
    table = table.assign(p_holm=holm(table["p"]) if len(table) else [])
    return table.sort_values("median", ascending=False, kind="stable")
