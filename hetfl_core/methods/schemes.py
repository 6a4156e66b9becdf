r"""Personalised schemes: of which shared and local weights a client's head θ_i is made, and what is trained when.

Table 2 of [1]_ names three that fit behind the embeddings φ_i:

========= ============== =====================================
scheme    local model    local weights
========= ============== =====================================
FedAvg-FT g_θ            θ_i = θ, fine-tuned at the end
L2GD      g_θ            θ_i = ω α + (1 − ω) β_i
FedRep    g_β ∘ g_α      θ_i = [α, β_i]
========= ============== =====================================

Algorithm 1 of [1]_ is written for FedRep. With another scheme its lines read: in the M local epochs (7–9) φ_i and the
local weights descend, and with them the shared ones where a scheme has no local weights. Then the anchors descend (14),
at the shared weights as the local epochs left them, and then the shared weights (13), where they were not trained
before. The server averages the shared weights (18). The last local training is once more the M local epochs.

The head is `Model`'s: a hidden layer ``alpha``, where the model has one, and the classifier ``beta``.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024.
.. [2] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting shared representations for personalized
   federated learning. ICML 2021.
.. [3] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. FedAvg with fine tuning: local updates lead to
   representation learning. NeurIPS 2022.
.. [4] F. Hanzely, P. Richtárik. Federated learning of a mixture of global and local models. arXiv:2002.05516, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hetfl_core.errors import WrongType
from hetfl_core.federation import Spec
from hetfl_core.networks import Model, Params, Tensors
from hetfl_core.settings import Checked, Share

BEHIND = ("alpha", "beta")
"""Parts of a model behind its embedding."""


@dataclass(frozen=True)
class Scheme(Checked):
    """A personalised scheme, which says which prefixes of parameters are shared and which are local."""

    name: ClassVar[str] = ""
    """Name in Table 2 of [1]_."""
    joint: ClassVar[bool] = False
    """Whether the shared weights are trained in the M local epochs, and not after them."""
    classifier: ClassVar[str] = "beta.weight"
    """The parameter that `FLIC.head_decay` acts on."""
    layers: ClassVar[tuple[str, ...]] = ("alpha.weight",)
    """The parameters that `FLIC.shared_decay` acts on."""

    common: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the weights that the server averages."""
    own: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the weights that stay on the client."""
    words: ClassVar[str] = ""
    """What is shared, in words."""

    def __post_init__(self) -> None:
        if not self.name:
            raise WrongType("a scheme must be one of its subclasses, which say what is shared; got Scheme itself")

    def shared(self, model: Model) -> tuple[str, ...]:
        """Prefixes of the weights that the server averages, with this model: α only where it has one.

        Parameters
        ----------
        model : Model

        Returns
        -------
        tuple of str
        """
        return tuple(part for part in self.common if part != "alpha" or model.alpha is not None)

    def init(self, model: Model, spec: Spec, rng: torch.Generator, prefixes: tuple[str, ...]) -> Params:
        """Fresh weights of some of a scheme's prefixes.

        Parameters
        ----------
        model : Model
        spec : Spec
            Of the client.
        rng : torch.Generator
            On the CPU.
        prefixes : tuple of str
            Some of `common` or `own`.

        Returns
        -------
        dict of str to Tensor
        """
        return model.init(spec, rng, prefixes)

    def weights(self, params: Tensors) -> Tensors:
        """θ_i under the names that `Model.head` reads, made of shared and local weights.

        Parameters
        ----------
        params : dict of str to Tensor
            Shared and local weights.

        Returns
        -------
        dict of str to Tensor
        """
        return params

    def during(self, model: Model) -> tuple[str, ...]:
        """Prefixes trained with φ_i in the M local epochs, and in the last local training.

        Parameters
        ----------
        model : Model

        Returns
        -------
        tuple of str
        """
        return (*self.own, *(self.shared(model) if self.joint else ()))

    def after(self, model: Model) -> tuple[str, ...]:
        """Prefixes trained after the M local epochs.

        Parameters
        ----------
        model : Model

        Returns
        -------
        tuple of str
        """
        return () if self.joint else self.shared(model)


@dataclass(frozen=True)
class FedRepScheme(Scheme):
    """θ_i = [α, β_i]: a shared hidden layer, a local classifier ([2]_). Without a hidden layer, nothing is shared."""

    name: ClassVar[str] = "FedRep"
    common: ClassVar[tuple[str, ...]] = ("alpha",)
    own: ClassVar[tuple[str, ...]] = ("beta",)
    words: ClassVar[str] = "a hidden layer α"


@dataclass(frozen=True)
class FedAvgFTScheme(Scheme):
    """θ_i = θ: the whole head is shared and trained with φ_i, and each client fine-tunes its copy at the end ([3]_).

    In the rounds this is FedAvg on the head. Nothing of the fine-tuned head goes back to the server.
    """

    name: ClassVar[str] = "FedAvgFT"
    joint: ClassVar[bool] = True
    common: ClassVar[tuple[str, ...]] = BEHIND
    words: ClassVar[str] = "a head that is fine-tuned at the end"


@dataclass(frozen=True)
class L2GDScheme(Scheme):
    """θ_i = ω α + (1 − ω) β_i, entry by entry over the whole head: a mixture of a shared and a local head ([4]_).

    The two heads have the same architecture; α starts at the server, β_i on its client, independently. β_i is trained
    in the local epochs at the α received, α after them at the new β_i, as Algorithm 1 of [1]_ does with FedRep's
    parts. (L2GD itself draws at random whether a step descends or mixes, and keeps one model per client; Table 2 takes
    its mixture, not its schedule.)

    Parameters
    ----------
    omega : float
        ω in [0, 1]. At 1 the head is the server's alone, at 0 the client's alone.
    """

    omega: Share = 0.5

    name: ClassVar[str] = "L2GD"
    classifier: ClassVar[str] = "own.beta.weight"
    layers: ClassVar[tuple[str, ...]] = ("own.alpha.weight", "common.alpha.weight", "common.beta.weight")
    common: ClassVar[tuple[str, ...]] = ("common",)
    own: ClassVar[tuple[str, ...]] = ("own",)
    words: ClassVar[str] = "one of two heads that are mixed"

    def init(self, model: Model, spec: Spec, rng: torch.Generator, prefixes: tuple[str, ...]) -> Params:
        """A whole head for each prefix, e.g. ``"own.beta.weight"``."""
        heads = {prefix: model.init(spec, rng, BEHIND) for prefix in prefixes}
        return {f"{prefix}.{name}": p for prefix, head in heads.items() for name, p in head.items()}

    def weights(self, params: Tensors) -> Tensors:
        """The mixture ω α + (1 − ω) β_i under the names of a plain head."""
        own = {name.removeprefix("own."): p for name, p in params.items() if name.startswith("own.")}
        return {name: self.omega * params[f"common.{name}"] + (1 - self.omega) * p for name, p in own.items()}
