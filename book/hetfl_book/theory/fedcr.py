r"""FedCR's statements [1]_, each as functions that can be evaluated: which hold as printed, and what holds instead.

Information is in nats unless a name says bits; everything is float64. z is a feature, :math:`x_i` a client's data,
:math:`x = (x_1, \ldots, x_m)` everybody's, y the label; Λ = 1/Σ are precisions, :math:`\Lambda_0` that of the prior.
In the table "yes" is *holds as printed*, "if" *holds under a condition that is not printed*, "no" *does not hold*.

==============================  ====  ==================================================================================
Statement                       Hold  What is right, or the smallest counterexample
==============================  ====  ==================================================================================
Lemma 4.1, Eq. (5)              if    y → x_i → z, as its proof has it (A1). Under the printed y → x → z the right side
                                      is larger by I(z; y | x_i): for x_1 constant and z = x_2 = y, a fair coin, the
                                      left side is 0, the right side 1 bit. `discrete_alignment`
… for an encoder q(z | x_i)     no    The right side is an upper bound, larger by E KL[p(z|x_i) ‖ q(z|x_i)].
I_i(z; x_i|y) ≤ I(z; x|y)       if    One joint law of x, y, z. For own encoders and their product with a prior it turns
                                      round where data are independent given y: m = 2, Λ = Λ_0 = 1: 0.5 against 0.368
                                      bits. `product_information`
4.1: FedPAC a special case      if    Both variances are one fixed σ²: (21) is ‖m − μ‖²/2σ² then, β/2σ² FedPAC's weight.
                                      FedCR's σ is learned; for σ → 0 there is no limit.
I_c = 0: common features        if    Clients that depend on each other given y; else nothing is left.
Eq. (15)                        yes   τ is the normaliser and changes nothing.
… with τ = 1                    if    Data independent, and given z too: z = x_1 + x_2 + ε is no example.
Lemma 4.2, Eqs. (6), (17)       if    p(z|x_i) means p(x_i|z), normalised: (16) redefines it. With posteriors the prior
                                      counts m + 1 times: for m = 2 and likelihoods N(x_i, 1), Λ = 5 for 3.
                                      `gaussian_product`
Eq. (7) ≈ the regulariser       no    One joint per class, not one per tuple: for one client the regulariser is 0, the
                                      term with n copies of a sample ½ (ln n + 1/n − 1) per dimension.
                                      `alignment_term`
Eq. (8), lines 16–18            if    Samples are independent sightings of one z. n copies are one, and get Σ/n for Σ;
                                      features that follow vanish as n^−t. `effective_samples`, `collapse`
… as target of (7)              no    The best is the product of experts with exponents 1/n. `pooled_target`
Eq. (9)                         no    N(0,1) counts once per participant, in (16) and Algorithm 2 once.
                                      `gaussian_product`
z = ε Σ + μ                     no    z = ε Σ^½ + μ. For Σ = ¼ the variance of z is 1/16.
4.2: MoE not sharper            if    Than the *sharpest* expert: variances 1 and 9 mix to 5.
4.2: PoE much sharper           if    Gaussians; others may be blunter than an expert.
Eq. (21)                        yes   It is the divergence of two Gaussians, term by term.
4.3: FedPer for β = 0, Σ = 0    if    FedPer's body has one more linear layer.
Theorem 5.1, Eq. (10)           if    0–1 loss, two classes; d, λ and risks in one feature space, else the claim can
                                      read 1 ≤ 0 + 0 + 0 + 0.65 (n = 100), which is false. ½ d is enough: the printed
                                      bound is the weaker one.
… λ of an empirical risk        if    The root covers two deviations (`deviation`). Without it, at n = 1, it fails with
                                      probability 0.35 where the expected λ of [2]_ never does.
… d(D'_i, D) < d(D_i, D)        no    Assumed. For equal clients it would say 0 < 0. Skewed labels: alignment by class
                                      raises d from 0 to 1. And where d falls from 2 to 0, λ may rise from 0 to 1.
                                      `divergence`, `ideal_risk`
… informs about Section 6       no    The root alone is 2.3 at n = 420, V = 256 (d = 257), m = 10. `deviation`
6.2: 4 and 7 bits               no    log2 C = 3.32 and 6.64; of a client's labels log2 5 = 2.32 (log2 15 = 3.91).
                                      `fano_bits`
6.2: few dimensions, few bits   no    V/2 log2(1 + snr): one holds 100 classes at error 1e-4. `grid_error`
A.1.2: two layers equal one     if    V ≥ C: two layers have rank V at most. In a federation one is shared, one local.
A.2.1: 2 794 852 parameters     no    Table 6: 3 346 852 (V = 256), 3 897 252 (V = 512). Table 5: 2 898 852; 2 806 602
                                      for ten classes; 2 796 352, the nearest, without its last layer.
A.2.1: 51 200 numbers           yes   2 V C to a client, which sends 2 V per class of its own.
==============================  ====  ==================================================================================

References
----------
.. [1] H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong. FedCR: personalized federated learning based on across-client common
   representation with conditional mutual information regularization. ICML 2023.
.. [2] S. Ben-David, J. Blitzer, K. Crammer, F. Pereira. Analysis of representations for domain adaptation. NeurIPS
   2006.
.. [3] D. Palomar, S. Verdú. Lautum information. IEEE Transactions on Information Theory, 54,
   2008.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from hetfl_book.theory.statements import table_of
from hetfl_core import checks
from hetfl_core.distances import gaussian_kl
from hetfl_core.errors import WrongValue

Array = NDArray[np.float64]


def statements() -> pd.DataFrame:
    """The table at the head of this module.

    Returns
    -------
    DataFrame
        Columns ``statement``, ``holds`` (``"yes"``, ``"if"`` or ``"no"``) and ``words``, what is right or the smallest
        counterexample, with the functions that say so.
    """
    return table_of(__doc__)


# --- Lemma 4.1: local and global information --------------------------------------------------------------------------


def discrete_cmi(p: ArrayLike, a: Sequence[int], b: Sequence[int], given: Sequence[int] = ()) -> float:
    """I(A; B | C) in nats of a table of probabilities, whose axes are the variables."""
    table = _table(p)
    a, b, given = (_variables(name, value, table.ndim) for name, value in (("a", a), ("b", b), ("given", given)))
    ratio = np.ones_like(table)
    for axes, sign in (((*a, *b), 1), ((), 1), (a, -1), (b, -1)):
        marginal = _marginal(table, {*axes, *given})
        ratio = ratio * np.where(marginal > 0, marginal, 1) ** sign
    return float((table * np.log(ratio)).sum())


@dataclass(frozen=True)
class AlignmentSides:
    """The two sides of Eq. (5), in nats.

    Attributes
    ----------
    joint, local : float
        I(z; x | y) and I(z; x_i | y).
    divergence, given_label : float
        E KL[p(z | x) ‖ p(z | x_i)], the printed right side, and E KL[p(z | x) ‖ p(z | x_i, y)], the right one.
    """

    joint: float
    local: float
    divergence: float
    given_label: float

    @property
    def difference(self) -> float:
        """The left side, I(z; x | y) − I(z; x_i | y)."""
        return self.joint - self.local


def discrete_alignment(p: ArrayLike, encoder: ArrayLike | None = None) -> AlignmentSides:
    """Eq. (5) of [1]_ for a table p(y, x_i, the others' data, z).

    Parameters
    ----------
    p : array_like, shape (Y, X, O, Z)
        Probabilities, of sum 1; y → x → z, or a ValueError.
    encoder : array_like, shape (X, Z), optional
        A client's own q(z | x_i) in the place of p(z | x_i), positive where z can occur. `divergence` is then larger
        by E KL[p(z | x_i) ‖ q(z | x_i)], 0 for the marginal only.
    """
    table = _table(p)
    if table.ndim != 4:
        raise WrongValue(f"p must have four axes (y, x_i, others, z), got shape {table.shape}")
    _check_markov("p", discrete_cmi(table, [0], [3], [1, 2]))
    x, local, labelled = (_conditional(table, keep) for keep in ((1, 2), (1,), (0, 1)))
    if encoder is not None:
        local = checks.floats("encoder", encoder, 2)[None, :, None, :]
        if local.shape[1::2] != table.shape[1::2] or not np.allclose(local.sum(-1), 1) or (local < 0).any():
            raise WrongValue(
                f"encoder must have rows of probabilities of z, one a value of x_i, got {checks.shown(encoder)}"
            )
    joint, own = discrete_cmi(table, [3], [1, 2], [0]), discrete_cmi(table, [3], [1], [0])
    return AlignmentSides(joint, own, _expected_log_ratio(table, x, local), _expected_log_ratio(table, x, labelled))


def product_information(
    precision: float, m: int, correlation: float = 0.0, variance: float = 1.0, prior: float = 1.0
) -> tuple[float, float]:
    r"""I(z_i; x_i) of a client's encoder N(x_i, 1/Λ), and I(z; x) of the product of m of them with a prior; nats.

    .. math:: \tfrac12 \ln(1 + \Lambda v), \qquad \tfrac12 \ln\Bigl(1 + \frac{\Lambda^2 m v (1 + (m-1)\rho)}{\Lambda_0
        + m \Lambda}\Bigr)

    The second is the smaller one, against the corollary of Lemma 4.1, where :math:`\Lambda v` is any and
    :math:`\Lambda m (m-1) \rho < \Lambda_0`; without a prior and with ρ = 0 they are equal.

    Parameters
    ----------
    precision, prior : float
        Λ > 0 and Λ_0 ≥ 0, of one dimension.
    m : int
        Clients.
    correlation, variance : float
        ρ in [0, 1] of any two clients' data within the class, and v > 0 of each.
    """
    precision = checks.number("precision", precision, above=0)
    variance = checks.number("variance", variance, above=0)
    prior, m = checks.number("prior", prior, 0), checks.integer("m", m, 1)
    ratio = 1 / (1 + prior / (m * precision))
    spread = precision * variance * (1 + (m - 1) * checks.number("correlation", correlation, 0, 1))
    return 0.5 * math.log1p(precision * variance), 0.5 * math.log1p(spread * ratio)


# --- Lemma 4.2, Eqs. (6)-(9), (15)-(17), (21): products of experts ----------------------------------------------------


def gaussian_product(
    means: ArrayLike, precisions: ArrayLike, prior_mean: float = 0.0, prior: float = 1.0, times: float = 1
) -> tuple[Array, Array]:
    r"""Mean and precision of :math:`p(z)^t \prod_i N(\mu_i, 1/\Lambda_i)`, normalised.

    With posteriors as experts, t = 1 − m is Eq. (15), the true joint posterior, and t = 1 is Eq. (6) as printed. With
    normalised likelihoods, t = 1 is Eq. (16), the truth. In Algorithm 2 t = 1, in Eq. (9) t is the number of factors.

    Parameters
    ----------
    means, precisions : array_like, shape (m, V)
        Precisions positive.
    prior_mean, prior, times : float
        Mean and precision Λ_0 > 0 of p(z); t, negative to divide.

    Returns
    -------
    mean, precision : ndarray, shape (V,)

    Raises
    ------
    ValueError
        If the result is no distribution: more of the prior is taken out than the experts hold.
    """
    mu, precision = _experts(means, precisions, "precisions")
    weight = checks.number("times", times) * checks.number("prior", prior, above=0)
    prior_mean = checks.number("prior_mean", prior_mean)
    total = precision.sum(0) + weight
    if not (total > 0).all():
        raise WrongValue(
            f"the precisions must have a positive sum with times={times:g} of the prior, got {checks.shown(total)}: "
            "experts hold less than the prior"
        )
    return ((precision * mu).sum(0) + weight * prior_mean) / total, total


def effective_samples(n: int, correlation: float) -> float:
    """How many independent sightings n sightings with equally correlated noise are worth, n / (1 + (n − 1) ρ).

    Eq. (8) of [1]_ counts n for all ρ: right for ρ = 0, and n times too many for n copies, ρ = 1.
    """
    return checks.integer("n", n, 1) / (1 + (n - 1) * checks.number("correlation", correlation, 0, 1))


def collapse(n: int, rounds: int, variance: float = 1.0, prior: float = 1.0) -> Array:
    r"""Variances round by round of n samples' features that follow their product exactly, shape (rounds + 1,).

    :math:`\Lambda_{t+1} = \Lambda_0 + n \Lambda_t`, by Algorithm 2 of [1]_: no fixed point for n ≥ 1 and Λ_0 > 0, and
    variance/n^t at most. What keeps variances up is that samples' means differ: the cheapest one is v + (m − μ)².
    """
    precisions = [1 / checks.number("variance", variance, above=0)]
    checks.integer("n", n, 1)
    checks.memory(40 * checks.integer("rounds", rounds, 0), rounds=rounds)
    prior = checks.number("prior", prior, 0)
    for _ in range(rounds):
        precisions.append(prior + n * precisions[-1])
    return 1 / np.array(precisions, dtype=float)


def alignment_term(means: ArrayLike, variances: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """The term of Eq. (7) of [1]_ for one class: the mean over samples of KL[joint ‖ sample's feature], in nats.

    Where the joint is the law of z in the class it is the lautum information of z and x [3]_, not the regulariser
    I(z; x | y) − I(z; x_i | y), which is 0 with one client.

    Diagonal Gaussians: samples of shapes (n, V), the joint of shapes (V,).
    """
    samples = _experts(means, variances, "variances")
    joint = [checks.floats(*pair, 1) for pair in (("mean", mean), ("variance", variance))]
    for name, found in zip(("mean", "variance"), joint, strict=True):
        if found.shape != samples[0].shape[1:] or (name == "variance" and not (found > 0).all()):
            kind = "positive numbers" if name == "variance" else "numbers"
            raise WrongValue(f"{name} must be {samples[0].shape[1]} {kind}, as means, got {checks.shown(found)}")
    return float(gaussian_kl(*map(torch.from_numpy, (*joint, *samples))).mean())


def pooled_target(means: ArrayLike, variances: ArrayLike) -> tuple[Array, Array]:
    r"""The joint that minimises `alignment_term`, :math:`\propto \prod_n p(z \mid x^{(n)})^{1/n}`: mean and variance.

    Its mean is that of Eq. (8); its precision the samples' mean where Eq. (8) has their sum. Shapes (n, V) → (V,).
    """
    mu, v = _experts(means, variances, "variances")
    total = (1 / v).sum(0)
    return (mu / v).sum(0) / total, len(v) / total


# --- Theorem 5.1: a bound by domain adaptation, on finite domains -----------------------------------------------------


def risks(hypotheses: ArrayLike, law: ArrayLike) -> Array:
    """ε(h), the probability of an error: hypotheses (H, Z) of 0 and 1, a law p(y, z) of shape (2, Z) → (H,)."""
    h = _hypotheses(hypotheses)
    return _risks(h, _law("law", law, h))


def _risks(h: Array, p: Array) -> Array:
    return h @ p[0] + (1 - h) @ p[1]


def divergence(hypotheses: ArrayLike, p: ArrayLike, q: ArrayLike) -> float:
    r"""d_HΔH, twice the largest of :math:`|P(h \ne h') - Q(h \ne h')|`: (H, Z), and laws p(z), q(z) of shape (Z,)."""
    h = _hypotheses(hypotheses)
    apart = np.abs(h[:, None] - h[None])
    return 2 * float(np.abs(apart @ (_law("p", p, h, "z of") - _law("q", q, h, "z of"))).max())


def ideal_risk(hypotheses: ArrayLike, source: ArrayLike, target: ArrayLike) -> float:
    """λ, the least of ε_source(h) + ε_target(h). (As printed, the minimum is over h of what depends on h_i.)"""
    h = _hypotheses(hypotheses)
    return float((_risks(h, _law("source", source, h)) + _risks(h, _law("target", target, h))).min())


def deviation(n: int, d: int, m: int, delta: float) -> float:
    r"""The root of Eq. (10), :math:`\sqrt{\tfrac4n (d \ln\tfrac{2en}{d} + \ln\tfrac{4m}{\delta})}`.

    That of Theorem 1 of [2]_ with δ/m for each of m clients, a union bound; n samples of a client, VC dimension d ≤ 2n.
    For up to (2en/d)^{2d} hypotheses two of Hoeffding's deviations fit into it, which the printed λ needs.
    """
    checks.ints(1, n=n, d=d, m=m)
    if 2 * n < d:
        raise WrongValue(f"n and d must have 2n >= d, got n={n} and d={d}")
    confidence = math.log(4 * m) - math.log(checks.fraction("delta", delta, "(0, 1)"))
    return math.sqrt(4 / n * (d * math.log(2 * math.e * n / d) + confidence))


# --- Section 6 and Appendix A.2: bits and sizes -----------------------------------------------------------------------


def fano_bits(classes: int, error: float = 0.0) -> float:
    """Least I(x; z) in bits with which C equally frequent classes can be told at this error (Fano), never negative.

    log2 C at no error; 0 where guessing does as well, at 1 − 1/C.
    """
    C, e = checks.integer("classes", classes, 2), checks.fraction("error", error, "[0, 1]")
    certain = sum(p * math.log2(p) for p in (e, 1 - e) if p)
    return math.log2(C) + certain - e * math.log2(C - 1) if e < 1 - 1 / C else 0.0


def grid_error(classes: int, spacing: float) -> float:
    """Error of telling C classes at equal distances on a line, 2 (1 − 1/C) Q(spacing/2): one dimension is enough.

    The spacing is in standard deviations of a feature. The nearest of the means 0, s, 2s … is what a linear head with
    the logits c s z − (c s)²/2 takes.
    """
    C, s = checks.integer("classes", classes, 2), checks.number("spacing", spacing, 0)
    return (1 - 1 / C) * math.erfc(s / 2 / math.sqrt(2))


# --- Small parts ------------------------------------------------------------------------------------------------------


def _variables(name: str, value: Sequence[int], number: int) -> list[int]:
    """Places in 0…number − 1."""
    return [checks.integer(f"each of {name}", i, 0, number - 1) for i in checks.sequence(name, value)]


def _check_markov(name: str, information: float) -> None:
    if information > 1e-9:
        raise WrongValue(f"{name} must have a Markov chain y → x → z, got I(y; z | x) = {information:.3g} nats")


def _table(p: ArrayLike) -> Array:
    table = checks.floats("p", p)
    if (table < 0).any() or not math.isclose(table.sum(), 1, abs_tol=1e-9):
        raise WrongValue(f"p must hold probabilities of sum 1, got the sum {table.sum():.6g}")
    return table


def _marginal(table: Array, keep: set[int]) -> Array:
    """Summed over the other axes, which stay with length 1."""
    return table.sum(tuple(i for i in range(table.ndim) if i not in keep), keepdims=True)


def _conditional(table: Array, given: Sequence[int]) -> Array:
    """p(z | some), z the last axis; 0 where what is given cannot occur."""
    joint = _marginal(table, {*given, table.ndim - 1})
    total = joint.sum(-1, keepdims=True)
    return joint / np.where(total > 0, total, 1)


def _expected_log_ratio(table: Array, p: Array, q: Array) -> float:
    """E ln p/q; infinite where q excludes what occurs."""
    p, q, seen = np.broadcast_to(p, table.shape), np.broadcast_to(q, table.shape), table > 0
    if (q[seen] == 0).any():
        return math.inf
    return float((table[seen] * np.log(p[seen] / q[seen])).sum())


def _experts(means: ArrayLike, spreads: ArrayLike, name: str) -> tuple[Array, Array]:
    mu, v = checks.floats("means", means, 2), checks.floats(name, spreads, 2)
    if mu.shape != v.shape or not (v > 0).all():
        raise WrongValue(f"{name} must be positive and of the means' shape {mu.shape}, got shape {v.shape}")
    return mu, v


def _hypotheses(hypotheses: ArrayLike) -> Array:
    h = checks.floats("hypotheses", hypotheses, 2)
    if not np.isin(h, (0, 1)).all():
        raise WrongValue(f"hypotheses must be rows of 0 and 1, got {checks.shown(h)}")
    return h


def _law(name: str, law: ArrayLike, h: Array, of: str = "(y, z) of shape (2, Z) and") -> Array:
    """Probabilities of (y, z), shape (2, Z), or of z alone, shape (Z,), over the z of the hypotheses."""
    shape = h.shape[1:] if of == "z of" else (2, h.shape[1])
    p = checks.floats(name, law, len(shape))
    if p.shape != shape or (p < 0).any() or not math.isclose(p.sum(), 1, abs_tol=1e-9):
        raise WrongValue(
            f"{name} must hold probabilities of {of} sum 1, Z={h.shape[1]} as in hypotheses, got {checks.shown(p)}"
        )
    return p
