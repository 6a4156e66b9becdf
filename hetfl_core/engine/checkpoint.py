"""Checkpoints: one file, written whole or not at all, without pickle."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hetfl_core import numerics
from hetfl_core.files import write_atomically
from hetfl_core.networks import Params

FILE = "state.safetensors"
FORMAT = "2"
UNSEALED = "-" * 32
"""Stands in a file for its digest while that is computed."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used, or cannot be written."""


@dataclass
class State:
    """All that a run needs in order to go on.

    Attributes
    ----------
    done : int
        Complete rounds; 0 after the start stage.
    server : dict of str to Tensor
    kept : list of dict of str to Tensor
        What each client keeps, in the order of the federation.
    rows : list of dict
        Rows of the history so far.
    """

    done: int
    server: Params
    kept: list[Params]
    rows: list[dict[str, Any]] = field(default_factory=list)


@cache
def code_version() -> str:
    """A digest of the library's own source."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _pack(kept: Sequence[Params]) -> tuple[dict[str, Tensor], list[Any]]:
    """Clients' tensors stacked by name and shape, and for each stack which clients it holds."""
    groups: dict[tuple[str, tuple[int, ...], torch.dtype], list[int]] = {}
    for i, params in enumerate(kept):
        for name, p in params.items():
            groups.setdefault((name, tuple(p.shape), p.dtype), []).append(i)
    tensors, index = {}, []
    for number, ((name, _, _), clients) in enumerate(groups.items()):
        tensors[f"kept/{number}"] = torch.stack([kept[i][name] for i in clients]).cpu().contiguous()
        index.append([name, clients])
    return tensors, index


def _seal(content: bytes) -> str:
    """Digest of a file that holds `UNSEALED` in its place."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _swap(content: bytes, old: str, new: str) -> bytes:
    return content.replace(old.encode(), new.encode(), 1)


def write(folder: Path, fingerprint: str, state: State, names: Sequence[str]) -> None:
    """Write the state of a run into its folder, atomically.

    Parameters
    ----------
    folder : Path
        Made if it is missing.
    fingerprint : str
        Says which run this is; `read` refuses another.
    state : State
    names : sequence of str
        Of the clients, in the order of ``state.kept``.

    Raises
    ------
    CheckpointError
        If the disk refuses; the last complete checkpoint is untouched.
    """
    tensors, index = _pack(state.kept)
    tensors |= {f"server/{name}": p.cpu().contiguous().clone() for name, p in state.server.items()}
    order = [list(params) for params in state.kept]
    metadata = {
        "format": FORMAT,
        "library": code_version(),
        "isa": numerics.in_effect()["isa"],
        "fingerprint": fingerprint,
        "done": str(state.done),
        "rows": json.dumps(state.rows),
        "index": json.dumps(index),
        "order": json.dumps(order),
        "server": json.dumps(list(state.server)),
        "clients": json.dumps(list(names)),
        "seal": UNSEALED,
    }
    content = save(tensors, metadata)
    try:
        write_atomically(folder / FILE, _swap(content, UNSEALED, _seal(content)))
    except OSError as error:
        raise CheckpointError(f"{error.strerror}; make room or choose another folder, and start again") from error


def read(folder: Path, fingerprint: str, names: Sequence[str], device: torch.device | str = "cpu") -> State | None:
    """The state in a folder, its clients in the order of `names`, or None where there is none.

    Raises
    ------
    CheckpointError
        If the file is damaged, or belongs to a run with other settings or other data.

    Warns
    -----
    RuntimeWarning
        If other source of this library wrote it: what comes of the run then has no version of its own. Likewise for
        other instructions on a CPU.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        meta, tensors = _open(path, device)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it to start the run anew") from error
    if meta["fingerprint"] != fingerprint:
        raise CheckpointError(
            f"{path} belongs to a run with other settings or data:\n  there:    {meta['fingerprint']}\n"
            f"  this run: {fingerprint}\nUse another folder, or remove it to start anew."
        )
    here = numerics.in_effect()["isa"]
    if torch.device(device).type == "cpu" and meta.get("isa", here) != here:
        warnings.warn(
            f"{path} was computed with {meta['isa']} instructions, this process computes with {here}: the run will "
            "come out as neither alone would give it. Remove it if all should come from one.",
            RuntimeWarning,
            stacklevel=2,
        )
    if meta.get("library") != code_version():
        warnings.warn(
            f"{path} was written by another version of hetfl_core; its rounds are kept, those to come are computed by "
            "this one. Remove it if all should come from one version.",
            RuntimeWarning,
            stacklevel=2,
        )
    loose: list[Params] = [{} for _ in json.loads(meta["order"])]
    for number, (name, clients) in enumerate(json.loads(meta["index"])):
        for i, row in zip(clients, tensors[f"kept/{number}"], strict=True):
            loose[i][name] = row.clone()
    kept = {
        client: {name: params[name] for name in order}
        for client, params, order in zip(json.loads(meta["clients"]), loose, json.loads(meta["order"]), strict=True)
    }
    server = {name: tensors[f"server/{name}"] for name in json.loads(meta["server"])}
    return State(int(meta["done"]), server, [kept[name] for name in names], json.loads(meta["rows"]))


def _open(path: Path, device: torch.device | str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file that is as it was written."""
    with safe_open(path, framework="pt") as file:
        meta = file.metadata() or {}
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {meta.get('format')!r}, expected {FORMAT!r}; remove it to start anew")
    if _seal(_swap(path.read_bytes(), meta.get("seal", ""), UNSEALED)) != meta.get("seal"):
        raise ValueError("its content does not fit its digest")
    return meta, tensors
