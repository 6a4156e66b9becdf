"""FedProx: FedAvg whose clients pay for drifting away.

References
----------
.. [1] T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated optimization in heterogeneous
   networks. MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hetfl_core.methods.base import Batch, Loss
from hetfl_core.methods.fedavg import FedAvg
from hetfl_core.networks import Params, Tensors
from hetfl_core.settings import NotNegative


def drift(params: Tensors, received: Tensors) -> Tensor:
    """Squared distance ‖w − w⁽ᵗ⁾‖² over the tensors that are in both, shape ()."""
    both = [(params[name] - received[name]).square().sum() for name in received if name in params]
    return torch.stack(both).sum()


@dataclass(frozen=True)
class FedProx(FedAvg):
    r"""FedAvg whose clients stay near the server's model ([1]_, Algorithm 2). Clients must share a feature space.

    A participant minimises, w⁽ᵗ⁾ as it was received,

    .. math:: f_i(w) + \frac{\mu}{2}\|w - w^{(t)}\|^2.

    Parameters
    ----------
    term_weight : float
        μ, the weight of the proximal term. At 0 it is `FedAvg`.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    term_weight: NotNegative = 0.1

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective f_i(w) + (μ/2)‖w − w⁽ᵗ⁾‖², Eq. (2) of [1]_."""
        task = super().loss(params, received, batch, noise)
        away = drift(params, received)
        return Loss(task.total + self.term_weight / 2 * away, {**task.terms, "drift": away.detach()})
