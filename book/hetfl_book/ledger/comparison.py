"""Who wins, client by client: methods compared on the clients of a federation, group by group.

Two kinds of chance stand behind a difference between two methods. *Seeds*: the same clients, other initial weights,
participants and draws of trials; an interval over seeds says whether the difference would be seen again **on these
clients**. *Clients*: other subjects of the same kind; an interval over clients says whether it would be seen on
**other people**, which is what "method A wins on this data set" claims. Both are intervals of Student's t, paired: over
seeds of the mean over clients, over clients of the mean over seeds.

Two reservations. *Many verdicts*: each interval misses in 5 % of cases. Five methods in six groups at six numbers of
trials are 180 verdicts, of which about nine would be wrong by chance where there is no difference at all:
`with_verdicts` keeps those that survive Holm's correction over a whole table. *Clients are not quite independent*:
those that share a model, or parts of one, err together, and intervals over clients are then a little too narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hetfl_core import checks, records, statistics
from hetfl_core.errors import UnknownName, WrongValue
from hetfl_core.records import RunRecord, records_of, to_percent
from hetfl_core.statistics import Paired, interval

ALL = "all"
"""Name of the group of all clients."""


def table(
    found: Iterable[RunRecord] | Mapping[Any, Iterable[RunRecord]], metric: str = "accuracy", key: str = "n"
) -> pd.DataFrame:
    """The clients' own results out of records, one row per client, method and seed.

    Parameters
    ----------
    found : records, or dict of value to records
        A dict gives each value to a column `key`: the points of a learning curve, say.
    metric : str
        Column of `Run.per_client`; accuracies are given in per cent.
    key : str

    Returns
    -------
    DataFrame
        Columns `key` (where there is one), ``method``, ``seed``, ``data_set``, ``client``, ``n_train`` and the metric.
        A client's data set is what ``info["subjects"]`` of its federation says, else its name up to the last hyphen.
        Of two records of the same run the newer counts; records without results of clients are left out.
    """
    checks.nonempty_strs(metric=metric, key=key)
    parts = found if isinstance(found, Mapping) else {None: found}
    frames = [
        _one(record, metric).assign(**({} if value is None else {key: value}))
        for value, some in parts.items()
        for record in _newest(records_of(some, "found"))
        if record.per_client
    ]
    if not frames:
        return pd.DataFrame(columns=[key, "method", "seed", "data_set", "client", "n_train", metric])
    rows = pd.concat(frames, ignore_index=True)
    lead = [c for c in (key, "method", "seed", "data_set", "client", "n_train", metric) if c in rows]
    return rows[lead]


def _newest(some: Iterable[RunRecord]) -> list[RunRecord]:
    kept = {(r.experiment, r.scale, r.method, r.seed): r for r in sorted(some, key=lambda r: r.created)}
    return list(kept.values())


def _one(record: RunRecord, metric: str) -> pd.DataFrame:
    frame = pd.DataFrame(record.per_client)
    if metric not in frame:
        raise UnknownName(f"{record.relative_path} has no metric {metric!r} of its clients; it has {list(frame)}")
    subjects = (record.federation.get("info") or {}).get("subjects") or {}
    sets = [subjects.get(name, {}).get("data_set") or name.rpartition("-")[0] or name for name in frame["client"]]
    values = to_percent(frame[metric].astype(float), metric)
    return frame.assign(method=record.method, seed=record.seed, data_set=sets, **{metric: values})


def curve(experiments: Mapping[Any, str], folder: str | Path | None = None) -> pd.DataFrame:
    """`table` of the stored records of several experiments, e.g. ``curve(papers.eeg.curve("common40"))``."""
    checks.names("experiments", checks.mapping("experiments", experiments).values())
    stored = {n: records.load(folder, experiment=name, scale="paper") for n, name in experiments.items()}
    return table(stored)


def means(rows: pd.DataFrame, by: Sequence[str] = ("data_set",), metric: str = "accuracy") -> pd.DataFrame:
    """Mean over clients of the mean over seeds, with its 95 % interval over clients.

    Parameters
    ----------
    rows : DataFrame
        As from `table`.
    by : sequence of str
        What makes a group besides the method: ``["data_set", "n"]`` for a learning curve of each data set; ``[]`` for
        all clients together.

    Returns
    -------
    DataFrame
        Columns `by`, ``method``, ``mean``, ``low``, ``high``, ``n_clients``, ``n_seeds``, and ``n_train``, the mean
        number of training trials of a client.
    """
    by = _grouping(rows, by, metric)
    groups = rows.groupby([*by, "method"], sort=False)
    found = [[*key, *_mean(group, metric)] for key, group in groups]
    return pd.DataFrame(found, columns=[*by, "method", "mean", "low", "high", "n_clients", "n_seeds", "n_train"])


def _grouping(rows: pd.DataFrame, by: Any, metric: str) -> list[Any]:
    """The columns that make a group, where the table has them and the others that a comparison needs."""
    checks.nonempty_str("metric", metric)
    by = checks.sequence("by", by)
    checks.frame("rows", rows, "method", "seed", "client", "n_train")
    for name, column in [("metric", metric), *(("by", column) for column in by)]:
        if not isinstance(column, Hashable) or column not in rows.columns:
            raise UnknownName(f"{name}: the table has no column {column!r}; it has {list(rows)}")
    return by


def _mean(group: pd.DataFrame, metric: str) -> tuple[float, float, float, int, int, float]:
    of_clients = group.groupby("client")[metric].mean().dropna().to_numpy()
    return *interval(of_clients), len(of_clients), group["seed"].nunique(), float(group["n_train"].mean())


DIFFERENCE = ["a", "b", "mean", "low", "high", "p", "verdict", "seeds_low", "seeds_high", "n_clients", "n_seeds"]
"""Columns of `paired_differences`, besides those that make a group."""


def paired_differences(
    rows: pd.DataFrame, a: str, b: str, by: Sequence[str] = ("data_set",), metric: str = "accuracy"
) -> pd.DataFrame:
    """Method a less method b, paired by client and seed, with 95 % intervals over clients and over seeds.

    Parameters
    ----------
    rows, by, metric
        As for `means`.
    a, b : str
        Names of the methods.

    Returns
    -------
    DataFrame
        Columns `by`, ``a``, ``b``, ``mean``; ``low``, ``high`` and ``p``: over **clients**, by which ``verdict`` says
        who wins: the name of a method, or ``"open"``; ``seeds_low`` and ``seeds_high``: over **seeds**; ``n_clients``
        and ``n_seeds``. Groups in which the two methods have no pair are left out. With fewer than three clients, or
        seeds, the interval over them is infinite. Each verdict is on its own; see `with_verdicts`.
    """
    by = _grouping(rows, by, metric)
    checks.nonempty_strs(a=a, b=b)
    pairs = _pairs(rows, a, b, by, metric)
    groups = pairs.groupby(list(by), sort=False) if by else [((), pairs)]
    found = [[*key, a, b, *_difference(group, a, b)] for key, group in groups if len(group)]
    return pd.DataFrame(found, columns=[*by, *DIFFERENCE])


def _pairs(rows: pd.DataFrame, a: str, b: str, by: Sequence[str], metric: str) -> pd.DataFrame:
    key = [*dict.fromkeys([*by, "seed", "client"])]
    left, right = (rows[rows["method"] == name].set_index(key)[metric] for name in (a, b))
    for name, side in ((a, left), (b, right)):
        if side.index.has_duplicates:
            raise WrongValue(f"{name!r} has {side.index[side.index.duplicated()][0]} twice: add what differs to `by`")
    pairs = left.to_frame("a").join(right.rename("b"), how="inner")  # subtracting would sort keys like 10 and "all"
    return (pairs["a"] - pairs["b"]).dropna().rename("difference").reset_index()


def _difference(pairs: pd.DataFrame, a: str, b: str) -> tuple[Any, ...]:
    means = {unit: pairs.groupby(unit)["difference"].mean().to_numpy() for unit in ("client", "seed")}
    clients, seeds = (Paired.of(dict(enumerate(x))) for x in means.values())
    low, high = clients.low, clients.high
    return clients.mean, low, high, clients.p, _winner(low, high, a, b), seeds.low, seeds.high, clients.n, seeds.n


def _winner(low: float, high: float, a: str, b: str) -> str:
    return a if low > 0 else b if high < 0 else "open"


def with_verdicts(found: pd.DataFrame) -> pd.DataFrame:
    """A table of `paired_differences` with the verdicts that Holm's correction over all of its rows leaves.

    Parameters
    ----------
    found : DataFrame
        As from `paired_differences` or `against`; all of its rows are one family.

    Returns
    -------
    DataFrame
        `found` with a column ``verdict_holm``: the name of a method, or ``"open"``. The chance that any of the names is
        wrong is at most 5 % (`hetfl_core.statistics.corrected`).
    """
    checks.frame("found", found, "p", "verdict")
    sure = statistics.corrected(found)["finding"]
    return found.assign(verdict_holm=found["verdict"].where(sure, "open"))


def best(rows: pd.DataFrame, among: Iterable[str], metric: str = "accuracy") -> pd.DataFrame:
    """The method of the highest mean.

    It is picked by its **test** accuracy, which flatters it: a federated method that beats it has beaten an opponent
    that was chosen with hindsight, while one that does not may still beat what could have been chosen beforehand
    (`hetfl_core.baselines.Chosen`).

    Returns
    -------
    DataFrame
        Columns as `means`, one row, or none.
    """
    checks.frame("rows", rows, "method")
    found = means(rows[rows["method"].isin(checks.names("among", among))], (), metric)
    return found.sort_values("mean", ascending=False, kind="stable", ignore_index=True).head(1)


def against(
    rows: pd.DataFrame, methods: Sequence[str], opponents: Sequence[str], by: Sequence[str] = ("data_set",)
) -> pd.DataFrame:
    """Each method against the best of its opponents, group by group, and over all clients.

    Parameters
    ----------
    methods, opponents : sequence of str
        E.g. the federated methods, and the four classifiers that a subject can train alone. One opponent is a plain
        comparison (``["Local"]``). Of several the `best` of each group is taken, with hindsight.
    by : sequence of str
        A column ``data_set`` among them has the further group `ALL` of all data sets.

    Returns
    -------
    DataFrame
        As from `paired_differences`, one row a group and method.
    """
    by = _grouping(rows, by, "accuracy")
    methods, opponents = checks.names("methods", methods), checks.names("opponents", opponents)
    if "data_set" in by:
        rows = pd.concat([rows, rows.assign(data_set=ALL)], ignore_index=True)
    found = []
    for group in [g for _, g in rows.groupby(list(by), sort=False)] if by else [rows]:
        top = best(group, opponents)
        for method in methods if len(top) else ():
            found.append(paired_differences(group, method, top["method"][0], by))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=[*by, *DIFFERENCE])
