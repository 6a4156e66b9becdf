"""FLIC ([1]_), further: its published code as a whole, what is exchanged at all, and what its authors might ask for.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024. Its code: github.com/arakotom/flic, commit 4646796.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hetfl_book.datasets import text
from hetfl_book.papers import flic
from hetfl_book.papers.experiment import Experiment, by_seed
from hetfl_core.datasets import digits, femnist
from hetfl_core.engine.run import Run
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Federation
from hetfl_core.learners import simulate
from hetfl_core.methods import FLIC, MMD, FedHeNN, Local, Method
from hetfl_core.networks import CNN, MLP, Model

FEMNIST = flic.Setting(by_seed(femnist.digits, n_clients=50), "femnist.digits", "FEMNIST, digits of 50 writers", 100)
DIGITS = flic.Setting(
    by_seed(digits.mnist_usps, n_clients=100, classes_per_client=3, variant="code"),
    "digits.mnist_usps",
    "MNIST and USPS as the published code deals them",
    100,
)
PLACES = {**flic.SETTINGS, "femnist": FEMNIST, "digits": DIGITS}

NETWORKS: dict[str, tuple[MLP | CNN, MLP | CNN]] = {
    "bci": (flic.PUBLISHED_MLP, replace(flic.PUBLISHED_MLP, last="leaky_relu")),
    **dict.fromkeys(flic.TOYS, (MLP(), MLP(hidden=(64,), last="relu"))),
    "digits": (CNN(dropout=0.5), CNN(out=100, dropout=0.5)),
}
"""Of the published code: φ of FLIC, and the body of Local and FedHeNN (on digits less its LeakyReLU at the end)."""

FRESH = range(10, 20)
"""Seeds that no choice of ours has seen."""

NEVER = 10**6
"""A round that does not come."""


def published(place: str, batch: int, batch_of_hetfedrep: int = 10) -> dict[str, Method]:
    """The methods of the tables as the published code and its scripts run them.

    HetFedRep is FLIC without pre-training and with λ1 = λ2 = 0 there, whose α is trained from the second round on and
    whose embeddings are aligned again after each round. *MMD* is ``--distance mmd`` (Remark 2): it takes the place of
    W2 before and after rounds, never in them. The weight decay of Local and FedHeNN is on biases, too; there it is not.

    Parameters
    ----------
    place : str
        One of `NETWORKS`.
    batch, batch_of_hetfedrep : int
        Batch size of the alignment, of FLIC and of HetFedRep.
    """
    phi, rival = NETWORKS[place]
    hl = FLIC.published(model=Model(phi, alpha=100), pretrain_batch=batch)
    without: dict[str, Any] = {"alignment_weight": 0.0, "anchor_weight": 0.0, "pretrain_epochs": 0}
    found: dict[str, Method] = {
        "Local": Local(Model(rival), weight_decay=1e-4),
        "FedHeNN": FedHeNN.published(model=Model(rival)),
        "HetFedRep": FLIC.published(
            model=Model(phi, alpha=100), pretrain_batch=batch_of_hetfedrep, representation_from=1, **without
        ),
        "FLIC-Class": FLIC.published(model=Model(phi), pretrain_batch=batch),
        "FLIC-HL": hl,
    }
    return found if place == "digits" else found | {"FLIC-HL, MMD": replace(hl, pretrain_alignment=MMD.published())}


def _published() -> dict[str, Experiment]:
    found = {
        "flic/bci-common40-published": flic.BCI.experiment(
            "FLIC, Table 4 as its published code runs it: BCI with the common electrodes",
            published("bci", 100),
            priority=10,
            seeds=5,
            book=flic.LONG_ENOUGH,
        ),
        "flic/digits-dealt-b100-c3-published": DIGITS.experiment(
            "FLIC, Table 3 as its published code runs it: MNIST and USPS, 100 clients with 3 classes",
            published("digits", 100, 100),
            evaluate_every=10,
            priority=13,
            book=flic.BRIEF,
        ),
    }
    for order, (name, toys) in enumerate(flic.TOY_SETTINGS.items()):
        found[f"flic/toy-{name}-published"] = toys.experiment(
            f"FLIC, Figure 4 as its published code runs it: {toys.words}, 100 clients",
            published(name, 10),
            evaluate_every=10,
            priority=11 + order,
            seeds=5,
            book=flic.LONG_ENOUGH,
        )
    return found


# --- what is exchanged, and where clients begin ---------------------------------------------------------------------


def with_movement(federation: Federation, method: Method, *, checkpoint: Path | None = None, **options: Any) -> Run:
    """Run, and say how far the shared layer and the anchors went from where they began.

    Parameters
    ----------
    federation, method, checkpoint, options
        As for `hetfl_core.simulate`.

    Returns
    -------
    Run
        Its ``final`` also has ``alpha_moved`` and ``anchors_moved``, ‖x_T − x_0‖ / ‖x_0‖ of all of the server's α, and
        of all its anchors' means.
    """
    run = simulate(federation, method, checkpoint=checkpoint, **options)
    first = Simulator(federation, method, seed=options["seed"]).initial().server
    for part, name in (("alpha", "alpha_moved"), ("anchor", "anchors_moved")):
        before, after = (
            torch.cat([p.cpu().double().flatten() for n, p in server.items() if n.startswith(f"{part}.")])
            for server in (first, run.server)
        )
        run.final[name] = float((after - before).norm() / before.norm())
    return run


def _common(place: str, order: int) -> dict[str, Any]:
    """Settings of an experiment at one of `PLACES`."""
    common: dict[str, Any] = {"priority": 14 + order, "evaluate_every": 10}
    if place == "femnist":
        return common | {"rounds": 1000, "evaluate_every": 20, "book": {"rounds": 10, "pretrain_epochs": 10}}
    return common | ({"book": flic.BRIEF} if place == "digits" else {"seeds": 5})


def _exchange() -> dict[str, Experiment]:
    """Does sharing pay at all? FLIC-HL against itself with α and the anchors as they were drawn, and equal heads."""
    found = {}
    for order, (place, setting) in enumerate(PLACES.items()):
        phi = CNN() if place == "digits" else MLP()
        table = flic.methods(phi, setting.pretrain_batch, fedrep=place in ("bci", "femnist"))
        hl: FLIC = table["FLIC-HL"]  # type: ignore[assignment]
        common = _common(place, order)
        found[f"flic/exchange-{place}"] = setting.experiment(
            f"FLIC-HL and itself with nothing exchanged: {setting.words}",
            {
                "FLIC-HL": hl,
                "FLIC-HL, alpha from round 21": replace(hl, representation_from=21),
                "FLIC-HL, nothing exchanged": replace(hl, representation_from=NEVER, local_anchors=False),
            },
            perform=with_movement,
            **common,
        )
        begin = {name: replace(m, init="heads") for name, m in table.items() if name not in ("Local", "FedHeNN")}
        found[f"flic/heads-{place}"] = setting.experiment(
            f"FLIC's tables with one head for all clients to begin with, as in the published code: {setting.words}",
            begin,
            **common | {"priority": common["priority"] + 6},
        )
    return found


# --- what the authors might ask for ---------------------------------------------------------------------------------


def _objections() -> dict[str, Experiment]:
    found = {}
    for order, (name, toys) in enumerate(flic.TOY_SETTINGS.items()):
        table = flic.methods(flic.PUBLISHED_MLP, toys.pretrain_batch)
        found[f"flic/dropout-k10-{name}"] = toys.experiment(
            f"FLIC and its rivals, all with dropout, K = 10 (Appendix S3.5), fresh seeds: {toys.words}, 100 clients",
            {n: replace(m, pretrain_epochs=10) if isinstance(m, FLIC) else m for n, m in table.items()},
            evaluate_every=10,
            priority=12 + order,
            seeds=FRESH,
        )
    found["flic/two-modalities"] = Experiment(
        "FLIC where feature spaces differ: made captions and images in the shape of TextCaps, 100 clients",
        by_seed(text.two_modalities, n_clients=100),
        flic.methods(pretrain_batch=10),
        evaluate_every=10,
        priority=27,
        seeds=5,
    )
    found["flic/digits-b100-c3-epochs50"] = Experiment(
        "FLIC, Table 3: MNIST and USPS dealt as in the text, 100 clients with 3 classes, M = 50",
        by_seed(digits.mnist_usps, n_clients=100, classes_per_client=3),
        {name: replace(m, local_epochs=50) for name, m in flic.methods(CNN()).items()},
        evaluate_every=10,
        priority=55,
        book=flic.BRIEF,
    )
    return found


EXPERIMENTS: dict[str, Experiment] = {**_published(), **_exchange(), **_objections()}
