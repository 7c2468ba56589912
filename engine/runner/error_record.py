"""An exception as it is recorded on an attempt. Recording a failure cannot fail."""

from __future__ import annotations

import json
import site
import sysconfig
import traceback
from collections import deque
from typing import TYPE_CHECKING

from pgbus.engine.codec import storable
from pgbus.engine.decision import ErrorEntry
from pgbus.engine.definition.policy import qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE_LENGTH = 10_000
_CAUSES = 10
_LIBRARIES = tuple(
    {
        path
        for path in (
            sysconfig.get_path("stdlib"),
            sysconfig.get_path("platstdlib"),
            sysconfig.get_path("purelib"),
            sysconfig.get_path("platlib"),
            *site.getsitepackages(),
        )
        if path
    }
)
_OWN = __file__.rpartition("runner")[0]


def record_error(error: BaseException, *, backtrace_lines: int) -> ErrorEntry:
    """Return the error's class, message, backtrace and causes, as text PostgreSQL can store."""
    return ErrorEntry(
        qualified_name(type(error)),
        _message(error),
        json.dumps(
            {
                "backtrace": _backtrace(error, backtrace_lines),
                "causes": [
                    {
                        "class": qualified_name(type(cause)),
                        "message": _message(cause),
                        "backtrace": _backtrace(cause, backtrace_lines),
                    }
                    for cause in _causes(error)
                ],
            }
        ),
        error,
    )


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 (the host's __str__; a failure is recorded whatever it does)
        text = f"<unprintable: its __str__ raised {type(broken).__qualname__}>"
    return storable(text[:MESSAGE_LENGTH])


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    behind = deque(_behind(error))
    while behind and len(seen) <= _CAUSES:
        cause = behind.popleft()
        if id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            behind.extend(_behind(cause))


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield what a group holds, and the cause or else the context."""
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions
    if error.__cause__ is not None:
        yield error.__cause__
    elif error.__context__ is not None and not error.__suppress_context__:
        yield error.__context__


def _backtrace(error: BaseException, lines: int) -> list[str]:
    """Return the host's frames, the innermost first; all frames when none is the host's."""
    frames = list(traceback.walk_tb(error.__traceback__))[::-1]
    texts = [
        (frame.f_code.co_filename, f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}")
        for frame, line in frames
    ]  # fmt: skip
    own = [text for file, text in texts if not _is_library(file)]
    return [storable(text) for text in (own or [text for _, text in texts])[:lines]]


def _is_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, _OWN, "<frozen"))
