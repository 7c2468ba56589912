"""The console's own files and Plotly's script, each under an address that changes with its content."""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib.metadata import version as installed
from importlib.resources import files
from typing import TYPE_CHECKING

from flask import Response, request

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pgbus.dashboard.console import Console

_STATIC = files("pgbus.dashboard") / "static"
_PLOTLY = "plotly.js"
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FOREVER = "private, max-age=31536000, immutable"


def serve(_console: Console, version: str, name: str) -> Response | None:
    """Return the file, None when there is none of this name.

    One that is asked for under a version of another release is not kept by the browser.
    """
    if name not in _names():
        return None
    zipped = request.accept_encodings.quality("gzip") > 0
    response = Response(_zipped(name) if zipped else _content(name))
    response.mimetype = _TYPES[name.rpartition(".")[2]]
    response.headers["Vary"] = "Accept-Encoding"
    if zipped:
        response.headers["Content-Encoding"] = "gzip"
    response.headers["Cache-Control"] = _FOREVER if version == digest() else "no-store"
    return response


@functools.cache
def digest() -> str:
    """Return a short text that tells these files from those of any other release."""
    content = [(_STATIC / name).read_bytes() for name in sorted(_names() - {_PLOTLY})]
    return hashlib.sha256(b"".join([*content, installed("plotly").encode()])).hexdigest()[:12]


@functools.cache
def _names() -> frozenset[str]:
    return frozenset({_PLOTLY, *(entry.name for entry in _STATIC.iterdir() if entry.is_file())})


def _source(name: str) -> Traversable:
    if name == _PLOTLY:
        return files("plotly") / "package_data" / "plotly.min.js"
    return _STATIC / name


def _content(name: str) -> bytes:
    return _source(name).read_bytes()


@functools.cache
def _zipped(name: str) -> bytes:
    """Compressed once: Plotly's 4.8 MB take a quarter of a second."""
    return gzip.compress(_content(name), compresslevel=6, mtime=0)
