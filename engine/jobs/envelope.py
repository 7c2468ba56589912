"""The JSON object that a job's message is.

    {"job": "shop.mail.notify_vendor", "arguments": {"args": [7], "kwargs": {"copy": true}}}

With traces on it has `"trace": "00-..."` besides.
A batch's fifth member has `"batch": ["01890a5d-...", 5]` besides, which only the database reads.
A message may come from anywhere, so reading one trusts nothing; `PayloadError` says what it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pgbus.engine import codec
from pgbus.engine.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgbus.engine.subjects import SubjectReference


def encode(job: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, limit: int) -> str:
    """Return the message of a call; `limit` bytes are allowed for its arguments."""
    arguments = codec.encode(
        {"args": list(args), "kwargs": dict(kwargs)}, name="arguments", limit=limit
    )
    return f'{{"job":{json.dumps(job)},"arguments":{arguments}}}'


def job_name(body: str) -> str:
    """Return the name of the job that a message is for."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PayloadError("message", f"cannot be read: {error}") from error
    match document:
        case {"job": str(name)}:
            return name
    raise _no_envelope(body)


def trace(body: str) -> str | None:
    """Return what the job's span is a child of, as its sender told; None when it did not."""
    match json.loads(body):
        case {"trace": str(told)}:
            return told
    return None


def arguments(
    body: str, *, load: Callable[[SubjectReference], object]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments, subjects as what `load` returns."""
    match codec.decode(body, load=load):
        case {"arguments": {"args": list(args), "kwargs": dict(kwargs)}}:
            return args, kwargs
    raise _no_envelope(body)


def _no_envelope(body: str) -> PayloadError:
    return PayloadError(
        "message",
        f"{body:.200} is no job's envelope "
        '{"job": ..., "arguments": {"args": [...], "kwargs": {...}}}; send jobs with enqueue()',
    )
