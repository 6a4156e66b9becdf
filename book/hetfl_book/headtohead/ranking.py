"""Tables from the records: what each method gains on each federation, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetfl_book.headtohead.across import critical_difference, friedman, scores
from hetfl_book.headtohead.entries import ALONE, entries
from hetfl_book.headtohead.federations import FEDERATIONS, SIZES
from hetfl_book.headtohead.running import APART, OWN_STEP, TUNING
from hetfl_core import records
from hetfl_core.records import RunRecord
from hetfl_core.reporting.judging import FEW, Gain, resampled

MEASURE = "balanced_accuracy"
LOGISTIC = "logistic regression alone"
LOWER = ("log_loss", "calibration_error", "brier")
"""Measures of which less is better, in their own unit; the others are given in per cent."""


def finals(folders: Iterable[Path | None] = (None,)) -> list[RunRecord]:
    """All records of finals and of the control, of folders or of ``data/results``; the first of each run.

    Parameters
    ----------
    folders : iterable of Path or None
    """
    return _stored(folders, "", APART)


def choices(folders: Iterable[Path | None] = (None,)) -> pd.DataFrame:
    """What was chosen: a row for each federation, size and method.

    Parameters
    ----------
    folders : iterable of Path or None

    Returns
    -------
    DataFrame
        Columns ``federation``, ``size``, ``method``; ``chosen``, the setting; ``edges``, its numbers that lie at an
        edge of the grid; ``reason``, why there is none; ``settings``, how many were tried, and ``seconds``.
    """
    rows = []
    for record in _stored(folders, TUNING):
        name, _, size = record.experiment.removeprefix("headtohead/").removesuffix(TUNING).rpartition("-")
        told = {key: record.settings[key] for key in ("chosen", "edges", "reason")}
        tried = len(record.settings["table"].get("log_loss", []))
        rows.append({"federation": name, "size": size, "method": record.method, **told, "settings": tried})
        rows[-1]["seconds"] = record.timing
    return pd.DataFrame(rows)


def best_alone(folders: Iterable[Path | None] = (None,)) -> dict[tuple[str, str], str]:
    """The best way to stay alone on each federation at each size, by rows that are cut from the training rows.

    It is the one that has the least log loss there with its best setting, as its tuning found it; no test row takes
    part in the choice. A federation that is not in it has no such records, and logistic regression takes the place.

    Parameters
    ----------
    folders : iterable of Path or None
        As for `choices`.

    Returns
    -------
    dict of (str, str) to str
        The method by federation and size.
    """
    least: dict[tuple[str, str], dict[str, float]] = {}
    for record in _stored(folders, TUNING):
        line, tried = entries().get(record.method), record.settings["table"].get("log_loss", [])
        losses = [loss for loss in tried if loss is not None]  # None where a setting diverged
        if line and line.way == "alone" and losses:
            name, _, size = record.experiment.removeprefix("headtohead/").removesuffix(TUNING).rpartition("-")
            least.setdefault((name, size), {})[record.method] = min(losses)
    return {case: min(losses, key=losses.__getitem__) for case, losses in least.items()}


def _stored(folders: Iterable[Path | None], *ends: str) -> list[RunRecord]:
    names = [f"headtohead/{name}-{size}{end}" for name in FEDERATIONS for size in SIZES for end in ends]
    found: dict[str, RunRecord] = {}
    for folder in folders:
        if folder is None or folder.is_dir():
            for record in (one for name in names for one in records.load(folder, experiment=name)):
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
    parts: dict[str, list[Any]] = {name: [] for name in ("client", "n_train", "n_test", "rarest", "value")}
    about: dict[str, list[Any]] = {name: [] for name in ("federation", "size", "method", "control", "seed")}
    for record in found:
        name, _, size = record.experiment.removeprefix("headtohead/").removesuffix(APART).rpartition("-")
        each = record.per_client
        n = len(each["client"])
        for column, values in zip(parts, (*(each[c] for c in list(parts)[:4]), each[measure]), strict=True):
            parts[column] += list(values)
        told = (name, size, record.method, record.experiment.endswith(APART), record.seed)
        for column, value in zip(about, told, strict=True):
            about[column] += [value] * n
    table = pd.DataFrame({**about, **parts}).astype({"value": float})
    most = table.groupby(list(about))["rarest"].transform("max")
    return table.assign(
        value=table["value"] * (1 if measure in LOWER else 100), counts=(table["rarest"] >= FEW) | (most < FEW)
    )


def client_gains(
    found: Iterable[RunRecord], measure: str = MEASURE, base: str | Mapping[tuple[str, str], str] = ALONE
) -> pd.DataFrame:
    """What each client gains over a way to stay alone, with its number of training rows.

    Parameters
    ----------
    found : iterable of RunRecord
    measure : str
    base : str or dict of (str, str) to str
        A method of all federations, or one for each federation and size, as `best_alone` gives them; logistic
        regression alone where that has none.

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
    bases = [base if isinstance(base, str) else base.get((name, size), LOGISTIC) for name, size, *_ in wide.index]
    own = np.array(bases)[:, None] == wide.columns.to_numpy()
    gaps = wide.sub(wide.where(own).max(axis=1), axis=0).mask(own).mul(sign).stack(future_stack=True).dropna(how="all")
    rows = {}
    about = each[["n_train", "rarest", "counts"]].groupby(level=["federation", "size", "client"]).first()
    for key, some in gaps.groupby(level=["federation", "size", "method", "client"], sort=False):
        name, size, _, client = key
        known = about.loc[name, size, client]
        rows[key] = [*resampled(some.tolist(), FEDERATIONS[name].ratio), *known]
    names = ["gain", "low", "high", "p", "n_train", "rarest", "counts"]
    index = pd.MultiIndex.from_tuples(rows, names=["federation", "size", "method", "client"]) if rows else None
    return pd.DataFrame([*rows.values()], index=index, columns=names)


def cells(
    found: Sequence[RunRecord], measure: str = MEASURE, staying: Mapping[tuple[str, str], str] | None = None
) -> pd.DataFrame:
    """The comparison as a table: a row for each method on each federation at each size.

    Parameters
    ----------
    found : sequence of RunRecord
    measure : str
    staying : dict of (str, str) to str, optional
        The way to stay alone over which ``gain_alone`` is, by federation and size; by default that of `best_alone`,
        and logistic regression alone where there is none.

    Returns
    -------
    DataFrame
        Columns ``federation``, ``size``, ``kind``, ``real``, ``method``, ``way``; ``score``, the mean over clients that
        count and seeds; ``gain``, ``low``, ``high`` and ``p`` over training alone, ``gain_logistic`` … over logistic
        regression alone, ``gain_alone`` … over the best way to stay alone and ``gain_sharing`` … over the control with
        nothing exchanged; ``worst``, the smallest mean gain of a client that counts, and ``worst_client``;
        ``bytes_up``, ``bytes_down``, ``sent`` (both) and ``seconds``, means over seeds, where runs on a busy machine
        have none; ``seeds`` and ``diverged``, numbers of runs. Where a run has no figure, there is no mean.
    """
    if not found:
        return pd.DataFrame(columns=["federation", "size", "method"])
    staying = best_alone() if staying is None else staying
    each = clients(found, measure)
    counted = each[each["counts"]]
    keys = ["federation", "size", "control", "method", "seed"]
    scores = counted.groupby(keys)["value"].agg(lambda values: values.mean(skipna=False))
    sign = -1.0 if measure in LOWER else 1.0
    costs = pd.DataFrame.from_records(map(_cost, found)).groupby(["experiment", "method"])
    costs = costs.agg({name: "mean" for name in COSTS} | {"diverged": "sum", "seeds": "size"}).to_dict("index")
    least = _least(counted[~counted["control"]], sign)
    rows = []
    by_seed: dict[tuple[Any, ...], dict[int, float]] = {}
    for (*key, seed), value in scores.items():
        by_seed.setdefault(tuple(key), {})[seed] = float(value)
    for (name, size, control, method), mine in by_seed.items():
        if control:
            continue
        setting = FEDERATIONS[name]
        against = {
            "gain": (False, ALONE),
            "gain_logistic": (False, LOGISTIC),
            "gain_alone": (False, staying.get((name, size), LOGISTIC)),
            "gain_sharing": (True, method),
        }
        gains: dict[str, float] = {}
        for what, other in against.items():
            gap = _gap(mine, by_seed.get((name, size, *other), {}), sign, setting.ratio)
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
                "score": float(np.mean(list(mine.values()))),
                **gains,
                **least.get((name, size, method), {"worst": math.nan, "worst_client": ""}),
                **costs[f"headtohead/{name}-{size}", method],
            }
        )
    return pd.DataFrame(rows)


COSTS = ("bytes_up", "bytes_down", "sent", "seconds")


def _cost(record: RunRecord) -> dict[str, Any]:
    up, down = (record.metrics.get(name, 0) for name in COSTS[:2])
    lost = bool(record.metrics.get("diverged"))
    same = {"experiment": record.experiment, "method": record.method, "seeds": 1}
    return {**same, "bytes_up": up, "bytes_down": down, "sent": up + down, "seconds": record.timing, "diverged": lost}


def _gap(mine: Mapping[int, float], theirs: Mapping[int, float], sign: float, ratio: float) -> Gain:
    """The paired difference by seed; NaN where there is nothing to compare with."""
    return resampled([sign * (mine[seed] - theirs[seed]) for seed in mine if seed in theirs], ratio)


def _least(counted: pd.DataFrame, sign: float) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The client that gains least over training alone, and how much, for each method on each federation."""
    means = counted.groupby(["federation", "size", "client", "method"])["value"].mean().unstack("method")
    if ALONE not in means:
        return {}
    gains = means.sub(means[ALONE], axis=0).mul(sign).stack(future_stack=True).dropna()
    found = gains.groupby(level=["federation", "size", "method"])
    return {key: {"worst": float(gains[at]), "worst_client": str(at[2])} for key, at in found.idxmin().items()}


EVERY = "every kind"
BOARD = ["rank", "gain", "gain_logistic", "gain_alone", "gain_sharing", "sent", "seconds"]
"""Of a leaderboard: what is averaged over federations."""


def board(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """What a leaderboard shows: each method's mean rank and gain, for each measure, size and kind of federation.

    Parameters
    ----------
    tables : dict of str to DataFrame
        As `cells` gives them, by the name of their measure.

    Returns
    -------
    DataFrame
        Columns ``measure``, ``size``, ``kind``, ``method``; ``rank``, the mean over federations where the method ran,
        as a share of the methods there, from 0 for the first to 1 for the last; means of ``gain``,
        ``gain_logistic``, ``gain_alone``, ``gain_sharing``, ``sent`` (bytes up and down) and ``seconds``;
        ``federations``, their number. The best rank comes first.
    """
    parts = []
    for measure, table in tables.items():
        for size in dict.fromkeys(table["size"]):
            for kind in (EVERY, "real", *dict.fromkeys(table["kind"])):
                of_kind = table["real"] if kind == "real" else (table["kind"] == kind) | (kind == EVERY)
                some = table[(table["size"] == size) & of_kind]
                ranked = some.assign(rank=_shares(some)).groupby("method")
                shown = ranked[BOARD].mean().assign(federations=ranked["federation"].nunique()).reset_index()
                shown = shown.sort_values(["rank", "gain"], ascending=[True, False])
                parts.append(shown.assign(measure=measure, size=size, kind=kind))
    return pd.concat(parts, ignore_index=True)


def lines(table: pd.DataFrame, chosen: pd.DataFrame, name: str) -> pd.DataFrame:
    """Everything about one federation, as a page lists it: a row for each size and method, most gain first.

    Parameters
    ----------
    table : DataFrame
        As `cells` gives it.
    chosen : DataFrame
        As `choices` gives it.
    name : str
        Of a federation.

    Returns
    -------
    DataFrame
        Columns ``size``, ``method``, ``score``, ``gain`` with ``half`` its interval, ``sharing`` with ``half_sharing``,
        ``worst``, ``kB`` of all clients up and down, ``seconds``, ``seeds``; ``setting``, what was chosen, with a star
        behind a number at an edge of the grid.
    """
    some = table[table["federation"] == name]
    here = chosen[chosen["federation"] == name]
    told = {(r["size"], r["method"]): _setting(r["chosen"], r["edges"]) for _, r in here.iterrows()}
    keys = zip(some["size"], some["method"].str.removesuffix(OWN_STEP), strict=True)
    return some.assign(
        half=(some["high"] - some["low"]) / 2,
        sharing=some["gain_sharing"],
        half_sharing=(some["high_sharing"] - some["low_sharing"]) / 2,
        kB=some["sent"] / 1000,
        setting=[told.get(key, "") for key in keys],
    ).sort_values(["size", "gain"], ascending=[True, False])


def _setting(chosen: Mapping[str, Any] | None, edges: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}{'*' * (name in edges)}" for name, value in written(chosen or {}).items())


def written(chosen: Mapping[str, Any]) -> dict[str, str]:
    """Settings as pages write them.

    Parameters
    ----------
    chosen : dict of str to object
        Numbers and words by field.
    """
    return {name: value if isinstance(value, str) else f"{value:g}" for name, value in chosen.items()}


def _shares(table: pd.DataFrame) -> pd.Series:
    """Ranks on each federation as shares; who has no figure is last."""
    filled = table["gain"].fillna(-math.inf).groupby(table["federation"])
    return (filled.rank(ascending=False) - 1) / (filled.transform("size") - 1).clip(lower=1)


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
        values = some.fillna({"score": -math.inf}).pivot(index="federation", columns="method", values="score")
        shown = some.groupby("method").agg(
            federations=("federation", "nunique"),
            score=("score", "mean"),
            gain=("gain", "mean"),
            logistic=("gain_logistic", "mean"),
            sharing=("gain_sharing", "mean"),
            worst=("worst", "min"),
            kB=("sent", lambda b: b.mean() / 1000),
            seconds=("seconds", "mean"),
            diverged=("diverged", "sum"),
        )
        shown.insert(0, "rank", values.rank(axis=1, ascending=False).mean())  # of those that have a line there
        shown = shown.sort_values(["rank", "gain"], ascending=[True, False])
        parts += [f"size {size}: mean rank, balanced accuracy, and gains in points", shown.round(1).to_string(), ""]
        full = scores(some, str(size))
        if full.shape[0] > 1 and full.shape[1] > 2:
            apart = critical_difference(full.shape[1], full.shape[0])
            parts.append(
                f"{full.shape[1]} methods on {full.shape[0]} federations: Friedman p = {friedman(full):.2g}; mean "
                f"ranks that differ by less than {apart:.1f} cannot be told apart"
            )
    return "\n".join(parts) if parts else "no finals yet"
