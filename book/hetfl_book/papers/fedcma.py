"""Fed-CMA: the MNIST rows of its Table 2, the grid by which every method in them is tuned, and what the paper has not.

The text takes FedGen's set-up and states none of λ, η, batch, rounds and seeds. FedGen's published code has 200 rounds
of 20 steps of plain SGD in batches of 32, which we take; all 20 clients take part. Its network is small here, one
hidden layer, so that a run takes a minute and every row has five seeds. Four things differ from that code: it has one
split for each α, made with seed 42, and counts all test images alike; all clients begin with the same weights; their
learning rate, 0.01 by default, is multiplied by 0.99 after each round, where ours is constant; and its batches are full
ones, so that it stops at clients with fewer than 32 images. `AS_IN_CODE` has the split, the common start and the decay,
in experiments of their own, with the settings that were chosen without them.

All methods are tuned alike: for each, `RATES` times four settings of its own, judged by balanced accuracy on a fifth of
each client's training images, class by class, at α = 0.05, of the first dealing. (Test sets have equally many images of
each class that a client holds; balanced accuracy weighs classes so, too.) λ1 = λ2 = 0 is `Local`, which is tuned as
well, at the same latent layer: linear, as FedGen's, or sigmoid, as Assumption 2 wants it.

The paper is about clients of different architectures, and has no experiment with any; `MIXED` is one, with the settings
that were chosen for one architecture. Another is about clients that join at the end, and one puts Fed-CMA on FLIC's
federations.

Table 3 is about CIFAR-10, dealt and trained as pFedHN's published code has it: 5 000 steps of the server, each with one
client and 50 steps of its own. Methods in which all clients take part have 5 000 / b rounds, so that a client trains as
often in them; after the last, as in all experiments here, it trains once more what is its own, of which pFedHN has
nothing and pFedHN-PC the head. Nobody is tuned, since a run takes one to seven hours of one core: clients train by the
published code's settings whatever the method, pFedHN's server by its own, and λ is what was chosen on MNIST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hetfl_book.datasets import fedgen, pfedhn
from hetfl_book.discriminator import recognise_clients
from hetfl_book.papers import experiment, flic
from hetfl_book.papers.experiment import Experiment, by_seed, validation
from hetfl_core import checks
from hetfl_core.datasets import femnist, toy
from hetfl_core.engine.run import Run
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.learners import simulate
from hetfl_core.methods import FedAvg, FedCMA, FedGen, FedPAC, LGFedAvg, Local, Method, PFedHN
from hetfl_core.networks import MLP, LeNet, Model, Network, NormalisedCNN, PerClient

ALPHAS = (0.02, 0.03, 0.05, 0.1)
"""Concentrations of Table 2."""

TUNED_AT = 0.05
"""The one at which settings are chosen."""

HELD_OUT = 0.2
"""Share of a client's training images of each class on which settings are judged."""

RATES = (0.3, 0.1, 0.03, 0.01)
"""Learning rates of the grid; FedGen's code has the last."""

LINEAR, SIGMOID = Model(MLP((128,), 32)), Model(MLP((128,), 32, last="sigmoid"))
"""A hidden layer, and FedGen's 32 latent features: linear as its own, or in (0, 1) (Assumption 2)."""

COMMON: dict[str, Any] = {"optimizer": "sgd", "batch_size": 32, "local_steps": 20}

DECAYS: tuple[dict[str, Any], ...] = tuple({"weight_decay": decay} for decay in (0.0, 1e-3, 1e-2, 1e-1))
"""What methods without settings of their own are tried with."""

PULLS: tuple[dict[str, Any], ...] = tuple(
    {"head_weight": lam1, "mean_weight": lam2} for lam1, lam2 in ((1.0, 0.01), (1.0, 0.1), (1.0, 1.0), (10.0, 0.1))
)

SHARES: tuple[dict[str, Any], ...] = tuple({"term_weight": lam} for lam in (0.01, 0.1, 1.0, 10.0))

MEANS: dict[str, Any] = {"aggregated": "features", "combine_heads": False, "head_epochs": 0}
"""FedPAC without its heads and its second stage: what is left is FedProto's sharing of class means."""

FAMILIES: dict[str, tuple[Method, Sequence[Mapping[str, Any]]]] = {
    "Local": (Local(LINEAR, **COMMON), DECAYS),
    "Local, sigmoid": (Local(SIGMOID, **COMMON), DECAYS),
    "FedAvg": (LGFedAvg(LINEAR, **COMMON), DECAYS),
    "FedAvg of all": (FedAvg(LINEAR, **COMMON), DECAYS),
    "FedGen": (
        FedGen(LINEAR, **COMMON),
        [{"generated_weight": a, "agreement_weight": a} for a in (0.1, 1.0, 10.0, 30.0)],
    ),
    "mean sharing": (FedPAC(LINEAR, **MEANS, **COMMON), SHARES),
    "Fed-CMA": (FedCMA(LINEAR, server_step=1.0, **COMMON), PULLS),
    "Fed-CMA, sigmoid": (FedCMA(SIGMOID, server_step=1.0, **COMMON), PULLS),
    "Fed-CMA, marginal": (FedCMA(LINEAR, server_step=1.0, alignment="marginal", **COMMON), PULLS),
}
"""By the names of the table, each method and the settings that it is tried with beside its learning rate.

``"FedAvg"`` averages the last layer only, as the table's does; Fed-CMA's server takes over the clients' weighted means.
Eq. (7) has steps of λ1 η and λ2 η: at a rate of 0.1 that would do for heads, but means with λ2 = 0.01 would go 18 % of
the way in 200 rounds.
"""


def tried(name: str, rates: Sequence[float] = RATES) -> dict[str, Method]:
    """The settings that a method is tried with, by names that say which: ``"Local, lr 0.1, weight_decay 0"``."""
    checks.choice("name", name, tuple(FAMILIES))
    method, own = FAMILIES[name]
    return experiment.tried(name, method, rates, own)


GRID: dict[str, dict[str, Method]] = {name: tried(name) for name in FAMILIES}
"""All of them."""


CHOSEN: dict[str, str] = {
    "Local": "Local, lr 0.1, weight_decay 0",
    "Local, sigmoid": "Local, sigmoid, lr 0.3, weight_decay 0",
    "FedAvg": "FedAvg, lr 0.1, weight_decay 0",
    "FedAvg of all": "FedAvg of all, lr 0.1, weight_decay 0",
    "FedGen": "FedGen, lr 0.1, classifies 0.1, agrees 0.1",
    "mean sharing": "mean sharing, lr 0.1, lam 0.01",
    "Fed-CMA": "Fed-CMA, lr 0.1, lam1 1, lam2 0.01",
    "Fed-CMA, sigmoid": "Fed-CMA, sigmoid, lr 0.3, lam1 1, lam2 0.01",
    "Fed-CMA, marginal": "Fed-CMA, marginal, lr 0.03, lam1 1, lam2 0.01",
}
"""Of the grid's records those of the highest mean balanced accuracy on validation images; a test compares."""

WRITERS = ("Local", "FedAvg", "mean sharing", "Fed-CMA")
"""Methods that run on FEMNIST, each tuned there by a grid of its own; FedGen's column is empty in the paper, too."""

GRID_BY_WRITERS: dict[str, dict[str, Method]] = {name: tried(name, (*RATES, 0.003)) for name in WRITERS}
"""MNIST's grid, and one smaller rate for all: after 0.3 and 0.1 hardly any learns, and 0.01 was best for some."""

CHOSEN_BY_WRITERS: dict[str, str] = {
    "Local": "Local, lr 0.01, weight_decay 0",
    "FedAvg": "FedAvg, lr 0.01, weight_decay 0.01",
    "mean sharing": "mean sharing, lr 0.03, lam 0.1",
    "Fed-CMA": "Fed-CMA, lr 0.03, lam1 1, lam2 0.01",
}
"""The same of `GRID_BY_WRITERS`' records."""


def held_out(federation: Federation, seed: int, share: float = HELD_OUT) -> Federation:
    """The same clients with a share of their training samples of each class for test samples.

    Of a class with n samples round(share · n), at most n − 1: no class is left without training samples. A client of
    which no class has enough for one gives one of the class that it has most of.
    """

    def picked(client: Client, order: Tensor) -> Tensor:
        counts = torch.bincount(client.y_train)
        of_class = [order[client.y_train[order] == c] for c in counts.nonzero().flatten()]
        some = torch.cat([mine[: min(round(share * len(mine)), len(mine) - 1)] for mine in of_class])
        return some if len(some) else order[client.y_train[order] == counts.argmax()][:1]

    return validation(federation, seed, share, picked)


COMPARED: dict[str, Any] = {"participation": 1.0, "dataset": "fedgen.mnist", "book": {"rounds": 3, "local_steps": 2}}
"""What all experiments on MNIST have in common: everybody takes part."""

ROWS: dict[str, Any] = {"rounds": 200, "evaluate_every": 20, "seeds": 5}
"""How long the rows of Table 2 run."""


def _grid() -> dict[str, Experiment]:
    return {
        "fedcma/mnist-grid": Experiment(
            f"Fed-CMA, Table 2: MNIST, alpha {TUNED_AT:g}, settings on validation images",
            lambda seed: held_out(fedgen.mnist(alpha=TUNED_AT, seed=seed), seed),
            {setting: method for settings in GRID.values() for setting, method in settings.items()},
            rounds=100,
            evaluate_every=100,
            priority=50,
            seeds=1,
            **COMPARED,
        )
    }


MIXED: tuple[Network, ...] = (
    MLP((128,), 32),
    MLP((256, 128), 32, activation="tanh"),
    NormalisedCNN(channels=(6, 16), out=32),
)
"""Three architectures in one federation, dealt to the clients in turn: a wide layer, two, and FedGen's convolutions."""


def mixed(method: Method) -> Method:
    """The method on clients of different architectures; a sigmoid at the latent layer stays where there was one."""
    phi = method.model.phi
    if getattr(phi, "last", None) is not None:
        raise WrongValue(f"method must have a linear latent layer, as all of MIXED have, got {phi!r}")
    names = [f"client-{i:02d}" for i in range(20)]
    return replace(method, model=replace(method.model, phi=PerClient.in_turn(names, MIXED)))


ANY_ARCHITECTURE = ("Local", "FedAvg", "FedGen", "mean sharing", "Fed-CMA", "Fed-CMA, marginal")
"""Methods of the table that need nothing in common but the latent dimension; one latent layer for all, the linear."""


def _rows(chosen: Mapping[str, Method]) -> dict[str, Experiment]:
    """Table 2's, and the two that the paper has not: several architectures, and clients that come late."""
    found = {
        f"fedcma/mnist-alpha-{alpha:g}": Experiment(
            f"Fed-CMA, Table 2: MNIST, alpha {alpha:g}, 20 clients",
            by_seed(fedgen.mnist, alpha=alpha),
            chosen,
            priority=45 + index,
            **ROWS,
            **COMPARED,
        )
        for index, alpha in enumerate(ALPHAS)
    }
    for index, alpha in enumerate(ALPHAS):
        found[f"fedcma/emnist-alpha-{alpha:g}"] = Experiment(
            f"Fed-CMA, Table 2: EMNIST, alpha {alpha:g}, 20 clients, settings of MNIST's grid",
            by_seed(fedgen.emnist, alpha=alpha),
            {name: chosen[name] for name in ("Local", "FedAvg", "FedGen", "Fed-CMA")},
            priority=60 + index,
            **ROWS,
            **{**COMPARED, "dataset": "fedgen.emnist"},
        )
    some = {name: chosen[name] for name in ANY_ARCHITECTURE}
    found["fedcma/mnist-mixed"] = Experiment(
        f"Fed-CMA, our own: MNIST, alpha {TUNED_AT:g}, three architectures in one federation",
        by_seed(fedgen.mnist, alpha=TUNED_AT),
        {name: mixed(method) for name, method in some.items()},
        priority=49,
        **ROWS,
        **COMPARED,
    )
    found["fedcma/mnist-late"] = Experiment(
        f"Fed-CMA, our own: MNIST, alpha {TUNED_AT:g}, a fifth of the clients join at the end",
        by_seed(fedgen.mnist, alpha=TUNED_AT),
        some,
        perform=flic.with_newcomers,
        priority=49,
        **{**ROWS, "evaluate_every": 200},
        **COMPARED,
    )
    return found


AS_IN_CODE: dict[str, Any] = {"init": "common", "lr_decay": 0.99}
"""What FedGen's code has beside its split: all clients begin alike, and learning rates fall by 1 % a round."""


def _published(chosen: Mapping[str, Method]) -> dict[str, Experiment]:
    """Table 2's rows of MNIST on the split that FedGen's script writes: as ours otherwise, and as in its code."""
    as_in_code = {name: replace(method, **AS_IN_CODE) for name, method in chosen.items()}
    teachers: dict[str, Any] = {"teachers": "batch"}
    as_in_code["FedGen, teachers by batch"] = replace(as_in_code["FedGen"], **teachers)
    return {
        f"fedcma/mnist-{name}-alpha-{alpha:g}": Experiment(
            f"Fed-CMA, Table 2: MNIST, alpha {alpha:g}, FedGen's published split{title}",
            by_seed(fedgen.mnist, alpha=alpha, dealing="published"),
            methods,
            priority=priority + index,
            **ROWS,
            **COMPARED,
        )
        for name, title, methods, priority in (
            ("published", "", chosen, 45),
            ("code", ", a common start and a falling rate as in its code", as_in_code, 46),
        )
        for index, alpha in enumerate(ALPHAS)
    }


def without_means() -> dict[str, Method]:
    """Fed-CMA without a pull between class means, and with all that were tried at a learning rate where they do not
    destabilise: λ1 as chosen, by names such as ``"Fed-CMA, lr 0.03, lam1 1, lam2 0.1"``.
    """
    taken = GRID["Fed-CMA"][CHOSEN["Fed-CMA"]]
    assert isinstance(taken, FedCMA)
    weights = {taken.lr: (0.0,), 0.03: (0.0, 0.01, 0.1, 1.0)}
    return {
        f"Fed-CMA, lr {lr:g}, lam1 {taken.head_weight:g}, lam2 {pull:g}": replace(taken, lr=lr, mean_weight=pull)
        for lr, pulls in weights.items()
        for pull in pulls
    }


def _means() -> dict[str, Experiment]:
    """What the pull between class means is worth on MNIST (the paper's ablation)."""
    return {
        f"fedcma/mnist-means-alpha-{alpha:g}": Experiment(
            f"Fed-CMA, our ablation: MNIST, alpha {alpha:g}, weights of the pull between class means",
            by_seed(fedgen.mnist, alpha=alpha),
            without_means(),
            priority=44 + index,
            **ROWS,
            **COMPARED,
        )
        for index, alpha in enumerate(ALPHAS)
    }


def _femnist() -> dict[str, Experiment]:
    """Table 2's last row, on the writers at hand: half of them take part in a round, as in the text."""
    common: dict[str, Any] = {"participation": 0.5, "dataset": "femnist.characters", "book": COMPARED["book"]}
    return {
        "fedcma/femnist-grid": Experiment(
            "Fed-CMA, Table 2: FEMNIST, 110 writers, settings on validation images",
            lambda seed: held_out(femnist.characters(seed=seed), seed),
            {setting: method for settings in GRID_BY_WRITERS.values() for setting, method in settings.items()},
            rounds=100,
            evaluate_every=100,
            priority=53,
            seeds=1,
            **common,
        ),
        "fedcma/femnist": Experiment(
            "Fed-CMA, Table 2: FEMNIST, 110 writers (the paper has 923)",
            by_seed(femnist.characters),
            {name: GRID_BY_WRITERS[name][setting] for name, setting in CHOSEN_BY_WRITERS.items()},
            priority=54,
            **ROWS,
            **common,
        ),
    }


# --- CIFAR-10, as pFedHN has it ---------------------------------------------------------------------------------------

PHOTOS = Model(LeNet(channels=(16, 32), hidden=(120,), out=84))
"""The published network: two convolutions, 120 and 84 features with ReLU, and the head."""

AS_PUBLISHED: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 5e-3,
    "momentum": 0.9,
    "weight_decay": 5e-5,
    "clip": 50.0,
    "batch_size": 64,
    "local_steps": 50,
}
"""What a client does, by the published code's defaults.

In that code each step draws a batch of 64 anew, and a head of pFedHN-PC has an optimizer of its own, which is never
begun anew and whose gradient is not clipped. Here batches are an epoch's, the last one short, and every participation
begins with one fresh optimizer for body and head.
"""

STEPS = 5_000
"""Steps of pFedHN's server, with one client each."""

TABLE3 = (10, 50, 100)
"""Numbers of clients."""

REDUCED = 10
"""How many times fewer steps the reduced point has."""


def of_photos() -> dict[str, Method]:
    """Table 3's methods and those beside which Fed-CMA stands in Table 2, trained alike, by the names of the tables."""
    pull, share = (GRID[name][CHOSEN[name]] for name in ("Fed-CMA", "mean sharing"))
    return {
        "Local": Local(PHOTOS, **AS_PUBLISHED),
        "FedAvg": LGFedAvg(PHOTOS, **AS_PUBLISHED),
        "mean sharing": replace(share, model=PHOTOS, **AS_PUBLISHED),
        "Fed-CMA": replace(pull, model=PHOTOS, **AS_PUBLISHED),
        "pFedHN": PFedHN(PHOTOS, **AS_PUBLISHED),
        "pFedHN-PC": PFedHN(PHOTOS, personal="head", server_lr=5e-2, **AS_PUBLISHED),
    }


def recognised(run: Run, seed: int) -> dict[str, float]:
    """How well a discriminator tells the clients by the latent features of their test images (Figure 9b).

    Returns
    -------
    dict of str to float
        In [0, 1]: ``discriminator_accuracy_linear`` and ``…_forest``, what they reach; ``…_chance`` and
        ``…_label_only``, what takes no features; and the same with ``_balanced`` at the end, for as many images of a
        class of each client that holds it.
    """
    features, labels, found = run.embed("test"), run.labels("test"), {}
    for balanced in (False, True):
        ending = "_balanced" if balanced else ""
        for kind in ("linear", "forest"):
            told = recognise_clients(features, labels, kind=kind, balanced=balanced, seed=seed)
            found[f"discriminator_accuracy_{kind}{ending}"] = told.accuracy
        found[f"discriminator_accuracy_chance{ending}"] = told.chance
        found[f"discriminator_accuracy_label_only{ending}"] = told.label_only
    return found


def with_discriminator(federation: Federation, method: Method, **options: Any) -> Run:
    """As `hetfl_core.simulate`; the run's ``final`` also has what `recognised` measures."""
    run = simulate(federation, method, **options)
    run.final |= recognised(run, run.settings["seed"])
    return run


def with_best_step(federation: Federation, method: Method, **options: Any) -> Run:
    """Also measure what pFedHN's published code reports: test accuracy where validation accuracy was best.

    All accuracies are means over clients; in the published code larger clients count more.

    Parameters
    ----------
    federation : Federation
        Of `hetfl_book.datasets.pfedhn.cifar10`.
    method, options
        As for `hetfl_core.simulate`.

    Returns
    -------
    Run
        On test images. Its ``final`` also has ``accuracy_best_step``, at the first evaluated round (of 1 and later) of
        the highest validation accuracy, ``best_step``, that round, and what `recognised` measures at the end.

    Raises
    ------
    ValueError
        For another federation.
    """
    checks.instance("federation", federation, Federation)
    settings = federation.info.get("settings", {})
    if "tested_on" not in settings:
        raise WrongValue(f"federation must be one of datasets.pfedhn.cifar10, got {federation.name!r}")
    unseen = pfedhn.cifar10(**{**settings, "tested_on": "validation"})
    run = with_discriminator(federation, method, validation=unseen, **options)
    seen = run.history[run.history["round"] > 0].dropna(subset=["validation_accuracy"])
    best = seen.loc[seen["validation_accuracy"].idxmax()]
    run.final |= {"accuracy_best_step": float(best["accuracy"]), "best_step": float(best["round"])}
    return run


def _photos() -> dict[str, Experiment]:
    """Table 3, and a reduced point of it; where one client takes part in a step, and where all do."""
    found = {}
    some = of_photos()
    alone = {name: method for name, method in some.items() if isinstance(method, PFedHN)}
    rest = {name: method for name, method in some.items() if name not in alone}
    common: dict[str, Any] = {"dataset": "pfedhn.cifar10", "book": COMPARED["book"]}
    for index, (n, fewer) in enumerate([(10, REDUCED), *((n, 1) for n in TABLE3)]):
        reduced = "-reduced" if fewer > 1 else ""
        title = f"Fed-CMA, Table 3: CIFAR-10, {n} clients" + (f", a {fewer}th of the steps" if reduced else "")
        found[f"fedcma/cifar10{reduced}-{n}"] = Experiment(
            title,
            by_seed(pfedhn.cifar10, n_clients=n, variant="code"),
            rest,
            rounds=STEPS // fewer // n,
            participation=1.0,
            evaluate_every=max(STEPS // fewer // n // 20, 1),
            perform=with_discriminator,
            priority=(55 if reduced else 70) + index,
            seeds=5,
            **common,
        )
        found[f"fedcma/cifar10{reduced}-{n}-pfedhn"] = Experiment(
            f"{title}, one client a step",
            by_seed(pfedhn.cifar10, n_clients=n, variant="code"),
            alone,
            rounds=STEPS // fewer,
            participation=1 / n,
            evaluate_every=30,
            perform=with_best_step,
            priority=(55 if reduced else 70) + index,
            seeds=5,
            **common,
        )
    return found


# --- where feature spaces differ --------------------------------------------------------------------------------------

SPACES = ("flic/toy-noisy", "flic/toy-linear", "flic/bci-common40")
"""FLIC's experiments on whose federations Fed-CMA and mean sharing run, trained as FLIC is."""


def across_spaces(name: str) -> dict[str, Method]:
    """Settings of λ that are tried on one of `SPACES`, judged on held-out training samples."""
    model = flic.EXPERIMENTS[name].methods["Local"].model
    pulled: dict[str, Method] = {
        f"Fed-CMA, lam1 {p['head_weight']:g}, lam2 {p['mean_weight']:g}": FedCMA(model, server_step=1.0, **p)
        for p in PULLS
    }
    shared: dict[str, Method] = {
        f"mean sharing, lam {share['term_weight']:g}": FedPAC(model, **MEANS, **share) for share in SHARES
    }
    return pulled | shared


def _validation(name: str) -> Callable[[int], Federation]:
    return lambda seed: held_out(flic.EXPERIMENTS[name].federation(seed), seed)


def _spaces() -> dict[str, Experiment]:
    """A grid of λ on each, and the runs: all that were tried, so that what was chosen stands beside what was not."""
    found = {}
    for index, name in enumerate(SPACES):
        whole = flic.EXPERIMENTS[name]
        title = whole.title.partition(": ")[2]
        common: dict[str, Any] = {"methods": across_spaces(name), "prepare": {}, "book": flic.BRIEF}
        there = name.replace("flic/", "fedcma/spaces-")
        found[f"{there}-grid"] = replace(
            whole,
            title=f"Fed-CMA where feature spaces differ, settings on validation samples: {title}",
            federation=_validation(name),
            priority=51 + index,
            evaluate_every=whole.rounds,
            seeds=1,
            **common,
        )
        found[there] = replace(
            whole, title=f"Fed-CMA where feature spaces differ: {title}", priority=52 + index, seeds=3, **common
        )
    return found


# --- four Gaussians in the plane --------------------------------------------------------------------------------------

PLANE = Model(MLP((2,), 2, activation="tanh"))
"""The paper's 2 → 2 → 2 → 4, so that latent features can be drawn; the text names no activation."""

PULLED = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (3.0, 1.0), (10.0, 1.0), (1.0, 3.0))
"""λ1 and λ2 that are run on it, none of them chosen."""


def in_the_plane() -> dict[str, Method]:
    """Training alone, Fed-CMA at `PULLED`, and with one mean for all classes."""
    common: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "batch_size": 32, "local_steps": 5}
    pulled = {
        f"Fed-CMA, lam1 {lam1:g}, lam2 {lam2:g}": FedCMA(
            PLANE, head_weight=lam1, mean_weight=lam2, server_step=1.0, **common
        )
        for lam1, lam2 in PULLED
    }
    whole = FedCMA(PLANE, server_step=1.0, alignment="marginal", **common)
    return {"Local": Local(PLANE, **common), **pulled, "Fed-CMA, marginal": whole}


def _plane() -> dict[str, Experiment]:
    return {
        "fedcma/four-gaussians": Experiment(
            "Fed-CMA, Figures 4 to 8: four Gaussians in the plane, accuracy over seeds",
            by_seed(toy.four_gaussians),
            in_the_plane(),
            rounds=300,
            participation=1.0,
            evaluate_every=300,
            priority=48,
            seeds=10,
            book={"rounds": 5},
        )
    }


def _experiments() -> dict[str, Experiment]:
    """The grid, the rows at the settings that were chosen, the other data sets, FLIC's federations, and the plane."""
    chosen = {name: GRID[name][setting] for name, setting in CHOSEN.items()}
    return _grid() | _rows(chosen) | _published(chosen) | _means() | _femnist() | _photos() | _spaces() | _plane()


EXPERIMENTS: dict[str, Experiment] = _experiments()
