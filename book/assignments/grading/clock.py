"""Limits of time for cells and calls of a hand-in, kept by its own process: what takes too long is interrupted.

A hand-in can ignore the signal. Then the process of the checks ends it, and runs the notebook once more without what was endless.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

AGAIN = 1.0
"""Seconds after which what has caught the interruption is interrupted once more."""


LONG = 1e6
"""Seconds that stand for no limit."""


class TimeUp(BaseException):
    """Something has taken longer than it may. No `Exception`, which a loop might catch and go on."""


class Clock:
    """Interrupts what takes longer than it may; limits can lie within each other."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Raise `TimeUp` in the body when it takes longer."""
        outer = len(self.ends)
        self.ends.append(time.monotonic() + min(seconds, LONG))
        try:
            self._set()
            yield
        finally:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
            finally:  # the alarm may have rung just before
                del self.ends[outer:]
                self._set()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Count none of the time that the body takes."""
        running, self.ends = self.ends, []
        began = time.monotonic()
        try:
            self._set()
            yield
        finally:
            passed = time.monotonic() - began
            self.ends = [end + passed for end in running]
            self._set()

    def _set(self) -> None:
        """Have the alarm ring when the first of the limits is reached."""
        if not self.ends:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        with contextlib.suppress(ValueError):  # not in a thread of the hand-in
            signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, max(min(self.ends) - time.monotonic(), 0.001), AGAIN)

    def _ring(self, *_: Any) -> None:
        if self.ends and time.monotonic() >= min(self.ends):
            raise TimeUp
