"""What is compared: each method with its view of the data and the settings with which it is tried."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any
from warnings import catch_warnings

from hetfl_core import baselines, checks
from hetfl_core.errors import WrongValue
from hetfl_core.estimators import InOnePlace, PerSite
from hetfl_core.federation import Federation
from hetfl_core.learners import as_learner
from hetfl_core.methods import CATALOGUE, FLIC, Method
from hetfl_core.networks import MLP, Blocks, Model
from hetfl_core.views import VIEWS, block_names, view_of

ROUNDS = 30
TRAINING: Mapping[str, Any] = {"local_steps": 8, "batch_size": 32, "optimizer": "adam"}
"""Of all networks."""

RATES = (0.0003, 0.001, 0.004, 0.016)
DECAYS = (0.0, 0.001, 0.01)
WEIGHTS = (0.01, 0.1, 1.0)
"""Of a term whose method says nothing else."""

MOST = 12
"""Settings that a method is tried with."""

Grid = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]

ALONE = "network alone"
"""What gains are counted from."""


class NotHere(WrongValue):
    """Why a method has no runs on a federation."""


@dataclass(frozen=True)
class Family:
    """One kind of network for all methods on a federation.

    Parameters
    ----------
    hidden : int
        Width of the hidden layer of φ.
    out : int
        Latent dimension, and width of α where a method shares such a layer.
    """

    hidden: int
    out: int

    def model(self, method: Method, data: Federation) -> Model:
        """The model of a method on these inputs: an extractor for each block, or one for all inputs.

        FLIC's embedding ends without an activation, as its anchors have coordinates of both signs.
        """
        last = None if isinstance(method, FLIC) else "relu"
        phi = MLP((self.hidden,), self.out, last=last)  # type: ignore[arg-type]
        names = block_names(data[0])
        own, out = method.model, self.out
        return Model(
            phi if names is None else Blocks.alike(names, phi, 4 * out), own.alpha and out, own.gaussian and out
        )


FAMILIES = {"small": Family(16, 8), "middle": Family(32, 16), "wide": Family(64, 32)}
"""Among which training alone chooses."""


@dataclass(frozen=True)
class Entry:
    """One line of the comparison.

    Parameters
    ----------
    method : Method, estimator or baseline
        Its model is that of the federation's family.
    view : {"own", "common", "zeros", "blocks"}
        How it sees the data (`hetfl_core.views.VIEWS`).
    grid : dict of str to sequence, or sequence of such
        What it is tried with, at most `MOST` settings; nothing where there is nothing to choose.
    kinds : tuple of str
        Kinds of federations on which it takes part; by default all.
    one_model : bool
        Whether it hands out a model that an own last step may put right.
    """

    method: Any
    view: str = "own"
    grid: Grid = ()
    kinds: tuple[str, ...] = ()
    one_model: bool = False

    def __post_init__(self) -> None:
        as_learner(self.method)  # which refuses what cannot be fitted
        checks.choice("view", self.view, tuple(VIEWS))
        if (n := settings_in(self.grid)) > MOST:
            raise WrongValue(f"grid must have at most {MOST} settings, as all methods have, got {n}")

    @property
    def way(self) -> str:
        """Whether clients learn ``"together"`` or ``"alone"``, or all rows lie in ``"one place"``."""
        return as_learner(self.method).way

    @property
    def exchanges(self) -> bool:
        """Whether there is a control to it, with nothing exchanged."""
        return self.way == "together"

    def seen(self, data: Federation, kind: str) -> Federation:
        """The data as it sees them.

        Parameters
        ----------
        data : Federation
        kind : str
            Of the federation.

        Raises
        ------
        NotHere
            Where it cannot run, or would run twice: with the same features on all clients, common columns are all
            columns, no column is missing, and there is one block.
        """
        if self.kinds and kind not in self.kinds:
            raise NotHere(f"takes part only on {' and '.join(self.kinds)}")
        if len({(str(c.shapes), str(c.features)) for c in data}) == 1:
            if self.view in ("zeros", "blocks"):
                raise NotHere("all clients have the same features: it would be the method on common columns once more")
            return data
        try:
            with catch_warnings(action="ignore"):
                found = view_of(data, self.view)
                if not (learner := as_learner(self.method)).in_rounds:
                    learner.check(found.specs())
        except ValueError as error:
            raise NotHere(str(error)) from error
        return found

    def on(self, data: Federation, family: Family) -> Any:
        """The method with the network of the family for these data.

        Parameters
        ----------
        data : Federation
            As the method sees them.
        family : Family

        Raises
        ------
        NotHere
            Where the method cannot run.
        """
        if not as_learner(self.method).in_rounds:
            return self.method
        method = replace(self.method, model=family.model(self.method, data), **TRAINING)
        try:
            method.check(data.specs())
        except ValueError as error:
            raise NotHere(str(error)) from error
        return method


def listed(grid: Grid) -> list[dict[str, list[Any]]]:
    """A grid as records hold it: all of its parts, each a list of values by the name of the setting."""
    each = [grid] if isinstance(grid, Mapping) else grid
    return [{name: list(values) for name, values in one.items()} for one in each]


def settings_in(grid: Grid) -> int:
    """How many settings a grid has."""
    return sum(math.prod(map(len, one.values())) for one in listed(grid))


def weights(*names: str, among: Sequence[float] = WEIGHTS, rates: Sequence[float] = RATES) -> Grid:
    """Learning rates, and values that some fields have at the same time.

    Parameters
    ----------
    *names : str
        Fields of the method.
    among, rates : sequence of float

    Returns
    -------
    dict, or list of dict
        As `hetfl_core.tune` takes them.
    """
    if len(names) == 1:
        return {"lr": rates, names[0]: among}
    return [{"lr": [lr], **{name: [w] for name in names}} for lr, w in itertools.product(rates, among)]


def entry_of(method: Method, data: Federation) -> Entry:
    """The line of a method of somebody's own, by the rules: its first view that works, and a grid by its fields.

    It hands out one model where all parts are shared, the server predicts by them, and no client trains afterwards.

    Parameters
    ----------
    method : Method
    data : Federation
        One of those that it is to run on.

    Raises
    ------
    ValueError
        Where it works on no view.
    """
    known = {f.name for f in fields(method)}
    grid = weights("term_weight") if "term_weight" in known else weights("weight_decay", among=DECAYS)
    for view in ("own", "blocks", "common", "zeros"):
        found = Entry(method, view, grid)
        with suppress(NotHere):
            ready = found.on(found.seen(data, ""), FAMILIES["small"])
            served = type(ready).predict_server is not Method.predict_server and not ready.stages(ROUNDS, "final")
            return replace(found, one_model=served and {*ready.model.parts} <= {*ready.shared})
    raise WrongValue(f"{method.name} works on no view of {data.name!r}")


@cache
def entries() -> Mapping[str, Entry]:
    """All lines of version 1.0, by name; first the ways to stay alone."""
    decay = weights("weight_decay", among=DECAYS)
    found = {ALONE: Entry(CATALOGUE["Local"], "own", decay), **_classical()}
    own: dict[str, Grid] = {
        "LG-FedAvg": decay,
        "HetFedRep": decay,
        "FedProto": weights("term_weight", among=(0.1, 1.0, 10.0)),
        "FedHeNN": weights("term_weight"),
        "Fed-CMA": weights("head_weight", "mean_weight", among=(0.1, 1.0, 10.0)),
        "FedGen": weights("generated_weight", "agreement_weight", among=(0.1, 1.0, 10.0)),
        "FedCR, own embeddings": weights("term_weight", among=(5e-5, 5e-4, 5e-3)),
        "FedPAC, own bodies": weights("term_weight", among=(0.1, 1.0, 10.0)),
        "Ditto, own embeddings": weights("term_weight"),
        "FLIC-Class": weights("alignment_weight", "anchor_weight", among=(0.001, 0.01, 0.1)),
        "FLIC-HL": weights("alignment_weight", "anchor_weight", among=(0.001, 0.01, 0.1)),
    }
    common: dict[str, Grid] = {
        "FedAvg": decay,
        "FedAvg-FT": decay,
        "FedProx": weights("term_weight"),
        "FedPer": decay,
        "FedRep": decay,
        "FedBABU": decay,
        "Ditto": weights("term_weight"),
        "FedPAC": weights("term_weight", among=(0.1, 1.0, 10.0)),
        "FedCR": weights("term_weight", among=(5e-5, 5e-4, 5e-3)),
        "FedSR": weights("norm_weight", "cmi_weight", among=(0.0001, 0.001, 0.01)),
        "pFedHN": weights("server_lr", among=(0.001, 0.01, 0.1)),
        "pFedHN-PC": weights("server_lr", among=(0.001, 0.01, 0.1)),
    }
    blocks: dict[str, Grid] = {
        "late fusion": decay,
        "LASER-VFL": decay,
        "HyFEM": weights("extractor_weight", "classifier_weight", among=(0.0, 0.05, 0.5)),
    }
    one_model = {"FedAvg", "FedProx", "FedSR", "late fusion", "LASER-VFL", "HyFEM"}
    for view, some in (("own", own), ("common", common), ("blocks", blocks)):
        for name, grid in some.items():
            found[name] = Entry(_short(CATALOGUE[name]), view, grid, one_model=name in one_model)
    for name in ("FedAvg", "FedAvg-FT"):
        found[f"{name}, zeros"] = replace(found[name], view="zeros")
    return found


def _short(method: Method) -> Method:
    """With as much pre-training, and as many steps of a server's own, as suit 30 rounds of 8 steps."""
    known = {f.name for f in fields(method)}
    fitting = {"pretrain_epochs": 20, "generator_steps": TRAINING["local_steps"]}
    return replace(method, **{name: value for name, value in fitting.items() if name in known})


def _classical() -> dict[str, Entry]:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    boosting = GradientBoostingClassifier(n_estimators=50, subsample=0.8)
    penalties = {"logisticregression__C": [a * 10.0**k for k in range(-3, 3) for a in (1, 3)]}
    trees = {"max_depth": (1, 2, 3), "learning_rate": (0.01, 0.03, 0.1, 0.3)}
    shrunk = {"shrinkage": ("auto", 0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)}
    lda, eeg = LinearDiscriminantAnalysis(solver="lsqr"), ("EEG",)
    return {
        "logistic regression alone": Entry(PerSite(logistic), "own", penalties),
        "boosting alone": Entry(PerSite(boosting), "own", trees, ("tables", "made")),
        "LDA alone": Entry(PerSite(lda), "own", shrunk, eeg),
        "MDM alone": Entry(baselines.MDM(), "own", (), eeg),
        "in one place, common columns": Entry(InOnePlace(logistic), "common", penalties),
        "in one place, zeros": Entry(InOnePlace(logistic), "zeros", penalties),
        "in one place, recentred": Entry(baselines.Pooled(), "own", (), eeg),
    }
