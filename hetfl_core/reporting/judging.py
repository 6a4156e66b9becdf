r"""What the runs say: differences from each site alone, and whether anything can be recommended.

A split draws training and test rows anew from the same rows, so that the splits overlap and their plain t-interval is
too short. The interval of a mean over J splits takes instead the variance of Nadeau and Bengio [1]_, Section 3,

.. math:: \Big(\frac{1}{J} + \frac{n_\mathrm{test}}{n_\mathrm{train}}\Big)\, S^2,

with S² the variance of the differences over splits, and Student's t with J − 1 degrees of freedom. The p-values of all
ways are corrected by Holm's rule (`hetfl_core.statistics.holm`).

References
----------
.. [1] C. Nadeau, Y. Bengio. Inference for the generalization error. Machine Learning 52, 2003.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hetfl_core.engine.measures import MEASURES as SCORES
from hetfl_core.reporting.trials import MEASURES, Trials
from hetfl_core.reporting.ways import Way
from hetfl_core.statistics import MIN_SEEDS, Paired, holm

FEW = 10
"""Test rows of a class with which a site counts for the recommendation."""

MANY = 10
"""Sites whose average can be judged by, though each of them has too few test rows."""

LEVEL = 0.05
LOWER = [name for name in MEASURES if not SCORES["classification"][name].greater_is_better]
"""Measures of which less is better."""


class Gain(NamedTuple):
    """A mean gain over splits, with its 95 % interval and two-sided p-value; positive is better."""

    mean: float
    low: float
    high: float
    p: float


def resampled(gaps: Sequence[float], ratio: float) -> Gain:
    """Mean of differences over splits that overlap, and its interval ([1]_, Section 3).

    Parameters
    ----------
    gaps : sequence of float, shape (J,)
    ratio : float
        Test rows for each training row.

    Returns
    -------
    Gain
        All NaN where a difference is not finite or there are fewer than three.
    """
    if len(gaps) < MIN_SEEDS or not np.isfinite(gaps).all():
        return Gain(math.nan, math.nan, math.nan, math.nan)
    found = Paired.of(dict(enumerate(gaps)), ratio=ratio)
    return Gain(found.mean, found.low, found.high, found.p)


Verdict = Literal["together", "alone", "other", "small", "once"]


@dataclass
class Judgement:
    """What can be said.

    Parameters
    ----------
    verdict : {"together", "other", "alone", "small", "once"}
        Learn together; alone, but in another way than the base; alone, as nothing is shown; too few rows to say; the
        test rows are the same in all splits, so that nothing can be said.
    best : Way or None
        What is recommended, or the way with the largest mean gain.
    means : dict of str to float
        Of the measure by way, over the sites that count and over splits, in the unit of the report.
    overall : dict of str to Gain
        By way but the base, of the mean over the sites that count.
    p_holm : dict of str to float
    sites : dict of str to dict of str to Gain
        By way and site.
    levels : dict of str to dict of str to float
        Mean of the measure by way and site.
    counted : list of str
        Sites that count.
    few : dict of str to int
        Test rows of the rarest class, of the sites that do not.
    many : bool
        Whether the sites that count do so together only: each has too few test rows, but they are `MANY` at least.
    worst : dict of str to (str, float)
        By way the site that gains least, and what it gains.
    shown : list of (str, str)
        Sites with a gain that is shown, corrected for all ways and sites that count, and the way that gains most there.
    hurt : list of str
        Counted sites at which the way that is recommended does worse, their 95 % interval below 0.
    """

    verdict: Verdict
    best: Way | None
    means: dict[str, float]
    overall: dict[str, Gain]
    p_holm: dict[str, float]
    sites: dict[str, dict[str, Gain]]
    levels: dict[str, dict[str, float]]
    counted: list[str]
    few: dict[str, int]
    worst: dict[str, tuple[str, float]]
    shown: list[tuple[str, str]] = field(default_factory=list)
    hurt: list[str] = field(default_factory=list)
    many: bool = False


def judge(trials: Trials) -> Judgement:
    """Compare each way with the base, site by site and split by split.

    The rule: of the ways whose mean gain over the sites that count is shown (p ≤ 0.05 after Holm's correction), the one
    with the largest mean gain; if there is none, each site is to stay alone. A site counts that has `FEW` test rows of
    each of its classes. Where none has, but `MANY` sites have a figure in every split, these count together, by their
    average, and nothing is said of one of them.

    Parameters
    ----------
    trials : Trials

    Returns
    -------
    Judgement
    """
    measure = trials.settings["measure"]
    sign, unit = (-1.0, 1.0) if measure in LOWER else (1.0, 100.0)
    names = [client.name for client in trials.first]
    base, *others = [way.key for way in trials.ways]
    table = trials.figures.set_index(["way", "seed", "client"])
    values = {key: unit * table.loc[key][measure].unstack("client")[names] for key in (base, *others)}
    gaps = {key: sign * (values[key] - values[base]) for key in others}
    sizes = trials.figures.groupby("client")[["n_train", "n_test"]].mean()
    measured = [name for name in names if values[base][name].notna().all()]
    counted = [name for name in measured if trials.rarest[name] >= FEW]
    many = not counted and len(measured) >= MANY
    counted = measured if many else counted
    few = {name: n for name, n in trials.rarest.items() if n < FEW and name not in counted}

    def gain(rows: pd.DataFrame, sites: list[str]) -> Gain:
        n = sizes.loc[sites].sum()
        if trials.fixed:
            return Gain(float(rows[sites].mean(axis=None)), math.nan, math.nan, math.nan)
        return resampled(rows[sites].mean(axis=1, skipna=False).tolist(), n["n_test"] / n["n_train"])

    sites = {key: {name: gain(gaps[key], [name]) for name in names} for key in others}
    used = counted or names
    overall = {key: gain(gaps[key], used) for key in others}
    p_holm = dict(zip(others, holm([overall[key].p for key in others]).tolist(), strict=True)) if others else {}
    worst = {key: min(((n, sites[key][n].mean) for n in used), key=lambda pair: pair[1]) for key in others}
    cells = [(key, name) for key in others for name in counted if not many]
    each = holm([sites[key][name].p for key, name in cells]).tolist() if cells else []
    known = [c for c, p in zip(cells, each, strict=True) if p <= LEVEL and sites[c[0]][c[1]].mean > 0]
    most = {name: max((key for key, n in known if n == name), key=lambda k: sites[k][name].mean) for _, name in known}
    shown = [(key, name) for name, key in most.items()]
    verdict, best = _verdict(trials, overall, p_holm, counted)
    bad = [n for n in counted if best and sites[best.key][n].high < 0]
    hurt = bad if verdict in ("together", "other") and not many else []
    return Judgement(
        verdict,
        best,
        {key: float(rows[used].mean(axis=None)) for key, rows in values.items()},
        overall,
        p_holm,
        sites,
        {key: rows.mean(skipna=False).to_dict() for key, rows in values.items()},
        counted,
        few,
        worst,
        shown,
        hurt,
        many,
    )


def _verdict(
    trials: Trials, overall: dict[str, Gain], p_holm: dict[str, float], counted: list[str]
) -> tuple[Verdict, Way | None]:
    by_key = {way.key: way for way in trials.ways}
    sound = [key for key, gain in overall.items() if math.isfinite(gain.mean)]
    best = max(sound, key=lambda key: overall[key].mean, default=None)
    if not counted:
        return "small", by_key.get(str(best))
    if trials.fixed:
        return "once", by_key.get(str(best))
    shown = [key for key in sound if p_holm[key] <= LEVEL and overall[key].mean > 0]
    if not shown:
        return "alone", by_key.get(str(best))
    best = max(shown, key=lambda key: overall[key].mean)
    return ("other" if by_key[best].alone else "together"), by_key[best]
