"""Log records on standard error, each with the step or job it was made in."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Literal

from pgbus.engine.definition.delivery import JobDelivery, current_delivery
from pgbus.engine.definition.scope import StepContext

_CONTEXT = [field.name for context in (StepContext, JobDelivery) for field in fields(context)]


class LogContext(logging.Filter):
    """A filter for a handler: gives each record the attributes of the step or job it was made in.

    A step's are `workflow_id`, `workflow_class`, `step` and `attempt`, a job's `job`, `queue`,
    `message_id` and `read_count`. Any other record is left as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        for context in (StepContext.current(), current_delivery()):
            if context is not None:
                for name, value in asdict(context).items():
                    record.__dict__.setdefault(name, value)
        return True


def configure(log_format: Literal["text", "json"]) -> None:
    """Send records, from INFO on, to standard error, unless the application configured logging."""
    handler = logging.StreamHandler()
    handler.addFilter(LogContext())
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        told = vars(record)
        entry |= {name: told[name] for name in _CONTEXT if name in told}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _Text(logging.Formatter):
    """A line for people; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        line = super().formatMessage(record)
        if step := StepContext.current():
            line += (
                f" [{step.workflow_class} {step.workflow_id} {step.step}, attempt {step.attempt}]"
            )
        if job := current_delivery():
            line += f" [{job.job}, delivery {job.read_count} of message {job.message_id}]"
        return line
