"""Which engine trains a cohort and in stacks of what size; and that a result does not depend on the cores at work."""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from small import equal_histories, largest_difference, ragged

from hetfl_core import Client, Federation, adapt, checks, simulate, simulate_seeds
from hetfl_core.engine import layout, trainer
from hetfl_core.engine.layout import CPU, GPU, Layout, Work, choose, work
from hetfl_core.engine.options import warn_of_threads
from hetfl_core.engine.simulator import Simulator, _similar
from hetfl_core.methods import FLIC, FedHeNN, Local, Stage
from hetfl_core.networks import CNN, MLP, Draw, Model

PHI = MLP(hidden=(9,), out=6)
METHODS = {
    "FLIC": FLIC(model=Model(PHI), local_epochs=2, batch_size=6, pretrain_epochs=2, pretrain_batch=4),
    "FLIC published": FLIC.published(
        model=Model(MLP(hidden=(9,), out=6, dropout=0.5), alpha=5), local_epochs=2, batch_size=6, pretrain_epochs=2,
        pretrain_batch=4, representation_from=1,
    ),
    "FedHeNN": FedHeNN(model=Model(PHI), local_epochs=2, batch_size=6),
}  # fmt: skip


def images(n_clients=3, side=28, n=30, channels=1):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_clients, n, channels, side, side))
    y = np.arange(n) % 5
    return Federation([Client(a, y, a[:5], y[:5], f"image-{i}") for i, a in enumerate(x)], 5, "images")


# --- the cost of a step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "maps"), [((1, 28, 28), 1), ((3, 32, 32), 2)])
def test_convolutions_are_counted_as_their_definition_has_them(shape, maps):
    """2 operations a kernel entry and output, forward; twice that backward. One channel is a product, not counted."""
    network = CNN(out=9, channels=(6, 4))
    params = network.init(shape, torch.Generator())
    found = work(lambda p, _, x: network(p, x), params, {}, torch.zeros(7, *shape))
    first, second = shape[1] - 4, (shape[1] - 4) // 2 - 4
    flops = 2 * 7 * second**2 * 4 * (6 * 25) + (maps == 2) * 2 * 7 * first**2 * 6 * (shape[0] * 25)
    assert (found.convolutions, found.numbers) == (3.0 * flops, sum(p.numel() for p in params.values()))
    every = first**2 * 6 * (shape[0] * 25) + second**2 * 4 * (6 * 25) + (second // 2) ** 2 * 4 * 9
    assert found.operations == 3.0 * 2 * 7 * every


def test_a_network_without_convolutions_has_none():
    assert work(lambda p, _, x: PHI(p, x), PHI.init((4,), torch.Generator()), {}, torch.zeros(3, 4)).convolutions == 0


SMALL = Work(0.0, 10_000)


def test_small_networks_share_a_stack_and_a_single_client_is_one():
    """A client alone gets the bits that it gets among others; clients of other runs may come to a stack's."""
    fits = int(CPU.state // 160e3)
    assert choose(SMALL, 100, CPU) == choose(SMALL, 1, CPU) == Layout("stacked", fits)
    assert choose(Work(1e6, 10_000), 1, CPU) == Layout("loop", 1)
    assert choose(SMALL, 10**6, GPU) == Layout("stacked", layout.MOST)


def test_a_stack_holds_what_the_caches_do():
    """Parameters, gradients, two moments: 4 numbers each, of 4 or 8 bytes."""
    wide = Work(0.0, 2_000_000)
    assert choose(wide, 100, CPU) == Layout("stacked", int(CPU.state // 32e6))
    assert choose(wide, 100, CPU, itemsize=8) == Layout("stacked", int(CPU.state // 64e6))
    assert choose(Work(0.0, 10**8), 100, CPU) == Layout("stacked", 1)
    assert choose(wide, 100, GPU).size == int(GPU.state // 32e6)


def test_a_stack_holds_no_more_noise_than_fits():
    """A client that draws 3 · 2^20 numbers of 4 bytes has 12 MiB of it: 170 fit into 2 GiB, with 8 bytes 85."""
    noisy = replace(SMALL, noise=3 * 2**20)
    assert choose(noisy, 1000, CPU).size == 170
    assert choose(noisy, 1000, CPU, itemsize=8).size == 85
    assert choose(replace(SMALL, noise=2**40), 7, CPU).size == 1


@dataclass(frozen=True)
class Noisy(Local):
    """With noise a sample at the end and a step in the rounds, none of it used."""

    tuning: int = 8

    def stages(self, round, role):
        if role == "final":
            return [Stage(("phi", "beta"), epochs=1, batch_size=self.tuning)]
        return super().stages(round, role)

    def noise(self, spec, stage):
        return {"xi": Draw((1000,), per="sample" if stage.batch_size == self.tuning else "step")}


def test_the_noise_of_every_stage_counts_in_the_batches_that_there_are():
    """64 steps of 1000 numbers a sample: of batches of 8, or of all 5 samples that a client has."""
    for sizes, rows in (((20, 21), 8), ((5, 6), 5)):
        made = Simulator(ragged(2, sizes=sizes), Noisy(Model(PHI)), device="cpu")
        assert made._noise(made.specs[0]) == 64 * 1000 * rows
    assert Simulator(ragged(2), Local(Model(PHI)), device="cpu")._noise(made.specs[0]) == 0


def test_convolutions_are_stacked_where_grouping_costs_less_than_the_steps_saved():
    even = CPU.rate * (CPU.loop - CPU.stacked / 10) / (CPU.grouped - 1)
    assert choose(Work(0.99 * even, 10_000), 10, CPU).engine == "stacked"
    assert choose(Work(1.01 * even, 10_000), 10, CPU).engine == "loop"
    assert choose(Work(100 * even, 10_000), 10, GPU).engine == "stacked"


# --- what the simulator makes of it ---------------------------------------------------------------------------------


def test_the_simulator_asks_for_each_cohort():
    def ways(federation, method, **options):
        return Simulator(federation, method, device="cpu", **options).layouts

    small = Local(Model(PHI), batch_size=20)
    plain = Federation([*ragged(n_clients=4, widths=(4, 4))], 5)
    assert ways(plain, small) == [Layout("stacked", layout.MOST)]
    assert ways(plain, small, stack_size=3) == [Layout("stacked", 3)]
    assert ways(plain, small, engine="stacked") == [Layout("stacked", layout.MOST)]
    assert ways(plain, small, engine="loop") == [Layout("loop", 1)]
    assert ways(images(), Local(Model(CNN()), batch_size=100)) == [Layout("loop", 1)]
    (way,) = ways(images(side=16), Local(Model(CNN()), batch_size=10))
    assert (way.engine, way.rows, way.size >= 3) == ("stacked", layout.ROWS, True)
    mixed = Federation([*plain, *images(n_clients=2)], 5)
    vectors, pictures = ways(mixed, Local(Model("auto"), batch_size=100))
    assert (vectors.engine, vectors.rows, vectors.size >= 4) == ("stacked", None, True)
    assert pictures == Layout("loop", 1)


def test_a_client_with_few_images_does_not_decide_for_the_others():
    few = images(n=3)[0]
    few = Client(few.x_train, few.y_train, few.x_test, few.y_test, "zzz")
    both = Federation([*images(n=100), few], 5)
    assert Simulator(both, Local(Model(CNN()), batch_size=100), device="cpu").layouts == [Layout("loop", 1)]


def test_images_are_predicted_a_few_thousand_at_a_time():
    assert _similar([100] * 10, 1024) == [list(range(10))]
    assert [len(group) for group in _similar([100] * 10, 1024, 300)] == [3, 3, 3, 1]
    assert [len(group) for group in _similar([500, 500, 10], 1024, 300)] == [1, 1, 1]


def test_a_model_that_cannot_predict_before_training_runs_all_the_same():
    @dataclass(frozen=True)
    class Later(Local):
        def predict(self, params, received, x, noise=None):
            if not torch._C._functorch.is_batchedtensor(x):
                raise ValueError("asked before anything was trained")
            return super().predict(params, received, x, noise)

    result = simulate(ragged(), Later(Model(PHI), local_epochs=1), rounds=1, progress=False, device="cpu")
    assert np.isfinite(result.final["accuracy"])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_runs_do_not_mind_where_they_are_called(mode, workers):
    """Whether gradients are recorded is a matter of whoever calls."""
    options = {"rounds": 1, "stack_size": 2, "workers": workers, "progress": False, "device": "cpu"}
    expected = simulate(ragged(), Local(Model(PHI), local_epochs=1), **options)
    with mode():
        found = simulate(ragged(), Local(Model(PHI), local_epochs=1), **options)
    assert largest_difference(expected, found) == 0


def test_clients_of_the_loop_and_of_small_stacks_come_out_as_those_of_one_stack():
    """A cohort that is dealt otherwise differs by rounding only."""
    options = {"rounds": 2, "progress": False, "device": "cpu", "dtype": torch.float64}
    for federation, method in (
        (images(), Local(Model(CNN(out=6, channels=(3, 4))), local_epochs=1, batch_size=20)),
        (ragged(), METHODS["FLIC"]),
    ):
        one = simulate(federation, method, engine="stacked", **options)
        for other in ({"engine": "loop"}, {"engine": "stacked", "stack_size": 2}, {}):
            assert largest_difference(one, simulate(federation, method, **options, **other)) < 1e-11


@pytest.mark.nightly
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("options", [{"stack_size": 2}, {"engine": "loop"}])
def test_the_number_of_workers_changes_no_bit(name, options):
    method, federation = METHODS[name], ragged(n_clients=7)
    rounds = 2 if name == "FLIC" else 1  # in the second it matters what the first has left on the clients
    options = {"rounds": rounds, "progress": False, "device": "cpu", **options}
    alone, *others = (simulate(federation, method, workers=workers, **options) for workers in (1, 2, 16))
    for other in others:
        assert equal_histories(alone.history, other.history)
        assert largest_difference(alone, other) == 0
        assert alone.final | {"seconds": 0} == other.final | {"seconds": 0}


def test_a_run_that_stopped_goes_on_with_another_number_of_workers(tmp_path):
    method, options = METHODS["FLIC"], {"stack_size": 2, "progress": False, "device": "cpu"}
    simulate(ragged(), method, rounds=1, workers=3, checkpoint=tmp_path, **options)
    resumed = simulate(ragged(), method, rounds=3, workers=2, checkpoint=tmp_path, **options)
    whole = simulate(ragged(), method, rounds=3, workers=1, **options)
    assert equal_histories(resumed.history, whole.history)
    assert largest_difference(resumed, whole) == 0


def test_the_order_of_clients_changes_no_bit_with_several_workers():
    method, options = METHODS["FLIC"], {"rounds": 2, "stack_size": 2, "workers": 3, "progress": False, "device": "cpu"}
    federation = ragged()
    turned = replace(federation, clients=[*reversed(federation.clients)])
    assert largest_difference(simulate(federation, method, **options), simulate(turned, method, **options)) == 0


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", 10**6])
def test_a_number_of_workers_that_cannot_be_meant_is_refused(workers):
    with pytest.raises((ValueError, TypeError), match=r"workers must be (a whole number of at least 1|at most)"):
        Simulator(ragged(), METHODS["FLIC"], workers=workers)


def test_stacks_are_made_by_what_clients_hold_in_all(monkeypatch):
    """Training and test samples are both kept in a stack: their sum counts for its memory."""
    seen, bucket = [], trainer.bucket
    monkeypatch.setattr(trainer, "bucket", lambda widths, samples: seen.append(samples) or bucket(widths, samples))
    federation = ragged()
    Simulator(federation, Local(Model(PHI)), engine="loop", device="cpu")
    assert sorted(n for samples in seen for n in samples) == sorted(
        client.n_train + client.n_test for client in federation
    )


def test_counting_operations_says_nothing(capsys):
    work(lambda p, _, x: PHI(p, x), PHI.init((4,), torch.Generator()), {}, torch.zeros(3, 4))
    assert capsys.readouterr() == ("", "")


def test_as_many_workers_as_there_may_be():
    assert Simulator(ragged(2), Local(Model(PHI)), device="cpu", workers=checks.MOST_THREADS)
    with pytest.raises(ValueError, match=f"workers must be at most {checks.MOST_THREADS}"):
        Simulator(ragged(2), Local(Model(PHI)), device="cpu", workers=checks.MOST_THREADS + 1)


# --- threads within an operation ------------------------------------------------------------------------------------

SLOWER = r"threads=2 makes this run slower, .* \d+e\+\d+ floating-point operations, and threads pay from about 1e\+09"
ONCE = {"rounds": 1, "progress": False, "device": "cpu"}


def test_threads_that_make_small_steps_slower_are_warned_of_once():
    method = Local(Model(PHI), local_epochs=1)
    run = simulate(ragged(2), method, **ONCE)
    new = replace(ragged(1)[0], name="new")
    for call in (
        lambda threads: simulate(ragged(2), method, threads=threads, **ONCE),
        lambda threads: simulate_seeds(ragged(2), method, seeds=2, threads=threads, **ONCE),
        lambda threads: adapt(run, new, threads=threads, **ONCE),
    ):
        with pytest.warns(RuntimeWarning, match=SLOWER) as told:
            call(2)
        assert len([w for w in told if "threads" in str(w.message)]) == 1
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(1)


def test_threads_are_not_warned_of_where_steps_are_long_or_unknown_or_on_a_gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = Local(Model(CNN()), local_epochs=1, batch_size=12)
        simulate(images(n_clients=1, side=96, n=12, channels=3), method, threads=2, **ONCE)
        for operations, device in ((layout.LONG, "cpu"), (0.0, "cpu"), (1.0, "cuda")):
            warn_of_threads(2, operations, torch.device(device))
        warn_of_threads(1, 1.0, torch.device("cpu"))


def test_the_longest_step_is_that_of_the_stack_of_a_round_that_computes_most():
    """Whole, or cut into blocks, of those who take part; of each cohort its own."""
    narrow, wide = (Federation([*ragged(n_clients=40, widths=(n, n), sizes=(20, 21))], 5) for n in (4, 900))
    method = Local(Model(MLP((64,), 6)), batch_size=10)
    for federation, most in ((narrow, {1.0: 40, 0.1: 4}), (wide, {1.0: 24, 0.1: 4})):
        simulator = Simulator(federation, method, device="cpu")
        (cohort,) = simulator.cohorts
        each = simulator.work(cohort, simulator.server.initial()).operations
        for participation, clients in most.items():
            assert simulator.operations(participation) == clients * each
    both = Federation([*narrow, *[replace(c, name=f"w{c.name}") for c in images(n_clients=2)]], 5)
    simulator = Simulator(both, Local(Model("auto"), batch_size=10), device="cpu")
    each = [simulator.work(cohort, simulator.server.initial()).operations for cohort in simulator.cohorts]
    assert simulator.operations() >= max(each) > 0
