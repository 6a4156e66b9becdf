"""Kernels that begin with what they import.

A kernel needs five seconds of a core to import PyTorch, scikit-learn and the library, and a build starts forty of them.
Here one process imports them once, and every kernel is forked from it, in a fraction of a second. What a kernel is asked
to start is a kernel specification in a folder of its own, which Jupyter finds before all others; it runs this file with
`ask`, which hands its environment, folder and output over and lives as long as the kernel does. Where nobody answers, it
starts a kernel as ever. Only on Linux: elsewhere a process may not be forked once libraries of the system are loaded.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

IMPORTED = [
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "pandas",
    "scipy.optimize",
    "scipy.stats",
    "torch",
    "torch.func",
    "torch.fx.experimental.proxy_tensor",
    "sklearn.discriminant_analysis",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "sklearn.manifold",
    "sklearn.model_selection",
    "hetfl_core",
    "hetfl_core.engine",
    "hetfl_core.methods",
    "hetfl_core.plots",
    "hetfl_book.headtohead.figures",
    "hetfl_book.ledger",
    "hetfl_book.notebook",
    "hetfl_book.report",
]
"""What most notebooks of the book import, and what that imports."""

LARGEST = 1 << 20
"""Bytes that an environment may take, as Linux limits what a process is started with."""


@contextmanager
def forked() -> Iterator[None]:
    """Within it, kernels that this process or its children start are forked from one that has imported `IMPORTED`."""
    if not sys.platform.startswith("linux"):
        yield
        return
    before = os.environ.get("JUPYTER_PATH")
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        address = f"{folder}/door"
        door.bind(address)
        door.listen(64)
        specification = Path(folder, "kernels", "python3", "kernel.json")
        specification.parent.mkdir(parents=True)
        ask = [sys.executable, "-IS", __file__, "ask", address, "-f", "{connection_file}"]
        specification.write_text(json.dumps({"argv": ask, "display_name": "Python 3", "language": "python"}), "utf8")
        server = subprocess.Popen(
            [sys.executable, "-P", "-Xfrozen_modules=off", __file__, "serve", str(door.fileno())],
            stdin=subprocess.PIPE,  # its end is what ends the server, also where this process is killed
            pass_fds=[door.fileno()],
            env=os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
        )
        door.close()  # so that nobody waits for an answer, should the server end
        os.environ["JUPYTER_PATH"] = os.pathsep.join([folder, *([before] if before else [])])
        try:
            yield
        finally:
            server.communicate()
            os.environ.pop("JUPYTER_PATH")
            if before:
                os.environ["JUPYTER_PATH"] = before


def ask(address: str, *arguments: str) -> None:
    """Have a kernel forked, and last as long as it does: with one of the two, the other ends."""
    wish = json.dumps({"environment": dict(os.environ), "folder": os.getcwd(), "arguments": arguments}).encode()
    try:
        line = socket.socket(socket.AF_UNIX)
        line.connect(address)
        socket.send_fds(line, [len(wish).to_bytes(4, "big")], [0, 1, 2])
        line.sendall(wish)
        pid = int.from_bytes(line.recv(4), "big")
    except OSError:
        pid = 0
    if not pid:
        os.execv(sys.executable, [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", *arguments])
    signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))
    while line.recv(1):
        pass


def serve(door: socket.socket) -> list[str]:
    """Import what kernels need, and fork one for each that asks; returns in each of them, with its arguments."""
    import importlib

    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for kernels: the system buries them
    while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
        line = door.accept()[0]
        if os.fork() == 0:
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return become(line)
        line.close()
    raise SystemExit


def become(line: socket.socket) -> list[str]:
    """Take over the environment, folder and output of the process at the other end, and end when it does."""
    import numpy

    size, handles, _, _ = socket.recv_fds(line, 4, 3)
    wish = b""
    while len(wish) < int.from_bytes(size, "big"):
        wish += line.recv(LARGEST)
    said = json.loads(wish)
    for own, handle in enumerate(handles):
        os.dup2(handle, own)
        os.close(handle)
    os.environ.clear()
    os.environ.update(said["environment"])
    os.chdir(said["folder"])
    numpy.random.seed()  # or all kernels would draw the same where a page sets no seed
    line.sendall(os.getpid().to_bytes(4, "big"))
    Thread(target=lambda: line.recv(1) or os._exit(1), daemon=True).start()
    return [*said["arguments"], f"--IPKernelApp.parent_handle={os.getppid()}"]


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(*sys.argv[2:])
    else:
        sys.argv = ["ipykernel_launcher", *serve(socket.socket(fileno=int(sys.argv[2])))]
        from ipykernel.kernelapp import launch_new_instance

        launch_new_instance()
