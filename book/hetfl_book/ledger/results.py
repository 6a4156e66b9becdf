"""Records as a results page asks for them: a method's values seed by seed, differences, and gaps along a setting.

Everything here takes records and returns numbers; how they are drawn is `hetfl_core.plots`, what is said of
them `hetfl_book.notebook`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from hetfl_book.ledger.tables import counted, few, plus_minus
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.records import RunRecord, measured, records_of, to_percent
from hetfl_core.statistics import (
    MIN_SEEDS,
    NoPairsError,
    Paired,
    as_table,
    interval,
    newest_by_seed,
    paired,
    same_data,
)


def by_seed(records: Iterable[RunRecord], experiment: str, method: str, metric: str = "accuracy") -> pd.Series:
    """A method's values in an experiment, by seed.

    Returns
    -------
    Series of float
        Indexed by seed, in increasing order; accuracies in per cent. Of two records of one seed the newer counts;
        seeds without the metric are left out. Empty where there are no records.
    """
    checks.nonempty_strs(experiment=experiment, method=method, metric=metric)
    mine = newest_by_seed((r for r in records_of(records) if r.experiment == experiment), method, metric)
    found = {seed: measured(mine[seed], metric) for seed in sorted(mine)}
    return pd.Series(found, dtype=float, name=method).rename_axis("seed")


def at_round(
    records: Iterable[RunRecord], experiment: str, method: str, column: str = "accuracy", round: int | None = None
) -> pd.Series:
    """What a method's histories say, by seed, after a round: of clients as downloaded, of the server, …

    Parameters
    ----------
    records : iterable of RunRecord
    experiment, method : str
    column : str
        Of the history: ``"accuracy"``, ``"server_accuracy"``, … (see `hetfl_core.simulate`).
    round : int, optional
        By default the last one.

    Returns
    -------
    Series of float
        As from `by_seed`; seeds whose history has no value there are left out, and records without an accuracy.
    """
    checks.nonempty_strs(experiment=experiment, method=method, column=column)
    if round is not None:
        checks.integer("round", round, 0)
    mine = newest_by_seed((r for r in records_of(records) if r.experiment == experiment), method, "accuracy")
    found = {}
    for seed in sorted(mine):
        history = mine[seed].history
        values = dict(zip(history.get("round", ()), history.get(column, ()), strict=False))
        value = values.get(max(values, default=0) if round is None else round)
        if value is not None:
            found[seed] = to_percent(value, column)
    return pd.Series(found, dtype=float, name=method).rename_axis("seed")


def pooled(
    records: Iterable[RunRecord], experiments: Iterable[str], method: str, metric: str = "accuracy"
) -> pd.Series:
    """A method's mean over several experiments, such as the settings of one table, by seed.

    A claim about a table is judged on this: what no setting shows by itself, all of them together may.

    Returns
    -------
    Series of float
        As from `by_seed`; only seeds that all of the experiments have.
    """
    runs, names = records_of(records), checks.names("experiments", experiments)
    if not names:
        raise WrongValue("experiments must name at least one, got none")
    each = [by_seed(runs, name, method, metric) for name in names]
    return pd.concat(each, axis=1, join="inner").mean(axis=1).rename(method)


def apart(values: Mapping[str, pd.Series], base: str) -> pd.DataFrame:
    """Each method's values by seed less those of one of them, as a table that `hetfl_book.ledger.corrected` takes.

    Parameters
    ----------
    values : dict of str to Series
        By method, as from `by_seed` or `at_round`.
    base : str
        The method that is subtracted.

    Returns
    -------
    DataFrame
        As from `hetfl_book.ledger.effects`; methods that share no seed with `base` are left out.
    """
    known = checks.mapping("values", values)
    for name, series in known.items():
        checks.instance(f"values[{name!r}]", series, pd.Series)
    checks.choice("base", base, tuple(known))
    pairs = {name: difference(series, known[base]) for name, series in known.items() if name != base}
    return as_table({name: found for name, found in pairs.items() if found is not None})


def mean_sd(values: pd.Series, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds in words, with their number where they are too few to conclude from.

    One seed has no deviation, none is a dash.
    """
    checks.instance("values", values, pd.Series)
    checks.integer("digits", digits, 0, 17)
    return plus_minus(values.mean(), values.std(), digits) + few(len(values)) if len(values) else "–"


def words(row: Mapping[str, Any] | pd.Series) -> str:
    """A difference with its interval in words, or with the number of its seeds where they are too few for one.

    Parameters
    ----------
    row : mapping or Series
        With ``mean``, ``low``, ``high`` and ``seeds``, as in a row of `hetfl_book.ledger.effects`.
    """
    checks.instance("row", row, Mapping, pd.Series)
    if math.isfinite(row["low"]):
        return f"{row['mean']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
    return f"{row['mean']:+.2f} ({counted(len(row['seeds']), 'seed')})"


def turned(row: Mapping[str, Any] | pd.Series) -> dict[str, Any]:
    """A difference the other way round, b less a for a less b."""
    checks.instance("row", row, Mapping, pd.Series)
    return dict(row, mean=-row["mean"], low=-row["high"], high=-row["low"])


def diverged(records: Iterable[RunRecord], experiment: str, method: str) -> list[int]:
    """The seeds of a method that say that they diverged, or ended with a loss that is not a number.

    What older records count as the result of such a run means nothing. Of two records of one seed the newer counts.
    """
    checks.nonempty_strs(experiment=experiment, method=method)
    some = [r for r in records_of(records) if (r.experiment, r.method) == (experiment, method)]
    mine = {r.seed: r for r in sorted(some, key=lambda r: r.created)}
    lost = [seed for seed in sorted(mine) if mine[seed].metrics.get("diverged")]
    for seed in sorted(mine.keys() - set(lost)):
        losses = [mine[seed].history[name] for name in ("ce", "se") if mine[seed].history.get(name)]
        lost += [seed] if any(each[-1] is None or not math.isfinite(each[-1]) for each in losses) else []
    return sorted(lost)


def pair(
    records: Iterable[RunRecord], experiment: str, a: str, b: str, metric: str = "accuracy", scale: str = "paper"
) -> Paired | None:
    """As `hetfl_book.ledger.paired`, or None where no seed has both methods."""
    try:
        return paired(records, experiment, a, b, metric, scale)
    except NoPairsError:
        return None


def difference(a: pd.Series, b: pd.Series) -> Paired | None:
    """Values by seed less others (`by_seed`), such as two metrics of the same runs; None where they share no seed.

    Returns
    -------
    Paired or None
        As from `hetfl_book.ledger.paired`: no interval with fewer than `MIN_SEEDS` seeds.
    """
    checks.instance("a", a, pd.Series)
    checks.instance("b", b, pd.Series)
    d = (a - b).dropna()
    if d.empty:
        return None
    mean, low, high = interval(d.to_numpy()) if len(d) >= MIN_SEEDS else (float(d.mean()), -math.inf, math.inf)
    return Paired(mean, low, high, tuple(int(seed) for seed in d.index), sd=float(d.std()))


def across(
    records: Iterable[RunRecord], experiment: str, base_experiment: str, base: str, metric: str = "accuracy"
) -> pd.DataFrame:
    """Every method of an experiment less one method of another on the same data, seed by seed: an ablation's table.

    Parameters
    ----------
    records : iterable of RunRecord
    experiment, base_experiment : str
        What is compared, and where that which it is compared with was run.
    base : str
        That method.
    metric : str

    Returns
    -------
    DataFrame
        As from `hetfl_book.ledger.effects`, so that `hetfl_book.ledger.corrected` can follow. Methods that share no
        seed with `base` are left out.

    Raises
    ------
    ValueError
        If the data of a pair of records differ in size or kind.
    """
    checks.nonempty_strs(experiment=experiment, base_experiment=base_experiment, base=base, metric=metric)
    runs = records_of(records)
    here, there = ([r for r in runs if r.experiment == e] for e in (experiment, base_experiment))
    known = newest_by_seed(there, base, metric)
    pairs = {}
    for name in dict.fromkeys(r.method for r in here):
        mine = newest_by_seed(here, name, metric)
        both = sorted(mine.keys() & known.keys())
        alike = [same_data(mine[seed], known[seed]) for seed in both]
        if both:
            gap = {seed: measured(mine[seed], metric) - measured(known[seed], metric) for seed in both}
            pairs[name] = Paired.of(gap, all(alike))
    return as_table(pairs)


def gaps(
    records: Iterable[RunRecord], experiments: Mapping[Any, str], methods: Sequence[str], base: str
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

    Returns
    -------
    DataFrame
        Columns ``x`` (the setting), ``method``, ``mean, low, high`` (points, 95 % interval; infinite with fewer than
        `MIN_SEEDS` seeds) and ``n`` (seeds). Points without a pair are left out.
    """
    runs, methods = records_of(records), checks.names("methods", methods)
    checks.names("experiments", checks.mapping("experiments", experiments).values())
    checks.nonempty_str("base", base)
    rows = [
        (x, method, found.mean, found.low, found.high, found.n)
        for method in methods
        for x, experiment in experiments.items()
        if (found := pair(runs, experiment, method, base)) is not None
    ]
    return pd.DataFrame(rows, columns=["x", "method", "mean", "low", "high", "n"])
