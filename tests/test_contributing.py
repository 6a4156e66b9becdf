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
def fedprox(steps, tmp_path_factory):
    """The package with that file and that line, in a copy of the methods' folder."""
    file, line = steps
    name = re.fullmatch(r"from hetfl_core\.methods\.(\w+) import \w+\n", line)[1]
    folder = tmp_path_factory.mktemp("methods")
    (folder / f"{name}.py").write_text(file, encoding="utf-8")
    methods.__path__.append(str(folder))
    scope = {}
    exec(line, scope)
    yield scope["FedProx"]
    methods.__path__.remove(str(folder))
    del sys.modules[f"hetfl_core.methods.{name}"]


def run(method, **options):
    settings = {"rounds": 3, "participation": 0.5, "dtype": torch.float64, "device": "cpu", "progress": False} | options
    return simulate(ragged(widths=(4, 4)), method, **settings)


SMALL = {"model": Model(MLP(hidden=(6,), out=4)), "local_epochs": 2, "batch_size": 8}


def test_one_file_and_one_line_make_a_method(fedprox):
    method = fedprox(**SMALL, mu=0.3)
    assert "FedProx" in {m.name for m in methods._variants(methods.Method)}, "the catalogue finds it"
    stacked, loop = (run(method, engine=engine) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    assert "drift" in stacked.history


def test_it_is_fedprox(fedprox):
    """μ = 0 is FedAvg; a larger μ keeps clients nearer to what they received."""
    assert largest_difference(run(fedprox(**SMALL, mu=0.0)), run(FedAvg(**SMALL))) < 1e-12
    loose, tight = (run(fedprox(**SMALL, mu=mu)).history["drift"].iloc[1:].mean() for mu in (0.0, 100.0))
    assert tight < loose / 2


def test_the_line_passes_the_linter(steps, tmp_path):
    """Among the other imports, as the text says; the package is copied, not touched."""
    file, line = steps
    folder = tmp_path / "hetfl_core" / "methods"
    shutil.copytree(ROOT / "hetfl_core", folder.parent, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (folder / "fedprox.py").write_text(file, encoding="utf-8")
    init = folder / "__init__.py"
    before = "from hetfl_core.methods.fedrep"
    init.write_text(init.read_text(encoding="utf-8").replace(before, line + before), encoding="utf-8")
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "hetfl_core"]
        done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_text_is_in_step_with_the_package(steps):
    file, _ = steps
    assert max(map(len, file.splitlines())) <= 120
    assert (ROOT / "hetfl_core" / "methods" / "base.py").exists()
