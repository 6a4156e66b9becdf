"""What was handed in: finding it, and reading one notebook out of it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import warnings
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from nbformat import NotebookNode

MAX_BYTES = 50_000_000
"""Largest notebook that is opened, in bytes."""

SKIPPED = {"__MACOSX", ".ipynb_checkpoints"}
NO_FILES_OF_STUDENTS = {".DS_Store", "Thumbs.db", "desktop.ini"}

NAME_IN_AUTOGRADER = "assignment.txt"
"""File in an autograder that says which assignment it is of."""

METADATA = "hetfl"
"""Part of the metadata of a notebook that says the same: ``{"assignment": "assignment1"}``."""

MAX_NAMES, MAX_BYTES_OF_NAME = 5, 80
"""Names in a message, and characters of each."""

HAND_IN = "hand in the notebook itself, the .ipynb file"

FORMATS = {
    b"\x1f\x8b": "a packed file (gzip, .tar.gz)",
    b"BZh": "a packed file (bzip2)",
    b"\xfd7zXZ": "a packed file (xz)",
    b"7z\xbc\xaf": "a packed file (7z)",
    b"Rar!": "a packed file (RAR)",
    b"%PDF": "a PDF file",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
}
"""What a file is that begins so."""


class UnreadableError(ValueError):
    """A submission that holds no notebook that could be run; the message is meant for the student."""


def find_submissions(folder: Path) -> list[Path]:
    """All files below a folder, in alphabetical order, but those that systems put there.

    Links and other things that are no files count by their names, so that each gets a row; folders behind links are not entered.
    """
    found = []
    for above, folders, names in os.walk(folder):
        folders[:] = [n for n in folders if n not in SKIPPED and not Path(above, n).is_symlink()]
        linked = [n for n in os.listdir(above) if Path(above, n).is_symlink() and n not in names]
        found += [Path(above, n) for n in [*names, *linked] if not _is_of_a_system(n)]
    return sorted(found, key=lambda path: path.parts)


def _is_of_a_system(name: str) -> bool:
    return name.startswith("._") or name in NO_FILES_OF_STUDENTS


def printable(name: str) -> str:
    """A name that can be written as UTF-8 and begins no formula in a spreadsheet."""
    text = name.encode("utf8", "surrogateescape").decode("utf8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "'" + text if text.startswith(("=", "+", "-", "@")) else text


def read_whole(path: Path) -> bytes:
    """The bytes of a regular file, not too many of them."""
    try:
        kind = path.lstat().st_mode
        if not stat.S_ISREG(kind):
            what = "a link" if stat.S_ISLNK(kind) else "no regular file"
            raise UnreadableError(f"expected a notebook or a zip file, found {what}")
        if path.stat().st_size > 4 * MAX_BYTES:
            raise UnreadableError(f"the file is larger than {4 * MAX_BYTES // 10**6} MB")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"the file cannot be read: {error.strerror}") from error


def digest(path: Path) -> str:
    """A fingerprint of a file, empty where it cannot be read."""
    try:
        return hashlib.sha256(read_whole(path)).hexdigest()
    except UnreadableError:
        return ""


def notebook_bytes(path: Path) -> bytes:
    """The one notebook that a file is, or that a zip file holds, whatever their names."""
    content = read_whole(path)
    if content.startswith(b"PK") or (path.suffix.lower() == ".zip" and not content.startswith(b"{")):
        content = _unzip(path)
    if len(content) > MAX_BYTES:
        raise UnreadableError(f"the notebook is larger than {MAX_BYTES // 10**6} MB: clear its outputs")
    return content


def _unzip(path: Path) -> bytes:
    """The one notebook of a zip file, or the first byte too many of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [i for i in archive.infolist() if not i.is_dir() and not _is_skipped(i.filename)]
            notebooks = [i for i in inside if _is_notebook(i.filename)]
            if len(notebooks) != 1:
                names = _few([i.filename for i in notebooks or inside])
                holds = "" if notebooks else f"; it holds {names or 'no file'}"
                which = f" ({names})" if notebooks else ""
                raise UnreadableError(
                    f"expected one notebook in the zip file, found {len(notebooks)}{which}{holds}: {HAND_IN}"
                )
            with archive.open(notebooks[0]) as file:
                return file.read(MAX_BYTES + 1)
    except UnreadableError:
        raise
    except Exception as error:  # each way of packing has its own errors: zlib, LZMA, bz2, encryption, names
        said = f": {error}" if str(error) else ""
        raise UnreadableError(f"the zip file cannot be opened: {type(error).__name__}{said}") from error


def _is_skipped(name: str) -> bool:
    """Whether a member of a zip file is nothing that somebody has written."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.name.startswith(".") or bool(SKIPPED & set(path.parts))


def _is_notebook(name: str) -> bool:
    """Whether a name is that of a notebook, also where a browser or a platform has added to it."""
    return re.search(
        r"\.ipynb(\.txt|\.json|\.zip)?( ?\(\d+\))?$", name.lower()
    ) is not None and not name.lower().endswith(".zip")


def _few(names: list[str]) -> str:
    """Some names, as a list."""
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join([*(printable(name)[:MAX_BYTES_OF_NAME] for name in names[:MAX_NAMES]), *more])


def what_it_is(path: Path, content: bytes) -> str:
    """What a file is that is no notebook, and what to do; empty where it has the name of one."""
    begins = content[:1000].lstrip(b"\xef\xbb\xbf \t\r\n")
    if re.match(rb"(?i)<(!doctype html|html)", begins):
        return f"found a web page, not a notebook: {HAND_IN}"
    for start, name in FORMATS.items():
        if content.startswith(start):
            return f"found {name}, not a notebook: {HAND_IN}"
    if _is_notebook(path.name) or path.suffix.lower() == ".ipynb":
        return ""
    if path.suffix.lower() == ".py":
        return f"found a Python script, not a notebook: {HAND_IN}"
    return f"found a file {path.suffix[:20] or 'without an ending'}, not a notebook: {HAND_IN}"


def read_notebook(path: Path) -> NotebookNode:
    """A submission as a notebook of the current format.

    Raises
    ------
    UnreadableError
        If it is none.
    """
    content = notebook_bytes(path)
    other = "" if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")) else what_it_is(path, content)
    if other:
        raise UnreadableError(printable(other))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nb = nbformat.reads(content.decode("utf-8-sig"), 4)
            nbformat.writes(nb).encode("utf8")
    except Exception as error:
        other = what_it_is(path, content)
        said = other or f"not a notebook that can be read: {type(error).__name__}"
        raise UnreadableError(printable(said)) from error
    wrong = _what_is_wrong(nb)
    if wrong:
        raise UnreadableError(f"not a notebook that can be read: {wrong}")
    return nb


def _what_is_wrong(nb: Any) -> str:
    """What is not as in a notebook that can be run; empty where all is."""
    cells = nb.get("cells") if isinstance(nb, dict) else None
    if not isinstance(cells, list):
        return f"expected a list of cells, found {type(cells).__name__}"
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or not all(isinstance(cell.get(n), str) for n in ("cell_type", "source")):
            return f"cell {number} is none"
        tags = cell.get("metadata", {})
        if not isinstance(tags, dict) or not isinstance(tags.get("tags", []), list):
            return f"the metadata of cell {number} are none"
    if not any(cell.cell_type == "code" and cell.source.strip() for cell in cells):
        raise UnreadableError("the notebook has no code")
    return ""


def cells_of(nb: NotebookNode) -> dict[int, str]:
    """Sources of the code cells that are run, by their numbers among all code cells."""
    cells = enumerate((cell for cell in nb.cells if cell.cell_type == "code"), 1)
    return {number: cell.source for number, cell in cells if not _is_ignored(cell)}


def refuse_other_assignment(nb: NotebookNode, expected: str) -> None:
    """Raise where the metadata of a notebook name another assignment than that of the autograder.

    Raises
    ------
    UnreadableError
        If they do; a notebook or an autograder that names none is let through.
    """
    own = nb.get("metadata", {}).get(METADATA, {})
    found = own.get("assignment", "") if isinstance(own, dict) else ""
    if expected and isinstance(found, str) and found and found != expected:
        raise UnreadableError(
            f"this is {printable(found)[:40]}, and the checks are those of {expected}: hand in the other notebook"
        )


def _is_ignored(cell: Any) -> bool:
    """Whether a cell is marked as not to be run in grading, as otter-grader has it."""
    metadata = cell.get("metadata", {})
    own = metadata.get("otter", {})
    return "otter_ignore" in metadata.get("tags", []) or bool(isinstance(own, dict) and own.get("ignore", False))
