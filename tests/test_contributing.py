"""The methods of CONTRIBUTING and of its page for authors of methods: they compute what is said of them."""

import re
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
    further = (ROOT / "contributing" / "methods.md").read_text(encoding="utf-8")
    file, line, hooks = re.findall(r"```python\n(.*?)```", section + further, re.DOTALL)
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
