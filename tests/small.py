"""Small federations and experiments for the tests."""

import numpy as np
import torch

from hetfl_book import experiments
from hetfl_book.papers.experiment import Experiment
from hetfl_core import Client, Federation
from hetfl_core.methods import FLIC, Local
from hetfl_core.networks import MLP, Model
from hetfl_core.rng import numpy_stream

SMALL_MODEL = Model(MLP(hidden=(6,), out=4), alpha=4)


def ragged(n_clients=6, n_classes=5, widths=(3, 8), sizes=(7, 22), seed=0, images=False):
    """Clients with unequal numbers of samples and, unless both widths are equal, of features."""
    rng = numpy_stream(seed, "tests", 0, "ragged")
    clients = []
    for i in range(n_clients):
        n, classes = int(rng.integers(*sizes)), rng.choice(n_classes, 3, replace=False)
        width = widths[0] if widths[0] == widths[1] else int(rng.integers(*widths))
        y = classes[np.arange(n) % 3]
        shape = (1, (16, 18)[i % 2], (16, 18)[i % 2]) if images else (width,)
        x = rng.normal(size=(n, *shape)) + y.reshape(-1, *[1] * len(shape))
        clients.append(Client(x, y, x[: 5 + i], y[: 5 + i], f"client-{i}"))
    return Federation(clients, n_classes, "ragged")


def small_experiments(monkeypatch, tmp_path, named, **options):
    """``tests/<name>`` for each name with options of its own, in place of all others; checkpoints below `tmp_path`."""
    methods = {
        "Local": Local(model=SMALL_MODEL, local_epochs=1),
        "FLIC-HL": FLIC(model=SMALL_MODEL, local_epochs=1, pretrain_epochs=2),
    }
    common = {"participation": 0.5, "dataset": "toy.noisy_features", **options}
    made = {
        f"tests/{name}": Experiment(name, lambda seed: ragged(seed=seed), methods, **common, **own)
        for name, own in named.items()
    }
    monkeypatch.setattr(experiments, "EXPERIMENTS", made)
    monkeypatch.setenv("HETFL_CHECKPOINTS", str(tmp_path / "checkpoints"))


def equal_histories(a, b):
    """Whether two histories are the same bit for bit, but for the seconds."""
    a, b = a.drop(columns="seconds"), b.drop(columns="seconds")
    return a.equals(b)


def largest_difference(run_a, run_b):
    """Largest difference over all tensors of two runs, client by client's name; NaN where there is one."""
    a, b = ({c.name: k for c, k in zip(run.federation, run.client_states, strict=True)} for run in (run_a, run_b))
    assert a.keys() == b.keys()
    gaps = [_gap(a[name], b[name]) for name in a]
    return float(np.max([*gaps, _gap(run_a.server, run_b.server)]))


def _gap(a, b):
    """Largest difference between two dicts of tensors of the same names."""
    assert a.keys() == b.keys()
    return np.max([0.0, *(float((p - b[name]).abs().max()) for name, p in a.items() if p.numel())])


def assert_same_tensors(a, b):
    """Bitwise equality of two dicts of tensors."""
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
