"""What a run leaves: histories, figures, models, and what they say of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from hetfl_core import checks
from hetfl_core.engine.evaluation import METRICS
from hetfl_core.engine.last_step import after
from hetfl_core.engine.measures import MEASURES, Function, Named, Score, check_measure, named, scored, told
from hetfl_core.engine.prediction import prediction_noise
from hetfl_core.engine.trained import Trained
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation, Kind, blocks, map_blocks
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params


@dataclass(eq=False)
class Run:
    """What a run leaves, as `simulate` returns it: histories, figures, models, and what they say of samples.

    Parameters
    ----------
    federation : Federation
        The data, in the run's floating-point type.
    method : Method
    settings : dict
        What the run was told, as records keep it: ``"method"`` in plain form, ``"rounds"`` made, ``"participation"``,
        ``"seed"``, ``"engine"``, ``"dtype"``, ``"evaluate_every"``, and what else was asked for.
    history : pandas.DataFrame
        One row per round (0 is the state after pre-training): ``round``, the mean of each loss term over steps and
        participants, ``train_accuracy`` and ``accuracy``, means over clients on their training and test samples
        (``train_mse`` and ``mse`` for a regression), ``bytes_up``, ``bytes_down``, ``seconds``, and what `simulate` was
        asked to measure beside. Figures of rounds that were not evaluated are NaN.
    final : dict of str to float
        Figures after the last local training of all clients, named as in `history`: of test samples, unless ``train_``
        or ``validation_`` stands before. A regression has ``mse`` where ``accuracy`` stands here.

        - Test metrics, as `hetfl_core.engine.evaluation.summarise` names them.
        - ``train_accuracy``, the mean over clients on their training samples.
        - ``server_accuracy``, where the server has a model of its own.
        - ``validation_accuracy``, where there are validation samples.
        - ``held_accuracy`` and ``attainable_accuracy``, where test sets hold classes that training sets lack. The first
          is measured on test samples of the classes that a client holds. The second is the mean share of these
          samples: what clients can at best reach if they never name another class.
        - ``diverged``, the number of clients whose training diverged, where there are any.
        - What `simulate` was asked for as ``metric``: ``auc``, its mean over clients, ``auc_sd``, their standard
          deviation, and ``auc_worst``, the worst client's; likewise for the others, but that a bare function, which
          does not say whether more of it is better (`hetfl_core.scorer`), has no worst client.
        - ``bytes_up``, ``bytes_down`` and ``seconds``, totals of the run.
    per_client : pandas.DataFrame
        One row per client: ``client``, ``n_train``, ``n_test``, and its test metrics at the end, ``accuracy`` and
        ``balanced_accuracy``, or ``mse`` and ``r2`` for a regression, and what it was asked to measure.
    server : dict of str to Tensor
        The server's tensors at the end.
    client_states : list of dict of str to Tensor
        What each client keeps, in the order of the federation.
    params : list of dict of str to Tensor
        Each client's whole model after its last local training, in the order of the federation.
    device : torch.device
        Where these tensors are, and where `embed` and `predict` compute.
    steps : list of dict of str to Tensor
        The last step of each client, in the order of the federation; none unless ``last_step="own"``.
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
    steps: list[Params] = field(default_factory=list)

    # --- use ---

    def predict(self, rows: Any, client: str | None = None) -> pd.Series:
        """Classes, or numbers, that a client's model predicts for new rows.

        Parameters
        ----------
        rows : DataFrame, or array_like, or dict of str to such
            As `hetfl_core.engine.trained.Predictor.predict` takes them: a table with the columns that the model was
            trained with, or, where features have no names, an array of the shape of the training inputs.
        client : str, optional
            Whose model; it can be left out where there is only one.

        Returns
        -------
        Series, shape (n,)

        Raises
        ------
        ValueError
            For a client that has no model, and rows that it cannot take. For ``"train"`` and ``"test"``: what the
            models say of the clients' own samples is in `outputs` and `probabilities`.
        """
        return self._for(rows).predict(rows, client)

    def predict_proba(self, rows: Any, client: str | None = None) -> pd.DataFrame:
        """Class probabilities for new rows, shape (n, C), a column per class; arguments and errors as of `predict`."""
        return self._for(rows).predict_proba(rows, client)

    def _for(self, rows: Any) -> Trained:
        if isinstance(rows, str):
            raise WrongValue(
                f"rows must be a table or an array, got {checks.shown(rows)}: what the models say of the clients' own "
                "samples is in run.outputs('test') and run.probabilities('test')"
            )
        return self.trained()

    def score(self, metric: Named | Function | Score | None = None) -> float:
        """Mean over clients of a metric of their test samples.

        Parameters
        ----------
        metric : str or callable, optional
            As `simulate` takes it; by default the accuracy, in [0, 1], or the mean squared error of a regression.

        Returns
        -------
        float
            As `final` has it; clients where it is not defined are left out.

        Raises
        ------
        ValueError
            For a metric that is unknown, or where no client has test samples.
        """
        name: Any = METRICS[self.federation.task].main if metric is None else named(metric)
        if isinstance(name, str) and name in self.final:
            return self.final[name]
        table = self.scores(name)
        return float(table[table.columns[-1]].mean())

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Figure of a metric of the clients' test samples, mean over clients, round by round.

        Parameters
        ----------
        metric : str, optional
            A column of `history`; by default the accuracy, or the mean squared error of a regression.
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ValueError
            For a column that the history does not have, or that was measured in no round.
        """
        name = METRICS[self.federation.task].main if metric is None else named(metric)
        known = [column for column in self.history if column != "round" and self.history[column].notna().any()]
        checks.choice("metric", name, known)
        seen = self.history[self.history[name].notna()]
        return seen.plot("round", name, ax=ax, marker=".", legend=False, ylabel=name, title=self.method.name)

    def report(self) -> str:
        """Figures of the run as a text: each client's test metrics, their mean and the worst, and what was sent.

        Returns
        -------
        str
            For `print`; `per_client` and `final` have the same as numbers.
        """
        sizes = ("n_train", "n_test")
        shown = {name: str if name in sizes else _three for name in self.per_client.columns.drop("client")}
        each = self.per_client.to_dict("records")
        rows = {str(row["client"]): [show(row[name]) for name, show in shown.items()] for row in each}
        summary = {"mean over clients": "{}", "worst client": "{}_worst"}
        for words, name in summary.items():
            rows[words] = ["" if one in sizes else _three(self.final.get(name.format(one))) for one in shown]
        text = pd.DataFrame.from_dict(rows, orient="index", columns=list(shown)).to_string()
        up, down = (f"{self.final[name]:,.0f}".replace(",", " ") for name in ("bytes_up", "bytes_down"))
        return f"{self!r}\n\n{text}\n\nsent up {up} bytes, down {down} bytes; {self.final['seconds']:.1f} s"

    # --- the clients' own samples ---

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
        """Latent features φ_i(x) of each client's samples.

        Parameters
        ----------
        split : {"train", "test"}
            Which of its samples.

        Returns
        -------
        dict of str to ndarray, shapes (n_i, k)
            By client name.

        Raises
        ------
        ValueError
            For another split.
        """
        return self._apply("embed", split)

    def outputs(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Outputs of each client's model for its own samples.

        A method that predicts at random gives what `final` was measured on.

        Parameters
        ----------
        split : {"train", "test"}
            Which of its samples.

        Returns
        -------
        dict of str to ndarray
            By client name: logits, shapes (n_i, C), or the predicted numbers of a regression, shapes (n_i, 1).

        Raises
        ------
        ValueError
            For another split.
        """
        outputs = self._apply("predict", split, noisy=True)
        stepped = after([torch.from_numpy(each) for each in outputs.values()], self.steps)
        return {name: each.numpy() for name, each in zip(outputs, stepped, strict=True)}

    def probabilities(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Class probabilities of each client's samples, the softmax of `outputs`, such as calibration needs.

        Parameters
        ----------
        split : {"train", "test"}
            Which of its samples.

        Returns
        -------
        dict of str to ndarray of float64, shapes (n_i, C)
            By client name.

        Raises
        ------
        ValueError
            For a regression, and for another split.
        """
        if self.federation.task != "classification":
            raise WrongValue(f"probabilities are those of classes, but {self.federation.name!r} is a regression")
        logits = {name: torch.as_tensor(outputs) for name, outputs in self.outputs(split).items()}
        return {name: outputs.double().softmax(-1).numpy() for name, outputs in logits.items()}

    def scores(self, *metric: Named | Function | Score, split: Literal["train", "test"] = "test") -> pd.DataFrame:
        """Measures of each client's samples when the run is over.

        Parameters
        ----------
        *metric : str or callable
            As `simulate` takes them: ``"auc"``, ``"log_loss"`` …, or a function ``f(y, p)`` of your own, bare or in
            `hetfl_core.scorer`.
        split : {"train", "test"}
            Which of its samples.

        Returns
        -------
        DataFrame
            One row per client: ``client``, ``n``, its samples, and a column for each measure; NaN where it has no
            samples or the measure is not defined.

        Raises
        ------
        ValueError
            For a measure that is unknown, or needs a run to be looked at (``"own"``), and for another split.
        """
        task = self.federation.task
        beside, scores = check_measure(metric, task)
        if beside:
            raise WrongValue(f"metric must be one that a model has, of {list(MEASURES[task])}, got {beside[0]!r}")
        outputs, labels = [torch.from_numpy(each) for each in self.outputs(split).values()], self.labels(split)
        table = pd.DataFrame({"client": list(labels), "n": [len(y) for y in labels.values()]})
        return table.assign(**scored(scores, told(outputs, task), [*labels.values()], [*labels], False))

    def trained(self) -> Trained:
        """The models without the data: they predict for new rows, and can be saved.

        Of each client's tensors those are kept that it was sent or that training made, and not what it made of its
        samples before (`Method.precompute`).

        Returns
        -------
        Trained
        """
        return Trained.of(self)

    def save(self, folder: str | Path) -> Path:
        """Write the models of all clients, and the server's, to a folder; of networks without any row of the data.

        Parameters
        ----------
        folder : path
            Made if it is missing; `hetfl_core.load_trained` reads it.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        ValueError, OSError, TypeError
            As `trained` and `Trained.save` do.
        """
        return self.trained().save(folder)

    def labels(self, split: Literal["train", "test"] = "test") -> dict[str, np.ndarray]:
        """Labels of each client's samples, or the targets of a regression, in the order of `outputs`.

        Parameters
        ----------
        split : {"train", "test"}
            Which of its samples.

        Returns
        -------
        dict of str to ndarray, shapes (n_i,)
            By client name; copies.
        """
        return {client.name: getattr(client, f"y_{split}").numpy().copy() for client in self.federation}

    def __repr__(self) -> str:
        metrics = METRICS[self.federation.task]
        result = metrics.text(self.final[metrics.main]) if metrics.main in self.final else "no test data"
        result = "diverged" if self.final.get("diverged") else result
        rounds = f", {n} rounds" if (n := self.settings["rounds"]) else ""  # what is no method has none
        return f"Run({self.method.name} on {self.federation.name!r}{rounds}: {result})"


def _three(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.3f}"


def usual(task: Kind) -> list[str]:
    """Names of the figures of test samples that every run has in `Run.final`."""
    each, worst = METRICS[task].per_client, METRICS[task].worst
    return [*each, *(f"{name}{end}" for name in worst for end in ("_weighted", "_worst"))]


def ends(measure: str) -> list[str]:
    """What `Run.final` has of a measure that was asked for: its mean over clients, their spread, and the worst."""
    return [measure, f"{measure}_sd", f"{measure}_worst"]


def figures(task: Kind) -> list[str]:
    """Names of all that `Run.final` may hold for a task; which of it a run has depends on the method and the data."""
    main, asked = METRICS[task].main, [end for name in MEASURES[task] for end in ends(name)]
    others = [f"{what}_{main}" for what in ("train", "server", "validation", "held", "attainable")]
    return [*dict.fromkeys([*usual(task), *asked]), *others, "bytes_up", "bytes_down", "seconds"]


def of_splits(main: str) -> dict[Literal["train", "test"], str]:
    """What the figure `main` is called by the samples that it is measured on."""
    return {"train": f"train_{main}", "test": main}


def columns(main: str) -> list[str]:
    """Columns that every history has, where `main` is the figure that it follows; no loss term may be called so."""
    return ["round", *of_splits(main).values(), "bytes_up", "bytes_down", "seconds"]
