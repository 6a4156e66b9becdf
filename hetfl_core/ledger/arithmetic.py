"""Which arithmetic records were made with, and how far arithmetic alone carries a result."""

from __future__ import annotations

ARITHMETIC = "arithmetic"
"""Folder of the experiments whose runs differ in nothing but the order in which numbers were added."""
