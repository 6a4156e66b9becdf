"""Records that were made elsewhere, checked and taken into ``data/results``, where they are committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from hetfl_book import experiments, headtohead, ledger
from hetfl_book.headtohead.entries import entries
from hetfl_book.headtohead.federations import FEDERATIONS, SIZES
from hetfl_book.headtohead.running import APART, FAMILY, OWN_STEP, TUNING
from hetfl_book.ledger import RunRecord
from hetfl_book.ledger.arithmetic import ARITHMETIC
from hetfl_book.verification import same_numbers
from hetfl_core import checks, records
from hetfl_core.errors import WrongValue
from hetfl_core.files import kept_results
from hetfl_core.records import provenance

SHOWN = 5
"""How many refused records an error names for each reason."""


def collect(
    folder: str | Path,
    into: str | Path | None = None,
    *,
    only: Collection[str] = (),
    busy: bool = False,
    again: bool = False,
) -> list[RunRecord]:
    """Take the records of a folder into the committed ones, all or none of them.

    Parameters
    ----------
    folder : path
        Where `hetfl_book.experiments.reproduce` or `hetfl headtohead` wrote. It stays as it is.
    into : path, optional
        The results folder to take them into; by default the checkout's ``data/results``. It is packed afterwards.
    only : collection of str
        Experiments whose records are taken; by default all.
    busy : bool
        Mark them as made on a busy machine (`RunRecord.busy`).
    again : bool
        Let them replace records of the same runs that have other numbers.

    Returns
    -------
    list of RunRecord
        Those that were taken in: none of a run that has a record with the same numbers already.

    Raises
    ------
    ValueError
        If one of them is refused (`objection`), with the reason; nothing is written then.
    FileNotFoundError
        If there is no such folder.
    """
    root = kept_results() if into is None else checks.path("into", into)
    for name in only:
        checks.nonempty_str("only", name)
    found = [r for r in ledger.load(checks.path("folder", folder)) if not only or r.experiment in only]
    if missing := sorted(set(only) - {r.experiment for r in found}):
        raise WrongValue(f"{folder} has no records of {', '.join(missing)}")
    there = {r.relative_path: r for r in ledger.load(root)} if root.is_dir() else {}
    new = [r for r in found if r.relative_path not in there or not same_numbers(r, there[r.relative_path])]
    history = provenance.history()
    refused = {r.relative_path: reason for r in found if (reason := objection(r, history))}
    for record in new if not again else ():
        old = there.get(record.relative_path)
        if old is not None and not experiments.outdated(old):
            refused.setdefault(record.relative_path, "another record of the run is there, which --again replaces")
    if refused:
        raise WrongValue(_refusal(folder, refused))
    for record in new:
        hardware = record.hardware | ({"busy": True} if busy else {})
        records.write(replace(record, hardware=hardware, path=None), root)
    if new:
        records.pack(root)
    return new


def objection(record: RunRecord, history: Collection[str] | None) -> str:
    """The reason why a record cannot be committed; empty where there is none.

    Its code must be a commit of the history, without changes, and it must be of a run as it would be made now.

    Parameters
    ----------
    record : RunRecord
    history : collection of str or None
        As `hetfl_core.records.provenance.history` gives it.
    """
    if record.dirty is not False:
        return "its code had changes that were not committed" if record.dirty else "its commit is not known"
    if history is None:
        return "this is no git clone with all commits, so its commit cannot be looked for"
    if record.commit not in history:
        return f"its commit {record.commit[:10]} is not in the history"
    return _strange(record)


def _strange(record: RunRecord) -> str:
    """What is unknown here of the run of a record: its experiment, its method, or a setting."""
    if record.experiment.startswith("headtohead/"):
        return _strange_on_the_bench(record)
    if record.experiment.startswith(f"{ARITHMETIC}/"):  # the run of another one, computed otherwise
        run = record.settings.get("of", {})
        if set(run) != {"scale", "method"}:
            return "its settings do not say which run was computed otherwise"
        record = replace(record, experiment=record.experiment.removeprefix(f"{ARITHMETIC}/"), **run)
    setting = experiments.EXPERIMENTS.get(record.experiment)
    if setting is None:
        return "there is no such experiment"
    if record.method not in setting.methods:
        return "the experiment has no such method"
    if record.scale not in ("book", "paper"):
        return f"no experiment is run at scale {record.scale!r}"
    at = setting.at(record.scale)
    told = {name: record.settings.get(name) for name in ("rounds", "participation")}
    alike = told["rounds"] == 0 or told == {name: getattr(at, name) for name in told}  # a baseline knows no rounds
    if experiments.outdated(record) or (at.perform is None and not alike):
        return "the experiment runs the method with other settings now"
    return ""


def _strange_on_the_bench(record: RunRecord) -> str:
    names = {f"headtohead/{name}-{size}{end}" for name in FEDERATIONS for size in SIZES for end in ("", TUNING, APART)}
    if record.experiment not in names:
        return "the head to head has no such federation"
    if record.method.removesuffix(OWN_STEP) not in {*entries(), FAMILY}:
        return "the head to head has no such method"
    if record.settings.get("protocol") != headtohead.VERSION:
        return f"the rules of the head to head are of version {headtohead.VERSION} now"
    return ""


def _refusal(folder: str | Path, refused: dict[str, str]) -> str:
    parts = [f"nothing was taken from {folder}, for {len(refused)} records are refused"]
    for reason, count in Counter(refused.values()).items():
        places = [place for place, why in refused.items() if why == reason]
        rest = f" and {count - SHOWN} more" if count > SHOWN else ""
        parts.append(f"{reason}: {'; '.join(places[:SHOWN])}{rest}")
    return ".\n".join(parts)


def overview(taken: Sequence[RunRecord], into: str | Path | None = None) -> list[str]:
    """A line for each experiment of which records were taken in: how many, and how many of its runs are there now.

    Parameters
    ----------
    taken : sequence of RunRecord
    into : path, optional
        As of `collect`.
    """
    root = kept_results() if into is None else Path(into)
    lines = []
    for (experiment, scale), count in Counter((r.experiment, r.scale) for r in taken).items():
        line = f"{experiment} {scale}: {count} records taken in"
        if experiment in experiments.EXPERIMENTS:
            wanted = {job.relative_path for job in experiments.jobs(experiment, scale)}  # type: ignore[arg-type]
            have = {r.relative_path for r in ledger.load(root, experiment=experiment)}
            line += f", {len(wanted & have)} of its {len(wanted)} runs are there"
        lines.append(line)
    return lines
