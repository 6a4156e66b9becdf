"""Differences over seeds, their intervals and p-values, and the correction for many of them.

References
----------
.. [1] Student. The probable error of a mean. Biometrika 6, 1908.
.. [2] S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6, 1979.
.. [3] B. L. Welch. The generalization of "Student's" problem when several different population variances are involved.
   Biometrika 34, 1947.
.. [4] C. Nadeau, Y. Bengio. Inference for the generalization error. Machine Learning 52, 2003.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.errors import WrongValue

MIN_SEEDS = 3
"""Seeds that a statement takes. With fewer there is a mean, but no interval, no p-value and no verdict."""


def interval(
    values: Sequence[float] | np.ndarray, level: float = 0.95, *, ratio: float = 0.0
) -> tuple[float, float, float]:
    """Mean of some values and its interval by Student's t [1]_.

    Parameters
    ----------
    values : sequence of float, shape (n,)
    level : float
        Probability that the interval covers the true mean, for independent normal values.
    ratio : float
        Where values are measured on splits of the same rows, test rows for each training row. Such splits overlap, and
        the variance of the mean of J values is then taken as (1/J + ratio) times theirs ([4]_, Section 3).

    Returns
    -------
    mean, low, high : float
        The limits are infinite for a single value, and all three NaN without any.
    """
    x = checks.floats("values", values, 1, least=0)
    checks.fraction("level", level, "(0, 1)")
    checks.number("ratio", ratio, least=0)
    if len(x) < 2:
        return (float(x[0]), -math.inf, math.inf) if len(x) else (math.nan, math.nan, math.nan)
    from scipy import stats  # on demand: it is half of what importing this costs

    mean, error = float(x.mean()), math.sqrt((1 / len(x) + ratio) * float(x.var(ddof=1)))
    low, high = stats.t.interval(level, len(x) - 1, mean, error) if error else (mean, mean)
    return mean, float(low), float(high)


@dataclass(frozen=True)
class Paired:
    """Mean difference a − b over the seeds that both have, with its 95 % t-interval.

    Parameters
    ----------
    mean, low, high : float
        In points for accuracies, else in the metric's unit. With fewer than `MIN_SEEDS` seeds the interval is infinite.
    seeds : tuple of int
        Those that count (see `paired`).
    same_data : bool
        Whether each pair has the same fingerprint of the data. It can differ in rounding between machines.
    sd : float
        Standard deviation of the differences, in the same unit; NaN with one seed.
    ratio : float
        Of splits of the same rows, test rows for each training row (see `interval`).
    """

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]
    same_data: bool = True
    sd: float = math.nan
    ratio: float = 0.0

    @classmethod
    def of(cls, by_seed: Mapping[int, float], same_data: bool = True, *, ratio: float = 0.0) -> Paired:
        """The mean and the interval of differences, one for each seed.

        Parameters
        ----------
        by_seed : dict of int to float
            Difference a − b of each seed, at least one.
        same_data : bool
            Whether each pair has the same fingerprint of the data.
        ratio : float
            Of splits of the same rows, test rows for each training row (see `interval`).

        Returns
        -------
        Paired

        Raises
        ------
        ValueError
            For no seed, and differences that are not finite.
        """
        if not checks.mapping("by_seed", by_seed):
            raise WrongValue("by_seed must hold the difference of at least one seed, got {}")
        seeds = tuple(sorted(checks.integer("by_seed", s) for s in by_seed))
        x = checks.floats("by_seed", [by_seed[s] for s in seeds], 1)
        mean, low, high = interval(x, ratio=ratio)
        if len(x) < MIN_SEEDS:
            low, high = -math.inf, math.inf
        return cls(mean, low, high, seeds, same_data, float(x.std(ddof=1)) if len(x) > 1 else math.nan, ratio)

    @property
    def n(self) -> int:
        """Number of pairs: the seeds that count."""
        return len(self.seeds)

    @property
    def p(self) -> float:
        """Two-sided p-value of Student's t for "no difference"; NaN with fewer than `MIN_SEEDS` seeds."""
        return float(np.minimum(1, 2 * np.minimum(self.above(0.0), self.below(0.0))))

    def above(self, bound: float) -> float:
        """One-sided p-value for "the true difference is at most `bound`": small where it is surely above.

        Parameters
        ----------
        bound : float
            In the unit of the mean; may be infinite.

        Returns
        -------
        float
            NaN with fewer than `MIN_SEEDS` seeds.
        """
        checks.number("bound", bound, infinite=True)
        return self._tail(self.mean - bound)

    def below(self, bound: float) -> float:
        """One-sided p-value for "the true difference is at least `bound`": small where it is surely below.

        Parameters
        ----------
        bound : float
            In the unit of the mean; may be infinite.

        Returns
        -------
        float
            NaN with fewer than `MIN_SEEDS` seeds.
        """
        checks.number("bound", bound, infinite=True)
        return self._tail(bound - self.mean)

    def _tail(self, gap: float) -> float:
        """P(T > t) of Student's t for a mean that lies `gap` beyond a bound; NaN with too few seeds."""
        if self.n < MIN_SEEDS:
            return math.nan
        if self.sd == 0:
            return 0.5 if gap == 0 else float(gap < 0)
        from scipy import stats

        return float(stats.t.sf(gap / self.sd / math.sqrt(1 / self.n + self.ratio), self.n - 1))

    def __str__(self) -> str:
        count = f"{self.n} seed" + "s" * (self.n != 1)
        if self.n < MIN_SEEDS:
            return f"{self.mean:+.2f} ({count})"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] ({count})"


def as_table(pairs: Mapping[str, Paired]) -> pd.DataFrame:
    """Differences by method, one per row, as `effects` returns them.

    Parameters
    ----------
    pairs : dict of str to Paired

    Returns
    -------
    DataFrame
        Indexed by ``method``; columns ``mean, low, high, sd, p, seeds``.
    """
    columns = ["mean", "low", "high", "sd", "p", "seeds"]
    rows = [[getattr(pair, column) for column in columns] for pair in pairs.values()]
    return pd.DataFrame(rows, columns=columns, index=pd.Index(list(pairs), name="method"))


def corrected(found: pd.DataFrame, alpha: float = 0.05, *, within: Sequence[str] = ()) -> pd.DataFrame:
    """A table of comparisons with Holm's correction over each of its families: which can be called findings?

    The chance of *any* false finding in a family is at most `alpha`, for normal differences with any spreads and any
    dependence (`hetfl_core.statistics` says why spreads are not pooled). A family is what one sentence compares:
    a method with all the rivals that are named, say.

    Parameters
    ----------
    found : DataFrame
        With a column ``p``, as from `effects`. Rows without a p-value, whose seeds are too few, count in their family,
        too: which comparisons get more seeds is often decided by what the first seeds showed.
    alpha : float
        Level, in (0, 1).
    within : sequence of str
        Columns; rows that agree in all of them are one family. By default the whole table is.

    Returns
    -------
    DataFrame
        `found` with two more columns: ``p_holm``, and ``finding``: whether it is at most `alpha`.

    Raises
    ------
    KeyError
        Where there is no column ``p``, or none of those in `within`.
    ValueError
        For an `alpha` or p-values out of range.
    """
    within = checks.names("within", within)
    checks.frame("found", found, "p", *within)
    checks.fraction("alpha", alpha, "(0, 1)")
    p, tried = found["p"].astype(float), found["p"].astype(float).fillna(1.0).to_numpy()
    adjusted = np.full(len(p), math.nan)
    families = found.groupby(list(within), dropna=False).indices.values() if within else [np.arange(len(p))]
    for rows in families:
        adjusted[rows] = holm(tried[rows])
    adjusted[p.isna()] = math.nan
    return found.assign(p_holm=adjusted, finding=adjusted <= alpha)


def holm(p: Sequence[float] | np.ndarray | pd.Series) -> np.ndarray:
    """Holm's adjusted p-values [2]_: reject those up to α, and the chance of *any* false rejection is at most α.

    The k-th smallest of m p-values is multiplied by m − k + 1, and made no smaller than those before it.

    Parameters
    ----------
    p : sequence of float, shape (…, m)
        Families along the last axis. NaN (nothing to test) stays NaN and does not count.

    Returns
    -------
    ndarray, shape (…, m)
        At most 1.

    Raises
    ------
    ValueError
        For numbers outside [0, 1].
    """
    p = checks.floats("p", p, gaps=True, least=0)
    if p.ndim < 1 or ((p < 0) | (p > 1)).any():
        raise WrongValue(f"p must be probabilities in [0, 1], or NaN, along one axis at least, got {checks.shown(p)}")
    order = np.argsort(p, axis=-1)  # NaN sorts last
    ranked = np.take_along_axis(p, order, -1)
    factors = np.isfinite(p).sum(-1, keepdims=True) - np.arange(p.shape[-1])
    raised = np.minimum(np.maximum.accumulate(ranked * np.maximum(factors, 1), axis=-1), 1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, raised, -1)
    return adjusted


def welch(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float, float, float]:
    """Difference of two means of which only the summaries are known, as a paper prints them [3]_.

    Parameters
    ----------
    a, b : (mean, standard deviation, number of runs)
        The runs of the two sides are taken to be independent, with spreads of their own.

    Returns
    -------
    difference, low, high, p : float
        a − b, its 95 % interval and two-sided p-value by Student's t with Welch's degrees of freedom; the last three
        are NaN where a deviation or a number of runs is missing, or either is less than `MIN_SEEDS`.

    Raises
    ------
    ValueError
        For what is no such triple, and a mean that is not finite.
    """
    for name, side in (("a", a), ("b", b)):
        if len(checks.floats(name, side, 1, gaps=True)) != 3:
            raise WrongValue(f"{name} must be (mean, standard deviation, number of runs), got {checks.shown(side)}")
        checks.number(name, side[0])
    difference = a[0] - b[0]
    if not all(math.isfinite(sd) and n >= MIN_SEEDS for _, sd, n in (a, b)) or not a[1] + b[1]:
        return difference, math.nan, math.nan, math.nan
    parts = [sd**2 / n for _, sd, n in (a, b)]
    freedom = sum(parts) ** 2 / sum(v**2 / (n - 1) for v, (_, _, n) in zip(parts, (a, b), strict=True))
    from scipy import stats

    low, high = stats.t.interval(0.95, freedom, difference, math.sqrt(sum(parts)))
    test = stats.ttest_ind_from_stats(*a, *b, equal_var=False)
    return difference, float(low), float(high), float(test.pvalue)


def observed(seeds: Mapping[int, Hashable | None]) -> list[int]:
    """The seeds that count, in order.

    Every seed with None counts, and of those with the same anything else the first.

    Parameters
    ----------
    seeds : dict of int to hashable or None

    Returns
    -------
    list of int
    """
    first: dict[Hashable, int] = {}
    return [s for s, same in sorted(seeds.items()) if same is None or first.setdefault(same, s) == s]
