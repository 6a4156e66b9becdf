"""The methods over messages: the same numbers as in one process, and what happens when somebody fails."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from scipy.stats import kstest
from small import assert_same_tensors, ragged
from test_blocks import FED as BLOCKS
from test_blocks import refuses, short
from typer.testing import CliRunner

from hetfl_core import Client, Federation, Preparation, cli, simulate
from hetfl_core.datasets.digits import bundled_images
from hetfl_core.deployment import (
    DeploymentError,
    agreement,
    client_app,
    client_from_file,
    commands,
    load_model,
    serve,
    sums,
    trial,
    wire,
)
from hetfl_core.deployment.apps import settings_of
from hetfl_core.deployment.site import FileStore, RunSettings, Site, SiteError, Task, spec_of
from hetfl_core.deployment.sums import SumLayout
from hetfl_core.federation import FederationWarning
from hetfl_core.methods import (
    CATALOGUE,
    FLIC,
    FedAvg,
    FedHeNN,
    HetFedRep,
    HyFEM,
    LaserVFL,
    LateFusion,
    Local,
    Method,
    PFedHN,
)
from hetfl_core.methods.base import weighted_mean
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.rng import SERVER, stream
from hetfl_core.views import view_of

loopback = pytest.importorskip("loopback", reason="Flower is not installed")

CONFIG = {"classes": 3, "rounds": 2, "seed": 3, "dtype": "float64", "clients": 4, "evaluate-every": 1, "patience": 5.0}
SMALL = Model(MLP((6,), 4), alpha=4)


def grid_of(federation, methods, configs=None, **changes):
    apps = {i + 1: client_app(methods, lambda config, c=client: c) for i, client in enumerate(federation)}
    return loopback.Loopback(apps, configs)


def deploy(federation, methods, config=None, configs=None):
    grid = grid_of(federation, methods, configs)
    return serve(
        grid,
        {**CONFIG, "classes": getattr(federation, "n_classes", 2), "clients": len(federation), **(config or {})},
        methods,
    )


def in_one_process(federation, method, **options):
    common = {"rounds": 2, "seed": 3, "dtype": torch.float64, "engine": "loop", "device": "cpu", "progress": False}
    return simulate(federation, method, **{**common, **options})


def assert_same_run(result, run):
    """Weights of the server, every figure of the history and of the end, and bytes: bit for bit."""
    assert_same_tensors(result.server, run.server)
    ours = result.history.drop(columns=["seconds", "took_part"])
    pd.testing.assert_frame_equal(ours[sorted(ours)], run.history[sorted(ours)], check_dtype=False, rtol=1e-12)
    assert set(run.history) - {"seconds"} == set(ours)
    theirs = {k: v for k, v in run.final.items() if k != "seconds" and not k.startswith(("server", "accuracy_"))}
    for name, value in theirs.items():
        assert result.final[name] == pytest.approx(value, rel=1e-12), name
    mine = result.per_client[["client", "n_train", "n_test", "accuracy", "balanced_accuracy"]]
    pd.testing.assert_frame_equal(mine, run.per_client[list(mine)], check_dtype=False)


# --- parity ---------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("averaged", [False, True], ids=["blocks that clients lack", "common blocks"])
def test_every_method_of_the_catalogue_comes_out_as_in_one_process(averaged):
    """All of them side by side, sharing messages."""
    federation = BLOCKS.of_common_blocks() if averaged else BLOCKS
    methods = {name: short(name) for name, method in CATALOGUE.items() if refuses(method) == averaged}
    results = deploy(federation, methods)
    for name, method in methods.items():
        assert_same_run(results[name], in_one_process(federation, method))


@pytest.mark.parametrize(
    "method",
    [
        FLIC(SMALL, local_epochs=2, pretrain_epochs=2),
        FedHeNN(SMALL, local_epochs=1),
        PFedHN(Model(MLP((5,), 4)), personal="head", local_epochs=1),
        HetFedRep(SMALL, local_epochs=1, optimizer="sgd", momentum=0.9, init="common"),
    ],
    ids=lambda method: method.name,
)
def test_some_take_part_and_others_rest(method):
    """Feature spaces of their own, half of the clients a round, first weights in common."""
    federation = ragged(widths=(4, 4) if isinstance(method, PFedHN) else (3, 8))
    results = deploy(federation, method, {"participation": 0.5, "rounds": 3})
    run = in_one_process(federation, method, participation=0.5, rounds=3)
    assert_same_run(results[method.name], run)
    assert list(results[method.name].history["took_part"]) == [6, 3, 3, 3]


def test_a_regression():
    rng = np.random.default_rng(0)
    clients = []
    for i in range(3):
        x = rng.normal(size=(12, 3 + i))
        clients.append(Client(x, x.sum(1), x[:5], x[:5].sum(1), f"c{i}"))
    federation = Federation(clients, 0, task="regression")
    method = HetFedRep(SMALL, local_epochs=1)
    result = deploy(federation, method, {"task": "regression", "classes": 0})[method.name]
    run = in_one_process(federation, method)
    assert result.final["mse"] == pytest.approx(run.final["mse"], rel=1e-12)
    assert result.final["r2_worst"] == pytest.approx(run.final["r2_worst"], rel=1e-12)


def test_the_final_model_stays_with_the_client(tmp_path):
    federation, method = ragged(), FLIC(SMALL, local_epochs=1, pretrain_epochs=1)
    configs = {i + 1: {"state": str(tmp_path / client.name)} for i, client in enumerate(federation)}
    deploy(federation, method, configs=configs)
    run = in_one_process(federation, method)
    for client, params in zip(federation, run.params, strict=True):
        mine, received = load_model(tmp_path / client.name / client.name / method.name)
        assert_same_tensors(mine, params)
        x = client.x_test.double()
        np.testing.assert_array_equal(method.predict(mine, received, x).numpy(), run.outputs()[client.name])
    with pytest.raises(FileNotFoundError, match="written when a run ends"):
        load_model(tmp_path)


def test_nothing_but_uploads_figures_and_descriptions_leaves_a_client():
    """Every number of every message is an upload that `simulate` counts, a mean over samples, or told of the data."""
    federation, method = ragged(), FLIC(SMALL, local_epochs=1, pretrain_epochs=1)
    grid = grid_of(federation, method)
    sent = []
    grid.change = lambda node, message: sent.append(message.content) or message
    serve(grid, {**CONFIG, "classes": federation.n_classes, "clients": 6}, method)
    kinds = {str(key).split("/")[-1] for content in sent for key in content}
    assert kinds == {"words", "sent"}
    words = [json.loads(content["words"]["json"]) for content in sent]
    told, said = [one for one in words if "name" in one], [one[method.name] for one in words if "name" not in one]
    assert all(set(one) == {"name", "shapes", "n_train", "n_test", "class_counts"} for one in told)
    assert len(told) == 6
    assert all(set(one) == {"figures", "terms", "error"} for one in said)
    assert all(type(value) is float for one in said for value in [*one["figures"].values(), *one["terms"].values()])
    up = sum(
        p.numel() * p.element_size()
        for content in sent
        for key, record in content.items()
        if key.endswith("/sent")
        for p in wire.from_arrays(record).values()
    )
    assert up == in_one_process(federation, method).final["bytes_up"]


def test_messages_hold_no_pickle():
    from flwr.app import Array, ArrayRecord

    np.save(file := io.BytesIO(), np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    record = ArrayRecord({"a": Array("object", (1,), "numpy.ndarray", file.getvalue())})
    with pytest.raises(wire.WireError, match="array 'a' cannot be read"):
        wire.from_arrays(record)
    params = {"a": torch.tensor(1.5), "b": torch.arange(6).reshape(2, 3), "c": torch.zeros(0, 4, dtype=torch.float64)}
    assert_same_tensors(wire.from_arrays(wire.to_arrays(params)), params)


# --- faults ---------------------------------------------------------------------------------------------------------


FAULTS = {
    "NaN": (lambda p: {n: t * torch.nan for n, t in p.items()}, r"holds \d+ numbers that are NaN or infinite"),
    "shape": (lambda p: {n: t[..., :1] for n, t in p.items()}, r"must have shape \(.*\), got"),
    "type": (lambda p: {n: t.float() for n, t in p.items()}, "must be of torch.float64, got torch.float32"),
    "method": (lambda p: {"phi.0.weight": torch.zeros(2, 2)}, "another method's message: it lacks .* and has"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nonsense_is_refused_by_name_and_the_round_goes_on(fault, capsys):
    """As if that client had not been among the participants of that round."""
    federation, method = ragged(4), HetFedRep(SMALL, local_epochs=1)
    spoil, why = FAULTS[fault]
    grid, rounds = grid_of(federation, method), []

    def change(node, message):
        key = f"{method.name}/sent"
        if node == 2 and key in message.content and len(message.content[key]):
            rounds.append(1)
            if len(rounds) == 1:
                message.content[key] = wire.to_arrays(spoil(wire.from_arrays(message.content[key])))
        return message

    grid.change = change
    result = serve(grid, {**CONFIG, "classes": 5, "clients": 4, "rounds": 2}, method)[method.name]
    said = capsys.readouterr().out
    assert re.search(rf"round 0: the upload of client 'client-1' is refused: .*{why}", said)
    assert list(result.history["took_part"]) == [4, 3, 4]
    assert all(bool(p.isfinite().all()) for p in result.server.values())


def test_means_of_figures_do_not_leave_out_a_client_whose_training_diverged():
    """As in one process: the mean of the others would flatter."""
    of = ragged(4, widths=(4, 4))
    spoilt = [replace(c, x_train=c.x_train * 1e200) if c.name == "client-2" else c for c in of]
    federation, method = (
        Federation(spoilt, of.n_classes, of.name),
        Local(SMALL, lr=0.1, optimizer="sgd", local_epochs=2),
    )
    result = deploy(federation, method)[method.name]
    assert result.per_client["accuracy"].isna().to_list() == [c.name == "client-2" for c in federation]
    assert np.isnan([result.final[name] for name in ("accuracy", "accuracy_worst", "train_accuracy")]).all()
    assert result.history[["train_accuracy", "accuracy"]].iloc[-1].isna().all()


def test_who_does_not_answer_or_fails_is_named(capsys):
    federation, method = ragged(4), HetFedRep(SMALL, local_epochs=1)
    grid, seen = grid_of(federation, method), []

    def before(node, message):
        if message.metadata.message_type == "train.tasks" and node == 1:
            seen.append(node)
            if len(seen) == 2:
                raise MemoryError("out of memory at sample 17")

    failing = dict(grid.apps)
    grid.apps[1] = lambda message, context: (before(1, message), failing[1](message, context))[1]
    grid.change = lambda node, message: None if node == 3 and len(seen) == 3 else message
    result = serve(grid, {**CONFIG, "classes": 5, "clients": 4, "rounds": 3, "evaluate-every": 9}, method)[method.name]
    said = capsys.readouterr().out
    assert "round 0, round: client 'client-0' failed" in said
    assert "round 1, round: no answer from client 'client-2'; the round goes on without it" in said
    assert list(result.history["took_part"]) == [4, 3, 3, 4]


def test_a_client_that_was_restarted_goes_on_from_its_folder(tmp_path, capsys):
    """Killed after it had trained and before its answer left: asked again, it answers the same."""
    federation, method = ragged(4), FLIC(SMALL, local_epochs=1, pretrain_epochs=1)
    configs = {i + 1: {"state": str(tmp_path / f"site{i}")} for i in range(4)}
    folder = {"folder": str(tmp_path / "server"), "rounds": 3, "classes": 5}
    grid, trained = grid_of(federation, method, configs), []

    def change(node, message):
        if node == 2 and f"{method.name}/sent" in message.content:
            trained.append(node)
        if len(trained) == 4:  # started, trained, was evaluated, trained: the server is killed in its second round
            raise KeyboardInterrupt
        return message

    grid.change = change
    with pytest.raises(KeyboardInterrupt):
        serve(grid, {**CONFIG, "clients": 4, **folder}, method)
    capsys.readouterr()
    again = grid_of(federation, method, configs)  # contexts of its own, as of another run of Flower
    result = serve(again, {**CONFIG, "clients": 4, **folder}, method)[method.name]
    assert "goes on after 1 of 3 rounds" in capsys.readouterr().out
    assert_same_run(result, in_one_process(federation, method, rounds=3))
    events = (tmp_path / "server" / "events.log").read_text()
    assert "client 'client-0' is there" in events
    more = serve(grid_of(federation, method, configs), {**CONFIG, "clients": 4, **folder, "rounds": 4}, method)
    assert_same_run(more[method.name], in_one_process(federation, method, rounds=4))


# --- names of features ----------------------------------------------------------------------------------------------

COLUMNS = ["age", "pressure", "glucose", "weight"]
PLAIN = FedAvg(Model(MLP((5,), 4)), local_epochs=1)


def hospitals(folder, **orders):
    """A CSV file for each hospital, its columns in some order; and the clients that are read from them."""
    clients = []
    for k, (name, order) in enumerate(orders.items()):
        x = np.random.default_rng(k).normal(size=(20, 4))
        table = pd.DataFrame(x, columns=COLUMNS)[list(order)].assign(label=np.arange(20) % 2)
        table.to_csv(folder / f"{name}.csv", index=False)
        clients.append(client_from_file(folder / f"{name}.csv", name))
    return clients


TURNED = [COLUMNS[i] for i in (2, 0, 3, 1)]


def test_the_order_of_columns_in_a_sites_file_does_not_matter(tmp_path, capsys):
    """Sites do not see each other's columns: the server tells them the order, and keeps to it."""
    config = {"classes": 2, "clients": 2, "rounds": 3}
    same = hospitals(tmp_path, a=COLUMNS, b=COLUMNS)
    run = in_one_process(Federation(same, 2), PLAIN, rounds=3)
    other = hospitals(tmp_path, a=COLUMNS, b=TURNED)
    assert [c.features for c in other] == [tuple(COLUMNS), tuple(TURNED)]
    assert_same_run(deploy(other, PLAIN, config, {})["FedAvg"], run)
    assert_same_run(deploy(other[::-1], PLAIN, config)["FedAvg"], run), "whoever comes first"
    folder = {"folder": str(tmp_path / "server")}
    configs = {i + 1: {"state": str(tmp_path / f"site{i}")} for i in range(2)}
    deploy(other[::-1], PLAIN, {**config, **folder, "rounds": 1}, configs)
    assert_same_run(deploy(other[::-1], PLAIN, {**config, **folder}, configs)["FedAvg"], run)
    assert "goes on after 1 of 3 rounds" in capsys.readouterr().out
    kept = tmp_path / "site0" / "b" / "FedAvg" / "features.json"
    assert json.loads(kept.read_text()) == COLUMNS, "as the model that lies beside it takes them"


def test_the_order_of_blocks_at_a_site_does_not_matter():
    def holding(name, order, shift):
        x = {b: np.random.default_rng(ord(b) + shift).normal(size=(8, 1 + ord(b) % 3)) for b in order}
        return Client(x, np.arange(8) % 2, x, np.arange(8) % 2, name)

    feds = [[holding("a", "xy", 0), holding("b", order, 1)] for order in ("xy", "yx")]
    method = FedAvg(Model(Blocks.alike("xy", MLP((3,), 3), 3)), local_epochs=1)
    run = in_one_process(Federation(feds[0], 2), method)
    assert_same_run(deploy(feds[1], method, {"classes": 2})["FedAvg"], run)


def test_sites_with_other_columns_are_refused_where_columns_are_averaged(tmp_path):
    others = hospitals(tmp_path, a=COLUMNS, b=COLUMNS)
    others[1] = dataclasses.replace(others[1], features=[*COLUMNS[:3], "height"])
    with pytest.raises(ValueError, match=r"only 'a' has \['weight'\], only 'b' has \['height'\]"):
        deploy(others, PLAIN, {"classes": 2})
    deploy(others, FLIC(SMALL, local_epochs=1, pretrain_epochs=1), {"classes": 2})


@pytest.mark.parametrize(("features", "joins"), [(TURNED, True), ([*COLUMNS[:3], "height"], False)])
def test_a_late_site_takes_the_order_or_is_refused(tmp_path, capsys, features, joins):
    """The order is settled: that of the first by name would be the late one's."""
    federation = hospitals(tmp_path, b=COLUMNS, c=COLUMNS)
    (late,) = hospitals(tmp_path, a=COLUMNS)
    order = [COLUMNS.index(f) if f in COLUMNS else 3 for f in features]
    late = Client(late.x_train[:, order], late.y_train, late.x_test[:, order], late.y_test, "a", features)
    grid = grid_of(federation, PLAIN)
    grid.contexts[3] = grid.contexts[1].__class__(1, 3, {}, grid.contexts[1].state.__class__(), {})
    grid.before = lambda node, message: grid.apps.setdefault(3, client_app(PLAIN, lambda config: late))
    config = {**CONFIG, "classes": 2, "clients": 2, "rounds": 2, "evaluate-every": 9}
    result = serve(grid, config, PLAIN)["FedAvg"]
    said = capsys.readouterr().out
    if joins:
        assert "client 'a' joins after" in said
        words = [json.loads(message.content["words"]["json"]) for _, message in grid.sent]
        told = [each["tasks"]["FedAvg"]["features"] for each in words if "tasks" in each]
        assert told == [COLUMNS] * len(told)
        assert told
    else:
        assert re.search(
            r"client 'a' cannot join: FedAvg .* only 'b' has \['weight'\], only 'a' has \['height'\]", said
        )
    assert len(result.per_client) == 2 + joins


@pytest.mark.parametrize(
    "features",
    [["p"], "pqr", [1, 2, 3], {"x": None}, {"": ["p", "q", "r"]}],
    ids=["few", "word", "numbers", "blocks", "-"],
)
def test_names_that_no_client_has_are_refused_at_the_server(features):
    told = {"name": "a", "shapes": [3], "n_train": 2, "n_test": 0, "class_counts": [1, 1], "features": features}
    with pytest.raises(
        ValueError, match=r"client 'a': features(:| must) (name the 3|be a sequence|be texts|column '')"
    ):
        spec_of(told, RunSettings(2), 1)


def test_a_site_does_not_take_an_order_of_other_features(tmp_path):
    (client,) = hospitals(tmp_path, a=COLUMNS)
    for features in (("age", "height"), {"x": None}):
        with pytest.raises(ValueError, match="client 'a' was told of features that are not its own"):
            Site(client, PLAIN, RunSettings(2), 1, features)


# --- tables ---------------------------------------------------------------------------------------------------------

PREPARE = Preparation(categories=["code"], missing={"sugar": [0]})


def tables(folder, names=None, n=30):
    """Three hospitals with gaps, words and codes; columns in three orders. B has no sugar, C no `code` 7, A no "none".

    They are called so, or by `names`.
    """
    folder.mkdir(exist_ok=True)
    files = {}
    for k, (name, site) in enumerate((names or dict(zip("ABC", "ABC", strict=True))).items()):
        rng, y = np.random.default_rng(k), np.arange(n) % 2
        frame = pd.DataFrame(
            {
                "age": rng.integers(30, 80, n).astype(float),
                "sugar": (rng.normal(6, 2, n) + y) * (site != "B"),
                "pain": rng.choice(["grave", "mild", "none"][: 2 + (site != "A")], n),
                "code": rng.choice([3, 6, 7][: 3 - (site == "C")], n).astype(float),
                "ill": np.array(["no", "yes"])[y],
            }
        )
        frame.loc[rng.random(n) < 0.1, "age"] = np.nan
        frame.loc[rng.random(n) < 0.1, "pain"] = np.nan
        files[name] = folder / f"{name}.csv"
        frame.iloc[:, rng.permutation(5)].to_csv(files[name], index=False)
    assert len({file.read_text().split("\n")[0] for file in files.values()}) == len(files), "other orders"
    return files


def at_sites(files, method, config=None, configs=None, **options):
    def app(site):
        given = {"label": "ill", "classes": ["no", "yes"], "prepare": PREPARE, **options}

        @functools.cache  # at every message a site reads its file anew, which is the same: here once, as was agreed on
        def read(agreed):
            return client_from_file(files[site], site, **given, agreed=json.loads(agreed))

        return client_app(method, lambda config: read(json.dumps(config["agreed"])))

    grid = loopback.Loopback({i + 1: app(site) for i, site in enumerate(files)}, configs)
    return grid, {**CONFIG, "classes": 2, "clients": len(files), **(config or {})}


VIEWS = {
    "own": FLIC(SMALL, local_epochs=1, pretrain_epochs=1),
    "common": PLAIN,
    "zeros": PLAIN,
    "blocks": HyFEM(Model(Blocks.alike(["common", "sugar"], MLP((4,), 3), 4)), local_epochs=1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_tables_of_sites_come_out_as_in_one_process(view, tmp_path):
    """Bit for bit as `Federation.from_csv`, split and preparation included, in each view."""
    files, method = tables(tmp_path / "data"), VIEWS[view]
    whole = Federation.from_csv(files, target="ill", prepare=PREPARE)
    run = in_one_process(view_of(whole, view), method, metric=["auc", "log_loss"])
    grid, config = at_sites(dict(reversed(files.items())), method, {"metric": "auc log_loss"}, view=view)
    result = serve(grid, config, method)[method.name]
    assert_same_run(result, run)
    pd.testing.assert_series_equal(result.per_client["auc"], run.per_client["auc"])
    assert {"auc", "auc_sd", "auc_worst", "log_loss_worst"} <= set(result.final)


@pytest.mark.parametrize("method", [HyFEM, LateFusion, LaserVFL])
def test_networks_are_made_of_the_columns_where_none_is_named(method, tmp_path):
    """As in one process, bit for bit, though a site knows only the blocks that it has."""
    files, plain = tables(tmp_path / "data"), method(local_epochs=1)
    run = in_one_process(Federation.from_csv(files, target="ill", prepare=PREPARE).in_blocks(), plain)
    states = {i + 1: {"state": str(tmp_path / site)} for i, site in enumerate(files)}
    grid, config = at_sites(files, plain, {}, states, view="blocks")
    result = serve(grid, config, plain)[plain.name]
    assert_same_run(result, run)
    assert {name.split(".")[1] for name in result.server if name.startswith("phi.")} >= {"common", "sugar"}


def test_sites_agree_on_names_and_levels_and_say_nothing_else(tmp_path, capsys):
    files, method = tables(tmp_path / "data"), Local(SMALL, local_epochs=1)
    configs = {i + 1: {"state": str(tmp_path / site)} for i, site in enumerate(files)}
    grid, config = at_sites(files, method, {"folder": str(tmp_path / "server"), "rounds": 1}, configs)
    sent = []
    grid.change = lambda node, message: sent.append(message.content) or message
    serve(grid, config, method)
    words = [json.loads(content["words"]["json"]) for content in sent]
    told = [one for one in words if "name" in one]
    usual = {"name", "shapes", "n_train", "n_test", "class_counts", "features"}
    assert all(set(one) == usual | {"columns", "levels", "preparation"} for one in told)
    assert [one["levels"]["pain"] for one in told[:3]] == [["grave", "mild"], *[["grave", "mild", "none"]] * 2]
    assert [one["levels"] for one in told[3:]] == [{"pain": ["grave", "mild", "none"], "code": ["3", "6", "7"]}] * 3
    kept = json.loads((tmp_path / "server" / "agreed.json").read_text())
    assert kept["columns"]["B"] == {"age": True, "sugar": False, "pain": True, "code": True}
    assert "3 sites agree on the levels of ['code', 'pain']" in capsys.readouterr().out
    serve(at_sites(files, method, configs=configs)[0], {**config, "rounds": 2}, method)
    said = capsys.readouterr().out
    assert "goes on after 1 of 2 rounds" in said
    assert "agree on" not in said, "what was agreed on stays"


def test_a_late_site_takes_the_levels_that_were_agreed_on(tmp_path, capsys):
    files, method = tables(tmp_path), FLIC(SMALL, local_epochs=1, pretrain_epochs=1)
    late = pd.read_csv(files["C"]).assign(pain=["new", "mild"] * 15)
    late.to_csv(files["C"], index=False)
    grid, config = at_sites(files, method, {"clients": 2, "rounds": 3})
    app = grid.apps.pop(3)
    grid.before = lambda node, message: len(grid.sent) > 6 and grid.apps.setdefault(3, app)
    with pytest.warns(FederationWarning, match=r"client 'C': column 'pain' has levels .* \['new'\]"):
        result = serve(grid, config, method)[method.name]
    assert "client 'C' joins after" in capsys.readouterr().out
    assert len(result.per_client) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.assign(pain=1.5), "column 'pain' is a category at 'A', but holds numbers at 'B'"),
        (lambda t: t.drop(columns="age"), r"FedAvg averages .*: only 'A' has \['age'\]\."),
        (lambda t: t.assign(more=t.age), r"FedAvg averages .*: only 'B' has \['more'\]\."),
        (lambda t: t.rename(columns={"age": "years"}), r"only 'A' has \['age'\], only 'B' has \['years'\]"),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_name_before_a_round(change, message, tmp_path):
    files = tables(tmp_path)
    files.pop("C")
    for site, file in files.items():
        table = pd.read_csv(file).assign(sugar=np.linspace(1, 2, 30))
        (change(table) if site == "B" else table).to_csv(file, index=False)
    grid, config = at_sites(files, PLAIN)
    with pytest.raises(ValueError, match=message):
        serve(grid, config, PLAIN)


def test_sites_that_cannot_agree_are_named(tmp_path):
    files = tables(tmp_path)
    told = []
    for site, prepare in zip("AB", (PREPARE, replace(PREPARE, gaps="indicator")), strict=True):
        client = client_from_file(files[site], site, label="ill", classes=["no", "yes"], prepare=prepare, agreed={})
        told.append({"name": site, **agreement.described(client)})
    with pytest.raises(ValueError, match="the same preparation, but gaps is 'median' at 'A' and 'indicator' at 'B'"):
        agreement.agreed(told)
    typo = [{**one, "preparation": {**told[0]["preparation"], "missing": {"suger": [0]}}} for one in told]
    with pytest.raises(ValueError, match="the preparation names column 'suger', which no site has"):
        agreement.agreed(typo)
    with pytest.raises(ValueError, match=r"client 'A' has the levels .* of column 'pain', not those that were agreed"):
        agreement.check_taken(told[0], {"levels": {"pain": ["grave", "mild", "none"]}})
    for bad in ({"columns": ["age"]}, {"levels": {"sugar": [3]}}, {"levels": {"height": ["x"]}}, {"preparation": 1}):
        with pytest.raises((ValueError, TypeError), match="client 'A'"):
            agreement.check_described({**told[0], **bad})


def test_what_stands_in_a_row_is_not_told_to_the_server(tmp_path, capsys):
    files = tables(tmp_path)
    spoilt = pd.read_csv(files["C"])
    spoilt["age"] = spoilt["age"].astype(object).where(spoilt.index != 3, "Mrs Smith")
    spoilt.to_csv(files["C"], index=False)
    with pytest.raises(ValueError, match=r"client 'C', C.csv: column 'age' must hold numbers .*'Mrs Smith'"):
        client_from_file(files["C"], "C", label="ill", classes=["no", "yes"], prepare=PREPARE, agreed={})
    grid, config = at_sites(files, Local(SMALL, local_epochs=1), {"clients": 2, "rounds": 1})
    serve(grid, config, Local(SMALL, local_epochs=1))
    said = capsys.readouterr().out
    assert "node 3 cannot take part: TableError (its log says more)" in said
    assert "Smith" not in said


@pytest.mark.parametrize("name", ["../b", "a/b", ".."])
def test_a_name_that_leads_out_of_the_folder_of_states_is_refused(name, tmp_path, capsys):
    federation, method = ragged(3), Local(SMALL, local_epochs=1)
    configs = {i + 1: {"state": str(tmp_path / "states")} for i in range(4)}
    grid = grid_of([*federation, replace(federation[0], name=name)], method, configs)
    serve(grid, {**CONFIG, "classes": 5, "clients": 3, "rounds": 1}, method)
    assert "node 4 cannot take part: a client with a folder" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["states"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["no", "no", "yes"]}, "classes must be different"),
        ({"ignore": ["number"]}, r"A.csv: the file has nothing to ignore, 'number', only"),
        ({"group": "patient"}, "A.csv: group 'patient' is not among its columns"),
        ({"view": "common", "agreed": None}, "A.csv: a view needs .* what all sites have agreed on"),
        ({"view": "common", "prepare": None}, "A.csv: view and group are for tables that are prepared"),
        (
            {"view": "all", "agreed": {"columns": {"A": {"age": True}}, "levels": {}}},
            "view must be one of 'own'",
        ),
        ({"agreed": [1]}, "agreed must be a mapping"),
    ],
)
def test_ways_to_read_a_file_that_cannot_be_meant(options, message, tmp_path):
    given = {"label": "ill", "classes": ["no", "yes"], "prepare": PREPARE, "agreed": {}, **options}
    with pytest.raises((ValueError, TypeError), match=message):
        client_from_file(tables(tmp_path)["A"], "A", **given)


def test_rows_of_a_patient_stay_together_at_a_site(tmp_path):
    """And a site that splits by group, and leaves columns out, is the client that from_csv makes."""
    files = {}
    for site, file in tables(tmp_path).items():
        pd.read_csv(file).assign(patient=[f"{site}{i // 3}" for i in range(30)], ward="x").to_csv(file, index=False)
        files[site] = file
    more = {"group": "patient", "ignore": ["ward"]}
    whole = Federation.from_csv(files, target="ill", prepare=PREPARE, **more)
    given = {"label": "ill", "classes": ["no", "yes"], "prepare": PREPARE, **more}
    told = [agreement.described(client_from_file(files[s], s, agreed={}, **given)) | {"name": s} for s in files]
    mine = [client_from_file(files[s], s, agreed=agreement.agreed(told), **given) for s in files]
    assert Federation(mine, 2).fingerprint() == Federation(list(whole), 2).fingerprint()


# --- a client's file ------------------------------------------------------------------------------------------------


def written(folder, content, ending="csv"):
    file = folder / f"site.{ending}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,label\n1,no\n2,yes\n", r"labels \(column 'label'\) must be whole numbers .* classes=\['no', 'yes'\]"),
        (",x,label\n5,1,0\n7,2,1\n", "column 'Unnamed: 0' has no name of its own"),
        ("größe,label\n1,0\n2,1\n".encode("latin1"), r"site.csv: the file is not in UTF-8"),
        ("x,x,label\n1,2,0\n2,3,1\n", "site.csv: columns must have different names, got 'x' twice"),
        ("x,label\n1,5,0\n2,6,1\n", "site.csv: rows have more fields than the first line has names of columns"),
        ("x,label\n1,0\n2,1,3,4\n", "site.csv: the file is no table: Error tokenizing data"),
        ("", "site.csv: the file is no table: No columns"),
        ("x,label\n", "site.csv: expected at least one row of numbers below the names of columns, got none"),
        ("label\n0\n1\n", "site.csv: expected columns of features beside 'label', got none"),
        ("x,label,split\n1,0,test\n", "site.csv: expected at least one sample for training, got none"),
        ("x,y\n1,0\n", "site.csv: the file has no column 'label', only"),
        ("x,label\none,0\n", "site.csv: column 'x' holds no numbers"),
        ("x,label\n1,0\n,1\n", "site.csv: column 'x' has gaps"),
        ("x,label,split\n1,0,3\n", "site.csv: column 'split' must say train or test, got '3'"),
    ],
)
def test_a_table_that_cannot_be_meant_names_client_file_and_column(tmp_path, content, message):
    with pytest.raises(ValueError, match=rf"client 'anna'.*{message}"):
        client_from_file(written(tmp_path, content), "anna")


def test_words_are_labels_where_clients_have_agreed_on_them(tmp_path):
    file = written(tmp_path, "x,label,split\n1,no,train\n2,yes,train\n3,yes,test\n")
    made = client_from_file(file, "anna", classes=["yes", "no"])
    assert (made.y_train.tolist(), made.y_test.tolist(), made.features) == ([1, 0], [0], ("x",))
    with pytest.raises(
        ValueError, match=r"labels .* must be among classes=\['yes', 'maybe'\], got 1 of 3 that are not"
    ):
        client_from_file(file, "anna", classes=["yes", "maybe"])


def test_arrays_in_a_file_may_have_names_and_must_fit(tmp_path):
    file, x, y = tmp_path / "site.npz", np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    np.savez(file, x=x, y=y, features=["p", "q"])
    assert client_from_file(file, "anna").features == ("p", "q")
    np.savez(file, x_train=x, y_train=y, x_test=x[:2], y_test=np.array(["no", "yes"])[y[:2]])
    with pytest.raises(ValueError, match=r"client 'anna', site.npz: labels .* must be whole numbers"):
        client_from_file(file, "anna")
    for arrays in (
        {"x": x, "y": y[:3]},
        {"x": x[:, 0], "y": y},
        {"x_train": x, "y_train": y, "x_test": x, "y_test": y[:1]},
    ):
        np.savez(file, **arrays)
        with pytest.raises(ValueError, match=r"client 'anna', site.npz: expected .* got"):
            client_from_file(file, "anna")
    for content in (b"PK nonsense", b""):
        with pytest.raises(ValueError, match=r"client 'anna', site.npz: the file holds no arrays of numbers"):
            client_from_file(written(tmp_path, content, "npz"), "anna")
    np.savez(file, x=np.array([{}], dtype=object), y=y[:1])
    with pytest.raises(ValueError, match=r"client 'anna', site.npz: the file holds no arrays of numbers"):
        client_from_file(file, "anna")


def test_a_client_without_its_state_says_so(capsys):
    federation, method = ragged(4), FLIC(SMALL, local_epochs=1, pretrain_epochs=1)
    grid = grid_of(federation, method)
    old = grid.contexts[4]

    def before(node, message):
        if node == 1 and len([1 for n, m in grid.sent if n == 1 and m.metadata.message_type == "train.tasks"]) == 2:
            grid.contexts[4] = type(old)(1, 4, {}, type(old.state)(), {})

    grid.before = before
    serve(grid, {**CONFIG, "classes": 5, "clients": 4, "evaluate-every": 9}, method)
    assert re.search("client 'client-3' failed: has nothing of the 0 rounds before", capsys.readouterr().out)


def test_a_client_that_comes_late_joins(capsys):
    federation, method = ragged(5), FLIC(SMALL, local_epochs=1, pretrain_epochs=1)
    grid = grid_of(federation, method)
    late = grid.apps.pop(5)

    def before(node, message):
        if len(grid.sent) > 4 + 4 + 2:
            grid.apps[5] = late

    grid.before = before
    result = serve(grid, {**CONFIG, "classes": 5, "clients": 4, "rounds": 4, "evaluate-every": 9}, method)[method.name]
    assert "client 'client-4' joins after" in capsys.readouterr().out
    assert sorted(set(result.history["took_part"])) == [4, 5]
    assert len(result.per_client) == 5
    assert result.per_client["accuracy"].notna().all()


def test_a_late_client_that_the_method_cannot_take_is_refused_by_name(capsys):
    federation, method = ragged(4, widths=(4, 4)), FedAvg(Model(MLP((5,), 4)), local_epochs=1)
    grid = grid_of(federation, method)
    x = np.ones((9, 3))
    other = Client(x, np.arange(9) % 5, x, np.arange(9) % 5, "other")
    late = client_app(method, lambda config: other)
    grid.contexts[5] = grid.contexts[1].__class__(1, 5, {}, grid.contexts[1].state.__class__(), {})
    grid.before = lambda node, message: grid.apps.setdefault(5, late)
    result = serve(grid, {**CONFIG, "classes": 5, "clients": 4, "rounds": 3, "evaluate-every": 9}, method)[method.name]
    assert re.search(
        "client 'other' cannot join: FedAvg averages 'phi.0.weight', which must have the same shape",
        capsys.readouterr().out,
    )
    assert set(result.history["took_part"]) == {4}


def test_two_of_one_name(capsys):
    federation, method = ragged(3), Local(SMALL, local_epochs=1)
    grid = grid_of([*federation, replace(federation[0])], method)
    serve(grid, {**CONFIG, "classes": 5, "clients": 3}, method)
    assert "node 4 is refused: it calls itself 'client-0', as node 1 does" in capsys.readouterr().out


def test_clients_with_other_code_or_broken_data_say_so(capsys):
    federation, method = ragged(3), Local(SMALL, local_epochs=1)
    grid = grid_of(federation, method)

    def broken(config):
        raise FileNotFoundError("/secret/patients.csv")

    grid.apps[4] = client_app(method, broken)
    grid.apps[5] = client_app(replace(method, lr=0.5), lambda config: replace(federation[0], name="d"))
    grid.apps[6] = client_app({"other": method}, lambda config: replace(federation[0], name="e"))
    for node in (4, 5, 6):
        grid.contexts[node] = type(grid.contexts[1])(1, node, {}, type(grid.contexts[1].state)(), {})
    serve(grid, {**CONFIG, "classes": 5, "clients": 3}, method)
    said = capsys.readouterr().out
    assert "node 4 cannot take part: FileNotFoundError (its log says more)" in said
    assert "secret" not in said
    assert "node 6 has no method called 'Local', only ['other']" in said


def test_too_few_clients_end_the_wait():
    federation, method = ragged(2), Local(SMALL, local_epochs=1)
    with pytest.raises(DeploymentError, match=r"expected 3 clients, but after 0.2 s there are 2: \['client-0'"):
        serve(grid_of(federation, method), {**CONFIG, "classes": 5, "clients": 3, "patience": 0.2}, method)


def test_a_round_without_any_upload_ends_the_run():
    federation, method = ragged(3), HetFedRep(SMALL, local_epochs=1)
    grid = grid_of(federation, method)
    grid.change = lambda node, message: None if len(grid.sent) > 6 else message
    with pytest.raises(DeploymentError, match="no usable upload came in round 0; start the run again"):
        serve(grid, {**CONFIG, "classes": 5, "clients": 3}, method)


# --- a client's own side --------------------------------------------------------------------------------------------


def do(site, task, store):
    """Have a client work, and keep what it then remembers."""
    _, memory = site.work(task, store.load())
    store.save(memory)


def test_a_folder_of_other_data_is_refused(tmp_path):
    method = Local(SMALL, local_epochs=1)
    sites = [Site(client, method, RunSettings(5), 2) for client in ragged(2)]
    store = FileStore(tmp_path, sites[0].identity("run"))
    do(sites[0], Task("start", 0, {}), store)
    with pytest.raises(SiteError, match="belongs to a run with other settings or data"):
        do(sites[1], Task("round", 0, {}), FileStore(tmp_path, sites[1].identity("run")))
    do(sites[0], Task("round", 0, {}), store)
    do(sites[0], Task("round", 1, {}), store)
    with pytest.raises(SiteError, match=r"asked for round 0 .*but has already gone through round 1"):
        do(sites[0], Task("round", 0, {}), store)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "must say how many 'classes'"),
        ({"classes": 3, "dtype": "half"}, "dtype must be"),
        ({"classes": 3, "rounds": 0}, "rounds must be"),
        ({"classes": 1}, "n_classes must be"),
        ({"classes": 3, "participation": 1.5}, "participation must"),
    ],
)
def test_configs_that_cannot_be_run(config, why):
    with pytest.raises(ValueError, match=why):
        settings_of(config)


def test_masks_of_sums_come_of_all_of_their_keys():
    """Flower makes 32 bits of a key of 256, by exclusive or: two keys with the same words in another order are one."""
    secaggplus = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")
    key = bytes(range(32))
    turned = key[4:8] + key[:4] + key[8:]
    theirs = [secaggplus.pseudo_rand_gen(each, 2**32, [(5,)])[0] for each in (key, turned)]
    assert np.array_equal(*theirs)
    mine = [sums.masks(each, 2**32, [(5, 2), (3,), ()]) for each in (key, turned, key)]
    assert [part.shape for part in mine[0]] == [(5, 2), (3,), ()]
    assert all(map(np.array_equal, mine[0], mine[2]))
    assert not np.isin(np.concatenate([p.ravel() for p in mine[0]]), np.concatenate([p.ravel() for p in mine[1]])).any()
    (many,) = sums.masks(key, 2**32, [(20_000,)])
    assert kstest(many / 2**32, "uniform").pvalue > 0.01
    assert many.dtype == np.int64
    client_app(FedAvg(SMALL), lambda config: None)
    sides = ("client.mod.secure_aggregation.secaggplus_mod", "server.workflow.secure_aggregation.secaggplus_workflow")
    assert all(sys.modules[f"flwr.{name}"].pseudo_rand_gen is sums.masks for name in sides)


# --- secure aggregation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_method_says_truly_whether_its_server_needs_single_uploads(name):
    """Aggregation of what clients sent in a round is that of its mean, or it is not.

    A method with an `aggregate` of its own that says nothing is taken to need them: caution, not a claim.
    """
    from hetfl_core.engine.simulator import Simulator

    method = short(name)
    federation = BLOCKS.of_common_blocks() if refuses(CATALOGUE[name]) else BLOCKS
    simulator = Simulator(federation, method, seed=1, device="cpu", dtype=torch.float64, engine="loop")
    state = simulator.initial()
    state, _ = simulator.survey(state, range(4))
    outcomes = simulator.train(state, range(4), 0, "round")
    uploads = [outcomes[c].upload for c in range(4)]
    weights = [method.weight(spec) for spec in simulator.specs]

    def aggregated(sent, w, specs):
        with torch.no_grad():
            return method.aggregate(state.server, sent, w, specs, stream(1, SERVER, 0, "aggregate"))

    each = aggregated(uploads, weights, simulator.specs)
    try:
        mean = aggregated([weighted_mean(uploads, weights)], [sum(weights)], simulator.specs[:1])
        equal = each.keys() == mean.keys() and all(torch.allclose(p, mean[n], atol=1e-9) for n, p in each.items())
    except (ValueError, RuntimeError, KeyError):
        equal = False
    if method.needs_uploads is None:
        assert equal
    elif method.surveys(0) is None and method.beyond_sums != Method.beyond_sums:
        assert not equal, method.needs_uploads


@pytest.mark.parametrize("method", ["FedAvg", "FedRep", "FLIC-HL"])
def test_secure_aggregation_is_the_plain_mean_but_for_rounding(method, capsys):
    """Flower's SecAgg+; nothing that a client sends tells its upload."""
    method = short(method)
    federation = BLOCKS.of_common_blocks() if refuses(method) else BLOCKS
    config = {**CONFIG, "rounds": 1, "clipping-range": 16.0, "evaluate-every": 9}
    plain = serve(grid_of(federation, method), config, method)[method.name]
    grid, masked = grid_of(federation, method), []

    def change(node, message):
        for record in message.content.values():
            if "masked_params" in record:
                masked.append(np.concatenate([np.load(io.BytesIO(b)).ravel() for b in record["masked_params"]]))
        assert not any(str(key).endswith("/sent") and len(r) for key, r in message.content.items())
        return message

    grid.change = change
    secure = serve(grid, {**config, "secure": True}, method)[method.name]
    largest = max(float(p.abs().max()) for p in plain.server.values() if p.numel())
    bound = 4 * 2 * 16.0 / 2**22 * (1 + largest) / 0.2  # steps of rounding in the sum and its weight, over that weight
    assert plain.server.keys() == secure.server.keys()
    gap = max(float((p - secure.server[n]).abs().max()) for n, p in plain.server.items() if p.numel())
    assert 0 < gap < bound
    assert len(masked) == 4
    uniform = kstest(np.concatenate(masked) / 2**32, "uniform").pvalue
    assert uniform > 1e-6, "masked entries are uniform on the ring"
    assert secure.final["bytes_up"] == sum(8 * len(vector) for vector in masked)


def test_who_drops_out_of_a_sum_does_no_harm(capsys):
    method, federation = short("FedRep"), BLOCKS.of_common_blocks()
    config = {**CONFIG, "rounds": 1, "evaluate-every": 9}
    results = []
    for secure in (False, True):
        grid, asked = grid_of(federation, method), []

        def before(node, message, asked=asked):
            words = json.loads(message.content["words"]["json"]) if "words" in message.content else {}
            trains = any(task["kind"] == "round" for task in words.get("tasks", {}).values())
            asked.append(node == 3 and trains)

        grid.before = before
        grid.change = lambda node, message, asked=asked: None if asked[-1] else message
        results.append(serve(grid, {**config, "secure": secure}, method)[method.name])
    plain, secure = results
    assert list(plain.history["took_part"]) == list(secure.history["took_part"]) == [4, 3]
    assert max(float((p - secure.server[n]).abs().max()) for n, p in plain.server.items()) < 1e-4


def test_methods_that_need_single_uploads_say_why_they_cannot():
    for name in ("FedCR", "pFedHN", "HyFEM", "FedHeNN"):
        method = short(name)
        federation = BLOCKS.of_common_blocks() if refuses(method) else BLOCKS
        with pytest.raises(ValueError, match=f"{re.escape(method.name)} cannot run with secure aggregation: "):
            serve(grid_of(federation, method), {**CONFIG, "secure": True}, method)


def test_a_method_that_ends_with_an_exchange_is_refused_and_what_it_gives_to_join_is_not():
    code = FLIC.published(model=SMALL, local_epochs=1, pretrain_epochs=0, representation_within=False)
    with pytest.raises(ValueError, match=f"{code.name} ends with an exchange, which a deployment does not have"):
        deploy(ragged(), code)
    short = code.joining()
    run = in_one_process(ragged(), short)
    assert deploy(ragged(), short)[short.name].final["accuracy"] == pytest.approx(run.final["accuracy"])


def test_uploads_beyond_the_range_of_a_sum_are_refused_by_name():
    layout = SumLayout({"a": (2,), "b": ()}, share=0.5, limit=1.0)
    upload = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor(0.5)}
    np.testing.assert_allclose(layout.vector(upload), [0.5, -1.0, 0.25, 0.5, 0.5])
    other = SumLayout(layout.shapes, share=0.5).vector({"a": torch.tensor([3.0, 4.0])})
    mean = layout.means(layout.vector(upload) + other, {"a": torch.float64, "b": torch.float64})
    assert mean["a"].tolist() == [2.0, 1.0]
    assert mean["b"].tolist() == 0.5, "the mean over those that sent it"
    for bad, why in (
        ({"a": torch.tensor([2.1, 0.0])}, "'a' times its share reaches 1.05, beyond the clipping range of ± 1"),
        ({"a": torch.zeros(3)}, r"'a' must have shape \(2,\), got \(3,\)"),
        ({"c": torch.zeros(3)}, "has 'c', which the server does not expect"),
        ({"b": torch.tensor(torch.nan)}, "'b' holds numbers that are NaN"),
    ):
        with pytest.raises(ValueError, match=why):
            layout.vector(bad)
    there = wire.unpack_tasks(wire.pack_tasks({"run": Task("round", 0, {}, layout=layout)}, {}))["run"].layout
    np.testing.assert_array_equal(there.vector(upload), layout.vector(upload))
    assert (there.share, there.limit) == (0.5, 1.0)


@pytest.mark.parametrize("known", [True, False])
def test_where_the_server_itself_answers_for_a_node_that_has_gone_the_client_is_named(known, capsys):
    """As Flower's SuperLink does, which is no client: node 1 of its own."""
    from flwr.app import Error, Message

    fed = ragged(3, sizes=(8, 14))
    grid = loopback.Loopback({i + 11: client_app(Local(SMALL), lambda config, c=c: c) for i, c in enumerate(fed)})
    numbers, asked = iter(range(999)), {}

    def number(node, message):
        asked[node] = f"message {next(numbers)}"
        message.metadata.__dict__["_message_id"] = asked[node]

    def change(node, reply):
        if node != 12 or len(grid.sent) < 9:
            return reply
        gone = Message(Error(3, "Node unavailable"), reply_to=grid.sent[-1][1])
        gone.metadata.__dict__["_src_node_id"] = 1
        gone.metadata.__dict__["_reply_to_message_id"] = asked[node] if known else "?"
        return gone

    grid.before, grid.change = number, change
    serve(grid, {**CONFIG, "classes": fed.n_classes, "clients": 3}, {"Local": Local(SMALL, local_epochs=1)})
    said = capsys.readouterr().out
    what = "client 'client-1' failed (Node unavailable)" if known else "no answer from client 'client-1'"
    assert what in said


def test_the_servers_certificate_holds_for_its_names_and_signs_no_other(tmp_path):
    """By the strict rules that Python has kept to since 3.13."""
    secrets = tmp_path / "secrets"
    asked = ["deploy", "certificates", "--host", "example.org", "--host", "10.0.0.7", "--secrets", str(secrets)]
    assert CliRunner().invoke(cli.app, asked).exit_code == 0
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(secrets / "server.pem", secrets / "server.key")

    def shake(name):
        theirs = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
        theirs.verify_flags |= ssl.VERIFY_X509_STRICT
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = theirs.wrap_bio(back, there, server_hostname=name), ours.wrap_bio(there, back, server_side=True)
        for end in ends * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        return ends[0].version()

    assert {shake(name) for name in ("example.org", "10.0.0.7", "localhost")} == {"TLSv1.3"}
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'example\.com'"):
        shake("example.com")
    assert (secrets / "server.key").stat().st_mode & 0o077 == 0 or sys.platform == "win32"
    again = CliRunner().invoke(cli.app, asked)
    assert "ca.crt is there already" in str(again.exception)


def test_a_trial_deals_unlike_pixels_and_no_image_twice(tmp_path):
    names = trial.write_data(tmp_path, 7)
    tables = {name: pd.read_csv(tmp_path / f"{name}.csv") for name in names}
    assert [len(t.columns) - 1 for t in tables.values()] == [24, 32, 40, 48, 56, 64, 24]
    assert set(tables["client-1"].columns) != set(tables["client-7"].columns)
    x, y = bundled_images()
    found = []
    for table in tables.values():
        columns = [int(c.removeprefix("pixel-")) for c in table.columns[:-1]]
        same = np.isclose(table.to_numpy()[:, None, :-1], x[None][:, :, columns]).all(2) & (
            table.label.to_numpy()[:, None] == y
        )
        assert same.any(1).all()
        found.append(same)
    whole = [s for s in found if (s.sum(1) == 1).all()]
    assert (np.concatenate(whole).sum(0) <= 1).all()
    client = client_from_file(str(tmp_path / "client-3.csv"), "client-3")
    assert client.x_train.shape[1] == 40


def test_a_trial_wants_an_empty_folder_and_two_clients(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    for words, message in ((["--folder", str(tmp_path)], "not empty"), (["--clients", "1"], "2<=x<=20")):
        done = CliRunner().invoke(cli.app, ["deploy", "try", *words])
        assert done.exit_code == 2
        assert message in re.sub(r"[\s│]+", " ", done.output)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_what_does_not_start_says_so(tmp_path):
    with trial.Loopback(tmp_path, ["a"]) as here:
        with pytest.raises(trial.TrialError, match=r"hetfl deploy key a failed:\n(.|\n)*is there already"):
            here.call("key", "a")
        (here.app / "secrets/a").unlink()
        with pytest.raises(trial.TrialError, match=r"a ended before a is up:\n(.|\n)*there is no secrets.a"):
            here.client("a")
        here.begin("b", "server", "--secrets", "nowhere")
        with pytest.raises(trial.TrialError, match=r"waited 0 s until it dances:"):
            here.until(lambda: False, "b", "it dances", 0)  # it has just begun
        assert "there is no nowhere" in here.wait("b")
    assert not here.processes


SULKS = """
import pathlib, sys, time
tries = pathlib.Path("tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
time.sleep({sleep})
sys.exit(0 if len(tries.read_text()) > {fails} else 7)
"""


@pytest.mark.parametrize(("fails", "settled", "code", "tries"), [(2, 45.0, 0, 3), (9, 45.0, 7, 3), (9, 0.0, 7, 1)])
def test_a_client_that_does_not_come_up_is_started_again(tmp_path, monkeypatch, fails, settled, code, tries):
    """Thrice at most, here; what had come up, and ends, is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sulks.py").write_text(SULKS.format(sleep=0.05, fails=fails))
    monkeypatch.setattr(commands, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(commands, "SETTLED", settled)
    monkeypatch.setattr(commands, "program", lambda name: sys.executable)
    monkeypatch.setattr(commands, "_end_group", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as ended:
        commands._insist("sulks", "sulks.py")
    signal.signal(signal.SIGTERM, before)
    assert ended.value.exit_code == code
    assert (tmp_path / "tries").read_text() == "x" * tries


def test_a_client_that_is_stopped_stays_stopped(tmp_path):
    (tmp_path / "sulks.py").write_text(SULKS.format(sleep=30, fails=9))
    code = (
        "import sys; from hetfl_core.deployment import commands; commands.program = lambda name: sys.executable\n"
        "import typer\ntry:\n    commands._insist('sulks', 'sulks.py')\n"
        "except typer.Exit as e:\n    sys.exit(e.exit_code)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, start_new_session=True)
    begin = time.monotonic()
    while not (tmp_path / "tries").exists():
        assert time.monotonic() - begin < 60
        time.sleep(0.05)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert (tmp_path / "tries").read_text() == "x"
