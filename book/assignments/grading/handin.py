"""The process of one hand-in: runs its notebook, and lends its functions to the checks.

``python handin.py NUMBER_OF_A_SOCKET MODULE...`` imports the modules that the checks need, and then, for each job that comes through
the socket, forks a process for one hand-in. This saves the time of the imports; the process itself never runs a hand-in.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from grading import confine, wire

MAX_VARIABLE, MAX_VARIABLES = 1_000_000, 5_000_000
"""Largest variable of a notebook that a check sees as it is, and largest sum of them, in characters of JSON."""

LEFT, BROKEN = 3, 4
"""Exit status of a process whose notebook called ``exit()``, and of one that could not be confined."""


class HandIn(wire.Peer):
    """The end of the line in the process of a hand-in."""

    def __init__(self, connection: Connection, shell: Any) -> None:
        super().__init__(connection, trusting=True)
        self.shell = shell
        self.case = -1
        self.room = MAX_VARIABLES

    def check(self, question: str, variables: dict[str, Any] | None = None) -> str:
        """Have a question checked with the variables as they are now."""
        variables = self.shell.user_ns if variables is None else variables
        self.ask({"do": "check", "question": str(question), **self.state(variables)})
        return f"{question} has been checked"

    def state(self, variables: dict[str, Any]) -> dict[str, Any]:
        """All that the checks may look at."""
        hidden = self.shell.user_ns_hidden
        mine = {
            n: v
            for n, v in variables.items()
            if isinstance(n, str) and not n.startswith("_") and hidden.get(n) is not v
        }
        self.room = MAX_VARIABLES
        torch = wire.torch_or_none()
        dtype = str(torch.get_default_dtype()).removeprefix("torch.") if torch else ""
        return {"variables": {name: self.variable(value) for name, value in mine.items()}, "dtype": dtype}

    def variable(self, value: Any) -> Any:
        """A variable as a value if it is plain and not too large, else as a name."""
        try:
            if self.room < 100:
                return self._lend(value)
            sent = self.encode(value, wire.Letter())
            size = len(json.dumps(sent))
            if size <= min(MAX_VARIABLE, self.room):
                self.room -= size
                return sent
        except Exception:
            pass
        return self._lend(value)

    @contextlib.contextmanager
    def surrounded(self, message: dict[str, Any]) -> Iterator[None]:
        """Put the functions of a check in place of the notebook's, and block the libraries that it blocks."""
        if message.get("case") != self.case:
            self.case = message.get("case")
            self.theirs.clear()
        given = {name: self.decode(value, wire.Letter()) for name, value in message.get("given", {}).items()}
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(self.shell.user_ns, given))
            for name in message.get("taken", []):
                self.shell.user_ns.pop(name, None)
            stack.enter_context(mock.patch.dict(sys.modules, dict.fromkeys(message.get("blocked", []))))
            for module, name in message.get("absent", []):
                if module in sys.modules:
                    stack.enter_context(mock.patch.object(sys.modules[module], name, None, create=True))
            yield


def make_shell(folder: Path) -> Any:
    """A shell as notebooks have it, without a history and without colours."""
    os.environ["IPYTHONDIR"] = str(folder / ".ipython")
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def ask_exit(self) -> None:
            """End the process, as ``exit()`` ends a kernel."""
            print("the notebook ended its own process by exit()", flush=True)
            os._exit(LEFT)

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "NoColor"
    settings.InteractiveShell.xmode = "Minimal"
    return Shell.instance(config=settings)


def stand_in(peer: HandIn) -> types.ModuleType:
    """A module ``otter`` whose notebooks ask for their checks over the line."""

    class Notebook:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def check(self, question: str, global_env: dict[str, Any] | None = None) -> str:
            return peer.check(question, global_env)

        def check_all(self) -> str:
            peer.ask({"do": "check_all", **peer.state(peer.shell.user_ns)})
            return "all questions have been checked"

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return lambda *args, **kwargs: None

    module = types.ModuleType("otter")
    module.__spec__ = importlib.machinery.ModuleSpec("otter", None)
    module.Notebook = Notebook
    return module


def functions_of(modules: list[str]) -> dict[str, tuple[types.ModuleType, str, Any]]:
    """Functions in some modules, by their full names."""
    found = {}
    for module in filter(None, map(sys.modules.get, modules)):
        found |= {f"{module.__name__}.{n}": (module, n, v) for n, v in list(vars(module).items()) if _is_function(v)}
    return found


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def replaced_of(before: dict[str, tuple[types.ModuleType, str, Any]]) -> list[str]:
    """Names of functions that are others now; PyTorch itself wraps one of its own when the first optimizer is made."""
    found = []
    for name, (module, n, value) in before.items():
        now = vars(module).get(n)
        if now is not value and not (name == "torch.manual_seed" and _wrapped_by_torch(now, value)):
            found.append(name)
    return found


def _wrapped_by_torch(now: Any, value: Any) -> bool:
    from torch import _compile

    by_torch = _compile._disable_dynamo.__code__.co_consts
    return getattr(now, "__wrapped__", None) is value and getattr(now, "__code__", None) in by_torch


def run(connection: Connection, job: dict[str, Any]) -> None:
    """Run a notebook, cell by cell; an error ends its cell."""
    folder = Path(job["folder"])
    shell = make_shell(folder)
    peer = HandIn(connection, shell)
    sys.modules["otter"] = stand_in(peer)
    sys.path[0] = ""
    sys.path.append(str(folder))
    before = functions_of(job["watched"])
    random_numbers = sys.modules.get("numpy.random")
    if random_numbers:
        random_numbers.seed()
    errors = []
    for number, source in enumerate(job["cells"], 1):
        peer.ask({"do": "cell", "number": number})
        with contextlib.suppress(Exception):  # errors of the cell are shown; these are of showing them
            ran = shell.run_cell(source, store_history=True)
            error = ran.error_before_exec or ran.error_in_exec
            if error is not None:
                said = f"{error.msg}, line {error.lineno}" if type(error) is SyntaxError else wire.text_of(error)
                errors.append(f"code cell {number}: {type(error).__name__}: {said}")
    peer.ask({"do": "finish", "replaced": replaced_of(before)[:20], "errors": errors[:20], **peer.state(shell.user_ns)})


def live(connection: Connection, log: int, job: dict[str, Any]) -> None:
    """Be the process of a hand-in, and end."""
    os.setsid()
    confine.prctl(confine.PARENT_DEATH_SIGNAL, 9)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {
        "TMPDIR": job["folder"],
        "MPLCONFIGDIR": str(Path(job["folder"], ".matplotlib")),
        "MPLBACKEND": "agg",
    }
    tempfile.tempdir = None  # which the imports may have set
    bounds = confine.Bounds(**job["bounds"])
    try:
        if bounds.namespaces:
            confine.enter(Path(job["folder"]), bounds)
        else:
            os.chdir(job["folder"])
        confine.limit(bounds)
    except OSError as error:
        print(f"cannot be confined: {error}", flush=True)
        os._exit(BROKEN)
    with contextlib.suppress(wire.Gone):
        run(connection, job)
    sys.stdout.flush()
    os._exit(0)


def serve(line: socket.socket) -> None:
    """Fork a process for each job."""
    while True:
        text, fds, _, _ = socket.recv_fds(line, 4096, 2)
        if not text:
            return
        child = os.fork()
        if child == 0:
            line.close()
            connection = Connection(fds[0])
            live(connection, fds[1], json.loads(connection.recv_bytes()))
        for fd in fds:
            os.close(fd)
        line.sendall(f"{child}\n".encode())
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0)


if __name__ == "__main__":
    confine.prctl(confine.PARENT_DEATH_SIGNAL, 9)
    for each in ["IPython.core.interactiveshell", *sys.argv[2:]]:
        with contextlib.suppress(Exception):
            importlib.import_module(each)
    with socket.socket(fileno=int(sys.argv[1])) as own:
        serve(own)
