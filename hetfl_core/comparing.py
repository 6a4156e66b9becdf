"""Several methods on one federation, over several seeds: means, and paired differences with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from hetfl_core.engine.evaluation import METRICS
from hetfl_core.engine.simulation import Run, simulate
from hetfl_core.federation import Federation
from hetfl_core.methods import Method
from hetfl_core.records import RunRecord, value
from hetfl_core.statistics import MIN_SEEDS, effects, holm

EXPERIMENT = "own/compare"
"""Name of the records that a comparison is made from."""

ROUNDS = 50


def compare(
    federation: Federation | Callable[[int], Federation],
    methods: Mapping[str, Any],
    *,
    seeds: int | Sequence[int] = 5,
    rounds: int = ROUNDS,
    base: str | None = None,
    metric: str | None = None,
    progress: bool = True,
    **options: Any,
) -> pd.DataFrame:
    """Run methods on the same data with the same seeds, and compare each with one of them.

    Parameters
    ----------
    federation : Federation, or callable
        The data, or what makes them of a seed. With one federation for all seeds, an interval is about the randomness
        of training on these data, and says nothing of other data.
    methods : dict of str to Method
        At least two, by the names that the table is to have; baselines (`hetfl_core.baselines`) may be among them.
    seeds : int or sequence of int
        Number of seeds, or the seeds themselves; at least three, so that there is a spread to judge by.
    rounds : int
        Communication rounds of every run.
    base : str, optional
        The method that the others are compared with; by default the last one.
    metric : str, optional
        An entry of `Run.final`; by default the accuracy, or the mean squared error of a regression.
    progress : bool
        Show a bar, a step per run.
    **options
        As for `hetfl_core.simulate`: ``participation``, ``device`` …

    Returns
    -------
    DataFrame
        Indexed by ``method``: ``mean`` and ``sd`` of the metric over seeds (accuracies in per cent); ``difference``
        from `base`, seed by seed, with ``low`` and ``high``, its 95 % t-interval; ``p``, two-sided, and ``p_holm``,
        corrected for as many tries as there are methods but `base`; ``seeds``, the number that counts (one that
        changes nothing is no new observation). The row of `base` has no difference.

    Raises
    ------
    ValueError
        For fewer than two methods or three seeds, and for a `base` or `metric` that is not there.
    """
    numbers = _check(methods, seeds)
    base = list(methods)[-1] if base is None else base
    if base not in methods:
        raise ValueError(f"base must be one of the methods {list(methods)}, got {base!r}")
    records: list[RunRecord] = []
    main = ""
    with tqdm(total=len(numbers) * len(methods), disable=not progress, desc="compare", unit="run") as bar:
        for seed in numbers:
            data = federation(seed) if callable(federation) else federation
            for name, method in methods.items():
                run = _run(data, method, rounds=rounds, seed=seed, progress=False, **options)
                main = metric or METRICS[run.federation.task].main
                if main not in run.final:
                    raise ValueError(f"metric must be one of {list(run.final)}, got {main!r}")
                records.append(RunRecord.of(run, EXPERIMENT, "own", method=name))
                bar.update()
    return _table(records, list(methods), base, main)


def _check(methods: Mapping[str, Any], seeds: int | Sequence[int]) -> list[int]:
    """The seeds one by one, once there are enough methods and seeds."""
    if not isinstance(methods, Mapping) or len(methods) < 2:
        raise ValueError(f"methods must map at least two names to methods, got {methods!r}")
    whole = isinstance(seeds, int | np.integer)
    numbers = list(range(seeds)) if whole else list(seeds)  # type: ignore[call-overload, arg-type]
    if len(set(numbers)) < MIN_SEEDS:
        raise ValueError(f"seeds must be at least three different ones, got {seeds!r}")
    return numbers


def _run(federation: Federation, method: Any, **options: Any) -> Run:
    """A run of a method, or of a baseline, which takes no rounds."""
    if isinstance(method, Method):
        return simulate(federation, method, **options)
    from hetfl_core import baselines

    return baselines.run(federation, method, seed=options["seed"])


def _table(records: list[RunRecord], names: list[str], base: str, metric: str) -> pd.DataFrame:
    values = {name: [value(r, metric) for r in records if r.method == name] for name in names}
    table = pd.DataFrame({"mean": {n: np.mean(v) for n, v in values.items()}})
    table["sd"] = pd.Series({n: np.std(v, ddof=1) for n, v in values.items()})
    against = effects(records, EXPERIMENT, base, metric, scale="own")
    table = table.join(against[["mean", "low", "high", "p"]].rename(columns={"mean": "difference"}))
    table["p_holm"] = pd.Series(holm(against["p"]), index=against.index)
    table["seeds"] = against["seeds"].map(len)
    table["seeds"] = table["seeds"].fillna(len(values[base])).astype(int)
    return table.rename_axis("method")
