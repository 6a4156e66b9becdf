r"""FedHeNN: local networks whose kernels on common inputs are pulled together, as FLIC adapted it.

Each round the server draws a *representation alignment dataset* (RAD) X, and the clients answer with the kernel of
their representations of it, :math:`K_i = Z_i Z_i^\top` with :math:`Z_i` the penultimate layer at X. A participant then
minimises

.. math:: f_i(\phi_i, \beta_i) + \eta \, \bigl(1 - \mathrm{CKA}(K_i, \bar K)\bigr),
    \qquad \mathrm{CKA}(K, L) = \frac{\langle HKH, HLH \rangle_F}{\|HKH\|_F \, \|HLH\|_F},

with :math:`\bar K` the mean of the answers and H the centring matrix. Nothing of the networks is averaged.

The clients of [1]_ share an input space, from which X is taken. Where input spaces differ, [2]_ (Section 6,
*Baselines*) builds X in the largest of them and prunes it for each client.

References
----------
.. [1] D. Makhija, X. Han, N. Ho, J. Ghosh. Architecture agnostic federated learning for neural networks. ICML 2022.
.. [2] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. TMLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec, as_params, from_params, map_blocks
from hetfl_core.methods.base import Batch, Loss, Method, Role, Specs, Stage, Uploads, Weights, weighted_mean
from hetfl_core.networks import Params, Tensors
from hetfl_core.padding import crop, pad
from hetfl_core.settings import Limit, NotNegative

Rows = Annotated[int, Limit("at least 2", lambda n: n >= 2)]


def centred(kernel: Tensor) -> Tensor:
    """The kernel of centred representations, H K H with H = I − 11ᵀ/n, shape (n, n) → (n, n)."""
    rows = kernel - kernel.mean(0, keepdim=True)
    return rows - rows.mean(1, keepdim=True)


def kernel_alignment(K: Tensor, L: Tensor) -> Tensor:
    """Linear CKA from the kernels of two representations.

    It equals `hetfl_core.distances.cka` of the representations themselves; this form also takes a mean of kernels.

    Parameters
    ----------
    K, L : Tensor, shape (n, n)
        Kernels of the same n samples, such as Z Zᵀ.

    Returns
    -------
    Tensor, shape ()
        In [0, 1]; 0, with zero gradient, where a representation is constant: where centring leaves of its kernel no
        more than rounding.
    """
    roundings = [(8 * torch.finfo(kernel.dtype).eps) ** 2 * kernel.square().sum() for kernel in (K, L)]
    K, L = centred(K), centred(L)
    squares = K.square().sum(), L.square().sum()
    varies = (squares[0] > roundings[0]) & (squares[1] > roundings[1])
    norms = [torch.where(varies, square, 1).sqrt() for square in squares]
    return torch.where(varies, (K * L).sum() / (norms[0] * norms[1]), 0)


def published_alignment(K: Tensor, mean: Tensor) -> Tensor:
    r"""The published code's similarity, :math:`\|\bar K K\|_F^2 / (\|\bar K \bar K^\top\|_F \max(\|K K\|_F, 1))`.

    Parameters
    ----------
    K, mean : Tensor, shape (n, n)
        A client's kernel, and the mean of all.

    Returns
    -------
    Tensor, shape ()
    """
    squares = [product.square().sum() for product in (mean @ mean.T, K @ K)]
    smallest = torch.finfo(K.dtype).tiny
    return (mean @ K).square().sum() / (squares[0].clamp(min=smallest).sqrt() * squares[1].clamp(min=1).sqrt())


@dataclass(frozen=True)
class FedHeNN(Method):
    """Local networks whose kernels on random inputs are pulled towards their mean ([2]_, Section 6, *Baselines*).

    The RAD has independent N(0, 1) entries, in the shape that is on every axis as large as the largest client's, and
    is drawn anew each round. A client gets its leading part: the first d_i features, the top-left corner of images.
    Zeros stand in where a client that joins later is larger than any before. It is embedded without dropout.

    In the last local training, and for new clients, the RAD and K̄ of the last round are used.

    Parameters
    ----------
    term_weight : float
        η, the weight of the alignment; 0.1 is the published code's factor, the text gives none.
    n_rad : int
        Rows of the RAD; 100 in the published code.
    weighting : {"samples", "uniform"}
        Weights of the clients in K̄; the text speaks of a mean.

    alignment : {"distance", "published"}
        1 − CKA, as in [1]_, or the code's `published_alignment`: a *similarity*, which is added all the same.
    surveyed : {"participants", "all"}
        Whose kernels are averaged: the participants', or every client's (code).
    weight_decay : float
        0 in the text, 1e-4 in the code.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    weighting: Literal["samples", "uniform"] = "uniform"
    term_weight: NotNegative = 0.1
    n_rad: Rows = 100

    alignment: Literal["distance", "published"] = "distance"
    surveyed: Literal["participants", "all"] = "participants"  # type: ignore[misc]

    @classmethod
    def published(cls, **changes: Any) -> FedHeNN:
        """FedHeNN as FLIC's published code runs it; `changes` override single fields.

        Parameters
        ----------
        **changes
            Fields of the class.

        Returns
        -------
        FedHeNN
        """
        return replace(cls(alignment="published", surveyed="all", weight_decay=1e-4), **changes)

    def check(self, specs: Specs) -> None:
        """Refuse clients whose inputs have no common number of axes: there is then no largest feature space."""
        super().check(specs)
        axes = {str(map_blocks(len, spec.shapes)): spec for spec in specs}
        if len(axes) > 1:
            some = ", ".join(f"{spec.shapes} on {spec.name!r}" for spec in axes.values())
            raise WrongValue(f"FedHeNN draws common inputs, so all must have the same number of axes, got {some}")

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """A RAD, and a K̄ of zeros that nobody aligns with: the first survey replaces both."""
        return {**self.ask({}, specs, rng), "kernel": torch.zeros(self.n_rad, self.n_rad, dtype=torch.float32)}

    # --- the survey ---

    def ask(self, server: Params, specs: Specs, rng: Generator) -> Params:
        """The RAD of this round, drawn in the largest feature space."""

        def draw(*shapes: tuple[int, ...]) -> Tensor:
            largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
            return torch.randn(self.n_rad, *largest, generator=rng, dtype=torch.float32)

        return as_params("rad", map_blocks(draw, *(spec.shapes for spec in specs)))

    def download(self, server: Params, spec: Spec) -> Params:
        """The RAD in the client's own shape, and K̄ where it is known: not yet with the survey's question."""

        def own(rad: Tensor, shape: tuple[int, ...]) -> Tensor:
            return pad(crop(rad, (self.n_rad, *shape)), (self.n_rad, *shape))

        return {**server, **as_params("rad", map_blocks(own, from_params("rad", server), spec.shapes))}

    def start(self, client_state: Params, received: Params) -> Params:
        """The working copy: the client's own network."""
        return dict(client_state)

    def _kernel(self, params: Params, received: Params) -> Tensor:
        z = self.model.features(params, from_params("rad", received))
        return z @ z.T

    def survey(self, params: Params, received: Params, data: Batch) -> Params:
        """What a client answers: its kernel K_i = Z_i Z_iᵀ, shape (n_rad, n_rad)."""
        return {"kernel": self._kernel(params, received)}

    def digest(self, server: Params, answers: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors with the mean kernel K̄ = Σ_i ω_i K_i."""
        return {**server, **weighted_mean(answers, weights)}

    # --- local training ---

    def stages(self, round: int, role: Role) -> list[Stage]:
        """M epochs on all parameters, when selected and at the end."""
        return self.usual_stages(self.local, self.local, round, role)

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective f_i + η (1 − CKA(K_i, K̄)), or f_i + η · similarity as in the published code."""
        task = super().loss(params, received, batch, noise)
        measure = kernel_alignment if self.alignment == "distance" else published_alignment
        similarity = measure(self._kernel(params, received), received["kernel"])
        pull = 1 - similarity if self.alignment == "distance" else similarity
        return Loss(task.total + self.term_weight * pull, {**task.terms, "similarity": similarity.detach()})
