"""The engine: clients cut into stacks, local training, rounds, checkpoints, evaluation.

`hetfl_core.simulate` runs it from the first round to the last; `Simulator` one step at a time. The modules behind are
free to move.
"""

from hetfl_core.engine.checkpoint import CheckpointError
from hetfl_core.engine.sides import participants
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.training import Noise, n_steps, plan

__all__ = ["CheckpointError", "Noise", "Simulator", "n_steps", "participants", "plan"]
