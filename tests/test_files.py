"""Files written whole or not at all, and the drafts that a kill leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetfl_core import files

WRITER = """
import os, sys, time
from pathlib import Path
from hetfl_core.files import write_atomically
os.fsync = lambda number: (print("half way", flush=True), time.sleep(600))
write_atomically(Path(sys.argv[1]), b"new" * 1000)
"""

posix = pytest.mark.skipif(os.name != "posix", reason="elsewhere nobody can ask whether a process lives")


def writer(path: Path) -> subprocess.Popen[str]:
    """A process that has written a draft of a file and does not come to its end."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half way\n"
    return process


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@posix
def test_the_draft_of_a_killed_process_goes_with_the_next_write_and_that_of_a_living_one_stays(tmp_path):
    path = tmp_path / "state.safetensors"
    files.write_atomically(path, b"old")
    living, killed = writer(path), writer(path)
    try:
        killed.kill()
        killed.wait()
        drafts = names(tmp_path) - {path.name}
        assert len(drafts) == 2
        assert path.read_bytes() == b"old"
        files.write_atomically(path, b"newer")
        (left,) = names(tmp_path) - {path.name}
        assert f"-{living.pid}-" in left
    finally:
        living.kill()
        living.wait()
    files.remove_drafts(path)
    assert names(tmp_path) == {path.name}
    assert path.read_bytes() == b"newer"


GONE = 2**22 + 1
"""No process has this number: Linux gives none above 2²², others far fewer."""


@pytest.mark.parametrize(
    ("draft", "hours", "stays"),
    [
        pytest.param(f".a.json.{{machine}}-{GONE}-.tmp", 0, False, marks=posix),
        pytest.param(f".a.json.{{machine}}-{GONE}-x8_k2.tmp", 0, False, marks=posix),
        (".a.json.{machine}-{mine}-.tmp", 0, True),
        (".a.json.{machine}-{mine}-.tmp", 25, False),  # the number belongs to another process now
        (f".a.json.00000000-{GONE}-.tmp", 0, True),  # another machine's
        (f".a.json.00000000-{GONE}-.tmp", 25, False),
        (f".a.json.{GONE}.tmp", 25, False),  # as earlier versions named them
        (f".a.json.old.{{machine}}-{GONE}-.tmp", 25, True),  # of another file
        (f".xa.json.{{machine}}-{GONE}-.tmp", 25, True),
        ("a.json.tmp", 25, True),
    ],
)
def test_which_drafts_are_abandoned(tmp_path, draft, hours, stays):
    place = tmp_path / draft.format(machine=files._machine(), mine=os.getpid())
    place.write_text("half")
    then = time.time() - 3600 * hours
    os.utime(place, (then, then))
    files.remove_drafts(tmp_path / "a.json")
    assert place.exists() == stays


def test_a_folder_that_is_not_there(tmp_path):
    files.remove_drafts(tmp_path / "none" / "a.json")
