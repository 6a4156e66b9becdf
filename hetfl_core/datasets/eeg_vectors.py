"""A person's trials as vectors: covariances, and their places in a tangent space.

Each trial of q electrodes becomes its covariance matrix, and each matrix a vector of q(q+1)/2 numbers: its place in the
tangent space of the subject's mean covariance [1]_, or its plain upper triangle.

*The reference point of the tangent space is fitted on training trials only.* FLIC's published features [3]_ were fitted
on training and test trials together; ``reference="all"`` does that, so that the leak can be measured.

References
----------
.. [1] A. Barachant, S. Bonnet, M. Congedo, C. Jutten. Multiclass brain–computer interface classification by Riemannian
   geometry. IEEE Trans. Biomed. Eng. 59(4), 2012.
.. [2] O. Ledoit, M. Wolf. A well-conditioned estimator for large-dimensional covariance matrices. J. Multivariate
   Anal. 88(2), 2004.
.. [3] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_core import checks
from hetfl_core.datasets.eeg_cutting import Trials, UnusableSubject, places, warn_of
from hetfl_core.datasets.recordings import CLASSES
from hetfl_core.datasets.registry import DataError
from hetfl_core.federation import Client
from hetfl_core.rng import numpy_stream

RANK = 1e-7
"""Share of the largest eigenvalue below which another is rounding noise: files keep 16 or 24 bits of a signal."""


@dataclass(frozen=True, eq=False)
class SubjectCovariances:
    """Covariance matrices of one subject's trials.

    Parameters
    ----------
    matrices : ndarray, shape (n, q, q)
        Symmetric positive definite, µV².
    y, session, channels, name, notes, classes, test
        As in `Trials`.
    """

    matrices: NDArray[np.float64]
    y: NDArray[np.int64]
    session: NDArray[np.str_]
    channels: tuple[str, ...]
    name: str
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = CLASSES
    test: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.y)


# --- covariances and features ---------------------------------------------------------------------------------------


def covariances(found: Trials, estimator: str = "lwf") -> SubjectCovariances:
    """Covariance of each trial, with all that is known of the trials.

    Parameters
    ----------
    found : Trials
        As `hetfl_core.datasets.eeg_trials.trials` or `hetfl_core.datasets.eegmmidb.trials` returns them.
    estimator : str
        Of `pyriemann.estimation.Covariances`; ``"lwf"`` is Ledoit–Wolf shrinkage [2]_, whose matrices are invertible
        even where those of the signals are not, as after an average reference.

    Returns
    -------
    SubjectCovariances
        A matrix of shape (q, q), µV², for each trial.

    Raises
    ------
    DataError
        If a matrix is not positive definite; the message names the trial.
    ValueError
        For another estimator; the message lists those that there are.

    Warns
    -----
    EEGWarning
        If the signals are linearly dependent.
    """
    from pyriemann.estimation import Covariances
    from pyriemann.geometry.covariance import cov_est_functions

    checks.choice("estimator", estimator, tuple(cov_est_functions))
    matrices, q = Covariances(estimator=estimator).transform(found.x), len(found.channels)
    total = np.linalg.eigvalsh(np.einsum("nqt,nrt->qr", found.x, found.x, optimize=True))
    rank = int((total > RANK * total[-1]).sum())  # of the signals of all trials together
    _check_positive(matrices, found.name, rank, estimator)
    shrunk = f"signals of rank {rank} in {q} channels (an average reference?): shrinkage makes them invertible"
    notes = (shrunk,) if rank < q else ()
    warn_of(found.name, notes)
    about = (found.y, found.session, found.channels, found.name, (*found.notes, *notes), found.classes, found.test)
    return SubjectCovariances(matrices, *about)


def _check_positive(matrices: NDArray[np.float64], name: str, rank: int, estimator: str) -> None:
    values, q = np.linalg.eigvalsh(matrices), matrices.shape[1]
    least = RANK if rank < q else 1e-12
    if len(bad := np.flatnonzero(values[:, 0] <= least * values[:, -1])):
        raise DataError(
            f"{name}: covariances of {places(bad.tolist())} are not positive definite ({q} channels, signals of rank "
            f"{rank}, estimator {estimator!r}); estimator='lwf' shrinks them, or leave a channel out"
        )


def features(
    train: NDArray[Any],
    test: NDArray[Any],
    kind: Literal["tangent", "vectorised"] = "tangent",
    reference: Literal["train", "all"] = "train",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Covariances as vectors of q(q+1)/2 numbers.

    Parameters
    ----------
    train, test : ndarray, shape (n, q, q)
        Covariances of the training and of the test trials.
    kind : {"tangent", "vectorised"}
        Coordinates in the tangent space, which have no unit; or the upper triangle, row by row, in the matrices' units.
    reference : {"train", "all"}
        What the tangent space is fitted on: the Riemannian mean of the training matrices, or (the published leak) of
        all. The upper triangle has no reference.

    Returns
    -------
    x_train, x_test : ndarray, shape (n, q(q+1)/2)

    Raises
    ------
    ValueError
        For another `kind` or `reference`.
    """
    from pyriemann.tangentspace import TangentSpace

    checks.choice("features", kind, ("tangent", "vectorised"))
    if kind == "vectorised":
        rows, columns = np.triu_indices(train.shape[1])
        return train[:, rows, columns], test[:, rows, columns]
    checks.choice("reference", reference, ("train", "all"))
    space = TangentSpace().fit(train if reference == "train" else np.concatenate([train, test]))
    return space.transform(train), space.transform(test)


def split(
    y: NDArray[Any], session: NDArray[Any], name: str, seed: int = 0, by: Literal["session", "random"] = "session"
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of the training and of the test trials of one subject.

    Parameters
    ----------
    y, session : ndarray, shape (n,)
        Label and session of each trial.
    name : str
        The subject; it keys the random numbers.
    seed : int
        Of the random quarter.
    by : {"session", "random"}
        Whether the last session is the test set. Where there is one session, and with ``"random"``, a random quarter of
        the trials of each class is.

    Returns
    -------
    train, test : ndarray of int
        In increasing order.

    Raises
    ------
    ValueError
        For another value of `by`.
    """
    checks.choice("split", by, ("session", "random"))
    sessions = list(dict.fromkeys(session.tolist()))
    if by == "session" and len(sessions) > 1:
        test = session == sessions[-1]
    else:
        test = np.zeros(len(y), dtype=bool)
        rng = numpy_stream(seed, name, 0, "split")
        for label in np.unique(y):
            of_class = rng.permutation(np.flatnonzero(y == label))
            test[of_class[: round(len(of_class) / 4)]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def subject_client(
    subject: Trials | SubjectCovariances,
    features: Literal["tangent", "vectorised"] = "tangent",
    reference: Literal["train", "all"] = "train",
    seed: int = 0,
    split: Literal["session", "random"] = "session",
    estimator: str = "lwf",
) -> Client:
    """A client with the vectors and labels of one subject.

    Parameters
    ----------
    subject : Trials or SubjectCovariances
    features, reference
        As `kind` and `reference` of the function `features`.
    seed, split
        As `seed` and `by` of the function `split`, where it is not settled which trials are the test set.
    estimator : str
        Of the covariances, where `subject` holds trials.

    Returns
    -------
    Client
        Inputs of shape (q(q+1)/2,), float32; named after the subject.

    Raises
    ------
    UnusableSubject
        If the training trials are all of one class.

    Warns
    -----
    EEGWarning
        If a class has training or test trials only.
    """
    if isinstance(subject, Trials):
        subject = covariances(subject, estimator)
    train, test = _parts(subject, seed, split)
    if len(np.unique(subject.y[train])) < 2:
        raise UnusableSubject(
            f"{subject.name}: {len(train)} training trials, expected at least 2 classes among them, got labels "
            f"{np.unique(subject.y[train]).tolist()}"
        )
    warn_of(subject.name, unlike(subject, seed, split))
    x_train, x_test = _features(subject.matrices[train], subject.matrices[test], features, reference)
    return Client(
        x_train.astype(np.float32), subject.y[train], x_test.astype(np.float32), subject.y[test], subject.name
    )


def _parts(subject: Trials | SubjectCovariances, seed: int, by: Any) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of the training and of the test trials: as they are settled, or by `split`."""
    if subject.test is not None:
        return np.flatnonzero(~subject.test), np.flatnonzero(subject.test)
    return split_trials(subject.y, subject.session, subject.name, seed, by)


def unlike(subject: Trials | SubjectCovariances, seed: int = 0, split: Any = "session") -> list[str]:
    """Notes about classes of which there are training or test trials only.

    Parameters
    ----------
    subject : Trials or SubjectCovariances
    seed, split
        As of `subject_client`.

    Returns
    -------
    list of str
    """
    train, test = (set(subject.y[part].tolist()) for part in _parts(subject, seed, split))
    notes = []
    for part, own, other, more in (("training", train, "test", test), ("test", test, "training", train)):
        if lacking := [subject.classes[label] for label in sorted(more - own)]:
            notes.append(f"no {part} trials of {', '.join(lacking)}, only {other} trials")
    return notes


_features, split_trials = features, split  # by names that arguments of the same name do not hide
