"""The differences between methods whose runs are on record, and which records may be compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.records import RunRecord, measured, records_of
from hetfl_core.statistics.differences import Paired, as_table, observed

PROTOCOL = ("rounds", "participation", "dtype")
"""Settings that both sides of a comparison must share."""

RUNTIME_SETTINGS = frozenset(
    {"seed", "engine", "device", "threads", "stack_size", "checkpoint", "progress", "evaluate_every", "together"}
)
"""Settings in which the runs behind one number may differ: they do not change what is estimated."""

DETERMINISTIC = frozenset({"LDA", "LR", "MDM", "SVM", "Pooled"})
"""Classes of methods that draw no random number, in records that do not say so themselves."""


class NoPairsError(WrongValue):
    """No seed has all the runs that a comparison needs."""


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
        raise WrongValue("terms must name the runs of one method at least, got none")
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
        raise WrongValue(
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
        raise WrongValue(f"these records cannot be compared, for they were not run alike: {'; '.join(said)}")


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
        raise WrongValue(f"{a.relative_path} and {b.relative_path} cannot be paired: their data differ in {differing}")
    return a.federation.get("fingerprint") == b.federation.get("fingerprint")
