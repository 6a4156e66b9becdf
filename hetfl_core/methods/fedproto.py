r"""FedProto ([1]_): clients share nothing but the mean feature of each class, and are drawn to that of all.

Networks stay on the clients and may differ, but for the latent dimension. A round is, for the classes j and clients i:

.. math:: C_i^{(j)} = \frac{1}{n_i^{(j)}} \sum_{y = j} \varphi_i(x), \qquad
          \bar C^{(j)} = \frac{\sum_i n_i^{(j)} C_i^{(j)}}{\sum_i n_i^{(j)}}, \qquad
          f_i + \lambda \, \mathrm{mean}_{(x, y)} \tfrac1k \|\varphi_i(x) - \bar C^{(y)}\|^2,

what a client sends, what the server makes of it, and what the client then minimises.

References
----------
.. [1] Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang. FedProto: federated prototype learning across
   heterogeneous clients. AAAI 2022.
.. [2] https://github.com/yuetan031/FedProto, commit cb3c41f: lib/update.py, lines 115 to 192.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from hetfl_core.methods.base import Batch, Loss, Method, Role, Specs, Stage, Uploads, Weights, row_mean
from hetfl_core.networks import Params, Tensors
from hetfl_core.settings import NotNegative


@dataclass(frozen=True)
class FedProto(Method):
    """Local networks whose features are drawn to the mean feature of their class over all clients ([1]_).

    The distance is the mean over the k coordinates, as in the published code [2]_; classes of which the server knows no
    mean do not draw. Means are those of the network as local training leaves it (the code takes what it found on the
    way), weighted by samples of the class. Classes are told by the client's own head.

    Parameters
    ----------
    term_weight : float
        λ, the weight of the distance; 0 is `Local`.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    term_weight: NotNegative = 1.0

    needs_classes: ClassVar[bool] = True
    beyond_sums: ClassVar[str] = "its server weights each client's means by its samples of the class"

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors: no mean of any class is known."""
        C, k = specs[0].n_classes, self.model.of(specs[0]).latent
        return {
            "mean": torch.zeros(C, k, dtype=torch.float32),
            "known": torch.zeros(C, dtype=torch.float32),
        }

    def start(self, client_state: Params, received: Params) -> Params:
        """The working copy: the client's own network."""
        return dict(client_state)

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all parameters, when selected and at the end."""
        return self.usual_stages(self.local, self.local, round, role)

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective: the task's loss, and the distance of features from the mean of their class."""
        z = self.model.embed(params, batch.x, noise)
        task = batch.loss(self.model.head(params, z))
        member = torch.eye(len(received["known"]), dtype=z.dtype, device=z.device)[batch.y]
        gaps = (z - member @ received["mean"]).square().mean(1) * (member @ received["known"])
        distance = row_mean(gaps, batch.weight)
        return Loss(task.total + self.term_weight * distance, {**task.terms, "distance": distance.detach()})

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client: its mean feature of each class that it has."""
        z = self.model.embed(params, data.x)
        return {f"mean/{c}": z[data.y == c].mean(0) for c in data.y.unique().tolist()}

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The mean of each class over those who sent one, by their samples of it; others stay as they are."""
        mean, known = server["mean"].clone(), server["known"].clone()
        for c in range(len(known)):
            sent = [(u[f"mean/{c}"], spec) for u, spec in zip(uploads, specs, strict=True) if f"mean/{c}" in u]
            if sent:
                counts = torch.tensor([spec.class_counts[c] for _, spec in sent], dtype=mean.dtype, device=mean.device)
                mean[c] = torch.stack([each for each, _ in sent]).to(mean).T @ (counts / counts.sum())
                known[c] = 1.0
        return {**server, "mean": mean, "known": known}
