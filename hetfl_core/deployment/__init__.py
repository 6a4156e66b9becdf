"""The methods of the catalogue on Flower: one server, and clients whose data stay where they are."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "client_app": "apps",
    "load_model": "apps",
    "serve": "apps",
    "server_app": "apps",
    "settings_of": "apps",
    "DeploymentError": "coordinator",
    "Result": "coordinator",
    "Settings": "coordinator",
    "client_from_file": "files",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: the command line needs nothing of it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
