"""What several chapters show in the same way: records beside a paper's numbers, and what to say without any."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from IPython.display import Markdown, display

from hetfl_book import ledger
from hetfl_book.experiments import find
from hetfl_book.figures.anchors import aligned as aligned
from hetfl_book.figures.anchors import embedded as embedded
from hetfl_book.ledger.tables import few, plus_minus
from hetfl_core import checks
from hetfl_core.datasets.registry import DataError
from hetfl_core.federation import Federation

Made = TypeVar("Made")


def files_or_note(make: Callable[[], Made], name: str, instead: str) -> Made | None:
    """The data, or None, visibly, where their files are neither in the data folder nor to be downloaded.

    Parameters
    ----------
    make : callable
        Makes the data; may raise `hetfl_core.datasets.DataError`.
    name : str
        What the reader knows the data by.
    instead : str
        What is shown in their place.
    """
    try:
        return make()
    except DataError:
        why = f"The files of `{name}` are neither in the data folder nor to be downloaded"
        display(Markdown(f"> **Data not at hand.** {why}; what follows shows {instead} instead."))
        return None


def real_or_made(make: Callable[..., Made]) -> Made:
    """What was recorded, or, visibly, made data of the same columns, gaps and rates where the files are not there.

    Parameters
    ----------
    make : callable
        ``make()`` gives what was recorded, or raises `hetfl_core.datasets.DataError`; ``make(made=True)`` makes some.
    """
    try:
        return make()
    except DataError:
        why = "The recorded patients are neither in the data folder nor to be downloaded"
        instead = "cells that need them work on made-up ones with the same columns and gaps"
        display(Markdown(f"> **Made-up patients.** {why}. So {instead}. The text is about the recorded ones."))
        return make(made=True)


def say(*lines: str) -> None:
    """Show lines of Markdown."""
    display(Markdown("\n".join(lines)))


def listing(*parts: Any) -> None:
    """The source of functions or classes of the core, so that what a page shows cannot be out of date."""
    source = "\n\n".join(textwrap.dedent(inspect.getsource(part)).strip() for part in parts)
    display(Markdown(f"```python\n{source}\n```"))


VERDICTS = {
    "agrees": ("agrees", "agree"),
    "higher": ("is higher", "are higher"),
    "lower": ("is lower", "are lower"),
    "holds": ("holds", "hold"),
    "open": ("is open", "are open"),
    "reverses": ("is reversed", "are reversed"),
    "fails": ("fails", "fail"),
}
"""How the ledger's verdicts are said of one number or claim, and of several."""


def listed(words: Iterable[str]) -> str:
    """Words as a list in a sentence, "a, b and c"; without any, "none"."""
    found = checks.names("words", words)
    return ", ".join(found[:-1]) + " and " * (len(found) > 1) + found[-1] if found else "none"


def of_verdicts(verdicts: Iterable[str]) -> str:
    """How often each verdict of the ledger was given, "3 hold, 1 is open"; others than `VERDICTS` are left out."""
    return counted_verdicts(pd.Series(list(verdicts), dtype=str).value_counts().to_dict())


def counted_verdicts(counts: Mapping[str, int]) -> str:
    """The same of verdicts that are counted already, as in `hetfl_book.ledger.Tally`."""
    n = checks.mapping("counts", counts)
    told = [f"{n[v]} {words[int(n[v] > 1)]}" for v, words in VERDICTS.items() if n.get(v)]
    return ", ".join(told) or "none can be judged yet"


def labels_of(federation: Federation, split: str = "train") -> dict[str, np.ndarray]:
    """The labels of every client's samples, by name, shape (n_i,)."""
    checks.choice("split", split, ("train", "test"))
    return {client.name: getattr(client, f"y_{split}").numpy() for client in federation}


def histories(experiment: str, scale: str | None = "paper") -> dict[str, list[pd.DataFrame]]:
    """Histories of the stored runs by method, one per seed, in the order of the experiment's methods."""
    stored = ledger.load(experiment=experiment, scale=scale)
    return {m: h for m in find(experiment).methods if (h := [r.frame() for r in stored if r.method == m])}


def no_records(*experiments: str) -> None:
    """Say that there are no records, and which commands make them."""
    commands = "\n".join(ledger.command(experiment) for experiment in experiments)
    display(Markdown(f"> **No records yet.** These make them:\n\n```bash\n{commands}\n```"))


def beside(rows: pd.DataFrame) -> None:
    """Some lines of `hetfl_book.ledger.numbers`, a table a setting, narrow enough for a phone."""
    for setting, lines in rows.groupby("setting", sort=False):
        table = [
            (r.method, plus_minus(r.published, r.published_sd, sd_form="g"), _ours(r), ledger.in_full(r._asdict()))
            for r in lines.itertuples()
        ]
        display(Markdown(_caption(str(setting), lines)))
        display(ledger.show(pd.DataFrame(table, columns=["method", "paper", "ours", "verdict"])))


def _ours(row: object) -> str:
    runs, mean, sd = (getattr(row, name) for name in ("ours_runs", "ours", "ours_sd"))
    return plus_minus(mean, sd) + few(runs) if runs else "–"


def _caption(setting: str, lines: pd.DataFrame) -> str:
    first = lines.iloc[0]
    seeds, commits = (sorted(set(lines[c].explode().dropna())) for c in ("seeds", "commits"))
    behind = f"seeds {', '.join(map(str, seeds))}; commit {', '.join(commits)}" if seeds else "no runs yet"
    source = f"{ledger.SOURCES[first['paper']]}, Table {first['table']}, {setting}"
    return f"**{source}**, accuracy in %, mean ± sd. Ours: paper scale, {behind}."


def pending(rows: pd.DataFrame) -> None:
    """The commands that make what some lines of the ledger still lack; nothing where nothing is pending."""
    waiting = rows.loc[rows["verdict"] == "pending", "command"].unique()
    if len(waiting):
        display(Markdown("Pending; these make them:\n\n```bash\n" + "\n".join(waiting) + "\n```"))
