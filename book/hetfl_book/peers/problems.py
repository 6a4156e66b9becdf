"""What is timed: FedAvg on clients that all libraries can train, and three federations that only this one can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetfl_core.federation import Client, Federation
from hetfl_core.methods import FLIC, FedAvg, FedCMA, HyFEM
from hetfl_core.methods.base import Method
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.rng import numpy_stream

CLASSES = 10
EPOCHS, BATCH, LR = 5, 10, 0.05
"""Local epochs, samples of a batch and learning rate of FedAvg."""


@dataclass(frozen=True)
class Case:
    """A line of the table: FedAvg with plain SGD on a network with one hidden layer and a ReLU.

    Parameters
    ----------
    inputs, hidden : int
        Widths of the network.
    chosen : int
        Clients that take part in a round.
    rounds : int
        Rounds that are timed.
    clients, samples : int
        Clients of the federation, and training samples of each: whole batches.
    """

    inputs: int
    hidden: int
    chosen: int
    rounds: int
    clients: int = 100
    samples: int = 300

    @property
    def name(self) -> str:
        """How the table calls it."""
        return f"{self.inputs}-{self.hidden}, {self.chosen} of {self.clients}"

    def made(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The samples of all clients, shape (clients, samples, inputs), and their labels: a Gaussian for each class."""
        rng = numpy_stream(0, "peers", 0, "data")
        means = 0.15 * rng.standard_normal((CLASSES, self.inputs))
        y = rng.integers(0, CLASSES, (self.clients, self.samples))
        return (rng.standard_normal((*y.shape, self.inputs)) + means[y]).astype(np.float32), y

    def federation(self) -> Federation:
        """The same samples as clients, the first ten of which also test: accuracy is not what is asked here."""
        clients = [Client(x, y, x[:10], y[:10], f"c{i:03d}") for i, (x, y) in enumerate(zip(*self.made(), strict=True))]
        return Federation(clients, CLASSES, "peers")

    def method(self) -> Method:
        """FedAvg as FedJAX has it: clients count by their samples, the server takes their mean."""
        model = Model(MLP((), self.hidden, last="relu"))
        return FedAvg(model, local_epochs=EPOCHS, batch_size=BATCH, optimizer="sgd", lr=LR)


CASES = (
    Case(784, 64, 10, 20),
    Case(784, 64, 100, 3),
    Case(784, 16, 10, 10),
    Case(30, 64, 10, 20),
    Case(30, 64, 100, 5),
)


def _clients(widths: list[tuple[int, ...]], samples: int) -> list[Client]:
    """Clients whose inputs have these widths: one for a vector, several for named blocks, 0 for one that is lacking."""
    rng = numpy_stream(0, "peers", 0, "own")
    means = [0.8 * rng.standard_normal((CLASSES, max(w[b] for w in widths))) for b in range(len(widths[0]))]
    clients = []
    for i, each in enumerate(widths):
        y = rng.permutation(np.arange(samples) % CLASSES)
        parts = [rng.standard_normal((samples, w)) + means[b][y, :w] for b, w in enumerate(each)]
        x = parts[0] if len(parts) == 1 else dict(zip("abc", parts, strict=True))
        test = {name: part[:10] for name, part in x.items()} if isinstance(x, dict) else x[:10]
        clients.append(Client(x, y, test, y[:10], f"c{i:03d}"))
    return clients


def of_many_widths(clients: int, samples: int) -> Federation:
    """Clients with 6 to 22 features, 17 widths in turn."""
    return Federation(_clients([(6 + i % 17,) for i in range(clients)], samples), CLASSES, "widths")


def two_blocks(clients: int, samples: int) -> Federation:
    """Clients that hold two of three blocks of 20 features."""
    held = [tuple(20 * (b != i % 3) for b in range(3)) for i in range(clients)]
    return Federation(_clients(held, samples), CLASSES, "blocks")


OWN: dict[str, tuple[Callable[[int, int], Federation], Method]] = {
    "FLIC, 17 widths": (
        of_many_widths,
        FLIC(Model(MLP((64,), 64), alpha=64), local_epochs=EPOCHS, batch_size=BATCH, pretrain_epochs=1),
    ),
    "HyFEM, two of three blocks": (
        two_blocks,
        HyFEM(Model(Blocks.alike("abc", MLP((), 32), 64)), local_epochs=EPOCHS, batch_size=BATCH, lr=1e-2),
    ),
    "Fed-CMA, heads of 17 widths": (
        of_many_widths,
        FedCMA(Model(MLP((64,), 64)), local_epochs=EPOCHS, batch_size=BATCH),
    ),
}
"""By name a federation of so many clients and samples each, and a method: nobody else's library trains these."""
