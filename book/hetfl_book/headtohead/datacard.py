"""The data card of the benchmark: what each federation holds (`portraits`), whose it is and under which licence."""

from __future__ import annotations

import pandas as pd

from hetfl_book.headtohead.federations import FEDERATIONS
from hetfl_book.headtohead.figures import markdown
from hetfl_book.headtohead.portraits import portraits
from hetfl_core.datasets import registry
from hetfl_core.errors import UnknownName


def source(name: str) -> tuple[str, str]:
    """Licences and citations of a federation's files, as the registry has them; both empty where rows are made.

    Parameters
    ----------
    name : str
        One of `FEDERATIONS`.
    """
    data = FEDERATIONS[name].data
    if not data:
        return FEDERATIONS[name].source
    found = [registry.lookup(key) for key in registry.needs(data)]
    return " / ".join(dict.fromkeys(one.licence for one in found)), " ".join(dict.fromkeys(e.citation for e in found))


def table() -> str:
    """Markdown: a line for each federation.

    Raises
    ------
    LookupError
        For federations without portrait.
    """
    known = portraits().set_index(["federation", "size"])
    if lost := ",".join(name for name in FEDERATIONS if name not in known.index):
        raise UnknownName(f"no portrait of {lost}: make it by `hetfl headtohead --describe --federations {lost}`")
    return markdown(pd.DataFrame([_line(name, known.loc[name]) for name in FEDERATIONS]))


def _line(name: str, sizes: pd.DataFrame) -> dict[str, str]:
    setting, whole, few = FEDERATIONS[name], sizes.loc["all"], sizes.loc["tenth"]
    inputs = [f"{whole[end]:,}" for end in ("least_inputs", "most_inputs")]
    return {
        "federation": f"`{name}`",
        "real or made": "real" if setting.real else "real rows" if any(source(name)) else "made",
        "clients": str(whole["clients"]),
        "inputs": " to ".join(dict.fromkeys(inputs)),
        "classes": str(whole["classes"]),
        "training rows": _rows(whole),
        "in *tenth*": _rows(few),
        "test rows": f"{whole['test']:,}",
        "licence": source(name)[0] or "made up here",
    }


def _rows(size: pd.Series) -> str:
    """Of all clients, and of the smallest."""
    return f"{size['train']:,} ({size['least_train']:,})"


def sources() -> str:
    """Markdown: a list of whom to cite for the rows of each federation that has files."""
    cited: dict[str, list[str]] = {}
    for name in FEDERATIONS:
        cited.setdefault(source(name)[1], []).append(f"`{name}`")
    return "\n".join(f"- {', '.join(names)}: {text}" for text, names in cited.items() if text)
