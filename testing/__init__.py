"""What an application's own suite moves its runs with: real steps, on a test database, without waiting.

steps       the next step, a named one, or all of them
waits       what a run waits for: a signal, a deadline
fan_out     what a run waits for: a batch of jobs
taking      a run's own messages, taken and performed as a worker does it
databases   the test database, and its emptying
plugin      the pytest fixtures; nothing else here needs pytest

Each function takes a `Run` and returns it, reloaded.
"""

from __future__ import annotations

from pgbus.testing.fan_out import complete_fan_out
from pgbus.testing.steps import perform_next_step, run_step_inline, speedrun
from pgbus.testing.waits import deliver_signal, expire_wait

__all__ = [
    "complete_fan_out",
    "deliver_signal",
    "expire_wait",
    "perform_next_step",
    "run_step_inline",
    "speedrun",
]
