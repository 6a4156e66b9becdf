"""FedCR's lemmas, products, bound and counts: what is right against references, and where the printed one fails."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import nn
from torch.distributions import Categorical, MultivariateNormal, Normal, kl_divergence

from hetfl_book.theory import fedcr as theory
from hetfl_core.distances import gaussian_kl, product_of_experts
from hetfl_core.methods import FedCR
from hetfl_core.methods.stochastic import gaussian_gap
from hetfl_core.rng import numpy_stream

LN2 = math.log(2)
PRINTED_PARAMETERS = 2_794_852


def draw(purpose):
    return numpy_stream(0, "tests", 0, purpose)


def covariance(k, purpose):
    root = draw(purpose).normal(size=(k, k + 1))
    return root @ root.T


def categorical_kl(p, q):
    """Row by row, by torch."""
    return kl_divergence(Categorical(torch.tensor(p)), Categorical(torch.tensor(q))).numpy()


def mutual_information(p):
    """Of a table of two variables, by SciPy."""
    p = p / p.sum()
    return float(stats.entropy(p.ravel(), np.outer(p.sum(1), p.sum(0)).ravel()))


def pdf(z, mean, variance):
    return math.exp(-((z - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)


# --- what statements speak of and no page computes ------------------------------------------------------------------


def gaussian_cmi(S, a, b, given=()):
    """I(A; B | C) of jointly Gaussian variables, in nats."""

    def logdet(*sets):
        keep = [i for some in sets for i in some]
        return np.linalg.slogdet(np.asarray(S)[np.ix_(keep, keep)])[1] if keep else 0.0

    return 0.5 * (logdet(a, given) + logdet(b, given) - logdet(a, b, given) - logdet(given))


def gaussian_alignment(S, y, own, others, z):
    """The two sides of Eq. (5) for a joint Gaussian."""
    S, x = np.asarray(S, dtype=float), own + others

    def regression(given):
        A = np.linalg.solve(S[np.ix_(given, given)], S[np.ix_(z, given)].T).T
        return A, S[np.ix_(z, z)] - A @ S[np.ix_(z, given)].T

    def expected_kl(fine, coarse):
        (A, V), (B, W), both = regression(fine), regression(coarse), [*fine, *coarse]
        difference = np.concatenate([A, -B], axis=1)
        spread = V + difference @ S[np.ix_(both, both)] @ difference.T
        logs = np.linalg.slogdet(W)[1] - np.linalg.slogdet(V)[1]
        return 0.5 * (logs + np.trace(np.linalg.solve(W, spread)) - len(z))

    joint, local = gaussian_cmi(S, z, x, y), gaussian_cmi(S, z, own, y)
    return theory.AlignmentSides(joint, local, expected_kl(x, own), expected_kl(x, own + y))


def least_gap(information, m):
    """The least mean over m clients of I(z; x | y) − I(z; x_i | y) where their data are independent given y."""
    return (1 - 1 / m) * information


def discrete_posteriors(p):
    """p(z | x_1, …, x_m) exactly, by Eq. (15) and by Eq. (6), and τ."""
    m = p.ndim - 1

    def marginal(*keep):
        return p.sum(tuple(i for i in range(m + 1) if i not in keep), keepdims=True)

    px, pz = marginal(*range(m)), marginal(m)
    product = math.prod(marginal(i, m) / marginal(i) for i in range(m))
    tau = math.prod(marginal(i) for i in range(m)) / px
    return p / px, tau * product / pz ** (m - 1), product * pz / (product * pz).sum(-1, keepdims=True), tau[..., 0]


def printed_kl(m_p, S_p, m_q, S_q):
    """Eq. (21) term by term."""
    inverse = np.linalg.inv(S_q)
    ratio = inverse @ S_p
    return 0.5 * ((m_p - m_q) @ inverse @ (m_p - m_q) - np.log(np.linalg.det(ratio)) + np.trace(ratio) - len(m_p))


def draw_mismatch(v):
    """KL[N(μ, Σ²) ‖ N(μ, Σ)]: of what z = ε Σ + μ draws from what Eq. (7) calls its law."""
    return 0.5 * (v - 1 - math.log(v))


def mixture_moments(w, means, variances):
    """Mean and variance of a mixture of experts, by dimension."""
    w, mu, v = map(np.asarray, (w, means, variances))
    return w @ mu, w @ (v + (mu - w @ mu) ** 2)


def discrete_product(experts):
    """The normalised product of experts over finitely many z."""
    product = np.prod(experts, axis=0)
    return product / product.sum()


def vc_dimension(hypotheses):
    """The size of the largest set of z that the hypotheses label in all ways."""
    h = np.asarray(hypotheses)
    sets = (z for size in range(1, h.shape[1] + 1) for z in itertools.combinations(range(h.shape[1]), size))
    return max((len(z) for z in sets if len(np.unique(h[:, z], axis=0)) == 2 ** len(z)), default=0)


def theorem_5_1(h, chosen, empirical, induced, target, n, delta=0.05, factor=1.0, target_induced=None):
    """Left and right of Eq. (10)."""
    goal = np.sum(target, 0) if target_induced is None else target_induced
    samples = zip(chosen, empirical, strict=True)
    local = np.mean([theory.risks(h, s)[i] + theory.ideal_risk(h, s, target) for i, s in samples])
    apart = np.mean([theory.divergence(h, p, goal) for p in induced])
    root = theory.deviation(n, max(vc_dimension(h), 1), len(chosen), delta)
    return theory.risks(h, target)[chosen].mean(), local + factor * apart + root


def failure_probability(h, source, target, n, slack=0.0, empirical_ideal=False):
    """That ε_D(h) > ε̂(h) + d / 2 + λ + slack for some h: the sum over all samples of n, up to order."""
    h, cells = np.asarray(h), [(y, z) for y in (0, 1) for z in range(len(source[0])) if source[y][z]]
    distance, goal = theory.divergence(h, np.sum(source, 0), np.sum(target, 0)) / 2, theory.risks(h, target)
    expected, total = theory.ideal_risk(h, source, target), 0.0
    chances = [source[y][z] for y, z in cells]
    bars = itertools.combinations(range(n + len(cells) - 1), len(cells) - 1)
    for counts in (np.diff([-1, *bar, n + len(cells) - 1]) - 1 for bar in bars):
        found = sum(k * (h[:, z] != y) for k, (y, z) in zip(counts, cells, strict=True)) / n
        ideal = (found + goal).min() if empirical_ideal else expected
        if (goal > found + distance + ideal + slack + 1e-12).any():
            total += stats.multinomial.pmf(counts, n, chances)
    return total


def gaussian_bits(dimensions, snr):
    """Bits that coordinates can carry through noise."""
    return dimensions / 2 * math.log2(1 + snr)


def test_every_statement_has_a_verdict_and_names_functions_that_exist():
    table = theory.statements()
    assert len(table) == 26
    assert set(table["holds"]) == {"yes", "if", "no"}
    assert table.iloc[0]["statement"] == "Lemma 4.1, Eq. (5)"
    assert table.iloc[0]["words"].endswith("`discrete_alignment`")
    assert table.iloc[-1].tolist() == [
        "A.2.1: 51 200 numbers",
        "yes",
        "2 V C to a client, which sends 2 V per class of its own.",
    ]
    named = {name for words in table["words"] for name in re.findall(r"`(\w+)`", words)}
    assert len(named) > 10
    assert all(callable(getattr(theory, name)) for name in named)


@pytest.mark.parametrize("sigma", [1.0, 0.1])
def test_with_one_fixed_variance_the_term_is_fedpacs_squared_distance(sigma):
    m, mu = torch.tensor([[1.0, -2.0]]).double(), torch.tensor([[0.5, 0.0]]).double()
    fixed = torch.full_like(m, sigma**2)
    assert float(gaussian_gap(m, fixed, mu, fixed)) == pytest.approx((0.25 + 4) / (2 * sigma**2))


@pytest.mark.parametrize(("V", "reached"), [(2, False), (4, True)])
def test_two_linear_layers_are_one_where_the_first_is_as_wide_as_there_are_classes(V, reached):
    """The nearest product of a (6, V) and a (V, 4) matrix to a head of four classes."""
    head = numpy_stream(0, "tests", 0, "head").normal(size=(6, 4))
    U, S, Vt = np.linalg.svd(head)
    nearest = U[:, :V] * S[:V] @ Vt[:V]
    assert np.allclose(nearest, head) == reached


# --- information ----------------------------------------------------------------------------------------------------


def test_what_is_certain_tells_nothing_and_what_was_excluded_infinitely_much():
    table, certain = np.diag([0.25, 0.75]), np.eye(2)
    assert theory._expected_log_ratio(table, certain, certain) == 0
    assert theory._expected_log_ratio(table, certain, np.full((2, 2), 0.5)) == pytest.approx(LN2)
    assert theory._expected_log_ratio(table, certain, certain[::-1]) == math.inf


def test_gaussian_information_is_a_divergence_from_independence():
    S, zero = torch.from_numpy(covariance(4, "information")), torch.zeros(4).double()
    apart = S.clone()
    apart[:2, 2:] = apart[2:, :2] = 0
    expected = kl_divergence(MultivariateNormal(zero, S), MultivariateNormal(zero, apart))
    assert gaussian_cmi(S.numpy(), [0, 1], [2, 3]) == pytest.approx(float(expected))


def test_gaussian_conditional_information_is_that_of_the_partial_correlation():
    S = covariance(5, "partial")
    precision = np.linalg.inv(S)
    rho = -precision[1, 3] / math.sqrt(precision[1, 1] * precision[3, 3])
    assert gaussian_cmi(S, [1], [3], [0, 2, 4]) == pytest.approx(-0.5 * math.log(1 - rho**2))


def test_discrete_information_against_scipy():
    p = draw("table").dirichlet(np.ones(24)).reshape(2, 3, 4)
    assert theory.discrete_cmi(p, [0], [1]) == pytest.approx(mutual_information(p.sum(2)))
    given = sum(p[i].sum() * mutual_information(p[i]) for i in range(2))
    assert theory.discrete_cmi(p, [1], [2], [0]) == pytest.approx(given)
    xor = np.zeros((2, 2, 2))
    xor[[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]] = 0.25
    assert theory.discrete_cmi(xor, [0], [1]) == pytest.approx(0, abs=1e-12)
    assert theory.discrete_cmi(xor, [0], [1], [2]) == pytest.approx(LN2)


# --- Lemma 4.1 ------------------------------------------------------------------------------------------------------


def markov_table(purpose, local=False):
    """p(y, x_i, o) p(z | x_i, o); `local` makes y → x_i → z a chain too."""
    rng = draw(purpose)
    p = rng.dirichlet(np.ones(18)).reshape(2, 3, 3)
    if local:
        p = p.sum(2, keepdims=True) * rng.dirichlet(np.ones(3), size=(1, 3))
    return p[..., None] * rng.dirichlet(np.ones(4), size=(1, 3, 3))


@pytest.mark.parametrize("local", [False, True])
def test_lemma_4_1_needs_the_chain_of_its_proof(local):
    p = markov_table("lemma", local)
    found = theory.discrete_alignment(p)
    x, own = p.sum(0) / p.sum((0, 3))[..., None], p.sum((0, 2)) / p.sum((0, 2, 3))[:, None]
    expected = (p.sum((0, 3)) * categorical_kl(x, np.broadcast_to(own[:, None], x.shape))).sum()
    assert found.divergence == pytest.approx(expected)
    assert found.given_label == pytest.approx(found.difference)
    excess = theory.discrete_cmi(p, [3], [0], [1])
    assert found.divergence - found.difference == pytest.approx(excess, abs=1e-12)
    assert excess == pytest.approx(0, abs=1e-12) if local else excess > 0.01


def test_lemma_4_1_fails_by_one_bit_for_a_coin():
    p = np.zeros((2, 1, 2, 2))
    p[0, 0, 0, 0] = p[1, 0, 1, 1] = 0.5
    found = theory.discrete_alignment(p)
    assert (found.joint, found.local) == pytest.approx((0, 0), abs=1e-12)
    assert found.divergence / LN2 == pytest.approx(1)


def test_lemma_4_1_for_gaussians():
    """y ~ N(0, 1), x_1 = noise, x_2 = y + noise, z = x_2 + noise: ½ ln 2 on the left, ½ ln 3 on the right."""
    S = [[1, 0, 1, 1], [0, 1, 0, 0], [1, 0, 2, 2], [1, 0, 2, 3]]
    found = gaussian_alignment(S, [0], [1], [2], [3])
    assert found.difference == pytest.approx(0.5 * LN2)
    assert found.given_label == pytest.approx(0.5 * LN2)
    assert found.divergence == pytest.approx(0.5 * math.log(3))
    x2 = torch.from_numpy(math.sqrt(2) * stats.norm.ppf((np.arange(4000) + 0.5) / 4000))
    gaps = kl_divergence(Normal(x2, torch.ones(()).double()), Normal(0.0, math.sqrt(3)))
    assert found.divergence == pytest.approx(float(gaps.mean()), abs=1e-3)


def test_lemma_4_1_for_gaussians_in_general():
    rng = draw("general")
    S, A = covariance(5, "general data"), rng.normal(size=(2, 4))  # y, x_i (2), others (2); z = A x + noise
    B = np.concatenate([np.zeros((2, 1)), A], 1)
    joint = np.block([[S, S @ B.T], [B @ S, B @ S @ B.T + np.diag([0.3, 0.5])]])
    found = gaussian_alignment(joint, [0], [1, 2], [3, 4], [5, 6])
    excess = gaussian_cmi(joint, [0], [5, 6], [1, 2])
    assert found.given_label == pytest.approx(found.difference)
    assert found.divergence == pytest.approx(found.difference + excess)
    assert excess > 0.01


def test_an_encoder_of_its_own_makes_eq_5_an_upper_bound():
    p, q = markov_table("encoder", local=True), draw("own encoder").dirichlet(np.ones(4), size=3)
    own = p.sum((0, 2)) / p.sum((0, 2, 3))[:, None]
    extra = (p.sum((0, 2, 3)) * categorical_kl(own, q)).sum()
    found = theory.discrete_alignment(p, q)
    assert found.divergence - found.difference == pytest.approx(extra)
    assert extra > 0.05
    same = theory.discrete_alignment(p, own)
    assert same.divergence == pytest.approx(same.difference)


def test_an_encoder_that_excludes_what_occurs_is_infinitely_far():
    p = markov_table("excluded")
    assert theory.discrete_alignment(p, np.eye(4)[:3]).divergence == math.inf


def test_local_information_is_the_smaller_one_in_one_joint_law():
    for i in range(5):
        S = covariance(6, f"smaller {i}")
        assert gaussian_cmi(S, [5], [1, 2], [0]) < gaussian_cmi(S, [5], [1, 2, 3, 4], [0])


def product_law(precision, m, rho, variance, prior):
    """Covariance of x_1 … x_m, a client's z_1 = x_1 + noise, and the product's z."""
    X = variance * ((1 - rho) * np.eye(m) + rho)
    total = prior + m * precision
    maps = np.stack([np.eye(m)[0], np.full(m, precision / total)])
    noise = np.diag([1 / precision, 1 / total])
    return np.block([[X, X @ maps.T], [maps @ X, maps @ X @ maps.T + noise]])


@pytest.mark.parametrize(("precision", "m", "rho", "variance", "prior"), [(1, 2, 0, 1, 1), (3, 4, 0.2, 0.5, 2)])
def test_information_of_a_product_of_encoders(precision, m, rho, variance, prior):
    S = product_law(precision, m, rho, variance, prior)
    expected = gaussian_cmi(S, [0], [m]), gaussian_cmi(S, list(range(m)), [m + 1])
    assert theory.product_information(precision, m, rho, variance, prior) == pytest.approx(expected)


def test_with_a_product_of_own_encoders_local_information_can_be_the_larger_one():
    local, joint = theory.product_information(1, 2)
    assert (local / LN2, joint / LN2) == pytest.approx((0.5, 0.5 * math.log2(5 / 3)))
    assert joint / LN2 == pytest.approx(0.368, abs=5e-4)
    assert theory.product_information(1, 2, prior=0) == pytest.approx((local, local))
    threshold = 2.0 / (3 * 4 * 3)  # Λ_0 / (Λ m (m − 1))
    for rho, sign in ((threshold - 0.01, 1), (threshold + 0.01, -1)):
        local, joint = theory.product_information(3, 4, rho, prior=2)
        assert sign * (local - joint) > 0
    assert np.subtract(*theory.product_information(3, 4, threshold, prior=2)) == pytest.approx(0, abs=1e-12)


def test_clients_that_are_independent_have_nothing_in_common():
    def gaps(S, z):
        total = gaussian_cmi(S, z, [0, 1])
        return np.mean([total - gaussian_cmi(S, z, [i]) for i in (0, 1)]), least_gap(total, 2)

    apart = np.block([[np.eye(2), np.eye(2)], [np.eye(2), 2 * np.eye(2)]])  # z = x + noise
    assert np.subtract(*gaps(apart, [2, 3])) == pytest.approx(0, abs=1e-12)
    mixed = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 3.0]])  # z = x_1 + x_2 + noise
    gap, least = gaps(mixed, [2])
    assert gap > least + 0.01
    alike = np.array([[1, 0.99, 1.99], [0.99, 1, 1.99], [1.99, 1.99, 4.98]])
    gap, least = gaps(alike, [2])
    assert gap < 0.1 * least


# --- products -------------------------------------------------------------------------------------------------------


def test_eq_15_is_bayes_rule_under_conditional_independence_and_eq_6_is_not():
    rng = draw("posteriors")
    pz = rng.dirichlet(np.ones(3))
    first, second, third = (rng.dirichlet(np.ones(k), size=3).T for k in (2, 3, 2))
    p = np.einsum("az,bz,cz,z->abcz", first, second, third, pz)
    exact, quotient, printed, tau = discrete_posteriors(p)
    by_hand = first[1] * second[2] * third[0] * pz
    np.testing.assert_allclose(exact[1, 2, 0], by_hand / by_hand.sum())
    np.testing.assert_allclose(quotient, exact)
    own = [p.sum(axes) / p.sum((*axes, 3))[:, None] for axes in ((1, 2), (0, 2), (0, 1))]
    wrong = own[0][1] * own[1][2] * own[2][0] * pz
    np.testing.assert_allclose(printed[1, 2, 0], wrong / wrong.sum())
    assert np.abs(printed - exact).max() > 0.05
    np.testing.assert_allclose(
        tau[1, 2, 0] * p[1, 2, 0].sum(), math.prod([p[1].sum(), p[:, 2].sum(), p[:, :, 0].sum()])
    )


def test_tau_measures_dependence_of_data():
    p = draw("tau").dirichlet(np.ones(18)).reshape(2, 3, 3)  # not independent given z
    exact, quotient, _, tau = discrete_posteriors(p)
    expected = mutual_information(p.sum(2))
    assert -(p.sum(2) * np.log(tau)).sum() == pytest.approx(expected)
    assert expected > 0.01
    assert np.abs(quotient.sum(-1) - 1).max() > 0.01
    assert np.abs(quotient / quotient.sum(-1, keepdims=True) - exact).max() > 0.01


def test_independent_data_that_share_a_feature_depend_on_each_other_given_it():
    S = [[1, 0, 1], [0, 1, 1], [1, 1, 3]]
    assert gaussian_cmi(S, [0], [1]) == pytest.approx(0, abs=1e-12)
    assert gaussian_cmi(S, [0], [1], [2]) == pytest.approx(-0.5 * math.log(3 / 4))


def conditioned(x, noise):
    """Mean and precision of z ~ N(0, 1) given x_i = z + noise_i, by conditioning the joint Gaussian."""
    S = np.ones((len(x), len(x))) + np.diag(noise)
    weights = np.linalg.solve(S, np.ones(len(x)))
    return weights @ x, 1 / (1 - weights.sum())


def test_the_true_joint_posterior_counts_the_prior_once():
    x, noise = np.array([0.7, -1.2, 2.0]), np.array([1.0, 0.5, 2.0])
    truth = conditioned(x, noise)
    likelihoods = theory.gaussian_product(x[:, None], 1 / noise[:, None])
    posteriors = [(x / (1 + noise))[:, None], (1 + 1 / noise)[:, None]]
    quotient, printed = theory.gaussian_product(*posteriors, times=-2), theory.gaussian_product(*posteriors)
    for mean, precision in (likelihoods, quotient):
        assert (mean[0], precision[0]) == pytest.approx(truth)
    assert printed[1][0] == pytest.approx(truth[1] + 3)


def test_eq_6_with_posteriors_has_precision_5_where_3_is_right():
    assert conditioned(np.zeros(2), np.ones(2))[1] == pytest.approx(3)
    assert theory.gaussian_product([[0], [0]], [[2], [2]])[1] == pytest.approx([5])


def test_products_by_integration():
    means, precisions = [[0.3], [-1.0]], [[2.0], [0.7]]

    def density(z):
        experts = [pdf(z, m[0], 1 / p[0]) for m, p in zip(means, precisions, strict=True)]
        return math.prod(experts) * pdf(z, 0.5, 0.5) ** 1.5

    mass, first, second = (integrate.quad(lambda z, k=k: z**k * density(z), -15, 15)[0] for k in (0, 1, 2))
    mean, precision = theory.gaussian_product(means, precisions, prior_mean=0.5, prior=2, times=1.5)
    assert mean[0] == pytest.approx(first / mass)
    assert 1 / precision[0] == pytest.approx(second / mass - (first / mass) ** 2)


def test_eq_9_counts_the_prior_with_each_participant():
    means, precisions = draw("experts").normal(size=(3, 4)), draw("precisions").uniform(0.5, 2, size=(3, 4))
    mu, precision = (torch.from_numpy(each).unsqueeze(1) for each in (means, precisions))
    for times, prior in ((1, "once"), (3, "each")):
        mean, total = theory.gaussian_product(means, precisions, times=times)
        ours = FedCR(prior=prior)._product(precision * mu, precision)
        np.testing.assert_allclose(mean, ours[0][0])
        np.testing.assert_allclose(1 / total, ours[1][0])
    mean, _ = product_of_experts(mu[:, 0], 1 / precision[:, 0], prior=True)
    np.testing.assert_allclose(theory.gaussian_product(means, precisions)[0], mean)
    a = 1.5  # two experts N(a, 1)
    printed, right = (theory.gaussian_product([[a], [a]], [[1], [1]], times=t) for t in (2, 1))
    assert (printed[0][0], printed[1][0], right[0][0], right[1][0]) == pytest.approx((a / 2, 4, 2 * a / 3, 3))


def test_a_prior_cannot_be_taken_out_of_experts_that_lack_it():
    with pytest.raises(ValueError, match="experts hold less than the prior"):
        theory.gaussian_product([[0.0], [0.0]], [[0.4], [0.4]], times=-1)


def test_n_copies_of_a_sample_are_one():
    for n, rho in ((4, 0.0), (4, 0.3), (98, 0.7)):
        noise = (1 - rho) * np.eye(n) + rho
        information = np.ones(n) @ np.linalg.solve(noise, np.ones(n))
        assert theory.effective_samples(n, rho) == pytest.approx(information)
    assert theory.effective_samples(98, 1) == 1
    assert theory.effective_samples(1, 0.5) == 1
    assert theory.product_information(1, 1) == pytest.approx((0.5 * LN2, 0.5 * math.log(1.5)))
    assert least_gap(0.7, 1) == 0
    # What Eq. (8) makes of them, by the method's own sum of precisions (no prior: 1 is taken off).
    total = 1 / FedCR()._product(torch.zeros(98, 1, 1).double(), torch.ones(98, 1, 1).double())[1]
    assert float(total) - 1 == pytest.approx(98)


def test_features_that_follow_their_product_collapse():
    np.testing.assert_allclose(theory.collapse(3, 4, variance=2, prior=0), 2 / 3.0 ** np.arange(5))
    t = np.arange(5)
    np.testing.assert_allclose(1 / theory.collapse(3, 4, variance=2), 3.0**t / 2 + (3.0**t - 1) / 2)
    variance = torch.full((3, 1, 1), 2.0).double()
    for expected in theory.collapse(3, 4, variance=2)[1:]:
        joint = FedCR()._product(torch.zeros_like(variance), 1 / variance)[1]
        assert float(joint) == pytest.approx(expected)
        variance = joint.expand(3, 1, 1)
    assert (np.diff(theory.collapse(1, 50)) < 0).all()


# --- Eqs. (7) and (21) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 98])
def test_the_term_of_eq_7_is_positive_where_the_regulariser_is_zero(n):
    """One client: x is x_i, so that both sides of Eq. (5) are 0."""
    p = markov_table("one client").sum(2, keepdims=True)
    chain = p.sum((2, 3), keepdims=True) * (p.sum((0, 2), keepdims=True) / p.sum((0, 2, 3), keepdims=True))
    found = theory.discrete_alignment(chain)
    assert (found.difference, found.divergence) == pytest.approx((0, 0), abs=1e-12)
    copies = np.full((n, 3), 0.4)
    term = theory.alignment_term(copies, np.full((n, 3), 2.0), [0.4] * 3, [2.0 / n] * 3)
    assert term == pytest.approx(3 * 0.5 * (math.log(n) + 1 / n - 1))
    reference = kl_divergence(Normal(0.4, (2 / n) ** 0.5), Normal(0.4, 2**0.5))
    assert term == pytest.approx(3 * float(reference), rel=1e-5)


def test_towards_the_law_of_the_class_the_term_is_the_lautum_information():
    """x = ±√v has the moments of N(0, v), on which alone the term depends; z = x + N(0, s)."""
    v, s = 1.3, 0.6
    term = theory.alignment_term([[v**0.5], [-(v**0.5)]], [[s], [s]], [0.0], [v + s])
    zero, joint = torch.zeros(2).double(), torch.tensor([[v, v], [v, v + s]]).double()
    lautum = kl_divergence(MultivariateNormal(zero, joint.diag().diag()), MultivariateNormal(zero, joint))
    assert term == pytest.approx(float(lautum))
    assert term > gaussian_cmi(joint.numpy(), [0], [1]) + 0.1


def test_the_best_target_is_a_product_with_exponents_one_nth():
    rng = draw("target")
    means, variances = rng.normal(size=(4, 1)), rng.uniform(0.3, 2, size=(4, 1))
    samples = Normal(torch.from_numpy(means), torch.from_numpy(variances) ** 0.5)

    def term(m, log_variance):
        joint = Normal(torch.tensor(m).double(), torch.tensor(math.exp(log_variance / 2)).double())
        return float(kl_divergence(joint, samples).mean())

    mean, variance = theory.pooled_target(means, variances)
    least = optimize.minimize(lambda q: term(*q), [0.0, 0.0], method="Nelder-Mead", options={"fatol": 1e-12})
    np.testing.assert_allclose([mean[0], math.log(variance[0])], least.x, atol=1e-4)
    assert theory.alignment_term(means, variances, mean, variance) == pytest.approx(least.fun)
    pooled = product_of_experts(torch.from_numpy(means), torch.from_numpy(variances), [0.25] * 4)
    np.testing.assert_allclose([mean, variance], torch.stack(pooled))
    assert theory.alignment_term(means, variances, mean, variance / 4) > least.fun + 0.3  # Eq. (8)


def test_eq_21_is_the_divergence():
    S1, S2 = covariance(3, "first"), covariance(3, "second")
    m1, m2 = draw("means").normal(size=(2, 3))
    args = [torch.from_numpy(each) for each in (m1, S1, m2, S2)]
    reference = kl_divergence(MultivariateNormal(*args[:2]), MultivariateNormal(*args[2:]))
    assert printed_kl(m1, S1, m2, S2) == pytest.approx(float(reference))
    assert printed_kl(m1, S1, m2, S2) == pytest.approx(float(gaussian_kl(*args)))


@pytest.mark.parametrize("variance", [0.25, 1.7])
def test_a_draw_with_sigma_for_its_root_has_another_law(variance):
    drawn, claimed = stats.norm(0, variance), stats.norm(0, variance**0.5)

    def ratio(z):
        return drawn.pdf(z) * (drawn.logpdf(z) - claimed.logpdf(z))

    assert draw_mismatch(variance) == pytest.approx(integrate.quad(ratio, -20 * variance, 20 * variance)[0])
    assert draw_mismatch(1) == 0


# --- sharpness ------------------------------------------------------------------------------------------------------


def entropy(density, end):
    return integrate.quad(lambda z: -density(z) * math.log(density(z)), -end, end, limit=200)[0]


def test_a_mixture_is_no_sharper_than_its_sharpest_expert_but_sharper_than_others():
    mean, variance = mixture_moments([0.5, 0.5], [[0], [0]], [[1], [9]])
    assert (mean[0], variance[0]) == (0, 5)

    def density(z):
        return 0.5 * pdf(z, 0, 1) + 0.5 * pdf(z, 0, 9)

    sharp, blunt = float(stats.norm(0, 1).entropy()), float(stats.norm(0, 3).entropy())
    assert sharp < (sharp + blunt) / 2 < entropy(density, 25) < blunt


def test_moments_of_a_mixture_by_integration_and_their_floor():
    w, m, v = np.array([0.2, 0.5, 0.3]), np.array([[1.0], [-0.5], [3.0]]), np.array([[0.5], [2.0], [1.0]])

    def density(z):
        return sum(wi * pdf(z, mi, vi) for wi, mi, vi in zip(w, m[:, 0], v[:, 0], strict=True))

    first, second = (integrate.quad(lambda z, k=k: z**k * density(z), -20, 20)[0] for k in (1, 2))
    mean, variance = mixture_moments(w, m, v)
    assert (mean[0], variance[0]) == pytest.approx((first, second - first**2))
    rng = draw("floor")
    for _ in range(20):
        w, m, v = rng.dirichlet(np.ones(3)), rng.normal(size=(3, 2)), rng.uniform(0.1, 5, size=(3, 2))
        assert (mixture_moments(w, m, v)[1] > v.min(0)).all()
        assert (1 / theory.gaussian_product(m, 1 / v, times=0)[1] < v.min(0)).all()


def test_a_product_does_not_notice_that_its_experts_disagree():
    agree, apart = (theory.gaussian_product([[-a], [a]], [[1], [1]], times=0)[1] for a in (0.0, 10.0))
    assert agree == apart == 2
    assert mixture_moments([0.5, 0.5], [[-10], [10]], [[1], [1]])[1] == pytest.approx([101])


def test_a_product_can_be_blunter_than_an_expert():
    experts = np.array([[0.98, 0.01, 0.01], [0, 0.5, 0.5]])
    product = discrete_product(experts)
    np.testing.assert_allclose(product, [0, 0.5, 0.5])
    assert stats.entropy(product) > 6 * stats.entropy(experts[0])
    np.testing.assert_allclose(discrete_product([[0.5, 0.5], [0.25, 0.75]]), [0.25, 0.75])


# --- Theorem 5.1 ----------------------------------------------------------------------------------------------------

TWO = [[0, 0], [0, 1]]
"""Two points, and the hypotheses 0 and z."""


def test_risks_and_distances_by_hand():
    h, law = [[0, 0, 1], [1, 0, 1]], [[0.1, 0.2, 0.1], [0.3, 0.1, 0.2]]
    np.testing.assert_allclose(theory.risks(h, law), [0.1 + 0.3 + 0.1, 0.1 + 0.1 + 0.1])
    assert theory.divergence(h, [0.7, 0.2, 0.1], [0.4, 0.2, 0.4]) == pytest.approx(2 * 0.3)
    everything = list(itertools.product((0, 1), repeat=3))
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.5, 0.2])
    assert theory.divergence(everything, p, q) == pytest.approx(np.abs(p - q).sum())  # twice the total variation
    clean = [[0.5, 0.0], [0.0, 0.5]]
    assert theory.ideal_risk(TWO, clean, clean) == 0
    assert theory.ideal_risk(TWO, [[1, 0], [0, 0]], [[0, 0], [1, 0]]) == 1


def test_vc_dimensions_that_are_known():
    thresholds = [[int(z >= t) for z in range(5)] for t in range(6)]
    intervals = [[int(a <= z < b) for z in range(5)] for a in range(6) for b in range(a, 6)]
    everything = list(itertools.product((0, 1), repeat=3))
    assert [vc_dimension(h) for h in (TWO[:1], TWO, thresholds, intervals, everything)] == [0, 1, 1, 2, 3]


def test_the_root_of_eq_10():
    assert theory.deviation(100, 1, 1, 0.05) == pytest.approx(math.sqrt(0.04 * (math.log(200) + 1 + math.log(80))))
    assert theory.deviation(50, 3, 7, 0.1) == theory.deviation(50, 3, 1, 0.1 / 7)  # the union bound
    assert theory.deviation(420, 257, 10, 0.05) == pytest.approx(2.33, abs=5e-3)
    assert theory.deviation(4770, 257, 10, 0.05) > 1 > theory.deviation(4780, 257, 10, 0.05)
    for n, d, m, delta in ((10, 1, 1, 0.9), (100, 3, 10, 0.05), (5000, 257, 100, 0.5)):
        hypotheses = 2 * d * math.log(2 * math.e * n / d)  # logarithm of their number
        hoeffding = math.sqrt((hypotheses + math.log(m / delta)) / (2 * n))
        assert 2 * hoeffding <= theory.deviation(n, d, m, delta)


def random_case(rng):
    H = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1]])
    source, target = rng.dirichlet(np.full(6, 0.5), size=2).reshape(2, 2, 3)
    return H, source, target


def test_with_the_samples_own_distance_half_of_it_suffices_and_no_root_is_needed():
    rng = draw("deterministic")
    for _ in range(100):
        H, sample, target = random_case(rng)
        for i in range(len(H)):
            left, right = theorem_5_1(H, [i], [sample], [sample.sum(0)], target, 1000, factor=0.5)
            assert left <= right - theory.deviation(1000, 1, 1, 0.05) + 1e-12


def test_half_of_the_distance_cannot_be_less():
    """D_i = {0}, D = {1}, labels z: the hypothesis 0 is right on all of D_i and wrong on all of D."""
    left, right = theorem_5_1(TWO, [0], [[[1, 0], [0, 0]]], [[1, 0]], [[0, 0], [0, 1]], 100, factor=0.5)
    root = theory.deviation(100, 1, 1, 0.05)
    assert (left, right - root) == pytest.approx((1, 1))
    left, right = theorem_5_1(TWO, [0], [[[1, 0], [0, 0]]], [[1, 0]], [[0, 0], [0, 1]], 100)
    assert right - root == pytest.approx(2)  # as printed


def test_a_distance_taken_in_another_feature_space_breaks_the_bound():
    """The risks in features z, the distance in features that a client aligned by making them constant."""
    point, wrong = [[[1, 0], [0, 0]]], [[0, 0], [0, 1]]
    left, right = theorem_5_1(TWO, [0], point, [[1, 0]], wrong, 100, target_induced=[1, 0])
    assert left == 1
    assert right == pytest.approx(0.6536, abs=1e-4)
    # All in the aligned features, of one value: what the distance lost is in λ.
    left, right = theorem_5_1([[0], [1]], [0], [[[1], [0]]], [[1]], [[0], [1]], 100)
    assert (left, right - theory.deviation(100, 1, 1, 0.05)) == pytest.approx((1, 1))
    assert theory.divergence(TWO, [1, 0], [0, 1]) == 2
    assert theory.ideal_risk(TWO, point[0], wrong) == 0
    assert theory.divergence([[0], [1]], [1], [1]) == 0
    assert theory.ideal_risk([[0], [1]], [[1], [0]], [[0], [1]]) == 1


def test_theorem_5_1_averages_over_clients():
    rng = draw("clients")
    H, first, target = random_case(rng)
    second = random_case(rng)[1]
    both = theorem_5_1(H, [1, 3], [first, second], [first.sum(0), second.sum(0)], target, 200)
    alone = [theorem_5_1(H, [i], [s], [s.sum(0)], target, 200, delta=0.05 / 2) for i, s in ((1, first), (3, second))]
    assert both == pytest.approx(tuple(np.mean(alone, axis=0)))


def test_alignment_by_class_need_not_bring_clients_nearer():
    """Before, the client's and the common features have one distribution, though their classes lie differently."""
    labels = np.array([[1, 3], [3, 1]]) / 4  # shares of the classes on the client, and of all
    differing = [np.array([[1, 0], [1 / 3, 2 / 3]]), np.array([[2 / 3, 1 / 3], [0, 1]])]  # p(z | class)
    distances = []
    for features in (differing, [np.eye(2)] * 2):
        laws = [share @ law for share, law in zip(labels, features, strict=True)]
        distances.append(theory.divergence(TWO, *laws))
    assert distances == pytest.approx([0, 1])


def by_enumeration(H, source, target, n, slack, empirical_ideal):
    """Sample by sample, in order."""
    cells, total = [(y, z) for y in (0, 1) for z in range(len(source[0]))], 0.0
    best = min(a + b for a, b in zip(theory.risks(H, source), theory.risks(H, target), strict=True))
    distance = theory.divergence(H, np.sum(source, 0), np.sum(target, 0)) / 2
    for sample in itertools.product(cells, repeat=n):
        found = [np.mean([h[z] != y for y, z in sample]) for h in H]
        goal = theory.risks(H, target)
        ideal = min(np.add(found, goal)) if empirical_ideal else best
        if any(g > f + distance + ideal + slack + 1e-12 for f, g in zip(found, goal, strict=True)):
            total += math.prod(source[y][z] for y, z in sample)
    return total


@pytest.mark.parametrize("empirical_ideal", [False, True])
@pytest.mark.parametrize("slack", [0.0, 0.02])
def test_failures_against_plain_enumeration(empirical_ideal, slack):
    source, target = [[0.5, 0.02], [0.03, 0.45]], [[0.45, 0.03], [0.02, 0.5]]
    expected = by_enumeration(TWO, source, target, 4, slack, empirical_ideal)
    found = failure_probability(TWO, source, target, 4, slack, empirical_ideal)
    assert found == pytest.approx(expected)
    assert expected > 0


def test_failures_are_those_of_a_binomial_tail():
    """Labels z, D_i = D, λ = d = 0: the hypothesis 0, of risk ½, looks better where few samples have z = 1."""
    clean = [[0.5, 0], [0, 0.5]]
    found = failure_probability(TWO, clean, clean, 40, slack=0.11)
    assert found == pytest.approx(stats.binom.cdf(15, 40, 0.5))


def test_an_empirical_ideal_risk_costs_a_second_deviation():
    law = [[0.35, 0.15], [0.15, 0.35]]  # labels z, of which 30 % are wrong; D_i = D
    assert failure_probability(TWO, law, law, 1) == 0
    assert failure_probability(TWO, law, law, 1, empirical_ideal=True) == pytest.approx(0.35)
    root = theory.deviation(40, 1, 1, 0.05)
    assert root < 1
    assert failure_probability(TWO, law, law, 40, root, empirical_ideal=True) == 0


# --- bits and sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "error"), [(10, 0.0), (10, 0.0418), (15, 0.4565)])
def test_fano_s_bound_is_met_by_a_symmetric_channel(classes, error):
    p = np.full((classes, classes), error / (classes - 1))
    np.fill_diagonal(p, 1 - error)
    expected = mutual_information(p) / LN2
    assert theory.fano_bits(classes, error) == pytest.approx(expected)


def test_bits_of_labels():
    found = [theory.fano_bits(C) for C in (5, 10, 15, 100)]
    assert found == pytest.approx([2.3219, 3.3219, 3.9069, 6.6439], abs=5e-5)
    assert theory.fano_bits(2) == 1
    assert theory.fano_bits(100, 0.99) == theory.fano_bits(100, 1.0) == 0
    assert theory.fano_bits(15, 1 - 0.5435) < 1.2  # Table 3: CIFAR-100 with 64 dimensions, 15 classes a client


def test_bits_of_gaussian_coordinates():
    S = np.kron([[3.0, 3.0], [3.0, 4.0]], np.eye(2))  # two coordinates of variance 3, with noise 1
    assert gaussian_bits(2, 3) == pytest.approx(gaussian_cmi(S, [0, 1], [2, 3]) / LN2)
    assert gaussian_bits(1, 9999) == pytest.approx(theory.fano_bits(100))
    assert gaussian_bits(2, 9) == pytest.approx(theory.fano_bits(10))


def test_one_dimension_and_a_linear_head_tell_a_hundred_classes():
    spacing, C = 8.0, 100
    means = spacing * np.arange(C)
    z = np.linspace(-10, 802, 20_001)
    chosen = (np.outer(z, means) - means**2 / 2).argmax(1)
    density = stats.norm.pdf(z[:, None] - means)
    right = integrate.trapezoid(density[np.arange(len(z)), chosen], z) / C
    assert theory.grid_error(C, spacing) == pytest.approx(1 - right, abs=2e-6)
    assert theory.grid_error(C, spacing) < 1e-4
    mixture = density.mean(1)
    bits = (integrate.trapezoid(-mixture * np.log(mixture), z) - float(stats.norm().entropy())) / LN2
    assert theory.fano_bits(C, theory.grid_error(C, spacing)) < bits < theory.fano_bits(C)
    assert theory.grid_error(10, 3) == pytest.approx(1.8 * stats.norm.sf(1.5))


def count(classes, latent=None, flat=1600, channels=3):
    layers = [nn.Conv2d(channels, 64, 5), nn.Conv2d(64, 64, 5), nn.Linear(flat, 1024), nn.Linear(1024, 1024)]
    if latent is None:
        layers.append(nn.Linear(1024, classes))
    else:
        layers += [nn.Linear(1024, 2 * latent), nn.Linear(latent, classes)]
    return sum(p.numel() for layer in layers for p in layer.parameters())


def test_parameters_of_the_tables_and_that_none_fits():
    with torch.device("meta"):
        assert [count(100, 256), count(100, 512), count(100), count(10)] == [3_346_852, 3_897_252, 2_898_852, 2_806_602]
        body = count(100) - 1025 * 100
        assert body == 2_796_352
        settings = itertools.product((10, 100), (None, *(2**i for i in range(1, 10))), (1600, 1024), (1, 3))
        distances = {abs(count(*setting) - PRINTED_PARAMETERS) for setting in settings}
    assert 0 < abs(body - PRINTED_PARAMETERS) == 1500 < min(distances)
    assert 2 * 256 * 100 == 51_200


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.discrete_cmi([[0.5, 0.6]], [0], [1]), "sum 1"),
        (lambda: theory.discrete_cmi([[-0.5, 1.5]], [0], [1]), "sum 1"),
        (lambda: theory.discrete_alignment(np.full((2, 2), 0.25)), "four axes"),
        (lambda: theory.discrete_alignment(np.eye(2)[:, None, None] / 2), "Markov"),
        (lambda: theory.discrete_alignment(np.full((2, 2, 1, 2), 1 / 8), np.ones((2, 2))), "encoder"),
        (lambda: theory.pooled_target([[0.0]], [[0.0]]), "variances must be positive"),
        (lambda: theory.risks([[0, 2]], [[0.5, 0], [0, 0.5]]), "rows of 0 and 1"),
        (lambda: theory.risks(TWO, [[0.5, 0.5]]), r"shape \(2, Z\)"),
        (lambda: theory.deviation(2, 5, 1, 0.1), "2n >= d"),
        (lambda: theory.product_information(0, 2), "precision"),
        (lambda: theory.product_information(1, 0), "m must be"),
        (lambda: theory.effective_samples(2, 1.5), "correlation"),
        (lambda: theory.fano_bits(1), "classes"),
        (lambda: theory.discrete_cmi([[0.5, 0.5]], [0], [2]), "each of b must be a whole number in 0…1, got 2"),
        (lambda: theory.gaussian_product([[0.0]], [[1.0]], prior_mean=math.nan), "prior_mean must be a finite"),
        (lambda: theory.collapse(2, 10**9), "rounds=1000000000 would need"),
        (lambda: theory.alignment_term([[0, 1]], [[1, 1]], [0], [1]), "mean must be 2 numbers, as means"),
        (lambda: theory.divergence(TWO, [0.5, 0.6], [0.5, 0.5]), "p must hold probabilities of z of sum 1"),
        (lambda: theory.risks(TWO, np.full((2, 3), 1 / 6)), "law must hold .* Z=2 as in hypotheses"),
    ],
)
def test_what_is_refused(call, message, monkeypatch):
    monkeypatch.setattr("hetfl_core.checks.available_memory", lambda: 2.0 * 2**30)
    with pytest.raises(ValueError, match=message):
        call()
