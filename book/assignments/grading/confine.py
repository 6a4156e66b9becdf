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

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/ssl/certs", "/etc/pki/tls/certs"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node"),
)
"""Programs and libraries of a Linux system, and what they read; nothing of its users."""

FOR_THE_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols")
DEVICES = ("null", "zero", "full", "random", "urandom")
"""Devices below ``/dev`` that hold nothing of anybody; those of graphics cards join them."""

ABOUT_THE_MACHINE = ("cpuinfo", "meminfo", "stat", "filesystems", "version")
"""What of ``/proc`` is shown where a process cannot have one of its own."""

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
NO_SUID, NO_DEVICES, NO_EXEC, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
DETACH = 2
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
    shown : tuple of str
        Files and folders that the process can read (with namespaces), besides the programs and libraries of the system.
    hidden : tuple of str
        What stays out of sight though it lies in a folder that is shown (with namespaces).
    """

    seconds: float = 300
    memory: int = 4 * 10**9
    namespaces: bool = True
    network: bool = False
    shown: tuple[str, ...] = ()
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

    Afterwards there are no files but those of the system, those that are shown, all read-only, and `folder` and ``/tmp``, which are
    empty, writable and of bounded size; other processes cannot be seen, and all that were started from here end with this one.

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
    _new_root(folder, bounds)
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


def _new_root(folder: Path, bounds: Bounds) -> None:
    """Leave all files behind but those that are shown."""
    folder.mkdir(parents=True, exist_ok=True)
    root = str(folder)  # the new root is mounted here, and has a folder of this name inside
    _mount("none", "/", None, RECURSIVE | PRIVATE)
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "size=8m,mode=755")
    writable = ["/tmp", "/dev/shm"] + ([] if folder.is_relative_to("/tmp") else [root])
    for path in writable:
        os.makedirs(root + path)
        _mount("tmpfs", root + path, "tmpfs", NO_SUID | NO_DEVICES, f"size={MAX_FOLDER}")
    os.makedirs(root + root, exist_ok=True)
    _show_files(root, bounds)
    _show_devices(root)
    _show_processes(root)
    _write_accounts(root)
    os.chdir(root)
    _ask(libc().pivot_root(b".", b"."), "a root of its own")
    _ask(libc().umount2(b".", DETACH), "leaving the files of this machine")
    os.chdir("/")
    _attributes("/", READ_ONLY, 0, AT_RECURSIVE)
    for path in writable:
        _attributes(path, 0, READ_ONLY, 0)


def _show_files(root: str, bounds: Bounds) -> None:
    """Bind what is shown to its place below the new root, and cover what is hidden in it.

    What lies deeper counts: a folder can be shown within one that is hidden.
    """
    paths = [*SYSTEM, *bounds.shown, *(FOR_THE_NETWORK if bounds.network else ())]
    links = {os.path.abspath(path): os.path.realpath(path) for path in paths if os.path.exists(path)}
    shown = dict.fromkeys(links.values(), True) | {os.path.realpath(path): False for path in bounds.hidden}
    for path in sorted(shown, key=lambda path: path.count("/")):
        if shown[path] and not os.path.exists(root + path):
            _bind(path, root + path)
        elif not shown[path] and os.path.isdir(root + path):
            _mount("tmpfs", root + path, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
        elif not shown[path] and os.path.exists(root + path):
            _mount("/dev/null", root + path, None, BIND)
    for path, place in links.items():
        if path != place and not os.path.lexists(root + path):
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
            os.symlink(place, root + path)


def _bind(source: str, target: str) -> None:
    """Have a file or folder at a second place, with all that is mounted below it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(source, target, None, BIND | RECURSIVE)


def _show_devices(root: str) -> None:
    """Make a ``/dev`` of what every program may use, with terminals of its own."""
    cards = [name for name in os.listdir("/dev") if name.startswith(("nvidia", "kfd", "dri"))]
    for name in filter(lambda name: os.path.exists(f"/dev/{name}"), [*DEVICES, *cards]):
        _bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name, place in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{place}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/pts")
    with contextlib.suppress(OSError):  # `!command` asks for a terminal
        _mount("devpts", f"{root}/dev/pts", "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666,mode=0600")
        os.symlink("pts/ptmx", f"{root}/dev/ptmx")


def _show_processes(root: str) -> None:
    """Make a ``/proc`` of the own processes; within some containers, where there can be none, a few texts of it."""
    os.mkdir(f"{root}/proc")
    try:
        _mount("proc", f"{root}/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    except OSError:
        for name in ABOUT_THE_MACHINE:
            with contextlib.suppress(OSError):
                _bind(f"/proc/{name}", f"{root}/proc/{name}")


def _write_accounts(root: str) -> None:
    """Name the one user that there is, as many programs ask for it."""
    os.makedirs(f"{root}/etc", exist_ok=True)
    Path(f"{root}/etc/passwd").write_text(f"student:x:{os.getuid()}:{os.getgid()}::/tmp:/bin/sh\n")
    Path(f"{root}/etc/group").write_text(f"student:x:{os.getgid()}:\n")


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
    enter(Path(sys.argv[1]), Bounds(shown=tuple(sys.argv[2:])))
    Path("here").write_text("written")
