"""How long a step waits for its signal, and what becomes of it then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import blinker
import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker
from support.driving import Driver
from support.hosts import messages
from support.replay import told
from support.scripts import play, script

from pgbus import Workflow, on_exception, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import InvalidTransition
from pgbus.engine.observe.emission import WaitTimedOut
from pgbus.engine.runner import waits
from pgbus.engine.states import AttemptStatus, Event, OnTimeout, Outcome, RunStatus

WEEK = timedelta(days=7)


class Declined(Exception): ...


class Waiter(Workflow):
    """Its steps wait a week for `go`; each does another thing then."""

    @step(wait_for="go", wait_timeout=WEEK)
    def pauses(self): ...

    @step(wait_for="go", wait_timeout=WEEK, on_timeout="cancel")
    def cancels(self): ...

    @step(wait_for="go", wait_timeout=WEEK, on_timeout="skip")
    def skips(self): ...

    @step(wait_for="go", wait_timeout=WEEK, on_timeout="run")
    def runs(self):
        return play(self)

    @step(wait_for="go", wait_timeout=WEEK, on_timeout="notify")
    def notifies(self):
        return play(self)

    @step
    def after(self): ...


class Asking(Workflow):
    """Its deadlines are what `deadline` gives, asked of the instance."""

    deadline: ClassVar[Any] = None

    def until(self):
        return type(self).deadline(self)

    @step(
        wait_for="go",
        wait_timeout="until",
        policies=[
            on_exception(Declined, action="skip"),
            on_exception(LookupError, action="reattempt", max_reattempts=2),
        ],
    )
    def pauses(self):
        return play(self)

    @step(wait_for="go", wait_timeout=lambda self: self.until(), on_timeout="run")
    def runs(self):
        return play(self)

    @step(
        wait_for="go",
        wait_timeout="until",
        on_timeout="notify",
        policies=[on_exception(Declined, action="skip")],
    )
    def notifies(self):
        return play(self)

    @step
    def after(self): ...


@pytest.fixture
def bus_options(database):
    return {"session_factory": sessionmaker(database.engine)}


@pytest.fixture(autouse=True)
def no_script():
    yield
    script()


@pytest.fixture
def park(bus, driver, monkeypatch):
    """Starts a run on this step and lets it come to its gate; `until` gives its deadline."""

    def park(step_name, until=None):
        monkeypatch.setattr(Asking, "deadline", until)
        workflow = Asking if until else Waiter
        run = workflow.start().pause().resume_at(step_name)
        driver.drain()
        return run.reload()

    return park


@pytest.fixture
def expire(bus, driver):
    """Asks for a run's wait to end; returns whether it did something."""
    return lambda run: waits.expire(bus.services, driver.worker, run.workflow_id)


@pytest.fixture
def late(database):
    """Moves a waiting run's deadline so far into the past."""

    def late(run, by=timedelta(minutes=1)):
        database.rows(
            "UPDATE pgbus.workflow_steps SET timeout_at = clock_timestamp() - %s"
            " WHERE workflow_id = %s AND timeout_at IS NOT NULL",
            by, run.workflow_id,
        )  # fmt: skip
        return newest(run).timeout_at

    return late


@pytest.fixture
def heard():
    payloads = []
    receiver = payloads.append
    blinker.signal("pgbus.workflow.wait_timed_out").connect(receiver)
    return payloads, receiver


def newest(run):
    return run.reload().steps[-1]


def waited(run, step_name):
    return [
        attempt for attempt in run.steps if attempt.step_name == step_name and attempt.started_at
    ]


def clock(database):
    return database.value("SELECT clock_timestamp()")


def returning(value):
    return lambda self: value


def raising(error):
    def ask(_self):
        raise error

    return ask


# When it is over


def test_a_duration_counts_from_the_moment_it_parks(database, park):
    before = clock(database)
    run = park("pauses")
    attempt = newest(run)
    assert before + WEEK <= attempt.timeout_at <= clock(database) + WEEK
    assert abs(attempt.timeout_at - attempt.waiting_since - WEEK) < timedelta(seconds=1)
    assert run.events[-1].event is Event.STEP_WAITING
    told_of = run.events[-1].details
    assert told_of["wait_for"] == "go"
    assert datetime.fromisoformat(told_of["timeout_at"]) == attempt.timeout_at


def test_a_wait_before_its_deadline_goes_on(park, expire):
    run = park("pauses")
    assert expire(run) is False
    assert run.reload().status is RunStatus.WAITING
    assert told(run)[-1] is Event.STEP_WAITING


def test_a_wait_without_a_deadline_goes_on(park, expire):
    run = park("pauses", until=returning(None))
    assert (newest(run).timeout_at, expire(run)) == (None, False)


def test_at_its_deadline_a_wait_pauses_the_run(database, park, expire, late, heard):
    run = park("pauses")
    since, missed = newest(run).waiting_since, late(run)
    assert expire(run) is True
    attempt = newest(run)
    assert run.status is RunStatus.PAUSED
    assert (attempt.status, attempt.outcome) == (AttemptStatus.FAILED, Outcome.PAUSED)
    assert attempt.error_class == "pgbus.engine.errors.WaitTimedOut"
    assert attempt.error_message == (
        f"Step 'pauses' waited for the signal 'go' since {since.isoformat()}; "
        f"none came until {missed.isoformat()}."
    )
    assert (attempt.waiting_since, attempt.timeout_at, attempt.timed_out) == (None, None, False)
    assert told(run)[-3:] == [Event.WAIT_TIMED_OUT, Event.STEP_FAILED, Event.PAUSED]
    assert run.events[-3].details == {
        "wait_for": "go", "action": "pause", "timeout_at": missed.isoformat()
    }  # fmt: skip
    assert {event.actor for event in run.events[-3:]} == {"system"}
    payload = WaitTimedOut(run.workflow_class, run.workflow_id, "pauses", OnTimeout.PAUSE)
    assert heard[0] == [payload]
    assert messages(database) == []


def test_at_its_deadline_a_wait_cancels_the_run(park, expire, late):
    run = park("cancels")
    late(run)
    assert expire(run) is True
    attempt = newest(run)
    assert (run.status, attempt.outcome) == (RunStatus.CANCELLED, Outcome.CANCELLED)
    assert attempt.error_class == "pgbus.engine.errors.WaitTimedOut"
    assert run.ended_at is not None
    assert run.events[-3].details["action"] == "cancel"


def test_at_its_deadline_a_wait_is_skipped_and_the_run_moves_on(driver, park, expire, late):
    run = park("skips")
    late(run)
    assert expire(run) is True
    (attempt,) = waited(run, "skips")
    assert (attempt.status, attempt.outcome) == (AttemptStatus.SKIPPED, Outcome.SKIPPED)
    assert (run.reload().status, run.current_step) == (RunStatus.READY, "runs")
    driver.drain()
    assert run.reload().status is RunStatus.WAITING


def test_at_its_deadline_the_body_runs_without_a_signal(database, driver, park, expire, late):
    run = park("runs")
    missed = late(run)
    got = []
    script(
        runs=lambda self: got.append(
            (self.timed_out, self.received_signal, self.signal_ready, self.woken)
        )
    )
    assert expire(run) is True
    attempt = newest(run)
    assert (run.status, attempt.status, attempt.attempt) == (
        RunStatus.READY, AttemptStatus.SCHEDULED, 1
    )  # fmt: skip
    assert told(run)[-2:] == [Event.WAIT_TIMED_OUT, Event.STEP_SCHEDULED]
    assert run.events[-2].details == {
        "wait_for": "go", "action": "run", "timeout_at": missed.isoformat()
    }  # fmt: skip
    assert len(messages(database)) == 1
    driver.drain()
    assert got == [(True, None, False, False)]
    assert run.reload().current_step == "notifies"


def test_under_notify_the_same_attempt_waits_on_until_one_wait_timeout_later(
    database, park, expire, late, heard
):
    run = park("notifies")
    missed = late(run)
    assert expire(run) is True
    attempt = newest(run)
    assert (run.status, attempt.status, attempt.attempt) == (
        RunStatus.WAITING, AttemptStatus.WAITING, 1
    )  # fmt: skip
    assert (attempt.timeout_at, attempt.late_since) == (missed + WEEK, missed)
    notice = run.events[-1]
    assert (notice.event, notice.from_status, notice.to_status) == (
        Event.WAIT_TIMED_OUT, RunStatus.WAITING, RunStatus.WAITING
    )  # fmt: skip
    assert notice.details == {
        "wait_for": "go", "action": "notify", "timeout_at": missed.isoformat()
    }  # fmt: skip
    payload = WaitTimedOut(run.workflow_class, run.workflow_id, "notifies", OnTimeout.NOTIFY)
    assert heard[0] == [payload]
    assert messages(database) == []
    assert expire(run) is False


def test_several_missed_deadlines_are_told_of_once(park, expire, late, database):
    run = park("notifies")
    missed = late(run, by=2 * WEEK + timedelta(days=1))
    assert expire(run) is True
    assert newest(run).timeout_at == missed + 3 * WEEK > clock(database)
    assert told(run).count(Event.WAIT_TIMED_OUT) == 1
    assert expire(run) is False


def test_a_second_notice_keeps_since_when_the_wait_is_late(park, expire, late):
    run = park("notifies")
    first = late(run, by=timedelta(hours=2))
    expire(run)
    second = late(run)
    assert expire(run) is True
    assert (newest(run).late_since, newest(run).timeout_at) == (first, second + WEEK)


def test_a_signal_after_a_late_notice_wakes_the_step_as_usual(driver, park, expire, late):
    run = park("notifies")
    late(run)
    expire(run)
    got = []
    script(
        notifies=lambda self: got.append((self.received_signal.payload, self.timed_out, self.woken))
    )
    run.signal("go", {"n": 1})
    driver.drain()
    assert got == [({"n": 1}, False, True)]
    assert run.reload().status is RunStatus.FINISHED


@pytest.mark.parametrize("step_name", ["pauses", "runs", "skips"])
def test_a_signal_after_the_deadline_had_its_effect_stays_pending(
    driver, park, expire, late, step_name
):
    run = park(step_name)
    late(run)
    expire(run)
    seen = []
    script(runs=lambda self: seen.append(self.received_signal), notifies=lambda self: None)
    run.signal("go")
    assert [str(signal.status) for signal in run.signals] == ["pending"]
    driver.drain()
    assert waited(run, step_name)[0].timed_out is (step_name == "runs")
    if step_name == "runs":
        # The next step that waits for it has it instead.
        assert (seen, run.signals[0].step_name) == ([None], "notifies")


def test_a_signal_that_comes_past_the_deadline_and_before_the_sweep_counts(
    driver, park, expire, late
):
    run = park("pauses")
    late(run)
    run.signal("go")
    assert expire(run) is False
    driver.drain()
    assert waited(run, "pauses")[0].status is AttemptStatus.COMPLETED


def test_two_that_expire_a_wait_do_it_once(bus, park, expire, late):
    run = park("pauses")
    late(run)
    other = Driver(bus, name="other:1")
    assert expire(run) is True
    assert waits.expire(bus.services, other.worker, run.workflow_id) is False
    assert told(run).count(Event.WAIT_TIMED_OUT) == 1


def test_a_wait_can_be_ended_early(bus, driver, park):
    run = park("runs")
    assert waits.expire(bus.services, driver.worker, run.workflow_id, early=True) is True
    assert newest(run).timed_out is True


@pytest.mark.parametrize("state", ["ready", "finished", "failed"])
def test_what_does_not_wait_does_not_time_out(park, expire, state):
    run = park("pauses")
    match state:
        case "ready":
            run.signal("go")
        case "finished":
            run.cancel()
        case "failed":
            run.pause().resume_at("after")
    trail = told(run)
    assert expire(run) is False
    assert told(run) == trail


def test_a_resumed_run_waits_anew_after_its_deadline_paused_it(driver, park, expire, late):
    run = park("pauses")
    late(run)
    expire(run)
    ended = newest(run)
    run.resume()
    driver.drain()
    attempt = newest(run)
    assert (attempt.attempt, attempt.status) == (ended.attempt + 1, AttemptStatus.WAITING)
    assert attempt.timeout_at > attempt.waiting_since + WEEK - timedelta(seconds=5)


def test_under_run_a_reattempt_parks_and_asks_for_its_deadline_again(driver, park, expire, late):
    asked = []

    def until(self):
        asked.append((self.attempt, self.timed_out))
        return WEEK

    run = park("runs", until=until)
    script(runs=lambda self: self.attempt == 1 and self.reattempt())
    late(run)
    expire(run)
    driver.drain()
    attempt = newest(run)
    assert (attempt.attempt, attempt.status, attempt.timed_out) == (2, AttemptStatus.WAITING, False)
    assert asked == [(1, False), (2, False)]


# Asked of the instance


@pytest.mark.parametrize("step_name", ["pauses", "runs"])
@pytest.mark.parametrize("length", [90, 90.5, timedelta(seconds=90)])
def test_a_deadline_may_be_asked_of_the_instance(park, step_name, length):
    run = park(step_name, until=returning(length))
    attempt = newest(run)
    lasts = attempt.timeout_at - attempt.waiting_since
    assert timedelta(seconds=89) < lasts < timedelta(seconds=91)


@pytest.mark.parametrize("days", [-730_000, -30_000, 1, 2_900_000])
def test_an_aware_moment_is_the_deadline_itself(park, expire, days):
    moment = datetime(2030, 1, 1, 12, tzinfo=UTC) + timedelta(days=days)
    zone = datetime.fromisoformat("2030-01-01T00:00:00+05:45").tzinfo
    run = park("pauses", until=returning(moment.astimezone(zone)))
    assert newest(run).timeout_at == moment
    assert expire(run) is (days < 0)


@pytest.mark.parametrize(
    "garbage",
    [
        datetime(2030, 1, 1),  # noqa: DTZ001 (a naive one is the point)
        # Read in some other time zone these would be out of datetime's reach.
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        0,
        -1,
        timedelta(0),
        timedelta(days=-1),
        True,
        "soon",
        [],
    ],
    ids=repr,
)
@pytest.mark.parametrize("step_name", ["pauses", "runs", "notifies"])
def test_what_is_no_deadline_is_an_error_at_the_gate(database, park, garbage, step_name):
    run = park(step_name, until=returning(garbage))
    attempt = newest(run)
    assert (run.status, attempt.status) == (RunStatus.PAUSED, AttemptStatus.FAILED)
    assert attempt.error_class == "ValueError"
    assert f"wait_timeout gave {garbage!r}, which is no deadline" in attempt.error_message
    assert (attempt.waiting_since, attempt.timeout_at) == (None, None)
    assert Event.STEP_WAITING not in told(run)
    assert messages(database) == []


@pytest.mark.parametrize(
    ("error", "attempts", "statuses"),
    [
        (Declined(), 1, {AttemptStatus.SKIPPED}),
        (LookupError(), 3, {AttemptStatus.FAILED}),
        (asyncio.CancelledError(), 1, {AttemptStatus.FAILED}),
    ],
)
def test_what_it_raises_goes_to_the_policies(park, error, attempts, statuses):
    run = park("pauses", until=lambda self: self.step_name == "pauses" and raising(error)(self))
    tried = waited(run, "pauses")
    assert (len(tried), {attempt.status for attempt in tried}) == (attempts, statuses)


def test_a_query_of_its_own_that_fails_goes_to_the_policies_and_breaks_nothing(database, park):
    def until(self):
        self.session.execute(sqlalchemy.text("SELECT * FROM no_such_table"))

    run = park("pauses", until=until)
    assert run.status is RunStatus.PAUSED
    assert newest(run).error_class == "sqlalchemy.exc.ProgrammingError"
    assert database.engine.pool.checkedout() == 0


def test_it_may_query_and_what_it_writes_is_rolled_back(database, park):
    database.rows("CREATE TABLE promised (days int); INSERT INTO promised VALUES (3)")

    def until(self):
        self.session.execute(sqlalchemy.text("UPDATE promised SET days = days + 1 "))
        return timedelta(days=self.session.scalar(sqlalchemy.text("SELECT days FROM promised")))

    attempt = newest(park("pauses", until=until))
    assert (attempt.timeout_at - attempt.waiting_since).days in (3, 4)
    assert database.value("SELECT days FROM promised") == 3


def test_it_is_asked_once_and_only_when_the_step_parks(bus, driver, park):
    asked = []

    def until(self):
        asked.append(self.received_signal)
        return WEEK

    run = park("pauses", until=until)
    assert asked == [None]
    run.pause()
    run.resume()
    run.signal("go")
    run.signal("go")
    driver.drain()
    # The next step took the second at its gate, and the one after parked.
    assert (run.reload().current_step, len(asked)) == ("notifies", 2)


def test_it_is_asked_under_the_lock_and_no_verb_of_its_run_is_to_be_had(bus, park):
    refused = []

    def until(self):
        with suppress(InvalidTransition):
            bus.find(self.workflow_id).cancel()
        refused.append(bus.find(self.workflow_id).status)
        return WEEK

    assert park("pauses", until=until).status is RunStatus.WAITING
    assert refused == [RunStatus.READY]


# Asked again at a late notice


@pytest.fixture
def notice(park, expire, late, monkeypatch):
    """A run whose first deadline is missed, and `then` asked for the next; with what it missed."""

    def notice(then, by=timedelta(minutes=1)):
        run = park("notifies", until=returning(WEEK))
        missed = late(run, by)
        monkeypatch.setattr(Asking, "deadline", then)
        assert expire(run) is True
        return run.reload(), missed

    return notice


def test_a_moment_ahead_is_the_next_deadline(database, notice):
    ahead = clock(database) + timedelta(days=2)
    run, missed = notice(returning(ahead))
    assert (newest(run).timeout_at, newest(run).late_since) == (ahead, missed)


@pytest.mark.parametrize("length", [3 * WEEK, (3 * WEEK).total_seconds()])
def test_a_duration_moves_the_deadline_one_period_on(notice, length):
    run, missed = notice(returning(length), by=4 * WEEK)
    assert newest(run).timeout_at == missed + 6 * WEEK


@pytest.mark.parametrize("then", [None, datetime(2000, 1, 1, tzinfo=UTC)])
def test_nothing_or_a_past_moment_leaves_the_wait_without_a_deadline(driver, notice, expire, then):
    run, missed = notice(returning(then))
    attempt = newest(run)
    assert run.status is RunStatus.WAITING
    assert (attempt.timeout_at, attempt.late_since) == (None, missed)
    assert expire(run) is False
    run.signal("go")
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


@pytest.mark.parametrize(
    ("then", "error"),
    [
        (raising(Declined("no")), f"{__name__}.Declined"),
        (raising(asyncio.CancelledError()), "asyncio.exceptions.CancelledError"),
        (returning("soon"), "ValueError"),
        (returning(0), "ValueError"),
        (returning(datetime(2030, 1, 1)), "ValueError"),  # noqa: DTZ001 (a naive one is the point)
        (lambda self: self.pause(), "pgbus.engine.errors.NotInStep"),
        (
            lambda self: Asking.find(self.workflow_id).cancel(),
            "pgbus.engine.errors.InvalidTransition",
        ),
        (
            lambda self: self.session.execute(sqlalchemy.text("SELECT * FROM no_such_table")),
            "sqlalchemy.exc.ProgrammingError",
        ),
    ],
    ids=["error", "base", "garbage", "zero", "naive", "verb", "outside verb", "query"],
)
def test_one_that_fails_there_pauses_the_run_with_that_error(database, notice, then, error):
    run, missed = notice(then)
    attempt = newest(run)
    assert (run.status, attempt.status, attempt.error_class) == (
        RunStatus.PAUSED, AttemptStatus.FAILED, error
    )  # fmt: skip
    assert told(run)[-3:] == [Event.WAIT_TIMED_OUT, Event.STEP_FAILED, Event.PAUSED]
    assert run.events[-3].details["timeout_at"] == missed.isoformat()
    assert (attempt.waiting_since, messages(database)) == (None, [])


def test_the_next_deadline_is_asked_for_on_the_instance_of_that_attempt(notice):
    asked = []

    def then(self):
        asked.append(
            (self.step_name, self.attempt, self.timed_out, self.received_signal, self.signal_ready)
        )

    notice(then)
    assert asked == [("notifies", 1, False, None, False)]


def test_a_process_that_ends_while_it_is_asked_changes_nothing(park, late, expire, monkeypatch):
    run = park("notifies", until=returning(WEEK))
    missed = late(run)
    monkeypatch.setattr(Asking, "deadline", raising(SystemExit()))
    with pytest.raises(SystemExit):
        expire(run)
    assert (run.reload().status, newest(run).timeout_at) == (RunStatus.WAITING, missed)


# While it is paused


def test_a_pause_moves_a_deadline_by_its_length_where_the_clocks_change_before_it(database, park):
    database.rows(f"ALTER DATABASE {database.name} SET timezone = 'Europe/Berlin'")
    database.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    half_a_year_on = datetime.now(UTC) + timedelta(days=182)
    run = park("pauses", until=returning(half_a_year_on))
    run.pause()
    run.resume()
    assert abs(newest(run).timeout_at - half_a_year_on) < timedelta(seconds=60)


@pytest.mark.parametrize("until", [None, returning(datetime(2060, 1, 1, tzinfo=UTC))])
def test_a_deadline_moves_by_the_length_of_the_pause(database, park, until):
    run = park("pauses", until=until)
    before = newest(run).timeout_at
    run.pause()
    assert newest(run).timeout_at is None
    ((left, paused),) = database.rows(
        "SELECT timeout_left, w.paused_at FROM pgbus.workflow_steps JOIN pgbus.workflows w"
        " USING (workflow_id) WHERE timeout_left IS NOT NULL"
    )
    assert abs(before - paused - left) < timedelta(seconds=5)
    # As if it had been paused for all but a minute of its time.
    database.rows(
        "UPDATE pgbus.workflow_steps SET timeout_left = '1 minute' WHERE timeout_left > '1 h'"
    )
    run.resume()
    after = newest(run)
    assert run.status is RunStatus.WAITING
    assert abs(after.timeout_at - clock(database) - timedelta(minutes=1)) < timedelta(seconds=20)
    assert database.rows("SELECT 1 FROM pgbus.workflow_steps WHERE timeout_left IS NOT NULL") == []


@pytest.mark.parametrize("early", [False, True])
def test_a_paused_runs_wait_does_not_time_out(bus, driver, park, late, expire, early):
    run = park("pauses")
    late(run)
    run.pause()
    assert waits.expire(bus.services, driver.worker, run.workflow_id, early=early) is False
    assert run.reload().status is RunStatus.PAUSED
    run.resume()
    assert expire(run) is True


def test_a_pause_leaves_a_wait_without_a_deadline_without_one(park):
    run = park("pauses", until=returning(None))
    run.pause()
    run.resume()
    assert (newest(run).timeout_at, run.status) == (None, RunStatus.WAITING)


# Where the code is gone


@pytest.fixture
def version(monkeypatch):
    """Makes a version of the class `Shrinking`: the one loaded from now on."""
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))

    def version(**steps):
        namespace = type(Workflow).__prepare__("Shrinking", (Workflow,))
        namespace |= {"__module__": __name__, "__qualname__": "Shrinking"} | steps
        return type(Workflow)("Shrinking", (Workflow,), namespace)

    return version


@pytest.mark.parametrize("gone", ["class", "step"])
def test_a_wait_whose_code_is_gone_pauses_at_its_deadline(bus, expire, late, version, heard, gone):
    act = step(lambda self: None, wait_for="go", wait_timeout=WEEK, on_timeout="cancel")
    run = version(act=act).start()
    Driver(bus).drain()
    version(other=step(lambda self: None))
    if gone == "class":
        registry._definitions.pop(run.workflow_class)
    missed = late(run)
    assert expire(run) is True
    attempt = newest(run)
    assert (run.status, attempt.error_class) == (
        RunStatus.PAUSED, "pgbus.engine.errors.WaitTimedOut"
    )  # fmt: skip
    assert run.events[-3].details == {
        "wait_for": "go", "action": "pause", "timeout_at": missed.isoformat()
    }  # fmt: skip
    assert [payload.action for payload in heard[0]] == [OnTimeout.PAUSE]
