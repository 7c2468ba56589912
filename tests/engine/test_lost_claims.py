"""Claims whose answer went with its connection: they are performed, and stall nothing."""

import psycopg
import pytest
from support import apps
from support.workers import Stage

from pgbus.engine.processes.worker import Worker
from pgbus.engine.storage import claims, endings
from pgbus.engine.storage.claims import Idle


@pytest.fixture
def stage(database, monkeypatch):
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)
    return Stage(database)


def losing_one_answer(statement, lost):
    """The statement, whose answer is lost the first time that it has taken something."""

    def ask(*arguments, **options):
        answer = statement(*arguments, **options)
        taken = getattr(answer, "taken", answer)
        if taken and not isinstance(taken, Idle) and not lost:
            lost.append(taken)
            raise psycopg.OperationalError("the connection is lost")
        return answer

    return ask


@pytest.mark.parametrize(("module", "name"), [(claims, "take"), (endings, "finalize")])
def test_what_a_lost_answer_had_claimed_is_performed_and_no_stall(
    bus, stage, monkeypatch, module, name
):
    lost = []
    monkeypatch.setattr(module, name, losing_one_answer(getattr(module, name), lost))
    runs = [bus.start(apps.Plain) for _ in range(20)]
    with bus.run_in_background():
        stage.finished(*runs)
    assert len(lost) == 1
    for run in runs:
        assert {(attempt.attempt, str(attempt.status)) for attempt in run.steps} == {
            (1, "completed")
        }
        assert "stall_detected" not in [event.event for event in run.events]


@pytest.fixture
def worker(bus):
    worker = Worker(bus)
    with bus.services.database.autocommit() as connection:
        worker._presence.beat_when_due(connection)
    yield worker
    worker._listening.close()


def test_what_is_in_hand_or_was_claimed_before_this_process_is_not_lost(bus, driver, stage, worker):
    driver.worker = worker._intake.worker
    early, late, held = (bus.start(apps.Plain) for _ in range(3))
    deliveries = {delivery.workflow_id: delivery for _ in range(3) for delivery in driver.take()}
    stage.database.rows(
        "UPDATE pgbus.workflow_steps SET started_at = started_at - interval '1 day'"
        " WHERE workflow_id = %s",
        early.workflow_id,
    )
    worker._in_flight.hold(deliveries[held.workflow_id])
    assert worker._claims.suspected(1)
    with bus.services.database.autocommit() as connection:
        (found,) = worker._claims.find(connection)
        assert found.workflow_id == late.workflow_id
        assert not worker._claims.suspected(1)
        assert worker._claims.suspected(2)
        assert worker._claims.find(connection) == []


def test_nothing_is_taken_for_its_own_while_another_process_has_the_same_host_and_pid(
    bus, driver, stage, worker
):
    driver.worker = worker._intake.worker
    bus.start(apps.Plain)
    driver.take()
    stage.database.rows(
        "INSERT INTO pgbus.processes (process_id, kind, host, pid, details, started_at, heartbeat_at)"
        " SELECT gen_random_uuid(), kind, host, pid, '{}', now(), now() FROM pgbus.processes"
    )
    worker._claims.suspected(1)
    with bus.services.database.autocommit() as connection:
        assert worker._claims.find(connection) == []
        stage.database.rows(
            "DELETE FROM pgbus.processes WHERE process_id <> %s", worker._presence.process_id
        )
        worker._claims.suspected(2)
        assert len(worker._claims.find(connection)) == 1


def test_a_claim_whose_answer_is_still_awaited_is_looked_for_again(bus, driver, worker):
    driver.worker = worker._intake.worker
    bus.start(apps.Plain)
    driver.take()
    worker._performers[0]._await_answer()
    assert worker._claims.suspected(1)
    with bus.services.database.autocommit() as connection:
        assert worker._claims.find(connection) == []
        assert worker._claims.suspected(1)
        worker._performers[0]._answered()
        assert len(worker._claims.find(connection)) == 1
