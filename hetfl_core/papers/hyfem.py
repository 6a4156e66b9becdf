"""HyFEM: the comparison of its Appendix C.1 on data at hand, the grid by which all are tuned, and an ablation.

The paper's images pass through ResNets, and its text states no learning rate, batch, width, μ₁, P or p_m. What stands
here is ours and is called so: Fashion-MNIST in quadrants, dealt to six clients as in the paper's Table 4, small
extractors, and 32 rounds of 32 steps, by the published code's optimiser (SGD with momentum 0.5, batches of 32, a
learning rate that falls by 5 % a round).

All methods are tuned alike: for each, `RATES` times three settings of its own, judged by the clients' mean accuracy, on
all classes, on a fifth of the training images that nobody trains on. All take as many gradient steps; the centralised
one takes those of one client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetfl_core.datasets import blocks
from hetfl_core.federation import Federation
from hetfl_core.methods import FedAvg, FedProx, HyFEM, LateFusion, Local, Method
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.papers.experiment import Experiment, Preparation

MODEL = Model(Blocks.alike(blocks.QUADRANTS, MLP((64,), 32, last="relu"), 128))
"""32 features of each quadrant, and a hidden layer of 128 over all of them."""

COMMON: dict[str, Any] = {
    "optimiser": "sgd",
    "momentum": 0.5,
    "lr_decay": 0.95,
    "batch_size": 32,
    "local_steps": 32,
    "weighting": "uniform",
}

RATES = (0.3, 0.1, 0.03, 0.01)
"""Learning rates of the grid, of the first round."""

DECAYS: tuple[dict[str, Any], ...] = tuple({"weight_decay": decay} for decay in (0.0, 1e-4, 1e-3))
"""What methods without settings of their own are tried with."""

PULLS: tuple[dict[str, Any], ...] = tuple({"mu_extractors": mu, "mu_classifier": mu} for mu in (0.0, 0.1, 0.5))

FAMILIES: dict[str, tuple[Method, Sequence[Mapping[str, Any]]]] = {
    "Local": (Local(MODEL, **COMMON), DECAYS),
    "FedAvg, common blocks": (FedAvg(MODEL, **COMMON), DECAYS),
    "FedProx, common blocks": (FedProx(MODEL, **COMMON), [{"mu": mu} for mu in (0.01, 0.1, 0.5)]),
    "FedAvg, zeros": (FedAvg(MODEL, **COMMON), DECAYS),
    "late fusion": (LateFusion(MODEL, **COMMON), DECAYS),
    "HyFEM": (HyFEM(MODEL, **COMMON), PULLS),
    "centralised": (FedAvg(MODEL, **COMMON), DECAYS),
}
"""Each method and the settings that it is tried with beside its learning rate.

FedAvg and FedProx run on the blocks that all clients hold, FedAvg on zeros in the place of missing blocks, too; the
centralised one is trained on all blocks of all classes in one place.
"""


def _words(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in changes.items())


def _tried(name: str) -> dict[str, Method]:
    """The settings that a method is tried with, by names that say which: ``"Local, lr 0.1, weight_decay 0"``."""
    method, own = FAMILIES[name]
    return {
        f"{name}, lr {lr:g}, {_words(changes)}": replace(method, lr=lr, **changes) for lr in RATES for changes in own
    }


GRID: dict[str, dict[str, Method]] = {name: _tried(name) for name in FAMILIES}
"""All of them."""


def _common_blocks(federation: Federation, seed: int) -> Federation:
    return federation.of_common_blocks()


def _filled(federation: Federation, seed: int) -> Federation:
    return federation.filled()


def _in_one_place(tested_on: str) -> Preparation:
    return lambda federation, seed: blocks.fashion_mnist(seed, assignment="centralised", tested_on=tested_on)


def _views(tested_on: str) -> dict[str, Preparation]:
    """What the clients of a family are made to hold."""
    return {
        "FedAvg, common blocks": _common_blocks,
        "FedProx, common blocks": _common_blocks,
        "FedAvg, zeros": _filled,
        "centralised": _in_one_place(tested_on),
    }


def _data(tested_on: str) -> Callable[[int], Federation]:
    return lambda seed: blocks.fashion_mnist(seed, tested_on=tested_on)


RUNS: dict[str, Any] = {
    "rounds": 32,
    "participation": 1.0,
    "dataset": "blocks.fashion_mnist",
    "measure": ("own", "server", "held", "own_held"),
    "book": {"rounds": 3, "local_steps": 2},
}


def _grid() -> dict[str, Experiment]:
    views = _views("validation")
    return {
        "hyfem/quadrants-grid": Experiment(
            "HyFEM, our setting: Fashion-MNIST in quadrants, settings on validation images",
            _data("validation"),
            {setting: method for settings in GRID.values() for setting, method in settings.items()},
            evaluate_every=32,
            priority=70,
            seeds=2,
            prepare={setting: views[name] for name, settings in GRID.items() if name in views for setting in settings},
            **RUNS,
        )
    }


EXPERIMENTS: dict[str, Experiment] = _grid()
