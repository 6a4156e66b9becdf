"""Matching in the slow, obvious way: for each client the others are summed anew, one after the other.

It is the oracle of `hetfl_core.matching.match`, of which it takes the data types, and the best rows for given indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from hetfl_core.matching import Matching, Neurons, Rule


def match_slowly(
    neurons: Sequence[Neurons], indices: Sequence[Tensor], width: int, passes: int, rule: Rule, rng: torch.Generator
) -> Matching:
    """What `match` gives."""
    n = len(neurons)
    found = Matching(list(neurons), list(indices), width)
    if rule.order == "anew":
        orders = [torch.randperm(n, generator=rng).tolist() for _ in range(passes)]
        return anew(found, orders, rule)
    for _ in range(passes):
        if rule.order == "random":
            turns = [[int(torch.randint(n, (), generator=rng))]]
        else:
            turns = [list(range(n))] if rule.order == "parallel" else [[m] for m in range(n)]
        for together in turns:
            moved = [(m, moved_one(found, m, rule)) for m in together]
            for m, mine in moved:
                found.indices[m] = mine
                found.width = max(found.width, 1 + int(mine.max()))
    return found


def moved_one(found: Matching, m: int, rule: Rule) -> Tensor:
    """The best places of a client while all others stay, or its own where none are better."""
    costs, now = slow_costs(found, m, rule), found.indices[m]
    if rule.growth is None and not costs.isfinite().all():  # the published costs of a row that nobody else is in
        return now
    mine = assigned(costs)
    everyone = torch.arange(len(now))
    if not costs[mine, everyone].sum() < costs[now, everyone].sum() - 1e-12 * costs[now, everyone].sum().abs():
        return now
    return with_founded(mine, found.width)


def anew(found: Matching, orders: Sequence[Sequence[int]], rule: Rule) -> Matching:
    """All leave; they join, the largest first; then each leaves and joins again, and rows without anybody are gone."""
    n, begun = len(found.neurons), found
    found = Matching(found.neurons, [found.indices[0][:0]] * n, 0)
    for turns in [sorted(range(n), key=lambda m: -len(found.neurons[m].rows)), *orders]:
        for m in turns:
            found.indices[m] = found.indices[m][:0]
            kept = sorted({i for places in found.indices for i in places.tolist()})
            found.indices = [
                torch.tensor([kept.index(i) for i in p.tolist()], dtype=torch.int64) for p in found.indices
            ]
            found.width = len(kept)
            h = len(found.neurons[m].rows)
            costs = slow_costs(found, m, rule) if kept else torch.zeros(h, h)
            if len(costs) < h:
                return begun
            mine = with_founded(assigned(costs) if kept else torch.arange(h), found.width)
            found.indices[m], found.width = mine, max(found.width, 1 + int(mine.max()))
    return found


def assigned(costs: Tensor) -> Tensor:
    rows, columns = linear_sum_assignment(costs.double().numpy())
    return torch.from_numpy(rows)[torch.from_numpy(columns).argsort()]


def with_founded(places: Tensor, width: int) -> Tensor:
    """Places beyond the width as the next rows, in the order of the neurons."""
    new = iter(range(width, width + len(places)))
    return torch.tensor([int(i) if i < width else next(new) for i in places])


def slow_costs(found: Matching, m: int, rule: Rule) -> Tensor:
    """Costs of each row and neuron of client m, and below them those of rows that it may found."""
    one, n, h = found.neurons[m], len(found.neurons), len(found.neurons[m].rows)
    inputs = rule.inputs or len(one.held)
    others = [each for i, each in enumerate(zip(found.neurons, found.indices, strict=True)) if i != m]
    everybody = [*zip(found.neurons, found.indices, strict=True)]
    taken = torch.zeros(found.width)
    for _, places in others:
        taken[places] += 1
    popular = taken.clamp(max=10).double()
    least = 1 if rule.cost == "published" else 0
    new = 0 if rule.growth is None else min(h, max(rule.max_width - found.width, least))
    if rule.cost == "distance":
        mass, total = sums(everybody if rule.target == "all" else others, found.width)
        mass, total = mass[:, :inputs], total[:, :inputs]
        gaps = one.rows[None, :, :inputs] - mean(total, mass)[:, None]
        costs = (gaps.square() * one.held[:inputs]).sum(2)
        if rule.growth is not None:
            costs[~(mass > 0).any(1)] = rule.growth
        return torch.cat([costs, costs.new_full((new, h), rule.growth or 0.0)])
    if rule.cost == "exact":
        mass, total = sums(others, found.width)
        joint = 0.5 * one.weight * mass / (one.weight + mass) * one.held
        costs = (joint[:, None] * (one.rows[None] - mean(total, mass)[:, None]).square()).sum(2)
        return torch.cat([costs, costs.new_full((new, h), rule.growth or 0.0)])
    if rule.cost == "pfnm":
        prior = torch.zeros_like(one.held)
        prior[inputs - 1] = rule.mean
        mass, total = sums([(Neurons(each.rows, each.held), places) for each, places in others], found.width)
        square = (total[:, None] + prior + one.rows[None]).square() / (mass[:, None] + 2)
        before = (total + prior).square() / (mass + 1)
        gain = ((square - before[:, None]) * one.held).sum(2) / rule.sigma**2
        alone = (((prior + one.rows).square() / 2 - prior.square()) * one.held).sum(1) / rule.sigma**2
        alone = alone + 2 * math.log(rule.gamma / n)
        odds = torch.where(popular > 0, popular / (n - popular).clamp(min=0.5), 1.0).log()
        costs = torch.where(popular[:, None] > 0, gain + 2 * odds[:, None], alone)
    else:
        cut = []
        for each, places in [*others, (one, None)]:
            held = each.held[:inputs]
            weight = float(held[:-1].sum()) / rule.sigma**2
            cut.append((Neurons(each.rows[:, :inputs], held, weight), places))
        own = cut.pop()[0]
        inside = torch.ones(inputs, dtype=own.rows.dtype)
        inside[-1] = 0  # the bias
        prior = inputs / rule.sigma**2
        shift = rule.mean / prior
        mass, total = sums(cut, found.width)
        precision, total, added = mass * inside + prior, total + shift, own.weight * own.held * inside
        mine = own.rows * own.held * own.weight
        square = (total[:, None] + mine[None]).square() / (precision + added)[:, None]
        gain = ((square - (total.square() / precision)[:, None]) * own.held).sum(2)
        costs = gain + (popular / (n - popular).clamp(min=0.5)).log()[:, None]
        alone = ((mine + shift).square() / (prior + added)).sum(1) - shift**2 / prior + 2 * math.log(rule.gamma / n)
    founded = [alone - 2 * math.log(k) for k in range(1, new + 1)]
    return -torch.cat([costs, *(each[None] for each in founded)])


def sums(clients: Sequence[tuple[Neurons, Tensor]], width: int) -> tuple[Tensor, Tensor]:
    """Σ p_m and Σ p_m w_m of some clients, row by row, over those that have a weight."""
    mass = total = clients[0][0].rows.new_zeros(width, clients[0][0].rows.shape[1]) if clients else torch.zeros(())
    for one, places in clients:
        mass, total = mass.clone(), total.clone()
        for j, i in enumerate(places.tolist()):
            mass[i] += one.weight * one.held
            total[i] += one.weight * one.held * one.rows[j]
    return mass, total


def mean(total: Tensor, mass: Tensor) -> Tensor:
    return torch.where(mass > 0, total / mass, 0.0)
