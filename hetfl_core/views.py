"""A federation looked at in another way: some blocks, common columns, zeros for what is missing, columns in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from hetfl_core import checks
from hetfl_core.clients import Client, altered, columns_of
from hetfl_core.errors import WrongValue


class Views:
    """What `Federation` offers of views."""

    clients: Any
    x_test: Any

    @property
    def full_shapes(self) -> Any:
        """Shape of a sample that has all blocks, a dict by block; of plain inputs that of the first client."""
        first = self.clients[0].shapes
        if not isinstance(first, Mapping):
            return first
        held = {block: [c.shapes[block] for c in self.clients if 0 not in c.shapes[block]] for block in first}
        return {block: max(shapes, default=first[block]) for block, shapes in held.items()}

    def of_blocks(self, names: Sequence[str]) -> Self:
        """The same clients with some of their named blocks; the test data of the federation itself likewise.

        Parameters
        ----------
        names : sequence of str
            Blocks that are kept. They stay in the order in which the clients have them.

        Returns
        -------
        Federation
            A block that a client lacks stays an empty one.

        Raises
        ------
        ValueError
            For a name that no block has, for no name, and where inputs are not named blocks.
        """
        wanted, known = list(checks.sequence("names", names)), self._block_names()
        for name in wanted:
            checks.choice("names", name, tuple(known))
        if not wanted:
            raise WrongValue(f"names must be at least one of the blocks {known}, got none")
        kept = [name for name in known if name in wanted]
        clients = tuple(c.of_features({block: c.features[block] for block in kept}) for c in self.clients)
        return altered(self, clients=clients, x_test=self.x_test and {block: self.x_test[block] for block in kept})

    def of_common_blocks(self) -> Self:
        """The same clients with the blocks that all of them hold.

        A method that averages everything can be run on these.

        Returns
        -------
        Federation
            The test data of the federation itself have the same blocks.

        Raises
        ------
        ValueError
            Where there is no such block, and where inputs are not named blocks.
        """
        common = [block for block in self._block_names() if all(0 not in c.shapes[block] for c in self.clients)]
        if not common:
            raise WrongValue("there is no block that all clients hold; fill in what is missing (`filled`)")
        return self.of_blocks(common)

    def filled(self) -> Self:
        """The same clients with zeros in the place of the blocks, or of the features, that they lack.

        Returns
        -------
        Federation
            Blocks have the shape that others have, and their features are named as on the first client that has them.
            Of tables, all clients have all features that some client names.

        Raises
        ------
        ValueError
            Where inputs are neither named blocks nor have named features.
        """
        if isinstance(self.clients[0].features, tuple):
            return self._filled_table()
        self._block_names()
        shapes, names = self.full_shapes, self._full_features()

        def fill(x: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {b: t if 0 not in t.shape[1:] else t.new_zeros(len(t), *shapes[b]) for b, t in x.items()}

        def filled(c: Client) -> Client:
            own = {b: names[b] if 0 in c.shapes[b] else c.features[b] for b in names}
            return altered(c, x_train=fill(c.x_train), x_test=fill(c.x_test), features=own)

        return altered(self, clients=tuple(map(filled, self.clients)), x_test=self.x_test and fill(self.x_test))

    def _filled_table(self) -> Self:
        everything = tuple(self._union())

        def filled(c: Client) -> Client:
            index = [c.features.index(f) if f in c.features else -1 for f in everything]
            x = (torch.cat([x, x.new_zeros(len(x), 1)], 1)[:, index] for x in (c.x_train, c.x_test))
            return altered(c, **dict(zip(("x_train", "x_test"), x, strict=True)), features=everything)

        return altered(self, clients=tuple(map(filled, self.clients)))

    def of_common_columns(self) -> Self:
        """The same clients as tables of the columns that all of them have.

        A method that averages everything can take these. Named blocks are put together again.

        Returns
        -------
        Federation
            Features in the order of the first client. Of a column that was prepared, all features that were made of it.

        Raises
        ------
        ValueError
            Where features have no names, where there is no such column, and naming a column of which clients know
            other levels.
        """
        tables = self._joined()
        held, everything = tables._columns(), tables._union()
        common = {column for column in everything.values() if all(column in has for has in held.values())}
        if not common:
            raise WrongValue("there is no column that all clients have; fill in what is missing (`filled`)")
        tables._check_alike(common)
        return tables.of_common_features()

    def in_blocks(self, columns: Mapping[str, Sequence[str]] | str = "by availability") -> Self:
        """The same clients with the columns of their tables in named blocks; a client may lack whole blocks.

        Parameters
        ----------
        columns : dict of str to sequence of str, or "by availability"
            Columns of each block, by its name. What no block names, or all columns, are blocks by availability: columns
            that the same clients have are one block, called after its columns, or ``"common"`` where all clients have
            them.

        Returns
        -------
        Federation
            A block that a client lacks is an empty one.

        Raises
        ------
        ValueError
            Where features have no names; naming the client and the block, where it has a part of it only; and the
            column, where it is unknown, in two blocks, or of other levels on another client.
        """
        tables = self._joined()
        of = tables._blocks(columns)
        tables._check_alike(of)
        names = list(dict.fromkeys(of.values()))
        everything = tables._union()

        def split(c: Client) -> Client:
            wanted = {b: tuple(f for f, column in everything.items() if of[column] == b) for b in names}
            own: dict[str, Any] = {b: fs if set(fs) <= set(c.features) else None for b, fs in wanted.items()}
            for b, fs in own.items():
                if fs is None and (part := [f for f in wanted[b] if f in c.features]):
                    lacks = [f for f in wanted[b] if f not in c.features]
                    raise WrongValue(
                        f"client {c.name!r}: block {b!r} must be there as a whole or not at all, got "
                        f"{checks.shown(part)} without {checks.shown(lacks)}: take other blocks, such as "
                        'in_blocks("by availability")'
                    )
            x = ({b: columns_of(x, c.features, fs or ()) for b, fs in own.items()} for x in (c.x_train, c.x_test))
            return altered(c, **dict(zip(("x_train", "x_test"), x, strict=True)), features=own)

        clients = tuple(map(split, tables.clients))
        x, first = tables.x_test, tables.clients[0].features
        x_test = None if x is None else {b: columns_of(x, first, clients[0].features[b]) for b in names}
        return altered(tables, clients=clients, x_test=x_test)

    def of_common_features(self) -> Self:
        """The same clients with the features that all of them name.

        A method that averages everything can take these.

        Returns
        -------
        Federation
            Features in the order of the first client; the test data of the federation itself have the same ones.

        Raises
        ------
        ValueError
            For a client whose features have no names, where there is no such feature, and for named blocks.
        """
        self._check_named()
        common = tuple(n for n in self.clients[0].features if all(n in c.features for c in self.clients))
        if not common:
            raise WrongValue("there is no feature that all clients have")
        x_test = None if self.x_test is None else columns_of(self.x_test, self.clients[0].features, common)
        return altered(self, clients=tuple(c.of_features(common) for c in self.clients), x_test=x_test)

    def _full_features(self) -> dict[str, Any]:
        """Names of the features of each block, of a client that has it."""
        held = {b: [c.features[b] for c in self.clients if s == c.shapes[b]] for b, s in self.full_shapes.items()}
        return {block: names[0] for block, names in held.items()}

    def _block_names(self) -> list[str]:
        names = block_names(self.clients[0])
        if names is None:
            raise WrongValue(f"the inputs must be named blocks, but client {self.clients[0].name!r} has one tensor")
        return names

    def _union(self) -> dict[str, str]:
        """All features that some client names, in the order in which they come, and the column of each."""
        self._check_named()
        made = {f: column for c in self.clients for f, column in origin(c).items()}
        return {f: made.get(f, f) for c in self.clients for f in c.features}

    def _check_named(self) -> None:
        if unnamed := [c.name for c in self.clients if not isinstance(c.features, tuple)]:
            raise WrongValue(f"client {unnamed[0]!r}: features must be names, one for each of its inputs")

    def _columns(self) -> dict[str, dict[str, list[str]]]:
        """Of each client its columns, and the features that are made of each."""
        found: dict[str, dict[str, list[str]]] = {}
        for f, column in self._union().items():
            for c in self.clients:
                if f in c.features:
                    found.setdefault(c.name, {}).setdefault(column, []).append(f)
        return {c.name: found[c.name] for c in self.clients}

    def _check_alike(self, columns: Iterable[str]) -> None:
        """Refuse columns of which not all clients that have them have the same features."""
        held = self._columns()
        for column in columns:
            (first, known), *others = [(who, has[column]) for who, has in held.items() if column in has]
            for who, own in others:
                if set(own) != set(known):
                    raise WrongValue(
                        f"column {column!r} must have the same levels on all clients, got {checks.shown(known)} on "
                        f"{first!r} and {checks.shown(own)} on {who!r}: Preparation(levels='all')"
                    )

    def _blocks(self, columns: Any) -> dict[str, str]:
        """The block of each column."""
        known = list(dict.fromkeys(self._union().values()))
        if columns == "by availability":
            return self._by_availability(known)
        found: dict[str, str] = {}
        for block, own in checks.mapping("columns, unless it is 'by availability',", columns).items():
            checks.nonempty_str("columns: a block's name", block)
            if "." in block:
                raise WrongValue(f"columns: a block's name must have no dot, got {block!r}")
            for column in checks.names(f"columns[{block!r}]", own):
                if column not in known:
                    raise WrongValue(f"columns[{block!r}]: {checks.unknown('column', column, known)}")
                if column in found:
                    raise WrongValue(f"columns: {column!r} must be in one block, got {found[column]!r} and {block!r}")
                found[column] = block
        rest = self._by_availability([column for column in known if column not in found])
        if both := sorted({*rest.values()} & {*found.values()}):
            raise WrongValue(f"columns: {both[0]!r} is what columns are called that no block names: take another name")
        return {column: found.get(column) or rest[column] for column in known}

    def _by_availability(self, known: Sequence[str]) -> dict[str, str]:
        held = self._columns()
        groups: dict[tuple[str, ...], list[str]] = {}
        for column in known:
            groups.setdefault(tuple(who for who, has in held.items() if column in has), []).append(column)
        names = {
            who: "common" if len(who) == len(held) else "+".join(own).replace(".", "_") for who, own in groups.items()
        }
        return {column: names[who] for who, own in groups.items() for column in own}

    def _joined(self) -> Self:
        """The same clients with one table each, where they have blocks of named features."""
        if block_names(self.clients[0]) is None:
            self._check_named()
            return self

        def joined(c: Client) -> Client:
            if lost := [b for b, x in c.x_train.items() if x.dim() != 2 or (x.shape[1] and c.features[b] is None)]:
                raise WrongValue(f"client {c.name!r}: features of block {lost[0]!r} must be names, one for each input")
            names = tuple(name for own in c.features.values() for name in own or ())
            x_train, x_test = (torch.cat(list(x.values()), 1) for x in (c.x_train, c.x_test))
            return altered(c, x_train=x_train, x_test=x_test, features=names)

        x_test = self.x_test and torch.cat(list(self.x_test.values()), 1)
        return altered(self, clients=tuple(map(joined, self.clients)), x_test=x_test)


def block_names(client: Client) -> list[str] | None:
    """Names of a client's blocks, None for plain inputs."""
    return list(client.x_train) if isinstance(client.x_train, Mapping) else None


def columns_of_each(federation: Any) -> dict[str, list[str]]:
    """The columns that each client has, by its name.

    Parameters
    ----------
    federation : Federation

    Returns
    -------
    dict of str to list of str

    Raises
    ------
    ValueError
        Where features have no names.
    """
    return {who: list(own) for who, own in federation._joined()._columns().items()}


def origin(client: Client) -> dict[str, str]:
    """The column that each feature was made of, of a client whose table was prepared.

    Parameters
    ----------
    client : Client

    Returns
    -------
    dict of str to str
        Empty for other clients, whose features are columns.
    """
    fitted = client.prepare
    names = getattr(fitted, "features", None)
    return dict(zip(names, fitted.origin, strict=True)) if names else {}


VIEWS = {
    "own": lambda fed: fed,
    "common": lambda fed: fed.of_common_columns() if _is_named(fed) else fed.of_common_blocks(),
    "zeros": lambda fed: fed.filled(),
    "blocks": lambda fed: fed.in_blocks() if _is_table(fed) else fed,
}
"""Views by name; named blocks that there are already stay as they are."""


def view_of(federation: Any, view: Any) -> Any:
    """A federation in a view that has a name, in these blocks, or as a function makes it.

    Parameters
    ----------
    federation : Federation
    view : str, dict of str to sequence of str, or callable

    Returns
    -------
    Federation

    Raises
    ------
    ValueError
        For an unknown name, and what the view itself refuses.
    """
    if isinstance(view, Mapping):
        return federation.in_blocks(view)
    if callable(view):
        made = view(federation)
        checks.instance("view: what it returns", made, type(federation))
        return made
    return VIEWS[checks.choice("view", view, tuple(VIEWS))](federation)


def method_and_view(name: str, one: Any) -> tuple[Any, Any]:
    """A method, and how it is to see the data: what a pair says, or as they are.

    Parameters
    ----------
    name : str
        Of the argument, for an error.
    one : object, or pair of an object and a view

    Returns
    -------
    method, view

    Raises
    ------
    ValueError
        For a tuple of another length.
    """
    if not isinstance(one, tuple):
        return one, "own"
    if len(one) != 2:
        raise WrongValue(
            f"{name} must be a method or a pair of a method and a view, got {checks.shown(one)}; options of runs, such "
            "as last_step='own', are given once, for all methods"
        )
    return one


def _is_table(federation: Any) -> bool:
    return block_names(federation.clients[0]) is None


def _is_named(federation: Any) -> bool:
    """Whether there are tables, or blocks of named features."""
    return _is_table(federation) or any(own is not None for own in federation.clients[0].features.values())
