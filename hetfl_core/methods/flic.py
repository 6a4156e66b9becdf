r"""FLIC: local embeddings aligned to anchor distributions that are learned together.

Client i embeds its own feature space by φ_i into R^k. For each class c the server keeps an *anchor*
:math:`\mu_c = \mathcal{N}(v_c, \Sigma_c)`, :math:`\Sigma_c = L_c L_c^\top`, and a client minimises Eq. (3) of [1]_,

.. math::
    F_i = {} & f_i(\theta_i, \phi_i)
        + \lambda_1 \sum_{c \in \mathcal{Y}_i} W_2^2(\mu_c, \hat\nu^{(c)}_{\phi_i}) \\
        & + \lambda_2 \sum_{c \in \mathcal{Y}_i} \frac1J \sum_{j=1}^J \ell(c, g_{\theta_i}[Z_c^{(j)}]),
        \qquad Z_c^{(j)} \sim \mu_c,

where :math:`\hat\nu^{(c)}_{\phi_i}` is the Gaussian with the mean and covariance of the embedded samples of class c.
The weight ω_i multiplies all three terms and is left to the server's mean.

Four choices can be made apart from each other: how θ_i is made of shared and local weights
(`hetfl_core.methods.schemes`), what the anchors are and which distance aligns to them
(`hetfl_core.methods.alignment`), whether several classes share an anchor (``meta_classes``), and whether what leaves a
client is differentially private (`hetfl_core.methods.privacy`).

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from hetfl_core.distances import gaussian_barycentre
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.methods.alignment import (
    Alignment,
    Anchors,
    MixtureWasserstein,
    SampledWasserstein,
    Wasserstein,
    segment_distance,
    segment_means,
)
from hetfl_core.methods.base import (
    Batch,
    Loss,
    Method,
    Role,
    Specs,
    Stage,
    Uploads,
    Weights,
    cross_entropies,
    pick,
    task_loss,
)
from hetfl_core.methods.privacy import Privacy
from hetfl_core.methods.schemes import FedAvgFTScheme, FedRepScheme, L2GDScheme, Scheme
from hetfl_core.networks import Draw, Model, Params, Tensors
from hetfl_core.rng import Stream
from hetfl_core.settings import Count, Natural, NotNegative, Positive


@dataclass(frozen=True)
class FLIC(Method):
    """FLIC on top of a personalised scheme, by default FedRep ([1]_, Algorithms 1 and S2).

    With FedRep and ``model=Model(alpha=...)`` it is *FLIC-HL*: φ_i and β_i local, α shared. With ``Model(alpha=None)``
    it is *FLIC-Class*: φ_i and β_i local, only the anchors are shared. Other schemes give *FLIC-FedAvgFT* and
    *FLIC-L2GD*.

    On a regression the anchors are N(m^(y), I), m^(y) = ya + (1 − y)b, with the ends a and b in place of the class
    means ([1]_, Section 3). Alignment is then the mean of ‖φ_i(x) − m^(y)‖² over the batch, and the third term a mean
    over the targets y of the batch. Targets are meant to lie in [0, 1]; others lie on the line beyond a and b.

    A scheme **without** alignment (FedRep: HetFedRep) is ``alignment_weight=0, anchor_weight=0,
    pretrain_epochs=0, local_anchors=False``: anchors are then still sent and counted, but nothing depends on them.

    The defaults are what the paper's text says, where it says something: `weighting`, `anchor_scale` and, in Eq. (3),
    J are left open there. The second group of fields, with `anchor_samples` and `weighting`, says where its published
    code differs; `published` sets them all. The third group are the paper's alternatives.

    Parameters
    ----------
    alignment_weight, anchor_weight : float
        λ₁ and λ₂, the weights of alignment and of anchor classification in Eq. (3); 0.001 in Appendix S3.3.
    pretrain_epochs : int
        Epochs in which φ_i is aligned to the anchors before the first round (Section 4, *Pre-training*); 0 for none.
    pretrain_batch : int
        Batch size of the pre-training: 10 for toys and TextCaps, 100 for digits and BCI.
    anchor_scale : float
        Standard deviation of the initial anchor means: "a very large variance" in the text, 10 in the code.
    anchor_variance : float
        Initial Σ_c = anchor_variance · I; 1 in the text, e in the code.
    covariance : {"fixed", "learned"}
        Whether Σ_c stays (as in the experiments) or its Cholesky factor L_c is learned (Algorithm S2). What may lie
        above the diagonal of L_c (noise, with `privacy`) is not read.
    anchor_samples : int
        J, samples of each anchor in a step. Algorithm S2 (line 8) and the code draw as many as the batch has rows; one
        has the same expectation, with more noise.
    representation_epochs : int
        Epochs on the shared weights (FedRep: α) after the local ones.
    local_anchors : bool
        Whether clients move the anchors (line 14); False freezes them.

    anchor_step : {"once", "each", "always"}
        One step on F_i after the local epochs (text), or one at every minibatch with λ1 = λ2 = 1 on the
        cross-entropy of all C anchor means and the alignment: of the local epochs, or of the epochs on α, too (code).
    anchor_classes : {"held", "batch"}
        The classes of the third term of Eq. (3): all that the client has samples of (text), or those of the minibatch
        (code).
    representation_from : int
        Round from which α is trained; it is random and frozen before (0 in the text, 21 in the code), though sent, and
        with `privacy` noised. Where shared weights are trained with the local ones (FedAvg-FT), it has no effect.
    representation_within : bool
        Whether the epochs on α are counted within M (code: M − 1 and 1) or come on top (text: M and 1). A round in
        which α is not trained has M local epochs in either case.
    realign : bool
        Whether all clients, those at rest too, spend an epoch on alignment alone before every round but the first,
        and before they are evaluated (code), in batches of `pretrain_batch`.
    head_decay, shared_decay : float
        Weight decay of the classifier's weights, and of the shared layer's, not of their biases: 0 in the text, 0.001
        in the code.

    scheme : Scheme
        How θ_i is made of shared and local weights (Table 2): FedRep, FedAvg-FT or L2GD.
    alignment : Alignment
        What the anchors are and the distance to them: W2 in closed form (text), or between two empirical Gaussians, the
        second of fresh samples of the anchor (`SampledWasserstein`, code); MMD or, with mixtures for anchors, MW2
        (Remark 2).
    pretrain_alignment : Alignment, optional
        The distance of the pre-training and of `realign`, where it is another one than in the rounds: the code's MMD
        (`MMD.published`) acts there alone.
    barycentre : {"factors", "exact"}
        How the server averages learned covariances: by the mean of the factors L_i (Section 4), or by the covariance
        of the Wasserstein barycentre of the clients' anchors. The mean vectors are averaged in both.
    meta_classes : tuple of int, length C, optional
        The meta-class of each class, 0 … M−1 (Appendix S1.4). There is one anchor a meta-class, to which the client's
        samples of all its classes are aligned together; the head tells classes apart as before. A sample of an anchor
        has no class but a meta-class, so that the third term takes ℓ(m, ·) = −ln of the **summed** probability of the
        classes in m.
    privacy : Privacy, optional
        Clip and noise what leaves a client in a round, **all** of it: anchors, and shared weights where there are any
        (Remark 3 speaks of the anchors; protecting them alone would leave α as a leak). Needs ``weighting="uniform"``,
        as the number of samples would otherwise leave the client too.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    constants: ClassVar[tuple[str, ...]] = ("classes",)

    model: Model = field(default_factory=lambda: Model(alpha=100))
    alignment_weight: NotNegative = 1e-3
    anchor_weight: NotNegative = 1e-3
    pretrain_epochs: Natural = 100
    pretrain_batch: Count = 10
    anchor_scale: NotNegative = 10.0
    anchor_variance: Positive = 1.0
    covariance: Literal["fixed", "learned"] = "fixed"
    anchor_samples: Count = 1
    representation_epochs: Count = 1
    local_anchors: bool = True

    anchor_step: Literal["once", "each", "always"] = "once"
    anchor_classes: Literal["held", "batch"] = "held"
    representation_from: Natural = 0
    representation_within: bool = False
    realign: bool = False
    head_decay: NotNegative = 0.0
    shared_decay: NotNegative = 0.0

    scheme: Scheme = field(default_factory=FedRepScheme)
    alignment: Alignment = field(default_factory=Wasserstein)
    pretrain_alignment: Alignment | None = None
    barycentre: Literal["factors", "exact"] = "factors"
    meta_classes: tuple[int, ...] | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if self.representation_within and self.local_epochs <= self.representation_epochs:
            raise WrongValue(
                f"representation_within needs more local_epochs than representation_epochs, "
                f"got {self.local_epochs} and {self.representation_epochs}"
            )
        if self.representation_within and self.local_steps is not None:
            raise WrongValue(f"representation_within counts epochs: local_steps must be None, got {self.local_steps}")
        if self.model.gaussian is not None:
            raise WrongValue(f"{self.name} aligns φ(x): model must have no Gaussian layer, got {self.model.gaussian}")
        if self.covariance == "learned" and not self.alignment.learns_covariance:
            raise WrongValue(f"covariance='learned' needs the closed-form W2, got alignment={self.alignment}")
        if self.pretrain_alignment is not None:
            mixtures = [isinstance(each, MixtureWasserstein) for each in (self.alignment, self.pretrain_alignment)]
            if any(mixtures) or self.covariance == "learned":
                raise WrongValue(
                    f"pretrain_alignment needs anchors of one fixed Gaussian each, got {self.pretrain_alignment} with "
                    f"alignment={self.alignment} and covariance={self.covariance!r}"
                )
        meta = self.meta_classes
        if meta is not None and sorted(set(meta)) != list(range(max(meta, default=-1) + 1)):
            raise WrongValue(f"meta_classes must name the meta-classes 0 … M−1, each at least once, got {meta}")
        if self.privacy is not None and self.weighting != "uniform":
            raise WrongValue(f"privacy needs weighting='uniform': a mean by {self.weighting!r} tells their number")

    @classmethod
    def published(cls, **changes: Any) -> FLIC:
        """FLIC as its published code runs it; `changes` override single fields.

        All clients begin with the same head, as there, and each with its own φ_i. The network is the text's, which the
        code has on the toys, TextCaps and FEMNIST; on the BCI data its φ_i has LeakyReLU and dropout 0.5, which `model`
        must say. Three things are nearly, but not quite, the code's: in a minibatch the anchors' gradient is taken
        before φ_i and the head have moved, not after; the anchors' optimizer starts anew with the epochs on α; and
        each anchor has `batch_size` samples also in a minibatch that is short.

        Parameters
        ----------
        **changes
            Fields of the class.

        Returns
        -------
        FLIC
        """
        code = cls(
            anchor_variance=math.e,
            anchor_samples=changes.get("batch_size", cls.batch_size),
            anchor_step="always",
            anchor_classes="batch",
            alignment=SampledWasserstein(),
            representation_from=21,
            representation_within=True,
            realign=True,
            head_decay=1e-3,
            shared_decay=1e-3,
            weighting="uniform",
            init="heads",
        )
        return replace(code, **changes)

    @classmethod
    def variants(cls) -> list[Method]:
        """FLIC-Class and FLIC-HL, and FLIC on the two other schemes of Table 2."""
        return [cls(model=Model()), cls(), cls(scheme=FedAvgFTScheme()), cls(scheme=L2GDScheme())]

    @property
    def name(self) -> str:
        """FLIC-HL with a shared hidden layer α, FLIC-Class without; on another scheme, the scheme's name."""
        if self.scheme != FedRepScheme():
            return f"FLIC-{self.scheme.name}"
        return "FLIC-Class" if self.model.alpha is None else "FLIC-HL"

    @property
    def summary(self) -> str:
        """One line on what the method shares."""
        shared = f"the anchors and {self.scheme.words} are" if self.shared else "the anchors are"
        return f"Local embeddings aligned to anchors; {shared} shared."

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The scheme's shared weights."""
        return self.scheme.shared(self.model)

    def check(self, specs: Specs) -> None:
        """Refuse what does not go with the federation's task, or with its number of classes."""
        super().check(specs)
        C = specs[0].n_classes
        if specs[0].task == "regression":
            plain = FLIC()
            alignments = ("alignment", "pretrain_alignment", "covariance", "anchor_variance")
            for argument in (*alignments, "anchor_step", "meta_classes"):
                value, expected = getattr(self, argument), getattr(plain, argument)
                if value != expected:
                    raise WrongValue(f"anchors of a regression need {argument}={expected!r}, got {value!r}")
        elif self.meta_classes is not None and len(self.meta_classes) != C:
            raise WrongValue(f"meta_classes must name one for each of {C} classes, got {len(self.meta_classes)}")

    # --- anchors ---

    def _count(self, spec: Spec) -> int:
        """Anchors: one per class or meta-class; the two ends a, b of a regression."""
        if spec.task == "regression":
            return 2
        return spec.n_classes if self.meta_classes is None else max(self.meta_classes) + 1

    def _labels(self, y: Tensor) -> Tensor:
        """The anchor of each sample: its class, or its class's meta-class."""
        of = self.meta_classes
        return y if of is None else torch.tensor(of, dtype=torch.int64, device=y.device)[y]

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors, α⁽⁰⁾ and μ⁽⁰⁾: means from N(0, anchor_scale² I), covariances a multiple of I."""
        C, k = self._count(specs[0]), self.model.of(specs[0]).phi.out
        server = self.scheme.init(self.model, specs[0], rng, self.shared)
        server["anchor.mean"] = self.alignment.means(C, k, self.anchor_scale, rng)
        if self.covariance == "learned":
            identity = torch.eye(k, dtype=torch.float32)
            server["anchor.cholesky"] = math.sqrt(self.anchor_variance) * identity.expand(C, k, k).clone()
        return server

    def init_client(self, spec: Spec, rng: Generator) -> Params:
        """What a client keeps: φ_i, β_i, and whose anchors it has samples of.

        The latter is a constant of shape (C,), and not there in a regression.
        """
        client_state = self.model.init(spec, rng, ("phi",))
        client_state |= self.scheme.init(self.model, spec, rng, self.scheme.own)
        if spec.task == "classification":
            client_state["classes"] = self._held(spec)
        return client_state

    def _held(self, spec: Spec) -> Tensor:
        """1 for each anchor that the client has samples of, else 0, shape (C,) or (M,)."""
        labels = self.meta_classes or range(spec.n_classes)
        held = {label for label, n in zip(labels, spec.class_counts) if n}
        return torch.tensor([label in held for label in range(self._count(spec))], dtype=torch.float32)

    def _anchors(self, tensors: Tensors) -> Anchors:
        """Means v_c and Cholesky factors L_c, or the common variance."""
        cholesky = tensors.get("anchor.cholesky")
        return Anchors(tensors["anchor.mean"], None if cholesky is None else cholesky.tril(), self.anchor_variance)

    # --- the three terms of Eq. (3) ---

    def _head(self, params: Tensors, z: Tensor) -> Tensor:
        """g_θ(z) with the scheme's θ_i, shape (n, k) → (n, C)."""
        return self.model.head(dict(self.scheme.weights(params)), z)

    def _alignment(
        self, z: Tensor, batch: Batch, anchors: Tensors, noise: Tensors, by: Alignment | None = None
    ) -> Tensor:
        """Σ_c W2²(μ_c, ν̂_c) over the classes of the batch, or what takes its place."""
        if batch.y.is_floating_point():
            return segment_distance(anchors["anchor.mean"], z, batch.y, batch.weight)
        by = by or self.alignment
        return by.distance(self._anchors(anchors), z, self._labels(batch.y), batch.weight, noise)

    def _anchor_logits(self, params: Tensors, z: Tensor) -> Tensor:
        """Logits over the anchors' labels: those of the head, or, for meta-classes, of their summed probabilities."""
        logits = self._head(params, z)
        if self.meta_classes is None:
            return logits
        of = torch.tensor(self.meta_classes, dtype=torch.int64, device=z.device)
        members = torch.arange(max(self.meta_classes) + 1, device=z.device).unsqueeze(1) == of
        return torch.where(members, logits.unsqueeze(1), -math.inf).logsumexp(-1)

    def _anchor_loss(self, params: Params, anchors: Tensors, batch: Batch, noise: Tensors) -> Tensor:
        """The anchor loss Σ_{c ∈ Y_i} (1/J) Σ_j ℓ(c, g(Z_c^(j))), with Z_c = v_c + L_c ξ (Algorithm S2, line 8)."""
        if batch.y.is_floating_point():
            return self._target_loss(params, anchors["anchor.mean"], batch, noise)
        samples = self.alignment.samples(self._anchors(anchors), noise)
        J, C = samples.shape[:2]
        labels = torch.arange(C, device=samples.device).repeat(J)
        losses = cross_entropies(self._anchor_logits(params, samples.flatten(0, 1)), labels)
        if self.anchor_classes == "held":
            return (losses.reshape(J, C).mean(0) * params["classes"]).sum()
        rows = torch.eye(C, dtype=losses.dtype, device=losses.device)[self._labels(batch.y)]
        return (losses.reshape(J, C).mean(0) * (rows * batch.weight.unsqueeze(1)).amax(0)).sum()

    def _target_loss(self, params: Params, ends: Tensor, batch: Batch, noise: Tensors) -> Tensor:
        """The anchor loss of a regression: mean over the batch of (1/J) Σ_j ℓ(y, g(Z_y^(j))), Z_y = m^(y) + ξ."""
        samples = segment_means(ends, batch.y).unsqueeze(1) + noise["anchor.xi"]  # (n, J, k)
        y, weight = (t.repeat_interleave(self.anchor_samples) for t in (batch.y, batch.weight))
        return task_loss(self._head(params, samples.flatten(0, 1)), y, weight)

    def _objective(self, params: Params, anchors: Tensors, batch: Batch, noise: Tensors) -> Loss:
        """The objective F_i of Eq. (3), without ω_i."""
        z = self.model.embed(params, batch.x, noise)
        task = batch.loss(self._head(params, z))
        gap = self._alignment(z, batch, anchors, noise)
        anchor = self._anchor_loss(params, anchors, batch, noise)
        total = task.total + self.alignment_weight * gap + self.anchor_weight * anchor
        return Loss(total, {**task.terms, self.alignment.term: gap.detach(), "anchor": anchor.detach()})

    # --- objectives of the stages ---

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective F_i at the anchors μ^(t) that the server sent: lines 8, 9 and 13 of Algorithm 1."""
        return self._objective(params, received, batch, noise)

    def anchor_objective(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective F_i as a function of the client's copy of the anchors: line 14."""
        return self._objective(params, params, batch, noise)

    def alignment_loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The loss of the pre-training, Σ_c W2²(μ_c, ν̂_c)."""
        by = self._before
        gap = self._alignment(self.model.embed(params, batch.x, noise), batch, received, noise, by)
        return Loss(gap, {by.term: gap.detach()})

    @property
    def _before(self) -> Alignment:
        """The distance of the pre-training and of the re-alignment."""
        return self.pretrain_alignment or self.alignment

    def published_loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The published code's objective: F_i for φ and the head, plus its anchor objective for the anchors.

        Each is blind to the other's parameters. The latter is the cross-entropy of all anchor means (of all components,
        for mixtures) and the alignment. F_i is at the anchors that the server sent, as in the code, or, with
        ``anchor_step="each"``, at the client's moving copy.
        """
        detached = {name: p.detach() for name, p in params.items()}
        still = {**params, **pick(detached, ("anchor",))}
        local = self._objective(still, received if self.anchor_step == "always" else still, batch, noise)
        frozen = {**detached, **pick(params, ("anchor",))}
        z = self.model.embed(frozen, batch.x, noise).detach()
        mean = frozen["anchor.mean"]
        labels = torch.arange(mean.shape[0], device=mean.device).repeat_interleave(mean[0].numel() // mean.shape[-1])
        logits = self._anchor_logits(frozen, mean.reshape(-1, mean.shape[-1]))
        anchors = F.cross_entropy(logits, labels) + self._alignment(z, batch, frozen, noise)
        return Loss(local.total + anchors, local.terms)

    # --- Algorithm 1 ---

    def stages(self, round: int, role: Role) -> list[Stage]:
        """Pre-training; then, in a round, φ and β (lines 7-9), the anchors (line 14) and α (line 13).

        β and α stand for what the scheme trains in and after the local epochs.
        """
        align = self.stage(("phi",), round, loss=self.alignment_loss, epochs=1, batch_size=self.pretrain_batch)
        if role == "start":
            return [replace(align, epochs=self.pretrain_epochs)] if self.pretrain_epochs else []
        realigned = [align] if self.realign else []
        again = realigned if round > 0 else []
        if role == "rest":
            return again
        head = self.scheme.during(self.model)
        shared = self.scheme.after(self.model) if round >= self.representation_from else ()
        decay = dict.fromkeys(("phi", *head, *shared), self.weight_decay) if self.weight_decay else {}
        decay[self.scheme.classifier] = self.weight_decay + self.head_decay
        if self.shared_decay:
            decay |= {name: self.weight_decay + self.shared_decay for name in self.scheme.layers}
        local = self.stage(("phi", *head), round, weight_decay=decay)
        if role == "final":
            last = self.finetuning(local.train, round, weight_decay=decay)
            return [*again, self._with_anchors(last)] if self.closes else [*again, last, *realigned]
        if self.representation_within and shared:
            local = replace(local, epochs=self.local_epochs - self.representation_epochs)
        stages = [*again, local]
        if self.local_anchors and self.anchor_step == "once":  # at α^(t), so before α moves
            stages.append(self.stage(("anchor",), round, loss=self.anchor_objective, steps=1, weight_decay=0.0))
        elif self.local_anchors:
            stages[-1] = self._with_anchors(local)
        if shared:
            common = self.stage(shared, round, epochs=self.representation_epochs, weight_decay=decay)
            stages.append(self._with_anchors(common) if self.closes else common)
        return stages

    def _with_anchors(self, stage: Stage) -> Stage:
        """A stage of which each step moves the anchors, too."""
        return replace(stage, train=(*stage.train, "anchor"), loss=self.published_loss)

    @property
    def closes(self) -> bool:  # type: ignore[override]
        """With anchors that always move, they do so in the last local training, and are averaged once more."""
        return self.local_anchors and self.anchor_step == "always"

    def joining(self) -> FLIC:
        """For new clients the anchors stay as they are."""
        return replace(self, anchor_step="each") if self.closes else self

    def noise(self, spec: Spec, stage: Stage) -> dict[str, Draw]:
        """Random numbers of a step: ξ of Algorithm S2, line 8, and what the network and the alignment need."""
        k, draws = self.model.phi.out, self.model.draws()
        if stage.loss == self.alignment_loss:
            return draws | self._before.draws(k)
        draws |= self.alignment.draws(k)
        if spec.task == "regression":
            return draws | {"anchor.xi": Draw((self.anchor_samples, k), per="sample")}
        return draws | self.alignment.sample_draws(self.anchor_samples, self._count(spec), k)

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client: α_i and its anchors (line 16)."""
        return pick(params, (*self.shared, *(("anchor",) if self.local_anchors else ())))

    def protect(self, upload: Params, received: Params, rng: Stream) -> Params:
        """An upload clipped and noised, where `privacy` is asked for (Remark 3)."""
        return upload if self.privacy is None else self.privacy.protect(upload, received, rng)

    @property
    def needs_secret(self) -> bool:
        """Where `privacy` adds noise."""
        return self.privacy is not None and self.privacy.noise_multiplier > 0

    @property
    def needs_uploads(self) -> str | None:
        """The paper's means are sums; the exact barycentre is not."""
        return "the exact barycentre is no sum of anchors" if self.barycentre == "exact" else None

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors: weighted means of α_i, v_i and L_i (lines 18, 19), or the anchors' exact barycentre."""
        server = super().aggregate(server, uploads, weights, specs, rng)
        if self.barycentre == "exact" and self.covariance == "learned" and self.local_anchors:
            L = torch.stack([upload["anchor.cholesky"] for upload in uploads]).tril()
            means = torch.stack([upload["anchor.mean"] for upload in uploads])
            _, covariance = gaussian_barycentre(means, L @ L.mT, torch.tensor(weights, dtype=torch.float32))
            server["anchor.cholesky"] = _lower_factor(covariance)
        return server

    # --- use ---

    def predict(self, params: Params, received: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        r"""Logits, shape (n, \*shape) → (n, C); the predicted numbers of a regression, (n, 1)."""
        return self._head(params, self.model.embed(params, x))


def _lower_factor(S: Tensor) -> Tensor:
    """Lower triangular L with L Lᵀ = S and diagonal ≥ 0, also of a singular S; shapes (…, k, k)."""
    values, vectors = torch.linalg.eigh(S)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    R = torch.linalg.qr(root.mT).R
    return R.mT * torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1, 1).unsqueeze(-2)
