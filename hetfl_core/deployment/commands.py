"""``hetfl deploy``: an app of your own, certificates to try it with, and Flower's programs with the right options."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from hetfl_core.deployment.programs import program, surroundings
from hetfl_core.files import write_atomically

app = typer.Typer(
    help="Run the methods where the data are, on Flower.\n\n"
    "At the server: `new`, `certificates`, `server`. At each client: `key`, `client`. At the server again: `admit` "
    "each client's public key, then `start`. The README of a new app has the commands in order.",
    no_args_is_help=True,
)

TEMPLATE = Path(__file__).parent / "template"
DAYS = 365
"""For which certificates are valid."""

PAUSES = (15, 20, 25, 30)
"""Seconds between one start of a client and the next, where it does not come up."""

SETTLED = 45.0
"""Seconds after which a client that ends had come up."""

USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
"""What a certificate may be for, by X.509."""

Port = Annotated[int, typer.Option(help="Port of the SuperLink.")]
Secrets = Annotated[Path, typer.Option(help="Folder of certificates and keys.")]


@app.command()
def new(folder: Annotated[Path, typer.Argument(help="Folder to be made; its name is the app's.")]) -> None:
    """Make an app: what is trained, how a client reads its data, how many rounds."""
    name = folder.resolve().name
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise typer.BadParameter(f"an app is called by small letters, digits and hyphens, got {name!r}")
    if folder.exists() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is there already, and not empty")
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
    """Make an authority of your own and a certificate of the server, for trying TLS and for closed groups."""
    make_certificates(secrets, host)
    print(f"{secrets}/ca.crt is for the clients; {secrets}/server.key must not leave this machine")


@app.command()
def key(name: Annotated[str, typer.Argument(help="Of the client.")], secrets: Secrets = Path("secrets")) -> None:
    """Make the key pair of a client; the server admits those whose public key it was given."""
    make_key(secrets / name)
    print(f"give {secrets}/{name}.pub to the server; {secrets}/{name} must not leave this machine")


@app.command()
def server(
    secrets: Secrets = Path("secrets"),
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all.")] = "0.0.0.0",
    port: Port = 8000,
    database: Annotated[Path | None, typer.Option(help="File in which Flower keeps its state.")] = None,
) -> None:
    """Start the SuperLink, on TLS, for clients that were admitted."""
    for file in ("ca.crt", "server.pem", "server.key"):
        _needs(secrets / file, "hetfl deploy certificates --host NAME")
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
    ca: Annotated[Path, typer.Option(help="The authority's certificate, ca.crt.")],
    key: Annotated[Path, typer.Option(help="This client's private key.")],
    name: Annotated[str, typer.Option(help="Of this client, in the federation.")],
    data: Annotated[str, typer.Option(help="What federation/data.py is to read: the path of a file.")] = "",
    state: Annotated[Path | None, typer.Option(help="Folder for what the client keeps, and its final model.")] = None,
    config: Annotated[list[str] | None, typer.Option(help="More for federation/data.py: KEY=VALUE.")] = None,
    port: Annotated[int, typer.Option(help="Port on this machine, for Flower's own processes.")] = 9094,
) -> None:
    """Start the SuperNode beside a client's data."""
    _needs(ca, "ask the server for its ca.crt")
    _needs(key, f"hetfl deploy key {name}")
    told = {"name": name, "data": data and _absolute(data), "state": "" if state is None else _absolute(state)}
    told |= dict(_pair(one) for one in config or [])
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
    options = [part for one in config or [] for part in ("--run-config", f"{_pair(one)[0]}={_toml(_pair(one)[1])}")]
    _flwr(_connection(secrets, port), "run", str(folder), "hetfl", "--stream", *options)


@app.command("try")
def try_here(
    folder: Annotated[Path | None, typer.Option(help="An empty folder to keep it in; by default none.")] = None,
    clients: Annotated[int, typer.Option(help="How many, from 2 on.", min=2, max=20)] = 3,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Try all of it on this machine: a server and clients as processes of their own, with digits of unlike pixels."""
    if folder is not None:
        if folder.exists() and any(folder.iterdir()):
            raise typer.BadParameter(f"{folder} is there already, and not empty")
        folder.mkdir(parents=True, exist_ok=True)
        return _try_in(folder, clients, rounds)
    with tempfile.TemporaryDirectory() as some:
        _try_in(Path(some), clients, rounds)


def _try_in(folder: Path, clients: int, rounds: int) -> None:
    from hetfl_core.deployment import trial

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


def make_certificates(folder: Path, hosts: list[str]) -> None:
    """Write ``ca.crt``, ``server.pem`` and ``server.key``; what is there already is left, and refused.

    Raises
    ------
    FileExistsError
        Where the folder has certificates: clients may have been given them.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    if (folder / "ca.crt").exists():
        raise FileExistsError(f"{folder / 'ca.crt'} is there already; remove the folder to make others")
    now = datetime.datetime.now(datetime.UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("hetfl authority"))
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=DAYS))

    own, served = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    usage = dict.fromkeys(USES, False)
    root = (
        certificate("hetfl authority", own)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .sign(own, hashes.SHA384())
    )
    names = [_general_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    leaf = (
        certificate(hosts[0], served)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "digital_signature": True}), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), critical=False)
        .sign(own, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    secret = served.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_atomically(folder / "ca.crt", root.public_bytes(pem))
    write_atomically(folder / "server.pem", leaf.public_bytes(pem))
    _write_secret(folder / "server.key", secret)


def _general_name(host: str):  # type: ignore[no-untyped-def]
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_key(path: Path) -> None:
    """Write a private key, which only its owner may read, and ``<path>.pub``, in OpenSSH's format (P-384).

    Raises
    ------
    FileExistsError
        Where there is one.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if path.exists():
        raise FileExistsError(f"{path} is there already; remove it to make another")
    made = ec.generate_private_key(ec.SECP384R1())
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write_secret(path, made.private_bytes(*private))
    write_atomically(path.with_name(path.name + ".pub"), made.public_key().public_bytes(*public) + b"\n")


def _write_secret(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _connection(secrets: Path, port: int) -> Path:
    """A home for Flower's command that knows this SuperLink, beside the certificates."""
    _needs(secrets / "ca.crt", "hetfl deploy certificates --host NAME")
    home = secrets / "flwr"
    ca = (secrets / "ca.crt").resolve()
    text = (
        '[superlink]\ndefault = "hetfl"\n\n[superlink.hetfl]\n'
        f'address = "127.0.0.1:{port}"\nroot-certificates = {_toml(str(ca))}\n'
    )
    write_atomically(home / "config.toml", text.encode())
    return home


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
    stopped: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        if children[-1].poll() is not None:  # between two starts
            raise typer.Exit(128 + number)
        if number == signal.SIGTERM:  # of an interrupt the terminal tells all of them
            children[-1].terminate()

    for pause in (*PAUSES, None):
        begin = time.monotonic()
        children.append(subprocess.Popen([program(name), *options], env=surroundings()))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        code = children[-1].wait()
        if not code or stopped or time.monotonic() - begin > SETTLED or pause is None:
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
    print("+", "flwr", *words, flush=True)
    done = subprocess.run([program("flwr"), *words], env=surroundings(home), check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().resolve())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}")
    return name, value


def _toml(value: str) -> str:
    if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?|true|false", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
