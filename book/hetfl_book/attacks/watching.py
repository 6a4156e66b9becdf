"""What an honest-but-curious server sees of a run: messages, sums of them, and what it is told besides."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_book.attacks.scores import Array
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.methods import Method, PFedHN
from hetfl_core.networks import Params

TELLING = ("n_train", "class_counts", "classes")
"""What of a `Spec` is about a client's data and no message: read by the server, it is told in clear."""


@dataclass(frozen=True)
class Message:
    """One message of a client, and what it got before.

    Attributes
    ----------
    round : int
        From 0 on.
    client : str
    sent, received : dict of str to Tensor
        Of pFedHN, which sends differences, `sent` is the model that they stand for.
    kind : {"upload", "answer"}
        Through which door: after training, or to a survey.
    """

    round: int
    client: str
    sent: Params
    received: Params
    kind: Literal["upload", "answer"] = "upload"

    @property
    def moves(self) -> Params:
        """What was sent less what was received under the same name, or from nothing where nothing was."""
        return {name: p - base if (base := self._base(name, p)) is not None else p for name, p in self.sent.items()}

    def _base(self, name: str, p: Tensor) -> Tensor | None:
        base = self.received.get(name)
        return base if base is not None and base.shape == p.shape else None

    def moved(self, name: str) -> bool:
        """Whether a tensor was received before it was sent, in the same shape."""
        return self._base(name, self.sent[name]) is not None


@dataclass
class Seen:
    """What the server saw.

    Attributes
    ----------
    messages : list of Message
        In the order in which they came.
    told : set of str
        Which numbers about a client's data its hooks read from the `Spec` of a client: ``"n_train"``,
        ``"class_counts"``. They leave the client besides any message.
    rounds : int
    """

    messages: list[Message] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    rounds: int = 0

    @property
    def uploads(self) -> list[Message]:
        """What came after local training; where a method has no uploads but answers, those."""
        found = [m for m in self.messages if m.kind == "upload" and m.sent]
        return found or [m for m in self.messages if m.kind == "answer"]


def listen(method: Method) -> tuple[Method, Seen]:
    """A copy of a method whose server keeps what passes it. The run is the same, bit for bit.

    Parameters
    ----------
    method : Method

    Returns
    -------
    method : Method
        For one call of `hetfl_core.simulate`; without a checkpoint, as what it resumes from was not seen.
    seen : Seen
        Filled while it runs.
    """
    checks.instance("method", method, Method)
    heard, seen, plain = copy.copy(method), Seen(), method
    told = _telling(seen.told)

    def keep(kind: Literal["upload", "answer"]) -> Callable[..., Params]:
        hook = getattr(plain, "aggregate" if kind == "upload" else "digest")

        def kept(server: Params, sent: Sequence[Params], weights: Any, specs: Sequence[Spec], rng: Any) -> Params:
            for spec, one in zip(specs, sent, strict=True):
                received = plain.download(server, spec)
                read = _as_model(plain, one, received) if kind == "upload" else dict(one)
                seen.messages.append(Message(seen.rounds, spec.name, _held(read), _held(received), kind))
            seen.rounds += kind == "upload"
            return dict(hook(server, sent, weights, [told(spec) for spec in specs], rng))

        return kept

    hooks: dict[str, Callable[..., Any]] = {
        "aggregate": keep("upload"),
        "digest": keep("answer"),
        "init_server": lambda specs, rng: plain.init_server([told(spec) for spec in specs], rng),
        "download": lambda server, spec: plain.download(server, told(spec)),
        "weight": lambda spec: plain.weight(told(spec)),
    }
    for name, hook in hooks.items():
        object.__setattr__(heard, name, hook)
    return heard, seen


def _held(params: Mapping[str, Tensor]) -> Params:
    return {name: p.detach().cpu().clone() for name, p in params.items()}


def _as_model(method: Method, sent: Params, received: Params) -> Params:
    """The model that an upload stands for: of pFedHN θ̃ = θ − Δ."""
    if isinstance(method, PFedHN):
        return {name: received[name] - p for name, p in sent.items()}
    return dict(sent)


def _telling(told: set[str]) -> Callable[[Spec], Spec]:
    """What makes a `Spec` that writes down which numbers about data are read of it (copying it is not reading)."""

    class Telling(Spec):
        def __getattribute__(self, name: str) -> Any:
            if name in TELLING and sys._getframe(1).f_globals.get("__name__") not in ("dataclasses", Spec.__module__):
                told.add("class_counts" if name == "classes" else name)
            return super().__getattribute__(name)

    return lambda spec: Telling(**{f.name: getattr(spec, f.name) for f in fields(Spec)})


# --- secure aggregation -----------------------------------------------------------------------------------------------


def averaged(messages: Sequence[Message]) -> list[Message]:
    """What is left of messages under secure aggregation: each round's plain mean, the same in every sender's name.

    A tensor that only some sent, or in another shape, is averaged over those who sent it (as blocks are, whose holders
    are known). Which clients sent is known; what each of them sent is not.
    """
    found = []
    for kind in ("upload", "answer"):
        for t in sorted({m.round for m in messages if m.kind == kind}):
            some = [m for m in messages if m.round == t and m.kind == kind]
            sent, received = (_means([getattr(m, part) for m in some]) for part in ("sent", "received"))
            for m in some:
                mine = {name: sent[name, p.shape] for name, p in m.sent.items()}
                before = {name: received[name, p.shape] for name, p in m.received.items()}
                found.append(Message(t, m.client, mine, before, m.kind))
    return found


def _means(params: Sequence[Params]) -> dict[tuple[str, torch.Size], Tensor]:
    groups: dict[tuple[str, torch.Size], list[Tensor]] = {}
    for one in params:
        for name, p in one.items():
            groups.setdefault((name, p.shape), []).append(p)
    return {key: torch.stack(tensors).mean(0) for key, tensors in groups.items()}


def schedule(messages: Sequence[Message]) -> tuple[list[str], list[int], NDArray[np.bool_]]:
    """The clients by name, the rounds in order, and who sent in which of them, shape (rounds, clients)."""
    clients, rounds = sorted({m.client for m in messages}), sorted({m.round for m in messages})
    took_part = np.zeros((len(rounds), len(clients)), bool)
    for m in messages:
        took_part[rounds.index(m.round), clients.index(m.client)] = True
    return clients, rounds, took_part


def unmix(sums: Array, took_part: NDArray[np.bool_], strength: float = 1.0) -> Array:
    r"""Single clients' values from sums over those who took part, round by round: ridge regression on participation.

    Secure aggregation hides who sent what in one round. Where other clients take part in each round, and a client's
    values hardly change, the sums tell them apart: with :math:`A_{ti} = 1` where i took part in round t,
    :math:`\hat X = (\tilde A^\top \tilde A + \lambda I)^{-1} \tilde A^\top \tilde S`, tildes for rows less their mean
    over the rounds. Differences between clients are found, not what is common to all.

    Parameters
    ----------
    sums : ndarray, shape (T, d)
    took_part : ndarray of bool, shape (T, b)
    strength : float
        λ, greater than 0.

    Returns
    -------
    ndarray, shape (b, d)
        All alike, zeros, where everybody takes part in each round.
    """
    S = checks.floats("sums", sums, 2)
    A = checks.array("took_part", took_part)
    if A.shape[:1] != S.shape[:1] or A.ndim != 2 or A.dtype != bool:
        raise WrongValue(f"took_part must be bool, of shape ({len(S)}, clients), got {A.dtype} of {A.shape}")
    strength = checks.number("strength", strength, 1e-12, 1e12)
    A = A.astype(float)
    A, S = A - A.mean(0), S - S.mean(0)
    return np.linalg.solve(A.T @ A + strength * np.eye(A.shape[1]), A.T @ S)
