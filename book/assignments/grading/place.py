"""Where the things are that a hand-in needs in order to run: Python, its packages and the data."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

PACKAGES = ("hetfl_core", "hetfl_book")
"""Packages that notebooks of the assignments import, besides those that are installed as usual."""

CHECKOUT = Path(__file__).resolve().parents[3]


def data_home() -> Path:
    """Folder of downloaded data files, which need not exist."""
    from hetfl_core.datasets import registry

    return registry.data_home()


def needed(packages: Iterable[str]) -> list[str]:
    """Files and folders that a hand-in can read: an environment of Python, some packages, the data.

    Parameters
    ----------
    packages : iterable of str
        Names of modules that may lie elsewhere, as those of an editable install do.
    """
    environment = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, sys.executable]
    environment += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    environment += [path for path in sys.path if path.endswith((".zip", "site-packages", "dist-packages"))]
    environment += filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    tops = dict.fromkeys(name.split(".")[0] for name in [*PACKAGES, *packages])
    data = [str(data_home()), *(str(path) for path in map(_tracked_data, tops) if path)]
    found = [*environment, *data, *(str(path) for path in map(_package, tops) if path)]
    return [path for path in dict.fromkeys(found) if path and Path(path).resolve() != Path("/")]


def _package(name: str) -> Path | None:
    """Folder or file of a module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        return None
    path = Path(spec.origin)
    return path.parent if path.name == "__init__.py" else path


def _tracked_data(name: str) -> Path | None:
    """Records that lie beside a package in a checkout."""
    package = _package(name)
    beside = package.parent / "data" if package else None
    return beside if beside and (beside / "registry.toml").exists() else None
