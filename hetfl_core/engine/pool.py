"""The processes of a run: copies of it, each of which works on one stack of clients at a time, on a core of its own.

They are made once a run, as soon as it has so much to do that they pay, and have what the run has: data, networks,
records of steps. Where that is safe they are forks of this process; else they are begun anew and sent the run once.
So messages are small: what clients keep and were sent goes there, what came out comes back, each tensor with its
strides. Which clients share a stack is decided before (`hetfl_core.engine.layout`), and no bit depends on how many
processes there are, or on which of them does what.
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
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.parallel import usable_cores

PAYS = {"fork": 2.0, "loky": 20.0}
"""Seconds after which a run that was not told how many processes to use begins some: much longer than that takes."""

LEAST = 0.02
"""Seconds that work must take to be shared by a run that was not told."""

Told = list[tuple[type[Warning], str]]


def start_method(threads: int = 1) -> str:
    """How processes are begun: ``"fork"`` where it is safe, else ``"loky"``, which imports no user's main module.

    A fork has none of the threads of this process: not those of a device's driver, nor those within an operation. On
    macOS the system's own libraries do not bear it.
    """
    safe = sys.platform == "linux" and threads == 1 and not torch.accelerator.is_available()
    return "fork" if safe else "loky"


def most_processes(workers: int | None, threads: int, device: torch.device) -> int:
    """Processes that a run may use: as many as asked for, or one a core; one where it is itself one of several."""
    if device.type != "cpu" or multiprocessing.current_process().daemon:
        return 1
    if workers is not None:
        return workers
    among_several = multiprocessing.parent_process() is not None or "PYTEST_XDIST_WORKER" in os.environ
    return 1 if among_several else max(1, usable_cores() // threads)


class Pool:
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
        self.runs, self.asked, self.threads = runs, workers, threads
        self.number = most_processes(workers, threads, runs[0].device) if runs else 1
        self.processes: dict[Connection, Any] = {}
        self.wire = Wire(runs)
        self.took: dict[str, float] = {}
        self.begun = time.perf_counter()

    def __enter__(self) -> Pool:
        for run in self.runs:
            run.pool = self
        return self

    def __exit__(self, *error: object) -> None:
        for run in self.runs:
            del run.pool
        self.close()

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for end, process in self.processes.items():
            process.terminate()
            process.join()
            end.close()
        self.processes = {}

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
            if self._shares(left, each * left) and self._begin(min(self.number, left)):
                return [*found, *self._shared(call, pieces[len(found) :], names[len(found) :])]
            with _about(who):
                found.append(call(*piece))
            self.took[name] = (time.perf_counter() - begin) / len(found)
        return found

    def _shares(self, left: int, seconds: float) -> bool:
        """Whether so many pieces, which would take so long here, go to processes."""
        if left < 2 or self.number < 2 or self.asked is not None:
            return left > 1 and self.number > 1
        long = time.perf_counter() - self.begun > PAYS[start_method(self.threads)]
        return long and seconds > LEAST

    def _begin(self, number: int) -> bool:
        """Have so many processes; False where they cannot have what the run has."""
        method = start_method(self.threads)
        if len(self.processes) >= number:
            return True
        if method == "fork":
            context, sent = multiprocessing.get_context("fork"), None
        else:
            from joblib.externals.loky.backend import get_context, reduction  # on demand, as they take long

            try:
                context, sent = get_context("loky"), reduction.dumps(list(self.runs), {Tensor: _in_parts}, 5)
            except Exception as error:
                self.number = 1
                warnings.warn(
                    f"the run cannot be sent to other processes ({error}), so that it uses this one alone; workers=1 "
                    "asks for that",
                    RuntimeWarning,
                    stacklevel=1 + checks.own_calls(),
                )
                return False
        for _ in range(number - len(self.processes)):
            mine, theirs = multiprocessing.Pipe()
            forked = (self.runs, [*self.processes, mine]) if sent is None else ()
            process = context.Process(target=_serve, args=(theirs, self.threads, *forked), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads at a fork, which none of ours minds
                process.start()
            self.processes[mine] = process
            theirs.close()
            if sent is not None:
                mine.send_bytes(sent)
        return True

    def _shared(self, call: Callable[..., Any], pieces: Sequence[Any], names: Sequence[Sequence[str]]) -> list[Any]:
        """`map` by the processes: each is given a piece as soon as it has sent what the last one gave."""
        found: list[Any] = [None] * len(pieces)
        waiting, at = deque(range(len(pieces))), dict[Connection, int]()
        free = list(self.processes)
        try:
            while waiting or at:
                while waiting and free:
                    end, number = free.pop(), waiting.popleft()
                    at[end] = number
                    message = self.wire.dumps((call, pieces[number], names[number]))
                    with self._there(end, names[number]):
                        end.send_bytes(message)
                for end in wait(list(at)):  # type: ignore[assignment]
                    with self._there(end, names[at[end]]):
                        data = end.recv_bytes()
                    result, error, told = self.wire.loads(data)
                    for category, text in told:
                        warnings.warn(text, category, stacklevel=1 + checks.own_calls())
                    if error is not None:
                        raise error
                    found[at.pop(end)] = result
                    free.append(end)
        except BaseException:
            self.close()
            raise
        return found

    @contextmanager
    def _there(self, end: Connection, names: Sequence[str]) -> Iterator[None]:
        """Say whose process it was, if one is not there any more."""
        try:
            yield
        except (EOFError, ConnectionError) as gone:
            process = self.processes[end]
            process.join(10)
            raise RuntimeError(
                f"the process that worked on {checks.clients(names)} ended with exit code {process.exitcode}: it "
                "was killed, as happens where memory runs out, or something in it crashed; workers=1 does all in this "
                "process"
            ) from gone


@contextmanager
def _about(names: Sequence[str]) -> Iterator[None]:
    """Have an error say which clients it was about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"This was with {checks.clients(names)}.")
        raise


# --- in a process ---------------------------------------------------------------------------------------------------


def _serve(end: Connection, threads: int, runs: Sequence[Any] | None = None, others: Sequence[Connection] = ()) -> None:
    """Do what is asked for until the other end is closed, or gone; a fork has the `others`, too, and closes them."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(threads)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(end, inbox), daemon=True).start()
    wire = Wire(pickle.loads(inbox.get()) if runs is None else runs)
    while True:
        call, piece, names = wire.loads(inbox.get())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result, error = _tried(call, piece, names)
        told: Told = [(one.category, str(one.message)) for one in caught]
        sys.stdout.flush()
        end.send_bytes(wire.dumps((result, error, told)))


def _read(end: Connection, inbox: SimpleQueue[bytes]) -> None:
    """Take what comes, also while something is computed: when nobody is there any more, this process ends."""
    try:
        while True:
            inbox.put(end.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _tried(call: Callable[..., Any], piece: Sequence[Any], names: Sequence[str]) -> tuple[Any, Exception | None]:
    """What a call gives, or its error, with where it was raised in this process."""
    try:
        with _about(names):
            return call(*piece), None
    except Exception as error:
        where = f"In a process of the run:\n\n{''.join(traceback.format_exception(error))}"
        try:
            error = pickle.loads(pickle.dumps(error))
        except Exception:  # of a class that is not known there, or is made of other arguments
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(where)
        return None, error


# --- messages -------------------------------------------------------------------------------------------------------


class Wire:
    """Messages between a run and its processes, which both hold it: of that only the number is sent.

    Parameters
    ----------
    runs : sequence of Trainer
    """

    def __init__(self, runs: Sequence[Any]) -> None:
        self.held = [*runs, *(t for run in runs for made in run.precomputed for t in made.values())]
        self.numbers = {id(thing): number for number, thing in enumerate(self.held)}

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


HERE = Pool()
"""Does everything in this process."""
