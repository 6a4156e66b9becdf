"""The grader against hand-ins that are damaged, hostile or greedy, and the honest ones beside them."""

import contextlib
import json
import multiprocessing
import os
import socket
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from handins import (
    CHECK,
    CRASHES,
    FOLDER,
    FULL,
    GREEDY,
    HONEST,
    HONEST_KINDS,
    KINDS,
    NAMESPACES,
    NORM,
    POSSIBLE,
    PROCESSES,
    SLOW,
    TAMPERING,
    UNIT,
    attack,
    autograder,
    check_row,
    confine,
    crew,
    damaged,
    files,
    grade,
    graded,
    hints,
    marks,
    needs_namespaces,
    notebook,
    packed,
    patched,
    place,
    signs,
    staying,
    wire,
)

pytestmark = pytest.mark.nightly

ROOT = FOLDER.parents[1]
__all__ = ["autograder"]


@pytest.fixture(scope="module")
def rows(autograder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    if not NAMESPACES:
        pytest.skip(f"this machine has no namespaces: {confine.possible()}")
    return graded(KINDS, autograder, tmp_path_factory.mktemp("class"), "--timeout", "300")


@pytest.fixture(scope="module")
def slow_rows(autograder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    return graded(SLOW, autograder, tmp_path_factory.mktemp("slow"), "--timeout", "200", "--cell-timeout", "2")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gets_its_row_and_its_true_marks(rows: dict, name: str) -> None:
    check_row(rows[name], KINDS[name])


def test_no_honest_hand_in_is_flagged(rows: dict) -> None:
    """What is unusual in a source is told apart from the signs of tampering."""
    honest = {name: row for name, row in rows.items() if name.split(":")[0] in ("honest", "names", "damaged")}
    assert {name: row["flags"] for name, row in honest.items() if row["flags"]} == {}
    assert {name for name, row in honest.items() if row["unusual"]} == {
        "honest: an alarm of its own",
        "honest: child",
        "honest: class that compares",
        "honest: old NumPy",
        "honest: removes its file",
        "honest: runs Python",
        "honest: shell",
    }


AS_NOTEBOOKS = [name for name, kind in HONEST_KINDS.items() if not kind.name and name != "chdir"]
"""All but zip files, which ``otter run`` does not take, and one that leaves the folder in which it looks for checks."""


@pytest.mark.parametrize("name", AS_NOTEBOOKS)
def test_both_graders_agree_on_every_honest_hand_in(autograder: Path, tmp_path: Path, name: str) -> None:
    """``otter run``, called without a process around its kernel, gives the marks that `grade.py` gives above."""
    from otter.api import grade_submission

    content = HONEST_KINDS[name].content.replace(b"a kernel of the student", b"python3")
    (tmp_path / "a.ipynb").write_bytes(content)
    results = grade_submission(str(tmp_path / "a.ipynb"), str(autograder), quiet=True).results
    assert tuple(results[question].score for question in POSSIBLE) == HONEST_KINDS[name].marks


def test_nothing_of_a_hand_in_goes_on_running(rows: dict) -> None:
    assert staying() == []


@needs_namespaces
@pytest.mark.parametrize("name", SLOW)
def test_what_never_ends_costs_what_depends_on_it(slow_rows: dict, name: str) -> None:
    check_row(slow_rows[name], SLOW[name])


@needs_namespaces
def test_all_that_never_ended_is_gone(slow_rows: dict) -> None:
    assert staying() == []


# --- what namespaces keep away ------------------------------------------------------------------------------------


def test_copies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in the order of the alphabet is the original; what cannot be read is a copy of nothing."""
    monkeypatch.setattr(crew, "grade_tasks", lambda tasks, *_: (marks.Grade(task.name) for task in tasks))
    for name, content in {"a": b"1", "b": b"2", "c": b"1", "d/e": b"1"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.ipynb").write_bytes(content)
    for name in ("x", "y"):
        (tmp_path / f"{name}.ipynb").symlink_to(tmp_path / "a.ipynb")
    found = {each.submission: each.same_as for each in grade.grade_all(tmp_path, None)}
    assert found == {
        "a.ipynb": "",
        "b.ipynb": "",
        "c.ipynb": "a.ipynb",
        "d/e.ipynb": "a.ipynb",
        "x.ipynb": "",
        "y.ipynb": "",
    }


@needs_namespaces
def test_a_hand_in_sees_no_files_processes_and_network_that_are_not_its_own(
    autograder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path / "in" / "other.ipynb"
    other.parent.mkdir()
    other.write_bytes(notebook(*HONEST))
    home = next((path for path in Path.home().iterdir() if path.is_file()), Path.home())
    precious = tmp_path / "precious.txt"
    precious.write_text("as before")
    table = tmp_path / "grades.csv"
    table.write_text("the class")
    data = tmp_path_factory.mktemp("data")
    (data / "shown.txt").write_text("shown")
    with socket.create_server(("127.0.0.1", 0)) as server:
        tries = {
            "read the checks": f"assert open({str(autograder)!r}, 'rb').read(2) == b'PK'",
            "read another's": f"assert open({str(other)!r}).read()",
            "read the masters": f"assert os.listdir({str(FOLDER)!r})",
            "read the history": f"assert subprocess.run(['git', '-C', {str(ROOT)!r}, 'log', '-1'], check=True)",
            "see the history": f"os.stat({str(ROOT / '.git')!r})",
            "read the tests": f"assert os.listdir({str(ROOT / 'tests')!r})",
            "read the grades": f"assert open({str(table)!r}).read()",
            "read a file": f"assert open({str(precious)!r}).read()",
            "read from home": f"assert open({str(home)!r}).read()",
            "read accounts": "assert 'root:' in open('/etc/passwd').read() or os.path.exists('/etc/shadow')",
            "see homes": "assert os.listdir('/home')",
            "see mounted disks": "assert os.listdir('/mnt')",
            "leave": "os.chroot('.')",
            "write": f"open({str(precious)!r}, 'w').write('changed')",
            "create": f"open({str(tmp_path / 'new.txt')!r}, 'w')",
            "write to what is shown": f"open({str(data / 'shown.txt')!r}, 'w')",
            "write to Python": "open(os.__file__, 'a')",
            "send": f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 3)",
            "signal": f"os.kill({os.getpid()}, 0)",
            "look": f"os.stat('/proc/{os.getpid()}/environ')",
            "look through a parent": "assert any(os.listdir('/proc/1/root' + place) for place in ('/mnt', '/home'))",
            "mount": "assert ctypes.CDLL(None).mount(b'none', b'/', None, 32 | 4096, None) == 0",
            "rights": "os.setresuid(12345, 12345, 12345)",
        }
        lines = ["import ctypes, os, socket, subprocess", "reached = []"]
        for name, line in tries.items():
            lines.append(f"try:\n    {line}\n    reached.append({name!r})\nexcept Exception:\n    pass")
        lines.append(
            f"assert open({str(data / 'shown.txt')!r}).read() == 'shown'\nimport hetfl_core, hetfl_book, pandas"
        )
        lines.append(f"assert os.path.isdir({str(place.data_home())!r}) == {place.data_home().is_dir()}")
        numbers = f"def norm(x):\n    return sum(2.0 ** {list(tries)!r}.index(name) for name in reached)"
        (tmp_path / "in" / "nosy.ipynb").write_bytes(notebook("\n".join(lines), numbers, *CHECK))
        how = grade.plan(autograder, 300, hidden=(tmp_path / "in", table), shown=(data,))
        results = {result.submission: result for result in grade.grade_all(tmp_path / "in", how, jobs=1)}
    said = results["nosy.ipynb"].feedback
    assert "Cells with an error" not in said, said
    assert "it should be 5, not 0\n" in said, f"{said}\nthe bits of that number say which of {list(tries)} succeeded"
    assert results["other.ipynb"].total == 5
    assert precious.read_text() == "as before"
    assert not (tmp_path / "new.txt").exists()


@needs_namespaces
def test_what_lies_in_a_folder_that_is_shown_is_hidden_all_the_same(autograder: Path, tmp_path: Path) -> None:
    """Hand-ins and grades within the data folder, say; and what lies deeper is shown again."""
    inner = tmp_path / "hidden" / "shown"
    inner.mkdir(parents=True)
    for path in (tmp_path / "hidden" / "secret.txt", inner / "file.txt", tmp_path / "grades.csv"):
        path.write_text("here")
    (tmp_path / "link").symlink_to(inner)
    cells = (
        f"import os\nassert not os.path.exists({str(tmp_path / 'hidden' / 'secret.txt')!r})",
        f"assert not open({str(tmp_path / 'grades.csv')!r}).read()",
        f"assert open({str(inner / 'file.txt')!r}).read() == open({str(tmp_path / 'link' / 'file.txt')!r}).read()",
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.ipynb").write_bytes(notebook(*cells, *HONEST))
    hidden = (tmp_path / "hidden", tmp_path / "grades.csv")
    how = grade.plan(autograder, 300, hidden=hidden, shown=(tmp_path, inner, tmp_path / "link"))
    (result,) = grade.grade_all(tmp_path / "in", how, jobs=1)
    assert (result.total, result.feedback.count("Cells with an error")) == (5, 0), result.feedback


def test_the_tries_succeed_without_namespaces(autograder: Path, tmp_path: Path) -> None:
    lines = (
        f"import os\nreached = os.kill({os.getpid()}, 0) is None and open({str(autograder)!r}, 'rb').read(2) == b'PK'"
    )
    says = "def norm(x):\n    return 5.0 if reached else 7.0"
    (tmp_path / "nosy.ipynb").write_bytes(notebook(lines, says, *CHECK))
    result = grade.grade(tmp_path / "nosy.ipynb", autograder, 300, namespaces=False)
    assert result.marks["q1"] == 1, result.feedback


# --- without namespaces -------------------------------------------------------------------------------------------

PLAIN = {
    "honest": HONEST_KINDS["honest"],
    "chdir": HONEST_KINDS["chdir"],
    "isclose": TAMPERING["isclose"],
    "forged code": TAMPERING["forged code"],
    "removes its folder": attack(
        "import os, shutil\nshutil.rmtree(os.environ['TMPDIR'])", "removes the folder", HONEST, marks=FULL
    ),
    "exit": CRASHES["_exit"],
    "daemon": PROCESSES["daemon"],
    "kills its parent": attack(
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(5)",
        "ends a process of the grader",
        says="grading broke off",
    ),
    "after": HONEST_KINDS["half"],
    "large file": GREEDY["large file"],
    "honest at last": HONEST_KINDS["honest"],
}


def test_without_namespaces_marks_are_true_too(autograder: Path, tmp_path: Path) -> None:
    for name, row in graded(PLAIN, autograder, tmp_path, "--timeout", "300", "--no-namespaces").items():
        check_row(row, PLAIN[name])
    assert staying() == []


# --- parts --------------------------------------------------------------------------------------------------------


SECRET = "Whatnobodyshouldread"
BROKEN = "def norm(x):\n    return {"
LEAKS = {
    "error": "raise ValueError(secret)",
    "error with a note": "error = ValueError()\nerror.add_note(secret)\nraise error",
    "class": "raise type(secret, (Exception,), {})",
    "class in a module": "raise type(secret, (Exception,), {'__module__': 'numpy'})",
    "module": "raise type('ValueError', (Exception,), {'__module__': secret})",
    "assertion": "raise AssertionError(secret)",
    "key": "{}[secret]",
    "name": "eval(secret)",
    "attribute": "getattr(1, secret)",
    "file": "open(secret)",
    "module to import": "import importlib\nimportlib.import_module(secret)",
    "number": "int(secret)",
    "syntax": "compile(secret + ' +', 'x', 'exec')",
    "syntax error": "raise SyntaxError(secret)",
    "cause": "raise ValueError from KeyError(secret)",
    "group": "raise ExceptionGroup(secret, [ValueError(secret)])",
    "print": "print(secret)\nimport sys\nprint(secret, file=sys.stderr)\n1 / 0",
    "last words": "print(secret)\nimport os\nos._exit(3)",
    "exit": "raise SystemExit(secret)",
}
RETURNS = {
    "text": "secret",
    "list": "[secret]",
    "array": "np.array([secret])",
    "dictionary": "{secret: 1}",
    "object": "type(secret, (), {})()",
    "numbers": "[float(ord(c)) for c in secret]",
    "class": "type(secret, (float,), {})(1)",
    "lines": "'AssertionError: ' + secret",
    "error": "ValueError(secret)",
    "function": "type(secret, (), {'__call__': 1})()",
}
READ = "import numpy as np\nsecret = 'What' + 'nobody' + 'should' + 'read'"
TOLD = {
    "environment": (
        f"import os\ndef norm(x):\n    return 7 if {SECRET!r} in os.environ.values() else np.sqrt(x @ x)",
        UNIT,
        NORM[:18],
    ),
    "broken": (BROKEN, UNIT),
    "unit alone": (UNIT,),
    "division": ("1 / 0", NORM, UNIT),
    "subscript": (NORM, "def unit(x):\n    y = None\n    return y[0]"),
    **{f"{name} in a cell": (READ, source, NORM) for name, source in LEAKS.items()},
    **{
        f"{name} in a check": (READ, "def norm(x):\n    " + source.replace("\n", "\n    "))
        for name, source in LEAKS.items()
    },
    **{
        f"{name} returned": (READ, f"def norm(x):\n    return {source}\ndef unit(x):\n    return {source}")
        for name, source in RETURNS.items()
    },
}


@pytest.fixture(scope="module")
def told(autograder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The texts for a class, with a key in the environment of who grades it."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "in").mkdir()
    for name, cells in TOLD.items():
        (folder / "in" / f"{name}.ipynb").write_bytes(notebook(*cells))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", SECRET)
        results = list(grade.grade_all(folder / "in", grade.plan(autograder, 300), jobs=2))
    return {Path(each.submission).stem: grade.write_feedback(each, folder).read_text("utf8") for each in results}


def test_no_keys_are_in_the_environment(told: dict[str, str]) -> None:
    assert "q1: 3 of 3" in told["environment"]


@pytest.mark.parametrize("name", TOLD)
def test_feedback_has_no_text_that_a_hand_in_chose_while_it_ran(told: dict[str, str], name: str) -> None:
    assert SECRET not in told[name]
    assert len(told[name]) < 1000
    codes = [str(ord(letter)) for letter in SECRET]
    assert ", ".join(codes[12:]) not in told[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "q1: 0 of 3\n  norm is not defined in your notebook\n  1 hidden check failed"),
        ("broken", "Cells with an error:\ncode cell 1 (`def norm(x):`): SyntaxError: '{' was never closed, line 2"),
        ("unit alone", "q1: 0 of 3\n  norm is not defined in your notebook"),
        ("division", "Cells with an error:\ncode cell 1 (`1 / 0`): ZeroDivisionError in line 1"),
        ("subscript", "  TypeError in code cell 2 (`def unit(x):`), line 3 (`return y[0]`)"),
        ("class in a check", "  an error of the hand-in's own (Exception) in code cell 2 (`def norm(x):`), line 2"),
        ("numbers returned", "q1: 0 of 3\n"),
        ("print in a cell", "ZeroDivisionError in line 4 (`1 / 0`)"),
    ],
)
def test_feedback_names_what_is_missing_and_the_cells_that_failed(told: dict[str, str], name: str, said: str) -> None:
    assert said in told[name]


SOURCE = """
def test_q1(f):
    assert f() == 1, f"expected {2:g} for ada, not {f()}: see 1.2"
    assert f() == 1, "plain" + (" more" if f else "")
"""


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("expected 2 for ada, not 7.123456789: see 1.2", 3, "expected 2 for ada, not 7.12346: see 1.2"),
        (
            "expected 2 for ada, not [[1.0, nan], [2e-9, -3]]: see 1.2",
            3,
            "expected 2 for ada, not [[1.0, nan], [2e-9, -3]]: see 1.2",
        ),
        ("expected 2 for ada, not tensor([1]): see 1.2", 3, "expected 2 for ada, not tensor([1]): see 1.2"),
        ("expected 2 for ada, not {'ada': 1}: see 1.2", 3, "expected 2 for ada, not {'ada': 1}: see 1.2"),
        ("expected 2 for ada, not root:x:0: see 1.2", 3, "expected 2 for ada, not …: see 1.2"),
        ("expected 2 for ada, not " + "9" * 4000 + ": see 1.2", 3, "expected … for ada, not …: see 1.2"),
        ("expected 2 for ada, not " + "9" * 400 + ": see 1.2", 3, "expected 2 for ada, not inf: see 1.2"),
        ("something else", 3, "wrong"),
        ("plain more", 4, "plain more"),
        ("plain secret", 4, "plain…"),
        ("anything", 1, "wrong"),
    ],
)
def test_what_a_check_quotes_is_cut_to_numbers(text: str, line: int, said: str) -> None:
    assert hints.own_words(text, line, SOURCE) == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no zip", "File is not a zip file"),
        (b"", "File is not a zip file"),
        (packed({"a.txt": b""}), "it has no tests/*.py"),
        (packed({"tests/q1.py": b"def ("}), "(q1.py, line 1)"),
        (packed({"tests/q1.py": b"\xff"}), "can't decode byte"),
        (damaged(zipfile.ZIP_LZMA), "it has no tests/*.py"),
        (patched(packed({"tests/q1.py": b"1"}), b"PK\x01\x02", 8, 1), "encrypted"),
    ],
)
def test_what_is_no_autograder_is_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "autograder.zip").write_bytes(content)
    with pytest.raises(SystemExit) as end:
        grade.main([str(tmp_path), "--autograder", str(tmp_path / "autograder.zip"), "--out", str(tmp_path / "g.csv")])
    assert f"{tmp_path / 'autograder.zip'} is no autograder.zip as generate.py makes it: " in str(end.value)
    assert said in str(end.value)


@pytest.mark.parametrize("option", ["--out", "--feedback"])
def test_where_nothing_can_be_written_is_said_before_anything_is_graded(
    autograder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(crew, "grade_tasks", lambda *arguments: pytest.fail("graded"))
    (tmp_path / "file").write_text("")
    out = ["--out", str(tmp_path / "g.csv"), option, str(tmp_path / "file" / "x")]
    with pytest.raises(SystemExit, match=r"cannot write to .*file"):
        grade.main([str(tmp_path), "--autograder", str(autograder), *out])


def test_marks_beyond_the_possible_are_refused() -> None:
    for wrong in ({"q1": 8000.0}, {"q1": -1.0}, {"q1": float("nan")}, {"q1": float("inf")}, {"q9": 1.0}):
        result = marks.bounded(marks.Grade("a", wrong | {"q2": 2.0}), POSSIBLE)
        assert result.marks == {"q1": 0.0, "q2": 2.0}
        assert result.flags
    right = marks.bounded(marks.Grade("a", {"q1": 3.0, "q2": 0.5}), POSSIBLE)
    assert (right.marks, right.flags) == ({"q1": 3.0, "q2": 0.5}, [])


def test_a_file_that_changes_while_a_class_is_graded_is_flagged(autograder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.ipynb").write_bytes(notebook(*HONEST))
    tasks = [marks.Task(path, path.name, files.digest(path)) for path in sorted(tmp_path.glob("*.ipynb"))]
    (tmp_path / "a.ipynb").write_bytes(notebook(*HONEST, "1"))
    changed, same = crew.grade_tasks(tasks, grade.plan(autograder, 60), 1)
    assert (changed.total, changed.flags) == (5, ["the file has changed since grading began"])
    assert (same.total, same.flags) == (5, [])


def test_a_process_of_checks_that_dies_is_replaced(autograder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(notebook("import time\ntime.sleep(3)", *HONEST))
    worker = crew.Worker(grade.plan(autograder, 60))
    worker.start()
    threading.Timer(1.5, worker.process.kill).start()
    result = worker.grade(marks.Task(tmp_path / "a.ipynb", "a", files.digest(tmp_path / "a.ipynb")))
    worker.stop()
    assert (result.total, result.flags) == (5, ["the process of the checks was ended while this was graded"])


def pair() -> tuple[wire.TrustedPeer, wire.Peer]:
    """Two ends of a line, the second served by a thread: it lends what is put into ``mine``."""
    ours, theirs = multiprocessing.Pipe()
    near, far = wire.TrustedPeer(ours, trusting=False), wire.Peer(theirs, trusting=True)

    def serve() -> None:
        with contextlib.suppress(wire.Gone):
            while True:
                far.send(far.answer(far.receive()))

    threading.Thread(target=serve, daemon=True).start()
    return near, far


VALUES = [
    None,
    True,
    -(10**30),
    0.1,
    float("inf"),
    "Ü\ud800",
    b"\0x",
    1 - 2j,
    (1, [2, {"a": {3}}]),
    {(1, 2): None, 3: "x"},
    np.float32(0.1),
    np.arange(6.0).reshape(2, 3)[:, ::2],
    np.zeros((0, 3), np.int8),
    np.array(["a", "bc"]),
    np.array([None, 1], dtype=object),
    np.array(7),
    np.array([1, 2], dtype=">i2"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_arrive_as_they_are(value: object) -> None:
    near, far = pair()
    sent = json.loads(json.dumps(far.encode(value, wire.Letter())))
    got = near.decode(sent, wire.Letter())
    assert type(got) is type(value)
    np.testing.assert_equal(got, value)
    if isinstance(value, np.ndarray):
        assert (got.dtype, got.shape) == (value.dtype, value.shape)


def call(function: Callable, *args: object) -> object:
    """Call a function across the line."""
    near, far = pair()
    lent = far.encode(function, wire.Letter())
    return near.decode(lent, wire.Letter())(*args)


def test_a_call_changes_its_arguments_as_it_does_at_home() -> None:
    def change(array, table, numbers):
        array[0] = 9
        table["new"] = array
        table["old"] *= 2
        numbers.append(3)
        return array

    array, table, numbers = np.zeros(2), {"old": np.ones(1)}, [1]
    old = table["old"]
    got = call(change, array, table, numbers)
    got[1] = 5
    assert array.tolist() == [9, 5], "what comes back is the argument itself"
    assert (old.tolist(), numbers) == ([2], [1, 3])
    assert table["old"] is old
    assert table["new"][0] == 9


def test_gradients_flow_through_a_call() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    unused = torch.ones(1, requires_grad=True)
    y = call(lambda a, b: {"out": (a**3).sum(), "const": torch.ones(1)}, 2 * x, unused)
    assert not y["const"].requires_grad
    found = torch.autograd.grad(5 * y["out"], [x, unused], allow_unused=True)
    assert torch.allclose(found[0], 5 * 3 * (2 * x.detach()) ** 2 * 2)
    assert found[1] is None
    assert call(lambda a: a.detach(), x).requires_grad is False


def test_a_loss_can_be_differentiated_by_the_one_who_is_given_it() -> None:
    torch = pytest.importorskip("torch")
    scale = 3.0

    def loss(w):
        return scale * (w**2).sum()

    got = call(lambda f, w: torch.func.grad(f)(w), loss, torch.tensor([1.0, -2.0]))
    assert got.tolist() == [6.0, -12.0]


def test_errors_arrive_under_their_names() -> None:
    def fail(x):
        return {}[x]

    with pytest.raises(KeyError, match="lost") as caught:
        call(fail, "lost")
    assert type(caught.value).__name__ == "KeyError"


BAD = [
    [],
    {"value": {"code": "gASV", "number": 1}},
    {"value": {"array": ["O", [1], "AAAA"], "scalar": False}},
    {"value": {"array": ["<f8", [10**12], "AAAA"], "scalar": False}},
    {"value": {"same": 99}},
    {"value": {"no such kind": 1}},
    {"value": {"dict": [[[], 1]]}},
    {"do": "forget"},
    {"do": "call", "function": 1, "arguments": [1], "gradients": False},
    {"error": 7},
]


@pytest.mark.parametrize("message", BAD, ids=json.dumps)
def test_what_no_honest_end_sends_is_told_from_a_wrong_answer(message: object) -> None:
    ours, theirs = multiprocessing.Pipe()
    near = wire.TrustedPeer(ours, trusting=False)
    theirs.send_bytes(json.dumps(message).encode())
    theirs.close()
    with pytest.raises((wire.ProtocolError, wire.Gone)):
        near.call(1, (), {})


SIGNS = {
    "import numpy as np\nnp.isclose = print": "replaces numpy.isclose",
    "from numpy import linalg\nlinalg.norm = print": "replaces numpy.linalg.norm",
    "import numpy\nnumpy.__dict__['abs'] = print": "writes into numpy.__dict__",
    "import torch\nvars(torch)['allclose'] = print": "writes into vars(...)",
    "from os import kill\nkill(1, 9)": "processes: os.kill",
    "eval('1')": "code that it makes up: eval",
    "open('/proc/self/mem')": "names /proc/",
    "%%bash\nrm -r .": "a cell of %%bash",
    "!ls": "calls a command of the shell",
}
NO_SIGNS = [
    "import torch\ntorch.backends.cudnn.deterministic = True\ntorch.set_default_dtype(torch.float64)",
    "import matplotlib.pyplot as plt\nplt.rcParams['font.size'] = 8",
    "class A:\n    def __init__(self):\n        self.x = 1\na = A()\na.x = 2",
    "x = {}\nx['a'] = 1\n%timeit 1",
    "def f(:",
]


@pytest.mark.parametrize("source", SIGNS)
def test_signs_of_tampering_are_seen(source: str) -> None:
    found = signs.signs_of({1: "1", 2: source})
    assert any(sign.startswith("cell 2: ") and SIGNS[source] in sign for sign in found), found


@pytest.mark.parametrize("source", NO_SIGNS)
def test_honest_cells_show_no_signs(source: str) -> None:
    assert signs.signs_of({1: source}) == []
