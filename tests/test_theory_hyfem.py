"""HyFEM's theorem on quadratics: what holds, what only holds of another algorithm, and what is printed wrong."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from test_blocks import FED, OPTIONS
from test_hyfem import SETTING

from hetfl_book.theory import hyfem
from hetfl_book.theory.hyfem import Quadratic, bound, iterate, rate
from hetfl_core import simulate
from hetfl_core.methods import HyFEM


def drawn(seed: int, M: int = 3, h: int = 3, D: int = 2) -> Quadratic:
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.2, 1, M)
    return Quadratic(rng.normal(size=(M, h, D)), rng.uniform(0.5, 2, M), weights / weights.sum(), rng.uniform(0.2, 2))


TWO = Quadratic(np.array([[[1.0]], [[-1.0]]]), np.ones(2), np.full(2, 0.5), 1.0)
"""Two clients with one neuron of one weight, that want it to be 1 and -1."""


def test_the_table_has_a_verdict_for_each_statement():
    table = hyfem.statements()
    assert set(table["holds"]) == {"yes", "if", "no"}
    assert table["words"].str.len().min() > 20
    assert len(table) == 14


# --- Theorem 2 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_theorem_2_holds_of_iteration_22_on_quadratics(seed):
    """Without noise, at the largest step that it allows; L never rises."""
    problem = drawn(seed)
    for rounds, steps in ((1, 1), (10, 4), (60, 2)):
        path = iterate(problem, problem.step, rounds, steps)
        gap = path.values[0]  # L is at least 0
        assert path.left <= bound(gap, problem.step, rounds, steps, problem.smoothness, 0.0)
        assert np.diff(path.values).max() <= 1e-12


def test_the_descent_pays_what_theorem_2_asks_for_from_two_steps_on():
    """The proof, as shares of twice (24): at most 1 of each."""
    for steps in (2, 3, 50):
        shares = hyfem.paid(steps)
        assert all(share <= 1 for share in shares.values())
        assert shares["q = Q - 1"] == 1, "with nothing to spare"
        assert shares["q = 0"] == Fraction(3, 5)
        assert shares["z"] == Fraction(21, 25)
        assert shares["L_T"] == Fraction(2, 5)
    assert hyfem.paid(1)["q = 0"] == Fraction(7, 5), "first and last are one gradient: this proof does not do"


class Waves:
    """Losses Σ a cos(w·x + b), which are not convex, with matched coordinates in the place of neurons, as A4 to A9."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        M, D = rng.integers(1, 4, 2)
        self.a, self.b, self.w = rng.normal(size=(M, 4)), rng.uniform(0, 6, (M, 4)), 2 * rng.normal(size=(M, 4, D))
        self.p, self.mu = rng.dirichlet(np.ones(M))[:, None], rng.uniform(0.05, 3)
        bends = (abs(self.a) * (self.w**2).sum(2)).sum(1, keepdims=True) + self.mu
        self.smoothness = float((self.p * bends).max())
        self.step = min(1 / self.smoothness, 8 / (5 * self.mu * float((self.p**2).sum())))  # convexity in z: μ
        self.least = -float((self.p * abs(self.a)).sum())
        self.orders = [np.array(order) for order in itertools.permutations(range(D))]
        self.start = 3 * rng.normal(size=(M, D)), [self.orders[0]] * M, 3 * rng.normal(size=D)

    def value(self, x, y, z) -> float:
        waves = (self.a * np.cos(np.einsum("mkd,md->mk", self.w, x) + self.b)).sum(1)
        return float(self.p[:, 0] @ (waves + self.mu / 2 * ((x - z[np.stack(y)]) ** 2).sum(1)))

    def gradient(self, x, y, z):
        slopes = -self.a * np.sin(np.einsum("mkd,md->mk", self.w, x) + self.b)
        return self.p * (np.einsum("mk,mkd->md", slopes, self.w) + self.mu * (x - z[np.stack(y)]))

    def sides(self, rounds: int, steps: int) -> tuple[float, float]:
        """Of Eq. (23), without noise; every gradient that it has, added up as it stands."""
        x, y, z = self.start
        right, left = bound(self.value(x, y, z) - self.least, self.step, rounds, steps, self.smoothness, 0.0), 0.0
        for _ in range(rounds):
            for _ in range(steps):
                g = self.gradient(x, y, z)
                left += (g**2).sum()
                x = x - self.step * g
            left += (self.gradient(x, y, z) ** 2).sum()
            y = [min(self.orders, key=lambda order, row=row: ((row - z[order]) ** 2).sum()) for row in x]
            left += (self.gradient(x, y, z) ** 2).sum()
            new = np.zeros_like(z)
            for order, row, p in zip(y, x, self.p[:, 0], strict=True):
                new[order] += p * row
            left += self.mu / self.step * ((new - z) ** 2).sum()
            z = new
        return left / (rounds * steps), right


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_theorem_2_holds_where_losses_are_not_convex(steps):
    shares = [left / right for left, right in (Waves(seed).sides(1 + seed % 6, steps) for seed in range(150))]
    assert 0.1 < max(shares) <= 1


def test_theorem_2_holds_in_the_mean_with_noise():
    problem, sigma = drawn(3), 0.7
    each = [iterate(problem, problem.step / 2, 8, 4, sigma=sigma, seed=s) for s in range(200)]
    left = np.array([path.left for path in each])
    error = left.std() / math.sqrt(len(left))
    right = bound(each[0].values[0], problem.step / 2, 8, 4, problem.smoothness, sigma)
    assert left.mean() + 3 * error <= right
    assert left.std() > 0


def test_it_does_not_hold_of_algorithm_2():
    """Each round begins at 0, the mean of 1 and -1, where both gradients are half as large as the way to the centre."""
    eta, rounds = TWO.step, 400
    path = iterate(TWO, eta, rounds, 1, reset=True)
    np.testing.assert_allclose(path.gradients[1:], 0.5)
    assert path.left >= 0.5
    assert bound(path.values[0], eta, rounds, 1, TWO.smoothness, 0.0) < 0.1
    goes_on = iterate(TWO, eta, rounds, 1)
    assert goes_on.gradients[-1] < 1e-6
    assert goes_on.left <= bound(goes_on.values[0], eta, rounds, 1, TWO.smoothness, 0.0)


@pytest.mark.parametrize("rounds", [50, 100])
def test_nor_with_as_many_steps_as_rounds_and_the_texts_step(rounds):
    """L_x = 1, Δ = 1/2 and σ = 1: η = 1/T. Losses are quadratic: noise adds to E‖∇L‖², and changes no mean path."""
    gap = iterate(TWO, TWO.step, 1, 1).values[0]
    assert (gap, TWO.smoothness) == (0.5, 1.0)
    eta = math.sqrt(2 * gap / (TWO.smoothness * rounds**2))
    path = iterate(TWO, eta, rounds, rounds, reset=True)
    assert path.left >= (1 - math.exp(-2)) / 4 > rate(gap, rounds, TWO.smoothness, 1.0)
    assert path.left == pytest.approx((1 - math.exp(-2)) / 4, rel=5 / rounds)
    assert iterate(TWO, eta, rounds, rounds).left < bound(gap, eta, rounds, rounds, TWO.smoothness, 0.0)
    noisy = [iterate(TWO, eta, rounds, rounds, sigma=1.0, reset=True, seed=s).left for s in range(3)]
    assert min(noisy) > path.left


def test_the_rate_as_it_is_and_as_it_is_printed():
    """Eq. (23) with Q = T at the step that the text chooses; the two differ in their last term by a factor of 2."""
    for gap, rounds, smoothness, sigma in ((1.0, 5, 2.0, 0.3), (7.0, 50, 0.4, 2.0)):
        eta = math.sqrt(2 * gap / smoothness) / (rounds * sigma)
        exact = bound(gap, eta, rounds, rounds, smoothness, sigma)
        assert rate(gap, rounds, smoothness, sigma) == pytest.approx(exact, rel=1e-12)
        printed = 10 * sigma * math.sqrt(2 * smoothness * gap) / rounds + 2 * smoothness * gap / rounds**3
        lacking = exact - printed
        assert lacking == pytest.approx(2 * smoothness * gap / rounds**3, rel=1e-6)


# --- Lemma 1 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_lemma_1s_constants_hold_and_may_be_smaller(seed):
    problem, rng = drawn(seed), torch.Generator().manual_seed(seed)
    places = [torch.randperm(3, generator=rng) for _ in range(3)]
    worst_x = worst_z = 0.0
    for _ in range(200):
        x, other = (torch.randn(3, 3, 2, generator=rng, dtype=torch.float64) for _ in range(2))
        z, away = (torch.randn(3, 2, generator=rng, dtype=torch.float64) for _ in range(2))
        moved = problem.gradient(x, places, z) - problem.gradient(other, places, z)
        worst_x = max(worst_x, float(moved.norm() / (x - other).norm()))
        moved = problem.gradient(x, places, z) - problem.gradient(x, places, away)
        worst_z = max(worst_z, float(moved.norm() / (z - away).norm()))
    assert worst_x <= problem.smoothness + 1e-12
    assert worst_z == pytest.approx(problem.coupling)
    assert problem.smoothness <= float((problem.weights * problem.curvatures).max() + problem.mu)
    assert problem.coupling <= problem.mu


def test_gradient_and_value_belong_together():
    problem, rng = drawn(0), torch.Generator().manual_seed(0)
    places = [torch.randperm(4, generator=rng)[:3] for _ in range(3)]
    x, z = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((3, 3, 2), (4, 2)))
    for place in ((0, 1, 0), (2, 2, 1)):
        step = torch.zeros_like(x)
        step[place] = 1e-6
        slope = (problem.value(x + step, places, z) - problem.value(x - step, places, z)) / 2e-6
        assert slope == pytest.approx(float(problem.gradient(x, places, z)[place]), rel=1e-6)


def test_nothing_is_convex_in_a_row_that_nobody_is_matched_with():
    problem = drawn(1, M=2, h=2)
    x, z = torch.from_numpy(problem.centres), torch.zeros(3, 2, dtype=torch.float64)
    places = [torch.tensor([0, 1])] * 2
    moved = z.clone()
    moved[2] = 100.0
    assert problem.value(x, places, moved) == problem.value(x, places, z)
    path = iterate(problem, problem.step, 20, 2, width=3)
    assert np.diff(path.values).max() <= 1e-12, "L falls all the same"


# --- Remark 3 -------------------------------------------------------------------------------------------------------


def test_a_fixed_step_leaves_every_bound_as_mu_grows():
    """Eq. (22a) is stable as long as η p (a + μ) ≤ 2; consensus is a limit of the problem, not of the algorithm."""
    eta = 0.5
    values = {}
    for mu in (1.0, 6.0, 8.0):
        problem = Quadratic(TWO.centres, TWO.curvatures, TWO.weights, mu)
        values[mu] = iterate(problem, eta, 40, 5).values[-1]
    assert values[6.0] < 10
    assert values[8.0] > 1e6


def test_algorithm_2_leaves_no_classifier_personal():
    """Remark 3.4 wants personal ones for μ₂ = 0: with line 2 all clients of the same blocks begin with the same."""
    options = {**SETTING, "classifier_weight": 0.0, "extractor_weight": 10.0, "passes": 0}
    for reset in (True, False):
        result = simulate(FED, HyFEM(**options, reset=reset), **OPTIONS)
        same = torch.equal(result.params[0]["beta.weight"], result.params[2]["beta.weight"])
        assert same == reset


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quadratic(np.ones((2, 1)), np.ones(2), np.ones(2) / 2, 1.0), r"centres must have shape \(M, h, D\)"),
        (lambda: Quadratic(np.ones((2, 1, 1)), np.ones(3), np.ones(2) / 2, 1.0), "curvatures must be 2 positive"),
        (lambda: Quadratic(np.ones((2, 1, 1)), np.ones(2), np.ones(2), 1.0), "weights must add up to 1, got 2"),
        (lambda: Quadratic(np.ones((2, 1, 1)), np.ones(2), np.ones(2) / 2, 0.0), "mu must be positive, got 0"),
        (lambda: iterate(TWO, 0.0, 1, 1), "eta must be positive"),
        (lambda: iterate(TWO, 0.1, 0, 1), "rounds must be"),
        (lambda: iterate(TWO, 0.1, 1, 1, sigma=-1.0), "sigma must"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
