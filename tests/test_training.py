"""The stacked engine against the loop oracle, and padding that changes nothing."""

import math
import re
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import SMALL_MODEL, equal_histories, largest_difference, ragged
from tensors import normal

from hetfl_core import Client, simulate
from hetfl_core.engine import stacks as stacking
from hetfl_core.engine import training
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.stacks import architecture, precomputed_pattern
from hetfl_core.engine.trained import built
from hetfl_core.engine.training import (
    NOISE_NUMBERS,
    Noise,
    StackedStage,
    n_steps,
    plan,
    stack_received,
)
from hetfl_core.federation import Federation, Spec
from hetfl_core.methods import CATALOGUE, FLIC, FedAvg, FedCR, FedProx, HetFedRep, Local, Loss, Method, Stage
from hetfl_core.methods.base import WITH_MOMENTUM, Optimizer, task_loss
from hetfl_core.methods.descent import UPDATES, clip_each, decay
from hetfl_core.networks import CNN, MLP, Draw, Model
from hetfl_core.rng import stream
from hetfl_core.settings import plain

SHORT = {
    "local_epochs": 1,
    "batch_size": 6,
    "pretrain_epochs": 1,
    "pretrain_batch": 4,
    "finetune_epochs": 1,
    "generator_steps": 3,
}
PHI = MLP(hidden=(9,), out=6)


def short(method):
    """A method with few epochs and a small network."""
    changes = {name: value for name, value in SHORT.items() if hasattr(method, name)}
    return replace(method, model=replace(method.model, phi=PHI), **changes)


def federation_for(method, **options):
    """Unequal widths where the method allows them."""
    fed = ragged(**options)
    try:
        method.check(fed.specs())
    except ValueError:
        fed = ragged(widths=(4, 4), **options)
    return fed


DESCENT = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "weight_decay": 0.01, "clip": 0.5, "lr_decay": 0.8}

VARIANTS = {
    **{name: short(method) for name, method in CATALOGUE.items()},
    **{f"{name} by SGD": replace(short(method), local_steps=3, **DESCENT) for name, method in CATALOGUE.items()},
    "pFedHN": replace(short(CATALOGUE["pFedHN"]), local_epochs=2),  # whose server moves little
    "FLIC learned": short(FLIC(covariance="learned", anchor_samples=3)),
    "FLIC published": FLIC.published(
        model=Model(MLP(hidden=(9,), out=6, dropout=0.5), alpha=5), local_epochs=2, batch_size=6, pretrain_epochs=2,
        pretrain_batch=4, representation_from=1,
    ),
}  # fmt: skip


def run(fed, method, **options):
    return simulate(
        fed,
        method,
        **{"rounds": 2, "participation": 0.5, "device": "cpu", "progress": False, "dtype": torch.float64} | options,
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_stack_equals_loop(name):
    """Two-sided, in float64: every tensor of server and clients, and every figure of the history."""
    method, rounds = VARIANTS[name], 1 if name.endswith("SGD") else 2
    fed = federation_for(method)
    stacked, loop = (run(fed, method, engine=engine, rounds=rounds) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    a, b = (r.history.drop(columns="seconds").fillna(-1) for r in (stacked, loop))
    assert list(a) == list(b)
    assert (a - b).abs().to_numpy().max() < 1e-9 * max(1, a.abs().to_numpy().max())
    start = Simulator(fed, method, dtype=torch.float64, device="cpu").initial()
    kept = [
        (before[name], p)
        for before, now in zip(start.client_states, stacked.client_states, strict=True)
        for name, p in now.items()
    ]
    both = [*kept, *((start.server[name], p) for name, p in stacked.server.items() if name in start.server)]
    assert max(float((before - now).abs().max()) for before, now in both) > 1e-4, "nothing was trained"


def test_images_of_two_sizes_make_two_cohorts_and_stack_equals_loop():
    fed = ragged(n_clients=4, sizes=(7, 12), images=True)
    method = short(FLIC())
    method = replace(method, model=replace(method.model, phi=CNN(out=6, channels=(3, 4))), local_epochs=1)
    assert len(Simulator(fed, method, device="cpu").cohorts) == 2
    stacked, loop = (run(fed, method, engine=engine, rounds=2) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop", "adagrad"])
def test_clients_without_a_batch_left_are_not_moved_by_momentum(optimizer):
    """A client that ends early must stop there: its stack-mates go on with [:K] views of parameters and states."""

    @dataclass(frozen=True)
    class Any_(Local):
        def stages(self, round, role):
            momentum = 0.9 if optimizer in WITH_MOMENTUM else 0.0
            stage = Stage(("phi", "beta"), None, 3, None, 5, optimizer, momentum=momentum, weight_decay=0.1, clip=0.5)
            return [stage] if role == "round" else []

    fed = ragged(sizes=(4, 30))
    stacked, loop = (
        run(fed, Any_(model=Model(PHI)), engine=e, rounds=2, participation=1.0) for e in ("stacked", "loop")
    )
    assert largest_difference(stacked, loop) < 1e-9


def test_a_step_is_computed_only_for_the_clients_that_take_it(monkeypatch):
    """Clients without a batch left cost nothing: parameters, states, batch and noise all have only the others' rows."""
    seen = []
    step = StackedStage.step

    def watched(self, *arguments):
        step(self, *arguments)
        lists = [s for _, states in self.descent.groups for s in states.values() if isinstance(s, list)]
        states = [t for some in lists for t in some if t.dim()]
        sizes = {len(t) for t in [*self.trained.values(), *self.frozen.values(), *states]}
        seen.append(sizes)

    monkeypatch.setattr(StackedStage, "step", watched)
    fed = ragged(sizes=(4, 60))
    method = Local(model=Model(PHI), local_epochs=3, batch_size=5)
    run(fed, method, rounds=1, participation=1.0)
    stage = method.stages(0, "round")[0]
    steps = [n_steps(stage, c.n_train) for c in fed]
    expected = [{sum(s > t for s in steps)} for t in range(max(steps))]
    assert seen == [*expected, *expected], "one round and the final training"
    assert expected[0] == {len(fed)}
    assert expected[-1] != {len(fed)}


def test_order_of_clients_changes_nothing_beyond_rounding():
    fed = ragged()
    turned = Federation([fed.clients[i] for i in (3, 1, 5, 0, 4, 2)], fed.n_classes)
    method = short(FLIC())
    assert largest_difference(run(fed, method), run(turned, method)) < 1e-12


def test_stack_mates_change_nothing_beyond_rounding():
    fed, method = ragged(), short(FLIC())
    assert largest_difference(run(fed, method), run(fed, method, stack_size=2)) < 1e-12


def far_apart(blocks=False):
    """Clients of 3 … 40 features, plain or in two blocks."""
    fed = ragged(n_clients=8, widths=(3, 9))
    widths = [c.shapes[0] * (1, 1, 5)[i % 3] for i, c in enumerate(fed)]
    clients = []
    for i, (c, width) in enumerate(zip(fed, widths, strict=True)):
        xs = [x.repeat(1, 5)[:, :width] for x in (c.x_train, c.x_test)]
        xs = [{"first": x[:, : 1 + i % 2], "second": x[:, 1 + i % 2 :]} for x in xs] if blocks else xs
        clients.append(Client(xs[0], c.y_train, xs[1], c.y_test, c.name))
    return Federation(clients, fed.n_classes)


@dataclass(frozen=True)
class TwoBlocks(Local):
    """Inputs are two named blocks."""

    def init_client(self, spec, rng):
        params = {f"phi.{b}": 0.3 * torch.randn(shape[0], 4, generator=rng) for b, shape in spec.shapes.items()}
        return params | {"beta.weight": torch.randn(4, spec.n_classes, generator=rng)}

    def predict(self, params, received, x, noise=None):
        return torch.tanh(sum(x[b] @ params[f"phi.{b}"] for b in x)) @ params["beta.weight"]

    def loss(self, params, received, batch, noise):
        task = task_loss(self.predict(params, received, batch.x), batch.y, batch.weight)
        return Loss(task, {"ce": task.detach()})


@pytest.mark.parametrize("named", [False, True], ids=["inputs", "blocks"])
def test_one_stack_and_buckets_and_loop_agree(named, monkeypatch):
    """How clients are dealt to stacks costs time and memory, and changes no tensor and no figure."""
    fed = far_apart(named)
    method = TwoBlocks(local_epochs=2, batch_size=6) if named else short(FLIC(anchor_samples=2))
    assert len(Simulator(fed, method, device="cpu").cohorts) == 1
    one, loop = run(fed, method), run(fed, method, engine="loop")
    monkeypatch.setattr(stacking, "STACK", 1.0)
    cohorts = Simulator(fed, method, device="cpu").cohorts
    assert len(cohorts) > 2
    assert sorted(m for cohort in cohorts for m in cohort.members) == list(range(len(fed)))
    several = run(fed, method)
    for other in (one, loop):
        assert largest_difference(several, other) < 1e-9
        figures = [r.history.drop(columns="seconds").to_numpy(float) for r in (several, other)]
        np.testing.assert_allclose(*figures, rtol=0, atol=1e-9)
        for name, predicted in several.outputs("test").items():
            np.testing.assert_allclose(predicted, other.outputs("test")[name], rtol=0, atol=1e-9)


def test_padded_weights_stay_zero():
    """Padded input features are zero, so their weights get no gradient: a wide stack-mate costs only time."""
    fed = ragged(widths=(3, 9))
    simulator = Simulator(fed, short(FLIC()), device="cpu", dtype=torch.float64)
    widths = [c.shapes[0] for c in fed]
    assert len(set(widths)) > 1
    assert len(simulator.cohorts) == 1
    together = run(fed, short(Local()), participation=1.0)
    for client, kept in zip(fed, together.client_states, strict=True):
        alone = run(Federation([client], fed.n_classes), short(Local()), participation=1.0)
        for name, p in kept.items():
            assert p.shape == alone.client_states[0][name].shape
            assert (p - alone.client_states[0][name]).abs().max() < 1e-12


def test_same_seed_same_bits_other_seed_other_numbers():
    fed, method = ragged(), short(FLIC())
    a, b, c = run(fed, method), run(fed, method), run(fed, method, seed=1)
    assert equal_histories(a.history, b.history)
    assert largest_difference(a, b) == 0
    assert largest_difference(a, c) > 1e-3


def test_a_server_model_is_evaluated_on_all_clients():
    fed = ragged(widths=(4, 4))
    result = run(fed, short(FedAvg()))
    assert result.final["server_accuracy"] == pytest.approx(result.final["accuracy"]), "FedAvg has one model for all"
    assert "server_accuracy" not in run(fed, short(Local())).final


def test_global_random_state_is_neither_read_nor_written():
    fed, method = ragged(), short(FLIC())
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = run(fed, method)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert largest_difference(a, run(fed, method)) == 0


def test_a_plan_visits_every_sample_once_an_epoch():
    rows = plan(Stage(("phi",), epochs=3, batch_size=4), 10, stream(0, "anna", 0, "x"))
    assert rows.shape == (9, 4)
    for epoch in rows.reshape(3, 12):
        assert sorted(epoch.tolist()) == [-1, -1, *range(10)]
    assert not torch.equal(rows[:3], rows[3:6])


def test_steps_of_a_stage():
    assert n_steps(Stage(("phi",), epochs=3, batch_size=4), 10) == 9
    assert n_steps(Stage(("phi",), steps=5, batch_size=4), 10) == 5
    assert plan(Stage(("phi",), steps=5, batch_size=4), 10, stream(0, "anna", 0, "x")).shape == (5, 4)
    assert plan(Stage(("phi",), epochs=2, batch_size=100), 10, stream(0, "anna", 0, "x")).shape == (2, 10)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({}, "expected one of them, got None and None"),
        ({"epochs": 1, "steps": 1}, "expected one of them, got 1 and 1"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"steps": -1}, "steps must be at least 1, got -1"),
        ({"epochs": 1, "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"epochs": 1, "lr": -1.0}, "lr must be at least 0, got -1.0"),
        ({"epochs": 1, "optimizer": "lbfgs"}, r"optimizer must be one of \('adam', .* got 'lbfgs'"),
        ({"epochs": 1, "optimizer": "sgd", "momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"epochs": 1, "clip": 0.0}, "clip must be greater than 0, got 0.0"),
        ({"epochs": 1, "clip": "1"}, "clip must be a finite number or None, got '1'"),
        ({"epochs": 1, "optimizer": "sgd", "momentum": -0.1}, r"momentum must be in \[0, 1\), got -0.1"),
        ({"epochs": 1, "momentum": 0.9}, "momentum is for sgd and rmsprop, got 0.9 with adam"),
        ({"epochs": 1, "weight_decay": -1e-3}, "weight_decay must be at least 0, got -0.001"),
        ({"epochs": 1, "weight_decay": {"phi": 0.1, "beta": -2}}, "weight_decay must be at least 0, got -2"),
        ({"epochs": 1, "weight_decay": "much"}, "weight_decay must be a finite number or a mapping of .* got 'much'"),
    ],
)
def test_bad_stages_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Stage(("phi",), **bad)


def test_a_stage_trains_a_tuple_of_parts_not_the_letters_of_one():
    with pytest.raises(ValueError, match=r"train must be a tuple of .* got 'phi'"):
        Stage("phi", epochs=1)


def test_the_longest_prefix_decides_on_the_decay():
    stage = Stage(("phi",), epochs=1, weight_decay={"phi": 0.1, "phi.0": 0.2})
    decays = {name: decay(stage, name) for name in ("phi.0.weight", "phi.1.weight", "beta.weight")}
    assert decays == {"phi.0.weight": 0.2, "phi.1.weight": 0.1, "beta.weight": 0.0}


def test_the_optimizers_that_a_stage_may_name_are_those_there_are():
    assert set(get_args(Optimizer)) == set(UPDATES)


def test_a_stage_may_spare_what_it_names():
    stage = Stage(("phi", "beta"), epochs=1, spare=("phi.1",))
    assert [stage.trains(n) for n in ("phi.0.weight", "phi.1.weight", "phi.10.bias", "beta.bias")] == [1, 0, 1, 1]


def test_clipping_is_per_client():
    grads = [torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([[0.0], [0.0]])]
    clip_each(grads, 1.0)
    torch.testing.assert_close(grads[0], torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 10**6), limit=st.floats(-12, 6), scale=st.floats(-6, 6), n=st.integers(1, 400))
def test_a_clipped_gradient_is_never_longer_than_the_limit(dtype, seed, limit, scale, n):
    """Rounding included, and otherwise what PyTorch clips one client's gradient to."""
    limit, scale = 10.0**limit, 10.0**scale
    grads = [scale * normal(3, n, seed=seed, dtype=dtype), scale * normal(3, 2, 2, seed=seed + 1, dtype=dtype)]
    leaves = [torch.zeros_like(g[0]) for g in grads]
    for leaf, g in zip(leaves, grads, strict=True):
        leaf.grad = g[0].double().clone().to(dtype)
    before = [g[0].clone() for g in grads]
    clip_each(grads, limit)
    norms = torch.stack([g.flatten(1).double().square().sum(1) for g in grads]).sum(0).sqrt()
    assert float(norms.max()) <= limit
    if math.sqrt(sum(float(g.double().square().sum()) for g in before)) <= limit:
        assert all(torch.equal(g[0], old) for g, old in zip(grads, before, strict=True))
    elif limit > 1e-2:  # PyTorch divides by the norm + 1e-6
        torch.nn.utils.clip_grad_norm_(leaves, limit)
        for g, leaf in zip(grads, leaves, strict=True):
            torch.testing.assert_close(g[0], leaf.grad, rtol=1e-3, atol=1e-30)


def test_architecture_tells_hidden_widths_apart_but_not_input_widths():
    specs = ragged(widths=(3, 9)).specs()
    assert len({architecture(Local(), spec) for spec in specs}) == 1

    @dataclass(frozen=True)
    class Mixed(Local):
        def init_client(self, spec, rng):
            return replace(self.model, phi=MLP(hidden=(spec.n_train % 2 + 3,))).init(spec, rng, self.local)

    assert len({architecture(Mixed(), spec) for spec in specs}) == 2


def test_what_is_made_of_the_samples_is_foreseen_by_samples_like_them():
    """As many of each class as there are, or targets that are no labels; inputs of the true shape."""

    @dataclass(frozen=True)
    class Looks(Local):
        def precompute(self, spec, data, rng):
            return {"x": data.x, "y": data.y, "weight": data.weight}

    spec = Spec("anna", (7,), 5, 3, (2, 0, 3), 1)
    found = precomputed_pattern(Looks(), spec)
    assert (found["x"].shape, found["y"].tolist(), found["weight"].tolist()) == ((5, 7), [0, 0, 2, 2, 2], [1.0] * 5)
    targets = precomputed_pattern(Looks(), replace(spec, task="regression", class_counts=()))["y"]
    assert (targets.dtype, len(targets)) == (torch.float32, 5)


def test_values_to_remember_reach_upload_sample_by_sample():
    """Every sample's own value, and zeros for those never seen."""
    seen = {}

    @dataclass(frozen=True)
    class Remembers(Local):
        def stages(self, round, role):
            return [Stage(("beta",), steps=2, batch_size=3)] if role == "round" else []

        def loss(self, params, received, batch, noise):
            result = super().loss(params, received, batch, noise)
            return Loss(result.total, {}, {"x0": batch.x[:, :1] + 1})

        def upload(self, params, received, data, memory):
            seen.setdefault(len(data.y), []).append((data.x, memory["x0"]))
            return {}

    fed = ragged(sizes=(7, 40))
    for engine in ("stacked", "loop"):
        run(fed, Remembers(), rounds=1, participation=1.0, engine=engine)
    for pairs in seen.values():
        for x, memory in pairs:
            touched = memory[:, 0] != 0
            assert int(touched.sum()) == 6  # two batches of three
            torch.testing.assert_close(memory[touched, 0], x[touched, 0] + 1)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("spread", ["repeat", "expand"])
def test_what_is_remembered_of_a_sample_is_its_newest_value(engine, spread):
    """All samples pass in each of three steps: what stays is of the parameters before the third, after the second.

    Whether the value is a copy or a view of a parameter, which the step then moves.
    """
    seen, fed = [], ragged(sizes=(7, 40))

    @dataclass(frozen=True)
    class Remembers(Local):
        def loss(self, params, received, batch, noise):
            result = super().loss(params, received, batch, noise)
            return Loss(
                result.total,
                {},
                {"bias": getattr(params["beta.bias"], spread)(len(batch.y), {"repeat": 1, "expand": -1}[spread])},
            )

        def upload(self, params, received, data, memory):
            seen.append((params["beta.bias"].clone(), memory["bias"].clone()))
            return {}

    for epochs in (2, 3):
        method = Remembers(optimizer="sgd", lr=0.5, local_epochs=epochs, batch_size=1000)
        run(fed, method, rounds=1, participation=1.0, engine=engine)
    half = len(seen) // 2
    for (after_two, _), (after_three, memory) in zip(seen[:half], seen[half:], strict=True):
        torch.testing.assert_close(memory, after_two.expand_as(memory))
        assert (memory[0] - after_three).abs().max() > 1e-3


def test_noise_is_drawn_for_fewer_steps_at_once_where_a_step_needs_much():
    """FedCR's settings: 18 draws of 512 numbers a sample, batch 48, were 113 MB a client when 64 steps were drawn."""
    much = Noise({"xi": Draw((18, 512), per="sample")}, 48, stream(0, "a", 0, "noise"), torch.float32)
    assert much.steps == 8
    assert 8 * 48 * 18 * 512 <= NOISE_NUMBERS < 16 * 48 * 18 * 512
    one = Noise({"xi": Draw((3 * NOISE_NUMBERS,))}, 1, stream(0, "a", 0, "noise"), torch.float32)
    assert one.steps == 1
    assert Noise({}, 5, stream(0, "a", 0, "noise"), torch.float32).steps == 64


@pytest.mark.parametrize("kind", ["normal", "uniform", "keep"])
def test_smaller_blocks_of_one_draw_hold_the_same_numbers(kind, monkeypatch):
    """What a seed means does not change with the bound where one thing is drawn, of 16 numbers or a multiple."""
    draws = {"xi": Draw((16, 3), kind, "sample", 0.5)}

    def numbers():
        noise = Noise(draws, 7, stream(0, "a", 0, "noise"), torch.float32)
        return noise.steps, torch.cat([noise.of(step, noise.steps)["xi"] for step in range(0, 64, noise.steps)])

    (whole, expected), _ = numbers(), monkeypatch.setattr(training, "NOISE_NUMBERS", 4 * 7 * 16 * 3)
    steps, found = numbers()
    assert (whole, steps) == (64, 4)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("bound", [NOISE_NUMBERS, 600])
def test_noise_is_the_clients_own(bound, monkeypatch):
    """Draws do not depend on the stack's batch size: a short client sees the same numbers beside a long one.

    Nor on who needs so many numbers that they are drawn for fewer steps at once (600: for 8 to 32).
    """
    monkeypatch.setattr(training, "NOISE_NUMBERS", bound)

    @dataclass(frozen=True)
    class Noisy(Local):
        def noise(self, spec, stage):
            return {"jitter": Draw((spec.shapes[0],), per="sample"), "shift": Draw((2,), "uniform")}

        def loss(self, params, received, batch, noise):
            batch = batch._replace(x=batch.x + 0.1 * noise["jitter"] * batch.weight[:, None] + noise["shift"].sum() * 0)
            return super().loss(params, received, batch, noise)

    fed = ragged(sizes=(4, 40), widths=(3, 9))
    method = Noisy(model=Model(PHI), local_epochs=20, batch_size=8)
    assert max(n_steps(method.stages(0, "round")[0], client.n_train) for client in fed) > 64, "one block of noise"
    stacked, loop = (run(fed, method, engine=e, rounds=1, participation=1.0) for e in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9


def test_participants_are_drawn_without_replacement_and_by_name():
    names = [f"client-{i}" for i in range(50)]
    chosen = participants(names, 0.1, 0, 3)
    assert len(set(chosen)) == 5
    turned = participants(names[::-1], 0.1, 0, 3)
    assert {names[i] for i in chosen} == {names[::-1][i] for i in turned}
    counts = torch.zeros(50)
    for t in range(400):
        counts[participants(names, 0.1, 0, t)] += 1
    assert counts.min() > 15, "each is chosen 40 times on average, sd 6"
    assert counts.max() < 65


# --- what the contract allows --------------------------------------------------------------------------------------


def both_engines(method, fed=None, **options):
    fed = ragged() if fed is None else fed
    return [
        run(fed, method, engine=engine, **{"rounds": 2, "participation": 1.0} | options)
        for engine in ("stacked", "loop")
    ]


def test_clients_with_other_networks_do_not_share_a_stack():
    """The hidden width depends on the client's name, not on its input: padding a sigmoid's width would be wrong."""

    @dataclass(frozen=True)
    class Mixed(Local):
        def init_client(self, spec, rng):
            width = 3 + int(spec.name[-1]) % 2
            return replace(self.model, phi=MLP(hidden=(width,), out=6, activation="sigmoid")).init(
                spec, rng, self.local
            )

    method = Mixed(model=Model(MLP(hidden=(9,), out=6, activation="sigmoid")), local_epochs=2, batch_size=6)
    fed = ragged(widths=(4, 4))
    assert len(Simulator(fed, method, device="cpu").cohorts) == 2
    assert largest_difference(*both_engines(method, fed)) < 1e-9


def test_downloads_may_differ_in_shape_and_name():
    """Each client gets the rows of its own classes only, and client 0 one tensor more."""

    @dataclass(frozen=True)
    class Personal(Local):
        def init_server(self, specs, rng):
            return {"table": torch.randn(5, 4, generator=rng)}

        def download(self, server, spec):
            own = {"rows": server["table"][list(spec.classes)[: 2 + int(spec.name[-1]) % 2]]}
            return own | ({"extra": server["table"][:1]} if spec.name.endswith("0") else {})

        def start(self, client_state, received):
            return dict(client_state)

        def loss(self, params, received, batch, noise):
            task = super().loss(params, received, batch, noise)
            pull = (params["beta.bias"].mean() - received["rows"].mean()).square() + sum(
                received[name].sum() for name in received if name == "extra"
            )
            return Loss(task.total + pull, task.terms)

    assert largest_difference(*both_engines(short(Personal()))) < 1e-9


def test_named_blocks_run_in_both_engines():
    """Two blocks, the second empty on some clients: empty ones are not padded to look full."""

    @dataclass(frozen=True)
    class Blocks(Local):
        def init_client(self, spec, rng):
            params = {"phi.b": torch.zeros(4)}
            for name, shape in spec.shapes.items():
                params[f"phi.{name}"] = 0.3 * torch.randn(shape[0], 4, generator=rng)
            return params | {"beta.weight": torch.randn(4, spec.n_classes, generator=rng)}

        def predict(self, params, received, x, noise=None):
            z = params["phi.b"] + x["first"] @ params["phi.first"]
            if x["second"].shape[1]:
                z = z + x["second"] @ params["phi.second"]
            return torch.tanh(z) @ params["beta.weight"]

        def loss(self, params, received, batch, noise):
            return Loss(task_loss(self.predict(params, received, batch.x), batch.y, batch.weight))

    plain = ragged()
    clients = []
    for i, c in enumerate(plain):
        split = [{"first": x[:, :2], "second": x[:, 2:] if i % 2 else x[:, :0]} for x in (c.x_train, c.x_test)]
        clients.append(Client(split[0], c.y_train, split[1], c.y_test, c.name))
    fed = Federation(clients, plain.n_classes)
    assert len(Simulator(fed, Blocks(), device="cpu").cohorts) == 2
    assert largest_difference(*both_engines(Blocks(local_epochs=2, batch_size=6), fed)) < 1e-9
    with pytest.raises(ValueError, match=r"client 'client-\d': Local's model cannot take .*one tensor"):
        run(fed, Local(Model(MLP((8,)))))


def test_upload_is_called_for_rounds_only():
    roles = []

    @dataclass(frozen=True)
    class Watched(Local):
        def init_server(self, specs, rng):
            return {"mean": torch.zeros(1)}

        def stages(self, round, role):
            roles.append(role)
            return [Stage(("beta",), steps=1, batch_size=4)]

        def loss(self, params, received, batch, noise):
            task = super().loss(params, received, batch, noise)
            return Loss(task.total, {}, {"seen": batch.x[:, :1]})

        def upload(self, params, received, data, memory):
            assert roles[-1] == "round"
            return {"mean": memory["seen"].mean(0)}

    assert set(roles) == set()
    for result in both_engines(Watched(), participation=0.5):
        assert result.server["mean"].shape == (1,)
    assert {"start", "round", "rest", "final"} <= set(roles)


def test_a_server_may_compute_in_float64_and_with_gradients():
    @dataclass(frozen=True)
    class Stepping(FLIC):
        def aggregate(self, server, uploads, weights, specs, rng):
            with torch.enable_grad():
                mean = server["anchor.mean"].double().requires_grad_()
                (mean - torch.stack([u["anchor.mean"].double() for u in uploads])).square().sum().backward()
                return {**server, "anchor.mean": mean - 0.01 * mean.grad}

    result = run(ragged(), short(Stepping()), dtype=torch.float32)
    assert result.server["anchor.mean"].dtype == torch.float32
    assert not result.server["anchor.mean"].requires_grad


@pytest.mark.parametrize("parts", [("fi",), ("phi", "head")])
def test_a_misspelt_part_is_refused(parts):
    """Also beside one that is right: the other would stay as it was drawn, and nobody would know."""

    @dataclass(frozen=True)
    class Typo(Local):
        def stages(self, round, role):
            return [Stage(parts, epochs=1)]

    for engine in ("stacked", "loop"):
        with pytest.raises(ValueError, match=r"a stage trains \(.*\), but .* only the parts \['beta', 'phi'\]"):
            run(ragged(), Typo(), engine=engine)


@pytest.mark.parametrize("parts", [("heads",), "beta", ("beta", "phi.9")])
def test_a_part_that_is_to_be_shared_and_is_none_is_refused(parts):
    """Nothing would be sent, and everybody would train alone under the method's name."""

    @dataclass(frozen=True)
    class Typo(HetFedRep):
        shared: ClassVar = parts

    with pytest.raises(ValueError, match=rf"Typo: shared must be a tuple of parts .* got {re.escape(repr(parts))}"):
        run(ragged(), Typo())


def test_what_is_sent_under_another_name_than_the_server_knows_is_refused():
    @dataclass(frozen=True)
    class Typo(HetFedRep):
        def upload(self, *args):
            return {name.replace("weight", "wieght"): p for name, p in super().upload(*args).items()}

    with pytest.raises(ValueError, match=r"clients sent 'alpha.wieght', but what the server holds is alpha\.weight"):
        run(ragged(), Typo())


def test_a_loss_term_must_not_hide_a_column():
    @dataclass(frozen=True)
    class Named(Local):
        def loss(self, params, received, batch, noise):
            task = super().loss(params, received, batch, noise)
            return Loss(task.total, {"round": task.total.detach()})

    with pytest.raises(ValueError, match="a loss term is called 'round', which is a column of every history"):
        run(ragged(), Named())


def test_every_method_says_what_it_trains():
    with pytest.raises(NotImplementedError, match="Method must define stages"):
        Method().stages(0, "round")


def test_what_all_clients_receive_alike_is_not_copied():
    """One object for all stays one; two that are only equal are stacked."""
    one, other = torch.ones(2), torch.ones(2)
    stacked, dims = stack_received([{"same": one, "own": one}, {"same": one, "own": other}])
    assert stacked["same"] is one
    assert stacked["own"].shape == (2, 2)
    assert dims == {"same": None, "own": 0}


# --- the short last batch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "size", "batches"), [(23, 10, 2), (20, 10, 2), (7, 10, 1), (10, 10, 1), (5, 1, 5)])
def test_a_short_last_batch_is_left_out_unless_it_is_all(n, size, batches):
    kept = Stage(("phi",), epochs=3, batch_size=size)
    left_out = replace(kept, drop_last=True)
    rows = plan(left_out, n, torch.Generator().manual_seed(0))
    assert n_steps(left_out, n) == len(rows) == 3 * batches
    assert (rows >= 0).all()
    if n >= size:
        assert len(torch.utils.data.DataLoader(range(n), batch_size=size, drop_last=True)) == batches
    else:
        assert torch.equal(rows.sort(1).values, torch.arange(n, dtype=torch.int32).repeat(3, 1)), "all, each epoch"
    all_rows = plan(kept, n, torch.Generator().manual_seed(0)).reshape(3, -1, min(size, n))
    assert torch.equal(rows.reshape(3, batches, -1), all_rows[:, :batches]), "the same batches but for the last"


def test_steps_go_on_through_epochs_without_their_last_batches():
    stage = Stage(("phi",), steps=5, batch_size=4, drop_last=True)
    rows = plan(stage, 9, torch.Generator().manual_seed(0))
    assert rows.shape == (5, 4)
    assert (rows >= 0).all()
    assert all(len(set(pair.flatten().tolist())) == 8 for pair in (rows[:2], rows[2:4]))


@pytest.mark.parametrize("method", [FedAvg, FLIC, HetFedRep], ids=lambda m: m.__name__)
def test_both_engines_leave_out_the_same(method):
    """Clients of fewer samples than a batch, of whole batches, and of some and a rest, in one stack."""
    fed = ragged(widths=(5, 5), sizes=(5, 22))
    assert {c.n_train < 8 for c in fed} == {True, False}
    brief = {"pretrain_epochs": 1} if method is FLIC else {}
    made = method(SMALL_MODEL, local_epochs=2, batch_size=8, drop_last=True, **brief)
    options = {"rounds": 2, "dtype": torch.float64, "device": "cpu", "progress": False}
    stacked, loop = (simulate(fed, made, engine=engine, **options) for engine in ("stacked", "loop"))
    assert largest_difference(stacked, loop) < 1e-9
    kept = simulate(fed, replace(made, drop_last=False), **options)
    assert largest_difference(stacked, kept) > 1e-4


def test_where_batches_are_whole_nothing_is_left_out():
    x, y = np.random.default_rng(0).normal(size=(24, 3)), np.arange(24) % 2
    fed = Federation([Client(x, y, x, y, "a"), Client(x[:5], y[:5], x, y, "few")])
    runs = [
        simulate(fed, FedAvg(SMALL_MODEL, batch_size=8, local_epochs=1, drop_last=drop), rounds=2, progress=False)
        for drop in (False, True)
    ]
    assert largest_difference(*runs) == 0


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_loss_that_remembers_every_sample_leaves_none_out(engine):
    with pytest.raises(ValueError, match=r"FedCR remembers \['natural', 'precision'\] of every sample, and drop_last"):
        simulate(ragged(widths=(5, 5)), FedCR(drop_last=True), rounds=1, engine=engine, progress=False)


def test_settings_that_leave_nothing_out_are_written_as_ever():
    """So that records, checkpoints and saved models of before are those of the same settings."""
    usual, changed = FedProx(), FedProx(drop_last=True)
    assert "drop_last" not in plain(usual)
    assert plain(changed) == {**plain(usual), "drop_last": True}
    assert built(plain(changed)) == changed != usual == built(plain(usual))
    assert changed.stage(("phi",), 0).drop_last
    assert not usual.stage(("phi",), 0).drop_last
    with pytest.raises(ValueError, match="drop_last must be True or False, got 2"):
        FedProx(drop_last=2)
