"""Whatever can be fitted on a federation, in one protocol: federated methods, estimators, and classical baselines.

What runs something on a federation asks this of it, and does not ask what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from hetfl_core.engine.options import RunOptions
from hetfl_core.engine.run import Run
from hetfl_core.federation import Federation, Spec

OnRound = Callable[[int, dict[str, Any]], Any]
"""Called with a seed and the newest row of its history after each round."""


class Learner:
    """Something that can be fitted on a federation; `hetfl_core.learners.as_learner` makes it of what users hand over.

    Attributes
    ----------
    in_rounds : bool
        Whether networks are trained in rounds; else something is fitted once, and what `RunOptions` says of rounds has
        no meaning.
    """

    in_rounds: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name in tables and errors."""
        raise NotImplementedError(f"{type(self).__name__} must define name")

    @property
    def way(self) -> Literal["alone", "together", "one place"]:
        """Where it learns: each client alone, clients together by messages, or where all rows lie in one place."""
        return "alone"

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse clients on which it cannot be fitted.

        Parameters
        ----------
        specs : sequence of Spec

        Raises
        ------
        ValueError
            Saying what was expected of which client, and what it has.
        """

    def run(self, federation: Federation, seed: int, options: RunOptions) -> Run:
        """One run.

        Parameters
        ----------
        federation : Federation
        seed : int
        options : RunOptions

        Returns
        -------
        Run

        Raises
        ------
        ValueError
            For data or options that it cannot do with.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run()")

    def run_seeds(
        self, data: Mapping[int, Federation], options: RunOptions, on_round: OnRound | None = None
    ) -> dict[int, Run]:
        """A run for each seed, on its data; by default one after the other.

        Parameters
        ----------
        data : dict of int to Federation
        options : RunOptions
            Without a callback of a single run.
        on_round : callable, optional

        Returns
        -------
        dict of int to Run
        """
        return {seed: self.run(federation, seed, options) for seed, federation in data.items()}

    def at_once(self, federation: Federation, options: RunOptions) -> int:
        """Number of runs, on data like these, that `run_seeds` makes in less time than `run` one after the other."""
        return 1

    def settings(self, specs: Sequence[Spec] = ()) -> Any:
        """Plain form that records hold (`hetfl_core.settings.plain`), with the networks that these clients get."""
        raise NotImplementedError(f"{type(self).__name__} must define settings()")

    @property
    def parameters(self) -> list[str]:
        """Names of the settings that `with_settings` changes."""
        raise NotImplementedError(f"{type(self).__name__} must define parameters")

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same with other settings.

        Raises
        ------
        ValueError, TypeError
            For a name that it does not have, and a value that it refuses.
        """
        raise NotImplementedError(f"{type(self).__name__} must define with_settings()")

    def unwrapped(self) -> Any:
        """Object that a user would hand over for it: a method, an estimator or a baseline."""
        return self
