"""How fast Algorithm S3 of FLIC converges: the bound of Theorem S3 of [1]_, with the numbers of one instance.

References
----------
.. [1] A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola. Personalised federated learning on heterogeneous
   feature spaces. Transactions on Machine Learning Research, 2024.
.. [2] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting shared representations for personalized federated
   learning. ICML, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from hetfl_book.theory.flic import _n_active, check_finite
from hetfl_core import checks
from hetfl_core.distances import principal_angle
from hetfl_core.errors import WrongValue

MAX_SUBSETS = 100_000
"""Most sets of clients that `head_spectra` looks at."""


@dataclass(frozen=True)
class Bound:
    """dist(A^(t), Q A*) ≤ (1 − κ)^{t/2} dist(A^(0), Q A*), with the numbers of one instance.

    Attributes
    ----------
    start : float
        dist(A^(0), Q A*).
    e0 : float
        E_0.
    sigma_min, sigma_max : float
        σ̄²_min,* and σ̄²_max,*.
    step : float
        η.
    kappa : float
        κ.
    """

    start: float
    e0: float
    sigma_min: float
    sigma_max: float
    step: float
    kappa: float

    @property
    def rate(self) -> float:
        """Factor a round, (1 − κ)^{1/2}."""
        return (1 - self.kappa) ** 0.5

    def curve(self, rounds: int) -> Tensor:
        """The bound for t = 0 … rounds, shape (rounds + 1,)."""
        return self.start * self.rate ** torch.arange(rounds + 1, dtype=torch.float64)


def convergence_bound(
    A0: Tensor, truth: Tensor, heads: Tensor, participation: float = 1.0, step: float | None = None
) -> Bound:
    r"""The bound, as its proof (that of [2]_) gives it.

    .. math:: \kappa = \tfrac12\, \eta E_0\, \bar\sigma_{\min,\star}^2, \qquad
        E_0 = 1 - \mathrm{dist}^2(A^{(0)}, Q A^\star), \qquad \eta \le 1 / (4 \bar\sigma_{\max,\star}^2)

    with :math:`\bar\sigma_{\min,\star}` the least and :math:`\bar\sigma_{\max,\star}` the greatest singular value of
    :math:`B^\star_{\mathsf A} / \sqrt{\lfloor rb \rfloor}` over all sets of ⌊rb⌋ clients. `printed_bound` has what
    [1]_ prints. The theorem also wants n large, up to a constant that it does not give.

    Parameters
    ----------
    A0, truth : Tensor, shape (k, d)
        A^(0) and Q A*.
    heads : Tensor, shape (b, d)
        B*.
    participation : float
        r.
    step : float, optional
        η; the largest that the theorem allows by default.

    Returns
    -------
    Bound

    Raises
    ------
    ValueError
        If the step is larger than the theorem allows, or there are too many sets of clients (see `head_spectra`).
    """
    spectra = head_spectra(heads, participation)
    low, high = float(spectra.min()), float(spectra.max())
    step = _checked_step(step, high)
    start = float(principal_angle(A0, truth))
    e0 = 1 - start**2
    return Bound(start, e0, low, high, step, step * e0 * low / 2)


def printed_bound(
    A0: Tensor, truth: Tensor, heads: Tensor, participation: float = 1.0, step: float | None = None
) -> Bound:
    r"""The bound with Theorem S3, (S15) and (S16) read as they are printed in [1]_.

    Four things differ from `convergence_bound`: :math:`\kappa = 1 - \eta E_0 \bar\sigma^2_{\min,\star} / 2`;
    :math:`E_0 = \mathrm{dist}(A^{(0)}, Q A^\star)`; (S15) and (S16) call a singular value, not its square,
    :math:`\bar\sigma^2`; and (S16) takes the *smallest* of the sets' largest singular values.
    """
    singular = head_spectra(heads, participation).sqrt()
    low, high = float(singular.min()), float(singular.amax(-1).min())
    step = _checked_step(step, high)
    start = float(principal_angle(A0, truth))
    return Bound(start, start, low, high, step, 1 - step * start * low / 2)


def head_spectra(heads: Tensor, participation: float = 1.0) -> Tensor:
    r"""Eigenvalues of :math:`\frac{1}{\lfloor rb \rfloor} B_{\mathsf A}^\top B_{\mathsf A}` for every set of clients.

    Parameters
    ----------
    heads : Tensor, shape (b, d)
    participation : float
        r; sets have ⌊rb⌋ members.

    Returns
    -------
    Tensor, shape (number of sets, d)
        In increasing order along the last axis: squared singular values of :math:`B_{\mathsf A}/\sqrt{\lfloor rb
        \rfloor}`; some are 0 where ⌊rb⌋ < d.

    Raises
    ------
    ValueError
        If there are more than `MAX_SUBSETS` sets.
    """
    checks.fraction("participation", participation)
    check_finite("heads", heads, (None, None))
    b = len(heads)
    size = _n_active(b, participation)
    if comb(b, size) > MAX_SUBSETS:
        raise WrongValue(
            f"{b} clients have {comb(b, size):.3g} sets of {size}, too many to look at (at most {MAX_SUBSETS}): "
            "use fewer clients or participation=1"
        )
    sets = heads[torch.tensor(list(combinations(range(b), size)), dtype=torch.int64)]
    return torch.linalg.eigvalsh(sets.mT @ sets / size).clamp(min=0)


def _checked_step(step: float | None, sigma_max: float) -> float:
    largest = 1 / (4 * sigma_max)
    if step is None:
        return largest
    if checks.number("step", step) <= 0 or step > largest * (1 + 1e-12):
        raise WrongValue(f"the theorem needs a step in (0, {largest:.4g}], got {step}")
    return step
