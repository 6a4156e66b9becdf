"""Grade a folder of submissions without Docker.

``python book/assignments/grade.py submissions/ --autograder book/assignments/assignment1/dist/autograder.zip``

takes every file below the folder for a submission, whatever its name, and writes ``grades.csv`` with a row for each. What holds no
notebook that can be read gets 0 and a message. A cell or a check that takes too long, or that ends the process, costs what depends on
it, and the rest is marked. The column ``flags`` says where signs of tampering were seen.

The checks run in a process that never runs a line of a submission; the submission runs in another. Where the machine has Linux
namespaces, that one has no network and sees no files but Python, its packages, the data and a folder of its own, and no processes but
its own. Where it has none, use an account or a virtual machine that has nothing to lose. `grading` holds the parts.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if os.name != "posix":
    sys.exit(
        "grade.py needs Linux or macOS, where it can confine what it runs; on Windows use WSL or a virtual machine"
    )

from grading import confine, crew, place
from grading.files import digest, find_submissions, printable
from grading.marks import (
    MOST_TIMES,
    Grade,
    Plan,
    Task,
    assignment_of,
    feedback,
    modules_of,
    possible_marks,
    read_tests,
)
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
    step: float | None = None,
    shown: tuple[Path, ...] = (),
) -> Plan:
    """How to grade with an autograder.

    Parameters
    ----------
    autograder : Path
        The ``autograder.zip`` that `generate.py` made.
    timeout : float
        Seconds that a submission may take, without those of cells and checks that are stopped.
    memory : float
        Gigabytes of data that a process of a submission may have.
    namespaces : bool, optional
        Whether to use namespaces; where the machine has them by default.
    network : bool
        Whether submissions can reach the network.
    hidden : tuple of Path
        Files and folders that submissions cannot read (with namespaces), wherever they are.
    step : float, optional
        Seconds after which a cell or a check is stopped; a fifth of `timeout` by default.
    shown : tuple of Path
        Files and folders that submissions can read (with namespaces), besides Python, its packages and the data.
    """
    namespaces = not confine.possible() if namespaces is None else namespaces
    tests = read_tests(autograder)
    readable = (*place.needed(modules_of(tests)), *(str(path.resolve()) for path in shown))
    covered = tuple(str(path.resolve()) for path in (place.CHECKOUT, autograder, *hidden))
    processor = MOST_TIMES * timeout
    bounds = confine.Bounds(processor, int(memory * 10**9), namespaces, network, readable, covered)
    return Plan(tests, timeout, step or timeout / 5, bounds, assignment_of(autograder))


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
    found = [(path, path.relative_to(folder).as_posix()) for path in find_submissions(folder)]
    tasks = [Task(path.absolute(), printable(name), digest(path)) for path, name in found]
    first = {task.digest: task.name for task in reversed(tasks) if task.digest}
    for task, result in zip(tasks, crew.grade_tasks(tasks, how, jobs), strict=True):
        original = first.get(task.digest, task.name)
        result.same_as = "" if original == task.name else original
        yield result


def row(result: Grade, possible: dict[str, float]) -> list[str]:
    """A line of the table of grades."""
    marks = [f"{result.marks[name]:g}" for name in possible]
    flags, unusual = ("; ".join(map(printable, signs)) for signs in (result.flags, result.unusual))
    sums = [f"{result.total:g}", f"{sum(possible.values()):g}"]
    return [result.submission, *marks, *sums, printable(result.message), flags, result.same_as, unusual]


def write_feedback(result: Grade, folder: Path) -> Path:
    """Write the text for the student, under the name of the submission where that can be a file.

    Where it cannot, being too long or the name of a folder, a name is made up; the text begins with that of the submission.
    """
    parts = [f"{result.total:g} marks", result.message, result.feedback]
    text = ("\n\n".join(filter(None, parts)) + "\n").encode("utf8", "backslashreplace")
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
    table.writerow(["submission", *possible, "total", "out_of", "message", "flags", "same_as", "unusual"])
    table.writerows(row(result, possible) for result in results)
    part = out.with_name(f".{out.name}.part")
    part.write_bytes(text.getvalue().encode("utf8", "backslashreplace"))
    part.replace(out)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of submissions; each file in it, or in one below it, is one")
    parser.add_argument("--autograder", type=Path, required=True, help="the autograder.zip that generate.py made")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="table of grades (default: grades.csv)")
    parser.add_argument("--feedback", type=Path, help="also write a text for each student into this folder")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a submission may take (default: 300)")
    parser.add_argument(
        "--cell-timeout", type=float, help="seconds a cell or a check may take (default: a fifth of --timeout)"
    )
    parser.add_argument(
        "--show",
        type=Path,
        action="append",
        default=[],
        help="file or folder that submissions may read; may be repeated",
    )
    parser.add_argument("--memory", type=float, default=4, help="gigabytes a submission may use (default: 4)")
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="submissions at a time (default: one per core)")
    parser.add_argument("--network", action="store_true", help="let submissions use the network")
    parser.add_argument("--no-namespaces", action="store_true", help="do without namespaces (for a container)")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    if not options.autograder.is_file():
        parser.error(f"there is no file {options.autograder}")
    missing = [path for path in options.show if not path.exists()]
    if missing:
        parser.error(f"there is no {missing[0]} to be shown")
    if options.cell_timeout is None:
        options.cell_timeout = options.timeout / 5
    if options.jobs < 1 or not min(options.timeout, options.cell_timeout, options.memory) > 0:
        parser.error("--jobs, --timeout, --cell-timeout and --memory should be positive")
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
    how = plan(
        options.autograder,
        options.timeout,
        options.memory,
        namespaces=not why_not,
        network=options.network,
        hidden=tuple(path for path in (options.folder, options.feedback, options.out) if path),
        step=options.cell_timeout,
        shown=tuple(options.show),
    )
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
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
