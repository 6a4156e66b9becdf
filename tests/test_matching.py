"""Matching of neurons: against brute force, SciPy-free loops, planted permutations, and what descends and what not."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from slow_matching import match_slowly, slow_costs

from hetfl_core import matching
from hetfl_core.matching import Matching, Neurons, Rule, assign, cost_matrix, match
from hetfl_core.tape import Tape

F64 = torch.float64
COSTS = ("distance", "exact", "pfnm")
ORDERS = ("parallel", "sequential", "random")


def numbers(values, held=None) -> Neurons:
    rows = torch.tensor(values, dtype=F64)
    held = torch.ones(rows.shape[1], dtype=F64) if held is None else torch.tensor(held, dtype=F64)
    return Neurons(rows * held, held)


def drawn(rng: torch.Generator, clients: int = 3, h: int = 3, D: int = 4, lacking: bool = True) -> list[Neurons]:
    """Clients of unequal weight, each of which lacks one coordinate."""
    found = []
    for m in range(clients):
        held = torch.ones(D, dtype=F64)
        if lacking:
            held[torch.randint(D - 1, (1,), generator=rng)] = 0
        weight = float(torch.rand((), generator=rng)) + 0.1
        found.append(Neurons(torch.randn(h, D, generator=rng, dtype=F64) * held, held, weight, f"c{m}"))
    return found


def shuffled(rng: torch.Generator, n: int, width: int, h: int) -> list[torch.Tensor]:
    return [torch.randperm(width, generator=rng)[:h] for _ in range(n)]


# --- Eq. (11) -------------------------------------------------------------------------------------------------------


def slow_objective(neurons, indices, rows) -> float:
    """Eq. (11) as it stands, number by number."""
    total = 0.0
    for one, mine in zip(neurons, indices, strict=True):
        for j, i in enumerate(mine.tolist()):
            for c in range(one.rows.shape[1]):
                if one.held[c]:
                    total += 0.5 * one.weight * float(one.rows[j, c] - rows[i, c]) ** 2
    return total


def test_rows_are_weighted_means_and_minimise_the_objective():
    rng = torch.Generator().manual_seed(0)
    neurons, indices = drawn(rng), shuffled(rng, 3, 4, 3)
    found = match(neurons, indices, width=4, passes=0)
    rows = found.rows()
    assert found.objective() == pytest.approx(slow_objective(neurons, indices, rows), rel=1e-12)
    for _ in range(20):
        moved = rows + 0.1 * torch.randn(rows.shape, generator=rng, dtype=F64)
        assert slow_objective(neurons, indices, moved) >= found.objective()
    for i, c in itertools.product(range(4), range(4)):
        held = [
            (one.weight, float(one.rows[list(mine).index(i), c]))
            for one, mine in zip(neurons, [p.tolist() for p in indices], strict=True)
            if i in mine and one.held[c]
        ]
        expected = sum(w * v for w, v in held) / sum(w for w, _ in held) if held else 0.0
        assert float(rows[i, c]) == pytest.approx(expected)


def test_rows_that_nobody_has_stay_as_they_were():
    one = numbers([[1.0, 2.0]], held=[1, 0])
    before = torch.tensor([[7.0, 8.0], [9.0, 10.0]], dtype=F64)
    rows = match([one], [torch.tensor([1])], width=3, passes=0).rows(before)
    assert rows.tolist() == [[7.0, 8.0], [1.0, 10.0], [0.0, 0.0]]


# --- one step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_step_finds_the_best_indices_of_a_client(seed):
    """Against all 24 selections of 3 rows of 4, each with its own best rows."""
    rng = torch.Generator().manual_seed(seed)
    neurons, indices = drawn(rng), shuffled(rng, 3, 4, 3)
    every = [
        match(neurons, [*indices[:2], torch.tensor(mine)], width=4, passes=0).objective()
        for mine in itertools.permutations(range(4), 3)
    ]
    begun = match(neurons, indices, width=4, passes=0)
    costs = cost_matrix(begun, 2, Rule(cost="exact"))
    best = assign(costs)
    there = match(neurons, [*indices[:2], best], width=4, passes=0).objective()
    assert there == pytest.approx(min(every), rel=1e-12)
    gained = float(costs[best, torch.arange(3)].sum() - costs[indices[2], torch.arange(3)].sum())
    assert there - begun.objective() == pytest.approx(gained, abs=1e-12), "costs are what the objective changes by"


def test_the_texts_cost_is_the_squared_distance_of_what_comes_in():
    """Eq. (20) by loops: to the mean of the others where they have a row, to zero, or dist₂, where they have none."""
    rng = torch.Generator().manual_seed(1)
    neurons, indices = (
        drawn(rng, lacking=False),
        [torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])],
    )
    begun = match(neurons, indices, width=4, passes=0)
    for growth in (None, 0.7):
        costs = cost_matrix(begun, 0, Rule(inputs=3, growth=growth, max_width=5))
        assert costs.shape == ((4, 3) if growth is None else (5, 3))
        for i, j in itertools.product(range(4), range(3)):
            others = [
                (one.weight, one.rows[p.tolist().index(i)])
                for one, p in zip(neurons[1:], indices[1:], strict=True)
                if i in p
            ]
            mean = sum(w * v for w, v in others) / sum(w for w, _ in others)
            assert float(costs[i, j]) == pytest.approx(float((neurons[0].rows[j] - mean)[:3].square().sum()))
        if growth is not None:
            assert costs[4].tolist() == [0.7] * 3
    alone = match(neurons[:1], indices[:1], width=4, passes=0)
    assert torch.allclose(cost_matrix(alone, 0, Rule()), neurons[0].rows.square().sum(1).expand(4, 3))
    assert (cost_matrix(alone, 0, Rule(growth=0.7, max_width=4)) == 0.7).all(), "dist₂ is for rows that nobody else has"


def test_pfnms_cost_is_the_negative_log_posterior():
    """Differences between rows against the posterior's maximum over the row, found by ternary search, and its prior."""
    rng = torch.Generator().manual_seed(2)
    neurons = drawn(rng, lacking=False, D=2)
    indices = [torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])]
    rule = Rule(cost="pfnm", sigma=0.8, gamma=3.0, mean=0.4, growth=0.0, max_width=5)
    costs = cost_matrix(match(neurons, indices, width=3, passes=0), 2, rule)
    assert costs.shape == (5, 3)
    prior = np.array([0.0, 0.4])

    def best(vectors: list[np.ndarray]) -> float:
        """Twice the log-posterior of a row at its best, up to the squared lengths of the vectors."""
        total = 0.0
        for c in range(2):

            def f(t: float, c: int = c) -> float:
                gaps = [2 * v[c] * t - t * t for v in vectors]
                return (sum(gaps) - (t - prior[c]) ** 2 + prior[c] ** 2) / 0.8**2

            low, high = -20.0, 20.0
            for _ in range(200):
                a, b = low + (high - low) / 3, high - (high - low) / 3
                low, high = (a, high) if f(a) < f(b) else (low, b)
            total += f((low + high) / 2)
        return total

    for j in range(3):
        mine = neurons[2].rows[j].numpy()
        for i in range(3):
            others = [one.rows[p.tolist().index(i)].numpy() for one, p in zip(neurons[:2], indices[:2], strict=True)]
            expected = -(best([*others, mine]) - best(others) + 2 * math.log(2 / 1))
            assert float(costs[i, j]) == pytest.approx(expected, abs=1e-6)
        for k in (1, 2):
            expected = -(best([mine]) - best([]) - 2 * math.log(k) + 2 * math.log(3.0 / 3))
            assert float(costs[2 + k, j]) == pytest.approx(expected, abs=1e-6)


def test_the_assignment_is_the_best_of_all():
    rng = torch.Generator().manual_seed(0)
    costs = torch.randn(4, 3, generator=rng, dtype=F64)
    best = min(itertools.permutations(range(4), 3), key=lambda p: float(costs[list(p), range(3)].sum()))
    assert assign(costs).tolist() == list(best)


# --- many steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("order", ORDERS)
def test_identical_clients_are_matched_by_the_identity(cost, order):
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(6, 5, generator=rng, dtype=F64)
    neurons = [Neurons(rows, torch.ones(5, dtype=F64)) for _ in range(4)]
    found = match(neurons, passes=3, rule=Rule(cost=cost, order=order), rng=rng)
    assert all(p.tolist() == list(range(6)) for p in found.indices)
    assert found.objective() == pytest.approx(0, abs=1e-20)


def test_the_exact_sequential_step_never_raises_the_objective():
    """Block-coordinate descent: 4 000 steps of clients that lack coordinates and have fewer neurons than rows."""
    rng = torch.Generator().manual_seed(4)
    worst, steps = -math.inf, 0
    while steps < 4000:
        neurons, indices = drawn(rng), shuffled(rng, 3, 4, 3)
        order = "random" if steps % 2 else "sequential"
        passes = 9 if order == "random" else 3
        found = match(neurons, indices, width=4, passes=passes, rule=Rule("exact", order), rng=rng, progress=True)
        worst = max(worst, *np.diff(found.costs))
        steps += 9
    assert worst <= 1e-12


def test_so_does_the_step_against_all_clients_mean():
    """Eq. (22b): the best indices for the rows as they are, and then the best rows: both lower Eq. (11)."""
    rng = torch.Generator().manual_seed(5)
    for _ in range(50):
        neurons, indices = drawn(rng), shuffled(rng, 3, 3, 3)
        rule = Rule("distance", "parallel", target="all")
        found = match(neurons, indices, width=3, passes=6, rule=rule, progress=True)
        assert max(np.diff(found.costs)) <= 1e-12


def test_the_texts_step_may_raise_the_objective_all_at_once():
    """Algorithm 2, lines 10–12: three clients of two neurons, one number each.

    Rows begin as means of (0, 2, 0) and (1, 0, 3). The second and the third client both leave for where the other was:
    each is nearer to the mean of the others, as they were. Eq. (11) rises from 11/3 to 4.
    """
    neurons = [numbers([[0.0], [1.0]]), numbers([[2.0], [0.0]]), numbers([[0.0], [3.0]])]
    found = match(neurons, passes=1, progress=True)
    assert [p.tolist() for p in found.indices] == [[0, 1], [1, 0], [1, 0]]
    assert found.costs == pytest.approx([11 / 3, 4.0])


def test_the_texts_cost_may_raise_the_objective_one_by_one():
    """It looks at what comes in alone (Eq. (20)), while Eq. (11) counts what goes out: (in, out) of two clients."""
    neurons = [numbers([[1.0, 2.0], [0.0, 1.0]]), numbers([[0.0, 2.0], [1.0, 0.0]])]
    found = match(neurons, passes=1, rule=Rule(order="sequential", inputs=1), progress=True)
    assert found.costs == pytest.approx([0.75, 1.25, 1.25])
    exact = match(neurons, passes=1, rule=Rule("exact", "sequential"), progress=True)
    assert exact.costs == pytest.approx([0.75] * 3)


def test_the_texts_cost_may_raise_the_objective_where_clients_lack_blocks():
    """All weights compared, one client at a time: it does not know how many others have a weight at all."""
    held = [[1, 1], [1, 0], [1, 1]]
    values = [[[0, 0], [2, 3]], [[0, 0], [3, 0]], [[1, 1], [2, 0]]]
    neurons = [numbers(v, k) for v, k in zip(values, held, strict=True)]
    indices = [torch.tensor([1, 0])] * 3
    found = match(neurons, indices, passes=1, rule=Rule(order="sequential"), progress=True)
    assert found.costs == pytest.approx([19 / 6] * 3 + [10 / 3])


@pytest.mark.parametrize("cost", COSTS)
def test_a_planted_permutation_is_found_one_by_one_and_not_all_at_once(cost):
    """Four clients with the same 16 neurons, a little noise, each in an order of its own: 20 draws."""
    recovered = dict.fromkeys(("sequential", "parallel"), 0)
    for order in recovered:
        for seed in range(20):
            rng = torch.Generator().manual_seed(seed)
            base = torch.randn(16, 10, generator=rng, dtype=F64)
            turns = [torch.randperm(16, generator=rng) for _ in range(4)]
            noisy = [base[turn] + 0.05 * torch.randn(16, 10, generator=rng, dtype=F64) for turn in turns]
            neurons = [Neurons(rows, torch.ones(10, dtype=F64)) for rows in noisy]
            indices = match(neurons, passes=8, rule=Rule(cost, order)).indices
            where = [torch.empty(16, dtype=torch.int64).scatter_(0, t, p) for t, p in zip(turns, indices, strict=True)]
            recovered[order] += all(torch.equal(where[0], other) for other in where)
    assert recovered == {"sequential": 20, "parallel": 0}


def test_the_server_grows_where_a_neuron_is_like_no_other():
    """A third neuron far from both rows founds one of its own where that costs less than its distance."""
    neurons = [numbers([[0.0], [1.0]]), numbers([[0.1], [9.0]])]
    kept = match(neurons, passes=1, rule=Rule(order="sequential", growth=100.0))
    assert (kept.width, kept.indices[1].tolist()) == (2, [0, 1])
    grown = match(neurons, passes=1, rule=Rule(order="sequential", growth=4.0))
    assert grown.width == 3
    assert sorted(map(float, grown.rows().flatten())) == pytest.approx([0.05, 1.0, 9.0])
    full = match(neurons, passes=1, rule=Rule(order="sequential", growth=4.0, max_width=2))
    assert full.width == 2, "no more than `max_width`"


def test_two_clients_that_grow_at_once_take_different_rows_or_share_what_costs_less():
    neurons = [numbers([[0.0]]), numbers([[9.0]]), numbers([[-9.0]])]
    found = match(neurons, [torch.tensor([0])] * 3, passes=2, rule=Rule(cost="exact", order="sequential", growth=1.0))
    assert found.width == 3
    assert sorted(int(p) for p in found.indices) == [0, 1, 2]


def test_indices_stay_unless_others_cost_less():
    """A lone client's rows all cost the same; it is not sent elsewhere."""
    rows = torch.tensor([2, 0, 1])
    found = match([numbers([[1.0], [2.0], [3.0]])], [rows], passes=2)
    assert found.indices[0].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: match([]), "neurons must be those of at least one client, got none"),
        (lambda: match([numbers([[1.0]]), numbers([[1.0, 2.0]])]), r"same coordinates on all clients, got D=\[1, 2\]"),
        (lambda: match([numbers([[1.0]])], [torch.tensor([0, 1])]), r"indices must be one per neuron of each client"),
        (lambda: match([numbers([[1.0], [2.0]])], [torch.tensor([0, 0])]), r"must be different rows of 0…0, got"),
        (lambda: match([numbers([[1.0]])], [torch.tensor([-1])], width=2), r"must be different rows of 0…1"),
        (lambda: match([numbers([[1.0]])], passes=-1), "passes must be .*at least 0, got -1"),
        (
            lambda: numbers([[math.nan]]),
            "rows must be finite, got 1 values that are NaN or infinite: training diverged",
        ),
        (lambda: Neurons(torch.ones(2, 3), torch.ones(2)), r"rows must have shape \(h, D\) and held \(D,\)"),
        (lambda: Neurons(torch.ones(1, 1), torch.ones(1), 0.0), "weight must be positive, got 0"),
        (lambda: assign(torch.tensor([[1.0, math.nan]]).T.contiguous()), "costs must be numbers, got 1 that are NaN"),
        (lambda: match([numbers([[1.0]])], rule=Rule(order="anew")), 'growth must be a number with order="anew"'),
        (lambda: assign(torch.zeros(1, 2)), r"rows not fewer, got \(1, 2\)"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_posterior_counts_all_clients_alike():
    rng = torch.Generator().manual_seed(0)
    neurons = drawn(rng)
    equal = [replace(one, weight=1.0) for one in neurons]
    assert len({one.weight for one in neurons}) == 3
    costs = [cost_matrix(Matching(each, [torch.arange(3)] * 3, 3), 0, Rule("pfnm")) for each in (neurons, equal)]
    torch.testing.assert_close(*costs, rtol=0, atol=0)


# --- the published code's -------------------------------------------------------------------------------------------

CODE = json.loads((Path(__file__).parent / "published" / "hyfem.json").read_text("utf8"))
"""What the published code gave, outside this repository, for the numbers that `of_six` draws; it names its source."""

TABLE_4 = ((0, 1, 2), (0, 1, 2), (0, 2, 3), (0, 2, 3), (0, 2), (0, 2))


def of_six(start: str, h: int, noise: float = 0.0) -> list[Neurons]:
    """The clients of the paper's Table 4, 32 features of each block and a bias: PyTorch's first weights, or alike."""
    rng = np.random.default_rng(0)
    base = rng.uniform(-(128**-0.5), 128**-0.5, (h, 129)) if start == "common" else None
    found = []
    for blocks in TABLE_4:
        mine = np.concatenate([np.arange(32 * block, 32 * block + 32) for block in blocks])
        rows, held, bound = np.zeros((h, 129)), np.zeros(129), len(mine) ** -0.5
        held[[*mine, 128]] = 1
        if base is None:
            rows[:, mine] = rng.uniform(-bound, bound, (h, len(mine)))
            rows[:, 128] = rng.uniform(-bound, bound, h)
        else:
            rows[:, held > 0] = base[:, held > 0] + noise * rng.normal(size=(h, len(mine) + 1))
        found.append(Neurons(torch.from_numpy(rows), torch.from_numpy(held)))
    return found


@pytest.mark.parametrize("case", CODE["cases"], ids=lambda case: f"{case['start']}-{case['h']}")
def test_the_published_rule_gives_the_published_codes_rows(case, monkeypatch):
    turns = iter(CODE["orders"])
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.tensor(next(turns)))
    neurons = of_six(case["start"], case["h"], case.get("noise", 0.0))
    rule = Rule("published", "anew", growth=0.0, max_width=700)
    found = match(neurons, passes=case["passes"], rule=rule, progress=True)
    assert found.width == case["width"]
    if "places" in case:
        assert [p.tolist() for p in found.indices] == case["places"]
    assert len(found.costs) == 2 + case["passes"]
    if case["width"] == case["h"]:
        assert all(p.tolist() == list(range(case["h"])) for p in found.indices), "who hardly differs stays"


def test_pfnm_grows_with_its_precision():
    """Of one precision for all, 1 shares every row and 100, the scale of the published code, nearly none."""
    neurons = of_six("own", 16)
    widths = [
        match(neurons, rule=Rule("pfnm", "sequential", growth=0.0, max_width=700, sigma=sigma)).width
        for sigma in (1.0, 0.1)
    ]
    assert widths[0] == 16
    assert widths[1] > 80


def test_the_published_rule_adds_a_row_at_the_least():
    neurons = of_six("own", 16)
    for order in ("sequential", "anew"):
        found = match(neurons, passes=1, rule=Rule("published", order, growth=0.0, max_width=16))
        assert 16 < found.width <= 16 + 2 * len(neurons)
    kept = match(neurons, passes=1, rule=Rule("published", "sequential"))
    assert kept.width == 16, "the server grows where it may"


def test_places_stay_where_numbers_have_left_all_bounds():
    huge = [numbers([[1e200, 1.0], [2.0, 1.0]]), numbers([[1.0, 1.0], [-1e200, 1.0]])]
    found = match(huge, rule=Rule("published", "anew", growth=0.0))
    assert [p.tolist() for p in found.indices] == [[0, 1], [0, 1]]


def test_what_the_chapter_says_of_the_two_rules():
    """Of six clients with 128 neurons each: 128 rows by PFNM with precision 1, and 261 by the published code's."""
    (wide,) = [case for case in CODE["cases"] if (case["start"], case["h"]) == ("own", 128)]
    assert wide["width"] == 261
    neurons = of_six("own", 128)
    assert match(neurons, rule=Rule("pfnm", "sequential", growth=0.0, max_width=700)).width == 128
    alone = Matching(neurons, [torch.arange(128) + 128 * m for m in range(6)], 768)
    assert alone.objective() == 0, "no row is shared"


@pytest.mark.parametrize("cost", ["distance", "exact", "pfnm"])
def test_any_cost_can_be_matched_anew(cost):
    """The rows of neurons that differ little are found whatever their order; with too few rows nothing moves."""
    rng = torch.Generator().manual_seed(3)
    base = 3 * torch.randn(5, 6, generator=rng, dtype=F64)
    turns = [torch.randperm(5, generator=rng) for _ in range(3)]
    neurons = [Neurons(base[t], torch.ones(6, dtype=F64)) for t in turns]
    found = match(neurons, rule=Rule(cost, "anew", growth=0.01))
    where = [p[t.argsort()] for t, p in zip(turns, found.indices, strict=True)]
    assert found.width == 5
    assert all(torch.equal(where[0], other) for other in where)
    far = [numbers([[0.0], [1.0]]), numbers([[9.0], [8.0], [7.0]])]
    kept = match(far, rule=Rule(cost, "anew", growth=0.01, max_width=2))
    assert kept.width >= 3


# --- in time linear in the number of clients ------------------------------------------------------------------------

EVERY = [
    (cost, order, growth)
    for cost in (*COSTS, "published")
    for order in (*ORDERS, "anew")
    for growth in (None, 0.5, 3.0)
    if not (order == "anew" and growth is None)
]


def a_problem(rng: torch.Generator) -> tuple[list[Neurons], list[torch.Tensor], int]:
    """Some clients with different numbers of neurons, or all with as many, that lack coordinates but the last."""
    number = lambda least, most: int(torch.randint(least, most + 1, (), generator=rng))  # noqa: E731
    clients, D, h, alike = number(2, 9), number(3, 8), number(1, 6), number(0, 1)
    width = h + number(0, 3)
    neurons, indices = [], []
    for m in range(clients):
        mine = h if alike else number(1, h)
        held = (torch.rand(D, generator=rng) > 0.3).double()
        held[[0, -1]] = 1
        rows = torch.randn(mine, D, generator=rng, dtype=F64) * held
        neurons.append(Neurons(rows, held, 0.1 + float(torch.rand((), generator=rng)), f"c{m}"))
        indices.append(torch.randperm(width, generator=rng)[:mine])
    return neurons, indices, width


def together(indices: list[torch.Tensor]) -> set[frozenset[tuple[int, int]]]:
    """Which neurons share a row, whatever the rows are called."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for m, mine in enumerate(indices):
        for j, i in enumerate(mine.tolist()):
            rows.setdefault(i, []).append((m, j))
    return set(map(frozenset, rows.values()))


@pytest.mark.parametrize(("cost", "order", "growth"), EVERY)
def test_places_are_those_of_the_slow_way(cost, order, growth):
    """The same indices, client by client; of PFNM's rows only who shares one, as new ones cost two neurons the same."""
    for seed in range(6):
        rng = torch.Generator().manual_seed(seed)
        neurons, indices, width = a_problem(rng)
        passes = 5 if order != "random" else 20
        rule = Rule(
            cost, order, "all" if seed % 3 == 0 else "others", growth, width + seed % 7, sigma=(1.0, 0.3)[seed % 2]
        )
        rule = replace(rule, inputs=None if seed % 2 else neurons[0].rows.shape[1] - 1)
        ours = match(neurons, indices, width=width, passes=passes, rule=rule, rng=torch.Generator().manual_seed(seed))
        slow = match_slowly(neurons, indices, width, passes, rule, torch.Generator().manual_seed(seed))
        assert ours.width == slow.width
        if cost in ("pfnm", "published"):
            assert together(ours.indices) == together(slow.indices)
        else:
            assert [p.tolist() for p in ours.indices] == [p.tolist() for p in slow.indices]


@pytest.mark.parametrize("cost", [*COSTS, "published"])
@pytest.mark.parametrize("target", ["others", "all"])
def test_costs_are_those_of_the_slow_way(cost, target):
    for seed in range(20):
        neurons, indices, width = a_problem(torch.Generator().manual_seed(seed))
        found = match(neurons, indices, width=width, passes=0)
        rule = Rule(cost, target=target, growth=(None, 1.5)[seed % 2], max_width=width + 2, sigma=0.7)
        for m in range(len(neurons)):
            torch.testing.assert_close(cost_matrix(found, m, rule), slow_costs(found, m, rule), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cost", [*COSTS, "published"])
def test_costs_in_batches_are_those_of_single_clients(cost, monkeypatch):
    neurons, indices = drawn(torch.Generator().manual_seed(0), clients=9), [torch.arange(3)] * 9
    search = matching._Search(match(neurons, indices, width=4, passes=0), Rule(cost, growth=1.0, max_width=6))
    sizes = []
    for at_once in (1, 3 * 4 * neurons[0].rows.shape[1], 10**9):
        monkeypatch.setattr(matching, "AT_ONCE", at_once)
        some = [*search._batches(range(9))]
        sizes.append(len(some))
        costs = torch.cat([search.costs(batch) for batch in some])
        torch.testing.assert_close(costs, torch.stack([cost_matrix(search.found, m, search.rule) for m in range(9)]))
    assert sizes == [9, 3, 1]
    mixed = [*drawn(torch.Generator(), clients=2, h=2), *neurons]
    search = matching._Search(match(mixed, passes=0), Rule(cost))
    assert [len(batch) for batch in search._batches(range(11))] == [2, 9]


def worked(order: str, cost: str, clients: int) -> tuple[int, int]:
    """How many operations a pass or two take, and how many numbers they give."""
    rng = torch.Generator().manual_seed(0)
    base = 3 * torch.randn(6, 5, generator=rng, dtype=F64)
    turns = [torch.randperm(6, generator=rng) for _ in range(clients)]
    neurons = [
        Neurons(base[t] + 0.1 * torch.randn(6, 5, generator=rng, dtype=F64), torch.ones(5, dtype=F64)) for t in turns
    ]
    growth = 5.0 if order == "anew" else None
    rule = Rule(cost, order, growth=growth, max_width=6)
    with Tape() as tape:
        found = match(neurons, passes=2 * clients if order == "random" else 2, rule=rule, rng=rng)
    assert found.width == 6
    sizes = [result.numel() for *_, result in tape.operations if isinstance(result, torch.Tensor)]
    return len(tape.operations), sum(sizes)


@pytest.mark.parametrize("cost", [*COSTS, "published"])
@pytest.mark.parametrize("order", [*ORDERS, "anew"])
def test_a_pass_takes_work_that_is_linear_in_the_number_of_clients(order, cost):
    """Of twice the clients twice as much, where summing the others anew for each takes four times as much."""
    once, twice = worked(order, cost, 20), worked(order, cost, 40)
    for few, many in zip(once, twice, strict=True):
        assert many < 2.3 * few


def test_sums_do_not_drift(monkeypatch):
    """After thousands of moves of clients of unlike weight and size: against sums that are made from where they are."""
    rng = torch.Generator().manual_seed(0)
    neurons = []
    for m in range(40):
        one = drawn(rng, clients=1, h=5, D=6)[0]
        neurons.append(Neurons(one.rows * 10.0 ** (m % 5), one.held, 10.0 ** -(m % 4), f"c{m}"))
    search = matching._Search(Matching(neurons, shuffled(rng, 40, 9, 5), 9), Rule("exact"))
    renewed = []
    plain = search.renew
    monkeypatch.setattr(search, "renew", lambda: (renewed.append(1), plain())[1])
    for _ in range(4000):
        m = int(torch.randint(40, (), generator=rng))
        out = float(torch.rand((), generator=rng)) < 0.3
        search.move(m, torch.arange(0) if out else torch.randperm(9, generator=rng)[:5])
    assert 80 <= len(renewed) <= 100, "sums are made anew, but no more often than clients move"
    fresh = matching._Search(replace(search.found, indices=[*search.found.indices]), Rule("exact")).sums
    assert search.moves > 0
    for name, kept in vars(search.sums).items():
        torch.testing.assert_close(kept, getattr(fresh, name), rtol=1e-12, atol=1e-11)
    assert torch.equal(search.sums.members, fresh.members)
    assert torch.equal(search.sums.having, fresh.having)


def test_who_is_alone_in_a_row_has_no_others_there_whatever_rounding_left():
    """Weights of which a difference is not exactly 0: each client has a row of its own, in which nobody else is."""
    neurons = [replace(numbers([[0.1 * m]]), weight=w) for m, w in enumerate((0.1, 0.2, 0.3, 0.7))]
    search = matching._Search(Matching(neurons, [torch.tensor([0])] * 4, 4), Rule("exact"))
    for m in (1, 2, 3):
        search.move(m, torch.tensor([m]))
    for m in range(4):
        clients = search.clients([m])
        assert (clients.mass[0, m], clients.total[0, m], clients.popular[0, m]) == (0, 0, 0)
        assert torch.equal(clients.popular[0] > 0, torch.arange(4) != m)


def test_weights_that_leave_others_no_digits_are_refused():
    neurons = [numbers([[1.0]]), replace(numbers([[2.0]]), weight=1e-9, name="small")]
    with pytest.raises(ValueError, match=r"weight must not be more than 1e\+08 times .* 1e-09 on client 'small'"):
        match(neurons)
    assert match(neurons, rule=Rule("pfnm")).width == 1, "PFNM counts all alike"
    assert match(neurons, passes=0).width == 1
