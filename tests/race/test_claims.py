"""Workers that meet over one message."""

from support.driving import Driver

from pgbus import Workflow, step
from pgbus.engine.storage import transitions


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
        assert transitions.claim(connection, frozen.worker, early) is None
        assert transitions.claim(connection, other.worker, late).verdict == "claimed"
    assert run.steps[0].worker == "b:2"
