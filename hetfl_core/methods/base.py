"""The contract of a method, with the defaults that make the common case short.

A method is a small frozen dataclass of hyper-parameters. Each hook is plain Python about **one** client with true
shapes. Only `loss` and `predict` are lifted over a stack of clients by `torch.func.vmap`, so they must be free of
data-dependent control flow, ``.item()``, boolean indexing and in-place writes. They alone see padding: input axes may
be wider than the client's own, with zeros in the data and in the weights, so a mean over input features must count
the true ones. `download`, `upload` and the answer of `survey` are the only doors between a client and the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Generator, Tensor

from hetfl_core.clients import check_features, other_columns
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Spec
from hetfl_core.inputs import by_block
from hetfl_core.networks import Draw, Model, Params, PerClient, Tensors
from hetfl_core.networks.layers import RUNNING, has_prefix, missing, one_of_each
from hetfl_core.rng import Stream
from hetfl_core.settings import Checked, Count, Limit, NotNegative, Positive, first_line, later, made_once

Role = Literal["start", "round", "rest", "final"]
Optimizer = Literal["adam", "adamw", "sgd", "rmsprop", "adagrad"]
WITH_MOMENTUM = ("sgd", "rmsprop")
Momentum = Annotated[float, Limit("in [0, 1)", lambda x: 0 <= x < 1)]

Specs = Sequence[Spec]
"""What is known of some clients."""
Uploads = Sequence[Params]
"""What each of some clients sent."""
Weights = Sequence[float]
"""Clients' weights ω_i, not normalised."""


class Batch(NamedTuple):
    r"""Samples of one client, some or all.

    Parameters
    ----------
    x : Tensor, shape (n, \*shape), or dict of str to such
        Inputs; by block where these are named.
    y : Tensor, shape (n,)
        Class labels (int), or targets (floating-point) of a regression.
    weight : Tensor, shape (n,)
        1 for a true sample, 0 for a padded row.
    """

    x: Any
    y: Tensor
    weight: Tensor

    def loss(self, outputs: Tensor) -> Loss:
        """The `task_loss` of a head's outputs for these samples: ``"se"`` for targets, ``"ce"`` for class labels."""
        task = task_loss(outputs, self.y, self.weight)
        return Loss(task, {"se" if self.y.is_floating_point() else "ce": task.detach()})


class Loss(NamedTuple):
    r"""What `Method.loss` returns: the scalar to be minimised, and what is to be told of it.

    Parameters
    ----------
    total : Tensor, shape ()
        The scalar to be minimised.
    terms : dict of str to Tensor, shape ()
        Its parts, for the history.
    remember : dict of str to Tensor, shape (n, \*)
        A value for each sample of the batch, kept for `Method.upload` as it was when the sample was last seen.
    """

    total: Tensor
    terms: dict[str, Tensor] = {}
    remember: dict[str, Tensor] = {}


@dataclass(frozen=True)
class Stage(Checked):
    """A stretch of local training: which parameters, which objective, how long.

    Parameters
    ----------
    train : tuple of str
        Prefixes of the parameters to be trained, e.g. ``("phi", "beta")``; the rest is frozen.
    spare : tuple of str
        Prefixes of what is frozen all the same, e.g. ``("phi.1",)``.
    loss : callable, optional
        The objective; by default the method's `loss`.
    epochs, steps : int, optional
        Length: passes over the client's samples, or optimisation steps. Exactly one of them.
    batch_size : int
        Samples a step; the last batch of an epoch may be smaller.
    drop_last : bool
        Whether such a last batch is left out, as in `torch.utils.data.DataLoader`: every step then has `batch_size`
        samples, and each epoch leaves out others. A client that has fewer samples than one batch keeps the one that it
        has. (PyTorch would train nothing.)
    optimizer : {"adam", "adamw", "sgd", "rmsprop", "adagrad"}
        A fresh one starts each stage.
    lr : float
        Learning rate.
    weight_decay : float or dict of str to float
        As in `torch.optim`; a dict gives it by prefix, for all others it is 0.
    momentum : float
        For SGD and RMSprop; the others have none.
    clip : float, optional
        Largest norm of **one client's** gradient, greater than 0.
    """

    train: tuple[str, ...]
    loss: Callable[..., Loss] | None = None
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count = 100
    optimizer: Optimizer = "adam"
    lr: NotNegative = 1e-3
    weight_decay: NotNegative | Mapping[str, NotNegative] = 0.0
    momentum: Momentum = 0.0
    clip: Positive | None = None
    spare: tuple[str, ...] = ()
    drop_last: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise WrongValue(f"a stage lasts epochs or steps: expected one of them, got {self.epochs} and {self.steps}")
        if self.momentum and self.optimizer not in WITH_MOMENTUM:
            users = " and ".join(WITH_MOMENTUM)
            raise WrongValue(f"momentum is for {users}, got {self.momentum} with {self.optimizer}")

    def trains(self, name: str) -> bool:
        """Whether the parameter of this name is trained; running statistics never are."""
        if name.endswith(RUNNING) or any(has_prefix(name, prefix) for prefix in self.spare):
            return False
        return any(has_prefix(name, prefix) for prefix in self.train)


def pick(params: Tensors, prefixes: Sequence[str]) -> Params:
    """The parameters that belong to one of the parts.

    Parameters
    ----------
    params : dict of str to Tensor
    prefixes : sequence of str
        Such as ``("phi", "beta")``.

    Returns
    -------
    dict of str to Tensor
    """
    return {name: p for name, p in params.items() if any(has_prefix(name, prefix) for prefix in prefixes)}


def weighted_mean(uploads: Sequence[Tensors], weights: Sequence[float]) -> Params:
    """The weighted mean of what clients sent, name by name.

    Parameters
    ----------
    uploads : sequence of dict of str to Tensor
        A name that only some clients sent is averaged over those that did.
    weights : sequence of float
        Non-negative; normalised here over the senders.

    Returns
    -------
    dict of str to Tensor
        Every name that somebody sent.

    Raises
    ------
    ValueError
        Where clients sent tensors of different shape under one name.
    """
    mean: Params = {}
    for name in dict.fromkeys(name for upload in uploads for name in upload):
        sent = [(upload[name], w) for upload, w in zip(uploads, weights, strict=True) if name in upload]
        shapes = {tuple(tensor.shape) for tensor, _ in sent}
        if len(shapes) > 1:
            raise WrongValue(f"cannot average {name!r}: clients sent tensors of shapes {sorted(shapes)}")
        tensors = torch.stack([tensor for tensor, _ in sent])
        w = torch.tensor([weight for _, weight in sent], dtype=torch.float64)
        w = (w / w.sum()).to(device=tensors.device, dtype=tensors.dtype)
        mean[name] = torch.tensordot(w, tensors, 1)
    return mean


def row_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean over the rows of weight 1, shapes (n,), (n,) → ()."""
    return (values * weight).sum() / weight.sum().clamp(min=1)


def task_loss(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """What a head is trained for: cross-entropy for class labels, (whole, not half) mean squared error for targets.

    Which one it is, the type of `y` says, so that it is settled before any tensor is looked at.

    Parameters
    ----------
    outputs : Tensor, shape (n, C)
        Logits, or predicted numbers (C = 1).
    y, weight : Tensor, shape (n,)
        As in `Batch`.

    Returns
    -------
    Tensor, shape ()
        The mean over the rows of weight 1.
    """
    if y.is_floating_point():
        return row_mean((outputs[:, 0] - y).square(), weight)
    return row_mean(cross_entropies(outputs, y), weight)


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each row, shapes (n, C), (n,) → (n,).

    It is `torch.nn.functional.cross_entropy` with ``reduction="none"``, which `vmap` takes apart in Python.
    """
    return -logits.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Method(Checked):
    """Defaults of the contract, for methods whose model is φ, α, β and whose server averages some of these parts.

    A subclass says which parts are shared (`shared`) and what is trained when (`stages`); the rest follows. Its fields
    are checked by their annotations, whether it has a ``__post_init__`` of its own or not. The weight of the term that
    a method adds to the loss is called `term_weight` in all of them; where there are two, ``<what>_weight`` each.

    Parameters
    ----------
    model : Model
        The network; the same description for all clients, whose parameters may differ in shape.
    local_epochs : int
        Local epochs M of a round.
    batch_size : int
        Samples a step.
    drop_last : bool
        Whether the last batch of an epoch is left out where it is smaller (see `Stage`): a rest of a few samples, too,
        is a step at the full learning rate. Other libraries leave it out. To be named; no positional argument.
    lr : float
        Learning rate η of the first round.
    weighting : {"samples", "uniform"}
        Weights ω_i of the server's mean, normalised over the participants: by number of training samples, or equal.
    optimizer : {"adam", "adamw", "sgd", "rmsprop", "adagrad"}
        Of local training; a fresh one starts each stage.
    momentum, weight_decay : float
        As in `torch.optim`. Momentum is for SGD and RMSprop.
    clip : float, optional
        Largest norm of one client's gradient, greater than 0.
    lr_decay : float
        Factor of the learning rate from round to round, greater than 0: η · lr_decay^t in round t = 0, 1, …
    local_steps : int, optional
        Optimisation steps of a round, in the place of `local_epochs`.
    finetune_epochs : int, optional
        Epochs of the last local training, after the last round; by default as many as in a round.
    init : {"own", "common", "heads"}
        Whether clients draw their own first weights of what is local, or begin with common ones wherever shapes agree:
        of everything, as in FedCR's published code, or of what is behind the embedding, as in FLIC's.

    Notes
    -----
    The hooks' arguments are the same in all of them; where nothing else is said, they return tensors by name.

    - `spec`, `specs`: what is known of a client, or of several in the order of their names.
    - `server`, `client_state`, `received`: the server's tensors, what a client keeps, what it was sent, by name.
    - `params`: a client's working copy, as `start` makes it. `data`: all its training samples, in true shapes.
    - `batch`, `noise`: some samples, perhaps padded, and the random numbers that were declared for them.
    - `uploads`, `answers`, `weights`: what clients sent, and their ω_i, not normalised, in the order of `specs`.
    - `rng`: draws on the CPU; the client's own stream, or the server's.
    """

    model: Model = field(default_factory=Model)
    local_epochs: Count = 10
    batch_size: Count = 100
    lr: NotNegative = 1e-3
    weighting: Literal["samples", "uniform"] = "samples"
    optimizer: Optimizer = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    lr_decay: Positive = 1.0
    local_steps: Count | None = None
    finetune_epochs: Count | None = None
    init: Literal["own", "common", "heads"] = "own"
    drop_last: bool = later(False)

    names: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """What variants are called, with their settings; the one at its defaults comes first, others go before it."""

    shared: ClassVar[tuple[str, ...]] = ()
    """Parts of the model that the server averages."""

    constants: ClassVar[tuple[str, ...]] = ()
    """Names of what a client keeps that is a fact of it and no weight, so that `init` does not share it."""

    padded: ClassVar[tuple[str, ...]] = ()
    """Prefixes of what `precompute` makes that may be padded by zeros, which the loss must not count."""

    needs_classes: ClassVar[bool] = False
    """Whether regressions are refused."""

    closes: ClassVar[bool] = False
    """Whether all clients upload after the last training, the server aggregates, and all do what they do at rest."""

    surveyed: ClassVar[Literal["participants", "all"] | None] = None
    """Who answers a `survey` at the beginning of a round: nobody, as for most methods; participants; all clients."""

    def __post_init__(self) -> None:
        self.stage((), 0)  # which refuses what does not go together

    def stage(self, train: tuple[str, ...], round: int, **changes: Any) -> Stage:
        """A stretch of training with this method's optimizer: M local epochs (or steps) at the round's learning rate.

        Parameters
        ----------
        train : tuple of str
            Prefixes of the parameters to be trained.
        round : int
            t, which decides the learning rate.
        **changes
            Other fields of `Stage`: a `loss`, or another length. With `epochs` it lasts epochs, with `steps` steps.
        """
        if "epochs" not in changes and "steps" not in changes:
            steps = self.local_steps is not None
            changes |= {"steps": self.local_steps} if steps else {"epochs": self.local_epochs}
        names = ("batch_size", "drop_last", "optimizer", "momentum", "weight_decay", "clip")
        own = {name: getattr(self, name) for name in names}
        return Stage(train, **{**own, "lr": self.lr * self.lr_decay**round, **changes})

    def finetuning(self, train: tuple[str, ...], round: int, **changes: Any) -> Stage:
        """A stretch of the last local training: as `stage`, but of `finetune_epochs`, where they are given."""
        return self.stage(train, round, **({"epochs": self.finetune_epochs} if self.finetune_epochs else {}), **changes)

    @property
    def name(self) -> str:
        """Name in tables and records: the class's, unless `names` has another."""
        found = [n for n, some in self.names.items() if all(getattr(self, key) == some[key] for key in some)]
        return found[-1] if found else type(self).__name__

    @property
    def summary(self) -> str:
        """One line on what it does: the first of its docstring, without references, and what its name stands for."""
        own = ", ".join(f"{key}={value!r}" for key, value in self.names.get(self.name, {}).items())
        return first_line(type(self)) + f" Here {own}." * bool(own)

    @classmethod
    def variants(cls) -> list[Method]:
        """The settings of this class that are known under a name of their own; by default its defaults."""
        return [cls(**settings) for settings in cls.names.values()] or [cls()]

    @property
    def local(self) -> tuple[str, ...]:
        """Parts of the model that stay on the client."""
        return tuple(part for part in self.model.parts if part not in self.shared)

    def of(self, spec: Spec) -> Self:
        """The method with the network of one client, whose hooks the engine calls; itself where all have the same."""
        model = self.model.of(spec)
        return self if model is self.model else made_once(self, id(model), lambda: replace(self, model=model))

    # --- before the first round ---

    def check(self, specs: Specs) -> None:
        """Refuse a federation that this method cannot run on: shared parts must be the same on all clients.

        They must have the same shapes, and where a shared tensor has an axis of input features, these must have the
        same names on all clients that name them (see `check_features`).
        """
        first: tuple[str, dict[str, tuple[int, ...]]] | None = None
        for spec in one_of_each(self.model, specs):
            params = self.init_shared(spec, Generator())
            shapes = {name: tuple(p.shape) for name, p in params.items()}
            first = first or (spec.name, shapes)
            if missing(self.shared, params) and type(self).init_server is Method.init_server:
                raise WrongValue(f"{self.name}: shared must be a tuple of parts of the model, got {self.shared!r}")
            if different := first[1].keys() ^ shapes.keys():
                name = min(different)
                has, lacks = (first[0], spec.name) if name in first[1] else (spec.name, first[0])
                way = "or one architecture"
                if isinstance(spec.shapes, Mapping):
                    way = "or the blocks that all clients hold (Federation.of_common_blocks)"
                raise WrongValue(
                    f"{self.name} averages {name!r}, which all clients must have: {has!r} has it and {lacks!r} does "
                    f"not. Use a method that keeps φ local (Local, LG-FedAvg, FLIC) {way}."
                )
            for name, shape in shapes.items():
                if shape != first[1][name]:
                    raise WrongValue(
                        f"{self.name} averages {name!r}, which must have the same shape on all clients: "
                        f"{first[1][name]} on {first[0]!r} but {shape} on {spec.name!r}. "
                        "Use a method that keeps φ local (Local, HetFedRep, FLIC) or bring the inputs to one shape"
                        f"{other_columns(specs[0], spec)}."
                    )
            if isinstance(self.model.phi, PerClient) and any(has_prefix(name, "phi") for name in self.shared):
                a, b = self.model.phi.of(first[0]), self.model.phi.of(spec.name)
                if a != b:
                    raise WrongValue(
                        f"{self.name} averages φ, which must be one network on all clients: {a} on {first[0]!r} but "
                        f"{b} on {spec.name!r}. Use a method that keeps φ local (Local, LG-FedAvg, FLIC)."
                    )
        for block in by_block(specs[0].shapes):
            named = any(by_block(spec.features).get(block) is not None for spec in specs)
            if named and (shared := self._shares_inputs(specs[0], block)):
                where = f" of block {block!r}" if block else ""
                check_features(specs, f"{self.name} averages {shared!r}, which goes by features{where}", block)
        if self.needs_classes and specs[0].task == "regression":
            raise WrongValue(f"{self.name} needs class labels, but client {specs[0].name!r} has targets")

    def _shares_inputs(self, spec: Spec, block: str) -> str | None:
        """A shared tensor that would have another shape if there were one feature more; None if there is no such."""
        shape = by_block(spec.shapes)[block]
        if not shape[0]:
            return None
        wider = (shape[0] + 1, *shape[1:])
        more = replace(spec, shapes={**spec.shapes, block: wider} if block else wider)
        true = {name: p.shape for name, p in self.init_shared(spec, Generator()).items()}
        try:
            other = {name: p.shape for name, p in self.init_shared(more, Generator()).items()}
        except (ValueError, RuntimeError, TypeError):  # a network that takes inputs of one size only
            return next((name for name in true if has_prefix(name, "phi")), None)
        return next((name for name, shape in true.items() if shape != other.get(name)), None)

    def init_server(self, specs: Specs, rng: Generator) -> Params:
        """The server's tensors: here one fresh copy of the shared parts."""
        return self.init_shared(specs[0], rng)

    def init_shared(self, spec: Spec, rng: Generator) -> Params:
        """A fresh copy of the shared parts, for one client's true shapes."""
        return self.model.init(spec, rng, tuple(self.shared))

    def init_client(self, spec: Spec, rng: Generator) -> Params:
        """What a client keeps from round to round: here its own parts."""
        return self.model.init(spec, rng, self.local)

    def precompute(self, spec: Spec, data: Batch, rng: Generator) -> Params:
        """What a client makes of its training samples once, before anything is trained; here nothing.

        Such as a minibatch that stays the same in all rounds. `start` finds it in the client's state, under names that
        neither `init_client` nor `download` uses; no training changes what is kept of it, and it leaves the client
        only by way of an upload or an answer.

        Parameters
        ----------
        spec : Spec
            Decides names and shapes: they must be the same whatever the samples are. Clients of which the shapes
            differ train one after the other, unless `padded` names these tensors.
        data : Batch
            All training samples in true shapes.
        rng : torch.Generator
            The client's own, which draws on the CPU, as `data` are there.
        """
        return {}

    def join(self, server: Params, specs: Specs, rng: Generator) -> Params:
        """The server's tensors when clients come after the last round (see `hetfl_core.adapt`): here as they are.

        For a method whose server holds something of each client, which it may add for these; what is there already
        must stay as it is. A method that can do nothing for them raises a ValueError that says why.

        Parameters
        ----------
        server : dict of str to Tensor
            As the last round left it.
        specs : sequence of Spec
            Of the new clients, in the order of their names.
        rng : torch.Generator
            Draws on the CPU.
        """
        return server

    def joining(self) -> Self:
        """The method that clients run which come after the last round (see `join`): here this one."""
        return self

    # --- a survey: a first exchange in a round, where `surveyed` says who takes part ---

    def surveys(self, round: int) -> Literal["participants", "all"] | None:
        """Who answers at the beginning of a round; the same (`surveyed`) in all of them, unless overridden."""
        return self.surveyed

    def ask(self, server: Params, specs: Specs, rng: Generator) -> Params:
        """The server's tensors with the question in them, such as inputs to be embedded; by default as they are.

        The surveyed clients then get a `download`. `specs` are those of all clients.
        """
        return server

    def survey(self, params: Params, received: Params, data: Batch) -> Params:
        """What a client answers, given its model and what it received; local training has not yet begun."""
        return {}

    def digest(self, server: Params, answers: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's tensors after the answers, which the participants then download."""
        return server

    # --- one round ---

    def download(self, server: Params, spec: Spec) -> Params:
        """What the server sends to one client: by default all it has.

        A tensor sent to all alike should be the same object for all. What only the server needs (moments, a
        hyper-network) must be left out here, or it counts as sent.
        """
        return server

    def start(self, client_state: Params, received: Params) -> Params:
        """The working copy: all parameters that `loss` reads."""
        return {**client_state, **received}

    def stages(self, round: int, role: Role) -> list[Stage]:
        """What is trained when: before the first round, by a participant, by a client at rest, after the last round.

        `role` is ``"start"``, ``"round"``, ``"rest"`` or ``"final"``, in this order; an empty list trains nothing.
        `stage` makes a stretch of training with the method's optimizer.
        """
        raise NotImplementedError(f"{self.name} must define stages(round, role)")

    def usual_stages(self, often: tuple[str, ...], last: tuple[str, ...], round: int, role: Role) -> list[Stage]:
        """The `stages` of most methods: M epochs on some parts when selected, and at the end on others, or none."""
        if role == "round":
            return [self.stage(often, round)]
        return [self.finetuning(last, round)] if role == "final" and last else []

    def noise(self, spec: Spec, stage: Stage) -> dict[str, Draw]:
        """Random numbers that `loss` wants at each step, declared; the engine draws them."""
        return self.model.draws()

    def loss(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Loss:
        """The objective of one client on one batch: here `task_loss`."""
        return batch.loss(self.model.head(params, self.model.embed(params, batch.x, noise)))

    def follow(self, params: Params, received: Params, batch: Batch, noise: Tensors) -> Params:
        """What a step changes without a gradient, such as running means, after the batch.

        It is lifted as `loss` is, and given the parameters before the step. Names end as `RUNNING` says; it is asked
        where there are such ones.
        """
        return self.model.moved(params, batch.x, noise)

    def upload(self, params: Params, received: Params, data: Batch, memory: Tensors) -> Params:
        """What leaves the client after training in a round, and nothing else does: here the shared parts.

        `memory` is what `loss` asked to remember, sample by sample.
        """
        return pick(params, self.shared)

    def protect(self, upload: Params, received: Params, rng: Stream) -> Params:
        """What is done to an upload before it leaves the client, such as noise for privacy; here nothing.

        It runs once per client and round, in true shapes. Noise is drawn by ``hetfl_core.rng.normal(shape, rng,
        dtype)``: where a client is a machine of its own, `rng` is a stream of a secret that never leaves it, as a
        server that knows the seed could subtract what PyTorch's generator draws.
        """
        return upload

    @property
    def needs_secret(self) -> bool:
        """Whether `protect` draws: a deployed client then needs a secret, and answers no round twice in two ways.

        By default, where there is a `protect` of one's own; a method that draws only with some settings says so here.
        """
        return type(self).protect is not Method.protect

    def keep(self, params: Params, client_state: Params) -> Params:
        """What the client keeps for the next round: here the new values of what it kept before."""
        return {name: params[name] for name in client_state}

    def aggregate(self, server: Params, uploads: Uploads, weights: Weights, specs: Specs, rng: Generator) -> Params:
        """The server's new tensors from what the participants sent: here weighted means.

        `specs` are the participants'. It runs without gradients: a server that takes a gradient step opens
        `torch.enable_grad`.
        """
        return {**server, **weighted_mean(uploads, weights)}

    beyond_sums: ClassVar[str] = "its server does more with uploads than to add them"
    """Why a method with an `aggregate` of its own needs single uploads."""

    @property
    def needs_uploads(self) -> str | None:
        """Why the weighted mean of the uploads is not enough for the server, as with secure aggregation; None if it is.

        Then `aggregate` of several uploads is `aggregate` of their weighted mean. (Other sums might do for a method
        for which it is not.)
        """
        if type(self).aggregate is not Method.aggregate:
            return self.beyond_sums
        return None if self.surveys(0) is None else "this library hands its server each answer to a survey by itself"

    def weight(self, spec: Spec) -> float:
        """The weight ω_i of a client, not normalised."""
        return float(spec.n_train) if self.weighting == "samples" else 1.0

    # --- use ---

    def prediction_noise(self, spec: Spec) -> dict[str, Draw]:
        """Random numbers that `predict` and `predict_server` want, declared; by default none.

        A sample's are the same whoever else is predicted with it. (`per="step"` is one draw for all of a client's
        training, or test, samples.)
        """
        return {}

    def predict(self, params: Params, received: Params, x: Any, noise: Tensors | None = None) -> Tensor:
        r"""A client's outputs: logits, shape (n, \*shape) → (n, C), or the predicted numbers of a regression, (n, 1).

        `noise` is what `prediction_noise` declares; without, a random model predicts by its mean features.
        """
        return self.model.head(params, self.model.embed(params, x))

    def predict_server(self, server: Params, x: Any, noise: Tensors | None = None) -> Tensor | None:
        """Outputs of the server's own model, where there is one; None where there is none."""
        return None

    def embed(self, params: Params, received: Params, x: Any) -> Tensor:
        r"""Latent features φ_i(x), shape (n, \*shape) → (n, k)."""
        return self.model.embed(params, x)
