r"""FedCR: random features whose distribution, class by class, is kept near a product of all clients' distributions.

Symbols: :math:`q_i(z \mid x) = N(\mu(x), \Sigma(x))`, Σ diagonal, are a client's features, of dimension V;
:math:`(\mu_i^c, \Sigma_i^c)` the product of those of its samples of class c; :math:`(\mu^c, \Sigma^c)` the joint ones,
the product over the participants of a round and of a prior N(0, I). Products are computed by *precisions*
:math:`\Lambda = \Sigma^{-1}`: those of a product are the sum of those of its factors, and its mean is the mean of
theirs, weighted by them.

References
----------
.. [1] H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong. FedCR: personalized federated learning based on across-client common
   representation with conditional mutual information regularization. ICML 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from hetfl_core.methods.base import Batch, Loss, Role, Specs, Stage, Uploads, Weights, pick, row_mean
from hetfl_core.methods.stochastic import Stochastic, gaussian_gap
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import BODY, HEAD, has_prefix
from hetfl_core.settings import Count, Natural, NotNegative, Share

JOINT = "joint"


@dataclass(frozen=True)
class FedCR(Stochastic):
    r"""A shared body, local heads, and features near the clients' joint ones ([1]_, Algorithm 2).

    A participant minimises, c the class of x,

    .. math:: \ell + \beta\,\mathrm{KL}(N(\mu^c, \Sigma^c)\,\|\,N(\mu(x), \Sigma(x)));

    it uploads the body and, for each of its classes, the product of its samples' features as they passed last in local
    training. The server averages the bodies and multiplies the features.

    Parameters
    ----------
    term_weight : float
        β, the weight of the term. At 0 and without draws (``scale="none"``) this is `FedPer` with one more layer.
    aggregated : {"body", "gaussian", "features"}
        What the server averages beside the joint features: the body; the Gaussian layer alone, behind embeddings that
        stay on their clients, as FLIC's do; or nothing (Section 4.4). In the last two inputs may differ, each client's
        embedding starts by itself (in the published code all start alike), and all that is local is trained at the
        end.
    joint : {"product", "mixture"}
        The joint features: the product of the clients' (Eq. 9), or the Gaussian with the moments of their equal
        mixture, which is no sharper than they are.
    prior : {"once", "each"}
        How often N(0, I) enters the product: once (Algorithm 2), or with each participant (Eq. 9 as it is printed).
    target : {"both", "mean", "variance"}
        What of the joint features clients are drawn to; in the place of the rest stands N(0, I).
    features : {"last", "fresh"}
        Whose features a client multiplies: its samples' as they passed last in local training (Section 4.3), or of one
        more pass with the trained body.
    joint_step : float
        Part γ in [0, 1] of the new joint features that the server takes, (1 − γ) old + γ new, of means and variances
        (the published code: of deviations). 0 leaves N(0, I) for ever, that code's default; its commands say 1.
    samples, test_samples, averaged, likelihood, scale
        As for `Stochastic`.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    weighting: Literal["samples", "uniform"] = "uniform"
    samples: Count = 18
    test_samples: Natural = 18
    term_weight: NotNegative = 5e-4
    aggregated: Literal["body", "gaussian", "features"] = "body"
    joint: Literal["product", "mixture"] = "product"
    prior: Literal["once", "each"] = "once"
    target: Literal["both", "mean", "variance"] = "both"
    features: Literal["last", "fresh"] = "last"
    joint_step: Share = 1.0

    names = {
        "FedCR": {},
        "FedCR, own embeddings": {"aggregated": "gaussian"},
        "FedCR, own bodies": {"aggregated": "features"},
    }

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The shared parts: the body, Gaussian layer included; that layer alone; or nothing."""
        return {"body": BODY, "gaussian": ("gaussian",), "features": ()}[self.aggregated]

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors (line 1): μ^c = 0, Σ^c = 1; and one fresh copy of the body."""
        mean = torch.zeros(specs[0].n_classes, self.model.latent, dtype=torch.float32)
        return {**super().init_server(specs, rng), f"{JOINT}.mean": mean, f"{JOINT}.variance": torch.ones_like(mean)}

    def start(self, client_state: Params, received: Params) -> Params:
        """The working copy (line 6): the received body and the client's head; the joint features are no parameters."""
        return {**client_state, **{name: p for name, p in received.items() if not has_prefix(name, JOINT)}}

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all parts when selected (lines 7-14); at the end on the head, or on whatever is local."""
        own = HEAD if self.aggregated == "body" else self.local
        return self.usual_stages(self.model.parts, own, round, role)

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective of line 11, Eq. (7); each sample's natural parameters Λ μ and Λ are remembered (line 13)."""
        mean, deviation = self.model.posterior(params, batch.x, noise)
        variance = deviation.square()
        logits = self.logits(params, self.drawn(mean, deviation, noise))
        task = self.likelihood_loss(logits, batch)
        joint_mean, joint_variance = received[f"{JOINT}.mean"][batch.y], received[f"{JOINT}.variance"][batch.y]
        if self.target == "mean":
            joint_variance = torch.ones_like(joint_variance)
        if self.target == "variance":
            joint_mean = torch.zeros_like(joint_mean)
        gap = row_mean(gaussian_gap(joint_mean, joint_variance, mean, variance), batch.weight)
        remember = _natural(mean.detach(), variance.detach())
        total = task + self.term_weight * gap if self.term_weight else task
        return Loss(total, {"ce": task.detach(), "kl": gap.detach()}, remember)

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client (lines 15-20): the body, and Λ_i^c μ_i^c and Λ_i^c by class.

        They are zero for a class that the client lacks.
        """
        member = torch.eye(len(received[f"{JOINT}.mean"]), dtype=params["beta.weight"].dtype, device=data.y.device)
        member = member[data.y.long()] * data.weight.unsqueeze(-1)
        if self.features == "fresh":
            mean, deviation = self.model.posterior(params, data.x)
            memory = _natural(mean, deviation.square())
        features = {f"{JOINT}.{name}": member.mT @ memory[name] for name in ("natural", "precision")}
        return {**pick(params, self.shared), **features}

    beyond_sums = "precisions are added, not averaged by weight, and those of clients that diverged are left out"

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors (lines 22-30): the mean of the bodies, and the joint features.

        Joint features of a class that nobody has stay as they were.
        """
        bodies = [pick(upload, self.shared) for upload in uploads]
        new = super().aggregate(server, bodies, weights, specs, rng)
        natural = torch.stack([upload[f"{JOINT}.natural"] for upload in uploads])
        precision = torch.stack([upload[f"{JOINT}.precision"] for upload in uploads])
        combine = self._product if self.joint == "product" else _mixture
        sound = (natural.isfinite() & precision.isfinite()).all(-1, keepdim=True)  # what diverged is left out
        natural, precision = (torch.where(sound, sent, 0.0).double() for sent in (natural, precision))
        mean, variance = combine(natural, precision)
        seen = (precision > 0).any(0).any(-1, keepdim=True)
        for name, joint in (("mean", mean), ("variance", variance)):
            old = server[f"{JOINT}.{name}"]
            moved = torch.lerp(old.double(), joint, self.joint_step).to(old.dtype)
            new[f"{JOINT}.{name}"] = torch.where(seen, moved, old)
        return new

    def _product(self, natural: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        """Product of Eq. (9): Λ^c = Λ_0 + Σ_i Λ_i^c, μ^c = Σ_i Λ_i^c μ_i^c / Λ^c; two (P, C, V) → two (C, V)."""
        total = precision.sum(0) + (len(precision) if self.prior == "each" else 1)
        return natural.sum(0) / total, total.reciprocal()


def _natural(mean: Tensor, variance: Tensor) -> Params:
    """Natural parameters Λ μ and Λ of Gaussians, by the names under which they are remembered."""
    precision = variance.reciprocal()
    return {"natural": precision * mean, "precision": precision}


def _mixture(natural: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the equal mixture of the clients that have a class; two (P, C, V) → two (C, V)."""
    holds = (precision > 0).to(precision.dtype)
    holders = holds.sum(0).clamp(min=1)
    safe = torch.where(precision > 0, precision, 1)
    means, variances = natural / safe, holds / safe
    mean = means.sum(0) / holders
    return mean, (variances + holds * (means - mean).square()).sum(0) / holders
