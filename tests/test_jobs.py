"""Jobs of `hetfl reproduce` and `hetfl verify` in processes: the same records, failures and interruptions."""

import os
import signal
import sys
import time
from dataclasses import replace

import pytest
from filelock import FileLock
from forked import Forked
from small import small_experiments

from hetfl_book import experiments, ledger, verification
from hetfl_book.experiments import Job, jobs, reproduce, run_job
from hetfl_book.verification import FAILED, SAME, verify
from hetfl_core import records

NAME = "fedcma/four-gaussians"
"""An experiment that other processes know, too; it needs no files."""


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("HETFL_CHECKPOINTS", str(tmp_path / "checkpoints"))
    return tmp_path


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")


def numbers(record):
    kept = {name: x for name, x in record.metrics.items() if name != "seconds"}
    return kept, {name: x for name, x in record.history.items() if name != "seconds"}, record.per_client


@forks
def test_records_of_two_processes_are_those_of_one_and_a_failure_loses_no_other(scratch):
    """Of three jobs the second cannot be: a folder lies where its record belongs."""
    todo, out = jobs(NAME, "book", 3, ["Local"]), scratch / "out"
    blocked = out / todo[1].relative_path
    blocked.mkdir(parents=True)
    arguments = ["--scale", "book", "--seeds", "3", "--method", "Local", "--jobs", "2", "--out", str(out)]
    done = Forked(scratch, "reproduce", NAME, *arguments)
    stdout, stderr = done.communicate(timeout=300)
    assert done.returncode == 1, stderr
    told = [line for line in stdout.splitlines() if line.startswith(NAME)]
    assert told == [f"{NAME} book Local seed {job.seed}: {out / job.relative_path}" for job in (todo[0], todo[2])]
    assert f"{NAME} book Local seed 1 failed: Traceback (most recent call last)" in stderr
    assert "round" not in stderr.split(NAME)[0], "one bar, of the jobs"
    assert stderr.rstrip().splitlines()[-1].startswith("hetfl: "), "and the message"
    blocked.rmdir()
    made = ledger.load(out)
    assert [record.hardware["jobs"] for record in made] == [2, 2]
    alone = run_job(todo[0], progress=False, resume=False)
    assert numbers(made[0]) == numbers(alone)
    assert "jobs" not in alone.hardware
    records.pack(out)
    packed = ledger.load(out)
    assert packed == made
    assert [check.verdict for check in verify(packed, n_jobs=2)] == [SAME, SAME]


@forks
def test_ctrl_c_stops_all_processes_and_what_was_begun_can_be_claimed(scratch):
    todo, out = jobs(NAME, "paper", 4, ["Fed-CMA, marginal"]), scratch / "out"
    arguments = ["--scale", "paper", "--seeds", "4", "--method", "Fed-CMA, marginal", "--jobs", "2", "--out", str(out)]
    process, begun = Forked(scratch, "reproduce", NAME, *arguments), time.monotonic()
    while sum((job.scratch() / "state.safetensors").exists() for job in todo) < 2:
        assert process.poll() is None, process.communicate(timeout=0)
        assert time.monotonic() - begun < 300
        time.sleep(0.05)
    os.kill(-process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "hetfl: stopped; finished runs are written; the same command goes on where this one was stopped" in said
    left = time.monotonic() + 60
    while time.monotonic() < left and _alive(process.pid):
        time.sleep(0.05)
    assert not _alive(process.pid), "no process is left of its group"
    for job in todo:
        FileLock(f"{job.scratch()}.lock", timeout=0).acquire().lock.release()
    whole = ledger.load(out) if out.exists() else []
    assert {record.experiment for record in whole} <= {NAME}, "what is written can be read"


def _alive(group):
    try:
        os.kill(-group, 0)
    except ProcessLookupError:
        return False
    return True


# --- in one process, on small experiments -----------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch, tmp_path):
    small_experiments(monkeypatch, tmp_path, {"one": {}}, rounds=2)


def failing(monkeypatch, *seeds):
    """Jobs with these seeds raise."""
    real = experiments.run_job

    def sometimes(job, *arguments, **options):
        if job.seed in seeds:
            raise ZeroDivisionError(f"with seed {job.seed}")
        return real(job, *arguments, **options)

    monkeypatch.setattr(experiments, "run_job", sometimes)


def test_a_job_that_fails_is_told_of_when_the_others_are_done(small, tmp_path, monkeypatch):
    todo = jobs("tests/one", "book", 4, ["Local"])
    failing(monkeypatch, 0, 2)
    done = []
    with pytest.raises(ZeroDivisionError, match="with seed 0") as error:
        done.extend(job for job, _ in reproduce(todo, tmp_path, progress=False))
    assert done == [todo[1], todo[3]]
    assert error.value.__notes__ == [
        f"tests/one book Local seed {seed} failed: ZeroDivisionError: with seed {seed}" for seed in (0, 2)
    ]


def test_a_run_that_cannot_be_made_again_is_a_verdict(small, tmp_path, monkeypatch):
    list(reproduce(jobs("tests/one", "paper", 2, ["Local"]), tmp_path, progress=False))
    stored = ledger.load(tmp_path)
    failing(monkeypatch, 0)
    found = list(verify(stored))
    assert [(check.verdict, check.why) for check in found] == [(FAILED, "ZeroDivisionError: with seed 0"), (SAME, "")]
    assert verification.summary(found).endswith(
        "1 same bits, 0 within the spread of seeds, 0 different, 0 not run, 1 failed"
    )
    monkeypatch.setattr(sys, "argv", ["hetfl", "verify", "--records", str(tmp_path), "--jobs", "1"])
    from hetfl_core import cli

    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1


def test_one_job_is_run_in_this_process(small, tmp_path, monkeypatch):
    """Of which other processes would not know the experiment."""
    [job] = jobs("tests/one", "book", 1, ["Local"])
    [(_, path)] = reproduce([job], tmp_path, progress=False, n_jobs=8)
    record = ledger.read(path)
    assert "jobs" not in record.hardware
    assert [check.verdict for check in verify([record], n_jobs=8)] == [SAME]
    assert list(reproduce([], tmp_path, n_jobs=2)) == list(verify([], n_jobs=2)) == []


@pytest.mark.parametrize("call", [lambda n: reproduce([], n_jobs=n), lambda n: verify([], n_jobs=n)])
def test_numbers_of_processes_are_checked(call):
    with pytest.raises(ValueError, match="n_jobs must be a whole number of at least 1, got 0"):
        list(call(0))


class Unsendable(Exception):
    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


def test_an_error_that_cannot_be_sent_keeps_its_words():
    assert repr(experiments._portable(KeyError("a"))) == "KeyError('a')"
    error = experiments._portable(Unsendable("this", "that"))
    assert (type(error), str(error)) == (RuntimeError, "Unsendable: this: that")


def test_seconds_of_jobs_side_by_side_are_not_those_of_one_alone(small):
    from hetfl_book.ledger.judging import _on_different_machines

    alone = [run_job(Job("tests/one", "book", "Local", 0), progress=False, resume=False)]
    beside = [replace(alone[0], hardware={**alone[0].hardware, "jobs": 2})]
    assert _on_different_machines(alone, beside) == {0}
    assert _on_different_machines(beside, beside) == set()
