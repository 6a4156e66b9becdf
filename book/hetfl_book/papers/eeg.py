"""The uncomfortable question, as experiments: is a federation better than what each subject could do alone?

None of these is a paper's table. They take FLIC's setting for brain–computer interfaces (50 rounds, a tenth of the
subjects in each) and set every federated method beside the classical classifiers of `hetfl_core.baselines`, on the same
training trials: all of them, or the first 10, 20, 30, 60, 120 of each subject, or those of a subject who comes when the
others are done.

A federated method takes a fixed number of *epochs*, so that with few trials it takes few *steps*: with 10 trials in one
batch, some 60. Variants of 100 instead of 10 local epochs show how much of a gap is due to that and not to the data.

A number of trials counts *labelled* ones: see `hetfl_core.datasets.fewer` for what else of a client is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import pandas as pd
import torch

from hetfl_book.datasets import flic_bci
from hetfl_book.papers import flic
from hetfl_book.papers.experiment import Experiment
from hetfl_core import baselines
from hetfl_core.baselines import LDA, LR, MDM, SVM, Baseline, Chosen, Pooled
from hetfl_core.datasets import eeg
from hetfl_core.datasets.fewer import fewer, fewer_trials
from hetfl_core.engine.newcomers import adapt
from hetfl_core.engine.run import Run
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Client, Federation
from hetfl_core.learners import simulate
from hetfl_core.methods import Method

TRIALS = (10, 20, 30, 60, 120, None)
"""Training trials of a client, points of a learning curve; None is all."""

NEW_TRIALS = (10, 20, 40, 80, None)
"""Training trials of a newcomer."""

FOLDS = 10
"""Seed s leaves out the s-th tenth of the subjects, so that as many seeds leave out everyone once."""

ALONE = ("LDA", "LR", "SVM", "MDM")
"""What a subject can train alone without any choice."""

FEDERATED = ("FedHeNN", "FedRep", "HetFedRep", "FLIC-Class", "FLIC-HL")
"""What a federation offers; FedRep only where there is one feature space."""

POOLED = ("Pooled LDA", "Pooled LR")
"""What a federation stands in for: all trials in one place."""

LONGER = 100
"""Local epochs of the variants that make up for small numbers of steps."""


def classical(chosen: bool = True) -> dict[str, Baseline]:
    """Each subject alone, and all in one place; `chosen`: with the choice among the former, which takes long."""
    found: tuple[Baseline, ...] = (LDA(), LR(), SVM(), MDM(), *([Chosen()] if chosen else []))
    return {baseline.name: baseline for baseline in (*found, Pooled(LDA()), Pooled(LR()))}


def longer(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The simplest, the best-known and, where it is there, that which few steps hurt most, with more local epochs."""
    known = [name for name in ("Local", "FLIC-Class", "FedRep") if name in methods]
    return {f"{name}, {LONGER} epochs": replace(methods[name], local_epochs=LONGER) for name in known}


def methods(one_space: bool) -> dict[str, Any]:
    """All that is compared; where there is one feature space of few features, with what only works or is fast there."""
    return flic.methods(fedrep=one_space) | classical(chosen=one_space)


# --- learning curves ------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Subjects on which the experiments run."""

    data: Callable[[], Federation]
    dataset: str
    words: str
    one_space: bool
    files_present: Callable[[], bool] | None = None


def of_subjects(b: int = 54) -> Federation:
    """The simulated twin of FLIC's federation of b subjects with their own electrodes; the same for all seeds."""
    return eeg.federation(kind="specific", b=b, source="simulated", seed=0)


def can_simulate() -> bool:
    """Whether the packages of the extra ``eeg`` are installed."""
    return all(find_spec(package) is not None for package in ("mne", "moabb", "pyriemann"))


SOURCES = {
    "common40": Source(flic_bci.common40, "flic_bci.common40", "40 real subjects, common electrodes", True),
    "simulated54": Source(of_subjects, "eeg.simulated", "54 simulated subjects, all electrodes", False, can_simulate),
}


def curve(source: str) -> dict[int | str, str]:
    """The experiment of each number of trials, for `hetfl_book.ledger.comparison.curve`."""
    return {n or "all": _point(source, n) for n in TRIALS}


def _point(source: str, n: int | None) -> str:
    return "eeg/simulated-54" if (source, n) == ("simulated54", None) else f"eeg/curve-{source}-n{n or 'all'}"


def _curves() -> dict[str, Experiment]:
    found = {}
    for order, (name, source) in enumerate(SOURCES.items()):
        known = methods(source.one_space)
        for n in TRIALS:
            words = "all training trials" if n is None else f"at most {n} training trials each"
            more = longer(known) if source.one_space and n in (10, 30) else {}
            found[_point(name, n)] = Experiment(
                f"Federated or alone? {source.words}, {words}",
                _trials(source, n),
                known | more,
                evaluate_every=50,
                dataset=source.dataset,
                files_present=source.files_present,
                priority=5 + 205 * order + (n or 0) // 10,
                seeds=5,
            )
    return found


def _trials(source: Source, n: int | None) -> Callable[[int], Federation]:
    return lambda seed: fewer_trials(source.data(), n, seed)


# --- new subjects ---------------------------------------------------------------------------------------------------


def left_out(federation: Federation, seed: int, folds: int = FOLDS) -> list[str]:
    """Names of the seed's share of the clients: every tenth in the order of names.

    Neighbours in that order, which are of one data set, are so spread over the seeds; a data set of fewer clients than
    there are folds is missing from some of them.
    """
    return sorted(client.name for client in federation)[seed % folds :: folds]


def with_latecomers(
    federation: Federation,
    method: Any,
    *,
    seed: int,
    trials: Sequence[int | None] = NEW_TRIALS,
    folds: int = FOLDS,
    **options: Any,
) -> Run:
    """Train without a tenth of the clients, who then come with few trials each.

    A federated method trains on the others once; a newcomer receives the shared parts and learns its own from n
    trials (`hetfl_core.adapt`), in as many passes as a participant has on average. Alone, a newcomer fits its n trials.
    `Pooled` fits them together with all trials of the others, and also gives an answer for n = 0.

    *n counts labelled trials.* Alone and federated methods take the vectors as they come, at the reference point of all
    the newcomer's training trials, in ``flic_bci.common40`` of its test trials too; on those 40, classifiers alone move
    by at most 0.7 points where it is that of n trials, and MDM not at all. `Pooled` moves its vectors to the mean of
    the n trials; for n = 0 they stay as they come, so that their reference point is that of unlabelled trials.

    Parameters
    ----------
    federation, method, options
        As for `hetfl_core.simulate`.
    seed : int
        Also says who is left out (`left_out`), so that an interval over seeds is one over tenths of the subjects.
    trials : sequence of int or None
        Numbers of trials n; None is all.
    folds : int

    Returns
    -------
    Run
        Of the newcomers. ``per_client`` has a row a newcomer and n, column ``n`` (``"all"`` for None); ``final`` has
        ``accuracy_n10`` and so on, and the other metrics at the last n.
    """
    new = left_out(federation, seed, folds)
    members = federation.subset([client.name for client in federation if client.name not in new])
    learn, trained = _learner(members, [federation[name] for name in new], method, seed, options)
    counts: list[int | None] = [0, *trials] if isinstance(method, Pooled) else list(trials)
    found = _gather({"all" if n is None else n: learn(n) for n in counts}, {"folds": folds})
    if trained is not None:
        found.final["seconds"] += trained.final["seconds"]
        found.settings["participation_before"] = trained.settings["participation"]
    return found


def _learner(
    members: Federation, new: list[Client], method: Any, seed: int, options: dict[str, Any]
) -> tuple[Callable[[int | None], Run], Run | None]:
    """What gives the newcomers' run for a number of trials; and the run of the others, where it needs one."""

    def some(n: int | None) -> list[Client]:
        return [client if not n else fewer(client, n, seed) for client in new]

    if isinstance(method, Pooled):
        return (lambda n: join(members, some(n), method, seed=seed, untrained=n == 0)), None
    if isinstance(method, Baseline):
        return (lambda n: simulate(newcomers(members, some(n)), method, seed=seed)), None
    run = simulate(members, method, seed=seed, **options)
    passes = round(options["participation"] * options["rounds"]) + 1
    same = {key: options[key] for key in ("device", "engine", "progress", "workers") if key in options}
    return (lambda n: adapt(run, some(n), rounds=passes, **same)), run


def newcomers(members: Federation, new: Sequence[Client]) -> Federation:
    """A federation of clients that come when the members are done; named as `hetfl_core.adapt` names it."""
    return Federation(new, members.n_classes, f"{members.name}, new clients", members.info, members.task)


def join(
    members: Federation, new: Sequence[Client], baseline: Pooled, *, seed: int = 0, untrained: bool = False
) -> Run:
    """Run of a pooled baseline for new clients, each of whose trials are put to those of the members.

    Newcomers do not see each other's trials, just as `hetfl_core.adapt` gives each the members' shared parts alone: a
    model is fitted for each. Its reference point is the mean of the trials it has here (`recentring`); *the number of
    its trials counts labelled ones*. Methods alone and federated ones take the vectors as they come, at the reference
    point of all the newcomer's training trials, in ``flic_bci.common40`` of its test trials too: see
    `hetfl_core.datasets.fewer`.

    Parameters
    ----------
    members : Federation
    new : sequence of Client
    baseline : Pooled
    seed : int
    untrained : bool
        Leave the new clients' own trials out, so that the model has no label of theirs, and knows what their classes
        are. Their vectors stay as they come, for without a trial there is no mean: the reference point is that of their
        *unlabelled* trials, those of the training set and in ``flic_bci.common40`` of the test set too.
        ``train_accuracy`` is then that of trials the model has not seen.

    Returns
    -------
    Run
        Of the new clients. The members concerned send their trials once, each newcomer receives a model.

    Raises
    ------
    ValueError
        Naming the new client: for what `simulate` refuses, and where it has no trials of its own here and no
        member's vectors mean the same (see `hetfl_core.baselines.Pooled`).
    """
    begin = time.perf_counter()
    everyone = Federation([*members, *new], members.n_classes, members.name, members.info).to(torch.float32)
    names, old = ([client.name for client in some] for some in (new, members))
    shares = [_share_of(everyone, old, name, untrained) for name in names]
    fit = baselines.pool(baseline, shares, names if untrained else ())
    found = baselines.run_of(newcomers(members, everyone.subset(names).clients), baseline, fit, seed, begin)
    if untrained:
        found.per_client["n_train"] = 0
    return found


def _share_of(
    everyone: Federation, old: Sequence[str], name: str, untrained: bool
) -> tuple[list[Client], list[Client]]:
    """Whose trials a newcomer's model is made of, its own among them unless it has none; and the newcomer."""
    (group,) = (g for g in baselines.poolable(everyone.subset([*old, name])) if name in {client.name for client in g})
    given = [client for client in group if not (untrained and client.name == name)]
    if not given:
        raise WrongValue(
            f"client {name!r}: expected another client whose vectors mean the same, with the same features, electrodes "
            f"and classes {everyone[name].y_train.unique().tolist()}, found none"
        )
    return given, [everyone[name]]


def _gather(parts: Mapping[int | str, Run], settings: dict[str, Any]) -> Run:
    """One run of several that differ in the newcomers' trials: the last one's, with the tables of all."""
    last = list(parts.values())[-1]
    tables = {
        name: pd.concat([getattr(run, name).assign(n=n) for n, run in parts.items()], ignore_index=True)
        for name in ("history", "per_client")
    }
    of_n = {f"accuracy_n{n}": run.final.get("accuracy", math.nan) for n, run in parts.items()}
    seconds = sum(run.final["seconds"] for run in parts.values())
    final = last.final | of_n | {"seconds": seconds}
    return replace(last, final=final, settings=last.settings | settings, **tables)


def _newcomers() -> dict[str, Experiment]:
    found = {}
    for order, (name, source) in enumerate(SOURCES.items()):
        found[f"eeg/newcomers-{name}"] = Experiment(
            f"New subjects with few trials: {source.words}",
            _trials(source, None),
            methods(source.one_space),
            evaluate_every=50,
            dataset=source.dataset,
            files_present=source.files_present,
            perform=with_latecomers,
            priority=20 + 205 * order,
            seeds=FOLDS,
        )
    return found


EXPERIMENTS: dict[str, Experiment] = {**_curves(), **_newcomers()}
