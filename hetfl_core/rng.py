"""The stream of random numbers of (seed, client, round, purpose).

Every draw in the library comes from a generator made here, and none from a global one. A result therefore depends
neither on the engine that trains the clients, nor on which clients share a stack, nor on the order in which they are
listed: a client is known by its *name*. (But for rounding: sums over other stacks are taken in another order.)
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from hetfl_core import checks

__all__ = ["SERVER", "numpy_stream", "stream"]


SERVER = "<server>"
"""Name under which the server draws; no client may be called so."""

MAX_SEED = 2**63


def key(seed: int, client: str, round: int, purpose: str) -> int:
    """A 63-bit number that is a function of its four arguments and of nothing else.

    Parameters
    ----------
    seed : int
        Seed of the run, at least 0.
    client : str
        Name of the client, or `SERVER`.
    round : int
        Communication round, counted from 0; 0 as well for what happens before the first round.
    purpose : str
        What the numbers are for, e.g. ``"init"``, ``"batches:0"``.

    Returns
    -------
    int
        In ``[0, 2**63)``: the first 8 bytes of a BLAKE2b hash, less the top bit.

    Raises
    ------
    ValueError
        For a seed or round that is no whole number of at least 0.
    TypeError
        For a client or purpose that is no text.
    """
    checks.instance("client", client, str, such_as="a client's name")
    checks.instance("purpose", purpose, str)
    text = "\x1f".join((str(checks.seed(seed)), client, str(checks.integer("round", round, 0)), purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % MAX_SEED


def stream(seed: int, client: str, round: int, purpose: str) -> torch.Generator:
    """A fresh generator of PyTorch's for one purpose of one client in one round.

    The generator always lives on the CPU: numbers are drawn there and then moved, so that a run on a GPU sees the
    same random numbers as one on a CPU.

    Parameters
    ----------
    seed, client, round, purpose
        As for `key`.

    Returns
    -------
    torch.Generator
        On the CPU.

    Raises
    ------
    ValueError, TypeError
        As for `key`.
    """
    return torch.Generator().manual_seed(key(seed, client, round, purpose))


def numpy_stream(seed: int, client: str, round: int, purpose: str) -> np.random.Generator:
    """A fresh NumPy generator for one purpose of one client in one round; data sets are drawn with it.

    Parameters
    ----------
    seed, client, round, purpose
        As for `key`.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    ValueError, TypeError
        As for `key`.
    """
    return np.random.default_rng(key(seed, client, round, purpose))
