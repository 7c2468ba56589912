"""A run's way through its steps adds nothing to any index: its updates stay HOT (ADR 9)."""

from __future__ import annotations

from support.waiting import eventually

from pgbus import Workflow, step

RUNS = 30


class Steady(Workflow):
    @step
    def one(self):
        pass

    @step
    def two(self):
        pass

    @step
    def three(self):
        pass


def test_claims_and_completions_of_steps_are_hot_updates(bus, driver, database):
    Steady.start_many([(None, {})] * RUNS)

    driver.drain()
    bus.close()

    # The update that ends a run leaves the index of the ongoing ones; a full page may cost a few.
    few = RUNS // 10
    assert _updates(database, "workflows", at_least=RUNS * 4) <= RUNS + few
    assert _updates(database, "workflow_steps", at_least=RUNS * 4) <= few


def _updates(database, table, *, at_least):
    """How many updates of the table were not HOT, once so many are counted."""
    counted = []

    def reported():
        counted[:] = database.rows(
            "SELECT n_tup_upd, n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables"
            " WHERE schemaname = 'pgbus' AND relname = %s",
            table,
        )[0]
        return counted[0] >= at_least

    eventually(reported)
    return counted[1]
