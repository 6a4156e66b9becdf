"""What a run may be told: the options of `simulate`, their limits, and the threads of an operation.

Whatever runs something on a federation (`compare`, `tune`, baselines …) takes them as ``**options``, refuses other
names by `hetfl_core.keywords.hinting`, and other values by making `RunOptions`, before anything is computed.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import torch

from hetfl_core import checks
from hetfl_core.engine import layout
from hetfl_core.engine.last_step import LastStep
from hetfl_core.engine.layout import Engine
from hetfl_core.engine.measures import Asked, check_measure
from hetfl_core.engine.sides import check_participation
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.federation import Federation, Spec, blocks
from hetfl_core.methods.base import Method
from hetfl_core.networks import Auto, Blocks
from hetfl_core.rng import SECRET_BYTES

Seeded = tuple[int, Federation, Federation | None]
"""A seed, the data of its run, and, where they are to be looked at as well, those with its validation samples."""


@dataclass(frozen=True)
class RunOptions:
    """What a run may be told beside its data, its method and its seed: each option, its default and its limits.

    Parameters
    ----------
    rounds, participation, evaluate_every, metric, last_step, validation
        What is run and looked at, as for `simulate`.
    engine, device, dtype, stack_size, workers, threads
        What computes it.
    checkpoint, progress, on_round
        What is written, shown and called meanwhile.
    secrets
        By which clients draw the noise that hides them.

    Raises
    ------
    ValueError, TypeError
        Naming the option.
    """

    rounds: int = 50
    participation: float = 1.0
    engine: Engine = "auto"
    device: str | torch.device = "auto"
    dtype: torch.dtype = torch.float32
    checkpoint: str | Path | None = None
    progress: bool = True
    evaluate_every: int | Sequence[int] = 1
    metric: Sequence[Asked] = ()
    last_step: LastStep = "shared"
    validation: Federation | None = None
    stack_size: int | None = None
    workers: int | None = None
    threads: int = 1
    on_round: Callable[..., Any] | None = None
    secrets: Mapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, 1)
        checks.fraction("participation", self.participation)
        checks.choice("engine", self.engine, get_args(Engine))
        choose_device(self.device)
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise WrongValue(f"dtype must be a floating-point type such as torch.float64, got {self.dtype!r}")
        if self.checkpoint is not None:
            checks.path("checkpoint", self.checkpoint)
        checks.flag("progress", self.progress)
        check_schedule(self.evaluate_every, self.rounds)
        checks.sequence("metric", self.metric)
        checks.choice("last_step", self.last_step, get_args(LastStep))
        if self.validation is not None:
            checks.instance("validation", self.validation, Federation)
        if self.stack_size is not None:
            checks.integer("stack_size", self.stack_size, 1)
        if self.workers is not None:
            checks.threads("workers", self.workers)
        checks.threads("threads", self.threads)
        if self.on_round is not None and not callable(self.on_round):
            raise WrongType(f"on_round must be callable, got {checks.shown(self.on_round)}")
        if self.secrets is not None:
            checks.mapping("secrets", self.secrets)

    @classmethod
    def names(cls, *but: str) -> list[str]:
        """The names of all options but these."""
        return [f.name for f in fields(cls) if f.name not in but]

    def check(self, federation: Federation) -> None:
        """Refuse options that do not go with the data of a run.

        Parameters
        ----------
        federation : Federation

        Raises
        ------
        ValueError, TypeError
            For a participation that selects no client, measures that are none of the task, and a `validation` whose
            clients are not those of the federation.
        """
        checks.instance("federation", federation, Federation)
        check_participation(self.participation, len(federation))
        check_measure(self.metric, federation.task)
        if self.secrets is not None:
            check_secrets(self.secrets, [client.name for client in federation])
        if self.validation is not None:
            _check_validation(self.validation, federation)


def choose_device(device: str | torch.device) -> torch.device:
    """``"auto"`` is CUDA where there is one, else the CPU; any other is tried, and refused where it cannot compute."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen, dtype=torch.float32).item()
    except (RuntimeError, AssertionError, TypeError) as error:  # AssertionError: PyTorch was built without CUDA
        raise WrongValue(
            "device must be 'auto', 'cpu', 'cuda' (or 'cuda:1' …) or another on which PyTorch can compute here, "
            f"got {str(device)!r}: {textwrap.shorten(str(error), 120)}"
        ) from error
    return chosen


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
        raise WrongValue(f"blocks {order}: {error}") from error
    return replace(method, model=replace(method.model, phi=Blocks(extractors, phi.out)))


def check_schedule(evaluate_every: int | Sequence[int], rounds: int) -> int | list[int]:
    """Check the rounds between evaluations, or the rounds that are evaluated, which are sorted."""
    if not isinstance(evaluate_every, list | tuple | range):
        return checks.integer("evaluate_every", evaluate_every, 1)
    due = sorted({checks.integer("evaluate_every", n, 1) for n in evaluate_every})
    if not due or due[0] > rounds:
        raise WrongValue(
            f"evaluate_every must name a round in 1…{rounds}, or the number of rounds between evaluations, "
            f"got {checks.shown(evaluate_every)}"
        )
    return due


def check_secrets(secrets: Mapping[str, bytes], names: Sequence[str]) -> None:
    """Check the secrets of clients, which must be of this federation; what they are is never shown."""
    for name, secret in checks.mapping("secrets", secrets).items():
        if name not in names:
            raise WrongValue(checks.unknown("client in secrets", name, names))
        if not isinstance(secret, bytes) or len(secret) < SECRET_BYTES:
            raise WrongValue(f"secrets[{name!r}] must be bytes, at least {SECRET_BYTES} of them; got others")


def check_runs(data: Sequence[Seeded], method: Method, options: RunOptions) -> None:
    """Check what runs of one method are made of, which differ in no more than their seeds and data."""
    checks.instance("method", method, Method, such_as="FLIC()")
    for seed, federation, validation in data:
        checks.seed(seed)
        replace(options, validation=validation).check(federation)
    for name in ("task", "n_classes"):
        found = {seed: getattr(federation, name) for seed, federation, _ in data}
        if len(set(found.values())) > 1:
            raise WrongValue(f"federation must have the same {name} for every seed, got {found}")


def _check_validation(validation: Federation, federation: Federation) -> None:
    """Refuse validation samples of other clients, or of clients with other training samples."""
    names, expected = [client.name for client in validation], [client.name for client in federation]
    if names != expected or validation.task != federation.task:
        raise WrongValue(
            f"validation must have the clients of {federation.name!r}, {checks.shown(expected)}, in the same order and "
            f"for the same task, got {checks.shown(names)}"
        )
    for mine, other in zip(validation, federation, strict=True):
        samples = [[*blocks(client.x_train), client.y_train] for client in (mine, other)]
        alike = mine.features == other.features and len(samples[0]) == len(samples[1])
        if not alike or not all(map(torch.equal, *samples)):
            raise WrongValue(f"validation must leave training samples as they are, but those of {mine.name!r} differ")


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
