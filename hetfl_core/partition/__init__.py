"""Dealing a data set to clients: `Partition` says how, and its `deal` does it.

The functions that it is made of are here as well. Each returns one sorted array of indices per client, draws only from
the generator it is given, and (unless it says that it draws with replacement) uses each sample at most once.

References
----------
.. [1] A. Rakotomamonjy et al. Personalised federated learning on heterogeneous feature spaces. TMLR, 2024.
.. [2] H. Zhang et al. FedCR: personalized federated learning based on across-client common representation with
   conditional mutual information regularization. ICML 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hetfl_core import checks, keywords
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.partition._checks import (
    Indices,
    Parts,
    check_clients,
    check_k,
    checked_labels,
    joined,
)
from hetfl_core.partition._classes import (
    FEW,
    assign_classes,
    consecutive_classes,
    published_shards,
    share,
    share_evenly,
)
from hetfl_core.partition._proportions import (
    dirichlet,
    dirichlet_per_client,
    share_alike,
    split_each,
)
from hetfl_core.rng import SERVER, numpy_stream
from hetfl_core.settings import Checked, Count, Limit, Natural, OpenShare

__all__ = ["Partition"]

Streams = Callable[[str], np.random.Generator]
"""What gives the generator of a purpose."""


def streams(seed: int, name: str) -> Streams:
    """The generators with which data of that name are dealt: each purpose has one of its own.

    Parameters
    ----------
    seed : int
    name : str

    Returns
    -------
    callable
        From a purpose, such as ``"train"``, to a numpy.random.Generator.
    """
    return lambda purpose: numpy_stream(seed, SERVER, 0, f"{name}:{purpose}")


USES: Mapping[str, tuple[str, ...]] = {
    "iid": ("per_client",),
    "classes": ("classes_per_client", "variant"),
    "dirichlet": ("alpha", "min_size"),
    "non-iid_1": ("classes_per_client", "variant", "per_client"),
    "non-iid_2": ("alpha", "per_client"),
}
"""The ways to split a data set, and which fields of `Partition` each uses besides `n_clients` and `test_fraction`."""


@dataclass(frozen=True)
class Partition(Checked):
    """How a data set is dealt to clients.

    ``Partition(n_clients=20, alpha=0.1).deal(y, np.random.default_rng(0))`` deals data of your own; functions such as
    `hetfl_core.datasets.pooled.fashion_mnist` take a partition, or single fields of one.

    Parameters
    ----------
    n_clients : int
        Number of clients b.
    split : {"iid", "classes", "dirichlet", "non-iid_1", "non-iid_2"}, optional
        By default ``"dirichlet"`` where `alpha` is given, else ``"classes"`` where `classes_per_client` is, else
        ``"iid"``. What a split does not use (`USES`) has no effect, but
        that `per_client` and `min_size` are refused.

        - ``"iid"``: equally many random samples.
        - ``"classes"``: each client holds some of the classes, and the samples of a class are shared equally by its
          holders.
        - ``"dirichlet"``: each class has proportions over the clients, ~ Dir(α); clients differ in size (`dirichlet`).
        - ``"non-iid_1"``, as in FedCR [2]_: clients of equal size, with equally many samples of each of their classes.
        - ``"non-iid_2"``, as in FedCR: clients of equal size, each with proportions of classes of its own, ~ Dir(α)
          (`dirichlet_per_client`). A client's samples are mixed before some become its test set, so that a few are of
          classes of which it has no training sample.
    classes_per_client : int, optional
        Classes that each client holds.
    alpha : float, optional
        Concentration α > 0: small values give clients of few classes, large ones nearly equal clients.
    variant : {"text", "code"}
        Whether it is done as a paper says, or as its published code does. ``"classes"``: FLIC's code [1]_ may deal a
        client a class twice, and lets clients overlap (`published_shards`). ``"non-iid_1"``: in FedCR's code, client i
        holds the classes i, i + 1, … (modulo C), and its samples are mixed before some become its test set, where
        otherwise each class is cut in the same proportion.
    per_client : int, optional
        Samples of a client, training and test together; by default all are dealt.
    min_size : int
        Fewest samples of a client.
    test_fraction : float, optional
        Share of a client's samples that becomes its test set, in (0, 1), by default 0.3; not for data that come with a
        test set, which is dealt as the training set is.

    Raises
    ------
    ValueError
        If a field is out of its range, or one that the split needs is missing.
    """

    n_clients: Count = 10
    split: Literal["iid", "classes", "dirichlet", "non-iid_1", "non-iid_2"] | None = None
    classes_per_client: Count | None = None
    alpha: Annotated[float, Limit("positive and at most 1e100", lambda x: 0 < x <= 1e100)] | None = None
    variant: Literal["text", "code"] = "text"
    per_client: Count | None = None
    min_size: Natural = 1
    test_fraction: OpenShare | None = None

    def __post_init__(self) -> None:
        for name in ("classes_per_client", "alpha"):
            if name in USES[self.scheme] and getattr(self, name) is None:
                raise WrongValue(f"{name} must be given for split={self.scheme!r}, got None")

    @property
    def scheme(self) -> str:
        """The way to split, also where it is left to the other fields."""
        given = "dirichlet" if self.alpha is not None else "iid" if self.classes_per_client is None else "classes"
        return self.split or given

    def settings(self, *names: str) -> dict[str, Any]:
        """The fields that a record tells of.

        Parameters
        ----------
        *names : str
            Fields that are told of in any case.

        Returns
        -------
        dict of str to object
            The number of clients and the named fields, None where the split does not use them. Then the other fields
            that it uses and that are not at their default.
        """
        used = {"n_clients", "split", "test_fraction", *USES[self.scheme]}
        told = {f.name: getattr(self, f.name) if f.name in used else None for f in fields(self)}
        first = {name: told[name] for name in ("n_clients", *names)}
        return first | {f.name: v for f in fields(self) if (v := told[f.name]) not in (None, f.default)}

    def check(self, n_samples: int, n_classes: int, *, pooled: bool = False) -> None:
        """Refuse what cannot be dealt, before there are labels.

        Parameters
        ----------
        n_samples, n_classes : int
            Samples to deal, and classes among them.
        pooled : bool
            Whether each client's test samples are taken from them.

        Raises
        ------
        ValueError
            Naming the field.
        """
        if self.n_clients > n_samples:
            raise WrongValue(f"n_clients must be at most {n_samples}, the number of samples, got {self.n_clients}")
        k = self.classes_per_client or 0
        used, repeats = USES[self.scheme], self.scheme == "classes" and self.variant == "code"
        if "classes_per_client" in used:
            check_k("classes_per_client", k, n_classes, repeats)
        if self.scheme == "classes" and not repeats:
            check_clients(self.n_clients, k, n_samples)
        if self.scheme == "non-iid_1":
            follow = self.variant == "code" and k < n_classes
            if self.n_clients * (1 if follow else k) % n_classes:
                counted = "(as the classes of a client follow each other)" if follow else "× classes_per_client"
                raise WrongValue(
                    f"n_clients {counted} must be a multiple of {n_classes}, the number of classes, so that each has "
                    f"equally many holders, got n_clients={self.n_clients} and classes_per_client={k}"
                )
        for name, default in (("per_client", None), ("min_size", 1)):
            if name not in used and getattr(self, name) != default:
                raise WrongValue(f"{name} must be {default} for split={self.scheme!r}, got {getattr(self, name)}")
        if self.per_client is not None:
            if self.scheme == "non-iid_1" and self.per_client % k:
                raise WrongValue(
                    f"per_client must be a multiple of {k}, the classes of a client, got {self.per_client}"
                )
            if self.n_clients * self.per_client > n_samples:
                raise WrongValue(
                    f"per_client must be at most {n_samples // self.n_clients} for n_clients={self.n_clients}, as "
                    f"there are {n_samples} samples, got {self.per_client}"
                )
        if not pooled and self.test_fraction is not None:
            raise WrongValue(f"test_fraction must be None for data with a test set, got {self.test_fraction}")

    def deal(
        self,
        labels: ArrayLike,
        rng: np.random.Generator | Streams,
        test_labels: ArrayLike | None = None,
        *,
        repeat_below: int = FEW,
    ) -> tuple[Parts, Parts]:
        """Deal samples to clients, for training and for testing.

        Parameters
        ----------
        labels : array_like of int, shape (n,)
            Class of each sample. The classes are the different values that occur.
        rng : numpy.random.Generator, or callable
            What draws, or what gives the generator of a purpose: ``"classes"``, ``"train"``, ``"test"``, ….
        test_labels : array_like of int, shape (m,), optional
            Of the samples to test on, where the data have a test set of their own. It is dealt with the same classes,
            or in the same proportions. By default each client's samples are cut in two.
        repeat_below : int
            Of `published_shards`, for the code's variant of ``"classes"``: at most 100.

        Returns
        -------
        train, test : list of n_clients arrays of int
            Sorted indices into `labels`, and into `test_labels` where they are given.

        Raises
        ------
        ValueError
            If the samples cannot be dealt so; naming the field, the labels or the class.
        TypeError
            For labels that are not whole numbers, and a generator that is not NumPy's.
        """
        y = checked_labels(labels)
        if not len(y):
            raise WrongValue("labels must hold at least one sample, got none")
        classes = np.unique(y)
        self.check(len(y), len(classes), pooled=test_labels is None)
        checks.integer("repeat_below", repeat_below, 0, FEW)

        def stream(purpose: str) -> np.random.Generator:
            found = rng(purpose) if callable(rng) else rng
            checks.instance("rng", found, np.random.Generator, such_as="numpy.random.default_rng(0)")
            return found

        table = self._table(classes, stream)
        train = self._parts(y, table, stream, "train", repeat_below)
        if test_labels is None:
            mixed = self.scheme == "non-iid_2" or (self.scheme == "non-iid_1" and self.variant == "code")
            return split_each(y, train, self.test_fraction or 0.3, stream("split"), stratified=not mixed)
        z = checked_labels(test_labels, "test_labels")
        if self.scheme == "classes":
            return train, self._parts(z, table, stream, "test", repeat_below)
        return train, share_alike(y, train, z, stream("test"))

    def _table(self, classes: Indices, stream: Streams) -> Indices:
        """The classes of each client, where it holds some of them."""
        if "classes_per_client" not in USES[self.scheme]:
            return classes[:0]
        numbers = (self.n_clients, len(classes), self.classes_per_client or 0)
        if self.scheme == "non-iid_1" and self.variant == "code":
            return classes[consecutive_classes(*numbers)]
        repeats = self.scheme == "classes" and self.variant == "code"
        return classes[assign_classes(*numbers, stream("classes"), allow_repeats=repeats)]

    def _parts(self, y: Indices, table: Indices, stream: Streams, part: str, repeat_below: int) -> Parts:
        """Samples of each client, by the scheme of the partition."""
        if self.scheme == "iid":
            n = len(y) if self.per_client is None else self.n_clients * self.per_client
            return [np.sort(mine) for mine in np.array_split(stream(part).permutation(len(y))[:n], self.n_clients)]
        if self.scheme == "dirichlet":
            return dirichlet(y, self.n_clients, self.alpha or 0, stream(part), self.min_size)
        if self.scheme == "non-iid_1":
            return share_evenly(y, table, stream("share"), per_client=self.per_client)
        if self.scheme == "non-iid_2":
            rng = stream("dirichlet")
            return dirichlet_per_client(y, self.n_clients, self.alpha or 0, rng, per_client=self.per_client)
        if self.variant == "code":
            return published_shards(y, table, stream(part), repeat_below=repeat_below)
        return share(y, table, stream(part), at_least=int(part == "train"))


P = TypeVar("P")


def gathered(partition: P, changes: Mapping[str, Any], kind: type[P]) -> P:
    """A partition with other values for some of its fields, as functions that deal data take them.

    Parameters
    ----------
    partition : Partition or BlockPartition
    changes : dict of str to object
        New values of fields, by name.
    kind : type
        Class that `partition` must be of.

    Returns
    -------
    Partition or BlockPartition

    Raises
    ------
    TypeError
        If `partition` is none of that kind, or for a name that is no field's.
    """
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(partition, kind):
        raise WrongType(
            f"partition must be a {kind.__name__}, got {checks.shown(partition)}: give its fields by name, such as "
            f"{known[0]}={checks.shown(partition)}"
        )
    if unknown := [name for name in changes if name not in known]:
        raise WrongType(
            f"got an unexpected keyword argument {unknown[0]!r}; expected a field of {kind.__name__}: "
            f"{', '.join(known)}{keywords.meant(unknown[0], known)}"
        )
    return replace(partition, **changes)  # type: ignore[type-var]
