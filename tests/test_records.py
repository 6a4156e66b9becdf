"""Records: what goes in comes out, whatever happens to the disk on the way."""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from small import ragged

from hetfl_book import ledger
from hetfl_core import simulate
from hetfl_core.federation import Client, Federation
from hetfl_core.methods import Local
from hetfl_core.records import (
    RunRecord,
    compare_records,
    load,
    provenance,
    read,
    record,
    storage,
    to_json,
    write,
    write_to,
)
from hetfl_core.statistics import contrast, holm, interval


def made(**changes) -> RunRecord:
    values = {
        "experiment": "flic/bci-common40",
        "scale": "paper",
        "method": "FLIC-HL",
        "seed": 0,
        "settings": {"rounds": 50, "participation": 0.1, "stages": ["start", "round"]},
        "federation": {"name": "bci", "fingerprint": "ab", "n_clients": 40, "info": {}},
        "metrics": {"accuracy": 0.7212, "bytes_up": 12345},
        "history": {"round": [0, 1], "loss": [1.5, 0.25]},
        "commit": "0123456789abcdef",
        "dirty": False,
        "versions": {"python": "3.11"},
        "hardware": {"gpu": None, "cores": 2},
        "seconds": 12.5,
        "created": "2026-01-01T00:00:00Z",
    }
    return RunRecord(**{**values, **changes})


def test_round_trip(tmp_path):
    record = made()
    path = write(record, tmp_path)
    assert path == tmp_path / "flic/bci-common40/paper/FLIC-HL-seed0.json"
    assert path == tmp_path / record.relative_path
    assert read(path) == record
    assert read(path).path == path


def test_numpy_and_data_frames_become_plain():
    record = made(
        seed=np.int64(3),
        settings={"widths": (64, 64), "lr": np.float32(0.5), "classes": {2, 1}},
        metrics={"accuracy": np.float64(0.5)},
        history=pd.DataFrame({"round": np.arange(2), "loss": [1.0, math.nan]}),
    )
    assert record.settings == {"widths": [64, 64], "lr": 0.5, "classes": [1, 2]}
    assert record.history == {"round": [0, 1], "loss": [1.0, None]}
    assert type(record.seed) is int
    assert read_back(record) == record


def read_back(record: RunRecord) -> RunRecord:
    return RunRecord(**json.loads(to_json(record)))


def test_history_keeps_six_digits_and_metrics_all():
    record = made(history={"loss": [1 / 3, 123456789.0, 1e-9 / 3]}, metrics={"accuracy": 1 / 3})
    assert record.history["loss"] == [0.333333, 123457000.0, 3.33333e-10]
    assert record.metrics["accuracy"] == 1 / 3


def test_json_has_no_nan_and_can_be_read_by_a_strict_parser():
    record = made(metrics={"accuracy": math.nan, "loss": math.inf}, history={"loss": [-math.inf, math.nan]})

    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads(to_json(record), parse_constant=refuse)
    assert content["metrics"] == {"accuracy": None, "loss": None}
    assert content["history"] == {"loss": [None, None]}
    assert math.isnan(record.frame()["loss"].astype(float)[0])


def test_equal_records_have_equal_bytes_and_one_line_a_field(tmp_path):
    first, second = write(made(), tmp_path / "a").read_bytes(), write(made(), tmp_path / "b").read_bytes()
    assert first == second
    assert len(first.splitlines()) == len(json.loads(first))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiment": "../flic"}, "experiment"),
        ({"experiment": "/flic"}, "experiment"),
        ({"experiment": "flic//x"}, "experiment"),
        ({"method": "a/b"}, "method"),
        ({"method": ""}, "method"),
        ({"scale": "large"}, r"scale must be one of .* got 'large'"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"metrics": {"accuracy": 72.1}}, "per cent"),
        ({"metrics": {"accuracy_worst": -0.1}}, "accuracy_worst"),
        ({"metrics": {"accuracy": "0.7"}}, "number or null"),
        ({"metrics": [0.7]}, "metrics must be a mapping"),
        ({"history": {"round": [0, 1], "loss": [1.0]}}, "one length"),
        ({"history": {"loss": [1.0, "low"]}}, r"history\['loss'\] must hold numbers or nulls, got 'low'"),
        ({"per_client": {"client": ["a", (1,)]}}, r"per_client\['client'\] must hold numbers, text or nulls, got \["),
        ({"dirty": "no"}, "dirty"),
        ({"format": 99}, "format"),
    ],
)
def test_bad_fields_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)


def test_settings_may_be_nested_fifty_fold():
    """Forty-nine lists within the mapping of settings, and no more."""
    within = functools.reduce(lambda inner, _: [inner], range(49), 1)
    assert made(settings={"a": within}).settings["a"] == within
    with pytest.raises(ValueError, match="nested, must be so 50-fold at most"):
        made(settings={"a": [within]})


def test_an_accuracy_may_be_none_of_the_samples_or_all():
    assert made(metrics={"accuracy": 0.0, "accuracy_worst": 1.0}).metrics == {"accuracy": 0.0, "accuracy_worst": 1.0}


def test_what_json_cannot_hold_is_refused_by_name():
    with pytest.raises(TypeError, match=r"settings\.folder: .* got .*Path"):
        made(settings={"folder": Path("x")})


# --- the disk ---------------------------------------------------------------------------------------------------------


def left_behind(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_names_the_file_and_keeps_the_old_one(tmp_path, monkeypatch, call):
    path = write(made(), tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(OSError, match=r"FLIC-HL-seed0\.json.*No space left.*untouched") as caught:
        write(made(seconds=99.0), tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    assert left_behind(tmp_path) == [path.name]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_interruption_leaves_nothing_half_written(tmp_path, monkeypatch, call):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(made(), tmp_path)
    assert left_behind(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_the_last_step_leaves_the_old_record(tmp_path, monkeypatch):
    """SIGKILL after the new content is on disk, before it takes the place of the old."""
    write(made(), tmp_path)
    monkeypatch.setattr(os, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        write(made(seconds=99.0), tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(left_behind(tmp_path)) == 2, "the draft is there, and is no record"
    assert [r.seconds for r in load(tmp_path)] == [12.5]
    monkeypatch.undo()
    write(made(seconds=50.0), tmp_path)
    assert left_behind(tmp_path) == ["FLIC-HL-seed0.json"], "the next write removes what the killed process left"


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "flic").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write .*seed0\.json"):
        write(made(), tmp_path)


def test_written_record_can_be_read_by_others(tmp_path):
    """A temporary file of the standard library would be readable by its owner only, and stay so."""
    plain = tmp_path / "plain"
    plain.write_text("")
    assert write(made(), tmp_path).stat().st_mode == plain.stat().st_mode


def test_write_to_a_chosen_file(tmp_path):
    assert read(write_to(made(scale="own"), tmp_path / "new" / "record.json")).scale == "own"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ('{"format":4,', "not a run record"),
        ("[]", "one JSON object, got list"),
        ("{}", "missing.*'experiment'"),
        (to_json(made()).replace('"seed":0', '"seed":"0"'), "seed must be"),
        (to_json(made()).replace('"seed":0', '"sead":0'), r"missing: \['seed'\].*unknown: \['sead'\]"),
        (to_json(made()).replace('"format":4', '"format":7'), "format must be 4, got 7"),
        (to_json(made())[:200], "not a run record"),
    ],
)
def test_malformed_files_are_named(tmp_path, text, message):
    assert text != to_json(made())
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path)
    assert "broken.json" in str(caught.value)


def test_load_sorts_and_filters(tmp_path):
    for seed in (10, 2):
        for method in ("Local", "FLIC-HL"):
            for scale in ("book", "paper"):
                write(made(seed=seed, method=method, scale=scale), tmp_path)
    write(made(experiment="flic/toy-noisy"), tmp_path)
    assert len(load(tmp_path)) == 9
    assert len(load(tmp_path, scale="paper")) == 5
    assert [r.seed for r in load(tmp_path, "flic/bci-common40", "book", "Local")] == [2, 10]
    found = [(r.experiment, r.scale, r.method, r.seed) for r in load(tmp_path)]
    assert found == sorted(found), "by method before seed"
    assert load(tmp_path, experiment="flic/bci") == []


def test_reading_takes_the_plain_content_as_it_is(tmp_path, monkeypatch):
    """1 082 records took 2.0 s, nearly all of it for making plain what JSON had just made plain (now 0.3 s)."""
    stored = load(experiment="flic/bci-common40")
    whole = [RunRecord(**json.loads(to_json(r))) for r in stored]
    path = write(stored[0], tmp_path)
    monkeypatch.setattr(record, "plain", lambda *arguments: pytest.fail("the content is plain already"))
    assert stored == whole
    assert vars(read(path)).keys() == vars(whole[0]).keys()
    assert read(path).path == path


def test_numbers_that_json_does_not_have_are_missing_values(tmp_path):
    text = to_json(made(history={"round": [0, 1], "loss": [1.5, 2.75]})).replace("2.75", "NaN")
    (tmp_path / "a.json").write_text(text)
    assert read(tmp_path / "a.json").history == {"round": [0, 1], "loss": [1.5, None]}


def test_load_opens_no_file_that_its_name_rules_out(tmp_path):
    for method in ("Local", "FLIC-HL"):
        write(made(method=method, scale="paper"), tmp_path)
    written = write(made(method="Local", scale="book"), tmp_path)
    written.write_text("no record")
    (tmp_path / made().experiment / "paper" / "FLIC-HL-seed0.json").write_text("no record")
    assert [r.method for r in load(tmp_path, made().experiment, "paper", "Local")] == ["Local"]
    with pytest.raises(ValueError, match="is not a run record"):
        load(tmp_path, made().experiment)


def test_load_of_nothing(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no results folder"):
        load(tmp_path / "nowhere")

    def missing(*_):
        raise FileNotFoundError

    monkeypatch.setattr(storage, "data_path", missing)
    assert load() == []


# --- comparing, and where a run was made ------------------------------------------------------------------------------


def test_compare_lists_every_metric_and_what_else_differs():
    other = made(metrics={"accuracy": 0.7412, "bytes_up": 12345}, history={"round": [0, 1], "loss": [1.25, 0.5]})
    other = replace(other, settings={**other.settings, "rounds": 60})
    table = compare_records(made(), other).set_index("field")
    assert set(table.index) == {"settings.rounds", "metrics.accuracy", "metrics.bytes_up", "history.loss"}
    assert table.loc["metrics.accuracy", "difference"] == pytest.approx(0.02)
    assert table.loc["metrics.bytes_up", "difference"] == 0
    assert table.loc["history.loss", "difference"] == 0.25
    assert table.loc["settings.rounds", "difference"] == 10


def test_compare_shows_the_largest_difference_of_a_history():
    a, b = (made(history={"round": [0, 1, 2], "loss": loss}) for loss in ([1.0, 0.5, 0.25], [1.0, 1.25, 0.5]))
    assert compare_records(a, b).set_index("field").loc["history.loss", "difference"] == 0.75


def test_compare_shows_what_only_one_has():
    table = compare_records(made(metrics={}), made()).set_index("field")
    assert table.loc["metrics.accuracy", "b"] == 0.7212
    assert math.isnan(table.loc["metrics.accuracy", "difference"])
    table = compare_records(made(history={}), made()).set_index("field")
    assert table.loc["history.loss", ["a", "difference"]].isna().all()


def test_record_of_a_run():
    x, y = np.zeros((4, 3), "float32"), np.array([0, 1, 0, 1])
    fed = Federation([Client(x, y, x[:2], y[:2], "a"), Client(x, y, x, y, "b")], 2, "made", {"stand_in": True})
    run = SimpleNamespace(
        federation=fed,
        method=SimpleNamespace(name="Local"),
        device=torch.device("cpu"),
        settings={"seed": 4, "rounds": 2},
        final={"accuracy": 0.5, "seconds": 1.5},
        history=pd.DataFrame({"round": [0, 1]}),
        per_client=pd.DataFrame({"client": ["a", "b"], "accuracy": [1 / 3, math.nan]}),
    )
    record = RunRecord.of(run, "flic/toy-noisy", "book")
    assert (record.method, record.seed, record.seconds, record.stand_in) == ("Local", 4, 1.5, True)
    assert record.federation["fingerprint"] == fed.fingerprint()
    assert [record.federation[k] for k in ("n_clients", "n_classes", "n_train", "n_test")] == [2, 2, 8, 6]
    assert RunRecord.of(run, "flic/toy-noisy", "book", method="Other").method == "Other"
    assert record.per_client == {"client": ["a", "b"], "accuracy": [0.333333, None]}
    assert read_back(record) == record


def test_a_record_written_before_there_were_results_of_clients_is_read(tmp_path):
    path = write(made(), tmp_path)
    content = json.loads(path.read_text())
    assert content.pop("per_client") == {}
    path.write_text(json.dumps(content))
    assert read(path) == made()
    with pytest.raises(ValueError, match="per_client must have columns of one length"):
        made(per_client={"client": ["a", "b"], "accuracy": [0.5]})


def test_environment_has_no_path_and_fits_a_record():
    found = ledger.environment()
    assert set(found) == {"versions", "hardware", "numerics", "commit", "dirty"}
    assert found["hardware"]["cores"] >= 1
    assert found["versions"]["torch"] != "unknown"
    assert str(Path.home()) not in json.dumps(found)
    made(**found)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git repository that looks as if the package were in it."""
    if provenance._git(tmp_path, "--version") is None:
        pytest.skip("git is not installed")
    (tmp_path / "hetfl_core").mkdir()
    (tmp_path / "hetfl_core" / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "hetfl_core" / "records" / "provenance.py"))
    monkeypatch.delenv("HETFL_COMMIT", raising=False)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        assert provenance._git(tmp_path, *command) is not None
    return tmp_path


def test_commit_and_changes(checkout):
    commit, dirty = provenance.code_revision.__wrapped__()
    assert len(commit) == 40
    assert dirty is False
    (checkout / "data" / "results").mkdir(parents=True)
    (checkout / "data" / "results" / "new.json").write_text("{}")
    assert provenance.code_revision.__wrapped__() == (commit, False), "a new record does not change the code"
    (checkout / "hetfl_core" / "b.py").write_text("b = 1\n")
    assert provenance.code_revision.__wrapped__() == (commit, True)
    assert made(commit=commit, dirty=True).revision == commit[:10] + "+"


def test_a_commit_during_a_run_is_not_what_ran(checkout):
    ledger.code_revision.cache_clear()
    try:
        before = ledger.code_revision()
        (checkout / "hetfl_core" / "b.py").write_text("b = 1\n")
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        for command in (["add", "."], [*who, "commit", "-q", "-m", "second"]):
            assert provenance._git(checkout, *command) is not None
        assert provenance.code_revision.__wrapped__()[0] != before[0]
        assert (ledger.environment()["commit"], ledger.environment()["dirty"]) == before
    finally:
        ledger.code_revision.cache_clear()


def test_a_record_names_the_threads_and_the_gpu_of_its_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    options = {"rounds": 1, "participation": 0.5, "device": "cpu", "progress": False}
    with pytest.warns(RuntimeWarning, match="threads=3 makes this run slower"):
        run = simulate(ragged(), Local(local_epochs=1), threads=3, **options)
    record = RunRecord.of(run, "own/x", "own")
    assert record.settings["method"]["model"]["phi"]["class"] == "MLP", "settings, not text"
    assert (record.settings["method"]["class"], record.settings["method"]["local_epochs"]) == ("Local", 1)
    assert (record.hardware["threads"], record.hardware["gpu"]) == (3, None)
    record = RunRecord.of(replace(run, device=torch.device("cuda")), "own/x", "own")
    assert record.hardware["gpu"] == "a GPU"


def test_commit_of_a_repository_around_an_installed_package_is_not_ours(checkout, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(checkout / "site" / "hetfl_core" / "records" / "provenance.py"))
    (checkout / "site").mkdir()
    assert provenance.code_revision.__wrapped__() == ("unknown", None)


def test_no_git(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.code_revision.__wrapped__() == ("unknown", None)
    monkeypatch.setenv("HETFL_COMMIT", "abc-dirty")
    assert provenance.code_revision.__wrapped__() == ("abc", True)
    monkeypatch.setenv("HETFL_COMMIT", "abc")
    assert provenance.code_revision.__wrapped__() == ("abc", False)


def test_tidy_gives_one_row_a_run_with_accuracies_in_per_cent(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "data_path", lambda *parts: tmp_path)
    history = {"round": [0, 1, 2], "accuracy": [0.2, 0.9, None]}
    for seed in (0, 1):
        write(made(experiment="flic/toy-noisy-b50", seed=seed, history=history), tmp_path)
    write(made(experiment="flic/toy-noisy", history=history, metrics={"accuracy": 0.5}), tmp_path)
    table = ledger.tidy({50: "flic/toy-noisy-b50", 100: "flic/toy-noisy", 200: "none"}, ["accuracy", "best_accuracy"])
    assert table.columns.tolist() == ["x", "method", "seed", "accuracy", "best_accuracy"]
    assert table[["x", "seed"]].to_numpy().tolist() == [[50, 0], [50, 1], [100, 0]]
    assert table["accuracy"].tolist() == pytest.approx([72.12, 72.12, 50.0])
    assert table["best_accuracy"].tolist() == pytest.approx([90.0] * 3)
    assert ledger.tidy({1: "none"}).empty


def runs_of(accuracies: dict[str, list[float]], **changes) -> list[RunRecord]:
    return [
        made(method=name, seed=seed, metrics={"accuracy": x}, **changes)
        for name, values in accuracies.items()
        for seed, x in enumerate(values)
    ]


def test_effects_are_paired_tests_against_the_base():
    from scipy import stats

    runs = runs_of({"FLIC-HL": [0.70, 0.72, 0.71], "FLIC-HL, realigned": [0.71, 0.75, 0.76], "Local": [0.6]})
    other = runs_of({"elsewhere": [0.5]}, experiment="flic/toy-noisy")
    table = ledger.effects([*runs, *other], "flic/bci-common40", "FLIC-HL")
    assert table.index.tolist() == ["FLIC-HL, realigned", "Local"]
    row = table.loc["FLIC-HL, realigned"]
    test = stats.ttest_rel([71, 75, 76], [70, 72, 71])
    assert row["mean"] == pytest.approx(3)
    assert row["sd"] == pytest.approx(2)
    assert row["p"] == pytest.approx(test.pvalue)
    assert (row["low"], row["high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert row["seeds"] == (0, 1, 2)
    one = table.loc["Local"]
    assert (one["mean"], one["seeds"]) == (pytest.approx(-10), (0,))
    assert math.isnan(one["p"])
    assert math.isnan(one["sd"])
    assert ledger.effects(runs, "flic/bci-common40", "Local").index.tolist() == ["FLIC-HL", "FLIC-HL, realigned"]


def test_effects_without_the_base_or_without_runs_are_an_empty_table():
    runs = runs_of({"Local": [0.6, 0.7]})
    for found in (ledger.effects(runs, "flic/bci-common40", "FLIC-HL"), ledger.effects([], "x", "Local")):
        assert found.empty
        assert found.columns.tolist() == ["mean", "low", "high", "sd", "p", "seeds"]


def test_effects_without_any_spread():
    runs = runs_of({"FLIC-HL": [0.5] * 3, "same": [0.5] * 3, "always better": [0.75] * 3})
    runs = [replace(r, federation={**r.federation, "fingerprint": f"draw {r.seed}"}) for r in runs]
    table = ledger.effects(runs, "flic/bci-common40", "FLIC-HL")
    assert table["p"].tolist() == [1.0, 0.0]


def test_p_values_of_differences_without_spread():
    """The limits of Student's t: at the mean itself one half, beyond it nothing, short of it all."""
    got = ledger.Paired(1.0, 1.0, 1.0, (0, 1, 2), sd=0.0)
    assert (got.above(1.0), got.below(1.0)) == (0.5, 0.5)
    assert (got.above(0.5), got.above(1.5)) == (0, 1)
    assert (got.below(0.5), got.below(1.5)) == (1, 0)


@pytest.mark.parametrize("term", [(1.0, "x"), (1.0, "x", 3), "abcd", 3])
def test_a_term_of_a_contrast_is_weight_experiment_and_method(term):
    with pytest.raises(ValueError, match=r"terms must each be \(weight, experiment, method\)"):
        contrast([], [term])


def test_holm_by_hand_and_by_the_step_down_rule():
    # 0.005·4 = 0.02, 0.01·3 = 0.03, 0.03·2 = 0.06, and 0.04·1 = 0.04 is lifted to the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1, 1])
    np.testing.assert_allclose(holm([0.01, math.nan, 0.5]), [0.02, math.nan, 0.5])
    assert len(holm([])) == 0
    families = [[0.01, 0.5], [0.04, math.nan], [0.3, 0.02]]  # three of two tests each, or one
    np.testing.assert_allclose(holm(families), [holm(one) for one in families])
    assert ledger.welch((1.0, 0.0, 3), (2.0, 0.0, 3)) == pytest.approx((-1.0, *[math.nan] * 3), nan_ok=True)
    assert interval([3.0]) == (3.0, -math.inf, math.inf)
    p = np.random.default_rng(0).uniform(size=12) ** 3
    rejected, m = set(), len(p)
    for k, i in enumerate(np.argsort(p)):  # Holm's own words: go on while p_(k) ≤ α / (m − k + 1)
        if p[i] > 0.05 / (m - k):
            break
        rejected.add(i)
    assert 0 < len(rejected) < m
    assert set(np.flatnonzero(holm(p) <= 0.05)) == rejected


def test_the_processor_is_named_without_the_label_that_linux_prints():
    assert "model name" not in provenance._cpu_model()
    assert provenance._cpu_model() == provenance._cpu_model().strip() != ""


@pytest.mark.parametrize("revision", [-1, True, 1.5, "1", None])
def test_a_revision_of_the_numerics_is_a_whole_number(revision):
    with pytest.raises(ValueError, match="numerics must be a mapping whose revision is a whole number from 0 on"):
        RunRecord("tests/x", "paper", "Local", 0, {}, {}, {}, numerics={"revision": revision})


def test_a_machine_without_proc_tells_its_cpu_otherwise(monkeypatch):
    monkeypatch.setattr(provenance.Path, "read_text", lambda *a, **k: (_ for _ in ()).throw(OSError))
    for processor, machine, expected in (("arm", "arm64", "arm"), ("", "arm64", "arm64"), ("", "", "unknown")):
        monkeypatch.setattr(provenance.platform, "processor", lambda p=processor: p)
        monkeypatch.setattr(provenance.platform, "machine", lambda m=machine: m)
        assert provenance._cpu_model.__wrapped__() == expected
