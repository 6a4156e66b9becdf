"""Federated learning when clients do not share a feature space.

`simulate` runs a method of `hetfl_core.methods` on a `Federation` and returns a `Run`. A federation is made of
`Client` objects, or by one of the functions in `hetfl_core.datasets`.

What stands here is fetched when it is first asked for: a command that needs no tensors does not wait for torch, and
`hetfl_core.numerics` can say with which instructions PyTorch is to compute before that is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetfl_core import datasets, methods
    from hetfl_core.comparing import compare
    from hetfl_core.engine.newcomers import adapt
    from hetfl_core.engine.run import Run
    from hetfl_core.engine.simulation import simulate, simulate_seeds
    from hetfl_core.engine.trained import Trained, load_trained
    from hetfl_core.federation import Client, Federation, Spec
    from hetfl_core.partition import Partition
    from hetfl_core.preparation import Preparation
    from hetfl_core.rng import stream
    from hetfl_core.tuning import tune

__all__ = [
    "Client",
    "Federation",
    "Partition",
    "Preparation",
    "Run",
    "Spec",
    "Trained",
    "adapt",
    "compare",
    "datasets",
    "load_trained",
    "methods",
    "simulate",
    "simulate_seeds",
    "stream",
    "tune",
]
__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(["simulate", "simulate_seeds"], "hetfl_core.engine.simulation"),
    "Run": "hetfl_core.engine.run",
    **dict.fromkeys(["Trained", "load_trained"], "hetfl_core.engine.trained"),
    "adapt": "hetfl_core.engine.newcomers",
    **dict.fromkeys(["Client", "Federation", "Spec"], "hetfl_core.federation"),
    "Partition": "hetfl_core.partition",
    "Preparation": "hetfl_core.preparation",
    "compare": "hetfl_core.comparing",
    "stream": "hetfl_core.rng",
    "tune": "hetfl_core.tuning",
}
"""The module of each name that is not itself a module."""

_ROOMS = ["baselines", "networks", "plots", "records"]
"""More rooms that open when they are first asked for; not those whose functions students write in assignments."""


def __getattr__(name: str) -> Any:
    """Fetch a name of `__all__`, or a room, when it is first asked for (PEP 562)."""
    if name not in [*__all__, *_ROOMS]:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name)
    found = getattr(import_module(home), name) if home else import_module(f"{__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
