"""FedProto: a round by hand, what is sent, and the limit in which it is training alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import ragged

from hetfl_core import Client, Federation, simulate
from hetfl_core.methods import FedProto, Local
from hetfl_core.methods.base import Batch
from hetfl_core.networks import MLP, Model

QUICK = {"rounds": 2, "device": "cpu", "progress": False}
LINE = Model(MLP((), 2))


def test_a_round_by_hand() -> None:
    """Without a learning rate features are x W + b, and the server's means those of all clients' rows of a class.

    Of class 0, client "a" has two rows and client "b" one; class 2 is nobody's, so that it stays unknown.
    """
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(3, 2)), "b": rng.normal(size=(2, 2))}
    y = {"a": [0, 0, 1], "b": [0, 1]}
    fed = Federation([Client(x[c], y[c], x[c], y[c], c) for c in "ab"], 3)
    run = simulate(fed, FedProto(LINE, lr=0.0, init="common"), **QUICK)
    z = {c: run.embed("train")[c] for c in "ab"}
    rows, labels = np.concatenate([z["a"], z["b"]]), np.array(y["a"] + y["b"])
    for c in (0, 1):
        np.testing.assert_allclose(run.server["mean"][c], rows[labels == c].mean(0), rtol=1e-5)
    assert run.server["known"].tolist() == [1, 1, 0]
    assert run.history["bytes_up"].to_list()[1] == 4 * 2 * (2 + 2), "two means of two numbers from each client"


def test_the_term_is_the_mean_square_over_coordinates_and_true_rows_of_known_classes() -> None:
    method = FedProto(LINE, term_weight=3.0)
    params = {"phi.0.weight": torch.eye(2), "phi.0.bias": torch.zeros(2)}
    params |= {"beta.weight": torch.zeros(2, 3), "beta.bias": torch.zeros(3)}
    received = {"mean": torch.tensor([[1.0, 1.0], [0.0, 2.0], [9.0, 9.0]]), "known": torch.tensor([1.0, 1.0, 0.0])}
    x, y = torch.tensor([[3.0, 1.0], [0.0, 0.0], [5.0, 5.0], [7.0, 7.0]]), torch.tensor([0, 1, 2, 0])
    loss = method.loss(params, received, Batch(x, y, torch.tensor([1.0, 1.0, 1.0, 0.0])), {})
    assert float(loss.terms["distance"]) == pytest.approx(((4 + 0) / 2 + (0 + 4) / 2 + 0) / 3)
    assert float(loss.total) == pytest.approx(np.log(3) + 3 * 4 / 3)


def test_without_the_term_it_is_training_alone() -> None:
    fed, model = ragged(), Model(MLP((8,), 6))
    runs = [simulate(fed, m, **QUICK) for m in (FedProto(model, term_weight=0.0), Local(model))]
    assert runs[0].per_client.equals(runs[1].per_client)
    assert simulate(fed, FedProto(model, term_weight=9.0), **QUICK).history["distance"].iloc[1:].gt(0).any()
