"""What networks are made of: parameters, declared random numbers, linear layers; and the fully connected network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl_core.errors import WrongType
from hetfl_core.federation import Spec
from hetfl_core.settings import Checked, Count, Dropout

Params = dict[str, Tensor]
"""Parameters by name, ``"<part>.<layer>.<kind>"``, or any other tensors that are kept or sent by name."""

Tensors = Mapping[str, Tensor]
"""Tensors by name that are read and not written, such as random numbers by the names under which they are declared."""

ACTIVATIONS = {"relu": torch.relu, "leaky_relu": F.leaky_relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
"""The functions between layers, by name."""

Activation = Literal["relu", "leaky_relu", "sigmoid", "tanh"]

PARTS = ("phi", "gaussian", "alpha", "beta")
"""What models can be made of; not every one has a Gaussian layer and an α."""

BODY, HEAD = PARTS[:3], PARTS[3:]
"""The parts before the head, and the head."""

RUNNING = (".norm.mean", ".norm.variance")
"""What the names of running statistics end with, which follow batches and which no training moves."""

SMALLEST_DEVIATION = 1e-4
"""What is added to the softplus of a Gaussian layer: precisions and their gradients must fit into float32."""


def has_prefix(name: str, prefix: str) -> bool:
    """Whether a parameter belongs to a part: ``phi.0.weight`` to ``phi``, but ``phi2.weight`` does not."""
    return name == prefix or name.startswith(prefix + ".")


def missing(parts: Iterable[str], params: Iterable[str]) -> list[str]:
    """Parts of which there is no parameter, but for those that not every model has: most likely misspelt."""
    return [p for p in parts if p not in PARTS and not any(has_prefix(name, p) for name in params)]


@dataclass(frozen=True)
class Draw(Checked):
    """Random numbers that a method declares and the engine draws, from the client's own stream.

    Parameters
    ----------
    shape : tuple of int
        Shape for one step (or for one sample of the batch, see `per`).
    kind : {"normal", "uniform", "keep", "rows"}
        Standard normal; uniform on [0, 1); or 1/q with probability q = `keep`, else 0 (a dropout mask). ``"rows"`` is
        not random: 1 for each sample of the batch, and 0 for a row that fills up a short one; of shape () per sample.
    per : {"step", "sample"}
        One draw an optimisation step, or one for every sample of the batch.
    keep : float
        Probability of keeping a unit, for ``kind="keep"``.
    """

    shape: tuple[int, ...]
    kind: Literal["normal", "uniform", "keep", "rows"] = "normal"
    per: Literal["step", "sample"] = "step"
    keep: float = 1.0

    def sample(self, size: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        r"""Draw a tensor of shape (\*size, \*shape).

        Parameters
        ----------
        size : tuple of int
            Axes before those of `shape`, such as steps and rows.
        rng : torch.Generator
            On the CPU.
        dtype : torch.dtype

        Returns
        -------
        Tensor, shape (\*size, \*shape)
            On the CPU.
        """
        shape = (*size, *self.shape)
        if self.kind == "rows":
            return torch.ones(shape, dtype=dtype)
        if self.kind == "normal":
            return torch.randn(shape, generator=rng, dtype=dtype)
        numbers = torch.rand(shape, generator=rng, dtype=dtype)
        return numbers if self.kind == "uniform" else (numbers < self.keep).to(dtype) / self.keep


_ASK = "ask Model.of(spec), which names a client's network"


@runtime_checkable
class Network(Protocol):
    """What an embedding φ_i has to offer: `MLP`, `CNN`, `LeNet` and `Auto` do, and one of your own may.

    `Module` makes one of a `torch.nn.Module`, which can also be given as it is; `PerClient` gives clients different
    ones. A network of your own in ten lines:

    >>> import math, torch
    >>> from hetfl_core.networks import Model, linear_init
    >>> class Linear:
    ...     out = 8
    ...     def init(self, shape, rng, part="phi"):
    ...         d = math.prod(shape)
    ...         return {f"{part}.weight": linear_init(rng, d, d, self.out)}
    ...     def draws(self, part="phi"):
    ...         return {}
    ...     def __call__(self, params, x, noise=None, part="phi"):
    ...         return x.flatten(1) @ params[f"{part}.weight"]
    >>> net = Model(phi=Linear()).phi
    >>> net(net.init((5,), torch.Generator().manual_seed(0)), torch.ones(3, 5)).shape
    torch.Size([3, 8])

    More attributes are optional. ``padded = True`` says that zeros may be appended to inputs of one axis, with
    zeros in the parameters that grow with them, without changing what is computed. Clients of different widths then
    share a stack; clients of other networks do where their inputs have one shape. ``of_client(name, shape)`` gives the
    network of one client, for a network that is not the same for all. ``moved(params, x, noise, part)``
    gives the running statistics, whose names end as `RUNNING` says, after a batch of training.
    """

    @property
    def out(self) -> int:
        """Latent dimension k."""

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for inputs of the given sample shape, named ``"<part>.…"``.

        Parameters
        ----------
        shape : tuple of int
            Of one sample.
        rng : torch.Generator
            On the CPU.
        part : str
            What the names begin with.

        Returns
        -------
        dict of str to Tensor
            In float32, on the CPU.
        """
        raise WrongType(f"{type(self).__name__} has no parameters of its own; {_ASK}")

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Random numbers that training needs.

        Parameters
        ----------
        part : str
            What the names begin with.

        Returns
        -------
        dict of str to Draw
            Empty where training is not random.
        """
        raise WrongType(f"{type(self).__name__} draws nothing itself; {_ASK}")

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        r"""Embed a batch, shape (n, \*shape) → (n, k).

        Parameters
        ----------
        params : dict of str to Tensor
            As `init` names them; other names are not looked at.
        x : Tensor, shape (n, \*shape)
        noise : dict of str to Tensor, optional
            What `draws` declares, in training; without, nothing is random.
        part : str
            What the names begin with.

        Returns
        -------
        Tensor, shape (n, k)
        """
        raise WrongType(f"{type(self).__name__} computes nothing itself; {_ASK}")


def of_client(network: Network, name: str, shape: Any) -> Network:
    """The network of a client with inputs of this shape, or shapes by block: the same, unless it chooses otherwise."""
    choose = getattr(network, "of_client", None)
    return network if choose is None else choose(name, shape)  # type: ignore[no-any-return]


def linear_init(rng: torch.Generator, fan_in: int, *shape: int) -> Tensor:
    r"""Entries uniform on ±1/√fan_in, as PyTorch's own linear and convolution layers start.

    Parameters
    ----------
    rng : torch.Generator
        On the CPU.
    fan_in : int
        Inputs of a unit; 0 counts as 1.
    *shape : int
        Of the tensor.

    Returns
    -------
    Tensor of float32, shape (\*shape)
        On the CPU.
    """
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    return (2 * torch.rand(shape, generator=rng, dtype=torch.float32) - 1) * bound


def layer_init(rng: torch.Generator, name: str, fan_in: int, fan_out: int) -> Params:
    """First ``<name>.weight``, shape (fan_in, fan_out), and ``<name>.bias`` of a linear layer."""
    return {
        f"{name}.weight": linear_init(rng, fan_in, fan_in, fan_out),
        f"{name}.bias": linear_init(rng, fan_in, fan_out),
    }


def layers_init(rng: torch.Generator, part: str, widths: Iterable[tuple[int, int]]) -> Params:
    """First parameters of linear layers ``<part>.0``, ``<part>.1`` …, each given by (fan_in, fan_out)."""
    layers = (layer_init(rng, f"{part}.{i}", *each) for i, each in enumerate(widths))
    return {name: p for layer in layers for name, p in layer.items()}


@dataclass(frozen=True)
class MLP(Checked):
    """Fully connected embedding: hidden layers with an activation, then a linear layer to the latent space.

    The default is FLIC's (Appendix S3.3): d → 64 → 64 → k = 64 with ReLU after the first two. Its published code
    uses LeakyReLU and dropout 0.5 for the BCI data.

    Parameters
    ----------
    hidden : tuple of int
        Widths of the hidden layers.
    out : int
        Latent dimension k.
    activation : {"relu", "leaky_relu", "sigmoid", "tanh"}
    dropout : float
        Probability in [0, 1) that a hidden unit is dropped in training.
    last : {"relu", "leaky_relu", "sigmoid", "tanh"}, optional
        Activation of the latent layer, which is linear without: FedCR's networks have ReLU before the head.
    """

    hidden: tuple[Count, ...] = (64, 64)
    out: Count = 64
    activation: Activation = "relu"
    dropout: Dropout = 0.0
    last: Activation | None = None

    padded: ClassVar[bool] = True

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for inputs of the given sample shape (flattened).

        Parameters
        ----------
        shape, rng, part
            As for `Network.init`.

        Returns
        -------
        dict of str to Tensor
            ``<part>.<i>.weight``, shape (in, out), and ``<part>.<i>.bias`` of each layer.
        """
        return layers_init(rng, part, itertools.pairwise([math.prod(shape), *self.hidden, self.out]))

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """The dropout masks that training needs.

        Parameters
        ----------
        part : str
            What the names begin with.

        Returns
        -------
        dict of str to Draw
            One mask a hidden layer; empty without dropout.
        """
        if not self.dropout:
            return {}
        keep = 1 - self.dropout
        return {f"{part}.{i}.mask": Draw((w,), "keep", "sample", keep) for i, w in enumerate(self.hidden)}

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        r"""Embed a batch, shape (n, \*shape) → (n, k).

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`.

        Returns
        -------
        Tensor, shape (n, k)
        """
        z = x.flatten(1)
        for i in range(len(self.hidden) + 1):
            z = torch.addmm(params[f"{part}.{i}.bias"], z, params[f"{part}.{i}.weight"])
            if i < len(self.hidden):
                z = ACTIVATIONS[self.activation](z)
                mask = (noise or {}).get(f"{part}.{i}.mask")
                z = z if mask is None else z * mask
        return z if self.last is None else ACTIVATIONS[self.last](z)


def one_of_each(model: Any, specs: Iterable[Spec]) -> list[Spec]:
    """The first client of each pair of input shapes and network (of a `Model`) that occurs."""
    found: dict[str, Spec] = {}
    for spec in specs:
        found.setdefault(str((spec.shapes, model.of(spec).phi)), spec)
    return list(found.values())
