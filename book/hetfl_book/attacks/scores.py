r"""How good an attack is: AUC, true positives at few false ones, intervals, and the known power of Homer's test.

References
----------
.. [1] N. Homer et al. Resolving individuals contributing trace amounts of DNA to highly complex mixtures using
   high-density SNP genotyping microarrays. PLoS Genetics 4, 2008.
.. [2] N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramèr. Membership inference attacks from first principles.
   IEEE S&P 2022.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetfl_core import checks
from hetfl_core.rng import SERVER, numpy_stream


def auc(positive: ArrayLike, negative: ArrayLike) -> float:
    """The chance that a positive's score is above a negative's, ties counted half; 0.5 is guessing.

    Parameters
    ----------
    positive, negative : array_like of float, shapes (n,), (m,)
        Scores, larger for "yes".

    Returns
    -------
    float
        In [0, 1].
    """
    a, b = checks.floats("positive", positive, 1), checks.floats("negative", negative, 1)
    order = np.sort(b)
    below, up_to = np.searchsorted(order, a, "left"), np.searchsorted(order, a, "right")
    return float((below + up_to).sum() / (2 * len(a) * len(b)))


def caught(positive: ArrayLike, negative: ArrayLike, false: float = 0.05) -> float:
    """The share of positives above what a share `false` of negatives exceeds ([2]_); that share is guessing.

    Parameters
    ----------
    positive, negative : array_like of float, shapes (n,), (m,)
    false : float
        Share of false positives, in (0, 1).

    Returns
    -------
    float
        In [0, 1]. Where scores are tied at the threshold, the tied are caught at
        random, at the rate that makes the share of false positives exact.
    """
    a, b = checks.floats("positive", positive, 1), checks.floats("negative", negative, 1)
    false = checks.fraction("false", false, "(0, 1)")
    allowed = false * len(b)
    threshold = np.sort(b)[::-1][min(int(allowed), len(b) - 1)]
    tied = (b == threshold).sum()
    share = (allowed - (b > threshold).sum()) / tied
    return float((a > threshold).mean() + share * (a == threshold).mean())


Array = NDArray[np.float64]

DRAWS, LEVEL = 2000, 0.95
"""Of a bootstrap interval."""


def bootstrap_interval(values: ArrayLike, seed: int = 0) -> tuple[float, float]:
    """Bootstrap interval of a mean, such as that of the clients' AUCs: clients are drawn, not samples.

    Parameters
    ----------
    values : array_like of float, shape (n,)
        One a client; NaN is left out.
    seed : int

    Returns
    -------
    low, high : float
        Quantiles of the means; NaN where there is no value.
    """
    found = checks.floats("values", values, 1, gaps=True)
    found = found[~np.isnan(found)]
    checks.seed(seed)
    if not len(found):
        return math.nan, math.nan
    rng = numpy_stream(seed, SERVER, 0, "bootstrap")
    means = found[rng.integers(len(found), size=(DRAWS, len(found)))].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def power_of_means(dimension: int, n: int) -> float:
    r"""AUC of the membership test :math:`\langle z - p, m - p\rangle` where it is known: Gaussian features ([1]_).

    Features are N(p, I) in R^d, m is the mean of n of them. Of a stranger z the statistic has mean 0 and variance
    :math:`d / n`; of a member mean d / n and variance :math:`d/n + d/n^2`. For large d both are normal.

    Parameters
    ----------
    dimension : int
        d, the number of independent coordinates.
    n : int
        Samples in the mean.
    """
    checks.integer("dimension", dimension, 1)
    checks.integer("n", n, 1)
    shift, spread = dimension / n, math.sqrt(2 * dimension / n + dimension / n**2)
    return 0.5 * (1 + math.erf(shift / spread / math.sqrt(2)))
