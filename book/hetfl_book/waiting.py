"""What waits to be run: ``data/queue.toml``, most wanted first."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.files import data_path


@dataclass(frozen=True)
class Line:
    """What is run together, and why.

    Attributes
    ----------
    decides : str
        What is open without it.
    hours : float
        Core-hours.
    experiments : tuple of str
        Names of experiments; empty where there is a `command`.
    methods : tuple of str
        Of each of them; empty for all.
    seeds : int or tuple of int, optional
        How many, or which; None for as many as each experiment wants.
    new : bool
        The experiments are still to be defined.
    command : str
        What makes the runs, where they are none of experiments.
    """

    decides: str
    hours: float
    experiments: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: int | tuple[int, ...] | None = None
    new: bool = False
    command: str = ""


def queue(path: str | Path | None = None) -> list[Line]:
    """The lines of a list of runs.

    Parameters
    ----------
    path : path, optional
        By default ``data/queue.toml``, whose first lines explain its words.

    Returns
    -------
    list of Line

    Raises
    ------
    ValueError
        If a line lacks something, or says what is not known; the message names the file and the line.
    """
    path = data_path("queue.toml") if path is None else checks.path("path", path)
    try:
        content = tomllib.loads(path.read_text("utf8"))
        runs = checks.sequence("run", content.pop("run", []))
        if content:
            raise WrongValue(f"it holds lists of [[run]] alone, got {', '.join(content)}")
    except (ValueError, TypeError) as error:
        raise WrongValue(f"{path} is no list of runs: {error}") from error
    return [_line(run, f"{path}, run {number},") for number, run in enumerate(runs, 1)]


KEYS = {"experiment" if f.name == "experiments" else f.name for f in fields(Line)}


def _line(run: Any, where: str) -> Line:
    try:
        found = dict(checks.mapping("run", run))
        if strange := sorted(set(found) - KEYS):
            raise WrongValue(f"it has no key {', '.join(strange)}: only {', '.join(sorted(KEYS))}")
        checks.nonempty_str("decides", found.get("decides", ""))
        checks.number("hours", found.get("hours"), 0)
        checks.flag("new", found.get("new", False))
        for name in ("experiment", "methods"):
            value = found.pop(name, ())
            found["experiments" if name == "experiment" else name] = (
                (value,) if isinstance(value, str) else tuple(value)
            )
        if bool(found["experiments"]) is bool(found.get("command")):
            raise WrongValue("it names either experiments or a command")
        if found.get("seeds") is not None:
            seeds = found["seeds"]
            checks.seeds(seeds)
            found["seeds"] = tuple(seeds) if isinstance(seeds, list) else seeds
    except (ValueError, TypeError) as error:
        raise WrongValue(f"{where} cannot be read: {error}") from error
    return Line(**found)
