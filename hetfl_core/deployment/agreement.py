"""What sites with tables must agree on before the first round: how columns become inputs, and which words there are.

A site says the names of its columns, the levels of its categories and the settings of its `Preparation`; what all have
together is sent back to each. No value of a number leaves a site, and no word but the levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import torch

from hetfl_core import checks
from hetfl_core import preparation as preparing
from hetfl_core.clients import Client, altered
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.preparation import Preparation, Prepared
from hetfl_core.settings import plain
from hetfl_core.views import view_of


def described(client: Client) -> dict[str, Any]:
    """What a client with a prepared table says of its columns, as JSON can hold it.

    Parameters
    ----------
    client : Client

    Returns
    -------
    dict
        ``columns``, whether the client has each column of its table; ``levels`` of its categories; and the settings of
        its ``preparation``. Empty for other clients.
    """
    fitted = client.prepare
    if not isinstance(fitted, Prepared) or fitted.preparation is None:
        return {}
    columns = {column: column in fitted.columns for column in fitted.offered or fitted.columns}
    levels = {column: list(own) for column, own in fitted.levels.items()}
    return {"columns": columns, "levels": levels, "preparation": plain(fitted.preparation)}


def check_described(told: Mapping[str, Any]) -> None:
    """Refuse a description of columns that no client gives."""
    if "columns" not in told:
        return
    where = f"client {told.get('name')!r}"
    columns = checks.mapping(f"{where}: columns", told["columns"])
    checks.names(f"{where}: columns", list(columns))
    levels = checks.mapping(f"{where}: levels", told.get("levels"))
    checks.mapping(f"{where}: preparation", told.get("preparation"))
    for column, own in levels.items():
        words = checks.sequence(f"{where}: levels[{column!r}]", own)
        if columns.get(column) is not True or not all(isinstance(word, str) for word in words):
            raise WrongValue(f"{where}: levels must be texts of columns that it has, got {column!r}")


def agreed(told: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What sites agree on, given what each says of itself.

    Parameters
    ----------
    told : iterable of dict
        With ``name`` and what `described` returns.

    Returns
    -------
    dict
        ``columns`` of each site, as it described them, and the ``levels`` of each category; empty where no site has a
        prepared table.

    Raises
    ------
    ValueError
        Naming the sites and the column: for preparations that differ, a column that is a category at one site and holds
        numbers at another, and one that the preparation names and no site has.
    """
    sites = {one["name"]: one for one in sorted(told, key=lambda one: str(one["name"])) if "columns" in one}
    if not sites:
        return {}
    (first, known), *others = sites.items()
    preparation = known["preparation"]
    for who, one in others:
        if differing := sorted(k for k in preparation if preparation[k] != one["preparation"].get(k)):
            key = differing[0]
            raise WrongValue(
                f"all sites must have the same preparation, but {key} is {checks.shown(preparation[key])} at {first!r} "
                f"and {checks.shown(one['preparation'].get(key))} at {who!r}"
            )
    offered = {column for one in sites.values() for column in one["columns"]}
    given = [preparation[key] for key in ("categories", "missing") if isinstance(preparation[key], Mapping)]
    if lost := [column for names in given for column in names if column not in offered]:
        raise WrongValue(f"the preparation names column {lost[0]!r}, which no site has, only {checks.shown(offered)}")
    levels: dict[str, set[str]] = {}
    for who, one in sites.items():
        for column, own in one["levels"].items():
            levels.setdefault(column, set()).update(own)
            for other, its in sites.items():
                if its["columns"].get(column) and column not in its["levels"]:
                    raise WrongValue(f"column {column!r} is a category at {who!r}, but holds numbers at {other!r}")
    found = {column: sorted(held, key=preparing.rank) for column, held in levels.items()}
    if preparation["levels"] == "own":
        found = {}
    elif isinstance(preparation["categories"], Mapping):
        declared = Preparation(**{name: value for name, value in preparation.items() if name != "class"}).declared
        found = {column: list(declared.get(column, held)) for column, held in found.items()}
    return {"columns": {who: one["columns"] for who, one in sites.items()}, "levels": found}


def check_taken(told: Mapping[str, Any], agreed: Mapping[str, Any]) -> None:
    """Refuse a site that has other levels than were agreed on."""
    for column, own in told.get("levels", {}).items():
        if (wanted := agreed.get("levels", {}).get(column, own)) != own:
            raise WrongValue(
                f"client {told['name']!r} has the levels {checks.shown(own)} of column {column!r}, not those that were "
                f"agreed on, {checks.shown(wanted)}: its data.py must hand them on "
                '(client_from_file(…, agreed=config.get("agreed")))'
            )


# --- views ----------------------------------------------------------------------------------------------------------


def seen(client: Client, view: Any, agreed: Mapping[str, Any]) -> Client:
    """A client as it is in a view of the federation (`hetfl_core.views.view_of`), of which it knows names alone.

    In the place of each other site stands one with its columns and a row of zeros.

    Parameters
    ----------
    client : Client
        With a prepared table.
    view : str, dict of str to sequence of str, or callable
    agreed : dict
        What `agreed` returned.

    Returns
    -------
    Client
    """
    fitted = client.prepare
    names = {who: [c for c, has in own.items() if has] for who, own in agreed["columns"].items()}
    order = list(dict.fromkeys(c for own in agreed["columns"].values() for c in own))
    others = [
        _stand_in(who, sorted(own, key=order.index), agreed["levels"], fitted.preparation)
        for who, own in names.items()
        if who != client.name
    ]
    numbers = altered(client, y_train=client.y_train.double(), y_test=client.y_test.double())
    everybody = Federation(sorted([numbers, *others], key=lambda c: c.name), 0, task="regression")
    mine = view_of(everybody, view)[client.name]
    return altered(client, x_train=mine.x_train, x_test=mine.x_test, features=mine.features)


def _stand_in(who: str, columns: list[str], levels: Mapping[str, Any], preparation: Preparation) -> Client:
    row = pd.DataFrame({c: pd.Series([levels[c][0]], dtype=object) if c in levels else [0.0] for c in columns})
    fitted = preparing.fit(who, row, preparation, {c: levels[c] for c in columns if c in levels})
    x, y = torch.zeros(1, len(fitted.features or ()), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    return Client(x, y, x, y, who, fitted.features, prepare=fitted)
