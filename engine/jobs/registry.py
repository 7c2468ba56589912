"""The loaded jobs by their dotted names; a name from data is only looked up here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import UnknownJob

if TYPE_CHECKING:
    from pgbus.engine.jobs.job import Job

_jobs: dict[str, Job[..., Any]] = {}


def register(job: Job[..., Any]) -> None:
    """Make a job known; one declared again under the same name takes its place."""
    _jobs[job.name] = job


def find(name: str) -> Job[..., Any]:
    """Return the job of this dotted name; `UnknownJob` when no loaded module declares it."""
    try:
        return _jobs[name]
    except KeyError:
        raise UnknownJob(
            f"no module loaded here declares the job {name}; "
            "import its module where your application is set up"
        ) from None


def queues() -> set[str]:
    """Return the logical queues that the loaded jobs name."""
    return {job.queue for job in _jobs.values()}
