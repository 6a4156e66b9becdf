"""Flower's two apps: a `ClientApp` around a `Site`, a `ServerApp` around a `Coordinator`.

Flower carries the messages, starts the processes, and sees to TLS and authentication. What is said here is who is
asked what, and when an answer is waited for.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save

from hetfl_core import checks, keywords
from hetfl_core.deployment import agreement, sums, wire
from hetfl_core.deployment.coordinator import (
    SUM,
    Coordinator,
    DeploymentError,
    Result,
    Roster,
    share_messages,
)
from hetfl_core.deployment.secret import Releases, secret_of
from hetfl_core.deployment.site import FileStore, Reply, RunSettings, Site, SiteError, Task, told
from hetfl_core.engine.checkpoint import CheckpointError, code_version
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client
from hetfl_core.files import private, private_folder, write_atomically
from hetfl_core.methods.base import Method
from hetfl_core.networks import Params

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

Methods = Method | Mapping[str, Method]
Load = Callable[[dict[str, Any]], Client]

MODEL = "model.safetensors"
"""A client's model after the last training, in its own folder."""

FEATURES = "features.json"
"""The names of its inputs in their order, ``null`` where they have none."""

AGREED = "agreed.json"
"""What sites with tables agreed on before the first round, in the server's folder."""

TASKS = "train.tasks"
"""Type of the messages that carry tasks."""

LOG = logging.getLogger("hetfl.deployment")


def _named(methods: Methods) -> dict[str, Method]:
    """Methods by the names of their runs."""
    named = {methods.name: methods} if isinstance(methods, Method) else dict(checks.mapping("methods", methods))
    if not named:
        raise WrongValue("methods must be a method, or a dict of at least one, got none")
    for name, method in named.items():
        checks.instance(f"methods[{name!r}]", method, Method, such_as="FLIC()")
        if not isinstance(name, str) or not name or wire.SEPARATOR in name:
            raise WrongValue(f"methods must have names without {wire.SEPARATOR!r}, got {name!r}")
    return named


KEYS = (
    *("classes", "rounds", "participation", "seed", "dtype", "task", "evaluate-every", "secure", "clipping-range"),
    *("metric", "clients", "patience", "folder", "agreed"),
)
"""Keys of a run config that are read here."""


def settings_of(config: Mapping[str, Any]) -> RunSettings:
    """The settings that an app's run config holds (``[tool.flwr.app.config]`` of its ``pyproject.toml``).

    Keys are ``classes``, ``rounds``, ``participation``, ``seed``, ``dtype`` (``"float32"`` or ``"float64"``), ``task``,
    ``evaluate-every``, ``secure``, ``clipping-range`` and ``metric`` (names of metrics with blanks between them, such
    as ``"auc f1"``); all but the first have defaults.

    Parameters
    ----------
    config : mapping
        The run config; keys that are none of these, nor of what `server_app` reads, are your own and passed over,
        unless one of those is meant by them.

    Returns
    -------
    RunSettings

    Raises
    ------
    ValueError
        For what `RunSettings` refuses, a missing ``classes``, and keys that are nearly one of these.
    """
    for key in config:
        if key not in KEYS and (near := keywords.nearest(key, KEYS)):
            raise WrongValue(f"the run config has a key {key!r} that nothing reads: did you mean {near!r}?")
    if "classes" not in config:
        raise WrongValue("the run config must say how many 'classes' there are (0 for a regression)")
    dtype = checks.choice("dtype", config.get("dtype", "float32"), ("float32", "float64"))
    names: dict[str, Any] = {"rounds": int, "participation": float, "seed": int, "task": str, "evaluate-every": int}
    names |= {"secure": bool, "clipping-range": float, "metric": lambda text: tuple(str(text).split())}
    given = {key.replace("-", "_"): make(config[key]) for key, make in names.items() if key in config}  # type: ignore[operator]
    return RunSettings(int(config["classes"]), dtype=getattr(torch, dtype), **given)


# --- a client -------------------------------------------------------------------------------------------------------


def client_app(methods: Methods, load: Load) -> ClientApp:
    """The app that runs beside a client's data.

    Parameters
    ----------
    methods : Method, or dict of str to Method
        The same as the server has; several run side by side and share messages.
    load : callable
        ``load(node_config)`` returns the `Client`: its data, in its own feature space. `node_config` is what the
        owner of the data told the SuperNode (``--node-config``), such as the path of a file; under ``agreed`` stands
        what sites with tables have agreed on, see `client_from_file`. With ``state`` there, the
        path of a folder, what the client keeps from round to round outlives a restart, and its final model is written
        there.

    Returns
    -------
    flwr.clientapp.ClientApp

    Raises
    ------
    ImportError
        Where Flower is not installed.
    ValueError, TypeError
        For no method, and names that cannot be those of runs.
    """
    answer = wire.flower().Message
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp

    sums.keep_masks_secret()
    named = _named(methods)
    app = ClientApp()

    @app.query()
    @private()
    def hello(message: Message, context: Context) -> Message:
        return answer(wire.pack(_introduction(message.content, context, named, load)), reply_to=message)

    @app.train("tasks")
    @private()
    def train(message: Message, context: Context) -> Message:
        return answer(wire.pack_replies(_work(message.content, context, named, load)), reply_to=message)

    @app.train(mods=[_only_ours, secaggplus_mod])
    @private()
    def add(message: Message, context: Context) -> Message:
        return answer(_masked(message.content, context, named, load), reply_to=message)

    return app


def _only_ours(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Refuse what another server sends, before Flower looks for its secure sums in it.

    Raises
    ------
    SiteError
    """
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

    if RECORD_KEY_CONFIGS not in message.content.config_records:
        raise SiteError(
            "was asked to train by another server than hetfl_core's: a `client_app` answers a `server_app` or a "
            "`MethodStrategy`, and no other strategy of Flower's"
        )
    return call_next(message, context)


def _introduction(content: RecordDict, context: Context, methods: Mapping[str, Method], load: Load) -> dict[str, Any]:
    """A client's words about itself, or why it cannot take part."""
    try:
        asked = wire.unpack_words(content)
        for run, digest in asked["code"].items():
            if run not in methods:
                return {"error": f"has no method called {run!r}, only {sorted(methods)}"}
            if (own := code_version(methods[run])) != digest:
                return {
                    "error": f"runs other code of hetfl_core or of {run!r} than the server ({own}, not {digest}): "
                    "install the same version on both"
                }
        settings = settings_of(asked["settings"])
        site = Site(_loaded(load, context, asked["settings"]), next(iter(methods.values())), settings, n_clients=1)
        for run, method in methods.items():
            _secret(context, site.spec.name, run, method)
        return told(site.spec, site.client)
    except Exception as error:  # whatever the loader of the data's owner does
        LOG.exception("this client cannot take part")
        return {"error": f"cannot take part: {_in_words(error)}"}


def _folder(context: Context, name: str, run: str) -> Path | None:
    """Where a client keeps its part in a run; None where its owner named no folder."""
    if "state" not in context.node_config:
        return None
    return private_folder(Path(str(context.node_config["state"])) / _as_folder(name)) / run


def _secret(context: Context, name: str, run: str, method: Method) -> bytes:
    """What keys a client's noise; empty for a method that draws none.

    Raises
    ------
    SiteError
        Where there must be one, and no folder to keep it in.
    """
    folder = _folder(context, name, run)
    if not method.needs_secret:
        return b""
    if folder is None:
        raise SiteError(
            f"{run} adds noise for privacy, whose secret must be kept: start the client with a folder for its state "
            "(`hetfl deploy client --state FOLDER`)"
        )
    return secret_of(folder.parent)


def _as_folder(name: str) -> str:
    """The name of a client, which is that of a folder; one that would lead elsewhere is refused."""
    if name in (".", "..") or {*name} & {*"/\\\0"}:
        raise WrongValue(f"a client with a folder for its state must have a name without / and \\, got {name!r}")
    return name


def _loaded(load: Load, context: Context, config: Mapping[str, Any]) -> Client:
    """The client's data, as the sites have agreed to read them, if they have."""
    return load({**context.node_config, "agreed": config.get("agreed", {})})


def _in_words(error: Exception) -> str:
    """An error as the server may know it: our own say nothing of samples; of others only the type is told."""
    ours = type(error).__module__ in (
        "hetfl_core.errors",
        "hetfl_core.deployment.site",
        "hetfl_core.deployment.wire",
        "hetfl_core.engine.checkpoint",
    )
    return str(error) if ours else f"{type(error).__name__} (its log says more)"


def _work(content: RecordDict, context: Context, methods: Mapping[str, Method], load: Load) -> dict[str, Reply]:
    """Do the tasks of a message, one run after the other."""
    tasks = wire.unpack_tasks(content)
    replies: dict[str, Reply] = {}
    try:
        config = wire.unpack_words(content)["settings"]
        settings, client = settings_of(config), _loaded(load, context, config)
    except Exception as error:  # whatever the loader of the data's owner does
        LOG.exception("this client cannot work")
        return {run: Reply(error=f"cannot read its data: {_in_words(error)}") for run in tasks}
    for run, task in tasks.items():
        try:
            secret, folder = _secret(context, client.name, run, methods[run]), _folder(context, client.name, run)
            site = Site(client, methods[run], settings, task.n_clients, task.features, secret)
            store: FileStore | wire.ContextStore = wire.ContextStore(context.state, run)
            if folder is not None:
                store = FileStore(private_folder(folder), site.identity(run))
            reply, memory = site.work(task, store.load())
            if folder is not None and reply.sent and site.method.needs_secret:
                Releases(folder).add(task, reply.sent)
            replies[run] = reply
            if memory is not None:
                store.save(memory)
            if site.last is not None and isinstance(store, FileStore):
                save_model(store.folder, *site.last, site.spec.features)
        except Exception as error:  # told to the server, which goes on without this client
            LOG.exception("%s: this client cannot do round %s (%s)", run, task.round, task.kind)
            replies[run] = Reply(error=f"failed: {_in_words(error)}")
    return replies


def _masked(content: RecordDict, context: Context, methods: Mapping[str, Method], load: Load) -> RecordDict:
    """Do a round under secure aggregation: what goes back is masked by Flower before it leaves.

    Raises
    ------
    SiteError
        Where this client cannot take part in the sum; the others' masks are taken off without it.
    """
    ((run, reply),) = _work(content, context, methods, load).items()
    layout = wire.unpack_tasks(content)[run].layout
    if reply.error is not None or layout is None:
        raise SiteError(reply.error or "was not told how to lay out its part of a sum")
    return sums.answer(layout.vector(reply.sent), reply.terms)


def save_model(folder: Path, params: Params, received: Params, features: Any = None) -> None:
    """Write a client's model where `load_model` finds it.

    Parameters
    ----------
    folder : Path
    params, received : dict of str to Tensor
        The whole model, and what was downloaded for it.
    features : tuple of str, or dict of str to tuple of str, optional
        Names of its inputs in their order.
    """
    write_atomically(folder / FEATURES, json.dumps(features, indent=1).encode())
    tensors = {f"params/{name}": p for name, p in params.items()} | {f"received/{n}": p for n, p in received.items()}
    write_atomically(folder / MODEL, save({name: p.cpu().contiguous().clone() for name, p in tensors.items()}))


def load_model(folder: str | Path) -> tuple[Params, Params]:
    """A client's model as its last training left it.

    Parameters
    ----------
    folder : path
        ``state/<client>/<run>`` on the client's machine.

    Returns
    -------
    params, received : dict of str to Tensor
        For `Method.predict`: ``method.predict(params, received, x)``, the columns of ``x`` in the order of
        ``features.json``, which lies beside the model and need not be that of the client's file.

    Raises
    ------
    FileNotFoundError
        Where the run has not come to its end.
    """
    path = checks.path("folder", folder) / MODEL
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: it is written when a run ends")
    tensors = load_file(path)
    parts = ("params/", "received/")
    params, received = ({n.removeprefix(p): t for n, t in tensors.items() if n.startswith(p)} for p in parts)
    return params, received


# --- the server -----------------------------------------------------------------------------------------------------


MOST_SILENCE = 60.0
"""Seconds, at most, after which a node that did not introduce itself is asked again."""


class Nodes:
    """The SuperNodes of a run: who is there under which name, and messages to them.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    methods : dict of str to Method
    config : dict
        The run config.
    say : callable
        Told, in words, who comes, goes and is refused.
    """

    def __init__(
        self, grid: Grid, methods: Mapping[str, Method], config: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        self.grid, self.config, self.roster, self.say = grid, dict(config), Roster(), say
        self.settings = settings_of(config)
        self.patience = checks.number("patience", float(config.get("patience", 600.0)), above=0)
        self.code = {run: code_version(method) for run, method in methods.items()}
        self.names: dict[int, str | None] = {}
        """Of each node that was ever seen; None where it was refused."""
        self.silent: dict[int, tuple[float, float]] = {}
        """Of each node that did not introduce itself, when it is asked again, and the seconds between."""

    def _send(self, contents: Mapping[int, Any], kind: str) -> dict[int, Message]:
        """Send to nodes; the answers that came in time, by node."""
        messages = [wire.flower().Message(content, node, kind) for node, content in contents.items()]
        return self._by_node(messages, self.grid.send_and_receive(messages, timeout=self.patience))

    @staticmethod
    def _by_node(messages: Sequence[Message], answers: Iterable[Message]) -> dict[int, Message]:
        """Answers by the nodes to which the messages went.

        Of a node that has gone the SuperLink says so in its own name: then only what is answered tells which one.
        """
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages if m.metadata.message_id}
        nodes = {m.metadata.dst_node_id for m in messages}
        found = {}
        for answer in answers:
            node = asked.get(answer.metadata.reply_to_message_id, answer.metadata.src_node_id)
            if node in nodes:
                found[node] = answer
        return found

    def look(self) -> dict[str, int]:
        """Say hello to nodes that are new.

        Returns
        -------
        dict of str to int
            The node of each client that is there.
        """
        online = set(self.grid.get_node_ids())
        now = time.monotonic()
        new = sorted(node for node in online - self.names.keys() if self.silent.get(node, (now, 0.0))[0] <= now)
        if new:
            words = {"code": self.code, "settings": self.config}
            replies = self._send({node: wire.pack(words) for node in new}, "query")
            for node in new:
                self._greet(node, replies.get(node), online)
        return {name: node for node, name in self.names.items() if name is not None and node in online}

    def _greet(self, node: int, reply: Message | None, online: set[int]) -> None:
        if reply is None or reply.has_error():
            if node not in self.silent:
                self.say(
                    f"node {node} did not introduce itself{self._reason(reply)}; if what runs there is no `client_app` "
                    "of hetfl_core, it never will, and is left out; it is asked again now and then"
                )
            _, pause = self.silent.get(node, (0.0, 0.25))
            self.silent[node] = (time.monotonic() + 2 * pause, min(2 * pause, MOST_SILENCE))
            return
        self.names[node] = None
        try:
            words = wire.unpack_words(reply.content)
            if "error" in words:
                self.say(f"node {node} {words['error']}")
                return
            name = str(words.get("name"))
            others = [other for other, known in self.names.items() if known == name and other in online]
            if others:
                self.say(f"node {node} is refused: it calls itself {name!r}, as node {others[0]} does, which is there")
                return
            agreement.check_taken(words, self.config.get("agreed", {}))
            new = self.roster.add(words, self.settings)
        except ValueError as error:
            self.say(f"node {node} is refused: {error}")
            return
        self.names[node] = name
        self.say(f"client {name!r} is there" if new else f"client {name!r} is back")

    @staticmethod
    def _reason(reply: Message | None) -> str:
        return "" if reply is None else f" ({reply.error.reason})"

    def wait(self, number: int) -> None:
        """Wait until so many clients are there.

        Raises
        ------
        DeploymentError
            If they are not in time.
        """
        begin = time.monotonic()
        while len(self.look()) < number:
            if time.monotonic() - begin > self.patience:
                there = sorted(self.look())
                raise DeploymentError(
                    f"expected {number} clients, but after {self.patience:g} s there are {len(there)}: {there}"
                )
            time.sleep(0.5)

    def agree(self, number: int) -> None:
        """Have sites with tables agree on levels and on who has which columns, and introduce themselves by these.

        Raises
        ------
        ValueError
            Naming site and column, where they cannot agree.
        DeploymentError
            If fewer than so many clients are left.
        """
        if found := {} if "agreed" in self.config else agreement.agreed(self.roster.told.values()):
            self.config["agreed"] = found
            words = checks.shown(list(found["levels"])) if found["levels"] else "no category"
            self.say(f"{len(found['columns'])} sites agree on the levels of {words}")
            self.names, self.roster.told = {}, {}
            self.wait(number)

    def exchange(self, tasks: Mapping[str, Mapping[str, Task]]) -> dict[str, dict[str, Reply]]:
        """Send each client its tasks, by the names of runs, and collect what came back in time.

        Parameters
        ----------
        tasks : dict of str to dict of str to Task
            By client, then by run.

        Returns
        -------
        dict of str to dict of str to Reply
            By client, then by run; a sum under the name `SUM`.
        """
        there = self.look()
        found: dict[str, dict[str, Reply]] = {name: {} for name in there}
        openly: dict[str, dict[str, Task]] = {name: {} for name in there}
        to_add: dict[str, dict[int, Task]] = {}
        for name, run, task in ((n, run, t) for n, asked in tasks.items() if n in there for run, t in asked.items()):
            if task.layout is None:
                openly[name][run] = task
            else:
                to_add.setdefault(run, {})[there[name]] = task
        messages = self.messages(openly, there)
        found |= self.replies(messages, self.grid.send_and_receive(messages, timeout=self.patience), openly)
        for run, by_node in to_add.items():
            for name, own in self._sum(run, by_node).items():
                found.setdefault(name, {})[run] = own
        return found

    def messages(self, tasks: Mapping[str, Mapping[str, Task]], there: Mapping[str, int]) -> list[Message]:
        """The messages that carry tasks to those clients that are there.

        Parameters
        ----------
        tasks : dict of str to dict of str to Task
            By client, then by run.
        there : dict of str to int
            The node of each client (`look`).

        Returns
        -------
        list of flwr.app.Message
        """
        contents = {there[c]: wire.pack_tasks(asked, self.config) for c, asked in tasks.items() if asked and c in there}
        return [wire.flower().Message(content, node, TASKS) for node, content in contents.items()]

    def replies(
        self, messages: Sequence[Message], answers: Iterable[Message], tasks: Mapping[str, Mapping[str, Task]]
    ) -> dict[str, dict[str, Reply]]:
        """The replies in the answers to `messages`, by client, then by run."""
        found = {}
        for node, answer in self._by_node(messages, answers).items():
            name = str(self.names[node])
            if answer.has_error():
                found[name] = {run: Reply(error=f"failed{self._reason(answer)}") for run in tasks[name]}
            else:
                found[name] = wire.unpack_replies(answer.content, tasks[name])
        return found

    def _sum(self, run: str, tasks: Mapping[int, Task]) -> dict[str, Reply]:
        """Run a round of one run under secure aggregation: the replies of who took part, and the sum."""
        contents = {node: wire.pack_tasks({run: task}, self.config) for node, task in tasks.items()}
        clip = self.settings.clipping_range
        total, terms = sums.secure_sum(self.grid, contents, timeout=self.patience, clipping_range=clip)
        if total is None:
            self.say(f"{run}: too few clients answered for the masks to be taken off")
            return {}
        found = {str(self.names[node]): Reply(terms=own) for node, own in terms.items()}
        return {**found, SUM: Reply({"vector": torch.as_tensor(total)})}


def server_app(methods: Methods) -> ServerApp:
    """The app that runs at the server.

    Parameters
    ----------
    methods : Method, or dict of str to Method
        Several run side by side on the same clients and share messages: so what federation is worth can be seen in one
        deployment, with `Local` beside the others.

    Returns
    -------
    flwr.serverapp.ServerApp
        Its run config has the keys of `settings_of`, and ``clients``, how many must be there before the first round;
        ``patience``, the seconds for which an answer is waited for (600); ``folder``, where the state is written after
        each round and the results at the end: a run that is started again goes on from there.

    Raises
    ------
    ImportError
        Where Flower is not installed.
    ValueError, TypeError
        For no method, and names that cannot be those of runs.
    """
    wire.flower()
    from flwr.serverapp import ServerApp

    named = _named(methods)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, dict(context.run_config), named)

    return app


@private()
def serve(grid: Grid, config: Mapping[str, Any], methods: Methods) -> dict[str, Result]:
    """Run methods over the nodes of a grid (see `server_app`).

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    config : mapping
        The run config; its keys are those that `server_app` describes.
    methods : Method, or dict of str to Method

    Returns
    -------
    dict of str to Result
        By the names of the runs. With a ``folder``, tables and figures are written there too.

    Raises
    ------
    DeploymentError
        If clients are missing at the beginning, no usable answer comes in a round, or another run is at work in the
        folder.
    ValueError
        For a config, or a federation, that cannot be run.
    """
    named = _named(methods)
    folder = Path(str(config["folder"])) if config.get("folder") else None
    with _alone(folder):
        return _served(grid, config, named, folder)


@contextmanager
def _alone(folder: Path | None) -> Iterator[None]:
    """Keep a second run out of a folder as long as one is at work there."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)  # one that was there is its owner's to open or close
    try:
        lock = FileLock(folder / ".lock", timeout=0, mode=0o600)
        lock.acquire()
    except Timeout as error:
        raise DeploymentError(
            f"a run is at work in {folder} already: wait for its end or stop it (`flwr stop`), or name another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _served(
    grid: Grid, config: Mapping[str, Any], named: Mapping[str, Method], folder: Path | None
) -> dict[str, Result]:
    """Run methods over the nodes of a grid, in a folder that is theirs."""
    if folder is not None:
        for run in named:
            private_folder(folder / run)

    def say(what: str) -> None:
        print(what, flush=True)
        if folder is not None:
            with open(folder / "events.log", "a", encoding="utf8") as log:
                print(what, file=log)

    if folder is not None and (folder / AGREED).exists():
        config = {**config, "agreed": json.loads((folder / AGREED).read_text("utf8"))}
    nodes = Nodes(grid, named, config, say)
    try:
        number = checks.integer("clients", int(config.get("clients", 2)), 1)
        nodes.wait(number)
        nodes.agree(number)
        if folder is not None and "agreed" in nodes.config:
            write_atomically(folder / AGREED, json.dumps(nodes.config["agreed"], indent=1).encode())
        runs = {
            run: Coordinator(run, method, nodes.settings, nodes.roster, folder and folder / run, say)
            for run, method in named.items()
        }
        results = share_messages({run: one.steps() for run, one in runs.items()}, nodes.exchange)
    except CheckpointError as error:
        raise DeploymentError(str(error)) from error
    for run, result in results.items():
        print(f"{run}: " + ", ".join(f"{name} {value:.4g}" for name, value in result.final.items()), flush=True)
        if folder is not None:
            write_atomically(folder / run / "history.csv", result.history.to_csv(index=False).encode())
            write_atomically(folder / run / "per_client.csv", result.per_client.to_csv(index=False).encode())
            write_atomically(folder / run / "final.json", json.dumps(result.final, indent=1).encode())
    return results
