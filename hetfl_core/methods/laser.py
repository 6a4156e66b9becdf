r"""LASER-VFL's fusion of blocks ([1]_), for clients with samples of their own: a mean over any subset of the blocks.

Each block has an extractor, and one linear head takes the *mean* of what the extractors of the blocks at hand find. So
it works on any set of blocks; and it is trained on any set of them: the loss is the mean over all subsets S of the
client's n blocks that are not empty,

.. math:: \frac{1}{2^n - 1} \sum_{S} \ell\big(h(\tfrac{1}{|S|} \sum_{b \in S} h_b(x_b)), y\big),

of which a step takes one random subset of each size k, with weight :math:`\binom{n}{k} / (2^n - 1)`. In [1]_ the
blocks of *one* sample lie at several parties, which send features at each step, and each party has a head of its own.
Here a client has whole samples, of its blocks, and extractors and head are averaged, as HyFEM's comparison has it. A
layer over sums of blocks, as HyFEM's classifier has, meets sums at the server that no client has trained on; this one
does not.

References
----------
.. [1] P. Valdeira, S. Wang, Y. Chi. Vertical federated learning with missing features during training and inference.
   ICLR 2025. Published code: https://github.com/Valdeira/LASER-VFL, commit eda6de2, models/model_utils.py and
   methods/laser.py, line 131, for the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Loss, Stage, pick
from hetfl_core.methods.fedavg import FedAvg
from hetfl_core.methods.fusion import check_blocks, full_spec, held_blocks
from hetfl_core.networks import Draw, Params, Tensors, layer_init

SUBSETS = "subsets"


@dataclass(frozen=True)
class LaserVFL(FedAvg):
    """One linear head over the mean of the blocks' features, trained on random subsets of a client's blocks ([1]_).

    Extractors, one a block, must have one width; the layer over all blocks of a `hetfl_core.networks.Blocks` is not
    used. With plain inputs there is one block, and this is FedAvg.

    Parameters
    ----------
    subsets : bool
        Whether it is trained on random subsets of the client's blocks, or on all of them at once.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    subsets: bool = True

    name: ClassVar[str] = "LASER-VFL"

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse extractors of several widths, whose features have no mean, and layers behind the embedding."""
        if self.model.blocks is None:
            return super().check(specs)
        check_blocks(self, specs, "has one head over the mean of all blocks")
        widths = {name: extractor.out for name, extractor in self.model.blocks.extractors.items()}
        if len(set(widths.values())) > 1:
            raise WrongValue(
                f"{self.name} takes the mean of the blocks' features: extractors must be alike in out, got {widths}"
            )

    def init_server(self, specs: Sequence[Spec], rng: torch.Generator) -> Params:
        """The server's first tensors: h_b of each block that anybody holds, and the head."""
        if self.model.blocks is None:
            return super().init_server(specs, rng)
        spec = full_spec(specs)
        params: Params = {}
        extractors = self.model.blocks.of_client(spec.name, spec.shapes).extractors
        for name, extractor in extractors.items():
            params |= extractor.init(spec.shapes[name], rng, f"phi.{name}")
        return params | layer_init(rng, "beta", next(iter(extractors.values())).out, spec.outputs)

    def download(self, server: Params, spec: Spec) -> Params:
        """What is sent to a client: the extractors of its blocks, and the head."""
        if self.model.blocks is None:
            return server
        return pick(server, ["beta", *(f"phi.{name}" for name in held_blocks(spec))])

    def noise(self, spec: Spec, stage: Stage) -> dict[str, Draw]:
        """What the extractors want, and numbers by whose order the subsets of each size are drawn."""
        drawn = super().noise(spec, stage)
        if self.model.blocks is None or not self.subsets:
            return drawn
        n = len(held_blocks(spec))
        return {**drawn, SUBSETS: Draw((n, n), "uniform")}

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective: the mean over subsets of the blocks, estimated by one of each size; or that of all blocks."""
        if self.model.blocks is None:
            return super().loss(params, received, batch, noise)
        found = self._features(params, batch.x, noise)
        whole = batch.loss(self.model.head(params, found.mean(0)))
        if SUBSETS not in noise:
            return whole
        n, total = len(found), torch.zeros_like(whole.total)
        for k, order in enumerate(noise[SUBSETS], 1):
            chosen = (order.argsort().argsort() < k).to(found.dtype)
            mean = torch.tensordot(chosen, found, 1) / k
            total = total + math.comb(n, k) / (2**n - 1) * batch.loss(self.model.head(params, mean)).total
        return Loss(total, whole.terms)

    def _features(self, params: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        """What the extractors find, shape (blocks, n, k)."""
        assert self.model.blocks is not None
        net = self.model.blocks
        return torch.stack([net.extractors[b](params, x[b], noise, f"phi.{b}") for b in net.present(x)])

    def predict(self, params: Params, received: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        """The head's outputs for the mean over the blocks that are there, shape (n, C)."""
        if self.model.blocks is None:
            return super().predict(params, received, x, noise)
        return self.model.head(params, self._features(params, x).mean(0))

    def embed(self, params: Params, received: Params, x: Any) -> Tensor:
        """The mean of what the extractors find."""
        return super().embed(params, received, x) if self.model.blocks is None else self._features(params, x).mean(0)
