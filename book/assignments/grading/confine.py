"""Bounds for a process that runs what somebody else wrote: limits everywhere, namespaces where Linux has them.

Needs no rights and nothing but the standard library. `enter` has to be called before a second thread starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
NO_SUID, NO_DEVICES, NO_EXEC, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
PARENT_DEATH_SIGNAL, DROP_CAPABILITY, CHILD_SUBREAPER, NO_NEW_PRIVILEGES, DUMPABLE = 1, 24, 36, 38, 4
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, READ_ONLY = 442, -100, 0x8000, 1

MAX_FILE, MAX_FOLDER, MAX_THREADS = 200_000_000, 500_000_000, 1000
"""Bytes of one file, bytes of all files (with namespaces), threads and processes (with namespaces)."""


@dataclass(frozen=True)
class Bounds:
    """What a process may use.

    Attributes
    ----------
    seconds : float
        Processor time of one process; the time on the clock is kept by others.
    memory : int
        Bytes of data of one process.
    namespaces : bool
        Whether to leave the processes, the network and the writable files of this machine behind.
    network : bool
        Whether the network stays.
    hidden : tuple of str
        Files and folders that are empty for the process (with namespaces).
    """

    seconds: float = 300
    memory: int = 4 * 10**9
    namespaces: bool = True
    network: bool = False
    hidden: tuple[str, ...] = ()


def libc() -> ctypes.CDLL:
    """The C library, which keeps the number of the last error."""
    return ctypes.CDLL(None, use_errno=True)


def _ask(result: int, what: str) -> None:
    """Raise what the C library reported."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; nothing happens where there is no such call."""
    with contextlib.suppress(AttributeError, OSError):
        libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of all processes that descend from this one, and closed to the eyes of others (Linux)."""
    prctl(CHILD_SUBREAPER, 1)
    prctl(DUMPABLE, 0)


def limit(bounds: Bounds) -> None:
    """Set limits that this process cannot lift."""
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(bounds.seconds) + 10,
        resource.RLIMIT_FSIZE: MAX_FILE,
        resource.RLIMIT_DATA: bounds.memory,
    }
    if bounds.namespaces:  # elsewhere the limit would count all that the user has started
        wanted[resource.RLIMIT_NPROC] = MAX_THREADS
    for what, value in wanted.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (value, value))


def enter(folder: Path, bounds: Bounds) -> None:
    """Go on as a process in namespaces of its own; the caller's process waits outside for it.

    Afterwards all files are read-only but those of `folder`, which is empty and of bounded size; other processes cannot be seen,
    and all that were started from here end with this one.

    Raises
    ------
    OSError
        If the machine does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    spaces = NEW_USER | NEW_MOUNTS | NEW_PIDS | NEW_IPC | (0 if bounds.network else NEW_NETWORK)
    _ask(libc().unshare(spaces), "namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _go_on_in_child()  # the first process of the new process numbers: when it ends, all others are killed
    prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    _mounts(folder, bounds.hidden)
    _drop_rights()
    _go_on_in_child()
    os.chdir(folder)


def _go_on_in_child() -> None:
    """Fork; the parent waits for the child and ends as it does."""
    child = os.fork()
    if child == 0:
        return
    status = None
    while status is None:
        with contextlib.suppress(InterruptedError):
            pid, ended = os.wait()
            status = ended if pid == child else None
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _mounts(folder: Path, hidden: tuple[str, ...]) -> None:
    """Make all files read-only, some of them empty, and one folder a fresh writable one."""
    _mount("none", "/", None, RECURSIVE | PRIVATE)
    with contextlib.suppress(OSError):  # within some containers; other processes stay out of reach all the same
        _mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    for path in hidden:
        if os.path.isdir(path):
            _mount("tmpfs", path, "tmpfs", NO_SUID | NO_DEVICES, "size=4k")
        elif os.path.exists(path):
            _mount("/dev/null", path, None, BIND)
    writable = [folder] + [path for path in [Path("/dev/shm")] if path.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in writable:
        _mount("tmpfs", str(path), "tmpfs", NO_SUID | NO_DEVICES, f"size={MAX_FOLDER}")
    _attributes("/", READ_ONLY, 0, AT_RECURSIVE)
    for path in writable:
        _attributes(str(path), 0, READ_ONLY, 0)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """The call mount(2)."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _ask(libc().mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount of {target}")


def _attributes(path: str, add: int, remove: int, flags: int) -> None:
    """The call mount_setattr(2), of Linux 5.12."""
    attributes = struct.pack("=QQQQ", add, remove, 0, 0)
    found = libc().syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(32))
    _ask(found, f"attributes of {path}")


def _drop_rights() -> None:
    """Give up every capability, for good."""
    for capability in range(64):
        prctl(DROP_CAPABILITY, capability)
    prctl(NO_NEW_PRIVILEGES, 1)
    version, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _ask(libc().capset(version, nothing), "giving up capabilities")


def possible() -> str:
    """Why this machine allows no namespaces; an empty text where it does."""
    if not sys.platform.startswith("linux"):
        return "namespaces are of Linux"
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run([sys.executable, __file__, folder], capture_output=True, text=True)
    return "" if said.returncode == 0 else (said.stderr.strip().splitlines() or ["unknown reason"])[-1]


if __name__ == "__main__":
    enter(Path(sys.argv[1]), Bounds())
    Path("here").write_text("written")
