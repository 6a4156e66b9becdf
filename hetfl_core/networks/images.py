"""Convolutional embeddings of images."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl_core.errors import WrongValue
from hetfl_core.networks.layers import ACTIVATIONS, Activation, Draw, Network, Params, Tensors, layers_init, of_client
from hetfl_core.networks.module import lifted
from hetfl_core.settings import SOME, Checked, Count, Dropout, Limit, Natural, PositiveShare

Odd = Annotated[int, Limit("an odd number of at least 1", lambda x: x >= 1 and x % 2 == 1)]


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


def _got(shape: tuple[int, ...]) -> str:
    """A shape that was refused, and what grey images lack."""
    grey = "; grey images need an axis for their one channel, x[:, None]" if len(shape) == 2 else ""
    return f"got {tuple(shape)}{grey}"


@dataclass(frozen=True)
class CNN(Checked):
    """Convolutional embedding of one-channel images, after FLIC's published code for the digits.

    conv 5×5 (32) – max-pool – sigmoid – conv 5×5 (20) – dropout – max-pool – sigmoid – linear to k. With 28 × 28
    inputs the linear layer sees 320 numbers, with 16 × 16 inputs 20. Images of different sizes cannot share a stack.

    Parameters
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

    out: Count = 64
    channels: tuple[Count, Count] = (32, 20)
    kernel: Count = 5
    dropout: Dropout = 0.0

    padded: ClassVar[bool] = True

    def sides(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Side of the maps after the second convolution, and after the second pooling.

        Parameters
        ----------
        shape : tuple of int
            (channels, side, side), pixels.

        Returns
        -------
        tuple of int
            Both in pixels.

        Raises
        ------
        ValueError
            For inputs that are not square images, or are too small.
        """
        if len(shape) != 3 or shape[1] != shape[2]:
            raise WrongValue(f"a CNN needs square images of shape (channels, side, side), {_got(shape)}")
        before = (shape[1] - self.kernel + 1) // 2 - self.kernel + 1
        if before < 2:
            raise WrongValue(
                f"images of side {shape[1]} are too small for two {self.kernel}×{self.kernel} convolutions"
            )
        return before, before // 2

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, side, side).

        Parameters
        ----------
        shape, rng, part
            As for `Network.init`.

        Returns
        -------
        dict of str to Tensor
            ``<part>.<i>.weight`` and ``<part>.<i>.bias`` of the two convolutions and the linear layer.

        Raises
        ------
        ValueError
            For inputs that are not square images, or are too small.
        """
        area, flat = self.kernel**2, self.channels[1] * self.sides(shape)[1] ** 2
        first, second = self.channels
        return layers_init(rng, part, [(shape[0] * area, first), (first * area, second), (flat, self.out)])

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """The dropout mask that training needs, one a channel and sample.

        Parameters
        ----------
        part : str
            What the names begin with.

        Returns
        -------
        dict of str to Draw
            Empty without dropout.
        """
        if not self.dropout:
            return {}
        return {f"{part}.1.mask": Draw((self.channels[1], 1, 1), "keep", "sample", 1 - self.dropout)}

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        """Embed a batch of images, shape (n, channels, side, side) → (n, k).

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`.

        Returns
        -------
        Tensor, shape (n, k)
        """
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

    Parameters
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

    channels: Annotated[tuple[Count, ...], SOME] = (6, 16)
    out: Count = 32
    kernel: Odd = 3
    momentum: PositiveShare = 0.1

    padded: ClassVar[bool] = True

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, height, width).

        Parameters
        ----------
        shape, rng, part
            As for `Network.init`.

        Returns
        -------
        dict of str to Tensor
            Weights and biases of all layers; of each normalisation ``<part>.<i>.norm.weight`` and ``.bias``, and the
            running ``.mean`` and ``.variance``.

        Raises
        ------
        ValueError
            For inputs that are not images.
        """
        if len(shape) != 3:
            raise WrongValue(f"expected images of shape (channels, height, width), {_got(shape)}")
        height, width = shape[1:]
        for _ in self.channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        area, flat = self.kernel**2, self.channels[-1] * height * width
        widths = [(before * area, channels) for before, channels in itertools.pairwise([shape[0], *self.channels])]
        drawn, params = layers_init(rng, part, [*widths, (flat, self.out)]), Params()
        for i, channels in enumerate(self.channels):
            ones, zeros = torch.ones(channels, dtype=torch.float32), torch.zeros(channels, dtype=torch.float32)
            params |= {name: drawn.pop(name) for name in (f"{part}.{i}.weight", f"{part}.{i}.bias")}
            params |= {f"{part}.{i}.norm.weight": ones, f"{part}.{i}.norm.bias": zeros}
            params |= {f"{part}.{i}.norm.mean": zeros.clone(), f"{part}.{i}.norm.variance": ones.clone()}
        return params | drawn

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Which rows of a batch are samples; that these are given says that this is training.

        Parameters
        ----------
        part : str
            What the names begin with.

        Returns
        -------
        dict of str to Draw
        """
        return {f"{part}.rows": Draw((), "rows", "sample")}

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        """Embed a batch of images, shape (n, channels, height, width) → (n, k).

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`.

        Returns
        -------
        Tensor, shape (n, k)
        """
        return self._forward(params, x, noise, part)[0]

    def moved(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Params:
        """The running means and variances after a batch of training; none in use.

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`; the parameters are those before the step.

        Returns
        -------
        dict of str to Tensor
            The running statistics, by name; empty without `noise`.
        """
        return self._forward(params, x, noise, part)[1]

    def _forward(self, params: Params, x: Tensor, noise: Tensors | None, part: str) -> tuple[Tensor, Params]:
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

    Parameters
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

    channels: Annotated[tuple[Count, ...], SOME] = (6, 16)
    hidden: tuple[Count, ...] = (120,)
    out: Count = 84
    kernel: Count = 5
    activation: Activation = "relu"

    padded: ClassVar[bool] = True

    def side(self, shape: tuple[int, ...]) -> int:
        """Side of the maps that enter the fully connected layers.

        Parameters
        ----------
        shape : tuple of int
            (channels, side, side), pixels.

        Returns
        -------
        int
            In pixels.

        Raises
        ------
        ValueError
            For inputs that are not square images, or are too small.
        """
        if len(shape) != 3 or shape[1] != shape[2]:
            raise WrongValue(f"a LeNet needs square images of shape (channels, side, side), {_got(shape)}")
        side = shape[1]
        for _ in self.channels:
            side = (side - self.kernel + 1) // 2
        if side < 1:
            raise WrongValue(
                f"images of side {shape[1]} are too small for {len(self.channels)} {self.kernel}×{self.kernel} "
                "convolutions with pooling"
            )
        return side

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, side, side).

        Parameters
        ----------
        shape, rng, part
            As for `Network.init`.

        Returns
        -------
        dict of str to Tensor
            ``<part>.<i>.weight`` and ``<part>.<i>.bias`` of each layer.

        Raises
        ------
        ValueError
            For inputs that are not square images, or are too small.
        """
        widths = [shape[0], *self.channels]
        layers = [(fan_in * self.kernel**2, fan_out) for fan_in, fan_out in itertools.pairwise(widths)]
        flat = self.channels[-1] * self.side(shape) ** 2
        return layers_init(rng, part, [*layers, *itertools.pairwise([flat, *self.hidden, self.out])])

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """No random numbers: a LeNet has no dropout."""
        return {}

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        """Embed a batch of images, shape (n, channels, side, side) → (n, k).

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`.

        Returns
        -------
        Tensor, shape (n, k)
        """
        act = ACTIVATIONS[self.activation]
        for i in range(len(self.channels)):  # the activation does not fall, so that pooling may come first: it is less
            maps = F.max_pool2d(convolve(x, params[f"{part}.{i}.weight"], self.kernel), 2)
            x = act(maps + params[f"{part}.{i}.bias"][:, None, None])
        z = x.flatten(1)
        for i in range(len(self.channels), len(self.channels) + len(self.hidden) + 1):
            z = act(torch.addmm(params[f"{part}.{i}.bias"], z, params[f"{part}.{i}.weight"]))
        return z


@dataclass(frozen=True)
class Augmented(Checked, Network):
    """A network that is trained on images cropped at random and mirrored, and predicts from images as they are.

    An image is framed by `padding` pixels, and a window of its own size is cut out of it, at each place with the same
    probability; every other one is mirrored, left to right. That is what FedCR's published code does with CIFAR, and
    its text does not say.

    Parameters
    ----------
    network : Network
        What embeds the images.
    padding : int
        Pixels on each side; 0 for no cropping.
    mirrored : bool
        Whether images are mirrored, with probability ½.
    fill : tuple of float
        Value of the frame, one for all channels or one for each: where pixels were standardised, that of black.
    """

    network: Network
    padding: Natural = 4
    mirrored: bool = True
    fill: Annotated[tuple[float, ...], SOME] = (0.0,)

    def _converted(self) -> dict[str, Any]:
        return {"network": lifted(self.network)}

    def of_client(self, name: str, shape: Any) -> Network:
        """The same augmentation around the network of one client.

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
        network = of_client(self.network, name, shape)
        return self if network is self.network else replace(self, network=network)

    @property
    def out(self) -> int:
        """Latent dimension k."""
        return self.network.out

    def init(self, shape: tuple[int, ...], rng: torch.Generator, part: str = "phi") -> Params:
        """Parameters for images of shape (channels, height, width).

        Parameters
        ----------
        shape, rng, part
            As for `Network.init`.

        Returns
        -------
        dict of str to Tensor
            Those of the network.

        Raises
        ------
        ValueError
            For inputs that are not images, or have other channels than `fill`.
        """
        if len(shape) != 3 or len(self.fill) not in (1, shape[0]):
            values = "" if len(self.fill) == 1 else f" and {len(self.fill)} channels, as `fill` has"
            raise WrongValue(f"expected images of shape (channels, height, width){values}, {_got(shape)}")
        return self.network.init(shape, rng, part)

    def draws(self, part: str = "phi") -> dict[str, Draw]:
        """Random numbers that training needs: where an image is cropped, whether it is mirrored, and the network's.

        Parameters
        ----------
        part : str
            What the names begin with.

        Returns
        -------
        dict of str to Draw
        """
        return self.network.draws(part) | {f"{part}.augment": Draw((3,), "uniform", "sample")}

    def __call__(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Tensor:
        """Embed a batch of images, shape (n, channels, height, width) → (n, k).

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`; without `noise` images are embedded as they are.

        Returns
        -------
        Tensor, shape (n, k)
        """
        return self.network(params, self.augmented(x, (noise or {}).get(f"{part}.augment")), noise, part)

    @property
    def padded(self) -> bool:
        """Whether inputs of the network within may be padded."""
        return bool(getattr(self.network, "padded", False))

    def moved(self, params: Params, x: Tensor, noise: Tensors | None = None, part: str = "phi") -> Params:
        """Running statistics of the network after a batch of training.

        Parameters
        ----------
        params, x, noise, part
            As for `Network.__call__`; the parameters are those before the step.

        Returns
        -------
        dict of str to Tensor
        """
        inputs = self.augmented(x, (noise or {}).get(f"{part}.augment"))
        return self.network.moved(params, inputs, noise, part)  # type: ignore[attr-defined,no-any-return]

    def augmented(self, x: Tensor, drawn: Tensor | None) -> Tensor:
        """Images cropped and mirrored as random numbers say.

        Parameters
        ----------
        x : Tensor, shape (n, c, h, w)
        drawn : Tensor, shape (n, 3), or None
            Uniform on [0, 1): row and column of the window, and whether it is mirrored.

        Returns
        -------
        Tensor, shape (n, c, h, w)
            `x` itself where there are no numbers.
        """
        if drawn is None:
            return x
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
