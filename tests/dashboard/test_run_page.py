"""The page of one run, and the pages of the parts of its history."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape

import pytest
from support.sites import site_of, visible_text

from pgbus import FanOut, Workflow, fan_out, job, on_exception, step
from pgbus.dashboard.pages import run as pages
from pgbus.engine.definition import registry

NOBODY = "01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58"
EVIL = '"><img src=x onerror=alert(1)>'


class Refused(Exception): ...


@job
def inform_vendor(number): ...


class ShownWorkflow(Workflow):
    policies = (on_exception(Refused, action="reattempt", max_reattempts=2),)

    @step
    def reserve(self):
        self.output(reservation=9007199254740993123, weight=0.10)

    @step
    def capture(self):
        if self.arguments.get("fails"):
            try:
                float("timed out")
            except ValueError as error:
                raise Refused("no answer from https://pay.example") from error

    @step(wait_for="paid", wait_timeout=timedelta(hours=6))
    def collect(self):
        return None

    @fan_out
    def inform(self, batch: FanOut):
        batch.add_many(inform_vendor, [(number,) for number in range(12)])

    @step
    def receipt(self): ...


class PollingWorkflow(Workflow):
    policies = (on_exception(Refused, action="reattempt", max_reattempts=None),)

    @step
    def poll_the_carrier(self):
        self.output(answer="still working on it", at=self.attempt)
        raise Refused(f"attempt {self.attempt}: the parcel is not there yet")


@pytest.fixture
def run_page(client):
    """Gets the page of a run, or of a part of it."""

    def run_page(run, part="", status=200):
        answer = client.get(f"/pgbus/workflows/{run.workflow_id}{part}")
        assert answer.status_code == status
        return answer

    return run_page


@pytest.fixture
def failed(bus, driver):
    """A run that paused after three failures in a row."""
    run = bus.start(ShownWorkflow, fails=True, order_id=9223372036854775807)
    driver.drain()
    return run.reload()


@pytest.fixture
def waiting(bus, driver):
    run = bus.start(ShownWorkflow)
    driver.drain()
    return run.reload()


@pytest.fixture
def long(bus, driver):
    """A run with 130 attempts, over 1,000 events and 40 signals."""
    run = bus.start(PollingWorkflow, order=1)
    for _ in range(130):
        (delivery,) = driver.take()
        driver.perform(delivery)
    for number in range(40):
        run.signal("answer", {"number": number, "text": "z" * 80}, actor="webhook")
    for number in range(300):
        run.pause(actor="dashboard:alice", reason=f"look {number}").resume(actor="dashboard:alice")
    return run.pause()


def section(answer, heading):
    """Returns the HTML of the section whose heading has this id."""
    return re.search(
        rf'<section[^>]*aria-labelledby="{heading}".*?</section>', answer.text, re.DOTALL
    )[0]


def test_its_title_is_what_it_does_and_what_happens_next(run_page, failed, waiting):
    (title,) = re.findall("<h1>(.*?)</h1>", run_page(failed).text)
    assert title == (
        'Paused on <code>capture</code>: <code title="test_run_page.Refused">Refused</code>. '
        "Resume tries it again, or cancel."
    ).replace("test_run_page", __name__)
    assert "<h1>Waiting for signal <code>paid</code>" in run_page(waiting).text


def test_it_opens_with_what_happened(run_page, failed):
    told = visible_text(run_page(failed))
    assert (
        "What happened capture failed 3 times in a row, the last time just now on test:1." in told
    )
    assert "Paused just now: gave up after 2 reattempts" in told
    assert f"{__name__}.Refused : no answer from https://pay.example" in told


def test_a_single_failure_is_not_counted(bus, driver, run_page):
    run = bus.start(ShownWorkflow, fails=True)
    (delivery,) = driver.take()
    driver.perform(delivery)
    told = visible_text(run_page(run))
    assert "What happens next capture failed just now on test:1." in told
    assert "Attempt 2 of capture" in told


def test_failures_that_may_go_on_further_back_are_counted_as_a_least(run_page, long):
    told = visible_text(run_page(long))
    assert "poll_the_carrier failed at least 99 times in a row, the last time " in told


def test_failures_of_which_the_page_has_the_first_are_all(failed, driver, run_page, monkeypatch):
    failed.resume_at("reserve")
    driver.drain()
    monkeypatch.setattr(pages, "LIMIT", 4)
    answer = run_page(failed)
    assert "Older attempts" in answer.text
    assert "capture failed 3 times in a row" in visible_text(answer)


def test_a_pause_by_a_person_is_told_with_who_and_why(bus, run_page):
    run = bus.start(ShownWorkflow).pause(actor="dashboard:ליאת", reason="SMTP <b>down</b>")
    told = visible_text(run_page(run))
    assert "Paused just now by dashboard:ליאת: SMTP <b>down</b>" in told


def test_a_wait_shows_how_much_of_it_is_over(database, run_page, waiting):
    database.rows(
        "UPDATE pgbus.workflow_steps SET waiting_since = now() - interval '3 h',"
        " timeout_at = now() + interval '1 h' WHERE waiting_since IS NOT NULL"
    )
    answer = run_page(waiting)
    assert 'aria-label="Waited 3 h of 4 h"><rect class="c-waiting" width="75"' in answer.text
    assert "collect takes signal paid. None is pending." in visible_text(answer)
    waiting.signal("other")
    assert "1 other signal is pending, which it does not take." in visible_text(run_page(waiting))


def test_a_wait_for_a_batch_shows_how_much_is_done_and_leads_to_it(
    bus, driver, database, run_page, waiting
):
    waiting.signal("paid")
    for delivery in driver.take():
        driver.perform(delivery)
    (delivery,) = driver.take()
    driver.perform(delivery)
    database.rows("UPDATE pgbus.batch_counters SET open = open - 1 WHERE counter < 3")
    answer = run_page(waiting)
    (batch,) = database.rows("SELECT batch_id::text FROM pgbus.batches")
    assert 'aria-label="3 of 12 jobs done"><rect class="c-waiting" width="25"' in answer.text
    assert f'href="/pgbus/batches/{batch[0]}"' in answer.text


def test_a_running_step_tells_since_when_and_where(bus, driver, run_page):
    run = bus.start(ShownWorkflow)
    driver.take()
    told = visible_text(run_page(run))
    assert re.search(r"What it is doing Attempt 1 of reserve has run for \S+ \w+ on test:1\.", told)


def test_an_ended_run_tells_how_long_it_took_and_why_it_ended(bus, run_page):
    run = bus.start(ShownWorkflow).cancel(actor="dashboard:alice", reason="ordered twice")
    told = visible_text(run_page(run))
    assert "The reason given: ordered twice" in told
    assert "from its start." in told
    assert "What you can do" in told
    assert "data-live=" not in run_page(run).text


def test_an_ongoing_run_is_followed(run_page, waiting):
    assert 'data-live="' in run_page(waiting).text


def test_the_newest_error_is_shown_with_its_backtrace_and_causes(run_page, failed):
    table = section(run_page(failed), "h-att")
    assert table.count('id="error"') == 1
    assert re.search(rf"{re.escape(__file__)}:\d+ in ShownWorkflow.capture", table)
    assert "caused by" in table
    assert '<span class="ename">ValueError</span> <bdi class="pre">could not convert' in table
    assert table.count("Refused: no answer") == 2
    assert table.count("Failed, reattempted") == 2


def test_an_output_keeps_every_digit(run_page, failed):
    assert '{"weight": 0.1, "reservation": 9007199254740993123}' in section(
        run_page(failed), "h-att"
    )
    assert '{"fails": true, "order_id": 9223372036854775807}' in run_page(failed).text


def test_a_column_that_says_nothing_is_left_out(database, run_page, failed):
    assert ">Waiting<" not in section(run_page(failed), "h-att")
    database.rows(
        "UPDATE pgbus.workflow_steps SET created_at = created_at - interval '10 s'"
        " WHERE step_name = 'reserve'"
    )
    table = section(run_page(failed), "h-att")
    assert 'data-l="Queued">10 s</td>' in table or 'data-l="Until due">10 s</td>' in table


def test_the_trail_is_told_in_sentences_newest_first(run_page, failed):
    failed.resume(actor="dashboard:alice", reason="SMTP fixed")
    trail = visible_text_of(section(run_page(failed), "h-trail"))
    assert trail.index("Resumed by dashboard:alice: SMTP fixed") < trail.index("Started by app")


def visible_text_of(html):
    return " ".join(
        unescape(re.sub("<[^>]*>", " ", re.sub("</?(?:q|bdi|code|wbr)>", "", html))).split()
    )


def test_signals_tell_what_took_them(run_page, waiting, driver):
    waiting.signal("paid", {"psp": 8835412297113406712}, "evt_1", actor="webhook")
    waiting.signal("later")
    signals = visible_text_of(section(run_page(waiting), "h-sig"))
    assert "paid Claimed" in signals
    assert '{"psp": 8835412297113406712} evt_1' in signals
    assert "webhook collect, attempt 1 claimed just now" in signals
    assert "later Pending {}" in signals
    driver.drain()
    signals = visible_text_of(section(run_page(waiting), "h-sig"))
    assert "collect, attempt 1 claimed just now , consumed just now" in signals


def test_a_run_without_signals_says_nothing_of_them(run_page, failed):
    assert "h-sig" not in run_page(failed).text


def test_steps_tell_what_became_of_them_and_what_is_to_come(run_page, failed):
    told = visible_text(run_page(failed))
    assert (
        "Steps reserve completed capture failed, here now collect next, waits for a signal "
        "inform to come, fan-out receipt to come Arguments"
    ) in told
    failed.cancel()
    assert "receipt not in this run" in visible_text(run_page(failed))


def version(**steps):
    space = type(Workflow).__prepare__("ChangedWorkflow", (Workflow,))
    named = {"__module__": __name__, "__qualname__": "ChangedWorkflow"}
    return type(Workflow)("ChangedWorkflow", (Workflow,), {**space, **named, **steps})


def nothing(self): ...


def test_a_change_of_the_class_is_told(bus, run_page):
    began = version(one=step(nothing), two=step(nothing), three=step(nothing))
    run = bus.start(began).pause().resume_at("two")
    version(
        zero=step(nothing), one=step(nothing), check=step(nothing), two=step(nothing, wait=9),
        four=step(nothing),
    )  # fmt: skip
    told = visible_text(run_page(run))
    for line in (
        "The class changed since this run began",
        "zero added as the first; this run is past it and will not do it",
        "check added after one; this run is past it and will not do it",
        "four added after two; this run will come to it",
        "three removed",
        "The options of two changed",
    ):
        assert line in told
    version(two=step(nothing), one=step(nothing), three=step(nothing))
    assert "The order of the steps changed" in visible_text(run_page(run))
    registry._definitions.pop(f"{__name__}.ChangedWorkflow")
    assert "The class changed" not in run_page(run).text


def test_the_facts_name_who_started_it_its_key_and_its_relatives(bus, run_page):
    run = bus.start(ShownWorkflow).cancel()
    again = run.rerun(actor="cli:bo", reason="again")
    told = run_page(again).text
    assert f'href="/pgbus/workflows/{run.workflow_id}"' in told
    assert f"…{run.workflow_id[-8:]}, cancelled" in visible_text(run_page(again))
    assert f"…{again.workflow_id[-8:]}, ongoing" in visible_text(run_page(run))
    assert "by cli:bo" in visible_text(run_page(again))
    keyed = ShownWorkflow.options(idempotency_key="checkout-7").start()
    assert "Start key checkout-7" in visible_text(run_page(keyed))


@pytest.mark.parametrize("class_name", ["gone.Gone", f"x.{EVIL}"])
def test_a_run_whose_class_is_not_loaded_is_shown(database, run_page, failed, class_name):
    database.rows("UPDATE pgbus.workflows SET workflow_class = %s", class_name)
    answer = run_page(failed)
    assert "not loaded here" in visible_text(answer)
    assert "<img" not in answer.text


def test_the_chart_is_framed_before_it_is_drawn(run_page, failed):
    frame = section(run_page(failed), "h-time")
    assert f'data-source="/pgbus/workflows/{failed.workflow_id}/timeline.json"' in frame
    assert '<svg width="1" height="' in frame
    swatches = re.findall('data-swatch="([a-z_]+)"', frame)
    drawn = json.loads(run_page(failed, "/timeline.json").text)
    assert {*drawn["bars"], *drawn["marks"]} <= set(swatches)
    assert run_page(failed, "/timeline.json").mimetype == "application/json"


def test_the_policy_forbids_inline_styles_and_scripts_also_beside_a_chart(run_page, failed):
    answer = run_page(failed)
    assert " style=" not in answer.text
    assert not re.search(r"<script(?![^>]* src=)", answer.text)
    assert not re.search(r"\son[a-z]+=", answer.text)


def test_many_attempts_and_events_make_a_small_page_with_ways_to_the_rest(run_page, long):
    answer = run_page(long)
    assert len(answer.data) < 150_000
    attempts = section(answer, "h-att")
    assert attempts.count('<tr role="row" data-key=') == 100
    assert section(answer, "h-trail").count("<li data-key=") == 100
    assert section(answer, "h-sig").count('<tr role="row" data-key=') == 25
    for part, least in (("attempts", 30), ("signals", 15), ("events", 100)):
        (older,) = re.findall(
            rf'href="(/pgbus/workflows/[^"]*/{part}\?older_than=\d+)"', answer.text
        )
        rest = run_page(long, older[len(f"/pgbus/workflows/{long.workflow_id}") :])
        assert len(rest.data) < 150_000
        assert rest.text.count("data-key=") >= least


def test_the_history_is_paged_to_its_beginning(run_page, long):
    seen, part = [], "/attempts"
    while part:
        answer = run_page(long, part)
        seen += re.findall(r'<tr role="row" data-key="(\d+)"', answer.text)
        following = re.search(r'href="[^"]*(/attempts\?older_than=\d+)" rel="next"', answer.text)
        part = following and following[1]
    assert seen == [str(attempt.step_id) for attempt in reversed(long.steps)]


def test_a_page_behind_the_beginning_says_so(run_page, failed):
    for part in ("attempts", "signals", "events"):
        answer = run_page(failed, f"/{part}?older_than=1")
        assert "Nothing further back" in answer.text
        assert f'/{part}">Newest</a>' in answer.text


def test_an_attempt_has_a_page_with_all_of_its_error_and_output(bus, driver, run_page):
    run = bus.start(PollingWorkflow)
    for _ in range(2):
        (delivery,) = driver.take()
        driver.perform(delivery)
    first = run.steps[0]
    answer = run_page(run, f"/attempts/{first.step_id}")
    assert "<h1>poll_the_carrier, attempt 1</h1>" in answer.text
    assert "attempt 1: the parcel is not there yet" in answer.text
    assert '"answer": "still working on it"' in answer.text
    assert re.search(rf"{re.escape(__file__)}:\d+ in PollingWorkflow", answer.text)


def test_a_long_error_is_cut_on_the_page_of_the_run_and_whole_on_its_own(
    database, run_page, failed
):
    database.rows("UPDATE pgbus.workflow_steps SET error_message = repeat('w', 5000)")
    newest = failed.steps[-1].step_id
    assert "w" * 2001 not in run_page(failed).text
    assert (
        f'href="/pgbus/workflows/{failed.workflow_id}/attempts/{newest}">Show all of it'
        in run_page(failed).text
    )
    assert "w" * 5000 in run_page(failed, f"/attempts/{newest}").text


def test_large_documents_are_shown_on_pages_of_their_own(bus, driver, run_page):
    run = bus.start(ShownWorkflow, text="x" * 3000, number=12345678901234567890)
    signal = run.signal("paid", {"text": "y" * 3000})
    answer = run_page(run)
    assert "xxx" not in answer.text
    assert "yyy" not in answer.text
    assert "Show all, 3 KB" in visible_text(answer)
    assert f'/{run.workflow_id}/arguments"' in answer.text
    assert f'/{run.workflow_id}/signals/{signal.signal_id}"' in answer.text
    arguments = run_page(run, "/arguments").text
    assert "x" * 3000 in arguments
    assert '"number": 12345678901234567890' in arguments
    payload = run_page(run, f"/signals/{signal.signal_id}")
    assert "y" * 3000 in payload.text
    assert "<h1>Payload of signal paid</h1>" in payload.text


def test_what_the_host_redacts_is_shown_nowhere(bus, driver):
    def redact(kind, value):
        return f"[{kind}]"

    client = site_of(bus, redact=redact).test_client()
    run = bus.start(ShownWorkflow, fails=True, secret="geheim")
    signal = run.signal("paid", {"secret": "geheim"})
    driver.drain()
    page = f"/pgbus/workflows/{run.workflow_id}"
    attempts = [f"/attempts/{one.step_id}" for one in run.steps]
    texts = {
        part: client.get(page + part).text
        for part in (
            "", "/attempts", "/signals", "/events", "/arguments", f"/signals/{signal.signal_id}",
            *attempts,
        )
    }  # fmt: skip
    for part, text in texts.items():
        assert "geheim" not in text, part
        assert "no answer from" not in text, part
        assert "9007199254740993123" not in text, part
        assert "timed out" not in text, part
    for kind in ("arguments", "output", "payload", "error"):
        assert f"[{kind}]" in texts[""]


def test_hostile_texts_are_text(bus, database, driver, run_page):
    run = bus.start(ShownWorkflow, **{EVIL: EVIL}, fails=True)
    driver.drain()
    run.signal(EVIL, {EVIL: EVIL}, EVIL, actor=EVIL, reason=EVIL)
    run.resume(actor=EVIL, reason=EVIL)
    driver.drain()
    database.rows(
        "UPDATE pgbus.workflow_steps SET step_name = step_name || %s, worker = %s, revision = %s,"
        " error_class = %s, error_message = %s",
        EVIL, EVIL, EVIL, EVIL, EVIL,
    )  # fmt: skip
    database.rows(
        "UPDATE pgbus.workflows SET workflow_class = %s, subject_type = %s, subject_id = %s,"
        " current_step = %s, idempotency_key = %s",
        EVIL, EVIL, EVIL, EVIL, EVIL,
    )  # fmt: skip
    database.rows("UPDATE pgbus.workflow_events SET event = %s, step_name = %s", EVIL, EVIL)
    signal, attempt = run.signals[0].signal_id, run.steps[0].step_id
    for part in (
        "", "/attempts", "/signals", "/events", "/arguments", f"/signals/{signal}", f"/attempts/{attempt}",
    ):  # fmt: skip
        assert "<img" not in run_page(run, part).text, part
    assert "<img" not in run_page(run, "/timeline.json").text


@pytest.mark.parametrize(
    "part",
    [
        "", "/timeline.json", "/attempts", "/signals", "/events", "/arguments", "/attempts/1",
        "/signals/1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("workflow_id", [NOBODY, "7", EVIL, NOBODY + "0"])
def test_what_does_not_exist_is_a_page_that_says_so(client, workflow_id, part):
    answer = client.get(f"/pgbus/workflows/{workflow_id}{part}")
    assert answer.status_code == 404
    assert "<img" not in answer.text


@pytest.mark.parametrize("number", ["0", "999999", "9" * 18, "9" * 40, "-1", "x", "٣", "1.5"])
def test_an_entry_that_the_run_does_not_have_is_not_found(run_page, failed, number):
    run_page(failed, f"/attempts/{number}", status=404)
    run_page(failed, f"/signals/{number}", status=404)


def test_an_entry_of_another_run_is_not_found(bus, run_page, failed, waiting):
    other = waiting.steps[0].step_id
    run_page(failed, f"/attempts/{other}", status=404)
    run_page(waiting, f"/attempts/{other}")


@pytest.mark.parametrize("older_than", ["x", "-1", "9" * 30, EVIL])
@pytest.mark.parametrize("part", ["attempts", "signals", "events"])
def test_a_place_that_cannot_be_read_is_named(run_page, failed, part, older_than):
    answer = run_page(failed, f"/{part}?older_than={older_than}", status=400)
    assert "older_than" in answer.text
    assert "<img" not in answer.text


def test_its_subject_is_linked_where_the_host_says(bus, database, failed):
    database.rows("UPDATE pgbus.workflows SET subject_type = 'Order', subject_id = '7'")
    client = site_of(
        bus, subject_url=lambda kind, key: f"https://shop.example/{kind}/{key}"
    ).test_client()
    text = client.get(f"/pgbus/workflows/{failed.workflow_id}").text
    assert text.count('href="https://shop.example/Order/7"') == 2
