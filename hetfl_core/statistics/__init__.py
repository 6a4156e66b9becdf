"""What the seeds of an experiment say about a difference: paired intervals, and the correction for many tries.

Nothing is concluded from fewer than `MIN_SEEDS` seeds, and every difference is judged by its own spread. Two or three
seeds estimate a spread badly, so that it is tempting to pool the spreads of all comparisons of a table; but where they
are not equal (they seldom are), a common one is too small for some comparisons, and the promised 5 % can become a
third. Signs flipped at random assume nothing about spreads, but of n seeds they make only 2ⁿ⁻¹ sizes of a difference,
and no p-value below 2¹⁻ⁿ: 0.25 with three, 0.06 with five. What keeps its promise, for any spreads and however the
differences of a table hang together (all share their base run), is Student's t for each comparison [1]_ and Holm's
correction over all of them [2]_. It asks for normal differences. Its price is power: with three seeds and many
comparisons only a very regular difference passes. More seeds are the remedy.

References
----------
.. [1] Student. The probable error of a mean. Biometrika 6, 1908.
.. [2] S. Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6, 1979.
"""

from hetfl_core.statistics.differences import (
    MIN_SEEDS,
    Paired,
    as_table,
    corrected,
    holm,
    interval,
    observed,
    welch,
)
from hetfl_core.statistics.of_records import (
    NoPairsError,
    contrast,
    differ,
    effects,
    newest_by_seed,
    paired,
    protocols_differ,
    same_data,
)

__all__ = ["MIN_SEEDS", "NoPairsError", "Paired", "corrected", "effects", "holm", "interval", "paired", "welch"]
