"""Figures of single chapters, in the house style of `hetfl_core.plots`."""
