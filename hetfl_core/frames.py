"""A federation's clients from a table, or from arrays: labels counted, samples split into training and test sets."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from hetfl_core import checks, columns, splits
from hetfl_core import preparation as preparing
from hetfl_core.clients import Client, Kind, altered, warn
from hetfl_core.errors import WrongType, WrongValue
from hetfl_core.preparation import Preparation
from hetfl_core.rng import numpy_stream

FEWEST = 20
"""Rows of a table, at least, of which a column can be seen to be their numbers."""

TELLING = 20
"""Most values of a column that may be another form of the answer, and fewest rows of each."""


class Part(NamedTuple):
    r"""Inputs and labels of one client, before they are split.

    Parameters
    ----------
    x : ndarray, shape (n, \*shape)
    y : ndarray, shape (n,)
    features : list of str, optional
        Names of the columns of `x`.
    order : tuple, optional
        All labels in their order, where they are ordered categories.
    """

    x: np.ndarray
    y: np.ndarray
    features: list[str] | None = None
    order: tuple[Any, ...] | None = None


class ByClient(NamedTuple):
    """A table, taken apart.

    Parameters
    ----------
    arrays : dict of str to (DataFrame, Series)
        Features that a client has, and labels, in the order in which the clients come in the table.
    rules : dict of str to SplitBy
        How each client's rows are to be split; empty where they are drawn.
    present : dict of str to dict of str to float
        Of each client the share of its rows that have a value, by column.
    """

    arrays: dict[str, tuple[pd.DataFrame, pd.Series]]
    rules: dict[str, splits.SplitBy]
    present: dict[str, dict[str, float]]


def by_client(
    frame: pd.DataFrame, client: str, target: str, prepare: Any = None, ignore: Any = (), **by: str | None
) -> ByClient:
    """Inputs and labels of each client of a table, with the features that it has; see `Federation.from_frame`.

    Parameters
    ----------
    frame : pandas.DataFrame
    client, target : str
        Columns.
    prepare : Preparation, or transformer, optional
    ignore : sequence of str
        Columns that are no features.
    **by
        Columns that say how rows are split: ``group``, ``split`` or ``time``; at most one is not None.

    Returns
    -------
    ByClient
    """
    if prepare is not None:
        preparing.check_prepare(prepare)
    given = {kind: column for kind, column in by.items() if column is not None}
    if len(given) > 1:
        raise WrongValue(f"{' and '.join(given)} say different things of how rows are split: give one of them")
    _check_columns(frame, {"client": client, "target": target, **given}, ignore)
    frame = frame.reset_index(drop=True)
    unused = [client, target, *given.values(), *ignore]
    features = frame.drop(columns=list(dict.fromkeys(unused)))
    if isinstance(prepare, Preparation):
        prepare.check_named(features.columns)
        features = _cleaned(prepare.cleaned, features, frame[client])
        frame[target] = frame[target].mask(frame[target].map(lambda y: isinstance(y, str) and y.strip() in {"?", ""}))
    elif prepare is None:
        features = _cleaned(columns.table, features, frame[client])
    found = ByClient({}, {}, {})
    for name, rows in frame.groupby(client, sort=False, observed=True):
        who, own = str(name), features.loc[rows.index]
        found.present[who] = {str(c): float(share) for c, share in own.notna().mean().items()}
        found.arrays[who] = (_features(who, own, prepare), rows[target])
        for kind, column in given.items():
            found.rules[who] = splits.SplitBy(kind, column, rows[column])  # type: ignore[arg-type]
    if prepare is None or isinstance(prepare, Preparation):
        _warn_of_answers(features, frame[target])
        _warn_of_numbering(features, frame[client])
        _warn_of_marks(features)
    return found


def _cleaned(clean: Callable[[pd.DataFrame], pd.DataFrame], features: pd.DataFrame, whose: pd.Series) -> pd.DataFrame:
    """The columns as numbers or words; an error names the client that it is about."""
    try:
        return clean(features)
    except ValueError as error:
        words: dict[str, list[str]] = {}
        for who, rows in features.groupby(whose, sort=False, observed=True):
            try:
                own = clean(rows)
            except ValueError as first:
                raise WrongValue(f"client {str(who)!r}: {first}") from error
            for column in own.select_dtypes(object):
                words.setdefault(column, []).append(str(who))
        some = {column: who for column, who in words.items() if f"column {column!r}" in str(error)}
        told = [who for who in some.values() if len(who) < whose.nunique()]
        where = "; ".join(f"there are words on {', '.join(map(repr, who))} alone" for who in told)
        raise WrongValue(f"{error} ({where})" if where else str(error)) from error


def _warn_of_numbering(features: pd.DataFrame, whose: pd.Series) -> None:
    """Warn of columns that number the rows, as identifiers do: each value once, in order or with few gaps."""
    for column, values in features.items():
        if not pd.api.types.is_numeric_dtype(values.dtype) or len(values) < FEWEST or values.isna().any():
            continue
        each = [own for _, own in values.groupby(whose, observed=True)]
        counts = all(own.is_monotonic_increasing for own in each) or np.ptp(values) < 1.5 * len(values)
        if counts and all(own.is_unique for own in each) and (values % 1 == 0).all():
            warn(
                f"column {column!r} holds another whole number in each row, in order, as identifiers do: if it is no "
                "measurement, leave it out (ignore=…)"
            )


def _warn_of_marks(features: pd.DataFrame) -> None:
    """Warn of one number that stands in several rows far from all others, as −999 does for a missing value."""
    for column, values in features.select_dtypes("number").items():
        for end in (values.min(), values.max()):
            others = values[values != end].dropna()
            gap = (others - end).abs().min() if len(others) else 0.0
            if (n := int((values == end).sum())) > 1 and others.nunique() > 2 and gap > 1.5 * np.ptp(others):
                warn(
                    f"column {column!r} is {end:g} in {n} rows, far from all other values ({others.min():g} to "
                    f"{others.max():g}): if that stands for a missing value, say missing={{{column!r}: [{end:g}]}} "
                    f"of a Preparation, or --missing {column}={end:g}"
                )


def split_arrays(
    arrays: Any, share: Any, seed: int, task: Kind, rules: Mapping[str, splits.SplitBy] | None, prepare: Any
) -> tuple[list[Client], list[Any]]:
    """The clients with training and test sets, and the classes in their order; see `Federation.from_arrays`.

    Parameters
    ----------
    arrays : dict of str to (array_like, array_like)
    share : float
        Of test samples, in [0, 1).
    seed : int
    task : {"classification", "regression"}
    rules : dict of str to SplitBy, optional
        How each client's rows are to be split, where that is not drawn row by row.
    prepare : Preparation, or transformer, optional
        What makes inputs of tables.

    Returns
    -------
    clients : list of Client
    classes : list
        Empty for a regression.
    """
    if not isinstance(arrays, Mapping) or not arrays:
        raise WrongValue(f"arrays must map at least one client's name to its (x, y), got {checks.shown(arrays)}")
    share = checks.fraction("test_size", share, "[0, 1)")
    parts = {who: _part(who, pair, prepare is None) for who, pair in arrays.items()}
    classes, coded = _coded(parts, task)
    groups = _groups(rules or {})
    sets = splits.over_clients(groups, share, {who: numpy_stream(seed, who, 0, "split") for who in groups})
    few = []
    for who, y in coded.items():
        if who not in sets:
            sets[who], thin = split_rows(who, y, share, seed, task, rules[who] if rules else None)
            few += [who] * thin
    if few:
        warn(
            f"too few samples to be split in proportion with test_size={share:g} on "
            f"{', '.join(map(repr, few))}: there, a sample of each class stays in the training set"
        )
    unknown = prepare is not None and not isinstance(prepare, Preparation)  # its tables may hold anything
    if not unknown:
        _warn_of_alike({who: pair[0] for who, pair in arrays.items()}, sets, bool(groups))
    if prepare is not None:
        return _of_groups(_prepared(arrays, coded, sets, prepare), groups, sets), classes
    clients = []
    for who, part in parts.items():
        (train, test), y, own = sets[who], coded[who], part.features
        clients.append(Client(part.x[train], y[train], part.x[test], y[test], who, own))
    return _of_groups(clients, groups, sets), classes


def _groups(rules: Mapping[str, splits.SplitBy]) -> dict[str, np.ndarray]:
    """Of each client that is split by groups, the group of each row."""
    by_group = {who: rule for who, rule in rules.items() if rule.kind == "group"}
    for who, rule in by_group.items():
        rule.checked(who)
    return {who: rule.groups() for who, rule in by_group.items()}


def _of_groups(
    clients: Sequence[Client], groups: Mapping[str, np.ndarray], sets: Mapping[str, splits.TrainTest]
) -> list[Client]:
    """The clients, which know of each training row to which group it belongs, where they are split by groups."""
    return [altered(c, groups=groups[c.name][sets[c.name][0]]) if c.name in groups else c for c in clients]


def rows_digest(arrays: Mapping[str, tuple[Any, Any]]) -> str:
    """Hex digest of all clients' rows before they are split: the same for every split of the same rows.

    Parameters
    ----------
    arrays : dict of str to (array_like, array_like)

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    for who, pair in sorted(arrays.items(), key=lambda item: str(item[0])):
        digest.update(str(who).encode())
        for part in pair:
            digest.update(_bytes_of(part))
    return digest.hexdigest()


def _bytes_of(part: Any) -> bytes:
    """The bytes of numbers, and of words those of their digests."""
    if isinstance(part, pd.DataFrame | pd.Series):
        return pd.util.hash_pandas_object(part, index=False).to_numpy().tobytes()
    part = checks.dense("x", part)
    values = part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
    return _bytes_of(pd.Series(values.ravel())) if values.dtype.kind in "OU" else np.ascontiguousarray(values).tobytes()


def split_rows(
    who: str, y: np.ndarray, share: float, seed: int, task: Kind, rule: splits.SplitBy | None = None
) -> tuple[splits.TrainTest, bool]:
    """Training and test rows of a client, drawn from a stream of its own unless a rule says how.

    Parameters
    ----------
    who : str
    y : ndarray, shape (n,)
        Classes as whole numbers, or targets.
    share : float
        Of test samples.
    seed : int
    task : {"classification", "regression"}
    rule : SplitBy, optional

    Returns
    -------
    sets : tuple of ndarray of int
    few : bool
        Whether there are too few samples of a class for a split in proportion.
    """
    rng = numpy_stream(seed, who, 0, "split")
    if rule is not None:
        return rule.rows(who, share, rng), False
    groups = y if task == "classification" else np.zeros(len(y), int)
    found = splits.in_proportion(groups, share, rng, task)
    train, test = splits.but_one_of_each(groups, share, rng) if found is None else found
    return (np.sort(train), np.sort(test)), found is None


def _prepared(
    arrays: Mapping[str, tuple[pd.DataFrame, pd.Series]],
    coded: Mapping[str, np.ndarray],
    sets: Mapping[str, splits.TrainTest],
    prepare: Any,
    agreed: Mapping[str, Sequence[str]] | None = None,
) -> list[Client]:
    """Clients with inputs that are made of their tables, by what is fitted on their training rows.

    Of categories that are `agreed` on, the levels are these, where all clients are to have the same.
    """
    training = {who: table.iloc[sets[who][0]] for who, (table, _) in arrays.items()}
    levels: dict[str, Any] = {}
    if isinstance(prepare, Preparation):
        training = {who: _filled_columns(who, table) for who, table in training.items()}
        levels = {**preparing.levels_of([*training.values()], prepare), **(agreed or {})}
        for column, own_levels in levels.items():
            for first, other in _nearly_alike(own_levels):
                warn(f"column {column!r}: {first!r} and {other!r} are two levels: write them alike if they are one")
    clients = []
    for who, (table, _) in arrays.items():
        (train, test), y = sets[who], coded[who]
        if not isinstance(prepare, Preparation):
            fitted = preparing.fit_own(who, training[who], y[train], prepare)
        else:
            own = preparing.levels_of([training[who]], prepare)
            known = levels if prepare.levels == "all" else own
            fitted = preparing.fit(who, training[who], prepare, {column: known[column] for column in own})
        x = [fitted.inputs(table.iloc[rows]) for rows in (train, test)]
        if fitted.features is None:
            x = [made.to_numpy() for made in x]
        clients.append(Client(x[0], y[train], x[1], y[test], who, prepare=fitted))
    return clients


def at_site(
    who: str, table: pd.DataFrame, y: np.ndarray, sets: splits.TrainTest, prepare: Any, agreed: Any = None
) -> Client:
    """The client of one site that sees no other's table.

    Parameters
    ----------
    who : str
    table : pandas.DataFrame
        Features.
    y : ndarray, shape (n,)
    sets : tuple of ndarray of int
        Training and test rows.
    prepare : Preparation, or transformer
    agreed : dict, optional
        What all sites have agreed on: ``"columns"``, those of each site in their order, and ``"levels"`` of categories.
        An empty one is that of a site that is going to agree: its own levels stand for the time being.

    Returns
    -------
    Client
        ``prepare.offered`` has the columns of the table.

    Raises
    ------
    ValueError
        Naming the column, for a category whose levels are neither given nor agreed on, where all sites are to have the
        same, and one that is a category at other sites alone.
    """
    preparing.check_prepare(prepare)
    offered = tuple(map(str, table.columns))
    order = dict.fromkeys(c for _, own in sorted((agreed or {}).get("columns", {}).items()) for c in own)
    table = table.rename(columns=str)[sorted(offered, key=[*order, *offered].index)]
    if isinstance(prepare, Preparation):
        elsewhere = [c for c in prepare.named if c not in offered]  # columns that other sites have
        table = prepare.cleaned(table.assign(**dict.fromkeys(elsewhere, np.nan)))
        _warn_of_numbering(table.drop(columns=elsewhere), pd.Series(who, index=table.index))
        _warn_of_marks(table.drop(columns=elsewhere))
    table = _features(who, table, prepare)
    levels = (agreed or {}).get("levels", {})
    if isinstance(prepare, Preparation) and prepare.levels == "all":
        own = preparing.levels_of([table], prepare)
        if agreed is None and (unknown := [c for c in own if c not in prepare.declared]):
            raise WrongValue(
                f"column {unknown[0]!r} is a category, whose levels a site alone cannot know: say in "
                "Preparation(categories={…}) what all sites have agreed on, have a deployment agree on them "
                "(client_from_file(…, agreed=config.get(\"agreed\"))), or take levels='own'"
            )
        if numbers := [c for c in levels if c in table and c not in own]:
            raise WrongValue(f"column {numbers[0]!r} is a category at other sites, but holds numbers here")
    arrays = {who: (table, pd.Series(y))}
    (client,) = _prepared(arrays, {who: y}, {who: sets}, prepare, levels)
    return altered(client, prepare=replace(client.prepare, offered=offered))


def _filled_columns(who: str, table: pd.DataFrame) -> pd.DataFrame:
    """The columns that have a value in the training rows, so that something can be fitted."""
    own = table.dropna(axis=1, how="all")
    if own.columns.empty:
        raise WrongValue(f"client {who!r}: every feature is missing in its training rows, expected one with values")
    return own


def _warn_of_alike(tables: Mapping[str, Any], sets: Mapping[str, splits.TrainTest], grouped: bool) -> None:
    """Warn of clients whose test rows look like training rows, their own or another's, as those of one patient do.

    Where groups are named, a client's own rows are left to them.
    """
    known = {who: x for who, x in tables.items() if isinstance(x, pd.DataFrame)}
    own = {} if grouped else {who: splits.alike(x, *sets[who]) for who, x in known.items()}
    if told := [f"{n} of {len(sets[who][1])} on {who!r}" for who, n in own.items() if n]:
        warn(
            f"test rows are so much like training rows that they may be of one patient ({', '.join(told)}), and what "
            "is learnt by heart then counts as right: name the column that tells patients apart (group=…, or --group)"
        )
    elsewhere = splits.alike_elsewhere(known, sets)
    if told := [
        f"{n} of {len(sets[who][1])} on {who!r} like rows on {', '.join(map(repr, at[:3]))}{' …' * (len(at) > 3)}"
        for who, (n, at) in elsewhere.items()
    ]:
        cure = (
            "give each patient one number over all clients in the column that group= names"
            if grouped
            else "name the column that tells patients apart, with one number over all clients (group=…, or --group)"
        )
        warn(
            "test rows are so much like training rows of another client that they may be of one patient "
            f"({'; '.join(told)}), and what is learnt by heart there then counts as right: {cure}"
        )


# --- the table ------------------------------------------------------------------------------------------------------


def _check_columns(frame: pd.DataFrame, named: Mapping[str, Any], ignore: Any) -> None:
    checks.instance("frame", frame, pd.DataFrame)
    if frame.empty or frame.columns.nlevels > 1:
        raise WrongValue(
            "frame must have at least one row, and one name per column, got "
            f"{len(frame)} rows and names in {frame.columns.nlevels} levels"
        )
    for argument, column in [*named.items(), *(("ignore", column) for column in checks.sequence("ignore", ignore))]:
        if not isinstance(column, Hashable):
            raise WrongType(f"{argument} must be the name of a column, got {checks.shown(column)}")
        if column not in frame.columns:
            hint = "; it is in the index: frame.reset_index() makes a column of it" * (column in frame.index.names)
            raise WrongValue(
                f"{argument} must be one of the columns {[*map(str, frame.columns)]}, got {column!r}{hint}"
            )
        entries = [] if argument == "ignore" else _objects(frame[column])
        if odd := [value for value in entries if not isinstance(value, Hashable)]:
            raise WrongValue(
                f"column {column!r}, which {argument}= names, must hold a number or a text in each row, got "
                f"{checks.shown(odd[0])}"
            )
    for (other, same), (argument, column) in itertools.combinations(named.items(), 2):
        if column == same:
            raise WrongValue(f"{other} and {argument} must be two columns, got {column!r} for both")
    if not frame.columns.map(str).is_unique:
        twice = frame.columns.map(str)
        raise WrongValue(f"frame must have columns of different names, got {[*twice[twice.duplicated()]]} twice")
    client = named["client"]
    if len(lost := np.flatnonzero(frame[client].isna())):
        empty = " (they are empty: leave them out)" if frame.iloc[lost].isna().all(axis=None) else ""
        raise WrongValue(
            f"column {client!r} must say whose every row is, got {len(lost)} rows without a client, the first of them "
            f"row {lost[0] + 1}{empty}"
        )
    names = frame[client].unique()
    if len({str(name).strip() for name in names}) < len(names):
        raise WrongValue(
            f"column {client!r} must have one name per client, got names that read alike: {sorted(map(repr, names))}"
        )
    for first, other in _nearly_alike(names, columns.word):
        warn(f"column {client!r}: {first!r} and {other!r} are two clients: write them alike if they are one")


def _objects(values: Any) -> list[Any]:
    """The entries of a column of Python's objects; of another, and of columns of one name, none."""
    return values.tolist() if getattr(getattr(values, "dtype", None), "kind", "") == "O" else []


def _nearly_alike(names: Iterable[Any], text: Callable[[Any], str] = str) -> Iterator[tuple[Any, Any]]:
    """Pairs of names that differ in capitals and blanks only: the first that is written so, and another."""
    seen: dict[str, Any] = {}
    for name in names:
        first = seen.setdefault("".join(text(name).lower().split()), name)
        if first != name:
            yield first, name


def _warn_of_answers(features: pd.DataFrame, labels: pd.Series) -> None:
    """Warn of columns of few values each of which stands for one label, as another form of the answer does."""
    if not 1 < labels.nunique() <= TELLING:
        return
    for column, values in features.items():
        few = 1 < values.nunique() <= min(TELLING, values.notna().sum() / TELLING)
        if few and labels.groupby(values, observed=True).nunique().max() == 1:
            warn(
                f"each value of column {column!r} stands for one value of {labels.name!r}: if it is another form of "
                "the answer, leave it out (ignore=…)"
            )


def _features(who: str, columns: pd.DataFrame, prepare: Any) -> pd.DataFrame:
    """The features that a client has: the columns that are not (nearly) empty in its rows."""
    most = prepare.absent if isinstance(prepare, Preparation) else 1.0
    lost = columns.isna().mean()
    own = columns.loc[:, (lost < 1) & (lost <= most)]
    if own.columns.empty:
        raise WrongValue(f"client {who!r}: every feature is missing, expected at least one column with values")
    if isinstance(prepare, Preparation) and prepare.gaps == "refuse":
        preparing.refuse_gaps(who, own)
    if prepare is not None:
        return own
    for column, values in own.items():
        preparing.check_numbers(who, column, values)
    preparing.refuse_gaps(who, own)
    return own.astype(float)


# --- arrays and labels ----------------------------------------------------------------------------------------------


def _part(who: str, pair: Any, of_numbers: bool) -> Part:
    """A client's inputs and labels, as many of one as of the other; whether a table must hold nothing but numbers."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise WrongValue(f"client {who!r}: arrays must have a pair (x, y), got {type(pair).__name__}")
    given = dict(zip("xy", pair, strict=True))
    if of_numbers and isinstance(pair[0], pd.DataFrame):
        given["x"] = columns.only_numbers(pair[0], f"client {who!r}: x: ")
    if isinstance(pair[1], pd.Series):
        given["y"] = columns.plain(pair[1], f"client {who!r}: y")
    x, y = (
        checks.array(f"client {who!r}: {name}", value.detach().cpu() if isinstance(value, Tensor) else value)
        for name, value in ((name, checks.dense(f"client {who!r}: {name}", value)) for name, value in given.items())
    )
    if x.ndim < 2:
        raise WrongValue(f"client {who!r}: x must have shape (n, ...) with at least 2 axes, got {x.shape}")
    if y.ndim != 1 or len(x) != len(y):
        raise WrongValue(f"client {who!r}: y must have shape ({len(x)},), a label per row of x, got {y.shape}")
    if lost := int(pd.isna(y).sum()):
        raise WrongValue(f"client {who!r}: y must have no gaps, got {lost} missing labels")
    features = [str(column) for column in pair[0].columns] if isinstance(pair[0], pd.DataFrame) else None
    kind = getattr(pair[1], "dtype", None)
    order = tuple(kind.categories) if isinstance(kind, pd.CategoricalDtype) and kind.ordered else None
    return Part(x, y, features, order)


def _coded(parts: Mapping[str, Part], task: Kind) -> tuple[list[Any], dict[str, np.ndarray]]:
    """The classes in their order, and each client's labels as indices into it; targets of a regression stay."""
    if task == "regression":
        return [], {who: columns.numbers(pd.Series(part.y)).to_numpy() for who, part in parts.items()}
    for who, part in parts.items():
        for label in part.y.tolist():
            if not (isinstance(label, str | int) or (isinstance(label, float) and label.is_integer())):
                raise WrongValue(
                    f"client {who!r}: labels must be whole numbers or text, got {checks.shown(label)} of type "
                    f'{type(label).__name__}; real targets need task="regression"'
                )
    classes = _classes(parts)
    for first, other in _nearly_alike(classes):
        warn(f"labels {first!r} and {other!r} are two classes: write them alike if they are one")
    if len(classes) > FEWEST and len(classes) > sum(len(part.y) for part in parts.values()) / 2:
        warn(
            f"there are {len(classes)} classes in {sum(len(part.y) for part in parts.values())} samples, as where a "
            'number is to be predicted (task="regression"), or the target names the samples'
        )
    index = {label: c for c, label in enumerate(classes)}
    return classes, {who: np.array([index[label] for label in part.y.tolist()], int) for who, part in parts.items()}


def _classes(parts: Mapping[str, Part]) -> list[Any]:
    """All labels that occur, in their order."""
    held: set[Any] = set().union(*(part.y.tolist() for part in parts.values()))
    order, *others = {part.order: who for who, part in parts.items()}.items()
    if others:
        raise WrongValue(
            f"labels must be ordered categories of one order on all clients, or on none: client {order[1]!r} has "
            f"{checks.shown(order[0])}, client {others[0][1]!r} {checks.shown(others[0][0])}"
        )
    if order[0] is not None:
        return [label for label in order[0] if label in held]
    try:
        return sorted(held)
    except TypeError as error:
        kinds: dict[str, str] = {}
        for who, part in parts.items():
            for label in part.y.tolist():
                kinds.setdefault(type(label).__name__, f"{label!r} on {who!r}")
        told = ", ".join(f"{kind} ({label})" for kind, label in sorted(kinds.items()))
        raise WrongValue(f"labels must be of one type over all clients, got {told}") from error
