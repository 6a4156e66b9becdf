import builtins
import gc
import importlib
import inspect
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from small import ragged
from typer.testing import CliRunner

import hetfl_core
from hetfl_book import experiments, ledger, plugin
from hetfl_book.experiments import Job
from hetfl_core import benchmark, cli, datasets, simulate
from hetfl_core.datasets import recordings, registry
from hetfl_core.engine import simulation
from hetfl_core.errors import HetflError
from hetfl_core.methods import Local


def call(monkeypatch, capsys, *arguments):
    """The command line in this process: (exit code, output, error)."""
    monkeypatch.setattr(sys, "argv", ["hetfl", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    code = end.value.code
    return (1, out, str(code)) if isinstance(code, str) else (code or 0, out, err)


def test_list_names_everything(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "list")
    assert code == 0
    for word in ("FLIC-HL", "FedAvg-FT", "toy.noisy_features", "flic_bci.common40", "flic/bci-common40"):
        assert word in out


def test_list_says_of_one_name_what_can_be_set(monkeypatch, capsys):
    for name, words in (
        ("flic", ["--set:", "local_epochs="]),
        ("digits.bundled", ["--data:", "n_clients=10"]),
        ("flic/bci-54", ["--method:", "FLIC-Class"]),
    ):
        code, out, err = call(monkeypatch, capsys, "list", name)
        assert code == 0, err
        assert [word for word in words if word not in out] == []
    code, _, err = call(monkeypatch, capsys, "list", "digits.bundeld")
    assert code == 1
    assert err.startswith("hetfl: no method, data set or experiment is called 'digits.bundeld'; did you mean digits.b")


def test_the_version_and_the_module(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "--version")
    assert code == 0
    assert re.fullmatch(rf"hetfl-core {hetfl_core.__version__}, Python 3\.\d+\.\d+, torch \d\S+\n", out)
    done = subprocess.run([sys.executable, "-m", "hetfl_core", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == out


def test_a_name_like_no_other_gets_a_handful_of_names_and_where_all_are(monkeypatch, capsys):
    """Not all 150 experiments."""
    for arguments, shows in (
        (["reproduce", "nothing"], "`hetfl list` shows all"),
        (["reproduce", "flic/bci-54", "--method", "zzz"], "there is "),
        (["run", "zzz"], "`hetfl list` shows all"),
        (["run", "Local", "--set", "zzz=1"], "`hetfl list Local` shows all"),
        (["run", "Local", "--federation", "zzz"], "`hetfl list` shows all"),
        (["data", "fetch", "zzz"], "`hetfl data status` shows all"),
    ):
        code, _, err = call(monkeypatch, capsys, *arguments)
        assert code == 1
        assert len(err) < 300
        assert shows in err


def stopped(*arguments, **options):
    raise KeyboardInterrupt


def test_a_stopped_command_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    """Nothing where there is nothing to say, and where a checkpoint is or could be."""
    monkeypatch.setattr(simulation, "simulate", stopped)
    monkeypatch.setattr(experiments, "reproduce", stopped)
    monkeypatch.setattr(registry, "status", stopped)
    folder = tmp_path / "checkpoint"
    run = ["run", "Local", "--data", "n_clients=2"]
    for arguments, message in (
        (["data", "status"], "hetfl: stopped\n"),
        (run, "hetfl: stopped; nothing is kept: with --checkpoint FOLDER a run goes on where it was stopped\n"),
        ([*run, "--checkpoint", str(folder)], f"nothing is in {folder} yet, so the same command begins anew\n"),
        (["reproduce", "flic/toy-noisy"], "the same command goes on where this one was stopped\n"),
    ):
        code, _, err = call(monkeypatch, capsys, *arguments)
        assert code == 130
        assert err.endswith(message)
    folder.mkdir()
    (folder / "state").touch()
    code, _, err = call(monkeypatch, capsys, *run, "--checkpoint", str(folder))
    assert err == f"hetfl: stopped; the same command goes on from {folder}\n"


def test_run_prints_a_table_and_writes_a_record(monkeypatch, capsys, tmp_path):
    out = tmp_path / "record.json"
    code, said, bar = call(
        monkeypatch, capsys,
        "run", "flic-class", "--federation", "digits.bundled", "--rounds", "2", "--data", "n_clients=2",
        "--set", "pretrain_epochs=1", "--set", "local_epochs=1", "--out", str(out),
    )  # fmt: skip
    assert code == 0, bar
    assert "accuracy" in said
    assert "balanced_accuracy" in said
    assert "round/s" in bar or "s/round" in bar, "a progress bar"
    record = ledger.read(out)
    assert (record.method, record.scale, record.settings["rounds"]) == ("FLIC-Class", "own", 2), (
        "its name, not as typed"
    )


def test_rows_of_a_file_are_read_as_they_are_meant(monkeypatch, capsys, tmp_path):
    """Fields at the end that belong to no column shift nothing; other marks between fields can be said."""
    from hetfl_core import Federation, simulate
    from hetfl_core.methods import Local

    frame = pd.DataFrame({"age": np.arange(20.0), "chol": np.arange(20.0)[::-1], "ill": np.resize(["yes", "no"], 20)})
    fed = Federation.from_frame(frame.assign(site=["a", "a", "b", "b"] * 5), client="site", target="ill")
    run = simulate(fed, Local(), rounds=1, progress=False)
    folder, file = str(run.save(tmp_path / "model")), tmp_path / "new.csv"
    file.write_text("age,chol\n1,20,\n30,4,\n")
    code, said, _ = call(monkeypatch, capsys, "predict", folder, str(file), "--client", "a")
    assert code == 0
    given = pd.DataFrame({"age": [1.0, 30.0], "chol": [20.0, 4.0]})
    probabilities = run.trained().predict_proba(given, client="a")["yes"]
    assert [line.split()[-1] for line in said.splitlines()[1:]] == [f"{p:.4g}" for p in probabilities]
    file.write_text("chol;age\n1,5;2,5\n3,5;4,5\n")
    code, said, _ = call(
        monkeypatch, capsys, "predict", folder, str(file), "--client", "a", "--sep", ";", "--decimal", ","
    )
    assert code == 0
    assert len(said.splitlines()) == 3
    given = pd.DataFrame({"age": [2.5, 4.5], "chol": [1.5, 3.5]})
    for word in run.trained().predict(given, client="a"):
        assert word in said


def test_a_model_that_was_saved_predicts_for_rows_of_a_file(monkeypatch, capsys, tmp_path):
    from hetfl_core import Federation, simulate
    from hetfl_core.methods import FedAvg

    code, said, _ = call(
        monkeypatch,
        capsys,
        "run",
        "Local",
        "--rounds",
        "1",
        "--data",
        "n_clients=2",
        "--save",
        str(tmp_path / "digits"),
    )
    assert code == 0
    assert f"models: {tmp_path / 'digits'}" in said
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["age", "chol"])
    frame["ill"] = np.resize(["yes", "no"], 20)
    fed = Federation.from_frame(frame.assign(site=["a", "b"] * 5 + ["b", "a"] * 5), client="site", target="ill")
    run = simulate(fed, FedAvg(), rounds=1, progress=False)
    folder, rows, out = str(run.save(tmp_path / "model")), tmp_path / "new.csv", tmp_path / "said.csv"
    frame[["chol", "age"]].to_csv(rows, index=False)
    for client, one in (("b", run.trained().client("b")), ("server", run.trained().server)):
        code, _, _ = call(monkeypatch, capsys, "predict", folder, str(rows), "--client", client, "--out", str(out))
        assert code == 0
        found = pd.read_csv(out, index_col=0)
        assert found.columns.to_list() == ["predicted", "p no", "p yes"]
        assert found["predicted"].to_list() == one.predict(frame).to_list()
        np.testing.assert_allclose(found["p yes"], one.probabilities(frame)["yes"])
    code, said, _ = call(monkeypatch, capsys, "predict", folder, str(rows), "--client", "a")
    assert said.split()[:3] == ["predicted", "p", "no"]
    for client, message in ((["--client", "c"], "client must be one of ['a', 'b'], got 'c'"), ([], "got None")):
        code, _, err = call(monkeypatch, capsys, "predict", folder, str(rows), *client)
        assert code == 1
        assert message in err
    for content, message in (
        (b"", "new.csv: the file is no table"),
        (b"a,b\n1,2\n", "lacks ['age', 'chol']"),
    ):
        rows.write_bytes(content)
        code, _, err = call(monkeypatch, capsys, "predict", folder, str(rows), "--client", "a")
        assert code == 1
        assert message in err


@pytest.mark.parametrize(
    ("command", "theirs", "ours"),
    [
        ("compare", "--measure", "--metric"),
        ("compare", "--scoring", "--metric"),
        ("compare", "--cv", "--seeds"),
        ("run", "--random-state", "--seed"),
        ("run", "--n-jobs", "--workers"),
        ("compare", "--round", "--rounds"),
    ],
)
def test_an_option_by_the_name_that_it_has_elsewhere_is_hinted_at(monkeypatch, capsys, command, theirs, ours):
    code, _, err = call(monkeypatch, capsys, command, "x", theirs, "3")
    assert code == 2
    assert f"No such option '{theirs}'." in err
    assert ours in err.split("Did you mean")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "FLIC-H"], "hetfl: no method is called 'FLIC-H'; did you mean FLIC-HL"),
        (
            ["run", "Local", "--federation", "digits"],
            "no data set is called 'digits'; did you mean femnist.digits, digits.bundled",
        ),
        (["run", "Local", "--set", "epochs=3"], "no setting of Local is called 'epochs'; did you mean local_epochs"),
        (["run", "Local", "--set", "epochs"], "a setting must look like name=value, got 'epochs'"),
        (["run", "Local", "--set", "local_epochs=abc"], "local_epochs must be a whole number, got 'abc'"),
        (["run", "Local", "--set", "local_epochs=2.5"], "local_epochs must be a whole number, got 2.5"),
        (["run", "Local", "--set", "lr=none"], "lr must be a finite number, got None"),
        (["run", "FLIC-HL", "--set", "realign=abc"], "realign must be True or False, got 'abc'"),
        (["run", "Local", "--device", "foo"], "got 'foo'"),
        (["run", "Local", "--seed", "-1"], "seed must be a whole number of at least 0, got -1"),
        (
            ["run", "Local", "--federation", "toy.noisy_features", "--data", "n_clients=abc", "--data", "dim=3"],
            "data set toy.noisy_features cannot be made with n_clients='abc', dim=3: ",
        ),
        (
            ["run", "Local", "--federation", "toy.noisy_features", "--data", "clients=3"],
            "got an unexpected keyword argument 'clients'; expected a field of Partition: n_clients, split",
        ),
        (["run", "Local", "--data", "seed=abc"], "data set digits.bundled cannot be made with seed='abc': "),
        (["run", "Local", "--rounds", "0"], "rounds must be a whole number of at least 1, got 0"),
        (["run", "FedAvg"], "FedAvg averages 'phi.0.weight', which must have the same shape"),
        (
            ["reproduce", "flic/bci"],
            "no experiment is called 'flic/bci'; did you mean flic/bci-54, flic/bci-40",
        ),
        (["reproduce"], "name one experiment, or give --pending"),
        (
            ["reproduce", "flic/toy-noisy", "--pending"],
            "name one experiment or give --pending, not both: got 'flic/toy-noisy' and --pending",
        ),
        (["reproduce", "flic/toy-noisy", "--device", "foo"], "got 'foo'"),
        (["reproduce", "flic/toy-noisy", "--scale", "full"], "scale must be one of ('book', 'paper'), got 'full'"),
        (["reproduce", "flic/toy-noisy", "--budget", "soon"], "budget must look like 90s, 9m or 2h, got 'soon'"),
        (["data", "verify", "mnist"], "mnist"),
        (["bench", "--sizes", "foo"], "sizes must look like 10,100,1000, got 'foo'"),
        (["bench", "--sizes", "-10"], "sizes must look like 10,100,1000, got '-10'"),
        (["bench", "--sizes", "10,0"], "sizes must be at least 10, so that a client takes part in a round, got 0"),
    ],
)
def test_errors_are_one_message_with_the_nearest_right_name(monkeypatch, capsys, arguments, message):
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code != 0
    assert message in out + err
    assert "Traceback" not in out + err


def test_data_are_dealt_as_the_command_line_says(monkeypatch, capsys):
    """Fields of a partition are settings like the others."""
    made = []
    monkeypatch.setattr(simulation, "simulate", lambda federation, *more, **options: made.append(federation) or 1 / 0)
    data = ("n_clients=4", "alpha=0.5", "min_size=5", "n_train_per_class=50", "n_classes=4", "subsample=false")
    given = [word for setting in data for word in ("--data", setting)]
    with pytest.raises(ZeroDivisionError):
        call(monkeypatch, capsys, "run", "Local", "--federation", "toy.noisy_features", *given)
    (federation,) = made
    wanted = {"n_clients": 4, "alpha": 0.5, "min_size": 5, "classes_per_client": None, "n_classes": 4}
    assert {name: federation.info["settings"][name] for name in wanted} == wanted
    assert len(federation) == 4


def never(*arguments, **options):
    raise AssertionError("nothing should be trained")


def test_where_a_record_goes_is_looked_at_before_anything_is_trained(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(simulation, "simulate", never)
    monkeypatch.setattr(experiments, "reproduce", never)
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "x")
    for arguments, message in (
        (["run", "Local", "--out", below], f"out needs a folder that can be written to, got {tmp_path / 'file'} ("),
        (["run", "Local", "--out", str(tmp_path)], f"out must be a file, got the folder {tmp_path}"),
        (["reproduce", "flic/toy-noisy", "--out", below], f"out needs a folder that can be written to, got {below} ("),
    ):
        code, _, err = call(monkeypatch, capsys, *arguments)
        assert code == 1
        assert message in err


def test_a_missing_package_is_one_message(monkeypatch, capsys):
    def missing():
        recordings.need("no_such_package")

    monkeypatch.setitem(datasets.CATALOGUE, "toy.noisy_features", missing)
    code, _, err = call(monkeypatch, capsys, "run", "Local", "--federation", "toy.noisy_features")
    assert (code, err) == (1, "hetfl: EEG needs the package no_such_package: pip install 'hetfl-core[eeg]'")


def faulty(kind):
    """A data set whose maker fails by a fault of its own, where no statement says ``raise``."""
    faults = {
        "KeyError": lambda: {}["n_clients"],
        "ValueError": lambda: int("many"),
        "TypeError": lambda: len(3),
        "AttributeError": lambda: None.clients,
        "RuntimeError": lambda: torch.ones(2) @ torch.ones(3),
    }
    return lambda: faults[kind]()


@pytest.mark.parametrize("kind", ["KeyError", "ValueError", "TypeError", "AttributeError", "RuntimeError"])
def test_a_fault_keeps_its_traceback(monkeypatch, kind):
    monkeypatch.setitem(datasets.CATALOGUE, "toy.noisy_features", faulty(kind))
    monkeypatch.setattr(sys, "argv", ["hetfl", "run", "Local", "--federation", "toy.noisy_features"])
    with pytest.raises(getattr(builtins, kind)) as end:
        cli.main()
    assert end.traceback[-1].path.name == "test_cli.py", "where it happened, not where it was caught"


def test_a_command_that_is_nearly_there_is_asked_after_once(monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "compar")
    assert code == 2
    assert " ".join(err.split()).count("Did you mean") == 1
    assert "'compare'" in err


def test_an_environment_variable_shows_the_traceback_of_a_message_too(monkeypatch, capsys):
    arguments = ["run", "Local", "--set", "epochs"]
    for off in ("", "0"):
        monkeypatch.setenv("HETFL_DEBUG", off)
        assert call(monkeypatch, capsys, *arguments)[2] == "hetfl: a setting must look like name=value, got 'epochs'"
    monkeypatch.setenv("HETFL_DEBUG", "1")
    with pytest.raises(ValueError, match="must look like name=value"):
        call(monkeypatch, capsys, *arguments)


def raised(function, *arguments):
    with pytest.raises(Exception) as end:
        function(*arguments)
    return end.value


def test_what_is_a_message_and_what_is_a_fault(tmp_path):
    (tmp_path / "x").touch()
    messages = raised(plugin.seconds, "soon"), raised(ledger.read, tmp_path / "x")
    assert all(isinstance(error, HetflError) and isinstance(error, ValueError) for error in messages)
    assert isinstance(raised(ledger.read, tmp_path / "none.json"), OSError), "the system refuses a file"
    for fault in (raised(plugin.seconds, 3), raised(json.loads, "{")):  # in the package, and another package's
        assert not isinstance(fault, HetflError | OSError)


# --- what an import costs ---------------------------------------------------------------------------------------------

HEAVY = {"sklearn", "scipy", "h5py", "mne", "pyriemann", "moabb", "matplotlib", "pooch", "IPython"}


def loaded(command, *arguments):
    """The packages that are loaded after a command in a fresh interpreter."""
    script = f"import sys\n{command}\nprint(*{{name.split('.')[0] for name in sys.modules}}, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.nightly
def test_the_package_costs_little_more_than_torch():
    assert loaded("import hetfl_core") & (HEAVY | {"torch", "pandas", "numpy"}) == set()
    now = f"{HEAVY} & {{name.split('.')[0] for name in sys.modules}}"
    everything = f"from hetfl_core import {', '.join(hetfl_core.__all__)}\nassert not {now}, {now}"
    run = loaded(f"{everything}\nfrom hetfl_core import cli")
    assert run & HEAVY <= {"pooch"}, "what `hetfl run` begins with; pooch has the downloads"


def test_the_help_does_not_wait_for_torch():
    command = "from hetfl_core import cli\ntry:\n    cli.main()\nexcept SystemExit:\n    pass"
    assert loaded(command, "--help") & (HEAVY | {"torch", "pandas", "numpy"}) == set()
    assert loaded(command, "run", "--help") & {"torch"} == set()


def test_the_face_of_the_package():
    """What stands in `__all__` is there, is what it says, and is listed before it has been asked for."""
    script = "import hetfl_core\nnames = hetfl_core.__all__\nassert {*names} <= {*dir(hetfl_core)}\n"
    script += "assert all(getattr(hetfl_core, name) is not None for name in names)\nfrom hetfl_core import *\n"
    script += "assert simulate.__module__ == 'hetfl_core.engine.simulation' and Spec.__name__ == 'Spec'\n"
    script += "assert datasets.toy.noisy_features and methods.FLIC and stream(0, 'a', 0, 'b')\n"
    script += "assert hetfl_book.ledger, 'a room that has been imported is an attribute'"
    subprocess.run([sys.executable, "-c", "import hetfl_book.ledger\n" + script], check=True)
    with pytest.raises(AttributeError, match="module 'hetfl_core' has no attribute 'simulator'"):
        _ = hetfl_core.simulator


def test_pending_runs_of_some_methods(monkeypatch, capsys):
    todo = [Job("flic/toy-noisy", "book", method, seed) for seed in (0, 1) for method in ("Local", "FLIC-HL")]
    begun = []
    monkeypatch.setattr(experiments, "pending", lambda *arguments: todo)
    monkeypatch.setattr(experiments, "reproduce", lambda jobs, *arguments, **options: begun.extend(jobs) or iter(()))
    call(monkeypatch, capsys, "reproduce", "--pending", "--method", "Local")
    assert begun == [todo[0], todo[2]]

    code, _, err = call(monkeypatch, capsys, "reproduce", "--pending", "--method", "FLIC-H")
    assert (code, err) == (1, "hetfl: no method of a pending run is called 'FLIC-H'; did you mean FLIC-HL?")
    todo.clear()
    code, _, err = call(monkeypatch, capsys, "reproduce", "--pending", "--method", "Local")
    assert (code, err) == (1, "hetfl: no run is pending, of 'Local' as of any other method")
    assert len(begun) == 2


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_a_data_set_that_needs_no_file(monkeypatch, capsys, command):
    for name in ("toy.noisy_features", "digits.bundled"):
        assert call(monkeypatch, capsys, "data", command, name) == (0, f"{name}: needs no file of the registry\n", "")


def test_what_is_placed_by_hand_does_not_stop_a_fetch_of_everything(monkeypatch, capsys):
    monkeypatch.setattr(registry, "fetch", lambda key: f"of {key}")
    code, out, _ = call(monkeypatch, capsys, "data", "fetch")
    assert code == 0
    assert "eurosat/archive: of eurosat/archive" in out
    assert "modelnet40" not in out
    code, out, _ = call(monkeypatch, capsys, "data", "fetch", "multiview.modelnet40")
    assert (code, out) == (0, "modelnet40/views: of modelnet40/views\n"), "by name it is tried, and its error says how"


def test_values_of_settings():
    given = ["a=3", "b=-1", "c=0.5", "d=1e-3", "e=true", "f=none", "g-h=code", "i=x=y"]
    assert cli._settings(given) == {
        "a": 3, "b": -1, "c": 0.5, "d": 1e-3, "e": True, "f": None, "g_h": "code", "i": "x=y"
    }  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("9m", 540), ("1.5h", 5400), ("30", 30), (None, None)])
def test_budgets(text, expected):
    assert plugin.seconds(text) == expected


def test_ledger_and_claims(monkeypatch, capsys):
    for arguments in (["ledger"], ["ledger", "--claims"]):
        code, out, err = call(monkeypatch, capsys, *arguments)
        assert code == 0, err
        assert "BCI-common" in out


def test_data_status(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "data", "status")
    assert code == 0
    assert "mnist/train-images" in out


def test_bench_prints_ratios(monkeypatch, capsys):
    known = {"seconds": 1.0, "microseconds": 2.0, "peak_mb": 3.0}
    monkeypatch.setattr(benchmark, "_apart", lambda **asked: known)
    code, out, err = call(monkeypatch, capsys, "bench", "--sizes", "10,20", "--loop-up-to", "10")
    assert code == 0, err
    assert len(re.findall(r"1\.0×", out)) == 4, "two batch sizes for pre-training and for a round"


def test_bench_beside_other_libraries_is_a_plugin_s(monkeypatch, capsys):
    monkeypatch.setattr(cli, "plugins", lambda: (SimpleNamespace(peers=lambda: iter(["a line"])), SimpleNamespace()))
    assert call(monkeypatch, capsys, "bench", "--peers")[:2] == (0, "a line\n")
    monkeypatch.setattr(cli, "plugins", lambda: ())
    code, _, err = call(monkeypatch, capsys, "bench", "--peers")
    assert code == 1
    assert "--peers needs a plugin" in err


def test_the_command_keeps_freed_memory(monkeypatch, capsys):
    """What that is worth: `test_numerics.py`."""
    asked = []
    monkeypatch.setattr(cli.numerics, "keep_freed_memory", lambda: asked.append(True))
    assert call(monkeypatch, capsys, "data", "status")[0] == 0
    assert asked == [True]


OWN = """
from dataclasses import dataclass
from hetfl_core.methods import Local

@dataclass(frozen=True)
class Mine(Local):
    mu: float = 0.5

made = Mine(mu=0.25)
number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a package of one's own, as the working folder; its methods are forgotten afterwards."""
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "mod.py").write_text(OWN)
    (tmp_path / "mypkg" / "needy.py").write_text("import nothing_that_exists\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "mypkg"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    gc.collect()


def test_a_method_of_ones_own_by_its_import_path(own):
    assert cli._method("mypkg.mod:Mine", {}).mu == 0.5
    assert cli._method("mypkg.mod:Mine", {"mu": 0.1, "local_epochs": 2}).mu == 0.1
    assert cli._method("mypkg.mod:made", {"local_epochs": 2}).mu == 0.25


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("FedProx", {"mu": 0.5}, {"term_weight": 0.5}),
        ("FLIC", {"lambda1": 0.5}, {"alignment_weight": 0.5}),
        ("FedGen", {"generated": 5}, {"n_generated": 5}),
        ("Local", {"optimiser": "sgd"}, {"optimizer": "sgd"}),
        ("FedAvg-FT", {"tuning_epochs": 3}, {"finetune_epochs": 3}),
        ("Fed-CMA", {"first": "zeros", "fixed": 4}, {"server_init": "zeros", "samples_per_class": 4}),
        ("HyFEM", {"norms": True, "resets": False}, {"penalty": "norm", "reset": False}),
    ],
)
def test_older_names_of_settings_are_understood(method, old, new):
    assert cli._method(method, old) == cli._method(method, new) != cli._method(method, {})
    with pytest.raises(KeyError, match="setting of Local"):
        cli._method("Local", {"lambda9": 1})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mypkg.mod:Min", "no method of module mypkg.mod is called 'Min'; did you mean Mine"),
        ("mypkg.mud:Mine", "no module 'mypkg.mud' in "),
        ("yourpkg.mod:Mine", "no module 'yourpkg' in "),
        ("mypkg.mod:number", "mypkg.mod:number must be a subclass of hetfl_core.methods.Method or one made"),
        ("mypkg.mod:", "a method of your own must look like package.module:Name, got 'mypkg.mod:'"),
        ("mypkg/mod.py:Mine", "a method of your own must look like package.module:Name, got 'mypkg/mod.py:Mine'"),
    ],
)
def test_an_import_path_that_leads_nowhere_says_where_it_ends(own, monkeypatch, capsys, path, message):
    code, out, err = call(monkeypatch, capsys, "run", path, "--rounds", "1")
    assert code == 1
    assert message in err
    assert "Traceback" not in out + err


def test_a_fault_of_ones_own_module_keeps_its_traceback(own, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hetfl", "run", "mypkg.needy:Mine"])
    with pytest.raises(ModuleNotFoundError, match="nothing_that_exists"):
        cli.main()


def test_the_command_line_runs_what_simulate_runs(monkeypatch, capsys):
    """The same defaults: all clients take part, and each has the network of its inputs."""
    asked = {}

    def noted(federation, method, **options):
        asked.update(options, method=method)
        sys.exit("noted")

    monkeypatch.setattr(simulation, "simulate", noted)
    monkeypatch.setitem(datasets.CATALOGUE, "images.fashion_mnist", lambda: ragged(images=True))
    _, _, err = call(monkeypatch, capsys, "run", "Local", "--federation", "images.fashion_mnist")
    assert err == "noted"
    assert asked["method"] == Local()
    assert asked["participation"] == inspect.signature(simulate).parameters["participation"].default == 1.0


def test_what_is_listed_is_plain_text_and_can_be_typed(capsys):
    for name in (None, "toy.noisy_features", "digits.mnist_usps", "FLIC-HL"):
        cli.list_(name)
        said = capsys.readouterr().out
        assert not re.search(r"\]_|:\w+:|`|\*|inspect|Partition\(", said), said
        assert name != "toy.noisy_features" or "\n  n_clients=100\n" in said


def test_help_says_what_arguments_are_for():
    said = CliRunner().invoke(cli.app, ["run", "--help"], env={"COLUMNS": "200"}).output
    assert "Name of a method" in said
