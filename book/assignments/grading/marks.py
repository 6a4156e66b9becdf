"""The process of the checks: calls the functions of a hand-in, compares what they return, gives the marks."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import re
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

from grading import confine, files, signs, wire

MAX_PROCESSES = 100
"""Processes of one hand-in at a time."""

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
        Why there are no marks; empty where all went well.
    feedback : str
        Hints of the visible checks, and how many hidden ones failed.
    flags : list of str
        Signs of tampering, for a human to look at.
    same_as : str
        The first submission of which this one is a copy, byte by byte.
    """

    submission: str
    marks: dict[str, float] = field(default_factory=dict)
    message: str = ""
    feedback: str = ""
    flags: list[str] = field(default_factory=list)
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
        Seconds that a submission may take.
    bounds : Bounds
        What its process may use.
    """

    tests: dict[str, str]
    timeout: float
    bounds: confine.Bounds


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
        hint = re.sub(r"^TypeError: (?=NoneType' object)", "TypeError: '", hint)  # otter strips the quote
        lines += [f"  {name} is not defined in your notebook" for name in lacks] or ["  " + hint]
    hidden = sum(r.test_case.hidden for r in failed)
    lines += [f"  {hidden} hidden check{'s' if hidden > 1 else ''} failed"] if hidden else []
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


class Checks(wire.TrustedPeer):
    """The end of the line in the process of the checks.

    Parameters
    ----------
    connection : Connection
        To the process of a hand-in.
    tests : dict of str to str
        Sources of the checks.
    """

    def __init__(self, connection: Connection, tests: dict[str, str]) -> None:
        super().__init__(connection, trusting=False)
        self.tests = tests
        self.done: dict[str, Any] = {}
        self.missing: dict[str, set[str]] = {}
        self.errors: list[str] = []
        self.cell, self.question = "", ""
        self.finished, self.replaced = False, []
        self.case, self.busy = 0, False
        self.variables: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self.libraries = [sys.modules[name] for name in modules_of(tests) if name in sys.modules]
        self.nothing = self._nothing()

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
        """Note which cell is run."""
        self.cell = f"code cell {int(message['number'])}"
        return {"value": None}

    def where(self) -> str:
        """What was going on when the hand-in was stopped."""
        return f"while {self.question} was checked" if self.question else f"in {self.cell}" if self.cell else ""

    def do_finish(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run the checks that have not been run yet."""
        self._check([question for question in self.tests if question not in self.done], message)
        self.replaced = [str(name)[:80] for name in message.get("replaced", [])][:20]
        self.errors = [files.printable(str(error)[:200]) for error in message.get("errors", [])][:20]
        self.finished = True
        return {"value": None}

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
        self.question = question
        self.missing[question] = {n for case in test.test_cases for n in parameters(case)} - set(self.variables)
        with precision(message.get("dtype")):
            test.run(self.variables)
        self.done[question], self.question = test, ""
        self.forget()

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
    return {n: v for n, v in os.environ.items() if n in names or n.startswith(starts)} | {"OMP_NUM_THREADS": "1"}


class Guard:
    """Watches the processes of a hand-in, and ends them.

    Parameters
    ----------
    process : int
        Number of its first process.
    plan : Plan
        Time and memory that it may use.
    template : int
        Number of a process that is no part of it.
    """

    def __init__(self, process: int, plan: Plan, template: int) -> None:
        self.process, self.plan, self.template = process, plan, template
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
        end = time.monotonic() + self.plan.timeout
        while not self._over.wait(0.2):
            if time.monotonic() > end:
                self.stopped = f"stopped after {self.plan.timeout:g} seconds: does a loop never end?"
            elif not self.stopped:
                self.stopped = self._too_much()
            if self.stopped:
                self.left = max(self.left, self.detached())
                self._kill()

    def _too_much(self) -> str:
        """What the processes use too much of; empty where all is well."""
        living = self.processes()
        if len(living) > MAX_PROCESSES:
            return f"stopped: it started more than {MAX_PROCESSES} processes"
        used = 0
        for each in living:
            with contextlib.suppress(psutil.Error):
                used += each.memory_info().rss
        most = self.plan.bounds.memory
        return f"stopped: it used more than {most / 10**9:g} GB of memory" if used > 1.5 * most else ""

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
        cells = files.cells_of(files.read_notebook(task.path))
        result.flags += signs.signs_of(cells)
        run_notebook(cells, plan, template, result)
    except files.UnreadableError as error:
        result.message = str(error)
    except wire.ProtocolError as error:
        result.message = "grading broke off: the hand-in has answered for the grader"
        result.flags.append(f"writes to the grader itself ({error!s:.100})")
    if result.message:
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


def run_notebook(cells: list[str], plan: Plan, template: Template, result: Grade) -> None:
    """Run a notebook in a process of its own and write down what its checks give."""
    with tempfile.TemporaryDirectory(prefix="grading-", ignore_cleanup_errors=True) as private:
        folder = Path(private, "work")
        folder.mkdir()
        with Path(private, "log.txt").open("w+b") as log:
            connection, number = template.start(log)
            guard = Guard(number, plan, template.process.pid)
            try:
                checks = Checks(connection, plan.tests)
                watched = [*modules_of(plan.tests), *ALSO_WATCHED]
                bounds = asdict(plan.bounds)
                checks.send({"cells": cells, "folder": str(folder), "bounds": bounds, "watched": watched})
                reply = checks.answer(checks.receive())
                while not checks.finished:
                    checks.send(reply)
                    reply = checks.answer(checks.receive())
            except wire.Gone as error:
                said = guard.stopped or f"grading broke off: {_last_line(log)}"
                raise files.UnreadableError(
                    " ".join([said, f"({checks.where()})" * bool(checks.where())]).strip()
                ) from error
            finally:
                left = max(guard.left, guard.detached())
                result.flags += [f"leaves processes behind: {left}"] if left else []
                result.flags += ["removes the folder that it works in"] if not folder.is_dir() else []
                guard.end()
                connection.close()
        result.flags += [f"replaces {name}" for name in checks.replaced]
        result.marks = {test.name: float(test.score) for test in checks.done.values()}
        texts = [feedback(checks.done[question], checks.missing[question]) for question in plan.tests]
        result.feedback = "\n\n".join(
            [*texts, *(["\n".join(["Cells with an error:", *checks.errors])] if checks.errors else [])]
        )
        asked = set(re.findall(r"\.check\(\s*[\"'](\w+)[\"']", "\n".join(cells)))
        if not result.total and asked and not asked & set(plan.tests):
            few = ", ".join(sorted(asked)[:5])
            result.message = (
                f"is this another assignment? None of the questions that it has checked ({few}) is one of this"
            )


def _last_line(log: Any) -> str:
    """The last that a hand-in has said."""
    with contextlib.suppress(OSError, ValueError):
        size = log.seek(0, os.SEEK_END)
        log.seek(max(size - 4096, 0))
        lines = log.read().decode("utf8", "replace").strip().splitlines()
        return files.printable(lines[-1])[:200] if lines else "no message"
    return "no message"


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
