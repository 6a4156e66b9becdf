"""What CONTRIBUTING says about adding a method, done."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from small import largest_difference, ragged

import hetfl_core.methods as methods
from hetfl_core import simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FedAvg, base
from hetfl_core.networks import MLP, Model

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def steps():
    """The file and the line that CONTRIBUTING tells the reader to write, and the hooks of another method."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Adding a method")[1].split("\n## ")[0]
    file, line, hooks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return file, line, hooks


@pytest.fixture(scope="module")
def fedavgm(steps, tmp_path_factory):
    """The package with that file and that line, in a copy of the methods' folder."""
    file, line, _ = steps
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


@pytest.fixture(scope="module")
def tree(steps, tmp_path_factory):
    """A copy of the project in which a contributor has done what the text says: a file, its import and its name."""
    file, line, _ = steps
    tree = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if path.name in ("hetfl_core", "tests"):
            shutil.copytree(path, tree / path.name)
        elif path.name in ("book", "data", "pyproject.toml", "CONTRIBUTING.md"):
            (tree / path.name).symlink_to(path)
    folder = tree / "hetfl_core" / "methods"
    module, name = re.fullmatch(r"from hetfl_core\.methods\.(\w+) import (\w+)\n", line).groups()
    (folder / f"{module}.py").write_text(file, encoding="utf-8")
    lines = (folder / "__init__.py").read_text(encoding="utf-8").splitlines(keepends=True)
    imports = next(i for i, known in enumerate(lines) if known.startswith("from hetfl_core.methods.") and known > line)
    names = next(i for i, known in enumerate(lines) if known == '    "FedBABU",\n')  # among the methods, by alphabet
    lines[names:names] = [f'    "{name}",\n']
    lines[imports:imports] = [line]
    (folder / "__init__.py").write_text("".join(lines), encoding="utf-8")
    return tree


def in_the_tree(tree, *command):
    """What a command prints there; it must end well."""
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'book'}"}
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_file_and_the_lines_pass_the_linter(tree):
    in_the_tree(tree, "-m", "ruff", "check", "hetfl_core/methods")
    in_the_tree(tree, "-m", "ruff", "format", "--check", "hetfl_core/methods")


EVERY_METHOD = "methods training personal blocks mixed deployment"
"""Test files in which every method of the catalogue is tried."""

PROGRAM = r"""
import sys
import pytest
from hetfl_core.cli import app

app(["list"], standalone_mode=False)
print(end="\f")
few = "--federation toy.four_gaussians --rounds 1 --device cpu --set beta=0.5"
app(["run", "FedAvgM", *few.split()], standalone_mode=False)
print(end="\f", flush=True)
sys.exit(pytest.main(sys.argv[1:]))
"""
"""In one process, for it costs seconds to start."""


def test_nothing_else_has_to_be_touched(tree):
    """What a contributor runs then: the command line, and tests of every method, of the house and of what is kept."""
    files = [f"tests/test_{name}.py" for name in f"{EVERY_METHOD} architecture golden mutants".split()]
    known = "FedAvgM or test_architecture or test_methods and catalogue or promised and defaults or every_example"
    known = f"({known} or every_module_of_the_core) and not hetfl_book"  # that package is as it was
    said = in_the_tree(tree, "-c", PROGRAM, "-q", "-pno:cacheprovider", "-rA", "-k", known, *files)
    listed, ran, tested = said.split("\f")
    assert "FedAvgM" in listed
    assert "accuracy" in ran
    for name in EVERY_METHOD.split():
        assert re.search(rf"PASSED tests/test_{name}\.py::\w+\[FedAvgM", tested), f"no test of {name} tried it"
    assert "PASSED tests/test_golden.py::test_every_example_is_kept" in tested
    if os.name == "posix":  # where there are mutants
        assert "PASSED tests/test_mutants.py::test_every_module_of_the_core" in tested


def test_the_text_is_in_step_with_the_package(steps):
    assert max(len(line) for text in steps for line in text.splitlines()) <= 120
    assert (ROOT / "hetfl_core" / "methods" / "base.py").exists()


def test_hooks_of_a_loss_of_ones_own_do_what_is_said(steps):
    """With a server that averages the classes' means: at a weight of 0 it is local training, and else it is not."""
    source = f"""
@dataclass(frozen=True)
class Pulled(Local):
    term_weight: float = 1.0

    def init_server(self, specs, rng):
        return {{"means": torch.zeros(specs[0].n_classes, self.model.latent, dtype=torch.float32)}}

{textwrap.indent(steps[2], "    ")}
    def aggregate(self, server, uploads, weights, specs, rng):
        new = weighted_mean(uploads, weights)
        return {{"means": torch.stack([new.get(f"mean/{{c}}", old) for c, old in enumerate(server["means"])])}}
"""
    scope = {"__name__": __name__, **vars(base), "torch": torch, "dataclass": dataclass, "Local": methods.Local}
    exec(source, scope)
    free, pulled = (run(scope["Pulled"](**SMALL, term_weight=weight)) for weight in (0.0, 1.0))
    alone = run(methods.Local(**SMALL))
    gaps = [
        max(float((a[name] - b[name]).abs().max()) for a, b in zip(one.params, alone.params, strict=True) for name in b)
        for one in (free, pulled)
    ]
    assert gaps[0] < 1e-12 < 1e-3 < gaps[1]
    assert pulled.history["gap"].iloc[1:].notna().all()
    assert (pulled.server["means"] != 0).all()
