"""Proxies before a SuperLink that let through what clients need: one of Python alone, and nginx as a new app has it."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hetfl_core.deployment import gate
from hetfl_core.deployment.trial import free_port, listens

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


class Door(BaseHTTPRequestHandler):
    """Forwards a POST to one of the paths in `gate.FLEET`, and refuses all else."""

    protocol_version = "HTTP/1.1"
    to = 0
    trusted: ssl.SSLContext
    HOP = ("connection", "host", "transfer-encoding", "content-length")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path not in gate.FLEET:
            return self.answer(403, {}, b"")
        line = http.client.HTTPSConnection("localhost", self.to, timeout=60, context=self.trusted)
        try:
            line.request("POST", self.path, body, {k: v for k, v in self.headers.items() if k.lower() not in self.HOP})
            reply = line.getresponse()
            self.answer(reply.status, {k: v for k, v in reply.getheaders() if k.lower() not in self.HOP}, reply.read())
        except OSError:
            self.answer(502, {}, b"")
        finally:
            line.close()

    def do_GET(self) -> None:
        self.answer(403, {}, b"")

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None: ...


@contextmanager
def plain(app: Path, to: int, door: type[Door] = Door) -> Iterator[int]:
    """The port of a proxy of Python's own, before a SuperLink."""
    trusted = ssl.create_default_context(cafile=str(app / "secrets/ca.crt"))
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(app / "secrets/server.pem", app / "secrets/server.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (door,), {"to": to, "trusted": trusted}))
    server.daemon_threads = True
    server.socket = own.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def nginx(app: Path, to: int) -> Iterator[int]:
    """The port of nginx with the file that a new app has, but for the ports."""
    port = free_port()
    text = (app / "nginx.conf").read_text()
    assert text.count("listen 8443 ssl") == text.count("127.0.0.1:8000;") == 1
    text = text.replace("listen 8443", f"listen 127.0.0.1:{port}").replace("127.0.0.1:8000;", f"127.0.0.1:{to};")
    (app / "nginx.conf").write_text(text)
    process = subprocess.Popen([NGINX, "-p", f"{app}/", "-c", "nginx.conf", "-g", "daemon off;"])
    try:
        begin = time.monotonic()
        while not listens(port):
            assert process.poll() is None, (app / "nginx.log").read_text()
            assert time.monotonic() - begin < 30
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def asked(port: int, line: str, certificate: Path) -> int:
    """The status that a server answers to a request's first line, as it stands, without a key."""
    trusted = ssl.create_default_context(cafile=str(certificate))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as bare,
        trusted.wrap_socket(bare, server_hostname="localhost") as secured,
    ):
        head = "Host: localhost\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        secured.sendall(f"{line}\r\n{head}".encode("latin-1"))
        reply = b""
        while data := secured.recv(65536):
            reply += data
    found = re.match(rb"HTTP/1\.[01] (\d+)", reply)
    return int(found[1]) if found else 0
