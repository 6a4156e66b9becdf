"""Fed-CMA's statements: counterexamples, what holds instead, and the numbers of the table."""

from __future__ import annotations

import math
import re
from itertools import product

import numpy as np
import pytest
import torch
from small import ragged

from hetfl_book.theory import fedcma, fedcr
from hetfl_core.engine.simulator import Simulator
from hetfl_core.methods import FedCMA
from hetfl_core.networks import MLP, Model
from hetfl_core.rng import numpy_stream

TWO_POINTS = {"hypotheses": [[1, 0], [0, 1]], "marginals": [[1, 0], [0, 1]], "labelling": [1, 1]}


def test_the_table_names_functions_that_are_there():
    table = fedcma.statements()
    assert set(table["holds"]) == {"yes", "if", "no"}
    assert len(table) == 13
    named = {name for words in table["words"] for name in re.findall(r"`(\w+)`", words)}
    assert named == {"induced", "theorem_2", "label_shift", "two_masses", "dimension", "theorem_3", "quadratic", "rate"}
    assert all(callable(getattr(fedcma, name)) for name in named)


# --- Theorems 1 and 2 -------------------------------------------------------------------------------------------------


def test_theorem_1_lacks_2A_with_one_extractor_and_one_labelling_of_inputs():
    """Both inputs become one feature, of which 1 in 10 is labelled 1 on the one client and 9 in 10 on the other."""
    latent = fedcma.induced([0, 0], [[0.9, 0.1], [0.1, 0.9]], [0, 1])
    assert np.allclose(latent, [[[1], [1]], [[0.1], [0.9]]])
    found = fedcma.theorem_2([[0], [1]], *latent, alpha=[0.9, 0.1], j=1)
    assert (found.gap, found.B) == (pytest.approx(0.8), 0), "Theorem 1 would read 0.8 ≤ 0"
    assert found.printed == pytest.approx(2 * 0.9 * 0.8), "Theorem 2 has 2A, which is not 0"
    sure = fedcma.theorem_2([[0], [1]], *fedcma.induced([0, 0], np.eye(2), [0, 1]), alpha=[0.6, 0.4], j=1)
    assert (sure.gap, sure.B) == (1, 0), "also where each client's labelling function is a head"


def test_one_extractor_gives_one_labelling_function_only_if_it_keeps_what_labels_depend_on():
    rng = numpy_stream(0, "tests", 0, "induced")
    p, c = rng.dirichlet(np.ones(6), 3), np.array([0, 0, 1, 1, 1, 0])
    keeps, blends = ([0, 1, 2, 2, 3, 0], [0, 0, 0, 1, 1, 1])
    for extractor in (keeps, blends):
        marginals, labels = fedcma.induced(extractor, p, c)
        for i, z in product(range(3), range(max(extractor) + 1)):
            mine = [x for x in range(6) if extractor[x] == z]
            assert marginals[i, z] == pytest.approx(p[i, mine].sum())
            assert labels[i, z] == pytest.approx((p[i, mine] * c[mine]).sum() / p[i, mine].sum())
        assert np.allclose(labels, labels[0]) == (extractor is keeps)
    marginals, labels = fedcma.induced([0, 1], [[1, 0], [0.5, 0.5]], [0, 1])
    assert labels.tolist() == [[0, 1], [0, 1]], "where a client has no sample, as on all clients"


@pytest.mark.parametrize("keeps", [False, True])
def test_random_extractors_break_theorem_1_unless_they_keep_the_label(keeps):
    """All functions on the latent points are heads; what is corrected holds of every extractor."""
    rng, broken = numpy_stream(1, "tests", 0, "induced"), 0
    for _ in range(500):
        labels = rng.integers(2, size=6)
        extractor = rng.integers(2, size=6) + 2 * labels * keeps
        heads = list(product((0, 1), repeat=max(extractor) + 1))
        latent = fedcma.induced(extractor.tolist(), rng.dirichlet(np.full(6, 0.5), 3), labels)
        found = fedcma.theorem_2(heads, *latent, rng.dirichlet(np.ones(3)), int(rng.integers(3)))
        broken += found.gap > found.B + 1e-9
        assert found.gap <= found.corrected + 1e-9
    assert broken == 0 if keeps else broken > 20


def test_theorems_1_and_2_lack_the_ideal_risks_where_labels_are_no_heads():
    """One labelling function for all, so A = 0; both heads differ on both points, so d = 0; and the gap is 1."""
    found = fedcma.theorem_2(**TWO_POINTS, alpha=[0.6, 0.4], j=1)
    assert (found.gap, found.printed) == (1, 0)
    assert found.corrected == pytest.approx(2 * 0.6)
    knows_better = fedcma.theorem_2(**{**TWO_POINTS, "hypotheses": [[1, 0], [0, 1], [1, 1]]}, alpha=[0.6, 0.4], j=1)
    assert knows_better.gap == 0, "with the labelling function among the heads"


def test_a_client_without_weight_may_lose_although_the_labelling_function_is_a_head():
    """Plain domain adaptation, α_j = 0: the head that is best elsewhere is wrong here, and B = 2 allows it."""
    heads = {**TWO_POINTS, "hypotheses": [[0, 1], [0, 0]]}
    found = fedcma.theorem_2(**{**heads, "labelling": [0, 1]}, alpha=[1.0, 0.0], j=1)
    assert (found.gap, found.A, found.B) == (1, 0, 2)


def test_equation_2_fails_on_two_points_that_are_labelled_alike():
    """L_j ≤ L_i + d + min E|c_i − c_j| for a single head, on the two points of the table: 1 ≤ 0 + 0 + 0."""
    heads, c = [[1, 0], [0, 1]], np.array([1.0, 1.0])
    p, q = np.eye(2)
    here, there = (fedcr.risks(heads, np.stack([(1 - c) * law, c * law]))[0] for law in (p, q))
    assert (here, there, fedcr.divergence(heads, p, q)) == (0, 1, 0)
    knows = [*heads, [1, 1]]  # the labelling function among the heads, and the two can be told apart
    assert there <= here + fedcr.divergence(knows, p, q)


def drawn(rng, among_heads, one_labelling=False):
    """Three clients on four points, up to six heads, labelled by heads or by anything."""
    h = np.array(list(product((0, 1), repeat=4)))[rng.choice(16, int(rng.integers(2, 7)), replace=False)]
    p = rng.dirichlet(np.full(4, 0.5), 3)
    c = h[rng.integers(len(h), size=3)] if among_heads else rng.integers(2, size=(3, 4))
    c = np.repeat(c[:1], 3, 0) if one_labelling else c
    return fedcma.theorem_2(h, p, c, rng.dirichlet(np.ones(3)), int(rng.integers(3)))


@pytest.mark.parametrize("one_labelling", [False, True], ids=["each its own", "one of all"])
def test_theorem_2_holds_where_labelling_functions_are_heads_and_only_there(one_labelling):
    rng = numpy_stream(0, "tests", 0, "theorem 2")
    inside = [drawn(rng, True, one_labelling) for _ in range(400)]
    assert all(b.gap <= b.printed + 1e-9 for b in inside)
    largest = max(b.gap / b.printed for b in inside if b.printed > 1e-6)
    if one_labelling:
        assert largest == 0, "one head is right for all: nothing is left to bound"
    else:
        assert largest > 0.2, "not for want of a gap"
    outside = [drawn(rng, False, one_labelling) for _ in range(400)]
    assert any(b.gap > b.printed + 1e-3 for b in outside)


def test_with_the_ideal_risks_it_holds_whatever_labels_are():
    rng = numpy_stream(1, "tests", 0, "theorem 2")
    found = [drawn(rng, False) for _ in range(800)]
    assert all(b.gap <= b.corrected + 1e-9 for b in found)
    assert max(b.gap / b.corrected for b in found if b.corrected > 1e-6) > 0.3


def test_equally_good_heads_are_taken_at_their_worst():
    found = fedcma.theorem_2(**TWO_POINTS, alpha=[0.5, 0.5], j=1)
    assert found.gap == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": [0.6, 0.6]}, "alpha must be 2 weights of sum 1"),
        ({"labelling": [1, 2]}, r"labelling must hold numbers in \[0, 1\]"),
        ({"j": 2}, "j must be a whole number in 0…1, got 2"),
        ({"hypotheses": [[1, 2], [0, 1]]}, "hypotheses must be rows of 0 and 1"),
    ],
)
def test_what_is_no_domain_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        fedcma.theorem_2(**{**TWO_POINTS, "alpha": [0.6, 0.4], "j": 1, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extractor": [0, 2]}, "extractor must be a whole number in 0…1, got 2"),
        ({"labelling": [0, 1, 1]}, "a number for each of the 2 inputs of extractor"),
        ({"labelling": [0, 2]}, r"labelling must hold numbers in \[0, 1\]"),
        ({"marginals": [[0.5, 0.6]]}, "marginals must be rows of probabilities"),
    ],
)
def test_what_is_no_extractor_or_domain_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        fedcma.induced(**{"extractor": [0, 0], "marginals": [[0.5, 0.5]], "labelling": [0, 1], **changes})


# --- what is aligned --------------------------------------------------------------------------------------------------


def test_aligned_classes_of_other_shares_are_not_aligned():
    conditionals = [[0.7, 0.3], [0.3, 0.7]]
    A, d = fedcma.label_shift(conditionals, 0.9, 0.1)
    assert pytest.approx(0.27 / 0.34 - 0.03 / 0.66) == A
    assert d == pytest.approx(0.64)
    assert fedcma.label_shift(conditionals, 0.4, 0.4) == (0, 0)
    A, d = fedcma.label_shift([[1, 0], [0, 1]], 0.9, 0.1)
    assert (A, d) == (0, pytest.approx(1.6)), "classes that do not overlap: only the marginals differ"


def test_equal_means_may_be_told_apart_always():
    assert fedcma.two_masses(1, 2) == (0, 2)
    assert fedcma.two_masses(1, 1) == (0, 0)


def test_the_variables_are_those_of_the_method():
    fed = ragged(4, n_classes=5)
    simulator = Simulator(fed, FedCMA(Model(MLP((6,), 4))), device="cpu")
    state = simulator.initial()
    bodies = [sum(p.numel() for n, p in kept.items() if not n.startswith("beta")) for kept in state.client_states]
    held = sum(p.numel() for kept in state.client_states for p in kept.values())
    held += sum(state.server[name].numel() for name in ("beta.weight", "beta.bias", "mean"))
    assert fedcma.dimension(bodies, 4, 5) == held


# --- Theorem 3 --------------------------------------------------------------------------------------------------------


def test_the_printed_rate_fails_and_the_corrected_one_holds_there():
    T, noise = 20_000, 0.1
    step, printed = fedcma.theorem_3(T, c0=1.0, c1=1.0, g2=noise**2)
    assert (step, printed) == (pytest.approx(1.0), pytest.approx(1e-4))
    least = fedcma.quadratic(T, step, 1.0, math.sqrt(2), noise**2).min()
    assert least == pytest.approx(1e-2)
    _, bound = fedcma.rate(T, 1.0, 1.0, noise**2, eta=1.0)
    assert least <= bound
    best, bound = fedcma.rate(T, 1.0, 1.0, noise**2)
    assert bound == pytest.approx(2 * math.sqrt(2 * noise**2 / T))
    assert fedcma.quadratic(T, best, 1.0, math.sqrt(2), noise**2).min() <= bound


@pytest.mark.parametrize("c0", [1.0, 5.0, 100.0])
def test_no_other_constant_saves_the_printed_rate(c0):
    """At the step η = 1/C0 the printed bound is G2², and noise leaves η G2/(2 − η): more, for G2 below η/(2 − η)."""
    eta, c1 = 1 / c0, 1.0
    g2 = 0.5 * eta / (2 - eta)
    T = math.ceil(2 * c1 * c0 / g2**2)
    step, printed = fedcma.theorem_3(T, c0, c1, g2)
    assert (step, printed) == (pytest.approx(eta), pytest.approx(g2**2))
    left = fedcma.quadratic(min(T, 5_000), step, 1.0, math.sqrt(2), g2).min()
    assert left >= step * g2 / (2 - step) * (1 - 1e-9) > printed


def test_the_example_meets_the_assumptions():
    """With noise ±0.1 no iterate leaves |a| ≤ √2, so that Φ may be linear beyond 2: Lipschitz, smooth with C0 = 1."""
    rng = torch.Generator().manual_seed(0)
    a = torch.full((1000,), math.sqrt(2), dtype=torch.float64)
    for _ in range(50):
        a = a - (a + 0.1 * (2 * torch.randint(2, (1000,), generator=rng).double() - 1))
        assert a.abs().max() <= math.sqrt(2)
    assert abs(float(a.square().mean()) - fedcma.quadratic(51, 1.0, 1.0, math.sqrt(2), 0.01)[-1]) < 1e-12


@pytest.mark.parametrize("c0", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("g2", [1e-3, 0.5, 9.0])
def test_the_corrected_rate_holds_for_quadratics(c0, g2):
    for T, share in product((1, 10, 1000), (1e-3, 0.1, 1.0)):
        eta, bound = fedcma.rate(T, c0, 2.0, g2, eta=share / c0)
        least = fedcma.quadratic(T, eta, c0, math.sqrt(4.0 / c0), g2).min()
        assert least <= bound * (1 + 1e-9)


def test_the_best_step_is_the_best():
    best, least = fedcma.rate(1000, 1.0, 1.0, 0.5)
    for eta in np.linspace(0.01, 1, 50):
        assert fedcma.rate(1000, 1.0, 1.0, 0.5, eta=eta)[1] >= least - 1e-12
    assert fedcma.rate(2, 1.0, 1.0, 1e-6, g1=3.0)[0] == 0.25, "at most 1/(C0 (1 + G1))"
    assert 0 < best < 1
    with pytest.raises(ValueError, match="eta must be at most"):
        fedcma.rate(10, 1.0, 1.0, 1.0, g1=1.0, eta=0.6)
