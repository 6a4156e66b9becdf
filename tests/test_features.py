"""Names of features: what is learned of one is never averaged with what is learned of another."""

import numpy as np
import pandas as pd
import pytest
import torch
from small import equal_histories, largest_difference

from hetfl_core import Client, Federation, adapt, simulate
from hetfl_core.baselines import poolable
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import CATALOGUE, FLIC, FedAvg, FedRep, HyFEM, LGFedAvg, Local
from hetfl_core.networks import MLP, Blocks, Model

SMALL = Model(MLP((4,), 3), alpha=3)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2


def client(name, features, x=X, order=None):
    """A client whose columns come in another order than their names are given in."""
    order = range(x.shape[1]) if order is None else order
    x = x[:, list(order)]
    return Client(x, Y, x[:6], Y[:6], name, None if features is None else [features[i] for i in order])


def run(federation, method=None, **options):
    return simulate(federation, method or FedAvg(SMALL, local_epochs=1), rounds=2, progress=False, **options)


# --- one order ------------------------------------------------------------------------------------------------------


def test_features_of_the_same_names_come_in_one_order_bit_for_bit():
    same = Federation([client("a", "pqr"), client("b", "pqr", X + 1)])
    other = Federation([client("a", "pqr"), client("b", "pqr", X + 1, (2, 0, 1))])
    assert other.fingerprint() == same.fingerprint()
    assert [c.features for c in other] == [("p", "q", "r")] * 2
    assert [spec.features for spec in other.specs()] == [("p", "q", "r")] * 2
    assert torch.equal(other["b"].x_test, same["b"].x_test)
    runs = [run(federation) for federation in (same, other)]
    assert equal_histories(*(r.history for r in runs))
    assert largest_difference(*runs) == 0


def test_the_order_does_not_depend_on_the_order_of_clients():
    clients = [client("b", "pqr", X + 1, (2, 0, 1)), client("a", "pqr")]
    assert {c.features for c in Federation(clients)} == {("p", "q", "r")}, "a's, the first by name"
    assert Federation(clients).fingerprint() == Federation(clients[::-1]).fingerprint()
    assert Federation(clients).subset(["b"])["b"].features == ("p", "q", "r")


def test_clients_with_other_features_keep_theirs():
    fed = Federation([client("a", "pqr"), client("b", "rst"), client("c", "pqr", order=(1, 2, 0))])
    assert [c.features for c in fed] == [tuple("pqr"), tuple("rst"), tuple("pqr")]


def test_columns_of_a_table_are_names_and_the_test_table_may_have_another_order():
    table = pd.DataFrame(X, columns=list("pqr"))
    made = Client(table, Y, table[["r", "q", "p"]], Y, "a")
    assert made.features == ("p", "q", "r")
    assert torch.equal(made.x_test, torch.as_tensor(X))
    turned = Client(table[["r", "p", "q"]], Y, X[:, [2, 0, 1]], Y, "b", features=list("rpq"))
    fed = Federation([made, turned])
    assert torch.equal(fed["b"].x_train, fed["a"].x_train)
    assert torch.equal(fed["b"].x_test, fed["a"].x_test)
    with pytest.raises(ValueError, match=r"client 'a': x_test must have the columns of x_train, lacks \['r'\] and has"):
        Client(table, Y, table.rename(columns={"r": "s"}), Y, "a")
    from_arrays = Federation.from_arrays({"a": (table, Y), "b": (table[["r", "p", "q"]], Y)})
    assert from_arrays["b"].features == tuple("pqr")
    assert sorted(from_arrays["b"].x_train[:, 0].tolist()) != sorted(X[:, 2].tolist())


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("pq", r"client 'a': features must be a sequence, got 'pq'"),
        (["p", "q"], r"client 'a': features must name the 3 features of x_train, got 2 names \['p', 'q'\]"),
        (["p", "q", "p"], "client 'a': features must have different names, got 'p' twice"),
        (["p", "q", 1], "client 'a': features must be texts, got 1 of type int"),
        (["p", "q", "Unnamed: 0"], r"client 'a': features: column 'Unnamed: 0' has no name .*to_csv\(index=False\)"),
        (["p", "q", ""], "client 'a': features: column '' has no name"),
    ],
)
def test_names_that_are_no_names_are_refused(features, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Client(X, Y, X, Y, "a", features)


def test_names_that_contradict_the_table_are_refused():
    table = pd.DataFrame(X, columns=list("pqr"))
    with pytest.raises(ValueError, match=r"must be the columns \['p', 'q', 'r'\] of the table, got \['r', 'q', 'p'\]"):
        Client(table, Y, X, Y, "a", ["r", "q", "p"])


def test_the_index_of_a_table_never_becomes_a_feature():
    table = pd.DataFrame(X, columns=["Unnamed: 0", "q", "r"]).assign(site="a", y=Y)
    with pytest.raises(ValueError, match=r"client 'a': .* 'Unnamed: 0' has no name of its own"):
        Federation.from_frame(table, client="site", target="y")


# --- named blocks ---------------------------------------------------------------------------------------------------


def blocked(name, order, features=None, x=X):
    x = {block: x[:, : 2 + (block == "b")] for block in order}
    return Client(x, Y, {block: t[:4] for block, t in reversed(x.items())}, Y[:4], name, features)


def test_the_order_of_blocks_does_not_matter():
    model = Model(Blocks.alike("ab", MLP((3,), 3), 3))
    feds = [Federation([blocked("x", "ab"), blocked("y", order, x=X + 1)]) for order in ("ab", "ba")]
    assert feds[0].fingerprint() == feds[1].fingerprint()
    assert [list(c.x_train) + list(c.x_test) for c in feds[1]] == [list("abab")] * 2
    runs = [run(federation, FedAvg(model, local_epochs=1)) for federation in feds]
    assert largest_difference(*runs) == 0


def test_columns_within_a_block_are_brought_into_one_order():
    one = blocked("x", "ab", {"b": ["p", "q", "r"]})
    x = {"b": X[:, [2, 0, 1]], "a": X[:, :2]}
    two = Client(x, Y, {b: t[:4] for b, t in x.items()}, Y[:4], "y", {"b": ["r", "p", "q"]})
    fed = Federation([one, two])
    assert fed["y"].features == {"a": None, "b": ("p", "q", "r")}
    assert torch.equal(fed["y"].x_train["b"], fed["x"].x_train["b"])
    assert fed.of_blocks(["a"])["y"].features == {"a": None}


@pytest.mark.parametrize("method", [FedAvg, HyFEM])
def test_other_columns_of_a_block_are_refused(method):
    model = Model(Blocks.alike("ab", MLP((3,), 3), 3))
    fed = Federation([blocked("x", "ab", {"b": ["p", "q", "r"]}), blocked("y", "ab", {"b": ["p", "q", "s"]})])
    with pytest.raises(ValueError, match=r"block 'b'.* only 'x' has \['r'\], only 'y' has \['s'\]"):
        method(model).check(fed.specs())


def test_a_block_is_filled_under_the_names_that_others_have():
    empty = {"a": X[:, :2], "b": X[:, :0]}
    lacks = Client(empty, Y, empty, Y, "y", {"b": []})
    fed = Federation([blocked("x", "ab", {"b": ["p", "q", "r"]}), lacks]).filled()
    assert fed["y"].features["b"] == ("p", "q", "r")
    assert fed["y"].x_train["b"].shape == (12, 3)
    assert not fed["y"].x_train["b"].any()
    assert torch.equal(fed["y"].x_test["a"], torch.tensor(X[:, :2]).float()), "what is held stays"


def test_common_blocks_are_those_that_nobody_lacks():
    """However narrow they are."""
    x = {"a": X[:, :1], "b": X[:, :2], "c": X}
    one, other = Client(x, Y, x, Y, "x"), Client({**x, "b": X[:, :0]}, Y, x | {"b": X[:, :0]}, Y, "y")
    assert Federation([one, other]).of_common_blocks().full_shapes == {"a": (1,), "c": (3,)}
    lacks = {"a": X[:, :0], "b": X[:, :2], "c": X[:, :0]}
    with pytest.raises(ValueError, match="there is no block that all clients hold"):
        Federation([other, Client(lacks, Y, lacks, Y, "z")]).of_common_blocks()
    with pytest.raises(ValueError, match="inputs must be named blocks, but client 'p' has one tensor"):
        Federation([client("p", "abc")]).of_common_blocks()


# --- what methods may average ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_method_takes_other_features_where_it_takes_more_of_them(name):
    """Both hold where nothing that is shared goes by features, and only there."""
    refused = {}
    for what, other in (("more", client("b", "pqrs", np.c_[X, X[:, :1]])), ("other", client("b", "pqs"))):
        specs = Federation([client("a", "pqr"), other]).specs()
        try:
            CATALOGUE[name].check(specs)
        except ValueError as error:
            refused[what] = str(error)
    assert len(refused) in (0, 2)
    if refused:
        assert "only 'a' has ['r'], only 'b' has ['s']" in refused["other"]
        assert "Federation.of_common_features" in refused["other"]


def test_a_shared_layer_behind_the_first_goes_by_no_features():
    model = Model(MLP((4, 4), 3))
    specs = Federation([client("a", "pqr"), client("b", "stu")]).specs()
    LGFedAvg(model, layers=("phi.1",)).check(specs)
    with pytest.raises(ValueError, match=r"LG-FedAvg averages 'phi.0.weight', which goes by features"):
        LGFedAvg(model, layers=("phi.0",)).check(specs)


def test_other_features_can_be_left_out_or_kept_local():
    fed = Federation([client("a", "pqr"), client("b", "rsp")])
    assert [c.features for c in fed.of_common_features()] == [("p", "r")] * 2
    assert run(fed.of_common_features()).federation["b"].shapes == (2,)
    run(fed, FLIC(SMALL, local_epochs=1, pretrain_epochs=1))
    with pytest.raises(ValueError, match="FedRep averages"):
        run(fed, FedRep(SMALL))
    with pytest.raises(ValueError, match="there is no feature that all clients have"):
        Federation([client("a", "pqr"), client("b", "stu")]).of_common_features()
    with pytest.raises(ValueError, match="client 'b': features must be names"):
        Federation([client("a", "pqr"), client("b", None)]).of_common_features()


def test_who_does_not_name_features_is_warned_of_where_that_matters():
    fed = Federation([client("a", "pqr"), client("b", None)])
    with pytest.warns(FederationWarning, match="client 'b' does not say .* client 'a', .*'p', 'q', 'r'") as told:
        FedAvg(SMALL).check(fed.specs())
    assert told[0].filename == __file__, "it points at the user's line, and at none of the library's"
    run(fed, Local(SMALL, local_epochs=1))
    run(Federation([client("a", None), client("b", None)]))


def test_images_are_named_by_channel():
    x = RNG.normal(size=(4, 2, 8, 8)).astype(np.float32)
    pair = [
        Client(x[:, list(o)], Y[:4], x, Y[:4], n, [("red", "blue")[i] for i in o])
        for n, o in (("a", (0, 1)), ("b", (1, 0)))
    ]
    fed = Federation(pair)
    assert torch.equal(fed["b"].x_train, fed["a"].x_train)
    other = Client(x, Y[:4], x, Y[:4], "b", ["red", "green"])
    with pytest.raises(ValueError, match=r"only 'a' has .'blue'., only 'b' has .'green'."):
        FedAvg(Model(MLP((4,), 3))).check(Federation([pair[0], other]).specs())


# --- new clients, data of the federation's own, pooled vectors ------------------------------------------------------


def test_a_new_client_takes_the_order_of_the_run():
    trained = run(Federation([client("b", "pqr"), client("c", "pqr", X + 1)]))
    new = [adapt(trained, client("a", "pqr", X + 2, order), progress=False) for order in ((0, 1, 2), (2, 1, 0))]
    assert new[1].federation["a"].features == ("p", "q", "r")
    assert new[0].final["accuracy"] == new[1].final["accuracy"]
    assert np.array_equal(new[0].outputs()["a"], new[1].outputs()["a"])
    with pytest.raises(ValueError, match=r"only 'b' has \['r'\], only 'a' has \['s'\]"):
        adapt(trained, client("a", "pqs"), progress=False)


def test_the_federations_own_test_data_take_the_clients_order():
    clients = [client("a", "pqr"), client("b", "pqr", X + 1, (1, 0, 2))]
    table = pd.DataFrame(X[:, ::-1].copy(), columns=list("rqp"))
    assert torch.equal(Federation(clients, x_test=table, y_test=Y).x_test, torch.as_tensor(X))
    with pytest.raises(
        ValueError, match=r"x_test must be a pandas.DataFrame .* client 'b' has its features in another"
    ):
        Federation(clients, x_test=X, y_test=Y)
    with pytest.raises(
        ValueError, match=r"x_test must have the features of client 'a', \['p', 'q', 'r'\], got \['r', 'q', 's'\]"
    ):
        Federation(clients, x_test=table.rename(columns={"p": "s"}), y_test=Y)
    alike = Federation([client("a", "pqr"), client("b", "pqr")], x_test=X, y_test=Y)
    assert alike.of_common_features().x_test.shape == (12, 3)


def test_vectors_of_other_features_are_not_pooled():
    fed = Federation([client("a", "pqr"), client("b", "pqr"), client("c", "pqs")])
    assert [[c.name for c in group] for group in poolable(fed)] == [["a", "b"], ["c"]]
