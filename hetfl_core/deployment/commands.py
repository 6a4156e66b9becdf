"""``hetfl deploy``: an app of your own, certificates to try it with, and Flower's programs with the right options."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from hetfl_core.cli_options import pair
from hetfl_core.deployment import gate
from hetfl_core.deployment.programs import program, surroundings
from hetfl_core.files import write_atomically

app = typer.Typer(
    help="Run the methods where the data are, on Flower.\n\n"
    "At the server: `new`, `certificates`, `server`, and a proxy before it. At each client: `key`, `client`. At the "
    "server again: `admit` each client's public key, then `start`. The README of a new app has the commands in order.",
    no_args_is_help=True,
)

TEMPLATE = Path(__file__).parent / "template"
DAYS = 365
"""For which certificates are valid."""

PAUSES = (15, 20, 25, 30)
"""Seconds between one start of a client and the next, where it does not come up."""

SETTLED = 45.0
"""Seconds after which a client that ends had come up."""

LOCAL = "127.0.0.1"
"""Where the SuperLink listens."""

Port = Annotated[int, typer.Option(help="Port of the SuperLink.")]
Secrets = Annotated[Path, typer.Option(help="Folder of certificates and keys.")]


@app.callback()
def _for_its_owner_alone(context: typer.Context) -> None:
    """Whatever a command writes, and what it starts, is for the eyes of who runs it: models, keys, Flower's state."""
    before = os.umask(0o077)
    context.call_on_close(lambda: os.umask(before))


@app.command()
def new(folder: Annotated[Path, typer.Argument(help="Folder to be made; its name is the app's.")]) -> None:
    """Make an app: what is trained, how a client reads its data, how many rounds."""
    name = folder.resolve().name
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise typer.BadParameter(f"an app is called by small letters, digits and hyphens, got {name!r}")
    _check_empty(folder)
    for source in sorted(TEMPLATE.rglob("*.tpl")):
        place = (folder / source.relative_to(TEMPLATE)).with_suffix("")
        place = place.with_name(".gitignore") if place.name == "gitignore" else place
        write_atomically(place, source.read_text("utf8").replace("<name>", name).encode())
    print(f"{folder} is ready: say what to train in federation/methods.py and read README.md")


@app.command()
def certificates(
    host: Annotated[list[str], typer.Option(help="Name or address by which clients call the server.")],
    secrets: Secrets = Path("secrets"),
) -> None:
    """Make a certificate of the server that signs itself, for trying TLS and for closed groups."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    if (secrets / "ca.crt").exists():
        raise FileExistsError(f"{secrets / 'ca.crt'} is there already; remove the folder to make others")

    def general_name(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    own, now = ec.generate_private_key(ec.SECP384R1()), datetime.datetime.now(datetime.UTC)
    until, number = now + datetime.timedelta(days=DAYS), x509.random_serial_number()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[0])])
    names = [general_name(each) for each in dict.fromkeys([*host, "localhost", "127.0.0.1"])]
    made = (
        x509.CertificateBuilder(subject, subject, own.public_key(), number, now, until)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(own, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    for file in ("ca.crt", "server.pem"):
        write_atomically(secrets / file, made.public_bytes(pem))
    private = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_secret(secrets / "server.key", private)
    print(f"{secrets}/ca.crt is for the clients; {secrets}/server.key must not leave this machine")


@app.command()
def key(name: Annotated[str, typer.Argument(help="Of the client.")], secrets: Secrets = Path("secrets")) -> None:
    """Make the key pair of a client; the server admits those whose public key it was given."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if (secrets / name).exists():
        raise FileExistsError(f"{secrets / name} is there already; remove it to make another")
    made, ssh = ec.generate_private_key(ec.SECP384R1()), serialization.Encoding.OpenSSH
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    _write_secret(secrets / name, made.private_bytes(*private))
    public = made.public_key().public_bytes(ssh, serialization.PublicFormat.OpenSSH)
    write_atomically(secrets / f"{name}.pub", public + b"\n")
    print(f"give {secrets}/{name}.pub to the server; {secrets}/{name} must not leave this machine")


@app.command()
def server(
    secrets: Secrets = Path("secrets"),
    host: Annotated[str, typer.Option(help="Address to listen at; one that this machine alone can reach.")] = LOCAL,
    port: Port = 8000,
    database: Annotated[Path | None, typer.Option(help="File in which Flower keeps its state.")] = None,
    behind: Annotated[
        str | None, typer.Option(help="HOST:PORT by which clients call the proxy; it must forward nothing else.")
    ] = None,
) -> None:
    """Start the SuperLink, on TLS, for this machine alone: clients come in by a proxy that lets no one else in.

    Clients must prove by their keys that they were admitted. But on the same port Flower obeys its owner, without
    a key: whoever reaches it, also by another account of this machine, can start runs and so run code here and at every
    client. The file nginx.conf of a new app lets through what clients need; with --behind it is tried out first.
    """
    for file in ("ca.crt", "server.pem", "server.key"):
        _needs(secrets / file, "hetfl deploy certificates --host NAME")
    if not gate.is_local(host):
        raise typer.BadParameter(
            f"whoever reaches the SuperLink can run code at every client, without a key, so it must listen at "
            f"{LOCAL}, got {host!r}: put a proxy before it that forwards what clients need (nginx.conf of a new app), "
            "and name that by --behind HOST:PORT"
        )
    if behind is not None:
        if not _closed(behind, secrets / "ca.crt", "the proxy"):
            raise ConnectionError(
                f"{behind} does not answer: start the proxy first (nginx.conf of a new app). Where this machine cannot "
                "call itself by that name, leave out --behind: `hetfl deploy client` looks at the proxy, too"
            )
        print(f"clients: hetfl deploy client --server {behind} ...", flush=True)
    _become(
        "flower-superlink",
        *("--ssl-ca-certfile", str(secrets / "ca.crt"), "--ssl-certfile", str(secrets / "server.pem")),
        *("--ssl-keyfile", str(secrets / "server.key"), "--enable-supernode-auth"),
        *("--disable-runtime-dependency-installation", "--host", host, "--port", str(port)),
        *([] if database is None else ["--database", str(database)]),
    )


@app.command()
def client(
    server: Annotated[str, typer.Option(help="Where the SuperLink is: HOST:PORT.")],
    ca: Annotated[Path, typer.Option(help="The certificate to trust: the server's ca.crt.")],
    key: Annotated[Path, typer.Option(help="This client's private key.")],
    name: Annotated[str, typer.Option(help="Of this client, in the federation.")],
    data: Annotated[str, typer.Option(help="What federation/data.py is to read: the path of a file.")] = "",
    state: Annotated[Path | None, typer.Option(help="Folder for what the client keeps, and its final model.")] = None,
    config: Annotated[list[str] | None, typer.Option(help="More for federation/data.py: KEY=VALUE.")] = None,
    port: Annotated[int, typer.Option(help="Port on this machine, for Flower's own processes.")] = 9094,
) -> None:
    """Start the SuperNode beside a client's data, where the server is not open to everybody.

    Whoever has an account on this machine may talk to it, and starts of runs come from the server: they execute code.
    """
    _needs(ca, "ask the server for its ca.crt")
    _needs(key, f"hetfl deploy key {name}")
    if not gate.is_local(gate.host_and_port(server)[0]):
        _closed(server, ca, "the server")  # one that does not answer yet is waited for by the SuperNode
    paths = {"data": data, "state": state or ""}
    told = {"name": name} | {key: str(Path(path).expanduser().resolve()) for key, path in paths.items() if path}
    told |= dict(map(pair, config or []))
    words = " ".join(f"{key}={_toml(value)}" for key, value in told.items() if value)
    _insist(
        "flower-supernode",
        *("--superlink", server, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key)),
        *("--host", "127.0.0.1", "--port", str(port), "--node-config", words),
    )


@app.command()
def admit(
    public: Annotated[list[Path], typer.Argument(help="Public keys of clients.")],
    secrets: Secrets = Path("secrets"),
    port: Port = 8000,
) -> None:
    """Let clients in, at the server."""
    home = _connection(secrets, port)
    for file in public:
        _needs(file, "ask the client for its NAME.pub")
        _flwr(home, "supernode", "register", str(file), "hetfl", "--name", file.stem)


@app.command()
def start(
    folder: Annotated[Path, typer.Argument(help="The app.")] = Path("."),
    secrets: Secrets = Path("secrets"),
    port: Port = 8000,
    config: Annotated[list[str] | None, typer.Option(help="In the place of pyproject.toml's: KEY=VALUE.")] = None,
) -> None:
    """Begin the rounds, at the server, or go on where they ended; what happens is shown until it is over."""
    settings = [f"{key}={_toml(value)}" for key, value in map(pair, config or [])]
    options = [word for setting in settings for word in ("--run-config", setting)]
    _flwr(_connection(secrets, port), "run", str(folder), "hetfl", "--stream", *options)


@app.command("try")
def try_here(
    folder: Annotated[Path | None, typer.Option(help="An empty folder to keep it in; by default none.")] = None,
    clients: Annotated[int, typer.Option(help="How many, from 2 on.", min=2, max=20)] = 3,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Try all of it on this machine: a server and clients as processes of their own, with digits of unlike pixels."""
    from hetfl_core.deployment import trial

    if folder is None:
        with tempfile.TemporaryDirectory() as some:
            return try_here(Path(some), clients, rounds)
    _check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    begin, here = time.perf_counter(), str(folder.resolve())

    def say(what: str) -> None:
        print(what.replace(f"{here}/", ""), flush=True)

    names = trial.write_data(folder / "data", clients)
    with trial.Loopback(folder, names, say) as loopback:
        loopback.server()
        loopback.admit(*names)
        for name in names:
            loopback.client(name, "--data", f"../data/{name}.csv")
        config = {"classes": 10, "clients": clients, "rounds": rounds, "evaluate_every": rounds}
        loopback.start("run", {**config, "folder": f"{here}/results"})
        for line in loopback.wait("run", 60 * (10 + rounds)).splitlines():
            say(re.sub(r"\x1b\[[0-9;]*m", "", line))
        if not list((folder / "results").glob("*/final.json")):
            raise typer.Exit(1)
    print(f"{time.perf_counter() - begin:.0f} s in all; each client's model: app/state/NAME/METHOD; results: results/")


# --- files ----------------------------------------------------------------------------------------------------------


def _check_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is there already, and not empty")


def _write_secret(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _connection(secrets: Path, port: int) -> Path:
    """A home for Flower's command that knows this SuperLink, beside the certificates."""
    _needs(secrets / "ca.crt", "hetfl deploy certificates --host NAME")
    ca = _toml(str((secrets / "ca.crt").resolve()))
    lines = ["[superlink]", 'default = "hetfl"', "[superlink.hetfl]"]
    lines += [f'address = "127.0.0.1:{port}"', f"root-certificates = {ca}", ""]
    write_atomically(secrets / "flwr" / "config.toml", "\n".join(lines).encode())
    return secrets / "flwr"


def _closed(address: str, ca: Path, what: str) -> bool:
    """Refuse what forwards more than clients need; False where it does not answer."""
    try:
        found = gate.forwarded(address, ca)
    except ConnectionError:
        return False
    if found:
        raise PermissionError(
            f"{what} at {address} forwards {', '.join(found)} of who has no key: whoever calls it could run code at "
            "every client. It must forward the paths in nginx.conf of a new app, and no others"
        )
    return True


# --- processes ------------------------------------------------------------------------------------------------------


def _needs(file: Path, remedy: str) -> None:
    if not file.exists():
        raise FileNotFoundError(f"there is no {file}: {remedy}")


def _become(name: str, *options: str) -> None:
    """Let this process become a program, so that signals reach it."""
    print("+", name, *options, flush=True)
    os.execve(program(name), [name, *options], surroundings())


def _insist(name: str, *options: str) -> None:
    """Run a program to its end, and start it again where it does not come up.

    A SuperNode that was killed is refused by the SuperLink for up to a minute when it comes back: so long the former
    connection counts as alive.
    """
    print("+", name, *options, flush=True)

    def stop(number: int, frame: object) -> None:
        raise typer.Exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    for pause in (*PAUSES, None):
        begin = time.monotonic()
        process = subprocess.Popen([program(name), *options], env=surroundings())
        try:
            code = process.wait()
        except (typer.Exit, KeyboardInterrupt) as stopped:
            if isinstance(stopped, typer.Exit):  # of an interrupt the terminal tells both
                process.terminate()
            process.wait()
            raise
        if not code or time.monotonic() - begin > SETTLED or pause is None:
            raise typer.Exit(code if code >= 0 else 128 - code)
        print(
            f"it did not come up; once more in {pause} s: a client that was killed has to wait for a minute", flush=True
        )
        _end_group()
        time.sleep(pause)


def _end_group() -> None:
    """End what a program left behind in this group of processes, which may be told from others where we lead it."""
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():
        old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        signal.signal(signal.SIGTERM, old)


def _flwr(home: Path, *words: str) -> None:
    """Run Flower's command to its end, which must be a good one."""
    print("+", "flwr", *words, flush=True)
    done = subprocess.run([program("flwr"), *words], env=surroundings(home), check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def _toml(value: str) -> str:
    if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?|true|false", value):
        return value
    return json.dumps(value, ensure_ascii=False)
