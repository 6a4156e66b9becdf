"""The settings of the papers' tables and figures: one file per paper."""
