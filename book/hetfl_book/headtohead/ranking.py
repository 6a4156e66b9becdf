"""Tables from the records: what each method gains on each federation, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
        rows[-1]["seconds"] = record.seconds
    return pd.DataFrame(rows)


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
    parts = []
    for record in found:
        name, _, size = record.experiment.removeprefix("headtohead/").removesuffix(APART).rpartition("-")
        each = pd.DataFrame(record.per_client)
        value = pd.to_numeric(each[measure]) * (1 if measure in LOWER else 100)
        parts.append(
            each[["client", "n_train", "n_test", "rarest"]].assign(
                value=value,
                counts=(each["rarest"] >= FEW) | (each["rarest"].max() < FEW),
                federation=name,
                size=size,
                method=record.method,
                control=record.experiment.endswith(APART),
                seed=record.seed,
            )
        )
    columns = ["federation", "size", "method", "control", "seed", "client", "n_train", "n_test", "rarest", "value"]
    return pd.concat(parts, ignore_index=True)[[*columns, "counts"]] if parts else pd.DataFrame(columns=columns)


def client_gains(found: Iterable[RunRecord], measure: str = MEASURE, base: str = ALONE) -> pd.DataFrame:
    """What each client gains over a way to stay alone, with its number of training rows.

    Parameters
    ----------
    found : iterable of RunRecord
    measure : str
    base : str
        A method of all federations.

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
    gaps = wide.drop(columns=base).sub(wide[base], axis=0).mul(sign).stack(future_stack=True).dropna(how="all")
    rows = {}
    about = each[["n_train", "rarest", "counts"]].groupby(level=["federation", "size", "client"]).first()
    for key, some in gaps.groupby(level=["federation", "size", "method", "client"], sort=False):
        name, size, _, client = key
        known = about.loc[name, size, client]
        rows[key] = [*resampled(some.tolist(), FEDERATIONS[name].ratio), *known]
    names = ["gain", "low", "high", "p", "n_train", "rarest", "counts"]
    index = pd.MultiIndex.from_tuples(rows, names=["federation", "size", "method", "client"]) if rows else None
    return pd.DataFrame([*rows.values()], index=index, columns=names)


def cells(found: Sequence[RunRecord], measure: str = MEASURE) -> pd.DataFrame:
    """The comparison as a table: a row for each method on each federation at each size.

    Parameters
    ----------
    found : sequence of RunRecord
    measure : str

    Returns
    -------
    DataFrame
        Columns ``federation``, ``size``, ``kind``, ``real``, ``method``, ``way``; ``score``, the mean over clients that
        count and seeds; ``gain``, ``low``, ``high`` and ``p`` over training alone, ``gain_logistic`` … over logistic
        regression alone and ``gain_sharing`` … over the control with nothing exchanged; ``worst``, the smallest mean
        gain of a client that counts, and ``worst_client``; ``bytes_up``, ``bytes_down`` and ``seconds``, means over
        seeds; ``seeds`` and ``diverged``, numbers of runs. Where a run has no figure, there is no mean.
    """
    if not found:
        return pd.DataFrame(columns=["federation", "size", "method"])
    each = clients(found, measure)
    counted = each[each["counts"]]
    keys = ["federation", "size", "control", "method", "seed"]
    scores = counted.groupby(keys)["value"].agg(lambda values: values.mean(skipna=False))
    sign = -1.0 if measure in LOWER else 1.0
    costs = {(r.experiment, r.method): _cost([o for o in found if _same(o, r)]) for r in found}
    rows = []
    for (name, size, method), own in scores.xs(False, level="control").groupby(level=["federation", "size", "method"]):
        setting = FEDERATIONS[name]
        mine = own.droplevel(["federation", "size", "method"])
        against = {
            "gain": (False, ALONE),
            "gain_logistic": (False, "logistic regression alone"),
            "gain_sharing": (True, method),
        }
        gains: dict[str, float] = {}
        for what, (control, other) in against.items():
            gap = _gap(scores, mine, (name, size, control, other), sign, setting.ratio)
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
                "score": mine.mean(skipna=False),
                **gains,
                **_worst(counted, (name, size, method), sign),
                **costs[f"headtohead/{name}-{size}", method],
            }
        )
    return pd.DataFrame(rows)


def _same(a: RunRecord, b: RunRecord) -> bool:
    return (a.experiment, a.method) == (b.experiment, b.method)


def _cost(same: Sequence[RunRecord]) -> dict[str, float]:
    means = {name: float(np.mean([r.metrics.get(name, 0) for r in same])) for name in ("bytes_up", "bytes_down")}
    seconds = float(np.mean([r.seconds for r in same]))
    lost = sum(bool(r.metrics.get("diverged")) for r in same)
    return {**means, "seconds": seconds, "seeds": len(same), "diverged": lost}


def _gap(scores: pd.Series, mine: pd.Series, other: tuple[Any, ...], sign: float, ratio: float) -> Gain:
    """The paired difference by seed; NaN where there is nothing to compare with, or with itself."""
    name, size, control, method = other
    try:
        theirs = scores.loc[name, size, control, method]
    except KeyError:
        return Gain(math.nan, math.nan, math.nan, math.nan)
    both = mine.index.intersection(theirs.index)
    return resampled((sign * (mine[both] - theirs[both])).tolist(), ratio)


def _worst(counted: pd.DataFrame, key: tuple[str, str, str], sign: float) -> dict[str, Any]:
    name, size, method = key
    here = counted[(counted["federation"] == name) & (counted["size"] == size) & ~counted["control"]]
    means = here.pivot_table(index="client", columns="method", values="value", aggfunc="mean")
    if ALONE not in means or means.empty or method not in means:
        return {"worst": math.nan, "worst_client": ""}
    gains = sign * (means[method] - means[ALONE])
    return {"worst": float(gains.min()), "worst_client": str(gains.idxmin())}


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
            kB=("bytes_up", lambda b: b.mean() / 1000),
            seconds=("seconds", "mean"),
            diverged=("diverged", "sum"),
        )
        shown.insert(0, "rank", values.rank(axis=1, ascending=False).mean())  # of those that have a line there
        shown = shown.sort_values(["rank", "gain"], ascending=[True, False])
        parts += [f"size {size}: mean rank, balanced accuracy, and gains in points", shown.round(1).to_string(), ""]
        full = scores(some, str(size))
        if full.shape[0] > 1 and full.shape[1] > 2:
            test = friedman(full)
            apart = critical_difference(full.shape[1], full.shape[0])
            parts.append(
                f"{full.shape[1]} methods on {full.shape[0]} federations: Friedman p = {test.p:.2g}; mean ranks that "
                f"differ by less than {apart:.1f} cannot be told apart"
            )
    return "\n".join(parts) if parts else "no finals yet"
