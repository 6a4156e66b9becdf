"""The two sides of a run: what the server does between messages, and what one client does with its own samples.

`hetfl_core.engine.simulator.Simulator` plays all parts in one process, `hetfl_core.deployment` each where it belongs.
Both go through here, so that a method's hooks are called in one order, with the same streams of random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Spec, blocks
from hetfl_core.methods.base import Batch, Method
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import has_prefix
from hetfl_core.rng import SERVER, numpy_stream, stream


def participants(names: Sequence[str], participation: float, seed: int, round: int) -> list[int]:
    """The ⌊r·b⌋ clients of a round, without replacement, independent of the order of the clients.

    Each client draws a number from its own stream; the smallest take part.

    Parameters
    ----------
    names : sequence of str
        All clients'.
    participation : float
        r in (0, 1].
    seed : int
        The run's.
    round : int
        Counted from 0.

    Returns
    -------
    list of int
        Indices in `names`, sorted.
    """
    count = math.floor(participation * len(names) + 1e-9)
    draws = [(numpy_stream(seed, name, round, "participation").random(), name, i) for i, name in enumerate(names)]
    return sorted(i for _, _, i in sorted(draws)[:count])


def check_participation(participation: float, n_clients: int) -> None:
    """Refuse a share that is none, or of which no client takes part."""
    checks.fraction("participation", participation)
    if math.floor(participation * n_clients + 1e-9) < 1:
        raise WrongValue(
            f"participation={participation} of {n_clients} clients selects no client; "
            f"it must be at least {1 / n_clients:.4g}"
        )


def cast(params: Tensors, device: torch.device, dtype: torch.dtype) -> Params:
    """Tensors as a run holds them: on its device, floating-point ones in its type, without gradients."""
    return {name: p.detach().to(device, dtype if p.is_floating_point() else p.dtype) for name, p in params.items()}


# --- the server -----------------------------------------------------------------------------------------------------


class ServerSide:
    """What the server does in a run. It holds no tensors: each call is given the server's, and returns new ones.

    Clients are known by their index in `specs`; sums are taken, and hooks are told of clients, in the order of names,
    so that the order of the specs does not matter.

    Parameters
    ----------
    method : Method
    specs : sequence of Spec
        What is known of each client.
    seed : int
    device : torch.device
    dtype : torch.dtype
        Floating-point type of the run.
    """

    def __init__(
        self, method: Method, specs: Sequence[Spec], seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.method, self.specs, self.seed = method, list(specs), seed
        self.device, self.dtype = device, dtype

    @property
    def order(self) -> list[int]:
        """Indices of all clients, in the order of their names."""
        return self.by_name(range(len(self.specs)))

    def by_name(self, indices: Sequence[int] | Mapping[int, object]) -> list[int]:
        """Indices of clients, in the order of the clients' names."""
        return sorted(indices, key=lambda index: self.specs[index].name)

    def _cast(self, params: Tensors) -> Params:
        return cast(params, self.device, self.dtype)

    def initial(self) -> Params:
        """The server's first tensors."""
        return self._cast(first_of_server(self.method, self.specs, self.seed))

    def common(self) -> Params:
        """First weights of what is local that all clients begin with, where a method wants that; else nothing."""
        if self.method.init == "own":
            return {}
        pattern = min(self.specs, key=lambda s: s.name)
        first = self.method.of(pattern).init_client(pattern, stream(self.seed, SERVER, 0, "first weights"))
        apart = (*self.method.constants, *(("phi", "gaussian") if self.method.init == "heads" else ()))
        return {name: p for name, p in first.items() if not any(has_prefix(name, prefix) for prefix in apart)}

    def asked(self, chosen: Sequence[int], round: int) -> list[int]:
        """Indices of those who answer a survey at the beginning of a round with these participants, by their names."""
        surveyed = self.method.surveys(round)
        return [] if surveyed is None else self.order if surveyed == "all" else self.by_name(chosen)

    def ask(self, server: Params, round: int) -> tuple[Params, torch.Generator]:
        """The server's tensors with a survey's question in them, and the stream with which `digest` goes on."""
        rng = stream(self.seed, SERVER, round, "survey")
        with torch.no_grad():
            return self._cast(self.method.ask(server, [self.specs[c] for c in self.order], rng)), rng

    def digest(self, server: Params, answers: Mapping[int, Params], rng: torch.Generator) -> Params:
        """The server's tensors after a survey's answers, by the indices of those that gave one."""
        with torch.no_grad():
            return self._cast(self.method.digest(server, *self._sorted(answers), rng))

    def _sorted(self, messages: Mapping[int, Params]) -> tuple[list[Params], list[float], list[Spec]]:
        """What clients sent, with their weights and specs, in the order of their names."""
        specs = [self.specs[index] for index in self.by_name(messages)]
        return [messages[c] for c in self.by_name(messages)], [self.method.weight(spec) for spec in specs], specs

    def join(self, server: Params, specs: Sequence[Spec], round: int) -> Params:
        """The server's tensors with what it adds for new clients (`Method.join`), after so many rounds.

        Raises
        ------
        ValueError
            Where the method changes what is there, or sends new clients something that it has not added for them.
        """
        specs = sorted(specs, key=lambda spec: spec.name)
        with torch.no_grad():
            joined = self._cast(self.method.join(server, specs, stream(self.seed, SERVER, round, "join")))
        for name, p in self._cast(server).items():
            if name not in joined or not _equal(joined[name], p):
                raise WrongValue(
                    f"{self.method.name}.join may add tensors of new clients, but it changed {name!r}, which the run "
                    "left"
                )
        for spec in specs:
            try:
                self.method.of(spec).download(joined, spec)
            except KeyError as error:
                raise WrongValue(
                    f"{self.method.name} sends a client something that the server holds of it alone, but of the new "
                    f"client {spec.name!r} it has no {error}: the method needs a `join` that adds it"
                ) from error
        return joined

    def download(self, server: Params, index: int) -> Params:
        """What is sent to one client."""
        return self.method.download(server, self.specs[index])

    def aggregate(self, server: Params, uploads: Mapping[int, Params], round: int) -> Params:
        """The server's tensors after what participants sent, by their indices; as they were, if nobody did.

        Raises
        ------
        ValueError
            Where a name that was sent is new to the server afterwards: it is most likely misspelt, and nobody reads it.
        """
        if not uploads:
            return server
        rng = stream(self.seed, SERVER, round, "aggregate")
        with torch.no_grad():
            new = self._cast(self.method.aggregate(server, *self._sorted(uploads), rng))
        if unknown := sorted((new.keys() - server.keys()) & {name for sent in uploads.values() for name in sent}):
            held = ", ".join(server) or "nothing"
            raise WrongValue(f"{self.method.name}: clients sent {unknown[0]!r}, but what the server holds is {held}")
        return new


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether these are the same numbers; what is not a number, as in a run that diverged, is equal to its like."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def first_of_server(method: Method, specs: Sequence[Spec], seed: int) -> Params:
    """The server's first tensors, as `Method.init_server` makes them.

    They must not depend on the order of clients: the method sees them by name.
    """
    return method.init_server(sorted(specs, key=lambda s: s.name), stream(seed, SERVER, 0, "init"))


# --- a client -------------------------------------------------------------------------------------------------------


def first_of_client(method: Method, spec: Spec, seed: int, common: Tensors) -> Params:
    """A client's first tensors: its own, or wherever shapes agree those that all have in `common`."""
    own = method.of(spec).init_client(spec, stream(seed, spec.name, 0, "init"))
    return own | {name: p for name, p in common.items() if name in own and p.shape == own[name].shape}


def precompute(method: Method, client: Client, spec: Spec, seed: int, dtype: torch.dtype) -> Params:
    """What a client makes of its samples once (`Method.precompute`)."""
    data = Batch(client.x_train, client.y_train, torch.ones(spec.n_train, dtype=dtype))
    with torch.no_grad():
        return method.of(spec).precompute(spec, data, stream(seed, spec.name, 0, "private"))


def check_precomputed(method: Method, spec: Spec, precomputed: Params, received: Params) -> None:
    """Refuse a method that calls two things by one name."""
    taken = {*method.of(spec).init_client(spec, torch.Generator()), *received} if precomputed else set()
    if both := sorted(taken & precomputed.keys()):
        raise WrongValue(
            f"{method.name}.precompute calls something {both[0]!r}, as init_client or download does; rename it"
        )


def answer(method: Method, spec: Spec, held: Params, received: Params, data: Batch) -> tuple[Params, Params]:
    """A client's answer to a survey, and its working copy."""
    with torch.no_grad():
        params = method.of(spec).start(held, received)
        return method.of(spec).survey(params, received, data), params


def batch(x: object, y: Tensor) -> Batch:
    """All samples of a client as a `Batch`, each of weight 1."""
    return Batch(x, y, blocks(x)[0].new_ones(len(y)))  # type: ignore[arg-type]
