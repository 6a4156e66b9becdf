"""The book's own package: what its chapters and its queue of runs need beside `hetfl_core`.

The papers' experiments, their numbers and claims beside ours, their theorems, attacks on what leaves a client, records
made again, and what the chapters show in the same way.
"""
