"""``hetfl compare``: is it worth to learn together? Ways to learn from tables, side by side, on a page for its owner.

`ways` has what is compared, `trials` the runs, `judging` what they say, `page` the page, and `report` has it all for
tables in memory.
"""
