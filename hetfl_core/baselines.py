"""What a practitioner would do without a federation: one classical classifier per subject, or all trials in one place.

The four that brain–computer interfaces are judged by, at the defaults of scikit-learn and pyRiemann; nothing is tuned,
unless `Chosen` does so by cross-validation *within the training trials*. All of them see what the federated methods
see, the vectors of a client. They are deterministic: with the same trials they give the same answers whatever the
seed, but for the folds of `Chosen`. In an experiment the seed matters through the trials that it draws
(`hetfl_core.datasets.fewer`). `hetfl_core.simulate` runs them as it runs methods, without rounds and without server.

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
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from hetfl_core import checks, scikit
from hetfl_core.distances.tangent import exponential, pyriemann, recentring
from hetfl_core.engine import evaluation, measures
from hetfl_core.engine.evaluation import METRICS
from hetfl_core.engine.learner import Learner
from hetfl_core.engine.measures import MEASURES, Score, check_measure
from hetfl_core.engine.options import RunOptions
from hetfl_core.engine.predictor import Answers
from hetfl_core.engine.run import Run, columns
from hetfl_core.engine.trained import Trained, TrainedEstimators
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation, Spec
from hetfl_core.rng import numpy_stream
from hetfl_core.settings import SOME, Checked, Limit, plain

__all__ = ["LDA", "LR", "MDM", "SVM", "Chosen", "Pooled"]

Predict = Callable[[NDArray[Any]], NDArray[Any]]
"""From vectors, shape (n, d), to labels, shape (n,)."""

OF_PROBABILITIES = ("log_loss", "brier", "calibration_error")
"""Measures that mean something of probabilities alone, and nothing of what only puts samples in order."""


Fit = tuple[dict[str, Answers], tuple[int, int]]
"""What answers for each client, by its name, and the bytes that were sent up and down for it."""


class Baseline(Learner, Checked):
    """What is fitted once, without rounds and without a server."""

    @property
    def deterministic(self) -> bool:
        """Whether the seed changes nothing: runs on the same data are then one observation."""
        return False

    @property
    def name(self) -> str:
        """The name used in the literature."""
        return type(self).__name__

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse a regression, where that is not taken, and clients on which it cannot be fitted."""
        if specs[0].task != "classification":
            raise WrongValue(f"{self.name} is a classical classifier and wants a classification, got a {specs[0].task}")

    def arrays(self, client: Client, split: str) -> tuple[Any, NDArray[Any]]:
        """What is learned from a client, or asked of it: vectors as float64, shape (n, d), and labels, shape (n,)."""
        return _arrays(client, split)

    def fit_all(self, federation: Federation, seed: int) -> Fit:
        """What answers for each client, by its name, and the bytes that were sent up and down for it."""
        raise NotImplementedError(f"{type(self).__name__} must define fit_all()")

    def answered(self, federation: Federation, models: Mapping[str, Answers]) -> str:
        """Mark of runs with the same answers, where `deterministic` cannot be known before; else empty."""
        return ""

    def run(self, federation: Federation, seed: int, options: RunOptions) -> Run:
        """Fit it, and test it on each client.

        Parameters
        ----------
        federation : Federation
        seed : int
            Of folds and of estimators that draw.
        options : RunOptions
            Of which only the metrics have a meaning here.

        Returns
        -------
        Run
            Its history has one row. `Pooled` sends up features and labels as they lie in the federation, and the model
            down to each client.

        Raises
        ------
        ValueError
            For a regression, inputs that are not vectors, and vectors that a classifier cannot take or `recentring`
            cannot move; naming the client. Also for a classifier that tells no probabilities, where metrics need them.
        ImportError
            Where `MDM` or `Pooled` lack pyRiemann.
        """
        checks.instance("federation", federation, Federation)
        self.check(federation.specs())
        beside, scores = check_measure(options.metric, federation.task)
        if beside:
            known = [*MEASURES[federation.task]]
            raise WrongValue(f"metric must be one that a baseline has, of {known}, got {beside[0]!r}")
        begin = time.perf_counter()
        federation = federation.to(torch.float32)  # what the federated methods see
        return run_of(federation, self, self.fit_all(federation, seed), seed, begin, scores)

    def settings(self, specs: Sequence[Spec] = ()) -> Any:
        """Plain form that records hold; an estimator is its class and parameters."""
        return plain(self, other=lambda x: type(x).__name__)

    @property
    def parameters(self) -> list[str]:
        """Names of its fields."""
        return [f.name for f in fields(self)]  # type: ignore[arg-type]

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same with other values of its fields."""
        return replace(self, **settings)  # type: ignore[type-var]


# --- alone ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alone(Baseline):
    """A classifier that each client fits to its own training trials; nothing leaves it."""

    def fit_all(self, federation: Federation, seed: int) -> Fit:
        """What answers for each client, by its name, and the bytes that were sent up and down for it: none."""
        return {c.name: self.learn(*self.arrays(c, "train"), c.name, seed) for c in federation}, (0, 0)

    def make(self) -> Any:
        """A scikit-learn estimator, not yet fitted."""
        raise NotImplementedError(f"{type(self).__name__} must define make()")

    def prepare(self, x: NDArray[Any]) -> NDArray[Any]:
        """What the estimator is given for vectors of shape (n, d): by default the vectors."""
        return x

    @property
    def steps(self) -> tuple[Predict, ...]:
        """What is done to vectors before they are asked about: `prepare`, where there is one."""
        return () if type(self).prepare is Alone.prepare else (self.prepare,)

    def fitted(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Any:
        """The estimator, fitted to what it is given of the client `where`, with labels of two classes at least."""
        return self.make().fit(x, y)

    def learn(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Answers:
        """What answers once it is fitted to vectors, shape (n, d), and labels, shape (n,); `where` names the client.

        Of a single class there is nothing to learn: it is what is always predicted.
        """
        if len(np.unique(y)) == 1:
            return Answers(always(y))
        try:
            model = self.fitted(self.prepare(x), y, where, seed)
        except (ValueError, np.linalg.LinAlgError) as error:
            who = f"client {where!r}: " if where else ""
            raise WrongValue(f"{who}{self.name} cannot be fitted to {len(y)} vectors: {error}") from error
        return Answers(model, before=self.steps)


@dataclass(frozen=True)
class Classical(Alone):
    """A baseline that is an estimator of scikit-learn, too: a step of its pipelines, or a classifier by itself.

    As an estimator it has the usual `fit`, `predict` and `score`, `predict_proba` or `decision_function` where the
    fitted classifier has them, and `get_params`, `set_params` and `clone`. What `fit` learns are attributes and no
    settings: they are in no record, two baselines are equal whether fitted or not, and a clone has none of them. In a
    run (`hetfl_core.simulate`) nothing is fitted in place.

    Attributes
    ----------
    classes_ : ndarray, shape (C,)
        Labels that `fit` has seen, in order.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, shape (d,)
        Names of the columns, where `fit` was given a table.
    """

    _estimator_type: ClassVar[str] = "classifier"

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier to vectors.

        Parameters
        ----------
        X : array_like, shape (n, d)
            Finite numbers; tangent vectors for `MDM`.
        y : array_like, shape (n,)
            Labels of any kind.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For vectors that the classifier does not take.
        """
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_X_y

        x, labels = check_X_y(X, y, dtype=np.float64)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        learnt = {"answers_": self.learn(x, codes), "classes_": classes, "n_features_in_": x.shape[1]}
        for name, value in {**learnt, "feature_names_in_": scikit.column_names(X)}.items():
            vars(self).pop(name, None)
            if value is not None:
                object.__setattr__(self, name, value)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels of vectors, shape (n, d) → (n,)."""
        x = self._vectors(X)
        return np.asarray(self.classes_[self.answers_.labels(x)])  # type: ignore[attr-defined]

    @property
    def predict_proba(self) -> Callable[[Any], NDArray[Any]]:
        """Class probabilities of vectors, shape (n, d) → (n, C), where the classifier tells them."""
        return self._telling("predict_proba")

    @property
    def decision_function(self) -> Callable[[Any], NDArray[Any]]:
        """Decision values of vectors, shape (n, d) → (n,), or (n, C), where the classifier has them."""
        return self._telling("decision_function")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy for vectors, shape (n, d), with labels, shape (n,)."""
        return scikit.score("classifier", y, self.predict(X), sample_weight)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Settings by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change settings in place, as scikit-learn's searches do with a clone, once they are checked."""
        for name, value in vars(replace(self, **params)).items():
            object.__setattr__(self, name, value)
        return self

    def __sklearn_clone__(self) -> Self:
        return replace(self)

    def __sklearn_tags__(self) -> Any:
        return scikit.tags("classifier")

    def _telling(self, hook: str) -> Callable[[Any], NDArray[Any]]:
        """A method of the fitted classifier that not every one has."""
        answers: Answers | None = vars(self).get("answers_")
        if answers is not None and not hasattr(answers.model, hook):
            raise AttributeError(f"{self.name} has no {hook}")

        def tell(X: Any) -> NDArray[Any]:
            x = self._vectors(X)
            return self.answers_.asked(hook, x)  # type: ignore[attr-defined,no-any-return]

        tell.__name__ = hook  # by which scikit-learn knows it
        return tell

    def _vectors(self, X: Any) -> NDArray[Any]:
        """Vectors as float64, of the columns that the classifier was fitted to."""
        from sklearn.utils.validation import check_array, check_is_fitted

        check_is_fitted(self, "answers_")
        known, names = vars(self).get("feature_names_in_"), scikit.column_names(X)
        if known is not None and names is not None and [*known] != [*names]:
            wanted, got = checks.shown([*known]), checks.shown([*names])
            raise WrongValue(f"{self.name}: X must have the columns {wanted}, in this order, got {got}")
        x: NDArray[Any] = check_array(X, dtype=np.float64)
        if x.shape[1] != vars(self)["n_features_in_"]:
            wanted = vars(self)["n_features_in_"]
            raise WrongValue(f"X has {x.shape[1]} features, but {self.name} is expecting {wanted} features as input")
        return x


@scikit.notable
@dataclass(frozen=True)
class LDA(Classical):
    """Linear discriminant analysis with the shrunk covariance of Ledoit and Wolf [1]_: no number to choose."""

    deterministic: ClassVar[bool] = True

    def make(self) -> Any:
        """Scikit-learn's least-squares solution, which never inverts the covariance."""
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")


@scikit.notable
@dataclass(frozen=True)
class LR(Classical):
    """Logistic regression on standardised features, ridge penalty at its default (C = 1)."""

    deterministic: ClassVar[bool] = True

    def make(self) -> Any:
        """Standardise, then regress."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))


@scikit.notable
@dataclass(frozen=True)
class SVM(Classical):
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


@scikit.notable
@dataclass(frozen=True)
class MDM(Classical):
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


@scikit.notable
@dataclass(frozen=True)
class Chosen(Classical):
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

    def learn(self, x: NDArray[Any], y: NDArray[Any], where: str = "", seed: int = 0) -> Answers:
        """As the chosen one."""
        return self.choose(x, y, where, seed).learn(x, y, where, seed)

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
    """A client's training vectors where they are comparable, and what moves others there, unless they stay."""

    move: Predict | None
    x: NDArray[Any]
    y: NDArray[Any]


def _centred(client: Client, stay: bool = False) -> _Centred:
    """At the mean of its training trials; or, if it is to stay, as it comes."""
    x, y = _arrays(client, "train")
    move = None if stay else recentring(x, client.name)
    return _Centred(move, x if move is None else move(x), y)


@dataclass(frozen=True)
class Pooled(Baseline):
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

    @property
    def way(self) -> Literal["one place"]:
        """All trials lie in one place."""
        return "one place"

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
        return self.of.make().fit(self.of.prepare(x), y) if len(np.unique(y)) > 1 else always(y)

    def answer(self, model: Any, move: Predict | None = None) -> Answers:
        """What a model says of a client's vectors.

        Parameters
        ----------
        model : estimator
            As `fit` returns it.
        move : callable, optional
            What is done to the client's vectors before.

        Returns
        -------
        Answers
        """
        before = (*([] if move is None else [move]), *self.of.steps)
        return Answers(model, before, by_shares=True)


def always(y: NDArray[Any]) -> Any:
    """A fitted classifier that says the only class among labels, shape (n,), of everything."""
    from sklearn.dummy import DummyClassifier

    return DummyClassifier().fit(np.zeros((len(y), 1)), y)


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
    """A `Run` of a baseline: it has no rounds, no server and no parameters, so that it can embed nothing."""

    answered = ""
    """As `Alone.answered` has it."""

    models: Mapping[str, Answers] = MappingProxyType({})
    """What answers for each client, by its name."""

    def trained(self) -> Trained:
        """The fitted estimators without the data: they predict for new rows, and can be saved."""
        names = [client.name for client in self.federation]
        return TrainedEstimators.of_fitted(self, [self.models[name] for name in names])

    def _apply(self, hook: Literal["embed", "predict"], split: str, noisy: bool = False) -> dict[str, np.ndarray]:
        raise NotImplementedError(
            f"{self.method.name} has no embedding and no logits; what it has fitted predicts by run.trained()"
        )


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
    run.models = models
    run.answered = baseline.answered(federation, models)
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
