"""What the seeds of an experiment say about a difference: paired intervals, and the correction for many tries.

Nothing is concluded from fewer than `MIN_SEEDS` seeds, and every difference is judged by its own spread. Two or three
seeds estimate a spread badly, so that it is tempting to pool the spreads of all comparisons of a table; but where they
are not equal (they seldom are), a common one is too small for some comparisons, and the promised 5 % can become a
third. Signs flipped at random assume nothing about spreads, but of n seeds they make only 2ⁿ⁻¹ sizes of a difference,
and no p-value below 2¹⁻ⁿ: 0.25 with three, 0.06 with five. What keeps its promise, for any spreads and however the
differences of a table hang together (all share their base run), is Student's t for each comparison [1]_ and Holm's
correction over all of them [2]_. It asks for normal differences. Its price is power: with three seeds and many
comparisons only a very regular difference passes. More seeds are the remedy.

References
----------
.. [1] Student. The probable error of a mean. Biometrika 6, 1908.
.. [2] S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6, 1979.
.. [3] B. L. Welch. The generalization of "Student's" problem when several different population variances are involved.
   Biometrika 34, 1947.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.records import RunRecord, measured, records_of

__all__ = ["MIN_SEEDS", "NoPairsError", "Paired", "corrected", "effects", "holm", "interval", "paired", "welch"]


MIN_SEEDS = 3
"""Seeds that a statement takes. With fewer there is a mean, but no interval, no p-value and no verdict."""

PROTOCOL = ("rounds", "participation", "dtype")
"""Settings that both sides of a comparison must share."""

RUNTIME_SETTINGS = frozenset(
    {"seed", "engine", "device", "threads", "stack_size", "checkpoint", "progress", "evaluate_every", "together"}
)
"""Settings in which the runs behind one number may differ: they do not change what is estimated."""


DETERMINISTIC = frozenset({"LDA", "LR", "MDM", "SVM", "Pooled"})
"""Classes of methods that draw no random number, in records that do not say so themselves."""


class NoPairsError(ValueError):
    """No seed has all the runs that a comparison needs."""


def interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Mean of some values and its interval by Student's t [1]_.

    Parameters
    ----------
    values : sequence of float, shape (n,)
    level : float
        Probability that the interval covers the true mean, for independent normal values.

    Returns
    -------
    mean, low, high : float
        The limits are infinite for a single value, and all three NaN without any.
    """
    x = checks.floats("values", values, 1, least=0)
    checks.fraction("level", level, "(0, 1)")
    if len(x) < 2:
        return (float(x[0]), -math.inf, math.inf) if len(x) else (math.nan, math.nan, math.nan)
    from scipy import stats  # on demand: it is half of what importing this costs

    mean, error = float(x.mean()), float(stats.sem(x))
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
    """

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]
    same_data: bool = True
    sd: float = math.nan

    @classmethod
    def of(cls, by_seed: Mapping[int, float], same_data: bool = True) -> Paired:
        """The mean and the interval of differences, one for each seed.

        Parameters
        ----------
        by_seed : dict of int to float
            Difference a − b of each seed, at least one.
        same_data : bool
            Whether each pair has the same fingerprint of the data.

        Returns
        -------
        Paired

        Raises
        ------
        ValueError
            For no seed, and differences that are not finite.
        """
        if not checks.mapping("by_seed", by_seed):
            raise ValueError("by_seed must hold the difference of at least one seed, got {}")
        seeds = tuple(sorted(checks.integer("by_seed", s) for s in by_seed))
        x = checks.floats("by_seed", [by_seed[s] for s in seeds], 1)
        mean, low, high = interval(x)
        if len(x) < MIN_SEEDS:
            low, high = -math.inf, math.inf
        return cls(mean, low, high, seeds, same_data, float(x.std(ddof=1)) if len(x) > 1 else math.nan)

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

        return float(stats.t.sf(gap * math.sqrt(self.n) / self.sd, self.n - 1))

    def __str__(self) -> str:
        count = f"{self.n} seed" + "s" * (self.n != 1)
        if self.n < MIN_SEEDS:
            return f"{self.mean:+.2f} ({count})"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] ({count})"


def paired(
    records: Iterable[RunRecord], experiment: str, a: str, b: str, metric: str = "accuracy", scale: str = "paper"
) -> Paired:
    """Compare two methods seed by seed: mean difference and 95 % interval of Student's t.

    Where neither method draws a random number (`fixed`), seeds on the same data are one observation and count once.
    All others count, also those whose results tie.

    Parameters
    ----------
    records : iterable of RunRecord
    experiment, scale : str
        Which runs to take.
    a, b : str
        Names of the methods; the difference is a − b.
    metric : str
        A metric of records, or ``"best_accuracy"`` (`hetfl_core.records.tidy`).

    Returns
    -------
    Paired

    Raises
    ------
    NoPairsError
        If no seed has both methods; it is a ValueError.
    ValueError
        If a pair was run on data of different size, or the runs differ in `PROTOCOL` (rounds, participation, dtype).
    """
    checks.nonempty_strs(experiment=experiment, a=a, b=b)
    return contrast(records, [(1.0, experiment, a), (-1.0, experiment, b)], metric, scale)


def contrast(
    records: Iterable[RunRecord],
    terms: Sequence[tuple[float, str, str] | tuple[float, str, str, str]],
    metric: str = "accuracy",
    scale: str = "paper",
    transform: Callable[[float], float] = float,
    pooled: Collection[str] = (),
) -> Paired:
    """A weighted sum of results, seed by seed: `paired` is the case of two methods with weights 1 and −1.

    Parameters
    ----------
    records : iterable of RunRecord
    terms : sequence of (weight, experiment, method) or (weight, experiment, method, metric)
        Runs of one experiment must share data and protocol; those of two experiments differ on purpose. A term may have
        a metric of its own: a server's accuracy against that of its clients, say.
    metric : str
        As for `hetfl_core.records.measured`.
    scale : str
    transform : callable
        Of each result, before it is weighted: the logarithm makes ratios of differences.
    pooled : collection of str
        Methods that have all clients' data in one place: a federation that differs from the others' on purpose.

    Returns
    -------
    Paired
        Of the weighted sums.

    Raises
    ------
    NoPairsError, ValueError
        As for `paired`.
    """
    checks.nonempty_strs(metric=metric, scale=scale)
    whole = [_term(term, metric) for term in checks.sequence("terms", terms)]
    checks.instance("transform", transform, Callable)  # type: ignore[arg-type]
    if not whole:
        raise ValueError("terms must name the runs of one method at least, got none")
    records = [r for r in records_of(records) if r.scale == scale]
    cells = [
        newest_by_seed((r for r in records if r.experiment == where), method, own) for _, where, method, own in whole
    ]
    common = set.intersection(*(set(cell) for cell in cells))
    if not common:
        have = ", ".join(f"{name!r} has seeds {sorted(c)}" for (_, _, name, _), c in zip(whole, cells, strict=True))
        where = " and ".join(dict.fromkeys(experiment for _, experiment, _, _ in whole))
        both = "both methods" if len(terms) == 2 else "all runs"
        raise NoPairsError(f"{where} at scale {scale!r}: no seed has {metric!r} of {both}; {have}")
    runs = {s: [cell[s] for cell in cells] for s in common}
    _check_protocol([r for several in runs.values() for r in several])
    seeds = observed({s: fixed(*runs[s]) for s in common})
    pairs = [pair for s in seeds for pair in itertools.combinations(runs[s], 2)]
    apart = set(checks.names("pooled", pooled))
    same = [
        same_data(a, b) for a, b in pairs if a.experiment == b.experiment and apart.isdisjoint({a.method, b.method})
    ]

    def result(record: RunRecord, own: str) -> float:
        return checks.number("what transform makes of a result", transform(measured(record, own)))

    by_seed = {s: sum(w * result(r, own) for (w, _, _, own), r in zip(whole, runs[s], strict=True)) for s in seeds}
    return Paired.of(by_seed, all(same))


def _term(term: Any, metric: str) -> tuple[float, str, str, str]:
    """One of `contrast`'s terms, checked, with its metric."""
    parts = list(term) if isinstance(term, Sequence) and not isinstance(term, str) else []
    right = len(parts) in (3, 4) and all(isinstance(name, str) for name in parts[1:])
    if not right:
        raise ValueError(
            f"terms must each be (weight, experiment, method), a metric behind it or none, got {checks.shown(term)}"
        )
    weight, experiment, method, *own = parts
    return checks.number("terms", weight), experiment, method, own[0] if own else metric


def effects(
    records: Iterable[RunRecord], experiment: str, base: str, metric: str = "accuracy", scale: str = "paper"
) -> pd.DataFrame:
    """Every method of an experiment against one of them, seed by seed: an ablation's table.

    Parameters
    ----------
    records, experiment, metric, scale
        As for `paired`.
    base : str
        Method that the others are compared with.

    Returns
    -------
    DataFrame
        Indexed by ``method``, in the order of the records; columns ``mean, low, high, sd`` (`Paired`, method less
        base), ``p`` and ``seeds``. Methods that have no seed in common with `base` are left out; with fewer than
        `MIN_SEEDS` in common the interval is infinite and ``p`` NaN. `corrected` corrects for the number of methods.

    Raises
    ------
    ValueError
        As for `paired`.
    """
    checks.nonempty_strs(experiment=experiment, base=base, metric=metric, scale=scale)
    runs = [r for r in records_of(records) if (r.experiment, r.scale) == (experiment, scale)]
    pairs = {}
    for method in dict.fromkeys(r.method for r in runs if r.method != base):
        with suppress(NoPairsError):
            pairs[method] = paired(runs, experiment, method, base, metric, scale)
    return as_table(pairs)


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
    dependence (see this module's first lines for why spreads are not pooled). A family is what one sentence compares:
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
        raise ValueError(f"p must be probabilities in [0, 1], or NaN, along one axis at least, got {checks.shown(p)}")
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
            raise ValueError(f"{name} must be (mean, standard deviation, number of runs), got {checks.shown(side)}")
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


# --- what may be compared ---------------------------------------------------------------------------------------------


def differ(a: Any, b: Any) -> bool:
    """Whether two settings disagree where both say something.

    A hyper-parameter that a method did not have yet when the older record was written is no disagreement: new ones
    come with a default that leaves the method as it was.

    Parameters
    ----------
    a, b : object
        Settings as a record has them: numbers, text, lists or dicts.

    Returns
    -------
    bool
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return any(differ(a[k], b[k]) for k in a.keys() & b.keys() - RUNTIME_SETTINGS)
    return bool(a != b)


def protocols_differ(records: Iterable[RunRecord]) -> dict[str, dict[Any, list[str]]]:
    """The settings in which runs of the same experiment, also of different methods, were not run in the same way.

    Runs of no rounds are left out: a classifier that a client trains alone has neither rounds nor participants.

    Parameters
    ----------
    records : iterable of RunRecord

    Returns
    -------
    dict
        Of each setting in `PROTOCOL` with more than one value: the value, and the records that have it.
    """
    found: dict[str, dict[Any, list[str]]] = {}
    for _, runs in itertools.groupby(sorted(records, key=lambda r: r.experiment), key=lambda r: r.experiment):
        some = [r for r in runs if r.settings.get("rounds") != 0]
        for name in PROTOCOL:
            values: dict[Any, list[str]] = {}
            for r in some:
                if name in r.settings:
                    values.setdefault(r.settings[name], []).append(r.relative_path)
            if len(values) > 1:
                found[name] = values
    return found


def _check_protocol(records: Iterable[RunRecord]) -> None:
    said = []
    for name, values in protocols_differ(records).items():
        each = (f"{value!r} in {', '.join(dict.fromkeys(paths))}" for value, paths in values.items())
        said.append(f"{name} is {', but '.join(each)}")
    if said:
        raise ValueError(f"these records cannot be compared, for they were not run alike: {'; '.join(said)}")


def newest_by_seed(records: Iterable[RunRecord], method: str, metric: str) -> dict[int, RunRecord]:
    """A method's newest record of each seed that has the metric.

    Parameters
    ----------
    records : iterable of RunRecord
    method, metric : str

    Returns
    -------
    dict of int to RunRecord
    """
    mine = sorted((r for r in records if r.method == method), key=lambda r: r.created)
    return {r.seed: r for r in mine if math.isfinite(measured(r, metric))}


def fixed(*records: RunRecord) -> tuple[str, ...] | None:
    """The data on which these runs were made, if nothing else can change their results; None if they drew numbers.

    Runs say so themselves (``settings["deterministic"]``). Of older records it is known of the classical classifiers
    of `hetfl_core.baselines` that choose nothing by folds: they have no rounds, and are known by their class.

    Parameters
    ----------
    *records : RunRecord

    Returns
    -------
    tuple of str, or None
        A fingerprint for each record.
    """
    data = tuple(r.federation.get("fingerprint") or "" for r in records)
    return data if all(data) and all(_deterministic(r.settings) for r in records) else None


def _deterministic(settings: Mapping[str, Any]) -> bool:
    method = settings.get("method")
    old = isinstance(method, Mapping) and settings.get("rounds") == 0 and method.get("class") in DETERMINISTIC
    return bool(settings.get("deterministic", old))


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


def same_data(a: RunRecord, b: RunRecord) -> bool:
    """Whether two records have one fingerprint of the data.

    Parameters
    ----------
    a, b : RunRecord

    Returns
    -------
    bool

    Raises
    ------
    ValueError
        Where the sizes of their data differ, or one is a stand-in and the other is not.
    """
    sizes = ("n_clients", "n_classes", "n_train", "n_test")
    both = {k: (a.federation.get(k), b.federation.get(k)) for k in sizes} | {"stand_in": (a.stand_in, b.stand_in)}
    if differing := {k: pair for k, pair in both.items() if pair[0] != pair[1]}:
        raise ValueError(f"{a.relative_path} and {b.relative_path} cannot be paired: their data differ in {differing}")
    return a.federation.get("fingerprint") == b.federation.get("fingerprint")
