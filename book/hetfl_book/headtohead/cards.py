"""Method cards: what each method shares, sends, costs, brought and gives away, one screen each.

Each thing is read where it is known: the equation and the reference from docstrings, what leaves a client from a round
on made hospitals, bytes, gains and settings from the records of the head to head, leaks from those of the survey.
``cards.toml`` holds the sentences, which people write. The book's build fills pages with all of it.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import pandas as pd

from hetfl_book.attacks.watching import listen
from hetfl_book.headtohead.entries import ALONE, FAMILIES, ROUNDS, Entry, entries
from hetfl_book.headtohead.federations import FEDERATIONS, SIZES
from hetfl_book.headtohead.figures import markdown, signed
from hetfl_book.headtohead.ranking import cells, choices, finals, written
from hetfl_book.headtohead.running import OWN_STEP
from hetfl_core import checks, records, simulate
from hetfl_core.datasets import heart
from hetfl_core.errors import WrongValue
from hetfl_core.federation import Federation
from hetfl_core.methods import CATALOGUE, Method

SENTENCES = Path(__file__).with_name("cards.toml")
HOSPITALS = "heart"
"""The federation whose bytes and seconds stand on the cards."""

SEES = {
    "own": "each client's own columns",
    "common": "the columns that all clients have",
    "zeros": "all columns, with zeros where a client has none",
    "blocks": "columns in blocks, one for each group of clients that have them",
}
IN_SHORT = {"own": "own columns", "common": "common columns", "zeros": "all, with zeros", "blocks": "blocks"}
VIEW_OF = {"own": "", "common": ".of_common_columns()", "zeros": ".filled()", "blocks": ".in_blocks()"}

PARTS = {
    "phi.joint": "layer over all blocks",
    "phi": "embedding φ",
    "alpha": "hidden layer α",
    "gaussian": "random layer",
    "beta": "head β",
    "own": "a model of its own",
    "anchor": "anchors",
    "mean": "class means",
    "centroid": "class means and counts",
    "h": "sums for mixing heads",
    "v": "sums for mixing heads",
    "joint": "a Gaussian of each class",
    "kernel": "likenesses of 100 common inputs",
    "fixed": "a fixed minibatch",
    "reference": "a Gaussian of each class",
}
"""Tensors in words, by how their names begin; the first that fits."""

TOLD = {"n_train": "its number of rows", "class_counts": "its number of rows of each class"}

LEAKS = {
    "presence_direct": "classes {:.2f}",
    "presence_learned": "learned {:.2f}",
    "loss": "members {:.2f}",
    "means": "by means {:.2f}",
    "link": "linked {:.2f}",
}
"""Figures of the survey (`hetfl_book.attacks.survey`) that stand on a card, as they are written there."""


@dataclass(frozen=True)
class Card:
    """What people say of a class of methods.

    Parameters
    ----------
    what, symbols, helps, fails : str
        What it does, the letters of its equation, when it helps and when it does not.
    calls : dict of str to str
        How each of its lines in the head to head is called.
    where : str
        Where the reference has the equation; empty where it has it in another form.
    """

    what: str
    symbols: str
    helps: str
    fails: str
    calls: Mapping[str, str]
    where: str = ""


CARDS: Mapping[str, Card] = {name: Card(**said) for name, said in tomllib.loads(SENTENCES.read_text("utf8")).items()}
"""By the name of the class."""


# --- what the classes know --------------------------------------------------------------------------------------------


def class_of(name: str) -> type[Method]:
    """The class of a card.

    Raises
    ------
    ValueError
        If there is no such card.
    """
    checks.choice("card", name, tuple(CARDS))
    return next(type(method) for method in CATALOGUE.values() if type(method).__name__ == name)


def lines(name: str) -> dict[str, Entry]:
    """The lines of the head to head that a card is about; of training alone, all ways to stay alone.

    Parameters
    ----------
    name : str
        Of the card.
    """
    alone = [line for line, entry in entries().items() if entry.way == "alone" and ALONE in CARDS[name].calls]
    return {line: entries()[line] for line in alone or CARDS[name].calls}


def equation(kind: type[Method]) -> str:
    """LaTeX of the first displayed equation in the docstring of a class, or else of its module."""
    pattern = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*)?)*)", re.MULTILINE)
    for text in (inspect.cleandoc(kind.__doc__ or ""), sys.modules[kind.__module__].__doc__ or ""):
        if found := pattern.search(text):
            return " ".join(found[2].split()).rstrip(".,:;")
    raise WrongValue(f"{kind.__name__}: neither its docstring nor its module's has a line that begins with .. math::")


def references(kind: type[Method]) -> list[str]:
    """The papers that the first parts of its docstring and of its module's cite, as the module lists them."""
    module = sys.modules[kind.__module__].__doc__ or ""
    head, _, listed = module.partition("References\n----------")
    cited = {*re.findall(r"\[(\d+)\]_", head + (kind.__doc__ or "").partition("Parameters\n")[0])}
    found = re.findall(r"^\.\. \[(\d+)\] (.*(?:\n +.*)*)", listed, re.MULTILINE)
    papers = [" ".join(text.split()).partition(" Published code: ")[0] for number, text in found if number in cited]
    return [text for text in papers if not text.startswith("http")]


def program(name: str) -> str:
    """Eight lines that train the first line of a card on made hospitals."""
    (line, call), *_ = CARDS[name].calls.items()
    return textwrap.dedent(f"""\
        from hetfl_core import simulate
        from hetfl_core.datasets import heart
        from hetfl_core.methods import {name}

        hospitals = heart.hospitals(made=True){VIEW_OF[entries()[line].view]}
        method = {call}
        run = simulate(hospitals, method, rounds={ROUNDS})
        print(run.per_client)
        """)


# --- what leaves a client ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """What a client of the made hospitals sends in a round, and what it keeps.

    Parameters
    ----------
    numbers : dict of str to float
        How many, by what they are in words; means over clients.
    told : list of str
        What the server is told besides.
    stays : list of str
        What is trained or kept and never sent.
    nbytes : float
        Of the message; a mean over clients.
    """

    numbers: Mapping[str, float]
    told: Sequence[str]
    stays: Sequence[str]
    nbytes: float


@cache
def _hospitals() -> Federation:
    return heart.hospitals(made=True, test_size=0.4)


def _part(name: str) -> str:
    return next(word for start, word in PARTS.items() if re.match(rf"{re.escape(start)}(?![a-z])", name))


@cache
def sent(line: str) -> Sent:
    """What leaves a client in one round of a line that learns together.

    Parameters
    ----------
    line : str
    """
    entry = entries()[line]
    data = entry.seen(_hospitals(), "tables")
    method = entry.on(data, FAMILIES[_family()])
    if "pretrain_epochs" in {f.name for f in fields(method)}:
        method = replace(method, pretrain_epochs=0)  # changes what is sent, not how much
    heard, seen = listen(method)
    run = simulate(data, heard, rounds=1, progress=False, device="cpu")
    numbers: Counter[str] = Counter()
    nbytes = 0
    for message in seen.uploads:
        for tensor, p in message.sent.items():
            numbers[_part(tensor)] += p.numel()
            nbytes += p.nbytes
    kept = {name for name in {**run.client_states[0], **run.params[0]} if name not in method.constants}
    gone = {_part(name) for name in kept} - {*numbers}
    return Sent(
        {part: n / len(data) for part, n in numbers.items()},
        [words for what, words in TOLD.items() if what in seen.told],
        [words for words in dict.fromkeys(PARTS.values()) if words in gone],
        nbytes / len(data),
    )


def _family() -> str:
    """That of the hospitals' records, or else the widest."""
    found = [r.settings["family"] for r in _finals() if r.experiment == f"headtohead/{HOSPITALS}-all"]
    return str(found[0]) if found and found[0] else "wide"


# --- what the records know --------------------------------------------------------------------------------------------


@cache
def _finals() -> tuple[records.RunRecord, ...]:
    return tuple(finals())


@cache
def _cells() -> pd.DataFrame:
    return cells(_finals())


_choices = cache(choices)


@cache
def _leaks() -> pd.DataFrame:
    found = [{"method": r.method, **r.metrics} for r in records.load(experiment="privacy/digits")]
    return pd.DataFrame(found).groupby("method").mean(numeric_only=True) if found else pd.DataFrame()


def results(name: str) -> pd.DataFrame:
    """The rows of `hetfl_book.headtohead.ranking.cells` that a card is about, with and without an own last step.

    Parameters
    ----------
    name : str
        Of the card.
    """
    known = [full for line in lines(name) for full in (line, line + OWN_STEP)]
    order: dict[str, list[str]] = {"federation": list(FEDERATIONS), "size": list(SIZES), "method": known}
    table = _cells()
    table = table[table["method"].isin(known)]
    return table.sort_values([*order], key=lambda column: column.map(order[str(column.name)].index))


def leaks(line: str) -> dict[str, float]:
    """What the survey found of a line's method, by the keys of `LEAKS`; nothing where it has not been looked at."""
    method = getattr(entries()[line].method, "name", "")
    if method not in _leaks().index:
        return {}
    found = _leaks().loc[method]
    return {key: float(found[key]) for key in LEAKS if pd.notna(found.get(key))}


# --- cells ------------------------------------------------------------------------------------------------------------


ARROWS = {"smallest": " ↓", "largest": " ↑"}
"""At an edge of the grid."""


def points(mean: float, low: float, high: float) -> str:
    """A gain with half of its interval, ``+4.4 ± 3.5``, in bold where that excludes zero; a dash if there is none.

    Parameters
    ----------
    mean, low, high : float
        In points.
    """
    if pd.isna(mean):
        return "–"
    shown = signed(mean) + (f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{(high - low) / 2:.1f}" if pd.notna(low) else "")
    return f"**{shown}**" if low > 0 or high < 0 else shown


def chosen(federation: str, size: str, line: str) -> str:
    """The settings that were chosen; ↓ and ↑ where nothing smaller or larger was tried.

    Parameters
    ----------
    federation, size, line : str
    """
    if line.endswith(OWN_STEP):
        return "the same"
    found = _at(_choices(), federation, size, line)
    if found is None or not (settings := found["chosen"]):
        return "–"
    edges = found["edges"]
    each = written(settings)
    first = sorted(each, key=lambda key: key != "lr")
    return ", ".join(f"{key.rpartition('__')[2]} {each[key]}{ARROWS.get(edges.get(key), '')}" for key in first)


def gains_table(name: str) -> str:
    """Markdown: what each line gained on each federation that has records, and the settings that were chosen.

    Parameters
    ----------
    name : str
        Of the card.
    """
    rows = results(name)
    many, shared = rows["method"].nunique() > 1, bool(rows["gain_sharing"].notna().any())
    runs = list(rows.itertuples())
    shown = {
        "federation": [f"[{r.federation}](runs-{r.federation}), {r.size}" for r in runs],
        "line": [r.method for r in runs],
        "over alone": ["–" if r.method == ALONE else points(r.gain, r.low, r.high) for r in runs],
        "by sharing": [points(r.gain_sharing, r.low_sharing, r.high_sharing) for r in runs],
        "settings chosen": [chosen(r.federation, r.size, r.method) for r in runs],
    }
    return markdown(pd.DataFrame(shown).drop(columns=["line"] * (not many) + ["by sharing"] * (not shared)))


def _at(table: pd.DataFrame, federation: str, size: str, line: str) -> pd.Series | None:
    """The row of a line on a federation at a size, if there is one."""
    if table.empty:
        return None
    found = table[(table["federation"] == federation) & (table["size"] == size) & (table["method"] == line)]
    return None if found.empty else found.iloc[0]


def _cost(line: str) -> pd.Series | None:
    """The line's row of the hospitals with all their rows."""
    return _at(_cells(), HOSPITALS, "all", line)


def kilobytes(line: str) -> tuple[float, float] | None:
    """What a hospital sends and receives in a round, from the records, in kB; nothing where there are none.

    Parameters
    ----------
    line : str
    """
    found = _cost(line)
    each = 1000 * ROUNDS * len(_hospitals())
    return None if found is None else (found["bytes_up"] / each, found["bytes_down"] / each)


def _numbers(line: str) -> str:
    each = (f"{part} ({n:,.0f})" for part, n in sent(line).numbers.items())
    return ", ".join(each) or "nothing"


def _cost_in_words(line: str) -> str:
    found = _cost(line)
    if found is None:
        return "–"
    seconds = "–" if math.isnan(found["seconds"]) else f"{found['seconds']:.2f} s"
    return seconds if line == ALONE or not found["bytes_up"] else f"{_bytes(line)} a round; {seconds} a run"


def _bytes(line: str) -> str:
    found = kilobytes(line)
    return "–" if found is None else f"{found[0]:.1f} kB up, {found[1]:.1f} kB down"


def _sums(line: str) -> str:
    why = entries()[line].method.needs_uploads
    return "enough" if why is None else f"not enough: {why}"


def _found_out(line: str) -> str:
    return ", ".join(LEAKS[key].format(value) for key, value in leaks(line).items()) or "not surveyed yet"


TOGETHER: Mapping[str, Callable[[str], str]] = {
    "sees": lambda line: SEES[entries()[line].view],
    "sends": _numbers,
    "tells": lambda line: ", ".join(sent(line).told) or "nothing besides",
    "keeps": lambda line: ", ".join(sent(line).stays) or "nothing that it does not send",
    "costs": _cost_in_words,
    "secure sums": _sums,
    "[leaks](deployment.ipynb)": _found_out,
}
"""What a card says of each line that learns together."""

STAYING: Mapping[str, Callable[[str], str]] = {"costs": _cost_in_words}


def facts_list(name: str) -> str:
    """Markdown: a list of definitions with what there is to say of each line, once where all lines have the same."""
    found, parts = lines(name), []
    for what, told in (STAYING if ALONE in found else TOGETHER).items():
        each = {line: told(line) for line in found}
        same = len({*each.values()}) == 1
        said = [next(iter(each.values()))] if same else [f"*{line}*: {text}" for line, text in each.items()]
        said = [text for text in said if not text.endswith(": –")]
        parts.append("\n".join([what, *(f": {text}" for text in said)]))
    others = list(CARDS[name].calls.items())[1:]
    if others:
        called = [f": *{line}*: `{call}` on `hospitals{VIEW_OF[found[line].view]}`" for line, call in others]
        parts.append("\n".join(["called", *called]))
    if papers := references(class_of(name)):
        parts.append("\n".join(["reference", *(f": {text}" for text in papers)]))
    return "\n\n".join(parts)


def card(name: str) -> str:
    """A card as MyST: what people say, what it gained, what it does, and how it is called.

    Parameters
    ----------
    name : str
        Of the class: a key of `CARDS`.

    Raises
    ------
    ValueError
        If there is no such card.
    """
    kind, said = class_of(name), CARDS[name]
    where = f" This is {said.where} of the reference." if said.where else ""
    parts = [
        "::::{container} method-card",
        said.what,
        f"**When it helps.** {said.helps}",
        f"**When not.** {said.fails}",
        gains_table(name),
        f":::{{container}} facts\n{facts_list(name)}\n:::",
        f"$$\n{equation(kind)}\n$$",
        f":::{{container}} program\n```python\n{program(name)}```\n\n{said.symbols}{where}\n:::",
        "::::",
    ]
    return "\n\n".join(parts)


def overview() -> str:
    """Markdown: all lines that learn together at a glance, each linked to its card."""
    shown = [
        {
            "method": f"[{line}](card-{name})",
            "sees": IN_SHORT[entry.view],
            "a round": _bytes(line),
            "leaves a client (numbers)": _numbers(line),
        }
        for name in CARDS
        for line, entry in lines(name).items()
        if entry.exchanges
    ]
    return markdown(pd.DataFrame(shown))
