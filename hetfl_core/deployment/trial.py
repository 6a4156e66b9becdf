"""A whole federation on one machine: a server and clients as processes of their own, on TLS, on loopback.

`hetfl deploy try` and the tests of real processes are made of it. Each process is one of the commands that the machines
of a real federation would run.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import numpy as np
import pandas as pd

from hetfl_core.deployment.programs import surroundings
from hetfl_core.errors import RunError
from hetfl_core.files import write_atomically
from hetfl_core.rng import SERVER, numpy_stream

SLOW = 120.0
"""Seconds for which a process is waited for."""


class TrialError(RunError):
    """A process did not start, or did not come to its end; the message has the end of its log."""


class Loopback(AbstractContextManager["Loopback"]):
    """A server and clients in folders of their own, started and stopped by ``hetfl deploy``.

    Parameters
    ----------
    folder : path
        An empty one: the app is in ``app``, each process' output in ``<name>.log``.
    names : sequence of str
        Clients for which there are to be keys.
    say : callable, optional
        Is given each command, and what commands print that come to an end. By default nothing is said.
    """

    def __init__(self, folder: Path, names: Sequence[str], say: Callable[[str], None] = lambda what: None) -> None:
        self.folder, self.say = folder.resolve(), say
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.app = self.folder / "app"
        self.call("new", "app", at=self.folder)
        self.call("certificates", "--host", "localhost")
        for name in names:
            self.call("key", name)

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    def call(self, *words: str, at: Path | None = None) -> None:
        """Run a command of ``hetfl deploy`` to its end.

        Parameters
        ----------
        *words : str
            The command and its arguments.
        at : Path, optional
            Folder in which it runs; by default the app's.

        Raises
        ------
        TrialError
            Where it fails.
        """
        self.say(f"$ hetfl deploy {' '.join(words)}")
        done = subprocess.run(
            _command(words), cwd=at or self.app, env=surroundings(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise TrialError(f"hetfl deploy {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        for line in done.stdout.splitlines():
            self.say(line)

    def begin(self, name: str, *words: str) -> None:
        """Start a command of ``hetfl deploy`` in the background."""
        self.say(f"$ hetfl deploy {' '.join(words)} &")
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                _command(words),
                cwd=self.app,
                env=surroundings(home),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def server(self) -> None:
        """Start the server; what it knew before it was killed it still knows."""
        known = str(self.folder / "flower.db")
        self.begin("server", "server", "--host", "127.0.0.1", "--port", str(self.port), "--database", known)
        self.until(lambda: listens(self.port), "server", "the server listens")

    def client(self, name: str, *words: str, port: int | None = None) -> None:
        """Start a client.

        Parameters
        ----------
        name : str
        *words : str
            More for ``hetfl deploy client``.
        port : int, optional
            By default the server's; else that of what is between.

        Raises
        ------
        TrialError
            Where it does not start.
        """
        own = free_port()
        self.begin(
            name,
            *("client", "--server", f"127.0.0.1:{port or self.port}", "--ca", "secrets/ca.crt"),
            *("--key", f"secrets/{name}", "--name", name, "--state", "state", "--port", str(own), *words),
        )
        self.until(lambda: listens(own), name, f"{name} is up")

    def admit(self, *names: str) -> None:
        """Let clients in by their public keys, at the server."""
        self.call("admit", *(f"secrets/{name}.pub" for name in names), "--port", str(self.port))

    def start(self, name: str, config: Mapping[str, object]) -> None:
        """Begin a run, whose output is the log of this name; `wait` waits for its end."""
        pairs = [f"{key.replace('_', '-')}={value}" for key, value in config.items()]
        self.begin(name, "start", ".", "--port", str(self.port), *(w for p in pairs for w in ("--config", p)))

    def wait(self, name: str, seconds: float = 600) -> str:
        """Wait for the end of a run, and return its whole log.

        Parameters
        ----------
        name : str
            Of the run.
        seconds : float
            For which it is waited at most.

        Returns
        -------
        str

        Raises
        ------
        TrialError
            Where it takes longer.
        """
        try:
            self.processes.pop(name).wait(seconds)
        except subprocess.TimeoutExpired as error:
            ends = "\n".join(self.log(one)[-3000:] for one in (name, "server"))
            raise TrialError(f"{name} took more than {seconds:g} s:\n{ends}") from error
        return self.log(name)

    def kill(self, name: str) -> None:
        """End a process and what it started, at once, without a word."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        process.wait()

    def log(self, name: str) -> str:
        """Text that a process has printed so far."""
        return (self.folder / f"{name}.log").read_text("utf8", errors="replace")

    def until(self, condition: Callable[[], bool], name: str, what: str, seconds: float = SLOW) -> None:
        """Wait for something that shows in a process or its log.

        Raises
        ------
        TrialError
            Where the process ends before, or it takes longer.
        """
        begin = time.monotonic()
        while not condition():
            if self.processes[name].poll() is not None and not condition():
                self.kill(name)
                raise TrialError(f"{name} ended before {what}:\n{self.log(name)[-3000:]}")
            if time.monotonic() - begin > seconds:
                raise TrialError(f"waited {seconds:g} s until {what}:\n{self.log(name)[-3000:]}")
            time.sleep(0.2)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as some:
        return int(some.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as some:
        return some.connect_ex(("127.0.0.1", port)) == 0


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "hetfl_core.cli", "deploy", *words]


def write_data(folder: Path, n_clients: int, seed: int = 0) -> list[str]:
    """A CSV file for each client, of scikit-learn's bundled digits: 80 images of its own, and pixels of its own.

    Client k has 24 + 8 (k mod 6) of the 64 pixels, drawn at random, and a column ``label``.

    Parameters
    ----------
    folder : path
    n_clients : int
        At most 20.
    seed : int

    Returns
    -------
    list of str
        Names of the clients; the files are called ``<name>.csv``.
    """
    from hetfl_core.datasets.digits import bundled_images

    x, y = bundled_images()
    rng = numpy_stream(seed, SERVER, 0, "deployment.trial")
    order, names = rng.permutation(len(y)), [f"client-{k + 1}" for k in range(n_clients)]
    for k, name in enumerate(names):
        rows, columns = order[80 * k :][:80], np.sort(rng.permutation(64)[: 24 + 8 * (k % 6)])
        table = pd.DataFrame(x[np.ix_(rows, columns)], columns=[f"pixel-{c}" for c in columns]).assign(label=y[rows])
        write_atomically(folder / f"{name}.csv", table.to_csv(index=False).encode())
    return names
