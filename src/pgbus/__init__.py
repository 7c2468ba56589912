"""Durable workflows and jobs on the PostgreSQL you already have."""

from pgbus.engine.bus import Pgbus
from pgbus.engine.definition.guard import cancel_if
from pgbus.engine.definition.policy import on_exception
from pgbus.engine.definition.scope import StepContext
from pgbus.engine.definition.step import removed_step, step
from pgbus.engine.definition.workflow import Workflow
from pgbus.engine.errors import (
    AlreadyRunning,
    AmbiguousBus,
    AttemptLost,
    CommitRefused,
    DefinitionError,
    InvalidSetting,
    InvalidTransition,
    JobCrashed,
    NoBus,
    NotInStep,
    NotPaused,
    PayloadError,
    PayloadTooLarge,
    PgbusError,
    RunLocked,
    RunNotFound,
    SchemaOutdated,
    StepNotDefined,
    StepStalled,
    SubjectGone,
    UnknownJob,
    UnknownSubject,
    WrongDatabase,
)
from pgbus.engine.jobs.delivery import current_delivery
from pgbus.engine.jobs.job import job
from pgbus.engine.runner.run import Run
from pgbus.engine.subjects import register_subject

__all__ = [
    "AlreadyRunning",
    "AmbiguousBus",
    "AttemptLost",
    "CommitRefused",
    "DefinitionError",
    "InvalidSetting",
    "InvalidTransition",
    "JobCrashed",
    "NoBus",
    "NotInStep",
    "NotPaused",
    "PayloadError",
    "PayloadTooLarge",
    "Pgbus",
    "PgbusError",
    "Run",
    "RunLocked",
    "RunNotFound",
    "SchemaOutdated",
    "StepContext",
    "StepNotDefined",
    "StepStalled",
    "SubjectGone",
    "UnknownJob",
    "UnknownSubject",
    "Workflow",
    "WrongDatabase",
    "cancel_if",
    "current_delivery",
    "job",
    "on_exception",
    "register_subject",
    "removed_step",
    "step",
]
