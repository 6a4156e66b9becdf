"""The methods of the catalogue on Flower: one server, and clients whose data stay where they are."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "apps": ["client_app", "load_model", "serve", "server_app", "settings_of"],
    "coordinator": ["DeploymentError", "Result"],
    "client_file": ["client_from_file"],
    "site": ["RunSettings"],
    "strategy": ["MethodStrategy"],
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: the command line needs nothing of it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
