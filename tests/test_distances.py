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
from torch.autograd import gradcheck

from hetfl_core import distances as d


def rng(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64).to(dtype)


def covariance(*batch, k=4, rank=None, seed=0):
    A = normal(*batch, k, rank or k + 2, seed=seed)
    return A @ A.mT / A.shape[-1]


def rotation(k, seed=0):
    return torch.linalg.qr(normal(k, k, seed=seed)).Q


def value_and_gradients(function, *tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    value = function(*leaves)
    value.sum().backward()
    return value.detach(), [t.grad for t in leaves]


def agree(a, b, tolerance=1e-8):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- the anchor term ---


def stack(K=3, n=12, k=5, C=6, seed=0, per_client=3, dtype=torch.float64):
    """K clients with `per_client` of C classes each; the last rows of all but the first are padding."""
    g = rng(seed)
    classes = torch.stack([torch.randperm(C, generator=g)[:per_client] for _ in range(K)])
    y = classes.gather(1, torch.randint(per_client, (K, n), generator=g))
    true = torch.tensor([n - (2 * i) % n for i in range(K)])
    weight = (torch.arange(n) < true[:, None]).to(dtype)
    return normal(K, n, k, seed=seed + 1, dtype=dtype), y, weight, normal(C, k, seed=seed + 2, dtype=dtype)


def factors(C=6, k=5, seed=3):
    return normal(C, k, k, seed=seed).tril() + torch.eye(k, dtype=torch.float64)


def lifted(z, y, weight, means, cholesky=None, variance=1.0):
    dims = (0, 0, 0, None if means.dim() == 2 else 0, None if cholesky is None or cholesky.dim() == 3 else 0)

    def one(z, y, w, v, L):
        return d.class_wasserstein(z, y, w, v, L, variance)

    if cholesky is None:
        return torch.func.vmap(lambda z, y, w, v: one(z, y, w, v, None), in_dims=dims[:4])(z, y, weight, means)
    return torch.func.vmap(one, in_dims=dims)(z, y, weight, means, cholesky)


def looped(z, y, weight, means, cholesky=None, variance=1.0):
    """The oracle, client by client; it never sees the padded rows."""
    values = []
    for i in range(len(z)):
        v = means if means.dim() == 2 else means[i]
        L = cholesky if cholesky is None or cholesky.dim() == 3 else cholesky[i]
        values.append(d.class_wasserstein_loop(z[i], y[i], weight[i], v, L, variance))
    return torch.stack(values)


SHAPES = [(3, 12, 5), (2, 9, 16), (4, 1, 3), (2, d.BLOCK_ROWS + 6, 5), (2, d.BLOCK_ROWS, 40)]


@pytest.mark.parametrize(("K", "n", "k"), SHAPES)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_anchor_term_equals_the_loop(K, n, k, own):
    z, y, weight, means = stack(K, n, k)
    means = means + normal(K, 6, k, seed=9) if own else means
    fast, slow = (
        value_and_gradients(lambda z, v, f=f: f(z, y, weight, v, variance=1.7), z, means) for f in (lifted, looped)
    )
    agree(fast[0], slow[0])
    agree(fast[1], slow[1])


@pytest.mark.parametrize(("K", "n", "k"), SHAPES)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_anchor_term_with_factors_equals_the_loop(K, n, k, own):
    z, y, weight, means = stack(K, n, k)
    L = factors(k=k) + 0.1 * normal(K, 6, k, k, seed=9).tril() if own else factors(k=k)
    fast, slow = (
        value_and_gradients(lambda z, v, L, f=f: f(z, y, weight, v, L), z, means, L) for f in (lifted, looped)
    )
    agree(fast[0], slow[0])
    agree(fast[1], slow[1])


def test_anchor_term_is_the_sum_of_pots_distances():
    z, y, _, means = (t[0] if t.dim() > 1 and i < 3 else t for i, t in enumerate(stack(1, 40, 5)))
    L = factors()
    expected = 0.0
    for c in y.unique().tolist():
        rows = z[y == c].numpy()
        args = means[c].numpy(), rows.mean(0), (L[c] @ L[c].T).numpy(), np.cov(rows, rowvar=False)
        expected += ot.gaussian.bures_wasserstein_distance(*args) ** 2
    assert d.class_wasserstein(z, y, torch.ones(40), means, L).item() == pytest.approx(expected, rel=1e-6)


def test_anchor_term_by_hand():
    # Class 0: rows 0 and 2, so mean 1 and variance 2; anchor N(4, 1): 9 + (sqrt 2 - 1)^2.
    # Class 1: one row at 5, variance 0; anchor N(7, 1): 4 + 1. Class 2 is absent.
    z, y = torch.tensor([[0.0], [5.0], [2.0]]), torch.tensor([0, 1, 0])
    value = d.class_wasserstein(z, y, torch.ones(3), torch.tensor([[4.0], [7.0], [1e9]]))
    assert value.item() == pytest.approx(9 + (math.sqrt(2) - 1) ** 2 + 5)


def test_identity_factors_are_the_default():
    z, y, weight, means = stack()
    agree(lifted(z, y, weight, means), lifted(z, y, weight, means, torch.eye(5, dtype=torch.float64).expand(6, 5, 5)))


def test_anchor_term_gradcheck():
    z, y, weight, means = (t[1] if i < 3 else t for i, t in enumerate(stack(2, 11, 4)))
    z, means, L = (t.requires_grad_() for t in (z, means, factors(k=4)))
    assert gradcheck(lambda z, v: d.class_wasserstein(z, y, weight, v, variance=0.5), (z, means))
    assert gradcheck(lambda z, v, L: d.class_wasserstein(z, y, weight, v, L), (z, means, L))


@pytest.mark.parametrize("n", [7, d.BLOCK_ROWS + 5])
@pytest.mark.parametrize("with_factors", [False, True])
def test_padding_changes_nothing(n, with_factors):
    z, y, _, means = stack(1, n, 5)
    z, y, L = z[0], y[0], factors() if with_factors else None

    def run(z, y, weight):
        return value_and_gradients(lambda z, v: d.class_wasserstein(z, y, weight, v, L), z, means)

    plain = run(z, y, torch.ones(n, dtype=z.dtype))
    junk = torch.cat((z, 50 + normal(4, 5, seed=8)))
    padded = run(junk, torch.cat((y, torch.tensor([0, 5, 0, 3]))), torch.cat((torch.ones(n), torch.zeros(4))).to(z))
    agree(padded[0], plain[0], 1e-11)
    agree(padded[1][0][:n], plain[1][0], 1e-11)
    agree(padded[1][1], plain[1][1], 1e-11)
    assert (padded[1][0][n:] == 0).all()


def test_a_batch_of_padding_is_zero():
    z, y, _, means = stack(1, 6, 5)
    value, (grad, anchor) = value_and_gradients(
        lambda z, v: d.class_wasserstein(z, y[0], torch.zeros(6), v), z[0], means
    )
    assert value == 0
    assert (grad == 0).all()
    assert (anchor == 0).all()


DEGENERATE = {
    "one row": lambda n, k: normal(1, k),
    "one row a class": lambda n, k: normal(3, k),
    "equal rows": lambda n, k: normal(1, k).expand(n, k) + 1e3,
    "all zero": lambda n, k: torch.zeros(n, k, dtype=torch.float64),
    "on a line": lambda n, k: normal(n, 1) @ normal(1, k, seed=1),
    "doubled": lambda n, k: normal(n // 2, k).repeat(2, 1),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("n", [10, d.BLOCK_ROWS + 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("anchor", ["identity", "singular"])
def test_degenerate_batches_are_finite_and_right(case, n, dtype, anchor):
    z = DEGENERATE[case](n, 6).to(dtype)
    y = torch.arange(len(z)) % (1 if case.startswith("equal") else 3)
    weight, means = torch.ones(len(z), dtype=dtype), normal(4, 6, seed=2, dtype=dtype)
    L = None if anchor == "identity" else torch.diag_embed(torch.tensor([1.0, 2, 0, 0, 1, 1])).expand(4, 6, 6).to(dtype)
    leaves = (z, means) if L is None else (z, means, L)
    value, grads = value_and_gradients(lambda z, v, *L: d.class_wasserstein(z, y, weight, v, *L), *leaves)
    expected = d.class_wasserstein_loop(z.double(), y, weight, means.double(), None if L is None else L.double())
    assert value.item() == pytest.approx(expected.item(), rel=1e-6 if dtype == torch.float32 else 1e-8)
    assert all(g.isfinite().all() for g in grads)
    assert max(g.abs().max() for g in grads) < 1e5


def test_one_row_is_only_pulled_to_the_mean():
    z, means = normal(1, 5), normal(2, 5, seed=1)
    _, (grad,) = value_and_gradients(lambda z: d.class_wasserstein(z, torch.tensor([1]), torch.ones(1), means), z)
    agree(grad[0], 2 * (z[0] - means[1]), 1e-12)


@pytest.mark.parametrize("n", [10, d.BLOCK_ROWS])
def test_equal_rows_do_not_feel_rounding(n):
    """The rounding of a mean is not a direction: rows that are equal are only pulled to the anchor."""
    for dtype in (torch.float32, torch.float64):
        z = (normal(1, 5) + 100).expand(n, 5).to(dtype)
        means = torch.zeros(1, 5, dtype=dtype)
        y, w = torch.zeros(n, dtype=torch.long), torch.ones(n)
        _, (grad,) = value_and_gradients(lambda z, m=means, y=y, w=w: d.class_wasserstein(z, y, w, m), z)
        torch.testing.assert_close(grad, 2 * z / n, rtol=1e-4, atol=0)


@pytest.mark.parametrize("n", [8, d.BLOCK_ROWS])
def test_nan_stays_with_its_client(n):
    z, y, weight, means = stack(3, n, 5)
    good = value_and_gradients(lambda z: lifted(z, y, weight, means), z)
    z[1] = float("nan")
    value, (grad,) = value_and_gradients(lambda z: lifted(z, y, weight, means), z)
    assert value[1].isnan()
    agree(value[[0, 2]], good[0][[0, 2]], 1e-12)
    agree(grad[[0, 2]], good[1][0][[0, 2]], 1e-12)


def test_both_decompositions_agree(monkeypatch):
    z, y, weight, means = stack(3, 70, 30)
    results = []
    for rows in (0, 10**9):
        monkeypatch.setattr(d, "BLOCK_ROWS", rows)
        results.append(value_and_gradients(lambda z: lifted(z, y, weight, means), z))
    agree(*[r[0] for r in results], 1e-11)
    agree(*[r[1] for r in results], 1e-10)


def test_float32_is_close_to_float64():
    z, y, weight, means = stack(4, 20, 32, dtype=torch.float32)
    value, (grad,) = value_and_gradients(lambda z: lifted(z, y, weight, means), z)
    exact, (slope,) = value_and_gradients(lambda z: lifted(z, y, weight.double(), means.double()), z.double())
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.double(), slope, rtol=1e-4, atol=1e-5)


def test_labels_may_be_32_bit_and_transforms_may_nest():
    z, y, weight, means = stack()
    expected = value_and_gradients(lambda z: looped(z, y, weight, means), z)
    grad = torch.func.vmap(torch.func.grad(d.class_wasserstein), in_dims=(0, 0, 0, None))(z, y.int(), weight, means)
    agree(grad, expected[1][0])
    own = means.expand(3, 6, 5)
    grads = torch.func.vmap(torch.func.grad(d.class_wasserstein, argnums=(0, 3)))(z, y.int(), weight, own)
    agree(grads[0], expected[1][0])
    twice = torch.func.vmap(lambda z: lifted(z, y, weight, means))(torch.stack((z, 2 * z)))
    agree(twice[1], looped(2 * z, y, weight, means))
    shifted = torch.func.vmap(lambda v: lifted(z, y, weight, v))(torch.stack((means, means + 1)))
    agree(shifted[1], looped(z, y, weight, means + 1))
    for L in (factors(), factors() + torch.zeros(3, 1, 1, 1, dtype=torch.float64)):
        dims = (0, 0, 0, None, None if L.dim() == 3 else 0)
        grads = torch.func.vmap(torch.func.grad(d.class_wasserstein), in_dims=dims)(z, y, weight, means, L)
        agree(grads, value_and_gradients(lambda z: looped(z, y, weight, means, factors()), z)[1][0])


def second_derivative(function, x):
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(function(x) + x.square().sum(), x, create_graph=True)
    grad.square().sum().backward()


def test_differentiating_twice_is_refused():
    z, y, weight, means = (t[0] if i < 3 else t for i, t in enumerate(stack()))
    S = covariance()
    for function, x in (
        (lambda z: d.class_wasserstein(z, y, weight, means), z),
        (lambda v: d.class_wasserstein(z, y, weight, v), means),
        (lambda z: d.class_wasserstein(z, y, weight, means, factors()), z),
        (lambda S1: d.bures((S1 + S1.mT) / 2, S), covariance(seed=1)),
    ):
        with pytest.raises(RuntimeError, match="first derivatives only"):
            second_derivative(function, x)
        with pytest.raises(RuntimeError, match="first derivatives only"):
            torch.func.grad(lambda x, f=function: torch.func.grad(f)(x).square().sum())(x)


def test_order_of_rows_and_of_clients_does_not_matter():
    z, y, weight, means = stack(4, 15, 5)
    rows, clients = torch.randperm(15, generator=rng(1)), torch.tensor([2, 0, 3, 1])
    agree(lifted(z[:, rows], y[:, rows], weight[:, rows], means), lifted(z, y, weight, means), 1e-12)
    agree(lifted(z[clients], y[clients], weight[clients], means), lifted(z, y, weight, means)[clients], 1e-12)


def test_sampled_anchor_term_is_the_distance_between_empirical_gaussians():
    z, y, weight, means = stack(3, 14, 5)
    samples = means[y] + normal(3, 14, 5, seed=7)
    fast = torch.func.vmap(lambda z, s, y, w: d.class_wasserstein_sampled(z, s, y, w, 6))

    def slow(z, s):
        values = []
        for i in range(3):
            total = 0.0
            for c in y[i][weight[i] > 0].unique().tolist():
                rows = (y[i] == c) & (weight[i] > 0)
                (m1, A), (m2, B) = (
                    (t.mean(0), (t - t.mean(0)) / max(len(t) - 1, 1) ** 0.5) for t in (z[i, rows], s[i, rows])
                )
                total = total + d.bures_wasserstein(m1, A.mT @ A, m2, B.mT @ B)
            values.append(total)
        return torch.stack(values)

    got, expected = (value_and_gradients(f, z, samples) for f in (lambda z, s: fast(z, s, y, weight), slow))
    agree(got[0], expected[0], 1e-7)
    agree(got[1], expected[1], 1e-6)


def test_sampled_anchor_term_of_equal_rows_is_finite():
    z, y = torch.ones(6, 4), torch.tensor([0, 0, 0, 1, 1, 2])
    value, grads = value_and_gradients(lambda z, s: d.class_wasserstein_sampled(z, s, y, torch.ones(6), 3), z, z + 1)
    assert value.item() == pytest.approx(12)
    assert all(g.isfinite().all() for g in grads)


def test_class_moments_are_numpys():
    z, y, weight, _ = (t[1] if i < 3 else t for i, t in enumerate(stack(2, 30, 5)))
    counts, means, covariances = d.class_moments(z, y, weight, 6, covariance=True)
    for c in range(6):
        rows = z[(y == c) & (weight > 0)].numpy()
        assert counts[c] == len(rows)
        if len(rows) > 1:
            np.testing.assert_allclose(means[c], rows.mean(0), atol=1e-12)
            np.testing.assert_allclose(covariances[c], np.cov(rows, rowvar=False), atol=1e-12)
        elif not len(rows):
            assert not means[c].any()
            assert not covariances[c].any()
    lifted_counts, _ = torch.func.vmap(lambda z, y, w: d.class_moments(z, y, w, 6))(z[None], y[None], weight[None])
    agree(lifted_counts[0], counts)


# --- W2 between Gaussians ---


def test_bures_wasserstein_is_pots_and_pyriemanns():
    geometry = pytest.importorskip("pyriemann.geometry.distance")
    m1, m2, S1, S2 = normal(4), normal(4, seed=1), covariance(seed=2), covariance(seed=3)
    ours = d.bures_wasserstein(m1, S1, m2, S2).item()
    args = [t.numpy() for t in (m1, m2, S1, S2)]
    assert ours == pytest.approx(ot.gaussian.bures_wasserstein_distance(*args) ** 2, rel=1e-7)
    assert d.bures(S1, S2).item() == pytest.approx(geometry.distance_wasserstein(*args[2:], squared=True), rel=1e-7)


def test_bures_wasserstein_forms_agree():
    m1, m2, v1, v2 = normal(3, 4), normal(4, seed=1), normal(3, 4, seed=2).square(), normal(4, seed=3).square()

    def full(m1, v1, m2, v2):
        return d.bures_wasserstein(m1, v1.diag_embed(), m2, v2.diag_embed())

    a, b = (value_and_gradients(f, m1, v1, m2, v2) for f in (full, d.bures_wasserstein_diagonal))
    agree(a[0], b[0])
    agree(a[1], b[1])
    eye = torch.eye(4, dtype=torch.float64)
    agree(d.bures_wasserstein_isotropic(m1, 2.0, m2, 0.5), d.bures_wasserstein(m1, 2 * eye, m2, eye / 2))


def test_bures_gradcheck():
    S1, S2 = (covariance(2, k=3, seed=s).requires_grad_() for s in (0, 1))
    m1, m2 = (normal(2, 3, seed=s).requires_grad_() for s in (2, 3))
    v1, v2 = (normal(2, 3, seed=s).square().requires_grad_() for s in (4, 5))

    def symmetric(m1, S1, m2, S2):
        return d.bures_wasserstein(m1, (S1 + S1.mT) / 2, m2, (S2 + S2.mT) / 2)

    assert gradcheck(symmetric, (m1, S1, m2, S2))
    assert gradcheck(d.bures_wasserstein_diagonal, (m1, v1, m2, v2))
    assert gradcheck(d.bures_wasserstein_isotropic, (m1, v1[:, 0].detach().requires_grad_(), m2, v2[:, 0]))


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


def test_diagonal_with_zero_variance_is_finite():
    m, v = normal(3), torch.tensor([0.0, 1, 0], dtype=torch.float64)
    value, grads = value_and_gradients(d.bures_wasserstein_diagonal, m, v, m + 1, torch.tensor([2.0, 1, 0]).double())
    assert value.item() == pytest.approx(5)
    assert all(g.isfinite().all() for g in grads)


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


def only(y, n, c=0):
    """The rows of class c that are not padding."""
    return [i for i in range(len(y)) if y[i] == c and n[i] > 0]


@pytest.mark.parametrize("h", [0.4, 2.0])
def test_mmd_to_an_anchor_is_the_mmd_to_many_of_its_samples(h):
    z, v, variance = normal(30, 2), torch.tensor([[1.0, -1.0]], dtype=torch.float64), 1.7
    samples = v + variance**0.5 * normal(6000, 2, seed=1)
    y, weight = torch.zeros(30, dtype=torch.long), torch.ones(30, dtype=torch.float64)
    expected = d.mmd(z, samples, h)
    assert d.class_mmd(z, y, weight, v, variance, h).item() == pytest.approx(expected.item(), abs=4e-3)


def test_mmd_to_an_anchor_is_its_integral():
    """In one dimension: E κ(z, Z) and E κ(Z, Z') by quadrature."""
    z, v, variance, h = [0.3, -1.1], 0.8, 0.6, 0.9

    def kernel(a, b):
        return math.exp(-((a - b) ** 2) / (2 * h**2))

    density = scipy.stats.norm(v, variance**0.5).pdf
    cross = [scipy.integrate.quad(lambda t, a=a: kernel(a, t) * density(t), -8, 8)[0] for a in z]
    anchor = scipy.integrate.dblquad(lambda s, t: kernel(s, t) * density(s) * density(t), -6, 7, -6, 7)[0]
    within = np.mean([kernel(a, b) for a in z for b in z])
    value = d.class_mmd(
        torch.tensor(z).double().unsqueeze(1), torch.zeros(2, dtype=torch.long), torch.ones(2).double(),
        torch.tensor([[v]]).double(), variance, h,
    )  # fmt: skip
    assert value.item() == pytest.approx(within - 2 * np.mean(cross) + anchor, rel=1e-6)


def test_mmd_to_an_anchor_follows_the_distance_by_default():
    """h² is the mean squared distance between a row and a sample of the anchor; far away a gradient is left."""
    z, v = normal(7, 3) + 50, torch.zeros(1, 3, dtype=torch.float64)
    y, weight = torch.zeros(7, dtype=torch.long), torch.ones(7, dtype=torch.float64)
    h = math.sqrt(float(z.square().sum(1).mean()) + 3 * 2.0)
    value, (grad,) = value_and_gradients(lambda v: d.class_mmd(z, y, weight, v, 2.0), v)
    assert value.item() == pytest.approx(d.class_mmd(z, y, weight, v, 2.0, h).item())
    assert (grad < -1e-3).all(), "a step against it takes the anchor's mean, at 0, towards the rows, at 50"
    _, (narrow,) = value_and_gradients(lambda v: d.class_mmd(z, y, weight, v, 2.0, 1.0), v)
    assert float(narrow.abs().max()) < 1e-100, "with h = 1 there would be none"


BETWEEN = {
    "mmd": lambda z, y, w, v: d.class_mmd(z, y, w, v, 1.5),
    "mixture": lambda z, y, w, v: d.class_mixture_wasserstein(z, y, w, torch.stack((v, v + 3, 2 - v), 1), 1.5),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_terms_between_samples_and_anchors_lift_and_ignore_padding(name, dtype):
    """Stacked with padding, client by client without: values and gradients; the sum is that over single classes."""
    term = BETWEEN[name]
    z, y, weight, means = stack(n=14, dtype=dtype)
    z = torch.where(weight.unsqueeze(-1) > 0, z, 77.0)
    lifted_term = torch.func.vmap(term, in_dims=(0, 0, 0, None))
    values, (dz, dv) = value_and_gradients(lambda z, v: lifted_term(z, y, weight, v), z, means)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    total = torch.zeros_like(means)
    for i in range(len(z)):
        n = int(weight[i].sum())
        value, (gz, gv) = value_and_gradients(lambda z, v: term(z, y[i, :n], weight[i, :n], v), z[i, :n], means)  # noqa: B023
        agree(values[i], value, tolerance)
        agree(dz[i, :n], gz, tolerance)
        assert not dz[i, n:].any()
        total += gv
        rows = [only(y[i], weight[i], c) for c in range(6)]
        alone = sum(term(z[i, r], y[i, r], weight[i, r], means) for r in rows if r)
        agree(values[i], alone, tolerance)
    agree(dv, total, tolerance)
    empty = term(z[0], y[0], 0 * weight[0], means)
    assert empty.item() == 0


@pytest.mark.parametrize("name", BETWEEN)
def test_terms_between_samples_and_anchors_gradcheck(name):
    z, y, weight, means = (t[0] if t.dim() > 1 and len(t) == 3 else t for t in stack())
    if name == "mmd":  # its default bandwidth follows both and is not differentiated
        term = lambda z, v: d.class_mmd(z, y, weight, v, 1.5, 2.0)  # noqa: E731
    else:
        term = lambda z, v: BETWEEN[name](z, y, weight, v)  # noqa: E731
    assert gradcheck(term, (z.requires_grad_(), means.requires_grad_()))


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
    assert torch.equal(torch.func.vmap(d.transport_plan)(cost, a, b), plan)
    whole = d.transport_plan(cost, 5 * a, 5 * b)
    agree(whole, plan, 1e-12)


def test_mixture_wasserstein_is_pots():
    a, b = torch.tensor([0.2, 0.3, 0.5]).double(), torch.tensor([0.6, 0.4]).double()
    m1, m2, S1, S2 = normal(3, 4), normal(2, 4, seed=1), covariance(3), covariance(2, seed=1)
    expected = ot.gmm.gmm_ot_loss(m1, m2, S1, S2, a, b)
    value = d.mixture_wasserstein(a, m1, S1, b, m2, S2)
    agree(value, expected, 1e-7)  # POT's plan is off by 1e-8
    agree(d.mixture_wasserstein(b, m2, S2, a, m1, S1), value)
    one, other = torch.ones(1).double(), [2, 0, 1]
    single = d.mixture_wasserstein(one, m1[:1], S1[:1], one, m2[:1], S2[:1])
    agree(single, d.bures_wasserstein(m1[0], S1[0], m2[0], S2[0]))
    assert d.mixture_wasserstein(a, m1, S1, a[other], m1[other], S1[other]).item() == pytest.approx(0, abs=1e-9)
    stacked = d.mixture_wasserstein(*(t.expand(5, *t.shape) for t in (a, m1, S1, b, m2, S2)))
    agree(stacked, value.expand(5))


def test_mixture_term_is_pots_distance_to_the_clusters():
    """Three clusters of 20, 20 and 10 rows, far apart, are found; what is left is MW2 between two mixtures."""
    label = torch.cat((torch.arange(40) % 2, torch.full((10,), 2)))
    z = 30 * torch.eye(3).double()[label] + normal(50, 3)
    means, variance = 10 * normal(1, 3, 3, seed=1), 2.0
    found = [z[label == i] for i in range(3)]
    expected = ot.gmm.gmm_ot_loss(
        means[0], torch.stack([rows.mean(0) for rows in found]),
        variance * torch.eye(3).double().expand(3, 3, 3), torch.stack([rows.T.cov() for rows in found]),
        torch.full((3,), 1 / 3).double(), torch.tensor([0.4, 0.4, 0.2]).double(),
    )  # fmt: skip
    y, weight = torch.zeros(50, dtype=torch.long), torch.ones(50, dtype=torch.float64)
    agree(d.class_mixture_wasserstein(z, y, weight, means, variance), expected, 1e-7)
    order = torch.randperm(50, generator=rng(3))
    agree(d.class_mixture_wasserstein(z[order], y, weight, means, variance), expected, 1e-7)


def test_mixture_term_of_one_component_is_the_anchor_term():
    for i, (z, y, weight) in enumerate(zip(*stack(n=15)[:3], strict=True)):
        means = normal(6, 5, seed=i)
        agree(
            d.class_mixture_wasserstein(z, y, weight, means.unsqueeze(1), 1.5),
            d.class_wasserstein(z, y, weight, means, variance=1.5),
        )


def test_mixture_term_of_fewer_rows_than_components_is_finite():
    z = torch.ones(2, 4, dtype=torch.float64)
    y, weight = torch.tensor([0, 1]), torch.ones(2, dtype=torch.float64)
    means = normal(2, 3, 4)
    value, (grad,) = value_and_gradients(lambda z: d.class_mixture_wasserstein(z, y, weight, means), z)
    point = (means - 1).square().sum(-1).mean(-1).sum() + 2 * 4
    agree(value, point)
    agree(grad, -2 * (means - 1).mean(1))


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


# --- bad input ---

EYE, TWO = torch.eye(2), torch.zeros(2)
BAD = {
    "S2 must have shape": lambda: d.bures_wasserstein(TWO, EYE, TWO, torch.eye(3)),
    "m1 must be finite": lambda: d.bures_wasserstein(TWO / 0, EYE, TWO, EYE),
    "S1 must be finite": lambda: d.bures(EYE * math.nan, EYE),
    "S1 must be symmetric": lambda: d.bures(torch.tensor([[1.0, 1], [0, 1]]), EYE),
    "S2 must be positive semi-definite": lambda: d.bures(EYE, -EYE),
    "S1 and S2 must be of one size": lambda: d.bures(EYE, torch.eye(3)),
    "S1 must have shape": lambda: d.bures(TWO, EYE),
    "v1 must be at least 0": lambda: d.bures_wasserstein_diagonal(TWO, TWO - 1, TWO, TWO),
    "v2 must have shape": lambda: d.bures_wasserstein_diagonal(TWO, TWO, TWO, torch.ones(3)),
    "v2 must be at least 0": lambda: d.bures_wasserstein_isotropic(TWO, 1.0, TWO, -1.0),
    "v2 must be positive ": lambda: d.gaussian_kl(TWO, TWO + 1, TWO, TWO),
    "v1 must be positive definite": lambda: d.gaussian_kl(TWO, 0 * EYE, TWO, EYE),
    "both be variances": lambda: d.gaussian_kl(TWO, TWO + 1, TWO, EYE),
    "n, m >= 2": lambda: d.mmd(EYE, EYE[:1], unbiased=True),
    "bandwidth must be positive": lambda: d.mmd(EYE, EYE, 0.0),
    "P, Q <= 3": lambda: d.transport_plan(torch.ones(4, 2), torch.ones(4), 2 * torch.ones(2)),
    "must have the same sum": lambda: d.transport_plan(torch.ones(2, 2), torch.ones(2), 2 * torch.ones(2)),
    "with the same n": lambda: d.cka(EYE, torch.ones(3, 2)),
    "A and B must both have shape": lambda: d.principal_angle(EYE, torch.ones(3, 2)),
    "B must have linearly independent columns": lambda: d.principal_angle(EYE, torch.ones(2, 2)),
    "weights must have shape": lambda: d.gaussian_barycentre(torch.zeros(3, 2), EYE.expand(3, 2, 2), torch.ones(2)),
    "weights must not all be 0": lambda: d.average_anchors(torch.zeros(3, 1, 2), weights=torch.zeros(3)),
    "weights must be finite and not negative": lambda: d.average_anchors(torch.zeros(2, 1, 2), weights=TWO - 1),
    "at least one member": lambda: d.average_anchors(torch.zeros(0, 1, 2)),
    "cholesky must have shape": lambda: d.average_anchors(torch.zeros(3, 1, 2), torch.zeros(3, 1, 2)),
    "variances must be positive": lambda: d.product_of_experts(EYE, EYE),
    "means and variances must have one shape": lambda: d.product_of_experts(EYE, TWO),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
