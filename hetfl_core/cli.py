"""The command line: ``hetfl list | data | run | reproduce | pack | verify | arithmetic | ledger | bench | deploy``."""

from __future__ import annotations

import dis
import importlib
import inspect
import os
import re
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hetfl_core import numerics
from hetfl_core.deployment.commands import app as deploy_app

app = typer.Typer(
    help="Federated learning when clients do not share a feature space.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The files behind the data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


def main() -> None:
    """Run the command line; what it was asked wrongly is one message, a fault of its own keeps its traceback.

    With the environment variable HETFL_DEBUG set to anything but 0, every error shows its traceback.
    """
    numerics.hold(True if "--fastest" in sys.argv[1:] else None)  # here, before anything imports torch
    numerics.keep_freed_memory()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit("hetfl: stopped")
    except Exception as error:
        if os.environ.get("HETFL_DEBUG", "0") not in ("", "0") or not is_message(error):
            raise
        sys.exit(f"hetfl: {error.args[0] if isinstance(error, KeyError) else error}")


def is_message(error: BaseException) -> bool:
    """Whether an error was written for the user: a ``raise`` of this package, or the system's refusal of a file.

    The same kinds of error also come out of faults, of this package (a key that a dictionary lacks) or of others (two
    shapes that do not fit). There, no statement of ours says ``raise``, and the traceback is what helps.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return True
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or isinstance(error, AssertionError):
        return False
    code = at.tb_frame.f_code
    ours = Path(code.co_filename).is_relative_to(Path(__file__).parent)
    return ours and dis.opname[code.co_code[at.tb_lasti]] == "RAISE_VARARGS"


@app.command("list")
def list_() -> None:
    """Methods, data sets and experiments."""
    from hetfl_core.datasets import CATALOGUE
    from hetfl_core.experiments import EXPERIMENTS
    from hetfl_core.methods import CATALOGUE as METHODS

    for title, rows in (
        ("Methods", {name: method.summary for name, method in METHODS.items()}),
        ("Data sets", {name: _first_line(make) for name, make in CATALOGUE.items()}),
        ("Experiments", {name: e.title for name, e in EXPERIMENTS.items()}),
    ):
        print(f"{title}")
        for name, text in rows.items():
            print(f"  {name:<28} {text}")


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0].replace("`", "")


# --- data -----------------------------------------------------------------------------------------------------------


@data_app.command()
def status() -> None:
    """Which files are there, and whether they are the right ones."""
    from hetfl_core.datasets import registry

    print(f"Folder: {registry.data_home()}")
    print(registry.status().to_string(index=False))


@data_app.command()
def fetch(
    keys: Annotated[list[str] | None, typer.Argument(help="Files, or data sets; all if none is named.")] = None,
) -> None:
    """Download what is missing, and check it."""
    from hetfl_core.datasets import registry

    for key in _files(keys):
        print(f"{key}: {registry.fetch(key)}")


@data_app.command()
def verify(
    keys: Annotated[list[str] | None, typer.Argument(help="Files, or data sets; all if none is named.")] = None,
) -> None:
    """Compare the files' hashes with the registry's."""
    from hetfl_core.datasets import registry

    bad = 0
    for key in _files(keys):
        try:
            registry.verify(key)
            print(f"{key}: right")
        except registry.DataError as error:
            bad += 1
            print(f"{key}: {error}")
    if bad:
        raise typer.Exit(1)


def _files(keys: list[str] | None) -> list[str]:
    """The files that are named; where none is, all but the folders that are placed by hand."""
    from hetfl_core.datasets import registry

    by_itself = [key for key, entry in registry.entries().items() if not entry.official.folder]
    return [file for key in keys for file in _files_of(key)] if keys else by_itself


def _files_of(key: str) -> list[str]:
    """The files of a data set, none where it reads none of the registry's; another name is a file's."""
    from hetfl_core.datasets import CATALOGUE, registry

    if key not in CATALOGUE:
        return [key]
    files = registry.needs(key)
    if not files:
        print(f"{key}: needs no file of the registry")
    return files


# --- runs -----------------------------------------------------------------------------------------------------------

Fastest = Annotated[
    bool,
    typer.Option("--fastest", help="Compute with all that the CPU has, not with what every CPU has (see `main`)."),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Cores that one run uses; by default all. The result does not depend on it."),
]


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """``["seed=3", "variant=code"]`` → ``{"seed": 3, "variant": "code"}``."""
    out: dict[str, Any] = {}
    for pair in pairs or ():
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise ValueError(f"a setting must look like name=value, got {pair!r}")
        out[name.replace("-", "_")] = _value(text)
    return out


def _value(text: str) -> Any:
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.?\d+)(e[+-]?\d+)?", text, re.IGNORECASE):
        return float(text)
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _method(name: str, changes: dict[str, Any]) -> Any:
    from hetfl_core.experiments import unknown

    method = _imported(name) if ":" in name else _known(name)
    allowed = [f.name for f in fields(method) if isinstance(getattr(method, f.name), int | float | str)]
    for change in changes:
        if change not in allowed:
            raise KeyError(unknown(f"setting of {name}", change, allowed))
    return replace(method, **changes)


def _known(name: str) -> Any:
    """A method of the library, by its name in any case."""
    from hetfl_core.experiments import unknown
    from hetfl_core.methods import CATALOGUE

    known = {known.lower(): method for known, method in CATALOGUE.items()} | {"flic": CATALOGUE["FLIC-HL"]}
    if name.lower() not in known:
        raise KeyError(unknown("method", name, CATALOGUE))
    return known[name.lower()]


def _imported(path: str) -> Any:
    """A method of one's own, from ``package.module:Name``: a class at its defaults, or a method that is made already.

    Modules are also looked for in the working folder.
    """
    from hetfl_core.experiments import unknown
    from hetfl_core.methods import Method

    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ValueError(f"a method of your own must look like package.module:Name, got {path!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ImportError(f"no module {error.name!r} in {Path.cwd()} or among the installed packages") from error
    if not hasattr(module, attribute):
        methods = [name for name, thing in vars(module).items() if isinstance(thing, Method) or _is_method_class(thing)]
        raise KeyError(unknown(f"method of module {module_name}", attribute, methods or ["a subclass of Method"]))
    found = getattr(module, attribute)
    made = found() if _is_method_class(found) else found
    if not isinstance(made, Method):
        raise TypeError(f"{path} must be a subclass of hetfl_core.methods.Method or one made from it, got {found!r}")
    return made


def _is_method_class(thing: Any) -> bool:
    from hetfl_core.methods import Method

    return isinstance(thing, type) and issubclass(thing, Method)


def _federation(name: str, changes: dict[str, Any]) -> Any:
    from hetfl_core.datasets import CATALOGUE
    from hetfl_core.experiments import unknown

    if name not in CATALOGUE:
        raise KeyError(unknown("data set", name, CATALOGUE))
    try:
        inspect.signature(CATALOGUE[name]).bind(**changes)
        return CATALOGUE[name](**changes)
    except (TypeError, ValueError) as error:
        if not (changes or is_message(error)):
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in changes.items()) or "its defaults"
        raise ValueError(f"data set {name} cannot be made with {given}: {error}") from error


def _check_folder(folder: Path) -> None:
    """Make the folder of a record, and see that files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"out needs a folder that can be written to, got {folder} ({error.strerror})") from error


def _check_file(out: Path) -> None:
    """See that a record can be written to this file."""
    if out.is_dir():
        raise ValueError(f"out must be a file, got the folder {out}")
    _check_folder(out.parent)


@app.command()
def run(
    method: Annotated[str, typer.Argument(help="Name of a method (`hetfl list`), or your own as package.module:Name.")],
    federation: Annotated[str, typer.Option(help="Name of a data set; see `hetfl list`.")] = "digits.bundled",
    rounds: Annotated[int, typer.Option(help="Communication rounds T.")] = 10,
    participation: Annotated[float, typer.Option(help="Share of the clients in a round, r.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Keys every random number of the run.")] = 0,
    data: Annotated[list[str] | None, typer.Option(help="Settings of the data set, e.g. n_clients=20.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Settings of the method, e.g. local_epochs=5.")
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, stacked or loop")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    workers: Workers = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder from which a killed run goes on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the run's record to this file.")] = None,
    fastest: Fastest = False,
) -> None:
    """Run a method on a data set and print a table."""
    from hetfl_core import ledger
    from hetfl_core.engine.simulation import simulate
    from hetfl_core.engine.simulator import choose_device
    from hetfl_core.experiments import make_record

    chosen = _method(method, _settings(set_))
    choose_device(device)
    if out is not None:
        _check_file(out)
    fed = _federation(federation, _settings(data))
    ledger.code_revision()
    print(fed)
    result = simulate(
        fed, chosen, rounds=rounds, participation=participation, seed=seed, engine=engine, device=device,  # type: ignore[arg-type]
        workers=workers, checkpoint=checkpoint,
    )  # fmt: skip
    print(result.history.tail(10).to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    for name, value in result.final.items():
        print(f"{name:>20}: {value:.4g}" if isinstance(value, float) else f"{name:>20}: {value:,}")
    if out is not None:
        print(f"record: {ledger.write_to(make_record(result, f'run/{federation}', 'own', chosen.name), out)}")


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of an experiment; see `hetfl list`.")] = None,
    scale: Annotated[str, typer.Option(help="paper: the published setting; book: CPU minutes.")] = "book",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds, from 0 on; by default as the paper.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods.")] = None,
    pending: Annotated[bool, typer.Option("--pending", help="The unfinished runs, most wanted first.")] = False,
    budget: Annotated[str | None, typer.Option(help="Begin no round after this time: 90s, 9m, 2h.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the records; by default data/results, without a checkout results.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Run what has a record already.")] = False,
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Seeds of one setting share stacks: the same to rounding. Resumed only together."
        ),
    ] = False,
    workers: Workers = None,
    fastest: Fastest = False,
) -> None:
    """Run an experiment of a paper, or the pending ones; every record is written as its run ends."""
    from hetfl_core import experiments
    from hetfl_core.engine.simulator import choose_device

    if name is None and not pending:
        raise ValueError("name one experiment, or give --pending")
    if name is not None and pending:
        raise ValueError(f"name one experiment or give --pending, not both: got {name!r} and --pending")
    at: Any = scale
    todo = _pending(at, seeds, method, out) if pending else experiments.jobs(str(name), at, seeds, method)
    choose_device(device)
    if out is not None:
        _check_folder(out)
    print(f"{len(todo)} runs")
    elsewhere = set(todo)
    options: dict[str, Any] = {"device": device, "budget": seconds(budget), "again": again, "workers": workers}
    options["together"] = together
    for job, path in experiments.reproduce(todo, out, **options):
        print(f"{job.experiment} {job.scale} {job.method} seed {job.seed}: {path or 'stopped; will be resumed'}")
        elsewhere = elsewhere - {job} if path else set()
    if elsewhere:
        print(f"{len(elsewhere)} runs are left to other processes that are at them")


@app.command()
def pack(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of the records; by default data/results, without a checkout results.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is to be packed, and fail if there is any.")
    ] = False,
) -> None:
    """Take new records into one file an experiment, as they are committed."""
    from hetfl_core import ledger

    changed = ledger.pack(folder, check=check)
    for path in changed:
        print(f"{path}: {'to be packed, by `hetfl pack`' if check else 'packed'}")
    if check and changed:
        raise typer.Exit(1)


@app.command("verify")
def verify_records(
    experiment: Annotated[list[str] | None, typer.Option(help="Only the records of these experiments.")] = None,
    sample: Annotated[int | None, typer.Option(help="Draw so many records; by default all.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Begin no round after this time (90s, 9m, 2h); cheap records are preferred.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws another sample.")] = 0,
    scale: Annotated[str, typer.Option(help="paper or book")] = "paper",
    records: Annotated[Path | None, typer.Option(help="Folder of the records; by default data/results.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    fastest: Fastest = False,
) -> None:
    """Run records again: same bits, within the spread of seeds, or different, and why. Nothing is written."""
    from hetfl_core import experiments, ledger, verification
    from hetfl_core.engine.simulator import choose_device

    choose_device(device)
    limit = seconds(budget)
    for name in experiment or ():
        experiments.find(name)
    stored = [r for r in ledger.load(records) if r.scale == scale and (not experiment or r.experiment in experiment)]
    able = [r for r in stored if verification.can_run(r)]
    todo = verification.sample(able, sample, seed=seed, budget=limit)
    now = ", ".join(f"{name} {value}" for name, value in numerics.in_effect().items())
    print(f"{len(stored)} records, {len(able)} of which can be run here; {len(todo)} are run again ({now})", flush=True)
    done = []
    for check in verification.verify(todo, budget=limit, device=device, among=stored):
        done.append(check)
        r = check.record
        print(f"{r.experiment} {r.method} seed {r.seed}: {check.verdict}", flush=True)
    if done:
        print(f"\n{verification.shown(done)}\n")
    print(verification.summary(done))
    if any(check.verdict == verification.DIFFERENT for check in done):
        raise typer.Exit(1)


@app.command()
def arithmetic(
    experiment: Annotated[str, typer.Argument(help="Name of an experiment; see `hetfl list`.")],
    method: Annotated[str, typer.Option(help="Name of one of its methods.")],
    seed: Annotated[int, typer.Option(help="The one seed.")] = 0,
    mode: Annotated[list[str] | None, typer.Option(help="portable, fastest or scalar; all by default.")] = None,
    stack: Annotated[list[int] | None, typer.Option(help="Most clients in a stack; 1024 and 3 by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the records; by default data/results.")] = None,
) -> None:
    """One run with one seed, rounded in several ways: other instructions, other stacks. Each is a record."""
    from hetfl_core import experiments, verification
    from hetfl_core.files import results_home

    [job] = experiments.jobs(experiment, "paper", [seed], [method])
    for name in mode or ():
        if name not in numerics.MODES:
            raise ValueError(f"mode must be one of {numerics.MODES}, got {name!r}")
    modes: Any = mode or numerics.MODES
    folder = out or results_home()
    _check_folder(folder)
    for path in verification.vary(job, modes, stack or (1024, 3), folder):
        print(path, flush=True)


def _pending(scale: Any, seeds: int | None, methods: list[str] | None, out: Path | None) -> list[Any]:
    """The pending jobs; of these methods alone, where some are named."""
    from hetfl_core import experiments

    todo = experiments.pending(scale, seeds, out)
    known = list(dict.fromkeys(job.method for job in todo))
    for method in methods or ():
        if not known:
            raise KeyError(f"no run is pending, of {method!r} as of any other method")
        if method not in known:
            raise KeyError(experiments.unknown("method of a pending run", method, known))
    return [job for job in todo if not methods or job.method in methods]


def seconds(text: str | None) -> float | None:
    """``"90s"``, ``"9m"``, ``"2h"`` or plain seconds, as a number of seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or float(match[1]) <= 0:
        raise ValueError(f"budget must look like 90s, 9m or 2h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


@app.command()
def ledger(
    claims: Annotated[bool, typer.Option("--claims", help="The papers' claims instead of their numbers.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also the lines for which we have no runs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also read the records in this folder.")] = None,
) -> None:
    """What the papers say beside what we got."""
    from hetfl_core import ledger
    from hetfl_core.experiments import known

    found = ledger.load() + (ledger.load(out) if out else [])
    judge = ledger.claims if claims else ledger.numbers
    table = judge(found, known=known())
    judged = table["seeds"].map(len) > 0
    print(ledger.show(table if everything else table[judged]))
    if not everything:
        print("\nWithout runs (--all shows them):")
        for verdict, count in table[~judged]["verdict"].value_counts().items():
            print(f"{count:>5}  {verdict}")
        for command in dict.fromkeys(c for c in table["command"] if c):
            print(f"       {command}")


@app.command()
def bench(
    sizes: Annotated[str, typer.Option(help="Numbers of clients.")] = "10,100,1000,10000",
    loop_up_to: Annotated[int, typer.Option(help="Largest federation for which the slow loop is timed.")] = 100,
    experiment: Annotated[
        str | None, typer.Option(help="Time one run of an experiment instead, at paper scale.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Which of its methods; by default the first.")] = None,
    against: Annotated[
        str | None, typer.Option(help="A command of the shell to time beside that run, such as a published code's.")
    ] = None,
    workers: Workers = None,
) -> None:
    """How fast is this machine? Loop against stack, time per client, memory, where a step goes; or one whole run."""
    from hetfl_core import benchmark, experiments

    if experiment is None:
        if against is not None or method is not None:
            raise ValueError("method and against need an experiment to time")
        for line in benchmark.report(_sizes(sizes), loop_up_to):
            print(line, flush=True)
        return
    job = experiments.jobs(experiment, "paper", 1, None if method is None else [method])[0]
    theirs = None if against is None else benchmark.command(against)
    ours = benchmark.timed(lambda: experiments.run_job(job, "cpu", resume=False, workers=workers))
    print(f"{job.experiment}, {job.method}, seed {job.seed}")
    for line in benchmark.beside(ours, theirs):
        print(line)


def _sizes(text: str) -> tuple[int, ...]:
    """``"10,100"`` → ``(10, 100)``."""
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise ValueError(f"sizes must look like 10,100,1000, got {text!r}")
    return tuple(int(size) for size in text.split(","))


if __name__ == "__main__":
    main()
