"""Files of records: one an experiment and fresh ones beside them, packed, damaged, misplaced, compressed, renamed."""

from __future__ import annotations

import copy
import json
import lzma
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
from test_records import left_behind, made

from hetfl_core import cli, files
from hetfl_core.engine.evaluation import Measure
from hetfl_core.engine.run import columns, figures
from hetfl_core.methods import CATALOGUE
from hetfl_core.records import find, load, pack, read, renaming, storage, to_json, write
from hetfl_core.records import record as records
from hetfl_core.records.renaming import Renaming

PLACE = "flic/bci-common40.jsonl"
FRESH = "flic/bci-common40/paper/FLIC-HL-seed0.json"
LINE = storage.to_line(made())


def packed(folder: Path, *lines: str | bytes) -> Path:
    """A packed file of the usual experiment."""
    path = folder / PLACE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(x if isinstance(x, bytes) else x.encode() for x in lines))
    return path


# --- packing ----------------------------------------------------------------------------------------------------------


def test_packing_makes_one_sorted_file_an_experiment_and_keeps_every_field(tmp_path):
    runs = [made(seed=s, method=m, scale=c) for s in (10, 2) for m in ("Local", "FLIC-HL") for c in ("paper", "book")]
    runs += [made(experiment="flic/bci-common40/deeper"), made(experiment="alone")]
    for run in runs:
        write(run, tmp_path)
    before = load(tmp_path)
    assert (
        pack(tmp_path, check=True)
        == pack(tmp_path)
        == [tmp_path / p for p in ("alone.jsonl", "flic/bci-common40/deeper.jsonl", PLACE)]
    )
    assert left_behind(tmp_path) == ["alone.jsonl", "bci-common40.jsonl", "deeper.jsonl"]
    assert not (tmp_path / FRESH).parent.exists(), "no folder is left empty"
    assert load(tmp_path) == before
    contents = [json.loads(line) for line in (tmp_path / PLACE).read_text().splitlines()]
    order = [(c["scale"], c["method"], c["seed"]) for c in contents]
    assert order == sorted(order)
    assert len(order) == 8
    assert pack(tmp_path) == pack(tmp_path, check=True) == [], "nothing is left to do"


def test_a_results_folder_is_made_with_those_above_it(tmp_path):
    write(made(), tmp_path / "new" / "results")
    assert load(tmp_path / "new" / "results") == [made()]


def test_a_fresh_record_counts_instead_of_the_packed_one_and_replaces_it(tmp_path):
    for seed in (0, 1):
        write(made(seed=seed), tmp_path)
    pack(tmp_path)
    write(made(seconds=99.0), tmp_path)
    assert [r.seconds for r in load(tmp_path)] == [99.0, 12.5]
    assert find(tmp_path, made().experiment, "paper", "FLIC-HL", 0).seconds == 99.0
    assert pack(tmp_path, check=True) == [tmp_path / PLACE]
    assert (tmp_path / FRESH).exists(), "a check writes nothing"
    pack(tmp_path)
    assert [r.seconds for r in load(tmp_path)] == [99.0, 12.5]
    assert {r.path for r in load(tmp_path)} == {tmp_path / PLACE}


def test_packing_repairs_what_a_merge_left(tmp_path):
    """Two branches added seeds, one of them both: another order, the same line twice, no newline at the end."""
    lines = [storage.to_line(made(seed=seed)) for seed in range(3)]
    path = packed(tmp_path, lines[2], lines[0], lines[1], lines[2].rstrip("\n"))
    with pytest.raises(ValueError, match=r"line 4, is of the same run as line 1, .*FLIC-HL-seed2"):
        load(tmp_path)
    assert pack(tmp_path) == [path]
    assert path.read_text() == "".join(lines)
    other = packed(tmp_path, lines[0], storage.to_line(made(seconds=99.0))).read_bytes()
    with pytest.raises(ValueError, match="line 2, is of the same run as line 1"):
        pack(tmp_path)
    assert path.read_bytes() == other, "which of two different ones is right, it cannot know"


def test_one_experiment_is_read_from_its_file_alone(tmp_path, monkeypatch):
    for experiment in ("flic/bci-common40", "flic/toy-noisy", "flic/bci-common40/deeper"):
        write(made(experiment=experiment), tmp_path)
    pack(tmp_path)
    opened, real = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path) or real(path))
    assert len(load(tmp_path, experiment="flic/bci-common40")) == 1
    assert opened == [tmp_path / PLACE]
    assert load(tmp_path, experiment="../" + tmp_path.name) == load(tmp_path, experiment="/etc/passwd") == []


def test_finding_reads_a_packed_file_once_until_it_changes(tmp_path, monkeypatch):
    for seed in range(3):
        write(made(seed=seed), tmp_path)
    pack(tmp_path)
    reads, real = [], storage._lines
    monkeypatch.setattr(storage, "_lines", lambda path: (path.exists() and reads.append(path)) or real(path))
    run = ("flic/bci-common40", "paper", "FLIC-HL")
    assert [find(tmp_path, *run, seed).seed for seed in (0, 1, 2)] == [0, 1, 2]
    assert find(tmp_path, *run, 3) is None
    assert reads == [tmp_path / PLACE]
    write(made(seed=3), tmp_path)
    pack(tmp_path)
    assert find(tmp_path, *run, 3).seed == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("moment", range(8))
def test_a_kill_while_packing_loses_nothing(tmp_path, monkeypatch, moment):
    """SIGKILL before the first, second … replacing or removing of a file."""
    for experiment in ("flic/a", "flic/b"):
        for seed in range(2):
            write(made(experiment=experiment, seed=seed), tmp_path)
    before, steps = load(tmp_path), iter(range(9))

    def or_die(call):
        return lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL) if next(steps) == moment else call(*a, **k)

    child = os.fork()
    if child == 0:
        os.replace, Path.unlink = or_die(os.replace), or_die(Path.unlink)
        pack(tmp_path)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (-signal.SIGKILL if moment < 6 else 0), "two files written, four removed"
    assert load(tmp_path) == before
    pack(tmp_path)
    assert load(tmp_path) == before
    assert left_behind(tmp_path) == ["a.jsonl", "b.jsonl"]


def test_a_full_disk_keeps_the_fresh_records(tmp_path, monkeypatch):
    write(made(), tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match=r"cannot write .*bci-common40\.jsonl"):
            pack(tmp_path)
    assert left_behind(tmp_path) == ["FLIC-HL-seed0.json"]


def _write_many(folder, method):
    for seed in range(40):
        write(made(method=method, seed=seed), folder)


def test_packing_beside_writers_and_readers_loses_nothing(tmp_path):
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, name)) for name in ("A", "B")]
    for writer in writers:
        writer.start()
    most = 0
    while any(w.is_alive() for w in writers):
        if (tmp_path / "flic").exists():
            pack(tmp_path)
            seen = len(load(tmp_path))
            assert seen >= most, "what was there once is always there"
            most = seen
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    pack(tmp_path)
    assert {(r.method, r.seed) for r in load(tmp_path)} == {(m, s) for m in "AB" for s in range(40)}
    assert left_behind(tmp_path) == ["bci-common40.jsonl"]


@pytest.mark.nightly
def test_a_record_written_while_another_process_packs_is_not_removed(tmp_path, monkeypatch):
    """The newer one of the same run waits until the older one is packed and gone."""
    write(made(), tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_records import made; from hetfl_core import records; "
    )
    script += "print('begin', flush=True); records.write(made(seconds=99.0), sys.argv[2])"
    real = storage.write_atomically

    def late(*arguments):
        other.append(
            subprocess.Popen(
                [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)], stdout=subprocess.PIPE
            )
        )
        assert other[0].stdout.readline() == b"begin\n"
        time.sleep(0.2)
        real(*arguments)

    other = []
    monkeypatch.setattr(storage, "write_atomically", late)
    pack(tmp_path)
    with other[0] as writer:
        assert writer.wait() == 0
    assert [r.seconds for r in load(tmp_path)] == [99.0]
    assert [json.loads(x)["seconds"] for x in (tmp_path / PLACE).read_text().splitlines()] == [12.5]


def test_what_reading_finds_gone_it_finds_packed(tmp_path, monkeypatch):
    """Another process packs between the listing of the fresh files and their reading."""
    write(made(), tmp_path)
    monkeypatch.undo()
    real = storage._lines

    def late(path):
        monkeypatch.setattr(storage, "_lines", real)
        pack(tmp_path)
        return real(path)

    monkeypatch.setattr(storage, "_lines", late)
    assert load(tmp_path) == [made()]


# --- what is refused --------------------------------------------------------------------------------------------------

DEEP = '{"a":' * 3000 + "1" + "}" * 3000
DEEPER = '{"a":' * 60 + "1" + "}" * 60
SPOILED = {
    "empty line": ("\n", "Expecting value"),
    "cut": (LINE[:300], "not a run record"),
    "binary": (b"\x00\xff\xfe\x81" * 9, "not a run record"),
    "a conflict": ("<<<<<<< ours\n", "Expecting value"),
    "a list": ("[]\n", "one JSON object, got list"),
    "other experiment": (storage.to_line(made(experiment="flic/other", seed=1)), "holds what belongs at flic/other/"),
    "experiment in other case": (storage.to_line(made(experiment="FLIC/bci-common40", seed=1)), "belongs at FLIC/"),
    "same run": (LINE, "is of the same run as line 1"),
    "history of text": (LINE.replace("[1.5,0.25]", '["1.5","0.25"]'), r"'loss'\] must hold numbers or nulls, got '1"),
    "history of truth": (LINE.replace("[1.5,0.25]", "[true,0.25]"), "numbers or nulls, got True"),
    "nested history": (LINE.replace("[1.5,0.25]", "[[1.5],0.25]"), r"numbers or nulls, got \[1.5\]"),
    "metric of text": (LINE.replace(":12345", ':"12345"'), "number or null, got '12345'"),
    "endless metric": (LINE.replace(":12345", ":1e999"), "finite number, got inf"),
    "no time": (LINE.replace('"seconds":12.5', '"seconds":NaN'), "seconds must be a finite number"),
    "key twice": (LINE.replace('"seed":0', '"seed":1,"seed":2'), "stands twice in one object"),
    "nested without end": (LINE.replace('"rounds":50', f'"rounds":{DEEP}'), "nested"),
    "nested deep": (LINE.replace('"rounds":50', f'"rounds":{DEEPER}'), "50-fold"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOILED)
def test_a_spoiled_line_is_refused_with_its_file_and_number(tmp_path, kind):
    text, message = SPOILED[kind]
    assert text == LINE or text != LINE
    path = packed(tmp_path, LINE, text)
    for call in (
        load,
        lambda folder: find(folder, "flic/bci-common40", "paper", "FLIC-HL", 0),
        *([] if kind == "same run" else [pack]),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            call(tmp_path)
        assert f"{PLACE}, line 2," in str(caught.value)
    assert path.read_bytes().startswith(LINE.encode())


@pytest.mark.parametrize(
    "kind", [k for k in SPOILED if k not in ("same run", "other experiment", "experiment in other case")]
)
def test_a_spoiled_file_of_one_run_is_refused_by_name(tmp_path, kind):
    text, message = SPOILED[kind]
    path = tmp_path / FRESH
    path.parent.mkdir(parents=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for call in (load, pack, lambda folder: read(path)):
        with pytest.raises(ValueError, match=message) as caught:
            call(tmp_path)
        assert "FLIC-HL-seed0.json" in str(caught.value)


@pytest.mark.parametrize(
    "place",
    [
        "flic/bci-common40/paper/FLIC-HL-seed7.json",
        "flic/bci-common40/paper/Local-seed0.json",
        "flic/bci-common40/book/FLIC-HL-seed0.json",
        "flic/toy-noisy/paper/FLIC-HL-seed0.json",
        "flic/bci-common40/paper/flic-hl-seed0.json",
        "flic/bci-common40/paper/FLIC-HL-seed0.JSON",
        "flic/bci-common40/paper/FLIC-HL-seed00.json",
        "record.json",
    ],
)
def test_a_record_that_lies_at_another_place_is_refused(tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(made()))
    with pytest.raises(ValueError, match=f"{path.name} holds what belongs at {FRESH}: mend or remove it"):
        load(tmp_path)
    assert read(path) == made(), "by itself it is a record"


@pytest.mark.parametrize(
    "place", ["flic/toy-noisy.jsonl", "FLIC/bci-common40.jsonl", "flic/bci-common40.JSONL", "bci-common40.jsonl"]
)
def test_a_packed_file_that_lies_at_another_place_is_refused(tmp_path, place):
    packed(tmp_path, LINE).rename(tmp_path / "moved")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / "moved").rename(tmp_path / place)
    with pytest.raises(ValueError, match=r"line 1, holds what belongs at flic/bci-common40/"):
        load(tmp_path)


def test_an_empty_packed_file_is_refused(tmp_path):
    packed(tmp_path)
    for call in (load, pack):
        with pytest.raises(ValueError, match=r"bci-common40\.jsonl is empty"):
            call(tmp_path)


def test_links_are_followed_but_in_no_circle(tmp_path):
    write(made(), tmp_path / "elsewhere")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "flic").symlink_to(tmp_path / "elsewhere" / "flic")
    (tmp_path / "elsewhere" / "flic" / "loop").symlink_to(tmp_path / "elsewhere" / "flic")
    (tmp_path / "results" / "self").symlink_to("self")
    assert load(tmp_path / "results") == [made()]
    (tmp_path / "results" / "gone.json").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"gone\.json"):
        load(tmp_path / "results")


def test_what_is_hidden_or_no_record_by_name_is_left_alone(tmp_path):
    write(made(), tmp_path)
    for name in (".ipynb_checkpoints/a.json", "flic/._FLIC-HL-seed0.json", "README.md", "flic/.b.json.0-1-.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("something else")
    assert load(tmp_path) == [made()]
    pack(tmp_path)
    assert (tmp_path / "README.md").exists()


def test_a_file_that_the_system_refuses_is_named(tmp_path, monkeypatch):
    packed(tmp_path, LINE)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError, match=r"bci-common40\.jsonl"):
        load(tmp_path)


# --- compressed, and by older names -----------------------------------------------------------------------------------


def test_compressed_files_are_read_and_what_is_beside_them_counts(tmp_path):
    path = packed(tmp_path, LINE, storage.to_line(made(seed=1)))
    (tmp_path / f"{PLACE}.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    assert [r.seed for r in load(tmp_path)] == [r.seed for r in load(tmp_path, made().experiment)] == [0, 1]
    assert find(tmp_path, made().experiment, "paper", "FLIC-HL", 1).seed == 1
    write(made(seconds=99.0), tmp_path)
    assert [r.seconds for r in load(tmp_path)] == [99.0, 12.5]
    whole = (tmp_path / f"{PLACE}.xz").read_bytes()
    for spoiled in (whole[:-9], b"nothing", b""):
        (tmp_path / f"{PLACE}.xz").write_bytes(spoiled)
        with pytest.raises(ValueError, match=r"bci-common40\.jsonl\.xz is (not a file of run records|empty)"):
            load(tmp_path)


def renamed(monkeypatch, *steps: Renaming) -> int:
    """The newest format where names change in these further steps."""
    steps = (*renaming.RENAMED, *steps)
    monkeypatch.setattr(renaming, "RENAMED", steps)
    monkeypatch.setattr(records, "FORMAT", len(steps) + 1)
    return len(steps) + 1


def test_older_names_are_understood_and_packing_writes_the_new_ones(tmp_path, monkeypatch):
    method = {"class": "FLIC", "lr": 0.1, "phi": {"class": "MLP", "alpha": 1, "optimiser": "sgd"}, "alpha": 2}
    old = made(
        settings={"method": method, "stages": [{"class": "Stage", "optimiser": "adam"}]},
        federation={"name": "x", "info": {"settings": {"dealing": "iid"}}},
        metrics={"accuracy": 0.5, "server_accuracy": 0.25},
        history={"round": [0], "loss": [1.5]},
        per_client={"client": ["a"], "loss": [1.5]},
    )
    write(old, tmp_path)
    packed(tmp_path, storage.to_line(replace(old, seed=1)))
    first = Renaming(
        keys={"optimiser": "optimiser2", "FLIC.alpha": "mu", "dealing": "partition"},
        values={"class": {"FLIC": "Flic"}, "optimiser": {"sgd": "SGD"}},
        columns={"loss": "ce", "server_accuracy": "accuracy_server"},
    )
    newest = renamed(monkeypatch, first, Renaming(keys={"optimiser2": "optimizer"}))
    for _ in range(2):
        for r in load(tmp_path):
            assert r.format == newest
            assert r.settings["method"] == {
                "class": "Flic", "lr": 0.1, "phi": {"class": "MLP", "alpha": 1, "optimizer": "SGD"}, "mu": 2,
            }  # fmt: skip
            assert list(r.settings["method"]) == ["class", "lr", "phi", "mu"], "in their order"
            assert r.settings["stages"] == [{"class": "Stage", "optimizer": "adam"}]
            assert r.federation["info"] == {"settings": {"partition": "iid"}}
            assert r.metrics == {"accuracy": 0.5, "accuracy_server": 0.25}
            assert (r.history, r.per_client) == ({"round": [0], "ce": [1.5]}, {"client": ["a"], "ce": [1.5]})
            assert r.relative_path == FRESH.replace("seed0", f"seed{r.seed}")
        pack(tmp_path)
    assert (tmp_path / PLACE).read_text().count(f'"format":{newest}') == 2
    assert "optimiser" not in (tmp_path / PLACE).read_text()


@pytest.mark.parametrize("step", renaming.RENAMED)
def test_settings_of_older_records_have_the_names_that_methods_have_now(step):
    known = {type(method).__name__: method for method in CATALOGUE.values()}
    every = {f.name for method in known.values() for f in fields(method)}
    for old, new in step.keys.items():
        kind, _, own = old.rpartition(".")
        kind = kind.removeprefix("Guarded")
        there = {f.name for f in fields(known[kind])} if kind else every
        assert (new in there, own in there) == (True, False), old


def test_a_setting_goes_through_all_the_steps_since_its_record_was_written():
    old = {"class": "FedProx", "mu": 0.5, "optimiser": "sgd", "first_weights": "own"}
    content = {"format": 1, "settings": {"method": old}, "federation": {"mu": 3}}
    now = {"class": "FedProx", "term_weight": 0.5, "optimizer": "sgd", "init": "own"}
    newest = len(renaming.RENAMED) + 1
    assert renaming.translated(content) == {"format": newest, "settings": {"method": now}, "federation": {"mu": 3}}
    old = {"class": "HyFEM", "mu_extractors": 0.5, "resets": True, "norms": True}
    now = {"class": "HyFEM", "extractor_weight": 0.5, "reset": True, "penalty": "norm"}
    assert renaming.translated({"format": 1, "settings": old}) == {"format": newest, "settings": now}


@pytest.mark.parametrize("form", [0, -1, records.FORMAT, 99, 1.0, True, "1", None])
def test_what_has_none_of_the_older_formats_is_left_as_it_is(form):
    content = {"format": form, "metrics": {"test_accuracy": 0.5}}
    assert renaming.translated(content) == content
    assert renaming.translated({**content, "format": 1}) == {"format": records.FORMAT, "metrics": {"accuracy": 0.5}}


def test_a_setting_is_found_by_any_of_its_old_names(monkeypatch):
    """Step after step; a name of the class goes before one of its parent, and that before one of all."""
    parent = type("Parent", (), {})
    child = type("Child", (parent,), {})
    first = Renaming(keys={"a": "b", "Parent.a": "p", "Child.x": "z", "Parent.x": "y"})
    monkeypatch.setattr(
        renaming, "RENAMED", (first, Renaming(keys={"b": "c", "Parent.y": "v", "z": "w"}, values={"y": {3: True}}))
    )
    found = {name: renaming.setting(parent, name, 3) for name in "axn"}
    assert found == {"a": ("p", 3), "x": ("v", True), "n": ("n", 3)}
    assert [renaming.setting(child, name, 0) for name in "ax"] == [("p", 0), ("w", 0)]
    assert renaming.setting(object, "a", "s") == ("c", "s")


def test_figures_of_older_records_are_called_as_runs_call_them_now():
    second = renaming.RENAMED[1]
    kinds = {main: task for task, main in (("classification", "accuracy"), ("regression", "mse"))}
    for old, new in second.columns.items():
        main = next(main for main in kinds if new.endswith(main))
        now = [*figures(kinds[main]), *columns(main), *(f"{name}_{main}" for name in get_args(Measure))]
        assert (new in now, old in now) == (True, False), old
    newest = {"format": len(renaming.RENAMED) + 1}
    old = {"metrics": {"accuracy_held": 1.0}, "history": {"round": [0], "test_accuracy": [0.5]}}
    new = {"metrics": {"held_accuracy": 1.0}, "history": {"round": [0], "accuracy": [0.5]}}
    assert renaming.translated({"format": 2, **old}) == {**newest, **new}
    old = {"metrics": {"mse": 1.0}, "history": {"mse": [2.0], "test_mse": [3.0]}, "per_client": {"mse": [4.0]}}
    new = {"metrics": {"mse": 1.0}, "history": {"se": [2.0], "mse": [3.0]}, "per_client": {"mse": [4.0]}}
    assert renaming.translated({"format": 2, **old}) == {**newest, **new}


def test_an_old_name_beside_its_new_one_is_refused(tmp_path, monkeypatch):
    write(made(settings={"optimiser": "sgd", "optimizer": "adam"}), tmp_path)
    renamed(monkeypatch, Renaming(keys={"optimiser": "optimizer"}))
    with pytest.raises(ValueError, match=r"FLIC-HL-seed0\.json is not a run record: an old name and its new one"):
        load(tmp_path)


# --- the tracked ones -------------------------------------------------------------------------------------------------


def test_tracked_records_are_packed():
    """`hetfl pack` makes them so; `hetfl pack --check` says the same before a commit."""
    assert pack(check=True) == []


@pytest.mark.nightly
def test_reading_all_records_takes_little_more_than_parsing_them():
    folder = files.data_path("results")
    lines = [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
    storage._by_place.cache_clear()
    begin = time.process_time()
    count = len([json.loads(line) for line in lines])
    parsed = time.process_time()
    assert len(load()) == count
    read_once = time.process_time()
    assert read_once - parsed < 2.5 * (parsed - begin), "and less than a second of an idle core"
    assert len(load()) == count
    assert time.process_time() - read_once < 0.2 * (parsed - begin), "what has not changed is not read again"


def test_a_record_that_was_read_cannot_be_changed_but_a_copy_can(tmp_path):
    """The next caller gets the same one."""
    write(made(), tmp_path)
    pack(tmp_path)
    [record] = load(tmp_path)
    for change in (
        lambda: record.metrics.update(accuracy=1.0),
        lambda: record.settings.__setitem__("rounds", 1),
        lambda: record.federation.popitem(),
        lambda: record.history.clear(),
    ):
        with pytest.raises(TypeError, match="a record that was read cannot be changed: change a copy"):
            change()
    for own in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert own == record
        own.metrics["accuracy"] = 1.0
        assert type(own.settings) is dict
    assert load(tmp_path)[0] is record
    assert dict(record.metrics, accuracy=1.0) != record.metrics


def test_a_packed_file_is_read_again_when_it_has_changed(tmp_path):
    """In place or by another file, of another length or of the same."""
    write(made(seed=1), tmp_path)
    pack(tmp_path)
    [first] = load(tmp_path)
    assert load(tmp_path)[0] is first
    path = packed(tmp_path, LINE.replace('"seed":0', '"seed":2'))
    os.utime(path, ns=(1, 1))
    assert [record.seed for record in load(tmp_path)] == [2]
    packed(tmp_path, LINE.replace('"seed":0', '"seed":3'))
    assert [record.seed for record in load(tmp_path)] == [3]
    path.unlink()
    assert load(tmp_path) == []


def test_the_command(tmp_path, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hetfl", "pack", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, capsys.readouterr().out

    write(made(), tmp_path)
    code, out = call("--check")
    assert (code, out) == (1, f"{tmp_path / PLACE}: to be packed, by `hetfl pack`\n")
    assert call() == (0, f"{tmp_path / PLACE}: packed\n")
    assert call("--check") == call() == (0, "")
    packed(tmp_path, LINE, "x")
    code, _ = call("--check")
    assert str(code).startswith(f"hetfl: {tmp_path / PLACE}, line 2, is not a run record")
