r"""FedCR's statements [1]_, each as functions that can be evaluated: which hold as printed, and what holds instead.

Information is in nats unless a name says bits; everything is float64. z is a feature, :math:`x_i` a client's data,
:math:`x = (x_1, \ldots, x_m)` everybody's, y the label; Λ = 1/Σ are precisions, :math:`\Lambda_0` that of the prior.
In the table "yes" is *holds as printed*, "if" *holds under a condition that is not printed*, "no" *does not hold*.

==============================  ====  ==================================================================================
Statement                       Hold  What is right, or the smallest counterexample
==============================  ====  ==================================================================================
Lemma 4.1, Eq. (5)              if    y → x_i → z, as its proof has it (A1). Under the printed y → x → z the right side
                                      is larger by I(z; y | x_i): for x_1 constant and z = x_2 = y, a fair coin, the
                                      left side is 0, the right side 1 bit. `discrete_alignment`, `gaussian_alignment`
… for an encoder q(z | x_i)     no    The right side is an upper bound, larger by E KL[p(z|x_i) ‖ q(z|x_i)].
I_i(z; x_i|y) ≤ I(z; x|y)       if    One joint law of x, y, z. For own encoders and their product with a prior it turns
                                      round where data are independent given y: m = 2, Λ = Λ_0 = 1: 0.5 against 0.368
                                      bits. `product_information`
I_c = 0: common features        if    Clients that depend on each other given y; else nothing is left. `least_gap`
Eq. (15)                        yes   τ is the normaliser and changes nothing. `discrete_posteriors`
… with τ = 1                    if    Data independent, and given z too: z = x_1 + x_2 + ε is no example. `gaussian_cmi`
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
z = ε Σ + μ                     no    z = ε Σ^½ + μ. For Σ = ¼ the variance of z is 1/16. `draw_mismatch`
4.2: MoE not sharper            if    Than the *sharpest* expert: variances 1 and 9 mix to 5. `mixture_moments`
4.2: PoE much sharper           if    Gaussians; others may be blunter than an expert. `discrete_product`
Eq. (21)                        yes   `printed_kl`
Theorem 5.1, Eq. (10)           if    0–1 loss, two classes; d, λ and risks in one feature space, else the claim can
                                      read 1 ≤ 0 + 0 + 0 + 0.65 (n = 100), which is false. ½ d is enough: the printed
                                      bound is the weaker one. `theorem_5_1`
… λ of an empirical risk        if    The root covers two deviations (`deviation`). Without it, at n = 1, it fails with
                                      probability 0.35 where the expected λ of [2]_ never does. `failure_probability`
… d(D'_i, D) < d(D_i, D)        no    Assumed. For equal clients it would say 0 < 0. Skewed labels: alignment by class
                                      raises d from 0 to 1. And where d falls from 2 to 0, λ may rise from 0 to 1.
                                      `divergence`, `ideal_risk`
… informs about Section 6       no    The root alone is 2.3 at n = 420, V = 256 (d = 257), m = 10. `deviation`
6.2: 4 and 7 bits               no    log2 C = 3.32 and 6.64; of a client's labels log2 5 = 2.32 (log2 15 = 3.91).
                                      `fano_bits`
6.2: few dimensions, few bits   no    V/2 log2(1 + snr): one holds 100 classes at error 1e-4. `gaussian_bits`,
                                      `grid_error`
A.2.1: 2 794 852 parameters     no    Table 6: 3 346 852 (V = 256), 3 897 252 (V = 512). Table 5: 2 898 852; 2 806 602
                                      for ten classes; 2 796 352, the nearest, without its last layer. `cnn_parameters`
A.2.1: 51 200 numbers           yes   2 V C to a client, which sends 2 V per class of its own.
==============================  ====  ==================================================================================

References
----------
.. [1] H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong. FedCR: personalized federated learning based on across-client common
   representation with conditional mutual information regularization. ICML 2023.
.. [2] S. Ben-David, J. Blitzer, K. Crammer, F. Pereira. Analysis of representations for domain adaptation. NeurIPS
   2006.
.. [3] S. Ben-David, J. Blitzer, K. Crammer, A. Kulesza, F. Pereira, J. Vaughan. A theory of learning from different
   domains. Machine Learning, 79, 2010.
.. [4] D. Palomar, S. Verdú. Lautum information. IEEE Transactions on Information Theory, 54,
   2008.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from hetfl_book.theory.statements import table_of
from hetfl_core import checks
from hetfl_core.distances import gaussian_kl

Array = NDArray[np.float64]

MAX_OUTCOMES = 200_000
"""Most samples, up to order, that `failure_probability` looks at."""


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


def gaussian_cmi(covariance: ArrayLike, a: Sequence[int], b: Sequence[int], given: Sequence[int] = ()) -> float:
    r"""I(A; B | C) of jointly Gaussian variables, ½ ln (det Σ_AC det Σ_BC / (det Σ_ABC det Σ_C)), in nats.

    Parameters
    ----------
    covariance : array_like, shape (k, k)
        Positive definite.
    a, b, given : sequence of int
        Disjoint sets of variables.

    Raises
    ------
    ValueError
        If the covariance is not positive definite, or the sets overlap.
    """
    S = _covariance("covariance", covariance)
    return _gaussian_cmi(S, *_apart(len(S), a=a, b=b, given=given))


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
class Alignment:
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


def gaussian_alignment(
    covariance: ArrayLike, y: Sequence[int], own: Sequence[int], others: Sequence[int], z: Sequence[int]
) -> Alignment:
    r"""Eq. (5) of [1]_ for a joint Gaussian of a real label y, a client's data, the others' and z.

    The divergences are expectations of KL between Gaussians, whose means depend linearly on the data:
    :math:`\tfrac12 (\ln\det V_i - \ln\det V + \mathrm{tr}\, V_i^{-1} (V + \mathrm{Cov}(\mu - \mu_i)) - k)`.

    Parameters
    ----------
    covariance, y, own, others, z
        As for `gaussian_cmi`: the label, x_i, the other clients' data and the feature. y → x → z, or a ValueError.
    """
    S = _covariance("covariance", covariance)
    y, own, others, z = _apart(len(S), y=y, own=own, others=others, z=z)
    x = own + others
    _check_markov("covariance", _gaussian_cmi(S, y, z, x))
    return Alignment(
        _gaussian_cmi(S, z, x, y),
        _gaussian_cmi(S, z, own, y),
        _expected_kl(S, z, x, own),
        _expected_kl(S, z, x, own + y),
    )


def discrete_alignment(p: ArrayLike, encoder: ArrayLike | None = None) -> Alignment:
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
        raise ValueError(f"p must have four axes (y, x_i, others, z), got shape {table.shape}")
    _check_markov("p", discrete_cmi(table, [0], [3], [1, 2]))
    x, local, labelled = (_conditional(table, keep) for keep in ((1, 2), (1,), (0, 1)))
    if encoder is not None:
        local = checks.reals("encoder", encoder, 2)[None, :, None, :]
        if local.shape[1::2] != table.shape[1::2] or not np.allclose(local.sum(-1), 1) or (local < 0).any():
            raise ValueError(
                f"encoder must have rows of probabilities of z, one a value of x_i, got {checks.shown(encoder)}"
            )
    joint, own = discrete_cmi(table, [3], [1, 2], [0]), discrete_cmi(table, [3], [1], [0])
    return Alignment(joint, own, _expected_log_ratio(table, x, local), _expected_log_ratio(table, x, labelled))


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
    prior, m = checks.number("prior", prior, 0), checks.whole("m", m, 1)
    ratio = 1 / (1 + prior / (m * precision))
    spread = precision * variance * (1 + (m - 1) * checks.number("correlation", correlation, 0, 1))
    return 0.5 * math.log1p(precision * variance), 0.5 * math.log1p(spread * ratio)


def least_gap(information: float, m: int) -> float:
    """The least mean over clients of I(z; x | y) − I(z; x_i | y), where m clients' data are independent given y.

    It is (1 − 1/m) I(z; x | y), as information of independent sources is superadditive: I_c = 0 in Eq. (3) of [1]_
    then means I(z; x | y) = 0, features that tell nothing beyond the label.
    """
    return (1 - 1 / checks.whole("m", m, 1)) * checks.number("information", information, 0)


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
        raise ValueError(
            f"the precisions must have a positive sum with times={times:g} of the prior, got {checks.shown(total)}: "
            "experts hold less than the prior"
        )
    return ((precision * mu).sum(0) + weight * prior_mean) / total, total


def discrete_posteriors(p: ArrayLike) -> tuple[Array, Array, Array, Array]:
    """Three formulas for p(z | x_1, …, x_m), and τ, from a table p(x_1, …, x_m, z) that is positive everywhere.

    Returns
    -------
    exact, quotient, printed : ndarray, shape (X_1, …, X_m, Z)
        By Bayes' rule; τ ∏ p(z | x_i) / p(z)^{m−1}, Eq. (15), not normalised by us; p(z) ∏ p(z | x_i), Eq. (6),
        normalised.
    tau : ndarray, shape (X_1, …, X_m)
        ∏ p(x_i) / p(x). E ln 1/τ is the total correlation of the clients' data, 0 where they are independent.
    """
    table = _table(p)
    if table.ndim < 2 or not (table > 0).all():
        raise ValueError(f"p must be positive, with axes for the clients and for z, got shape {table.shape}")
    m = table.ndim - 1
    pz, px = _marginal(table, {m}), _marginal(table, set(range(m)))
    product = np.prod([_conditional(table, (i,)) * np.ones_like(table) for i in range(m)], axis=0)
    tau = np.prod([_marginal(table, {i}) * np.ones_like(px) for i in range(m)], axis=0) / px
    printed = product * pz / (product * pz).sum(-1, keepdims=True)
    return table / px, tau * product / pz ** (m - 1), printed, tau[..., 0]


def effective_samples(n: int, correlation: float) -> float:
    """How many independent sightings n sightings with equally correlated noise are worth, n / (1 + (n − 1) ρ).

    Eq. (8) of [1]_ counts n for all ρ: right for ρ = 0, and n times too many for n copies, ρ = 1.
    """
    return checks.whole("n", n, 1) / (1 + (n - 1) * checks.number("correlation", correlation, 0, 1))


def collapse(n: int, rounds: int, variance: float = 1.0, prior: float = 1.0) -> Array:
    r"""Variances round by round of n samples' features that follow their product exactly, shape (rounds + 1,).

    :math:`\Lambda_{t+1} = \Lambda_0 + n \Lambda_t`, by Algorithm 2 of [1]_: no fixed point for n ≥ 1 and Λ_0 > 0, and
    variance/n^t at most. What keeps variances up is that samples' means differ: the cheapest one is v + (m − μ)².
    """
    precisions = [1 / checks.number("variance", variance, above=0)]
    checks.whole("n", n, 1)
    checks.memory(40 * checks.whole("rounds", rounds, 0), rounds=rounds)
    prior = checks.number("prior", prior, 0)
    for _ in range(rounds):
        precisions.append(prior + n * precisions[-1])
    return 1 / np.array(precisions, dtype=float)


def alignment_term(means: ArrayLike, variances: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """The term of Eq. (7) of [1]_ for one class: the mean over samples of KL[joint ‖ sample's feature], in nats.

    Where the joint is the law of z in the class it is the lautum information of z and x [4]_, not the regulariser
    I(z; x | y) − I(z; x_i | y), which is 0 with one client.

    Diagonal Gaussians: samples of shapes (n, V), the joint of shapes (V,).
    """
    samples = _experts(means, variances, "variances")
    joint = [checks.reals(*pair, 1) for pair in (("mean", mean), ("variance", variance))]
    for name, found in zip(("mean", "variance"), joint, strict=True):
        if found.shape != samples[0].shape[1:] or (name == "variance" and not (found > 0).all()):
            kind = "positive numbers" if name == "variance" else "numbers"
            raise ValueError(f"{name} must be {samples[0].shape[1]} {kind}, as means, got {checks.shown(found)}")
    return float(gaussian_kl(*map(torch.from_numpy, (*joint, *samples))).mean())


def pooled_target(means: ArrayLike, variances: ArrayLike) -> tuple[Array, Array]:
    r"""The joint that minimises `alignment_term`, :math:`\propto \prod_n p(z \mid x^{(n)})^{1/n}`: mean and variance.

    Its mean is that of Eq. (8); its precision the samples' mean where Eq. (8) has their sum. Shapes (n, V) → (V,).
    """
    mu, v = _experts(means, variances, "variances")
    total = (1 / v).sum(0)
    return (mu / v).sum(0) / total, len(v) / total


def printed_kl(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> float:
    """Eq. (21) of [1]_ term by term, in nats; means of shape (V,), covariances (V, V). It is `gaussian_kl`."""
    m_p, m_q = (checks.reals(*pair, 1) for pair in (("mean_p", mean_p), ("mean_q", mean_q)))
    S_p, S_q = _covariance("cov_p", cov_p), _covariance("cov_q", cov_q)
    if len({len(m_p), len(m_q), len(S_p), len(S_q)}) > 1:
        found = f"{len(m_p)}, {len(S_p)}, {len(m_q)} and {len(S_q)}"
        raise ValueError(f"mean_p, cov_p, mean_q and cov_q must have one dimension, got {found}")
    inverse = np.linalg.inv(S_q)
    ratio = inverse @ S_p
    quadratic = (m_p - m_q) @ inverse @ (m_p - m_q)
    return float(0.5 * (quadratic - np.log(np.linalg.det(ratio)) + np.trace(ratio) - len(m_p)))


def draw_mismatch(variance: float) -> float:
    """KL[N(μ, Σ²) ‖ N(μ, Σ)] in nats: of what z = ε Σ + μ draws from what Eq. (7) of [1]_ calls its law; 0 at Σ = 1."""
    v = checks.number("variance", variance, above=0)
    return 0.5 * (v - 1 - math.log(v))


def mixture_moments(weights: ArrayLike, means: ArrayLike, variances: ArrayLike) -> tuple[Array, Array]:
    r"""Mean and variance :math:`\sum_i w_i v_i + \sum_i w_i (\mu_i - \mu)^2` of a mixture of experts, by dimension.

    Never below the least of the experts' variances (4.2 of [1]_), but below the largest where means are near. A
    product's variance does not know whether experts agree; this one does.

    Weights of shape (m,), positive, of sum 1; experts of shapes (m, V); results of shapes (V,).
    """
    mu, v = _experts(means, variances, "variances")
    w = checks.reals("weights", weights, 1)
    if w.shape != mu.shape[:1] or not (w > 0).all() or not math.isclose(w.sum(), 1):
        raise ValueError(f"weights must be {len(mu)} positive numbers of sum 1, got {checks.shown(weights)}")
    mean = w @ mu
    return mean, w @ (v + (mu - mean) ** 2)


def discrete_product(experts: ArrayLike) -> Array:
    """The normalised product of experts over finitely many z, shape (m, Z) → (Z,). Refuses experts that exclude all."""
    p = checks.reals("experts", experts, 2)
    product = p.prod(0)
    if (p < 0).any() or not np.allclose(p.sum(1), 1) or not product.any():
        raise ValueError(f"experts must be rows of probabilities with a value that all allow, got {checks.shown(p)}")
    return product / product.sum()


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
    return 2 * float(np.abs(apart @ (_marginal_law("p", p, h) - _marginal_law("q", q, h))).max())


def ideal_risk(hypotheses: ArrayLike, source: ArrayLike, target: ArrayLike) -> float:
    """λ, the least of ε_source(h) + ε_target(h). (As printed, the minimum is over h of what depends on h_i.)"""
    h = _hypotheses(hypotheses)
    return float((_risks(h, _law("source", source, h)) + _risks(h, _law("target", target, h))).min())


def vc_dimension(hypotheses: ArrayLike) -> int:
    """The size of the largest set of z that the hypotheses (H, Z) label in all ways."""
    h = _hypotheses(hypotheses)
    sets = (z for size in range(1, int(math.log2(len(h))) + 1) for z in combinations(range(h.shape[1]), size))
    return max((len(z) for z in sets if len(np.unique(h[:, z], axis=0)) == 2 ** len(z)), default=0)


def deviation(n: int, d: int, m: int, delta: float) -> float:
    r"""The root of Eq. (10), :math:`\sqrt{\tfrac4n (d \ln\tfrac{2en}{d} + \ln\tfrac{4m}{\delta})}`.

    That of Theorem 1 of [2]_ with δ/m for each of m clients, a union bound; n samples of a client, VC dimension d ≤ 2n.
    For up to (2en/d)^{2d} hypotheses two of Hoeffding's deviations fit into it, which the printed λ needs.
    """
    checks.wholes(1, n=n, d=d, m=m)
    if 2 * n < d:
        raise ValueError(f"n and d must have 2n >= d, got n={n} and d={d}")
    confidence = math.log(4 * m) - math.log(checks.fraction("delta", delta, "(0, 1)"))
    return math.sqrt(4 / n * (d * math.log(2 * math.e * n / d) + confidence))


def theorem_5_1(
    hypotheses: ArrayLike,
    chosen: Sequence[int],
    empirical: ArrayLike,
    induced: ArrayLike,
    target: ArrayLike,
    n: int,
    delta: float = 0.05,
    factor: float = 1.0,
    target_induced: ArrayLike | None = None,
) -> tuple[float, float]:
    """Left and right of Eq. (10) of [1]_. With the samples' own laws of z as `induced` the root is not needed.

    Parameters
    ----------
    hypotheses : array_like, shape (H, Z)
        Of 0 and 1; those of the clients, h_i, are the rows `chosen`.
    empirical, induced : array_like, shape (m, 2, Z), (m, Z)
        The clients' samples as laws of (y, z), for the risks and λ_i; their laws of z, D'_i, for the distance.
    target : array_like, shape (2, Z)
        D, as a law of (y, z).
    n, delta
        As for `deviation`.
    factor : float
        Before d_HΔH: 1 as printed; ½ is enough [3]_.
    target_induced : array_like, shape (Z,), optional
        Law of z of D for the distance; that of `target` by default. Any other is another feature space.
    """
    h = _hypotheses(hypotheses)
    D, rows = _law("target", target, h), _variables("chosen rows of hypotheses", chosen, len(h))
    samples = [_law("empirical", each, h) for each in checks.reals("empirical", empirical, 3)]
    marginals = [_marginal_law("induced", each, h) for each in checks.reals("induced", induced, 2)]
    goal = D.sum(0) if target_induced is None else _marginal_law("target_induced", target_induced, h)
    factor, m = checks.number("factor", factor, 0), len(samples)
    if not m == len(rows) == len(marginals):
        found = f"{len(rows)}, {m} and {len(marginals)}"
        raise ValueError(f"chosen, empirical and induced must have one client in each place, got {found} of them")
    left = _risks(h, D)[rows].mean()
    local = np.mean([_risks(h, s)[i] + ideal_risk(h, s, D) for i, s in zip(rows, samples, strict=True)])
    apart = np.mean([divergence(h, p, goal) for p in marginals])
    return float(left), float(local + factor * apart + deviation(n, max(vc_dimension(h), 1), m, delta))


def failure_probability(
    hypotheses: ArrayLike,
    source: ArrayLike,
    target: ArrayLike,
    n: int,
    slack: float = 0.0,
    empirical_ideal: bool = False,
    factor: float = 0.5,
) -> float:
    """The exact probability that ε_D(h) > ε̂(h) + factor · d + λ + slack for some h: all samples of n, up to order.

    Parameters
    ----------
    hypotheses, source, target : array_like, shape (H, Z), (2, Z), (2, Z)
        Rows of 0 and 1; the laws of (y, z) of a client and of D.
    n, slack, factor
        Samples; what stands in the place of `deviation`; as for `theorem_5_1`. A ValueError beyond `MAX_OUTCOMES`.
    empirical_ideal : bool
        Whether λ has the empirical risk of the client, as [1]_ prints it, or the expected one, as [2]_ does.
    """
    h = _hypotheses(hypotheses)
    p, q = _law("source", source, h), _law("target", target, h)
    slack, factor = checks.number("slack", slack), checks.number("factor", factor, 0)
    checks.flag("empirical_ideal", empirical_ideal)
    cells = np.flatnonzero(p)
    places = checks.whole("n", n, 1) + len(cells) - 1
    if math.comb(places, n) > MAX_OUTCOMES:
        raise ValueError(f"n={n} samples of {len(cells)} values are too many to look at, at most {MAX_OUTCOMES}")
    wrong = np.concatenate([h, 1 - h], axis=1)[:, cells]  # errors of h on the cells of (y, z)
    bars = np.array(list(combinations(range(places), len(cells) - 1)), dtype=float)
    counts = np.diff(bars, axis=1, prepend=-1, append=float(places)) - 1
    logs = math.lgamma(n + 1) + counts @ np.log(p.ravel()[cells])
    chance = np.exp(logs - np.vectorize(math.lgamma)(counts + 1).sum(1))
    found, goal = counts @ wrong.T / n, _risks(h, q)
    ideal = (found + goal).min(1, keepdims=True) if empirical_ideal else ideal_risk(h, p, q)
    bound = found + factor * divergence(h, p.sum(0), q.sum(0)) + ideal + slack
    return min(float(chance[(goal > bound + 1e-12).any(1)].sum()), 1.0)


# --- Section 6 and Appendix A.2: bits and sizes -----------------------------------------------------------------------


def fano_bits(classes: int, error: float = 0.0) -> float:
    """Least I(x; z) in bits with which C equally frequent classes can be told at this error (Fano), never negative.

    log2 C at no error; 0 where guessing does as well, at 1 − 1/C.
    """
    C, e = checks.whole("classes", classes, 2), checks.fraction("error", error, "[0, 1]")
    certain = sum(p * math.log2(p) for p in (e, 1 - e) if p)
    return math.log2(C) + certain - e * math.log2(C - 1) if e < 1 - 1 / C else 0.0


def gaussian_bits(dimensions: int, snr: float) -> float:
    """Bits that V coordinates can carry through noise, V/2 log2(1 + snr), snr the ratio of variances."""
    return checks.whole("dimensions", dimensions, 1) / 2 * math.log2(1 + checks.number("snr", snr, 0))


def grid_error(classes: int, spacing: float) -> float:
    """Error of telling C classes at equal distances on a line, 2 (1 − 1/C) Q(spacing/2): one dimension is enough.

    The spacing is in standard deviations of a feature. The nearest of the means 0, s, 2s … is what a linear head with
    the logits c s z − (c s)²/2 takes.
    """
    C, s = checks.whole("classes", classes, 2), checks.number("spacing", spacing, 0)
    return (1 - 1 / C) * math.erfc(s / 2 / math.sqrt(2))


def cnn_parameters(classes: int, latent: int | None = None, side: int = 32, channels: int = 3) -> int:
    """Parameters of Table 5 of [1]_, or of Table 6 with V = `latent`, biases included.

    The tables' 1600 inputs to the linear layers come with images of 32 × 32; 28 × 28 would have 1024.
    """
    checks.wholes(1, classes=classes, channels=channels)
    flat = 64 * (((checks.whole("side", side, 16) - 4) // 2 - 4) // 2) ** 2
    layers = [(25 * channels, 64), (25 * 64, 64), (flat, 1024), (1024, 1024)]
    V = None if latent is None else checks.whole("latent", latent, 1)
    layers += [(1024, classes)] if V is None else [(1024, 2 * V), (V, classes)]
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in layers)


# --- Small parts ------------------------------------------------------------------------------------------------------


def _covariance(name: str, covariance: ArrayLike) -> Array:
    S = checks.reals(name, covariance, 2)
    right = S.shape[0] == S.shape[1] and np.allclose(S, S.T)
    if right:
        values = np.linalg.eigvalsh(S)
        right = values[0] > len(S) * np.finfo(float).eps * values[-1]  # less is rounding
    if not right:
        raise ValueError(f"{name} must be symmetric and positive definite, got {checks.shown(S)} of shape {S.shape}")
    return S


def _variables(name: str, value: Sequence[int], number: int) -> list[int]:
    """Places in 0…number − 1."""
    return [checks.whole(f"each of {name}", i, 0, number - 1) for i in checks.several(name, value)]


def _apart(number: int, **sets: Sequence[int]) -> list[list[int]]:
    """Disjoint sets of variables."""
    found = {name: _variables(name, value, number) for name, value in sets.items()}
    members = [i for each in found.values() for i in each]
    if len(set(members)) < len(members):
        told = ", ".join(f"{name}={checks.shown(each)}" for name, each in found.items())
        raise ValueError(f"{', '.join(found)} must have no variable in common and none twice, got {told}")
    return list(found.values())


def _gaussian_cmi(S: Array, a: list[int], b: list[int], given: list[int]) -> float:
    return 0.5 * (_logdet(S, a + given) + _logdet(S, b + given) - _logdet(S, a + b + given) - _logdet(S, given))


def _logdet(S: Array, keep: Sequence[int]) -> float:
    return float(np.linalg.slogdet(S[np.ix_(keep, keep)])[1]) if len(keep) else 0.0


def _expected_kl(S: Array, z: list[int], fine: list[int], coarse: list[int]) -> float:
    """E KL[p(z | fine) ‖ p(z | coarse)] of a joint Gaussian."""
    (A, V), (B, W), both = _regression(S, z, fine), _regression(S, z, coarse), [*fine, *coarse]
    difference = np.concatenate([A, -B], axis=1)
    spread = V + difference @ S[np.ix_(both, both)] @ difference.T
    logs = np.linalg.slogdet(W)[1] - np.linalg.slogdet(V)[1]
    return float(0.5 * (logs + np.trace(np.linalg.solve(W, spread)) - len(z)))


def _regression(S: Array, z: list[int], given: list[int]) -> tuple[Array, Array]:
    """Coefficients and covariance of z given some variables."""
    cross = S[np.ix_(z, given)]
    A = np.linalg.solve(S[np.ix_(given, given)], cross.T).T.astype(np.float64)
    return A, S[np.ix_(z, z)] - A @ cross.T


def _check_markov(name: str, information: float) -> None:
    if information > 1e-9:
        raise ValueError(f"{name} must have a Markov chain y → x → z, got I(y; z | x) = {information:.3g} nats")


def _table(p: ArrayLike) -> Array:
    table = checks.reals("p", p)
    if (table < 0).any() or not math.isclose(table.sum(), 1, abs_tol=1e-9):
        raise ValueError(f"p must hold probabilities of sum 1, got the sum {table.sum():.6g}")
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
    mu, v = checks.reals("means", means, 2), checks.reals(name, spreads, 2)
    if mu.shape != v.shape or not (v > 0).all():
        raise ValueError(f"{name} must be positive and of the means' shape {mu.shape}, got shape {v.shape}")
    return mu, v


def _hypotheses(hypotheses: ArrayLike) -> Array:
    h = checks.reals("hypotheses", hypotheses, 2)
    if not np.isin(h, (0, 1)).all():
        raise ValueError(f"hypotheses must be rows of 0 and 1, got {checks.shown(h)}")
    return h


def _law(name: str, law: ArrayLike, h: Array) -> Array:
    """p(y, z) over the z of the hypotheses."""
    p = checks.reals(name, law, 2)
    if p.shape != (2, h.shape[1]) or (p < 0).any() or not math.isclose(p.sum(), 1, abs_tol=1e-9):
        raise ValueError(
            f"{name} must hold probabilities of (y, z) of shape (2, Z) and sum 1, Z={h.shape[1]} as in hypotheses, "
            f"got {checks.shown(p)}"
        )
    return p


def _marginal_law(name: str, law: ArrayLike, h: Array) -> Array:
    """p(z) over the z of the hypotheses."""
    p = checks.reals(name, law, 1)
    if p.shape != h.shape[1:] or (p < 0).any() or not math.isclose(p.sum(), 1, abs_tol=1e-9):
        raise ValueError(
            f"{name} must hold probabilities of z of sum 1, {h.shape[1]} as in hypotheses, got {checks.shown(p)}"
        )
    return p
