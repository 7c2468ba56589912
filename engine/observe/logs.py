"""Log records on standard error, each with the attempt it was made in."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal

from pgbus.engine.definition.scope import StepContext


def configure(log_format: Literal["text", "json"]) -> None:
    """Send records, from INFO on, to standard error, unless the application configured logging."""
    handler = logging.StreamHandler()
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
        if step := StepContext.current():
            entry |= asdict(step)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


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
        return line
