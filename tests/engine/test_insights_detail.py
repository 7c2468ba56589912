"""One run with all that happened to it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from support.driving import Driver
from support.scripts import play, script

from pgbus import FanOut, RunNotFound, Workflow, fan_out, job, removed_step, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import EntryNotFound
from pgbus.engine.insights import detail as insights
from pgbus.engine.insights import events, signals
from pgbus.engine.insights.detail import AddedStep, DefinitionChange, RelatedRun
from pgbus.engine.insights.documents import Document
from pgbus.engine.insights.phases import PhaseKind
from pgbus.engine.insights.resume import ResumeKind, ResumePlan
from pgbus.engine.states import AttemptStatus, RunStatus, Verb


@job
def greet_guest(name: str) -> None: ...


class Deliver(Workflow):
    @step
    def pack(self):
        return play(self)

    @step(wait_for="paid", wait_timeout=600)
    def collect(self):
        return play(self)

    @fan_out
    def inform(self, batch: FanOut):
        batch.add(greet_guest, "a")

    @step(wait=86_400)
    def archive(self): ...


def version(**steps):
    """A version of the class `Altered`: the one loaded from now on."""
    space = type(Workflow).__prepare__("Altered", (Workflow,))
    named = {"__module__": __name__, "__qualname__": "Altered"}
    return type(Workflow)("Altered", (Workflow,), {**space, **named, **steps})


def nothing(self): ...


@pytest.fixture(autouse=True)
def _nothing_scripted():
    script()
    yield
    registry._definitions.pop(f"{__name__}.Altered", None)


@pytest.fixture
def ask(bus):
    """Asks a question of insights about a run."""

    def ask(question, run, *arguments, **options):
        with bus.services.database.autocommit() as connection:
            return question(connection, run.workflow_id, *arguments, **options)

    return ask


@pytest.fixture
def detail(bus):
    def detail(run, limit=100, inline=None):
        with bus.services.database.autocommit() as connection:
            return insights.detail(
                connection, bus.settings, run.workflow_id, limit=limit, inline=inline
            )

    return detail


def failing(message):
    def failing(self):
        raise ConnectionError(message)

    return failing


def test_a_run_is_shown_with_its_history_newest_first(bus, driver, detail):
    script(pack=lambda self: self.output(boxes=12345678901234567890, weight=0.1))
    run = Deliver.start(plan="pro", number=9_999_999_999_999_999_999)
    driver.drain()
    shown = detail(run)
    assert shown.arguments.encoded == '{"plan": "pro", "number": 9999999999999999999}'
    assert shown.arguments.size == len(shown.arguments.encoded)
    assert [one.step_name for one in shown.attempts] == ["collect", "pack"]
    assert shown.attempts[1].output.encoded == '{"boxes": 12345678901234567890, "weight": 0.1}'
    assert shown.attempts[0].output is None
    assert [one.event for one in shown.events] == [one.event for one in run.events][::-1]
    assert shown.available_actions == run.available_actions
    assert (shown.definition_digest, shown.change) == (shown.current_digest, None)
    assert not any((shown.older_attempts, shown.older_signals, shown.older_events))


def test_a_long_history_is_cut_to_its_newest_part_and_says_so(bus, driver, detail):
    run = Deliver.start()
    for name in ("lost", "lost", "lost"):
        run.signal(name)
    driver.drain()
    shown = detail(run, limit=1)
    assert [one.step_name for one in shown.attempts] == ["collect"]
    assert [one.event for one in shown.events] == ["step_waiting"]
    assert len(shown.signals) == 1
    assert shown.older_attempts
    assert shown.older_signals
    assert shown.older_events
    whole = detail(run, limit=3)
    assert (whole.older_attempts, whole.older_signals) == (False, False)


def test_the_rest_of_a_history_is_read_from_where_it_was_cut(bus, driver, ask):
    run = Deliver.start()
    for name in ("a", "b", "c"):
        run.signal(name)
    driver.drain()
    first = ask(insights.older_attempts, run, limit=1, older_than=None, inline=100)
    rest = ask(
        insights.older_attempts, run, limit=1, older_than=first.entries[-1].step_id, inline=100
    )
    assert [one.step_name for one in first.entries + rest.entries] == ["collect", "pack"]
    assert (first.more, rest.more) == (True, False)

    newest = ask(signals.newest, run, limit=2)
    older = ask(signals.newest, run, limit=2, older_than=newest.entries[-1].signal_id)
    assert [one.name for one in newest.entries + older.entries] == ["c", "b", "a"]
    assert (newest.more, older.more) == (True, False)

    told = ask(events.newest, run, 3)
    before = ask(events.newest, run, 100, older_than=told.entries[-1].event_id)
    assert [one.event for one in told.entries + before.entries] == [
        one.event for one in run.events
    ][::-1]
    assert (told.more, before.more) == (True, False)


def test_documents_that_are_larger_than_asked_for_are_only_told_of(bus, driver, detail, ask):
    script(pack=lambda self: self.output(text="ä" * 100))
    run = Deliver.start(text="x" * 100)
    run.signal("small", {"a": 1})
    run.signal("large", {"text": "y" * 100})
    driver.drain()
    shown = detail(run, inline=50)
    whole = json.dumps({"text": "ä" * 100}, ensure_ascii=False)
    assert shown.arguments == Document(None, 112)
    assert shown.attempts[1].output == Document(None, len(whole.encode()))
    assert [one.payload for one in shown.signals] == [Document(None, 112), Document('{"a": 1}', 8)]
    assert ask(insights.arguments, run) == json.dumps({"text": "x" * 100})
    packed = ask(insights.attempt, run, shown.attempts[1].step_id)
    assert packed.output.encoded == whole
    large = ask(signals.one, run, shown.signals[0].signal_id)
    assert large.payload.encoded == json.dumps({"text": "y" * 100})
    exactly = detail(run, inline=112)
    assert (exactly.arguments.encoded is None, exactly.signals[0].payload.encoded is None) == (
        False,
        False,
    )


def test_only_the_newest_error_comes_whole(bus, driver, detail, ask):
    script(pack=failing("m" * 1000))
    run = Deliver.start()
    driver.drain()
    run.resume()
    driver.drain()
    script()
    run.resume()
    driver.drain()
    _, completed, newest, older = detail(run, inline=100).attempts
    assert (completed.error_class, completed.error_cut) == (None, False)
    assert newest.error_message == "m" * 1000
    assert __file__ in json.loads(newest.encoded_error)["backtrace"][0]
    assert not newest.error_cut
    assert older.error_message == "m" * 300
    assert older.encoded_error is None
    assert older.error_cut
    whole = ask(insights.attempt, run, older.step_id)
    assert (whole.error_message, whole.error_cut) == ("m" * 1000, False)
    assert whole.encoded_error is not None
    assert [one.error_cut for one in detail(run).attempts] == [False] * 4


@pytest.mark.rows_by_hand
def test_the_times_of_an_attempt_come_from_its_row_and_its_trail(bus, driver, database, detail):
    run = Deliver.start()
    driver.drain()
    run.signal("paid")
    began = database.value("SELECT now() - interval '1 h'")
    claimed, parked = began + timedelta(seconds=10), began + timedelta(seconds=20)
    database.rows(
        "UPDATE pgbus.workflow_steps SET created_at = %s, started_at = %s"
        " WHERE step_name = 'collect'",
        began,
        claimed,
    )
    entries = [event.event_id for event in run.events if event.step_name == "collect"]
    for entry, moment in zip(entries, (began, claimed, parked), strict=False):
        database.rows(
            "UPDATE pgbus.workflow_events SET created_at = %s WHERE event_id = %s", moment, entry
        )
    collect, _ = detail(run).attempts
    kinds = [phase.kind for phase in collect.phases]
    assert kinds == [PhaseKind.QUEUED, PhaseKind.WAITING, PhaseKind.QUEUED]
    assert collect.waiting_seconds == pytest.approx(3580, abs=30)
    assert (collect.waited_seconds, collect.ran_seconds) == (0, None)
    assert collect.queued_seconds == pytest.approx(20, abs=5)


@pytest.mark.rows_by_hand
def test_the_wait_before_the_first_claim_is_known_from_the_version_it_began_on(
    bus, driver, database, detail
):
    run = version(only=step(nothing, wait_for="paid", wait=30)).start()
    database.rows("UPDATE pgbus.workflow_steps SET scheduled_at = now(), send_at = now()")
    run.run_now()
    Driver(bus).drain()
    run.signal("paid")
    database.rows(
        "UPDATE pgbus.workflow_steps SET created_at = created_at - interval '100 s';"
        "DELETE FROM pgbus.workflow_events WHERE event = 'run_now'"
    )
    (waited,) = detail(run).attempts
    assert waited.waited_seconds == pytest.approx(30, abs=1)
    assert waited.queued_seconds == pytest.approx(70, abs=10)


def test_a_pause_is_told_with_who_and_why(bus, driver, detail):
    run = Deliver.start().pause(actor="cli:alice", reason="hold")
    (pause,) = detail(run).pauses
    assert (pause.actor, pause.reason, pause.end) == ("cli:alice", "hold", None)
    assert pause.begin == run.events[-1].created_at
    run.resume()
    (pause,) = detail(run).pauses
    assert pause.end == run.events[-1].created_at


def test_the_timeline_has_the_same_times_without_documents(bus, driver, detail):
    script(pack=lambda self: self.output(a=1))
    run = Deliver.start().pause().resume()
    driver.drain()
    shown = detail(run)
    with bus.services.database.autocommit() as connection:
        timeline = insights.timeline(connection, bus.settings, run.workflow_id, limit=1)
    assert timeline.attempts[0].marks == shown.attempts[0].marks != ()
    assert timeline.pauses == shown.pauses
    assert len(timeline.attempts) == 1
    assert timeline.run.workflow_id == run.workflow_id


def test_a_paused_wait_tells_what_its_clock_shows(bus, driver, detail):
    run = Deliver.start()
    driver.drain()
    assert detail(run).attempts[0].seconds_left is None
    run.pause()
    assert detail(run).attempts[0].seconds_left == pytest.approx(600, abs=30)
    assert detail(run).resume.kind is ResumeKind.KEEP_WAITING


def test_steps_tell_what_became_of_them(bus, driver, detail):
    script(pack=failing("no"))
    run = Deliver.start()
    driver.drain()
    run.resume()
    driver.drain()
    steps = {one.name: one for one in detail(run).steps}
    assert list(steps) == ["pack", "collect", "inform", "archive"]
    pack, collect, _, archive = steps.values()
    assert (pack.status, pack.attempts, pack.here) == (AttemptStatus.FAILED, 2, True)
    assert (collect.status, collect.attempts, collect.here) == (None, 0, False)
    assert [one.to_come for one in steps.values()] == [False, True, True, True]
    assert [one.waits_for for one in steps.values()] == [None, "paid", None, None]
    assert [one.fan_out for one in steps.values()] == [False, False, True, False]
    run.cancel()
    ended = detail(run).steps
    assert not any(one.here or one.to_come for one in ended)
    assert archive.status is None


def test_what_changed_since_a_run_began_is_told_step_by_step(bus, detail):
    began = version(
        reserve=step(nothing), remind=step(nothing), export=step(nothing), ship=step(nothing)
    )
    run = began.start().pause().resume_at("remind")
    now = version(
        check=step(nothing),
        reserve=step(nothing),
        fraud=step(nothing),
        remind=step(nothing, wait=5),
        export=removed_step(),
        weigh=step(nothing),
        ship=step(nothing),
    )
    shown = detail(run)
    assert shown.change == DefinitionChange(
        added=(
            AddedStep("check", None, past=True),
            AddedStep("fraud", "reserve", past=True),
            AddedStep("weigh", "remind", past=False),
        ),
        removed=("export",),
        changed=("remind",),
        reordered=False,
    )
    assert [one.name for one in shown.steps] == [
        "check", "reserve", "fraud", "remind", "weigh", "ship",
    ]  # fmt: skip
    assert shown.current_digest == now._definition.digest
    run.cancel()
    assert all(step.past for step in detail(run).change.added)


def test_a_new_order_of_steps_is_told(bus, detail):
    run = version(one=step(nothing), two=step(nothing)).start()
    version(two=step(nothing), one=step(nothing))
    assert detail(run).change == DefinitionChange(added=(), removed=(), changed=(), reordered=True)


def test_nothing_is_told_of_a_change_where_one_version_is_unknown(bus, database, detail):
    run = version(one=step(nothing)).start()
    version(two=step(nothing))
    database.rows("DELETE FROM pgbus.workflow_definitions")
    assert detail(run).change is None


@pytest.mark.rows_by_hand
def test_a_run_whose_class_is_not_loaded_offers_only_what_needs_no_class(bus, database, detail):
    run = Deliver.start()
    database.rows("UPDATE pgbus.workflows SET workflow_class = 'gone.Gone', status = 'paused'")
    shown = detail(run)
    assert not shown.run.class_loaded
    assert shown.available_actions == (Verb.CANCEL, Verb.SIGNAL)
    assert (shown.current_digest, shown.change, shown.steps, shown.resume) == (None, None, (), None)


def test_a_paused_run_tells_what_resume_would_do(bus, driver, detail):
    script(pack=failing("no"))
    run = Deliver.start()
    assert detail(run).resume is None
    driver.drain()
    assert detail(run).resume == ResumePlan(ResumeKind.RETRY, "pack", 0.0)


def test_a_run_and_its_reruns_know_of_each_other(bus, database, detail):
    run = Deliver.start().cancel()
    again, newest = run.rerun(), run.rerun().cancel()
    assert detail(run).reruns == (
        RelatedRun(newest.workflow_id, RunStatus.CANCELLED),
        RelatedRun(again.workflow_id, RunStatus.READY),
    )
    assert detail(again).rerun_of == RelatedRun(run.workflow_id, RunStatus.CANCELLED)
    assert detail(run).rerun_of is None
    database.rows("DELETE FROM pgbus.workflows WHERE workflow_id = %s", run.workflow_id)
    assert detail(again).rerun_of == RelatedRun(run.workflow_id, None)


def test_a_signal_tells_which_attempt_took_it(bus, driver, detail):
    run = Deliver.start()
    run.signal("lost", None, "key", actor="shop")
    run.signal("paid", reason="PSP")
    driver.drain()
    taken, lost = detail(run).signals
    assert (lost.name, lost.status, lost.idempotency_key) == ("lost", "pending", "key")
    assert (lost.payload, lost.actor, lost.attempt) == (Document("{}", 2), "shop", None)
    assert (taken.status, taken.step_name, taken.attempt) == ("consumed", "collect", 1)
    assert taken.reason == "PSP"


@pytest.mark.rows_by_hand
def test_an_event_that_only_a_newer_pgbus_knows_is_shown(bus, database, detail):
    run = Deliver.start()
    database.rows("UPDATE pgbus.workflow_events SET event = 'teleported' WHERE event = 'started'")
    assert detail(run).events[-1].event == "teleported"


def test_what_does_not_exist_is_refused_by_its_id(bus, database, detail, ask):
    run, other = Deliver.start(), Deliver.start()
    signal = other.signal("paid")
    (attempt,) = other.steps
    with pytest.raises(EntryNotFound, match=f"{run.workflow_id} has no attempt {attempt.step_id}"):
        ask(insights.attempt, run, attempt.step_id)
    with pytest.raises(EntryNotFound, match=f"has no signal {signal.signal_id}"):
        ask(signals.one, run, signal.signal_id)
    database.rows("DELETE FROM pgbus.workflows WHERE workflow_id = %s", run.workflow_id)
    with pytest.raises(RunNotFound, match=run.workflow_id):
        detail(run)
    with pytest.raises(RunNotFound, match=run.workflow_id):
        ask(insights.arguments, run)
