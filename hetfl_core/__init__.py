"""Federated learning when clients do not share a feature space.

`simulate` runs a method of `hetfl_core.methods` on a `Federation` and returns a `Run`. A federation is made of
`Client` objects, or by one of the functions in `hetfl_core.datasets`.
"""

from typing import Any

from hetfl_core import datasets, methods
from hetfl_core.engine.simulation import Run, adapt, simulate
from hetfl_core.federation import Client, Federation, Spec
from hetfl_core.rng import stream

__all__ = ["Client", "Federation", "Run", "Spec", "adapt", "compare", "datasets", "methods", "simulate", "stream"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for."""
    if name == "compare":
        from hetfl_core.comparing import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
