"""The data card of the benchmark: what each federation holds, and where it comes from.

Sizes stand in ``sizes.csv``, so that the page needs no data; a test compares them with the federations whose files are
at hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from hetfl_book.headtohead.federations import FEDERATIONS, data_of
from hetfl_book.headtohead.figures import markdown
from hetfl_core.datasets import registry
from hetfl_core.federation import Federation
from hetfl_core.inputs import by_block

SIZES_FILE = Path(__file__).with_name("sizes.csv")


def sizes(name: str) -> dict[str, str | int]:
    """What stands in a federation's line of the file: counts of the split with seed 0.

    Parameters
    ----------
    name : str
        One of `FEDERATIONS`, whose files are at hand.

    Returns
    -------
    dict
        ``federation``, ``clients``, ``classes`` and ``features``; ``all`` and ``tenth``, training rows of the median
        client; ``train``, ``train_tenth`` and ``test``, the rows of all clients.
    """
    whole, few = data_of(name, 0), data_of(name, 0, "tenth")
    rows, left = ([client.n_train for client in data] for data in (whole, few))
    return {
        "federation": name,
        "clients": len(whole),
        "features": inputs_in_words(whole),
        "classes": whole.n_classes,
        "all": round(float(np.median(rows))),
        "tenth": round(float(np.median(left))),
        "train": sum(rows),
        "train_tenth": sum(left),
        "test": sum(client.n_test for client in whole),
    }


def inputs_in_words(data: Federation) -> str:
    """The inputs of its clients in a few words, as ``15 to 22`` or ``2 to 3 of 4 blocks of 14×14``.

    Parameters
    ----------
    data : Federation
    """
    held = [{name: shape for name, shape in by_block(c.shapes).items() if 0 not in shape} for c in data]
    names = {name for one in held for name in one}
    shapes = {tuple(n for n in shape if n > 1 or len(shape) == 1) for one in held for shape in one.values()}
    each = _span(shapes)
    return each if names == {""} else f"{_span({(len(one),) for one in held})} of {len(names)} blocks of {each}"


def _span(shapes: Iterable[tuple[int, ...]]) -> str:
    few, *_, many = [*(ordered := sorted(shapes)), ordered[-1]]
    words = ["×".join(map(str, shape)) for shape in (few, many)]
    return words[0] if few == many else " to ".join(words)


def source(name: str) -> tuple[str, str]:
    """Licences and citations of a federation's files, as the registry has them; that it is made, where it has none.

    Parameters
    ----------
    name : str
        One of `FEDERATIONS`.
    """
    data = FEDERATIONS[name].data
    if not data:
        return "made up here", "–"
    found = [registry.lookup(key) for key in registry.needs(data)]
    return ", ".join(dict.fromkeys(one.licence for one in found)), " ".join(dict.fromkeys(e.citation for e in found))


def table() -> str:
    """Markdown: a line for each federation."""
    known = pd.read_csv(SIZES_FILE).set_index("federation")
    count = lambda n: f"{n:,}"  # noqa: E731
    shown = [
        {
            "federation": f"`{name}`",
            "clients": count(known.loc[name, "clients"]),
            "features": str(known.loc[name, "features"]),
            "classes": count(known.loc[name, "classes"]),
            "training rows": count(known.loc[name, "train"]),
            "in *tenth*": count(known.loc[name, "train_tenth"]),
            "test rows": count(known.loc[name, "test"]),
            "a client's": f"{count(known.loc[name, 'all'])}, {count(known.loc[name, 'tenth'])}",
            "real or made": "real" if setting.real else "real rows" if setting.data else "made",
            "licence": source(name)[0],
        }
        for name, setting in FEDERATIONS.items()
    ]
    return markdown(pd.DataFrame(shown))


def sources() -> str:
    """Markdown: a list of whom to cite for the rows of each federation."""
    cited: dict[str, list[str]] = {}
    for name in FEDERATIONS:
        cited.setdefault(source(name)[1], []).append(name)
    return "\n".join(f"- {', '.join(f'`{n}`' for n in names)}: {text}" for text, names in cited.items() if text != "–")
