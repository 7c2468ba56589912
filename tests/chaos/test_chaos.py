"""A load of every kind of run under kills, freezes, restarts and terminated connections.

`make chaos` runs it for long. The seed draws what happens and when; what that meets is the
machine's own, so a seed repeats a failure in kind.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from chaos import app
from chaos.fleet import Fleet
from chaos.storm import Storm, forecast
from chaos.verdict import judge, met, trail, unsettled
from psycopg.types.json import Jsonb
from support.database import Database
from support.waiting import eventually

from pgbus import Pgbus
from pgbus.engine.storage.migrate import migrate

RUNS = int(os.environ.get("PGBUS_TEST_CHAOS_RUNS", "60"))
SECONDS = float(os.environ.get("PGBUS_TEST_CHAOS_SECONDS", "12"))
SEED = int(os.environ.get("PGBUS_TEST_CHAOS_SEED") or random.randrange(1_000_000))

#: Seconds between two orders: they come early in the storm, so that most of them are long in it.
PACE = SECONDS / RUNS * 0.5
#: Seconds that may pass until all is settled when nothing disturbs any more.
CALM = 60 + RUNS / 5
_TRAILS_SHOWN = 5


@pytest.fixture
def shop(crashable_server):
    """A migrated database with the host's tables, and the orders that are to come."""
    database = Database(crashable_server)
    migrate(database.engine, "pgbus")
    database.engine.dispose()
    database.rows(app.TABLES)
    kinds = app.KINDS if SECONDS < 100 else app.LONG_KINDS
    for order_id, kind in zip(range(RUNS), RUNS * list(kinds.values()), strict=False):
        database.rows(
            "INSERT INTO orders VALUES (%s, %s, %s)", order_id, kind.__name__, kind is app.Withdrawn
        )
        for number, sending in enumerate(kind.ends.sendings):
            database.rows(
                "INSERT INTO sendings VALUES (%s, %s, %s, %s, %s)",
                order_id,
                sending.name,
                f"{kind.__name__}:{order_id}:{number}",
                sending.payload and Jsonb(sending.payload),
                sending.delay,
            )
    return database


@pytest.fixture
def bus(shop):
    bus = Pgbus(database_url=shop.url, **app.SETTINGS)
    yield bus
    bus.close()


@pytest.mark.timeout(SECONDS * 2 + CALM * 2 + 60)
def test_every_run_ends_as_declared_and_every_effect_happens_once(shop, bus, tmp_path):
    print(f"PGBUS_TEST_CHAOS_SEED={SEED} repeats it, in kind")  # noqa: T201 (also for a run that hangs)
    fleet = Fleet(shop.url, seed=SEED, pace=PACE)
    storm = Storm(fleet, shop)
    try:
        storm.blow(forecast(random.Random(SEED), SECONDS))
        until = time.monotonic() + CALM
        fleet.finish_business(within=CALM)
        left = _settled(shop, fleet, within=until - time.monotonic())
        verdict = judge(shop, bus)
    finally:
        fleet.end()
        _keep_logs(fleet, tmp_path)
        print(*storm.applied, met(shop), sep="\n")  # noqa: T201 (what led to a failure)
    complaints = [*left, *verdict.told(), *fleet.complaints()]
    trails = [trail(shop, run) for run in verdict.offenders[:_TRAILS_SHOWN]]
    assert not complaints, "\n".join([*complaints, *trails, f"All logs are in {tmp_path}"])


def _settled(shop, fleet, within):
    """Returns once all is as it is to end; or what is not, when that takes too long."""
    until, looked_at, left = time.monotonic() + within, 0.0, ["not looked at"]

    def nothing_left_or_too_late():
        nonlocal looked_at, left
        fleet.tend()
        now = time.monotonic()
        if now - looked_at > 0.3:
            looked_at, left = now, unsettled(shop)
        return not left or now > until

    eventually(nothing_left_or_too_late, within=within + 10)
    return left


def _keep_logs(fleet, folder):
    for name, child in fleet.logged():
        (folder / f"{name.replace(' ', '-')}-{child.pid}.log").write_text(child.log)
