"""Records made elsewhere: what is taken in with the committed ones, what is refused, and what a busy machine means."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from small import small_experiments
from test_records import checkout  # noqa: F401

from hetfl_book import collecting, experiments, ledger
from hetfl_book.collecting import collect, objection, overview
from hetfl_book.experiments import jobs, reproduce
from hetfl_core import cli, files, records
from hetfl_core.records import provenance

COMMIT = "a" * 40
AMENDED = {
    "20557c88d74ceb186d054a59e94d9829d2a18c4c",
    "89af040693abb0f97aed577b655bb581eb5d5492",
    "b1a26fcc0348cde19e6f84803a81e2eba917eb89",
    "ee2e2a82366b1b474fa1446b7f39733f2ff3920a",
    "f9144716e0623d1c5a348c00de001a9fa92e7235",
}
"""Commits of records that were amended after these had run: their code is in the history, but not under this name."""


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A folder with the two records of a small experiment, whose code is that of a commit in the history."""
    small_experiments(monkeypatch, tmp_path, {"one": {}}, rounds=2)
    monkeypatch.setattr(provenance, "code_revision", lambda: (COMMIT, False))
    monkeypatch.setattr(provenance, "history", lambda: frozenset([COMMIT]))
    list(reproduce(jobs("tests/one", "paper", 1), tmp_path / "new", progress=False))
    return tmp_path / "new"


def one(fresh, **changes):
    """Change one record of a folder; what it is then."""
    record = ledger.load(fresh)[0]
    changed = replace(record, **changes)
    (fresh / record.relative_path).unlink()
    records.write(changed, fresh)
    return changed


def test_records_are_checked_marked_taken_in_and_packed(fresh, tmp_path):
    kept = tmp_path / "kept"
    taken = collect(fresh, kept, busy=True)
    assert [r.method for r in taken] == ["FLIC-HL", "Local"]
    assert [p.name for p in kept.rglob("*.json*")] == ["one.jsonl"]
    there = ledger.load(kept)
    assert all(r.busy for r in there)
    idle = [replace(r, hardware={k: v for k, v in r.hardware.items() if k != "busy"}) for r in there]
    assert idle == ledger.load(fresh), "the mark is the only difference, and the folder stays as it was"
    assert overview(taken, kept) == ["tests/one paper: 2 records taken in, 2 of its 6 runs are there"]
    assert collect(fresh, kept) == [], "what is there already is left alone"
    assert all(r.busy for r in ledger.load(kept))


def test_records_of_some_experiments_alone(fresh, tmp_path):
    assert len(collect(fresh, tmp_path / "kept", only=["tests/one"])) == 2
    with pytest.raises(ValueError, match="has no records of tests/two"):
        collect(fresh, tmp_path / "kept", only=["tests/one", "tests/two"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dirty": True}, "its code had changes that were not committed"),
        ({"dirty": None}, "its commit is not known"),
        ({"commit": "b" * 40}, "its commit bbbbbbbbbb is not in the history"),
        ({"experiment": "tests/none"}, "there is no such experiment"),
        ({"method": "FLIC-H"}, "the experiment has no such method"),
        ({"scale": "own"}, "no experiment is run at scale 'own'"),
        ({"settings": {"rounds": 3}}, "the experiment runs the method with other settings now"),
        ({"settings": {"method": {"local_epochs": 7}}}, "the experiment runs the method with other settings now"),
        ({"experiment": "headtohead/heart-half"}, "the head to head has no such federation"),
        ({"experiment": "headtohead/heart-all"}, "the rules of the head to head are of version"),
        ({"experiment": "headtohead/heart-all", "method": "FLIC-H"}, "the head to head has no such method"),
        ({"experiment": "arithmetic/tests/one"}, "its settings do not say which run was computed otherwise"),
    ],
)
def test_one_record_that_is_refused_keeps_all_out(fresh, tmp_path, changes, reason):
    settings = ledger.load(fresh)[0].settings
    changes = {**changes, **({"settings": settings | changes["settings"]} if "settings" in changes else {})}
    changed = one(fresh, **changes)
    with pytest.raises(ValueError, match=f"nothing was taken from .*1 records are refused.\n{reason}") as caught:
        collect(fresh, tmp_path / "kept")
    assert str(caught.value).endswith(f": {changed.relative_path}")
    assert not (tmp_path / "kept").exists()


def test_without_the_older_commits_nothing_is_taken(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "history", lambda: None)
    with pytest.raises(ValueError, match="no git clone with all commits"):
        collect(fresh, tmp_path / "kept")


def test_another_record_of_a_run_replaces_one_only_if_asked(fresh, tmp_path):
    kept = tmp_path / "kept"
    collect(fresh, kept)
    changed = one(fresh, metrics={"accuracy": 0.123})
    with pytest.raises(
        ValueError, match=rf"another record of the run is there, which --again .*{changed.method}-seed0"
    ):
        collect(fresh, kept)
    assert [r.metrics for r in collect(fresh, kept, again=True)] == [{"accuracy": 0.123}]
    assert records.find(kept, "tests/one", "paper", changed.method, 0).metrics == {"accuracy": 0.123}


def test_a_record_of_older_settings_is_replaced(fresh, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    collect(fresh, kept)
    (now,) = (r for r in ledger.load(kept) if r.method == "Local")
    old = now.settings["method"] | {"local_epochs": 7}
    records.write(replace(now, settings=now.settings | {"method": old}, metrics={"accuracy": 0.5}), kept)
    assert [r.method for r in collect(fresh, kept)] == ["Local"]


def test_the_command_takes_what_reproduce_wrote(fresh, tmp_path, monkeypatch, capsys):
    """By default from where it writes, which is no folder of the checkout."""
    monkeypatch.setenv("HETFL_RESULTS", str(fresh))
    monkeypatch.setattr(collecting, "kept_results", lambda: tmp_path / "kept")
    monkeypatch.setattr(sys, "argv", ["hetfl", "collect", "--busy"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert capsys.readouterr().out == "tests/one paper: 2 records taken in, 2 of its 6 runs are there\n"
    assert all(r.busy for r in ledger.load(tmp_path / "kept"))
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert capsys.readouterr().out == f"{fresh} has no record that is not in data/results\n"


def test_new_records_go_outside_of_the_repository_unless_a_folder_is_named(fresh, tmp_path, monkeypatch):
    monkeypatch.delenv("HETFL_RESULTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    assert not files.results_home().is_relative_to(files.kept_results().parents[1])
    monkeypatch.setenv("HETFL_RESULTS", str(tmp_path / "mine"))
    [(_, path)] = reproduce(jobs("tests/one", "book", 1, ["Local"]), progress=False)
    assert path == tmp_path / "mine" / "tests/one/book/Local-seed0.json"


# --- a busy machine ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "nice"), reason="the system has no priorities of this kind")
def test_what_runs_at_a_lowered_priority_says_so():
    script = "import os; os.nice(5); from hetfl_core.records import environment; print(environment()['hardware'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "'busy': True" in done.stdout
    if os.nice(0) == 0:
        assert "busy" not in provenance.environment()["hardware"]


def test_seconds_of_a_busy_machine_enter_no_figure_of_time(fresh):
    run = ledger.load(fresh)[0]
    busy = replace(run, hardware=run.hardware | {"busy": True})
    assert (run.timing, ledger.value(run, "seconds")) == (run.seconds, run.metrics["seconds"])
    assert str(busy.timing) == str(ledger.value(busy, "seconds")) == "nan"
    assert ledger.value(busy, "accuracy") == ledger.value(run, "accuracy")


# --- the records that are committed -----------------------------------------------------------------------------------


def test_committed_records_are_of_clean_code_in_the_history():
    found = ledger.load()
    assert [r.relative_path for r in found if r.dirty is not False] == []
    history = provenance.history()
    if history is None:
        pytest.skip("no git clone with all commits")
    assert {r.commit for r in found} - history - AMENDED == set()


def test_history_is_seen_where_the_clone_has_it(checkout, monkeypatch):  # noqa: F811
    commit, _ = provenance.code_revision.__wrapped__()
    assert provenance.history() == {commit}
    monkeypatch.setattr(provenance, "__file__", str(checkout / "site" / "hetfl_core" / "records" / "provenance.py"))
    assert provenance.history() is None


def test_the_records_that_are_committed_would_be_taken_in_again():
    """A few of each kind, whatever commit they are of."""
    found = ledger.load(experiment="hyfem/quadrants-published") + ledger.load(experiment="headtohead/heart-tenth")
    found += ledger.load(experiment="arithmetic/flic/toy-noisy")
    assert found
    assert {objection(r, {r.commit}) for r in found} == {""}
    assert experiments.outdated(found[0]) is False
