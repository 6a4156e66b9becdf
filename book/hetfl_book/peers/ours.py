"""Our side: a program that trains what it is told, and says what it took (``python -m hetfl_book.peers.ours``).

What it is to do comes from its input, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hetfl_book.peers import floor
from hetfl_book.peers.problems import LR, OWN, Case
from hetfl_core import simulate
from hetfl_core.benchmark import peak_megabytes
from hetfl_core.engine.simulator import Simulator
from hetfl_core.engine.training import plan
from hetfl_core.federation import Federation
from hetfl_core.methods.base import Method
from hetfl_core.numerics import keep_freed_memory
from hetfl_core.rng import stream

LEAVES = {"w1": "phi.0.weight", "b1": "phi.0.bias", "w2": "beta.weight", "b2": "beta.bias"}
"""Our names of the four tensors of the network."""


def spent(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds that a call takes, by the clock and of all cores, its processes' among them."""

    def now() -> tuple[float, float]:
        used = os.times()
        return time.perf_counter(), used.user + used.system + used.children_user + used.children_system

    begin = now()
    call()
    return {name: after - before for name, before, after in zip(("wall", "cpu"), begin, now(), strict=True)}


class Side:
    """A federation and a method that are trained when asked.

    Parameters
    ----------
    federation : Federation
    method : Method
    participation : float
        Share of the clients that take part in a round.
    """

    def __init__(self, federation: Federation, method: Method, participation: float = 1.0) -> None:
        self.federation, self.method, self.participation = federation, method, participation

    def run(self, rounds: int, **options: Any) -> Any:
        """Train so many rounds; evaluated are the first and the last state alone."""
        options |= {"participation": self.participation, "progress": False, "evaluate_every": sys.maxsize}
        return simulate(self.federation, self.method, rounds=rounds, device="cpu", **options)

    def time(self, rounds: int, **options: Any) -> dict[str, float]:
        """Seconds of a run of so many rounds, and the most memory that was ever held."""
        return {**spent(lambda: self.run(rounds, **options)), "mb": peak_megabytes()}

    def products(self, rounds: int) -> dict[str, float]:
        """What the products of so many rounds take by themselves, beyond those of a run of one round."""
        counts = []
        for length in (1, 1 + rounds):
            with floor.Products() as products:
                self.run(length, workers=1)
            counts.append(products.counts)
        return floor.cost(counts[1] - counts[0], floor.least)


class FedAvgSide(Side):
    """FedAvg of a network with one hidden layer."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.federation(), case.method(), case.chosen / case.clients)
        self.case = case

    @cached_property
    def start(self) -> dict[str, Tensor]:
        """The weights with which everybody begins."""
        server = Simulator(self.federation, self.method, device="cpu").initial().server
        return {name: server[leaf] for name, leaf in LEAVES.items()}

    @cached_property
    def batches(self) -> Tensor:
        """Those of the first round, shape (steps, clients, batch): rows of each client's samples."""
        [stage] = self.method.stages(0, "round")
        each = [stream(0, client.name, 0, "round/0/batches") for client in self.federation]
        return torch.stack([plan(stage, self.case.samples, rng) for rng in each], 1).long()

    @cached_property
    def samples(self) -> tuple[Tensor, Tensor]:
        """Those of all clients, one client's after the other's, and their labels."""
        x, y = (torch.from_numpy(array).flatten(0, 1) for array in self.case.made())
        return x, y

    def by_hand(self, clients: int) -> dict[str, Tensor]:
        """What the step written by hand makes of the first so many clients, in the first round of all."""
        rows = self.batches[:, :clients] + self.case.samples * torch.arange(clients)[:, None]
        return floor.by_hand(*self.samples, rows, self.start, LR)


def answer(side: Side, asked: dict[str, Any]) -> dict[str, Any]:
    """What is asked: a run timed, the products of one, or a round by hand."""
    if "by_hand" in asked:
        assert isinstance(side, FedAvgSide)
        side.by_hand(1)  # what is made once is made before the clock runs
        return {"cpu": floor.least(lambda: side.by_hand(asked["by_hand"]), calls=1, times=asked["times"])}
    if "products" in asked:
        return side.products(asked["products"])
    return side.time(**asked)


def main() -> None:
    """Answer, line by line."""
    keep_freed_memory()  # as the command `hetfl` does
    torch.set_num_threads(1)
    told = json.loads(sys.argv[1])
    if "own" in told:
        make, method = OWN[told["own"]]
        side = Side(make(told["clients"], told["samples"]), method)
    else:
        side = FedAvgSide(Case(**told))
    for line in sys.stdin:
        print(json.dumps(answer(side, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
