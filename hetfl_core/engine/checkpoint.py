"""Checkpoints: one file, written whole or not at all, without pickle."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hetfl_core import numerics
from hetfl_core.errors import RunError, WrongValue
from hetfl_core.federation import Spec, blocks
from hetfl_core.files import unwritable, write_atomically
from hetfl_core.networks import Module, Params
from hetfl_core.networks.identity import bare_source, described, written
from hetfl_core.settings import changed, plain

FILE = "state.safetensors"
FORMAT = "3"
ROOMS = (
    *("engine", "methods", "networks", "distances", "matching", "padding", "tape", "rng"),
    *("inputs", "clients", "federation"),
)
"""The parts of the library that a run is made by; what draws figures or reads records does not count."""
KNOWN = (*(f"hetfl_core.{room}" for room in ROOMS), "hetfl_core.settings")
"""Modules whose source counts with the rooms, or not at all."""
UNSEALED = "-" * 32
"""What stands in a file in place of its digest while that is computed."""


class CheckpointError(RunError):
    """A checkpoint that cannot be used, or cannot be written."""


@dataclass
class State:
    """All that a run needs in order to go on.

    Parameters
    ----------
    done : int
        Complete rounds; 0 after the start stage.
    server : dict of str to Tensor
    client_states : list of dict of str to Tensor
        What each client keeps, in the order of the federation.
    rows : list of dict
        Rows of the history so far.
    """

    done: int
    server: Params
    client_states: list[Params]
    rows: list[dict[str, Any]] = field(default_factory=list)


def join_states(states: Sequence[State]) -> State:
    """Join the states of several runs after the same round into one; a single state stays as it is."""
    if len(states) == 1:
        return states[0]
    server = {f"{i}/{name}": p for i, state in enumerate(states) for name, p in state.server.items()}
    rows = [{"run": i, "row": row} for i, state in enumerate(states) for row in state.rows]
    return State(states[0].done, server, [one for state in states for one in state.client_states], rows)


def split_states(whole: State, clients: Sequence[int]) -> list[State]:
    """Split a state that `join_states` joined into those of runs with so many clients."""
    if len(clients) == 1:
        return [whole]
    client_states, states = iter(whole.client_states), []
    for i, n in enumerate(clients):
        server = {name.removeprefix(f"{i}/"): p for name, p in whole.server.items() if name.startswith(f"{i}/")}
        rows = [told["row"] for told in whole.rows if told["run"] == i]
        states.append(State(whole.done, server, list(islice(client_states, n)), rows))
    return states


@dataclass(frozen=True)
class Identity:
    """Which run it is whose state a file holds.

    Parameters
    ----------
    settings : dict
        What was chosen, and the fingerprint of the data, as JSON can hold it. `read_state` refuses others.
    method : object, optional
        Code that does not belong to the library and yet makes the run: that of the method's class and network. Of
        other code than what wrote the file, `read_state` warns; where there is none, a network or function is refused.
    """

    settings: dict[str, Any]
    method: Any = None

    def __post_init__(self) -> None:
        for maker, text in written(self.method, ("hetfl_core.",)).items():  # of a dataclass the fields are compared
            if text is None and not is_dataclass(maker):
                raise CheckpointError(
                    f"{maker.__qualname__!r}, which {self.method.name} uses, has no source that can be read, so that "
                    "no later process could tell whether it goes on with the same; define it in a file, or leave out "
                    "checkpoint"
                )

    @cached_property
    def code(self) -> str:
        """Digest of the code, as it was when first asked for."""
        return code_version(self.method)


def code_version(method: Any = None) -> str:
    """A digest of the code that makes a run: of the `ROOMS` of the library, and of a method and network from elsewhere.

    Comments, docstrings and layout do not count; the order of statements and names of variables do.

    Parameters
    ----------
    method : object, optional
        Where its class, a parent's, or a class or function in one of its fields is not in these rooms, its source
        counts too. A method's class whose source cannot be had, as one that was typed into an interpreter, does not.
    """
    own = sorted(f"{maker.__qualname__} {text}" for maker, text in written(method, KNOWN).items())
    return hashlib.blake2b("\n".join([_rooms_code(), *own]).encode(), digest_size=6).hexdigest()


def method_settings(method: Any, specs: Sequence[Spec]) -> dict[str, Any]:
    """A method as records and checkpoints hold it: its fields, and what a network of the user's own is made of.

    Parameters
    ----------
    method : Method
    specs : sequence of Spec
        Of the clients whose inputs networks are made for.
    """
    shapes: set[Any] = {shape for spec in specs for shape in blocks(spec.shapes)}
    return dict(plain(method, "method", other=lambda x: x.described(shapes) if isinstance(x, Module) else described(x)))


@cache
def _rooms_code() -> str:
    return "\n".join(bare_source(path.read_text("utf8")) for room in ROOMS for path in _files(room))


def _files(room: str) -> list[Path]:
    root = Path(__file__).parents[1]
    return sorted([*root.glob(f"{room}.py"), *root.glob(f"{room}/**/*.py")])


def _pack(client_states: Sequence[Params]) -> tuple[dict[str, Tensor], list[Any]]:
    """Clients' tensors stacked by name and shape, and for each stack which clients it holds."""
    groups: dict[tuple[str, tuple[int, ...], torch.dtype], list[int]] = {}
    for i, params in enumerate(client_states):
        for name, p in params.items():
            groups.setdefault((name, tuple(p.shape), p.dtype), []).append(i)
    tensors, index = {}, []
    for number, ((name, _, _), clients) in enumerate(groups.items()):
        tensors[f"kept/{number}"] = torch.stack([client_states[i][name] for i in clients]).cpu().contiguous()
        index.append([name, clients])
    return tensors, index


def _seal(content: bytes) -> str:
    """Digest of a file that holds `UNSEALED` in its place."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _swap(content: bytes, old: str, new: str) -> bytes:
    return content.replace(old.encode(), new.encode(), 1)


def check_writable(folder: Path) -> None:
    """Make the folder of a checkpoint, and refuse one that no file can be written into: a CheckpointError."""
    if why := unwritable(folder):
        raise CheckpointError(f"checkpoint {folder} cannot be written to: {why}; choose another folder")


def write_state(folder: Path, identity: Identity, state: State, names: Sequence[str]) -> None:
    """Write the state of a run into its folder, atomically.

    Parameters
    ----------
    folder : Path
        Made if it is missing.
    identity : Identity
        Says which run this is; `read_state` refuses another.
    state : State
    names : sequence of str
        Of the clients, in the order of ``state.client_states``.

    Raises
    ------
    CheckpointError
        If the disk refuses; the last complete checkpoint is untouched.
    """
    tensors, index = _pack(state.client_states)
    tensors |= {f"server/{name}": p.cpu().contiguous().clone() for name, p in state.server.items()}
    order = [list(params) for params in state.client_states]
    metadata = {
        "format": FORMAT,
        "code": identity.code,
        "isa": numerics.in_effect()["isa"],
        "settings": json.dumps(identity.settings),
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


def read_state(
    folder: Path, identity: Identity, names: Sequence[str], device: torch.device | str = "cpu"
) -> State | None:
    """The state in a folder, its clients in the order of `names`, or None where there is none.

    Parameters
    ----------
    folder : Path
    identity : Identity
        Which run it must be.
    names : sequence of str
        Of the clients, in the order that is wanted.
    device : torch.device or str
        Where the tensors are to live.

    Returns
    -------
    State or None

    Raises
    ------
    CheckpointError
        If the file is damaged, or belongs to a run with other settings or other data; with what differs.

    Warns
    -----
    RuntimeWarning
        If other code of this library, or of the method, wrote it: what comes of the run then has no version of its own.
        Likewise for other instructions on a CPU.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        meta, tensors = _open(path, device)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it to start the run anew") from error
    if differing := changed(json.loads(meta["settings"]), json.loads(json.dumps(identity.settings))):
        raise CheckpointError(
            f"{path} belongs to a run with other settings or data (there → this run):\n  "
            + "\n  ".join(differing)
            + "\nUse another folder, or remove it to start anew."
        )
    here = numerics.in_effect()["isa"]
    if torch.device(device).type == "cpu" and meta.get("isa", here) != here:
        warnings.warn(
            f"{path} was computed with {meta['isa']} instructions, this process computes with {here}: the run will "
            "come out as neither alone would give it. Remove it if all should come from one.",
            RuntimeWarning,
            stacklevel=2,
        )
    if meta.get("code") != identity.code:
        warnings.warn(
            f"{path} was written by another version of hetfl_core or of the method; its rounds are kept, those to come "
            "are computed by this one. Remove it if all should come from one version.",
            RuntimeWarning,
            stacklevel=2,
        )
    loose: list[Params] = [{} for _ in json.loads(meta["order"])]
    for number, (name, clients) in enumerate(json.loads(meta["index"])):
        for i, row in zip(clients, tensors[f"kept/{number}"], strict=True):
            loose[i][name] = row.clone()
    client_states = {
        client: {name: params[name] for name in order}
        for client, params, order in zip(json.loads(meta["clients"]), loose, json.loads(meta["order"]), strict=True)
    }
    # Cloned, as what a file is mapped to lies anywhere, and products of unaligned tensors can differ in the last bit.
    server = {name: tensors[f"server/{name}"].clone() for name in json.loads(meta["server"])}
    return State(int(meta["done"]), server, [client_states[name] for name in names], json.loads(meta["rows"]))


def _open(path: Path, device: torch.device | str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file that is as it was written."""
    with safe_open(path, framework="pt") as file:
        meta = file.metadata() or {}
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {meta.get('format')!r}, expected {FORMAT!r}; remove it to start anew")
    if _seal(_swap(path.read_bytes(), meta.get("seal", ""), UNSEALED)) != meta.get("seal"):
        raise WrongValue("its content does not fit its digest")
    return meta, tensors
