"""Tasks and replies as Flower's records: arrays in NumPy's format, numbers and words; nothing is pickled."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from hetfl_core.deployment.site import Memory, Reply, Task, named
from hetfl_core.deployment.sums import Layout
from hetfl_core.networks import Params

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict

SEPARATOR = "/"
"""Between the name of a run and what a record holds of it."""


class WireError(ValueError):
    """A message that does not hold what it should."""


def flower() -> Any:
    """The module `flwr.app`.

    Raises
    ------
    ImportError
        Where Flower is not installed, with what to do.
    """
    try:
        import flwr.app
    except ImportError as error:
        raise ImportError("Flower is not installed: pip install 'hetfl-core[deploy]'") from error
    return flwr.app


def to_arrays(params: Params) -> ArrayRecord:
    """Tensors as a record, in their order."""
    return flower().ArrayRecord({name: p.contiguous() for name, p in params.items()})  # type: ignore[no-any-return]


def from_arrays(record: Mapping[str, Any]) -> Params:
    """The tensors of a record. They own their memory, so that products come out as they do elsewhere.

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


def pack_tasks(tasks: Mapping[str, Task], agreed: Mapping[str, Any]) -> RecordDict:
    """What is asked of one client, by the names of runs, and the run config that all have agreed on."""
    app, content = flower(), pack_words(agreed)
    for run, task in tasks.items():
        layout = task.layout and vars(task.layout)
        content[f"{run}{SEPARATOR}task"] = app.ConfigRecord(
            {"kind": task.kind, "round": task.round, "evaluate": task.evaluate, "n_clients": task.n_clients}
            | {"features": json.dumps(task.features), "layout": json.dumps(layout)}
        )
        content[f"{run}{SEPARATOR}received"] = to_arrays(task.received)
        content[f"{run}{SEPARATOR}common"] = to_arrays(task.common)
    return content


def unpack_tasks(content: RecordDict) -> dict[str, Task]:
    """What `pack_tasks` made."""
    tasks = {}
    for run, parts in _by_run(content).items():
        try:
            words: dict[str, Any] = dict(parts["task"])
            words |= {part: from_arrays(parts[part]) for part in ("received", "common")}
            layout = json.loads(words["layout"])
            words |= {"features": named(json.loads(words["features"])), "layout": layout and Layout(**layout)}
            tasks[run] = Task(**words)
        except (KeyError, TypeError) as error:
            raise WireError(f"a task of run {run!r} cannot be read: {error}") from error
    return tasks


def pack_replies(replies: Mapping[str, Reply]) -> RecordDict:
    """What one client answers, by the names of runs."""
    app = flower()
    content = app.RecordDict()
    for run, reply in replies.items():
        content[f"{run}{SEPARATOR}reply"] = app.ConfigRecord({"error": reply.error or ""})
        content[f"{run}{SEPARATOR}sent"] = to_arrays(reply.sent)
        content[f"{run}{SEPARATOR}figures"] = app.MetricRecord(reply.figures)
        content[f"{run}{SEPARATOR}terms"] = app.MetricRecord(reply.terms)
    return content  # type: ignore[no-any-return]


def unpack_replies(content: RecordDict) -> dict[str, Reply]:
    """What `pack_replies` made; what cannot be read of a run becomes its error."""
    replies = {}
    for run, parts in _by_run(content).items():
        try:
            error = str(parts["reply"]["error"]) or None
            figures = {str(k): float(v) for k, v in parts["figures"].items()}
            terms = {str(k): float(v) for k, v in parts["terms"].items() if not math.isinf(v)}
            replies[run] = Reply(from_arrays(parts["sent"]), figures, terms, error)
        except (KeyError, TypeError, AttributeError, ValueError) as wrong:
            replies[run] = Reply(error=f"sent a message that cannot be read: {wrong}")
    return replies


def _by_run(content: RecordDict) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, record in content.items():
        run, separator, part = str(key).rpartition(SEPARATOR)
        if separator:
            found.setdefault(run, {})[part] = record
    return found


def pack_words(words: Mapping[str, Any]) -> RecordDict:
    """Words and numbers, as JSON can hold them."""
    app = flower()
    return app.RecordDict({"words": app.ConfigRecord({"json": json.dumps(words)})})  # type: ignore[no-any-return]


def unpack_words(content: RecordDict) -> dict[str, Any]:
    """What `pack_words` made."""
    try:
        return dict(json.loads(content["words"]["json"]))  # type: ignore[arg-type, call-overload, index]
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"expected words, got a message that cannot be read: {error}") from error


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
        """As `hetfl_core.deployment.site.Store` says."""
        if f"{self.run}{SEPARATOR}last" not in self.state:
            return None
        last: Any = self.state[f"{self.run}{SEPARATOR}last"]
        before, after = (from_arrays(self.state[f"{self.run}{SEPARATOR}{part}"]) for part in ("before", "after"))  # type: ignore[arg-type]
        return Memory((int(last["round"]), int(last["stage"])), before, after)

    def save(self, memory: Memory) -> None:
        """Replace what is there."""
        app, (round, stage) = flower(), memory.last
        self.state[f"{self.run}{SEPARATOR}last"] = app.ConfigRecord({"round": round, "stage": stage})
        self.state[f"{self.run}{SEPARATOR}before"] = to_arrays(memory.before)
        self.state[f"{self.run}{SEPARATOR}after"] = to_arrays(memory.after)
