"""Who reaches the server: the SuperLink listens on its own machine, and a proxy lets through what clients need."""

from __future__ import annotations

import os
import ssl
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import doors
import pytest
from typer.testing import CliRunner

from hetfl_core import cli
from hetfl_core.deployment import commands, gate, programs

ROOT = Path(__file__).parents[1]


def deploy(*words):
    done = CliRunner().invoke(cli.app, ["deploy", *map(str, words)])
    return done, done.output + (str(done.exception) if done.exception else "")


@pytest.fixture
def app(tmp_path, monkeypatch):
    """A new app with its certificate, and the programs that would be started in place of this process."""
    begun = []
    monkeypatch.setattr(commands, "_become", lambda *words: begun.append(words))
    monkeypatch.setattr(commands, "_insist", lambda *words: begun.append(words))
    folder = tmp_path / "study"
    assert deploy("new", folder)[0].exit_code == 0
    assert deploy("certificates", "--host", "localhost", "--secrets", folder / "secrets")[0].exit_code == 0
    assert deploy("key", "berlin", "--secrets", folder / "secrets")[0].exit_code == 0
    return folder, begun


@pytest.fixture
def answering(app):
    """A server that answers all that is asked of it in one way; its port, and what was asked."""
    folder, _ = app
    servers = []

    def begin(status):
        class Answer(BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *words): ...

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "secrets/server.pem", folder / "secrets/server.key")
        server = HTTPServer(("127.0.0.1", 0), Answer)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_address[1]

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_study_is_its_owners_alone(tmp_path):
    """With the keys in it, and whatever is put there later."""
    before = os.umask(0o022)
    try:
        folder = tmp_path / "study"
        deploy("new", folder)
        deploy("certificates", "--host", "localhost", "--secrets", folder / "secrets")
        deploy("key", "berlin", "--secrets", folder / "secrets")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    rights = {path: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert {path.name for path in rights} >= {"secrets", "berlin", "server.key", "nginx.conf", "methods.py"}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in rights.items())


def test_the_superlink_listens_on_its_own_machine_unless_told_otherwise(app):
    folder, begun = app
    done, _ = deploy("server", "--secrets", folder / "secrets")
    assert done.exit_code == 0
    (words,) = begun
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert "--enable-supernode-auth" in words


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "server.example.org", "192.168.0.7"])
@pytest.mark.parametrize("more", [(), ("--behind", "server.example.org:8443")], ids=["alone", "behind a proxy"])
def test_and_is_started_nowhere_else(app, host, more):
    folder, begun = app
    done, said = deploy("server", "--secrets", folder / "secrets", "--host", host, *more)
    assert done.exit_code
    assert not begun
    said = " ".join(said.replace("│", " ").split())
    assert "so it must listen at 127.0.0.1" in said
    assert "put a proxy before it" in said


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True)])
def test_what_is_this_machine_alone(host, local):
    assert gate.is_local(host) is local
    assert gate.is_local("localhost")
    assert not any(map(gate.is_local, ("0.0.0.0", "::", "8.8.8.8", "localhost.example.org", "")))


def test_a_proxy_that_forwards_more_is_refused_before_the_start(app, answering):
    folder, begun = app
    secrets = ("--secrets", folder / "secrets")
    for status in (200, 415, 502, 504, 500, 307):  # a proxy that forwards to a SuperLink not yet there says 502
        done, said = deploy("server", *secrets, "--behind", f"localhost:{answering(status)}")
        assert done.exit_code
        assert f"forwards /v1/control/list-nodes ({status})" in said
        assert "of who has no key: whoever calls it could run code at every client" in said
    assert not begun
    done, said = deploy("server", *secrets, "--behind", f"localhost:{answering(403)}")
    assert done.exit_code == 0
    assert "clients: hetfl deploy client --server localhost:" in said
    assert len(begun) == 1
    done, said = deploy("server", *secrets, "--behind", f"localhost:{doors.free_port()}")
    assert "does not answer: start the proxy first" in said
    done, said = deploy("server", *secrets, "--behind", "somewhere")
    assert "an address must be HOST:PORT" in said
    assert len(begun) == 1


def test_a_client_does_not_go_to_a_server_that_is_open_to_everybody(app, answering, monkeypatch):
    folder, begun = app
    own = ("--ca", folder / "secrets/ca.crt", "--key", folder / "secrets/berlin", "--name", "berlin")
    monkeypatch.setattr(gate, "is_local", lambda host: False)
    done, said = deploy("client", "--server", f"localhost:{answering(200)}", *own)
    assert done.exit_code
    assert "the server at localhost:" in said
    assert "could run code at every client" in said
    assert not begun
    for port in (answering(404), doors.free_port()):  # a server that is not up yet is waited for
        assert deploy("client", "--server", f"localhost:{port}", *own)[0].exit_code == 0
    assert len(begun) == 2
    monkeypatch.undo()


def test_the_paths_are_those_that_a_client_with_a_key_asks_for():
    router = pytest.importorskip("flwr.superlink.routers.fleet.router", reason="Flower is not installed").router
    all_of_them = {route.path for route in router.routes}
    assert all_of_them - {*gate.FLEET} == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}, "for who has no key"
    text = (Path(gate.__file__).parent / "template/nginx.conf.tpl").read_text("utf8")
    assert "|".join(path.rpartition("/")[2] for path in gate.FLEET) in text
    assert text in (ROOT / "book/how-to-run.md").read_text("utf8"), "the page shows the very file"


def test_flower_has_the_version_whose_port_was_looked_at():
    """Which paths are whose, and which ports there are, has changed from version to version."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]["optional-dependencies"]
    (pin,) = [each for each in extras["deploy"] if each.startswith("flwr")]
    assert pin == "flwr>=1.41,<1.42"
    assert f"- {pin}\n" in (ROOT / "environment.yml").read_text("utf8")


def test_former_ports_stay_closed_whatever_the_environment_says(monkeypatch):
    for name in programs.CLOSED:
        monkeypatch.setenv(name, "1")
    constants = pytest.importorskip("flwr.common.constant", reason="Flower is not installed")
    assert {constants.FLWR_INTERNAL_GRPC_CONTROL_API, constants.FLWR_INTERNAL_GRPC_FLEET_API} == {*programs.CLOSED}
    assert {programs.surroundings()[name] for name in programs.CLOSED} == {"0"}
