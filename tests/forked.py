"""Commands in forks of the tests' process, which has imported what they need."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from hetfl_core import cli


class Forked:
    """``hetfl`` with these arguments, in a folder, as the head of a group of processes; POSIX only."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.returncode = folder, None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if not hasattr(os, "fork"):
            pytest.skip("the system has no forks")
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            _run(folder, arguments)

    def poll(self) -> int | None:
        """How it ended; None where it has not."""
        assert hasattr(os, "fork")
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it has said, when it has ended."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                os.kill(-self.pid, signal.SIGTERM)
                raise TimeoutError(f"it has not ended after {timeout} s: {(self.folder / 'stderr').read_text()}")
            time.sleep(0.02)
        return (self.folder / "stdout").read_text(), (self.folder / "stderr").read_text()


def _run(folder: Path, arguments: tuple[str, ...]) -> None:
    code = 1
    try:
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with open("stdout", "w", buffering=1) as out, open("stderr", "w", buffering=1) as err:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            with redirect_stdout(out), redirect_stderr(err):
                sys.argv = ["hetfl", *arguments]
                try:
                    cli.main()
                    code = 0
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else int(end.code is not None)
                    if isinstance(end.code, str):
                        print(end.code, file=err)
                except BaseException:
                    traceback.print_exc()
    finally:
        os._exit(code)
