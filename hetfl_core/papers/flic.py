"""FLIC's experiments: Tables 3, 4 and S2, Figures 4 and S2 to S6, and our own that take its settings apart.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024. Section 6 and Appendix S3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hetfl_core.datasets import digits, femnist, flic_bci, toy
from hetfl_core.federation import Federation
from hetfl_core.methods import FLIC, FedRep, HetFedRep, Local, Method
from hetfl_core.networks import CNN, MLP, Model
from hetfl_core.papers.experiment import Experiment

Data = Callable[[int], Federation]

PUBLISHED_MLP = MLP(activation="leaky_relu", dropout=0.5)
"""The network of the published code for the BCI data."""

TOYS: dict[str, Callable[..., Federation]] = {"noisy": toy.noisy_features, "linear": toy.linear_mapping}


def methods(phi: MLP | CNN | None = None, pretrain_batch: int = 100, fedrep: bool = False) -> dict[str, Method]:
    """The methods of the tables at the settings of the text (Section 6 and Appendix S3.3).

    Parameters
    ----------
    phi : MLP or CNN, optional
        The embedding; by default the MLP d–64–64–64.
    pretrain_batch : int
        Batch size of the pre-training: 10 for toys, 100 for digits and BCI.
    fedrep : bool
        With FedRep, for federations with one feature space.
    """
    phi = phi or MLP()
    flat, deep = Model(phi), Model(phi, alpha=100)
    found: dict[str, Method] = {"Local": Local(flat)}
    if fedrep:
        found["FedRep"] = FedRep(flat)
    return found | {
        "HetFedRep": HetFedRep(deep),
        "FLIC-Class": FLIC(flat, pretrain_batch=pretrain_batch),
        "FLIC-HL": FLIC(deep, pretrain_batch=pretrain_batch),
    }


def published() -> dict[str, Method]:
    """FLIC as its published code runs it on the BCI data, with the code's network and weight decay."""
    return {
        "FLIC-Class": FLIC.published(model=Model(PUBLISHED_MLP), pretrain_batch=100),
        "FLIC-HL": FLIC.published(model=Model(PUBLISHED_MLP, alpha=100), pretrain_batch=100),
    }


# --- tables ---------------------------------------------------------------------------------------------------------


def _bci() -> dict[str, Experiment]:
    return {
        "flic/bci-common40": Experiment(
            "FLIC, Table 4: BCI with the common electrodes, 40 subjects",
            lambda seed: flic_bci.common40(),
            methods(fedrep=True),
            dataset="flic_bci.common40",
            wanted=0,
            book={"rounds": 10},
        ),
        "flic/bci-common40-published": Experiment(
            "The same with FLIC as its published code runs it",
            lambda seed: flic_bci.common40(),
            published(),
            dataset="flic_bci.common40",
            wanted=10,
        ),
    }


def _digits() -> dict[str, Experiment]:
    found = {}
    for b in (100, 200):
        for classes in (3, 5):
            for name, options in (("digits", {}), ("digits-resize", {"resize": 28})):
                table = "Table 4: MNIST and USPS resized to 28 × 28" if options else "Table 3: MNIST and USPS"
                found[f"flic/{name}-b{b}-c{classes}"] = Experiment(
                    f"FLIC, {table}, {b} clients with {classes} classes",
                    _dealt_digits(b, classes, **options),
                    methods(CNN(), fedrep=bool(options)),
                    evaluate_every=10,
                    dataset="digits.mnist_usps",
                    wanted=40 + 30 * bool(options) + b // 10 + classes,
                    book={"rounds": 2, "pretrain_epochs": 3, "local_epochs": 2},
                )
    return found


def _dealt_digits(n_clients: int, classes: int, **options: Any) -> Data:
    return lambda seed: digits.mnist_usps(n_clients, classes, seed, **options)


def _femnist() -> dict[str, Experiment]:
    """Table S2; of the 150 writers in its second column 105 are at hand."""
    return {
        f"flic/femnist-{n}": Experiment(
            f"FLIC, Table S2: digits of {n} writers",
            _writers(n),
            methods(fedrep=True),
            rounds=1000,
            evaluate_every=20,
            dataset="femnist.digits",
            wanted=25 if n == 50 else 90,
            book={"rounds": 10, "pretrain_epochs": 10},
        )
        for n in (50, 105)
    }


def _writers(n_clients: int) -> Data:
    return lambda seed: femnist.digits(n_clients, seed)


# --- figures on the toys --------------------------------------------------------------------------------------------


def toy_data(name: str, n_clients: int = 100, **options: Any) -> Data:
    """A toy federation with 3 of 20 classes a client, by seed."""
    return lambda seed: TOYS[name](n_clients, 3, seed, **options)


def _toys() -> dict[str, Experiment]:
    """Figure 4 (accuracy against the number of clients, five runs); its point at 100 clients has the short name."""
    found = {}
    for order, name in enumerate(TOYS):
        for n_clients in (100, 50, 200, 300, 500):
            main = n_clients == 100
            found[f"flic/toy-{name}" + ("" if main else f"-b{n_clients}")] = Experiment(
                f"FLIC, Figure 4: {TOYS[name].__name__.replace('_', ' ')}, {n_clients} clients with 3 of 20 classes",
                toy_data(name, n_clients),
                methods(pretrain_batch=10),
                dataset=f"toy.{TOYS[name].__name__}",
                wanted=(20 if main else 200 + n_clients // 10) + order,
                seeds=5,
            )
    found["flic/toy-linear-dim30"] = Experiment(
        "FLIC, Figure 4 as its caption has it: linear mapping of classes in dimension 30, 100 clients",
        toy_data("linear", dim=30),
        methods(pretrain_batch=10),
        dataset="toy.linear_mapping",
        wanted=28,
    )
    return found


def _participation() -> dict[str, Experiment]:
    """Figure S3: FLIC-Class, accuracy after the last and in the best round, against the participation rate."""
    found = {}
    for order, name in enumerate(TOYS):
        for rate in (0.3, 0.5, 0.7, 1.0):
            found[f"flic/participation-{name}-r{rate}"] = Experiment(
                f"FLIC, Figure S3: {TOYS[name].__name__.replace('_', ' ')}, participation rate {rate}",
                toy_data(name),
                {"FLIC-Class": methods(pretrain_batch=10)["FLIC-Class"]},
                participation=rate,
                dataset=f"toy.{TOYS[name].__name__}",
                wanted=300 + int(10 * rate) + order,
            )
    return found


# --- what makes the difference? -------------------------------------------------------------------------------------


def switches(pretrain_batch: int = 100) -> dict[str, Method]:
    """FLIC-HL as the text has it, and with one thing changed at a time, most of them towards the published code."""
    base = FLIC(pretrain_batch=pretrain_batch)
    flat, code = Model(), Model(PUBLISHED_MLP, alpha=100)
    changes: dict[str, dict[str, Any]] = {
        "anchors at e": {"anchor_variance": math.e},
        "anchor step at every batch": {"anchor_step": "each"},
        "sampled W2": {"sampled": True},
        "alpha from round 21": {"representation_from": 21},
        "M-1 and 1 epochs": {"representation_within": True},
        "realigned": {"realign": True},
        "head decay": {"head_decay": 1e-3},
        "uniform weights": {"weighting": "uniform"},
        "published network": {"model": code},
        "no alignment in rounds": {"lambda1": 0.0},
        "no anchor term": {"lambda2": 0.0},
        "no pre-training": {"pretrain_epochs": 0},
        "anchors frozen": {"local_anchors": False},
    }
    found: dict[str, Method] = {"FLIC-HL": base}
    found |= {f"FLIC-HL, {name}": replace(base, **change) for name, change in changes.items()}
    return found | {
        "Local": Local(flat),
        "Local, published network": Local(Model(PUBLISHED_MLP)),
        "HetFedRep": HetFedRep(),
        "HetFedRep, published network": HetFedRep(code),
        "HetFedRep, realigned": replace(base, lambda1=0.0, lambda2=0.0, pretrain_epochs=0, realign=True),
    }


def _ablations() -> dict[str, Experiment]:
    found = {
        "flic/ablation-bci": Experiment(
            "FLIC's text against its published code, one switch at a time: BCI with the common electrodes",
            lambda seed: flic_bci.common40(),
            switches(),
            dataset="flic_bci.common40",
            wanted=30,
            evaluate_every=10,
        )
    }
    for order, name in enumerate(TOYS):
        found[f"flic/ablation-{name}"] = Experiment(
            f"FLIC's text against its published code, one switch at a time: {TOYS[name].__name__.replace('_', ' ')}",
            toy_data(name),
            switches(pretrain_batch=10),
            dataset=f"toy.{TOYS[name].__name__}",
            wanted=31 + order,
            evaluate_every=10,
        )
    return found


EXPERIMENTS: dict[str, Experiment] = {
    **_bci(),
    **_toys(),
    **_femnist(),
    **_digits(),
    **_participation(),
    **_ablations(),
}
