"""Federated learning when clients do not share a feature space.

`simulate` runs a method of `hetfl_core.methods` on a `Federation` and returns a `Run`. A federation is made of
`Client` objects, or by one of the functions in `hetfl_core.datasets`.

The names are imported when they are first asked for, so that `hetfl_core.numerics` can say with which instructions
PyTorch is to compute before that is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetfl_core import datasets, methods
    from hetfl_core.engine.simulation import Run, adapt, simulate
    from hetfl_core.federation import Client, Federation, Spec
    from hetfl_core.rng import stream

__all__ = ["Client", "Federation", "Run", "Spec", "adapt", "datasets", "methods", "simulate", "stream"]
__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("Run", "adapt", "simulate"), "hetfl_core.engine.simulation"),
    **dict.fromkeys(("Client", "Federation", "Spec"), "hetfl_core.federation"),
    "stream": "hetfl_core.rng",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    elif name in __all__:
        found = import_module(f"hetfl_core.{name}")
    else:
        raise AttributeError(f"module 'hetfl_core' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
