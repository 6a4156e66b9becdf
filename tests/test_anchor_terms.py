"""Anchor terms against the loop, POT, closed forms and their gradients."""

import math

import numpy as np
import ot
import pytest
import scipy.integrate
import torch
from tensors import agree, normal, refuses_a_second_derivative, rng, value_and_gradients
from torch.autograd import gradcheck

from hetfl_core.distances import bures_wasserstein, expected_root_trace, mmd
from hetfl_core.methods import anchor_terms as terms


def class_wasserstein_loop(z, y, weight, means, cholesky=None, variance=1.0):
    """The slow, obvious twin of `class_wasserstein`: class by class, nuclear norms by singular values, no `vmap`."""
    k, total = means.shape[-1], z.new_zeros(())
    for c in y[weight > 0].unique().tolist():
        rows = z[(y == c) & (weight > 0)]
        factor = variance**0.5 * torch.eye(k, dtype=z.dtype, device=z.device) if cholesky is None else cholesky[c]
        centred = (rows - rows.mean(0)) / max(len(rows) - 1, 1) ** 0.5
        bures_part = factor.square().sum() + centred.square().sum() - 2 * torch.linalg.svdvals(centred @ factor).sum()
        total = total + (means[c] - rows.mean(0)).square().sum() + bures_part
    return total


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
        return terms.class_wasserstein(z, y, w, v, L, variance)

    if cholesky is None:
        return torch.func.vmap(lambda z, y, w, v: one(z, y, w, v, None), in_dims=dims[:4])(z, y, weight, means)
    return torch.func.vmap(one, in_dims=dims)(z, y, weight, means, cholesky)


def looped(z, y, weight, means, cholesky=None, variance=1.0):
    """The oracle, client by client; it never sees the padded rows."""
    values = []
    for i in range(len(z)):
        v = means if means.dim() == 2 else means[i]
        L = cholesky if cholesky is None or cholesky.dim() == 3 else cholesky[i]
        values.append(class_wasserstein_loop(z[i], y[i], weight[i], v, L, variance))
    return torch.stack(values)


SHAPES = [(3, 12, 5), (2, 9, 16), (4, 1, 3), (2, terms.BLOCK_ROWS + 6, 5), (2, terms.BLOCK_ROWS, 40)]


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
    assert terms.class_wasserstein(z, y, torch.ones(40), means, L).item() == pytest.approx(expected, rel=1e-6)


def test_anchor_term_by_hand():
    # Class 0: rows 0 and 2, so mean 1 and variance 2; anchor N(4, 1): 9 + (sqrt 2 - 1)^2.
    # Class 1: one row at 5, variance 0; anchor N(7, 1): 4 + 1. Class 2 is absent.
    z, y = torch.tensor([[0.0], [5.0], [2.0]]), torch.tensor([0, 1, 0])
    value = terms.class_wasserstein(z, y, torch.ones(3), torch.tensor([[4.0], [7.0], [1e9]]))
    assert value.item() == pytest.approx(9 + (math.sqrt(2) - 1) ** 2 + 5)


def test_identity_factors_are_the_default():
    z, y, weight, means = stack()
    agree(lifted(z, y, weight, means), lifted(z, y, weight, means, torch.eye(5, dtype=torch.float64).expand(6, 5, 5)))


def test_anchor_term_gradcheck():
    z, y, weight, means = (t[1] if i < 3 else t for i, t in enumerate(stack(2, 11, 4)))
    z, means, L = (t.requires_grad_() for t in (z, means, factors(k=4)))
    assert gradcheck(lambda z, v: terms.class_wasserstein(z, y, weight, v, variance=0.5), (z, means))
    assert gradcheck(lambda z, v, L: terms.class_wasserstein(z, y, weight, v, L), (z, means, L))


@pytest.mark.parametrize("n", [7, terms.BLOCK_ROWS + 5])
@pytest.mark.parametrize("with_factors", [False, True])
def test_padding_changes_nothing(n, with_factors):
    z, y, _, means = stack(1, n, 5)
    z, y, L = z[0], y[0], factors() if with_factors else None

    def run(z, y, weight):
        return value_and_gradients(lambda z, v: terms.class_wasserstein(z, y, weight, v, L), z, means)

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
        lambda z, v: terms.class_wasserstein(z, y[0], torch.zeros(6), v), z[0], means
    )
    assert value == 0
    assert (grad == 0).all()
    assert (anchor == 0).all()


DEGENERATE = {
    "one row": lambda n, k: normal(1, k),
    "one row per class": lambda n, k: normal(3, k),
    "equal rows": lambda n, k: normal(1, k).expand(n, k) + 1e3,
    "all zero": lambda n, k: torch.zeros(n, k, dtype=torch.float64),
    "on a line": lambda n, k: normal(n, 1) @ normal(1, k, seed=1),
    "doubled": lambda n, k: normal(n // 2, k).repeat(2, 1),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("n", [10, terms.BLOCK_ROWS + 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("anchor", ["identity", "singular"])
def test_degenerate_batches_are_finite_and_right(case, n, dtype, anchor):
    z = DEGENERATE[case](n, 6).to(dtype)
    y = torch.arange(len(z)) % (1 if case.startswith("equal") else 3)
    weight, means = torch.ones(len(z), dtype=dtype), normal(4, 6, seed=2, dtype=dtype)
    L = None if anchor == "identity" else torch.diag_embed(torch.tensor([1.0, 2, 0, 0, 1, 1])).expand(4, 6, 6).to(dtype)
    leaves = (z, means) if L is None else (z, means, L)
    value, grads = value_and_gradients(lambda z, v, *L: terms.class_wasserstein(z, y, weight, v, *L), *leaves)
    expected = class_wasserstein_loop(z.double(), y, weight, means.double(), None if L is None else L.double())
    assert value.item() == pytest.approx(expected.item(), rel=1e-6 if dtype == torch.float32 else 1e-8)
    assert all(g.isfinite().all() for g in grads)
    assert max(g.abs().max() for g in grads) < 1e5


def test_one_row_is_only_pulled_to_the_mean():
    z, means = normal(1, 5), normal(2, 5, seed=1)
    _, (grad,) = value_and_gradients(lambda z: terms.class_wasserstein(z, torch.tensor([1]), torch.ones(1), means), z)
    agree(grad[0], 2 * (z[0] - means[1]), 1e-12)


@pytest.mark.parametrize("n", [10, terms.BLOCK_ROWS])
def test_equal_rows_do_not_feel_rounding(n):
    """The rounding of a mean is not a direction: rows that are equal are only pulled to the anchor."""
    for dtype in (torch.float32, torch.float64):
        z = (normal(1, 5) + 100).expand(n, 5).to(dtype)
        means = torch.zeros(1, 5, dtype=dtype)
        y, w = torch.zeros(n, dtype=torch.long), torch.ones(n)
        _, (grad,) = value_and_gradients(lambda z, m=means, y=y, w=w: terms.class_wasserstein(z, y, w, m), z)
        torch.testing.assert_close(grad, 2 * z / n, rtol=1e-4, atol=0)


def test_equal_rows_do_not_feel_rounding_beside_a_wide_anchor():
    """What rounding can make up grows with the anchor's covariance, which multiplies it."""
    z, means = (normal(1, 5) + 100).expand(10, 5).float(), torch.zeros(1, 5)
    y, w, wide = torch.zeros(10, dtype=torch.long), torch.ones(10), 100 * torch.eye(5).expand(1, 5, 5)
    _, (grad,) = value_and_gradients(lambda z: terms.class_wasserstein(z, y, w, means, cholesky=wide), z)
    torch.testing.assert_close(grad, 2 * z / 10, rtol=1e-4, atol=0)


@pytest.mark.parametrize("n", [8, terms.BLOCK_ROWS])
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
        monkeypatch.setattr(terms, "BLOCK_ROWS", rows)
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
    grad = torch.func.vmap(torch.func.grad(terms.class_wasserstein), in_dims=(0, 0, 0, None))(z, y.int(), weight, means)
    agree(grad, expected[1][0])
    own = means.expand(3, 6, 5)
    grads = torch.func.vmap(torch.func.grad(terms.class_wasserstein, argnums=(0, 3)))(z, y.int(), weight, own)
    agree(grads[0], expected[1][0])
    twice = torch.func.vmap(lambda z: lifted(z, y, weight, means))(torch.stack((z, 2 * z)))
    agree(twice[1], looped(2 * z, y, weight, means))
    shifted = torch.func.vmap(lambda v: lifted(z, y, weight, v))(torch.stack((means, means + 1)))
    agree(shifted[1], looped(z, y, weight, means + 1))
    for L in (factors(), factors() + torch.zeros(3, 1, 1, 1, dtype=torch.float64)):
        dims = (0, 0, 0, None, None if L.dim() == 3 else 0)
        grads = torch.func.vmap(torch.func.grad(terms.class_wasserstein), in_dims=dims)(z, y, weight, means, L)
        agree(grads, value_and_gradients(lambda z: looped(z, y, weight, means, factors()), z)[1][0])


def test_differentiating_twice_is_refused():
    z, y, weight, means = (t[0] if i < 3 else t for i, t in enumerate(stack()))
    refuses_a_second_derivative(lambda z: terms.class_wasserstein(z, y, weight, means), z)
    refuses_a_second_derivative(lambda v: terms.class_wasserstein(z, y, weight, v), means)
    refuses_a_second_derivative(lambda z: terms.class_wasserstein(z, y, weight, means, factors()), z)


def test_order_of_rows_and_of_clients_does_not_matter():
    z, y, weight, means = stack(4, 15, 5)
    rows, clients = torch.randperm(15, generator=rng(1)), torch.tensor([2, 0, 3, 1])
    agree(lifted(z[:, rows], y[:, rows], weight[:, rows], means), lifted(z, y, weight, means), 1e-12)
    agree(lifted(z[clients], y[clients], weight[clients], means), lifted(z, y, weight, means)[clients], 1e-12)


def test_sampled_anchor_term_is_the_distance_between_empirical_gaussians():
    z, y, weight, means = stack(3, 14, 5)
    samples = means[y] + normal(3, 14, 5, seed=7)
    fast = torch.func.vmap(lambda z, s, y, w: terms.class_wasserstein_sampled(z, s, y, w, 6))

    def slow(z, s):
        values = []
        for i in range(3):
            total = 0.0
            for c in y[i][weight[i] > 0].unique().tolist():
                rows = (y[i] == c) & (weight[i] > 0)
                (m1, A), (m2, B) = (
                    (t.mean(0), (t - t.mean(0)) / max(len(t) - 1, 1) ** 0.5) for t in (z[i, rows], s[i, rows])
                )
                total = total + bures_wasserstein(m1, A.mT @ A, m2, B.mT @ B)
            values.append(total)
        return torch.stack(values)

    got, expected = (value_and_gradients(f, z, samples) for f in (lambda z, s: fast(z, s, y, weight), slow))
    agree(got[0], expected[0], 1e-7)
    agree(got[1], expected[1], 1e-6)


def test_sampled_anchor_term_of_equal_rows_is_finite():
    z, y = torch.ones(6, 4), torch.tensor([0, 0, 0, 1, 1, 2])
    value, grads = value_and_gradients(
        lambda z, s: terms.class_wasserstein_sampled(z, s, y, torch.ones(6), 3), z, z + 1
    )
    assert value.item() == pytest.approx(12)
    assert all(g.isfinite().all() for g in grads)


def only(y, n, c=0):
    """The rows of class c that are not padding."""
    return [i for i in range(len(y)) if y[i] == c and n[i] > 0]


@pytest.mark.parametrize("h", [0.4, 2.0])
def test_mmd_to_an_anchor_is_the_mmd_to_many_of_its_samples(h):
    z, v, variance = normal(30, 2), torch.tensor([[1.0, -1.0]], dtype=torch.float64), 1.7
    samples = v + variance**0.5 * normal(3000, 2, seed=1)
    y, weight = torch.zeros(30, dtype=torch.long), torch.ones(30, dtype=torch.float64)
    expected = mmd(z, samples, h)
    assert terms.class_mmd(z, y, weight, v, variance, h).item() == pytest.approx(expected.item(), abs=4e-3)


def test_mmd_to_an_anchor_is_its_integral():
    """In one dimension: E κ(z, Z) and E κ(Z, Z') by quadrature."""
    z, v, variance, h = [0.3, -1.1], 0.8, 0.6, 0.9

    def kernel(a, b):
        return math.exp(-((a - b) ** 2) / (2 * h**2))

    density = scipy.stats.norm(v, variance**0.5).pdf
    cross = [scipy.integrate.quad(lambda t, a=a: kernel(a, t) * density(t), -8, 8)[0] for a in z]
    anchor = scipy.integrate.dblquad(lambda s, t: kernel(s, t) * density(s) * density(t), -6, 7, -6, 7)[0]
    within = np.mean([kernel(a, b) for a in z for b in z])
    value = terms.class_mmd(
        torch.tensor(z).double().unsqueeze(1), torch.zeros(2, dtype=torch.long), torch.ones(2).double(),
        torch.tensor([[v]]).double(), variance, h,
    )  # fmt: skip
    assert value.item() == pytest.approx(within - 2 * np.mean(cross) + anchor, rel=1e-6)


def test_mmd_to_an_anchor_follows_the_distance_by_default():
    """h² is the mean squared distance between a row and a sample of the anchor; far away a gradient is left."""
    z, v = normal(7, 3) + 50, torch.zeros(1, 3, dtype=torch.float64)
    y, weight = torch.zeros(7, dtype=torch.long), torch.ones(7, dtype=torch.float64)
    h = math.sqrt(float(z.square().sum(1).mean()) + 3 * 2.0)
    value, (grad,) = value_and_gradients(lambda v: terms.class_mmd(z, y, weight, v, 2.0), v)
    assert value.item() == pytest.approx(terms.class_mmd(z, y, weight, v, 2.0, h).item())
    assert (grad < -1e-3).all(), "a step against it takes the anchor's mean, at 0, towards the rows, at 50"
    _, (narrow,) = value_and_gradients(lambda v: terms.class_mmd(z, y, weight, v, 2.0, 1.0), v)
    assert float(narrow.abs().max()) < 1e-100, "with h = 1 there would be none"


BETWEEN = {
    "mmd": lambda z, y, w, v: terms.class_mmd(z, y, w, v, 1.5),
    "debiased": lambda z, y, w, v: terms.class_wasserstein_debiased(z, y, w, v, 1.5),
    "mixture": lambda z, y, w, v: terms.class_mixture_wasserstein(z, y, w, torch.stack((v, v + 3, 2 - v), 1), 1.5),
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
        term = lambda z, v: terms.class_mmd(z, y, weight, v, 1.5, 2.0)  # noqa: E731
    else:
        term = lambda z, v: BETWEEN[name](z, y, weight, v)  # noqa: E731
    assert gradcheck(term, (z.requires_grad_(), means.requires_grad_()))


def debiased_by_hand(z, y, means, variance):
    """Class by class, from the moments of its rows."""
    total, k = 0.0, z.shape[1]
    for c in y.unique().tolist():
        rows = z[y == c]
        n = len(rows)
        S = torch.cov(rows.mT) if n > 1 else torch.zeros(k, k).double()
        factor = k / expected_root_trace(n, k) if n > 1 else 1.0
        root = torch.linalg.svdvals(rows - rows.mean(0)).sum() / max(n - 1, 1) ** 0.5
        total += (means[c] - rows.mean(0)).square().sum() + (1 - 1 / n) * S.trace()
        total += k * variance - 2 * variance**0.5 * factor * root
    return total


def test_debiased_term_is_its_formula_class_by_class():
    z, y, _, means = (t[0] if t.dim() > 1 and len(t) == 3 else t for t in stack())
    y[0] = 5 if not (y == 5).any() else y[0]  # a class of one row
    value = terms.class_wasserstein_debiased(z, y, torch.ones(len(z)).double(), means, 1.5)
    agree(value, debiased_by_hand(z, y, means, 1.5))


@pytest.mark.parametrize(("n", "scale"), [(3, 1.0), (3, 0.4), (12, 1.7)])
def test_debiased_term_has_the_mean_of_the_true_distance_and_the_plain_one_has_not(n, scale):
    k, gap, means = 30, 2.0, torch.zeros(1, 30).double()
    y, weight = torch.zeros(n, dtype=torch.long), torch.ones(n).double()
    z = gap * torch.ones(k).double() / k**0.5 + scale * normal(2000, n, k)
    over = torch.func.vmap(lambda z: terms.class_wasserstein_debiased(z, y, weight, means))(z)
    plain = torch.func.vmap(lambda z: terms.class_wasserstein(z, y, weight, means))(z)
    true, error = gap**2 + k * (1 - scale) ** 2, float(over.std()) / 2000**0.5
    assert float(over.mean()) == pytest.approx(true, abs=4 * error + 0.1)
    assert float(plain.mean()) > true + 4


@pytest.mark.parametrize("n", [2, 3])
def test_debiased_term_does_not_feel_rounding_in_its_rows(n):
    """What rounding can make up grows with the factor by which the term stretches the rows: here 7 and 5."""
    k = 50
    z = (normal(1, k) + 100 + 1e-5 * normal(n, k, seed=1)).float()
    assert not torch.equal(z[0], z[1])
    y, w, means = torch.zeros(n, dtype=torch.long), torch.ones(n), torch.zeros(1, k)
    _, (grad,) = value_and_gradients(lambda z: terms.class_wasserstein_debiased(z, y, w, means), z)
    torch.testing.assert_close(grad, 2 * z / n, rtol=1e-4, atol=0)


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
    agree(terms.class_mixture_wasserstein(z, y, weight, means, variance), expected, 1e-7)
    order = torch.randperm(50, generator=rng(3))
    agree(terms.class_mixture_wasserstein(z[order], y, weight, means, variance), expected, 1e-7)


def test_clusters_end_where_every_row_is_nearest_to_the_mean_of_its_own(monkeypatch):
    """Lloyd's fixed point; on the way to it the cluster of 20 and 23 is that of 20 alone."""
    z, y = torch.tensor([[26.0], [20], [10], [27], [2], [30], [7], [5], [12], [23]]), torch.zeros(10, dtype=torch.long)
    monkeypatch.setattr(terms, "LLOYD", 10)
    found = terms._clusters(z, y, torch.ones(10), 1, 3)
    assert [sorted(z[found == c].flatten().tolist()) for c in range(3)] == [[2, 5, 7, 10, 12], [26, 27, 30], [20, 23]]
    means = torch.stack([z[found == c].mean(0) for c in range(3)])
    assert torch.equal(torch.cdist(z, means).argmin(-1), found)


def test_a_cluster_of_one_row_has_its_centre_there():
    """10 is alone, 4 and 5 are together: with the centre of the single row anywhere else, 5 would go over to it."""
    z, y, weight = torch.tensor([[10.0], [4.0], [5.0]]), torch.zeros(3, dtype=torch.long), torch.ones(3)
    value = terms.class_mixture_wasserstein(z, y, weight, torch.tensor([[[10.0], [4.5]]]), variance=1.0)
    location = 5.5**2 * (2 / 3 - 1 / 2)  # a sixth of the mass has to move from one component to the other
    spread = 1 / 3 + 2 / 3 * (1 - 0.5**0.5) ** 2  # of a single row, and of 4 and 5 with their variance 1/2
    agree(value, torch.tensor(location + spread), 1e-5)


def test_mixture_term_of_one_component_is_the_anchor_term():
    for i, (z, y, weight) in enumerate(zip(*stack(n=15)[:3], strict=True)):
        means = normal(6, 5, seed=i)
        agree(
            terms.class_mixture_wasserstein(z, y, weight, means.unsqueeze(1), 1.5),
            terms.class_wasserstein(z, y, weight, means, variance=1.5),
        )


def test_mixture_term_of_fewer_rows_than_components_is_finite():
    z = torch.ones(2, 4, dtype=torch.float64)
    y, weight = torch.tensor([0, 1]), torch.ones(2, dtype=torch.float64)
    means = normal(2, 3, 4)
    value, (grad,) = value_and_gradients(lambda z: terms.class_mixture_wasserstein(z, y, weight, means), z)
    point = (means - 1).square().sum(-1).mean(-1).sum() + 2 * 4
    agree(value, point)
    agree(grad, -2 * (means - 1).mean(1))
