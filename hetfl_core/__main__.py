"""``python -m hetfl_core`` is ``hetfl``."""

from hetfl_core.cli import main

main()
