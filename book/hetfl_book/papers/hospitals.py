"""Four hospitals with different columns: is it worth to learn together, and with which method?

No table of a paper. The protocol stood before any of its runs: the same splits, rounds, steps and network for all
networks, twelve settings for each method, chosen by the log loss on validation rows, which are cut from training rows,
on seeds that the comparison does not have. One setting a method, for all hospitals and splits.

1. ``heart/tuning``: each method with each setting of `GRID`, on `SEEDS_OF_THE_CHOICE`.
2. `CHOSEN`, the setting of the smallest log loss, mean over hospitals and seeds; a test compares it with the records.
3. ``heart/compared``: what was chosen, on ten other splits, measured on the test rows; ``heart/compared-own-step``: the
   methods with a shared model once more, with a last step of each hospital's own.

A split of ``heart/compared`` has test rows that were training rows of a split of the choice, as both are splits of the
same patients; within a split, no test row took part in a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from hetfl_book.papers.experiment import Experiment, MadeLate, by_seed, tried
from hetfl_core.baselines import Alone
from hetfl_core.comparing import held_out
from hetfl_core.datasets import heart
from hetfl_core.engine.measures import Named
from hetfl_core.estimators import InOnePlace, PerSite
from hetfl_core.federation import Federation
from hetfl_core.learners import simulate
from hetfl_core.methods import FLIC, FedAvg, FedHeNN, FedProto, HyFEM, LaserVFL, LateFusion, Local, Method
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.records import RunRecord
from hetfl_core.reporting.judging import resampled
from hetfl_core.views import view_of

ROUNDS = 30
SEEDS = tuple(range(10))
SEEDS_OF_THE_CHOICE = (100, 101)
TEST_SIZE = 0.4
VALIDATION = 0.3
"""Share of the training rows that are validation rows of the choice."""

MEASURES: tuple[Named, ...] = ("auc", "log_loss")
"""Beside accuracy and balanced accuracy, which every run has."""

COMMON: dict[str, Any] = {"batch_size": 32, "local_steps": 8}
"""Of all networks, with Adam: 8 steps a round."""

BLOCKS = ("common", "chol+fbs", "ca", "slope+thal")
"""Columns that the same hospitals have."""

FLAT = Model(MLP((16,), 8, last="relu"))
LINEAR = Model(MLP((16,), 8))
"""FLIC's embedding has no activation before the head."""
JOINED = Model(Blocks.alike(BLOCKS, MLP((16,), 8, last="relu"), 32))

RATES = (0.0003, 0.001, 0.004, 0.016)
DECAYS = tuple({"weight_decay": decay} for decay in (0.0, 0.001, 0.01))


def pulls(*names: str, weights: tuple[float, ...]) -> tuple[dict[str, float], ...]:
    """Settings in which some weights are the same."""
    return tuple(dict.fromkeys(names, weight) for weight in weights)


FAMILIES: dict[str, tuple[Method, str, tuple[dict[str, float], ...]]] = {
    "network alone": (Local(FLAT, **COMMON), "own", DECAYS),
    "FedAvg, common columns": (FedAvg(FLAT, **COMMON), "common", DECAYS),
    "FedAvg, zeros": (FedAvg(FLAT, **COMMON), "zeros", DECAYS),
    "late fusion": (LateFusion(JOINED, **COMMON), "blocks", DECAYS),
    "LASER-VFL": (LaserVFL(JOINED, **COMMON), "blocks", DECAYS),
    "HyFEM": (
        HyFEM(JOINED, **COMMON),
        "blocks",
        pulls("extractor_weight", "classifier_weight", weights=(0.0, 0.05, 0.5)),
    ),
    "FLIC": (
        FLIC(LINEAR, pretrain_epochs=20, **COMMON),
        "own",
        pulls("alignment_weight", "anchor_weight", weights=(0.001, 0.01, 0.1)),
    ),
    "FedHeNN": (FedHeNN(FLAT, **COMMON), "own", pulls("term_weight", weights=(0.01, 0.1, 1.0))),
    "FedProto": (FedProto(FLAT, **COMMON), "own", pulls("term_weight", weights=(0.1, 1.0, 10.0))),
}
"""By the names of the table: each network method, its view, and what it is tried with beside its learning rate.

FLIC is pre-trained, in steps that the others do not have.
"""

INVERSE_PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
DEPTHS = (1, 2, 3)
SHRINKING = (0.01, 0.03, 0.1, 0.3)


def _logistic(place: Callable[[Any], Alone], C: float) -> Alone:
    from sklearn.linear_model import LogisticRegression

    return place(LogisticRegression(C=C, max_iter=5000))


def _boosting(depth: int, rate: float) -> Alone:
    from sklearn.ensemble import GradientBoostingClassifier

    return PerSite(GradientBoostingClassifier(n_estimators=50, max_depth=depth, learning_rate=rate, subsample=0.8))


def _of_scikit_learn() -> dict[str, tuple[str, Mapping[str, Alone]]]:
    """By the names of the table: the view, and what is tried."""
    trees = {f"depth {d}, rate {r:g}": partial(_boosting, d, r) for d in DEPTHS for r in SHRINKING}
    alone = {f"C {C:g}": partial(_logistic, PerSite, C) for C in INVERSE_PENALTIES}
    pooled = {f"C {C:g}": partial(_logistic, InOnePlace, C) for C in INVERSE_PENALTIES}
    found: dict[str, tuple[str, Mapping[str, Callable[[], Alone]]]] = {
        "logistic regression alone": ("own", alone),
        "logistic regression alone, common columns": ("common", alone),
        "boosting alone": ("own", trees),
        "logistic regression in one place, common columns": ("common", pooled),
        "logistic regression in one place, zeros": ("zeros", pooled),
    }
    return {
        name: (view, MadeLate({f"{name}, {words}": one for words, one in settings.items()}))
        for name, (view, settings) in found.items()
    }


GRID: dict[str, Mapping[str, Any]] = {
    name: tried(name, method, RATES, own) for name, (method, _, own) in FAMILIES.items()
} | {name: settings for name, (_, settings) in _of_scikit_learn().items()}
"""By the names of the table, what each is tried with: twelve settings."""

VIEW_OF: dict[str, str] = {name: view for name, (_, view, _) in FAMILIES.items()} | {
    name: view for name, (view, _) in _of_scikit_learn().items()
}
"""How each looks at the data, by the names of the table."""

SHARED = ("FedAvg, common columns", "FedAvg, zeros", "late fusion", "LASER-VFL", "HyFEM")
"""Those that hand out one model, or one for each block, which a last step of a hospital's own may put right."""

CHOSEN: dict[str, str] = {
    "network alone": "network alone, lr 0.001, weight_decay 0.01",
    "FedAvg, common columns": "FedAvg, common columns, lr 0.004, weight_decay 0.01",
    "FedAvg, zeros": "FedAvg, zeros, lr 0.004, weight_decay 0",
    "late fusion": "late fusion, lr 0.016, weight_decay 0",
    "LASER-VFL": "LASER-VFL, lr 0.004, weight_decay 0.001",
    "HyFEM": "HyFEM, lr 0.001, mu_extractors 0, mu_classifier 0",
    "FLIC": "FLIC, lr 0.001, lambda1 0.01, lambda2 0.01",
    "FedHeNN": "FedHeNN, lr 0.001, term_weight 0.1",
    "FedProto": "FedProto, lr 0.001, term_weight 0.1",
    "logistic regression alone": "logistic regression alone, C 0.3",
    "logistic regression alone, common columns": "logistic regression alone, common columns, C 0.3",
    "boosting alone": "boosting alone, depth 1, rate 0.1",
    "logistic regression in one place, common columns": "logistic regression in one place, common columns, C 0.3",
    "logistic regression in one place, zeros": "logistic regression in one place, zeros, C 1",
}
"""Of the records of ``heart/tuning`` those of the smallest mean log loss on validation rows; a test compares."""


def validated(seed: int) -> Federation:
    """The hospitals with validation rows for test rows."""
    return held_out(heart.hospitals(test_size=TEST_SIZE, seed=seed), VALIDATION, seed)


def _experiment(
    title: str, federation: Callable[[int], Federation], named: Mapping[str, str], methods: Mapping[str, Any]
) -> Experiment:
    """An experiment of some settings; `named` says of which method each is."""
    seen = {setting: partial(_viewed, view=VIEW_OF[name]) for setting, name in named.items()}
    return Experiment(
        f"Four hospitals: {title}",
        federation,
        methods,
        rounds=ROUNDS,
        participation=1.0,
        evaluate_every=ROUNDS,
        metric=MEASURES,
        dataset="heart.hospitals",
        priority=30,
        seeds=SEEDS,
        prepare=seen,
    )


def _viewed(federation: Federation, seed: int, view: str) -> Federation:
    return view_of(federation, view)


def _made(name: str, setting: str) -> Any:
    return GRID[name][setting]


def _experiments() -> dict[str, Experiment]:
    of = {setting: name for name, settings in GRID.items() for setting in settings}
    everything = MadeLate({setting: partial(_made, name, setting) for setting, name in of.items()})
    tuning = _experiment("settings on validation rows", validated, of, everything)
    found = {"heart/tuning": replace(tuning, seeds=SEEDS_OF_THE_CHOICE)}
    best_of = {name: partial(_made, name, setting) for name, setting in CHOSEN.items()}
    data = by_seed(heart.hospitals, test_size=TEST_SIZE)
    found["heart/compared"] = _experiment("ten splits", data, {name: name for name in CHOSEN}, MadeLate(best_of))
    some = MadeLate({name: best_of[name] for name in SHARED})
    own = _experiment("ten splits, an own last step", data, {name: name for name in SHARED}, some)
    found["heart/compared-own-step"] = replace(own, perform=partial(simulate, last_step="own"))
    return found


EXPERIMENTS: dict[str, Experiment] = _experiments()


# --- what came out ----------------------------------------------------------------------------------------------------

JUDGED = ("Cleveland", "Budapest", "Long Beach")
"""Hospitals with ten test patients of each class at least, for which a mean says something; Zurich has 3."""


def scores(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Mean over the hospitals of `JUDGED` of each measure, by method and split.

    Parameters
    ----------
    records : iterable of RunRecord
        Of ``heart/compared`` or its like.

    Returns
    -------
    DataFrame
        Indexed by ``method`` and ``seed``; ``accuracy``, ``balanced_accuracy`` and ``auc`` in per cent, ``log_loss`` in
        nats.
    """
    rows = {}
    for record in records:
        own = pd.DataFrame(record.per_client).set_index("client").loc[[*JUDGED]]
        own[["accuracy", "balanced_accuracy", "auc"]] *= 100
        rows[record.method, record.seed] = own[["accuracy", "balanced_accuracy", *MEASURES]].mean()
    return pd.DataFrame(rows).T.rename_axis(["method", "seed"]).sort_index()


def gains(records: Iterable[RunRecord], base: str = "logistic regression alone") -> pd.DataFrame:
    """How much better each method is than one of them, paired by split, with intervals that know of the overlap.

    The same patients are split again and again, so that splits are no independent observations: `resampled` knows.

    Parameters
    ----------
    records : iterable of RunRecord
    base : str
        A method.

    Returns
    -------
    DataFrame
        Indexed by ``method`` and ``measure``: the mean difference from `base`, and ``half``, half the width of its 95 %
        interval; of the log loss, less is better.
    """
    found = scores(records)
    gaps = found.sub(found.xs(base), level="seed").drop(base)
    each = gaps.stack().groupby(level=[0, 2], sort=False).agg(list)
    sure = {cell: resampled(some, TEST_SIZE / (1 - TEST_SIZE)) for cell, some in each.items()}
    table = pd.DataFrame({cell: {"mean": gain.mean, "half": gain.high - gain.mean} for cell, gain in sure.items()}).T
    return table.rename_axis(["method", "measure"])
