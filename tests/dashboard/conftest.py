"""The dashboard in a small Flask application, on the test's bus."""

from __future__ import annotations

import pytest
from support.sites import dialog_of, hidden_fields, site_of

from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage.claims import Idle


@pytest.fixture
def make_site(bus):
    """Makes an application with the dashboard at /pgbus; its keywords are those of `site_of`."""

    def make(**settings):
        return site_of(bus, **settings)

    return make


@pytest.fixture
def site(make_site):
    return make_site()


@pytest.fixture
def client(site):
    return site.test_client()


@pytest.fixture
def press(client):
    """Posts a form as a page would: with the token that the page at `on` carries."""

    def press(path, on="/pgbus/workflows", **fields):
        token = hidden_fields(client.get(on).text)["csrf_token"]
        return client.post(path, data={"csrf_token": token, **fields})

    return press


@pytest.fixture
def work(bus, driver):
    """Takes jobs until none is due, or so many, and executes them."""

    def work(most=1000):
        for _ in range(most):
            taken = driver.take()
            if isinstance(taken, Idle):
                return
            for delivery in taken:
                execute(bus.services, delivery)

    return work


@pytest.fixture
def read(client):
    """The page at an address."""

    def read(path, status=200):
        answer = client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    return read


@pytest.fixture
def confirm(client, read):
    """Opens the dialog at an address, sends its form with some fields changed, and reads what comes then."""

    def confirm(address, **changed):
        asked = dialog_of(read(address))
        answer = client.post(asked.action, data=asked.fields | changed)
        assert answer.status_code == 303, answer.text
        return read(answer.location)

    return confirm
