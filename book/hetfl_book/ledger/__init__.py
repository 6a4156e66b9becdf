"""What we measured, and what the papers say of it.

Records of runs (`records`) and their files (`storage`), the papers' numbers (`published`), paired differences over
seeds (`statistics`), the papers' numbers and claims judged by one rule (`judging`), methods compared client by client
(`comparison`), how far arithmetic alone carries a result (`arithmetic`), and tables for the eye (`tables`). The names
that pages use are here:
``ledger.load()``, ``ledger.numbers()``, ``ledger.claims()``, ``ledger.show(…)``.
"""

from hetfl_book.ledger.arithmetic import arithmetic_reach, arithmetic_spreads, generations
from hetfl_book.ledger.judging import (
    FAMILY,
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
from hetfl_book.ledger.published import SOURCES, paper_table, paper_values
from hetfl_book.ledger.tables import in_full, outcome, show
from hetfl_core.records import (
    RunRecord,
    code_revision,
    compare_records,
    environment,
    load,
    read,
    tidy,
    to_json,
    value,
    write,
)
from hetfl_core.statistics import MIN_SEEDS, Paired, as_table, corrected, effects, paired, welch
