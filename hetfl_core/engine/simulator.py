"""A run that can be measured: what clients and the server predict, and the figures of that."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hetfl_core.engine import evaluation, measures, prediction
from hetfl_core.engine.checkpoint import State
from hetfl_core.engine.evaluation import Measure, Samples
from hetfl_core.engine.last_step import after
from hetfl_core.engine.layout import Layout
from hetfl_core.engine.measures import Score
from hetfl_core.engine.stacks import Cohort
from hetfl_core.engine.trainer import Trainer
from hetfl_core.engine.training import Outcomes
from hetfl_core.federation import Spec, blocks, map_blocks
from hetfl_core.networks import Params


class Simulator(Trainer):
    """A federation, a method and an engine, ready to run round by round.

    `simulate` is the usual way in; this one is for what goes on between rounds. A state comes from `initial`. Then
    `train` with role ``"start"``, `round` with the participants of a round, and `score` each take a state.

    Parameters
    ----------
    federation, method, seed, engine, device, dtype, stack_size, workers, threads, secrets
        As for `simulate`.
    """

    validation: Simulator | None = None
    """The same clients with their validation samples for test samples."""
    warned = False
    """Whether it was said that training diverged, which is said once a run."""
    beside: Sequence[Measure] = ()
    """What is looked at of the main figure beside the usual."""
    scores: Mapping[str, Score] = {}
    """Measures of outputs that are asked for beside the usual figures."""

    def downloads(self, state: State) -> list[Params]:
        """What the server would send to every client in a state.

        Parameters
        ----------
        state : State

        Returns
        -------
        list of dict of str to Tensor
            In the order of the federation.
        """
        return [self.method.download(state.server, spec) for spec in self.specs]

    def working(self, state: State, received: Sequence[Params] | None = None) -> list[Params]:
        """Parameters of every client: what it keeps, joined with what it is sent.

        Parameters
        ----------
        state : State
        received : sequence of dict of str to Tensor, optional
            What each client is sent; by default a fresh download.

        Returns
        -------
        list of dict of str to Tensor
            In the order of the federation.
        """
        received = self.downloads(state) if received is None else received
        each = enumerate(zip(self.specs, state.client_states, received, strict=True))
        return [
            self.method.of(spec).start(self.working_state(index, client_state), sent)
            for index, (spec, client_state, sent) in each
        ]

    def predicted(
        self, state: State, split: Literal["train", "test"], params: Sequence[Params] | None = None
    ) -> list[np.ndarray]:
        """Predictions for every client's samples.

        Parameters
        ----------
        state : State
        split : {"train", "test"}
            Which samples.
        params : sequence of dict of str to Tensor, optional
            Each client's parameters; by default those of `working`.

        Returns
        -------
        list of ndarray, shapes (n_i,)
            Classes, or numbers for a regression, in the order of the federation. NaN where an output is not finite.
        """
        return self.decided(self.outputs(state, split, params))

    def decided(self, outputs: Sequence[Tensor]) -> list[np.ndarray]:
        """What is predicted where models say this, shapes (n_i, C) → (n_i,), of all clients at once."""
        found = self.metrics.decide(torch.cat(list(outputs)))
        return [each.numpy() for each in found.split([len(each) for each in outputs])]

    def outputs(
        self, state: State, split: Literal["train", "test"], params: Sequence[Params] | None = None
    ) -> list[Tensor]:
        """What every client's model says of its samples, before a class is decided on; arguments as for `predicted`.

        Returns
        -------
        list of Tensor, shapes (n_i, C), or (n_i, 1) for a regression
            On the CPU.
        """
        received = self.downloads(state)
        params = self.working(state, received) if params is None else params
        answers = dict(self.answers(state, split, dict(enumerate(zip(params, received, strict=True)))))
        return [answers[index].cpu() for index in range(len(self.specs))]

    def measured(
        self, state: State, params: Sequence[Params] | None = None, steps: Sequence[Params] = (), say: bool = False
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Predictions for the test samples, and each client's measures of `scores`; arguments as for `predicted`.

        Parameters
        ----------
        steps : sequence of dict of str to Tensor
            The last step of each client, where it has one (`hetfl_core.engine.last_step`).
        say : bool
            Warn of clients on which a measure is not defined.

        Returns
        -------
        list of ndarray, shapes (n_i,)
            As `predicted` has them.
        dict of str to ndarray, shapes (n_clients,)
        """
        outputs = after(self.outputs(state, "test", params), steps)
        predicted = self.decided(outputs)
        if not self.scores:
            return predicted, {}
        names = [spec.name for spec in self.specs]
        told = measures.told(outputs, self.federation.task)
        return predicted, measures.scored(self.scores, told, self.labels("test"), names, say)

    def diverged(self, predicted: Iterable[Samples]) -> list[int]:
        """Indices of clients whose predictions in some split are not all numbers.

        Parameters
        ----------
        predicted : iterable of list of ndarray
            What `predicted` gives for each split.

        Returns
        -------
        list of int
        """
        return [int(c) for c in np.flatnonzero(np.any([evaluation.diverged(some) for some in predicted], axis=0))]

    def broken(self, state: State, outcomes: Outcomes) -> list[int]:
        """Indices of clients that cannot predict their own samples with the models that left local training.

        Parameters
        ----------
        state : State
        outcomes : dict of int to Outcome
            Of clients that trained, by their indices.

        Returns
        -------
        list of int
        """
        found = self.answers(state, "train", _left(outcomes)) if outcomes else ()
        return [c for c, answer in found if not bool(answer.isfinite().all())]

    def answers(
        self,
        state: State,
        split: Literal["train", "test"],
        models: Mapping[int, tuple[Params, Params]],
    ) -> Iterator[tuple[int, Tensor]]:
        """What clients' models say of their own samples.

        Parameters
        ----------
        state : State
        split : {"train", "test"}
            Which samples.
        models : dict of int to pair of dict of str to Tensor
            By index, a client's working copy and what it received.

        Yields
        ------
        int
            Index of the client.
        Tensor, shape (n_i, C) or (n_i, 1)
            As `outputs` has them, on the run's device.
        """
        tasks = []
        for cohort, way in zip(self.cohorts, self.layouts, strict=True):
            for rows in self._pieces(cohort, way, split, models):
                members = [cohort.members[row] for row in rows]
                clients, received = zip(*(models[m] for m in members), strict=True)
                tasks.append((way.engine, members, clients, received, split, state.done))
        names = [[self.specs[m].name for m in members] for _, members, *_ in tasks]
        for (_, members, *_), found in zip(tasks, self.pool.map(self.answered, tasks, names), strict=True):
            yield from zip(members, found, strict=True)

    def answered(
        self,
        engine: str,
        members: Sequence[int],
        clients: Sequence[Params],
        received: Sequence[Params],
        split: Literal["train", "test"],
        round: int,
    ) -> list[Tensor]:
        """The `answers` of clients that share a stack, given their models; `members` are their indices."""
        specs = [self.specs[m] for m in members]
        cohort, rows = self.rows[members[0]][0], [self.rows[m][1] for m in members]
        data = getattr(cohort, split).take(rows, [spec.shapes for spec in specs])
        method, n = self.method.of(specs[0]), data.n.tolist()
        noise = [self.prediction_noise(spec, many, round, split) for spec, many in zip(specs, n, strict=True)]
        if engine == "loop":
            return prediction.predict_each(method.predict, clients, received, specs, data, noise)
        answers = prediction.lift(method.predict, clients, received, data.rectangle(), noise)
        return [answer[:many] for answer, many in zip(answers, n, strict=True)]

    def _pieces(self, cohort: Cohort, way: Layout, split: str, indices: Container[int]) -> list[list[int]]:
        """Rows of a cohort that are predicted at once, of those of some indices."""
        rows = [row for row, member in enumerate(cohort.members) if member in indices]
        n = getattr(cohort, split).n.tolist()
        found = _similar([n[row] for row in rows], way.size, self._rows(cohort, way))
        return [[rows[i] for i in some] for some in found]

    def also(
        self, names: Sequence[Measure], before: State, after: State, outcomes: Outcomes, predicted: Samples
    ) -> dict[str, float | None]:
        """Columns that `metric` asks for: of the states around a round, its participants, and predictions of all.

        Parameters
        ----------
        names : sequence of {"own", "server", "held", "own_held"}
            As for ``metric`` of `simulate`.
        before, after : State
            Around the round.
        outcomes : dict of int to Outcome
            Of the participants, by their indices.
        predicted : list of ndarray, shapes (n_i,)
            What all predict for their test samples.

        Returns
        -------
        dict of str to float or None
            None where the server has no model of its own.
        """
        found: dict[Measure, float | None] = {}
        if {"own", "own_held"} & set(names):
            answers = dict(self.answers(before, "test", _left(outcomes)))
            indices = sorted(answers)
            own = self.decided([answers[index].cpu() for index in indices])
            found["own"] = self.figure(own, [self.federation[index].y_test.numpy() for index in indices])
            found["own_held"] = self.figure(*self.of_held_classes(own, indices))
        if "server" in names:
            found["server"] = self.server_score(after)
        if "held" in names:
            found["held"] = self.figure(*self.of_held_classes(predicted))
        return {f"{name}_{self.metrics.main}": found[name] for name in names}

    def on_held_classes(self, predicted: Samples) -> dict[str, float]:
        """Figures on test samples of the classes that clients hold, and the share that these samples are.

        Parameters
        ----------
        predicted : list of ndarray, shapes (n_i,)
            For the test samples of all clients.

        Returns
        -------
        dict of str to float
            Empty where it is all samples.
        """
        each = self.held_per_client(predicted)
        if not each:
            return {}
        (held, _), (limit, share) = each.items()
        return {held: self.figure(*self.of_held_classes(predicted)), limit: float(share[~np.isnan(share)].mean())}

    def held_per_client(self, predicted: Samples) -> dict[str, np.ndarray]:
        """Figures on test samples of the classes that a client holds, client by client; NaN where there are none.

        Parameters
        ----------
        predicted : list of ndarray, shapes (n_i,)
            For the test samples of all clients.

        Returns
        -------
        dict of str to ndarray, shapes (n_clients,)
            Empty where it is all samples.
        """
        main = self.metrics.main
        some, labels = self.of_held_classes(predicted)
        sizes = [np.array([len(y) for y in each]) for each in (labels, self.labels("test"))]
        if (sizes[0] == sizes[1]).all():
            return {}
        share = sizes[0] / np.where(sizes[1] > 0, sizes[1], np.nan)
        return {
            f"held_{main}": evaluation.per_client(some, labels, self.federation.task)[main],
            f"attainable_{main}": share,
        }

    def of_held_classes(self, predicted: Samples, indices: Sequence[int] | None = None) -> tuple[Samples, Samples]:
        """Predictions for test samples, and labels, without those of classes that a client has no training sample of.

        Of a regression nothing is left out.

        Parameters
        ----------
        predicted : list of ndarray, shapes (n_i,)
            For the test samples of these clients.
        indices : sequence of int, optional
            Of the clients; by default all.

        Returns
        -------
        predicted, labels : list of ndarray
        """
        some = range(len(self.specs)) if indices is None else indices
        labels = [self.federation[index].y_test.numpy() for index in some]
        if self.federation.task == "regression":
            return predicted, labels
        known = [np.isin(y, self.specs[index].classes) for index, y in zip(some, labels, strict=True)]
        both = [(p[mine], y[mine]) for p, y, mine in zip(predicted, labels, known, strict=True)]
        return [p for p, _ in both], [y for _, y in both]

    def figure(self, predicted: Samples, labels: Samples) -> float:
        """Mean over clients of the main figure; NaN where there are no samples, or where training diverged.

        Parameters
        ----------
        predicted, labels : list of ndarray, shapes (n_i,)

        Returns
        -------
        float
        """
        return evaluation.summarise(predicted, labels, self.federation.task).get(self.metrics.main, math.nan)

    def server_score(self, state: State) -> float | None:
        """Main figure of the server's own model; None where it has none, NaN where there are no test samples.

        It is measured on the federation's own test data, or, where it has none, as the mean over clients on theirs.

        Parameters
        ----------
        state : State

        Returns
        -------
        float or None
        """
        found, truth = [], []
        own, several = self.federation, zip(self.specs, self.federation, strict=True)
        for spec, data in several if own.x_test is None else [(own.server_spec(), own)]:
            x = map_blocks(lambda t: t.to(self.device), data.x_test)
            noise = self.prediction_noise(spec, len(blocks(x)[0]), state.done, "test")
            with torch.no_grad():
                outputs = self.method.of(spec).predict_server(state.server, x, *([noise] if noise else []))
            if outputs is None:
                return None
            found.append(self.metrics.decide(outputs).cpu().numpy())
            truth.append(data.y_test.numpy())
        return self.figure(found, truth)

    def _rows(self, cohort: Cohort, way: Layout) -> int | None:
        """Most samples that a stack predicts at once: with noise, as many as it can be held for."""
        spec = self.specs[cohort.members[0]]
        draws = self.method.of(spec).prediction_noise(spec).values()
        each = sum(math.prod(draw.shape) for draw in draws if draw.per == "sample")
        most = max(1, prediction.PREDICTED_NUMBERS // each) if each else None
        return min((rows for rows in (way.rows, most) if rows is not None), default=None)

    def prediction_noise(self, spec: Spec, n: int, round: int, split: str) -> Params:
        """The random numbers with which a client predicts the n samples of a split after so many rounds.

        Parameters
        ----------
        spec : Spec
            Of the client.
        n : int
            Samples.
        round : int
            Complete rounds.
        split : {"train", "test"}

        Returns
        -------
        dict of str to Tensor
            On the run's device.
        """
        drawn = prediction.prediction_noise(self.method, spec, n, self.seed, round, split, self.dtype)
        return {name: numbers.to(self.device) for name, numbers in drawn.items()}

    def labels(self, split: str) -> list[np.ndarray]:
        """True labels, or targets, of every client, in the order of the federation.

        Parameters
        ----------
        split : {"train", "test"}

        Returns
        -------
        list of ndarray, shapes (n_i,)
        """
        return [getattr(client, f"y_{split}").numpy() for client in self.federation]

    def score(self, state: State, split: Literal["train", "test"], params: Sequence[Params] | None = None) -> float:
        """Mean over clients of the main figure: accuracy as a fraction, or mean squared error.

        Parameters
        ----------
        state : State
        split : {"train", "test"}
            Which samples.
        params : sequence of dict of str to Tensor, optional
            Each client's parameters; by default those of `working`.

        Returns
        -------
        float
            NaN where there are no samples, or where training diverged.
        """
        return self.figure(self.predicted(state, split, params), self.labels(split))


def _left(outcomes: Outcomes) -> dict[int, tuple[Params, Params]]:
    """The models of clients as they left local training, and what they had been sent."""
    return {index: (outcome.params, outcome.received) for index, outcome in outcomes.items()}


def _similar(n: Sequence[int], most: int, rows: int | None = None) -> list[list[int]]:
    """Indices of `most` clients at most, none with under half the samples of another: padding no more than doubles.

    With `rows`, no group but one of a single client has more samples in all, padding counted.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(n)), key=lambda i: -n[i]):
        full = bool(groups) and rows is not None and (len(groups[-1]) + 1) * n[groups[-1][0]] > rows
        if not groups or full or len(groups[-1]) == most or 2 * n[index] < n[groups[-1][0]]:
            groups.append([])
        groups[-1].append(index)
    return groups
