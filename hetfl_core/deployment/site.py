"""One client of a deployed federation: tasks come in, answers go out, samples and what is kept stay.

Nothing here knows what carries the messages. A `Site` calls the hooks that the engine calls for a client in `simulate`,
with the same streams of random numbers; it trains with the engine's loop, in true shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from hetfl_core import checks
from hetfl_core.clients import by_block
from hetfl_core.deployment.agreement import check_described, described
from hetfl_core.deployment.sums import SumLayout
from hetfl_core.engine import checkpoint as checkpoints
from hetfl_core.engine import prediction, sides, training
from hetfl_core.engine.evaluation import METRICS, per_client
from hetfl_core.engine.measures import MEASURES, Score, scored
from hetfl_core.engine.measures import named as canonical
from hetfl_core.engine.measures import told as shown
from hetfl_core.engine.options import cpu_threads, with_networks
from hetfl_core.engine.stacks import stack_split
from hetfl_core.errors import RunError, WrongValue
from hetfl_core.federation import Client, Federation, Kind, Spec, map_blocks
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params
from hetfl_core.settings import Checked, Count, Natural, Positive, PositiveShare

TaskKind = Literal["start", "survey", "round", "rest", "final", "evaluate"]

ORDER: dict[str, int] = {"start": 0, "round": 1, "rest": 1, "final": 2}
"""Of the tasks that train within a round."""


@dataclass(frozen=True)
class RunSettings(Checked):
    """Settings of a run that the server and all clients agree on.

    Parameters
    ----------
    n_classes : int
        Classes of the federation; 0 for a regression.
    rounds : int
        Communication rounds T.
    participation : float
        Participation rate r in (0, 1]: ⌊r·b⌋ of the clients known take part in a round.
    seed : int
    dtype : torch.dtype
    task : {"classification", "regression"}
    evaluate_every : int
        Rounds between evaluations; the last is always evaluated. Each takes one more exchange of messages.
    secure : bool
        Secure aggregation: the server learns sums of uploads only. Each round takes three more exchanges, and entries
        are rounded (see `hetfl_core.deployment.sums`).
    clipping_range : float
        With secure aggregation, entries of uploads are clipped to ± this, and rounded to 2²² values between.
    metric : tuple of str
        Measures beside the usual figures, as for `simulate`, such as ``("auc", "f1")``.
    """

    n_classes: int
    rounds: Count = 10
    participation: PositiveShare = 1.0
    seed: Natural = 0
    dtype: torch.dtype = torch.float32
    task: Kind = "classification"
    evaluate_every: Count = 10
    secure: bool = False
    clipping_range: Positive = 8.0
    metric: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", tuple(map(canonical, self.metric)))
        for each in self.metric:
            checks.choice("metric", each, tuple(MEASURES[self.task]))
        checks.integer("n_classes", self.n_classes, 2 if self.task == "classification" else 0)

    @property
    def scores(self) -> dict[str, Score]:
        """The measures by name, but for those that all runs have."""
        asked = {name: MEASURES[self.task][name] for name in sorted(self.metric)}
        return {name: score for name, score in asked.items() if name not in METRICS[self.task].per_client}


@dataclass(frozen=True)
class Task:
    """What the server asks of one client.

    Parameters
    ----------
    kind : {"start", "survey", "round", "rest", "final", "evaluate"}
        A role of local training, a survey, or an evaluation.
    round : int
        Complete rounds so far, t.
    received : dict of str to Tensor
        The download.
    common : dict of str to Tensor
        With ``"start"``: first weights that all clients share, where the method wants that.
    n_clients : int
        Clients of the federation when this one began, as its `Spec` has them.
    features : tuple of str, or dict of str to tuple of str, optional
        The client's features, and its blocks, in the order that they have on all clients that have the same.
    layout : hetfl_core.deployment.sums.SumLayout, optional
        With ``"round"``: only the sum of all uploads, laid out so, leaves in a form that can be read.
    """

    kind: TaskKind
    round: int
    received: Params
    common: Params = field(default_factory=dict)
    n_clients: int = 1
    features: Any = None
    layout: SumLayout | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Place of a task that trains within a run."""
        return self.round, ORDER[self.kind]


@dataclass(frozen=True)
class Reply:
    """A client's answer to a task.

    Parameters
    ----------
    sent : dict of str to Tensor
        Upload, or answer to a survey; empty otherwise.
    figures : dict of str to float
        ``train_…`` and ``test_…`` figures, ``final_…`` those after the last training; NaN without samples.
    terms : dict of str to float
        Means of the loss terms over the steps of training.
    error : str, optional
        Why there is no answer.
    """

    sent: Params = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    error: str | None = None


class SiteError(RunError):
    """A task that a client cannot do; the message is for the server, too, and says nothing about samples."""


@dataclass(frozen=True)
class Memory:
    """What a client remembers of a run between tasks.

    Parameters
    ----------
    last : tuple of int
        `Task.key` of the last task that trained.
    before, after : dict of str to Tensor
        What the client kept before that task and after it. Who is asked for the same task again goes on from before,
        so that a server that was restarted gets the same answer.
    """

    last: tuple[int, int]
    before: Params
    after: Params

    def base(self, task: Task) -> Params:
        """The tensors that the client keeps when a task begins.

        Parameters
        ----------
        task : Task

        Returns
        -------
        dict of str to Tensor

        Raises
        ------
        SiteError
            For a task of a round that lies further back than the last one.
        """
        if task.kind in ("survey", "evaluate") or task.key > self.last:
            return self.after
        if task.key == self.last:
            return self.before
        raise SiteError(
            f"is asked for round {task.round} ({task.kind}), but has already gone through round {self.last[0]}: "
            "the server went back further than one round"
        )


class FileStore:
    """A folder of the client's own, which survives the end of any process.

    Parameters
    ----------
    folder : Path
    identity : hetfl_core.engine.checkpoint.Identity
        Of run, method and data; a folder that belongs to others is refused.
    """

    def __init__(self, folder: Path, identity: checkpoints.Identity) -> None:
        self.folder, self.identity = folder, identity

    def load(self) -> Memory | None:
        """The memory that the folder holds, None where it holds none.

        Raises
        ------
        SiteError
            If the folder holds the state of another run, or a damaged one.
        """
        try:
            state = checkpoints.read_state(self.folder, self.identity, ("before", "after"))
        except checkpoints.CheckpointError as error:
            raise SiteError(str(error)) from error
        return None if state is None else Memory((state.done, state.rows[0]["stage"]), *state.client_states)

    def save(self, memory: Memory) -> None:
        """Write a memory into the folder, whole or not at all."""
        round, stage = memory.last
        state = checkpoints.State(round, {}, [memory.before, memory.after], [{"stage": stage}])
        checkpoints.write_state(self.folder, self.identity, state, ("before", "after"))


class Site:
    """A client with its own samples, in a federation of others that it does not see.

    Parameters
    ----------
    client : Client
    method : Method
    settings : RunSettings
    n_clients : int
        Clients of the federation.
    features : tuple of str, or dict of str to tuple of str, optional
        The client's features in the order in which the others have them; by default in its own.
    secret : bytes
        What keys the noise over its uploads; without one, a method that draws such noise cannot upload.

    Raises
    ------
    ValueError
        For data that a `Federation` refuses, or that the method's network does not take; and where the order is not
        that of the client's own features.
    """

    def __init__(
        self,
        client: Client,
        method: Method,
        settings: RunSettings,
        n_clients: int,
        features: Any = None,
        secret: bytes = b"",
    ) -> None:
        checks.instance("client", client, Client)
        if features is not None:
            own, told = ({b: {*(f or ())} for b, f in by_block(of).items()} for of in (client.features, features))
            if own != told:
                raise WrongValue(f"client {client.name!r} was told of features that are not its own: its data changed")
            client = client.of_features(features)
        self.seed, self.dtype, self.secret = settings.seed, settings.dtype, secret
        self.federation = Federation([client], settings.n_classes, "one client", task=settings.task).to(self.dtype)
        self.client = self.federation[0]
        self.spec = replace(self.federation.specs()[0], n_clients=n_clients)
        self.method = method = with_networks(method, [self.spec])  # of the blocks that this client has
        self.metrics, self.measures = METRICS[settings.task], settings.scores
        data = {"train": (self.client.x_train, self.client.y_train), "test": (self.client.x_test, self.client.y_test)}
        self.splits = {split: stack_split([x], [y]) for split, (x, y) in data.items()}
        self.precomputed = self._cast(sides.precompute(method, self.client, self.spec, self.seed, self.dtype))
        self.last: tuple[Params, Params] | None = None
        """The whole model after the last training, and what was downloaded for it."""

    def _cast(self, params: Params) -> Params:
        return sides.cast(params, torch.device("cpu"), self.dtype)

    def first(self, common: Params) -> Params:
        """The tensors that the client keeps when a run begins, given what all clients share.

        Parameters
        ----------
        common : dict of str to Tensor

        Returns
        -------
        dict of str to Tensor
        """
        return self._cast(sides.first_of_client(self.method, self.spec, self.seed, common))

    def identity(self, run: str) -> checkpoints.Identity:
        """Identity of this client's part in a run of that name, by which its state is recognised."""
        settings = {
            "run": run,
            "client": self.spec.name,
            "method": checkpoints.method_settings(self.method, [self.spec]),
            "seed": self.seed,
            "dtype": str(self.dtype).removeprefix("torch."),
            "n_clients": self.spec.n_clients,
            "data": self.federation.fingerprint(),
        }
        return checkpoints.Identity(settings, self.method)

    def work(self, task: Task, memory: Memory | None) -> tuple[Reply, Memory | None]:
        """The reply of a client that remembers this, and what it then remembers, where that is something else.

        Parameters
        ----------
        task : Task
        memory : Memory, optional

        Returns
        -------
        reply : Reply
        memory : Memory, optional
            None where it stays.

        Raises
        ------
        SiteError
            For a task that does not follow what the client remembers.
        ValueError
            From the method, for what it cannot do.
        """
        checks.choice("kind", task.kind, get_args(TaskKind))
        received = self._cast(task.received)
        if task.kind == "start":
            sides.check_precomputed(self.method, self.spec, self.precomputed, received)
            client_state = self.first(task.common)
        elif memory is None:
            raise SiteError(
                f"has nothing of the {task.round} rounds before: its state was lost, or was never written to a "
                "folder that outlives a restart (node-config 'state')"
            )
        else:
            client_state = memory.base(task)
        with cpu_threads(1):
            if task.kind == "survey":
                data = sides.batch(*self.splits["train"].client(0, self.spec.shapes))
                answer, _ = sides.answer(self.method, self.spec, {**client_state, **self.precomputed}, received, data)
                return Reply(answer), None
            if task.kind == "evaluate":
                return Reply(figures=self._now(client_state, received, task.round)), None
            return self._train(task, client_state, received)

    def _train(self, task: Task, client_state: Params, received: Params) -> tuple[Reply, Memory | None]:
        """Train, and measure after the first training, and before and after the last."""
        t, role, method = task.round, task.kind, self.method.of(self.spec)
        figures = self._now(client_state, received, t) if role == "final" else {}
        reply, after, params = Reply(), client_state, None
        if role == "round" or method.stages(t, role):  # type: ignore[arg-type]
            held, data = {**client_state, **self.precomputed}, self.splits["train"]
            own: dict[str, Any] = {"seeds": [self.seed], "secrets": [self.secret], "round": t, "role": role}
            job = training.LocalJob(method, [self.spec], [held], [received], data, **own)
            (outcome,) = training.train_loop(job)
            after = {name: p for name, p in outcome.client_state.items() if name not in self.precomputed}
            reply, params = Reply(outcome.upload, terms=outcome.terms), outcome.params
        if role == "final":
            # The last training is not part of what the client keeps: more rounds may follow.
            self.last = self._working(after, received) if params is None else params, received
            figures |= self.figures(*self.last, t, after_all=True)
            return replace(reply, figures=figures), None
        if role == "start":
            figures = self._now(after, received, t)
        return replace(reply, figures=figures), Memory(task.key, client_state, after)

    def _working(self, client_state: Params, received: Params) -> Params:
        return self.method.of(self.spec).start({**client_state, **self.precomputed}, received)

    # --- evaluation ---

    def _now(self, client_state: Params, received: Params, round: int) -> dict[str, float]:
        """The figures of the model that a client has now."""
        return self.figures(self._working(client_state, received), received, round)

    def figures(self, params: Params, received: Params, round: int, after_all: bool = False) -> dict[str, float]:
        """The main figure of a model on training and test samples; or, after all training, every one on the latter.

        Parameters
        ----------
        params, received : dict of str to Tensor
            The model, and what was downloaded for it.
        round : int
        after_all : bool
            Whether all training is over.

        Returns
        -------
        dict of str to float
            NaN without samples.
        """
        main = self.metrics.main
        train, test = (self._measured(params, received, split, round) for split in ("train", "test"))
        if after_all:
            return {f"final_{name}": value for name, value in test.items()} | {f"final_train_{main}": train[main]}
        return {f"train_{main}": train[main]} | {name: test[name] for name in (main, *self.measures)}

    def _measured(self, params: Params, received: Params, split: str, round: int) -> dict[str, float]:
        """The metrics of the client on its samples of a split, NaN where there are none."""
        method, data = self.method.of(self.spec), self.splits[split]
        n = int(data.n[0])
        if not n:
            return dict.fromkeys([*self.metrics.per_client, *self.measures], math.nan)
        noise = prediction.prediction_noise(method, self.spec, n, self.seed, round, split, self.dtype)
        (outputs,) = prediction.predict_each(method.predict, [params], [received], [self.spec], data, [noise])
        found, labels = (t.numpy() for t in (self.metrics.decide(outputs), data.client(0, self.spec.shapes)[1]))
        usual = per_client([found], [labels], self.spec.task)
        asked = (
            scored(self.measures, shown([outputs], self.spec.task), [labels], [self.spec.name], False)
            if self.measures
            else {}
        )
        return {name: float(value[0]) for name, value in {**usual, **asked}.items()}


def told(spec: Spec, client: Client) -> dict[str, Any]:
    """A client's description for the server before the first round, as JSON can hold it, with its features.

    Parameters
    ----------
    spec : Spec
    client : Client
        Of its samples their numbers are told, by class for those to train with, and of a table what sites agree on
        (`described`).

    Returns
    -------
    dict
    """
    return {
        "name": spec.name,
        "shapes": map_blocks(list, spec.shapes),
        "n_train": spec.n_train,
        "n_test": client.n_test,
        "class_counts": list(spec.class_counts),
        **({} if spec.features is None else {"features": map_blocks(lambda own: own and list(own), spec.features)}),
        **described(client),
    }


def named(features: Any) -> Any:
    """Names of features as `Client` has them, from what JSON holds of them."""
    return map_blocks(lambda own: None if own is None else tuple(own), features)


def spec_of(told: Mapping[str, Any], settings: RunSettings, n_clients: int) -> Spec:
    """The spec that `told` describes.

    Parameters
    ----------
    told : dict
    settings : RunSettings
    n_clients : int
        Clients of the federation.

    Returns
    -------
    Spec

    Raises
    ------
    ValueError
        For what no client says of itself.
    """
    try:
        name, shapes = str(told["name"]), map_blocks(tuple, told["shapes"])
        counts = tuple(checks.integer("class_counts", int(n), 0) for n in told["class_counts"])
        n_train = checks.integer("n_train", told["n_train"], 1)
        x = map_blocks(lambda shape: torch.zeros(0, *shape, dtype=torch.float32), shapes)
        y = torch.zeros(0, dtype=torch.float32)
        features = Client(x, y, x, y, name, told.get("features")).features
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise WrongValue(f"a client's description must have name, shapes, n_train and class_counts: {error}") from error
    check_described(told)
    n_classes, task = settings.n_classes, settings.task
    if len(counts) != n_classes or (task == "classification" and sum(counts) != n_train):
        raise WrongValue(
            f"client {name!r}: class_counts must be {n_classes} numbers that add up to n_train = {n_train}, got "
            f"{checks.shown(list(counts))}"
        )
    return Spec(name, shapes, n_train, n_classes, counts, n_clients, task, features)
