r"""FedGen: a generator of features at the server, taught by the clients' heads, teaches the clients ([1]_).

The server trains a generator :math:`G(y, \varepsilon)` whose features the clients' heads classify as y, and sends it
with the averaged head. A client adds to its own loss

.. math::
   \frac{n_G}{n} \, a \, \mathbb{E}_{y, \varepsilon}\, \ell(h(v_i, G(y, \varepsilon)), y)
   + b \, \mathbb{E}_{(x, y) \sim D_i, \varepsilon}\, \mathrm{KL}\big(h(v_i, G(y, \varepsilon)) \,\|\, h(w_i, x)\big):

its head must classify what is generated, for labels that it does not hold too, and its features of a sample are to be
classified as those that are generated for its label. Here only the head is shared, as Fed-CMA's comparison has it
([2]_), so that networks may differ; without its two terms it is `LGFedAvg`. Settings are those of the published code
([3]_) for MNIST. Its generator takes 50 steps a round, by Adam with its own rate and weight decay; it has a hidden
layer with batch normalisation, and a term that keeps what is generated diverse. The clients' terms come from the second
round on, with a weight that decays. The teachers are weighted by their training samples of the label. In the
code by how many of it a client's steps of this round showed, and one more: as all take as many steps, that is its share
of the client's samples, whatever their number. And there a column of weights meets a row of losses, so that each client
weighs by the mean of its weights over the batch, whatever the label (`teachers`).

References
----------
.. [1] Z. Zhu, J. Hong, J. Zhou. Data-free knowledge distillation for heterogeneous federated learning. ICML 2021.
.. [2] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
.. [3] https://github.com/zhuangdizhu/FedGen, serverpFedGen.py, userpFedGen.py, generator.py and model_config.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Loss, Specs, Stage, Uploads, Weights, pick, row_mean
from hetfl_core.methods.fedper import LGFedAvg
from hetfl_core.methods.server import descend, without_state
from hetfl_core.networks import Draw, Params, Tensors
from hetfl_core.networks.layers import RUNNING, layers_init
from hetfl_core.settings import Count, Natural, NotNegative, Positive

MOMENTUM = 0.1
"""How far a batch moves the running mean and variance of the generator's normalisation, as in PyTorch."""


@dataclass(frozen=True)
class FedGen(LGFedAvg):
    r"""Heads are averaged, and a generator of features that they taught teaches all clients ([1]_); inputs may differ.

    Parameters
    ----------
    generated_weight, agreement_weight : float
        a and b, the weights of the two terms of a client; with both 0 it is `LGFedAvg`.
    term_decay : float
        Factor of both from round to round.
    n_generated : int
        :math:`n_G`, features that a client generates a step.
    noise_dim, hidden : int
        Of the generator: ε uniform in :math:`[0, 1]^{noise\_dim}`, one hidden layer.
    generator_steps, generator_batch, generator_lr, generator_decay, generator_weight_decay
        Its training in a round; the rate is multiplied by `generator_decay` from round to round.
    teachers : {"label", "batch"}
        What weighs a client's head in the generator's loss of a label: the client's share of that label's samples, or
        the mean of its shares over the labels of the batch (code).
    diversity_weight : float
        Weight of :math:`\exp(-\mathrm{mean}_{jk}\, \|\varepsilon_j - \varepsilon_k\|^2 \|z_j - z_k\|_1)`, norms as
        means over coordinates.
    layers
        As for `LGFedAvg`.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    generated_weight: NotNegative = 10.0
    agreement_weight: NotNegative = 10.0
    term_decay: Positive = 0.98
    n_generated: Count = 32
    noise_dim: Count = 32
    hidden: Count = 256
    generator_steps: Natural = 50
    generator_batch: Count = 32
    generator_lr: NotNegative = 3e-4
    generator_decay: Positive = 0.98
    generator_weight_decay: NotNegative = 1e-2
    teachers: Literal["label", "batch"] = "label"
    diversity_weight: NotNegative = 1.0

    needs_classes: ClassVar[bool] = True

    name: ClassVar[str] = "FedGen"

    # --- the generator ---

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors: the head, the generator and the number of the round."""
        server = super().init_server(specs, rng)
        C, d_e = specs[0].n_classes, len(server["beta.weight"])
        server |= layers_init(rng, "generator", [(self.noise_dim + C, self.hidden), (self.hidden, d_e)])
        ones, zeros = torch.ones(self.hidden, dtype=torch.float32), torch.zeros(self.hidden, dtype=torch.float32)
        server |= {"generator.norm.weight": ones, "generator.norm.bias": zeros}
        server |= {"generator.norm.mean": zeros.clone(), "generator.norm.variance": ones.clone()}
        return {**server, "round": torch.zeros(1, dtype=torch.float32)}

    @staticmethod
    def generate(params: Tensors, y: Tensor, noise: Tensor, training: bool = False) -> tuple[Tensor, Params]:
        """Generated features G(y, ε): labels (n,) and noise (n, noise_dim) → features (n, d_e).

        Also, in training, where a batch is normalised by its own mean and variance, the running ones after it.
        """
        C = params["generator.0.weight"].shape[0] - noise.shape[-1]
        label = torch.eye(C, dtype=noise.dtype, device=noise.device)[y]
        inputs = torch.cat([noise, label], -1)
        hidden = torch.addmm(params["generator.0.bias"], inputs, params["generator.0.weight"])
        mean, variance = params["generator.norm.mean"], params["generator.norm.variance"]
        running: Params = {}
        if training:
            spread, mean_ = torch.var_mean(hidden, 0, correction=0)
            unbiased = spread * len(y) / max(len(y) - 1, 1)
            running = {
                "generator.norm.mean": (1 - MOMENTUM) * mean + MOMENTUM * mean_.detach(),
                "generator.norm.variance": (1 - MOMENTUM) * variance + MOMENTUM * unbiased.detach(),
            }
            mean, variance = mean_, spread
        scaled = (hidden - mean) / (variance + 1e-5).sqrt()
        active = (scaled * params["generator.norm.weight"] + params["generator.norm.bias"]).relu()
        return torch.addmm(params["generator.1.bias"], active, params["generator.1.weight"]), running

    def download(self, server: Params, spec: Spec) -> Params:
        """What is sent to a client: the head, the generator, and how many rounds there were.

        What only the server's optimizer needs is not.
        """
        return without_state(server)

    def start(self, client_state: Params, received: Params) -> Params:
        """The client's body and the received head."""
        return {**client_state, **pick(received, self.shared)}

    # --- the client ---

    def noise(self, spec: Spec, stage: Stage) -> dict[str, Draw]:
        """Random numbers of a step: the network's own, and what features are generated from."""
        each = {"own": Draw((self.noise_dim,), "uniform", "sample")}
        batch = {
            "others": Draw((self.n_generated, self.noise_dim), "uniform", "step"),
            "labels": Draw((self.n_generated,), "uniform", "step"),
        }
        return (
            super().noise(spec, stage)
            | (each if self.agreement_weight else {})
            | (batch if self.generated_weight else {})
        )

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective: the client's loss and the two terms, which begin in the second round."""
        outputs = self.model.head(params, self.model.embed(params, batch.x, noise))
        total, terms, _ = batch.loss(outputs)
        t = received["round"][0]
        weight = torch.where(t > 0, self.term_decay**t, 0.0)
        if self.generated_weight:
            C = params["beta.bias"].shape[-1]
            labels = (noise["labels"] * C).long().clamp(max=C - 1)
            generated, _ = self.generate(received, labels, noise["others"])
            lost = F.cross_entropy(self.logits(params, generated), labels)
            total = total + weight * self.generated_weight * self.n_generated / self.batch_size * lost
            terms["generated"] = lost.detach()
        if self.agreement_weight:
            own, _ = self.generate(received, batch.y.long(), noise["own"])
            target = self.logits(params, own).softmax(-1).detach()
            said = outputs.log_softmax(-1)
            apart = row_mean(
                (target * (target.clamp(min=torch.finfo(said.dtype).tiny).log() - said)).sum(-1), batch.weight
            )
            total = total + weight * self.agreement_weight * apart
            terms["agreement"] = apart.detach()
        return Loss(total, terms)

    @staticmethod
    def logits(params: Tensors, z: Tensor) -> Tensor:
        """Logits of the head at features, shape (n, d_e) → (n, C)."""
        return torch.addmm(params["beta.bias"], z, params["beta.weight"])

    # --- the server ---

    beyond_sums = "the generator learns from each client's head"

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The generator learns from the participants' heads, which are then averaged."""
        new = self._taught(server, uploads, specs, rng)
        return {**super().aggregate(new, uploads, weights, specs, rng), "round": server["round"] + 1}

    def _taught(self, server: Params, uploads: Sequence[Params], specs: Specs, rng: Generator) -> Params:
        """The generator after its steps on what the heads say, each weighed by its client's share of the label."""
        counts = server["round"].new_tensor([spec.class_counts for spec in specs])
        known = (counts.amax(0) > 1).nonzero().flatten()  # labels of which somebody has more than one sample
        if not self.generator_steps or not len(known):
            return server
        share = counts / counts.sum(0).clamp(min=1)
        names = tuple(n for n in server if n.startswith("generator.") and not n.endswith(RUNNING))
        running: Params = {}
        draws = torch.rand(
            self.generator_steps, self.generator_batch, 1 + self.noise_dim, generator=rng, dtype=torch.float32
        )
        draws = draws.to(server["round"])

        def objective(tensors: Params, step: int) -> Tensor:
            y = known[(draws[step, :, 0] * len(known)).long().clamp(max=len(known) - 1)]
            epsilon = draws[step, :, 1:]
            z, after = self.generate({**tensors, **running}, y, epsilon, training=True)
            running.update(after)
            taught = torch.stack([F.cross_entropy(self.logits(u, z), y, reduction="none") for u in uploads])
            weight = share[:, y] if self.teachers == "label" else share[:, y].mean(1, keepdim=True)
            taught = (weight * taught).mean(1).sum()
            distance = (epsilon[:, None] - epsilon).square().mean(-1) * (z[:, None] - z).abs().mean(-1)
            return taught + self.diversity_weight * (-distance.mean()).exp()

        rate = self.generator_lr * self.generator_decay ** int(server["round"])
        stage = Stage(names, steps=self.generator_steps, lr=rate, weight_decay=self.generator_weight_decay)
        return {**descend(server, objective, stage), **running}
