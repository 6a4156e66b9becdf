"""The settings of the papers' tables and figures, and `reproduce`.

An experiment has two scales. ``paper`` is the published setting. ``book`` is a smaller one that runs in CPU minutes;
what it gives is shown in the book as such and never set against a paper's number.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pooch

from hetfl_core import records
from hetfl_core.datasets import digits, flic_bci, registry, toy
from hetfl_core.federation import Federation
from hetfl_core.methods import FLIC, FedRep, HetFedRep, Local, Method
from hetfl_core.networks import CNN, MLP, Model
from hetfl_core.resources import data_path
from hetfl_core.simulation import Run, simulate

Scale = Literal["book", "paper"]


@dataclass(frozen=True)
class Experiment:
    """One row of a table, or one figure.

    Attributes
    ----------
    title : str
        What it reproduces.
    federation : callable
        ``federation(seed)`` makes the data.
    methods : dict of str to Method
        By the name used in the paper's table.
    rounds : int
        Communication rounds T at paper scale.
    participation : float
        Participation rate r.
    evaluate_every : int
        Rounds between evaluations; more than 1 where evaluating all clients costs as much as training some.
    dataset : str
        Name of the data set in the catalogue; its files must be at hand.
    wanted : int
        Place in the queue of pending runs; smaller is more wanted.
    book : dict
        What the book scale changes: ``rounds``, and fields of the methods.
    """

    title: str
    federation: Callable[[int], Federation]
    methods: Mapping[str, Method]
    rounds: int = 50
    participation: float = 0.1
    evaluate_every: int = 1
    dataset: str = ""
    wanted: int = 100
    book: Mapping[str, Any] = field(default_factory=lambda: {"rounds": 10, "pretrain_epochs": 20})

    def at(self, scale: Scale) -> Experiment:
        """The experiment with the settings of a scale put in."""
        if scale == "paper":
            return self
        changes = {name: value for name, value in self.book.items() if name != "rounds"}
        methods = {name: _change(method, changes) for name, method in self.methods.items()}
        return replace(self, methods=methods, rounds=self.book.get("rounds", self.rounds))


def _change(method: Method, changes: Mapping[str, Any]) -> Method:
    own = {f.name for f in fields(method)}
    return replace(method, **{name: value for name, value in changes.items() if name in own})


def flic_methods(phi: MLP | CNN | None = None, pretrain_batch: int = 100, fedrep: bool = False) -> dict[str, Method]:
    """The methods of FLIC's tables at the settings of its text (Section 6 and Appendix S3.3).

    Parameters
    ----------
    phi : MLP or CNN, optional
        The embedding; by default the MLP d–64–64–64.
    pretrain_batch : int
        Batch size of the pre-training: 10 for toys, 100 for digits and BCI.
    fedrep : bool
        With FedRep, for federations with one feature space.
    """
    phi = phi or MLP()
    flat, deep = Model(phi), Model(phi, alpha=100)
    methods: dict[str, Method] = {"Local": Local(flat)}
    if fedrep:
        methods["FedRep"] = FedRep(flat)
    return methods | {
        "HetFedRep": HetFedRep(deep),
        "FLIC-Class": FLIC(flat, pretrain_batch=pretrain_batch),
        "FLIC-HL": FLIC(deep, pretrain_batch=pretrain_batch),
    }


def published_methods() -> dict[str, Method]:
    """FLIC as its published code runs it on the BCI data, with the code's network and weight decay."""
    phi = MLP(activation="leaky_relu", dropout=0.5)
    return {
        "FLIC-Class": FLIC.published(model=Model(phi), pretrain_batch=100),
        "FLIC-HL": FLIC.published(model=Model(phi, alpha=100), pretrain_batch=100),
    }


def _digits(n_clients: int, classes: int, **options: Any) -> Callable[[int], Federation]:
    return lambda seed: digits.mnist_usps(n_clients, classes, seed, **options)


def _experiments() -> dict[str, Experiment]:
    toys: dict[str, Callable[..., Federation]] = {"noisy": toy.noisy_features, "linear": toy.linear_mapping}
    found = {
        "flic/bci-common40": Experiment(
            "FLIC, Table 4: BCI with the common electrodes, 40 subjects",
            lambda seed: flic_bci.common40(),
            flic_methods(fedrep=True),
            dataset="flic_bci.common40",
            wanted=0,
            book={"rounds": 10},
        ),
        "flic/bci-common40-published": Experiment(
            "The same with FLIC as its published code runs it",
            lambda seed: flic_bci.common40(),
            published_methods(),
            dataset="flic_bci.common40",
            wanted=10,
        ),
    }
    for order, (name, make) in enumerate(toys.items()):
        found[f"flic/toy-{name}"] = Experiment(
            f"FLIC, Figure 4: {make.__name__.replace('_', ' ')}, 100 clients with 3 of 20 classes",
            lambda seed, make=make: make(100, 3, seed),  # type: ignore[misc]
            flic_methods(pretrain_batch=10),
            dataset=f"toy.{make.__name__}",
            wanted=20 + order,
        )
    digits_book = {"rounds": 2, "pretrain_epochs": 3, "local_epochs": 2}
    for b in (100, 200):
        for classes in (3, 5):
            found[f"flic/digits-b{b}-c{classes}"] = Experiment(
                f"FLIC, Table 3: MNIST and USPS, {b} clients with {classes} classes",
                _digits(b, classes),
                flic_methods(CNN()),
                evaluate_every=10,
                dataset="digits.mnist_usps",
                wanted=30 + b // 10 + classes,
                book=digits_book,
            )
            found[f"flic/digits-resize-b{b}-c{classes}"] = Experiment(
                f"FLIC, Table 4: MNIST and USPS resized to 28 × 28, {b} clients with {classes} classes",
                _digits(b, classes, resize=28),
                flic_methods(CNN(), fedrep=True),
                evaluate_every=10,
                dataset="digits.mnist_usps",
                wanted=60 + b // 10 + classes,
                book=digits_book,
            )
    return found


EXPERIMENTS: dict[str, Experiment] = _experiments()


def find(name: str) -> Experiment:
    """The experiment of this name.

    Raises
    ------
    KeyError
        With the nearest right names.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    raise KeyError(unknown("experiment", name, EXPERIMENTS))


def unknown(kind: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Text of an error for a name that is not known, with the nearest right ones."""
    near = difflib.get_close_matches(name, list(known), 3, 0.4) or sorted(known)
    return f"no {kind} is called {name!r}; did you mean {', '.join(near)}?"


# --- runs that are not done yet -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One run: an experiment, a scale, a method and a seed."""

    experiment: str
    scale: Scale
    method: str
    seed: int

    @property
    def place(self) -> str:
        """Path of its record inside a folder of records (`hetfl_core.records.RunRecord.place`)."""
        return records.place_of(self.experiment, self.scale, self.method, self.seed)

    @property
    def setting(self) -> Experiment:
        """The experiment at this scale."""
        return find(self.experiment).at(self.scale)

    def scratch(self) -> Path:
        """Folder of its checkpoint; another for other code, so that no run is half of one and half of another."""
        root = Path(os.environ.get("HETFL_CHECKPOINTS", pooch.os_cache("hetfl") / "checkpoints"))
        return root / code_version() / self.experiment / self.scale / f"{self.method}-seed{self.seed}"


@cache
def code_version() -> str:
    """A digest of the library's own source."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def jobs(name: str, scale: Scale, seeds: int | Sequence[int] = 3, methods: Sequence[str] | None = None) -> list[Job]:
    """All runs of an experiment, seed by seed."""
    known = find(name).methods
    for method in methods or ():
        if method not in known:
            raise KeyError(unknown(f"method of {name}", method, known))
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    if not len(numbers):
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    return [Job(name, scale, method, seed) for seed in numbers for method in methods or known]


def pending(scale: Scale = "paper", seeds: int = 3, out: Path | None = None) -> list[Job]:
    """Runs without a record whose data are at hand, most wanted first: all methods of one seed before the next."""
    have = {r.place for folder in _folders(out) for r in records.load(folder)}
    order = sorted(EXPERIMENTS, key=lambda name: EXPERIMENTS[name].wanted)
    todo = [job for name in order for job in jobs(name, scale, seeds)]
    return [job for job in todo if job.place not in have and available(find(job.experiment))]


def _folders(out: Path | None) -> list[Path]:
    tracked = data_path("results")
    return [tracked] if out is None or not Path(out).is_dir() else [tracked, Path(out)]


def available(experiment: Experiment) -> bool:
    """Whether the experiment's data lie in the data folder."""
    return registry.available(experiment.dataset)


class OutOfTime(Exception):
    """The budget is spent; the checkpoint holds what was done."""


def run_job(job: Job, device: str = "auto", deadline: float | None = None, progress: bool = True) -> records.RunRecord:
    """Run one job to its end and make its record. An interrupted job goes on where it stopped.

    Raises
    ------
    OutOfTime
        When `deadline` (of `time.monotonic`) has passed, after a complete round.
    """
    setting = job.setting
    method = setting.methods[job.method]

    def stop(row: dict[str, Any]) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime(f"{job}: stopped after round {row['round']} of {setting.rounds}")

    run = simulate(
        setting.federation(job.seed),
        method,
        rounds=setting.rounds,
        participation=setting.participation,
        seed=job.seed,
        evaluate_every=setting.evaluate_every,
        device=device,
        checkpoint=job.scratch(),
        progress=progress,
        on_round=stop,
    )
    return make_record(run, job.experiment, job.scale, job.method)


def make_record(run: Run, experiment: str, scale: str, method: str) -> records.RunRecord:
    """The record of a run: what was run, on what, with which result."""
    settings = {**run.settings, "method": plain(run.method)}
    return records.RunRecord.of(run, experiment, scale, method=method, settings=settings)


def plain(value: Any) -> Any:
    """A method's settings as JSON can hold them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **{f.name: plain(getattr(value, f.name)) for f in fields(value)}}
    return list(value) if isinstance(value, tuple) else value


def reproduce(
    todo: Sequence[Job],
    out: Path | None = None,
    *,
    device: str = "auto",
    budget: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> Iterator[tuple[Job, Path | None]]:
    """Run jobs one after the other and write the record of each as it ends.

    Parameters
    ----------
    todo : sequence of Job
    out : path, optional
        Folder of the records; by default the checkout's ``data/results``.
    device : str
        As for `simulate`.
    budget : float, optional
        Seconds after which no round is begun; an unfinished run is resumed by the next call.
    again : bool
        Run jobs that have a record already.

    Yields
    ------
    job, path
        The record's file; None for a job that was stopped by the budget, which is the last.
    """
    folder = Path(out) if out is not None else data_path("results")
    deadline = None if budget is None else time.monotonic() + budget
    for job in todo:
        path = folder / job.place
        if path.exists() and not again:
            yield job, path
            continue
        if again:
            shutil.rmtree(job.scratch(), ignore_errors=True)
        try:
            if deadline is not None and time.monotonic() > deadline:
                raise OutOfTime
            record = run_job(job, device, deadline, progress)
        except OutOfTime:
            yield job, None
            return
        written = records.write(record, folder)
        shutil.rmtree(job.scratch(), ignore_errors=True)
        yield job, written
