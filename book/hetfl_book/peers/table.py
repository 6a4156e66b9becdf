"""The report of `hetfl bench --peers`: two libraries in turn, and how far ours is from what the machine could do.

What a run takes is the difference of a run of 1 + R rounds and one of a single round, each after a run that warmed up:
so neither what is compiled or recorded is counted, nor setting up, nor evaluation. Both run as a user has them, on all
cores that they care to use. Ratios are those of neighbouring measurements, FedJAX's time over ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
import torch

from hetfl_book.peers import fedjax_side
from hetfl_book.peers.ours import LEAVES, FedAvgSide
from hetfl_book.peers.problems import BATCH, CASES, CLASSES, EPOCHS, LR, OWN, Case
from hetfl_core.errors import RunError

VERSION = "0.0.17"
PLACE = "HETFL_FEDJAX"
RECIPE = f"""FedJAX is not here; it needs an environment of its own:
    python -m venv .fedjax && .fedjax/bin/pip install fedjax=={VERSION}
and then the same command, here or with {PLACE} naming that environment's python."""
FLOWER = "Flower's simulation needs Ray, which this project does without: not timed."

TIMES = ("wall", "cpu")
TOLERANCE = 1e-5
"""Of parameters after a round."""

REPEATS = 5
"""Measurements of each library for each line."""

OWN_ROUNDS, OWN_CLIENTS, OWN_SAMPLES = 4, 51, 100
"""Rounds that are timed of what only we can do, its clients, and the samples of each."""


class Program:
    """A program that is asked, and answers, in lines of JSON.

    Parameters
    ----------
    *command : str
    """

    def __init__(self, *command: str) -> None:
        self.said = TemporaryFile("w+", encoding="utf8")  # noqa: SIM115  # a pipe that nobody reads would fill
        pipe = subprocess.PIPE
        self.running = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.said, text=True, encoding="utf8")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is not None:
            self.running.kill()
        self.running.communicate()
        self.said.close()

    def ask(self, **what: Any) -> dict[str, Any]:
        """The answer to a question.

        Raises
        ------
        RuntimeError
            Where the program ends instead, with the end of what it said.
        """
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        try:
            print(json.dumps(what), file=self.running.stdin, flush=True)
            line = self.running.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.running.wait()
            self.said.seek(0)
            raise RunError(f"the program {self.running.args!r} ended: {self.said.read().strip()[-2000:]}")
        return json.loads(line)


def ours(**told: Any) -> Program:
    """A program of our side."""
    return Program(sys.executable, "-m", "hetfl_book.peers.ours", json.dumps(told))


def fedjax(python: str, case: Case, folder: Path) -> Program:
    """A program of FedJAX's side, whose problem is written into a folder."""
    x, y = case.made()
    sizes = {"hidden": case.hidden, "classes": CLASSES, "chosen": case.chosen, "epochs": EPOCHS, "batch": BATCH}
    np.savez(folder / "problem.npz", x=x, y=y, lr=LR, **sizes)  # type: ignore[arg-type]
    return Program(python, str(Path(fedjax_side.__file__)), str(folder / "problem.npz"))


def fedjax_python() -> str | None:
    """The Python that has FedJAX: what the variable names, or that of the environment ``.fedjax``; None without."""
    here = Path(".fedjax") / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    found = os.environ.get(PLACE) or str(here)
    return found if Path(found).exists() else None


def rounds(program: Program, count: int, **options: Any) -> dict[str, float]:
    """Seconds of so many rounds, by the clock and of all cores: a run with them less a run of one round."""
    one, more = program.ask(rounds=1, **options), program.ask(rounds=1 + count, **options)
    return {"wall": more["wall"] - one["wall"], "cpu": more["cpu"] - one["cpu"]}


def in_turn(programs: Mapping[str, Program], count: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    """What each program takes for so many rounds, all measured in turn, again and again."""
    for program in programs.values():
        program.ask(rounds=1)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            found[name].append(rounds(program, count))
    return found


def gaps(case: Case, python: str | None) -> dict[str, float]:
    """Largest difference of a parameter, after a round of ten clients, from ours: by hand, and FedJAX's.

    All begin with the same weights and take the same batches.
    """
    small = Case(case.inputs, case.hidden, 10, 1, 10, case.samples)
    side = FedAvgSide(small)
    after = {name: side.run(1).server[leaf] for name, leaf in LEAVES.items()}
    hand = {name: p.mean(0) for name, p in side.by_hand(10).items()}
    found = {"by hand": _largest(after, hand)}
    if python is not None:
        with TemporaryDirectory() as folder, fedjax(python, small, Path(folder)) as program:
            path = Path(folder) / "start.npz"
            np.savez(path, rows=side.batches.transpose(0, 1).flatten(1).numpy(), **side.start)  # type: ignore[arg-type]
            theirs = program.ask(check=str(path))
        found["FedJAX"] = _largest(after, {name: torch.tensor(p) for name, p in theirs.items()})
    return found


def _largest(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    return max((a[name] - b[name]).abs().max().item() for name in a)


def spread(values: Sequence[float]) -> str:
    """Median, and the smallest and largest value."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _line(*cells: str) -> str:
    return f"{cells[0]:<28}" + " ".join(f"{cell:>17}" for cell in cells[1:])


def case_line(case: Case, python: str | None, repeats: int) -> str:
    """A line of the table, measured."""
    with ExitStack() as stack:
        programs = {"ours": stack.enter_context(ours(**vars(case)))}
        if python is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            programs = {"FedJAX": stack.enter_context(fedjax(python, case, folder)), **programs}
        found = in_turn(programs, case.rounds, repeats)
        loop = rounds(programs["ours"], 1, engine="loop")["cpu"] * case.rounds
        hand = programs["ours"].ask(by_hand=case.chosen, times=repeats)["cpu"] * case.rounds
    cells = [" / ".join(f"{median(one[what] for one in each):.2f}" for what in TIMES) for each in found.values()]
    quotients = ["", ""]
    if python is not None:
        quotients = [spread([a[what] / b[what] for a, b in zip(*found.values(), strict=True)]) for what in TIMES]
    cpu = median(one["cpu"] for one in found["ours"])
    cells = ["", *cells] if python is None else cells
    return _line(f"{case.name}, {case.rounds} rounds", *cells, *quotients, f"{loop / cpu:.1f}", f"{cpu / hand:.2f}")


def own_line(name: str, clients: int, samples: int, count: int, repeats: int) -> str:
    """A line of what only we can do, measured."""
    with ours(own=name, clients=clients, samples=samples) as program:
        found = in_turn({"ours": program}, count, repeats)["ours"]
        mb = program.ask(rounds=1)["mb"]
        alone = program.ask(products=count)
    wall, cpu = (median(one[what] for one in found) for what in TIMES)
    floor = [f"{alone['flops'] / 1e9:.2f}", f"{alone['bytes'] / 1e9:.2f}", f"{alone['seconds']:.2f}"]
    return _line(name, f"{wall:.2f} / {cpu:.2f}", *floor, f"{cpu / alone['seconds']:.1f}", f"{mb:.0f}")


def report(
    cases: Sequence[Case] = CASES,
    own: tuple[int, int, int] = (OWN_CLIENTS, OWN_SAMPLES, OWN_ROUNDS),
    repeats: int = REPEATS,
) -> Iterator[str]:
    """Measure, and describe line by line.

    Parameters
    ----------
    cases : sequence of Case
        Lines of the first table.
    own : tuple of int
        Clients, samples of each and rounds of the second table.
    repeats : int
        Measurements of each library for each line.

    Yields
    ------
    str
        A line of the report.

    Raises
    ------
    RuntimeError
        Where a library computes something else than ours, beyond rounding, or its program fails.
    """
    python = fedjax_python()
    if python is None:
        yield RECIPE
    yield FLOWER
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    yield f"\nPyTorch {torch.__version__}, {os.cpu_count()} cores{load}; medians of {repeats} in turn, spread."
    yield "FedAvg, one hidden layer with ReLU, plain SGD. Seconds by the clock / CPU seconds of all cores, without"
    yield "setting up, compiling and evaluation. Then FedJAX's time over ours. By CPU: our loop's time over ours, and"
    yield "ours over that of the same step written by hand, in eleven calls of PyTorch."
    columns = "FedJAX s", "ours s", "by the clock", "by CPU", "loop : ours", "ours : by hand"
    yield _line("inputs-hidden, clients", *columns)
    for case in cases:
        for who, gap in gaps(case, python).items():
            if not gap < TOLERANCE:
                found = f"{case.name}: a round of ours and {who} must agree to {TOLERANCE}"
                raise RunError(f"{found}, but they differ by {gap:.1e}")
        yield case_line(case, python, repeats)
    clients, samples, count = own
    yield f"\nWhat only we can do: {clients} clients of {samples} samples, all in each of {count} rounds. The floor is"
    yield "what products and decompositions take alone, each by itself on tensors of its shapes; they read and write so"
    yield "many GB."
    yield _line("", "ours s", "GFLOP", "GB", "floor s", "CPU : floor", "peak MB")
    for name in OWN:
        yield own_line(name, clients, samples, count, repeats)
