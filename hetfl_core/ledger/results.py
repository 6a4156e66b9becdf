"""Records as a results page asks for them: a method's values seed by seed, differences, and gaps along a setting.

Everything here takes records and returns numbers; how they are drawn is `hetfl_core.figures.plots`, what is said of
them `hetfl_core.notebook`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from hetfl_core.ledger.records import RunRecord, value
from hetfl_core.ledger.statistics import Paired, paired


def by_seed(records: Iterable[RunRecord], experiment: str, method: str, metric: str = "accuracy") -> pd.Series:
    """A method's values in an experiment, by seed.

    Returns
    -------
    Series of float
        Indexed by seed, in increasing order; accuracies in per cent. Of two records of one seed the newer counts;
        seeds without the metric are left out. Empty where there are no records.
    """
    mine = sorted(
        (r for r in records if (r.experiment, r.method) == (experiment, method)), key=lambda r: (r.seed, r.created)
    )
    found = {r.seed: x for r in mine if math.isfinite(x := value(r, metric))}
    return pd.Series(found, dtype=float, name=method).rename_axis("seed")


def mean_sd(values: pd.Series, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds in words; with one seed just its value, with none a dash."""
    if len(values) < 2:
        return f"{values.iloc[0]:.{digits}f} (1 seed)" if len(values) else "–"
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f}"


def pair(
    records: Iterable[RunRecord], experiment: str, a: str, b: str, metric: str = "accuracy", scale: str = "paper"
) -> Paired | None:
    """As `hetfl_core.ledger.paired`, or None where no seed has both methods."""
    runs = [r for r in records if (r.experiment, r.scale) == (experiment, scale)]
    if by_seed(runs, experiment, a, metric).index.intersection(by_seed(runs, experiment, b, metric).index).empty:
        return None
    return paired(runs, experiment, a, b, metric, scale)


def gaps(
    records: Iterable[RunRecord],
    experiments: Mapping[Any, str],
    methods: Sequence[str],
    base: str,
    metric: str = "accuracy",
) -> pd.DataFrame:
    """Each method less a base along a setting, paired by seed.

    Parameters
    ----------
    records : iterable of RunRecord
    experiments : dict of value to str
        The experiment at each value of the setting, such as ``{50: "flic/toy-noisy-b50", …}``.
    methods : sequence of str
    base : str
        Method that is subtracted; it is run in the same experiments.
    metric : str

    Returns
    -------
    DataFrame
        Columns ``x`` (the setting), ``method``, ``mean, low, high`` (points, 95 % interval; infinite with one seed)
        and ``n`` (seeds). Points without a pair are left out.
    """
    runs = list(records)
    rows = [
        (x, method, found.mean, found.low, found.high, found.n)
        for method in methods
        for x, experiment in experiments.items()
        if (found := pair(runs, experiment, method, base, metric)) is not None
    ]
    return pd.DataFrame(rows, columns=["x", "method", "mean", "low", "high", "n"])


def at_one_place(records: Iterable[RunRecord], places: Mapping[str, Sequence[str]], experiment: str) -> list[RunRecord]:
    """Records of several experiments as if of one, so that methods run on the same data can be paired.

    Parameters
    ----------
    records : iterable of RunRecord
    places : dict of str to sequence of str
        Which methods are taken from which experiment.
    experiment : str
        Name that the copies get.

    Returns
    -------
    list of RunRecord
        Whether the data are the same, `hetfl_core.ledger.paired` sees by their sizes and fingerprints.
    """
    return [replace(r, experiment=experiment) for r in records if r.method in places.get(r.experiment, ())]
