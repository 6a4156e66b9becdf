"""What several chapters show in the same way: records beside a paper's numbers, and what to say without any."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import pandas as pd
from IPython.display import Markdown, display

from hetfl_core import ledger
from hetfl_core.datasets.registry import DataError
from hetfl_core.experiments import find

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


def say(*lines: str) -> None:
    """Show lines of Markdown."""
    display(Markdown("\n".join(lines)))


def listing(*parts: Any) -> None:
    """The source of functions or classes of the core, so that what a page shows cannot be out of date."""
    source = "\n\n".join(textwrap.dedent(inspect.getsource(part)).strip() for part in parts)
    display(Markdown(f"```python\n{source}\n```"))


def histories(experiment: str, scale: str | None = "paper") -> dict[str, list[pd.DataFrame]]:
    """Histories of the stored runs by method, one per seed, in the order of the experiment's methods."""
    stored = ledger.load(experiment=experiment, scale=scale)
    return {m: h for m in find(experiment).methods if (h := [r.frame() for r in stored if r.method == m])}


def no_records(*experiments: str) -> None:
    """Say that there are no records, and which commands make them."""
    commands = "\n".join(ledger.command(experiment) for experiment in experiments)
    display(Markdown(f"> **No records yet.** These make them:\n\n```bash\n{commands}\n```"))


def beside(rows: pd.DataFrame) -> None:
    """Some lines of `hetfl_core.ledger.numbers`, a table a setting, narrow enough for a phone."""
    for setting, lines in rows.groupby("setting", sort=False):
        table = [(r.method, _pair(r.published, r.published_sd), _ours(r), r.verdict) for r in lines.itertuples()]
        display(Markdown(_caption(str(setting), lines)))
        display(ledger.show(pd.DataFrame(table, columns=["method", "paper", "ours", "verdict"])))


def _pair(mean: float, sd: float) -> str:
    return f"{mean:.2f} ± {sd:g}" if pd.notna(sd) else f"{mean:.2f}"


def _ours(row: object) -> str:
    runs, mean, sd = (getattr(row, name) for name in ("ours_runs", "ours", "ours_sd"))
    return (f"{mean:.2f} ± {sd:.2f}" if pd.notna(sd) else f"{mean:.2f} (1 seed)") if runs else "–"


def _caption(setting: str, lines: pd.DataFrame) -> str:
    first = lines.iloc[0]
    seeds, commits = (sorted(set(lines[c].explode().dropna())) for c in ("seeds", "commits"))
    behind = f"seeds {', '.join(map(str, seeds))}; commit {', '.join(commits)}" if seeds else "no runs yet"
    source = f"{ledger.SOURCES[first['paper']]}, Table {first['table']}, {setting}"
    return f"**{source}**, accuracy in %, mean ± sd. Ours: paper scale, {behind}."


def in_words(rows: pd.DataFrame) -> Markdown:
    """The verdicts of some lines of the ledger as sentences."""
    judged = rows.dropna(subset=["ours"])
    agree = judged[judged["verdict"].str.startswith("agrees")]
    lines = [
        f"Of {len(rows)} numbers in this row we have {len(judged)}; {len(agree)} of them agree with the paper's by the "
        "ledger's rule."
    ]
    for r in judged.drop(agree.index).itertuples():
        lines.append(
            f"- **{r.method}** comes out {r.verdict}: {r.ours:.2f} here, {r.published:.2f} in the paper, "
            f"{r.difference:+.2f} points, where {r.tolerance:.2f} would pass."
        )
    lines += [f"- **{r.method}**: {r.verdict}." for r in rows[rows["ours"].isna()].itertuples()]
    return Markdown("\n".join(lines))


def pending(rows: pd.DataFrame) -> None:
    """The commands that make what some lines of the ledger still lack; nothing where nothing is pending."""
    waiting = rows.loc[rows["verdict"] == "pending", "command"].unique()
    if len(waiting):
        display(Markdown("Pending; these make them:\n\n```bash\n" + "\n".join(waiting) + "\n```"))
