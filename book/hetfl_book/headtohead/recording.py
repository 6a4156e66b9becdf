"""What the records of head to head hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hetfl_core.engine.run import Run
from hetfl_core.federation import Federation
from hetfl_core.records import RunRecord, record

KEPT = ("settings", "simulated", "stand_in", "size")
"""What a record keeps of what a federation says of itself."""


def described(data: Federation) -> dict[str, Any]:
    """What a record says of its data."""
    found = record.described(data)
    return {**found, "info": {key: data.info[key] for key in KEPT if key in data.info}}


def rarest(data: Federation) -> list[int]:
    """Of each client the test rows of the rarest of the classes that it has.

    Parameters
    ----------
    data : Federation
    """
    each = []
    for client in data:
        tested = np.bincount(client.y_test.numpy(), minlength=data.n_classes)
        held = np.unique(np.concatenate([client.y_train.numpy(), client.y_test.numpy()]))
        each.append(int(tested[held].min()))
    return each


def record_of(experiment: str, label: str, run: Run, about: Mapping[str, Any]) -> RunRecord:
    """The record of a run, with the last row of its history alone."""
    return RunRecord.of(
        run,
        experiment,
        "own",
        method=label,
        settings={**run.settings, **about},
        federation=described(run.federation),
        history=run.history.tail(1),
        per_client=run.per_client.assign(rarest=rarest(run.federation)),
    )


def joined(experiment: str, label: str, runs: Sequence[Run], whole: Federation, about: Mapping[str, Any]) -> RunRecord:
    """One record of the runs of all clients of a seed, each by itself: nothing was sent."""
    each = pd.concat([run.per_client for run in runs], ignore_index=True).assign(rarest=rarest(whole))
    lost = sum(int(run.final.get("diverged", 0)) for run in runs)
    measured = [name for name in each.select_dtypes("number") if name not in ("n_train", "n_test", "rarest")]
    means = {name: float(np.mean(each[name])) if lost else float(np.nanmean(each[name])) for name in measured}
    seconds = math.fsum(run.final["seconds"] for run in runs)
    metrics = {**means, "bytes_up": 0, "bytes_down": 0, "seconds": seconds, **({"diverged": lost} if lost else {})}
    first = record_of(experiment, label, runs[0], about)
    settings = {key: value for key, value in first.settings.items() if key != "together"}
    return replace(
        first,
        settings=settings,
        federation=described(whole),
        metrics=metrics,
        history={},
        per_client=each,
        seconds=seconds,
    )
