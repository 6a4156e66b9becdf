"""FedPer, LG-FedAvg and FedBABU: which part of one network is shared, and which is trained when.

=========== ============== ===================== =======================
method      shared         trained in a round    trained at the end
=========== ============== ===================== =======================
FedPer      the body       all                   the head
LG-FedAvg   the head       all                   the body
FedBABU     the body       the body              all (or one of the two)
=========== ============== ===================== =======================

The body is all of a model but its head β. FedRep (`hetfl_core.methods.fedrep`) shares the body too and trains one part
after the other.

References
----------
.. [1] M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary. Federated learning with personalization layers.
   arXiv:1912.00818, 2019.
.. [2] P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency. Think
   locally, act globally: federated learning with local and global representations. arXiv:2001.01523, 2020.
.. [3] J. Oh, S. Kim, S.-Y. Yun. FedBABU: towards enhanced representation for federated image classification.
   ICLR 2022.
.. [4] H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong. FedCR: personalized federated learning based on across-client common
   representation with conditional mutual information regularization. ICML 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Method, Role, Stage, pick
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import BODY, HEAD, one_of_each


@dataclass(frozen=True)
class FedPer(Method):
    r"""A shared body, a local head, trained together ([1]_). Clients must share a feature space.

    .. math:: \min_{\phi,\, \beta_1, \dots, \beta_b} \sum_i \omega_i f_i(\phi, \beta_i)

    After the last round each client trains its head alone, as FedCR's comparison does ([4]_).

    Parameters
    ----------
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    shared: ClassVar[tuple[str, ...]] = BODY

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all parts when selected; at the end on the head."""
        return self.usual_stages(self.model.parts, HEAD, round, role)


@dataclass(frozen=True)
class LGFedAvg(Method):
    r"""A local body, a shared head, trained together ([2]_): clients may hold inputs of any shape.

    .. math:: \min_{\phi_1, \dots, \phi_b,\, \beta} \sum_i \omega_i f_i(\phi_i, \beta)

    After the last round each client trains what is its own.

    Parameters
    ----------
    layers : tuple of str
        What else is shared, as prefixes of parameters. FedCR's published code ([4]_) shares the last hidden layer of
        its networks too: ``("phi.3",)`` of a `LeNet` of two convolutions and two hidden layers, most of its numbers.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    layers: tuple[str, ...] = ()

    name: ClassVar[str] = "LG-FedAvg"

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The shared parts: the head, and the layers named."""
        return (*HEAD, *self.layers)

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse layers that no client has, and such as have not one shape on all."""
        for spec in one_of_each(self.model, specs):
            params = self.model.init(spec, torch.Generator(), self.model.parts)
            for prefix in self.layers:
                if not pick(params, (prefix,)):
                    raise WrongValue(f"layers must be prefixes of parameters such as {sorted(params)}, got {prefix!r}")
        super().check(specs)

    def init_shared(self, spec: Spec, rng: torch.Generator) -> Params:
        """One fresh copy of what is shared, layers included."""
        return pick(self.model.init(spec, rng, self.model.parts), self.shared)

    def init_client(self, spec: Spec, rng: torch.Generator) -> Params:
        """What a client keeps: all parameters that are not shared."""
        whole = self.model.init(spec, rng, self.model.parts)
        common = pick(whole, self.shared)
        return {name: p for name, p in whole.items() if name not in common}

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all parts when selected; at the end on what is local."""
        if role == "round":
            return [self.stage(self.model.parts, round)]
        return [self.finetuning(self.model.body, round, spare=self.layers)] if role == "final" else []


@dataclass(frozen=True)
class FedBABU(Method):
    r"""Only the body is trained and averaged, at a random head that nobody moves ([3]_). One feature space.

    .. math:: \min_{\phi} \sum_i \omega_i f_i(\phi, \beta^{(0)})

    All clients have the same head, from the server, which sends it with the body; only the body comes back. The whole
    model is fine-tuned after the last round. In FedCR's published code the head is trained in each round, so that what
    it calls FedBABU is `FedPer`.

    Parameters
    ----------
    tuned : {"all", "head", "body"}
        What is fine-tuned: [3]_ compares the three and takes all.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    tuned: Literal["all", "head", "body"] = "all"

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The shared parts, body and head: no client has parts of its own."""
        return self.model.parts

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on the body when selected; at the end on what is tuned."""
        parts = {"all": self.model.parts, "head": HEAD, "body": self.model.body}
        return self.usual_stages(parts["body"], parts[self.tuned], round, role)

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client after training: the body."""
        return pick(params, BODY)
