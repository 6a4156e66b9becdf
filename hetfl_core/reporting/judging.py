r"""What the runs say: differences from the best way to stay alone, and whether anything can be recommended.

Learning together is recommended only if it beats the best way to stay alone. Which way that is, and which way of
learning together is the best, is chosen split by split on rows that are cut from the training rows, so that no test row
takes part in the choice. What is judged is one difference a split, the chosen way of learning together minus the chosen
way to stay alone, on the same test rows.

A split draws training and test rows anew from the same rows, so that the splits overlap and their plain t-interval is
too short. The interval of a mean over J splits takes instead the variance of Nadeau and Bengio [1]_, Section 3,

.. math:: \Big(\frac{1}{J} + \frac{n_\mathrm{test}}{n_\mathrm{train}}\Big)\, S^2,

with S² the variance of the differences over splits, and Student's t with J − 1 degrees of freedom. Where many small
sites count only together, they are the sample instead: each has the mean of its differences over the splits, and the
interval is Student's over sites, which have no patient in common. Where several ways are compared one by one, p-values
are corrected by Holm's rule (`hetfl_core.statistics.holm`).

References
----------
.. [1] C. Nadeau, Y. Bengio. Inference for the generalization error. Machine Learning 52, 2003.
"""

from __future__ import annotations

import math
from collections import Counter
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

    @property
    def shown(self) -> bool:
        """Whether it is positive and no accident."""
        return self.mean > 0 and self.p <= LEVEL


NONE = Gain(math.nan, math.nan, math.nan, math.nan)


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
        return NONE
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
        What is recommended; where that is the base, the way of learning together that was chosen most often.
    alone : Way
        The way to stay alone that was chosen most often.
    gain : Gain
        Of the chosen way of learning together over the chosen way to stay alone: the verdict hangs on it.
    chosen : dict of str to int
        By way, in how many splits it was chosen, of the ways to stay alone or of those of learning together.
    level : float
        Mean of the measure over splits and the sites that count, of the chosen way to stay alone.
    means : dict of str to float
        Of the measure by way, over the sites that count and over splits, in the unit of the report.
    overall : dict of str to Gain
        By way, over the chosen way to stay alone, of the mean over the sites that count.
    p_holm : dict of str to float
        By way of learning together, corrected for as many as there are.
    over_base : dict of str to Gain
        By way to stay alone but the base, over the base; its p-value is corrected for as many as there are.
    sites : dict of str to dict of str to Gain
        By way and site, over the chosen way to stay alone.
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
        Ways of learning together and sites with a gain that is shown, corrected for all of these ways and sites that
        count: the way that gains most at each site.
    hurt : list of (str, float)
        Counted sites at which the way that is recommended does worse, their 95 % interval below 0, and how much worse:
        than the chosen way to stay alone, or than the base, where another way to stay alone is recommended.
    """

    verdict: Verdict
    best: Way | None
    alone: Way
    gain: Gain
    chosen: dict[str, int]
    level: float
    means: dict[str, float]
    overall: dict[str, Gain]
    p_holm: dict[str, float]
    over_base: dict[str, Gain]
    sites: dict[str, dict[str, Gain]]
    levels: dict[str, dict[str, float]]
    counted: list[str]
    few: dict[str, int]
    worst: dict[str, tuple[str, float]]
    shown: list[tuple[str, str]] = field(default_factory=list)
    hurt: list[tuple[str, float]] = field(default_factory=list)
    many: bool = False


def judge(trials: Trials) -> Judgement:
    """Compare learning together with the best way to stay alone, site by site and split by split.

    The rule: learn together if the gain of the chosen way of learning together over the chosen way to stay alone is
    shown (p ≤ 0.05), in the way that was chosen most often. If it is not, stay alone; by another way than the base, if
    that one is shown to be better than the base (p ≤ 0.05 after Holm's correction), of several by the one that gains
    most. A site counts that has `FEW` test rows of each of its classes. Where none has, but `MANY` sites have a figure
    in every split, these count together, by their average, and nothing is said of one of them.

    Parameters
    ----------
    trials : Trials

    Returns
    -------
    Judgement
    """
    measure = trials.settings["metric"]
    sign, unit = (-1.0, 1.0) if measure in LOWER else (1.0, 100.0)
    names = [client.name for client in trials.first]
    by_key = {way.key: way for way in trials.ways}
    base, *others = [key for key, way in by_key.items() if way.alone]
    together = [key for key, way in by_key.items() if not way.alone]
    table = trials.figures.set_index(["way", "seed", "client"])
    values = {key: unit * table.loc[key][measure].unstack("client")[names] for key in by_key}
    measured = [name for name in names if values[base][name].notna().all()]
    counted = [name for name in measured if trials.rarest[name] >= FEW]
    many = not counted and len(measured) >= MANY
    counted = measured if many else counted
    few = {name: n for name, n in trials.rarest.items() if n < FEW and name not in counted}
    used = counted or names
    sizes = trials.figures.groupby("client")[["n_train", "n_test"]].mean()

    def gain(rows: pd.DataFrame, sites: list[str]) -> Gain:
        n = sizes.loc[sites].sum()
        if trials.fixed:
            return NONE._replace(mean=float(rows[sites].mean(axis=None)))
        if many and len(sites) >= MANY:
            return resampled(rows[sites].mean(axis=0, skipna=False).tolist(), 0.0)
        return resampled(rows[sites].mean(axis=1, skipna=False).tolist(), n["n_test"] / n["n_train"])

    finite = [key for key in together if np.isfinite(values[key][used]).all(axis=None)]
    alone = picks(trials, [base, *others], used, sign)
    joint = picks(trials, finite, used, sign)
    staying = _of(values, alone)
    gaps = {key: sign * (rows - staying) for key, rows in values.items()}
    overall = {key: gain(rows, used) for key, rows in gaps.items()}
    p_holm = dict(zip(together, holm([overall[key].p for key in together]).tolist(), strict=True)) if together else {}
    against = {key: sign * (values[key] - values[base]) for key in others}
    plain = {key: gain(rows, used) for key, rows in against.items()}
    p_base = holm([one.p for one in plain.values()]).tolist() if plain else []
    over_base = {key: one._replace(p=p) for (key, one), p in zip(plain.items(), p_base, strict=True)}
    sites = {key: {name: gain(rows, [name]) for name in names} for key, rows in gaps.items()}
    total = gain(sign * (_of(values, joint) - staying), used) if joint else NONE
    usual = by_key[_most(joint)] if joint else None
    verdict, best = _verdict(trials, total, usual, {by_key[key]: one for key, one in over_base.items()}, bool(counted))
    mine = {"together": gaps, "other": against}.get(verdict, {})
    judged = {name: gain(mine[best.key], [name]) for name in counted} if mine and best and not many else {}
    return Judgement(
        verdict,
        best,
        by_key[_most(alone)],
        total,
        dict(Counter([*alone.values(), *joint.values()])),
        float(staying[used].mean(axis=None)),
        {key: float(rows[used].mean(axis=None)) for key, rows in values.items()},
        overall,
        p_holm,
        over_base,
        sites,
        {key: rows.mean(skipna=False).to_dict() for key, rows in values.items()},
        counted,
        few,
        {key: min(((n, sites[key][n].mean) for n in used), key=lambda pair: pair[1]) for key in by_key},
        [] if many else _shown(sites, together, counted),
        [(name, -one.mean) for name, one in judged.items() if one.high < 0],
        many,
    )


def picks(trials: Trials, keys: Sequence[str], sites: Sequence[str], sign: float) -> dict[int, str]:
    """Of some ways the best one by rows that are cut from the training rows, split by split.

    Parameters
    ----------
    trials : Trials
    keys : sequence of str
        Of ways; of equally good ones the first is taken.
    sites : sequence of str
        Over which the mean is taken, as far as all of the ways have a figure there.
    sign : {1, -1}
        1 where more of the measure is better.

    Returns
    -------
    dict of int to str
        By the split's seed; empty without ways.
    """
    seeds = sorted({*trials.figures["seed"]})
    if len(keys) < 2:
        return {seed: key for seed in seeds for key in keys}
    table = trials.inner.set_index(["seed", "client", "way"])[trials.settings["metric"]].unstack("way")[[*keys]]
    found = {}
    for seed in seeds:
        known = table.loc[seed].reindex([*sites]).dropna()
        found[seed] = str((sign * known).mean().idxmax()) if len(known) else keys[0]
    return found


def _of(values: dict[str, pd.DataFrame], chosen: dict[int, str]) -> pd.DataFrame:
    """The figures of the way that was chosen in each split; a row a split, a column a site."""
    return pd.DataFrame({seed: values[key].loc[seed] for seed, key in chosen.items()}).T


def _most(chosen: dict[int, str]) -> str:
    """The way that was chosen most often; of several the one that was so first."""
    return Counter(chosen.values()).most_common(1)[0][0]


def _shown(sites: dict[str, dict[str, Gain]], together: Sequence[str], counted: Sequence[str]) -> list[tuple[str, str]]:
    """The way of learning together that gains most at each site where some gain is shown, of all ways and sites."""
    cells = [(key, name) for key in together for name in counted]
    p = holm([sites[key][name].p for key, name in cells]).tolist() if cells else []
    known = [(key, name) for (key, name), each in zip(cells, p) if sites[key][name]._replace(p=each).shown]
    most = {name: max((key for key, n in known if n == name), key=lambda k: sites[k][name].mean) for _, name in known}
    return [(key, name) for name, key in most.items()]


def _verdict(
    trials: Trials, gain: Gain, together: Way | None, over_base: dict[Way, Gain], any_counts: bool
) -> tuple[Verdict, Way | None]:
    if not any_counts:
        return "small", together
    if trials.fixed:
        return "once", together
    if gain.shown:
        return "together", together
    better = [way for way, one in over_base.items() if one.shown]
    return ("other", max(better, key=lambda way: over_base[way].mean)) if better else ("alone", together)
