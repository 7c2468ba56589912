"""The runs that need somebody: how many share a cause, since when, and which they are."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from support.sweeps import age, turn

from pgbus import Workflow, on_exception, step
from pgbus.engine.insights import runs, stuck
from pgbus.engine.insights.stuck import HELD_ENDS, GroupKey, StuckReason
from pgbus.engine.states import ONGOING, AttemptStatus, Move, RunStatus
from pgbus.engine.sweep.stalls import Stalls

MISLAID = f"{__name__}.MislaidError"
STALLED = "pgbus.engine.errors.StepStalled"


class MislaidError(Exception):
    pass


class Luggage(Workflow):
    @step
    def check_in(self):
        if "raises" in self.arguments:
            raise MislaidError(self.arguments["raises"])

    @step(wait_for="landed")
    def deliver(self): ...


class Conveyor(Workflow):
    policies = (on_exception(MislaidError, action="skip"),)

    @step
    def load(self):
        raise MislaidError

    @step
    def unload(self): ...


class Trolley(Workflow):
    @step
    def push(self): ...


LUGGAGE, TROLLEY, CONVEYOR = (f"{__name__}.{name}" for name in ("Luggage", "Trolley", "Conveyor"))


@pytest.fixture
def connection(bus):
    with bus.services.database.autocommit() as connection:
        yield connection


@pytest.fixture
def groups(bus, connection):
    def groups(*narrowed):
        return stuck.groups(connection, bus.settings, *narrowed)

    return groups


def fail(driver, message="no label"):
    run = Luggage.start(raises=message)
    driver.drain()
    return run.reload()


def wait_long(driver, database):
    run = Luggage.start()
    driver.drain()
    age(database, "8 days", run)
    return run.reload()


def be_overdue(database, workflow=Luggage, by="61 minutes"):
    run = workflow.start()
    age(database, by, run)
    return run


def stall(bus, driver, database):
    run = Luggage.start()
    driver.take()
    age(database, "2 hours", run)
    Stalls().sweep(turn(bus))
    return run.reload()


def skip_while_paused(driver):
    """One that was paused by hand while its step ran, which met an error and was skipped."""
    run = Conveyor.start()
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    return run.reload()


@pytest.fixture
def every_kind(bus, driver, database):
    """Of each reason so many runs as its place says, of two classes."""
    stall(bus, driver, database)
    for _ in range(2):
        fail(driver)
    for _ in range(3):
        wait_long(driver, database)
    for _ in range(7):
        skip_while_paused(driver)
    for _ in range(4):
        Luggage.start().pause()
    for _ in range(5):
        be_overdue(database)
    for _ in range(6):
        Trolley.start().pause()
    return {
        GroupKey(LUGGAGE, "check_in", StuckReason.STALLED, STALLED): 1,
        GroupKey(LUGGAGE, "check_in", StuckReason.PAUSED_ERROR, MISLAID): 2,
        GroupKey(LUGGAGE, "deliver", StuckReason.WAITING_OVERDUE, None): 3,
        GroupKey(LUGGAGE, "check_in", StuckReason.PAUSED_MANUAL, None): 4,
        GroupKey(LUGGAGE, "check_in", StuckReason.OVERDUE, None): 5,
        GroupKey(TROLLEY, "push", StuckReason.PAUSED_MANUAL, None): 6,
        GroupKey(CONVEYOR, "load", StuckReason.PAUSED_MANUAL, MISLAID): 7,
    }


def test_stuck_runs_are_grouped_by_class_step_reason_and_error_class(every_kind, groups):
    assert {group.key: group.count for group in groups().groups} == every_kind


def linked(bus, connection, key):
    """The runs that the link of a group lists, which are so many as its counts tell."""
    wanted = runs.RunFilter(
        workflow_class=key.workflow_class,
        current_step=key.step_name,
        stuck=key.reason,
        error_class=key.error_class or runs.NO_ERROR,
        held=key.held or stuck.NO_END,
    )
    found = runs.page(connection, bus.settings, wanted, limit=999).runs
    assert runs.status_counts(connection, bus.settings, wanted)["ongoing"] == len(found)
    return found


def test_a_group_links_to_a_list_of_exactly_its_runs(bus, connection, every_kind, groups):
    for group in groups().groups:
        found = linked(bus, connection, group.key)
        assert len(found) == every_kind[group.key]
        assert {run.stuck for run in found} == {group.key.reason}
        seen = sorted(run.stuck_since for run in found)
        assert (seen[0], seen[-1]) == (group.first_at, group.last_at)


def raising(error):
    def body(crane):
        raise error

    return body


#: How a body can end that goes on while its run is paused, and how resume ends the run then.
ENDS = {
    "returned": (lambda crane: None, None),
    "skipped": (lambda crane: crane.skip(), None),
    "paused": (lambda crane: crane.pause(), None),
    "asked for another attempt": (lambda crane: crane.reattempt(), None),
    "finished": (lambda crane: crane.finish(), RunStatus.FINISHED),
    "failed": (raising(KeyError()), None),
    "skipped by policy": (raising(MislaidError()), None),
    "tried again by policy": (raising(OSError()), None),
    "cancelled by policy": (raising(ValueError()), RunStatus.CANCELLED),
}


class Crane(Workflow):
    policies = (
        on_exception(MislaidError, action="skip"),
        on_exception(OSError, action="reattempt", wait=600),
        on_exception(ValueError, action="cancel"),
    )

    @step
    def lift(self):
        ENDS[self.arguments["how"]][0](self)

    @step
    def lower(self): ...

    @step
    def rest(self): ...


def lift_while_paused(driver, how):
    """A run that was paused while its body ran, which then ended so."""
    run = Crane.start(how=how)
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    return run.reload()


@pytest.mark.parametrize("how", ENDS)
def test_what_a_body_held_back_tells_how_resume_ends_the_runs_of_a_group(driver, groups, how):
    run = lift_while_paused(driver, how)
    (group,) = groups().groups
    status = run.resume().status
    ended = {None: None, Move.FINISH: RunStatus.FINISHED, Move.STEP_CANCEL: RunStatus.CANCELLED}
    assert ended[group.key.held] is (status if status not in ONGOING else None)
    assert ended[group.key.held] is ENDS[how][1]


def test_runs_that_resume_ends_are_in_no_group_with_others(driver, groups):
    for how in ENDS:
        lift_while_paused(driver, how)
    assert {
        (group.key.reason, group.key.error_class, group.key.held): group.count
        for group in groups().groups
    } == {
        (StuckReason.PAUSED_MANUAL, None, None): 3,
        (StuckReason.PAUSED_MANUAL, MISLAID, None): 1,
        (StuckReason.PAUSED_MANUAL, None, Move.FINISH): 1,
        (StuckReason.PAUSED_ERROR, None, None): 1,
        (StuckReason.PAUSED_ERROR, "KeyError", None): 1,
        (StuckReason.PAUSED_ERROR, "OSError", None): 1,
        (StuckReason.PAUSED_ERROR, "ValueError", Move.STEP_CANCEL): 1,
    }


def test_a_list_is_narrowed_to_what_runs_hold(bus, driver, connection):
    for how in ENDS:
        lift_while_paused(driver, how)
    Trolley.start()
    for held, number in ((Move.FINISH, 1), (Move.STEP_CANCEL, 1), (stuck.NO_END, len(ENDS) - 1)):
        wanted = runs.RunFilter(status="all", held=held)
        assert len(runs.page(connection, bus.settings, wanted, limit=99).runs) == number
        assert runs.status_counts(connection, bus.settings, wanted)["all"] == number


#: Every end that can be held, of an attempt in every state, with and without an error.
HOLDING = """
UPDATE pgbus.workflow_steps s SET status = c.status, error_class = c.error, held = jsonb_build_object('move', c.move)
  FROM (SELECT step_id, row_number() OVER (ORDER BY step_id) AS n FROM pgbus.workflow_steps) o
  JOIN (SELECT *, row_number() OVER () AS n FROM unnest(CAST(%s AS text[]), CAST(%s AS text[]), CAST(%s AS text[]))
                                                 AS u (move, status, error)) c USING (n)
 WHERE o.step_id = s.step_id
"""


#: Each with the error of its only attempt.
PAUSING = """
UPDATE pgbus.workflows w SET status = 'paused', paused_at = now(), settled_error = coalesce(s.error_class, '')
  FROM pgbus.workflow_steps s WHERE s.step_id = w.step_id
"""


@pytest.mark.rows_by_hand
def test_whatever_is_held_a_groups_count_its_link_and_its_members_are_the_same_runs(
    bus, database, connection, groups
):
    cases = list(product(Move, AttemptStatus, (None, MISLAID, STALLED)))
    Trolley.start_many([(None, {})] * len(cases))
    database.rows(HOLDING, *(list(column) for column in zip(*cases, strict=True)))
    database.rows(PAUSING)
    found = groups()
    assert sum(group.count for group in found.groups) == len(cases)
    for group in found.groups:
        members = stuck.members(
            connection, bus.settings, group.key, stuck_before=found.as_of, limit=999
        )
        listed = linked(bus, connection, group.key)
        assert group.count == len(members)
        assert {run.workflow_id for run in listed} == {one.workflow_id for one in members}
        assert {run.stuck for run in listed} == {group.key.reason}
        assert {run.error_class for run in listed} == {group.key.error_class}
        assert {run.held for run in listed} & {*HELD_ENDS} == {group.key.held} - {None}
    assert {group.key.held for group in found.groups} == {None, *HELD_ENDS}


def test_a_run_that_moves_is_in_no_group(driver, database, groups):
    Luggage.start().pause().resume()
    be_overdue(database, by="59 minutes")
    Luggage.start(raises="cancelled").pause().cancel()
    driver.drain()
    found = groups()
    assert (found.groups, found.total, dict(found.by_class)) == ((), 0, {})
    assert found.exhaustive


def test_the_biggest_group_comes_first_then_the_one_with_the_latest_run(database, driver, groups):
    fail(driver)
    for _ in range(2):
        wait_long(driver, database)
    be_overdue(database, by="3 hours")
    be_overdue(database, Trolley, by="2 hours")
    assert [(group.key.reason, group.key.workflow_class) for group in groups().groups] == [
        (StuckReason.WAITING_OVERDUE, LUGGAGE),
        (StuckReason.PAUSED_ERROR, LUGGAGE),
        (StuckReason.OVERDUE, TROLLEY),
        (StuckReason.OVERDUE, LUGGAGE),
    ]


def test_groups_of_one_size_and_moment_come_by_their_class(database, groups):
    for workflow in (Trolley, Luggage):
        workflow.start().pause()
    database.rows("UPDATE pgbus.workflows SET paused_at = now()")
    assert [group.key.workflow_class for group in groups().groups] == [LUGGAGE, TROLLEY]


@pytest.mark.parametrize(
    ("make", "moment"),
    [
        (lambda driver, _: fail(driver), "w.paused_at"),
        (lambda _, database: be_overdue(database), "s.scheduled_at"),
        (wait_long, "s.waiting_since"),
    ],
    ids=["paused", "overdue", "waiting"],
)
def test_first_and_last_seen_are_when_runs_got_stuck(driver, database, groups, make, moment):
    for _ in range(3):
        make(driver, database)
    moments = database.rows(
        f"SELECT min({moment}), max({moment})"
        " FROM pgbus.workflows w JOIN pgbus.workflow_steps s USING (step_id)"
    )
    assert [(group.first_at, group.last_at) for group in groups().groups] == moments


def test_the_message_is_of_the_run_that_got_stuck_last_and_not_longer_than_a_thousand(
    database, driver, groups
):
    late = fail(driver, "x" * 3000)
    fail(driver, "earlier, though it began later")
    database.rows(
        "UPDATE pgbus.workflows SET paused_at = now() WHERE workflow_id = %s", late.workflow_id
    )
    (group,) = groups().groups
    assert group.newest_error_message == "x" * 1000


def test_who_paused_the_newest_run_and_why_is_told(driver, groups):
    Luggage.start().pause(actor="dashboard:alice", reason="stop the press")
    Luggage.start().pause(actor="dashboard:bob").resume().pause(
        actor="dashboard:carol", reason="y" * 3000
    )
    (group,) = groups().groups
    assert (group.newest_actor, group.newest_because) == ("dashboard:carol", "y" * 1000)


def test_a_pause_of_the_past_is_not_told_of_a_run_that_is_overdue(database, groups):
    run = Luggage.start().pause(actor="dashboard:alice").resume()
    age(database, "61 minutes", run)
    (group,) = groups().groups
    assert (group.key.reason, group.newest_actor) == (StuckReason.OVERDUE, None)


def test_a_class_can_be_asked_for_and_the_others_are_still_counted(every_kind, groups):
    of_all, of_one = groups(), groups(TROLLEY)
    assert dict(of_all.by_class) == dict(of_one.by_class) == {LUGGAGE: 15, TROLLEY: 6, CONVEYOR: 7}
    assert (of_all.total, of_one.total) == (28, 6)
    assert [group.key.workflow_class for group in of_one.groups] == [TROLLEY]
    of_none = groups("no.such.Class")
    assert (of_none.groups, of_none.total) == ((), 0)
    of_step = groups(LUGGAGE, "deliver")
    assert (of_step.total, [group.count for group in of_step.groups]) == (3, [3])
    assert of_step.by_class == of_all.by_class


@pytest.mark.rows_by_hand
@pytest.mark.parametrize(("causes", "exhaustive"), [(200, True), (201, False)])
def test_the_two_hundred_biggest_groups_are_given(bus, database, groups, causes, exhaustive):
    Trolley.start_many([(None, {})] * (causes + 1))
    database.rows(
        "UPDATE pgbus.workflow_steps s SET status = 'failed', error_class = 'E' || greatest(n, 2)"
        " FROM (SELECT step_id, row_number() OVER (ORDER BY step_id) n FROM pgbus.workflow_steps) o"
        " WHERE o.step_id = s.step_id"
    )
    database.rows(PAUSING)
    found = groups()
    assert (len(found.groups), found.exhaustive) == (200, exhaustive)
    assert (found.groups[0].key.error_class, found.groups[0].count) == ("E2", 2)
    assert found.total == causes + 1


def test_the_moment_is_the_databases(database, groups):
    before = database.value("SELECT clock_timestamp()")
    moment = groups().as_of
    assert before < moment < database.value("SELECT clock_timestamp()")


def test_all_stuck_runs_are_counted_up_to_a_cap(bus, connection, every_kind):
    assert stuck.count(connection, bus.settings) == 28
    assert stuck.count(connection, bus.settings, cap=28) == 28
    assert stuck.count(connection, bus.settings, cap=27) == 28
    assert stuck.count(connection, bus.settings, cap=3) == 4


def members_of(bus, connection, group, *, limit=10):
    found = stuck.members(
        connection, bus.settings, group.key, stuck_before=group.last_at, limit=limit
    )
    return [member.workflow_id for member in found]


def test_the_members_of_every_group_are_found(bus, connection, every_kind, groups):
    found = groups()
    for group in found.groups:
        members = stuck.members(
            connection, bus.settings, group.key, stuck_before=found.as_of, limit=10
        )
        assert len({member.workflow_id for member in members}) == every_kind[group.key]


def test_the_members_that_are_stuck_for_longest_come_first(bus, connection, groups):
    third, second, first = (Luggage.start() for _ in range(3))
    for run in (first, second, third):
        run.pause()
    (group,) = groups().groups
    assert members_of(bus, connection, group) == [run.workflow_id for run in (first, second, third)]
    assert members_of(bus, connection, group, limit=2) == [first.workflow_id, second.workflow_id]


def test_a_run_that_was_paused_after_the_moment_is_no_member(bus, connection, groups):
    early = Luggage.start().pause()
    (group,) = groups().groups
    Luggage.start().pause()
    assert members_of(bus, connection, group) == [early.workflow_id]


@pytest.mark.parametrize(
    ("make", "by"),
    [
        (lambda _, database: be_overdue(database), timedelta(hours=1)),
        (wait_long, timedelta(days=7)),
    ],
    ids=["overdue", "waiting"],
)
def test_a_run_that_was_late_only_after_the_moment_is_no_member(
    bus, database, driver, connection, groups, make, by
):
    make(driver, database)
    (group,) = groups().groups
    for moment, number in ((group.first_at + by, 0), (group.first_at + by * 1.01, 1)):
        found = stuck.members(connection, bus.settings, group.key, stuck_before=moment, limit=10)
        assert len(found) == number


def test_a_moment_to_come_counts_as_now(bus, database, connection, groups):
    be_overdue(database, by="59 minutes")
    be_overdue(database)
    (group,) = groups().groups
    ahead = group.last_at + timedelta(days=1)
    found = stuck.members(connection, bus.settings, group.key, stuck_before=ahead, limit=10)
    assert len(found) == 1


def test_members_share_everything_that_makes_their_group(bus, connection, every_kind, groups):
    as_of = groups().as_of
    for other in (
        GroupKey(TROLLEY, "check_in", StuckReason.PAUSED_ERROR, MISLAID),
        GroupKey(LUGGAGE, "deliver", StuckReason.PAUSED_ERROR, MISLAID),
        GroupKey(LUGGAGE, "check_in", StuckReason.PAUSED_MANUAL, MISLAID),
        GroupKey(LUGGAGE, "check_in", StuckReason.PAUSED_ERROR, None),
    ):
        found = stuck.members(connection, bus.settings, other, stuck_before=as_of, limit=10)
        assert len(found) == every_kind.get(other, 0)
