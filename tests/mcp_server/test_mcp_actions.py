"""The tools that act: there only when they are switched on, and refused where a button would not be."""

from __future__ import annotations

import logging

import psycopg
import pytest
from mcp.shared.exceptions import MCPError
from support.assistants import Assistant, listening

from pgbus import RunLocked, SignalMatcher, Workflow, step
from pgbus.engine.runner.run import Run
from pgbus.engine.storage.database import Database
from pgbus.mcp_server.actions import WRITE_TOOLS
from pgbus.mcp_server.http import create_app

NOBODY = "01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58"
SECRET = "4929-1234-card"
WHY = {"reason": "the vendor is back"}


def asked(payload):
    """As a host's matcher may: it fails, or finds its own database gone."""
    if "broken" in payload:
        raise ArithmeticError(SECRET)
    if "gone" in payload:
        raise psycopg.OperationalError("server closed the connection unexpectedly")
    return True


class Reminder(Workflow):
    @step(wait_for=SignalMatcher("answered", asked))
    def hold(self): ...

    @step(wait=3600)
    def remind(self): ...


@pytest.fixture
def bus_options():
    return {"mcp_write_tools": True, "workflow_max_payload_size": 1000}


@pytest.fixture
def run(bus, driver):
    """A run that waits for a signal."""
    run = bus.start(Reminder, card=SECRET)
    driver.drain()
    return run.reload()


def act(assistant, verb, run, **arguments):
    return assistant.call(
        f"pgbus_workflow_{verb}", **{"workflow_id": run.workflow_id, **WHY, **arguments}
    )


def refuse(assistant, verb, run, **arguments):
    """The answer to a call that must change nothing."""
    before = (run.reload().status, run.events, run.signals)
    answer = act(assistant, verb, run, **arguments)
    assert (run.reload().status, run.events, run.signals) == before
    assert answer["ok"] is False
    return answer


def test_the_tools_are_there_only_when_they_are_switched_on(url, assistant, monkeypatch, caplog):
    names = [tool.name for tool in WRITE_TOOLS]
    tools = assistant.tools()
    assert [*tools][-6:] == names
    for name in names:
        annotations = tools[name].annotations
        assert annotations.read_only_hint is False
        assert annotations.destructive_hint is True
        assert annotations.idempotent_hint is (name == "pgbus_workflow_cancel")
        assert {"workflow_id", "reason"} <= {*tools[name].input_schema["required"]}
    assert all(name in assistant.instructions for name in names)


@pytest.mark.parametrize("bus_options", [{}])
def test_they_are_not_there_unless_they_are(bus, run, assistant):
    assert not {*assistant.tools()} & {tool.name for tool in WRITE_TOOLS}
    assert "pgbus_workflow_cancel" not in assistant.instructions
    with pytest.raises(MCPError, match="There is no tool"):
        act(assistant, "cancel", run)
    assert run.reload().status == "waiting"


def test_whether_they_are_there_is_logged_at_the_start(bus, caplog):
    create_app(bus, token="x")
    assert "tools that change runs: pgbus_workflow_resume" in caplog.text


def test_each_verb_does_what_the_button_does_and_says_who_and_why(bus, driver, run, assistant):
    assert act(assistant, "signal", run, name="answered", payload={"card": SECRET})["ok"]
    driver.drain()
    answer = act(assistant, "run_now", run, expected_status="ready")
    assert answer["ok"]
    assert answer["workflow"]["run"]["due"]
    run.pause()
    answer = act(assistant, "resume_at", run, step="hold", reason=f"  {'x' * 500}  ")
    assert answer["workflow"]["run"]["current_step"] == "hold"
    assert (run.events[-2].reason, run.events[-2].actor) == ("x" * 500, "mcp:claude")
    driver.drain()
    assert act(assistant, "skip_step", run)["workflow"]["run"]["current_step"] == "remind"
    run.pause()
    assert act(assistant, "resume", run)["workflow"]["run"]["status"] == "ready"
    answer = act(assistant, "cancel", run)
    assert (answer["ok"], answer["reason"]) == (True, None)
    assert answer["workflow"]["run"]["status"] == run.reload().status == "cancelled"
    told = [(one.event, one.reason) for one in run.events if one.actor == "mcp:claude"]
    assert [event for event, reason in told if reason == WHY["reason"]] == [
        *("signal_received", "run_now", "step_skipped", "resumed", "cancelled")
    ]


def test_of_the_run_after_it_no_payload_is_shown(bus, run):
    app = create_app(bus, allow_unauthenticated=True, allow_payloads=True)
    with listening(app) as url:
        answer = act(Assistant(url), "signal", run, name="other", payload={"card": SECRET})
        assert SECRET not in str(answer)
        assert answer["workflow"]["arguments"] == "[redacted]"
        assert "include_payloads: Extra inputs" in Assistant(url).refused(
            "pgbus_workflow_cancel", workflow_id=run.workflow_id, include_payloads=True, **WHY
        )


def test_a_signals_key_is_used_once_and_a_name_that_no_step_waits_for_is_told(run, assistant):
    once = {"name": "late", "idempotency_key": "k1"}
    stored = act(assistant, "signal", run, **once)
    assert (stored["ok"], stored["reason"].startswith("Stored, but no step of")) == (True, True)
    again = act(assistant, "signal", run, **once)
    assert (again["ok"], again["reason"].startswith("Nothing was stored")) == (True, True)
    assert [one.name for one in run.signals] == ["late"]
    other = refuse(assistant, "signal", run, name="other", idempotency_key="k1")
    assert (other["code"], other["status"]) == ("signal_key_reused", "waiting")


def test_a_run_that_is_elsewhere_than_expected_is_left_alone(run, assistant):
    answer = refuse(assistant, "cancel", run, expected_status="paused")
    assert answer["reason"] == "Nothing was done: the run is waiting, not paused."
    assert answer["workflow"]["run"]["status"] == "waiting"


@pytest.mark.parametrize(
    ("verb", "arguments"), [("cancel", {}), ("signal", {"name": "answered", "payload": {}})]
)
def test_a_run_that_moves_between_look_and_act_is_left_alone(
    run, assistant, monkeypatch, verb, arguments
):
    ask = getattr(Run, verb)

    def late(self, *given, **named):
        run.pause()
        return ask(self, *given, **named)

    monkeypatch.setattr(Run, verb, late)
    answer = act(assistant, verb, run, expected_status="waiting", **arguments)
    assert (answer["ok"], answer["code"], answer["status"]) == (False, "run_moved", "paused")
    assert (run.reload().status, run.signals) == ("paused", [])


def test_a_verb_that_cannot_be_asked_is_refused_with_those_that_can(run, assistant):
    answer = refuse(assistant, "resume", run)
    assert answer["available_actions"] == ["pause", "cancel", "skip", "signal"]
    assert "code" not in answer
    run.cancel()
    assert refuse(assistant, "signal", run, name="answered")["available_actions"] == ["rerun"]


def test_a_refusal_under_the_lock_has_its_code_and_the_status(run, assistant, monkeypatch):
    def held(self, **_arguments):
        raise RunLocked("another transaction holds it")

    monkeypatch.setattr(Run, "cancel", held)
    answer = refuse(assistant, "cancel", run)
    assert (answer["code"], answer["status"]) == ("run_locked", "waiting")
    run.pause()
    answer = refuse(assistant, "resume_at", run, step="nowhere")
    assert (answer["code"], "declares no step 'nowhere'" in answer["reason"]) == (
        "step_not_defined",
        True,
    )
    answer = refuse(assistant, "signal", run, name="answered", payload={"text": "x" * 1000})
    assert (answer["code"], "workflow_max_payload_size allows 1000" in answer["reason"]) == (
        "payload_too_large",
        True,
    )


def test_a_run_that_is_gone_has_no_status(run, assistant, database, monkeypatch):
    answer = assistant.call("pgbus_workflow_cancel", workflow_id=NOBODY, **WHY)
    assert answer == {"ok": False, "reason": f"There is no run {NOBODY}.", "workflow": None}
    cancel = Run.cancel

    def late(self, **named):
        database.rows("DELETE FROM pgbus.workflows")
        return cancel(self, **named)

    monkeypatch.setattr(Run, "cancel", late)
    answer = act(assistant, "cancel", run)
    assert (answer["code"], answer["workflow"], "status" in answer) == (
        "run_not_found",
        None,
        False,
    )


@pytest.mark.parametrize(
    ("verb", "arguments", "told"),
    [
        ("cancel", {"reason": " \n "}, "reason: String should have at least 1 character"),
        ("cancel", {"reason": "x" * 501}, "reason: String should have at most 500 characters"),
        ("cancel", {"reason": "\0"}, "reason: String should match"),
        ("cancel", {"reason": "a\x1b[31m"}, "reason: String should match"),
        ("cancel", {"reason": " \u200b "}, "reason: String should have a visible character"),
        ("cancel", {"expected_status": "asleep"}, "expected_status: Input should be 'ready'"),
        ("cancel", {"expected_staus": "paused"}, "expected_staus: Extra inputs are not permitted"),
        ("resume_at", {}, "step: Field required"),
        ("signal", {"name": "x" * 256}, "name: String should have at most 255 characters"),
        ("signal", {"name": "x", "idempotency_key": "k" * 256}, "at most 255 characters"),
        ("signal", {"name": "x", "payload": [1]}, "payload: Input should be an object"),
        (
            "signal",
            {"name": "x", "payload": {"card": [{"amount": 12345678901234567890.12}]}},
            "payload: The number 1.2345678901234567e+19 has more than 15 digits",
        ),
    ],
)
def test_arguments_that_break_the_schema_are_errors_before_anything_is_looked_at(
    run, assistant, monkeypatch, verb, arguments, told
):
    monkeypatch.setattr("pgbus.Pgbus.find", None)
    given = {"workflow_id": run.workflow_id, **WHY, **arguments}
    assert told in assistant.refused(f"pgbus_workflow_{verb}", **given)


@pytest.mark.parametrize(
    ("name", "actor"),
    [
        (" cur\tsor\x1b[31m\u202e\n", "mcp:cursor[31m"),
        ("n" * 200, f"mcp:{'n' * 100}"),
        ("\x07 ", "mcp"),
        ("Ünïcode 客", "mcp:Ünïcode 客"),
    ],
)
def test_the_client_is_recorded_by_a_cleaned_name(url, run, name, actor):
    act(Assistant(url, name=name, authorization="Bearer a long secret"), "cancel", run)
    assert run.events[-1].actor == actor


@pytest.mark.parametrize(
    ("agent", "actor"),
    [
        ("Cursor\x9b\xe9/2.1 (linux)", "mcp:Cursor\xe9"),
        ("x" * 200, f"mcp:{'x' * 100}"),
        ("", "mcp"),
    ],
)
def test_a_client_that_gives_no_name_with_its_calls_is_recorded_by_its_product(
    url, run, agent, actor
):
    headers = {"authorization": "Bearer a long secret", "user-agent": agent.encode("latin-1")}
    act(Assistant(url, mode="legacy", **headers), "cancel", run)
    assert run.events[-1].actor == actor


def test_a_payload_and_a_reason_are_stored_as_they_were_given(run, assistant):
    payload = {"amounts": [0.1, -1234567890123.25, 123456789012345.0, 1e16, 12345678901234567890]}
    assert act(assistant, "signal", run, name="x", payload=payload, reason="é\tso\r\n👩\u200d🚀")[
        "ok"
    ]
    (signal,) = run.signals
    assert signal.payload == payload
    assert run.events[-1].reason == "é\tso\r\n👩\u200d🚀"


def test_an_unexpected_failure_changes_nothing_and_tells_its_details_to_the_log_only(
    run, assistant, caplog
):
    broken = {"workflow_id": run.workflow_id, "name": "answered", "payload": {"broken": 1}, **WHY}
    with caplog.at_level(logging.ERROR):
        told = assistant.refused("pgbus_workflow_signal", **broken)
    assert told == "The call failed in an unexpected way; the server's log says how."
    assert SECRET in caplog.text
    assert run.signals == []


def test_an_outage_in_the_act_leaves_open_whether_it_took_effect(run, assistant):
    told = assistant.refused(
        "pgbus_workflow_signal",
        workflow_id=run.workflow_id,
        name="answered",
        payload={"gone": 1},
        **WHY,
    )
    assert "nobody knows whether it took effect: read the run before you try again" in told


def test_an_outage_after_the_act_does_not_hide_that_it_was_done(run, assistant, monkeypatch):
    cancel = Run.cancel

    def then_away(self, **named):
        answer = cancel(self, **named)
        monkeypatch.setattr(Database, "transaction", away)
        return answer

    def away(self):
        raise psycopg.OperationalError("gone")

    monkeypatch.setattr(Run, "cancel", then_away)
    answer = act(assistant, "cancel", run)
    assert (answer["ok"], answer["workflow"]) == (True, None)
