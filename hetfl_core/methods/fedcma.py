r"""Fed-CMA: networks of any kind whose class means, and whose heads, are pulled together ([1]_).

============================ ===========================================================================
Fed-CMA                      here
============================ ===========================================================================
:math:`u_i, g_i`             what comes before the head, ``phi``, ``alpha``; `Model.represent` of it
:math:`v_i`                  the head ``beta``, all of it local; :math:`\bar v` is the server's ``beta``
:math:`e^k`                  row k of the server's ``mean``, shape (K, d_e)
:math:`\mathcal{B}_i^k`      samples of class k, drawn once, :math:`b_i^k \le` `samples_per_class`: rows of
                             ``fixed.x``, those that have a 1 in row k of ``fixed.of``, shape (K, rows)
:math:`p_i, p_i^k`           the client's share of all samples, and of all samples of class k
:math:`\lambda_1, \lambda_2` `head_weight`, `mean_weight`
:math:`\eta_{(t)}`           `lr`, with `lr_decay`; of the server too, unless `server_step` is given
============================ ===========================================================================

A client minimises (Eq. 5)

.. math::
   L_i(w_i) + \frac{\lambda_1}{2} p_i \|v_i - \bar v\|^2
   + \frac{\lambda_2}{2} \sum_k \frac{p_i^k}{b_i^k} \sum_{x \in \mathcal{B}_i^k} \|g_i(u_i, x) - e^k\|^2,

and the server takes :math:`\bar v \leftarrow (1 - \lambda_1 \eta) \bar v + \lambda_1 \eta \sum_i p_i v_i`,
:math:`e^k \leftarrow (1 - \lambda_2 \eta) e^k + \lambda_2 \eta \sum_i p_i^k e_i^k(u_i)` (Eq. 7), which is a gradient
step on the same objective.

Only means and heads travel, so networks and inputs may differ from client to client. Where the text is silent,
the server begins with the weighted means of what the clients begin with (Algorithm 1, line 3, collects them). Shares
are normalised to one over the clients of a round, and over those of them that hold a class; over all clients they sum
to one anyhow. A client is told its shares, K + 1 numbers.

References
----------
.. [1] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec, as_params, from_params, map_blocks
from hetfl_core.methods.base import Batch, Loss, Method, Role, Specs, Stage, Uploads, Weights, pick
from hetfl_core.methods.fedprox import drift
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.layers import HEAD
from hetfl_core.settings import Count, NotNegative, PositiveShare


@dataclass(frozen=True)
class FedCMA(Method):
    """Local networks, pulled to common class means and to a common head ([1]_); inputs may differ.

    Parameters
    ----------
    head_weight, mean_weight : float
        λ₁ and λ₂ of Eq. (5), the weights of the terms that pull heads and class means. With both 0 it is `Local`.
    samples_per_class : int
        Most samples of a class in a client's fixed minibatch.
    server_step : float, optional
        Step of both of the server's updates, in (0, 1], in the place of λ1η and λ2η, which must be at most 1.
    uploads : {"after", "before"}
        Heads and means as they are after local training, as Algorithm 1 (lines 11 to 13), or before it, as in
        Eqs. (6) and (7), where all variables move at the same time.
    alignment : {"conditional", "marginal"}
        Class means; or one mean of all samples of the fixed minibatch, which a class does not matter for.
    server_init : {"means", "zeros"}
        The server's tensors before the first round: the means of what the clients begin with, which they are asked
        for, or zeros.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    head_weight: NotNegative = 1.0
    mean_weight: NotNegative = 1.0
    samples_per_class: Count = 10
    server_step: PositiveShare | None = None
    uploads: Literal["after", "before"] = "after"
    alignment: Literal["conditional", "marginal"] = "conditional"
    server_init: Literal["means", "zeros"] = "means"

    names = {"Fed-CMA": {}, "Fed-CMA, marginal": {"alignment": "marginal"}}

    padded: ClassVar[tuple[str, ...]] = ("fixed",)
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, pull in (("head_weight", self.head_weight), ("mean_weight", self.mean_weight)):
            if self.server_step is None and pull * self.lr > 1:
                raise WrongValue(f"{name} · lr must be at most 1, the server's step, got {pull * self.lr}")

    # --- the server's tensors, and who is asked for them ---

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors, all zero: head, means, samples of each class, and the number of the round."""
        head = self.model.init(specs[0], Generator(), HEAD)
        counts = torch.tensor([spec.class_counts for spec in specs], dtype=torch.float32).sum(0)
        groups = specs[0].n_classes if self.alignment == "conditional" else 1
        means = torch.zeros(groups, len(head["beta.weight"]), dtype=torch.float32)
        zeros = {name: torch.zeros_like(p) for name, p in head.items()}
        return {**zeros, "mean": means, "counts": counts, "round": torch.zeros(1, dtype=torch.float32)}

    def surveys(self, round: int) -> Literal["all"] | None:
        """All clients, once, before the first round (Algorithm 1, line 3, at t = 1)."""
        return "all" if round == 0 and self.server_init == "means" else None

    def survey(self, params: Params, received: Params, data: Batch) -> Params:
        """What a client answers: the head v_i and the means e_i^k that it begins with."""
        return self._message(params)

    def digest(self, server: Params, answers: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors with the weighted means of the answers for head and class means."""
        return self._moved(server, answers, specs, {"beta": 1.0, "mean": 1.0})

    def download(self, server: Params, spec: Spec) -> Params:
        """What is sent to a client: v̄ and the e^k (line 5), and its shares p_i and p_i^k."""
        counts, whole = server["counts"].new_tensor(spec.class_counts), server.get("joined", server["counts"])
        share = spec.n_train / whole.sum().clamp(min=1)
        of_class = counts / whole.clamp(min=1)
        shares = torch.cat([share.reshape(1), of_class if self.alignment == "conditional" else share.reshape(1)])
        return {**pick(server, (*HEAD, "mean")), "shares": shares}

    def join(self, server: Params, specs: Specs, rng: Generator) -> Params:
        """The server's counts of each class with the samples of the new clients, whose shares may not exceed one."""
        new = server["counts"].new_tensor([spec.class_counts for spec in specs]).sum(0)
        return {**server, "joined": server["counts"] + new}

    # --- the client ---

    def precompute(self, spec: Spec, data: Batch, rng: Generator) -> Params:
        """The fixed minibatch B_i, class after class, at most `samples_per_class` of each, and of which each is."""
        order = torch.randperm(len(data.y), generator=rng)
        rows = torch.cat(
            [order[:0], *(order[data.y[order] == k][: self.samples_per_class] for k in range(spec.n_classes))]
        )
        of = data.y[rows] == torch.arange(spec.n_classes).unsqueeze(-1)
        return {**as_params("fixed.x", map_blocks(lambda x: x[rows], data.x)), "fixed.of": of.to(data.weight.dtype)}

    def start(self, client_state: Params, received: Params) -> Params:
        """The working copy: the client's own network, and, where that is sent, as it is before training."""
        before = (
            {f"before.{name}": p for name, p in pick(client_state, self.local).items()}
            if self.uploads == "before"
            else {}
        )
        return {**client_state, **before}

    def stages(self, round: int, role: Role) -> list[Stage]:
        """Train all of the network, when selected and at the end."""
        return self.usual_stages(self.local, self.local, round, role)

    def _fixed(self, params: Params) -> tuple[Tensor, Tensor, Tensor]:
        """Features of the fixed minibatch, (rows, d_e), of which group each is, (groups, rows), and the groups' sizes.

        Rows that are of no group are padding.
        """
        of = params["fixed.of"]
        of = of if self.alignment == "conditional" else of.sum(0, keepdim=True)
        return self.model.features(params, from_params("fixed.x", params)), of, of.sum(1).clamp(min=1)

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective of Eq. (5), with a minibatch for L_i; a term of weight 0 is not computed."""
        total, terms, _ = super().loss(params, received, batch, noise)
        p, of_group = received["shares"][0], received["shares"][1:]
        if self.head_weight:
            apart = drift(params, pick(received, HEAD))
            total = total + self.head_weight / 2 * p * apart
            terms |= {"heads": p * apart.detach()}
        if self.mean_weight:
            g, of, b = self._fixed(params)
            away = (g - of.T @ received["mean"]).square().sum(-1)
            gap = ((of_group / b) @ of * away).sum()
            total = total + self.mean_weight / 2 * gap
            terms |= {"means": gap.detach()}
        return Loss(total, terms)

    def _message(self, params: Params) -> Params:
        """A client's message: v_i and the means e_i^k over the fixed minibatch (line 12), zero for classes it lacks."""
        g, of, b = self._fixed(params)
        return {**pick(params, HEAD), "mean": of @ g / b.unsqueeze(-1)}

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client: head and means (line 13), of the network after training or before."""
        if self.uploads == "before":
            old = {name.removeprefix("before."): p for name, p in params.items() if name.startswith("before.")}
            params = {**params, **old}
        return self._message(params)

    # --- the server's step ---

    @property
    def needs_uploads(self) -> str:
        """Class means are weighed class by class; and before the first round there is a survey in any case."""
        if self.alignment == "conditional":
            return "class means are weighed by each client's class counts (Eq. 7), not by one weight per client"
        return "this library hands its server the means before the first round one by one"

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors, moved towards the participants' weighted means by Eq. (7)."""
        eta = self.lr * self.lr_decay ** int(server["round"])
        steps = {"beta": self.head_weight * eta, "mean": self.mean_weight * eta}
        if self.server_step is not None:
            steps = dict.fromkeys(steps, self.server_step)
        return {**self._moved(server, uploads, specs, steps), "round": server["round"] + 1}

    def _moved(self, server: Params, messages: Sequence[Params], specs: Specs, steps: Mapping[str, float]) -> Params:
        """The server's v̄ and e^k, each moved by its step towards the weighted mean of what these clients sent."""
        n = server["mean"].new_tensor([spec.n_train for spec in specs])
        counts = server["mean"].new_tensor([spec.class_counts for spec in specs])
        counts = counts if self.alignment == "conditional" else n.unsqueeze(-1)
        new = dict(server)
        for name in pick(server, HEAD):
            sent = torch.stack([message[name] for message in messages])
            mean = torch.tensordot(n / n.sum(), sent, 1)
            new[name] = (1 - steps["beta"]) * server[name] + steps["beta"] * mean
        held = counts.sum(0) > 0
        shares = counts / counts.sum(0).clamp(min=1)
        mean = torch.einsum("ik,ikd->kd", shares, torch.stack([message["mean"] for message in messages]))
        step = steps["mean"] * held.to(mean).unsqueeze(-1)
        new["mean"] = (1 - step) * server["mean"] + step * mean
        return new
