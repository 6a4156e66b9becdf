"""How good the clients' models are, and what it cost in bytes.

`METRICS` is the one place that says what is predicted and measured for classifications and for regressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.federation import Kind

Samples = Sequence[np.ndarray]
"""One array of n_i predictions, labels or targets per client. A prediction that is not finite is none (`decided`)."""

Measure = Literal["own", "server", "held", "own_held"]
"""What of the main figure a history may follow beside the usual columns."""


def accuracy_per_client(predicted: Samples, labels: Samples) -> np.ndarray:
    """Share of right answers on each client; NaN for a client without samples, or with one that has no prediction.

    Parameters
    ----------
    predicted, labels : sequences of int arrays, shapes (n_i,)

    Returns
    -------
    ndarray, shape (n_clients,)
    """
    predicted, labels = _pairs(predicted, labels, "labels")
    return _each_client(lambda p, y: float(np.mean(p == y)), predicted, labels)


def balanced_accuracy_per_client(predicted: Samples, labels: Samples) -> np.ndarray:
    """Mean recall over the classes that the client's samples have; NaN as for `accuracy_per_client`.

    Parameters
    ----------
    predicted, labels : sequences of int arrays, shapes (n_i,)

    Returns
    -------
    ndarray, shape (n_clients,)
    """

    def one(p: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean([np.mean(p[y == c] == c) for c in np.unique(y)]))

    predicted, labels = _pairs(predicted, labels, "labels")
    return _each_client(one, predicted, labels)


def mse_per_client(predicted: Samples, targets: Samples) -> np.ndarray:
    """Mean squared error on each client, in squared units of the target; NaN as for `accuracy_per_client`.

    Parameters
    ----------
    predicted, targets : sequences of float arrays, shapes (n_i,)

    Returns
    -------
    ndarray, shape (n_clients,)
    """
    predicted, targets = _pairs(predicted, targets, "targets")
    return _each_client(lambda p, y: float(np.mean(np.subtract(p, y, dtype=np.float64) ** 2)), predicted, targets)


def r2_per_client(predicted: Samples, targets: Samples) -> np.ndarray:
    """Coefficient of determination, 1 − mean squared error / variance of the client's targets.

    1 is perfect, 0 no better than the client's mean target. It is NaN where the targets do not vary, and as for
    `accuracy_per_client`.

    Parameters
    ----------
    predicted, targets : sequences of float arrays, shapes (n_i,)

    Returns
    -------
    ndarray, shape (n_clients,)
    """
    predicted, targets = _pairs(predicted, targets, "targets")
    spread = np.array([np.var(y, dtype=np.float64) if len(y) else np.nan for y in targets])
    return 1 - mse_per_client(predicted, targets) / np.where(spread > 0, spread, np.nan)


def diverged(predicted: Samples) -> np.ndarray:
    """Which clients have a sample without a prediction (NaN or infinity): their training diverged; shape (n_clients,).

    No figure is formed of their other samples: what is not a number is no class, and no error either.
    """
    return np.array([not np.isfinite(p).all() for p in predicted], dtype=bool)


def _each_client(one: Callable[[np.ndarray, np.ndarray], float], predicted: Samples, truth: Samples) -> np.ndarray:
    """A figure of each client; NaN without samples and where it `diverged`."""
    known = [len(y) > 0 and not lost for y, lost in zip(truth, diverged(predicted), strict=True)]
    return np.array([one(p, y) if k else np.nan for p, y, k in zip(predicted, truth, known, strict=True)])


def decided(scores: Tensor) -> Tensor:
    """The class of the highest score, shape (..., n, C) → (..., n); NaN where a sample's scores are not all finite."""
    found, sound = scores.argmax(-1), scores.isfinite().all(-1)
    return found if bool(sound.all()) else torch.where(sound, found.to(torch.float32), torch.nan)


def _each(name: str, samples: Samples) -> list[np.ndarray]:
    """One array of shape (n_i,) per client, of real numbers."""
    arrays = []
    for i, some in enumerate(checks.sequence(name, samples)):
        array = checks.array(f"{name}[{i}]", some)
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise ValueError(f"{name}[{i}] must be numbers of shape (n,), got shape {array.shape}, dtype {array.dtype}")
        arrays.append(array)
    return arrays


def _pairs(predicted: Samples, truth: Samples, name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Predictions and labels (or targets) of the same clients and samples."""
    first, second = _each("predicted", predicted), _each(name, truth)
    if [len(p) for p in first] != [len(y) for y in second]:
        raise ValueError(
            f"predicted and {name} must have equally many samples on each client, got "
            f"{checks.shown([len(p) for p in first])} and {checks.shown([len(y) for y in second])}"
        )
    return first, second


@dataclass(frozen=True)
class Metrics:
    """What is measured where a federation has one kind of task.

    Parameters
    ----------
    main : str
        Name of the metric that histories follow.
    per_client : dict of str to callable
        Metrics of each client, of predictions and labels; the main one first.
    worst : dict of str to callable
        Metrics of which `summarise` gives, besides the mean over clients, the weighted mean and the worst client's;
        and what picks the worst.
    decide : callable
        From outputs, shape (..., n, C), to predictions, shape (..., n); not finite where the outputs are not.
    text : callable
        Puts the main metric into words.
    """

    main: str
    per_client: Mapping[str, Callable[[Samples, Samples], np.ndarray]]
    worst: Mapping[str, Callable[[np.ndarray], float]]
    decide: Callable[[Tensor], Tensor]
    text: Callable[[float], str]


METRICS: dict[Kind, Metrics] = {
    "classification": Metrics(
        "accuracy",
        {"accuracy": accuracy_per_client, "balanced_accuracy": balanced_accuracy_per_client},
        {"accuracy": np.min},
        decided,
        lambda value: f"accuracy {100 * value:.1f} %",
    ),
    "regression": Metrics(
        "mse",
        {"mse": mse_per_client, "r2": r2_per_client},
        {"mse": np.max, "r2": np.min},
        lambda outputs: outputs[..., 0],
        lambda value: f"mean squared error {value:.4g}",
    ),
}


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
    checks.choice("task", task, tuple(METRICS))
    predicted, labels = _pairs(predicted, labels, "labels")
    sizes = np.array([len(y) for y in labels])
    if not sizes.any():
        return {}
    each = {name: measure(predicted, labels) for name, measure in METRICS[task].per_client.items()}
    return averages(each, sizes, diverged(predicted), task)


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
