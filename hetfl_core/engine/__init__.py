"""The engine: clients cut into stacks, local training, rounds, checkpoints, evaluation."""
