"""The decision guide: a few questions about somebody's data, and what the benchmark says of data that answer alike.

Questions and their order are a person's; what a leaf advises follows from the records. It begins with the best way to
stay alone, which each federation's own training rows choose (`hetfl_book.headtohead.ranking.best_alone`), and then
names a method that exchanges something, by its gain over that. A guide that is judged by the federations that it was
made of flatters itself, so `left_out` asks it about each federation as if it had not been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hetfl_book.headtohead.entries import Entry, entries
from hetfl_book.headtohead.running import OWN_STEP
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation

FEW = 20
"""Training rows of a class at a site, in the median over sites and classes, below which a site has few."""

APART = 0.2
"""Total variation between a site's shares of classes and everybody's, in the mean over sites, from which they differ.

A fifth of a site's rows would have to change their class for the site to look like all of them together.
"""


@dataclass(frozen=True)
class Traits:
    """What the questions ask about a federation.

    Parameters
    ----------
    same : bool
        Whether all sites have the same inputs: by name where they have names, else by shape.
    common : bool
        Whether all sites have some input in common. Of inputs without names that is so only where all are the same.
    rows : float
        Training rows of a class at a site, median over sites and the classes that they have.
    apart : float
        Mean total variation between a site's shares of classes and those of all sites together, in [0, 1).
    """

    same: bool
    common: bool
    rows: float
    apart: float

    @classmethod
    def of(cls, federation: Federation) -> Traits:
        """Those of a federation for classification, out of its training rows.

        Parameters
        ----------
        federation : Federation

        Raises
        ------
        ValueError
            For a regression, which has no classes to ask about.
        """
        checks.instance("federation", federation, Federation)
        if federation.task != "classification":
            raise WrongValue(f"federation must be for classification, got a {federation.task}")
        counts = np.array([np.bincount(c.y_train.numpy(), minlength=federation.n_classes) for c in federation])
        shares, all_shares = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
        apart = float(np.abs(shares - all_shares).sum(1).mean() / 2)
        held = [_inputs(client) for client in federation]
        same = all(one == held[0] for one in held)
        common = bool(frozenset.intersection(*held))
        return cls(same, common, float(np.median(counts[counts > 0])), apart)


def _inputs(client: object) -> frozenset[str]:
    """Names of a client's inputs: its blocks, or its features; without names its shape stands for all of them."""
    shapes, names = client.shapes, client.features  # type: ignore[attr-defined]
    if isinstance(shapes, Mapping):
        return frozenset(block for block, shape in shapes.items() if 0 not in shape)
    return frozenset(names) if names else frozenset([f"shape {tuple(shapes)}"])


STAYING = "the best way to stay alone"
"""What each leaf begins with, and what the guide counts from."""

CHOICE = ", which your training rows choose among logistic regression, boosted trees and a small network"
"""How that is chosen on tables, as a leaf goes on."""

Question = tuple[str, Mapping[str, "Question | str"]]

LEAVES = {
    "same inputs, classes alike": lambda t: t.same and t.apart < APART,
    "same inputs, classes differ": lambda t: t.same and t.apart >= APART,
    "some inputs common to all, few rows": lambda t: t.common and not t.same and t.rows < FEW,
    "some inputs common to all, many rows": lambda t: t.common and not t.same and t.rows >= FEW,
    "nothing common to all, few rows": lambda t: not t.common and t.rows < FEW,
    "nothing common to all, many rows": lambda t: not t.common and t.rows >= FEW,
}
"""Where the questions end: each federation is at one of them."""

ENOUGH = f"Count the training rows of each class at each site. Is the median {FEW} or more?"

QUESTIONS: Question = (
    "Do all sites measure the same?",
    {
        "no": (
            "Is there something that all sites measure?",
            {
                "yes": (
                    ENOUGH,
                    {"yes": "some inputs common to all, many rows", "no": "some inputs common to all, few rows"},
                ),
                "no": (
                    ENOUGH,
                    {"yes": "nothing common to all, many rows", "no": "nothing common to all, few rows"},
                ),
            },
        ),
        "yes": (
            "Do the sites see the classes in about the same shares?",
            {"yes": "same inputs, classes alike", "no": "same inputs, classes differ"},
        ),
    },
)
"""The questions in words: each with its answers, and the question or leaf where an answer leads."""


def leaf(traits: Traits) -> str:
    """The one of `LEAVES` where the questions end for such data."""
    checks.instance("traits", traits, Traits)
    return next(name for name, holds in LEAVES.items() if holds(traits))


@dataclass(frozen=True)
class Advice:
    """What a leaf says.

    Parameters
    ----------
    method : str
        The one with the highest mean gain over the cases, of those that ran in all of them.
    mean, low, high : float
        Its gain in points, over what the table of gains counts from: mean, least and most over the cases. A mean
        below zero says that no such method reached that.
    cases : tuple of str
        The cases that say so.
    """

    method: str
    mean: float
    low: float
    high: float
    cases: tuple[str, ...]


def advise(gains: pd.DataFrame) -> Advice:
    """The advice that follows from some cases.

    Parameters
    ----------
    gains : DataFrame, shape (methods, cases)
        Points over a way to stay alone; NaN where a method did not run.

    Raises
    ------
    ValueError
        Where no method ran in all cases, or there is no case.
    """
    checks.frame("gains", gains)
    whole = gains.dropna()
    if whole.empty:
        raise WrongValue(f"gains must have a method that ran in all of its {gains.shape[1]} cases, got none")
    means = whole.mean(axis=1)
    best = means.idxmax()
    low, high = whole.loc[best].agg(["min", "max"])
    return Advice(str(best), float(means[best]), float(low), float(high), tuple(map(str, gains.columns)))


def guide(gains: pd.DataFrame, leaves: Mapping[str, str]) -> dict[str, Advice]:
    """The advice of each leaf that some case is at.

    Parameters
    ----------
    gains : DataFrame, shape (methods, cases)
        As for `advise`.
    leaves : dict of str to str
        The leaf of each case.

    Returns
    -------
    dict of str to Advice
        In the order of `LEAVES`.
    """
    return {name: advise(here) for name, here in _by_leaf(gains, leaves).items()}


def _by_leaf(gains: pd.DataFrame, leaves: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """The cases at each leaf that has some, in the order of `LEAVES`."""
    at = {name: [case for case in gains if leaves[case] == name] for name in LEAVES}
    return {name: gains[here] for name, here in at.items() if here}


def at_leaves(gains: pd.DataFrame, leaves: Mapping[str, str], methods: Mapping[str, str]) -> dict[str, Advice]:
    """What a method that is given for each leaf gains there.

    Parameters
    ----------
    gains : DataFrame, shape (methods, cases)
        As for `advise`.
    leaves : dict of str to str
        The leaf of each case.
    methods : dict of str to str
        A method for each leaf, which ran in all of its cases.
    """
    here = _by_leaf(gains, leaves)
    return {leaf: advise(here[leaf].loc[[method]]) for leaf, method in methods.items()}


def left_out(gains: pd.DataFrame, leaves: Mapping[str, str], federations: Mapping[str, str]) -> pd.DataFrame:
    """The guide's advice for each case, made without any case of the same federation.

    Parameters
    ----------
    gains : DataFrame, shape (methods, cases)
        As for `advise`.
    leaves, federations : dict of str to str
        The leaf and the federation of each case: both sizes of one federation are left out together.

    Returns
    -------
    DataFrame
        Indexed by case: ``advice``, its ``gain``, the ``best`` method there, and by how many points it is ahead
        (``regret``). Where no other federation is at the leaf, the advice is that of all other federations.
    """
    rows = {}
    for case in gains:
        others = [c for c in gains if federations[c] != federations[case]]
        near = [c for c in others if leaves[c] == leaves[case]]
        known = gains.loc[gains[case].notna(), near or others]
        advice = advise(known)
        gain, most = gains.loc[advice.method, case], gains[case].max()
        rows[case] = (advice.method, gain, gains[case].idxmax(), most - gain, bool(near))
    columns = ["advice", "gain", "best", "regret", "near"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def cases(table: pd.DataFrame, column: str = "gain", ways: Collection[str] = ("together", "alone")) -> pd.DataFrame:
    """The comparison as methods × cases, by default without those that put all rows into one place.

    Parameters
    ----------
    table : DataFrame
        As `hetfl_book.headtohead.ranking.cells` gives it.
    column : str
        What is shown of each.
    ways : collection of str
        Of the column ``way``; ``("together",)`` leaves the methods that exchange something, among which the guide
        chooses.

    Returns
    -------
    DataFrame
        Columns such as ``"heart, all"``, in the order of `table`; NaN where a method did not run, or diverged.
    """
    shown = table[table["way"].isin(ways)]
    names = shown["federation"] + ", " + shown["size"]
    wide = shown.assign(case=names).pivot(index="method", columns="case", values=column)
    return wide[list(dict.fromkeys(names))].rename_axis(index=None, columns=None)


LIMITS: Mapping[str, Callable[[Entry], bool]] = {
    "Every site may have another kind of network": lambda e: e.exchanges and e.view == "own",
    "One shared model, with a last step of each site's own at most": lambda e: e.one_model,
    "Only what all sites measure is used": lambda e: e.exchanges and e.view == "common",
}
"""What somebody may need besides, and which methods of the comparison answer to it."""


def limited(gains: pd.DataFrame, holds: Callable[[Entry], bool]) -> Advice | None:
    """The advice among some methods, over the cases where any of them ran.

    Parameters
    ----------
    gains : DataFrame, shape (methods, cases)
        As for `advise`.
    holds : callable
        One of `LIMITS`.

    Returns
    -------
    Advice or None
        None where no such method ran everywhere that one of them did.
    """
    lines = {**entries(), **{name + OWN_STEP: line for name, line in entries().items() if line.one_model}}
    some = gains.loc[[name for name in gains.index if name in lines and holds(lines[name])]].dropna(axis=1, how="all")
    return advise(some) if some.size and len(some.dropna()) else None
