"""The processes of a run, each of which works on one stack of clients at a time.

They are begun once a run, as soon as it has so much to do that they pay, and have what the run has: data, networks,
records of steps. Messages are small: what clients keep and were sent goes there, what came out comes back. Which
clients share a stack is decided before (`hetfl_core.engine.layout`), and no bit depends on how many processes there
are, or on which of them does what.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hetfl_core import checks, parallel
from hetfl_core.parallel import Processes, Wire

LEAST = 0.02
"""Seconds that work must take to be shared by a run that was not told."""


def most_processes(workers: int | None, threads: int, device: torch.device) -> int:
    """Processes that a run may use: as many as asked for, or those that pay; one where it may begin none."""
    if device.type != "cpu" or multiprocessing.current_process().daemon:
        return 1
    return parallel.most_processes(threads) if workers is None else workers


class Pool(Processes):
    """Does pieces of work for runs that go on side by side, here or in processes; in a ``with`` block for the latter.

    Parameters
    ----------
    runs : sequence of Trainer
        All that work may be about; in the block each has this as its `pool`. What they hold must not change in it, but
        for their records.
    workers : int, optional
        Processes, as for `simulate`.
    threads : int
        Within an operation.
    """

    def __init__(self, runs: Sequence[Any] = (), workers: int | None = 1, threads: int = 1) -> None:
        super().__init__(list(runs), threads, wire_of)
        self.asked = workers
        self.number = most_processes(workers, threads, runs[0].device) if runs else 1
        self.took: dict[str, float] = {}
        self.begun = time.perf_counter()

    def __enter__(self) -> Pool:
        for run in self.held:
            run.pool = self
        return self

    def __exit__(self, *error: object) -> None:
        for run in self.held:
            del run.pool
        self.close()

    def map(
        self, call: Callable[..., Any], pieces: Sequence[Sequence[Any]], names: Sequence[Sequence[str]]
    ) -> list[Any]:
        """``call(*piece)`` for each piece of work, in their order; `names` are those of each piece's clients.

        Raises
        ------
        RuntimeError
            Where a process ends while it works; with the names of the clients that it worked on.
        """
        found: list[Any] = []
        begin, name = time.perf_counter(), call.__name__
        for piece, who in zip(pieces, names, strict=True):
            left = len(pieces) - len(found)
            each = (time.perf_counter() - begin) / len(found) if found else self.took.get(name, 0.0)
            if self._shares(left, each * left) and self._there_are(min(self.number, left)):
                return [*found, *self._shared(call, pieces[len(found) :], names[len(found) :])]
            found.append(_named(call, piece, who))
            self.took[name] = (time.perf_counter() - begin) / len(found)
        return found

    def _shares(self, left: int, seconds: float) -> bool:
        """Whether so many pieces, which would take so long here, go to processes."""
        if left < 2 or self.number < 2 or self.asked is not None:
            return left > 1 and self.number > 1
        long = time.perf_counter() - self.begun > parallel.PAYS[parallel.start_method(self.threads)]
        return long and seconds > LEAST

    def _there_are(self, number: int) -> bool:
        """Have so many processes; False where they cannot have what the run has."""
        try:
            self.begin(number)
        except Exception as error:
            self.number = 1
            warnings.warn(
                f"the run cannot be sent to other processes ({error}), so that it uses this one alone; workers=1 "
                "asks for that",
                RuntimeWarning,
                stacklevel=1 + checks.own_calls(),
            )
            return False
        return True

    def _shared(self, call: Callable[..., Any], pieces: Sequence[Any], names: Sequence[Sequence[str]]) -> list[Any]:
        found: list[Any] = [None] * len(pieces)
        work = [(call, piece, who) for piece, who in zip(pieces, names, strict=True)]
        for number, result, told in self.shared(_named, work, [checks.clients(who) for who in names]):
            found[number] = result
            parallel.warn(told)
        return found


def wire_of(runs: Sequence[Any]) -> Wire:
    """Messages between runs and their processes, which hold what was computed before as well."""
    return Wire([*runs, *(t for run in runs for made in run.precomputed for t in made.values())])


def _named(call: Callable[..., Any], piece: Sequence[Any], names: Sequence[str]) -> Any:
    """What a call gives; an error says which clients it was about."""
    try:
        return call(*piece)
    except Exception as error:
        error.add_note(f"This was with {checks.clients(names)}.")
        raise


HERE = Pool()
