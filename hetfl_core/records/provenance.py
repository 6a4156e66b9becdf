"""Where a run was made: the code's commit, versions, machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from hetfl_core import numerics
from hetfl_core.numerics import usable_cores

PACKAGES = ("hetfl-core", "torch", "numpy", "scipy", "pandas", "scikit-learn")


def environment() -> dict[str, Any]:
    """The code, the versions and the machine, as a record says them.

    Returns
    -------
    dict
        ``versions`` (Python and the packages that matter), ``hardware`` (``cpu`` model, ``cores`` and ``threads`` in
        use, ``gpu`` name or None; ``busy`` is true there where this process has a lowered priority, as with ``nice``,
        and so waits for other work; a record also has ``jobs`` there, where so many runs were made side by side),
        ``numerics`` (`hetfl_core.numerics.in_effect`), ``commit`` and ``dirty``. Without git, or outside a checkout,
        the commit is ``"unknown"`` and `dirty` None; the environment variable ``HETFL_COMMIT`` (as from ``git describe
        --always --dirty --abbrev=40``) then says it for a copy of the code.
    """
    import torch

    commit, dirty = code_revision()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    hardware = {"cpu": _cpu_model(), "cores": usable_cores(), "threads": torch.get_num_threads(), "gpu": gpu}
    hardware |= {"busy": True} if lowered_priority() else {}
    made = {"versions": _versions(), "hardware": hardware, "numerics": numerics.in_effect()}
    return {**made, "commit": commit, "dirty": dirty}


def lowered_priority() -> bool:
    """Whether this process lets others go first, so that its seconds measure their work, too; False on Windows."""
    return hasattr(os, "nice") and os.nice(0) > 0


@cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **numerics.versions(*PACKAGES)}


@cache
def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine() or "unknown"


@cache
def code_revision() -> tuple[str, bool | None]:
    """Commit of the code that this process runs, and whether the code differs from it, as first asked for.

    Ask before a long run: what is committed meanwhile is not what ran.

    Returns
    -------
    commit : str
        ``"unknown"`` where it is not known.
    dirty : bool or None
        Whether the code differs; None where that is not known.
    """
    root = _checkout()
    commit = _git(root, "rev-parse", "HEAD") if root else None
    if not root or not commit:
        stated = os.environ.get("HETFL_COMMIT", "")
        return (stated.removesuffix("-dirty"), stated.endswith("-dirty")) if stated else ("unknown", None)
    changes = _git(root, "status", "--porcelain", "--", ".", ":(exclude)data/results")
    return commit, None if changes is None else bool(changes)


def history() -> frozenset[str] | None:
    """The commits that led to the checkout's present one, which is among them.

    Returns
    -------
    frozenset of str or None
        Of 40 digits each. None where they cannot be seen: without git, outside a checkout, or in a clone that lacks
        the older ones.
    """
    root = _checkout()
    if root is None or _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    return frozenset((_git(root, "rev-list", "HEAD") or "").split())


def _checkout() -> Path | None:
    """The top of the repository whose package this is; None where it is installed elsewhere."""
    root = Path(__file__).resolve().parents[2]
    top = _git(root, "rev-parse", "--show-toplevel")
    return root if top and Path(top).resolve() == root else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
