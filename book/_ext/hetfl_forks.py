"""A process from which kernels are forked, and one that asks it for a kernel; `hetfl_kernels` starts both as scripts.

``ask`` hands its environment, folder and output over, and lives as long as the kernel does. Where nobody answers, it
starts a kernel as ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from threading import Thread

if os.name != "posix":
    raise ImportError("no process can be forked here")

IMPORTED = [
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "mne",
    "pandas",
    "pyriemann",
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
    importlib.import_module("hetfl_book.ledger").load(scale="paper")  # kept by the process, and so by its forks
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
    said = json.loads(line.makefile("rb").read(int.from_bytes(size, "big")))
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


def keep(file: str) -> None:
    """Write down what a kernel's cells have computed, variable by variable, but for what cannot be pickled."""
    import pickle
    from pathlib import Path
    from time import process_time

    import cloudpickle
    from IPython import get_ipython

    seconds, shell, kept = process_time(), get_ipython(), {}
    for name in shell.user_ns.keys() - shell.user_ns_hidden.keys():
        with suppress(Exception):
            kept[name] = cloudpickle.dumps(shell.user_ns[name])
    draft = Path(file).with_suffix(".part")
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_bytes(pickle.dumps({**kept, "seconds": pickle.dumps(seconds)}))
    draft.replace(file)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(*sys.argv[2:])
    else:
        sys.argv = ["ipykernel_launcher", *serve(socket.socket(fileno=int(sys.argv[2])))]
        from ipykernel.kernelapp import launch_new_instance

        launch_new_instance()
        if os.environ.get("HETFL_VARIABLES"):
            keep(os.environ["HETFL_VARIABLES"])
