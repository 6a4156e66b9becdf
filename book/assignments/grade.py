"""Grade a folder of submissions without Docker.

``python book/assignments/grade.py submissions/ --autograder book/assignments/assignment1/dist/autograder.zip``

finds every ``.ipynb`` and ``.zip`` below the folder, whatever its name, runs each in a process of its own and writes ``grades.csv``
with a row a submission. A notebook that cannot be read, crashes or runs too long gets 0 and a message, and the next one is graded.

The code of students runs with your rights: use an account or a virtual machine that has nothing to lose.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

MAX_BYTES = 50_000_000
"""Largest notebook that is opened, in bytes."""

SKIPPED = {"__MACOSX", ".ipynb_checkpoints"}


class UnreadableError(ValueError):
    """A submission that holds no notebook that could be run; the message is meant for the student."""


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
    """

    submission: str
    marks: dict[str, float] = field(default_factory=dict)
    message: str = ""
    feedback: str = ""

    @property
    def total(self) -> float:
        """Sum of the marks."""
        return sum(self.marks.values())


# --- finding and cleaning ---------------------------------------------------------------------------------------


def find_submissions(folder: Path) -> list[Path]:
    """Every notebook and zip file below a folder, in alphabetical order."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.suffix.lower() in (".ipynb", ".zip"))
    return sorted(p for p in files if not SKIPPED & set(p.parts) and not p.name.startswith("."))


def notebook_bytes(path: Path) -> bytes:
    """The one notebook that a file is, or that a zip file holds."""
    if path.suffix.lower() != ".zip":
        if path.stat().st_size > MAX_BYTES:
            raise UnreadableError(f"the notebook is larger than {MAX_BYTES // 10**6} MB: clear its outputs")
        return path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [i for i in archive.infolist() if i.filename.lower().endswith(".ipynb")]
            inside = [i for i in inside if not SKIPPED & set(Path(i.filename).parts)]
            if len(inside) != 1:
                raise UnreadableError(f"expected one notebook in the zip file, found {len(inside)}")
            if inside[0].file_size > MAX_BYTES:
                raise UnreadableError(f"the notebook is larger than {MAX_BYTES // 10**6} MB: clear its outputs")
            return archive.read(inside[0])
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise UnreadableError(f"the zip file cannot be opened: {error}") from error


def clean(path: Path, target: Path) -> None:
    """Write a submission as a plain notebook: current format, no outputs, the kernel that this machine has."""
    content = notebook_bytes(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nb = nbformat.reads(content.decode("utf-8-sig"), 4)
            for cell in nb.cells:
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = [], None
            nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
            target.write_text(nbformat.writes(nb), "utf8")
    except Exception as error:
        raise UnreadableError(f"not a notebook that can be read: {type(error).__name__}") from error


# --- grading ----------------------------------------------------------------------------------------------------


def questions(autograder: Path) -> dict[str, float]:
    """Questions of an autograder, with the marks that each can give."""
    from otter.test_files.exception_test import ExceptionTestFile

    with zipfile.ZipFile(autograder) as archive:
        tests = sorted(n for n in archive.namelist() if n.startswith("tests/") and n.endswith(".py"))
        read = [ExceptionTestFile.from_string(archive.read(n).decode("utf8"), path=n) for n in tests]
    return {test.name: test.possible for test in read}


def grade(path: Path, autograder: Path, timeout: float = 300, name: str | None = None) -> Grade:
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

    Returns
    -------
    Grade
        With marks for every question of the autograder, all 0 where there is a message.
    """
    nothing = dict.fromkeys(questions(autograder), 0.0)
    result = Grade(name or path.name, nothing)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        notebook, answer = Path(folder) / "submission.ipynb", Path(folder) / "answer.json"
        try:
            clean(path, notebook)
            run_isolated(notebook, autograder, answer, timeout)
            found = json.loads(answer.read_text("utf8"))
        except UnreadableError as error:
            result.message = str(error)
            return result
    result.marks = nothing | found["marks"]
    result.message, result.feedback = found["message"], found["feedback"]
    return result


def run_isolated(notebook: Path, autograder: Path, answer: Path, timeout: float) -> None:
    """Grade a cleaned notebook in a process of its own, and end all that it started when time is up."""
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--one",
        str(notebook),
        str(autograder.resolve()),
        str(answer),
    ]
    environment = os.environ | {"TMPDIR": str(notebook.parent), "TEMP": str(notebook.parent), "MPLBACKEND": "agg"}
    log = notebook.with_name("log.txt")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=notebook.parent, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise UnreadableError(f"stopped after {timeout:g} seconds: does a loop never end?") from error
        finally:
            end_with_children(process)
    if not answer.exists():
        last = log.read_text("utf8", errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise UnreadableError(f"grading broke off: {last[0][:200]}")


def end_with_children(process: subprocess.Popen) -> None:
    """Kill a process, its kernel and whatever that started."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for each in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def grade_here(notebook: Path, autograder: Path, answer: Path) -> None:
    """Grade a notebook in this process, as ``otter run`` does, and write what it got as JSON."""
    from otter.api import grade_submission

    results = grade_submission(str(notebook), str(autograder), quiet=True)
    broken = results.has_catastrophic_failure()
    found = {
        "marks": {} if broken else {name: float(test.score) for name, test in results.results.items()},
        "message": "the notebook stopped its own kernel" if broken else "",
        "feedback": "" if broken else "\n\n".join(map(feedback, results.results.values())),
    }
    answer.write_text(json.dumps(found), "utf8")


def feedback(test) -> str:
    """What a student is told about a question: the hints of visible checks, the number of hidden ones that failed."""
    lines = [f"{test.name}: {test.score:g} of {test.possible:g}"]
    failed = [r for r in test.test_case_results if not r.passed]
    hints = [(r.message or "").strip().splitlines()[-1] for r in failed if not r.test_case.hidden]
    lines += ["  " + hint.removeprefix("AssertionError: ") for hint in hints]
    hidden = sum(r.test_case.hidden for r in failed)
    lines += [f"  {hidden} hidden check{'s' if hidden > 1 else ''} failed"] if hidden else []
    return "\n".join(lines)


# --- a class ----------------------------------------------------------------------------------------------------


def grade_all(folder: Path, autograder: Path, timeout: float) -> Iterator[Grade]:
    """Grade every submission below a folder, one after the other."""
    for path in find_submissions(folder):
        yield grade(path, autograder, timeout, path.relative_to(folder).as_posix())


def row(result: Grade, possible: dict[str, float]) -> list[str]:
    """A line of the table of grades."""
    marks = [f"{result.marks[name]:g}" for name in possible]
    return [result.submission, *marks, f"{result.total:g}", f"{sum(possible.values()):g}", result.message]


def write_feedback(result: Grade, folder: Path) -> None:
    """Write the text for the student, under the name of the submission."""
    path = folder / (result.submission + ".txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{result.total:g} marks\n\n{result.message or result.feedback}\n", "utf8")


def main(arguments: list[str] | None = None) -> None:
    """Grade a folder of submissions into a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of submissions, .ipynb or .zip, also in folders below it")
    parser.add_argument("--autograder", type=Path, required=True, help="the autograder.zip that generate.py made")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="table of grades (default: grades.csv)")
    parser.add_argument("--feedback", type=Path, help="also write a text for each student into this folder")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a submission may take (default: 300)")
    options = parser.parse_args(arguments)
    for path, kind in ((options.folder, "folder"), (options.autograder, "file")):
        if not path.exists():
            parser.error(f"there is no {kind} {path}")
    possible = questions(options.autograder)
    with options.out.open("w", newline="", encoding="utf8") as file:
        table = csv.writer(file)
        table.writerow(["submission", *possible, "total", "out_of", "message"])
        for result in grade_all(options.folder, options.autograder, options.timeout):
            table.writerow(row(result, possible))
            file.flush()
            if options.feedback:
                write_feedback(result, options.feedback)
            print(f"{result.total:5g}  {result.submission}  {result.message}", flush=True)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        grade_here(*map(Path, sys.argv[2:5]))
    else:
        main()
