"""A method as a strategy of Flower's: the numbers of `simulate`, and what is refused."""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path

import pytest
import torch
from small import assert_same_tensors, ragged
from test_blocks import FED as BLOCKS
from test_blocks import short

from hetfl_core import simulate
from hetfl_core.deployment import DeploymentError, apps, client_app
from hetfl_core.methods import FLIC, FedAvg, FedCMA, FedCR, FedProto, HyFEM, Local
from hetfl_core.networks import MLP, Model

loopback = pytest.importorskip("loopback", reason="Flower is not installed")
flwr = pytest.importorskip("flwr.app", reason="Flower is not installed")

from hetfl_core.deployment import MethodStrategy  # noqa: E402

PAGE = Path(__file__).parents[1] / "book" / "flower.md"

SMALL = Model(MLP((6,), 4), alpha=4)
CONFIG = {"classes": 5, "rounds": 3, "seed": 3, "dtype": "float64", "clients": 4, "evaluate-every": 1}


def grid_of(federation, method):
    return loopback.Loopback(
        {i + 1: client_app(method, lambda config, c=client: c) for i, client in enumerate(federation)}
    )


def started(federation, method, config=None, **options):
    """What Flower returns, and the strategy that it has run."""
    own = {**CONFIG, "classes": federation.n_classes, "clients": len(federation), **(config or {})}
    strategy = MethodStrategy(method, own)
    return strategy.start(grid_of(federation, method), timeout=5.0, **options), strategy


def in_one_process(federation, method, **options):
    common = {"rounds": 3, "seed": 3, "dtype": torch.float64, "engine": "loop", "device": "cpu", "progress": False}
    return simulate(federation, method, **{**common, **options})


METHODS = [
    FedAvg(SMALL, local_epochs=1),
    FedProto(SMALL, local_epochs=1),
    FedCR(Model(MLP((6,), 4), gaussian=4), local_epochs=1),
    FLIC(SMALL, local_epochs=1, pretrain_epochs=2),
    FedCMA(SMALL, local_epochs=1),
    short("HyFEM"),
    Local(SMALL, local_epochs=1),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_numbers_are_those_of_simulate(method):
    """Also of a method that surveys all clients first (Fed-CMA), of one that sends nothing, and with rounds rested."""
    federation = BLOCKS if isinstance(method, HyFEM) else ragged(4, widths=(4, 4))
    result, strategy = started(federation, method, {"participation": 0.5})
    run = in_one_process(federation, method, participation=0.5)
    assert_same_tensors(strategy.result.server, run.server)
    assert_same_tensors({name: torch.from_numpy(p.numpy()) for name, p in result.arrays.items()}, run.server)
    for name, value in strategy.result.final.items():
        if name != "seconds":
            assert value == pytest.approx(run.final[name], rel=1e-12), name
            assert result.evaluate_metrics_clientapp[3][name] == pytest.approx(value)
    assert sorted(result.train_metrics_clientapp) == sorted(result.evaluate_metrics_clientapp) == [1, 2, 3]
    rounds = run.history.set_index("round")
    for t in (1, 2):
        assert result.evaluate_metrics_clientapp[t]["accuracy"] == pytest.approx(rounds["accuracy"][t], rel=1e-12)
    for t in (1, 2, 3):
        assert result.train_metrics_clientapp[t]["bytes_up"] == rounds["bytes_up"][t]
    assert strategy.result.history["took_part"].tolist()[1:] == [len(federation) // 2] * 3


def test_clients_are_evaluated_as_often_as_is_asked_and_the_server_when_flower_asks():
    federation, method, seen = ragged(4, widths=(4, 4)), METHODS[0], []

    def evaluate(number, arrays):
        seen.append((number, sorted(arrays)))
        return flwr.MetricRecord({"n": float(number)})

    result, strategy = started(
        federation, method, {"evaluate-every": 2, "rounds": 99}, num_rounds=5, evaluate_fn=evaluate
    )
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4, 5], "and after the last round always"
    names = sorted(strategy.result.server)
    assert seen == [(t, names) for t in range(6)]


def test_a_client_that_comes_late_joins():
    federation, method = ragged(4, widths=(4, 4)), METHODS[0]
    grid = grid_of(federation, method)
    late = grid.apps.pop(4)

    def before(node, message):
        if '"kind": "evaluate"' in str(message.content):
            grid.apps[4] = late

    grid.before = before
    strategy = MethodStrategy(method, {**CONFIG, "clients": 3})
    strategy.start(grid, timeout=5.0)
    assert strategy.result.history["took_part"].tolist() == [3, 3, 3, 4], "a round after it was seen"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial_arrays": {"w": torch.zeros(1)}}, r"initial_arrays must be empty, got \['w'\]: FedAvg has its own"),
        ({"train_config": {"lr": 0.1}}, r"train_config must be empty, got \['lr'\]"),
        ({"num_rounds": 0}, "num_rounds must be a whole number of at least 1, got 0"),
    ],
)
def test_what_would_have_no_effect_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        MethodStrategy(METHODS[0], CONFIG).start(loopback.Loopback({}), **options)


def test_what_only_the_other_app_can_do_is_refused():
    for key, value in {"folder": "here", "secure": True}.items():
        with pytest.raises(ValueError, match=f"config must not set '{key}' for a strategy, got .*: use server_app"):
            MethodStrategy(METHODS[0], {**CONFIG, key: value})
    with pytest.raises(ValueError, match="must say how many 'classes'"):
        MethodStrategy(METHODS[0], {"rounds": 3})
    with pytest.raises(TypeError, match="method must be a Method"):
        MethodStrategy("FedAvg", CONFIG)
    with pytest.raises(DeploymentError, match="expected 4 clients"):
        MethodStrategy(METHODS[0], CONFIG).start(loopback.Loopback({}), timeout=0.1)


def foreign():
    """The app of a client of Flower's own that knows nothing of ours."""
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        return flwr.Message(message.content, reply_to=message)

    return app


def test_a_foreign_node_is_told_of_once_and_asked_ever_more_seldom(monkeypatch):
    federation, method, said = ragged(4, widths=(4, 4)), METHODS[0], []
    grid = grid_of(federation, method)
    grid.apps[9], grid.contexts[9] = foreign(), flwr.Context(1, 9, {}, flwr.RecordDict(), {})
    nodes = apps.Nodes(grid, {"FedAvg": method}, CONFIG, said.append)
    clock = [0.0]
    monkeypatch.setattr(apps.time, "monotonic", lambda: clock[0])
    for _ in range(600):  # ten minutes
        assert len(nodes.look()) == 4
        clock[0] += 1.0
    asked = [node for node, message in grid.sent if node == 9]
    assert 10 < len(asked) < 20
    assert len([words for words in said if "node 9" in words]) == 1
    assert "no `client_app` of hetfl_core" in "".join(said)


def test_another_strategy_is_told_whom_it_has_asked(caplog):
    from flwr.serverapp.strategy import FedAvg as Plain

    grid, answers = grid_of(ragged(4, widths=(4, 4)), METHODS[0]), []
    grid.change = lambda node, message: answers.append(message) or message
    with caplog.at_level(logging.CRITICAL):
        Plain(fraction_evaluate=0.0).start(grid, flwr.ArrayRecord({"w": torch.zeros(2)}), num_rounds=1)
    reasons = {answer.error.reason for answer in answers}
    assert len(answers) == 4
    assert all("another server than hetfl_core's" in reason for reason in reasons)


@pytest.mark.nightly
def test_the_page_shows_what_works(capsys):
    """Its two programs, run as they stand, over a grid in the place of machines."""
    server, client = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf8"), re.DOTALL)
    there, here = {}, {}
    exec(client, there)
    exec(server, here)
    apps_ = {i + 1: there["app"] for i in range(3)}
    grid = loopback.Loopback(apps_, {i + 1: {"site": i} for i in range(3)})
    config = tomllib.loads(re.search(r"```toml\n(.*?)```", PAGE.read_text("utf8"), re.DOTALL)[1])
    config = config["tool"]["flwr"]["app"]["config"]
    here["app"](grid, flwr.Context(1, 1, {}, flwr.RecordDict(), config))
    federation = there["federation"]
    run = simulate(federation, here["FLIC"](), rounds=config["rounds"], engine="loop", device="cpu", progress=False)
    assert f"accuracy {run.final['accuracy']:.3f}" in capsys.readouterr().out
