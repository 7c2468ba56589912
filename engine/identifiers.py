"""Ids that are made here, not by the database, so that a retried statement names the same thing."""

from __future__ import annotations

import secrets
import time
import uuid


def new_uuid() -> str:
    """Return a UUIDv7 (RFC 9562): milliseconds since 1970, then random bits; in order of time."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | secrets.randbits(80)
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=value))
