"""The report as one HTML file: template `page.html`, filled with numbers. It names no file but by its last part."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from hetfl_core._version import __version__
from hetfl_core.federation import Federation
from hetfl_core.preparation import Preparation
from hetfl_core.reporting.judging import FEW, LEVEL, LOWER, NONE, Gain, Judgement
from hetfl_core.reporting.trials import MEASURES, Trials
from hetfl_core.reporting.ways import TRAINING, WAYS, Way
from hetfl_core.views import columns_of_each

TEMPLATE = Path(__file__).with_name("page.html")

MOST_COLUMNS = 60
"""Columns that are shown one by one."""

HURRIED, ENOUGH = 5, 15
"""Passes over a site's training rows below which a network counts as hurried, and those that are advised then."""


def signed(value: float, digits: int = 1) -> str:
    """A difference as it is printed: ``+1.2``, ``−0.3``, ``0.0``."""
    if not math.isfinite(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"


def level(value: float, digits: int = 1) -> str:
    """A figure as it is printed."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def size(n: int) -> str:
    """Bytes as one reads them.

    Parameters
    ----------
    n : int

    Returns
    -------
    str
    """
    if n < 1000:
        return f"{n} B"
    return f"{n / 1000:.0f} kB" if n < 1e6 else f"{n / 1e6:.1f} MB"


def columns_held(federation: Federation) -> list[dict[str, Any]]:
    """Who has which columns: by column, those that most sites have first, of each site the share of its rows.

    Parameters
    ----------
    federation : Federation
        Of tables.

    Returns
    -------
    list of dict
        ``name``, and ``cells``: the share in per cent, and whether the site has the column.
    """
    held, present = columns_of_each(federation), federation.info["present"]
    names = dict.fromkeys(c for of in (held, present) for own in of.values() for c in own)
    rows = []
    for name in names:
        cells = [(round(100 * present[who].get(name, 0.0)), name in held[who]) for who in held]
        rows.append({"name": name, "cells": cells, "sites": sum(there for _, there in cells)})
    return sorted(rows, key=lambda row: (-row["sites"], -np.mean([share for share, _ in row["cells"]])))


def reading(options: Mapping[str, Any], classes: Sequence[Any], view: str) -> str:
    """The file ``federation/data.py`` of a deployment whose sites read their tables as they are read here.

    Parameters
    ----------
    options : dict
        As for `Federation.from_csv`.
    classes : sequence
        In their order.
    view : str

    Returns
    -------
    str
        Source code.
    """
    usual, prepare = Preparation(), options["prepare"]
    own = {f.name: getattr(prepare, f.name) for f in fields(prepare)}
    told = ", ".join(f"{k}={v!r}" for k, v in own.items() if v not in (getattr(usual, k), [], ()))
    defaults: dict[str, Any] = {"ignore": [], "group": None, "sep": ",", "decimal": ".", "encoding": "UTF-8"}
    given = {"label": options["target"], "classes": list(classes)}
    options = {**options, "ignore": [*options.get("ignore", ()), *([options["time"]] if options.get("time") else [])]}
    given |= {k: options[k] for k, v in defaults.items() if options.get(k, v) != v}
    lines = [f"{k}={v!r}," for k, v in (given | {"view": view}).items()]
    lines = ['config["data"],', 'config["name"],', *lines, f"prepare=Preparation({told}),", 'agreed=config["agreed"],']
    head = "from hetfl_core import Preparation\nfrom hetfl_core.deployment import client_from_file\n\n\n"
    inside = "\n".join(f"        {line}" for line in lines)
    return f"{head}def load(config):\n    return client_from_file(\n{inside}\n    )\n"


def hurried(trials: Trials) -> tuple[str, int, int] | None:
    """Whether the networks had too few rounds for the largest site: they take equally many steps, however many rows.

    Parameters
    ----------
    trials : Trials

    Returns
    -------
    tuple of (str, int, int) or None
        The site with most training rows, how often a network saw each of them, rounded, and the rounds that make it
        `ENOUGH` times. None where it saw them `HURRIED` times or more, and where no network of `WAYS` is compared.
    """
    if not {way.key for way in trials.ways} & ({*WAYS} - {"logistic", "boosting"}):
        return None
    site = max(trials.first, key=lambda client: client.n_train)
    each = TRAINING["local_steps"] * TRAINING["batch_size"]
    passes = trials.settings["rounds"] * each / site.n_train
    return (site.name, max(1, round(passes)), math.ceil(ENOUGH * site.n_train / each)) if passes < HURRIED else None


def render(
    trials: Trials, found: Judgement, options: Mapping[str, Any], files: Sequence[str], arguments: Sequence[str]
) -> str:
    """The page.

    Parameters
    ----------
    trials : Trials
    found : Judgement
    options : dict
        As the tables were read (`Tables`).
    files : sequence of str
        Names of the files, for the commands.
    arguments : sequence of str
        Options that say how the tables are read, for the commands.

    Returns
    -------
    str
        HTML that needs nothing else.
    """
    import jinja2

    env = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    measure = trials.settings["metric"]
    digits = 3 if measure in LOWER else 1
    env.filters |= {"signed": lambda v: signed(v, digits), "level": lambda v: level(v, digits), "size": size}
    env.filters |= {"q": shlex.quote, "percent": level}
    names = [client.name for client in trials.first]
    classes = [str(label) for label in trials.first.info.get("classes", range(trials.first.n_classes))]
    counts = {
        c.name: np.bincount(np.concatenate([c.y_train.numpy(), c.y_test.numpy()]), minlength=len(classes)).tolist()
        for c in trials.first
    }
    others = [way for way in trials.ways if not way.alone]
    table = trials.figures.groupby(["way", "client"])[["auc", "balanced_accuracy", "accuracy"]].mean()
    more = {way.key: (100 * table.loc[way.key].loc[found.counted or names].mean()).to_dict() for way in trials.ways}
    columns = columns_held(trials.first)
    recommended = found.best.key if found.best and found.verdict in ("together", "other") else trials.ways[0].key
    shared = [way for way in others if math.isfinite(found.overall[way.key].mean)]
    deployed = max(shared, key=lambda way: found.overall[way.key].mean, default=None)
    deployed = found.best if found.verdict == "together" else deployed
    return env.from_string(TEMPLATE.read_text("utf8")).render(
        j=found,
        trials=trials,
        base=trials.ways[0],
        others=others,
        alone=[way for way in trials.ways if way.alone],
        names=names,
        classes=classes,
        counts=counts,
        sizes={c.name: (c.n_train, c.n_test) for c in trials.first},
        columns=columns[:MOST_COLUMNS],
        hidden=len(columns) - MOST_COLUMNS,
        common=sum(row["sites"] == len(names) for row in columns),
        n_columns=sum(row["sites"] > 0 for row in columns),
        scale=_scale(found, found.counted or names),
        more=more,
        measures=MEASURES,
        measure=MEASURES[measure],
        several=measure == "auc" and len(classes) > 2,
        room=_room(found, measure),
        unit="" if measure in LOWER else " points",
        lower=measure in LOWER,
        target=options["target"],
        data_file=reading(options, trials.first.info["classes"], deployed.view) if deployed else "",
        methods_file=deployed.source(trials.first) if deployed else "",
        deployed=deployed,
        files=files,
        arguments=arguments,
        recommended=recommended,
        apart=next(way.apart for way in trials.ways if way.key == recommended),
        few=FEW,
        hurried=hurried(trials),
        chance=round(100 * LEVEL),
        finite=math.isfinite,
        version=__version__,
    )


def _room(found: Judgement, measure: str) -> float:
    """The largest gain that the interval does not exclude, and that is possible at all: nothing beats perfect."""
    perfect = found.level if measure in LOWER else 100 - found.level
    return min(perfect, found.gain.high) if math.isfinite(found.gain.high) else 0.0


def _scale(found: Judgement, names: list[str]) -> float:
    """Half the width of the axis on which intervals are drawn: what holds those of the sites that count."""
    gains = [found.gain, *found.overall.values(), *(each[name] for each in found.sites.values() for name in names)]
    ends = [abs(end) for gain in gains for end in (gain.mean, gain.low, gain.high) if math.isfinite(end)]
    return max([*ends, 1e-9])


def lines(trials: Trials, found: Judgement) -> list[str]:
    """What the command prints: a line for each way, and what is recommended.

    Parameters
    ----------
    trials : Trials
    found : Judgement

    Returns
    -------
    list of str
    """
    measure = trials.settings["metric"]
    digits, name = 3 if measure in LOWER else 1, MEASURES[measure]
    width = max(len(way.label) for way in trials.ways)
    told = [f"{'':<{width}}  {name:>9}  {'gain':>6}  {'low':>6}  {'high':>6}  {'p':>5}"]
    told[0] += "" if found.many else "  worst site"
    for way in trials.ways:
        start = f"{way.label:<{width}}  {level(found.means[way.key], digits):>9}"
        if not way.alone:
            gain, (who, least) = found.overall[way.key], found.worst[way.key]
            start += "".join(f"  {signed(each, digits):>6}" for each in gain[:3])
            start += f"  {probability(found.p_holm[way.key]):>5}"
            start += "" if found.many else f"  {who} {signed(least, digits)}"
        told.append(start.replace("−", "-"))
    told += ["", "A gain is over the best way to stay alone, which training rows choose in each split:"]
    told += [", ".join(_splits(found, way) for way in trials.ways if way.alone) + "."]
    if found.gain is not NONE:
        of = ", ".join(_splits(found, way) for way in trials.ways if way.key in found.chosen and not way.alone)
        told += [f"The best way to learn together, chosen likewise ({of}), gains {_in_words(found.gain, digits)}."]
    if soon := hurried(trials):
        told += ["", f"The networks saw each row of {soon[0]} about {soon[1]} times only: try --rounds {soon[2]}."]
    if found.many:
        told += [
            "",
            f"No site has {FEW} test rows of each class: this is about the average of {len(found.counted)} sites.",
        ]
    return [*told, "", advice(found)]


def probability(p: float) -> str:
    """A p-value as it is printed: none is 0."""
    return "<0.01" if p < 0.005 else level(p, 2)


def _splits(found: Judgement, way: Way) -> str:
    """In how many splits a way was chosen."""
    return f"{way.short} in {found.chosen.get(way.key, 0)}"


def _in_words(gain: Gain, digits: int) -> str:
    """A gain with its interval and p-value, in the signs of a terminal."""
    low, high = signed(gain.low, digits), signed(gain.high, digits)
    around = f" ({low} to {high}), p {probability(gain.p)}" if math.isfinite(gain.low) else ""
    return f"{signed(gain.mean, digits)}{around}".replace("−", "-")


def advice(found: Judgement) -> str:
    """The recommendation in a sentence, as the command prints it."""
    label = found.best.short if found.best else ""
    return {
        "together": f"Learn together, by {label}: on average over the sites it is shown to beat the best way alone.",
        "other": f"Stay alone, and use {label}: it is shown to beat logistic regression, and learning together is not "
        "shown to beat the best way alone.",
        "alone": "Stay alone, and use logistic regression: nothing else is shown to be better.",
        "small": "Stay alone for now: no site has ten test rows of each of its classes, so nothing can be shown.",
        "once": "Stay alone for now: every split has the same test rows, so nothing can be shown.",
    }[found.verdict]
