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
        use, ``gpu`` name or None; a record also has ``jobs`` there, where so many runs were made side by side),
        ``numerics`` (`hetfl_core.numerics.in_effect`), ``commit`` and ``dirty``. Without git, or outside a checkout,
        the commit is ``"unknown"`` and `dirty` None; the environment variable ``HETFL_COMMIT`` (as from ``git describe
        --always --dirty --abbrev=40``) then says it for a copy of the code.
    """
    import torch

    commit, dirty = code_revision()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    hardware = {"cpu": _cpu_model(), "cores": usable_cores(), "threads": torch.get_num_threads(), "gpu": gpu}
    made = {"versions": _versions(), "hardware": hardware, "numerics": numerics.in_effect()}
    return {**made, "commit": commit, "dirty": dirty}


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
    root = Path(__file__).resolve().parents[2]
    top, commit = _git(root, "rev-parse", "--show-toplevel"), _git(root, "rev-parse", "HEAD")
    if not top or Path(top).resolve() != root or not commit:
        stated = os.environ.get("HETFL_COMMIT", "")
        return (stated.removesuffix("-dirty"), stated.endswith("-dirty")) if stated else ("unknown", None)
    changes = _git(root, "status", "--porcelain", "--", ".", ":(exclude)data/results")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
