"""Who holds what: the clients of a federation, checked once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, get_args, overload

import pandas as pd
import torch
from torch import Tensor

from hetfl_core import checks, frames, keywords, tables
from hetfl_core.clients import (
    Client,
    FederationWarning,
    Kind,
    MadeName,
    Spec,
    altered,
    check_client,
    check_labels,
    in_one_order,
    to_dtype,
    warn,
)
from hetfl_core.errors import UnknownName, WrongValue
from hetfl_core.inputs import Inputs, as_params, blocks, by_block, data_digest, from_params, map_blocks, shape_text
from hetfl_core.preparation import Preparation
from hetfl_core.rng import SERVER
from hetfl_core.settings import Hinting, plain
from hetfl_core.views import Views, block_names

__all__ = ["Client", "Federation", "FederationWarning", "Spec", "blocks", "map_blocks"]

MOST_CLASSES = 1_000_000
"""A label beyond is a mistake, such as an identifier: each class is an output of a head, and a count on each client."""


@dataclass(frozen=True, eq=False)
class Federation(Hinting, Views):
    """Clients that learn together, checked once, here.

    Parameters
    ----------
    clients : sequence of Client
        At least one, with different names. Where a loader made up one name for several, as nobody gave them any, they
        are numbered: ``"MyData-1 (1)"``, ``"MyData-1 (2)"``. Features that have the same names on several clients are
        brought into the order that they have on the first of these by name, and named blocks too.
    n_classes : int, optional
        Number of classes C; by default one more than the largest label. 0 for a regression.
    name : str
        What data this is; written into records.
    info : dict, optional
        Facts for the reader of a record: settings, sources, class names, whether the data are ``simulated``, and
        whether they only ``stand_in`` for data that cannot be had.
    task : {"classification", "regression"}
        Labels in 0 … C−1, or real targets, which are then finite floating-point numbers.
    x_test, y_test : array_like, or dict of str to array_like, optional
        Test data of the federation itself, as a client's. The server's model is measured on them, in the place of the
        clients' test data. With named blocks, these samples have all blocks, in the shapes that clients have. The
        columns of a pandas.DataFrame are brought into the clients' order.

    Raises
    ------
    ValueError
        Naming the client and the argument, what was expected and what was found. For no client, a repeated name, an
        empty training set, x and y of different length, non-finite values, and labels outside 0 … C−1. For a test set
        of another shape than the training set, and features of the federation's own test data that are not the
        clients'. For a number of classes that is not whole.
    TypeError
        Where labels of a classification are not whole numbers.

    Warns
    -----
    FederationWarning
        Where a client's test set holds a class that its training set lacks; where there is one class only; where
        nobody has training samples of some class, unless `n_classes` says how many there are; and where names were
        numbered.
    """

    clients: Sequence[Client]
    n_classes: Any = None
    name: str = "federation"
    info: Any = None
    task: Kind = "classification"
    x_test: Any = None
    y_test: Any = None

    def __post_init__(self) -> None:
        checks.choice("task", self.task, get_args(Kind))
        given = checks.sequence("clients", self.clients)
        for client in given:
            checks.instance("clients", client, Client)
        checks.nonempty_str("name", self.name)
        info = dict(checks.mapping("info", {} if self.info is None else self.info))
        given = [client.for_task(self.task) for client in given]
        if not given:
            raise WrongValue("clients: a federation needs at least one client, got none")
        given = _numbered(given)
        clients, counted = tuple(in_one_order(given)), self.n_classes is None
        n_classes: int = self.n_classes
        if counted:  # one more than the largest training label
            n_classes = 1 + max(int(c.y_train.max()) if c.n_train else 0 for c in clients)
            n_classes *= self.task == "classification"
        if not isinstance(n_classes, Real) or isinstance(n_classes, bool) or not float(n_classes).is_integer():
            raise WrongValue(f"n_classes must be a whole number, got {checks.shown(n_classes)}")
        if n_classes > MOST_CLASSES:
            raise WrongValue(
                f"n_classes, one more than the largest label in y_train unless it is given, must be at most "
                f"{MOST_CLASSES}, got {int(n_classes)}: number the classes 0 … C−1"
            )
        fields: dict[str, Any] = {"clients": clients, "n_classes": int(n_classes), "info": info}
        x_test, y_test = self.x_test, self.y_test
        if (x_test is None) != (y_test is None):
            raise WrongValue(f"x_test and y_test go together, got only {'y_test' if x_test is None else 'x_test'}")
        own = None if x_test is None else Client(x_test, y_test, x_test, y_test, OWN_TEST_DATA).for_task(self.task)
        if own is not None:
            (own,) = in_one_order([own], [client.features for client in clients])
            fields |= {"x_test": own.x_test, "y_test": own.y_test}
        for attribute, value in fields.items():
            object.__setattr__(self, attribute, value)
        self._check()
        if own is not None:
            self._check_own(own, given)
        if self.task == "classification":
            _warn_of_classes(clients, self.n_classes, counted)

    @classmethod
    @keywords.hinting()
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        client: str,
        target: str,
        test_size: float = 0.2,
        seed: int = 0,
        task: Kind = "classification",
        name: str = "federation",
        prepare: Any = None,
        ignore: Sequence[str] = (),
        group: str | None = None,
        split: str | None = None,
        time: str | None = None,
    ) -> Federation:
        """The federation of a table with a row per sample, a column that says whose it is, and one to be predicted.

        All other columns are features. A column that has no value at all in the rows of a client is a feature that this
        client does not have, and is left out there; so clients may end up with different ones.

        Parameters
        ----------
        frame : pandas.DataFrame
            A row per sample.
        client, target : str
            Columns: the name of the client, and the label (or the number, for a regression).
        test_size, seed, task, name
            As for `from_arrays`.
        prepare : Preparation, or transformer of scikit-learn, optional
            How gaps are filled, words encoded and numbers scaled; a copy is fitted for each client on its own training
            rows, and stays with it for later rows (`Client.rows`). By default there are no gaps and no words, and
            numbers are taken as they are.
        ignore : sequence of str
            Columns that are no features, such as a number of the patient.
        group, split, time : str, optional
            At most one of them: a column that is no feature, but says how each client's rows are split. All rows of one
            group, such as a patient, go into one set, at all clients, and `test_size` is the share of groups. Groups
            are told apart by what they are called, 7 and "007" being one. Clients that share none are split as each
            would be alone; where each numbers its own patients from 1, patients of one number go into the same set,
            which does no harm. Or the column says ``"train"`` or ``"test"``; or the latest rows are the test set.

        Returns
        -------
        Federation
            ``info["features"]`` has the features of each client, in the order of its inputs, ``info["present"]`` the
            share of its rows that have a value, by column.

        Raises
        ------
        ValueError
            Naming the column, and the client where it is about one: a column that is not there, holds no numbers, or
            lacks single values, where nothing prepares it; what `Preparation` and `from_arrays` refuse.

        Warns
        -----
        FederationWarning
            Where test rows agree so nearly with training rows that they may be of one patient: with those of the same
            client, where no group is given, and with those of another.
        """
        by = {"group": group, "split": split, "time": time}
        found = frames.by_client(frame, client, target, prepare, ignore, **by)
        made = cls._split(found.arrays, test_size, seed, task, name, found.rules, prepare)
        info = dict(made.info)
        told = {key: value for key, value in {**by, "ignore": list(ignore)}.items() if value}
        if prepare is not None:
            told["prepare"] = plain(prepare) if isinstance(prepare, Preparation) else " ".join(repr(prepare).split())
        info["settings"] = {**info["settings"], **told}
        info |= {"features": {c.name: list(c.features or ()) for c in made}, "present": found.present}
        return altered(made, info=info)

    @classmethod
    @keywords.hinting(*keywords.named(pd.read_csv)[1:])
    def from_csv(
        cls,
        files: Any,
        *,
        target: str,
        client: str | None = None,
        test_size: float = 0.2,
        seed: int = 0,
        task: Kind = "classification",
        name: str = "federation",
        prepare: Any = None,
        ignore: Sequence[str] = (),
        group: str | None = None,
        split: str | None = None,
        time: str | None = None,
        **options: Any,
    ) -> Federation:
        """The federation of CSV files: one per client, or one with a column that says whose a row is.

        Parameters
        ----------
        files : path, sequence of path, or dict of str to path
            One file; or a file of each client, by its name. In a sequence, files are called after themselves.
        target : str
            Column to be predicted.
        client : str, optional
            Column with the name of the client; of one file only.
        test_size, seed, task, name, prepare, ignore, group, split, time
            As for `from_frame`.
        **options
            Of `pandas.read_csv`, such as ``sep=";"``, ``decimal=","``, ``encoding="latin-1"``, or ``names=`` for files
            without a first line of names.

        Returns
        -------
        Federation
            As `from_frame`. Columns are found by name; a file may lack some, and have them in any order.

        Raises
        ------
        FileNotFoundError, ValueError
            Naming client, file and column.

        Warns
        -----
        FederationWarning
            Where the index of a table stands among its columns, which is left out, and where names of columns differ in
            capitals only.
        """
        by: dict[str, Any] = {"group": group, "split": split, "time": time}
        needed = {"target": target, **{kind: column for kind, column in by.items() if column is not None}}
        frame, whose = tables.sites(files, client, needed, **options)
        by |= {"prepare": prepare, "ignore": ignore}
        return cls.from_frame(
            frame, client=whose, target=target, test_size=test_size, seed=seed, task=task, name=name, **by
        )

    @classmethod
    @keywords.hinting()
    def from_arrays(
        cls,
        arrays: Mapping[str, tuple[Any, Any]],
        *,
        test_size: float = 0.2,
        seed: int = 0,
        task: Kind = "classification",
        name: str = "federation",
    ) -> Federation:
        r"""The federation of arrays per client, split into training and test sets by scikit-learn.

        Truth values are the numbers 0 and 1, and what is sparse is made dense.

        Parameters
        ----------
        arrays : dict of str to (array_like, array_like)
            Inputs, shape (n, \*shape), and labels, shape (n,), of each client by its name. Labels may be text or any
            numbers: they are counted 0 … C−1 in their order over all clients, or in that of their categories, where
            they are ordered ones; ``info["classes"]`` keeps them. The columns of a pandas.DataFrame name features.
        test_size : float
            Share of each client's samples that becomes its test set, in [0, 1); 0 for no test sets. Every class is
            split in this proportion (stratified). A class of which a client has a single sample stays in its training
            set; where there are too few samples even so, the test set is drawn from what is left when one sample of
            each class is in the training set.
        seed : int
            Of the split; each client has a stream of its own, so that it does not matter who else there is, unless they
            share groups (`from_frame`).
        task : {"classification", "regression"}
        name : str

        Returns
        -------
        Federation
            ``info["settings"]`` has the test size and the seed, ``info["rows"]`` a digest of all rows, which is the
            same for every split of them. But for a regression, ``info["classes"]`` has the
            labels in the order of their numbers.

        Raises
        ------
        ValueError
            Naming the client: for what `Federation` refuses, missing labels, labels that look like a regression's.

        Warns
        -----
        FederationWarning
            Naming all clients that have too few samples of some class to be split in proportion.
        """
        return cls._split(arrays, test_size, seed, task, name)

    @classmethod
    def _split(
        cls, arrays: Any, test_size: float, seed: int, task: Kind, name: str, rules: Any = None, prepare: Any = None
    ) -> Federation:
        checks.choice("task", task, get_args(Kind))
        clients, classes = frames.split_arrays(arrays, test_size, seed, task, rules, prepare)
        settings = {"test_size": float(test_size), "seed": seed}
        info = {"settings": settings, "rows": frames.rows_digest(arrays)}
        info |= {"classes": classes} if task == "classification" else {}
        return cls(clients, len(classes) if task == "classification" else 0, name, info, task)

    def _check(self) -> None:
        if self.task == "regression" and self.n_classes:
            raise WrongValue(f"n_classes must be 0 or None for a regression, got {self.n_classes}")
        if self.task == "classification" and self.n_classes < 1:
            raise WrongValue(f"n_classes must be at least 1, got {self.n_classes}")
        seen: set[str] = set()
        for client in self.clients:
            if not isinstance(client.name, str) or client.name in ("", SERVER):
                raise WrongValue(f"client names must be non-empty strings other than {SERVER!r}, got {client.name!r}")
            if client.name in seen:
                raise WrongValue(f"client names must be unique, got {client.name!r} twice")
            seen.add(client.name)
            if block_names(client) != block_names(self.clients[0]):
                raise WrongValue(
                    f"client {client.name!r}: x_train must have the blocks {block_names(self.clients[0])} of client "
                    f"{self.clients[0].name!r}, got {block_names(client)}; "
                    "a block that a client lacks is an empty one, of shape (n, 0)"
                )
            check_client(client)
            if self.task == "classification":
                check_labels(client, self.n_classes)

    def _check_own(self, own: Client, given: Sequence[Client]) -> None:
        """Refuse test data of the federation's own that a model of all that clients hold does not take."""
        if block_names(own) != block_names(self.clients[0]):
            raise WrongValue(
                f"x_test must have the blocks {block_names(self.clients[0])} of the clients, got {block_names(own)}"
            )
        check_client(own, ("test",))
        if self.task == "classification":
            check_labels(own, self.n_classes, ("test",))
        for client, before in zip(self.clients, given, strict=True):
            for block, mine in by_block(own.shapes).items():
                theirs = by_block(client.shapes)[block]
                what = f"block {block!r} of x_test" if block else "x_test"
                if mine != theirs and 0 not in theirs:
                    raise WrongValue(
                        f"{what} must have samples of shape {shape_text(theirs)}, as on client {client.name!r}, got "
                        f"{shape_text(mine)}"
                    )
                names, wanted = by_block(own.features)[block], by_block(client.features)[block]
                if names and wanted and names != wanted:
                    raise WrongValue(
                        f"{what} must have the features of client {client.name!r}, {checks.shown(list(wanted))}, got "
                        f"{checks.shown(list(names))}"
                    )
                if not names and by_block(before.features)[block] != wanted:
                    raise WrongValue(
                        f"{what} must be a pandas.DataFrame with named columns, as client {client.name!r} has its "
                        "features in another order than others: whose order x_test has cannot be known"
                    )

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients)

    @overload
    def __getitem__(self, name: str | int) -> Client: ...

    @overload
    def __getitem__(self, name: slice) -> Federation: ...

    def __getitem__(self, name: str | int | slice) -> Client | Federation:
        """The client of this name, or of this number: 0 the first, −1 the last.

        Parameters
        ----------
        name : str, int or slice
            Name, or place in `clients`.

        Returns
        -------
        Client or Federation
            Of several places, such as ``[:2]``, the federation of these clients alone, as `subset` makes it.

        Raises
        ------
        KeyError, IndexError
            Where there is none.
        """
        if isinstance(name, slice):
            if not self.clients[name]:
                raise IndexError(f"no clients {name.start}:{name.stop}:{name.step}; there are {len(self)}")
            return altered(self, clients=self.clients[name])
        if isinstance(name, Integral) and not isinstance(name, bool):
            if not -len(self) <= name < len(self):
                raise IndexError(f"no client number {name}; there are {len(self)}, the first has number 0")
            return self.clients[int(name)]
        if found := [client for client in self.clients if client.name == name]:
            return found[0]
        raise UnknownName(f"no client {checks.shown(name)}; there are {checks.shown([c.name for c in self.clients])}")

    def specs(self) -> list[Spec]:
        """One `Spec` per client, in the order of `clients`.

        Returns
        -------
        list of Spec
            What a method is told of each client. `Spec.class_counts` is empty for a regression.
        """
        C, found = self.n_classes, []
        for c in self.clients:
            counts = tuple(torch.bincount(c.y_train, minlength=C).tolist()) if C else ()
            found.append(Spec(c.name, c.shapes, c.n_train, C, counts, len(self), self.task, c.features))
        return found

    def server_spec(self) -> Spec:
        """The spec of a holder of the federation's own test data: no training samples, all blocks.

        Returns
        -------
        Spec
            As `specs` has them of clients.
        """
        counts = (0,) * self.n_classes
        return replace(self.specs()[0], name=SERVER, shapes=self.full_shapes, n_train=0, class_counts=counts)

    def subset(self, names: Sequence[str]) -> Federation:
        """The federation of the named clients only, in the order given.

        Parameters
        ----------
        names : sequence of str
            Names of clients, each once.

        Returns
        -------
        Federation
            The number of classes, the information and the test data of the federation itself stay.

        Raises
        ------
        KeyError
            For a name that no client has.
        ValueError
            For no name, or one that comes twice.
        """
        wanted = checks.names("names", names)
        if not wanted or len(set(wanted)) < len(wanted):
            raise WrongValue(f"names must be of at least one client, each once, got {checks.shown(wanted)}")
        return altered(self, clients=tuple(self[name] for name in wanted))

    def to(self, dtype: torch.dtype) -> Federation:
        """The same federation with inputs, and the targets of a regression, of another floating-point type.

        Parameters
        ----------
        dtype : torch.dtype
            Such as ``torch.float64``.

        Returns
        -------
        Federation
            This very one if nothing has to change.

        Raises
        ------
        ValueError
            Naming the client whose numbers exceed the range of that type; for a type that is no floating-point one.
        """
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise WrongValue(f"dtype must be a floating-point type such as torch.float64, got {dtype!r}")
        own = () if self.x_test is None else ARRAYS[2:]
        data = [*(getattr(self, part) for part in own), *(getattr(c, part) for c in self for part in ARRAYS)]
        if all(t.dtype == dtype for x in data for t in blocks(x) if t.is_floating_point()):
            return self

        def changed(holder: Any, parts: Sequence[str], where: str = "") -> dict[str, Any]:
            old = {part: getattr(holder, part) for part in parts}
            return {p: map_blocks(lambda t, name=where + p: to_dtype(t, dtype, name), x) for p, x in old.items()}

        clients = tuple(altered(c, **changed(c, ARRAYS, f"client {c.name!r}: ")) for c in self)
        return altered(self, clients=clients, **changed(self, own))

    def describe(self) -> pd.DataFrame:
        """A table with one row per client: shape, training and test samples, and what its training labels are.

        Returns
        -------
        pandas.DataFrame
            Columns ``client``, ``shape``, ``n_train``, ``n_test``; then ``classes`` and ``rarest_class_n``, or, for a
            regression, ``y_mean`` and ``y_sd`` of the training targets.
        """
        rows = []
        for c, spec in zip(self.clients, self.specs(), strict=True):
            row = {"client": c.name, "shape": shape_text(c.shapes), "n_train": c.n_train, "n_test": c.n_test}
            if self.task == "regression":
                row |= {"y_mean": float(c.y_train.mean()), "y_sd": float(c.y_train.std(correction=0))}
            else:
                rarest = min(n for n in spec.class_counts if n)
                row |= {"classes": " ".join(map(str, spec.classes)), "rarest_class_n": rarest}
            rows.append(row)
        return pd.DataFrame(rows)

    def fingerprint(self) -> str:
        """Hex digest of everything that training can see: names, shapes and bytes of all arrays.

        It does not depend on the order of the clients, as results do not.

        Returns
        -------
        str
            32 hexadecimal digits.
        """
        digests = [
            data_digest(client.name, {part: getattr(client, part) for part in ARRAYS}) for client in self.clients
        ]
        if self.x_test is not None:
            digests.append(data_digest(SERVER, {part: getattr(self, part) for part in ARRAYS[2:]}))
        return hashlib.blake2b("".join([str(self.n_classes), *sorted(digests)]).encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        shapes = sorted({shape_text(c.shapes) for c in self.clients})
        some = ", ".join(shapes[:4]) + (f", … {len(shapes)} in all" if len(shapes) > 4 else "")
        n = sum(c.n_train for c in self.clients)
        learned = "real targets" if self.task == "regression" else f"{self.n_classes} classes"
        facts = f"{len(self)} clients, {learned}, {n} training samples, shapes {some}"
        return f"Federation({self.name!r}: {facts})"


ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""What a client holds, by name."""
OWN_TEST_DATA = "(the test data of the federation itself)"
"""What errors call it in the place of a client's name."""


def _numbered(clients: Sequence[Client]) -> list[Client]:
    """Clients whose equal names are told apart by numbers, in their order, where all of these were made up.

    The same data under one name twice are left as they are, to be refused.
    """
    counted = list(clients)
    for name in dict.fromkeys(client.name for client in clients if isinstance(client.name, MadeName)):
        mine = {place: client for place, client in enumerate(clients) if client.name == name}
        if len(mine) == 1 or not all(isinstance(client.name, MadeName) for client in mine.values()):
            continue
        if len({data_digest("", {part: getattr(c, part) for part in ARRAYS}) for c in mine.values()}) < len(mine):
            continue
        for number, (place, client) in enumerate(mine.items(), 1):
            counted[place] = altered(client, name=f"{name} ({number})")
        warn(
            f"{len(mine)} clients were all called {name!r} by what read them; they are now "
            f"{' and '.join(repr(counted[place].name) for place in mine)}, in the order given. Name them yourself "
            "(datasets.eeg.trials(…, name='anna')), and leave one out if it is the same person twice"
        )
    return counted


def _warn_of_classes(clients: Sequence[Client], n_classes: int, counted: bool) -> None:
    """Warn of classes that are rarely meant; `counted` where their number was read off the largest label."""
    held = sorted({c for client in clients for c in client.y_train.unique().tolist()})
    if counted and (lost := n_classes - len(held)):
        some = [c for c, _ in zip((c for c in range(n_classes) if c not in set(held)), range(3), strict=False)]
        warn(
            f"the largest label is {held[-1]}, so there are {n_classes} classes, but nobody has training samples of "
            f"{lost} of them ({', '.join(map(str, some))}{', …' * (lost > 3)}): number the classes 0 … C−1, as "
            "Federation.from_arrays does, or say n_classes if that is meant"
        )
    if len(held) == 1 and (counted or n_classes == 1 or len(clients) > 1):
        warn(f"all training samples are of one class ({held[0]}): there is nothing to be told apart")
    unseen = {c.name: sorted(set(c.y_test.tolist()) - set(c.y_train.tolist())) for c in clients}
    if found := [(name, classes) for name, classes in unseen.items() if classes]:
        (name, classes), others = found[0], len(found) - 1
        have = "client also has" if others == 1 else "clients also have"
        more = f"; {others} other {have} such classes" if others else ""
        warn(f"client {name!r}: the test set holds classes {classes} that the training set lacks{more}")
