"""Whose message is this, and which clients are alike? Names removed, the messages themselves still tell.

References
----------
.. [1] T. Orekondy, S. J. Oh, Y. Zhang, B. Schiele, M. Fritz. Gradient-leaks: understanding and controlling
   deanonymization in federated learning. NeurIPS Workshop on Federated Learning, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
from torch import Tensor

from hetfl_book.attacks.labels import vectors
from hetfl_book.attacks.scores import Array
from hetfl_book.attacks.watching import Message


def link(messages: Sequence[Message]) -> tuple[float, float]:
    """How often a client's message is nearest, of all in the round before, to its own ([1]_): names are not needed.

    Of each two rounds that follow each other, the clients that took part in both. Nearness is the cosine of moves, less
    the round's mean. Of several that are equally near one is drawn.

    Returns
    -------
    accuracy, chance : float
        Means over the pairs of rounds, weighted by clients; NaN without two clients in two rounds.
    """
    rounds = sorted({m.round for m in messages})
    right, guessed, n = 0.0, 0.0, 0
    for a, b in pairwise(rounds):
        first, second = ({m.client: m for m in messages if m.round == t} for t in (a, b))
        both = sorted(first.keys() & second.keys())
        if len(both) < 2:
            continue
        before, now = np.split(vectors([side[c] for side in (first, second) for c in both]), 2)
        S = _cosines(now - now.mean(0), before - before.mean(0))
        best = S.max(1, keepdims=True) - 1e-12 <= S
        right += float((np.diag(best) / best.sum(1)).sum())
        guessed, n = guessed + 1, n + len(both)
    return (right / n, guessed / n) if n else (math.nan, math.nan)


def alike(of: Mapping[str, Array], counts: Mapping[str, Sequence[int]]) -> float:
    """Rank correlation, over pairs of clients, of how near their `labels.move_vectors` and how alike their classes are.

    How alike classes are: the sum over classes of the smaller share. 0 where the server learns nothing of who is like
    whom, and where all are equally near.
    """
    from scipy.stats import spearmanr

    names = sorted(of)
    shares = {n: np.array(counts[n], float) / max(sum(counts[n]), 1) for n in names}
    X = np.stack([of[n] for n in names])
    S = _cosines(X, X)
    pairs = list(combinations(range(len(names)), 2))
    near = np.array([S[i, j] for i, j in pairs])
    same = np.array([np.minimum(shares[names[i]], shares[names[j]]).sum() for i, j in pairs])
    if np.ptp(near) < 1e-9 or np.ptp(same) < 1e-9:
        return 0.0
    return float(spearmanr(near, same).statistic)


def in_place(message: Message, place: Tensor) -> Message:
    """A message of HyFEM with the neurons of its classifier where the server's matching puts them.

    Parameters
    ----------
    message : Message
        Of tensors ``phi.joint.…``, of which neurons are the last axis, and ``beta.weight``: the first.
    place : Tensor of int, shape (h,)
        The server's neuron of each of the client's; places that no neuron has are 0.
    """
    width = max(int(place.max()) + 1, len(place))
    sent = dict(message.sent)
    for name, p in message.sent.items():
        if name.startswith("phi.joint.") and p.shape[-1] == len(place):
            sent[name] = p.new_zeros(*p.shape[:-1], width).index_copy(-1, place.cpu(), p)
        elif name == "beta.weight" and len(p) == len(place):
            sent[name] = p.new_zeros(width, p.shape[1]).index_copy(0, place.cpu(), p)
    return replace(message, sent=sent)


def _cosines(A: Array, B: Array) -> Array:
    a, b = (X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9) for X in (A, B))
    return a @ b.T
