r"""pFedHN: a hyper-network at the server makes each client's weights from an embedding of the client ([1]_).

The server holds an embedding :math:`v_i` of each client and a network :math:`h_\varphi` with
:math:`\theta_i = h_\varphi(v_i)`. A client gets :math:`\theta_i`, trains it to :math:`\tilde\theta_i` and sends
:math:`\Delta\theta_i = \theta_i - \tilde\theta_i`; the server takes a step along

.. math::
   \Big(\frac{\partial \theta_i}{\partial (\varphi, v_i)}\Big)^\top \Delta\theta_i,

which for one local step is the gradient of the client's loss. With ``personal="head"`` (pFedHN-PC) the hyper-network
makes all but the head, which stays on the client. Weights are made, not averaged, yet all clients' must have the same
shapes.

The published code ([2]_) lets one client take part in a step, drawn at random, so ``participation=1 / n_clients``; of
several, weighted means of their gradients are taken. Its pFedHN-PC gives each head an optimizer that goes on from
participation to participation and is not clipped; here body and head have one, begun anew. It evaluates the weights as
they are made, with no training after the last step, and reports test accuracy at the step of the best validation
accuracy, which is not done here.

References
----------
.. [1] A. Shamsian, A. Navon, E. Fetaya, G. Chechik. Personalized federated learning using hypernetworks. ICML 2021.
.. [2] https://github.com/AvivSham/pFedHN, experiments/pfedhn and experiments/pfedhn_pc.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Method, Momentum, Role, Specs, Stage, Uploads, Weights, pick
from hetfl_core.methods.server import descend, without_state
from hetfl_core.networks import Params, Tensors, linear_init
from hetfl_core.networks.layers import HEAD, layers_init
from hetfl_core.settings import Count, Natural, NotNegative, Positive


@dataclass(frozen=True)
class PFedHN(Method):
    """A hyper-network makes each client's weights, all or those of the body ([1]_). One feature space.

    Parameters
    ----------
    personal : {"nothing", "head"}
        What stays on the client: pFedHN, or pFedHN-PC, of which each client trains the head once more at the end.
    embedding : int, optional
        Numbers that stand for a client; by default 1 + b/4, rounded down, as in [2]_.
    hidden, hidden_layers : int
        Width of the hyper-network's layers, and how many follow the first.
    server_lr, server_momentum, server_weight_decay, server_clip
        SGD of the server, and the largest norm of its gradient.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    personal: Literal["nothing", "head"] = "nothing"
    embedding: Count | None = None
    hidden: Count = 100
    hidden_layers: Natural = 3
    server_lr: NotNegative = 1e-2
    server_momentum: Momentum = 0.9
    server_weight_decay: NotNegative = 1e-3
    server_clip: Positive = 50.0

    names = {"pFedHN": {}, "pFedHN-PC": {"personal": "head"}}

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parts that the hyper-network makes."""
        return tuple(part for part in self.model.parts if self.personal == "nothing" or part not in HEAD)

    # --- the server ---

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors: embeddings from N(0, I) and a fresh hyper-network."""
        width = self.embedding or 1 + specs[0].n_clients // 4
        server = {f"embedding/{spec.name}": torch.randn(width, generator=rng, dtype=torch.float32) for spec in specs}
        server |= layers_init(rng, "hyper", itertools.pairwise([width, *[self.hidden] * (1 + self.hidden_layers)]))
        for name, p in self.init_shared(specs[0], Generator()).items():
            server[f"make/{name}/weight"] = linear_init(rng, self.hidden, self.hidden, *p.shape)
            server[f"make/{name}/bias"] = linear_init(rng, self.hidden, *p.shape)
        return server

    def made(self, server: Params, client: str) -> Params:
        """A client's weights θ_i = h(v_i), as the hyper-network makes them."""
        z = server[f"embedding/{client}"]
        for layer in range(1 + self.hidden_layers):
            z = (z if layer == 0 else z.relu()) @ server[f"hyper.{layer}.weight"] + server[f"hyper.{layer}.bias"]
        names = (n.removeprefix("make/").removesuffix("/bias") for n in server if n.startswith("make/"))
        targets = dict.fromkeys(n.removesuffix("/weight") for n in names)
        return {n: torch.tensordot(z, server[f"make/{n}/weight"], 1) + server[f"make/{n}/bias"] for n in targets}

    def download(self, server: Params, spec: Spec) -> Params:
        """What is sent to a client: its weights."""
        with torch.no_grad():
            return self.made(server, spec.name)

    def join(self, server: Params, specs: Specs, rng: Generator) -> Params:
        """The server's tensors with the mean embedding for new clients, which the hyper-network has never seen."""
        mean = torch.stack([p for name, p in server.items() if name.startswith("embedding/")]).mean(0)
        return {**server, **{f"embedding/{spec.name}": mean for spec in specs}}

    # --- the client ---

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all weights when selected; at the end on the head, where it is the client's own."""
        return self.usual_stages(self.model.parts, HEAD if self.personal == "head" else (), round, role)

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client: Δθ_i = θ_i − θ̃_i."""
        return {name: received[name] - params[name] for name in pick(received, self.shared)}

    beyond_sums = "each client's step goes through the hyper-network with its own embedding"

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors after a step along the weighted mean of the participants' gradients."""

        def objective(tensors: Params, step: int) -> Tensor:
            total = tensors["hyper.0.bias"].new_zeros(())
            for spec, moved, weight in zip(specs, uploads, weights, strict=True):
                made = self.made(tensors, spec.name)
                total = total + weight / sum(weights) * torch.stack([(made[n] * moved[n]).sum() for n in moved]).sum()
            return total

        stage = Stage(
            tuple(without_state(server)),
            steps=1,
            optimizer="sgd",
            lr=self.server_lr,
            momentum=self.server_momentum,
            weight_decay=self.server_weight_decay,
        )
        return descend(server, objective, stage, clip=self.server_clip)
