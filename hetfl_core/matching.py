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

A client is matched with what the others have in each row. That is what everybody has less its own, so a `_Search` keeps
the sums over all clients while they move, and a pass takes time linear in the number of clients.

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

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.errors import WrongValue

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
            raise WrongValue(
                f"{who}rows must have shape (h, D) and held (D,), got {tuple(self.rows.shape)} and "
                f"{tuple(self.held.shape)}"
            )
        if bad := int((~self.rows.isfinite()).sum()):
            raise WrongValue(f"{who}rows must be finite, got {bad} values that are NaN or infinite: training diverged")
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
    if not passes:
        return found
    if rule.order == "anew":
        if rule.growth is None:
            raise WrongValue(
                'growth must be a number with order="anew": a row that nobody is left in is gone, got None'
            )
        orders = [torch.randperm(len(found.neurons), generator=rng).tolist() for _ in range(passes)]
        return _anew(found, orders, rule, progress)
    search = _Search(found, rule)
    for turns in _turns(len(found.neurons), passes, rule.order, rng):
        for m, mine in search.best(turns):
            search.move(m, mine)
        if progress:
            found.costs.append(found.objective())
    return found


def _begun(neurons: Sequence[Neurons], indices: Sequence[Tensor] | None, width: int | None) -> Matching:
    """The matching that a search begins with, once it is seen to be one."""
    neurons = list(neurons)
    if not neurons:
        raise WrongValue("neurons must be those of at least one client, got none")
    dims = {one.rows.shape[1] for one in neurons}
    if len(dims) > 1:
        raise WrongValue(f"neurons must have the same coordinates on all clients, got D={sorted(dims)}")
    begun = [torch.arange(len(one.rows)) for one in neurons] if indices is None else [i.long() for i in indices]
    if [i.shape for i in begun] != [one.rows.shape[:1] for one in neurons]:
        raise WrongValue(
            f"indices must be one per neuron of each client, shapes {[tuple(one.rows.shape[:1]) for one in neurons]}, "
            f"got {[tuple(i.shape) for i in begun]}"
        )
    needed = 1 + max(int(i.max()) if len(i) else -1 for i in begun)
    width = needed if width is None else checks.integer("width", width, 1)
    for one, i in zip(neurons, begun, strict=True):
        if len(i) and (int(i.min()) < 0 or int(i.max()) >= width or len(i.unique()) < len(i)):
            raise WrongValue(
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
    """Clients join one after the other, those of most neurons first; then each in turn leaves and joins again.

    A row that nobody is left in is passed over from then on, and taken away at the end of the pass. No more rows die in
    a pass than there were at its beginning, for who founds one stays in it; so those that are passed over are few.
    """
    n, none = len(matching.neurons), matching.indices[0][:0]
    found = replace(matching, indices=[none] * n, width=0)
    search = _Search(found, rule)
    largest = sorted(range(n), key=lambda m: -len(matching.neurons[m].rows))
    for turns in (largest, *orders):
        for m in turns:
            search.move(m, none)
            alive = search.sums.members.nonzero().flatten()
            mine = torch.arange(len(found.neurons[m].rows))
            if len(alive):
                costs = search.costs([m], alive)[0]
                if len(costs) < costs.shape[1] or not bool(costs.isfinite().all()):
                    return matching  # too few rows are allowed, or numbers have left all bounds
                mine = assign(costs)
            search.move(m, _founded_rows(mine.to(none.device), alive, found.width))
        search.compact()
        if progress:
            found.costs.append(found.objective())
    return found


def _founded_rows(places: Tensor, alive: Tensor, width: int) -> Tensor:
    """The rows that places among those alive stand for; places beyond are new rows, in the order of the neurons."""
    new = places >= len(alive)
    rows = torch.empty_like(places)
    rows[~new] = alive[places[~new]]
    rows[new] = torch.arange(width, width + int(new.sum()), device=rows.device)
    return rows


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
        raise WrongValue(f"costs must have shape (rows, columns), rows not fewer, got {tuple(costs.shape)}")
    if bool(costs.isnan().any()):
        raise WrongValue(f"costs must be numbers, got {int(costs.isnan().sum())} that are NaN")
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
    return _Search(matching, rule).costs([m])[0]


# --- sums over all clients, kept up to date -------------------------------------------------------------------------


AT_ONCE = 2**19
"""Numbers of one tensor, of rows and coordinates of several clients, up to which their costs are computed at once."""

UNEVEN = 1e8
"""Largest weight over the smallest: where one's own is taken off a sum, this leaves the others half of their digits."""


class _Sums:
    """What all clients that are in some row have in each row together.

    They hold for the clients that were added and not taken off again. What the others of a client have is a difference
    of such sums. So they are kept in float64, and whether anybody else has a weight at all is said by whole numbers,
    which differences leave exact.

    Attributes
    ----------
    members : Tensor of int, shape (H,)
        Clients that have a neuron in the row.
    having : Tensor of int, shape (H, D)
        Clients that have this weight in the row. Where it is 0, mass and total mean 0, whatever rounding left of them.
    mass, total : Tensor of float64, shape (H, D)
        Σ p_m, and Σ p_m w_m, over these clients.
    """

    def __init__(self, width: int, like: Tensor) -> None:
        shape = width, like.shape[1]
        self.members = like.new_zeros(width, dtype=torch.int64)
        self.having = like.new_zeros(shape, dtype=torch.int32)
        self.mass, self.total = like.new_zeros(shape, dtype=torch.float64), like.new_zeros(shape, dtype=torch.float64)

    def widen(self, width: int) -> None:
        """Have at least so many rows; nobody is in the new ones."""
        for name, old in vars(self).items():
            if width > len(old):
                setattr(self, name, torch.cat([old, old.new_zeros(width - len(old), *old.shape[1:])]))

    def add(self, one: Neurons, places: Tensor, sign: int = 1) -> None:
        """Add a client whose neurons are in these rows, or take it off again (−1); nothing, where it is in none."""
        if not len(places):
            return
        held = one.held.double().expand(len(places), -1)
        self.members.index_add_(0, places, torch.ones_like(places), alpha=sign)
        self.having.index_add_(0, places, (held != 0).to(torch.int32), alpha=sign)
        self.mass.index_add_(0, places, held, alpha=sign * one.weight)
        self.total.index_add_(0, places, one.rows.double() * held, alpha=sign * one.weight)


@dataclass(frozen=True)
class _Clients:
    """K clients of h neurons each whose rows are looked for, each beside what all others have in the H rows.

    Parameters
    ----------
    rows : Tensor, shape (K, h, D)
    held : Tensor, shape (K, 1, D)
    weight : Tensor, shape (K, 1, 1)
    mass, total : Tensor, shape (K, H, D)
        The others'; 0 where nobody else has a weight.
    popular : Tensor, shape (K, H)
        How many others have a neuron in the row.
    n : int
        Clients in all.
    new : int
        Rows that one may found.
    """

    rows: Tensor
    held: Tensor
    weight: Tensor
    mass: Tensor
    total: Tensor
    popular: Tensor
    n: int
    new: int


class _Search:
    """A matching for which better rows are looked for, and the sums that tell at what cost.

    Parameters
    ----------
    found : Matching
        It changes with `move`.
    rule : Rule

    Attributes
    ----------
    neurons : list of Neurons
        Each client's as the rule's costs count them.
    sums : _Sums
        Over `neurons` where `found` has them at any time. They are made anew after as many moves as there are clients,
        which takes no longer than the moves did, so that roundings do not pile up.
    """

    def __init__(self, found: Matching, rule: Rule) -> None:
        self.found, self.rule = found, rule
        self.neurons = [_counted(one, rule) for one in found.neurons]
        least, most = (of(self.neurons, key=lambda one: one.weight) for of in (min, max))
        if most.weight > UNEVEN * least.weight:
            raise WrongValue(
                f"weight must not be more than {UNEVEN:g} times that of another client, or the others' sums have too "
                f"few digits, got {least.weight:g} on client {least.name!r} and {most.weight:g} on {most.name!r}"
            )
        self.renew()

    def renew(self) -> None:
        """Make the sums anew."""
        self.sums, self.moves = _Sums(self.found.width, self.neurons[0].rows), 0
        for one, places in zip(self.neurons, self.found.indices, strict=True):
            self.sums.add(one, places)

    def move(self, m: int, places: Tensor) -> None:
        """Put the neurons of client m into these rows, or, if there are none, take it out."""
        before = self.found.indices[m]
        if torch.equal(before, places):
            return
        self.found.indices[m] = places
        self.found.width = max(self.found.width, 1 + int(places.max()) if len(places) else 0)
        self.moves += 1
        if self.moves >= len(self.neurons):
            return self.renew()
        self.sums.widen(self.found.width)
        self.sums.add(self.neurons[m], before, -1)
        self.sums.add(self.neurons[m], places)

    def compact(self) -> None:
        """Take away the rows that nobody is in; the others keep their order."""
        kept = self.sums.members.nonzero().flatten()
        self.found.indices[:] = [torch.searchsorted(kept, places) for places in self.found.indices]
        self.found.width = len(kept)
        self.renew()

    def best(self, turns: Sequence[int]) -> list[tuple[int, Tensor]]:
        """The best rows for each of these clients' neurons, while all others stay; those it has, where none are better.

        Returns
        -------
        list of (int, Tensor of int, shape (h_m,))
            Client and rows, in the order of `turns`.
        """
        return [pair for some in self._batches(turns) for pair in zip(some, self._best(some), strict=True)]

    def _best(self, some: Sequence[int]) -> list[Tensor]:
        costs, everyone = self.costs(some), torch.arange(self.found.width)
        sound = costs.isfinite() if self.rule.growth is None else ~costs.isnan()
        found = []
        for m, mine, is_sound in zip(some, costs, sound.flatten(1).all(1).tolist(), strict=True):
            now = self.found.indices[m]
            found.append(now)
            if not is_sound:
                continue  # numbers too large to be squared: whoever has them has diverged
            places = assign(mine)
            chosen, kept = (float(mine[p.cpu(), torch.arange(len(p))].sum()) for p in (places, now))
            if chosen < kept - 1e-12 * max(1.0, abs(kept)):
                found[-1] = _founded_rows(places, everyone, self.found.width).to(now.device)
        return found

    def _batches(self, turns: Sequence[int]) -> Iterator[list[int]]:
        """Clients whose costs are computed at once: neighbours of equally many neurons, not too many."""
        most = max(1, AT_ONCE // max(1, self.sums.mass.numel()))
        for _, alike in itertools.groupby(turns, key=lambda m: len(self.neurons[m].rows)):
            some = list(alike)
            yield from (some[begin : begin + most] for begin in range(0, len(some), most))

    def costs(self, some: Sequence[int], alive: Tensor | None = None) -> Tensor:
        """What it costs to match each neuron of these clients, of equally many, with each row.

        Parameters
        ----------
        some : sequence of int
            K clients, all of which are in rows, or none.
        alive : Tensor of int, shape (H,), optional
            The rows that count, if it is not all.

        Returns
        -------
        Tensor of float64, shape (K, H, h), or, where the server may grow, (K, H + new rows, h)
            On the CPU.
        """
        ways = {"distance": _by_distance, "exact": _by_objective, "pfnm": _by_posterior, "published": _by_published}
        return ways[self.rule.cost](self.clients(some, alive), self.rule).double().cpu()

    def clients(self, some: Sequence[int], alive: Tensor | None = None) -> _Clients:
        """These clients beside what all others have, or, where the rule has it so, all clients; arguments as above."""
        each, sums = [self.neurons[m] for m in some], self.sums
        rows = torch.stack([one.rows for one in each])
        held = torch.stack([one.held for one in each]).unsqueeze(1)
        weight = torch.tensor([one.weight for one in each], dtype=torch.float64, device=rows.device).view(-1, 1, 1)
        everybody = sums.members, sums.having, sums.mass, sums.total
        members, having, mass, total = (t.repeat(len(some), *[1] * t.dim()) for t in everybody)
        if not (self.rule.cost == "distance" and self.rule.target == "all"):
            places = torch.stack([self.found.indices[m] for m in some])
            at = torch.arange(len(some), device=rows.device).unsqueeze(1), places
            own = (rows * held)[:, : places.shape[1]].double()  # none of who is in no row
            members[at] -= 1
            having[at] -= (held != 0).to(having.dtype)
            mass[at] -= weight * held
            total[at] -= weight * own
        there = having > 0
        mass, total = (torch.where(there, t, 0.0).to(rows.dtype) for t in (mass, total))
        if alive is not None:
            members, mass, total = members[:, alive], mass[:, alive], total[:, alive]
        new = _new_rows(rows.shape[1], members.shape[1], self.rule)
        return _Clients(rows, held, weight.to(rows.dtype), mass, total, members, len(self.neurons), new)


def _counted(one: Neurons, rule: Rule) -> Neurons:
    """A client's neurons as the costs of a rule count them: which coordinates, and with which weight."""
    if rule.cost == "exact":
        return one
    if rule.cost == "pfnm":
        return replace(one, weight=1.0)
    inputs = rule.inputs or len(one.held)
    cut = replace(one, rows=one.rows[:, :inputs], held=one.held[:inputs])
    if rule.cost == "published":
        cut = replace(cut, weight=float(cut.held[:-1].sum()) / rule.sigma**2)
    return cut


def _new_rows(h: int, width: int, rule: Rule) -> int:
    """How many rows a client of h neurons may found."""
    if rule.growth is None:
        return 0
    least = 1 if rule.cost == "published" else 0
    return min(h, max(rule.max_width - width, least))


# --- costs ----------------------------------------------------------------------------------------------------------


def _means(total: Tensor, mass: Tensor) -> Tensor:
    """Weighted means of rows; 0 where there is no weight, and so nothing in the total."""
    return total / torch.where(mass > 0, mass, torch.ones_like(mass))


def _squared_gaps(weight: Tensor, centre: Tensor, rows: Tensor) -> Tensor:
    """Σ_c weight_ic (rows_jc − centre_ic)², of K clients each: (K, H or 1, D), (K, H, D), (K, h, D) → (K, H, h)."""
    scaled = weight * centre
    gaps = (scaled * centre).sum(-1, keepdim=True) - 2 * scaled @ rows.mT + weight @ rows.square().mT
    return gaps.clamp(min=0)


def _founded(costs: Tensor, clients: _Clients, rule: Rule) -> Tensor:
    """The costs with those of new rows below them."""
    growth = math.inf if rule.growth is None else rule.growth
    return torch.cat([costs, costs.new_full((len(costs), clients.new, costs.shape[2]), growth)], 1)


def _by_distance(clients: _Clients, rule: Rule) -> Tensor:
    """Costs of Eq. (20): dist₁ to a row that somebody has, dist₂ for one that nobody has.

    dist₂ is `growth`; without growth it is the squared length of the neuron, its distance to an empty row of zeros.
    """
    costs = _squared_gaps(clients.held, _means(clients.total, clients.mass), clients.rows)
    if rule.growth is not None:
        costs = torch.where((clients.mass > 0).any(-1, keepdim=True), costs, rule.growth)
    return _founded(costs, clients, rule)


def _by_objective(clients: _Clients, rule: Rule) -> Tensor:
    """Costs by which Eq. (11) grows when neuron j joins row i and the row moves to the new mean.

    A weight that p₀ = Σ p of others have with mean v₀ costs ½ p p₀ / (p + p₀) (v − v₀)²: nothing where there are none.
    """
    weight, mass = clients.weight, clients.mass
    joint = 0.5 * weight * mass / (weight + mass) * clients.held
    return _founded(_squared_gaps(joint, _means(clients.total, mass), clients.rows), clients, rule)


def _by_posterior(clients: _Clients, rule: Rule) -> Tensor:
    """Costs by PFNM's negative log-posterior [2]_, up to what no assignment changes.

    Neurons are drawn around their row with deviation σ, rows around the prior's mean with deviation σ₀ = σ, and how
    many clients have a row follows an Indian buffet process of rate γ. Counted with equal weights, as there.
    """
    held, n = clients.held, clients.n
    inverse = 1 / rule.sigma**2
    prior = held.new_zeros(held.shape[-1])
    prior[(rule.inputs or len(prior)) - 1] = rule.mean
    # mass and total are, with equal weights, how many others have a weight, and the sum of theirs
    posterior, precision = (clients.total + prior) * inverse, (clients.mass + 1) * inverse
    rows = clients.rows * inverse
    gain = _gain(posterior, precision, rows, inverse, held)
    popular = _popularity(clients)
    odds = torch.where(popular > 0, popular / (n - popular).clamp(min=0.5), torch.ones_like(popular)).log()
    costs = -(gain + 2 * odds)
    alone = ((prior * inverse + rows).square() * held).sum(-1) / (2 * inverse)
    alone = (alone - ((prior * inverse).square() * held).sum(-1) / inverse).unsqueeze(1)
    costs = torch.where(popular > 0, costs, -(alone + 2 * math.log(rule.gamma / n)))
    return torch.cat([costs, _of_new_rows(alone + 2 * math.log(rule.gamma / n), clients)], 1)


def _by_published(clients: _Clients, rule: Rule) -> Tensor:
    """Costs by the published code [3]_; one row that is somebody's, or new, for each of its columns."""
    held, n, inputs = clients.held, clients.n, clients.held.shape[-1]
    bias = torch.zeros_like(held)
    bias[..., -1] = 1
    prior = inputs / rule.sigma**2
    mean = rule.mean / prior
    rows, added = clients.rows * held * clients.weight, clients.weight * held * (1 - bias)
    popular = _popularity(clients)
    gain = _gain(clients.total + mean, clients.mass * (1 - bias) + prior, rows, added, held)
    shared = gain + (popular / (n - popular).clamp(min=0.5)).log()
    alone = ((rows + mean).square() / (prior + added)).sum(-1) - mean**2 / prior + 2 * math.log(rule.gamma / n)
    return torch.cat([-shared, _of_new_rows(alone.unsqueeze(1), clients)], 1)


def _gain(total: Tensor, precision: Tensor, rows: Tensor, added: Tensor | float, held: Tensor) -> Tensor:
    """Σ_c (total_ic + rows_jc)² / (precision_ic + added_c) − total_ic² / precision_ic, shape (K, H, h), by products.

    Over the coordinates that the client has.
    """
    scale = held / (precision + added)
    joined = (scale * total.square()).sum(-1, keepdim=True) + 2 * (scale * total) @ rows.mT + scale @ rows.square().mT
    return joined - (held * total.square() / precision).sum(-1, keepdim=True)


def _popularity(clients: _Clients) -> Tensor:
    """How many others have each row, shape (K, H, 1), at most 10."""
    return clients.popular.clamp(max=10).to(clients.rows.dtype).unsqueeze(-1)


def _of_new_rows(alone: Tensor, clients: _Clients) -> Tensor:
    """What the new rows cost, shape (K, new, h): what a neuron gains that is alone, shape (K, 1, h), less and less."""
    new = torch.arange(1, clients.new + 1, device=alone.device, dtype=alone.dtype)
    return -(alone - 2 * new.log().unsqueeze(1))
