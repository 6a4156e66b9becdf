r"""Tables and tests from the records: gains within a federation, ranks and tests across federations.

References
----------
.. [1] J. Demšar. Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006.
.. [2] A. Benavoli, G. Corani, J. Demšar, M. Zaffalon. Time for a change: a tutorial for comparing multiple classifiers
   through Bayesian analysis. JMLR 18(77), 2017.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from hetfl_book.headtohead.entries import ALONE, entries
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_book.headtohead.running import APART, OWN_STEP
from hetfl_core import records
from hetfl_core.records import RunRecord
from hetfl_core.reporting.judging import FEW, Gain, resampled
from hetfl_core.rng import SERVER, numpy_stream
from hetfl_core.statistics import holm

MEASURE = "balanced_accuracy"
LOWER = ("log_loss", "calibration_error", "brier")
"""Measures of which less is better, in their own unit; the others are given in per cent."""

ROPE = 1.0
"""Points within which two methods are practically the same."""


def finals(folders: Iterable[Path | None] = (None,)) -> list[RunRecord]:
    """All records of finals and of the control, of folders or of ``data/results``; the first of each run.

    Parameters
    ----------
    folders : iterable of Path or None
    """
    ends = [
        f"headtohead/{name}-{size}{end}" for name in FEDERATIONS for size in ("all", "tenth") for end in ("", APART)
    ]
    found: dict[str, RunRecord] = {}
    for folder in folders:
        if folder is None or folder.is_dir():
            for experiment in ends:
                for record in records.load(folder, experiment=experiment):
                    found.setdefault(record.relative_path, record)
    return list(found.values())


def clients(found: Iterable[RunRecord], measure: str = MEASURE) -> pd.DataFrame:
    """A row for each client of each run.

    Parameters
    ----------
    found : iterable of RunRecord
    measure : str
        A column of `Run.per_client`.

    Returns
    -------
    DataFrame
        Columns ``federation``, ``size``, ``method``, ``control`` (whether nothing was exchanged), ``seed``, ``client``,
        ``n_train``, ``n_test``, ``rarest`` (test rows of the rarest of its classes), ``value`` (per cent, or the unit
        of the measure) and ``counts``: whether `rarest` is at least ten, or no client of the federation has as many.
    """
    parts = []
    for record in found:
        name, _, size = record.experiment.removeprefix("headtohead/").removesuffix(APART).rpartition("-")
        each = pd.DataFrame(record.per_client)
        value = pd.to_numeric(each[measure]) * (1 if measure in LOWER else 100)
        parts.append(
            each[["client", "n_train", "n_test", "rarest"]].assign(
                value=value,
                counts=(each["rarest"] >= FEW) | (each["rarest"].max() < FEW),
                federation=name,
                size=size,
                method=record.method,
                control=record.experiment.endswith(APART),
                seed=record.seed,
            )
        )
    columns = ["federation", "size", "method", "control", "seed", "client", "n_train", "n_test", "rarest", "value"]
    return pd.concat(parts, ignore_index=True)[[*columns, "counts"]] if parts else pd.DataFrame(columns=columns)


def client_gains(found: Iterable[RunRecord], measure: str = MEASURE, base: str = ALONE) -> pd.DataFrame:
    """What each client gains over a way to stay alone, with its number of training rows.

    Parameters
    ----------
    found : iterable of RunRecord
    measure : str
    base : str
        A method of all federations.

    Returns
    -------
    DataFrame
        Indexed by ``federation``, ``size``, ``method`` and ``client``: ``gain``, ``low``, ``high``, ``p``, ``n_train``,
        ``rarest`` and ``counts``. Positive is better.
    """
    each = clients(found, measure)
    each = each[~each["control"]].set_index(["federation", "size", "method", "client", "seed"])
    sign = -1.0 if measure in LOWER else 1.0
    wide = each["value"].unstack("method")
    gaps = wide.drop(columns=base).sub(wide[base], axis=0).mul(sign).stack(future_stack=True).dropna(how="all")
    rows = {}
    about = each[["n_train", "rarest", "counts"]].groupby(level=["federation", "size", "client"]).first()
    for key, some in gaps.groupby(level=["federation", "size", "method", "client"], sort=False):
        name, size, _, client = key
        known = about.loc[name, size, client]
        rows[key] = [*resampled(some.tolist(), FEDERATIONS[name].ratio), *known]
    names = ["gain", "low", "high", "p", "n_train", "rarest", "counts"]
    index = pd.MultiIndex.from_tuples(rows, names=["federation", "size", "method", "client"]) if rows else None
    return pd.DataFrame([*rows.values()], index=index, columns=names)


def cells(found: Sequence[RunRecord], measure: str = MEASURE) -> pd.DataFrame:
    """The comparison as a table: a row for each method on each federation at each size.

    Parameters
    ----------
    found : sequence of RunRecord
    measure : str

    Returns
    -------
    DataFrame
        Columns ``federation``, ``size``, ``kind``, ``real``, ``method``, ``way``; ``score``, the mean over clients that
        count and seeds; ``gain``, ``low``, ``high`` and ``p`` over training alone, ``gain_logistic`` … over logistic
        regression alone and ``gain_sharing`` … over the control with nothing exchanged; ``worst``, the smallest mean
        gain of a client that counts, and ``worst_client``; ``bytes_up``, ``bytes_down`` and ``seconds``, means over
        seeds; ``seeds`` and ``diverged``, numbers of runs. Where a run has no figure, there is no mean.
    """
    if not found:
        return pd.DataFrame(columns=["federation", "size", "method"])
    each = clients(found, measure)
    counted = each[each["counts"]]
    keys = ["federation", "size", "control", "method", "seed"]
    scores = counted.groupby(keys)["value"].agg(lambda values: values.mean(skipna=False))
    sign = -1.0 if measure in LOWER else 1.0
    costs = {(r.experiment, r.method): _cost([o for o in found if _same(o, r)]) for r in found}
    rows = []
    for (name, size, method), own in scores.xs(False, level="control").groupby(level=["federation", "size", "method"]):
        setting = FEDERATIONS[name]
        mine = own.droplevel(["federation", "size", "method"])
        against = {
            "gain": (False, ALONE),
            "gain_logistic": (False, "logistic regression alone"),
            "gain_sharing": (True, method),
        }
        gains: dict[str, float] = {}
        for what, (control, other) in against.items():
            gap = _gap(scores, mine, (name, size, control, other), sign, setting.ratio)
            names = [what, *(f"{end}{what.removeprefix('gain')}" for end in ("low", "high", "p"))]
            gains |= dict(zip(names, gap, strict=True))
        line = entries().get(method.removesuffix(OWN_STEP))
        rows.append(
            {
                "federation": name,
                "size": size,
                "kind": setting.kind,
                "real": setting.real,
                "method": method,
                "way": line.way if line else "together",
                "score": mine.mean(skipna=False),
                **gains,
                **_worst(counted, (name, size, method), sign),
                **costs[f"headtohead/{name}-{size}", method],
            }
        )
    return pd.DataFrame(rows)


def _same(a: RunRecord, b: RunRecord) -> bool:
    return (a.experiment, a.method) == (b.experiment, b.method)


def _cost(same: Sequence[RunRecord]) -> dict[str, float]:
    means = {name: float(np.mean([r.metrics.get(name, 0) for r in same])) for name in ("bytes_up", "bytes_down")}
    seconds = float(np.mean([r.seconds for r in same]))
    lost = sum(bool(r.metrics.get("diverged")) for r in same)
    return {**means, "seconds": seconds, "seeds": len(same), "diverged": lost}


def _gap(scores: pd.Series, mine: pd.Series, other: tuple[Any, ...], sign: float, ratio: float) -> Gain:
    """The paired difference by seed; NaN where there is nothing to compare with, or with itself."""
    name, size, control, method = other
    try:
        theirs = scores.loc[name, size, control, method]
    except KeyError:
        return Gain(math.nan, math.nan, math.nan, math.nan)
    both = mine.index.intersection(theirs.index)
    return resampled((sign * (mine[both] - theirs[both])).tolist(), ratio)


def _worst(counted: pd.DataFrame, key: tuple[str, str, str], sign: float) -> dict[str, Any]:
    name, size, method = key
    here = counted[(counted["federation"] == name) & (counted["size"] == size) & ~counted["control"]]
    means = here.pivot_table(index="client", columns="method", values="value", aggfunc="mean")
    if ALONE not in means or means.empty or method not in means:
        return {"worst": math.nan, "worst_client": ""}
    gains = sign * (means[method] - means[ALONE])
    return {"worst": float(gains.min()), "worst_client": str(gains.idxmin())}


# --- across federations -----------------------------------------------------------------------------------------------


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


class Friedman(NamedTuple):
    """Friedman's statistic and its p-value."""

    statistic: float
    p: float


def friedman(values: pd.DataFrame) -> Friedman:
    """Whether the mean ranks of methods differ at all ([1]_, Section 3.2.2).

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
    found = stats.friedmanchisquare(*ranks(values).to_numpy().T)
    return Friedman(float(found.statistic), float(found.pvalue))


def wilcoxon(values: pd.DataFrame, base: str = ALONE) -> pd.DataFrame:
    """Each method against one of them over federations: Wilcoxon's signed-rank test, corrected by Holm's rule.

    Parameters
    ----------
    values : DataFrame, federations × methods
        More is better.
    base : str

    Returns
    -------
    DataFrame
        By method: ``median`` of the differences, ``wins`` of the method, ``p`` and ``p_holm``. A method without a
        figure somewhere has none here.
    """
    from scipy import stats

    rows = {}
    for method in values.columns.drop(base):
        gaps = (values[method] - values[base]).to_numpy()
        p = 1.0 if not np.any(gaps) else math.nan
        if np.any(gaps) and np.isfinite(gaps).all():
            p = float(stats.wilcoxon(gaps).pvalue)
        rows[method] = {"median": float(np.median(gaps)), "wins": int((gaps > 0).sum()), "p": p}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["median", "wins", "p"])
    return table.assign(p_holm=holm(table["p"]) if len(table) else [])


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
        raise ValueError(f"gaps must be finite numbers, at least one, got {z.tolist()}")
    z = np.concatenate([[0.0], z])
    means = (z[:, None] + z) / 2
    w = numpy_stream(0, SERVER, 0, "signed-rank test").dirichlet([prior, *np.ones(len(z) - 1)], draws)
    left, right = (np.einsum("ni,ij,nj->n", w, side.astype(float), w) for side in (means < -rope, means > rope))
    most = np.stack([left, 1 - left - right, right]).argmax(0)
    worse, same, better = np.bincount(most, minlength=3) / draws
    return Beliefs(float(worse), float(same), float(better))


# --- as text ----------------------------------------------------------------------------------------------------------


def text(table: pd.DataFrame) -> str:
    """The ranked table of each size, and what the tests say where there are federations enough.

    Parameters
    ----------
    table : DataFrame
        As `cells` gives it.
    """
    parts = []
    for size, some in table.groupby("size", sort=False):
        values = some.pivot(index="federation", columns="method", values="score")
        shown = some.groupby("method").agg(
            federations=("federation", "nunique"),
            score=("score", "mean"),
            gain=("gain", "mean"),
            logistic=("gain_logistic", "mean"),
            sharing=("gain_sharing", "mean"),
            worst=("worst", "min"),
            kB=("bytes_up", lambda b: b.mean() / 1000),
            seconds=("seconds", "mean"),
            diverged=("diverged", "sum"),
        )
        shown.insert(0, "rank", ranks(values).mean())
        shown = shown.sort_values(["rank", "gain"], ascending=[True, False])
        parts += [f"size {size}: mean rank, balanced accuracy, and gains in points", shown.round(1).to_string(), ""]
        full = scores(some, str(size))
        if full.shape[0] > 1 and full.shape[1] > 2:
            test = friedman(full)
            apart = critical_difference(full.shape[1], full.shape[0])
            parts.append(
                f"{full.shape[1]} methods on {full.shape[0]} federations: Friedman p = {test.p:.2g}; mean ranks that "
                f"differ by less than {apart:.1f} cannot be told apart"
            )
    return "\n".join(parts) if parts else "no finals yet"


def choices(found: Iterable[RunRecord]) -> Mapping[tuple[str, str], dict[str, Any]]:
    """What was chosen, by experiment and method: ``chosen``, ``edges`` and ``reason``.

    Parameters
    ----------
    found : iterable of RunRecord
        Of experiments that end in ``-tuning``.
    """
    keys = ("chosen", "edges", "reason")
    return {(r.experiment, r.method): {key: r.settings[key] for key in keys} for r in found}
