"""The ledger: the papers' numbers and claims beside our records, each pair judged by one rule.

`verdict` judges a number, `claim_verdict` a statement, and neither judges anything with fewer than three seeds; `tally`
counts. Which experiments can be run is handed over (``known``, as from `hetfl_book.experiments.known`): the ledger
knows nothing of how records are made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from hetfl_book.ledger.arithmetic import with_arithmetic
from hetfl_book.ledger.published import paper_values, printed_once
from hetfl_book.ledger.tables import NUMBER_VERDICTS, SETTLED, counted
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.files import data_path
from hetfl_core.records import RunRecord, load, measured, records_of, value
from hetfl_core.statistics import MIN_SEEDS, Paired, contrast, corrected, differ, protocols_differ

WEIGHTED = "accuracy_weighted"
"""Accuracy as FLIC's published code takes it: clients count by their test samples."""

BASELINE = "Local"
"""What the methods of a table are measured against: training alone."""

POOLED = ("centralised",)
"""Methods that are trained on all clients' data in one place."""

UNAVAILABLE = "data not available here"
PENDING = "pending"
UNBUILT = "no experiment yet"


Row = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Sequence[RunRecord]]
"""The records of each experiment and method."""
Known = Mapping[str, Collection[str]]
"""The methods of each experiment that can be run."""


# --- numbers ----------------------------------------------------------------------------------------------------------


def combined_error(*samples: tuple[float, float]) -> float:
    """Standard error of the difference of means, from (standard deviation, number of runs) of each side.

    A side whose deviation is not known (one run, or none printed) adds nothing: say so beside the result.
    """
    for sample in samples:
        if len(checks.floats("samples", sample, 1, gaps=True)) != 2:
            raise WrongValue(f"samples must each be (standard deviation, number of runs), got {checks.shown(sample)}")
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
    checks.number("difference", difference)
    if abs(difference) <= tolerance(standard_error) + 1e-9:  # 1e-9: rounding of decimal fractions, not leniency
        return "agrees"
    return "higher" if difference > 0 else "lower"


def tolerance(standard_error: float) -> float:
    """How far a value may lie from the paper's and still agree, in points."""
    return max(1.0, 2.0 * checks.number("standard_error", standard_error, 0))


def numbers(
    records: Iterable[RunRecord] | None = None,
    *,
    accuracy: str = "accuracy",
    known: Known | None = None,
) -> pd.DataFrame:
    """Each accuracy that the papers print, once, ours beside it where there is one, and a verdict.

    A number that is printed again, in a later table or an older version, has one row. Only records at scale
    ``"paper"`` on real data are set against a paper's number; the note tells of others.

    Parameters
    ----------
    records : iterable of RunRecord, optional
        Default: all of ``data/results``.
    accuracy : str
        Which metric stands for the papers' "accuracy". FLIC's text reports the mean over clients (``"accuracy"``);
        its published code weights clients by their test samples (``"accuracy_weighted"``).
    known : mapping of str to collection of str, optional
        Experiments that can be run and their methods, as from `hetfl_book.experiments.known`. Without it no number
        is pending and no command is named: what has no record has no experiment yet.

    Returns
    -------
    DataFrame
        One row a number: ``paper, table, setting, experiment, method, metric``; ``published, published_sd,
        published_runs``; ``ours, ours_sd, ours_runs, scale``; ``difference`` and ``tolerance`` (points); ``verdict``:
        agrees, higher, lower, open (fewer than three seeds, and how many), pending, data not available here,
        no experiment yet, settings differ, or metric missing; ``verdict_weighted``: the same with accuracy as FLIC's
        code takes it; ``baseline``: "" or, where `BASELINE` itself does not agree, how far it is off; ``note``;
        ``command`` that would fill a pending row;
        and what is behind our number: ``seeds``, ``records`` (places in the results folder), ``commits``.
    """
    checks.nonempty_str("accuracy", accuracy)
    cells, known = _by_cell(_records(records)), _known(known)
    rows = printed_once(paper_values())
    rows = rows[rows["metric"] == "accuracy"].to_dict("records")
    table = pd.DataFrame([_number_row(row, cells, accuracy, known) for row in rows])
    off = _off(table.to_dict("records"))
    baselines = [
        off.get((r.experiment, BASELINE), "") if r.method != BASELINE and r.verdict in NUMBER_VERDICTS else ""
        for r in table.itertuples()
    ]
    table.insert(table.columns.get_loc("verdict_weighted") + 1, "baseline", baselines)
    return table


def _records(records: Iterable[RunRecord] | None) -> list[RunRecord]:
    return load() if records is None else records_of(records)


def _known(known: Known | None) -> Known:
    return checks.mapping("known", {} if known is None else known)


def _by_cell(records: Iterable[RunRecord]) -> Cells:
    found: dict[tuple[str, str], list[RunRecord]] = {}
    for r in records:
        found.setdefault((r.experiment, r.method), []).append(r)
    return found


def _off(rows: Iterable[Row]) -> dict[tuple[str, str], str]:
    """Of each (experiment, method) whose number does not agree with the paper's, the two numbers."""
    return {
        (r["experiment"], r["method"]): f"baseline off: {r['method']} {r['ours']:.2f} here, "
        f"{r['published']:.2f} printed"
        for r in rows
        if r["verdict"] in ("higher", "lower")  # not those with too few seeds
    }


def _number_row(row: Row, cells: Cells, accuracy: str, known: Known) -> dict[str, Any]:
    metric, by_code = (of if row["metric"] == "accuracy" else row["metric"] for of in (accuracy, WEIGHTED))
    mine = cells.get((row["experiment"], row["method"]), ())
    used = _comparable(mine)
    ours, sd, error = _ours(row, used, metric)
    state = _judge(row, used, ours, error, known)
    weighted, _, its_error = _ours(row, used, by_code)
    return {
        **{k: row[k] for k in ("paper", "table", "setting", "experiment", "method")},
        "metric": metric,
        "published": row["value"],
        "published_sd": row["sd"],
        "published_runs": row["runs"],
        "ours": ours,
        "ours_sd": sd,
        "ours_runs": len(used),
        "scale": "paper" if used else "",
        "difference": ours - row["value"],
        "tolerance": tolerance(error),
        "verdict": state,
        "verdict_weighted": state if by_code == metric else _judge(row, used, weighted, its_error, known),
        "note": _note(row, mine, metric),
        "command": "" if used else _missing(state, row["experiment"], known),
        **_evidence(used),
    }


def _ours(row: Row, used: Sequence[RunRecord], metric: str) -> tuple[float, float, float]:
    """Mean and standard deviation of our runs, and the standard error of ours less theirs."""
    x = np.array([value(r, metric) for r in used])
    mean, sd = (float(x.mean()) if len(x) else math.nan), (float(x.std(ddof=1)) if len(x) > 1 else math.nan)
    return mean, sd, combined_error((row["sd"], row["runs"]), (sd, len(x)))


def _comparable(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Real data at the paper's scale, the newest record of each seed, by seed."""
    kept = {r.seed: r for r in sorted(records, key=lambda r: r.created) if r.scale == "paper" and not r.stand_in}
    return [kept[seed] for seed in sorted(kept)]


def _judge(row: Row, used: list[RunRecord], ours: float, error: float, known: Known) -> str:
    if not used:
        return _without_runs(row["experiment"], row["method"], row["available"] == "no", known)
    if _settings_differ(used):
        return "settings differ"
    if math.isnan(ours):
        return "metric missing"
    return verdict(ours - row["value"], error) if len(used) >= MIN_SEEDS else f"open ({counted(len(used), 'seed')})"


def _settings_differ(records: list[RunRecord]) -> bool:
    """Whether any two runs disagree in a setting of the method, of the protocol or of the data."""
    chosen = [{**r.settings, "data": (r.federation.get("info") or {}).get("settings", {})} for r in records]
    return any(differ(a, b) for a, b in itertools.combinations(chosen, 2))


def _note(row: Row, records: Sequence[RunRecord], metric: str) -> str:
    notes = [row["note"]] if row["available"] != "yes" else []
    if any(r.stand_in for r in records):
        notes.append("records on stand-in data are not set against the paper")
    book = [value(r, metric) for r in records if r.scale == "book" and not r.stand_in]
    if book:
        notes.append(f"book scale, not compared: {np.mean(book):.2f} ({counted(len(book), 'run')})")
    return "; ".join(notes)


def command(experiment: str) -> str:
    """What a reader types to make the records of an experiment."""
    checks.nonempty_str("experiment", experiment)
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


KINDS = {
    "better": "A is more accurate than B: the difference is above zero",
    "about": "A less B is about a value: within its margin, in points; about zero is 'comparable'",
    "shrinks": "A leads B in one experiment, and leads by less in another",
    "times": "A takes about so many times what B takes: the ratio is within its margin",
}
"""The kinds of claims, and what has to be true of each."""

FAMILY = ("paper", "kind", "better", "experiment", "against", "metric")
"""What the comparisons of one claim have in common: one method is set against its rivals, in the same runs and by the
same measure. Verdicts are corrected over these comparisons, those without runs among them, and over nothing else."""


def claim_verdict(result: Paired, low: float = 0.0, high: float = math.inf) -> str:
    """The rule for every claim, which says that some difference lies between two bounds.

    *holds* when the 95 % interval lies between them, else, when it lies beyond one of them, *reverses* (of "A is better
    than B") or *fails* (where there are two bounds, and no other way round); else *open*, which it always is with fewer
    than three seeds. For bounds −m and m this is an equivalence test: two one-sided t-tests [1]_, at 2.5 % each, as
    the interval is that of all other claims.

    Parameters
    ----------
    result : Paired
    low, high : float
        The bounds; by default the claim is "A is better than B".

    References
    ----------
    .. [1] D. J. Schuirmann. A comparison of the two one-sided tests procedure and the power approach for assessing the
       equivalence of average bioavailability. Journal of Pharmacokinetics and Biopharmaceutics 15, 1987.
    """
    _check_bounds(result, low, high)
    if result.n < MIN_SEEDS:
        return "open"
    if result.low > low and result.high < high:
        return "holds"
    if result.low > high or result.high < low:
        return "fails" if math.isfinite(high) else "reverses"
    return "open"


def claim_p(result: Paired, low: float = 0.0, high: float = math.inf) -> float:
    """The level at which `claim_verdict` would just stop to be open; NaN with fewer than three seeds.

    For "A is better than B" this is the two-sided p-value of Student's t. The claim is either true or false, so that
    only one of "holds" and its opposite can be wrong, and the chance of it at this level is at most the level.
    """
    _check_bounds(result, low, high)
    if result.n < MIN_SEEDS:
        return math.nan
    inside = max(result.above(low), result.below(high))
    outside = min(result.below(low), result.above(high))
    return min(1.0, 2 * min(inside, outside))


def _check_bounds(result: Paired, low: float, high: float) -> None:
    checks.instance("result", result, Paired)
    checks.number("low", low, infinite=True)
    checks.number("high", high, infinite=True)


def claims(
    records: Iterable[RunRecord] | None = None,
    *,
    known: Known | None = None,
    instead: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Each statement of the papers about a difference, and whether our runs bear it out.

    Only records at scale ``"paper"`` on real data count, as in `numbers`.

    Parameters
    ----------
    records, known
        As for `numbers`.
    instead : dict of str to str, optional
        Experiments whose runs are judged in the place of another's, which a statement (and the number of its baseline)
        is about: the same claims in a setting that can be read otherwise.

    Returns
    -------
    DataFrame
        ``paper, id, claim, kind`` (`KINDS`), ``experiment, against, metric, better, worse, value, margin, where``, as
        ``data/paper/README.md`` explains them; ``difference, low, high`` (with 95 % interval; in points, of a *times*
        the ratio, of a *shrinks* how much of the lead is gone); ``p`` (`claim_p`); ``verdict``: holds, reverses, fails,
        open (also with fewer than three seeds in common), pending, data not available here, settings differ, or no
        experiment yet; ``verdict_holm``: the same after Holm's correction over what the claim compares (`FAMILY`);
        ``part_of``: the claim about a table, all of which has runs, that this is one setting of, or "";
        ``verdict_weighted``: as ``verdict``, with accuracy as FLIC's code takes it; ``baseline``: "" or, where
        B's own number does not agree with the paper's, how far it is off; ``checkable``: whether the paper prints B's
        own number at all, and the claim has runs; ``note``, ``command``, ``seeds``,
        ``records``, ``commits``; ``reach`` and ``turns``: whether other arithmetic could turn the verdict
        (`with_arithmetic`).
    """
    records, known, other = _records(records), _known(known), _instead(instead)
    cells, values = _by_cell(records), paper_values()
    values["experiment"] = values["experiment"].replace(other)
    missing = set(values.loc[values["available"] == "no", "experiment"]) - {""}
    printed_claims = pd.read_csv(data_path("paper", "claims.csv"), dtype=str, keep_default_na=False)
    rows = printed_claims.replace({"experiment": other, "against": other}).to_dict("records")
    table = pd.DataFrame([_claim_row(row, cells, missing, known) for row in rows])
    measured_against = {
        r.id: (r.against or r.experiment, r.worse)
        for r in table.itertuples()
        if r.metric == "accuracy" and r.verdict in SETTLED
    }
    of_baselines = {cell for cell in measured_against.values() if cell[0]}
    printed = [row for row in values.to_dict("records") if (row["experiment"], row["method"]) in of_baselines]
    off = _off(_number_row(row, cells, "accuracy", known) for row in printed)
    at = table.columns.get_loc("verdict") + 1
    table.insert(at, "verdict_holm", _after_holm(table))
    table.insert(at + 1, "part_of", _part_of(table))
    of_claims = [measured_against.get(name, ("", "")) for name in table["id"]]
    cells_printed = {(row["experiment"], row["method"]) for row in printed}
    table.insert(at + 3, "baseline", [off.get(cell, "") for cell in of_claims])
    table.insert(at + 4, "checkable", [cell in cells_printed for cell in of_claims])
    return with_arithmetic(table, records)


def _instead(value: Mapping[str, str] | None) -> dict[str, str]:
    """Experiments in the place of others, checked."""
    found = dict(checks.mapping("instead", {} if value is None else value))
    for name, other in found.items():
        checks.names(f"instead[{name!r}]", (name, other))
    return found


def _after_holm(table: pd.DataFrame) -> pd.Series:
    """The verdicts with Holm's correction over what each claim compares."""
    sure = corrected(table, within=FAMILY)["finding"]
    return table["verdict"].where(table["p"].isna() | sure, "open")


def _part_of(table: pd.DataFrame) -> list[str]:
    """Of each claim the one about a table that has it as one of its settings, where there are runs of all of these."""
    alike = ["paper", "kind", "better", "worse", "metric"]
    about_tables = table[table["experiment"].str.contains("; ") & table["difference"].notna()].to_dict("records")
    whole = {
        (*(row[k] for k in alike), name): row["id"] for row in about_tables for name in row["experiment"].split("; ")
    }
    return [whole.get((*(row[k] for k in alike), row["experiment"]), "") for row in table.to_dict("records")]


def _claim_row(row: Row, cells: Cells, missing: set[str], known: Known) -> dict[str, Any]:
    result, state, p, note, used = _judged(row, cells, missing, known)
    names = dict.fromkeys(e for _, e, _, _ in _terms(row))
    weighted = _judged({**row, "metric": WEIGHTED}, cells, missing, known)[1] if row["metric"] == "accuracy" else ""
    return {
        **row,
        "value": float(row["value"] or "nan"),
        "margin": float(row["margin"] or "nan"),
        "difference": result.mean if result else math.nan,
        "low": result.low if result else math.nan,
        "high": result.high if result else math.nan,
        "p": p,
        "verdict": state,
        "verdict_weighted": weighted,
        "note": note,
        "command": "; ".join(filter(None, (_missing(state, name, known) for name in names))),
        **_evidence(used),
    }


def _judged(
    row: Row, cells: Cells, missing: set[str], known: Known
) -> tuple[Paired | None, str, float, str, list[RunRecord]]:
    """Result (where there is one), verdict, p-value, note and runs of a claim, by its metric."""
    terms, metric = _terms(row), row["metric"]
    runs = [_comparable(r for r in cells.get((e, m), ()) if math.isfinite(measured(r, by))) for _, e, m, by in terms]
    common = set.intersection(*({r.seed for r in some} for some in runs))
    if row["kind"] == "times" and metric == "seconds":
        common -= _on_different_machines(*runs)
    used = [r for some in runs for r in some if r.seed in common]
    if any(_settings_differ(some) for some in runs) or protocols_differ(used):
        return None, "settings differ", math.nan, "", used
    if not common:
        return None, _without({(e, m): None for _, e, m, _ in terms}, missing, known), math.nan, "", used
    return *_settle(row, terms, used), used


def _terms(row: Row) -> list[tuple[float, str, str, str]]:
    """What is added up: weight, experiment, method, metric. A claim about a table is about the mean of its settings."""
    here, a, b = row["experiment"].split("; "), row["better"], row["worse"]
    there = row["against"].split("; ") if row["against"] else here
    by, _, than = row["metric"].partition("; ")
    if row["kind"] == "shrinks":
        return [(1.0, here[0], a, by), (-1.0, here[0], b, by), (-1.0, there[0], a, by), (1.0, there[0], b, by)]
    sides = [(1 / len(here), name, a, by) for name in here]
    return sides + [(-1 / len(there), name, b, than or by) for name in there]


def _settle(
    row: Row, terms: Sequence[tuple[float, str, str, str]], used: Sequence[RunRecord]
) -> tuple[Paired, str, float, str]:
    """Result, verdict, p-value and note of a claim whose runs are there and alike."""
    kind, metric = row["kind"], row["metric"]
    bounds: tuple[float, ...] = ()
    if kind in ("about", "times"):
        bounds = float(row["value"]) - float(row["margin"]), float(row["value"]) + float(row["margin"])
    if kind == "times":
        logs, bounds = contrast(used, terms, metric, transform=math.log), tuple(map(math.log, bounds))
        ratio = replace(logs, mean=math.exp(logs.mean), low=math.exp(logs.low), high=math.exp(logs.high))
        note = "seconds of runs that may have shared their machine" if metric == "seconds" else ""
        return ratio, claim_verdict(logs, *bounds), claim_p(logs, *bounds), note
    result = contrast(used, terms, metric, pooled=POOLED)
    note = "" if result.same_data else "the fingerprints of the data differ"
    if kind == "shrinks":
        lead = contrast(used, terms[:2], metric)
        told = f"{row['better']} less {row['worse']} in {row['experiment']}: {lead}"
        if claim_verdict(lead) != "holds":  # without a lead there is none to shrink: the change is not even tested
            return result, claim_verdict(lead), claim_p(lead), "; ".join(filter(None, (f"no sure lead: {told}", note)))
        return result, claim_verdict(result), max(claim_p(lead), claim_p(result)), "; ".join(filter(None, (told, note)))
    return result, claim_verdict(result, *bounds), claim_p(result, *bounds), note


def _on_different_machines(a: Iterable[RunRecord], b: Iterable[RunRecord]) -> set[int]:
    """Seeds whose two runs cannot be compared in seconds: of other machines, or that shared one with other runs.

    Those of a busy machine have no seconds to compare (`hetfl_core.records.value`).
    """

    def machine(r: RunRecord) -> list[Any]:
        shared = len(r.settings.get("together") or [r.seed]), r.hardware.get("jobs", 1)
        return [*(r.hardware.get(k) for k in ("cpu", "gpu", "threads")), *shared]

    machines = [{r.seed: machine(r) for r in side} for side in (a, b)]
    return {seed for seed in machines[0].keys() & machines[1].keys() if machines[0][seed] != machines[1][seed]}


def _without(places: Iterable[tuple[str, str]], missing: set[str], known: Known) -> str:
    """Why a claim has no result: the most final reason of the runs that it needs."""
    reasons = [_without_runs(e, m, e in missing, known) for e, m in places]
    return next((reason for reason in (UNAVAILABLE, UNBUILT) if reason in reasons), PENDING)


def _without_runs(experiment: str, method: str, unavailable: bool, known: Known) -> str:
    """Why there is no number of ours: no data, no such experiment or method here yet, or just not run."""
    if unavailable:
        return UNAVAILABLE
    return PENDING if method in known.get(experiment, ()) else UNBUILT


# --- counts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """What the ledger amounts to, in numbers of lines.

    Attributes
    ----------
    numbers : int
        Printed numbers, each once.
    runnable : int
        Those for which there is an experiment here and the data can be had, run or not.
    judged : dict of str to int
        Verdicts (agrees, higher, lower) of those with three seeds or more.
    claims : int
        Statements of the papers; one about a table all of which has runs counts once, and its settings not again.
    by_rule : dict of str to int
        Verdicts (holds, open, reverses, fails) of the claims with three seeds or more, each by its own interval.
    corrected : dict of str to int
        The same claims after Holm's correction.
    too_few : int
        Claims with runs of fewer than three common seeds, of which nothing is said.
    checkable : int
        Claims that are not open by the rule, of which the paper prints B's own number.
    baseline_off : int
        Those of them whose B does not agree with that number.
    """

    numbers: int
    runnable: int
    judged: dict[str, int]
    claims: int
    by_rule: dict[str, int]
    corrected: dict[str, int]
    too_few: int
    checkable: int
    baseline_off: int


def tally(numbers: pd.DataFrame, claims: pd.DataFrame) -> Tally:
    """Count the lines of `numbers` and of `claims`, or of a part of them.

    Parameters
    ----------
    numbers, claims : DataFrame
        As the two functions of these names give them.
    """
    checks.frame("numbers", numbers, "verdict")
    checks.frame("claims", claims, "p", "verdict", "verdict_holm", "part_of", "baseline", "checkable")
    claims = claims[claims["part_of"] == ""]
    told = claims[claims["p"].notna()]
    sure = told["verdict"] != "open"
    return Tally(
        numbers=len(numbers),
        runnable=int((~numbers["verdict"].isin([UNAVAILABLE, UNBUILT])).sum()),
        judged=_count(numbers["verdict"], NUMBER_VERDICTS),
        claims=len(claims),
        by_rule=_count(told["verdict"], SETTLED),
        corrected=_count(told["verdict_holm"], SETTLED),
        too_few=int((claims["verdict"].isin(SETTLED) & claims["p"].isna()).sum()),
        checkable=int((sure & told["checkable"]).sum()),
        baseline_off=int((sure & (told["baseline"] != "")).sum()),
    )


def _count(verdicts: pd.Series, wanted: Iterable[str]) -> dict[str, int]:
    return {verdict: int((verdicts == verdict).sum()) for verdict in wanted}
