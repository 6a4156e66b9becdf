"""The report from Python: what ``hetfl compare`` says of files, of tables that are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.files import write_atomically
from hetfl_core.preparation import Preparation
from hetfl_core.reporting import page
from hetfl_core.reporting.judging import Judgement, judge
from hetfl_core.reporting.trials import Tables, Trials, run_all

SITE = "site"
"""Column that names the site, where tables came by site."""


@dataclass(frozen=True, repr=False)
class Report:
    """Answer to the question whether learning together pays, with what it rests on.

    Parameters
    ----------
    trials : Trials
        All runs; ``trials.figures`` has a row for each way, split and site.
    judgement : Judgement
        What they say.
    html : str
        The page, which needs nothing else.
    """

    trials: Trials
    judgement: Judgement
    html: str

    @property
    def advice(self) -> str:
        """The recommendation in a sentence."""
        return page.advice(self.judgement)

    def save(self, path: str | Path) -> Path:
        """Write the page to an HTML file.

        Parameters
        ----------
        path : path

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        OSError
            If the disk refuses, naming the file.
        """
        file = checks.path("path", path)
        write_atomically(file, self.html.encode())
        return file

    def __repr__(self) -> str:
        return "\n".join(page.lines(self.trials, self.judgement))

    def _repr_html_(self) -> str:
        return self.html


def report(
    data: pd.DataFrame | Mapping[str, pd.DataFrame],
    client: str | None = None,
    target: str | None = None,
    *,
    methods: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 10,
    rounds: int = 10,
    test_size: float = 0.3,
    metric: str = "auc",
    prepare: Preparation | None = None,
    ignore: Sequence[str] = (),
    group: str | None = None,
    time: str | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
) -> Report:
    """Is it worth learning together? What ``hetfl compare`` answers of files, of tables in memory.

    Ways to learn are compared on splits of the same rows: each site alone, by the best of three ways, and together.

    Parameters
    ----------
    data : DataFrame, or dict of str to DataFrame
        One table with a column that names the site of each row, or a table for each site, by its name. Sites may have
        other columns than each other.
    client : str, optional
        The column that names the site; not with a dict.
    target : str
        The column that is to be predicted, a class.
    methods : sequence of str, optional
        Of ``"common"``, ``"zeros"``, ``"fusion"``, ``"hyfem"``, and names of methods; ways to stay alone are compared
        in any case.
    seeds : int or sequence of int
        Splits into training and test rows, at least three.
    rounds : int
        Communication rounds of each training.
    test_size : float
        Share of each site's rows that is for testing, in (0, 1).
    metric : str
        ``"auc"``, ``"balanced_accuracy"``, ``"accuracy"``, ``"f1"``, ``"log_loss"`` or ``"brier"``.
    prepare : Preparation, optional
        How tables become inputs; by default gaps are filled by medians, and words become columns of 0 and 1.
    ignore : sequence of str
        Columns that are no features.
    group, time : str, optional
        As for `Federation.from_frame`.
    n_jobs : int, optional
        As for `hetfl_core.compare`.
    progress : bool
        Show a bar.

    Returns
    -------
    Report
        It prints as the command does, shows its page in a notebook, and is written by ``save("report.html")``.

    Raises
    ------
    ValueError
        For a bad argument, and tables that are refused.
    TypeError
        Where `target` is missing.
    """
    checks.nonempty_str("target", target)
    if isinstance(data, Mapping):
        if client is not None:
            raise WrongValue(f"client is for one table of all rows; with a dict the sites are its keys, got {client!r}")
        for name, table in data.items():
            checks.instance(f"data[{name!r}]", table, pd.DataFrame)
            if SITE in table:
                raise WrongValue(
                    f"data[{name!r}] has a column {SITE!r}: drop it, for the dict says whose rows they are"
                )
        client, frame = SITE, pd.concat([table.assign(**{SITE: name}) for name, table in data.items()])
    else:
        checks.instance("data", data, pd.DataFrame)
        checks.nonempty_str("client", client)
        frame = data
    options: dict[str, Any] = {"client": client, "target": target, "ignore": list(ignore), "group": group, "time": time}
    options["prepare"] = Preparation() if prepare is None else prepare
    tables = Tables((), options, frame.reset_index(drop=True))
    told: dict[str, Any] = {"seeds": seeds, "rounds": rounds, "test_size": test_size, "metric": metric}
    found = run_all(tables, list(methods) if methods else None, **told, n_jobs=n_jobs, progress=progress)
    judged, files = judge(found), [f"{site.name}.csv" for site in found.first]
    return Report(found, judged, page.render(found, judged, options, files, ["--target", str(target)], written=False))
