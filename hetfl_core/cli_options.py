"""Options that several commands have, checks of where they write, and what they say when they are stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hetfl_core.errors import WrongValue
from hetfl_core.files import unwritable

Fastest = Annotated[
    bool,
    typer.Option("--fastest", help="Compute with all that the CPU has, not with what every CPU has."),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes of one run; by default one a core, if it takes long. The result is the same."),
]


@contextmanager
def if_stopped(how: Callable[[], str]) -> Iterator[None]:
    """Say how to go on if Ctrl-C stops what is done here."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(how()) from stop


def pair(text: str) -> tuple[str, str]:
    """``"seed=3"`` → ``("seed", "3")``.

    Raises
    ------
    ValueError
        For a text that is no such pair.
    """
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise WrongValue(f"a setting must look like name=value, got {text!r}")
    return name, value


def check_folder(folder: Path) -> None:
    """Make the folder of a record, and see that files can be made in it.

    Raises
    ------
    ValueError
        Where they cannot.
    """
    if why := unwritable(folder):
        raise WrongValue(f"out needs a folder that can be written to, got {folder} ({why})")


def check_file(out: Path) -> None:
    """See that a record can be written to this file.

    Raises
    ------
    ValueError
        For a folder, and where no file can be made.
    """
    if out.is_dir():
        raise WrongValue(f"out must be a file, got the folder {out}")
    check_folder(out.parent)
