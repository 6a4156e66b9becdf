"""Where the files that come with the library are: in the checkout's `data/`, or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path


def results_home() -> Path:
    """Where new records go: the checkout's ``data/results``, or ``results`` in the working folder without a checkout.

    An installed library is no place to write to; `hetfl ledger --out results` reads those records beside its own.
    """
    checkout = Path(__file__).resolve().parent.parent / "data"
    return checkout / "results" if (checkout / "registry.toml").exists() else Path("results")


def data_path(*parts: str) -> Path:
    """Path of a tracked data file or folder, e.g. ``data_path("paper")`` or ``data_path("registry.toml")``.

    A checkout's ``data/`` wins over the copy that a wheel carries, so that new records are seen at once.

    Raises
    ------
    FileNotFoundError
        If neither place has it.
    """
    package = Path(__file__).resolve().parent
    places = [package.parent / "data", package / "_data"]
    for root in places:
        if (root / "registry.toml").exists() and root.joinpath(*parts).exists():
            return root.joinpath(*parts)
    raise FileNotFoundError(
        f"{'/'.join(parts)} is neither in {places[0]} nor in {places[1]}: is the package installed?"
    )
