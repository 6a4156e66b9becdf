"""Which arithmetic records were made with, and how far arithmetic alone carries a result.

Two runs of one seed that differ in nothing but the order in which numbers are added (instructions, size of the stacks)
begin alike and drift apart as training amplifies the last bit. Their spread s is part of what is seen over seeds: each
seed comes with a rounding of its own, so that Student's interval over seeds holds it already. But what is made again on
another CPU is another draw. The mean difference of two methods over n seeds then moves by about s √(2/n) (standard
deviation), and a verdict whose interval ends nearer to zero than twice that may turn.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from hetfl_core import checks, numerics
from hetfl_core.records import RunRecord, records_of, value

ARITHMETIC = "arithmetic"
"""Folder of the experiments whose runs differ in nothing but their arithmetic (`hetfl_book.verification.vary`)."""


def generations(records: Iterable[RunRecord]) -> pd.DataFrame:
    """How many records there are of each revision of the numerics and each set of instructions, the newest first.

    Returns
    -------
    DataFrame
        ``revision`` (0: from before there was one), ``instructions`` (PyTorch's; "not recorded"), ``records``,
        ``experiments``, ``older`` (whether `hetfl_core.numerics.REVISION` is higher: their bits may not repeat).
    """
    rows = [(r.numerics_revision, r.isa or "not recorded", r.experiment) for r in records_of(records)]
    frame = pd.DataFrame(rows, columns=["revision", "instructions", "experiment"])
    grouped = frame.groupby(["revision", "instructions"])["experiment"].agg(["size", "nunique"]).reset_index()
    grouped = grouped.set_axis(["revision", "instructions", "records", "experiments"], axis=1)
    grouped["older"] = grouped["revision"] < numerics.REVISION
    return grouped.sort_values(["revision", "records"], ascending=False, ignore_index=True)


def arithmetic_spreads(records: Iterable[RunRecord], metric: str = "accuracy") -> pd.DataFrame:
    """The spread of a result over ways to round, at one seed, beside its spread over seeds.

    Two ways that came to the same numbers are one; where all did, the spread is 0.

    Parameters
    ----------
    records : iterable of RunRecord
        Those of `ARITHMETIC`, and those at scale ``"paper"`` of the experiments below it.
    metric : str
        In points for accuracies.

    Returns
    -------
    DataFrame
        One line for each experiment and method: ``experiment``, ``method``; ``ways``: to round that gave different
        numbers, all seeds together, at ``varied`` seeds; ``arithmetic``: standard deviation over them, pooled over the
        seeds; ``largest``: difference of two of them at one seed; ``seeds`` and ``over_seeds``: number of seeds and
        standard deviation over them at scale ``"paper"``; ``same_data``: whether these had the same data.
    """
    checks.nonempty_str("metric", metric)
    records = records_of(records)
    tried: Counter[tuple[str, str, int]] = Counter()
    found: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for r in records:
        if r.experiment.startswith(f"{ARITHMETIC}/") and math.isfinite(value(r, metric)):
            of = r.experiment.removeprefix(f"{ARITHMETIC}/"), str(r.settings["of"]["method"])
            tried[*of, r.seed] += 1
            found.setdefault(of, {}).setdefault(r.seed, {})[_numbers(r)] = value(r, metric)
    columns = [
        "experiment", "method", "varied", "ways", "arithmetic", "largest", "seeds", "over_seeds", "same_data",
    ]  # fmt: skip
    rows = []
    for (experiment, method), by_seed in found.items():
        groups = [np.array(list(ways.values())) for ways in by_seed.values()]
        freedom = sum(max(len(g) - 1, int(tried[experiment, method, seed] > 1)) for seed, g in zip(by_seed, groups))
        squares = sum(((g - g.mean()) ** 2).sum() for g in groups)
        seeds = {r.seed: r for r in records if (r.experiment, r.scale, r.method) == (experiment, "paper", method)}
        over = np.array([value(r, metric) for r in seeds.values()])
        rows.append(
            (
                experiment,
                method,
                len(groups),
                sum(map(len, groups)),
                math.sqrt(squares / freedom) if freedom else math.nan,
                max(float(np.ptp(g)) for g in groups),
                len(over),
                float(over.std(ddof=1)) if len(over) > 1 else math.nan,
                len({r.federation.get("fingerprint") for r in seeds.values()}) < 2,
            )
        )
    return pd.DataFrame(rows, columns=columns)


def _numbers(record: RunRecord) -> str:
    """All numbers of a run but its seconds, as text."""
    parts = [{k: x for k, x in table.items() if k != "seconds"} for table in (record.metrics, record.history)]
    return json.dumps(parts, sort_keys=True)


def arithmetic_reach(spread: float, seeds: int) -> float:
    """How far other arithmetic may move a mean difference of two methods: twice its standard deviation, 2 s √(2/n).

    Parameters
    ----------
    spread : float
        Standard deviation s of one run's result over ways to round.
    seeds : int
        Number n of pairs.
    """
    checks.number("spread", spread, 0)
    checks.integer("seeds", seeds, 0)
    return 2 * spread * math.sqrt(2 / seeds) if seeds else math.nan


def with_arithmetic(claims: pd.DataFrame, records: Sequence[RunRecord]) -> pd.DataFrame:
    """A table of claims (`hetfl_book.ledger.claims`) with what other arithmetic could do to each verdict.

    The spread is the largest measured on the claim's own experiment; where none was, the root mean square of all that
    were measured.

    Returns
    -------
    DataFrame
        With two more columns: ``reach`` (`arithmetic_reach`; NaN without a measurement or an interval) and ``turns``:
        whether zero is nearer to an end of the interval than that.
    """
    checks.frame("claims", claims, "experiment", "seeds", "low", "high")
    spreads = arithmetic_spreads(records).dropna(subset=["arithmetic"])
    own = spreads.groupby("experiment")["arithmetic"].max()
    usual = float(np.sqrt((spreads["arithmetic"] ** 2).mean())) if len(spreads) else math.nan
    known = [own.get(c.experiment, usual) if np.isfinite(c.low) else math.nan for c in claims.itertuples()]
    reach = [
        arithmetic_reach(s, len(seeds)) if np.isfinite(s) else math.nan
        for s, seeds in zip(known, claims["seeds"], strict=True)
    ]
    end = np.minimum(claims["low"].abs(), claims["high"].abs())
    return claims.assign(reach=reach, turns=(end < reach).fillna(False).astype(bool))
