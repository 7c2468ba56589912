"""The figures pgbus promises, each measured beside its reference in the same run.

`python -m bench` prints the table. A contender runs in a process of its own, on a
fresh database of one server, and prints its result as JSON; rounds interleave the
contenders and the table shows medians.
"""
