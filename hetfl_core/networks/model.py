"""Which network a client has: by its inputs, by its name, by its blocks; and the whole model, φ, α and β."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl_core.federation import Spec
from hetfl_core.networks.images import CNN
from hetfl_core.networks.layers import (
    ACTIVATIONS,
    MLP,
    RUNNING,
    SMALLEST_DEVIATION,
    Activation,
    Draw,
    Network,
    Params,
    Tensors,
    layer_init,
    linear_init,
    of_client,
)
from hetfl_core.networks.module import Module, lifted
from hetfl_core.settings import Checked, Count


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
            raise ValueError(f"phi='auto' takes one tensor, got blocks {list(shape)}")
        if len(shape) == 1:
            return MLP(out=self.out)
        network = CNN(out=self.out)
        try:
            network.sides(shape)
        except ValueError as error:
            raise ValueError(
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
            raise ValueError("networks must hold a network for at least one client, got {}")
        for network in every:
            if not isinstance(network, Network) or isinstance(network, PerClient):
                raise ValueError(f"networks must be embeddings such as MLP(), got {network!r}")
        if len(found := {network.out for network in every if not isinstance(network, Module)}) > 1:
            raise ValueError(f"networks must have one latent dimension in common, got out={sorted(found)}")

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
            raise ValueError("networks must be at least one, got none")
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
            raise ValueError(
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

    extractors: Mapping[str, Network]
    out: Count = 64
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        if not self.extractors:
            raise ValueError("extractors must hold a network for at least one block, got {}")
        for name, network in self.extractors.items():
            if not isinstance(name, str) or not name or "." in name or name == JOINT:
                raise ValueError(f"extractors: a block's name must be text without a dot, not {JOINT!r}, got {name!r}")
            if not isinstance(network, Network) or isinstance(network, PerClient | Blocks):
                raise ValueError(f"extractors must be networks of one tensor, such as MLP(), got {network!r}")

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
            raise ValueError(f"block {unknown[0]!r} has no extractor; there are {list(self.extractors)}")
        names = [name for name in self.extractors if name in shapes and 0 not in shapes[name]]
        if not names:
            raise ValueError(f"at least one block must not be empty, got {dict(shapes)}")
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
                found = self.extractors[name].moved(params, x[name], noise, f"{part}.{name}")  # type: ignore[attr-defined]
                moved |= found
        return moved


@dataclass(frozen=True)
class Model(Checked):
    """Embedding, optional Gaussian and representation layers, and linear head: outputs = β_i(α(z)), z = φ_i(x).

    With a Gaussian layer z is random, N(μ(x), diag σ²(x)): both are linear in φ_i(x), and softplus makes σ positive
    (FedCR's Tables 6 and 8, FedSR), `SMALLEST_DEVIATION` at least. What takes no draws uses the mean, z = μ(x).

    Parameters
    ----------
    phi : Network, torch.nn.Module or "auto"
        The embedding φ_i : X_i → R^k, part ``"phi"``. ``"auto"`` (`Auto`) is an MLP for clients that hold vectors and a
        CNN for clients that hold images; `MLP` and `CNN` can be named. A module of PyTorch becomes a `Module`.
    alpha : int or None
        Width of the representation layer α, a linear layer followed by LeakyReLU, part ``"alpha"``; None for no
        such layer. FLIC's published code uses 100 where there is one (FLIC-HL).
    gaussian : int or None
        V, dimension of the Gaussian layer, part ``"gaussian"``; None for no such layer: z = φ_i(x).
    """

    phi: Network = Auto()
    alpha: Count | None = None
    gaussian: Count | None = None

    def __init__(
        self, phi: Network | nn.Module | Literal["auto"] = "auto", alpha: int | None = None, gaussian: int | None = None
    ) -> None:
        object.__setattr__(self, "phi", Auto() if isinstance(phi, str) and phi == "auto" else lifted(phi))
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "gaussian", gaussian)
        self.__post_init__()

    def resolved(self, shapes: Iterable[Any]) -> Model:
        """The model with its network named, where it is one and the same for inputs of all these shapes.

        Parameters
        ----------
        shapes : iterable of tuple of int
            Of the clients' samples.

        Returns
        -------
        Model
            Itself where clients have different networks.
        """
        if not isinstance(self.phi, Auto):
            return self
        try:
            networks = {self.phi.of(shape) for shape in shapes}
        except ValueError:  # a method may well have a network of its own for such inputs
            return self
        return replace(self, phi=networks.pop()) if len(networks) == 1 else self

    def of(self, spec: Spec) -> Model:
        """One client's model: this one, unless networks go by clients (`PerClient`) or by their inputs (`Module`, …).

        Parameters
        ----------
        spec : Spec
            What is known of the client.

        Returns
        -------
        Model

        Raises
        ------
        ValueError
            For a client whose inputs the network does not take.
        """
        try:
            phi = of_client(self.phi, spec.name, spec.shapes)
        except ValueError as error:
            raise ValueError(f"client {spec.name!r}: {error}") from error
        return self if phi is self.phi else replace(self, phi=phi)

    @property
    def blocks(self) -> Blocks | None:
        """The embedding by named blocks; None where inputs are plain."""
        return self.phi if isinstance(self.phi, Blocks) else None

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that this model has."""
        between = [name for name in ("gaussian", "alpha") if getattr(self, name) is not None]
        return ("phi", *between, "beta")

    @property
    def body(self) -> tuple[str, ...]:
        """Names of the parts before the head."""
        return self.parts[:-1]

    @property
    def latent(self) -> int:
        """Dimension of the latent features z."""
        return self.phi.out if self.gaussian is None else self.gaussian

    def init(self, spec: Spec, rng: torch.Generator, parts: tuple[str, ...]) -> Params:
        """Parameters of the named parts for one client's true shapes.

        Parameters
        ----------
        spec : Spec
            Of the client.
        rng : torch.Generator
            On the CPU.
        parts : tuple of str
            Such as ``("phi", "beta")``; those that the model does not have are left out.

        Returns
        -------
        dict of str to Tensor

        Raises
        ------
        ValueError
            For a client whose inputs the network does not take.
        """
        own = self.of(spec)
        phi, k, latent = own.phi, own.phi.out, own.latent
        width = latent if self.alpha is None else self.alpha
        params: Params = {}
        if "phi" in parts:
            named, takes = isinstance(spec.shapes, Mapping), isinstance(phi, Blocks)
            if named and not takes:
                raise ValueError(
                    f"this model takes one tensor; client {spec.name!r} has blocks {list(spec.shapes)}: take Blocks"
                )
            if takes and not named:
                raise ValueError(f"this model takes named blocks; client {spec.name!r} has one tensor, {spec.shapes}")
            params |= phi.init(spec.shapes, rng)
        if "gaussian" in parts and self.gaussian is not None:
            params |= layer_init(rng, "gaussian", k, 2 * latent)
        if "alpha" in parts and self.alpha is not None:
            params |= layer_init(rng, "alpha", latent, width)
        if "beta" in parts:
            params |= layer_init(rng, "beta", width, spec.outputs)
        return params

    def draws(self) -> dict[str, Draw]:
        """Random numbers that the network needs in training."""
        return self.phi.draws()

    def moved(self, params: Params, x: Any, noise: Tensors | None = None) -> Params:
        """The running statistics of the network, which has some (`RUNNING`), after a batch of training."""
        return self.phi.moved(params, x, noise)  # type: ignore[attr-defined,no-any-return]

    def embed(self, params: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        r"""Latent features z: φ_i(x), or the mean μ(x) of the Gaussian layer.

        Parameters
        ----------
        params : dict of str to Tensor
        x : Tensor, shape (n, \*shape), or dict of str to such
        noise : dict of str to Tensor, optional
            What `draws` declares, in training; without, nothing is random.

        Returns
        -------
        Tensor, shape (n, k)
        """
        if self.gaussian is not None:
            return self.posterior(params, x, noise)[0]
        return self.phi(params, x, noise)

    def posterior(self, params: Params, x: Any, noise: Tensors | None = None) -> tuple[Tensor, Tensor]:
        """Means μ(x) and deviations σ(x) > 0 of the Gaussian layer, for a model that has one (`gaussian`).

        Parameters
        ----------
        params, x, noise
            As for `embed`.

        Returns
        -------
        mean, deviation : Tensor, shape (n, V)
        """
        both = torch.addmm(params["gaussian.bias"], self.phi(params, x, noise), params["gaussian.weight"])
        mean, raw = both.unflatten(-1, (2, self.latent)).unbind(-2)
        return mean, F.softplus(raw) + SMALLEST_DEVIATION

    def represent(self, params: Params, z: Tensor) -> Tensor:
        """The penultimate layer at latent points: α(z), or z where there is no α.

        Parameters
        ----------
        params : dict of str to Tensor
        z : Tensor, shape (n, k)

        Returns
        -------
        Tensor, shape (n, width)
        """
        if self.alpha is None:
            return z
        return F.leaky_relu(torch.addmm(params["alpha.bias"], z, params["alpha.weight"]))

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Outputs of the head at latent points.

        Parameters
        ----------
        params : dict of str to Tensor
        z : Tensor, shape (n, k)

        Returns
        -------
        Tensor, shape (n, C)
            Logits, or the predicted number (C = 1).
        """
        return torch.addmm(params["beta.bias"], self.represent(params, z), params["beta.weight"])
