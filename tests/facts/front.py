"""What the front page says, besides its tables."""

import re

from facts import BOOK, CODE, Fact, flic, hyfem
from facts.part_one import deployment, which_method
from facts.tour import exchanged, in_order, more

ZEROS = which_method.ZEROS
near = flic.near(flic.from_table_3())
cells = {name: hyfem.reached(hyfem.PARTS, name).mean() for name in hyfem.CELLS}

FACTS: list[Fact] = [
    ("On the four hospitals no method is shown to put patients into a better order", *in_order),
    ("FedAvg with a zero in each missing column gains five points", 4.5 < more[ZEROS].mean < 5.5, more[ZEROS].low > 0),
    ("Most of that is a better threshold", which_method.SHARES["heart", "all"] < more[ZEROS].mean / 2),
    ("hospitals gain as much when nothing is exchanged", abs(exchanged["FLIC-Class"].mean) < 0.05),
    ("does best in a setting without any matching", max(cells, key=cells.get).startswith("no matching")),
    ("most numbers agree when USPS is dealt as in its code", near[flic.CODE] > 2.5),
    ("and none does when it is dealt as in its text", near[flic.TEXT] == 0),
    ("which classes a client holds", deployment.talking["presence_direct"].min() > 0.85),
]  # fmt: skip


def said() -> str:
    """The page without its code, formulas and what the build fills in, links as their words."""
    text = re.sub(r"\{\{[^}]*\}\}", " ", (BOOK / "index.md").read_text("utf8"))
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(CODE.sub(" ", text).split())
