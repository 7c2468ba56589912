"""Durable workflows and jobs on the PostgreSQL you already have."""

from pgbus.engine.bus import Pgbus
from pgbus.engine.definition.guard import cancel_if
from pgbus.engine.definition.members import FanOut
from pgbus.engine.definition.policy import on_exception
from pgbus.engine.definition.scope import StepContext
from pgbus.engine.definition.signal import SignalMatcher, signal_type
from pgbus.engine.definition.step import fan_out, removed_step, step
from pgbus.engine.definition.workflow import Workflow
from pgbus.engine.errors import (
    AlreadyFinished,
    AlreadyRunning,
    AmbiguousBus,
    AttemptLost,
    BatchNotFound,
    CommitRefused,
    DefinitionError,
    FanOutFailed,
    InvalidSetting,
    InvalidTransition,
    JobCrashed,
    NoBus,
    NoSignal,
    NotInStep,
    NotOngoing,
    NotPaused,
    PayloadError,
    PayloadTooLarge,
    PgbusError,
    RunLocked,
    RunNotFound,
    SchemaOutdated,
    SignalKeyReused,
    StepNotDefined,
    StepStalled,
    StepWaiting,
    SubjectGone,
    UnknownJob,
    UnknownSubject,
    WaitTimedOut,
    WrongDatabase,
)
from pgbus.engine.jobs.batch import Batch
from pgbus.engine.jobs.delivery import current_delivery
from pgbus.engine.jobs.job import job
from pgbus.engine.runner.run import Run
from pgbus.engine.subjects import register_subject

__all__ = [
    "AlreadyFinished",
    "AlreadyRunning",
    "AmbiguousBus",
    "AttemptLost",
    "Batch",
    "BatchNotFound",
    "CommitRefused",
    "DefinitionError",
    "FanOut",
    "FanOutFailed",
    "InvalidSetting",
    "InvalidTransition",
    "JobCrashed",
    "NoBus",
    "NoSignal",
    "NotInStep",
    "NotOngoing",
    "NotPaused",
    "PayloadError",
    "PayloadTooLarge",
    "Pgbus",
    "PgbusError",
    "Run",
    "RunLocked",
    "RunNotFound",
    "SchemaOutdated",
    "SignalKeyReused",
    "SignalMatcher",
    "StepContext",
    "StepNotDefined",
    "StepStalled",
    "StepWaiting",
    "SubjectGone",
    "UnknownJob",
    "UnknownSubject",
    "WaitTimedOut",
    "Workflow",
    "WrongDatabase",
    "cancel_if",
    "current_delivery",
    "fan_out",
    "job",
    "on_exception",
    "register_subject",
    "removed_step",
    "signal_type",
    "step",
]
