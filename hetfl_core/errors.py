"""Errors that are written for people: what was asked for cannot be done, and the message says why.

Each is one of Python's own too, so that ``except ValueError`` catches what it always did. The command line shows such
an error as one line; any other is a fault of the program, and keeps its traceback.
"""

from __future__ import annotations

__all__ = ["HetflError"]


class HetflError(Exception):
    """Base of the errors that this library raises on purpose."""


class WrongValue(HetflError, ValueError):
    """A value, or what a file or a federation holds, is not one that can be worked with."""


class WrongType(HetflError, TypeError):
    """A thing of another kind than is expected."""


class UnknownName(HetflError, KeyError):
    """A name that nothing has."""

    def __str__(self) -> str:
        """The message as it was written; Python's own puts it in quotes."""
        return Exception.__str__(self)


class NotInstalled(HetflError, ImportError):
    """A package that is needed, and is not installed or not found."""


class RunError(HetflError, RuntimeError):
    """Something went wrong although all that was asked for is right, such as a process that was killed."""
