"""A small assignment, and hand-ins to it: honest ones, and damaged, hostile or greedy ones."""

import csv
import gzip
import io
import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
import pytest

pytest.importorskip("otter", reason="otter-grader is not installed")
if os.name != "posix":
    pytest.skip("the grader needs Linux or macOS", allow_module_level=True)

FOLDER = Path(__file__).resolve().parents[1] / "book" / "assignments"
sys.path.insert(0, str(FOLDER))

import grade  # noqa: E402
from grading import confine, crew, files, hints, marks, place, signs, wire  # noqa: E402, F401

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


@pytest.fixture(scope="session")
def autograder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checks of the small assignment."""
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
    ``flag`` of the flags or of what is unusual.
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
OPTIMIZER = """
def norm(x):
    import torch
    r = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.{}([r], lr=1e-3)
    optimizer.zero_grad()
    r.square().backward()
    optimizer.step()
    return float(torch.as_tensor(x).square().sum().sqrt())
"""
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
    "corrected at last": Kind(notebook(EMPTY, *CHECK[:3], NORM, UNIT, *CHECK[1:3]), FULL),
    "a list": Kind(notebook(NORM, "def unit(x):\n    return [v / norm(x) for v in x]", *CHECK), FULL),
    "an iterator": Kind(
        notebook(NORM, "def unit(x):\n    n = norm(x)\n    return map(lambda v: v / n, x)", *CHECK), (3, 0)
    ),
    "matrix": Kind(notebook(NORM, "def unit(x):\n    return (x / np.matrix(norm(x))).A1", *CHECK), FULL),
    "asks": Kind(notebook("name = input('who are you?')", *HONEST), FULL),
    "await": Kind(notebook("import asyncio\nawait asyncio.sleep(0)", *HONEST), FULL),
    "child": Kind(notebook("import subprocess\nsubprocess.run(['true'])", *HONEST), FULL, flag="imports subprocess"),
    "an optimizer inside": Kind(notebook(OPTIMIZER.format("SGD"), UNIT, *CHECK), FULL),
    "another optimizer inside": Kind(notebook(OPTIMIZER.format("AdamW"), UNIT, *CHECK), FULL),
    "compiled inside": Kind(
        notebook(
            "import torch\n@torch.compile(backend='eager')\ndef squares(x):\n    return (x ** 2).sum()\n"
            "def norm(x):\n    return float(squares(torch.as_tensor(x)).sqrt())",
            UNIT,
            *CHECK,
        ),
        FULL,
    ),
    "compiles inside": Kind(
        notebook(
            "def norm(x):\n    import torch\n    f = torch.compile(lambda x: (x ** 2).sum(), backend='eager')\n"
            "    return float(f(torch.as_tensor(x)).sqrt())",
            UNIT,
            *CHECK,
        ),
        FULL,
    ),
    "imports inside": Kind(
        notebook(
            "def norm(x):\n    import concurrent.futures, sqlite3, pandas, scipy.optimize, sklearn.linear_model\n"
            "    with concurrent.futures.ThreadPoolExecutor(2) as pool:\n"
            "        return sum(pool.map(lambda v: v ** 2, x)) ** 0.5",
            UNIT,
            *CHECK,
        ),
        FULL,
    ),
    "a module of its own": Kind(
        notebook(
            "open('mine.py', 'w').write('def f(x): return (x @ x) ** 0.5')",
            "def norm(x):\n    import mine\n    return mine.f(x)",
            UNIT,
            *CHECK,
        ),
        FULL,
    ),
    "remembers": Kind(
        notebook(
            "import numpy as np\ndef norm(x):\n    global used\n    used = 'called'\n    return np.sqrt(x @ x)",
            *CHECK[:2],
            "assert used\ndef unit(x):\n    return x / norm(x)",
            CHECK[2],
        ),
        FULL,
    ),
    "an iterator kept": Kind(
        notebook(
            "import numpy as np\nnorms, kept = iter([np.linalg.norm]), [iter([np.linalg.norm])]",
            "def norm(x):\n    return 0.0",
            UNIT,
            *CHECK[:3],
            "norm = next(norms)",
            "assert next(kept[0]) is norm\nchecked = np.ones(())",
            "def unit(x):\n    return x / norm(x) * checked",
            *CHECK[1:3],
        ),
        FULL,
    ),
    "deletes": Kind(notebook(NORM, UNIT, *CHECK[:3], "del norm", NORM, CHECK[3]), FULL),
    "deletes at last": Kind(notebook(NORM, UNIT, *CHECK[:3], "del norm, unit"), FULL),
    "file in /tmp": Kind(
        notebook(
            "import tempfile\nopen('/tmp/mine.txt', 'w').write('x')\nassert open('/tmp/mine.txt').read()\ndone = 1",
            "done\n" + NORM,
            UNIT,
            *CHECK,
        ),
        FULL,
    ),
    "recursion": Kind(
        notebook("def norm(x):\n    return (x[0] ** 2 + norm(x[1:]) ** 2) ** 0.5 if len(x) else 0", UNIT, *CHECK), FULL
    ),
    "endless recursion in a cell": Kind(notebook("def f():\n    return f()\nf()", *HONEST), FULL),
    "error class of its own": Kind(
        notebook("class Wrong(ValueError):\n    pass\ndef norm(x):\n    raise Wrong('no')", UNIT, *CHECK), (0, 2)
    ),
    "an alarm of its own": Kind(
        notebook("import signal\nsignal.signal(signal.SIGALRM, signal.default_int_handler)\nsignal.alarm(0)", *HONEST),
        FULL,
    ),
    "shell": Kind(notebook("!echo hello\nfiles = !ls", "%%bash\necho hello", *HONEST), FULL),
    "runs Python": Kind(
        notebook(
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import numpy'], check=True)\ndone = 1",
            "done\n" + NORM,
            UNIT,
            *CHECK,
        ),
        FULL,
        flag="imports subprocess",
    ),
    "removes its file": Kind(
        notebook("import os, gc\nopen('a', 'w').close()\nos.remove('a')\ngc.collect()", *HONEST), FULL
    ),
    "old NumPy": Kind(notebook("import numpy as np\nnp.float = float", *HONEST), FULL),
    "class that compares": Kind(notebook("class A:\n    def __eq__(self, other):\n        return True", *HONEST), FULL),
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
        says="is this another assignment? It defines 0 of the 2 names that the checks use, and not norm, unit",
    ),
    "metadata": Kind(notebook(*HONEST).replace(b'"metadata": {}', b'"metadata": 7'), says="not a notebook"),
    "zlib": Kind(damaged(zipfile.ZIP_DEFLATED), says=DAMAGED, name="zlib.zip"),
    "LZMA": Kind(damaged(zipfile.ZIP_LZMA), says=DAMAGED, name="lzma damaged.zip"),
    "bz2": Kind(damaged(zipfile.ZIP_BZIP2), says=DAMAGED, name="bz2.zip"),
    "cut": Kind(packed({"a.ipynb": notebook(*HONEST)})[:-40], says=DAMAGED, name="cut.zip"),
    "no zip": Kind(b"PK\x03\x04 and no more", says=DAMAGED, name="no.zip"),
    "encrypted": Kind(patched(packed({"a.ipynb": b"{}"}), b"PK\x01\x02", 8, 1), says=DAMAGED, name="secret.zip"),
    "unknown packing": Kind(patched(packed({"a.ipynb": b"{}"}), b"PK\x01\x02", 10, 77), says=DAMAGED, name="77.zip"),
    "without": Kind(
        packed({"notes.txt": b"I could not do it"}), says="found 0; it holds notes.txt", name="without.zip"
    ),
    "two": Kind(packed({"a.ipynb": b"{}", "b.ipynb": b"{}"}), says="found 2 (a.ipynb, b.ipynb)", name="two.zip"),
    "zip in zip": Kind(packed({"a.zip": packed({"a.ipynb": notebook(*HONEST)})}), says="holds a.zip", name="in.zip"),
    "script": Kind(NORM.encode(), says="found a Python script, not a notebook", name="a.py"),
    "web page": Kind(b"\n<!DOCTYPE html><html>", says="found a web page", name="a.html"),
    "web page as notebook": Kind(b"<HTML><body>", says="found a web page", name="page.ipynb"),
    "tar": Kind(gzip.compress(notebook(*HONEST)), says="found a packed file (gzip, .tar.gz)", name="a.tar.gz"),
    "7z": Kind(b"7z\xbc\xaf'\x1c", says="found a packed file (7z)", name="a.7z"),
    "PDF": Kind(b"%PDF-1.7", says="found a PDF file", name="a.ipynb.pdf"),
    "image": Kind(b"\x89PNG\r\n", says="found an image", name="figure.png"),
    "notes": Kind(b"I could not do it", says="found a file .txt, not a notebook", name="notes.txt"),
    "data": Kind(b'{"a": 1}', says="found a file .json, not a notebook", name="data.json"),
    "document": Kind(packed({"word/document.xml": b"<x/>"}), says="holds word/document.xml", name="a.docx"),
    "no ending": Kind(b"", says="found a file without an ending", name="answers"),
    "hidden": Kind(b"", says="found a file", name=".notes"),
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
    "text": Kind(notebook(*HONEST), FULL, name="Ada.ipynb.txt"),
    "second": Kind(notebook(*HONEST), FULL, name="Ada.ipynb (1)"),
    "second text": Kind(notebook(*HONEST), FULL, name="Ada.ipynb.txt (2)"),
    "JSON": Kind(notebook(*HONEST), FULL, name="Ada.ipynb.json"),
    "notebook as zip": Kind(notebook(*HONEST), FULL, name="Ada.zip"),
    "zip as notebook": Kind(packed({"a.ipynb": notebook(*HONEST)}), FULL, name="Ben.ipynb"),
    "text in zip": Kind(packed({"a.ipynb (1)": notebook(*HONEST), "b.png": b""}), FULL, name="Cleo.zip"),
    "no ending": Kind(notebook(*HONEST), FULL, name="notebook of Dan"),
    "hidden": Kind(notebook(*HONEST), FULL, name=".Eve.ipynb"),
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
ENDED = "ended its process"
CRASHES = {
    "_exit": attack("import os\nos._exit(0)", "os._exit", HONEST, marks=FULL, says=ENDED),
    "_exit with an error": attack("import os\nos._exit(1)", "os._exit", HONEST, marks=FULL, says=ENDED),
    "exit": attack("exit()", "", HONEST, marks=FULL),
    "sys.exit": attack("import sys\nsys.exit('the end')", "", HONEST, marks=FULL),
    "late quit": Kind(notebook(NORM, UNIT, *CHECK, "quit()"), FULL),
    "late _exit": Kind(
        notebook(NORM, UNIT, *CHECK, "import os\nos._exit(0)", "1"), FULL, "code cell 7 (`import os`) ended its process"
    ),
    "_exit after a definition": Kind(notebook(NORM + "\nimport os\nos._exit(0)", UNIT, *CHECK), FULL, ENDED),
    "_exit in each cell": Kind(notebook(*(f"import os\nos._exit({i})" for i in range(9)), *HONEST), FULL, ENDED),
    "_exit in a function": attack(
        "def norm(x):\n    import os\n    os._exit(0)", "", (UNIT, *CHECK), marks=(0, 2), says="q1 ended its process"
    ),
    "_exit in a definition": Kind(
        notebook("def f(x=__import__('os')._exit(0)):\n    return 1", *HONEST),
        FULL,
        "code cell 1 (`def f(x=__import__(",
    ),
    "kills itself": attack(
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "os.kill", HONEST, marks=FULL, says=ENDED
    ),
    "segmentation fault": attack(
        "import ctypes\nctypes.string_at(0)", "imports ctypes", HONEST, marks=FULL, says=ENDED
    ),
    "abort": attack("import os\nos.abort()", "os.abort", HONEST, marks=FULL, says=ENDED),
    "closes all": attack("import os\nos.closerange(0, 999)", "os.closerange", HONEST, marks=FULL, says=ENDED),
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
LATE = "stopped after 2 seconds"
CATCHES = "    while True:\n        try:\n            {}\n        except {}:\n            pass"
SLOW = {
    "endless cell": attack(
        "i = 0\nwhile i < 3:\n    x = i", "", HONEST, marks=FULL, says=f"code cell 1 (`i = 0`) was {LATE}"
    ),
    "definition and endless test": Kind(notebook(NORM + "\nwhile True:\n    pass", UNIT, *CHECK), FULL, LATE),
    "endless function": attack(
        "def norm(x):\n    while True:\n        pass", "", (UNIT, *CHECK), marks=(0, 2), says=f"q1 was {LATE}"
    ),
    "endless for a hidden input": Kind(
        notebook(
            "import time\n" + NORM.replace("return", "while len(x) == 7:\n        pass\n    return"), UNIT, *CHECK
        ),
        (1, 2),
        f"q1 was {LATE}",
    ),
    "corrected after all": Kind(
        notebook("def norm(x):\n    while True:\n        pass", UNIT, *CHECK, NORM, CHECK[1]), FULL, LATE
    ),
    "two endless functions": Kind(
        notebook("def norm(x):\n    while True:\n        pass\ndef unit(x):\n    return norm(1)", "norm(1)", *CHECK),
        (0, 0),
        LATE,
    ),
    "sleep": attack("import time\ntime.sleep(9999)", "", HONEST, marks=FULL, says=LATE),
    "sleeps again and again": attack("import time\nwhile True:\n    time.sleep(1)", "", HONEST, marks=FULL, says=LATE),
    "waits for a process": attack(
        "import subprocess\nsubprocess.run(['sleep', '9999'])", "", HONEST, marks=FULL, says=LATE
    ),
    "waits for a thread": attack(
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(9999,))\nt.start()\nt.join()",
        "",
        HONEST,
        marks=FULL,
        says=LATE,
    ),
    "catches errors": attack(
        f"def f():\n{CATCHES.format('1 / 0', 'Exception')}\nf()", "", HONEST, marks=FULL, says=LATE
    ),
    "catches all": attack(
        f"def f():\n{CATCHES.format('while True: pass', 'BaseException')}\nf()", "", HONEST, marks=FULL, says=LATE
    ),
    "catches all in a check": Kind(
        notebook(NORM, f"def unit(x):\n{CATCHES.format('while True: pass', 'BaseException')}", *CHECK),
        (3, 0),
        f"q2 was {LATE}",
    ),
    "loop with a child": attack(
        f"import subprocess, time\nsubprocess.Popen(['sleep', '{STAYS}'], start_new_session=True)\n"
        "while True:\n    time.sleep(0.01)",
        "leaves processes behind: 1",
        HONEST,
        marks=FULL,
        says=LATE,
    ),
    "deaf": attack(
        "import signal, time\nfor n in range(1, 32):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError:\n        pass\ntime.sleep(9999)",
        "signals",
        HONEST,
        marks=FULL,
        says=LATE,
    ),
    "no alarm": attack(
        "import signal\ndef norm(x):\n    signal.setitimer(signal.ITIMER_REAL, 0)\n    while True:\n        pass",
        "signals",
        (UNIT, *CHECK),
        marks=(0, 2),
        says=f"q1 was {LATE}",
    ),
    "endless variable": attack(
        "class A:\n    def __array__(self, *a, **k):\n        while True:\n            pass\na = A()",
        "",
        HONEST,
        marks=FULL,
    ),
}
"""With two seconds for a cell or check."""

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
    assert kind.flag in f"{row['flags']}; {row['unusual']}"


def staying() -> list[int]:
    """Processes that hand-ins have started in order to stay."""
    found = []
    for each in psutil.process_iter(["cmdline", "status"]):
        if STAYS in (each.info["cmdline"] or []) and each.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(each.pid)
    return found
