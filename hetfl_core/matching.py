r"""Matching the neurons of clients' classifiers: who of mine is who of the server's?

A hidden neuron may change places with another of its layer and nothing that the network computes changes. Classifiers
that were trained apart therefore have to be matched before they are averaged. HyFEM [1]_ writes the matching of client
m as a selection :math:`\Pi_m` of neurons of the server's, and looks for those that minimise its Eq. (11),

.. math:: \sum_m \frac{p_m}{2} \|w_m - \Pi_m w_0\|^2 .

=========================  ========================================================================================
Here                       In the paper
=========================  ========================================================================================
``rows[j]``, shape (D,)    neuron j of a client: weights in, block by block, its bias, and its weights to the outputs
``held``, shape (D,)       1 where the client has that weight at all, 0 in the rows of a block that it lacks
``indices[j]``             row i of the server's that neuron j is matched with: :math:`\Pi_m` as a list
``weight``                 :math:`p_m`
=========================  ========================================================================================

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
.. [2] M. Yurochkin, M. Agrawal, S. Ghosh, K. Greenewald, N. Hoang, Y. Khazaeni. Bayesian nonparametric federated
   learning of neural networks. ICML 2019.
.. [3] https://github.com/564612540/Hybrid-Federated-Learning, commit 9f5d62b, model_matching/combine_nets.py
   (``one_layer_matching``) and model_matching/model_matching.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from hetfl_core import checks

__all__ = ["Matching", "Neurons", "Rule", "assign", "match"]


Cost = Literal["distance", "exact", "pfnm", "published"]
Order = Literal["parallel", "sequential", "random", "anew"]
Target = Literal["others", "all"]


@dataclass(frozen=True, eq=False)
class Neurons:
    """The hidden neurons of one client's classifier.

    Parameters
    ----------
    rows : Tensor, shape (h, D)
        In the coordinates of the server's; 0 where `held` is 0.
    held : Tensor, shape (D,)
        1 for the coordinates that the client has, else 0.
    weight : float
        p_m, greater than 0.
    name : str
        Who it is, for errors.
    """

    rows: Tensor
    held: Tensor
    weight: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        who = f"client {self.name!r}: " if self.name else ""
        checks.instance("rows", self.rows, Tensor)
        checks.instance("held", self.held, Tensor)
        if self.rows.dim() != 2 or self.held.shape != self.rows.shape[1:]:
            raise ValueError(
                f"{who}rows must have shape (h, D) and held (D,), got {tuple(self.rows.shape)} and "
                f"{tuple(self.held.shape)}"
            )
        if bad := int((~self.rows.isfinite()).sum()):
            raise ValueError(f"{who}rows must be finite, got {bad} values that are NaN or infinite: training diverged")
        checks.number("weight", self.weight, above=0)


@dataclass(frozen=True)
class Rule:
    """How neurons are matched: by which cost, in which order, and how far the server may grow.

    Parameters
    ----------
    cost : {"distance", "exact", "pfnm", "published"}
        What it costs to match neuron j with row i. ``"distance"``, the text's Eq. (20): the squared distance of what
        comes in. ``"exact"``: by how much Eq. (11) grows, which counts the weights to the outputs, who has which block,
        and that the server's row moves too. ``"pfnm"``: the negative log-posterior of [2]_, which the text names as one
        possibility, with one precision, 1/σ², of all weights. ``"published"``: what the published code [3]_ makes of
        it. Only what comes in counts, a client's weights have its number of inputs for precision (and its bias none),
        the prior that of all inputs and one. A row in common is then hardly ever worth it while weights differ.
    order : {"parallel", "sequential", "random", "anew"}
        Algorithm 2: all clients at once, each against what the others were at the beginning of the pass; one after the
        other, against what the others are by then; or Algorithm 3: one client, drawn at random, a pass. ``"anew"``, the
        published code's: indices are forgotten, clients join one after the other, and then move one after the other, in
        an order that is drawn for each pass; a row that nobody is left in is gone.
    target : {"others", "all"}
        Whether the rows are the mean of the others' neurons (line 11 of Algorithm 2), or of all clients', one's own
        among them (Eq. (22b)). For ``cost="distance"``; all else goes by the others.
    growth : float, optional
        dist₂ of Eq. (20): what it costs that a neuron founds a row of its own. None: the server keeps its width. With
        ``"pfnm"`` and ``"published"`` the posterior says what it costs, and any number lets the server grow.
    max_width : int
        Largest width of the server's. (With ``"published"`` a client may add one row beyond it, as in the code.)
    inputs : int, optional
        How many of the D coordinates come in, the bias last; by default all.
    sigma, gamma, mean : float
        Of PFNM: standard deviation of neurons and of the prior, rate of new rows, mean of the prior in the last input
        coordinate, the bias (``0`` elsewhere). The published code has the same numbers, but multiplies precisions
        (``"published"``), and its mean is divided by the prior's precision and that of every coordinate.
    """

    cost: Cost = "distance"
    order: Order = "parallel"
    target: Target = "others"
    growth: float | None = None
    max_width: int = 4096
    inputs: int | None = None
    sigma: float = 1.0
    gamma: float = 7.0
    mean: float = 0.1


@dataclass
class Matching:
    """The server's rows and who is matched with which: what Eq. (11) is minimised over.

    Parameters
    ----------
    neurons : sequence of Neurons
        Each client's.
    indices : list of Tensor of int, shapes (h_m,)
        The row of each neuron. No two neurons of a client are in one row. None of a client that has not joined.
    width : int
        Rows of the server.
    costs : list of float
        Eq. (11) after each step of `match`, from before the first; with the best rows for the indices.
    """

    neurons: Sequence[Neurons]
    indices: list[Tensor]
    width: int
    costs: list[float] = field(default_factory=list)

    def mass(self, without: int | None = None) -> Tensor:
        """Weights Σ p_m over the clients that have a weight in a row.

        Parameters
        ----------
        without : int, optional
            Index of a client that is left out.

        Returns
        -------
        Tensor, shape (width, D)
        """
        return self._sum(lambda one: one.held.expand_as(one.rows), without)

    def total(self, without: int | None = None) -> Tensor:
        """Weighted sums Σ p_m Π_mᵀ w_m of the clients' neurons, row by row.

        Parameters
        ----------
        without : int, optional
            Index of a client that is left out.

        Returns
        -------
        Tensor, shape (width, D)
        """
        return self._sum(lambda one: one.rows * one.held, without)

    def _sum(self, of: Callable[[Neurons], Tensor], without: int | None) -> Tensor:
        first = self.neurons[0].rows
        out = first.new_zeros(self.width, first.shape[1])
        for m, (one, indices) in enumerate(zip(self.neurons, self.indices, strict=True)):
            if m != without and len(indices):
                out.index_add_(0, indices, of(one), alpha=one.weight)
        return out

    def rows(self, before: Tensor | None = None) -> Tensor:
        """The rows that minimise Eq. (11): weighted means (Algorithm 2, line 13).

        Parameters
        ----------
        before : Tensor, shape (at most width, D), optional
            What the rows are where nobody has a weight, as far as it reaches; 0 by default.

        Returns
        -------
        Tensor, shape (width, D)
        """
        mass = self.mass()
        found = _means(self.total(), mass)
        if before is not None:
            old = torch.cat([before, before.new_zeros(self.width - len(before), before.shape[1])])
            found = torch.where(mass > 0, found, old)
        return found

    def objective(self) -> float:
        """The value of Eq. (11) at the best rows.

        Returns
        -------
        float
        """
        rows = self.rows()
        gaps = [
            0.5 * one.weight * ((one.rows - rows[index]).square() * one.held).sum().double()
            for one, index in zip(self.neurons, self.indices, strict=True)
        ]
        return float(torch.stack(gaps).sum())


def match(
    neurons: Sequence[Neurons],
    indices: Sequence[Tensor] | None = None,
    *,
    width: int | None = None,
    passes: int = 4,
    rule: Rule | None = None,
    rng: torch.Generator | None = None,
    progress: bool = False,
) -> Matching:
    """Look for the matching that makes Eq. (11) small: lines 8–14 of Algorithm 2, and Algorithm 3.

    Parameters
    ----------
    neurons : sequence of Neurons
        Of each client, in the same D coordinates.
    indices : sequence of Tensor of int, shapes (h_m,), optional
        The row of each neuron to begin with; by default neuron j is in row j.
    width : int, optional
        Rows of the server; by default as many as the indices need.
    passes : int
        P. With none, the indices stay.
    rule : Rule, optional
        The text's, by default.
    rng : torch.Generator, optional
        Says whose turn it is where the order is random; a fixed one by default.
    progress : bool
        Whether `Matching.costs` has Eq. (11) after each step; it costs as much as a step.

    Returns
    -------
    Matching
        The indices found; what was given is not changed.

    Raises
    ------
    ValueError
        For no clients, neurons in other coordinates, and indices that are not those of a selection.

    Notes
    -----
    A client keeps its rows unless others cost it less by the rule (or all begin anew). With ``cost="exact"`` and one
    client at a time that is a step of block-coordinate descent on Eq. (11), which therefore never grows. With the other
    costs, or all clients at once, it may.
    """
    rule = Rule() if rule is None else rule
    checks.integer("passes", passes, 0)
    found = _begun(neurons, indices, width)
    rng = torch.Generator().manual_seed(0) if rng is None else rng
    if progress:
        found.costs.append(found.objective())
    if rule.order == "anew" and passes:
        if rule.growth is None:
            raise ValueError(
                'growth must be a number with order="anew": a row that nobody is left in is gone, got None'
            )
        orders = [torch.randperm(len(found.neurons), generator=rng).tolist() for _ in range(passes)]
        return _anew(found, orders, rule, progress)
    for turns in _turns(len(found.neurons), passes, rule.order, rng):
        new = [(m, *_matched(found, m, rule)) for m in turns]
        for m, mine, wide in new:
            found.indices[m] = mine
            found.width = max(found.width, wide)
        if progress:
            found.costs.append(found.objective())
    return found


def _begun(neurons: Sequence[Neurons], indices: Sequence[Tensor] | None, width: int | None) -> Matching:
    """The matching that a search begins with, once it is seen to be one."""
    neurons = list(neurons)
    if not neurons:
        raise ValueError("neurons must be those of at least one client, got none")
    dims = {one.rows.shape[1] for one in neurons}
    if len(dims) > 1:
        raise ValueError(f"neurons must have the same coordinates on all clients, got D={sorted(dims)}")
    begun = [torch.arange(len(one.rows)) for one in neurons] if indices is None else [i.long() for i in indices]
    if [i.shape for i in begun] != [one.rows.shape[:1] for one in neurons]:
        raise ValueError(
            f"indices must be one per neuron of each client, shapes {[tuple(one.rows.shape[:1]) for one in neurons]}, "
            f"got {[tuple(i.shape) for i in begun]}"
        )
    needed = 1 + max(int(i.max()) if len(i) else -1 for i in begun)
    width = needed if width is None else checks.integer("width", width, 1)
    for one, i in zip(neurons, begun, strict=True):
        if len(i) and (int(i.min()) < 0 or int(i.max()) >= width or len(i.unique()) < len(i)):
            raise ValueError(
                f"indices of client {one.name!r} must be different rows of 0…{width - 1}, "
                f"got {checks.shown(i.tolist())}"
            )
    return Matching(neurons, [i.to(one.rows.device) for i, one in zip(begun, neurons, strict=True)], width)


def _turns(n: int, passes: int, order: Order, rng: torch.Generator) -> Iterator[list[int]]:
    """Whose rows are looked for together, step by step."""
    for _ in range(passes):
        if order == "random":
            yield [int(torch.randint(n, (), generator=rng))]
        else:
            yield from [list(range(n))] if order == "parallel" else [[m] for m in range(n)]


def _anew(matching: Matching, orders: Sequence[Sequence[int]], rule: Rule, progress: bool = False) -> Matching:
    """Clients join one after the other, those of most neurons first; then each in turn leaves and joins again."""
    n, none = len(matching.neurons), matching.indices[0][:0]
    found = replace(matching, indices=[none] * n, width=0)
    largest = sorted(range(n), key=lambda m: -len(matching.neurons[m].rows))
    for turns in (largest, *orders):
        for m in turns:
            found.indices[m] = none
            kept = torch.cat(found.indices).unique()  # sorted
            found.indices, found.width = [torch.searchsorted(kept, p) for p in found.indices], len(kept)
            mine = torch.arange(len(found.neurons[m].rows))
            if found.width:
                costs = cost_matrix(found, m, rule)
                if len(costs) < costs.shape[1] or not bool(costs.isfinite().all()):
                    return matching  # too few rows are allowed, or numbers have left all bounds
                mine = assign(costs)
            found.indices[m], found.width = _founded_rows(mine.to(none.device), found.width)
        if progress:
            found.costs.append(found.objective())
    return found


def _founded_rows(indices: Tensor, width: int) -> tuple[Tensor, int]:
    """Places beyond the width as the next rows, in the order of the neurons; and the width with them."""
    new = indices >= width
    indices[new] = torch.arange(width, width + int(new.sum()), device=indices.device)
    return indices, max(width, 1 + int(indices.max()))


def _matched(matching: Matching, m: int, rule: Rule) -> tuple[Tensor, int]:
    """The best places of a client's neurons, the others' given; and the width that this needs."""
    one, now = matching.neurons[m], matching.indices[m]
    costs = cost_matrix(matching, m, rule)
    if not bool(costs.isfinite().all() if rule.growth is None else ~costs.isnan().any()):
        return now, matching.width  # numbers too large to be squared: whoever has them has diverged
    mine = assign(costs)
    chosen, kept = (float(costs[p.cpu(), torch.arange(len(p))].sum()) for p in (mine, now))
    if not chosen < kept - 1e-12 * max(1.0, abs(kept)):
        return now, matching.width
    mine, width = _founded_rows(mine, matching.width)
    return mine.to(one.rows.device), width


def assign(costs: Tensor) -> Tensor:
    """The assignment of columns to rows of least total cost (the Hungarian method): the row of each column.

    Parameters
    ----------
    costs : Tensor, shape (rows, columns)
        At least as many rows as columns.

    Returns
    -------
    Tensor of int, shape (columns,)

    Raises
    ------
    ValueError
        For costs that are NaN, and where there are fewer rows than columns.
    """
    from scipy.optimize import linear_sum_assignment

    checks.instance("costs", costs, Tensor)
    if costs.dim() != 2 or len(costs) < costs.shape[1]:
        raise ValueError(f"costs must have shape (rows, columns), rows not fewer, got {tuple(costs.shape)}")
    if bool(costs.isnan().any()):
        raise ValueError(f"costs must be numbers, got {int(costs.isnan().sum())} that are NaN")
    rows, columns = linear_sum_assignment(costs.double().cpu().numpy())
    out = torch.empty(costs.shape[1], dtype=torch.int64)
    out[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return out


def cost_matrix(matching: Matching, m: int, rule: Rule) -> Tensor:
    """What it costs to match each neuron of client m with each row, the others' given (`Rule.cost`).

    Returns
    -------
    Tensor of float64, shape (width, h_m), or, where the server may grow, (width + new rows, h_m)
        On the CPU, where assignments are solved.
    """
    ways = {"distance": _by_distance, "exact": _by_objective, "pfnm": _by_posterior, "published": _by_published}
    return ways[rule.cost](matching, m, rule).double().cpu()


def _new_rows(matching: Matching, m: int, rule: Rule) -> int:
    """How many rows the client may found."""
    if rule.growth is None:
        return 0
    return max(0, min(len(matching.neurons[m].rows), rule.max_width - matching.width))


def _founded(matching: Matching, m: int, rule: Rule, costs: Tensor) -> Tensor:
    """The costs with those of new rows below them."""
    growth = math.inf if rule.growth is None else rule.growth
    return torch.cat([costs, costs.new_full((_new_rows(matching, m, rule), costs.shape[1]), growth)])


def _means(total: Tensor, mass: Tensor) -> Tensor:
    """Weighted means of rows; 0 where there is no weight, and so nothing in the total."""
    return total / torch.where(mass > 0, mass, torch.ones_like(mass))


def _squared_gaps(weight: Tensor, centre: Tensor, rows: Tensor) -> Tensor:
    """Σ_c weight_ic (rows_jc − centre_ic)², shapes (H, D), (H, D), (h, D) → (H, h); by three products."""
    scaled = weight * centre
    gaps = (scaled * centre).sum(1, keepdim=True) - 2 * scaled @ rows.T + weight @ rows.square().T
    return gaps.clamp(min=0)


def _by_distance(matching: Matching, m: int, rule: Rule) -> Tensor:
    """Costs of Eq. (20): dist₁ to a row that somebody has, dist₂ for one that nobody has.

    dist₂ is `growth`; without growth it is the squared length of the neuron, its distance to an empty row of zeros.
    """
    one = matching.neurons[m]
    without = m if rule.target == "others" else None
    mass, total = (t[:, : rule.inputs] for t in (matching.mass(without), matching.total(without)))
    held, rows = one.held[: rule.inputs].expand_as(mass), one.rows[:, : rule.inputs]
    costs = _squared_gaps(held, _means(total, mass), rows)
    if rule.growth is not None:
        costs = torch.where((mass > 0).any(1, keepdim=True), costs, rule.growth)
    return _founded(matching, m, rule, costs)


def _by_objective(matching: Matching, m: int, rule: Rule) -> Tensor:
    """Costs by which Eq. (11) grows when neuron j joins row i and the row moves to the new mean.

    A weight that p₀ = Σ p of others have with mean v₀ costs ½ p p₀ / (p + p₀) (v − v₀)²: nothing where there are none.
    """
    one = matching.neurons[m]
    mass, total = matching.mass(m), matching.total(m)
    joint = 0.5 * one.weight * mass / (one.weight + mass) * one.held
    return _founded(matching, m, rule, _squared_gaps(joint, _means(total, mass), one.rows))


def _by_posterior(matching: Matching, m: int, rule: Rule) -> Tensor:
    """Costs by PFNM's negative log-posterior [2]_, up to what no assignment changes.

    Neurons are drawn around their row with deviation σ, rows around the prior's mean with deviation σ₀ = σ, and how
    many clients have a row follows an Indian buffet process of rate γ. Counted with equal weights, as there.
    """
    one, n = matching.neurons[m], len(matching.neurons)
    equal = replace(matching, neurons=[replace(each, weight=1.0) for each in matching.neurons])
    count, total = equal.mass(m), equal.total(m)  # clients that have each weight, and the sum of theirs
    inverse = 1 / rule.sigma**2
    prior = torch.zeros_like(one.held)
    prior[(rule.inputs or len(prior)) - 1] = rule.mean
    posterior, precision = (total + prior) * inverse, (count + 1) * inverse
    rows = one.rows * inverse
    gain = _gain(posterior, precision, rows, inverse, one.held)
    popular = _popularity(matching, m)
    odds = torch.where(popular > 0, popular / (n - popular).clamp(min=0.5), torch.ones_like(popular)).log()
    costs = -(gain + 2 * odds[:, None])
    alone = ((prior * inverse + rows).square() * one.held).sum(1) / (2 * inverse)
    alone = alone - ((prior * inverse).square() * one.held).sum() / inverse
    costs = torch.where((popular > 0)[:, None], costs, -(alone + 2 * math.log(rule.gamma / n)))
    new = torch.arange(1, _new_rows(matching, m, rule) + 1, device=costs.device, dtype=costs.dtype)
    founded = -(alone[None, :] - 2 * new.log()[:, None] + 2 * math.log(rule.gamma / n))
    return torch.cat([costs, founded])


def _gain(total: Tensor, precision: Tensor, rows: Tensor, added: Tensor | float, held: Tensor) -> Tensor:
    """Σ_c (total_ic + rows_jc)² / (precision_ic + added_c) − total_ic² / precision_ic, shape (H, h), by products.

    Over the coordinates that the client has.
    """
    scale = held / (precision + added)
    joined = (scale * total.square()).sum(1, keepdim=True) + 2 * (scale * total) @ rows.T + scale @ rows.square().T
    return joined - (held * total.square() / precision).sum(1, keepdim=True)


def _popularity(matching: Matching, m: int) -> Tensor:
    """How many others have each row, shape (H,), at most 10."""
    others = torch.cat([indices[: 0 if i == m else None] for i, indices in enumerate(matching.indices)])
    return torch.bincount(others, minlength=matching.width).clamp(max=10).to(matching.neurons[m].rows.dtype)


def _by_published(matching: Matching, m: int, rule: Rule) -> Tensor:
    """Costs by the published code [3]_; one row that is somebody's, or new, for each of its columns."""
    n, inputs = len(matching.neurons), rule.inputs or len(matching.neurons[m].held)
    cut = [
        replace(one, rows=one.rows[:, :inputs], held=one.held[:inputs], weight=float(one.held[: inputs - 1].sum()))
        for one in matching.neurons
    ]
    cut = [replace(one, weight=one.weight / rule.sigma**2) for one in cut]
    own, others = cut[m], replace(matching, neurons=cut)
    bias = torch.zeros_like(own.held)
    bias[-1] = 1
    prior = inputs / rule.sigma**2
    mean = rule.mean / prior
    rows, added = own.rows * own.held * own.weight, own.weight * own.held * (1 - bias)
    popular = _popularity(matching, m)
    gain = _gain(others.total(m) + mean, others.mass(m) * (1 - bias) + prior, rows, added, own.held)
    shared = gain + (popular / (n - popular).clamp(min=0.5)).log()[:, None]
    alone = ((rows + mean).square() / (prior + added)).sum(1) - mean**2 / prior + 2 * math.log(rule.gamma / n)
    most = 0 if rule.growth is None else min(len(rows), max(rule.max_width - matching.width, 1))
    new = torch.arange(1, most + 1, device=rows.device, dtype=rows.dtype)
    return -torch.cat([shared, alone[None, :] - 2 * new.log()[:, None]])
