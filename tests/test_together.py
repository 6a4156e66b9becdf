"""Runs of one method that `compare` trains together: when, and that its table is the same either way."""

import numpy as np
import pandas as pd
import pytest
import torch
from small import SMALL_MODEL, ragged

from hetfl_core import Federation, compare, comparing, learners, simulate
from hetfl_core.baselines import LDA
from hetfl_core.engine import together as rule
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.together import together
from hetfl_core.methods import FLIC, FedAvg, Local
from hetfl_core.networks import CNN, MLP, Model

QUICK = {"rounds": 2, "device": "cpu", "progress": False, "n_jobs": 1}
METHODS = {
    "FedAvg": FedAvg(SMALL_MODEL, local_epochs=1),
    "FLIC": FLIC(SMALL_MODEL, local_epochs=1, pretrain_epochs=1),
    "Local": Local(SMALL_MODEL, local_epochs=1),
}
METRICS = ["accuracy", "log_loss"]


def of_seed(seed):
    """Data of each seed; with `two_groups` the last of six seeds are in another group than the first."""
    return ragged(4, widths=(4, 4), sizes=(12, 30), seed=seed)


def alone(*_, **__):
    return 1


def grouped(*seeds):
    return {name: list(seeds) for name in METHODS}


@pytest.fixture
def two_groups(monkeypatch):
    monkeypatch.setattr(rule, "MOST", 5)


def test_the_table_is_that_of_single_runs_and_says_which_were_made_together(two_groups):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learners, "together", alone)
        single = compare(of_seed, METHODS, seeds=6, metric=METRICS, **QUICK)
    table = compare(of_seed, METHODS, seeds=6, metric=METRICS, **QUICK)
    assert table.attrs["together"] == grouped([*range(3)], [*range(3, 6)])
    assert single.attrs["together"] == {}
    assert single.loc["accuracy"].equals(table.loc["accuracy"])
    columns = ["mean", "sd", "difference", "low", "high", "p"]
    np.testing.assert_allclose(single[columns].astype(float), table[columns].astype(float), rtol=1e-4)
    one = compare(of_seed(0), METHODS, seeds=(8, 3, 5), metric=METRICS, **QUICK)
    assert one.attrs["together"] == grouped([8, 3, 5]), "one federation for all seeds"
    by_hand = [
        simulate(of_seed(0), METHODS["FLIC"], seed=seed, metric=METRICS[1:], rounds=2, progress=False).final["log_loss"]
        for seed in (3, 5, 8)
    ]
    assert one.loc[("log_loss", "FLIC"), "mean"] == pytest.approx(np.mean(by_hand), 1e-4)


def test_which_runs_are_made_together_depends_on_no_number_of_processes():
    """And so no bit of the table does, with data that a lambda makes and a measure of the user's own."""

    def share(labels, probabilities):
        return float((probabilities[:, 0] > 0.2).mean())

    methods = {**METHODS, "large": Local(Model(MLP((700,), 700)), local_epochs=1), "LDA": LDA()}
    tables = [
        compare(lambda seed: of_seed(seed), methods, seeds=3, metric=["log_loss", share], **{**QUICK, "n_jobs": n})
        for n in (1, 2)
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert tables[0].attrs["together"] == tables[1].attrs["together"] == grouped([0, 1, 2])


def test_data_are_made_once_a_seed_and_no_more_are_kept_than_are_needed(two_groups, monkeypatch):
    drawn, kept = [], []

    def data(seed):
        drawn.append(seed)
        kept.append(len(comparing._DATA))
        return of_seed(seed)

    compare(data, {"a": METHODS["FedAvg"], "b": METHODS["Local"]}, seeds=6, **{**QUICK, "rounds": 1})
    assert drawn == [*range(6)]
    assert max(kept) == 2, "two of three lie there while the third is made"
    assert comparing._DATA == {}
    monkeypatch.setattr(learners, "together", alone)
    drawn.clear(), kept.clear()
    compare(data, {"a": METHODS["FedAvg"], "b": METHODS["Local"]}, seeds=4, **{**QUICK, "rounds": 1})
    assert (drawn, max(kept)) == ([0, 1, 2, 3], 0)


@pytest.mark.parametrize("option", ["on_round", "checkpoint", "validation"])
def test_what_is_said_or_kept_of_single_runs_has_them_made_alone(option, tmp_path, monkeypatch):
    monkeypatch.setattr(learners.Federated, "run_seeds", lambda *_: pytest.fail("they were trained together"))
    fed = of_seed(0)
    given = {"on_round": print, "checkpoint": tmp_path, "validation": fed}[option]
    table = compare(fed, METHODS, seeds=3, **QUICK, **{option: given})
    assert table.attrs["together"] == {}


def test_seeds_whose_data_have_other_classes_are_trained_alone():
    def data(seed):
        fed = of_seed(seed)
        return Federation(fed.clients, fed.n_classes + seed % 2, fed.name)

    assert compare(data, METHODS, seeds=3, **QUICK).attrs["together"] == {}


def test_models_are_evaluated_at_the_end_alone(monkeypatch):
    """Unless somebody asks for more: after the start and the two last rounds of each run."""
    evaluated = []
    predicted = Simulator.predicted

    def watched(self, state, split, params=None):
        evaluated.append((self.seed, state.done, split))
        return predicted(self, state, split, params)

    monkeypatch.setattr(Simulator, "predicted", watched)
    methods = {"a": METHODS["FedAvg"], "b": METHODS["Local"]}
    compare(of_seed(0), methods, seeds=3, **{**QUICK, "rounds": 5})
    assert {done for _, done, _ in evaluated} == {0, 5}
    evaluated.clear()
    compare(of_seed(0), methods, seeds=3, evaluate_every=2, **{**QUICK, "rounds": 5})
    assert {done for _, done, _ in evaluated} == {0, 2, 4, 5}


# --- the rule -------------------------------------------------------------------------------------------------------


def federation(clients, n, width):
    rng = np.random.default_rng(0)
    return Federation.from_arrays(
        {f"c{i}": (rng.normal(size=(n, width)).astype("f4"), rng.integers(0, 3, n)) for i in range(clients)}
    )


def test_small_steps_are_shared_and_large_ones_are_not():
    """A step takes 6 · batch · weights operations a client: 5 · 10⁶ and 5 · 10⁷ of four, or of half of eight."""
    small, large = (Local(Model(MLP((hidden,), 8)), batch_size=100) for hidden in (60, 600))
    assert together(federation(4, 200, 30), small) == rule.MOST
    assert together(federation(4, 200, 30), large) == 1
    at_limit = Local(Model(MLP((160,), 8)), batch_size=100)  # 6 · 100 · 160 · 41 a client, of which five are too many
    assert together(federation(5, 200, 30), at_limit) == together(federation(10, 200, 30), at_limit, 0.5) == 10
    assert together(federation(6, 200, 30), at_limit) == together(federation(10, 200, 30), at_limit) == 1


def test_what_is_not_stacked_gains_nothing():
    small = Local(SMALL_MODEL)
    assert together(ragged(), small) == 10
    assert together(ragged(), small, engine="loop") == 1
    assert together(ragged(), small, engine="stacked", dtype=torch.float64) == 10
    assert together(ragged(), small, stack_size=20) == 3, "three times six clients"
    assert together(ragged(), small, stack_size=5) == 1
    assert together(ragged(images=True), Local(Model(CNN()), batch_size=100)) == 1, "convolutions"


def test_runs_together_hold_no_more_than_so_many_numbers(monkeypatch):
    """6 clients: samples thrice, weights four times each; a run that fills half of it alone is not even looked at."""
    fed, method = ragged(widths=(4, 4)), Local(Model(MLP((6,), 4)))
    samples = sum(c.x_train.numel() + c.x_test.numel() for c in fed)
    weights = 4 * 6 + 6 + 6 * 4 + 4 + 4 * 5 + 5
    one = 3 * samples + 6 * 4 * weights
    for runs in (2, 3, 7):
        monkeypatch.setattr(rule, "NUMBERS", runs * one)
        assert together(fed, method) == runs
        monkeypatch.setattr(rule, "NUMBERS", runs * one - 1)
        assert together(fed, method) == runs - 1
    monkeypatch.setattr(rule, "NUMBERS", 6 * samples - 1)
    monkeypatch.setattr(rule, "Simulator", lambda *a, **k: pytest.fail("it was made"))
    assert together(fed, method) == 1


def test_a_share_of_no_client_is_refused_as_in_a_run():
    with pytest.raises(ValueError, match=r"participation=0.1 of 6 clients selects no client"):
        compare(ragged(widths=(4, 4)), METHODS, seeds=3, participation=0.1, **QUICK)
