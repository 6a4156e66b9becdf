"""The settings of HyFEM's comparison: how methods are tuned, on which images, and what each of them is given."""

from __future__ import annotations

import pytest
from test_blocks_data import small_images  # noqa: F401  (a fixture)

from hetfl_core.experiments import EXPERIMENTS
from hetfl_core.papers import hyfem

GRID = EXPERIMENTS["hyfem/quadrants-grid"]


def test_every_method_is_tuned_with_the_same_budget():
    assert {len(settings) for settings in hyfem.GRID.values()} == {12}
    assert list(GRID.methods) == [setting for settings in hyfem.GRID.values() for setting in settings]
    for name, settings in hyfem.GRID.items():
        assert len({str(method) for method in settings.values()}) == 12, name
        assert {method.lr for method in settings.values()} == set(hyfem.RATES)
        assert {type(method) for method in settings.values()} == {type(hyfem.FAMILIES[name][0])}


def test_every_method_takes_as_many_steps_by_the_published_codes_optimiser():
    for name, (method, _) in hyfem.FAMILIES.items():
        (stage,) = method.stages(2, "round")
        assert (stage.optimiser, stage.momentum, stage.batch_size, stage.steps) == ("sgd", 0.5, 32, 32), name
        assert stage.lr == pytest.approx(method.lr * 0.95**2)
        assert method.weighting == "uniform"


def test_hyfems_other_settings_are_the_texts():
    method = hyfem.FAMILIES["HyFEM"][0]
    assert (method.cost, method.order, method.target) == ("distance", "parallel", "others")
    assert (method.begins, method.resets, method.norms, method.growth) == ("server", True, False, None)
    pulls = [(m.mu_extractors, m.mu_classifier) for m in hyfem.GRID["HyFEM"].values()]
    assert set(pulls) == {(0.0, 0.0), (0.1, 0.1), (0.5, 0.5)}


def test_what_each_method_is_given(small_images):  # noqa: F811
    """The blocks that all hold, zeros for what is missing, or everything in one place; four fifths to train on."""
    names = {name: next(iter(settings)) for name, settings in hyfem.GRID.items()}
    for name in ("FedAvg, common blocks", "FedProx, common blocks"):
        assert list(GRID.data(names[name], 0)[0].shapes) == ["top left", "bottom left"]
    filled = GRID.data(names["FedAvg, zeros"], 0)
    assert all(0 not in shape for client in filled for shape in client.shapes.values())
    alone = GRID.data(names["centralised"], 0)
    assert (len(alone), alone[0].n_train, len(alone.y_test)) == (1, 320, 80)
    assert [client.n_train for client in GRID.data(names["HyFEM"], 0)] == [160] * 6
