"""Inputs in named blocks of which clients lack some: networks, federations, what is measured, and every method."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import assert_same_tensors, equal_histories, largest_difference

from hetfl_core import Client, Federation, simulate
from hetfl_core.federation import FederationWarning, as_params, from_params
from hetfl_core.methods import CATALOGUE, FedAvg, HyFEM, Local, Method
from hetfl_core.networks import CNN, MLP, Augmented, Blocks, Model, NormalisedCNN
from hetfl_core.rng import numpy_stream, stream

WIDTHS = {"a": 3, "b": 4, "c": 2}
PHI = Blocks.alike("abc", MLP((5,), 4, dropout=0.3), 6)
OPTIONS = {"rounds": 2, "device": "cpu", "progress": False, "dtype": torch.float64}


def holding(name: str, blocks: str, n: int = 14, classes: int = 3) -> Client:
    rng = numpy_stream(0, "tests", 0, f"blocks {name}")
    y = np.arange(n) % classes
    x = {b: rng.normal(size=(n, w)) + y[:, None] if b in blocks else np.zeros((n, 0)) for b, w in WIDTHS.items()}
    return Client(x, y, {b: v[:9] for b, v in x.items()}, y[:9], name)


FED = Federation([holding("u", "ab"), holding("v", "bc"), holding("w", "ab", 7), holding("z", "abc")], 3)


def short(name: str) -> Method:
    method = CATALOGUE[name]
    brief = {"pretrain_epochs": 1, "local_epochs": 1, "batch_size": 7, "generator_steps": 3}
    brief = {setting: value for setting, value in brief.items() if getattr(method, setting, 0)}
    return replace(method, model=replace(method.model, phi=PHI), **brief)


def refuses(method: Method) -> bool:
    """Whether it averages all of φ, of which clients with other blocks have other parts."""
    return "phi" in method.shared and method.name not in ("HyFEM", "late fusion", "LASER-VFL")


# --- the suite that every method passes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, method in CATALOGUE.items() if not refuses(method)])
def test_every_other_method_trains_on_blocks_that_clients_lack(name, tmp_path):
    """Stacked = loop; the order of clients does not matter; killed and resumed bit for bit."""
    method = short(name)
    runs = {engine: simulate(FED, method, engine=engine, **OPTIONS) for engine in ("stacked", "loop")}
    assert largest_difference(runs["stacked"], runs["loop"]) < 1e-9
    held = [{n.split(".")[1] for n in p if n.startswith("phi.")} - {"joint"} for p in runs["loop"].params]
    if name != "Ditto, own embeddings":
        assert held == [{"a", "b"}, {"b", "c"}, {"a", "b"}, {"a", "b", "c"}]
    turned = simulate(FED.subset(["z", "w", "v", "u"]), method, **OPTIONS)
    for a, b in zip(turned.params[::-1], runs["stacked"].params, strict=True):
        assert_same_tensors(a, b)
    simulate(FED, method, checkpoint=tmp_path, **{**OPTIONS, "rounds": 1})
    assert equal_histories(simulate(FED, method, checkpoint=tmp_path, **OPTIONS).history, runs["stacked"].history)


@pytest.mark.parametrize("name", [name for name, method in CATALOGUE.items() if refuses(method)])
def test_every_method_that_averages_embeddings_names_the_clients_the_block_and_the_way_out(name):
    with pytest.raises(
        ValueError, match=r"averages 'phi\.a\.0\.bias', .*'u' has it and 'v' does not.*of_common_blocks"
    ):
        simulate(FED, short(name), **OPTIONS)
    method = short(name)
    result = simulate(FED.of_common_blocks(), method, **{**OPTIONS, "rounds": 1})
    assert all("phi.b.0.weight" in p or "own.phi.b.0.weight" in p for p in result.params)
    assert not any("phi.a.0.weight" in p for p in result.params)


def test_clients_of_other_blocks_share_no_stack():
    from hetfl_core.engine.simulator import Simulator

    simulator = Simulator(FED, Local(Model(PHI)), device="cpu")
    assert sorted(sorted(cohort.members) for cohort in simulator.cohorts) == [[0, 2], [1], [3]]


# --- the network ----------------------------------------------------------------------------------------------------


def test_the_layer_over_blocks_is_one_over_their_concatenation():
    """Rows of its weight by block, below each other, are the weight of the layer over all that extractors find."""
    spec = FED.specs()[3]
    net = Blocks({"a": MLP((5,), 4), "b": MLP((), 2), "c": MLP((3,), 1, last="tanh")}, out=6, activation="tanh")
    params = Model(net).init(spec, stream(0, "z", 0, "test"), ("phi",))
    x = FED["z"].x_train
    x = {name: t.float() for name, t in x.items()}
    found = [net.extractors[b](params, x[b], None, f"phi.{b}") for b in "abc"]
    weight = torch.cat([params[f"phi.joint.{b}.weight"] for b in "abc"])
    expected = torch.tanh(torch.cat(found, 1) @ weight + params["phi.joint.bias"])
    torch.testing.assert_close(Model(net).embed(params, x), expected)
    partly = Model(net).embed(params, {"a": x["a"], "b": x["b"][:, :0], "c": x["c"]})
    without = torch.cat([found[0], torch.zeros_like(found[1]), found[2]], 1)
    torch.testing.assert_close(partly, torch.tanh(without @ weight + params["phi.joint.bias"]))


def test_a_client_has_the_parameters_and_the_noise_of_its_blocks_only():
    specs = FED.specs()
    method = Local(Model(PHI))
    names = set(method.init_client(specs[1], torch.Generator()))
    assert names == {
        *(f"phi.{b}.{i}.{kind}" for b in "bc" for i in (0, 1) for kind in ("weight", "bias")),
        "phi.joint.b.weight", "phi.joint.c.weight", "phi.joint.bias", "beta.weight", "beta.bias",
    }  # fmt: skip
    own = method.of(specs[1])
    assert set(own.noise(specs[1], own.stages(0, "round")[0])) == {"phi.b.0.mask", "phi.c.0.mask"}
    assert method.of(specs[3]) is method, "who holds all blocks has the model as it is"


def test_extractors_may_have_running_statistics_and_noise_of_their_own():
    """Stacked = loop with batch normalisation in one block and cropped images in another, which some clients lack."""
    rng = numpy_stream(0, "tests", 0, "pictures")

    def client(name, blocks):
        y = np.arange(12) % 2
        shapes = {"left": (1, 8, 8), "right": (1, 8, 8), "text": (5,)}
        x = {
            b: rng.normal(size=(12, *s)) if b in blocks else np.zeros((12, *(0 for _ in s))) for b, s in shapes.items()
        }
        return Client(x, y, {b: v[:4] for b, v in x.items()}, y[:4], name)

    fed = Federation([client("u", ["left", "right"]), client("v", ["right", "text"]), client("w", ["left", "text"])], 2)
    cnn = NormalisedCNN((2,), 3)
    net = Blocks({"left": cnn, "right": Augmented(MLP((4,), 3), padding=1), "text": MLP((), 3)}, 5)
    local = Local(Model(net), local_epochs=1, batch_size=5)
    runs = [simulate(fed, local, engine=engine, **OPTIONS) for engine in ("stacked", "loop")]
    assert largest_difference(*runs) < 1e-9
    moved = [p["phi.left.0.norm.mean"] for p in runs[0].params if "phi.left.0.norm.mean" in p]
    assert len(moved) == 2
    assert all(float(mean.abs().max()) > 0 for mean in moved)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Blocks({}), r"extractors must be one or more, got \{\}"),
        (lambda: Blocks({"a.b": MLP()}), r"a block's name must be text without a dot, not 'joint', got 'a\.b'"),
        (lambda: Blocks({"joint": MLP()}), "got 'joint'"),
        (lambda: Blocks({"a": PHI}), r"extractors must be networks of one tensor, such as MLP\(\), got Blocks"),
        (lambda: Blocks({"a": MLP()}, out=0), "out must be at least 1, got 0"),
        (lambda: PHI.init({"a": (0,), "b": (0,)}, torch.Generator()), "at least one block must not be empty, got"),
        (lambda: simulate(FED, Local(Model(MLP())), **OPTIONS), "this model takes one tensor; client 'u'"),
        (
            lambda: simulate(FED, Local(Model(Blocks.alike("ab", MLP()))), **OPTIONS),
            r"client 'v': block 'c' has no extractor; there are \['a', 'b'\]",
        ),
        (
            lambda: simulate(FED, HyFEM(Model(Blocks.alike("abc", CNN()))), **OPTIONS),
            "client 'u': the extractor of block 'a' cannot take it: a CNN needs square images",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_model_of_blocks_refuses_plain_inputs():
    plain = Federation([Client(np.zeros((2, 3)), [0, 1], np.zeros((2, 3)), [0, 1], "p")], 2)
    for method in (Local(Model(PHI)), FedAvg(Model(PHI)), HyFEM(Model(PHI))):
        with pytest.raises(ValueError, match="takes named blocks; client 'p' has one tensor"):
            simulate(plain, method, **OPTIONS)


# --- federations ----------------------------------------------------------------------------------------------------


def own_test(n: int = 6) -> dict[str, np.ndarray]:
    return {b: numpy_stream(1, "tests", 0, b).normal(size=(n, w)) for b, w in WIDTHS.items()}


def test_views_of_the_blocks():
    fed = replace(FED, x_test=own_test(), y_test=np.arange(6) % 3)
    common = fed.of_common_blocks()
    assert [list(c.shapes) for c in common] == [["b"]] * 4
    assert list(common.x_test) == ["b"]
    assert torch.equal(common["v"].x_train["b"], fed["v"].x_train["b"])
    assert [c.shapes for c in fed.of_blocks(["c", "a"])][1] == {"a": (0,), "c": (2,)}
    filled = fed.filled()
    assert {str(c.shapes) for c in filled} == {str({b: (w,) for b, w in WIDTHS.items()})}
    assert not filled["u"].x_train["c"].any()
    assert torch.equal(filled["u"].x_train["a"], fed["u"].x_train["a"])
    assert filled.full_shapes == fed.full_shapes == {b: (w,) for b, w in WIDTHS.items()}
    with pytest.raises(ValueError, match="there is no block that all clients hold"):
        Federation([holding("u", "a"), holding("v", "b")], 3).of_common_blocks()
    with pytest.raises(ValueError, match=r"names must be .*'a', 'b', 'c'.* got 'd'"):
        fed.of_blocks(["d"])
    with pytest.raises(ValueError, match="inputs must be named blocks, but client 'p' has one tensor"):
        Federation([Client(np.zeros((2, 3)), [0, 1], np.zeros((2, 3)), [0, 1], "p")], 2).filled()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": own_test()}, "x_test and y_test go together, got only x_test"),
        ({"y_test": [0]}, "got only y_test"),
        ({"x_test": own_test(), "y_test": [0, 1]}, "the test data of the federation itself.* same length, got 6 and 2"),
        ({"x_test": own_test(), "y_test": [9] * 6}, r"y_test must lie in 0…2, got labels from 9 to 9"),
        ({"x_test": {"a": np.zeros((1, 3))}, "y_test": [0]}, r"x_test must have the blocks \['a', 'b', 'c'\]"),
        (
            {"x_test": {**own_test(), "b": np.zeros((6, 5))}, "y_test": [0] * 6},
            "block 'b' of x_test must have samples of shape 4, as on client 'u', got 5",
        ),
        ({"x_test": {**own_test(), "b": np.full((6, 4), np.nan)}, "y_test": [0] * 6}, "must be finite, got 24 values"),
    ],
)
def test_own_test_data_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(FED, **changes)


def test_own_test_data_count_in_the_fingerprint_and_follow_the_dtype():
    fed = replace(FED, x_test=own_test(), y_test=[0] * 6)
    assert len({fed.fingerprint(), FED.fingerprint(), replace(fed, y_test=[1] * 6).fingerprint()}) == 3
    assert fed.to(torch.float16).x_test["a"].dtype == torch.float16
    assert fed.subset(["u"]).x_test is fed.x_test or torch.equal(fed.subset(["u"]).x_test["a"], fed.x_test["a"])


def test_blocks_are_tensors_with_names_among_others():
    x = {"a": torch.ones(2, 1), "b": torch.zeros(2, 0)}
    params = {"other": torch.ones(1), **as_params("fixed", x)}
    assert set(params) == {"other", "fixed.a", "fixed.b"}
    assert_same_tensors(from_params("fixed", params), x)
    assert torch.equal(from_params("fixed", as_params("fixed", x["a"])), x["a"])


# --- what is measured -----------------------------------------------------------------------------------------------


def of_some_classes() -> Federation:
    """Client u trains on classes 0 and 1, v on 1 and 2; all are tested on all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)
        clients = []
        for name, blocks, classes in (("u", "ab", (0, 1)), ("v", "bc", (1, 2))):
            client = holding(name, blocks, 30)
            mine = torch.isin(client.y_train, torch.tensor(classes))
            x = {b: t[mine] for b, t in client.x_train.items()}
            clients.append(replace(client, x_train=x, y_train=client.y_train[mine]))
        whole = holding("test", "abc", 60)
        return Federation(clients, 3, x_test=whole.x_train, y_test=whole.y_train)


def test_the_server_is_measured_on_test_data_of_its_own():
    """Samples with all blocks and classes, which no client has."""
    fed = of_some_classes()
    method = HyFEM(Model(PHI), local_epochs=3, lr=0.01)
    result = simulate(fed, method, metric=["server"], **{**OPTIONS, "rounds": 3})
    assert result.history["server_accuracy"].notna().tolist() == [False, True, True, True]
    predicted = method.predict_server(result.server, fed.to(torch.float64).x_test).argmax(1)
    expected = float((predicted == fed.y_test).double().mean())
    assert result.final["server_accuracy"] == result.history["server_accuracy"].iloc[-1] == expected
    assert "server_accuracy" not in simulate(fed, Local(Model(PHI)), **OPTIONS).final


def test_classes_that_a_client_lacks_are_told_apart():
    """Accuracy on the classes held, and what can be reached on all: 6 of 9 test samples."""
    fed = of_some_classes()
    measures = ["own", "held", "own_held"]
    result = simulate(fed, Local(Model(PHI), local_epochs=30, lr=0.01), metric=measures, **OPTIONS)
    held = {"u": torch.tensor([0, 1]), "v": torch.tensor([1, 2])}
    expected = []
    for client, logits in zip(fed, result.outputs("test").values(), strict=True):
        mine = torch.isin(client.y_test, held[client.name])
        expected.append(float((torch.from_numpy(logits).argmax(1) == client.y_test)[mine].double().mean()))
    assert result.per_client["held_accuracy"].tolist() == pytest.approx(expected)
    assert result.per_client["attainable_accuracy"].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert result.final["held_accuracy"] == pytest.approx(np.mean(expected))
    assert result.final["attainable_accuracy"] == pytest.approx(2 / 3)
    assert result.final["accuracy"] <= 2 / 3 + 1e-9, "nobody learnt to name a class that it lacks"
    last = result.history.iloc[-1]
    assert last["held_accuracy"] == pytest.approx(1.5 * last["accuracy"])
    assert last["own_held_accuracy"] == pytest.approx(1.5 * last["own_accuracy"])


def test_where_all_classes_are_held_there_is_nothing_to_tell_apart():
    result = simulate(FED, Local(Model(PHI), local_epochs=1), metric=["held"], **OPTIONS)
    assert "held_accuracy" not in result.final
    assert "attainable_accuracy" not in result.per_client
    np.testing.assert_array_equal(result.history["held_accuracy"][1:], result.history["accuracy"][1:])
