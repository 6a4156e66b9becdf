"""Who learns what: attacks on what leaves a client, for every method, and what clipping, noise and sums do to them.

None of these is a paper's table. The federation is small, so that attacks have something to find: 20 clients of about
40 of scikit-learn's bundled digits, with class proportions of their own, and one more client, the *colluder*, that
works with the server. Members are the clients' training samples, non-members their test samples, which have the same
class proportions; no setting of an attack or a method was chosen by what came out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hetfl_book.attacks import defences
from hetfl_book.attacks.defences import Guard, guarded
from hetfl_book.attacks.survey import survey
from hetfl_book.attacks.watching import listen
from hetfl_book.datasets import flic_bci
from hetfl_book.papers.experiment import Experiment, without_warnings
from hetfl_core.datasets import blocks, digits
from hetfl_core.engine.run import Run
from hetfl_core.federation import Client, Federation
from hetfl_core.learners import simulate
from hetfl_core.methods import CATALOGUE, FLIC, FedCMA, Method
from hetfl_core.networks import MLP, Blocks
from hetfl_core.partition import dirichlet_per_client, split_each
from hetfl_core.rng import SERVER, numpy_stream

COLLUDER = "~colluder"
"""Name of the client that works with the server; the last by name."""

CLIENTS, SAMPLES, SPARE = 20, 70, 300
"""Clients, samples of each (training and test), and the colluder's samples."""

ALPHA = 0.5
"""Of the Dirichlet distribution of each client's class proportions."""

ROUNDS, PARTICIPATION = 30, 0.5

DELTA = 1e-5
"""δ of every ε."""


def digits_and_colluder(seed: int) -> Federation:
    """20 clients of 70 bundled digits, 4 of 7 for training, and a colluder of 300, vectors of 64; no image twice."""
    x, y = digits.bundled_images()
    rng = numpy_stream(seed, SERVER, 0, "privacy")
    order = rng.permutation(len(y))
    spare, rest = order[:SPARE], order[SPARE:]
    parts = dirichlet_per_client(y[rest], CLIENTS, ALPHA, rng, per_client=SAMPLES)
    train, test = split_each(y[rest], parts, 3 / 7, rng)
    own = split_each(y[spare], [np.arange(SPARE)], 1 / 6, rng)
    sets = [(f"client-{i:02d}", rest[a], rest[b]) for i, (a, b) in enumerate(zip(train, test, strict=True))]
    sets.append((COLLUDER, spare[own[0][0]], spare[own[1][0]]))
    x = x.astype(np.float32)
    clients = [Client(x[a], y[a], x[b], y[b], name) for name, a, b in sets]
    settings = {"seed": seed, "clients": CLIENTS, "samples": SAMPLES, "spare": SPARE, "alpha": ALPHA}
    info = {"settings": settings, "source": "bundled with scikit-learn", "colluder": COLLUDER, "simulated": False}
    return without_warnings(clients, 10, "privacy.digits", info)


def quarters(seed: int) -> Federation:
    """The same clients, of which each holds two of the four quarters of its images; the colluder holds all."""
    whole = digits_and_colluder(seed)
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]
    clients = []
    for i, client in enumerate(whole):
        held = range(4) if client.name == COLLUDER else pairs[i % len(pairs)]
        x, x_test = (_quarters(t, held) for t in (client.x_train, client.x_test))
        clients.append(Client(x, client.y_train, x_test, client.y_test, client.name))
    return without_warnings(clients, 10, "privacy.quarters", whole.info)


def _quarters(x: torch.Tensor, held: Sequence[int]) -> dict[str, torch.Tensor]:
    """Four blocks of 16 pixels, those that are not held empty."""
    parts = {name: part.flatten(1) for name, part in blocks.quadrants(x.reshape(-1, 1, 8, 8)).items()}
    return {name: part if j in held else part[:, :0] for j, (name, part) in enumerate(parts.items())}


# --- how a run is done ------------------------------------------------------------------------------------------------


def attacked(federation: Federation, method: Method, *, checkpoint: Path | None = None, **options: Any) -> Run:
    """A run of which the server kept every message, and the figures of all attacks in its ``final``.

    Parameters
    ----------
    federation : Federation
        Its colluder is the last client by name.
    method : Method
    checkpoint : path, optional
        Not used: what a run resumes from was not seen.
    options
        As for `hetfl_core.simulate`.

    Returns
    -------
    Run
        With ``epsilon`` where the method is guarded: of the client that took part most often, at `DELTA`.
    """
    heard, seen = listen(method)
    run = simulate(federation, heard, **options)
    names = [client.name for client in federation]
    run.final |= survey(run, seen, max(names), seed=options["seed"])
    guard = getattr(method, "guard", None)
    if guard is not None and guard.noise_multiplier:
        most = defences.releases(names, options["participation"], options["seed"], options["rounds"])
        run.final["epsilon"] = guard.epsilon(DELTA, most)
    return run


# --- methods ----------------------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {"local_epochs": 5, "batch_size": 20, "lr": 3e-3}
"""What all have here."""

ALIGNED: dict[str, Any] = {"pretrain_epochs": 30, "pretrain_batch": 20}
"""FLIC's start."""

NETWORK = MLP((32,), 32)


def small(method: Method, phi: Any = NETWORK) -> Method:
    """A method of the catalogue with a small network, at the settings that all have here, with equal weights.

    Where a smaller hidden layer or Gaussian layer goes with it: 32.
    """
    model = replace(
        method.model,
        phi=phi,
        alpha=None if method.model.alpha is None else 32,
        gaussian=None if method.model.gaussian is None else 32,
    )
    return replace(method, model=model, weighting="uniform", **SIZES)


EVERYONE = (
    "Local", "FedAvg", "FedAvg-FT", "Ditto", "Ditto, own embeddings", "FedProx", "late fusion", "HyFEM", "FedPer",
    "LG-FedAvg", "FedGen", "FedBABU", "Fed-CMA", "Fed-CMA, marginal", "FedCR", "FedCR, own embeddings",
    "FedCR, own bodies", "FedSR", "FedHeNN", "FedPAC", "FedPAC, own bodies", "FedRep", "HetFedRep", "FLIC-Class",
    "FLIC-HL", "FLIC-FedAvgFT", "FLIC-L2GD", "pFedHN", "pFedHN-PC",
)  # fmt: skip
"""Named one by one: a method that comes later changes no published experiment."""


def everyone() -> dict[str, Method]:
    """Those methods of the catalogue; Fed-CMA's server goes all the way, as in its comparisons."""
    return _settled({name: small(CATALOGUE[name]) for name in EVERYONE})


def _settled(methods: dict[str, Method]) -> dict[str, Method]:
    found = {n: replace(m, **ALIGNED) if isinstance(m, FLIC) else m for n, m in methods.items()}
    return {n: replace(m, server_step=1.0) if isinstance(m, FedCMA) else m for n, m in found.items()}


BLOCKS = Blocks({name: MLP((16,), 16) for name in blocks.QUADRANTS}, 32)


def of_blocks() -> dict[str, Method]:
    """HyFEM, as its text has it and with clients that begin with weights of their own; and what else takes blocks."""
    hyfem = small(CATALOGUE["HyFEM"], BLOCKS)
    others = ("Local", "late fusion", "Fed-CMA", "FLIC-Class")
    own = replace(hyfem, client_init="own")  # type: ignore[call-arg]
    found = {"HyFEM": hyfem, "HyFEM, own start": own}
    found |= {name: small(CATALOGUE[name], BLOCKS) for name in others}
    return _settled(found)


def subjects() -> dict[str, Method]:
    """On subjects, with FLIC's network and 10 local epochs in rounds of 10 of 40."""
    wanted = ("Local", "FedAvg", "FedRep", "Fed-CMA", "FedCR", "FLIC-Class", "FedHeNN")
    found: dict[str, Method] = {}
    for name in wanted:
        method = CATALOGUE[name]
        method = replace(method, model=replace(method.model, phi=MLP()), weighting="uniform")
        found[name] = replace(method, server_step=1.0) if isinstance(method, FedCMA) else method
    return found


# --- defences ---------------------------------------------------------------------------------------------------------

CLIPS: dict[str, dict[str, float]] = {
    "FedAvg": {"": 0.75},
    "FedRep": {"": 0.23},
    "Fed-CMA": {"mean": 4.8, "beta": 2.4},
    "FedCR": {"joint.natural": 660.0, "joint.precision": 320.0, "phi": 0.58, "gaussian": 0.54},
    "FLIC-Class": {"anchor": 0.042},
}
"""R of each group: the median of what clients moved in a run with seed 100, which is in no record."""

NOISE = {256.0: 0.2495, 16.0: 1.615, 4.0: 5.072, 1.0: 17.50}
"""z by ε: for a client that takes part in 22 rounds, the most in any of the seeds, at δ = 1e-5."""

SINGLY = (16.0, 1.0)
"""Of these, those that are promised for single uploads, too."""

HONEST = 9
"""Clients of a round whose noise the server does not know: 10 of 21 take part, one of them perhaps the colluder."""


def defended() -> dict[str, Method]:
    """Each method of `CLIPS` as it is; clipped; clipped and noised, so that ε holds for single uploads or for sums."""
    found: dict[str, Method] = {}
    plain = everyone()
    for name, clip in CLIPS.items():
        method = plain[name]
        if isinstance(method, FedCMA):
            method = replace(method, server_init="zeros")
        floor = {"joint.precision": 0.0} if "joint.precision" in clip else {}
        found |= {name: method, f"{name}, clipped": guarded(method, Guard(clip, at_least=floor))}
        for eps in SINGLY:
            z = NOISE[eps]
            found[f"{name}, eps {eps:g}"] = guarded(method, Guard(clip, z, at_least=floor))
        for eps, z in NOISE.items():
            shared = Guard(clip, z, HONEST, floor)
            found[f"{name}, eps {eps:g} of sums"] = guarded(method, shared)
    return found


COMMON: dict[str, Any] = {
    "rounds": ROUNDS,
    "participation": PARTICIPATION,
    "evaluate_every": 10,
    "perform": attacked,
    "seeds": 3,
}

EXPERIMENTS: dict[str, Experiment] = {
    "privacy/digits": Experiment(
        "Who learns what? Attacks on the uploads of every method; 20 clients of 40 digits",
        digits_and_colluder,
        everyone(),
        dataset="digits.bundled",
        priority=60,
        **COMMON,
    ),
    "privacy/quarters": Experiment(
        "Who learns what where clients hold two quarters of their images; matched neurons",
        quarters,
        of_blocks(),
        dataset="digits.bundled",
        priority=61,
        **COMMON,
    ),
    "privacy/defences": Experiment(
        "What clipping, noise and sums do to attacks and to accuracy; 20 clients of 40 digits",
        digits_and_colluder,
        defended(),
        dataset="digits.bundled",
        priority=62,
        **COMMON,
    ),
    "privacy/bci": Experiment(
        "Who learns what of 40 subjects with common electrodes",
        lambda seed: flic_bci.common40(),
        subjects(),
        dataset="flic_bci.common40",
        priority=63,
        **{**COMMON, "participation": 0.25, "evaluate_every": 30},
    ),
}
