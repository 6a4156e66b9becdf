"""Models of tables that are to be used: trained on all rows, in the ways that are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hetfl_core import checks
from hetfl_core.engine.trained import Trained
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.learners import simulate
from hetfl_core.methods import Local
from hetfl_core.networks import MLP, Model, Params
from hetfl_core.reporting.trials import Tables
from hetfl_core.reporting.ways import BASE, Logistic, ways_of


def trained(tables: Tables, name: str, *, rounds: int = 10, seed: int = 0, workers: int | None = None) -> Trained:
    """The models of all sites, or of a single one, from all rows of their tables.

    Parameters
    ----------
    tables : Tables
    name : str
        Of a way, or of a method.
    rounds : int
    seed : int
    workers : int, optional
        As for `simulate`.

    Returns
    -------
    Trained

    Raises
    ------
    ValueError
        For boosted trees, which cannot be saved, an unknown name, and tables that are refused.
    """
    checks.nonempty_str("method", name)
    if name == "boosting":
        raise WrongValue("method: boosted trees cannot be saved, got 'boosting'; take 'logistic' or another way")
    whole = tables.federation(seed, 0.0, least=1)
    way = ways_of([name], whole)[0][-1]
    if way.key == BASE:
        return _logistic(whole)
    seen, method, options = way.made_for(whole)
    return simulate(seen, method, rounds=rounds, seed=seed, workers=workers, **options).trained()


def _logistic(federation: Federation) -> Trained:
    """Logistic regression of each client, as a network without hidden layers: its coefficients, in softmax form."""
    n = federation.n_classes
    linear = Local(Model(MLP(hidden=(), out=n)), local_steps=1)
    models = simulate(federation, linear, rounds=1, progress=False).trained()
    return replace(models, params=[_linear(c.x_train.double().numpy(), c.y_train.numpy(), n) for c in federation])


def _linear(x: np.ndarray, y: np.ndarray, n_classes: int) -> Params:
    """Parameters of a linear network whose class probabilities are those of the fitted regression.

    A class of which there is no row has probability e⁻³⁰, no more than rounding.
    """
    weight, bias = np.zeros((x.shape[1], n_classes)), np.full(n_classes, -30.0)
    known = np.unique(y)
    bias[known] = 0
    if len(known) > 1:
        model = Logistic().fitted(x, y)
        rows = known if len(known) > 2 else known[1:]  # of two classes the first has logit 0
        weight[:, rows], bias[rows] = model.coef_.T, model.intercept_
    made = {
        "phi.0.weight": weight,
        "phi.0.bias": bias,
        "beta.weight": np.eye(n_classes),
        "beta.bias": np.zeros(n_classes),
    }
    return {name: torch.tensor(array, dtype=torch.float32) for name, array in made.items()}
