"""Local training, FedAvg and FedAvg with fine-tuning: nothing shared, and everything shared.

References
----------
.. [1] B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-efficient learning of deep
   networks from decentralized data. AISTATS 2017.
.. [2] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. FedAvg with fine tuning: local updates lead to
   representation learning. NeurIPS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from hetfl_core.methods.base import Method, Role, Stage
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import HEAD


@dataclass(frozen=True)
class Local(Method):
    r"""Every client trains alone; nothing is sent. The baseline that federation has to beat.

    .. math:: \min_{w_i} f_i(w_i) \quad \text{for each client } i

    It follows the protocol of the others (a client trains in the rounds that select it, and after the last one), so
    that all methods take as many local steps.

    Parameters
    ----------
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all parameters, when selected and at the end."""
        return self.usual_stages(self.local, self.local, round, role)


@dataclass(frozen=True)
class FedAvg(Method):
    r"""One model for all, averaged after M local epochs ([1]_, Algorithm 1). Clients must share a feature space.

    With :math:`w_i` what participant i has after its epochs from :math:`w^{(t)}`, the server takes

    .. math:: w^{(t+1)} = \sum_i \frac{\omega_i}{\sum_j \omega_j}\, w_i.

    Parameters
    ----------
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The shared parts: all of the model."""
        return self.model.parts

    def predict_server(self, server: Params, x: Any, noise: Tensors | None = None) -> Tensor | None:
        """Logits of the averaged model."""
        return self.predict(server, {}, x, noise)

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all parameters when selected."""
        return self.usual_stages(self.shared, (), round, role)


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    r"""FedAvg, then fine-tuning on each client ([2]_; FLIC's Table 2).

    After the last round each client goes on by itself from the model of all,

    .. math:: w_i \leftarrow w_i - \eta \nabla f_i(w_i), \qquad \text{at first } w_i = w^{(T)}.

    Parameters
    ----------
    tuned : {"all", "head"}
        What the fine-tuning moves: the whole model, or the classifier β alone, as FedCR's comparison does.
    finetune_epochs : int, optional
        Epochs of the fine-tuning; with None as many as in a round.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    finetune_epochs: int | None = 10
    tuned: Literal["all", "head"] = "all"

    name: ClassVar[str] = "FedAvg-FT"

    def stages(self, round: int, role: Role) -> list[Stage]:
        """FedAvg's rounds, and `finetune_epochs` epochs at the end (10 unless told)."""
        if role != "final":
            return super().stages(round, role)
        parts = self.shared if self.tuned == "all" else HEAD
        return [self.finetuning(parts, round)]
