"""Figures of the benchmark: who leads, by how much, where, and for how many bytes.

Tables are HTML that needs nothing from elsewhere: they sort and filter offline, and without scripts show their first
view. Figures are 4.6 inches wide, so that their letters can be read where a phone has 390 pixels.
"""

from __future__ import annotations

import html
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hetfl_book.headtohead.guide import Advice, Question
from hetfl_core import checks
from hetfl_core.plots import COLOURS, MARKERS, _axes

WIDTH = 4.6
"""Inches of a figure."""

ALONE = "a network alone"
"""What gains are over where nothing else is said."""

GAIN = f"gain over {ALONE} (points)"

MOST = 10.0
"""Points over training alone from which a cell has its full colour."""

SCRIPT = """
(() => {
  const box = document.getElementById("ID"), body = box.querySelector("tbody");
  const picks = [...box.querySelectorAll("select")];
  const show = () => {
    let place = 0;
    for (const row of body.rows) {
      row.hidden = !picks.every((pick) => row.dataset[pick.name] === pick.value);
      if (!row.hidden && !row.classList.contains("beside")) row.cells[0].textContent = ++place;
    }
  };
  picks.forEach((pick) => pick.addEventListener("change", show));
  box.querySelectorAll("th button").forEach((button) => button.addEventListener("click", () => {
    const head = button.parentElement, at = head.cellIndex, up = head.getAttribute("aria-sort") === "descending";
    box.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[at].dataset.key, number = (row) => (key(row) === "" ? -Infinity : Number(key(row)));
    const words = isNaN(Number(key(body.rows[0])));
    const order = (a, b) => (words ? key(a).localeCompare(key(b)) : number(a) - number(b)) * (up ? 1 : -1);
    [...body.rows].sort(order).forEach((row) => body.append(row));
    show();
  }));
  show();
})();
"""


class Page:
    """A piece of HTML that a notebook displays.

    Parameters
    ----------
    markup : str
        Which needs nothing from elsewhere.
    words : str
        What it says, where there is no browser.
    """

    def __init__(self, markup: str, words: str) -> None:
        self.markup, self.words = markup, words

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.markup, "text/plain": self.words}


def leaderboard(
    rows: pd.DataFrame,
    columns: Mapping[str, Callable[[Any], str]],
    picks: Mapping[str, str],
    beside: Collection[str] = (),
) -> Page:
    """A table that ranks methods; its head sorts, and lists above it choose what is ranked.

    What a list would not change is not offered: a choice that shows what an earlier one shows, a list of one choice.

    Parameters
    ----------
    rows : DataFrame
        A row for each method and each choice of the lists, best first. Has the column ``method``.
    columns : dict of str to callable
        The columns shown beside the method, each with how its values are written. Missing values stay empty.
    picks : dict of str to str
        Columns of `rows` that have a list each, and the list's label; what comes first in `rows` is chosen first.
    beside : collection of str
        Methods that stand in the table without a place.

    Returns
    -------
    Page
    """
    checks.frame("rows", rows, "method", *columns, *picks)
    for pick in picks:
        rows = rows[rows[pick].isin(_telling(rows, pick))]
    name = lambda text: html.escape(str(text))  # noqa: E731
    choices = {pick: list(dict.fromkeys(map(str, rows[pick]))) for pick in picks}
    lists = "".join(
        f'<label>{name(label)} <select name="{name(pick)}">'
        + "".join(f"<option>{name(value)}</option>" for value in choices[pick])
        + "</select></label> "
        for pick, label in picks.items()
        if len(choices[pick]) > 1
    )
    heads = [f'<th scope="col"><button type="button">{name(column)}</button></th>' for column in ("method", *columns)]
    first = {pick: values[0] for pick, values in choices.items()}
    chosen = [all(str(row[pick]) == value for pick, value in first.items()) for row in rows.to_dict("records")]
    body, place = [], 0
    for row, seen in zip(rows.to_dict("records"), chosen, strict=True):
        placed = row["method"] not in beside
        place += seen and placed
        data = "".join(f' data-{pick}="{name(row[pick])}"' for pick in picks)
        cells = f'<td data-key="{name(row["method"])}">{name(row["method"])}</td>'
        for column, written in columns.items():
            key, shown = ("", "") if pd.isna(row[column]) else (row[column], name(written(row[column])))
            cells += f'<td data-key="{key}">{shown}</td>'
        data += ("" if placed else ' class="beside"') + ("" if seen else " hidden")
        body.append(f"<tr{data}><td>{place if seen and placed else ''}</td>{cells}</tr>")
    table = f'<tr><th scope="col">place</th>{"".join(heads)}</tr></thead><tbody>{"".join(body)}</tbody>'
    markup = f'{f"<p>{lists}</p>" if lists else ""}<table class="dataframe"><thead>{table}</table>'
    box = f"ranked-{zlib.crc32(markup.encode()):08x}"  # the same for the same table
    markup = f'<div class="ranked" id="{box}">{markup}<script>{SCRIPT.replace("ID", box)}</script></div>'
    return Page(markup, rows.loc[chosen, ["method", *columns]].to_string(index=False))


def _telling(rows: pd.DataFrame, pick: str) -> list[Any]:
    """Values of a column for which the others are not those of an earlier value."""
    kept: dict[Any, pd.DataFrame] = {}
    for value, some in rows.groupby(pick, sort=False):
        others = some.drop(columns=pick).reset_index(drop=True)
        if not any(others.equals(one) for one in kept.values()):
            kept[value] = others
    return list(kept)


def markdown(table: pd.DataFrame) -> str:
    """A table of texts in Markdown, for pages that the build fills in.

    Parameters
    ----------
    table : DataFrame of str
        Its index is left out.
    """
    rows = [list(table), ["---"] * table.shape[1], *table.values.tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def heat(gains: pd.DataFrame, sure: pd.DataFrame, links: Mapping[str, str], xlabel: str = "") -> Page:
    """Points over training alone, methods down and federations across, each cell in the colour of its number.

    Parameters
    ----------
    gains : DataFrame, shape (methods, federations)
        NaN where a method did not run; such cells say "–".
    sure : DataFrame of bool, of the same shape
        Whether the interval excludes zero; such cells are bold.
    links : dict of str to str
        Where the runs of each federation are, by its name.

    Returns
    -------
    Page
    """
    checks.frame("gains", gains)
    checks.frame("sure", sure, *gains)
    name = lambda text: html.escape(str(text))  # noqa: E731
    head = "".join(f'<th scope="col"><a href="{name(links[f])}">{name(f)}</a></th>' for f in gains)
    body = ""
    for method, row in gains.iterrows():
        cells = "".join(_cell(row[f], bool(sure.loc[method, f]), links[f]) for f in gains)
        body += f'<tr><th scope="row">{name(method)}</th>{cells}</tr>'
    corner = f'<th scope="col">{name(xlabel)}</th>'
    markup = f'<table class="dataframe heat"><thead><tr>{corner}{head}</tr></thead><tbody>{body}</tbody></table>'
    return Page(markup, gains.round(1).to_string())


def signed(points: float, digits: int = 1) -> str:
    """A gain with its sign, to a tenth of a point unless told; also that of nothing is said."""
    return f"{points:+.{digits}f}".replace("-", "−")


def _cell(gain: float, sure: bool, link: str) -> str:
    if not np.isfinite(gain):
        return "<td>–</td>"
    red, green, blue = (0, 114, 178) if gain > 0 else (213, 94, 0)
    strength = 0.55 * min(abs(gain) / MOST, 1)  # dark letters stay legible on it
    mixed = [round(255 + strength * (part - 255)) for part in (red, green, blue)]
    text = f'<a href="{html.escape(link)}">{signed(gain)}</a>'
    return f'<td style="background:rgb{tuple(mixed)};color:#000">{f"<b>{text}</b>" if sure else text}</td>'


def ranks(mean_ranks: pd.Series, groups: Sequence[Sequence[str]], ax: Axes | None = None, title: str = "") -> Axes:
    """Mean ranks over federations, best on top, with a bar beside methods that cannot be told apart.

    What the field calls a critical-difference diagram, upright, so that names can be read on a phone.

    Parameters
    ----------
    mean_ranks : Series
        By method; 1 is best.
    groups : sequence of sequence of str
        Methods that are not shown to differ, one bar each; groups of one are not drawn.

    References
    ----------
    J. Demšar. Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006.
    """
    order = mean_ranks.sort_values(kind="stable")
    place = {method: -i for i, method in enumerate(order.index)}
    ax = _axes(ax, figsize=(WIDTH, 1.0 + 0.3 * len(order)))
    ax.plot(order, list(place.values()), "o", color=COLOURS[0])
    ax.hlines(list(place.values()), 1, order, color=COLOURS[0], lw=1, alpha=0.4)
    bars = [[place[m] for m in group] for group in groups if len(group) > 1]
    step = 0.04 * max(float(order.max()) - 1, 1)
    for i, bar in enumerate(sorted(bars, reverse=True, key=max)):
        x = float(order.max()) + (2 + i) * step
        ax.plot([x, x], [max(bar) + 0.25, min(bar) - 0.25], color="black", lw=3, solid_capstyle="butt")
    return _rows(ax, order.index, "mean rank (1 is best)", title)


def _rows(ax: Axes, names: Iterable[Any], xlabel: str, title: str) -> Axes:
    """Axes on which what is called so stands one below the other, the first at height 0, the next at −1."""
    told = list(map(str, names))
    ax.set_yticks(-np.arange(len(told)), told)
    ax.set(xlabel=xlabel, title=title, ylim=(0.6 - len(told), 0.6))
    ax.grid(False, axis="y")
    return ax


def frontier(cost: Sequence[float], gain: Sequence[float]) -> list[int]:
    """Places of what is not worse than anything cheaper: Pareto's line, from the cheapest on."""
    points = sorted(range(len(cost)), key=lambda i: (cost[i], -gain[i]))
    kept: list[int] = []
    for i in points:
        if not kept or gain[i] > gain[kept[-1]]:
            kept.append(i)
    return kept


def against_bytes(rows: pd.DataFrame, ax: Axes | None = None, title: str = "") -> Axes:
    """Mean gain over training alone against what a client sends and receives, with Pareto's line.

    Parameters
    ----------
    rows : DataFrame
        Indexed by method: ``bytes`` sent and received in a run, ``gain`` in points. What sends nothing stands at
        the left edge.
    """
    checks.frame("rows", rows, "bytes", "gain")
    ax = _axes(ax, figsize=(WIDTH, 4.2))
    sent = rows["bytes"].astype(float)
    least = sent[sent > 0].min() / 8
    x, y = sent.clip(lower=least), rows["gain"].astype(float)
    line = frontier(x.tolist(), y.tolist())
    ax.plot(x, y, "o", color="grey", ms=5)
    ax.plot(x.iloc[line], y.iloc[line], "o-", color=COLOURS[1], drawstyle="steps-post")
    for i in line:
        ax.annotate(str(rows.index[i]), (x.iloc[i], y.iloc[i]), (4, 5), textcoords="offset points", fontsize=10)
    ax.axhline(0, color="black", lw=1)
    ax.set(
        xscale="log",
        xlabel="bytes sent and received in a run",
        ylabel=GAIN,
        title=title,
    )
    return ax


def of_sites(rows: pd.DataFrame, ax: Axes | None = None, title: str = "", xlabel: str = GAIN) -> Axes:
    """What each site gains, with its interval: the site with fewest training rows on top.

    Parameters
    ----------
    rows : DataFrame
        ``federation``, ``site``, ``rows`` for training; ``gain``, ``low`` and ``high`` in points. Each federation has
        a colour.
    """
    checks.frame("rows", rows, "federation", "site", "rows", "gain", "low", "high")
    ax = _axes(ax, figsize=(WIDTH, 1.2 + 0.3 * len(rows)))
    federations = dict.fromkeys(rows["federation"])
    rows = rows.sort_values("rows", kind="stable").assign(place=-np.arange(len(rows)))
    for i, federation in enumerate(federations):
        some = rows[rows["federation"] == federation]
        half = [some["gain"] - some["low"], some["high"] - some["gain"]]
        ax.errorbar(some["gain"], some["place"], xerr=half, fmt=MARKERS[i], color=COLOURS[i], label=str(federation))
    ax.axvline(0, color="black", lw=1)
    ax.set_ylabel("site, training rows")
    ax.legend(fontsize=10, ncols=3, loc="lower center", bbox_to_anchor=(0.3, 1.0), frameon=False)
    return _rows(ax, (f"{site}, {n}" for site, n in zip(rows["site"], rows["rows"], strict=True)), xlabel, title)


def tree(
    advice: Mapping[str, Advice],
    questions: Question,
    links: Mapping[str, str],
    first: str = "",
    choice: str = "",
    beside: Mapping[str, Mapping[str, Advice]] | None = None,
    elsewhere: Mapping[str, Mapping[str, str]] | None = None,
) -> Page:
    """The decision guide as nested questions, each leaf with the method, its gain, and where the runs are.

    Parameters
    ----------
    advice : dict of str to Advice
        By leaf, as from `hetfl_book.headtohead.guide.guide`.
    questions : (str, dict of str to question or leaf)
        The first question, and where each of its answers leads.
    links : dict of str to str
        Where the runs of each leaf are.
    first : str, optional
        What to begin with at each leaf, and what all gains are over, such as the best way to stay alone; without it
        they are over a network alone.
    choice : str, optional
        How that is chosen, at leaves with runs.
    beside : dict of str to dict of str to Advice, optional
        What other measures advise, by their names.
    elsewhere : dict of str to dict of str to str, optional
        For leaves, what is known from elsewhere, and where that stands.

    Returns
    -------
    Page
    """

    def node(at: Question | str) -> str:
        if not isinstance(at, str):
            text, answers = at
            listed = "".join(f"<li><b>{html.escape(a)}</b> {node(to)}</li>" for a, to in answers.items())
            return f"<p>{html.escape(text)}</p><ul>{listed}</ul>"
        known = "".join(
            f'<br><a href="{html.escape(link)}">{html.escape(words)}</a>'
            for words, link in (elsewhere or {}).get(at, {}).items()
        )
        if at not in advice:
            begin = f"not run yet: begin with {html.escape(first or 'training alone')}, and compare"
            return f'<p class="leaf">{begin}{known}</p>'
        one = advice[at]
        runs = f"{len(one.cases)} case{'s' * (len(one.cases) > 1)}"
        begin = f"<br>begin with <strong>{html.escape(first)}</strong>{html.escape(choice)}" if first else ""
        then = "then try" if one.mean > 0 else "no method that exchanges something has a mean above it, the nearest is"
        others = ((name, other[at]) for name, other in (beside or {}).items())
        return (
            f'<p class="leaf">points over {html.escape(first or ALONE)}, in '
            f'<a href="{html.escape(links[at])}">{runs}</a>{begin}<br>{then if first else "try"} {_told(one)}'
            + "".join(f"<br>{html.escape(name)}: {_told(other)}" for name, other in others)
            + f"{known}</p>"
        )

    words = "\n".join(f"{leaf}: {one.method} ({one.mean:+.1f} points)" for leaf, one in advice.items())
    return Page(f'<div class="guide">{node(questions)}</div>', words)


def sharing(rows: pd.DataFrame, ax: Axes | None = None, title: str = "", bar: tuple[str, float] | None = None) -> Axes:
    """What each method gains over training alone, and what of it is gone when nothing is exchanged.

    Parameters
    ----------
    rows : DataFrame
        Indexed by method, best on top: ``gain`` over training alone and ``sharing`` over the same recipe with nothing
        exchanged, in points. The part that is left to the recipe is drawn pale.
    bar : (str, float), optional
        Name and gain of what all are to be compared with, a dashed line.
    """
    checks.frame("rows", rows, "gain", "sharing")
    ax = _axes(ax, figsize=(WIDTH, 1.6 + 0.3 * len(rows)))
    place = pd.Series(-np.arange(len(rows)), rows.index)
    recipe = rows["gain"] - rows["sharing"]
    ax.hlines(place, 0, recipe, color="grey", lw=6, alpha=0.4, label="from the local recipe")
    for lost, word in ((False, "added by the exchange"), (True, "lost by the exchange")):
        some = rows["sharing"].lt(0) == lost
        if some.any():
            ax.hlines(place[some], recipe[some], rows["gain"][some], color=COLOURS[lost], lw=3, label=word)
    ax.plot(rows["gain"], place, "o", color="black", ms=5, label=f"gain over {ALONE}")
    ax.axvline(0, color="black", lw=1)
    if bar:
        ax.axvline(bar[1], color="black", lw=1, ls="--", label=bar[0])
    ax.legend(fontsize=10, loc="lower left", bbox_to_anchor=(-0.5, 1.0), frameon=False)
    return _rows(ax, rows.index, "points of balanced accuracy", title)


def _listed(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Page:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    markup = f'<table class="dataframe words"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return Page(markup, "\n".join("; ".join(row) for row in rows))


def _told(one: Advice) -> str:
    return f"<strong>{html.escape(one.method)}</strong>, {signed(one.mean)} ({signed(one.low)} to {signed(one.high)})"


def needs(advice: Mapping[str, Advice | None], beside: Mapping[str, pd.Series], over: str = ALONE) -> Page:
    """What to try where somebody needs something besides: a table of needs, methods and gains.

    Parameters
    ----------
    advice : dict of str to Advice or None
        By need, as from `hetfl_book.headtohead.guide.limited`.
    beside : dict of str to Series
        Further columns: by method, what its gain is over something else; NaN where there is no such gain.
    over : str
        What the gains of the advice are over.
    """
    rows = []
    for need, one in advice.items():
        told = f"{signed(one.mean)} ({signed(one.low)} to {signed(one.high)} in {len(one.cases)})" if one else "–"
        more = [points.get(one.method, np.nan) if one else np.nan for points in beside.values()]
        rows.append((need, one.method if one else "–", told, *(signed(x) if np.isfinite(x) else "–" for x in more)))
    return _listed(("what you need", "method", f"points over {over}", *beside), rows)


def judged(table: pd.DataFrame, over: str = ALONE) -> Page:
    """The guide's advice on federations that it has not seen, beside the best method there.

    Parameters
    ----------
    table : DataFrame
        As `hetfl_book.headtohead.guide.left_out` gives it.
    over : str
        What the gains are over.
    """
    rows = []
    for case, row in table.iterrows():
        best = f"{row['best']}, {signed(row['gain'] + row['regret'])}"
        rows.append((str(case), str(row["advice"]), signed(row["gain"]), best))
    return _listed(("federation", "advice", f"points over {over}", "best there"), rows)


def groups(names: Sequence[str], differ: Callable[[str, str], bool]) -> list[list[str]]:
    """Longest runs of neighbours, in the order given, of which no two are shown to differ; runs of one are left out."""
    found: list[list[str]] = []
    for i in range(len(names)):
        j = i + 1
        while j < len(names) and not any(differ(a, names[j]) for a in names[i:j]):
            j += 1
        run = list(names[i:j])
        if len(run) > 1 and not any(set(run) <= set(one) for one in found):
            found.append(run)
    return found
