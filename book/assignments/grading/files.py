"""What was handed in: finding it, and reading one notebook out of it."""

from __future__ import annotations

import hashlib
import os
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
KINDS = (".ipynb", ".zip")


class UnreadableError(ValueError):
    """A submission that holds no notebook that could be run; the message is meant for the student."""


def find_submissions(folder: Path) -> tuple[list[Path], list[Path]]:
    """What is below a folder, in alphabetical order: notebooks and zip files, and all other files.

    Links and other things that are no files count by their names, so that each gets a row; folders behind links are not entered.
    """
    found = []
    for above, folders, names in os.walk(folder):
        folders[:] = [n for n in folders if n not in SKIPPED and not Path(above, n).is_symlink()]
        found += [Path(above, n) for n in names if not n.startswith("._") and n != ".DS_Store"]
    found.sort(key=lambda path: path.parts)
    wanted = [path for path in found if path.suffix.lower() in KINDS and not path.name.startswith(".")]
    return wanted, [path for path in found if path not in set(wanted)]


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
    """The one notebook that a file is, or that a zip file holds."""
    content = read_whole(path)
    if path.suffix.lower() == ".zip":
        content = _unzip(path)
    if len(content) > MAX_BYTES:
        raise UnreadableError(f"the notebook is larger than {MAX_BYTES // 10**6} MB: clear its outputs")
    return content


def _unzip(path: Path) -> bytes:
    """The one notebook of a zip file, or the first byte too many of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [i for i in archive.infolist() if _is_notebook(i.filename)]
            if len(inside) != 1:
                raise UnreadableError(f"expected one notebook in the zip file, found {len(inside)}")
            with archive.open(inside[0]) as file:
                return file.read(MAX_BYTES + 1)
    except UnreadableError:
        raise
    except Exception as error:  # each way of packing has its own errors: zlib, LZMA, bz2, encryption, names
        said = f": {error}" if str(error) else ""
        raise UnreadableError(f"the zip file cannot be opened: {type(error).__name__}{said}") from error


def _is_notebook(name: str) -> bool:
    """Whether a member of a zip file is a notebook that somebody has written."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.suffix.lower() == ".ipynb" and not path.name.startswith(".") and not SKIPPED & set(path.parts)


def read_notebook(path: Path) -> NotebookNode:
    """A submission as a notebook of the current format.

    Raises
    ------
    UnreadableError
        If it is none.
    """
    content = notebook_bytes(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nb = nbformat.reads(content.decode("utf-8-sig"), 4)
            nbformat.writes(nb).encode("utf8")
    except Exception as error:
        raise UnreadableError(f"not a notebook that can be read: {type(error).__name__}") from error
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


def cells_of(nb: NotebookNode) -> list[str]:
    """The sources of the code cells that are run."""
    return [cell.source for cell in nb.cells if cell.cell_type == "code" and not _is_ignored(cell)]


def _is_ignored(cell: Any) -> bool:
    """Whether a cell is marked as not to be run in grading, as otter-grader has it."""
    metadata = cell.get("metadata", {})
    own = metadata.get("otter", {})
    return "otter_ignore" in metadata.get("tags", []) or bool(isinstance(own, dict) and own.get("ignore", False))
