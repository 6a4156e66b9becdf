"""The ledger: the papers' numbers and claims beside our records, each pair judged by one rule.

`verdict` judges a number, `claim_verdict` a statement of the form "A is better than B". Which experiments can be run
is handed over (``known``, as from `hetfl_core.experiments.known`): the ledger knows nothing of how records are made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core.ledger.arithmetic import with_arithmetic
from hetfl_core.ledger.published import paper_values
from hetfl_core.ledger.records import RunRecord, load, value
from hetfl_core.ledger.statistics import Paired, paired
from hetfl_core.ledger.tables import counted
from hetfl_core.resources import data_path

RUNTIME_SETTINGS = frozenset(
    {"seed", "engine", "device", "threads", "stack_size", "checkpoint", "progress", "evaluate_every"}
)
"""Settings in which the runs behind one number may differ: they do not change what is estimated."""

PROTOCOL = ("rounds", "participation", "dtype")
"""Settings that both sides of a comparison must share."""

UNAVAILABLE = "data not available here"
PENDING = "pending"
UNBUILT = "no experiment yet"


# --- numbers ----------------------------------------------------------------------------------------------------------


def combined_error(*samples: tuple[float, float]) -> float:
    """Standard error of the difference of means, from (standard deviation, number of runs) of each side.

    A side whose deviation is not known (one run, or none printed) adds nothing: say so beside the result.
    """
    known = [sd**2 / n for sd, n in samples if n > 1 and math.isfinite(sd)]
    return math.sqrt(sum(known))


def verdict(difference: float, standard_error: float) -> str:
    """The rule of the ledger: *agrees* within max(1 point, 2 combined standard errors), else *higher* or *lower*.

    Parameters
    ----------
    difference : float
        Ours less theirs, in points.
    standard_error : float
        Of the difference, in points, as from `combined_error`.
    """
    if abs(difference) <= tolerance(standard_error) + 1e-9:  # 1e-9: rounding of decimal fractions, not leniency
        return "agrees"
    return "higher" if difference > 0 else "lower"


def tolerance(standard_error: float) -> float:
    """How far a value may lie from the paper's and still agree, in points."""
    return max(1.0, 2.0 * standard_error)


def numbers(
    records: Iterable[RunRecord] | None = None,
    *,
    accuracy: str = "accuracy",
    known: Mapping[str, Collection[str]] | None = None,
) -> pd.DataFrame:
    """Each number of the papers that an experiment of ours reproduces, ours beside it, and a verdict.

    Only records at scale ``"paper"`` on real data are set against a paper's number; the note tells of others.

    Parameters
    ----------
    records : iterable of RunRecord, optional
        Default: all of ``data/results``.
    accuracy : str
        Which metric stands for the papers' "accuracy". FLIC's text reports the mean over clients (``"accuracy"``);
        its published code weights clients by their test samples (``"accuracy_weighted"``).
    known : mapping of str to collection of str, optional
        Experiments that can be run and their methods, as from `hetfl_core.experiments.known`. Without it no number
        is pending and no command is named: what has no record has no experiment yet.

    Returns
    -------
    DataFrame
        One row a number: ``paper, table, setting, experiment, method, metric``; ``published, published_sd,
        published_runs``; ``ours, ours_sd, ours_runs, scale``; ``difference`` and ``tolerance`` (points); ``verdict``:
        agrees, higher, lower (with "(1 seed)" where our standard error is unknown), pending, data not available here,
        no experiment yet, settings differ, or metric missing; ``note``; ``command`` that would fill a pending row;
        and what is behind our number: ``seeds``, ``records`` (places in the results folder), ``commits``.
    """
    records = list(load() if records is None else records)
    rows = paper_values()
    rows = rows[rows["experiment"] != ""]
    return pd.DataFrame([_number_row(row, records, accuracy, known or {}) for row in rows.to_dict("records")])


def _number_row(
    row: dict[str, Any], records: list[RunRecord], accuracy: str, known: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    metric = accuracy if row["metric"] == "accuracy" else row["metric"]
    mine = [r for r in records if (r.experiment, r.method) == (row["experiment"], row["method"])]
    used = _comparable(mine)
    x = np.array([value(r, metric) for r in used])
    ours, sd = (float(x.mean()) if len(x) else math.nan), (float(x.std(ddof=1)) if len(x) > 1 else math.nan)
    error = combined_error((row["sd"], row["runs"]), (sd, len(x)))
    state = _judge(row, used, ours, error, known)
    return {
        **{k: row[k] for k in ("paper", "table", "setting", "experiment", "method")},
        "metric": metric,
        "published": row["value"],
        "published_sd": row["sd"],
        "published_runs": row["runs"],
        "ours": ours,
        "ours_sd": sd,
        "ours_runs": len(x),
        "scale": "paper" if used else "",
        "difference": ours - row["value"],
        "tolerance": tolerance(error),
        "verdict": state,
        "note": _note(row, mine, metric),
        "command": "" if used else _missing(state, row["experiment"], known),
        **_evidence(used),
    }


def _comparable(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Real data at the paper's scale, the newest record of each seed, by seed."""
    kept = {r.seed: r for r in sorted(records, key=lambda r: r.created) if r.scale == "paper" and not r.stand_in}
    return [kept[seed] for seed in sorted(kept)]


def _judge(
    row: Mapping[str, Any],
    used: list[RunRecord],
    ours: float,
    error: float,
    known: Mapping[str, Collection[str]],
) -> str:
    if not used:
        return _without_runs(row["experiment"], [row["method"]], row["available"] == "no", known)
    if _settings_differ(used):
        return "settings differ"
    if math.isnan(ours):
        return "metric missing"
    return verdict(ours - row["value"], error) + (" (1 seed)" if len(used) == 1 else "")


def _settings_differ(records: list[RunRecord]) -> bool:
    """Whether any two runs disagree in a setting of the method, of the protocol or of the data."""
    chosen = [{**r.settings, "data": (r.federation.get("info") or {}).get("settings", {})} for r in records]
    return any(_differ(a, b) for a, b in itertools.combinations(chosen, 2))


def _protocols_differ(records: list[RunRecord]) -> bool:
    """Whether any two runs, also of different methods, were not run in the same way."""
    ways = [{k: r.settings[k] for k in PROTOCOL if k in r.settings} for r in records]
    return any(_differ(a, b) for a, b in itertools.combinations(ways, 2))


def _differ(a: Any, b: Any) -> bool:
    """Whether two settings disagree where both say something.

    A hyper-parameter that a method did not have yet when the older record was written is no disagreement: new ones
    come with a default that leaves the method as it was.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return any(_differ(a[k], b[k]) for k in a.keys() & b.keys() - RUNTIME_SETTINGS)
    return a != b


def _note(row: Mapping[str, Any], records: list[RunRecord], metric: str) -> str:
    notes = [row["note"]] if row["available"] != "yes" else []
    if any(r.stand_in for r in records):
        notes.append("records on stand-in data are not set against the paper")
    book = [value(r, metric) for r in records if r.scale == "book" and not r.stand_in]
    if book:
        notes.append(f"book scale, not compared: {np.mean(book):.2f} ({counted(len(book), 'run')})")
    return "; ".join(notes)


def command(experiment: str) -> str:
    """What a reader types to make the records of an experiment."""
    return f"hetfl reproduce {experiment} --scale paper"


def _missing(state: str, experiment: str, known: Collection[str]) -> str:
    """The command for an experiment without records, where there is one: it also runs once its data are at hand."""
    return command(experiment) if state in (PENDING, UNAVAILABLE) and experiment in known else ""


def _evidence(used: Sequence[RunRecord]) -> dict[str, list[Any]]:
    return {
        "seeds": sorted({r.seed for r in used}),
        "records": [r.relative_path for r in used],
        "commits": sorted({r.revision for r in used}),
    }


# --- claims -----------------------------------------------------------------------------------------------------------


def claim_verdict(result: Paired) -> str:
    """*holds* when the interval lies above zero, *reverses* when below, else *open*; always open with one seed."""
    if result.n >= 2 and result.low > 0:
        return "holds"
    return "reverses" if result.n >= 2 and result.high < 0 else "open"


def claims(
    records: Iterable[RunRecord] | None = None, *, known: Mapping[str, Collection[str]] | None = None
) -> pd.DataFrame:
    """Each statement "A is better than B" of the papers, and whether our runs bear it out.

    Only records at scale ``"paper"`` on real data count, as in `numbers`.

    Parameters
    ----------
    records, known
        As for `numbers`.

    Returns
    -------
    DataFrame
        ``paper, id, claim, experiment, metric, better, worse, where``; ``difference, low, high`` (points, with 95 %
        interval); ``verdict``: holds, reverses, open (also with fewer than two seeds in common), pending, data not
        available here, settings differ, or no experiment yet; ``note``, ``command``, ``seeds``, ``records``,
        ``commits``; ``reach`` and ``turns``: whether other arithmetic could turn the verdict (`with_arithmetic`).
    """
    records = list(load() if records is None else records)
    values = paper_values()
    missing = set(values.loc[values["available"] == "no", "experiment"])
    rows = pd.read_csv(data_path("paper", "claims.csv"), dtype=str, keep_default_na=False).to_dict("records")
    return with_arithmetic(pd.DataFrame([_claim_row(row, records, missing, known or {}) for row in rows]), records)


def _claim_row(
    row: dict[str, Any], records: list[RunRecord], missing: set[str], known: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    metric, better, worse = row["metric"], row["better"], row["worse"]
    mine = [r for r in records if r.experiment == row["experiment"] and math.isfinite(value(r, metric))]
    sides = [_comparable(r for r in mine if r.method == name) for name in (better, worse)]
    common = {r.seed for r in sides[0]} & {r.seed for r in sides[1]}
    used = [r for side in sides for r in side if r.seed in common]
    result = paired(used, row["experiment"], better, worse, metric) if common else None
    without = _without_runs(row["experiment"], [better, worse], row["experiment"] in missing, known)
    state = claim_verdict(result) if result else without
    if any(_settings_differ(side) for side in sides) or _protocols_differ(used):
        state = "settings differ"
    return {
        **row,
        "difference": result.mean if result else math.nan,
        "low": result.low if result else math.nan,
        "high": result.high if result else math.nan,
        "verdict": state,
        "note": "the fingerprints of the data differ" if result and not result.same_data else "",
        "command": _missing(state, row["experiment"], known),
        **_evidence(used),
    }


def _without_runs(
    experiment: str, methods: Iterable[str], unavailable: bool, known: Mapping[str, Collection[str]]
) -> str:
    """Why there is no number of ours: no data, no such experiment or method here yet, or just not run."""
    if unavailable and experiment:
        return UNAVAILABLE
    return PENDING if all(method in known.get(experiment, ()) for method in methods) else UNBUILT
