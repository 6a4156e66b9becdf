"""A deployment of real processes on loopback: Flower's SuperLink and SuperNodes, on TLS, with authentication."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
import torch
from test_blocks import FED, refuses, short

from hetfl_core import simulate
from hetfl_core.deployment import load_model
from hetfl_core.engine import checkpoint

pytest.importorskip("flwr", reason="Flower is not installed")
if not os.environ.get("HETFL_PROCESSES"):
    reason = "starts some sixty processes: set HETFL_PROCESSES=1, and HETFL_LONG=1 for the kills as well"
    pytest.skip(reason, allow_module_level=True)

CLIENTS = [client.name for client in FED]
METHODS = ["Local", "FedRep", "FLIC-HL", "FedHeNN", "FedCR", "pFedHN", "HyFEM"]
ON_BLOCKS = [name for name in METHODS if not refuses(short(name))]
ON_COMMON = [name for name in METHODS if refuses(short(name))]
LONG = bool(os.environ.get("HETFL_LONG"))
"""Whether to go on to the rest of the methods and to the kills, which takes minutes more on two cores."""

SETTINGS = {"seed": 3, "dtype": torch.float64, "engine": "loop", "device": "cpu", "progress": False}

APP = """
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


class Consortium:
    """A server and clients in folders of their own, started and stopped by ``hetfl deploy``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, {}
        self.port = free_port()
        self.home = folder / "home"
        self.home.mkdir()
        hetfl("deploy", "new", "app", at=folder)
        self.app = folder / "app"
        hetfl("deploy", "certificates", "--host", "localhost", at=self.app)
        for name in [*CLIENTS, "stranger"]:
            hetfl("deploy", "key", name, at=self.app)

    def write_app(self, names: list[str], common: bool) -> None:
        tests = str(Path(__file__).parent)
        (self.app / "federation/methods.py").write_text(APP.format(tests=tests, names=names))
        (self.app / "federation/data.py").write_text(
            DATA.format(tests=tests, common=".of_common_blocks()" if common else "")
        )

    def begin(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "hetfl_core.cli", "deploy", *words],
                cwd=self.app,
                env=environment() | {"FLWR_HOME": str(self.home / name)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def server(self) -> None:
        database = str(self.folder / "flower.db")
        self.begin("server", "server", "--host", "127.0.0.1", "--port", str(self.port), "--database", database)
        until(lambda: listens(self.port), "the server listens")

    def client(self, name: str, port: int | None = None) -> None:
        """Start a node; on a busy machine Flower's own server within it may not be up in time, and it ends."""
        for _ in range(3):
            own = free_port()
            self.begin(
                name,
                *("client", "--server", f"127.0.0.1:{port or self.port}", "--ca", "secrets/ca.crt"),
                *("--key", f"secrets/{name}", "--name", name, "--state", "state", "--port", str(own)),
            )
            until(lambda own=own: listens(own) or self.processes[name].poll() is not None, f"{name} is up")
            if self.processes[name].poll() is None:
                return
            self.kill(name)
        pytest.fail(f"{name} does not start:\n{self.log(name)}")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf8", errors="replace")

    def admit(self) -> None:
        hetfl("deploy", "admit", *(f"secrets/{n}.pub" for n in CLIENTS), "--port", str(self.port), at=self.app)

    def start(self, name: str, out: Path, **config: object) -> None:
        """Begin a run; `wait` waits for its end."""
        shared = {"classes": 3, "clients": len(CLIENTS), "seed": 3, "dtype": "float64", "folder": str(out)}
        pairs = [f"{k.replace('_', '-')}={v}" for k, v in {**shared, **config}.items()]
        options = [word for pair in pairs for word in ("--config", pair)]
        self.begin(name, "start", ".", "--port", str(self.port), *options)

    def wait(self, name: str, seconds: float = 400) -> str:
        try:
            self.processes.pop(name).wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} took more than {seconds} s:\n{self.log(name)}\n{self.log('server')[-3000:]}")
        return self.log(name)

    def end(self) -> None:
        for name in list(self.processes):
            self.kill(name)


def environment() -> dict[str, str]:
    return {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def hetfl(*words: str, at: Path) -> None:
    subprocess.run([sys.executable, "-m", "hetfl_core.cli", *words], cwd=at, env=environment(), check=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as some:
        return int(some.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as some:
        return some.connect_ex(("127.0.0.1", port)) == 0


def until(condition, what: str, seconds: float = 120) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, f"waited {seconds} s until {what}"
        time.sleep(0.2)


def assert_same(out: Path, name: str, federation, state: Path, **options) -> None:
    """The server's tensors, bytes and the clients' final models, bit for bit; means of accuracies but for rounding."""
    method = short(name)
    run = simulate(federation, method, **{"rounds": 2, **SETTINGS, **options})
    history = pd.read_csv(out / name / "history.csv")
    final = json.loads((out / name / "final.json").read_text())
    for column in ("round", "bytes_up", "bytes_down"):
        assert list(history[column]) == list(run.history[column]), column
    assert history["test_accuracy"].iloc[-1] == pytest.approx(run.history["test_accuracy"].iloc[-1], rel=1e-12)
    assert all(final[key] == pytest.approx(run.final[key], rel=1e-12) for key in ("accuracy", "bytes_up", "bytes_down"))
    _, tensors = checkpoint._open(out / name / checkpoint.FILE, "cpu")
    assert {k.removeprefix("server/") for k in tensors if k.startswith("server/")} == set(run.server)
    for key, p in run.server.items():
        assert torch.equal(tensors[f"server/{key}"], p), key
    for client, params in zip(federation, run.params, strict=True):
        mine, _ = load_model(state / client.name / name)
        assert mine.keys() == params.keys()
        assert all(torch.equal(mine[key], p) for key, p in params.items())


def test_four_nodes_on_tls_come_out_as_one_process_and_survive_kills(tmp_path):
    """One story, as processes are slow to start.

    Methods side by side on blocks of features that some clients lack, and a stranger who is not let in; then those
    that average embeddings on the common ones; then a node is killed in the middle of a round and comes back, and the
    server between two runs.
    """
    consortium = Consortium(tmp_path)
    out, state = tmp_path / "out", consortium.app / "state"
    try:
        consortium.server()
        consortium.admit()
        wire = Wire(consortium.port)
        for name in CLIENTS:
            consortium.client(name, wire.port if name == "u" else None)
        consortium.client("stranger")
        consortium.write_app(ON_BLOCKS, common=False)
        consortium.start("first", out, rounds=2 if LONG else 1)
        said = consortium.wait("first")
        assert "stranger" not in said
        assert "stranger" not in (out / "events.log").read_text()
        for name in ON_BLOCKS:
            assert_same(out, name, FED, state, rounds=2 if LONG else 1)

        # Nothing that was said can be read on the wire: TLS from its first byte.
        assert wire.seen[:2] == b"\x16\x03", "a TLS handshake"
        assert len(wire.seen) > 100_000
        words = [b"phi.a", b"numpy.ndarray", b"class_counts", b"FLIC-HL", b"pyproject"]
        assert not any(word in wire.seen for word in words)
        assert "No SuperNode found with the given public key" in consortium.log("server")
        consortium.kill("stranger")

        if not LONG:
            return

        consortium.write_app(ON_COMMON, common=True)
        consortium.start("second", out, rounds=2)
        consortium.wait("second")
        for name in ON_COMMON:
            assert_same(out, name, FED.of_common_blocks(), state)

        consortium.start("third", out, rounds=4, patience=45)
        until(lambda: "FedRep: goes on after 2 of 4 rounds" in consortium.log("third"), "it goes on")
        consortium.kill("v")
        missed = r"round \d, round: (no answer from client 'v'|client 'v' failed)"
        until(lambda: re.search(missed, consortium.log("third")) is not None, "v is missed", 400)
        consortium.client("v")
        said = consortium.wait("third")
        took = list(pd.read_csv(out / "FedRep" / "history.csv")["took_part"])
        assert took[:3] == [4, 4, 4]
        assert 3 in took, said

        consortium.kill("server")
        consortium.server()
        consortium.start("fourth", out, rounds=5)
        said = consortium.wait("fourth")
        assert "FedRep: goes on after 4 of 5 rounds" in said
        history = pd.read_csv(out / "FedRep" / "history.csv")
        assert list(history["round"]) == [0, 1, 2, 3, 4, 5]
        assert history["took_part"].iloc[-1] == 4
    finally:
        consortium.end()
