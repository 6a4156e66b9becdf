"""PyTorch's default dtype is the user's own affair: no number of ours depends on it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from small import assert_same_tensors, equal_histories, ragged

import hetfl_core
from hetfl_book.datasets import project, solids
from hetfl_book.theory import flic as theory
from hetfl_book.theory import flic_bound, flic_distances
from hetfl_core import adapt, simulate
from hetfl_core.datasets import digits, toy
from hetfl_core.federation import Client
from hetfl_core.methods import FLIC, FedAvg, FedHeNN, FedRep, HetFedRep, Local
from hetfl_core.methods.alignment import MMD, MixtureWasserstein
from hetfl_core.methods.privacy import Privacy
from hetfl_core.methods.schemes import L2GDScheme
from hetfl_core.networks import CNN, MLP, Model

SMALL = Model(MLP(hidden=(8,), out=6), alpha=5)
QUICK = {"model": SMALL, "local_epochs": 1, "batch_size": 8}
FLIC_QUICK = QUICK | {"pretrain_epochs": 1}

METHODS = {
    "Local with dropout": Local(**QUICK | {"model": Model(MLP((8,), 6, dropout=0.5), alpha=5)}),
    "HetFedRep": HetFedRep(**QUICK),
    "FedHeNN": FedHeNN(n_rad=7, **QUICK),
    "FLIC": FLIC(**FLIC_QUICK),
    "FLIC as published": FLIC.published(**FLIC_QUICK | {"local_epochs": 2, "representation_from": 0}),
    "FLIC, covariances": FLIC(covariance="learned", barycentre="exact", **FLIC_QUICK),
    "FLIC, meta-classes": FLIC(meta_classes=(0, 0, 1, 1, 2), **FLIC_QUICK),
    "FLIC, MMD": FLIC(alignment=MMD(), scheme=L2GDScheme(), **FLIC_QUICK),
    "FLIC, mixtures": FLIC(alignment=MixtureWasserstein(), **FLIC_QUICK),
    "FLIC, private": FLIC(privacy=Privacy(0.1), weighting="uniform", **FLIC_QUICK),
}

FEDERATIONS = {
    "toy.noisy_features": lambda: toy.noisy_features(
        n_clients=4, classes_per_client=2, n_classes=5, n_train_per_class=40, n_test_per_class=20
    ),
    "toy.linear_mapping": lambda: toy.linear_mapping(
        n_clients=4, classes_per_client=2, n_classes=5, variant="code", n_train_per_class=400, n_test_per_class=200
    ),
    "toy.linear_regression": lambda: toy.linear_regression(3, n_test=10),
    "toy.four_gaussians": toy.four_gaussians,
    "digits.bundled": lambda: digits.bundled(4, 2),
    "solids.views": lambda: solids.views(per_class=2, test_per_class=1, size=4),
    "projected by t-SNE": lambda: project.to_common_space(ragged(3), 2, iterations=5),
}


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def under_both(make):
    found = []
    for dtype in (torch.float32, torch.float64):
        with default(dtype):
            found.append(make())
    return found


def run(method, federation=None, **options):
    options = {"rounds": 2, "participation": 0.5, "device": "cpu", "progress": False} | options
    return simulate(federation or ragged(4), method, **options)


def assert_same_run(a, b):
    assert equal_histories(a.history, b.history)
    assert_same_tensors(a.server, b.server)
    for part in ("client_states", "params"):
        for mine, other in zip(getattr(a, part), getattr(b, part), strict=True):
            assert_same_tensors(mine, other)


LOOPED = ("Local with dropout", "FLIC as published", "FLIC, private")
"""What draws numbers in all ways that there are: all that the engine has of its own, and hooks are the same in both."""


@pytest.mark.parametrize(
    ("name", "engine"), [*((name, "stacked") for name in METHODS), *((name, "loop") for name in LOOPED)]
)
def test_a_run_does_not_depend_on_the_default(name, engine):
    assert_same_run(*under_both(lambda: run(METHODS[name], engine=engine)))


@pytest.mark.parametrize("name", ["FLIC", "FLIC as published", "FLIC, covariances"])
def test_nor_does_one_in_double_precision(name):
    assert_same_run(*under_both(lambda: run(METHODS[name], dtype=torch.float64)))


@pytest.mark.parametrize("method", [FedAvg(**QUICK), FedRep(**QUICK)])
def test_nor_one_of_equal_inputs(method):
    assert_same_run(*under_both(lambda: run(method, ragged(4, widths=(3, 3)))))


def test_nor_one_of_images_or_of_real_targets():
    images = Model(CNN(out=6, channels=(3, 2), kernel=3), alpha=5)
    assert_same_run(*under_both(lambda: run(FLIC(**FLIC_QUICK | {"model": images}), ragged(2, images=True))))
    assert_same_run(*under_both(lambda: run(FLIC(**FLIC_QUICK), toy.linear_regression(3, n_test=10))))


@pytest.mark.parametrize("name", FEDERATIONS)
def test_nor_does_a_data_set(name):
    a, b = under_both(FEDERATIONS[name])
    assert a.fingerprint() == b.fingerprint()


def test_nor_do_newcomers():
    def adapted():
        old = ragged(4)
        new = [Client(c.x_train, c.y_train, c.x_test, c.y_test, f"new {c.name}") for c in ragged(2, seed=1)]
        return adapt(run(FLIC(**FLIC_QUICK), old), new, device="cpu", progress=False)

    assert_same_run(*under_both(adapted))


def test_nor_does_the_theory():
    def numbers():
        of = theory.linear_federation(6, 4, 2, freedom="signs")
        z, y = of.embed(of.oracle)
        S = theory.closed_form_phi(of.clients[0].mean, of.clients[0].covariance, 4, theory.random_signs(4)).weight
        path = theory.flic_fedrep(z, y, 2, 5, participation=0.5)
        spectra = flic_bound.head_spectra(of.heads, 0.5)
        m, v, eye = z[0, 0], z[0, 1], torch.eye(4, dtype=torch.float64)
        return [S, path, spectra, flic_distances.simulate_w2(m, eye, v, 2 * eye, 20, 10)]

    for mine, other in zip(*under_both(numbers), strict=True):
        assert mine.dtype == other.dtype == torch.float64
        # Single precision anywhere would show at 1e-8; LAPACK's last bit was seen to hang on where memory lies.
        assert torch.allclose(mine, other, rtol=1e-12, atol=1e-13)


def test_a_checkpoint_goes_on_under_another_default(tmp_path):
    method = FLIC.published(**FLIC_QUICK | {"local_epochs": 2, "representation_from": 0})
    whole = run(method, rounds=3)
    with default(torch.float64):
        run(method, rounds=1, checkpoint=tmp_path)
    assert_same_run(whole, run(method, rounds=3, checkpoint=tmp_path))


FACTORIES = {"tensor", "rand", "randn", "normal", "empty", "zeros", "ones", "full", "eye", "linspace", "logspace"}
"""What makes a tensor of the default dtype where it is not told another."""


def test_every_new_tensor_of_the_core_names_its_dtype():
    folder = Path(hetfl_core.__file__).parent
    unnamed = [
        f"{path.relative_to(folder)}, line {call.lineno}: torch.{call.func.attr}"
        for path in sorted(folder.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text("utf8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "torch"
        and call.func.attr in FACTORIES
        and "dtype" not in {keyword.arg for keyword in call.keywords}
    ]
    assert unnamed == []
