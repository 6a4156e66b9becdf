"""Files: written whole or not at all, and where those are that come with the library."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

__all__ = ["data_path"]


DAY = 24 * 3600
"""Seconds after which nobody is still writing a draft."""


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash at any moment, finds either the old content or the new.

    Parameters
    ----------
    path : Path
        Its folder is made if it is missing.
    content : bytes
    mode : int
        Rights of a new file, less those that the process takes off (its umask).

    Raises
    ------
    OSError
        If the disk refuses (full, read-only …). The message names the file; the old one is untouched and no part of
        the new one is left.

    Notes
    -----
    Only a kill leaves a draft behind; the next write of the same file removes it (`remove_drafts`).
    """
    draft = path.with_name(draft_prefix(path) + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_drafts(path)
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        _sync(path.parent)
    except BaseException as error:
        if draft.exists():
            draft.unlink()
        if not isinstance(error, OSError):
            raise
        why = error.strerror or str(error)
        raise OSError(
            error.errno, f"cannot write {path} ({len(content)} bytes): {why}; what was there before is untouched"
        ) from error


@contextmanager
def private() -> Iterator[None]:
    """Let all files and folders that this process makes be its owner's alone, for the length of a ``with`` block."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def private_folder(folder: Path) -> Path:
    """Make a folder for its owner's eyes only, with those above that are missing; or close one that is there to others.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    Path
        The same.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    with private():
        folder.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # another's, who says who may read it
        folder.chmod(0o700)
    return folder


def unwritable(folder: Path) -> str:
    """The reason why no file can be written into a folder, which is made if it is missing; empty where one can.

    Parameters
    ----------
    folder : pathlib.Path

    Returns
    -------
    str
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:
        blocks = [path for path in (folder, *folder.parents) if os.path.lexists(path) and not os.path.isdir(path)]
        return f"{blocks[0]} is no folder" if blocks else str(getattr(error, "strerror", error))
    return ""


def _sync(folder: Path) -> None:
    """Have the disk know the names in a folder, where the system can be asked for it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def draft_prefix(path: Path) -> str:
    """Beginning of the names of this process's drafts of a file; they end in ``.tmp`` and lie beside the file."""
    return f".{path.name}.{_machine()}-{os.getpid()}-"


def remove_drafts(path: Path) -> None:
    """Remove the drafts of a file that nobody is writing any more.

    A draft of this machine goes when its process is gone. Of other machines that share the folder, and of a process
    whose number another has got since, that cannot be seen: such a draft goes when it is a `DAY` old.
    """
    name = re.compile(rf"\.{re.escape(path.name)}\.(?:([0-9a-f]{{8}})-(\d+)-)?\w*\.tmp")
    with suppress(OSError):  # a folder that cannot be read, or another process that has removed the draft
        for draft in list(path.parent.iterdir()):
            if (match := name.fullmatch(draft.name)) and _abandoned(draft, *match.groups()):
                draft.unlink(missing_ok=True)


def _abandoned(draft: Path, machine: str | None, pid: str | None) -> bool:
    if machine == _machine() and pid is not None and not _alive(int(pid)):
        return True
    return time.time() - draft.stat().st_mtime > DAY


@cache
def _machine() -> str:
    """Eight hex digits for the space in which the numbers of processes are unique: the machine, or the container."""
    space = ""
    with suppress(OSError):  # only Linux has it
        space = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:8]


def _alive(pid: int) -> bool:
    """Whether there is a process of this number; on Windows, where asking would end it, the answer is yes."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# --- what comes with the library ------------------------------------------------------------------------------------


def results_home() -> Path:
    """Folder for new records: the environment variable HETFL_RESULTS, or else a folder in the user's cache.

    It is outside the repository, whose own records (`kept_results`) `hetfl collect` adds to.

    Returns
    -------
    pathlib.Path
    """
    import pooch

    if given := os.environ.get("HETFL_RESULTS"):
        return Path(given).expanduser()
    return Path(pooch.os_cache("hetfl")) / "results"


def kept_results() -> Path:
    """Folder of the records that are committed: the checkout's ``data/results``.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    FileNotFoundError
        Without a checkout: an installed library is no place to write to.
    """
    if (checkout := _checkout()) is None:
        raise FileNotFoundError("there is no checkout with a folder data/results: name the folder of the records")
    return checkout / "results"


def _checkout() -> Path | None:
    """The folder ``data`` of the checkout that this package stands in; None where it is installed."""
    beside = Path(__file__).resolve().parent.parent / "data"
    return beside if (beside / "registry.toml").exists() else None


PLUGINS = "hetfl.plugins"
"""Group of the entry points by which other packages add to this one (`hetfl_core.plugins`)."""


@cache
def _carried() -> tuple[Path, ...]:
    """The folders ``_data`` of this package and of the packages that plugins come from."""
    packages = [Path(__file__).resolve().parent]
    for point in sorted(entry_points(group=PLUGINS), key=lambda point: point.name):
        spec = find_spec(point.module.partition(".")[0])
        packages += map(Path, spec.submodule_search_locations or ()) if spec else ()
    return tuple(dict.fromkeys(package / "_data" for package in packages))


def data_path(*parts: str) -> Path:
    """Path of a tracked data file or folder, e.g. ``data_path("paper")`` or ``data_path("registry.toml")``.

    In a checkout it is that in ``data/``. Else this package carries the registry in its folder ``_data``, and a package
    that has a plugin (`hetfl_core.plugins`) may carry others in its own.

    Parameters
    ----------
    *parts : str
        Names of folders and of the file, below ``data``.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    FileNotFoundError
        If no place has it.
    """
    checkout = _checkout()
    for place in [checkout] if checkout else _carried():
        if place.joinpath(*parts).exists():
            return place.joinpath(*parts)
    where = checkout or "what the installed packages carry"
    raise FileNotFoundError(f"{'/'.join(parts)} is not in {where}: what belongs to the book comes with hetfl-book")
