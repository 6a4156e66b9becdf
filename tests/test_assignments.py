"""Assignments: generated, graded, wrong answers caught by the right question, and a class graded without Docker."""

import ast
import csv
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

pytest.importorskip("otter", reason="otter-grader is not installed")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "book" / "assignments"
MASTER = FOLDER / "assignment1" / "assignment1.ipynb"
SECOND = FOLDER / "assignment2" / "assignment2.ipynb"
sys.path.insert(0, str(FOLDER))

import generate  # noqa: E402
import grade  # noqa: E402

POSSIBLE = {"q1_1": 2, "q1_2": 2, "q1_3": 3, "q2_1": 2, "q2_2": 4, "q3_1": 3, "q3_2": 2, "q3_3": 2}
POSSIBLE_2 = {"q1_1": 3, "q2_1": 4, "q3_1": 2, "q3_2": 2, "q3_3": 3, "q4_1": 2, "q4_2": 2, "q4_3": 2}

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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    generate.generate(MASTER, out, check_solution=False)
    return out


def functions_of(notebook: Path) -> dict:
    """The functions that a notebook defines, run in this process."""
    env: dict = {"np": np, "torch": torch}
    for cell in nbformat.read(notebook, 4).cells:
        if cell.cell_type == "code" and re.match(r"\s*def ", cell.source):
            parts = ast.parse(cell.source).body
            if all(isinstance(part, ast.FunctionDef) for part in parts):
                exec(cell.source, env)
    return env


@pytest.fixture(scope="module")
def functions() -> dict:
    """The functions of the solution."""
    return functions_of(MASTER)


def run_checks(notebook: Path, autograder: Path, possible: Mapping[str, int] = POSSIBLE) -> list:
    """Run all checks of an autograder on the functions of a notebook, in this process."""
    from otter.test_files.exception_test import ExceptionTestFile

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        env = functions_of(notebook)
        with zipfile.ZipFile(autograder) as archive:
            tests = [ExceptionTestFile.from_string(archive.read(f"tests/{q}.py").decode(), q) for q in possible]
        for test in tests:
            test.run(env)
    finally:
        torch.set_default_dtype(before)
    return tests


@pytest.fixture(scope="module")
def graded(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The table of grades of a small class, by the command that the page for teachers gives."""
    folder = tmp_path_factory.mktemp("class")
    solution, submissions = made / "solution" / MASTER.name, folder / "submissions"
    for name, answers in {
        "root": FORGETS_ROOT,
        "batch.v2": WHOLE_BATCH,
        "Moodle_123 file/unweighted": UNWEIGHTED,
    }.items():
        with_answers(solution, answers, submissions / f"{name}.ipynb")
    zipped = submissions / "Moodle_123 file" / "packed.zip"
    packed = submissions / "Moodle_123 file" / "unweighted.ipynb"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(packed, "deep/er/Üngewichtet (1).ipynb")
        archive.writestr("__MACOSX/deep/er/._x.ipynb", "not a notebook")
    packed.unlink()
    (submissions / "damaged.ipynb").write_text('{"cells": [')
    with zipfile.ZipFile(submissions / "empty.zip", "w") as archive:
        archive.writestr("notes.txt", "I could not do it")
    arguments = [submissions, "--autograder", made / "autograder.zip", "--out", folder / "grades.csv"]
    grade.main([str(a) for a in [*arguments, "--feedback", folder / "feedback", "--timeout", "200"]])
    with (folder / "grades.csv").open(encoding="utf8") as file:
        rows = {row["submission"]: row for row in csv.DictReader(file)}
    for name, row in rows.items():
        row["feedback"] = (folder / "feedback" / f"{name}.txt").read_text("utf8")
    return rows


def lost(row: dict[str, str]) -> dict[str, float]:
    """Marks that a submission lost, by question."""
    return {q: possible - float(row[q]) for q, possible in POSSIBLE.items() if float(row[q]) < possible}


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


def test_the_page_of_the_book_is_in_step_with_the_master(made: Path) -> None:
    page = generate.tracked_page(MASTER)
    generated = (made / "student" / MASTER.name).read_text("utf8")
    assert page.read_text("utf8") == generated, f"{page.name} is out of date: run 'make assignments'"


def test_generation_is_deterministic(made: Path, tmp_path: Path) -> None:
    generate.generate(MASTER, tmp_path, check_solution=False)
    files = [p.relative_to(made) for p in made.rglob("*") if p.is_file()]
    assert sorted(map(str, files)) == ["autograder.zip", "solution/assignment1.ipynb", "student/assignment1.ipynb"]
    for file in files:
        assert (tmp_path / file).read_bytes() == (made / file).read_bytes(), f"{file} differs from run to run"


def test_no_outputs_and_no_secrets(made: Path) -> None:
    student = made / "student" / MASTER.name
    for path in (MASTER, student):
        for cell in nbformat.read(path, 4).cells:
            assert not cell.get("outputs"), f"{path.name} has outputs"
            assert cell.get("execution_count") is None, f"{path.name} has execution counts"
    text = student.read_text("utf8")
    for secret in ("hidden=True", "_hidden(", "BEGIN SOLUTION", "svdvals((", "np.linalg.eigh(S)"):
        assert secret not in text, f"the hand-out gives away {secret!r}"
    assert "svdvals((" in (made / "solution" / MASTER.name).read_text("utf8")


def test_marks_in_text_and_checks_must_agree(tmp_path: Path, made: Path) -> None:
    assert grade.questions(made / "autograder.zip") == POSSIBLE
    for old, new in (("(2 marks)", "(3 marks)"), ("**20**", "**21**")):
        changed = tmp_path / "assignment1.ipynb"
        changed.write_text(MASTER.read_text("utf8").replace(old, new, 1), "utf8")
        with pytest.raises(ValueError, match="promise"):
            generate.generate(changed, tmp_path / "out", check_solution=False)


# --- full marks, and the student's view -------------------------------------------------------------------------


def test_solution_gets_full_marks_by_otter_run_under_another_name(made: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "Ada Lovelace, final (2).ipynb"
    renamed.write_bytes((made / "solution" / MASTER.name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "otter",
        "run",
        str(renamed),
        "-a",
        str(made / "autograder.zip"),
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
    assert marks == POSSIBLE


def test_solution_runs_in_jupyter_under_another_name(made: Path, tmp_path: Path) -> None:
    text = (made / "solution" / MASTER.name).read_text("utf8").replace("rounds=30", "rounds=2")
    (tmp_path / "my own name.ipynb").write_text(text, "utf8")
    (tmp_path / "another.ipynb").write_text("", "utf8")
    cells = run_plainly(tmp_path / "my own name.ipynb")
    for source, said, outputs in cells:
        assert not [o for o in outputs if o.output_type == "error"], f"{source}\n{said}"
    checks = {source: said for source, said, _ in cells if source.startswith("grader.check(")}
    assert list(checks) == [f'grader.check("{q}")' for q in POSSIBLE]
    assert all("All test cases passed!" in said for said in checks.values())


def test_untouched_student_version_runs_and_gives_hints(made: Path, tmp_path: Path) -> None:
    (tmp_path / "renamed.ipynb").write_bytes((made / "student" / MASTER.name).read_bytes())
    cells = run_plainly(tmp_path / "renamed.ipynb")
    checks = {source: said for source, said, _ in cells if source.startswith("grader.check(")}
    assert len(checks) == len(POSSIBLE)
    for source, said in checks.items():
        assert "returns nothing yet" in said, f"{source} says:\n{said}"


# --- a class ----------------------------------------------------------------------------------------------------


def test_table_has_a_row_for_every_submission(graded: dict) -> None:
    names = ["Moodle_123 file/packed.zip", "batch.v2.ipynb", "damaged.ipynb", "empty.zip", "root.ipynb"]
    assert sorted(graded) == names
    assert {row["out_of"] for row in graded.values()} == {"20"}
    for row in graded.values():
        assert float(row["total"]) == sum(float(row[q]) for q in POSSIBLE)


@pytest.mark.parametrize(
    ("name", "expected", "hint"),
    [
        ("root.ipynb", {"q1_1": 2}, "you subtracted the variances"),
        ("batch.v2.ipynb", {"q2_1": 2, "q2_2": 3}, "divides by n - 1"),
        ("Moodle_123 file/packed.zip", {"q3_2": 2, "q3_3": 2}, "this is the unweighted mean"),
    ],
)
def test_wrong_answers_are_caught_by_their_question(graded: dict, name: str, expected: dict, hint: str) -> None:
    row = graded[name]
    assert row["message"] == ""
    assert lost(row) == expected
    assert hint in row["feedback"]


def test_what_passes_the_visible_checks_only_loses_the_hidden_marks(made: Path, tmp_path: Path) -> None:
    with_answers(made / "solution" / MASTER.name, HINT_ONLY, tmp_path / "hint only.ipynb")
    tests = run_checks(tmp_path / "hint only.ipynb", made / "autograder.zip")
    missed = {t.name: t.possible - t.score for t in tests if not t.passed_all}
    assert missed == {"q1_3": 2, "q2_1": 1, "q2_2": 1, "q3_1": 2, "q3_2": 1}
    assert all(t.passed_all_public for t in tests)
    text = "\n".join(map(grade.feedback, tests))
    assert text.count("1 hidden check failed") == 5
    assert "nan or inf" not in text, "feedback must not tell what the hidden checks are"


def test_untouched_hand_out_gets_nothing(made: Path) -> None:
    tests = run_checks(made / "student" / MASTER.name, made / "autograder.zip")
    assert [t.score for t in tests] == [0] * len(POSSIBLE)
    assert all("returns nothing yet" in grade.feedback(t) for t in tests)


def test_broken_submissions_get_zero_and_a_message(graded: dict) -> None:
    assert "not a notebook" in graded["damaged.ipynb"]["message"]
    assert "found 0" in graded["empty.zip"]["message"]
    for name in ("damaged.ipynb", "empty.zip"):
        assert graded[name]["total"] == "0"
        assert graded[name]["message"] in graded[name]["feedback"]


def test_endless_loop_is_stopped_and_leaves_nothing_running(made: Path, tmp_path: Path) -> None:
    import psutil

    pids = tmp_path / "pid"
    endless = (
        f"import os\nfrom pathlib import Path\nPath({str(pids)!r}).write_text(str(os.getpid()))\nwhile True:\n    pass"
    )
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(endless)])
    nb.metadata["kernelspec"] = {"name": "a kernel of the student", "display_name": "mine"}
    nbformat.write(nb, tmp_path / "loop.ipynb")
    result = grade.grade(tmp_path / "loop.ipynb", made / "autograder.zip", timeout=15)
    assert result.message.startswith("stopped after 15 seconds")
    assert result.marks == dict.fromkeys(POSSIBLE, 0)
    assert pids.exists(), "the loop was never reached: the kernel of this machine was not used"
    pid = int(pids.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_kernel_that_stops_itself_gets_zero_and_a_message(made: Path, tmp_path: Path) -> None:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os\nos._exit(1)")])
    nbformat.write(nb, tmp_path / "dead.ipynb")
    result = grade.grade(tmp_path / "dead.ipynb", made / "autograder.zip", timeout=100)
    assert result.total == 0
    assert result.message


def test_page_for_teachers_names_real_files_and_options() -> None:
    page = (FOLDER / "teachers.md").read_text("utf8")
    command = next(b for b in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "grade.py" in b)
    helped = subprocess.run([sys.executable, FOLDER / "grade.py", "--help"], capture_output=True, text=True)
    for option in re.findall(r"--[a-z-]+", command):
        assert option in helped.stdout, f"grade.py has no option {option}"
    for master, possible in ((MASTER, POSSIBLE), (SECOND, POSSIBLE_2)):
        (row,) = [
            line for line in page.splitlines() if f"({generate.tracked_page(master).name})" in line and "|" in line
        ]
        assert row.endswith(f"| {sum(possible.values())} |")


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


@pytest.fixture(scope="module")
def made_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made_2")
    generate.generate(SECOND, out, check_solution=False)
    return out


def test_the_second_page_is_in_step_and_gives_nothing_away(made_2: Path) -> None:
    student = (made_2 / "student" / SECOND.name).read_text("utf8")
    page = generate.tracked_page(SECOND)
    assert page.read_text("utf8") == student, f"{page.name} is out of date: run 'make assignments'"
    solution = (made_2 / "solution" / SECOND.name).read_text("utf8")
    for secret in (
        "_hidden(",
        "BEGIN SOLUTION",
        "Qb - Qa",
        "lstsq(zi",
        "server_step(path",
        "np.flatnonzero(",
        "B @ A.T)",
    ):
        assert secret not in student, f"the hand-out gives away {secret!r}"
        assert secret in solution or secret == "BEGIN SOLUTION"
    for path in (SECOND, made_2 / "student" / SECOND.name):
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in nbformat.read(path, 4).cells)


def test_second_solution_gets_full_marks_and_the_untouched_hand_out_none(made_2: Path) -> None:
    assert grade.questions(made_2 / "autograder.zip") == POSSIBLE_2
    full = run_checks(made_2 / "solution" / SECOND.name, made_2 / "autograder.zip", POSSIBLE_2)
    assert {t.name: t.score for t in full} == POSSIBLE_2
    nothing = run_checks(made_2 / "student" / SECOND.name, made_2 / "autograder.zip", POSSIBLE_2)
    assert [t.score for t in nothing] == [0] * len(POSSIBLE_2)
    assert all("returns nothing yet" in grade.feedback(t) for t in nothing)


@pytest.mark.parametrize("name", WRONG_2)
def test_wrong_answers_to_the_second_are_caught_by_their_question(made_2: Path, tmp_path: Path, name: str) -> None:
    question, source, marks, hint = WRONG_2[name]
    with_answers(made_2 / "solution" / SECOND.name, {question: source}, tmp_path / "wrong.ipynb")
    tests = run_checks(tmp_path / "wrong.ipynb", made_2 / "autograder.zip", POSSIBLE_2)
    assert {t.name: t.possible - t.score for t in tests if not t.passed_all} == {question: marks}
    (failed,) = [t for t in tests if not t.passed_all]
    assert failed.passed_all_public == (hint is None)
    said = grade.feedback(failed)
    assert re.search(hint or "1 hidden check failed", said), said


def test_second_solution_runs_in_jupyter_under_another_name(made_2: Path, tmp_path: Path) -> None:
    (tmp_path / "my own name.ipynb").write_bytes((made_2 / "solution" / SECOND.name).read_bytes())
    cells = run_plainly(tmp_path / "my own name.ipynb")
    for source, said, outputs in cells:
        assert not [o for o in outputs if o.output_type == "error"], f"{source}\n{said}"
    checks = {source: said for source, said, _ in cells if source.startswith("grader.check(")}
    assert list(checks) == [f'grader.check("{q}")' for q in POSSIBLE_2]
    assert all("All test cases passed!" in said for said in checks.values())


def test_second_solution_is_the_core_s_algorithm() -> None:
    from hetfl_core import theory

    solution = functions_of(SECOND)
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
