"""Assignments: generated, graded, wrong answers caught by the right question, and a class graded without Docker."""

import ast
import contextlib
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import matplotlib.pyplot
import nbformat
import numpy as np
import pytest
import torch
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from scipy.optimize import linear_sum_assignment

pytest.importorskip("otter", reason="otter-grader is not installed")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "book" / "assignments"
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


# Wrong answers that one meets: question -> new source of its cell. `{solution}` stands for the right one.
FORGETS_ROOT = {"q1_1": "def w2_squared_1d(m1, var1, m2, var2):\n    return (m1 - m2) ** 2 + (var1 - var2) ** 2"}
WHOLE_BATCH = {
    "q2_1": """
def class_gaussian(z, y, c):
    rows = z[y == c]
    centred = rows - rows.mean(dim=0)
    return rows.mean(dim=0), centred.T @ centred / len(rows)
""",
    "q2_2": """{solution}
right = anchor_loss


def anchor_loss(z, y, anchors):
    here = y.unique()
    means = torch.stack([z[y == c].mean(dim=0) for c in here])
    wrong = ((anchors[here] - z.mean(dim=0)) ** 2).sum() - ((anchors[here] - means) ** 2).sum()
    return right(z, y, anchors) + wrong
""",
}
UNWEIGHTED = {
    "q3_2": """
def aggregate(uploads, sizes):
    return {name: sum(upload[name] for upload in uploads) / len(uploads) for name in uploads[0]}
""",
    "q3_3": """{solution}
right_round = federated_round


def federated_round(*args, **kwargs):
    new_phis, new_shared = right_round(*args, **kwargs)
    mean = {name: sum(p[name] for p in new_phis.values()) / len(new_phis) for name in next(iter(new_phis.values()))}
    return {client: mean for client in new_phis}, new_shared
""",
}
# All visible checks pass: what a copied hint misses.
HINT_ONLY = {
    "q1_3": """
def w2_squared(m1, S1, m2, S2):
    from hetfl_core.distances import bures_wasserstein

    return bures_wasserstein(*map(torch.as_tensor, (m1, S1, m2, S2))).item()
""",
    "q2_1": """
def class_gaussian(z, y, c):
    return z[y == c].mean(dim=0), torch.cov(z[y == c].T)
""",
    "q2_2": """
def anchor_loss(z, y, anchors):
    loss = 0
    for c in y.unique():
        rows = z[y == c]
        centred = rows - rows.mean(dim=0)
        eigenvalues = torch.linalg.eigvalsh(centred.T @ centred / max(len(rows) - 1, 1)).clamp(min=0)
        loss = loss + ((anchors[c] - rows.mean(dim=0)) ** 2).sum() + ((eigenvalues.sqrt() - 1) ** 2).sum()
    return loss
""",
    "q3_1": """
def local_update(client, phi, shared, loss, steps, lr):
    phi = {n: t.clone().requires_grad_() for n, t in phi.items()}
    shared = {n: t.clone().requires_grad_() for n, t in shared.items()}
    for tensors, count in ((phi, steps), (shared, 1)):
        for _ in range(count):
            value = loss(phi, shared, client.x_train, client.y_train)
            gradients = torch.autograd.grad(value, list(tensors.values()))
            for t, g in zip(tensors.values(), gradients):
                t.data -= lr * g
    return {n: t.detach() for n, t in phi.items()}, {n: t.detach() for n, t in shared.items()}
""",
    "q3_2": """
def aggregate(uploads, sizes):
    first, second = uploads
    share = sizes[0] / (sizes[0] + sizes[1])
    return {name: share * first[name] + (1 - share) * second[name] for name in first}
""",
}


def with_answers(solution: Path, answers: dict[str, str], target: Path) -> None:
    """Write the solution notebook with other answers to some questions."""
    nb = nbformat.read(solution, 4)
    for question, source in answers.items():
        check = next(i for i, c in enumerate(nb.cells) if c.source == f'grader.check("{question}")')
        nb.cells[check - 1].source = source.replace("{solution}", nb.cells[check - 1].source)
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


def functions_of(notebook: Path) -> dict:
    """The functions that a notebook defines, run in this process."""
    env: dict = {"np": np, "torch": torch, "permutations": permutations, "linear_sum_assignment": linear_sum_assignment}
    for cell in nbformat.read(notebook, 4).cells:
        if cell.cell_type == "code" and re.match(r"\s*def ", cell.source):
            parts = ast.parse(cell.source).body
            if all(isinstance(part, ast.FunctionDef) for part in parts):
                exec(cell.source, env)
    return env


@pytest.fixture(scope="module")
def functions() -> dict:
    """The functions of the solution."""
    return functions_of(FIRST.master)


def run_checks(notebook: Path, made: Made, questions: list[str] | None = None) -> list:
    """Run all checks of an assignment, or some questions', on the functions of a notebook, in this process."""
    from otter.test_files.exception_test import ExceptionTestFile

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        env = functions_of(notebook)
        with zipfile.ZipFile(made.autograder) as archive:
            tests = [
                ExceptionTestFile.from_string(archive.read(f"tests/{q}.py").decode(), q)
                for q in questions or made.possible
            ]
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
        "root": FORGETS_ROOT,
        "batch.v2": WHOLE_BATCH,
        "Moodle_123 file/unweighted": UNWEIGHTED,
    }.items():
        with_answers(made.solution, answers, submissions / f"{name}.ipynb")
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
    command = [
        sys.executable,
        "-m",
        "otter",
        "run",
        str(renamed),
        "-a",
        str(made.autograder),
        "-o",
        str(tmp_path),
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    results = json.loads((tmp_path / "results.json").read_text())["tests"]
    marks = {t["name"].split(" ")[0]: 0.0 for t in results if t.get("max_score")}
    for t in results:
        if t.get("max_score"):
            marks[t["name"].split(" ")[0]] += t["score"]
    assert marks == made.possible


@pytest.mark.parametrize("made", ASSIGNMENTS[1:], indirect=True, ids=str)
def test_solution_gets_full_marks_from_the_grader(made: Made, tmp_path: Path) -> None:
    """Where only plain values cross between solution and checks; the first one's are handed in by a class, below."""
    (tmp_path / "class").mkdir()
    shutil.copy(made.solution, tmp_path / "class" / "solution.ipynb")
    grade.main([str(tmp_path / "class"), "--autograder", str(made.autograder), "--out", str(tmp_path / "grades.csv")])
    with (tmp_path / "grades.csv").open(encoding="utf8") as file:
        (row,) = csv.DictReader(file)
    assert {question: float(row[question]) for question in made.possible} == made.possible, row["message"]


@first_only
def test_solution_runs_in_jupyter_under_another_name(made: Made, tmp_path: Path) -> None:
    (tmp_path / "my own name.ipynb").write_text(shortened(made.solution), "utf8")
    (tmp_path / "another.ipynb").write_text("", "utf8")
    cells = run_plainly(tmp_path / "my own name.ipynb")
    for source, said, outputs in cells:
        assert not [o for o in outputs if o.output_type == "error"], f"{source}\n{said}"
    checks = {source: said for source, said, _ in cells if source.startswith("grader.check(")}
    assert list(checks) == [f'grader.check("{q}")' for q in made.possible]
    assert all("All test cases passed!" in said for said in checks.values())


SHORTER = {"rounds=30": "rounds=2", "LR = 100, 0.01, 0.2": "LR = 31, 0.01, 0.2", "ROUNDS = 300": "ROUNDS = 3"}
"""What the cells that print and draw do at length."""


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
def test_untouched_student_version_runs_and_gives_hints(made: Made, tmp_path: Path) -> None:
    (tmp_path / "renamed.ipynb").write_bytes(made.student.read_bytes())
    cells = run_plainly(tmp_path / "renamed.ipynb")
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
def test_what_passes_the_visible_checks_only_loses_the_hidden_marks(made: Made, tmp_path: Path) -> None:
    with_answers(made.solution, HINT_ONLY, tmp_path / "hint only.ipynb")
    tests = run_checks(tmp_path / "hint only.ipynb", made)
    missed = {t.name: t.possible - t.score for t in tests if not t.passed_all}
    assert missed == {"q1_3": 2, "q2_1": 1, "q2_2": 1, "q3_1": 2, "q3_2": 1}
    assert all(t.passed_all_public for t in tests)
    text = "\n".join(map(grade.feedback, tests))
    assert text.count("1 hidden check failed") == 5
    assert "nan or inf" not in text, "feedback must not tell what the hidden checks are"


def test_untouched_hand_out_gets_nothing(made: Made) -> None:
    tests = run_checks(made.student, made)
    assert [t.score for t in tests] == [0] * len(made.possible)
    assert all("returns nothing yet" in grade.feedback(t) for t in tests)


@first_only
def test_broken_submissions_get_zero_and_a_message(graded: dict) -> None:
    assert "not a notebook" in graded["damaged.ipynb"]["message"]
    assert "found 0" in graded["empty.zip"]["message"]
    for name in ("damaged.ipynb", "empty.zip"):
        assert graded[name]["total"] == "0"
        assert graded[name]["message"] in graded[name]["feedback"]


@first_only
def test_endless_loop_is_stopped_and_leaves_nothing_running(made: Made, tmp_path: Path) -> None:
    import psutil

    endless = (
        "import subprocess, time\nsubprocess.Popen(['sleep', '31536000.5'], start_new_session=True)\n"
        "while True:\n    time.sleep(0.01)"
    )
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(endless)])
    nb.metadata["kernelspec"] = {"name": "a kernel of the student", "display_name": "mine"}
    nbformat.write(nb, tmp_path / "loop.ipynb")
    result = grade.grade(tmp_path / "loop.ipynb", made.autograder, timeout=8)
    assert result.message.startswith("stopped after 8 seconds")
    assert result.marks == dict.fromkeys(made.possible, 0)
    assert "leaves processes behind: 1" in result.flags, "the loop was never reached"
    running = [p for p in psutil.process_iter(["cmdline"]) if "31536000.5" in (p.info["cmdline"] or [])]
    assert not [p for p in running if p.status() != psutil.STATUS_ZOMBIE]


@first_only
def test_kernel_that_stops_itself_gets_zero_and_a_message(made: Made, tmp_path: Path) -> None:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os\nos._exit(1)")])
    nbformat.write(nb, tmp_path / "dead.ipynb")
    result = grade.grade(tmp_path / "dead.ipynb", made.autograder, timeout=100)
    assert result.total == 0
    assert result.message


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

WRONG_2 = {
    # name: (question, its new source, marks lost, a hint or None where only hidden checks notice)
    "cosine instead of sine": (
        "q1_1",
        """
def principal_angle(A, B):
    return np.linalg.svd(np.linalg.qr(A)[0].T @ np.linalg.qr(B)[0], compute_uv=False).min()
""",
        3,
        "this is the cosine",
    ),
    "smallest angle": (
        "q1_1",
        """
def principal_angle(A, B):
    Qa, Qb = np.linalg.qr(A)[0], np.linalg.qr(B)[0]
    return np.linalg.svd(Qb - Qa @ (Qa.T @ Qb), compute_uv=False).min()
""",
        3,
        "smallest of the angles",
    ),
    "Frobenius norm": (
        "q1_1",
        """
def principal_angle(A, B):
    Qa, Qb = np.linalg.qr(A)[0], np.linalg.qr(B)[0]
    return np.linalg.norm(Qb - Qa @ (Qa.T @ Qb))
""",
        3,
        "Frobenius",
    ),
    "no orthonormal bases": (
        "q1_1",
        "def principal_angle(A, B):\n    return np.linalg.norm(B - A @ (A.T @ B), 2)",
        3,
        "make both bases orthonormal",
    ),
    "root of one minus cosine squared": (
        "q1_1",
        """
def principal_angle(A, B):
    cosine = np.linalg.svd(np.linalg.qr(A)[0].T @ np.linalg.qr(B)[0], compute_uv=False).min()
    return np.sqrt(max(1 - cosine**2, 0))
""",
        2,
        None,
    ),
    "ready-made distance": (
        "q1_1",
        """
def principal_angle(A, B):
    from hetfl_core.distances import principal_angle as ready

    return ready(torch.tensor(A), torch.tensor(B)).item()
""",
        2,
        None,
    ),
    "narrowest directions": (
        "q2_1",
        """
def closed_form_phi(covariance, k, signs):
    eigenvalues, P = np.linalg.eigh(covariance)
    return signs[:, None] * (P[:, :k] / np.sqrt(eigenvalues[:k])).T
""",
        4,
        "increasing order",
    ),
    "first rows of the inverse root": (
        "q2_1",
        """
def closed_form_phi(covariance, k, signs):
    eigenvalues, P = np.linalg.eigh(covariance)
    return signs[:, None] * ((P / np.sqrt(eigenvalues)) @ P.T)[:k]
""",
        4,
        "you kept the narrowest|not the two widest",
    ),
    "divided by variances": (
        "q2_1",
        """
def closed_form_phi(covariance, k, signs):
    eigenvalues, P = np.linalg.eigh(covariance)
    return signs[:, None] * (P[:, ::-1][:, :k] / eigenvalues[::-1][:k]).T
""",
        4,
        "divide by the roots",
    ),
    "signs as they come": (
        "q2_1",
        """
def closed_form_phi(covariance, k, signs):
    eigenvalues, P = np.linalg.eigh(covariance)
    P = P * -np.sign(P[np.abs(P).argmax(axis=0), np.arange(len(P))])
    return signs[:, None] * (P[:, ::-1][:, :k] / np.sqrt(eigenvalues[::-1][:k])).T
""",
        4,
        "wrong signs",
    ),
    "inverse of all eigenvalues": (
        "q2_1",
        """
def closed_form_phi(covariance, k, signs):
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    eigenvalues, P = np.linalg.eigh(covariance)
    P = P * np.sign(P[np.abs(P).argmax(axis=0), np.arange(len(P))])
    return signs[:, None] * (P[:, ::-1][:, :k] / np.sqrt(eigenvalues[::-1][:k])).T + 0 * root[:k]
""",
        2,
        None,
    ),
    "labels not squared": (
        "q3_1",
        """
def initial_A(z, y, d):
    return np.linalg.eigh(np.einsum("ij,ijp,ijq->pq", y, z, z))[1][:, ::-1][:, :d]
""",
        2,
        "go in squared",
    ),
    "smallest eigenvectors": (
        "q3_1",
        """
def initial_A(z, y, d):
    return np.linalg.eigh(np.einsum("ij,ijp,ijq->pq", y**2, z, z))[1][:, :d]
""",
        2,
        "smallest eigenvalue",
    ),
    "one client's moments": (
        "q3_1",
        """
def initial_A(z, y, d):
    return np.linalg.eigh(np.einsum("j,jp,jq->pq", y[0] ** 2, z[0], z[0]))[1][:, ::-1][:, :d]
""",
        1,
        None,
    ),
    "heads on z": (
        "q3_2",
        """
def fit_heads(A, z, y):
    return np.stack([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(z, y)])
""",
        2,
        "fits to z itself",
    ),
    "one head for all": (
        "q3_2",
        """
def fit_heads(A, z, y):
    head = np.linalg.lstsq(z.reshape(-1, z.shape[2]) @ A, y.ravel(), rcond=None)[0]
    return np.stack([head] * len(z))
""",
        2,
        "all heads are the same",
    ),
    "normal equations": (
        "q3_2",
        """
def fit_heads(A, z, y):
    X = z @ A
    return np.linalg.solve(X.transpose(0, 2, 1) @ X, (X.transpose(0, 2, 1) @ y[:, :, None]))[:, :, 0]
""",
        1,
        None,
    ),
    **{
        name: (
            "q3_3",
            f"""
def server_step(A, B, z, y, eta):
    e = y - np.einsum("ijp,ip->ij", z, B @ A.T)
    return np.linalg.qr(A + {scale} * eta / y.size * np.einsum("ij,ijp,iq->pq", e, z, B))[0]
""",
            3,
            hint,
        )
        for name, scale, hint in [
            ("uphill", -1, "uphill"),
            ("factor two", 2, "one half cancels"),
            ("sum over clients", "len(y)", "not their sum"),
            ("sum over samples", "y.shape[1]", "not of a sum"),
            ("line 14 as printed, summed", "2 * y.size", "half the mean"),
        ]
    },
    "labels for residuals": (
        "q3_3",
        """
def server_step(A, B, z, y, eta):
    return np.linalg.qr(A + eta / y.size * np.einsum("ij,ijp,iq->pq", y, z, B))[0]
""",
        3,
        "where the residuals should",
    ),
    "no QR": (
        "q3_3",
        """
def server_step(A, B, z, y, eta):
    e = y - np.einsum("ijp,ip->ij", z, B @ A.T)
    return A + eta / y.size * np.einsum("ij,ijp,iq->pq", e, z, B)
""",
        3,
        "QR is missing",
    ),
    "stale heads": (
        "q4_1",
        """
def algorithm_s3(z, y, d, T, eta):
    path = [initial_A(z, y, d)]
    B = fit_heads(path[0], z, y)
    for _ in range(T):
        path.append(server_step(path[-1], B, z, y, eta))
    return np.stack(path)
""",
        2,
        "heads are those of the first round",
    ),
    "without the start": (
        "q4_1",
        """
def algorithm_s3(z, y, d, T, eta):
    A, path = initial_A(z, y, d), []
    for _ in range(T):
        A = server_step(A, fit_heads(A, z, y), z, y, eta)
        path.append(A)
    return np.stack(path)
""",
        2,
        "T \\+ 1 matrices",
    ),
    "slope instead of factor": (
        "q4_2",
        """
def rate(distances, floor=1e-10):
    return np.polyfit(np.arange(len(distances)), np.log(distances), 1)[0]
""",
        2,
        "its exponential",
    ),
    "plateau counted": (
        "q4_2",
        """
def rate(distances, floor=1e-10):
    return np.exp(np.polyfit(np.arange(len(distances)), np.log(distances), 1)[0])
""",
        2,
        "looked at those too",
    ),
    "end points only": (
        "q4_2",
        """
def rate(distances, floor=1e-10):
    used = [x for x in distances if x > floor]
    return (used[-1] / used[0]) ** (1 / (len(used) - 1))
""",
        1,
        None,
    ),
    **{
        name: ("q4_3", f"def bound_kappa(A0, A_true, B_true, eta):\n    {lines}", 2, hint)
        for name, lines, hint in [
            (
                "kappa as printed",
                "s = np.linalg.svd(B_true / len(B_true) ** 0.5, compute_uv=False).min()\n"
                "    return 1 - eta * principal_angle(A0, A_true) * s / 2",
                "this is the printed kappa",
            ),
            (
                "E_0 as printed",
                "s = np.linalg.svd(B_true / len(B_true) ** 0.5, compute_uv=False).min()\n"
                "    return eta * principal_angle(A0, A_true) * s**2 / 2",
                "E_0 is the distance itself",
            ),
            (
                "singular value not squared",
                "s = np.linalg.svd(B_true / len(B_true) ** 0.5, compute_uv=False).min()\n"
                "    return eta * (1 - principal_angle(A0, A_true) ** 2) * s / 2",
                "goes in squared",
            ),
            (
                "heads not averaged",
                "s = np.linalg.svd(B_true, compute_uv=False).min()\n"
                "    return eta * (1 - principal_angle(A0, A_true) ** 2) * s**2 / 2",
                "smallest singular value is needed",
            ),
        ]
    },
}


def test_second_solution_is_the_core_s_algorithm() -> None:
    from hetfl_book.theory import flic as theory

    solution = functions_of(SECOND.master)
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
    bound = theory.convergence_bound(ours[0], truth, federation.heads)
    kappa = solution["bound_kappa"](ours[0].numpy(), truth.numpy(), federation.heads.numpy(), bound.step)
    assert np.isclose(kappa, bound.kappa)


# --- Assignment 3 -----------------------------------------------------------------------------------------------

CENTRED = "trial - trial.mean(axis=1, keepdims=True)"
SHRUNK = "(1 - shrinkage) * S + shrinkage * np.trace(S) / len(S) * np.eye(len(S))"
LOGARITHM = "matrix_function(inverse @ s @ inverse, np.log)"
REVERSED = "-matrix_function(inverse @ s @ inverse, np.log)"
WEIGHT = "np.where(rows == columns, 1, 2**0.5)"
EVERY = "geometric_mean(np.concatenate([train, test]))"
UNBIASED = "centred.T @ centred / max(len(rows) - 1, 1)"
ABOVE_ZERO = "np.maximum(np.linalg.eigvalsh(S), 0)"
W2 = "np.sum((anchors[c] - rows.mean(axis=0)) ** 2) + np.sum((np.sqrt(eigenvalues) - 1) ** 2)"

WRONG_3 = {
    **{
        name: (
            "q1_1",
            f"""
def covariance(trial, shrinkage=0.05):
    centred = {centred}
    S = centred @ centred.T / {divisor}
    return {shrunk}
""",
            2,
            hint,
        )
        for name, centred, divisor, shrunk, hint in [
            ("biased covariance", CENTRED, "trial.shape[1]", SHRUNK, "you divided by T"),
            ("not centred", "trial", "(trial.shape[1] - 1)", SHRUNK, "mean over time off first"),
            ("one mean for all", "trial - trial.mean()", "(trial.shape[1] - 1)", SHRUNK, "not the mean of all"),
            ("moments by moments", f"({CENTRED}).T", "(len(trial) - 1)", SHRUNK, "electrodes by electrodes"),
            ("no shrinkage", CENTRED, "(trial.shape[1] - 1)", "S", "shrinkage is missing"),
            (
                "weights exchanged",
                CENTRED,
                "(trial.shape[1] - 1)",
                "shrinkage * S + (1 - shrinkage) * np.trace(S) / len(S) * np.eye(len(S))",
                "not that of S",
            ),
            (
                "identity of size one",
                CENTRED,
                "(trial.shape[1] - 1)",
                "(1 - shrinkage) * S + shrinkage * np.eye(len(S))",
                "as large as S",
            ),
        ]
    },
    "trial centred in place": (
        "q1_1",
        """
def covariance(trial, shrinkage=0.05):
    trial -= trial.mean(axis=1, keepdims=True)
    S = trial @ trial.T / (trial.shape[1] - 1)
    return (1 - shrinkage) * S + shrinkage * np.trace(S) / len(S) * np.eye(len(S))
""",
        1,
        None,
    ),
    **{
        name: ("q1_2", f"{{solution}}\n\n\ndef {function}:\n    {lines}", marks, hint)
        for name, function, lines, marks, hint in [
            ("function of each entry", "matrix_function(S, f)", "return f(S)", 2, "f of each entry"),
            (
                "eigenvalues only",
                "matrix_function(S, f)",
                "return np.diag(f(np.linalg.eigvalsh(S)))",
                2,
                "turn them back",
            ),
            (
                "not turned back",
                "matrix_function(S, f)",
                "v, U = np.linalg.eigh(S)\n    return U * f(v)",
                2,
                "should be symmetric",
            ),
            (
                "turned the wrong way",
                "matrix_function(S, f)",
                "v, U = np.linalg.eigh(S)\n    return U.T @ np.diag(f(v)) @ U",
                2,
                "this is U.T diag",
            ),
            (
                "eigenvalues cut off at 1e-10",
                "matrix_function(S, f)",
                "v, U = np.linalg.eigh(S)\n    return U @ np.diag(f(np.where(abs(v) < 1e-10, 1e-10, v))) @ U.T",
                1,
                None,
            ),
            ("positive entries", "is_spd(S)", "return bool((S > 0).all())", 2, "entries may be negative"),
            ("one triangle", "is_spd(S)", "return np.linalg.eigvalsh(S)[0] > 0", 2, "looks at one triangle only"),
            ("determinant", "is_spd(S)", "return np.linalg.det(S) > 0 and np.allclose(S, S.T)", 1, None),
            (
                "absolute threshold",
                "is_spd(S)",
                "return np.linalg.eigvalsh(S)[0] > 1e-10 and np.array_equal(S, S.T)",
                1,
                None,
            ),
            (
                "asymmetry in absolute terms",
                "is_spd(S)",
                "v = np.linalg.eigvalsh(S)\n    return v[0] > 1e-10 * v[-1] and np.allclose(S, S.T)",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q2_1",
            f"""
def riemannian_distance(A, B):
    R = matrix_function(A, lambda v: v**-0.5)
    {lines}
""",
            marks,
            hint,
        )
        for name, lines, marks, hint in [
            ("Euclidean", "return np.linalg.norm(A - B)", 3, "this is the Euclidean distance"),
            (
                "log-Euclidean",
                "return np.linalg.norm(matrix_function(A, np.log) - matrix_function(B, np.log))",
                3,
                "only where A and B commute",
            ),
            ("squared", "return np.sum(np.log(np.linalg.eigvalsh(R @ B @ R)) ** 2)", 3, "this is the squared distance"),
            (
                "decimal logarithm",
                "return np.linalg.norm(np.log10(np.linalg.eigvalsh(R @ B @ R)))",
                3,
                "natural logarithm",
            ),
            ("largest only", "return abs(np.log(np.linalg.eigvalsh(R @ B @ R))).max()", 3, "this is the largest"),
            (
                "sum of absolutes",
                "return abs(np.log(np.linalg.eigvalsh(R @ B @ R))).sum()",
                3,
                "this is the sum of the",
            ),
            (
                "logarithm first",
                "return np.linalg.norm(R @ matrix_function(B, np.log) @ R)",
                3,
                "the logarithm comes last",
            ),
            (
                "root instead of inverse root",
                "R = np.linalg.inv(R)\n    return np.linalg.norm(matrix_function(R @ B @ R, np.log))",
                3,
                "inverse root of A on both sides",
            ),
            (
                "triangle of a matrix that is not symmetric",
                "return np.linalg.norm(np.log(abs(np.linalg.eigvalsh(np.linalg.inv(A) @ B))))",
                3,
                "is not symmetric",
            ),
            (
                "floor under the eigenvalues",
                "return np.linalg.norm(np.log(np.maximum(np.linalg.eigvalsh(R @ B @ R), 1e-10)))",
                2,
                None,
            ),
            (
                "identity added for safety",
                "E = 1e-10 * np.eye(len(A))\n    R = matrix_function(A + E, lambda v: v**-0.5)\n"
                "    return np.linalg.norm(matrix_function(R @ (B + E) @ R, np.log))",
                2,
                None,
            ),
            (
                "ready-made",
                "from pyriemann.geometry.distance import distance_riemann\n\n    return distance_riemann(A, B)",
                2,
                None,
            ),
        ]
    },
    "arithmetic mean": (
        "q2_2",
        "def geometric_mean(S, tol=1e-10, max_iter=100):\n    return S.mean(axis=0)",
        3,
        "this is the arithmetic mean",
    ),
    "harmonic mean": (
        "q2_2",
        "def geometric_mean(S, tol=1e-10, max_iter=100):\n    return np.linalg.inv(np.linalg.inv(S).mean(axis=0))",
        3,
        "this is the harmonic mean",
    ),
    "mean of the logarithms": (
        "q2_2",
        """
def geometric_mean(S, tol=1e-10, max_iter=100):
    return matrix_function(np.mean([matrix_function(s, np.log) for s in S], axis=0), np.exp)
""",
        3,
        "exp\\(mean of the logs\\)",
    ),
    **{
        name: (
            "q2_2",
            f"""
def geometric_mean(S, tol=1e-10, max_iter=100):
    M = S.mean(axis=0)
    for _ in range({steps}):
        root, inverse = matrix_function(M, np.sqrt), matrix_function(M, lambda v: v**-0.5)
        J = np.{pool}([matrix_function(inverse @ s @ inverse, np.log) for s in S], axis=0)
        before, M = M, root @ matrix_function({sign}J, np.exp) @ root
        if np.linalg.norm({change}) <= tol:
            break
    return M
""",
            marks,
            hint,
        )
        for name, steps, pool, sign, change, marks, hint in [
            ("one step", 1, "mean", "", "J", 3, "after one step it stopped"),
            ("sum of the logarithms", "max_iter", "sum", "", "J", 3, "runs away"),
            ("uphill", "max_iter", "mean", "-", "J", 3, "runs away"),
            ("stopped by the change of M", "max_iter", "mean", "", "M - before", 2, None),
        ]
    },
    **{
        name: (
            "q3_1",
            f"""
def tangent_vectors(S, M):
    R, inverse = matrix_function(M, np.sqrt), matrix_function(M, lambda v: v**-0.5)
    L = np.array([{matrix} for s in S])
    rows, columns = {order}(len(M))
    return {weight} * L[:, rows, columns]
""",
            3,
            hint,
        )
        for name, matrix, order, weight, hint in [
            ("root of two forgotten", LOGARITHM, "np.triu_indices", "1", "root of 2 is missing"),
            ("two for its root", LOGARITHM, "np.triu_indices", "np.where(rows == columns, 1, 2)", "not 2"),
            ("root of two everywhere", LOGARITHM, "np.triu_indices", "2**0.5", "diagonal is not multiplied"),
            (
                "root of two on the diagonal",
                LOGARITHM,
                "np.triu_indices",
                "np.where(rows == columns, 2**0.5, 1)",
                "diagonal is not multiplied",
            ),
            ("lower triangle", LOGARITHM, "np.tril_indices", WEIGHT, "not in the order of the text"),
            ("logarithm of the wrong order", REVERSED, "np.triu_indices", WEIGHT, "the sign is turned"),
            ("turned back to M", f"R @ {LOGARITHM} @ R", "np.triu_indices", WEIGHT, "around the logarithm"),
            (
                "difference of the logarithms",
                "matrix_function(s, np.log) - matrix_function(M, np.log)",
                "np.triu_indices",
                WEIGHT,
                "cruder map",
            ),
            ("difference of the matrices", "s - M", "np.triu_indices", WEIGHT, "expected"),
        ]
    },
    "all entries": (
        "q3_1",
        """
def tangent_vectors(S, M):
    inverse = matrix_function(M, lambda v: v**-0.5)
    return np.array([matrix_function(inverse @ s @ inverse, np.log).ravel() for s in S])
""",
        3,
        "take the upper triangle only",
    ),
    "root by Cholesky": (
        "q3_1",
        """
def tangent_vectors(S, M):
    inverse = np.linalg.inv(np.linalg.cholesky(M))
    L = np.array([matrix_function(inverse @ s @ inverse.T, np.log) for s in S])
    rows, columns = np.triu_indices(len(M))
    return np.where(rows == columns, 1, np.sqrt(2)) * L[:, rows, columns]
""",
        2,
        None,
    ),
    **{
        name: (
            "q3_2",
            f"""
def client_features(train, test):
    return tangent_vectors(train, {for_train}), tangent_vectors(test, {for_test})
""",
            2,
            hint,
        )
        for name, for_train, for_test, hint in [
            ("reference of all trials", EVERY, EVERY, "that is the leak"),
            (
                "reference of the test trials",
                "geometric_mean(test)",
                "geometric_mean(test)",
                "fitted on the test trials",
            ),
            ("a reference each", "geometric_mean(train)", "geometric_mean(test)", "a reference of their own"),
            (
                "arithmetic reference",
                "train.mean(axis=0)",
                "train.mean(axis=0)",
                "this reference is the arithmetic mean",
            ),
        ]
    },
    "log-Euclidean features": (
        "q3_2",
        """
def client_features(train, test):
    M = matrix_function(geometric_mean(train), np.log)
    rows, columns = np.triu_indices(len(M))
    weight = np.where(rows == columns, 1, np.sqrt(2))
    return tuple(
        np.array([matrix_function(s, np.log) - M for s in S])[:, rows, columns] * weight for S in (train, test)
    )
""",
        1,
        None,
    ),
    **{
        name: (
            "q4_1",
            f"""
def anchor_distances(z, y, anchors):
    distances = np.full(len(anchors), {absent})
    for c in np.unique(y):
        rows = z[y == c]
        centred = rows - rows.mean(axis=0)
        S = {covariance}
        eigenvalues = {eigenvalues}
        distances[c] = {distance}
    return distances
""",
            marks,
            hint,
        )
        for name, absent, covariance, eigenvalues, distance, marks, hint in [
            ("biased spread", "np.nan", "centred.T @ centred / len(rows)", ABOVE_ZERO, W2, 2, "divides by n"),
            ("spread not rooted", "np.nan", UNBIASED, f"({ABOVE_ZERO})**2", W2, 2, "square roots of the eigenvalues"),
            ("means only", "np.nan", UNBIASED, "np.ones(1)", W2, 2, "only the means so far"),
            ("distance not squared", "np.nan", UNBIASED, ABOVE_ZERO, f"np.sqrt({W2})", 2, "its square is asked for"),
            ("nothing for absent classes", "0.0", UNBIASED, ABOVE_ZERO, W2, 2, "do not occur: nan"),
            ("negative eigenvalues", "np.nan", UNBIASED, "np.linalg.eigvalsh(S)", W2, 1, None),
            ("a single trial forgotten", "np.nan", "centred.T @ centred / (len(rows) - 1)", ABOVE_ZERO, W2, 1, None),
            ("covariance by np.cov", "np.nan", "np.cov(rows.T)", ABOVE_ZERO, W2, 1, None),
        ]
    },
    "distances of present classes only": (
        "q4_1",
        """
def anchor_distances(z, y, anchors):
    classes = np.unique(y)
    means = np.array([z[y == c].mean(axis=0) for c in classes])
    roots = [np.sqrt(np.linalg.eigvalsh(np.cov(z[y == c].T)).clip(0)) for c in classes]
    return np.sum((anchors[classes] - means) ** 2, axis=1) + np.sum((np.array(roots) - 1) ** 2, axis=1)
""",
        2,
        "one number for each anchor",
    ),
    **{
        name: (
            "q4_2",
            f"""
def nearest_anchor(z, anchors, classes):
    classes = np.asarray(classes)
    gap = z[:, None] - anchors[classes]
    return {answer}
""",
            marks,
            hint,
        )
        for name, answer, marks, hint in [
            ("places instead of labels", "(gap**2).sum(axis=2).argmin(axis=1)", 2, "places in classes"),
            ("farthest anchor", "classes[(gap**2).sum(axis=2).argmax(axis=1)]", 2, "farthest"),
            ("largest inner product", "classes[(z @ anchors[classes].T).argmax(axis=1)]", 2, "inner product"),
            ("all classes", "((z[:, None] - anchors) ** 2).sum(axis=2).argmin(axis=1)", 2, "predict no other label"),
            ("sum of absolute differences", "classes[abs(gap).sum(axis=2).argmin(axis=1)]", 1, None),
        ]
    },
}


@pytest.fixture(scope="module")
def third() -> dict:
    """The functions of the third solution."""
    return functions_of(THIRD.master)


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

ONE_HOT = "torch.nn.functional.one_hot(y, n_classes).T.to(mean.dtype)"
SQUARES = "v, a = joint_variance / variance, (joint_mean - mean) ** 2 / variance"
MARGIN = "s2, r2 = joint_variance, (joint_mean - mean) ** 2"
SERVER = "torch.where(seen, eta.sum(dim=0) / total, old_mean), torch.where(seen, 1 / total, old_variance)"
DRAW = "mean[:, None] + deviation[:, None] * epsilon"
PULL = "term(joint['mean'][y], joint['variance'][y], mean, deviation**2)"
SENT = "class_upload(mean.detach(), deviation.detach() ** 2, y, len(joint['mean']))"
MEAN_BODY = "sum(own[n] for own in trained) / len(trained)"
WANTED = "deviation**2 < v + (m - mean) ** 2"

WRONG_4 = {
    **{
        name: (
            "q1_1",
            f"""
def product(means, variances, prior=False):
    precision = {precision}
    total = {total}
    return {answer}
""",
            2,
            hint,
        )
        for name, precision, total, answer, hint in [
            (
                "precision instead of variance",
                "1 / variances",
                "precision.sum(dim=0) + float(prior)",
                "(precision * means).sum(dim=0) / total, total",
                "this is the precision",
            ),
            (
                "variances averaged",
                "variances",
                "variances.mean(dim=0)",
                "means.mean(dim=0), total",
                "mean of the variances",
            ),
            (
                "plain mean",
                "1 / variances",
                "precision.sum(dim=0) + float(prior)",
                "means.mean(dim=0), 1 / total",
                "this is the plain mean",
            ),
            (
                "weights by variance",
                "1 / variances",
                "precision.sum(dim=0) + float(prior)",
                "(variances * means).sum(dim=0) / variances.sum(dim=0), 1 / total",
                "not by their variance",
            ),
            (
                "prior with each expert",
                "1 / variances + float(prior)",
                "precision.sum(dim=0)",
                "(means / variances).sum(dim=0) / total, 1 / total",
                "it should be counted once",
            ),
            (
                "precision by deviations",
                "variances**-0.5",
                "precision.sum(dim=0) + float(prior)",
                "(precision * means).sum(dim=0) / total, 1 / total",
                "is no precision",
            ),
        ]
    },
    "two experts at a time": (
        "q1_1",
        """
def product(means, variances, prior=False):
    m, v = means[0], variances[0]
    for a, b in zip(means[1:], variances[1:]):
        m, v = (m * b + a * v) / (v + b), v * b / (v + b)
    return (m / (1 + v), v / (1 + v)) if prior else (m, v)
""",
        1,
        None,
    ),
    "ready-made product": (
        "q1_1",
        """
def product(means, variances, prior=False):
    from hetfl_core.distances import product_of_experts

    return product_of_experts(means, variances, prior=prior)
""",
        1,
        None,
    ),
    **{
        name: ("q1_2", f"def claimed_and_true(variance, n, rho):\n    return {answer}", marks, hint)
        for name, answer, marks, hint in [
            ("claim of one cloud", "variance, variance * (1 + (n - 1) * rho) / n", 2, "not that of one"),
            ("independent errors", "variance / n, variance / n", 2, "the errors do not average out"),
            ("correlated with itself", "variance / n, variance * (1 + n * rho) / n", 2, "divided by n"),
            ("prior", "1 / (1 + n / variance), variance * (1 + (n - 1) * rho) / n", 2, "no prior here"),
            ("deviations", "(variance / n) ** 0.5, (variance * (1 + (n - 1) * rho) / n) ** 0.5", 2, "is a deviation"),
            (
                "matrix of all errors",
                "variance / n, (variance * (rho * np.ones((n, n)) + (1 - rho) * np.eye(n))).mean()",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q2_1",
            f"""
def class_upload(mean, variance, y, n_classes):
    member = {member}
    return {answer}
""",
            marks,
            hint,
        )
        for name, member, answer, marks, hint in [
            (
                "means over the images",
                ONE_HOT,
                "[member @ t / member.sum(dim=1).clamp(min=1)[:, None] for t in (mean / variance, 1 / variance)]",
                2,
                "these are means over the images",
            ),
            (
                "means not weighted",
                ONE_HOT,
                "(member @ mean, member @ (1 / variance))",
                2,
                "with its own precision",
            ),
            ("variances for precisions", ONE_HOT, "(member @ (mean * variance), member @ variance)", 2, "1 / variance"),
            (
                "mean and variance of the product",
                ONE_HOT,
                "(member @ (mean / variance) / (member @ (1 / variance)), 1 / (member @ (1 / variance)))",
                2,
                "the sums before you divide",
            ),
            (
                "prior at the client",
                ONE_HOT,
                "(member @ (mean / variance), (member @ (1 / variance)).clamp(min=1))",
                2,
                "no prior here",
            ),
            (
                "classes up to the last one seen",
                "torch.nn.functional.one_hot(y).T.to(mean.dtype)",
                "(member @ (mean / variance), member @ (1 / variance))",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q2_2",
            f"""
def server_step(old_mean, old_variance, eta, precision):
    seen = {seen}
    total = {total}
    return {answer}
""",
            marks,
            hint,
        )
        for name, seen, total, answer, marks, hint in [
            (
                "prior with each client (Eq. 9 as printed)",
                "(precision > 0).any(dim=0)",
                "(1 + precision).sum(dim=0)",
                SERVER,
                2,
                "not once with each client",
            ),
            (
                "prior with each client that holds the class",
                "(precision > 0).any(dim=0)",
                "((precision > 0) + precision).sum(dim=0)",
                SERVER,
                2,
                "not once with each client",
            ),
            (
                "no prior",
                "(precision > 0).any(dim=0)",
                "precision.sum(dim=0)",
                SERVER,
                2,
                "the prior N.0, I. is missing",
            ),
            (
                "the old cloud as the prior",
                "(precision > 0).any(dim=0)",
                "1 / old_variance + precision.sum(dim=0)",
                "torch.where(seen, (eta.sum(dim=0) + old_mean / old_variance) / total, old_mean), 1 / total",
                2,
                "does not enter",
            ),
            (
                "back to the prior",
                "(precision > 0).any(dim=0)",
                "1 + precision.sum(dim=0)",
                "eta.sum(dim=0) / total, 1 / total",
                2,
                "not reset",
            ),
            (
                "classes that all hold",
                "(precision > 0).all(dim=0)",
                "1 + precision.sum(dim=0)",
                SERVER,
                2,
                "client 1 alone",
            ),
            ("who holds it by eta", "(eta != 0).any(dim=0)", "1 + precision.sum(dim=0)", SERVER, 1, None),
            (
                "the first dimension speaks for all",
                "(precision > 0).any(dim=0)",
                "1 + precision[:, :, :1].sum(dim=0)",
                SERVER,
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q3_1",
            f"def term(joint_mean, joint_variance, mean, variance):\n    {SQUARES}\n    return {answer}",
            marks,
            hint,
        )
        for name, answer, marks, hint in [
            (
                "arguments exchanged",
                "((joint_mean - mean) ** 2 / joint_variance + 1 / v + v.log() - 1).sum(dim=1) / 2",
                2,
                "the wrong way round",
            ),
            ("mean over the dimensions", "(a + v - v.log() - 1).mean(dim=1) / 2", 2, "do not average"),
            ("not summed", "(a + v - v.log() - 1) / 2", 2, "sum over the dimensions"),
            ("one half missing", "(a + v - v.log() - 1).sum(dim=1)", 2, "one half is missing"),
            ("sign of the logarithm", "(a + v + v.log() - 1).sum(dim=1) / 2", 2, "logarithm has the wrong sign"),
            ("squared once more", "(a / variance + v**2 - 2 * v.log() - 1).sum(dim=1) / 2", 2, "do not square them"),
            (
                "ready-made divergence",
                "(lambda d: d.kl_divergence(d.Normal(joint_mean, joint_variance**0.5), d.Normal(mean, variance**0.5)))"
                "(torch.distributions).sum(dim=1)",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q3_2",
            f"def best_deviation(joint_mean, joint_variance, mean):\n    {MARGIN}\n    return {answer}",
            marks,
            hint,
        )
        for name, answer, marks, hint in [
            ("variance instead of deviation", "s2 + r2, torch.log1p(r2 / s2) / 2", 2, "this is the variance"),
            ("best for the other order", "s2.sqrt(), torch.log1p(r2 / s2) / 2", 2, "arguments exchanged"),
            ("distance alone", "r2.sqrt(), torch.log1p(r2 / s2) / 2", 2, "the joint variance counts"),
            ("deviations added", "s2.sqrt() + r2.sqrt(), torch.log1p(r2 / s2) / 2", 2, "add the squares"),
            ("value without one half", "(s2 + r2).sqrt(), torch.log1p(r2 / s2)", 2, "one half is missing"),
            ("value of the wrong sign", "(s2 + r2).sqrt(), (s2 / (s2 + r2)).log() / 2", 2, "wrong sign"),
            ("1 + t in floating-point numbers", "(s2 + r2).sqrt(), (1 + r2 / s2).log() / 2", 1, None),
        ]
    },
    **{
        name: (
            "q4_1",
            f"def mixture_loss(logits, y):\n    rows = torch.arange(len(y))\n    return {answer}",
            marks,
            hint,
        )
        for name, answer, marks, hint in [
            (
                "mean of the logarithms",
                "-logits.log_softmax(dim=2)[rows, :, y].mean(dim=1)",
                2,
                "mean of the logarithms",
            ),
            ("mean of the logits", "-logits.mean(dim=1).log_softmax(dim=1)[rows, y]", 2, "mean probabilities 0.6"),
            (
                "sum over the draws",
                "-logits.log_softmax(dim=2)[rows, :, y].logsumexp(dim=1)",
                2,
                "the sum over the draws",
            ),
            ("no logarithm", "logits.softmax(dim=2)[rows, :, y].mean(dim=1)", 2, "the logarithm is missing"),
            (
                "mean over the images",
                "-logits.softmax(dim=2)[rows, :, y].mean(dim=1).log().mean()",
                2,
                "one number for each image",
            ),
            ("softmax and log", "-logits.softmax(dim=2)[rows, :, y].mean(dim=1).log()", 1, None),
            (
                "exponentials by hand",
                "-(logits.exp() / logits.exp().sum(dim=2, keepdim=True))[rows, :, y].mean(dim=1).log()",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q5_1",
            f"""
def local_step(params, joint, x, y, epsilon, beta, lr):
    leaves = {leaves}
    mean, deviation = posterior(leaves, x)
    objective = mixture_loss(head(leaves, {draw}), y) + beta * {pull}
    gradients = torch.autograd.grad(objective.{pool}(), list(leaves.values()))
    new = {{n: (p - lr * g).detach() for (n, p), g in zip(leaves.items(), gradients)}}
    {after}
    return new, *{sent}
""",
            marks,
            hint,
        )
        for copies in ["{n: p.detach().clone().requires_grad_() for n, p in params.items()}"]
        for name, leaves, draw, pull, pool, after, sent, marks, hint in [
            (
                "noise by the variance (as printed)",
                copies,
                "mean[:, None] + deviation[:, None] ** 2 * epsilon",
                PULL,
                "mean",
                "pass",
                SENT,
                2,
                "multiplied with the variance",
            ),
            (
                "no noise",
                copies,
                "mean[:, None] + 0 * epsilon",
                PULL,
                "mean",
                "pass",
                SENT,
                2,
                "do not depend on sigma",
            ),
            ("sum over the images", copies, DRAW, PULL, "sum", "pass", SENT, 2, "this is the sum over the images"),
            (
                "uphill",
                copies,
                DRAW,
                PULL,
                "mean",
                "new = {n: 2 * params[n] - p for n, p in new.items()}",
                SENT,
                2,
                "uphill",
            ),
            (
                "term with deviations",
                copies,
                DRAW,
                "term(joint['mean'][y], joint['variance'][y], mean, deviation)",
                "mean",
                "pass",
                SENT,
                2,
                "here it gets deviations",
            ),
            (
                "rows of the joint clouds by place",
                copies,
                DRAW,
                "term(joint['mean'][: len(y)], joint['variance'][: len(y)], mean, deviation**2)",
                "mean",
                "pass",
                SENT,
                2,
                "pick the rows by y",
            ),
            (
                "body alone",
                copies,
                DRAW,
                PULL,
                "mean",
                "new |= {n: p for n, p in params.items() if n.startswith('beta.')}",
                SENT,
                2,
                "the head did not move",
            ),
            (
                "clouds after the step",
                copies,
                DRAW,
                PULL,
                "mean",
                "mean, deviation = posterior(new, x)",
                SENT,
                2,
                "before the parameters changed",
            ),
            (
                "sends deviations",
                copies,
                DRAW,
                PULL,
                "mean",
                "pass",
                "class_upload(mean.detach(), deviation.detach(), y, len(joint['mean']))",
                2,
                "class_upload takes variances",
            ),
            (
                "still tied to the graph",
                copies,
                DRAW,
                PULL,
                "mean",
                "pass",
                "class_upload(mean, deviation**2, y, len(joint['mean']))",
                2,
                "return plain tensors",
            ),
            (
                "step taken in the arguments",
                copies,
                DRAW,
                PULL,
                "mean",
                "[params[n].copy_(p) for n, p in new.items()]",
                SENT,
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q5_2",
            f"""
def federated_round(params, joint, clients, epsilons, beta, lr):
    done, joint, params = [], dict(joint), [dict(own) for own in params]
    for i, (client, epsilon) in enumerate(zip(clients, epsilons)):
        done.append(local_step(params[i], joint, client.x_train, client.y_train, epsilon, beta, lr))
        {between}
    trained, eta, precision = zip(*done)
    body = {{n: {mean} for n in trained[0] if {averaged}}}
    mean, variance = server_step(joint["mean"], joint["variance"], torch.stack(eta), torch.stack(precision))
    return [own | body for own in trained], {{"mean": mean, "variance": variance}}
""",
            marks,
            hint,
        )
        for name, between, mean, averaged, marks, hint in [
            (
                "weighted by images",
                "pass",
                "sum(len(c.y_train) * p[n] for c, p in zip(clients, trained)) / sum(len(c.y_train) for c in clients)",
                "not n.startswith('beta.')",
                2,
                "weighted by the number of images",
            ),
            ("heads averaged", "pass", MEAN_BODY, "True", 2, "heads stay at home"),
            ("nothing averaged", "pass", MEAN_BODY, "False", 2, "both clients should get the same body"),
            (
                "sum of the bodies",
                "pass",
                "sum(own[n] for own in trained)",
                "not n.startswith('beta.')",
                2,
                "this is the sum",
            ),
            (
                "one after the other",
                "params[i + 1 :] = [p | {n: done[i][0][n] for n in p if n[:4] != 'beta'} for p in params[i + 1 :]]",
                MEAN_BODY,
                "not n.startswith('beta.')",
                2,
                "ben started from what ada had trained",
            ),
            ("Gaussian layer at home", "pass", MEAN_BODY, "n.startswith('phi.')", 1, None),
            (
                "always two clients",
                "pass",
                "(trained[0][n] + trained[-1][n]) / 2",
                "not n.startswith('beta.')",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q5_3",
            f"""
def grown(params, joint, clients, noise, beta, lr):
    def train(b):
        now, clouds = params, joint
        for epsilons in noise{rounds}:
            now, clouds = federated_round(now, clouds, clients, epsilons, b, lr)
        return now

    def sigma(all_params):
        return [posterior(own, client.x_train)[1].ravel() for own, client in zip(all_params, clients)]

    wanted = []
    for own, client in zip({start}, clients):
        mean, deviation = posterior(own, client.x_train)
        m, v = joint["mean"][client.y_train], joint["variance"][client.y_train]
        wanted.append(({grows}).ravel())
    pairs = [(a > b).double() for a, b in zip({ends})]
    return {pool}(pairs), {pool}([w.double() for w in wanted])
""",
            marks,
            hint,
        )
        for overall, each in [
            (
                "(lambda parts: torch.cat(parts).mean().item())",
                "(lambda parts: torch.stack([p.mean() for p in parts]).mean().item())",
            )
        ]
        for name, rounds, start, grows, ends, pool, marks, hint in [
            (
                "compared with the start",
                "",
                "params",
                WANTED,
                "sigma(train(beta)), sigma(params)",
                overall,
                2,
                "not with the start",
            ),
            (
                "mean of the clients",
                "",
                "params",
                WANTED,
                "sigma(train(beta)), sigma(train(0.0))",
                each,
                2,
                "every entry counts the same",
            ),
            (
                "share that shrinks",
                "",
                "params",
                WANTED,
                "sigma(train(0.0)), sigma(train(beta))",
                overall,
                2,
                "smaller with the term",
            ),
            (
                "prediction after training",
                "",
                "train(beta)",
                WANTED,
                "sigma(train(beta)), sigma(train(0.0))",
                overall,
                2,
                "look at the start",
            ),
            (
                "deviation against variance",
                "",
                "params",
                "deviation < v + (m - mean) ** 2",
                "sigma(train(beta)), sigma(train(0.0))",
                overall,
                2,
                "compare like with like",
            ),
            (
                "joint variance alone",
                "",
                "params",
                "deviation**2 < v",
                "sigma(train(beta)), sigma(train(0.0))",
                overall,
                1,
                None,
            ),
            ("one round", "[:1]", "params", WANTED, "sigma(train(beta)), sigma(train(0.0))", overall, 1, None),
        ]
    },
}


@pytest.fixture(scope="module")
def fourth() -> dict:
    """The functions of the fourth solution."""
    return functions_of(FOURTH.master)


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


LOCAL_STEP_5 = """
def local_step(params, server, x, y, fixed, share, shares, lam1, lam2, lr):
    there = fixed["there"]
    leaves = {{name: p.detach().clone().requires_grad_() for name, p in params.items()}}
    apart = sum(((leaves[name] - server[name]) ** 2).sum() for name in {heads})
    features = lambda own: embed(own, fixed["x"]).reshape(*there.shape, -1)
    objective = torch.nn.functional.cross_entropy(head(leaves, embed(leaves, x)), y) + {pulled}
    objective = objective + {drawn} * pull(features(leaves), there, server["mean"], shares)
    gradients = torch.autograd.grad(objective, list(leaves.values()))
    new = {{name: (p - lr * g).detach() for (name, p), g in zip(leaves.items(), gradients)}}
    g = features({sent}).detach()
    mean = {mean}
    return new, {{"beta.weight": new["beta.weight"], "beta.bias": new["beta.bias"], "mean": mean}}
"""
MEAN_5 = "(there[:, :, None] * g).sum(dim=1) / there.sum(dim=1).clamp(min=1)[:, None]"
HEADS_5 = '("beta.weight", "beta.bias")'
PULLED_5 = "lam1 / 2 * share * apart"
ROUND_5 = """
def federated_round(params, server, clients, fixed, lam1, lam2, lr, step):
    K = len(server["mean"])
    counts = torch.stack([client.y_train.bincount(minlength=K) for client in clients]).to(server["mean"].dtype)
    p, p_k = {p}, {p_k}
    results = []
    for i, (own, client, minibatch) in enumerate(zip(params, clients, fixed)):
        x, y = client.x_train, client.y_train
        results.append(local_step(own, server, x, y, minibatch, p[i].item(), p_k[i], lam1, lam2, lr))
    new, sent = map(list, zip(*results))
    {more}
    names = ("beta.weight", "beta.bias")
    after = {{n: (1 - step) * server[n] + step * sum(w * m[n] for w, m in zip({weights}, sent)) for n in names}}
    return new, after | {{"mean": server_step(server["mean"], torch.stack([m["mean"] for m in sent]), counts, {step})}}
"""
P_5, P_K_5 = "counts.sum(dim=1) / counts.sum()", "counts / counts.sum(dim=0).clamp(min=1)"
DRAWN_5 = "rng.choice(each, min(map(len, rows)), replace=False)"
SORTED_5, WHO_5 = "np.sort(np.concatenate(chosen))", "np.unique(client[label == c])"
STAYS_5 = "torch.where(total[:, None] > 0, (1 - step) * e + step * mean, e)"
MOST_5, MOST_RIGHT_5 = "np.bincount(train_client).argmax()", "float((test_client == most).mean())"
WRONG_5 = {
    **{
        name: (
            "q1_1",
            f"""
def class_means(z, y, n_classes):
    member = torch.nn.functional.one_hot(y{classes}).T.to(z.dtype)
    counts = member.sum(dim=1)
    return {answer}, counts
""",
            2,
            hint,
        )
        for name, classes, answer, hint in [
            ("0 / 0", ", n_classes", "member @ z / counts[:, None]", "a class without a row should have zeros"),
            ("sums", ", n_classes", "member @ z", "this is the sum of the rows"),
            ("divided by all", ", n_classes", "member @ z / len(y)", "number of all rows"),
            (
                "as many classes as there are",
                "",
                "member @ z / counts.clamp(min=1)[:, None]",
                r"a tensor of shape \(4, 2\)",
            ),
            ("one mean for all", ", n_classes", "z.mean(dim=0) * (counts > 0)[:, None]", "the mean of all rows"),
        ]
    },
    **{
        name: (
            "q1_2",
            f"""
def gaps(za, ya, zb, yb, n_classes):
    (a, held_a), (b, held_b) = class_means(za, ya, n_classes), class_means(zb, yb, n_classes)
    whole = (({whole}) ** 2).sum().item()
    both = {both}
    return whole, {by_class}
""",
            marks,
            hint,
        )
        for name, whole, both, by_class, marks, hint in [
            (
                "sum over the classes",
                "za.mean(dim=0) - zb.mean(dim=0)",
                "(held_a > 0) & (held_b > 0)",
                "((a - b)[both] ** 2).sum().item()",
                2,
                "this is the sum over the classes",
            ),
            (
                "not squared",
                "za.mean(dim=0) - zb.mean(dim=0)",
                "(held_a > 0) & (held_b > 0)",
                "(a - b)[both].norm(dim=1).mean().item()",
                2,
                "its square is asked for",
            ),
            (
                "classes weigh alike",
                "a[held_a > 0].mean(dim=0) - b[held_b > 0].mean(dim=0)",
                "(held_a > 0) & (held_b > 0)",
                "((a - b)[both] ** 2).sum(dim=1).mean().item()",
                2,
                "in which frequent classes count more",
            ),
            (
                "over all classes",
                "za.mean(dim=0) - zb.mean(dim=0)",
                "((held_a > 0) & (held_b > 0))[:, None]",
                "(both * (a - b) ** 2).sum().item() / n_classes",
                2,
                "not over all classes",
            ),
            (
                "zeros are nobody's",
                "za.mean(dim=0) - zb.mean(dim=0)",
                "a.any(dim=1) & b.any(dim=1)",
                "((a - b)[both] ** 2).sum(dim=1).mean().item()",
                2,
                "look at the counts",
            ),
            (
                "no class in common is no gap",
                "za.mean(dim=0) - zb.mean(dim=0)",
                "(held_a > 0) & (held_b > 0)",
                "((a - b)[both] ** 2).sum().item() / max(int(both.sum()), 1)",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q2_1",
            f"""
def pull(g, there, e, shares):
    away = ((g - e[:, None]) ** 2).sum(dim=2)
    return {answer}
""",
            2,
            hint,
        )
        for name, answer, hint in [
            (
                "padding counts",
                "(shares / there.sum(dim=1).clamp(min=1) * away.sum(dim=1)).sum() / 2",
                "multiply with there",
            ),
            ("mean over the places", "(shares * (there * away).mean(dim=1)).sum() / 2", "not by that of its places"),
            (
                "no shares",
                "((there * away).sum(dim=1) / there.sum(dim=1).clamp(min=1)).sum() / 2",
                "shares are missing",
            ),
            (
                "no half",
                "(shares * (there * away).sum(dim=1) / there.sum(dim=1).clamp(min=1)).sum()",
                "one half is missing",
            ),
            ("no mean over a class", "(shares * (there * away).sum(dim=1)).sum() / 2", "its mean is asked for"),
            (
                "mean over the classes",
                "(shares * (there * away).sum(dim=1) / there.sum(dim=1).clamp(min=1)).mean() / 2",
                "mean over the classes",
            ),
            (
                "inf for a class without images",
                "(shares / there.sum(dim=1) * (there * away).sum(dim=1)).sum() / 2",
                "should add nothing",
            ),
        ]
    },
    **{
        name: (
            "q2_2",
            f"""
def place_and_spread(g, there, e, shares):
    count = there.sum(dim=1)
    mean = (there[:, :, None] * g).sum(dim=1) / count.clamp(min=1)[:, None]
    place = (shares * {held} * ((mean - e) ** 2).sum(dim=1)).sum() / 2
    return {answer}
""",
            marks,
            hint,
        )
        for name, held, answer, marks, hint in [
            ("empty classes have a place", "1", "place, pull(g, there, mean, shares)", 2, "adds nothing"),
            ("spread around e", "(count > 0)", "place, pull(g, there, e, shares)", 2, "deviations are from the class"),
            ("exchanged", "(count > 0)", "pull(g, there, mean, shares), place", 2, "are exchanged"),
            ("no half", "(count > 0)", "2 * place, pull(g, there, mean, shares)", 2, "one half is missing"),
            (
                "mean of squares less square of the mean",
                "(count > 0)",
                "place, ((shares / count.clamp(min=1) * (there * (g**2).sum(dim=2)).sum(dim=1)).sum() - "
                "(shares * (mean**2).sum(dim=1)).sum()) / 2",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q3_1",
            f"""
def server_step(e, means, counts, step):
    total = counts.sum(dim=0)
    shares = {shares}
    mean = (shares[:, :, None] * {means}).sum(dim=0)
    return {answer}
""",
            marks,
            hint,
        )
        for name, shares, means, answer, marks, hint in [
            (
                "towards zero",
                "counts / total.clamp(min=1)",
                "means",
                "(1 - step) * e + step * mean",
                2,
                "instead of shrinking",
            ),
            ("0 / 0", "counts / total", "means", "(1 - step) * e + step * mean", 2, "0 / 0 is nobody's mean"),
            (
                "plain mean",
                "torch.ones_like(means[:, :, 0]) / len(means)",
                "means",
                STAYS_5,
                2,
                "this is the plain mean",
            ),
            (
                "shares of all images",
                "(counts.sum(dim=1, keepdim=True) / counts.sum()).expand(counts.shape)",
                "means",
                STAYS_5,
                2,
                "shares are those of the class",
            ),
            (
                "no step",
                "counts / total.clamp(min=1)",
                "means",
                "torch.where(total[:, None] > 0, mean, e)",
                2,
                "moves by a step",
            ),
            ("not divided", "counts.to(e.dtype)", "means", STAYS_5, 2, "divide by their number"),
            ("nan from who lacks the class", "counts / total.clamp(min=1)", "means", STAYS_5, 1, None),
        ]
    },
    **{
        name: ("q3_2", f"def rounds_until(step, rest):\n    return {answer}\n", marks, hint)
        for name, answer, marks, hint in [
            ("rounded down", "max(1, int(np.log(rest) / np.log(1 - step))) if step < 1 else 1", 2, "round up"),
            (
                "what is gone",
                "max(1, int(np.ceil(np.log(1 - rest) / np.log(1 - step)))) if step < 1 else 1",
                2,
                "not at what is gone",
            ),
            ("strictly less", "int(np.log(rest) / np.log(1 - step)) + 1 if step < 1 else 1", 2, "and that is enough"),
            (
                "logarithm of 1 - s",
                "max(1, int(np.ceil(np.log(rest) / np.log(1 - step) * (1 - 1e-12)))) if step < 1 else 1",
                1,
                None,
            ),
            (
                "no room for rounding",
                "max(1, int(np.ceil(np.log(rest) / np.log1p(-step)))) if step < 1 else 1",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q4_1",
            LOCAL_STEP_5.format(
                **{"heads": HEADS_5, "pulled": PULLED_5, "drawn": "lam2", "sent": "new", "mean": MEAN_5} | changes
            ),
            2,
            hint,
        )
        for name, changes, hint in [
            ("means before the step", {"sent": "params"}, "those before the step"),
            ("weights of the head alone", {"heads": '("beta.weight",)'}, "both are pulled"),
            ("heads without the share", {"pulled": "lam1 / 2 * apart"}, "share p is missing"),
            ("heads without the half", {"pulled": "lam1 * share * apart"}, "one half is missing"),
            ("heads not pulled", {"pulled": "0 * apart"}, "lam1 has no effect"),
            ("means not pulled", {"drawn": "0"}, "lam2 has no effect"),
            ("one half too many", {"drawn": "lam2 / 2"}, "has its one half inside"),
            (
                "padding in the means",
                {"mean": "(there[:, :, None] * g).mean(dim=1)"},
                "the empty place of class 1 counts",
            ),
        ]
    },
    **{
        name: (
            "q4_2",
            ROUND_5.format(**{"p": P_5, "p_k": P_K_5, "more": "", "weights": "p", "step": "step"} | changes),
            marks,
            hint,
        )
        for name, changes, marks, hint in [
            ("clients weigh alike", {"p": "torch.full((len(clients),), 1 / len(clients))"}, 2, "share of the images"),
            (
                "class's part of a client",
                {"p_k": "counts / counts.sum(dim=1, keepdim=True)"},
                2,
                "the client's part of a class",
            ),
            ("part of all images", {"p_k": "counts / counts.sum()"}, 2, "not of all images"),
            ("heads averaged alike", {"weights": "[1 / len(p)] * len(p)"}, 2, "weighted by the clients' shares"),
            (
                "everyone gets the server's head",
                {
                    "more": 'mean = {n: sum(w * m[n] for w, m in zip(p, sent)) for n in ("beta.weight", "beta.bias")}\n'
                    "    new = [own | mean for own in new]"
                },
                2,
                "keeps its own new head",
            ),
            ("means taken over", {"step": "1.0"}, 1, None),
        ]
    },
    **{
        name: (
            "q5_1",
            f"""
def levels(train_client, train_class, test_client, test_class):
    most = {most}
    told = {{c: np.bincount({clients}[{classes} == c]).argmax() for c in np.unique({classes})}}
    guess = np.array([told.get(c, {new}) for c in test_class])
    return {chance}, float((test_client == guess).mean())
""",
            marks,
            hint,
        )
        for name, most, clients, classes, new, chance, marks, hint in [
            (
                "one over the clients",
                MOST_5,
                "train_client",
                "train_class",
                "most",
                "1 / len(np.unique(train_client))",
                2,
                "not one over the number of clients",
            ),
            (
                "most frequent in the test",
                "np.bincount(test_client).argmax()",
                "train_client",
                "train_class",
                "most",
                MOST_RIGHT_5,
                2,
                "learn there",
            ),
            (
                "learned on the test",
                MOST_5,
                "test_client",
                "test_class",
                "most",
                MOST_RIGHT_5,
                2,
                "to be learned on the training samples",
            ),
            ("a new class is never right", MOST_5, "train_client", "train_class", "-1", MOST_RIGHT_5, 1, None),
        ]
    },
    **{
        name: (
            "q5_2",
            f"""
def even(client, label, seed):
    rng, chosen = np.random.default_rng(seed), [np.empty(0, dtype=int)]
    for c in np.unique(label):
        rows = [np.flatnonzero((label == c) & (client == i)) for i in {who}]
        if len(rows) > {least}:
            chosen += [{take} for each in rows]
    return {answer}
""",
            marks,
            hint,
        )
        for name, who, least, take, answer, marks, hint in [
            ("lonely classes too", WHO_5, 0, DRAWN_5, SORTED_5, 2, "alone holds class 1"),
            ("of all clients", "np.unique(client)", 1, DRAWN_5, SORTED_5, 2, "both are taken"),
            ("not sorted", WHO_5, 1, DRAWN_5, "np.concatenate(chosen)[::-1]", 2, "in increasing order"),
            ("all that there are", WHO_5, 1, "each", SORTED_5, 2, "should have one sample"),
            ("always the first ones", WHO_5, 1, "each[: min(map(len, rows))]", SORTED_5, 1, None),
            ("randomness of its own", WHO_5, 1, DRAWN_5.replace("rng", "np.random.default_rng()"), SORTED_5, 1, None),
        ]
    },
}


def test_fifth_solution_draws_as_the_core_does() -> None:
    """As many samples of each client and class as the library's even choice has, and rounds as a loop counts them."""
    from hetfl_book import discriminator
    from hetfl_core.rng import numpy_stream

    functions = functions_of(FIFTH.master)
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

COSTS_6 = "np.maximum((server**2 @ held)[:, None] - 2 * (server * held) @ client.T + client**2 @ held, 0)"
ALL_6 = "min(permutations(n), key=lambda p: C[list(p), n].sum())"
GREEDY_6 = "[]\n    for j in n:\n        best.append(min(set(n) - set(best), key=lambda i: C[i, j]))"
MEANS_6 = "np.where(mass > 0, total / np.where(mass > 0, mass, 1), before)"
OTHERS_6 = "server_rows(*[np.delete(part, m, axis=0) for part in parts], zeros)"
WRONG_6 = {
    **{
        name: ("q1_1", f"def reorder(W, b, V, order):\n    {answer}", marks, hint)
        for name, answer, marks, hint in [
            ("outputs stay", "return W[:, order], b[order], V", 2, "what goes out belongs to the neuron"),
            (
                "inverse order",
                "back = np.argsort(order)\n    return W[:, back], b[back], V[back]",
                2,
                "this is the inverse",
            ),
            ("rows of the inputs", "return W[order], b[order], V[order]", 2, "a neuron is a column of W"),
            ("in place", "W[:] = W[:, order]\n    return W, b[order], V[order]", 1, None),
        ]
    },
    **{
        name: (
            "q1_2",
            f"""
def loss_of_average(W, b, V, order, x, y):
    new = reorder(W, b, V, order)
    out = {out}
    return ((out - y) ** 2){loss}
""",
            marks,
            hint,
        )
        for name, out, loss, marks, hint in [
            (
                "outputs averaged",
                "(network(W, b, V, x) + network(*new, x)) / 2",
                ".sum(axis=1).mean()",
                2,
                "average of the two outputs",
            ),
            (
                "summed over samples",
                "network((W + new[0]) / 2, (b + new[1]) / 2, (V + new[2]) / 2, x)",
                ".sum()",
                2,
                "this is the sum over the samples",
            ),
            (
                "mean over outputs",
                "network((W + new[0]) / 2, (b + new[1]) / 2, (V + new[2]) / 2, x)",
                ".mean()",
                2,
                "mean over the outputs, too",
            ),
            (
                "outgoing weights not averaged",
                "network((W + new[0]) / 2, (b + new[1]) / 2, V, x)",
                ".sum(axis=1).mean()",
                2,
                "all three",
            ),
            (
                "biases not averaged",
                "network((W + new[0]) / 2, b, (V + new[2]) / 2, x)",
                ".sum(axis=1).mean()",
                2,
                "all three",
            ),
            (
                "into the old weights",
                "network(np.add(W, new[0], out=W) / 2, (b + new[1]) / 2, (V + new[2]) / 2, x)",
                ".sum(axis=1).mean()",
                1,
                None,
            ),
        ]
    },
    **{
        name: ("q2_1", f"def costs(client, held, server):\n    return {answer}", marks, hint)
        for name, answer, marks, hint in [
            ("transposed", f"{COSTS_6}.T", 4, "this is transposed"),
            (
                "no mask",
                "((server[:, None] - client[None]) ** 2).sum(axis=2)",
                4,
                "although the client does not hold it",
            ),
            (
                "mask on the client only",
                "((server[:, None] - (client * held)[None]) ** 2).sum(axis=2)",
                4,
                "masked in one of the two only",
            ),
            (
                "mask on the server only",
                "(((server * held)[:, None] - client[None]) ** 2).sum(axis=2)",
                4,
                "masked in one of the two only",
            ),
            ("distances", f"np.sqrt({COSTS_6})", 4, "this is the distance"),
            ("halves", f"{COSTS_6} / 2", 4, "no one half here"),
            ("means over what is held", f"{COSTS_6} / max(held.sum(), 1)", 4, "no mean"),
            (
                "below zero by rounding",
                "(server**2 @ held)[:, None] - 2 * (server * held) @ client.T + client**2 @ held",
                2,
                None,
            ),
            (
                "mask by the client's zeros",
                "(((server[:, None] - client[None]) * (client != 0)[None]) ** 2).sum(axis=2)",
                4,
                "although the client does not hold it",
            ),
        ]
    },
    **{
        name: (
            "q3_1",
            f"""
def by_brute_force(C):
    n = range({n})
    best = {best}
    return {places}, C[list(best), n].sum()
""",
            marks,
            hint,
        )
        for name, n, best, places, marks, hint in [
            ("greedy", "len(C)", GREEDY_6, "np.array(best)", 2, "one after the other"),
            ("each its nearest", "len(C)", "C.argmin(axis=0)", "best", 2, "is no permutation"),
            ("dearest", "len(C)", ALL_6.replace("min(", "max("), "np.array(best)", 2, "dearest"),
            ("inverse of the best", "len(C)", ALL_6, "np.argsort(best)", 2, "this is the inverse"),
            ("for three only", "3", ALL_6, "np.array(best)", 1, None),
        ]
    },
    **{
        name: (
            "q3_2",
            f"def assign(C):\n    rows, columns = linear_sum_assignment({C})\n    return {answer}",
            marks,
            hint,
        )
        for name, C, answer, marks, hint in [
            ("inverse from SciPy", "C", "columns", 2, "this is the inverse"),
            ("rows from SciPy", "C", "rows", 2, "rows as SciPy lists them"),
            ("both from SciPy", "C", "rows, columns", 2, "linear_sum_assignment returns two"),
            ("for square costs only", "C", "np.argsort(columns)", 1, None),
            ("greatest", "C.T, maximize=True", "columns", 2, "or the dearest matching"),
        ]
    },
    **{
        name: (
            "q4_1",
            f"""
def server_rows(clients, held, places, weights, before):
    mass, total = np.zeros(before.shape), np.zeros(before.shape)
    for rows, has, mine, p in zip(clients, held, places, weights):
        {added}
    return {answer}
""",
            marks,
            hint,
        )
        for name, added, answer, marks, hint in [
            (
                "plain mean",
                "mass[mine] += has\n        total[mine] += has * rows",
                MEANS_6,
                2,
                "this is the plain mean",
            ),
            (
                "inverse places",
                "mass[: len(mine)] += p * has\n        total[: len(mine)] += p * (has * rows)[mine]",
                MEANS_6,
                2,
                "goes the wrong way",
            ),
            (
                "zeros of who lacks a block",
                "mass[mine] += p\n        total[mine] += p * has * rows",
                MEANS_6,
                2,
                "its weight does not count there",
            ),
            (
                "0 / 0 of nobody",
                "mass[mine] += p * has\n        total[mine] += p * has * rows",
                "total / mass",
                2,
                "0 / 0 is nobody's mean",
            ),
            (
                "zeros where nobody is",
                "mass[mine] += p * has\n        total[mine] += p * has * rows",
                "total / np.where(mass > 0, mass, 1)",
                2,
                "stays as it was, at 9",
            ),
            (
                "sums of neurons",
                "mass[mine] += p * has\n        total[mine] += p * has * rows",
                "np.where(mass > 0, total, before)",
                2,
                "this is the sum",
            ),
            (
                "junk of who lacks a block",
                "mass[mine] += p * has\n        total[mine] += p * rows",
                MEANS_6,
                1,
                None,
            ),
            (
                "old rows in place",
                "mass[mine] += p * has\n        total[mine] += p * has * rows",
                f"np.copyto(before, {MEANS_6}) or before",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q4_2",
            f"""
def objective(clients, held, places, weights, server):
    parts = zip(clients, held, places, weights)
    return sum({term} for rows, has, mine, p in parts){after}
""",
            marks,
            hint,
        )
        for name, term, after, marks, hint in [
            ("no half", "p * (has * (rows - server[mine]) ** 2).sum()", "", 2, "one half is missing"),
            ("no weights", "(has * (rows - server[mine]) ** 2).sum() / 2", "", 2, "the weights are missing"),
            ("no mask in the norm", "p / 2 * ((rows - server[mine]) ** 2).sum()", "", 2, "should not count there"),
            (
                "inverse rows",
                "p / 2 * (has * (rows - server[np.argsort(mine)]) ** 2).sum()",
                "",
                2,
                "not with the one whose place is j",
            ),
            (
                "weights that add up to one",
                "p / 2 * (has * (rows - server[mine]) ** 2).sum()",
                " / sum(weights)",
                2,
                "nothing is divided by their sum",
            ),
            (
                "mask on the rows only",
                "p / 2 * ((rows - has * server[mine]) ** 2).sum()",
                "",
                1,
                None,
            ),
        ]
    },
    **{
        name: (
            "q5_1",
            f"""
def one_pass(clients, weights, places, at_once):
    held, zeros, new = np.ones(clients.shape[::2]), np.zeros(clients.shape[1:]), {new}
    for m in range(len(clients)):
        parts = clients, held, {seen}, {weights}
        new[m] = assign(costs(clients[m], held[m], {mean}))
    return new
""",
            marks,
            hint,
        )
        for name, new, seen, weights, mean, marks, hint in [
            (
                "oneself included",
                "places.copy()",
                "places if at_once else new",
                "weights",
                "server_rows(*parts, zeros)",
                2,
                "must not be matched against itself",
            ),
            ("always one by one", "places.copy()", "new", "weights", OTHERS_6, 2, "client 0 at its old place"),
            ("always at once", "places.copy()", "places", "weights", OTHERS_6, 2, "client 0 at its new place"),
            ("places are overwritten", "places", "places", "weights", OTHERS_6, 2, "client 0 at its old place"),
            (
                "one's copy is missing",
                "places.copy() if at_once else places",
                "places if at_once else new",
                "weights",
                OTHERS_6,
                1,
                None,
            ),
            (
                "places are forgotten",
                "places.copy()",
                "np.sort(places) if at_once else new",
                "weights",
                OTHERS_6,
                2,
                "taken at their places",
            ),
            (
                "others count alike",
                "places.copy()",
                "places if at_once else new",
                "np.ones(len(weights))",
                OTHERS_6,
                2,
                "a weighted one",
            ),
            (
                "inverse of the others' places",
                "places.copy()",
                "np.argsort(places if at_once else new, axis=1)",
                "weights",
                OTHERS_6,
                1,
                None,
            ),
        ]
    },
    **{
        name: ("q5_2", f"def recovered(orders, places):\n    {answer}", marks, hint)
        for name, answer, marks, hint in [
            ("the planted numbers only", "return bool((orders == places).all())", 2, "any row will do"),
            (
                "no inverse",
                "where = np.take_along_axis(places, orders, axis=1)\n    return bool((where == where[0]).all())",
                2,
                "use the inverse",
            ),
            ("the same places", "return bool((places == places[0]).all())", 2, "use the inverse"),
            (
                "the same set of rows",
                "return bool((np.sort(places) == np.sort(orders)).all())",
                2,
                "planted neuron 0 is in row 0 at client 0",
            ),
            (
                "any neuron",
                "where = np.take_along_axis(places, np.argsort(orders), axis=1)\n"
                "    return bool((where[1:] == where[0]).any())",
                2,
                "is not enough",
            ),
            (
                "the first two clients",
                "where = np.take_along_axis(places, np.argsort(orders), axis=1)\n"
                "    return bool((where[:2] == where[0]).all())",
                1,
                None,
            ),
        ]
    },
}


@pytest.fixture(scope="module")
def sixth() -> dict:
    """The functions of the solution."""
    return functions_of(SIXTH.master)


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
        core = match(neurons, passes=1, rule=Rule(order=order)).places
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


WRONG = [
    pytest.param(
        assignment, wrong, wrong[0] not in [other[0] for other in list(table.values())[:i]], id=f"{assignment}-{name}"
    )
    for assignment, table in (
        (SECOND, WRONG_2),
        (THIRD, WRONG_3),
        (FOURTH, WRONG_4),
        (FIFTH, WRONG_5),
        (SIXTH, WRONG_6),
    )
    for i, (name, wrong) in enumerate(table.items())
]
"""Each wrong answer, and whether it is the first to its question."""


@pytest.mark.parametrize(("made", "wrong", "first"), WRONG, indirect=["made"])
def test_wrong_answers_are_caught_by_their_question(made: Made, tmp_path: Path, wrong: tuple, first: bool) -> None:
    """With the first to a question all others are checked, too: no mark is lost but there."""
    question, source, marks, hint = wrong
    with_answers(made.solution, {question: source}, tmp_path / "wrong.ipynb")
    tests = run_checks(tmp_path / "wrong.ipynb", made, None if first else [question])
    assert {t.name: t.possible - t.score for t in tests if not t.passed_all} == {question: marks}
    (failed,) = [t for t in tests if not t.passed_all]
    assert failed.passed_all_public == (hint is None)
    said = grade.feedback(failed)
    assert re.search(hint or "1 hidden check failed", said), said
