"""What is missing is made: choices of settings, finals, and the control with nothing exchanged; a record each.

The records of a federation at a size lie in three experiments: ``headtohead/heart-all-tuning`` has a record a method,
with the grid and the choice, ``headtohead/heart-all`` the finals, and ``headtohead/heart-all-apart`` the control.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetfl_book.headtohead import VERSION
from hetfl_book.headtohead.entries import ALONE, FAMILIES, RATES, ROUNDS, Entry, NotHere, listed
from hetfl_book.headtohead.federations import FEDERATIONS, Size, data_of
from hetfl_book.headtohead.recording import described, joined, record_of
from hetfl_core import records
from hetfl_core.clients import Spec
from hetfl_core.engine.apart import simulate_apart
from hetfl_core.engine.measures import Named
from hetfl_core.engine.options import RunOptions
from hetfl_core.errors import UnknownName, WrongValue
from hetfl_core.federation import Federation
from hetfl_core.learners import as_learner, simulate_seeds
from hetfl_core.parallel import in_order
from hetfl_core.records import RunRecord, environment
from hetfl_core.settings import changed, plain
from hetfl_core.tuning import SEEDS as SEEDS_OF_THE_CHOICE
from hetfl_core.tuning import Tuned, tune

MEASURES: tuple[Named, ...] = ("auc", "log_loss", "calibration_error", "brier")
"""Beside accuracy and balanced accuracy, which every run has."""

SHARE = 0.3
"""Of the training rows that are validation rows of a choice."""

FAMILY = "network family"
"""The name of the record that says which network all methods have."""

OWN_STEP = ", own last step"
"""What the name of a method ends with where each client fits the outputs of the shared model to its rows."""

APART = "-apart"
TUNING = "-tuning"
OPTIONS: Mapping[str, Any] = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "progress": False, "workers": 1}


@dataclass(frozen=True)
class Task:
    """What is made at once: the choice, the finals or the control of one method on one federation.

    Parameters
    ----------
    name : str
        Of the federation.
    size : {"all", "tenth"}
    method : str
        Name of the entry; `FAMILY` for the choice of the network.
    what : {"tuning", "finals", "own step", "apart"}
    """

    name: str
    size: Size
    method: str
    what: str

    @property
    def experiment(self) -> str:
        """That of its records."""
        ends = {"tuning": TUNING, "apart": APART}
        return f"headtohead/{self.name}-{self.size}{ends.get(self.what, '')}"

    @property
    def label(self) -> str:
        """The method's name in its records."""
        return self.method + OWN_STEP * (self.what == "own step")

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of its records; a choice has one for all of its own."""
        return SEEDS_OF_THE_CHOICE[:1] if self.what == "tuning" else FEDERATIONS[self.name].seeds


@dataclass(frozen=True)
class Bench:
    """Where records are looked for and written, and what is compared.

    Parameters
    ----------
    out : Path
        Folder of new records.
    lines : dict of str to Entry
        By name, with those that somebody added.
    also : tuple of Path
        Folders of records that are there already.
    """

    out: Path
    lines: Mapping[str, Entry]
    also: tuple[Path, ...] = ()

    def found(self, task: Task, seed: int) -> RunRecord | None:
        """The record of a run, wherever it lies."""
        for folder in (self.out, *self.also):
            if folder.is_dir() and (one := records.find(folder, task.experiment, "own", task.label, seed)):
                return one
        return None

    def lacks(self, task: Task) -> list[int]:
        """Seeds of a task without a record; a choice of another method or settings is none."""
        found = {seed: self.found(task, seed) for seed in task.seeds}
        lost = [seed for seed, known in found.items() if known is None]
        if task.what != "tuning" or lost or task.method == FAMILY:
            return lost
        way, now = self.lines[task.method], self._asked(task.method)
        return [seed for seed, known in found.items() if known and _differs(known, now, way)]

    def check(self, task: Task) -> None:
        """Refuse finals that are there and of something else than would be run now.

        Parameters
        ----------
        task : Task
            Nothing is refused while its settings, or the network, are still to be chosen.

        Raises
        ------
        ValueError
            With the record, what it says and what would be run, and the cure.
        """
        if task.what == "tuning":
            return
        way, found = self.lines[task.method], [one for seed in task.seeds if (one := self.found(task, seed))]
        needed = [replace(task, method=one, what="tuning") for one in (FAMILY, *([task.method] if way.grid else []))]
        choices = [self.found(one, SEEDS_OF_THE_CHOICE[0]) for one in needed]
        if not found or not all(one and one.settings["chosen"] for one in choices):
            return
        data = Seen(task.name, task.size, way)(task.seeds[0])
        method, about = self._ready(task, data)
        now = {key: about[key] for key in ("view", "family")} | {"method": _plain(method, data.specs())}
        each = [(one, self._asked(task.method)) for one in choices[1:] if one] + [(one, now) for one in found]
        for record, wanted in each:
            if lines := _differs(record, wanted, way):
                raise WrongValue(
                    f"the record {record.relative_path} in {record.path} is of another {task.method!r} than would be "
                    f"run now (there → now): {'; '.join(lines)}; give another --out, or delete the records of "
                    f"{task.method!r} on {task.name}, {task.size} there"
                )

    def _asked(self, name: str) -> dict[str, Any]:
        """What a choice says of a method and of the settings among which it is made."""
        way = self.lines[name]
        return {"grid": plain(listed(way.grid)), "view": way.view, "method": _plain(way.method)}

    def _ready(self, task: Task, data: Federation) -> tuple[Any, dict[str, Any]]:
        """A method as its finals run on these data, and what their records say beside."""
        way, family = self.lines[task.method], self.family(task.name, task.size)
        method = with_chosen(way.on(data, FAMILIES[family]), self.choice(task.name, task.size, task.method))
        return method, {"view": way.view, "size": task.size, "family": family, "protocol": VERSION}

    def family(self, name: str, size: Size) -> str:
        """The network that was chosen for training alone."""
        return str(self.choice(name, size, FAMILY)["family"])

    def choice(self, name: str, size: Size, method: str) -> dict[str, Any]:
        """The setting that was chosen; empty where there was nothing to choose."""
        if method != FAMILY and not self.lines[method].grid:
            return {}
        record = self.found(Task(name, size, method, "tuning"), SEEDS_OF_THE_CHOICE[0])
        if record is None:
            raise UnknownName(f"nothing was chosen for {method!r} on {name}, {size}")
        if record.settings["chosen"] is None:
            raise NotHere(record.settings["reason"])
        return dict(record.settings["chosen"])

    def __call__(self, task: Task) -> int:
        """Make the records that a task lacks; how many were written."""
        seeds = self.lacks(task)
        if not seeds:
            return 0
        with warnings.catch_warnings(action="ignore"):
            made = [self._tuned(task)] if task.what == "tuning" else self._finals(task, seeds)
            n = 0
            for record in made:
                records.write(record, self.out)
                n += 1
        return n

    def _tuned(self, task: Task) -> RunRecord:
        """The record of a choice; where every setting diverged it says so."""
        (seed, *_), begin = SEEDS_OF_THE_CHOICE, time.perf_counter()
        settings: dict[str, Any] = {"protocol": VERSION, "share": SHARE, "rounds": ROUNDS, "chosen": None, "edges": {}}
        settings |= {"seeds": list(SEEDS_OF_THE_CHOICE), "table": {}, "reason": ""}
        way = self.lines[ALONE if task.method == FAMILY else task.method]
        data = Seen(task.name, task.size, way)
        least = None
        try:
            if task.method == FAMILY:
                settings["grid"] = [{"family": list(FAMILIES), "lr": list(RATES)}]
                found = _chosen_family(data, way)
            else:
                settings |= self._asked(task.method)
                family = FAMILIES[self.family(task.name, task.size)]
                found = _chosen_setting(data, way.on(data(seed), family), way.grid)
            least = float(np.nanmin(found.table["log_loss"]))
            table = found.table.drop(columns="chosen").to_dict("list")
            settings |= {"table": plain(table), "chosen": found.setting, "edges": found.edges}
        except ValueError as error:
            if "no setting has a finite" not in str(error):
                raise
            settings["reason"] = str(error)
        return RunRecord(
            experiment=task.experiment,
            scale="own",
            method=task.label,
            seed=seed,
            settings=settings,
            federation=described(data_of(task.name, seed, task.size)),
            metrics={"log_loss": least},
            seconds=time.perf_counter() - begin,
            **environment(),
        )

    def _finals(self, task: Task, seeds: Sequence[int]) -> Iterator[RunRecord]:
        data = Seen(task.name, task.size, self.lines[task.method])
        first = data(seeds[0])
        method, about = self._ready(task, first)
        own = {"last_step": "own"} if task.what == "own step" else {}
        options = {**OPTIONS, "metric": MEASURES, **own}
        learner = as_learner(method)
        if not learner.in_rounds:
            for seed in seeds:
                run = learner.run(data(seed), seed, RunOptions(metric=MEASURES))
                yield record_of(task.experiment, task.label, run, about)
            return
        most = learner.at_once(first, RunOptions(**OPTIONS))
        for some in (seeds[i : i + most] for i in range(0, len(seeds), most)):
            if task.what == "apart":
                for seed, runs in simulate_apart(data, method, seeds=some, **options).items():
                    yield joined(task.experiment, task.label, list(runs.values()), data(seed), about)
            else:
                for run in simulate_seeds(data, method, seeds=some, **options).values():
                    yield record_of(task.experiment, task.label, run, about)


@dataclass(frozen=True)
class Seen:
    """The data of a seed as a method sees them; a class, so that it can be sent to another process.

    Parameters
    ----------
    name : str
        Of a federation.
    size : {"all", "tenth"}
    entry : Entry
        The method's line.
    start : int
        By how much the seed of a run is larger than that of its split.
    """

    name: str
    size: Size
    entry: Entry
    start: int = 0

    def __call__(self, seed: int) -> Federation:
        """Of the seed of a run."""
        data = data_of(self.name, seed - self.start, self.size, common=self.entry.view == "common")
        return self.entry.seen(data, FEDERATIONS[self.name].kind)


def tasks(bench: Bench, names: Sequence[str], sizes: Sequence[Size], methods: Sequence[str]) -> list[list[Task]]:
    """All that belongs to these federations and methods, in stages of which each needs those before it.

    Parameters
    ----------
    bench : Bench
    names, sizes, methods : sequence of str

    Returns
    -------
    list of list of Task
        For each federation and size: the choice of the network, the choices of all methods, their finals.
    """
    stages = []
    for name in names:
        for size in sizes:
            able = [method for method in methods if why_not(bench.lines[method], name, size) is None]
            chosen = [Task(name, size, method, "tuning") for method in able if bench.lines[method].grid]
            finals = [
                Task(name, size, method, what)
                for method in able
                for what in ("finals", "own step", "apart")
                if what == "finals"
                or (what == "own step" and bench.lines[method].one_model)
                or (what == "apart" and bench.lines[method].exchanges)
            ]
            stages += [[Task(name, size, FAMILY, "tuning")], chosen, finals]
    return stages


def why_not(entry: Entry, name: str, size: Size = "all") -> str | None:
    """Why a method has no runs on a federation; None where it has.

    Parameters
    ----------
    entry : Entry
    name : str
        Of the federation.
    size : {"all", "tenth"}
    """
    try:
        entry.on(Seen(name, size, entry)(0), FAMILIES["small"])
    except NotHere as error:
        return str(error)
    return None


def check(bench: Bench, stages: Sequence[Sequence[Task]]) -> None:
    """Refuse finals that are there and of something else than would be run now (`Bench.check`).

    Parameters
    ----------
    bench : Bench
    stages : sequence of sequence of Task
        As `tasks` gives them.
    """
    for task in sorted((task for stage in stages for task in stage), key=lambda t: t.experiment):  # a file at a time
        bench.check(task)


def make_missing(
    bench: Bench,
    stages: Sequence[Sequence[Task]],
    n_jobs: int = 1,
    on_done: Callable[[Task, int], None] = lambda task, n: None,
) -> int:
    """Make what is missing, stage by stage; a method whose every setting diverged has no finals.

    Parameters
    ----------
    bench : Bench
    stages : sequence of sequence of Task
        As `tasks` gives them.
    n_jobs : int
        Processes.
    on_done : callable
        Called with each task and the number of records that were written for it.

    Returns
    -------
    int
        Records that were written.

    Raises
    ------
    ValueError
        Before anything is run, where finals are there of something else than would be run (`Bench.check`).
    """
    check(bench, stages)
    total = 0
    for stage in stages:
        if total:
            check(bench, [stage])  # by what was chosen meanwhile
        todo = [task for task in stage if bench.lacks(task) and not _hopeless(bench, task)]
        for task in stage:
            if task not in todo:
                on_done(task, 0)
        for task, n in zip(todo, in_order(bench, [(task,) for task in todo], n_jobs), strict=True):
            on_done(task, n)
            total += n
    return total


def _hopeless(bench: Bench, task: Task) -> bool:
    """Whether nothing can be run because no setting could be chosen."""
    if task.what == "tuning":
        return False
    try:
        bench.choice(task.name, task.size, task.method)
    except NotHere:
        return True
    return False


def _plain(method: Any, specs: Sequence[Spec] = ()) -> Any:
    """A method as records hold it."""
    return as_learner(method).settings(specs)


def _differs(record: RunRecord, now: Mapping[str, Any], entry: Entry) -> list[str]:
    """Where a record says something else than one that were made now; what an older one does not say is left out."""
    said = {key: record.settings[key] for key in now if key in record.settings}
    if not as_learner(entry.method).in_rounds and record.versions != environment()["versions"]:
        said.pop("method", None)  # other versions of a library have other defaults, and other names for them
    ours = type(entry.method).__module__.startswith("hetfl_")  # what the library gave a method later changes no record
    lines = changed(said, {key: now[key] for key in said})
    return [line for line in lines if not (ours and ": (none) → " in line)]


# --- choices ----------------------------------------------------------------------------------------------------------


def _chosen_setting(data: Seen, method: Any, grid: Any) -> Tuned:
    options: dict[str, Any] = {"rounds": ROUNDS, "workers": 1} if as_learner(method).in_rounds else {}
    return tune(data, method, grid, share=SHARE, seeds=SEEDS_OF_THE_CHOICE, n_jobs=1, progress=False, **options)


def _chosen_family(data: Seen, alone: Entry) -> Tuned:
    """The family whose best rate has the smallest log loss, trained alone."""
    each = {}
    for name, family in FAMILIES.items():
        method = alone.on(data(SEEDS_OF_THE_CHOICE[0]), family)
        each[name] = _chosen_setting(data, method, {"lr": RATES}).table.assign(family=name)
    table = pd.concat(each.values(), ignore_index=True)
    best = int(np.nanargmin(table["log_loss"]))
    setting = {"family": str(table["family"][best]), "lr": float(table["lr"][best])}
    return Tuned(alone.method, setting, table, {})


def with_chosen(method: Any, chosen: Mapping[str, Any]) -> Any:
    """A method with what was chosen."""
    return as_learner(method).with_settings(chosen).unwrapped() if chosen else method
