"""What one client holds, and what others may know of it: inputs, labels, and the names of its features."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hetfl_core import checks, columns
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.inputs import Inputs, blocks, by_block, map_blocks, shape_text
from hetfl_core.settings import Hinting

T = TypeVar("T")

Kind = Literal["classification", "regression"]
"""What a federation learns: labels among C classes, or real numbers."""


class FederationWarning(UserWarning):
    """Data that is legal but rarely meant."""


class MadeName(str):
    """A client's name that a loader made up, as nobody gave one: where two clash, a federation numbers them."""


def warn(text: str) -> None:
    """Give a `FederationWarning` that points to the call from outside this package."""
    warnings.warn(text, FederationWarning, stacklevel=1 + checks.own_calls())


@dataclass(frozen=True)
class Spec:
    """What the server may know of a client, and all that a method is told of it before training.

    Parameters
    ----------
    name : str
        Name of the client.
    shapes : tuple of int, or dict of str to tuple of int
        True shape of one input sample (of each block, where inputs are named blocks), e.g. ``(17,)``.
    n_train : int
        Number of training samples.
    n_classes : int
        Number of classes C of the federation; 0 for a regression.
    class_counts : tuple of int
        Training samples of each class, length C.
    n_clients : int
        Number of clients b of the federation.
    task : {"classification", "regression"}
        What the federation learns.
    features : tuple of str, or dict of str to tuple of str, optional
        Names of the client's features (of each block), as `Client` has them.
    """

    name: str
    shapes: Any
    n_train: int
    n_classes: int
    class_counts: tuple[int, ...]
    n_clients: int
    task: Kind = "classification"
    features: Any = None

    @property
    def outputs(self) -> int:
        """Outputs of a head: C logits, or the one predicted number of a regression."""
        return 1 if self.task == "regression" else self.n_classes

    @property
    def classes(self) -> tuple[int, ...]:
        r"""The classes that the client holds, :math:`\mathcal{Y}_i`."""
        return tuple(c for c, count in enumerate(self.class_counts) if count)

    def of_features(self, features: Any) -> Spec:
        """The same client with its features, and its blocks, in this order (see `in_one_order`).

        Parameters
        ----------
        features : tuple of str, or dict of str to tuple of str, optional
            Names in the new order, by block where inputs are named blocks.

        Returns
        -------
        Spec
        """
        shapes = {block: self.shapes[block] for block in features} if isinstance(features, Mapping) else self.shapes
        return replace(self, shapes=shapes, features=features)


@dataclass(frozen=True, eq=False)
class Client(Hinting):
    r"""The data of one client, which are its own: no array that is changed later changes them.

    Parameters
    ----------
    x_train : array_like, shape (n_train, \*shape), or dict of str to array_like
        Training inputs. `shape` may differ from client to client. With named blocks, each block has n_train rows.
    y_train : array_like, shape (n_train,)
        Training labels in 0 … C−1, or real numbers where the federation is a regression.
    x_test, y_test : array_like, or dict of str to array_like
        Test inputs and labels, likewise; a test set may be empty. Blocks may come in any order, and so may the columns
        of a table. Both inputs are tables, or neither is, unless `features` names those of an array.
    name : str
        Unique name of the client. It keys the client's random numbers.
    features : sequence of str, or dict of str to sequence of str, optional
        Names of the features (of each block that has such). They belong to the entries along the first axis of a
        sample, such as the columns of a table, electrodes or colours. Those of a pandas.DataFrame are its columns. A
        federation brings features of equal names into one order, and methods that average what is learned of features
        average those of one name only.
    prepare : object, optional
        What makes inputs of later rows (`rows`). `Federation.from_frame` fits it on the client's training rows.
    groups : sequence, shape (n_train,), optional
        Whose each training row is, such as a number of the patient. Rows of one group stay together, over all clients,
        where validation rows are cut from training rows (`hetfl_core.tune`). They never leave the client.

    Raises
    ------
    ValueError, TypeError
        Naming the client and the argument: what is no array of real numbers, and names that are no names, occur twice,
        or are not one for each feature. A column that was called ``Unnamed: 0`` by pandas is the index of a table that
        was written with it, and no feature.
    """

    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    name: str
    features: Any = None
    prepare: Any = None
    groups: Any = None

    def __post_init__(self) -> None:
        names = self._names()
        made: dict[str, Any] = {"x_train": self._inputs("x_train", names), "y_train": self._labels("y_train")}
        made["x_test"] = made["x_train"] if self.x_test is self.x_train else self._inputs("x_test", names)
        made["y_test"] = made["y_train"] if self.y_test is self.y_train else self._labels("y_test")
        if self.groups is not None:
            given = checks.sequence(f"client {self.name!r}: groups", self.groups)
            if len(given) != len(made["y_train"]):
                raise WrongValue(
                    f"client {self.name!r}: groups must say whose each of the {len(made['y_train'])} training rows is, "
                    f"got {len(given)}"
                )
            made["groups"] = np.array([columns.group_name(value) for value in given], dtype=object)
        self._check_tables()
        for argument, value in (made | {"features": names}).items():
            object.__setattr__(self, argument, value)
        for block, own in by_block(names).items():
            x = self.x_train[block] if isinstance(self.x_train, Mapping) else self.x_train
            if own is not None and len(own) != x.shape[1]:
                raise WrongValue(
                    f"client {self.name!r}: features must name the {x.shape[1]} features of x_train"
                    f"{f' in block {block!r}' if block else ''}, got {len(own)} names {checks.shown(list(own))}"
                )

    def _check_tables(self) -> None:
        """Refuse a table beside an array: which of the array's columns is which cannot be known."""
        given = {"x_train": by_block(self.x_train), "x_test": by_block(self.x_test)}
        told = self.features if isinstance(self.features, Mapping) else {"": self.features}
        for block in given["x_train"]:
            held = {name: x[block] for name, x in given.items() if block in x}
            kinds = {name: type(x) for name, x in held.items() if (x.shape[0] if hasattr(x, "shape") else len(x))}
            tables = [name for name, kind in kinds.items() if issubclass(kind, pd.DataFrame)]
            if len(tables) != 1 or len(kinds) != 2 or told.get(block) is not None:
                continue
            (array,) = kinds.keys() - {*tables}
            raise WrongValue(
                f"client {self.name!r}: {array}{f' of block {block!r}' if block else ''} must be a table "
                f"(pandas.DataFrame), as {tables[0]} is, got a {kinds[array].__name__}, which does not say which of "
                "its columns is which"
            )

    def _names(self) -> Any:
        """The features' names, of each block where there are blocks; None where there are none."""
        where = f"client {self.name!r}: features"
        if not isinstance(self.x_train, Mapping):
            return _names_of(self.x_train, self.features, where)
        given = {} if self.features is None else checks.mapping(where, self.features)
        if not self.x_train:
            raise WrongValue(f"client {self.name!r}: x_train must hold at least one block, got {{}}")
        if unknown := [block for block in given if block not in self.x_train]:
            raise WrongValue(f"{where} must be named for blocks among {list(self.x_train)}, got {unknown[0]!r}")
        return {
            block: _names_of(x, given.get(block), f"{where} of block {block!r}") for block, x in self.x_train.items()
        }

    def _inputs(self, argument: str, names: Any) -> Inputs:
        """The inputs as tensors of the client's own, blocks and columns in the order of these names."""
        x, where = getattr(self, argument), f"client {self.name!r}: {argument}"
        if not isinstance(x, Mapping):
            return _input(x, None if isinstance(names, Mapping) else names, where)
        known = names if isinstance(names, Mapping) and names.keys() == x.keys() else dict.fromkeys(x)
        return {block: _input(x[block], own, where) for block, own in known.items()}

    def _labels(self, argument: str) -> Tensor:
        value, where = getattr(self, argument), f"client {self.name!r}: {argument}"
        y = _tensor(value, where)
        if y.dim() != 1:
            raise WrongValue(f"{where} must have shape (n,), got {tuple(y.shape)}")
        if y.is_complex():
            raise WrongType(_no_complex(where, y))
        return y if y.is_floating_point() else y.to(torch.int64)

    def for_task(self, task: Kind) -> Client:
        """The same client with labels of the type that the task has: integers, or floating-point numbers.

        Parameters
        ----------
        task : {"classification", "regression"}

        Returns
        -------
        Client
            Labels are int64 for a classification; for a regression integers become float32.

        Raises
        ------
        TypeError
            For labels of a classification that are not finite whole numbers.
        ValueError
            For targets of a regression that are not finite.
        """
        old = {argument: getattr(self, argument) for argument in ("y_train", "y_test")}
        return altered(self, **{key: _for_task(task, y, f"client {self.name!r}: {key}") for key, y in old.items()})

    def of_features(self, features: Any) -> Client:
        """The same client with these of its features, in this order: names, or a dict of names by block.

        Blocks that the dict does not name are left out, and all features of a block stay where it has None.

        Parameters
        ----------
        features : sequence of str, or dict of str to sequence of str, optional
            All of them the client's own.

        Returns
        -------
        Client
        """
        if list(by_block(features).items()) == list(by_block(self.features).items()):
            return self

        def chosen(x: Any) -> Any:
            if not isinstance(features, Mapping):
                return columns_of(x, self.features, features)
            return {block: columns_of(x[block], self.features[block], names) for block, names in features.items()}

        return altered(self, x_train=chosen(self.x_train), x_test=chosen(self.x_test), features=features)

    def rows(self, frame: pd.DataFrame) -> Inputs:
        """Rows of a table as this client's inputs: prepared as its training rows were, features found by name.

        Parameters
        ----------
        frame : pandas.DataFrame
            With the columns that the client's features were made of, in any order.

        Returns
        -------
        Tensor, or dict of str to Tensor
            As `x_test`. A feature that a prepared client never had, of a federation that was `filled`, is 0.

        Raises
        ------
        ValueError
            For a client whose features have no names and that prepares no tables; naming the column, for one that is
            not there, and for what its preparation refuses.
        """
        wanted = [name for own in by_block(self.features).values() for name in own or ()]
        if self.prepare is not None:
            made = self.prepare.transform(frame, wanted or None)
        elif wanted:
            made = numbers_by_name(frame, wanted, f"client {self.name!r}")
        else:
            raise WrongValue(f"client {self.name!r}: features must have names, by which rows of a table are found")
        if self.features is None:
            return torch.tensor(made.to_numpy(float), dtype=self.x_train.dtype)

        def of(x: Tensor, names: Sequence[str] | None) -> Tensor:
            found = made.reindex(columns=list(names or ()), fill_value=0.0)
            return torch.tensor(found.to_numpy(float), dtype=x.dtype)

        return map_blocks(of, self.x_train, self.features)

    @property
    def shapes(self) -> Any:
        """Shape of one input sample, or of one sample of each named block."""
        return map_blocks(lambda x: tuple(x.shape[1:]), self.x_train)

    def __repr__(self) -> str:
        of = f"{self.n_train} training and {self.n_test} test samples of shape {shape_text(self.shapes)}"
        return f"Client({self.name!r}: {of})"

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        return len(self.y_train)

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return len(self.y_test)


def altered(thing: T, **fields: Any) -> T:
    """The same object with other fields, which are taken as they are: not checked again, and not copied again.

    Parameters
    ----------
    thing : object
        A dataclass, which stays as it is.
    **fields
        New values of fields.

    Returns
    -------
    object
        A shallow copy.
    """
    new = copy.copy(thing)
    for name, value in fields.items():
        object.__setattr__(new, name, value)
    return new


# --- names of features ----------------------------------------------------------------------------------------------

INDEX = re.compile(r"(Unnamed: \d+.*)?")
"""Names that pandas gives columns without one, such as the index of a table that was written with it."""


def _names_of(x: Any, given: Any, where: str) -> tuple[str, ...] | None:
    """The names that are given, or those of the columns of a table."""
    found = [str(name) for name in x.columns] if isinstance(x, pd.DataFrame) else None
    names = found if given is None else checks.sequence(where, given)
    if names is None:
        return None
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise WrongType(f"{where} must be texts, got {checks.shown(wrong[0])} of type {type(wrong[0]).__name__}")
    if nameless := [name for name in names if INDEX.fullmatch(name)]:
        raise WrongValue(
            f"{where}: column {nameless[0]!r} has no name of its own, as the index of a table that was written with "
            "it: leave it out (to_csv(index=False), read_csv(index_col=0)), or name it if it is a feature"
        )
    if len(set(names)) < len(names):
        raise WrongValue(f"{where} must have different names, got {max(names, key=names.count)!r} twice")
    if found not in (None, names):
        raise WrongValue(
            f"{where} must be the columns {checks.shown(found)} of the table, got {checks.shown(names)}; leave them "
            "out, or rename the columns"
        )
    return tuple(str(name) for name in names)


def in_one_order(clients: Sequence[T], known: Iterable[Any] = ()) -> list[T]:
    """Clients (or their specs) whose features, where they have the same names, come in the same order; blocks too.

    The order is that of the first client *by name* that has these features, so that it does not depend on the order of
    the clients.

    Parameters
    ----------
    clients : sequence of Client, or of Spec
    known : iterable
        `Client.features` of others, whose order goes before.

    Returns
    -------
    list of Client, or of Spec
        In the order given.
    """
    lead = [*known, *(c.features for c in sorted(clients, key=lambda c: str(c.name)))]  # type: ignore[attr-defined]
    orders: dict[Any, tuple[str, ...]] = {}
    blocks_of: dict[Any, list[str]] = {}
    for own in lead:
        blocks_of.setdefault(frozenset(by_block(own)), list(by_block(own)))
        for block, names in by_block(own).items():
            if names is not None:
                orders.setdefault((block, frozenset(names)), names)

    def ordered(own: Any) -> Any:
        names = {b: own and orders[b, frozenset(own)] for b, own in by_block(own).items()}
        return {b: names[b] for b in blocks_of[frozenset(names)]} if isinstance(own, Mapping) else names[""]

    return [c.of_features(ordered(c.features)) for c in clients]  # type: ignore[attr-defined]


def check_features(specs: Sequence[Spec], what: str, block: str = "") -> None:
    """Refuse to average features by place where clients name others, or name them in another order.

    Parameters
    ----------
    specs : sequence of Spec
        Clients with equally many features, of which some have names.
    what : str
        Who averages what, for the message.
    block : str
        The block that it is about, where inputs are named blocks.

    Warns
    -----
    FederationWarning
        Where only some clients name their features.
    """
    named = [(spec.name, names) for spec in specs if (names := by_block(spec.features).get(block)) is not None]
    for name, names in named:
        first, expected = named[0]
        if names != expected:
            here = [n for n in names if n not in expected]
            differ = _apart((first, expected), (name, names))
            if not here:
                differ = f"{first!r} has {checks.shown(list(expected))}, {name!r} has {checks.shown(list(names))}"
            some = len(here) < len(names) and not block
            common = " or keep to those that all have (Federation.of_common_features)" * some
            raise WrongValue(
                f"{what}, so all clients must have the same features in the same order, but {differ}. Use a method "
                f"that keeps φ local (Local, HetFedRep, FLIC){common}."
            )
    if named and len(named) < len(specs):
        without = next(spec.name for spec in specs if by_block(spec.features).get(block) is None)
        warn(
            f"{what}, but client {without!r} does not say which those are: its features are taken for those of client "
            f"{named[0][0]!r}, {checks.shown(list(named[0][1]))}, in this order (Client(features=…))"
        )


def _apart(*two: tuple[str, Sequence[str]]) -> str:
    """Which features only one of two clients has."""
    (first, expected), (name, names) = two
    here, there = ([n for n in a if n not in b] for a, b in ((names, expected), (expected, names)))
    return ", ".join(f"only {who!r} has {checks.shown(had)}" for who, had in ((first, there), (name, here)) if had)


def other_columns(first: Spec, other: Spec) -> str:
    """Text on two clients whose tables have different columns: the views that there are, and which columns these are.

    Parameters
    ----------
    first, other : Spec

    Returns
    -------
    str
        Empty where features are no names of columns.
    """
    if not isinstance(first.features, tuple) or not isinstance(other.features, tuple):
        return ""
    return (
        f" (Federation.of_common_columns, filled, in_blocks): {_apart(*((s.name, s.features) for s in (first, other)))}"
    )


def columns_of(x: Any, names: Sequence[str] | None, wanted: Sequence[str] | None) -> Any:
    """The columns of these names, of an array whose columns are named."""
    if wanted is None or names is None or wanted == names:
        return x
    index = {name: i for i, name in enumerate(names)}
    return x[:, [index[name] for name in wanted]]


def numbers_by_name(frame: Any, names: Sequence[str], where: str) -> pd.DataFrame:
    """The columns of these names, which hold numbers without gaps."""
    checks.instance("frame", frame, pd.DataFrame)
    table = frame.rename(columns=str)
    if lost := [name for name in names if name not in table.columns]:
        raise WrongValue(
            f"{where}: the table must have the columns {checks.shown([*names])}, lacks {checks.shown(lost)}"
        )
    table = columns.table(table[[*names]], f"{where}: ")
    for name in names:
        if not pd.api.types.is_numeric_dtype(table[name]) or table[name].isna().any():
            raise WrongValue(f"{where}: column {name!r} must hold numbers, without gaps, in all {len(table)} rows")
    return table


# --- arrays ---------------------------------------------------------------------------------------------------------


def _input(value: Any, names: tuple[str, ...] | None, where: str) -> Tensor:
    """Inputs as a tensor of its own, the columns of a table in the order of the names."""
    if isinstance(value, pd.DataFrame) and names is not None:
        given = [str(name) for name in value.columns]
        if sorted(given) != sorted(names):
            lacks, more = sorted({*names} - {*given}), sorted({*given} - {*names})
            raise WrongValue(f"{where} must have the columns of x_train, lacks {lacks} and has {more} that it has not")
        value = value.iloc[:, [given.index(name) for name in names]]
    if isinstance(value, pd.DataFrame):
        value = columns.only_numbers(value, f"{where}: ")
    x = _tensor(value, where)
    if x.dim() < 2:
        raise WrongValue(f"{where} must have shape (n, ...) with at least 2 axes, got {tuple(x.shape)}")
    if x.is_complex():
        raise WrongType(_no_complex(where, x))
    return x if x.is_floating_point() else x.to(torch.float32)


def _no_complex(where: str, values: Tensor) -> str:
    kind = str(values.dtype).removeprefix("torch.")
    return f"{where} must hold real numbers, got dtype {kind}: make two columns of it, such as real and imaginary part"


def _tensor(value: Any, where: str) -> Tensor:
    """A tensor with memory of its own, of what NumPy takes for an array, of any byte order and stride."""
    value = checks.dense(where, value)
    if isinstance(value, Tensor):
        return value.detach().clone()
    checks.unmasked(where, value)
    if isinstance(value, pd.Series):
        value = columns.of_numbers(value, where)
    try:
        array = np.array(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise WrongValue(f"{where} must be an array in which all samples have one shape: {error}") from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        kinds = sorted({type(entry).__name__ for entry in array.ravel().tolist()})
        raise WrongType(
            f"{where} must hold numbers that torch knows, got dtype {array.dtype} with entries of type "
            f"{', '.join(kinds)}; encode categories as whole numbers, and leave out what is missing"
        ) from error


def _for_task(task: Kind, y: Tensor, where: str) -> Tensor:
    """Labels as integers, or the targets of a regression as floating-point numbers."""
    kind, wanted = (WrongValue, "be finite") if task == "regression" else (WrongType, "hold whole numbers")
    if bad := int((~torch.isfinite(y)).sum()):
        raise kind(f"{where} must {wanted}, got {bad} values that are NaN or infinite")
    if task == "regression":
        return y if y.is_floating_point() else y.to(torch.float32)
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise WrongType(
            f"{where} must hold whole numbers, got dtype {y.dtype}; "
            'a federation with real targets needs task="regression"'
        )
    return y.to(torch.int64)


def to_dtype(t: Tensor, dtype: torch.dtype, where: str) -> Tensor:
    """The tensor in another floating-point type, whose range must suffice; whole numbers as they are.

    Parameters
    ----------
    t : Tensor
    dtype : torch.dtype
    where : str
        What the tensor is called in errors.

    Returns
    -------
    Tensor

    Raises
    ------
    ValueError
        Naming `where`, for numbers beyond the range of the type.
    """
    if not t.is_floating_point():
        return t
    cast = t.to(dtype)
    if not bool(cast.isfinite().all()):
        raise WrongValue(
            f"{where} must lie in the range of {dtype}, ±{torch.finfo(dtype).max:.3g}, got values up to "
            f"{float(t.abs().max()):.3g} in size: scale them down, or use a dtype of wider range"
        )
    return cast


def check_client(client: Client, parts: Sequence[str] = ("train", "test")) -> None:
    """Refuse inputs and labels of different length, inputs that are not finite, and test inputs of another shape.

    Raises
    ------
    ValueError
        Naming the client and the argument.
    """
    where = f"client {client.name!r}"
    if client.n_train == 0:
        raise WrongValue(f"{where}: x_train must hold at least one sample, got an empty training set")
    for part in parts:
        x, y = getattr(client, f"x_{part}"), getattr(client, f"y_{part}")
        for rows in blocks(x):
            if len(rows) != len(y):
                raise WrongValue(
                    f"{where}: x_{part} and y_{part} must have the same length, got {len(rows)} and {len(y)}"
                )
            bad = int((~torch.isfinite(rows)).sum())
            if bad:
                raise WrongValue(f"{where}: x_{part} must be finite, got {bad} values that are NaN or infinite")
    test_shapes = map_blocks(lambda x: tuple(x.shape[1:]), client.x_test)
    if test_shapes != client.shapes:
        raise WrongValue(
            f"{where}: x_test must have the sample shape of x_train, expected {shape_text(client.shapes)}, "
            f"got {shape_text(test_shapes)}"
        )


def check_labels(client: Client, n_classes: int, parts: Sequence[str] = ("train", "test")) -> None:
    """Refuse labels outside 0 … C−1.

    Raises
    ------
    ValueError
        Naming the client and the argument.
    """
    for part in parts:
        y = getattr(client, f"y_{part}")
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= n_classes):
            raise WrongValue(
                f"client {client.name!r}: y_{part} must lie in 0…{n_classes - 1}, got labels from {int(y.min())} to "
                f"{int(y.max())}"
            )
