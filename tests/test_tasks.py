"""The page of tasks, block by block as it stands there, each with no other's names and in an empty folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

PAGE = Path(__file__).resolve().parents[1] / "book" / "tasks.md"
FENCE = re.compile(
    r"^```(?:\{code-block\} )?(?P<language>\w+)\n(?::caption: (?P<file>\S+)\n\n)?(?P<code>.*?)^```$", re.S | re.M
)
SECTIONS = {
    title: body
    for title, body in re.findall(r"^\((task-\w+)\)=\n(.*?)(?=^\(task-|\Z)", PAGE.read_text("utf8"), re.S | re.M)
}


def pasted(code: str) -> str:
    """What Python code prints that finds nothing but what it imports itself."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), matplotlib.rc_context({"backend": "agg"}):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def command(folder: Path, *arguments: str) -> str:
    """What the command prints in a new interpreter, which (by -P) does not look for modules where it is started."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hetfl_core.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_page_has_five_tasks() -> None:
    assert list(SECTIONS) == ["task-federation", "task-compare", "task-resume", "task-embed", "task-own"]


@pytest.mark.parametrize("section", list(SECTIONS))
def test_what_a_reader_pastes_runs(section: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(FENCE.finditer(SECTIONS[section]))
    assert blocks, "the section has code"
    printed = []
    for block in blocks:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["code"])
        elif block["language"] == "python":
            printed.append(pasted(block["code"]))
        else:
            program, *arguments = shlex.split(block["code"])
            assert program == "hetfl"
            printed.append(command(tmp_path, *arguments))
    check(section, printed, tmp_path)


def check(section: str, printed: list[str], folder: Path) -> None:
    """What the page says of the result."""
    if section == "task-federation":
        assert re.search(r"Porto\s+11 ", printed[0])
        assert re.search(r"Lyon\s+13 ", printed[0])
        assert "['left', 'right']" in printed[1]
    elif section == "task-compare":
        header, *rows = printed[0].splitlines()
        assert header.split() == ["mean", "sd", "difference", "low", "high", "p", "p_holm", "seeds"]
        assert [row.split()[0] for row in rows] == ["method", "FLIC", "Local"]
    elif section == "task-resume":
        assert (folder / "my-run" / "state.safetensors").exists()
    elif section == "task-embed":
        assert (folder / "latent.png").stat().st_size > 1000
    else:
        assert "test_accuracy" in printed[0]
