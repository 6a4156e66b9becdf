"""Records of runs on disk: one file an experiment with one record a line, and fresh ones beside them.

A results folder holds ``<experiment>.jsonl``, text whose lines are sorted by scale, method and seed, and of each fresh
run ``<experiment>/<scale>/<method>-seed<seed>.json``, until `pack` takes it in. A wheel carries the packed files
compressed, as ``<experiment>.jsonl.xz``. `load` reads all three; of two records of one run the fresher kind counts.
"""

from __future__ import annotations

import gc
import json
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from hetfl_core import checks
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.files import data_path, kept_results, remove_drafts, write_atomically
from hetfl_core.records.record import SCALES, RunRecord, is_experiment, measured, relative_path_of

PACKED = ".jsonl"
_KINDS = (".json", PACKED, PACKED + ".xz")
"""How records lie in a results folder; of two of one run, that of the kind which comes first here counts."""


def write(record: RunRecord, folder: str | Path) -> Path:
    """Write a record to its place in a results folder, whole or not at all.

    Parameters
    ----------
    record : RunRecord
    folder : path
        Made if it is missing. The file is ``<folder>/<experiment>/<scale>/<method>-seed<seed>.json``.

    Returns
    -------
    Path
        The file. From now on it counts instead of what was there of the same run, packed or not.

    Raises
    ------
    OSError
        If the disk refuses (full, read-only …); the message names the file, and an older record stays as it was.
    """
    checks.instance("record", record, RunRecord)
    root = checks.path("folder", folder)
    with _held(root):
        return write_to(record, root / record.relative_path)


def write_to(record: RunRecord, path: str | Path) -> Path:
    """Write a record to a file of one's own choice, whole or not at all.

    Parameters
    ----------
    record : RunRecord
    path : path

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        As `write` does.
    """
    checks.instance("record", record, RunRecord)
    path = checks.path("path", path)
    write_atomically(path, to_json(record).encode())
    return path


def to_json(record: RunRecord, between: str = ",\n") -> str:
    """The text of a record's own file: compact, one field a line, so that differences can be read."""
    kept = {"format": record.format} | {f.name: getattr(record, f.name) for f in fields(record) if f.name != "path"}
    try:
        each = [f"{json.dumps(k)}:{json.dumps(v, allow_nan=False, separators=(',', ':'))}" for k, v in kept.items()]
    except ValueError as error:
        raise WrongValue(f"{record.relative_path} cannot be written: {error}") from error
    return "{" + between.join(each) + "}\n"


def to_line(record: RunRecord) -> str:
    """The text of a record in a packed file: one line."""
    return to_json(record, ",")


def read(path: str | Path) -> RunRecord:
    """Read a record from a file of its own.

    Parameters
    ----------
    path : path

    Returns
    -------
    RunRecord
        Its `path` is this file.

    Raises
    ------
    ValueError
        If the file is not a record; the message names it and says what is wrong.
    FileNotFoundError
        If there is no such file.
    """
    path = checks.path("path", path)
    return _parse(path.read_bytes(), path, str(path))


def _parse(text: bytes, path: Path, where: str) -> RunRecord:
    """A record from the text of a file or line; `where` names that in errors."""
    try:
        return RunRecord.from_content(_DECODER.decode(text.decode("utf-8")), path)
    except RecursionError:
        raise WrongValue(f"{where} is not a run record: it is nested too deep") from None
    except (ValueError, TypeError) as error:
        raise WrongValue(f"{where} is not a run record: {error}") from error


class ReadOnly(dict[str, Any]):
    """A mapping of a record that was read, which others may have too; a copy of it can be changed."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse a change."""
        raise WrongType("a record that was read cannot be changed: change a copy of it, as copy.deepcopy makes one")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """What is copied, or sent to another process, is a plain dict."""
        return dict, (dict(self),)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = ReadOnly(pairs)
    if len(found) < len(pairs):
        raise WrongValue(f"a name stands twice in one object: {[key for key, _ in pairs]}")
    return found


_DECODER = json.JSONDecoder(parse_constant=lambda _: None, object_pairs_hook=_object)


def load(
    folder: str | Path | None = None,
    experiment: str | None = None,
    scale: str | None = None,
    method: str | None = None,
) -> list[RunRecord]:
    """All records of a results folder, or those of one experiment, scale or method.

    Records of packed files are shared with other callers, so that the mappings of a record cannot be changed.

    Parameters
    ----------
    folder : path, optional
        Default: the tracked ``data/results``.
    experiment, scale, method : str, optional
        Keep records with exactly this name. Those of one experiment are read without opening a file of another.

    Returns
    -------
    list of RunRecord
        Sorted by experiment, scale, method, seed.

    Raises
    ------
    ValueError
        If a file is malformed, or lies where another run's record belongs; the message names it.
    FileNotFoundError
        If a folder was given that does not exist.
    """
    wanted = {"experiment": experiment, "scale": scale, "method": method}
    checks.nonempty_strs(**{name: text for name, text in wanted.items() if text is not None})
    try:
        root = data_path("results") if folder is None else checks.path("folder", folder)
    except FileNotFoundError:  # nothing came with the library
        return []
    if not root.is_dir():
        raise FileNotFoundError(f"there is no results folder {root}")
    found: dict[str, RunRecord] = {}
    with _no_collection():
        for kind in _KINDS:  # fresh ones first: what `pack` takes away meanwhile is in the packed file afterwards
            for path in _files(root, kind, experiment, scale, method):
                for record in _records_in(path, root) if kind == _KINDS[0] else _packed(path, root).values():
                    found.setdefault(record.relative_path, record)
        return _sorted(r for r in found.values() if all(v in (None, getattr(r, k)) for k, v in wanted.items()))


def find(folder: str | Path, experiment: str, scale: str, method: str, seed: int) -> RunRecord | None:
    """The record of one run, or None where a results folder has none.

    What `load` refuses of its file is refused. As with `load`, the record's mappings cannot be changed.

    Parameters
    ----------
    folder : path
    experiment, scale, method : str
    seed : int

    Returns
    -------
    RunRecord or None

    Raises
    ------
    ValueError
        As `load` does.
    """
    root, place = checks.path("folder", folder), relative_path_of(experiment, scale, method, seed)
    for record in _records_in(root / place, root):
        return record
    for kind in _KINDS[1:]:
        if packed := _packed(root / f"{experiment}{kind}", root).get(place):
            return packed
    return None


def _packed(path: Path, root: Path) -> Mapping[str, RunRecord]:
    """The records of a packed file by their places, none where it is gone; it is read once, until it changes."""
    if not os.path.lexists(path):
        return {}
    status = path.stat()
    return _by_place(path, root, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=256)
def _by_place(path: Path, root: Path, stamp: tuple[int, ...]) -> Mapping[str, RunRecord]:
    """The records of a packed file, read anew when another `stamp` says that it has changed."""
    return {record.relative_path: record for record in _records_in(path, root)}


def _sorted(found: Iterable[RunRecord]) -> list[RunRecord]:
    return sorted(found, key=lambda r: (r.experiment, r.scale, r.method, r.seed))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Read without the search for cycles, which finds none in what JSON holds and takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # what is new counts as old, so that the next search does not begin with it
            gc.freeze()
            gc.unfreeze()
        if was:
            gc.enable()


def _files(
    root: Path, kind: str, experiment: str | None = None, scale: str | None = None, method: str | None = None
) -> Iterator[Path]:
    """The files of one kind in a results folder; drafts and what is hidden are none.

    Those of one experiment are found without opening any other.
    """
    if experiment is None:
        yield from (path for path in _below(root) if path.name.lower().endswith(kind))
    elif is_experiment(experiment) and kind == _KINDS[0]:
        below = [p for s in SCALES if scale in (None, s) for p in _below(root / experiment / s)]
        names = "" if method is None else f"{method}-seed"
        yield from (path for path in below if path.name.startswith(names) and path.suffix.lower() == kind)
    elif is_experiment(experiment) and (path := root / f"{experiment}{kind}").is_file():
        yield path


def _below(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Every file in a folder and those below, in order; a link is followed, unless it leads back to a folder above."""
    try:
        status, names = folder.stat(), sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    here = (status.st_dev, status.st_ino)
    for name in names if here not in above else ():
        if name.startswith("."):
            continue
        if os.path.isdir(folder / name):
            yield from _below(folder / name, above | {here})
        else:
            yield folder / name


def _records_in(path: Path, root: Path, *, repeated: bool = False) -> Iterator[RunRecord]:
    """The records of a file in a results folder, each of which must belong there; none where the file is gone.

    With `repeated`, the same line may stand in it twice, as after a merge.
    """
    place, seen = path.relative_to(root).as_posix(), dict[str, tuple[int, bytes]]()
    for number, line in _lines(path):
        where = f"{path}, line {number}," if number else str(path)
        record = _parse(line, path, where)
        run = record.relative_path
        if place not in ([record.experiment + kind for kind in _KINDS[1:]] if number else [run]):
            raise WrongValue(f"{where} holds what belongs at {run}: mend or remove it")
        first, same = seen.setdefault(run, (number, line))
        if first != number and not (repeated and same == line):
            raise WrongValue(f"{where} is of the same run as line {first}, {run}: remove one of them")
        yield record


def _lines(path: Path) -> list[tuple[int, bytes]]:
    """The texts of the records in a file, each with the number of its line; 0 where it has the file for itself."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if os.path.lexists(path):  # a link to nothing
            raise
        return []
    if path.name.lower().endswith(_KINDS[0]):
        return [(0, content)]
    if path.name.lower().endswith(_KINDS[2]):
        try:
            content = lzma.decompress(content)
        except lzma.LZMAError as error:
            raise WrongValue(f"{path} is not a file of run records: {error}") from error
    if not content:
        raise WrongValue(f"{path} is empty, and should hold a run record a line: remove it")
    return list(enumerate(content.removesuffix(b"\n").split(b"\n"), 1))


def pack(folder: str | Path | None = None, *, check: bool = False) -> list[Path]:
    """Take the fresh records of a results folder into its packed files, and bring those into order and `FORMAT`.

    Fresh records are removed when the packed file is on the disk: a kill at any moment loses nothing.

    Parameters
    ----------
    folder : path, optional
        Default: the checkout's ``data/results`` (`hetfl_core.files.kept_results`).
    check : bool
        Write nothing.

    Returns
    -------
    list of Path
        The packed files that were written; with `check`, those that should be.

    Raises
    ------
    ValueError, FileNotFoundError
        As from `load`; packed files that were written before are whole.
    """
    checks.flag("check", check)
    root = kept_results() if folder is None else checks.path("folder", folder)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no results folder {root}")
    with nullcontext() if check else _held(root), _no_collection():
        fresh: dict[Path, list[RunRecord]] = {}
        for path in _files(root, _KINDS[0]):
            for record in _records_in(path, root):
                fresh.setdefault(root / f"{record.experiment}{PACKED}", []).append(record)
        paths = sorted({*_files(root, PACKED), *fresh})
        return [path for path in paths if _pack(path, root, fresh.get(path, []), check)]


def _pack(path: Path, root: Path, fresh: Sequence[RunRecord], check: bool) -> bool:
    """Write one packed file, if it is not as it should be."""
    found = {r.relative_path: r for r in (*_records_in(path, root, repeated=True), *fresh)}
    text = "".join(map(to_line, _sorted(found.values()))).encode()
    if not fresh and text == path.read_bytes():
        return False
    if not check:
        write_atomically(path, text)
        for place in (root / record.relative_path for record in fresh):
            remove_drafts(place)
            place.unlink(missing_ok=True)
            with suppress(OSError):  # other files are in it
                place.parent.rmdir()
                place.parent.parent.rmdir()
    return True


@contextmanager
def _held(root: Path) -> Iterator[None]:
    """Hold a results folder, which is made if it is missing: no other process writes to it or packs it meanwhile."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / ".lock").acquire()
    except OSError as error:
        raise OSError(error.errno, f"cannot write to {root}: {error.strerror or error}") from error
    with lock:
        yield


def tidy(
    experiments: Mapping[Any, str], metrics: Sequence[str] = ("accuracy",), scale: str = "paper", by: str = "x"
) -> pd.DataFrame:
    """Records as a table with one row a run, for a figure over several experiments.

    Parameters
    ----------
    experiments : dict of value to str
        E.g. the experiment of each number of clients, ``{50: "flic/toy-noisy-b50", …}``.
    metrics : sequence of str
        Accuracies are given in per cent. ``"best_accuracy"`` is the best test accuracy of the history, over rounds:
        chosen on the test set, as FLIC's Figure S3 (right) does, and no estimate of anything.
    scale : str
    by : str
        Name of the column of the keys.

    Returns
    -------
    DataFrame
        Columns `by`, ``method``, ``seed`` and the metrics; empty where there are no records.
    """
    checks.nonempty_strs(scale=scale, by=by)
    checks.names("metrics", metrics)
    checks.names("experiments", checks.mapping("experiments", experiments).values())
    rows = [
        {by: key, "method": r.method, "seed": r.seed, **{m: measured(r, m) for m in metrics}}
        for key, experiment in experiments.items()
        for r in load(experiment=experiment, scale=scale)
    ]
    return pd.DataFrame(rows, columns=[by, "method", "seed", *metrics])
