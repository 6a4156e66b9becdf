"""Late fusion: a classifier for each block of features, whose answers are averaged; and what methods of blocks share.

The simplest thing that can be done with clients that hold different blocks: nothing has to be matched, since each
block has its own extractor and its own head, and those are averaged over the clients that hold the block. It is what a
method that joins blocks within a network has to beat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from hetfl_core.clients import check_features
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Loss, Method
from hetfl_core.methods.fedavg import FedAvg
from hetfl_core.networks import Blocks, Params, Tensors, layer_init
from hetfl_core.networks.layers import has_prefix


def held_blocks(spec: Spec) -> list[str]:
    """The named blocks that a client holds: those that are not empty."""
    return [name for name, shape in spec.shapes.items() if 0 not in shape]


def full_spec(specs: Sequence[Spec]) -> Spec:
    """What the first client would be if it held every block that anybody holds."""
    each = {name: [spec.shapes[name] for spec in specs] for name in specs[0].shapes}
    return replace(specs[0], shapes={name: max(some, key=lambda s: (0 not in s, s)) for name, some in each.items()})


def of_blocks(params: Tensors, blocks: Sequence[str], layer: str) -> Params:
    """The parameters that a client with these blocks has: extractors, and rows of the layer over all blocks."""
    lacking = sorted(_named(params, layer) - set(blocks))
    prefixes = [f"phi.{name}" for name in lacking] + [f"{layer}.{name}" for name in lacking]
    return {name: p for name, p in params.items() if not any(has_prefix(name, prefix) for prefix in prefixes)}


def _named(params: Tensors, layer: str) -> set[str]:
    """The blocks that have a weight in a layer."""
    weights = [name for name in params if has_prefix(name, layer) and name.endswith(".weight")]
    return {name.removeprefix(f"{layer}.").removesuffix(".weight") for name in weights}


def check_blocks(method: Method, specs: Sequence[Spec], why: str) -> None:
    """Refuse blocks that their extractor does not take, and blocks of one name but of different shapes.

    Extractors could not be averaged then. Clients and blocks are named. Also a model with layers behind the embedding;
    `why` says what the method does there.
    """
    first: dict[str, Spec] = {}
    model = method.model.phi
    assert isinstance(model, Blocks)
    for spec in specs:
        method.model.of(spec)  # which refuses blocks without an extractor
        if not isinstance(spec.shapes, Mapping):
            raise WrongValue(f"{method.name}'s model takes named blocks; client {spec.name!r} has one tensor")
        for name in held_blocks(spec):
            if name not in first:
                try:
                    model.extractors[name].init(spec.shapes[name], torch.Generator())
                except ValueError as error:
                    why = f"the extractor of block {name!r} cannot take it: {error}"
                    raise WrongValue(f"client {spec.name!r}: {why}") from error
            other = first.setdefault(name, spec)
            here, there = spec.shapes[name], other.shapes[name]
            if here != there:
                raise WrongValue(
                    f"{method.name} averages the extractors of block {name!r}, which must have one shape on all "
                    f"clients that hold it: {there} on {other.name!r} but {here} on {spec.name!r}"
                )
    for name in first:
        holders = [spec for spec in specs if name in held_blocks(spec)]
        check_features(holders, f"{method.name} averages the extractors of block {name!r}", name)
    if method.model.alpha is not None or method.model.gaussian is not None:
        raise WrongValue(f"{method.name} {why}: the model must have no alpha or gaussian")


@dataclass(frozen=True)
class LateFusion(FedAvg):
    r"""An extractor and a head for each block, averaged over those who hold it; the blocks' answers are averaged.

    .. math:: p_i(y \mid x) = \frac{1}{|B_i|} \sum_{b \in B_i} \operatorname{softmax}\bigl(g_b(h_b(x_b))\bigr)_y

    Each block learns by itself: the loss is the mean of the blocks' losses. Probabilities are averaged over the blocks
    that a client, or the server, has (of a regression, the predicted numbers). With plain inputs there is one block,
    and this is FedAvg. It keeps the extractors of a `hetfl_core.networks.Blocks` and not the layer over them.

    Parameters
    ----------
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    name: ClassVar[str] = "late fusion"

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse models with a layer behind the embedding, which there is no common one of."""
        if self.model.blocks is None:
            return super().check(specs)
        check_blocks(self, specs, "has a head for each block")

    def init_server(self, specs: Sequence[Spec], rng: torch.Generator) -> Params:
        """The server's first tensors: h_b and its head, of each block that anybody holds."""
        if self.model.blocks is None:
            return super().init_server(specs, rng)
        spec = full_spec(specs)
        params: Params = {}
        for name, extractor in self.model.blocks.of_client(spec.name, spec.shapes).extractors.items():
            params |= extractor.init(spec.shapes[name], rng, f"phi.{name}")
            params |= layer_init(rng, f"beta.{name}", extractor.out, spec.outputs)
        return params

    def download(self, server: Params, spec: Spec) -> Params:
        """What is sent to a client: the tensors of its blocks."""
        return server if self.model.blocks is None else of_blocks(server, held_blocks(spec), "beta")

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective: the mean over blocks of each block's own loss."""
        if self.model.blocks is None:
            return super().loss(params, received, batch, noise)
        each = [batch.loss(outputs) for outputs in self._outputs(params, batch.x, noise)]
        task = torch.stack([loss.total for loss in each]).mean()
        return Loss(task, dict.fromkeys(each[0].terms, task.detach()))

    def _outputs(self, params: Params, x: Any, noise: Tensors | None = None) -> list[Tensor]:
        """Outputs of each block's classifier, shapes (n, C)."""
        assert self.model.blocks is not None
        found = []
        for name in self.model.blocks.present(x):
            z = self.model.blocks.extractors[name](params, x[name], noise, f"phi.{name}")
            found.append(torch.addmm(params[f"beta.{name}.bias"], z, params[f"beta.{name}.weight"]))
        return found

    def predict(self, params: Params, received: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        r"""Logarithms of the blocks' mean probabilities, shape (n, C); of a regression the mean, (n, 1)."""
        if self.model.blocks is None:
            return super().predict(params, received, x, noise)
        each = torch.stack(self._outputs(params, x))
        if each.shape[-1] == 1:
            return each.mean(0)
        return each.log_softmax(-1).logsumexp(0) - math.log(len(each))

    def embed(self, params: Params, received: Params, x: Any) -> Tensor:
        """Features that the extractors find, side by side."""
        if self.model.blocks is None:
            return super().embed(params, received, x)
        net = self.model.blocks
        return torch.cat([net.extractors[n](params, x[n], None, f"phi.{n}") for n in net.present(x)], 1)
