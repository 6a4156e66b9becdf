"""Kernels that begin with what they import.

A kernel needs five seconds of a core to import PyTorch, scikit-learn and the library, and a build starts forty of them.
Here one process imports them once, and every kernel is forked from it (`hetfl_forks`), in a fraction of a second. What
Jupyter is asked to start is a kernel specification in a folder of its own, which it finds before all others. Only on
Linux: elsewhere a process may not be forked once libraries of the system are loaded.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

FORKS = Path(__file__).with_name("hetfl_forks.py")


@contextmanager
def forked() -> Iterator[None]:
    """Within it, kernels that this process or its children start are forked from one that has imported what they need."""
    if not sys.platform.startswith("linux") or len(gettempdir()) > 60:  # a socket's name may have 107 bytes
        yield
        return
    before = os.environ.get("JUPYTER_PATH")
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        address = f"{folder}/door"
        door.bind(address)
        door.listen(64)
        specification = Path(folder, "kernels", "python3", "kernel.json")
        specification.parent.mkdir(parents=True)
        ask = [sys.executable, "-IS", str(FORKS), "ask", address, "-f", "{connection_file}"]
        specification.write_text(json.dumps({"argv": ask, "display_name": "Python 3", "language": "python"}), "utf8")
        server = subprocess.Popen(
            [sys.executable, "-P", "-Xfrozen_modules=off", str(FORKS), "serve", str(door.fileno())],
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
