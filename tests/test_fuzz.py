"""Bad calls: each ends in a result that makes sense, or in an error that names the argument.

`CASES` holds a valid call for every public function that takes arguments of users. One argument at a time is replaced
by each of some fifty bad values. What is then refused must be refused by a `ValueError`, `TypeError` or `KeyError`
whose message names the argument; what is accepted must not be NaN. Sizes that no memory holds must be refused before it
is asked for.
"""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fuzzing import Case, bad_values, complaint, generator, nonsense
from small import ragged

from hetfl_book import calibration, discriminator
from hetfl_book.attacks import inversion, scores, watching
from hetfl_book.datasets import eeg_blocks, fedgen, flic_bci, multiview, pfedhn, project, solids, text
from hetfl_book.papers import experiment
from hetfl_book.papers import fedcma as settings_of_fedcma
from hetfl_book.papers import fedcr as settings_of_fedcr
from hetfl_book.papers import hyfem as settings_of_hyfem
from hetfl_book.theory import fedcma as cma
from hetfl_book.theory import fedcr as cr
from hetfl_book.theory import flic as theory
from hetfl_book.theory import flic_bound, flic_distances
from hetfl_core import (
    Client,
    Federation,
    Preparation,
    adapt,
    baselines,
    checks,
    matching,
    partition,
    rng,
    scorer,
    simulate,
    tune,
)
from hetfl_core import distances as d
from hetfl_core.datasets import blocks, digits, eeg, eegmmidb, femnist, fewer, images, pooled, toy
from hetfl_core.datasets.eeg_cutting import Trials
from hetfl_core.methods import FLIC, FedHeNN, Local, privacy
from hetfl_core.methods.alignment import MMD, MixtureWasserstein
from hetfl_core.methods.schemes import L2GDScheme
from hetfl_core.networks import MLP, Model

AVAILABLE = checks.available_memory
"""As it is; the tests below pretend to have 2 GiB."""

EYE, TWO = torch.eye(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
MEAN, OTHER = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
HALVES = torch.full((2,), 0.5, dtype=torch.float64)
MEANS, COVARIANCES = torch.stack([MEAN, OTHER]), torch.stack([EYE, 2 * EYE])
LABELS = np.arange(60) % 4
SMALL = Model(MLP((4,), 3), alpha=2)
QUICK = Local(model=SMALL, local_epochs=1)
FED = ragged(3, sizes=(8, 14))
RUN = simulate(FED, QUICK, rounds=1, participation=1.0, device="cpu", progress=False)
LINEAR = theory.linear_federation(3, 4, 2, n=6, n_test=5, extra=2)
Z, Y = LINEAR.embed(LINEAR.oracle)
X = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
Y9 = np.arange(9) % 2


def weighed_loss(y: np.ndarray, p: np.ndarray) -> float:
    return float(np.abs(p.argmax(1) - y).mean())


def client(name: str = "a", **changes: Any) -> Client:
    return Client(**({"x_train": X, "y_train": Y9, "x_test": X[:2], "y_test": Y9[:2], "name": name} | changes))


def federation_of(**changes: Any) -> Federation:
    """A client and its federation, where it is checked."""
    options = {key: changes.pop(key) for key in ("n_classes", "task", "info") if key in changes}
    return Federation([client(**changes)], **options)


FRAME = pd.DataFrame(X, columns=list("abcd")).assign(site="s", y=Y9)


def newcomer() -> Client:
    one = FED[0]
    return Client(one.x_train, one.y_train, one.x_test, one.y_test, "new")


TOY = {
    "n_clients": 3,
    "classes_per_client": 2,
    "seed": 0,
    "variant": "text",
    "n_classes": 4,
    "dim": 2,
    "sigma": 1.0,
    "n_train_per_class": 12,
    "n_test_per_class": 6,
    "subsample": True,
}
FOUR = {"m1": MEAN, "S1": EYE, "m2": OTHER, "S2": 2 * EYE}
LIMITS = {"m": MEAN, "S": EYE, "v": OTHER, "anchor": 2 * EYE}
RNG = {"rng": generator()}
BLOCKS = {"seed": 0, "overlap": 0.5, "missing": 0.1, "per_class": 5, "test_per_class": 2, "tested_on": "test"}

CHAIN = np.linalg.inv(2 * np.eye(4) - np.diag([0.5, 0.5, 0.5], 1) - np.diag([0.5, 0.5, 0.5], -1))
"""Covariance of a Markov chain."""
TABLES = np.einsum("yx,o,xz->yxoz", [[0.4, 0.1], [0.0, 0.5]], [0.25, 0.75], [[0.75, 0.25], [0.5, 0.5]])
"""One of a label, a client's data, another's that tells nothing, and z."""
EXPERTS = {"means": [[0.0, 1.0], [1.0, 3.0], [2.0, -1.0]], "variances": [[1.0, 2.0], [0.5, 1.0], [3.0, 1.0]]}
RULES = np.array([[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 0, 0]])
LAW, LAW2 = np.array([[0.2, 0.1, 0.0], [0.3, 0.2, 0.2]]), np.array([[0.1, 0.3, 0.1], [0.0, 0.3, 0.2]])

PERSON = Trials(
    generator().normal(size=(12, 3, 50)), np.arange(12) % 2, np.repeat(["1", "2"], 6), ("C3", "Cz", "C4"), 100.0, "anna"
)

CASES = {
    "toy.noisy_features": Case(toy.noisy_features, TOY | {"added": (1, 3)}),
    "toy.linear_mapping": Case(toy.linear_mapping, TOY | {"widths": (1, 3)}),
    "toy.four_gaussians": Case(
        toy.four_gaussians,
        {"seed": 0, "many": 5, "few": 2, "distance": 2.0, "sigma": 1.0, "n_test": 3},
    ),
    "toy.linear_regression": Case(
        toy.linear_regression,
        {"n_clients": 2, "seed": 0, "dim": 2, "widths": (2, 3), "noise": 0.1, "n_train": (3, 5), "n_test": 2},
    ),
    "digits.bundled": Case(digits.bundled, {"n_clients": 4, "classes_per_client": 2, "seed": 0, "test_fraction": 0.25}),
    "text.two_modalities": Case(
        text.two_modalities,
        {
            "n_clients": 4,
            "classes_per_client": 2,
            "seed": 0,
            "variant": "text",
            "prune": 0.1,
            "n_pairs": 60,
            "latent": 4,
            "separation": 1.0,
            "noise": (1.0, 0.7),
        },
    ),
    "project.to_common_space": Case(
        project.to_common_space,
        {"federation": FED, "dim": 2, "seed": 0, "perplexity": 2.0, "iterations": 2},
        huge=False,
    ),
    "partition.Partition": Case(
        partition.Partition,
        {
            "n_clients": 3,
            "split": "dirichlet",
            "classes_per_client": 2,
            "alpha": 0.5,
            "variant": "text",
            "per_client": None,
            "min_size": 1,
            "test_fraction": None,
        },
    ),
    "partition.deal": Case(
        partition.Partition(3, alpha=0.5).deal,
        {"labels": LABELS, "test_labels": LABELS, "repeat_below": 10} | RNG,
        names={"labels": "n_clients"},
    ),
    "distances.bures": Case(d.bures, {"S1": EYE, "S2": 2 * EYE}),
    "distances.bures_wasserstein": Case(d.bures_wasserstein, FOUR),
    "distances.gaussian_kl": Case(d.gaussian_kl, {"m1": MEAN, "v1": OTHER, "m2": OTHER, "v2": OTHER}),
    "distances.gaussian_kl of matrices": Case(d.gaussian_kl, {"m1": MEAN, "v1": EYE, "m2": OTHER, "v2": EYE}),
    "distances.mmd": Case(d.mmd, {"x": ROWS, "y": ROWS + 1, "bandwidth": 1.0, "unbiased": True}),
    "distances.transport_plan": Case(d.transport_plan, {"cost": ROWS[:2, :2].abs(), "a": HALVES, "b": HALVES}),
    "distances.cka": Case(d.cka, {"x": ROWS, "y": ROWS[:, :2]}),
    "distances.principal_angle": Case(d.principal_angle, {"A": ROWS[:, :2], "B": ROWS[:, 1:]}),
    "distances.gaussian_barycentre": Case(
        d.gaussian_barycentre,
        {"means": MEANS, "covariances": COVARIANCES, "weights": HALVES, "tolerance": 1e-6, "max_iterations": 50},
        huge=False,
        names={"means": "average needs at least one member"},
    ),
    "distances.average_anchors": Case(
        d.average_anchors,
        {"means": ROWS.reshape(2, 3, 3), "cholesky": EYE.expand(2, 3, 3, 3), "weights": HALVES},
        names={"means": "average needs at least one member|weights"},
    ),
    "distances.product_of_experts": Case(
        d.product_of_experts, {"means": MEANS, "variances": MEANS + 1, "weights": HALVES, "prior": True}
    ),
    "theory.linear_federation": Case(
        theory.linear_federation,
        {"n_clients": 2, "k": 3, "d": 2, "n": 4, "n_test": 2, "extra": 1, "freedom": "signs", "seed": 0},
    ),
    "theory.closed_form_phi": Case(
        theory.closed_form_phi, {"mean": MEAN, "covariance": 2 * EYE, "k": 2, "signs": torch.ones(2).double()}
    ),
    "theory.random_signs": Case(theory.random_signs, {"k": 3, "seed": 0}),
    "theory.method_of_moments": Case(theory.method_of_moments, {"z": Z, "y": Y, "d": 2}),
    "theory.least_squares_heads": Case(theory.least_squares_heads, {"A": LINEAR.A, "z": Z, "y": Y}),
    "theory.representation_step": Case(
        theory.representation_step,
        {"A": LINEAR.A, "heads": LINEAR.heads, "z": Z, "y": Y, "step": 0.1},
        names={"A": "heads", "z": "heads|A must"},
    ),
    "theory.flic_fedrep": Case(
        theory.flic_fedrep,
        {"z": Z, "y": Y, "d": 2, "rounds": 2, "step": 0.1, "participation": 0.5, "start": LINEAR.A, "seed": 0},
        huge=False,
        names={"d": "start", "z": "start"},
    ),
    "theory.measured_rate": Case(
        theory.measured_rate, {"distances": torch.tensor([0.5, 0.25, 0.1]).double(), "floor": 1e-10}
    ),
    "theory.convergence_bound": Case(
        flic_bound.convergence_bound,
        {"A0": LINEAR.A + 0.1, "truth": LINEAR.A, "heads": LINEAR.heads, "participation": 1.0, "step": 1e-3},
        names={"A0": "A and B|A must|as in A", "truth": "A and B|B must"},
    ),
    "theory.head_spectra": Case(flic_bound.head_spectra, {"heads": LINEAR.heads, "participation": 0.7}),
    "theory.optimal_map": Case(flic_distances.optimal_map, {"S1": EYE, "S2": 2 * EYE}),
    "theory.limit_variance": Case(flic_distances.limit_variance, LIMITS),
    "theory.limit_variance_printed": Case(flic_distances.limit_variance_printed, LIMITS | {"eigenpairs_of": "class"}),
    "theory.simulate_w2": Case(flic_distances.simulate_w2, LIMITS | {"n": 5, "repeats": 3, "seed": 0}),
    "theory.variance_with_error": Case(flic_distances.variance_with_error, {"draws": ROWS.flatten()}),
    "fedcr.discrete_cmi": Case(cr.discrete_cmi, {"p": TABLES, "a": [0], "b": [1, 2], "given": (3,)}),
    "fedcr.discrete_alignment": Case(
        cr.discrete_alignment, {"p": TABLES, "encoder": np.array([[0.75, 0.25], [0.5, 0.5]])}
    ),
    "fedcr.product_information": Case(
        cr.product_information, {"precision": 1.0, "m": 2, "correlation": 0.5, "variance": 1.0, "prior": 1.0}
    ),
    "fedcr.gaussian_product": Case(
        cr.gaussian_product,
        {"means": EXPERTS["means"], "precisions": EXPERTS["variances"], "prior_mean": 0.5, "prior": 1.0, "times": 1},
    ),
    "fedcr.effective_samples": Case(cr.effective_samples, {"n": 4, "correlation": 0.5}),
    "fedcr.collapse": Case(cr.collapse, {"n": 4, "rounds": 3, "variance": 1.0, "prior": 1.0}),
    "fedcr.alignment_term": Case(cr.alignment_term, EXPERTS | {"mean": np.zeros(2), "variance": np.ones(2)}),
    "fedcr.pooled_target": Case(cr.pooled_target, {key: np.array(each) for key, each in EXPERTS.items()}),
    "fedcr.risks": Case(cr.risks, {"hypotheses": RULES, "law": LAW}),
    "fedcr.divergence": Case(cr.divergence, {"hypotheses": RULES, "p": LAW.sum(0), "q": LAW2.sum(0)}),
    "fedcr.ideal_risk": Case(cr.ideal_risk, {"hypotheses": RULES, "source": LAW, "target": LAW2}),
    "fedcr.deviation": Case(cr.deviation, {"n": 100, "d": 2, "m": 10, "delta": 0.05}),
    "fedcr.fano_bits": Case(cr.fano_bits, {"classes": 10, "error": 0.1}),
    "fedcr.grid_error": Case(cr.grid_error, {"classes": 10, "spacing": 2.0}),
    "fedcr.held_out": Case(settings_of_fedcr.held_out, {"federation": FED, "seed": 0, "share": 0.25}),
    "theory.fedcma.theorem_2": Case(
        cma.theorem_2,
        {
            "hypotheses": np.array([[0, 1], [1, 0]]),
            "marginals": np.array([[1.0, 0.0], [0.5, 0.5]]),
            "labelling": np.array([[0.0, 1.0], [1.0, 1.0]]),
            "alpha": np.array([0.5, 0.5]),
            "j": 0,
        },
    ),
    "theory.fedcma.induced": Case(
        cma.induced,
        {
            "extractor": [0, 1, 1],
            "marginals": np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]),
            "labelling": np.array([0.0, 1.0, 0.5]),
        },
    ),
    "theory.fedcma.label_shift": Case(
        cma.label_shift, {"conditionals": np.array([[0.7, 0.3], [0.3, 0.7]]), "share": 0.9, "other": 0.1}
    ),
    "theory.fedcma.two_masses": Case(cma.two_masses, {"scale": 1.0, "other": 2.0}),
    "theory.fedcma.dimension": Case(cma.dimension, {"bodies": [3, 4], "d_e": 2, "K": 3}),
    "theory.fedcma.theorem_3": Case(cma.theorem_3, {"T": 10, "c0": 1.0, "c1": 1.0, "g2": 0.1}),
    "theory.fedcma.rate": Case(cma.rate, {"T": 10, "c0": 1.0, "c1": 1.0, "g2": 0.1, "g1": 0.0, "eta": 0.5}),
    "theory.fedcma.quadratic": Case(cma.quadratic, {"T": 9, "eta": 0.5, "c0": 1.0, "start": 1.0, "g2": 0.1}),
    "fedcma.held_out": Case(settings_of_fedcma.held_out, {"federation": FED, "seed": 0, "share": 0.25}),
    "experiment.tried": Case(
        experiment.tried, {"name": "Local", "method": Local(), "rates": (0.1, 0.03), "own": [{"weight_decay": 0.0}]}
    ),
    "hyfem.tried": Case(settings_of_hyfem.tried, {"name": "Local", "rates": (0.1, 0.03)}),
    "hyfem.seen_from": Case(settings_of_hyfem.seen_from, {"n": 3, "out": 8}),
    "fedcma.tried": Case(settings_of_fedcma.tried, {"name": "Local", "rates": (0.1, 0.03)}),
    "discriminator.recognise_clients": Case(
        discriminator.recognise_clients,
        {
            "features": {"a": X, "b": X[:6]},
            "labels": {"a": Y9, "b": Y9[:6]},
            "kind": "linear",
            "balanced": True,
            "held_out": 0.3,
            "trees": 300,
            "seed": 0,
        },
    ),
    "fedcr.best_rates": Case(
        settings_of_fedcr.best_rates, {"accuracies": {"A, lr 0.1": [0.5, 0.7], "A, lr 0.5": (0.8,)}}
    ),
    **{
        f"calibration.{function.__name__}": Case(
            function, {"probabilities": np.full((4, 2), 0.5), "labels": np.array([0, 1, 1, 0]), **more}
        )
        for function, more in (
            (calibration.reliability, {"bins": 5}),
            (calibration.expected_calibration_error, {"bins": 5}),
            (calibration.log_loss, {}),
            (calibration.fitted_temperature, {}),
        )
    },
    "calibration.at_temperature": Case(
        calibration.at_temperature, {"probabilities": np.full((4, 2), 0.5), "temperature": 2.0}
    ),
    "Client": Case(
        federation_of,
        {
            "x_train": X,
            "y_train": Y9,
            "x_test": X,
            "y_test": Y9,
            "name": "a",
            "n_classes": 2,
            "info": {},
            "task": "classification",
        },
        names={"name": "client names", "x_train": "x_test|y_train|2 axes", "y_train": "x_train"},
    ),
    "Client of a regression": Case(
        federation_of,
        {"x_train": X, "y_train": X[:, 0], "x_test": X, "y_test": X[:, 1], "name": "a", "task": "regression"},
        names={"name": "client names", "x_train": "x_test|y_train", "y_train": "x_train"},
    ),
    "Federation": Case(
        Federation,
        {"clients": [client("a"), client("b")], "n_classes": 2, "name": "f", "info": {}, "task": "classification"},
    ),
    "Preparation": Case(
        Preparation,
        {"gaps": "median", "categories": ("a",), "levels": "own", "scale": True, "absent": 0.5, "missing": (0,)},
    ),
    "Federation.from_frame": Case(
        partial(Federation.from_frame, FRAME),
        {"client": "site", "target": "y", "test_size": 0.5, "seed": 0, "name": "f", "ignore": ["b"]},
    ),
    "Federation.to": Case(FED.to, {"dtype": torch.float64}),
    "Federation.subset": Case(FED.subset, {"names": ["client-0"]}, names={"names": "no client|clients"}),
    "simulate": Case(
        simulate,
        {
            "federation": FED,
            "method": QUICK,
            "rounds": 1,
            "participation": 1.0,
            "seed": 0,
            "engine": "stacked",
            "device": "cpu",
            "dtype": torch.float32,
            "checkpoint": None,
            "progress": False,
            "evaluate_every": 1,
            "metric": ("own", "brier"),
            "last_step": "own",
            "stack_size": 2,
            "threads": 1,
            "on_round": None,
            "secrets": {FED[0].name: bytes(32)},
        },
        huge=False,
    ),
    "Run.scores": Case(lambda metric, split: RUN.scores(metric, split=split), {"metric": "auc", "split": "test"}),
    "scorer": Case(scorer, {"function": weighed_loss, "greater_is_better": False}),
    "Trained.client": Case(RUN.trained().client, {"name": RUN.federation[0].name}, names={"name": "client"}),
    "adapt": Case(
        adapt,
        {
            "run": RUN,
            "clients": [newcomer()],
            "rounds": 1,
            "seed": 0,
            "engine": "stacked",
            "device": "cpu",
            "progress": False,
            "stack_size": 1,
            "threads": 1,
        },
        huge=False,
    ),
    "Run.embed": Case(RUN.embed, {"split": "train"}),
    "Run.outputs": Case(RUN.outputs, {"split": "test"}),
    "Run.probabilities": Case(RUN.probabilities, {"split": "test"}),
    "tune": Case(
        tune,
        {
            "federation": FED,
            "method": baselines.LDA(),
            "grid": {"view": ["own"]},
            "metric": "accuracy",
            "seeds": [1],
            "share": 0.3,
            "n_jobs": 1,
            "progress": False,
        },
        huge=False,
    ),
    "datasets.fewer.fewer": Case(fewer.fewer, {"client": client(), "n": 4, "seed": 0}),
    "datasets.fewer.fewer_trials": Case(fewer.fewer_trials, {"federation": FED, "n": 4, "seed": 0}),
    "baselines.Chosen": Case(baselines.Chosen, {"among": (baselines.LDA(),), "folds": 3}),
    "Privacy": Case(privacy.Privacy, {"clip": 1.0, "noise_multiplier": 1.0}),
    "privacy.epsilon": Case(privacy.epsilon, {"noise_multiplier": 2.0, "delta": 1e-5, "releases": 3, "sampling": None}),
    "privacy.noise_multiplier": Case(privacy.noise_multiplier, {"epsilon": 2.0, "delta": 1e-5, "releases": 3}),
    "scores.auc": Case(scores.auc, {"positive": [0.5, 1.0], "negative": [0.0, 0.7, 1.0]}),
    "scores.caught": Case(scores.caught, {"positive": [0.5, 1.0], "negative": [0.0, 0.7, 1.0], "false": 0.1}),
    "scores.bootstrap_interval": Case(scores.bootstrap_interval, {"values": [0.5, 0.7, 0.4], "seed": 0}),
    "scores.power_of_means": Case(scores.power_of_means, {"dimension": 8, "n": 5}),
    "watching.unmix": Case(
        watching.unmix,
        {"sums": [[1.0, 2.0], [0.5, 3.0]], "took_part": [[True, False], [True, True]], "strength": 1.0},
    ),
    "inversion.decoder": Case(inversion.decoder, {"z": X, "x": 2 * X, "ridge": 0.1}),
    "MMD": Case(MMD, {"bandwidth": 1.0}),
    "MixtureWasserstein": Case(MixtureWasserstein, {"components": 2, "spread": 1.0}),
    "L2GDScheme": Case(L2GDScheme, {"omega": 0.5}),
    "FLIC": Case(
        FLIC,
        {
            "alignment_weight": 0.1,
            "anchor_weight": 0.1,
            "pretrain_epochs": 1,
            "pretrain_batch": 1,
            "anchor_scale": 1.0,
            "anchor_variance": 1.0,
            "covariance": "fixed",
            "anchor_samples": 1,
            "representation_epochs": 1,
            "local_anchors": True,
            "anchor_step": "once",
            "representation_from": 0,
            "representation_within": False,
            "realign": False,
            "head_decay": 0.0,
            "barycentre": "factors",
            "local_epochs": 2,
            "batch_size": 5,
            "lr": 0.1,
            "weighting": "samples",
        },
    ),
    "FedHeNN": Case(
        FedHeNN,
        {"term_weight": 0.1, "n_rad": 5, "alignment": "distance", "surveyed": "all", "weight_decay": 0.0, "lr": 0.1},
    ),
    "normal": Case(rng.normal, {"shape": (2, 3), "source": torch.Generator(), "dtype": torch.float32}, huge=False),
    "stream": Case(rng.stream, {"seed": 0, "client": "a", "round": 0, "purpose": "init"}, names={"client": "client"}),
    "flic_bci.common40": Case(flic_bci.common40, {"n_classes": 5}),
    "femnist.characters": Case(femnist.characters, {"n_clients": 2, "seed": 0}),
    "femnist.digits": Case(femnist.digits, {"n_clients": 2, "seed": 0, "variant": "text", "scaling": "tenth"}),
    "digits.mnist_usps": Case(
        digits.mnist_usps,
        {"n_clients": 4, "classes_per_client": 2, "seed": 0, "variant": "text", "resize": 8},
    ),
    "images.fashion_mnist": Case(
        images.fashion_mnist,
        {"n_clients": 2, "classes_per_client": 2, "seed": 0, "alpha": None, "sizes": (8,)},
    ),
    **{
        f"pooled.{make.__name__}": Case(
            make,
            {
                "n_clients": 100,
                "classes_per_client": 2,
                "seed": 0,
                "split": "non-iid_1",
                "alpha": 0.5,
                "variant": "text",
                "per_client": 10,
                "test_fraction": 0.3,
            },
        )
        for make in (pooled.fashion_mnist, pooled.mnist, pooled.cifar10, pooled.cifar100, pooled.emnist_letters)
    },
    **{
        f"blocks.{make.__name__}": Case(
            make,
            BLOCKS | {"assignment": "table 4"},
        )
        for make in (blocks.fashion_mnist, blocks.mnist, blocks.cifar10)
    },
    "blocks.eurosat": Case(blocks.eurosat, BLOCKS | {"assignment": "table 4", "cut": "quadrants", "resize": 8}),
    "multiview.modelnet40": Case(
        multiview.modelnet40, BLOCKS | {"assignment": "modelnet40:2", "views": 12, "resize": 8}
    ),
    "multiview.herigraph": Case(
        multiview.herigraph,
        BLOCKS | {"assignment": "herigraph", "cities": ["Suzhou"], "without_text": "drop"},
    ),
    "blocks.holders": Case(blocks.holders, {"assignment": [((0,), (0, 1))], "n_blocks": 2, "n_classes": 3}),
    "blocks.deal": Case(
        blocks.BlockPartition(overlap=0.5).deal,
        {"labels": LABELS, "holdings": [((0,), (0, 1))]} | RNG,
        names={"holdings": "assignment"},
    ),
    "blocks.federate": Case(
        blocks.federate,
        {
            "x": {"a": torch.ones(12, 2), "b": torch.ones(12, 3)},
            "y": np.arange(12) % 2,
            "x_test": {"a": torch.ones(4, 2), "b": torch.ones(4, 3)},
            "y_test": np.arange(4) % 2,
            "assignment": [((0,), (0, 1)), ((1,), (0, 1))],
            "seed": 0,
            "overlap": 0.5,
            "missing": 0.1,
            "tested_on": "test",
            "n_classes": 2,
            "name": "mine",
            "info": {},
        },
    ),
    "blocks.quadrants": Case(blocks.quadrants, {"x": torch.zeros(2, 1, 4, 4)}),
    "blocks.coloured_quadrants": Case(blocks.coloured_quadrants, {"x": torch.zeros(2, 3, 4, 4)}),
    "solids.views": Case(
        solids.views,
        {
            "seed": 0,
            "assignment": "4 views",
            "per_class": 2,
            "test_per_class": 1,
            "size": 4,
            "n_views": 4,
            "noise": 0.1,
            "overlap": 0.5,
            "missing": 0.1,
            "tested_on": "test",
        },
        names={"missing": "x_train", "n_views": "assignment"},
    ),
    "solids.render": Case(
        solids.render,
        {
            "shape": "jug",
            "sizes": np.full((2, 5), 0.5),
            "turn": [0.1, 0.2],
            "azimuth": [0.0],
            "tilt": [0.0, 0.1],
            "size": 4,
        },
        names={"sizes": "turn"},
    ),
    "solids.azimuths": Case(solids.azimuths, {"n_views": 3}),
    "matching.assign": Case(matching.assign, {"costs": torch.zeros(3, 2)}),
    "fedgen.emnist": Case(fedgen.emnist, {"n_clients": 5, "alpha": 0.5, "seed": 0, "ratio": 0.1}),
    "fedgen.mnist": Case(fedgen.mnist, {"n_clients": 5, "alpha": 0.5, "seed": 0, "ratio": 0.5, "dealing": "by seed"}),
    "pfedhn.cifar10": Case(
        pfedhn.cifar10,
        {"n_clients": 10, "seed": 0, "classes_per_client": 2, "variant": "text", "tested_on": "test"},
    ),
    "text.textcaps": Case(
        text.textcaps,
        {
            "n_clients": 4,
            "classes_per_client": 2,
            "seed": 0,
            "variant": "text",
            "embeddings": "clip",
            "prune": 0.1,
            "split": "pairs",
        },
    ),
    "eeg.simulated": Case(
        eeg.simulated,
        {
            "kind": "common",
            "b": 40,
            "datasets": "AlexMI",
            "subjects": 1,
            "classes_per_client": 2,
            "band": (8.0, 30.0),
            "seed": 0,
            "n_classes": 5,
            "progress": False,
            "estimator": "lwf",
            "features": "tangent",
        },
    ),
    "eeg.trials_of": Case(
        eeg.trials_of,
        {
            "recordings": {"anna": "anna.edf"},
            "classes": {"T1": "left", "T2": "right"},
            "channels": ["C3", "C4"],
            "interval": (0.0, 4.0),
            "band": (8.0, 30.0),
            "resample": 128.0,
            "split": "session",
            "seed": 0,
        },
    ),
    "eeg.federation_of": Case(
        eeg.federation_of,
        {"people": {"anna": PERSON}, "features": "tangent", "reference": "train", "estimator": "lwf", "name": "eeg"},
    ),
    "eeg_blocks.simulated": Case(
        eeg_blocks.simulated,
        {
            "seed": 0,
            "subjects": 1,
            "trials": 10,
            "people": 1,
            "features": "power",
            "tested_on": "test",
            "simulator": None,
            "progress": False,
        },
    ),
    "eeg_blocks.laboratory": Case(eeg_blocks.laboratory, {"name": "AlexMI", "trials": 10, "people": 2}),
    "eeg_blocks.groups_of": Case(eeg_blocks.groups_of, {"channels": ["C3", "C4", "Cz"]}),
    "eeg.eegmmidb": Case(
        eegmmidb.one_person, {"features": "tangent", "split": "session", "band": (8.0, 30.0), "seed": 0}
    ),
}

FILES = {
    "flic_bci.common40",
    "femnist.digits",
    "femnist.characters",
    "digits.mnist_usps",
    "images.fashion_mnist",
    "blocks.fashion_mnist",
    "blocks.mnist",
    "blocks.cifar10",
    "blocks.eurosat",
    "multiview.modelnet40",
    "multiview.herigraph",
    "pooled.fashion_mnist",
    "pooled.mnist",
    "pooled.cifar10",
    "pooled.cifar100",
    "pooled.emnist_letters",
    "fedgen.emnist",
    "fedgen.mnist",
    "pfedhn.cifar10",
    "text.textcaps",
    "eeg.simulated",
    "eeg.trials_of",
    "eeg.eegmmidb",
    "eeg_blocks.simulated",
}
"""Read files, or compute for long: only what is refused before is of interest."""


PAIRS = [(name, argument) for name, case in CASES.items() for argument in case.valid]


@pytest.fixture(autouse=True)
def little_memory_and_a_folder_of_ones_own(monkeypatch, tmp_path):
    """So that what is too large does not depend on the machine, and a checkpoint called "x" leaves nothing here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hetfl_core.checks.available_memory", lambda: 2.0 * 2**30)


@pytest.mark.parametrize("name", [name for name in CASES if name not in FILES])
def test_the_calls_that_are_varied_are_valid(name):
    case = CASES[name]
    call = dict(case.valid) | ({"rng": generator()} if "rng" in case.valid else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert nonsense(case.call(**call)) is None


@pytest.mark.parametrize("name", [name for name in CASES if name not in FILES])
def test_a_bad_call_names_its_argument(name):
    case = CASES[name]
    for argument in case.valid:
        for value in bad_values(case, argument):
            found = complaint(case, argument, value)
            assert found is None, f"{name}({argument}={checks.shown(value)}): {found}"


@pytest.mark.parametrize(("name", "argument"), [pair for pair in PAIRS if pair[0] in FILES])
def test_a_bad_call_is_refused_before_files_are_read(name, argument):
    """Only what is refused can be tried here: valid arguments would read files, or download them."""
    bad = {
        "seed": [-1, 1.5, "x", None, math.nan],
        "variant": ["x", None, 3, []],
        "n_classes": [0, 1.5, "x", None, 2**62],
    }
    bad |= {
        key: [0, -2, 1.5, "x", math.nan, [], True, 3j] for key in ("n_clients", "classes_per_client", "subjects", "b")
    }
    bad |= {key: [0, -1, 1.5, "x", math.inf, 10**9] for key in ("resize", "sizes")}
    bad |= {key: [0, -1, 1.5, "x", math.nan, []] for key in ("per_class", "test_per_class", "trials", "people")}
    bad |= {"views": [0, 5, 24, 1.5, "x", math.nan, []]}
    bad |= {key: [-0.1, 1.1, "x", math.nan, None] for key in ("overlap", "missing")}
    bad |= {"prune": [-0.1, 1, "x", math.nan], "progress": ["x", 3, None]}
    bad |= {"band": [3.0, "x", (30.0, 8.0), (8.0,), (8.0, math.nan), None], "datasets": ["x", 3, ["y"], []]}
    bad |= {"alpha": [0, -1.0, math.nan, math.inf, 1e308, "x"]}
    bad |= {"estimator": [3, math.nan, [], 2j], "test_fraction": [0, 1, -0.3, 3, "x", math.nan, []]}
    bad |= {"per_client": [0, -2, 7, 1.5, "x", math.nan, [], 10**9], "resample": [0, -1.0, "x", math.nan, [], 2j]}
    words = [3, "x", math.nan, [], 2j]
    for value in bad.get(argument, words):
        value = (10**9,) if (argument, value) == ("sizes", 10**9) else value
        with pytest.raises((ValueError, TypeError, KeyError)) as error:
            CASES[name].call(**dict(CASES[name].valid) | {argument: value})
        assert argument in str(error.value) or CASES[name].names.get(argument, argument) in str(error.value), value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: toy.noisy_features(n_train_per_class=10**9), r"n_train_per_class=1000000000.* need 1\.49e\+03 GiB"),
        (lambda: toy.linear_mapping(dim=10**9), r"dim=1000000000.* would need [\d.e+,]+ GiB .* 2 GiB are free"),
        (lambda: toy.linear_mapping(widths=(3, 10**12)), r"widths=\(3, 1000000000000\).* GiB"),
        (lambda: toy.linear_regression(n_test=10**10), "n_test=10000000000 would need .* GiB"),
        (lambda: text.two_modalities(n_pairs=10**8), "n_pairs=100000000.* GiB"),
        (lambda: digits.mnist_usps(resize=10**5), "resize=100000 would need .* GiB"),
        (lambda: theory.linear_federation(k=10**6), "k=1000000.* GiB"),
        (lambda: partition.assign_classes(10**9, 4, 2, generator()), "n_clients=1000000000.* GiB"),
        (lambda: toy.noisy_features(subsample="x"), "subsample must be True or False, got 'x'"),
        (lambda: toy.noisy_features(seed=-1), "seed must be a whole number of at least 0, got -1"),
        (lambda: toy.noisy_features(n_test_per_class=1.5), "n_test_per_class must be a whole number .* got 1.5"),
        (lambda: toy.noisy_features(dim=0), "dim must be a whole number of at least 1, got 0"),
        (lambda: toy.noisy_features(n_clients="x"), "n_clients must be a whole number, got 'x'"),
        (lambda: partition.Partition(3, alpha=1e308), "alpha must be .* got 1e[+]308"),
        (lambda: d.transport_plan(EYE[:2, :2], HALVES * math.nan, HALVES), "a must be finite, got NaN"),
        (
            lambda: d.transport_plan(EYE[:2, :2], HALVES, torch.tensor([1.5, -0.5]).double()),
            "b must not be negative",
        ),
        (
            lambda: calibration.expected_calibration_error(np.ones((2, 2)), np.array([0, 1])),
            "probabilities must .* sum",
        ),
        (lambda: federation_of(y_train=Y9 + 2**62), "n_classes, .* label in y_train .* at most 1000000"),
        (lambda: federation_of(x_train=np.ma.array(X, mask=X > 0)), "x_train must not be masked"),
        (
            lambda: partition.Partition(3).deal(np.ma.array(LABELS, mask=LABELS > 2), generator()),
            "labels must not be masked",
        ),
        (lambda: FED.to(torch.int32), "dtype must be a floating-point type"),
        (lambda: simulate(FED, QUICK, threads=10**6), "threads must be at most"),
        (lambda: simulate(FED, QUICK, threads=2**62), "threads must be at most"),
    ],
)
def test_what_was_once_accepted_or_unclear(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_baseline_is_not_its_class():
    with pytest.raises(TypeError, match=r"method must be an object, such as LDA\(\), got the class LDA"):
        simulate(FED, baselines.LDA)


CALLS = [
    "simulate(fed, Local(), threads=10**6)",
    "simulate(fed, Local(), threads=2**31)",
    "simulate(fed, Local(), stack_size=10**18, rounds=1, progress=False)",
    "adapt(None, [], threads=10**6)",
    "Client([[1.0]], [2**62], [[1.0]], [0], 'a') and Federation([Client([[1.0]], [2**62], [[1.0]], [0], 'a')])",
    "toy.noisy_features(n_clients=10**12)",
]


@pytest.mark.nightly
def test_no_bad_call_ends_the_process():
    """In a process of their own, for a segmentation fault would end the tests; the last line is then the call's."""
    code = "from hetfl_core import *; from hetfl_core.datasets import toy; from hetfl_core.methods import Local\n"
    code += "fed = toy.linear_regression(3, n_test=2)\n"
    code += "\n".join(
        f"print({call!r}, flush=True)\ntry:\n    {call}\nexcept (ValueError, TypeError):\n    pass" for call in CALLS
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines() == CALLS


def test_the_command_line_says_what_is_wrong():
    from hetfl_core import cli

    for pair, message in (
        (
            "n_train_per_class=1000000000",
            "toy.noisy_features cannot be made with .* n_train_per_class=1000000000.* GiB",
        ),
        ("n_clients=x", "n_clients must be a whole number, got 'x'"),
        ("sigma=nan", "sigma must be a finite number"),
    ):
        with pytest.raises(ValueError, match=message):
            cli._federation("toy.noisy_features", cli._settings([pair]))


def test_free_memory_is_known():
    assert AVAILABLE() > 2**20


def test_a_size_that_fits_is_not_refused():
    checks.memory(2.0 * 2**30, n=3)
    with pytest.raises(ValueError, match=r"n=3, m='x' would need 3 GiB of memory or more, of which 2 GiB are free"):
        checks.memory(3 * 2**30, n=3, m="x")
