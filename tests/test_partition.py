from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetfl_core import Partition
from hetfl_core.datasets.toy import thinned
from hetfl_core.partition import (
    assign_classes,
    consecutive_classes,
    dirichlet,
    dirichlet_per_client,
    gathered,
    published_shards,
    share,
    share_alike,
    share_evenly,
    split_each,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def labels_of(n_classes, each):
    return rng(1).permutation(np.repeat(np.arange(n_classes), each))


def used_once(parts):
    everything = np.concatenate(parts)
    return len(everything) == len(np.unique(everything))


def classes_per_client(y, n_clients, k, generator):
    return Partition(n_clients, classes_per_client=k).deal(y, generator, y)[0]


seeds = st.integers(0, 2**32)


# --- classes per client -------------------------------------------------------------------------------------------


@st.composite
def class_settings(draw):
    n_classes = draw(st.integers(1, 12))
    return draw(st.integers(1, 25)), n_classes, draw(st.integers(1, n_classes)), draw(seeds)


@given(class_settings())
def test_assignment_is_balanced_and_has_no_repeats(setting):
    n_clients, n_classes, k, seed = setting
    table = assign_classes(n_clients, n_classes, k, rng(seed))
    assert table.shape == (n_clients, k)
    assert all(len(set(row)) == k for row in table.tolist())
    counts = np.bincount(table.ravel(), minlength=n_classes)
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == n_clients * k


@given(class_settings())
def test_classes_per_client_invariants(setting):
    n_clients, n_classes, k, seed = setting
    y = labels_of(n_classes, 30)
    parts = classes_per_client(y, n_clients, k, rng(seed))
    assert len(parts) == n_clients
    assert used_once(parts)
    assert all(len(np.unique(y[p])) == k for p in parts)  # so none is empty
    for c in range(n_classes):
        shares = [int((y[p] == c).sum()) for p in parts if (y[p] == c).any()]
        if shares:
            assert sum(shares) == 30
            assert max(shares) - min(shares) <= 1


def test_every_client_holds_every_class_when_k_is_all():
    # the hardest case for mending: each row must become a permutation
    table = assign_classes(200, 10, 10, rng())
    assert (np.sort(table, axis=1) == np.arange(10)).all()


def test_published_dealing_repeats_a_class_on_about_a_tenth_of_clients():
    # 100 clients, 20 classes, 3 each: 1 − (1 − 14/299)(1 − 28/298) = 13.6 % expect a repeat
    tables = [assign_classes(100, 20, 3, rng(s), allow_repeats=True) for s in range(200)]
    repeated = np.mean([[len(set(row)) < 3 for row in t.tolist()] for t in tables])
    expected = 1 - (1 - 14 / 299) * (1 - 28 / 298)
    assert abs(repeated - expected) < 4 * np.sqrt(expected * (1 - expected) / 20_000)
    assert all((np.bincount(t.ravel()) == 15).all() for t in tables)


def test_repeats_are_mended_without_favouring_classes():
    # by symmetry, each pair of classes should be held together equally often
    pairs = np.zeros((6, 6))
    for seed in range(2000):
        for a, b in assign_classes(6, 6, 2, rng(seed)).tolist():
            pairs[a, b] += 1
            pairs[b, a] += 1
    off = pairs[~np.eye(6, dtype=bool)]
    assert (np.diag(pairs) == 0).all()
    assert np.abs(off / off.mean() - 1).max() < 0.15


class Counting(np.random.Generator):
    """A generator that counts the choices that it makes."""

    choices = 0

    def choice(self, *args, **options):
        self.choices += 1
        return super().choice(*args, **options)


def test_each_swap_mends_a_repeat():
    """Two choices a swap, of the row and of its entry; a swap that mended nothing would bring more swaps."""
    for seed in range(50):
        dealt = assign_classes(30, 6, 4, rng(seed), allow_repeats=True)
        repeats = sum(4 - len(set(row)) for row in dealt.tolist())
        counting = Counting(np.random.PCG64(seed))
        table = assign_classes(30, 6, 4, counting)
        assert repeats > 10
        assert counting.choices <= 2 * repeats
        assert all(len(set(row)) == 4 for row in table.tolist())


def test_mending_ten_thousand_clients_is_quick():
    table = assign_classes(10_000, 20, 3, rng())
    assert all(len(set(row)) == 3 for row in table.tolist())


def test_classes_have_equally_many_holders():
    y = labels_of(10, 30)
    parts = classes_per_client(y, 20, 3, rng())
    assert [sum((y[p] == c).any() for p in parts) for c in range(10)] == [6] * 10


def test_labels_need_not_be_consecutive():
    y = np.repeat([3, 7, 9], 10)
    parts = classes_per_client(y, 6, 1, rng())
    assert {int(y[p][0]) for p in parts} == {3, 7, 9}
    assert used_once(parts)


def test_train_and_test_share_the_assignment():
    y_train, y_test = labels_of(10, 50), labels_of(10, 20)
    table = assign_classes(20, 10, 3, rng())
    train, test = share(y_train, table, rng(1)), share(y_test, table, rng(2))
    for a, b in zip(train, test):
        assert set(y_train[a]) == set(y_test[b])


def test_the_odd_samples_of_a_class_do_not_always_go_to_the_same_clients():
    y, table = np.zeros(10, int), np.zeros((3, 1), int)
    sizes = np.array([[len(p) for p in share(y, table, rng(s))] for s in range(60)])
    assert (sizes.sum(axis=1) == 10).all()
    assert set(sizes.argmax(axis=1)) == {0, 1, 2}


def test_a_class_dealt_twice_brings_two_shares():
    y = np.zeros(30, int)
    assert [len(p) for p in share(y, np.array([[0, 0], [0, 1]]), rng(), at_least=0)] == [20, 10]


def test_small_test_sets_may_leave_a_client_with_nothing():
    parts = share(np.array([0, 1]), np.array([[0], [0], [1]]), rng(), at_least=0)
    assert sorted(len(p) for p in parts) == [0, 1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: classes_per_client(np.arange(4), 2, 5, rng()),
            "classes_per_client must be at most the number of classes, 4, got 5",
        ),
        (lambda: classes_per_client(np.zeros(3, int), 4, 1, rng()), "n_clients must be at most 3, .* got 4"),
        (
            lambda: share(np.zeros(3, int), np.zeros((4, 1), int), rng()),
            "class 0 .* each of 4 shares",
        ),
        (
            lambda: classes_per_client(np.zeros((3, 1), int), 2, 1, rng()),
            r"labels must have shape \(n,\), got \(3, 1\)",
        ),
        (lambda: Partition(3, alpha=0.0), "alpha must be positive .* got 0.0"),
        (lambda: Partition(3, alpha=float("nan")), "alpha must be"),
        (lambda: dirichlet(np.zeros(2, int), 3, 1.0, rng()), "n_clients=3 .* need 3 samples, got 2"),
        (lambda: dirichlet(np.zeros(9, int), 3, 1.0, rng(), min_size=4), "need 12 samples, got 9"),
        (lambda: published_shards(np.zeros(2, int), np.zeros((3, 1), int), rng()), "class 0 has 2 samples"),
        (
            lambda: Partition(3, classes_per_client=1, variant="code").deal(np.zeros(6, int), rng(), repeat_below=101),
            r"repeat_below must be a whole number in 0…100, got 101",
        ),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_types_are_refused():
    with pytest.raises(
        TypeError, match=r"rng must be a Generator, such as numpy.random.default_rng\(0\), got .* of type int"
    ):
        classes_per_client(np.zeros(3, int), 1, 1, 0)
    with pytest.raises(TypeError, match="labels must be whole numbers"):
        Partition(1, alpha=1.0).deal(np.zeros(3), rng())


# --- the published shards -----------------------------------------------------------------------------------------


def test_published_shards_without_replacement_use_each_sample_once():
    y = labels_of(4, 300)
    table = assign_classes(8, 4, 2, rng(), allow_repeats=True)
    parts = published_shards(y, table, rng(1))
    assert used_once(parts)
    assert len(np.concatenate(parts)) == 1200  # 150 per client: shards are taken away when dealt


def test_published_shards_with_replacement_overlap():
    y = labels_of(4, 100)
    table = assign_classes(8, 4, 2, rng())
    parts = published_shards(y, table, rng(1))  # 50 samples per client, shards of 25, 50 draws a class
    assert all(len(p) == 2 * 50 * 25 for p in parts)
    assert not used_once(parts)
    holders = [set(p) for p, row in zip(parts, table.tolist()) if 0 in row]
    assert set.intersection(*holders)
    for part, row in zip(parts, table.tolist()):
        assert set(y[part]) == set(row)


def test_a_hundred_samples_per_client_are_not_few():
    """Fewer than 100 per client are drawn with replacement, 50 times a class; from 100 on, each once."""
    table = assign_classes(8, 4, 2, rng())
    assert used_once(published_shards(labels_of(4, 200), table, rng(1)))
    few = published_shards(labels_of(4, 198), table, rng(1))  # 99 per client
    assert all(2 * 50 * 49 <= len(p) <= 2 * 50 * 50 for p in few)


def test_a_shard_may_be_a_single_sample():
    parts = published_shards(np.zeros(3, int), np.zeros((3, 1), int), rng(), repeat_below=0)
    assert {len(p) for p in parts} == {1}
    assert set(np.concatenate(parts)) <= {0, 1, 2}


def test_toy_rule_draws_with_replacement_but_once():
    y = labels_of(4, 100)
    parts = published_shards(y, assign_classes(8, 4, 2, rng()), rng(1), repeat_below=10)
    assert all(len(p) == 50 for p in parts)


# --- Dirichlet ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=80),
    st.integers(1, 12),
    st.floats(0.01, 100),
    st.integers(0, 3),
    seeds,
)
def test_dirichlet_uses_every_sample_once_and_leaves_nobody_empty(y, n_clients, alpha, min_size, seed):
    y = np.array(y)
    if len(y) < n_clients * max(min_size, 1):
        with pytest.raises(ValueError, match="samples"):
            dirichlet(y, n_clients, alpha, rng(seed), min_size)
        return
    parts = dirichlet(y, n_clients, alpha, rng(seed), min_size)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert min(len(p) for p in parts) >= max(min_size, 1)


def test_as_many_samples_as_clients_need_are_dealt_evenly():
    """With α = 0.01 nearly all go to one client at first, which gives them away until nobody has more than another."""
    for seed in range(20):
        assert [len(p) for p in dirichlet(np.zeros(12, int), 4, 0.01, rng(seed), min_size=3)] == [3] * 4
        sizes = [len(p) for p in dirichlet(np.zeros(13, int), 4, 0.01, rng(seed), min_size=3)]
        assert sorted(sizes) == [3, 3, 3, 4]


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    # p ~ Dir(α 1_b): Var p_i = (1/b)(1 − 1/b) / (αb + 1)
    alpha, b = 0.5, 4
    shares = [len(p) / 4000 for s in range(400) for p in dirichlet(np.zeros(4000, int), b, alpha, rng(s))]
    expected = (1 / b) * (1 - 1 / b) / (alpha * b + 1)
    assert np.mean(shares) == pytest.approx(1 / b)
    assert np.var(shares) == pytest.approx(expected, rel=0.1)


def test_large_alpha_gives_equal_clients_and_small_alpha_single_classes():
    y = labels_of(5, 200)
    even = dirichlet(y, 5, 1e6, rng())
    assert all(abs((y[p] == c).sum() - 40) <= 1 for p in even for c in range(5))
    skew = dirichlet(y, 5, 0.01, rng())
    assert np.mean([(y[p] == c).sum() in range(10, 190) for p in skew for c in range(5)]) < 0.2


@given(st.integers(2, 8), st.floats(0.05, 5), seeds)
def test_share_alike_follows_the_training_proportions(n_clients, alpha, seed):
    y, z = labels_of(4, 60), labels_of(4, 30)
    train = dirichlet(y, n_clients, alpha, rng(seed))
    test = share_alike(y, train, z, rng(seed))
    assert sorted(np.concatenate(test).tolist()) == list(range(len(z)))
    for a, b in zip(train, test):
        assert set(z[b]) <= set(y[a])
        for c in range(4):
            assert abs((z[b] == c).sum() - (y[a] == c).sum() / 2) < 1  # 30 of 60


def test_share_alike_leaves_out_classes_that_nobody_holds():
    parts = share_alike(np.array([0, 0, 1]), [np.array([0, 1])], np.array([0, 1, 1]), rng())
    assert parts[0].tolist() == [0]


# --- equal sizes --------------------------------------------------------------------------------------------------


def counts(y, parts, n_classes):
    return np.array([np.bincount(y[p], minlength=n_classes) for p in parts])


def test_consecutive_classes_begin_with_the_clients_number_and_wrap():
    assert consecutive_classes(4, 3, 2).tolist() == [[0, 1], [1, 2], [2, 0], [0, 1]]
    table = consecutive_classes(100, 10, 5)
    assert table.dtype == np.int64
    assert (np.bincount(table.ravel()) == 50).all()
    assert len({tuple(sorted(row)) for row in table.tolist()}) == 10
    assert consecutive_classes(2, 3, 3).tolist() == [[0, 1, 2], [1, 2, 0]]


@st.composite
def even_settings(draw):
    """Clients, classes and classes per client with which every class has equally many holders."""
    n_classes = draw(st.integers(1, 6))
    return n_classes * draw(st.integers(1, 4)), n_classes, draw(st.integers(1, n_classes)), draw(seeds)


@given(even_settings(), st.integers(1, 4), st.booleans())
def test_even_shares_use_every_class_up(setting, each, follow):
    n_clients, n_classes, k, seed = setting
    y = labels_of(n_classes, each * n_clients * k // n_classes)
    table = consecutive_classes(*setting[:3]) if follow else assign_classes(*setting[:3], rng(seed))
    parts = share_evenly(y, table, rng(seed))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    for part, row in zip(parts, table.tolist()):
        assert {c: int((y[part] == c).sum()) for c in set(y[part].tolist())} == dict.fromkeys(row, each)


def test_even_shares_of_unequal_classes_take_as_many_of_each():
    y = np.repeat([0, 1, 2], [13, 9, 20])
    table = consecutive_classes(3, 3, 2)
    parts = share_evenly(y, table, rng(), per_client=8)
    assert used_once(parts)
    assert (counts(y, parts, 3) == [[4, 4, 0], [0, 4, 4], [4, 0, 4]]).all()
    shuffled = [set(np.concatenate(share_evenly(y, table, rng(s), per_client=2)).tolist()) for s in range(40)]
    assert set.union(*shuffled) == set(range(42)), "no sample is always left out"


def test_even_shares_of_labels_that_are_not_consecutive():
    y = np.repeat([3, 7], 4)
    parts = share_evenly(y, np.array([[3], [7]]), rng())
    assert [p.tolist() for p in parts] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def evenly(labels, n_clients, k, **fields):
    return Partition(n_clients, "non-iid_1", classes_per_client=k, **fields).deal(labels, rng())


def by_priors(labels, n_clients, **fields):
    return Partition(n_clients, "non-iid_2", alpha=0.5, **fields).deal(labels, rng())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evenly([0, 0, 1, 1, 1], 2, 1), r"got 2 of class 0 and 3 of class 1: give per_client, .* at most 2"),
        (lambda: evenly([0, 1, 1, 1], 4, 1), "labels: class 0 has 1 samples for .* each of 2 shares"),
        (lambda: evenly([0] * 5, 2, 1), "labels: to deal all .* a multiple of its 2 holders, got 5"),
        (lambda: evenly([0, 1], 1, 2, per_client=3), "per_client must be a multiple of 2, .* got 3"),
        (lambda: evenly([0, 1, 1, 1], 1, 2, per_client=4), "per_client must be at most 2, as class 0"),
        (lambda: evenly([0], 1, 1, per_client=0), "per_client must be at least 1, got 0"),
        (lambda: evenly([0, 1, 1], 3, 3), "classes_per_client must be at most the number of classes, 2, got 3"),
        (lambda: by_priors([0] * 9, 2), "labels: 9 samples .* n_clients=2 .* at most 4"),
        (lambda: by_priors([0] * 9, 2, per_client=5), "per_client must be at most 4 for n_clients=2, .* got 5"),
        (lambda: by_priors([0] * 9, 10), "n_clients must be at most 9, the number of samples, got 10"),
        (
            lambda: split_each(np.zeros(9, int), [np.arange(9)], 0.01, rng()),
            r"test_fraction must leave .* got 0.01 for 9 .*parts\[0\]",
        ),
        (lambda: split_each(np.zeros(9, int), [np.arange(9)], 0.99, rng()), "test_fraction must leave"),
        (lambda: Partition(test_fraction=1), r"test_fraction must be in \(0, 1\), got 1"),
        (
            lambda: split_each(np.zeros(9, int), [np.array([1, 2, 2])], 0.3, rng()),
            r"parts\[0\] must hold each index once",
        ),
    ],
)
def test_what_cannot_be_dealt_in_equal_sizes_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@given(st.integers(1, 8), st.integers(1, 12), st.floats(1e-3, 100), st.integers(1, 4), seeds)
def test_dirichlet_clients_have_equal_sizes_and_use_everything(n_clients, size, alpha, n_classes, seed):
    y = rng(seed).integers(0, n_classes, n_clients * size)
    parts = dirichlet_per_client(y, n_clients, alpha, rng(seed))
    assert [len(p) for p in parts] == [size] * n_clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    some = dirichlet_per_client(y, n_clients, alpha, rng(seed), per_client=1)
    assert [len(p) for p in some] == [1] * n_clients
    assert used_once(some)


def test_clients_class_shares_have_the_variance_of_the_distribution():
    """Shares p of a client's m samples with prior q ~ Dir(α 1_C), where nothing runs out.

    Var q = (1/C)(1 − 1/C)/(αC + 1), and Var p = Var q + (E q − E q²)/m. Also: no class is favoured.
    """
    alpha, C, m = 0.5, 4, 50
    y = labels_of(C, 60_000)
    parts = dirichlet_per_client(y, 1000, alpha, rng(2), per_client=m)
    shares = counts(y, parts, C) / m
    var_q = (1 / C) * (1 - 1 / C) / (alpha * C + 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(C, 1 / C), abs=4 * (var_q / 1000) ** 0.5)
    assert shares.var() == pytest.approx(var_q + (1 / C - 1 / C**2 - var_q) / m, rel=0.08)


def test_a_prior_belongs_to_a_client_and_not_to_a_class():
    """With a large α all clients are alike; with a tiny one each draws one class, as long as that lasts."""
    y = labels_of(4, 400)
    even = counts(y, dirichlet_per_client(y, 8, 1e9, rng(), per_client=100), 4)
    assert abs(even - 25).max() < 4.5 * (100 * 0.25 * 0.75) ** 0.5
    single = counts(y, dirichlet_per_client(y, 8, 1e-6, rng(), per_client=20), 4)
    assert (single.max(axis=1) == 20).all()
    assert len(set(single.argmax(axis=1))) > 1


def test_a_class_that_has_run_out_is_skipped():
    """Both clients want class 0 or 1 alone, and must take what there is."""
    y = np.repeat([0, 1], [4, 16])
    parts = dirichlet_per_client(y, 2, 1e-320, rng())
    assert sorted(np.concatenate(parts).tolist()) == list(range(20))


def test_four_classes_hold_about_four_fifths_of_a_clients_images():
    """FedCR, A.1.1, of α = 0.5 and 10 classes: "about 80% samples which belong to mostly four different classes"."""
    y = labels_of(10, 1000)
    found = counts(y, dirichlet_per_client(y, 100, 0.5, rng()), 10) / 100
    assert np.sort(found, axis=1)[:, -4:].sum(axis=1).mean() == pytest.approx(0.83, abs=0.03)


@given(st.integers(2, 60), st.floats(0.1, 0.9), st.integers(1, 5), st.booleans(), seeds)
def test_a_split_keeps_every_sample_of_a_client_on_one_side(n, fraction, n_classes, stratified, seed):
    y = rng(seed).integers(0, n_classes, 2 * n)
    parts = [np.arange(n), np.arange(n, 2 * n)]
    n_test = round(fraction * n)
    if not 0 < n_test < n:
        return
    train, test = split_each(y, parts, fraction, rng(seed), stratified=stratified)
    for part, a, b in zip(parts, train, test):
        assert len(b) == n_test
        assert sorted([*a, *b]) == part.tolist()
        assert (a == np.sort(a)).all()
        assert (b == np.sort(b)).all()
        if stratified:
            every, held = (np.bincount(y[i], minlength=n_classes) for i in (part, b))
            assert abs(held - every * n_test / n).max() < 1


def test_a_stratified_split_is_exact_where_it_can_be_and_the_other_is_not():
    y, parts = labels_of(5, 140), [np.arange(700)]
    for seed in range(5):
        train, test = split_each(y, parts, 0.3, rng(seed))
        assert counts(y, [*train, *test], 5).tolist() == [[98] * 5, [42] * 5]
    mixed = np.array([counts(y, split_each(y, parts, 0.3, rng(s), stratified=False)[1], 5)[0] for s in range(300)])
    assert (mixed.sum(axis=1) == 210).all()
    # hypergeometric: 210 of 700, of which 140 are of the class
    assert mixed.var() == pytest.approx(210 * 0.2 * 0.8 * 490 / 699, rel=0.15)


# --- subsampling --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 60), min_size=1, max_size=10), st.sampled_from(["text", "code"]), seeds)
def test_subsample_keeps_some_of_each_clients_own(sizes, variant, seed):
    starts = np.cumsum([0, *sizes])
    parts = [np.arange(a, b) for a, b in pairwise(starts)]
    kept = thinned(parts, rng(seed), variant=variant)
    for part, few in zip(parts, kept):
        assert 1 <= len(few) <= len(part)
        assert set(few) <= set(part)
    if variant == "text":
        assert used_once(kept)


def test_subsample_text_keeps_five_to_a_hundred_per_cent_uniformly():
    kept = np.array([len(p) for p in thinned([np.arange(1000)] * 2000, rng())]) / 1000
    assert 0.05 <= kept.min() < 0.06
    assert 0.99 < kept.max() <= 1
    assert np.histogram(kept, bins=5, range=(0.05, 1))[0] == pytest.approx(np.full(5, 400), rel=0.15)


def test_subsample_code_mixes_two_ranges_and_repeats_samples():
    kept = thinned([np.arange(1000)] * 4000, rng(), variant="code")
    share_kept = np.array([len(p) for p in kept]) / 1000
    # ½ of clients in 15…35 %, and of the other half 20 % as well
    assert np.mean((share_kept > 0.15) & (share_kept <= 0.35)) == pytest.approx(0.6, abs=0.03)
    assert np.mean(share_kept == 1) == pytest.approx(0.025, abs=0.01)  # min(U + 5, 100)
    assert not used_once([max(kept, key=len)])


def test_subsample_code_has_the_distribution_of_the_published_rule():
    """½ of min(U + 5, 100) with U uniform on 0 … 100, and ½ of the uniform one on 15 … 35."""
    kept = thinned([np.arange(1000)] * 20_000, rng(), variant="code")
    percentages = np.array([len(p) for p in kept]) / 10
    assert 5 <= percentages.min() < 5.2
    assert np.mean(percentages == 100) == pytest.approx(0.025, abs=0.003)
    some = percentages[percentages < 100]
    at = np.arange(6, 100, 0.5)
    cumulated = np.searchsorted(np.sort(some), at) / len(percentages)
    expected = 0.5 * (at - 5) / 100 + 0.5 * np.clip((at - 15) / 20, 0, 1)
    assert np.abs(cumulated - expected).max() < 0.012  # 1 in 150 for random numbers; an end off by 1 % makes 0.025


# --- the rest -----------------------------------------------------------------------------------------------------


def test_same_generator_state_same_parts():
    y = labels_of(5, 40)
    table = assign_classes(10, 5, 2, rng())
    deals = [
        lambda g: classes_per_client(y, 7, 2, g),
        lambda g: dirichlet(y, 7, 0.3, g),
        lambda g: share_evenly(y, table, g),
        lambda g: dirichlet_per_client(y, 10, 0.3, g),
        lambda g: split_each(y, np.arange(200).reshape(10, 20), 0.3, g)[1],
    ]
    for deal in deals:
        a, b, c = deal(rng(3)), deal(rng(3)), deal(rng(4))
        assert all((p == q).all() for p, q in zip(a, b))
        assert any(len(p) != len(q) or (p != q).any() for p, q in zip(a, c))


# --- a partition --------------------------------------------------------------------------------------------------

Y, Z = labels_of(5, 40), labels_of(5, 20)


def streams(purpose):
    """A generator of its own for each purpose."""
    return np.random.default_rng([ord(letter) for letter in purpose])


def by_hand(partition):
    """What the functions that a partition is made of deal, train and test apart."""
    n, k, alpha, code = (
        partition.n_clients,
        partition.classes_per_client,
        partition.alpha,
        partition.variant == "code",
    )
    table = assign_classes(n, 5, k, streams("classes"), allow_repeats=code) if k else None
    return {
        "classes": lambda: (
            (published_shards(Y, table, streams("train")), published_shards(Z, table, streams("test")))
            if code
            else (share(Y, table, streams("train")), share(Z, table, streams("test"), at_least=0))
        ),
        "dirichlet": lambda: alike(dirichlet(Y, n, alpha, streams("train"), partition.min_size)),
        "non-iid_1": lambda: alike(share_evenly(Y, consecutive_classes(n, 5, k) if code else table, streams("share"))),
        "non-iid_2": lambda: alike(dirichlet_per_client(Y, n, alpha, streams("dirichlet"))),
    }[partition.scheme]()


def alike(train):
    return train, share_alike(Y, train, Z, streams("test"))


def same(one, other):
    return all(
        len(a) == len(b) and all(np.array_equal(p, q) for p, q in zip(a, b)) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(
    "partition",
    [
        Partition(10, classes_per_client=2),
        Partition(10, classes_per_client=3, variant="code"),
        Partition(10, alpha=0.3, min_size=4),
        Partition(10, "non-iid_1", classes_per_client=2),
        Partition(10, "non-iid_1", classes_per_client=2, variant="code"),
        Partition(10, "non-iid_2", alpha=0.3),
    ],
)
def test_a_partition_deals_as_its_functions_do(partition):
    assert same(partition.deal(Y, streams, Z), by_hand(partition))


@pytest.mark.parametrize(
    ("partition", "purpose", "stratified"),
    [
        (Partition(10, "non-iid_1", classes_per_client=2), "share", True),
        (Partition(10, "non-iid_1", classes_per_client=2, variant="code", test_fraction=0.5), "share", False),
        (Partition(10, "non-iid_2", alpha=0.3, test_fraction=0.25), "dirichlet", False),
        (Partition(5, alpha=5.0, min_size=10), "train", True),
    ],
)
def test_samples_without_a_test_set_are_cut_for_each_client(partition, purpose, stratified):
    whole = by_hand(partition)[0]
    fraction = 0.3 if partition.test_fraction is None else partition.test_fraction
    dealt = partition.deal(Y, streams)
    assert same(dealt, split_each(Y, whole, fraction, streams("split"), stratified=stratified))
    assert same([[np.sort(np.concatenate(both)) for both in zip(*dealt)]], [whole])


def test_equal_shares_of_everything():
    train, test = Partition(8).deal(Y, rng(), Z)
    assert used_once(train)
    assert used_once(test)
    assert [len(p) for p in train] == [25] * 8
    few, _ = Partition(8, per_client=20).deal(Y, rng())
    assert [len(p) for p in few] == [14] * 8, "30 % are for testing"
    assert used_once(few)


def test_one_generator_will_do():
    a, b, c = (Partition(5, alpha=0.5, min_size=5).deal(Y, rng(seed)) for seed in (0, 0, 1))
    assert same(a, b)
    assert not same(a, c)


@pytest.mark.parametrize(
    ("fields", "scheme"),
    [
        ({}, "iid"),
        ({"classes_per_client": 2}, "classes"),
        ({"alpha": 0.1}, "dirichlet"),
        ({"alpha": 0.1, "classes_per_client": 2}, "dirichlet"),
        ({"alpha": 0.1, "split": "iid"}, "iid"),
    ],
)
def test_the_split_follows_from_what_is_given(fields, scheme):
    assert Partition(**fields).scheme == scheme


def test_a_record_tells_what_was_used():
    told = Partition(20, "non-iid_2", classes_per_client=5, alpha=0.2).settings("classes_per_client", "variant")
    assert told == {"n_clients": 20, "classes_per_client": None, "variant": None, "split": "non-iid_2", "alpha": 0.2}
    assert Partition(20, alpha=0.2, min_size=3).settings() == {"n_clients": 20, "alpha": 0.2, "min_size": 3}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_clients": 0}, "n_clients must be at least 1, got 0"),
        ({"split": "even"}, r"split must be one of \('iid', .* got 'even'"),
        ({"split": "classes"}, "classes_per_client must be given for split='classes', got None"),
        ({"split": "non-iid_2"}, "alpha must be given for split='non-iid_2', got None"),
        ({"alpha": -1.0}, "alpha must be positive"),
        ({"classes_per_client": 0}, "classes_per_client must be at least 1, got 0"),
        ({"variant": "paper"}, "variant must be .*'paper'"),
        ({"min_size": -1}, "min_size must be at least 0, got -1"),
        ({"test_fraction": 1.0}, r"test_fraction must be in \(0, 1\), got 1.0"),
    ],
)
def test_what_is_no_partition_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Partition(**fields)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition(300), "n_clients must be at most 200, the number of samples, got 300"),
        (Partition(5, classes_per_client=6), "classes_per_client must be at most the number of classes, 5, got 6"),
        (Partition(101, classes_per_client=2), "n_clients must be at most 100, .* got 101"),
        (Partition(7, "non-iid_1", classes_per_client=2), "n_clients × classes_per_client must be a multiple of 5"),
        (Partition(10, per_client=30), "per_client must be at most 20 for n_clients=10, as there are 200 .* got 30"),
        (Partition(10, alpha=0.3, per_client=9), "per_client must be None for split='dirichlet', got 9"),
        (Partition(10, min_size=9), "min_size must be 1 for split='iid', got 9"),
        (Partition(10, test_fraction=0.2), "test_fraction must be None for data with a test set, got 0.2"),
    ],
)
def test_what_cannot_be_dealt_is_refused_at_once(partition, message):
    with pytest.raises(ValueError, match=message):
        partition.deal(Y, None, Z)


def test_no_generator_and_no_field():
    with pytest.raises(
        TypeError, match=r"rng must be a Generator, such as numpy.random.default_rng\(0\), got .* of type int"
    ):
        Partition(5).deal(Y, 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'clients'; expected a field of Partition: n_cl"):
        gathered(Partition(), {"clients": 5}, Partition)
    with pytest.raises(
        TypeError, match="partition must be a Partition, got 20: give its fields by name, such as n_clients=20"
    ):
        gathered(20, {}, Partition)
