"""What was tried against the claims of head to head: the file holds every trial, and what a trial gives."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from hetfl_book.headtohead import tried
from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_core import Client, Federation


def test_the_file_holds_every_trial_and_nothing_else():
    expected = {
        (trial.tried, name, size, trial.method, trial.what, seed)
        for trial in tried.trials()
        for name, size in product(tried.NAMES, trial.sizes)
        for seed in trial.seeds
    }
    rows = list(tried.tried()[tried.AT].itertuples(index=False, name=None))
    assert len(rows) == len(set(rows))
    assert set(rows) == expected


def test_no_trial_at_new_seeds_repeats_one_of_the_finals():
    assert not set(tried.NEW) & {seed for setting in FEDERATIONS.values() for seed in setting.seeds}


def test_at_its_own_share_a_client_weighs_classes_by_what_it_holds():
    x = torch.zeros(40, 1)
    y = torch.tensor([0] * 30 + [1] * 10)
    data = Federation([Client(x, y, x[:4], torch.tensor([0, 0, 1, 1]), "site")], 2)
    answers = {"site": np.array([[0.8, 0.2], [0.7, 0.3], [0.7, 0.3], [0.7, 0.3]])}
    found = tried.scores(data, answers)
    assert found["balanced_accuracy"] == 0.5  # all are said to be of class 0
    assert found["at_own_share"] == 0.75  # 0.3 is more than the 0.25 of class 1
    assert found["auc"] == 0.75


def test_a_client_with_few_rows_of_a_class_does_not_count():
    x, few, many = torch.zeros(40, 1), torch.tensor([0] * 39 + [1]), torch.tensor([0, 1] * 20)
    data = Federation([Client(x, few, x, few, "few"), Client(x, many, x, many, "many")], 2)
    right = np.eye(2)[many.numpy()]
    found = tried.scores(data, {"few": np.eye(2)[1 - few.numpy()], "many": right})
    assert found["accuracy"] == found["balanced_accuracy"] == 1.0


@pytest.mark.parametrize(("trial", "size"), [("new seeds", "tenth"), ("four settings", "all")])
def test_a_trial_gives_what_the_file_says(trial, size):
    if not FEDERATIONS["liver"].available:
        pytest.skip("its files are not here")
    one = next(t for t in tried.trials() if (t.tried, t.method) == (trial, tried.LOGISTIC))
    kept = tried.tried()
    kept = kept[(kept[tried.AT[:5]] == [trial, "liver", size, one.method, one.what]).all(axis=1)]
    made = pd.DataFrame(tried.attempt(one, "liver", size))
    pd.testing.assert_frame_equal(made, kept.reset_index(drop=True), check_dtype=False, atol=1e-4)


def test_what_the_file_has_is_not_made_again(tmp_path):
    tried.tried().to_csv(tmp_path / tried.FILE, index=False)
    before = (tmp_path / tried.FILE).read_bytes()
    assert tried.keep(tmp_path).read_bytes() == before
