"""What a practitioner would do without a federation: one classical classifier per subject, or all trials in one place.

The four that brain–computer interfaces are judged by, at the defaults of scikit-learn and pyRiemann; nothing is tuned,
unless `Chosen` does so by cross-validation *within the training trials*. All of them see what the federated methods
see, the vectors of a client. They are deterministic: with the same trials they give the same answers whatever the
seed, but for the folds of `Chosen`. In an experiment the seed matters through the trials that it draws
(`hetfl_core.datasets.fewer`). `run` gives a `Run` like `simulate` does, without rounds and without server.

References
----------
.. [1] O. Ledoit, M. Wolf. A well-conditioned estimator for large-dimensional covariance matrices. J. Multivariate
   Analysis 88(2), 2004.
.. [2] A. Barachant, S. Bonnet, M. Congedo, C. Jutten. Multiclass brain–computer interface classification by
   Riemannian geometry. IEEE Trans. Biomed. Eng. 59(4), 2012.
.. [3] P. Zanini, M. Congedo, C. Jutten, S. Said, Y. Berthoumieu. Transfer learning: a Riemannian geometry framework
   with applications to brain–computer interfaces. IEEE Trans. Biomed. Eng. 65(5), 2018.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from hetfl_core import checks, keywords
from hetfl_core.distances.tangent import exponential, pyriemann, recentring
from hetfl_core.engine import evaluation, measures
from hetfl_core.engine.evaluation import METRICS
from hetfl_core.engine.measures import MEASURES, Asked, Score, check_measure
from hetfl_core.engine.options import RunOptions
from hetfl_core.engine.run import Run, columns
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.rng import numpy_stream
from hetfl_core.settings import SOME, Checked, Limit, plain

__all__ = ["LDA", "LR", "MDM", "SVM", "Chosen", "Pooled", "run"]

Predict = Callable[[NDArray[Any]], NDArray[Any]]
"""From vectors, shape (n, d), to labels, shape (n,)."""

OF_PROBABILITIES = ("log_loss", "brier", "calibration_error")
"""Measures that mean something of probabilities alone, and nothing of what only puts samples in order."""


@dataclass(frozen=True)
class Answers:
    """What a fitted classifier says of vectors: called with them, it gives their labels.

    Parameters
    ----------
    classes : ndarray of int
        That it knows.
    labels : callable
    shares : callable, optional
        Their probabilities, shape (n, number of classes); not every classifier tells such.
    ranked : bool
        Whether the shares only put samples in order, and are no probabilities.
    """

    classes: NDArray[Any]
    labels: Predict
    shares: Predict | None = None
    ranked: bool = False

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        return self.labels(x)


Fit = tuple[dict[str, Answers], tuple[int, int]]
"""What answers for each client, by its name, and the bytes that were sent up and down for it."""


# --- alone ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alone(Checked):
    """A classifier that each client fits to its own training trials; nothing leaves it."""

    deterministic: ClassVar[bool] = False
    """Whether the seed changes nothing: runs on the same data are then one observation."""

    @property
    def name(self) -> str:
        """The name used in the literature."""
        return type(self).__name__

    def arrays(self, client: Client, split: str) -> tuple[Any, NDArray[Any]]:
        """What is learned from a client, or asked of it: vectors as float64, shape (n, d), and labels, shape (n,)."""
        return _arrays(client, split)

    def fit_all(self, federation: Federation, seed: int) -> Fit:
        """What answers for each client, by its name, and the bytes that were sent up and down for it: none."""
        return {c.name: self.fit(*self.arrays(c, "train"), c.name, seed) for c in federation}, (0, 0)

    def answered(self, federation: Federation, models: Mapping[str, Answers]) -> str:
        """What runs with the same answers have in common, of one whose `deterministic` cannot be known; else empty."""
        return ""

    def check(self, federation: Federation) -> None:
        """Refuse a regression."""
        if federation.task != "classification":
            raise WrongValue(f"a classical classifier wants a classification, got a {federation.task}")

    def make(self) -> Any:
        """A scikit-learn estimator, not yet fitted."""
        raise NotImplementedError(f"{type(self).__name__} must define make()")

    def prepare(self, x: NDArray[Any]) -> NDArray[Any]:
        """What the estimator is given for vectors of shape (n, d): by default the vectors."""
        return x

    def fitted(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Any:
        """The estimator, fitted to what it is given of the client `where`, with labels of two classes at least."""
        return self.make().fit(x, y)

    def fit(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Answers:
        """Learn from vectors, shape (n, d), and labels, shape (n,); `where` names the client.

        Of a single class there is nothing to learn: it is what is always predicted.
        """
        if len(np.unique(y)) == 1:
            return Answers(y[:1], lambda new: np.full(len(new), y[0]), lambda new: np.ones((len(new), 1)))
        try:
            model = self.fitted(self.prepare(x), y, where, seed)
        except (ValueError, np.linalg.LinAlgError) as error:
            raise WrongValue(f"client {where!r}: {self.name} cannot be fitted to {len(y)} vectors: {error}") from error
        tell = getattr(model, "predict_proba", None)
        shares = None if tell is None else lambda new: tell(self.prepare(new))
        return Answers(model.classes_, lambda new: model.predict(self.prepare(new)), shares)


@dataclass(frozen=True)
class LDA(Alone):
    """Linear discriminant analysis with the shrunk covariance of Ledoit and Wolf [1]_: no number to choose."""

    deterministic: ClassVar[bool] = True

    def make(self) -> Any:
        """Scikit-learn's least-squares solution, which never inverts the covariance."""
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")


@dataclass(frozen=True)
class LR(Alone):
    """Logistic regression on standardised features, ridge penalty at its default (C = 1)."""

    deterministic: ClassVar[bool] = True

    def make(self) -> Any:
        """Standardise, then regress."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))


@dataclass(frozen=True)
class SVM(Alone):
    """Support vector machine on standardised features, Gaussian kernel at its defaults (C = 1, γ = 1/d).

    Gaussian and not linear, for `LDA` and `LR` are linear already and the federated networks are not.
    """

    deterministic: ClassVar[bool] = True

    def make(self) -> Any:
        """Standardise, then separate."""
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        return make_pipeline(StandardScaler(), SVC(kernel="rbf"))


@dataclass(frozen=True)
class MDM(Alone):
    """Minimum distance to the Riemannian mean of each class [2]_, by pyRiemann.

    It wants covariances, clients hold tangent vectors: the exponential map at the identity makes of such a vector
    R^{-1/2} C R^{-1/2}, with C the covariance and R the reference point. The affine-invariant distance does not change
    under congruence, so that the answers are those for the covariances themselves, without knowing R.
    """

    deterministic: ClassVar[bool] = True

    def make(self) -> Any:
        """The classifier of pyRiemann.

        Raises
        ------
        ImportError
            Where pyRiemann is not installed; with the command that installs it.
        """
        return pyriemann("classification", "MDM").MDM(metric="riemann")

    def prepare(self, x: NDArray[Any]) -> NDArray[Any]:
        """The matrices of tangent vectors (`exponential`)."""
        return exponential(x)


@dataclass(frozen=True)
class Chosen(Alone):
    """The classifier that does best in a cross-validation on the client's own training trials.

    What a practitioner has who does not want to bet on one: the choice costs no look at the test trials.

    Parameters
    ----------
    among : tuple of Alone
        The first of equals wins; also where a class has too few trials (fewer than 2) to leave any out.
    folds : int
        Number of stratified folds, fewer where the rarest class has fewer trials.
    """

    among: Annotated[tuple[Alone, ...], SOME] = (LDA(), LR(), SVM(), MDM())
    folds: Annotated[int, Limit("at least 2", lambda n: n >= 2)] = 5

    @property
    def name(self) -> str:
        """What it does."""
        return "Best by cross-validation"

    def fit(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Answers:
        """As the chosen one."""
        return self.choose(x, y, where, seed).fit(x, y, where, seed)

    def choose(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Alone:
        """The one with the highest mean accuracy over the folds, which are drawn by the client's stream.

        One that cannot be fitted in some fold comes last.

        Parameters
        ----------
        x : ndarray, shape (n, d)
        y : ndarray of int, shape (n,)
        where : str
            Name of the client.
        seed : int

        Returns
        -------
        Alone
            One of `among`.
        """
        from sklearn.model_selection import StratifiedKFold, cross_val_score

        rarest = int(np.unique(y, return_counts=True)[1].min())
        if len(np.unique(y)) == 1 or rarest < 2:
            return self.among[0]
        state = int(numpy_stream(seed, where, 0, "folds").integers(2**32))
        folds = StratifiedKFold(min(self.folds, rarest), shuffle=True, random_state=state)
        scores = []
        for one in self.among:
            try:
                scores.append(cross_val_score(one.make(), one.prepare(x), y, cv=folds).mean())
            except (ValueError, np.linalg.LinAlgError) as error:
                raise WrongValue(
                    f"client {where!r}: {one.name} cannot be fitted to folds of {len(y)} vectors: {error}"
                ) from error
        return self.among[int(np.argmax(np.nan_to_num(scores, nan=-1.0)))]


# --- all in one place -----------------------------------------------------------------------------------------------


class _Centred(NamedTuple):
    """A client's training vectors where they are comparable, and what moves others there."""

    move: Predict
    x: NDArray[Any]
    y: NDArray[Any]


def _centred(client: Client, stay: bool = False) -> _Centred:
    """At the mean of its training trials; or, if it is to stay, as it comes."""
    x, y = _arrays(client, "train")
    move = (lambda new: new) if stay else recentring(x, client.name)
    return _Centred(move, move(x), y)


@dataclass(frozen=True)
class Pooled(Checked):
    """One linear classifier on the trials of all clients whose vectors mean the same: what federation replaces.

    What makes subjects comparable is that each one's vectors are taken at its own mean [3]_. So each client's vectors,
    training and test, are moved to the mean of the training trials *that it has in this run* (`recentring`): with 10
    trials, of these 10, whatever they were computed with.

    Clients belong together when they have equally many features, of the same names where they have names, the same set
    of classes among their training trials, and, where the federation's ``info["subjects"]`` gives them, the same
    ``channels``, or else the same ``data_set`` and not one feature space. A model knows the classes of its clients, and
    no others.

    *Why the same classes.* A vector of zero means "the average over what this client did". Right hand seen from the
    average of right hand and feet is another vector than right hand seen from that of right and left hand, and from its
    own average it is zero. So clients with a part of the classes of others are kept apart from them, and a client with
    a single class has a group of its own kind, where there is nothing to learn. How many trials each class has does not
    divide clients, though unequal shares move the mean, too.

    Parameters
    ----------
    of : LDA or LR
    """

    of: LDA | LR = LDA()

    @property
    def deterministic(self) -> bool:
        """As of what is pooled."""
        return self.of.deterministic

    @property
    def name(self) -> str:
        """What is pooled."""
        return f"Pooled {self.of.name}"

    def check(self, federation: Federation) -> None:
        """Refuse a regression."""
        Alone.check(self.of, federation)

    def arrays(self, client: Client, split: str) -> tuple[Any, NDArray[Any]]:
        """As of what is pooled."""
        return self.of.arrays(client, split)

    def fit_all(self, federation: Federation, seed: int) -> Fit:
        """What answers for each client, by its name, and the bytes that were sent up and down (see `pool`)."""
        return pool(self, [(group, group) for group in poolable(federation)])

    def fit(self, x: NDArray[Any], y: NDArray[Any]) -> Any:
        """A fitted estimator, of the vectors of all clients, shape (n, d), and their labels, shape (n,).

        Of a single class there is nothing to learn: it is what is always predicted.
        """
        from sklearn.dummy import DummyClassifier

        estimator = self.of.make() if len(np.unique(y)) > 1 else DummyClassifier()
        return estimator.fit(self.of.prepare(x), y)

    def answer(self, model: Any, move: Predict = np.asarray) -> Answers:
        """What a model says of a client's vectors.

        Parameters
        ----------
        model : estimator
            As `fit` returns it.
        move : callable
            What is done to the client's vectors before.

        Returns
        -------
        Answers
        """

        def shares(x: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(model.predict_proba(self.of.prepare(move(x))))

        return Answers(model.classes_, lambda x: model.classes_[shares(x).argmax(1)], shares)


Baseline = Alone | Pooled


def poolable(federation: Federation) -> list[list[Client]]:
    """The clients in groups whose vectors mean the same (see `Pooled`).

    Parameters
    ----------
    federation : Federation

    Returns
    -------
    list of list of Client
    """
    subjects: Mapping[str, Any] = federation.info.get("subjects", {})
    one_space = len({str(client.shapes) for client in federation}) == 1
    groups: dict[Hashable, list[Client]] = {}
    for client in federation:
        known = subjects.get(client.name, {})
        space = known.get("channels") or (None if one_space else known.get("data_set"))
        classes = tuple(client.y_train.unique().tolist())
        groups.setdefault((str(client.shapes), str(client.features), str(space), classes), []).append(client)
    return list(groups.values())


def _arrays(client: Client, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Vectors as float64, shape (n, d), and labels."""
    x = getattr(client, f"x_{split}")
    if isinstance(x, Mapping) or x.dim() != 2:
        raise WrongValue(f"client {client.name!r}: a classical classifier wants vectors, shape (n, d)")
    return x.numpy().astype(np.float64), getattr(client, f"y_{split}").numpy()


# --- runs -----------------------------------------------------------------------------------------------------------


class Fitted(Run):
    """A `Run` of a baseline: it has no rounds, no server and no parameters, so that it can embed nothing.

    Only a network's outputs can be had again.
    """

    answered = ""
    """As `Alone.answered` has it."""

    def _apply(self, hook: Literal["embed", "predict"], split: str, noisy: bool = False) -> dict[str, np.ndarray]:
        raise NotImplementedError(f"{self.method.name} has no embedding, and what it fits is not kept; see per_client")


@keywords.hinting(*RunOptions.names("measure"), where="baselines.run")
def run(
    federation: Federation, baseline: Baseline, *, seed: int = 0, measure: Sequence[Asked] = (), **options: Any
) -> Run:
    """Fit and test a baseline.

    Parameters
    ----------
    federation : Federation
        A classification of vectors.
    baseline : Alone or Pooled
    seed : int
        Of the folds of `Chosen`; nothing else is random.
    measure : sequence of str or callable
        Measures of class probabilities, as for `simulate`; what it may look at beside them (``"own"`` …) is not here.
    **options
        Those of `simulate` that have no meaning here (``rounds``, ``participation`` …), so that baselines and methods
        can be told the same; they are checked all the same.

    Returns
    -------
    Run
        Its history has one row. `Pooled` sends up features and labels as they lie in the federation, and the model
        down to each client.

    Raises
    ------
    ValueError
        For a regression, inputs that are not vectors, and vectors that a classifier cannot take or `recentring` cannot
        move; naming the client. Also for a classifier that tells no probabilities, where measures need them, and for
        options that `simulate` would refuse.
    TypeError
        For options that `simulate` does not know.
    ImportError
        Where `MDM` or `Pooled` lack pyRiemann.
    """
    checks.instance("federation", federation, Federation)
    checks.instance("baseline", baseline, Alone, Pooled, such_as="LDA()")
    checks.seed(seed)
    RunOptions(measure=measure, **options)
    baseline.check(federation)
    beside, scores = check_measure(measure, federation.task)
    if beside:
        raise WrongValue(
            f"measure must be one that a baseline has, of {[*MEASURES[federation.task]]}, got {beside[0]!r}"
        )
    begin = time.perf_counter()
    federation = federation.to(torch.float32)  # what the federated methods see
    return run_of(federation, baseline, baseline.fit_all(federation, seed), seed, begin, scores)


def pool(baseline: Pooled, shares: Sequence[tuple[list[Client], list[Client]]], stay: Sequence[str] = ()) -> Fit:
    """Models of some clients' trials for others.

    Parameters
    ----------
    baseline : Pooled
    shares : sequence of (list of Client, list of Client)
        Of each model the clients whose trials it is made of, and those for whom it is.
    stay : sequence of str
        Names of clients whose vectors are not moved to the mean of their trials.

    Returns
    -------
    models : dict of str to Answers
        What predicts for each client, by its name.
    sent : tuple of int
        Bytes up and down: each client sends its trials once, and receives a model.
    """
    models: dict[str, Answers] = {}
    centred: dict[str, _Centred] = {}
    givers: dict[str, Client] = {}
    down = 0
    for given, receivers in shares:
        centred |= {c.name: _centred(c, c.name in stay) for c in (*given, *receivers) if c.name not in centred}
        there = [centred[client.name] for client in given]
        model = baseline.fit(np.concatenate([one.x for one in there]), np.concatenate([one.y for one in there]))
        for name in (client.name for client in receivers):
            models[name] = baseline.answer(model, centred[name].move)
        givers |= {client.name: client for client in given}
        down += _model_bytes(model) * len(receivers)
    up = sum(int(client.x_train.nbytes + client.y_train.nbytes) for client in givers.values())
    return models, (up, down)


def _model_bytes(model: Any) -> int:
    """Bytes of what a linear classifier needs to predict, in double precision."""
    parts = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    learned = (getattr(part, name, None) for part in parts for name in ("mean_", "scale_", "coef_", "intercept_"))
    return sum(np.asarray(array).nbytes for array in learned if array is not None)


def run_of(
    federation: Federation, baseline: Any, fit: Fit, seed: int, begin: float, scores: Mapping[str, Score] | None = None
) -> Run:
    """The `Run` of models that are fitted.

    Parameters
    ----------
    federation : Federation
    baseline : Alone or Pooled
    fit : tuple
        What answers for each client, by its name, and the bytes up and down.
    seed : int
    begin : float
        `time.perf_counter` when fitting began, s.
    scores : dict of str to Score
        Measures that were asked for (`hetfl_core.engine.measures.check_measure`).

    Returns
    -------
    Run
    """
    models, (up, down) = fit
    task, arrays, scores = federation.task, baseline.arrays, scores or {}
    metrics = METRICS[task]

    def answers(split: str) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """What is predicted for each client, and its labels."""
        given = [(models[client.name], *arrays(client, split)) for client in federation]
        return [predict(x) if len(x) else y for predict, x, y in given], [y for _, _, y in given]

    test = answers("test")
    train, final = (evaluation.summarise(*each, task) for each in (answers("train"), test))
    scored = _scored(federation, baseline, models, scores)
    final |= measures.spread(scored, scores, np.zeros(len(federation), bool))
    seconds = time.perf_counter() - begin
    asked = {name: final[name] for name in scores if name != metrics.main}
    row = [0, train[metrics.main], final.get(metrics.main, math.nan), up, down, seconds]
    final |= {f"train_{metrics.main}": row[1], "bytes_up": up, "bytes_down": down, "seconds": seconds}
    sizes = [(client.name, client.n_train, client.n_test) for client in federation]
    each = evaluation.per_client(*test, task) | scored
    per_client = pd.DataFrame(sizes, columns=["client", "n_train", "n_test"]).assign(**each)
    settings = {
        "method": plain(baseline, other=lambda x: type(x).__name__),
        "seed": seed,
        "rounds": 0,
        "participation": 1.0,
    }
    settings |= {"deterministic": baseline.deterministic, **({"measure": sorted(scores)} if scores else {})}
    nothing: list[Any] = [{} for _ in federation]
    history = pd.DataFrame([row], columns=columns(metrics.main)).assign(**asked)
    run = Fitted(federation, baseline, settings, history, final, per_client, {}, nothing, nothing)
    run.answered = baseline.answered(federation, models) if isinstance(baseline, Alone) else ""
    return run


def _scored(
    federation: Federation, baseline: Any, models: Mapping[str, Answers], scores: Mapping[str, Score]
) -> dict[str, NDArray[Any]]:
    """The measures that are asked for, of each client's test samples."""
    told = []
    for client in federation:
        (x, y), model = baseline.arrays(client, "test"), models[client.name]
        if federation.task == "regression":
            told.append(model(x) if len(x) else y)
            continue
        lacking = [name for name in scores if model.shares is None or (model.ranked and name in OF_PROBABILITIES)]
        if lacking:
            raise WrongValue(f"{baseline.name} tells no class probabilities, of which {', '.join(lacking)} is formed")
        told.append(np.zeros((len(x), federation.n_classes)))
        if len(x) and model.shares is not None:
            p = model.shares(x)
            told[-1][:, model.classes] = p / p.sum(1, keepdims=True)
    labels, names = [client.y_test.numpy() for client in federation], [client.name for client in federation]
    return measures.scored(scores, told, labels, names)
