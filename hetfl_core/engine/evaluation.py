"""How good the clients' models are, and what it cost in bytes.

`METRICS` is the one place that says what is predicted and measured for classifications and for regressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hetfl_core.federation import Kind

Samples = Sequence[np.ndarray]
"""One array of n_i predictions, labels or targets per client. A prediction that is not finite is none (`decided`)."""

Measure = Literal["own", "server", "held", "own_held"]
"""What of the main figure a history may follow beside the usual columns."""


def accuracy(y: np.ndarray, predicted: np.ndarray) -> float:
    """Share of right answers; both of shape (n,), as in all measures of one client's samples."""
    return float(np.mean(predicted == y))


def balanced_accuracy(y: np.ndarray, predicted: np.ndarray) -> float:
    """Mean recall over the classes that the samples have."""
    return float(np.mean([np.mean(predicted[y == c] == c) for c in np.unique(y)]))


def mse(y: np.ndarray, predicted: np.ndarray) -> float:
    """Mean squared error, in squared units of the target."""
    return float(np.mean(np.subtract(predicted, y, dtype=np.float64) ** 2))


def r2(y: np.ndarray, predicted: np.ndarray) -> float:
    """Coefficient of determination, 1 − mean squared error / variance of the targets.

    1 is perfect, 0 no better than the client's mean target. It is NaN where the targets do not vary.
    """
    spread = float(np.var(y, dtype=np.float64))
    return 1 - mse(y, predicted) / spread if spread > 0 else math.nan


def diverged(predicted: Samples) -> np.ndarray:
    """Which clients have a sample without a prediction (NaN or infinity): their training diverged; shape (n_clients,).

    No figure is formed of their other samples: what is not a number is no class, and no error either.
    """
    return np.array([not np.isfinite(p).all() for p in predicted], dtype=bool)


def decided(scores: Tensor) -> Tensor:
    """The class of the highest score, shape (..., n, C) → (..., n); NaN where a sample's scores are not all finite."""
    found, sound = scores.argmax(-1), scores.isfinite().all(-1)
    return found if bool(sound.all()) else torch.where(sound, found.to(torch.float32), torch.nan)


@dataclass(frozen=True)
class Metrics:
    """What is measured where a federation has one kind of task.

    Parameters
    ----------
    main : str
        Name of the metric that histories follow.
    per_client : dict of str to callable
        Metrics of one client, of labels and predictions; the main one first.
    worst : dict of str to callable
        Metrics of which `summarise` gives, besides the mean over clients, the weighted mean and the worst client's;
        and what picks the worst.
    decide : callable
        From outputs, shape (..., n, C), to predictions, shape (..., n); not finite where the outputs are not.
    text : callable
        Puts the main metric into words.
    """

    main: str
    per_client: Mapping[str, Callable[[np.ndarray, np.ndarray], float]]
    worst: Mapping[str, Callable[[np.ndarray], float]]
    decide: Callable[[Tensor], Tensor]
    text: Callable[[float], str]


METRICS: dict[Kind, Metrics] = {
    "classification": Metrics(
        "accuracy",
        {"accuracy": accuracy, "balanced_accuracy": balanced_accuracy},
        {"accuracy": np.min},
        decided,
        lambda value: f"accuracy {100 * value:.1f} %",
    ),
    "regression": Metrics(
        "mse",
        {"mse": mse, "r2": r2},
        {"mse": np.max, "r2": np.min},
        lambda outputs: outputs[..., 0],
        lambda value: f"mean squared error {value:.4g}",
    ),
}


def per_client(predicted: Samples, truth: Samples, task: Kind = "classification") -> dict[str, np.ndarray]:
    """Each client's metrics; NaN without samples, and where it `diverged`.

    Parameters
    ----------
    predicted, truth : sequences of arrays, shapes (n_i,)
    task : {"classification", "regression"}

    Returns
    -------
    dict of str to ndarray, shapes (n_clients,)
    """
    known = [len(y) > 0 and not lost for y, lost in zip(truth, diverged(predicted), strict=True)]
    each = list(zip(truth, predicted, known, strict=True))
    measures = METRICS[task].per_client.items()
    return {name: np.array([measure(y, p) if k else np.nan for y, p, k in each]) for name, measure in measures}


def summarise(predicted: Samples, labels: Samples, task: Kind = "classification") -> dict[str, float]:
    """The metrics that runs report.

    Clients without samples are left out; with one that `diverged` all are NaN.

    Parameters
    ----------
    predicted, labels : sequences of arrays, shapes (n_i,)
        Classes, or numbers for a regression, of each client.
    task : {"classification", "regression"}

    Returns
    -------
    dict
        For a classification, as fractions in [0, 1]: ``accuracy``: mean over clients, as FLIC's text reports it;
        ``accuracy_weighted``: weighted by the number of samples, as its published code does; ``accuracy_worst``: the
        worst client; ``balanced_accuracy``: mean over clients of the mean recall.
        For a regression: ``mse`` and ``r2``, their means over clients, and both ``…_weighted`` and ``…_worst`` too;
        a client whose targets do not vary has no ``r2`` and is left out of it.
    """
    sizes = np.array([len(y) for y in labels])
    if not sizes.any():
        return {}
    return averages(per_client(predicted, labels, task), sizes, diverged(predicted), task)


def averages(each: Mapping[str, np.ndarray], sizes: np.ndarray, lost: np.ndarray, task: Kind) -> dict[str, float]:
    """What `summarise` returns, given each client's metrics, number of samples, and whether its training diverged.

    All arrays have the shape (n_clients,). A metric that no client has is NaN.
    """
    summary: dict[str, float] = {}
    for name, values in each.items():
        some = (sizes > 0) & (lost | ~np.isnan(values))
        found, weights = values[some], sizes[some]
        summary[name] = float(found.mean()) if len(found) else float("nan")
        if len(found) and name in METRICS[task].worst:
            summary[f"{name}_weighted"] = float(np.average(found, weights=weights))
            summary[f"{name}_worst"] = float(METRICS[task].worst[name](found))
    return summary


def n_bytes(messages: Iterable[Mapping[str, Tensor]]) -> int:
    """Bytes of messages at their true shapes; a broadcast counts once per receiver."""
    return sum(t.numel() * t.element_size() for message in messages for t in message.values())
