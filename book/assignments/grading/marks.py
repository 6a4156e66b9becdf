"""The process of the checks: calls the functions of a hand-in, compares what they return, gives the marks."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import re
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Container
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from grading import confine, files, hints, place, signs, wire

TOO_LONG = "stopped after {:g} seconds"
ENDLESS = "does a loop never end?"

MAX_ERRORS = 20
"""Cells with an error, and things that were stopped, which are named."""

MAX_PROCESSES = 100
"""Processes of one hand-in at a time."""

MOST_TIMES = 3
"""How many times its time a submission may take in all, when much of it has to be stopped."""

LEAST_SHARE = 1 / 6
"""Share of the time of a cell or check that is left to the later ones once several have been stopped."""

LEAST_GRACE = 3.0
"""Least seconds for ending what has been interrupted, after which its process is killed."""

ALSO_WATCHED = ("builtins", "numpy.linalg", "numpy.testing", "torch.linalg", "torch.testing", "math")
"""Modules in which a hand-in has nothing to replace, besides those that the checks import."""


@dataclass
class Grade:
    """What a submission got.

    Attributes
    ----------
    submission : str
        Path of the file, relative to the folder of submissions.
    marks : dict of str to float
        Marks of each question.
    message : str
        Why there are no marks, or what was stopped; empty where all went well.
    feedback : str
        Hints of the visible checks, and how many hidden ones failed; empty where there are no marks.
    flags : list of str
        Signs of tampering that were seen while it ran, for a human to look at.
    unusual : list of str
        What its source has that few hand-ins have, mostly for honest reasons.
    same_as : str
        The first submission of which this one is a copy, byte by byte.
    """

    submission: str
    marks: dict[str, float] = field(default_factory=dict)
    message: str = ""
    feedback: str = ""
    flags: list[str] = field(default_factory=list)
    unusual: list[str] = field(default_factory=list)
    same_as: str = ""

    @property
    def total(self) -> float:
        """Sum of the marks."""
        return sum(self.marks.values())


@dataclass(frozen=True)
class Plan:
    """How a class is graded.

    Attributes
    ----------
    tests : dict of str to str
        Source of the checks of each question, read once.
    timeout : float
        Seconds that a submission may take, without those of what is stopped.
    step : float
        Seconds that a cell may take, or a check.
    bounds : Bounds
        What its process may use.
    assignment : str
        Name of the assignment; empty where the autograder does not say it.
    """

    tests: dict[str, str]
    timeout: float
    step: float
    bounds: confine.Bounds
    assignment: str = ""

    @property
    def grace(self) -> float:
        """Seconds for ending what has been interrupted."""
        return max(LEAST_GRACE, LEAST_SHARE * self.step)

    @property
    def longest(self) -> float:
        """Seconds after which a submission is given up, whatever was stopped."""
        return MOST_TIMES * self.timeout


@dataclass(frozen=True)
class Task:
    """One submission to be graded, with the fingerprint that it had when grading began."""

    path: Path
    name: str
    digest: str


# --- the checks -------------------------------------------------------------------------------------------------


def read_tests(autograder: Path) -> dict[str, str]:
    """Sources of the checks in an ``autograder.zip``, by question.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        with zipfile.ZipFile(autograder) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith("tests/") and n.endswith(".py"))
            found = {Path(name).stem: archive.read(name).decode("utf8") for name in names}
        for question, source in found.items():
            compile(source, f"{question}.py", "exec")
    except Exception as error:  # each way of packing has its own errors
        raise ValueError(f"{autograder} is no autograder.zip as generate.py makes it: {error}") from error
    if not found:
        raise ValueError(f"{autograder} is no autograder.zip as generate.py makes it: it has no tests/*.py")
    return found


def assignment_of(autograder: Path) -> str:
    """Name of the assignment that an ``autograder.zip`` is of; empty where it does not say."""
    with contextlib.suppress(KeyError), zipfile.ZipFile(autograder) as archive:
        return archive.read(files.NAME_IN_AUTOGRADER).decode("utf8").strip()
    return ""


def test_file(question: str, source: str) -> Any:
    """The checks of a question, ready to run."""
    from otter.test_files.exception_test import ExceptionTestFile

    return ExceptionTestFile.from_string(source, path=f"{question}.py")


def possible_marks(tests: dict[str, str]) -> dict[str, float]:
    """Marks that each question can give."""
    read = [test_file(question, source) for question, source in tests.items()]
    return {test.name: test.possible for test in read}


def feedback(test: Any, missing: Container[str] = ()) -> str:
    """What a student is told about a question: the hints of visible checks, the number of hidden ones that failed.

    A check that calls what the notebook does not define (`missing`) says so, and not what became of that.
    """
    lines = [f"{test.name}: {test.score:g} of {test.possible:g}"]
    failed = [r for r in test.test_case_results if not r.passed]
    for result in failed:
        if result.test_case.hidden:
            continue
        lacks = [name for name in parameters(result.test_case) if name in missing]
        hint = ((result.message or "").strip().splitlines() or [""])[-1].removeprefix("AssertionError: ")
        lines += [f"  {name} is not defined in your notebook" for name in lacks] or ["  " + hint]
    hidden = [r for r in failed if r.test_case.hidden]
    stopped = [r.message for r in hidden if ENDLESS in (r.message or "")]
    lines += [f"  {len(hidden)} hidden check{'s' if len(hidden) > 1 else ''} failed"] if hidden else []
    lines += [f"  a hidden check was {stopped[0]}"] if stopped else []
    return "\n".join(lines)


def parameters(case: Any) -> list[str]:
    """The names of the notebook that a check asks for."""
    return [name for name in inspect.signature(case.body.test_func).parameters if name != "env"]


def modules_of(tests: dict[str, str]) -> list[str]:
    """Modules that the checks import."""
    found: dict[str, None] = {}
    for source in tests.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= dict.fromkeys(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found[node.module] = None
    return [name for name in found if name.split(".")[0] not in ("otter", "sys", "unittest", "types")]


@dataclass
class Record:
    """What a hand-in has reached, and what of it has been stopped, over all the processes that have run it.

    Attributes
    ----------
    plan : Plan
        With the time that it may take.
    done : dict of str to test
        Checks of each question, as they ended last.
    missing : dict of str to set of str
        What the checks of each question ask for and the notebook does not define.
    errors : dict of int to str
        How cells ended that had an error, for the student.
    ended : dict of place to list of str
        How the process ended in a cell or check; on the next way through, that one is left out.
    stopped : dict of str to str
        Cells and questions that were stopped or have ended the process, and how at first.
    """

    plan: Plan
    done: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, set[str]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    ended: dict[tuple, list[str]] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    lost: float = 0.0
    n_stops: int = 0

    def step(self) -> float:
        """Seconds for the next cell or check: half as long after each that was stopped, but not too short."""
        return self.plan.step * max(0.5**self.n_stops, LEAST_SHARE)

    def stop(self, name: str, said: str, seconds: float, slow: bool = True) -> None:
        """Note that a cell or check was stopped, or has ended the process; and whether it took all its time."""
        self.n_stops += slow
        self.lost += seconds
        self.stopped.setdefault(name, f"{name} was {said}" if said.startswith("stopped") else f"{name} {said}")

    def over(self, busy: float = 0.0) -> str:
        """Why the hand-in may not go on; empty where it may. The seconds of a cell or check that is at work do not count."""
        passed = time.monotonic() - self.began
        if passed - self.lost - busy <= self.plan.timeout and passed <= self.plan.longest:
            return ""
        return f"stopped after {self.plan.timeout:g} seconds: does a loop never end?"


class Stuck(BaseException):
    """A hand-in does not answer, though its time is up."""


class Checks(wire.TrustedPeer):
    """The end of the line in the process of the checks.

    Parameters
    ----------
    connection : Connection
        To the process of a hand-in.
    record : Record
        What is known of the hand-in.
    cells : dict of int to str
        Sources of its cells.
    """

    def __init__(self, connection: Connection, record: Record, cells: dict[int, str]) -> None:
        super().__init__(connection, trusting=False)
        self.record, self.tests, self.cells = record, record.plan.tests, cells
        self.checked: set[str] = set()
        self.own_hint = ""
        self.cell, self.place = 0, ("start",)
        self.start_clock()
        self.finished, self.replaced = False, []
        self.case, self.busy = 0, False
        self.variables: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self.libraries = [sys.modules[name] for name in modules_of(self.tests) if name in sys.modules]
        self.nothing = self._nothing()

    # --- time ----------------------------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """Give what comes next the time of a cell or check."""
        self.limit = self.left = self.record.step()
        self.since = time.monotonic()

    @contextlib.contextmanager
    def at(self, *place: Any) -> Any:
        """Give a part of the hand-in its own time, in which that of what is around it stands still."""
        around = self.place, self.limit, self.left, self.since
        self.place = place
        self.start_clock()
        yield
        passed = time.monotonic() - self.since
        self.place, self.limit, self.left, self.since = *around[:3], around[3] + passed

    def receive(self) -> dict[str, Any]:
        """The next message.

        Raises
        ------
        Stuck
            If it does not come in time.
        """
        began = time.monotonic()
        try:
            there = self.connection.poll(max(self.left, 0) + self.record.plan.grace)
        except OSError as error:
            raise wire.Gone(str(error)) from error
        if not there:
            raise Stuck
        message = super().receive()
        self.left -= time.monotonic() - began
        return message

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, with the seconds that are left for it."""
        return super().ask(request | {"seconds": max(self.left, 0.01)})

    def where(self) -> str:
        """What was going on when the hand-in was stopped."""
        if self.place[0] == "case":
            return f"while {self.place[2]} was checked"
        return f"in {hints.name_of_cell(self.cell, self.cells)}" if self.place[0] == "cell" else ""

    # --- errors --------------------------------------------------------------------------------------------------

    def report(self, error: BaseException) -> list[Any]:
        """What the hand-in is told of an error in a function that was lent to it; the check's own words are kept."""
        if isinstance(error, Exception) and self.place[0] == "case":
            self.own_hint = hints.of_failure(error, self.place[2], self.tests[self.place[2]])
        return super().report(error)

    def raise_error(self, reply: dict[str, Any]) -> None:
        """Raise the error that the hand-in has reported, with what the student is told of it and nothing else."""
        if "error" not in reply:
            return
        told = reply["error"]
        error, hint = hints.of_error(told, self.cells)
        if told[-1] is True:
            hint = self._stopped(self.place[2])
        elif self.own_hint and type(error).__name__ == "AssertionError":
            hint = self.own_hint
        error.hint = hint
        raise error

    def _stopped(self, what: str) -> str:
        """Note that a cell or check was stopped, and say so."""
        said = TOO_LONG.format(round(self.limit, 1))
        self.record.stop(what, said, time.monotonic() - self.since)
        return f"{said}: {ENDLESS}"

    # --- requests ------------------------------------------------------------------------------------------------

    def do_check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run the checks of a question; the last run of each counts, as with ``otter run``."""
        question = message["question"]
        if question not in self.tests:
            raise FileNotFoundError(f"Test {str(question)[:50]} does not exist")
        self._check([question], message)
        return {"value": None}

    def do_check_all(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run all checks."""
        self._check(list(self.tests), message)
        return {"value": None}

    def do_cell(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say how the next cell is run: whole, or less of it where it has ended its process before."""
        number = message["number"]
        if number not in self.cells or number <= self.cell:
            raise wire.ProtocolError("expected the number of the next cell")
        self.cell, self.place = number, ("cell", number)
        self.start_clock()
        times = len(self.record.ended.get(self.place, []))
        return {"run": ("all", "definitions", "nothing")[min(times, 2)], "seconds": self.left}

    def do_ran(self, message: dict[str, Any]) -> dict[str, Any]:
        """Note how a cell has ended."""
        told, name = message["error"], hints.name_of_cell(self.cell, self.cells)
        if self.place in self.record.ended:
            pass  # that is what the student should know of
        elif told is not None and told[-1] is True:
            self.record.errors[self.cell] = f"{name}: {self._stopped(name)}"
        elif told is not None:
            self.record.errors[self.cell] = hints.of_cell(told, self.cell, self.cells)
        elif message["asked to end"] is True:
            self.record.errors[self.cell] = f"{name}: asks for the end of the notebook; the cells after it were run"
        self.place = ("between", self.cell)
        self.start_clock()
        return {"value": None}

    def do_finish(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run the checks that have not been run yet."""
        self.place, self.cell = ("end",), max(self.cells) + 1
        self.start_clock()
        self._check([question for question in self.tests if question not in self.checked], message)
        known = {f"{m.__name__}.{n}" for m in map(sys.modules.get, watched_by(self.tests)) if m for n in vars(m)}
        self.replaced = [name for name in message.get("replaced", [])[:20] if name in known]
        self.finished = True
        return {"value": None}

    # --- checks --------------------------------------------------------------------------------------------------

    def _check(self, questions: list[str], message: dict[str, Any]) -> None:
        if self.busy:
            raise RuntimeError("a check cannot run within a check")
        self.busy = True
        try:
            for question in questions:
                self._run(question, message)
        finally:
            self.busy = False

    def _run(self, question: str, message: dict[str, Any]) -> None:
        self.case += 1
        self.variables = self.decode({"dict": list(map(list, dict(message["variables"]).items()))}, wire.Letter())
        self.before = dict(self.variables)
        test = test_file(question, self.tests[question])
        test.test_case_results = []
        missing = {n for case in test.test_cases for n in parameters(case)} - set(self.variables)
        with precision(message.get("dtype")):
            for number, case in enumerate(test.test_cases):
                failure = self._failure_of(case, question, number)
                test.test_case_results.append(case_result(case, failure))
        self.record.done[question], self.record.missing[question] = test, missing
        self.checked.add(question)
        self.forget()

    def _failure_of(self, case: Any, question: str, number: int) -> str | None:
        """What a student is told of a check that failed; None where it passed."""
        place = ("case", self.cell, question, number)
        if place in self.record.ended:
            return self.record.ended[place][-1]
        self.own_hint = ""
        with self.at(*place):
            try:
                case.body.call_func(self.variables)
            except Exception as error:
                return getattr(error, "hint", None) or hints.of_failure(error, question, self.tests[question])
        return None

    def surroundings(self) -> dict[str, Any]:
        """What the check has replaced, in the notebook and in libraries."""
        now, before = self.variables, self.before
        given = {n: self.lend_function(v) for n, v in now.items() if n not in before or before[n] is not v}
        modules, attributes = (new - old for new, old in zip(self._nothing(), self.nothing))
        return {
            "case": self.case,
            "given": given,
            "taken": [name for name in before if name not in now],
            "blocked": sorted(modules),
            "absent": sorted(attributes),
        }

    def _nothing(self) -> tuple[set[str], set[tuple[str, str]]]:
        """Modules, and parts of modules, that are None."""
        modules = {name for name, module in list(sys.modules.items()) if module is None}
        return modules, {(m.__name__, n) for m in self.libraries for n, v in list(vars(m).items()) if v is None}


def case_result(case: Any, failure: str | None) -> Any:
    """How a check has ended, as otter-grader writes it down."""
    from otter.test_files.abstract_test import TestCaseResult

    return TestCaseResult(test_case=case, message=failure, passed=failure is None)


def watched_by(tests: dict[str, str]) -> list[str]:
    """Modules in which a hand-in has nothing to replace."""
    return [*modules_of(tests), *ALSO_WATCHED]


@contextlib.contextmanager
def precision(name: Any) -> Any:
    """Let PyTorch make the numbers that it makes in the notebook."""
    torch = wire.torch_or_none()
    if torch is None or name not in ("float16", "bfloat16", "float32", "float64"):
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# --- the process of a hand-in -----------------------------------------------------------------------------------


class Template:
    """A process with the libraries of the checks, which forks one for each hand-in."""

    def __init__(self, modules: list[str]) -> None:
        ours, theirs = socket.socketpair()
        program = Path(__file__).with_name("handin.py")
        command = [sys.executable, str(program), str(theirs.fileno()), *modules]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment(), stdin=subprocess.DEVNULL
        )
        theirs.close()
        self.line = ours
        self.answers = ours.makefile("r")

    def start(self, log: Any) -> tuple[Connection, int]:
        """Start the process of a hand-in: the line to it, and its number."""
        ours, theirs = socket.socketpair()
        socket.send_fds(self.line, [b"go"], [theirs.fileno(), log.fileno()])
        theirs.close()
        number = int(self.answers.readline())
        return Connection(ours.detach()), number


def environment() -> dict[str, str]:
    """Environment variables of a hand-in: what finds programs and libraries, but no keys and passwords."""
    names = ("PATH", "HOME", "LANG", "TZ", "TERM", "USER", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    starts = ("LC_", "PYTHON", "CONDA", "HETFL_", "OMP_", "MKL_", "OPENBLAS_", "XDG_CACHE", "CUDA_")
    kept = {n: v for n, v in os.environ.items() if n in names or n.startswith(starts)}
    places = {"HETFL_DATA": str(place.data_home()), "PYTHONUSERBASE": site.getuserbase()}  # whatever its home is
    return kept | places | {"OMP_NUM_THREADS": "1"}


class Guard:
    """Watches the processes of a hand-in, and ends them.

    Parameters
    ----------
    process : int
        Number of its first process.
    checks : Checks
        The other end of the line to it, which knows how long it may go on.
    template : int
        Number of a process that is no part of it.
    """

    def __init__(self, process: int, checks: Checks, template: int) -> None:
        self.process, self.checks, self.template = process, checks, template
        self.stopped, self.left = "", 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def processes(self) -> list[psutil.Process]:
        """All living processes of the hand-in, those that have left their parents too."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.process)
            found += [first, *first.children(recursive=True)]
        for orphan in self._orphans():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [orphan, *orphan.children(recursive=True)]
        return [p for p in found if _alive(p)]

    def _orphans(self) -> list[psutil.Process]:
        """Processes that this one has adopted."""
        return [p for p in psutil.Process().children() if p.pid not in (self.template, self.process)]

    def detached(self) -> int:
        """How many processes have left their session in order to stay."""
        found = 0
        for each in self.processes():
            with contextlib.suppress(OSError):
                found += os.getsid(each.pid) != self.process
        return found

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            if not self.stopped:
                self.stopped = self.checks.record.over(time.monotonic() - self.checks.since) or self._too_much()
            if self.stopped:
                self.left = max(self.left, self.detached())
                self._kill()

    def _too_much(self) -> str:
        """What the processes use too much of; empty where all is well."""
        living = self.processes()
        if len(living) > MAX_PROCESSES:
            return f"stopped as it started more than {MAX_PROCESSES} processes"
        used = 0
        for each in living:
            with contextlib.suppress(psutil.Error):
                used += each.memory_info().rss
        most = self.checks.record.plan.bounds.memory
        return f"stopped as it used more than {most / 10**9:g} GB of memory" if used > 1.5 * most else ""

    def _kill(self) -> None:
        for each in self.processes():
            with contextlib.suppress(psutil.Error):
                each.kill()
        for orphan in self._orphans():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan.pid, os.WNOHANG)

    def end(self) -> None:
        """End all processes of the hand-in."""
        self._over.set()
        self._thread.join()
        last = time.monotonic() + 20
        self._kill()
        while self.processes() and time.monotonic() < last:
            time.sleep(0.02)
            self._kill()


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


# --- one submission ----------------------------------------------------------------------------------------------


def grade_one(task: Task, plan: Plan, template: Template) -> Grade:
    """Grade one submission, whatever it is."""
    possible = possible_marks(plan.tests)
    result = Grade(task.name, dict.fromkeys(possible, 0.0))
    try:
        if files.digest(task.path) != task.digest:
            result.flags.append("the file has changed since grading began")
        nb = files.read_notebook(task.path)
        files.refuse_other_assignment(nb, plan.assignment)
        cells = files.cells_of(nb)
        result.unusual += signs.signs_of(cells)
        run_notebook(cells, plan, template, result)
    except files.UnreadableError as error:
        result.message = str(error)
    except wire.ProtocolError as error:
        result.message = "grading broke off: the hand-in has answered for the grader"
        result.flags.append(f"writes to the grader itself ({error!s:.100})")
        result.marks, result.feedback = dict.fromkeys(possible, 0.0), ""
    return bounded(result, possible)


def bounded(result: Grade, possible: dict[str, float]) -> Grade:
    """A grade with no mark above what its question gives, and none below nothing."""
    wrong = [name for name, most in possible.items() if not 0 <= result.marks.get(name, 0.0) <= most]
    wrong += [name for name in result.marks if name not in possible]
    if wrong:
        result.flags.append(f"impossible marks for {', '.join(map(str, wrong))}")
    marks = {name: result.marks.get(name, 0.0) for name in possible}
    result.marks = {name: 0.0 if name in wrong else float(mark) for name, mark in marks.items()}
    return result


def run_notebook(cells: dict[int, str], plan: Plan, template: Template, result: Grade) -> None:
    """Run a notebook in a process of its own and write down what its checks give.

    Where the process ends, the notebook is run once more without what has ended it.
    """
    record = Record(plan)
    while why := run_once(cells, record, template, result):
        if template.process.poll() is not None:
            record.stopped["all"] = "grading broke off: a process of the grader was ended"
            break
        if record.over() or len(record.ended.get(("end",), [])) > 1:
            if why not in record.stopped.values():
                record.stopped["all"] = why
            break
    result.flags = list(dict.fromkeys(result.flags))
    result.marks |= {test.name: float(test.score) for test in record.done.values()}
    texts = [feedback_on(question, record) for question in plan.tests]
    errors = [text for _, text in sorted(record.errors.items())][:MAX_ERRORS]
    result.feedback = "\n\n".join([*texts, *(["\n".join(["Cells with an error:", *errors])] if errors else [])])
    result.message = "; ".join(list(record.stopped.values())[:MAX_ERRORS])
    if not result.total:
        result.message = another_assignment(cells, plan.tests) or result.message


def run_once(cells: dict[int, str], record: Record, template: Template, result: Grade) -> str:
    """Run a notebook from its beginning as far as it goes: why it did not come to its end, or an empty text."""
    plan = record.plan
    with tempfile.TemporaryDirectory(prefix="grading-", ignore_cleanup_errors=True) as private:
        folder = Path(private, "work")
        folder.mkdir()
        with Path(private, "log.txt").open("w+b") as log:
            connection, number = template.start(log)
            checks = Checks(connection, record, cells)
            guard = Guard(number, checks, template.process.pid)
            try:
                job = {"cells": list(cells.items()), "folder": str(folder), "watched": watched_by(plan.tests)}
                checks.send(job | {"bounds": asdict(plan.bounds)})
                cannot = checks.receive().get("cannot")
                if cannot:
                    raise OSError(f"a hand-in cannot be confined: {cannot}")
                reply = checks.answer(checks.receive())
                while not checks.finished:
                    checks.send(reply)
                    reply = checks.answer(checks.receive())
                why = ""
            except (wire.Gone, Stuck) as end:
                why = note_end(checks, guard, isinstance(end, Stuck))
            finally:
                left = max(guard.left, guard.detached())
                result.flags += [f"leaves processes behind: {left}"] if left else []
                result.flags += ["removes the folder that it works in"] if not folder.is_dir() else []
                guard.end()
                connection.close()
                result.flags += [f"replaces {name}" for name in checks.replaced]
    return why


def note_end(checks: Checks, guard: Guard, stuck: bool) -> str:
    """Write down where the process of a hand-in has ended, and why."""
    record, place = checks.record, checks.place
    over = record.over(time.monotonic() - checks.since)
    if over:
        return " ".join(filter(None, [over, f"({checks.where()})" * bool(checks.where())]))
    why = TOO_LONG.format(round(checks.limit, 1)) if stuck else guard.stopped or "ended its process"
    cell = hints.name_of_cell(checks.cell, checks.cells) if checks.cell in checks.cells else "the notebook"
    name = place[2] if place[0] == "case" else cell
    record.stop(name, why, time.monotonic() - checks.since, slow=stuck)
    hint = f"{why}: {ENDLESS}" if stuck else why
    place = place if place[0] in ("case", "cell") else ("end",)
    record.ended.setdefault(place, []).append(hint)
    if place[0] == "cell":
        record.errors[checks.cell] = f"{name}: {hint}"
    return record.stopped[name]


def feedback_on(question: str, record: Record) -> str:
    """What a student is told about a question, checked or not."""
    if question in record.done:
        return feedback(record.done[question], record.missing[question])
    return f"{question}: 0 of {possible_marks(record.plan.tests)[question]:g}\n  not checked, as the notebook was stopped before"


def another_assignment(cells: dict[int, str], tests: dict[str, str]) -> str:
    """Whether a notebook without marks is one of another assignment: it defines little of what the checks ask for."""
    wanted = {n for question, source in tests.items() for case in test_file(question, source).test_cases
              for n in parameters(case)}  # fmt: skip
    defined = set(re.findall(r"^\s*(?:def|class)\s+(\w+)|^(\w+)\s*=", "\n".join(cells.values()), re.MULTILINE))
    names = {name for pair in defined for name in pair if name}
    if 2 * len(wanted & names) >= len(wanted):
        return ""
    few = ", ".join(sorted(wanted - names)[:5])
    return f"is this another assignment? It defines {len(wanted & names)} of the {len(wanted)} names that the checks use, and not {few}"


# --- the process -----------------------------------------------------------------------------------------------


def work(pipe: Connection, plan: Plan) -> None:
    """Grade what comes through a pipe, until it is closed."""
    confine.adopt_orphans()
    confine.prctl(confine.PARENT_DEATH_SIGNAL, 9)
    modules = modules_of(plan.tests)
    template = Template(modules)
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    pipe.send("ready")
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            break
        try:
            grade = grade_one(task, plan, template)
        except Exception as error:  # whatever it is, the others go on
            nothing = dict.fromkeys(possible_marks(plan.tests), 0.0)
            grade = Grade(task.name, nothing, f"the grader itself failed: {type(error).__name__}: {error!s:.200}")
        if template.process.poll() is not None:
            grade.flags.append("ends a process of the grader")
            template = Template(modules)
        pipe.send(grade)
    template.process.kill()
