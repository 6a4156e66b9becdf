"""Processes, each of which does one piece of work at a time, on a core of its own.

Where that is safe they are forks of this process, which have what it has; else they are begun anew and sent that once.
So messages are small: what is held on both sides is only named, tensors come with their strides.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from hetfl_core import checks
from hetfl_core.errors import RunError, WrongType
from hetfl_core.numerics import usable_cores

R = TypeVar("R")

PAYS = {"fork": 2.0, "loky": 20.0}
"""Seconds of work that pay for processes where nobody said how many: new ones load PyTorch anew, forks load nothing."""

Told = list[tuple[type[Warning], str]]


def start_method(threads: int = 1) -> str:
    """How processes are begun: ``"fork"`` where it is safe, else ``"loky"``, which imports no user's main module.

    A fork has none of the threads of this process: not those of a device's driver, nor those within an operation. On
    macOS the system's own libraries do not bear it.
    """
    safe = sys.platform == "linux" and threads == 1 and not torch.accelerator.is_available()
    return "fork" if safe else "loky"


def most_processes(threads: int = 1) -> int:
    """Processes that pay: one a core, and one alone where this is itself one of several."""
    among_several = multiprocessing.parent_process() is not None or "PYTEST_XDIST_WORKER" in os.environ
    return 1 if among_several else max(1, usable_cores() // threads)


# --- calls that do not depend on each other -------------------------------------------------------------------------


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
        and a process a core as soon as the rest would take longer than processes take to begin (`PAYS`; in this one
        where what is called cannot be sent to another).

    Yields
    ------
    object
        What each call gives, as soon as those before it are there.
    """
    begin, done = time.perf_counter(), 0
    if n_jobs is None:
        for piece in pieces:
            left = len(pieces) - done
            if done and left > 1 and (time.perf_counter() - begin) / done * left > PAYS[start_method()]:
                break
            yield call(*piece)
            done += 1
    rest = pieces[done:]
    jobs = usable_cores() + 1 + n_jobs if n_jobs and n_jobs < 0 else n_jobs or most_processes()
    jobs = 1 if multiprocessing.current_process().daemon else jobs  # which may have no children
    processes = Processes([call, *rest])
    try:
        if (jobs := min(jobs, len(rest))) > 1:
            with suppress(pickle.PicklingError) if n_jobs is None else nullcontext():  # of a function that holds a file
                processes.begin(jobs)
        if processes.running:
            work = [(call, piece) for piece in rest]
            yield from _sorted(
                processes.shared(_on_one_thread, work, [f"call {done + i + 1}" for i in range(len(rest))])
            )
        else:
            yield from (call(*piece) for piece in rest)
    finally:
        processes.close()


def _on_one_thread(call: Callable[..., R], piece: tuple[Any, ...]) -> R:
    """What a call gives, in a process whose libraries leave the other cores to others."""
    _limit()
    return call(*piece)


@cache
def _limit() -> None:
    threadpool_limits(1)


def _sorted(found: Iterator[tuple[int, Any, Told]]) -> Iterator[Any]:
    """Results in their order, and what was told of them, once."""
    early: dict[int, tuple[Any, Told]] = {}
    said, at = set[tuple[type[Warning], str]](), 0
    for number, result, told in found:
        early[number] = result, told
        while at in early:
            result, told = early.pop(at)
            warn([one for one in dict.fromkeys(told) if one not in said])
            said.update(told)
            yield result
            at += 1


# --- processes ------------------------------------------------------------------------------------------------------


class Processes:
    """Processes that do what is asked of them until they are ended, or nobody is there any more.

    Parameters
    ----------
    held : object
        What they have from the start. Forks must find it unchanged.
    threads : int
        Within an operation.
    wire : callable
        Makes of `held`, here and there, what turns messages into bytes.
    """

    def __init__(self, held: Any, threads: int = 1, wire: Callable[[Any], Wire] | None = None) -> None:
        self.held, self.threads, self.wired = held, threads, wire or Wire
        self.wire = self.wired(held)
        self.running: dict[Connection, Any] = {}

    def begin(self, number: int) -> None:
        """Have so many; an error of pickling where they cannot be sent what they are to have."""
        if len(self.running) >= number:
            return
        if start_method(self.threads) == "fork":
            context, sent = multiprocessing.get_context("fork"), None
        else:
            from joblib.externals.loky.backend import get_context, reduction  # on demand, as they take long

            context, sent = get_context("loky"), reduction.dumps(self.held, {Tensor: _in_parts}, 5)
        for _ in range(number - len(self.running)):
            mine, theirs = multiprocessing.Pipe()
            given = ([*self.running, mine], self.wire) if sent is None else ((), self.wired)
            process = context.Process(target=_serve, args=(theirs, self.threads, *given), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads at a fork, which none of ours minds
                process.start()
            self.running[mine] = process
            theirs.close()
            if sent is not None:
                mine.send_bytes(sent)

    def close(self) -> None:
        """End them, whatever they are at."""
        for end, process in self.running.items():
            process.terminate()
            process.join()
            end.close()
        self.running = {}

    def shared(
        self, call: Callable[..., Any], pieces: Sequence[Any], about: Sequence[str]
    ) -> Iterator[tuple[int, Any, Told]]:
        """``call(*piece)`` for each piece, which goes to whoever is free; what comes out, as soon as it is there.

        Yields
        ------
        number, result, told
            Of a piece; with the warnings that its call gave.

        Raises
        ------
        RuntimeError
            Where a process ends while it works; with what the piece is about.
        """
        waiting, at = deque(range(len(pieces))), dict[Connection, int]()
        free = list(self.running)
        try:
            while waiting or at:
                while waiting and free:
                    end, number = free.pop(), waiting.popleft()
                    at[end] = number
                    message = self.wire.dumps((call, pieces[number]))
                    with self._there(end, about[number]):
                        end.send_bytes(message)
                for end in wait(list(at)):  # type: ignore[assignment]
                    with self._there(end, about[at[end]]):
                        data = end.recv_bytes()
                    result, error, told = self.wire.loads(data)
                    if error is not None:
                        warn(told)
                        raise error
                    free.append(end)
                    yield at.pop(end), result, told
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _there(self, end: Connection, about: str) -> Iterator[None]:
        """Say what a process worked on, if it is not there any more."""
        try:
            yield
        except (EOFError, ConnectionError) as gone:
            process = self.running[end]
            process.join(10)
            raise RunError(
                f"the process that worked on {about} ended with exit code {process.exitcode}: it was killed, as "
                "happens where memory runs out, or something in it crashed; with one process all is done in this one"
            ) from gone


def warn(told: Told) -> None:
    """Warn here of what was told there."""
    for category, text in told:
        warnings.warn(text, category, stacklevel=1 + checks.own_calls())


# --- in a process ---------------------------------------------------------------------------------------------------


def _serve(end: Connection, threads: int, others: Sequence[Connection], wire: Any) -> None:
    """Do what is asked for until the other end is closed, or gone; a fork has the `others`, too, and closes them."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(threads)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(end, inbox), daemon=True).start()
    if not isinstance(wire, Wire):
        wire = wire(pickle.loads(inbox.get()))
    while True:
        call, piece = wire.loads(inbox.get())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result, error = _tried(call, piece)
        told: Told = [(one.category, str(one.message)) for one in caught]
        sys.stdout.flush()
        try:
            answer = wire.dumps((result, error, told))
        except Exception as why:
            answer = wire.dumps((None, WrongType(f"a result cannot be sent to another process: {why}"), told))
        end.send_bytes(answer)


def _read(end: Connection, inbox: SimpleQueue[bytes]) -> None:
    """Take what comes, also while something is computed: when nobody is there any more, this process ends."""
    try:
        while True:
            inbox.put(end.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _tried(call: Callable[..., Any], piece: Sequence[Any]) -> tuple[Any, Exception | None]:
    """What a call gives, or its error, with where it was raised in this process."""
    try:
        return call(*piece), None
    except Exception as error:
        where = f"In another process:\n\n{''.join(traceback.format_exception(error))}"
        try:
            error = pickle.loads(pickle.dumps(error))
        except Exception:  # of a class that is not known there, or is made of other arguments
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(where)
        return None, error


# --- messages -------------------------------------------------------------------------------------------------------


class Wire:
    """Messages between processes that both hold the same: of that only the number is sent.

    Parameters
    ----------
    held : sequence
    """

    def __init__(self, held: Sequence[Any]) -> None:
        self.held = held
        self.numbers = {id(thing): number for number, thing in enumerate(held)}

    def dumps(self, message: Any) -> bytes:
        """A message as it is sent."""
        file = io.BytesIO()
        _Pickler(file, self.numbers).dump(message)
        return file.getvalue()

    def loads(self, data: bytes) -> Any:
        """A message that came."""
        return _Unpickler(io.BytesIO(data), self.held).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: dict[int, int]) -> None:
        super().__init__(file, 5)
        self.numbers = numbers

    def persistent_id(self, thing: Any) -> int | None:
        return self.numbers.get(id(thing))

    def reducer_override(self, thing: Any) -> Any:
        return _in_parts(thing) if type(thing) is Tensor and thing.layout is torch.strided else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, held: Sequence[Any]) -> None:
        super().__init__(file)
        self.held = held

    def persistent_load(self, number: int) -> Any:
        return self.held[number]


def _in_parts(t: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """What makes a tensor again, and of what: the bytes that it spans, and how it lies in them."""
    first, steps = t.storage_offset(), zip(t.shape, t.stride(), strict=True)
    span = 1 + sum((n - 1) * step for n, step in steps) if t.numel() else 0
    flat = t.detach().as_strided((span,), (1,), first).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(flat.data), t.dtype, tuple(t.shape), t.stride(), first % 64)


def _tensor(data: bytearray, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], first: int) -> Tensor:
    """A tensor with strides and alignment as it had there, which can decide in what order a product adds up."""
    flat = torch.empty(first + len(data) // dtype.itemsize, dtype=dtype)
    if data:
        flat[first:] = torch.frombuffer(data, dtype=dtype)
    return flat.as_strided(shape, stride, first)
