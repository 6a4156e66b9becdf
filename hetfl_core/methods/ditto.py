r"""Ditto: a model of one's own, kept near the server's.

References
----------
.. [1] T. Li, S. Hu, A. Beirami, V. Smith. Ditto: fair and robust federated learning through personalization. ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Loss, Role, Stage
from hetfl_core.methods.fedavg import FedAvg
from hetfl_core.methods.fedprox import drift
from hetfl_core.networks import Params, Tensors
from hetfl_core.settings import NotNegative

OWN = "own"


@dataclass(frozen=True)
class Ditto(FedAvg):
    r"""FedAvg, and on each client a model :math:`v_i` that pays for leaving the server's ([1]_, Algorithm 1).

    A participant minimises for M epochs, w⁽ᵗ⁾ as it was received,

    .. math:: f_i(v_i) + \frac{\lambda}{2}\|v_i - w^{(t)}\|^2,

    and :math:`f_i(w)` from w⁽ᵗ⁾ for M epochs; it sends w. Only v_i predicts. Clients must share a feature space,
    unless embeddings stay with them.

    Parameters
    ----------
    term_weight : float
        λ, the weight of the proximal term. At 0 v_i is what `Local` learns; as it grows, v_i follows w⁽ᵗ⁾.
    embeddings : {"shared", "own"}
        Whether all of w is averaged, or only what stands behind φ: each client then has two embeddings of its own,
        w's and v's, inputs may differ, and λ draws only what is averaged.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    term_weight: NotNegative = 0.1
    embeddings: Literal["shared", "own"] = "shared"

    names = {"Ditto": {}, "Ditto, own embeddings": {"embeddings": "own"}}

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The shared parts: all, or those behind φ."""
        return tuple(part for part in self.model.parts if self.embeddings == "shared" or part != "phi")

    def init_client(self, spec: Spec, rng: torch.Generator) -> Params:
        """What a client keeps: v_i, its names led by ``own``; and w's embedding, where it is the client's."""
        own = {f"{OWN}.{name}": p for name, p in self.model.init(spec, rng, self.model.parts).items()}
        return {**own, **super().init_client(spec, rng)}

    def stages(self, round: int, role: Role) -> list[Stage]:
        """Train v_i, then w, when selected; all of v_i once more at the end, as FedCR's published code has it."""
        if role == "round":
            return [self.stage((OWN,), round, loss=self.personal_loss), self.stage(self.model.parts, round)]
        return [self.finetuning((OWN,), round, loss=self.personal_loss)] if role == "final" else []

    def personal_loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective of v_i, f_i(v) + (λ/2)‖v − w⁽ᵗ⁾‖², Eq. (2) of [1]_."""
        own = _own(params)
        task = self.loss(own, received, batch, noise)
        away = drift(own, received)
        terms = {**{f"{OWN} {name}": value for name, value in task.terms.items()}, "drift": away.detach()}
        return Loss(task.total + self.term_weight / 2 * away, terms)

    def predict(self, params: Params, received: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        r"""Logits of v_i, shape (n, \*shape) → (n, C)."""
        return super().predict(_own(params), received, x, noise)

    def predict_server(self, server: Params, x: Any, noise: Tensors | None = None) -> Tensor | None:
        """Logits of w, where the server has all of it."""
        return super().predict(server, {}, x, noise) if self.embeddings == "shared" else None

    def embed(self, params: Params, received: Params, x: Any) -> Tensor:
        r"""Latent features of v_i, shape (n, \*shape) → (n, k)."""
        return super().embed(_own(params), received, x)


def _own(params: Tensors) -> Params:
    """The parameters of v_i under the names of a plain model."""
    return {name.removeprefix(f"{OWN}."): p for name, p in params.items() if name.startswith(f"{OWN}.")}
