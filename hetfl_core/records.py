"""Records of runs: one JSON file each, of what was run, on which data, with which code and machine, and what came out.

Units: metrics in records are fractions in [0, 1]; all that is printed is in per cent or percentage points. `to_percent`
converts, and nothing else does.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from hetfl_core import checks, numerics
from hetfl_core.files import data_path, write_atomically
from hetfl_core.settings import leaves, plain

FORMAT = 1
SCALES = ("paper", "book", "own")
DIGITS = 6
"""Significant digits of the floating-point columns of a history."""

_EXPERIMENT = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", re.ASCII)
_METHOD = re.compile(r"[A-Za-z0-9][\w .+()=,-]*", re.ASCII)


# --- one record -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """What one run of one method with one seed was, and what came out.

    Parameters
    ----------
    experiment : str
        E.g. ``"flic/bci-common40"``.
    scale : {"paper", "book", "own"}
        ``"paper"``: the published setting; ``"book"``: a short run for the page; ``"own"``: anything else.
    method : str
        Name as in the paper's tables, e.g. ``"FLIC-HL"``.
    seed : int
    settings : mapping
        Everything that was chosen: the method with its hyper-parameters, rounds, participation …
    federation : mapping
        ``name``, ``fingerprint``, ``n_clients``, ``n_classes``, ``n_train``, ``n_test`` and ``info``;
        ``info["stand_in"]`` is true for data that stand in for a paper's own (a toy that the paper itself
        draws is no stand-in).
    metrics : mapping of str to float or None
        Final metrics; accuracies in [0, 1]. What is not finite is None.
    history : DataFrame, or mapping of str to sequence
        One entry per round in each column; kept to 6 significant digits.
    per_client : DataFrame, or mapping of str to sequence
        `Run.per_client`: one entry per client in each column; empty in records that were written without.
    commit : str
        Git commit of the code, or ``"unknown"``.
    dirty : bool or None
        Whether the code differed from the commit; None where that is not known.
    versions, hardware, numerics : mapping
        As from `environment`. `numerics` says with which instructions was computed (`hetfl_core.numerics.in_effect`);
        empty in records that were written without, for which `isa` is None and `numerics_revision` 0.
    seconds : float
        Wall time of the run, s.
    created : str
        UTC time, ISO 8601.
    path : Path, optional
        Where the record was read from or written to; not part of the file.
    """

    experiment: str
    scale: str
    method: str
    seed: int
    settings: dict[str, Any]
    federation: dict[str, Any]
    metrics: dict[str, float | None]
    history: dict[str, list[Any]] = field(default_factory=dict)
    per_client: dict[str, list[Any]] = field(default_factory=dict)
    commit: str = "unknown"
    dirty: bool | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    numerics: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    created: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    format: int = FORMAT
    path: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("history", "per_client"):
            table = getattr(self, name)
            table = table.to_dict("list") if isinstance(table, pd.DataFrame) else table
            object.__setattr__(self, name, plain(table, name, DIGITS))
        object.__setattr__(self, "seconds", plain(self.seconds, "seconds", DIGITS))
        for name in ("seed", "dirty", "settings", "federation", "metrics", "versions", "hardware", "numerics"):
            object.__setattr__(self, name, plain(getattr(self, name), name))
        _check(self)

    @classmethod
    def of(cls, run: Any, experiment: str, scale: str, **changes: Any) -> RunRecord:
        """The record of a finished run (`hetfl_core.Run`), with this machine's `environment`.

        Threads and GPU are those of the run; the commit is the one that `code_revision` saw first.
        """
        fed, made = run.federation, environment()
        used = {"threads": run.settings.get("threads", made["hardware"]["threads"])}
        used |= {} if run.device.type == "cuda" else {"gpu": None}
        what = {
            "name": fed.name,
            "fingerprint": fed.fingerprint(),
            "n_clients": len(fed),
            "n_classes": fed.n_classes,
            "n_train": sum(c.n_train for c in fed),
            "n_test": sum(len(c.y_test) for c in fed),
            "info": fed.info,
        }
        values = {
            "method": run.method.name,
            "seed": run.settings["seed"],
            "settings": run.settings,
            "federation": what,
            "metrics": run.final,
            "history": run.history,
            "per_client": run.per_client,
            "seconds": run.final.get("seconds", 0.0),
            **made,
            "hardware": made["hardware"] | used,
        }
        return cls(experiment=experiment, scale=scale, **{**values, **changes})

    @property
    def relative_path(self) -> str:
        """Path of the file inside a results folder, e.g. ``flic/bci-common40/paper/FLIC-HL-seed0.json``."""
        return relative_path_of(self.experiment, self.scale, self.method, self.seed)

    @property
    def stand_in(self) -> bool:
        """Whether the data are a stand-in, which is never set against a paper's number."""
        return bool((self.federation.get("info") or {}).get("stand_in", False))

    @property
    def isa(self) -> str | None:
        """Instructions with which PyTorch computed, e.g. ``"avx2"``; None where the record does not say."""
        return self.numerics.get("isa")

    @property
    def numerics_revision(self) -> int:
        """`hetfl_core.numerics.REVISION` of the code; 0 for records that are older than it."""
        return int(self.numerics.get("revision", 0))

    @property
    def revision(self) -> str:
        """Short commit, with ``+`` where the code differed from it."""
        short = self.commit[:10]
        return f"{short}+" if self.dirty else short

    def frame(self) -> pd.DataFrame:
        """The history as a table with one row per round; missing values are NaN."""
        return pd.DataFrame(self.history)


def records_of(value: Any, name: str = "records") -> list[RunRecord]:
    """Records as a list, or an error that names the argument."""
    found = checks.several(name, value)
    for record in found:
        checks.instance(name, record, RunRecord)
    return found


def relative_path_of(experiment: str, scale: str, method: str, seed: int) -> str:
    """Path of a run's record inside a results folder, whether it exists yet or not."""
    return f"{experiment}/{scale}/{method}-seed{seed}.json"


def _check(record: RunRecord) -> None:
    def expect(right: bool, name: str, wanted: str) -> None:
        if not right:
            raise ValueError(f"{name} must be {wanted}, got {getattr(record, name)!r}")

    expect(record.format == FORMAT, "format", str(FORMAT))
    expect(_fits(_EXPERIMENT, record.experiment), "experiment", "a name like 'flic/bci-common40'")
    expect(isinstance(record.scale, str) and record.scale in SCALES, "scale", f"one of {SCALES}")
    expect(_fits(_METHOD, record.method), "method", "a name like 'FLIC-HL'")
    expect(type(record.seed) is int and record.seed >= 0, "seed", "a whole number from 0 on")
    for name in ("settings", "federation", "metrics", "history", "per_client", "versions", "hardware", "numerics"):
        expect(isinstance(getattr(record, name), dict), name, "a mapping")
    revision = record.numerics.get("revision", 0)
    expect(type(revision) is int and revision >= 0, "numerics", "a mapping whose revision is a whole number from 0 on")
    expect(isinstance(record.commit, str), "commit", "text")
    expect(record.dirty in (True, False, None), "dirty", "true, false or null")
    expect(isinstance(record.seconds, int | float) and record.seconds >= 0, "seconds", "a number of seconds")
    expect(isinstance(record.created, str), "created", "a time as text")
    for name in ("history", "per_client"):
        expect(all(isinstance(c, list) for c in getattr(record, name).values()), name, "a mapping of lists")
        lengths = {key: len(column) for key, column in getattr(record, name).items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{name} must have columns of one length, got {lengths}")
    for name, x in record.metrics.items():
        _check_metric(name, x)


def _fits(pattern: re.Pattern[str], name: Any) -> bool:
    return isinstance(name, str) and pattern.fullmatch(name) is not None


def _check_metric(name: str, x: Any) -> None:
    if x is not None and (isinstance(x, bool) or not isinstance(x, int | float)):
        raise ValueError(f"metrics[{name!r}] must be a number or null, got {x!r}")
    if x is not None and _is_fraction(name) and not 0 <= x <= 1:
        raise ValueError(f"metrics[{name!r}] must be a fraction in [0, 1], got {x!r}: is it in per cent?")


def _is_fraction(metric: str) -> bool:
    return "accuracy" in metric


def to_percent(x: Any, metric: str) -> Any:
    """Values of a metric as the papers print them: accuracies in per cent, anything else as it is.

    Parameters
    ----------
    x : float, or array or Series of float
    metric : str
        Its name says whether it is an accuracy: a fraction in records, in [0, 1].
    """
    checks.words("metric", metric)
    return 100.0 * x if _is_fraction(metric) else x


def value(record: RunRecord, metric: str) -> float:
    """A metric of a record through `to_percent`; NaN where the record does not have it."""
    checks.instance("record", record, RunRecord)
    checks.words("metric", metric)
    x = record.metrics.get(metric)
    if x is None:
        return math.nan
    return to_percent(float(x), metric)


# --- files ------------------------------------------------------------------------------------------------------------


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
        The file. A record of the same run that was there before is replaced.

    Raises
    ------
    OSError
        If the disk refuses (full, read-only …); the message names the file, and an older record stays as it was.
    """
    checks.instance("record", record, RunRecord)
    return write_to(record, checks.path("folder", folder) / record.relative_path)


def write_to(record: RunRecord, path: str | Path) -> Path:
    """As `write`, to a file of one's own choice."""
    checks.instance("record", record, RunRecord)
    path = checks.path("path", path)
    write_atomically(path, to_json(record).encode())
    return path


def to_json(record: RunRecord) -> str:
    """The text of a record's file: compact, one field a line, so that differences between versions can be read."""
    kept = {"format": record.format} | {f.name: getattr(record, f.name) for f in fields(record) if f.name != "path"}
    lines = [f"{json.dumps(k)}:{json.dumps(v, allow_nan=False, separators=(',', ':'))}" for k, v in kept.items()]
    return "{" + ",\n".join(lines) + "}\n"


def read(path: str | Path) -> RunRecord:
    """Read one record.

    Raises
    ------
    ValueError
        If the file is not a record; the message names it and says what is wrong.
    FileNotFoundError
        If there is no such file.
    """
    path = checks.path("path", path)
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None), path)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a run record: {error}") from error


def _parse(content: Any, path: Path) -> RunRecord:
    """A record from what its file holds, which is plain and was rounded as it was written: only checked, not made anew.

    Going through every number again, as a record of a run does, would take six times as long as reading the file.
    """
    if not isinstance(content, dict):
        raise ValueError(f"it must hold one JSON object, got {type(content).__name__}")
    known = {f.name for f in fields(RunRecord)} - {"path"}
    missing, strange = sorted(known - set(content) - {"per_client", "numerics"}), sorted(set(content) - known)
    if missing or strange:
        raise ValueError(f"fields missing: {missing}, fields unknown: {strange}")
    record = object.__new__(RunRecord)
    vars(record).update(_defaults() | content | {"path": path})
    _check(record)
    return record


def _defaults() -> dict[str, Any]:
    """The values of the fields that a file may lack."""
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(RunRecord)
        if not (f.default is MISSING and f.default_factory is MISSING)
    }


def load(
    folder: str | Path | None = None,
    experiment: str | None = None,
    scale: str | None = None,
    method: str | None = None,
) -> list[RunRecord]:
    """All records of a results folder, or those of one experiment, scale or method.

    Parameters
    ----------
    folder : path, optional
        Default: the tracked ``data/results``.
    experiment, scale, method : str, optional
        Keep records with exactly this name.

    Returns
    -------
    list of RunRecord
        Sorted by experiment, scale, method, seed.

    Raises
    ------
    ValueError
        If a file is malformed; the message names it.
    FileNotFoundError
        If a folder was given that does not exist.
    """
    wanted = {"experiment": experiment, "scale": scale, "method": method}
    checks.texts(**{name: text for name, text in wanted.items() if text is not None})
    root = _results() if folder is None else checks.path("folder", folder)
    if root is None:
        return []
    if not root.is_dir():
        raise FileNotFoundError(f"there is no results folder {root}")
    found = (read(path) for path in _files(root, experiment, scale or "*", method or "*"))
    kept = [r for r in found if all(v in (None, getattr(r, k)) for k, v in wanted.items())]
    return sorted(kept, key=lambda r: (r.experiment, r.scale, r.method, r.seed))


def _files(root: Path, experiment: str | None, scale: str = "*", method: str = "*") -> list[Path]:
    """The records' files, those of one experiment without opening any other (`relative_path_of`)."""
    return sorted((root / experiment).glob(f"{scale}/{method}-seed*.json") if experiment else root.rglob("*.json"))


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
    checks.texts(scale=scale, by=by)
    for metric in checks.several("metrics", metrics):
        checks.words("metrics", metric)
    for name in checks.mapping("experiments", experiments).values():
        checks.words("experiments", name)
    rows = [
        {by: key, "method": r.method, "seed": r.seed, **{m: measured(r, m) for m in metrics}}
        for key, experiment in experiments.items()
        for r in load(experiment=experiment, scale=scale)
    ]
    return pd.DataFrame(rows, columns=[by, "method", "seed", *metrics])


def measured(record: RunRecord, metric: str) -> float:
    """As `value`; also ``"best_accuracy"`` of the history (see `tidy`), NaN where a record has none."""
    if metric == "best_accuracy" and "test_accuracy" not in record.history:
        return math.nan
    if metric == "best_accuracy":
        return to_percent(float(record.frame()["test_accuracy"].astype(float).max()), metric)
    return value(record, metric)


def _results() -> Path | None:
    try:
        return data_path("results")
    except FileNotFoundError:
        return None


def compare(a: RunRecord, b: RunRecord) -> pd.DataFrame:
    """Where two records differ: every metric, and each other field that is not equal.

    Returns
    -------
    DataFrame
        Columns ``field``, ``a``, ``b``, ``difference`` (b − a for numbers; for a column of the history the largest
        absolute difference over the rounds).
    """
    checks.instance("a", a, RunRecord)
    checks.instance("b", b, RunRecord)
    left, right = _flat(a), _flat(b)
    names = [n for n in dict.fromkeys([*left, *right]) if n.startswith("metrics.") or left.get(n) != right.get(n)]
    rows = [(n, left.get(n), right.get(n), _difference(left.get(n), right.get(n))) for n in names]
    return pd.DataFrame(rows, columns=["field", "a", "b", "difference"])


def _flat(record: RunRecord) -> dict[str, Any]:
    return dict(leaves({f.name: getattr(record, f.name) for f in fields(record) if f.name != "path"}))


def _difference(x: Any, y: Any) -> float:
    numbers = pd.api.types.is_number
    if numbers(x) and numbers(y):
        return float(y - x)
    if isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
        pairs = [abs(q - p) for p, q in zip(x, y, strict=True) if numbers(p) and numbers(q)]
        return float(max(pairs, default=math.nan))
    return math.nan


# --- where a run was made ---------------------------------------------------------------------------------------------

PACKAGES = ("hetfl-core", "torch", "numpy", "scipy", "pandas", "scikit-learn")


def environment() -> dict[str, Any]:
    """What a record says about code and machine.

    Returns
    -------
    dict
        ``versions`` (Python and the packages that matter), ``hardware`` (``cpu`` model, ``cores`` and ``threads`` in
        use, ``gpu`` name or None), ``numerics`` (`hetfl_core.numerics.in_effect`), ``commit`` and ``dirty``. Without
        git, or outside a checkout, the commit is ``"unknown"`` and `dirty` None; the environment variable
        ``HETFL_COMMIT`` (as from ``git describe --always --dirty --abbrev=40``) then says it for a copy of the code.
    """
    commit, dirty = code_revision()
    made = {"versions": _versions(), "hardware": _hardware(), "numerics": numerics.in_effect()}
    return {**made, "commit": commit, "dirty": dirty}


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _hardware() -> dict[str, Any]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"cpu": _cpu_model(), "cores": cores, "threads": torch.get_num_threads(), "gpu": gpu}


@cache
def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine() or "unknown"


@cache
def code_revision() -> tuple[str, bool | None]:
    """Commit of the code that this process runs, and whether the code differs from it, as first asked for.

    Ask before a long run: what is committed meanwhile is not what ran.
    """
    return _revision()


def _revision() -> tuple[str, bool | None]:
    root = Path(__file__).resolve().parents[1]
    top, commit = _git(root, "rev-parse", "--show-toplevel"), _git(root, "rev-parse", "HEAD")
    if not top or Path(top).resolve() != root or not commit:
        stated = os.environ.get("HETFL_COMMIT", "")
        return (stated.removesuffix("-dirty"), stated.endswith("-dirty")) if stated else ("unknown", None)
    changes = _git(root, "status", "--porcelain", "--", ".", ":(exclude)data/results")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
