"""What other packages add to the command line, by an entry point of the group ``hetfl.plugins``.

A plugin is a module. It may have ``commands``, a `typer.Typer` whose commands stand beside those of ``hetfl``;
``data_sets()``, names and the functions that make a federation; ``listing()``, by title the names with a line each that
``hetfl list`` shows; ``described(name)``, the lines of ``hetfl list NAME``, none for a strange name; and ``peers()``,
the lines of ``hetfl bench --peers``. It is imported whenever ``hetfl`` starts, so that it should import no tensors at
its top. Its package may carry data files in a folder ``_data``, where `hetfl_core.files.data_path` finds them. In its
``pyproject.toml``::

    [project.entry-points."hetfl.plugins"]
    mine = "my_package.plugin"
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from hetfl_core.files import PLUGINS

__all__ = ["data_sets"]


@cache
def plugins() -> tuple[ModuleType, ...]:
    """The plugins that are installed, by name.

    Returns
    -------
    tuple of module
    """
    return tuple(point.load() for point in sorted(entry_points(group=PLUGINS), key=lambda point: point.name))


def data_sets() -> dict[str, Callable[..., Any]]:
    """All data sets by name, ours first: functions that return a `Federation`.

    Returns
    -------
    dict of str to callable
    """
    from hetfl_core.datasets import CATALOGUE

    found = dict(CATALOGUE)
    for plugin in plugins():
        found |= plugin.data_sets() if hasattr(plugin, "data_sets") else {}
    return found
