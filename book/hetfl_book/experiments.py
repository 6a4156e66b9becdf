"""The settings of the papers' tables and figures, and `reproduce`.

An experiment has two scales. ``paper`` is the published setting. ``book`` is a smaller one that runs in CPU minutes;
what it gives is shown in the book as such and never set against a paper's number.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from traceback import format_exception, format_exception_only
from typing import Any, get_args

import pandas as pd
import pooch
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from hetfl_book import ledger, waiting
from hetfl_book.papers import eeg, fedcma, fedcr, fedcr_tables, flic, flic_further, hospitals, hyfem, privacy
from hetfl_book.papers.experiment import Experiment, Scale
from hetfl_core import checks, numerics, records
from hetfl_core.checks import unknown
from hetfl_core.datasets import registry
from hetfl_core.engine.checkpoint import code_version
from hetfl_core.errors import UnknownName, WrongValue
from hetfl_core.files import data_path, results_home
from hetfl_core.parallel import in_order
from hetfl_core.settings import plain
from hetfl_core.statistics import differ

EXPERIMENTS: dict[str, Experiment] = {
    **flic.EXPERIMENTS,
    **flic_further.EXPERIMENTS,
    **eeg.EXPERIMENTS,
    **fedcr.EXPERIMENTS,
    **fedcr_tables.EXPERIMENTS,
    **fedcma.EXPERIMENTS,
    **hyfem.EXPERIMENTS,
    **hospitals.EXPERIMENTS,
    **privacy.EXPERIMENTS,
}


def find(name: str) -> Experiment:
    """The experiment of this name.

    Raises
    ------
    KeyError
        With the nearest right names.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    raise UnknownName(unknown("experiment", name, EXPERIMENTS, "hetfl list"))


def numbers(records: Iterable[ledger.RunRecord] | None = None, **options: Any) -> pd.DataFrame:
    """`hetfl_book.ledger.numbers` that knows which experiments can be run."""
    return ledger.numbers(records, known=known(), **options)


def claims(records: Iterable[ledger.RunRecord] | None = None, **options: Any) -> pd.DataFrame:
    """`hetfl_book.ledger.claims` that knows which experiments can be run."""
    return ledger.claims(records, known=known(), **options)


def known() -> dict[str, tuple[str, ...]]:
    """The methods of each experiment, as the ledger (`hetfl_book.ledger.numbers`) wants to be told of them."""
    return {name: tuple(experiment.methods) for name, experiment in EXPERIMENTS.items()}


# --- runs that are not done yet -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One run: an experiment, a scale, a method and a seed."""

    experiment: str
    scale: Scale
    method: str
    seed: int

    @property
    def relative_path(self) -> str:
        """Path of its record inside a folder of records (`hetfl_core.records.RunRecord.relative_path`)."""
        return records.relative_path_of(self.experiment, self.scale, self.method, self.seed)

    @property
    def setting(self) -> Experiment:
        """The experiment at this scale."""
        return find(self.experiment).at(self.scale)

    def scratch(self) -> Path:
        """Folder of its checkpoint; another for other code or other instructions, so that no run is half of each."""
        root = Path(os.environ.get("HETFL_CHECKPOINTS", pooch.os_cache("hetfl") / "checkpoints"))
        code = f"{code_version(find(self.experiment).methods.get(self.method))}-{numerics.in_effect()['isa']}"
        return root / code / self.experiment / self.scale / f"{self.method}-seed{self.seed}"


def jobs(
    name: str, scale: Scale, seeds: int | Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> list[Job]:
    """All runs of an experiment, seed by seed; by default as many seeds as it wants."""
    known = find(name).methods
    seeds = find(name).seeds if seeds is None else seeds
    for method in methods or ():
        if method not in known:
            raise UnknownName(unknown(f"method of {name}", method, known, f"hetfl list {name}"))
    if scale not in get_args(Scale):
        raise WrongValue(f"scale must be one of {get_args(Scale)}, got {scale!r}")
    return [Job(name, scale, method, seed) for seed in checks.seeds(seeds) for method in methods or known]


def pending(scale: Scale = "paper", seeds: int | None = None, out: Path | None = None) -> list[Job]:
    """Runs without a record whose data are at hand, most wanted first: all methods of one seed before the next.

    ``data/queue.toml`` says what is wanted first (`hetfl_book.waiting`); what it does not name comes after that. Each
    experiment has as many seeds as that file or itself wants, unless `seeds` says how many. A record that was made with
    settings that the method no longer has is none (`outdated`).
    """
    have = {r.relative_path for folder in _folders(out) for r in ledger.load(folder) if not outdated(r)}
    listed = [
        job
        for line in waiting.queue()
        for name in line.experiments
        if name in EXPERIMENTS
        for job in jobs(name, scale, line.seeds if seeds is None else seeds, line.methods)
    ]
    order = sorted(EXPERIMENTS, key=lambda name: EXPERIMENTS[name].priority)
    todo = dict.fromkeys([*listed, *(job for name in order for job in jobs(name, scale, seeds))])
    return [job for job in todo if job.relative_path not in have and available(find(job.experiment))]


def commands() -> list[str]:
    """What ``data/queue.toml`` lists beside runs of experiments: commands that make others."""
    return [line.command for line in waiting.queue() if line.command]


def outdated(record: ledger.RunRecord) -> bool:
    """Whether a record's experiment has since come to run its method with another setting that the record names.

    Records of other experiments, and of methods that an experiment no longer has, are never outdated.
    """
    experiment = EXPERIMENTS.get(record.experiment)
    if experiment is None or record.scale not in get_args(Scale) or record.method not in experiment.methods:
        return False
    method = experiment.at(record.scale).methods[record.method]  # type: ignore[arg-type]
    return differ(record.settings, {"method": plain(method)})


def _folders(out: Path | None) -> list[Path]:
    new = results_home() if out is None else Path(out)
    return list(dict.fromkeys([data_path("results"), *([new] if new.is_dir() else [])]))


def available(experiment: Experiment) -> bool:
    """Whether the experiment's data lie in the data folder."""
    own = experiment.files_present
    return registry.available(experiment.dataset) if own is None else own()


class OutOfTime(Exception):
    """The budget is spent; the checkpoint holds what was done."""


def run_job(
    job: Job,
    device: str = "auto",
    deadline: float | None = None,
    progress: bool = True,
    *,
    resume: bool = True,
    **options: Any,
) -> ledger.RunRecord:
    """Run one job to its end and make its record. An interrupted job goes on where it stopped, unless not to `resume`.

    Further options go to `hetfl_core.simulate`.

    Raises
    ------
    OutOfTime
        When `deadline` (of `time.monotonic`) has passed, after a complete round; or when the data are made, where
        nothing is resumed.
    """
    setting = job.setting
    ledger.code_revision()

    def stop(row: dict[str, Any]) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime(f"{job}: stopped after round {row['round']} of {setting.rounds}")

    # What is resumed trains for a round at least, or calls within a small budget would make the data again and again.
    options |= {"checkpoint": job.scratch()} if resume else {"ready": partial(stop, {"round": 0})}
    run = setting.run(job.method, job.seed, device=device, progress=progress, on_round=stop, **options)
    return ledger.RunRecord.of(run, job.experiment, job.scale, method=job.method)


def reproduce(
    todo: Sequence[Job],
    out: Path | None = None,
    *,
    device: str = "auto",
    budget: float | None = None,
    again: bool = False,
    workers: int | None = None,
    n_jobs: int = 1,
    progress: bool = True,
) -> Iterator[tuple[Job, Path | None]]:
    """Run jobs, and write the record of each as it ends.

    Several calls can work through the same jobs: each takes what no other is at (whatever folder that writes to: they
    would share a checkpoint). A job that fails does not keep the others from running.

    Parameters
    ----------
    todo : sequence of Job
    out : path, optional
        Folder of the records; by default `hetfl_core.files.results_home`.
    device : str
        As for `simulate`.
    budget : float, optional
        Seconds after which no round is begun; an unfinished run is resumed by the next call.
    again : bool
        Run jobs that have a record already; what an interrupted run of this code left is gone on with.
    workers : int, optional
        As for `simulate`; by default one with several processes.
    n_jobs : int
        Processes, each of which runs one job at a time; with 1 they are run in this one. A record is the same, but that
        ``hardware["jobs"]`` says how many there were, for that is what its seconds depend on.
    progress : bool
        Show a bar: of each run, or, with several processes, of the jobs.

    Yields
    ------
    job, path
        In the order of `todo`. The record's file; None for a job that was stopped by the budget, after which none is
        begun. A job that another call is running, or that failed, is left out.

    Raises
    ------
    Exception
        At the end, if jobs failed, what the first one raised; its notes name each of them. Such are
        `hetfl_core.engine.checkpoint.CheckpointError` of a damaged checkpoint, and DamagedRecord where what lies at a
        job's place is no record of it, which is not run then.
    """
    folder = Path(out) if out is not None else results_home()
    stale: dict[Job, ledger.RunRecord | None] = {}
    for job in todo if again else ():
        with suppress(DamagedRecord):  # it is told of when the job's turn comes
            stale[job] = _record(job, folder)
    n_jobs = max(1, min(checks.integer("n_jobs", n_jobs, 1), len(todo)))
    several = n_jobs > 1
    options: dict[str, Any] = {
        "deadline": None if budget is None else time.monotonic() + budget,
        "device": device,
        "progress": progress and not several,
        "workers": 1 if several and workers is None else workers,
        "jobs": n_jobs,
    }
    failed: list[Exception] = []
    stopped = False
    pieces = [(job, folder, stale.get(job), options) for job in todo]
    with tqdm(total=len(todo), disable=not (progress and several), desc="reproduce", unit="run") as bar:
        for job, (path, error, late) in zip(todo, in_order(_taken, pieces, n_jobs), strict=True):
            bar.update()
            if error is not None:
                failed.append(error)
            elif path is not None or (late and not stopped):
                yield job, path
            stopped |= late
            if stopped and not several:
                break
    if failed:
        for error in failed[1:]:
            failed[0].add_note("\n".join(getattr(error, "__notes__", [])))
        raise failed[0]


def _taken(
    job: Job, folder: Path, stale: ledger.RunRecord | None, options: Mapping[str, Any]
) -> tuple[Path | None, Exception | None, bool]:
    """Run a job that nobody else is at: where its record is, what went wrong, and whether time was up."""
    try:
        if path := _done(job, folder, stale):
            return path, None, False
        with ExitStack() as claim:
            if not _claimed(job, claim):
                return None, None, False
            path = _recorded(job, folder, stale, **options)
            return path, None, path is None
    except Exception as error:
        what = "".join(format_exception(error) if options["jobs"] > 1 else format_exception_only(error)).strip()
        error = _portable(error) if options["jobs"] > 1 else error
        error.add_note(f"{job.experiment} {job.scale} {job.method} seed {job.seed} failed: {what}")
        return None, error, False


def _portable(error: Exception) -> Exception:
    """An error that can be sent to another process: itself, if it can."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class DamagedRecord(WrongValue):
    """What lies where the record of a job belongs, or among those of its experiment, is none."""


def _record(job: Job, folder: Path) -> ledger.RunRecord | None:
    """The record of a job, if there is one."""
    try:
        return records.find(folder, job.experiment, job.scale, job.method, job.seed)
    except ValueError as error:
        raise DamagedRecord(str(error)) from error


def _done(job: Job, folder: Path, stale: ledger.RunRecord | None) -> Path | None:
    """The file of a job's record, if there is one that is neither outdated nor the `stale` one to be made again."""
    record = _record(job, folder)
    return None if record is None or record == stale or outdated(record) else record.path


def _claimed(job: Job, claim: ExitStack) -> bool:
    """Claim a job until `claim` is given back, or this process is gone; False where another process has it."""
    job.scratch().parent.mkdir(parents=True, exist_ok=True)
    try:
        claim.enter_context(FileLock(f"{job.scratch()}.lock", timeout=0))
    except Timeout:
        return False
    return True


def _recorded(
    job: Job, folder: Path, stale: ledger.RunRecord | None, deadline: float | None, jobs: int, **options: Any
) -> Path | None:
    """Run a job, unless another process finished it meanwhile: where its record is, or None: time is up."""
    if path := _done(job, folder, stale):
        return path
    try:
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime
        record = run_job(job, deadline=deadline, **options)
    except OutOfTime:
        return None
    if jobs > 1:
        record = replace(record, hardware={**record.hardware, "jobs": jobs})
    path = ledger.write(record, folder)
    shutil.rmtree(job.scratch(), ignore_errors=True)
    return path
