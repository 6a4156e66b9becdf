"""What an experiment is: data, methods, and how long they run."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from hetfl_book.datasets import CATALOGUE as OWN_CATALOGUE
from hetfl_core import checks
from hetfl_core.datasets import CATALOGUE
from hetfl_core.engine.evaluation import Measure
from hetfl_core.engine.measures import Named
from hetfl_core.engine.options import cpu_threads
from hetfl_core.engine.run import Run
from hetfl_core.federation import Client, Federation, FederationWarning
from hetfl_core.learners import simulate
from hetfl_core.methods import Method
from hetfl_core.rng import stream

Scale = Literal["book", "paper"]
Preparation = Callable[[Federation, int], Federation]


class MadeLate(Mapping[str, Any]):
    """Methods by name, each made when it is first asked for: names cost nothing, scikit-learn's import seconds.

    Parameters
    ----------
    makers : dict of str to callable
        Without arguments.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers, self._made = dict(makers), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class BySeed:
    """Data that a function makes of a seed; see `by_seed`."""

    make: Callable[..., Federation]
    options: Mapping[str, Any]

    def __call__(self, seed: int) -> Federation:
        """The federation of a seed."""
        return self.make(seed=seed, **self.options)

    @property
    def dataset(self) -> str:
        """The name by which the catalogues have what is called; empty where they have it not."""
        called = getattr(self.make, "func", self.make)  # of a partial function
        known = CATALOGUE | OWN_CATALOGUE
        return next((name for name, make in known.items() if make is called), "")


@dataclass(frozen=True)
class Experiment:
    """One row of a table, or one point of a figure.

    Attributes
    ----------
    title : str
        What it reproduces.
    federation : callable
        ``federation(seed)`` makes the data.
    methods : dict of str to Method
        By the name used in the paper's table.
    rounds : int
        Communication rounds T at paper scale.
    participation : float
        Participation rate r.
    evaluate_every : int or tuple of int
        Rounds between evaluations, or the rounds to evaluate; more than 1 where evaluating all clients costs as much
        as training some.
    metric : tuple of str
        What else is evaluated; see `hetfl_core.simulate`.
    dataset : str
        Name of the data set in the catalogue, by default of what `by_seed` calls; its files must be at hand.
    files_present : callable, optional
        Whether they are, for data that are placed by hand and not in the registry of downloads.
    priority : int
        Place among the pending runs that ``data/queue.toml`` does not name; smaller is more wanted.
    seeds : int or sequence of int
        How many seeds, or which: as many as the paper ran, or as we want where the experiment is our own.
    prepare : dict of str to callable
        For single methods: ``prepare(federation, seed)`` is what their clients do to their data first.
    perform : callable
        How one run is done; `hetfl_core.simulate`, or a function with its arguments and result.
    book : dict
        What the book scale changes: ``rounds``, and fields of the methods. It makes numbers smaller, never larger: what
        a method switches off by 0 stays off.
    """

    title: str
    federation: Callable[[int], Federation]
    methods: Mapping[str, Method]
    rounds: int = 50
    participation: float = 0.1
    evaluate_every: int | tuple[int, ...] = 1
    metric: tuple[Measure | Named, ...] = ()
    dataset: str = ""
    files_present: Callable[[], bool] | None = None
    priority: int = 100
    seeds: int | Sequence[int] = 3
    prepare: Mapping[str, Preparation] = field(default_factory=dict)
    perform: Callable[..., Run] | None = None
    book: Mapping[str, Any] = field(default_factory=lambda: {"rounds": 10, "pretrain_epochs": 20})

    def __post_init__(self) -> None:
        if not self.dataset and isinstance(self.federation, BySeed):
            object.__setattr__(self, "dataset", self.federation.dataset)

    def at(self, scale: Scale) -> Experiment:
        """The experiment with the settings of a scale put in."""
        if scale == "paper":
            return self
        changes = {name: value for name, value in self.book.items() if name != "rounds"}
        methods = {name: _change(method, changes) for name, method in self.methods.items()}
        return replace(self, methods=methods, rounds=min(self.book.get("rounds", self.rounds), self.rounds))

    def data(self, method: str, seed: int) -> Federation:
        """The federation that a method runs on, prepared as that method's clients do."""
        federation = self.federation(seed)
        if method not in self.prepare:
            return federation
        with cpu_threads(1):  # so that the data do not depend on the machine
            return self.prepare[method](federation, seed)

    def run(self, method: str, seed: int, *, ready: Callable[[], None] | None = None, **options: Any) -> Run:
        """One run; `options` go to `hetfl_core.simulate`. `ready` is called when the data are made; it may raise."""
        federation = self.data(method, seed)
        if ready is not None:
            ready()
        settings: dict[str, Any] = {
            "rounds": self.rounds,
            "participation": self.participation,
            "evaluate_every": self.evaluate_every,
            **({"metric": self.metric} if self.metric else {}),
            "seed": seed,
        }
        perform = self.perform or simulate
        return perform(federation, self.methods[method], **settings, **options)


SYMBOLS: dict[str, dict[str, str]] = {
    "FLIC": {"alignment_weight": "lambda1", "anchor_weight": "lambda2"},
    "FedCMA": {"head_weight": "lam1", "mean_weight": "lam2"},
    "FedCR": {"term_weight": "beta"},
    "FedGen": {"generated_weight": "classifies", "agreement_weight": "agrees"},
    "FedPAC": {"term_weight": "lam"},
    "FedProx": {"term_weight": "mu"},
    "HyFEM": {"extractor_weight": "mu_extractors", "classifier_weight": "mu_classifier"},
}
"""What the weights of methods' terms are called in the names of runs: mostly as their papers call them."""


def by_seed(make: Callable[..., Federation], **options: Any) -> BySeed:
    """The data of an experiment: ``make(seed=seed, **options)`` for each seed."""
    return BySeed(make, options)


def without_warnings(*parts: Any) -> Federation:
    """A federation that says nothing of classes that a client is tested on and lacks: here that is as it should be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FederationWarning)
        return Federation(*parts)


def validation(
    federation: Federation, seed: int, share: float, picked: Callable[[Client, Tensor], Tensor]
) -> Federation:
    """The same clients with some of their training samples for test samples; no true test sample is seen.

    Parameters
    ----------
    federation : Federation
    seed : int
    share : float
        Of the training samples, as `picked` takes it.
    picked : callable
        Which they are: ``picked(client, order)``, of all of them in random order.
    """
    checks.instance("federation", federation, Federation)
    checks.seed(seed)
    checks.fraction("share", share, "(0, 1)")
    clients = []
    for client in federation:
        order = torch.randperm(client.n_train, generator=stream(seed, client.name, 0, "held out"))
        last = torch.zeros(client.n_train, dtype=torch.bool)
        last[picked(client, order)] = True
        x, y = client.x_train, client.y_train
        clients.append(Client(x[~last], y[~last], x[last], y[last], client.name))
    info = {**federation.info, "held_out": share}
    info.pop("untrained_test_images", None)  # counts the true ones
    return without_warnings(clients, federation.n_classes, f"{federation.name}, validation", info)


def tried(name: str, method: Method, rates: Sequence[float], own: Sequence[Mapping[str, Any]]) -> dict[str, Method]:
    """A method at each rate and with each of its own settings, by names such as ``"Local, lr 0.1, weight_decay 0"``.

    Parameters
    ----------
    name : str
        Of the method.
    method : Method
    rates : sequence of float
    own : sequence of dict of str to float
        Fields of the method that change together.
    """
    checks.nonempty_str("name", name)
    checks.instance("method", method, Method)
    settings = [checks.mapping("own", changes) for changes in checks.sequence("own", own)]
    symbols = SYMBOLS.get(type(method).__name__, {})
    found: dict[str, Method] = {}
    for lr, changes in itertools.product(checks.floats("rates", rates, 1).tolist(), settings):
        said = ", ".join(f"{symbols.get(key, key)} {value:g}" for key, value in changes.items())
        found[f"{name}, lr {lr:g}, {said}"] = replace(method, lr=lr, **changes)
    return found


def _change(method: Method, changes: Mapping[str, Any]) -> Method:
    own = {f.name: getattr(method, f.name) for f in fields(method)}
    return replace(method, **{name: min(value, own[name]) for name, value in changes.items() if name in own})
