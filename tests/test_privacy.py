"""Clipping, noise and accounting, against closed forms and brute force."""

import math
from dataclasses import dataclass

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import kstest, norm
from small import ragged
from tensors import normal

from hetfl_core import simulate
from hetfl_core.methods import FLIC, privacy
from hetfl_core.methods.privacy import Privacy
from hetfl_core.networks import Model

DELTA = 1e-5


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def message(seed, scale=1.0):
    g = rng(seed)
    return {name: scale * torch.randn(shape, generator=g).double() for name, shape in (("a", (3, 2)), ("b", (4,)))}


def norm_of(move):
    return math.sqrt(sum(float(p.square().sum()) for p in move.values()))


def difference(a, b):
    return {name: a[name] - b[name] for name in a}


# --- the mechanism ---


def test_clipping_scales_the_whole_move_to_the_limit():
    """Moves (3, 0) and (0, 4) have norm 5 together: at R = 1 each is divided by 5, and the direction stays."""
    received = {"a": torch.tensor([10.0, 10.0]), "b": torch.tensor([0.0, 0.0])}
    sent = {"a": torch.tensor([13.0, 10.0]), "b": torch.tensor([0.0, 4.0])}
    out = Privacy(1.0, 0.0).protect(sent, received, rng())
    torch.testing.assert_close(out["a"], torch.tensor([10.6, 10.0]))
    torch.testing.assert_close(out["b"], torch.tensor([0.0, 0.8]))


def test_what_is_within_the_limit_passes_bit_for_bit():
    sent, received = message(1), message(2)
    limit = norm_of(difference(sent, received))
    for clip in (1.001 * limit, math.inf):
        out = Privacy(clip, 0.0).protect(sent, received, rng())
        assert all(torch.equal(out[name], sent[name]) for name in sent)
    assert Privacy(math.inf, 0.0).deviation == 0
    assert torch.equal(Privacy(1.0, 0.0).protect(sent, sent, rng())["a"], sent["a"]), "no move is no division by zero"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_cannot_be_clipped_is_not_sent(value):
    """min(1, R / NaN) is 1: one such entry would let all the others pass whole."""
    received = {"a": torch.zeros(2), "anchors": torch.zeros(3)}
    sent = {"a": torch.zeros(2), "anchors": torch.tensor([value, 1e6, 1.0])}
    for mechanism in (Privacy(1.0, 1.0), Privacy(1.0, 0.0)):
        with pytest.raises(ValueError, match="anchors: a move must be finite to be clipped, got 1 entries"):
            mechanism.protect(sent, received, rng())


def test_a_run_that_diverged_names_the_client_whose_message_was_refused():
    method = FLIC(model=Model(), local_epochs=1, pretrain_epochs=0, lr=1e38, weighting="uniform", privacy=Privacy(1, 1))
    with pytest.raises(ValueError, match=r"client 'client-\d': .* a move must be finite"):
        simulate(ragged(), method, rounds=2, participation=0.5, progress=False, device="cpu")


def test_a_finite_move_of_infinite_norm_is_clipped():
    sent = {"a": torch.tensor([1e300, 1.0], dtype=torch.float64)}
    out = Privacy(1.0, 0.0).protect(sent, {"a": torch.zeros(2, dtype=torch.float64)}, rng())
    assert norm_of(out) <= 1


def test_two_messages_are_at_most_the_sensitivity_apart():
    """Brute force, also over opposite moves, which attain 2R."""
    received, R = message(0), 0.7
    mechanism = Privacy(R, 0.0)
    outs = [mechanism.protect(message(s, scale), received, rng()) for s in range(1, 20) for scale in (0.01, 1, 100)]
    gaps = [norm_of(difference(a, b)) for a in outs for b in outs]
    assert max(gaps) <= mechanism.sensitivity + 1e-12
    up, down = ({name: p + sign * 1e3 for name, p in received.items()} for sign in (1, -1))
    far = norm_of(difference(*(mechanism.protect(m, received, rng()) for m in (up, down))))
    assert far == pytest.approx(mechanism.sensitivity) == pytest.approx(2 * R)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    seed=st.integers(0, 10**6),
    clip=st.floats(-9, 3),
    far=st.floats(-3, 4),
    near=st.floats(-9, 4),
    n=st.integers(1, 500),
)
def test_no_clipped_move_is_longer_than_the_limit(dtype, seed, clip, far, near, n):
    """Measured as the server can: between numbers as they are sent, which lie apart by more than a small R allows."""
    clip = 10.0**clip
    received = {"a": 10.0**far * normal(n, seed=seed, dtype=dtype), "b": normal(2, 3, seed=seed + 1, dtype=dtype)}
    sent = {name: p + 10.0**near * normal(*p.shape, seed=seed + 2, dtype=dtype) for name, p in received.items()}
    out = Privacy(clip, 0.0).protect(sent, received, rng())
    assert all(out[name].dtype == dtype for name in out)
    exact = {name: out[name].double() - received[name].double() for name in out}
    assert norm_of(exact) <= clip
    moved = difference({n: p.double() for n, p in sent.items()}, {n: p.double() for n, p in received.items()})
    assert all(bool((exact[n] * moved[n] >= 0).all()) for n in exact), "nothing moves the other way"


def test_a_limit_below_the_spacing_of_numbers_near_the_anchors():
    """Rounded to nearest, as it was, this move comes out 1.056 R long."""
    received = {"a": 300 * normal(64, 64, dtype=torch.float32)}
    sent = {"a": received["a"] + normal(64, 64, seed=1, dtype=torch.float32)}
    exact, move = received["a"].double(), sent["a"].double() - received["a"].double()
    nearest = (exact + 1e-3 * move / move.norm()).float()
    assert float((nearest.double() - exact).norm()) > 1.05e-3, "or this test says nothing"
    assert float((Privacy(1e-3, 0.0).protect(sent, received, rng())["a"].double() - exact).norm()) <= 1e-3


def test_noise_is_normal_of_the_stated_deviation():
    received = {"a": torch.zeros(100, 100, dtype=torch.float64)}
    mechanism = Privacy(0.5, 3.0)
    assert mechanism.deviation == 3.0
    noise = mechanism.protect(received, received, rng())["a"].flatten()
    assert kstest(noise.numpy(), norm(scale=3.0).cdf).pvalue > 1e-3
    assert float(noise.std()) == pytest.approx(3.0, rel=0.03)
    again = mechanism.protect(received, received, rng())["a"].flatten()
    assert torch.equal(noise, again)
    assert not torch.equal(noise, mechanism.protect(received, received, rng(1))["a"].flatten())


def test_the_message_itself_is_left_alone():
    sent, received = message(1), message(2)
    before = {name: p.clone() for name, p in sent.items()}
    Privacy(0.1, 1.0).protect(sent, received, rng())
    assert all(torch.equal(before[name], sent[name]) for name in sent)


# --- the accountant ---


def analytic(z, delta=DELTA):
    """ε of one Gaussian mechanism: Theorem 8 of Balle and Wang, solved for ε."""

    def excess(eps):
        return norm.cdf(0.5 / z - eps * z) - math.exp(eps) * norm.cdf(-0.5 / z - eps * z) - delta

    return brentq(excess, 0, 100) if excess(0) > 0 else 0.0


def test_one_release_is_balle_and_wangs():
    for z in (0.7, 1.0, 3.0, 20.0):
        assert privacy.epsilon(z, DELTA, 1) == pytest.approx(analytic(z), abs=1e-8), z


def test_many_releases_are_what_the_privacy_loss_distribution_says():
    """Composition by a library's convolution of loss distributions, which are rounded up."""
    for z, T in ((5.0, 4), (10.0, 50)):
        accountant = dp_accounting.pld.PLDAccountant()
        for _ in range(T):
            accountant.compose(dp_accounting.GaussianDpEvent(z))
        assert privacy.epsilon(z, DELTA, T) == pytest.approx(accountant.get_epsilon(DELTA), abs=1e-3)


def test_epsilon_is_below_the_bounds_of_zcdp_and_rdp():
    z, T = 4.0, 20
    rho = T / (2 * z**2)  # Bun and Steinke, Propositions 1.3 and 1.6
    zcdp = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
    rdp = min(rho * a + math.log(1 / DELTA) / (a - 1) for a in torch.linspace(1.01, 60, 2000).tolist())  # Mironov
    exact = privacy.epsilon(z, DELTA, T)
    assert exact < rdp <= zcdp * 1.001
    assert exact > 0.7 * rdp, "a bound, but not a loose one"


def test_sampling_amplifies_and_all_of_all_does_not():
    plain = privacy.epsilon(2.0, DELTA, 10)
    tenth, half, whole = (privacy.epsilon(2.0, DELTA, 10, (m, 100)) for m in (10, 50, 100))
    assert tenth < half < plain
    assert plain <= whole <= 1.2 * plain, "no sampling: Rényi's bound on what is exact without"


@pytest.mark.nightly
def test_noise_multiplier_is_the_inverse():
    for sampling in (None, (10, 100)):
        z = privacy.noise_multiplier(2.0, DELTA, 15, sampling)
        assert privacy.epsilon(z, DELTA, 15, sampling) == pytest.approx(2.0, abs=1e-3)
        assert privacy.epsilon(0.98 * z, DELTA, 15, sampling) > 2.0
    assert Privacy(0.1, 3.0).epsilon(DELTA, 5) == privacy.epsilon(3.0, DELTA, 5)


def test_no_noise_and_no_release():
    assert privacy.epsilon(0.0, DELTA, 1) == math.inf
    assert privacy.epsilon(1.0, DELTA, 0) == 0.0


def test_sampled_releases_at_the_ends_of_the_noise():
    """Noise that the accountant cannot be asked for counts as less; the least that is looked for is 0.05."""
    for sampling in ((10, 100), (100, 100)):
        assert privacy.epsilon(1e12, DELTA, 5, sampling) == privacy.epsilon(1e7, DELTA, 5, sampling)
        assert privacy.epsilon(math.inf, DELTA, 5, sampling) == 0
        assert privacy.noise_multiplier(1e5, DELTA, 5, sampling) == 0.05
        assert privacy.epsilon(0.05, DELTA, 5, sampling) < 1e5


BAD = {
    "clip must be positive, got 0": lambda: Privacy(0.0),
    "clip must be a number, got nan": lambda: Privacy(math.nan),
    "noise_multiplier must not be negative, got -1": lambda: Privacy(1.0, -1.0),
    "noise needs a finite clip": lambda: Privacy(math.inf, 1.0),
    r"delta must lie in \(0, 1\), got 1": lambda: privacy.epsilon(1.0, 1.0, 1),
    "releases must be a whole number of at least 0, got 1.5": lambda: privacy.epsilon(1.0, DELTA, 1.5),
    r"sampling must be \(taken, clients\)": lambda: privacy.epsilon(1.0, DELTA, 1, (5, 4)),
    "noise_multiplier must not be negative": lambda: privacy.epsilon(-1.0, DELTA, 1),
    "noise_multiplier must not be negative, got nan": lambda: privacy.epsilon(math.nan, DELTA, 1),
    "releases must be a whole number of at least 0, got nan": lambda: privacy.epsilon(1.0, DELTA, math.nan),
    r"epsilon must be at least 0\.\d+ with delta=1e-12 .*, got 0.001": lambda: privacy.noise_multiplier(
        0.001, 1e-12, 5, (10, 100)
    ),
    "epsilon must be positive, got 0": lambda: privacy.noise_multiplier(0.0, DELTA, 1),
    "releases must be at least 1": lambda: privacy.noise_multiplier(1.0, DELTA, 0),
}


def test_privacy_is_checked_as_other_settings_are():
    """Also by a subclass whose own checks forget those of its parent, and with the class in place of an object."""

    @dataclass(frozen=True)
    class Careless(Privacy):
        rounds: int = 1

        def __post_init__(self):
            pass

    for bad, message in (
        ({"clip": -1.0}, "clip must be positive, got -1"),
        ({"clip": np.ones(2)}, r"clip must be a number, got array\(\[1., 1.\]\)"),
        ({"clip": True}, "clip must be a number, got True"),
        ({"clip": 1.0, "noise_multiplier": math.inf}, "noise_multiplier must be a finite number, got inf"),
        ({"clip": 1.0, "rounds": 1.5}, "rounds must be a whole number, got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            Careless(**bad)
    assert Careless(math.inf, 0.0).clip == math.inf


@pytest.mark.parametrize("text", BAD)
def test_bad_arguments_are_named(text):
    with pytest.raises(ValueError, match=text):
        BAD[text]()
