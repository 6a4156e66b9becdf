"""Networks that are made from the columns, where none is named."""

from __future__ import annotations

import pytest
from small import ragged

from hetfl_core import Federation, compare, simulate
from hetfl_core.datasets import heart
from hetfl_core.engine.options import with_networks
from hetfl_core.methods import FedAvg, HyFEM, LaserVFL, LateFusion, Local
from hetfl_core.networks import MLP, Auto, Blocks, Model

QUICK = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def hospitals() -> Federation:
    """Four hospitals whose columns differ, of made patients."""
    return heart.hospitals(made=True)


@pytest.mark.parametrize("method", [HyFEM(), LateFusion(), LaserVFL(), Local()])
def test_blocks_get_an_extractor_each(hospitals, method) -> None:
    """As if it had been named: the same run, bit for bit, and in its settings."""
    blocks = hospitals.in_blocks()
    named = Blocks.alike(blocks[0].x_train, MLP())
    short = {"rounds": 1, **QUICK}
    few = type(method)(local_epochs=1)
    run, other = (simulate(blocks, m, **short) for m in (few, type(method)(Model(named), local_epochs=1)))
    assert run.method.model.phi == named
    assert run.per_client.equals(other.per_client)
    assert run.settings["method"] == other.settings["method"]


def test_the_width_is_that_of_auto_and_what_was_named_stays(hospitals) -> None:
    specs = hospitals.in_blocks().specs()
    phi = with_networks(Local(Model(Auto(7))), specs).model.phi
    assert (phi.out, {network.out for network in phi.extractors.values()}) == (7, {7})
    for method, some in ((HyFEM(Model(phi)), specs), (Local(), hospitals.specs()), (Local(), ragged().specs())):
        assert with_networks(method, some) is method


def test_a_comparison_needs_no_network_and_names_the_view_that_there_is(hospitals) -> None:
    methods = {"HyFEM": (HyFEM(local_epochs=1), "blocks"), "FedAvg": (FedAvg(local_epochs=1), "common")}
    table = compare(hospitals, methods, seeds=3, rounds=1, n_jobs=1, **QUICK)
    assert table["mean"].notna().all()
    with pytest.raises(ValueError, match=r"It can work on the view 'common' or 'zeros' or 'blocks'"):
        compare(hospitals, {"HyFEM": HyFEM(), "alone": Local()}, seeds=3, **QUICK)


@pytest.mark.parametrize(("method", "view"), [(HyFEM(), "blocks"), (LateFusion(), "blocks"), (FedAvg(), "common")])
def test_defaults_learn_something_of_a_table(hospitals, method, view) -> None:
    """Made patients of a hospital are told apart by columns that have nothing to do with each other: an easy task."""
    fed = hospitals.in_blocks() if view == "blocks" else hospitals.of_common_columns()
    run = simulate(fed, method, rounds=5, evaluate_every=5, metric=["auc"], **QUICK)
    assert run.per_client.set_index("client").loc[["Cleveland", "Budapest"], "auc"].min() > 0.8
