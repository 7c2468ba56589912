"""Workers that meet over one message."""

import threading

import pytest
from support import apps
from support.driving import Driver
from support.workers import Stage

from pgbus import Workflow, step
from pgbus.engine.storage import claims


class Icy(Workflow):
    @step
    def only(self): ...


def test_a_worker_that_froze_after_its_read_leaves_the_message_to_who_read_it_since(bus, database):
    frozen, other = (Driver(bus, name=name, unguarded=[]) for name in ("a:1", "b:2"))
    run = Icy.start()
    (early,) = frozen.take()
    database.rows("UPDATE pgmq.q_pgbus_workflows SET vt = clock_timestamp()")
    (late,) = other.take()
    assert (early.message_id, early.read_count, late.read_count) == (late.message_id, 1, 2)
    with bus.services.database.autocommit() as connection:
        assert claims.claim(connection, frozen.worker, early) is None
        assert claims.claim(connection, other.worker, late).verdict == "claimed"
    assert run.steps[0].worker == "b:2"


@pytest.fixture
def stage(database, monkeypatch):
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)
    return Stage(database)


def test_a_stall_found_too_late_takes_no_message_from_the_step_that_goes_on(bus, stage):
    one, other = Driver(bus, name="one:1"), Driver(bus, name="other:1")
    run = bus.start(apps.TwiceGated)
    (delivery,) = one.take()
    with stage.closed("body"):
        with stage.closed("early"):
            thread = threading.Thread(target=one.perform, args=[delivery])
            thread.start()
            stage.arrived_at("early")
            stage.redeliver()
            (crashed,) = other.take()
            assert crashed.verdict == "crashed"
        stage.arrived_at("body")
        other.perform(crashed)
        assert stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 1
    thread.join()
    assert stage.attempts(run) == [("one", 1, "completed"), ("two", 1, "completed")]


def test_a_claim_under_the_lock_whose_answer_was_lost_is_the_same_workers_to_repeat(bus):
    mine, other = (Driver(bus, name=name, unguarded=[]) for name in ("a:1", "b:2"))
    run = Icy.start()
    (delivery,) = mine.take()
    assert delivery.verdict == "guarded"
    with bus.services.database.autocommit() as connection:
        first = claims.claim(connection, mine.worker, delivery)
        again = claims.claim(connection, mine.worker, delivery)
        assert claims.claim(connection, other.worker, delivery) is None
    assert first == again
    assert first.verdict == "claimed"
    mine.perform(delivery)
    assert [attempt.status for attempt in run.steps] == ["completed"]
    assert [event.event for event in run.events].count("step_started") == 1
