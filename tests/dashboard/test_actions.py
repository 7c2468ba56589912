"""What an operator can do with a run: what is offered, what is done, and what is told of it."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace
from datetime import datetime, timedelta

import psycopg
import pytest
from itsdangerous import TimestampSigner
from support.operators import Operator, address, by_name
from support.scripts import play, script
from support.sites import hidden_fields, visible_text

from pgbus import Workflow, fan_out, job, on_exception, register_subject, step
from pgbus.engine.definition import registry
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import FanOutFailed, ReadTimeout, RunLocked
from pgbus.engine.runner.run import Run
from pgbus.engine.storage.database import Database

HOUR = timedelta(hours=1)
NOBODY = "01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58"


class Errandee:
    def __init__(self, key):
        self.key = key


register_subject(
    Errandee,
    type_name="Errandee",
    id_of=lambda errandee: errandee.key,
    load=lambda key, _session: Errandee(key),
)


@job
def knock(door): ...


class HopelessError(Exception): ...


class Errand(Workflow[Errandee]):
    policies = (on_exception(HopelessError, action="cancel"),)

    @step
    def fetch(self):
        return play(self)

    @step(wait=2 * 3600)
    def carry(self):
        return play(self)

    @fan_out
    def call(self, batch):
        batch.add(knock, "a")
        play(self)

    @step(wait_for="signed", wait_timeout=3 * HOUR)
    def hand_over(self):
        return play(self)


class ShortErrand(Workflow):
    @step
    def fetch(self):
        return play(self)


class SignedErrand(Workflow):
    @step
    def fetch(self):
        return play(self)

    @step(wait_for="signed")
    def hand_over(self): ...


@pytest.fixture(autouse=True)
def nothing_scripted():
    script()


@pytest.fixture
def site(make_site):
    return make_site(web_actor=by_name, time_zone="Europe/Berlin")


@pytest.fixture
def alice(site):
    return Operator(site)


@pytest.fixture
def bob(site):
    return Operator(site, "bob")


@pytest.fixture
def at(bus, driver):
    """Starts a run, and brings it to a step: to its schedule, or until it has performed it."""

    def at(step_name, body=None, *, performed=True):
        run = Errand.start(Errandee("7"))
        if step_name != "fetch":
            run.pause().resume_at(step_name)
        if performed:
            script(**({step_name: body} if body else {}))
            driver.drain()
            script()
        return run.reload()

    return at


@pytest.fixture
def failed(at):
    """A run that is paused because its first step failed."""
    return at("fetch", crash)


def crash(_self):
    raise TimeoutError("no answer")


def be_hopeless(_self):
    raise HopelessError


def stop(self):
    self.pause()


def last(run):
    """The run's newest event as its kind, actor and reason; that of a verb comes before what it led to."""
    event = next(one for one in reversed(run.events) if one.actor != "system")
    return event.event, event.actor, event.reason


def of_kind(run, kind):
    return next(one for one in reversed(run.events) if one.event == kind)


def labels(operator):
    """The labels of what can be done, the likeliest in brackets."""
    found = re.findall(
        r'<a class="btn( primary)?[^"]*" href="#(?:d-\w+|s-name)".*?<span>(.*?)</span>',
        operator.html,
    )
    return [f"[{label}]" if primary else label for primary, label in found]


def test_a_failed_step_is_retried(alice, failed):
    alice.open(failed)
    tone, text = alice.told(alice.press(failed, "resume", reason="  the network is back "))
    assert (tone, text) == ("good", "The run goes on: attempt 2 of fetch is in the queue.")
    assert failed.reload().status == "ready"
    event = of_kind(failed, "resumed")
    assert (event.actor, event.reason) == ("dashboard:alice", "the network is back")


def test_what_a_paused_run_offers_on_an_error(alice, failed):
    assert labels(alice.open(failed)) == [
        "[Retry fetch…]",
        "Resume at a step…",
        "Send a signal",
        "Skip fetch…",
        "Cancel the run…",
    ]


def test_resume_says_with_what_it_continues_and_when(alice, at):
    run = at("fetch", stop)
    alice.open(run)
    assert labels(alice)[0] == "[Continue with carry…]"
    assert re.search(r"carry starts at (\d+ \w+ )?\d\d:\d\d\.", alice.said("resume"))
    _tone, text = alice.told(alice.press(run, "resume"))
    assert re.match(r"The run goes on\. Scheduled: carry runs in [12] h\b", text)


def test_resume_after_the_last_step_says_that_it_finishes(alice, driver):
    script(fetch=stop)
    run = ShortErrand.start()
    driver.drain()
    assert labels(alice.open(run))[0] == "[Finish the run…]"
    assert alice.told(alice.press(run, "resume"))[1] == "Done. Finished just now."
    assert run.reload().status == "finished"


def held(bus, at, step_name, end):
    """A run that somebody pauses while its step runs, which then ends so."""

    def body(self):
        bus.find(self.workflow_id).pause(actor="dashboard:bob")
        end(self)

    return at(step_name, body)


@pytest.mark.parametrize(
    ("end", "label", "title", "told"),
    [
        (
            be_hopeless,
            "[Let the run end as cancelled…]",
            "Paused on fetch: HopelessError. Resume lets the run end as cancelled.",
            r"Done\. Cancelled just now by dashboard:alice\.",
        ),
        (
            lambda body: body.finish(),
            "[Finish the run…]",
            "Paused by dashboard:bob after fetch. Resume finishes the run.",
            r"Done\. Finished just now\.",
        ),
        (
            lambda body: body.reattempt(),
            "[Retry fetch…]",
            "Paused by dashboard:bob after attempt 1 of fetch. Resume tries it again.",
            r"The run goes on: attempt 2 of fetch is in the queue\.",
        ),
    ],
    ids=["cancel", "finish", "reattempt"],
)
def test_title_button_and_outcome_agree_on_what_a_body_left_for_the_resume(
    alice, at, bus, end, label, title, told
):
    run = held(bus, at, "fetch", end)
    assert labels(alice.open(run))[0] == label
    assert re.sub("<[^>]*>", "", re.search("<h1>(.*?)</h1>", alice.html)[1]) == title
    assert re.fullmatch(told, alice.told(alice.press(run, "resume"))[1])


def test_a_retry_says_which_signal_the_step_waits_for_first(alice, at, driver):
    run = at("hand_over")
    run.signal("signed", {})
    script(hand_over=crash)
    driver.drain()
    assert labels(alice.open(run))[0] == "[Retry hand_over…]"
    assert "hand_over waits for signal signed first." in alice.said("resume")
    assert "as soon as a worker is free" not in alice.said("resume")


def test_going_on_says_which_signal_the_next_step_waits_for_first(alice, driver):
    script(fetch=stop)
    run = SignedErrand.start()
    driver.drain()
    assert labels(alice.open(run))[0] == "[Continue with hand_over…]"
    assert "hand_over waits for signal signed first." in alice.said("resume")


def test_resume_of_a_step_whose_signal_came_does_not_wait_for_one(alice, at):
    run = at("hand_over")
    run.signal("signed", {})
    run.reload().pause()
    said = alice.open(run).said("resume")
    assert "hand_over starts as soon as a worker is free." in said
    assert "waits for signal" not in said


def test_resume_before_the_time_of_a_step_that_waits_for_a_signal_tells_both(alice, at):
    run = at("hand_over", performed=False)
    run.reschedule(datetime.fromisoformat("2031-05-01T10:00Z")).pause()
    said = alice.open(run).said("resume")
    assert re.search(r"hand_over waits for signal signed from \S+ \S+ \d{4} 12:00 on\.", said)


def test_resume_before_the_time_of_a_step_keeps_it(alice, at):
    run = (
        at("fetch", performed=False).reschedule(datetime.fromisoformat("2031-05-01T10:00Z")).pause()
    )
    alice.open(run)
    assert labels(alice)[0] == "[Run fetch at its time…]"
    assert "fetch starts at" in alice.said("resume")
    alice.press(run, "resume")
    assert run.steps[-1].scheduled_at.isoformat() == "2031-05-01T10:00:00+00:00"


def test_resume_of_a_step_that_still_runs_lets_it_end(alice, at, driver):
    run = at("fetch", performed=False)
    (delivery,) = driver.take()
    run.pause()
    assert labels(alice.open(run))[0] == "[Let fetch end…]"
    assert (
        alice.told(alice.press(run, "resume"))[1] == "The run goes on. Performing fetch, attempt 1."
    )
    driver.perform(delivery)


def test_resume_of_a_run_that_waits_goes_on_waiting(alice, at):
    run = at("hand_over").pause()
    alice.open(run)
    assert labels(alice)[0] == "[Keep waiting…]"
    said = alice.said("resume")
    assert re.search(
        r"The run goes on waiting for signal signed, [23] h\b.* until its deadline\.", said
    )
    _tone, text = alice.told(alice.press(run, "resume"))
    assert text.startswith("The run goes on. Waiting for signal signed")


def test_resume_of_a_run_that_waits_for_its_jobs_says_so(alice, at, bus):
    run = at("call", lambda self: bus.find(self.workflow_id).pause())
    assert labels(alice.open(run))[0] == "[Send the jobs of call…]"
    alice.press(run, "resume")
    assert run.reload().status == "waiting"
    run.pause()
    assert "goes on waiting for the jobs of its batch" in alice.open(run).form("resume")


def test_a_retry_of_a_fan_out_says_that_all_jobs_are_sent_again(alice, at, bus, database):
    run = at("call")
    database.rows(
        "UPDATE pgbus.workflow_steps SET status = 'failed', outcome = 'paused', error_class = %s,"
        " batch_id = NULL, waiting_since = NULL, finished_at = clock_timestamp()",
        qualified_name(FanOutFailed),
    )
    database.rows(
        "UPDATE pgbus.workflows SET status = 'paused', paused_at = clock_timestamp(), settled_error = %s",
        qualified_name(FanOutFailed),
    )
    assert labels(alice.open(run))[0] == "[Retry call…]"
    assert "All its jobs are sent again, those that completed too." in alice.said("resume")


def test_a_step_is_chosen_to_go_on_from(alice, failed):
    options = re.findall(r"<option[^>]*>(.*?)</option>", alice.open(failed).form("resume_at"))
    assert options == [
        "Choose a step",
        "fetch, failed, here now",
        "carry, not tried yet",
        "call, not tried yet",
        "hand_over, not tried yet",
    ]
    _tone, text = alice.told(alice.press(failed, "resume_at", step="hand_over"))
    assert text == "The run goes on: attempt 1 of hand_over is in the queue."
    assert failed.reload().current_step == "hand_over"


def test_a_step_that_completed_can_be_chosen_again(alice, at):
    run = at("fetch", stop)
    form = alice.open(run).form("resume_at")
    assert ">fetch, completed, here now</option>" in form
    alice.press(run, "resume_at", step="fetch")
    assert run.steps[-1].step_name == "fetch"
    assert run.steps[-1].attempt == 2


def test_no_step_chosen_is_told_in_the_dialog_and_the_reason_is_kept(alice, failed):
    answer = alice.open(failed).press(failed, "resume_at", step="", reason="because <b>")
    assert answer.status_code == 422
    alice.html = answer.text
    form = alice.form("resume_at")
    assert "Choose the step to go on from." in form
    assert 'autofocus aria-invalid="true" aria-describedby="at-step-err"' in form
    assert ">\nbecause &lt;b&gt;</textarea>" in form
    assert f'href="{address(failed)}" data-close' in form
    assert re.search(r'<dialog id="d-resume_at"[^>]* data-modal open>', answer.text)
    assert answer.text.count("<dialog ") > answer.text.count(" data-modal open>") == 1
    assert failed.reload().status == "paused"


def test_a_step_that_the_class_does_not_declare_is_told(alice, failed):
    tone, text = alice.told(alice.open(failed).press(failed, "resume_at", step="<b>gone</b>"))
    assert (tone, text) == ("warn", "Nothing was done: Errand does not declare a step <b>gone</b>.")
    assert failed.reload().status == "paused"


def test_what_a_scheduled_run_offers(alice, at):
    run = at("carry", performed=False).reschedule(datetime.fromisoformat("2031-05-01T10:00Z"))
    assert labels(alice.open(run)) == [
        "[Run carry now…]",
        "Reschedule carry…",
        "Send a signal",
        "Pause the run…",
        "Cancel the run…",
    ]


def test_nothing_is_likelier_than_the_rest_while_a_run_moves_by_itself(alice, at):
    assert labels(alice.open(at("carry", performed=False)))[0] == "Run carry now…"


def test_of_an_overdue_run_to_run_it_is_the_likeliest(alice, at, database):
    run = at("carry", performed=False)
    database.rows(
        "UPDATE pgbus.workflow_steps SET scheduled_at = scheduled_at - interval '2 hours'"
    )
    database.rows("UPDATE pgbus.workflows SET updated_at = updated_at - interval '2 hours'")
    assert labels(alice.open(run))[0] == "[Run carry now…]"
    assert "Its message is sent again" in alice.said("run_now")


def test_a_scheduled_step_runs_now(alice, at):
    run = at("carry", performed=False).reschedule(datetime.fromisoformat("2031-05-01T10:00Z"))
    _tone, text = alice.told(alice.open(run).press(run, "run_now", reason="urgent"))
    assert text == "Attempt 1 of carry is in the queue."
    assert last(run) == ("run_now", "dashboard:alice", "urgent")


def test_run_now_says_which_signal_the_step_waits_for_first(alice, at):
    run = at("hand_over", performed=False)
    assert "waits for signal signed first" in alice.open(run).said("run_now")


def test_a_step_is_rescheduled_in_the_zone_of_the_page(alice, at):
    run = at("carry", performed=False)
    assert "When, in Europe/Berlin" in alice.open(run).said("reschedule")
    _tone, text = alice.told(alice.press(run, "reschedule", at="2031-05-01T10:00"))
    assert text.startswith("carry is moved to Thu, May 1, 2031 10:00:00 +02:00.")
    assert run.steps[-1].scheduled_at.isoformat() == "2031-05-01T08:00:00+00:00"


def test_the_field_of_a_reschedule_begins_with_the_time_there_is(alice, at):
    run = at("carry", performed=False).reschedule(datetime.fromisoformat("2031-05-01T10:00Z"))
    assert 'value="2031-05-01T12:00"' in alice.open(run).form("reschedule")


@pytest.mark.parametrize("due", ["2031-10-26T00:30:12.5Z", "2031-10-26T01:30:12.5Z"])
def test_a_moment_left_as_it_is_stays_that_moment_also_in_an_hour_that_comes_twice(
    alice, at, due, database
):
    run = at("carry", performed=False)
    moved_to(run, due, database)
    form = alice.open(run).form("reschedule")
    shown = re.search(r'name="at"[^>]* value="([^"]*)"', form)[1]
    assert shown == "2031-10-26T02:30:12"
    alice.press(run, "reschedule", at=shown)
    assert run.steps[-1].scheduled_at == datetime.fromisoformat(due)


def moved_to(run, due, database):
    database.rows("UPDATE pgbus.workflow_steps SET scheduled_at = %s", due)


def test_a_moment_typed_with_its_offset_is_that_moment(alice, at, database):
    run = at("carry", performed=False)
    moved_to(run, "2031-10-26T01:30:00Z", database)
    alice.open(run).press(run, "reschedule", at="2031-10-26T02:30:00+02:00")
    assert run.steps[-1].scheduled_at == datetime.fromisoformat("2031-10-26T00:30:00Z")


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("", "Choose a date and a time."),
        ("next <week>", "This is not a moment such as 2026-11-29T03:00."),
        ("9999-12-31T23:59", "This is not a moment such as 2026-11-29T03:00."),
        ("2031-05-01T10:00\0", "This is not a moment such as 2026-11-29T03:00."),
    ],
)
def test_a_moment_that_cannot_be_read_is_told_and_kept(alice, at, typed, problem):
    run = at("carry", performed=False)
    before = run.steps[-1].scheduled_at
    answer = alice.open(run).press(run, "reschedule", at=typed, reason="later")
    assert answer.status_code == 422
    alice.html = answer.text
    form = alice.form("reschedule")
    assert problem in form
    assert ">\nlater</textarea>" in form
    if typed.isprintable():
        assert f'value="{typed.replace("<", "&lt;").replace(">", "&gt;")}"' in form
    assert run.steps[-1].scheduled_at == before


def test_a_form_for_an_action_that_is_not_possible_any_more_is_told_in_a_note(alice, at):
    run = at("carry", performed=False)
    alice.open(run)
    run.cancel()
    answer = alice.press(run, "reschedule", at="")
    assert answer.status_code == 422
    assert "Nothing was done Choose a date and a time." in visible_text(answer)


def test_a_run_is_paused(alice, at):
    run = at("carry", performed=False)
    tone, text = alice.told(alice.open(run).press(run, "pause", reason="vendor is down"))
    assert (tone, text) == (
        "good",
        "Done. Paused by dashboard:alice before carry. Resume lets it run at its time.",
    )
    assert last(run) == ("paused", "dashboard:alice", "vendor is down")


def test_pause_says_what_of_the_run_goes_on(alice, at, driver):
    run = at("fetch", performed=False)
    assert "fetch does not start." in alice.open(run).said("pause")
    (delivery,) = driver.take()
    assert "fetch runs to its end" in alice.open(run).said("pause")
    driver.perform(delivery)
    run.reload().cancel()
    run = at("hand_over")
    assert "The deadline stands still." in alice.open(run).said("pause")
    run.cancel()
    assert "The jobs of its batch go on" in alice.open(at("call")).said("pause")


def test_a_step_is_skipped(alice, failed):
    said = alice.open(failed).said("skip")
    assert "fetch is not tried again." in said
    assert "Goes on with carry." in said
    _tone, text = alice.told(alice.press(failed, "skip", reason="done by hand"))
    assert text.startswith("fetch is skipped. Scheduled: carry runs in")
    assert failed.reload().current_step == "carry"
    assert of_kind(failed, "step_skipped").reason == "done by hand"


def test_the_last_step_skipped_finishes_the_run(alice, at):
    run = at("hand_over")
    assert "It is the last step: the run finishes." in alice.open(run).said("skip")
    assert alice.told(alice.press(run, "skip"))[1] == "hand_over is skipped. Finished just now."


def test_a_step_skipped_to_one_that_is_due_is_in_the_queue(alice, at):
    _tone, text = alice.told(alice.open(run := at("call")).press(run, "skip"))
    assert text == "call is skipped: attempt 1 of hand_over is in the queue."


def test_a_run_is_cancelled_with_a_reason(alice, failed):
    tone, text = alice.told(alice.open(failed).press(failed, "cancel", reason="sold out"))
    assert (tone, text) == ("good", "Done. Cancelled just now by dashboard:alice.")
    assert last(failed) == ("cancelled", "dashboard:alice", "sold out")


def test_cancel_says_what_is_not_undone(alice, at, driver):
    run = at("fetch", performed=False)
    assert "No step has completed yet." in alice.open(run).said("cancel")
    (delivery,) = driver.take()
    assert "<code>fetch</code> still runs; its outcome is ignored." in alice.open(run).form(
        "cancel"
    )
    driver.perform(delivery)
    assert "1 completed step is not undone." in alice.open(run).form("cancel")
    run.reload().cancel()
    waiting = at("call")
    assert "Those of its jobs that have not started are dropped." in alice.open(waiting).said(
        "cancel"
    )


def test_a_rerun_lands_on_the_new_run(alice, failed):
    failed.cancel()
    alice.open(failed)
    assert labels(alice) == ["[Run it again…]"]
    answer = alice.press(failed, "rerun", reason="with the mended code")
    (new,) = failed.reruns
    assert answer.location == f"/pgbus/workflows/{new}"
    tone, text = alice.told(answer)
    assert tone == "good"
    assert text.startswith("This run is new, and like the one before.")
    assert last(failed) == ("rerun", "dashboard:alice", "with the mended code")


@pytest.fixture
def ended():
    return ShortErrand.start().cancel()


def test_a_second_press_of_the_same_page_leads_to_the_run_that_the_first_started(
    alice, bob, ended, driver
):
    alice.open(ended)
    bob.open(ended)
    first = alice.press(ended, "rerun")
    driver.drain()
    for operator in (alice, bob):
        again = operator.press(ended, "rerun")
        assert again.location == first.location
    (new,) = ended.reruns
    assert first.location == f"/pgbus/workflows/{new}"
    assert [str(event.event) for event in ended.events].count("rerun") == 1
    tone, text = bob.told(again)
    assert tone == "warn"
    assert text == (
        "Nothing was started: this run was started from that page before, just now. Finished just now."
    )


def test_a_page_that_shows_the_rerun_starts_another(alice, ended):
    for _ in range(3):
        assert alice.told(alice.open(ended).press(ended, "rerun"))[0] == "good"
    assert len(set(ended.reruns)) == 3


def test_a_rerun_beside_an_ongoing_run_of_the_subject_names_that_one(alice, failed):
    failed.cancel()
    other = Errand.start(Errandee("7"))
    tone, text = alice.told(alice.open(failed).press(failed, "rerun"))
    assert tone == "warn"
    assert text == (
        f"Nothing was started: Errandee 7 has an ongoing run already, {other.workflow_id}."
    )
    assert failed.reruns == []


def test_of_two_operators_the_second_is_told_who_was_first(alice, bob, failed):
    alice.open(failed)
    bob.open(failed)
    bob.press(failed, "resume")
    tone, text = alice.told(alice.press(failed, "resume"))
    assert (tone, text) == (
        "warn",
        (
            "Nothing was done: dashboard:bob resumed the run just now. "
            "Ready: fetch is in the queue, the next free worker takes it."
        ),
    )
    assert [one.attempt for one in failed.steps] == [1, 2]


@pytest.mark.parametrize(
    ("verb", "told"),
    [("pause", "paused the run just now."), ("cancel", "cancelled the run just now.")],
)
def test_whoever_comes_second_with_a_verb_that_is_meant_for_no_place_is_told_too(
    alice, bob, at, verb, told
):
    run = at("carry", performed=False)
    alice.open(run)
    bob.open(run).press(run, verb)
    events = len(run.events)
    tone, text = alice.told(alice.press(run, verb))
    assert tone == "warn"
    assert text.startswith(f"Nothing was done: dashboard:bob {told}")
    assert len(run.events) == events


@pytest.mark.parametrize(
    ("verb", "typed", "told"),
    [
        ("run_now", {}, "let the step run at once just now."),
        ("reschedule", {"at": "2031-05-01T10:00"}, "rescheduled the step just now."),
    ],
)
def test_a_step_that_was_moved_meanwhile_is_not_moved_again(alice, bob, at, verb, typed, told):
    run = at("carry", performed=False).reschedule(datetime.fromisoformat("2031-01-01T10:00Z"))
    alice.open(run)
    bob.open(run).press(run, verb, **typed)
    _tone, text = alice.told(alice.press(run, "reschedule", at="2032-05-01T10:00"))
    assert text.startswith(f"Nothing was done: dashboard:bob {told}")
    assert run.steps[-1].scheduled_at.year != 2032


def test_a_skip_is_not_done_to_another_step_than_the_page_named(alice, bob, failed, at):
    alice.open(failed)
    bob.open(failed).press(failed, "skip")
    _tone, text = alice.told(alice.press(failed, "skip"))
    assert text.startswith("Nothing was done: dashboard:bob skipped the step just now.")
    assert failed.reload().current_step == "carry"


def test_what_moved_by_itself_is_told_without_the_name_of_who_moved_it_before(alice, at, driver):
    run = at("carry", performed=False)
    alice.open(run)
    driver.drain()
    tone, text = alice.told(alice.press(run, "run_now"))
    assert tone == "warn"
    assert text.startswith("Nothing was done: the run has moved on. Waiting for batch Errand#call")


def test_what_the_engine_did_is_told_without_a_name(alice, at, driver):
    run = at("fetch", performed=False)
    alice.open(run)
    script(fetch=crash)
    driver.drain()
    _tone, text = alice.told(alice.press(run, "run_now"))
    assert text.startswith("Nothing was done: the run has moved on. Paused on fetch: TimeoutError.")


def test_a_resume_is_meant_for_the_pause_that_the_page_showed(alice, at):
    run = at("fetch", performed=False).pause(actor="cli:bob", reason="look at it")
    alice.open(run)
    run.resume().pause(actor="cli:bob", reason="do not touch it")
    _tone, text = alice.told(alice.press(run, "resume"))
    assert text.startswith("Nothing was done: cli:bob paused the run just now.")
    assert run.reload().status == "paused"


def test_a_resume_is_not_done_when_it_would_do_another_thing_than_its_label_said(alice, at, driver):
    run = at("fetch", performed=False)
    (delivery,) = driver.take()
    run.pause()
    assert labels(alice.open(run))[0] == "[Let fetch end…]"
    driver.perform(delivery)
    _tone, text = alice.told(alice.press(run, "resume"))
    assert text.startswith("Nothing was done: the run has moved on. Paused by app after fetch.")
    assert run.reload().status == "paused"


def test_a_resume_is_not_done_where_another_release_of_the_class_has_it_do_another_thing(
    alice, at, monkeypatch
):
    run = at("fetch", stop)
    assert labels(alice.open(run))[0] == "[Continue with carry…]"
    definition = Errand._definition
    fewer = tuple(step for step in definition.steps if step.name != "carry")
    monkeypatch.setitem(registry._definitions, definition.name, replace(definition, steps=fewer))
    tone, text = alice.told(alice.press(run, "resume"))
    assert tone == "warn"
    assert text.startswith("Nothing was done: the run has moved on. Paused by itself after fetch. ")
    assert text.endswith("Resume goes on with call.")
    assert run.reload().status == "paused"


def test_a_move_between_the_look_and_the_verb_is_noticed(alice, failed, monkeypatch):
    resume = Run.resume

    def after_another(self, **arguments):
        monkeypatch.setattr(Run, "resume", resume)
        other = type(self)(self._services, self._row)
        other.resume(actor="dashboard:bob").pause(actor="dashboard:bob")
        return self.resume(**arguments)

    alice.open(failed)
    monkeypatch.setattr(Run, "resume", after_another)
    _tone, text = alice.told(alice.press(failed, "resume"))
    assert text.startswith("Nothing was done: dashboard:bob paused the run just now.")
    assert failed.reload().status == "paused"


@pytest.mark.parametrize("seen", [None, "", "paused", "paused|1|failed|x", "||||2026-11-29T03:00"])
@pytest.mark.parametrize("verb", ["resume", "resume_at", "skip", "run_now", "reschedule"])
def test_a_verb_for_a_place_without_word_of_it_is_a_bad_request(alice, failed, verb, seen):
    given = {} if seen is None else {"seen": seen}
    answer = alice.open(failed).post(failed, verb, step="fetch", at="2031-05-01T10:00", **given)
    assert answer.status_code == 400
    assert "seen" in visible_text(answer)
    assert failed.reload().status == "paused"


def test_a_verb_for_no_place_needs_no_word_of_one(alice, failed):
    assert alice.told(alice.open(failed).post(failed, "cancel"))[0] == "good"
    tone, text = alice.told(alice.post(failed, "cancel"))
    assert tone == "warn"
    assert text.startswith("Nothing was done: the run has moved on. Cancelled just now by")


def test_an_unknown_verb_is_no_page(alice, failed):
    for verb in ("destroy", "RESUME", "start", "advance"):
        assert alice.open(failed).post(failed, verb).status_code == 404


def test_what_is_no_run_s_id_is_no_page(alice, failed):
    token = alice.open(failed)
    answer = token.browser.post("/pgbus/workflows/7/actions/cancel", data={"csrf_token": "x"})
    assert answer.status_code == 400
    assert alice.post(replaced(failed, "not-an-id"), "cancel").status_code == 404


def replaced(run, workflow_id):
    return Run(run._services, replace(run._row, workflow_id=workflow_id))


def test_a_run_that_is_gone_is_told_on_the_list(alice, failed):
    alice.open(failed)
    answer = alice.post(replaced(failed, NOBODY), "cancel")
    assert answer.location == "/pgbus/workflows"
    assert alice.told(answer) == ("warn", "Nothing was done: there is no such run any more.")


def test_who_asks_again_for_an_action_s_address_comes_to_the_run(alice, failed):
    answer = alice.browser.get(f"{address(failed)}/actions/resume")
    assert (answer.status_code, answer.location) == (303, address(failed))
    assert failed.reload().status == "paused"


def test_what_can_denies_is_neither_shown_nor_done(make_site, failed):
    carol = Operator(make_site(can=lambda _request, action: action != "cancel"))
    assert carol.open(failed).offered == {"resume", "resume_at", "signal", "skip"}
    answer = carol.post(failed, "cancel")
    assert answer.status_code == 403
    assert "Nothing was done" in visible_text(answer)
    assert address(failed) in answer.text
    assert failed.reload().status == "paused"


def test_who_may_do_nothing_is_offered_nothing(make_site, failed):
    dave = Operator(make_site(can=lambda _request, _action: False)).open(failed)
    assert dave.offered == set()
    assert 'id="send"' not in dave.html
    assert "Nothing just now." in dave.html


def test_without_its_class_a_run_is_only_signalled_or_cancelled(alice, failed, monkeypatch):
    monkeypatch.delitem(registry._definitions, failed.workflow_class)
    assert alice.open(failed).offered == {"signal", "cancel"}
    assert "What has run is not undone." in alice.said("cancel")
    alice.press(failed, "cancel")
    assert failed.reload().status == "cancelled"


def test_a_verb_that_needs_the_class_is_refused_in_words_without_it(alice, failed, monkeypatch):
    alice.open(failed)
    form = alice.form("resume")
    monkeypatch.delitem(registry._definitions, failed.workflow_class)
    assert "resume" in form
    tone, text = alice.told(alice.press(failed, "resume"))
    assert tone == "warn"
    assert text == (
        f"Nothing was done: the class {failed.workflow_class} is not loaded in this process."
    )
    assert failed.reload().status == "paused"


def test_of_a_step_that_is_not_declared_only_what_can_work_is_offered(alice, failed, monkeypatch):
    definition = Errand._definition
    fewer = replace(definition, steps=definition.steps[1:])
    monkeypatch.setitem(registry._definitions, definition.name, fewer)
    assert labels(alice.open(failed)) == ["[Resume at a step…]", "Send a signal", "Cancel the run…"]


def test_a_run_whose_lock_is_not_to_be_had_is_told(alice, failed, monkeypatch):
    def held(self, **_arguments):
        raise RunLocked("held")

    alice.open(failed)
    monkeypatch.setattr(Run, "cancel", held)
    tone, text = alice.told(alice.press(failed, "cancel"))
    assert (tone, text) == (
        "warn",
        "Nothing was done: a transaction holds the run. Press again when it has ended.",
    )


def test_any_other_failure_is_told_with_its_action_and_cause_and_logged(
    alice, failed, monkeypatch, caplog
):
    def broken(self, **_arguments):
        raise ArithmeticError("<b>moon</b> in the wrong phase")

    alice.open(failed)
    monkeypatch.setattr(Run, "cancel", broken)
    with caplog.at_level(logging.ERROR, "pgbus.dashboard"):
        tone, text = alice.told(alice.press(failed, "cancel"))
    assert (tone, text) == (
        "bad",
        "Cancelling the run failed. ArithmeticError: <b>moon</b> in the wrong phase",
    )
    assert "<b>moon" not in alice.html
    (record,) = caplog.records
    assert f"cancel of run {failed.workflow_id}" in record.message
    assert record.exc_info


def test_the_text_of_a_failure_is_redacted(make_site, failed, monkeypatch):
    def broken(self, **_arguments):
        raise ArithmeticError("card 4111")

    erin = Operator(make_site(redact=lambda kind, _value: f"[{kind}]")).open(failed)
    monkeypatch.setattr(Run, "cancel", broken)
    assert erin.told(erin.press(failed, "cancel"))[1] == (
        "Cancelling the run failed. ArithmeticError: [error]"
    )


def away(*_arguments, **_named):
    raise psycopg.OperationalError("server closed the connection")


def test_with_postgresql_away_at_the_press_the_page_says_that_nobody_knows(
    alice, failed, monkeypatch
):
    alice.open(failed)
    monkeypatch.setattr(Run, "cancel", away)
    answer = alice.press(failed, "cancel")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "It is not known whether what you pressed was done" in visible_text(answer)
    assert "It is not known" not in visible_text(alice.browser.get(address(failed)))


def test_a_press_that_took_postgresql_too_long_says_that_nobody_knows(alice, failed, monkeypatch):
    def slow(self, **_arguments):
        raise ReadTimeout("15 seconds")

    alice.open(failed)
    monkeypatch.setattr(Run, "cancel", slow)
    told = visible_text(alice.press(failed, "cancel"))
    assert "It is not known whether what you pressed was done" in told


@pytest.mark.parametrize(
    ("verb", "typed", "at_the_verb", "told"),
    [
        ("cancel", {}, None, ("good", "Done. What the run does now is not known: ")),
        (
            "signal",
            {"name": "signed"},
            None,
            ("good", "Done. What the run does now is not known: "),
        ),
        ("cancel", {}, RunLocked("held"), ("warn", "Nothing was done, and why is not known: ")),
    ],
)
def test_with_postgresql_away_after_the_press_what_came_of_it_is_told_until_the_page_is_back(
    alice, failed, monkeypatch, verb, typed, at_the_verb, told
):
    act = getattr(Run, verb)
    statuses = []

    def then_away(self, *given, **named):
        answer = act(self, *given, **named) if at_the_verb is None else None
        outage.setattr(Database, "transaction", away)
        statuses.append(verb)
        if at_the_verb:
            raise at_the_verb
        return answer

    alice.open(failed)
    monkeypatch.setattr(Run, verb, then_away)
    with monkeypatch.context() as outage:
        answer = alice.press(failed, verb, **typed)
        assert answer.status_code == 303
        for _ in range(2):
            gone = alice.browser.get(answer.location)
            assert gone.status_code == 503
            assert told[1] in visible_text(gone)
    tone, text = alice.told(answer)
    assert (tone, text) == (told[0], f"{told[1]}PostgreSQL does not answer any more.")
    assert told[1] not in alice.open(failed).html
    assert statuses == [verb]


def test_a_reason_is_cut_trimmed_and_storable(alice, at):
    run = at("carry", performed=False)
    alice.open(run).press(run, "pause", reason=f" \r\n{'é' * 5000}")
    assert last(run)[2] == "é" * 1000
    alice.open(run).press(run, "resume", reason="a\r\nb\0c")
    assert of_kind(run, "resumed").reason == "a\nb␀c"
    alice.open(run).press(run, "pause", reason=" \t ")
    assert last(run)[2] is None


def test_a_hostile_reason_is_text_wherever_it_is_told(alice, bob, failed):
    alice.open(failed).press(failed, "cancel", reason="<script>alert(1)</script>\u202e")
    bob.open(failed)
    assert "<script>alert" not in bob.html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in bob.html


def test_a_form_without_a_token_does_nothing(alice, failed):
    alice.open(failed)
    answer = alice.browser.post(f"{address(failed)}/actions/cancel", data={})
    assert answer.status_code == 400
    assert failed.reload().status == "paused"


@pytest.fixture
def old_token(monkeypatch):
    """Returns the token that an operator's page of a run would have had an hour and a minute ago."""

    def old_token(operator, run):
        with monkeypatch.context() as clock:
            clock.setattr(TimestampSigner, "get_timestamp", lambda _signer: int(time.time()) - 3660)
            return hidden_fields(operator.browser.get(address(run)).text)["csrf_token"]

    return old_token


def test_what_was_typed_on_a_page_that_was_open_too_long_is_kept_and_can_be_sent(
    alice, failed, old_token
):
    typed = {"csrf_token": old_token(alice.open(failed), failed), "reason": "a <long> story"}
    form = hidden_fields(alice.form("cancel")) | typed
    answer = alice.browser.post(f"{address(failed)}/actions/cancel", data=form)
    assert answer.status_code == 422
    assert failed.reload().status == "paused"
    alice.html = answer.text
    assert re.search(r'<dialog id="d-cancel"[^>]* data-modal open>', answer.text)
    assert "The page was open too long. What you typed is kept" in alice.form("cancel")
    assert ">\na &lt;long&gt; story</textarea>" in alice.form("cancel")
    alice.press(failed, "cancel", reason="a <long> story")
    assert last(failed) == ("cancelled", "dashboard:alice", "a <long> story")


def test_of_another_session_s_old_page_nothing_is_kept(alice, bob, failed, old_token):
    token = old_token(bob, failed)
    alice.open(failed)
    answer = alice.browser.post(
        f"{address(failed)}/actions/cancel", data={"csrf_token": token, "reason": "not hers"}
    )
    assert answer.status_code == 400
    assert "not hers" not in answer.text
