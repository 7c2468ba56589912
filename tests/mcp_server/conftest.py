"""The tools of the test's bus, over HTTP."""

from __future__ import annotations

import pytest
from support.assistants import Assistant, listening

from pgbus.mcp_server.http import create_app

TOKEN = "a long secret"


@pytest.fixture
def app_options():
    """What else the application is made with; a module overrides it."""
    return {}


@pytest.fixture
def url(bus, app_options):
    with listening(create_app(bus, token=TOKEN, **app_options)) as url:
        yield url


@pytest.fixture
def assistant(url):
    """A client called "claude" that has the token."""
    return Assistant(url, authorization=f"Bearer {TOKEN}")
