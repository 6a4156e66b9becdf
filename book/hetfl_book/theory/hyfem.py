r"""HyFEM's statements where every term can be computed: Theorem 2, its rate, and which algorithm they speak of.

A client's classifier is h neurons with D weights, and its loss a quadratic around neurons of its own,

.. math:: f_m(w_m) = \frac{a_m}{2} \|w_m - c_m\|^2, \quad
   \mathcal{L} = \sum_m p_m \left(f_m(w_m) + \frac{\mu}{2}\|w_m - \Pi_m w_0\|^2\right),

so that all constants of the theorem are known. `iterate` is iteration (22) of [1]_, x the clients' neurons, y the
places, z the server's neurons; with ``reset`` it is Algorithm 2, whose line 2 has clients begin a round with the
server's neurons. In the table "yes" is *holds as printed*, "if" *holds under a condition that is not printed*, "no"
*does not hold*.

==============================  ====  ==================================================================================
Statement                       Hold  What is right, or the smallest counterexample
==============================  ====  ==================================================================================
Theorem 2, of iteration (22)    if    Q ≥ 2, or gradients without noise; for Q = 1 with noise it is neither derived nor
                                      refuted here. Clients go on from where they were. `paid`, `iterate`
… (35) follows from (34)        no    Eq. (33) adds the gradient at the beginning of the *next* round, at 2 η/5 on the
                                      right; it is moved to the left at η/5, where the theorem has that at z^t. Summed
                                      over rounds it can be paid from the q = 0 terms, if Q ≥ 2: 3/5 of them. `paid`
Theorem 1: so by Algorithm 1    no    Clients begin each round at the server's model (line 2 of Algorithm 2), where
                                      gradients need not vanish: of two clients with one weight, centres 1 and -1, they
                                      are 1/2 at the beginning of each round, and the bound falls like 1/T. With Q = T
                                      and the step of the text, 1/T where L_x = σ = 1: at least (1 − e⁻²)/4 = 0.216 on
                                      the left, 10/T + 2/T³ on the right. `iterate`, `rate`
Theorem 2: ∇L = 0 in z          yes   From the first round on, as it says; before it if the server begins with means.
The rate with Q = T             no    The last term is 4 L Δ/T³, not 2 L Δ/T³; the order, 1/T, is right. `rate`
Lemma 1: L_x and C_x            yes   They may be smaller: max p (a + μ), and μ (Σ p²)^½. `Quadratic`
Lemma 1: strong convexity in z  yes   By constraint (19), every row matched, which is part of Range(y), so it may be
                                      assumed. But no step of Algorithm 2 or 3 ensures it: three rows, clients of two
                                      neurons. `iterate`
(22b) by the Hungarian method   if    Rows are compared by all their weights, with the server's as they are. Eq. (20)
                                      leaves the distance open, and compares with the mean of the others.
Algorithm 2 lowers (11)         no    Clients (0, 1), (2, 0) and (0, 3): from 11/3 to 4, all at once. A test of
                                      `hetfl_core.matching` has it, and two more, one by one.
… by the exact cost, in turn    yes   Block-coordinate descent; 4 000 random steps in the tests.
Remark 3.1: FedMA, Sub-FedAvg   if    For FedMA, whose objective has no loss: with clients' weights as they were trained
                                      (6) is its matching. Sub-FedAvg prunes, and matches nothing.
Remark 3.2: FedProx             yes   The whole network in Θ, a common start and the same μ: there is no classifier, and
                                      nothing to match. (The other method named there is cited by the paper of L2GD.)
Remark 3.3: FedAvg for μ → ∞    if    As a problem. By (22a) with a fixed η clients leave every bound once
                                      η p (a + μ) > 2.
Remark 3.4: FedPer              if    As a problem. Algorithm 2, line 2, gives all clients the server's classifier at
                                      the beginning of each round: none of them is personal.
==============================  ====  ==================================================================================

References
----------
.. [1] X. Zhang, W. Yin, T. Chen, M. Hong. Hybrid federated learning for feature & sample heterogeneity: algorithms and
   implementation. TMLR 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetfl_book.theory.statements import table_of
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.matching import Matching, Neurons, assign


def statements() -> pd.DataFrame:
    """The table at the head of this module: columns ``statement``, ``holds`` and ``words``."""
    return table_of(__doc__)


@dataclass(frozen=True)
class Quadratic:
    """Clients whose losses are quadratics around neurons of their own.

    Attributes
    ----------
    centres : ndarray, shape (M, h, D)
        c_m.
    curvatures, weights : ndarray, shape (M,)
        a_m > 0, and p_m > 0, which add up to 1.
    mu : float
        μ > 0.
    """

    centres: NDArray[np.float64]
    curvatures: NDArray[np.float64]
    weights: NDArray[np.float64]
    mu: float

    def __post_init__(self) -> None:
        if np.ndim(self.centres) != 3:
            raise WrongValue(f"centres must have shape (M, h, D), got {np.shape(self.centres)}")
        M = len(self.centres)
        for name in ("curvatures", "weights"):
            value = checks.floats(name, getattr(self, name), 1)
            if value.shape != (M,) or not (value > 0).all():
                raise WrongValue(f"{name} must be {M} positive numbers, one per client, got {value.tolist()}")
        if not math.isclose(float(np.sum(self.weights)), 1.0, rel_tol=1e-9):
            raise WrongValue(f"weights must add up to 1, got {float(np.sum(self.weights)):g}")
        checks.number("mu", self.mu, above=0)

    @property
    def smoothness(self) -> float:
        """L_x: that of the gradient in x, max p_m (a_m + μ). Lemma 1 prints max p_m a_m + μ, which is no less."""
        return float((self.weights * (self.curvatures + self.mu)).max())

    @property
    def coupling(self) -> float:
        """C_x: how fast that gradient changes with z, √(Σ (p_m μ)²). Lemma 1 prints μ, which is no less."""
        return float(self.mu * np.sqrt((self.weights**2).sum()))

    @property
    def convexity(self) -> float:
        """The strong convexity in z that Lemma 1 promises, min p_m μ: where every neuron of the server's is matched."""
        return float(self.mu * self.weights.min())

    @property
    def step(self) -> float:
        """The largest step size of Theorem 2, min(1 / L_x, 8 μ' / (5 C_x²)) with the strong convexity μ'."""
        return min(1 / self.smoothness, 8 * self.convexity / (5 * self.coupling**2))

    def value(self, x: Tensor, places: list[Tensor], z: Tensor) -> float:
        """L at clients' neurons, shape (M, h, D), places and the server's neurons, shape (H, D)."""
        a, p, c = (torch.from_numpy(np.asarray(part)) for part in (self.curvatures, self.weights, self.centres))
        own = a * (x - c).square().sum((1, 2))
        pull = torch.stack([(x[m] - z[mine]).square().sum() for m, mine in enumerate(places)])
        return float((p * (own + self.mu * pull)).sum() / 2)

    def gradient(self, x: Tensor, places: list[Tensor], z: Tensor) -> Tensor:
        """∇_x L, shape (M, h, D)."""
        a, p, c = (torch.from_numpy(np.asarray(part)) for part in (self.curvatures, self.weights, self.centres))
        matched = torch.stack([z[mine] for mine in places])
        return p[:, None, None] * (a[:, None, None] * (x - c) + self.mu * (x - matched))


@dataclass(frozen=True)
class Path:
    """What `iterate` went through.

    Attributes
    ----------
    values : ndarray, shape (T + 1,)
        L after each round, from the beginning.
    left : float
        The left-hand side of Eq. (23): what the theorem bounds.
    gradients : ndarray, shape (T,)
        ‖∇_x L‖² where each round begins.
    """

    values: NDArray[np.float64]
    left: float
    gradients: NDArray[np.float64]


def iterate(
    problem: Quadratic,
    eta: float,
    rounds: int,
    steps: int,
    *,
    sigma: float = 0.0,
    reset: bool = False,
    width: int | None = None,
    seed: int = 0,
) -> Path:
    """Iteration (22) of [1]_, from the clients' own centres; or Algorithm 2, which resets.

    Parameters
    ----------
    problem : Quadratic
    eta : float
        η.
    rounds, steps : int
        T and Q.
    sigma : float
        Standard deviation of the gradient's noise, over all coordinates together.
    reset : bool
        Whether x is the server's at the beginning of each round (Algorithm 2, line 2), which (22) has not.
    width : int, optional
        The server's neurons; by default as many as a client's.
    seed : int
        Of the noise.
    """
    checks.ints(1, rounds=rounds, steps=steps)
    checks.number("eta", eta, above=0)
    checks.number("sigma", sigma, least=0)
    rng = torch.Generator().manual_seed(checks.seed(seed))
    x = torch.from_numpy(np.array(problem.centres, dtype=np.float64))
    M, h, D = x.shape
    width = h if width is None else checks.integer("width", width, h)
    places = [torch.arange(h) for _ in range(M)]
    z = _best(problem, x, places, torch.zeros(width, D, dtype=torch.float64))
    values, gradients, left = [problem.value(x, places, z)], [], 0.0
    for _ in range(rounds):
        if reset:
            x = torch.stack([z[mine] for mine in places])
        gradients.append(float(problem.gradient(x, places, z).square().sum()))
        for _ in range(steps):
            g = problem.gradient(x, places, z)
            left += float(g.square().sum())
            noise = torch.randn(g.shape, generator=rng, dtype=torch.float64) * sigma / math.sqrt(g.numel())
            x = x - eta * (g + noise)
        left += float(problem.gradient(x, places, z).square().sum())  # q = Q
        places = [assign(torch.cdist(z, x[m]).square()) for m in range(M)]  # (22b)
        left += float(problem.gradient(x, places, z).square().sum())
        new = _best(problem, x, places, z)  # (22c)
        left += problem.convexity / eta * float((new - z).square().sum())
        z = new
        values.append(problem.value(x, places, z))
    return Path(np.array(values), left / (rounds * steps), np.array(gradients))


def _best(problem: Quadratic, x: Tensor, places: list[Tensor], before: Tensor) -> Tensor:
    """The z that minimises L; rows without a neuron as they were."""
    held = torch.ones(x.shape[-1], dtype=torch.float64)
    neurons = [Neurons(mine, held, float(p)) for mine, p in zip(x, problem.weights, strict=True)]
    return Matching(neurons, places, len(before)).rows(before)


def bound(gap: float, eta: float, rounds: int, steps: int, smoothness: float, sigma: float) -> float:
    r"""The right-hand side of Eq. (23), :math:`\frac{10}{TQ\eta}\Delta + (5L\eta + \frac{2L^2\eta^2}{Q})\sigma^2`.

    Parameters
    ----------
    gap : float
        Δ, what L is above its lower bound at the beginning.
    eta, rounds, steps, smoothness, sigma
        η, T, Q, L_x, σ.
    """
    noise = (5 * smoothness * eta + 2 * smoothness**2 * eta**2 / steps) * sigma**2
    return 10 * gap / (rounds * steps * eta) + noise


def paid(steps: int) -> dict[str, Fraction]:
    r"""Which share of the descent (24), taken twice and over all rounds, pays each term on the left of Eq. (23).

    Write :math:`g_{t,q}` for :math:`\nabla_x \mathcal{L}` before step q of round t, and :math:`L_t` for the objective.
    Twice (24) is worth :math:`\eta\|g_{t,q}\|^2` for each q < Q and :math:`\mu\|z^{t+1} - z^t\|^2`, for
    :math:`2(L_t - L_{t+1})` and noise. Eq. (23), times η/5, asks for η/5 of each gradient and μ/5 of the server's step.
    By (32) :math:`\|g_{t,Q}\|^2 \le 4\|g_{t,Q-1}\|^2` and noise; by (33) the last gradient is at most
    :math:`2 C_x^2 \|z^{t+1} - z^t\|^2 + 2\|g_{t+1,0}\|^2`, which belongs to the round that follows, and where none
    follows :math:`\|g_{T,0}\|^2 \le 2 L_x (L_T - \underline{\mathcal{L}})`. At the largest η, 1/L_x and 8 μ/(5 C_x²),
    each is paid in full if none of these shares is above 1; noise then adds up to that of (23).

    Parameters
    ----------
    steps : int
        Q.

    Returns
    -------
    dict of str to Fraction
        Of ``"q = 0"``, ``"q = Q - 1"`` (one term where Q = 1), ``"0 < q < Q - 1"``, ``"z"``, and ``"L_T"``: what is
        needed of :math:`2(L_T - \underline{\mathcal{L}})`, which :math:`2(L_0 - L_T)` leaves.
    """
    checks.integer("steps", steps, 1)
    fifth = Fraction(1, 5)
    first, last = fifth + 2 * fifth, fifth + 4 * fifth
    gradients = {"q = 0": first, "q = Q - 1": last, "0 < q < Q - 1": fifth}
    if steps == 1:
        gradients = {"q = 0": first + 4 * fifth}
    return {**gradients, "z": fifth + fifth * 2 * Fraction(8, 5), "L_T": 2 * fifth}


def rate(gap: float, rounds: int, smoothness: float, sigma: float) -> float:
    """What it becomes: the last term is 4 L Δ / T³."""
    return 10 * sigma * math.sqrt(2 * gap * smoothness) / rounds + 4 * smoothness * gap / rounds**3
