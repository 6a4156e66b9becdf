"""The stream of random numbers of (seed, client, round, purpose).

Every draw in the library comes from a generator made here, and none from a global one. A result therefore depends
neither on the engine that trains the clients, nor on which clients share a stack, nor on the order in which they are
listed: a client is known by its *name*. (But for rounding: sums over other stacks are taken in another order.)

All that can be foretold by who knows the seed, and that is the point of it. Noise that is to hide something from others
must not be: where clients are machines of their own it is drawn by `SecretStream`, of a secret that never leaves them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.errors import WrongType, WrongValue

__all__ = ["SERVER", "normal", "numpy_stream", "stream"]


SERVER = "<server>"
"""Name under which the server draws; no client may be called so."""

MAX_SEED = 2**63

SECRET_BYTES = 32
"""Length of a client's secret."""


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


# --- numbers that others cannot foretell ----------------------------------------------------------------------------


class SecretStream:
    """Normal numbers that nobody can foretell who lacks the key, whatever other numbers of the stream they have seen.

    PyTorch's generator on the CPU is no such thing: of its seed it takes 32 bits, which can all be tried out, and from
    enough of its numbers the others follow. These are made of the output of SHAKE-256.

    Parameters
    ----------
    key : bytes
        Empty for a stream that there is not: it draws nothing.
    """

    def __init__(self, key: bytes) -> None:
        self.key, self.drawn = key, 0

    def normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next numbers of the standard normal distribution.

        Parameters
        ----------
        shape : sequence of int
        dtype : torch.dtype
            They are made in float64 and rounded to this.

        Returns
        -------
        Tensor
            Of this shape, on the CPU.

        Raises
        ------
        ValueError
            Without a key.
        """
        if not self.key:
            raise WrongValue(
                "noise that is to hide something must be drawn with a secret of the client's own, but it has none: "
                "give it a folder for its state (`hetfl deploy client --state`), and have the method's `needs_secret` "
                "say that it draws"
            )
        count = int(np.prod(shape, dtype=np.int64))
        block = hashlib.shake_256(self.key + self.drawn.to_bytes(8, "big")).digest(16 * count)
        self.drawn += 1
        uniform = (np.frombuffer(block, "<u8").reshape(2, count) >> 11) * 2.0**-53  # in [0, 1)
        radius, angle = np.sqrt(-2 * np.log1p(-uniform[0])), 2 * np.pi * uniform[1]  # Box and Muller 1958
        return torch.from_numpy(radius * np.cos(angle)).to(dtype).reshape(tuple(shape))


Stream = torch.Generator | SecretStream
"""What a client draws with when it protects its upload."""


def normal(shape: Sequence[int], source: Stream, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of the standard normal distribution for noise that protects an upload, as `Method.protect` draws them.

    Parameters
    ----------
    shape : sequence of int
    source : torch.Generator or SecretStream
        What `Method.protect` is given as `rng`: in a simulation the generator of seed, client and round, in a
        deployment a stream of the client's own secret, which `torch.randn` does not take.
    dtype : torch.dtype

    Returns
    -------
    Tensor
        Of this shape, on the CPU.

    Raises
    ------
    ValueError
        In a deployment, for a client without a secret; for a shape that numbers cannot have.
    TypeError
        For a type that numbers cannot have, and a source that is neither.
    """
    sizes = tuple(checks.integer("shape", n, 0) for n in checks.sequence("shape", shape))
    checks.instance("source", source, torch.Generator, SecretStream)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise WrongType(f"dtype must be a floating-point type such as torch.float64, got {dtype!r}")
    if isinstance(source, SecretStream):
        return source.normal(sizes, dtype)
    return torch.randn(sizes, generator=source, dtype=dtype)


def secret_stream(
    secret: bytes, seed: int, client: str, round: int, purpose: str, *messages: Mapping[str, Tensor]
) -> SecretStream:
    """The stream of a client's secret for one purpose, and for these messages and no others.

    As what is drawn depends on the messages themselves, no two unlike messages ever get the same noise, so that the
    difference of two tells nothing; and who asks for the same again gets the same again, and learns nothing new.

    Parameters
    ----------
    secret : bytes
        `SECRET_BYTES` of them; empty for a client that has none, whose stream draws nothing.
    seed, client, round, purpose
        As for `key`.
    *messages : dict of str to Tensor
        What is to be noised, and what it depends on.

    Returns
    -------
    SecretStream
    """
    if not secret:
        return SecretStream(b"")
    words = [str(key(seed, client, round, purpose)), *map(digest, messages)]
    return SecretStream(hmac.digest(secret, "\x1f".join(words).encode(), "sha256"))


def digest(message: Mapping[str, Tensor]) -> str:
    """The SHA-256 of named tensors, whatever their order: 64 hexadecimal digits."""
    found = hashlib.sha256()
    for name in sorted(message):
        p = message[name].detach().cpu().contiguous()
        head = f"{len(name.encode())}:{name}{p.dtype}{tuple(p.shape)}"
        found.update(head.encode() + p.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
