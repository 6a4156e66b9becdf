"""hetfl_core: federated learning when clients do not share a feature space."""

from hetfl_core import datasets, methods
from hetfl_core.federation import Client, Federation, Spec
from hetfl_core.rng import stream
from hetfl_core.simulation import Run, simulate

__all__ = ["Client", "Federation", "Run", "Spec", "datasets", "methods", "simulate", "stream"]
__version__ = "0.1.0"
