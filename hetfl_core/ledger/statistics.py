"""What the seeds of an experiment say about a difference: paired intervals, and the correction for many tries."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from hetfl_core.ledger.records import RunRecord, value


@dataclass(frozen=True)
class Paired:
    """Mean difference a − b over the seeds that both have, with its 95 % t-interval.

    Attributes
    ----------
    mean, low, high : float
        In points for accuracies, else in the metric's unit. With one seed the interval is infinite.
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

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.seeds)

    @property
    def p(self) -> float:
        """Two-sided p-value of Student's t for "no difference"; NaN with one seed."""
        if self.sd == 0:
            return float(self.mean == 0)
        return float(2 * stats.t.sf(abs(self.mean) * math.sqrt(self.n) / self.sd, self.n - 1))

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:+.2f} (1 seed)"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] ({self.n} seeds)"


def paired(
    records: Iterable[RunRecord], experiment: str, a: str, b: str, metric: str = "accuracy", scale: str = "paper"
) -> Paired:
    """Compare two methods seed by seed: mean difference and 95 % interval of Student's t.

    A seed that repeats an earlier one, on the same data with the same results of both methods, is no new observation
    and does not count: classifiers without randomness give the same numbers for every seed.

    Parameters
    ----------
    records : iterable of RunRecord
    experiment, scale : str
        Which runs to take.
    a, b : str
        Names of the methods; the difference is a − b.
    metric : str

    Raises
    ------
    ValueError
        If no seed has both methods, or a pair was run on data of different size.
    """
    runs = [r for r in records if (r.experiment, r.scale) == (experiment, scale)]
    left, right = _by_seed(runs, a, metric), _by_seed(runs, b, metric)
    seeds = tuple(sorted(left.keys() & right.keys()))
    if not seeds:
        raise ValueError(
            f"{experiment} at scale {scale!r}: no seed has {metric!r} of both methods; "
            f"{a!r} has seeds {sorted(left)}, {b!r} has seeds {sorted(right)}"
        )
    seeds = tuple(sorted({_observation(left[s], right[s]): s for s in reversed(seeds)}.values()))
    same = [_same_data(left[s], right[s]) for s in seeds]
    x = np.array([value(left[s], metric) - value(right[s], metric) for s in seeds])
    mean, sd = float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else math.nan
    half = float(stats.t.ppf(0.975, len(x) - 1) * sd / math.sqrt(len(x))) if len(x) > 1 else math.inf
    return Paired(mean, mean - half, mean + half, seeds, all(same), sd)


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
        base), ``p`` and ``seeds``. Methods that have no seed in common with `base` are left out.
    """
    runs = [r for r in records if (r.experiment, r.scale) == (experiment, scale)]
    have = _by_seed(runs, base, metric).keys()
    others = [m for m in dict.fromkeys(r.method for r in runs) if m != base and have & _by_seed(runs, m, metric).keys()]
    pairs = [paired(runs, experiment, m, base, metric, scale) for m in others]
    columns = ["mean", "low", "high", "sd", "p", "seeds"]
    rows = [[getattr(pair, column) for column in columns] for pair in pairs]
    return pd.DataFrame(rows, columns=columns, index=pd.Index(others, name="method"))


def holm(p: Sequence[float] | np.ndarray | pd.Series) -> np.ndarray:
    """Holm's adjusted p-values: reject those below α, and the chance of *any* false rejection is at most α.

    The k-th smallest of m p-values is multiplied by m − k + 1, and made no smaller than those before it.

    Parameters
    ----------
    p : sequence of float, shape (m,)
        NaN (nothing to test) stays NaN and does not count.

    Returns
    -------
    ndarray, shape (m,)
        At most 1.

    References
    ----------
    S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics, 1979.
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(p)[: np.isfinite(p).sum()]  # NaN sorts last
    adjusted = np.full(p.shape, math.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def _by_seed(records: Iterable[RunRecord], method: str, metric: str) -> dict[int, RunRecord]:
    mine = sorted((r for r in records if r.method == method), key=lambda r: r.created)
    return {r.seed: r for r in mine if math.isfinite(value(r, metric))}


def _observation(*records: RunRecord) -> str:
    """All that a seed can change in the records of a comparison, times left out."""
    parts = [
        [r.federation.get("fingerprint"), {k: x for k, x in r.metrics.items() if k != "seconds"}, r.per_client]
        for r in records
    ]
    return json.dumps(parts, sort_keys=True)


def _same_data(a: RunRecord, b: RunRecord) -> bool:
    sizes = ("n_clients", "n_classes", "n_train", "n_test")
    differing = {k: (a.federation.get(k), b.federation.get(k)) for k in sizes}
    differing = {k: pair for k, pair in differing.items() if pair[0] != pair[1]}
    if a.stand_in != b.stand_in:
        differing["stand_in"] = a.stand_in, b.stand_in
    if differing:
        raise ValueError(f"{a.relative_path} and {b.relative_path} cannot be paired: their data differ in {differing}")
    return a.federation.get("fingerprint") == b.federation.get("fingerprint")
