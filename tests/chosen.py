"""The settings that records choose, for the tests of `CHOSEN` in the papers' modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np


def best(
    found: Mapping[str, Sequence[float]], grid: Mapping[str, Iterable[str]], pick: Callable[..., str] = max
) -> dict[str, str]:
    """For each method the setting of the best mean over seeds, the first of equal ones; only where all were tried.

    A setting with a run that diverged, which has no accuracy, is never chosen.
    """
    means = {setting: float(np.mean(each)) for setting, each in found.items()}
    whole = {
        name: [setting for setting in settings if not np.isnan(means[setting])]
        for name, settings in grid.items()
        if {*settings} <= means.keys()
    }
    return {name: pick(settings, key=means.__getitem__) for name, settings in whole.items()}
