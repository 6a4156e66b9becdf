r"""FedPAC: features near the classes' common centroids, and heads that clients combine from one another's.

References
----------
.. [1] J. Xu, X. Tong, S.-L. Huang. Personalized federated learning with feature alignment and classifier collaboration.
   ICLR 2023.
.. [2] H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong. FedCR: personalized federated learning based on across-client common
   representation with conditional mutual information regularization. ICML 2023.
.. [3] Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang. FedProto: federated prototype learning across
   heterogeneous clients. AAAI 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Generator

from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.methods.base import Batch, Loss, Method, Role, Specs, Stage, Uploads, Weights, pick, row_mean
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import BODY, HEAD
from hetfl_core.settings import Natural, NotNegative


@dataclass(frozen=True)
class FedPAC(Method):
    r"""A shared body with aligned features, and for each client its own mixture of heads ([1]_, Algorithm 1).

    A participant trains its head with the received body frozen, then the body for M epochs on

    .. math:: f_i + \frac{\lambda}{V}\,\|f_\phi(x) - c_y\|^2,

    :math:`c_y` the centroid of its class over the participants of the last round that had it (once there is one). For
    each participant the server finds the head :math:`\sum_j \alpha_j \beta_j` whose expected error is least (Section
    4.2). Clients must share a feature space, unless bodies stay with them.

    Parameters
    ----------
    term_weight : float
        λ, the weight of the distance to the class means.
    head_epochs : int
        Epochs on the head, before the body's `local_epochs`: 1 and 5 in [1]_; 9 and 1 in [2]_'s code. With 0 head and
        body are trained together, as in FedProto [3]_.
    head_lr : float, optional
        Learning rate of the head; by default that of the body.
    combine_heads : bool
        Whether heads are combined: not in [2]_'s code, and not on its second split in the text.
    penalty : {"mean", "norm"}
        The squared distance averaged over batch and dimensions (summed over dimensions it ends the training of wide
        layers), or, as in [2]_'s code, the norm of the batch's deviations over the size of the batch.
    centroids : {"mean", "scalar"}
        The mean feature of a class, or one number a class, the mean over its dimensions too: a fault of [2]_'s code.
    alignment_from : int
        First round with the penalty. With 0 features of classes whose centroid nobody knows yet are drawn to zero, in
        all rounds, as in [2]_'s code.
    aggregated : {"body", "features"}
        Whether the server averages bodies; or centroids and heads alone, so that inputs may differ from client to
        client, as in FedProto [3]_. All that is local is then trained at the end, the penalty included. What heads are
        weighed by then compares features of different bodies, which the penalty alone brings together.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    term_weight: NotNegative = 1.0
    head_epochs: Natural = 1
    head_lr: NotNegative | None = None
    combine_heads: bool = True
    penalty: Literal["mean", "norm"] = "mean"
    centroids: Literal["mean", "scalar"] = "mean"
    alignment_from: Natural = 1
    aggregated: Literal["body", "features"] = "body"

    names = {"FedPAC": {}, "FedPAC, own bodies": {"aggregated": "features"}}

    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.head_lr is not None and not self.head_epochs:
            raise WrongValue(f"head_lr must be None where head_epochs is 0, got {self.head_lr}")

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The shared parts: the body, or nothing."""
        return BODY if self.aggregated == "body" else ()

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors: the body, centroids that nobody knows yet, and room for a combined head."""
        server = super().init_server(specs, rng)
        head = self.model.init(specs[0], Generator().manual_seed(0), HEAD)
        C, width = specs[0].n_classes, len(head["beta.weight"])
        server["centroid.mean"] = torch.zeros(C, width, dtype=torch.float32)
        server["centroid.known"] = torch.zeros(C, dtype=torch.float32)
        if self.combine_heads:
            server |= {f"none/{name}": torch.zeros_like(p) for name, p in head.items()}
            server |= {"none/known": torch.zeros(1, dtype=torch.float32)}
        return server

    def download(self, server: Params, spec: Spec) -> Params:
        """What is sent to a client: the body, the centroids, and the head that was combined for it.

        The head is zero where there is none yet.
        """
        sent = {name: p for name, p in server.items() if "/" not in name}
        for name in (name.removeprefix("none/") for name in server if name.startswith("none/")):
            sent[f"head/{name}"] = server.get(f"own/{spec.name}/{name}", server[f"none/{name}"])
        return sent

    def start(self, client_state: Params, received: Params) -> Params:
        """The working copy: the received body, and the combined head, or the client's own where there is none."""
        params = {**client_state, **pick(received, BODY)}
        if self.combine_heads:
            known, own = received["head/known"] > 0, pick(client_state, HEAD)
            params |= {name: torch.where(known, received[f"head/{name}"], p) for name, p in own.items()}
        return params

    def stages(self, round: int, role: Role) -> list[Stage]:
        """Train the head, then the body, or both at once, when selected; at the end the head, or whatever is local."""
        rate = {} if self.head_lr is None else {"lr": self.head_lr * self.lr_decay**round}
        if role == "final" and self.aggregated == "features":
            return [self.finetuning(self.local, round)]
        if role == "final":
            return [self.finetuning(HEAD, round, loss=super().loss, **rate)]
        if role != "round":
            return []
        aligned = self.loss if round >= self.alignment_from else super().loss
        if not self.head_epochs:
            return [self.stage(self.model.parts, round, loss=aligned)]
        head = self.stage(HEAD, round, loss=super().loss, epochs=self.head_epochs, **rate)
        return [head, self.stage(self.model.body, round, loss=aligned)]

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective: f_i and the distance to the centroids of the classes that have one (Eq. 9 of [1]_)."""
        z = self.model.embed(params, batch.x, noise)
        task = batch.loss(self.model.head(params, z))
        known = batch.weight if self.alignment_from == 0 else received["centroid.known"][batch.y] * batch.weight
        away = (self.model.represent(params, z) - received["centroid.mean"][batch.y]) * known.unsqueeze(-1)
        if self.penalty == "mean":
            gap = row_mean(away.square().mean(-1), batch.weight)
        else:
            squared = away.square().sum()
            gap = squared.clamp(min=torch.finfo(z.dtype).tiny).sqrt() / batch.weight.sum().clamp(min=1)
        return Loss(task.total + self.term_weight * gap, {**task.terms, "gap": gap.detach()})

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client: the body, the classes' counts and mean features, the head, and its h and v.

        The last two are what heads are weighed by (Section 4.2). Features are those of the trained body for the
        centroids, and of the received one, if there is one, for h and v.
        """
        after = self.model.features(params, data.x)
        member = torch.eye(len(received["centroid.mean"]), dtype=after.dtype, device=after.device)[data.y.long()]
        counts = member.sum(0)
        mean = (member.mT @ after) / counts.clamp(min=1).unsqueeze(-1)
        if self.centroids == "scalar":
            mean = mean.mean(-1, keepdim=True).expand_as(mean).contiguous()
        sent = {**pick(params, self.shared), "centroid.mean": mean, "centroid.count": counts}
        if not self.combine_heads:
            return sent
        before = self.model.features({**params, **pick(received, BODY)}, data.x)
        h = (member.mT @ before) / len(data.y)
        v = (before.square().sum() / len(data.y) - h.square().sum()) / len(data.y)
        return {**sent, **pick(params, HEAD), "h": h, "v": v.reshape(1)}

    beyond_sums = "each client's head is combined anew from all heads (Eq. 12)"

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors: the mean of the bodies, the centroids by counts, each participant's combined head."""
        new = super().aggregate(server, [pick(upload, self.shared) for upload in uploads], weights, specs, rng)
        counts = torch.stack([upload["centroid.count"] for upload in uploads])
        sums = torch.stack([upload["centroid.mean"] for upload in uploads]) * counts.unsqueeze(-1)
        seen, total = (counts > 0).any(0), counts.sum(0).clamp(min=1)
        mean = torch.where(seen.unsqueeze(-1), sums.sum(0) / total.unsqueeze(-1), server["centroid.mean"])
        new |= {"centroid.mean": mean, "centroid.known": torch.where(seen, 1, server["centroid.known"])}
        if self.combine_heads:
            for spec, alpha in zip(specs, head_weights(uploads), strict=True):
                for name in pick(uploads[0], HEAD):
                    heads = torch.stack([upload[name] for upload in uploads])
                    new[f"own/{spec.name}/{name}"] = torch.tensordot(torch.as_tensor(alpha).to(heads), heads, 1)
                new[f"own/{spec.name}/known"] = torch.ones_like(server["none/known"])
        return new


def head_weights(uploads: Sequence[Params]) -> np.ndarray:
    r"""For each client the weights α of all clients' heads in its own (Eq. 12 of [1]_), shape (P, P).

    Client i's minimise :math:`\alpha^\top P_i \alpha` on the simplex,
    :math:`(P_i)_{jk} = v_j \delta_{jk} + \langle h_i - h_j, h_i - h_k \rangle`: the variance of the estimates, and the
    bias of taking another client's.

    Parameters
    ----------
    uploads : sequence of dict of str to Tensor
        With ``h``, shape (C, V), the mean features of the classes times their shares, and ``v``, shape (1,). A client
        for which they are not finite keeps its own head, which nobody else takes. A client with one sample has v = 0
        and keeps its own, too: that is the paper's estimate.

    Returns
    -------
    ndarray, shape (P, P)
    """
    h = np.stack([upload["h"].double().cpu().numpy().ravel() for upload in uploads])
    v = np.array([float(upload["v"]) for upload in uploads])
    v = np.maximum(v, 0)  # below it by rounding alone
    sound = np.flatnonzero(np.isfinite(h).all(1) & np.isfinite(v))
    alpha = np.eye(len(h))
    for i in sound:
        apart = h[i] - h[sound]
        alpha[i] = 0
        alpha[i, sound] = simplex_minimum(np.diag(v[sound]) + apart @ apart.T)
    return alpha


def simplex_minimum(P: np.ndarray) -> np.ndarray:
    r"""The α ≥ 0 with Σα = 1 for which αᵀPα is least; P (n, n) symmetric and positive semi-definite.

    It is :math:`x / \sum_j x_j` for the x ≥ 0 that minimises :math:`\|Rx - R^{-\top} 1\|^2`, which is
    :math:`x^\top P x - 2 \sum_j x_j` and a constant, :math:`R^\top R = P`: non-negative least squares (SciPy's), which
    end after finitely many steps. A multiple of the identity, 1e-12 of P's largest entry, makes the minimum unique.
    """
    from scipy.linalg import solve_triangular  # here, for importing it takes a third of a second
    from scipy.optimize import nnls

    n = len(P)
    scaled = P / max(float(np.abs(P).max()), np.finfo(float).tiny)
    R = np.linalg.cholesky(scaled + 1e-12 * np.eye(n)).T
    x, _ = nnls(R, solve_triangular(R, np.ones(n), trans="T"))
    return np.asarray(x / x.sum())
