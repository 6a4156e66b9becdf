"""Runs that differ in their seeds, side by side: the same as alone, to rounding, and bit for bit when interrupted."""

import functools
import inspect
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden import FLIC_SHORT, SHORT, VARIANTS
from small import assert_same_tensors, equal_histories, largest_difference, ragged

from hetfl_core import Federation, adapt, simulate, simulate_seeds
from hetfl_core.datasets import toy
from hetfl_core.engine import layout, stacks, trainer, training
from hetfl_core.engine.checkpoint import CheckpointError
from hetfl_core.engine.options import RunOptions
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FLIC, FedAvg, FedAvgFT, FedCMA, FedGen, FedHeNN, FedRep, HetFedRep, Local, PFedHN
from hetfl_core.methods.schemes import FedAvgFTScheme, L2GDScheme
from hetfl_core.networks import MLP, Model

ALIKE = {"widths": (4, 4)}
METHODS = {
    "Local": (Local(**SHORT), {}),
    "FedAvg": (FedAvg(**SHORT, weighting="uniform"), ALIKE),
    "FedAvg-FT": (FedAvgFT(**SHORT, finetune_epochs=1), ALIKE),
    "FedRep": (FedRep(**SHORT, representation_epochs=2), ALIKE),
    "HetFedRep": (HetFedRep(**SHORT), {}),
    "FedHeNN": (FedHeNN(**SHORT, n_rad=9, term_weight=3.0), {}),
    "FLIC": (FLIC(**FLIC_SHORT), {}),
    "FLIC-FedAvgFT": (FLIC(**FLIC_SHORT, scheme=FedAvgFTScheme()), {}),
    "FLIC-L2GD": (FLIC(**FLIC_SHORT, scheme=L2GDScheme(0.3)), {}),
    "Fed-CMA": (FedCMA(**SHORT, head_weight=0.5, mean_weight=2.0, samples_per_class=3), {}),
    "FedGen": (FedGen(**SHORT, n_generated=5, noise_dim=3, hidden=7, generator_steps=4), {}),
    "pFedHN-PC": (PFedHN(**SHORT, personal="head", hidden=5), ALIKE),
    **{name: (method, {}) for name, method in VARIANTS.items()},
}
"""Methods, and how the federations are made that each can take."""

SEEDS = (0, 3, 4)
QUIET = {"rounds": 3, "participation": 0.5, "progress": False, "device": "cpu"}


def federations(**options):
    return {seed: ragged(seed=seed, **options) for seed in SEEDS}


def runs_of(all_, method, **options):
    return simulate_seeds(all_.__getitem__, method, seeds=list(all_), **{**QUIET, **options})


@pytest.mark.parametrize(("name", "engine"), [*((name, "stacked") for name in METHODS), ("FLIC", "loop")])
def test_each_run_is_that_which_it_is_alone(name, engine):
    method, options = METHODS[name]
    brief = {"local_epochs": 1 + ("published" in name or "steps" in name), "pretrain_epochs": 1}
    method = replace(method, **{setting: value for setting, value in brief.items() if getattr(method, setting, 0)})
    settings = {**QUIET, "rounds": 2, "dtype": torch.float64, "engine": engine}
    all_ = {seed: ragged(seed=seed, **options) for seed in SEEDS[:2]}
    runs = runs_of(all_, method, **settings)
    assert list(runs) == list(all_)
    seed, run = list(runs.items())[-1]  # the other's clients come before its own in every stack
    alone = simulate(all_[seed], method, seed=seed, **settings)
    assert largest_difference(run, alone) < 1e-6
    assert run.settings == {**alone.settings, "together": list(all_)}
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
    runs_of(federations(widths=(4, 4)), METHODS["FLIC"][0])
    assert jobs == [(role, n, list(SEEDS)) for role, n in (("start", 18), *[("round", 9)] * 3, ("final", 18))]


def test_one_run_and_one_federation_for_all():
    fed = ragged()
    runs = simulate_seeds(fed, METHODS["HetFedRep"][0], seeds=[5, 2], **QUIET)
    assert list(runs) == [2, 5]
    assert largest_difference(runs[2], runs[5]) > 0
    (alone,) = simulate_seeds(fed, METHODS["HetFedRep"][0], seeds=[2], **QUIET).values()
    same = simulate(fed, METHODS["HetFedRep"][0], seed=2, **QUIET)
    assert largest_difference(alone, same) == 0
    assert alone.settings == same.settings, "there is nobody else"


def test_the_order_of_the_seeds_and_the_number_of_workers_change_no_bit():
    all_, method = federations(), METHODS["FLIC"][0]
    one = runs_of(all_, method, workers=1, stack_size=4)
    two = runs_of(dict(reversed(all_.items())), method, workers=3, stack_size=4)
    for seed in SEEDS:
        assert largest_difference(one[seed], two[seed]) == 0
        assert equal_histories(one[seed].history, two[seed].history)


def test_what_is_not_said_is_as_for_one_run():
    """What `simulate_seeds` takes as options has the defaults that `simulate` has."""
    one, *others = (inspect.signature(f).parameters for f in (simulate, RunOptions, Simulator.__init__))
    own = {"federation", "method", "seed", "validation", "on_round"}
    for name in one.keys() - own:
        taken = [parameters[name].default for parameters in others if name in parameters]
        assert set(map(str, taken)) == {str(one[name].default)}, name


class Stop(Exception):
    pass


@functools.cache
def uninterrupted(name):
    return runs_of(federations(), METHODS[name][0])


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_set_of_runs_goes_on_bit_for_bit(tmp_path, after):
    all_, method, seen, whole = federations(), METHODS["FLIC, private"][0], [], uninterrupted("FLIC, private")

    def stop(seed, row):
        seen.append((seed, row["round"]))
        if row["round"] == after and seed == SEEDS[-1]:
            raise Stop

    with pytest.raises(Stop):
        runs_of(all_, method, checkpoint=tmp_path, on_round=stop)
    assert seen == [(seed, number) for number in range(1, after + 1) for seed in SEEDS]
    later = []
    again = runs_of(all_, method, checkpoint=tmp_path, on_round=lambda seed, row: later.append(row["round"]))
    assert later == [number for number in range(after + 1, 4) for _ in SEEDS], "what was done is not done again"
    for seed in SEEDS:
        assert_same_tensors(whole[seed].server, again[seed].server)
        assert largest_difference(whole[seed], again[seed]) == 0
        assert equal_histories(whole[seed].history, again[seed].history)


def test_killed_in_the_middle_of_a_round_nothing_of_it_counts(tmp_path, monkeypatch):
    """All have trained, the first has ended the round and the second has not: all three begin it anew."""
    all_, method, whole = federations(), METHODS["FLIC"][0], uninterrupted("FLIC")
    closed = trainer._closed

    def dying(run, survey, *outcomes):
        if run.seed == 3 and survey[0].done == 1:
            raise Stop
        return closed(run, survey, *outcomes)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_closed", dying)
        with pytest.raises(Stop):
            runs_of(all_, method, checkpoint=tmp_path)
    later = []
    again = runs_of(all_, method, checkpoint=tmp_path, on_round=lambda seed, row: later.append((seed, row["round"])))
    assert later == [(seed, number) for number in (2, 3) for seed in SEEDS]
    for seed in SEEDS:
        assert largest_difference(whole[seed], again[seed]) == 0


def test_a_checkpoint_is_of_these_seeds_and_no_others(tmp_path):
    all_, method = federations(), METHODS["Local"][0]
    runs_of(all_, method, checkpoint=tmp_path)
    for other in ({**all_, 9: ragged()}, {3: all_[3], 4: all_[4]}, {0: all_[0]}):
        with pytest.raises(CheckpointError, match="other settings or data"):
            runs_of(other, method, checkpoint=tmp_path)
    more = runs_of(all_, method, checkpoint=tmp_path, rounds=4)
    assert [len(run.history) for run in more.values()] == [5] * 3


def test_new_clients_of_one_of_the_runs():
    run = runs_of(federations(), METHODS["HetFedRep"][0])[3]
    named = [replace(c, name=f"new-{c.name}") for c in ragged(2, seed=8)]
    settings = adapt(run, named, progress=False).settings
    assert settings["seed"] == 3
    assert "together" not in settings, "they came alone"


def test_seconds_are_a_share():
    begin = time.perf_counter()
    runs = runs_of(federations(), METHODS["Local"][0])
    assert sum(run.final["seconds"] for run in runs.values()) <= time.perf_counter() - begin


def test_stacks_are_made_as_if_all_clients_were_of_one_run(monkeypatch):
    """Narrow clients of one run and wide ones of another share none, nor is a stack larger than the widest allow."""
    jobs, stacked = [], training.ENGINES["stacked"]

    def watched(job):
        jobs.append((len(job.specs), {spec.shapes[0] for spec in job.specs}))
        return stacked(job)

    monkeypatch.setitem(training.ENGINES, "stacked", watched)
    monkeypatch.setattr(stacks.bucket, "__defaults__", (2.0, 0))  # no stack is small enough for any padding
    method = Local(Model(MLP((64,), 8)), local_epochs=1)
    wide = {0: ragged(8, widths=(4, 4)), 1: ragged(8, widths=(4000, 4000), sizes=(7, 12), seed=1)}
    runs_of(wide, method, rounds=1, participation=1.0)
    assert {frozenset(widths) for _, widths in jobs} == {frozenset({4}), frozenset({4000})}
    jobs.clear()
    monkeypatch.setattr(layout, "CPU", replace(layout.CPU, state=16.0 * 3 * 64 * 60))
    near = {0: ragged(8, widths=(40, 40)), 1: ragged(8, widths=(50, 50), sizes=(7, 12), seed=1)}
    runs_of(near, method, rounds=1, participation=1.0)
    assert max(n for n, widths in jobs if 50 in widths) <= 3


def test_all_runs_are_stopped_after_the_same_round():
    """Also those that had ended it before, and had begun the next."""
    fed, method, told = ragged(), METHODS["HetFedRep"][0], []

    def stop(seed, row):
        told.append((seed, row["round"]))
        return (seed, row["round"]) == (2, 1)

    stopped = simulate_seeds(fed, method, seeds=[2, 5], on_round=stop, **{**QUIET, "rounds": 4})
    assert told == [(2, 1), (5, 1)]
    short = simulate_seeds(fed, method, seeds=[2, 5], **{**QUIET, "rounds": 1})
    for seed, one in stopped.items():
        assert largest_difference(one, short[seed]) < 1e-6, "to rounding: the last training has other company"
        assert len(one.history) == 2
        assert (one.settings["rounds"], one.settings["rounds_asked"]) == (1, 4)


def test_a_run_that_diverges_says_of_which_seed_it_is():
    with pytest.warns(RuntimeWarning, match=r"Local, seed [03]: training diverged in round 1 ") as told:
        runs_of({s: ragged(seed=s) for s in (0, 3)}, Local(Model(MLP((4,), 3)), lr=1e30), rounds=2)
    mine = [w for w in told if "diverged" in str(w.message)]
    assert [str(w.message).split(":")[0] for w in mine] == ["Local, seed 0", "Local, seed 3"]
    assert {w.filename for w in mine} == {__file__}, "it points to the call from outside"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda fed, m: simulate_seeds(fed, m, seeds=[]), ValueError, "seeds must be at least 1, each another one"),
        (
            lambda fed, m: simulate_seeds(fed, m, seeds=[1, 1]),
            ValueError,
            r"seeds must be .* each another one, got \[1, 1\]",
        ),
        (lambda fed, m: simulate_seeds(fed, m, seeds=True), ValueError, "seeds must be a whole number of at least 1"),
        (lambda fed, m: simulate_seeds(fed, m, seeds=0), ValueError, "seeds must be a whole number of at least 1"),
        (lambda fed, m: simulate_seeds(fed, m, seeds=[0, "a"]), (TypeError, ValueError), "seeds"),
        (lambda fed, m: simulate_seeds(fed, m, seeds=[-1]), ValueError, "seeds"),
        (lambda fed, m: simulate_seeds(3, m), TypeError, "federation must be a Federation"),
        (lambda fed, m: simulate_seeds(fed, m, on_round=3), TypeError, "on_round must be callable"),
        (lambda fed, m: simulate_seeds(fed, m, rounds=0), ValueError, "rounds"),
        (
            lambda fed, m: simulate_seeds(lambda s: ragged(n_classes=5 + s), m, seeds=2),
            ValueError,
            r"federation must have the same n_classes for every seed, got \{0: 5, 1: 6\}",
        ),
        (
            lambda fed, m: simulate_seeds(lambda s: toy.linear_regression(3) if s else fed, m, seeds=2),
            ValueError,
            "federation must have the same task for every seed",
        ),
    ],
)
def test_what_cannot_be_meant(call, error, message):
    with pytest.raises(error, match=message):
        call(ragged(), Local(Model(MLP((4,), 3))))


def test_all_runs_must_fit_the_method():
    few = {0: ragged(), 1: Federation([ragged()[0]], 5, "one")}
    with pytest.raises(ValueError, match="selects no client"):
        runs_of(few, Local(), participation=0.2)
