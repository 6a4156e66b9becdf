"""Records of runs, the numbers of the papers, and the ledger that sets one beside the other.

A *record* is one JSON file: what was run, on which data, with which code and machine, and what came out. The *ledger*
reads the papers' tables from ``data/paper/``, our records from ``data/results/``, and judges each pair by one rule
(`verdict`); `claims` does the same for statements of the form "A is better than B".

Units: metrics in records are fractions in [0, 1]; everything that the ledger prints is in per cent or percentage
points. `value` converts, and nothing else does.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from hetfl_core.files import write_atomically
from hetfl_core.resources import data_path

FORMAT = 1
SCALES = ("paper", "book", "own")
DIGITS = 6
"""Significant digits of the floating-point columns of a history."""

RUNTIME_SETTINGS = frozenset(
    {"seed", "engine", "device", "threads", "stack_size", "checkpoint", "progress", "evaluate_every"}
)
"""Settings in which the runs behind one number may differ: they do not change what is estimated."""

PROTOCOL = ("rounds", "participation", "dtype")
"""Settings that both sides of a comparison must share."""

SOURCES = {
    "flic": "FLIC (TMLR 2024)",
    "flic-v1": "FLIC (arXiv v1)",
    "fedcr": "FedCR (ICML 2023)",
    "fedcma": "Fed-CMA",
    "hyfem": "HyFEM (TMLR 2024)",
}
"""The `paper` column of ``data/paper/*.csv``, in words."""

UNAVAILABLE = "data not available here"
PENDING = "pending"
UNBUILT = "no experiment yet"

_EXPERIMENT = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", re.ASCII)
_METHOD = re.compile(r"[A-Za-z0-9][\w .+()=,-]*", re.ASCII)


# --- one record -------------------------------------------------------------------------------------------------------


def plain(x: Any, where: str = "value", digits: int | None = None) -> Any:
    """A value as JSON can hold it: NumPy scalars and arrays, tuples and mappings become plain Python.

    Parameters
    ----------
    x : object
    where : str
        Name of the value, for the error.
    digits : int, optional
        Significant digits to keep of floats.

    Returns
    -------
    object
        Numbers that are not finite become None, for JSON has no NaN.

    Raises
    ------
    TypeError
        If something in `x` has no plain form, e.g. a path (which would also tell about the machine).
    """
    if isinstance(x, np.generic | np.ndarray):
        x = x.tolist()
    if x is None or isinstance(x, bool | int | str):
        return x
    if isinstance(x, float):
        return _short(x, digits) if math.isfinite(x) else None
    if isinstance(x, Mapping):
        return {str(k): plain(v, f"{where}.{k}", digits) for k, v in x.items()}
    if isinstance(x, Sequence | set | frozenset):
        items = sorted(x) if isinstance(x, set | frozenset) else x
        return [plain(v, f"{where}[{i}]", digits) for i, v in enumerate(items)]
    raise TypeError(f"{where}: a record holds numbers, text, lists and dicts only, got {type(x).__name__}")


def _short(x: float, digits: int | None) -> float:
    return x if digits is None else float(f"{x:.{digits}g}")


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
        Everything that was chosen: hyper-parameters, rounds, participation …
    federation : mapping
        ``name``, ``fingerprint``, ``n_clients``, ``n_classes``, ``n_train``, ``n_test`` and ``info``;
        ``info["stand_in"]`` is true for data that stand in for a paper's own (a toy that the paper itself
        draws is no stand-in).
    metrics : mapping of str to float or None
        Final metrics; accuracies in [0, 1]. What is not finite is None.
    history : DataFrame, or mapping of str to sequence
        One entry a round in each column; kept to 6 significant digits.
    per_client : DataFrame, or mapping of str to sequence
        `Run.per_client`: one entry a client in each column; empty in records that were written without.
    commit : str
        Git commit of the code, or ``"unknown"``.
    dirty : bool or None
        Whether the code differed from the commit; None where that is not known.
    versions, hardware : mapping
        As from `environment`.
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
        for name in ("seed", "dirty", "settings", "federation", "metrics", "versions", "hardware"):
            object.__setattr__(self, name, plain(getattr(self, name), name))
        _check(self)

    @classmethod
    def of(cls, run: Any, experiment: str, scale: str, **changes: Any) -> RunRecord:
        """The record of a finished run (`hetfl_core.simulation.Run`), with this machine's `environment`.

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
    def place(self) -> str:
        """Path of the file inside a results folder, e.g. ``flic/bci-common40/paper/FLIC-HL-seed0.json``."""
        return place_of(self.experiment, self.scale, self.method, self.seed)

    @property
    def stand_in(self) -> bool:
        """Whether the data are a stand-in, which is never set against a paper's number."""
        return bool((self.federation.get("info") or {}).get("stand_in", False))

    @property
    def revision(self) -> str:
        """Short commit, with ``+`` where the code differed from it."""
        short = self.commit[:10]
        return f"{short}+" if self.dirty else short

    def frame(self) -> pd.DataFrame:
        """The history as a table with one row a round; missing values are NaN."""
        return pd.DataFrame(self.history)


def place_of(experiment: str, scale: str, method: str, seed: int) -> str:
    """Path of a run's record inside a results folder, whether it exists yet or not."""
    return f"{experiment}/{scale}/{method}-seed{seed}.json"


def _check(record: RunRecord) -> None:
    def expect(right: bool, name: str, wanted: str) -> None:
        if not right:
            raise ValueError(f"{name} must be {wanted}, got {getattr(record, name)!r}")

    expect(record.format == FORMAT, "format", str(FORMAT))
    expect(_fits(_EXPERIMENT, record.experiment), "experiment", "a name like 'flic/bci-common40'")
    expect(record.scale in SCALES, "scale", f"one of {SCALES}")
    expect(_fits(_METHOD, record.method), "method", "a name like 'FLIC-HL'")
    expect(type(record.seed) is int and record.seed >= 0, "seed", "a whole number from 0 on")
    for name in ("settings", "federation", "metrics", "history", "per_client", "versions", "hardware"):
        expect(isinstance(getattr(record, name), dict), name, "a mapping")
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
    return write_to(record, Path(folder) / record.place)


def write_to(record: RunRecord, path: str | Path) -> Path:
    """As `write`, to a file of one's own choice."""
    write_atomically(Path(path), to_json(record).encode())
    return Path(path)


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
    path = Path(path)
    try:
        return replace(_parse(json.loads(path.read_text(encoding="utf-8"))), path=path)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a run record: {error}") from error


def _parse(content: Any) -> RunRecord:
    if not isinstance(content, dict):
        raise ValueError(f"it must hold one JSON object, got {type(content).__name__}")
    known = {f.name for f in fields(RunRecord)} - {"path"}
    missing, strange = sorted(known - set(content) - {"per_client"}), sorted(set(content) - known)
    if missing or strange:
        raise ValueError(f"fields missing: {missing}, fields unknown: {strange}")
    return RunRecord(**content)


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
    root = _results() if folder is None else Path(folder)
    if root is None:
        return []
    if not root.is_dir():
        raise FileNotFoundError(f"there is no results folder {root}")
    wanted = {"experiment": experiment, "scale": scale, "method": method}
    found = (read(path) for path in _files(root, experiment))
    kept = [r for r in found if all(v in (None, getattr(r, k)) for k, v in wanted.items())]
    return sorted(kept, key=lambda r: (r.experiment, r.scale, r.method, r.seed))


def _files(root: Path, experiment: str | None) -> list[Path]:
    """The records' files, those of one experiment without opening any other (`place_of`)."""
    return sorted((root / experiment).glob("*/*.json") if experiment else root.rglob("*.json"))


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
    rows = [
        {by: key, "method": r.method, "seed": r.seed, **{m: _metric(r, m) for m in metrics}}
        for key, experiment in experiments.items()
        for r in load(experiment=experiment, scale=scale)
    ]
    return pd.DataFrame(rows, columns=[by, "method", "seed", *metrics])


def _metric(record: RunRecord, metric: str) -> float:
    if metric == "best_accuracy":
        return 100 * float(record.frame()["test_accuracy"].astype(float).max())
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
    left, right = _flat(a), _flat(b)
    names = [n for n in dict.fromkeys([*left, *right]) if n.startswith("metrics.") or left.get(n) != right.get(n)]
    rows = [(n, left.get(n), right.get(n), _difference(left.get(n), right.get(n))) for n in names]
    return pd.DataFrame(rows, columns=["field", "a", "b", "difference"])


def _flat(record: RunRecord) -> dict[str, Any]:
    out: dict[str, Any] = {}

    def walk(name: str, x: Any) -> None:
        if isinstance(x, dict) and x:
            for key, item in x.items():
                walk(f"{name}.{key}", item)
        else:
            out[name] = x

    for f in fields(record):
        if f.name != "path":
            walk(f.name, getattr(record, f.name))
    return out


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
        use, ``gpu`` name or None), ``commit`` and ``dirty``. Without git, or outside a checkout, the commit is
        ``"unknown"`` and `dirty` None; the environment variable ``HETFL_COMMIT`` (as from ``git describe --always
        --dirty --abbrev=40``) then says it for a copy of the code.
    """
    commit, dirty = code_revision()
    return {"versions": _versions(), "hardware": _hardware(), "commit": commit, "dirty": dirty}


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
    root = Path(__file__).resolve().parent.parent
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


# --- what the papers say ----------------------------------------------------------------------------------------------


def paper_values() -> pd.DataFrame:
    """Every number of the papers' tables, one row each.

    Returns
    -------
    DataFrame
        Columns ``paper, table, setting, method, metric, unit, value, sd, runs, experiment, available, note``; see
        ``data/paper/README.md``. Missing text is "", a missing number NaN.
    """
    files = sorted(data_path("paper").glob("*-table*.csv"))
    return pd.concat([_paper_file(f) for f in files], ignore_index=True)


def paper_table(paper: str, table: str | int) -> pd.DataFrame:
    """The numbers of one table of one paper, e.g. ``paper_table("flic", 4)`` (columns as `paper_values`).

    Raises
    ------
    KeyError
        If there is no such table; the message lists those that there are.
    """
    path = data_path("paper") / f"{paper}-table{table}.csv"
    if not path.is_file():
        known = sorted(f.stem.replace("-table", ", table ") for f in path.parent.glob("*-table*.csv"))
        raise KeyError(f"no numbers of {paper!r}, table {table!r}; there are: {'; '.join(known)}")
    return _paper_file(path)


def _paper_file(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column in ("value", "sd", "runs"):
        frame[column] = frame[column].replace("", "nan").astype(float)
    return frame


# --- ours beside theirs -----------------------------------------------------------------------------------------------


def _is_fraction(metric: str) -> bool:
    return "accuracy" in metric


def value(record: RunRecord, metric: str) -> float:
    """A metric as the papers print it: accuracies in per cent, anything else as it is.

    This is the one place where fractions become per cent. NaN where the record does not have the metric.
    """
    x = record.metrics.get(metric)
    if x is None:
        return math.nan
    return 100.0 * x if _is_fraction(metric) else float(x)


def combined_error(*samples: tuple[float, float]) -> float:
    """Standard error of the difference of means, from (standard deviation, number of runs) of each side.

    A side whose deviation is not known (one run, or none printed) adds nothing: say so beside the result.
    """
    known = [sd**2 / n for sd, n in samples if n > 1 and math.isfinite(sd)]
    return math.sqrt(sum(known))


def verdict(difference: float, standard_error: float) -> str:
    """The rule of the ledger: *agrees* within max(1 point, 2 combined standard errors), else *higher* or *lower*.

    Parameters
    ----------
    difference : float
        Ours less theirs, in points.
    standard_error : float
        Of the difference, in points, as from `combined_error`.
    """
    if abs(difference) <= tolerance(standard_error) + 1e-9:  # 1e-9: rounding of decimal fractions, not leniency
        return "agrees"
    return "higher" if difference > 0 else "lower"


def tolerance(standard_error: float) -> float:
    """How far a value may lie from the paper's and still agree, in points."""
    return max(1.0, 2.0 * standard_error)


def ledger(records: Iterable[RunRecord] | None = None, *, accuracy: str = "accuracy") -> pd.DataFrame:
    """Each number of the papers that an experiment of ours reproduces, ours beside it, and a verdict.

    Only records at scale ``"paper"`` on real data are set against a paper's number; the note tells of others.

    Parameters
    ----------
    records : iterable of RunRecord, optional
        Default: all of ``data/results``.
    accuracy : str
        Which metric stands for the papers' "accuracy". FLIC's text reports the mean over clients (``"accuracy"``);
        its published code weights clients by their test samples (``"accuracy_weighted"``).

    Returns
    -------
    DataFrame
        One row a number: ``paper, table, setting, experiment, method, metric``; ``published, published_sd,
        published_runs``; ``ours, ours_sd, ours_runs, scale``; ``difference`` and ``tolerance`` (points); ``verdict``:
        agrees, higher, lower (with "(1 seed)" where our standard error is unknown), pending, data not available here,
        no experiment yet, settings differ, or metric missing; ``note``; ``command`` that would fill a pending row;
        and what is behind our number: ``seeds``, ``records`` (places in the results folder), ``commits``.
    """
    records = list(load() if records is None else records)
    rows = paper_values()
    rows = rows[rows["experiment"] != ""]
    return pd.DataFrame([_ledger_row(row, records, accuracy) for row in rows.to_dict("records")])


def _ledger_row(row: dict[str, Any], records: list[RunRecord], accuracy: str) -> dict[str, Any]:
    metric = accuracy if row["metric"] == "accuracy" else row["metric"]
    mine = [r for r in records if (r.experiment, r.method) == (row["experiment"], row["method"])]
    used = _comparable(mine)
    x = np.array([value(r, metric) for r in used])
    ours, sd = (float(x.mean()) if len(x) else math.nan), (float(x.std(ddof=1)) if len(x) > 1 else math.nan)
    error = combined_error((row["sd"], row["runs"]), (sd, len(x)))
    state = _judge(row, used, ours, error)
    return {
        **{k: row[k] for k in ("paper", "table", "setting", "experiment", "method")},
        "metric": metric,
        "published": row["value"],
        "published_sd": row["sd"],
        "published_runs": row["runs"],
        "ours": ours,
        "ours_sd": sd,
        "ours_runs": len(x),
        "scale": "paper" if used else "",
        "difference": ours - row["value"],
        "tolerance": tolerance(error),
        "verdict": state,
        "note": _note(row, mine, metric),
        "command": "" if used else _missing(state, row["experiment"]),
        **_evidence(used),
    }


def _comparable(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Real data at the paper's scale, the newest record of each seed, by seed."""
    kept = {r.seed: r for r in sorted(records, key=lambda r: r.created) if r.scale == "paper" and not r.stand_in}
    return [kept[seed] for seed in sorted(kept)]


def _judge(row: Mapping[str, Any], used: list[RunRecord], ours: float, error: float) -> str:
    if not used:
        return _without_runs(row["experiment"], [row["method"]], row["available"] == "no")
    if _settings_differ(used):
        return "settings differ"
    if math.isnan(ours):
        return "metric missing"
    return verdict(ours - row["value"], error) + (" (1 seed)" if len(used) == 1 else "")


def _settings_differ(records: list[RunRecord]) -> bool:
    """Whether any two runs disagree in a setting of the method, of the protocol or of the data."""
    chosen = [{**r.settings, "data": (r.federation.get("info") or {}).get("settings", {})} for r in records]
    return any(_differ(a, b) for a, b in itertools.combinations(chosen, 2))


def _protocols_differ(records: list[RunRecord]) -> bool:
    """Whether any two runs, also of different methods, were not run in the same way."""
    ways = [{k: r.settings[k] for k in PROTOCOL if k in r.settings} for r in records]
    return any(_differ(a, b) for a, b in itertools.combinations(ways, 2))


def _differ(a: Any, b: Any) -> bool:
    """Whether two settings disagree where both say something.

    A hyper-parameter that a method did not have yet when the older record was written is no disagreement: new ones
    come with a default that leaves the method as it was.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return any(_differ(a[k], b[k]) for k in a.keys() & b.keys() - RUNTIME_SETTINGS)
    return a != b


def _note(row: Mapping[str, Any], records: list[RunRecord], metric: str) -> str:
    notes = [row["note"]] if row["available"] != "yes" else []
    if any(r.stand_in for r in records):
        notes.append("records on stand-in data are not set against the paper")
    book = [value(r, metric) for r in records if r.scale == "book" and not r.stand_in]
    if book:
        notes.append(f"book scale, not compared: {np.mean(book):.2f} ({_count(len(book), 'run')})")
    return "; ".join(notes)


def command(experiment: str) -> str:
    """What a reader types to make the records of an experiment."""
    return f"hetfl reproduce {experiment} --scale paper"


def _missing(state: str, experiment: str) -> str:
    """The command for an experiment without records, where there is one: it also runs once its data are at hand."""
    from hetfl_core.experiments import EXPERIMENTS  # a look upwards, at names only

    return command(experiment) if state in (PENDING, UNAVAILABLE) and experiment in EXPERIMENTS else ""


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _evidence(used: Sequence[RunRecord]) -> dict[str, list[Any]]:
    return {
        "seeds": sorted({r.seed for r in used}),
        "records": [r.place for r in used],
        "commits": sorted({r.revision for r in used}),
    }


# --- claims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paired:
    """Mean difference a − b over the seeds that both have, with its 95 % t-interval.

    Attributes
    ----------
    mean, low, high : float
        In points for accuracies, else in the metric's unit. With one seed the interval is infinite.
    seeds : tuple of int
        Those that count (see `paired`).
    same_data : bool
        Whether each pair has the same fingerprint of the data. It can differ in rounding between machines.
    sd : float
        Standard deviation of the differences, in the same unit; NaN with one seed.
    """

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]
    same_data: bool = True
    sd: float = math.nan

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.seeds)

    @property
    def p(self) -> float:
        """Two-sided p-value of Student's t for "no difference"; NaN with one seed."""
        if self.sd == 0:
            return float(self.mean == 0)
        return float(2 * stats.t.sf(abs(self.mean) * math.sqrt(self.n) / self.sd, self.n - 1))

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:+.2f} (1 seed)"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] ({self.n} seeds)"


def paired(
    records: Iterable[RunRecord], experiment: str, a: str, b: str, metric: str = "accuracy", scale: str = "paper"
) -> Paired:
    """Compare two methods seed by seed: mean difference and 95 % interval of Student's t.

    A seed that repeats an earlier one, on the same data with the same results of both methods, is no new observation
    and does not count: classifiers without randomness give the same numbers for every seed.

    Parameters
    ----------
    records : iterable of RunRecord
    experiment, scale : str
        Which runs to take.
    a, b : str
        Names of the methods; the difference is a − b.
    metric : str

    Raises
    ------
    ValueError
        If no seed has both methods, or a pair was run on data of different size.
    """
    runs = [r for r in records if (r.experiment, r.scale) == (experiment, scale)]
    left, right = _by_seed(runs, a, metric), _by_seed(runs, b, metric)
    seeds = tuple(sorted(left.keys() & right.keys()))
    if not seeds:
        raise ValueError(
            f"{experiment} at scale {scale!r}: no seed has {metric!r} of both methods; "
            f"{a!r} has seeds {sorted(left)}, {b!r} has seeds {sorted(right)}"
        )
    seeds = tuple(sorted({_observation(left[s], right[s]): s for s in reversed(seeds)}.values()))
    same = [_same_data(left[s], right[s]) for s in seeds]
    x = np.array([value(left[s], metric) - value(right[s], metric) for s in seeds])
    mean, sd = float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else math.nan
    half = float(stats.t.ppf(0.975, len(x) - 1) * sd / math.sqrt(len(x))) if len(x) > 1 else math.inf
    return Paired(mean, mean - half, mean + half, seeds, all(same), sd)


def effects(
    records: Iterable[RunRecord], experiment: str, base: str, metric: str = "accuracy", scale: str = "paper"
) -> pd.DataFrame:
    """Every method of an experiment against one of them, seed by seed: an ablation's table.

    Parameters
    ----------
    records, experiment, metric, scale
        As for `paired`.
    base : str
        Method that the others are compared with.

    Returns
    -------
    DataFrame
        Indexed by ``method``, in the order of the records; columns ``mean, low, high, sd`` (`Paired`, method less
        base), ``p`` and ``seeds``. Methods that have no seed in common with `base` are left out.
    """
    runs = [r for r in records if (r.experiment, r.scale) == (experiment, scale)]
    have = _by_seed(runs, base, metric).keys()
    others = [m for m in dict.fromkeys(r.method for r in runs) if m != base and have & _by_seed(runs, m, metric).keys()]
    pairs = [paired(runs, experiment, m, base, metric, scale) for m in others]
    columns = ["mean", "low", "high", "sd", "p", "seeds"]
    rows = [[getattr(pair, column) for column in columns] for pair in pairs]
    return pd.DataFrame(rows, columns=columns, index=pd.Index(others, name="method"))


def holm(p: Sequence[float] | np.ndarray | pd.Series) -> np.ndarray:
    """Holm's adjusted p-values: reject those below α, and the chance of *any* false rejection is at most α.

    The k-th smallest of m p-values is multiplied by m − k + 1, and made no smaller than those before it.

    Parameters
    ----------
    p : sequence of float, shape (m,)
        NaN (nothing to test) stays NaN and does not count.

    Returns
    -------
    ndarray, shape (m,)
        At most 1.

    References
    ----------
    S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics, 1979.
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(p)[: np.isfinite(p).sum()]  # NaN sorts last
    adjusted = np.full(p.shape, math.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def _by_seed(records: Iterable[RunRecord], method: str, metric: str) -> dict[int, RunRecord]:
    mine = sorted((r for r in records if r.method == method), key=lambda r: r.created)
    return {r.seed: r for r in mine if math.isfinite(value(r, metric))}


def _observation(*records: RunRecord) -> str:
    """All that a seed can change in the records of a comparison, times left out."""
    parts = [
        [r.federation.get("fingerprint"), {k: x for k, x in r.metrics.items() if k != "seconds"}, r.per_client]
        for r in records
    ]
    return json.dumps(parts, sort_keys=True)


def _same_data(a: RunRecord, b: RunRecord) -> bool:
    sizes = ("n_clients", "n_classes", "n_train", "n_test")
    differing = {k: (a.federation.get(k), b.federation.get(k)) for k in sizes}
    differing = {k: pair for k, pair in differing.items() if pair[0] != pair[1]}
    if a.stand_in != b.stand_in:
        differing["stand_in"] = a.stand_in, b.stand_in
    if differing:
        raise ValueError(f"{a.place} and {b.place} cannot be paired: their data differ in {differing}")
    return a.federation.get("fingerprint") == b.federation.get("fingerprint")


def claim_verdict(result: Paired) -> str:
    """*holds* when the interval lies above zero, *reverses* when below, else *open*; always open with one seed."""
    if result.n >= 2 and result.low > 0:
        return "holds"
    return "reverses" if result.n >= 2 and result.high < 0 else "open"


def claims(records: Iterable[RunRecord] | None = None) -> pd.DataFrame:
    """Each statement "A is better than B" of the papers, and whether our runs bear it out.

    Only records at scale ``"paper"`` on real data count, as in `ledger`.

    Returns
    -------
    DataFrame
        ``paper, id, claim, experiment, metric, better, worse, where``; ``difference, low, high`` (points, with 95 %
        interval); ``verdict``: holds, reverses, open (also with fewer than two seeds in common), pending, data not
        available here, settings differ, or no experiment yet; ``note``, ``command``, ``seeds``, ``records``,
        ``commits``.
    """
    records = list(load() if records is None else records)
    values = paper_values()
    missing = set(values.loc[values["available"] == "no", "experiment"])
    rows = pd.read_csv(data_path("paper", "claims.csv"), dtype=str, keep_default_na=False).to_dict("records")
    return pd.DataFrame([_claim_row(row, records, missing) for row in rows])


def _claim_row(row: dict[str, Any], records: list[RunRecord], missing: set[str]) -> dict[str, Any]:
    metric, better, worse = row["metric"], row["better"], row["worse"]
    mine = [r for r in records if r.experiment == row["experiment"] and math.isfinite(value(r, metric))]
    sides = [_comparable(r for r in mine if r.method == name) for name in (better, worse)]
    common = {r.seed for r in sides[0]} & {r.seed for r in sides[1]}
    used = [r for side in sides for r in side if r.seed in common]
    result = paired(used, row["experiment"], better, worse, metric) if common else None
    without = _without_runs(row["experiment"], [better, worse], row["experiment"] in missing)
    state = claim_verdict(result) if result else without
    if any(_settings_differ(side) for side in sides) or _protocols_differ(used):
        state = "settings differ"
    return {
        **row,
        "difference": result.mean if result else math.nan,
        "low": result.low if result else math.nan,
        "high": result.high if result else math.nan,
        "verdict": state,
        "note": "the fingerprints of the data differ" if result and not result.same_data else "",
        "command": _missing(state, row["experiment"]),
        **_evidence(used),
    }


def _without_runs(experiment: str, methods: Iterable[str], unavailable: bool) -> str:
    """Why there is no number of ours: no data, no such experiment or method here yet, or just not run."""
    from hetfl_core.experiments import EXPERIMENTS  # a look upwards, at names only

    if unavailable and experiment:
        return UNAVAILABLE
    known = EXPERIMENTS[experiment].methods if experiment in EXPERIMENTS else {}
    return PENDING if all(method in known for method in methods) else UNBUILT


# --- for the eye ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """A table to look at: HTML in a notebook, aligned text elsewhere (which is also Markdown).

    Attributes
    ----------
    table : DataFrame of str
    """

    table: pd.DataFrame

    def __str__(self) -> str:
        cells = [list(self.table.columns), *self.table.to_numpy().tolist()]
        cells = [[str(c).replace("|", "\\|") for c in row] for row in cells]
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
        return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(str(c))}</th>' for c in self.table.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(str(c))}</td>" for c in row) + "</tr>"
            for row in self.table.to_numpy().tolist()
        )
        return (
            '<div style="overflow-x:auto"><table class="dataframe">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _cell(text: str) -> str:
    """Text as HTML, with a mean and its ± kept on one line."""
    return html.escape(text, quote=False).replace(" ± ", "&nbsp;±&nbsp;")


def show(table: pd.DataFrame) -> Shown:
    """A ledger or a table of claims as a reader wants to see it; any other table as it is.

    Examples
    --------
    >>> show(ledger([]).query("experiment == 'flic/bci-common40'"))  # doctest: +SKIP
    """
    if {"published", "ours"} <= set(table.columns):
        view = [_ledger_view(row) for row in table.to_dict("records")]
        return Shown(pd.DataFrame(view, columns=LEDGER_VIEW))
    if {"claim", "verdict"} <= set(table.columns):
        return Shown(pd.DataFrame([_claim_view(row) for row in table.to_dict("records")], columns=CLAIM_VIEW))
    return Shown(table)


LEDGER_VIEW = ["Source", "Setting", "Method", "Paper", "Ours", "Difference", "Verdict", "Behind it"]
CLAIM_VIEW = ["Source", "Claim", "Difference in points [95 % interval]", "Verdict", "Behind it"]


def _ledger_view(row: Mapping[str, Any]) -> list[str]:
    seen = row["ours_runs"] > 0 and math.isfinite(row["ours"])
    seeds = f" ({_count(row['ours_runs'], 'seed')}, {row['scale']} scale)"
    return [
        f"{SOURCES.get(row['paper'], row['paper'])}, Table {row['table']}",
        row["setting"],
        row["method"],
        _mean_sd(row["published"], row["published_sd"], "g"),
        _mean_sd(row["ours"], row["ours_sd"], ".2f") + seeds if seen else "–",
        f"{row['difference']:+.2f}" if seen else "–",
        row["verdict"],
        _behind(row),
    ]


def _claim_view(row: Mapping[str, Any]) -> list[str]:
    seen = math.isfinite(row["difference"])
    result = Paired(row["difference"], row["low"], row["high"], tuple(row["seeds"]))
    source = f"{SOURCES.get(row['paper'], row['paper'])}, {row['where']}"
    return [source, row["claim"], str(result) if seen else "–", row["verdict"], _behind(row)]


def _mean_sd(mean: float, sd: float, form: str) -> str:
    return f"{mean:.2f} ± {sd:{form}}" if math.isfinite(sd) else f"{mean:.2f}"


def _behind(row: Mapping[str, Any]) -> str:
    """Where to find the records behind a number, or how to make them."""
    found = ""
    if row["records"]:
        folder = str(row["records"][0]).rsplit("/", 1)[0]
        found = f"{folder}, seeds {', '.join(map(str, row['seeds']))}, commit {', '.join(row['commits'])}"
    return "; ".join(part for part in (found, row["command"], row["note"]) if part)
