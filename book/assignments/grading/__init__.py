"""The parts of `grade.py`.

========== ===================================================================================================
files      find what was handed in, and read one notebook out of it
place      where Python, its packages and the data are, which a hand-in may read
signs      read the source for what few hand-ins do
confine    limits of a process; namespaces of Linux, where the machine allows them
wire       plain values and calls of functions between two processes, one of which does not trust the other
clock      limits of time within the process of a hand-in
handin     the process of one hand-in: runs its notebook and lends its functions to the checks
marks      the process of the checks: calls these functions, compares what they return, gives the marks
hints      what a student is told: words of the checks and of the notebook, and nothing that a hand-in says while it runs
crew       one process of checks a core, replaced when it dies
========== ===================================================================================================

The checks and the libraries with which they compare live in a process that never runs a line of a hand-in. So there is nothing
in the process of the hand-in whose replacement would change a mark: it can only answer calls, well or badly.
"""
