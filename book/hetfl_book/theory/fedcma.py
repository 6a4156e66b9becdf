r"""Fed-CMA's statements [1]_, each as functions that can be evaluated: which hold as printed, and what holds instead.

Domains are finite: a marginal p_i(z) over points z and a labelling function c_i(z) in [0, 1], the probability of label
1; hypotheses are rows of 0 and 1. d is twice the largest difference of probabilities ([2]_), as B in the theorems needs
it. In the table "yes" is *holds as printed*, "if" *holds under a condition that is not printed*, "no" *does not hold*.

==============================  ====  ==================================================================================
Statement                       Hold  What is right, or the smallest counterexample
==============================  ====  ==================================================================================
Eq. (2), after Zhao et al.      if    The labelling functions are hypotheses ([3]_). Else, on two points, one per client
                                      and labelled alike, the bound would read 1 ≤ 0 + 0 + 0. `theorem_2`
Theorem 1                       no    2A is missing. An extractor may send inputs of both labels to one feature. Clients
                                      that have (0.9, 0.1) and (0.1, 0.9) of the two, with α = 0.9 and 0.1, have B = 0,
                                      and the theorem would read 0.8 ≤ 0; 2A = 1.44. `induced`, `theorem_2`
… A = 0 where u is shared       no    One extractor, and one labelling of the inputs, give a labelling function to each
                                      client: c_i(z) is a mean over its own samples. They are one where the extractor
                                      keeps all that labels depend on; if this one is a hypothesis, too, it is the best
                                      head of all, and there is nothing to bound. `induced`
… the λ term can be avoided     no    Where labelling functions are no hypotheses, Theorems 1 and 2 need it in place of
                                      2A: on the two points above, with α = 0.6 and 0.4, both read 1 ≤ 0. `theorem_2`
Theorem 2                       if    All labelling functions are hypotheses; then also without sampling. `theorem_2`
Aligned classes: A, B small     if    If clients have the same shares of labels, then A = B = 0. For p(z|y) = (0.7, 0.3)
                                      and (0.3, 0.7) on both, but shares of 0.9 and 0.1, E|c_i − c_j| = 0.75 and
                                      d = 0.64. `label_shift`
… by their means                no    Our question: the paper calls means an approximation. Nothing but the mean need
                                      agree: features ±1 and ±2 have mean 0, and can always be told apart.
                                      `two_masses`
Eq. (7) descends (5)            yes   A gradient step on Φ in (v̄, e), where all take part. A test of the method does it.
e stays in [0, 1]               yes   A convex combination while λ2 η ≤ 1, if it begins there.
a has M d_i + 2(d_e + 1)K       no    Σ d_i + (2 d_e + 1) K numbers: a head has a bias, a mean has none. `dimension`
Theorem 3                       no    The noise enters as G2 and not G2². From a = √2 with Φ = a²/2 (linear beyond 2),
                                      noise ±0.1, T = 20 000 and the printed step, 1: 1e-2 where 1e-4 is printed. At
                                      the step 1/C0 no other C0 helps, if it is independent of the noise.
                                      `theorem_3`, `quadratic`
… corrected                     yes   2 C1/(η T) + C0 η G2, least at η = (2 C1/(T C0 G2))^½, where it is
                                      2 (2 C1 C0 G2/T)^½, for η ≤ 1/(C0 (G1 + 1)). `rate`
Numbers sent: O(K M d_e)        yes   (2 d_e + 1) K of each client, and as many to it.
==============================  ====  ==================================================================================

References
----------
.. [1] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
.. [2] S. Ben-David, J. Blitzer, K. Crammer, A. Kulesza, F. Pereira, J. Vaughan. A theory of learning from different
   domains. Machine Learning, 79, 2010.
.. [3] H. Zhao, R. Tachet des Combes, K. Zhang, G. Gordon. On learning invariant representations for domain adaptation.
   ICML 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from hetfl_book.theory.fedcr import divergence, ideal_risk, risks
from hetfl_book.theory.statements import table_of
from hetfl_core import checks
from hetfl_core.errors import WrongValue

Array = NDArray[np.float64]


def statements() -> pd.DataFrame:
    """The table at the head of this module: columns ``statement``, ``holds`` and ``words``."""
    return table_of(__doc__)


# --- Theorems 1 and 2: what a head of all clients costs one of them ---------------------------------------------------


@dataclass(frozen=True)
class Bound:
    r"""The two sides of Theorem 2 with endless samples; Theorem 1 has no A.

    Attributes
    ----------
    gap : float
        L_j(v̂) − L_j(v_j*): what the best head of all costs client j, over its own best; of equally good ones the worst.
    A, B : float
        The theorem's terms; it says that gap ≤ 2A + B, and Theorem 1 that gap ≤ B.
    ideal : float
        :math:`2 \sum_i \alpha_i \lambda_{ij}`, λ the least sum of the risks of i and j: what has to be added to B
        where labelling functions are not hypotheses.
    """

    gap: float
    A: float
    B: float
    ideal: float

    @property
    def printed(self) -> float:
        """2A + B."""
        return 2 * self.A + self.B

    @property
    def corrected(self) -> float:
        """B + 2 Σ α_i λ_ij, which holds whatever the labelling functions are."""
        return self.B + self.ideal


def theorem_2(hypotheses: ArrayLike, marginals: ArrayLike, labelling: ArrayLike, alpha: ArrayLike, j: int) -> Bound:
    r"""Both sides of Theorem 2 for clients that are finite domains.

    Theorem 1 speaks of clients with one extractor, whose marginals and labelling functions `induced` gives.

    Parameters
    ----------
    hypotheses : array_like of 0 and 1, shape (H, Z)
        What each head says of each point.
    marginals : array_like, shape (M, Z)
        p_i(z) of each client.
    labelling : array_like, shape (M, Z) or (Z,)
        c_i(z), or one of all.
    alpha : array_like, shape (M,)
        Weights of sum 1.
    j : int
        The target, 0 … M − 1.

    Raises
    ------
    ValueError
        If shapes do not fit, or what should be probabilities is none.
    """
    p, said = checks.floats("marginals", marginals, 2), checks.floats("hypotheses", hypotheses, 2)
    if p.shape[1] != said.shape[1] or (p < 0).any() or not np.allclose(p.sum(1), 1):
        raise WrongValue(
            f"marginals must be rows of probabilities of sum 1, one for each of the {said.shape[1]} points of "
            f"hypotheses, got {checks.shown(marginals)}"
        )
    c = checks.floats("labelling", labelling)
    if c.shape not in (p.shape, p.shape[1:]) or (c < 0).any() or (c > 1).any():
        shapes = f"{p.shape} or ({p.shape[1]},)"
        raise WrongValue(
            f"labelling must hold numbers in [0, 1] of shape {shapes}, as marginals has, got {checks.shown(labelling)}"
        )
    c = np.broadcast_to(c, p.shape)
    weights = checks.floats("alpha", alpha, 1)
    if weights.shape != (len(p),) or (weights < 0).any() or not math.isclose(weights.sum(), 1, abs_tol=1e-9):
        raise WrongValue(f"alpha must be {len(p)} weights of sum 1, one per client, got {checks.shown(alpha)}")
    checks.integer("j", j, 0, len(p) - 1)
    laws = [np.stack([(1 - c[i]) * p[i], c[i] * p[i]]) for i in range(len(p))]
    each = np.stack([risks(hypotheses, law) for law in laws])
    together = weights @ each
    best = np.flatnonzero(together <= together.min() + 1e-12)
    gap = float(each[j][best].max() - each[j].min())
    apart = [min(float(p[i] @ abs(c[i] - c[j])), float(p[j] @ abs(c[i] - c[j]))) for i in range(len(p))]
    d = [divergence(hypotheses, p[i], p[j]) for i in range(len(p))]
    ideal = [ideal_risk(hypotheses, laws[i], laws[j]) for i in range(len(p))]
    return Bound(gap, float(weights @ apart), float(weights @ d), 2 * float(weights @ ideal))


def induced(extractor: Sequence[int], marginals: ArrayLike, labelling: ArrayLike) -> tuple[Array, Array]:
    r"""What clients with one extractor have in the latent space: p_i(z), and c_i(z) = E[c(x) | g(x) = z] over p_i.

    Parameters
    ----------
    extractor : sequence of int, length X
        g: the latent point to which each input goes, one of 0 … X − 1; Z is the largest, and one.
    marginals : array_like, shape (M, X)
        p_i(x) of each client.
    labelling : array_like, shape (X,)
        c(x), the probability of label 1, one function of all clients.

    Returns
    -------
    ndarray, shape (M, Z)
        p_i(z).
    ndarray, shape (M, Z)
        c_i(z). Where a client has no samples nothing depends on it, and it is the mean over all clients.

    Raises
    ------
    ValueError
        If shapes do not fit, or what should be probabilities is none.
    """
    points = checks.sequence("extractor", extractor)
    g = np.array([checks.integer("extractor", z, 0, len(points) - 1) for z in points], np.int64)
    p, c = checks.floats("marginals", marginals, 2), checks.floats("labelling", labelling, 1)
    if p.shape[1:] != g.shape or c.shape != g.shape:
        raise WrongValue(
            f"marginals and labelling must have a number for each of the {len(g)} inputs of extractor, got shapes "
            f"{p.shape} and {c.shape}"
        )
    if (p < 0).any() or not np.allclose(p.sum(1), 1):
        raise WrongValue(f"marginals must be rows of probabilities of sum 1, got {checks.shown(marginals)}")
    if (c < 0).any() or (c > 1).any():
        raise WrongValue(f"labelling must hold numbers in [0, 1], got {checks.shown(labelling)}")
    cells = np.eye(g.max() + 1)[g]  # X × Z
    mass, ones = p @ cells, (p * c) @ cells
    pooled = np.divide(ones.sum(0), mass.sum(0), out=np.zeros(cells.shape[1]), where=mass.sum(0) > 0)
    return mass, np.divide(ones, mass, out=np.broadcast_to(pooled, mass.shape).copy(), where=mass > 0)


def label_shift(conditionals: ArrayLike, share: float, other: float) -> tuple[float, float]:
    r"""Two clients whose features agree class by class, with other shares of label 1: their E|c_i − c_j| and d.

    Parameters
    ----------
    conditionals : array_like, shape (2, Z)
        p(z | y) of both.
    share, other : float
        p(y = 1) of the one and of the other, in [0, 1].

    Returns
    -------
    float
        The smaller of the two expectations, as in A.
    float
        d over all sets of points, :math:`\sum_z |p_i(z) - p_j(z)|`.
    """
    q = checks.floats("conditionals", conditionals, 2)
    if len(q) != 2 or (q < 0).any() or not np.allclose(q.sum(1), 1):
        raise WrongValue(f"conditionals must be two rows of probabilities of sum 1, got {checks.shown(conditionals)}")
    marginals, labels = [], []
    for name, value in (("share", share), ("other", other)):
        s = checks.number(name, value, 0, 1)
        marginals.append((1 - s) * q[0] + s * q[1])
        labels.append(np.divide(s * q[1], marginals[-1], out=np.zeros(q.shape[1]), where=marginals[-1] > 0))
    seen = (marginals[0] > 0) & (marginals[1] > 0)
    away = abs(labels[0] - labels[1]) * seen
    return float(min(m @ away for m in marginals)), float(abs(marginals[0] - marginals[1]).sum())


def two_masses(scale: float, other: float) -> tuple[float, float]:
    """Features ±`scale` of one client and ±`other` of another, equally likely: difference of their means, and d."""
    values = [checks.number("scale", scale, above=0), checks.number("other", other, above=0)]
    points = sorted({sign * value for sign in (-1, 1) for value in values})
    p, q = (np.array([abs(z) == value for z in points]) / 2 for value in values)
    return float(abs((p - q) @ np.array(points))), float(abs(p - q).sum())


def dimension(bodies: Sequence[int], d_e: int, K: int) -> int:
    """Variables of Φ: all bodies u_i and heads v_i, the server's head v̄ and its means e.

    Parameters
    ----------
    bodies : sequence of int
        Numbers in each u_i.
    d_e, K : int
        Latent dimension, and classes.
    """
    checks.ints(1, d_e=d_e, K=K)
    head = (d_e + 1) * K
    return sum(checks.integer("bodies", n, 0) + head for n in checks.sequence("bodies", bodies)) + head + d_e * K


# --- Theorem 3: the rate ----------------------------------------------------------------------------------------------


def _check_constants(T: int, c0: float, c1: float, g2: float) -> None:
    checks.integer("T", T, 1)
    for name, value in (("c0", c0), ("c1", c1), ("g2", g2)):
        checks.number(name, value, above=0)


def theorem_3(T: int, c0: float, c1: float, g2: float) -> tuple[float, float]:
    """The printed step, (2 C1/(T C0 G2²))^½, and the printed bound of min E‖∇Φ‖², (2 C1 C0 G2²/T)^½."""
    _check_constants(T, c0, c1, g2)
    return math.sqrt(2 * c1 / (T * c0)) / g2, math.sqrt(2 * c1 * c0 / T) * g2


def rate(T: int, c0: float, c1: float, g2: float, g1: float = 0.0, eta: float | None = None) -> tuple[float, float]:
    r"""A step and the bound of min E‖∇Φ‖² that it gives: 2 C1/(η T) + C0 η G2.

    Smoothness, and noise of variance at most G1‖∇Φ‖² + G2, give

    .. math::
       E\Phi_{t+1} \le E\Phi_t - \eta \Big(1 - \frac{C_0 \eta (1 + G_1)}{2}\Big) E\|\nabla\Phi_t\|^2
       + \frac{C_0 \eta^2}{2} G_2,

    whose bracket is at least ½ for :math:`\eta \le 1/(C_0 (1 + G_1))`; the sum over t is the bound.

    Parameters
    ----------
    T : int
        Steps.
    c0, c1 : float
        Smoothness of Φ, and Φ at the beginning over its least.
    g2, g1 : float
        Of the noise.
    eta : float, optional
        By default the best that is allowed.

    Raises
    ------
    ValueError
        For a step that is too long, or none that is above 0.
    """
    _check_constants(T, c0, c1, g2)
    most = 1 / (c0 * (1 + checks.number("g1", g1, 0)))
    step = min(math.sqrt(2 * c1 / (T * c0 * g2)), most) if eta is None else checks.number("eta", eta, above=0)
    if step > most:
        raise WrongValue(f"eta must be at most 1/(c0 (g1 + 1)) = {most:g}, got {step:g} with c0={c0:g} and g1={g1:g}")
    if not step > 0:
        raise WrongValue(f"c0, c1, g2 and g1 must leave a step above 0, got {c0:g}, {c1:g}, {g2:g} and {g1:g}")
    return step, 2 * c1 / (step * T) + c0 * step * g2


def quadratic(T: int, eta: float, c0: float, start: float, g2: float) -> Array:
    """E‖∇Φ‖² of Φ(a) = C0 a²/2 before each of T stochastic gradient steps with noise of variance G2, exactly.

    Returns
    -------
    ndarray, shape (T,)
        C0² E a_t², where E a_{t+1}² = (1 − η C0)² E a_t² + η² G2.
    """
    checks.integer("T", T, 1)
    checks.memory(8 * T, T=T)
    eta, c0 = checks.number("eta", eta, 0), checks.number("c0", c0, 0)
    g2, a, found = checks.number("g2", g2, 0), checks.number("start", start), []
    try:
        square = a**2
        for _ in range(T):
            found.append(c0**2 * square)
            square = (1 - eta * c0) ** 2 * square + eta**2 * g2
    except OverflowError as error:
        raise WrongValue(
            f"eta, c0, start and g2 must leave numbers that a float can hold, got {eta:g}, {c0:g}, {a:g} and {g2:g}"
        ) from error
    return np.array(found)
