"""HyFEM: a round worked by hand, its limits, what Remark 3 says it becomes, growth, and clients that diverge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference, ragged
from test_blocks import FED, OPTIONS, PHI, holding

from hetfl_core import Federation, adapt, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.federation import Spec
from hetfl_core.methods import Batch, FedProx, HyFEM, LateFusion, Local
from hetfl_core.networks import MLP, Blocks, Model

DRY = Blocks.alike("abc", MLP((), 2), 3)
SETTING = {"model": Model(DRY), "local_epochs": 2, "batch_size": 7, "lr": 0.01}
PLAIN = {"model": Model(MLP((4,), 3)), "local_epochs": 2, "batch_size": 7, "lr": 0.01}


def run(method, fed=FED, **options):
    return simulate(fed, method, **{**OPTIONS, "rounds": 3, **options})


def doubled(params):
    return {name: p.double() if p.is_floating_point() else p for name, p in params.items()}


# --- by hand --------------------------------------------------------------------------------------------------------


def test_a_server_step_by_hand():
    """Two clients, blocks a (both) and b (the second), extractors of one number, two neurons, one output more.

    The second client's neurons are the first's in the other order, so that they are matched crosswise. It is the
    first client's turn, and it moves:

    ====================  ==========  ==========
    client, neuron        0           1
    ====================  ==========  ==========
    u: from a, bias, out  1, 0, 2     5, 0, 4
    v: from a, bias, out  5, 2, 6     1, 2, 0
    v: from b             8           7
    ====================  ==========  ==========

    Row 0 of the server's is the mean of v's first and u's second neuron, (5, 1, 5), row 1 that of the other two,
    (1, 1, 1); what comes from b is v's alone, (8, 7). Extractors: of a the mean of 1 and 3, of b v's 4.
    """
    method = HyFEM(Model(Blocks.alike("ab", MLP((), 1), 2)), order="sequential", passes=1)
    specs = [Spec(n, {"a": (1,), "b": (b,)}, 1, 1, (1,), 2) for n, b in (("u", 0), ("v", 1))]
    number = lambda *values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    u = {
        "phi.a.0.weight": number([1.0]), "phi.a.0.bias": number(0.0), "phi.joint.a.weight": number([1.0, 5.0]),
        "phi.joint.bias": number(0.0, 0.0), "beta.weight": number([2.0], [4.0]), "beta.bias": number(1.0),
    }  # fmt: skip
    v = {
        "phi.a.0.weight": number([3.0]), "phi.a.0.bias": number(2.0), "phi.joint.a.weight": number([5.0, 1.0]),
        "phi.b.0.weight": number([4.0]), "phi.b.0.bias": number(6.0), "phi.joint.b.weight": number([8.0, 7.0]),
        "phi.joint.bias": number(2.0, 2.0), "beta.weight": number([6.0], [0.0]), "beta.bias": number(5.0),
    }  # fmt: skip
    server = {
        n: p.double() if p.is_floating_point() else p for n, p in method.init_server(specs, torch.Generator()).items()
    }
    new = method.aggregate(server, [u, v], [1.0, 1.0], specs, torch.Generator())
    expected = {
        "phi.a.0.weight": [[2.0]], "phi.a.0.bias": [1.0], "phi.b.0.weight": [[4.0]], "phi.b.0.bias": [6.0],
        "phi.joint.a.weight": [[5.0, 1.0]], "phi.joint.b.weight": [[8.0, 7.0]], "phi.joint.bias": [1.0, 1.0],
        "beta.weight": [[5.0], [1.0]], "beta.bias": [3.0], "index/u": [1, 0], "index/v": [0, 1], "round": 1,
    }  # fmt: skip
    assert {name: p.tolist() for name, p in new.items()} == expected
    back = method.download(new, specs[1])
    assert {name: p.tolist() for name, p in back.items()} == {
        "phi.a.0.weight": [[2.0]], "phi.a.0.bias": [1.0], "phi.b.0.weight": [[4.0]], "phi.b.0.bias": [6.0],
        "phi.joint.a.weight": [[5.0, 1.0]], "phi.joint.b.weight": [[8.0, 7.0]], "phi.joint.bias": [1.0, 1.0],
        "beta.weight": [[5.0], [1.0]], "beta.bias": [3.0],
    }  # fmt: skip
    crossed = method.download(new, specs[0])
    assert set(crossed) == set(u)
    assert crossed["phi.joint.a.weight"].tolist() == [[1.0, 5.0]]
    assert crossed["beta.weight"].tolist() == [[1.0], [5.0]]


def test_penalties_by_hand():
    """Eq. (8) with μ₁ = 0.2 and μ₂ = 0.6, each half the square of the drift; the code's are norms."""
    spec = FED.specs()[0]
    data = FED.to(torch.float64)["u"]
    x = {b: t[:3] for b, t in data.x_train.items()}
    batch = (x, data.y_train[:3], torch.ones(3, dtype=torch.float64))
    terms = {}
    for penalty in ("square", "norm"):
        method = HyFEM(Model(DRY), extractor_weight=0.2, classifier_weight=0.6, penalty=penalty).of(spec)
        server = HyFEM(Model(DRY)).init_server(FED.specs(), torch.Generator().manual_seed(0))
        received = {n: p.double() for n, p in method.download(server, spec).items()}
        still = method.loss(received, received, Batch(*batch), {})
        moved = {n: p + (0.1 if n.startswith("beta") else 0.3 if "joint" in n else 0.2) for n, p in received.items()}
        task = method.loss(moved, moved, Batch(*batch), {}).total
        terms[penalty] = float(method.loss(moved, received, Batch(*batch), {}).total - task)
        assert float(still.total) == pytest.approx(float(still.terms["ce"]))
    of_extractors = 0.04 * (3 * 2 + 2 + 4 * 2 + 2)
    of_classifier = 0.09 * (2 * 2 * 3 + 3) + 0.01 * (3 * 3 + 3)
    assert terms["square"] == pytest.approx(0.1 * of_extractors + 0.3 * of_classifier)
    assert terms["norm"] == pytest.approx(0.2 * of_extractors**0.5 + 0.6 * of_classifier**0.5)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_with_one_block_it_is_fedprox():
    """Remark 3, item 2: common start and the same μ; matching clients that began alike is the identity."""
    fed = Federation([holding("u", "a"), holding("v", "a", 17), holding("w", "a", 9)], 3).of_blocks(["a"])
    model = Model(Blocks({"a": MLP((), 2)}, 3))
    for mu in (0.0, 0.7):
        ours = run(HyFEM(**{**SETTING, "model": model}, extractor_weight=mu, classifier_weight=mu), fed)
        theirs = run(FedProx(**{**SETTING, "model": model}, term_weight=mu, weighting="uniform"), fed)
        assert all(ours.server[f"index/{name}"].tolist() == [0, 1, 2] for name in "uvw")
        for name, p in theirs.server.items():
            torch.testing.assert_close(ours.server[name], p, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(ours.history["accuracy"], theirs.history["accuracy"])


def test_with_plain_inputs_it_is_fedprox_too():
    fed = ragged(widths=(4, 4))
    ours = run(HyFEM(**PLAIN, extractor_weight=0.3, classifier_weight=0.3), fed)
    theirs = run(FedProx(**PLAIN, term_weight=0.3, weighting="uniform"), fed)
    assert largest_difference(ours, theirs) < 1e-12


def test_without_penalty_and_reset_a_client_is_alone():
    """Eq. (22a) with μ = 0 and own starts: the server hears all and says nothing that matters."""
    method = HyFEM(**SETTING, extractor_weight=0, classifier_weight=0, reset=False, client_init="own")
    simulators = [Simulator(FED, m, dtype=torch.float64, device="cpu") for m in (method, Local(**SETTING))]
    states = [simulator.initial() for simulator in simulators]
    for _ in range(3):
        states = [simulator.round(state, [0, 1, 3])[0] for simulator, state in zip(simulators, states, strict=True)]
    for a, b in zip(states[0].client_states, states[1].client_states, strict=True):
        assert_same_tensors(a, b)


def test_a_large_penalty_ties_clients_to_the_server():
    loose, tight = (run(HyFEM(**SETTING, extractor_weight=mu, classifier_weight=mu)).history for mu in (0.0, 1000.0))
    for part in ("extractors' drift", "classifier's drift"):
        assert tight[part].iloc[1:].mean() < loose[part].iloc[1:].mean() / 2


def test_without_matching_blocks_are_averaged_over_who_holds_them():
    method = HyFEM(**SETTING, passes=0)
    simulator = Simulator(FED, method, dtype=torch.float64, device="cpu")
    start = simulator.initial()
    outcomes = simulator.train(start, [0, 1, 2, 3], 0, "round")
    after, _ = simulator.round(start, [0, 1, 2, 3])
    holders = {"a": [0, 2, 3], "b": [0, 1, 2, 3], "c": [1, 3]}
    for block, who in holders.items():
        for name in (f"phi.{block}.0.weight", f"phi.joint.{block}.weight"):
            mean = torch.stack([outcomes[c].upload[name] for c in who]).mean(0)
            torch.testing.assert_close(after.server[name], mean, rtol=0, atol=1e-12)
    assert all(after.server[f"index/{client.name}"].tolist() == [0, 1, 2] for client in FED)


def test_matching_undoes_a_permutation_of_a_clients_neurons():
    """With own starts: a client whose neurons stand in another order changes nothing but its indices."""
    method = HyFEM(**SETTING, client_init="own", order="sequential", cost="exact", passes=6)
    specs = FED.specs()
    rng = torch.Generator().manual_seed(5)
    base = {n: p.double() for n, p in method.init_client(specs[3], rng).items()}
    turn = torch.tensor([2, 0, 1])
    turned = {n: p[..., turn] if "joint" in n else p for n, p in base.items()} | {
        "beta.weight": base["beta.weight"][turn]
    }
    server = doubled(method.init_server(specs, rng))
    alike = method.aggregate(server, [base, base], [1.0, 1.0], [specs[0], specs[3]], rng)
    found = method.aggregate(server, [base, turned], [1.0, 1.0], [specs[0], specs[3]], rng)
    x = {b: t.double() for b, t in FED["z"].x_test.items()}
    torch.testing.assert_close(method.predict_server(found, x), method.predict_server(alike, x), rtol=0, atol=1e-12)
    assert torch.equal(found["index/u"][turn], found["index/z"])


# --- runs -----------------------------------------------------------------------------------------------------------

VARIANTS = {
    "own starts": {"client_init": "own"},
    "goes on": {"reset": False},
    "own, goes on": {"client_init": "own", "reset": False, "penalty": "norm"},
    "grows": {"client_init": "own", "order": "sequential", "growth": 0.05, "max_width": 7},
    "pfnm": {"cost": "pfnm", "order": "sequential", "growth": 0.0, "sigma": 0.1, "max_width": 8, "penalty": "norm"},
    "published": {"cost": "published", "order": "anew", "growth": 0.0, "max_width": 8, "client_init": "own"},
    "random": {"order": "random", "passes": 6, "cost": "exact"},
    "first rounds": {"client_init": "own", "matched_rounds": 1, "order": "sequential"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_runs_stacked_and_looped_and_resumes(variant, tmp_path):
    method = HyFEM(**{**SETTING, "model": Model(PHI)}, **VARIANTS[variant])
    options = {"participation": 0.75, "seed": 3}
    runs = {engine: run(method, engine=engine, **options) for engine in ("stacked", "loop")}
    assert largest_difference(runs["stacked"], runs["loop"]) < 1e-9
    whole = run(method, **options)
    run(method, **{**options, "rounds": 1}, checkpoint=tmp_path)
    resumed = run(method, checkpoint=tmp_path, **options)
    assert equal_histories(resumed.history, whole.history)
    assert_same_tensors(resumed.server, whole.server)
    server = whole.server["beta.weight"]
    if variant == "grows":
        assert 6 < len(server) <= 7
    assert whole.final["server_accuracy"] >= 0


def test_indices_are_forgotten_where_all_is_matched_anew():
    """Rows may become fewer, those of clients who take no part lose their meaning, and all indices stay within."""
    method = HyFEM.published(**SETTING | {"classifier_weight": 0.0, "extractor_weight": 0.0, "matched_rounds": None})
    assert (method.cost, method.order, method.client_init, method.penalty) == ("published", "anew", "own", "square")
    simulator = Simulator(FED, method, dtype=torch.float64, device="cpu")
    state = simulator.initial()
    for participants in ([0, 1, 2, 3], [0, 1], [2, 3]):
        state, _ = simulator.round(state, participants)
        indices = {n.removeprefix("index/"): p for n, p in state.server.items() if n.startswith("index/")}
        assert list(indices) == [FED[i].name for i in participants]
        taken = torch.cat(list(indices.values())).unique()
        assert torch.equal(taken, torch.arange(len(state.server["beta.weight"]))), "no row is empty"
    assert np.isfinite(simulate(FED, method, **OPTIONS).final["server_accuracy"])


def test_matching_stops_after_the_first_rounds():
    method = HyFEM(**SETTING, client_init="own", matched_rounds=1, order="sequential")
    simulator = Simulator(FED, method, dtype=torch.float64, device="cpu")
    states = [simulator.initial()]
    for _ in range(3):
        states.append(simulator.round(states[-1], [0, 1, 2, 3])[0])
    indices = [{n: p.tolist() for n, p in s.server.items() if n.startswith("index/")} for s in states]
    assert indices[1] == indices[2] == indices[3] != {}
    assert any(p != [0, 1, 2] for p in indices[1].values())


def test_a_client_that_starts_by_itself_is_reset_from_its_second_round_on():
    method = HyFEM(**SETTING, client_init="own")
    simulator = Simulator(FED, method, dtype=torch.float64, device="cpu")
    state = simulator.initial()
    assert_same_tensors({n: p for n, p in simulator.working(state)[0].items() if n != "known"}, state.client_states[0])
    state, _ = simulator.round(state, [0, 1])
    working = simulator.working(state)
    assert torch.equal(working[0]["phi.a.0.weight"], state.server["phi.a.0.weight"])
    assert torch.equal(working[2]["phi.a.0.weight"], state.client_states[2]["phi.a.0.weight"]), "it was not yet asked"


def test_what_leaves_a_client_does_not_grow_with_its_samples():
    method = HyFEM(**SETTING)
    sizes = []
    for n in (20, 200):
        fed = Federation([holding("u", "ab", n), holding("v", "bc", n)], 3)
        sizes.append(run(method, fed).history[["bytes_up", "bytes_down"]].iloc[1].tolist())
    assert sizes[0] == sizes[1]
    floats = 8
    shared = 3 * 2 + 2 + 4 * 2 + 2, 4 * 2 + 2 + 2 * 2 + 2
    classifier = 2 * 2 * 3 + 3 + 3 * 3 + 3
    assert sizes[0] == [floats * (sum(shared) + 2 * classifier)] * 2


def test_a_diverged_client_ends_in_a_warning_and_not_in_the_solver():
    method = HyFEM(**{**SETTING, "lr": 1e30, "optimizer": "sgd"}, local_steps=3)
    with pytest.warns(RuntimeWarning, match="training diverged"):
        result = run(method)
    assert not torch.isfinite(result.server["beta.weight"]).all()


def test_who_joins_later_gets_the_part_of_the_server_that_it_has_blocks_for():
    result = run(HyFEM(**SETTING))
    new = adapt(result, holding("late", "c"), rounds=1, progress=False)
    assert set(new.params[0]) >= {"phi.c.0.weight", "phi.joint.c.weight"}
    assert "phi.a.0.weight" not in new.params[0]
    assert torch.equal(new.params[0]["phi.joint.c.weight"], result.server["phi.joint.c.weight"])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: HyFEM(Model(DRY, alpha=3)), "HyFEM matches the layer over all blocks: the model must have no alpha"),
        (lambda: HyFEM(Model(DRY), classifier_weight=-1), "classifier_weight must be at least 0, got -1"),
        (lambda: HyFEM(Model(DRY), passes=-1), "passes must be at least 0, got -1"),
        (lambda: HyFEM(Model(DRY), max_width=0), "max_width must be at least 1, got 0"),
        (lambda: LateFusion(Model(DRY, gaussian=3)), "late fusion has a head for each block"),
    ],
)
def test_what_is_refused(method, message):
    with pytest.raises(ValueError, match=message):
        run(method())


def test_blocks_of_one_name_must_have_one_shape():
    odd = holding("odd", "ab")
    odd = replace(
        odd, x_train={**odd.x_train, "a": odd.x_train["a"][:, :2]}, x_test={**odd.x_test, "a": odd.x_test["a"][:, :2]}
    )
    fed = Federation([*FED, odd], 3)
    for method in (HyFEM(**SETTING), LateFusion(**SETTING)):
        with pytest.raises(ValueError, match=r"block 'a', .* \(3,\) on 'u' but \(2,\) on 'odd'"):
            run(method, fed)


# --- late fusion ----------------------------------------------------------------------------------------------------


def test_late_fusion_averages_the_blocks_probabilities():
    method = LateFusion(**SETTING)
    result = run(method)
    spec, x = FED.specs()[1], {b: t.double() for b, t in FED["v"].x_test.items()}
    each = []
    for b in "bc":
        p = result.params[1]
        z = x[b] @ p[f"phi.{b}.0.weight"] + p[f"phi.{b}.0.bias"]
        each.append((z @ p[f"beta.{b}.weight"] + p[f"beta.{b}.bias"]).softmax(1))
    expected = torch.stack(each).mean(0)
    got = method.of(spec).predict(result.params[1], {}, x).exp()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.from_numpy(result.outputs("test")["v"]).exp(), expected)
    assert method.of(spec).embed(result.params[1], {}, x).shape == (9, 4)


def test_late_fusion_trains_each_block_as_if_it_were_alone():
    """The loss is a mean over blocks, so that with one block a third of the step does what it does among three."""
    specs = Federation([holding("z", "abc")], 3).specs()
    data = Federation([holding("z", "abc")], 3).to(torch.float64)["z"]
    begun = doubled(LateFusion(**SETTING).init_server(specs, torch.Generator().manual_seed(1)))

    def gradient(x):
        params = {name: p.clone().requires_grad_() for name, p in begun.items()}
        batch = Batch(x, data.y_train, torch.ones(len(data.y_train), dtype=torch.float64))
        LateFusion(**SETTING).loss(params, begun, batch, {}).total.backward()
        return params["phi.b.0.weight"].grad

    alone = gradient({b: t if b == "b" else t[:, :0] for b, t in data.x_train.items()})
    torch.testing.assert_close(3 * gradient(data.x_train), alone)
