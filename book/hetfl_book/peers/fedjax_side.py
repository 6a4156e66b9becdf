"""FedJAX's side: a program for the environment that has FedJAX, and nothing of ours.

It reads a problem from the file that it is given, and what it is to do from its input, a line of JSON each.
"""

import json
import sys
import time
from typing import Any

import numpy as np

NAMES = ("w1", "b1", "w2", "b2")


class Side:
    """FedAvg of a network with one hidden layer, on the clients of a problem."""

    def __init__(self, problem: Any) -> None:
        import jax

        for name in ("tree_map", "tree_leaves", "tree_flatten", "tree_unflatten"):
            if not hasattr(jax, name):  # FedJAX was written when they stood there
                setattr(jax, name, getattr(jax.tree_util, name))
        import fedjax
        import haiku
        from fedjax.algorithms import fed_avg

        self.jax, self.fedjax, self.problem = jax, fedjax, problem
        hidden, classes = int(problem["hidden"]), int(problem["classes"])
        self.network = haiku.transform(
            lambda batch: haiku.Sequential([haiku.Linear(hidden), jax.nn.relu, haiku.Linear(classes)])(batch["x"])
        )
        sample = {"x": np.zeros((1, problem["x"].shape[2]), np.float32), "y": np.zeros(1, np.int32)}
        self.model = fedjax.create_model_from_haiku(
            self.network, sample, lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out)
        )
        sgd, lr = fedjax.optimizers.sgd, float(problem["lr"])
        epochs, batch = int(problem["epochs"]), int(problem["batch"])

        def algorithm(**options: Any) -> Any:
            batches = fedjax.ShuffleRepeatBatchHParams(batch_size=batch, **options)
            return fed_avg.federated_averaging(fedjax.model_grad(self.model), sgd(lr), sgd(1.0), batches)

        self.algorithm = algorithm(num_epochs=epochs)
        self.in_order = algorithm(num_epochs=1, skip_shuffle=True)

    def data(self, rows: Any) -> Any:
        """The clients with these rows of their samples, in this order."""
        x, y = self.problem["x"], self.problem["y"].astype(np.int32)
        return {f"{i:03d}".encode(): {"x": x[i, at], "y": y[i, at]} for i, at in enumerate(rows)}

    def time(self, rounds: int) -> dict[str, float]:
        """Seconds of a run of so many rounds; FedJAX compiled what it needs in the run before."""
        everything = [slice(None)] * len(self.problem["x"])
        clients = self.fedjax.InMemoryFederatedData(self.data(everything))
        begin = time.perf_counter(), time.process_time()
        sampler = self.fedjax.client_samplers.UniformGetClientSampler(clients, int(self.problem["chosen"]), seed=0)
        state = self.algorithm.init(self.model.init(self.jax.random.PRNGKey(0)))
        for number in range(rounds):
            sampler.set_round_num(number)
            state, _ = self.algorithm.apply(state, sampler.sample())
        self.jax.block_until_ready(state.params)
        return {"wall": time.perf_counter() - begin[0], "cpu": time.process_time() - begin[1]}

    def check(self, path: str) -> dict[str, list[Any]]:
        """What a round of all clients makes of the weights in a file, on the batches there."""
        given = np.load(path)
        params = self.model.init(self.jax.random.PRNGKey(0))
        leaves, tree = self.jax.tree_util.tree_flatten(params)
        order = sorted(range(4), key=lambda i: NAMES.index(_name(leaves[i].shape, given)))
        start = [None] * 4
        for name, i in zip(NAMES, order):
            start[i] = self.jax.numpy.asarray(given[name])
        clients = self.fedjax.InMemoryFederatedData(self.data(given["rows"]))
        state = self.in_order.init(self.jax.tree_util.tree_unflatten(tree, start))
        sampled = [(name, data, self.jax.random.PRNGKey(i)) for i, (name, data) in enumerate(clients.clients())]
        state, _ = self.in_order.apply(state, sampled)
        after = self.jax.tree_util.tree_leaves(state.params)
        return {name: np.asarray(after[i]).tolist() for name, i in zip(NAMES, order)}


def _name(shape: tuple[int, ...], given: Any) -> str:
    """Which of the tensors has a shape: all four differ."""
    [name] = [name for name in NAMES if given[name].shape == shape]
    return name


def main() -> None:
    """Answer, line by line."""
    side = Side(np.load(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        answer = side.check(asked["check"]) if "check" in asked else side.time(asked["rounds"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
