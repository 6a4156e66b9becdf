r"""Differential privacy of what leaves a client: clip, add Gaussian noise ([1]_), and count the cost over the rounds.

*What is protected.* The whole message of a client in a round. A message is a set of tensors that the server sent
before (FLIC: the anchors, and the shared layers where there are any) and the client has moved. The move is clipped to
Euclidean norm R, over all its tensors together, and noise N(0, s² I) is added to every entry, s = z · 2R, with z the
*noise multiplier*.

*From whom, and what counts as neighbouring.* The adversary is the server and anybody it talks to: it sees every single
message and knows who takes part in which round. It must not know the noise. In a simulation that follows from the seed;
in a deployment it is drawn with a secret that the client keeps, and a round is answered again by the same bytes only
(`hetfl_core.deployment`). And it must not choose R, z and the method: in a deployment they stand in a file that the
server sends, so that a client has to read it before it starts, as nothing at the client checks it. Two data sets of a
client are neighbours if they differ **in anything at all**, one sample or all of them: two clipped moves are never more
than 2R apart. This is local differential privacy of the client, stronger than that of [2]_, whose server is trusted to
add the noise. The privacy of a single sample (added, removed or replaced) is a special case.

*Why not a sum of clipped samples?* A client could release :math:`\sum_j \mathrm{clip}(\phi_i(x_j), R)` for each class,
which looks as if a sample could move it by R only. It cannot be promised: φ_i was itself trained on the samples,
without noise, so one sample more changes φ_i and with it **every** term of the sum. The bound holds for a fixed
embedding (or one trained by a private algorithm), which FLIC's is not.

*What is not protected.* What a deployed client tells beside its messages: accuracies, loss terms, how many samples of
each class it has, when it answers; what the simulator shows to its user, such as embeddings; the number of samples, if
it weighs the mean; the trained φ_i, if a client gives its model away; what floating-point noise leaks; that the
training of a client diverged, for a message with NaN or infinite entries is refused, not sent.

References
----------
.. [1] C. Dwork, A. Roth. The algorithmic foundations of differential privacy. Foundations and Trends in Theoretical
   Computer Science, 9, 2014.
.. [2] H. B. McMahan, D. Ramage, K. Talwar, L. Zhang. Learning differentially private recurrent language models.
   ICLR 2018.
.. [3] B. Balle, Y.-X. Wang. Improving the Gaussian mechanism for differential privacy. ICML 2018.
.. [4] Y.-X. Wang, B. Balle, S. Kasiviswanathan. Subsampled Rényi differential privacy and analytical moments
   accountant. AISTATS 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.networks import Params, Tensors
from hetfl_core.rng import Stream, normal
from hetfl_core.settings import Checked, Unbounded

__all__ = ["Privacy", "epsilon", "noise_multiplier"]


@dataclass(frozen=True)
class Privacy(Checked):
    """How a client's message is clipped and noised.

    Parameters
    ----------
    clip : float
        R, the largest Euclidean norm of a move, over all tensors of a message together. For scale: one step of Adam
        moves each entry that has a gradient by about the learning rate, so FLIC's anchors of 3 classes in R^64
        move by about 1e-3 · √192 = 0.014. It may be infinite where there is no noise.
    noise_multiplier : float
        z, standard deviation of the noise over the sensitivity 2R; 0 for clipping alone, which protects nothing.
    """

    clip: Unbounded
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        checks.number("clip", self.clip, above=0, infinite=True)
        checks.number("noise_multiplier", self.noise_multiplier, 0)
        if math.isinf(self.clip) and self.noise_multiplier:
            raise WrongValue(f"noise needs a finite clip, got clip={self.clip}")

    @property
    def sensitivity(self) -> float:
        """2R: the largest distance between the clipped moves of two data sets."""
        return 2 * self.clip

    @property
    def deviation(self) -> float:
        """Standard deviation s = z · 2R of the noise of each entry, in the units of the parameters."""
        return self.noise_multiplier * self.sensitivity if self.noise_multiplier else 0.0

    def protect(self, sent: Params, received: Tensors, rng: Stream) -> Params:
        """Clip the move from `received` to `sent`, and add noise to each entry.

        Parameters
        ----------
        sent, received : dict of str to Tensor
            The message, and what it started from; each tensor of `sent` is in `received`, in the same shape.
        rng : torch.Generator or hetfl_core.rng.SecretStream
            The client's own: what `Method.protect` is given.

        Returns
        -------
        dict of str to Tensor
            What is sent instead, in the same shapes and types.

        Raises
        ------
        ValueError
            Naming the tensor whose move has NaN or infinite entries: no factor clips it.
        """
        moves = {name: p.double() - received[name].double() for name, p in sent.items()}
        factor = _clip_factor(moves, self.clip)
        clipped = dict(sent)
        if factor is not None:
            clipped = _moved(received, {name: factor * move for name, move in moves.items()}, self.clip)
        if not self.noise_multiplier:
            return clipped
        drawn = {name: normal(p.shape, rng, p.dtype).to(p.device) for name, p in clipped.items()}
        return {name: p + self.deviation * drawn[name] for name, p in clipped.items()}

    def epsilon(self, delta: float, releases: int) -> float:
        """ε of a client that sends so many messages; see `epsilon`.

        Parameters
        ----------
        delta : float
            δ in (0, 1).
        releases : int
            Messages that the client sends.

        Returns
        -------
        float
        """
        return epsilon(self.noise_multiplier, delta, releases)


def _clip_factor(move: Tensors, limit: float) -> float | None:
    """Factor that brings a move's norm over all tensors to the limit, rounding included; None where it is within.

    Moves are float64. The sum of n squares errs by n · 1e-16 at most, so that a part in 1e9 less leaves room for
    the roundings of a million entries.
    """
    norm = _norm(move)
    if not math.isfinite(norm):
        _check_finite(move)  # finite entries can have an infinite norm: the factor is then 0
    return None if norm <= limit else limit / norm * (1 - 1e-9)


def _norm(move: Tensors) -> float:
    """Euclidean norm over all tensors together, which are float64."""
    return math.sqrt(sum(float(p.square().sum()) for p in move.values()))


def _moved(start: Tensors, move: Tensors, limit: float) -> Params:
    """What was sent, in its own type, where the move of `start` is this one, of float64, and not longer than the limit.

    Rounding may make it longer: near 1000 the numbers of float32 lie 6e-5 apart, which is more than an entry of a
    clipped move may be. Then each entry is rounded towards where it came from.
    """
    nearest = {name: (start[name].double() + m).to(start[name].dtype) for name, m in move.items()}
    gaps = {name: end.double() - start[name].double() for name, end in nearest.items()}
    if _norm(gaps) <= limit:
        return nearest
    too_far = {name: gaps[name].abs() > m.abs() for name, m in move.items()}
    return {name: torch.where(too_far[name], torch.nextafter(end, start[name]), end) for name, end in nearest.items()}


def _check_finite(move: Tensors) -> None:
    for name, p in move.items():
        bad = int((~p.isfinite()).sum())
        if bad:
            raise WrongValue(
                f"{name}: a move must be finite to be clipped, got {bad} entries that are NaN or infinite; "
                "nothing was sent. Has training diverged? Then lower its learning rate"
            )


# --- accounting -----------------------------------------------------------------------------------------------------

_RANGE = (0.05, 1e7)
"""Noise multipliers that the accountant of sampled releases is asked for; at 3e8 it fails by rounding."""


def epsilon(noise_multiplier: float, delta: float, releases: int, sampling: tuple[int, int] | None = None) -> float:
    """The ε of (ε, δ)-differential privacy of repeated Gaussian mechanisms, each of which may see the ones before.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity.
    delta : float
        δ in (0, 1).
    releases : int
        How often the mechanism runs. For one client against the server: the rounds it takes part in, a number that
        depends on the schedule but not on the data.
    sampling : (int, int), optional
        (m, b): each release covers m of b clients, drawn afresh without replacement, and **who was drawn is not seen**.
        That is for an adversary who sees the server's averages only (secure aggregation), and does **not** hold against
        anybody who knows the schedule. This library's own is public: the seed and the clients' names tell who takes
        part in which round (`hetfl_core.engine.sides.participants`), so that server and clients know it, and what they
        learn is to be counted without `sampling`. The noise of m equally weighted clients adds up: `noise_multiplier`
        is then √m times that of one of them; `releases` counts all rounds.

    Returns
    -------
    float
        Without `sampling`, exact: T Gaussian mechanisms are one whose noise multiplier is smaller by √T, and [3]_ has
        its ε in closed form. With it, the upper bound of [4]_ by Rényi differential privacy, in which noise beyond
        1e7 counts as 1e7. Infinite for a noise multiplier of 0; 0 for no release, and for infinite noise.

    Notes
    -----
    Needs the package ``dp-accounting``.
    """
    import dp_accounting

    _check_arguments(delta, releases, sampling)
    checks.number("noise_multiplier", noise_multiplier, 0, infinite=True)
    if releases == 0 or math.isinf(noise_multiplier):
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if sampling is None:
        return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))
    return _sampled_epsilon(noise_multiplier, delta, releases, sampling)


def noise_multiplier(epsilon: float, delta: float, releases: int, sampling: tuple[int, int] | None = None) -> float:
    """The smallest noise multiplier with which so many releases are (ε, δ)-private; the inverse of `epsilon`.

    Parameters
    ----------
    epsilon : float
        ε > 0.
    delta, releases, sampling
        As for `epsilon`; at least one release.

    Returns
    -------
    float
        With `sampling`, found by bisection, to 1e-4, and at least 0.05.

    Raises
    ------
    ValueError
        With `sampling`, also where even a noise multiplier of 1e7 is not known to give this ε: the bound of [4]_ has a
        floor, which rises as δ falls.
    """
    import dp_accounting

    _check_arguments(delta, releases, sampling)
    checks.number("epsilon", epsilon, most=1e6, above=0)
    if releases == 0:
        raise WrongValue("releases must be at least 1 for noise to be needed, got 0")
    if sampling is None:
        return math.sqrt(releases) * float(dp_accounting.get_sigma_gaussian(epsilon, delta))
    if _sampled_epsilon(_RANGE[0], delta, releases, sampling) <= epsilon:
        return _RANGE[0]
    least = _sampled_epsilon(_RANGE[1], delta, releases, sampling)
    if least > epsilon:
        raise WrongValue(
            f"epsilon must be at least {least:.3g} with delta={delta} and sampling={sampling}, got {epsilon}"
        )
    bracket = dp_accounting.LowerEndpointAndGuess(_RANGE[0], 1.0)
    make_event = lambda z: _event(z, releases, sampling)  # noqa: E731
    return float(dp_accounting.calibrate_dp_mechanism(_accountant, make_event, epsilon, delta, bracket, tol=1e-4))


def _sampled_epsilon(noise_multiplier: float, delta: float, releases: int, sampling: tuple[int, int]) -> float:
    event = _event(min(noise_multiplier, _RANGE[1]), releases, sampling)
    return float(_accountant().compose(event).get_epsilon(delta))


def _accountant() -> Any:
    """Rényi accountant for data sets in which one client is replaced by another."""
    import dp_accounting

    return dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)


def _event(noise_multiplier: float, releases: int, sampling: tuple[int, int]) -> Any:
    """So many releases by the Gaussian mechanism, each of `sampling` = (taken, clients)."""
    import dp_accounting

    taken, clients = sampling
    noisy = dp_accounting.GaussianDpEvent(noise_multiplier)
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.SampledWithoutReplacementDpEvent(clients, taken, noisy), releases
    )


def _check_arguments(delta: float, releases: int, sampling: tuple[int, int] | None) -> None:
    checks.fraction("delta", delta, "(0, 1)")
    checks.integer("releases", releases, 0)
    if sampling is not None:
        try:
            checks.int_range("sampling", sampling, 1)
        except ValueError as error:
            raise WrongValue(
                "sampling must be (taken, clients), whole numbers with 1 <= taken <= clients, "
                f"got {checks.shown(sampling)}"
            ) from error
