"""FedCR: settings of its tables on Fashion-MNIST, and a smaller setting of our own in which all methods are compared.

The paper's setting has 100 clients, 10 % of them in a round, 250 rounds of 10 epochs in batches of 48 (Appendix A.1).
In ours 20 clients share 14 000 of the images, a quarter takes part in each of 25 rounds, and the network is small: a
run takes half a minute, so that every method has five seeds, and its learning rate is chosen as all others' are, from
`GRID` on validation images that are cut from the training images.

What all methods have in common: plain SGD, gradients clipped at norm 10, 10 epochs a round in all. FedRep spends nine
of them on its head and FedPAC one, as their papers and codes divide them; Ditto trains both of its models for ten.
After the last round each client trains what is its own for ten epochs more. Other settings are the text's: λ = 0.001
for Ditto, which makes it nearly `Local`. At the paper's setting, whose rates are not printed, ours are taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hetfl_book import calibration
from hetfl_book.papers import flic
from hetfl_book.papers.experiment import Experiment, by_seed, validation, without_warnings
from hetfl_core import checks
from hetfl_core.datasets import pooled
from hetfl_core.engine import evaluation
from hetfl_core.engine.run import Run
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.learners import simulate
from hetfl_core.methods import (
    Ditto,
    FedAvg,
    FedAvgFT,
    FedBABU,
    FedCR,
    FedPAC,
    FedPer,
    FedRep,
    FedSR,
    LGFedAvg,
    Local,
    Method,
)
from hetfl_core.networks import MLP, Augmented, LeNet, Model, Network

GRID = (0.5, 0.1, 0.05, 0.01, 0.005, 0.001)
"""Learning rates that the paper tried, and so do we."""

SPLITS = ("non-iid_1", "non-iid_2")

HELD_OUT = 0.2
"""Share of a client's training images on which learning rates are judged."""

BRIEF = {"rounds": 2, "local_epochs": 1, "samples": 2, "test_samples": 2}
"""Book scale of what takes long."""

Rates = Mapping[str, float]


def methods(phi: Network, gaussian: int, combine_heads: bool = True, **common: Any) -> dict[str, Method]:
    """The methods of Table 2, Local, and FedCR without aggregation (Section 4.4).

    FedAvg-FT and FedBABU are tuned by their heads, as in FedCR's comparison, and once more as a whole, which is what
    the paper of FedBABU does.

    Parameters
    ----------
    phi : Network
        The body.
    gaussian : int
        V, for the methods that have random features.
    combine_heads : bool
        Whether FedPAC combines heads: on non-iid_2 the paper's does not.
    **common
        Settings of all, such as `lr`.
    """
    usual: dict[str, Any] = {"batch_size": 48, "optimizer": "sgd", "clip": 10.0, "weighting": "uniform", "lr": 0.05}
    usual["finetune_epochs"] = 10
    common = usual | common
    plain, random = Model(phi), Model(phi, gaussian=gaussian)
    return {
        "Local": Local(plain, **common),
        "FedAvg": FedAvg(plain, **common),
        "FedAvg-FT": FedAvgFT(plain, tuned="head", **common),
        "FedAvg-FT, all": FedAvgFT(plain, tuned="all", **common),
        "FedPer": FedPer(plain, **common),
        "LG-FedAvg": LGFedAvg(plain, **common),
        "FedRep": FedRep(plain, local_epochs=9, representation_epochs=1, **common),
        "FedBABU": FedBABU(plain, tuned="head", **common),
        "FedBABU, all": FedBABU(plain, tuned="all", **common),
        "Ditto": Ditto(plain, term_weight=0.001, **common),
        "FedSR-FT": FedSR(random, norm_weight=0.01, cmi_weight=0.001, **common),
        "FedPAC": FedPAC(plain, head_epochs=1, local_epochs=9, term_weight=1.0, combine_heads=combine_heads, **common),
        "FedCR": FedCR(random, term_weight=5e-4, samples=18, test_samples=18, **common),
        "FedCR, own bodies": FedCR(
            random, aggregated="features", term_weight=5e-4, samples=18, test_samples=18, **common
        ),
    }


# --- the paper's setting ----------------------------------------------------------------------------------------------

PAPER_PHI = LeNet(channels=(4, 12), hidden=(1024,), out=1024)
"""The published code's for Fashion-MNIST; the text's, of 64 channels, cannot have its 1 600 inputs at 28 × 28."""

TEXT_PHI = LeNet(channels=(64, 64), hidden=(1024,), out=1024)
"""The text's channels, on images of 28 × 28: 1 024 inputs behind the convolutions where it prints 1 600."""

PAPER_V = 512
"""As Tables 2 and 3 agree in only for this dimension."""


WITHOUT = ("FedCR, beta 0", "FedPer with a Gaussian layer")
"""Of `ablated`: FedCR less its term, and less its noise too."""


def _paper() -> dict[str, Experiment]:
    """Tables 2 and 10, Fashion-MNIST; FedCR without its term; and one run with the text's network."""
    common: dict[str, Any] = {
        "rounds": 250, "participation": 0.1, "evaluate_every": 10, "metric": ("own",), "book": BRIEF
    }  # fmt: skip
    found = {}
    for index, split in enumerate(SPLITS):
        whole = at_rates(methods(PAPER_PHI, PAPER_V, combine_heads=split == "non-iid_1"), split)
        found[f"fedcr/fmnist-{split}"] = experiment = Experiment(
            f"FedCR, Table 2: Fashion-MNIST, {split}, 100 clients",
            _pooled(split),
            whole,
            priority=60 + index,
            **common,
        )
        changed = ablated(whole)
        found[f"fedcr/fmnist-{split}-ablation"] = replace(
            experiment,
            title=f"{experiment.title}, without the term",
            methods={name: changed[name] for name in WITHOUT},
            priority=62 + index,
        )
    found["fedcr/fmnist-non-iid_1-text"] = Experiment(
        "FedCR, Table 2: Fashion-MNIST, non-iid_1, 100 clients, the text's channels",
        _pooled("non-iid_1"),
        {"FedCR": at_rates(methods(TEXT_PHI, PAPER_V), "non-iid_1")["FedCR"]},
        priority=69,
        seeds=1,
        **common,
    )
    return found


def _pooled(split: str, **options: Any) -> Callable[[int], Federation]:
    return by_seed(pooled.fashion_mnist, split=split, **options)


# --- our own setting --------------------------------------------------------------------------------------------------

OWN_PHI = MLP(hidden=(128,), out=64, last="relu")
OWN_V = 32


def own(split: str) -> Callable[[int], Federation]:
    """20 clients of 490 training and 210 test images."""
    return _pooled(split, n_clients=20, per_client=700)


def held_out(federation: Federation, seed: int, share: float = HELD_OUT) -> Federation:
    """The same clients with a share of their training images, drawn at random, for test images.

    The true test images of the same seed do not occur in it; of another seed, which deals the images anew, some do.
    """
    return validation(federation, seed, share, lambda client, order: order[: round(share * client.n_train)])


def best_rates(accuracies: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """For each method the learning rate of the highest mean accuracy over seeds; of equal ones the larger.

    Parameters
    ----------
    accuracies : dict of str to sequence of float
        On validation images, by the names of a grid's methods: ``"FedPer, lr 0.1"``.
    """
    best: dict[str, tuple[float, float]] = {}
    for called, each in checks.mapping("accuracies", accuracies).items():
        told = re.fullmatch(r"(.+), lr (\d[\d.e-]*)", str(called))
        if not told:
            raise WrongValue(f"accuracies must have names such as 'FedPer, lr 0.1', got {checks.shown(called)}")
        mean = float(checks.floats(f"accuracies of {called}", each, 1).mean())
        best[told[1]] = max(best.get(told[1], (-math.inf, 0.0)), (mean, float(told[2])))
    return {name: rate for name, (_, rate) in best.items()}


CHOSEN: dict[str, Rates] = {
    split: dict.fromkeys(methods(OWN_PHI, OWN_V), 0.1) | others
    for split, others in {
        "non-iid_1": {"FedAvg": 0.05, "LG-FedAvg": 0.05, "FedBABU": 0.5},
        "non-iid_2": {"FedBABU": 0.005},
    }.items()
}
"""`best_rates` of the grid's records, by split; a test compares."""


def compared(split: str) -> dict[str, Method]:
    """All methods at their chosen learning rates."""
    return at_rates(methods(OWN_PHI, OWN_V), split)


def at_rates(some: Mapping[str, Method], split: str) -> dict[str, Method]:
    """Methods at the learning rates that were chosen for them on a split."""
    return {name: replace(method, lr=CHOSEN[split][name]) for name, method in some.items()}


def ablated(whole: Mapping[str, Method]) -> dict[str, Method]:
    """What FedCR is made of, taken away or put in another way; and other methods as near to FedCR's code as can be.

    Each at the learning rate of the method whole. What remains: that code's FedPAC averages a class's features by
    halves, (old + new)/2, and clients without weights; its FedSR moves the last layers alone at the end.

    Parameters
    ----------
    whole : mapping of str to Method
        `methods`, with their learning rates.
    """
    cr, per, sr, pac, lg = (whole[name] for name in ("FedCR", "FedPer", "FedSR-FT", "FedPAC", "LG-FedAvg"))
    changed: dict[str, tuple[Method, dict[str, Any]]] = {
        "FedCR, beta 0": (cr, {"term_weight": 0.0}),
        "FedCR, no noise": (cr, {"scale": "none"}),
        "FedCR, beta 0 and no noise": (cr, {"term_weight": 0.0, "scale": "none"}),
        "FedCR, mean feature at test time": (cr, {"test_samples": 0}),
        "FedCR, fresh features": (cr, {"features": "fresh"}),
        "FedCR, mean logits": (cr, {"averaged": "logits"}),
        "FedCR, mean of the logs": (cr, {"likelihood": "mean"}),
        "FedCR, noise by the variance": (cr, {"scale": "variance"}),
        "FedCR, prior with each client": (cr, {"prior": "each"}),
        "FedCR, mixture of the experts": (cr, {"joint": "mixture"}),
        "FedCR, towards the joint mean": (cr, {"target": "mean"}),
        "FedCR, towards the joint variance": (cr, {"target": "variance"}),
        "FedCR, towards N(0, 1)": (cr, {"joint_step": 0.0}),
        "FedPer with a Gaussian layer": (per, {"model": cr.model}),
        "FedSR-FT, nothing shared": (sr, {"federated": False}),
        "FedPAC, own heads": (pac, {"combine_heads": False}),
        "FedPAC, scalar centroids": (pac, {"centroids": "scalar", "combine_heads": False}),
        "FedPAC as in FedCR code": (
            pac,
            {"centroids": "scalar", "combine_heads": False, "penalty": "norm", "alignment_from": 0, "head_epochs": 9}
            | {"local_epochs": 1},
        ),
        "LG-FedAvg, last layer shared too": (lg, {"layers": ("phi.1",)}),
    }
    return {name: replace(method, **changes) for name, (method, changes) in changed.items()}


WEIGHTS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""β beside 0 and 5e-4, which the ablation and the comparison have; the paper's figure has some of them."""


def weighed(split: str) -> dict[str, Method]:
    """FedCR at other weights of its term (Figures 3d and 4)."""
    whole = compared(split)["FedCR"]
    changes: list[dict[str, Any]] = [{"term_weight": beta} for beta in WEIGHTS]
    return {f"FedCR, beta {change['term_weight']:g}": replace(whole, **change) for change in changes}


WIDTHS = (2, 4, 8, 16, 64, 128, 256, 512)
"""V of Table 3 but `OWN_V`."""


def narrowed(split: str) -> dict[str, Method]:
    """FedCR with features of other dimensions (Table 3), and FedPer with the same layer and nothing random."""
    whole = compared(split)
    found = {}
    for V in (*WIDTHS, OWN_V):
        model = Model(OWN_PHI, gaussian=V)
        if V != OWN_V:
            found[f"FedCR, V {V}"] = replace(whole["FedCR"], model=model)
        found[f"FedPer, V {V}"] = replace(whole["FedPer"], model=model)
    return found


def begun_alike(split: str) -> dict[str, Method]:
    """What is local begins with the same weights everywhere, as in the published code; the text does not say."""
    whole = compared(split)
    names = ("FedPer", "LG-FedAvg", "FedRep", "FedPAC", "FedCR", "FedCR, own bodies")
    changes: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in names]
    changes += [("FedCR, beta 0", "FedCR", {"term_weight": 0.0}), ("FedCR, beta 0.01", "FedCR", {"term_weight": 0.01})]
    changes += [("FedCR, own bodies, beta 0.01", "FedCR, own bodies", {"term_weight": 0.01})]
    return {f"{title}, common start": replace(whole[name], init="common", **change) for title, name, change in changes}


FEWER_AND_MORE = (2, 10)
"""Classes on a client beside the five of the comparison."""


def forecasts(split: str) -> dict[str, Method]:
    """Models whose probabilities are compared: FedCR as an ensemble of draws, by its mean feature, and others."""
    every = compared(split) | ablated(compared(split))
    others = ("FedAvg-FT", "FedPer", "FedPer with a Gaussian layer")
    return {name: every[name] for name in (*others, "FedCR", "FedCR, mean feature at test time", "FedCR, beta 0")}


def calibrated(federation: Federation, method: Method, *, seed: int, **options: Any) -> Run:
    """Train without the `held_out` images, on which one temperature for all clients is then fitted.

    A client alone has too few of them: where all its answers happen to be right, the coldest temperature is the best.
    The loss is a sum over clients, so that they can find the common one without showing an image.

    Parameters
    ----------
    federation, method, seed, options
        As for `hetfl_core.simulate`.

    Returns
    -------
    Run
        Its ``final`` also has, over the test images of all clients, ``ece`` and ``log_loss``; the same after
        temperature scaling, ``ece_scaled`` and ``log_loss_scaled``; and the ``temperature``.
    """
    apart = held_out(federation, seed)
    clients = [
        Client(part.x_train, part.y_train, whole.x_test, whole.y_test, whole.name)
        for part, whole in zip(apart, federation, strict=True)
    ]
    rest = without_warnings(clients, federation.n_classes, f"{federation.name}, a part held out", apart.info)
    return forecast(simulate(rest, method, seed=seed, **options), apart)


def forecast(run: Run, apart: Federation) -> Run:
    """Fit one temperature for all clients on test images that are held `apart`, and judge probabilities by the run's.

    Parameters
    ----------
    run : Run
    apart : Federation
        The same clients, whose test images nobody has trained on (`held_out`).

    Returns
    -------
    Run
        With the figures of `calibrated` in its ``final``.
    """
    unseen = replace(run, federation=apart.to(run.federation[0].x_train.dtype))
    (p, y), held = (pooled_probabilities(each) for each in (run, unseen))
    final = {**run.final, "temperature": calibration.fitted_temperature(*held)}
    for ending, q in (("", p), ("_scaled", calibration.at_temperature(p, final["temperature"]))):
        final[f"ece{ending}"] = calibration.expected_calibration_error(q, y)
        final[f"log_loss{ending}"] = calibration.log_loss(q, y)
    return replace(run, final=final)


def pooled_probabilities(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities of all clients' test images, shape (n, C), and their labels, shape (n,)."""
    said, labels = (np.concatenate(list(each.values())) for each in (run.probabilities(), run.labels("test")))
    return said, labels


def heads_averaged(federation: Federation, method: Method, *, seed: int, **options: Any) -> Run:
    """FedAvg as FedCR's published code scores it: all clients tune their heads once more, and these are averaged.

    Parameters
    ----------
    federation, method, seed, options
        As for `hetfl_core.simulate`; the method is FedAvg whose heads are tuned at the end.

    Returns
    -------
    Run
        Every client has the common body and the mean of all heads; figures are of that.
    """
    run = simulate(federation, method, seed=seed, **options)
    heads = [{name: p for name, p in each.items() if name.startswith("beta.")} for each in run.params]
    mean = {name: torch.stack([head[name] for head in heads]).mean(0) for name in heads[0]}
    run = replace(run, params=[{**each, **mean} for each in run.params])
    said, labels = {}, {}
    for split in ("train", "test"):
        outputs = run.outputs(split).values()  # type: ignore[arg-type]
        said[split] = [evaluation.decided(torch.as_tensor(each)).numpy() for each in outputs]
        labels[split] = list(run.labels(split).values())  # type: ignore[arg-type]
    final = {name: run.final[name] for name in ("bytes_up", "bytes_down", "seconds")}
    final |= evaluation.summarise(said["test"], labels["test"], federation.task)
    final["train_accuracy"] = evaluation.summarise(said["train"], labels["train"], federation.task)["accuracy"]
    found = evaluation.per_client(said["test"], labels["test"], federation.task)
    return replace(run, final=final, per_client=run.per_client[["client", "n_train", "n_test"]].assign(**found))


OWN: dict[str, Any] = {
    "rounds": 25,
    "participation": 0.25,
    "evaluate_every": 5,
    "dataset": "pooled.fashion_mnist",
    "book": {"rounds": 3, "local_epochs": 1, "samples": 2, "test_samples": 2},
}
"""What all experiments in our setting have in common."""


def _of_split(split: str, index: int) -> dict[str, Experiment]:
    """The comparison on a split, the grid by which its learning rates are chosen, and what is taken apart."""
    whole, grid = compared(split), methods(OWN_PHI, OWN_V)
    rates = {f"{name}, lr {lr:g}": replace(method, lr=lr) for name, method in grid.items() for lr in GRID}
    scored = {"FedAvg as in FedCR code": whole["FedAvg-FT"]}
    early = {"rounds": OWN["evaluate_every"], "evaluate_every": 1, "metric": ("own",)}
    rows: list[tuple[str, str, dict[str, Method], int, int, dict[str, Any]]] = [
        ("-grid", ", learning rates on validation images", rates, 20 + index, 1, {"federation": _validation(split)}),
        ("", "", whole, 15 + index, 5, {"metric": ("own",)}),
        ("-early", ", Figure 3: every one of the first rounds", whole, 31, 5, early),
        ("-ablation", ", ablations", ablated(whole), 30 + index, 5, {}),
        ("-published", ", FedAvg as FedCR's published code scores it", scored, 29, 5, {"perform": heads_averaged}),
        ("-beta", ", the weight of FedCR's term", weighed(split), 33 + index, 3, {}),
        ("-start", ", all begin with the same weights", begun_alike(split), 32, 5, {}),
        (
            "-calibration",
            ", calibration with a fifth of the training images held out",
            forecasts(split),
            35 + index,
            5,
            {"perform": calibrated},
        ),
    ]
    return {
        f"fedcr/own-{split}{ending}": Experiment(
            f"FedCR, our setting: {split}, 20 clients{what}",
            methods=some,
            priority=priority,
            seeds=seeds,
            **{"federation": own(split), **OWN, **changes},
        )
        for ending, what, some, priority, seeds, changes in rows
    }


def _own() -> dict[str, Experiment]:
    """Our setting: the comparison on both splits; other dimensions, and other numbers of classes."""
    whole = compared("non-iid_1")
    found = _of_split("non-iid_1", 0) | _of_split("non-iid_2", 1)
    found["fedcr/own-dimensions"] = Experiment(
        "FedCR, our setting: Table 3, Gaussian dimensions, non-iid_1, 20 clients",
        own("non-iid_1"),
        narrowed("non-iid_1"),
        priority=37,
        **OWN,
    )
    for m in FEWER_AND_MORE:
        found[f"fedcr/own-classes-{m}"] = Experiment(
            f"FedCR, our setting: Table 9, no shared model, {m} classes a client, 20 clients",
            _pooled("non-iid_1", n_clients=20, per_client=700, classes_per_client=m),
            {name: whole[name] for name in ("Local", "FedAvg", "FedPer", "FedCR, own bodies")},
            priority=38,
            **OWN,
        )
    return found


def _validation(split: str) -> Callable[[int], Federation]:
    return lambda seed: held_out(own(split)(seed), seed)


# --- CIFAR-10, reduced ------------------------------------------------------------------------------------------------

CIFAR_PHI = Augmented(LeNet(channels=(16, 32), hidden=(256,), out=128), fill=(-1.9879, -1.9835, -1.7061))
"""16 and 32 channels for the paper's 64 and 64, 256 and 128 hidden units for its 1 024 and 1 024.

Cropped and mirrored as in its code; the frame is black.
"""


def _cifar() -> dict[str, Experiment]:
    """Twenty clients of the paper's size (420 and 180 images), 50 rounds, the rates of Fashion-MNIST's grid."""
    found = {}
    for index, split in enumerate(SPLITS):
        whole = at_rates(methods(CIFAR_PHI, 64), split)
        found[f"fedcr/cifar10-reduced-{split}"] = Experiment(
            f"FedCR, reduced: CIFAR-10, {split}, 20 clients",
            by_seed(pooled.cifar10, n_clients=20, split=split, per_client=600),
            {name: whole[name] for name in ("Local", "FedAvg-FT", "FedPer", "FedPAC", "FedCR")},
            rounds=50,
            participation=0.25,
            evaluate_every=10,
            priority=55 + index,
            book=BRIEF,
        )
    return found


# --- where feature spaces differ --------------------------------------------------------------------------------------


def across_spaces(phi: Network, latent: int = 64) -> dict[str, Method]:
    """Methods that need no common input, at FLIC's training: Adam at 0.001, batches of 100, and its embedding.

    FedCR's random features and FedPAC's centroids are aligned class by class, as FLIC's are; Ditto's own model is drawn
    to a common head; LG-FedAvg has nothing but that head.
    """
    flat, random = Model(phi), Model(phi, gaussian=latent)
    return {
        "LG-FedAvg": LGFedAvg(flat),
        "Ditto, own embeddings": Ditto(flat, term_weight=0.1, embeddings="own"),
        "FedPAC, own bodies": FedPAC(flat, aggregated="features"),
        "FedCR, own bodies": FedCR(random, aggregated="features", samples=18, test_samples=18),
        "FedCR, own embeddings": FedCR(random, aggregated="gaussian", samples=18, test_samples=18),
        "FedPAC, own bodies, common start": FedPAC(flat, aggregated="features", init="common"),
        "FedCR, own embeddings, common start": FedCR(
            random, aggregated="gaussian", samples=18, test_samples=18, init="common"
        ),
    }


SPACES = ("flic/toy-noisy", "flic/toy-linear", "flic/bci-common40", "flic/digits-b100-c3")
"""FLIC's experiments on whose federations `across_spaces` runs."""


def _spaces() -> dict[str, Experiment]:
    found = {}
    for index, name in enumerate(SPACES):
        whole = flic.EXPERIMENTS[name]
        title = whole.title.partition(": ")[2]
        phi = whole.methods["Local"].model.phi
        found[name.replace("flic/", "fedcr/spaces-")] = replace(
            whole,
            title=f"FedCR, FedPAC and Ditto where feature spaces differ: {title}",
            methods=across_spaces(phi),
            priority=40 + index,
            prepare={},
            book=BRIEF,
        )
    return found


EXPERIMENTS: dict[str, Experiment] = {**_paper(), **_own(), **_cifar(), **_spaces()}
