"""A status changes only as the table allows and from what was read under the lock; else nothing does."""

import dataclasses

import pytest
from support.scripts import Scripted, script

from pgbus.engine.runner.decide import Result
from pgbus.engine.states import AttemptStatus, Outcome, RunStatus, Verb
from pgbus.engine.storage import endings, runs, transitions


@pytest.fixture
def locked(bus):
    """A new run, and its row and its attempt's as they were read under its lock."""
    script()
    run = Scripted.start()
    with bus.services.database.transaction() as connection:
        return run, *runs.lock(connection, run.workflow_id)


@pytest.fixture
def own(bus):
    with bus.services.database.autocommit() as connection:
        yield connection


def rows(database):
    return [
        database.rows(f"SELECT t::text FROM pgbus.{table} t ORDER BY 1")
        for table in ("workflows", "workflow_steps", "workflow_events")
    ]


def test_an_ending_that_the_table_does_not_know_is_refused(bus, database, driver, own):
    script()
    Scripted.start()
    (delivery,) = driver.take()
    decider = bus.services.decider(Scripted._definition, Scripted._definition.step("first"))
    final = decider.after_result(Result(Outcome.COMPLETED))
    wrong = dataclasses.replace(final, target=RunStatus.FINISHED)
    before = rows(database)
    with pytest.raises(RuntimeError, match="advance would move a run from performing to finished"):
        endings.finalize(
            own, driver.worker, delivery, wrong, may_continue=False, takes_signals=False
        )
    assert rows(database) == before


@pytest.mark.parametrize(
    ("verb", "target"), [(Verb.PAUSE, RunStatus.CANCELLED), (Verb.SKIP, RunStatus.READY)]
)
def test_a_verbs_move_that_the_table_does_not_know_is_refused(database, own, locked, verb, target):
    _, row, _ = locked
    before = rows(database)
    with pytest.raises(RuntimeError, match=f"{verb} would move a run from ready to {target}"):
        transitions.move_run(own, row, verb, target)
    assert rows(database) == before


def test_a_run_that_is_in_another_state_than_was_read_is_not_moved(database, own, locked):
    run, row, _ = locked
    run.pause()
    before = rows(database)
    with pytest.raises(RuntimeError, match=f"run {run.workflow_id} is not ready any more"):
        transitions.move_run(own, row, Verb.CANCEL, RunStatus.CANCELLED)
    assert rows(database) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda own, attempt: transitions.end_attempt(
            own, attempt, AttemptStatus.SKIPPED, Outcome.SKIPPED
        ),
        transitions.release_held,
        lambda own, attempt: transitions.resend(own, attempt, at=None),
    ],
    ids=["end_attempt", "release_held", "resend"],
)
def test_an_attempt_that_is_in_another_state_than_was_read_is_not_changed(
    database, own, locked, change
):
    run, _, attempt = locked
    run.cancel()
    before = rows(database)
    with pytest.raises(RuntimeError, match=f"attempt {attempt.step_id} is not scheduled any more"):
        change(own, attempt)
    assert rows(database) == before
