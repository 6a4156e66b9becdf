"""Distances and averages against closed forms, other libraries and the theorems they must obey."""

import math

import numpy as np
import ot
import pytest
import scipy.integrate
import scipy.linalg
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import agree, covariance, normal, refuses_a_second_derivative, rotation, value_and_gradients
from torch.autograd import gradcheck

from hetfl_core import distances as d

# --- W2 between Gaussians ---


def test_bures_wasserstein_is_pots_and_pyriemanns():
    geometry = pytest.importorskip("pyriemann.geometry.distance")
    m1, m2, S1, S2 = normal(4), normal(4, seed=1), covariance(seed=2), covariance(seed=3)
    ours = d.bures_wasserstein(m1, S1, m2, S2).item()
    args = [t.numpy() for t in (m1, m2, S1, S2)]
    assert ours == pytest.approx(ot.gaussian.bures_wasserstein_distance(*args) ** 2, rel=1e-7)
    assert d.bures(S1, S2).item() == pytest.approx(geometry.distance_wasserstein(*args[2:], squared=True), rel=1e-7)


def test_bures_gradcheck():
    S1, S2 = (covariance(2, k=3, seed=s).requires_grad_() for s in (0, 1))
    m1, m2 = (normal(2, 3, seed=s).requires_grad_() for s in (2, 3))

    def symmetric(m1, S1, m2, S2):
        return d.bures_wasserstein(m1, (S1 + S1.mT) / 2, m2, (S2 + S2.mT) / 2)

    assert gradcheck(symmetric, (m1, S1, m2, S2))


def test_differentiating_bures_twice_is_refused():
    S = covariance()
    refuses_a_second_derivative(lambda S1: d.bures((S1 + S1.mT) / 2, S), covariance(seed=1))


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
def test_bures_of_singular_and_equal_matrices(rank):
    S = covariance(k=4, rank=rank) if rank else torch.zeros(4, 4, dtype=torch.float64)
    for other, expected in ((S, 0.0), (torch.zeros_like(S), float(S.trace()))):
        value, grads = value_and_gradients(d.bures, S, other.clone())
        assert value.item() == pytest.approx(expected, abs=1e-12)
        assert all(g.isfinite().all() for g in grads)
    if rank == 4:
        _, grads = value_and_gradients(d.bures, S, S.clone())
        assert max(g.abs().max() for g in grads) < 1e-9


@pytest.mark.parametrize("k", [5, 64])
@pytest.mark.parametrize("n", [2, 3, 10, 65, 200])
def test_expected_root_trace_is_that_of_simulation(n, k):
    z = normal(300, n, k)
    roots = torch.linalg.svdvals((z - z.mean(1, keepdim=True)) / (n - 1) ** 0.5).sum(1)
    allowed = 4 * float(roots.std()) / 300**0.5 + (0.01 if k < 10 else 0.003) * k**0.5
    assert d.expected_root_trace(n, k) == pytest.approx(float(roots.mean()), abs=allowed)
    assert d.expected_root_trace(n, k) < k


def test_expected_root_trace_has_its_correction():
    """At n = 10 and k = 5 the limit law alone is off by 0.05 or more, and with the correction by less than 0.01."""
    z = normal(50_000, 10, 5)
    centred = (z - z.mean(1, keepdim=True)) / 3
    roots = torch.linalg.eigvalsh(centred.mT @ centred).clamp(min=0).sqrt().sum(1)
    allowed = 0.01 + 4 * float(roots.std()) / len(z) ** 0.5
    assert d.expected_root_trace(10, 5) == pytest.approx(float(roots.mean()), abs=allowed)


def test_expected_root_trace_of_one_sample_is_zero():
    assert d.expected_root_trace(1, 7) == 0


def gaussian(seed, k=3):
    return normal(k, seed=seed), covariance(k=k, seed=seed + 1, rank=1 + seed % 4)


@settings(max_examples=60, deadline=None)
@given(*[st.integers(0, 10**6)] * 3)
def test_w2_is_a_metric(a, b, c):
    """Axioms of a metric on Gaussians, singular ones included [Givens & Shortt 1984]."""
    p, q, r = gaussian(a), gaussian(b), gaussian(c)

    def w2(p, q):
        return d.bures_wasserstein(*p, *q).sqrt().item()

    assert w2(p, q) == pytest.approx(w2(q, p), abs=1e-6)
    assert w2(p, p) == pytest.approx(0, abs=1e-6)
    assert w2(p, r) <= w2(p, q) + w2(q, r) + 1e-6


def test_w2_does_not_change_under_a_common_isometry():
    m1, m2, S1, S2, Q, t = (
        normal(4),
        normal(4, seed=1),
        covariance(),
        covariance(seed=1),
        rotation(4),
        normal(4, seed=5),
    )
    moved = d.bures_wasserstein(Q @ m1 + t, Q @ S1 @ Q.T, Q @ m2 + t, Q @ S2 @ Q.T)
    agree(moved, d.bures_wasserstein(m1, S1, m2, S2), 1e-10)


def test_public_distances_lift():
    m, S, v = normal(3, 2, 4), covariance(3, 2), normal(3, 2, 4, seed=1).square()
    lift = torch.func.vmap
    agree(
        lift(d.bures_wasserstein)(m[:, 0], S[:, 0], m[:, 1], S[:, 1]),
        d.bures_wasserstein(m[:, 0], S[:, 0], m[:, 1], S[:, 1]),
    )
    agree(lift(d.gaussian_kl)(m[:, 0], S[:, 0], m[:, 1], S[:, 1]), d.gaussian_kl(m[:, 0], S[:, 0], m[:, 1], S[:, 1]))
    agree(lift(d.gaussian_kl)(m[:, 0], v[:, 0], m[:, 1], v[:, 1]), d.gaussian_kl(m[:, 0], v[:, 0], m[:, 1], v[:, 1]))
    agree(lift(d.mmd)(m, v), d.mmd(m, v))
    agree(lift(d.cka)(m, v), d.cka(m, v))
    agree(lift(d.principal_angle)(m.mT, v.mT), d.principal_angle(m.mT, v.mT))
    grad = torch.func.vmap(torch.func.grad(d.bures))(S[:, 0], S[:, 1])
    agree(grad, value_and_gradients(d.bures, S[:, 0], S[:, 1])[1][0])


# --- KL, MMD, CKA, angles ---


def test_gaussian_kl_is_torchs():
    m1, m2, S1, S2 = normal(3, 4), normal(3, 4, seed=1), covariance(3), covariance(3, seed=1)
    full = torch.distributions.MultivariateNormal
    expected = torch.distributions.kl_divergence(full(m1, S1), full(m2, S2))
    agree(d.gaussian_kl(m1, S1, m2, S2), expected)
    v1, v2 = (S.diagonal(dim1=-2, dim2=-1) for S in (S1, S2))
    agree(d.gaussian_kl(m1, v1, m2, v2), d.gaussian_kl(m1, v1.diag_embed(), m2, v2.diag_embed()))
    agree(d.gaussian_kl(m1, S1, m1, S1), torch.zeros(3, dtype=torch.float64))


def test_gaussian_kl_gradcheck():
    m1, m2, v1, v2 = (normal(2, 3, seed=s).requires_grad_() for s in range(4))
    S1, S2 = (covariance(2, k=3, seed=s).requires_grad_() for s in (4, 5))
    assert gradcheck(lambda m1, v1, m2, v2: d.gaussian_kl(m1, v1.exp(), m2, v2.exp()), (m1, v1, m2, v2))
    assert gradcheck(lambda m1, S1, m2, S2: d.gaussian_kl(m1, S1 + S1.mT, m2, S2 + S2.mT), (m1, S1, m2, S2))


@pytest.mark.parametrize("unbiased", [False, True])
def test_mmd_is_its_definition(unbiased):
    x, y, h = normal(7, 3), normal(5, 3, seed=1) + 1, 0.8

    def kernel(a, b):
        return math.exp(-float((a - b).square().sum()) / (2 * h**2))

    def mean(a, b, same):
        pairs = [(i, j) for i in range(len(a)) for j in range(len(b)) if not (same and unbiased and i == j)]
        return sum(kernel(a[i], b[j]) for i, j in pairs) / len(pairs)

    expected = mean(x, x, True) + mean(y, y, True) - 2 * mean(x, y, False)
    assert d.mmd(x, y, h, unbiased).item() == pytest.approx(expected, rel=1e-10)
    assert gradcheck(lambda x, y: d.mmd(x, y, h, unbiased), (x.requires_grad_(), y.requires_grad_()))


def test_mmd_takes_one_sample_a_side_or_two_where_it_is_unbiased():
    x = normal(2, 3)
    one = d.mmd(x[:1], x[1:], 1.0).item()
    assert one == pytest.approx(2 - 2 * math.exp(-float((x[0] - x[1]).square().sum()) / 2))
    assert math.isfinite(d.mmd(x, x + 1, 1.0, unbiased=True).item())


def test_mmd_of_equal_samples_and_default_bandwidth():
    x, y = normal(40, 3), normal(40, 3, seed=1)
    assert d.mmd(x, x).item() == pytest.approx(0, abs=1e-12)
    assert 0 < d.mmd(x, y) < d.mmd(x, y + 1)
    unit = d.mmd(x, y, float(torch.pdist(torch.cat((x, y))).median()))
    assert d.mmd(x, y).item() == pytest.approx(unit.item(), rel=1e-9)
    value, (grad,) = value_and_gradients(lambda x: d.mmd(x, torch.ones(3, 2)), torch.ones(4, 2))
    assert value == 0
    assert grad.isfinite().all()


def test_unbiased_mmd_has_mean_zero_between_equal_distributions():
    x, y = normal(400, 20, 2), normal(400, 20, 2, seed=1)
    values = d.mmd(x, y, 1.0, unbiased=True)
    assert abs(values.mean()) < 4 * values.std() / 20
    assert d.mmd(x, y, 1.0).min() > 0


@pytest.mark.parametrize(("P", "Q"), [(1, 1), (2, 2), (2, 3), (3, 3), (3, 1)])
def test_transport_plan_is_pots(P, Q):
    cost, a, b = normal(20, P, Q).abs(), normal(20, P, seed=1).abs(), normal(20, Q, seed=2).abs()
    b[:5, 0] *= float(Q == 1)  # an empty target, where that is not all there is
    a, b = (t / t.sum(-1, keepdim=True) for t in (a, b))
    plan = d.transport_plan(cost, a, b)
    assert (plan >= 0).all()
    agree(plan.sum(-1), a, 1e-12)
    agree(plan.sum(-2), b, 1e-12)
    for i in range(20):
        assert float((plan[i] * cost[i]).sum()) == pytest.approx(ot.emd2(a[i].numpy(), b[i].numpy(), cost[i].numpy()))
    agree(torch.func.vmap(d.transport_plan)(cost, a, b), plan, 1e-15)
    masses = 0.1 + normal(20, 1, seed=3).abs()
    heavier = d.transport_plan(cost, masses * a, masses * b)
    agree(heavier, masses.unsqueeze(-1) * plan, 1e-12)
    assert float((heavier[0] * cost[0]).sum()) == pytest.approx(
        ot.emd2((masses * a)[0].numpy(), (masses * b)[0].numpy(), cost[0].numpy())
    )


def test_transport_plan_has_the_sums_that_it_was_asked_for():
    a, b, cost = torch.tensor([2.0, 2.0]), torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    plan = d.transport_plan(cost, a, b)
    assert plan.sum(1).tolist() == a.tolist()
    assert plan.sum(0).tolist() == b.tolist()
    assert float((plan * cost).sum()) == 5.0
    wide = d.transport_plan(torch.ones(4, 1, 2, 2), torch.full((3, 2), 3.0), torch.full((4, 1, 2), 3.0))
    agree(wide.sum(-1), torch.full((4, 3, 2), 3.0), 1e-6)


def test_cka_against_centred_gram_matrices():
    x, y = normal(20, 4), normal(20, 3, seed=1)
    H = torch.eye(20, dtype=torch.float64) - 1 / 20
    K, L = H @ x @ x.T @ H, H @ y @ y.T @ H
    expected = (K * L).sum() / (K.norm() * L.norm())
    agree(d.cka(x, y), expected)
    agree(d.cka(3 * x @ rotation(4) + 1, y), expected)
    agree(d.cka(x, x @ rotation(4)), torch.ones((), dtype=torch.float64))
    assert gradcheck(d.cka, (x.requires_grad_(), y.requires_grad_()))
    value, (grad,) = value_and_gradients(lambda x: d.cka(x, normal(5, 2)), torch.ones(5, 2, dtype=torch.float64))
    assert value == 0
    assert (grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cka_of_a_constant_representation_is_zero_whatever_rounding_leaves(dtype):
    for n, k, seed in [(2, 1, 0), (10, 3, 1), (100, 64, 2), (1000, 128, 3), (777, 1, 4)]:
        constant = normal(1, k, seed=seed, dtype=dtype).expand(n, k).clone() * 10 + 3
        value, gradients = value_and_gradients(d.cka, constant, normal(n, 5, seed=seed, dtype=dtype))
        assert value == 0
        assert all((g == 0).all() for g in gradients)
        faint = constant + 1e-4 * normal(n, k, seed=seed + 9, dtype=dtype)
        assert d.cka(faint, faint) == pytest.approx(1, abs=1e-4), "a ten-thousandth is not rounding"


def test_columns_are_dependent_relative_to_the_largest():
    sizes = torch.diag(torch.tensor([1.0, 1e-20, 1e-20], dtype=torch.float64))
    with pytest.raises(ValueError, match="A must have linearly independent columns"):
        d.principal_angle(sizes, torch.eye(3).double())
    small = 1e-20 * torch.eye(3).double()
    agree(d.principal_angle(small[:, :2], torch.eye(3).double()[:, :2]), torch.tensor(0.0).double())


def test_cka_does_not_depend_on_units():
    """What counts as rounding is relative: tiny representations vary, huge constant ones do not."""
    x, y = normal(20, 4), normal(20, 3, seed=1)
    agree(d.cka(1e-9 * x, 1e9 * y), d.cka(x, y))
    assert d.cka(1e9 * normal(1, 4).expand(20, 4), y) == 0


def test_principal_angle_is_scipys():
    A, B = normal(7, 3), normal(7, 3, seed=1)
    agree(
        d.principal_angle(A, B),
        torch.tensor(math.sin(scipy.linalg.subspace_angles(A.numpy(), B.numpy()).max())).double(),
    )
    agree(d.principal_angle(A, A @ normal(3, 3, seed=2)), torch.zeros((), dtype=torch.float64), 1e-12)
    agree(d.principal_angle(A, B), d.principal_angle(B, A))
    eye = torch.eye(6, dtype=torch.float64)
    agree(d.principal_angle(eye[:, :3], eye[:, 3:]), torch.ones((), dtype=torch.float64))
    assert gradcheck(d.principal_angle, (A.requires_grad_(), B.requires_grad_()))
    _, grads = value_and_gradients(d.principal_angle, A.detach(), A.detach().clone())
    assert all(g.isfinite().all() for g in grads)


# --- averages ---


def test_barycentre_is_pots_and_pyriemanns():
    geometry = pytest.importorskip("pyriemann.geometry.mean")
    m, S, w = normal(4, 3), covariance(4, k=3), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    mean, cov = d.gaussian_barycentre(m, S, 5 * w)
    theirs = ot.gaussian.bures_wasserstein_barycenter(m.numpy(), S.numpy(), w.numpy(), num_iter=1000, eps=1e-12)
    np.testing.assert_allclose(mean, theirs[0], atol=1e-10)
    np.testing.assert_allclose(cov, theirs[1], atol=1e-7)
    np.testing.assert_allclose(cov, geometry.mean_wasserstein(S.numpy(), tol=1e-12, sample_weight=w.numpy()), atol=1e-7)


def test_barycentre_solves_the_fixed_point_equation():
    S = covariance(5, 2, k=3)
    _, cov = d.gaussian_barycentre(normal(5, 2, 3), S)
    for c in range(2):
        root = scipy.linalg.sqrtm(cov[c].numpy())
        middle = sum(scipy.linalg.sqrtm(root @ S[i, c].numpy() @ root) for i in range(5)) / 5
        np.testing.assert_allclose(middle, cov[c], atol=1e-8)


def test_barycentre_of_equal_commuting_and_singular_gaussians():
    m, S = normal(3), covariance(k=3)
    mean, cov = d.gaussian_barycentre(m.expand(4, 3), S.expand(4, 3, 3))
    agree(mean, m)
    agree(cov, S)
    v = normal(4, 3, seed=1).square()
    agree(d.gaussian_barycentre(normal(4, 3), v.diag_embed())[1], v.sqrt().mean(0).square().diag())
    flat = covariance(3, k=3, rank=1)
    assert d.gaussian_barycentre(normal(3, 3), flat[:1].expand(3, 3, 3))[1].isfinite().all()
    agree(d.gaussian_barycentre(normal(3, 3), flat[:1].expand(3, 3, 3))[1], flat[0])
    agree(d.gaussian_barycentre(normal(2, 3), torch.zeros(2, 3, 3).double())[1], torch.zeros(3, 3).double())


def test_barycentre_warns_when_it_does_not_converge():
    with pytest.warns(RuntimeWarning, match="2 iterations, expected at most"):
        d.gaussian_barycentre(normal(4, 3), covariance(4, k=3), max_iterations=2)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_barycentre_does_not_depend_on_units(scale):
    """What counts as converged is a change relative to the covariance, not an absolute one."""
    S = covariance(4, k=3)
    agree(d.gaussian_barycentre(normal(4, 3), scale * S)[1] / scale, d.gaussian_barycentre(normal(4, 3), S)[1], 1e-7)


def test_barycentre_in_float32_converges():
    _, cov = d.gaussian_barycentre(normal(4, 3).float(), covariance(4, k=3).float())
    assert cov.dtype == torch.float32
    torch.testing.assert_close(
        cov.double(), d.gaussian_barycentre(normal(4, 3), covariance(4, k=3))[1], rtol=1e-4, atol=1e-4
    )


def test_average_anchors_by_hand():
    means = torch.tensor([[[0.0, 0]], [[3.0, 6]]])
    L = torch.stack((torch.eye(2), 4 * torch.eye(2)))[:, None]
    mean, factor = d.average_anchors(means, L, torch.tensor([2.0, 1]))
    agree(mean, torch.tensor([[1.0, 2]]))
    agree(factor, 2 * torch.eye(2)[None])
    agree(d.gaussian_barycentre(means, L @ L.mT, torch.tensor([2.0, 1]))[1], factor @ factor.mT, 1e-4)
    assert d.average_anchors(means)[1] is None


def test_product_of_experts_by_hand_and_by_density():
    m, v = torch.tensor([[1.0], [4.0]]), torch.tensor([[1.0], [0.5]])
    mean, variance = d.product_of_experts(m, v)
    agree(mean, torch.tensor([3.0]))
    agree(variance, torch.tensor([1 / 3]))
    mean, variance = d.product_of_experts(m, v, prior=True)
    agree(mean, torch.tensor([9 / 4]))
    agree(variance, torch.tensor([1 / 4]))
    x = torch.linspace(-3, 5, 9)
    log = -((x - m) ** 2) / (2 * v) * torch.tensor([[0.5], [2.0]])
    mean, variance = d.product_of_experts(m, v, torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(torch.softmax(log.sum(0), 0), torch.softmax(-((x - mean) ** 2) / (2 * variance), 0))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(5)), st.integers(1, 4))
def test_product_of_experts_is_order_free_and_associative(seed, order, cut):
    m, v = normal(5, 2, seed=seed), normal(5, 2, seed=seed + 1).square() + 0.1
    whole = d.product_of_experts(m, v, prior=True)
    agree(d.product_of_experts(m[order], v[order], prior=True), whole)
    parts = [
        torch.stack(t) for t in zip(d.product_of_experts(m[:cut], v[:cut]), d.product_of_experts(m[cut:], v[cut:]))
    ]
    agree(d.product_of_experts(*parts, prior=True), whole)


def test_product_of_silent_experts():
    m, v = torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[math.inf, 1], [math.inf, 1]])
    mean, variance = d.product_of_experts(m, v)
    agree(mean, torch.tensor([0.0, 3]))
    agree(variance, torch.tensor([math.inf, 0.5]))
    agree(d.product_of_experts(m, v.clamp(max=1), torch.tensor([1.0, 0]))[0], m[0])
    assert gradcheck(
        lambda m, v: d.product_of_experts(m, v.exp(), prior=True),
        (normal(3, 2).requires_grad_(), normal(3, 2, seed=1).requires_grad_()),
    )


# --- distances between rows ---


def test_squared_distances_of_rows_far_from_the_origin():
    """Rows are centred before they are multiplied: in float32 nothing else is left of distances of 1 beside 10 000."""
    x = normal(6, 3)
    torch.testing.assert_close(
        d.squared_distances(x.float() + 10_000).double(), torch.cdist(x, x).square(), rtol=0.01, atol=0.01
    )


# --- bad input ---

EYE, TWO = torch.eye(2), torch.zeros(2)
BAD = {
    "S2 must have shape": lambda: d.bures_wasserstein(TWO, EYE, TWO, torch.eye(3)),
    "m1 must be finite": lambda: d.bures_wasserstein(TWO / 0, EYE, TWO, EYE),
    "S1 must be finite": lambda: d.bures(EYE * math.nan, EYE),
    "S1 must be symmetric": lambda: d.bures(torch.tensor([[1.0, 1], [0, 1]]), EYE),
    "S2 must be positive semi-definite": lambda: d.bures(EYE, -EYE),
    r"S2 must have shape \(..., k, k\), k = 2 as in S1, got \(3, 3\)": lambda: d.bures(EYE, torch.eye(3)),
    "S1 must have shape": lambda: d.bures(TWO, EYE),
    "v2 must be positive ": lambda: d.gaussian_kl(TWO, TWO + 1, TWO, TWO),
    "v1 must be positive definite": lambda: d.gaussian_kl(TWO, 0 * EYE, TWO, EYE),
    "both be variances": lambda: d.gaussian_kl(TWO, TWO + 1, TWO, EYE),
    "n, m >= 2": lambda: d.mmd(EYE, EYE[:1], unbiased=True),
    "bandwidth must be": lambda: d.mmd(EYE, EYE, 0.0),
    "n and k must be at least 1": lambda: d.expected_root_trace(0, 3),
    "P, Q <= 3": lambda: d.transport_plan(torch.ones(4, 2), torch.ones(4), 2 * torch.ones(2)),
    "broadcast": lambda: d.transport_plan(torch.ones(2, 2, 2), torch.ones(2, 2), torch.ones(3, 2)),
    "must have the same sum": lambda: d.transport_plan(torch.ones(2, 2), torch.ones(2), 2 * torch.ones(2)),
    "a must have a finite sum": lambda: d.transport_plan(torch.ones(2, 2), *2 * [torch.full((2,), 3e38)]),
    "b must be finite": lambda: d.transport_plan(torch.ones(2, 2), torch.ones(2), torch.tensor([math.nan, 1.0])),
    "a must not be 0 everywhere": lambda: d.transport_plan(torch.ones(2, 2), torch.zeros(2), torch.zeros(2)),
    "a must not be negative": lambda: d.transport_plan(torch.ones(2, 2), torch.tensor([3.0, -1]), torch.ones(2)),
    r"y must have shape \(..., n, l\), n = 2 as in x, got": lambda: d.cka(EYE, torch.ones(3, 2)),
    r"B must have shape \(..., d, r\), d = 2 as in A, r = 2 as in A, got": lambda: d.principal_angle(
        EYE, torch.ones(3, 2)
    ),
    "A and B must both have shape": lambda: d.principal_angle(torch.ones(2, 3), torch.ones(2, 3)),
    "B must have linearly independent columns": lambda: d.principal_angle(EYE, torch.ones(2, 2)),
    "weights must have shape": lambda: d.gaussian_barycentre(torch.zeros(3, 2), EYE.expand(3, 2, 2), torch.ones(2)),
    "weights must not all be 0": lambda: d.average_anchors(torch.zeros(3, 1, 2), weights=torch.zeros(3)),
    "weights must be finite and not negative": lambda: d.average_anchors(torch.zeros(2, 1, 2), weights=TWO - 1),
    "at least one member": lambda: d.average_anchors(torch.zeros(0, 1, 2)),
    "cholesky must have shape": lambda: d.average_anchors(torch.zeros(3, 1, 2), torch.zeros(3, 1, 2)),
    "variances must be positive": lambda: d.product_of_experts(EYE, EYE),
    "means and variances must have one shape": lambda: d.product_of_experts(EYE, TWO),
    r"one shape \(N, ..., k\), got \(2,\)": lambda: d.product_of_experts(TWO, TWO + 1),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


def test_principal_angle_of_lines_and_of_dependent_columns():
    """One column is a line: the sine of the angle between two vectors. Dependence may hide behind the second column."""
    a, b = normal(6, 1, seed=1), normal(6, 1, seed=2)
    cosine = float((a * b).sum() / (a.norm() * b.norm()))
    assert float(d.principal_angle(a, b)) == pytest.approx(math.sqrt(1 - cosine**2))
    A = normal(6, 3, seed=3)
    A[:, 2] = A[:, 0] - 2 * A[:, 1]
    with pytest.raises(ValueError, match="A must have linearly independent columns"):
        d.principal_angle(A, normal(6, 3, seed=4))
