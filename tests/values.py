"""What is computed for `test_values.py`: one small example for each way through the code that gives numbers."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import test_fuzz
import test_fuzz_ledger
import torch
from fuzzing import Case, spoiled
from small import ragged
from tensors import covariance, normal
from torch import Tensor

import hetfl_core
from hetfl_book import calibration
from hetfl_book.datasets import eeg_blocks, fedgen, flic_bci, pfedhn, project, solids, text
from hetfl_book.experiments import EXPERIMENTS
from hetfl_book.ledger import RunRecord, comparison, judging
from hetfl_book.theory import flic as theory
from hetfl_core import Client, Federation, adapt, baselines, distances, partition, records, simulate, statistics
from hetfl_core.datasets import digits, eeg, eeg_simulated, eeg_trials, eegmmidb, femnist, toy
from hetfl_core.datasets.fewer import fewer_trials
from hetfl_core.datasets.recordings import CLASSES, TABLE_S1, Recordings
from hetfl_core.engine import evaluation, stacks
from hetfl_core.methods import FLIC, FedAvg, FedAvgFT, FedCMA, FedGen, FedHeNN, FedRep, HetFedRep, Local, PFedHN
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
from hetfl_core.methods.schemes import FedAvgFTScheme, L2GDScheme
from hetfl_core.networks import CNN, MLP, Draw, Model
from hetfl_core.rng import numpy_stream, stream

CASES: dict[str, Callable[[], Any]] = {}
"""What to compute, by name; what it returns may be nested."""

NEEDS: dict[str, tuple[str, ...]] = {}
"""Packages without which, or files without which, a case is left out."""


def case(name: str, *needs: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(made: Callable[[], Any]) -> Callable[[], Any]:
        assert name not in CASES
        CASES[name], NEEDS[name] = made, needs
        return made

    return add


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


# --- what is promised -------------------------------------------------------------------------------------------------


def promises() -> dict[str, Any]:
    """What every function takes when it is not told, and every number, text and table that has a name."""
    found: dict[str, Any] = {}
    for about in pkgutil.walk_packages(hetfl_core.__path__, "hetfl_core."):
        module = importlib.import_module(about.name)
        for name, value in sorted(vars(module).items()):
            where = f"{about.name.removeprefix('hetfl_core.')}.{name}"
            if getattr(value, "__module__", None) == about.name and callable(value):
                for inner, made in [("", value), *(vars(value).items() if isinstance(value, type) else ())]:
                    if callable(made) and not inner.startswith("__") and (told := defaults(made)):
                        found[f"{where}.{inner}".rstrip(".")] = told
            elif name.lstrip("_").isupper() and isinstance(value, int | float | str | tuple | list | dict | set):
                text = plain(value)
                found[where] = text if len(text) < 300 else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return found


@case("experiments and published settings")
def _() -> Any:
    found: dict[str, Any] = {}
    for name, experiment in EXPERIMENTS.items():
        for scale in ("paper", "book"):
            at = experiment.at(scale)
            told = {f.name: plain(getattr(at, f.name)) for f in fields(at) if not callable(getattr(at, f.name))}
            found[f"{name} {scale}"] = [re.sub("functools.partial|<[^>]*>", "", text) for text in told.values()]
    return [found, [plain(of.published()) for of in (FLIC, FedHeNN, HetFedRep) if hasattr(of, "published")]]


def defaults(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [f"{p.name}={plain(p.default)}" for p in parameters if p.default is not p.empty]


def plain(value: Any) -> str:
    """As text, without addresses in memory, and sets in order."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(plain, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{plain(k)}: {plain(v)}' for k, v in value.items())}}}"
    return re.sub(r" at 0x[0-9a-f]+|'[^']*/[^']*'|Path\([^)]*\)", "", repr(value))


# --- distances --------------------------------------------------------------------------------------------------------


@case("distances of Gaussians")
def _() -> Any:
    m1, m2, S1, S2 = normal(2, 3, 4, seed=1), normal(3, 4, seed=2), psd(2, 3, seed=3), psd(3, seed=4)
    v1, v2 = normal(2, 3, 4, seed=5).square() + 0.1, normal(3, 4, seed=6).square() + 0.1
    return [
        with_gradients(distances.bures_wasserstein, m1, S1, m2, S2),
        with_gradients(distances.bures, S1, psd(3, rank=2, seed=7)),
        with_gradients(distances.bures, S1.float(), S2.float()),
        with_gradients(distances.gaussian_kl, m1, v1, m2, v2),
        with_gradients(distances.gaussian_kl, m1, S1, m2, S2),
        distances.psd_root(S1),
        distances.psd_root(S1, inverse=True),
        [distances.expected_root_trace(n, k) for n, k in ((2, 1), (2, 5), (3, 3), (7, 4), (40, 3), (4, 40))],
    ]


@case("distances of samples")
def _() -> Any:
    x, y = normal(2, 9, 3, seed=1), normal(2, 7, 3, seed=2) * 1.5 + 0.3
    return [
        with_gradients(distances.mmd, x, y),
        with_gradients(lambda a, b: distances.mmd(a, b, unbiased=True), x, y),
        with_gradients(lambda a, b: distances.mmd(a, b, 0.7), x, y),
        with_gradients(lambda a, b: distances.mmd(a, b, torch.tensor([0.7, 2.0]).double()), x, y),
        distances.squared_distances(x),
        with_gradients(distances.cka, normal(2, 8, 3, seed=3), normal(2, 8, 5, seed=4)),
        distances.principal_angle(normal(2, 6, 3, seed=5), normal(6, 3, seed=6)),
        distances.principal_angle(normal(7, 2, seed=5), normal(7, 2, seed=6)),
    ]


@case("distances of mixtures")
def _() -> Any:
    a, b = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([0.6, 0.4]).double()
    cost = normal(3, 2, seed=1).square()
    return [
        distances.transport_plan(cost, a, b),
        distances.transport_plan(normal(4, 3, 3, seed=6).square(), torch.ones(3).double(), torch.ones(3).double()),
        distances.transport_plan(normal(5, 2, 3, seed=7).square(), b, a),
        distances.transport_plan(cost[:1], torch.ones(1).double(), b),
    ]  # fmt: skip


@case("averages of Gaussians")
def _() -> Any:
    m, S, w = normal(5, 3, seed=1), psd(5, k=3, seed=2), torch.tensor([1.0, 2.0, 0.0, 0.5, 3.0]).double()
    L = torch.linalg.cholesky(S)
    v = normal(5, 3, seed=3).square() + 0.1
    return [
        distances.gaussian_barycentre(m, S),
        distances.gaussian_barycentre(m, S, w),
        distances.gaussian_barycentre(m, S, w, tolerance=1e-3),
        distances.gaussian_barycentre(normal(4, 2, 3, seed=4), psd(4, 2, k=3, seed=5)),
        distances.gaussian_barycentre(m.float(), S.float(), w.float()),
        distances.average_anchors(m),
        distances.average_anchors(m, L, w),
        distances.average_anchors(m, L),
        distances.product_of_experts(m, v),
        distances.product_of_experts(m, v, w, prior=True),
        distances.product_of_experts(m, v, prior=True),
        distances.product_of_experts(m, v, w),
        distances.product_of_experts(m, v, normal(5, 3, seed=9).abs()),
    ]


# --- anchor terms -----------------------------------------------------------------------------------------------------


def rows(n: int = 14, k: int = 5, C: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    """Embedded rows of one client, their classes (one of a single row), weights of which two are 0, and means."""
    y = torch.arange(n) % 3 + 1
    y[4] = 5
    weight = torch.ones(n, dtype=dtype)
    weight[[2, n - 1]] = 0
    return normal(n, k, seed=seed, dtype=dtype), y, weight, normal(C, k, seed=seed + 1, dtype=dtype)


@case("anchor terms")
def _() -> Any:
    sizes = ((14, 5, torch.float64), (70, 5, torch.float64), (66, 40, torch.float32), (9, 16, torch.float32))
    return [anchor_terms(*size) for size in sizes]


def anchor_terms(n: int, k: int, dtype: torch.dtype) -> Any:
    z, y, w, means = rows(n, k, dtype=dtype)
    L = normal(6, k, k, seed=3, dtype=dtype).tril() + torch.eye(k, dtype=dtype)
    mixtures = normal(6, 3, k, seed=4, dtype=dtype)
    return [
        with_gradients(lambda z, v: terms.class_wasserstein(z, y, w, v, variance=1.7), z, means),
        with_gradients(lambda z, v, L: terms.class_wasserstein(z, y, w, v, L), z, means, L),
        with_gradients(lambda z, s: terms.class_wasserstein_sampled(z, s, y, w, 6), z, normal(n, k, dtype=dtype)),
        with_gradients(lambda z, v: terms.class_wasserstein_debiased(z, y, w, v, 0.6), z, means),
        with_gradients(lambda z, v: terms.class_mmd(z, y, w, v, 1.3), z, means),
        with_gradients(lambda z, v: terms.class_mmd(z, y, w, v, 1.3, 0.8), z, means),
        with_gradients(lambda z, v: terms.class_mixture_wasserstein(z, y, w, v, 1.3), z, mixtures),
    ]


@case("anchor terms of several clients at once")
def _() -> Any:
    return [several_clients(n) for n in (11, 68)]


def several_clients(n: int) -> Any:
    each = [rows(n, seed=s) for s in (0, 10, 20)]
    z, y, w, means = (torch.stack(t) for t in zip(*each, strict=True))
    y = torch.stack([y[0], (y[1] + 1) % 6, y[2].flip(0)])
    w = w * (torch.arange(n) < torch.tensor([n, n - 3, n - 7])[:, None])
    found = []
    for dims, v in (((0, 0, 0, None), means[0]), ((0, 0, 0, 0), means)):
        for of in (terms.class_wasserstein, terms.class_wasserstein_debiased, terms.class_mmd):
            found.append(with_gradients(lambda z, v, of=of, d=dims: torch.vmap(of, d)(z, y, w, v), z, v))
    both = torch.vmap(torch.vmap(terms.class_wasserstein, (0, 0, 0, None)), (None, None, None, 0))
    shared = torch.vmap(torch.vmap(terms.class_wasserstein, (0, 0, 0, None)), (0, None, None, None))
    return [
        *found,
        with_gradients(lambda z, v: both(z, y, w, v), z, means),
        with_gradients(lambda z, v: shared(z, y, w, v), torch.stack([z, 2 * z.flip(1)]), means[0]),
    ]


# --- the linear theory ------------------------------------------------------------------------------------------------


@case("linear theory")
def _() -> Any:
    found: list[Any] = []
    for freedom in ("common", "signs", "rotation"):
        f = theory.linear_federation(6, 5, 2, 8, 9, 3, freedom, seed=4)
        z, y = f.embed(f.oracle)
        path = theory.flic_fedrep(z, y, 2, rounds=6, step=0.2, participation=0.5, seed=1)
        found += [[vars(c) for c in f.clients], f.A, f.heads, f.embed(f.estimated(theory.random_signs(5)), test=True)]
        found += [path, theory.distances_to(path, f.A), theory.flic_fedrep(z, y, 2, rounds=3, start=path[2])]
        found += [theory.prediction_errors(path, (z, y), f.embed(f.oracle, test=True))]
        start = theory.method_of_moments(z, y, 2)
        heads = theory.least_squares_heads(start, z, y)
        found += [start, heads, theory.representation_step(start, heads, z, y, 0.3)]
        found += [theory.head_spectra(f.heads, 0.5), theory.head_spectra(f.heads)]
        for bound in (theory.convergence_bound, theory.printed_bound):
            for step in (None, 0.05):
                b = bound(f.A + 0.02 * start, f.A, f.heads, 1.0, step)
                found += [vars(b), b.rate, b.curve(4)]
        c = f.clients[1]
        phi = theory.closed_form_phi(c.mean, c.covariance, 3)
        found += [vars(phi), theory.gromov_wasserstein_cost(c.covariance, phi.weight)]
    found += [theory.measured_rate(0.7 ** torch.arange(9).double() + 1e-7), theory.random_signs(9, 2)]
    return found


@case("limit law")
def _() -> Any:
    m, v, S, anchor = normal(3, seed=1), normal(3, seed=2), psd(k=3, seed=3), psd(k=3, seed=4)
    draws = theory.simulate_w2(m, S, v, anchor, n=40, repeats=30, seed=2)
    return [
        theory.optimal_map(S, anchor),
        theory.limit_variance(m, S, v, anchor),
        [theory.limit_variance_printed(m, S, v, anchor, of) for of in ("class", "product")],
        draws,
        theory.variance_with_error(draws),
        [[f(n, k, 1.4) for f in (theory.expected_w2, theory.batch_bias)] for n, k in ((3, 2), (9, 4), (5, 9))],
        [theory.shrunk_scale(n, k) for n, k in ((3, 2), (9, 4), (5, 9))],
    ]


# --- partitions and federations ---------------------------------------------------------------------------------------


@case("partitions")
def _() -> Any:
    y = rng("labels").integers(0, 7, 900)
    other = rng("others").integers(0, 7, 210)
    deck = partition.assign_classes(9, 7, 3, rng("deck"))
    one = rng("classes")
    parts = partition.share(y, partition.assign_classes(12, 7, 2, one), one)
    return [
        deck,
        partition.assign_classes(5, 3, 4, rng("deck 3"), allow_repeats=True),
        parts,
        partition.share(y, deck, rng("share"), at_least=4),
        partition.published_shards(y, deck, rng("shards"), replace_below=30, repeat_below=40, repeats=5),
        partition.published_shards(y, deck, rng("shards 2")),
        partition.dirichlet(y, 8, 0.2, rng("dirichlet"), min_size=12),
        partition.dirichlet(y, 5, 20.0, rng("dirichlet 2")),
        partition.share_alike(y, parts, other, rng("alike")),
        [toy.thinned(parts, rng(v), v) for v in ("text", "code")],
    ]


@case("uneven shares")
def _() -> Any:
    y = rng("labels").integers(0, 6, 400)
    found = [pfedhn.uneven_shares(9, 6, 2, rng("shares"), variant=variant) for variant in ("text", "code")]
    return [found, [pfedhn.cut(y, *each, rng("cut")) for each in found]]


@case("federations")
def _() -> Any:
    g = rng("frame")
    frame = pd.DataFrame(g.normal(size=(60, 3)), columns=list("pqr"))
    frame["site"], frame["y"] = list("ABC" * 20), g.choice(["no", "yes"], 60)
    frame.loc[frame.site == "B", "q"] = np.nan
    made = Federation.from_frame(frame, client="site", target="y", test_size=0.3, seed=3)
    frame["y"] = g.random(60)
    real = Federation.from_frame(frame, client="site", target="y", test_size=0.25, task="regression")
    arrays = {name: (g.normal(size=(20, d)), g.choice(["no", "yes", "may be"], 20)) for name, d in (("a", 2), ("b", 5))}
    all_ = [ragged(), made, real, Federation.from_arrays(arrays, test_size=0.4, seed=1)]
    return [*map(of_federation, all_), *(f.describe() for f in all_)]


def of_federation(federation: Federation) -> Any:
    """All numbers of a federation."""
    each = [(c.name, c.x_train, c.y_train, c.x_test, c.y_test) for c in federation]
    return [each, federation.n_classes, federation.fingerprint()]


@case("toys")
def _() -> Any:
    few = {"n_train_per_class": 60, "n_test_per_class": 30}
    found = []
    for variant in ("text", "code"):
        found += [
            toy.noisy_features(n_clients=6, classes_per_client=2, seed=1, variant=variant, **few),
            toy.linear_mapping(n_clients=6, classes_per_client=3, seed=2, variant=variant, **few),
            toy.linear_mapping(
                n_clients=5,
                classes_per_client=2,
                seed=3,
                variant=variant,
                dim=4,
                widths=(3, 6),
                subsample=False,
                n_train_per_class=70,
            ),
            toy.noisy_features(
                n_clients=5,
                classes_per_client=2,
                seed=3,
                variant=variant,
                n_classes=6,
                dim=3,
                sigma=0.4,
                added=(2, 4),
                **few,
            ),
        ]
    found.append(toy.linear_regression(4, 2, dim=3, widths=(4, 8), noise=0.3, n_train=(5, 9), n_test=6))
    found.append(toy.linear_regression(3))
    found.append(toy.four_gaussians(1, many=7, few=2, n_test=3))
    return [of_federation(f) for f in found]


@case("solids")
def _() -> Any:
    few = {"per_class": 2, "test_per_class": 1, "size": 6}
    sizes = rng("sizes").random((2, 5))
    return [
        of_federation(solids.views(seed=1, **few)),
        of_federation(solids.views(seed=2, assignment="4 views", n_views=4, noise=0.1, overlap=0.5, **few)),
        [solids.render(shape, sizes, [0.3, -2.0], [0.0, 1.0], tilt=[0.1, -0.1], size=5) for shape in solids.SHAPES],
        solids.render("chair", sizes, [0.3, -2.0], solids.azimuths(3), size=5),
    ]


@case("digits")
def _() -> Any:
    images = rng("images").random((5, 16, 16))
    return [
        of_federation(digits.bundled()),
        of_federation(digits.bundled(6, 4, 2, test_fraction=0.4)),
        digits._smooth(images),
        digits.block_means(images),
    ]


@case("text")
def _() -> Any:
    return [
        of_federation(
            text.two_modalities(n_clients=8, classes_per_client=2, seed=1, variant=variant, n_pairs=400, prune=prune)
        )
        for variant, prune in (("text", 0.1), ("code", 0.3))
    ]


@case("projections")
def _() -> Any:
    fed = ragged(sizes=(12, 20))
    found = [
        of_federation(project.to_common_space(fed, 3, how, 1, variant=variant, perplexity=perplexity, iterations=250))
        for variant, perplexity in (("text", 3.0), ("code", 3.0), ("text", 30.0), ("code", 30.0))
        for how in ("tsne", "mds", "pca", "random")
        if how == "tsne" or (variant, perplexity) == ("text", 3.0)
    ]
    x = normal(12, 4, seed=3)
    p = project.affinities(x, 4.0)
    return [found, p, project.kl_gradient(p, normal(12, 2, seed=4)), project.tsne(x, normal(12, 2, seed=4), 4.0, 300)]


# --- EEG --------------------------------------------------------------------------------------------------------------

LAB = Recordings("Lab", "", 3, ("Fpz", "C3", "Cz", "C4", "Pz", "O1", "O2"), 128.0, CLASSES, 3, 2, (0.5, 2.5))
"""A small laboratory of our own."""


@case("simulated people", "mne", "pyriemann")
def _() -> Any:
    found: list[Any] = []
    for lab in (LAB, TABLE_S1["Weibo2014"]):
        for subject in (1, 3):
            truth = eeg_simulated.ground_truth(lab, subject, seed=2)
            found += [vars(truth.person), truth.electrodes, truth.topographies, truth.background]
    return found


@case("simulated EEG", "mne", "moabb", "pyriemann")
def _() -> Any:
    found: list[Any] = []
    for settings in (eeg_simulated.Physiology(), eeg_simulated.Physiology(trials_per_run=4, lapse=0.5)):
        raws = eeg_simulated.subject_raw(LAB, 2, seed=3, settings=settings)
        for runs in raws.values():
            for raw in runs.values():
                found += [raw.get_data()[:, ::20], raw.annotations.onset, list(raw.annotations.description)]
    found.append(eeg_simulated.coloured(rng("coloured"), np.linspace(3, 0.1, 65), 100, 64.0))
    return found


@case("EEG features", "mne", "moabb", "pyriemann")
def _() -> Any:
    data = eeg_simulated.simulated(LAB, 1)
    found: list[Any] = []
    trials = eeg_trials.trials(data, 1, band=(8.0, 30.0))
    found += [vars(trials), vars(eeg_trials.trials(data, 3, channels=("C3", "Cz"), resample=64.0))]
    for estimator in ("lwf", "scm", "oas"):
        found.append(eeg.covariances(trials, estimator).matrices)
    for kind in ("tangent", "vectorised"):
        for reference in ("train", "all"):
            for by in ("session", "random"):
                c = eeg.subject_client(trials, features=kind, reference=reference, split=by, seed=2)
                found += [c.x_train, c.y_train, c.x_test, c.y_test]
    return found


@case("EEG laboratories", "mne", "moabb", "pyriemann")
def _() -> Any:
    few = {"subjects": 1, "datasets": ["AlexMI"], "progress": False, "seed": 1}
    return [of_federation(eeg.simulated(kind, **few)) for kind in ("specific", "common")]


@case("EEG blocks", "mne", "moabb", "pyriemann")
def _() -> Any:
    few = {"subjects": 1, "trials": 10, "people": 1, "progress": False}
    return [of_federation(eeg_blocks.simulated(1, **few)), [vars(eeg_blocks.laboratory(name)) for name in TABLE_S1]]


# --- methods and engine -----------------------------------------------------------------------------------------------

SMALL = Model(MLP((6,), 4), alpha=3)
SHORT = {"model": SMALL, "local_epochs": 2, "batch_size": 6}
FLIC_SHORT = {**SHORT, "pretrain_epochs": 2, "pretrain_batch": 4, "lambda1": 0.1, "lambda2": 0.2}
ALIKE = {"widths": (4, 4)}


def of_run(run: Any) -> Any:
    """Everything that a run gives."""
    return [
        run.history, run.final, run.per_client, run.server, run.kept, run.params,
        run.embed("test"), run.predict("train"),
    ]  # fmt: skip


def lines(n_clients: int = 4) -> Federation:
    """A regression."""
    return toy.linear_regression(n_clients, 3, dim=3, widths=(3, 6), n_train=(8, 20), n_test=6)


METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Local": (Local(**SHORT), {}),
    "FedAvg": (FedAvg(**SHORT, weighting="uniform"), ALIKE),
    "FedAvg-FT": (FedAvgFT(**SHORT, tuning_epochs=1), ALIKE),
    "FedRep": (FedRep(**SHORT, representation_epochs=2), ALIKE),
    "HetFedRep": (HetFedRep(**SHORT), {}),
    "FedHeNN": (FedHeNN(**SHORT, n_rad=9, eta=3.0), {}),
    "FedHeNN, published": (FedHeNN(**SHORT, n_rad=9, alignment="published", answering="all", weight_decay=0.1), {}),
    "FLIC": (FLIC(**FLIC_SHORT), {}),
    "FLIC, published": (FLIC.published(**{**FLIC_SHORT, "representation_from": 1}), {}),
    "FLIC, learned": (FLIC(**FLIC_SHORT, covariance="learned"), {}),
    "FLIC, exact": (FLIC(**FLIC_SHORT, covariance="learned", barycentre="exact", weighting="uniform"), {}),
    "FLIC, samples": (FLIC(**FLIC_SHORT, alignment=SampledWasserstein(), anchor_samples=3), {}),
    "FLIC, debiased": (FLIC(**FLIC_SHORT, alignment=DebiasedWasserstein(), anchor_variance=2.0), {}),
    "FLIC, MMD": (FLIC(**FLIC_SHORT, alignment=MMD(0.8)), {}),
    "FLIC, mixtures": (FLIC(**FLIC_SHORT, alignment=MixtureWasserstein(3, 0.5)), {}),
    "FLIC-FedAvgFT": (FLIC(**FLIC_SHORT, scheme=FedAvgFTScheme()), {}),
    "FLIC-L2GD": (FLIC(**FLIC_SHORT, scheme=L2GDScheme(0.3)), {}),
    "FLIC, meta-classes": (FLIC(**FLIC_SHORT, meta_classes=(0, 1, 0, 1, 2)), {}),
    "FLIC, private": (FLIC(**FLIC_SHORT, weighting="uniform", privacy=Privacy(0.5, 0.7)), {}),
    "FLIC, other steps": (
        FLIC(**{**FLIC_SHORT, "local_epochs": 3}, anchor_step="each", representation_within=True, realign=True,
             head_decay=0.3, representation_from=1),
        {},
    ),
    "FLIC, frozen": (FLIC(**FLIC_SHORT, local_anchors=False, anchor_scale=2.0), {}),
    "Fed-CMA": (FedCMA(**SHORT, lam1=0.5, lam2=2.0, fixed=3), {}),
    "Fed-CMA, before": (FedCMA(**SHORT, fixed=2, sends="before", aligns="marginal", server_step=0.4), {}),
    "FedGen": (FedGen(**SHORT, generated=5, noise_dim=3, hidden=7, generator_steps=4), {}),
    "pFedHN-PC": (PFedHN(**SHORT, personal="head", hidden=5), ALIKE),
}  # fmt: skip

for _name, (_method, _options) in METHODS.items():

    @case(f"method {_name}")
    def _(method: Any = _method, options: Any = _options) -> Any:
        run = simulate(ragged(**options), method, rounds=3, participation=0.5, progress=False, device="cpu", seed=2)
        found = of_run(run)
        if "FT" not in method.name:
            new = [replace(c, name=f"new-{c.name}") for c in ragged(2, seed=4, **options)]
            found += of_run(adapt(run, new, rounds=2, progress=False, device="cpu"))
        return found


@case("engines")
def _() -> Any:
    found = []
    for engine in ("loop", "stacked"):
        options = {"rounds": 2, "progress": False, "device": "cpu", "engine": engine, "dtype": torch.float64}
        found.append(of_run(simulate(ragged(), FLIC(**FLIC_SHORT), participation=0.7, **options)))
        found.append(of_run(simulate(lines(), FLIC(**FLIC_SHORT), evaluate_every=2, **options)))
        found.append(of_run(simulate(lines(), HetFedRep(**SHORT), stack_size=2, **options)))
    images = {"rounds": 1, "progress": False, "device": "cpu"}
    found.append(of_run(simulate(ragged(images=True), Local(Model(CNN(6, (3, 2))), local_epochs=1), **images)))
    found.append(of_run(simulate(ragged(images=True), Local(Model(), local_epochs=1), **images)))
    return found


@case("batches and noise")
def _() -> Any:
    g = stream(0, "values", 0, "noise")
    draws = [Draw((2, 3)), Draw((3,), "uniform", "sample"), Draw((4,), "keep", "sample", 0.3)]
    return [
        *(d.sample((5, *d.shape), g, torch.float64) for d in draws),
        MLP((5,), 4, "tanh", 0.4).init((3,), g),
        CNN(5, (3, 4), 3).init((2, 13, 13), g),
        stacks.bucket([(w,) for w in (3, 4, 9, 30, 31, 5)], [10, 50, 12, 9, 100, 10], small=0),
        stacks.bucket([(w,) for w in (3, 4, 9, 30, 31, 5)], [10, 50, 12, 9, 100, 10], most=1.3, small=60),
    ]


@case("privacy", "dp_accounting")
def _() -> Any:
    before = {"a": normal(3, seed=1), "b": normal(2, 2, seed=2).float()}
    after = {"a": normal(3, seed=3), "b": normal(2, 2, seed=4).float()}
    return [
        *(Privacy(clip, much).protect(after, before, stream(0, "values", 0, "privacy"))
          for clip in (0.3, 90.0) for much in (0.0, 0.8)),
        epsilon(2.0, 1e-5, 7),
        epsilon(2.0, 1e-5, 7, (3, 10)),
        noise_multiplier(1.5, 1e-5, 7),
        noise_multiplier(1.5, 1e-5, 7, (3, 10)),
    ]  # fmt: skip


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
    fed = subjects()
    found: list[Any] = [of_federation(fewer_trials(fed, n, 3)) for n in (4, 11)]
    alone = [baselines.LDA(), baselines.LR(), baselines.SVM(), baselines.MDM()]
    for one in [*alone, baselines.Chosen(folds=3), *(baselines.Pooled(a) for a in alone[:2])]:
        run = baselines.run(fed, one, seed=2)
        found += [run.final, run.per_client, run.history]
    new = [replace(c, name=f"new-{c.name}") for c in fed][:2]
    for untrained in (False, True):
        run = baselines.join(fed, new, baselines.Pooled(), untrained=untrained)
        found += [run.final, run.per_client]
    x = fed[1].x_train.numpy()
    return [*found, baselines.exponential(x), baselines.recentring(x)(x)]


@case("evaluation")
def _() -> Any:
    y = [np.array([0, 1, 1, 2]), np.array([2, 2, 0]), np.array([1])]
    said = [np.array([0, 1, 2, 2]), np.array([2, 1, 1]), np.array([1])]
    real, near = [g / 3 for g in y], [g * 0.3 + 0.1 for g in y]
    of = evaluation
    return [
        *(f(said, y) for f in (of.accuracy_per_client, of.balanced_accuracy_per_client)),
        *(f(near, real) for f in (of.mse_per_client, of.r2_per_client)),
        of.summarise(said, y),
        of.summarise(near, real, "regression"),
    ]


@case("calibration")
def _() -> Any:
    p, y = rng("probabilities").dirichlet(np.ones(3), 50), rng("classes").integers(0, 3, 50)
    of = calibration
    T = of.fitted_temperature(p, y)
    return [
        [of.expected_calibration_error(p, y, bins) for bins in (1, 7, 15)],
        of.reliability(p, y, 5),
        [of.log_loss(p, y), round(T, 4)],
        of.at_temperature(p, 2.0),
    ]


@case("statistics")
def _() -> Any:
    d = rng("differences").normal(0.4, 1, 9)
    return [
        statistics.interval(d),
        statistics.interval(d[:4], 0.8),
        statistics.interval(d[:1]),
        statistics.holm([0.01, 0.04, 0.03, 0.005, 0.9]),
        statistics.welch((0.7, 0.02, 5), (0.65, 0.05, 3)),
        statistics.welch((0.7, 0.02, 5), (0.65, 0.0, 1)),
        statistics.welch((0.7, 0.02, 5), (0.65, 0.02, 4)),
        judging.combined_error((0.1, 3), (0.2, 5)),
        [judging.verdict(a, b) for a in (-5.0, -1.0, 0.3, 2.1, 9.0) for b in (0.5, 1.0, 3.0)],
        [judging.tolerance(s) for s in (0.1, 0.5, 1.0, 3.0)],
    ]


def record(method: str, seed: int, accuracy: float, **changes: Any) -> RunRecord:
    made = {
        "experiment": "flic/bci-common40", "scale": "paper", "settings": {"rounds": 50, "seed": seed},
        "federation": {"name": "bci", "fingerprint": f"f{seed}", "n_clients": 40, "info": {}},
        "metrics": {"accuracy": accuracy, "accuracy_weighted": accuracy / 2, "balanced_accuracy": accuracy - 0.01},
        "per_client": {"client": ["a", "b"], "n_train": [8, 9], "n": [3, 4], "accuracy": [accuracy, 0.5]},
        "commit": "0123456789abcdef", "dirty": False, "created": f"2026-01-0{seed + 1}T00:00:00Z", "seconds": 1.5,
    }  # fmt: skip
    return RunRecord(method=method, seed=seed, **{**made, **changes})


@case("ledger")
def _() -> Any:
    g = rng("records")
    methods = {"FLIC-HL": 0.72, "FLIC-Class": 0.73, "HetFedRep": 0.69, "FedHeNN": 0.66, "Local": 0.70}
    some = [record(m, s, float(a + g.normal(0, 0.01))) for m, a in methods.items() for s in range(4 if a > 0.7 else 2)]
    some += [record("Local", s, 0.6, experiment="flic/toy-noisy") for s in range(3)]
    one, other = some[0], replace(some[1], settings={"rounds": 10, "seed": 1})
    tables = [statistics.effects(some, one.experiment, "Local"), judging.numbers(some, known={one.experiment: methods})]
    tables += [statistics.corrected(tables[0]), statistics.corrected(tables[0], 0.2), judging.claims(some)]
    pair = statistics.paired(some, one.experiment, "FLIC-HL", "FLIC-Class")
    same = {"TextCaps": [*some[:2], *some[4:6]], "Digits": [*some[2:4], *some[6:8]]}
    rows = comparison.table(some)
    return [
        *tables,
        vars(judging.tally(tables[1], tables[4])),
        vars(pair),
        statistics.contrast(some, [(1.0, one.experiment, "FLIC-HL"), (-0.5, one.experiment, "Local")]),
        statistics.Paired.of({0: 1.5, 3: -0.25, 4: 0.5}),
        statistics.Paired.of({2: 1.0}),
        [judging.claim_verdict(pair, low, high) for low, high in ((-9, 9), (0, 1), (-0.3, 0.1), (0, math.inf))],
        [judging.claim_p(pair, low, high) for low, high in ((-9, 9), (0, 1), (-0.3, 0.1), (0, math.inf))],
        statistics.protocols_differ([one, other]),
        records.to_json(one),
        records.compare(one, other),
        [records.to_percent(0.3, metric) for metric in ("accuracy", "seconds")],
        rows,
        comparison.table(same),
        comparison.against(comparison.table(same), ["FLIC-HL"], ["FLIC-Class"]),
        comparison.means(rows),
        comparison.differences(rows, "FLIC-HL", "FLIC-Class"),
        comparison.best(rows, ["FLIC-HL", "FLIC-Class", "HetFedRep"]),
        comparison.against(rows, ["FLIC-HL"], ["FLIC-Class", "HetFedRep"]),
        comparison.corrected(comparison.against(rows, ["FLIC-HL"], ["FLIC-Class", "HetFedRep"])),
    ]


@case("regression anchors")
def _() -> Any:
    ends, y = normal(2, 3, seed=1), torch.tensor([0.0, 0.3, 1.0]).double()
    z = normal(3, 3, seed=2)
    return [
        segment_means(ends, y),
        *(with_gradients(lambda e, z, w=w: segment_distance(e, z, y, torch.tensor(w).double()), ends, z)
          for w in ([1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0])),
    ]  # fmt: skip


# --- where arguments end ----------------------------------------------------------------------------------------------


def near(value: Any) -> list[Any]:
    """Values about as far from a valid one as a limit may lie."""
    if isinstance(value, bool | str | None):
        return []
    if isinstance(value, int | float):
        return [*dict.fromkeys([-1, 0, 1, 2, 3, value - 1, value + 1, 0.0, 0.5, 1.0, 1.5, 1e308])]
    if isinstance(value, torch.Tensor | np.ndarray):
        found = spoiled(value)
        if value.ndim:
            last, first = value[..., :-1], value[:-1]
            found += [last, first, value[0], value[..., 0], value.reshape(-1)[0], 0 * value, value[..., :2], value[:2]]
        return found
    if isinstance(value, tuple) and all(isinstance(v, int | float) for v in value):
        low, high = value[0], value[-1]
        return [(low, low), (high, low), (low,), (0, high), (-1, high), (1, high), (low, high, high)]
    if isinstance(value, list | dict):
        return [type(value)(), [*value][:1], [*value][:2], [*value, *value]]
    return []


def outcome(case: Case, argument: str, value: Any) -> str:
    """How a call with this value ends, in words."""
    told = {**case.valid, argument: value}
    if "rng" in told:
        told["rng"] = np.random.default_rng(0)
    try:
        case.call(**told)
    except Exception as error:
        return re.sub(r" at 0x[0-9a-f]+|/[^ ]*", "", f"{type(error).__name__} {error}")
    return "accepted"


def edges(case: Case) -> list[tuple[str, int, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetfl_core.checks.available_memory", lambda: 2.0 * 2**30)
        return [
            (argument, i, outcome(case, argument, value))
            for argument, valid in case.valid.items()
            if argument != "rng"
            for i, value in enumerate(near(valid))
        ]


for _name, _case in {**test_fuzz.CASES, **test_fuzz_ledger.CASES}.items():
    if _name not in test_fuzz.FILES:
        CASES[f"edges: {_name}"], NEEDS[f"edges: {_name}"] = partial(edges, _case), ()


# --- real data --------------------------------------------------------------------------------------------------------

for _made, _arguments in (
    (femnist.characters, {"n_clients": 3, "seed": 1}),
    (femnist.digits, {"n_clients": 4, "seed": 1}),
    (femnist.digits, {"n_clients": 3, "variant": "code", "scaling": "tenth"}),
    (digits.mnist_usps, {"n_clients": 4, "seed": 1, "max_train": 600}),
    (digits.mnist_usps, {"n_clients": 4, "variant": "code", "resize": 12, "max_train": 500}),
    (fedgen.mnist, {"n_clients": 10, "alpha": 0.3, "seed": 1, "ratio": 0.02}),
    (flic_bci.common40, {}),
    (eegmmidb.federation, {}),
):

    @case(f"{_made.__module__.rsplit('.')[-1]}.{_made.__name__}{_arguments or ''}", "data")
    def _(make: Any = _made, arguments: Any = _arguments) -> Any:
        return of_federation(make(**arguments))
