"""One door: whatever can be fitted on a federation is made a learner, and `simulate` runs it.

`simulate` and `simulate_seeds` take a federated method, an estimator of scikit-learn, of which each client fits one to
its own rows, or a baseline; what compares, tunes or reports takes the same, and calls `Learner.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from hetfl_core import checks, keywords
from hetfl_core.engine.checkpoint import method_settings
from hetfl_core.engine.last_step import LastStep
from hetfl_core.engine.layout import Engine
from hetfl_core.engine.learner import Learner, OnRound
from hetfl_core.engine.measures import Asked
from hetfl_core.engine.options import RunOptions, with_networks
from hetfl_core.engine.run import Run
from hetfl_core.engine.simulation import run_all
from hetfl_core.engine.together import SHAPING, together
from hetfl_core.errors import WrongType
from hetfl_core.estimators import PerSite, is_estimator, lacking
from hetfl_core.federation import Federation, Spec
from hetfl_core.methods import Local, Method
from hetfl_core.views import method_and_view, view_of


@dataclass(frozen=True)
class Federated(Learner):
    """A method that trains networks in rounds.

    Parameters
    ----------
    method : Method
    """

    method: Method
    in_rounds = True

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name

    @property
    def way(self) -> Literal["alone", "together"]:
        """Clients learn together, but for `Local`, of which nothing leaves them."""
        return "alone" if isinstance(self.method, Local) else "together"

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuse clients that the method, or its network, cannot work on."""
        with_networks(self.method, specs).check(specs)

    def run(self, federation: Federation, seed: int, options: RunOptions) -> Run:
        """Rounds of training and averaging, from the first to the last (`hetfl_core.engine.simulation`)."""
        told = options.on_round
        (run,) = run_all(
            [(seed, federation, options.validation)],
            self.method,
            replace(options, validation=None, on_round=None),
            None if told is None else lambda _, row: told(row),
        )
        return run

    def run_seeds(
        self, data: Mapping[int, Federation], options: RunOptions, on_round: OnRound | None = None
    ) -> dict[int, Run]:
        """Runs side by side, whose clients share stacks."""
        numbers = sorted(data)
        runs = run_all([(seed, data[seed], None) for seed in numbers], self.method, options, on_round)
        return dict(zip(numbers, runs, strict=True))

    def at_once(self, federation: Federation, options: RunOptions) -> int:
        """Number of runs that are trained together, by the size of a step and by memory."""
        if any(told is not None for told in (options.on_round, options.checkpoint, options.validation)):
            return 1
        shaping = {name: getattr(options, name) for name in SHAPING}
        return together(federation, self.method, options.participation, **shaping)

    def settings(self, specs: Sequence[Spec] = ()) -> dict[str, Any]:
        """Plain form that records hold, with the networks that these clients get."""
        return method_settings(self.method, specs)

    @property
    def parameters(self) -> list[str]:
        """Names of the method's fields."""
        return [f.name for f in fields(self.method)]

    def with_settings(self, settings: Mapping[str, Any]) -> Federated:
        """The method with other values of its fields."""
        return replace(self, method=replace(self.method, **settings))

    def unwrapped(self) -> Method:
        """The method."""
        return self.method


def as_learner(x: Any, argument: str = "method") -> Learner:
    """A learner of whatever can be fitted on a federation.

    Parameters
    ----------
    x : Method, estimator of scikit-learn, baseline or Learner
    argument : str
        What it was given as, for the error.

    Returns
    -------
    Learner

    Raises
    ------
    TypeError
        For anything else, such as a class instead of an object of it.
    """
    if isinstance(x, Learner):
        return x
    if isinstance(x, Method):
        return Federated(x)
    if is_estimator(x):
        return PerSite(x)
    if isinstance(x, type) and issubclass(x, Learner | Method):
        raise WrongType(f"{argument} must be an object, such as {x.__name__}(), got the class {x.__name__}")
    raise WrongType(
        f"{argument} must be a method such as FLIC(), an estimator of scikit-learn such as LogisticRegression(), or a "
        f"baseline such as LDA(), got {checks.shown(x)}{lacking(x)}"
    )


@keywords.hinting()
def simulate(
    federation: Federation,
    method: Any,
    *,
    rounds: int = 50,
    participation: float = 1.0,
    seed: int = 0,
    engine: Engine = "auto",
    device: str | torch.device = "auto",
    dtype: torch.dtype = torch.float32,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    evaluate_every: int | Sequence[int] = 1,
    metric: Asked | Sequence[Asked] = (),
    last_step: LastStep = "shared",
    validation: Federation | None = None,
    stack_size: int | None = None,
    workers: int | None = None,
    threads: int = 1,
    on_round: Callable[[dict[str, Any]], Any] | None = None,
    secrets: Mapping[str, bytes] | None = None,
) -> Run:
    """Run a method, an estimator or a baseline on a federation.

    Parameters
    ----------
    federation : Federation
    method : Method, estimator of scikit-learn, baseline, or (that, view)
        A federated method, such as ``FLIC()``; an estimator, such as ``LogisticRegression()`` or a pipeline, of which
        each client fits one to its own rows (`hetfl_core.estimators.PerSite`; `InOnePlace` fits one to the rows of
        all); or a baseline of `hetfl_core.baselines`. What is no method knows no rounds: of the options below only
        ``metric`` then has a meaning, and the others are checked all the same. A view says how the data are to be
        seen, as for `hetfl_core.compare`.
    rounds : int
        Communication rounds T.
    participation : float
        Participation rate r in (0, 1]: ⌊r·b⌋ clients take part in a round, drawn without replacement. By default all;
        the papers' experiments say 0.1.
    seed : int
        Keys every random number of the run. The same seed gives bit-identical histories on the same machine.
    engine : {"auto", "stacked", "loop"}
        Train clients as batched tensor programs, or one after the other in the slow, obvious way (the oracle).
        ``"auto"`` takes what is faster for each kind of client, by `hetfl_core.engine.layout.choose`: stacks of small
        networks, smaller stacks of wide ones, and the loop for most convolutions on a CPU.
    device : str or torch.device
        ``"auto"``: CUDA where there is one. Random numbers are drawn on the CPU in any case.
    dtype : torch.dtype
        Floating-point type of data and parameters.
    checkpoint : path, optional
        Folder in which the state is written after every round, atomically. A run that was killed and is started
        again with the same arguments goes on from there and ends with the same results, bit for bit. More `rounds`
        than before go on as well.
    progress : bool
        Show a progress bar.
    evaluate_every : int or sequence of int
        Rounds between evaluations, or the rounds to evaluate: ``(1, 2, 4, 8)``. The first and the last always are.
    metric : str or callable, or sequence of such
        What else each evaluation looks at, as columns of the history. Of the clients' test samples (and, with
        `validation`, of those, as ``validation_auc`` …): ``"balanced_accuracy"``, ``"auc"``, ``"f1"``, ``"log_loss"``,
        ``"brier"`` and ``"calibration_error"``, or ``"rmse"``, ``"mae"`` and ``"r2"`` for a regression, as
        `hetfl_core.engine.measures` defines them; and functions of your own, ``f(y, p)``, of labels, shape (n,), and
        class probabilities, shape (n, C), or of targets and predicted numbers. Such a column is the mean over clients;
        `Run.final` also has their standard deviation, ``auc_sd``, and the worst client's, ``auc_worst``: the smallest,
        or the largest where less is better. Of a function of your own that is to be said, by
        ``hetfl_core.scorer(f, greater_is_better=False)``; a bare one has no worst client. A client where a measure is
        not defined, as ``"auc"`` with samples of one class, has NaN and is left out; a FederationWarning names it.
        Beside these:

        - ``own_accuracy``: the mean over the participants of their models as they leave local training, before
          the server averages anything. It costs one forward pass of the participants' test samples.
        - ``server_accuracy``: that of the server's own model, where the method has one, on the federation's own
          test data, or else on the clients' (one forward pass of all).
        - ``held_accuracy`` and ``own_held_accuracy``: as ``accuracy`` and ``own_accuracy``, on test samples of the
          classes that a client has training samples of.
    last_step : {"shared", "own"}
        With ``"own"`` each client fits slope and offsets of its model's logits (of a regression, its numbers) to its
        own training samples when all training is over, and never sends them (`hetfl_core.engine.last_step`): a shared
        model does not know in which shares a client has the classes. What `Run.final` and `Run.per_client` say, and
        what the run predicts, is after this step; the history is before it, as it is before the last local training.
    validation : Federation, optional
        The same clients with other test samples, their validation samples: each evaluation also measures those, as
        ``validation_accuracy`` in the history and in `Run.final` (``validation_mse`` for a regression). Training does
        not see them; they are for choosing a round, or a setting, without looking at the test samples.
    stack_size : int, optional
        Largest number of clients in one stack; bounds memory. By default 1024, or as many as ``engine="auto"`` finds
        worth it. Results depend on it to rounding only, which training lets grow: see the notes.
    workers : int, optional
        Processes that train and evaluate stacks, or clients of the loop, side by side on a CPU, each on a core. By
        default this one at first, and a process a core (over `threads`) as soon as the run has taken two seconds, or
        twenty where processes cannot be forks of this one; always one where this process is itself one of several. The
        result does not depend on it, not by a bit. What a method prints there is seen, what it remembers is not.
    threads : int
        Threads within one operation on the CPU. More than one only for large images, on cores that nobody else uses.
        Elsewhere the tensors are small, and threads that wait for each other make a run slower, on a busy machine fifty
        times. Where a step of the largest stack of a round is less than 10⁹ floating-point operations, a
        RuntimeWarning says so. `workers` use several cores for any network. PyTorch's own setting is put back at the
        end. At most 64, or as many as the machine has cores.
    on_round : callable, optional
        Called with the newest row of the history after each round, when its checkpoint is written; what was not
        measured in that round is not in the row. If it returns True, the run ends early, with its last local training
        and evaluation as after any other last round: ``settings["rounds"]`` of the `Run` is the number of rounds made,
        ``settings["rounds_asked"]`` that of the argument. Started again with the same `checkpoint` it goes on. What
        `on_round` raises ends the call without a `Run`.
    secrets : dict of str to bytes, optional
        By clients' names, what keys the noise that protects their uploads, 32 bytes each; by default that is keyed by
        the seed, as all else is. In a deployment every client draws a secret that nobody else gets to know: with these
        secrets a simulation has its numbers. This noise depends on the very bits of what it covers, so that another
        engine, which rounds in another way, has other noise.

    Returns
    -------
    Run
        Histories, figures and models; see there.

    Raises
    ------
    ValueError
        For T < 1, a participation that selects no client, a federation that the method cannot run on, or a
        `validation` whose clients are not those of the federation.
    hetfl_core.engine.checkpoint.CheckpointError
        If the checkpoint is damaged, belongs to another setting, or cannot be written.
    RuntimeError
        If a process of the run is killed, with the clients that it worked on.

    Notes
    -----
    *Divergence.* Where a model's outputs for some sample are NaN or infinite, its client has no figure: NaN stands in
    the history, in `Run.final` (of means over clients, too) and in `Run.per_client`, ``final["diverged"]`` counts such
    clients, and one RuntimeWarning says on which client and in which round it began.

    *Evaluation.* After each round every client is evaluated with what it keeps and a fresh download, whether it took
    part or not. `Run.final` is measured after a last local training of all clients (role ``"final"``), from a fresh
    download, as FLIC reports accuracy; for a method that `closes`, after one more exchange, too.

    *Rounding.* The same arguments give the same bits on the same kind of machine. Another `stack_size`, engine, number
    of threads or device only takes sums in another order; but training amplifies rounding. In float32 and over a few
    rounds parameters were seen to differ by 2e-5, by some 1e-3 where pre-training is long, and in FLIC's published
    variant by 2e-3. In float64 they differed by 1e-11, and by 1e-5 under FLIC's anchor term where classes are nearly
    flat, as those of clients with few features are. Over many rounds a few predictions may differ.

    *Memory.* What a loss asks to remember lives for one round of one client. A sample that was not seen in it holds
    zeros; a sample that was seen more than once holds its last value.

    *Bytes.* Messages are counted at their true shapes, a broadcast once per receiver. The downloads of the start stage
    count in round 0, those of clients that train while at rest in that round, those of the final training in
    ``final``. Evaluation's downloads do not count. A survey (see `Method.surveyed`) counts its answers as sent up and
    its questions as sent down; what the question and the download of the same round have in common counts once.
    """
    plain, view = method_and_view("method", method)
    learner = as_learner(plain)
    checks.instance("federation", federation, Federation)
    options = RunOptions(
        rounds=rounds,
        participation=participation,
        engine=engine,
        device=device,
        dtype=dtype,
        checkpoint=checkpoint,
        progress=progress,
        evaluate_every=evaluate_every,
        metric=metric,
        last_step=last_step,
        validation=validation,
        stack_size=stack_size,
        workers=workers,
        threads=threads,
        on_round=on_round,
        secrets=secrets,
    )
    return learner.run(view_of(federation, view), checks.seed(seed), options)


@keywords.hinting(*RunOptions.names("validation", "on_round"))
def simulate_seeds(
    federation: Federation | Callable[[int], Federation],
    method: Any,
    *,
    seeds: int | Sequence[int] = 5,
    on_round: OnRound | None = None,
    **options: Any,
) -> dict[int, Run]:
    """Runs that differ in their seeds only, side by side: their clients share stacks as the clients of one run do.

    It pays where few clients take part in a round: ten of each of five runs are one stack of fifty. The memory is that
    of all runs at once, and a run that fails ends all of them.

    Parameters
    ----------
    federation : Federation, or callable
        The data, or ``federation(seed)``, which makes those of a seed.
    method : Method, estimator of scikit-learn, baseline, or (that, view)
        As for `simulate`.
    seeds : int or sequence of int
        Number of seeds, from 0 on, or the seeds themselves.
    on_round : callable, optional
        Called with the seed and the newest row of its history when all runs have ended a round and their common
        checkpoint is written. If it returns True for one of them, all end after this round, as in `simulate`.
    **options
        ``rounds``, ``participation``, ``engine``, ``device``, ``dtype``, ``checkpoint``, ``progress``,
        ``evaluate_every``, ``metric``, ``last_step``, ``stack_size``, ``workers`` and ``threads``, as for `simulate`.
        One folder ``checkpoint`` is for all of these seeds: it does not go on with other ones, nor with runs that
        `simulate` left.

    Returns
    -------
    dict of int to Run
        Each the same as `simulate` gives with that seed, to rounding: a stack is padded to its widest client, of
        whatever run. ``Run.settings["together"]`` names the seeds. The seconds are a run's share of those that passed.

    Raises
    ------
    ValueError, hetfl_core.engine.checkpoint.CheckpointError
        As for `simulate`, and where the seeds have different tasks or numbers of classes.

    Notes
    -----
    The same seeds give the same bits, in whatever order, also when they were interrupted and go on.
    """
    numbers = sorted(checks.seeds(seeds))
    told = RunOptions(**options, on_round=on_round)
    plain, view = method_and_view("method", method)
    learner = as_learner(plain)
    data = {seed: federation(seed) if callable(federation) else federation for seed in numbers}
    return learner.run_seeds(
        {seed: view_of(one, view) for seed, one in data.items()}, replace(told, on_round=None), on_round
    )
