r"""Was this sample trained on? From the loss of what was sent, and from sent class means.

References
----------
.. [1] S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha. Privacy risk in machine learning: analyzing the connection to
   overfitting. CSF 2018.
.. [2] L. Watson, C. Guo, G. Cormode, A. Sablayrolles. On the importance of difficulty calibration in membership
   inference attacks. ICLR 2022.
.. [3] N. Homer et al. Resolving individuals contributing trace amounts of DNA to highly complex mixtures using
   high-density SNP genotyping microarrays. PLoS Genetics 4, 2008.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hetfl_book.attacks.scores import Array
from hetfl_book.attacks.watching import Message
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.networks import Params

Predict = Callable[[Params, Any], Tensor]

SHRINKAGE = 0.1
"""Part of the mean variance that is added to the covariance of features before it is inverted."""


def losses(predict: Predict, params: Params, x: Any, y: Tensor) -> Array:
    """Cross-entropy of each sample, shape (n,); what overflows counts 1e6."""
    with torch.no_grad():
        found: Array = F.cross_entropy(predict(params, x), y, reduction="none").double().numpy()
    return np.nan_to_num(found, nan=1e6, posinf=1e6)


def loss_scores(
    predict: Predict, own: Mapping[str, Tensor], messages: Sequence[Message], x: Any, y: Tensor, calibrated: bool = True
) -> Array:
    """A score for each candidate that is larger where the client trained on it; of shared models and shared parts.

    The server has no other parts of the client's model than those that were sent, and takes a colluder's for the rest.
    Calibrated ([2]_): how much the loss fell from what was received to what was sent, averaged over the client's
    messages. Else ([1]_): how small the loss of the last message is.

    Parameters
    ----------
    predict : callable
        Logits of a whole model at inputs, ``predict(params, x)``.
    own : dict of str to Tensor
        The colluder's whole model.
    messages : sequence of Message
        Of one client, at least one.
    x, y : inputs and Tensor of int, shape (n,)
        Candidates and their labels.
    calibrated : bool

    Returns
    -------
    ndarray, shape (n,)
        All alike, or the same for everyone, where nothing of a model was sent.
    """
    if not len(messages):
        raise WrongValue("messages must hold at least one of the client's, got none")
    checks.flag("calibrated", calibrated)
    falls = []
    for m in messages if calibrated else messages[-1:]:
        before = {**own, **m.received}
        after = losses(predict, {**before, **m.sent}, x, y)
        falls.append(losses(predict, before, x, y) - after if calibrated else -after)
    return np.mean(falls, 0)


def class_means(message: Message) -> tuple[Tensor, bool] | None:
    """The client's mean latent features by class as far as a message tells: rows (C, k), and whether they are moves.

    Fed-CMA and FedPAC send them; FedCR their sums weighted by precision, and the precisions; of FLIC's anchors there is
    the way in which they were moved, which is towards the client's means. Rows of classes that the client lacks are 0.
    """
    sent = message.sent
    for name in ("mean", "centroid.mean"):
        if name in sent:
            return sent[name], False
    if "joint.natural" in sent:
        precision = sent["joint.precision"]
        return sent["joint.natural"] / torch.where(precision > 1e-9, precision, torch.inf), False
    if "anchor.mean" in sent and sent["anchor.mean"].dim() == 2:
        return message.moves["anchor.mean"], True
    return None


def mean_scores(
    z: Array, y: NDArray[np.int64], means: Array, population: Array, covariance: Array | None = None
) -> Array:
    r"""Homer's test ([3]_) on class means: :math:`(z - p_y)^\top \Sigma^{-1} (m_y - p_y)`, larger for members.

    Parameters
    ----------
    z : ndarray, shape (n, k)
        Features of the candidates, in the embedding in which the means were taken.
    y : ndarray of int, shape (n,)
    means : ndarray, shape (C, k)
        m, what the client sent. Rows of zeros, of classes that it lacks, score 0.
    population : ndarray, shape (C, k)
        p, class means of others.
    covariance : ndarray, shape (k, k), optional
        Σ of features within classes; by default the identity.

    See Also
    --------
    hetfl_book.attacks.scores.power_of_means : how well it does where features are Gaussian.
    """
    z, means, population = (
        checks.floats(name, value, 2) for name, value in (("z", z), ("means", means), ("population", population))
    )
    away = means[y] - population[y]
    away[~(means != 0).any(axis=1)[y]] = 0
    towards = away if covariance is None else np.linalg.solve(covariance, away.T).T
    return ((z - population[y]) * towards).sum(1)


def within_classes(z: Array, y: NDArray[np.int64], n_classes: int) -> tuple[Array, ...]:
    """Class means (C, k), zeros where there is no sample, and the pooled covariance within classes, shrunk."""
    means = np.stack([z[y == c].mean(0) if (y == c).any() else np.zeros(z.shape[1]) for c in range(n_classes)])
    rest = z - means[y]
    S = rest.T @ rest / max(len(z) - n_classes, 1)
    return means, S + (SHRINKAGE * np.trace(S) / len(S) + 1e-9) * np.eye(len(S))
