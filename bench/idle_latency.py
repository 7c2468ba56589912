"""The time from a start here to its body in another, idle process, and how it is sampled."""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.probe import Probe

WARM_UP, SAMPLES = 20, 100


def sample(start: Callable[[], object], probe: Probe) -> dict[str, float]:
    """Return median and p95 in ms from calling `start`, which commits, to the body's report.

    The pauses between starts are random, so that no poll falls into step with them.
    """
    pause = threading.Event()
    delays = []
    for _ in range(WARM_UP + SAMPLES):
        pause.wait(random.uniform(0.03, 0.08))
        began = time.time()
        start()
        committed = time.time()
        body = probe.next()
        delays.append(((body - began) * 1000, (body - committed) * 1000))
    whole, after_commit = zip(*delays[WARM_UP:], strict=True)
    return {
        "median_ms": statistics.median(whole),
        "p95_ms": statistics.quantiles(whole, n=20)[-1],
        "after_commit_median_ms": statistics.median(after_commit),
        "after_commit_p95_ms": statistics.quantiles(after_commit, n=20)[-1],
    }
