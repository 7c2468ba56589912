"""The form that sends a signal: what is sent, and what of a refused form is told and kept."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from datetime import timedelta
from html import unescape

import pytest
from itsdangerous import TimestampSigner
from support.operators import Operator, address, by_name
from support.sites import hidden_fields, visible_text

from pgbus import SignalMatcher, Workflow, signal_type, step
from pgbus.engine.definition import registry

LIMIT = 2000


@dataclass
class Shipment:
    carrier: str
    weight: float = 0.0


def is_odd(payload):
    return payload["number"] % 2


class Shipping(Workflow):
    @step(wait_for="shipped", wait_timeout=timedelta(hours=3))
    def await_shipment(self): ...

    @step
    def close(self): ...

    @step(wait_for=signal_type("delivered", Shipment))
    def await_delivery(self): ...


class Numbered(Workflow):
    @step(wait_for=SignalMatcher("number", is_odd))
    def await_number(self): ...


class Deaf(Workflow):
    @step
    def only(self): ...


@pytest.fixture
def bus_options():
    return {"workflow_max_payload_size": LIMIT}


@pytest.fixture
def alice(make_site):
    return Operator(make_site(web_actor=by_name))


@pytest.fixture
def waiting(driver):
    """A run that waits for the signal `shipped`."""
    run = Shipping.start()
    driver.drain()
    return run.reload()


def refused(operator, answer):
    """The form as it came back, in place of the page."""
    assert answer.status_code == 422
    operator.html = answer.text
    return operator.form("signal")


def field(form, name):
    """What stands in a field of a form."""
    found = re.search(rf'<input[^>]* name="{name}"[^>]* value="([^"]*)"', form)
    found = found or re.search(
        rf'<textarea[^>]* name="{name}"[^>]*>\n(.*?)</textarea>', form, re.DOTALL
    )
    return unescape(found.group(1))


def problem(form):
    """What is said to be wrong, with which field."""
    ((name, text),) = re.findall(r'<p class="err" id="s-(\w+)-err"><svg.*?</svg> (.*?)</p>', form)
    return name, unescape(text)


def test_the_awaited_signal_is_the_likeliest_action_and_its_name_is_filled_in(alice, waiting):
    form = alice.open(waiting).form("signal")
    assert 'class="btn primary" href="#s-name"' in alice.html
    assert field(form, "name") == "shipped"
    assert re.findall(r"<option>(.*?)</option>", form) == ["shipped", "delivered"]
    assert "Then await_shipment runs, and after it close." in alice.said("signal")


def test_the_name_is_filled_in_when_the_class_waits_for_one_only(alice):
    assert field(alice.open(Numbered.start()).form("signal"), "name") == "number"
    assert field(alice.open(Shipping.start()).form("signal"), "name") == ""


def test_the_signal_is_sent_and_the_step_runs_with_it(alice, waiting, driver):
    alice.open(waiting)
    answer = alice.press(
        waiting, "signal", name=" shipped ", payload='{"carrier": "DHL"}', reason=" by phone "
    )
    tone, text = alice.told(answer)
    assert tone == "good"
    assert text == (
        "Signal shipped is sent. Ready: signal shipped came, the next free worker takes await_shipment."
    )
    (signal,) = waiting.signals
    assert (signal.name, signal.payload, signal.actor, signal.reason) == (
        "shipped",
        {"carrier": "DHL"},
        "dashboard:alice",
        "by phone",
    )
    driver.drain()
    assert waiting.reload().current_step == "await_delivery"


def test_a_blank_payload_is_an_empty_object(alice, waiting):
    alice.open(waiting).press(waiting, "signal", name="shipped", payload=" \r\n ")
    assert waiting.signals[0].payload == {}


def test_numbers_are_kept_as_typed(alice, waiting, database):
    typed = '{"id": 9223372036854775807123, "rate": 0.1, "huge": 1e16, "least": -0.0}'
    alice.open(waiting).press(waiting, "signal", name="shipped", payload=typed)
    payload = waiting.signals[0].payload
    assert payload["id"] == 9223372036854775807123
    assert (payload["rate"], payload["huge"], str(payload["least"])) == (0.1, 1e16, "-0.0")
    stored = database.value("SELECT payload::text FROM pgbus.workflow_signals")
    assert '"id": 9223372036854775807123' in stored


def test_a_second_press_of_the_same_form_sends_nothing(alice, waiting):
    alice.open(waiting)
    page = alice.html
    alice.told(alice.press(waiting, "signal", name="shipped"))
    alice.html = page
    tone, text = alice.told(alice.press(waiting, "signal", name="shipped"))
    assert (tone, text) == (
        "warn",
        "Signal shipped was sent by this form before, just now. It was not sent again.",
    )
    assert len(waiting.signals) == 1


def test_each_page_may_send_one_more(alice, waiting):
    for _ in range(2):
        assert alice.told(alice.open(waiting).press(waiting, "signal", name="shipped"))[0] == "good"
    assert len(waiting.signals) == 2


def test_a_form_that_sent_another_signal_before_is_told_to_be_used_up(alice, waiting):
    alice.open(waiting)
    page = alice.html
    alice.told(alice.press(waiting, "signal", name="shipped"))
    alice.html = page
    tone, text = alice.told(
        alice.press(waiting, "signal", name="delivered", payload='{"carrier": "x"}')
    )
    assert tone == "warn"
    assert text.startswith("Nothing was sent: this form has sent another signal before.")
    assert len(waiting.signals) == 1


def test_a_run_that_is_over_takes_none_and_says_why(alice, waiting):
    alice.open(waiting)
    waiting.cancel(actor="cli:bob")
    tone, text = alice.told(alice.press(waiting, "signal", name="shipped"))
    assert (tone, text) == ("warn", "Nothing was done: cli:bob cancelled the run just now.")
    assert "signal" not in alice.offered
    assert 'id="send"' not in alice.html


def test_a_refused_form_of_a_run_that_is_over_is_told_in_a_note(alice, waiting):
    alice.open(waiting)
    waiting.cancel()
    answer = alice.press(waiting, "signal", name="shipped", payload="{")
    assert answer.status_code == 422
    assert "the text ends before the object does" in visible_text(answer)


def test_a_signal_that_no_step_waits_for_is_stored_and_that_is_said(alice, waiting):
    tone, text = alice.told(alice.open(waiting).press(waiting, "signal", name="shiped"))
    assert tone == "warn"
    assert text.startswith(
        "Signal shiped is stored, but no step of Shipping waits for it. Waiting for signal shipped"
    )
    assert waiting.signals[0].name == "shiped"


def test_of_a_class_that_waits_for_no_signal_the_page_says_so(alice):
    run = Deaf.start()
    assert "no step of the class waits for a signal" in alice.open(run).html
    assert field(alice.form("signal"), "name") == ""


def test_without_the_class_a_signal_is_stored_for_a_worker_that_has_it(alice, waiting, monkeypatch):
    monkeypatch.delitem(registry._definitions, waiting.workflow_class)
    alice.open(waiting)
    assert field(alice.form("signal"), "name") == ""
    tone, text = alice.told(alice.press(waiting, "signal", name="whatever"))
    assert tone == "good"
    assert text.startswith("Signal whatever is sent.")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "Say which signal: its name is missing."),
        (" \t", "Say which signal: its name is missing."),
        ("n" * 256, "A signal's name has at most 255 characters, and no NUL among them."),
        ("a\0b", "A signal's name has at most 255 characters, and no NUL among them."),
    ],
)
def test_a_name_that_is_none_is_told_beside_it(alice, waiting, name, told):
    form = refused(alice, alice.open(waiting).press(waiting, "signal", name=name, payload="{}"))
    assert problem(form) == ("name", told)
    assert waiting.signals == []


FAULTS = {
    '{\r\n  "carrier": "DHL",\r\n  "tracking": "0034"\r\n  "region": "eu"\r\n}': (
        'Line 4, column 3: a comma is missing before "region".'
    ),
    '{"carrier" "DHL"}': 'Line 1, column 12: a colon is missing before "DHL".',
    "{'carrier': 1}": "Line 1, column 2: a name in double quotes is missing before '.",
    '{"paid": True}': (
        "Line 1, column 10: True is not a value. A text stands in double quotes, and true, false, null "
        "are written in lower case."
    ),
    '{"a": 1,\n}': "Line 2, column 1: there is a comma too many.",
    '{"a": 1,, "b": 2}': "Line 1, column 9: a name in double quotes is missing before ,.",
    "\ufeff{}": "Line 1, column 1: this cannot be read as JSON.",
    '{"a": [1, ]}': "Line 1, column 11: there is a comma too many.",
    '{"a": "one\ntwo"}': (
        "Line 1, column 11: a text cannot hold a line break or a tab; write \\n or \\t."
    ),
    '{"a": "C:\\dir"}': "Line 1, column 10: a backslash in a text is written as two: \\\\.",
    '{"a": "open}': "Line 1, column 7: the text that begins here has no closing double quote.",
    '{"a": 1': "Line 1, column 8: the text ends before the object does.",
    '{"a":\n': "Line 2, column 1: the text ends before the object does.",
    '{"a": 1} {}': "Line 1, column 10: the object has ended before {.",
    "[1, 2]": 'This is not a JSON object, such as {"amount": 7}.',
    '"text"': 'This is not a JSON object, such as {"amount": 7}.',
    "null": 'This is not a JSON object, such as {"amount": 7}.',
    '{"a": 1, "a": 2}': 'The name "a" stands twice in one object.',
    '{"a": NaN}': "JSON has no NaN.",
    '{"a": 0.1000000000000000055}': (
        "The number 0.1000000000000000055 cannot be kept as it is typed. Put it in double quotes."
    ),
    '{"a": 1e400}': "The number 1e400 cannot be kept as it is typed. Put it in double quotes.",
    '{"a": 1e-99999999999999999999}': (
        "The number 1e-99999999999999999999 cannot be kept as it is typed. Put it in double quotes."
    ),
    "[" * 1500: "This is nested too deeply.",
    '{"a": "\\ud800"}': (
        "The class does not take this. payload.a: holds a lone surrogate, which PostgreSQL cannot store"
    ),
    '{"a": "\\u0000"}': (
        "The class does not take this. payload.a: holds a NUL character, which PostgreSQL cannot store"
    ),
    '{"a": "' + "x" * LIMIT + '"}': "This is too large: a payload may have 2,000 bytes.",
}


@pytest.mark.parametrize("typed", FAULTS, ids=range(len(FAULTS)))
def test_a_payload_that_cannot_be_sent_is_told_where_and_why_and_all_is_kept(alice, waiting, typed):
    alice.open(waiting)
    key = hidden_fields(alice.form("signal"))["idempotency_key"]
    answer = alice.press(waiting, "signal", name="shipped", payload=typed, reason="a <reason>")
    form = refused(alice, answer)
    assert problem(form) == ("payload", FAULTS[typed])
    assert 'aria-invalid="true" aria-describedby="s-payload-err s-payload-help"' in form
    assert 'role="alert"' in form
    assert field(form, "payload").splitlines() == typed.splitlines()
    assert (field(form, "name"), field(form, "reason")) == ("shipped", "a <reason>")
    assert hidden_fields(form)["idempotency_key"] == key
    assert waiting.signals == []
    assert waiting.reload().status == "waiting"


def test_a_mended_form_is_sent(alice, waiting):
    refused(alice, alice.open(waiting).press(waiting, "signal", name="shipped", payload="{"))
    assert alice.told(alice.press(waiting, "signal", name="shipped", payload="{}"))[0] == "good"


def test_a_payload_that_the_declared_type_does_not_take_is_told_with_its_path(alice, waiting):
    typed = '{"carrier": "<b>DHL</b>", "weight": "<i>"}'
    answer = alice.open(waiting).press(waiting, "signal", name="delivered", payload=typed)
    form = refused(alice, answer)
    assert problem(form) == (
        "payload",
        "The class does not take this. payload.weight: is '<i>', not float",
    )
    assert "<i>" not in form
    assert "<b>" not in form
    assert field(form, "payload") == typed
    assert waiting.signals == []


def test_a_payload_larger_than_any_form_is_told_with_the_limit(alice, waiting):
    answer = alice.open(waiting).press(waiting, "signal", name="shipped", payload="x" * 200_000)
    assert answer.status_code == 413
    assert "2,000" in visible_text(answer)
    assert waiting.signals == []


def test_a_hostile_name_is_text_in_the_form_and_in_what_is_told(alice, waiting):
    name = '"><script>alert(1)</script>'
    form = refused(alice, alice.open(waiting).press(waiting, "signal", name=name, payload="{"))
    assert field(form, "name") == name
    assert "<script>" not in form
    _tone, text = alice.told(alice.press(waiting, "signal", name=name, payload="{}"))
    assert text.startswith(f"Signal {name} is stored, but no step of Shipping waits for it.")
    assert "<script>alert" not in alice.html


def test_what_a_matcher_raises_is_told_and_nothing_is_stored(alice, driver, caplog):
    run = Numbered.start()
    driver.drain()
    with caplog.at_level(logging.ERROR, "pgbus.dashboard"):
        answer = alice.open(run).press(run, "signal", name="number", payload='{"numbr": 3}')
    assert alice.told(answer) == ("bad", "Sending the signal failed. KeyError: 'number'")
    assert run.signals == []
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("key", ["k" * 256, "a\0b"])
def test_a_key_that_no_page_made_is_a_bad_parameter(alice, waiting, key, caplog):
    answer = alice.open(waiting).post(waiting, "signal", name="shipped", idempotency_key=key)
    assert answer.status_code == 400
    assert "<code>idempotency_<wbr>key</code>" in answer.text
    assert waiting.signals == []
    assert not [record for record in caplog.records if record.exc_info]


def folded(operator):
    """Whether the form is folded away."""
    return not re.search(r'<details class="panel" id="send" open>', operator.html)


def test_the_form_is_folded_away_unless_the_run_waits_for_a_signal_or_it_was_refused(
    alice, waiting
):
    assert not folded(alice.open(waiting))
    waiting.pause()
    assert folded(alice.open(waiting))
    assert 'href="#s-name" data-unfold' in alice.html
    refused(alice, alice.press(waiting, "signal", name=""))
    assert not folded(alice)
    deaf = Deaf.start()
    assert folded(alice.open(deaf))


def test_what_was_typed_on_a_page_that_was_open_too_long_is_kept_with_its_key(
    alice, waiting, monkeypatch
):
    with monkeypatch.context() as clock:
        clock.setattr(TimestampSigner, "get_timestamp", lambda _signer: int(time.time()) - 3660)
        key = hidden_fields(alice.open(waiting).form("signal"))["idempotency_key"]
    typed = {"name": "shipped", "payload": '{"carrier": "DHL"}', "reason": "by phone"}
    form = refused(alice, alice.press(waiting, "signal", **typed))
    assert "The page was open too long. What you typed is kept" in form
    assert {name: field(form, name) for name in typed} == typed
    assert hidden_fields(form)["idempotency_key"] == key
    assert waiting.signals == []
    assert alice.told(alice.press(waiting, "signal", **typed))[0] == "good"


def test_a_paused_run_keeps_the_signal_and_stays_paused(alice, waiting):
    waiting.pause()
    assert "The run stays paused." in alice.open(waiting).html
    tone, text = alice.told(alice.press(waiting, "signal", name="shipped"))
    assert tone == "good"
    assert "Paused by" in text
    assert waiting.reload().status == "paused"


def test_who_may_not_signal_has_no_form_and_is_refused(make_site, waiting):
    bob = Operator(make_site(can=lambda _request, action: action != "signal")).open(waiting)
    assert 'id="send"' not in bob.html
    assert bob.post(waiting, "signal", name="shipped").status_code == 403
    assert waiting.signals == []


def test_a_refused_form_is_left_alone_by_the_page_that_keeps_itself_up_to_date(alice, waiting):
    page = alice.open(waiting)
    assert not page.form("signal").partition(">")[0].endswith("data-keep")
    assert re.search(r'name="idempotency_key"[^>]* data-keep>', page.form("signal"))
    form = refused(alice, page.press(waiting, "signal", name="shipped", payload="{"))
    assert form.partition(">")[0].endswith("data-keep")
    # A page that follows the run asks for the address that it has.
    assert alice.browser.get(f"{address(waiting)}/actions/signal").location == address(waiting)
