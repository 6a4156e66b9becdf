"""Make, from the master notebook of an assignment, all that a teacher and a student need.

``python book/assignments/generate.py`` (or ``make assignments``) writes, for each ``assignmentN/assignmentN.ipynb``,

- ``assignmentN-student.ipynb``: the page of the book, tracked; the same as the hand-out,
- ``assignmentN/dist/student/assignmentN.ipynb``: to hand out; carries its visible checks inside, so one file is enough,
- ``assignmentN/dist/solution/assignmentN.ipynb``: with solutions and all checks; not for students,
- ``assignmentN/dist/autograder.zip``: to grade with (`grade.py`, ``otter run`` or Gradescope); not for students.

The notebooks carry the assignment's name in their metadata, and the autograder has it too: `grade.py` compares them.

It needs neither network, Docker nor LaTeX, and the same master gives the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import nbformat
from grading.files import METADATA, NAME_IN_AUTOGRADER
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
PLACEHOLDER = "CHECKS = {}"
MARKS = re.compile(r"^### Question (\d+)\.(\d+).*\((\d+) marks?\)$", re.MULTILINE)
VISIBLE = re.compile(r"These \*visible\* checks give (\d+) of the \d+ marks")
TOTAL = re.compile(r"\*\*total\*\* \| \*\*(\d+)\*\*")


def masters() -> list[Path]:
    """The master notebooks, ``assignmentN/assignmentN.ipynb``."""
    return sorted(p for p in HERE.glob("assignment*/assignment*.ipynb") if p.stem == p.parent.name)


def generate(master: Path, out: Path, check_solution: bool = True) -> Path:
    """Write ``student/``, ``solution/`` and ``autograder.zip`` of one assignment.

    Parameters
    ----------
    master : Path
        The master notebook, in the format of ``otter assign``.
    out : Path
        Folder to write to; what it holds of an earlier run is replaced.
    check_solution : bool
        Grade the solution too, and raise where it does not get full marks (takes some seconds).

    Returns
    -------
    Path
        The hand-out.

    Raises
    ------
    ValueError
        If the marks that the text promises are not those of the checks, or a check cannot be carried in a notebook.
    RuntimeError
        If the solution does not get full marks.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        run_assign(Path(shutil.copy(master, folder)), made, check_solution)
        check_marks(nbformat.read(master, 4), made / "autograder" / "tests")
        for part, source in (("student", "student"), ("solution", "autograder")):
            finish(made / source / master.name, made / source / "tests", out / part / master.name)
        repack(
            next((made / "autograder").glob("*.zip")), out / "autograder.zip", {NAME_IN_AUTOGRADER: master.stem + "\n"}
        )
    return out / "student" / master.name


def run_assign(master: Path, made: Path, check_solution: bool) -> None:
    """Run ``otter assign``, quietly unless it fails."""
    from otter.assign import main as otter_assign

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            otter_assign(str(master), str(made), no_pdfs=True, no_run_tests=not check_solution)
    except Exception:
        sys.stderr.write(said.getvalue())
        raise


def finish(notebook: Path, tests: Path, target: Path) -> None:
    """Put the checks into the notebook, and make it the same each time that it is generated."""
    nb = nbformat.read(notebook, 4)
    cell = next((c for c in nb.cells if PLACEHOLDER in c.source.splitlines()), None)
    if cell is None:
        raise ValueError(f"{notebook.name}: expected a cell with the line {PLACEHOLDER!r}, found none")
    cell.source = cell.source.replace(PLACEHOLDER, checks_source(tests), 1)
    for number, each in enumerate(nb.cells):
        each["id"] = f"cell-{number:03d}"
    nb.metadata[METADATA] = {"assignment": target.stem}
    nb.metadata["mystnb"] = {"execution_mode": "off"}  # the book shows it with its gaps and does not run it
    nbformat.validate(nb)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(nbformat.writes(nb) + "\n", "utf8")


def checks_source(tests: Path) -> str:
    """The checks as a dictionary in source code, question to text of the test file."""
    lines = ["CHECKS = {"]
    for path in sorted(tests.glob("*.py")):
        text = path.read_text("utf8").strip() + "\n"
        if '"""' in text or not text.isascii():
            raise ValueError(f"check {path.stem}: expected plain ASCII without triple quotes")
        lines.append(f'    "{path.stem}": r"""{text}""",')
    return "\n".join([*lines, "}"])


def check_marks(nb: NotebookNode, tests: Path) -> None:
    """Raise where the marks in the headings, in the table, of the visible checks and in the checks differ."""
    text = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    said = {f"q{part}_{number}": int(marks) for part, number, marks in MARKS.findall(text)}
    found = {path.stem: marks_of(path) for path in sorted(tests.glob("*.py"))}
    total = [int(t) for t in TOTAL.findall(text)]
    visible = sum(marks_of(path, hidden=False) for path in tests.glob("*.py"))
    if said != found:
        raise ValueError(f"the headings promise the marks {said}, the checks give {found}")
    if total != [sum(found.values())]:
        raise ValueError(f"the table promises {total} marks in all, the checks give {sum(found.values())}")
    if [int(v) for v in VISIBLE.findall(text)] != [visible]:
        raise ValueError(f"the text promises {VISIBLE.findall(text)} marks by visible checks, they give {visible}")


def marks_of(path: Path, hidden: bool = True) -> float:
    """Sum of the points of the cases in a test file, with the hidden ones or without."""
    from otter.test_files.exception_test import ExceptionTestFile

    cases = ExceptionTestFile.from_file(str(path)).test_cases
    return sum(case.points for case in cases if hidden or not case.hidden)


def repack(source: Path, target: Path, more: dict[str, str]) -> None:
    """Copy a zip file in sorted order and without times, with some texts added."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        contents = {name: old.read(name) for name in old.namelist()} | {n: t.encode("utf8") for n, t in more.items()}
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o644 if "." in name else 0o755) << 16
            new.writestr(entry, contents[name])


def tracked_page(master: Path) -> Path:
    """Where the book's page of an assignment is."""
    return HERE / f"{master.stem}-student.ipynb"


def main() -> None:
    """Generate all assignments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out", type=Path, help="write to this folder instead of assignmentN/dist, and leave the page alone"
    )
    parser.add_argument("--no-check", action="store_true", help="do not grade the solution (saves some seconds)")
    arguments = parser.parse_args()
    for master in masters():
        out = arguments.out / master.stem if arguments.out else master.parent / "dist"
        student = generate(master, out, check_solution=not arguments.no_check)
        if not arguments.out:
            shutil.copyfile(student, tracked_page(master))
            print(f"{tracked_page(master)}: the page of the book")
        for path in (student, out / "solution" / master.name, out / "autograder.zip"):
            print(path)


if __name__ == "__main__":
    main()
