"""Runs that differ in their seeds, side by side: the same as alone, to rounding, and bit for bit when interrupted."""

import numpy as np
import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference, ragged
from values import METHODS

from hetfl_core import Federation, adapt, simulate, simulate_seeds
from hetfl_core.engine import simulator as simulator_module
from hetfl_core.engine import training
from hetfl_core.engine.checkpoint import CheckpointError
from hetfl_core.methods import Local
from hetfl_core.networks import MLP, Model

SEEDS = (0, 3, 4)
QUIET = {"rounds": 3, "participation": 0.5, "progress": False, "device": "cpu"}


def federations(**options):
    return {seed: ragged(seed=seed, **options) for seed in SEEDS}


@pytest.mark.parametrize(("name", "engine"), [*((name, "stacked") for name in METHODS), ("FLIC", "loop")])
def test_each_run_is_that_which_it_is_alone(name, engine):
    method, options = METHODS[name]
    settings = {**QUIET, "rounds": 2, "dtype": torch.float64, "engine": engine}
    all_ = federations(**options)
    runs = simulate_seeds(all_, method, **settings)
    assert list(runs) == list(SEEDS)
    for seed, run in runs.items():
        alone = simulate(all_[seed], method, seed=seed, **settings)
        assert largest_difference(run, alone) < 1e-6
        assert run.settings == {**alone.settings, "together": list(SEEDS)}
        columns = run.history.columns.drop("seconds")
        np.testing.assert_allclose(run.history[columns], alone.history[columns], rtol=1e-5, atol=1e-7)
        assert run.per_client.equals(alone.per_client)


def test_clients_of_all_runs_share_a_stack(monkeypatch):
    """Three of six clients take part in each of three runs: stacks of nine in a round, of 18 before and after."""
    jobs, stacked = [], training.ENGINES["stacked"]

    def watched(job):
        jobs.append((job.role, len(job.specs), sorted(set(job.seeds))))
        return stacked(job)

    monkeypatch.setitem(training.ENGINES, "stacked", watched)
    simulate_seeds(federations(widths=(4, 4)), METHODS["FLIC"][0], **QUIET)
    assert jobs == [(role, n, list(SEEDS)) for role, n in (("start", 18), *[("round", 9)] * 3, ("final", 18))]


def test_one_run_and_one_federation_for_all():
    fed = ragged()
    runs = simulate_seeds({5: fed, 2: fed}, METHODS["HetFedRep"][0], **QUIET)
    assert list(runs) == [2, 5]
    assert largest_difference(runs[2], runs[5]) > 0
    (alone,) = simulate_seeds({2: fed}, METHODS["HetFedRep"][0], **QUIET).values()
    same = simulate(fed, METHODS["HetFedRep"][0], seed=2, **QUIET)
    assert largest_difference(alone, same) == 0
    assert alone.settings == same.settings, "there is nobody else"


def test_the_order_of_the_seeds_and_the_number_of_workers_change_no_bit():
    all_, method = federations(), METHODS["FLIC"][0]
    one = simulate_seeds(all_, method, workers=1, stack_size=4, **QUIET)
    two = simulate_seeds(dict(reversed(all_.items())), method, workers=3, stack_size=4, **QUIET)
    for seed in SEEDS:
        assert largest_difference(one[seed], two[seed]) == 0
        assert equal_histories(one[seed].history, two[seed].history)


class Stop(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_set_of_runs_goes_on_bit_for_bit(tmp_path, after):
    all_, method, seen = federations(), METHODS["FLIC, private"][0], []

    def stop(seed, row):
        seen.append((seed, row["round"]))
        if row["round"] == after and seed == SEEDS[-1]:
            raise Stop

    whole = simulate_seeds(all_, method, **QUIET)
    with pytest.raises(Stop):
        simulate_seeds(all_, method, checkpoint=tmp_path, on_round=stop, **QUIET)
    assert seen == [(seed, number) for number in range(1, after + 1) for seed in SEEDS]
    again = simulate_seeds(all_, method, checkpoint=tmp_path, **QUIET)
    for seed in SEEDS:
        assert_same_tensors(whole[seed].server, again[seed].server)
        assert largest_difference(whole[seed], again[seed]) == 0
        assert equal_histories(whole[seed].history, again[seed].history)


def test_killed_in_the_middle_of_a_round_nothing_of_it_counts(tmp_path, monkeypatch):
    """The second run has trained and the third has not when it ends: all three begin that round anew."""
    all_, method = federations(), METHODS["FLIC"][0]
    whole = simulate_seeds(all_, method, **QUIET)
    advance = simulator_module.Simulator.round_in_steps

    def dying(self, state, chosen):
        found = yield from advance(self, state, chosen)
        if self.seed == 3 and state.done == 1:
            raise Stop
        return found

    with monkeypatch.context() as patch:
        patch.setattr(simulator_module.Simulator, "round_in_steps", dying)
        with pytest.raises(Stop):
            simulate_seeds(all_, method, checkpoint=tmp_path, **QUIET)
    again = simulate_seeds(all_, method, checkpoint=tmp_path, **QUIET)
    for seed in SEEDS:
        assert largest_difference(whole[seed], again[seed]) == 0


def test_a_checkpoint_is_of_these_seeds_and_no_others(tmp_path):
    all_, method = federations(), METHODS["Local"][0]
    simulate_seeds(all_, method, checkpoint=tmp_path, **QUIET)
    for other in ({**all_, 9: ragged()}, {3: all_[3], 4: all_[4]}, {0: all_[0]}):
        with pytest.raises(CheckpointError, match="other settings or data"):
            simulate_seeds(other, method, checkpoint=tmp_path, **QUIET)
    more = simulate_seeds(all_, method, checkpoint=tmp_path, **{**QUIET, "rounds": 4})
    assert [len(run.history) for run in more.values()] == [5] * 3


def test_new_clients_of_one_of_the_runs():
    all_, method = federations(), METHODS["HetFedRep"][0]
    run = simulate_seeds(all_, method, **QUIET)[3]
    new = [c for c in ragged(2, seed=8)]
    named = [type(c)(c.x_train, c.y_train, c.x_test, c.y_test, f"new-{c.name}") for c in new]
    assert adapt(run, named, progress=False).settings["seed"] == 3


def test_seconds_are_a_share():
    runs = simulate_seeds(federations(), METHODS["Local"][0], **QUIET)
    totals = [run.final["seconds"] for run in runs.values()]
    assert max(totals) < 2 * min(totals)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda fed, m: simulate_seeds({}, m), ValueError, "federations must hold the data of at least one seed"),
        (lambda fed, m: simulate_seeds(fed, m), TypeError, "federations"),
        (lambda fed, m: simulate_seeds({-1: fed}, m), ValueError, "seed"),
        (lambda fed, m: simulate_seeds({0: 3}, m), TypeError, "federation must be a Federation"),
        (lambda fed, m: simulate_seeds({0: fed}, m, seed=3), TypeError, "unexpected keyword argument 'seed'"),
        (lambda fed, m: simulate_seeds({0: fed}, m, on_round=3), TypeError, "on_round must be callable"),
        (lambda fed, m: simulate_seeds({0: fed}, m, rounds=0), ValueError, "rounds"),
    ],
)
def test_what_cannot_be_meant(call, error, message):
    with pytest.raises(error, match=message):
        call(ragged(), Local(Model(MLP((4,), 3))))


def test_all_runs_must_fit_the_method():
    with pytest.raises(ValueError, match="selects no client"):
        simulate_seeds({0: ragged(), 1: Federation([ragged()[0]], 5, "one")}, Local(), participation=0.2)
