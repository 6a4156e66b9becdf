"""The settings of the papers' tables and figures: one file a paper."""
