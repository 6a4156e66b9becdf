"""Small networks as plain dicts of tensors: embedding φ_i, shared representation α, head β_i.

A network is a frozen description. `init` makes its parameters from the *true* input shape and a generator, and
calling it on parameters and a batch computes it. Parameters are named ``"<part>.<layer>.<kind>"``, e.g.
``"phi.0.weight"``, so that a method can name a part by its prefix.

Weights are stored as [in, out] and applied as ``x @ W``: under `torch.func.vmap` this becomes one batched product
whose gradients are contiguous.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl_core.federation import Spec
from hetfl_core.settings import Checked

Params = dict[str, Tensor]

ACTIVATIONS = {"relu": torch.relu, "leaky_relu": F.leaky_relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
Activation = Literal["relu", "leaky_relu", "sigmoid", "tanh"]


SMALLEST_DEVIATION = 1e-4
"""What is added to the softplus of a Gaussian layer: precisions and their gradients must fit into float32."""


@dataclass(frozen=True)
class Draw(Checked):
    """Random numbers that a method declares and the engine draws, from the client's own stream.

    Attributes
    ----------
    shape : tuple of int
        Shape for one step (or for one sample of the batch, see `per`).
    kind : {"normal", "uniform", "keep", "rows"}
        Standard normal; uniform on [0, 1); 1/q with probability q = `keep`, else 0 (a dropout mask); or not random at
        all, but 1 for each sample of the batch and 0 for a row that fills up a short one: of shape () per sample.
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
        r"""Draw a tensor of shape (\*size, \*shape)."""
        shape = (*size, *self.shape)
        if self.kind == "rows":
            return torch.ones(shape, dtype=dtype)
        if self.kind == "normal":
            return torch.randn(shape, generator=rng, dtype=dtype)
        numbers = torch.rand(shape, generator=rng, dtype=dtype)
        return numbers if self.kind == "uniform" else (numbers < self.keep).to(dtype) / self.keep


@runtime_checkable
class Network(Protocol):
    """What an embedding φ_i has to offer: `MLP`, `CNN`, `LeNet` and `Auto` do, and one of your own may.

    `PerClient` gives clients different ones.
    """

    @property
    def out(self) -> int:
        """Latent dimension k."""
        ...

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for inputs of the given sample shape, named ``"<part>.…"``."""
        ...

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Random numbers that training needs."""
        ...

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        r"""Embed a batch, shape (n, \*shape) → (n, k)."""
        ...


def linear_init(rng: torch.Generator, fan_in: int, *shape: int) -> Tensor:
    """Entries uniform on ±1/√fan_in, as PyTorch's own linear and convolution layers start."""
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    return (2 * torch.rand(shape, generator=rng, dtype=torch.float32) - 1) * bound


def _check_sizes(name: str, *sizes: int) -> None:
    if min(sizes, default=1) < 1:
        raise ValueError(f"{name} must be at least 1, got {min(sizes)}")


def _check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be a probability of at least 0 and less than 1, got {dropout}")


@dataclass(frozen=True)
class MLP(Checked):
    """Fully connected embedding: hidden layers with an activation, then a linear layer to the latent space.

    The default is FLIC's (Appendix S3.3): d → 64 → 64 → k = 64 with ReLU after the first two. Its published code
    uses LeakyReLU and dropout 0.5 for the BCI data.

    Attributes
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

    hidden: tuple[int, ...] = (64, 64)
    out: int = 64
    activation: Activation = "relu"
    dropout: float = 0.0
    last: Activation | None = None

    def __post_init__(self) -> None:
        _check_sizes("hidden", *self.hidden)
        _check_sizes("out", self.out)
        _check_dropout(self.dropout)

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for inputs of the given sample shape (flattened)."""
        widths = [math.prod(shape), *self.hidden, self.out]
        params: Params = {}
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            params[f"{part}.{i}.weight"] = linear_init(rng, fan_in, fan_in, fan_out)
            params[f"{part}.{i}.bias"] = linear_init(rng, fan_in, fan_out)
        return params

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """The dropout masks that training needs."""
        if not self.dropout:
            return {}
        keep = 1 - self.dropout
        return {f"{part}.{i}.mask": Draw((w,), "keep", "sample", keep) for i, w in enumerate(self.hidden)}

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        r"""Embed a batch, shape (n, \*shape) → (n, k)."""
        z = x.flatten(1)
        for i in range(len(self.hidden) + 1):
            z = torch.addmm(params[f"{part}.{i}.bias"], z, params[f"{part}.{i}.weight"])
            if i < len(self.hidden):
                z = ACTIVATIONS[self.activation](z)
                mask = (noise or {}).get(f"{part}.{i}.mask")
                z = z if mask is None else z * mask
        return z if self.last is None else ACTIVATIONS[self.last](z)


def convolve(x: Tensor, weight: Tensor, kernel: int) -> Tensor:
    """A valid convolution by kernels stored as [c · kernel², out]: (n, c, s, s) → (n, out, s', s').

    With one channel a product with all patches: the result has its channels innermost, which the pooling that
    follows takes in a tenth of the time on a CPU, and the gradient of the kernels is one product too. Patches are
    laid out pixel by pixel of the kernel, so that whole rows of the images are copied at once. With more channels
    the kernels have theirs innermost, which makes a CPU keep that order throughout: two thirds of the time.
    """
    if x.shape[1] == 1:
        patches = x[:, 0].unfold(1, kernel, 1).unfold(2, kernel, 1)
        pixels = patches.movedim((3, 4), (0, 1)).flatten(2).flatten(0, 1)
        return (pixels.mT @ weight).unflatten(0, patches.shape[:3]).movedim(3, 1)
    kernels = weight.T.unflatten(1, (x.shape[1], kernel, kernel))
    return F.conv2d(x, kernels.movedim(1, 3).contiguous().movedim(3, 1))


@dataclass(frozen=True)
class CNN(Checked):
    """Convolutional embedding of one-channel images, after FLIC's published code for the digits.

    conv 5×5 (32) – max-pool – sigmoid – conv 5×5 (20) – dropout – max-pool – sigmoid – linear to k. With 28 × 28
    inputs the linear layer sees 320 numbers, with 16 × 16 inputs 20. Images of different sizes cannot share a stack.

    Attributes
    ----------
    out : int
        Latent dimension k.
    channels : tuple of int
        Channels of the two convolutions.
    kernel : int
        Side of the kernels, pixels.
    dropout : float
        Probability in [0, 1) that a channel value is dropped before the second pooling.
    """

    out: int = 64
    channels: tuple[int, int] = (32, 20)
    kernel: int = 5
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check_sizes("channels", *self.channels)
        _check_sizes("kernel", self.kernel)
        _check_sizes("out", self.out)
        _check_dropout(self.dropout)

    def sides(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Side of the maps after the second convolution, and after the second pooling."""
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ValueError(f"a CNN needs square images of shape (channels, side, side), got {tuple(shape)}")
        before = (shape[1] - self.kernel + 1) // 2 - self.kernel + 1
        if before < 2:
            raise ValueError(
                f"images of side {shape[1]} are too small for two {self.kernel}×{self.kernel} convolutions"
            )
        return before, before // 2

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, side, side)."""
        area, flat = self.kernel**2, self.channels[1] * self.sides(shape)[1] ** 2
        first, second = shape[0] * area, self.channels[0] * area
        return {
            f"{part}.0.weight": linear_init(rng, first, first, self.channels[0]),
            f"{part}.0.bias": linear_init(rng, first, self.channels[0]),
            f"{part}.1.weight": linear_init(rng, second, second, self.channels[1]),
            f"{part}.1.bias": linear_init(rng, second, self.channels[1]),
            f"{part}.2.weight": linear_init(rng, flat, flat, self.out),
            f"{part}.2.bias": linear_init(rng, flat, self.out),
        }

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """The dropout mask that training needs, one a channel and sample."""
        if not self.dropout:
            return {}
        return {f"{part}.1.mask": Draw((self.channels[1], 1, 1), "keep", "sample", 1 - self.dropout)}

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        """Embed a batch of images, shape (n, channels, side, side) → (n, k)."""
        first, second = (params[f"{part}.{i}.bias"][:, None, None] for i in range(2))
        z = F.max_pool2d(convolve(x, params[f"{part}.0.weight"], self.kernel), 2) + first  # moves all alike
        z = convolve(torch.sigmoid(z), params[f"{part}.1.weight"], self.kernel) + second
        mask = (noise or {}).get(f"{part}.1.mask")
        z = torch.sigmoid(F.max_pool2d(z if mask is None else z * mask, 2)).flatten(1)
        return torch.addmm(params[f"{part}.2.bias"], z, params[f"{part}.2.weight"])


@dataclass(frozen=True)
class NormalisedCNN(Checked):
    """Convolutions of stride 2 with batch normalisation and ReLU, then a linear layer: FedGen's published network.

    By default conv 3×3 (6) – conv 3×3 (16) – linear to 32; of 28 × 28 images 784 numbers enter the linear layer. In
    training a batch is normalised by its own means and variances, and running ones follow it; in use by the running
    ones. They belong to the layer: a method that averages φ averages them, one that keeps it local keeps them.

    Attributes
    ----------
    channels : tuple of int
        Channels of the convolutions, at least one.
    out : int
        Latent dimension k.
    kernel : int
        Side of the kernels, pixels; odd, with padding of half of it.
    momentum : float
        How far a batch moves the running means and variances, in (0, 1].
    """

    channels: tuple[int, ...] = (6, 16)
    out: int = 32
    kernel: int = 3
    momentum: float = 0.1

    follows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.channels:
            raise ValueError("channels must name at least one convolution, got ()")
        _check_sizes("channels", *self.channels)
        _check_sizes("out", self.out)
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be an odd number of at least 1, got {self.kernel}")
        if not 0 < self.momentum <= 1:
            raise ValueError(f"momentum must be in (0, 1], got {self.momentum}")

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, height, width)."""
        if len(shape) != 3:
            raise ValueError(f"expected images of shape (channels, height, width), got {tuple(shape)}")
        before, (height, width) = shape[0], shape[1:]
        params: Params = {}
        for i, channels in enumerate(self.channels):
            fan_in = before * self.kernel**2
            params[f"{part}.{i}.weight"] = linear_init(rng, fan_in, fan_in, channels)
            params[f"{part}.{i}.bias"] = linear_init(rng, fan_in, channels)
            ones, zeros = torch.ones(channels, dtype=torch.float32), torch.zeros(channels, dtype=torch.float32)
            params |= {f"{part}.{i}.norm.weight": ones, f"{part}.{i}.norm.bias": zeros}
            params |= {f"{part}.{i}.norm.mean": zeros.clone(), f"{part}.{i}.norm.variance": ones.clone()}
            before, height, width = channels, (height + 1) // 2, (width + 1) // 2
        last, flat = len(self.channels), before * height * width
        params[f"{part}.{last}.weight"] = linear_init(rng, flat, flat, self.out)
        params[f"{part}.{last}.bias"] = linear_init(rng, flat, self.out)
        return params

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Which rows of a batch are samples; that it is asked for says that this is training."""
        return {f"{part}.rows": Draw((), "rows", "sample")}

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        """Embed a batch of images, shape (n, channels, height, width) → (n, k)."""
        return self._forward(params, x, noise, part)[0]

    def moved(self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi") -> Params:
        """The running means and variances after a batch of training; none in use."""
        return self._forward(params, x, noise, part)[1]

    def _forward(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None, part: str
    ) -> tuple[Tensor, Params]:
        rows, moved, z = (noise or {}).get(f"{part}.rows"), {}, x
        for i in range(len(self.channels)):
            kernels = params[f"{part}.{i}.weight"].T.unflatten(1, (z.shape[-3], self.kernel, self.kernel))
            z = F.conv2d(z, kernels, stride=2, padding=self.kernel // 2) + params[f"{part}.{i}.bias"][:, None, None]
            norm = f"{part}.{i}.norm"
            mean, variance = params[f"{norm}.mean"], params[f"{norm}.variance"]
            if rows is not None:
                weight = rows[:, None, None, None]
                n = (rows.sum() * z.shape[-2] * z.shape[-1]).clamp(min=1)
                own = (z * weight).sum((0, 2, 3)) / n
                spread = ((z - own[:, None, None]).square() * weight).sum((0, 2, 3)) / n
                unbiased = spread * n / (n - 1).clamp(min=1)
                moved[f"{norm}.mean"] = (1 - self.momentum) * mean + self.momentum * own.detach()
                moved[f"{norm}.variance"] = (1 - self.momentum) * variance + self.momentum * unbiased.detach()
                mean, variance = own, spread
            scale = params[f"{norm}.weight"] / (variance + 1e-5).sqrt()
            z = ((z - mean[:, None, None]) * scale[:, None, None] + params[f"{norm}.bias"][:, None, None]).relu()
        last = len(self.channels)
        return torch.addmm(params[f"{part}.{last}.bias"], z.flatten(1), params[f"{part}.{last}.weight"]), moved


@dataclass(frozen=True)
class LeNet(Checked):
    """Convolutions, each with an activation and 2 × 2 max-pooling, then fully connected layers with an activation each.

    The default is LeNet-5's shape with ReLU. FedCR's network for CIFAR (its Table 5) is
    ``LeNet(channels=(64, 64), hidden=(1024,), out=1024)``: 1 600 numbers enter the first fully connected layer.

    Attributes
    ----------
    channels : tuple of int
        Channels of the convolutions, at least one.
    hidden : tuple of int
        Widths of the fully connected layers before the latent one.
    out : int
        Latent dimension k.
    kernel : int
        Side of the kernels, pixels; nothing is padded.
    activation : {"relu", "leaky_relu", "sigmoid", "tanh"}
    """

    channels: tuple[int, ...] = (6, 16)
    hidden: tuple[int, ...] = (120,)
    out: int = 84
    kernel: int = 5
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        if not self.channels:
            raise ValueError("channels must name at least one convolution, got ()")
        _check_sizes("channels", *self.channels)
        _check_sizes("hidden", *self.hidden)
        _check_sizes("kernel", self.kernel)
        _check_sizes("out", self.out)

    def side(self, shape: tuple[int, ...]) -> int:
        """Side of the maps that enter the fully connected layers.

        Raises
        ------
        ValueError
            For inputs that are not square images, or are too small.
        """
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ValueError(f"a LeNet needs square images of shape (channels, side, side), got {tuple(shape)}")
        side = shape[1]
        for _ in self.channels:
            side = (side - self.kernel + 1) // 2
        if side < 1:
            raise ValueError(
                f"images of side {shape[1]} are too small for {len(self.channels)} {self.kernel}×{self.kernel} "
                "convolutions with pooling"
            )
        return side

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, side, side)."""
        widths = [shape[0], *self.channels]
        layers = [(fan_in * self.kernel**2, fan_out) for fan_in, fan_out in itertools.pairwise(widths)]
        flat = self.channels[-1] * self.side(shape) ** 2
        layers += itertools.pairwise([flat, *self.hidden, self.out])
        params: Params = {}
        for i, (fan_in, fan_out) in enumerate(layers):
            params[f"{part}.{i}.weight"] = linear_init(rng, fan_in, fan_in, fan_out)
            params[f"{part}.{i}.bias"] = linear_init(rng, fan_in, fan_out)
        return params

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Nothing."""
        return {}

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        """Embed a batch of images, shape (n, channels, side, side) → (n, k)."""
        act = ACTIVATIONS[self.activation]
        for i in range(len(self.channels)):  # the activation does not fall, so that pooling may come first: it is less
            maps = F.max_pool2d(convolve(x, params[f"{part}.{i}.weight"], self.kernel), 2)
            x = act(maps + params[f"{part}.{i}.bias"][:, None, None])
        z = x.flatten(1)
        for i in range(len(self.channels), len(self.channels) + len(self.hidden) + 1):
            z = act(torch.addmm(params[f"{part}.{i}.bias"], z, params[f"{part}.{i}.weight"]))
        return z


@dataclass(frozen=True)
class Augmented(Checked):
    """A network that is trained on images cropped at random and mirrored, and predicts from images as they are.

    An image is framed by `padding` pixels, and a window of its own size is cut out of it, at each place with the same
    probability; every other one is mirrored, left to right. That is what FedCR's published code does with CIFAR, and
    its text does not say.

    Attributes
    ----------
    network : Network
    padding : int
        Pixels on each side; 0 for no cropping.
    mirrored : bool
        Whether images are mirrored, with probability ½.
    fill : tuple of float
        Value of the frame, one for all channels or one for each: where pixels were standardised, that of black.
    """

    network: Network
    padding: int = 4
    mirrored: bool = True
    fill: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}")
        if not self.fill:
            raise ValueError("fill must be one value, or one for each channel, got ()")

    @property
    def out(self) -> int:
        """Latent dimension k."""
        return self.network.out

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, height, width)."""
        if len(shape) != 3 or len(self.fill) not in (1, shape[0]):
            values = "" if len(self.fill) == 1 else f" and {len(self.fill)} channels, as `fill` has"
            raise ValueError(f"expected images of shape (channels, height, width){values}, got {tuple(shape)}")
        return self.network.init(shape, rng, part)

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Where an image is cropped, whether it is mirrored, and what the network needs."""
        return self.network.draws(part) | {f"{part}.augment": Draw((3,), "uniform", "sample")}

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        """Embed a batch of images, shape (n, channels, height, width) → (n, k)."""
        drawn = (noise or {}).get(f"{part}.augment")
        return self.network(params, x if drawn is None else self.augmented(x, drawn), noise, part)

    @property
    def follows(self) -> bool:
        """Whether the network has running statistics."""
        return bool(getattr(self.network, "follows", False))

    def moved(self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi") -> Params:
        """Those of the network after a batch of training."""
        drawn = (noise or {}).get(f"{part}.augment")
        inputs = x if drawn is None else self.augmented(x, drawn)
        return self.network.moved(params, inputs, noise, part)  # type: ignore[attr-defined,no-any-return]

    def augmented(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Images cropped and mirrored by numbers in [0, 1), shapes (n, c, h, w) and (n, 3) → (n, c, h, w)."""
        p, (height, width) = self.padding, x.shape[-2:]
        fill = torch.tensor(self.fill, dtype=x.dtype, device=x.device)[:, None, None]
        framed = F.pad(x - fill, (p, p, p, p)) + fill
        offset = (drawn[:, :2] * (2 * p + 1)).long().clamp(max=2 * p)
        rows = offset[:, :1] + torch.arange(height, device=x.device)
        columns = offset[:, 1:] + torch.arange(width, device=x.device)
        if self.mirrored:
            columns = torch.where(drawn[:, 2:] < 0.5, columns, columns.flip(-1))
        cut = framed.take_along_dim(rows[:, None, :, None], 2)
        return cut.take_along_dim(columns[:, None, None, :], 3)


@dataclass(frozen=True)
class Auto(Checked):
    """The usual embedding for a client's inputs: `MLP` for vectors, shape (d,), and `CNN` for square images.

    Each client gets that of its own inputs, so that some may hold vectors and others images.

    Attributes
    ----------
    out : int
        Latent dimension k.
    """

    out: int = 64

    def __post_init__(self) -> None:
        _check_sizes("out", self.out)

    def of(self, shape: Any) -> MLP | CNN:
        """The network for inputs of the given sample shape.

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
        """Nothing: neither network has dropout unless asked for."""
        return {}

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        r"""Embed a batch, shape (n, \*shape) → (n, k)."""
        return self.of(tuple(x.shape[1:]))(params, x, noise, part)


@dataclass(frozen=True)
class PerClient(Checked):
    """An embedding for each client by its name: architectures may differ, only the latent dimension is common.

    Attributes
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
        if len(found := {network.out for network in every}) > 1:
            raise ValueError(f"networks must have one latent dimension in common, got out={sorted(found)}")
        object.__setattr__(self, "networks", dict(self.networks))

    @classmethod
    def in_turn(cls, names: Iterable[str], networks: Sequence[Network]) -> PerClient:
        """Deal networks to clients in the order of their names: the first, the second, …, and again the first.

        Parameters
        ----------
        names : iterable of str
            Such as ``[client.name for client in federation]``; their order does not matter.
        networks : sequence of Network
        """
        if not networks:
            raise ValueError("networks must be at least one, got none")
        return cls({name: networks[i % len(networks)] for i, name in enumerate(sorted(names))})

    def of(self, name: str) -> Network:
        """The network of a client.

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

    @property
    def _every(self) -> list[Network]:
        return [*self.networks.values(), *([self.otherwise] if self.otherwise else [])]

    @property
    def out(self) -> int:
        """Latent dimension k."""
        return self._every[0].out

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Refused: parameters are those of one client's network (`of`)."""
        raise TypeError("PerClient has no parameters of its own; ask Model.of(spec), which names a client's network")

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Refused, as `init`."""
        raise TypeError("PerClient draws nothing itself; ask Model.of(spec), which names a client's network")

    def __call__(
        self, params: Params, x: Tensor, noise: Mapping[str, Tensor] | None = None, part: str = "phi"
    ) -> Tensor:
        """Refused, as `init`."""
        raise TypeError("PerClient computes nothing itself; ask Model.of(spec), which names a client's network")


@dataclass(frozen=True)
class Model(Checked):
    """Embedding, optional Gaussian and representation layers, and linear head: outputs = β_i(α(z)), z = φ_i(x).

    With a Gaussian layer z is random, N(μ(x), diag σ²(x)): both are linear in φ_i(x), and softplus makes σ positive
    (FedCR's Tables 6 and 8, FedSR), `SMALLEST_DEVIATION` at least. What takes no draws uses the mean, z = μ(x).

    Attributes
    ----------
    phi : Network or "auto"
        The embedding φ_i : X_i → R^k, part ``"phi"``. ``"auto"`` (`Auto`) is an MLP for clients that hold vectors and a
        CNN for clients that hold images; `MLP` and `CNN` can be named.
    alpha : int or None
        Width of the representation layer α, a linear layer followed by LeakyReLU, part ``"alpha"``; None for no
        such layer. FLIC's published code uses 100 where there is one (FLIC-HL).
    gaussian : int or None
        V, dimension of the Gaussian layer, part ``"gaussian"``; None for no such layer: z = φ_i(x).
    """

    phi: Network = Auto()
    alpha: int | None = None
    gaussian: int | None = None

    def __init__(
        self, phi: Network | Literal["auto"] = "auto", alpha: int | None = None, gaussian: int | None = None
    ) -> None:
        object.__setattr__(self, "phi", Auto() if isinstance(phi, str) and phi == "auto" else phi)
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "gaussian", gaussian)
        self.__post_init__()

    def __post_init__(self) -> None:
        for name in ("alpha", "gaussian"):
            if getattr(self, name) is not None:
                _check_sizes(name, getattr(self, name))

    def resolved(self, shapes: Iterable[Any]) -> Model:
        """The model with its network named, where it is one and the same for inputs of all these shapes."""
        if not isinstance(self.phi, Auto):
            return self
        try:
            networks = {self.phi.of(shape) for shape in shapes}
        except ValueError:  # a method may well have a network of its own for such inputs
            return self
        return replace(self, phi=networks.pop()) if len(networks) == 1 else self

    def of(self, spec: Spec) -> Model:
        """One client's model: this one, unless networks go by clients (`PerClient`)."""
        return replace(self, phi=self.phi.of(spec.name)) if isinstance(self.phi, PerClient) else self

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that this model has."""
        between = [name for name in ("gaussian", "alpha") if getattr(self, name) is not None]
        return ("phi", *between, "beta")

    @property
    def latent(self) -> int:
        """Dimension of z."""
        return self.phi.out if self.gaussian is None else self.gaussian

    def init(self, spec: Spec, rng: torch.Generator, parts: tuple[str, ...]) -> Params:
        """Parameters of the named parts for one client's true shapes."""
        phi, k, latent = self.of(spec).phi, self.phi.out, self.latent
        width = latent if self.alpha is None else self.alpha
        params: Params = {}
        if "phi" in parts:
            if isinstance(spec.shapes, Mapping):
                raise ValueError(f"this model takes one tensor; client {spec.name!r} has blocks {list(spec.shapes)}")
            params |= phi.init(spec.shapes, rng)
        if "gaussian" in parts and self.gaussian is not None:
            params |= {"gaussian.weight": linear_init(rng, k, k, 2 * latent)}
            params |= {"gaussian.bias": linear_init(rng, k, 2 * latent)}
        if "alpha" in parts and self.alpha is not None:
            params |= {"alpha.weight": linear_init(rng, latent, latent, width)}
            params |= {"alpha.bias": linear_init(rng, latent, width)}
        if "beta" in parts:
            C = spec.outputs
            params |= {"beta.weight": linear_init(rng, width, width, C), "beta.bias": linear_init(rng, width, C)}
        return params

    def draws(self) -> dict[str, Draw]:
        """Random numbers that training needs."""
        return self.phi.draws()

    @property
    def follows(self) -> bool:
        """Whether the network has running statistics, which follow its batches."""
        return bool(getattr(self.phi, "follows", False))

    def moved(self, params: Params, x: Any, noise: Mapping[str, Tensor] | None = None) -> Params:
        """The running statistics of the network after a batch of training; none where it has none."""
        return self.phi.moved(params, x, noise) if self.follows else {}  # type: ignore[attr-defined]

    def embed(self, params: Params, x: Any, noise: Mapping[str, Tensor] | None = None) -> Tensor:
        r"""z: φ_i(x), or the mean μ(x) of the Gaussian layer; shape (n, \*shape) → (n, k)."""
        if self.gaussian is not None:
            return self.posterior(params, x, noise)[0]
        return self.phi(params, x, noise)

    def posterior(self, params: Params, x: Any, noise: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        r"""μ(x) and σ(x) > 0 of the Gaussian layer, shape (n, \*shape) → two of (n, V); needs `gaussian`."""
        both = torch.addmm(params["gaussian.bias"], self.phi(params, x, noise), params["gaussian.weight"])
        mean, raw = both.unflatten(-1, (2, self.latent)).unbind(-2)
        return mean, F.softplus(raw) + SMALLEST_DEVIATION

    def represent(self, params: Params, z: Tensor) -> Tensor:
        """The penultimate layer at latent points: α(z), or z where there is no α; shape (n, k) → (n, width)."""
        if self.alpha is None:
            return z
        return F.leaky_relu(torch.addmm(params["alpha.bias"], z, params["alpha.weight"]))

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Outputs at latent points, shape (n, k) → (n, C): logits, or the predicted number (C = 1)."""
        return torch.addmm(params["beta.bias"], self.represent(params, z), params["beta.weight"])
