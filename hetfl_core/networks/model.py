"""The whole model: the embedding φ, the representation α and the head β."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.networks.composed import Auto, Blocks
from hetfl_core.networks.layers import SMALLEST_DEVIATION, Draw, Network, Params, Tensors, layer_init, of_client
from hetfl_core.networks.module import lifted
from hetfl_core.settings import Checked, Count, made_once


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

    phi: Network = field(default_factory=Auto)
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
        if not hasattr(self.phi, "of_client"):
            return self
        shapes = tuple(spec.shapes.items()) if isinstance(spec.shapes, Mapping) else spec.shapes
        return made_once(self, (spec.name, shapes), lambda: self._of(spec))

    def _of(self, spec: Spec) -> Model:
        try:
            phi = of_client(self.phi, spec.name, spec.shapes)
        except ValueError as error:
            raise WrongValue(f"client {spec.name!r}: {error}") from error
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
            if isinstance(spec.shapes, Mapping) != isinstance(phi, Blocks):
                takes, has = "one tensor", f"blocks {list(spec.shapes)}: take Blocks"
                if isinstance(phi, Blocks):
                    takes, has = "named blocks", f"one tensor, {spec.shapes}"
                raise WrongValue(f"this model takes {takes}; client {spec.name!r} has {has}")
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

    def features(self, params: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        """What the head reads of a batch: the penultimate layer, α(z) at its latent features z.

        Parameters
        ----------
        params, x, noise
            As for `embed`.

        Returns
        -------
        Tensor, shape (n, width)
        """
        return self.represent(params, self.embed(params, x, noise))

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
