import itertools
import warnings

import numpy as np
import pytest
import torch
from small import ragged

from hetfl_core import Client, Federation
from hetfl_core.federation import FederationWarning, bucket, crop, make_cohorts, pad, pad_stack, stack_split


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
    with pytest.raises(ValueError, match="task must be 'classification' or 'regression', got 'ranking'"):
        Federation([client()], task="ranking")
    with pytest.raises(ValueError, match="n_classes must be 0 or None for a regression, got 3"):
        Federation([client()], 3, task="regression")


def test_no_client_and_equal_names():
    with pytest.raises(ValueError, match="at least one client, got none"):
        Federation([])
    with pytest.raises(ValueError, match="must be unique, got 'anna' twice"):
        Federation([client(), client()])


def test_class_that_training_lacks_is_a_warning():
    with pytest.warns(FederationWarning, match=r"client 'anna': the test set holds classes \[1\]"):
        Federation([client(y=(0, 0))], n_classes=2)


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


def test_stacked_samples_end_in_a_dump_row_of_zeros():
    split = stack_split([torch.ones(2, 3), torch.ones(4, 1)], [torch.tensor([1, 1]), torch.tensor([1, 1, 1, 1])])
    assert split.x.shape == (2, 5, 3)
    assert split.x[0, 2:].sum() == split.x[:, -1].sum() == 0
    assert split.n.tolist() == [2, 4]
    small = split.take([1], [(1,)])
    assert small.x.shape == (1, 5, 1)
    assert small.x.sum() == 4


def test_clients_of_one_cohort_need_inputs_of_equal_rank():
    fed = Federation([client(), Client(np.zeros((1, 2, 2)), (0,), np.zeros((1, 2, 2)), (0,), "ben")])
    with pytest.raises(ValueError, match="zip"):
        make_cohorts(fed, ["one", "one"])


@pytest.mark.parametrize("overhead", [0, 50, 10_000])
def test_bucket_finds_the_cheapest_split(overhead):
    """Against all splits of the sorted widths into runs."""
    widths = [6, 6, 120, 136, 136, 253, 1830, 1830]
    order = sorted(set(widths))

    def cost(cuts):
        edges = [0, *cuts, len(order)]
        runs = [order[a:b] for a, b in itertools.pairwise(edges)]
        return sum(overhead + max(run) * sum(w in run for w in widths) for run in runs)

    def subsets(items):
        return [[]] if not items else [s + t for s in subsets(items[:-1]) for t in ([], [items[-1]])]

    best = min(cost(cuts) for cuts in subsets(list(range(1, len(order)))))
    chosen = bucket(widths, overhead)
    groups = {b: [w for w, c in zip(widths, chosen, strict=True) if c == b] for b in chosen}
    assert sum(overhead + max(g) * len(g) for g in groups.values()) == best
