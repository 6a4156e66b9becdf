"""Networks that are made of others: one by a client's inputs, one by its name, one by its blocks of features."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from hetfl_core.errors import WrongValue
from hetfl_core.networks.images import CNN
from hetfl_core.networks.layers import (
    ACTIVATIONS,
    MLP,
    RUNNING,
    Activation,
    Draw,
    Network,
    Params,
    Tensors,
    linear_init,
    of_client,
)
from hetfl_core.networks.module import lifted
from hetfl_core.settings import SOME, Checked, Count


@dataclass(frozen=True)
class Auto(Checked):
    """The usual embedding for a client's inputs: `MLP` for vectors, shape (d,), and `CNN` for square images.

    Each client gets that of its own inputs, so that some may hold vectors and others images.

    Parameters
    ----------
    out : int
        Latent dimension k.
    """

    out: Count = 64
    padded: ClassVar[bool] = True

    def of(self, shape: Any) -> MLP | CNN:
        """The network for inputs of the given sample shape.

        Parameters
        ----------
        shape : tuple of int
            Of one sample.

        Returns
        -------
        MLP or CNN

        Raises
        ------
        ValueError
            For inputs that are neither vectors nor square images large enough for two convolutions.
        """
        if isinstance(shape, Mapping):
            raise WrongValue(f"phi='auto' takes one tensor, got blocks {list(shape)}")
        if len(shape) == 1:
            return MLP(out=self.out)
        network = CNN(out=self.out)
        try:
            network.sides(shape)
        except ValueError as error:
            raise WrongValue(
                "phi='auto' is an MLP for vectors, shape (d,), and a CNN for square images, shape (channels, side, "
                f"side), got {tuple(shape)} ({error}); name the network, such as Model(phi=MLP()), which flattens"
            ) from error
        return network

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for inputs of the given sample shape."""
        return self.of(shape).init(shape, rng, part)

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """No random numbers: neither network has dropout unless asked for."""
        return {}

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
        return self.of(tuple(x.shape[1:]))(params, x, noise, part)


@dataclass(frozen=True)
class Linear(Checked, Network):
    """No embedding: the head reads the inputs, so that the model is logistic, or for a regression linear, regression.

    ``Model(Linear())`` computes softmax(W x + b). Its only parameters are those of the head, part ``"beta"``, which a
    method that averages the head, such as `FedAvg`, averages whole. With full batches and enough steps a client ends
    where `sklearn.linear_model.LogisticRegression` without penalty (``C=numpy.inf``) does.

    *Two classes have two outputs*, of which only the difference matters: the log odds. A step of SGD moves both,
    against each other, and the log odds twice as far as a model with one output would move them at the same rate; Adam
    does so, too. To repeat a logistic regression with a single output, take half its learning rate, and with FedProx
    twice its µ, since a change of the log odds is shared out to two outputs.

    Parameters
    ----------
    width : int, optional
        Number of inputs, those of an image in a row; by default what the clients have. They must have equally many, as
        the networks of a run have one latent dimension: take the view ``"common"`` or ``"zeros"`` of tables that have
        other columns.
    """

    width: Count | None = None

    @property
    def out(self) -> int:
        """Latent dimension k, the number of inputs; where that is not known, an AttributeError says so."""
        if self.width is None:
            raise AttributeError(
                "the width of Linear() is that of the inputs: ask Model.of(spec), or say Linear(width)"
            )
        return self.width

    def of_client(self, name: str, shape: Any) -> Network:
        """The network of a client, whose inputs have this shape.

        Parameters
        ----------
        name : str
            The client's.
        shape : tuple of int
            Of one of its samples.

        Returns
        -------
        Network

        Raises
        ------
        ValueError
            For another number of inputs than `width`, and for named blocks.
        """
        if isinstance(shape, Mapping):
            raise WrongValue(f"Linear() takes one tensor, got blocks {list(shape)}; Blocks has a network for each")
        n_inputs = math.prod(shape)
        if self.width not in (None, n_inputs):
            raise WrongValue(f"Linear({self.width}) takes {self.width} inputs, got samples of shape {tuple(shape)}")
        return Linear(n_inputs)

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """No parameters."""
        return {}

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """No random numbers."""
        return {}

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        r"""The inputs as they are, shape (n, \*shape) → (n, k).

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`.

        Returns
        -------
        Tensor, shape (n, k)
        """
        return x.flatten(1)


@dataclass(frozen=True)
class PerClient(Checked, Network):
    """An embedding for each client by its name: architectures may differ, only the latent dimension is common.

    Parameters
    ----------
    networks : dict of str to Network
        By the clients' names.
    otherwise : Network, optional
        That of all other clients, such as those who join later; by default they are refused.
    """

    networks: Mapping[str, Network]
    otherwise: Network | None = None

    def __post_init__(self) -> None:
        every = self._every
        if not every:
            raise WrongValue("networks must hold a network for at least one client, got {}")
        for network in every:
            if not isinstance(network, Network) or isinstance(network, PerClient):
                raise WrongValue(f"networks must be embeddings such as MLP(), got {network!r}")
        if len(found := {network.out for network in every if hasattr(network, "out")}) > 1:
            raise WrongValue(f"networks must have one latent dimension in common, got out={sorted(found)}")

    def _converted(self) -> dict[str, Any]:
        return {name: lifted(getattr(self, name)) for name in ("networks", "otherwise")}

    @classmethod
    def in_turn(cls, names: Iterable[str], networks: Sequence[Network]) -> PerClient:
        """Deal networks to clients in the order of their names: the first, the second, …, and again the first.

        Parameters
        ----------
        names : iterable of str
            Such as ``[client.name for client in federation]``; their order does not matter.
        networks : sequence of Network
            At least one; one after the other.

        Returns
        -------
        PerClient

        Raises
        ------
        ValueError
            For no networks.
        """
        if not networks:
            raise WrongValue("networks must be at least one, got none")
        return cls({name: networks[i % len(networks)] for i, name in enumerate(sorted(names))})

    def of(self, name: str) -> Network:
        """The network of a client.

        Parameters
        ----------
        name : str
            The client's.

        Returns
        -------
        Network

        Raises
        ------
        ValueError
            For a client that has none.
        """
        network = self.networks.get(name, self.otherwise)
        if network is None:
            known = ", ".join(map(repr, sorted(self.networks)[:5])) + ", …" * (len(self.networks) > 5)
            raise WrongValue(
                f"networks must have one for client {name!r}, or `otherwise` one for all others; it has {known}"
            )
        return network

    def of_client(self, name: str, shape: Any) -> Network:
        """The network of a client, as it is for inputs of this shape.

        Parameters
        ----------
        name : str
            The client's.
        shape : tuple of int
            Of one of its samples.

        Returns
        -------
        Network
        """
        return of_client(self.of(name), name, shape)

    @property
    def _every(self) -> list[Network]:
        return [*self.networks.values(), *([self.otherwise] if self.otherwise else [])]

    @property
    def out(self) -> int:
        """Latent dimension k."""
        return self._every[0].out


JOINT = "joint"
"""What the parameters of the layer over all blocks are called, which no block may be."""


@dataclass(frozen=True)
class Blocks(Checked):
    """An embedding of named blocks of features: an extractor for each, and one layer over what they find.

    z = act(Σ_b h_b(x_b) W_b + bias) over the blocks that a client holds: a layer over the concatenation of what its
    extractors find, with the rows of its weight named by block. Parameters of a block that a client lacks are not made
    there, so that those of one name belong together on all clients. HyFEM's clients and server (its Figure 3b) have
    such a model; its classifier F_m is this layer and the head.

    Parameters
    ----------
    extractors : dict of str to Network
        h_b, by the names of the blocks, which must not be "joint" nor have a dot in them.
    out : int
        Width of the layer, the latent dimension k.
    activation : {"relu", "leaky_relu", "sigmoid", "tanh"}
        Of the layer.
    """

    extractors: Annotated[Mapping[str, Network], SOME]
    out: Count = 64
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        for name, network in self.extractors.items():
            if not isinstance(name, str) or not name or "." in name or name == JOINT:
                raise WrongValue(f"extractors: a block's name must be text without a dot, not {JOINT!r}, got {name!r}")
            if not isinstance(network, Network) or isinstance(network, PerClient | Blocks):
                raise WrongValue(f"extractors must be networks of one tensor, such as MLP(), got {network!r}")

    def _converted(self) -> dict[str, Any]:
        return {"extractors": lifted(self.extractors)}

    @classmethod
    def alike(cls, names: Iterable[str], extractor: Network, out: int = 64, activation: Activation = "relu") -> Blocks:
        """Blocks with the same kind of extractor, with weights of its own, for each.

        Parameters
        ----------
        names : iterable of str
            Of the blocks.
        extractor : Network
        out, activation
            As for the class.

        Returns
        -------
        Blocks
        """
        return cls(dict.fromkeys(names, extractor), out, activation)

    def of_client(self, name: str, shape: Any) -> Blocks:
        """The embedding of one client, with the extractors of the blocks that it holds.

        Parameters
        ----------
        name : str
            The client's.
        shape : dict of str to tuple of int
            Of one of its samples, by block; empty blocks have a 0.

        Returns
        -------
        Blocks

        Raises
        ------
        ValueError
            As for `held`.
        """
        if not isinstance(shape, Mapping):
            return self
        held = self.held(shape)
        own = {block: of_client(each, name, shape[block]) for block, each in held.extractors.items()}
        return held if own == held.extractors else replace(held, extractors=own)

    @property
    def padded(self) -> bool:
        """Whether the inputs of all extractors may be padded."""
        return all(getattr(extractor, "padded", False) for extractor in self.extractors.values())

    def held(self, shapes: Mapping[str, tuple[int, ...]]) -> Blocks:
        """The embedding for inputs of these shapes, without the blocks that are missing or empty: 0 in their shape.

        Parameters
        ----------
        shapes : dict of str to tuple of int
            Of a sample, by block.

        Returns
        -------
        Blocks

        Raises
        ------
        ValueError
            For a block without an extractor, and where all blocks are empty.
        """
        if unknown := [name for name, shape in shapes.items() if name not in self.extractors and 0 not in shape]:
            raise WrongValue(f"block {unknown[0]!r} has no extractor; there are {list(self.extractors)}")
        names = [name for name in self.extractors if name in shapes and 0 not in shapes[name]]
        if not names:
            raise WrongValue(f"at least one block must not be empty, got {dict(shapes)}")
        if len(names) == len(self.extractors):
            return self
        return replace(self, extractors={name: self.extractors[name] for name in names})

    def init(self, shape: Any, rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters of the extractors of the blocks that are held, and of the layer, for shapes by block.

        Parameters
        ----------
        shape : dict of str to tuple of int
            Of one sample, by block.
        rng : torch.Generator
            On the CPU.
        part : str
            What the names begin with.

        Returns
        -------
        dict of str to Tensor
            ``<part>.<block>.…``, ``<part>.joint.<block>.weight`` and ``<part>.joint.bias``.

        Raises
        ------
        ValueError
            As for `held`.
        """
        params: Params = {}
        extractors = self.of_client("", shape).extractors
        for name, extractor in extractors.items():
            params |= extractor.init(shape[name], rng, f"{part}.{name}")
        fan_in = sum(extractor.out for extractor in extractors.values())
        for name, extractor in extractors.items():
            params[f"{part}.{JOINT}.{name}.weight"] = linear_init(rng, fan_in, extractor.out, self.out)
        return {**params, f"{part}.{JOINT}.bias": linear_init(rng, fan_in, self.out)}

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Random numbers that the extractors need in training; of a client, those of its blocks (`held`)."""
        return {n: d for name, each in self.extractors.items() for n, d in each.draws(f"{part}.{name}").items()}

    def __call__(self, params: Params, x: Any, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        r"""Embed a batch; blocks that are empty, or not there, add nothing.

        Parameters
        ----------
        params, noise, part
            As for `Network.__call__`.
        x : dict of str to Tensor, shapes (n, \*shape)
            By block.

        Returns
        -------
        Tensor, shape (n, k)
        """
        z = params[f"{part}.{JOINT}.bias"]
        for name in self.present(x):
            found = self.extractors[name](params, x[name], noise, f"{part}.{name}")
            z = torch.addmm(z, found, params[f"{part}.{JOINT}.{name}.weight"])
        return ACTIVATIONS[self.activation](z)

    def present(self, x: Tensors) -> list[str]:
        """The blocks of a batch that are there, and not empty."""
        return [name for name in self.extractors if name in x and 0 not in x[name].shape[1:]]

    def moved(self, params: Params, x: Any, noise: Tensors | None = None, part: str = "phi") -> Params:
        """Running statistics of the extractors after a batch of training."""
        moved: Params = {}
        for name in self.present(x):
            if any(n.startswith(f"{part}.{name}.") and n.endswith(RUNNING) for n in params):
                moved |= self.extractors[name].moved(params, x[name], noise, f"{part}.{name}")  # type: ignore[attr-defined]
        return moved
