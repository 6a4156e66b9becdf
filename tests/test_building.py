"""Notebooks of a small book, executed side by side before its pages are read."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nbclient
import nbformat
import psutil
import pytest
import yaml

pytestmark = pytest.mark.nightly

BOOK = Path(__file__).resolve().parents[1] / "book"

CONF = f"""
import sys
sys.path.insert(0, {str(BOOK / "_ext")!r})
extensions = ["myst_nb", "hetfl_notebooks"]
nb_execution_mode = "cache"
nb_execution_timeout = 60
nb_execution_excludepatterns = ["excluded/*"]
hetfl_first = ["z"]
exclude_patterns = ["_build"]
"""
INDEX = """# A book

```{toctree}
:glob:
*
excluded/*
```

```{nb-exec-table}
```
"""
NOTE = "with open('log', 'a') as log: log.write({name!r} + ' ')"
MEET = """\
import pathlib, time
pathlib.Path({own!r}).touch()
for _ in range(600):
    if pathlib.Path({other!r}).exists(): break
    time.sleep(0.05)
else: raise TimeoutError("the other notebook did not start while this one ran")
print("met", {other!r})"""


@pytest.fixture(scope="module")
def extension() -> Iterator[ModuleType]:
    """Imported by its name: its workers, processes of their own, import it so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BOOK / "_ext")
        yield importlib.import_module("hetfl_notebooks")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "conf.py").write_text(CONF, "utf8")
    (tmp_path / "index.md").write_text(INDEX, "utf8")
    write(tmp_path, "excluded/gaps", "...")
    return tmp_path


def write(book: Path, name: str, code: str) -> None:
    """A notebook that notes when it is started, and then does what it is told."""
    source = [NOTE.format(name=Path(name).name), code]
    cells = [nbformat.v4.new_markdown_cell(f"# {name}"), *map(nbformat.v4.new_code_cell, source)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    path = book / f"{name}.ipynb"
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)


def build(book: Path, at_once: int) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-n",
        "-W",
        "--keep-going",
        "-a",
        "-E",
        str(book),
        str(book / "_build/html"),
    ]
    environment = {**os.environ, "HETFL_JOBS": str(at_once), "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def started(book: Path) -> list[str]:
    return (book / "log").read_text().split()


def test_what_one_worker_keeps_no_other_deletes(book: Path, extension: ModuleType) -> None:
    """The limit is never reached here; it makes visible, with no race, whether a cache deletes what is put there."""
    for name in "ab":
        write(book, name, f"{name} = 1")
    from jupyter_cache.cache.main import JupyterCacheBase

    kept = []
    for kind in (JupyterCacheBase, extension.Untrimmed):
        cache = pickle.loads(pickle.dumps(kind(book / kind.__name__)))
        cache.change_cache_limit(1)
        for name in "ab":
            cache.cache_notebook_file(str(book / f"{name}.ipynb"), check_validity=False)
        kept.append(len(cache.list_cache_records()))
    assert kept == [1, 2]


def test_the_cache_is_trimmed_when_the_workers_have_ended(book: Path, extension: ModuleType) -> None:
    for name in "ab":
        write(book, name, f"{name} = 1")
    from jupyter_cache import get_cache

    cache = get_cache(book / "cache")
    cache.change_cache_limit(1)
    records = [cache.add_nb_to_project(str(book / f"{name}.ipynb")) for name in "ab"]
    assert len(list(extension.execute(cache, records, timeout=60, at_once=1))) == 2
    assert sorted(started(book)) == ["a", "b"]
    assert len(cache.list_cache_records()) == 1


def test_notebooks_run_at_the_same_time_once_and_end_the_build_where_they_fail(book: Path) -> None:
    """With name and traceback; the others are executed and kept, the longest first; a kernel that dies is told, too."""
    write(book, "a", "1 / 0")
    write(book, "b", "import os; os.kill(os.getpid(), 9)")
    write(book, "z", "print('fine')")
    done = build(book, at_once=1)
    assert done.returncode != 0
    assert started(book) == ["z", "a", "b"]
    told = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert "Notebooks failed" in told
    assert re.search(r"a\.ipynb\n.*ZeroDivisionError: division by zero", told, re.DOTALL)
    assert re.search(r"b\.ipynb\nits kernel or process died", told)
    assert "DeadKernelError" in told
    assert "executed z.ipynb" in told
    write(book, "a", MEET.format(own="a.here", other="b.here"))
    write(book, "b", MEET.format(own="b.here", other="a.here"))
    mended = build(book, at_once=2)
    assert mended.returncode == 0, mended.stderr
    assert "executing 2 notebooks, 2 at a time" in mended.stdout
    assert sorted(started(book)[3:]) == ["a", "b"], "the excluded one was not executed, and no other twice"
    assert "met b.here" in (book / "_build/html/a.html").read_text("utf8")
    rows = re.findall(r"<tr.*?</tr>", (book / "_build/html/index.html").read_text("utf8"), re.DOTALL)
    seconds = {cells[0]: float(cells[3]) for row in rows if (cells := re.findall(r"<td><p>(?:<.*?>)*([^<]*)", row))}
    assert set(seconds) == {"a", "b", "z"}
    assert min(seconds.values()) > 0
    again = build(book, at_once=2)
    assert again.returncode == 0, again.stderr
    assert "executing" not in again.stdout
    assert len(started(book)) == 5


def test_number_of_notebooks_at_a_time(extension: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HETFL_JOBS", raising=False)
    assert 1 <= extension.jobs() <= (os.cpu_count() or 1)
    monkeypatch.setenv("HETFL_JOBS", "3")
    assert extension.jobs() == 3
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("HETFL_JOBS", wrong)
        with pytest.raises(ValueError, match=f"HETFL_JOBS must be a whole number of at least 1, got '{wrong}'"):
            extension.jobs()


def test_those_that_are_started_first_are_notebooks_of_the_book(extension: ModuleType) -> None:
    first = yaml.safe_load((BOOK / "_config.yml").read_text("utf8"))["sphinx"]["config"]["hetfl_first"]
    notebooks = {path.stem for path in BOOK.glob("*.ipynb")}
    assert first
    assert set(first) <= notebooks
    assert extension.in_order(["a", "b", "c"], ["c", "x", "b"]) == ["c", "b", "a"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels are forked on Linux alone")
def test_a_forked_kernel_has_imported_and_is_else_a_kernel_as_any(tmp_path: Path, extension: ModuleType) -> None:
    """Its environment, folder and figures are its own, it shares its parent with the next, and both end with theirs.

    What was computed is kept where that is asked for: numbers, tables and functions with what these need, for who
    unpickles them; not what cannot be pickled.
    """
    told = "import os, sys; print(os.getppid(), os.getcwd(), os.environ.get('TOLD'), 'torch' in sys.modules)"
    drawn = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    made = "import pandas as pd\nfactor, cannot = 3, (i for i in [])\n"
    made += "table = pd.DataFrame({'x': [1, 2]})\ndef scaled(): return (table * factor)['x'].tolist()"
    drew = "import numpy; print(numpy.random.random())"
    file = tmp_path / "variables" / "page.pkl"
    parents, draws = set(), set()
    with extension.forked():
        for name, variables in (("a", ""), ("b", str(file))):
            (folder := tmp_path / name).mkdir()
            book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in (told, drawn, made, drew)])
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TOLD", name)
                patch.setenv("HETFL_VARIABLES", variables)
                nbclient.execute(book, cwd=str(folder), kernel_name="python3", timeout=120)
            said, figure, _, number = (cell.outputs[-1] if cell.outputs else None for cell in book.cells)
            parent, where, whose, imported = said.text.split()
            assert (where, whose, imported) == (str(folder), name, "True")
            assert "image/png" in figure.data
            assert file.exists() is (name == "b")
            parents.add(int(parent))
            draws.add(number.text)
    assert len(parents) == 1
    assert len(draws) == 2, "no two kernels draw the same numbers where no seed is set"
    assert "JUPYTER_PATH" not in os.environ
    with pytest.raises(ProcessLookupError):
        os.kill(parents.pop(), 0)
    kept = pickle.loads(file.read_bytes())
    assert kept.keys() == {"os", "sys", "plt", "pd", "factor", "table", "scaled", "numpy", "seconds"}
    assert pickle.loads(kept["scaled"])() == [3, 6]
    assert 0 < pickle.loads(kept["seconds"]) < 60


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels are forked on Linux alone")
def test_a_kernel_starts_as_ever_where_none_can_be_forked(extension: ModuleType) -> None:
    """What imports for all kernels may fail to, say where a package of the book is missing: that is no page's fault."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import sys; print('torch' in sys.modules)")])
    with extension.forked():
        [server] = [p for p in psutil.Process().children() if "serve" in p.cmdline()]
        server.kill()
        server.wait()
        nbclient.execute(book, kernel_name="python3", timeout=120)
    assert book.cells[0].outputs[0].text == "False\n"
