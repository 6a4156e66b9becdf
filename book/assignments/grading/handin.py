"""The process of one hand-in: runs its notebook, and lends its functions to the checks.

``python handin.py NUMBER_OF_A_SOCKET MODULE...`` imports the modules that the checks need, and then, for each job that comes through
the socket, forks a process for one hand-in. This saves the time of the imports; the process itself never runs a hand-in.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import socket
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from grading import clock, confine, wire

MAX_VARIABLE, MAX_VARIABLES = 1_000_000, 5_000_000
"""Largest variable of a notebook that a check sees as it is, and largest sum of them, in characters of JSON."""

MAX_ANCESTORS = 8
"""Classes from which an error descends, of which the process of the checks is told."""

MAX_SECONDS = 1.0
"""Seconds for making the plain form of a variable."""


class HandIn(wire.Peer):
    """The end of the line in the process of a hand-in."""

    def __init__(self, connection: Connection, shell: Any) -> None:
        super().__init__(connection, trusting=True)
        self.shell = shell
        self.case = -1
        self.room = MAX_VARIABLES
        self.clock = clock.Clock()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request; the time until the answer is nobody's here, and no alarm rings within a message."""
        with self.clock.pause():
            return super().ask(request)

    def do_call(self, message: dict[str, Any]) -> dict[str, Any]:
        """Let the checks call a function, for as long as they say."""
        with self.clock.limit(message["seconds"]):
            return super().do_call(message)

    def do_gradient(self, message: dict[str, Any]) -> dict[str, Any]:
        """The product of a gradient with the Jacobian matrix of an earlier call, for as long as the checks say."""
        with self.clock.limit(message["seconds"]):
            return super().do_gradient(message)

    def report(self, error: BaseException) -> list[Any]:
        """What the checks are told of an error: its classes, where it was raised, whether time was up; no text of it."""
        classes = [[kind.__module__, kind.__name__] for kind in type(error).__mro__ if issubclass(kind, BaseException)]
        return [classes[:MAX_ANCESTORS], *self.place_of(error), isinstance(error, clock.TimeUp)]

    def place_of(self, error: BaseException) -> tuple[int, int]:
        """Number of the cell, and line in it, that an error comes from; zeros where it comes from none."""
        cells = self.shell.cells
        if isinstance(error, SyntaxError) and error.filename in cells:
            return cells[error.filename], error.lineno or 0
        frames = list(traceback.walk_tb(error.__traceback__))
        places = [
            (cells[frame.f_code.co_filename], line) for frame, line in frames if frame.f_code.co_filename in cells
        ]
        return places[-1] if places else (0, 0)

    def check(self, question: str, variables: dict[str, Any] | None = None) -> str:
        """Have a question checked with the variables as they are now."""
        variables = self.shell.user_ns if variables is None else variables
        with self.clock.pause():
            state = self.state(variables)
        self.ask({"do": "check", "question": str(question), **state})
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
        """A variable as a value if it is plain and not too large, else as a name; an iterator stays where it is."""
        try:
            if self.room < 100:
                return self._lend(value)
            with self.clock.limit(MAX_SECONDS):
                sent = self.encode(value, wire.Letter(uses_up=False))
            size = len(json.dumps(sent))
            if size <= min(MAX_VARIABLE, self.room):
                self.room -= size
                return sent
        except clock.TimeUp:
            self.room -= MAX_VARIABLE  # a few of them are waited for
        except Exception:
            pass
        return self._lend(value)

    @contextlib.contextmanager
    def surrounded(self, message: dict[str, Any]) -> Iterator[None]:
        """Put the functions of a check in place of the notebook's, and block the libraries that it blocks.

        Whatever else the call leaves behind, a module that it imports or a global variable that it sets, stays.
        """
        if message.get("case") != self.case:
            self.case = message.get("case")
            self.theirs.clear()
        given = {name: self.decode(value, wire.Letter()) for name, value in message.get("given", {}).items()}
        blocked = set(message.get("blocked", []))
        blocked |= {name for name in list(sys.modules) if name.split(".")[0] in blocked}
        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(self.shell.user_ns, given, message.get("taken", [])))
            stack.enter_context(replaced(sys.modules, dict.fromkeys(blocked)))
            for module, name in message.get("absent", []):
                if module in sys.modules:
                    stack.enter_context(replaced(vars(sys.modules[module]), {name: None}))
            yield


@contextlib.contextmanager
def replaced(table: dict[str, Any], given: dict[str, Any], taken: Iterable[str] = ()) -> Iterator[None]:
    """Have some entries of a table replaced and others removed; all that are not named stay as they are then."""
    before = {name: table[name] for name in [*given, *taken] if name in table}
    table.update(given)
    for name in taken:
        table.pop(name, None)
    try:
        yield
    finally:
        for name in given:
            table.pop(name, None)
        table.update(before)


class OnlyDefinitions(ast.NodeTransformer):
    """Leaves of a cell what it imports and defines."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Drop all other statements."""
        kept = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
        node.body = [statement for statement in node.body if isinstance(statement, kept)]
        return node


def make_shell(folder: Path) -> Any:
    """A shell as notebooks have it, without a history and without colours."""
    os.environ["IPYTHONDIR"] = str(folder / ".ipython")
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def ask_exit(self) -> None:
            """Note that the notebook asked for its end, as ``exit()`` and ``quit()`` do, and go on."""
            self.asked_to_end = True

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "NoColor"
    settings.InteractiveShell.xmode = "Minimal"
    shell = Shell.instance(config=settings)
    shell.asked_to_end = False
    shell.cell, shell.cells = 0, {}  # number of the cell that runs; numbers of cells by the names of their code
    name_of_code = shell.compile.get_code_name

    def remember(*arguments: Any) -> str:
        name = name_of_code(*arguments)
        shell.cells[name] = shell.cell
        return name

    shell.compile.get_code_name = remember
    return shell


def stand_in(peer: HandIn) -> types.ModuleType:
    """A module ``otter`` whose notebooks ask for their checks over the line."""

    class Notebook:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def check(self, question: str, global_env: dict[str, Any] | None = None) -> str:
            return peer.check(question, global_env)

        def check_all(self) -> str:
            with peer.clock.pause():
                state = peer.state(peer.shell.user_ns)
            peer.ask({"do": "check_all", **state})
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
    for number, source in job["cells"]:
        how = peer.ask({"do": "cell", "number": number})
        error = None
        if how["run"] != "nothing":
            error = run_cell(peer, number, source, how)
        told = error is not None and peer.report(error)
        peer.ask({"do": "ran", "number": number, "error": told or None, "asked to end": shell.asked_to_end})
        shell.asked_to_end = False
    peer.ask({"do": "finish", "replaced": replaced_of(before)[:20], **peer.state(shell.user_ns)})


def run_cell(peer: HandIn, number: int, source: str, how: dict[str, Any]) -> BaseException | None:
    """Run a cell, or its definitions, for as long as the checks say; the error with which it ended."""
    shell = peer.shell
    shell.cell = number
    shell.ast_transformers[:] = [OnlyDefinitions()] if how["run"] == "definitions" else []
    try:
        with peer.clock.limit(how["seconds"]):
            ran = shell.run_cell(source, store_history=True)
    except (Exception, clock.TimeUp) as error:  # of showing an error, or just after the end
        return error
    return ran.error_before_exec or ran.error_in_exec


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
            os.environ["HOME"] = job["folder"]  # where its own is not
            confine.enter(Path(job["folder"]), bounds)
        else:
            os.chdir(job["folder"])
        confine.limit(bounds)
    except OSError as error:
        connection.send_bytes(json.dumps({"cannot": str(error)}).encode("ascii"))
        os._exit(1)
    connection.send_bytes(b"{}")
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
