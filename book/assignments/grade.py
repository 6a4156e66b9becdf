"""Grade a folder of submissions without Docker.

``python book/assignments/grade.py submissions/ --autograder book/assignments/assignment1/dist/autograder.zip``

finds every ``.ipynb`` and ``.zip`` below the folder, whatever its name, and writes ``grades.csv`` with a row a submission. A notebook
that cannot be read, crashes or takes too much gets 0 and a message, and the next one is graded. The column ``flags`` says which ones
show signs of tampering.

The checks run in a process that never runs a line of a submission; the submission runs in another, without network, without writable
files and without other processes in sight where the machine has Linux namespaces. Where it has none, use an account or a virtual
machine that has nothing to lose. `grading` holds the parts.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if os.name != "posix":
    sys.exit(
        "grade.py needs Linux or macOS, where it can confine what it runs; on Windows use WSL or a virtual machine"
    )

from grading import confine, crew
from grading.files import digest, find_submissions, printable
from grading.marks import Grade, Plan, Task, feedback, possible_marks, read_tests
from joblib import cpu_count

__all__ = ["Grade", "feedback", "find_submissions", "grade", "grade_all", "main", "questions"]

HERE = Path(__file__).resolve().parent
MAX_NAME = 200
"""Longest name of a file or folder of feedback, in bytes."""


def questions(autograder: Path) -> dict[str, float]:
    """Questions of an autograder, with the marks that each can give."""
    return possible_marks(read_tests(autograder))


def plan(
    autograder: Path,
    timeout: float = 300,
    memory: float = 4,
    namespaces: bool | None = None,
    network: bool = False,
    hidden: tuple[Path, ...] = (),
) -> Plan:
    """How to grade with an autograder.

    Parameters
    ----------
    autograder : Path
        The ``autograder.zip`` that `generate.py` made.
    timeout : float
        Seconds after which a submission is stopped.
    memory : float
        Gigabytes of data that a process of a submission may have.
    namespaces : bool, optional
        Whether to use namespaces; where the machine has them by default.
    network : bool
        Whether submissions can reach the network.
    hidden : tuple of Path
        Files and folders that submissions cannot read (with namespaces), besides the assignments and the autograder.
    """
    namespaces = not confine.possible() if namespaces is None else namespaces
    out_of_sight = [str(path.resolve()) for path in (HERE, autograder, *hidden) if not _is_needed(path.resolve())]
    bounds = confine.Bounds(timeout, int(memory * 10**9), namespaces, network, tuple(out_of_sight))
    return Plan(read_tests(autograder), timeout, bounds)


def _is_needed(path: Path) -> bool:
    """Whether a folder holds what a submission needs in order to run."""
    needed = [sys.prefix, sys.base_prefix, tempfile.gettempdir(), *sys.path, os.path.expanduser("~")]
    return any(Path(each).resolve().is_relative_to(path) for each in needed if each and Path(each).resolve() != HERE)


def grade(
    path: Path,
    autograder: Path,
    timeout: float = 300,
    name: str | None = None,
    namespaces: bool | None = None,
) -> Grade:
    """Grade one submission; never raises for what a student did.

    Parameters
    ----------
    path : Path
        A notebook, or a zip file with one notebook.
    autograder : Path
        The ``autograder.zip`` that `generate.py` made.
    timeout : float
        Seconds after which the submission is stopped.
    name : str, optional
        How to call it in the result; its file name by default.
    namespaces : bool, optional
        Whether to use namespaces; where the machine has them by default.

    Returns
    -------
    Grade
        With marks for every question of the autograder, all 0 where there is a message.
    """
    task = Task(path.absolute(), name or path.name, digest(path))
    (result,) = crew.grade_tasks([task], plan(autograder, timeout, namespaces=namespaces), jobs=1)
    return result


# --- a class ----------------------------------------------------------------------------------------------------


def grade_all(folder: Path, how: Plan, jobs: int = 1) -> Iterator[Grade]:
    """Grade every submission below a folder, several at a time, in alphabetical order."""
    found = [(path, path.relative_to(folder).as_posix()) for path in find_submissions(folder)[0]]
    tasks = [Task(path.absolute(), printable(name), digest(path)) for path, name in found]
    first = {task.digest: task.name for task in reversed(tasks) if task.digest}
    for task, result in zip(tasks, crew.grade_tasks(tasks, how, jobs), strict=True):
        original = first.get(task.digest, task.name)
        result.same_as = "" if original == task.name else original
        yield result


def row(result: Grade, possible: dict[str, float]) -> list[str]:
    """A line of the table of grades."""
    marks = [f"{result.marks[name]:g}" for name in possible]
    flags = "; ".join(map(printable, result.flags))
    out_of = f"{sum(possible.values()):g}"
    return [result.submission, *marks, f"{result.total:g}", out_of, printable(result.message), flags, result.same_as]


def write_feedback(result: Grade, folder: Path) -> Path:
    """Write the text for the student, under the name of the submission where that can be a file.

    Where it cannot, being too long or the name of a folder, a name is made up; the text begins with that of the submission.
    """
    text = f"{result.total:g} marks\n\n{result.message or result.feedback}\n".encode("utf8", "backslashreplace")
    path = folder / (result.submission + ".txt")
    fits = all(len(os.fsencode(part)) <= MAX_NAME for part in path.parts) and ".." not in path.parts
    try:
        if not fits:
            raise OSError
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    except OSError:
        path = folder / f"other-{hashlib.sha256(os.fsencode(result.submission)).hexdigest()[:16]}.txt"
        path.write_bytes(result.submission.encode("utf8", "backslashreplace") + b"\n" + text)
    return path


def write_table(results: list[Grade], possible: dict[str, float], out: Path) -> None:
    """Write the table of grades, whole or not at all."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["submission", *possible, "total", "out_of", "message", "flags", "same_as"])
    table.writerows(row(result, possible) for result in results)
    part = out.with_name(f".{out.name}.part")
    part.write_bytes(text.getvalue().encode("utf8", "backslashreplace"))
    part.replace(out)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of submissions, .ipynb or .zip, also in folders below it")
    parser.add_argument("--autograder", type=Path, required=True, help="the autograder.zip that generate.py made")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="table of grades (default: grades.csv)")
    parser.add_argument("--feedback", type=Path, help="also write a text for each student into this folder")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a submission may take (default: 300)")
    parser.add_argument("--memory", type=float, default=4, help="gigabytes a submission may use (default: 4)")
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="submissions at a time (default: one per core)")
    parser.add_argument("--network", action="store_true", help="let submissions use the network")
    parser.add_argument("--no-namespaces", action="store_true", help="do without namespaces (for a container)")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    if not options.autograder.is_file():
        parser.error(f"there is no file {options.autograder}")
    if options.jobs < 1 or not options.timeout > 0 or not options.memory > 0:
        parser.error("--jobs, --timeout and --memory should be positive")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Grade a folder of submissions into a CSV file."""
    options = options_of(arguments)
    why_not = "you asked for none" if options.no_namespaces else confine.possible()
    if why_not:
        print(f"no namespaces ({why_not}): submissions run with your rights, on your files and your network")
    try:
        possible = questions(options.autograder)
    except ValueError as error:
        sys.exit(f"grade.py: {error}")
    hidden = tuple(path for path in (options.folder, options.feedback) if path)
    how = plan(options.autograder, options.timeout, options.memory, not why_not, options.network, hidden)
    results: list[Grade] = []
    try:
        write_table(results, possible, options.out)
        if options.feedback:
            options.feedback.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"grade.py: cannot write to {error.filename2 or error.filename}: {error.strerror}")
    for result in grade_all(options.folder, how, options.jobs):
        results.append(result)
        write_table(results, possible, options.out)
        if options.feedback:
            write_feedback(result, options.feedback)
        flagged = f"  [{'; '.join(map(printable, result.flags))}]" if result.flags else ""
        print(f"{result.total:5g}  {result.submission}  {printable(result.message)}{flagged}", flush=True)
    others = [printable(path.relative_to(options.folder).as_posix()) for path in find_submissions(options.folder)[1]]
    if others:
        print(f"not graded, neither .ipynb nor .zip: {', '.join(others)}")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
