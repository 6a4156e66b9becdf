"""Small networks as plain dicts of tensors: embedding φ_i, shared representation α, head β_i.

A network is a frozen description. `init` makes its parameters from the *true* input shape and a generator, and
calling it on parameters and a batch computes it. Parameters are named ``"<part>.<layer>.<kind>"``, e.g.
``"phi.0.weight"``, so that a method can name a part by its prefix.

Weights are stored as [in, out] and applied as ``x @ W``: under `torch.func.vmap` this becomes one batched product
whose gradients are contiguous.
"""

from hetfl_core.networks.composed import Auto, Blocks, Linear, PerClient
from hetfl_core.networks.images import CNN, Augmented, LeNet, NormalisedCNN, convolve
from hetfl_core.networks.layers import ACTIVATIONS, MLP, Draw, Network, Params, Tensors, layer_init, linear_init
from hetfl_core.networks.model import Model
from hetfl_core.networks.module import Module

__all__ = [
    "ACTIVATIONS",
    "CNN",
    "MLP",
    "Augmented",
    "Auto",
    "Blocks",
    "Draw",
    "LeNet",
    "Linear",
    "Model",
    "Module",
    "Network",
    "NormalisedCNN",
    "Params",
    "PerClient",
    "linear_init",
]
