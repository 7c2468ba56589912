"""What an action answered is kept for the next page, within what a cookie holds."""

from __future__ import annotations

import json

import pytest
from flask import Flask, session

from pgbus.dashboard import toasts
from pgbus.dashboard.toasts import LIVE_HEADER, Toast


@pytest.fixture
def site():
    site = Flask("host")
    site.secret_key = "k"
    return site


def test_an_outcome_is_shown_once_on_its_own_dashboard(site):
    with site.test_request_context():
        toasts.add("pgbus", Toast("good", "done"))
        assert toasts.taken("second") == ()
        assert toasts.taken("pgbus") == (Toast("good", "done"),)
        assert toasts.taken("pgbus") == ()


def test_a_page_that_refreshes_itself_leaves_the_outcome_to_the_next_one(site):
    with site.test_request_context(headers={LIVE_HEADER: "1"}):
        toasts.add("pgbus", Toast("good", "done"))
        assert toasts.taken("pgbus") == ()
        assert session


@pytest.mark.parametrize("text", ["x" * 9000, "佐藤" * 3000, "🚀" * 3000])
def test_the_longest_outcomes_fit_a_cookie_in_any_script(site, text):
    with site.test_request_context():
        for _ in range(5):
            toasts.add("pgbus", Toast("bad", text))
        assert len(json.dumps(dict(session))) < 3000
        shown = toasts.taken("pgbus")
        assert [toast.text[:80] for toast in shown] == [text[:80]] * 2
        assert shown[0].text.endswith("…")


def test_a_short_outcome_is_kept_whole(site):
    with site.test_request_context():
        toasts.add("pgbus", Toast("bad", "é" * 100))
        assert toasts.taken("pgbus")[0].text == "é" * 100
