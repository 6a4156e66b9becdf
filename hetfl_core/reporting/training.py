"""Models of tables that are to be used: trained on all rows, in the ways that are compared."""

from __future__ import annotations

from hetfl_core import checks
from hetfl_core.engine.trained import Trained
from hetfl_core.learners import simulate
from hetfl_core.reporting.trials import Tables
from hetfl_core.reporting.ways import ways_of


def trained(tables: Tables, name: str, *, rounds: int = 10, seed: int = 0, workers: int | None = None) -> Trained:
    """Models of all sites, or of a single one, from all rows of their tables.

    Parameters
    ----------
    tables : Tables
    name : str
        Of a way, or of a method.
    rounds : int
    seed : int
    workers : int, optional
        As for `simulate`.

    Returns
    -------
    Trained

    Raises
    ------
    ValueError
        For an unknown name, and tables that are refused.
    """
    checks.nonempty_str("method", name)
    whole = tables.federation(seed, 0.0, least=1)
    seen, method, options = ways_of([name], whole)[0][-1].made_for(whole)
    return simulate(seen, method, rounds=rounds, seed=seed, workers=workers, **options).trained()
