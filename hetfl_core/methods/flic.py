r"""FLIC: local embeddings aligned to anchor distributions that are learned together.

Client i embeds its own feature space by φ_i into R^k. For each class c the server keeps an *anchor*
:math:`\mu_c = \mathcal{N}(v_c, \Sigma_c)`, :math:`\Sigma_c = L_c L_c^\top`, and a client minimises Eq. (3) of [1]_,

.. math::
    F_i = f_i(\theta_i, \phi_i)
        + \lambda_1 \sum_{c \in \mathcal{Y}_i} W_2^2(\mu_c, \hat\nu^{(c)}_{\phi_i})
        + \lambda_2 \sum_{c \in \mathcal{Y}_i} \frac1J \sum_{j=1}^J \ell(c, g_{\theta_i}[Z_c^{(j)}]),
        \qquad Z_c^{(j)} \sim \mu_c,

where :math:`\hat\nu^{(c)}_{\phi_i}` is the Gaussian with the mean and covariance of the embedded samples of class c.
The weight ω_i multiplies all three terms and is left to the server's mean.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl_core.distances import class_wasserstein, class_wasserstein_sampled
from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Loss, Method, Role, Stage, cross_entropy, has_prefix
from hetfl_core.networks import MLP, Draw, Model, Params


@dataclass(frozen=True)
class FLIC(Method):
    """FLIC with FedRep as the personalised scheme ([1]_, Algorithms 1 and S2).

    With ``model=Model(alpha=...)`` it is *FLIC-HL*: φ_i and β_i local, α shared. With ``Model(alpha=None)`` it is
    *FLIC-Class*: φ_i and β_i local, only the anchors are shared.

    The defaults are what the paper's text says. Fields below the line say where its published code differs;
    `published` sets them all.

    Attributes
    ----------
    lambda1, lambda2 : float
        Weights of alignment and of anchor classification in Eq. (3); 0.001 in Appendix S3.3.
    pretrain_epochs : int
        Epochs in which φ_i is aligned to the anchors before the first round (Section 4, *Pre-training*); 0 for none.
    pretrain_batch : int
        Batch size of the pre-training: 10 for toys and TextCaps, 100 for digits and BCI.
    anchor_scale : float
        Standard deviation of the initial anchor means: "a very large variance" in the text, 10 in the code.
    anchor_variance : float
        Initial Σ_c = anchor_variance · I; 1 in the text, e in the code.
    covariance : {"fixed", "learned"}
        Whether Σ_c stays (as in the experiments) or its Cholesky factor L_c is learned (Algorithm S2).
    anchor_samples : int
        J, samples of each anchor in a step.
    representation_epochs : int
        Epochs on α after the local ones.
    local_anchors : bool
        Whether clients move the anchors (line 14); False freezes them.

    anchor_step : {"once", "each"}
        One step on F_i after the local epochs (text), or one at every minibatch with λ1 = λ2 = 1 on the
        cross-entropy of all C anchor means and the alignment (code).
    sampled : bool
        W2 between two empirical Gaussians, the second of fresh samples of the anchor (code), instead of the
        closed form (text).
    representation_from : int
        Round from which α is trained; it is random and frozen before (0 in the text, 21 in the code).
    representation_within : bool
        Whether the epochs on α are counted within M (code: M − 1 and 1) or come on top (text: M and 1).
    realign : bool
        Whether all clients, those at rest too, spend an epoch on alignment alone before every round but the first,
        and before they are evaluated (code).
    head_decay : float
        Weight decay of the head's weights: 0 in the text, 0.001 in the code.
    """

    model: Model = field(default_factory=lambda: Model(alpha=100))
    lambda1: float = 1e-3
    lambda2: float = 1e-3
    pretrain_epochs: int = 100
    pretrain_batch: int = 10
    anchor_scale: float = 10.0
    anchor_variance: float = 1.0
    covariance: Literal["fixed", "learned"] = "fixed"
    anchor_samples: int = 1
    representation_epochs: int = 1
    local_anchors: bool = True

    anchor_step: Literal["once", "each"] = "once"
    sampled: bool = False
    representation_from: int = 0
    representation_within: bool = False
    realign: bool = False
    head_decay: float = 0.0

    shared: ClassVar[tuple[str, ...]] = ("alpha",)

    def __post_init__(self) -> None:
        super().__post_init__()
        choices = {"covariance": ("fixed", "learned"), "anchor_step": ("once", "each")}
        for argument, allowed in choices.items():
            if getattr(self, argument) not in allowed:
                raise ValueError(f"{argument} must be one of {allowed}, got {getattr(self, argument)!r}")
        for argument in ("lambda1", "lambda2", "pretrain_epochs", "anchor_scale", "head_decay"):
            if getattr(self, argument) < 0:
                raise ValueError(f"{argument} must not be negative, got {getattr(self, argument)}")
        if not self.anchor_variance > 0:
            raise ValueError(f"anchor_variance must be positive, got {self.anchor_variance}")
        if self.anchor_samples < 1:
            raise ValueError(f"anchor_samples must be at least 1, got {self.anchor_samples}")
        if self.representation_within and self.local_epochs <= self.representation_epochs:
            raise ValueError(
                f"representation_within needs more local_epochs than representation_epochs, "
                f"got {self.local_epochs} and {self.representation_epochs}"
            )
        if self.sampled and self.covariance == "learned":
            raise ValueError("sampled=True is the published code's variant, which has fixed covariances")

    @classmethod
    def published(cls, **changes: Any) -> FLIC:
        """FLIC as its published code runs it; `changes` override single fields.

        Its network has LeakyReLU and dropout 0.5; its competitors' heads have the same weight decay.
        """
        code = cls(
            model=Model(MLP(activation="leaky_relu", dropout=0.5), alpha=100),
            anchor_variance=math.e,
            anchor_step="each",
            sampled=True,
            representation_from=21,
            representation_within=True,
            realign=True,
            head_decay=1e-3,
            weighting="uniform",
        )
        return replace(code, **changes)

    @classmethod
    def variants(cls) -> list[Method]:
        """FLIC-Class and FLIC-HL."""
        return [cls(model=Model()), cls()]

    @property
    def name(self) -> str:
        """FLIC-HL with a shared hidden layer α, FLIC-Class without."""
        return "FLIC-Class" if self.model.alpha is None else "FLIC-HL"

    @property
    def summary(self) -> str:
        """One line on what is shared."""
        shared = "the anchors are" if self.model.alpha is None else "the anchors and a hidden layer α are"
        return f"Local embeddings aligned to anchors; {shared} shared."

    # --- anchors ---

    def init_server(self, specs: Sequence[Spec], rng: torch.Generator) -> Params:
        """α⁽⁰⁾ and μ⁽⁰⁾: means from N(0, anchor_scale² I), covariances a multiple of the identity."""
        C, k = specs[0].n_classes, self.model.phi.out
        server = super().init_server(specs, rng)
        server["anchor.mean"] = self.anchor_scale * torch.randn(C, k, generator=rng)
        if self.covariance == "learned":
            server["anchor.cholesky"] = math.sqrt(self.anchor_variance) * torch.eye(k).expand(C, k, k).clone()
        return server

    def init_client(self, spec: Spec, rng: torch.Generator) -> Params:
        """φ_i, β_i, and which classes the client holds (a constant, shape (C,))."""
        kept = super().init_client(spec, rng)
        kept["classes"] = (torch.tensor(spec.class_counts) > 0).to(torch.float32)
        return kept

    def _anchors(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Means v_c, shape (C, k), and Cholesky factors L_c, shape (C, k, k), or None where Σ_c = variance · I."""
        return tensors["anchor.mean"], tensors.get("anchor.cholesky")

    # --- the three terms of Eq. (3) ---

    def _alignment(self, z: Tensor, batch: Batch, anchors: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> Tensor:
        """Σ_c W2²(μ_c, ν̂_c) over the classes of the batch."""
        mean, cholesky = self._anchors(anchors)
        if self.sampled:
            samples = mean[batch.y] + math.sqrt(self.anchor_variance) * noise["anchor.samples"]
            return class_wasserstein_sampled(z, samples, batch.y, batch.weight, mean.shape[0])
        return class_wasserstein(z, batch.y, batch.weight, mean, cholesky, variance=self.anchor_variance)

    def _anchor_loss(
        self, params: Params, anchors: Mapping[str, Tensor], classes: Tensor, noise: Mapping[str, Tensor]
    ) -> Tensor:
        """Σ_{c ∈ Y_i} (1/J) Σ_j ℓ(c, g(Z_c^(j))), with Z_c = v_c + L_c ξ (Algorithm S2, line 8)."""
        mean, cholesky = self._anchors(anchors)
        xi = noise["anchor.xi"]  # (J, C, k)
        shift = math.sqrt(self.anchor_variance) * xi if cholesky is None else torch.einsum("ckl,jcl->jck", cholesky, xi)
        logits = self.model.head(params, (mean + shift).flatten(0, 1))
        C = mean.shape[0]
        labels = torch.arange(C, device=mean.device).repeat(self.anchor_samples)
        losses = F.cross_entropy(logits, labels, reduction="none").reshape(self.anchor_samples, C)
        return (losses.mean(0) * classes).sum()

    def _objective(
        self, params: Params, anchors: Mapping[str, Tensor], batch: Batch, noise: Mapping[str, Tensor]
    ) -> Loss:
        """F_i of Eq. (3), without ω_i."""
        z = self.model.embed(params, batch.x, noise)
        ce = cross_entropy(self.model.head(params, z), batch.y, batch.weight)
        w2 = self._alignment(z, batch, anchors, noise)
        anchor = self._anchor_loss(params, anchors, params["classes"], noise)
        total = ce + self.lambda1 * w2 + self.lambda2 * anchor
        return Loss(total, {"ce": ce.detach(), "w2": w2.detach(), "anchor": anchor.detach()})

    # --- objectives of the stages ---

    def loss(self, params: Params, received: Params, batch: Batch, noise: Mapping[str, Tensor]) -> Loss:
        """F_i at the anchors μ^(t) that the server sent: lines 8, 9 and 13 of Algorithm 1."""
        return self._objective(params, received, batch, noise)

    def anchor_objective(self, params: Params, received: Params, batch: Batch, noise: Mapping[str, Tensor]) -> Loss:
        """F_i as a function of the client's copy of the anchors: line 14."""
        return self._objective(params, params, batch, noise)

    def alignment_loss(self, params: Params, received: Params, batch: Batch, noise: Mapping[str, Tensor]) -> Loss:
        """Σ_c W2²(μ_c, ν̂_c), the loss of the pre-training."""
        w2 = self._alignment(self.model.embed(params, batch.x, noise), batch, received, noise)
        return Loss(w2, {"w2": w2.detach()})

    def published_loss(self, params: Params, received: Params, batch: Batch, noise: Mapping[str, Tensor]) -> Loss:
        """F_i for φ and β, plus the code's anchor objective for the anchors, each blind to the other's parameters."""
        still = {name: p.detach() if has_prefix(name, "anchor") else p for name, p in params.items()}
        local = self._objective(still, still, batch, noise)
        frozen = {name: p if has_prefix(name, "anchor") else p.detach() for name, p in params.items()}
        z = self.model.embed(frozen, batch.x, noise).detach()
        mean, _ = self._anchors(frozen)
        labels = torch.arange(mean.shape[0], device=mean.device)
        anchors = F.cross_entropy(self.model.head(frozen, mean), labels) + self._alignment(z, batch, frozen, noise)
        return Loss(local.total + anchors, local.terms)

    # --- Algorithm 1 ---

    def stages(self, round: int, role: Role) -> list[Stage]:
        """Pre-training; then, in a round, φ and β (lines 7-9), the anchors (line 14) and α (line 13)."""
        batch: dict[str, Any] = {"batch_size": self.batch_size, "lr": self.lr}
        align = Stage(("phi",), self.alignment_loss, epochs=1, **batch)
        if role == "start":
            long: dict[str, Any] = {"epochs": self.pretrain_epochs, "batch_size": self.pretrain_batch}
            return [replace(align, **long)] if self.pretrain_epochs else []
        again = [align] * (self.realign and round > 0)
        if role == "rest":
            return again
        within = self.representation_epochs * self.representation_within * (role == "round")
        decay = {"beta.weight": self.head_decay}
        each = self.anchor_step == "each" and self.local_anchors and role == "round"
        local = Stage(("phi", "beta"), epochs=self.local_epochs - within, weight_decay=decay, **batch)
        if each:
            local = replace(local, train=("phi", "beta", "anchor"), loss=self.published_loss)
        if role == "final":
            return [*again, local, *[align] * self.realign]
        stages = [*again, local]
        if self.local_anchors and not each:  # at α^(t), so before α moves
            stages.append(Stage(("anchor",), self.anchor_objective, steps=1, **batch))
        if self.model.alpha is not None and round >= self.representation_from:
            stages.append(Stage(("alpha",), epochs=self.representation_epochs, **batch))
        return stages

    def noise(self, spec: Spec, stage: Stage) -> dict[str, Draw]:
        """ξ of Algorithm S2, line 8, and what the network and the sampled variant need."""
        k, draws = self.model.phi.out, self.model.draws()
        if self.sampled:
            draws["anchor.samples"] = Draw((k,), per="sample")
        if stage.loss != self.alignment_loss:
            draws["anchor.xi"] = Draw((self.anchor_samples, spec.n_classes, k))
        return draws

    def upload(self, params: Params, received: Params, data: Batch, memory: Mapping[str, Tensor]) -> Params:
        """α_i and the client's anchors (line 16)."""
        sent = ("alpha", "anchor") if self.local_anchors else ("alpha",)
        return {name: p for name, p in params.items() if any(has_prefix(name, prefix) for prefix in sent)}
