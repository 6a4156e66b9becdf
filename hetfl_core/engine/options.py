"""What a run may be told: checks of the arguments of `simulate` and its like, and the threads of an operation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from hetfl_core import checks
from hetfl_core.engine import layout
from hetfl_core.engine.sides import check_participation
from hetfl_core.federation import Federation, Spec, blocks
from hetfl_core.methods.base import Method
from hetfl_core.networks import Auto, Blocks
from hetfl_core.rng import SECRET_BYTES

Seeded = tuple[int, Federation, Federation | None]
"""A seed, the data of its run, and, where they are to be looked at as well, those with its validation samples."""


def check_options(
    seed: int, threads: int, progress: bool, on_round: object = None, checkpoint: object = None, **numbers: int
) -> None:
    """Check how `simulate` and `adapt` are told to run; `numbers` are whole ones of at least 1."""
    checks.ints(1, **numbers)
    checks.seed(seed)
    checks.threads("threads", threads)
    checks.flag("progress", progress)
    if on_round is not None and not callable(on_round):
        raise TypeError(f"on_round must be callable, got {checks.shown(on_round)}")
    if checkpoint is not None:
        checks.path("checkpoint", checkpoint)


def with_networks(method: Method, specs: Sequence[Spec]) -> Method:
    """A method whose network goes by the inputs (`Auto`), with one for named blocks, where clients have such.

    Parameters
    ----------
    method : Method
    specs : sequence of Spec

    Returns
    -------
    Method
        With the usual embedding of each block (`Blocks`) and a layer over them, all of the width that `Auto` has; the
        very same method where its network was named, or inputs are no blocks.
    """
    phi = method.model.phi
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in specs:
        held = spec.shapes if isinstance(spec.shapes, Mapping) else {}
        shapes |= {name: shape for name, shape in held.items() if 0 not in shape and name not in shapes}
    if not isinstance(phi, Auto) or not shapes:
        return method
    order = [name for name in specs[0].shapes if name in shapes]
    try:
        extractors = {name: phi.of(shapes[name]) for name in order}
    except ValueError as error:
        raise ValueError(f"blocks {order}: {error}") from error
    return replace(method, model=replace(method.model, phi=Blocks(extractors, phi.out)))


def check_schedule(evaluate_every: int | Sequence[int], rounds: int) -> int | list[int]:
    """Check the rounds between evaluations, or the rounds that are evaluated, which are sorted."""
    if not isinstance(evaluate_every, list | tuple | range):
        return checks.integer("evaluate_every", evaluate_every, 1)
    due = sorted({checks.integer("evaluate_every", n, 1) for n in evaluate_every})
    if not due or due[0] > rounds:
        raise ValueError(
            f"evaluate_every must name a round in 1…{rounds}, or the number of rounds between evaluations, "
            f"got {checks.shown(evaluate_every)}"
        )
    return due


def check_secrets(secrets: Mapping[str, bytes], names: Sequence[str]) -> None:
    """Check the secrets of clients, which must be of this federation; what they are is never shown."""
    for name, secret in checks.mapping("secrets", secrets).items():
        if name not in names:
            raise ValueError(checks.unknown("client in secrets", name, names))
        if not isinstance(secret, bytes) or len(secret) < SECRET_BYTES:
            raise ValueError(f"secrets[{name!r}] must be bytes, at least {SECRET_BYTES} of them; got others")


def check_runs(data: Sequence[Seeded], method: Method, participation: float, dtype: torch.dtype) -> None:
    """Check what runs of one method are made of, which differ in no more than their seeds and data."""
    checks.instance("method", method, Method, such_as="FLIC()")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type such as torch.float64, got {dtype!r}")
    for _, federation, validation in data:
        checks.instance("federation", federation, Federation)
        check_participation(participation, len(federation))
        if validation is not None:
            _check_validation(validation, federation)
    for name in ("task", "n_classes"):
        found = {seed: getattr(federation, name) for seed, federation, _ in data}
        if len(set(found.values())) > 1:
            raise ValueError(f"federation must have the same {name} for every seed, got {found}")


def _check_validation(validation: Federation, federation: Federation) -> None:
    """Refuse validation samples of other clients, or of clients with other training samples."""
    checks.instance("validation", validation, Federation)
    names, expected = [client.name for client in validation], [client.name for client in federation]
    if names != expected or validation.task != federation.task:
        raise ValueError(
            f"validation must have the clients of {federation.name!r}, {checks.shown(expected)}, in the same order and "
            f"for the same task, got {checks.shown(names)}"
        )
    for mine, other in zip(validation, federation, strict=True):
        samples = [[*blocks(client.x_train), client.y_train] for client in (mine, other)]
        alike = mine.features == other.features and len(samples[0]) == len(samples[1])
        if not alike or not all(map(torch.equal, *samples)):
            raise ValueError(f"validation must leave training samples as they are, but those of {mine.name!r} differ")


def warn_of_threads(threads: int, operations: float, device: torch.device) -> None:
    """Warn that several threads make a run slower whose steps are short.

    Parameters
    ----------
    threads : int
        Within one operation on the CPU.
    operations : float
        Of the longest step, in floating-point operations; 0 where that is not known, and nothing is said.
    device : torch.device
        Where the run computes; nothing is said of others than the CPU.
    """
    if threads > 1 and device.type == "cpu" and 0 < operations < layout.LONG:
        warnings.warn(
            f"threads={threads} makes this run slower, on a busy machine many times: one step of its largest stack is "
            f"{operations:.1g} floating-point operations, and threads pay from about {layout.LONG:.0e} on, as with "
            "large images; take threads=1, and workers for more cores",
            RuntimeWarning,
            stacklevel=1 + checks.own_calls(),
        )


@contextmanager
def cpu_threads(number: int) -> Iterator[None]:
    """Let PyTorch use so many threads within one operation on the CPU, for the length of a ``with`` block."""
    checks.threads("threads", number)
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
