"""The linear theory: closed-form embeddings, Algorithm S3, the bound of Theorem S3, the limit law of Theorem S2."""

import numpy as np
import pytest
import torch

from hetfl_book.figures import scenes
from hetfl_book.theory import flic as theory
from hetfl_book.theory import flic_bound
from hetfl_book.theory import flic_distances as limits
from hetfl_core.distances import bures_wasserstein, principal_angle
from hetfl_core.rng import numpy_stream, stream


@pytest.fixture(scope="module")
def federation():
    return theory.linear_federation(n_clients=50, seed=3)


@pytest.fixture(scope="module")
def signs():
    return theory.random_signs(20, seed=3)


def normal(*shape, purpose="draw"):
    return torch.from_numpy(numpy_stream(0, "tests", 0, purpose).normal(size=shape))


# --- embeddings -------------------------------------------------------------------------------------------------


def test_closed_form_embedding_maps_the_features_to_the_standard_gaussian(federation, signs):
    for client, phi in zip(federation.clients, federation.estimated(signs), strict=True):
        covariance = phi.weight @ client.covariance @ phi.weight.mT
        torch.testing.assert_close(covariance, torch.eye(20).double(), rtol=0, atol=1e-10)
        torch.testing.assert_close(phi(client.mean), torch.zeros(20).double())


def test_closed_form_embedding_is_the_paper_s_formula_on_a_case_by_hand():
    # Σ = P diag(4, 1, 1/4) Pᵀ with P a permutation: the two largest variances are those of features 2 and 0.
    covariance, mean = torch.diag(torch.tensor([1.0, 0.25, 4.0])).double(), torch.tensor([1.0, 5.0, -2.0]).double()
    phi = theory.closed_form_phi(mean, covariance, 2, torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(phi.weight, torch.tensor([[0.0, 0.0, -0.5], [1.0, 0.0, 0.0]]).double())
    torch.testing.assert_close(phi(torch.tensor([[3.0, 9.0, 2.0]]).double()), torch.tensor([[-2.0, 2.0]]).double())


def test_theorem_1_estimated_embedding_is_the_oracle_s_up_to_common_signs(federation, signs):
    (estimated, y), (oracle, same) = federation.embed(federation.estimated(signs)), federation.embed(federation.oracle)
    torch.testing.assert_close(estimated, signs * oracle)
    assert torch.equal(y, same)
    assert (signs == -1).any()


def test_gromov_wasserstein_leaves_any_orthogonal_map_free_and_takes_the_leading_eigenvectors(federation):
    """Theorem 4.1 of Delon et al. with target N(0, I): P_1 is any orthogonal matrix, so that no sign is chosen."""
    client = federation.clients[0]
    W = theory.closed_form_phi(client.mean, client.covariance, 20).weight
    least = theory.gromov_wasserstein_cost(client.covariance, W)
    for seed in range(3):
        U = torch.linalg.qr(normal(20, 20, purpose=f"turn {seed}"))[0]
        assert theory.gromov_wasserstein_cost(client.covariance, U @ W) == pytest.approx(least, rel=1e-12)
    eigenvalues, P = torch.linalg.eigh(client.covariance)
    for left_out in (1, 5):  # other eigenvectors: also a map to N(0, I)
        kept = [j for j in range(len(P)) if j != len(P) - left_out][-20:]
        other = (P[:, kept] / eigenvalues[kept].sqrt()).mT
        torch.testing.assert_close(other @ client.covariance @ other.mT, torch.eye(20).double(), atol=1e-9, rtol=0)
        assert theory.gromov_wasserstein_cost(client.covariance, other) > least * (1 + 1e-4)


def test_gromov_wasserstein_cost_is_its_definition():
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    W = torch.tensor([[0.3, -0.7]]).double()
    x = normal(400_000, 2, purpose="pairs") @ torch.linalg.cholesky(2 * covariance).mT  # differences of two samples
    lost = (x.square().sum(1) - (x @ W.mT).square().sum(1)).square()
    error = float(lost.std()) / len(lost) ** 0.5
    assert theory.gromov_wasserstein_cost(covariance, W) == pytest.approx(float(lost.mean()), abs=4 * error)


def test_instances_satisfy_h1(federation):
    torch.testing.assert_close(federation.A.mT @ federation.A, torch.eye(2).double())
    torch.testing.assert_close(federation.heads.norm(dim=1), torch.full((50,), 2**0.5).double())
    widths = {len(client.mean) for client in federation.clients}
    assert min(widths) >= 20
    assert len(widths) > 5
    z, y = federation.embed(federation.oracle)
    torch.testing.assert_close(y, torch.einsum("ijp,ip->ij", z, federation.heads @ federation.A.mT))


def test_instances_have_the_sizes_of_figure_2_unless_told():
    f = theory.linear_federation()
    assert len(f.clients) == 100
    assert f.A.shape == (20, 2)
    widths = {len(client.mean) for client in f.clients}
    assert widths <= set(range(20, 41))
    assert {20, 40} & widths, "both ends can occur"
    assert all(len(client.x) == len(client.y) == 10 for client in f.clients)
    assert all(len(client.x_test) == len(client.y_test) == 200 for client in f.clients)
    assert torch.equal(f.A, theory.linear_federation(n_clients=1, seed=0).A)
    assert not torch.equal(f.A, theory.linear_federation(n_clients=1, seed=1).A)


def test_memory_is_asked_for_by_hand(memory_asked):
    """Numbers of 8 bytes: on average 5 features of 11 samples and a covariance for 3 clients; 4 matrices of 4 × 2."""
    federation = theory.linear_federation(n_clients=3, k=4, d=2, n=6, n_test=5, extra=2)
    assert memory_asked == [8 * 3 * 5 * (11 + 5)]
    z, y = federation.embed(federation.oracle)
    theory.flic_fedrep(z, y, d=2, rounds=3)
    assert memory_asked[1:] == [8 * 4 * 4 * 2]
    for n, repeats in ((5, 40), (20, 1)):
        limits.simulate_w2(*GAUSSIANS["three dimensions"], n=n, repeats=repeats)
    assert memory_asked[2:] == [8 * 40, 8 * 20 * 3], "the draws, or one data set of 20 samples in three dimensions"


def test_covariances_are_spread_evenly_in_logarithm_and_no_two_eigenvalues_are_equal(federation):
    for client in federation.clients:
        eigenvalues = torch.linalg.eigvalsh(client.covariance).flip(0)
        moved = eigenvalues / torch.logspace(1, -1, len(eigenvalues), dtype=torch.float64)
        assert 1 - 1e-9 < moved.min() < moved.max() < 1.01 + 1e-9
        assert moved.max() - moved.min() > 0.005
        assert eigenvalues.diff().max() < 0


def test_features_have_the_mean_and_covariance_of_their_client():
    client = theory.linear_federation(n_clients=1, k=3, n=20_000, n_test=1, extra=0).clients[0]
    assert torch.cov(client.x.mT).sub(client.covariance).abs().max() < 0.05 * client.covariance.abs().max()
    torch.testing.assert_close(client.x.mean(0), client.mean, rtol=0, atol=4.5 * (10 / 20_000) ** 0.5)


def test_smallest_and_largest_sizes_are_allowed():
    """One client; as many columns of A as latent dimensions and as samples; as many features as latent dimensions."""
    f = theory.linear_federation(n_clients=1, k=3, d=3, n=3, n_test=0, extra=0)
    assert [t.shape for t in f.embed(f.oracle)] == [(1, 3, 3), (1, 3)]
    path = theory.flic_fedrep(*f.embed(f.oracle), 3, rounds=1)
    assert path.shape == (2, 3, 3)
    assert {len(theory.linear_federation(1, 2, 1, extra=1, seed=s).clients[0].mean) for s in range(20)} == {2, 3}


def test_the_largest_entry_of_each_eigenvector_is_positive_unless_signs_are_given():
    A = normal(6, 6)
    weight = theory.closed_form_phi(torch.zeros(6).double(), A @ A.mT, 4).weight
    assert (weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all()


def test_what_counts_as_rank_does_not_depend_on_units():
    mean, identity = torch.zeros(3).double(), torch.eye(3).double()
    for scale in (1e-30, 1e30):
        weight = theory.closed_form_phi(mean, scale * identity, 3).weight
        torch.testing.assert_close(weight.abs().sort()[0][:, -1], torch.full((3,), scale**-0.5).double())
        with pytest.raises(ValueError, match="rank 3"):
            theory.closed_form_phi(mean, scale * torch.diag(torch.tensor([1, 1, 1e-17]).double()), 3)


def test_random_signs_have_both_signs():
    drawn = [theory.random_signs(2, seed) for seed in range(20)]
    assert all(signs.sum() == 0 for signs in drawn)
    assert len({tuple(signs.tolist()) for signs in drawn}) == 2
    many = torch.stack([theory.random_signs(50, seed) for seed in range(200)])
    assert set(many.unique().tolist()) == {-1.0, 1.0}
    assert many.mean().abs() < 4.5 / 10_000**0.5
    assert {theory.random_signs(1, seed).item() for seed in range(20)} == {-1.0, 1.0}
    assert torch.equal(theory.random_signs(50), many[0])


@pytest.mark.parametrize("freedom", ["signs", "rotation"])
def test_freedom_changes_the_oracle_and_not_what_a_client_sees(federation, freedom):
    other = theory.linear_federation(n_clients=50, seed=3, freedom=freedom)
    for ours, theirs in zip(federation.clients, other.clients, strict=True):
        assert torch.equal(ours.x, theirs.x)
        Q = theirs.phi.weight @ torch.linalg.pinv(ours.phi.weight)
        torch.testing.assert_close(Q @ Q.mT, torch.eye(20).double())
        assert bool((Q.abs().round(decimals=8) == torch.eye(20)).all()) == (freedom == "signs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 4}, r"between 1 and the client's number of features, 3"),
        ({"k": 0}, r"between 1 and the client's number of features, 3"),
        ({"covariance": torch.tensor([[1.0, 2, 0], [0, 1, 0], [0, 0, 1]]).double()}, "symmetric"),
        ({"covariance": torch.diag(torch.tensor([1.0, 0, 0])).double()}, "rank 2"),
        ({"covariance": torch.eye(2).double()}, r"shape \(3, 3\)"),
        ({"signs": torch.tensor([1.0, 0.5])}, r"\+1 or -1"),
        ({"mean": torch.zeros(2, 3).double()}, r"^mean must be finite numbers of shape \(·\), got shape \(2, 3\)"),
        ({"mean": torch.zeros(0).double()}, r"^mean must be finite numbers of shape \(·\), got shape \(0,\)"),
    ],
)
def test_embedding_says_what_is_wrong(arguments, message):
    good = {"mean": torch.zeros(3).double(), "covariance": torch.eye(3).double(), "k": 2}
    with pytest.raises(ValueError, match=message):
        theory.closed_form_phi(**(good | arguments))


@pytest.mark.parametrize("wrong", [{"d": 21}, {"d": 0}, {"n": 1}, {"extra": -1}, {"n_clients": 0}, {"freedom": "none"}])
def test_federation_says_what_is_wrong(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        theory.linear_federation(**wrong)


# --- Algorithm S3, line by line ---------------------------------------------------------------------------------


def test_method_of_moments_is_the_sum_that_clients_send(federation):
    z, y = federation.embed(federation.oracle)
    sent = [sum(y[i, j] ** 2 * torch.outer(z[i, j], z[i, j]) for j in range(10)) / 10 for i in range(50)]
    U = torch.linalg.svd(sum(sent) / 50)[0][:, :2]
    assert principal_angle(theory.method_of_moments(z, y, 2), U) < 1e-10


def test_method_of_moments_finds_the_span_as_samples_grow():
    # E y² z zᵀ = ‖w‖² I + 2 w wᵀ; the error of a mean of N independent terms falls as N^{-1/2}.
    errors = []
    for n in (10, 160, 2560):
        f = theory.linear_federation(n_clients=40, k=8, n=n, n_test=1, extra=4, seed=1)
        errors.append(float(principal_angle(theory.method_of_moments(*f.embed(f.oracle), 2), f.A)))
    assert errors[2] < 0.05
    assert 2 < errors[0] / errors[1] < 8
    assert 2 < errors[1] / errors[2] < 8


def test_heads_solve_each_client_s_least_squares(federation):
    z, y = federation.embed(federation.oracle)
    A = theory.method_of_moments(z, y, 3)
    noisy = y + normal(*y.shape)
    heads = theory.least_squares_heads(A, z, noisy)
    for i in range(len(z)):
        expected = np.linalg.lstsq((z[i] @ A).numpy(), noisy[i].numpy(), rcond=None)[0]
        np.testing.assert_allclose(heads[i], expected, atol=1e-10)


def test_representation_step_is_the_mean_of_the_clients_gradient_steps(federation):
    # Line 14 with its own η, then line 18; Theorem S3's η is 2n times as large.
    z, y = (t[:7] for t in federation.embed(federation.oracle))
    A, heads = normal(20, 2), normal(7, 2, purpose="heads")
    uploads = []
    for i in range(7):
        leaf = A.clone().requires_grad_()
        loss = (y[i] - z[i] @ leaf @ heads[i]).square().sum()
        uploads.append(A - 0.2 / (2 * 10) * torch.autograd.grad(loss, leaf)[0])
    expected = torch.stack(uploads).mean(0)
    torch.testing.assert_close(theory.representation_step(A, heads, z, y, 0.2), expected)


def test_representation_stays_orthonormal_and_inactive_clients_do_not_matter(federation):
    z, y = federation.embed(federation.oracle)
    path = theory.flic_fedrep(z, y, 2, rounds=20, participation=0.2, seed=5)
    torch.testing.assert_close(path.mT @ path, torch.eye(2).double().expand(21, 2, 2))
    active = torch.randperm(50, generator=stream(5, "<server>", 0, "active"))[:10]
    idle = [i for i in range(50) if i not in active.tolist()]
    z[idle] = 0
    start = path[0]
    torch.testing.assert_close(theory.flic_fedrep(z, y, 2, 1, participation=0.2, start=start, seed=5)[1], path[1])


def test_algorithm_is_equivariant_the_estimated_path_is_q_times_the_oracle_s(federation, signs):
    oracle, estimated = federation.embed(federation.oracle), federation.embed(federation.estimated(signs))
    first = theory.flic_fedrep(*oracle, 2, rounds=60)
    second = theory.flic_fedrep(*estimated, 2, rounds=60)
    to_A, to_QA = theory.distances_to(first, federation.A), theory.distances_to(second, signs[:, None] * federation.A)
    torch.testing.assert_close(to_A, to_QA, rtol=1e-7, atol=1e-12)
    assert theory.distances_to(second, federation.A)[-1] > 0.5, "without Q there is no convergence"
    tests = federation.embed(federation.oracle, True), federation.embed(federation.estimated(signs), True)
    errors = theory.prediction_errors(first, oracle, tests[0]), theory.prediction_errors(second, estimated, tests[1])
    torch.testing.assert_close(*errors, rtol=1e-6, atol=1e-15)


def test_algorithm_runs_as_figure_2_unless_told(federation):
    z, y = federation.embed(federation.oracle)
    path = theory.flic_fedrep(z, y, 2)
    assert len(path) == 201
    told = theory.flic_fedrep(z, y, 2, rounds=3, step=0.25, participation=1.0, seed=0)
    torch.testing.assert_close(path[:4], told)
    part, again = (theory.flic_fedrep(z, y, 2, rounds=3, participation=0.2, **s) for s in ({}, {"seed": 0}))
    torch.testing.assert_close(part, again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(5, 3)}, "shape"),
        ({"z": torch.zeros(5, 4)}, "shape"),
        ({"d": 5}, "d=5"),
        ({"d": 0}, "d=0"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 1.1}, "participation"),
    ],
)
def test_algorithm_says_what_is_wrong(change, message):
    good = {"z": normal(5, 4, 6), "y": normal(5, 4), "d": 2}
    with pytest.raises(ValueError, match=message):
        theory.flic_fedrep(**(good | change))


@pytest.mark.parametrize("name", ["z", "y"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_data_that_are_not_finite_are_refused(name, bad):
    data = {"z": normal(5, 4, 6), "y": normal(5, 4)}
    data[name][1, 2] = bad
    with pytest.raises(ValueError, match=f"{name} must be finite numbers"):
        theory.method_of_moments(**data, d=2)


def test_data_of_no_client_are_refused():
    with pytest.raises(ValueError, match="z must be finite numbers"):
        theory.method_of_moments(normal(0, 4, 6), normal(0, 4), 2)


# --- the bound --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_figure_2_converges_linearly_within_the_bound(seed):
    f = theory.linear_federation(seed=seed)
    signs = theory.random_signs(20, seed)
    z, y = f.embed(f.estimated(signs))
    truth = signs[:, None] * f.A
    bound = flic_bound.convergence_bound(theory.method_of_moments(z, y, 2), truth, f.heads)
    distances = theory.distances_to(theory.flic_fedrep(z, y, 2, rounds=200, step=bound.step), truth)
    assert distances[-1] < 1e-6
    assert (distances <= bound.curve(200) + 1e-14).all()
    assert theory.measured_rate(distances) < bound.rate
    above = distances[distances > 1e-9].log()
    assert np.corrcoef(np.arange(len(above)), above)[0, 1] < -0.99, "a straight line on a log axis"
    printed = flic_bound.printed_bound(theory.method_of_moments(z, y, 2), truth, f.heads)
    assert (distances[1:] > printed.curve(200)[1:])[:20].all(), "kappa as printed promises far too much"


def test_with_many_samples_the_rate_is_that_of_the_population():
    # With E z zᵀ = I the error's direction with the least head shrinks by 1 − η σ²_min per round.
    f = theory.linear_federation(n_clients=30, k=6, n=4000, n_test=1, extra=2, seed=0)
    z, y = f.embed(f.oracle)
    eigenvalues = flic_bound.head_spectra(f.heads)[0]
    path = theory.flic_fedrep(z, y, 2, rounds=80, step=0.2)
    rate = theory.measured_rate(theory.distances_to(path, f.A)[20:])
    assert rate == pytest.approx(1 - 0.2 * float(eigenvalues[0]), abs=0.01)


def test_constants_are_extremes_over_all_sets_of_clients():
    heads = normal(6, 2)
    values = [
        np.linalg.svd(heads[list(pair)].numpy() / 2**0.5)[1] for pair in [(i, j) for i in range(6) for j in range(i)]
    ]
    A0, truth = normal(5, 2, purpose="A0"), normal(5, 2, purpose="A")
    start = float(principal_angle(A0, truth))
    ours = flic_bound.convergence_bound(A0, truth, heads, participation=1 / 3)
    assert ours.sigma_min == pytest.approx(min(s[1] for s in values) ** 2)
    assert ours.sigma_max == pytest.approx(max(s[0] for s in values) ** 2)
    assert ours.step == pytest.approx(1 / (4 * ours.sigma_max))
    assert ours.kappa == pytest.approx(ours.step * (1 - start**2) * ours.sigma_min / 2)
    printed = flic_bound.printed_bound(A0, truth, heads, participation=1 / 3)
    assert printed.sigma_min == pytest.approx(min(s[1] for s in values))
    assert printed.sigma_max == pytest.approx(min(s[0] for s in values))
    assert printed.kappa == pytest.approx(1 - printed.step * start * printed.sigma_min / 2)


def test_step_of_the_printed_minimum_can_move_away_from_the_truth():
    # d = 12; one set of 12 clients has heads √d e_i (σ²_max = 1), another nearly one head twelve times (σ²_max ≈ 12).
    # (S16) as printed allows η = 1/4 for both; on the second set 1 − ησ² ≈ −2, and the distance grows.
    rng = stream(0, "tests", 0, "S16")
    k, d, n = 20, 12, 600
    A = torch.linalg.qr(torch.randn(k, d, generator=rng, dtype=torch.float64))[0]
    one = torch.zeros(d).double()
    one[0] = d**0.5
    alike = one + 1e-3 * torch.randn(d, d, generator=rng, dtype=torch.float64)
    z = torch.randn(d, n, k, generator=rng, dtype=torch.float64)
    y = torch.einsum("ijp,ip->ij", z, alike @ A.mT)
    near = torch.linalg.qr(A + 1e-4 * torch.randn(k, d, generator=rng, dtype=torch.float64))[0]

    def growth(step):
        after = theory.flic_fedrep(z, y, d, 1, step, start=near)[-1]
        # Along the column of A that the heads use.
        return float(
            torch.linalg.vector_norm(A[:, 0] - after @ (after.mT @ A[:, 0]))
            / torch.linalg.vector_norm(A[:, 0] - near @ (near.mT @ A[:, 0]))
        )

    assert growth(1 / 4) > 1.5
    assert growth(1 / (4 * float(flic_bound.head_spectra(alike).max()))) < 1


def test_bound_refuses_what_it_cannot_say():
    heads, A0, truth = normal(60, 2), normal(5, 2, purpose="A0"), normal(5, 2, purpose="A")
    with pytest.raises(ValueError, match="sets of 30"):
        flic_bound.convergence_bound(A0, truth, heads, participation=0.5)
    with pytest.raises(ValueError, match="sets of 29,"):
        flic_bound.head_spectra(normal(100, 2), participation=0.29)  # 0.29 · 100 is a little less than 29
    largest = 1 / (4 * float(flic_bound.head_spectra(heads).max()))
    assert flic_bound.convergence_bound(A0, truth, heads, step=largest) == flic_bound.convergence_bound(
        A0, truth, heads
    )
    for step in (5.0, 1.001 * largest, 0.0, -0.1):
        with pytest.raises(ValueError, match="needs a step"):
            flic_bound.convergence_bound(A0, truth, heads, step=step)
    with pytest.raises(ValueError, match="two distances"):
        theory.measured_rate(torch.tensor([1e-12, 1e-13]))


def test_a_hundred_thousand_sets_of_clients_are_looked_at():
    heads = normal(100_001, 1)
    spectra = flic_bound.head_spectra(heads[:-1], participation=1e-5)
    torch.testing.assert_close(spectra[:, 0], heads[:-1, 0].square())
    with pytest.raises(ValueError, match="at most 100000"):
        flic_bound.head_spectra(heads, participation=1e-5)


def test_a_rate_is_measured_above_a_floor_and_from_two_distances():
    assert theory.measured_rate(torch.tensor([1.0, 0.5]).double()) == pytest.approx(0.5)
    assert theory.measured_rate(torch.tensor([1e-8, 1e-9, 1.5e-10]).double()) == pytest.approx(0.015**0.5)
    assert theory.measured_rate(torch.tensor([1e-8, 1e-9, 0.8e-10]).double()) == pytest.approx(0.1)
    assert theory.measured_rate(torch.tensor([1.0, 0.25, 0.1]).double(), floor=0.2) == pytest.approx(0.25)


@pytest.mark.parametrize("bad", [[[1.0, 0.5]], [1.0, -0.5], [1.0, float("inf")]])
def test_a_rate_is_of_one_sequence_of_finite_distances(bad):
    with pytest.raises(ValueError, match=r"^distances must be finite, at least 0, of shape \(T \+ 1,\)"):
        theory.measured_rate(torch.tensor(bad).double())


def test_measured_rate_of_a_geometric_sequence_is_its_ratio():
    distances = 0.8 * 0.9 ** torch.arange(100).double()
    assert theory.measured_rate(distances) == pytest.approx(0.9)
    distances[50:] = 1e-16
    assert theory.measured_rate(distances) == pytest.approx(0.9)


@pytest.mark.parametrize("freedom", ["signs", "rotation"])
def test_signs_of_each_client_s_own_cannot_be_repaired_by_a(freedom):
    f = theory.linear_federation(n_clients=50, seed=0, freedom=freedom)
    errors = {}
    for name, maps in {"oracle": f.oracle, "estimated": f.estimated()}.items():
        train, test = f.embed(maps), f.embed(maps, test=True)
        path = theory.flic_fedrep(*train, 2, rounds=150)
        errors[name] = float(theory.prediction_errors(path[-1:], train, test)) / float(test[1].var())
    assert errors["oracle"] < 1e-10
    assert errors["estimated"] > 0.8


# --- Theorem S2 -------------------------------------------------------------------------------------------------

GAUSSIANS = {
    "three dimensions": (
        torch.tensor([1.0, 0.5, 0.0]).double(),
        torch.tensor([[2.0, 0.6, 0.2], [0.6, 1.0, 0.3], [0.2, 0.3, 0.5]]).double(),
        torch.zeros(3).double(),
        torch.tensor([[1.0, -0.3, 0.0], [-0.3, 1.5, 0.4], [0.0, 0.4, 0.8]]).double(),
    ),
    "on a line": tuple(torch.tensor(t).double() for t in ([0.3], [[4.0]], [1.0], [[1.0]])),
}


def delta_method(m, S, v, anchor):
    """gᵀ V g by autograd, V the asymptotic covariance of (mean, covariance): Σ, and Σ_ac Σ_bd + Σ_ad Σ_bc."""
    m, S = m.clone().requires_grad_(), S.clone().requires_grad_()
    by_m, by_S = torch.autograd.grad(bures_wasserstein(m, S, v, anchor), (m, S))
    G, S = (by_S + by_S.mT) / 2, S.detach()
    V = torch.einsum("ac,bd->abcd", S, S) + torch.einsum("ad,bc->abcd", S, S)
    return float(by_m @ S @ by_m + torch.einsum("ab,abcd,cd", G, V, G))


@pytest.mark.parametrize("case", GAUSSIANS)
def test_limit_variance_is_that_of_the_delta_method(case):
    assert limits.limit_variance(*GAUSSIANS[case]) == pytest.approx(delta_method(*GAUSSIANS[case]), rel=1e-8)


def test_limit_variance_on_a_line_by_hand():
    # W2² = (m − v)² + (σ − τ)²: gradients 2(m − v) and 1 − τ/σ; the variance of s² is 2σ⁴.
    assert limits.limit_variance(*GAUSSIANS["on a line"]) == pytest.approx(4 * 0.49 * 4 + (1 - 1 / 2) ** 2 * 2 * 16)


def test_limit_variance_is_that_of_simulation_and_the_printed_one_is_not():
    given = GAUSSIANS["three dimensions"]
    variance, error = limits.variance_with_error(limits.simulate_w2(*given, n=1000, repeats=3000))
    assert error < 0.5
    assert abs(variance - limits.limit_variance(*given)) < 4 * error
    for eigenpairs in ("class", "product"):
        assert abs(variance - limits.limit_variance_printed(*given, eigenpairs)) > 20 * error


def test_what_the_printed_variance_lacks():
    given = GAUSSIANS["three dimensions"]
    missing = 2 * float((given[1] @ given[1]).trace())
    assert limits.limit_variance(*given) == pytest.approx(limits.limit_variance_printed(*given, "product") + missing)


def test_where_class_and_anchor_agree_the_variance_is_zero_and_the_printed_one_negative():
    m, S, _, _ = GAUSSIANS["three dimensions"]
    assert limits.limit_variance(m, S, m, S) == pytest.approx(0, abs=1e-10)
    assert limits.limit_variance_printed(m, torch.eye(3).double(), m, torch.eye(3).double()) == pytest.approx(-6)


def test_optimal_map_carries_one_covariance_to_the_other():
    _, S, _, anchor = GAUSSIANS["three dimensions"]
    T = limits.optimal_map(S, anchor)
    torch.testing.assert_close(T @ S @ T, anchor)
    torch.testing.assert_close(T, T.mT)


def test_simulation_is_that_of_its_definition():
    m, S, v, anchor = GAUSSIANS["three dimensions"]
    found = limits.simulate_w2(m, S, v, anchor, n=50, repeats=2, seed=4)
    x = torch.randn(2, 50, 3, generator=stream(4, "<server>", 0, "theorem S2"), dtype=torch.float64)
    x = m + x @ torch.linalg.cholesky(S).mT
    for one, rows in zip(found, x, strict=True):
        distance = bures_wasserstein(v, anchor, rows.mean(0), torch.cov(rows.mT))
        torch.testing.assert_close(one, 50**0.5 * (distance - bures_wasserstein(v, anchor, m, S)))


def test_standard_error_of_a_variance_of_gaussians():
    draws = normal(20000)
    variance, error = limits.variance_with_error(draws)
    assert variance == pytest.approx(1, abs=4 * error)
    assert error == pytest.approx((2 / 20000) ** 0.5, rel=0.1)


def test_smallest_sizes_of_the_limit_law():
    """Two samples have a covariance; one client at least takes part, however small the rate."""
    assert limits.simulate_w2(*GAUSSIANS["three dimensions"], n=2, repeats=3).isfinite().all()
    assert 0 < limits.shrunk_scale(2, 3) < 1
    with pytest.raises(ValueError, match="expected n >= 2, got 1"):
        limits.shrunk_scale(1, 3)
    assert [theory._n_active(5, r) for r in (0.1, 0.2, 0.5, 1.0)] == [1, 1, 2, 5]
    with pytest.raises(ValueError, match=r"^S2 must be finite numbers of shape \(3, 3\), got shape \(2, 2\)"):
        limits.optimal_map(torch.eye(3).double(), torch.eye(2).double())


@pytest.mark.parametrize("name", ["m", "S", "v", "anchor"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_limit_law_is_of_finite_numbers(name, bad):
    of = {"m": torch.zeros(2), "S": torch.eye(2), "v": torch.ones(2), "anchor": torch.eye(2)}
    of[name][0] = bad
    with pytest.raises(ValueError, match=f"{name} must be finite numbers"):
        limits.limit_variance(**of)


def test_limit_law_says_what_is_wrong():
    m, S, v, anchor = GAUSSIANS["three dimensions"]
    with pytest.raises(ValueError, match="positive definite"):
        limits.limit_variance(m, torch.zeros(3, 3).double(), v, anchor)
    with pytest.raises(ValueError, match=r"v must be finite numbers of shape \(3\)"):
        limits.limit_variance(m, S, v[:2], anchor[:2, :2])
    with pytest.raises(ValueError, match="eigenpairs_of"):
        limits.limit_variance_printed(m, S, v, anchor, "anchor")


# --- the bias of the estimated distance -----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "expected", "shrunk"), [(3, 126, 0.13), (10, 88, 0.33), (33, 46, 0.64), (100, 12, 0.90)])
def test_bias_of_a_batch_at_perfect_agreement_is_that_of_simulation(n, expected, shrunk):
    """64 dimensions, as in FLIC: the numbers that the chapters speak of."""
    v, identity = torch.zeros(64).double(), torch.eye(64).double()
    drawn = limits.simulate_w2(v, identity, v, identity, n=n, repeats=60) / n**0.5
    error = float(drawn.std()) / 60**0.5
    assert limits.batch_bias(n, 64) == pytest.approx(float(drawn.mean()), abs=4 * error + 0.1)
    assert limits.batch_bias(n, 64) == pytest.approx(expected, abs=1)
    assert limits.shrunk_scale(n, 64) == pytest.approx(shrunk, abs=0.006)


def test_bias_has_the_two_limits_that_are_derived():
    assert limits.batch_bias(100_000, 64) == pytest.approx((64 + 64 * 65 / 4) / 100_000, rel=2e-3)
    assert limits.batch_bias(4, 10_000) == pytest.approx(20_000 - 2 * (10_000 * 3) ** 0.5 + 2500, rel=1e-3)


def test_expected_distance_of_a_cloud_of_another_size_is_that_of_simulation():
    v, identity, n = torch.zeros(20).double(), torch.eye(20).double(), 8
    for scale in (0.3, 2.0):
        drawn = limits.simulate_w2(v, scale**2 * identity, v, identity, n=n, repeats=400) / n**0.5
        error = float(drawn.std()) / 400**0.5
        assert limits.batch_bias(n, 20, scale) == pytest.approx(float(drawn.mean()), abs=4 * error)
        expected = limits.batch_bias(n, 20, scale) + 20 * (1 - scale) ** 2
        assert limits.expected_w2(n, 20, scale) == pytest.approx(expected)


def test_the_shrunk_cloud_is_where_the_batch_loss_is_smallest():
    scales = np.linspace(0, 1.5, 1501)
    found = scales[np.argmin([limits.expected_w2(10, 64, a) for a in scales])]
    assert limits.shrunk_scale(10, 64) == pytest.approx(found, abs=1e-3)


def test_bias_refuses_what_has_no_spread():
    for call in (lambda: limits.expected_w2(1, 3), lambda: limits.shrunk_scale(1, 3)):
        with pytest.raises(ValueError, match="n >= 2"):
            call()


# --- figures ----------------------------------------------------------------------------------------------------


def test_convergence_is_drawn_on_a_log_axis_with_bounds_apart():
    line = 0.5 ** torch.arange(30).double()
    ax = scenes.convergence({"ours": line, "theirs": line}, {"bound": 0.9 ** np.arange(30)}, title="rate")
    ours, theirs, bound = ax.lines
    assert ax.get_yscale() == "log"
    assert (ours.get_linestyle(), bound.get_linestyle()) == ("-", "--")
    assert ours.get_markevery() != theirs.get_markevery(), "equal curves must both be seen"
    np.testing.assert_allclose(ours.get_ydata(), line)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["ours", "theirs", "bound"]
