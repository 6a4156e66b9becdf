"""What `hetfl bench` counts, checked by hand; that its measurements run, and what they add up to."""

import math
import sys
from types import SimpleNamespace

import pytest

from hetfl_core import benchmark


def test_toy_has_one_to_ten_columns_of_noise_and_20_to_300_samples():
    federation = benchmark.toy(300)
    assert {c.shapes[0] for c in federation} == set(range(6, 16))
    sizes = [c.n_train for c in federation]
    assert 20 <= min(sizes) < 30
    assert 290 < max(sizes) <= 300


def test_each_client_of_the_toy_holds_three_different_classes():
    assert {len(set(c.y_train.tolist())) for c in benchmark.toy(20)} == {3}


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


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(benchmark, "EPOCHS", 1)
    monkeypatch.setattr(benchmark, "_seconds", lambda call: call() and 1.0)


def test_the_whole_stack_is_warmed_up_but_not_every_client_of_the_loop(monkeypatch):
    trained = []
    monkeypatch.setattr(benchmark, "_seconds", lambda call: 1.0)
    monkeypatch.setattr(benchmark.Simulator, "train", lambda self, state, clients, *rest: trained.append(len(clients)))
    for engine in ("stacked", "loop"):
        benchmark.measure(12, engine, "start", 10)
    assert trained == [12, 1]


def test_all_clients_pre_train_and_a_tenth_takes_part_in_a_round(quick):
    found = {role: benchmark.measure(20, "stacked", role, 100) for role in ("start", "round")}
    assert {role: each["clients"] for role, each in found.items()} == {"start": 20, "round": 2}
    batches = [-(-c.n_train // 100) for c in benchmark.toy(20)]
    who = benchmark.participants([c.name for c in benchmark.toy(20)], 0.1, 0, 0)
    steps = {"start": sum(batches), "round": sum(batches[c] * (10 + 1) + 1 for c in who)}  # one step on the anchors
    for role, each in found.items():
        assert each["microseconds"] == pytest.approx(1e6 / steps[role]), role
        assert each["peak_mb"] > 50


def test_memory_is_not_known_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    assert math.isnan(benchmark.peak_megabytes())


@pytest.mark.parametrize("small", [0, 9])
def test_sizes_that_leave_a_round_without_clients_are_refused_first(small):
    with pytest.raises(ValueError, match=f"sizes must be at least 10, .* got {small}"):
        next(benchmark.lines((100, small)))


def test_the_loop_is_measured_up_to_the_size_asked_for_and_with_it(monkeypatch):
    asked = []

    def measured(n_clients, engine, **how):
        asked.append((n_clients, engine))
        return {"seconds": 6.0 if engine == "loop" else 2.0, "microseconds": 5.0, "peak_mb": 7.0}

    monkeypatch.setattr(benchmark, "_apart", measured)
    lines = list(benchmark.lines((10, 20, 30), loop_up_to=20))
    assert {n for n, engine in asked if engine == "stacked"} == {10, 20, 30}
    assert {n for n, engine in asked if engine == "loop"} == {10, 20}
    cells = [line.split() for line in lines if line.startswith((f"{20:>10}", f"{30:>10}"))]
    assert cells == [["20", "6.000", "2.000", "3.0×", "5", "5", "7"], ["30", "2.000", "5", "7"]] * 4


@pytest.mark.nightly
def test_a_measurement_runs_in_a_process_of_its_own_and_its_failure_is_told():
    assert benchmark._apart(n_clients=10, engine="stacked", role="round", batch_size=100)["clients"] == 1
    with pytest.raises(ValueError, match="engine must be"):
        benchmark._apart(n_clients=10, engine="fast", role="round", batch_size=100)
