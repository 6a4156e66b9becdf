"""What we measured, and what the papers say of it.

Records of runs (`records`) and their files (`storage`), the papers' numbers (`published`), paired differences over
seeds (`statistics`), the papers' numbers and claims judged by one rule (`judging`), methods compared client by client
(`comparison`), how far arithmetic alone carries a result (`arithmetic`), and tables for the eye (`tables`). The names
that pages use are here:
``ledger.load()``, ``ledger.numbers()``, ``ledger.claims()``, ``ledger.show(…)``.
"""

from hetfl_core.ledger.arithmetic import arithmetic_reach, arithmetic_spreads, generations, with_arithmetic
from hetfl_core.ledger.judging import (
    KINDS,
    PENDING,
    UNAVAILABLE,
    UNBUILT,
    Tally,
    claim_p,
    claim_verdict,
    claims,
    combined_error,
    command,
    numbers,
    tally,
    tolerance,
    verdict,
)
from hetfl_core.ledger.provenance import code_revision, environment
from hetfl_core.ledger.published import SOURCES, paper_table, paper_values
from hetfl_core.ledger.records import RunRecord, compare, relative_path_of, to_percent, value
from hetfl_core.ledger.statistics import (
    MIN_SEEDS,
    NoPairsError,
    Paired,
    contrast,
    corrected,
    effects,
    holm,
    interval,
    paired,
    welch,
)
from hetfl_core.ledger.storage import find, load, pack, read, tidy, to_json, write, write_to
from hetfl_core.ledger.tables import Shown, in_full, outcome, show

__all__ = [
    "KINDS",
    "MIN_SEEDS",
    "PENDING",
    "SOURCES",
    "UNAVAILABLE",
    "UNBUILT",
    "NoPairsError",
    "Paired",
    "RunRecord",
    "Shown",
    "Tally",
    "arithmetic_reach",
    "arithmetic_spreads",
    "claim_p",
    "claim_verdict",
    "claims",
    "code_revision",
    "combined_error",
    "command",
    "compare",
    "contrast",
    "corrected",
    "effects",
    "environment",
    "find",
    "generations",
    "holm",
    "in_full",
    "interval",
    "load",
    "numbers",
    "outcome",
    "pack",
    "paired",
    "paper_table",
    "paper_values",
    "read",
    "relative_path_of",
    "show",
    "tally",
    "tidy",
    "to_json",
    "to_percent",
    "tolerance",
    "value",
    "verdict",
    "welch",
    "with_arithmetic",
    "write",
    "write_to",
]
