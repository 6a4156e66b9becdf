import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform
from sklearn.manifold import TSNE

from hetfl_book.datasets import project
from hetfl_book.datasets.project import affinities, kl_gradient, to_common_space, tsne
from hetfl_core.datasets import toy
from hetfl_core.federation import Client, Federation


@pytest.fixture(scope="module")
def federation():
    return toy.noisy_features(n_clients=4, classes_per_client=3, n_train_per_class=30, n_test_per_class=20, seed=1)


def inputs(client):
    return torch.cat([client.x_train, client.x_test]).double().numpy()


def objective(p, y):
    """KL(P ‖ Q), written out."""
    freedom = max(y.shape[1] - 1, 1)
    kernel = ((y[:, None] - y).square().sum(2) / freedom + 1).pow(-(freedom + 1) / 2) * (1 - torch.eye(len(y)))
    q = kernel / kernel.sum()
    return (p * ((p + torch.eye(len(y))) / (q + torch.eye(len(y)))).log()).sum()


def test_all_clients_get_one_width_and_keep_their_labels(federation):
    common = to_common_space(federation, 16, iterations=30)
    assert {c.shapes for c in common} == {(16,)}
    assert {c.x_train.dtype for c in common} == {torch.float32}
    for before, after in zip(federation, common):
        assert before.name == after.name
        assert torch.equal(before.y_train, after.y_train)
        assert torch.equal(before.y_test, after.y_test)
    assert (common.name, common.n_classes) == (f"{federation.name}+tsne", federation.n_classes)
    assert common.info["projection"]["how"] == "tsne"
    assert common.info["settings"] == federation.info["settings"]


def test_info_says_that_test_inputs_leak(federation):
    """The training part changes with the test inputs, as ``info["leak"]`` says."""
    client = federation[0]
    other = Client(client.x_train, client.y_train, 3 * client.x_test + 1, client.y_test, client.name)
    a, b = (to_common_space(Federation([c], 20), 4, iterations=30) for c in (client, other))
    assert torch.equal(a[0].x_train, b[0].x_train) is not a.info["leak"]


def test_fewer_samples_than_dimensions():
    rng = np.random.default_rng(0)
    client = Client(rng.normal(size=(3, 9)), [0, 1, 0], rng.normal(size=(2, 9)), [0, 1], "few")
    assert to_common_space(Federation([client]), 8, iterations=20)[0].shapes == (8,)


def test_a_projection_depends_neither_on_the_other_clients_nor_on_labels(federation):
    alone = Federation([federation[2]], 20)
    a, b = (to_common_space(f, 5, iterations=20)[federation[2].name] for f in (federation, alone))
    assert torch.equal(a.x_train, b.x_train)
    c = federation[2]
    relabelled = Client(c.x_train, 0 * c.y_train, c.x_test, 0 * c.y_test, c.name)
    assert torch.equal(to_common_space(Federation([relabelled]), 5, iterations=20)[0].x_train, a.x_train)


# --- t-SNE --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("perplexity", [3.0, 12.0])
def test_affinities_have_the_perplexity(perplexity):
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    p = affinities(x, perplexity)
    assert p.sum() == pytest.approx(1)
    assert torch.equal(p, p.T)
    assert (p.diagonal() == 0).all()
    d = squareform(pdist(x.double().numpy(), "sqeuclidean"))
    # each row of conditional probabilities, found by scalar root finding
    from scipy.optimize import brentq

    def row(i, log_beta):
        w = np.exp(-np.exp(log_beta) * np.delete(d[i] - np.sort(d[i])[1], i))
        return w / w.sum()

    def entropy(q):
        return -(q[q > 0] * np.log(q[q > 0])).sum()

    conditional = np.zeros((40, 40))
    for i in range(40):
        best = brentq(lambda b, i=i: entropy(row(i, b)) - np.log(perplexity), -20, 20)
        conditional[i, np.arange(40) != i] = row(i, best)
    np.testing.assert_allclose(p, (conditional + conditional.T) / 80, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 2, 3, 64])
def test_the_gradient_is_that_of_the_objective(dim):
    rng = torch.Generator().manual_seed(dim)
    p = affinities(torch.randn(25, 6, generator=rng), 7)
    y = torch.randn(25, dim, generator=rng, dtype=torch.float64).requires_grad_()
    objective(p, y).backward()
    torch.testing.assert_close(kl_gradient(p, y.detach()), y.grad, atol=1e-12, rtol=1e-9)


def test_gains_shrink_to_a_hundredth_where_the_slope_keeps_turning(monkeypatch):
    """With slopes ±1 in turn and a gain g at rest, steps u of alternating sign obey u = g − u/2 (n = 48: no factor)."""
    turns = iter(range(200))
    monkeypatch.setattr(project, "kl_gradient", lambda p, y: torch.full_like(y, (-1.0) ** next(turns)))
    x = torch.randn(48, 2, generator=torch.Generator().manual_seed(0))
    start = torch.zeros(48, 1, dtype=torch.float64)
    before, after = (tsne(x, start, 5, n) for n in (80, 81))  # 80 is even: the second run has the same signs
    torch.testing.assert_close((after - before).abs(), torch.full_like(start, 0.01 / 1.5), rtol=1e-6, atol=0)


def test_a_perplexity_of_20_unless_told(federation):
    projection = to_common_space(federation, 2, iterations=1).info["projection"]
    assert projection["perplexity"] == 20


def test_in_two_dimensions_as_good_as_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 8)) + 3 * rng.integers(0, 3, (150, 1))
    start = 1e-4 * rng.normal(size=(150, 2))
    p = affinities(torch.from_numpy(x), 15)
    theirs = TSNE(2, perplexity=15, init=start, method="exact", learning_rate=50).fit_transform(x)
    ours = tsne(torch.from_numpy(x), torch.from_numpy(start), 15, 1000)
    assert objective(p, ours) == pytest.approx(float(objective(p, torch.from_numpy(theirs))), abs=0.05)


def as_published(x, dim, perplexity, iterations, generator):
    """As the published code calls scikit-learn."""
    draw = int(torch.randint(2**31, (), generator=generator))
    steps = {"max_iter" if "max_iter" in TSNE().get_params() else "n_iter": iterations}  # renamed in release 1.5
    return TSNE(dim, perplexity=perplexity, init="random", method="exact", random_state=draw, **steps).fit_transform(x)


def test_in_64_dimensions_the_published_call_ends_above_its_start_and_ours_near_zero():
    """The finding: scikit-learn's step is not along the gradient there."""
    client = toy.noisy_features(
        n_clients=20, classes_per_client=3, n_train_per_class=100, n_test_per_class=50, subsample=False
    )[0]
    x = torch.from_numpy(inputs(client))
    start = 1e-4 * torch.randn(len(x), 64, generator=torch.Generator().manual_seed(0))
    p = affinities(x, 20)
    ends = [
        float(objective(p, torch.as_tensor(place(x.numpy(), 64, 20, n, torch.Generator().manual_seed(0))).double()))
        for place, n in ((project._place, 500), (as_published, 250))
    ]
    at_start = float(objective(p, start.double()))
    assert ends[0] < 0.02 < 1 < at_start < ends[1] + 1e-3


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_arguments(federation, options, message):
    with pytest.raises(ValueError, match=message):
        to_common_space(federation, **options)


def test_too_few_samples_and_blocks():
    tiny = Federation([Client([[1.0], [2.0]], [0, 1], [[1.0]], [0], "tiny")])
    with pytest.raises(ValueError, match="client 'tiny': t-SNE needs at least 4 samples"):
        to_common_space(tiny)
    x = {"a": np.ones((5, 2)), "b": np.ones((5, 1))}
    with pytest.raises(ValueError, match=r"client 'two': x_train must be one tensor .*\['a', 'b'\]"):
        to_common_space(Federation([Client(x, [0] * 5, x, [0] * 5, "two")]))


def test_four_samples_are_enough_for_t_sne():
    four = Federation([Client(np.eye(2, 3), [0, 1], 2 * np.eye(2, 3), [0, 1], "four")])
    assert to_common_space(four, 2, iterations=3)[0].x_train.isfinite().all()


def test_memory_is_that_of_the_client_with_most_samples(memory_asked):
    clients = [Client(np.eye(n, 3), [0] * n, np.eye(2, 3), [0, 0], f"{n}") for n in (5, 9, 4)]
    to_common_space(Federation(clients), 7, iterations=2)
    assert memory_asked == [8 * 7 * (9 + 2)]


def test_images_are_flattened():
    x = np.random.default_rng(0).normal(size=(6, 1, 4, 4))
    a, b = (Federation([Client(z, [0] * 6, z, [0] * 6, "picture")]) for z in (x, x.reshape(6, 16)))
    assert torch.equal(*(to_common_space(each, 3, iterations=20)[0].x_train for each in (a, b)))
