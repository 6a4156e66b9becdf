"""Do records repeat? Runs are made again and set beside their records; and with other arithmetic, on purpose.

A record *repeats* when every number in it comes out to the last digit. That takes the same code, the same versions, the
same instructions (`hetfl_core.numerics`) and the same data. Where one of them is another, rounding is, and training
amplifies it: the result is then another draw from what the seed could have given. How wide that draw is, `vary` finds
out: one seed, several ways to round.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from hetfl_book import experiments, ledger
from hetfl_book.experiments import Job, OutOfTime
from hetfl_book.ledger import RunRecord
from hetfl_book.ledger.arithmetic import ARITHMETIC
from hetfl_core import checks, numerics, records
from hetfl_core.errors import RunError, WrongValue
from hetfl_core.parallel import in_order
from hetfl_core.rng import SERVER, numpy_stream

SAME, WITHIN, DIFFERENT, NOT_RUN = "same bits", "within the spread of seeds", "different", "not run"
FAILED = "failed"
"""The verdicts."""

# --- which records ----------------------------------------------------------------------------------------------------


def can_run(record: RunRecord) -> bool:
    """Whether the run of a record can be made again: its experiment and method are known, its data at hand."""
    setting = experiments.EXPERIMENTS.get(record.experiment)
    known = setting is not None and record.method in setting.methods and record.scale in ("book", "paper")
    return known and experiments.available(experiments.find(record.experiment))


def sample(
    records: Sequence[RunRecord], count: int | None = None, *, seed: int = 0, budget: float | None = None
) -> list[RunRecord]:
    """Draw records: one of each experiment before a second of any, so that many kinds of runs are seen.

    Parameters
    ----------
    records : sequence of RunRecord
    count : int, optional
        How many; all by default.
    seed : int
        The same records and seed give the same sample.
    budget : float, optional
        Seconds for all. Those that took their share of it at most, by their own clocks, are drawn first; then the
        others, cheapest first.

    Raises
    ------
    ValueError
        If `count` is less than 1.
    """
    if count is not None and count < 1:
        raise WrongValue(f"sample must be at least 1, got {count}")
    rng = numpy_stream(seed, SERVER, 0, "verify")
    shuffled = [records[i] for i in rng.permutation(len(records))]
    if budget is None:
        return _one_each(shuffled)[:count]
    share = budget / max(min(count or len(records), len(records)), 1)
    cheap, dear = ([r for r in shuffled if (r.seconds <= share) is wanted] for wanted in (True, False))
    return [*_one_each(cheap), *sorted(dear, key=lambda r: r.seconds)][:count]


def _one_each(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The same records, one of each experiment before a second of any."""
    places: dict[str, Iterator[int]] = {}
    turns = [next(places.setdefault(r.experiment, itertools.count())) for r in records]
    return [records[i] for i in sorted(range(len(records)), key=lambda i: turns[i])]


# --- the same again? --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """What came of running a record again.

    Attributes
    ----------
    record : RunRecord
    again : RunRecord or None
        None where it was not run, or failed.
    verdict : str
        `SAME`: every number of the record to its last digit; `WITHIN`: the main metric is off by at most one standard
        deviation over the seeds of the same runs; `DIFFERENT`: by more, or where fewer than three seeds leave no such
        deviation; `NOT_RUN`; `FAILED`, where the run ended with an error.
    spread : float
        That standard deviation, in the units of `hetfl_book.ledger.value`; NaN with fewer than three seeds.
    why : str
        What differs between then and now, where the numbers do; or why there are none.
    """

    record: RunRecord
    again: RunRecord | None
    verdict: str
    spread: float = math.nan
    why: str = ""

    def row(self) -> dict[str, Any]:
        """A line of the table; accuracies in per cent."""
        metric = main_metric(self.record)
        was = ledger.value(self.record, metric)
        now = ledger.value(self.again, metric) if self.again else math.nan
        return {
            "experiment": self.record.experiment,
            "method": self.record.method,
            "seed": self.record.seed,
            "record": was,
            "again": now,
            "difference": now - was,
            "sd of seeds": self.spread,
            "verdict": self.verdict,
            "why": self.why,
        }


def main_metric(record: RunRecord) -> str:
    """``accuracy``, else ``mse``, else the first metric of a record."""
    return next((name for name in ("accuracy", "mse", *record.metrics) if name in record.metrics), "accuracy")


def same_numbers(a: RunRecord, b: RunRecord) -> bool:
    """Whether two records of a run have equal numbers, to the last digit: metrics, history, clients, but not seconds.

    What only one of them holds (older code wrote fewer columns) is not compared.
    """
    for name in ("metrics", "history", "per_client"):
        x, y = ({k: v for k, v in getattr(r, name).items() if k != "seconds"} for r in (a, b))
        if any(x[key] != y[key] for key in x.keys() & y.keys()):
            return False
    return True


def spread_of_seeds(record: RunRecord, records: Iterable[RunRecord]) -> float:
    """Standard deviation of the main metric over the seeds of the same runs; NaN with fewer than three."""
    metric = main_metric(record)
    alike = {
        r.seed: ledger.value(r, metric)
        for r in records
        if (r.experiment, r.scale, r.method) == (record.experiment, record.scale, record.method)
    }
    return float(np.std(list(alike.values()), ddof=1)) if len(alike) >= 3 else math.nan


def other_conditions(record: RunRecord, again: RunRecord) -> list[str]:
    """What differs between a record and the run made again, besides results: data, settings, instructions, versions."""
    found = []
    if record.federation.get("fingerprint") != again.federation.get("fingerprint"):
        found.append("other data (fingerprint)")
    names = _changed(record.settings, again.settings)
    if names:
        found.append(f"other settings ({', '.join(names)})")
    if other := numerics.what_differs(record.numerics, again.numerics):
        found.append(other)
    for name in record.versions.keys() & again.versions.keys() - {"hetfl-core"}:
        if record.versions[name] != again.versions[name]:
            found.append(f"{name} {record.versions[name]} → {again.versions[name]}")
    for name in ("cpu", "gpu", "threads"):
        if record.hardware.get(name) != again.hardware.get(name):
            found.append(f"{name} {record.hardware.get(name)} → {again.hardware.get(name)}")
    if (record.commit, record.dirty) != (again.commit, again.dirty):
        found.append(f"code {record.revision} → {again.revision}")
    return found


def _changed(a: Any, b: Any, where: str = "") -> list[str]:
    """Names of the settings that both have and that differ."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return [] if a == b else [where]
    deeper = (_changed(a[key], b[key], f"{where}.{key}" if where else key) for key in a if key in b)
    return [name for names in deeper for name in names]


def check(record: RunRecord, again: RunRecord, records: Iterable[RunRecord] = ()) -> Check:
    """Judge a run made again against its record; `records` are those whose seeds give the spread."""
    spread = spread_of_seeds(record, records)
    if same_numbers(record, again):
        return Check(record, again, SAME, spread)
    metric = main_metric(record)
    off = abs(ledger.value(again, metric) - ledger.value(record, metric))
    verdict = WITHIN if off <= spread else DIFFERENT
    why = other_conditions(record, again) or ["nothing that the record states: the run is not determined by its seed"]
    return Check(record, again, verdict, spread, "; ".join(why))


def verify(
    records: Iterable[RunRecord],
    *,
    budget: float | None = None,
    device: str = "auto",
    among: Iterable[RunRecord] = (),
    n_jobs: int = 1,
    progress: bool = False,
) -> Iterator[Check]:
    """Run records again, from their beginning; nothing is written anywhere.

    Parameters
    ----------
    records : iterable of RunRecord
        Such as `can_run`.
    budget : float, optional
        Seconds after which no round is begun; what is then left counts as not run.
    device : str
        As for `simulate`.
    among : iterable of RunRecord
        All records, for the spread of seeds.
    n_jobs : int
        Processes, each of which makes one run at a time; with 1 they are made in this one.
    progress : bool
        Show a bar, a step a record.

    Yields
    ------
    Check
        In the order of `records`. A run that fails keeps no other from being made.
    """
    records, among = list(records), list(among)
    n_jobs = max(1, min(checks.integer("n_jobs", n_jobs, 1), len(records)))
    deadline = None if budget is None else time.monotonic() + budget
    workers = None if n_jobs == 1 else 1
    pieces = [(record, device, deadline, workers) for record in records]
    with tqdm(total=len(records), disable=not progress, desc="verify", unit="record") as bar:
        for record, again in zip(records, in_order(_again, pieces, n_jobs), strict=True):
            bar.update()
            if isinstance(again, RunRecord):
                yield check(record, again, among)
            else:
                yield Check(record, None, NOT_RUN if again is None else FAILED, why=again or "the budget was spent")


def _again(record: RunRecord, device: str, deadline: float | None, workers: int | None) -> RunRecord | str | None:
    """The run of a record made again; what it failed by; or None where time was up."""
    job = Job(record.experiment, record.scale, record.method, record.seed)  # type: ignore[arg-type]
    if deadline is not None and time.monotonic() > deadline:
        return None
    try:
        return experiments.run_job(job, device, deadline, progress=False, resume=False, workers=workers)
    except OutOfTime:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def table(checks: Sequence[Check]) -> pd.DataFrame:
    """One line a record (`Check.row`)."""
    return pd.DataFrame([c.row() for c in checks])


def shown(checks: Sequence[Check]) -> str:
    """The table as text, each reason below it once, by a number."""
    frame = table(checks)
    reasons = {why: number for number, why in enumerate(dict.fromkeys(w for w in frame["why"] if w), 1)}
    frame["why"] = [f"({reasons[why]})" if why else "" for why in frame["why"]]
    text = frame.to_string(index=False, float_format=lambda x: f"{x:.2f}", na_rep="–")
    return "\n".join([text, *([""] if reasons else []), *(f"({number}) {why}" for why, number in reasons.items())])


def summary(checks: Sequence[Check]) -> str:
    """How many of each verdict, in one line."""
    counts = Counter(c.verdict for c in checks)
    told = (SAME, WITHIN, DIFFERENT, NOT_RUN, *([FAILED] if counts[FAILED] else []))
    return f"{len(checks)} records: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in told)


# --- the same seed, rounded otherwise ---------------------------------------------------------------------------------


def varied(job: Job, stack_size: int) -> RunRecord:
    """The record of one run with the instructions of this process and stacks of so many clients at most.

    Its experiment is that of the job below ``arithmetic/``, at scale ``"own"``, so that nothing takes it for a run of
    the paper; its method says how it was computed. The clients one by one are left out.
    """
    record = experiments.run_job(job, "cpu", progress=False, resume=False, stack_size=stack_size)
    return replace(
        record,
        experiment=f"{ARITHMETIC}/{job.experiment}",
        scale="own",
        method=_name(job, stack_size),
        settings={**record.settings, "stack_size": stack_size, "of": {"scale": job.scale, "method": job.method}},
        per_client={},
    )


def vary(job: Job, modes: Sequence[numerics.Mode], stack_sizes: Sequence[int], out: Path) -> Iterator[Path]:
    """Run a job with each of these instructions and sizes of stacks, each in a process of its own; records go to `out`.

    A record that is there already is not made again.

    Yields
    ------
    Path
        Of each record. What a CPU does not have, it cannot compute with: then two ways may be one and the same.

    Raises
    ------
    RuntimeError
        If a process failed, with its last words.
    """
    for stack_size, mode in itertools.product(stack_sizes, modes):
        environment = {k: v for k, v in os.environ.items() if k not in numerics.settings("portable")}
        environment |= numerics.settings(mode)
        arguments = [job.experiment, job.scale, job.method, str(job.seed), str(stack_size), str(out)]
        done = subprocess.run(
            [sys.executable, "-m", "hetfl_book.verification", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RunError(f"{job} with {mode} and stacks of {stack_size}: {done.stderr.strip()[-500:]}")
        yield Path(done.stdout.strip().splitlines()[-1])


def _name(job: Job, stack_size: int) -> str:
    """What the record of a varied run calls its method."""
    return f"{job.method}, {numerics.in_effect()['isa']}, stacks of {stack_size}"


def _main(arguments: Sequence[str]) -> None:
    """What a child of `vary` does."""
    experiment, scale, method, seed, stack_size, out = arguments
    job = Job(experiment, scale, method, int(seed))  # type: ignore[arg-type]
    run = (f"{ARITHMETIC}/{experiment}", "own", _name(job, int(stack_size)), int(seed))
    known = records.find(out, *run)
    print(known.path if known else ledger.write(varied(job, int(stack_size)), out))


if __name__ == "__main__":
    _main(sys.argv[1:])
