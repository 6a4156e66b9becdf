"""Federated learning when clients do not share a feature space.

`simulate` runs a method of `hetfl_core.methods` on a `Federation` and returns a `Run`. A federation is made of
`Client` objects, or by one of the functions in `hetfl_core.datasets`.

What stands here is fetched when it is first asked for: a command that needs no tensors does not wait for torch, and
`hetfl_core.numerics` can say with which instructions PyTorch is to compute before that is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetfl_core._version import __version__ as __version__

if TYPE_CHECKING:
    from hetfl_core import datasets as datasets
    from hetfl_core import methods as methods
    from hetfl_core.comparing import compare as compare
    from hetfl_core.engine.measures import scorer as scorer
    from hetfl_core.engine.newcomers import adapt as adapt
    from hetfl_core.engine.run import Run as Run
    from hetfl_core.engine.trained import Trained as Trained
    from hetfl_core.engine.trained import load_trained as load_trained
    from hetfl_core.federation import Client as Client
    from hetfl_core.federation import Federation as Federation
    from hetfl_core.federation import Spec as Spec
    from hetfl_core.learners import simulate as simulate
    from hetfl_core.learners import simulate_seeds as simulate_seeds
    from hetfl_core.partition import Partition as Partition
    from hetfl_core.preparation import Preparation as Preparation
    from hetfl_core.rng import stream as stream
    from hetfl_core.tuning import tune as tune

_NAMES = {
    "comparing": ["compare"],
    "engine.measures": ["scorer"],
    "engine.newcomers": ["adapt"],
    "engine.run": ["Run"],
    "learners": ["simulate", "simulate_seeds"],
    "engine.trained": ["Trained", "load_trained"],
    "federation": ["Client", "Federation", "Spec"],
    "partition": ["Partition"],
    "preparation": ["Preparation"],
    "rng": ["stream"],
    "tuning": ["tune"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
"""The module of each name that is not itself a module."""

__all__ = sorted([*_HOMES, "datasets", "methods"])

_ROOMS = ["baselines", "networks", "plots", "records"]
"""More rooms that open when they are first asked for; not those whose functions students write in assignments."""


def __getattr__(name: str) -> Any:
    """Fetch a name of `__all__`, or a room, when it is first asked for (PEP 562)."""
    if name not in [*__all__, *_ROOMS]:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOMES.get(name, name)}")
    found = getattr(module, name) if name in _HOMES else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
