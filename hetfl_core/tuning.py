"""Settings are chosen on rows that are cut from the training rows: whoever looks at test rows has none left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core import checks, keywords
from hetfl_core.comparing import ROUNDS, Study, held_out, runs_of
from hetfl_core.engine.measures import Score, check_measure, direction, is_own
from hetfl_core.engine.options import RunOptions
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.learners import Learner, as_learner
from hetfl_core.views import method_and_view, view_of

SEEDS = (1_000_000, 1_000_001)
"""Those of the choice by default: no comparison has them unless somebody says so."""

OF_A_RUN = ("rounds", "participation", "last_step")
"""What a grid may name that is a setting of the run and not of the method."""


@dataclass(frozen=True)
class Tuned:
    """What `tune` has chosen.

    Parameters
    ----------
    chosen : Method, estimator or baseline, or such with a view
        With the best setting, as `hetfl_core.compare` takes it.
    setting : dict
        The best of the grid.
    table : pandas.DataFrame
        A row for each setting, in the order of the grid: its values, the mean of the metric over clients and seeds,
        under the metric's name, its standard deviation over seeds (``sd``), and whether it is the one (``chosen``).
    edges : dict of str to {"smallest", "largest"}
        Numbers of the setting that lie at an edge of the grid, so that a wider one might hold a better one.
    """

    chosen: Any
    setting: dict[str, Any]
    table: pd.DataFrame
    edges: dict[str, str]


@keywords.hinting(*RunOptions.names("metric", "validation"))
def tune(
    federation: Federation | Callable[[int], Federation],
    method: Any,
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
    *,
    metric: str | Score | None = None,
    seeds: int | Sequence[int] = SEEDS,
    share: float = 0.3,
    n_jobs: int | None = None,
    progress: bool = True,
    **options: Any,
) -> Tuned:
    """Choose the settings of a method on validation rows, which are cut from each client's training rows.

    No test row is looked at. Where tables were prepared, validation rows took part in that, as training rows do.

    Parameters
    ----------
    federation : Federation, or callable
        The data, or what makes them of a seed. Splits that are drawn anew for each seed have other test rows for the
        choice than for the comparison that follows.
    method : Method, estimator of scikit-learn or baseline, or (that, view)
        As `hetfl_core.compare` takes it.
    grid : dict of str to sequence, or sequence of such
        What is tried: each combination of the values. Names are fields of the method or parameters of the estimator
        (``"logisticregression__C"`` of a pipeline), and of a run ``"rounds"``, ``"participation"``, ``"last_step"``;
        also ``"view"``.
    metric : str or Score, optional
        What decides, as `simulate` knows it: ``"log loss"``, ``"auc"``, …, or a function of your own that says whether
        more of it is better: ``hetfl_core.scorer(f, greater_is_better=False)``. Its mean over clients counts. By
        default the log loss, or the mean squared error of a regression.
    seeds : int or sequence of int
        Of data, of the cut and of training; those of the comparison should be others.
    share : float
        Of each client's training rows that are cut off, stratified by class, in (0, 1); of its groups, where rows are
        split by groups (`Federation.from_frame`), which stay together over all clients.
    n_jobs : int, optional
        Processes, as for `hetfl_core.compare`.
    progress : bool
        Show a bar, a step per run.
    **options
        As for `simulate`, but ``validation``: ``rounds``, ``device`` … What has no meaning for a baseline or an
        estimator is checked for it all the same.

    Returns
    -------
    Tuned
        The first of equally good settings is chosen. A setting with which some run diverged never is.

    Raises
    ------
    ValueError
        For an empty grid, names that are neither of the method nor of a run, values that the method refuses, a function
        that does not say whether more of it is better, options that `simulate` would refuse, and where no setting has a
        finite metric.
    TypeError
        For options that `simulate` does not know.
    """
    checks.fraction("share", share, "(0, 1)")
    RunOptions(progress=progress, **options)
    checks.jobs(n_jobs)
    numbers = checks.seeds(seeds)
    settings = _settings(grid)
    plain, view = method_and_view("method", method)
    learner = as_learner(plain)
    tried = [_tried(learner, view, setting) for setting in settings]
    call = _Trial(federation, tried, metric, float(share), {"rounds": ROUNDS, **options})
    first = call.data(numbers[0])
    name, score = _metric(metric, first.task)
    found: dict[int, list[float]] = {}
    at_once = {place: call.most(place, first) for place in range(len(tried))}
    for place, _, values in call.runs(numbers, at_once, n_jobs, progress, "tune"):
        found.setdefault(place, []).extend(values)
    call.forget()
    means = np.array([np.mean(found[place]) for place in range(len(tried))])
    if not np.isfinite(means).any():
        raise WrongValue(f"no setting has a finite {name} on the validation rows: every run diverged, or it has none")
    better = means if score else -means
    best = int(np.nanargmax(better))
    table = pd.DataFrame(settings).assign(**{name: means})
    table["sd"] = [np.std(found[place], ddof=1) if len(numbers) > 1 else math.nan for place in range(len(tried))]
    table["chosen"] = np.arange(len(tried)) == best
    chosen, seen, _ = tried[best]
    own = chosen.unwrapped()
    return Tuned(own if seen == "own" else (own, seen), settings[best], table, _edges(settings, settings[best]))


@dataclass(frozen=True)
class _Trial(Study):
    """What is tried; its keys are the places of the settings."""

    federation: Federation | Callable[[int], Federation]
    tried: Sequence[tuple[Learner, Any, dict[str, Any]]]
    metric: Any
    share: float
    options: Mapping[str, Any]

    def most(self, place: int, first: Federation) -> int:
        """How many runs with a setting are trained together."""
        learner, view, changes = self.tried[place]
        return learner.at_once(view_of(first, view), RunOptions(**{**self.options, **changes}))

    def piece(self, seeds: Sequence[int], place: int) -> list[float]:
        """The mean over clients on their validation rows, with each seed; NaN where a run diverged."""
        learner, view, changes = self.tried[place]
        seen = {seed: view_of(self.data(seed), view) for seed in seeds}
        name, _ = _metric(self.metric, seen[seeds[0]].task)
        asked: list[Any] = [self.metric if is_own(self.metric) else name]
        options = {"evaluate_every": {**self.options, **changes}["rounds"], **self.options, **changes}
        runs = runs_of(seen, "", learner, RunOptions(**{**options, "metric": asked, "progress": False}))
        return [math.nan if run.final.get("diverged") else run.final[name] for run in map(runs.__getitem__, seeds)]

    def make(self, seed: int) -> Federation:
        """The data of a seed without their test rows."""
        made = self.federation(seed) if callable(self.federation) else self.federation
        cut = held_out(made, self.share, seed)
        for _, _, changes in self.tried:
            RunOptions(**{**self.options, **changes}).check(cut)
        return cut


def _metric(metric: Any, task: Any) -> tuple[str, bool]:
    """The name of a metric, and whether more of it is better."""
    if metric is None:
        metric = "log_loss" if task == "classification" else "mse"
    if not is_own(metric):
        checks.nonempty_str("metric", metric)
    beside, scores = check_measure([metric], task)
    if beside:
        raise WrongValue(f"metric must be one of clients' own rows, such as 'log_loss', got {metric!r}")
    ((name, score),) = scores.items()
    return name, direction(name, score)


def _settings(grid: Any) -> list[dict[str, Any]]:
    """All combinations of the values, in their order."""
    from sklearn.model_selection import ParameterGrid

    each = [grid] if isinstance(grid, Mapping) else checks.sequence("grid", grid)
    for one in each:
        for name, values in checks.mapping("grid", one).items():
            checks.nonempty_str("grid: a setting's name", name)
            if not checks.sequence(f"grid[{name!r}]", values):
                raise WrongValue(f"grid[{name!r}] must have at least one value, got none")
    if not each or not all(each):
        raise WrongValue(f"grid must map at least one setting to its values, got {checks.shown(grid)}")
    return [dict(setting) for setting in ParameterGrid([dict(one) for one in each])]


def _tried(learner: Learner, view: Any, setting: Mapping[str, Any]) -> tuple[Learner, Any, dict[str, Any]]:
    """The learner with a setting, its view, and what the run is told; refused with the setting that is wrong."""
    of_run = {name: value for name, value in setting.items() if name in OF_A_RUN and learner.in_rounds}
    own = {name: value for name, value in setting.items() if name not in (*of_run, "view")}
    known = learner.parameters
    others = [*(OF_A_RUN if learner.in_rounds else ()), "view"]
    try:
        RunOptions(**of_run)
        for name in own:
            if known and name not in known:
                raise WrongValue(checks.unknown("setting", name, [*known, *others]))
        return learner.with_settings(own), setting.get("view", view), of_run
    except (ValueError, TypeError) as error:
        raise WrongValue(f"grid: setting {checks.shown(dict(setting))}: {error}") from error


def _edges(settings: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> dict[str, str]:
    """Numbers that lie at an edge of those that were tried."""
    found = {}
    for name, value in best.items():
        values = {setting[name] for setting in settings if name in setting and _is_number(setting[name])}
        if _is_number(value) and len(values) > 1 and value in (min(values), max(values)):
            found[name] = "smallest" if value == min(values) else "largest"
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
