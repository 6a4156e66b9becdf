"""What is computed for `test_golden.py`: one small example of each way through the code that gives numbers."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import test_fuzz
import torch
from fuzzing import Case
from small import ragged
from tensors import covariance, normal
from test_blocks import PHI as BLOCK_PHI
from test_blocks import holding
from test_training import federation_for
from torch import Tensor

import hetfl_core
from hetfl_book import calibration
from hetfl_book.datasets import eeg_blocks, fedgen, flic_bci, pfedhn, project, solids, text
from hetfl_book.ledger import RunRecord, judging
from hetfl_book.papers import eeg as eeg_papers
from hetfl_book.theory import flic as theory
from hetfl_book.theory import flic_bound, flic_distances
from hetfl_core import (
    Client,
    Federation,
    adapt,
    baselines,
    distances,
    matching,
    methods,
    partition,
    simulate,
    statistics,
)
from hetfl_core.datasets import digits, eeg, eeg_simulated, eeg_trials, eegmmidb, femnist, toy
from hetfl_core.datasets.fewer import fewer_trials
from hetfl_core.datasets.recordings import CLASSES, Recordings
from hetfl_core.engine import evaluation, stacks
from hetfl_core.methods import FLIC, FedAvg, FedCMA, FedHeNN, HetFedRep, Local
from hetfl_core.methods import anchor_terms as terms
from hetfl_core.methods.alignment import (
    MMD,
    DebiasedWasserstein,
    MixtureWasserstein,
    SampledWasserstein,
    segment_distance,
    segment_means,
)
from hetfl_core.methods.privacy import Privacy, epsilon, noise_multiplier
from hetfl_core.networks import CNN, MLP, Draw, Model
from hetfl_core.plugins import data_sets
from hetfl_core.rng import numpy_stream, stream

CASES: dict[str, Callable[[], Mapping[str, Any]]] = {}
"""What to compute, by name: named numbers, arrays, or nests of them."""

NEEDS: dict[str, tuple[str, ...]] = {}
"""Packages, and data sets, without which a case is left out."""


TOLERANCES: dict[str, float] = {}
"""By example, where other instructions move the numbers by more than `TOLERANCE`."""

TOLERANCE = 1e-5
"""Relative. PyTorch, MKL and NumPy held to SSE, to AVX2 or to nothing, and the loop beside the stacked engine, agree to
3e-7 in all that does not say otherwise."""


def case(
    name: str, *needs: str, tolerance: float = TOLERANCE
) -> Callable[[Callable[[], Mapping[str, Any]]], Callable[[], Mapping[str, Any]]]:
    def add(made: Callable[[], Mapping[str, Any]]) -> Callable[[], Mapping[str, Any]]:
        assert name not in CASES, f"two examples are called {name!r}"
        CASES[name], NEEDS[name], TOLERANCES[name] = made, needs, tolerance
        return made

    return add


# --- numbers that a person can read -----------------------------------------------------------------------------------


def readable(value: Any) -> Any:
    """Words, a whole number, one to four numbers of eight digits, or a sketch of more: see `sketch`."""
    if isinstance(value, str):
        return value
    if isinstance(value, pd.DataFrame):
        value = {str(column): value[column].to_numpy() for column in value if value[column].dtype.kind in "fiub"}
    if isinstance(value, Mapping):
        return {str(name): readable(inner) for name, inner in value.items() if name != "seconds"}
    if isinstance(value, bool | int | np.integer):
        return int(value)
    found = numbers(value)
    if found.size == 1:
        return eight(found[0])
    return [*map(eight, found)] if found.size <= 4 else sketch(found)


def numbers(value: Any) -> np.ndarray:
    """All numbers of a nest of arrays, one after the other; words and what took how long are left out."""
    if isinstance(value, pd.DataFrame):
        value = {str(column): value[column].to_numpy() for column in value if column != "seconds"}
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if hasattr(value, "__dict__") and not isinstance(value, np.ndarray):
        value = vars(value)
    if isinstance(value, Mapping):
        value = [value[name] for name in value if name != "seconds"]
    if isinstance(value, list | tuple):
        return np.concatenate([np.zeros(0), *map(numbers, value)])
    array = np.asarray(value)
    return array.astype(float).ravel() if array.dtype.kind in "fiub" else np.zeros(0)


def sketch(x: np.ndarray) -> list[float | None]:
    """How many there are, their root mean square, and a sum that knows their order, divided by the root of how many."""
    x = np.nan_to_num(x, nan=-7.0, posinf=7.0, neginf=-9.0)
    order = np.cos(np.arange(x.size) ** 0.5)
    return [x.size, eight((x @ x / x.size) ** 0.5), eight(x @ order / x.size**0.5)]


def eight(x: float) -> float | None:
    return None if np.isnan(x) else float(f"{x:.8g}")


def dealt(parts: Any) -> dict[str, Any]:
    """How many samples each client was dealt, and a sum of which ones that knows their order: whole numbers."""
    rows = np.concatenate([*map(np.ravel, parts)]).astype(int)
    return {"sizes": " ".join(str(np.size(p)) for p in parts), "rows": int(rows @ np.arange(1, len(rows) + 1))}


def of_federation(federation: Federation) -> dict[str, Any]:
    """Counts, the first two moments of inputs, and sketches."""
    x = numbers([c.x_train for c in federation])
    return {
        "train": " ".join(str(len(c.y_train)) for c in [*federation][:12]),
        "test": " ".join(str(len(c.y_test)) for c in [*federation][:12]),
        "mean, sd": [x.mean(), x.std()],
        "x": x,
        "y": [c.y_train for c in federation],
        "x_test": [c.x_test for c in federation],
        "y_test": [c.y_test for c in federation],
    }


def of_run(run: Any) -> dict[str, Any]:
    """What a run says of itself: results, bytes, and sketches of what was trained."""
    return {
        "final": run.final,
        "history": run.history,
        "per client": run.per_client,
        "server": [run.server[name] for name in sorted(run.server)] or [0.0],
        "clients": [params[name] for params in run.params for name in sorted(params)],
        "embedded": numbers(run.embed("test")),
        "predicted": numbers(run.outputs("train")),
    }


def rng(name: str) -> np.random.Generator:
    return numpy_stream(0, "values", 0, name)


def with_gradients(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """The value of a function and its gradients, each weighted by numbers that no symmetry spares."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    value = function(*leaves)
    (value * torch.arange(1, value.numel() + 1, dtype=value.dtype).view(value.shape).sqrt()).sum().backward()
    return [value.detach(), *(t.grad for t in leaves if t.grad is not None)]


def psd(*batch: int, k: int = 4, seed: int = 0, rank: int | None = None) -> Tensor:
    return covariance(*batch, k=k, seed=seed, rank=rank)


# --- distances --------------------------------------------------------------------------------------------------------


@case("distances of Gaussians")
def _() -> Any:
    m1, m2, S1, S2 = normal(2, 3, 4, seed=1), normal(3, 4, seed=2), psd(2, 3, seed=3), psd(3, seed=4)
    v1, v2 = normal(2, 3, 4, seed=5).square() + 0.1, normal(3, 4, seed=6).square() + 0.1
    return {
        "W2²": distances.bures_wasserstein(m1[0, 0], S1[0, 0], m2[0], S2[0]),
        "all": with_gradients(distances.bures_wasserstein, m1, S1, m2, S2),
        "Bures, one of rank 2": with_gradients(distances.bures, S1, psd(3, rank=2, seed=7)),
        "KL": distances.gaussian_kl(m1[0, 0], v1[0, 0], m2[0], v2[0]),
        "KL, diagonal": with_gradients(distances.gaussian_kl, m1, v1, m2, v2),
        "KL, matrices": with_gradients(distances.gaussian_kl, m1, S1, m2, S2),
        "root": distances.psd_root(S1),
        "inverse root": distances.psd_root(S1, inverse=True),
        "E tr √W": [distances.expected_root_trace(n, k) for n, k in ((2, 1), (7, 4), (40, 3), (4, 40))],
    }


@case("distances of samples")
def _() -> Any:
    x, y = normal(2, 9, 3, seed=1), normal(2, 7, 3, seed=2) * 1.5 + 0.3
    return {
        "MMD": distances.mmd(x, y),
        "MMD, gradients": with_gradients(distances.mmd, x, y),
        "unbiased": distances.mmd(x, y, unbiased=True),
        "bandwidths": distances.mmd(x, y, torch.tensor([0.7, 2.0]).double()),
        "squared": distances.squared_distances(x),
        "CKA": distances.cka(normal(2, 8, 3, seed=3), normal(2, 8, 5, seed=4)),
        "CKA, gradients": with_gradients(distances.cka, normal(2, 8, 3, seed=3), normal(2, 8, 5, seed=4)),
        "principal angles": distances.principal_angle(normal(2, 6, 3, seed=5), normal(6, 3, seed=6)),
    }


@case("transport plans and matching")
def _() -> Any:
    a, b = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([0.6, 0.4]).double()
    cost = normal(3, 2, seed=1).square()
    return {
        "plan": distances.transport_plan(cost, a, b),
        "plans": distances.transport_plan(normal(5, 2, 3, seed=7).square(), b, a),
        "equal masses": distances.transport_plan(normal(4, 3, 3, seed=6).square(), *2 * [torch.ones(3).double()]),
        "assigned": " ".join(map(str, matching.assign(normal(7, 5, seed=3)).tolist())),
    }


@case("averages of Gaussians")
def _() -> Any:
    m, S, w = normal(5, 3, seed=1), psd(5, k=3, seed=2), torch.tensor([1.0, 2.0, 0.0, 0.5, 3.0]).double()
    L = torch.linalg.cholesky(S)
    v = normal(5, 3, seed=3).square() + 0.1
    return {
        "barycentre": distances.gaussian_barycentre(m, S),
        "weighted": distances.gaussian_barycentre(m, S, w),
        "loosely": distances.gaussian_barycentre(m, S, w, tolerance=1e-3),
        "several": distances.gaussian_barycentre(normal(4, 2, 3, seed=4), psd(4, 2, k=3, seed=5)),
        "anchors": distances.average_anchors(m, L, w),
        "means alone": distances.average_anchors(m)[0],
        "experts": distances.product_of_experts(m, v),
        "experts and a prior": distances.product_of_experts(m, v, w, prior=True),
    }


# --- anchor terms -----------------------------------------------------------------------------------------------------


def rows(n: int = 14, k: int = 5, C: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    """Embedded rows of one client, their classes (one of a single row), weights of which two are 0, and means."""
    y = torch.arange(n) % 3 + 1
    y[4] = 5
    weight = torch.ones(n, dtype=dtype)
    weight[[2, n - 1]] = 0
    return normal(n, k, seed=seed, dtype=dtype), y, weight, normal(C, k, seed=seed + 1, dtype=dtype)


for _n, _k in ((14, 5), (66, 40), (9, 16)):

    @case(f"anchor terms of {_n} rows of {_k} numbers")
    def _(n: int = _n, k: int = _k) -> Any:
        z, y, w, means = rows(n, k)
        L = normal(6, k, k, seed=3).tril() + torch.eye(k, dtype=torch.float64)
        mixtures, drawn = normal(6, 3, k, seed=4), normal(n, k, seed=9)
        return {
            "W2²": terms.class_wasserstein(z, y, w, means),
            "variance 1.7": with_gradients(lambda z, v: terms.class_wasserstein(z, y, w, v, variance=1.7), z, means),
            "covariances": with_gradients(lambda z, v, L: terms.class_wasserstein(z, y, w, v, L), z, means, L),
            "sampled": with_gradients(lambda z, s: terms.class_wasserstein_sampled(z, s, y, w, 6), z, drawn),
            "debiased": with_gradients(lambda z, v: terms.class_wasserstein_debiased(z, y, w, v, 0.6), z, means),
            "MMD": with_gradients(lambda z, v: terms.class_mmd(z, y, w, v, 1.3), z, means),
            "MMD, variance 0.8": with_gradients(lambda z, v: terms.class_mmd(z, y, w, v, 1.3, 0.8), z, means),
            "mixtures": with_gradients(lambda z, v: terms.class_mixture_wasserstein(z, y, w, v, 1.3), z, mixtures),
        }


@case("anchor terms of several clients at once")
def _() -> Any:
    each = [rows(11, seed=s) for s in (0, 10, 20)]
    z, y, w, means = (torch.stack(t) for t in zip(*each, strict=True))
    y = torch.stack([y[0], (y[1] + 1) % 6, y[2].flip(0)])
    w = w * (torch.arange(11) < torch.tensor([11, 8, 4])[:, None])
    lifted = {of.__name__: torch.vmap(of) for of in (terms.class_wasserstein, terms.class_mmd)}
    both = torch.vmap(torch.vmap(terms.class_wasserstein, (0, 0, 0, None)), (None, None, None, 0))
    return {
        **{name: with_gradients(lambda z, v, of=of: of(z, y, w, v), z, means) for name, of in lifted.items()},
        "each by each": with_gradients(lambda z, v: both(z, y, w, v), z, means),
    }


@case("anchors of a regression")
def _() -> Any:
    ends, y, z = normal(2, 3, seed=1), torch.tensor([0.0, 0.3, 1.0]).double(), normal(3, 3, seed=2)
    w = torch.tensor([1.0, 1.0, 0.5]).double()
    return {
        "means": segment_means(ends, y),
        "distance": with_gradients(lambda e, z: segment_distance(e, z, y, w), ends, z),
    }


# --- theory -----------------------------------------------------------------------------------------------------------


def linear_theory(freedom: Any) -> dict[str, Any]:
    f = theory.linear_federation(6, 5, 2, 8, 9, 3, freedom, seed=4)
    z, y = f.embed(f.oracle)
    path = theory.flic_fedrep(z, y, 2, rounds=6, step=0.2, participation=0.5, seed=1)
    start = theory.method_of_moments(z, y, 2)
    bound = flic_bound.convergence_bound(f.A + 0.02 * start, f.A, f.heads, 1.0, 0.05)
    printed = flic_bound.printed_bound(f.A + 0.02 * start, f.A, f.heads, 1.0, None)
    phi = theory.closed_form_phi(f.clients[1].mean, f.clients[1].covariance, 3)
    return {
        "federation": [[vars(c) for c in f.clients], f.A, f.heads],
        "distances": theory.distances_to(path, f.A)[1:4],
        "all distances": theory.distances_to(path, f.A),
        "errors": theory.prediction_errors(path, (z, y), f.embed(f.oracle, test=True)),
        "rate, bounds": [theory.measured_rate(0.7 ** torch.arange(9).double() + 1e-7), bound.rate, printed.rate],
        "bounds": [vars(bound), bound.curve(4), vars(printed)],
        "spectra": flic_bound.head_spectra(f.heads, 0.5),
        "phi": phi.weight,
        "Gromov": theory.gromov_wasserstein_cost(f.clients[1].covariance, phi.weight),
    }


@case("linear theory")
def _() -> Any:
    return {freedom: linear_theory(freedom) for freedom in ("common", "signs", "rotation")}


@case("limit law")
def _() -> Any:
    m, v, S, anchor = normal(3, seed=1), normal(3, seed=2), psd(k=3, seed=3), psd(k=3, seed=4)
    draws = flic_distances.simulate_w2(m, S, v, anchor, n=40, repeats=30, seed=2)
    return {
        "map": flic_distances.optimal_map(S, anchor),
        "variance": flic_distances.limit_variance(m, S, v, anchor),
        "printed": [flic_distances.limit_variance_printed(m, S, v, anchor, of) for of in ("class", "product")],
        "draws": draws,
        "measured": flic_distances.variance_with_error(draws),
        "expected W2²": [flic_distances.expected_w2(n, k, 1.4) for n, k in ((3, 2), (9, 4), (5, 9))],
        "bias of a batch": [flic_distances.batch_bias(n, k, 1.4) for n, k in ((3, 2), (9, 4), (5, 9))],
        "shrunk": [flic_distances.shrunk_scale(n, k) for n, k in ((3, 2), (9, 4), (5, 9))],
    }


# --- partitions: whole numbers ----------------------------------------------------------------------------------------


@case("partition.assign_classes")
def _() -> Any:
    return {
        "balanced": dealt(partition.assign_classes(9, 7, 3, rng("deck"))),
        "with repeats": dealt(partition.assign_classes(5, 3, 4, rng("deck 3"), allow_repeats=True)),
        "consecutive": dealt(partition.consecutive_classes(5, 7, 3)),
    }


LABELS = rng("labels").integers(0, 7, 900)
EVEN = np.arange(600) % 6


def deck() -> Any:
    return partition.assign_classes(9, 7, 3, rng("deck"))


def dealt_by_classes() -> Any:
    r = rng("classes")
    return partition.share(LABELS, partition.assign_classes(12, 7, 2, r), r)


@case("partition.classes_per_client")
def _() -> Any:
    return {"balanced": dealt(dealt_by_classes())}


@case("partition.share")
def _() -> Any:
    return dealt(partition.share(LABELS, deck(), rng("share"), at_least=4))


@case("partition.published_shards")
def _() -> Any:
    return {
        "usual": dealt(partition.published_shards(LABELS, deck(), rng("shards 2"))),
        "few": dealt(partition.published_shards(LABELS[:450], deck(), rng("shards"))),
    }


@case("partition.dirichlet")
def _() -> Any:
    return {
        "uneven": dealt(partition.dirichlet(LABELS, 8, 0.2, rng("dirichlet"), min_size=12)),
        "nearly even": dealt(partition.dirichlet(LABELS, 5, 20.0, rng("dirichlet 2"))),
    }


@case("partition.dirichlet_per_client")
def _() -> Any:
    return dealt(partition.dirichlet_per_client(EVEN, 6, 0.5, rng("each")))  # to the last sample


@case("partition.share_evenly")
def _() -> Any:
    return dealt(partition.share_evenly(EVEN, np.arange(6).reshape(3, 2), rng("even"), per_client=150))


@case("partition.share_alike")
def _() -> Any:
    return dealt(partition.share_alike(LABELS, dealt_by_classes(), rng("others").integers(0, 7, 210), rng("alike")))


@case("toy.thinned")
def _() -> Any:
    parts = [np.arange(90), np.arange(90, 300)]
    return {variant: dealt(toy.thinned(parts, rng(variant), variant=variant)) for variant in ("text", "code")}


@case("partition.split_each")
def _() -> Any:
    train, test = partition.split_each(LABELS, [np.arange(400), np.arange(400, 900)], 0.3, rng("split"))
    return {"train": dealt(train), "test": dealt(test)}


@case("uneven shares")
def _() -> Any:
    y = rng("labels").integers(0, 6, 400)
    found = {variant: pfedhn.uneven_shares(9, 6, 2, rng("shares"), variant=variant) for variant in ("text", "code")}
    return {name: dealt(pfedhn.cut(y, *each, rng("cut"))) for name, each in found.items()}


# --- federations and data sets ----------------------------------------------------------------------------------------


@case("Federation.from_frame")
def _() -> Any:
    g = rng("frame")
    frame = pd.DataFrame(g.normal(size=(60, 3)), columns=list("pqr"))
    frame["site"], frame["y"] = list("ABC" * 20), g.choice(["no", "yes"], 60)
    frame.loc[frame.site == "B", "q"] = np.nan
    made = Federation.from_frame(frame, client="site", target="y", test_size=0.3, seed=3)
    frame["y"] = g.random(60)
    real = Federation.from_frame(frame, client="site", target="y", test_size=0.25, task="regression")
    return {"classes": of_federation(made), "regression": of_federation(real)}


@case("Federation.from_arrays")
def _() -> Any:
    g = rng("arrays")
    arrays = {name: (g.normal(size=(20, d)), g.choice(["no", "yes", "may be"], 20)) for name, d in (("a", 2), ("b", 5))}
    return of_federation(Federation.from_arrays(arrays, test_size=0.4, seed=1))


FEW = {"n_train_per_class": 60, "n_test_per_class": 30}
LAB = Recordings("Lab", "", 3, ("Fpz", "C3", "Cz", "C4", "Pz", "O1", "O2"), 128.0, CLASSES, 3, 2, (0.5, 2.5))
"""A small laboratory of our own."""
EEG = ("mne", "moabb", "pyriemann")
ALEX = {"subjects": 1, "datasets": ["AlexMI"], "progress": False, "seed": 1}


def data(name: str, *needs: str, tolerance: float = TOLERANCE, **makers: Callable[[], Federation]) -> None:
    """An example of a data set, made in one or several ways."""
    of = partial(case, f"data: {name}", *needs, tolerance=tolerance)
    of()(lambda: {how: of_federation(make()) for how, make in makers.items()})


data(
    "toy.noisy_features",
    text=lambda: toy.noisy_features(n_clients=6, classes_per_client=2, seed=1, **FEW),
    code=lambda: toy.noisy_features(
        n_clients=5, classes_per_client=2, seed=3, variant="code", n_classes=6, dim=3, sigma=0.4, added=(2, 4), **FEW
    ),
)
data(
    "toy.linear_mapping",
    text=lambda: toy.linear_mapping(n_clients=6, classes_per_client=3, seed=2, **FEW),
    code=lambda: toy.linear_mapping(
        n_clients=5, classes_per_client=2, seed=3, variant="code", dim=4, widths=(3, 6), subsample=False, **FEW
    ),
)
data(
    "toy.linear_regression",
    usual=lambda: toy.linear_regression(3),
    small=lambda: toy.linear_regression(4, 2, dim=3, widths=(4, 8), noise=0.3, n_train=(5, 9), n_test=6),
)
data("toy.four_gaussians", few=lambda: toy.four_gaussians(1, many=7, few=2, n_test=3))
data(
    "solids.views",
    usual=lambda: solids.views(seed=1, per_class=2, test_per_class=1, size=6),
    noisy=lambda: solids.views(
        seed=2, per_class=2, test_per_class=1, size=6, assignment="4 views", n_views=4, noise=0.1, overlap=0.5
    ),
)
data("digits.bundled", usual=digits.bundled, few=lambda: digits.bundled(6, 4, 2, test_fraction=0.4))
data(
    "text.two_modalities",
    text=lambda: text.two_modalities(n_clients=8, classes_per_client=2, seed=1, n_pairs=400, prune=0.1),
    code=lambda: text.two_modalities(n_clients=4, classes_per_client=2, seed=1, variant="code", n_pairs=400, prune=0.3),
)
data(
    "eeg.simulated",
    *EEG,
    tolerance=0.7,  # tangent vectors of matrices near singular: by instructions their signs differ, not their size
    specific=lambda: eeg.simulated("specific", **ALEX),
    common=lambda: eeg.simulated("common", **ALEX),
)
data(
    "eeg_blocks.simulated",
    *EEG,
    tolerance=0.01,
    few=lambda: eeg_blocks.simulated(1, subjects=1, trials=10, people=1, progress=False),
)
data("femnist.characters", "femnist.characters", few=lambda: femnist.characters(n_clients=3, seed=1))
data(
    "femnist.digits",
    "femnist.digits",
    text=lambda: femnist.digits(n_clients=4, seed=1),
    code=lambda: femnist.digits(n_clients=3, variant="code", scaling="tenth"),
)
data(
    "digits.mnist_usps",
    "digits.mnist_usps",
    text=lambda: fewer_trials(digits.mnist_usps(n_clients=4, seed=1), 600, 1),
    code=lambda: fewer_trials(digits.mnist_usps(n_clients=4, variant="code", resize=12), 500, 1),
)
data("fedgen.mnist", "fedgen.mnist", few=lambda: fedgen.mnist(n_clients=10, alpha=0.3, seed=1, ratio=0.02))
data("flic_bci.common40", "flic_bci.common40", whole=flic_bci.common40)
data("eeg.eegmmidb", "eeg.eegmmidb", whole=eegmmidb.one_person)


@case("rendered solids and digits")
def _() -> Any:
    sizes = rng("sizes").random((2, 5))
    shapes = {shape: solids.render(shape, sizes, [0.3, -2.0], [0.0, 1.0], tilt=[0.1, -0.1], size=5)
              for shape in solids.SHAPES}  # fmt: skip
    return {**shapes, "block means": digits.block_means(rng("images").random((5, 16, 16)))}


@case("projections")
def _() -> Any:
    p = project.affinities(normal(12, 4, seed=3), 4.0)
    return {"affinities": p, "gradient": project.kl_gradient(p, normal(12, 2, seed=4))}


@case("projections by t-SNE", tolerance=0.02)
def _() -> Any:
    space = project.to_common_space(ragged(sizes=(12, 20)), 3, 1, perplexity=3.0, iterations=250)
    return {"text": of_federation(space)["x"]}


# --- EEG --------------------------------------------------------------------------------------------------------------


@case("simulated EEG", *EEG, tolerance=0.01)
def _() -> Any:
    found = {}
    for name, settings in {
        "usual": eeg_simulated.Physiology(),
        "lapses": eeg_simulated.Physiology(trials_per_run=4, lapse=0.5),
    }.items():
        raws = [raw for runs in eeg_simulated.subject_raw(LAB, 2, seed=3, settings=settings).values() for raw in
                runs.values()]  # fmt: skip
        signals = [raw.get_data() for raw in raws]
        found[f"µV, {name}"] = [1e6 * signal[:-1, ::20] for signal in signals]
        found[f"events, {name}"] = [signal[-1, signal[-1] > 0] for signal in signals]
    truth = eeg_simulated.ground_truth(LAB, 1, seed=2)
    return {**found, "truth": [vars(truth.person), truth.electrodes, truth.topographies, truth.background]}


@case("EEG features", *EEG, tolerance=0.01)
def _() -> Any:
    data = eeg_simulated.twin(LAB, 1)
    trials = eeg_trials.trials(data, 1, band=(8.0, 30.0))
    few = eeg_trials.trials(data, 3, channels=("C3", "Cz"), resample=64.0)
    found = {"µV": np.asarray(trials.x), "two channels": np.asarray(few.x)}
    for estimator in ("lwf", "scm", "oas"):
        found[estimator] = eeg.covariances(trials, estimator).matrices
    for kind in ("tangent", "vectorised"):
        for reference, by in (("train", "session"), ("all", "random")):
            c = eeg.subject_client(trials, features=kind, reference=reference, split=by, seed=2)
            found[f"{kind}, {reference}, {by}"] = [c.x_train, c.y_train, c.x_test, c.y_test]
    return found


# --- methods ----------------------------------------------------------------------------------------------------------

SMALL = Model(MLP((6,), 4), alpha=3)
SIZES = {"sizes": (7, 40)}
"""Of `ragged`, with which the values were written down."""
BLOCKS = Federation(
    [holding("u", "ab", 24), holding("v", "bc", 24), holding("w", "ab", 17), holding("z", "abc", 24)], 3
)
SHORT = {"model": SMALL, "local_epochs": 2, "batch_size": 6}
FLIC_SHORT = {**SHORT, "pretrain_epochs": 2, "pretrain_batch": 4, "alignment_weight": 0.1, "anchor_weight": 0.2}
BRIEF = {"local_epochs": 2, "batch_size": 6, "pretrain_epochs": 2, "pretrain_batch": 4, "finetune_epochs": 1}

OURS = (
    "Local", "FedAvg", "FedAvg-FT", "Ditto", "Ditto, own embeddings", "FedProx", "FedPer", "LG-FedAvg", "FedGen",
    "FedBABU", "Fed-CMA", "Fed-CMA, marginal", "FedCR", "FedCR, own embeddings", "FedCR, own bodies", "FedSR",
    "FedHeNN", "FedPAC", "FedPAC, own bodies", "FedRep", "HetFedRep", "FLIC-Class", "FLIC-HL", "FLIC-FedAvgFT",
    "FLIC-L2GD", "pFedHN", "pFedHN-PC",
)  # fmt: skip
"""Of the catalogue. A new method need not be here: `test_methods.py` and its siblings try every one."""


def brief(name: str, phi: Any) -> Any:
    method = methods.CATALOGUE[name]
    model = replace(method.model, phi=phi, alpha=None if method.model.alpha is None else 3)
    return replace(method, model=model, **{key: value for key, value in BRIEF.items() if hasattr(method, key)})


VARIANTS: dict[str, Any] = {
    "FedHeNN, published": FedHeNN(**SHORT, n_rad=9, alignment="published", surveyed="all", weight_decay=0.1),
    "FLIC, published": FLIC.published(**{**FLIC_SHORT, "representation_from": 1}),
    "FLIC, learned": FLIC(**FLIC_SHORT, covariance="learned"),
    "FLIC, exact": FLIC(**FLIC_SHORT, covariance="learned", barycentre="exact", weighting="uniform"),
    "FLIC, samples": FLIC(**FLIC_SHORT, alignment=SampledWasserstein(), anchor_samples=3),
    "FLIC, debiased": FLIC(**FLIC_SHORT, alignment=DebiasedWasserstein(), anchor_variance=2.0),
    "FLIC, MMD": FLIC(**FLIC_SHORT, alignment=MMD(0.8)),
    "FLIC, mixtures": FLIC(**FLIC_SHORT, alignment=MixtureWasserstein(3, 0.5)),
    "FLIC, meta-classes": FLIC(**FLIC_SHORT, meta_classes=(0, 1, 0, 1, 2)),
    "FLIC, private": FLIC(**FLIC_SHORT, weighting="uniform", privacy=Privacy(0.5, 0.7)),
    "FLIC, other steps": FLIC(
        **{**FLIC_SHORT, "local_epochs": 3}, anchor_step="each", representation_within=True, realign=True,
        head_decay=0.3, representation_from=1,
    ),
    "FLIC, frozen": FLIC(**FLIC_SHORT, local_anchors=False, anchor_scale=2.0),
    "Fed-CMA, before": FedCMA(**SHORT, samples_per_class=2, uploads="before", alignment="marginal", server_step=0.4),
}  # fmt: skip

ROUNDS: dict[str, Any] = {
    "rounds": 2, "participation": 0.5, "progress": False, "device": "cpu", "dtype": torch.float64, "seed": 2,
}  # fmt: skip
"""In double precision, so that rounding is not amplified."""

for _name in OURS:

    @case(f"method {_name}")
    def _(name: str = _name) -> Any:
        method = brief(name, MLP((9,), 6))
        return of_run(simulate(federation_for(method, **SIZES), method, **ROUNDS))


for _name in ("HyFEM", "late fusion"):

    @case(f"method {_name}")
    def _(name: str = _name) -> Any:
        return of_run(simulate(BLOCKS, brief(name, BLOCK_PHI), **ROUNDS))


for _name, _method in VARIANTS.items():

    @case(f"method {_name}")
    def _(method: Any = _method) -> Any:
        return of_run(simulate(ragged(**SIZES), method, **ROUNDS))


@case("clients that come later")
def _() -> Any:
    found = {}
    for method in (FLIC(**FLIC_SHORT), FedAvg(**SHORT, weighting="uniform")):
        widths = (4, 4) if isinstance(method, FedAvg) else (3, 8)
        run = simulate(ragged(widths=widths, **SIZES), method, **ROUNDS)
        new = [replace(c, name=f"new-{c.name}") for c in ragged(2, seed=4, widths=widths, **SIZES)]
        found[method.name] = of_run(adapt(run, new, rounds=2, progress=False, device="cpu"))
    return found


@case("a regression, by the loop and in stacks of two")
def _() -> Any:
    lines = toy.linear_regression(4, 3, dim=3, widths=(3, 6), n_train=(8, 20), n_test=6)
    return {
        "loop": of_run(simulate(lines, FLIC(**FLIC_SHORT), engine="loop", **{**ROUNDS, "rounds": 3}, evaluate_every=2)),
        "stacked": of_run(simulate(lines, HetFedRep(**SHORT), engine="stacked", stack_size=2, **ROUNDS)),
    }


@case("images")
def _() -> Any:
    fed = ragged(4, sizes=(7, 12), images=True)
    return {
        "small": of_run(simulate(fed, Local(Model(CNN(6, (3, 2))), local_epochs=1), **{**ROUNDS, "rounds": 1})),
        "usual": of_run(simulate(fed, Local(Model(), local_epochs=1), **{**ROUNDS, "rounds": 1})),
    }


@case("batches and noise")
def _() -> Any:
    g = stream(0, "values", 0, "noise")
    draws = [Draw((2, 3)), Draw((3,), "uniform", "sample"), Draw((4,), "keep", "sample", 0.3)]
    stacked = partial(stacks.bucket, [(w,) for w in (3, 4, 9, 30, 31, 5)], [10, 50, 12, 9, 100, 10])
    return {
        "draws": [d.sample((5, *d.shape), g, torch.float64) for d in draws],
        "MLP": [*MLP((5,), 4, "tanh", 0.4).init((3,), g).values()],
        "CNN": [*CNN(5, (3, 4), 3).init((2, 13, 13), g).values()],
        "buckets": str(stacked(small=0)),
        "larger buckets": str(stacked(most=1.3, small=60)),
    }


@case("privacy", "dp_accounting")
def _() -> Any:
    before = {"a": normal(3, seed=1), "b": normal(2, 2, seed=2)}
    after = {"a": normal(3, seed=3), "b": normal(2, 2, seed=4)}
    protected = {f"clip {clip}, noise {much}": Privacy(clip, much).protect(after, before, stream(0, "v", 0, "privacy"))
                 for clip in (0.3, 90.0) for much in (0.0, 0.8)}  # fmt: skip
    return {
        **protected,
        "epsilon": [epsilon(2.0, 1e-5, 7), epsilon(2.0, 1e-5, 7, (3, 10))],
        "noise": noise_multiplier(1.5, 1e-5, 7),
    }


# --- baselines, evaluation, statistics --------------------------------------------------------------------------------


def subjects() -> Federation:
    """Tangent vectors of three channels."""
    g, made = rng("subjects"), []
    for i in range(4):
        y = np.arange(24 + i) % (2 if i else 3)
        x = g.normal(size=(len(y), 6)) + 0.8 * y[:, None]
        made.append(Client(x, y, x[:9] + g.normal(size=(9, 6)), y[:9], f"subject-{i}"))
    return Federation(made, 3, "subjects")


@case("baselines", "pyriemann")
def _() -> Any:
    fed, x = subjects(), subjects()[1].x_train.numpy()
    alone = [baselines.LDA(), baselines.LR(), baselines.SVM(), baselines.MDM()]
    every = [*alone, baselines.Chosen(folds=3), *(baselines.Pooled(a) for a in alone[:2])]
    new = [replace(c, name=f"new-{c.name}") for c in fed][:2]
    joined = {
        how: eeg_papers.join(fed, new, baselines.Pooled(), untrained=how == "untrained")
        for how in ("trained", "untrained")
    }
    return {
        **{str(one)[:40]: simulate(fed, one, seed=2).per_client["accuracy"] for one in every},
        **{f"joined, {how}": run.per_client["accuracy"] for how, run in joined.items()},
        "fewer": of_federation(fewer_trials(fed, 4, 3))["x"],
        "exponential": baselines.exponential(x),
        "recentred": baselines.recentring(x)(x),
    }  # fmt: skip


@case("evaluation and calibration")
def _() -> Any:
    y = [np.array([0, 1, 1, 2]), np.array([2, 2, 0]), np.array([1])]
    said = [np.array([0, 1, 2, 2]), np.array([2, 1, 1]), np.array([1])]
    real, near = [g / 3 for g in y], [g * 0.3 + 0.1 for g in y]
    p, classes = rng("probabilities").dirichlet(np.ones(3), 50), rng("classes").integers(0, 3, 50)
    return {
        "accuracy": evaluation.per_client(said, y)["accuracy"],
        "balanced": evaluation.per_client(said, y)["balanced_accuracy"],
        "mse": evaluation.per_client(near, real, "regression")["mse"],
        "r2": evaluation.per_client(near, real, "regression")["r2"],
        "summary": evaluation.summarise(said, y),
        "summary of a regression": evaluation.summarise(near, real, "regression"),
        "ECE": [calibration.expected_calibration_error(p, classes, bins) for bins in (1, 7, 15)],
        "reliability": calibration.reliability(p, classes, 5),
        "log loss": calibration.log_loss(p, classes),
        "temperature": round(calibration.fitted_temperature(p, classes), 3),
        "softened": calibration.at_temperature(p, 2.0),
    }


@case("statistics")
def _() -> Any:
    d = rng("differences").normal(0.4, 1, 9)
    return {
        "interval": statistics.interval(d),
        "80 %": statistics.interval(d[:4], 0.8),
        "Holm": statistics.holm([0.01, 0.04, 0.03, 0.005]),
        "Welch": statistics.welch((0.7, 0.02, 5), (0.65, 0.05, 3)),
        "Welch, one run": statistics.welch((0.7, 0.02, 5), (0.65, 0.0, 1)),
        "error": judging.combined_error((0.1, 3), (0.2, 5)),
        "verdicts": " ".join(judging.verdict(a, b) for a in (-5.0, -1.0, 0.3, 2.1, 9.0) for b in (0.5, 1.0, 3.0)),
        "tolerance": [judging.tolerance(s) for s in (0.1, 0.5, 1.0, 3.0)],
    }


def record(method: str, seed: int, accuracy: float, **changes: Any) -> RunRecord:
    made = {
        "experiment": "flic/bci-common40", "scale": "paper", "settings": {"rounds": 50, "seed": seed},
        "federation": {"name": "bci", "fingerprint": f"f{seed}", "n_clients": 40, "info": {}},
        "metrics": {"accuracy": accuracy, "accuracy_weighted": accuracy / 2, "balanced_accuracy": accuracy - 0.01},
        "per_client": {"client": ["a", "b"], "n_train": [8, 9], "n": [3, 4], "accuracy": [accuracy, 0.5]},
        "commit": "0123456789abcdef", "dirty": False, "created": f"2026-01-0{seed + 1}T00:00:00Z", "seconds": 1.5,
    }  # fmt: skip
    return RunRecord(method=method, seed=seed, **{**made, **changes})


@case("effects over seeds")
def _() -> Any:
    g, of = rng("records"), {"FLIC-HL": 0.72, "FLIC-Class": 0.73, "HetFedRep": 0.69, "FedHeNN": 0.66, "Local": 0.70}
    some = [record(m, s, float(a + g.normal(0, 0.01))) for m, a in of.items() for s in range(4 if a > 0.7 else 3)]
    effects = statistics.effects(some, "flic/bci-common40", "Local")
    pair = statistics.paired(some, "flic/bci-common40", "FLIC-HL", "FLIC-Class")
    contrast = [(1.0, "flic/bci-common40", "FLIC-HL"), (-0.5, "flic/bci-common40", "Local")]
    limits = ((-9, 9), (0, 1), (-0.3, 0.1))
    return {
        "effects": effects,
        "corrected": statistics.corrected(effects, 0.2),
        "pair": vars(pair),
        "contrast": statistics.contrast(some, contrast),
        "verdicts": " ".join(judging.claim_verdict(pair, low, high) for low, high in limits),
        "p": [judging.claim_p(pair, low, high) for low, high in limits],
    }


# --- what users are promised ------------------------------------------------------------------------------------------


def public() -> dict[str, Any]:
    """What users call: methods, data sets, and what `hetfl_core` and `partition` offer, by the name they know it by."""
    offered = {name: getattr(hetfl_core, name) for name in hetfl_core.__all__}
    functions = inspect.getmembers(partition, inspect.isfunction)
    dealing = {f"partition.{name}": f for name, f in functions if f.__module__.startswith(partition.__name__)}
    networks = {"MLP": MLP, "CNN": CNN, "Model": Model, "Privacy": Privacy}
    kinds = {type(method).__name__: type(method) for method in methods.CATALOGUE.values()}
    found = {**offered, **networks, **dealing, **data_sets(), **kinds}
    makers = {f"Federation.{name}": getattr(Federation, name) for name in ("from_frame", "from_arrays")}
    return {name: f for name, f in {**found, **makers}.items() if callable(f) and not re.search(r"\._|\.check_", name)}


def defaults() -> dict[str, dict[str, Any]]:
    """Of each public function or class, its arguments that need not be given, and what they are then.

    Of a method those that are not as every method has them.
    """
    usual = defaults_of(methods.Method)
    found = {"Method": usual}
    for name, made in sorted(public().items()):
        known = usual if isinstance(made, type) and issubclass(made, methods.Method) else {}
        found[name] = {key: told for key, told in defaults_of(made).items() if key not in known or known[key] != told}
    return {name: told for name, told in found.items() if told}


def defaults_of(made: Any) -> dict[str, Any]:
    try:
        given = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: plain(p.default) for p in given if p.default is not inspect.Parameter.empty}


def plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


PROBES = (-1, 0, 0.25, 0.5, 1, 1.5, 2, 2.5, 3, 4, 4.5, 7, 1e308)


def limits() -> dict[str, dict[str, str]]:
    """Of the calls of `test_fuzz.CASES`, which of `PROBES` their arguments may be; not of files, nor of seeds."""
    cases = {name: made for name, made in test_fuzz.CASES.items() if name not in test_fuzz.FILES}
    return {name: told for name, made in cases.items() if (told := limits_of(made))}


def limits_of(case: Case) -> dict[str, str]:
    scalars = [name for name, value in case.valid.items() if type(value) in (int, float) and name != "seed"]
    return {name: span([x for x in PROBES if accepted(case, name, x)]) for name in scalars}


def span(found: list[float]) -> str:
    """``0.25…7`` where all between are among them, ``whole 1…7`` where all whole ones are, else one by one."""
    for kind, probes in (("", PROBES), ("whole ", [x for x in PROBES if x == int(x)])):
        inside = [x for x in probes if found and found[0] <= x <= found[-1]]
        if len(found) > 1 and inside == found:
            return f"{kind}{found[0]:g}…{found[-1]:g}"
    return " ".join(f"{x:g}" for x in found) or "no other"


def accepted(case: Case, argument: str, value: float) -> bool:
    told = {**case.valid, argument: value}
    if "rng" in told:
        told["rng"] = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("hetfl_core.checks.available_memory", lambda: 2.0 * 2**30)
        try:
            case.call(**told)
        except (ValueError, TypeError, KeyError):
            return False
    return True
