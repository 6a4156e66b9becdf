"""Several methods on one federation, over several seeds: means, and paired differences with their intervals."""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote
from warnings import catch_warnings, warn_explicit

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from hetfl_core import checks, keywords, splits
from hetfl_core.clients import Client, Kind, altered
from hetfl_core.engine.evaluation import METRICS
from hetfl_core.engine.measures import MEASURES, Function, Score, check_measure, direction, is_own, named
from hetfl_core.engine.options import RunOptions, choose_device
from hetfl_core.engine.run import Run, ends, figures, usual
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation, map_blocks
from hetfl_core.learners import Learner, as_learner
from hetfl_core.parallel import in_order
from hetfl_core.records import to_percent
from hetfl_core.rng import numpy_stream
from hetfl_core.statistics import MIN_SEEDS, Paired, as_table, corrected, observed
from hetfl_core.views import VIEWS, method_and_view, view_of

ROUNDS = 50

BEST_ALONE, BEST_TOGETHER = "best alone", "best together"
"""Rows of a comparison that are chosen, seed by seed, among its methods."""

CUT = 0.3
"""Share of the training rows that are cut off for this choice."""

K = TypeVar("K")


@keywords.hinting(*RunOptions.names("metric"))
def compare(
    federation: Federation | Callable[[int], Federation],
    methods: Mapping[str, Any] | Sequence[Any],
    *,
    seeds: int | Sequence[int] = 5,
    rounds: int = ROUNDS,
    base: str | None = None,
    metric: str | Function | Score | Sequence[str | Function | Score] | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
    **options: Any,
) -> pd.DataFrame:
    """Run methods on the same data with the same seeds, and compare each with one of them.

    Parameters
    ----------
    federation : Federation, or callable
        The data, or what makes them of a seed. With one federation for all seeds, an interval is about the randomness
        of training on these data, and says nothing of other data.
    methods : dict of str to Method, or to (Method, view), or sequence of such
        At least two, by the names that the table is to have; in a sequence each has its own name. Baselines
        (`hetfl_core.baselines`) may be among them, and
        estimators of scikit-learn, of which each client fits one to its own rows (`hetfl_core.estimators.PerSite`;
        `InOnePlace` fits one to the rows of all). A view says how a method is to see the data: ``"own"`` as they are,
        ``"common"`` (`Federation.of_common_columns`, or `of_common_blocks` of blocks without names), ``"zeros"``
        (`filled`), ``"blocks"`` (`in_blocks`), a dict of blocks, or a function of the federation. All have the same
        rows for training and for testing.
    seeds : int or sequence of int
        Number of seeds, or the seeds themselves, each once; at least three, so that there is a spread to judge by.
        Where the data of all seeds are splits of the same rows, as `Federation.from_frame` draws them, intervals and
        p-values allow for what the splits have in common (Nadeau and Bengio; see `hetfl_core.statistics.interval`).
    rounds : int
        Communication rounds of every run.
    base : str, optional
        The method that the others are compared with; by default the last one. ``"best alone"`` asks whether learning
        together pays: the base is the best way to stay alone, which is chosen seed by seed among those of `methods` in
        which nothing leaves a client (`Local`, estimators, `hetfl_core.baselines.LDA` and `MDM`), by the metric on rows
        that are cut from the training rows (`held_out`). A row ``"best together"`` is the best federated method, chosen
        likewise: what beats a single weak way to stay alone may still lose to another. Such a table takes about twice
        the time.
    metric : str, callable, Score or sequence of such, optional
        An entry of `Run.final`; by default the accuracy, or the mean squared error of a regression. What a run has to
        be asked for, it is asked for: ``"auc"``, and with it ``"auc_sd"``, the spread over clients, and
        ``"auc_worst"``, the worst client's; or a function of your own, ``f(y, p)``, bare or in `hetfl_core.scorer`
        (see ``metric`` of `simulate`).
    n_jobs : int, optional
        Processes in which runs are made, as in scikit-learn: 1 is this one, -1 as many as there are cores. By default
        all cores where the rest would take long, and this process for a GPU or with ``on_round``. The table is the
        same.
    progress : bool
        Show a bar, a step per run.
    **options
        As for `hetfl_core.simulate`, but ``metric``: ``participation``, ``device`` …; what has no meaning for a
        baseline or an estimator is checked for it all the same. With ``checkpoint=folder`` each run has a folder of its
        own in that one, ``<method>-seed<seed>``. Models are evaluated after the last round alone, unless
        ``evaluate_every``, ``checkpoint`` or ``on_round`` is given: nothing else of a history is in the table.

    Returns
    -------
    DataFrame
        Indexed by ``method``, or, for a sequence of metrics, by ``metric`` and ``method``: ``mean`` and ``sd`` of the
        metric over seeds (accuracies in per cent); ``difference`` from `base`, seed by seed, with ``low`` and ``high``,
        its 95 % t-interval; ``p``, two-sided, and ``p_holm``, corrected for as many tries as the table has (methods but
        `base`, times metrics); ``seeds``, the number that counts: every one, but that runs which draw no random number
        (most baselines and estimators) count once for the same data; ``diverged``, how many runs diverged. Where a run
        has no figure, as one that diverged, there is no mean and no difference: NaN, for the mean of the others would
        flatter. The row of `base` has no difference. The row ``"best together"``, where there is one, answers one
        question, so that its ``p_holm`` is its ``p``, and ``attrs["chosen"]`` has, by row (of several metrics by metric
        and row), what was chosen for each seed. ``attrs["together"]`` names, for each method whose runs were
        trained together, the seeds that were: see the notes. ``attrs["ratio"]`` is 0, or, where the data are splits of
        the same rows, how many test rows they have for each training row.

    Raises
    ------
    ValueError
        For fewer than two methods or three seeds, a seed that comes twice, and a `base` or `metric` that is not there.
        For a method that cannot work on its view; the message names views that it can work on. For options that
        `hetfl_core.simulate` would refuse.
    TypeError
        For options that it does not know.

    Notes
    -----
    Runs of one method on small networks and data are trained together, by `simulate_seeds`, which takes a half to a
    quarter of the time: how many, up to ten, `hetfl_core.engine.together` decides by the method and the data of the
    first seed, never by the machine. Each then is the run that `simulate` makes with its seed, to rounding (see there).
    With ``on_round``, ``checkpoint`` or ``validation`` every run is trained alone.
    """
    RunOptions(rounds=rounds, progress=progress, **options)
    numbers = checks.seeds(seeds, least=MIN_SEEDS)
    named_methods = _by_name(methods)
    base = _check(named_methods, base)
    learners, views = _learners(named_methods)
    rivals = _rivals(learners) if base == BEST_ALONE and base not in learners else {}
    checks.jobs(n_jobs)
    several = isinstance(metric, list | tuple)
    wanted = list(metric) if isinstance(metric, list | tuple) else [metric]
    if n_jobs not in (None, 1) and "on_round" in options:
        raise WrongValue(f"on_round is called in this process alone: expected n_jobs=1 with it, got {n_jobs}")
    if n_jobs is None and ("on_round" in options or choose_device(options.get("device", "auto")).type != "cpu"):
        n_jobs = 1
    options |= {"rounds": rounds, "progress": False, **({} if n_jobs == 1 else {"workers": options.get("workers", 1)})}
    if options.get("on_round") is None and options.get("checkpoint") is None:
        options.setdefault("evaluate_every", rounds)
    call = _Comparison(federation, learners, views, wanted, options, rivals)
    directions = _directions(call.data(numbers[0]), rivals)
    found: dict[str, dict[str, dict[int, _Result]]] = {}
    inner: dict[str, dict[str, dict[int, float]]] = {}
    grouped: dict[str, list[list[int]]] = {}
    data: dict[int, str] = {}
    rows: dict[str, float] = {}
    for (name, cut), seeds_of, made in call.runs(numbers, call.most(numbers[0]), n_jobs, progress, "compare"):
        for seed, one in made.items():
            if cut:
                for key, result in one.figures.items():
                    inner.setdefault(key, {}).setdefault(name, {})[seed] = result.value
                continue
            rows[one.rows] = one.ratio
            if data.setdefault(seed, one.mark) != one.mark:
                raise WrongValue(
                    f"federation({seed}) made other data in another process: its data must depend on the seed "
                    "alone, for methods to be compared on the same; draw with np.random.default_rng(seed), or use "
                    "n_jobs=1"
                )
            for key, result in one.figures.items():
                found.setdefault(key, {}).setdefault(name, {})[seed] = result
        if not cut and any(one.together for one in made.values()):
            grouped.setdefault(name, []).append(list(seeds_of))
    call.forget()
    _SAID.clear()
    chosen: dict[str, dict[str, dict[int, str]]] = {}
    for key, mine in found.items():
        for row, names in rivals.items():
            picked = {seed: _best(inner.get(key, {}), names, seed, directions[key]) for seed in numbers}
            chosen.setdefault(key, {})[row] = picked
            mine[row] = {seed: mine[name][seed] for seed, name in picked.items()}
    ratio = next(iter(rows.values())) if len(rows) == 1 and "" not in rows and len({*data.values()}) > 1 else 0.0
    table = pd.concat({metric: _table(mine, base, ratio) for metric, mine in found.items()}, names=["metric"])
    rows_of = table.index.get_level_values("method")
    others = (rows_of != base) & ~((rows_of == BEST_TOGETHER) & (BEST_TOGETHER in rivals))
    table.loc[others, "p_holm"] = corrected(table[others])["p_holm"]
    table["p_holm"] = table["p_holm"].fillna(table["p"].where(~others))
    table = table if several else table.droplevel("metric")
    table.attrs |= {"together": grouped, "ratio": ratio}
    if rivals:
        table.attrs["chosen"] = chosen if several else next(iter(chosen.values()))
    return table


def _rivals(methods: Mapping[str, Learner]) -> dict[str, list[str]]:
    """By the row that is chosen among them, the ways to stay alone and the federated methods."""
    alone, together = ([name for name, one in methods.items() if one.way == way] for way in ("alone", "together"))
    if not alone:
        raise WrongValue(
            f"base={BEST_ALONE!r} takes at least one method in which nothing leaves a client, such as Local() or "
            f"LogisticRegression(), got {list(methods)}"
        )
    if BEST_TOGETHER in methods:
        raise WrongValue(
            f"methods: with base={BEST_ALONE!r} a row {BEST_TOGETHER!r} is made, so none may have the name"
        )
    return {BEST_ALONE: alone} | ({BEST_TOGETHER: together} if together else {})


def _directions(data: _Data, rivals: Mapping[str, Any]) -> dict[str, float]:
    """1 where more of a metric is better, -1 where less is: what is chosen by must have a direction."""
    found: dict[str, float] = {}
    for name, metric in zip(data.names, data.metrics, strict=True) if rivals else ():
        if not is_own(metric) and metric not in MEASURES[data.task]:
            known = list(MEASURES[data.task])
            raise WrongValue(f"metric: with base={BEST_ALONE!r} it must be one to choose by, of {known}, got {name!r}")
        (score,) = check_measure([metric], data.task, "metric")[1].values()
        found[name] = 1.0 if direction(name, score, "metric") else -1.0
    return found


def _best(inner: Mapping[str, Mapping[int, float]], names: Sequence[str], seed: int, sign: float) -> str:
    """Of some methods the one with the best figure on the rows that were cut off; of equally good ones the first."""
    known = {name: sign * inner[name][seed] for name in names if len(names) > 1}
    finite = {name: value for name, value in known.items() if math.isfinite(value)}
    return max(finite, key=finite.__getitem__) if finite else names[0]


def held_out(federation: Federation, share: float, seed: int) -> Federation:
    """The same clients with some of their training rows in the place of their test rows, which are gone.

    Parameters
    ----------
    federation : Federation
    share : float
        Of each client's training rows, in (0, 1). Classes are split in this proportion; one of a single row stays.
        Of groups (`Client.groups`), where these are known: all rows of one are cut off, at all clients, or none.
    seed : int
        Of the cut.

    Returns
    -------
    Federation
        Its name ends in ``", validation"``, and ``info["held_out"]`` is the share.
    """
    checks.instance("federation", federation, Federation)
    checks.fraction("share", share, "(0, 1)")
    checks.seed(seed)

    known = {client.name: client.groups for client in federation if client.groups is not None}
    whole = splits.by_groups(known, share, {who: numpy_stream(seed, who, 0, "validation rows") for who in known})

    def cut(client: Client) -> Client:
        y = client.y_train.numpy()
        groups = y if federation.task == "classification" else np.zeros(len(y), int)
        rng = numpy_stream(seed, client.name, 0, "validation rows")
        places = whole.get(client.name) or splits.in_proportion(groups, share, rng, federation.task)
        parts = [np.sort(rows) for rows in places or splits.but_one_of_each(groups, share, rng)]
        x = [map_blocks(lambda t, rows=rows: t[rows], client.x_train) for rows in parts]  # type: ignore[misc]
        y_train, y_test = (client.y_train[rows] for rows in parts)
        kept = None if client.groups is None else client.groups[parts[0]]
        return altered(client, x_train=x[0], y_train=y_train, x_test=x[1], y_test=y_test, groups=kept)

    info = {**federation.info, "held_out": share}
    clients, name = tuple(map(cut, federation)), f"{federation.name}, validation"
    return altered(federation, clients=clients, name=name, info=info, x_test=None, y_test=None)


@dataclass(frozen=True)
class Study:
    """Runs of several seeds; called with seeds and a key, in whatever process, it makes those of the key.

    What is made of a seed is kept in a process while runs with this seed are made there.
    """

    token: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True)

    def make(self, seed: int) -> Any:
        """What is made of a seed, for all keys."""
        raise NotImplementedError

    def piece(self, seeds: Sequence[int], key: Any) -> Any:
        """What comes of the runs of one key with these seeds."""
        raise NotImplementedError

    def data(self, seed: int) -> Any:
        """What `make` makes of a seed, made once for runs that come soon."""
        if (self.token, seed) not in _DATA:
            _DATA[self.token, seed] = self.make(seed)
        return _DATA[self.token, seed]

    def keep(self, seed: int, made: Any) -> None:
        """Take what was made of a seed already."""
        _DATA[self.token, seed] = made

    def forget(self, but: Sequence[int] = ()) -> None:
        """Keep nothing but what was made of some seeds."""
        for known in _DATA.keys() - {(self.token, seed) for seed in but}:
            del _DATA[known]

    def __call__(self, near: Sequence[int], seeds: Sequence[int], key: Any) -> Any:
        """A piece, while what was made of the seeds near these is kept."""
        self.forget(near)
        return self.piece(seeds, key)

    def runs(
        self, seeds: Sequence[int], most: Mapping[K, int], n_jobs: int | None, progress: bool, what: str
    ) -> Iterator[tuple[K, list[int], Any]]:
        """The pieces with their keys and seeds, with a bar of that name; `most` says how many runs one has at most."""
        pieces = groups(seeds, most)
        with tqdm(total=len(seeds) * len(most), disable=not progress, desc=what, unit="run") as bar:
            for (_, some, key), made in zip(pieces, in_order(self, pieces, n_jobs), strict=True):
                yield key, some, made
                bar.update(len(made))


_DATA: dict[tuple[str, int], Any] = {}
"""What was made of some seeds in this process."""


class _Key(NamedTuple):
    """What is run: a method, by its name, on test rows or on rows that are cut from the training rows."""

    name: str
    cut: bool = False


@dataclass(frozen=True)
class _Comparison(Study):
    """What is compared, by `_Key`; `rivals` are the methods between which something is chosen."""

    federation: Federation | Callable[[int], Federation]
    methods: Mapping[str, Learner]
    views: Mapping[str, Any]
    wanted: Sequence[Any]
    options: Mapping[str, Any]
    rivals: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def most(self, seed: int) -> dict[_Key, int]:
        """How many runs of each method are made at once, by the data of a seed."""
        seen = self.data(seed).seen
        options = RunOptions(**self.options)
        found = {_Key(name): one.at_once(seen[name], options) for name, one in self.methods.items()}
        several = [name for names in self.rivals.values() if len(names) > 1 for name in names]
        return found | {_Key(name, cut=True): found[_Key(name)] for name in several}

    def piece(self, seeds: Sequence[int], key: _Key) -> dict[int, _Made]:
        """What comes of the runs of one method with these seeds."""
        data, name = {seed: self.data(seed) for seed in seeds}, key.name
        seen = {seed: one.seen[name] for seed, one in data.items()}
        options = RunOptions(**{**self.options, "metric": data[seeds[0]].asked})
        if key.cut:
            seen = {seed: held_out(one, CUT, seed) for seed, one in seen.items()}
            options = replace(options, checkpoint=None, on_round=None)
        runs = runs_of(seen, name, self.methods[name], options)
        return {
            seed: _Made(
                {metric: _result(run, name, metric) for metric in data[seed].names},
                data[seed].mark,
                "together" in run.settings,
                data[seed].rows,
                data[seed].ratio,
            )
            for seed, run in runs.items()
        }

    def make(self, seed: int) -> _Data:
        """The metrics and what each method sees, checked for all methods."""
        data = self._federation(seed)
        checks.instance("federation", data, Federation)
        names, asked = _metrics(self.wanted, data)
        seen = _seen(data, self.views)
        for each in seen.values():
            RunOptions(**self.options).check(each)
        for name, learner in self.methods.items():
            _check_runs(seen[name], learner, data)
        mark = data.fingerprint() if callable(self.federation) else ""
        share = data.info.get("settings", {}).get("test_size", 0.0)  # fewer rows may be trained on than were drawn
        metrics = [METRICS[data.task].main if metric is None else named(metric) for metric in self.wanted]
        return _Data(names, asked, seen, mark, data.info.get("rows", ""), share / (1 - share), metrics, data.task)

    def _federation(self, seed: int) -> Federation:
        """The federation of a seed; what is said of several seeds alike is said once."""
        if not callable(self.federation):
            return self.federation
        with catch_warnings(record=True) as said:
            data = self.federation(seed)
        for each in said or ():
            if (self.token, str(each.message)) not in _SAID:
                _SAID.add((self.token, str(each.message)))
                warn_explicit(each.message, each.category, each.filename, each.lineno)
        return data


class _Data(NamedTuple):
    """Names of metrics, what is measured for them, what each method sees, the fingerprint of the data, their rows.

    `rows` is what they are a split of, `ratio` the number of test rows for each training row; `metrics` are as asked.
    """

    names: list[str]
    asked: list[Any]
    seen: dict[str, Federation]
    mark: str
    rows: str
    ratio: float
    metrics: list[Any]
    task: Kind


class _Made(NamedTuple):
    """Of one run: figures by the names of the metrics; whether it had company; of its data the rest."""

    figures: dict[str, _Result]
    mark: str
    together: bool
    rows: str
    ratio: float


_SAID: set[tuple[str, str]] = set()
"""What was said of the data in this process, by the comparison."""


def groups(seeds: Sequence[int], most: Mapping[K, int]) -> list[tuple[list[int], list[int], K]]:
    """What is done at once: seeds whose data are kept meanwhile, those of them whose runs are made, and of what.

    Everything sees some seeds before anything sees the next; `most` says of each how many of its runs are made at once.
    """
    return [
        (near, some, key)
        for near in _dealt(seeds, max(most.values()))
        for key, number in most.items()
        for some in _dealt(near, number)
    ]


def _dealt(seeds: Sequence[int], most: int) -> list[list[int]]:
    """Seeds in order, in groups of at most so many that differ by one at most."""
    parts = -(-len(seeds) // most)
    ends = [len(seeds) * i // parts for i in range(parts + 1)]
    return [list(seeds[begin:end]) for begin, end in itertools.pairwise(ends)]


def _by_name(methods: Any) -> Any:
    """A sequence of methods by their own names, which must differ; anything else as it is."""
    if not isinstance(methods, list | tuple):
        return methods
    names = [as_learner(method_and_view("methods", one)[0], "methods").name for one in methods]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise WrongValue(f"methods: several are called {twice[0]!r}; give a dict that says what each is to be called")
    return dict(zip(names, methods, strict=True))


def _check(methods: Mapping[str, Any], base: str | None) -> str:
    """The name of the base, once there are methods enough."""
    if not isinstance(methods, Mapping) or len(methods) < 2:
        raise WrongValue(f"methods must map at least two names to methods, got {checks.shown(methods)}")
    base = list(methods)[-1] if base is None else base
    if base == BEST_ALONE:
        return base
    return checks.choice("base", base, list(methods))


def _learners(methods: Mapping[str, Any]) -> tuple[dict[str, Learner], dict[str, Any]]:
    """Learners by their names, and by the same names the views that they are to have of the data."""
    pairs = {name: method_and_view(f"methods[{name!r}]", one) for name, one in methods.items()}
    learners = {name: as_learner(one, f"methods[{name!r}]") for name, (one, _) in pairs.items()}
    return learners, {name: view for name, (_, view) in pairs.items()}


def _seen(federation: Any, views: Mapping[str, Any]) -> dict[str, Federation]:
    """What each method sees of the federation; a view that several have is made once."""
    made: list[tuple[Any, Federation]] = []
    found = {}
    for name, view in views.items():
        known = [fed for other, fed in made if other is view or other == view]
        found[name] = known[0] if known else view_of(federation, view)
        made.append((view, found[name]))
    return found


def _metrics(wanted: Sequence[Any], federation: Federation) -> tuple[list[str], list[Any]]:
    """Names of the metrics, and what runs are asked to measure for them."""
    main, known = METRICS[federation.task].main, MEASURES[federation.task]
    names, asked = list[str](), list[Any]()
    for metric in wanted:
        if is_own(metric):
            names += check_measure([metric], federation.task, "metric")[1]
            asked.append(metric)
            continue
        name = main if metric is None else named(metric)
        checks.nonempty_str("metric", name)
        names.append(name)
        asked += [m for m in known if name in ends(m) and name not in usual(federation.task)]
    scores = check_measure(asked, federation.task, "metric")[1]
    for name in names:
        if name.endswith("_worst") and (score := scores.get(name.removesuffix("_worst"))):
            direction(name.removesuffix("_worst"), score, "metric")
    allowed = [*figures(federation.task), *(end for name in scores for end in ends(name))]
    for name in names:
        checks.choice("metric", name, list(dict.fromkeys(allowed)))
    return names, asked


def _check_runs(federation: Federation, learner: Learner, whole: Federation) -> None:
    """Refuse what cannot be run, or has no figure, before the others are trained."""
    if not any(len(client.y_test) for client in federation):
        raise WrongValue(f"{federation.name!r} has no test samples, so that there is nothing to compare by")
    try:
        learner.check(federation.specs())
    except ValueError as error:
        if learner.in_rounds and (found := views_for(learner, whole)):
            told = f"{str(error).removesuffix('.')}. It can work on the view {' or '.join(map(repr, found))}."
            raise WrongValue(told) from error
        raise


def views_for(method: Any, federation: Federation) -> list[str]:
    """Views on which a method can work."""
    learner, found = as_learner(method), []
    for view in VIEWS:
        with suppress(ValueError), catch_warnings(action="ignore"):
            learner.check(view_of(federation, view).specs())
            found.append(view)
    return found


class _Result(NamedTuple):
    """What a run gives to a comparison: its figure, whether it diverged, and its data if nothing else mattered."""

    value: float
    diverged: bool
    fixed: Hashable | None


def _result(run: Run, name: str, metric: str) -> _Result:
    if metric not in run.final:
        raise WrongValue(f"metric must be one that {name!r} has, of {list(run.final)}, got {metric!r}")
    fixed = run.settings.get("deterministic")
    same = run.federation.fingerprint() if fixed else getattr(run, "answered", "") or None
    return _Result(to_percent(run.final[metric], metric), bool(run.final.get("diverged")), same)


def runs_of(seen: Mapping[int, Federation], name: str, learner: Learner, options: RunOptions) -> dict[int, Run]:
    """Runs with these seeds: side by side, where they are several and their data are of one kind.

    With a checkpoint each has a folder of its own in that one.
    """
    if len(seen) > 1 and len({(fed.task, fed.n_classes) for fed in seen.values()}) == 1:
        return learner.run_seeds(seen, options)
    runs = {}
    for seed, federation in seen.items():
        folder = options.checkpoint and Path(options.checkpoint) / f"{quote(name, safe=' ,')}-seed{seed}"
        runs[seed] = learner.run(federation, seed, replace(options, checkpoint=folder))
    return runs


def _table(found: Mapping[str, Mapping[int, _Result]], base: str, ratio: float) -> pd.DataFrame:
    values = {name: [result.value for result in mine.values()] for name, mine in found.items()}
    table = pd.DataFrame({"mean": {name: np.mean(v) for name, v in values.items()}})
    table["sd"] = {name: np.std(v, ddof=1) for name, v in values.items()}
    pairs = {name: _paired(mine, found[base], ratio) for name, mine in found.items() if name != base}
    against = as_table(pairs).rename(columns={"mean": "difference"}).assign(p_holm=math.nan)
    table = table.join(against[["difference", "low", "high", "p", "p_holm"]])
    table["seeds"] = {name: len(_counted(mine, found[base])) for name, mine in found.items()}
    table["diverged"] = {name: sum(result.diverged for result in mine.values()) for name, mine in found.items()}
    return table.rename_axis("method")


def _counted(mine: Mapping[int, _Result], other: Mapping[int, _Result]) -> list[int]:
    """The seeds that are observations of a difference between two methods."""
    same = {s: (mine[s].fixed, other[s].fixed) for s in mine}
    return observed({s: None if None in pair else pair for s, pair in same.items()})


def _paired(mine: Mapping[int, _Result], other: Mapping[int, _Result], ratio: float) -> Paired:
    """The difference over the seeds; NaN where a run of one of them has no figure."""
    seeds = _counted(mine, other)
    gaps = {s: mine[s].value - other[s].value for s in seeds}
    if all(map(math.isfinite, gaps.values())):
        return Paired.of(gaps, ratio=ratio)
    return Paired(math.nan, math.nan, math.nan, tuple(seeds))
