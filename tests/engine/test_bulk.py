"""A verb on all the runs that share a cause: on which, in what order, and what is told of it."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from support.database import Database
from support.sweeps import age

from pgbus import Pgbus, Workflow, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import DatabaseAway, SchemaOutdated
from pgbus.engine.insights import stuck
from pgbus.engine.insights.stuck import GroupKey, StuckReason
from pgbus.engine.runner import bulk, control
from pgbus.engine.states import Verb
from pgbus.engine.storage.migrate import migrate


class Ferry(Workflow):
    @step
    def board(self): ...

    @step(wait_for="tide")
    def sail(self): ...


FERRY = f"{__name__}.Ferry"
PAUSED = GroupKey(FERRY, "board", StuckReason.PAUSED_MANUAL, None)
OVERDUE = GroupKey(FERRY, "board", StuckReason.OVERDUE, None)
WAITING = GroupKey(FERRY, "sail", StuckReason.WAITING_OVERDUE, None)


def as_of(bus):
    with bus.services.database.autocommit() as connection:
        return stuck.groups(connection, bus.settings).as_of


@pytest.fixture
def press(bus):
    """Asks a verb of a group as a page of this moment would."""

    def press(group, verb, **options):
        defaults = {
            "stuck_before": as_of(bus),
            "at_most": 100,
            "actor": "cli:ann",
            "reason": "tide",
        }
        return bulk.act(bus.services, group, verb, **defaults | options)

    return press


def paused(number):
    return [Ferry.start().pause() for _ in range(number)]


def overdue(database, number):
    runs = [Ferry.start() for _ in range(number)]
    age(database, "61 minutes", *runs)
    return runs


def waiting(database, driver, number):
    runs = [Ferry.start() for _ in range(number)]
    driver.drain()
    age(database, "8 days", *runs)
    return runs


def statuses(runs):
    return [run.reload().status for run in runs]


def figures(result):
    return result.done, result.moved_on, result.failed, result.may_be_more


def acts(runs):
    """Who did what, and why, to runs after their start."""
    return {
        (str(event.event), event.actor, event.reason)
        for run in runs
        for event in run.events
        if event.actor == "cli:ann"
    }


def test_a_paused_group_is_resumed_each_run_with_actor_and_reason(press):
    runs, other = paused(3), Ferry.start()
    result = press(PAUSED, Verb.RESUME)
    assert result == bulk.BulkResult(
        done=3, moved_on=0, failed=0, first_failure=None, in_doubt=None, may_be_more=False
    )
    assert statuses(runs) == ["ready"] * 3
    assert acts([*runs, other]) == {("resumed", "cli:ann", "tide")}


def test_an_overdue_group_is_sent_to_run_now(press, database, driver):
    runs = overdue(database, 2)
    assert figures(press(OVERDUE, Verb.RUN_NOW)) == (2, 0, 0, False)
    assert acts(runs) == {("run_now", "cli:ann", "tide")}
    driver.drain()
    assert [run.reload().current_step for run in runs] == ["sail"] * 2


def test_a_group_of_any_reason_is_cancelled(press, database, driver):
    groups = {
        WAITING: waiting(database, driver, 1),
        PAUSED: paused(2),
        OVERDUE: overdue(database, 3),
    }
    for group, runs in groups.items():
        assert figures(press(group, Verb.CANCEL)) == (len(runs), 0, 0, False)
        assert statuses(runs) == ["cancelled"] * len(runs)
        assert acts(runs) == {("cancelled", "cli:ann", "tide")}


@pytest.mark.parametrize(
    ("group", "verb", "allowed"),
    [
        (PAUSED, Verb.RUN_NOW, "only resume or cancel"),
        (OVERDUE, Verb.RESUME, "only run_now or cancel"),
        (WAITING, Verb.RUN_NOW, "only cancel"),
        (WAITING, Verb.SKIP, "only cancel"),
    ],
)
def test_a_verb_that_does_not_fit_the_reason_is_a_mistake(
    press, database, driver, group, verb, allowed
):
    runs = waiting(database, driver, 1) + paused(1) + overdue(database, 1)
    before = statuses(runs)
    with pytest.raises(ValueError, match=f"{verb} of runs that are {group.reason}: {allowed}"):
        press(group, verb)
    assert statuses(runs) == before


def test_each_reason_has_its_verbs():
    assert stuck.VERBS.keys() == set(StuckReason)


def test_a_negative_number_of_runs_is_a_mistake(press):
    with pytest.raises(ValueError, match="at_most is -1"):
        press(PAUSED, Verb.RESUME, at_most=-1)


def test_a_run_that_got_stuck_after_the_moment_is_not_swept_along(bus, press):
    shown = paused(2)
    moment = as_of(bus)
    later = paused(1)
    assert figures(press(PAUSED, Verb.RESUME, stuck_before=moment)) == (2, 0, 0, False)
    assert statuses(shown + later) == ["ready", "ready", "paused"]


def test_a_run_that_was_late_only_after_the_moment_is_not_swept_along(bus, press, database):
    runs = overdue(database, 1)
    moment = as_of(bus) - timedelta(minutes=2)
    assert figures(press(OVERDUE, Verb.CANCEL, stuck_before=moment)) == (0, 0, 0, False)
    assert statuses(runs) == ["ready"]


def test_no_more_runs_are_taken_than_were_shown_the_oldest_first(press):
    first, second, third = paused(3)
    assert figures(press(PAUSED, Verb.RESUME, at_most=2)) == (2, 0, 0, False)
    assert statuses([first, second, third]) == ["ready", "ready", "paused"]


@pytest.mark.parametrize(("number", "may_be_more"), [(2, False), (3, True)])
def test_at_the_limit_it_is_told_whether_more_may_wait(press, number, may_be_more):
    runs = paused(number)
    assert figures(press(PAUSED, Verb.RESUME, limit=2)) == (2, 0, 0, may_be_more)
    assert statuses(runs)[:2] == ["ready"] * 2
    assert statuses(runs)[2:] == ["paused"] * (number - 2)


def test_five_hundred_is_the_limit_of_one_press(press, monkeypatch):
    asked = []
    found = stuck.members
    monkeypatch.setattr(
        stuck,
        "members",
        lambda *of, limit, **at: asked.append(limit) or found(*of, limit=limit, **at),
    )
    press(PAUSED, Verb.RESUME, at_most=10_000)
    assert asked == [501]


def meanwhile(monkeypatch, happens):
    """Lets something happen after the runs were found and before the first is asked."""
    found = stuck.members

    def members(*given, **named):
        runs = found(*given, **named)
        happens()
        return runs

    monkeypatch.setattr(stuck, "members", members)


@pytest.mark.parametrize("verb", [Verb.RESUME, Verb.CANCEL])
def test_a_run_that_moved_on_meanwhile_is_left_alone(press, monkeypatch, verb):
    first, moved, last = paused(3)
    # It is paused again, but that was somebody's new decision.
    meanwhile(monkeypatch, lambda: moved.resume().pause(actor="dashboard:bob"))
    assert figures(press(PAUSED, verb)) == (2, 1, 0, False)
    assert moved.reload().status == "paused"
    assert acts([moved]) == set()
    assert acts([first]) == acts([last]) != set()


def test_an_overdue_run_that_was_rescheduled_meanwhile_is_left_alone(press, database, monkeypatch):
    (run,) = overdue(database, 1)
    tomorrow = run.steps[-1].scheduled_at + timedelta(days=1)
    meanwhile(monkeypatch, lambda: run.reschedule(tomorrow))
    assert figures(press(OVERDUE, Verb.RUN_NOW)) == (0, 1, 0, False)
    assert run.steps[-1].scheduled_at == tomorrow


@pytest.mark.rows_by_hand
def test_a_run_that_was_deleted_meanwhile_has_moved_on(press, database, monkeypatch):
    paused(1)
    meanwhile(monkeypatch, lambda: database.rows("DELETE FROM pgbus.workflows"))
    assert figures(press(PAUSED, Verb.RESUME)) == (0, 1, 0, False)


def test_runs_whose_class_is_not_loaded_fail_with_their_reason_and_can_be_cancelled(
    press, monkeypatch
):
    runs = paused(2)
    monkeypatch.delitem(registry._definitions, FERRY)
    result = press(PAUSED, Verb.RESUME)
    assert figures(result) == (0, 0, 2, False)
    assert result.first_failure == (
        f"resume of run {runs[0].workflow_id} needs its class {FERRY}, which is not loaded here; "
        "import its module."
    )
    assert figures(press(PAUSED, Verb.CANCEL)) == (2, 0, 0, False)


def test_a_run_that_another_transaction_keeps_locked_fails_and_the_others_do_not(press, database):
    runs = paused(3)
    database.rows("ALTER FUNCTION pgbus.lock_run SET lock_timeout = '50ms'")
    with database.connection() as holder:
        holder.execute(
            "SELECT FROM pgbus.workflows WHERE workflow_id = %s FOR UPDATE", [runs[1].workflow_id]
        )
        result = press(PAUSED, Verb.RESUME)
    assert figures(result) == (2, 0, 1, False)
    assert result.first_failure.startswith(f"Run {runs[1].workflow_id} has been locked")
    assert statuses(runs) == ["ready", "paused", "ready"]


def before_the_second(monkeypatch, happens):
    """Lets something happen before the second run is asked to resume."""
    asked = []

    def resume(services, workflow_id, request):
        asked.append(workflow_id)
        if len(asked) == 2:
            happens()
        return control.resume(services, workflow_id, request)

    monkeypatch.setitem(bulk._ACTS, Verb.RESUME, resume)


def raise_a_bug():
    raise ZeroDivisionError("a bug")


def test_a_bug_fails_its_run_is_logged_and_hides_nothing(press, monkeypatch, caplog):
    runs = paused(3)
    before_the_second(monkeypatch, raise_a_bug)
    with caplog.at_level(logging.ERROR, "pgbus.runner"):
        result = press(PAUSED, Verb.RESUME)
    assert figures(result) == (2, 0, 1, False)
    assert result.first_failure == "ZeroDivisionError: a bug"
    assert f"failed on {runs[1].workflow_id}" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_the_first_of_several_failures_is_told(press, monkeypatch):
    paused(3)
    before_the_second(monkeypatch, raise_a_bug)
    monkeypatch.delitem(registry._definitions, FERRY)
    result = press(PAUSED, Verb.RESUME)
    assert result.failed == 3
    assert "not loaded here" in result.first_failure


def test_a_press_that_takes_too_long_ends_and_says_that_more_may_wait(press, monkeypatch):
    paused(2)
    monkeypatch.setattr(bulk, "LONGEST_SECONDS", -1.0)
    assert figures(press(PAUSED, Verb.RESUME)) == (1, 0, 0, True)


@pytest.fixture
def crashing_bus(crashable_server):
    """A bus on a server that the test may stop."""
    database = Database(crashable_server)
    migrate(database.engine, "pgbus")
    database.engine.dispose()
    bus = Pgbus(database_url=database.url)
    yield bus
    bus.close()


def test_an_outage_midway_ends_it_with_what_was_done_and_what_is_in_doubt(
    crashing_bus, crashable_server, monkeypatch
):
    runs = paused(3)
    before_the_second(monkeypatch, crashable_server.stop)
    result = bulk.act(
        crashing_bus.services,
        PAUSED,
        Verb.RESUME,
        stuck_before=as_of(crashing_bus),
        at_most=3,
        actor="cli:ann",
        reason=None,
    )
    assert figures(result) == (1, 0, 0, True)
    assert result.in_doubt == runs[1].workflow_id
    crashable_server.start()
    assert statuses(runs) == ["ready", "paused", "paused"]


def test_an_outage_before_anything_is_done_is_an_error(crashing_bus, crashable_server):
    moment = as_of(crashing_bus)
    crashable_server.stop()
    with pytest.raises(DatabaseAway):
        bulk.act(
            crashing_bus.services,
            PAUSED,
            Verb.RESUME,
            stuck_before=moment,
            at_most=3,
            actor="cli:ann",
            reason=None,
        )


def test_a_database_of_another_revision_is_told_once(empty_database, request):
    bus = Pgbus(database_url=empty_database.url)
    request.addfinalizer(bus.close)
    with pytest.raises(SchemaOutdated):
        bulk.act(
            bus.services,
            PAUSED,
            Verb.RESUME,
            stuck_before=empty_database.value("SELECT now()"),
            at_most=3,
            actor="cli:ann",
            reason=None,
        )
