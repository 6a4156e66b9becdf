import itertools
import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import ragged

from hetfl_core import Client, Federation, clients, simulate
from hetfl_core.datasets.recordings import TABLE_S1
from hetfl_core.engine import stacks as stacking
from hetfl_core.engine.stacks import bucket, make_cohorts, stack_split
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import Local
from hetfl_core.padding import crop, pad, pad_stack


def client(x=((0.0, 1.0), (2.0, 3.0)), y=(0, 1), x_test=((0.0, 0.0),), y_test=(1,), name="anna"):
    return Client(np.asarray(x, float), y, np.asarray(x_test, float), y_test, name)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"x": np.zeros((0, 2)), "y": ()}, r"client 'anna': x_train must hold at least one sample, got an empty"),
        ({"y": (0, 1, 1)}, r"client 'anna': x_train and y_train must have the same length, got 2 and 3"),
        ({"y_test": (1, 1)}, r"client 'anna': x_test and y_test must have the same length, got 1 and 2"),
        ({"x": ((0, np.nan), (np.inf, 3))}, r"client 'anna': x_train must be finite, got 2 values"),
        ({"x_test": ((np.nan, 0),)}, r"client 'anna': x_test must be finite, got 1 values"),
        ({"y": (0, 2)}, r"client 'anna': y_train must lie in 0…1, got labels from 0 to 2"),
        ({"y": (-1, 1)}, r"client 'anna': y_train must lie in 0…1, got labels from -1 to 1"),
        (
            {"x_test": ((0.0, 0.0, 0.0),)},
            r"client 'anna': x_test must have the sample shape of x_train, expected 2, got 3",
        ),
        ({"x": (0.0, 1.0)}, r"client 'anna': x_train must have shape \(n, ...\) with at least 2 axes, got \(2,\)"),
        ({"y": ((0, 1),)}, r"client 'anna': y_train must have shape \(n,\), got \(1, 2\)"),
        ({"name": ""}, r"client names must be non-empty strings"),
        ({"name": "<server>"}, r"client names must be non-empty strings"),
    ],
)
def test_bad_client_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        Federation([client(**bad)], n_classes=2)


def test_labels_must_be_whole_numbers():
    message = "client 'anna': y_train must hold whole numbers, got dtype torch.float64; .* needs task=\"regression\""
    with pytest.raises(TypeError, match=message):
        Federation([client(y=(0.5, 1.0))])
    assert Federation([client(y=(0.0, 1.0))])[0].y_train.dtype == torch.int64


def test_labels_that_are_nan_are_told_so():
    with pytest.raises(TypeError, match="client 'anna': y_train must hold whole numbers, got 2 values that are NaN or"):
        Federation([client(y=(np.nan, np.inf))])


@pytest.mark.parametrize("bad", [{"y": ("cat", "dog")}, {"y_test": (None,)}])
def test_labels_that_are_no_numbers_name_the_client(bad):
    with pytest.raises(TypeError, match=r"client 'anna': y_t.* must hold numbers .* of type (str|NoneType); encode"):
        client(**bad)
    with pytest.raises(TypeError, match=r"client 'anna': x_train must hold numbers .* of type float, str"):
        Client(np.array([[1.0, "x"]], dtype=object), [0], [[0.0, 0.0]], [0], "anna")


def test_samples_of_different_lengths_name_the_client():
    with pytest.raises(ValueError, match="client 'anna': x_test must be an array in which all samples have one shape"):
        Client([[1.0, 2.0]], [0], [[1.0, 2.0], [3.0]], [0, 1], "anna")


def field(array):
    """The same numbers as a field of records, which are not a multiple of a number wide."""
    records = np.zeros(len(array), [("flag", "i1"), ("numbers", array.dtype, array.shape[1:])])
    records["numbers"] = array
    return records["numbers"]


@pytest.mark.parametrize("change", [lambda a: a[::-1], lambda a: a.astype(a.dtype.newbyteorder(">")), field])
def test_arrays_of_any_stride_and_byte_order_are_taken(change):
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 2])
    plain = Client(change(x).tolist(), change(y).tolist(), x, y, "anna")
    got = Client(change(x), change(y), x, y, "anna")
    assert Federation([got]).fingerprint() == Federation([plain]).fingerprint()
    with pytest.raises(ValueError, match=r"y_train must have shape \(n,\), got \(\)"):
        Client(x, change(y)[0], x, y, "anna")


def test_numbers_beyond_the_range_of_a_type_name_the_client():
    fed = Federation([client(x=((1e300, 0), (-1e301, 1)))])
    message = r"client 'anna': x_train must lie in the range of torch.float32, ±3.4e\+38, got values up to 1e\+301"
    with pytest.raises(ValueError, match=message):
        fed.to(torch.float32)
    with pytest.raises(ValueError, match=r"client 'anna': y_test must lie in the range of torch.float32"):
        regression(client(y_test=(1e300,))).to(torch.float32)


@pytest.mark.parametrize("n_classes", [2.7, np.nan])
def test_number_of_classes_is_whole(n_classes):
    with pytest.raises(ValueError, match=f"n_classes must be a whole number, got {n_classes}"):
        Federation([client()], n_classes=n_classes)
    assert Federation([client()], n_classes=np.int64(2)).n_classes == 2


def test_inputs_must_be_real_numbers():
    with pytest.raises(TypeError, match="client 'a': x_train must hold real numbers, got dtype complex128: make two"):
        Client(1j * np.ones((2, 3)), [0, 1], np.ones((1, 3)), [0], "a")
    truths = Client(np.ones((2, 3), bool), [0, 1], np.ones((1, 3)), [0], "a")
    assert torch.equal(truths.x_train, torch.ones(2, 3))


def test_labels_must_be_real():
    with pytest.raises(TypeError, match="client 'anna': y_train must hold real numbers, got dtype"):
        client(y=(1j, 1.0))


# --- regression -----------------------------------------------------------------------------------------------------


def regression(*clients):
    return Federation(clients or [client(y=(0.5, 1.0), y_test=(0,))], task="regression", name="real")


def test_a_regression_has_real_targets_and_no_classes():
    fed = regression()
    (spec,) = fed.specs()
    assert (fed.n_classes, spec.n_classes, spec.class_counts, spec.classes) == (0, 0, (), ())
    assert (spec.task, spec.outputs) == ("regression", 1)
    assert fed[0].y_train.tolist() == [0.5, 1.0]
    assert fed[0].y_test.dtype == torch.float32, "whole numbers become targets"
    assert "real targets" in repr(fed)
    table = fed.describe()
    assert list(table) == ["client", "shape", "n_train", "n_test", "y_mean", "y_sd"]
    assert table[["y_mean", "y_sd"]].to_numpy().tolist() == [[0.75, 0.25]]
    assert Federation([client()], n_classes=7).specs()[0].outputs == 7


def test_no_class_is_checked_in_a_regression():
    """A test target that training lacks, negative or large, is no warning and no error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regression(client(y=(-3.0, 1e6), y_test=(7.5,)))


def test_copies_of_a_regression_are_regressions():
    fed = regression(client(y=(0.5, 1.0), y_test=(0.25,)), client(name="ben", y=(0.5, 2.0)))
    few = fed.subset(["ben"])
    assert (few.task, few.name, len(few), few.n_classes) == ("regression", "real", 1, 0)
    single = fed.to(torch.float32)
    assert single.task == "regression"
    assert {t.dtype for c in single for t in (c.x_train, c.y_train, c.x_test, c.y_test)} == {torch.float32}
    assert single.to(torch.float32) is single
    assert fed.to(torch.float64)[0].y_test.dtype == torch.float64


def test_casting_leaves_class_labels_alone():
    fed = Federation([client()], 2).to(torch.float32)
    assert (fed[0].x_train.dtype, fed[0].y_train.dtype) == (torch.float32, torch.int64)


def test_a_fingerprint_is_128_bits_in_hexadecimal():
    """As records hold it; another length would make all recorded data look different."""
    assert re.fullmatch("[0-9a-f]{32}", Federation([client()]).fingerprint())


def test_fingerprint_tells_targets_apart_and_from_labels():
    marks = {
        Federation([client()]).fingerprint(),
        regression(client()).fingerprint(),
        regression(client(y=(0, 1.5))).fingerprint(),
        regression(client(y=(0, 1.5), y_test=(1.5,))).fingerprint(),
    }
    assert len(marks) == 4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"y": (0.5, np.nan)}, "client 'anna': y_train must be finite, got 1 values that are NaN or infinite"),
        ({"y_test": (np.inf,)}, "client 'anna': y_test must be finite, got 1 values"),
        ({"y": (0.5,)}, "client 'anna': x_train and y_train must have the same length, got 2 and 1"),
        ({"x": np.zeros((0, 2)), "y": ()}, "client 'anna': x_train must hold at least one sample"),
        ({"y": ((0.5, 1.0),)}, r"client 'anna': y_train must have shape \(n,\), got \(1, 2\)"),
    ],
)
def test_bad_client_of_a_regression_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        regression(client(**{"y": (0.5, 1.0)} | bad))


def test_tasks_are_two():
    with pytest.raises(ValueError, match="task must be one of 'classification', 'regression', got 'ranking'"):
        Federation([client()], task="ranking")
    with pytest.raises(ValueError, match="n_classes must be 0 or None for a regression, got 3"):
        Federation([client()], 3, task="regression")


def test_no_client_and_equal_names():
    with pytest.raises(ValueError, match="at least one client, got none"):
        Federation([])
    with pytest.raises(ValueError, match="must be unique, got 'anna' twice"):
        Federation([client(), client()])


def test_names_that_nobody_gave_are_numbered_and_told():
    made = [client(x=((0.0, 1.0), (2.0, k)), name=clients.MadeName("Own-1")) for k in (3.0, 4.0)]
    with pytest.warns(
        FederationWarning, match=r"2 clients were all called 'Own-1'.* now 'Own-1 \(1\)' and 'Own-1 \(2\)'"
    ):
        fed = Federation([made[0], client(), made[1]])
    assert [c.name for c in fed] == ["Own-1 (1)", "anna", "Own-1 (2)"]
    assert [float(c.x_train[1, 1]) for c in (fed["Own-1 (1)"], fed["Own-1 (2)"])] == [3, 4], "in the order given"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Federation([*fed]).fingerprint() == fed.fingerprint(), "their names are their own now"
        assert Federation([made[0], client()])[0].name == "Own-1"
    for again in ([made[0], made[0]], [*made, client(x=((0.0, 1.0), (2.0, 3.0)), name="Own-1")]):
        with pytest.raises(ValueError, match="must be unique, got 'Own-1' twice"):
            Federation(again)


def test_class_that_training_lacks_is_a_warning():
    with pytest.warns(FederationWarning, match=r"client 'anna': the test set holds classes \[1\]"):
        Federation([client(y=(0, 0))], n_classes=2)


def test_many_such_clients_are_one_warning():
    clients = [client(name=name, y=(0, 0)) for name in ("anna", "berta", "carla")] + [client(name="dora")]
    with pytest.warns(FederationWarning) as caught:
        Federation(clients, n_classes=2)
    (said,) = caught
    assert str(said.message) == (
        "client 'anna': the test set holds classes [1] that the training set lacks; "
        "2 other clients also have such classes"
    )
    assert said.filename == __file__, "it points at the line that made the federation"


def test_number_of_classes_is_one_more_than_the_largest_label():
    assert Federation([client()]).n_classes == 2
    assert Federation([client()], n_classes=7).specs()[0].class_counts == (1, 1, 0, 0, 0, 0, 0)


def test_describe_has_a_row_a_client():
    table = Federation(
        [client(), client(name="ben", x=np.zeros((3, 4)), y=(1, 1, 1), x_test=np.zeros((1, 4)))]
    ).describe()
    assert table["client"].tolist() == ["anna", "ben"]
    assert table["shape"].tolist() == ["2", "4"]
    assert table["n_train"].tolist() == [2, 3]
    assert table["classes"].tolist() == ["0 1", "1"]
    assert table["rarest_class_n"].tolist() == [1, 3]


def test_named_blocks_are_checked_and_padded_block_by_block():
    blocks = {"image": np.zeros((2, 3)), "text": np.zeros((2, 0))}
    fed = Federation([Client(blocks, (0, 1), {k: v[:1] for k, v in blocks.items()}, (0,), "anna")])
    assert fed[0].shapes == {"image": (3,), "text": (0,)}
    with pytest.raises(ValueError, match="x_train and y_train must have the same length, got 3 and 2"):
        Federation([Client({**blocks, "text": np.zeros((3, 0))}, (0, 1), blocks, (0, 1), "anna")])


def test_clients_must_declare_the_same_blocks():
    def holding(blocks, name):
        return Client({b: np.zeros((2, 1)) for b in blocks}, (0, 1), {b: np.zeros((1, 1)) for b in blocks}, (0,), name)

    message = r"client 'y': x_train must have the blocks \['a', 'b'\] of client 'x', got \['a'\]"
    with pytest.raises(ValueError, match=message):
        Federation([holding("ab", "x"), holding("a", "y")])


def test_fingerprint_sees_the_names_of_blocks():
    marks = set()
    for names in ("ab", "ba"):
        x = {name: np.full((2, 1), float(i)) for i, name in enumerate(names)}
        marks.add(Federation([Client(x, (0, 1), {n: v[:1] for n, v in x.items()}, (0,), "x")]).fingerprint())
    assert len(marks) == 2


def test_fingerprint_sees_every_number_and_no_order():
    fed = ragged()
    mark = fed.fingerprint()
    assert Federation(fed.clients[::-1], fed.n_classes).fingerprint() == mark
    fed.clients[2].x_test[0, 0] += 1e-3
    assert fed.fingerprint() != mark


def test_pad_and_crop_are_inverse_and_pad_with_zeros():
    x = torch.arange(6.0).reshape(2, 3)
    padded = pad(x, (4, 5))
    assert torch.equal(crop(padded, (2, 3)), x)
    assert padded.sum() == x.sum()
    with pytest.raises(ValueError, match=r"cannot pad a tensor of shape \(2, 3\) to \(1, 3\)"):
        pad(x, (1, 3))
    assert pad_stack([x, x[:1, :2]]).shape == (2, 2, 3)


def test_stacked_samples_end_in_a_padding_row_of_zeros():
    one, two = torch.full((2, 3), 1.0), torch.full((4, 1), 2.0)
    split = stack_split([one, two], [torch.tensor([1, 1]), torch.tensor([2, 2, 2, 2])])
    assert split.x.shape == (7, 3), "widths are padded, numbers of samples are not"
    assert split.x.sum() == one.sum() + two.sum()
    assert split.x[-1].sum() == split.y[-1] == 0
    assert split.y.tolist() == [1, 1, 2, 2, 2, 2, 0]
    assert (split.n.tolist(), split.begins.tolist(), split.padding_row) == ([2, 4], [0, 2], 6)
    x, y = split.client(1, (1,))
    assert torch.equal(x, two)
    assert y.tolist() == [2, 2, 2, 2]


def test_some_clients_of_a_stack_in_another_order():
    xs = [torch.full((n, width), float(n)) for n, width in ((2, 3), (4, 1), (3, 2))]
    split = stack_split(xs, [torch.full((len(x),), len(x)) for x in xs])
    some = split.take([2, 1], [(2,), (1,)])
    assert some.x.shape == (3 + 4 + 1, 2), "no wider than these need"
    assert some.y.tolist() == [3, 3, 3, 4, 4, 4, 4, 0]
    assert [torch.equal(some.client(i, (w,))[0], xs[c]) for i, (c, w) in enumerate(((2, 2), (1, 1)))] == [True, True]
    assert some.x[-1].sum() == 0


def test_rectangle_pads_with_rows_of_zeros():
    xs = [torch.ones(2, 3), torch.ones(0, 3), torch.ones(4, 3)]
    rectangle = stack_split(xs, [torch.ones(len(x), dtype=torch.int64) for x in xs]).rectangle()
    assert rectangle.shape == (3, 4, 3)
    assert rectangle.sum((1, 2)).tolist() == [6, 0, 12]
    assert rectangle[0, 2:].abs().sum() == 0
    nobody = stack_split([torch.ones(0, 3)], [torch.ones(0, dtype=torch.int64)])
    assert nobody.rectangle().shape == (1, 1, 3)


def test_clients_of_one_cohort_need_inputs_of_equal_rank():
    fed = Federation([client(), Client(np.zeros((1, 2, 2)), (0,), np.zeros((1, 2, 2)), (0,), "ben")])
    with pytest.raises(ValueError, match="zip"):
        make_cohorts(fed, ["one", "one"])


@pytest.mark.parametrize("stack", [0.5, 50, 10_000])
def test_bucket_finds_the_cheapest_split(stack, monkeypatch):
    """Against all splits of the sorted widths into runs."""
    monkeypatch.setattr(stacking, "STACK", stack)
    widths = [6, 6, 120, 136, 136, 253, 1830, 1830]
    order = sorted(set(widths))

    def cost(cuts):
        edges = [0, *cuts, len(order)]
        runs = [order[a:b] for a, b in itertools.pairwise(edges)]
        return sum(stack + max(run) * sum(w in run for w in widths) for run in runs)

    def subsets(items):
        return [[]] if not items else [s + t for s in subsets(items[:-1]) for t in ([], [items[-1]])]

    best = min(cost(cuts) for cuts in subsets(list(range(1, len(order)))))
    stacks = stacks_of([(w,) for w in widths], [10] * len(widths))
    assert sum(stack + len(s) * max(w for (w,), _ in s) for s in stacks) == best


def stacks_of(widths, samples, **options):
    """Width and samples of the clients of each stack."""
    stacks = {}
    for place, w, n in zip(bucket(widths, samples, **options), widths, samples, strict=True):
        stacks.setdefault(place, []).append((w, n))
    assert sorted(stacks) == list(range(len(stacks)))
    return [sorted(stacks[place]) for place in sorted(stacks)]


def padded(stack):
    """Features of one client of a stack, block by block."""
    return sum(map(max, zip(*(w for w, _ in stack), strict=True)))


CLIENTS = st.lists(st.tuples(st.tuples(st.integers(1, 3000)), st.integers(1, 700)), min_size=1, max_size=40)
BLOCKS = st.lists(
    st.tuples(st.tuples(*[st.integers(0, 300)] * 3), st.integers(1, 700)), min_size=1, max_size=20
).filter(lambda clients: any(map(sum, next(zip(*clients, strict=True)))))


@given(st.one_of(CLIENTS, BLOCKS), st.sampled_from([1.0, 1.3, 2.0]))
def test_padding_at_most_doubles_the_memory(clients, most):
    """Samples and parameters, for single inputs and for named blocks."""
    stacks = stacks_of(*zip(*clients, strict=True), most=most, small=0)
    held = sum(padded(stack) * (n + stacking.COLUMN) for stack in stacks for _, n in stack)
    assert held <= most * sum(sum(w) * (n + stacking.COLUMN) for w, n in clients)


@given(CLIENTS)
def test_split_is_as_cheap_as_that_by_powers_of_two(clients):
    """So padding at most doubles the columns, but for what at most log₂(max/min) + 1 stacks cost."""
    widths, samples = zip(*clients, strict=True)
    true, most = sum(w for (w,) in widths), 1 + math.log2(max(widths)[0] / min(widths)[0])
    stacks = stacks_of(widths, samples, small=10**12)
    columns = sum(len(stack) * padded(stack) for stack in stacks)
    assert stacking.STACK * len(stacks) + columns <= stacking.STACK * most + 2 * true
    runs = [(min(stack)[0], max(stack)[0]) for stack in stacks]
    assert all(below[1] < above[0] for below, above in itertools.pairwise(runs)), "stacks are runs of widths"


@given(CLIENTS, st.randoms(use_true_random=False))
def test_stacks_do_not_depend_on_the_order_of_clients(clients, random):
    turned = random.sample(clients, len(clients))
    before, after = (stacks_of(*zip(*some, strict=True), small=0) for some in (clients, turned))
    assert before == after


def test_clients_of_equal_widths_share_a_stack():
    assert bucket([(1830,)] * 2000, [30, 600] * 1000, small=0) == [0] * 2000


def test_widths_of_the_eeg_subjects_make_two_stacks():
    """The narrow 44 together: a stack for each of their widths would cost more than their padding."""
    subjects = [r for r in TABLE_S1.values() for _ in range(r.n_subjects)]
    stacks = stacks_of([(r.n_features,) for r in subjects], [r.n_trials * len(r.classes) for r in subjects])
    assert [(len(stack), min(stack)[0], max(stack)[0]) for stack in stacks] == [
        (44, (6,), (253,)),
        (10, (1830,), (1830,)),
    ]


# --- from a table, or from arrays -------------------------------------------------------------------------------------


def frame(**changes):
    """Two sites with ten rows each; the second has no temperature."""
    n = 10
    columns = {
        "site": ["b"] * n + ["a"] * n,
        "age": np.arange(2.0 * n),
        "temperature": [37.0] * n + [math.nan] * n,
        "ill": (["no"] * 5 + ["yes"] * 5) * 2,
    }
    return pd.DataFrame(columns | changes)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_split_keeps_samples_in_the_order_in_which_they_came(task):
    """Batches are drawn by place: in another order a run has other bits."""
    x = np.arange(40.0)[:, None]
    y = np.arange(40) % 2 if task == "classification" else np.arange(40.0)
    one, other = Federation.from_arrays({"a": (x, y), "b": (x, y)}, test_size=0.3, task=task)
    for client in (one, other):
        train, test = (rows[:, 0].tolist() for rows in (client.x_train, client.x_test))
        assert (train, test) == (sorted(train), sorted(test))
        assert sorted(train + test) == x[:, 0].tolist()
        assert len(test) == 12
        assert client.y_train.tolist() == ([v % 2 for v in train] if task == "classification" else train)
    assert one.x_test.tolist() != other.x_test.tolist(), "each client has a stream of its own"


def from_frame(table=None, **options):
    return Federation.from_frame(frame() if table is None else table, **{"client": "site", "target": "ill"} | options)


def test_a_table_becomes_a_federation_with_each_sites_own_features():
    fed = from_frame(seed=3)
    assert [(c.name, c.shapes) for c in fed] == [("b", (2,)), ("a", (1,))]
    assert fed.info["features"] == {"b": ["age", "temperature"], "a": ["age"]}
    assert fed.info["classes"] == ["no", "yes"]
    assert fed.info["settings"] == {"test_size": 0.2, "seed": 3}
    for client, ages in zip(fed, (range(10), range(10, 20)), strict=True):
        everything = sorted([*client.x_train[:, 0].tolist(), *client.x_test[:, 0].tolist()])
        assert everything == list(map(float, ages)), "each row once"
        assert client.y_test.bincount().tolist() == [1, 1], "stratified"
        for x, y in ((client.x_train, client.y_train), (client.x_test, client.y_test)):
            np.testing.assert_array_equal(y.numpy(), (x[:, 0].numpy() % 10 >= 5).astype(int))


def test_a_sites_split_depends_on_nobody_else_and_on_the_seed():
    both, one = from_frame(), from_frame(frame()[:10])
    assert both["b"].x_test.tolist() == one["b"].x_test.tolist()
    assert from_frame(seed=1).fingerprint() != both.fingerprint() == from_frame().fingerprint()


def test_a_regression_and_no_test_set():
    targets = np.linspace(0, 1, 20)
    fed = from_frame(frame(ill=targets), task="regression", test_size=0)
    assert (fed.task, fed.n_classes, [c.n_test for c in fed]) == ("regression", 0, [0, 0])
    assert fed["b"].y_train.tolist() == targets[:10].tolist()
    assert "classes" not in fed.info


def test_labels_are_counted_over_all_clients():
    x = np.zeros((4, 2))
    fed = Federation.from_arrays({"a": (x, [7, 7, 3, 3]), "b": (x, [9, 9, 7, 7])}, test_size=0)
    assert (fed.n_classes, fed.info["classes"]) == (3, [3, 7, 9])
    assert [c.y_train.tolist() for c in fed] == [[1, 1, 0, 0], [2, 2, 1, 1]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_frame([[1]]), r"frame must be a DataFrame, got \[\[1\]\] of type list"),
        (lambda: from_frame(client="where"), r"client must be one of the columns \['site', .* got 'where'"),
        (lambda: from_frame(target="y"), "target must be one of the columns .* got 'y'"),
        (lambda: from_frame(target="site"), "client and target must be two columns, got 'site' for both"),
        (lambda: from_frame(frame(site=[None] * 20)), "column 'site' must say whose every row is, got 20 rows"),
        (lambda: from_frame(frame(site=[1] * 10 + ["1"] * 10)), "one name per client, got names that read alike"),
        (
            lambda: from_frame(frame(age=["old"] * 20)),
            r"client 'b': column 'age' must hold numbers, got dtype .*prepare=Preparation\(\)",
        ),
        (lambda: from_frame(frame(age=[math.nan] + [1.0] * 19)), "client 'b': column 'age' lacks 1 of 10 values"),
        (lambda: from_frame(frame(age=[1.0] * 10 + [math.nan] * 10)), "client 'a': every feature is missing"),
        (lambda: from_frame(frame(ill=[None] + ["no"] * 19)), "client 'b': y must have no gaps, got 1 missing labels"),
        (
            lambda: from_frame(frame(ill=np.linspace(0, 1, 20))),
            "client 'b': labels must be whole .* task=\"regression\"",
        ),
        (
            lambda: from_frame(frame(ill=[1] * 10 + ["no"] * 10)),
            "labels must be of one type over all clients, got int .1 on 'b'., str .'no' on 'a'.",
        ),
        (lambda: from_frame(test_size=1.0), r"test_size must lie in \[0, 1\), got 1.0"),
        (lambda: from_frame(pd.concat([frame(), frame()["age"]], axis=1)), r"different names, got \['age'\] twice"),
        (lambda: Federation.from_arrays({}), "arrays must map at least one client's name"),
        (
            lambda: Federation.from_arrays({"a": np.eye(2)}),
            r"client 'a': arrays must have a pair \(x, y\), got ndarray",
        ),
        (lambda: Federation.from_arrays({"a": (np.eye(2), [1])}), r"client 'a': y must have shape \(2,\).* got \(1,\)"),
        (lambda: Federation.from_arrays({"a": ([1, 2], [0, 1])}), r"client 'a': x must have shape .* got \(2,\)"),
    ],
)
def test_tables_and_arrays_that_are_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_arrays_are_copied_once_however_they_lie_in_memory():
    """A field of a record of 12 bytes has strides that are no whole number of its items, which torch does not take."""
    x = np.arange(12.0).reshape(4, 3)
    records = np.zeros(4, dtype=[("number", "<f8"), ("mark", "<i4")])
    records["number"] = np.arange(4)
    for array in (x, x[:, ::2], np.broadcast_to(x[0], (4, 3)), x[::-1], x.T, x.astype(">f8"), records["number"]):
        tensor = clients._tensor(array, "x")
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert not np.shares_memory(tensor.numpy(), array)
    again = clients._tensor(tensor, "x")
    assert again.data_ptr() != tensor.data_ptr()


# --- a client's own -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [np.asarray, torch.as_tensor, lambda a: pd.DataFrame(a) if a.ndim == 2 else pd.Series(a)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_what_happens_to_the_callers_arrays_later_changes_nothing(kind, dtype):
    arrays = [np.ones((4, 2), dtype), np.array([0, 1, 0, 1], np.int64), np.ones((2, 2), dtype), np.array([0.0, 1.0])]
    given = [kind(array) for array in arrays]
    fed = Federation([Client(*given, "anna")], 2, x_test=given[2], y_test=given[3])
    before = fed.fingerprint()
    for array in given:
        (array.iloc if hasattr(array, "iloc") else array)[:] = 7
    for array in arrays:
        array[...] = 9
    assert fed.fingerprint() == before
    assert fed[0].x_train.unique().tolist() == [1.0]


def test_a_buffer_that_is_filled_again_is_three_clients():
    buffer, y = np.empty((4, 2), np.float32), [0, 1, 0, 1]
    clients = []
    for i in range(3):
        buffer[:] = i
        clients.append(Client({"b": buffer}, y, {"b": buffer[:2]}, y[:2], f"c{i}"))
    assert [float(c.x_train["b"].mean()) for c in Federation(clients)] == [0, 1, 2]
    assert [float(c.x_test["b"].mean()) for c in Federation(clients)] == [0, 1, 2]


def test_what_requires_gradients_is_detached_and_arrays_per_client_too():
    x = torch.ones(4, 2, requires_grad=True)
    made = Client(x, torch.tensor([0.5, 1, 2, 3], requires_grad=True), x * 2, [0, 1, 0, 1], "anna")
    assert not any(t.requires_grad for t in (made.x_train, made.y_train, made.x_test))
    fed = Federation.from_arrays({"anna": (x * 2, torch.tensor([0, 1, 0, 1]))}, test_size=0)
    assert fed[0].x_train.tolist() == [[2, 2]] * 4


def test_a_federation_does_not_copy_what_its_clients_own():
    """Nor do another type of labels, a choice of clients, or blocks; one array for training and test is one copy."""
    x, y = np.ones((4, 2), np.float32), np.array([0.0, 1, 0, 1])
    anna = Client(x, y, x, y, "anna")
    assert anna.x_test.data_ptr() == anna.x_train.data_ptr() != x.ctypes.data
    fed = Federation([anna])
    for copy in (fed, fed.subset(["anna"]), fed.to(torch.float32)):
        assert copy[0].x_train.data_ptr() == anna.x_train.data_ptr()


def test_labels_of_a_run_are_the_readers_to_change(monkeypatch):
    run = simulate(Federation([client()]), Local(), rounds=1, progress=False)
    run.labels("train")["anna"][:] = 7
    assert run.labels("train")["anna"].tolist() == [0, 1]


def test_clients_are_found_by_name_and_by_number():
    fed = Federation([client(), client(name="ben")])
    assert [fed[key].name for key in ("ben", 0, -1, np.int64(1))] == ["ben", "anna", "ben", "ben"]
    for number in (2, 99, -3):
        with pytest.raises(IndexError, match=f"no client number {number}; there are 2, the first has number 0"):
            fed[number]
    for key in (True, 1.0, "carl", None):
        with pytest.raises(KeyError, match=rf"no client {key!r}; there are \['anna', 'ben'\]"):
            fed[key]


# --- classes that are rarely meant ------------------------------------------------------------------------------------


def labelled(*labels, **options):
    x = np.zeros((len(labels[0]), 2))
    return Federation([Client(x, y, x, y, f"c{i}") for i, y in enumerate(labels)], **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: labelled([10, 20], [10, 20]), "the largest label is 20, .* 21 classes, .* 19 of them (0, 1, 2, …)"),
        (
            lambda: labelled([0, 2]),
            "the largest label is 2, so there are 3 classes, but nobody .* 1 of them (1): number",
        ),
        (lambda: labelled([0, 800_000]), "there are 800001 classes, but nobody has training samples of 799999 of them"),
        (lambda: labelled([0, 0]), "all training samples are of one class (0)"),
        (lambda: labelled([1, 1], [1, 1], n_classes=2), "all training samples are of one class (1)"),
        (
            lambda: Federation.from_arrays({"a": (np.zeros((9, 2)), ["no"] * 9)}),
            "all training samples are of one class",
        ),
    ],
)
def test_classes_that_cannot_be_meant_are_a_warning(make, message):
    with pytest.warns(FederationWarning, match=re.escape(message).replace(r"\.\*", ".*")) as caught:
        make()
    assert len(caught) == 1


@pytest.mark.parametrize("fewer", [lambda: labelled([1, 1], n_classes=3), lambda: labelled([0, 1], n_classes=9)])
def test_a_number_of_classes_that_is_said_is_meant(fewer):
    """As at a site of its own, which need not have samples of all classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fewer()


def test_ordered_categories_keep_their_order():
    kind = pd.CategoricalDtype(["mild", "grave", "fatal", "unseen"], ordered=True)
    ill = pd.Series((["fatal"] * 5 + ["mild"] * 5) * 2, dtype=kind)
    fed = from_frame(frame(ill=ill))
    assert fed.info["classes"] == ["mild", "fatal"]
    assert from_frame(frame(ill=ill.astype(str))).info["classes"] == ["fatal", "mild"]
    x = np.zeros((20, 2))
    other = ill.astype(kind.__class__(["fatal", "mild"], ordered=True))
    with pytest.raises(ValueError, match=r"one order on all clients, .* client 'a' has .* client 'b'"):
        Federation.from_arrays({"a": (x, ill), "b": (x, other)})


# --- classes with too few samples to be split -------------------------------------------------------------------------


def test_a_single_sample_of_a_class_stays_in_training_and_one_warning_names_all_clients():
    x = np.arange(11.0)[:, None]
    arrays = {
        "a": (x, ["no"] * 6 + ["yes"] * 4 + ["rare"]),
        "b": (x, ["no"] * 6 + ["yes"] * 5),
        "c": (x[:1], ["no"]),
        "d": (x[:6], ["no", "yes", "rare"] * 2),
    }
    with pytest.warns(
        FederationWarning, match="split in proportion with test_size=0.2 on 'a', 'c', 'd': there"
    ) as caught:
        fed = Federation.from_arrays(arrays)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert [(c.n_train, c.n_test) for c in fed] == [(9, 2), (8, 3), (1, 0), (4, 2)]
    assert fed["a"].y_test.tolist() == [0, 2], "the others in proportion"
    for one in fed:
        everything = sorted([*one.x_train.flatten().tolist(), *one.x_test.flatten().tolist()])
        assert everything == list(range(len(arrays[one.name][1])))
        assert set(one.y_train.tolist()) >= set(one.y_test.tolist())
    alone = Federation.from_arrays({"b": arrays["b"]})
    assert torch.equal(alone["b"].x_test, fed["b"].x_test), "who can be split is split as ever"


def test_a_regression_of_one_sample_trains_on_it():
    with pytest.warns(FederationWarning, match="on 'a'"):
        fed = Federation.from_arrays({"a": ([[1.0]], [0.5]), "b": (np.eye(5), np.arange(5) / 3)}, task="regression")
    assert [(c.n_train, c.n_test) for c in fed] == [(1, 0), (4, 1)]


def test_masked_arrays_per_client_are_refused():
    masked = np.ma.masked_array(np.eye(2), mask=[[True, False], [False, False]])
    with pytest.raises(ValueError, match="client 'a': x must not be masked, got 1 masked entries"):
        Federation.from_arrays({"a": (masked, [0, 1])})
    with pytest.raises(ValueError, match=r"client 'a': x_train must hold at least one block, got {}"):
        Client({}, [0], {}, [0], "a")


def test_what_goes_wrong_is_told_in_a_line():
    rows = {"a": (np.zeros((100, 3)), np.arange(100) / 7), "b": (np.zeros((100, 3)), np.arange(100))}
    with pytest.raises(ValueError, match="task must be one of 'classification', 'regression', got 'regresion'"):
        Federation.from_arrays(rows, task="regresion")
    with pytest.raises(ValueError, match="arrays must map") as told:
        Federation.from_arrays(list(rows.values()))
    assert len(str(told.value)) < 250
    client = Client(np.zeros((5, 3)), np.arange(5), np.zeros((2, 3)), np.arange(2), name="anna")
    assert repr(client) == "Client('anna': 5 training and 2 test samples of shape 3)"


def test_a_slice_is_the_federation_of_these_clients():
    federation = Federation([client(name=name) for name in "abc"], 4, "letters", {"source": "made"})
    two = federation[:2]
    assert isinstance(two, Federation)
    assert [one.name for one in two] == ["a", "b"]
    assert [one.name for one in federation[::-1]] == ["c", "b", "a"]
    assert (two.name, two.n_classes, two.info) == ("letters", 4, {"source": "made"})
    assert two[0] is federation["a"]
    with pytest.raises(IndexError, match=r"no clients 3:None:None; there are 3"):
        federation[3:]
