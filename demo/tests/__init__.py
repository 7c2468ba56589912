"""The shop's own suite: `pytest demo/tests`."""
