"""The papers' theorems as functions that can be evaluated: one file per paper."""
