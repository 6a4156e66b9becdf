r"""HyFEM: clients that hold different blocks of features, and a server with all of them, by matching neurons.

==============================  ===================================================================================
Symbol of the paper             Name here
==============================  ===================================================================================
:math:`\Theta_m`                ``phi.<block>.…``, the extractors of the blocks that client m holds
:math:`w_m`                     the classifier: ``phi.joint.…``, the layer over all blocks, and ``beta.…``, the head
:math:`\Theta_0`, :math:`w_0`   the same of the server, which has all blocks and may have more neurons
:math:`P_m`                     which blocks a client holds: names of tensors, and nothing to be computed
:math:`\Pi_m`                   ``index/<client>``: the server's neuron that each of the client's is matched with
:math:`\mu_1`, :math:`\mu_2`    `extractor_weight`, `classifier_weight`
:math:`Q`, :math:`P`            `local_steps` (or `local_epochs`), `passes`
==============================  ===================================================================================

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
.. [2] https://github.com/564612540/Hybrid-Federated-Learning, commit 9f5d62b: train_hybrid.py, line 73, and
   algorithms/train_model.py, lines 11 and 124, of the penalty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from hetfl_core.federation import Spec
from hetfl_core.matching import Cost, Neurons, Order, Rule, match
from hetfl_core.methods.base import Batch, Loss, Method, Specs, Uploads, Weights, pick, weighted_mean
from hetfl_core.methods.fedavg import FedAvg
from hetfl_core.methods.fedprox import drift
from hetfl_core.methods.fusion import check_blocks, full_spec, held_blocks, of_blocks
from hetfl_core.networks import Params, Tensors
from hetfl_core.networks.composed import JOINT
from hetfl_core.networks.layers import has_prefix
from hetfl_core.settings import Count, Natural, NotNegative, Positive

LAYER = f"phi.{JOINT}"
CLASSIFIER = ("beta", LAYER)
INDEX = "index/"


@dataclass(frozen=True)
class HyFEM(FedAvg):
    r"""Extractors averaged block by block, classifiers matched neuron by neuron and then averaged ([1]_, Algorithm 1).

    A participant begins with its part of the server's model, minimises (Eq. (8))

    .. math:: f_m + \frac{\mu_1}{2}\|\Theta_m - P_m\Theta_0\|^2 + \frac{\mu_2}{2}\|w_m - \Pi_m w_0\|^2,

    and sends both. The server averages each extractor over those who hold its block (Eq. (10)), matches the neurons of
    the classifiers (Eq. (11), `hetfl_core.matching`) and averages them where they are matched. The model must be one of
    named blocks (`hetfl_core.networks.Blocks`); with plain inputs there is one block and no hidden layer in the
    classifier, nothing is matched, and the method is FedProx (Remark 3).

    Parameters
    ----------
    extractor_weight, classifier_weight : float
        μ₁ and μ₂, the weights of the terms that hold extractors and classifier to the server's.
    passes : int
        P, passes of matching a round; 0 for none: the indices stay as they are.
    cost, order, growth, sigma : as in `hetfl_core.matching.Rule`
        The text's are the defaults. With ``order="anew"`` a client that takes no part in a round loses its indices.
    max_width : int
        Largest number of neurons of the server's classifier, which begins with a client's and, with `growth`, may rise.
    matched_rounds : int, optional
        Neurons are matched in the first so many rounds, as in the published code (3 with ResNet-18); by default in all.
    client_init : {"server", "own"}
        Whether clients begin with the server's first model (Algorithm 2, line 2), or each with weights of its own,
        which the server first sees in their first upload.
    reset : bool
        Whether a round begins from the server's model (Algorithm 2, line 2) or goes on from where the client was
        (Eq. (22)), which is what Theorem 2 speaks of.
    penalty : {"square", "norm"}
        Half the squared norm of how far parameters are from the server's, or the norm. The published code adds norms to
        the loss that it prints; they are taken of detached tensors, have no gradient, and change no step.
    model, local_epochs, batch_size, lr, …
        As for `Method`, and so are the other settings that every method has.
    """

    weighting: Literal["samples", "uniform"] = "uniform"
    extractor_weight: NotNegative = 0.5
    classifier_weight: NotNegative = 0.5
    passes: Natural = 4
    cost: Cost = "distance"
    order: Order = "parallel"
    growth: NotNegative | None = None
    sigma: Positive = 1.0
    max_width: Count = 4096
    matched_rounds: Natural | None = None
    client_init: Literal["server", "own"] = "server"
    reset: bool = True
    penalty: Literal["square", "norm"] = "square"

    @classmethod
    def published(cls, **changes: Any) -> HyFEM:
        """HyFEM as the published code [2]_ has it where the text differs; `changes` override single fields.

        Its matching, in the first three rounds (those of ResNet-18; with ResNet-34 the classifier is one layer and
        nothing is matched); clients that begin with weights of their own; and no penalty, since the code's has no
        gradient. Its newest version does not run: a call lacks two arguments. The last that does has no penalty at all.

        What is not as in the code: extractors are copies that are averaged, while the code's are one object that all
        clients train together, step by step, which no federation can; they are not pre-trained; no dropout.

        Parameters
        ----------
        **changes
            Fields of the class.

        Returns
        -------
        HyFEM
        """
        code = cls(
            extractor_weight=0.0,
            classifier_weight=0.0,
            cost="published",
            order="anew",
            growth=0.0,
            max_width=700,
            matched_rounds=3,
            client_init="own",
        )
        return replace(code, **changes)

    @property
    def rule(self) -> Rule:
        """How neurons are matched, as `hetfl_core.matching` takes it."""
        return Rule(self.cost, self.order, growth=self.growth, max_width=self.max_width, sigma=self.sigma)

    # --- before the first round ---

    def check(self, specs: Specs) -> None:
        """Refuse models whose classifier has other layers than the one over all blocks."""
        if self.model.blocks is None:
            return super().check(specs)
        check_blocks(self, specs, "matches the layer over all blocks")

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's first tensors: Θ_0 and w_0, with the blocks that anybody holds."""
        if self.model.blocks is None:
            return super().init_server(specs, rng)
        server = self.model.init(full_spec(specs), rng, self.model.parts)
        return {**server, "round": torch.zeros((), dtype=torch.int64)}

    def init_client(self, spec: Spec, rng: Generator) -> Params:
        """What a client keeps: nothing, where every round begins with the server's model; else Θ_m and w_m."""
        if self.reset and self.client_init == "server":
            return {}
        return self.model.init(spec, rng, self.model.parts)

    # --- one round ---

    def download(self, server: Params, spec: Spec) -> Params:
        """What is sent to a client, P_m Θ_0 and Π_m w_0: its blocks, and the neurons that its own are matched with."""
        sent = pick(server, ("phi", "beta"))
        if self.model.blocks is not None:
            sent = of_blocks(sent, held_blocks(spec), LAYER)
            index = self._index(server, spec.name)
            columns = {name: p[..., index] for name, p in sent.items() if has_prefix(name, LAYER)}
            sent |= columns | {"beta.weight": sent["beta.weight"][index]}
        if not (self.reset and self.client_init == "server"):
            known = INDEX + spec.name in server
            sent["known"] = torch.tensor(float(known), dtype=sent["beta.bias"].dtype)
        return sent

    def _index(self, server: Params, name: str) -> Tensor:
        """The server's neuron of each of a client's, Π_m; the first ones as long as they have not been matched."""
        assert self.model.blocks is not None
        first = torch.arange(self.model.blocks.out, device=server["beta.bias"].device)
        return server.get(INDEX + name, first)

    def start(self, client_state: Params, received: Params) -> Params:
        """The working copy: what was received (Algorithm 2, line 2), or what the client has."""
        if not client_state:
            return dict(received)
        known = bool(received["known"])
        goes_on = not self.reset if known else self.client_init == "own"
        return {**received, **client_state} if goes_on else {**client_state, **received}

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective of Eq. (8): the task's loss, and the terms that hold both parts to the server's."""
        task = Method.loss(self, params, received, batch, noise)
        classifier = pick(received, CLASSIFIER)
        extractors = {n: p for n, p in received.items() if n not in classifier and n != "known"}
        of_classifier, of_extractors = drift(params, classifier), drift(params, extractors)
        penalty = self.extractor_weight * self._penalty(of_extractors) + self.classifier_weight * self._penalty(
            of_classifier
        )
        terms = {"extractors' drift": of_extractors.detach(), "classifier's drift": of_classifier.detach()}
        return Loss(task.total + penalty, {**task.terms, **terms})

    def _penalty(self, square: Tensor) -> Tensor:
        """Penalty of a squared norm: ½ ‖·‖², or ‖·‖ with gradient 0 at 0."""
        if self.penalty == "square":
            return square / 2
        positive = square > 0
        return torch.where(positive, square, torch.ones_like(square)).sqrt() * positive

    # --- the server ---

    beyond_sums = "neurons are matched client by client"

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors (lines 7 and 8 of Algorithm 1): Θ_0 by means, w_0 and the Π_m by matching."""
        if self.model.blocks is None:
            return {**server, **weighted_mean(uploads, weights)}
        extractors = [pick(sent, [f"phi.{block}" for block in self.model.blocks.extractors]) for sent in uploads]
        layout = _Rows(server)
        total = sum(weights)
        indices = [self._index(server, spec.name) for spec in specs]
        rows = [layout.of(sent) for sent in uploads]
        diverged = not all(bool(r.isfinite().all()) for r, _ in rows)
        late = self.matched_rounds is not None and int(server["round"]) >= self.matched_rounds
        each = zip(rows, weights, specs, strict=True)
        neurons = [Neurons(r.nan_to_num(), held, w / total, spec.name) for (r, held), w, spec in each]
        passes, rule = 0 if late or diverged else self.passes, replace(self.rule, inputs=layout.inputs)
        found = match(neurons, indices, width=layout.width, passes=passes, rule=rule, rng=rng)
        anew = passes > 0 and self.order == "anew"  # then the server's rows are others than they were
        mean = found.rows(None if anew else layout.of(server)[0])
        if diverged:  # so does the mean, as that of any method
            mean = torch.full_like(mean, math.nan)
        heads = weighted_mean([{"beta.bias": sent["beta.bias"]} for sent in uploads], weights)
        matched = {INDEX + spec.name: p for spec, p in zip(specs, found.indices, strict=True)}
        kept = {name: p for name, p in server.items() if not (anew and name.startswith(INDEX))}
        new = {**kept, **weighted_mean(extractors, weights), **layout.named(mean), **heads, **matched}
        return {**new, "round": server["round"] + 1}


class _Rows:
    """The server's classifier as a matrix with one row per neuron, and a client's in the same coordinates."""

    def __init__(self, server: Params) -> None:
        weights = {name: p for name, p in server.items() if has_prefix(name, LAYER) and name.endswith(".weight")}
        self.sizes = {name: len(p) for name, p in weights.items()} | {f"{LAYER}.bias": 1}
        self.outputs = server["beta.weight"].shape[1]
        self.width = len(server["beta.weight"])

    @property
    def inputs(self) -> int:
        """Coordinates that come in: of all blocks, and the bias."""
        return sum(self.sizes.values())

    def of(self, params: Params) -> tuple[Tensor, Tensor]:
        """Rows, shape (h, D), and which of the D coordinates are held."""
        out = params["beta.weight"]
        parts, held = [], []
        for name, size in self.sizes.items():
            has = name in params
            parts.append(params[name].reshape(size, -1).T if has else out.new_zeros(len(out), size))
            held.append(out.new_full((size,), float(has)))
        return torch.cat([*parts, out], 1), torch.cat([*held, out.new_ones(self.outputs)])

    def named(self, rows: Tensor) -> Params:
        """The server's tensors from a matrix with one row per neuron."""
        *parts, out = rows.split([*self.sizes.values(), self.outputs], 1)
        named = {name: part.T.contiguous() for name, part in zip(self.sizes, parts, strict=True)}
        bias = f"{LAYER}.bias"
        return {**named, bias: named[bias].flatten(), "beta.weight": out.contiguous()}
