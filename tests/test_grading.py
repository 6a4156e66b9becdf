"""The grader against hand-ins that are damaged, hostile or greedy, and the honest ones beside them."""

import contextlib
import csv
import io
import json
import multiprocessing
import os
import socket
import struct
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest

pytest.importorskip("otter", reason="otter-grader is not installed")
if os.name != "posix":
    pytest.skip("the grader needs Linux or macOS", allow_module_level=True)

FOLDER = Path(__file__).resolve().parents[1] / "book" / "assignments"
sys.path.insert(0, str(FOLDER))

import grade  # noqa: E402
from grading import confine, crew, files, marks, signs, wire  # noqa: E402

NAMESPACES = not confine.possible()
needs_namespaces = pytest.mark.skipif(not NAMESPACES, reason=f"this machine has no namespaces: {confine.possible()}")

# --- a small assignment -------------------------------------------------------------------------------------------

CHECKS = {
    "q1": """
@test_case(points=1, hidden=False)
def test_q1(norm):
    import numpy as np

    got = norm(np.array([3.0, 4.0]))
    assert got is not None, "norm returns nothing yet"
    assert not np.isclose(got, 7), "this is the sum"
    assert np.isclose(got, 5), f"it should be 5, not {got:.4g}"

@test_case(points=2, hidden=True)
def test_q1_hidden(norm):
    import numpy as np

    for n in (1, 2, 7):
        x = np.random.default_rng(n).normal(size=n)
        before = x.copy()
        assert abs(norm(x) - (x @ x) ** 0.5) < 1e-9, "wrong"
        assert np.array_equal(x, before), "norm changes its argument"
""",
    "q2": """
@test_case(points=2, hidden=False)
def test_q2(env, unit):
    from unittest import mock

    import numpy as np

    with mock.patch.dict(env, {"norm": lambda x: 2.0}):
        got = unit(np.array([3.0, 4.0]))
    assert got is not None, "unit returns nothing yet"
    assert np.allclose(got, [1.5, 2.0]), "use norm"
""",
}
POSSIBLE = {"q1": 3.0, "q2": 2.0}
NORM = "import numpy as np\ndef norm(x):\n    return np.sqrt(np.sum(x ** 2))"
UNIT = "def unit(x):\n    return x / norm(x)"
EMPTY = "import numpy as np\ndef norm(x):\n    ...\ndef unit(x):\n    ..."
CHECK = ["import otter\ngrader = otter.Notebook('')", "grader.check('q1')", "grader.check('q2')", "grader.check_all()"]
HONEST = [CHECK[0], NORM, CHECK[1], UNIT, *CHECK[2:]]


def notebook(*cells: str) -> bytes:
    """A notebook of some code cells."""
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nb.metadata["kernelspec"] = {"name": "a kernel of the student", "display_name": "mine"}
    return nbformat.writes(nb).encode("utf8")


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def damaged(method: int) -> bytes:
    """A zip file whose list of contents is right and whose contents are not."""
    content = bytearray(packed({"a.ipynb": notebook(*HONEST) * 3}, method))
    content[60:160] = bytes(byte ^ 0xA5 for byte in content[60:160])
    return bytes(content)


def patched(content: bytes, mark: bytes, offset: int, value: int) -> bytes:
    """A zip file with a number in its list of contents, and in the header of the member, replaced."""
    found = bytearray(content)
    for start, at in ((b"PK\x03\x04", offset - 2), (mark, offset)):
        struct.pack_into("<H", found, found.index(start) + at, value)
    return bytes(found)


@pytest.fixture(scope="module")
def autograder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("autograder") / "autograder.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, source in CHECKS.items():
            head = f'from otter.test_files import test_case\n\nOK_FORMAT = False\n\nname = "{name}"\npoints = None\n'
            archive.writestr(f"tests/{name}.py", head + source)
    return path


# --- kinds of hand-ins --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One hand-in and what the grader should say of it.

    ``content`` is the file, or what makes it; ``marks`` are the true ones; ``says`` is part of the message,
    ``flag`` of the flags.
    """

    content: bytes | Callable[[Path], None]
    marks: tuple[float, float] = (0, 0)
    says: str = ""
    flag: str = ""
    name: str = ""
    fragile: bool = False

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(self.content):
            self.content(path)
        else:
            path.write_bytes(self.content)


def attack(source: str, flag: str = "", cells: tuple[str, ...] = (EMPTY, *CHECK), **more) -> Kind:
    """A notebook that does something before its cells."""
    return Kind(notebook(source, *cells), flag=flag, **more)


FULL, DAMAGED = (3, 2), "cannot be opened"
HONEST_KINDS = {
    "honest": Kind(notebook(*HONEST), FULL),
    "honest zip": Kind(packed({"deep/er/Mein Übungsblatt.ipynb": notebook(*HONEST)}), FULL, name="honest.zip"),
    "honest LZMA": Kind(packed({"a.ipynb": notebook(*HONEST)}, zipfile.ZIP_LZMA), FULL, name="lzma.zip"),
    "half": Kind(notebook(NORM.replace("np.sqrt", ""), UNIT, *CHECK), (0, 2)),
    "visible only": Kind(notebook("def norm(x):\n    return 5.0", UNIT, *CHECK), (1, 2)),
    "changes its argument": Kind(notebook(NORM.replace("return", "x *= 1.5\n    return 1/1.5*"), UNIT, *CHECK), (1, 2)),
    "chdir": Kind(notebook("import os\nos.makedirs('a')\nos.chdir('a')", *HONEST, "os.chdir('/')"), FULL),
    "error in a cell": Kind(notebook("1 / 0", "def f(:", *HONEST), FULL),
    "no checks": Kind(notebook(NORM, UNIT), FULL),
    "magic": Kind(notebook("%matplotlib inline\n%config IPCompleter.greedy = True", "%%time\n1", *HONEST), FULL),
    "writes a file": Kind(notebook("open('mine.txt', 'w').write('x')\nassert open('mine.txt').read()", *HONEST), FULL),
    "temporary file": Kind(
        notebook(
            "import tempfile\nopen(tempfile.mkdtemp() + '/x', 'w').write('x')\ndone = True",
            NORM,
            "assert done\n" + UNIT,
        ),
        FULL,
    ),
    "later changed": Kind(notebook(NORM, UNIT, *CHECK[:3], "def norm(x):\n    return 0"), FULL),
    "corrected at last": Kind(notebook(EMPTY, *CHECK[:3], NORM, UNIT, CHECK[3]), FULL),
    "a list": Kind(notebook(NORM, "def unit(x):\n    return [v / norm(x) for v in x]", *CHECK), FULL),
    "an iterator": Kind(
        notebook(NORM, "def unit(x):\n    n = norm(x)\n    return map(lambda v: v / n, x)", *CHECK), FULL
    ),
    "matrix": Kind(notebook(NORM, "def unit(x):\n    return (x / np.matrix(norm(x))).A1", *CHECK), FULL),
    "asks": Kind(notebook("name = input('who are you?')", *HONEST), FULL),
    "await": Kind(notebook("import asyncio\nawait asyncio.sleep(0)", *HONEST), FULL),
    "child": Kind(notebook("import subprocess\nsubprocess.run(['true'])", *HONEST), FULL, flag="imports subprocess"),
    "many prints": Kind(notebook("for i in range(20000):\n    print(i)", *HONEST), FULL),
    "strange tags": Kind(
        notebook(*HONEST).replace(b'"metadata": {}', b'"metadata": {"tags": ["x"], "otter": {}}'), FULL
    ),
}
DAMAGED_KINDS = {
    "no JSON": Kind(b'{"cells": [', says="not a notebook"),
    "nothing": Kind(b"", says="not a notebook"),
    "bytes": Kind(bytes(range(256)) * 9, says="not a notebook"),
    "a list": Kind(b"[]", says="not a notebook"),
    "a format to come": Kind(
        b'{"cells": [], "metadata": {}, "nbformat": 99, "nbformat_minor": 0}', says="not a notebook"
    ),
    "nested": Kind(b"[" * 200_000, says="not a notebook"),
    "surrogate": Kind(notebook("x = 'Q'").replace(b"Q", b"\\ud800"), says="not a notebook"),
    **{
        f"cells that are {what}": Kind(
            json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode(),
            says="not a notebook that can be read: " + expected,
        )
        for what, cells, expected in (
            ("no list", {}, "expected a list of cells, found "),
            ("a dict", {"a": {"cell_type": "code"}}, ""),
            ("a text", "print()", ""),
            ("nothing", None, ""),
            ("numbers", [1, 2], ""),
            ("lists", [[], []], ""),
            ("without a type", [{"source": "1", "metadata": {}}], ""),
            ("of numbers", [{"cell_type": "code", "source": 3, "metadata": {}, "outputs": []}], ""),
            ("badly tagged", [{"cell_type": "code", "source": "1", "metadata": {"tags": 3}, "outputs": []}], ""),
        )
    },
    "no code": Kind(notebook(), says="the notebook has no code"),
    "another assignment": Kind(
        notebook(CHECK[0], "def other(x):\n    return x", "grader.check('q7')", 'grader.check("q8")'),
        says="is this another assignment? None of the questions that it has checked (q7, q8) is one of this",
    ),
    "metadata": Kind(notebook(*HONEST).replace(b'"metadata": {}', b'"metadata": 7'), says="not a notebook"),
    "zlib": Kind(damaged(zipfile.ZIP_DEFLATED), says=DAMAGED, name="zlib.zip"),
    "LZMA": Kind(damaged(zipfile.ZIP_LZMA), says=DAMAGED, name="lzma damaged.zip"),
    "bz2": Kind(damaged(zipfile.ZIP_BZIP2), says=DAMAGED, name="bz2.zip"),
    "cut": Kind(packed({"a.ipynb": notebook(*HONEST)})[:-40], says=DAMAGED, name="cut.zip"),
    "no zip": Kind(b"PK\x03\x04 and no more", says=DAMAGED, name="no.zip"),
    "encrypted": Kind(patched(packed({"a.ipynb": b"{}"}), b"PK\x01\x02", 8, 1), says=DAMAGED, name="secret.zip"),
    "unknown packing": Kind(patched(packed({"a.ipynb": b"{}"}), b"PK\x01\x02", 10, 77), says=DAMAGED, name="77.zip"),
    "without": Kind(packed({"notes.txt": b"I could not do it"}), says="found 0", name="without.zip"),
    "two": Kind(packed({"a.ipynb": b"{}", "b.ipynb": b"{}"}), says="found 2", name="two.zip"),
    "zip in zip": Kind(packed({"a.zip": packed({"a.ipynb": notebook(*HONEST)})}), says="found 0", name="in.zip"),
    "bomb": Kind(packed({"a.ipynb": bytes(files.MAX_BYTES + 2)}), says="larger than 50 MB", name="bomb.zip"),
    "large": Kind(lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 10**9), says="larger than 200 MB"),
}
OTHERS = {
    "link": Kind(lambda path: path.symlink_to(__file__), says="a link"),
    "dead link": Kind(lambda path: path.symlink_to("nowhere"), says="a link"),
    "pipe": Kind(lambda path: os.mkfifo(path), says="no regular file"),
}
NAMES = {
    "not UTF-8": Kind(notebook(*HONEST), FULL, name=os.fsdecode(b"M\xfcller.ipynb")),
    "long": Kind(notebook(*HONEST), FULL, name="n" * 249 + ".ipynb"),
    "lines": Kind(notebook(*HONEST), FULL, name='a\n"b",c\r.ipynb'),
    "formula": Kind(notebook(*HONEST), FULL, name="=HYPERLINK(1).ipynb"),
    "feedback's folder": Kind(notebook(*HONEST), FULL, name="x.ipynb"),
    "below feedback": Kind(notebook(*HONEST), FULL, name="x.ipynb.txt/y.ipynb"),
    "spaces": Kind(notebook(*HONEST), FULL, name=" Ada  Lovelace ,;(2)'$HOME`.IPYNB"),
}
ALWAYS = "class Always(float):\n    def __eq__(self, other): return True\n    def __format__(self, how): return ''"
FORGED = """
import gc, json, os, struct
from multiprocessing.connection import Connection
lines = [c for c in gc.get_objects() if isinstance(c, Connection)]
for line in lines:
    line.send_bytes({})
    try:
        print(line.recv_bytes())
    except Exception as error:
        print(error)
"""
TAMPERING = {
    "isclose": attack(
        "import numpy as np\nnp.isclose = np.allclose = lambda *a, **k: np.True_", "replaces numpy.isclose"
    ),
    "isclose, hidden": attack(
        "import numpy as np\nexec('np.is' + 'close = np.all' + 'close = lambda *a, **k: True')",
        "replaces numpy.isclose",
    ),
    "setattr": attack("import numpy\nsetattr(numpy, 'array_equal', print)", "replaces numpy.array_equal"),
    "wrapped": attack(
        "import functools, torch\nwas = torch.manual_seed\n@functools.wraps(was)\ndef seed(s):\n    return was(7)\n"
        "torch.manual_seed = seed",
        "replaces torch.manual_seed",
    ),
    "built-ins": attack("import builtins\nbuiltins.abs = lambda x: 0", "replaces builtins.abs"),
    "modules": attack("import sys, types\nsys.modules['numpy'] = types.ModuleType('numpy')", "writes into sys.modules"),
    "otter": attack(
        "import otter.test_files\nfrom otter.execute import Checker\nChecker.get_results = lambda: [8000]",
        "imports otter.",
    ),
    "always equal": attack(f"{ALWAYS}\ndef norm(x):\n    return Always(1)", "__eq__", (*CHECK,)),
    "object": attack(
        "class O:\n    __eq__ = __ne__ = lambda s, o: True\ndef norm(x):\n    return O()", "__ne__", (*CHECK,)
    ),
    "array of objects": attack(
        "import numpy as np\nclass O(np.ndarray):\n    def __array_ufunc__(self, *a, **k): return True\n"
        "def norm(x):\n    return x.view(O)",
        "__array_ufunc__",
        (*CHECK,),
    ),
    "tests on disk": attack(
        "import pathlib, re\nfor up in [*pathlib.Path.cwd().parents][:3]:\n    for test in up.rglob('q*.py'):\n"
        "        test.write_text(re.sub('points=.', 'points=8000', test.read_text().replace('assert', '')))",
        "looks through folders",
    ),
    "answer.json": attack(
        "import os, json\nfor path in ('answer.json', '../answer.json', os.environ['TMPDIR'] + '/answer.json'):\n"
        "    open(path, 'w').write(json.dumps({'marks': {'q1': 8000}, 'message': '', 'feedback': ''}))",
        "names answer.json",
    ),
    "removes TMPDIR": attack(
        "import os, shutil\nshutil.rmtree(os.environ['TMPDIR'])", "shutil.rmtree", HONEST, marks=FULL
    ),
    "writes to the line": attack(FORGED.format("b'rubbish'"), "writes to the grader itself", says="grading broke off"),
    "forged result": attack(
        FORGED.format("json.dumps({'do': 'finish', 'variables': {}, 'marks': {'q1': 8000}, 'replaced': []}).encode()"),
        "the inside of Python",
    ),
    "forged code": attack(
        FORGED.format(
            "json.dumps({'do': 'check', 'question': 'q1', 'variables': {'f': {'code': 'gASV', 'number': 1}}}).encode()"
        ),
        "writes to the grader itself",
        says="grading broke off",
    ),
    "flood": attack(FORGED.format("json.dumps([1] * 9).encode()"), "writes to the grader", says="grading broke off"),
    "unknown request": attack(
        FORGED.format("json.dumps({'do': 'forget'}).encode()"), "writes to the grader itself", says="grading broke off"
    ),
    "calls within": attack("def norm(x):\n    grader.check('q1')\n    return 5.0", "", CHECK, marks=(1, 0)),
    "trace": attack("import sys\nsys.settrace(lambda *a: None)", "sys.settrace", HONEST, marks=FULL),
    "mock": attack(
        "from unittest import mock\nmock.patch('numpy.isclose', lambda *a: True).start()", "replaces numpy.isclose"
    ),
    "a list of marks": attack("def norm(x):\n    raise Exception('8000 of 3')", "", CHECK),
}
CRASHES = {
    "_exit": attack("import os\nos._exit(0)", "os._exit", says="grading broke off"),
    "_exit with an error": attack("import os\nos._exit(1)", "os._exit", says="grading broke off"),
    "exit": attack("exit()", says="exit()"),
    "kills itself": attack(
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "os.kill", says="grading broke off"
    ),
    "segmentation fault": attack("import ctypes\nctypes.string_at(0)", "imports ctypes", says="grading broke off"),
    "abort": attack("import os\nos.abort()", "os.abort", says="grading broke off"),
    "closes all": attack("import os\nos.closerange(0, 999)", "os.closerange", says="grading broke off"),
    "recursion": attack("def norm(x):\n    return norm(x)", "", CHECK),
    "SystemExit": attack("def norm(x):\n    raise SystemExit(0)", "", (UNIT, *CHECK), marks=(0, 2)),
    "KeyboardInterrupt": attack("def norm(x):\n    raise KeyboardInterrupt", "", (UNIT, *CHECK), marks=(0, 2)),
    "strange error": attack(
        "class E(Exception):\n    def __str__(self): raise SystemExit\ndef norm(x):\n    raise E",
        "",
        (UNIT, *CHECK),
        marks=(0, 2),
    ),
    "kills its parents": attack(
        "import os, signal\nfor _ in range(3):\n    os.kill(os.getppid(), signal.SIGKILL)", "os.kill", fragile=True
    ),
    "kills all": attack("import os, signal\nos.kill(-1, signal.SIGKILL)", "os.kill", HONEST, marks=FULL, fragile=True),
}
STAYS = "31536000.25"
PROCESSES = {
    "new session": attack(
        f"import subprocess\nsubprocess.Popen(['sleep', '{STAYS}'], start_new_session=True)",
        "leaves processes behind: 1",
        HONEST,
        marks=FULL,
    ),
    "daemon": attack(
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        os.execlp('sleep', 'sleep', '{STAYS}')\n    os._exit(0)",
        "leaves processes behind: 1",
        HONEST,
        marks=FULL,
    ),
    "thread": attack(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9999,)).start()", "", HONEST, marks=FULL
    ),
    "workers": attack(
        "import multiprocessing, time\n"
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(9999,)).start()",
        "imports multiprocessing",
        HONEST,
        marks=FULL,
    ),
    "many": attack(
        "import os, time\nfor _ in range(300):\n    if os.fork() == 0:\n"
        f"        os.execlp('sleep', 'sleep', '{STAYS}')\n"
        "time.sleep(60)",
        "os.fork",
        says="more than 100 processes",
    ),
}
GREEDY = {
    "memory": attack("import numpy as np\na = np.ones((10**6, 10**5))", "", HONEST, marks=FULL),
    "memory, bit by bit": attack("kept = []\nwhile True:\n    kept.append(bytearray(10**8))", "", HONEST, marks=FULL),
    "disk": attack(
        "for i in range(20):\n    with open(f'{i}.bin', 'wb') as f:\n        f.write(bytes(50_000_000))",
        "",
        HONEST,
        marks=FULL,
    ),
    "endless print": attack("while True:\n    print('x' * 10**6)", "", HONEST, marks=FULL),
    "large file": attack("with open('a', 'wb') as f:\n    f.truncate(10**12)", "", HONEST, marks=FULL),
    "endless iterator": attack("import itertools\ndef norm(x):\n    return itertools.count()", "", CHECK),
    "large answer": attack("import numpy as np\ndef norm(x):\n    return np.ones(4 * 10**7)", "", CHECK),
    "many variables": attack("for i in range(1000):\n    globals()[f'v{i}'] = [0.5] * 999", "", HONEST, marks=FULL),
}
SLOW = {
    "endless loop": attack(
        "while True:\n    pass", says="stopped after 3 seconds: does a loop never end? (in code cell 1)"
    ),
    "endless check": attack(
        "def norm(x):\n    while True:\n        pass",
        "",
        CHECK,
        says="stopped after 3 seconds: does a loop never end? (while q1 was checked)",
    ),
    "sleep": attack("import time\ntime.sleep(9999)", says="stopped after 3 seconds"),
    "loop with a child": attack(
        f"import subprocess, time\nsubprocess.Popen(['sleep', '{STAYS}'], start_new_session=True)\n"
        "while True:\n    time.sleep(0.01)",
        "leaves processes behind: 1",
        says="stopped after 3 seconds",
    ),
    "deaf": attack(
        "import signal, time\nfor n in range(1, 32):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError:\n        pass\ntime.sleep(9999)",
        "signals",
        says="stopped after 3 seconds",
    ),
}
GROUPS = {
    "honest": HONEST_KINDS,
    "damaged": DAMAGED_KINDS,
    "others": OTHERS,
    "names": NAMES,
    "tampering": TAMPERING,
    "crashes": CRASHES,
    "processes": PROCESSES,
    "greedy": GREEDY,
}
KINDS = {f"{group}: {name}": kind for group, kinds in GROUPS.items() for name, kind in kinds.items()}


def path_of(folder: Path, number: int, name: str, kind: Kind) -> Path:
    """Where a hand-in lies: below a folder of its own, but those that test names."""
    return folder / (kind.name if kind.name and name.startswith("names") else f"{number:03d}/{kind.name or 'a.ipynb'}")


def graded(kinds: dict[str, Kind], autograder: Path, folder: Path, *options: str) -> dict[str, dict[str, str]]:
    """The rows of a folder of hand-ins, by kind; and nothing of theirs runs any more."""
    paths = {name: path_of(folder / "in", i, name, kind) for i, (name, kind) in enumerate(kinds.items())}
    for name, kind in kinds.items():
        kind.write(paths[name])
    command = [
        folder / "in",
        "--autograder",
        autograder,
        "--out",
        folder / "grades.csv",
        "--feedback",
        folder / "texts",
    ]
    grade.main([*map(str, command), "--jobs", "2", "--memory", "1", *options])
    with (folder / "grades.csv").open(encoding="utf8", newline="") as file:
        rows = {row["submission"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(kinds)
    assert len([p for p in (folder / "texts").rglob("*.txt") if p.is_file()]) == len(kinds)
    return {name: rows[files.printable(path.relative_to(folder / "in").as_posix())] for name, path in paths.items()}


def check_row(row: dict[str, str], kind: Kind) -> None:
    """Assert that a row says what it should."""
    assert (float(row["q1"]), float(row["q2"])) == kind.marks, row
    assert (float(row["total"]), float(row["out_of"])) == (sum(kind.marks), 5)
    assert kind.says in row["message"]
    assert bool(row["message"]) == bool(kind.says), row["message"]
    assert kind.flag in row["flags"]


def staying() -> list[int]:
    """Processes that hand-ins have started in order to stay."""
    found = []
    for each in psutil.process_iter(["cmdline", "status"]):
        if STAYS in (each.info["cmdline"] or []) and each.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(each.pid)
    return found


@pytest.fixture(scope="module")
def rows(autograder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    if not NAMESPACES:
        pytest.skip(f"this machine has no namespaces: {confine.possible()}")
    return graded(KINDS, autograder, tmp_path_factory.mktemp("class"), "--timeout", "60")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gets_its_row_and_its_true_marks(rows: dict, name: str) -> None:
    check_row(rows[name], KINDS[name])


def test_no_honest_hand_in_is_flagged(rows: dict) -> None:
    flagged = {
        name for name, row in rows.items() if row["flags"] and name.split(":")[0] in ("honest", "names", "damaged")
    }
    assert flagged == {"honest: child"}


def test_nothing_of_a_hand_in_goes_on_running(rows: dict) -> None:
    assert staying() == []


@needs_namespaces
def test_time_is_bounded_whatever_a_hand_in_does(autograder: Path, tmp_path: Path) -> None:
    for name, row in graded(SLOW, autograder, tmp_path, "--timeout", "3").items():
        check_row(row, SLOW[name])
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
def test_a_hand_in_sees_no_files_processes_and_network_that_are_not_its_own(autograder: Path, tmp_path: Path) -> None:
    other = tmp_path / "in" / "other.ipynb"
    other.parent.mkdir()
    other.write_bytes(notebook(*HONEST))
    precious = tmp_path / "precious.txt"
    precious.write_text("as before")
    with socket.create_server(("127.0.0.1", 0)) as server:
        tries = {
            "read the checks": f"assert open({str(autograder)!r}, 'rb').read(2) == b'PK'",
            "read another's": f"assert open({str(other)!r}).read()",
            "read the masters": f"assert os.listdir({str(FOLDER)!r})",
            "write": f"open({str(precious)!r}, 'w').write('changed')",
            "create": f"open({str(tmp_path / 'new.txt')!r}, 'w')",
            "send": f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 3)",
            "signal": f"os.kill({os.getpid()}, 0)",
            "look": f"os.stat('/proc/{os.getpid()}/environ')",
            "mount": "assert ctypes.CDLL(None).mount(b'none', b'/', None, 32 | 4096, None) == 0",
            "rights": "os.setresuid(12345, 12345, 12345)",
        }
        lines = ["import ctypes, os, socket", "reached = []"]
        for name, line in tries.items():
            lines.append(f"try:\n    {line}\n    reached.append({name!r})\nexcept (OSError, AssertionError):\n    pass")
        says = "def norm(x):\n    raise ValueError(str(reached))"
        (tmp_path / "in" / "nosy.ipynb").write_bytes(notebook("\n".join(lines), says, *CHECK))
        how = grade.plan(autograder, 60, hidden=(tmp_path / "in",))
        results = {result.submission: result for result in grade.grade_all(tmp_path / "in", how, jobs=1)}
    assert "ValueError: []" in results["nosy.ipynb"].feedback
    assert results["other.ipynb"].total == 5
    assert precious.read_text() == "as before"
    assert not (tmp_path / "new.txt").exists()


def test_the_tries_succeed_without_namespaces(autograder: Path, tmp_path: Path) -> None:
    lines = f"import os\nreached = [os.kill({os.getpid()}, 0), open({str(autograder)!r}, 'rb').read(2)]"
    says = "def norm(x):\n    raise ValueError(str(reached))"
    (tmp_path / "nosy.ipynb").write_bytes(notebook(lines, says, *CHECK))
    result = grade.grade(tmp_path / "nosy.ipynb", autograder, 60, namespaces=False)
    assert "ValueError: [None, b'PK']" in result.feedback


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
    for name, row in graded(PLAIN, autograder, tmp_path, "--timeout", "60", "--no-namespaces").items():
        check_row(row, PLAIN[name])
    assert staying() == []


# --- parts --------------------------------------------------------------------------------------------------------


SECRET = "what-nobody-should-read"
BROKEN = "def norm(x):\n    return {"
TOLD = {
    "values": ("import os\ndef norm(x):\n    raise ValueError(repr(sorted(os.environ.values())))", *CHECK),
    "broken": (BROKEN, UNIT),
    "unit alone": (UNIT,),
    "division": ("1 / 0", NORM, UNIT),
    "subscript": (NORM, "def unit(x):\n    return None[0]"),
}


@pytest.fixture(scope="module")
def told(autograder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The feedback of a class, with a key in the environment of who grades it."""
    folder = tmp_path_factory.mktemp("told")
    for name, cells in TOLD.items():
        (folder / f"{name}.ipynb").write_bytes(notebook(*cells))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", SECRET)
        return {
            Path(each.submission).stem: each.feedback for each in grade.grade_all(folder, grade.plan(autograder, 60))
        }


def test_no_keys_are_in_the_environment(told: dict[str, str]) -> None:
    assert "ValueError: [" in told["values"]
    assert SECRET not in told["values"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "q1: 0 of 3\n  norm is not defined in your notebook\n  1 hidden check failed"),
        ("broken", "Cells with an error:\ncode cell 1: SyntaxError: incomplete input"),
        ("unit alone", "q1: 0 of 3\n  norm is not defined in your notebook"),
        ("division", "Cells with an error:\ncode cell 1: ZeroDivisionError: division by zero"),
        ("subscript", "  TypeError: 'NoneType' object is not subscriptable"),
    ],
)
def test_feedback_names_what_is_missing_and_the_cells_that_failed(told: dict[str, str], name: str, said: str) -> None:
    assert said in told[name]


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
    found = signs.signs_of(["1", source])
    assert any(sign.startswith("cell 2: ") and SIGNS[source] in sign for sign in found), found


@pytest.mark.parametrize("source", NO_SIGNS)
def test_honest_cells_show_no_signs(source: str) -> None:
    assert signs.signs_of([source]) == []
