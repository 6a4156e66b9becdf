"""The same clients with fewer training trials: how much of what a method is worth depends on how many there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation, map_blocks
from hetfl_core.rng import numpy_stream

__all__ = ["fewer_trials"]

FEWEST = 4
"""Rows of each class that `tenth` leaves, where there are as many."""


def order(client: Client, seed: int) -> NDArray[Any]:
    """The client's training trials in an order of which every beginning is stratified: its first n are *the* n trials.

    Each class is shuffled by the client's own stream, and the classes are interleaved in proportion, one trial of each
    first. What is drawn for 10 trials is therefore part of what is drawn for 20.

    Parameters
    ----------
    client : Client
    seed : int

    Returns
    -------
    ndarray of int, shape (n_train,)
        Indices of the training trials.
    """
    labels = client.y_train.numpy()
    rank = np.empty(len(labels))
    for c in np.unique(labels):
        (mine,) = np.nonzero(labels == c)
        rng = numpy_stream(seed, client.name, 0, f"fewer trials:{c}")
        places = (np.arange(len(mine)) + 0.5) / len(mine)
        places[0] = 0
        rank[rng.permutation(mine)] = places
    return np.lexsort((labels, rank))


def fewer(client: Client, n: int, seed: int) -> Client:
    """The client with its first n training trials (`order`), or all where it has no more; the test set stays.

    *n counts labelled trials.* The vectors stay as they are, and so does the reference point that they were computed
    with: that of all the client's training trials, in ``flic_bci.common40`` of its test trials too. Classifiers alone
    and federated methods thus know a little of trials whose labels they are not given. It was measured on
    ``flic_bci.common40``: with the reference point of the n trials, classifiers alone move by at most 0.7 points, and
    `MDM` not at all. `Pooled`, which lives on reference points, finds its own.

    Parameters
    ----------
    client : Client
    n : int
        Training trials to keep, at least one of each class.
    seed : int
        Of the draw.

    Returns
    -------
    Client

    Raises
    ------
    ValueError
        If n trials cannot hold every class of the client.
    """
    checks.instance("client", client, Client)
    checks.integer("n", n)
    classes = len(np.unique(client.y_train))
    if n < classes:
        raise WrongValue(f"client {client.name!r}: n must be at least {classes}, one trial of each class, got {n}")
    return _with(client, order(client, seed)[:n])


def _with(client: Client, rows: NDArray[Any]) -> Client:
    kept = torch.from_numpy(rows.copy())
    return replace(client, x_train=map_blocks(lambda x: x[kept], client.x_train), y_train=client.y_train[kept])


def fewer_trials(federation: Federation, n: int | None, seed: int) -> Federation:
    """Every client of a federation with at most n of its training trials; the test sets stay.

    The n trials are stratified by class, and those for a smaller n are among those for a larger one.

    Parameters
    ----------
    federation : Federation
    n : int or None
        Training trials of each client, at least one of each of its classes; None leaves all.
    seed : int
        Of the draw.

    Returns
    -------
    Federation
        ``info["trials"]`` has `n` and the seed. The very same federation where `n` is None.

    Raises
    ------
    ValueError
        Naming the client, if n trials cannot hold every class that it has.
    """
    checks.instance("federation", federation, Federation)
    checks.seed(seed)
    if n is None:
        return federation
    clients = [fewer(client, n, seed) for client in federation]
    info = {**federation.info, "trials": {"at_most": n, "seed": seed}}
    return replace(federation, clients=clients, info=info)


def tenth(labels: NDArray[Any], name: str, seed: int) -> NDArray[np.intp]:
    """A tenth of each class, rounded, but at least `FEWEST` rows of it, or all where there are no more.

    Parameters
    ----------
    labels : ndarray, shape (n,)
        Of a client's training rows.
    name : str
        The client; it keys the random numbers.
    seed : int

    Returns
    -------
    ndarray of int
        Places of the rows, in increasing order.
    """
    kept = []
    for c in np.unique(labels):
        (mine,) = np.nonzero(labels == c)
        rng = numpy_stream(seed, name, 0, f"fewer trials:{c}")
        kept.append(rng.permutation(mine)[: max(FEWEST, round(len(mine) / 10))])
    return np.sort(np.concatenate(kept))


def tenth_of(federation: Federation, seed: int) -> Federation:
    """Every client of a federation with a `tenth` of its training rows; the test sets stay.

    What was fitted on training rows, such as what fills gaps, scales, and reference points, stays that of all of them,
    as it does in `fewer_trials`. Data sets that have a `size` fit it anew.

    Parameters
    ----------
    federation : Federation
        For a classification.
    seed : int
        Of the draw.

    Returns
    -------
    Federation
        ``info["size"]`` is ``"tenth"``.

    Raises
    ------
    ValueError
        For a regression, which has no classes.
    """
    checks.instance("federation", federation, Federation)
    checks.seed(seed)
    if federation.task != "classification":
        raise WrongValue(f"federation must be for classification, got {federation.name!r} for {federation.task}")
    clients = [_with(c, tenth(c.y_train.numpy(), c.name, seed)) for c in federation]
    info = {**federation.info, "size": "tenth"}
    return replace(federation, clients=clients, info=info)
