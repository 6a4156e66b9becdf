r"""Alignment: what the anchors are, and by which distance a client's embedded classes are drawn to them.

The paper's choice is the closed-form W2 distance between Gaussians; Remark 2 of [1]_ names others. Each is a small
frozen dataclass with the hooks of `Alignment`; `FLIC` takes one. Anchors of a regression (Section 3 of [1]_) are the
functions at the end.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from hetfl_core.distances import LARGEST_PLAN
from hetfl_core.errors import WrongValue
from hetfl_core.methods import anchor_terms
from hetfl_core.methods.base import row_mean
from hetfl_core.networks import Draw, Tensors
from hetfl_core.settings import Checked, Limit, NotNegative, Positive

Components = Annotated[int, Limit(f"in 1…{LARGEST_PLAN}", lambda p: 1 <= p <= LARGEST_PLAN)]


class Anchors(NamedTuple):
    """The anchors of C classes in R^k.

    Parameters
    ----------
    mean : Tensor, shape (C, k)
        Means v_c; (C, P, k) for mixtures of P components; (2, k), the ends a and b, for a regression.
    cholesky : Tensor, shape (C, k, k), or None
        Lower triangular L_c with Σ_c = L_c L_cᵀ; None where Σ_c is `variance` · I.
    variance : float
        Of every coordinate, where there is no `cholesky`.
    """

    mean: Tensor
    cholesky: Tensor | None
    variance: float

    def shift(self, xi: Tensor) -> Tensor:
        """Deviations L_c ξ of samples from the means.

        Parameters
        ----------
        xi : Tensor, shape (J, C, k)
            Standard normal numbers.

        Returns
        -------
        Tensor, shape (J, C, k)
        """
        if self.cholesky is None:
            return math.sqrt(self.variance) * xi
        return torch.einsum("ckl,jcl->jck", self.cholesky, xi)


@dataclass(frozen=True)
class Alignment(Checked):
    """One Gaussian per class, and a distance to it that a subclass names.

    The usual anchor is N(v_c, Σ_c); `MixtureWasserstein` has several components.
    """

    term: ClassVar[str] = "w2"
    """Name of the distance in the history."""
    learns_covariance: ClassVar[bool] = False
    """Whether the distance takes covariances other than a multiple of the identity."""

    def means(self, n_classes: int, k: int, scale: float, rng: torch.Generator) -> Tensor:
        """Means of the anchors before the first round: from N(0, scale² I), shape (C, k).

        Parameters
        ----------
        n_classes, k : int
            C, and the latent dimension.
        scale : float
            Standard deviation.
        rng : torch.Generator
            On the CPU.

        Returns
        -------
        Tensor of float32
        """
        return scale * torch.randn(n_classes, k, generator=rng, dtype=torch.float32)

    def draws(self, k: int) -> dict[str, Draw]:
        """Random numbers that `distance` wants.

        Parameters
        ----------
        k : int
            Latent dimension.

        Returns
        -------
        dict of str to Draw
            By default none.
        """
        return {}

    def distance(self, anchors: Anchors, z: Tensor, y: Tensor, weight: Tensor, noise: Tensors) -> Tensor:
        """Sum over the classes of a batch of the squared distance between anchor and class.

        Parameters
        ----------
        anchors : Anchors
        z : Tensor, shape (n, k)
            Embedded samples.
        y, weight : Tensor, shape (n,)
            Labels, and 1 for a sample or 0 for padding.
        noise : dict of str to Tensor
            What `draws` declares.

        Returns
        -------
        Tensor, shape ()
        """
        raise NotImplementedError(f"{type(self).__name__} must define distance(anchors, z, y, weight, noise)")

    def sample_draws(self, J: int, n_classes: int, k: int) -> dict[str, Draw]:
        """Random numbers that `samples` wants.

        Parameters
        ----------
        J, n_classes, k : int
            Samples of each anchor, C, and the latent dimension.

        Returns
        -------
        dict of str to Draw
        """
        return {"anchor.xi": Draw((J, n_classes, k))}

    def samples(self, anchors: Anchors, noise: Tensors) -> Tensor:
        """Samples Z_c = v_c + L_c ξ of each anchor, J of them.

        Parameters
        ----------
        anchors : Anchors
        noise : dict of str to Tensor
            What `sample_draws` declares.

        Returns
        -------
        Tensor, shape (J, C, k)
        """
        return anchors.mean + anchors.shift(noise["anchor.xi"])


@dataclass(frozen=True)
class Wasserstein(Alignment):
    """Closed-form W2 between N(v_c, Σ_c) and the Gaussian with the mean and covariance of the class's rows."""

    learns_covariance: ClassVar[bool] = True

    def distance(self, anchors: Anchors, z: Tensor, y: Tensor, weight: Tensor, noise: Tensors) -> Tensor:
        """Sum over the classes of the closed-form squared distance, Σ_c W2²(μ_c, ν̂_c)."""
        return anchor_terms.class_wasserstein(z, y, weight, anchors.mean, anchors.cholesky, variance=anchors.variance)


@dataclass(frozen=True)
class SampledWasserstein(Alignment):
    """W2 between two empirical Gaussians: a class's rows, and as many fresh samples of its anchor (published code)."""

    def draws(self, k: int) -> dict[str, Draw]:
        """Random numbers that `distance` wants: one sample of its anchor for each row."""
        return {"anchor.samples": Draw((k,), per="sample")}

    def distance(self, anchors: Anchors, z: Tensor, y: Tensor, weight: Tensor, noise: Tensors) -> Tensor:
        """Sum over the classes of the squared distance between empirical Gaussians, Σ_c W2²(μ̂_c, ν̂_c)."""
        samples = anchors.mean[y] + math.sqrt(anchors.variance) * noise["anchor.samples"]
        return anchor_terms.class_wasserstein_sampled(z, samples, y, weight, anchors.mean.shape[0])


@dataclass(frozen=True)
class DebiasedWasserstein(Alignment):
    """`Wasserstein` less the bias that a batch's few rows per class give it, as far as the class's cloud is round.

    What is taken off depends on the number of rows and the size of the cloud, not on a tuned constant.
    """

    def distance(self, anchors: Anchors, z: Tensor, y: Tensor, weight: Tensor, noise: Tensors) -> Tensor:
        """Sum over the classes of the squared distance less its bias, Σ_c W2²(μ_c, ν̂_c) − bias."""
        return anchor_terms.class_wasserstein_debiased(z, y, weight, anchors.mean, anchors.variance)


@dataclass(frozen=True)
class MMD(Alignment):
    """Maximum mean discrepancy with Gaussian kernels, between a class's rows and its anchor.

    Parameters
    ----------
    bandwidth : float, optional
        Width of the kernel, in the units of the latent space, with the anchor in closed form; by default it follows
        the distance between the rows and the anchor (see `hetfl_core.methods.anchor_terms.class_mmd`).
    gammas : tuple of float
        If there are any, the kernel is the sum of exp(−γ‖a − b‖²), and the anchor enters by as many fresh samples as
        the class has rows.
    """

    bandwidth: Positive | None = None
    gammas: tuple[Positive, ...] = ()

    term: ClassVar[str] = "mmd"

    def __post_init__(self) -> None:
        if self.gammas and self.bandwidth is not None:
            raise WrongValue(f"bandwidth and gammas exclude each other, got {self.bandwidth} and {self.gammas}")

    @classmethod
    def published(cls) -> MMD:
        """The published code's seven kernels, γ = 10⁻⁴ … 10²."""
        return cls(gammas=(1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0))

    def draws(self, k: int) -> dict[str, Draw]:
        """Random numbers that `distance` wants: with `gammas` one sample of its anchor for each row."""
        return {"anchor.samples": Draw((k,), per="sample")} if self.gammas else {}

    def distance(self, anchors: Anchors, z: Tensor, y: Tensor, weight: Tensor, noise: Tensors) -> Tensor:
        """Sum over the classes of the squared discrepancy, Σ_c MMD²(μ_c, ν̂_c), ν̂_c the empirical distribution."""
        if not self.gammas:
            return anchor_terms.class_mmd(z, y, weight, anchors.mean, anchors.variance, self.bandwidth)
        samples = anchors.mean[y] + math.sqrt(anchors.variance) * noise["anchor.samples"]
        return anchor_terms.class_mmd_sampled(z, samples, y, weight, anchors.mean.shape[0], self.gammas)


@dataclass(frozen=True)
class MixtureWasserstein(Alignment):
    """MW2 between Gaussian mixtures: an anchor has several components, and so has a class, by k-means of its rows.

    The components of an anchor have equal weights and covariance `variance` · I.

    Parameters
    ----------
    components : int
        P, at most 3: the small transport problem is solved by looking at all vertices.
    spread : float
        Standard deviation of the components' first means around their class's, which is drawn as without mixtures.
    """

    components: Components = 2
    spread: NotNegative = 1.0

    term: ClassVar[str] = "mw2"

    def means(self, n_classes: int, k: int, scale: float, rng: torch.Generator) -> Tensor:
        """Means of the components before the first round, shape (C, P, k)."""
        centres = super().means(n_classes, k, scale, rng)
        moved = torch.randn(n_classes, self.components, k, generator=rng, dtype=torch.float32)
        return centres.unsqueeze(1) + self.spread * moved

    def distance(self, anchors: Anchors, z: Tensor, y: Tensor, weight: Tensor, noise: Tensors) -> Tensor:
        """Sum over the classes of the squared distance between mixtures, Σ_c MW2²(μ_c, ν̂_c)."""
        return anchor_terms.class_mixture_wasserstein(z, y, weight, anchors.mean, anchors.variance)

    def sample_draws(self, J: int, n_classes: int, k: int) -> dict[str, Draw]:
        """Random numbers that `samples` wants, among them which component each sample is of."""
        return {**super().sample_draws(J, n_classes, k), "anchor.component": Draw((J, n_classes), "uniform")}

    def samples(self, anchors: Anchors, noise: Tensors) -> Tensor:
        """Samples of each mixture, J of them, shape (J, C, k)."""
        classes = torch.arange(anchors.mean.shape[0], device=anchors.mean.device)
        component = (noise["anchor.component"] * self.components).long()
        return anchors.mean[classes, component] + anchors.shift(noise["anchor.xi"])


# --- anchors of a regression ----------------------------------------------------------------------------------------


def segment_means(ends: Tensor, y: Tensor) -> Tensor:
    """Anchor means m^(y) = y a + (1 − y) b of a regression, Section 3 of [1]_.

    Parameters
    ----------
    ends : Tensor, shape (2, k)
        a and b.
    y : Tensor, shape (n,)
        Targets.

    Returns
    -------
    Tensor, shape (n, k)
    """
    y = y.unsqueeze(-1)
    return y * ends[0] + (1 - y) * ends[1]


def segment_distance(ends: Tensor, z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Mean over the rows of W2²(N(m^(y), I), δ_z) less its constant k, which is ‖z − m^(y)‖².

    Each row is taken as the only one with its target, as [1]_ does, which writes a sum over the targets; the mean makes
    λ1 independent of the batch size.

    Parameters
    ----------
    ends : Tensor, shape (2, k)
        a and b.
    z : Tensor, shape (n, k)
        Embedded samples.
    y, weight : Tensor, shape (n,)
        Targets, and 1 for a sample or 0 for padding.

    Returns
    -------
    Tensor, shape ()
    """
    return row_mean((z - segment_means(ends, y)).square().sum(-1), weight)
