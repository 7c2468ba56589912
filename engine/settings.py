"""The settings of a bus: keywords first, then `PGBUS_*` variables, then defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar
from zoneinfo import ZoneInfo

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from pgbus.engine.errors import DefinitionError, InvalidSetting
from pgbus.engine.queues import check_queue_name
from pgbus.engine.states import StallAction

_VARIABLE = "PGBUS_"
_RESERVED = re.compile(r"PGBUS_(APP|REVISION|DASHBOARD_.*|MCP_(?!WRITE_TOOLS$).*|TEST_.*)")
_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[smhd]?)")
_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True}
_BOOLEANS |= {"false": False, "0": False, "no": False, "off": False}

_METRICS_BACKENDS = ("prometheus", "statsd", "opentelemetry")
_METRICS_METHODS = ("count", "observe", "gauge")
_MAX_PORT = 65_535

T = TypeVar("T")

#: Largest element of a jsonb document.
_MAX_JSONB = 2**28 - 1


# A parser takes a keyword's value or a variable's text, gives the setting's value, and raises
# ValueError with what is wrong, never with the value of a URL: that may hold a password.


def _url(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a str, not {type(value).__name__}")  # noqa: TRY004 # a parser's
    scheme = value.partition("://")[0] if "://" in value else ""
    if scheme not in _SCHEMES:
        raise ValueError(
            f"must begin with postgresql://, not {scheme + '://' if scheme else 'without a scheme'}"
            " (pgbus connects with psycopg 3; your own sessions may use any driver)"
        )
    try:
        url = make_url(value)
    except (ArgumentError, ValueError):
        raise ValueError("is no URL of the form postgresql://user:password@host:port/db") from None
    return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def _identifier(value: object, *, longest: int) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", value):
        raise ValueError(
            f"{value!r} must be lower-case letters, digits and underscores, beginning with a letter"
        )
    if len(value) > longest:
        raise ValueError(f"{value!r} has {len(value)} characters; at most {longest} are allowed")
    return value


def _schema(value: object) -> str:
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 # a tenth of `import pgbus`

    schema = _identifier(value, longest=63)
    if schema in ("pgmq", "information_schema") or schema.startswith("pg_"):
        raise ValueError(f"{value!r} belongs to PostgreSQL or PGMQ; choose another name")
    if postgresql.dialect().identifier_preparer.quote(schema) != schema:  # type: ignore[no-untyped-call]
        raise ValueError(f"{value!r} is a reserved word of SQL; choose another name")
    return schema


def _queue_prefix(value: object) -> str:
    return _identifier(value, longest=30)


def _queue(value: object) -> str:
    try:
        check_queue_name(value)
    except DefinitionError as error:
        raise ValueError(str(error)) from None
    return str(value)


def _queues(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, Iterable):
        raise ValueError(f"{value!r} must be names, as a list or separated by commas")  # noqa: TRY004 # a parser's
    return tuple(dict.fromkeys(_queue(name) for name in names))


def _integer(least: int, most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{value!r} must be a whole number from {least} to {most}")
        return value

    return parse


def _duration(least: timedelta) -> Callable[[object], timedelta]:
    def parse(value: object) -> timedelta:
        duration = _as_timedelta(value)
        if duration is None:
            raise ValueError(
                f"{value!r} must be a timedelta, a number of seconds, or text like '90s', '15m', "
                "'1h', '7d'"
            )
        if duration < least:
            raise ValueError(f"{value!r} must be at least {least.total_seconds():g} seconds")
        return duration

    return parse


def _as_timedelta(value: object) -> timedelta | None:
    unit = "seconds"
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        value, unit = float(match["number"]), _UNITS[match["unit"]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return timedelta(**{unit: value})
        except (OverflowError, ValueError):
            return None
    return value if isinstance(value, timedelta) else None


def _boolean(value: object) -> bool:
    parsed = _BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(parsed, bool):
        raise ValueError(f"{value!r} must be true or false")  # noqa: TRY004 # a parser's
    return parsed


def _choice(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} must be one of {', '.join(choices)}")
        return str(value)

    return parse


def _stall_action(value: object) -> StallAction:
    return StallAction(_choice(*StallAction)(value))


def _zone(value: object) -> str:
    try:
        return ZoneInfo(value).key  # type: ignore[arg-type] # whatever it is, it is refused
    except (KeyError, ValueError, TypeError, OSError):
        raise ValueError(
            f"{value!r} is no time zone known here; write e.g. 'Europe/Paris'"
        ) from None


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{value!r} must be a line of text")
    return value


def _optional(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else parse(value)


def _or_none(parse: Callable[[object], timedelta]) -> Callable[[object], timedelta | None]:
    def parsed(value: object) -> timedelta | None:
        absent = value is None or (isinstance(value, str) and value.strip().lower() == "none")
        return None if absent else parse(value)

    return parsed


_INSTANT = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)


def _metrics_backend(value: object) -> object:
    if value is None or (isinstance(value, str) and value in _METRICS_BACKENDS):
        return value
    if not all(callable(getattr(value, method, None)) for method in _METRICS_METHODS):
        raise ValueError(
            f"{value!r} must be one of {', '.join(_METRICS_BACKENDS)}, or an object with the methods "
            f"{', '.join(_METRICS_METHODS)}"
        )
    return value


_PARSERS: dict[str, Callable[[object], object]] = {
    "database_url": _url,
    "listen_url": _optional(_url),
    "schema": _schema,
    "queue_prefix": _queue_prefix,
    "workflow_queue": _queue,
    "workflow_retention": _or_none(_duration(_INSTANT)),
    "workflow_sweep_interval": _duration(_INSTANT),
    "workflow_stall_threshold": _duration(_INSTANT),
    "workflow_stall_action": _stall_action,
    "workflow_waiting_visibility_threshold": _duration(_INSTANT),
    "workflow_max_payload_size": _integer(1, _MAX_JSONB),
    "workflow_error_backtrace_lines": _integer(0, 10_000),
    "workers": _integer(1, 1_000),
    "threads": _integer(1, 1_000),
    "queues": _queues,
    "visibility_timeout": _duration(_SECOND),
    "visibility_heartbeat": _boolean,
    "polling_interval": _duration(_INSTANT),
    "shutdown_timeout": _duration(_INSTANT),
    "batch_retention": _or_none(_duration(_INSTANT)),
    "archive_retention": _or_none(_duration(_INSTANT)),
    "prepared_statements": _boolean,
    "app_revision": _optional(_text),
    "time_zone": _zone,
    "log_format": _choice("text", "json"),
    "tracing": _boolean,
    "metrics_backend": _metrics_backend,
    "metrics_enabled": _boolean,
    "metrics_port": _optional(_integer(1, _MAX_PORT)),
    "statsd_host": _text,
    "statsd_port": _integer(1, _MAX_PORT),
    "mcp_write_tools": _boolean,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one bus, each checked: a bad one raises `InvalidSetting`.

    Durations are given as `timedelta`, as a number of seconds, or as text like "15m" (s, m, h,
    d), and are always `timedelta` here; a retention may also be None (as text "none"), which
    keeps everything. URLs are in the form SQLAlchemy opens with psycopg 3,
    and not part of the repr. Without `listen_url`, LISTEN goes to `database_url`; without
    `queues`, a worker serves all that its bus knows. Set `prepared_statements` to false behind
    a transaction pooler that does not keep them (PgBouncer before 1.21).
    """

    database_url: str = field(repr=False)
    listen_url: str | None = field(default=None, repr=False)
    schema: str = "pgbus"
    queue_prefix: str = "pgbus"
    workflow_queue: str = "workflows"
    workflow_retention: timedelta | None = timedelta(days=30)
    workflow_sweep_interval: timedelta = timedelta(seconds=60)
    workflow_stall_threshold: timedelta = timedelta(hours=1)
    workflow_stall_action: StallAction = StallAction.PAUSE
    workflow_waiting_visibility_threshold: timedelta = timedelta(days=7)
    workflow_max_payload_size: int = 131_072
    workflow_error_backtrace_lines: int = 20
    workers: int = 1
    threads: int = 8
    queues: tuple[str, ...] = ()
    visibility_timeout: timedelta = timedelta(seconds=30)
    visibility_heartbeat: bool = True
    polling_interval: timedelta = timedelta(seconds=1)
    shutdown_timeout: timedelta = timedelta(seconds=25)
    batch_retention: timedelta | None = timedelta(days=7)
    archive_retention: timedelta | None = timedelta(days=7)
    prepared_statements: bool = True
    app_revision: str | None = None
    time_zone: str = "UTC"
    log_format: Literal["text", "json"] = "text"
    tracing: bool = False
    metrics_backend: object = None
    metrics_enabled: bool = True
    metrics_port: int | None = None
    statsd_host: str = "127.0.0.1"
    statsd_port: int = 8125
    mcp_write_tools: bool = False

    @classmethod
    def load(cls, environ: Mapping[str, str], /, **keywords: object) -> Settings:
        """Return the settings that keywords, then `PGBUS_*` variables, then defaults give.

        An empty variable counts as absent. Raise `InvalidSetting` for a setting or variable that
        does not exist, the variables reserved for other parts of pgbus aside.
        """
        for name in keywords.keys() - _PARSERS.keys():
            raise InvalidSetting(name, _unknown(name, _PARSERS))
        given = {**_from_variables(environ), **keywords}
        if "database_url" not in given:
            raise InvalidSetting("database_url", "is required; pass it or set PGBUS_DATABASE_URL")
        given.setdefault("app_revision", _found_revision(environ))
        return cls(**given)  # type: ignore[arg-type] # __post_init__ checks every value

    def __post_init__(self) -> None:
        for name, parse in _PARSERS.items():
            try:
                value = parse(getattr(self, name))
            except ValueError as problem:
                raise InvalidSetting(name, str(problem)) from None
            object.__setattr__(self, name, value)
        self._check_names_beside_the_prefix()
        if self.metrics_port is not None and self.metrics_backend != "prometheus":
            raise InvalidSetting(
                "metrics_port", "is where Prometheus asks; set metrics_backend to 'prometheus', too"
            )

    def _check_names_beside_the_prefix(self) -> None:
        named = [("workflow_queue", self.workflow_queue), *(("queues", one) for one in self.queues)]
        for setting, queue in named:
            try:
                check_queue_name(queue, prefix=self.queue_prefix)
            except DefinitionError as error:
                raise InvalidSetting(setting, str(error)) from None


def _from_variables(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the values that the environment sets, by setting."""
    settings = {_VARIABLE + name.upper(): name for name in _PARSERS}
    given = {
        variable: text
        for variable, text in environ.items()
        if variable.startswith(_VARIABLE) and not _RESERVED.fullmatch(variable) and text
    }
    for variable in given.keys() - settings.keys():
        raise InvalidSetting(variable, _unknown(variable, settings))
    return {settings[variable]: text for variable, text in given.items()}


def _unknown(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"does not exist; did you mean {close[0]}?" if close else "does not exist"


def _found_revision(environ: Mapping[str, str]) -> str | None:
    """Return what the deployment left behind: a variable, or a REVISION file."""
    named = environ.get("PGBUS_REVISION") or environ.get("GIT_REVISION")
    if named:
        return named
    try:
        return Path("REVISION").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
