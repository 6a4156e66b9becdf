"""What a run leaves: histories, figures, models, and what they say of samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from hetfl_core import checks
from hetfl_core.engine.evaluation import METRICS, Measure
from hetfl_core.engine.prediction import prediction_noise
from hetfl_core.federation import Federation, Kind, blocks, map_blocks
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params


@dataclass(eq=False)
class Run:
    """What `simulate` returns.

    Attributes
    ----------
    history : pandas.DataFrame
        One row per round (0 is the state after pre-training): ``round``, the mean of each loss term over steps and
        participants, ``train_accuracy`` and ``test_accuracy`` (means over clients; ``train_mse`` and ``test_mse`` for
        a regression), ``bytes_up``, ``bytes_down``, ``seconds``.
    final : dict of str to float
        Test metrics after the last local training of all clients (see `hetfl_core.engine.evaluation.summarise`),
        ``train_accuracy``, ``server_accuracy`` where the server has a model of its own (``…_mse`` for a regression),
        ``validation_accuracy`` where there are validation samples,
        where test sets hold classes that training sets lack ``accuracy_held``, on the classes held, and
        ``accuracy_limit``, the share of test samples of these classes, which is what a client can at best reach if it
        never names another; ``diverged``, the number of clients whose training diverged, where there are any; and
        total ``bytes_up``, ``bytes_down``, ``seconds``.
    per_client : pandas.DataFrame
        Test accuracy and balanced accuracy (mean squared error and R² for a regression) and sample counts of each
        client at the end.
    server, client_states
        Tensors of the server, and of each client (in the order of the federation), at the end.
    params
        Each client's whole model after its last local training.
    """

    federation: Federation
    method: Method
    settings: dict[str, Any]
    history: pd.DataFrame
    final: dict[str, float]
    per_client: pd.DataFrame
    server: Params
    client_states: list[Params]
    params: list[Params]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def _apply(self, hook: Literal["embed", "predict"], split: str, noisy: bool = False) -> dict[str, np.ndarray]:
        checks.choice("split", split, ("train", "test"))
        out = {}
        for client, spec, params in zip(self.federation, self.federation.specs(), self.params, strict=True):
            method, received = self.method.of(spec), self.method.download(self.server, spec)
            x = map_blocks(lambda t: t.to(self.device), getattr(client, f"x_{split}"))
            seed, done, n = self.settings["seed"], self.settings["rounds"], len(blocks(x)[0])
            drawn = prediction_noise(method, spec, n, seed, done, split, blocks(x)[0].dtype) if noisy else {}
            noise = [{name: numbers.to(self.device) for name, numbers in drawn.items()}] if drawn else []
            with torch.no_grad():
                out[client.name] = getattr(method, hook)(params, received, x, *noise).cpu().numpy()
        return out

    def embed(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Latent features φ_i(x) of each client's samples, by client name; shapes (n_i, k)."""
        return self._apply("embed", split)

    def predict(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Outputs for each client's samples, by client name: logits, (n_i, C), or predicted numbers, (n_i, 1).

        A method that predicts at random gives what `final` was measured on.
        """
        return self._apply("predict", split, noisy=True)

    def probabilities(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Class probabilities, the softmax of `predict`, by client name; shapes (n_i, C), for calibration.

        Raises
        ------
        ValueError
            For a regression.
        """
        if self.federation.task != "classification":
            raise ValueError(f"probabilities are those of classes, but {self.federation.name!r} is a regression")
        logits = {name: torch.as_tensor(outputs) for name, outputs in self.predict(split).items()}
        return {name: outputs.double().softmax(-1).numpy() for name, outputs in logits.items()}

    def labels(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Labels of each client's samples, or targets of a regression, by client name; shapes (n_i,), as `embed`."""
        return {client.name: getattr(client, f"y_{split}").numpy().copy() for client in self.federation}

    def __repr__(self) -> str:
        metrics = METRICS[self.federation.task]
        result = metrics.text(self.final[metrics.main]) if metrics.main in self.final else "no test data"
        result = "diverged" if self.final.get("diverged") else result
        return f"Run({self.method.name} on {self.federation.name!r}, {self.settings['rounds']} rounds: {result})"


SPLITS: tuple[Literal["train"], Literal["test"]] = ("train", "test")


def column_of(name: Measure, main: str) -> str:
    """Column of such a figure."""
    return f"{name}_test_{main}"


def figures(task: Kind) -> list[str]:
    """All that `Run.final` may hold for a task; which of it a run has depends on the method and the data."""
    main, worst = METRICS[task].main, METRICS[task].worst
    each = [*METRICS[task].per_client, *(f"{name}{end}" for name in worst for end in ("_weighted", "_worst"))]
    others = [f"{split}_{main}" for split in ("train", "server", "validation")] + [f"{main}_held", f"{main}_limit"]
    return [*each, *others, "bytes_up", "bytes_down", "seconds"]


def columns(main: str) -> list[str]:
    """Columns that every history has, where `main` is the figure that it follows; no loss term may be called so."""
    return ["round", f"train_{main}", f"test_{main}", "bytes_up", "bytes_down", "seconds"]
