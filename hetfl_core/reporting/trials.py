"""The runs behind a report: each way to learn, on each split of the same tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from warnings import catch_warnings, warn_explicit

import numpy as np
import pandas as pd

from hetfl_core import checks
from hetfl_core.clients import FederationWarning
from hetfl_core.comparing import Study, held_out, runs_of
from hetfl_core.engine.apart import simulate_apart
from hetfl_core.engine.measures import named
from hetfl_core.engine.options import RunOptions
from hetfl_core.engine.run import Run
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.learners import as_learner
from hetfl_core.methods.base import pick
from hetfl_core.reporting.ways import ALONE, Way, ways_of
from hetfl_core.statistics import MIN_SEEDS

MEASURES = {"auc": "AUC", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy", "f1": "F1"}
MEASURES |= {"log_loss": "log loss", "brier": "Brier score"}
"""By which ways can be compared."""

USUAL = ("auc", "balanced_accuracy", "accuracy")
"""What is measured in any case."""


@dataclass(frozen=True)
class Tables:
    """Tables of several sites, and what is to be predicted.

    Parameters
    ----------
    files : tuple of str
        One file, or one per site.
    options : dict
        As for `Federation.from_csv`.
    """

    files: tuple[str, ...]
    options: Mapping[str, Any]

    def federation(self, seed: int, test_size: float, least: int = 2) -> Federation:
        """The sites, so many at least, with the rows split by this seed."""
        of_a_column = self.options.get("client") is not None
        files = self.files[0] if len(self.files) == 1 and of_a_column else [*self.files]
        found = Federation.from_csv(files, seed=seed, test_size=test_size, name="tables", **self.options)
        if len(found) < least:
            how = "" if of_a_column else ": --client COLUMN names the column that says whose a row is"
            raise WrongValue(f"there must be two sites at least, got only {found[0].name!r}{how}")
        return found


class Piece(NamedTuple):
    """What one run leaves: measures by site, bytes that left each site (None where only the total is known)."""

    figures: pd.DataFrame
    sent: dict[str, int] | None
    total: int


@dataclass
class Trials:
    """All runs on some tables.

    Parameters
    ----------
    first : Federation
        The tables as they are split by the first seed.
    ways : list of Way
        The base first.
    left_out : dict of str to str
        Ways that cannot work on these tables, and why.
    figures : DataFrame
        One row per ``way``, ``seed`` and ``client``; columns ``n_train``, ``n_test`` and the measures.
    inner : DataFrame
        The same of runs on rows that are cut from the training rows of each split: ways are chosen by them. It has no
        rows of ways that have no other to be chosen from.
    sent : dict of str to (dict of str to int or None, int)
        By way: bytes that left each site in a run, where that is known, and all bytes that left sites.
    rarest : dict of str to int
        Test rows of the rarest class that a site has, the fewest of all splits.
    noticed : list of str
        Warnings about the tables.
    fixed : bool
        Whether the test rows are the same in every split.
    settings : dict
    """

    first: Federation
    ways: list[Way]
    left_out: dict[str, str]
    figures: pd.DataFrame
    inner: pd.DataFrame
    sent: dict[str, tuple[dict[str, int] | None, int]]
    rarest: dict[str, int]
    noticed: list[str] = field(default_factory=list)
    fixed: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def run_all(
    tables: Tables,
    names: list[str] | None = None,
    *,
    seeds: int | Sequence[int] = 10,
    rounds: int = 10,
    test_size: float = 0.3,
    metric: str = "auc",
    n_jobs: int | None = None,
    progress: bool = True,
) -> Trials:
    """Run every way on every split, and where there is a choice between ways, on rows cut from its training rows.

    Parameters
    ----------
    tables : Tables
    names : list of str, optional
        Of ways. Those in which a site stays alone are compared in any case.
    seeds : int or sequence of int
        Splits, at least three.
    rounds : int
    test_size : float
        Share of each site's rows that is kept for testing, in (0, 1), and of its training rows that ways are chosen by.
    metric : str
        One of `MEASURES`.
    n_jobs : int, optional
        As for `hetfl_core.compare`.
    progress : bool

    Returns
    -------
    Trials

    Raises
    ------
    ValueError
        For a bad argument, tables that are refused, and names that are unknown.
    """
    checks.jobs(n_jobs)
    numbers = checks.seeds(seeds, least=MIN_SEEDS)
    checks.integer("rounds", rounds, 1)
    checks.fraction("test_size", test_size, "(0, 1)")
    metric = checks.choice("metric", named(metric), tuple(MEASURES))
    with catch_warnings(record=True) as caught:
        first = tables.federation(numbers[0], test_size)
    said = by_kind([w for w in caught if issubclass(w.category, FederationWarning)])
    others = {str(w.message): w for w in caught if not issubclass(w.category, FederationWarning)}
    for text, warning in (said | others).items():
        warn_explicit(text, warning.category, warning.filename, warning.lineno)
    ways, left_out = ways_of(names and [*ALONE, *names], first)
    wanted = tuple(dict.fromkeys([*USUAL, metric]))
    call = _Study(tables, {way.key: way for way in ways}, wanted, rounds, test_size)
    call.keep(numbers[0], call.split(first, numbers[0]))
    made: dict[tuple[int, Key], Piece] = {}
    for key, _, found in call.runs(numbers, call.most(first), n_jobs, progress, "compare"):
        made |= {(seed, key): piece for seed, piece in found.items()}
    feds = [call.data(seed).whole for seed in numbers]
    call.forget()
    firsts = {way.key: made[numbers[0], Key(way.key)] for way in ways}
    figures = {
        inner: [piece.figures for (_, key), piece in made.items() if key.inner == inner] for inner in (False, True)
    }
    return Trials(
        first,
        ways,
        left_out,
        pd.concat(figures[False], ignore_index=True),
        pd.concat(figures[True], ignore_index=True) if figures[True] else pd.DataFrame(),
        {key: (piece.sent, piece.total) for key, piece in firsts.items()},
        {client.name: min(_rarest(client.name, fed) for fed in feds) for client in first},
        [*said],
        len({fed.fingerprint() for fed in feds}) == 1,
        {"splits": len(numbers), "rounds": rounds, "test_size": test_size, "metric": metric},
    )


MOST_ALIKE = 3
"""Warnings that differ in no more than names and numbers, up to which each is told."""


def by_kind(caught: Sequence[Any]) -> dict[str, Any]:
    """Texts of warnings, and the warning of each; of more than `MOST_ALIKE` of one kind the first, and how many.

    Parameters
    ----------
    caught : sequence of warnings.WarningMessage

    Returns
    -------
    dict of str to warnings.WarningMessage
    """
    kinds: dict[str, dict[str, Any]] = {}
    for one in caught:
        kinds.setdefault(re.sub(r"'[^']*'|[\d.]+", "·", text := str(one.message)), {})[text] = one
    found: dict[str, Any] = {}
    for texts in kinds.values():
        (first, one), *rest = texts.items()
        found |= {f"{first} (and {len(rest)} more of this kind)": one} if len(rest) >= MOST_ALIKE else texts
    return found


def _rarest(name: str, federation: Federation) -> int:
    """Test rows of the rarest of a site's classes."""
    client, n = federation[name], federation.n_classes
    test, train = (np.bincount(y.numpy(), minlength=n) for y in (client.y_test, client.y_train))
    return int(test[train + test > 0].min())


class Key(NamedTuple):
    """What is run of a split: a way, by its key, on its test rows or on rows cut from its training rows."""

    way: str
    inner: bool = False


class Split(NamedTuple):
    """A split of the tables, and another one of its training rows: there the test rows are gone."""

    whole: Federation
    inner: Federation


@dataclass(frozen=True)
class _Study(Study):
    """The runs behind a report, by `Key`."""

    tables: Tables
    ways: Mapping[str, Way]
    wanted: tuple[Any, ...]
    rounds: int
    test_size: float

    def make(self, seed: int) -> Split:
        """The tables as this seed splits them."""
        with catch_warnings(action="ignore", category=FederationWarning):  # the first was heard
            return self.split(self.tables.federation(seed, self.test_size), seed)

    def split(self, whole: Federation, seed: int) -> Split:
        """A split with the one of its training rows."""
        return Split(whole, held_out(whole, self.test_size, seed))

    def most(self, first: Federation) -> dict[Key, int]:
        """How many runs are trained together: of each way, and of each that has another to be chosen from."""
        with catch_warnings(action="ignore", category=FederationWarning):
            made = {key: way.made_for(first) for key, way in self.ways.items()}
            found = {Key(key): as_learner(one).at_once(seen, RunOptions()) for key, (seen, one, _) in made.items()}
        for alone in (True, False):
            some = [key for key, way in self.ways.items() if way.alone == alone]
            found |= {Key(key, inner=True): found[Key(key)] for key in some if len(some) > 1}
        return found

    def piece(self, seeds: Sequence[int], key: Key) -> dict[int, Piece]:
        """The figures of the runs of one way with these seeds."""
        told: dict[str, Any] = {"rounds": self.rounds, "evaluate_every": self.rounds, "workers": 1, "progress": False}
        told["metric"] = self.wanted
        way = self.ways[key.way]
        runs: dict[int, Run] = {}
        with catch_warnings(action="ignore", category=FederationWarning):  # the report says what is not defined
            data = {seed: self.data(seed).inner if key.inner else self.data(seed).whole for seed in seeds}
            made = {seed: way.made_for(one) for seed, one in data.items()}
            _, method, options = made[seeds[0]]
            if way.apart:
                each = {seed: seen for seed, (seen, _, _) in made.items()}
                apart = simulate_apart(each.__getitem__, method, seeds=[*seeds], **told)
                return {seed: self._apart([*sites.values()], key.way, seed) for seed, sites in apart.items()}
            alike = all(other == method for _, other, _ in made.values())
            for some in [seeds] if alike else [[seed] for seed in seeds]:
                seen = {seed: made[seed][0] for seed in some}
                learner = as_learner(made[some[0]][1])
                runs |= runs_of(seen, key.way, learner, RunOptions(**told, **options))
        return {seed: self._piece(run, key.way, seed) for seed, run in runs.items()}

    def _piece(self, run: Run, key: str, seed: int) -> Piece:
        return Piece(self._figures(run, key, seed), _sent(run, self.rounds), int(run.final["bytes_up"]))

    def _apart(self, runs: Sequence[Run], key: str, seed: int) -> Piece:
        """Of runs of single sites, which send nothing to anybody."""
        names = [client.name for run in runs for client in run.federation]
        figures = pd.concat([self._figures(run, key, seed) for run in runs], ignore_index=True)
        return Piece(figures, dict.fromkeys(names, 0), 0)

    def _figures(self, run: Run, key: str, seed: int) -> pd.DataFrame:
        return run.per_client[["client", "n_train", "n_test", *self.wanted]].assign(way=key, seed=seed)


def _sent(run: Run, rounds: int) -> dict[str, int] | None:
    """Bytes that left each site, where each sends the shared parts of its model once a round and nothing else."""
    names, total = [client.name for client in run.federation], int(run.final["bytes_up"])
    if not total:
        return dict.fromkeys(names, 0)
    parts = run.method.shared
    each = [rounds * sum(p.nbytes for p in pick(params, parts).values()) for params in run.params]
    return dict(zip(names, each, strict=True)) if sum(each) == total else None
