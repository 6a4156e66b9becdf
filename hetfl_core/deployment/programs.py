"""Programs, first of all Flower's: where they are, and the environment that they are started in."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

CLOSED = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")
"""Set to 1 they would have a SuperLink listen at all addresses as well, on ports of former versions."""


def program(name: str) -> str:
    """Path of a program, Flower's or the system's: beside this Python, or on the search path.

    Parameters
    ----------
    name : str

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        Where it is not installed.
    """
    found = shutil.which(name, path=surroundings()["PATH"])
    if found is None:
        raise FileNotFoundError(f"there is no program {name}; Flower's come by pip install 'hetfl-core[deploy]'")
    return found


def surroundings(home: Path | None = None) -> dict[str, str]:
    """Environment for Flower's programs: found beside this Python, and without telling anybody what is run."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    own = (
        {"PATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
        | dict.fromkeys(CLOSED, "0")
        | ({} if home is None else {"FLWR_HOME": str(home.resolve())})
    )
    return {"OMP_NUM_THREADS": "1", **os.environ, **own}
