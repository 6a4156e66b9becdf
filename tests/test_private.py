"""What a client makes of its samples once and keeps for itself, and what a server adds for clients that come later."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference, ragged

from hetfl_core import Federation, adapt, simulate
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import Local
from hetfl_core.networks import MLP, Model
from hetfl_core.rng import stream

FED = ragged()
OPTIONS = {"rounds": 3, "participation": 0.6, "device": "cpu", "progress": False, "dtype": torch.float64}


@dataclass(frozen=True)
class Fixed(Local):
    """Pulls the embeddings of three samples, drawn once, to zero; sends their mean, before and after training."""

    def init_server(self, specs, rng):
        return {"mean": torch.zeros(self.model.latent)}

    def precompute(self, spec, data, rng):
        assert tuple(data.x.shape) == (spec.n_train, *spec.shapes)
        rows = torch.randperm(len(data.y), generator=rng)[:3]
        return {"few.x": data.x[rows], "few.y": data.y[rows]}

    def start(self, client_state, received):
        return dict(client_state)

    def loss(self, params, received, batch, noise):
        task = super().loss(params, received, batch, noise)
        pull = self.model.embed(params, params["few.x"]).square().mean()
        return task._replace(total=task.total + pull, terms={**task.terms, "pull": pull.detach()})

    def upload(self, params, received, data, memory):
        return {"mean": self.model.embed(params, params["few.x"]).mean(0)}


@dataclass(frozen=True)
class Told(Fixed):
    """As `Fixed`, but what it sends is the answer of a survey, about all samples."""

    surveyed = "all"

    def survey(self, params, received, data):
        assert data.weight.sum() == len(data.y)
        return {"mean": self.model.embed(params, data.x).mean(0)}

    def digest(self, server, answers, weights, specs, rng):
        return {"mean": sum(w * a["mean"] for w, a in zip(weights, answers, strict=True)) / sum(weights)}

    def upload(self, params, received, data, memory):
        return {}

    def aggregate(self, server, uploads, weights, specs, rng):
        return server


FIXED = Fixed(Model(MLP((6,), 4)), local_epochs=2, batch_size=8)
TOLD = Told(**{name: getattr(FIXED, name) for name in ("model", "local_epochs", "batch_size")})


@pytest.mark.parametrize("method", [FIXED, TOLD])
def test_stacked_is_looped_where_what_is_private_grows_with_the_input(method):
    """Widths differ from client to client, so that the fixed samples are padded in a stack."""
    fed = ragged(widths=(3, 8))
    runs = [simulate(fed, method, engine=engine, **OPTIONS) for engine in ("stacked", "loop")]
    assert largest_difference(*runs) < 1e-9
    turned = simulate(Federation(fed.clients[::-1], fed.n_classes), method, **OPTIONS)
    assert largest_difference(runs[0], turned) < 1e-12
    assert runs[0].history["pull"].iloc[-1] < runs[0].history["pull"].iloc[1], "the loss reads it"


def test_it_is_made_once_of_the_clients_own_samples_and_never_changes():
    run = simulate(FED, FIXED, **OPTIONS)
    for client, params, kept in zip(FED, run.params, run.client_states, strict=True):
        rows = torch.randperm(client.n_train, generator=stream(0, client.name, 0, "private"))[:3]
        assert torch.equal(params["few.x"], client.x_train[rows].double())
        assert torch.equal(params["few.y"], client.y_train[rows])
        assert not [name for name in kept if name.startswith("few")], "remade, not carried from round to round"


def test_it_costs_no_bytes_and_only_uploads_leave():
    run = simulate(FED, FIXED, **{**OPTIONS, "participation": 1.0})
    assert run.history["bytes_up"].tolist() == [0, *[6 * 4 * 8] * 3]
    assert set(run.server) == {"mean"}


@pytest.mark.parametrize("method", [FIXED, TOLD])
def test_a_run_resumes_bit_for_bit_and_its_checkpoint_holds_no_samples(method, tmp_path):
    whole = simulate(FED, method, **OPTIONS)
    simulate(FED, method, **{**OPTIONS, "rounds": 2}, checkpoint=tmp_path)
    (state,) = tmp_path.rglob("state.safetensors")
    assert b"few.x" not in state.read_bytes()
    resumed = simulate(FED, method, **OPTIONS, checkpoint=tmp_path)
    assert equal_histories(whole.history, resumed.history)
    for a, b in zip(whole.params, resumed.params, strict=True):
        assert_same_tensors(a, b)


def test_names_that_are_taken_are_refused():
    @dataclass(frozen=True)
    class Clash(Fixed):
        def precompute(self, spec, data, rng):
            return {"beta.bias": torch.zeros(1)}

    with pytest.raises(ValueError, match=r"Clash\.precompute calls something 'beta\.bias'"):
        simulate(FED, Clash(FIXED.model), **OPTIONS)


def test_clients_of_which_private_tensors_differ_in_shape_share_no_stack():
    """One tensor a sample: its length is the client's own, so clients of unequal sizes cannot be stacked, but train."""

    @dataclass(frozen=True)
    class Each(Fixed):
        def precompute(self, spec, data, rng):
            return {"few.x": data.x, "few.y": data.y}

    method = Each(FIXED.model, local_epochs=1)
    assert len(Simulator(FED, method, device="cpu").cohorts) == len({c.n_train for c in FED})
    runs = [simulate(FED, method, engine=engine, **OPTIONS) for engine in ("stacked", "loop")]
    assert largest_difference(*runs) < 1e-9


def test_but_where_a_method_says_that_they_may_be_padded():
    """One row a sample and its weight, so that rows of zeros weigh nothing: all clients share a stack."""

    @dataclass(frozen=True)
    class Weighed(Fixed):
        padded = ("few",)

        def precompute(self, spec, data, rng):
            return {"few.x": data.x, "few.y": data.y, "few.weight": data.weight}

        def mean(self, params):
            z, weight = self.model.embed(params, params["few.x"]), params["few.weight"]
            return weight @ z / weight.sum()

        def loss(self, params, received, batch, noise):
            told = Local.loss(self, params, received, batch, noise)
            return told._replace(total=told.total + (self.mean(params) - received["mean"]).square().sum())

        def upload(self, params, received, data, memory):
            return {"mean": self.mean(params)}

    method = Weighed(FIXED.model, local_epochs=2)
    assert len({c.n_train for c in FED}) > 1
    assert len(Simulator(FED, method, device="cpu").cohorts) == 1
    runs = [simulate(FED, method, engine=engine, **OPTIONS) for engine in ("stacked", "loop")]
    assert largest_difference(*runs) < 1e-9


def test_a_survey_sees_the_samples_of_the_client():
    simulator = Simulator(FED, TOLD, device="cpu", dtype=torch.float64)
    state, answers = simulator.survey(simulator.initial(), [0])
    params = simulator.working(simulator.initial())
    for place, answer in answers.items():
        x = FED[place].x_train.double()
        assert torch.allclose(answer.upload["mean"], TOLD.model.embed(params[place], x).mean(0), atol=1e-12)
    means = torch.stack([answers[place].upload["mean"] for place in range(len(FED))])
    n = torch.tensor([c.n_train for c in FED]).double()
    assert torch.allclose(state.server["mean"], (n @ means) / n.sum(), atol=1e-12)


# --- clients that come later ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named(Local):
    """A server that holds a tensor of each client by name, as a hyper-network holds embeddings."""

    def init_server(self, specs, rng):
        return {f"of/{spec.name}": torch.randn(2, generator=rng) for spec in specs}

    def download(self, server, spec):
        return {"mine": server[f"of/{spec.name}"]}

    def start(self, client_state, received):
        return dict(client_state)

    def upload(self, params, received, data, memory):
        return {"mine": received["mine"] + 1}

    def aggregate(self, server, uploads, weights, specs, rng):
        return {**server, **{f"of/{s.name}": u["mine"] for s, u in zip(specs, uploads, strict=True)}}


@dataclass(frozen=True)
class Welcoming(Named):
    """Gives a new client the mean of all others', and a little noise of its own."""

    def join(self, server, specs, rng):
        assert [spec.name for spec in specs] == sorted(spec.name for spec in specs)
        mean = torch.stack(list(server.values())).mean(0)
        return {**server, **{f"of/{s.name}": mean + torch.randn(2, generator=rng).to(mean) / 9 for s in specs}}


@dataclass(frozen=True)
class Careless(Welcoming):
    def join(self, server, specs, rng):
        return {name: p + 1 for name, p in super().join(server, specs, rng).items()}


OLD, NEW = Federation(FED.clients[:4], FED.n_classes), Federation(FED.clients[4:], FED.n_classes)
BRIEF = {"model": FIXED.model, "local_epochs": 1}


def test_a_server_adds_what_it_holds_of_a_client_that_comes_later():
    run = simulate(OLD, Welcoming(**BRIEF), **OPTIONS)
    joined, again = (adapt(run, NEW, progress=False, device="cpu") for _ in range(2))
    turned = adapt(run, NEW.clients[::-1], progress=False, device="cpu")
    assert_same_tensors({n: p for n, p in joined.server.items() if n in run.server}, run.server)
    assert set(joined.server) - set(run.server) == {f"of/{client.name}" for client in NEW}
    for other in (again, turned):
        assert_same_tensors(joined.server, other.server)


def test_a_server_that_cannot_add_it_says_so_by_name():
    run = simulate(OLD, Named(**BRIEF), **OPTIONS)
    with pytest.raises(ValueError, match=r"Named .*of the new client 'client-4' it has no 'of/client-4': .*`join`"):
        adapt(run, NEW, progress=False, device="cpu")


def test_what_the_run_left_may_not_be_changed():
    run = simulate(OLD, Careless(**BRIEF), **OPTIONS)
    with pytest.raises(ValueError, match=r"Careless\.join may add .* but it changed 'of/client-0'"):
        adapt(run, NEW, progress=False, device="cpu")


def test_new_clients_make_private_tensors_of_their_own():
    joined = adapt(simulate(OLD, FIXED, **OPTIONS), NEW, progress=False, device="cpu")
    for client, params in zip(NEW, joined.params, strict=True):
        rows = torch.randperm(client.n_train, generator=stream(0, client.name, 0, "private"))[:3]
        assert torch.equal(params["few.x"], client.x_train[rows].double())


def test_other_seeds_fix_other_samples():
    first, second = (simulate(FED, replace(FIXED, local_epochs=1), seed=seed, **OPTIONS) for seed in (0, 1))
    assert not torch.equal(first.params[3]["few.x"], second.params[3]["few.x"])
