"""FedHeNN: kernels by hand, the two engines, and the two formulas."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import equal_histories, largest_difference, ragged

from hetfl_core import Client, simulate
from hetfl_core.distances import cka
from hetfl_core.engine.newcomers import adapt
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Federation, Spec
from hetfl_core.methods import CATALOGUE, FedHeNN
from hetfl_core.methods.base import Batch
from hetfl_core.methods.fedhenn import kernel_alignment, published_alignment
from hetfl_core.networks import CNN, MLP, Model
from hetfl_core.rng import stream

SMALL = FedHeNN(model=Model(MLP(hidden=(9,), out=6)), local_epochs=2, batch_size=6, n_rad=7)


def normal(*shape, purpose="x"):
    return torch.randn(*shape, generator=stream(0, "tests", 0, f"fedhenn {purpose}"), dtype=torch.float64)


def run(fed, method, **options):
    given = {"rounds": 2, "participation": 0.5, "device": "cpu", "progress": False, "dtype": torch.float64}
    return simulate(fed, method, **given | options)


def simulator(fed, method=SMALL, **options):
    return Simulator(fed, method, device="cpu", dtype=torch.float64, **options)


# --- the two engines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        SMALL,
        replace(SMALL, model=Model(MLP(hidden=(9,), out=6, dropout=0.5), alpha=5)),
        FedHeNN.published(model=SMALL.model, local_epochs=2, batch_size=6, n_rad=7),
    ],
)
def test_stack_equals_loop(method):
    fed = ragged(widths=(3, 9))
    assert len(simulator(fed, method).cohorts) == 1, "clients of unequal widths share a stack"
    stacked, loop = (run(fed, method, engine=engine) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    a, b = (r.history.drop(columns="seconds").fillna(-1) for r in (stacked, loop))
    assert (a - b).abs().to_numpy().max() < 1e-9


def test_images_of_two_sizes():
    """16×16 and 18×18: the small ones get the top-left corner of the large RAD."""
    fed = ragged(n_clients=4, sizes=(7, 12), images=True)
    method = replace(SMALL, model=Model(CNN(out=6, channels=(3, 4))), local_epochs=1)
    stacked, loop = (run(fed, method, engine=engine, participation=1.0, stack_size=4) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    rad = stacked.server["rad"]
    assert rad.shape == (7, 1, 18, 18)
    small, large = (method.download(stacked.server, spec)["rad"] for spec in fed.specs()[:2])
    assert torch.equal(small, rad[:, :, :16, :16])
    assert torch.equal(large, rad)


def test_order_of_clients_changes_nothing():
    fed = ragged(widths=(3, 9))
    turned = Federation([fed.clients[i] for i in (3, 1, 5, 0, 4, 2)], fed.n_classes)
    a, b = run(fed, SMALL), run(turned, SMALL)
    assert torch.equal(a.server["rad"], b.server["rad"])
    assert largest_difference(a, b) < 1e-12


def test_a_run_resumes_bit_for_bit(tmp_path):
    fed = ragged()
    run(fed, SMALL, rounds=1, checkpoint=tmp_path)
    resumed, whole = run(fed, SMALL, rounds=3, checkpoint=tmp_path), run(fed, SMALL, rounds=3)
    assert equal_histories(resumed.history, whole.history)
    assert largest_difference(resumed, whole) == 0


# --- the server -----------------------------------------------------------------------------------------------------


def by_hand(rad, kept):
    """The kernel of an MLP with one hidden layer, in NumPy."""
    p = {name: t.numpy() for name, t in kept.items()}
    hidden = np.maximum(rad @ p["phi.0.weight"] + p["phi.0.bias"], 0)
    z = hidden @ p["phi.1.weight"] + p["phi.1.bias"]
    return z @ z.T


@pytest.mark.parametrize(("surveyed", "weighting"), [("participants", "uniform"), ("all", "samples")])
def test_the_mean_kernel_by_hand(surveyed, weighting):
    fed = ragged(widths=(3, 9))
    start = simulator(fed).initial()
    after, _ = simulator(fed, replace(SMALL, surveyed=surveyed, weighting=weighting)).round(start, [0, 3])
    places = [0, 3] if surveyed == "participants" else range(6)
    rad = after.server["rad"].numpy()
    kernels = [by_hand(rad[:, : fed[c].shapes[0]], start.client_states[c]) for c in places]
    weights = [fed[c].n_train if weighting == "samples" else 1 for c in places]
    np.testing.assert_allclose(after.server["kernel"].numpy(), np.average(kernels, axis=0, weights=weights), atol=1e-12)


def test_the_rad_is_as_wide_as_the_widest_new_each_round_and_the_seeds():
    fed = ragged(widths=(3, 9))
    here = simulator(fed)
    states = [here.initial()]
    for _ in range(2):
        states.append(here.round(states[-1], [0, 1])[0])
    rads = [state.server["rad"] for state in states]
    assert {tuple(rad.shape) for rad in rads} == {(7, max(c.shapes[0] for c in fed))}
    assert not any(torch.equal(rads[i], rads[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    again = simulator(fed).round(states[0], [2, 3])[0].server["rad"]
    assert torch.equal(again, rads[1]), "whoever takes part"
    other = simulator(fed, seed=1)
    assert not torch.equal(other.round(other.initial(), [0, 1])[0].server["rad"], rads[1])
    large = torch.randn(4000, generator=stream(0, "x", 0, "y"))
    draw = FedHeNN(n_rad=4000).ask({}, [Spec("a", (1,), 1, 2, (1, 0), 1)], stream(0, "x", 0, "y"))["rad"]
    assert torch.equal(draw[:, 0], large), "standard normal numbers of the stream that is given"


@pytest.mark.parametrize(("surveyed", "asked"), [("participants", 3), ("all", 6)])
def test_bytes(surveyed, asked):
    """Kernels are 7×7; the RAD goes out once to whoever is asked, K̄ to the three participants; float32."""
    fed = ragged(widths=(3, 9))
    widths = [c.shapes[0] for c in fed]
    result = run(fed, replace(SMALL, surveyed=surveyed), rounds=1, dtype=torch.float32)
    chosen = participants([c.name for c in fed], 0.5, 0, 0) if surveyed == "participants" else range(6)
    assert result.history["bytes_up"].tolist() == [0, 4 * 49 * asked]
    assert result.history["bytes_down"].tolist() == [0, 4 * (7 * sum(widths[c] for c in chosen) + 49 * 3)]
    assert result.final["bytes_down"] == result.history["bytes_down"].sum() + 4 * (7 * sum(widths) + 49 * 6)


def test_networks_stay_on_the_clients():
    result = run(ragged(), SMALL)
    assert set(result.server) == {"rad", "kernel"}
    assert all(set(kept) == set(params) for kept, params in zip(result.client_states, result.params, strict=True))


def test_a_new_client_wider_than_all_gets_a_padded_rad():
    base = run(ragged(widths=(3, 6)), SMALL)
    wide = Client(normal(6, 9), [0, 1, 2] * 2, normal(3, 9), [0, 1, 2], "wide")
    spec = Federation([wide], 5).specs()[0]
    got = SMALL.download(base.server, spec)["rad"]
    width = base.server["rad"].shape[1]
    assert torch.equal(got[:, :width], base.server["rad"])
    assert got[:, width:].abs().sum() == 0
    assert adapt(base, wide, progress=False).history["bytes_down"].iloc[0] == 8 * (7 * 9 + 49)


# --- the alignment --------------------------------------------------------------------------------------------------


def test_the_alignment_of_kernels_is_the_cka_of_representations():
    x, y = normal(20, 4), normal(20, 6, purpose="y") + 3
    torch.testing.assert_close(kernel_alignment(x @ x.T, y @ y.T), cka(x, y))
    torch.testing.assert_close(kernel_alignment(x @ x.T, 5 * x @ x.T), torch.tensor(1.0, dtype=torch.float64))


def test_the_alignment_does_not_depend_on_units():
    x, y = normal(20, 4), normal(20, 6, purpose="y")
    K, L = x @ x.T, y @ y.T
    torch.testing.assert_close(kernel_alignment(1e-18 * K, 1e18 * L), kernel_alignment(K, L))


def test_a_constant_representation_aligns_with_nothing_and_has_no_gradient():
    x, y = torch.ones(5, 2, dtype=torch.float64, requires_grad=True), normal(5, 3)
    value = kernel_alignment(x @ x.T, y @ y.T)
    assert float(value.detach()) == 0
    assert torch.autograd.grad(value, x)[0].abs().sum() == 0
    zero = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    for similarity in (published_alignment(zero @ zero.T, y @ y.T), published_alignment(y @ y.T, zero @ zero.T)):
        assert float(similarity.detach()) == 0
        assert torch.autograd.grad(similarity, zero)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 7, 30, 100])
def test_rounding_is_no_variation(n, dtype):
    """Centring leaves of the kernel of equal rows up to 1.5 roundings; 0 and no gradient all the same."""
    y = normal(n, 3).to(dtype)
    for row in normal(20, 1, 64, purpose="rows").to(dtype):
        z = row.expand(n, 64).clone().requires_grad_()
        for K, L in ((z @ z.T, y @ y.T), (y @ y.T, z @ z.T)):
            value = kernel_alignment(K, L)
            assert float(value.detach()) == 0
            assert torch.autograd.grad(value, z)[0].abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_little_variation_still_counts(dtype):
    """Such as an untrained CNN has: its kernel varies by 4e-5 of its norm."""
    rad = normal(100, 1, 16, 16, purpose="images")
    model = Model(CNN())
    params = model.init(Spec("a", (1, 16, 16), 10, 2, (5, 5), 1), stream(0, "a", 0, "init"), model.parts)
    z = model.embed({name: p.double() for name, p in params.items()}, rad)
    y = normal(100, 3, purpose="y")
    exact = cka(z, y)
    z, y = z.to(dtype), y.to(dtype)
    assert exact > 0.01
    torch.testing.assert_close(kernel_alignment(z @ z.T, y @ y.T).double(), exact, rtol=0.05, atol=0)


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_the_published_formula_by_hand(size):
    """‖K̄K_i‖² / (‖K̄K̄ᵀ‖ max(‖K_iK_i‖, 1)); the maximum is 1 for a small kernel."""
    a, b = (size * normal(6, 3)).numpy(), normal(6, 4, purpose="y").numpy()
    K, mean = a @ a.T, b @ b.T
    norm = np.linalg.norm
    expected = norm(mean @ K) ** 2 / (norm(mean @ mean.T) * max(norm(K @ K), 1))
    assert (norm(K @ K) < 1) == (size < 1)
    got = published_alignment(torch.from_numpy(K), torch.from_numpy(mean))
    assert float(got) == pytest.approx(expected)


def one_client(method, seed=0):
    spec = Spec("a", (4,), 6, 2, (3, 3), 1)
    rng = stream(seed, "tests", 0, "one client")
    params = {name: p.double() for name, p in method.init_client(spec, rng).items()}
    z = normal(method.n_rad, 3, purpose="z")
    received = {"rad": normal(method.n_rad, 4, purpose="rad"), "kernel": z @ z.T}
    batch = Batch(normal(6, 4), torch.tensor([0, 1] * 3), torch.ones(6, dtype=torch.float64))
    return params, received, batch, z


def test_the_loss_is_the_task_and_the_distance():
    method = replace(SMALL, term_weight=0.7)
    params, received, batch, z = one_client(method)
    loss = method.loss(params, received, batch, {})
    alone = method.loss(params, received, batch, {}).terms["ce"]
    value = cka(method.model.embed(params, received["rad"]), z)
    torch.testing.assert_close(loss.total, alone + 0.7 * (1 - value))
    torch.testing.assert_close(loss.terms["similarity"], value)


def test_the_published_loss_adds_the_similarity():
    method = FedHeNN.published(model=SMALL.model, n_rad=7)
    params, received, batch, _ = one_client(method)
    loss = method.loss(params, received, batch, {})
    a = method.model.embed(params, received["rad"])
    similarity = published_alignment(a @ a.T, received["kernel"])
    torch.testing.assert_close(loss.total, loss.terms["ce"] + 0.1 * similarity)


def test_with_a_hidden_layer_the_penultimate_layer_is_aligned():
    method = replace(SMALL, model=replace(SMALL.model, alpha=5))
    params, received, batch, z = one_client(method)
    x = received["rad"] @ params["phi.0.weight"] + params["phi.0.bias"]
    x = x.relu() @ params["phi.1.weight"] + params["phi.1.bias"]
    x = torch.nn.functional.leaky_relu(x @ params["alpha.weight"] + params["alpha.bias"])
    torch.testing.assert_close(method.loss(params, received, batch, {}).terms["similarity"], cka(x, z))


@pytest.mark.parametrize(("published", "towards", "step"), [(False, 1, 1e-8), (True, -1, 1e-7)])
def test_steps_downhill_bring_kernels_together_and_the_published_sign_drives_them_apart(published, towards, step):
    """Gradient steps with η so large that the task does not count."""
    given = {"model": SMALL.model, "n_rad": 7, "term_weight": 1e6}
    method = FedHeNN.published(**given) if published else FedHeNN(**given)
    params, received, batch, _ = one_client(method)
    similarity = []
    for _ in range(20):
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        loss = method.loss(leaves, received, batch, {})
        similarity.append(float(loss.terms["similarity"]))
        grads = torch.autograd.grad(loss.total, list(leaves.values()))
        params = {name: p.detach() - step * g for (name, p), g in zip(leaves.items(), grads, strict=True)}
    assert (np.diff(similarity) * towards > 0).all()
    assert abs(similarity[-1] / similarity[0] - 1) > 0.05


# --- settings -------------------------------------------------------------------------------------------------------


def test_defaults_are_the_texts_and_published_sets_every_switch():
    text, code = FedHeNN(), FedHeNN.published()
    assert CATALOGUE["FedHeNN"] == text
    assert (text.term_weight, text.n_rad, text.weight_decay, text.weighting) == (0.1, 100, 0.0, "uniform")
    for switch in ("alignment", "surveyed", "weight_decay"):
        assert getattr(code, switch) != getattr(text, switch), switch
    assert (code.surveyed, text.surveyed) == ("all", "participants")
    (stage,) = code.stages(0, "round")
    assert (stage.train, stage.epochs, stage.weight_decay) == (("phi", "beta"), 10, 1e-4)
    assert code.stages(5, "final") == [stage]
    assert code.stages(0, "start") == code.stages(3, "rest") == []
    assert FedHeNN.published(term_weight=0.5).term_weight == 0.5


@pytest.mark.parametrize(
    "bad", [{"term_weight": -1.0}, {"n_rad": 1}, {"weight_decay": -1.0}, {"alignment": "plus"}, {"surveyed": "none"}]
)
def test_bad_settings(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FedHeNN(**bad)


def test_inputs_with_unequal_axes_have_no_largest_space():
    flat = Client(normal(3, 4), [0, 1, 2], normal(1, 4), [0], "flat")
    image = Client(normal(3, 1, 4, 4), [0, 1, 2], normal(1, 1, 4, 4), [0], "image")
    with pytest.raises(ValueError, match=r"the same number of axes, got \(4,\) on 'flat', \(1, 4, 4\) on 'image'"):
        run(Federation([flat, image]), SMALL)
