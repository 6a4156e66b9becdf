"""Tasks and replies as Flower's records: arrays in NumPy's format, numbers and words; nothing is pickled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from hetfl_core.deployment.site import Memory, Reply, Task, named
from hetfl_core.deployment.sums import SumLayout
from hetfl_core.errors import NotInstalled, WrongValue
from hetfl_core.networks import Params

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict

SEPARATOR = "/"
"""Between the name of a run and what a record holds of it."""


class WireError(WrongValue):
    """A message that does not hold what it should."""


def flower() -> Any:
    """The module `flwr.app`.

    Returns
    -------
    module

    Raises
    ------
    ImportError
        Where Flower is not installed, with what to do.
    """
    try:
        import flwr.app
    except ImportError as error:
        raise NotInstalled("Flower is not installed: pip install 'hetfl-core[deploy]'") from error
    return flwr.app


def to_arrays(params: Params) -> ArrayRecord:
    """Tensors as a record, in their order.

    Parameters
    ----------
    params : dict of str to Tensor

    Returns
    -------
    flwr.app.ArrayRecord
    """
    return flower().ArrayRecord({name: p.contiguous() for name, p in params.items()})  # type: ignore[no-any-return]


def from_arrays(record: Mapping[str, Any]) -> Params:
    """The tensors of a record.

    They own their memory, so that products come out as they do elsewhere.

    Parameters
    ----------
    record : mapping of str to flwr.app.Array

    Returns
    -------
    dict of str to Tensor

    Raises
    ------
    WireError
        For what is no array of numbers in NumPy's format.
    """
    params: Params = {}
    for name, array in record.items():
        try:
            params[str(name)] = torch.from_numpy(array.numpy()).clone()
        except (ValueError, TypeError, EOFError, OSError) as error:
            raise WireError(f"array {name!r} cannot be read: {error}") from error
    return params


def pack(words: Mapping[str, Any], tensors: Mapping[str, Params] | None = None) -> RecordDict:
    """A message of words and numbers, as JSON can hold them, and of tensors by the names of what they are.

    Parameters
    ----------
    words : dict
    tensors : dict of str to dict of str to Tensor, optional

    Returns
    -------
    flwr.app.RecordDict
    """
    app = flower()
    content = app.RecordDict({"words": app.ConfigRecord({"json": json.dumps(words)})})
    for name, params in (tensors or {}).items():
        content[name] = to_arrays(params)
    return content  # type: ignore[no-any-return]


def unpack_words(content: RecordDict) -> dict[str, Any]:
    """The words and numbers of a message.

    Raises
    ------
    WireError
        For a message without words.
    """
    try:
        return dict(json.loads(content["words"]["json"]))  # type: ignore[arg-type, call-overload, index]
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"expected words, got a message that cannot be read: {error}") from error


def pack_tasks(tasks: Mapping[str, Task], agreed: Mapping[str, Any]) -> RecordDict:
    """A message with the tasks of one client, by the names of runs, and the run config that all have agreed on."""
    words, tensors = {}, dict[str, Params]()
    for run, task in tasks.items():
        words[run] = {**vars(task), "layout": task.layout and vars(task.layout)}
        tensors |= {f"{run}{SEPARATOR}{part}": words[run].pop(part) for part in ("received", "common")}
    return pack({"settings": agreed, "tasks": words}, tensors)


def unpack_tasks(content: RecordDict) -> dict[str, Task]:
    """The tasks of a message that `pack_tasks` made.

    Returns
    -------
    dict of str to Task
        By the names of runs.

    Raises
    ------
    WireError
        For a message that cannot be read.
    """
    tasks = {}
    try:
        for run, words in unpack_words(content)["tasks"].items():
            parts = {part: from_arrays(content[f"{run}{SEPARATOR}{part}"]) for part in ("received", "common")}  # type: ignore[arg-type]
            layout = words["layout"] and SumLayout(**words["layout"])
            tasks[run] = Task(**{**words, **parts, "features": named(words["features"]), "layout": layout})
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"a task cannot be read: {error}") from error
    return tasks


def pack_replies(replies: Mapping[str, Reply]) -> RecordDict:
    """A message with one client's replies, by the names of runs."""
    words = {run: {key: value for key, value in vars(reply).items() if key != "sent"} for run, reply in replies.items()}
    return pack(words, {f"{run}{SEPARATOR}sent": reply.sent for run, reply in replies.items()})


def unpack_replies(content: RecordDict, runs: Iterable[str]) -> dict[str, Reply]:
    """The replies to these runs of a message that `pack_replies` made; what cannot be read of one becomes its error.

    Parameters
    ----------
    content : flwr.app.RecordDict
    runs : iterable of str
        Names of the runs.

    Returns
    -------
    dict of str to Reply
    """
    replies = {}
    for run in runs:
        try:
            said = unpack_words(content)[run]
            figures, terms = ({str(k): float(v) for k, v in said[part].items()} for part in ("figures", "terms"))
            terms = {name: value for name, value in terms.items() if not math.isinf(value)}
            sent = from_arrays(content[f"{run}{SEPARATOR}sent"])  # type: ignore[arg-type]
            replies[run] = Reply(sent, figures, terms, said["error"] and str(said["error"]))
        except (KeyError, TypeError, AttributeError, ValueError) as wrong:
            replies[run] = Reply(error=f"sent a message that cannot be read: {wrong}")
    return replies


# --- what a client keeps, in Flower's own store ---------------------------------------------------------------------


class ContextStore:
    """A run's memory in ``Context.state``, which a SuperNode keeps from message to message as long as it runs.

    Parameters
    ----------
    state : flwr.app.RecordDict
    run : str
        Name of the run.
    """

    def __init__(self, state: RecordDict, run: str) -> None:
        self.state, self.run = state, run

    def load(self) -> Memory | None:
        """The memory in the node's state, None where there is none (as in `site.FileStore`)."""
        if f"{self.run}{SEPARATOR}last" not in self.state:
            return None
        last: Any = self.state[f"{self.run}{SEPARATOR}last"]
        before, after = (from_arrays(self.state[f"{self.run}{SEPARATOR}{part}"]) for part in ("before", "after"))  # type: ignore[arg-type]
        return Memory((int(last["round"]), int(last["stage"])), before, after)

    def save(self, memory: Memory) -> None:
        """Write a memory into the node's state in the place of the last one."""
        app, (round, stage) = flower(), memory.last
        self.state[f"{self.run}{SEPARATOR}last"] = app.ConfigRecord({"round": round, "stage": stage})
        self.state[f"{self.run}{SEPARATOR}before"] = to_arrays(memory.before)
        self.state[f"{self.run}{SEPARATOR}after"] = to_arrays(memory.after)
