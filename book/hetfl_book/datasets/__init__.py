"""Data sets of the four papers that the core does not need, each a function that returns a `Federation`."""

from collections.abc import Callable

from hetfl_book.datasets import eeg_blocks, fedgen, flic_bci, multiview, pfedhn, project, rendering, solids, text
from hetfl_core.datasets import registry
from hetfl_core.federation import Federation

CATALOGUE: dict[str, Callable[..., Federation]] = {
    "solids.views": solids.views,
    "multiview.modelnet40": multiview.modelnet40,
    "multiview.herigraph": multiview.herigraph,
    "fedgen.emnist": fedgen.emnist,
    "fedgen.mnist": fedgen.mnist,
    "pfedhn.cifar10": pfedhn.cifar10,
    "flic_bci.common40": flic_bci.common40,
    "eeg_blocks.simulated": eeg_blocks.simulated,
    "text.textcaps": text.textcaps,
    "text.two_modalities": text.two_modalities,
}
"""Name of each data set, as in ``hetfl list``, and the function that makes its federation."""

registry.DATA_SETS.update(CATALOGUE)
