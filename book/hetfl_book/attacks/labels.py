"""Which classes a client holds, and how many samples of each: read off its messages, or learned from other clients.

References
----------
.. [1] L. Melis, C. Song, E. De Cristofaro, V. Shmatikov. Exploiting unintended feature leakage in collaborative
   learning. IEEE S&P 2019.
.. [2] A. Wainakh, F. Ventola, T. Müßig, J. Keim, C. G. Cordero, E. Zimmer, T. Grube, K. Kersting, M. Mühlhäuser.
   User-level label leakage from gradients in federated learning. PoPETs 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hetfl_book.attacks.scores import Array, auc
from hetfl_book.attacks.watching import Message
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.networks import Params
from hetfl_core.rng import SERVER, numpy_stream

PARTS = ("phi", "gaussian", "alpha", "beta", "own", "common")
"""First words of the names of a model's own tensors; others that have one row per class are statistics of classes."""

ANCHOR = "anchor"
"""Of the tensors of which the move tells, and not what is sent."""

BIASES = ("beta.bias", "common.beta.bias")


def direct_scores(message: Message, n_classes: int) -> Array | None:
    """A number for each class that is larger where the client holds it, from one message alone.

    Statistics of classes (Fed-CMA's means, FedCR's products, FedPAC's centroids): a row of zeros is of a class without
    samples, and the score is a row's norm, or the count where one is sent. FLIC's anchors: a row that has not moved is,
    and the score is the norm of its move. Otherwise the move of a head's bias: each sample pulls its own class up and
    all others down ([2]_).

    Parameters
    ----------
    message : Message
    n_classes : int
        C.

    Returns
    -------
    ndarray, shape (C,), or None
        None where the message has neither.
    """
    checks.instance("message", message, Message)
    checks.integer("n_classes", n_classes, 1)
    rows = [n for n, p in message.sent.items() if n.split(".")[0] not in PARTS and len(p) == n_classes and p.dim()]
    counts = [n for n in rows if message.sent[n].dim() == 1 and "count" in n]
    if counts:
        return _array(message.sent[counts[0]])
    found = []
    for name in (n for n in rows if message.sent[n].dim() > 1):
        of = message.moves if name.split(".")[0] == ANCHOR else message.sent
        size = of[name].flatten(1).norm(dim=1)
        found.append(_array(size / size.mean().clamp(min=1e-30)))
    if found:
        return np.mean(found, 0)
    for name in BIASES:
        if name in message.sent and message.moved(name):
            return _array(message.moves[name])
    return None


def sample_shares(message: Message, n_classes: int) -> Array | None:
    """Each class's share of a client's samples, from counts (FedPAC) or from summed precisions (FedCR).

    FedCR's product of n experts has as precision the sum of n precisions, each of about the same size: of the size of
    the sum, averaged over the dimensions, n is what is left when it is divided by the whole.

    Returns
    -------
    ndarray, shape (C,), or None
        Summing to 1; None where nothing of the kind was sent, or nothing positive.
    """
    checks.instance("message", message, Message)
    checks.integer("n_classes", n_classes, 1)
    for name, p in message.sent.items():
        if p.dim() and len(p) == n_classes and ("count" in name or "precision" in name):
            size = _array(p.reshape(n_classes, -1).mean(1)).clip(0)
            if size.sum() > 0:
                return size / size.sum()
    return None


def move_vectors(messages: Sequence[Message]) -> dict[str, Array]:
    """A vector for each client: its moves of all rounds, each less the round's mean, averaged.

    Tensors are scaled to the same mean square over clients, so that none drowns the others. What only some clients
    sent is 0 for the others, which tells them apart, too: that is seen, and meant to be.

    Returns
    -------
    dict of str to ndarray, shape (d,)
        d = 0 where nothing was sent.
    """
    clients = sorted({m.client for m in messages})
    sums: dict[str, list[Array]] = {name: [] for name in clients}
    for t in sorted({m.round for m in messages}):
        some = [m for m in messages if m.round == t]
        for m, row in zip(some, vectors(some), strict=True):
            sums[m.client].append(row)
    wide = max((len(row) for rows in sums.values() for row in rows), default=0)
    return {n: np.mean([r for r in rows if len(r) == wide], 0) if rows else np.zeros(wide) for n, rows in sums.items()}


def vectors(messages: Sequence[Message]) -> Array:
    """The moves of one round as rows, less their mean, each tensor scaled; shape (messages, d)."""
    shapes: dict[tuple[str, tuple[int, ...]], None] = {}
    moves = [m.moves for m in messages]
    for one in moves:
        shapes |= dict.fromkeys((name, tuple(p.shape)) for name, p in sorted(one.items()))
    columns = []
    for name, shape in shapes:
        block = np.stack([_part(one, name, shape) for one in moves])
        block = block - block.mean(0)
        size = math.sqrt(float(np.square(block).sum(1).mean()))
        columns.append(block / size if size > 1e-12 else 0 * block)
    return np.concatenate(columns, 1) if columns else np.zeros((len(messages), 0))


def _part(moves: Params, name: str, shape: tuple[int, ...]) -> Array:
    p = moves.get(name)
    return _array(p.flatten()) if p is not None and tuple(p.shape) == shape else np.zeros(math.prod(shape))


def learned_shares(
    of: Mapping[str, Array], known: Mapping[str, Sequence[float]], strength: float = 0.1
) -> dict[str, Array]:
    """Shares of the classes of the clients that are not `known`, by ridge regression on those that are ([1]_).

    The attacker knows what some clients hold: colluders, or clients of its own making.

    Parameters
    ----------
    of : dict of str to ndarray, shape (d,)
        `features` of all clients.
    known : dict of str to sequence of float, length C
        Shares of each class, of some of them.
    strength : float
        Ridge over the mean of the kernel's diagonal.

    Returns
    -------
    dict of str to ndarray, shape (C,)
        Not clipped: larger for "more". Without features, the mean of the known.
    """
    others = [name for name in of if name not in known]
    here = [name for name in of if name in known]
    if not here:
        raise WrongValue(
            f"known must hold clients of which there are features, such as {sorted(of)[:3]}, got {sorted(known)[:3]}"
        )
    Y = np.array([known[name] for name in here], float)
    X = np.stack([of[name] for name in here])
    centre, mean = X.mean(0), Y.mean(0)
    K = (X - centre) @ (X - centre).T
    ridge = strength * max(float(np.trace(K)) / len(K), 1e-12)
    weights = np.linalg.solve(K + ridge * np.eye(len(K)), Y - mean)
    return {name: mean + (of[name] - centre) @ (X - centre).T @ weights for name in others}


def halves(
    of: Mapping[str, Array], truth: Mapping[str, Array], seed: int = 0, repeats: int = 5
) -> list[dict[str, Array]]:
    """`learned_shares` of random halves of the clients, each from the other half; `repeats` cuts into two.

    Figures are to be taken within each half, and then averaged: across halves, the mean of the known is lower for those
    who hold a class than for those who do not, and guessing would be worse than chance.
    """
    names = sorted(set(of) & set(truth))
    rng = numpy_stream(seed, SERVER, 0, "who is known")
    found = []
    for _ in range(checks.integer("repeats", repeats, 1)):
        mixed = [names[i] for i in rng.permutation(len(names))]
        for known in (mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]):
            found.append(learned_shares({n: of[n] for n in names}, {n: truth[n].tolist() for n in known}))
    return found


def presence(scores: Mapping[str, Array], counts: Mapping[str, Sequence[int]]) -> float:
    """AUC of "holds the class", class by class over the clients, averaged over classes that some hold and some lack.

    Within a class, so that knowing which classes are frequent is worth nothing: guessing is 0.5.
    """
    names = sorted(scores)
    S = np.array([scores[n] for n in names])
    held = np.array([counts[n] for n in names]) > 0
    told = [c for c in range(held.shape[1]) if held[:, c].any() and not held[:, c].all()]
    found = [auc(S[held[:, c], c], S[~held[:, c], c]) for c in told]
    return float(np.mean(found)) if found else math.nan


def distance(shares: Mapping[str, Array], counts: Mapping[str, Sequence[int]]) -> float:
    """Mean total variation between guessed and true shares, in [0, 1]; guesses are clipped at 0 and scaled to sum 1."""
    each = []
    for name, guess in shares.items():
        true = np.array(counts[name], float)
        guess = guess.clip(0)
        guess = guess / guess.sum() if guess.sum() > 0 else np.full(len(guess), 1 / len(guess))
        each.append(np.abs(guess - true / true.sum()).sum() / 2)
    return float(np.mean(each)) if each else math.nan


def _array(p: torch.Tensor) -> Array:
    return p.detach().double().nan_to_num().numpy()
