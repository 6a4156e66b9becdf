"""The command line: ``hetfl list | data | compare | train | predict | run | bench | deploy``, and what plugins add."""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from click.exceptions import NoSuchOption, UsageError

from hetfl_core import cli_tables, keywords, numerics
from hetfl_core._version import __version__
from hetfl_core.cli_options import Fastest, Workers, check_file, if_stopped, pair
from hetfl_core.deployment.commands import app as deploy_app
from hetfl_core.errors import HetflError, NotInstalled, UnknownName, WrongType, WrongValue
from hetfl_core.plugins import data_sets, plugins


class _Commands(typer.core.TyperGroup):
    """Commands that say, when they are stopped by Ctrl-C, how to go on, and what is meant by another's option."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if "Did you mean" in error.message and hasattr(error, "possibilities"):
                error.possibilities = None  # Typer has said so, and newer versions of click would once more
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NoSuchOption as error:
            params = error.ctx.command.params if error.ctx else []
            known = [name.lstrip("-") for option in params for name in option.opts]
            if near := keywords.nearest(error.option_name.lstrip("-"), known):
                error.possibilities = [f"--{near}"]  # type: ignore[misc]
            raise
        except KeyboardInterrupt as stop:
            print("hetfl: stopped" + "".join(f"; {how}" for how in stop.args), file=sys.stderr)
            raise typer.Exit(130) from stop


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The files behind the data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


def main() -> None:
    """Run the command line; what it was asked wrongly is one message, a fault of its own keeps its traceback.

    A message is what was raised as a `HetflError`, or the system's refusal of a file or a connection.

    With the environment variable HETFL_DEBUG set to anything but 0, every error shows its traceback.
    """
    numerics.hold(True if "--fastest" in sys.argv[1:] else None)  # here, before anything imports torch
    numerics.keep_freed_memory()
    try:
        app()
    except (HetflError, OSError) as error:
        if os.environ.get("HETFL_DEBUG", "0") not in ("", "0"):
            raise
        sys.exit(f"hetfl: {error}")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hetfl-core {__version__}, Python {platform.python_version()}, torch {metadata.version('torch')}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print versions.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Federated learning when clients do not share a feature space."""


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="One of them, with what can be set.")] = None,
) -> None:
    """Methods and data sets; with the book's package also its experiments."""
    from hetfl_core.methods import CATALOGUE as METHODS
    from hetfl_core.settings import first_line

    shown = {
        "Methods": {name: method.summary for name, method in METHODS.items()},
        "Data sets": {name: first_line(make) for name, make in data_sets().items()},
    }
    for plugin in plugins():
        shown |= plugin.listing() if hasattr(plugin, "listing") else {}
    if name is not None:
        print("\n".join(_described(name, [each for rows in shown.values() for each in rows])))
        return
    for title, rows in shown.items():
        print(f"{title}")
        for name, text in rows.items():
            print(f"  {name:<28} {text}")


def _described(name: str, names: list[str]) -> list[str]:
    """The lines on one of the names: what it stands for, with what can be set."""
    from hetfl_core.settings import first_line

    if name in data_sets():
        given = inspect.signature(data_sets()[name]).parameters
        options = {p.name: p.default for p in given.values() if p.kind != p.VAR_KEYWORD}
        if "partition" in options:  # whose fields are given one by one
            options = vars(options.pop("partition")) | options
        return [first_line(data_sets()[name]), "--data:", *(f"  {key}={value!r}" for key, value in options.items())]
    for plugin in plugins():
        if found := plugin.described(name) if hasattr(plugin, "described") else []:
            return found
    try:
        method = _known(name)
    except KeyError:
        raise _unknown("method, data set or experiment", name, names, "hetfl list") from None
    return [method.summary, "--set:", *(f"  {each}={getattr(method, each)!r}" for each in _settable(method))]


def _unknown(kind: str, name: str, known: Iterable[str], see: str = "") -> UnknownName:
    from hetfl_core.checks import unknown

    return UnknownName(unknown(kind, name, known, see))


def _settable(method: Any) -> list[str]:
    """The fields of a method that can be typed."""
    return [f.name for f in fields(method) if isinstance(getattr(method, f.name), int | float | str)]


# --- data -----------------------------------------------------------------------------------------------------------


@data_app.command("status")
def status_() -> None:
    """Which files are there, and whether they are the right ones."""
    from hetfl_core.datasets import registry

    print(f"Folder: {registry.data_home()}")
    print(registry.status().to_string(index=False))


@data_app.command("fetch")
def fetch_(
    keys: Annotated[list[str] | None, typer.Argument(help="Files, or data sets; all if none is named.")] = None,
) -> None:
    """Download what is missing, and check it."""
    from hetfl_core.datasets import registry

    for key in _files(keys):
        print(f"{key}: {registry.fetch(key)}")


@data_app.command("verify")
def verify_(
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
    """The files that are named, or that data sets need; where none is named, all that are not placed by hand."""
    from hetfl_core.datasets import registry

    if not keys:
        return [key for key, entry in registry.entries().items() if not entry.official.folder]
    found = []
    for key in keys:
        files = registry.needs(key) if key in data_sets() else [key]
        if not files:
            print(f"{key}: needs no file of the registry")
        found += files
    return found


# --- tables of one's own ----------------------------------------------------------------------------------------------

app.command("compare")(cli_tables.compare_)
app.command("train")(cli_tables.train_)


# --- runs -----------------------------------------------------------------------------------------------------------


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """``["seed=3", "variant=code"]`` → ``{"seed": 3, "variant": "code"}``."""
    return {name.replace("-", "_"): _value(text) for name, text in map(pair, pairs or ())}


def _value(text: str) -> Any:
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.?\d+)(e[+-]?\d+)?", text, re.IGNORECASE):
        return float(text)
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _method(name: str, changes: dict[str, Any]) -> Any:
    from hetfl_core.records.renaming import setting

    method = _imported(name) if ":" in name else _known(name)
    allowed = _settable(method)
    changes = dict(one if one[0] in allowed else setting(type(method), *one) for one in changes.items())
    for change in changes:
        if change not in allowed:
            raise _unknown(f"setting of {name}", change, allowed, "" if ":" in name else f"hetfl list {name}")
    return replace(method, **changes)


def _known(name: str) -> Any:
    """A method of the library, by its name in any case."""
    from hetfl_core.methods import CATALOGUE

    known = {known.lower(): method for known, method in CATALOGUE.items()} | {"flic": CATALOGUE["FLIC-HL"]}
    if name.lower() not in known:
        raise _unknown("method", name, CATALOGUE, "hetfl list")
    return known[name.lower()]


def _imported(path: str) -> Any:
    """A method of one's own, from ``package.module:Name``: a class at its defaults, or a method that is made already.

    Modules are also looked for in the working folder.
    """
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise WrongValue(f"a method of your own must look like package.module:Name, got {path!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise NotInstalled(f"no module {error.name!r} in {Path.cwd()} or among the installed packages") from error
    if not hasattr(module, attribute):
        methods = [name for name, thing in vars(module).items() if _is_method(thing)]
        raise _unknown(f"method of module {module_name}", attribute, methods or ["a subclass of Method"])
    found = getattr(module, attribute)
    if not _is_method(found):
        raise WrongType(f"{path} must be a subclass of hetfl_core.methods.Method or one made from it, got {found!r}")
    return found() if isinstance(found, type) else found


def _is_method(thing: Any) -> bool:
    """Whether it is a method, or the class of some."""
    from hetfl_core.methods import Method

    return issubclass(thing if isinstance(thing, type) else type(thing), Method)


def _federation(name: str, changes: dict[str, Any]) -> Any:

    known = data_sets()
    if name not in known:
        raise _unknown("data set", name, known, "hetfl list")
    try:
        inspect.signature(known[name]).bind(**changes)
        return known[name](**changes)
    except (TypeError, ValueError) as error:
        if not (changes or isinstance(error, HetflError)):
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in changes.items()) or "its defaults"
        raise WrongValue(f"data set {name} cannot be made with {given}: {error}") from error


def _resumption(checkpoint: Path | None) -> str:
    """A hint at how a stopped run goes on."""
    if checkpoint is None:
        return "nothing is kept: with --checkpoint FOLDER a run goes on where it was stopped"
    if not checkpoint.is_dir() or not any(checkpoint.iterdir()):
        return f"nothing is in {checkpoint} yet, so the same command begins anew"
    return f"the same command goes on from {checkpoint}"


@app.command("run")
def run_(
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
    save: Annotated[Path | None, typer.Option(help="Write the models to this folder, for `hetfl predict`.")] = None,
    fastest: Fastest = False,
) -> None:
    """Run a method on a data set and print a table."""
    from hetfl_core import records
    from hetfl_core.engine.options import choose_device
    from hetfl_core.learners import simulate

    chosen = _method(method, _settings(set_))
    choose_device(device)
    if out is not None:
        check_file(out)
    fed = _federation(federation, _settings(data))
    records.code_revision()
    print(fed)
    with if_stopped(lambda: _resumption(checkpoint)):
        result = simulate(
            fed, chosen, rounds=rounds, participation=participation, seed=seed, engine=engine, device=device,  # type: ignore[arg-type]
            workers=workers, checkpoint=checkpoint,
        )  # fmt: skip
    print(result.history.tail(10).to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    for name, value in result.final.items():
        print(f"{name:>20}: {value:.4g}" if isinstance(value, float) else f"{name:>20}: {value:,}")
    if out is not None:
        record = records.RunRecord.of(result, f"run/{federation}", "own", method=chosen.name)
        print(f"record: {records.write_to(record, out)}")
    if save is not None:
        print(f"models: {result.save(save)}")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="Folder that `hetfl run --save` or Run.save wrote.")],
    rows: Annotated[Path, typer.Argument(help="CSV file with the columns that the model takes, in any order.")],
    client: Annotated[str | None, typer.Option(help="Whose model; `server` for the server's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a CSV file instead of printing.")] = None,
    sep: Annotated[str, typer.Option(help="What is between the fields of the file.")] = ",",
    decimal: Annotated[str, typer.Option(help="What is before the decimals of its numbers.")] = ".",
    encoding: Annotated[str, typer.Option(help="How its texts are written.")] = "UTF-8",
) -> None:
    """What a saved model says of new rows: a class, or a number, and the probabilities of classes."""
    from hetfl_core.engine.trained import load_trained
    from hetfl_core.tables import read_table

    if out is not None:
        check_file(out)
    model = load_trained(folder)
    frame = read_table(rows, str(rows), sep=sep, decimal=decimal, encoding=encoding)
    one = model.server if client == "server" and client not in model.clients else model.client(client)
    found = one.predict(frame).to_frame()
    if one.spec.task == "classification":
        found = found.join(one.probabilities(frame).rename(columns=str).add_prefix("p "))
    if out is None:
        print(found.to_string(float_format=lambda v: f"{v:.4g}"))
    else:
        found.to_csv(out)
        print(f"predictions: {out}")


@app.command()
def bench(
    sizes: Annotated[str, typer.Option(help="Numbers of clients.")] = "10,100,1000,10000",
    loop_up_to: Annotated[int, typer.Option(help="Largest federation for which the slow loop is timed.")] = 100,
    peers: Annotated[bool, typer.Option("--peers", help="Beside other libraries, where a plugin knows them.")] = False,
) -> None:
    """How fast is this machine? Loop against stack, time per client, memory; or ours beside other libraries."""
    from hetfl_core import benchmark

    if peers:
        reports = [plugin.peers for plugin in plugins() if hasattr(plugin, "peers")]
        if not reports:
            raise WrongValue("--peers needs a plugin that knows other libraries, as the book's package does")
        for line in chain.from_iterable(report() for report in reports):
            print(line, flush=True)
        return
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", sizes):
        raise WrongValue(f"sizes must look like 10,100,1000, got {sizes!r}")
    for line in benchmark.report(tuple(map(int, sizes.split(","))), loop_up_to):
        print(line, flush=True)


for plugin in plugins():
    app.registered_commands += plugin.commands.registered_commands if hasattr(plugin, "commands") else []


if __name__ == "__main__":
    main()
