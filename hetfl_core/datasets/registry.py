"""The files behind the data sets: where they come from, whether they are the right ones, how to get them.

``data/registry.toml`` lists every file with its official address, hash and terms. Files live in one folder,
`data_home`. A file that is already there with the right hash is used as it is, so that a folder filled beforehand
needs no network and may be read-only. What is there with another hash is refused, never repaired silently, and a
download is moved to its place only once its hash is right.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core.checks import unknown
from hetfl_core.errors import RunError, WrongValue
from hetfl_core.files import data_path, draft_prefix, remove_drafts

__all__ = ["DataError", "data_home", "fetch", "status"]


class DataError(RunError):
    """A data file is missing, damaged or out of reach; the message says which, what was found and what to do."""


DATA_SETS: set[str] = set()
"""Names of the data sets that there are; a package that has a catalogue of them adds its own."""


@dataclass(frozen=True)
class Source:
    """A file's place and how to recognise it.

    Parameters
    ----------
    path : str
        Place inside `data_home`.
    sha256, md5 : str
        Hex digest of the file; the first that is known counts.
    arrays : str
        For an .npz: digest of its arrays (`arrays_digest`), whatever way they were packed.
    git : str
        Name of the content in a git repository, where that is all that is known of a file that lies in one.
    folder : bool
        Whether this is a folder that is placed by hand, of which no digest is known: its loader looks at every file.
    bytes : int or None
        Size in bytes, where known.
    """

    path: str
    sha256: str = ""
    md5: str = ""
    arrays: str = ""
    git: str = ""
    folder: bool = False
    bytes: int | None = None

    @property
    def check(self) -> tuple[str, str]:
        """Kind of digest, ``"arrays"``, ``"sha256"``, ``"md5"`` or ``"git"``, and its expected value.

        For a folder the kind is ``"folder"`` and the value empty.
        """
        if self.folder:
            return "folder", ""
        for kind in ("arrays", "sha256", "md5", "git"):
            if expected := getattr(self, kind):
                return kind, expected
        raise WrongValue(f"registry: {self.path} has no hash")


@dataclass(frozen=True)
class Entry:
    """A file of the registry with its terms.

    Parameters
    ----------
    key : str
        Name in the registry, e.g. ``"mnist/train-images"``.
    official : Source
        The file that `urls` give.
    accept : tuple of Source
        Files taken in its place.
    urls : tuple of str
        Where the file is downloaded from; of a folder, where its content is published.
    licence, citation : str
    datasets : tuple of str
        Data sets that need the file.
    convert : str
        ``"module:function"``, called with the official file and a path to write to. Where given, the official file is
        never used itself, only what is made of it.
    """

    key: str
    official: Source
    accept: tuple[Source, ...]
    urls: tuple[str, ...]
    licence: str
    citation: str
    datasets: tuple[str, ...]
    convert: str = ""

    @property
    def usable(self) -> tuple[Source, ...]:
        """The files that may be used, best first."""
        return self.accept if self.convert else (self.official, *self.accept)


def data_home() -> Path:
    """Folder of the data files: the environment variable HETFL_DATA, or else a folder in the user's cache.

    Returns
    -------
    pathlib.Path
        It need not exist.
    """
    if given := os.environ.get("HETFL_DATA"):
        return Path(given).expanduser().resolve()
    import pooch

    return Path(pooch.os_cache("hetfl"))


@cache
def entries() -> dict[str, Entry]:
    """All files of the registry, by key.

    Returns
    -------
    dict of str to Entry
    """
    with open(data_path("registry.toml"), "rb") as file:
        tables = [pair for key, table in tomllib.load(file).items() for pair in _each(key, table)]
    return {key: _entry(key, table) for key, table in tables}


def _each(key: str, table: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The key and table of every file that a table stands for: one, or one per row of ``each``."""
    shared = {name: value for name, value in table.items() if name != "each"}
    rows = table.get("each", [{}])
    return [(key.format(**row), {**row, **_fill(shared, row)}) if row else (key, shared) for row in rows]


def _fill(value: Any, row: Mapping[str, Any]) -> Any:
    """A value with every ``{name}`` in its texts replaced by the row's value."""
    if isinstance(value, dict):
        return {name: _fill(part, row) for name, part in value.items()}
    if isinstance(value, list):
        return [_fill(part, row) for part in value]
    return value.format(**row) if isinstance(value, str) else value


def _entry(key: str, table: Mapping[str, Any]) -> Entry:
    official = Source(**{f.name: table[f.name] for f in fields(Source) if f.name in table})
    accept = tuple(Source(**alternative) for alternative in table.get("accept", []))
    urls, datasets = tuple(table["urls"]), tuple(table["datasets"])
    return Entry(key, official, accept, urls, table["licence"], table["citation"], datasets, table.get("convert", ""))


def lookup(key: str) -> Entry:
    """The registry's entry of that key.

    Parameters
    ----------
    key : str
        Name in the registry, e.g. ``"mnist/train-images"``.

    Returns
    -------
    Entry

    Raises
    ------
    DataError
        If there is none; the message offers the nearest keys.
    """
    known = entries()
    if not isinstance(key, str) or key not in known:
        raise DataError(unknown("data file", key, known, "hetfl data status"))
    return known[key]


def needs(dataset: str) -> list[str]:
    """Keys of the files that a data set of the catalogue reads (none for those that need no download).

    Parameters
    ----------
    dataset : str
        Name in the catalogue, e.g. ``"digits.mnist_usps"``.

    Returns
    -------
    list of str

    Raises
    ------
    DataError
        If there is no such data set; the message offers the nearest names.
    """
    found = [key for key, entry in entries().items() if dataset in entry.datasets]
    if not found and (not isinstance(dataset, str) or dataset not in DATA_SETS):
        raise DataError(unknown("data set", dataset, DATA_SETS, "hetfl list"))
    return found


def available(dataset: str) -> bool:
    """Whether every file that a data set reads is in `data_home` with the right hash.

    Parameters
    ----------
    dataset : str
        Name in the catalogue.

    Returns
    -------
    bool

    Raises
    ------
    DataError
        If there is no such data set.
    """
    return all(_state(lookup(key))[0] for key in needs(dataset))


def fetch(key: str, progress: bool = True) -> Path:
    """Path of a data file, downloading it if it is not there.

    Parameters
    ----------
    key : str
        Name in the registry, e.g. ``"usps/train"``.
    progress : bool
        Whether a download shows a progress bar.

    Returns
    -------
    pathlib.Path
        A file whose hash is right: the official one, or one that is accepted in its place.

    Raises
    ------
    DataError
        If a file is there but damaged, or it is not there and cannot be downloaded. Nothing half-written stays.
        If it is a folder that nobody has placed yet.
    """
    entry = lookup(key)
    if not entry.official.folder and not any(_state(entry)):
        original = data_home() / entry.official.path
        if not (entry.convert and original.exists()):
            return _download(entry, progress)
        if problem := _problem(entry.official, original):
            raise DataError(f"{key}: {problem}. {_remedy(entry)}")
        return _convert(entry, original)
    return verify(key)


def verify(key: str) -> Path:
    """Path of a data file, as `fetch` gives it, but nothing is downloaded.

    Parameters
    ----------
    key : str
        Name in the registry.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    entry = lookup(key)
    path, problem = _state(entry)
    if path:
        return path
    raise DataError(f"{key}: {problem or f'{data_home() / entry.official.path} is missing'}. {_remedy(entry)}")


def status() -> pd.DataFrame:
    """A table of the data files: which are there, and whether they are the right ones.

    Returns
    -------
    pandas.DataFrame
        One row a file of the registry: ``key``, ``path`` (of the file in use, or where it would be), ``present``,
        ``ok`` (hash right), ``bytes`` (on disk, or else expected where known), ``licence``.
    """
    rows = []
    for entry in entries().values():
        good, _ = _state(entry)
        there = [path for source in entry.usable if (path := data_home() / source.path).exists()]
        path = good or next(iter(there), data_home() / entry.official.path)
        size = path.stat().st_size if there and path.is_file() else entry.official.bytes
        rows.append((entry.key, str(path), bool(there), good is not None, size, entry.licence))
    return pd.DataFrame(rows, columns=["key", "path", "present", "ok", "bytes", "licence"])


def _state(entry: Entry) -> tuple[Path | None, str]:
    """Path of the first file that is right, or None, and what is wrong.

    What is wrong is said of the first file that is there but is not right.
    """
    problems = []
    for source in entry.usable:
        if (path := data_home() / source.path).exists():
            problems.append(_problem(source, path))
            if not problems[-1]:
                return path, ""
    return None, problems[0] if problems else ""


def _problem(source: Source, path: Path) -> str:
    """Say what is wrong with a file; an empty string if nothing is."""
    kind, expected = source.check
    if kind == "folder":
        return "" if path.is_dir() else f"{path} is no folder"
    try:
        stat = path.stat()
        found = _digest(str(path), kind, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror or error})"
    if found == expected:
        return ""
    hashes = f"expected {kind} {expected}, found {found}"
    if source.bytes and stat.st_size < source.bytes:
        return f"{path} is truncated: expected {source.bytes} bytes, found {stat.st_size} ({hashes})"
    return f"{path} is not the right file: {hashes}"


@lru_cache(maxsize=1024)
def _digest(path: str, kind: str, size: int, mtime_ns: int) -> str:
    """Digest of a file; size and time of change are there so that an unchanged file is read once a process."""
    if kind == "arrays":
        return arrays_digest(Path(path))
    with open(path, "rb") as file:
        if kind == "git":
            digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            return hashlib.file_digest(file, lambda: digest).hexdigest()
        return hashlib.file_digest(file, kind).hexdigest()


def arrays_digest(path: Path) -> str:
    """SHA-256 of the arrays of an .npz: their names, types, shapes and values, but not how they were packed.

    Object arrays are refused, so that nothing is ever unpickled; a file that is no such .npz has the digest
    ``"no plain .npz"``.

    Parameters
    ----------
    path : pathlib.Path

    Returns
    -------
    str
        Hexadecimal, or ``"no plain .npz"``.

    Raises
    ------
    OSError
        Where the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in sorted(file.files):
                array = np.ascontiguousarray(file[name])
                digest.update(f"{name} {array.dtype.str} {file[name].shape}\n".encode())
                digest.update(array.tobytes())
    except OSError:
        raise
    except Exception:  # the zip, zlib and npy readers each raise their own kinds for bytes that are not theirs
        return "no plain .npz"
    return digest.hexdigest()


def _remedy(entry: Entry) -> str:
    where = data_home() / entry.official.path
    if entry.official.folder:
        return f"It is placed by hand: unpack what {' or '.join(entry.urls)} gives, so that its folders lie in {where}."
    kind, expected = entry.official.check
    others = ", ".join(f"{data_home() / s.path} ({s.check[0]} {s.check[1]})" for s in entry.accept)
    return (
        f"Delete what is damaged and run `hetfl data fetch {entry.key}`, or put the file with {kind} {expected} at "
        f"{where}{'; accepted in its place: ' * bool(others)}{others}."
    )


def _download(entry: Entry, progress: bool) -> Path:
    target = data_home() / entry.official.path
    failures = []
    for url in entry.urls:
        if progress:  # a machine that does not answer takes half a minute
            print(f"downloading {entry.key} from {url}", file=sys.stderr, flush=True)
        with _scratch(entry, target) as scratch:
            problem = _try(url, scratch, entry.official, progress)
            if not problem:
                return _convert(entry, scratch) if entry.convert else _move(scratch, target)
            failures.append(f"{url}: {problem}")
    raise DataError(
        f"{entry.key}: could not be downloaded ({'; '.join(failures)}). Is there a network? {_remedy(entry)} "
        "The folder is set by the environment variable HETFL_DATA."
    )


def _try(url: str, scratch: Path, source: Source, progress: bool) -> str:
    """Download to `scratch`, and say what went wrong; an empty string if nothing did."""
    import pooch

    try:
        pooch.HTTPDownloader(progressbar=progress, timeout=30)(url, str(scratch), None)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors
        return f"{type(error).__name__}: {error}"
    return _problem(source, scratch).replace(str(scratch), "what came")


def _convert(entry: Entry, original: Path) -> Path:
    """Make the first accepted file out of the official one, whose hash has been found right."""
    module, function = entry.convert.split(":")
    target = data_home() / entry.accept[0].path
    with _scratch(entry, target) as scratch:
        getattr(importlib.import_module(module), function)(original, scratch)
        if problem := _problem(entry.accept[0], scratch):
            raise DataError(f"{entry.key}: what {entry.convert} made of {original} is not as expected: {problem}")
        return _move(scratch, target)


@contextmanager
def _scratch(entry: Entry, target: Path) -> Iterator[Path]:
    """Make an empty file beside `target`, gone afterwards whatever happens, unless it was moved away.

    What a killed process has left there goes too.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_drafts(target)
        handle, name = tempfile.mkstemp(prefix=draft_prefix(target), suffix=".tmp", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise DataError(
            f"{entry.key}: cannot write to {target.parent} ({error.strerror or error}). Set the environment variable "
            "HETFL_DATA to a folder that can be written to."
        ) from error
    try:
        yield Path(name)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _move(scratch: Path, target: Path) -> Path:
    os.chmod(scratch, 0o644)
    os.replace(scratch, target)
    return target
