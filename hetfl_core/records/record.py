"""Records of runs: what was run, on which data, with which code and machine, and what came out.

Where they lie is `hetfl_core.records.storage`.

Units: metrics in records are fractions in [0, 1]; all that is printed is in per cent or percentage points. `to_percent`
converts, and nothing else does.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pandas as pd

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.records.provenance import environment
from hetfl_core.records.renaming import RENAMED, translated
from hetfl_core.settings import Limit, Natural, NotNegative, check, leaves, plain

FORMAT = len(RENAMED) + 1
DIGITS = 6
"""Significant digits of the floating-point columns of a history."""
DEPTH = 50
"""How deep settings may be nested."""

_EXPERIMENT = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", re.ASCII)
_METHOD = re.compile(r"[A-Za-z0-9][\w .+()=,-]*", re.ASCII)

Scale = Literal["paper", "book", "own"]
SCALES: tuple[Scale, ...] = get_args(Scale)


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
        Wall time of the run, s; figures of time take `timing`.
    created : str
        UTC time, ISO 8601.
    path : Path, optional
        The file that the record was read from; not part of it.
    """

    experiment: Annotated[str, Limit("a name like 'flic/bci-common40'", _EXPERIMENT.fullmatch)]
    scale: Scale
    method: Annotated[str, Limit("a name like 'FLIC-HL'", _METHOD.fullmatch)]
    seed: Natural
    settings: dict[str, Any]
    federation: dict[str, Any]
    metrics: dict[str, Any]
    history: dict[str, list[Any]] = field(default_factory=dict)
    per_client: dict[str, list[Any]] = field(default_factory=dict)
    commit: str = "unknown"
    dirty: bool | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    numerics: dict[str, Any] = field(default_factory=dict)
    seconds: NotNegative = 0.0
    created: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    format: int = FORMAT
    path: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        exact = ("seed", "dirty", "settings", "federation", "metrics", "versions", "hardware", "numerics")
        for name in ("history", "per_client", "seconds", *exact):
            given = getattr(self, name)
            given = given.to_dict("list") if isinstance(given, pd.DataFrame) else given
            object.__setattr__(self, name, plain(given, name, None if name in exact else DIGITS))
        _check(self)

    @classmethod
    def of(cls, run: Any, experiment: str, scale: str, **changes: Any) -> RunRecord:
        """The record of a finished run, with this machine's `environment`.

        Threads and GPU are those of the run; the commit is the one that `code_revision` saw first.

        Parameters
        ----------
        run : hetfl_core.Run
        experiment, scale : str
            As of `RunRecord`.
        **changes
            Fields of the record to set otherwise, such as ``method="FLIC-HL"``.

        Returns
        -------
        RunRecord

        Raises
        ------
        ValueError
            Naming the field that cannot be recorded.
        """
        fed, made = run.federation, environment()
        used = {"threads": run.settings.get("threads", made["hardware"]["threads"])}
        used |= {} if run.device.type == "cuda" else {"gpu": None}
        values = {
            "experiment": experiment,
            "scale": scale,
            "method": run.method.name,
            "seed": run.settings["seed"],
            "settings": run.settings,
            "federation": described(fed),
            "metrics": run.final,
            "history": run.history,
            "per_client": run.per_client,
            "seconds": run.final.get("seconds", 0.0),
            **made,
            "hardware": made["hardware"] | used,
        }
        return cls(**{**values, **changes})

    @classmethod
    def from_content(cls, content: Any, path: Path) -> RunRecord:
        """A record from what its file holds, which is plain and was rounded as it was written: only checked.

        Going through every number again, as for the record of a run, would take six times as long as reading the file.

        Parameters
        ----------
        content : dict
            What the JSON of the file holds, in this format or an older one.
        path : pathlib.Path
            The file.

        Returns
        -------
        RunRecord

        Raises
        ------
        ValueError
            For another format, and fields that are missing, unknown or malformed.
        """
        if not isinstance(content, dict):
            raise WrongValue(f"it must hold one JSON object, got {type(content).__name__}")
        content = translated(content)
        missing, strange = sorted(_FIELDS - set(content)), sorted(set(content) - _FIELDS - _LATER)
        if missing or strange:
            raise WrongValue(f"fields missing: {missing}, fields unknown: {strange}")
        record = object.__new__(cls)
        vars(record).update({name: {} for name in _LATER} | content | {"path": path})
        _check(record)
        return record

    @property
    def relative_path(self) -> str:
        """Path inside a results folder, until the record is packed.

        For example, ``flic/bci-common40/paper/FLIC-HL-seed0.json``.
        """
        return relative_path_of(self.experiment, self.scale, self.method, self.seed)

    @property
    def stand_in(self) -> bool:
        """Whether the data are a stand-in, which is never set against a paper's number."""
        return bool((self.federation.get("info") or {}).get("stand_in", False))

    @property
    def busy(self) -> bool:
        """Whether the machine had other work meanwhile, so that the seconds enter no figure of time."""
        return bool(self.hardware.get("busy", False))

    @property
    def timing(self) -> float:
        """The seconds as figures of time take them: NaN of a `busy` record."""
        return math.nan if self.busy else self.seconds

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
        """The history as a table with one row per round; missing values are NaN.

        Returns
        -------
        DataFrame
            Accuracies are fractions in [0, 1].
        """
        return pd.DataFrame(self.history)


_LATER = {"per_client", "numerics"}
"""The fields that older files lack."""
_FIELDS = {f.name for f in fields(RunRecord)} - {"path", *_LATER}


def described(federation: Any) -> dict[str, Any]:
    """What a record says of the data: name, fingerprint, sizes and ``info``."""
    return {
        "name": federation.name,
        "fingerprint": federation.fingerprint(),
        "n_clients": len(federation),
        "n_classes": federation.n_classes,
        "n_train": sum(c.n_train for c in federation),
        "n_test": sum(c.n_test for c in federation),
        "info": federation.info,
    }


def records_of(value: Any, name: str = "records") -> list[RunRecord]:
    """Records as a list, or an error that names the argument.

    Parameters
    ----------
    value : iterable of RunRecord
    name : str
        What the argument is called in errors.

    Returns
    -------
    list of RunRecord

    Raises
    ------
    TypeError
        For what is no sequence, or holds something else.
    """
    found = checks.sequence(name, value)
    for record in found:
        checks.instance(name, record, RunRecord)
    return found


def relative_path_of(experiment: str, scale: str, method: str, seed: int) -> str:
    """Path of a fresh record inside a results folder, whether the run has been made or not; it names the run."""
    return f"{experiment}/{scale}/{method}-seed{seed}.json"


def is_experiment(name: str) -> bool:
    """Whether a record can have this name for its experiment; it is then a path below any folder."""
    return isinstance(name, str) and _EXPERIMENT.fullmatch(name) is not None


_NUMBERS = {int, float, type(None)}
_LABELS = {str, bool, *_NUMBERS}
_LABELLED = {"n"}
"""Columns of a history that are no results but say what a row is about, maybe in words (``"all"``)."""


def _check(record: RunRecord) -> None:
    if record.format != FORMAT:
        raise WrongValue(f"format must be {FORMAT}, got {record.format!r}")
    check(record)
    revision = record.numerics.get("revision", 0)
    if type(revision) is not int or revision < 0:
        raise WrongValue(f"numerics must be a mapping whose revision is a whole number from 0 on, got {revision!r}")
    if _is_deep([record.settings, record.federation, record.versions, record.hardware, record.numerics]):
        raise WrongValue(f"settings, and what else is nested, must be so {DEPTH}-fold at most")
    _check_table("history", record.history, _LABELLED)
    _check_table("per_client", record.per_client, record.per_client)
    for metric, x in record.metrics.items():
        if x is not None:
            _check_metric(metric, x)


def _is_deep(parts: list[Any]) -> bool:
    """Whether some of these mappings and lists have more levels than `DEPTH`."""
    for _ in range(DEPTH + 1):
        if not parts:
            return False
        inside = [part.values() if isinstance(part, dict) else part for part in parts]
        parts = [x for part in inside for x in part if isinstance(x, dict | list)]
    return True


def _check_table(name: str, table: Mapping[str, Any], labelled: Collection[str]) -> None:
    """Refuse columns of different length, or of something else than numbers where they are not labelled."""
    for key, column in table.items():
        kinds = _LABELS if key in labelled else _NUMBERS
        if not kinds.issuperset(map(type, column)):
            strange = next(x for x in column if type(x) not in kinds)
            wanted = "numbers, text or nulls" if key in labelled else "numbers or nulls"
            raise WrongValue(f"{name}[{key!r}] must hold {wanted}, got {strange!r:.99}")
    if len(set(map(len, table.values()))) > 1:
        lengths = {key: len(column) for key, column in table.items()}
        raise WrongValue(f"{name} must have columns of one length, got {lengths}")


def _check_metric(name: str, x: Any) -> None:
    if type(x) is not float and type(x) is not int:
        raise WrongValue(f"metrics[{name!r}] must be a number or null, got {x!r}")
    if not abs(x) <= sys.float_info.max:
        raise WrongValue(f"metrics[{name!r}] must be a finite number, got {x!r:.99}")
    if not 0 <= x <= 1 and _is_fraction(name):
        raise WrongValue(f"metrics[{name!r}] must be a fraction in [0, 1], got {x!r}: is it in per cent?")


def _is_fraction(metric: str) -> bool:
    return "accuracy" in metric


def to_percent(x: Any, metric: str) -> Any:
    """Values of a metric as the papers print them: accuracies in per cent, anything else as it is.

    Parameters
    ----------
    x : float, or array or Series of float
    metric : str
        Its name says whether it is an accuracy: a fraction in records, in [0, 1].

    Returns
    -------
    float, or array or Series of float
        Like `x`.
    """
    checks.nonempty_str("metric", metric)
    return 100.0 * x if _is_fraction(metric) else x


def value(record: RunRecord, metric: str) -> float:
    """A metric of a record as the papers print it: accuracies in per cent (`to_percent`).

    Parameters
    ----------
    record : RunRecord
    metric : str
        A name in `RunRecord.metrics`, such as ``"accuracy"``.

    Returns
    -------
    float
        NaN where the record does not have the metric, and for the ``"seconds"`` of a `busy` one.

    Raises
    ------
    TypeError
        For what is no record.
    ValueError
        For an empty name.
    """
    checks.instance("record", record, RunRecord)
    checks.nonempty_str("metric", metric)
    x = None if metric == "seconds" and record.busy else record.metrics.get(metric)
    return math.nan if x is None else to_percent(float(x), metric)


def measured(record: RunRecord, metric: str) -> float:
    """A metric of a record as `value` gives it, or the ``"best_accuracy"`` of its history (see `tidy`).

    It is NaN where the record has none.

    Parameters
    ----------
    record : RunRecord
    metric : str

    Returns
    -------
    float
        Accuracies in per cent.
    """
    if metric != "best_accuracy":
        return value(record, metric)
    return to_percent(float(pd.Series(record.history.get("accuracy", []), dtype=float).max()), metric)


def compare_records(a: RunRecord, b: RunRecord) -> pd.DataFrame:
    """Where two records differ: every metric, and each other field that is not equal.

    Parameters
    ----------
    a, b : RunRecord

    Returns
    -------
    DataFrame
        Columns ``field``, ``a``, ``b``, ``difference`` (b − a for numbers; for a column of the history the largest
        absolute difference over the rounds).

    Raises
    ------
    TypeError
        For what is no record.
    """
    checks.instance("a", a, RunRecord)
    checks.instance("b", b, RunRecord)
    names_of = [f.name for f in fields(RunRecord) if f.name != "path"]
    left, right = (dict(leaves({name: getattr(record, name) for name in names_of})) for record in (a, b))
    names = [n for n in dict.fromkeys([*left, *right]) if n.startswith("metrics.") or left.get(n) != right.get(n)]
    rows = [(n, left.get(n), right.get(n), _difference(left.get(n), right.get(n))) for n in names]
    return pd.DataFrame(rows, columns=["field", "a", "b", "difference"])


def _difference(x: Any, y: Any) -> float:
    numbers = pd.api.types.is_number
    if numbers(x) and numbers(y):
        return float(y - x)
    if isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
        pairs = [abs(q - p) for p, q in zip(x, y, strict=True) if numbers(p) and numbers(q)]
        return float(max(pairs, default=math.nan))
    return math.nan
