"""A method of the catalogue as a strategy of Flower's own, for a `ServerApp` that somebody else has written.

`server_app` has a loop of rounds of its own. Here Flower's has the word: before each of its exchanges it asks the
strategy what to send, and afterwards hands it the answers, which go on to a `Coordinator`. What a method wants beside
the one exchange of a round (a start, a survey, clients that join) is sent while Flower waits for the round's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from typing import Any

from hetfl_core import checks
from hetfl_core.deployment import wire
from hetfl_core.deployment.apps import Nodes, settings_of
from hetfl_core.deployment.coordinator import Coordinator, Replies, Requests, Result, Steps
from hetfl_core.errors import NotInstalled, WrongValue
from hetfl_core.methods.base import Method

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp import strategy as flower
    from flwr.supercore import log
except ImportError as error:
    raise NotInstalled("Flower is not installed: pip install 'hetfl-core[deploy]'") from error


class MethodStrategy(flower.Strategy):
    """A method as a strategy of Flower's; the clients run `client_app` of the same method.

    The numbers are those of `simulate` with the same seed. A run is not kept on the disk, and uploads are not summed
    in secret: `server_app` does both.

    Parameters
    ----------
    method : Method
        Such as ``FLIC()``.
    config : mapping
        ``classes``, and what else `settings_of` and `server_app` read but for ``folder`` and ``secure``: the ``seed``,
        how many ``clients`` must be there before the first round, the share of them in a round (``participation``),
        and after how many rounds clients are evaluated (``evaluate-every``, by default 10). A run config is one.

    Attributes
    ----------
    result : Result or None
        History, figures of each client and the server's tensors, once `start` has come to its end.

    Raises
    ------
    ValueError
        For a config that cannot be run so.
    """

    def __init__(self, method: Method, config: Mapping[str, Any]) -> None:
        checks.instance("method", method, Method, such_as="FLIC()")
        self.method, self.config = method, dict(checks.mapping("config", config))
        for key in ("folder", "secure"):
            if self.config.get(key):
                value = checks.shown(self.config[key])
                raise WrongValue(f"config must not set {key!r} for a strategy, got {value}: use server_app")
        settings_of(self.config)
        self.result: Result | None = None

    def summary(self) -> None:
        """Log the method with its settings."""
        log(INFO, "\t├── %s", self.method)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> flower.Result:
        """Run the method over the nodes of a grid.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        initial_arrays, train_config, evaluate_config : optional
            Must be empty: the method draws its first weights by the seed, and says itself what clients are to do.
        num_rounds : int, optional
            By default the config's ``rounds``.
        timeout : float
            Seconds for which clients, and each of their answers, are waited for.
        evaluate_fn : callable, optional
            Given the number of the round and the server's tensors.

        Returns
        -------
        flwr.serverapp.strategy.Result
            The server's tensors; of each round, the means of the clients' losses with the bytes sent, and of rounds
            after which clients were evaluated, their figures. Those of the last are measured after the last local
            training.

        Raises
        ------
        ValueError
            For a federation that the method cannot run on, and for what must be empty.
        DeploymentError
            If clients are missing at the beginning, or no usable answer comes in a round.
        """
        given = {"initial_arrays": initial_arrays, "train_config": train_config, "evaluate_config": evaluate_config}
        for name, record in given.items():
            if record:
                named = checks.shown(list(record))
                raise WrongValue(f"{name} must be empty, got {named}: {self.method.name} has its own")
        if num_rounds is not None:
            self.config["rounds"] = checks.integer("num_rounds", num_rounds, 1)
        self.config["patience"] = checks.number("timeout", timeout, above=0)
        self._nodes = Nodes(grid, {self.method.name: self.method}, self.config, lambda what: log(INFO, "%s", what))
        clients = checks.integer("clients", int(self.config.get("clients", 2)), 1)
        self._nodes.wait(clients)
        self._nodes.agree(clients)
        settings = self._nodes.settings
        self._coordinator = Coordinator(
            self.method.name, self.method, settings, self._nodes.roster, say=lambda what: log(INFO, "%s", what)
        )
        self._steps: Steps[Result] = self._coordinator.steps()
        self.result = None
        self._requests: Requests = next(self._steps)
        first = wire.to_arrays(self._coordinator.server)
        return super().start(grid, first, settings.rounds, timeout, evaluate_fn=evaluate_fn)

    # --- what Flower's loop calls, in this order ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round, after what comes before it was sent and answered."""
        while not any(task.kind == "round" for task in self._requests.values()):
            found = self._nodes.exchange(self._by_run())
            self._go_on({name: own[self.method.name] for name, own in found.items() if self.method.name in own})
        return self._ask()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The server's tensors after a round, and the means of the clients' losses."""
        self._take(replies)
        return wire.to_arrays(self._coordinator.server), MetricRecord(self._figures())

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of an evaluation; none after most rounds."""
        self._measures = any(task.kind in ("evaluate", "final") for task in self._requests.values())
        return self._ask() if self._measures else []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of the clients' figures; None where they were not asked."""
        if not self._measures:
            return None
        before = self._figures()
        self._take(replies)
        if self.result is not None:
            return MetricRecord({**self.result.final})
        return MetricRecord({name: value for name, value in self._figures().items() if name not in before})

    def _figures(self) -> dict[str, Any]:
        """What is known of the last round by now."""
        row = self._coordinator.row
        return {name: value for name, value in row.items() if name not in ("round", "took_part", "seconds")}

    # --- the coordinator's steps ---

    def _by_run(self) -> dict[str, dict[str, Any]]:
        return {name: {self.method.name: task} for name, task in self._requests.items()}

    def _ask(self) -> list[Message]:
        """The messages of the coordinator's next exchange, which Flower sends."""
        self._messages = self._nodes.messages(self._by_run(), self._nodes.look())
        return self._messages

    def _take(self, answers: Iterable[Message]) -> None:
        """Hand the answers to the messages that were sent last to the coordinator."""
        found = self._nodes.replies(self._messages, answers, self._by_run())
        self._go_on({name: own[self.method.name] for name, own in found.items()})

    def _go_on(self, replies: Replies) -> None:
        try:
            self._requests = self._steps.send(replies)
        except StopIteration as end:
            self._requests, self.result = {}, end.value
