r"""Can one tell from its features which client a sample comes from? A measure of alignment, beside its yardsticks.

A classifier that recognises the client better than chance shows that clients' features differ ([1]_); Fed-CMA takes its
accuracy for the divergence :math:`d_{\mathcal{V} \Delta \mathcal{V}}` between them ([2]_, Figure 9). But where clients
hold different classes, knowing the class alone tells much of the client, and features that are aligned perfectly, class
by class, still give the class away. Hence two yardsticks: chance, and what is told by the label alone; and a version in
which each class has equally many samples of all clients that hold it, so that what is recognised beyond them is a
difference *within* classes.

References
----------
.. [1] S. Ben-David, J. Blitzer, K. Crammer, A. Kulesza, F. Pereira, J. Wortman Vaughan. A theory of learning from
   different domains. Machine Learning 79, 2010.
.. [2] J. R. Regatti, S. Lu, A. Gupta, N. Shroff. Conditional moment alignment for improved generalization in federated
   learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.rng import SERVER, numpy_stream

Kind = Literal["linear", "forest"]
"""A logistic regression, or a random forest."""


@dataclass(frozen=True)
class Recognised:
    """How well a classifier names the client of a held-out sample.

    Attributes
    ----------
    accuracy : float
        Of the classifier, in [0, 1].
    chance : float
        Of always naming the client that has most training samples.
    label_only : float
        Of naming, for each class, the client that has most training samples of it: what features that tell the class
        give away in any case. (Not a lower bound: a weak classifier may do worse.)
    n : int
        Held-out samples.
    """

    accuracy: float
    chance: float
    label_only: float
    n: int


def recognise_clients(
    features: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    *,
    kind: Kind = "linear",
    balanced: bool = False,
    held_out: float = 0.3,
    trees: int = 300,
    seed: int = 0,
) -> Recognised:
    """Train a classifier to name the client of a sample by its features, and test it on others.

    Parameters
    ----------
    features : dict of str to ndarray, shape (n_i, k)
        By client, such as `Run.embed` gives.
    labels : dict of str to ndarray of int, shape (n_i,)
        Classes, such as `Run.labels` gives.
    kind : {"linear", "forest"}
        Multinomial logistic regression on standardised features; or a random forest, which also sees differences
        that no plane does.
    balanced : bool
        Take of each class that two clients or more hold equally many samples of each of them, and no other class.
    held_out : float
        Share of the samples of each client and class that is held out, in (0, 1); of a single one at random.
    trees : int
        Of the forest.
    seed : int
        Draws the split, the balanced sample and the forest.

    Returns
    -------
    Recognised

    Raises
    ------
    ValueError
        For fewer than two clients, features or labels that do not fit, or nothing left to train or test on.
    """
    checks.choice("kind", kind, get_args(Kind))
    checks.flag("balanced", balanced)
    checks.fraction("held_out", held_out, "(0, 1)")
    checks.integer("trees", trees, 1)
    checks.seed(seed)
    z, y, client = _pooled(features, labels)
    rng = numpy_stream(seed, SERVER, 0, "discriminator")
    if balanced:
        rows = _balanced(y, client, rng)
        z, y, client = z[rows], y[rows], client[rows]
    test = _held_out(y, client, held_out, rng)
    if not test.any() or len(np.unique(client[~test])) < 2:
        raise WrongValue(
            f"features must leave samples of two clients to train on and some to test on, got {int((~test).sum())} and "
            f"{int(test.sum())} with held_out={held_out:g}"
            + (" after balancing: do two clients hold a class in common?" if balanced else "")
        )
    model = _classifier(kind, trees, int(rng.integers(2**31)))
    model.fit(z[~test], client[~test])
    accuracy = float((model.predict(z[test]) == client[test]).mean())
    most = _most_frequent(client[~test])
    by_label = {c: _most_frequent(client[~test & (y == c)]) for c in np.unique(y[~test])}
    told = np.array([by_label.get(c, most) for c in y[test]])
    chance, label_only = float((client[test] == most).mean()), float((client[test] == told).mean())
    return Recognised(accuracy, chance, label_only, int(test.sum()))


def _pooled(
    features: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """All features, labels, and the number of the client of each sample, clients in the order of their names."""
    features, labels = checks.mapping("features", features), checks.mapping("labels", labels)
    if len(features) < 2:
        raise WrongValue(f"features must be those of at least two clients, got {len(features)}")
    if odd := sorted(features.keys() ^ labels.keys()):
        raise WrongValue(f"features and labels must be of the same clients, but only one of them has {odd[0]!r}")
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for i, name in enumerate(sorted(features)):
        z = checks.floats(f"features[{name!r}]", features[name], 2)
        y = checks.array(f"labels[{name!r}]", labels[name])
        if y.shape != (len(z),) or not np.issubdtype(y.dtype, np.integer):
            raise WrongValue(
                f"labels[{name!r}] must be whole numbers, one for each of {len(z)} rows of features, got "
                f"{checks.shown(y)}"
            )
        if parts and z.shape[1] != (width := parts[0][0].shape[1]):
            raise WrongValue(f"features[{name!r}] must have {width} columns as those before, got {z.shape[1]}")
        parts.append((z, y.astype(np.int64), np.full(len(z), i)))
    all_z, all_y, clients = (np.concatenate(column) for column in zip(*parts, strict=True))
    return all_z, all_y, clients


def _balanced(y: NDArray[np.int64], client: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows with equally many samples of a class of each client that holds it, of classes that two hold or more."""
    rows = [np.zeros(0, np.int64)]
    for c in np.unique(y):
        mine = [rng.permutation(np.flatnonzero((y == c) & (client == i))) for i in np.unique(client[y == c])]
        if len(mine) > 1:
            fewest = min(len(each) for each in mine)
            rows += [each[:fewest] for each in mine]
    return np.sort(np.concatenate(rows))


def _held_out(
    y: NDArray[np.int64], client: NDArray[np.int64], share: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Of each client and class a share, rounded up or down at random by what is left over."""
    test = np.zeros(len(y), bool)
    for i in np.unique(client):
        for c in np.unique(y[client == i]):
            mine = rng.permutation(np.flatnonzero((client == i) & (y == c)))
            exact = share * len(mine)
            test[mine[: int(exact) + int(rng.random() < exact - int(exact))]] = True
    return test


def _most_frequent(client: NDArray[np.int64]) -> int:
    """The first of those that occur most often."""
    return int(np.bincount(client).argmax()) if len(client) else -1


def _classifier(kind: Kind, trees: int, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier  # here, for importing it takes a second
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if kind == "linear":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    return RandomForestClassifier(trees, min_samples_leaf=2, random_state=seed, n_jobs=1)
