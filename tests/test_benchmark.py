"""What `hetfl bench` counts, checked by hand; that its measurements run, and what they add up to."""

import sys
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hetfl_core import benchmark
from hetfl_core.benchmark import Part
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.training import Noise, n_steps
from hetfl_core.methods import Local, Stage
from hetfl_core.networks import CNN, MLP

ROOFS = {"flops": 1e9, "bytes": 1e8, "normals": 1e6}


def test_floor_is_the_slower_of_arithmetic_and_memory_and_the_draws_on_top():
    assert Part(9.0, flops=2e6).floor(ROOFS) == pytest.approx(2.0)
    assert Part(9.0, flops=2e6, bytes=1e6).floor(ROOFS) == pytest.approx(10.0)
    assert Part(9.0, flops=2e6, normals=1e3).floor(ROOFS) == pytest.approx(3.0)
    assert Part(9.0).floor(ROOFS) == 0


def test_toy_of_given_sizes():
    federation = benchmark.toy(3, sizes=[40, 20, 70])
    assert [c.n_train for c in federation] == [40, 20, 70]
    assert all(20 <= c.n_train <= 300 for c in benchmark.toy(20))


def test_toy_has_one_to_ten_columns_of_noise_and_20_to_300_samples():
    federation = benchmark.toy(300)
    assert {c.shapes[0] for c in federation} == set(range(6, 16))
    sizes = [c.n_train for c in federation]
    assert 20 <= min(sizes) < 30
    assert 290 < max(sizes) <= 300


@pytest.mark.parametrize(
    ("pick", "expected"), [(lambda low, high: low, (20, 5 + 1)), (lambda low, high: high - 1, (300, 5 + 10))]
)
def test_the_toy_draws_20_to_300_samples_and_1_to_10_columns_both_ends_included(monkeypatch, pick, expected):
    class Extreme:
        def __init__(self, *name):
            self.rng = np.random.default_rng(0)

        def integers(self, low, high):
            return pick(low, high)

        def __getattr__(self, name):
            return getattr(self.rng, name)

    monkeypatch.setattr(benchmark, "numpy_stream", Extreme)
    assert [(c.n_train, c.shapes[0]) for c in benchmark.toy(2)] == [expected] * 2


def test_each_client_of_the_toy_holds_three_different_classes():
    assert {len(set(c.y_train.tolist())) for c in benchmark.toy(60, sizes=[20] * 60)} == {3}


@pytest.mark.parametrize(
    ("durations", "options", "calls"),
    [
        ([4.0, 3.0, 1.0], {"least": 0.0}, 2),
        ([5.0, 1.0], {"least": 0.0}, 1),
        ([0.25, 0.125, 0.125, 0.0625], {"least": 0.5}, 3),
        ([0.0] * 9, {"least": 0.5, "most": 7}, 7),
    ],
)
def test_the_least_of_two_calls_or_of_as_many_as_fit_into_the_time(monkeypatch, durations, options, calls):
    clock = SimpleNamespace(now=0.0, calls=0)

    def call():
        clock.now += durations[clock.calls]
        clock.calls += 1

    monkeypatch.setattr(benchmark, "time", SimpleNamespace(process_time=lambda: clock.now))
    assert benchmark._seconds(call, **options) == min(durations[:calls])
    assert clock.calls == calls


def test_the_whole_stack_is_warmed_up_but_not_every_client_of_the_loop(monkeypatch):
    trained = []
    monkeypatch.setattr(benchmark, "_seconds", lambda call: 1.0)
    monkeypatch.setattr(benchmark, "toy", lambda n: TOY(n, sizes=[20] * n))
    monkeypatch.setattr(benchmark.Simulator, "train", lambda self, state, clients, *rest: trained.append(len(clients)))
    for engine in ("stacked", "loop"):
        benchmark.measure(12, engine, "start", 10)
    stacked, loop = trained
    assert loop < stacked == 12


def test_all_clients_pre_train_and_a_tenth_takes_part_in_a_round(monkeypatch):
    monkeypatch.setattr(benchmark, "EPOCHS", 1)
    monkeypatch.setattr(benchmark, "_seconds", lambda call: call() and 1.0)
    monkeypatch.setattr(benchmark, "toy", lambda n: TOY(n, sizes=[20] * n))
    found = {role: benchmark.measure(20, "stacked", role, 8) for role in ("start", "round")}
    assert {role: each["clients"] for role, each in found.items()} == {"start": 20, "round": 2}
    steps = {"start": 20 * 3, "round": 2 * (3 * (10 + 1) + 1)}  # 20 samples in batches of 8; one step on the anchors
    for role, each in found.items():
        assert each["microseconds"] == pytest.approx(1e6 / steps[role]), role


def test_paddings_measure_all_trials_unless_told(monkeypatch):
    asked = []

    def watched(widths=None, share=1.0):
        asked.append(share)
        raise InterruptedError

    monkeypatch.setattr(benchmark, "sensors", watched)
    with pytest.raises(InterruptedError):
        benchmark.paddings(Local(), [[0]])
    assert asked == [1.0]


@pytest.mark.parametrize("small", [0, 9])
def test_sizes_that_leave_a_round_without_clients_are_refused_first(small):
    with pytest.raises(ValueError, match=f"sizes must be at least 10, .* got {small}"):
        next(benchmark.report((100, small)))


def test_the_loop_is_measured_up_to_the_size_asked_for_and_with_it(monkeypatch):
    asked = []

    def measured(n_clients, engine, **how):
        asked.append((n_clients, engine))
        return {"seconds": 6.0 if engine == "loop" else 2.0, "microseconds": 5.0, "peak_mb": 7.0}

    monkeypatch.setattr(benchmark, "_apart", measured)
    for rest in ("parts", "tail", "seeds", "paddings", "engines", "cores", "aligned", "random", "size"):
        monkeypatch.setattr(benchmark, f"_describe_{rest}", lambda *sizes: [])
    lines = list(benchmark.report((10, 20, 30), loop_up_to=20))
    assert {n for n, engine in asked if engine == "stacked"} == {10, 20, 30}
    assert {n for n, engine in asked if engine == "loop"} == {10, 20}
    cells = [line.split() for line in lines if line.startswith((f"{20:>10}", f"{30:>10}"))]
    assert cells[:2] == [["20", "6.000", "2.000", "3.0×", "5", "5", "7"], ["30", "2.000", "5", "7"]]


TOY = benchmark.toy


@pytest.fixture(scope="module")
def found():
    """Parts of a step of two clients of 30 samples each, in both roles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "toy", lambda n: TOY(n, sizes=[30] * n))
        return {role: benchmark.parts(2, 10, role) for role in ("start", "round")}


def test_parts_of_a_step(found):
    for role, parts in found.items():
        assert list(parts) == [
            "batching", "noise", "embedding", "class moments", "Bures term", "heads", "optimiser"
        ]  # fmt: skip
        assert all(part.ms >= 0 for part in parts.values())
        assert min(parts[name].ms for name in ("batching", "embedding", "Bures term", "optimiser")) > 0
        assert (parts["noise"].ms > 0) == (role == "round"), "only rounds draw samples of the anchors"


def test_needs_of_a_step_by_hand(found):
    """Two clients, padded to inputs of width d: φ is d–64–64–64, α 64–100, β 100–20; 10 rows and 20 anchor samples."""
    width = max(c.shapes[0] for c in TOY(2, sizes=[30] * 2))
    phi, phi_bias = 64 * (width + 64 + 64), 3 * 64
    parts = found["start"]
    assert parts["embedding"].flops == 2 * 2 * 10 * (3 * phi - 64 * width), "no gradient for the inputs"
    assert parts["embedding"].bytes == 3 * 4 * 2 * phi, "weights are read twice and their gradient is written"
    assert parts["optimiser"].bytes == 7 * 4 * 2 * (phi + phi_bias)
    assert parts["batching"].bytes == 8 * 2 * 10 * width
    assert parts["class moments"].bytes == 6 * 4 * 2 * 10 * 64, "read and written six times in single precision"
    heads = 64 * 100 + 100 + 100 * 20 + 20
    assert found["round"]["heads"].flops == 2 * 6 * (10 + 20) * heads
    assert found["round"]["noise"].normals == 2 * 20 * 64
    assert found["start"]["noise"].normals == 0


def test_operations_of_the_bures_term_by_hand(monkeypatch):
    """A batch of all 30 samples of two clients: 3 classes of 10 rows each, of which centring leaves rank 9."""
    monkeypatch.setattr(benchmark, "toy", lambda n: TOY(n, sizes=[30] * n))
    monkeypatch.setattr(benchmark, "_seconds", lambda call, **options: (call(), 1.0)[1])
    flops = benchmark.parts(2, 30, "start")["Bures term"].flops
    assert flops == 2 * 3 * (4 * 64 * 9**2 + 10 * 9**3)


def test_roofs_are_positive_rates():
    threads = torch.get_num_threads()
    try:
        assert all(rate > 1e6 for rate in benchmark.roofs(2, 10).values())
    finally:
        torch.set_num_threads(threads)


def test_tail_gives_three_times(monkeypatch):
    monkeypatch.setattr(benchmark, "EPOCHS", 1)
    times = benchmark.tail(n_clients=4, few=1, batch_size=10)
    assert list(times) == ["all", "few left", "few alone"]


def test_sensors_have_the_shapes_of_table_s1():
    clients = benchmark.sensors().clients
    assert Counter(c.shapes[0] for c in clients) == {136: 8, 253: 9, 120: 14, 6: 9, 1830: 10, 105: 4}
    assert {c.n_train + c.n_test for c in clients if c.shapes == (6,)} == {720}
    assert {(c.n_train, c.n_test) for c in clients if c.shapes == (136,)} == {(45, 15)}
    assert {c.shapes[0] for c in benchmark.sensors([9] * 54, share=0.05)} == {9}


def test_paddings_are_counted_by_hand():
    """One stack holds 1830 columns for each of 54 clients; buckets hold at most twice the true ones."""
    threads = torch.get_num_threads()
    try:
        found = benchmark.paddings(Local(local_epochs=1), [[0, 20, 50], [1]], share=0.05)
    finally:
        torch.set_num_threads(threads)
    true = benchmark.sensors(share=0.05)
    rows = [c.n_train + c.n_test for c in true]
    held = 1830 * (sum(rows) + 2)  # with the dump rows of training and test
    assert found["one stack"].samples == held / sum(n * c.shapes[0] for n, c in zip(rows, true, strict=True))
    rest = 64 + 2 * (64 * 64 + 64) + 64 * 5 + 5
    clients = [64 * c.shapes[0] + rest for c in true]
    assert found["one stack"].parameters == 54 * (64 * 1830 + rest) / sum(clients)
    assert [way.stacks for way in found.values()] == [1, 2, 1]
    assert 1 < found["buckets"].parameters < found["buckets"].samples < 2
    assert found["no padding"].parameters == 1
    assert all(way.seconds > 0 for way in found.values())


# --- engines, memory, and other commands ------------------------------------------------------------------------------


def test_engines_are_timed_and_what_is_chosen_is_said(monkeypatch):
    monkeypatch.setattr(benchmark, "_seconds", lambda call, **options: call() and 1.0)
    found, way = benchmark.engines(benchmark.Case((4,), MLP((4,), 3), 5, 3))
    assert list(found) == ["loop", "one by one", "one stack", "chosen"]
    assert set(found.values()) == {1e3 / (2 * 3)}, "two steps of three clients"
    assert (way.engine, way.size >= 3) == ("stacked", True)


def test_two_stacks_are_timed_in_a_row_and_side_by_side(monkeypatch):
    asked = []
    walls = iter([3, 0.5, 2, 0.7, 4, 4, 0.25, 9])
    monkeypatch.setattr(benchmark, "timed", lambda call: call() and benchmark.Seconds(wall=next(walls), cpu=0.1))
    monkeypatch.setattr(benchmark, "Simulator", lambda *a, **k: asked.append(k) or Simulator(*a, **k))
    operations, *seconds, parallel = benchmark.beside_each_other(benchmark.Case((4,), MLP((5,), 3), 7, 4))
    assert operations == 2 * 3 * 2 * 7 * (4 * 5 + 5 * 3 + 3 * 10), "of the two clients of a stack, with backward"
    assert seconds == [500, 250]
    assert not parallel, "too small to be worth a core each"
    assert [(each["workers"], each["stack_size"]) for each in asked] == [(1, 2), (2, 2)]


def test_rounds_of_fedcma_are_timed_for_as_many_clients_as_asked(monkeypatch):
    seen = []

    def engines(case, method):
        seen.append((case.clients, case.batch_size, method.local_steps, method.model.phi, len(benchmark.alike(case))))
        return {"loop": 6.0, "one by one": 5.0, "one stack": 2.0, "chosen": 1.5}, None

    monkeypatch.setattr(benchmark, "engines", engines)
    lines = list(benchmark._describe_aligned((3, 7)))
    assert [each[::4] for each in seen] == [(3, 3), (7, 7)] * 2
    assert [each[1:4] for each in seen[::2]] == [(10, 2, MLP()), (32, 2, MLP((128,), 32))]
    assert [line.split()[-4:] for line in lines[2:]] == [["6.000", "2.000", "3.0×", "1.500"]] * 4
    assert [line.split()[-5] for line in lines[2:]] == ["3", "7", "3", "7"]


def test_clients_that_lack_blocks_are_timed_beside_the_same_with_zeros(monkeypatch):
    """Three sets of blocks are three stacks; filled in, one. And each of the costs is timed."""
    small = benchmark.quarters(3)
    assert [len([s for s in c.shapes.values() if s[0]]) for c in small] == [3, 3, 3, 3, 2, 2]
    apart, together = benchmark.block_steps(small, 2), benchmark.block_steps(small.filled(), 2)
    assert (apart[1], together[1]) == (3, 1)
    assert min(apart[0], together[0]) > 0
    found = benchmark.matchings(3, 4, 5)
    assert list(found) == ["distance", "exact", "pfnm"]
    assert min(found.values()) > 0
    monkeypatch.setattr(benchmark, "quarters", lambda: small)
    monkeypatch.setattr(benchmark, "matchings", lambda: found)
    monkeypatch.setattr(benchmark, "block_steps", lambda federation: (1.5, 3 if federation is small else 1))
    lines = list(benchmark._describe_blocks())
    assert "3 stacks" in lines[1]
    assert "1 stack " in lines[2]
    assert lines[-1].startswith("distance 0.")


@pytest.mark.parametrize("name", benchmark.CASES)
def test_a_case_is_what_its_name_says(name):
    case = benchmark.CASES[name]
    if isinstance(case.phi, MLP):
        kind = "MLP " + "-".join(map(str, case.phi.hidden))
    else:
        grey = case.shape[0] == 1
        kind = "CNN " + " × ".join(map(str, case.shape[1:] if grey else case.shape))
    assert name == f"{kind}, batch {case.batch_size}"


def test_fedcrs_step_is_timed_at_the_papers_widths(monkeypatch):
    """An MLP of 1024 units before and behind φ, 512 random features, 18 draws, batches of 48; clipped plain SGD."""
    asked = []

    def watched(case, method, steps):
        asked.append((case, method, steps))
        return {"loop": 1.0}, None

    monkeypatch.setattr(benchmark, "engines", watched)
    assert [line.split() for line in benchmark._describe_random()][-1] == ["1.0"]
    [(case, method, steps)] = asked
    assert (case.shape, case.batch_size, case.phi.hidden, case.phi.out) == ((784,), 48, (1024,), 1024)
    assert (method.model.gaussian, method.samples, method.optimiser, method.clip) == (512, 18, "sgd", 10.0)
    [stage] = method.stages(0, "round")
    assert n_steps(stage, benchmark.alike(case)[0].n_train) == steps


def test_clients_that_are_alike_have_two_batches():
    federation = benchmark.alike(benchmark.Case((1, 16, 16), CNN(), 7, 3))
    assert [(c.n_train, c.n_test, c.shapes) for c in federation] == [(14, 10, (1, 16, 16))] * 3


def test_noise_of_fedcrs_size_is_drawn():
    stage = Stage(("phi",), epochs=1, batch_size=48, lr=1e-3)
    [spec] = benchmark.alike(benchmark.Case((10,), MLP(), 48, 1)).specs()
    draws = benchmark.Noisy().noise(spec, stage)
    noise = Noise(draws, 48, torch.Generator(), torch.float32)
    assert [t.shape for t in noise.of(0, noise.steps).values()] == [(8, 48, 18, 512)]
    assert benchmark.noise_memory(2)["peak_mb"] > 10


def test_a_command_is_timed_with_what_it_starts():
    busy = f"{sys.executable} -c 'import time; b = time.process_time()\nwhile time.process_time() - b < 0.3: pass'"
    took = benchmark.command(busy)
    assert 0.3 <= took.cpu < 30
    assert took.wall > 0.2
    with pytest.raises(RuntimeError, match="the command 'echo so >&2; exit 3' ended with 3: so"):
        benchmark.command("echo so >&2; exit 3")


def test_a_call_is_timed():
    took = benchmark.timed(lambda: time.sleep(0.2))
    assert took.wall >= 0.2 > took.cpu


def test_ours_is_set_beside_theirs():
    ours, theirs = benchmark.Seconds(wall=2.0, cpu=4.0), benchmark.Seconds(wall=30.0, cpu=40.0)
    lines = [line.split() for line in benchmark.beside(ours, theirs)]
    assert lines[1:] == [["ours", "4.0", "2.0"], ["theirs", "40.0", "30.0"], ["ratio", "10.0", "15.0"]]
    assert len(list(benchmark.beside(ours))) == 2


def test_seeds_together_are_timed_by_what_a_round_takes(monkeypatch):
    """12 clients, of whom one takes part: 11 epochs of ⌈n / 10⌉ steps and the one on the anchors, in 3 runs."""
    took, sizes = iter([3.0, 2.0]), []
    monkeypatch.setattr(benchmark, "_seconds", lambda call, **options: (call(), next(took))[1])
    monkeypatch.setattr(benchmark, "train", lambda asked: sizes.append([len(one.chosen) for one in asked]))
    found = benchmark.seeds_together(3, 12, 10)
    assert sizes == [[1], [1], [1], [1, 1, 1]]
    names = [c.name for c in benchmark.toy(12)]
    who = [participants(names, 0.1, seed, 0)[0] for seed in range(3)]
    steps = sum(11 * -(-benchmark.toy(12, seed)[c].n_train // 10) + 1 for seed, c in enumerate(who))
    assert found == {"alone": pytest.approx(3e6 / steps), "together": pytest.approx(2e6 / steps)}
