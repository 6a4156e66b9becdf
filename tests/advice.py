"""Made federations for which it is known whether learning together pays, and what `hetfl compare` says of them.

Fifty have nothing to gain, ten of each of five kinds; thirty gain at least five points of AUC at 30 to 60 rows a site.
What is known is measured, too: `truth` trains every way on all rows of the sites and tests it on fresh ones.

The seeds below were fixed before the rule that gives the advice was written. `TUNING` ones may be looked at while it is
changed, `FRESH` ones only to say how good it is:

    python tests/advice.py fresh data/advice.csv
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core import Preparation

TUNING = range(10)
FRESH = range(1000, 1010)
GAINING_TUNING = range(30)
GAINING_FRESH = range(1000, 1030)

Sites = dict[str, pd.DataFrame]
COLUMNS = list("abcdefghijklmnop")


def _coin_of(rng: np.random.Generator, logit: np.ndarray) -> np.ndarray:
    return (rng.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(int)


def _tables(
    rng: np.random.Generator, rows: list[int], columns: int, outcome: Callable[[int, np.ndarray], Any]
) -> Sites:
    """Sites A, B, …: standard normal measurements, and what `outcome` makes of a site's number and its measurements."""
    made = {}
    for place, n in enumerate(rows):
        x = rng.normal(size=(n, columns)).round(2)
        made[chr(ord("A") + place)] = pd.DataFrame(x, columns=COLUMNS[:columns]).assign(ill=outcome(place, x))
    return made


def coin(seed: int, fresh: int = 0) -> Sites:
    """The outcome is a coin's: nobody can learn anything."""
    rng = np.random.default_rng([1, seed])
    rows = [int(n) + fresh for n in rng.integers(100, 300, rng.integers(2, 5))]
    return _tables(rng, rows, 6, lambda place, x: rng.integers(0, 2, len(x)))


def disagree(seed: int, fresh: int = 0) -> Sites:
    """The same columns mean another thing at each site: coefficients are drawn anew."""
    rng = np.random.default_rng([2, seed])
    rows = [int(n) + fresh for n in rng.integers(150, 400, rng.integers(2, 5))]
    weights = rng.normal(size=(len(rows), 6))
    return _tables(rng, rows, 6, lambda place, x: _coin_of(rng, x @ weights[place]))


def interaction(seed: int, fresh: int = 0) -> Sites:
    """Two measurements count by the sign of their product, which trees at each site find and a regression does not."""
    rng = np.random.default_rng([3, seed])
    rows = [int(n) + fresh for n in rng.integers(500, 700, 2)]
    return _tables(rng, rows, 4, lambda place, x: (x[:, 0] * x[:, 1] > 0) ^ (rng.random(len(x)) < 0.05))


def ends(seed: int, fresh: int = 0) -> Sites:
    """The risk is high at both ends of two measurements, which trees and a small network at each site find."""
    rng = np.random.default_rng([4, seed])
    rows = [int(n) + fresh for n in rng.integers(400, 600, rng.integers(2, 4))]
    return _tables(rng, rows, 3, lambda place, x: _coin_of(rng, 2 * ((x[:, :2] ** 2).sum(1) - 1.4)))


def plenty(seed: int, fresh: int = 0) -> Sites:
    """A regression with the same coefficients everywhere, of which each site has rows enough for its own."""
    rng = np.random.default_rng([5, seed])
    rows = [int(n) + fresh for n in rng.integers(400, 700, rng.integers(2, 5))]
    weights = rng.normal(size=4)
    return _tables(rng, rows, 4, lambda place, x: _coin_of(rng, x @ weights))


NOTHING = (coin, disagree, interaction, ends, plenty)


def gaining(seed: int, fresh: int = 0) -> Sites:
    """Many sites of 30 to 60 rows, whose sixteen columns mean the same; every other site lacks two of them."""
    rng = np.random.default_rng([6, seed])
    rows = [int(n) + fresh for n in rng.integers(30, 61, rng.integers(12, 17))]
    weights = rng.normal(size=16)
    weights *= 3 / np.linalg.norm(weights)
    made = _tables(rng, rows, 16, lambda place, x: _coin_of(rng, x @ weights))
    return {
        who: table.drop(columns=COLUMNS[14:]) if place % 2 else table for place, (who, table) in enumerate(made.items())
    }


OPTIONS: dict[str, Any] = {"client": None, "target": "ill", "group": None, "time": None, "ignore": []}
OPTIONS |= {"sep": ",", "decimal": ".", "encoding": "UTF-8", "prepare": Preparation()}


def tables_of(sites: Sites, folder: Path, **options: Any) -> Any:
    """The sites as files, as `hetfl compare` reads them."""
    from hetfl_core.reporting import trials

    for who, table in sites.items():
        table.to_csv(folder / f"{who}.csv", index=False)
    return trials.Tables(tuple(str(folder / f"{who}.csv") for who in sites), OPTIONS | options)


def advised(sites: Sites, **options: Any) -> Any:
    """What `hetfl compare` says of the sites, with its defaults."""
    from hetfl_core.reporting import judging, trials

    with tempfile.TemporaryDirectory() as folder:
        found = trials.run_all(tables_of(sites, Path(folder)), **{"n_jobs": 1, "progress": False, **options})
    return judging.judge(found)


def truth(make: Callable[..., Sites], seed: int, fresh: int = 2000) -> float:
    """Points of AUC by which the best way together is above the best alone: trained on all rows, tested on fresh ones.

    The best are chosen by the very figures that are compared, which favours neither side.
    """
    from hetfl_core.baselines import run
    from hetfl_core.learners import simulate
    from hetfl_core.methods import Method
    from hetfl_core.reporting.ways import ways_of

    whole, first = make(seed, fresh), make(seed)
    told = {
        who: t.assign(part=np.where(np.arange(len(t)) < len(first[who]), "train", "test")) for who, t in whole.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        federation = tables_of(told, Path(folder), split="part", group=None, time=None).federation(0, 0.3)
    scores: dict[bool, list[float]] = {True: [], False: []}
    for way in ways_of(None, federation)[0]:
        seen, method, more = way.made_for(federation)
        if isinstance(method, Method):
            done = simulate(seen, method, rounds=10, evaluate_every=10, metric=["auc"], progress=False, **more)
        else:
            done = run(seen, method, metric=["auc"])
        scores[way.alone].append(100 * done.final["auc"])
    return max(scores[False]) - max(scores[True])


def table(which: str, path: Path, kinds: tuple[str, ...] = ()) -> pd.DataFrame:
    """A row for each federation: its kind, its seed, the gain that is true, the one that was measured, the verdict.

    Rows that the file has are kept; each new one is written as it comes.
    """
    seeds, gaining_seeds = (FRESH, GAINING_FRESH) if which == "fresh" else (TUNING, GAINING_TUNING)
    cases = [(make, seed) for make in NOTHING for seed in seeds] + [(gaining, seed) for seed in gaining_seeds]
    made = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["kind", "seed"])
    known = set(zip(made["kind"], made["seed"], strict=True))
    for make, seed in cases:
        if (make.__name__, seed) in known or (kinds and make.__name__ not in kinds):
            continue
        with warnings.catch_warnings(action="ignore"):
            judged, true = advised(make(seed)), truth(make, seed)
        row = {"kind": make.__name__, "seed": seed, "truth": true, "gain": judged.gain.mean, "verdict": judged.verdict}
        made = pd.concat([made, pd.DataFrame([row])], ignore_index=True)
        made.to_csv(path, index=False, float_format="%.3f")
    return made


if __name__ == "__main__":
    print(table(sys.argv[1], Path(sys.argv[2]), tuple(sys.argv[3:])).groupby("kind").verdict.value_counts())
