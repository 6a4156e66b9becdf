"""One federation of tables in several views: its own columns, the common ones, zeros, blocks."""

import numpy as np
import pandas as pd
import pytest
import torch

from hetfl_core import Client, Federation, Preparation, simulate
from hetfl_core.methods import FLIC, FedAvg, HyFEM, LateFusion, Local
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.plots import availability
from hetfl_core.views import columns_of_each

SITES = {"A": ["age", "pain", "sugar", "x"], "B": ["age", "pain", "sugar"], "C": ["x", "pain", "age"]}


def table(n=20):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat([*SITES], n), "y": np.resize([0, 1], 3 * n)})
    for column in ("age", "sugar", "x"):
        frame[column] = rng.normal(size=3 * n)
    frame["pain"] = rng.choice(["no", "some"], 3 * n)
    for site, own in SITES.items():
        frame.loc[frame.site == site, frame.columns.difference([*own, "site", "y"])] = np.nan
    return frame


def tables(prepare=None, frame=None):
    frame = table() if frame is None else frame
    return Federation.from_frame(frame, client="site", target="y", prepare=prepare or Preparation())


FED = tables()


def values(client, feature, split="x_train"):
    x = getattr(client, split)
    if not isinstance(x, dict):
        return x[:, client.features.index(feature)]
    [block] = [b for b, own in client.features.items() if feature in (own or ())]
    return x[block][:, client.features[block].index(feature)]


def names(client):
    """All features of a client, whatever the blocks."""
    own = client.features
    return [f for block in own.values() for f in block or ()] if isinstance(own, dict) else [*own]


def same_values(view, split="x_train"):
    """Every feature that a client has kept is the very same column as before."""
    for client in view:
        before = FED[client.name]
        for feature in {*names(client)} & {*names(before)}:
            assert torch.equal(values(client, feature, split), values(before, feature, split))
        assert torch.equal(client.y_train, before.y_train)
    return True


def test_common_columns_are_all_features_of_the_columns_that_all_have():
    common = FED.of_common_columns()
    assert {c.features for c in common} == {("age", "pain=no", "pain=some")}
    assert same_values(common)
    assert same_values(common, "x_test")
    run = simulate(common, FedAvg(Model(MLP((4,), 3)), local_epochs=1), rounds=1, progress=False)
    assert np.isfinite(run.final["accuracy"])


def test_filled_has_zeros_for_what_a_client_lacks():
    filled = FED.filled()
    assert {c.features for c in filled} == {("age", "sugar", "x", "pain=no", "pain=some")}
    assert same_values(filled)
    assert not values(filled["B"], "x").any()
    assert not values(filled["C"], "sugar", "x_test").any()
    assert values(filled["A"], "x").any()
    assert filled.filled().fingerprint() == filled.fingerprint()


def test_blocks_by_availability_are_the_columns_of_the_same_clients():
    blocks = FED.in_blocks("by availability")
    assert [c.shapes for c in blocks] == [
        {"common": (3,), "sugar": (1,), "x": (1,)},
        {"common": (3,), "sugar": (1,), "x": (0,)},
        {"common": (3,), "sugar": (0,), "x": (1,)},
    ]
    assert blocks["A"].features == {"common": ("age", "pain=no", "pain=some"), "sugar": ("sugar",), "x": ("x",)}
    assert same_values(blocks)
    assert same_values(blocks, "x_test")
    assert blocks.fingerprint() == FED.in_blocks().fingerprint()


@pytest.mark.parametrize("method", [HyFEM, LateFusion, Local])
def test_methods_of_blocks_run_on_the_view(method):
    model = Model(Blocks.alike(["common", "sugar", "x"], MLP((4,), 3), 5))
    run = simulate(FED.in_blocks(), method(model, local_steps=2), rounds=1, progress=False)
    assert np.isfinite(run.final["accuracy"])


def test_blocks_that_are_named_and_the_rest():
    blocks = FED.in_blocks({"blood": ["sugar"], "words": ["pain"]})
    assert blocks["C"].shapes == {"common": (1,), "blood": (0,), "x": (1,), "words": (2,)}
    assert same_values(blocks)
    with pytest.raises(ValueError, match="columns: 'common' is what columns are called that no block names"):
        FED.in_blocks({"common": ["sugar"]})


def test_a_part_of_a_block_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"client 'B': block 'more' must be there as a whole .* \['sugar'\] without \['x'\]"
    ):
        FED.in_blocks({"more": ["sugar", "x"]})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"blood": ["suger"]}, r"columns\['blood'\]: no column is called 'suger'; did you mean sugar"),
        ({"blood": ["sugar"], "more": ["sugar"]}, "columns: 'sugar' must be in one block, got 'blood' and 'more'"),
        ({"a.b": ["sugar"]}, "a block's name must have no dot, got 'a.b'"),
        ({"": ["sugar"]}, "a block's name must be a text that is not empty"),
        ("availability", "columns, unless it is 'by availability', must be a mapping, got 'availability'"),
        ({"blood": "sugar"}, r"columns\['blood'\] must be a sequence"),
    ],
)
def test_blocks_that_cannot_be_are_refused(columns, message):
    with pytest.raises((ValueError, TypeError), match=message):
        FED.in_blocks(columns)


def test_views_of_a_view_lead_back():
    """Blocks put together again have the same common columns, and the same blocks as before."""
    blocks = FED.in_blocks()
    assert blocks.of_common_columns().fingerprint() == FED.of_common_columns().fingerprint()
    assert blocks.in_blocks({"blood": ["sugar"], "f": ["x"]})["C"].shapes == {"common": (3,), "blood": (0,), "f": (1,)}
    everywhere = FED.filled().in_blocks()
    assert everywhere["C"].shapes == {"common": (5,)}


def test_levels_that_differ_are_refused_by_column():
    frame = table()
    frame.loc[frame.site == "B", "pain"] = "no"
    own = tables(Preparation(levels="own"), frame)
    for view in (own.of_common_columns, own.in_blocks):
        with pytest.raises(
            ValueError, match=r"column 'pain' must have the same levels .* 'A' and \['pain=no'\] on 'B'"
        ):
            view()
    assert own.of_common_features()["A"].features == ("age", "pain=no")


@pytest.mark.parametrize("view", ["in_blocks", "filled", "of_common_columns"])
def test_later_rows_come_in_the_view(view):
    frame = table()
    for client in getattr(FED, view)():
        own = frame[frame.site == client.name]
        made = client.rows(own)
        later = Client(made, [0] * len(own), made, [0] * len(own), "later", client.features)
        assert later.shapes == client.shapes
        for feature in names(client):
            both = torch.cat([values(client, feature), values(client, feature, "x_test")])
            assert sorted(values(later, feature).tolist()) == sorted(both.tolist())


def test_features_without_names_have_no_such_views():
    plain = Federation([Client(np.eye(2), [0, 1], np.eye(2), [0, 1], "p")])
    for view in (plain.of_common_columns, plain.in_blocks, plain.of_common_features):
        with pytest.raises(ValueError, match="client 'p': features must be names"):
            view()
    with pytest.raises(ValueError, match="inputs must be named blocks"):
        plain.filled()
    x = np.eye(2)
    other = Federation([Client(x, [0, 1], x, [0, 1], name, list(own)) for name, own in (("p", "ab"), ("q", "cd"))])
    with pytest.raises(ValueError, match="there is no column that all clients have"):
        other.of_common_columns()


def test_test_data_of_the_federation_itself_come_along():
    x, y = np.arange(6.0).reshape(3, 2), [0, 1, 0]
    clients = [Client(x, y, x, y, name, ["a", "b"]) for name in "pq"]
    fed = Federation(clients, x_test=pd.DataFrame(x + 1, columns=["a", "b"]), y_test=y)
    blocks = fed.in_blocks({"one": ["b"]})
    assert {b: t.tolist() for b, t in blocks.x_test.items()} == {"common": [[1], [3], [5]], "one": [[2], [4], [6]]}
    assert blocks.of_common_columns().x_test.tolist() == (x + 1).tolist()


# --- the figure -----------------------------------------------------------------------------------------------------


def test_the_figure_has_a_cell_per_column_and_client_with_the_share():
    frame = table()
    frame.loc[frame.site == "A", "sugar"] = [1.0] * 5 + [np.nan] * 15
    fed = tables(frame=frame)
    ax = availability(fed, {"x": "something"}, title="who")
    assert [t.get_text() for t in ax.get_xticklabels()] == ["A", "B", "C"]
    rows = [t.get_text() for t in ax.get_yticklabels()]
    assert rows[:2] == ["age", "pain"]
    assert set(rows[2:]) == {"something (x)", "sugar"}
    cells = {(rows[int(t.get_position()[1])], t.get_position()[0]): t.get_text() for t in ax.texts}
    assert len(cells) == 12
    assert [cells["sugar", j] for j in range(3)] == ["(25)", "100", "(0)"], "in brackets what counts as absent"
    assert [cells["something (x)", j] for j in range(3)] == ["100", "(0)", "100"]
    assert ax.get_title(loc="left") + ax.get_title() == "who"
    assert columns_of_each(fed)["A"] == ["age", "x", "pain"]


def test_the_figure_of_views_and_of_named_features():
    assert len(availability(FED.in_blocks()).texts) == 12
    x = np.eye(2)
    fed = Federation([Client(x, [0, 1], x, [0, 1], "p", ["a", "b"]), Client(x, [0, 1], x, [0, 1], "q", ["b", "c"])])
    ax = availability(fed)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["b", "a", "c"]
    assert [t.get_text() for t in ax.texts] == ["100", "100", "100", "(0)", "(0)", "100"]
    with pytest.raises(ValueError, match="client 'p': features must be names"):
        availability(Federation([Client(x, [0, 1], x, [0, 1], "p")]))


def test_flic_needs_no_view():
    assert np.isfinite(
        simulate(FED, FLIC(local_epochs=1, pretrain_epochs=1), rounds=1, progress=False).final["accuracy"]
    )
