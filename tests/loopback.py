"""A grid of nodes within one process: Flower's messages, written out and read back, without its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1


def carried(message: Message) -> Message:
    """The message as the other side reads it."""
    return message_from_proto(type(message_to_proto(message)).FromString(message_to_proto(message).SerializeToString()))


class Loopback(Grid):
    """Nodes, each with a client app and a context that outlives messages.

    `change(node, message)` may spoil an answer, or drop it (None).
    """

    def __init__(self, apps: Mapping[int, Any], configs: Mapping[int, dict[str, Any]] | None = None) -> None:
        configs = configs or {}
        self.apps = dict(apps)
        self.contexts = {n: Context(1, n, dict(configs.get(n, {})), RecordDict(), {}) for n in apps}
        self.change: Callable[[int, Message], Message | None] = lambda node, message: message
        self.before: Callable[[int, Message], None] = lambda node, message: None
        self.sent: list[tuple[int, Message]] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None) -> Any:
        return Message(content, dst_node_id, message_type, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append((node, message))
            self.before(node, message)
            if node not in self.apps:
                continue
            try:
                reply = self.apps[node](carried(message), self.contexts[node])
            except Exception as error:
                reply = Message(Error(0, str(error)), reply_to=message)
            changed = self.change(node, carried(reply))
            if changed is not None:
                replies.append(changed)
        return replies
