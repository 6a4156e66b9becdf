r"""FedSR: random features that are small and carry little about the input beyond its class.

References
----------
.. [1] A. T. Nguyen, P. Torr, S.-N. Lim. FedSR: a simple and effective domain generalization method for federated
   learning. NeurIPS 2022.
.. [2] H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong. FedCR: personalized federated learning based on across-client common
   representation with conditional mutual information regularization. ICML 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Loss, Role, Stage, row_mean
from hetfl_core.methods.stochastic import Stochastic, gaussian_gap
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import HEAD, SMALLEST_DEVIATION
from hetfl_core.settings import NotNegative

REFERENCE = "reference"


@dataclass(frozen=True)
class FedSR(Stochastic):
    r"""FedAvg of a random model, with two penalties on its features ([1]_), and heads fine-tuned at the end ([2]_).

    A client minimises

    .. math:: \mathrm{CE} + \alpha^{L2R} E\|z\|^2 + \alpha^{CMI} E\,\mathrm{KL}(q(z|x)\,\|\,r(z|y)),

    with a Gaussian r of trained mean and deviation for each class, which stays on the client. The last term is an
    upper bound of I(z; x | y). Clients must share a feature space.

    Parameters
    ----------
    norm_weight, cmi_weight : float
        α^L2R and α^CMI, the weights of the two penalties.
    norm : {"square", "plain"}
        ‖z‖², as the text has it, or ‖z‖, as its published code.
    federated : bool
        Whether the model is exchanged at all. In FedCR's published code ([2]_) it is not, by a fault: what it calls
        FedSR is local training, from first weights of each client's own.
    samples, test_samples, averaged, likelihood, scale
        As for `Stochastic`.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.

    Notes
    -----
    The authors' code multiplies z by a trained scale in the last term, and begins with deviations softplus(1) = 1.31 in
    r; here there is no scale and r begins as N(0, I). In FedCR's published code r is never trained on a GPU: what is
    moved to the device there is no parameter of the module any more, and the optimizer does not see it.
    """

    norm_weight: NotNegative = 0.01
    cmi_weight: NotNegative = 0.001
    norm: Literal["square", "plain"] = "square"
    federated: bool = True

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The shared parts: the whole model, or none of it."""
        return self.model.parts if self.federated else ()

    def init_client(self, spec: Spec, rng: torch.Generator) -> Params:
        """What a client keeps: r, a mean and, through softplus, a deviation for each class, N(0, 1) at first."""
        own = super().init_client(spec, rng)
        zeros = torch.zeros(spec.outputs, self.model.latent, dtype=torch.float32)
        one = torch.full_like(zeros, 1 - SMALLEST_DEVIATION).expm1().log()  # a deviation of 1
        return {**own, f"{REFERENCE}.mean": zeros, f"{REFERENCE}.raw": one}

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on model and r when selected; at the end on the head, or on all where nothing is shared."""
        everything = (*self.model.parts, REFERENCE)
        return self.usual_stages(everything, HEAD if self.federated else everything, round, role)

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective: cross-entropy and the two penalties."""
        mean, deviation = self.model.posterior(params, batch.x, noise)
        z = self.drawn(mean, deviation, noise)
        task = self.likelihood_loss(self.logits(params, z), batch)
        squared = z.square().sum(-1)
        size = squared if self.norm == "square" else squared.clamp(min=torch.finfo(z.dtype).tiny).sqrt()
        references = params[f"{REFERENCE}.mean"]  # by a product, whose gradient is the same in each run on a GPU
        member = torch.eye(len(references), dtype=z.dtype, device=z.device)[batch.y]
        r_mean = member @ references
        r_deviation = member @ (F.softplus(params[f"{REFERENCE}.raw"]) + SMALLEST_DEVIATION)
        gap = gaussian_gap(mean, deviation.square(), r_mean, r_deviation.square())
        l2, cmi = row_mean(size.mean(1), batch.weight), row_mean(gap, batch.weight)
        terms = {"ce": task.detach(), "l2": l2.detach(), "cmi": cmi.detach()}
        return Loss(task + self.norm_weight * l2 + self.cmi_weight * cmi, terms)

    def predict_server(self, server: Params, x: Any, noise: Tensors | None = None) -> Tensor | None:
        """Outputs of the averaged model."""
        return self.predict(server, {}, x, noise) if self.federated else None
