"""A last step of each client's own: what a shared model says is put right by as many numbers as there are classes.

One model for all does not know that in one hospital nine patients of ten are ill and in another four. Slope and
intercept of its logit, fitted by each client to its own training samples, tell it: Platt's method [1]_. Of more than
two classes it is one slope (an inverse temperature, [2]_) and an offset for each class. Nothing of it is sent.

References
----------
.. [1] J. C. Platt. Probabilistic outputs for support vector machines and comparisons to regularized likelihood
   methods. Advances in Large Margin Classifiers, 1999.
.. [2] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hetfl_core.networks import Params

LastStep = Literal["shared", "own"]
"""Whose the last step is: that of the model as it is, or of each client."""
FLATTEST = 0.01
"""The smallest slope, which says almost the same of all samples and yet keeps their order."""


def fit(outputs: Tensor, y: Tensor) -> Params:
    r"""Slope a > 0 and offsets b of the outputs that fit some samples best.

    With the logits z, they are least :math:`-\sum_{i,c} t_{ic} \log \mathrm{softmax}(a z_i + b)_c`. The targets are
    Platt's: (n_k + 1) / (n_k + C) for the class k of the sample, of which there are n_k, and 1 / (n_k + C) for each
    other class. So a and b stay finite where all answers are right, and where a class has no sample. A slope below zero
    would turn around the order in which the model puts samples, on the word of few of them; it is at least `FLATTEST`.

    Of a regression they are those of least squares: a z + b for the target y.

    Parameters
    ----------
    outputs : Tensor, shape (n, C), or (n, 1) for a regression
        What the model says of its client's training samples.
    y : Tensor, shape (n,)
        Labels 0 … C−1, or targets.

    Returns
    -------
    dict of str to Tensor
        ``slope``, shape (), and ``offset``, shape (C,) or (1,), both float64. Slope 1 and no offset where an output is
        not finite.
    """
    if not bool(outputs.isfinite().all()):
        return {"slope": torch.ones((), dtype=torch.float64), "offset": outputs.new_zeros(outputs.shape[1]).double()}
    z, labels = outputs.double().numpy(), y.numpy()
    slope, offset = _line(z[:, 0], labels) if y.is_floating_point() else _platt(z, labels)
    return {"slope": torch.tensor(slope, dtype=torch.float64), "offset": torch.from_numpy(offset)}


def _line(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """The line of least squares among those that rise."""
    varies = float(np.var(z))
    slope = max(FLATTEST, float(np.mean((z - z.mean()) * (y - y.mean())) / varies)) if varies > 0 else 1.0
    return slope, np.array([y.mean() - slope * z.mean()], dtype=np.float64)


def _platt(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Slope and offsets of logits, that of the first class 0."""
    from scipy.optimize import minimize  # on demand: PyTorch comes without it
    from scipy.special import log_softmax

    n, C = z.shape
    counts = np.bincount(y, minlength=C)
    targets = (np.eye(C) * counts[:, None] + 1) / (counts[:, None] + C)
    t = targets[y]

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        log_p = log_softmax(w[0] * z + np.append(0, w[1:]), axis=1)
        gap = np.exp(log_p) - t
        return -float((t * log_p).sum()) / n, np.append((gap * z).sum(), gap[:, 1:].sum(0)) / n

    bounds = [(FLATTEST, None), *[(None, None)] * (C - 1)]
    options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9}
    w = minimize(loss, np.append(1.0, np.zeros(C - 1)), jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return float(w[0]), np.append(0, w[1:])


def after(outputs: Sequence[Tensor], steps: Sequence[Params]) -> list[Tensor]:
    """Outputs of clients, shapes (n_i, C), after the last step of each; as they are where there are no steps."""
    if not steps:
        return list(outputs)
    each = zip(outputs, steps, strict=True)
    return [(z.double() * step["slope"] + step["offset"]).to(z.dtype) for z, step in each]
