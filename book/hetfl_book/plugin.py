"""What ``hetfl`` does beside the core's: runs of experiments and of head to head, their records, and the ledger."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm.auto import tqdm

from hetfl_core import numerics
from hetfl_core.cli_options import Fastest, Workers, check_folder, if_stopped
from hetfl_core.errors import UnknownName, WrongValue

commands = typer.Typer()

Jobs = Annotated[
    int | None,
    typer.Option(help="Processes that share the runs; by default one a core, on a GPU one. The results are the same."),
]


def data_sets() -> dict[str, Callable[..., Any]]:
    """The book's data sets by name."""
    from hetfl_book.datasets import CATALOGUE

    return CATALOGUE


def listing() -> dict[str, dict[str, str]]:
    """The experiments, as ``hetfl list`` shows them."""
    from hetfl_book.experiments import EXPERIMENTS

    return {"Experiments": {name: experiment.title for name, experiment in EXPERIMENTS.items()}}


def described(name: str) -> list[str]:
    """An experiment with its methods, as ``hetfl list NAME`` shows it."""
    from hetfl_book.experiments import EXPERIMENTS

    if name not in EXPERIMENTS:
        return []
    return [EXPERIMENTS[name].title, "--method:", *(f"  {method}" for method in EXPERIMENTS[name].methods)]


def peers() -> Iterator[str]:
    """What ``hetfl bench --peers`` prints, line by line."""
    from hetfl_book.peers import table

    return table.report()


@commands.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of an experiment; see `hetfl list`.")] = None,
    scale: Annotated[str, typer.Option(help="paper: the published setting; book: CPU minutes.")] = "book",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds, from 0 on; by default as the paper.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods.")] = None,
    pending: Annotated[
        bool, typer.Option("--pending", help="The unfinished runs, as data/queue.toml lists them.")
    ] = False,
    budget: Annotated[str | None, typer.Option(help="Begin no round after this time: 90s, 9m, 2h.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the records; by default HETFL_RESULTS, or one in the user's cache.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Run what has a record already.")] = False,
    jobs: Jobs = None,
    workers: Workers = None,
    fastest: Fastest = False,
) -> None:
    """Run an experiment of a paper, or the pending ones; every record is written as its run ends."""
    from hetfl_book import experiments
    from hetfl_core.engine.options import choose_device

    if name is None and not pending:
        raise WrongValue("name one experiment, or give --pending")
    if name is not None and pending:
        raise WrongValue(f"name one experiment or give --pending, not both: got {name!r} and --pending")
    at: Any = scale
    todo = _pending(at, seeds, method, out) if pending else experiments.jobs(str(name), at, seeds, method)
    options: dict[str, Any] = {"device": device, "budget": seconds(budget), "again": again, "workers": workers}
    options["n_jobs"] = _processes(jobs, choose_device(device).type)
    if out is not None:
        check_folder(out)
    print(f"{len(todo)} runs")
    for command in experiments.commands() if pending else ():
        print(f"listed, and not among these: {command}")
    elsewhere = set(todo)
    with if_stopped(lambda: "finished runs are written; the same command goes on where this one was stopped"):
        try:
            for job, path in experiments.reproduce(todo, out, **options):
                told = path or "stopped; will be resumed"
                tqdm.write(f"{job.experiment} {job.scale} {job.method} seed {job.seed}: {told}")
                elsewhere = elsewhere - {job} if path else set()
        except Exception as error:
            print("\n".join(getattr(error, "__notes__", [])), file=sys.stderr)
            raise
    if elsewhere:
        print(f"{len(elsewhere)} runs are left to other processes that are at them")
    if out is None and len(elsewhere) < len(todo):
        print("`hetfl ledger --out` with their folder sets them beside the papers' numbers; `hetfl collect` keeps them")


@commands.command()
def pack(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of the records; by default the checkout's data/results.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is to be packed; fail if there is any.")
    ] = False,
) -> None:
    """Take new records into one file an experiment, as they are committed."""
    from hetfl_core import records

    changed = records.pack(folder, check=check)
    for path in changed:
        print(f"{path}: {'to be packed, by `hetfl pack`' if check else 'packed'}")
    if check and changed:
        raise typer.Exit(1)


@commands.command()
def collect(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of new records; by default where `hetfl reproduce` writes.")
    ] = None,
    experiment: Annotated[list[str] | None, typer.Option(help="Only the records of these experiments.")] = None,
    busy: Annotated[
        bool, typer.Option("--busy", help="Mark them as made beside other work: no figure of time takes their seconds.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Let them replace records of the same runs.")] = False,
) -> None:
    """Take new records into data/results, to be committed, if each could be made again from a commit of the history."""
    from hetfl_book import collecting
    from hetfl_core.files import results_home

    source = results_home() if folder is None else folder
    taken = collecting.collect(source, only=experiment or (), busy=busy, again=again)
    print("\n".join(collecting.overview(taken)) or f"{source} has no record that is not in data/results")


@commands.command()
def headtohead(
    federations: Annotated[str | None, typer.Option(help="Only these, with commas; see --list.")] = None,
    methods: Annotated[list[str] | None, typer.Option("--methods", help="Only this method; may come again.")] = None,
    size: Annotated[str | None, typer.Option(help="all or tenth; by default both.")] = None,
    add: Annotated[
        str | None, typer.Option(help="A method of your own, as my_module:MyMethod; its table shows all with records.")
    ] = None,
    tune_only: Annotated[bool, typer.Option("--tune-only", help="Choose settings, and run no finals.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Run nothing: print the table of what is there.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="The federations, and what takes part on each.")] = False,
    describe: Annotated[
        bool, typer.Option("--describe", help="Keep what they look like in data/headtohead.csv, which the guide reads.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of new records; by default HETFL_RESULTS, or one in the user's cache.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Processes that share the runs; by default one. The results are the same.")
    ] = 1,
) -> None:
    """Every method on every federation, tuned alike: make what is missing, and print the ranked table."""
    from hetfl_book.headtohead import command, portraits

    names = None if federations is None else command.named(federations)
    if listed:
        print("\n".join(command.overview(names)))
        return
    if describe:
        print(portraits.keep(names))
        return
    if out is not None:
        check_folder(out)
    bench, stages = command.planned(federations, methods, size, add, out, tune_only=tune_only)
    if not table:
        with if_stopped(lambda: "finished runs are written; the same command goes on where this one was stopped"):
            command.make(bench, stages, jobs)
    print(command.ranked(bench, stages))


@commands.command("verify")
def verify_records(
    experiment: Annotated[list[str] | None, typer.Option(help="Only the records of these experiments.")] = None,
    sample: Annotated[int | None, typer.Option(help="Draw so many records; by default all.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Begin no round after this time (90s, 9m, 2h). Cheap records are preferred; "
            "making the data of a record is charged, but not cut short."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws another sample.")] = 0,
    scale: Annotated[str, typer.Option(help="paper or book")] = "paper",
    records: Annotated[Path | None, typer.Option(help="Folder of the records; by default data/results.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    jobs: Jobs = None,
    fastest: Fastest = False,
) -> None:
    """Run records again: same bits, within the spread of seeds, or different, and why. Nothing is written."""
    from hetfl_book import experiments, ledger, verification
    from hetfl_core.engine.options import choose_device

    limit, n_jobs = seconds(budget), _processes(jobs, choose_device(device).type)
    for name in experiment or ():
        experiments.find(name)
    stored = [r for r in ledger.load(records) if r.scale == scale and (not experiment or r.experiment in experiment)]
    able = [r for r in stored if verification.can_run(r)]
    todo = verification.sample(able, sample, seed=seed, budget=limit)
    now = ", ".join(f"{name} {value}" for name, value in numerics.in_effect().items())
    print(f"{len(stored)} records, {len(able)} of which can be run here; {len(todo)} are run again ({now})", flush=True)
    done = []
    options: dict[str, Any] = {"budget": limit, "device": device, "n_jobs": n_jobs, "progress": True}
    for check in verification.verify(todo, among=stored, **options):
        done.append(check)
        tqdm.write(f"{check.record.experiment} {check.record.method} seed {check.record.seed}: {check.verdict}")
    if done:
        print(f"\n{verification.shown(done)}\n")
    print(verification.summary(done))
    if any(check.verdict in (verification.DIFFERENT, verification.FAILED) for check in done):
        raise typer.Exit(1)


def _processes(asked: int | None, device: str) -> int:
    """How many processes runs are shared among: as many as were asked for, or one a core; a GPU is for one."""
    from hetfl_core import checks
    from hetfl_core.numerics import usable_cores

    if asked is not None:
        return checks.integer("jobs", asked, 1)
    return usable_cores() if device == "cpu" else 1


@commands.command()
def arithmetic(
    experiment: Annotated[str, typer.Argument(help="Name of an experiment; see `hetfl list`.")],
    method: Annotated[str, typer.Option(help="Name of one of its methods.")],
    seed: Annotated[int, typer.Option(help="The one seed.")] = 0,
    mode: Annotated[list[str] | None, typer.Option(help="portable, fastest or scalar; all by default.")] = None,
    stack: Annotated[list[int] | None, typer.Option(help="Most clients in a stack; 1024 and 3 by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the records; by default HETFL_RESULTS, or one in the user's cache.")
    ] = None,
) -> None:
    """One run with one seed, rounded in several ways: other instructions, other stacks. Each is a record."""
    from hetfl_book import experiments, verification
    from hetfl_core.files import results_home

    [job] = experiments.jobs(experiment, "paper", [seed], [method])
    for name in mode or ():
        if name not in numerics.MODES:
            raise WrongValue(f"mode must be one of {numerics.MODES}, got {name!r}")
    modes: Any = mode or numerics.MODES
    folder = out or results_home()
    check_folder(folder)
    for path in verification.vary(job, modes, stack or (1024, 3), folder):
        print(path, flush=True)


def _pending(scale: Any, seeds: int | None, methods: list[str] | None, out: Path | None) -> list[Any]:
    """The pending jobs; of these methods alone, where some are named."""
    from hetfl_book import experiments
    from hetfl_core.checks import unknown

    todo = experiments.pending(scale, seeds, out)
    known = list(dict.fromkeys(job.method for job in todo))
    for method in methods or ():
        if not known:
            raise UnknownName(f"no run is pending, of {method!r} as of any other method")
        if method not in known:
            raise UnknownName(unknown("method of a pending run", method, known))
    return [job for job in todo if not methods or job.method in methods]


def seconds(text: str | None) -> float | None:
    """``"90s"``, ``"9m"``, ``"2h"`` or plain seconds, as a number of seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or float(match[1]) <= 0:
        raise WrongValue(f"budget must look like 90s, 9m or 2h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


@commands.command()
def ledger(
    claims: Annotated[bool, typer.Option("--claims", help="The papers' claims instead of their numbers.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also the lines for which we have no runs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also read the records in this folder.")] = None,
) -> None:
    """What the papers say beside what we got."""
    from hetfl_book import experiments, ledger

    found = ledger.load() + (ledger.load(out) if out else [])
    table = experiments.claims(found) if claims else experiments.numbers(found)
    judged = table["seeds"].map(len) > 0
    print(ledger.show(table if everything else table[judged]))
    if not everything:
        print("\nWithout runs (--all shows them):")
        for verdict, count in table[~judged]["verdict"].value_counts().items():
            print(f"{count:>5}  {verdict}")
        for command in dict.fromkeys(c for c in table["command"] if c):
            print(f"       {command}")
