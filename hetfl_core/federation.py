"""Who holds what: clients, federations, and the padded stacks in which clients are trained together."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.rng import SERVER, numpy_stream

Kind = Literal["classification", "regression"]
"""What a federation learns: labels among C classes, or real numbers."""

MOST_CLASSES = 1_000_000
"""A label beyond is a mistake, such as an identifier: each class is an output of a head, and a count on each client."""

Inputs = Tensor | dict[str, Tensor]
r"""Inputs of a client: one tensor of shape (n, \*shape), or named blocks of such tensors with the same n."""


def map_blocks(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Apply a function to a tensor, or to each block of a dict of tensors."""
    if isinstance(x, Mapping):
        return {name: function(x[name], *(other[name] for other in others)) for name in x}
    return function(x, *others)


def blocks(x: Inputs) -> list[Tensor]:
    """The blocks of an input, a list of one tensor where there are no named ones."""
    return list(x.values()) if isinstance(x, Mapping) else [x]


def as_params(name: str, x: Inputs) -> dict[str, Tensor]:
    """An input under the name, or its blocks each under ``"<name>.<block>"``: as messages and clients hold tensors."""
    return {f"{name}.{block}": t for block, t in x.items()} if isinstance(x, Mapping) else {name: x}


def from_params(name: str, params: Mapping[str, Tensor]) -> Inputs:
    """What `as_params` put among other tensors."""
    if name in params:
        return params[name]
    return {key.removeprefix(f"{name}."): t for key, t in params.items() if key.startswith(f"{name}.")}


@dataclass(frozen=True)
class Spec:
    """What the server may know of a client, and all that a method is told of it before training.

    Attributes
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
    """

    name: str
    shapes: Any
    n_train: int
    n_classes: int
    class_counts: tuple[int, ...]
    n_clients: int
    task: Kind = "classification"

    @property
    def outputs(self) -> int:
        """Outputs of a head: C logits, or the one predicted number of a regression."""
        return 1 if self.task == "regression" else self.n_classes

    @property
    def classes(self) -> tuple[int, ...]:
        r"""The classes that the client holds, :math:`\mathcal{Y}_i`."""
        return tuple(c for c, count in enumerate(self.class_counts) if count)


@dataclass(frozen=True, eq=False)
class Client:
    r"""The data of one client.

    Parameters
    ----------
    x_train : array_like, shape (n_train, \*shape), or dict of str to array_like
        Training inputs. `shape` may differ from client to client. With named blocks, each block has n_train rows.
    y_train : array_like, shape (n_train,)
        Training labels in 0 … C−1, or real numbers where the federation is a regression.
    x_test, y_test
        Test inputs and labels, likewise; a test set may be empty.
    name : str
        Unique name of the client. It keys the client's random numbers.
    """

    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    name: str

    def __post_init__(self) -> None:
        for argument in ("x_train", "x_test"):
            object.__setattr__(self, argument, map_blocks(self._inputs(argument), getattr(self, argument)))
        for argument in ("y_train", "y_test"):
            object.__setattr__(self, argument, self._labels(argument))

    def _inputs(self, argument: str) -> Callable[[Any], Tensor]:
        def convert(value: Any) -> Tensor:
            x = _tensor(value, f"client {self.name!r}: {argument}")
            if x.dim() < 2:
                raise ValueError(
                    f"client {self.name!r}: {argument} must have shape (n, ...) with at least 2 axes, "
                    f"got {tuple(x.shape)}"
                )
            if x.is_complex() or x.dtype == torch.bool:
                raise TypeError(f"client {self.name!r}: {argument} must hold real numbers, got dtype {x.dtype}")
            return x if x.is_floating_point() else x.to(torch.float32)

        return convert

    def _labels(self, argument: str) -> Tensor:
        y = _tensor(getattr(self, argument), f"client {self.name!r}: {argument}")
        if y.dim() != 1:
            raise ValueError(f"client {self.name!r}: {argument} must have shape (n,), got {tuple(y.shape)}")
        if y.is_complex():
            raise TypeError(f"client {self.name!r}: {argument} must hold real numbers, got dtype {y.dtype}")
        return y if y.is_floating_point() else y.to(torch.int64)

    def for_task(self, task: Kind) -> Client:
        """The same client with labels of the type that the task has: integers, or floating-point numbers."""
        convert = _as_targets if task == "regression" else _as_classes
        old = {argument: getattr(self, argument) for argument in ("y_train", "y_test")}
        new: dict[str, Any] = {key: convert(y, f"client {self.name!r}: {key}") for key, y in old.items()}
        return self if all(new[argument] is old[argument] for argument in old) else replace(self, **new)

    @property
    def shapes(self) -> Any:
        """Shape of one input sample, or of one sample of each named block."""
        return map_blocks(lambda x: tuple(x.shape[1:]), self.x_train)

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        return len(self.y_train)

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return len(self.y_test)


def _tensor(value: Any, where: str) -> Tensor:
    """A tensor of what NumPy takes for an array, of any byte order and stride."""
    if isinstance(value, Tensor):
        return value
    checks.unmasked(where, value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{where} must be an array in which all samples have one shape: {error}") from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    plain = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    try:
        return torch.as_tensor(array if plain else array.copy())
    except TypeError as error:
        kinds = sorted({type(entry).__name__ for entry in array.ravel().tolist()})
        raise TypeError(
            f"{where} must hold numbers that torch knows, got dtype {array.dtype} with entries of type "
            f"{', '.join(kinds)}; encode categories as whole numbers, and leave out what is missing"
        ) from error


def _as_classes(y: Tensor, where: str) -> Tensor:
    bad = int((~torch.isfinite(y)).sum())
    if bad:
        raise TypeError(f"{where} must hold whole numbers, got {bad} values that are NaN or infinite")
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise TypeError(
            f"{where} must hold whole numbers, got dtype {y.dtype}; "
            'a federation with real targets needs task="regression"'
        )
    return y.to(torch.int64)


def _as_targets(y: Tensor, where: str) -> Tensor:
    bad = int((~torch.isfinite(y)).sum())
    if bad:
        raise ValueError(f"{where} must be finite, got {bad} values that are NaN or infinite")
    return y if y.is_floating_point() else y.to(torch.float32)


def _cast(t: Tensor, dtype: torch.dtype, where: str) -> Tensor:
    """The tensor in another floating-point type, whose range must suffice; whole numbers as they are."""
    if not t.is_floating_point():
        return t
    cast = t.to(dtype)
    if not bool(cast.isfinite().all()):
        raise ValueError(
            f"{where} must lie in the range of {dtype}, ±{torch.finfo(dtype).max:.3g}, got values up to "
            f"{float(t.abs().max()):.3g} in size: scale them down, or use a dtype of wider range"
        )
    return cast


class FederationWarning(UserWarning):
    """Data that is legal but rarely meant."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that learn together, checked once, here.

    Parameters
    ----------
    clients : sequence of Client
        At least one, with different names.
    n_classes : int, optional
        Number of classes C; by default one more than the largest label. 0 for a regression.
    name : str
        What data this is; written into records.
    info : dict
        Facts for the reader of a record: settings, sources, class names, whether the data are ``simulated``, and
        whether they only ``stand_in`` for data that cannot be had.
    task : {"classification", "regression"}
        Labels in 0 … C−1, or real targets, which are then finite floating-point numbers.
    x_test, y_test : optional
        Test data of the federation itself, as a client's, on which the server's model is measured in the place of the
        clients' test data: with named blocks samples that have all blocks, of the shapes that the clients' have.

    Raises
    ------
    ValueError
        Naming the client and the argument, what was expected and what was found: no client, a repeated name, an
        empty training set, x and y of different length, non-finite values, labels outside 0 … C−1, a test set of
        another shape than the training set. For a number of classes that is not whole.
    TypeError
        Where labels of a classification are not whole numbers.

    Warns
    -----
    FederationWarning
        Where a client's test set holds a class that its training set lacks.
    """

    clients: tuple[Client, ...]
    n_classes: int = 0
    name: str = "federation"
    info: Mapping[str, Any] = field(default_factory=dict)
    task: Kind = "classification"
    x_test: Any = None
    y_test: Any = None

    def __init__(
        self,
        clients: Sequence[Client],
        n_classes: int | None = None,
        name: str = "federation",
        info: Mapping[str, Any] | None = None,
        task: Kind = "classification",
        x_test: Any = None,
        y_test: Any = None,
    ) -> None:
        if not isinstance(task, str) or task not in ("classification", "regression"):
            raise ValueError(f"task must be 'classification' or 'regression', got {task!r}")
        clients = tuple(checks.several("clients", clients))
        for client in clients:
            checks.instance("clients", client, Client)
        checks.words("name", name)
        checks.instance("info", {} if info is None else info, Mapping)
        clients = tuple(client.for_task(task) for client in clients)
        if not clients:
            raise ValueError("clients: a federation needs at least one client, got none")
        if n_classes is None:
            n_classes = _count_classes(clients) if task == "classification" else 0
        if not isinstance(n_classes, Real) or isinstance(n_classes, bool) or not float(n_classes).is_integer():
            raise ValueError(f"n_classes must be a whole number, got {checks.shown(n_classes)}")
        if n_classes > MOST_CLASSES:
            raise ValueError(
                f"n_classes, one more than the largest label in y_train unless it is given, must be at most "
                f"{MOST_CLASSES}, got {int(n_classes)}: number the classes 0 … C−1"
            )
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "n_classes", int(n_classes))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "info", dict(info or {}))
        object.__setattr__(self, "task", task)
        if (x_test is None) != (y_test is None):
            raise ValueError(f"x_test and y_test go together, got only {'y_test' if x_test is None else 'x_test'}")
        own = None if x_test is None else Client(x_test, y_test, x_test, y_test, OWN_TEST_DATA).for_task(task)
        object.__setattr__(self, "x_test", None if own is None else own.x_test)
        object.__setattr__(self, "y_test", None if own is None else own.y_test)
        self._check()
        if own is not None:
            self._check_own(own)

    @classmethod
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
    ) -> Federation:
        """The federation of a table with a row per sample, a column that says whose it is, and one to be predicted.

        All other columns are features. A column that has no value at all in the rows of a client is a feature that this
        client does not have, and is left out there; so clients may end up with different ones.

        Parameters
        ----------
        frame : pandas.DataFrame
        client, target : str
            Columns: the name of the client, and the label (or the number, for a regression).
        test_size, seed, task, name
            As for `from_arrays`.

        Returns
        -------
        Federation
            ``info["features"]`` has the columns of each client, in the order of its inputs.

        Raises
        ------
        ValueError
            Naming the column, and the client where it is about one: a column that is not there, holds no numbers, or
            lacks single values; and what `from_arrays` refuses.
        """
        _check_columns(frame, client, target)
        parts = {str(who): rows for who, rows in frame.groupby(client, sort=False, observed=True)}
        features = {who: _features(who, rows.drop(columns=[client, target])) for who, rows in parts.items()}
        arrays = {who: (features[who].to_numpy(float), rows[target].to_numpy()) for who, rows in parts.items()}
        made = cls.from_arrays(arrays, test_size=test_size, seed=seed, task=task, name=name)
        columns = {who: [str(column) for column in x.columns] for who, x in features.items()}
        return replace(made, info={**made.info, "features": columns})

    @classmethod
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

        Parameters
        ----------
        arrays : dict of str to (array_like, array_like)
            Inputs, shape (n, \*shape), and labels, shape (n,), of each client by its name. Labels may be text or any
            numbers: they are counted 0 … C−1 in their order over all clients, and ``info["classes"]`` keeps them.
        test_size : float
            Share of each client's samples that becomes its test set, in [0, 1); 0 for no test sets. Every class is
            split in this proportion (stratified).
        seed : int
            Of the split; each client has a stream of its own, so that it does not matter who else there is.
        task : {"classification", "regression"}
        name : str

        Raises
        ------
        ValueError
            Naming the client: for what `Federation` refuses, missing labels, labels that look like a regression's, and
            samples too few to be split.
        """
        if not isinstance(arrays, Mapping) or not arrays:
            raise ValueError(f"arrays must map at least one client's name to its (x, y), got {arrays!r}")
        if not isinstance(test_size, int | float | np.number) or not 0 <= test_size < 1:
            raise ValueError(f"test_size must be a share of the samples in [0, 1), got {test_size!r}")
        pairs = {who: _pair(who, pair) for who, pair in arrays.items()}
        classes, coded = _coded({who: y for who, (_, y) in pairs.items()}, task)
        clients = []
        for who, (x, _) in pairs.items():
            train, test = _split(who, coded[who], float(test_size), seed, task)
            clients.append(Client(x[train], coded[who][train], x[test], coded[who][test], who))
        settings = {"test_size": float(test_size), "seed": seed}
        info = {"settings": settings, **({"classes": classes} if task == "classification" else {})}
        return cls(clients, len(classes) if task == "classification" else 0, name, info, task)

    def _check(self) -> None:
        if self.task == "regression" and self.n_classes:
            raise ValueError(f"n_classes must be 0 or None for a regression, got {self.n_classes}")
        if self.task == "classification" and self.n_classes < 1:
            raise ValueError(f"n_classes must be at least 1, got {self.n_classes}")
        seen: set[str] = set()
        for client in self.clients:
            if not isinstance(client.name, str) or client.name in ("", SERVER):
                raise ValueError(f"client names must be non-empty strings other than {SERVER!r}, got {client.name!r}")
            if client.name in seen:
                raise ValueError(f"client names must be unique, got {client.name!r} twice")
            seen.add(client.name)
            if _names(client) != _names(self.clients[0]):
                raise ValueError(
                    f"client {client.name!r}: x_train must have the blocks {_names(self.clients[0])} of client "
                    f"{self.clients[0].name!r}, got {_names(client)}; "
                    "a block that a client lacks is an empty one, of shape (n, 0)"
                )
            _check_client(client)
            if self.task == "classification":
                _check_labels(client, self.n_classes)
        if self.task == "classification":
            _warn_of_unseen_classes(self.clients)

    def _check_own(self, own: Client) -> None:
        """Refuse test data of the federation's own that a model of all that clients hold does not take."""
        if _names(own) != _names(self.clients[0]):
            raise ValueError(f"x_test must have the blocks {_names(self.clients[0])} of the clients, got {_names(own)}")
        _check_client(own, ("test",))
        if self.task == "classification":
            _check_labels(own, self.n_classes, ("test",))
        for client in self.clients:
            for block, (mine, theirs) in _both(own.shapes, client.shapes).items():
                if mine != theirs and 0 not in theirs:
                    what = f"block {block!r} of x_test" if block else "x_test"
                    raise ValueError(
                        f"{what} must have samples of shape {_shape_text(theirs)}, as on client {client.name!r}, got "
                        f"{_shape_text(mine)}"
                    )

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients)

    def __getitem__(self, name: str | int) -> Client:
        if isinstance(name, int):
            return self.clients[name]
        for client in self.clients:
            if client.name == name:
                return client
        raise KeyError(f"no client {name!r}; there are {[c.name for c in self.clients][:10]} …")

    def specs(self) -> list[Spec]:
        """One `Spec` per client, in the order of `clients`."""
        return [
            Spec(
                name=c.name,
                shapes=c.shapes,
                n_train=c.n_train,
                n_classes=self.n_classes,
                class_counts=_class_counts(c.y_train, self.n_classes),
                n_clients=len(self),
                task=self.task,
            )
            for c in self.clients
        ]

    @property
    def full_shapes(self) -> Any:
        """Shape of a sample that has all blocks; of plain inputs that of the first client."""
        first = self.clients[0].shapes
        if not isinstance(first, Mapping):
            return first
        held = {block: [c.shapes[block] for c in self.clients if 0 not in c.shapes[block]] for block in first}
        return {block: max(shapes, default=first[block]) for block, shapes in held.items()}

    def server_spec(self) -> Spec:
        """What `specs` are of clients, of the federation's own test data: no training samples, all blocks."""
        return replace(
            self.specs()[0],
            name=SERVER,
            shapes=self.full_shapes,
            n_train=0,
            class_counts=(0,) * self.n_classes,
        )

    def of_blocks(self, names: Sequence[str]) -> Federation:
        """The same clients with some of their named blocks; the test data of the federation itself likewise.

        Raises
        ------
        ValueError
            For a name that no block has, and where inputs are not named blocks.
        """
        wanted, known = list(checks.several("names", names)), self._block_names()
        for name in wanted:
            checks.choice("names", name, tuple(known))
        return self._with_inputs(lambda x: {name: x[name] for name in known if name in wanted})

    def of_common_blocks(self) -> Federation:
        """The same clients with the blocks that all of them hold: what a method that averages everything can be run on.

        Raises
        ------
        ValueError
            Where there is no such block.
        """
        common = [block for block in self._block_names() if all(0 not in c.shapes[block] for c in self.clients)]
        if not common:
            raise ValueError("there is no block that all clients hold; fill in what is missing (`filled`)")
        return self.of_blocks(common)

    def filled(self) -> Federation:
        """The same clients with zeros in the place of the blocks that they lack, in the shape that others have."""
        shapes = self.full_shapes
        self._block_names()

        def fill(x: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {b: t if 0 not in t.shape[1:] else t.new_zeros(len(t), *shapes[b]) for b, t in x.items()}

        return self._with_inputs(fill)

    def _block_names(self) -> list[str]:
        names = _names(self.clients[0])
        if names is None:
            raise ValueError(f"the inputs must be named blocks, but client {self.clients[0].name!r} has one tensor")
        return names

    def _with_inputs(self, change: Callable[[Any], Any]) -> Federation:
        """With all inputs changed, those of the federation's own test data too."""
        with warnings.catch_warnings():  # what there was to warn of was said when this federation was made
            warnings.simplefilter("ignore", FederationWarning)
            clients = [replace(c, x_train=change(c.x_train), x_test=change(c.x_test)) for c in self.clients]
            x_test = None if self.x_test is None else change(self.x_test)
            return replace(self, clients=clients, x_test=x_test)  # type: ignore[arg-type]

    def subset(self, names: Sequence[str]) -> Federation:
        """The federation of the named clients only, in the order given."""
        wanted = checks.several("names", names)
        for name in wanted:
            checks.words("names", name)
        return replace(self, clients=[self[name] for name in wanted])  # type: ignore[arg-type]

    def to(self, dtype: torch.dtype) -> Federation:
        """The same federation with inputs, and the targets of a regression, of another floating-point type.

        Raises
        ------
        ValueError
            Naming the client whose numbers exceed the range of that type; for a type that is no floating-point one.
        """
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type such as torch.float64, got {dtype!r}")
        parts = ("x_train", "y_train", "x_test", "y_test")
        own = [] if self.x_test is None else [self.x_test, self.y_test]
        data = [*own, *(getattr(c, part) for c in self for part in parts)]
        if all(t.dtype == dtype for x in data for t in blocks(x) if t.is_floating_point()):
            return self

        def cast(holder: Client | Federation, part: str) -> Any:
            where = f"client {holder.name!r}: {part}" if isinstance(holder, Client) else part
            return map_blocks(lambda t: _cast(t, dtype, where), getattr(holder, part))

        clients = [replace(c, **{part: cast(c, part) for part in parts}) for c in self]
        test = {part: cast(self, part) for part in parts[2:]} if own else {}
        return replace(self, clients=clients, **test)  # type: ignore[arg-type]

    def describe(self) -> pd.DataFrame:
        """A table with one row per client: shape, training and test samples, and what its training labels are.

        Returns
        -------
        pandas.DataFrame
            Columns ``client``, ``shape``, ``n_train``, ``n_test``; then ``classes`` and ``rarest_class_n``, or, for a
            regression, ``y_mean`` and ``y_sd`` of the training targets.
        """
        rows = []
        for client, spec in zip(self.clients, self.specs(), strict=True):
            rows.append(
                {
                    "client": client.name,
                    "shape": _shape_text(client.shapes),
                    "n_train": client.n_train,
                    "n_test": client.n_test,
                    **_describe_labels(client.y_train, spec),
                }
            )
        return pd.DataFrame(rows)

    def fingerprint(self) -> str:
        """Hex digest of everything that training can see: names, shapes and bytes of all arrays.

        It does not depend on the order of the clients, as results do not.
        """
        parts = ("x_train", "y_train", "x_test", "y_test")
        digests = [_digest(client.name, {part: getattr(client, part) for part in parts}) for client in self.clients]
        if self.x_test is not None:
            digests.append(_digest(SERVER, {part: getattr(self, part) for part in parts[2:]}))
        return hashlib.blake2b("".join([str(self.n_classes), *sorted(digests)]).encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        shapes = sorted({_shape_text(c.shapes) for c in self.clients})
        some = ", ".join(shapes[:4]) + (f", … {len(shapes)} in all" if len(shapes) > 4 else "")
        n = sum(c.n_train for c in self.clients)
        learned = "real targets" if self.task == "regression" else f"{self.n_classes} classes"
        facts = f"{len(self)} clients, {learned}, {n} training samples, shapes {some}"
        return f"Federation({self.name!r}: {facts})"


OWN_TEST_DATA = "(the test data of the federation itself)"
"""What errors call it in the place of a client's name."""


def _digest(who: str, data: Mapping[str, Inputs]) -> str:
    """Of names, shapes and bytes of what one holds."""
    h = hashlib.blake2b(who.encode(), digest_size=16)
    for part, value in data.items():
        names = [(name,) for name in value] if isinstance(value, Mapping) else [()]
        for name, x in zip(names, blocks(value), strict=True):
            h.update(str((part, *name, tuple(x.shape), str(x.dtype))).encode())
            h.update(x.detach().cpu().contiguous().numpy().tobytes())
    return h.hexdigest()


def _both(mine: Any, theirs: Any) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Two shapes, or those of two sets of blocks, side by side; of plain inputs under an empty name."""
    if isinstance(mine, Mapping):
        return {block: (shape, theirs[block]) for block, shape in mine.items()}
    return {"": (mine, theirs)}


def _count_classes(clients: Sequence[Client]) -> int:
    """One more than the largest training label."""
    return 1 + max(int(c.y_train.max()) if c.n_train else 0 for c in clients)


def _class_counts(y: Tensor, n_classes: int) -> tuple[int, ...]:
    """Samples of each class; empty where there are no classes (a regression)."""
    return tuple(torch.bincount(y, minlength=n_classes).tolist()) if n_classes else ()


def _describe_labels(y: Tensor, spec: Spec) -> dict[str, Any]:
    if spec.task == "regression":
        return {"y_mean": float(y.mean()), "y_sd": float(y.std(correction=0))}
    return {"classes": " ".join(map(str, spec.classes)), "rarest_class_n": min(n for n in spec.class_counts if n)}


def _names(client: Client) -> list[str] | None:
    """Names of the client's blocks, None for plain inputs."""
    return list(client.x_train) if isinstance(client.x_train, Mapping) else None


def _shape_text(shapes: Any) -> str:
    if isinstance(shapes, Mapping):
        return ", ".join(f"{name}: {_shape_text(shape)}" for name, shape in shapes.items())
    return "×".join(map(str, shapes))


def _check_client(client: Client, parts: Sequence[str] = ("train", "test")) -> None:
    where = f"client {client.name!r}"
    if client.n_train == 0:
        raise ValueError(f"{where}: x_train must hold at least one sample, got an empty training set")
    for part in parts:
        x, y = getattr(client, f"x_{part}"), getattr(client, f"y_{part}")
        for rows in blocks(x):
            if len(rows) != len(y):
                raise ValueError(
                    f"{where}: x_{part} and y_{part} must have the same length, got {len(rows)} and {len(y)}"
                )
            bad = int((~torch.isfinite(rows)).sum())
            if bad:
                raise ValueError(f"{where}: x_{part} must be finite, got {bad} values that are NaN or infinite")
    test_shapes = map_blocks(lambda x: tuple(x.shape[1:]), client.x_test)
    if test_shapes != client.shapes:
        raise ValueError(
            f"{where}: x_test must have the sample shape of x_train, expected {_shape_text(client.shapes)}, "
            f"got {_shape_text(test_shapes)}"
        )


def _check_labels(client: Client, n_classes: int, parts: Sequence[str] = ("train", "test")) -> None:
    for part in parts:
        y = getattr(client, f"y_{part}")
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= n_classes):
            raise ValueError(
                f"client {client.name!r}: y_{part} must lie in 0…{n_classes - 1}, got labels from {int(y.min())} to "
                f"{int(y.max())}"
            )


def _warn_of_unseen_classes(clients: Sequence[Client]) -> None:
    """One warning, which names the first client and counts the others."""
    unseen = {c.name: sorted(set(c.y_test.tolist()) - set(c.y_train.tolist())) for c in clients}
    if found := [(name, classes) for name, classes in unseen.items() if classes]:
        (name, classes), others = found[0], len(found) - 1
        have = "client also has" if others == 1 else "clients also have"
        more = f"; {others} other {have} such classes" if others else ""
        warnings.warn(
            f"client {name!r}: the test set holds classes {classes} that the training set lacks{more}",
            FederationWarning,
            stacklevel=4,
        )


# --- from a table, or from arrays -----------------------------------------------------------------------------------


def _check_columns(frame: pd.DataFrame, client: str, target: str) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame must be a pandas.DataFrame, got {type(frame).__name__}")
    if client == target:
        raise ValueError(f"client and target must be two columns, got {client!r} for both")
    for argument, column in (("client", client), ("target", target)):
        if column not in frame.columns:
            raise ValueError(f"{argument} must be one of the columns {[*map(str, frame.columns)]}, got {column!r}")
    if not frame.columns.is_unique:
        raise ValueError(
            f"frame must have columns of different names, got {[*frame.columns[frame.columns.duplicated()]]} twice"
        )
    if lost := int(frame[client].isna().sum()):
        raise ValueError(f"column {client!r} must say whose every row is, got {lost} rows without a client")
    names = frame[client].unique()
    if len({str(name) for name in names}) < len(names):
        raise ValueError(
            f"column {client!r} must have one name per client, got names that read alike: {sorted(map(repr, names))}"
        )


def _features(who: str, columns: pd.DataFrame) -> pd.DataFrame:
    """The features that a client has: the columns that are not wholly empty in its rows."""
    own = columns.dropna(axis=1, how="all")
    if own.columns.empty:
        raise ValueError(f"client {who!r}: every feature is missing, expected at least one column with values")
    for column, values in own.items():
        if not pd.api.types.is_numeric_dtype(values):
            raise ValueError(
                f"client {who!r}: column {column!r} must hold numbers, got dtype {values.dtype}; encode categories "
                "first, for instance by pandas.get_dummies"
            )
        if lost := int(values.isna().sum()):
            raise ValueError(
                f"client {who!r}: column {column!r} lacks {lost} of {len(values)} values; fill them in, or leave out "
                "the rows (a column that a client does not have at all may be empty)"
            )
    return own


def _pair(who: str, pair: Any) -> tuple[Any, np.ndarray]:
    """A client's inputs and labels, once they are seen to be as many."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"client {who!r}: arrays must have a pair (x, y), got {type(pair).__name__}")
    x, y = np.asarray(pair[0]), np.asarray(pair[1])
    if x.ndim < 2:
        raise ValueError(f"client {who!r}: x must have shape (n, ...) with at least 2 axes, got {x.shape}")
    if y.ndim != 1 or len(x) != len(y):
        raise ValueError(f"client {who!r}: y must have shape ({len(x)},), a label per row of x, got {y.shape}")
    if lost := int(pd.isna(y).sum()):
        raise ValueError(f"client {who!r}: y must have no gaps, got {lost} missing labels")
    return x, y


def _coded(labels: Mapping[str, np.ndarray], task: Kind) -> tuple[list[Any], dict[str, np.ndarray]]:
    """The classes in their order, and each client's labels as places in it; targets of a regression stay."""
    if task == "regression":
        return [], dict(labels)
    for who, y in labels.items():
        if y.dtype.kind == "f" and not np.array_equal(y, np.round(y)):
            raise ValueError(
                f"client {who!r}: labels must be whole numbers or text, got {y[y != np.round(y)][0]:g}; real targets "
                'need task="regression"'
            )
    held: set[Any] = set().union(*(y.tolist() for y in labels.values()))
    try:
        classes = sorted(held)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in held})
        raise ValueError(f"labels must be of one type over all clients, got {', '.join(kinds)}") from error
    place = {label: c for c, label in enumerate(classes)}
    return classes, {who: np.array([place[label] for label in y.tolist()], int) for who, y in labels.items()}


def _split(who: str, y: np.ndarray, share: float, seed: int, task: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Places of training and test samples, each in order, by scikit-learn; stratified where there are classes."""
    from sklearn.model_selection import train_test_split

    everything = np.arange(len(y))
    if share == 0:
        return everything, everything[:0]
    state = int(numpy_stream(seed, who, 0, "split").integers(2**32))
    try:
        train, test = train_test_split(
            everything, test_size=share, random_state=state, stratify=y if task == "classification" else None
        )
    except ValueError as error:
        raise ValueError(
            f"client {who!r}: its {len(y)} samples cannot be split with test_size={share:g}: {error} Take another "
            "share (0 for no test set), leave out rare classes, or split yourself and make each Client"
        ) from error
    return np.sort(train), np.sort(test)
