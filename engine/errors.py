"""Every error pgbus raises, under one root.

PgbusError
├── InvalidSetting                 a setting is unknown or has a bad value
├── NoBus, AmbiguousBus            which bus a call belongs to cannot be told
├── DefinitionError                a workflow class or a job is declared wrongly
├── SchemaOutdated                 the database is not migrated to this code
├── WrongDatabase                  a host session cannot be joined (another database)
├── PayloadError                   a value cannot be stored as a JSON document
│   └── PayloadTooLarge
├── UnknownSubject                 a subject's type is unregistered, or its key unusable
├── AlreadyRunning                 the subject has an ongoing run of this class
├── InvalidTransition              the run's state does not allow the verb
│   ├── NotPaused
│   ├── NotOngoing                 a signal to a run that is over, or for a subject without one
│   └── RunMoved                   the run is not where the caller saw it any more
├── SignalKeyReused                a signal's idempotency key was used for another name
├── AlreadyFinished                a job is added to a batch, or builder, that takes no more
├── BatchNotFound                  the batch does not exist (any more)
├── QueueNotFound                  no queue has this name
├── MessageNotFound                the queue has no such message (any more)
├── BadCursor                      a text is no place in a list (a ValueError too)
├── DatabaseAway                   PostgreSQL cannot be reached just now
├── ReadTimeout                    what a page asks takes longer than it waits
├── RunNotFound                    the run does not exist (any more)
├── EntryNotFound                  the run's history has no such entry
├── ClassNotFound                  no class and no run has this name
├── RunLocked                      another transaction has held the run's lock too long
├── StepNotDefined                 the class does not declare (or load) the step
├── NotInStep                      a reader or verb of a step body used outside one
├── CommitRefused                  a transactional step's body commits by itself
├── SubjectGone                    the subject's record no longer exists
├── NoSignal                       the step runs without a signal
├── FanOutFailed                   recorded on a fan_out whose batch has failed members
├── WaitTimedOut                   recorded on an attempt whose wait passed its deadline
├── StepWaiting                    a test helper came to a step that waits
├── StepStalled                    recorded on an attempt whose worker died or hung
├── AttemptLost                    raised in a body whose attempt was taken away
├── UnknownJob                     a message names a job that is not declared here
└── JobCrashed                     recorded on a job whose worker died in its last execution
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgbus.engine.runner.run import Run


class PgbusError(Exception):
    """The root of every error that pgbus raises."""


class InvalidSetting(PgbusError):
    """A setting is unknown or its value is not allowed; `setting` names it."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"Setting {setting}: {problem}")
        self.setting = setting


class NoBus(PgbusError):
    """No bus exists in this process, or none is active."""


class AmbiguousBus(PgbusError):
    """Several buses exist and none is active."""


class DefinitionError(PgbusError):
    """A workflow class, a step or a job is declared in a way that cannot work."""


class SchemaOutdated(PgbusError):
    """The database's schema is missing or not the one this code needs."""


class WrongDatabase(PgbusError):
    """A `session=` cannot be joined: it is of another database, or has no transaction."""


class PayloadError(PgbusError):
    """A value cannot be stored; `path` says where it stands in the document."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class PayloadTooLarge(PayloadError):
    """An encoded document exceeds `workflow_max_payload_size`."""


class UnknownSubject(PgbusError):
    """A subject's type is not registered, or a subject or its stored id has no usable key."""


class AlreadyRunning(PgbusError):
    """The subject already has an ongoing run of this class; `run` is that run."""

    def __init__(self, message: str, *, run: Run) -> None:
        super().__init__(message)
        self.run = run


class InvalidTransition(PgbusError):
    """A verb is not allowed in the state its run is in; `status` is that state, None without a run."""

    def __init__(self, message: str, *, status: str | None) -> None:
        super().__init__(message)
        self.status = status


class NotPaused(InvalidTransition):
    """`resume` or `resume_at` of a run that is not paused."""


class NotOngoing(InvalidTransition):
    """A signal to a run that is over, or for a subject that has no ongoing run."""


class RunMoved(InvalidTransition):
    """A verb with `if_unmoved`, of a run that something has moved since it was read."""


class SignalKeyReused(PgbusError):
    """A signal's idempotency key was used before, for a signal of another name."""


class AlreadyFinished(PgbusError):
    """The batch has finished or was withdrawn, or its block has ended: it takes no more jobs."""


class BatchNotFound(PgbusError):
    """No batch has this id (any more)."""


class QueueNotFound(PgbusError):
    """No queue has this name, or none of the kind that is asked for."""


class MessageNotFound(PgbusError):
    """The queue has no message of this id (any more)."""


class BadCursor(PgbusError, ValueError):
    """A text is no place in a list that a page of it gave."""


class DatabaseAway(PgbusError):
    """PostgreSQL cannot be reached, or cannot answer just now; the same question may work later."""


class ReadTimeout(PgbusError):
    """PostgreSQL took too long over what a page asks of it: ask less."""


class RunNotFound(PgbusError):
    """No run has this id."""


class EntryNotFound(PgbusError):
    """The run's history has no attempt or signal of this id."""


class ClassNotFound(PgbusError):
    """No loaded module declares a workflow class of this name, and no run has it."""


class RunLocked(PgbusError):
    """Another transaction holds the run's lock for longer than a verb waits; try again."""


class StepNotDefined(PgbusError):
    """The step is not declared by the run's class, or that class is not loaded."""


class NotInStep(PgbusError):
    """A reader or verb that belongs in a step body was used outside one."""


class CommitRefused(PgbusError):
    """The body of a transactional step commits its session, which is the engine's to commit."""


class SubjectGone(PgbusError):
    """The run's subject no longer exists, or the run has none."""


class NoSignal(PgbusError):
    """The step waits for no signal, or its wait timed out and its body runs without one."""


class FanOutFailed(PgbusError):
    """Members of a fan-out's batch were dead-lettered or discarded, or the batch is gone."""


class WaitTimedOut(PgbusError):
    """No signal came before the deadline of the step's wait."""


class StepWaiting(PgbusError):
    """The run waits; the message names for what, and the test helper that moves it on."""


class StepStalled(PgbusError):
    """The attempt's worker died, or the attempt ran past its timeout."""


class AttemptLost(PgbusError):
    """The body's attempt was stalled or cancelled; what it does no longer counts."""


class UnknownJob(PgbusError):
    """A message names a job that no loaded module declares."""


class JobCrashed(PgbusError):
    """The job was delivered more often than it may be executed: its worker died each time."""
