"""A deployment of real processes on loopback: Flower's SuperLink behind a proxy, and SuperNodes, on TLS, with keys."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import doors
import pandas as pd
import psutil
import pytest
import torch
from test_blocks import FED, refuses, short
from test_deployment import PREPARE, tables
from test_secret import modes

from hetfl_core import Federation, simulate
from hetfl_core.deployment import gate, load_model
from hetfl_core.deployment.programs import program, surroundings
from hetfl_core.deployment.trial import Loopback
from hetfl_core.engine import checkpoint
from hetfl_core.engine.run import ends

pytestmark = pytest.mark.nightly

pytest.importorskip("flwr", reason="Flower is not installed")

METHODS = ["Local", "FedRep", "FLIC-HL", "FedHeNN", "FedCR", "pFedHN", "HyFEM"]
ON_BLOCKS = [name for name in METHODS if not refuses(short(name))]
LONG = bool(os.environ.get("HETFL_LONG"))
"""Whether to go on to blocks of made arrays, to a site that is let in later, and to the kills: ten minutes more."""

CLIENTS = [client.name for client in FED] if LONG else ["v", "w"]
"""Each node starts a process for each message, which takes seconds: two will do."""

SETTINGS = {"seed": 3, "dtype": torch.float64, "engine": "loop", "device": "cpu", "progress": False}

BRIEF = """
from dataclasses import replace
from hetfl_core.methods import CATALOGUE
METHODS = {{f"{{name}}, {run}": replace(CATALOGUE[name], local_epochs=1, batch_size=7) for name in {names!r}}}
for name in [name for name in METHODS if name.startswith("FLIC")]:
    METHODS[name] = replace(METHODS[name], pretrain_epochs=1)
"""
TABLES = """
from hetfl_core import Preparation
from hetfl_core.deployment import client_from_file
PREPARE = Preparation(categories=["code"], missing={{"sugar": [0]}})
def load(config):
    name = str(config["name"])
    given = {{"label": "ill", "classes": ["no", "yes"], "prepare": PREPARE, "view": "blocks"}}
    return client_from_file(f"{folder}/{{name}}.csv", name, **given, agreed=config["agreed"])
"""
SHORT = """
import sys; sys.path.insert(0, {tests!r})
from test_blocks import short
METHODS = {{name: short(name) for name in {names!r}}}
"""
DATA = """
import sys; sys.path.insert(0, {tests!r})
from test_blocks import FED
def load(config):
    return FED{common}[str(config["name"])]
"""


class Wire:
    """A cable between a node and the server that remembers what went through."""

    def __init__(self, target: int) -> None:
        self.target, self.seen = target, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(65536):
                self.seen += data
                b.sendall(data)
        except OSError:
            pass
        finally:
            a.close()
            b.close()


def write_app(consortium: Loopback, methods: str, data: str) -> None:
    """What is trained, and each client's data."""
    (consortium.app / "federation/methods.py").write_text(methods)
    (consortium.app / "federation/data.py").write_text(data)


def write_blocks(consortium: Loopback, names: list[str], common: str = "") -> None:
    """Methods on each client's part of `FED`."""
    tests = str(Path(__file__).parent)
    write_app(consortium, SHORT.format(tests=tests, names=names), DATA.format(tests=tests, common=common))


def begin(consortium: Loopback, name: str, out: Path, **config: object) -> None:
    consortium.start(
        name, {"classes": 3, "clients": len(CLIENTS), "seed": 3, "dtype": "float64", "folder": out, **config}
    )


def assert_same(out: Path, name: str, federation, state: Path, method=None, **options) -> None:
    """The server's tensors, bytes and the clients' final models, bit for bit; means of accuracies but for rounding."""
    run = simulate(federation, method or short(name), **{"rounds": 2, **SETTINGS, **options})
    history = pd.read_csv(out / name / "history.csv")
    final = json.loads((out / name / "final.json").read_text())
    asked = [end for each in options.get("metric", ()) for end in ends(each)]
    for column in ("round", "bytes_up", "bytes_down"):
        assert list(history[column]) == list(run.history[column]), column
    assert history["accuracy"].iloc[-1] == pytest.approx(run.history["accuracy"].iloc[-1], rel=1e-12)
    assert all(
        final[key] == pytest.approx(run.final[key], rel=1e-12) for key in ("accuracy", "bytes_up", "bytes_down", *asked)
    )
    _, tensors = checkpoint._open(out / name / checkpoint.FILE, "cpu")
    assert {k.removeprefix("server/") for k in tensors if k.startswith("server/")} == set(run.server)
    for key, p in run.server.items():
        assert torch.equal(tensors[f"server/{key}"], p), key
    for client, params in zip(federation, run.params, strict=True):
        mine, _ = load_model(state / client.name / name)
        assert mine.keys() == params.keys()
        assert all(torch.equal(mine[key], p) for key, p in params.items())


def on_tables(consortium: Loopback, out: Path, state: Path, names: list[str], methods: list[str]) -> str:
    """Sites with a CSV file each: the models that one process makes of these; and what was said meanwhile."""
    folder = consortium.folder / "tables"
    files = tables(folder, dict(zip(names, "BAC", strict=False)))
    text = BRIEF.format(names=methods, run=out.name)  # of their own, as sites keep what they know of a run
    write_app(consortium, text, TABLES.format(folder=str(folder)))
    begin(consortium, out.name, out, rounds=1, classes=2, clients=len(names), metric="auc f1")
    said = consortium.wait(out.name)
    assert f"{len(names)} sites agree on the levels of ['code', 'pain']" in said, said
    fed = Federation.from_csv(dict(sorted(files.items())), target="ill", prepare=PREPARE).in_blocks()
    exec(text, made := {})  # the file of methods that the app has
    for name, method in made["METHODS"].items():
        assert_same(out, name, fed, state, method, rounds=1, metric=["auc", "f1"])
    return said


def flower(home: Path, port: int, certificate: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Flower's own command, pointed at a port by somebody who has nothing but this certificate."""
    home.mkdir(exist_ok=True)
    (home / "ca.crt").write_text(certificate)
    lines = ["[superlink]", 'default = "there"', "[superlink.there]", f'address = "127.0.0.1:{port}"']
    (home / "config.toml").write_text("\n".join([*lines, f'root-certificates = "{home}/ca.crt"', ""]))
    return subprocess.run([program("flwr"), *words], env=surroundings(home), capture_output=True, text=True)


def nobody_but_the_owner_may(consortium: Loopback, ports: list[int]) -> None:
    """A stranger without a key, with the certificate that the server shows to everybody, before its doors."""
    from flwr.superlink.main import create_app

    ca = consortium.app / "secrets/ca.crt"
    direct = gate.forwarded(f"127.0.0.1:{consortium.port}", ca)
    assert len(direct) == len(gate.OWNERS), "whoever reaches the SuperLink itself needs no key"
    every = {*create_app().openapi()["paths"], "/docs", "/openapi.json"} - {*gate.FLEET}
    assert {"/v1/control/start-run", "/v1/control/stop-run", "/v1/control/stream-logs"} <= every
    odd = [
        "/v1/fleet/../control/list-nodes",
        "//v1/control/list-nodes",
        "/v1/control/list-nodes?/../../fleet/get-run",
        "/v1/control/list-nodes#/../../fleet/get-run",
        "/v1/fleet/get-run/",
        "/v1/fleet/",
        "https://localhost/v1/control/list-nodes",
        "/",
    ]
    disguised = ["/v1/control/list-nodes%3f/../../fleet/get-run", "/v1/control/%2e%2e/fleet/get-run"]
    for port in ports:
        assert gate.forwarded(f"127.0.0.1:{port}", ca) == []
        for path in {*every, *odd}:
            assert doors.asked(port, f"POST {path} HTTP/1.1", ca) == 403, path
        for path in disguised:  # nginx makes a client's question of them, and that needs a client's key
            assert doors.asked(port, f"POST {path} HTTP/1.1", ca) in (401, 403), path
        for path in gate.FLEET:
            assert doors.asked(port, f"POST {path} HTTP/1.1", ca) == 401, path
            assert doors.asked(port, f"GET {path} HTTP/1.1", ca) == 403, path
    shown = ssl.get_server_certificate(("127.0.0.1", ports[-1]))
    key = str(consortium.app / "secrets/stranger.pub")
    for words in (
        ("supernode", "list", "there"),
        ("supernode", "register", key, "there"),
        ("run", str(consortium.app), "there"),
        ("list", "there"),
        ("stop", "1", "there"),
        ("log", "1", "there"),
    ):
        done = flower(consortium.folder / "stranger's", ports[-1], shown, *words)
        assert done.returncode, words
        assert "403" in done.stdout + done.stderr, (words, done.stdout, done.stderr)
    done = flower(consortium.folder / "owner's", consortium.port, ca.read_text(), "supernode", "list", "there")
    assert done.returncode == 0, "the same command, on the server's machine"


def listening(consortium: Loopback) -> set[str]:
    """Addresses at which the processes of a federation, and those that they started, are to be reached."""
    roots = [psutil.Process(process.pid) for process in consortium.processes.values()]
    each = [one for root in roots for one in (root, *root.children(recursive=True))]
    return {line.laddr.ip for one in each for line in one.net_connections("inet") if line.status == "LISTEN"}


def test_nodes_on_tls_come_out_as_one_process(tmp_path):
    """One story, as processes are slow to start.

    Sites with tables whose columns come in other orders and of which one lacks a column, methods side by side, and
    strangers who are not let in: neither as a client nor in the owner's place.
    """
    out = tmp_path / "out"
    before = os.umask(0o022)
    with Loopback(tmp_path, [*CLIENTS, "stranger"]) as consortium, ExitStack() as stack:
        stack.callback(os.umask, before)
        state = consortium.app / "state"
        consortium.server()
        ports = [stack.enter_context(doors.plain(consortium.app, consortium.port))]
        if doors.NGINX is not None:
            ports.append(stack.enter_context(doors.nginx(consortium.app, consortium.port)))
        nobody_but_the_owner_may(consortium, ports)
        consortium.admit(*CLIENTS)
        wire = Wire(ports[0])
        for name in CLIENTS[-2:]:
            consortium.client(name, port=wire.port if name == "w" else ports[-1])
        consortium.client("stranger", port=ports[0])
        assert listening(consortium) == {"127.0.0.1"}
        said = on_tables(consortium, out / "tables", state, CLIENTS[-2:], ON_BLOCKS)
        assert "stranger" not in said
        assert "stranger" not in (out / "tables" / "events.log").read_text()

        # Nothing that was said can be read on the wire: TLS from its first byte.
        assert wire.seen[:2] == b"\x16\x03", "a TLS handshake"
        assert len(wire.seen) > 100_000
        words = [b"phi.common", b"numpy.ndarray", b"class_counts", b"FLIC-HL", b"pyproject"]
        assert not any(word in wire.seen for word in words)
        assert "No SuperNode found with the given public key" in consortium.log("server")
        consortium.kill("stranger")
        every = {**modes(consortium.app), **modes(out)}
        # The proxy's files are the test's, and `flwr run`, which Python compiles for, is in the hands of its caller.
        others = ("nginx", "federation/__pycache__")
        left = {name: oct(mode) for name, mode in every.items() if mode & 0o77 and not name.startswith(others)}
        assert left == {}, "models, messages and keys are their owner's alone"
        assert oct((consortium.folder / "flower.db").stat().st_mode & 0o777) == "0o600"
        if LONG:
            goes_on_for_long(consortium, out, state)


def goes_on_for_long(consortium: Loopback, out: Path, state: Path) -> None:
    """The stranger is let in; blocks of arrays; a node is killed in a round and comes back; the server between runs.

    Of the methods some average embeddings, on the blocks that all have.
    """
    consortium.admit("stranger")
    consortium.client("stranger")
    on_tables(consortium, out / "three", state, [*CLIENTS[-2:], "stranger"], ["HyFEM"])
    consortium.kill("stranger")
    for name in CLIENTS[:-2]:
        consortium.client(name)
    write_blocks(consortium, ON_BLOCKS)
    begin(consortium, "first", out, rounds=2)
    consortium.wait("first")
    for name in ON_BLOCKS:
        assert_same(out, name, FED, state)
    the_rest_and_kills(consortium, out, state)


def the_rest_and_kills(consortium: Loopback, out: Path, state: Path) -> None:
    on_common = [name for name in METHODS if name not in ON_BLOCKS]
    write_blocks(consortium, on_common, ".of_common_blocks()")
    begin(consortium, "second", out, rounds=2)
    consortium.wait("second")
    for name in on_common:
        assert_same(out, name, FED.of_common_blocks(), state)

    begin(consortium, "third", out, rounds=4, patience=45)
    goes_on = "FedRep: goes on after 2 of 4 rounds"
    consortium.until(lambda: goes_on in consortium.log("third"), "third", "it goes on")
    consortium.kill("v")
    missed = r"round \d, round: (no answer from client 'v'|client 'v' failed)"
    consortium.until(lambda: re.search(missed, consortium.log("third")) is not None, "third", "v is missed", 400)
    consortium.client("v")
    said = consortium.wait("third")
    took = list(pd.read_csv(out / "FedRep" / "history.csv")["took_part"])
    assert took[:3] == [4, 4, 4]
    assert 3 in took, said

    consortium.kill("server")
    consortium.server()
    begin(consortium, "fourth", out, rounds=5)
    said = consortium.wait("fourth")
    assert "FedRep: goes on after 4 of 5 rounds" in said
    history = pd.read_csv(out / "FedRep" / "history.csv")
    assert list(history["round"]) == [0, 1, 2, 3, 4, 5]
    assert history["took_part"].iloc[-1] == 4
