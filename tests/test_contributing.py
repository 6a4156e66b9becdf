"""What CONTRIBUTING says about adding a method, done."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import largest_difference, ragged

import hetfl_core.methods as methods
from hetfl_core import simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FedAvg
from hetfl_core.networks import MLP, Model

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def steps():
    """The file and the line that CONTRIBUTING tells the reader to write."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Adding a method")[1].split("\n## ")[0]
    file, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return file, line


@pytest.fixture(scope="module")
def fedavgm(steps, tmp_path_factory):
    """The package with that file and that line, in a copy of the methods' folder."""
    file, line = steps
    name = re.fullmatch(r"from hetfl_core\.methods\.(\w+) import \w+\n", line)[1]
    folder = tmp_path_factory.mktemp("methods")
    (folder / f"{name}.py").write_text(file, encoding="utf-8")
    methods.__path__.append(str(folder))
    scope = {}
    exec(line, scope)
    yield scope["FedAvgM"]
    methods.__path__.remove(str(folder))
    del sys.modules[f"hetfl_core.methods.{name}"]


def run(method, **options):
    settings = {"rounds": 3, "participation": 0.5, "dtype": torch.float64, "device": "cpu", "progress": False} | options
    return simulate(ragged(widths=(4, 4)), method, **settings)


SMALL = {"model": Model(MLP(hidden=(6,), out=4)), "local_epochs": 2, "batch_size": 8}


def test_one_file_and_two_lines_make_a_method(fedavgm):
    method = fedavgm(**SMALL, beta=0.3)
    assert "FedAvgM" in {m.name for m in methods._variants(methods.Method)}, "the catalogue finds it"
    stacked, loop = (run(method, engine=engine) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    plain = run(FedAvg(**SMALL))
    assert stacked.history["bytes_down"].tolist() == plain.history["bytes_down"].tolist(), "velocities stay at home"


def test_it_is_fedavgm(fedavgm):
    """Without momentum FedAvg; with it the second round goes further by β times the first."""
    plain = run(FedAvg(**SMALL))
    still = run(fedavgm(**SMALL, beta=0.0))
    for name, p in plain.server.items():
        torch.testing.assert_close(still.server[name], p, rtol=0, atol=1e-12)
    simulator = Simulator(ragged(widths=(4, 4)), fedavgm(**SMALL, beta=0.5), dtype=torch.float64, device="cpu")
    states = [simulator.initial()]
    for _ in range(2):
        states.append(simulator.round(states[-1], [0, 2, 3])[0])
    weights = [simulator.method.weight(simulator.specs[c]) for c in (0, 2, 3)]
    sent = simulator.train(states[1], [0, 2, 3], 1, "round")
    mean = methods.base.weighted_mean([sent[c].upload for c in (0, 2, 3)], weights)
    for name, w in mean.items():
        first = states[0].server[name] - states[1].server[name]
        torch.testing.assert_close(states[2].server[name], w - 0.5 * first, rtol=0, atol=1e-12)


def test_the_line_passes_the_linter(steps, tmp_path):
    """Among the other imports, as the text says; the package is copied, not touched."""
    file, line = steps
    folder = tmp_path / "hetfl_core" / "methods"
    shutil.copytree(ROOT / "hetfl_core", folder.parent, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (folder / "fedavgm.py").write_text(file, encoding="utf-8")
    init = folder / "__init__.py"
    before = "from hetfl_core.methods.fedcma"
    init.write_text(init.read_text(encoding="utf-8").replace(before, line + before), encoding="utf-8")
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "hetfl_core"]
        done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_text_is_in_step_with_the_package(steps):
    file, _ = steps
    assert max(map(len, file.splitlines())) <= 120
    assert (ROOT / "hetfl_core" / "methods" / "base.py").exists()
