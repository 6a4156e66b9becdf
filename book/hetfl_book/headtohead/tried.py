"""What was tried against the claims of the tables: other seeds, settings, rounds, networks, starts and thresholds.

A way of trying is a `Trial`. What all of them gave lies in a file, a row for each run, so that a page can tell without
running anything. ``python -m hetfl_book.headtohead.tried`` makes what the file lacks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from hetfl_book.headtohead.entries import ALONE, FAMILIES, Family, entries
from hetfl_book.headtohead.federations import SIZES, Size
from hetfl_book.headtohead.recording import rarest
from hetfl_book.headtohead.running import OPTIONS, TUNING, Bench, Seen, with_chosen
from hetfl_core import records
from hetfl_core.engine.apart import simulate_apart
from hetfl_core.engine.evaluation import balanced_accuracy
from hetfl_core.engine.measures import auc, log_loss
from hetfl_core.federation import Federation
from hetfl_core.files import data_path
from hetfl_core.learners import as_learner, simulate, simulate_seeds
from hetfl_core.reporting.judging import FEW

FILE = "headtohead-tried.csv"
"""In the folder ``data``."""

NAMES = ("heart", "liver")
LOGISTIC = "logistic regression alone"
SHARING = ("FedAvg, zeros", "FedAvg", "late fusion", "LASER-VFL")
STEPPED = ("FedAvg, zeros", "late fusion")
"""Those of `SHARING` that are tried with an own last step at new seeds, too."""

NEW = tuple(range(100, 110))
"""Seeds that no final has."""

VERY_WIDE = Family(128, 64)
"""Beyond the widest of those among which training alone chooses."""

AT = ["tried", "federation", "size", "method", "what", "seed"]
SCORES = ["balanced_accuracy", "at_own_share", "auc", "accuracy", "log_loss"]

What = Literal["finals", "own step", "apart"]


@dataclass(frozen=True)
class Trial:
    """One method, tried in another way than the finals.

    Parameters
    ----------
    tried : str
        The way in words.
    method : str
        Name of an entry.
    what : {"finals", "own step", "apart"}
        As a `hetfl_book.headtohead.running.Task` has it.
    seeds : tuple of int
    start : int
        What is added to the seeds of first weights, minibatches and anchors, while splits stay those of the seeds.
    change : dict
        Fields of the method, instead of what was chosen.
    grid : dict of str to sequence
        Out of which a setting is chosen by the recorded losses, as far as the recorded grid holds it.
    run : dict
        Options of the simulation.
    family : Family, optional
        By default the one that was chosen.
    sizes : tuple of {"all", "tenth"}
    """

    tried: str
    method: str
    what: What = "finals"
    seeds: tuple[int, ...] = tuple(range(10))
    start: int = 0
    change: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    family: Family | None = None
    sizes: tuple[Size, ...] = SIZES


def trials() -> Iterator[Trial]:
    """All of them, in the order of the file."""
    both: tuple[What, ...] = ("finals", "apart")
    for tried, seeds in (("recorded settings", tuple(range(10))), ("new seeds", NEW)):
        yield from (Trial(tried, name, seeds=seeds) for name in (ALONE, LOGISTIC, *SHARING))
        yield from (Trial(tried, name, "own step", seeds) for name in SHARING if name in STEPPED or seeds != NEW)
    for name in ("FLIC-Class", "Fed-CMA", "LG-FedAvg"):
        yield from (Trial("new seeds", name, what, NEW) for what in both)
    yield from (Trial("other starts", name, "apart", start=1000) for name in ("FLIC-Class", "LG-FedAvg"))
    for tried, name, change in LARGE:
        sizes: tuple[Size, ...] = ("all",) if "anchor_step" in change else SIZES
        yield from (Trial(tried, name, what, change=change, sizes=sizes) for what in both)
    for tried, family in {**FAMILIES, "very wide": VERY_WIDE}.items():
        yield Trial(f"{tried} network", ALONE, family=family)
    yield Trial("very wide network", SHARING[0], family=VERY_WIDE)
    longer: dict[str, Any] = {"run": {"rounds": 60, "evaluate_every": 60}, "sizes": ("all",)}
    yield from (Trial("60 rounds", name, **longer) for name in (ALONE, *SHARING[:3]))
    for name in ("FLIC-Class", "Fed-CMA"):
        yield from (Trial("60 rounds", name, what, **longer) for what in both)
    few: dict[str, Any] = {"grid": {"weight_decay": (0.001,)}, "sizes": ("all",)}
    yield from (Trial("four settings", name, **few) for name in (ALONE, *SHARING[:3]))
    few["grid"] = {"logisticregression__C": (0.01, 0.1, 1.0, 10.0)}
    yield Trial("four settings", LOGISTIC, **few)


LARGE: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("weight 1", "FLIC-Class", {"alignment_weight": 1.0, "anchor_weight": 1.0}),
    ("weight 10", "Fed-CMA", {"head_weight": 10.0, "mean_weight": 10.0}),
    ("weight 10", "FedProto", {"term_weight": 10.0}),
    ("weight 10", "FedHeNN", {"term_weight": 10.0}),
    ("rate 0.004", "LG-FedAvg", {"lr": 0.004}),
    (
        "anchors free to move",
        "FLIC-Class",
        {"alignment_weight": 0.1, "anchor_weight": 0.1, "lr": 0.016, "anchor_step": "always"},
    ),
)
"""Weights and rates with which an exchange could do more than with those that were chosen."""


def attempt(trial: Trial, name: str, size: Size) -> list[dict[str, Any]]:
    """A row for each seed: means over the clients that count.

    Parameters
    ----------
    trial : Trial
    name : str
        Of a federation.
    size : {"all", "tenth"}

    Returns
    -------
    list of dict
        ``balanced_accuracy``, ``auc``, ``accuracy``, ``log_loss``; and ``at_own_share``, balanced accuracy where a
        client divides the probability of each class by its share of the client's training rows.
    """
    bench, entry = Bench(data_path("results"), entries()), entries()[trial.method]
    data = Seen(name, size, entry, trial.start)
    setting = _chosen(trial, bench, name, size)
    seeds = [seed + trial.start for seed in trial.seeds]
    method = entry.on(data(seeds[0]), trial.family or FAMILIES[bench.family(name, size)])
    method = with_chosen(method, {**setting, **trial.change})
    told = dict(zip(AT, (trial.tried, name, size, trial.method, trial.what), strict=False))
    answers: dict[int, dict[str, np.ndarray]] = {}
    with warnings.catch_warnings(action="ignore"):
        if not as_learner(method).in_rounds:
            answers = {seed: _heard(data(seed), method, seed) for seed in seeds}
        else:
            options = {**OPTIONS, **trial.run, **({"last_step": "own"} if trial.what == "own step" else {})}
            if trial.what == "apart":
                for seed, runs in simulate_apart(data, method, seeds=seeds, **options).items():
                    answers[seed] = {client: one.probabilities("test")[client] for client, one in runs.items()}
            else:
                for seed, one in simulate_seeds(data, method, seeds=seeds, **options).items():
                    answers[seed] = one.probabilities("test")
    return [told | {"seed": seed - trial.start} | scores(data(seed), answers[seed]) for seed in seeds]


def _chosen(trial: Trial, bench: Bench, name: str, size: Size) -> dict[str, Any]:
    """What was chosen, or the best by the recorded losses among what the trial allows."""
    if not trial.grid:
        return bench.choice(name, size, trial.method)
    found = records.load(data_path("results"), experiment=f"headtohead/{name}-{size}{TUNING}")
    table = pd.DataFrame(next(r.settings["table"] for r in found if r.method == trial.method))
    for column, values in trial.grid.items():
        table = table[[any(math.isclose(one, value) for value in values) for one in table[column]]]
    best = table.loc[table["log_loss"].idxmin()].drop(["log_loss", "sd"])
    return {str(key): float(value) for key, value in best.items()}


def _heard(data: Federation, method: Any, seed: int) -> dict[str, np.ndarray]:
    """The class probabilities of estimators, which a run does not keep."""
    heard: list[np.ndarray] = []

    def hear(y: np.ndarray, p: np.ndarray) -> float:
        heard.append(p)
        return 0.0

    simulate(data, method, seed=seed, metric=[hear])
    return dict(zip((client.name for client in data), heard, strict=True))


def scores(data: Federation, answers: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Means over the clients that count, as `run` gives them.

    Parameters
    ----------
    data : Federation
    answers : dict of str to ndarray, shapes (n_i, C)
        Class probabilities of each client's test rows.

    Returns
    -------
    dict of str to float
    """
    rows = []
    for client in data:
        y, p = client.y_test.numpy(), answers[client.name]
        held = np.bincount(client.y_train.numpy(), minlength=data.n_classes)
        fair = p * np.divide(client.n_train, held, out=np.zeros(len(held)), where=held > 0)
        plain, own = p.argmax(1), fair.argmax(1)
        right = [balanced_accuracy(y, said) for said in (plain, own)]
        rows.append([*right, auc(y, p), float((plain == y).mean()), log_loss(y, p)])
    least = np.array(rarest(data))
    counts = (least >= FEW) | (least.max() < FEW)
    return dict(zip(SCORES, np.array(rows)[counts].mean(0).round(6).tolist(), strict=True))


def keep(folder: Path | None = None, some: Sequence[Trial] | None = None) -> Path:
    """Make what the file lacks, and write it as it comes; the file's path.

    Parameters
    ----------
    folder : Path, optional
        By default ``data``.
    some : sequence of Trial, optional
        By default all `trials`.
    """
    path = (folder or data_path()) / FILE
    kept = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=[*AT, *SCORES])
    have = set(kept[AT[:5]].itertuples(index=False, name=None))
    for name, size in product(NAMES, SIZES):
        for trial in trials() if some is None else some:
            if size in trial.sizes and (trial.tried, name, size, trial.method, trial.what) not in have:
                new = pd.DataFrame(attempt(trial, name, size))
                kept = pd.concat([kept, new]) if len(kept) else new
                kept.to_csv(path, index=False)
    return path


def tried() -> pd.DataFrame:
    """The file: columns ``tried``, ``federation``, ``size``, ``method``, ``what``, ``seed``, and the scores."""
    return pd.read_csv(data_path(FILE))


if __name__ == "__main__":
    keep()
