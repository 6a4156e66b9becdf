"""``hetfl compare`` and ``hetfl train``: the commands for tables of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hetfl_core.cli_options import Workers, check_file, check_folder
from hetfl_core.errors import WrongValue

Files = Annotated[list[Path], typer.Argument(help="CSV files: one per site, or one with a column for the site.")]
Target = Annotated[str, typer.Option(help="Column that is to be predicted.")]
Client = Annotated[str | None, typer.Option(help="Column that says whose a row is, where there is one file.")]
Categories = Annotated[list[str] | None, typer.Option(help="Columns of codes that are no numbers: sex,colour.")]
Ignore = Annotated[list[str] | None, typer.Option(help="Columns that are no features, such as a patient's number.")]
Missing = Annotated[list[str] | None, typer.Option(help="What stands for a gap: 999,-9, or in one column chol=0.")]
Absent = Annotated[float, typer.Option(help="A site lacks a column of which more than this share is missing.")]
Gaps = Annotated[str, typer.Option(help="What fills a gap: median, most_frequent, indicator or refuse.")]
Group = Annotated[
    str | None, typer.Option(help="Column whose equal values stay together, over all sites, such as the patient.")
]
Sep = Annotated[str, typer.Option(help="What is between the fields of a file.")]
Decimal = Annotated[str, typer.Option(help="What is before the decimals of its numbers.")]
Encoding = Annotated[str, typer.Option(help="How its texts are written.")]


def compare_(
    files: Files,
    target: Target,
    client: Client = None,
    report: Annotated[Path | None, typer.Option(help="Write the report to this HTML file.")] = None,
    metric: Annotated[
        str, typer.Option(help="auc, balanced_accuracy, accuracy, f1, log_loss or brier: what ways are compared by.")
    ] = "auc",
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Of common, zeros, fusion, hyfem, and methods of `hetfl list`; ways to stay alone are compared anyway."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Times that the rows are split anew into training and test rows.")] = 10,
    rounds: Annotated[int, typer.Option(help="Communication rounds of each training.")] = 10,
    test_size: Annotated[float, typer.Option(help="Share of each site's rows that is for testing.")] = 0.3,
    categories: Categories = None,
    ignore: Ignore = None,
    missing: Missing = None,
    absent_above: Absent = 0.6,
    gaps: Gaps = "median",
    group: Group = None,
    time: Annotated[str | None, typer.Option(help="Column by which the latest rows are for testing.")] = None,
    sep: Sep = ",",
    decimal: Decimal = ".",
    encoding: Encoding = "UTF-8",
    jobs: Annotated[int | None, typer.Option(help="Processes; by default all cores where it takes long.")] = None,
) -> None:
    """Is it worth learning together? Ways to learn from several sites' tables, against the best way to stay alone."""
    if report is not None:
        check_file(report)
    from hetfl_core.files import write_atomically
    from hetfl_core.reporting import judging, page, trials

    given: dict[str, Any] = {"client": client, "target": target, "group": group, "time": time}
    given |= {"sep": sep, "decimal": decimal, "encoding": encoding, "ignore": _words(ignore)}
    given["prepare"] = _preparation(gaps, categories, absent_above, missing, decimal)
    tables = trials.Tables(tuple(map(str, files)), given)
    found = trials.run_all(
        tables, _words(methods) or None, seeds=seeds, rounds=rounds, test_size=test_size, metric=metric, n_jobs=jobs
    )
    judged = judging.judge(found)
    print("\n".join(page.lines(found, judged)))
    if report is not None:
        unused = [*(ignore or ()), *(column for column in (group, time) if column)]
        shown: dict[str, Any] = {"categories": categories, "ignore": unused, "missing": missing}
        shown |= {"absent-above": (absent_above, 0.6), "gaps": (gaps, "median")}
        shown |= {"sep": (sep, ","), "decimal": (decimal, "."), "encoding": (encoding, "UTF-8")}
        told = _arguments({"target": target, "client": client, **shown})
        html = page.render(found, judged, tables.options, [file.name for file in files], told)
        write_atomically(report, html.encode())
        print(f"report: {report}")


def train_(
    files: Files,
    target: Target,
    save: Annotated[Path, typer.Option(help="Write the models to this folder, for `hetfl predict`.")],
    client: Client = None,
    method: Annotated[
        str, typer.Option(help="logistic, network, common, zeros, fusion, hyfem, or a method of `hetfl list`.")
    ] = "logistic",
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 10,
    seed: Annotated[int, typer.Option(help="Keys every random number of the training.")] = 0,
    categories: Categories = None,
    ignore: Ignore = None,
    missing: Missing = None,
    absent_above: Absent = 0.6,
    gaps: Gaps = "median",
    sep: Sep = ",",
    decimal: Decimal = ".",
    encoding: Encoding = "UTF-8",
    workers: Workers = None,
) -> None:
    """Train on all rows of the tables of several sites, as `hetfl compare` does, and save the models."""
    check_folder(save)
    from hetfl_core.reporting import training, trials

    given: dict[str, Any] = {"client": client, "target": target, "sep": sep, "decimal": decimal, "encoding": encoding}
    given |= {"prepare": _preparation(gaps, categories, absent_above, missing, decimal), "ignore": _words(ignore)}
    tables = trials.Tables(tuple(map(str, files)), given)
    models = training.trained(tables, method, rounds=rounds, seed=seed, workers=workers)
    for spec in models.specs:
        print(f"{spec.name}: trained on {spec.n_train} rows")
    print(f"models: {models.save(save)}")


def _preparation(
    gaps: Any, categories: Sequence[str] | None, absent: float, missing: Sequence[str] | None, decimal: str
) -> Any:
    """How the tables become inputs."""
    from hetfl_core.preparation import Preparation

    marks = _marks(missing or (), decimal)
    return Preparation(gaps=gaps, categories=_words(categories), absent=absent, missing=marks)


def _words(given: Sequence[str] | None) -> list[str]:
    """``["a,b", "c"]`` → ``["a", "b", "c"]``."""
    return [word.strip() for text in given or () for word in text.split(",") if word.strip()]


def _marks(given: Sequence[str], decimal: str) -> Any:
    """What stands for a gap: everywhere, ``["999,-9"]``, or in some columns, ``["chol=0,999", "age=-9"]``."""
    pairs: list[tuple[str, str, str]] = []
    for text in given:
        column, sign, marks = text.rpartition("=")
        number = rf"[+-]?\d+{re.escape(decimal)}\d+"  # whose comma, if it is one, separates nothing
        pairs += [
            (column, sign, mark.strip()) for mark in ([marks] if re.fullmatch(number, marks) else marks.split(","))
        ]
    values = [_number(value) for _, _, value in pairs]
    if not any(sign for _, sign, _ in pairs):
        return values
    if not all(column and sign for column, sign, _ in pairs):
        raise WrongValue(f"missing must be values, or all of the form column=value, got {list(given)}")
    return {name: [v for (column, _, _), v in zip(pairs, values) if column == name] for name, _, _ in pairs}


def _number(text: str) -> Any:
    return float(text) if re.fullmatch(r"[+-]?\d+(\.\d+)?", text) else text


def _arguments(given: dict[str, Any]) -> list[str]:
    """Options as they are typed, without those at their default."""
    told: list[str] = []
    for name, value in given.items():
        value, usual = value if isinstance(value, tuple) else (value, None)
        for each in value if isinstance(value, list) else [value]:
            told += [] if each is None or each == usual else [f"--{name}", str(each)]
    return told
