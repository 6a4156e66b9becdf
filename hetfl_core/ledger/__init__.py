"""What we measured, and what the papers say of it.

Records of runs (`records`), the papers' numbers (`published`), paired differences over seeds (`statistics`), the
papers' numbers and claims judged by one rule (`judging`), methods compared client by client (`comparison`), how far
arithmetic alone carries a result (`arithmetic`), and tables for the eye (`tables`). The names that pages use are here:
``ledger.load()``, ``ledger.numbers()``, ``ledger.claims()``, ``ledger.show(…)``.
"""

from hetfl_core.ledger.arithmetic import arithmetic_reach, arithmetic_spreads, generations, with_arithmetic
from hetfl_core.ledger.judging import (
    PENDING,
    UNAVAILABLE,
    UNBUILT,
    claim_verdict,
    claims,
    combined_error,
    command,
    numbers,
    tolerance,
    verdict,
)
from hetfl_core.ledger.published import SOURCES, paper_table, paper_values
from hetfl_core.ledger.records import (
    RunRecord,
    code_revision,
    compare,
    environment,
    load,
    read,
    relative_path_of,
    tidy,
    to_percent,
    value,
    write,
    write_to,
)
from hetfl_core.ledger.statistics import Paired, effects, holm, paired
from hetfl_core.ledger.tables import Shown, show

__all__ = [
    "PENDING",
    "SOURCES",
    "UNAVAILABLE",
    "UNBUILT",
    "Paired",
    "RunRecord",
    "Shown",
    "arithmetic_reach",
    "arithmetic_spreads",
    "claim_verdict",
    "claims",
    "code_revision",
    "combined_error",
    "command",
    "compare",
    "effects",
    "environment",
    "generations",
    "holm",
    "load",
    "numbers",
    "paired",
    "paper_table",
    "paper_values",
    "read",
    "relative_path_of",
    "show",
    "tidy",
    "to_percent",
    "tolerance",
    "value",
    "verdict",
    "with_arithmetic",
    "write",
    "write_to",
]
