r"""Random features: between body and head a Gaussian whose mean and spread are computed from the input.

It is the posterior :math:`q(z \mid x) = N(\mu(x), \mathrm{diag}\,\sigma^2(x))`.
What FedSR and FedCR have in common: how z is drawn in training, and how a prediction is averaged over draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Method, Stage, task_loss
from hetfl_core.networks import Draw, Model, Params, Tensors
from hetfl_core.settings import Count, Natural


@dataclass(frozen=True)
class Stochastic(Method):
    r"""A method whose model has a Gaussian layer.

    Parameters
    ----------
    samples, test_samples : int
        S, draws of z for a sample in training and for a prediction. Without draws at test time (0) the prediction is
        that of the mean feature μ(x).
    averaged : {"probabilities", "logits"}
        What a prediction averages over the draws.
    likelihood : {"mixture", "mean"}
        The loss of a sample: :math:`-\log \frac{1}{S}\sum_s p(y \mid z_s)`, or :math:`-\frac{1}{S}\sum_s \log p(y \mid
        z_s)`, which is never smaller (Jensen) and equal for S = 1.
    scale : {"deviation", "variance", "none"}
        What the standard normal ε is multiplied with: σ, as a draw from the posterior is; σ², as FedCR prints it; or
        nothing, so that z = μ(x) is not random.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    model: Model = field(default_factory=lambda: Model(gaussian=64))
    samples: Count = 1
    test_samples: Natural = 20
    averaged: Literal["probabilities", "logits"] = "probabilities"
    likelihood: Literal["mixture", "mean"] = "mixture"
    scale: Literal["deviation", "variance", "none"] = "deviation"

    needs_classes: ClassVar[bool] = True
    """Features are random given a class."""

    def __post_init__(self) -> None:
        if self.model.gaussian is None:
            raise WrongValue(
                f"{self.name} needs random features: expected a model with a Gaussian layer, such as "
                f"Model(gaussian=64), got {self.model}"
            )

    @classmethod
    def variants(cls) -> list[Method]:
        """No methods of its own: this class is what others are made of."""
        return [] if cls is Stochastic else super().variants()

    def noise(self, spec: Spec, stage: Stage) -> dict[str, Draw]:
        """Random numbers of a step: ε, S draws a sample, and what the network needs."""
        return self.model.draws() | self._draws(self.samples)

    def prediction_noise(self, spec: Spec) -> dict[str, Draw]:
        """Random numbers of a prediction: ε of the draws that it averages over."""
        return self._draws(self.test_samples)

    def _draws(self, samples: int) -> dict[str, Draw]:
        if self.scale == "none" or not samples:
            return {}
        return {"epsilon": Draw((samples, self.model.latent), per="sample")}

    def drawn(self, mean: Tensor, deviation: Tensor, noise: Tensors) -> Tensor:
        """Draw z = μ + σ ε (or σ² ε, or μ alone), shapes (n, V), (n, V) and ε (n, S, V) → (n, S, V)."""
        if "epsilon" not in noise:
            return mean.unsqueeze(1)
        spread = deviation if self.scale == "deviation" else deviation.square()
        return mean.unsqueeze(1) + spread.unsqueeze(1) * noise["epsilon"]

    def logits(self, params: Params, z: Tensor) -> Tensor:
        """Logits of each draw, shape (n, S, V) → (n, S, C)."""
        return self.model.head(params, z.flatten(0, 1)).unflatten(0, z.shape[:2])

    def likelihood_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """The mean over the batch of the loss of a sample (see `likelihood`), shape (n, S, C) → ()."""
        if self.likelihood == "mixture":
            return task_loss(mean_log_probability(logits), batch.y, batch.weight)
        S = logits.shape[1]
        y, weight = (each.unsqueeze(1).expand(-1, S).flatten() for each in (batch.y, batch.weight))
        return task_loss(logits.flatten(0, 1), y, weight)

    def predict(self, params: Params, received: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        r"""The mean logits over the draws, or the logarithm of the mean probabilities; shape (n, \*shape) → (n, C)."""
        logits = self.logits(params, self.drawn(*self.model.posterior(params, x), noise or {}))
        return logits.mean(1) if self.averaged == "logits" else mean_log_probability(logits)


def mean_log_probability(logits: Tensor) -> Tensor:
    """The logarithm of the mean over the draws of the class probabilities, shape (n, S, C) → (n, C)."""
    return torch.logsumexp(logits.log_softmax(-1), 1) - math.log(logits.shape[1])


def gaussian_gap(mean: Tensor, variance: Tensor, other: Tensor, others: Tensor) -> Tensor:
    r"""KL of :math:`N(m, v)` from :math:`N(\mu, \sigma^2)`, both diagonal, row by row.

    FedCR's Eq. (21): ½ Σ_k [(m − μ)²/σ² − ln(v/σ²) + v/σ² − 1], summed over the dimensions.

    Parameters
    ----------
    mean, variance : Tensor, shape (..., V)
        m and v > 0.
    other, others : Tensor, shape (..., V)
        μ and σ² > 0.

    Returns
    -------
    Tensor, shape (...)
        In nats.
    """
    away = (mean - other).square() / others
    return 0.5 * (away + others.log() - variance.log() + variance / others - 1).sum(-1)
