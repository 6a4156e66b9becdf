"""FedRep, and its adaptation to clients without a common feature space.

References
----------
.. [1] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting shared representations for personalized
   federated learning. ICML 2021.
.. [2] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hetfl_core.methods.base import Method, Role, Stage
from hetfl_core.networks import Model
from hetfl_core.networks.layers import BODY
from hetfl_core.settings import Count


@dataclass(frozen=True)
class FedRep(Method):
    r"""Shared representation, local heads ([1]_, Algorithm 1). Clients must share a feature space.

    .. math:: \min_{\phi} \sum_i \omega_i \min_{\beta_i} f_i(\phi, \beta_i)

    A participant trains its head for M epochs with the representation frozen, then the representation for
    `representation_epochs` with the head frozen; the server averages the representation.

    Parameters
    ----------
    representation_epochs : int
        Epochs on the shared parts after the local ones; 1 in FLIC's experiments.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    representation_epochs: Count = 1

    shared: ClassVar[tuple[str, ...]] = BODY

    def stages(self, round: int, role: Role) -> list[Stage]:
        """Train the local parts for M epochs, then the shared ones."""
        if role == "round":
            common = self.stage(self.shared, round, epochs=self.representation_epochs)
            return [self.stage(self.local, round), common]
        return [self.finetuning(self.local, round)] if role == "final" else []


@dataclass(frozen=True)
class HetFedRep(FedRep):
    r"""FedRep behind a local embedding ([2]_, Section 6, *Baselines*): φ_i and β_i local, α shared, no alignment.

    .. math:: \min_{\alpha} \sum_i \omega_i \min_{\phi_i,\, \beta_i} f_i(\phi_i, \alpha, \beta_i)

    Parameters
    ----------
    representation_epochs
        As for `FedRep`.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    model: Model = field(default_factory=lambda: Model(alpha=100))

    shared: ClassVar[tuple[str, ...]] = ("alpha",)
