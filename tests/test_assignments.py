"""Assignments: generated, graded, wrong answers caught by the right question, and a class graded without Docker."""

import ast
import contextlib
import csv
import io
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from types import CodeType

import matplotlib.pyplot
import nbformat
import numpy as np
import pytest
import torch
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from scipy.optimize import linear_sum_assignment

pytestmark = pytest.mark.nightly

pytest.importorskip("otter", reason="otter-grader is not installed")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "book" / "assignments"
WRONG = ROOT / "tests" / "wrong_answers"
sys.path.insert(0, str(FOLDER))

import generate  # noqa: E402
import grade  # noqa: E402


@dataclass(frozen=True)
class Assignment:
    """An assignment: its questions with their marks, and pieces of its solution that no hand-out may have."""

    number: int
    possible: dict[str, int]
    secrets: tuple[str, ...]

    def __str__(self) -> str:
        return f"assignment{self.number}"

    @property
    def master(self) -> Path:
        return FOLDER / str(self) / f"{self}.ipynb"


@dataclass(frozen=True)
class Made:
    """What `generate.py` made of an assignment."""

    assignment: Assignment
    folder: Path

    @property
    def possible(self) -> dict[str, int]:
        return self.assignment.possible

    @property
    def student(self) -> Path:
        return self.folder / "student" / f"{self.assignment}.ipynb"

    @property
    def solution(self) -> Path:
        return self.folder / "solution" / f"{self.assignment}.ipynb"

    @property
    def autograder(self) -> Path:
        return self.folder / "autograder.zip"


FIRST = Assignment(
    1,
    {"q1_1": 2, "q1_2": 2, "q1_3": 3, "q2_1": 2, "q2_2": 4, "q3_1": 3, "q3_2": 2, "q3_3": 2},
    ("svdvals((", "np.linalg.eigh(S)"),
)
SECOND = Assignment(
    2,
    {"q1_1": 3, "q2_1": 4, "q3_1": 2, "q3_2": 2, "q3_3": 3, "q4_1": 2, "q4_2": 2, "q4_3": 2},
    ("Qb - Qa", "lstsq(zi", "server_step(path", "np.flatnonzero(", "B @ A.T)"),
)
THIRD = Assignment(
    3,
    {"q1_1": 2, "q1_2": 3, "q2_1": 3, "q2_2": 3, "q3_1": 3, "q3_2": 2, "q4_1": 2, "q4_2": 2},
    (
        "centred @ centred.T",
        "(U * f(",
        "root @ B @ root",
        "root @ matrix_function",
        "L[:, rows",
        "tangent_vectors(test",
        "classes[squared",
    ),
)
FOURTH = Assignment(
    4,
    {f"q{question}": 2 for question in ("1_1", "1_2", "2_1", "2_2", "3_1", "3_2", "4_1", "5_1", "5_2", "5_3")},
    (
        "precision * means",
        "member @",
        "eta.sum(dim=0) / total",
        "ratio.log()",
        "torch.log1p(",
        "logsumexp(log_p",
        "deviation[:, None] * epsilon",
        "zip(*steps)",
        "deviations(0.0)",
    ),
)
FIFTH = Assignment(
    5,
    {f"q{question}": 2 for question in ("1_1", "1_2", "2_1", "2_2", "3_1", "3_2", "4_1", "4_2", "5_1", "5_2")},
    (
        "member @ z /",
        "za.mean(dim=0)",
        "there * away",
        "g).sum(dim=1) / count",
        "step) * e + step",
        "np.log1p(-step)",
        "share * apart",
        "zip(p, sent)",
        "np.bincount(train_client",
        "replace=False",
    ),
)
SIXTH = Assignment(
    6,
    {"q1_1": 2, "q1_2": 2, "q2_1": 4, "q3_1": 2, "q3_2": 2, "q4_1": 2, "q4_2": 2, "q5_1": 2, "q5_2": 2},
    (
        "return W[:, order]",
        "(old + new) / 2",
        "client**2 @ held",
        "min(permutations(",
        "(C.T)[1]",
        "mass[mine]",
        "server[mine]",
        "everything[m]",
        "np.argsort(orders",
    ),
)
ASSIGNMENTS = (FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH)


@pytest.fixture(scope="session")
def made_before() -> dict[int, Made]:
    """What has been made, by number: pytest makes a parametrised fixture anew for each row of a table."""
    return {}


@pytest.fixture(scope="module", params=ASSIGNMENTS, ids=str)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, made_before: dict[int, Made]
) -> Made:
    assignment = request.param
    if assignment.number not in made_before:
        out = tmp_path_factory.mktemp(str(assignment))
        generate.generate(assignment.master, out, check_solution=False)
        made_before[assignment.number] = Made(assignment, out)
    return made_before[assignment.number]


first_only = pytest.mark.parametrize("made", [FIRST], indirect=True, ids=str)
"""For what does not depend on the assignment and takes long."""


def wrong_answers(number: int) -> list[dict]:
    """Answers that one meets, with the marks that they lose and what the grader says."""
    return tomllib.loads((WRONG / f"assignment{number}.toml").read_text("utf8"))["answer"]


def handed_in(name: str) -> dict[str, str]:
    """What one of the first assignment's class answers: question -> source of its cell."""
    return {wrong["question"]: wrong["code"] for wrong in wrong_answers(1) if wrong["name"] == name}


def answered(cells: Sequence[str], answers: dict[str, str]) -> list[str]:
    """Sources of the solution's cells with other answers to some questions."""
    found = list(cells)
    for question, source in answers.items():
        place = found.index(f'grader.check("{question}")') - 1
        found[place] = source.replace("{solution}", found[place])
    return found


def with_answers(solution: Path, answers: dict[str, str], target: Path) -> None:
    """Write the solution notebook with other answers to some questions."""
    nb = nbformat.read(solution, 4)
    for cell, source in zip(nb.cells, answered([cell.source for cell in nb.cells], answers), strict=True):
        cell.source = source
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, target)


def run_plainly(notebook: Path) -> list:
    """Run a notebook as a student would, errors allowed; the outputs of each code cell with its source."""
    nb = nbformat.read(notebook, 4)
    client = NotebookClient(
        nb,
        timeout=120,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(notebook.parent)}},
    )
    client.execute()
    return [(cell.source, text_of(cell.outputs), cell.outputs) for cell in nb.cells if cell.cell_type == "code"]


def text_of(outputs: list) -> str:
    """All that outputs say, as text."""
    parts = [o.get("text", "") + o.get("data", {}).get("text/plain", "") + o.get("evalue", "") for o in outputs]
    return "\n".join(parts)


@cache
def cells_of(notebook: Path) -> tuple[str, ...]:
    """Sources of a notebook's cells of code."""
    return tuple(cell.source for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code")


@cache
def compiled(source: str) -> CodeType | None:
    """A cell of which nothing but functions is made; None for another."""
    if not re.match(r"\s*def ", source):
        return None
    parts = ast.parse(source)
    return compile(parts, "<answer>", "exec") if all(isinstance(p, ast.FunctionDef) for p in parts.body) else None


def functions_of(cells: Sequence[str]) -> dict:
    """The functions that a notebook's cells define, run in this process."""
    env: dict = {"np": np, "torch": torch, "permutations": permutations, "linear_sum_assignment": linear_sum_assignment}
    for code in map(compiled, cells):
        if code is not None:
            exec(code, env)
    return env


@pytest.fixture(scope="module")
def functions() -> dict:
    """The functions of the solution."""
    return functions_of(cells_of(FIRST.master))


@cache
def checks_of(autograder: Path) -> dict[str, str]:
    """The file of checks of each question."""
    with zipfile.ZipFile(autograder) as archive:
        files = [name for name in archive.namelist() if re.fullmatch(r"tests/q\w+\.py", name)]
        return {Path(name).stem: archive.read(name).decode() for name in files}


def run_checks(cells: Sequence[str], made: Made, questions: list[str] | None = None) -> list:
    """Run all checks of an assignment, or some questions', on the functions of some cells, in this process."""
    from otter.test_files.exception_test import ExceptionTestFile

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        env, checks = functions_of(cells), checks_of(made.autograder)
        tests = [ExceptionTestFile.from_string(checks[q], q) for q in questions or made.possible]
        for test in tests:
            test.run(env)
    finally:
        torch.set_default_dtype(before)
    return tests


@pytest.fixture(scope="module")
def graded(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The table of grades of a small class, by the command that the page for teachers gives."""
    folder = tmp_path_factory.mktemp("class")
    submissions = folder / "submissions"
    for name, answers in {
        "root": "forgets the root",
        "batch.v2": "takes the whole batch",
        "Moodle_123 file/unweighted": "does not weight",
    }.items():
        with_answers(made.solution, handed_in(answers), submissions / f"{name}.ipynb")
    zipped = submissions / "Moodle_123 file" / "packed.zip"
    packed = submissions / "Moodle_123 file" / "unweighted.ipynb"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(packed, "deep/er/Üngewichtet (1).ipynb")
        archive.writestr("__MACOSX/deep/er/._x.ipynb", "not a notebook")
    packed.unlink()
    (submissions / "damaged.ipynb").write_text('{"cells": [')
    with zipfile.ZipFile(submissions / "empty.zip", "w") as archive:
        archive.writestr("notes.txt", "I could not do it")
    arguments = [submissions, "--autograder", made.autograder, "--out", folder / "grades.csv"]
    grade.main([str(a) for a in [*arguments, "--feedback", folder / "feedback", "--timeout", "200"]])
    with (folder / "grades.csv").open(encoding="utf8") as file:
        rows = {row["submission"]: row for row in csv.DictReader(file)}
    for name, row in rows.items():
        row["feedback"] = (folder / "feedback" / f"{name}.txt").read_text("utf8")
    return rows


def lost(row: dict[str, str]) -> dict[str, float]:
    """Marks that a submission lost, by question."""
    return {q: possible - float(row[q]) for q, possible in FIRST.possible.items() if float(row[q]) < possible}


# --- the mathematics of the solution ----------------------------------------------------------------------------


def test_solution_distance_agrees_with_the_core_and_with_pot(functions: dict) -> None:
    ot = pytest.importorskip("ot")
    from hetfl_core.distances import bures_wasserstein

    rng = np.random.default_rng(0)
    for k in (1, 3, 6):
        m1, m2 = rng.normal(size=(2, k))
        A, B = rng.normal(size=(2, k, k))
        ours = functions["w2_squared"](m1, A @ A.T, m2, B @ B.T)
        assert np.isclose(ours, ot.gaussian.bures_wasserstein_distance(m1, m2, A @ A.T, B @ B.T) ** 2)
        assert np.isclose(ours, bures_wasserstein(*map(torch.tensor, (m1, A @ A.T, m2, B @ B.T))).item())


def test_solution_anchor_loss_is_the_distance_summed_over_classes(functions: dict) -> None:
    rng = np.random.default_rng(1)
    z, y, v = rng.normal(size=(30, 4)), np.repeat([0, 2, 3], [5, 24, 1]), rng.normal(size=(5, 4))
    found = functions["anchor_loss"](torch.tensor(z), torch.tensor(y), torch.tensor(v)).item()
    parts = [functions["class_gaussian"](torch.tensor(z), torch.tensor(y), c) for c in (0, 2, 3)]
    each = [
        functions["w2_squared"](v[c], np.eye(4), *map(np.asarray, p)) for c, p in zip((0, 2, 3), parts, strict=True)
    ]
    assert np.isclose(found, sum(each))


# --- generation -------------------------------------------------------------------------------------------------


def test_every_master_is_tested() -> None:
    assert [assignment.master for assignment in ASSIGNMENTS] == generate.masters()


def test_the_page_of_the_book_is_in_step_with_the_master(made: Made) -> None:
    page = generate.tracked_page(made.assignment.master)
    generated = made.student.read_text("utf8")
    assert page.read_text("utf8") == generated, f"{page.name} is out of date: run 'make assignments'"


def test_generation_is_deterministic(made: Made, tmp_path: Path) -> None:
    generate.generate(made.assignment.master, tmp_path, check_solution=False)
    files = [p.relative_to(made.folder) for p in made.folder.rglob("*") if p.is_file()]
    notebook = f"{made.assignment}.ipynb"
    assert sorted(map(str, files)) == ["autograder.zip", f"solution/{notebook}", f"student/{notebook}"]
    for file in files:
        assert (tmp_path / file).read_bytes() == (made.folder / file).read_bytes(), f"{file} differs from run to run"


def test_no_outputs_and_no_secrets(made: Made) -> None:
    for path in (made.assignment.master, made.student):
        for cell in nbformat.read(path, 4).cells:
            assert not cell.get("outputs"), f"{path.name} has outputs"
            assert cell.get("execution_count") is None, f"{path.name} has execution counts"
    student, solution = made.student.read_text("utf8"), made.solution.read_text("utf8")
    for secret in ("hidden=True", "BEGIN SOLUTION"):
        assert secret not in student, f"the hand-out gives away {secret!r}"
    for secret in ("_hidden(", *made.assignment.secrets):
        assert secret not in student, f"the hand-out gives away {secret!r}"
        assert secret in solution, f"{secret!r} is no longer in the solution: name another piece of it"


def test_marks_in_text_and_checks_must_agree(tmp_path: Path, made: Made) -> None:
    assert grade.questions(made.autograder) == made.possible
    for old, new in (("(2 marks)", "(3 marks)"), ("**20**", "**21**"), (" of the 20 marks", "1 of the 20 marks")):
        changed = tmp_path / "changed.ipynb"
        changed.write_text(made.assignment.master.read_text("utf8").replace(old, new, 1), "utf8")
        with pytest.raises(ValueError, match="promise"):
            generate.generate(changed, tmp_path / "out", check_solution=False)


# --- full marks, and the student's view -------------------------------------------------------------------------


@first_only
def test_solution_gets_full_marks_by_otter_run_under_another_name(made: Made, tmp_path: Path) -> None:
    renamed = tmp_path / "Ada Lovelace, final (2).ipynb"
    renamed.write_bytes(made.solution.read_bytes())
    assert marks_by_otter_run(renamed, made.autograder) == made.possible


def marks_by_otter_run(notebook: Path, autograder: Path) -> dict[str, float]:
    """Marks of each question that ``otter run`` gives."""
    folder = notebook.parent
    command = [sys.executable, "-m", "otter", "run", str(notebook), "-a", str(autograder), "-o", str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder)
    assert said.returncode == 0, said.stderr
    results = json.loads((folder / "results.json").read_text())["tests"]
    marks = {t["name"].split(" ")[0]: 0.0 for t in results if t.get("max_score")}
    for t in results:
        if t.get("max_score"):
            marks[t["name"].split(" ")[0]] += t["score"]
    return marks


WITH_AN_OPTIMIZER = """
def local_update(client, phi, shared, loss, steps, lr):
    x, y = client.x_train, client.y_train
    phi = {name: t.detach().clone().requires_grad_() for name, t in phi.items()}
    shared = {name: t.detach().clone() for name, t in shared.items()}
    optimizer = torch.optim.SGD(phi.values(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(phi, shared, x, y).backward()
        optimizer.step()
    phi = {name: t.detach() for name, t in phi.items()}
    shared = {name: t.requires_grad_() for name, t in shared.items()}
    optimizer = torch.optim.SGD(shared.values(), lr=lr)
    loss(phi, shared, x, y).backward()
    optimizer.step()
    return phi, {name: t.detach() for name, t in shared.items()}
"""
COMPILED = """
@torch.compile(backend="eager")
def compiled(m1, var1, m2, var2):
    return (m1 - m2) ** 2 + (var1.sqrt() - var2.sqrt()) ** 2


def w2_squared_1d(m1, var1, m2, var2):
    return compiled(*(torch.as_tensor(np.asarray(value, dtype=float)) for value in (m1, var1, m2, var2))).numpy()
"""


@first_only
@pytest.mark.parametrize("question", ["q3_1", "q1_1"])
def test_both_graders_give_full_marks_to_what_pytorch_imports_when_it_is_called(
    made: Made, tmp_path: Path, question: str
) -> None:
    """An optimizer made within a function, and a function that is compiled when it is first called."""
    answer = {"q3_1": WITH_AN_OPTIMIZER, "q1_1": COMPILED}[question]
    with_answers(made.solution, {question: answer}, tmp_path / "a.ipynb")
    result = grade.grade(tmp_path / "a.ipynb", made.autograder)
    assert (result.marks, result.message, result.flags) == (made.possible, "", []), result.feedback
    assert marks_by_otter_run(tmp_path / "a.ipynb", made.autograder) == made.possible


@first_only
def test_another_assignment_is_known_by_its_metadata_or_by_what_it_defines(made: Made, tmp_path: Path) -> None:
    """All have questions of the same names. A notebook without metadata is known by the functions that it defines."""
    for name, page, kept in (
        ("new", FOURTH, True),
        ("old", SIXTH, False),
        ("own", FIRST, True),
        ("own old", FIRST, False),
    ):
        nb = nbformat.read(generate.tracked_page(page.master), 4)
        assert nb.metadata["hetfl"] == {"assignment": str(page)}
        if not kept:
            del nb.metadata["hetfl"]
        nbformat.write(nb, tmp_path / f"{name}.ipynb")
    how = grade.plan(made.autograder)
    assert how.assignment == "assignment1"
    results = {each.submission: each for each in grade.grade_all(tmp_path, how)}
    assert [each.total for each in results.values()] == [0] * 4
    assert results["new.ipynb"].message == (
        "this is assignment4, and the checks are those of assignment1: hand in the other notebook"
    )
    assert results["old.ipynb"].message.startswith("is this another assignment? It defines 0 of the ")
    assert [results[f"{name}.ipynb"].message for name in ("own", "own old")] == ["", ""]


OPTIMIZES = SECOND
"""The solution to which a cell is added that makes an optimizer; its checks import PyTorch, and not its compiler."""

OPTIMIZER = "import torch\n\ntorch.optim.Adam([torch.zeros(2, requires_grad=True)])"


@pytest.mark.parametrize("made", ASSIGNMENTS[1:], indirect=True, ids=str)
def test_solution_gets_full_marks_from_the_grader(made: Made, tmp_path: Path) -> None:
    """Where only plain values cross between solution and checks; the first one's are handed in by a class, below.

    An optimizer is no sign of tampering, though PyTorch replaces `torch.manual_seed` when the first one is made.
    """
    (tmp_path / "class").mkdir()
    nb = nbformat.reads(shortened(made.solution), 4)
    if made.assignment is OPTIMIZES:
        nb.cells.append(nbformat.v4.new_code_cell(OPTIMIZER))
    nbformat.write(nb, tmp_path / "class" / "solution.ipynb")
    grade.main([str(tmp_path / "class"), "--autograder", str(made.autograder), "--out", str(tmp_path / "grades.csv")])
    with (tmp_path / "grades.csv").open(encoding="utf8") as file:
        (row,) = csv.DictReader(file)
    assert {question: float(row[question]) for question in made.possible} == made.possible, row["message"]
    assert row["flags"] == ""


@pytest.fixture(scope="module")
def in_jupyter(made: Made, tmp_path_factory: pytest.TempPathFactory) -> tuple[list, list]:
    """What the untouched hand-out and then the solution say in one kernel, under another name."""
    folder = tmp_path_factory.mktemp("jupyter")
    untouched, solved = nbformat.read(made.student, 4), nbformat.reads(shortened(made.solution), 4)
    n = sum(cell.cell_type == "code" for cell in untouched.cells)
    untouched.cells += solved.cells
    for i, cell in enumerate(untouched.cells):
        cell.id = f"cell-{i}"
    nbformat.write(untouched, folder / "my own name.ipynb")
    (folder / "another.ipynb").write_text("", "utf8")
    cells = run_plainly(folder / "my own name.ipynb")
    return cells[:n], cells[n:]


@first_only
def test_solution_runs_in_jupyter_under_another_name(made: Made, in_jupyter: tuple[list, list]) -> None:
    _, cells = in_jupyter
    for source, said, outputs in cells:
        assert not [o for o in outputs if o.output_type == "error"], f"{source}\n{said}"
    checks = {source: said for source, said, _ in cells if source.startswith("grader.check(")}
    assert list(checks) == [f'grader.check("{q}")' for q in made.possible]
    assert all("All test cases passed!" in said for said in checks.values())


SHORTER = {
    "rounds=30": "rounds=2",
    "LR = 100, 0.01, 0.2": "LR = 31, 0.01, 0.2",
    "ROUNDS = 300": "ROUNDS = 3",
    "Classifier(100": "Classifier(5",
    "grader.check_all()": "pass",
}
"""What the cells that print and draw do at length, and what is checked a second time."""


def shortened(solution: Path) -> str:
    """The text of a solution that prints and draws less."""
    text = solution.read_text("utf8")
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


def test_solution_runs_from_top_to_bottom(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its cells in this process, as a kernel costs seconds; the first one's are run by a kernel, too.

    What the text tells a student to expect is printed.
    """
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    said, env, expected, printed = {}, {"__name__": "__main__"}, [], io.StringIO()
    try:
        for cell in nbformat.reads(shortened(made.solution), 4).cells:
            if cell.cell_type == "markdown" and "*What to expect" in cell.source:
                expected += re.findall(r"`([^`]+)`", cell.source.partition("*What to expect")[2])
            if cell.cell_type == "code":
                parts = ast.parse(TransformerManager().transform_cell(cell.source))
                last = parts.body.pop() if isinstance(parts.body[-1], ast.Expr) else None
                with contextlib.redirect_stdout(printed):
                    exec(compile(parts, made.solution.name, "exec"), env)
                if last is not None:
                    expression = compile(ast.Expression(last.value), made.solution.name, "eval")
                    with contextlib.redirect_stdout(printed):
                        said[cell.source] = str(eval(expression, env))
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)
        matplotlib.pyplot.close("all")
    checks = [f'grader.check("{q}")' for q in made.possible]
    assert [source for source in said if source.startswith("grader.check(")] == checks
    assert all("All test cases passed!" in said[source] for source in checks)
    assert [line for line in expected if line not in printed.getvalue()] == []


@first_only
def test_untouched_student_version_runs_and_gives_hints(made: Made, in_jupyter: tuple[list, list]) -> None:
    cells, _ = in_jupyter
    checks = {source: said for source, said, _ in cells if source.startswith("grader.check(")}
    assert len(checks) == len(made.possible)
    for source, said in checks.items():
        assert "returns nothing yet" in said, f"{source} says:\n{said}"


# --- a class ----------------------------------------------------------------------------------------------------


@first_only
def test_table_has_a_row_for_every_submission(graded: dict) -> None:
    names = ["Moodle_123 file/packed.zip", "batch.v2.ipynb", "damaged.ipynb", "empty.zip", "root.ipynb"]
    assert sorted(graded) == names
    assert {row["out_of"] for row in graded.values()} == {"20"}
    for row in graded.values():
        assert float(row["total"]) == sum(float(row[q]) for q in FIRST.possible)


@first_only
@pytest.mark.parametrize(
    ("name", "expected", "hint"),
    [
        ("root.ipynb", {"q1_1": 2}, "you subtracted the variances"),
        ("batch.v2.ipynb", {"q2_1": 2, "q2_2": 3}, "divides by n - 1"),
        ("Moodle_123 file/packed.zip", {"q3_2": 2, "q3_3": 2}, "this is the unweighted mean"),
    ],
)
def test_a_class_loses_marks_where_it_is_wrong(graded: dict, name: str, expected: dict, hint: str) -> None:
    row = graded[name]
    assert row["message"] == ""
    assert lost(row) == expected
    assert hint in row["feedback"]


@first_only
def test_what_passes_the_visible_checks_only_loses_the_hidden_marks(made: Made) -> None:
    tests = run_checks(answered(cells_of(made.solution), handed_in("copies the hints only")), made)
    missed = {t.name: t.possible - t.score for t in tests if not t.passed_all}
    assert missed == {"q1_3": 2, "q2_1": 1, "q2_2": 1, "q3_1": 2, "q3_2": 1}
    assert all(t.passed_all_public for t in tests)
    text = "\n".join(map(grade.feedback, tests))
    assert text.count("1 hidden check failed") == 5
    assert "nan or inf" not in text, "feedback must not tell what the hidden checks are"


def test_untouched_hand_out_gets_nothing(made: Made) -> None:
    tests = run_checks(cells_of(made.student), made)
    assert [t.score for t in tests] == [0] * len(made.possible)
    assert all("returns nothing yet" in grade.feedback(t) for t in tests)


@first_only
def test_broken_submissions_get_zero_and_a_message(graded: dict) -> None:
    assert "not a notebook" in graded["damaged.ipynb"]["message"]
    assert "found 0" in graded["empty.zip"]["message"]
    for name in ("damaged.ipynb", "empty.zip"):
        assert graded[name]["total"] == "0"
        assert graded[name]["message"] in graded[name]["feedback"]


def test_page_for_teachers_names_real_files_and_options() -> None:
    page = (FOLDER / "teachers.md").read_text("utf8")
    command = next(b for b in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "grade.py" in b)
    helped = subprocess.run([sys.executable, FOLDER / "grade.py", "--help"], capture_output=True, text=True)
    for option in re.findall(r"--[a-z-]+", command):
        assert option in helped.stdout, f"grade.py has no option {option}"
    for assignment in ASSIGNMENTS:
        link = f"({generate.tracked_page(assignment.master).name})"
        (row,) = [line for line in page.splitlines() if link in line and "|" in line]
        assert row.endswith(f"| {sum(assignment.possible.values())} |")


# --- Assignment 2 -----------------------------------------------------------------------------------------------


def test_second_solution_is_the_core_s_algorithm() -> None:
    from hetfl_book.theory import flic as theory
    from hetfl_book.theory import flic_bound

    solution = functions_of(cells_of(SECOND.master))
    federation = theory.linear_federation(n_clients=20, seed=4)
    signs = theory.random_signs(20, 4)
    for client, phi in zip(federation.clients, federation.estimated(signs)):
        np.testing.assert_allclose(
            solution["closed_form_phi"](client.covariance.numpy(), 20, signs.numpy()), phi.weight
        )
    z, y = federation.embed(federation.estimated(signs))
    ours = theory.flic_fedrep(z, y, 2, rounds=30, step=0.2)
    found = torch.from_numpy(solution["algorithm_s3"](z.numpy(), y.numpy(), 2, 30, 0.2))
    torch.testing.assert_close(found @ found.mT, ours @ ours.mT)
    truth = signs[:, None] * federation.A
    distances = theory.distances_to(ours, truth)
    np.testing.assert_allclose([solution["principal_angle"](A, truth.numpy()) for A in found.numpy()], distances)
    assert np.isclose(solution["rate"](distances.numpy()), theory.measured_rate(distances))
    bound = flic_bound.convergence_bound(ours[0], truth, federation.heads)
    kappa = solution["bound_kappa"](ours[0].numpy(), truth.numpy(), federation.heads.numpy(), bound.step)
    assert np.isclose(kappa, bound.kappa)


# --- Assignment 3 -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def third() -> dict:
    """The functions of the third solution."""
    return functions_of(cells_of(THIRD.master))


def spd(rng: np.random.Generator, n: int, q: int) -> np.ndarray:
    """Random SPD matrices, shape (n, q, q)."""
    A = rng.normal(size=(n, q, q + 3))
    return A @ np.swapaxes(A, 1, 2)


def test_third_solution_covariance_is_pyriemanns(third: dict) -> None:
    estimation = pytest.importorskip("pyriemann.estimation")
    trials = np.random.default_rng(0).normal(size=(6, 4, 50)) + 3
    plain = estimation.Covariances("cov").transform(trials)
    ours = [third["covariance"](trial, 0.2) for trial in trials]
    np.testing.assert_allclose(ours, estimation.Shrinkage(0.2).transform(plain))


@pytest.mark.parametrize("q", [1, 3, 8])
def test_third_solution_geometry_is_pyriemanns(third: dict, q: int) -> None:
    pytest.importorskip("pyriemann.geometry")
    from pyriemann.geometry.base import logm
    from pyriemann.geometry.distance import distance_riemann
    from pyriemann.geometry.mean import mean_riemann
    from pyriemann.geometry.tangentspace import tangent_space

    S = spd(np.random.default_rng(q), 9, q)
    np.testing.assert_allclose(third["matrix_function"](S[0], np.log), logm(S[0]), atol=1e-10)
    assert np.isclose(third["riemannian_distance"](S[0], S[1]), distance_riemann(S[0], S[1]))
    mean = third["geometric_mean"](S)
    np.testing.assert_allclose(mean, mean_riemann(S, tol=1e-12, maxiter=200), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(third["tangent_vectors"](S, S[0]), tangent_space(S, S[0]), atol=1e-9)
    x, t = third["client_features"](S[:5], S[5:])
    np.testing.assert_allclose(t, tangent_space(S[5:], mean_riemann(S[:5], tol=1e-12, maxiter=200)), atol=1e-6)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-9)


def test_third_solution_anchor_distance_is_the_core_s(third: dict) -> None:
    from hetfl_core.distances import bures_wasserstein
    from hetfl_core.methods.anchor_terms import class_wasserstein

    rng = np.random.default_rng(2)
    z, y, v = rng.normal(size=(40, 3)), np.repeat([0, 2, 3], [20, 19, 1]), rng.normal(size=(5, 3))
    found = third["anchor_distances"](z, y, v)
    assert np.isnan(found[[1, 4]]).all()
    for c in (0, 2):
        moments = z[y == c].mean(axis=0), np.cov(z[y == c], rowvar=False)
        want = bures_wasserstein(*map(torch.tensor, (v[c], np.eye(3), *moments)))
        assert np.isclose(found[c], want.item())
    total = class_wasserstein(torch.tensor(z), torch.tensor(y), torch.ones(40), torch.tensor(v))
    assert np.isclose(np.nansum(found), total.item())


def test_embedding_of_the_third_meets_the_anchors_whatever_the_features_are_scaled_by(third: dict) -> None:
    rng = np.random.default_rng(3)
    anchors = np.array([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    y = np.repeat(range(3), 200)
    hidden = np.hstack([anchors[y], np.zeros((600, 3))]) + rng.normal(size=(600, 5))
    x = hidden @ rng.normal(size=(5, 5)) + rng.normal(size=5)
    z = third["embedding"](x, y, anchors)(x)
    assert np.nanmax(third["anchor_distances"](z, y, anchors)) < 0.1
    centred = z - np.stack([z[y == c].mean(axis=0) for c in range(3)])[y]
    np.testing.assert_allclose(centred.T @ centred / 597, np.eye(2), atol=1e-9)
    turned = x @ rng.normal(size=(5, 5))
    np.testing.assert_allclose(third["embedding"](turned, y, anchors)(turned), z, atol=1e-8)


# --- Assignment 4 -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fourth() -> dict:
    """The functions of the fourth solution."""
    return functions_of(cells_of(FOURTH.master))


@pytest.mark.parametrize("prior", [False, True])
def test_fourth_solution_multiplies_as_the_core_does(fourth: dict, prior: bool) -> None:
    from hetfl_book.theory.fedcr import effective_samples
    from hetfl_core.distances import product_of_experts

    rng = np.random.default_rng(0)
    means, variances = torch.tensor(rng.normal(size=(5, 3, 2))), torch.tensor(rng.gamma(2, size=(5, 3, 2)))
    found, want = fourth["product"](means, variances, prior), product_of_experts(means, variances, prior=prior)
    for ours, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(ours, theirs)
    claimed, true = fourth["claimed_and_true"](2.0, 100, 0.1)
    assert np.isclose(true / claimed, 100 / effective_samples(100, 0.1))


def test_fourth_solution_has_the_core_s_term_and_likelihood(fourth: dict) -> None:
    from hetfl_core.distances import gaussian_kl
    from hetfl_core.methods.stochastic import mean_log_probability

    rng = np.random.default_rng(1)
    m, mu = torch.tensor(rng.normal(size=(2, 7, 3)))
    v, s2 = torch.tensor(rng.gamma(2, size=(2, 7, 3)))
    torch.testing.assert_close(fourth["term"](m, v, mu, s2), gaussian_kl(m, v, mu, s2))
    best, least = fourth["best_deviation"](m, v, mu)
    torch.testing.assert_close(fourth["term"](m, v, mu, best**2), least.sum(1))
    logits, y = torch.tensor(rng.normal(size=(6, 4, 3))), torch.arange(6) % 3
    torch.testing.assert_close(
        fourth["mixture_loss"](logits, y), -mean_log_probability(logits)[torch.arange(6), y], check_dtype=False
    )


def test_a_term_makes_clouds_grow_or_shrink_whatever_the_seed(fourth: dict) -> None:
    """The theory that the hidden check of Question 5.3 leans on: one dimension, one small step, one wish of all."""
    from hetfl_core.datasets import digits
    from hetfl_core.networks import MLP, Model
    from hetfl_core.rng import stream

    model = Model(MLP(hidden=(), out=12, last="relu"), gaussian=1)
    for seed in range(6):
        g = stream(seed, "test", 0, "grown")
        federation = digits.bundled(4, 3, seed=seed).to(torch.float64)
        clients = [client for client in federation if client.name.startswith("fine")]
        spec = federation.specs()[0]
        body = model.init(spec, g, ("phi", "gaussian"))
        params = [{n: p.double() for n, p in (body | model.init(spec, g, ("beta",))).items()} for _ in clients]
        noise = [[torch.randn(len(c.y_train), 5, 1, generator=g, dtype=torch.float64) for c in clients]]
        means = [fourth["posterior"](own, c.x_train)[0] for own, c in zip(params, clients, strict=True)]
        joint = torch.zeros(10, 1, dtype=torch.float64)
        wide = {"mean": joint, "variance": joint + 25}
        sharp = {"mean": joint + torch.cat(means).mean(), "variance": joint + 1e-3}
        assert fourth["grown"](params, wide, clients, noise, 0.01, 0.05) == (1, 1)
        measured, predicted = fourth["grown"](params, sharp, clients, noise, 0.01, 0.05)
        assert measured == 0
        assert predicted < 0.05


def test_fifth_solution_draws_as_the_core_does() -> None:
    """As many samples of each client and class as the library's even choice has, and rounds as a loop counts them."""
    from hetfl_book import discriminator
    from hetfl_core.rng import numpy_stream

    functions = functions_of(cells_of(FIFTH.master))
    rng = numpy_stream(0, "test", 0, "even")
    client, label = rng.integers(5, size=400), rng.integers(7, size=400)
    label[client == 3] = 6
    mine, theirs = functions["even"](client, label, 0), discriminator._balanced(label, client, rng)
    for c in range(5):
        for k in range(7):
            assert ((client == c) & (label == k))[mine].sum() == ((client == c) & (label == k))[theirs].sum()
    for step, rest in [(0.3, 0.1), (0.01, 0.5), (0.9, 1e-9)]:
        t = 1
        while (1 - step) ** t > rest:
            t += 1
        assert functions["rounds_until"](step, rest) == t


# --- Assignment 6 -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sixth() -> dict:
    """The functions of the solution."""
    return functions_of(cells_of(SIXTH.master))


@pytest.mark.parametrize("seed", range(4))
def test_sixth_solution_matches_as_the_core_does(sixth: dict, seed: int) -> None:
    """Costs, rows and Eq. (11) of clients that lack coordinates; then a pass, both ways, where nobody lacks any."""
    from hetfl_core.matching import Neurons, Rule, cost_matrix, match

    rng = np.random.default_rng(seed)
    M, H, h, D = 4, 5, 3, 6
    held, weights = (rng.random((M, D)) > 0.3).astype(float), rng.random(M) + 0.1
    clients, places = rng.normal(size=(M, h, D)) * held[:, None], np.stack([rng.permutation(H)[:h] for _ in range(M)])
    before = rng.normal(size=(H, D))
    neurons = [
        Neurons(torch.from_numpy(w), torch.from_numpy(has), float(p))
        for w, has, p in zip(clients, held, weights, strict=True)
    ]
    theirs = match(neurons, list(torch.from_numpy(places)), width=H, passes=0)
    mine = sixth["server_rows"](clients, held, places, weights, before)
    np.testing.assert_allclose(mine, theirs.rows(torch.from_numpy(before)).numpy(), atol=1e-12)
    assert sixth["objective"](clients, held, places, weights, mine) == pytest.approx(theirs.objective())
    others = [np.delete(part, 1, axis=0) for part in (clients, held, places, weights)]
    rows = sixth["server_rows"](*others, np.zeros((H, D)))
    found = sixth["costs"](clients[1], held[1], rows)
    np.testing.assert_allclose(found, cost_matrix(theirs, 1, Rule()).numpy(), atol=1e-12)

    clients = rng.normal(size=(M, h, D))
    neurons = [
        Neurons(torch.from_numpy(w), torch.ones(D, dtype=torch.float64), float(p))
        for w, p in zip(clients, weights, strict=True)
    ]
    begun = np.tile(np.arange(h), (M, 1))
    for at_once, order in ((True, "parallel"), (False, "sequential")):
        core = match(neurons, passes=1, rule=Rule(order=order)).indices
        assert sixth["one_pass"](clients, weights, begun, at_once).tolist() == [p.tolist() for p in core]


def test_sixth_solution_raises_the_objective_at_once_and_finds_what_is_planted_one_by_one(sixth: dict) -> None:
    """The numbers that its text names: 7, then 23/3 or 1; and none or all of twenty draws."""
    nb = nbformat.read(SIXTH.master, 4)
    (source,) = [cell.source for cell in nb.cells if cell.source.startswith("def watched(")]
    exec(source, sixth)
    three = np.array([[4.0, 0.0], [0.0, 3.0], [2.0, 0.0]])[:, :, None]
    found = {}
    for at_once, after in ((True, 23 / 3), (False, 1.0)):
        assert sixth["watched"](three, np.ones(3), at_once, 1)[1] == pytest.approx([7, after])
        found[at_once] = 0
        for seed in range(20):
            clients, orders = sixth["planted"](seed)
            places, seen = sixth["watched"](clients, np.full(4, 0.25), at_once, 8)
            found[at_once] += sixth["recovered"](orders, places)
            assert at_once or max(np.diff(seen)) < 1e-9
    assert found == {True: 0, False: 20}


# --- wrong answers to all but the first -------------------------------------------------------------------------


WRONG_ANSWERS = [
    pytest.param(assignment, wrong, wrong["question"] not in [w["question"] for w in answers[:i]],
                 id=f"{assignment}-{wrong['name']}")
    for assignment in ASSIGNMENTS[1:]
    for answers in [wrong_answers(assignment.number)]
    for i, wrong in enumerate(answers)
]  # fmt: skip
"""Each wrong answer, and whether it is the first to its question."""


@pytest.mark.parametrize(("made", "wrong", "first"), WRONG_ANSWERS, indirect=["made"])
def test_wrong_answers_are_caught_by_their_question(made: Made, wrong: dict, first: bool) -> None:
    """With the first to a question all others are checked, too: no mark is lost but there."""
    question, hint = wrong["question"], wrong.get("hint")
    cells = answered(cells_of(made.solution), {question: wrong["code"]})
    tests = run_checks(cells, made, None if first else [question])
    assert {t.name: t.possible - t.score for t in tests if not t.passed_all} == {question: wrong["marks"]}
    (failed,) = [t for t in tests if not t.passed_all]
    assert failed.passed_all_public == (hint is None)
    said = grade.feedback(failed)
    assert re.search(hint or "1 hidden check failed", said), said


def test_each_question_is_answered_wrongly() -> None:
    for assignment in ASSIGNMENTS:
        wrong = wrong_answers(assignment.number)
        assert {answer["question"] for answer in wrong} | ({"q1_2"} if assignment is FIRST else set()) == (
            assignment.possible.keys()
        )
        names = [(answer["name"], answer["question"]) for answer in wrong]
        assert len(set(names)) == len(names)
