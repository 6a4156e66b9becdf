"""What ``hetfl headtohead`` does: what is asked for, the runs, and the table."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from hetfl_book.headtohead import ranking, running
from hetfl_book.headtohead.entries import ALONE, Entry, entries, entry_of
from hetfl_book.headtohead.federations import FEDERATIONS, SIZES, Size, data_of
from hetfl_book.headtohead.running import Bench, Task
from hetfl_core import checks
from hetfl_core.errors import WrongValue
from hetfl_core.files import data_path, results_home
from hetfl_core.methods import Method


def planned(
    names: str | None = None,
    methods: Sequence[str] | None = None,
    size: str | None = None,
    add: str | None = None,
    out: Path | None = None,
    *,
    tune_only: bool = False,
) -> tuple[Bench, list[list[Task]]]:
    """What is to be run.

    Parameters
    ----------
    names : str, optional
        Of federations, with commas; by default all whose files are at hand.
    methods : sequence of str, optional
        By default all, or with `add` the added one; training alone always is among them.
    size : {"all", "tenth"}, optional
    add : str, optional
        ``"my_module:MyMethod"``: a `Method`, its class, or a function that gives an `Entry`.
    out : Path, optional
        Folder of new records.
    tune_only : bool

    Returns
    -------
    Bench
    list of list of Task

    Raises
    ------
    ValueError
        For a name that nothing has, an `add` that is none of these, and one of which there are finals of something else
        than would be run.
    """
    wanted = named(names) if names else [n for n, s in FEDERATIONS.items() if s.available]
    sizes: Sequence[Size] = [one for one in SIZES if size in (None, one)]
    if not sizes:
        checks.choice("size", size, SIZES)
    lines = dict(entries())
    if add is not None:
        name, line = _added(add, wanted[0])
        if name in lines:
            raise WrongValue(f"add: {name!r} takes part already: give the method another name")
        lines[name] = line
        methods = [*(methods or ()), name]
    for method in methods or ():
        if method not in lines:
            raise WrongValue(checks.unknown("methods", method, lines))
    chosen = list(dict.fromkeys([ALONE, *(methods or lines)]))
    bench = Bench(results_home() if out is None else out, lines, (data_path("results"),))
    stages = running.tasks(bench, wanted, sizes, chosen)
    if add is not None:
        running.check(bench, stages)
    if tune_only:
        stages = [[task for task in stage if task.what == "tuning"] for stage in stages]
    return bench, stages


def named(names: str) -> list[str]:
    """The federations of a text with commas.

    Raises
    ------
    ValueError
        For a name that none has.
    """
    return [checks.choice("federations", name.strip(), tuple(FEDERATIONS)) for name in names.split(",")]


def _added(place: str, name: str) -> tuple[str, Entry]:
    module, _, attribute = place.partition(":")
    if not attribute:
        raise WrongValue(f"add must look like my_module:MyMethod, got {place!r}")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise WrongValue(f"add: {place!r} cannot be had: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
    made = found() if callable(found) and not isinstance(found, Method) else found
    if isinstance(made, Entry):
        return str(getattr(made.method, "name", attribute)), made
    checks.instance("add", made, Method, Entry)
    return made.name, entry_of(made, data_of(name, 0))


def make(bench: Bench, stages: Sequence[Sequence[Task]], n_jobs: int) -> int:
    """Make what is missing, with one bar; how many records were written."""
    with tqdm(total=sum(map(len, stages)), desc="head to head", unit="task") as bar:

        def done(task: Task, written: int) -> None:
            bar.set_postfix_str(f"{task.name}, {task.size}: {task.label}, {task.what}" if written else "")
            bar.update()

        return running.make_missing(bench, stages, n_jobs, done)


def ranked(bench: Bench, stages: Sequence[Sequence[Task]]) -> str:
    """The table of these federations and methods, best mean rank first; an added one stands among all with finals."""
    wanted = {(task.name, task.size, task.method) for stage in stages for task in stage}
    cases, added = {key[:2] for key in wanted}, bench.lines.keys() - entries().keys()
    folders = [bench.out, *bench.also]
    found = ranking.cells(ranking.finals(folders), staying=ranking.best_alone(folders))
    methods = found["method"].str.removesuffix(running.OWN_STEP)
    keys = list(zip(found["federation"], found["size"], methods, strict=True))
    lost = sorted(key for key in wanted - {*keys} if key[2] in added)
    told = [key in wanted or bool(added and key[:2] in cases) for key in keys]
    shown = ranking.text(found.loc[np.array(told, dtype=bool)])
    return "\n".join([shown, *(f"no finals of {method!r} on {name}, {size}" for name, size, method in lost)])


def overview(names: Sequence[str] | None = None) -> Iterator[str]:
    """Federations, by default all, with their sizes, and why some methods have no runs there."""
    for name, setting in FEDERATIONS.items():
        if names is not None and name not in names:
            continue
        if not setting.available:
            yield f"{name}: {setting.title}; its files are not here"
            continue
        data = data_of(name, 0)
        rows = sum(client.n_train for client in data), sum(client.n_test for client in data)
        yield f"{name}: {setting.title}; {len(data)} clients, {rows[0]} training and {rows[1]} test rows"
        reasons: dict[str, list[str]] = {}
        for method, line in entries().items():
            if reason := running.why_not(line, name):
                reasons.setdefault(reason, []).append(method)
        yield from (f"    without {', '.join(methods)}: {reason}" for reason, methods in reasons.items())
