"""Durable workflows and jobs on the PostgreSQL you already have."""

from pgbus.engine.bus import Pgbus
from pgbus.engine.definition.guard import cancel_if
from pgbus.engine.definition.policy import on_exception
from pgbus.engine.definition.scope import StepContext
from pgbus.engine.definition.step import removed_step, step
from pgbus.engine.definition.workflow import Workflow
from pgbus.engine.jobs.delivery import current_delivery
from pgbus.engine.jobs.job import job
from pgbus.engine.runner.run import Run
from pgbus.engine.subjects import register_subject

__all__ = [
    "Pgbus",
    "Run",
    "StepContext",
    "Workflow",
    "cancel_if",
    "current_delivery",
    "job",
    "on_exception",
    "register_subject",
    "removed_step",
    "step",
]
