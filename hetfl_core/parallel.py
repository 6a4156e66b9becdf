"""Calls that do not depend on each other, in processes where that is faster."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import joblib
from joblib.externals.loky import get_reusable_executor

R = TypeVar("R")

WORTH = 20.0
"""Seconds that the rest must take for processes to be begun: each loads PyTorch anew."""


def usable_cores() -> int:
    """The cores that this process may use, by its affinity and by what a container is given; at least 1."""
    return int(joblib.cpu_count())


def in_order(call: Callable[..., R], pieces: Sequence[tuple[Any, ...]], n_jobs: int | None = None) -> Iterator[R]:
    """``call(*piece)`` for each piece, in their order.

    Parameters
    ----------
    call : callable
        What it gives, and its errors and warnings, must not depend on the process in which it is called. What several
        calls in other processes say alike is said once.
    pieces : sequence of tuple
        Its arguments.
    n_jobs : int, optional
        Processes, as in scikit-learn: 1 is this one alone, -1 as many as there are cores. By default this one at first,
        and a process a core as soon as the rest would take more than `WORTH` seconds (in this one where what is called
        cannot be sent to another).

    Yields
    ------
    object
        What each call gives, as soon as those before it are there.
    """
    begin, done = time.perf_counter(), 0
    if n_jobs is None:
        for piece in pieces:
            left = len(pieces) - done
            if done and left > 1 and (time.perf_counter() - begin) / done * left > WORTH:
                break
            yield call(*piece)
            done += 1
        try:
            for result in _in_processes(call, pieces[done:], usable_cores()):
                yield result
                done += 1
        except pickle.PicklingError:  # such as a function that holds a file
            n_jobs = 1
    yield from _in_processes(call, pieces[done:], 1 if n_jobs is None else n_jobs)


def _in_processes(call: Callable[..., R], pieces: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[R]:
    if jobs == 1 or len(pieces) < 2:
        for piece in pieces:
            yield call(*piece)
        return
    get_reusable_executor().shutdown()  # processes that are left of before have imported what has changed since
    with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
        pool = joblib.Parallel(return_as="generator")
    try:
        said = set[tuple[type[Warning], str]]()
        for result, told in pool(joblib.delayed(_noting)(call, piece) for piece in pieces):
            for category, text in dict.fromkeys(told):
                if (category, text) not in said:
                    warnings.warn(text, category, stacklevel=3)
            said.update(told)
            yield result
    finally:
        get_reusable_executor().shutdown()


def _noting(call: Callable[..., R], piece: tuple[Any, ...]) -> tuple[R, list[tuple[type[Warning], str]]]:
    """What a call gives, and its warnings, which nobody would see here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*piece)
    return result, [(one.category, str(one.message)) for one in caught]
